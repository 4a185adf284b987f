"""Stage 12: NaNs, sleeping layers, seeds, search, memory, data, files, tracking, smoothing."""

import math

from dlsys_checks.questions import asks, choice, number, whole

# ---- 12.1 the first NaN


@asks("12.1")
def who_is_guilty(rng):
    bad = rng.randint(1, 8)
    return whole(
        f"Ten modules run one after the other, numbered from 0. All inputs up to module {bad} are "
        f"finite, and all outputs from module {bad} on hold a NaN. In which one did it arise?", bad,
        "The first that was given finite numbers and returned something else.", bad + 1, 9)


@asks("12.1")
def what_anomaly_names(rng):
    layer = rng.randint(2, 30)
    return choice(
        f"Layer {layer} of 40 divides zero by zero on its way forward. What does `detect_anomaly` "
        "name, with a cross-entropy at the end?", "the log-softmax of the loss",
        "It looks at gradients, and the first of them belong to the loss.",
        f"the division in layer {layer}", "the first layer", f"layer {layer + 1}")


@asks("12.1")
def spoilt_modules(rng):
    n = rng.randint(6, 20)
    bad = rng.randint(1, n - 2)
    return whole(
        f"A chain of {n} modules, numbered from 0, lies in one nn.Sequential. Module {bad} makes a "
        "NaN that no later one removes. How many forward hooks see a NaN come out, that of the "
        "Sequential included?", n - bad + 1, "The guilty one, all behind it, and the whole.",
        n - bad, 1)


@asks("12.1")
def silent_nan(rng):
    steps = rng.randint(100, 900)
    return choice(
        f"At step {steps} a penalty that no weight enters is NaN and is added to the loss. The "
        "weights after this step of SGD are", "finite: a constant has no gradient",
        "A constant adds nothing to the gradient, whatever it is.", "all NaN",
        "NaN in the last layer", "zero")


# ---- 12.2 layers that sleep

@asks("12.2")
def relative_change(rng):
    before, moved = rng.choice([2.0, 4.0, 5.0, 8.0]), rng.choice([0.1, 0.3, 0.6])
    return number(
        f"The norm of a weight was {before:g}; the norm of its change is {moved:g}. How far has it "
        "moved, relative to its size?", moved / before, "The change over what was there.", moved,
        before / moved)


@asks("12.2")
def constant_loss(rng):
    a, b = rng.randint(0, 4), rng.randint(8, 13)
    return number(
        f"Half of all targets are {a}, half are {b}. What mean squared error does the best "
        "constant reach?", ((b - a) / 2) ** 2, "The variance of the targets.", (b - a) / 2,
        (b - a) ** 2)


@asks("12.2")
def through_sigmoids(rng):
    layers = rng.randint(3, 9)
    return number(
        f"A sigmoid passes on a quarter of a gradient at most. What is left of it behind {layers} "
        "of them, at most, with weights of one between?", 0.25**layers,
        "A quarter to the power of the number of layers.", 0.25 / layers, 0.5**layers)


@asks("12.2")
def moves_under_adam(rng):
    loss = rng.choice([3.2, 8.3, 12.5])
    return choice(
        f"Under Adam all layers move by more than their own size. The loss stands at {loss}, the "
        "variance of the targets. The net", "outputs the mean of the targets",
        "Adam divides a gradient by its own size; moving is not learning.", "learns in all layers",
        "has layers that do not move", "overfits")


# ---- 12.3 seeds of workers

@asks("12.3")
def different_shifts(rng):
    images, epochs = rng.randint(20, 90), rng.randint(3, 30)
    return whole(
        f"{images} pictures, each shifted by a random number in a worker whose `worker_init_fn` "
        f"seeds numpy with 42 plus its id; {epochs} epochs, in the same order of pictures. How "
        "many different shifts does the training see?", images,
        "Each epoch starts new workers with the same seeds.", images * epochs)


@asks("12.3")
def sum_of_keys(rng):
    epoch, row = rng.randint(1, 9), rng.randint(10, 90)
    return whole(
        f"A generator is seeded with epoch + row. Which row of epoch {epoch + 3} gets the same "
        f"noise as row {row} of epoch {epoch}?", row - 3, "The sums are equal.", row, row + 3)


@asks("12.3")
def what_is_needed(rng):
    workers = rng.randint(1, 16)
    return choice(
        f"A dataset draws from numpy's global generator in {workers} workers. What makes two runs "
        "alike?", "torch.manual_seed alone",
        "Torch seeds numpy in each worker with a number from its own generator.",
        "np.random.seed in the main process alone", "a worker_init_fn, without which nothing does",
        "nothing: workers run in parallel")


@asks("12.3")
def more_workers(rng):
    few = rng.randint(1, 4)
    return choice(
        f"The same seed, {few} workers in the first run and {few + 1} in the second; noise comes "
        "from the workers' own generators. The noise of a picture", "may differ",
        "Who gets which picture depends on the number of workers.", "is the same",
        "differs in the first batch alone", "is that of the first epoch")


# ---- 12.4 search

@asks("12.4")
def sign_of_a_loss(rng):
    best = rng.choice([0.3, 0.5, 0.9])
    return choice(
        f"A search for a small loss has reached {best}. Two candidates have the same deviation, "
        f"and means of {best - 0.2:.1f} and {best + 0.2:.1f}. Which has the larger expected "
        "improvement?", f"the one with the mean {best - 0.2:.1f}",
        "It is more likely to end below the best, and by more.",
        f"the one with the mean {best + 0.2:.1f}", "both the same", "neither: it is zero for both")


@asks("12.4")
def certain_candidate(rng):
    best, gap = rng.choice([2.0, 3.0, 5.0]), rng.choice([0.25, 0.5, 0.75])
    return number(
        f"The best loss is {best:g}. A candidate's loss is {best - gap:g}, with a deviation of 0. "
        "What is its expected improvement?", gap, "The gain is certain.", 0, best - gap)


@asks("12.4")
def at_the_best(rng):
    std = rng.choice([0.5, 1.0, 2.0, 4.0])
    return number(
        f"A candidate's mean is the best loss so far, its deviation {std:g}. What is its expected "
        "improvement?", std / math.sqrt(2 * math.pi),
        "The deviation times the density of a normal at 0, which is 0.399.", 0, std / 2, std)


@asks("12.4")
def worse_than_dice(rng):
    runs = rng.choice([20, 30, 50])
    return choice(
        f"A search with a Gaussian process ends, after {runs} runs in eight settings, with a "
        "larger loss than dice with the same budget, time after time. What do you look for first?",
        "a fault, such as the sign of the score",
        "On a smooth surface it was ahead of dice with eight and with twelve settings.",
        "fewer settings", "more candidates for each choice", "a finer grid")


# ---- 12.5 where

@asks("12.5")
def after_clipping(rng):
    total, bad = rng.randint(50, 500), rng.randint(1, 9)
    return whole(
        f"{bad} of {total} gradients are NaN. How many are after `clip_grad_norm_`?", total,
        "The norm is NaN, and it is a factor of each.", bad, 0)


@asks("12.5")
def inf_after_clipping(rng):
    total = rng.randint(50, 500)
    return whole(
        f"One of {total} gradients is infinite, the others are 1. How many are zero after "
        "`clip_grad_norm_` with a limit of 1?", total - 1,
        "All are multiplied by one over infinity; the infinite one becomes NaN.", 0, total)


@asks("12.5")
def slope_of_root(rng):
    x = rng.choice([4.0, 9.0, 16.0, 25.0])
    return number(
        f"`where(x > 0, sqrt(safe), 0)` with `safe = where(x > 0, x, 1)`. What is its slope at "
        f"{x:g}?", 0.5 / math.sqrt(x), "That of the root, 1 / (2 sqrt(x)).", 1 / math.sqrt(x), 0.5)


@asks("12.5")
def which_where(rng):
    name, word = rng.choice([("log", "logarithm"), ("sqrt", "root"), ("log2", "binary logarithm"),
                             ("log10", "decimal logarithm")])
    return choice(
        f"Which line has a finite gradient at x = 0 for the {word}?",
        f"torch.where(x > 0, torch.where(x > 0, x, 1).{name}(), 0)",
        "The bad number must not reach the function.", f"torch.where(x > 0, x.{name}(), 0)",
        f"x.{name}().nan_to_num()", f"(x * (x > 0)).{name}()")


# ---- 12.6 what a loss holds

@asks("12.6")
def weights_of_trials(rng):
    trials, size = rng.randint(3, 20), rng.choice([2, 5, 40, 300])
    return whole(
        f"A search trains all weights of {trials} models of {size} MB each, under the same "
        "name, and keeps the last training loss of each as a tensor. How many MB of weights are "
        "alive at the end, with the last model deleted?", trials * size,
        "Each loss has a graph whose ends hold the weights of its model.", size, 0)


@asks("12.6")
def after_backward(rng):
    steps, size = rng.randint(10, 900), rng.choice([20, 50, 120])
    return whole(
        f"A step saves {size} MB of activations for its way back. {steps} losses stand in a list, "
        "each after its `backward()`. How many MB of activations do they hold?", 0,
        "backward() frees what the graph has saved, whoever holds the loss.", steps * size, size)


@asks("12.6")
def weighted_mean(rng):
    full, last = rng.choice([32, 50, 64]), rng.randint(2, 8)
    low, high = rng.choice([0.2, 0.4]), rng.choice([1.0, 1.6, 2.2])
    return number(
        f"Two batches: {full} rows with a mean loss of {low}, and {last} rows with {high}. What is "
        "the mean over all rows?", (full * low + last * high) / (full + last),
        "Each mean counts with its rows.", (low + high) / 2, within=0.005)


@asks("12.6")
def what_still_holds(rng):
    step = rng.randint(100, 900)
    return choice(
        f"Which line, run at each of {step} training steps, keeps activations?",
        "log.append(F.l1_loss(logits, y)), a second loss without backward()",
        "Its own nodes have saved something, and no backward() goes through them.",
        "losses.append(loss), after loss.backward()", "total += loss, after loss.backward()",
        "losses.append(loss.item()), before loss.backward()")


# ---- 12.7 one batch

@asks("12.7")
def doubled_sum(rng):
    loss = rng.choice([0.4, 1.5, 2.5, 3.5])
    return number(
        f"A batch has a loss of {loss}, summed over its rows. What is the loss of this batch taken "
        "twice?", 2 * loss, "A sum doubles; a mean stays.", loss, loss / 2)


@asks("12.7")
def sum_is_a_rate(rng):
    batch, rate = rng.choice([20, 50, 64]), rng.choice([0.1, 0.2, 0.5])
    return number(
        f"A loss is summed over {batch} rows where the recipe has a mean, with SGD at {rate}. To "
        "which rate of the recipe does that correspond?", batch * rate,
        "Each gradient is as many times larger.", rate, rate / batch)


@asks("12.7")
def what_one_batch_shows(rng):
    rows = rng.choice([16, 32, 50, 64])
    return choice(
        f"A net learns one batch of {rows} by heart. What does that show?",
        "gradients flow and the loss can fall", "Any labels can be learned by heart.",
        "labels belong to their inputs", "the data are in a random order",
        "it will do well on new data")


@asks("12.7")
def agreement_of_shifted(rng):
    classes = rng.randint(4, 20)
    return number(
        f"{classes} classes, equally many of each, in a random order. Labels are shifted by one "
        "row. What share of neighbours has the same label, about, if neighbours nearly always "
        "agreed before?", 1 / classes, "Now they agree by chance.", 0, 0.5, within=0.05)


# ---- 12.8 files

@asks("12.8")
def files_that_load(rng):
    kills = rng.randint(5, 60)
    return whole(
        f"A checkpoint is written over the former one, by torch.save to its name, and {kills} "
        "times the process is killed before the last byte. After how many of them does it load?", 0,
        "The old content is gone at the opening, and the table of contents comes last.", kills,
        kills // 2)


@asks("12.8")
def files_written_beside(rng):
    kills = rng.randint(5, 60)
    return whole(
        f"A checkpoint is written beside the former one and then takes its name by os.replace. "
        f"{kills} times the process is killed while it writes. After how many of them does the "
        "checkpoint load?", kills, "The former file is untouched until the last step.", 0)


@asks("12.8")
def lost_minutes(rng):
    every = rng.choice([10, 20, 30, 60])
    return whole(
        f"A job saves every {every} minutes, beside and by os.replace. A save takes 2 minutes and "
        "holds the state of its beginning. What is the largest number of minutes that a kill can "
        "cost?", every + 2, "A kill at the last byte of a save falls back to the save before it.",
        every, 2)


@asks("12.8")
def what_loads(rng):
    value = rng.choice([0.25, 0.5, 1.5])
    return choice(
        f"A checkpoint holds a loss of {value}. As what does torch.load refuse it?",
        f"np.float64({value})", "Weights only: numpy's scalars are objects of another library.",
        f"{value}", f"torch.tensor({value})", "None")


# ---- 12.9 the hash seed

@asks("12.9")
def different_numberings(rng):
    starts = rng.randint(3, 9)
    return whole(
        f"A script sets os.environ['PYTHONHASHSEED'] = '0' in its first line and numbers thirty "
        f"classes by enumerate(set(names)). It is started {starts} times. How many different "
        "numberings are there, nearly surely?", starts,
        "The secret is drawn before the first line, anew in each process.", 1)


@asks("12.9")
def which_is_stable(rng):
    word, starts = rng.choice(["cat", "seven", "lung", "oak"]), rng.randint(3, 9)
    return choice(
        f"Without PYTHONHASHSEED, Python is started {starts} times. What is the same each time?",
        "hash((3, 5))", "Only texts and bytes are salted, and what is made of them.",
        f"hash({word!r})", f"hash((1, {word!r}))", f"hash({word.encode()!r})")


@asks("12.9")
def number_of_a_new_class(rng):
    known, new = rng.randint(5, 40), rng.randint(2, 6)
    place = rng.randint(1, new)
    return whole(
        f"A checkpoint numbers {known} classes from 0. {new} new ones come and keep none of the "
        f"old from its number; they follow in sorted order. Which number has the {place}. of the "
        "new ones?", known + place - 1, "The next numbers, from the count of the known ones on.",
        known + place, place - 1)


@asks("12.9")
def who_reads_it(rng):
    seed = rng.randint(1, 99)
    return choice(
        f"A running script sets os.environ['PYTHONHASHSEED'] = '{seed}'. Who has that seed?",
        "a Python that the script starts anew afterwards",
        "It is read once, as an interpreter starts.", "the script, from the next line on",
        "sets that the script makes from then on", "a process that it forks")


# ---- 12.10 rows of a log

@asks("12.10")
def rows_kept(rng):
    epochs, batches = rng.randint(3, 9), rng.randint(20, 90)
    return whole(
        f"{epochs} epochs of {batches} batches. Each batch is logged with step=batch, counted "
        "through, each epoch ends with a validation loss logged with step=epoch, from 0. How many "
        "validation losses does the log keep?", 0, "Each step is below the counter by then.",
        epochs, 1)


@asks("12.10")
def warning_lines(rng):
    epochs, batches = rng.randint(3, 9), rng.randint(20, 90)
    return whole(
        f"A run of {epochs} epochs logs each of {batches} batches an epoch with step=batch, "
        "counted through, and each epoch's validation loss with step=epoch, from 0. How many calls "
        "of log are ignored?", epochs, "One at the end of each epoch.", 0, epochs * batches)


@asks("12.10")
def resumed_rows(rng):
    after, killed = rng.randint(2, 5), rng.randint(7, 12)
    return whole(
        f"A run logs the end of epochs 0 to {killed}, is killed, and goes on after the checkpoint "
        f"of epoch {after}. How many epochs come a second time, if it ends with epoch "
        f"{killed + 3}?", killed - after, "All after the checkpoint that were logged before.",
        killed - after + 3, killed)


@asks("12.10")
def half_mended(rng):
    name = rng.choice(["val_loss", "accuracy", "bleu"])
    return choice(
        f"`define_metric('{name}', step_metric='epoch')` is added, and the rows are still logged "
        f"with `step=epoch`, after many batches with `step=batch`. The rows with {name}",
        "are dropped as before", "The counter has passed that step; the axis is a value in a row.",
        "are drawn over epochs", "are drawn over batches", "raise an error")


# ---- 12.11 smoothing

@asks("12.11")
def share_of_masked(rng):
    classes, masked = rng.randint(8, 20), rng.randint(2, 5)
    return number(
        f"Label smoothing of 0.1 over {classes} classes, {masked} of them masked. What share of "
        "the target goes to masked classes?", 0.1 * masked / classes, "0.1 spread evenly over all.",
        0.1, 0)


@asks("12.11")
def spread_allowed(rng):
    classes, masked = rng.randint(8, 20), rng.randint(2, 5)
    return number(
        f"Smoothing of 0.2 is spread over the allowed ones of {classes} classes, {masked} of which "
        "are not allowed. What share of the target has the label's class?",
        0.8 + 0.2 / (classes - masked), "The rest, and its part of what is spread.", 0.8,
        0.2 / classes, within=0.001)


@asks("12.11")
def three_cases(rng):
    case, loss = rng.choice([("a wrong class", "finite"), ("the label's class", "infinite"),
                             ("all classes", "NaN")])
    return choice(
        f"No smoothing; the logit is minus infinity at {case}. The cross-entropy is", loss,
        "It asks for the label's logarithm, and for a sum that must not be zero.",
        *[other for other in ("finite", "infinite", "NaN") if other != loss])


@asks("12.11")
def huge_loss(rng):
    logit, classes, masked = rng.choice([1e4, 1e6, 1e9]), rng.randint(8, 20), rng.randint(1, 5)
    return number(
        f"{masked} of {classes} logits are {-logit:.0e} in place of minus infinity, the others are "
        "near zero. Labels are smoothed by 0.1 over all classes. What is the loss, about?",
        0.1 * masked / classes * logit, "The share of the masked classes times their logarithm.",
        logit, 0.1 * logit, within=0.05)
