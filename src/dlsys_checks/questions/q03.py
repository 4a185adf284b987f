"""Stage 3: what a loss asks for, and how much of it arrives."""

import math
import statistics

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.questions import asks, choice, number, whole

# ---- 03.1 Softmax before the loss


@asks("03.1")
def floor_of_two(rng):
    classes = rng.choice([3, 4, 5, 8, 20, 50, 100])
    z = torch.zeros(1, classes, dtype=torch.float64)
    z[0, 0] = 1  # the best that a softmax can put out
    return number(
        f"A classifier with {classes} classes ends in a softmax and is trained with "
        "`F.cross_entropy`. Below which number can its loss not fall?",
        F.cross_entropy(z, torch.tensor([0])).item(),
        "The loss takes probabilities for logits: ln(e + C - 1) - 1 at best.",
        0, math.log(classes))


@asks("03.1")
def loss_of_guessing(rng):
    classes = rng.choice([3, 4, 5, 8, 20, 50, 100, 1000])
    z = torch.zeros(1, classes, dtype=torch.float64)
    return number(
        f"A loss over {classes} classes stops at the value of a model that has learned nothing and "
        "gives every class the same logit. Which value is that?",
        F.cross_entropy(z, torch.tensor([0])).item(), "Guessing among C classes costs ln C.",
        math.log2(classes), 1 - 1 / classes)


@asks("03.1")
def gradient_of_the_right_class(rng):
    classes, rows = rng.choice([4, 5, 8, 10]), rng.choice([2, 4, 8])
    z = torch.zeros(rows, classes, dtype=torch.float64, requires_grad=True)
    F.cross_entropy(z, torch.zeros(rows, dtype=torch.long)).backward()
    return number(
        f"Mean cross-entropy of {rows} rows, {classes} classes, all logits 0. What is the gradient "
        "at the logit of a row's right class?", z.grad[0, 0].item(),
        "Probability minus one, over the number of rows.", 1 / classes - 1, 1 / classes)


@asks("03.1")
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

@asks("03.2")
def column_minus_row(rng):
    n = rng.randint(6, 90)
    gap = torch.zeros(n, 1) - torch.zeros(n)
    return whole(
        f"Outputs of shape ({n}, 1) minus labels of shape ({n},): how many entries does the "
        "difference have?", gap.numel(), "Broadcasting pairs every output with every label.",
        n, 2 * n)


@asks("03.2")
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


@asks("03.2")
def cost_of_a_confusion(rng):
    truth = rng.randint(0, 3)
    near, far = truth + rng.randint(1, 2), truth + rng.randint(4, 6)
    cost = F.mse_loss(torch.tensor([float(near), far]), torch.full((2,), float(truth)),
                      reduction="none")
    return number(
        f"A net puts out the class number and is trained with squared error. The truth is {truth}. "
        f"How many times as much does the answer {far} cost as the answer {near}?",
        (cost[1] / cost[0]).item(), "Numbering the classes claims distances between them.",
        1, (far - truth) / (near - truth))


@asks("03.2")
def rows_without_label(rng):
    classes, labelled, rows = rng.choice([3, 4, 5, 8]), rng.randint(2, 4), rng.randint(8, 12)
    labels = torch.full((rows,), -1)
    labels[:labelled] = 0
    z = torch.zeros(rows, classes, dtype=torch.float64)
    loss = F.cross_entropy(z, labels, ignore_index=-1).item()
    return number(
        f"{rows} rows with logits 0 for {classes} classes; {rows - labelled} of them have no "
        "label. What is the mean cross-entropy over the rows that count?", loss,
        "Rows without a label belong neither in the sum nor in the count.",
        loss * labelled / rows, 0)


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


@asks("03.3")
def clipped_in_time(rng):
    g, limit, lr = rng.randint(20, 900), rng.choice([0.5, 1, 2, 5]), rng.choice([0.01, 0.1, 0.3])
    return number(
        f"A gradient of norm {g} is clipped to {limit}; then SGD steps at rate {lr}. How far do "
        "the weights move?", _step(["clip", "step"], g, lr, limit),
        "At most the rate times the limit.", lr * g, limit)


@asks("03.3")
def clipped_too_late(rng):
    g, limit, lr = rng.randint(20, 900), rng.choice([0.5, 1, 2, 5]), rng.choice([0.01, 0.1, 0.3])
    return number(
        f"`backward` leaves a gradient of norm {g}. SGD steps at rate {lr}, then "
        f"`clip_grad_norm_(..., {limit})` runs. How far have the weights moved?",
        _step(["step", "clip"], g, lr, limit),
        "The step used what .grad held then; clipping afterwards tidies up waste.",
        lr * limit)


@asks("03.3")
def what_it_returns(rng):
    k, limit = rng.randint(2, 30), rng.choice([0.5, 1, 2])
    params = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    for p, g in zip(params, (3.0 * k, 4.0 * k)):
        p.grad = torch.tensor([g])
    return number(
        f"Two parameters have the gradients {3 * k} and {4 * k}. What does "
        f"`clip_grad_norm_(params, {limit})` return?",
        nn.utils.clip_grad_norm_(params, limit).item(),
        "One norm over all parameters, as it was before.", limit, 7 * k)


@asks("03.3")
def clipped_while_scaled(rng):
    g, scale, lr = rng.randint(2, 50), rng.choice([256, 1024, 4096]), rng.choice([0.1, 0.5])
    return number(
        f"The loss was multiplied by {scale}; the true gradient has norm {g}. You clip to 1, then "
        f"undo the scale, then SGD steps at rate {lr}. How far do the weights move?",
        _step(["clip", "unscale", "step"], g, lr, 1, scale),
        "The limit met the scaled gradient; undo the scale first.", lr, lr * g)


# ---- 03.4 Weights of one hundredth

@asks("03.4")
def factor_of_a_layer(rng):
    width, std = rng.choice([64, 128, 256, 512, 1024]), rng.choice([0.01, 0.02, 0.05, 0.1])
    return number(
        f"Weights of standard deviation {std}, {width} inputs, ReLU. By which factor does the mean "
        "square of the activations change per layer, on average?", width * std**2 / 2,
        "fan_in times the variance, and ReLU throws half of it away.", 0.5, std**2)


@asks("03.4")
def after_many_layers(rng):
    width, std, depth = rng.choice([128, 256, 512]), rng.choice([0.02, 0.03]), rng.randint(3, 12)
    factor = width * std**2 / 2
    return choice(
        f"{depth} layers of {width} units with ReLU, weights of standard deviation {std}, inputs "
        "of mean square 1. Which mean square is left, on average?", factor**depth,
        "Each layer multiplies by fan_in times the variance, over two.", 0.5**depth,
        std ** (2 * depth), (2 * factor) ** depth)


@asks("03.4")
def deviation_of_he(rng):
    fan_in, fan_out = rng.sample([32, 50, 64, 128, 200, 256, 512], 2)
    std = nn.init.calculate_gain("relu") / math.sqrt(fan_in)
    return number(
        f"A weight of shape ({fan_out}, {fan_in}) before a ReLU. Which standard deviation keeps "
        "the mean square of the activations?", std, "The variance is 2 / fan_in, the second axis.",
        math.sqrt(2 / fan_out), 2 / fan_in)


@asks("03.4")
def fan_out_in_a_widening_net(rng):
    fan_in = rng.choice([32, 48, 64])
    widen = rng.choice([2, 3, 4])
    layers = rng.randint(2, 6)
    factor = fan_in * (2 / (widen * fan_in)) / 2
    return number(
        f"Each of {layers} layers is {widen} times as wide as the one before, the first input has "
        f"{fan_in} features. Weights by He with `mode=\"fan_out\"`, ReLU. Which mean square is "
        "left of 1 at the end, on average?", factor**layers,
        "The forward factor is fan_in times the variance over two: fan_in / fan_out.", 1,
        0.5 ** (layers * widen))
