"""Stage 5: stored statistics, the place of a norm, dropout, gains and averages of weights."""

import math

import torch
from torch import nn

from dlsys_checks.questions import asks, choice, number, whole

# ---- 05.1 BatchNorm: what is stored, and what the data are


@asks("05.1")
def eval_of_a_lone_row(rng):
    mean, var, x = rng.randint(1, 9), rng.choice([4, 9, 16]), rng.randint(20, 60)
    norm = nn.BatchNorm1d(1, affine=False).eval()
    norm.running_mean.fill_(mean)
    norm.running_var.fill_(var)
    return number(
        f"A BatchNorm without gain and bias stores mean {mean} and variance {var}. In eval mode it "
        f"gets a batch of one row, {x}. What does it return?", norm(torch.tensor([[float(x)]])),
        "Eval mode uses the stored numbers, whatever the size of the batch.", 0, (x - mean) / var)


@asks("05.1")
def share_left_of_the_old(rng):
    momentum, batches = rng.choice([0.05, 0.1, 0.2, 0.3]), rng.randint(3, 15)
    norm = nn.BatchNorm1d(1, momentum=momentum)
    norm.running_mean.fill_(1)
    for _ in range(batches):
        norm(torch.tensor([[-1.0], [1.0]]))
    return number(
        f"You forget to reset a BatchNorm (momentum {momentum}) and run {batches} batches of new "
        "images in train mode. Which share of its old running mean is still in it?",
        norm.running_mean.item(), "Each batch leaves 1 - momentum of what was stored.",
        momentum ** batches, 0)


@asks("05.1")
def mean_of_two_batches(rng):
    big, small = rng.choice([60, 80, 100]), rng.choice([4, 8, 12])
    a, b = rng.randint(1, 9), rng.randint(20, 40)
    return number(
        f"Two batches recalibrate a norm: {big} rows of mean {a}, then {small} rows of mean {b}. "
        "Every row is to count the same. Which running mean is right?",
        (big * a + small * b) / (big + small), "Weight each batch with its rows.", (a + b) / 2, b)


@asks("05.1")
def two_rows_in_train_mode(rng):
    low, gap = rng.randint(1, 50), rng.randint(20, 60)
    out = nn.BatchNorm1d(1)(torch.tensor([[float(low)], [float(low + gap)]]))[1].item()
    return number(
        f"A fresh BatchNorm1d in train mode gets a batch of two rows, {low} and {low + gap}. What "
        "does it return for the larger?", out,
        "Mean and variance are those of the batch: two different rows become -1 and 1.",
        low + gap, gap)


@asks("05.1")
def unbiased_on_one_image(rng):
    side, channels = rng.randint(2, 6), rng.choice([2, 3])
    x = torch.arange(side * side, dtype=torch.float64)
    return number(
        f"One image with {channels} channels of {side} x {side} pixels, BatchNorm2d in train mode. "
        "What is the variance that it stores, over the variance that it normalises with?",
        x.var() / x.var(correction=0),
        "It stores the unbiased variance: n / (n - 1) with n pixels of a channel.", 1,
        channels / (channels - 1))


# ---- 05.2 Norm after the sum

@asks("05.2")
def norms_on_the_stream(rng):
    layers = rng.randint(3, 40)
    one = nn.TransformerEncoderLayer(8, 2, 8)
    count = sum(isinstance(m, nn.LayerNorm) for m in one.modules())
    return whole(
        f"{layers} of torch's encoder layers with the default `norm_first=False`, each with two "
        "branches. How many norms does a number on the stream itself pass?", count * layers,
        "Post-norm: one after each sum, two a layer, all of them on the stream.", 0, 1, layers)


@asks("05.2")
def norms_of_pre_norm(rng):
    layers = rng.randint(3, 40)
    return whole(
        f"A pre-norm encoder of {layers} layers with two branches each, closed by the usual norm "
        "in front of its head. How many norms does it hold?", 2 * layers + 1,
        "One for each branch, and one at the end for the stream.", 2 * layers, layers)


@asks("05.2")
def stream_by_hand(rng):
    x, factor = rng.randint(1, 9), rng.randint(2, 5)
    first, last = rng.randint(10, 19), rng.choice([100, 200, 300])
    branch = factor * (x + first)
    return whole(
        f"The stream holds {x}. Pre-norm: its norm adds {first}, its branch multiplies by {factor},"
        f" the norm at the end adds {last}. (Such norms are toys.) What comes out?",
        x + branch + last, "The branch sees the normed stream, the sum starts from the bare one.",
        x + first + branch + last, x + branch, factor * x + first + last)


@asks("05.2")
def growth_of_the_stream(rng):
    layers = rng.choice([8, 15, 24, 35, 48])
    return number(
        f"A pre-norm stream begins with a mean square of 1. Each of {layers} branches adds "
        "independent numbers with mean square 1. What is its root mean square at the end?",
        math.sqrt(1 + layers), "Mean squares of independent numbers add up; then take the root.",
        1, 1 + layers)


# ---- 05.3 Dropout as a function

@asks("05.3")
def survivor_in_eval(rng):
    p, x = rng.choice([0.2, 0.25, 0.4, 0.5, 0.6, 0.75, 0.8]), rng.randint(2, 20)
    return number(
        f"`forward` calls `F.dropout(h, {p})`. After `model.eval()` a unit with the value {x} "
        "survives a call. Which value has it then?", x / (1 - p),
        "The function does not know the mode: it drops, and divides by 1 - p.", x, x * (1 - p))


@asks("05.3")
def mean_of_noise(rng):
    p, x = rng.choice([0.1, 0.2, 0.3, 0.5, 0.7]), rng.randint(2, 30)
    return number(
        f"An inverted dropout with p = {p} stays on. A unit has the value {x}. What is its mean "
        "over very many calls?", x, "Zero with p, x / (1 - p) otherwise: the mean is x.",
        x * (1 - p), x / (1 - p))


@asks("05.3")
def without_division(rng):
    p, z = rng.choice([0.2, 0.25, 0.5, 0.6, 0.75]), rng.randint(2, 12)
    return number(
        f"Your dropout zeroes with p = {p} and never divides. A linear layer without bias after it "
        f"gives {z} on average in training. What does it give in eval mode?", z / (1 - p),
        "In eval mode all units are there, and none was scaled in training.", z, z * (1 - p))


@asks("05.3")
def noise_of_dropout(rng):
    p, x = rng.choice([0.1, 0.2, 0.4, 0.5, 0.8]), rng.randint(2, 20)
    return number(
        f"A unit has the value {x}; an inverted dropout with p = {p} stays on. What is the "
        "standard deviation of what comes out, over many calls?", x * math.sqrt(p / (1 - p)),
        "The mean of the square is x^2 / (1 - p); take x^2 away, then the root.", 0, x * p,
        x / (1 - p))


@asks("05.3")
def what_eval_reaches(rng):
    modules, functions = rng.randint(2, 9), rng.randint(2, 9)
    return whole(
        f"A model calls {modules} `nn.Dropout` modules, and {functions} times `F.dropout(h, 0.1)` "
        "in its forward. How many of them still drop after `model.eval()`?", functions,
        "eval() reaches modules. A function's default is training=True.", 0, modules + functions)


# ---- 05.4 One init for every activation

@asks("05.4")
def gain_of_a_leaky_one(rng):
    slope = rng.choice([0.1, 0.2, 0.3, 0.4, 0.5])
    return number(
        f"An activation is z above zero and {slope} z below. Which gain keeps the mean square for "
        "z from N(0, 1)?", math.sqrt(2 / (1 + slope ** 2)),
        "Half of the square stays whole, half is multiplied by the slope squared.",
        1 / math.sqrt(1 + slope), 2 / (1 + slope ** 2))


@asks("05.4")
def xavier_under_relu(rng):
    layers = rng.randint(4, 20)
    return number(
        f"{layers} ReLU layers of one width, Xavier weights, no biases. By what factor does the "
        "mean square of the signal change in all?", 0.5 ** layers,
        "Gain 1 keeps the sum's mean square; ReLU leaves half of it, in every layer.",
        1, 0.5 ** (layers / 2))


@asks("05.4")
def gain_from_mean_square(rng):
    left = rng.choice([0.05, 0.1, 0.2, 0.25, 0.4, 0.6])
    return number(
        f"For z from N(0, 1) an activation has the mean square {left}. Which gain keeps the "
        "signal's size?", left ** -0.5, "The gain squared times the mean square is one.",
        1 / left, left ** 0.5)


@asks("05.4")
def moments_of_a_shift(rng):
    mean, std = rng.choice([1, 2, 3]), rng.choice([0.3, 0.5, 0.8])
    return number(
        f"An activation's outputs have mean {mean} and standard deviation {std}. Which mean square "
        "has the next layer's sum, with a gain of 1?", mean ** 2 + std ** 2,
        "The mean square is the variance plus the square of the mean.", std ** 2, std, mean)


@asks("05.4")
def default_of_linear(rng):
    fan_in = rng.choice([48, 75, 108, 192, 300, 432])
    weight = nn.Linear(fan_in, 2).weight
    limit = 1 / math.sqrt(weight.shape[1])
    return choice(
        f"A fresh `nn.Linear` has {fan_in} inputs. What is the standard deviation that its weights "
        "are drawn with?", limit / math.sqrt(3),
        "Uniform within 1 / sqrt(fan_in): a gain of sqrt(1/3), neither He's nor Xavier's.",
        math.sqrt(2 / fan_in), limit)


# ---- 05.5 The average of the weights

@asks("05.5")
def ema_of_a_jump(rng):
    decay, steps = rng.choice([0.9, 0.95, 0.98, 0.99]), rng.randint(5, 60)
    average = 0.0
    for _ in range(steps):
        average = decay * average + (1 - decay)
    return number(
        f"An average with decay {decay} starts at 0; the weight is 1 from now on. Where is the "
        f"average after {steps} steps?", average, "The distance shrinks by decay at every step.",
        1 - decay, decay ** steps)


@asks("05.5")
def buffers_of_a_net(rng):
    norms, linears = rng.randint(2, 12), rng.randint(2, 12)
    net = nn.ModuleList([nn.BatchNorm1d(4) for _ in range(norms)])
    net.extend([nn.Linear(4, 4) for _ in range(linears)])
    return whole(
        f"A net has {norms} BatchNorms and {linears} Linears. You average its `parameters()`. How "
        "many tensors of its state_dict does the average miss?", len(list(net.buffers())),
        "Each BatchNorm has three buffers: running mean, running variance, a counter.",
        0, 2 * norms, norms)


@asks("05.5")
def untouched_statistics(rng):
    x, mean, var = rng.randint(20, 60), rng.randint(3, 9), rng.choice([4, 9, 16])
    fresh = nn.BatchNorm1d(1, affine=False).eval()
    return number(
        f"The model's norm (no gain, no bias) stores mean {mean}, variance {var}. Its average was "
        f"made over `parameters()` from the first step on. In eval mode the average's norm gets "
        f"{x}. What does it return?", fresh(torch.tensor([[float(x)]])),
        "Nobody moved its buffers: mean 0 and variance 1, so x comes back.",
        (x - mean) / math.sqrt(var), 0)


@asks("05.5")
def steps_of_memory(rng):
    decay = rng.choice([0.9, 0.95, 0.98, 0.99, 0.995, 0.999])
    return number(
        f"An average has decay {decay}. After how many steps has a jump of the weight come in by "
        "one half?", math.log(0.5) / math.log(decay), "decay to the power of the steps is 1/2.",
        1 / (1 - decay), 0.5 / (1 - decay))
