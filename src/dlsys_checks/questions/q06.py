"""Stage 6: pipelines, blends, stopping, leaks, bytes and rare classes."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from torchvision.transforms import v2

from dlsys_checks.questions import asks, choice, number, whole

# ---- 06.1 One pipeline for both sets


@asks("06.1")
def places_of_a_crop(rng):
    pad = rng.randint(1, 6)
    return whole(
        f"`v2.RandomCrop(32, padding={pad})` on images of 32 x 32 pixels. How many different "
        "places can an image end up in?", (2 * pad + 1) ** 2,
        "Each direction has 2 * padding + 1 places, and the two are drawn apart.",
        2 * pad + 1, 4 * pad)


@asks("06.1")
def flips_of_a_batch(rng):
    n = rng.randint(8, 64)
    flip = v2.RandomHorizontalFlip()
    picture = torch.arange(4.0).expand(n, 1, 4, 4)
    kinds = len({tuple(row) for row in flip(picture)[:, 0, 0].tolist()})
    return whole(
        f"A batch of {n} equal images goes through `v2.RandomHorizontalFlip()` in one call. How "
        "many different images come out?", kinds,
        "A transform draws once a call, and the batch is one call.", 2, n)


@asks("06.1")
def middle_by_chance(rng):
    pad, n = rng.randint(1, 4), rng.choice([900, 1500, 2500, 5000])
    return number(
        f"A validation set of {n} images goes through a random crop with padding {pad}, each image "
        "by itself. How many of them are left where they were, on average?",
        n / (2 * pad + 1) ** 2, "One place of (2 * padding + 1) squared is the middle.",
        n / 2, n / (2 * pad + 1))


@asks("06.1")
def which_pipeline_scores(rng):
    degrees = rng.choice([5, 10, 15, 30])
    return choice(
        f"Training rotates by up to {degrees} degrees; in use images come upright. Two networks "
        "are to be compared. What does the validation pipeline do?", "no rotation",
        "Score on what comes in use. A seed makes the wrong question stand still.",
        f"rotates by up to {degrees} degrees", f"rotates by up to {degrees} degrees, seeded",
        f"rotates by {degrees / 2:g} degrees, the mean")


# ---- 06.2 A mixed image, and one class for it

@asks("06.2")
def weight_of_a_label(rng):
    lam = rng.randint(15, 85) / 100
    one = F.one_hot(torch.tensor([0, 2]), 3).float()
    soft = lam * one + (1 - lam) * one.flip(0)
    return number(
        f"Mixup with share {lam} of an image of class 0 and the rest of class 2. Which weight has "
        "class 2 in the label?", soft[0, 2].item(), "Labels are blended with the images' shares.",
        lam, 1.0)


@asks("06.2")
def loss_of_a_blend(rng):
    lam = rng.randint(2, 8) / 10
    p, q = rng.sample([0.1, 0.2, 0.25, 0.4, 0.5], 2)
    target = torch.tensor([[lam, 1 - lam, 0.0]], dtype=torch.float64)
    logits = torch.tensor([[p, q, 1 - p - q]], dtype=torch.float64).clamp(min=1e-9).log()
    return number(
        f"A blend has label {lam:g} for class A and {1 - lam:g} for class B. The network gives A "
        f"the probability {p} and B {q}. What is the cross-entropy, in nats?",
        F.cross_entropy(logits, target).item(), "The two losses, each with its label's weight.",
        -math.log(p if lam >= 0.5 else q), -math.log(p) - math.log(q))


@asks("06.2")
def floor_of_a_blend(rng):
    lam = rng.choice([0.6, 0.65, 0.7, 0.75, 0.8, 0.9])
    return number(
        f"Every image of a batch is a blend of two classes with shares {lam} and {1 - lam:.2g}. "
        "How low can the cross-entropy with soft labels get, in nats?",
        -(lam * math.log(lam) + (1 - lam) * math.log(1 - lam)),
        "The entropy of the label remains, however good the network is.", 0, -math.log(lam))


@asks("06.2")
def labels_that_do_not_add_up(rng):
    total = rng.choice([0.5, 1.5, 2.0, 3.0])
    z = torch.tensor([[1.0, 0.0, -1.0]], dtype=torch.float64)
    soft = total * torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    ratio = F.cross_entropy(z, soft) / F.cross_entropy(z, soft / total)
    return number(
        f"Soft labels add up to {total} by mistake. By which factor is `F.cross_entropy` off?",
        ratio.item(), "It is a sum over classes, label times minus log p; nothing is normalised.",
        1, total**2)


# ---- 06.3 Patience with the loss at hand

def stop(losses, patience, min_delta=0.0):
    """Epoch of the stop, counted from 0."""
    reference, since = math.inf, 0
    for epoch, loss in enumerate(losses):
        since += 1
        if loss < reference - min_delta:
            reference, since = loss, 0
        if since == patience:
            return epoch
    return len(losses) - 1


@asks("06.3")
def epoch_of_the_stop(rng):
    best, patience = rng.randint(2, 6), rng.randint(2, 5)
    losses = [round(2 - 0.1 * k, 1) for k in range(best + 1)]
    losses += [round(losses[-1] + 0.1 * k, 1) for k in range(1, patience + 4)]
    return whole(
        f"Validation losses: {losses}. Patience {patience}, min_delta 0, epochs counted from 0. At "
        "which epoch does training stop?", stop(losses, patience),
        "The patience-th epoch in a row without progress ends it.", best, best + patience + 1)


@asks("06.3")
def steady_but_small(rng):
    gain, patience = rng.choice([0.001, 0.002, 0.003]), rng.randint(4, 6)
    delta = 0.02
    losses = [1 - gain * k for k in range(50)]
    return whole(
        f"The validation loss falls by {gain} in each of 50 epochs, from 1. min_delta is {delta}, "
        f"patience {patience}, epochs counted from 0. At which epoch does training stop?",
        stop(losses, patience, delta),
        f"After {patience} epochs the gain since the reference is {gain * patience:g}, not more "
        "than min_delta.", 49, 0)


@asks("06.3")
def restored_epoch(rng):
    low = rng.randint(1, 3)
    losses = [round(3 - 0.4 * k, 1) for k in range(low + 1)]
    at = len(losses)
    losses += [round(losses[-1] + 0.3, 1), round(losses[-1] - 0.1, 1), round(losses[-1] + 0.5, 1)]
    return whole(
        f"Validation losses: {losses}. min_delta is 0.2, patience 5, epochs counted from 0. Which "
        "epoch's weights are restored when the lowest loss counts?", losses.index(min(losses)),
        "The lowest loss is restored, be it progress or not.", at - 1, len(losses) - 1)


@asks("06.3")
def lucky_batches(rng):
    p, patience = rng.choice([0.5, 0.6, 0.7, 0.8]), rng.randint(3, 6)
    return number(
        f"Late in training a single batch's loss fails to be a new lowest with probability {p}, "
        f"each by itself. How likely do the next {patience} batches all fail?", p**patience,
        "Noise alone stops such a run sooner or later: watch a mean, on held-out data.",
        p * patience, 1 - p**patience)


# ---- 06.4 The best weights, kept for later

def counted(keep, steps, at):
    """A weight that grows by 1 a step; what was kept of it at one step says so at the end."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
        for k in range(1, steps + 1):
            model.weight.add_(1)
            if k == at:
                kept = keep(model)
    return kept["weight"].item()


@asks("06.4")
def kept_by_reference(rng):
    steps, at = rng.randint(6, 20), rng.randint(1, 5)
    return whole(
        f"A weight starts at 0, and each of {steps} epochs adds 1 in place. After epoch {at} you "
        "keep `best = model.state_dict()`. Which value is in `best` at the end?",
        round(counted(lambda m: m.state_dict(), steps, at)),
        "The dict holds the model's own tensors.", at, 0)


@asks("06.4")
def kept_by_copy(rng):
    steps, at = rng.randint(6, 20), rng.randint(1, 5)
    return whole(
        f"A weight starts at 0, and each of {steps} epochs adds 1 in place. After epoch {at} you "
        "keep `best = copy.deepcopy(model.state_dict())`. Which value is in `best` at the end?",
        round(counted(lambda m: copy.deepcopy(m.state_dict()), steps, at)),
        "deepcopy copies the tensors as well.", steps, 0)


@asks("06.4")
def entries_of_a_norm(rng):
    norms = rng.randint(2, 9)
    model = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(norms)))
    missing = len(model.state_dict()) - len(list(model.parameters()))
    return whole(
        f"A model has {norms} BatchNorm layers. You keep copies of `model.parameters()`. How many "
        "entries of its `state_dict()` are not among them?", missing,
        "Running mean, running variance and the number of batches are buffers.",
        2 * norms, 0)


@asks("06.4")
def bytes_of_the_best(rng):
    millions = rng.choice([7, 11, 25, 60, 86])
    return number(
        f"A model of {millions} million float32 weights without buffers. How many MB (1e6 bytes) "
        "does a copy of the best weights take on top?", 4 * millions,
        "Four bytes a weight, once, if only the best is kept.", millions, 8 * millions)


# ---- 06.5 Columns chosen before the split

@asks("06.5")
def columns_by_chance(rng):
    columns, rows = rng.choice([1024, 2048, 4096, 8192]), rng.randint(6, 9)
    return number(
        f"{columns} columns of noise, each yes or no by a coin, and {rows} rows with labels by a "
        "coin. How many columns equal the labels in all rows, on average?", columns / 2**rows,
        "Each row agrees with probability one half.", 0, columns / rows)


@asks("06.5")
def coins_with_an_honest_test(rng):
    rows, columns = rng.choice([40, 60, 80]), rng.choice([500, 2000, 10_000])
    return choice(
        f"{rows} rows, {columns} columns of noise, labels by a fair coin. Columns are chosen "
        "inside each fold. Which share right is to be expected?", "about 50 %",
        "Nothing can be learnt, and nothing of the fold's rows was read.", "about 70 %",
        "about 90 %", "below 20 %")


@asks("06.5")
def uneven_folds(rng):
    sizes = [rng.randint(20, 40), rng.randint(6, 10), rng.randint(3, 5)]
    hits = [sizes[0] - rng.randint(0, 3), rng.randint(0, 2), rng.randint(0, 1)]
    mean_of_means = sum(h / n for h, n in zip(hits, sizes, strict=True)) / 3
    return number(
        f"Three folds of {sizes[0]}, {sizes[1]} and {sizes[2]} rows have {hits[0]}, {hits[1]} and "
        f"{hits[2]} of them right. Each row counts once. Which share is right?",
        sum(hits) / sum(sizes), "Right rows of all folds, over all rows.",
        mean_of_means)


@asks("06.5")
def luckiest_setting(rng):
    settings, rows = rng.choice([20, 50, 200]), rng.choice([25, 100, 400])
    spread = 50 / math.sqrt(rows)
    return number(
        f"{settings} settings that all guess coins are scored on the same {rows} rows. By how many "
        "percentage points does one setting's score vary (one standard deviation)?", spread,
        "sqrt(0.5 * 0.5 / rows). The best of many lies two to three of these above 50 %.",
        50 / rows, 50)


# ---- 06.6 Twenty steps brighter

def as_byte(value):
    return torch.tensor([value], dtype=torch.uint8)


@asks("06.6")
def sum_of_bytes(rng):
    value, d = rng.randint(180, 254), rng.randint(80, 120)
    return whole(
        f"`torch.tensor([{value}], dtype=torch.uint8) + {d}`: which number?",
        (as_byte(value) + d).item(), "After 255 comes 0.", 255, value + d)


@asks("06.6")
def difference_of_bytes(rng):
    value, d = rng.randint(0, 90), rng.randint(100, 128)
    return whole(
        f"`torch.tensor([{value}], dtype=torch.uint8) - {d}`: which number?",
        (as_byte(value) - d).item(), "Before 0 comes 255.", 0, value - d)


@asks("06.6")
def late_clamp(rng):
    value, d = rng.randint(190, 254), rng.randint(70, 120)
    return whole(
        f"`(torch.tensor([{value}], dtype=torch.uint8) + {d}).clamp(0, 255)`: which number?",
        (as_byte(value) + d).clamp(0, 255).item(),
        "The sum has wrapped before the cut, and lies inside.", 255)


@asks("06.6")
def share_that_wraps(rng):
    d = rng.choice([16, 32, 48, 64, 96, 160])
    pixels = torch.arange(256).to(torch.uint8)
    wrapped = ((pixels + d).int() < pixels.int()).float().mean().item()
    return number(
        f"All 256 byte values are equally frequent in an image. `img + {d}` in uint8: which share "
        "of the pixels gets darker?", wrapped, "Those above 255 - d wrap.", 1 - wrapped, 0)


# ---- 06.7 Five copies of each, then the split

@asks("06.7")
def row_without_a_twin(rng):
    copies, share = rng.randint(3, 8), rng.choice([0.6, 0.7, 0.8, 0.9])
    return number(
        f"Each picture is there {copies} times; each row goes to the training part with "
        f"probability {share}, by itself. How likely has a test row a twin in training?",
        1 - (1 - share) ** (copies - 1), "All its other copies would have to be tested, too.",
        share, (1 - share) ** (copies - 1))


@asks("06.7")
def groups_in_the_test(rng):
    groups, copies = rng.choice([40, 60, 200]), rng.randint(3, 8)
    share = rng.choice([0.1, 0.2, 0.25])
    return whole(
        f"{groups} patients with {copies} scans each, {100 * share:g} % of the patients tested. "
        "How many scans are in the test part?", round(groups * share) * copies,
        "Patients are drawn, and their scans follow.", round(groups * share))


@asks("06.7")
def dice_and_twins(rng):
    classes, twins = rng.choice([4, 5, 8, 10]), rng.choice([30, 40, 50, 60, 70])
    return number(
        f"Labels by dice, {classes} classes. A network remembers its training rows and finds the "
        f"twin of {twins} % of the test rows; for the rest it guesses. Which share of the test "
        "rows is right?", (twins + (100 - twins) / classes) / 100,
        "A twin has the same label; the others are chance.", 1 / classes, twins / 100)


@asks("06.7")
def dice_after_groups(rng):
    classes, copies = rng.choice([4, 5, 8, 10, 20]), rng.randint(3, 9)
    return number(
        f"{copies} copies of each picture, labels by dice from {classes} classes, split by "
        "picture. Which share of the test rows does a network get right, on average?", 1 / classes,
        "No twin is in training, so chance remains.", 1 - 1 / classes)


# ---- 06.8 Two remedies for a rare class

@asks("06.8")
def odds_of_two_remedies(rng):
    negatives = rng.choice([4, 9, 19, 49])
    return whole(
        f"{negatives} negatives for each positive. A sampler balances the batches, and pos_weight "
        f"is {negatives}. By which factor are the odds too high?", negatives**2,
        "Each remedy multiplies the odds once.", negatives, 2 * negatives)


@asks("06.8")
def probability_taken_back(rng):
    k, p = rng.choice([4, 9, 19]), rng.choice([0.5, 0.6, 0.8, 0.9])
    z = torch.tensor(p, dtype=torch.float64).logit() - math.log(k)
    return number(
        f"A model trained with pos_weight {k} gives the probability {p}. Which one is it with the "
        "weight taken back?", z.sigmoid().item(), "Divide the odds, not the probability.",
        p / k, p)


@asks("06.8")
def shift_of_the_logit(rng):
    w, pos_weight = rng.choice([2, 5, 10, 19]), rng.choice([2, 3, 8])
    return number(
        f"Positives were drawn with {w} times the weight of negatives, and the loss had pos_weight "
        f"{pos_weight}. What is to be subtracted from the logit?", math.log(w * pos_weight),
        "The logarithm of the product of both factors.", w * pos_weight,
        math.log10(w * pos_weight))


@asks("06.8")
def share_of_positives_drawn(rng):
    positives, weight = rng.choice([2, 4, 5]), rng.choice([3, 9, 14])
    drawn = positives * weight / (positives * weight + 100 - positives)
    return number(
        f"{positives} % of the rows are positive, and a sampler draws them with {weight} times the "
        "weight of the others. Which share of a batch is positive, on average?", drawn,
        "Weights times counts, over the sum of both classes.", 0.5, positives / 100)
