"""Stage 5: stored statistics, the place of a norm, dropout, gains and averages of weights."""

import math

from dlsys_checks.questions import ask, choice, number, whole

# ---- 05.1 BatchNorm: what is stored, and what the data are

ask("05.1", {"mean": range(1, 10), "var": (4, 9, 16), "x": range(20, 61)},
    lambda mean, var, x: number(
        f"A BatchNorm without gain or bias stores a mean of {mean} and a variance of {var}. In "
        f"eval mode it gets a batch of one row, {x}. What does it "
        "return?", (x - mean) / math.sqrt(var),
        "Eval mode uses the stored statistics, whatever the size of the "
        "batch.", 0, (x - mean) / var))
ask("05.1", {"momentum": (0.05, 0.1, 0.2, 0.3), "batches": range(3, 16)},
    lambda momentum, batches: number(
        f"You forget to reset a BatchNorm (momentum {momentum}) and run {batches} batches of new "
        "images in train mode. What fraction of the old running mean is left?",
        (1 - momentum) ** batches, "Each batch leaves a fraction of 1 - momentum of what was "
                                   "stored.",
        momentum ** batches, 0))
ask("05.1", {"big": (60, 80, 100), "small": (4, 8, 12), "a": range(1, 10), "b": range(20, 41)},
    lambda big, small, a, b: number(
        f"Two batches recalibrate a norm: {big} rows of mean {a}, then {small} rows of mean {b}. "
        "Every row should count the same. What is the right running mean?",
        (big * a + small * b) / (big + small),
            "Weight each batch by its number of rows.", (a + b) / 2, b))
ask("05.1", {"low": range(1, 51), "gap": range(20, 61)}, lambda low, gap: number(
    f"A fresh BatchNorm1d in train mode gets a batch of two rows, {low} and {low + gap}. What does "
    "it return for the larger value?", 1,
    "Train mode uses the mean and variance of the batch, so two different rows become -1 and "
    "1.", low + gap,
    gap))
ask("05.1", {"side": range(2, 7), "channels": (2, 3)}, lambda side, channels: number(
    f"BatchNorm2d(momentum=1) in train mode gets one image with {channels} channels of {side} x "
    f"{side} pixels. It stores one variance and normalizes with a second. What is the ratio of "
    "the stored variance to the second?",
    side**2 / (side**2 - 1),
    "It stores the unbiased variance, which is larger by a factor of n / (n - 1), where n is the "
    "number of pixels in a channel.", 1,
    channels / (channels - 1)))

# ---- 05.2 Norm after the sum

ask("05.2", {"layers": range(3, 41)}, lambda layers: whole(
    f"A net has {layers} of torch's encoder layers with the default `norm_first=False`, each with "
    "two branches. How many norms are on the stream itself?", 2 * layers,
    "Post-norm has one norm after each sum, so two per layer, and all of them are on the "
    "stream.", 0, 1, layers))
ask("05.2", {"layers": range(3, 41)}, lambda layers: whole(
    f"A pre-norm encoder has {layers} layers with two branches each, and the usual norm before its "
    "head. How many norms does the encoder have?", 2 * layers + 1,
    "There is one norm for each branch, and one at the end for the stream.", 2 * layers, layers))
ask("05.2", {"x": range(1, 10), "factor": range(2, 6), "first": range(10, 20),
             "last": (100, 200, 300)},
    lambda x, factor, first, last: whole(
        f"The stream holds {x}. In a toy pre-norm layer the norm adds {first}, the branch "
        f"multiplies by {factor}, and the norm at the end of the net adds {last}. What is the "
        "output?",
        x + (branch := factor * (x + first)) + last,
        "The branch gets the normalized stream, but its result is added to the stream itself.",
        x + first + branch + last, x + branch, factor * x + first + last))
ask("05.2", {"layers": (8, 15, 24, 35, 48)}, lambda layers: number(
    f"A pre-norm stream begins with a mean square of 1. Each of {layers} branches adds independent "
    "values with mean 0 and mean square 1. What is the stream's root mean "
    "square at the end?", math.sqrt(1 + layers),
    "Mean squares of independent values with mean 0 add up. Then take the root.", 1, 1 + layers))

# ---- 05.3 Dropout as a function

ask("05.3", {"p": (0.2, 0.25, 0.4, 0.5, 0.6, 0.75, 0.8), "x": range(2, 21)}, lambda p, x: number(
    f"`forward` calls `F.dropout(h, {p})`. After `model.eval()` a unit with the value {x} survives "
    "a call. What is its value then?", x / (1 - p),
    "The function does not know the mode, so it still drops units and divides the surviving "
    "units by 1 - p.", x, x * (1 - p)))
ask("05.3", {"p": (0.1, 0.2, 0.3, 0.5, 0.7), "x": range(2, 31)}, lambda p, x: number(
    f"An inverted dropout with p = {p} stays on. A unit has the value {x}. What is the mean of its "
    "output over very many calls?", x, "It is zero with probability p and x / (1 - p) otherwise, "
                                       "so its mean is x.", x * (1 - p),
    x / (1 - p)))
ask("05.3", {"p": (0.2, 0.25, 0.5, 0.6, 0.75), "z": range(2, 13)}, lambda p, z: number(
    f"Your dropout zeroes units with p = {p} and never divides. The next layer, linear and "
    f"without bias, returns {z} on average in training. What does this layer return in eval mode?",
    z / (1 - p),
    "In eval mode all units are present, and none was scaled in training.", z, z * (1 - p)))
ask("05.3", {"p": (0.1, 0.2, 0.4, 0.5, 0.8), "x": range(2, 21)}, lambda p, x: number(
    f"A unit has the value {x}, and an inverted dropout with p = {p} stays on. What is the "
    "standard deviation of its output over many calls?", x * math.sqrt(p / (1 - p)),
    "The mean of the square is x^2 / (1 - p). Subtract x^2, then take the root.", 0, x * p,
    x / (1 - p)))
ask("05.3", {"modules": range(2, 10), "functions": range(2, 10)}, lambda modules, functions: whole(
    f"A model's `forward` calls {modules} registered `nn.Dropout`s, and `F.dropout(h, 0.1)` "
    f"{functions} times. How many of these calls still drop units after `model.eval()`?", functions,
    "eval() reaches registered modules. The function's default is "
    "training=True.", 0, modules + functions))

# ---- 05.4 One init for every activation

ask("05.4", {"slope": (0.1, 0.2, 0.3, 0.4, 0.5)}, lambda slope: number(
    f"An activation returns z above zero and {slope} z below zero. What gain keeps the mean "
    "square for z from N(0, 1)?", math.sqrt(2 / (1 + slope ** 2)),
    "Half of the mean square is kept, and the other half is multiplied by the slope squared.",
    1 / math.sqrt(1 + slope), 2 / (1 + slope ** 2)))
ask("05.4", {"layers": range(4, 21)}, lambda layers: number(
    f"A net has {layers} ReLU layers of one width, with Xavier weights and no biases. By what "
    "factor does the mean square of the signal change over the whole net?", 0.5 ** layers,
    "A gain of 1 keeps the mean square of the sums, and ReLU leaves half of it in every layer.", 1,
    0.5 ** (layers / 2)))
ask("05.4", {"left": (0.05, 0.1, 0.2, 0.25, 0.4, 0.6)}, lambda left: number(
    f"For z from N(0, 1) the output of an activation has the mean square {left}. What gain keeps "
    "the signal's "
    "size?", left ** -0.5, "The squared gain times the mean square has to be "
                           "one.", 1 / left, left ** 0.5))
ask("05.4", {"mean": (1, 2, 3), "std": (0.3, 0.5, 0.8)}, lambda mean, std: number(
    f"An activation's outputs have mean {mean} and standard deviation {std}. What is the mean "
    "square of the next layer's sums, with a gain of 1?", mean ** 2 + std ** 2,
    "The mean square is the variance plus the square of the mean.", std ** 2, std, mean))
ask("05.4", {"fan_in": (48, 75, 108, 192, 300, 432)}, lambda fan_in: choice(
    f"A fresh `nn.Linear` has {fan_in} inputs. With what standard deviation are its weights "
    "drawn?", 1 / math.sqrt(3 * fan_in),
    "The weights are uniform between -1 / sqrt(fan_in) and 1 / sqrt(fan_in). That is a gain of "
    "sqrt(1/3), neither He's nor Xavier's.",
    math.sqrt(2 / fan_in), 1 / math.sqrt(fan_in)))

# ---- 05.5 The average of the weights

ask("05.5", {"decay": (0.9, 0.95, 0.98, 0.99), "steps": range(5, 61)}, lambda decay, steps: number(
    f"An average with decay {decay} starts at 0, and the weight is 1 from now on. What is the "
    f"average after {steps} "
    "steps?", 1 - decay**steps, "Every step multiplies the distance by decay.",
    1 - decay, decay**steps))
ask("05.5", {"norms": range(2, 13), "linears": range(2, 13)}, lambda norms, linears: whole(
    f"A net has {norms} BatchNorms and {linears} Linears. You average its `parameters()`. How many "
    "tensors of its state_dict are not averaged?", 3 * norms,
    "Each BatchNorm has three buffers: a running mean, a running variance and a "
    "counter.", 0, 2 * norms,
    norms))
ask("05.5", {"x": range(20, 61), "mean": range(3, 10), "var": (4, 9, 16)},
    lambda x, mean, var: number(
        f"The model's norm (no gain, no bias) stores a mean of {mean} and a variance of {var}. An "
        "averaged model was updated over `parameters()` from the first step on. In eval mode its "
        f"norm gets {x}. What does it return?", x,
        "Nothing updated its buffers, so they are still mean 0 and variance 1, and the norm "
        "returns x.",
        (x - mean) / math.sqrt(var), 0))
ask("05.5", {"decay": (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)}, lambda decay: number(
    f"An average has decay {decay}, and the weight jumps. After how many steps has the average "
    "made half of the "
    "jump?", math.log(0.5) / math.log(decay),
        "Look for the number of steps at which decay^steps is 1/2.",
    1 / (1 - decay), 0.5 / (1 - decay)))


# ---- The ideas: what a norm averages over, and the size of a signal

ask("05.1", {"a": range(0, 10, 2), "b": range(10, 20, 2), "c": range(30, 40, 2)},
    lambda a, b, c: number(
        f"A batch has the rows [{a}, {b}] and [{c}, 60]. What mean does a LayerNorm subtract from "
        f"the {a}?", (a + b) / 2, "A LayerNorm averages over the features of one row.",
        (a + c) / 2, (a + b + c + 60) / 4))
ask("05.4", {"inputs": (50, 64, 100, 128, 200, 256, 400, 512)}, lambda inputs: number(
    f"A layer before a ReLU has {inputs} inputs and {4 * inputs} outputs. What variance does He's "
    "rule set for its weights?", 2 / inputs,
    "A sum of n terms has n times their variance, and ReLU removes half of the mean square, so the "
    "variance is 2 / fan-in.",
    1 / inputs, 2 / (5 * inputs)))
