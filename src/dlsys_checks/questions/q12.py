"""Stage 12: NaNs, sleeping layers, seeds, search, memory, data, files, tracking, smoothing,
scores."""

import math

from dlsys_checks.questions import ask, choice, number, whole

# ---- 12.1 the first NaN

ask("12.1", {"bad": range(1, 9)}, lambda bad: whole(
    f"Ten modules run one after the other, numbered from 0. All inputs up to module {bad} are "
    f"finite, and all outputs from module {bad} on hold a NaN. In which module did the NaN arise?",
    bad,
    "It is the first module that receives finite numbers and returns a NaN.", bad + 1, 9))
ask("12.1", {"layer": range(2, 31)}, lambda layer: choice(
    f"Layer {layer} of 40 divides zero by zero in the forward pass. What does `detect_anomaly` "
    "name, if the loss is a cross-entropy?", "the log-softmax of the loss",
    "Anomaly mode checks gradients, and the log-softmax's gradient is the first with a NaN.",
    f"the division in layer {layer}", "the first layer", f"layer {layer + 1}"))
ask("12.1", {"n": range(6, 21), "bad": lambda n: range(1, n - 1)}, lambda n, bad: whole(
    f"An nn.Sequential holds {n} modules, numbered from 0. Module {bad} produces a NaN that no "
    "later module removes. Every module and the Sequential itself have a forward hook. How many of "
    "these hooks get an output with a NaN?", n - bad + 1,
    "They are the hooks of the guilty module, of all modules after it, and of the Sequential.",
    n - bad, 1))
ask("12.1", {"steps": range(100, 901)}, lambda steps: choice(
    f"At step {steps}, a penalty that does not depend on any weight is NaN and is added to the "
    "loss. After this SGD step, the weights are", "finite",
    "The penalty is a constant, and a constant adds nothing to the gradient, whatever its value.",
    "all NaN", "NaN in the last layer", "zero"))

# ---- 12.2 layers that do not move

ask("12.2", {"before": (2.0, 4.0, 5.0, 8.0), "moved": (0.1, 0.3, 0.6)},
    lambda before, moved: number(
        f"The norm of a weight was {before:g}; the norm of its change is {moved:g}. How far has "
        "the weight moved, relative to its norm?", moved / before,
        "Divide the norm of the change by the norm before.", moved, before / moved))
ask("12.2", {"a": range(5), "b": range(8, 14)}, lambda a, b: number(
    f"Half of the targets are {a}, and the other half are {b}. What mean squared error does the "
    "best constant reach?", ((b - a) / 2) ** 2,
    "It is the variance of the targets.", (b - a) / 2, (b - a) ** 2))
ask("12.2", {"layers": range(3, 10)}, lambda layers: number(
    "A sigmoid passes on at most a quarter of a gradient. With weights of one between the "
    f"sigmoids, what is the largest fraction that can be left after {layers} of them?",
    0.25**layers,
    "It is a quarter to the power of the number of sigmoids.", 0.25 / layers, 0.5**layers))
ask("12.2", {"loss": (3.2, 8.3, 12.5)}, lambda loss: choice(
    f"With Adam, all layers move by more than their own norm. The loss stays at {loss}, which is "
    "the variance of the targets. The net", "outputs the mean of the targets",
    "Always predicting the mean has this loss. Adam divides each gradient by its own size, so a "
    "layer that moves need not learn.", "learns in all layers", "has layers that do not move",
    "overfits"))

# ---- 12.3 seeds of workers

ask("12.3", {"images": range(20, 91), "epochs": range(3, 31)}, lambda images, epochs: whole(
    f"Each of {images} images is shifted by a random number, drawn in a worker whose "
    f"`worker_init_fn` seeds numpy with 42 plus its id. Training runs for {epochs} epochs, with "
    "the images in the same order. How many different shifts occur?", images,
    "Each epoch starts new workers with the same seeds.", images * epochs))
ask("12.3", {"epoch": range(1, 10), "row": range(10, 91)}, lambda epoch, row: whole(
    f"A generator is seeded with epoch + row. Which row of epoch {epoch + 3} gets the same noise "
    f"as row {row} of epoch {epoch}?", row - 3,
    "Epoch plus row is the same number for both rows.", row,
    row + 3))
ask("12.3", {"workers": range(1, 17)}, lambda workers: choice(
    f"A dataset draws from numpy's global generator in {workers} workers. What makes two runs draw "
    "the same numbers?", "torch.manual_seed alone",
    "Torch seeds numpy in each worker with a number from its own generator.",
    "np.random.seed in the main process alone", "only a worker_init_fn",
    "nothing, because workers run in parallel"))
ask("12.3", {"few": range(1, 5)}, lambda few: choice(
    f"Two runs have the same seed, the first with {few} workers and the second with {few + 1}. "
    "Each worker draws noise from its own generator. In the second run, the noise of an image",
    "may be different", "Which worker loads which image depends on the number of workers.",
    "is the same", "is different only in the first batch", "is the noise of the first epoch"))

# ---- 12.4 search

ask("12.4", {"best": (0.3, 0.5, 0.9)}, lambda best: choice(
    f"A search for a small loss has reached {best}. Two candidates have the same standard "
    f"deviation but means of {best - 0.2:.1f} and {best + 0.2:.1f}. Which has the larger expected "
    "improvement?", f"the candidate with the mean {best - 0.2:.1f}",
    "This candidate is more likely to end below the best loss, and by more.",
    "the candidate with the mean "
    f"{best + 0.2:.1f}", "it is the same for both", "it is zero for both"))
ask("12.4", {"best": (2.0, 3.0, 5.0), "gap": (0.25, 0.5, 0.75)}, lambda best, gap: number(
    f"The best loss is {best:g}. A candidate has a predicted loss of {best - gap:g}, with a "
    "standard deviation of 0. What is its expected improvement?", gap,
    "The candidate is certain to improve by the difference.", 0, best - gap))
ask("12.4", {"std": (0.5, 1.0, 2.0, 4.0)}, lambda std: number(
    f"The mean of a candidate equals the best loss so far, and its standard deviation is {std:g}. "
    "What is its expected improvement?", std / math.sqrt(2 * math.pi),
    "It is the standard deviation times the density of a standard normal at 0, which is 0.399.", 0,
    std / 2, std))
ask("12.4", {"runs": (20, 30, 50)}, lambda runs: choice(
    f"Time after time, a search with a Gaussian process over eight settings ends after {runs} runs "
    "with a larger loss than random search with the same budget. What do you try first?",
    "looking for a fault, such as the sign of the score",
    "On the lesson's smooth surface, it was ahead of random search with eight settings and with "
    "twelve.",
    "using fewer settings", "using more candidates for each choice", "using a finer grid"))

# ---- 12.5 where

ask("12.5", {"total": range(50, 501), "bad": range(1, 10)}, lambda total, bad: whole(
    f"{bad} of {total} gradients are NaN. How many are NaN after `clip_grad_norm_`?", total,
    "The norm is NaN, and every gradient is divided by it.", bad, 0))
ask("12.5", {"total": range(50, 501)}, lambda total: whole(
    f"One of {total} gradients is infinite, and the others are 1. How many are zero after "
    "`clip_grad_norm_` with a limit of 1?", total - 1,
    "All gradients are multiplied by one over infinity, which is 0. Only the infinite gradient "
    "becomes NaN.", 0,
    total))
ask("12.5", {"x": (4.0, 9.0, 16.0, 25.0)}, lambda x: number(
    "A function returns `where(x > 0, sqrt(safe), 0)` with `safe = where(x > 0, x, 1)`. What is "
    f"its slope at {x:g}?", 0.5 / math.sqrt(x), "It is the slope of the root, 1 / (2 sqrt(x)).",
    1 / math.sqrt(x), 0.5))
ask("12.5", {"name, word": [("log", "logarithm"), ("sqrt", "root"), ("log2", "binary logarithm"),
                            ("log10", "decimal logarithm")]},
    lambda name, word: choice(
        f"Which line has a finite gradient at x = 0 for the {word}?",
        f"torch.where(x > 0, torch.where(x > 0, x, 1).{name}(), 0)",
        "The bad number must not reach the function, so choose before the function as well.",
        f"torch.where(x > 0, x.{name}(), 0)",
        f"x.{name}().nan_to_num()", f"(x * (x > 0)).{name}()"))

# ---- 12.6 what a loss holds

ask("12.6", {"trials": range(3, 21), "size": (2, 5, 40, 300)}, lambda trials, size: whole(
    f"A search trains {trials} models with {size} MB of weights each, under the same name, and "
    "keeps each model's last training loss as a tensor. At the end, it deletes the last model. How "
    "many MB of weights are still in memory?", trials * size,
    "Each loss has a graph whose ends hold its model's weights.", size, 0))
ask("12.6", {"steps": range(10, 901), "size": (20, 50, 120)}, lambda steps, size: whole(
    f"A step saves {size} MB of activations for its backward pass. A list holds {steps} losses, "
    "each stored after its `backward()`. How many MB of activations do these losses hold?", 0,
    "backward() frees what the graph has saved, even if something still holds the loss.",
    steps * size, size))
ask("12.6", {"full": (32, 50, 64), "last": range(2, 9), "low": (0.2, 0.4), "high": (1.0, 1.6, 2.2)},
    lambda full, last, low, high: number(
        f"One batch has {full} rows and a mean loss of {low}. Another batch has {last} rows and a "
        f"mean loss of {high}. What is the mean loss over all rows?",
        (full * low + last * high) / (full + last),
        "Weight each mean by its number of rows.", (low + high) / 2, within=0.005))
ask("12.6", {"step": range(100, 901)}, lambda step: choice(
    f"Which line keeps activations in memory if it runs at each of {step} training steps?",
    "log.append(F.l1_loss(logits, y)), a second loss without backward()",
    "This second loss has nodes with saved tensors, and no backward() frees them.",
    "losses.append(loss), after loss.backward()", "total += loss, after loss.backward()",
    "losses.append(loss.item()), before loss.backward()"))

# ---- 12.7 one batch

ask("12.7", {"loss": (0.4, 1.5, 2.5, 3.5)}, lambda loss: number(
    f"A batch has a loss of {loss}, summed over its rows. What is the loss of a batch that "
    "contains each of these rows twice?", 2 * loss, "A sum doubles; a mean would stay the "
    "same.", loss,
    loss / 2))
ask("12.7", {"batch": (20, 50, 64), "rate": (0.1, 0.2, 0.5)}, lambda batch, rate: number(
    f"A recipe uses the mean loss of a batch. You sum the loss over the {batch} rows instead and "
    f"train with SGD at a learning rate of {rate}. Which learning rate in the recipe would take "
    "the same steps?", batch * rate, "Each gradient is that many times as "
    "large.", rate, rate / batch))
ask("12.7", {"rows": (16, 32, 50, 64)}, lambda rows: choice(
    f"A net memorizes one batch of {rows} rows. What does that show?",
    "that gradients flow and the loss can fall",
    "A large enough net can memorize wrong labels too.",
    "that the labels belong to their inputs", "that the data are in a random order",
    "that the net will do well on new data"))
ask("12.7", {"classes": range(4, 21)}, lambda classes: number(
    f"A data set has {classes} equally large classes in a random order, and nearest neighbours "
    "nearly always have the same label. Then the labels are shifted by one row. About what "
    "fraction of neighbours has the same label now?", 1 / classes, "Now neighbours agree only by "
    "chance.",
    0, 0.5,
    within=0.05))

# ---- 12.8 files

ask("12.8", {"kills": range(5, 61)}, lambda kills: whole(
    f"torch.save writes a checkpoint over the old one, and the process is killed before the last "
    f"byte is written. This happens {kills} times. After how many of the kills does the file load?",
    0, "Opening the file removes the old content, and the new table of contents comes last.", kills,
    kills // 2))
ask("12.8", {"kills": range(5, 61)}, lambda kills: whole(
    f"A checkpoint is written to a second file, which os.replace then renames. The process is "
    f"killed {kills} times while it writes. After how many of the kills does the checkpoint load?",
    kills, "The old file is untouched until os.replace.", 0))
ask("12.8", {"every": (10, 20, 30, 60)}, lambda every: whole(
    f"A job starts a save every {every} minutes, to a second file that it then renames. A save "
    "takes 2 minutes and holds the state at its start. How many minutes of training can a kill "
    "cost at most?", every + 2,
    "If the kill comes at the last byte of a save, the job resumes from the save before it.", every,
    2))
ask("12.8", {"value": (0.25, 0.5, 1.5)}, lambda value: choice(
    f"A checkpoint holds a loss of {value}. In which form does torch.load refuse it?",
    f"np.float64({value})",
    "By default, torch.load reads weights only, and a numpy scalar is an arbitrary Python object.",
    f"{value}", f"torch.tensor({value})", "None"))

ask("12.8", {"save": (1, 2, 4), "kill": (2, 4.5, 8)}, lambda save, kill: number(
    f"A save takes {save} minutes, and a job is killed every {kill:g} hours on average. How many "
    "minutes between two saves cost the least time?", math.sqrt(2 * save * kill * 60),
    "It is the square root of 2 times the save time times the time between two kills, in minutes.",
    math.sqrt(save * kill * 60), kill * 30))

# ---- 12.9 the hash seed

FIRST_APART = {"the first weights": "the initialization",
               "the first batch": "the order of the data",
               "the first loss": "what the forward pass draws, such as dropout",
               "the weights after one step": "the optimizer and its settings"}

ask("12.9", {"starts": range(3, 10)}, lambda starts: whole(
    "A script sets os.environ['PYTHONHASHSEED'] = '0' in its first line and numbers thirty classes "
    f"with enumerate(set(names)). It is started {starts} times. How many different numberings will "
    "there almost certainly be?", starts,
    "Each process draws its own secret seed before the first line runs.", 1))
ask("12.9", {"word": ("cat", "seven", "lung", "oak"), "starts": range(3, 10)},
    lambda word, starts: choice(
        f"Python is started {starts} times without PYTHONHASHSEED. What is the same each time?",
        "hash((3, 5))",
        "The secret seed affects strings and bytes, and what is hashed through them, not numbers.",
        f"hash({word!r})", f"hash((1, {word!r}))", f"hash({word.encode()!r})"))
ask("12.9", {"known": range(5, 41), "new": range(2, 7),
             "place": lambda new, **_: range(1, new + 1)},
    lambda known, new, place: whole(
        f"A checkpoint numbers {known} classes from 0. There are {new} new classes. The old "
        "classes keep their numbers, and the new classes follow in sorted order. What is the "
        f"number of new class no. {place} in that order?", known + place - 1,
        "The new numbers start at the number of known classes.", known + place, place - 1))
ask("12.9", {"seed": range(1, 100)}, lambda seed: choice(
    f"A running script sets os.environ['PYTHONHASHSEED'] = '{seed}'. What uses this seed?",
    "a new Python that the script starts afterwards",
    "An interpreter reads the variable only once, when it starts.",
    "the script, from the next line on", "only the sets that the script creates from then on",
    "a process that the script forks"))

ask("12.9", {"part, cause": list(FIRST_APART.items())}, lambda part, cause: choice(
    "Two runs of a script with the same config end with different results. You hash their parts in "
    f"the order in which the parts are made. The first part whose hash differs is {part}. Where do "
    "you look?",
    cause, "All earlier parts agree, so whatever produced them is not the cause.",
    *(other for other in FIRST_APART.values() if other != cause)))

# ---- 12.10 rows of a log

ask("12.10", {"epochs": range(3, 10), "batches": range(20, 91)}, lambda epochs, batches: whole(
    f"A W&B run has {epochs} epochs of {batches} batches. Each batch is logged with step=batch, "
    "counted over the whole run. At the end of each epoch, the validation loss is logged with "
    "step=epoch, from 0. How many validation losses does the log keep?", 0,
    "By then, the counter is already past each of these steps.", epochs, 1))
ask("12.10", {"epochs": range(3, 10), "batches": range(20, 91)}, lambda epochs, batches: whole(
    f"A W&B run has {epochs} epochs of {batches} batches. It logs each batch with step=batch, "
    "counted over the whole run, and after each epoch the validation loss with step=epoch, from 0. "
    "How many calls of log are ignored?", epochs,
    "The call at the end of each epoch is ignored.", 0,
    epochs * batches))
ask("12.10", {"after": range(2, 6), "killed": range(7, 13)}, lambda after, killed: whole(
    f"A run logs the end of each epoch from 0 to {killed} and is killed. It resumes from the "
    f"checkpoint after epoch {after} and ends with epoch {killed + 3}. How many epochs are logged "
    "twice?", killed - after,
    "They are the epochs after the checkpoint that were logged before the kill.",
    killed - after + 3, killed))
ask("12.10", {"name": ("val_loss", "accuracy", "bleu")}, lambda name: choice(
    f"You add `define_metric('{name}', step_metric='epoch')`, but you still log the rows with "
    f"`step=epoch`, after many batches with `step=batch`. The rows with {name}",
    "are dropped as before",
    "`step=` still sets the counter, which has passed that step. The axis is only a value in a "
    "row.",
    "are drawn over epochs", "are drawn over batches", "raise an error"))

# ---- 12.11 smoothing

ask("12.11", {"classes": range(8, 21), "masked": range(2, 6)}, lambda classes, masked: number(
    f"Labels are smoothed by 0.1 over {classes} classes, {masked} of which are masked. What "
    "fraction of the target goes to masked classes?", 0.1 * masked / classes,
    "The 0.1 is spread evenly over all classes.", 0.1, 0))
ask("12.11", {"classes": range(8, 21), "masked": range(2, 6)}, lambda classes, masked: number(
    f"{masked} of {classes} classes are not allowed. A smoothing of 0.2 is spread over the allowed "
    "classes, including the label's class. What fraction of the target does the label's class get?",
    0.8 + 0.2 / (classes - masked),
    "The label's class gets 0.8 plus its part of the 0.2.", 0.8, 0.2 / classes,
    within=0.001))
ask("12.11", {"case, loss": [("a wrong class", "finite"), ("the label's class", "infinite"),
                             ("all classes", "NaN")]},
    lambda case, loss: choice(
        f"Labels are not smoothed, and the logit is minus infinity at {case}. The cross-entropy is",
        loss, "The loss needs only the label's log-probability. It is infinite if the label is "
        "masked, and NaN if no class is left.", "finite", "infinite", "NaN"))
ask("12.11", {"logit": (1e4, 1e6, 1e9), "classes": range(8, 21), "masked": range(1, 6)},
    lambda logit, classes, masked: number(
        f"{masked} of {classes} logits are {-logit:.0e} instead of minus infinity, and the others "
        "are near zero. Labels are smoothed by 0.1 over all classes. About how large is the loss?",
        0.1 * masked / classes * logit,
        "It is the masked classes' part of the target times their negative log-probability.",
        logit, 0.1 * logit, within=0.05))

# ---- 12.12 scores of batches

ask("12.12", {"size": (4, 8), "percent": (5, 10, 20)}, lambda size, percent: number(
    f"Each row is a positive with a probability of {percent} %. You send the labels through an "
    f"evaluation that averages the F1 of batches of {size} rows and uses 0 for 0/0. What F1 do you "
    "expect, from 0 to 1?", 1 - (1 - percent / 100) ** size,
    "Each batch with a positive gets 1, and each batch without one gets 0.", 1,
    (1 - percent / 100) ** size, percent / 100, within=0.02))
ask("12.12", {"hits": (8, 9), "errors": (6, 7, 8)}, lambda hits, errors: number(
    f"A first batch has {hits} true positives and 2 errors (FP + FN), a second batch 1 true "
    f"positive and {errors} errors. What is the F1 over both batches?",
    2 * (hits + 1) / (2 * (hits + 1) + 2 + errors), "Add up the counts, and divide once.",
    (2 * hits / (2 * hits + 2) + 2 / (2 + errors)) / 2, within=0.01))
ask("12.12", {"early": (6, 8, 10), "late": (2, 3)}, lambda early, late: number(
    f"An accuracy is counted over epochs and never reset. It is 0.5 in each of {early} epochs, "
    f"then 0.9 in each of {late} epochs. What is reported after the last one?",
    (0.5 * early + 0.9 * late) / (early + late), "The counts of all epochs are in it.", 0.9, 0.7,
    within=0.01))
ask("12.12", {"size": (16, 32, 64)}, lambda size: choice(
    f"You evaluate in batches of {size}, and the last batch is smaller. For which score is the "
    "mean of the batches, weighted by rows, the score of the whole set?", "accuracy",
    "Only accuracy is itself a mean over rows.", "F1", "precision",
    "the area under the ROC curve"))
