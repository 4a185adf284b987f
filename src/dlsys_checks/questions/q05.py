"""Stage 5: stored statistics, the place of a norm, dropout, gains and averages of weights."""

import math

from dlsys_checks.questions import ask, choice, number, whole

# ---- 05.1 BatchNorm: what is stored, and what the data are

ask("05.1", {"mean": range(1, 10), "var": (4, 9, 16), "x": range(20, 61)},
    lambda mean, var, x: number(
        f"A BatchNorm without gain and bias stores mean {mean} and variance {var}. In eval mode it "
        f"gets a batch of one row, {x}. What does it return?", (x - mean) / math.sqrt(var),
        "Eval mode uses the stored numbers, whatever the size of the batch.", 0, (x - mean) / var))
ask("05.1", {"momentum": (0.05, 0.1, 0.2, 0.3), "batches": range(3, 16)},
    lambda momentum, batches: number(
        f"You forget to reset a BatchNorm (momentum {momentum}) and run {batches} batches of new "
        "images in train mode. Which share of its old running mean is still in it?",
        (1 - momentum) ** batches, "Each batch leaves 1 - momentum of what was stored.",
        momentum ** batches, 0))
ask("05.1", {"big": (60, 80, 100), "small": (4, 8, 12), "a": range(1, 10), "b": range(20, 41)},
    lambda big, small, a, b: number(
        f"Two batches recalibrate a norm: {big} rows of mean {a}, then {small} rows of mean {b}. "
        "Every row is to count the same. Which running mean is right?",
        (big * a + small * b) / (big + small), "Weight each batch with its rows.", (a + b) / 2, b))
ask("05.1", {"low": range(1, 51), "gap": range(20, 61)}, lambda low, gap: number(
    f"A fresh BatchNorm1d in train mode gets a batch of two rows, {low} and {low + gap}. What does "
    "it return for the larger?", 1,
    "Mean and variance are those of the batch: two different rows become -1 and 1.", low + gap,
    gap))
ask("05.1", {"side": range(2, 7), "channels": (2, 3)}, lambda side, channels: number(
    f"One image with {channels} channels of {side} x {side} pixels, BatchNorm2d in train mode. "
    "What is the variance that it stores, over the variance that it normalises with?",
    side**2 / (side**2 - 1),
    "It stores the unbiased variance: n / (n - 1) with n pixels of a channel.", 1,
    channels / (channels - 1)))

# ---- 05.2 Norm after the sum

ask("05.2", {"layers": range(3, 41)}, lambda layers: whole(
    f"{layers} of torch's encoder layers with the default `norm_first=False`, each with two "
    "branches. How many norms does a number on the stream itself pass?", 2 * layers,
    "Post-norm: one after each sum, two a layer, all of them on the stream.", 0, 1, layers))
ask("05.2", {"layers": range(3, 41)}, lambda layers: whole(
    f"A pre-norm encoder of {layers} layers with two branches each, closed by the usual norm in "
    "front of its head. How many norms does it hold?", 2 * layers + 1,
    "One for each branch, and one at the end for the stream.", 2 * layers, layers))
ask("05.2", {"x": range(1, 10), "factor": range(2, 6), "first": range(10, 20),
             "last": (100, 200, 300)},
    lambda x, factor, first, last: whole(
        f"The stream holds {x}. Pre-norm: its norm adds {first}, its branch multiplies by "
        f"{factor}, the norm at the end adds {last}. (Such norms are toys.) What comes out?",
        x + (branch := factor * (x + first)) + last,
        "The branch sees the normed stream, the sum starts from the bare one.",
        x + first + branch + last, x + branch, factor * x + first + last))
ask("05.2", {"layers": (8, 15, 24, 35, 48)}, lambda layers: number(
    f"A pre-norm stream begins with a mean square of 1. Each of {layers} branches adds independent "
    "numbers with mean square 1. What is its root mean square at the end?", math.sqrt(1 + layers),
    "Mean squares of independent numbers add up; then take the root.", 1, 1 + layers))

# ---- 05.3 Dropout as a function

ask("05.3", {"p": (0.2, 0.25, 0.4, 0.5, 0.6, 0.75, 0.8), "x": range(2, 21)}, lambda p, x: number(
    f"`forward` calls `F.dropout(h, {p})`. After `model.eval()` a unit with the value {x} survives "
    "a call. Which value has it then?", x / (1 - p),
    "The function does not know the mode: it drops, and divides by 1 - p.", x, x * (1 - p)))
ask("05.3", {"p": (0.1, 0.2, 0.3, 0.5, 0.7), "x": range(2, 31)}, lambda p, x: number(
    f"An inverted dropout with p = {p} stays on. A unit has the value {x}. What is its mean over "
    "very many calls?", x, "Zero with p, x / (1 - p) otherwise: the mean is x.", x * (1 - p),
    x / (1 - p)))
ask("05.3", {"p": (0.2, 0.25, 0.5, 0.6, 0.75), "z": range(2, 13)}, lambda p, z: number(
    f"Your dropout zeroes with p = {p} and never divides. A linear layer without bias after it "
    f"gives {z} on average in training. What does it give in eval mode?", z / (1 - p),
    "In eval mode all units are there, and none was scaled in training.", z, z * (1 - p)))
ask("05.3", {"p": (0.1, 0.2, 0.4, 0.5, 0.8), "x": range(2, 21)}, lambda p, x: number(
    f"A unit has the value {x}; an inverted dropout with p = {p} stays on. What is the standard "
    "deviation of what comes out, over many calls?", x * math.sqrt(p / (1 - p)),
    "The mean of the square is x^2 / (1 - p); take x^2 away, then the root.", 0, x * p,
    x / (1 - p)))
ask("05.3", {"modules": range(2, 10), "functions": range(2, 10)}, lambda modules, functions: whole(
    f"A model calls {modules} `nn.Dropout` modules, and {functions} times `F.dropout(h, 0.1)` in "
    "its forward. How many of them still drop after `model.eval()`?", functions,
    "eval() reaches modules. A function's default is training=True.", 0, modules + functions))

# ---- 05.4 One init for every activation

ask("05.4", {"slope": (0.1, 0.2, 0.3, 0.4, 0.5)}, lambda slope: number(
    f"An activation is z above zero and {slope} z below. Which gain keeps the mean square for z "
    "from N(0, 1)?", math.sqrt(2 / (1 + slope ** 2)),
    "Half of the square stays whole, half is multiplied by the slope squared.",
    1 / math.sqrt(1 + slope), 2 / (1 + slope ** 2)))
ask("05.4", {"layers": range(4, 21)}, lambda layers: number(
    f"{layers} ReLU layers of one width, Xavier weights, no biases. By what factor does the mean "
    "square of the signal change in all?", 0.5 ** layers,
    "Gain 1 keeps the sum's mean square; ReLU leaves half of it, in every layer.", 1,
    0.5 ** (layers / 2)))
ask("05.4", {"left": (0.05, 0.1, 0.2, 0.25, 0.4, 0.6)}, lambda left: number(
    f"For z from N(0, 1) an activation has the mean square {left}. Which gain keeps the signal's "
    "size?", left ** -0.5, "The gain squared times the mean square is one.", 1 / left, left ** 0.5))
ask("05.4", {"mean": (1, 2, 3), "std": (0.3, 0.5, 0.8)}, lambda mean, std: number(
    f"An activation's outputs have mean {mean} and standard deviation {std}. Which mean square has "
    "the next layer's sum, with a gain of 1?", mean ** 2 + std ** 2,
    "The mean square is the variance plus the square of the mean.", std ** 2, std, mean))
ask("05.4", {"fan_in": (48, 75, 108, 192, 300, 432)}, lambda fan_in: choice(
    f"A fresh `nn.Linear` has {fan_in} inputs. What is the standard deviation that its weights are "
    "drawn with?", 1 / math.sqrt(3 * fan_in),
    "Uniform within 1 / sqrt(fan_in): a gain of sqrt(1/3), neither He's nor Xavier's.",
    math.sqrt(2 / fan_in), 1 / math.sqrt(fan_in)))

# ---- 05.5 The average of the weights

ask("05.5", {"decay": (0.9, 0.95, 0.98, 0.99), "steps": range(5, 61)}, lambda decay, steps: number(
    f"An average with decay {decay} starts at 0; the weight is 1 from now on. Where is the average "
    f"after {steps} steps?", 1 - decay**steps, "The distance shrinks by decay at every step.",
    1 - decay, decay**steps))
ask("05.5", {"norms": range(2, 13), "linears": range(2, 13)}, lambda norms, linears: whole(
    f"A net has {norms} BatchNorms and {linears} Linears. You average its `parameters()`. How many "
    "tensors of its state_dict does the average miss?", 3 * norms,
    "Each BatchNorm has three buffers: running mean, running variance, a counter.", 0, 2 * norms,
    norms))
ask("05.5", {"x": range(20, 61), "mean": range(3, 10), "var": (4, 9, 16)},
    lambda x, mean, var: number(
        f"The model's norm (no gain, no bias) stores mean {mean}, variance {var}. Its average was "
        "made over `parameters()` from the first step on. In eval mode the average's norm gets "
        f"{x}. What does it return?", x,
        "Nobody moved its buffers: mean 0 and variance 1, so x comes back.",
        (x - mean) / math.sqrt(var), 0))
ask("05.5", {"decay": (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)}, lambda decay: number(
    f"An average has decay {decay}. After how many steps has a jump of the weight come in by one "
    "half?", math.log(0.5) / math.log(decay), "decay to the power of the steps is 1/2.",
    1 / (1 - decay), 0.5 / (1 - decay)))


# ---- The ideas: what a norm averages over, and the size of a signal

ask("05.1", {"a": range(0, 10, 2), "b": range(10, 20, 2), "c": range(30, 40, 2)},
    lambda a, b, c: number(
        f"A batch has the rows [{a}, {b}] and [{c}, 60]. Which mean does a LayerNorm subtract from "
        f"the {a}?", (a + b) / 2, "A LayerNorm averages over the features of one row.",
        (a + c) / 2, (a + b + c + 60) / 4))
ask("05.4", {"inputs": (50, 64, 100, 128, 200, 256, 400, 512)}, lambda inputs: number(
    f"A layer before a ReLU has {inputs} inputs and {4 * inputs} outputs. Which variance does "
    "He's rule give its weights?", 2 / inputs,
    "The sum of n terms has n times their variance, and ReLU removes half: so 2 / fan-in.",
    1 / inputs, 2 / (5 * inputs)))
