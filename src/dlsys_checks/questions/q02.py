"""Stage 2: what is added up, kept, shared, and read in which order, in the backward pass."""

import math

import torch
from torch import nn

from dlsys_checks.questions import asks, choice, number, whole
from dlsys_helpers.measure import saved_bytes

# ---- 02.1 Gradients that pile up


@asks("02.1")
def equal_batches(rng):
    calls, norm = rng.randint(3, 9), rng.randint(2, 40)
    w = torch.zeros(1, requires_grad=True)
    for _ in range(calls):
        (w * norm).sum().backward()
    return number(
        f"One batch gives a gradient of norm {norm}. You call `backward` on it {calls} times, "
        "without `zero_grad` and without a step. Which norm does `.grad` have?",
        w.grad.norm().item(), "backward adds to .grad.", norm)


@asks("02.1")
def falling_with_a_running_sum(rng):
    steps, g, lr = rng.randint(4, 12), rng.randint(2, 9), rng.choice([0.01, 0.1, 0.2])
    return number(
        f"The gradient is {g} at every step. You never call `zero_grad`. How far does SGD at rate "
        f"{lr} move the weight in {steps} steps?", _moved(steps, g, lr, clear_every=None),
        "Step k uses the sum of k gradients: momentum 1.", lr * g * steps, lr * g)


@asks("02.1")
def cleared_every_other_step(rng):
    pairs, g, lr = rng.randint(2, 9), rng.randint(2, 9), rng.choice([0.01, 0.1, 0.2])
    return number(
        f"The gradient is {g} at every step. `zero_grad` is called only before steps 1, 3, 5, ... "
        f"How far does SGD at rate {lr} move the weight in {2 * pairs} steps?",
        _moved(2 * pairs, g, lr, clear_every=2),
        "Every second step uses the sum of two gradients.", lr * g * 2 * pairs,
        lr * g * pairs)


def _moved(steps, g, lr, clear_every):
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = torch.optim.SGD([w], lr=lr)
    for k in range(steps):
        if clear_every and k % clear_every == 0:
            opt.zero_grad()
        (-g * w).sum().backward()
        opt.step()
    return w.item()


@asks("02.1")
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
        f"The loss is {a} w²/2 (gradient {a} w), w starts at {w0}, SGD at rate {lr}, and nobody "
        "calls `zero_grad`. Where is w after two steps?", ends[False],
        "The second step repeats the first gradient on top of its own.", ends[True], w0)


# ---- 02.2 Backward on a vector

@asks("02.2")
def ones_mean_the_sum(rng):
    rows, norm = rng.choice([8, 16, 32, 48, 64, 128]), rng.choice([0.5, 1.5, 2, 3])
    return number(
        f"The mean loss of {rows} rows has a gradient of norm {norm}. Which norm does "
        f"`losses.backward(torch.ones({rows}))` leave in a cleared `.grad`?",
        norm * _gradient(torch.ones(rows)), "Ones let every row count in full: the sum.",
        norm, norm / rows)


def _gradient(vector):
    """Gradient of rows with loss w each, weighted by vector."""
    w = torch.ones(1, dtype=torch.float64, requires_grad=True)
    w.expand(len(vector)).backward(vector.double())
    return w.grad.item()


@asks("02.2")
def rate_in_effect(rng):
    rows, lr = rng.choice([8, 16, 32, 48, 64, 128]), rng.choice([0.01, 0.05, 0.1, 0.5])
    return number(
        f"A rate of {lr} was tuned for the mean loss of {rows} rows. Now the same loop calls "
        f"`losses.backward(torch.ones({rows}))`. With the mean, which rate would do the same to "
        "SGD?", lr * _gradient(torch.ones(rows)), "The sum is the mean times the rows.",
        lr, lr / rows)


@asks("02.2")
def weighted_mean(rng):
    losses = rng.sample(range(1, 12), 3)
    weights = [rng.randint(2, 4), rng.randint(5, 7), 0]
    w, each = torch.tensor(weights).double(), torch.tensor(losses).double()
    return number(
        f"Losses {losses}, weights {weights}. What is the weighted mean, as `cross_entropy` with "
        "class weights takes it?", ((w * each).sum() / w.sum()).item(),
        "The weights are divided by their own sum, not by the number of rows.",
        (w * each).mean().item(), (w * each).sum().item())


@asks("02.2")
def share_of_a_row(rng):
    weights = [rng.randint(2, 9) for _ in range(4)]
    w = torch.tensor(weights).double()
    losses = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    ((2 * w * losses).sum() / (2 * w).sum()).backward()
    return number(
        f"A weighted mean over four rows with weights {weights}; then every weight is doubled. "
        "What is its gradient by the first row's loss?", losses.grad[0].item(),
        "A row counts by its share of the weights; a common factor cancels.",
        2 * weights[0], 2 * weights[0] / 4)


# ---- 02.3 A copy that was none

@asks("02.3")
def sigmoid_overwritten(rng):
    x, v = rng.choice([1.0, 1.5, 2.0, 2.5]), rng.choice([0.2, 0.4, 0.5])
    t = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y = torch.sigmoid(t)
    true, = torch.autograd.grad(y, t, retain_graph=True)
    y.data.fill_(v)
    y.backward()
    return number(
        f"`y = torch.sigmoid(x)` for x = {x}, then `y.data.fill_({v})`, then `y.backward()`. Which "
        "gradient does x get?", t.grad.item(),
        "Sigmoid kept its result, y, for the slope y(1 - y), and you overwrote it.",
        true.item(), 0)


@asks("02.3")
def exp_overwritten(rng):
    x, k = rng.choice([0.5, 1.0, 1.5, 2.0]), rng.randint(2, 9)
    t = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y = t.exp()
    y.data.mul_(k)
    y.backward()
    return number(
        f"`y = x.exp()` for x = {x}, then `y.data.mul_({k})`, then `y.backward()`. Which gradient "
        "does x get?", t.grad.item(), "exp kept its result for the slope, and .data hid the edit.",
        math.exp(x), 1)


@asks("02.3")
def product_untouched(rng):
    c, x = rng.randint(2, 30), rng.randint(2, 9)
    t = torch.tensor(float(x), requires_grad=True)
    y = c * t
    y.data.zero_()
    y.backward()
    return number(
        f"`y = {c} * x` for x = {x}, then `y.data.zero_()`, then `y.backward()`. Which gradient "
        "does x get?", t.grad.item(),
        f"Multiplying by a number does not keep its result: the slope is {c} all the same.", 0)


@asks("02.3")
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
        f"y holds {value}s. Each of these results is edited with `zero_()`: {', '.join(chosen)}. "
        f"After how many of the five does y still hold {value}s?", safe,
        "detach, .data and views share y's memory; only clone or arithmetic makes a copy.", 5)


# ---- 02.4 Four small batches are not one big batch

@asks("02.4")
def undivided(rng):
    parts, rows, norm = rng.randint(3, 12), rng.choice([4, 8, 16]), rng.choice([0.5, 2, 3])
    w = torch.ones(1, dtype=torch.float64, requires_grad=True)
    for _ in range(parts):
        (norm * w.expand(rows)).mean().backward()
    return number(
        f"A batch of {parts * rows} equal rows has a mean loss with a gradient of norm {norm}. You "
        f"call `backward` on the mean of each of {parts} micro-batches of {rows} and divide by "
        "nothing. Which norm piles up?", w.grad.item(),
        "Each mean is a full gradient; the parts add up.", norm, norm / parts)


@asks("02.4")
def row_of_a_small_part(rng):
    size, last, parts = rng.choice([8, 16, 32, 64]), rng.choice([1, 2, 3, 5]), rng.randint(3, 8)
    return number(
        f"{parts} micro-batches: all of {size} rows, but the last has {last}. Each mean loss is "
        f"divided by {parts}. How many times as much as another row does a row of the last count?",
        (1 / last / parts) / (1 / size / parts),
        "A mean over few rows gives each a larger share; weigh by rows.", 1, last / size)


@asks("02.4")
def mean_of_all_rows(rng):
    big, small = rng.choice([24, 32, 48]), rng.choice([2, 4, 6])
    a, b = rng.randint(10, 19) / 10, rng.randint(40, 90) / 10
    return number(
        f"Two micro-batches: {big} rows with mean loss {a}, {small} rows with mean loss {b}. What "
        "is the loss of the whole batch?", (big * a + small * b) / (big + small),
        "Each part counts by its share of the rows.", (a + b) / 2, a + b)


@asks("02.4")
def adam_does_not_notice(rng):
    parts, lr, g = rng.randint(2, 16), rng.choice([0.001, 0.003, 0.01, 0.05]), rng.randint(2, 20)
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = torch.optim.Adam([w], lr=lr)
    for _ in range(parts):
        (g * w).sum().backward()
    opt.step()
    return number(
        f"{parts} equal micro-batches, each with gradient {g}, added up without dividing. How far "
        f"does the first step of Adam at rate {lr} move the weight?", abs(w.item()),
        "Adam divides by the gradient's own size, so a constant factor cancels.",
        parts * lr, parts * lr * g)


# ---- 02.5 The evaluation that remembers everything

def _kept_mb(layers, rows, width):
    """MB that one graph keeps: a ReLU's result for each layer, measured on one layer."""
    x = torch.zeros(rows, width, requires_grad=True)
    return layers * saved_bytes(x.relu) / 1e6


@asks("02.5")
def total_of_tensors(rng):
    layers, rows, width = rng.choice([10, 20, 40]), rng.choice([100, 250, 500]), 1000
    batches = rng.randint(3, 20)
    one = _kept_mb(layers, rows, width)
    return number(
        f"A net keeps the float32 results of {layers} ReLUs, {rows} rows of {width:,} numbers "
        f"each. An evaluation runs `total = total + loss` over {batches} batches in eval mode. How "
        "many MB do the graphs hold at the end (1 MB = 1e6 bytes)?", batches * one,
        "total has a graph, so it keeps every batch's; eval() is about layers.", one, 0)


@asks("02.5")
def total_of_numbers(rng):
    layers, rows, width = rng.choice([10, 20, 40]), rng.choice([100, 250, 500]), 1000
    batches = rng.randint(3, 20)
    one = _kept_mb(layers, rows, width)
    return number(
        f"A net keeps the float32 results of {layers} ReLUs, {rows} rows of {width:,} numbers "
        f"each. An evaluation of {batches} batches adds up `loss.item()` in eval mode, without "
        "`no_grad`. How many MB does a graph hold at the most (1 MB = 1e6 bytes)?", one,
        "item() lets each graph go, after it was built for nothing.", batches * one, 0)


@asks("02.5")
def accuracy_of_parts(rng):
    big, small = rng.choice([60, 80, 100]), rng.choice([2, 4, 5])
    right, few = rng.randint(big * 8 // 10, big - 5), rng.randint(0, 1)
    return number(
        f"Two batches: {right} of {big} rows right, then {few} of {small}. What is the accuracy "
        "over all rows?", (right + few) / (big + small),
        "The mean is taken over rows; a mean of means counts the small batch as much.",
        (right / big + few / small) / 2, within=0.01)


@asks("02.5")
def what_is_kept(rng):
    rows, width, depth = rng.choice([32, 64]), rng.choice([50, 100]), rng.randint(3, 9)
    x = torch.zeros(rows, width, requires_grad=True)

    def forward():
        y = x
        for _ in range(depth):
            y = y.relu()
        return y

    with torch.no_grad():
        unkept = saved_bytes(forward)
    return choice(
        f"{depth} ReLUs in a row on {rows} x {width} float32 numbers that require gradients, in "
        "eval mode and under `torch.no_grad()`. How many bytes are kept for a backward pass?",
        unkept, "Under no_grad no graph is built; eval mode alone would keep every ReLU's result.",
        saved_bytes(forward), rows * width * 4, depth * 4)


# ---- 02.6 The node that reports too early

@asks("02.6")
def value_used_twice(rng):
    w, x, b = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9)
    leaf = torch.tensor(float(w), requires_grad=True)
    a = leaf * x
    (a + a * b).backward()
    return number(
        f"a = w x and L = a + a b, with w = {w}, x = {x}, b = {b}. What is dL/dw?",
        leaf.grad.item(), "Both uses of a report before a hands on: (1 + b) x.", x, x * b)


@asks("02.6")
def paths_of_a_ladder(rng):
    rungs = rng.randint(4, 14)
    paths, nodes = 1, 1
    for _ in range(rungs):
        paths, nodes = 2 * paths, nodes + 1
    return whole(
        f"`v = v + v`, {rungs} times in a row. How many paths lead from the last v to the first?",
        paths, "Each value that is used twice doubles the paths.", nodes, 2 * rungs)


@asks("02.6")
def reports_of_a_ladder(rng):
    rungs = rng.randint(5, 40)
    v = torch.ones(1, dtype=torch.float64, requires_grad=True)
    for _ in range(rungs):
        v = v + v
    seen, todo = set(), [v.grad_fn]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += [parent for parent, _ in node.next_functions]
    return whole(
        f"`v = v + v`, {rungs} times in a row. In a right backward pass, how often does a node "
        "report, over all nodes (the first v included)?", len(seen),
        "A node waits until all its uses have reported, then reports once.", 2**rungs, 2 * rungs)


@asks("02.6")
def parent_that_stands_twice(rng):
    p, q = rng.sample(range(2, 12), 2)
    s = rng.randint(2, 9)
    a = torch.tensor(1.0, requires_grad=True)
    (p * (s * a) + q * (s * a)).backward()
    return number(
        f"A node `out` has the parents [(m, {p}), (m, {q})], and m has [(a, {s})]; the second "
        "number of a pair is the slope. What is d out / d a?", a.grad.item(),
        "The slopes of a parent that stands twice add up before it reports.", p * s, q * s)
