"""Stage 1: what a layer computes, and the five ways a forward pass misleads."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dlsys_checks.questions import asks, choice, number, whole

# ---- 01.1 The same images, sent twice


@asks("01.1")
def survivor_of_dropout(rng):
    p = rng.choice([0.1, 0.2, 0.25, 0.4, 0.5, 0.6, 0.75, 0.8])
    scale = rng.randint(2, 20)
    with torch.no_grad():
        kept = nn.Dropout(p)(torch.full((1000,), float(scale))).max().item()
    return number(
        f"A vector of {scale}s goes through a fresh `nn.Dropout({p})` under `torch.no_grad()`. "
        "Which value do the entries that survive have?", kept,
        "no_grad leaves the layer in train mode, which divides the survivors by 1 - p.", scale)


@asks("01.1")
def mean_that_moves(rng):
    stored, seen = rng.randint(1, 9), rng.randint(20, 60)
    norm = nn.BatchNorm1d(1)
    norm.running_mean.fill_(stored)
    with torch.no_grad():
        norm(torch.tensor([[seen - 1.0], [seen + 1.0]]))
    return number(
        f"A BatchNorm in train mode (momentum 0.1) stores the mean {stored}. Under "
        f"`torch.no_grad()` you feed one batch of mean {seen}. Which mean does it store now?",
        norm.running_mean.item(),
        "In train mode each batch moves the stored mean by a tenth of the way, graph or not.",
        stored, seen)


@asks("01.1")
def answer_of_eval(rng):
    mean, var = rng.randint(1, 9), rng.choice([4, 9, 16, 25])
    x = mean + rng.randint(10, 40)
    norm = nn.BatchNorm1d(1, affine=False)
    norm.running_mean.fill_(mean)
    norm.running_var.fill_(var)
    row = torch.tensor([[float(x)]])
    in_train = norm.train()(torch.cat([row, row - 2]))[0].item()
    norm.running_mean.fill_(mean)
    norm.running_var.fill_(var)
    return number(
        f"A BatchNorm without gain and bias stores mean {mean} and variance {var}. In eval mode "
        f"it sees the rows {x} and {x - 2}. What does it answer for {x}?",
        norm.eval()(row).item(), "Eval mode uses what is stored; the other row does not matter.",
        in_train, (x - mean) / var)


@asks("01.1")
def frozen_and_woken(rng):
    layers, frozen = rng.randint(6, 30), rng.randint(1, 4)
    model = nn.Sequential(*(nn.BatchNorm1d(2) for _ in range(layers)))
    for module in list(model)[:frozen]:
        module.eval()
    model.eval()
    model.train()
    return whole(
        f"A model in train mode has {layers} BatchNorms, {frozen} of them frozen with `.eval()`. "
        "You call `model.eval()`, predict, and call `model.train()`. How many norms are now in "
        "another mode than before?", sum(m.training for m in list(model)[:frozen]),
        "`train()` reaches every module, the frozen ones too: keep each module's own flag.",
        0, layers)


# ---- 01.2 A threshold of one half on raw scores

@asks("01.2")
def cut_on_a_logit(rng):
    cut = rng.choice([-2, -1.5, -1, 0.25, 0.75, 1, 1.5, 2, 2.5])
    return number(
        f"An alarm goes off when the output of a last `nn.Linear` exceeds {cut}. Which "
        "probability does it demand?", torch.tensor(cut, dtype=torch.float64).sigmoid().item(),
        "The output is a logit; the sigmoid makes a probability of it.", cut, 0.5)


@asks("01.2")
def logit_for_a_probability(rng):
    p = rng.choice([0.6, 0.7, 0.8, 0.9, 0.95, 0.2, 0.1])
    return number(
        f"You want an alarm from a probability of {p} on. With which number do you compare the "
        "logit?", math.log(p / (1 - p)), "The logit is the logarithm of the odds, p / (1 - p).",
        p, math.log(p))


@asks("01.2")
def softmax_of_one_column(rng):
    z = [rng.randint(-40, 40) / 10 for _ in range(3)]
    column = torch.tensor(z)[:, None]
    p = column.softmax(1)
    return number(
        f"A binary head gives one column of logits, {z}. You apply `softmax(dim=1)`. What is the "
        "mean of the result?", p.mean().item(),
        "Each row has one entry, and a row of a softmax adds up to 1: use a sigmoid.",
        1 / 3, 0.5)


@asks("01.2")
def alarms_missed(rng):
    z = [rng.randint(1, 49) / 100 for _ in range(rng.randint(2, 5))]
    z += [rng.randint(60, 300) / 100 for _ in range(2)]
    z += [-rng.randint(1, 300) / 100 for _ in range(2)]
    rng.shuffle(z)
    logits = torch.tensor(z)
    lost = (logits.sigmoid() > 0.5).sum() - (logits > 0.5).sum()
    return whole(
        f"Logits: {z}. How many alarms does `logits > 0.5` miss that a probability above one half "
        "would raise?", lost.item(), "One half is logit 0, so those between 0 and 0.5 are missed.",
        0, len(z))


# ---- 01.3 A deep stack of sigmoids that does not learn

@asks("01.3")
def chain_of_sigmoids(rng):
    depth, w = rng.randint(3, 8), rng.choice([0.5, 2, 3, 5, 6, 8])
    x = start = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    for _ in range(depth):
        x = torch.sigmoid(w * x - w * x.detach())  # every pre-activation is 0
    slope, = torch.autograd.grad(x, start)
    return number(
        f"{depth} sigmoid units in a row, one weight of {w} before each, all pre-activations "
        "exactly 0. By which factor does the gradient change from the last output to the first "
        "input?", slope.item(), "Each layer multiplies by its slope, 1/4 here, and by its weight.",
        0.25**depth, w**depth)


@asks("01.3")
def weight_that_keeps(rng):
    z = rng.choice([-3, -2.5, -2, -1.5, -1, 1, 1.5, 2, 2.5, 3])
    s = torch.tensor(z, dtype=torch.float64).sigmoid()
    return number(
        f"A chain of sigmoid units whose pre-activations are all {z}. Which weight before each "
        "unit keeps the gradient's size from layer to layer?", (1 / (s * (1 - s))).item(),
        "Slope times weight must be 1, and the slope is s(1 - s), at most 1/4.", 1, 4)


@asks("01.3")
def chain_of_tanh(rng):
    depth, z = rng.randint(3, 9), rng.choice([0.5, 1, 1.5])
    w = rng.choice([0.5, 1.5, 2])
    slope = 1 - math.tanh(z) ** 2
    return number(
        f"{depth} tanh units in a row, pre-activations all {z}, a weight of {w} before each. By "
        "which factor does the gradient change on its way through?", (w * slope) ** depth,
        "Weights count as much as slopes; the slope is 1 - tanh², 1 only at zero.",
        w**depth, slope**depth)


@asks("01.3")
def relu_with_default_init(rng):
    depth = rng.randint(3, 12)
    bound = 1 / math.sqrt(3)  # nn.Linear: std of 1 / sqrt(3 fan_in)
    return choice(
        f"{depth} square `nn.Linear` layers with PyTorch's default init, a ReLU after each. By "
        "about which factor does the norm of the gradient change on the way to the first?",
        (bound / math.sqrt(2)) ** depth,
        "The default has variance 1/(3 fan_in), and ReLU passes half: 1/6 of the square a layer.",
        1, 0.5**depth, 0.25**depth, (1 / 3) ** depth)


# ---- 01.4 Units that are off for every input

@asks("01.4")
def dead_columns(rng):
    rows, units = 5, 6
    h = (torch.tensor([[rng.randint(-3, 4) for _ in range(units)] for _ in range(rows)])).relu()
    for unit in rng.sample(range(units), rng.randint(1, 2)):
        h[:, unit] = 0
    dead = int((h == 0).all(0).sum())
    flagged = int(((h == 0).float().mean(0) > 0.2).sum())
    return whole(
        f"Outputs of a ReLU layer, rows are inputs: {h.tolist()}. How many units are dead?", dead,
        "Dead means 0 for every row; a share of zeros is how ReLU works.", *{flagged} - {dead})


@asks("01.4")
def bias_that_kills(rng):
    w = [rng.choice([-1, 1]) * rng.randint(2, 30) / 10 for _ in range(3)]
    bounds = torch.tensor(w, dtype=torch.float64).abs()
    return number(
        f"A ReLU unit has the weights {w}; its three inputs lie between -1 and 1. What is the "
        "largest bias at which it is off for every input?", -bounds.sum().item(),
        "Its highest pre-activation is the sum of the weights' sizes plus the bias.",
        -bounds.max().item(), 0)


@asks("01.4")
def share_that_is_off(rng):
    scale, bias = rng.choice([1, 2, 3]), rng.choice([-1.5, -1, -0.5, 0.5, 1])
    off = torch.distributions.Normal(0.0, float(scale)).cdf(torch.tensor(-float(bias))).item()
    return choice(
        f"A ReLU unit has a weight vector of norm {scale} and the bias {bias}; its inputs are N(0, "
        "1). For which share of the rows is it off?", off,
        "Its pre-activation is N(bias, norm²); off part of the time is not dead.", 0.5, 1 - off, 1,
        0)


@asks("01.4")
def leak_that_revives(rng):
    steps, g, bias = rng.randint(10, 90), rng.randint(2, 9), -rng.randint(20, 60)
    lr, slope = 0.1, rng.choice([0.01, 0.1, 0.2])
    b = torch.tensor(float(bias), dtype=torch.float64, requires_grad=True)
    d_b, = torch.autograd.grad(F.leaky_relu(b, slope), b)
    # Every pre-activation stays below zero: the slope is the same at each step.
    moved = lr * g * d_b.item() * steps
    return number(
        f"A LeakyReLU unit (slope {slope} below zero) has a bias of {bias} and only negative "
        f"pre-activations. The gradient at its output is {-g} at every one of {steps} steps of "
        f"SGD at rate {lr}. How far has the bias risen?", moved,
        "The slope below zero lets that share of the gradient through; with ReLU it is 0.",
        0, lr * g * steps)


# ---- 01.5 The loop over elements

class _Counter(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def _operations(call) -> int:
    with _Counter() as counter:
        call()
    return counter.count


@asks("01.5")
def whole_tensor(rng):
    n, times = rng.choice([100, 500, 2000]), rng.choice([10, 20, 50, 100])
    chain = rng.choice([3, 4, 6])

    def repeat(x):
        for _ in range(chain):
            x = x.sin()

    count = _operations(lambda: repeat(torch.zeros(n * times, device="meta")))
    return whole(
        f"A function asks torch for {chain} operations on a whole vector of {n:,} numbers. How "
        f"many does it ask for on a vector of {n * times:,}?", count,
        "One operation takes the whole tensor, however long it is.", chain * times,
        chain * n * times)


@asks("01.5")
def loop_grows(rng):
    n, each = rng.randint(20, 60), rng.choice([2, 3, 4])
    x = torch.zeros(n)

    def loop():
        for k in range(n):
            value = x.select(0, k)
            for _ in range(each):
                value = value.sin()

    return whole(
        f"A loop over {n} elements picks each element (one operation) and applies {each} more to "
        "it. How many operations does torch carry out?", _operations(loop),
        "Each element pays for all of its operations.", each + 1, n)


@asks("01.5")
def overhead(rng):
    n, fixed = rng.choice([1000, 10_000, 100_000]), rng.choice([2, 4, 5])
    per = rng.choice([0.5, 1, 2])
    loop, at_once = n * (fixed * 1e3 + per), fixed * 1e3 + n * per
    return number(
        f"An operation costs {fixed} µs before it starts and {per} ns for each number. How many "
        f"times as long do {n:,} operations on one number take as one operation on {n:,} numbers?",
        loop / at_once, "The fixed cost is paid for each element instead of once.", 1, n,
        within=0.05)


@asks("01.5")
def gradient_of_soft_threshold(rng):
    cut = rng.choice([0.5, 1, 1.5])
    x = [rng.choice([-1, 1]) * (cut + rng.choice([-0.4, -0.2, 0.3, 0.7])) for _ in range(6)]
    x = [round(value, 1) for value in [*x, cut + 1, cut - 0.3]]
    v = torch.tensor(x, requires_grad=True)
    (v.sign() * (v.abs() - cut).clamp(min=0)).sum().backward()
    return number(
        f"`(x.sign() * (x.abs() - {cut}).clamp(min=0)).sum().backward()` for x = {x}. What do the "
        "entries of `x.grad` add up to?", v.grad.sum().item(),
        "Elements beyond the cut pass a gradient of 1 whatever their sign, the others pass 0.",
        len(x), 0)
