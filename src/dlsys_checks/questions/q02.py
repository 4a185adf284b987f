"""Stage 2: what is added up, kept, shared, and read in which order, in the backward pass."""

import math
from itertools import permutations

import torch
from torch import nn

from dlsys_checks.questions import ask, choice, number, question_for, whole

# ---- 02.1 Gradients that pile up

ask("02.1", {"calls": range(3, 10), "norm": range(2, 41)}, lambda calls, norm: number(
    f"The gradient of one batch has norm {norm}. You call `backward` on the batch {calls} times, "
    "without `zero_grad` and without a step. What is the norm of `.grad` then?", calls * norm,
    "`backward` adds to `.grad`.", norm))
ask("02.1", {"steps": range(4, 13), "g": range(2, 10), "lr": (0.01, 0.1, 0.2)},
    lambda steps, g, lr: number(
        f"The gradient is {g} at every step. You never call `zero_grad`. How far does SGD with a "
        f"rate of {lr} move the weight in {steps} steps?", _moved(steps, g, lr, clear_every=None),
        "Step k uses the sum of k gradients, which is a momentum of 1.", lr * g * steps, lr * g))
ask("02.1", {"pairs": range(2, 10), "g": range(2, 10), "lr": (0.01, 0.1, 0.2)},
    lambda pairs, g, lr: number(
        f"The gradient is {g} at every step. `zero_grad` is called only before steps 1, 3, 5, ... "
        f"How far does SGD with a rate of {lr} move the weight in {2 * pairs} steps?",
        _moved(2 * pairs, g, lr, clear_every=2), "Every second step uses the sum of two gradients.",
        lr * g * 2 * pairs, lr * g * pairs))


def _moved(steps, g, lr, clear_every):
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = torch.optim.SGD([w], lr=lr)
    for k in range(steps):
        if clear_every and k % clear_every == 0:
            opt.zero_grad()
        (-g * w).sum().backward()
        opt.step()
    return w.item()


@question_for("02.1")
def pendulum(rng):
    a, lr, w0 = rng.choice([1, 2, 3]), rng.choice([0.1, 0.2, 0.25]), rng.randint(2, 9)
    ends = {}
    for clear in (True, False):
        w = nn.Parameter(torch.tensor(float(w0), dtype=torch.float64))
        opt = torch.optim.SGD([w], lr=lr)
        for _ in range(2):
            if clear:
                opt.zero_grad()
            (a * w**2 / 2).backward()
            opt.step()
        ends[clear] = w.item()
    return number(
        f"The loss is {a} w²/2, so its gradient is {a} w, and w starts at {w0}. You use SGD with a "
        f"rate of {lr} and never call `zero_grad`. What is w after two steps?", ends[False],
        "The second step uses the first gradient again, in addition to its own.", ends[True], w0)


# ---- 02.2 Backward on a vector

ask("02.2", {"rows": (8, 16, 32, 48, 64, 128), "norm": (0.5, 1.5, 2, 3)}, lambda rows, norm: number(
    f"The mean loss of {rows} rows has a gradient of norm {norm}. You clear `.grad` and call "
    f"`losses.backward(torch.ones({rows}))`. What is the norm of `.grad` then?", norm * rows,
    "With ones, every row counts in full, so you get the gradient of the sum.", norm, norm / rows))
ask("02.2", {"rows": (8, 16, 32, 48, 64, 128), "lr": (0.01, 0.05, 0.1, 0.5)},
    lambda rows, lr: number(
        f"A loop calls `losses.backward(torch.ones({rows}))` on {rows} rows, and SGD has a rate of "
        f"{lr}. Which rate would make SGD take the same steps with the gradient of the mean "
        "loss?", lr * rows, "The sum is the mean times the number of rows.", lr,
        lr / rows))
ask("02.2", {"a, b, c": list(permutations(range(1, 12), 3)), "u": range(2, 5), "v": range(5, 8)},
    lambda a, b, c, u, v: number(
        f"Three rows have the losses {[a, b, c]} and the weights {[u, v, 0]}. What weighted mean "
        "does `cross_entropy` with class weights return?", (u * a + v * b) / (u + v),
        "`cross_entropy` divides by the sum of the weights, not by the number of rows.",
        (u * a + v * b) / 3, u * a + v * b))
ask("02.2", {"a": range(2, 10), "b": range(2, 10), "c": range(2, 10), "d": range(2, 10)},
    lambda a, b, c, d: number(
        f"You take a weighted mean over four rows with the weights {[a, b, c, d]}, and then double "
        "every weight. What is the gradient of the mean with respect to the first row's loss?",
        a / (a + b + c + d),
        "A row counts by its share of all the weights, so a common factor cancels.", 2 * a,
        2 * a / 4))

# ---- 02.3 A copy that was none

ask("02.3", {"x": (1.0, 1.5, 2.0, 2.5), "v": (0.2, 0.4, 0.5)}, lambda x, v: number(
    f"You run `y = torch.sigmoid(x)` for x = {x}, then `y.data.fill_({v})`, then `y.backward()`. "
    "What gradient does x get?", v * (1 - v),
    "The sigmoid kept its result y for the slope y(1 - y), and you overwrote y.",
    (s := 1 / (1 + math.exp(-x))) * (1 - s), 0))
ask("02.3", {"x": (0.5, 1.0, 1.5, 2.0), "k": range(2, 10)}, lambda x, k: number(
    f"You run `y = x.exp()` for x = {x}, then `y.data.mul_({k})`, then `y.backward()`. What "
    "gradient does x get?", k * math.exp(x),
    "`exp` kept its result for the slope, and `.data` hid the edit.", math.exp(x), 1))
ask("02.3", {"c": range(2, 31), "x": range(2, 10)}, lambda c, x: number(
    f"You run `y = {c} * x` for x = {x}, then `y.data.zero_()`, then `y.backward()`. What gradient "
    "does x get?", c,
    f"Multiplication by a number does not keep its result, so the slope is still {c}.", 0))


@question_for("02.3")
def real_copies(rng):
    ways = {"y.detach()": lambda y: y.detach(), "y.data": lambda y: y.data,
            "y.detach().clone()": lambda y: y.detach().clone(),
            "y.data.clone()": lambda y: y.data.clone(),
            "y.detach().view(-1)": lambda y: y.detach().view(-1),
            "y.detach()[:]": lambda y: y.detach()[:],
            "y.detach() + 0": lambda y: y.detach() + 0}
    chosen = ["y.detach()", *rng.sample([w for w in ways if w != "y.detach()"], 4)]
    rng.shuffle(chosen)
    value, safe = rng.randint(1, 99), 0
    for name in chosen:
        y = torch.full((3,), float(value))
        ways[name](y).zero_()
        safe += bool((y == value).all())
    return whole(
        f"Every entry of y is {value}. You try five expressions, {', '.join(chosen)}, each on a "
        "fresh y, and call `zero_()` on the result. After how many of these calls is y still "
        f"{value}?",
        safe, "`detach`, `.data` and views share y's memory. `clone` and arithmetic make a "
        "copy.", 5)


# ---- 02.4 Four small batches are not one big batch

ask("02.4", {"parts": range(3, 13), "rows": (4, 8, 16), "norm": (0.5, 2, 3)},
    lambda parts, rows, norm: number(
        f"A batch of {parts * rows} equal rows has a mean loss whose gradient has norm {norm}. You "
        f"call `backward` on the mean loss of each of {parts} micro-batches of {rows} rows, and "
        "never divide. What norm does the accumulated gradient have?", parts * norm,
        "The gradient of each mean has the full norm, and the parts add up.", norm, norm / parts))
ask("02.4", {"size": (8, 16, 32, 64), "last": (1, 2, 3, 5), "parts": range(3, 9)},
    lambda size, last, parts: number(
        f"There are {parts} micro-batches of {size} rows, except that the last has only {last} "
        f"rows. Each mean loss is divided by {parts}. How many times as much does a row of the "
        "last micro-batch count as a row of the other parts?",
        (1 / last / parts) / (1 / size / parts),
        "In a mean over few rows, each row has a larger share, so weight each part by its rows.",
        1, last / size))
ask("02.4", {"big": (24, 32, 48), "small": (2, 4, 6), "a": [k / 10 for k in range(10, 20)],
             "b": [k / 10 for k in range(40, 91)]},
    lambda big, small, a, b: number(
        f"One micro-batch has {big} rows and a mean loss of {a}, and another has {small} rows and "
        f"a mean loss of {b}. What is the mean loss of the whole batch?",
        (big * a + small * b) / (big + small),
        "Each part counts by its share of the rows.", (a + b) / 2, a + b))
ask("02.4", {"parts": range(2, 17), "lr": (0.001, 0.003, 0.01, 0.05), "g": range(2, 21)},
    lambda parts, lr, g: number(
        f"You add up the gradients of {parts} equal micro-batches, each {g}, without dividing. How "
        f"far does the first step of Adam with a rate of {lr} move the weight?", lr,
        "Adam divides the gradient by its own size, so a constant factor cancels.", parts * lr,
        parts * lr * g))

# ---- 02.5 The evaluation that remembers everything

ask("02.5", {"layers": (10, 20, 40), "rows": (100, 250, 500), "batches": range(3, 21)},
    lambda layers, rows, batches: number(
        f"A net keeps the float32 results of {layers} ReLUs, {rows} rows of 1,000 values each. An "
        f"evaluation runs `total = total + loss` over {batches} batches in eval mode. How many MB "
        "do the graphs hold at the end (1 MB = 1e6 bytes)?",
        batches * (one := layers * rows * 1000 * 4 / 1e6),
        "`total` has a graph, so it keeps the graph of every batch. `eval()` only affects layers.",
        one, 0))
ask("02.5", {"layers": (10, 20, 40), "rows": (100, 250, 500), "batches": range(3, 21)},
    lambda layers, rows, batches: number(
        f"A net keeps the float32 results of {layers} ReLUs, {rows} rows of 1,000 values each. An "
        f"evaluation of {batches} batches adds up `f(x).item()` in eval mode, without `no_grad`. "
        "How many MB do the graphs hold at most at any time (1 MB = 1e6 bytes)?",
        (one := layers * rows * 1000 * 4 / 1e6),
        "`item()` returns a plain number, so each graph is freed, but it was built for nothing.",
        batches * one, 0))
ask("02.5", {"big": (60, 80, 100), "small": (2, 4, 5),
             "right": lambda big, **_: range(big * 8 // 10, big - 4), "few": range(2)},
    lambda big, small, right, few: number(
        f"In a batch of {big} rows, {right} are right, and in a batch of {small} rows, {few} are "
        "right. What is the accuracy over all rows?", (right + few) / (big + small),
        "Take the mean over rows. A mean of means counts the small batch as much as the large one.",
        (right / big + few / small) / 2, within=0.01))
ask("02.5", {"rows": (32, 64), "width": (50, 100), "depth": range(3, 10)},
    lambda rows, width, depth: choice(
        f"{depth} ReLUs in a row run on a {rows} x {width} float32 tensor that requires gradients, "
        "in eval mode and under `torch.no_grad()`. How many bytes does autograd keep for a "
        "backward pass?", 0,
        "Under `no_grad`, no graph is built. In eval mode alone, autograd would keep every ReLU's "
        "result.", depth * rows * width * 4, rows * width * 4, depth * 4))

# ---- 02.6 The node that reports too early

ask("02.6", {"w": range(2, 10), "x": range(2, 10), "b": range(2, 10)}, lambda w, x, b: number(
    f"a = w x and L = a + a b, with w = {w}, x = {x}, b = {b}. What is dL/dw?", (1 + b) * x,
    "`a` is used twice. Its gradient is 1 + b, the sum over both uses, and x times that is dL/dw.",
    x, x * b))
ask("02.6", {"rungs": range(4, 15)}, lambda rungs: whole(
    f"You run `v = v + v` {rungs} times. How many paths lead from the last v to the first?",
    2**rungs, "Each value that is used twice doubles the number of paths.", rungs + 1, 2 * rungs))
ask("02.6", {"rungs": range(5, 41)}, lambda rungs: whole(
    f"You run `v = v + v` {rungs} times. In a correct backward pass, how many visits to nodes are "
    "there in total, counting the first v?", rungs + 1,
    "A node waits for the gradients from all its uses, and is then visited once.", 2**rungs,
    2 * rungs))
ask("02.6", {"p, q": list(permutations(range(2, 12), 2)), "s": range(2, 10)},
    lambda p, q, s: number(
        f"A node `out` has the parents [(m, {p}), (m, {q})], and m has the parent [(a, {s})]. Each "
        "pair holds a parent and the slope with respect to it. What is d out / d a?", (p + q) * s,
        "If a parent occurs twice, its slopes add up before it passes its gradient on.",
        p * s, q * s))


# ---- The ideas: the chain rule, and backward through a layer

ask("02.1", {"w": range(2, 6), "x": range(2, 6), "y": lambda w, x: range(w * x + 1, w * x + 8)},
    lambda w, x, y: whole(
        f"z = w x and L = (z - y)², with w = {w}, x = {x} and y = {y}. What is dL/dw?",
        2 * (w * x - y) * x,
        "Multiply the slopes along the path: 2 (z - y) for the square, and x for the product.",
        2 * (w * x - y), (w * x - y) * x))
ask("02.1", {"rows": (8, 16, 32, 64), "inputs": range(3, 7), "units": range(10, 13)},
    lambda rows, inputs, units: whole(
        f"A batch of {rows} rows passes through `nn.Linear({inputs}, {units})`. How many products "
        "does one entry of the weight's gradient add up?", rows,
        "Every row uses the weight once, so the weight's gradient is a sum over the rows.", inputs,
        units, inputs * units))
