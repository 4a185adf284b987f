"""Stage 3: what a loss asks for, and how much of it arrives."""

import math
import statistics
from itertools import permutations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.questions import ask, choice, number, question_for, whole

# ---- 03.1 Softmax before the loss

ask("03.1", {"classes": (3, 4, 5, 8, 20, 50, 100)}, lambda classes: number(
    f"A classifier with {classes} classes ends in a softmax and is trained with `F.cross_entropy`. "
    "Below which number can its loss not fall?", math.log(math.e + classes - 1) - 1,
    "The loss takes probabilities for logits: ln(e + C - 1) - 1 at best.", 0, math.log(classes)))
ask("03.1", {"classes": (3, 4, 5, 8, 20, 50, 100, 1000)}, lambda classes: number(
    f"A loss over {classes} classes stops at the value of a model that has learned nothing and "
    "gives every class the same logit. Which value is that?", math.log(classes),
    "Guessing among C classes costs ln C.", math.log2(classes), 1 - 1 / classes))
ask("03.1", {"classes": (4, 5, 8, 10), "rows": (2, 4, 8)}, lambda classes, rows: number(
    f"Mean cross-entropy of {rows} rows, {classes} classes, all logits 0. What is the gradient at "
    "the logit of a row's right class?", (1 / classes - 1) / rows,
    "Probability minus one, over the number of rows.", 1 / classes - 1, 1 / classes))


@question_for("03.1")
def shifted_logits(rng):
    z, shift = rng.sample(range(4), 3), rng.choice([100, 200, 500])
    row = torch.tensor([z], dtype=torch.float64)
    loss = F.cross_entropy(row + shift, torch.tensor([0])).item()
    return choice(
        f"The logits are {[value + shift for value in z]}, the first class is right. What is the "
        "exact cross-entropy?", loss,
        "Adding one number to all logits changes nothing: subtract the largest before exp.",
        "infinite", loss + shift, F.cross_entropy(row.softmax(1), torch.tensor([0])).item())


# ---- 03.2 A class number as a regression target

ask("03.2", {"n": range(6, 91)}, lambda n: whole(
    f"Outputs of shape ({n}, 1) minus labels of shape ({n},): how many entries does the difference "
    "have?", n * n, "Broadcasting pairs every output with every label.", n, 2 * n))


@question_for("03.2")
def answer_of_a_column(rng):
    labels = [0, 0, rng.randint(1, 2), rng.randint(6, 9), rng.randint(7, 9)]
    rng.shuffle(labels)
    y, best = torch.tensor(labels).double(), torch.linspace(0, 9, 9001, dtype=torch.float64)
    losses = (best[:, None] - y).square().mean(1)
    return number(
        f"`((out - y)**2).mean()` with out of shape (5, 1) and labels y = {labels} of shape (5,). "
        "Which output for the first row has the lowest loss?", best[losses.argmin()].item(),
        "Every row meets every label, so each row is asked for their mean.",
        statistics.median(labels), 9.5)


ask("03.2", {"truth": range(4), "near": lambda truth: range(truth + 1, truth + 3),
             "far": lambda truth, **_: range(truth + 4, truth + 7)},
    lambda truth, near, far: number(
        f"A net puts out the class number and is trained with squared error. The truth is {truth}. "
        f"How many times as much does the answer {far} cost as the answer {near}?",
        ((far - truth) / (near - truth)) ** 2,
        "Numbering the classes claims distances between them.", 1, (far - truth) / (near - truth)))
ask("03.2", {"classes": (3, 4, 5, 8), "labelled": range(2, 5), "rows": range(8, 13)},
    lambda classes, labelled, rows: number(
        f"{rows} rows with logits 0 for {classes} classes; {rows - labelled} of them have no "
        "label. What is the mean cross-entropy over the rows that count?", math.log(classes),
        "Rows without a label belong neither in the sum nor in the count.",
        math.log(classes) * labelled / rows, 0))


# ---- 03.3 Clipping too late

def _step(order, g, lr, limit, scale=1.0):
    """How far SGD moves a weight with gradient g."""
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = torch.optim.SGD([w], lr=lr)
    w.grad = torch.full_like(w, g * scale)
    actions = {"clip": lambda: nn.utils.clip_grad_norm_([w], limit),
               "unscale": lambda: w.grad.div_(scale), "step": opt.step}
    for action in order:
        actions[action]()
    return abs(w.item())


ask("03.3", {"g": range(20, 901), "limit": (0.5, 1, 2, 5), "lr": (0.01, 0.1, 0.3)},
    lambda g, limit, lr: number(
        f"A gradient of norm {g} is clipped to {limit}; then SGD steps at rate {lr}. How far do "
        "the weights move?", _step(["clip", "step"], g, lr, limit),
        "At most the rate times the limit.", lr * g, limit))
ask("03.3", {"g": range(20, 901), "limit": (0.5, 1, 2, 5), "lr": (0.01, 0.1, 0.3)},
    lambda g, limit, lr: number(
        f"`backward` leaves a gradient of norm {g}. SGD steps at rate {lr}, then "
        f"`clip_grad_norm_(..., {limit})` runs. How far have the weights moved?",
        _step(["step", "clip"], g, lr, limit),
        "The step used what .grad held then; clipping afterwards tidies up waste.", lr * limit))
ask("03.3", {"k": range(2, 31), "limit": (0.5, 1, 2)}, lambda k, limit: number(
    f"Two parameters have the gradients {3 * k} and {4 * k}. What does `clip_grad_norm_(params, "
    f"{limit})` return?", 5 * k, "One norm over all parameters, as it was before.", limit, 7 * k))
ask("03.3", {"g": range(2, 51), "scale": (256, 1024, 4096), "lr": (0.1, 0.5)},
    lambda g, scale, lr: number(
        f"The loss was multiplied by {scale}; the true gradient has norm {g}. You clip to 1, then "
        f"undo the scale, then SGD steps at rate {lr}. How far do the weights move?",
        _step(["clip", "unscale", "step"], g, lr, 1, scale),
        "The limit met the scaled gradient; undo the scale first.", lr, lr * g))

# ---- 03.4 Weights of one hundredth

ask("03.4", {"width": (64, 128, 256, 512, 1024), "std": (0.01, 0.02, 0.05, 0.1)},
    lambda width, std: number(
        f"Weights of standard deviation {std}, {width} inputs, ReLU. By which factor does the mean "
        "square of the activations change per layer, on average?", width * std**2 / 2,
        "fan_in times the variance, and ReLU throws half of it away.", 0.5, std**2))
ask("03.4", {"width": (128, 256, 512), "std": (0.02, 0.03), "depth": range(3, 13)},
    lambda width, std, depth: choice(
        f"{depth} layers of {width} units with ReLU, weights of standard deviation {std}, inputs "
        "of mean square 1. Which mean square is left, on average?",
        (factor := width * std**2 / 2)**depth,
        "Each layer multiplies by fan_in times the variance, over two.", 0.5**depth,
        std ** (2 * depth), (2 * factor) ** depth))
ask("03.4", {"fan_in, fan_out": list(permutations((32, 50, 64, 128, 200, 256, 512), 2))},
    lambda fan_in, fan_out: number(
        f"A weight of shape ({fan_out}, {fan_in}) before a ReLU. Which standard deviation keeps "
        "the mean square of the activations?", math.sqrt(2 / fan_in),
        "The variance is 2 / fan_in, the second axis.", math.sqrt(2 / fan_out), 2 / fan_in))
ask("03.4", {"fan_in": (32, 48, 64), "widen": (2, 3, 4), "layers": range(2, 7)},
    lambda fan_in, widen, layers: number(
        f"Each of {layers} layers is {widen} times as wide as the one before, the first input has "
        f'{fan_in} features. Weights by He with `mode="fan_out"`, ReLU. Which mean square is left '
        "of 1 at the end, on average?", (1 / widen) ** layers,
        "The forward factor is fan_in times the variance over two: fan_in / fan_out.", 1,
        0.5 ** (layers * widen)))


# ---- The ideas: maximum likelihood, and a factor for each layer

ask("03.1", {"heads": (1, 2, 3, 4, 6, 7, 8, 9)}, lambda heads: number(
    f"A coin shows heads {heads} times in 10 tosses. For which probability of heads is the mean "
    "negative log-likelihood lowest?", heads / 10,
    "The likelihood is highest at the observed fraction, and its logarithm has the same best p.",
    0.5, (10 - heads) / 10))
ask("03.4", {"factor": (0.25, 0.5, 0.8, 1.6, 2, 3), "layers": range(5, 13)},
    lambda factor, layers: number(
        f"On its way back a gradient is multiplied by {factor} in each of {layers} layers. By "
        "which factor has it changed at the input?", factor ** layers,
        "The factors of the layers multiply, so depth is an exponent.", factor * layers, factor))
