"""Stage 1: what a layer computes, and the five ways a forward pass misleads."""

import math
from statistics import NormalDist

import torch

from dlsys_checks.questions import ask, choice, number, question_for, whole

TENTHS = [k / 10 for k in range(-40, 41)]
SIGNED = [sign * k / 10 for sign in (-1, 1) for k in range(2, 31)]

# ---- 01.1 The same images, sent twice

ask("01.1", {"p": (0.1, 0.2, 0.25, 0.4, 0.5, 0.6, 0.75, 0.8), "scale": range(2, 21)},
    lambda p, scale: number(
        f"A vector of {scale}s passes through a fresh `nn.Dropout({p})` under `torch.no_grad()`. "
        "What value do the surviving entries have?", scale / (1 - p),
        "`no_grad` leaves the layer in train mode, so it divides the survivors by 1 - p.", scale))
ask("01.1", {"stored": range(1, 10), "seen": range(20, 61)}, lambda stored, seen: number(
    f"A BatchNorm in train mode (momentum 0.1) stores the mean {stored}. Under `torch.no_grad()` "
    f"you feed it one batch whose mean is {seen}. What mean does it store now?",
    stored + 0.1 * (seen - stored),
    "In train mode, each batch moves the stored mean a tenth of the way to its own mean, with or "
    "without a graph.", stored, seen))
ask("01.1", {"mean": range(1, 10), "var": (4, 9, 16, 25),
             "x": lambda mean, **_: range(mean + 10, mean + 41)},
    lambda mean, var, x: number(
        f"A BatchNorm without gain or bias stores the mean {mean} and the variance {var}. In eval "
        f"mode it gets a batch of two rows, {x} and {x - 2}. What does it return for {x}?",
        (x - mean) / math.sqrt(var),
        "Eval mode uses the stored statistics, so the other row does not matter.", 1,
        (x - mean) / var))
ask("01.1", {"layers": range(6, 31), "frozen": range(1, 5)}, lambda layers, frozen: whole(
    f"A model in train mode has {layers} BatchNorms, {frozen} of them frozen with `.eval()`. You "
    "call `model.eval()`, predict, and call `model.train()`. How many BatchNorms are now in a "
    "different mode than before?", frozen,
    "`train()` reaches every module, including the frozen ones. Keep each module's own flag.", 0,
    layers))

# ---- 01.2 A threshold of one half on raw scores

ask("01.2", {"cut": (-2, -1.5, -1, 0.25, 0.75, 1, 1.5, 2, 2.5)}, lambda cut: number(
    f"An alarm goes off when the output of the final `nn.Linear` exceeds {cut}. Which "
    "probability does this threshold correspond to?", 1 / (1 + math.exp(-cut)),
    "The output is a logit, and the sigmoid turns it into a probability.", cut, 0.5))
ask("01.2", {"p": (0.6, 0.7, 0.8, 0.9, 0.95, 0.2, 0.1)}, lambda p: number(
    f"You want an alarm for every probability above {p}. Which threshold do you set for the logit?",
    math.log(p / (1 - p)), "The logit is the logarithm of the odds, p / (1 - p).", p, math.log(p)))
ask("01.2", {"a": TENTHS, "b": TENTHS, "c": TENTHS}, lambda a, b, c: number(
    f"A binary head returns one column of logits, {[a, b, c]}. You apply `softmax(dim=1)`. What is "
    "the mean of the result?", 1,
    "Each row has a single entry, and a softmax makes each row add up to 1. Use a sigmoid.",
    1 / 3, 0.5))


@question_for("01.2")
def alarms_missed(rng):
    z = [rng.randint(1, 49) / 100 for _ in range(rng.randint(2, 5))]
    z += [rng.randint(60, 300) / 100 for _ in range(2)]
    z += [-rng.randint(1, 300) / 100 for _ in range(2)]
    rng.shuffle(z)
    logits = torch.tensor(z)
    lost = (logits.sigmoid() > 0.5).sum() - (logits > 0.5).sum()
    return whole(
        f"The logits are {z}. You want an alarm for every probability above one half. How many of "
        "these alarms does `logits > 0.5` miss?", lost.item(),
        "A probability of one half corresponds to a logit of 0, so the logits between 0 and 0.5 "
        "are missed.",
        0, len(z))


# The ideas before the trap: a neuron, its learning rule, a layer.
ask("01.2", {"w, x": [((1, -2), (3, 1)), ((2, 1), (1, -4)), ((-1, 3), (2, 2)), ((3, -1), (2, 4))],
             "b": (-3, -2, 2, 3)}, lambda w, x, b: whole(
    f"A neuron has the weights {[*w]} and the bias {b}. What sum does it compute for the inputs "
    f"{[*x]}?",
    (z := w[0] * x[0] + w[1] * x[1]) + b,
    "Multiply each input by its weight, add everything up, and add the bias.", z,
    sum(w) + sum(x) + b))
ask("01.2", {"w": range(-4, 5), "x": range(2, 7)}, lambda w, x: whole(
    f"A perceptron says yes to an image that should be a no. Its first weight is {w}, and the "
    f"image's first number is {x}. What is the weight after the correction?", w - x,
    "The error is -1, so the rule subtracts the image from the weights, and the sum falls.", w + x,
    w))
ask("01.2", {"inputs": range(3, 40), "units": range(5, 30)}, lambda inputs, units: whole(
    f"How many parameters does `nn.Linear({inputs}, {units})` have?", inputs * units + units,
    "Each unit has one weight for every input and one bias.", inputs * units, inputs + units))


# ---- 01.3 A deep stack of sigmoids that does not learn

ask("01.3", {"depth": range(3, 9), "w": (0.5, 2, 3, 5, 6, 8)}, lambda depth, w: number(
    f"There are {depth} sigmoid units in a row, each with a weight of {w} before it, and all "
    "pre-activations are exactly 0. By what factor does the gradient change from the last output "
    "back to the first input?",
    (w / 4) ** depth, "Each layer multiplies the gradient by its slope, here 1/4, and its weight.",
    0.25**depth, w**depth))
ask("01.3", {"z": (-3, -2.5, -2, -1.5, -1, 1, 1.5, 2, 2.5, 3)}, lambda z: number(
    f"In a chain of sigmoid units, all pre-activations are {z}. With which weight before each unit "
    "does the gradient keep its size from layer to layer?",
    1 / ((s := 1 / (1 + math.exp(-z))) * (1 - s)),
    "The slope times the weight must be 1, and the slope is s(1 - s), at most 1/4.", 1, 4))
ask("01.3", {"depth": range(3, 10), "z": (0.5, 1, 1.5), "w": (0.5, 1.5, 2)},
    lambda depth, z, w: number(
        f"There are {depth} tanh units in a row, each with a weight of {w} before it, and all "
        f"pre-activations are {z}. By what factor does the gradient change on its way back?",
        (w * (slope := 1 - math.tanh(z) ** 2)) ** depth,
        "Each unit multiplies by its weight and its slope. The slope is 1 - tanh², which is 1 only "
        "at zero.", w**depth, slope**depth))
ask("01.3", {"depth": range(3, 13)}, lambda depth: choice(
    f"A network has {depth} square `nn.Linear` layers with PyTorch's default init and a ReLU after "
    "each. By about what factor does the gradient norm change on the way to the input?",
    (1 / 6) ** (depth / 2),
    "The default variance is 1/(3 fan_in), and ReLU passes half of the gradient, so each layer "
    "leaves 1/6 of the squared norm.", 1, 0.5**depth, 0.25**depth, (1 / 3) ** depth))

# The ideas before the trap: what depth buys, and where a gradient comes from.
ask("01.3", {"layers": range(3, 8)}, lambda layers: whole(
    f"A layer of two ReLU units folds the interval from 0 to 1 in half. How many straight pieces "
    f"does the output of {layers} such layers in a row have?", 2**layers,
    "Each layer folds the previous layer's output again, so the number of pieces doubles.",
    2 * layers, 2 * layers + 1))
ask("01.3", {"rate": (0.1, 0.2, 0.5), "slope": (-4, -2, 2, 4), "w": (1, 3, 5)},
    lambda rate, slope, w: number(
        f"A weight is {w}, and the loss's slope with respect to this weight is {slope}. What is "
        f"the weight after one SGD step at a learning rate of {rate}?", w - rate * slope,
        "A step goes against the slope, so subtract the learning rate times the slope.",
        w + rate * slope, w - slope))


# ---- 01.4 Units that are off for every input

@question_for("01.4")
def dead_columns(rng):
    rows, units = 5, 6
    h = (torch.tensor([[rng.randint(-3, 4) for _ in range(units)] for _ in range(rows)])).relu()
    for unit in rng.sample(range(units), rng.randint(1, 2)):
        h[:, unit] = 0
    dead = int((h == 0).all(0).sum())
    flagged = int(((h == 0).float().mean(0) > 0.2).sum())
    return whole(
        f"A ReLU layer returns {h.tolist()}, one row for each input. How many units are dead?",
        dead, "A dead unit is 0 for every row. Being 0 for some rows is how ReLU works.",
        *{flagged} - {dead})


ask("01.4", {"a": SIGNED, "b": SIGNED, "c": SIGNED}, lambda a, b, c: number(
    f"A ReLU unit has the weights {[a, b, c]}, and its three inputs are between -1 and 1. What is "
    "the largest bias for which it is off for every input?", -(abs(a) + abs(b) + abs(c)),
    "Its highest pre-activation is the sum of the weights' absolute values plus the bias.",
    -max(abs(a), abs(b), abs(c)), 0))
ask("01.4", {"scale": (1, 2, 3), "bias": (-1.5, -1, -0.5, 0.5, 1)}, lambda scale, bias: choice(
    f"A ReLU unit has a weight vector of norm {scale} and a bias of {bias}. The inputs are "
    "independent and N(0, 1). For what fraction of the rows is the unit off?",
    (off := NormalDist(0, scale).cdf(-bias)),
    "Its pre-activation is N(bias, norm²). A unit that is off part of the time is not dead.", 0.5,
    1 - off, 1, 0))
ask("01.4", {"steps": range(10, 91), "g": range(2, 10), "bias": range(-20, -61, -1),
             "slope": (0.01, 0.1, 0.2)},
    lambda steps, g, bias, slope: number(
        f"A LeakyReLU unit (slope {slope} below zero) has a bias of {bias} and only negative "
        f"pre-activations. The gradient at its output is {-g} in each of {steps} steps of SGD "
        "at a rate of 0.1. How far has the bias risen?", 0.1 * slope * g * steps,
        "Below zero, the slope multiplies the gradient. ReLU's slope there is 0.",
        0, 0.1 * g * steps))

# ---- 01.5 The loop over elements

ask("01.5", {"n": (100, 500, 2000), "times": (10, 20, 50, 100), "chain": (3, 4, 6)},
    lambda n, times, chain: whole(
        f"A function calls {chain} torch operations on a whole vector of {n:,} values. How many "
        f"operations does it call on a vector of {n * times:,} values?", chain,
        "One operation works on the whole tensor, however long the tensor is.", chain * times,
        chain * n * times))
ask("01.5", {"n": range(20, 61), "each": (2, 3, 4)}, lambda n, each: whole(
    f"For each of {n} elements, a loop picks the element, which is one operation, and applies "
    f"{each} more operations to it. How many operations does torch carry out?", n * (1 + each),
    "The loop carries out all of these operations again for each element.", each + 1, n))
ask("01.5", {"n": (1000, 10_000, 100_000), "fixed": (2, 4, 5), "per": (0.5, 1, 2)},
    lambda n, fixed, per: number(
        f"An operation has a fixed cost of {fixed} µs, plus {per} ns for each value. You replace "
        f"one operation on {n:,} values by a loop of {n:,} operations on one value each. How many "
        "times as long does the loop take?",
        (n * (fixed * 1e3 + per)) / (fixed * 1e3 + n * per),
        "The loop pays the fixed cost for each element instead of once.", 1, n, within=0.05))


@question_for("01.5")
def gradient_of_soft_threshold(rng):
    cut = rng.choice([0.5, 1, 1.5])
    x = [rng.choice([-1, 1]) * (cut + rng.choice([-0.4, -0.2, 0.3, 0.7])) for _ in range(6)]
    x = [round(value, 1) for value in [*x, cut + 1, cut - 0.3]]
    v = torch.tensor(x, requires_grad=True)
    (v.sign() * (v.abs() - cut).clamp(min=0)).sum().backward()
    return number(
        f"`(x.sign() * (x.abs() - {cut}).clamp(min=0)).sum().backward()` for x = {x}. What do the "
        "entries of `x.grad` add up to?", v.grad.sum().item(),
        "Elements beyond the cut pass a gradient of 1, whatever their sign. All others pass 0.",
        len(x), 0)
