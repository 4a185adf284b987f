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
    "What is the lowest loss that it can reach?", math.log(math.e + classes - 1) - 1,
    "The loss treats the probabilities as logits, so it is at least ln(e + C - 1) - 1.",
    0, math.log(classes)))
ask("03.1", {"classes": (3, 4, 5, 8, 20, 50, 100, 1000)}, lambda classes: number(
    f"A cross-entropy over {classes} classes is stuck at the loss of a model that gives every "
    "class the same logit. What is that loss?", math.log(classes),
    "A uniform guess among C classes costs ln C.", math.log2(classes), 1 - 1 / classes))
ask("03.1", {"classes": (4, 5, 8, 10), "rows": (2, 4, 8)}, lambda classes, rows: number(
    f"You take the mean cross-entropy of {rows} rows and {classes} classes, with all logits 0. "
    "What is the gradient with respect to a row's logit for the right class?",
    (1 / classes - 1) / rows,
    "The gradient is the probability minus one, divided by the number of rows.",
    1 / classes - 1, 1 / classes))


@question_for("03.1")
def shifted_logits(rng):
    z, shift = rng.sample(range(4), 3), rng.choice([100, 200, 500])
    row = torch.tensor([z], dtype=torch.float64)
    loss = F.cross_entropy(row + shift, torch.tensor([0])).item()
    return choice(
        f"The logits are {[value + shift for value in z]}, and the first class is right. What is "
        "the exact cross-entropy?", loss,
        "Adding one number to all logits changes nothing, so subtract the largest before exp.",
        "infinite", loss + shift, F.cross_entropy(row.softmax(1), torch.tensor([0])).item())


# ---- 03.2 A class number as a regression target

ask("03.2", {"n": range(6, 91)}, lambda n: whole(
    f"You subtract labels of shape ({n},) from outputs of shape ({n}, 1). How many entries does "
    "the difference have?", n * n, "Broadcasting pairs every output with every label.", n, 2 * n))


@question_for("03.2")
def answer_of_a_column(rng):
    labels = [0, 0, rng.randint(1, 2), rng.randint(6, 9), rng.randint(7, 9)]
    rng.shuffle(labels)
    y, best = torch.tensor(labels).double(), torch.linspace(0, 9, 9001, dtype=torch.float64)
    losses = (best[:, None] - y).square().mean(1)
    return number(
        f"You minimize `((out - y)**2).mean()` with out of shape (5, 1) and labels y = {labels} of "
        "shape (5,). Which output for the first row gives the lowest loss?",
        best[losses.argmin()].item(),
        "Every row is compared with every label, so the best output is the mean of the labels.",
        statistics.median(labels), 9.5)


ask("03.2", {"truth": range(4), "near": lambda truth: range(truth + 1, truth + 3),
             "far": lambda truth, **_: range(truth + 4, truth + 7)},
    lambda truth, near, far: number(
        "A net outputs the class number and is trained with squared error. The true class is "
        f"{truth}. How many times as large is the loss for the answer {far} as for the answer "
        f"{near}?",
        ((far - truth) / (near - truth)) ** 2,
        "Squared error treats the class numbers as distances between classes.", 1,
        (far - truth) / (near - truth)))
ask("03.2", {"classes": (3, 4, 5, 8), "labelled": range(2, 5), "rows": range(8, 13)},
    lambda classes, labelled, rows: number(
        f"{rows} rows have logits 0 for {classes} classes, and {rows - labelled} of these rows "
        "have no label. What is the mean cross-entropy over the labelled rows?", math.log(classes),
        "Leave rows without a label out of the sum and out of the count.",
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
        f"You clip a gradient of norm {g} to {limit}, and then SGD makes a step at a rate of {lr}. "
        "How far do the weights move?", _step(["clip", "step"], g, lr, limit),
        "They move at most by the rate times the limit.", lr * g, limit))
ask("03.3", {"g": range(20, 901), "limit": (0.5, 1, 2, 5), "lr": (0.01, 0.1, 0.3)},
    lambda g, limit, lr: number(
        f"`backward` leaves a gradient of norm {g}. SGD makes a step at a rate of {lr}, and then "
        f"`clip_grad_norm_(..., {limit})` runs. How far have the weights moved?",
        _step(["step", "clip"], g, lr, limit),
        "The step used the gradient before it was clipped.", lr * limit))
ask("03.3", {"k": range(2, 31), "limit": (0.5, 1, 2)}, lambda k, limit: number(
    f"Two parameters have the gradients {3 * k} and {4 * k}. What does `clip_grad_norm_(params, "
    f"{limit})` return?", 5 * k, "The function returns one norm over all parameters, measured "
                                 "before clipping.",
    limit, 7 * k))
ask("03.3", {"g": range(2, 51), "scale": (256, 1024, 4096), "lr": (0.1, 0.5)},
    lambda g, scale, lr: number(
        f"The loss was multiplied by {scale}, and the true gradient has norm {g}. You clip to 1 "
        f"and then undo the scale. SGD makes a step at a rate of {lr}. How far do the weights "
        "move?",
        _step(["clip", "unscale", "step"], g, lr, 1, scale),
        "The limit was applied to the scaled gradient. Undo the scale before you clip.",
        lr, lr * g))

# ---- 03.4 Weights of one hundredth

ask("03.4", {"width": (64, 128, 256, 512, 1024), "std": (0.01, 0.02, 0.05, 0.1)},
    lambda width, std: number(
        f"A layer has {width} inputs, weights of standard deviation {std}, and a ReLU. By which "
        "factor does the layer change the mean square of the activations, on average?",
        width * std**2 / 2,
        "The factor is fan_in times the variance, and ReLU discards half of it.", 0.5, std**2))
ask("03.4", {"width": (128, 256, 512), "std": (0.02, 0.03), "depth": range(3, 13)},
    lambda width, std, depth: choice(
        f"Inputs of mean square 1 pass through {depth} layers of {width} units with ReLU and "
        f"weights of standard deviation {std}. What is the mean square at the end, on average?",
        (factor := width * std**2 / 2)**depth,
        "Each layer multiplies the mean square by half of fan_in times the variance.", 0.5**depth,
        std ** (2 * depth), (2 * factor) ** depth))
ask("03.4", {"fan_in, fan_out": list(permutations((32, 50, 64, 128, 200, 256, 512), 2))},
    lambda fan_in, fan_out: number(
        f"A weight has the shape ({fan_out}, {fan_in}), and a ReLU follows. Which standard "
        "deviation keeps the mean square of the activations?", math.sqrt(2 / fan_in),
        "The variance is 2 / fan_in, and fan_in is the second axis.",
        math.sqrt(2 / fan_out), 2 / fan_in))
ask("03.4", {"fan_in": (32, 48, 64), "widen": (2, 3, 4), "layers": range(2, 7)},
    lambda fan_in, widen, layers: number(
        f"Each of {layers} layers is {widen} times as wide as its input; the first input has "
        f'{fan_in} features and mean square 1. You use ReLU and He weights with `mode="fan_out"`. '
        "What is the mean square at the end, on average?", (1 / widen) ** layers,
        "The variance is 2 / fan_out, so a layer multiplies the mean square by fan_in / fan_out.",
        1, 0.5 ** (layers * widen)))


# ---- The ideas: maximum likelihood, and a factor for each layer

ask("03.1", {"heads": (1, 2, 3, 4, 6, 7, 8, 9)}, lambda heads: number(
    f"A coin shows heads {heads} times in 10 tosses. For which probability of heads is the mean "
    "negative log-likelihood lowest?", heads / 10,
    "The likelihood is highest at the observed fraction, and so is its logarithm.",
    0.5, (10 - heads) / 10))
ask("03.4", {"factor": (0.25, 0.5, 0.8, 1.6, 2, 3), "layers": range(5, 13)},
    lambda factor, layers: number(
        f"On the way back, each of {layers} layers multiplies a gradient by {factor}. By which "
        "factor has the gradient changed at the input?", factor ** layers,
        "The factors of the layers multiply, so depth is an exponent.", factor * layers, factor))
