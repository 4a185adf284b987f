"""Stage 6: pipelines, blends, stopping, leaks, bytes and rare classes."""

import math
from itertools import permutations

from dlsys_checks.questions import ask, choice, number, question_for, whole

# ---- 06.1 One pipeline for both sets

ask("06.1", {"pad": range(1, 7)}, lambda pad: whole(
    f"`v2.RandomCrop(32, padding={pad})` on images of 32 x 32 pixels. How many different positions "
    "can an image end up in?", (2 * pad + 1) ** 2,
    "Each direction has 2 * padding + 1 positions, and the two directions are drawn "
    "independently.", 2 * pad + 1,
    4 * pad))
ask("06.1", {"n": range(8, 65)}, lambda n: whole(
    f"A batch of {n} equal images goes through `v2.RandomHorizontalFlip()` in one call. How many "
    "different images does the call return?",
    1, "A transform draws once per call, and the batch is one "
                                     "call.", 2,
    n))
ask("06.1", {"pad": range(1, 5), "n": (900, 1500, 2500, 5000)}, lambda pad, n: number(
    f"A validation set of {n} images goes through a random crop with padding {pad}, one image at a "
    "time. How many images stay unshifted, on average?", n / (2 * pad + 1) ** 2,
    "One of the (2 * padding + 1) squared positions is the middle.", n / 2, n / (2 * pad + 1)))
ask("06.1", {"degrees": (5, 10, 15, 30)}, lambda degrees: choice(
    f"Training rotates images by up to {degrees} degrees, and in production images are upright. "
    "You want to compare two networks. What should the validation pipeline do?", "no rotation",
    "Score on images as they are in production. A seed only makes the wrong score repeatable.",
    f"rotates by up to {degrees} degrees", f"rotates by up to {degrees} degrees, seeded",
    f"rotates by {degrees / 2:g} degrees, the mean"))

# ---- 06.2 A mixed image, and one class for it

ask("06.2", {"lam": [k / 100 for k in range(15, 86)]}, lambda lam: number(
    f"Mixup takes {lam} of an image of class 0 and the rest of an image of class 2. What is the "
    "weight of class 2 in the "
    "label?", 1 - lam, "Labels are blended with the same weights as the images.", lam, 1.0))
ask("06.2", {"lam": [k / 10 for k in range(2, 9)],
             "p, q": list(permutations((0.1, 0.2, 0.25, 0.4, 0.5), 2))},
    lambda lam, p, q: number(
        f"A blend has label {lam:g} for class A and {1 - lam:g} for class B. The network assigns A "
        f"the probability {p} and B the probability {q}. What is the cross-entropy, in nats?",
        -lam * math.log(p) - (1 - lam) * math.log(q),
        "The loss is the sum of two losses, each with its label's "
        "weight.", -math.log(p if lam >= 0.5 else q),
        -math.log(p) - math.log(q)))
ask("06.2", {"lam": (0.6, 0.65, 0.7, 0.75, 0.8, 0.9)}, lambda lam: number(
    f"Every image of a batch is a blend of two classes with weights {lam} and {1 - lam:.2g}. How "
    "low can the cross-entropy with soft labels get, in nats?",
    -(lam * math.log(lam) + (1 - lam) * math.log(1 - lam)),
    "The entropy of the label remains, however good the network is.", 0, -math.log(lam)))
ask("06.2", {"total": (0.5, 1.5, 2.0, 3.0)}, lambda total: number(
    f"Soft labels add up to {total} by mistake. By what factor is the result of "
    "`F.cross_entropy` off?", total,
    "The loss is the sum over classes of label times minus log p, and nothing is "
    "normalized.", 1, total**2))


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


@question_for("06.3")
def epoch_of_the_stop(rng):
    best, patience = rng.randint(2, 6), rng.randint(2, 5)
    losses = [round(2 - 0.1 * k, 1) for k in range(best + 1)]
    losses += [round(losses[-1] + 0.1 * k, 1) for k in range(1, patience + 4)]
    return whole(
        f"The validation losses are {losses}. The patience is {patience}, min_delta is 0, and "
        "epochs are counted from 0. At which epoch does training stop?", stop(losses, patience),
        "The patience-th epoch in a row without progress ends training.", best, best + patience + 1)


ask("06.3", {"gain": (0.001, 0.002, 0.003), "patience": range(4, 7)}, lambda gain, patience: whole(
    f"The validation loss falls by {gain} in each of 50 epochs, from 1. min_delta is 0.02, the "
    f"patience is {patience}, and epochs are counted from 0. At which epoch does training stop?",
    stop([1 - gain * k for k in range(50)], patience, 0.02),
    f"After {patience} epochs the gain since the reference is {gain * patience:g}, not more than "
    "min_delta.", 49, 0))


@question_for("06.3")
def restored_epoch(rng):
    low = rng.randint(1, 3)
    losses = [round(3 - 0.4 * k, 1) for k in range(low + 1)]
    at = len(losses)
    losses += [round(losses[-1] + 0.3, 1), round(losses[-1] - 0.1, 1), round(losses[-1] + 0.5, 1)]
    return whole(
        f"The validation losses are {losses}. min_delta is 0.2, the patience is 5, and epochs are "
        "counted from 0. The loop saves the weights at each new lowest loss and restores the last "
        "ones that it saved. Which epoch's weights are restored?", losses.index(min(losses)),
        "The weights with the lowest loss are saved, even if that loss counts as no progress for "
        "the patience.", at - 1, len(losses) - 1)


ask("06.3", {"p": (0.5, 0.6, 0.7, 0.8), "patience": range(3, 7)}, lambda p, patience: number(
    f"Late in training a single batch fails to set a new lowest loss with probability {p}, "
    f"independently of the others. What is the probability that the next {patience} batches all "
    "fail?", p**patience,
    "Noise alone stops such a run sooner or later, so watch a mean over held-out "
    "data.", p * patience,
    1 - p**patience))

# ---- 06.4 The best weights, kept for later

ask("06.4", {"steps": range(6, 21), "at": range(1, 6)}, lambda steps, at: whole(
    f"A weight starts at 0, and each of {steps} epochs adds 1 in place. After epoch {at} you keep "
    "`best = model.state_dict()`. What value is in `best` at the end?", steps,
    "The dict holds the model's own tensors.", at, 0))
ask("06.4", {"steps": range(6, 21), "at": range(1, 6)}, lambda steps, at: whole(
    f"A weight starts at 0, and each of {steps} epochs adds 1 in place. After epoch {at} you keep "
    "`best = copy.deepcopy(model.state_dict())`. What value is in `best` at the end?", at,
    "deepcopy copies the tensors as well.", steps, 0))
ask("06.4", {"norms": range(2, 10)}, lambda norms: whole(
    f"A model has {norms} BatchNorm layers. You keep copies of `model.parameters()`. How many "
    "entries of its `state_dict()` do the copies lack?", 3 * norms,
    "Running mean, running variance and the number of batches are buffers.", 2 * norms, 0))
ask("06.4", {"millions": (7, 11, 25, 60, 86)}, lambda millions: number(
    f"A model has {millions} million float32 weights and no buffers. How many additional MB (1e6 "
    "bytes) does a copy of the best weights need?", 4 * millions,
    "The copy needs four bytes per weight, once, if you keep only the "
    "best.", millions, 8 * millions))

# ---- 06.5 Columns chosen before the split

ask("06.5", {"columns": (1024, 2048, 4096, 8192), "rows": range(6, 10)},
    lambda columns, rows: number(
        f"Each of {columns} columns has a coin flip for each of {rows} rows, and so do the "
        "labels. How many columns agree with the labels in all rows, on average?",
            columns / 2**rows,
        "In each row, a column agrees with the label with probability one "
        "half.", 0, columns / rows))
ask("06.5", {"rows": (40, 60, 80), "columns": (500, 2000, 10_000)}, lambda rows, columns: choice(
    f"You have {rows} rows, {columns} columns of noise, and labels from a fair coin. For each "
    "fold, columns are chosen on the rows outside the fold. What accuracy do you expect?",
    "about 50 %",
    "Nothing can be learned, and no information about the fold's rows was used.",
    "about 70 %", "about 90 %",
    "below 20 %"))
ask("06.5", {"a": range(20, 41), "b": range(6, 11), "c": range(3, 6), "missed": range(4),
             "few": range(3), "one": range(2)},
    lambda a, b, c, missed, few, one: number(
        f"In three folds of {a}, {b} and {c} rows, {a - missed}, {few} and {one} rows are right. "
        "Each row counts once. What fraction of all rows is "
        "right?", (a - missed + few + one) / (a + b + c),
        "Divide the number of right rows in all folds by the number of all "
        "rows.", ((a - missed) / a + few / b + one / c) / 3))
ask("06.5", {"settings": (20, 50, 200), "rows": (25, 100, 400)}, lambda settings, rows: number(
    f"{settings} settings that only guess coin flips are scored on the same {rows} rows. What is "
    "the standard deviation of one setting's score, in percentage points?",
    50 / math.sqrt(rows),
    "The formula is sqrt(0.5 * 0.5 / rows). The best of many is two to three standard deviations "
    "above 50 %.", 50 / rows,
    50))

# ---- 06.6 Twenty steps brighter

ask("06.6", {"value": range(180, 255), "d": range(80, 121)}, lambda value, d: whole(
    f"What does `torch.tensor([{value}], dtype=torch.uint8) + {d}` return?", (value + d) % 256,
    "Bytes wrap around, so 0 comes after 255.", 255, value + d))
ask("06.6", {"value": range(91), "d": range(100, 129)}, lambda value, d: whole(
    f"What does `torch.tensor([{value}], dtype=torch.uint8) - {d}` return?", (value - d) % 256,
    "Bytes wrap around, so 255 comes before 0.", 0, value - d))
ask("06.6", {"value": range(190, 255), "d": range(70, 121)}, lambda value, d: whole(
    f"What does `(torch.tensor([{value}], dtype=torch.uint8) + {d}).clamp(0, 255)` return?",
    (value + d) % 256, "The sum has wrapped around before the clamp, so it is already inside the "
                       "range.", 255))
ask("06.6", {"d": (16, 32, 48, 64, 96, 160)}, lambda d: number(
    "All 256 byte values are equally frequent in an image. What fraction of the pixels does `img "
    f"+ {d}` make darker in uint8?", d / 256, "The pixels above 255 - d wrap around.", 1 - d / 256,
        0))

# ---- 06.7 Five copies of each, then the split

ask("06.7", {"copies": range(3, 9), "share": (0.6, 0.7, 0.8, 0.9)}, lambda copies, share: number(
    f"Each picture is stored {copies} times, and each row goes to the training part with "
    f"probability {share}, independently. What is the probability that a test row has a twin in "
    "training?",
    1 - (1 - share) ** (copies - 1), "A test row has no twin only if all other copies are test "
                                     "rows as well.", share,
    (1 - share) ** (copies - 1)))
ask("06.7", {"groups": (40, 60, 200), "copies": range(3, 9), "share": (0.1, 0.2, 0.25)},
    lambda groups, copies, share: whole(
        f"{groups} patients have {copies} scans each, and {100 * share:g} % of the patients go to "
        "the test part. How many scans are in the test part?", round(groups * share) * copies,
        "Patients are drawn, and each patient's scans stay together.", round(groups * share)))
ask("06.7", {"classes": (4, 5, 8, 10), "twins": (30, 40, 50, 60, 70)},
    lambda classes, twins: number(
        f"The labels come from a die with {classes} faces. A network remembers its training rows "
        f"and finds the twin of {twins} % of the test rows. For the other rows the network "
        "guesses. What fraction of the test rows is "
        "right?", (twins + (100 - twins) / classes) / 100,
        "A twin has the same label, and for the other rows the network is right by "
        "chance.", 1 / classes, twins / 100))
ask("06.7", {"classes": (4, 5, 8, 10, 20), "copies": range(3, 10)}, lambda classes, copies: number(
    f"There are {copies} copies of each picture, the labels come from a die with {classes} faces, "
    "and you split by picture. What fraction of the test rows does a network get right, on "
    "average?", 1 / classes,
    "No test row has a twin in training, so the network can only guess.", 1 - 1 / classes))

# ---- 06.8 Two remedies for a rare class

ask("06.8", {"negatives": (4, 9, 19, 49)}, lambda negatives: whole(
    f"There are {negatives} negatives for each positive. A sampler balances the batches, and "
    f"pos_weight is {negatives}. By what factor are the odds too high?", negatives**2,
    "Each remedy multiplies the odds once.", negatives, 2 * negatives))
ask("06.8", {"k": (4, 9, 19), "p": (0.5, 0.6, 0.8, 0.9)}, lambda k, p: number(
    f"A model trained with pos_weight {k} predicts the probability {p}. What is the probability "
    "after you undo the "
    "weight?", p / (p + (1 - p) * k), "Divide the odds, not the probability.", p / k, p))
ask("06.8", {"w": (2, 5, 10, 19), "pos_weight": (2, 3, 8)}, lambda w, pos_weight: number(
    f"Positives were drawn with {w} times the weight of negatives, and the loss had pos_weight "
    f"{pos_weight}. What do you have to subtract from the logits?", math.log(w * pos_weight),
    "Subtract the logarithm of the product of both "
    "factors.", w * pos_weight, math.log10(w * pos_weight)))
ask("06.8", {"positives": (2, 4, 5), "weight": (3, 9, 14)}, lambda positives, weight: number(
    f"{positives} % of the rows are positive, and a sampler draws positives with {weight} times "
    "the weight of negatives. What fraction of a batch is positive, on average?",
    positives * weight / (positives * weight + 100 - positives),
    "Divide weight times count of the positives by weight times count, summed over both "
    "classes.", 0.5, positives / 100))


# ---- The concepts: early stopping and label smoothing

ask("06.3", {"best": range(5, 21), "patience": range(3, 10)}, lambda best, patience: whole(
    f"The validation loss is lowest after epoch {best} and never gets near that value again. Early "
    f"stopping has a patience of {patience} epochs. After which epoch does training end?",
    best + patience, "Patience counts the epochs without progress since the best epoch.", best,
    patience))
ask("06.2", {"s": (0.1, 0.2, 0.3, 0.4), "classes": (4, 5, 8, 10)}, lambda s, classes: number(
    f"With label smoothing of {s} and {classes} classes, what probability does the target assign "
    "to the right class?", 1 - s + s / classes,
    "The part s is spread over all classes, including the right class.", 1 - s, 1 - s / classes, 1,
    within=0.005))


# ---- 06.9 An image and its mask

ask("06.9", {"n": (100, 200, 400), "p": (0.3, 0.2, 0.1)}, lambda n, p: number(
    f"You mirror {n} images with probability {p}, and their masks with the same probability in a "
    "second call. How many pairs do you expect no longer to fit?", 2 * n * p * (1 - p),
    "A pair no longer fits if only the image or only the mask is mirrored.",
    n * p, n * p * p, 0, within=0.01))
ask("06.9", {"shift": (1, 2, 3)}, lambda shift: number(
    f"Image and mask are shifted by separate draws, each by -{shift} to {shift} rows and as many "
    "columns, all equally likely. What fraction of the pairs fits?", 1 / (2 * shift + 1) ** 2,
    "Rows and columns both have to agree by chance.", 1 / (2 * shift + 1), 0.5, 1, within=0.02))
ask("06.9", {"size": (32, 64, 128)}, lambda size: choice(
    f"You pass an image and its mask to a torchvision v2 crop of {size} pixels in one call. Both "
    "are plain tensors. What happens?", "the image is cropped, and the mask passes through",
    "Of several plain tensors, v2 changes only the first. Wrap the mask in tv_tensors.Mask.",
    "both are cropped at the same place", "both are cropped at different places",
    "v2 raises an error"))
ask("06.9", {"low": (0, 2), "high": (4, 6, 8)}, lambda low, high: choice(
    f"A mask holds classes {low} and {high}. After a resize as an ordinary image, it also holds "
    f"class {(low + high) // 2}. Why?", "the resize averaged neighbouring labels",
    "Interpolation treats labels as amounts. A mask needs the nearest pixel.",
    "the resize cut the labels to bytes", "image and mask were resized by separate draws",
    "the mask's padding has this value"))


# ---- 06.10 A stream and its workers

ask("06.10", {"workers": (2, 3, 4, 8), "batches": (50, 120, 300)}, lambda workers, batches: whole(
    f"An IterableDataset has {batches * 16:,} rows and does not look at get_worker_info. A loader "
    f"with {workers} workers makes batches of 16. How many batches does a pass over the loader "
    "have?", workers * batches, "Each worker reads all the rows.", batches,
    round(batches / workers)))
ask("06.10", {"workers": (3, 4, 5, 8)}, lambda workers: number(
    "You train for as many steps as one pass over the rows takes. The rows come from an "
    f"IterableDataset, and each of {workers} workers reads all of them. What fraction of the rows "
    "does the network see?", 1 / workers,
    "Each batch comes once from each worker, so the steps end earlier in the stream.",
    1, 1 - 1 / workers))
ask("06.10", {"world": (2, 4, 8), "workers": (3, 5, 6)}, lambda world, workers: whole(
    f"{world} ranks have {workers} workers each. An iterable dataset is split by "
    "get_worker_info() only. How many times does each row come in a pass, over all ranks?",
    world, "get_worker_info counts the workers of one rank, so every rank reads all rows.",
    1, workers, world * workers))
ask("06.10", {"workers": (2, 3, 4), "n": (6_000, 9_000, 30_000)}, lambda workers, n: choice(
    f"Each of {workers} workers shuffles a stream of {n:,} rows with a seed of its own and then "
    f"keeps every row whose place has its number modulo {workers}. What is true of a pass?",
    f"{n:,} rows come, but some of them repeatedly and some never",
    "The workers deal out different orders, so their shares overlap. The count hides that.",
    "every row comes once, in a random order", f"every row comes {workers} times",
    f"{n // workers:,} rows come, each once"))
