"""Stage 12: NaNs, sleeping layers, seeds, search, memory, data, files, tracking, smoothing."""

import math

from dlsys_checks.questions import ask, choice, number, whole

# ---- 12.1 the first NaN

ask("12.1", {"bad": range(1, 9)}, lambda bad: whole(
    f"Ten modules run one after the other, numbered from 0. All inputs up to module {bad} are "
    f"finite, and all outputs from module {bad} on hold a NaN. In which one did it arise?", bad,
    "The first that was given finite numbers and returned something else.", bad + 1, 9))
ask("12.1", {"layer": range(2, 31)}, lambda layer: choice(
    f"Layer {layer} of 40 divides zero by zero on its way forward. What does `detect_anomaly` "
    "name, with a cross-entropy at the end?", "the log-softmax of the loss",
    "It looks at gradients, and the first of them belong to the loss.",
    f"the division in layer {layer}", "the first layer", f"layer {layer + 1}"))
ask("12.1", {"n": range(6, 21), "bad": lambda n: range(1, n - 1)}, lambda n, bad: whole(
    f"A chain of {n} modules, numbered from 0, lies in one nn.Sequential. Module {bad} makes a NaN "
    "that no later one removes. How many forward hooks see a NaN come out, that of the Sequential "
    "included?", n - bad + 1, "The guilty one, all behind it, and the whole.", n - bad, 1))
ask("12.1", {"steps": range(100, 901)}, lambda steps: choice(
    f"At step {steps} a penalty that no weight enters is NaN and is added to the loss. The weights "
    "after this step of SGD are", "finite: a constant has no gradient",
    "A constant adds nothing to the gradient, whatever it is.", "all NaN", "NaN in the last layer",
    "zero"))

# ---- 12.2 layers that sleep

ask("12.2", {"before": (2.0, 4.0, 5.0, 8.0), "moved": (0.1, 0.3, 0.6)},
    lambda before, moved: number(
        f"The norm of a weight was {before:g}; the norm of its change is {moved:g}. How far has it "
        "moved, relative to its size?", moved / before, "The change over what was there.", moved,
        before / moved))
ask("12.2", {"a": range(5), "b": range(8, 14)}, lambda a, b: number(
    f"Half of all targets are {a}, half are {b}. What mean squared error does the best constant "
    "reach?", ((b - a) / 2) ** 2, "The variance of the targets.", (b - a) / 2, (b - a) ** 2))
ask("12.2", {"layers": range(3, 10)}, lambda layers: number(
    f"A sigmoid passes on a quarter of a gradient at most. What is left of it behind {layers} of "
    "them, at most, with weights of one between?", 0.25**layers,
    "A quarter to the power of the number of layers.", 0.25 / layers, 0.5**layers))
ask("12.2", {"loss": (3.2, 8.3, 12.5)}, lambda loss: choice(
    f"Under Adam all layers move by more than their own size. The loss stands at {loss}, the "
    "variance of the targets. The net", "outputs the mean of the targets",
    "Adam divides a gradient by its own size; moving is not learning.", "learns in all layers",
    "has layers that do not move", "overfits"))

# ---- 12.3 seeds of workers

ask("12.3", {"images": range(20, 91), "epochs": range(3, 31)}, lambda images, epochs: whole(
    f"{images} pictures, each shifted by a random number in a worker whose `worker_init_fn` seeds "
    f"numpy with 42 plus its id; {epochs} epochs, in the same order of pictures. How many "
    "different shifts does the training see?", images,
    "Each epoch starts new workers with the same seeds.", images * epochs))
ask("12.3", {"epoch": range(1, 10), "row": range(10, 91)}, lambda epoch, row: whole(
    f"A generator is seeded with epoch + row. Which row of epoch {epoch + 3} gets the same noise "
    f"as row {row} of epoch {epoch}?", row - 3, "The sums are equal.", row, row + 3))
ask("12.3", {"workers": range(1, 17)}, lambda workers: choice(
    f"A dataset draws from numpy's global generator in {workers} workers. What makes two runs "
    "alike?", "torch.manual_seed alone",
    "Torch seeds numpy in each worker with a number from its own generator.",
    "np.random.seed in the main process alone", "a worker_init_fn, without which nothing does",
    "nothing: workers run in parallel"))
ask("12.3", {"few": range(1, 5)}, lambda few: choice(
    f"The same seed, {few} workers in the first run and {few + 1} in the second; noise comes from "
    "the workers' own generators. The noise of a picture", "may differ",
    "Who gets which picture depends on the number of workers.", "is the same",
    "differs in the first batch alone", "is that of the first epoch"))

# ---- 12.4 search

ask("12.4", {"best": (0.3, 0.5, 0.9)}, lambda best: choice(
    f"A search for a small loss has reached {best}. Two candidates have the same deviation, and "
    f"means of {best - 0.2:.1f} and {best + 0.2:.1f}. Which has the larger expected improvement?",
    f"the one with the mean {best - 0.2:.1f}",
    "It is more likely to end below the best, and by more.",
    f"the one with the mean {best + 0.2:.1f}", "both the same", "neither: it is zero for both"))
ask("12.4", {"best": (2.0, 3.0, 5.0), "gap": (0.25, 0.5, 0.75)}, lambda best, gap: number(
    f"The best loss is {best:g}. A candidate's loss is {best - gap:g}, with a deviation of 0. What "
    "is its expected improvement?", gap, "The gain is certain.", 0, best - gap))
ask("12.4", {"std": (0.5, 1.0, 2.0, 4.0)}, lambda std: number(
    f"A candidate's mean is the best loss so far, its deviation {std:g}. What is its expected "
    "improvement?", std / math.sqrt(2 * math.pi),
    "The deviation times the density of a normal at 0, which is 0.399.", 0, std / 2, std))
ask("12.4", {"runs": (20, 30, 50)}, lambda runs: choice(
    f"A search with a Gaussian process ends, after {runs} runs in eight settings, with a larger "
    "loss than dice with the same budget, time after time. What do you look for first?",
    "a fault, such as the sign of the score",
    "On a smooth surface it was ahead of dice with eight and with twelve settings.",
    "fewer settings", "more candidates for each choice", "a finer grid"))

# ---- 12.5 where

ask("12.5", {"total": range(50, 501), "bad": range(1, 10)}, lambda total, bad: whole(
    f"{bad} of {total} gradients are NaN. How many are after `clip_grad_norm_`?", total,
    "The norm is NaN, and it is a factor of each.", bad, 0))
ask("12.5", {"total": range(50, 501)}, lambda total: whole(
    f"One of {total} gradients is infinite, the others are 1. How many are zero after "
    "`clip_grad_norm_` with a limit of 1?", total - 1,
    "All are multiplied by one over infinity; the infinite one becomes NaN.", 0, total))
ask("12.5", {"x": (4.0, 9.0, 16.0, 25.0)}, lambda x: number(
    f"`where(x > 0, sqrt(safe), 0)` with `safe = where(x > 0, x, 1)`. What is its slope at {x:g}?",
    0.5 / math.sqrt(x), "That of the root, 1 / (2 sqrt(x)).", 1 / math.sqrt(x), 0.5))
ask("12.5", {"name, word": [("log", "logarithm"), ("sqrt", "root"), ("log2", "binary logarithm"),
                            ("log10", "decimal logarithm")]},
    lambda name, word: choice(
        f"Which line has a finite gradient at x = 0 for the {word}?",
        f"torch.where(x > 0, torch.where(x > 0, x, 1).{name}(), 0)",
        "The bad number must not reach the function.", f"torch.where(x > 0, x.{name}(), 0)",
        f"x.{name}().nan_to_num()", f"(x * (x > 0)).{name}()"))

# ---- 12.6 what a loss holds

ask("12.6", {"trials": range(3, 21), "size": (2, 5, 40, 300)}, lambda trials, size: whole(
    f"A search trains all weights of {trials} models of {size} MB each, under the same name, and "
    "keeps the last training loss of each as a tensor. How many MB of weights are alive at the "
    "end, with the last model deleted?", trials * size,
    "Each loss has a graph whose ends hold the weights of its model.", size, 0))
ask("12.6", {"steps": range(10, 901), "size": (20, 50, 120)}, lambda steps, size: whole(
    f"A step saves {size} MB of activations for its way back. {steps} losses stand in a list, each "
    "after its `backward()`. How many MB of activations do they hold?", 0,
    "backward() frees what the graph has saved, whoever holds the loss.", steps * size, size))
ask("12.6", {"full": (32, 50, 64), "last": range(2, 9), "low": (0.2, 0.4), "high": (1.0, 1.6, 2.2)},
    lambda full, last, low, high: number(
        f"Two batches: {full} rows with a mean loss of {low}, and {last} rows with {high}. What is "
        "the mean over all rows?", (full * low + last * high) / (full + last),
        "Each mean counts with its rows.", (low + high) / 2, within=0.005))
ask("12.6", {"step": range(100, 901)}, lambda step: choice(
    f"Which line, run at each of {step} training steps, keeps activations?",
    "log.append(F.l1_loss(logits, y)), a second loss without backward()",
    "Its own nodes have saved something, and no backward() goes through them.",
    "losses.append(loss), after loss.backward()", "total += loss, after loss.backward()",
    "losses.append(loss.item()), before loss.backward()"))

# ---- 12.7 one batch

ask("12.7", {"loss": (0.4, 1.5, 2.5, 3.5)}, lambda loss: number(
    f"A batch has a loss of {loss}, summed over its rows. What is the loss of this batch taken "
    "twice?", 2 * loss, "A sum doubles; a mean stays.", loss, loss / 2))
ask("12.7", {"batch": (20, 50, 64), "rate": (0.1, 0.2, 0.5)}, lambda batch, rate: number(
    f"A loss is summed over {batch} rows where the recipe has a mean, with SGD at {rate}. To which "
    "rate of the recipe does that correspond?", batch * rate,
    "Each gradient is as many times larger.", rate, rate / batch))
ask("12.7", {"rows": (16, 32, 50, 64)}, lambda rows: choice(
    f"A net learns one batch of {rows} by heart. What does that show?",
    "gradients flow and the loss can fall", "Any labels can be learned by heart.",
    "labels belong to their inputs", "the data are in a random order",
    "it will do well on new data"))
ask("12.7", {"classes": range(4, 21)}, lambda classes: number(
    f"{classes} classes, equally many of each, in a random order. Labels are shifted by one row. "
    "What share of neighbours has the same label, about, if neighbours nearly always agreed "
    "before?", 1 / classes, "Now they agree by chance.", 0, 0.5, within=0.05))

# ---- 12.8 files

ask("12.8", {"kills": range(5, 61)}, lambda kills: whole(
    f"A checkpoint is written over the former one, by torch.save to its name, and {kills} times "
    "the process is killed before the last byte. After how many of them does it load?", 0,
    "The old content is gone at the opening, and the table of contents comes last.", kills,
    kills // 2))
ask("12.8", {"kills": range(5, 61)}, lambda kills: whole(
    f"A checkpoint is written beside the former one and then takes its name by os.replace. {kills} "
    "times the process is killed while it writes. After how many of them does the checkpoint load?",
    kills, "The former file is untouched until the last step.", 0))
ask("12.8", {"every": (10, 20, 30, 60)}, lambda every: whole(
    f"A job saves every {every} minutes, beside and by os.replace. A save takes 2 minutes and "
    "holds the state of its beginning. What is the largest number of minutes that a kill can cost?",
    every + 2, "A kill at the last byte of a save falls back to the save before it.", every, 2))
ask("12.8", {"value": (0.25, 0.5, 1.5)}, lambda value: choice(
    f"A checkpoint holds a loss of {value}. As what does torch.load refuse it?",
    f"np.float64({value})", "Weights only: numpy's scalars are objects of another library.",
    f"{value}", f"torch.tensor({value})", "None"))

ask("12.8", {"save": (1, 2, 4), "kill": (2, 4.5, 8)}, lambda save, kill: number(
    f"A save takes {save} minutes, and a job is killed every {kill:g} hours on average. How many "
    "minutes between two saves lose the least time?", math.sqrt(2 * save * kill * 60),
    "The root of twice the save time times the time between two kills.",
    math.sqrt(save * kill * 60), kill * 30))

# ---- 12.9 the hash seed

FIRST_APART = {"the first weights": "the initialization",
               "the first batch": "the order of the data",
               "the first loss": "what the forward pass draws, such as dropout",
               "the weights after one step": "the optimizer and its settings"}

ask("12.9", {"starts": range(3, 10)}, lambda starts: whole(
    "A script sets os.environ['PYTHONHASHSEED'] = '0' in its first line and numbers thirty classes "
    f"by enumerate(set(names)). It is started {starts} times. How many different numberings are "
    "there, nearly surely?", starts,
    "The secret is drawn before the first line, anew in each process.", 1))
ask("12.9", {"word": ("cat", "seven", "lung", "oak"), "starts": range(3, 10)},
    lambda word, starts: choice(
        f"Without PYTHONHASHSEED, Python is started {starts} times. What is the same each time?",
        "hash((3, 5))", "Only texts and bytes are salted, and what is made of them.",
        f"hash({word!r})", f"hash((1, {word!r}))", f"hash({word.encode()!r})"))
ask("12.9", {"known": range(5, 41), "new": range(2, 7),
             "place": lambda new, **_: range(1, new + 1)},
    lambda known, new, place: whole(
        f"A checkpoint numbers {known} classes from 0. {new} new ones come and keep none of the "
        f"old from its number; they follow in sorted order. Which number has the {place}. of the "
        "new ones?", known + place - 1, "The next numbers, from the count of the known ones on.",
        known + place, place - 1))
ask("12.9", {"seed": range(1, 100)}, lambda seed: choice(
    f"A running script sets os.environ['PYTHONHASHSEED'] = '{seed}'. Who has that seed?",
    "a Python that the script starts anew afterwards", "It is read once, as an interpreter starts.",
    "the script, from the next line on", "sets that the script makes from then on",
    "a process that it forks"))

ask("12.9", {"part, cause": list(FIRST_APART.items())}, lambda part, cause: choice(
    "Two runs of one script with one config end apart. You hash their parts in the order in which "
    f"they are made, and the first hash that differs is that of {part}. Where do you look?", cause,
    "All parts before it agree, and what made them.",
    *(other for other in FIRST_APART.values() if other != cause)))

# ---- 12.10 rows of a log

ask("12.10", {"epochs": range(3, 10), "batches": range(20, 91)}, lambda epochs, batches: whole(
    f"{epochs} epochs of {batches} batches. Each batch is logged with step=batch, counted through, "
    "each epoch ends with a validation loss logged with step=epoch, from 0. How many validation "
    "losses does the log keep?", 0, "Each step is below the counter by then.", epochs, 1))
ask("12.10", {"epochs": range(3, 10), "batches": range(20, 91)}, lambda epochs, batches: whole(
    f"A run of {epochs} epochs logs each of {batches} batches an epoch with step=batch, counted "
    "through, and each epoch's validation loss with step=epoch, from 0. How many calls of log are "
    "ignored?", epochs, "One at the end of each epoch.", 0, epochs * batches))
ask("12.10", {"after": range(2, 6), "killed": range(7, 13)}, lambda after, killed: whole(
    f"A run logs the end of epochs 0 to {killed}, is killed, and goes on after the checkpoint of "
    f"epoch {after}. How many epochs come a second time, if it ends with epoch {killed + 3}?",
    killed - after, "All after the checkpoint that were logged before.", killed - after + 3,
    killed))
ask("12.10", {"name": ("val_loss", "accuracy", "bleu")}, lambda name: choice(
    f"`define_metric('{name}', step_metric='epoch')` is added, and the rows are still logged with "
    f"`step=epoch`, after many batches with `step=batch`. The rows with {name}",
    "are dropped as before", "The counter has passed that step; the axis is a value in a row.",
    "are drawn over epochs", "are drawn over batches", "raise an error"))

# ---- 12.11 smoothing

ask("12.11", {"classes": range(8, 21), "masked": range(2, 6)}, lambda classes, masked: number(
    f"Label smoothing of 0.1 over {classes} classes, {masked} of them masked. What share of the "
    "target goes to masked classes?", 0.1 * masked / classes, "0.1 spread evenly over all.", 0.1,
    0))
ask("12.11", {"classes": range(8, 21), "masked": range(2, 6)}, lambda classes, masked: number(
    f"Smoothing of 0.2 is spread over the allowed ones of {classes} classes, {masked} of which are "
    "not allowed. What share of the target has the label's class?", 0.8 + 0.2 / (classes - masked),
    "The rest, and its part of what is spread.", 0.8, 0.2 / classes, within=0.001))
ask("12.11", {"case, loss": [("a wrong class", "finite"), ("the label's class", "infinite"),
                             ("all classes", "NaN")]},
    lambda case, loss: choice(
        f"No smoothing; the logit is minus infinity at {case}. The cross-entropy is", loss,
        "It asks for the label's logarithm, and for a sum that must not be zero.", "finite",
        "infinite", "NaN"))
ask("12.11", {"logit": (1e4, 1e6, 1e9), "classes": range(8, 21), "masked": range(1, 6)},
    lambda logit, classes, masked: number(
        f"{masked} of {classes} logits are {-logit:.0e} in place of minus infinity, the others are "
        "near zero. Labels are smoothed by 0.1 over all classes. What is the loss, about?",
        0.1 * masked / classes * logit, "The share of the masked classes times their logarithm.",
        logit, 0.1 * logit, within=0.05))
