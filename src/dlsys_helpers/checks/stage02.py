"""Stage 2: laws and named wrong answers for backpropagation and autograd."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.checking import (
    Broken,
    exercise,
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
)

# 02.1 train_step ------------------------------------------------------------------------------

ex = exercise("02.1", "train_step")


@ex.cases
def cases(g):
    def one(name, rows, features, preset):
        def batch():
            return [torch.randn(rows, features, generator=g) + 0.5,
                    torch.randn(rows, 1, generator=g) * 2]
        return name, {"weight": torch.randn(1, features, generator=g),
                      "bias": torch.randn(1, generator=g) + 2, "lr": 0.05, "preset": preset,
                      "batches": [batch(), batch()]}
    return [one("two steps", 9, 3, False), one("gradients left over from before", 6, 4, True),
            one("one row", 1, 2, False)]


@ex.act
def act(fn, weight, bias, lr, preset, batches):
    model = nn.Linear(weight.shape[1], 1)
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.copy_(bias)
    if preset:
        for p in model.parameters():
            p.grad = torch.full_like(p, 3.0)
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    losses = [fn(model, opt, x, y) for x, y in batches]
    return {"losses": losses, "weight": model.weight, "bias": model.bias}


@ex.law
def law(out, weight, bias, lr, preset, batches):
    expect_parts(out, "losses", "weight", "bias")
    w, b, losses = weight.double(), bias.double(), []
    for x, y in batches:
        error = x.double() @ w.T + b - y.double()
        losses.append(float((error**2).mean()))
        w = w - lr * 2 * error.T @ x.double() / len(x)
        b = b - lr * 2 * error.mean()
    expect_close("weight after two steps", out["weight"], w.float(), rtol=1e-3, atol=1e-4)
    expect_close("bias after two steps", out["bias"], b.float(), rtol=1e-3, atol=1e-4)
    expect_length("losses", out["losses"], len(losses))
    for got, wanted in zip(out["losses"], losses, strict=True):
        expect_close("loss before the update", got, wanted, rtol=1e-3, atol=1e-6)


@ex.wrong("gradients never cleared", says="weight after")
def never_cleared(model, opt, x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()


@ex.wrong("gradients cleared between backward and step", says="weight after")
def cleared_too_late(model, opt, x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.zero_grad()
    opt.step()
    return loss.item()


@ex.wrong("gradients cleared at the end only", says="weight after")
def cleared_at_the_end(model, opt, x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    opt.zero_grad()
    return loss.item()


@ex.wrong("only the weight's gradient cleared", says="bias after")
def bias_piles_up(model, opt, x, y):
    model.weight.grad = None
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()


@ex.wrong("the loss after the update", says="loss before the update")
def loss_afterwards(model, opt, x, y):
    opt.zero_grad()
    F.mse_loss(model(x), y).backward()
    opt.step()
    return F.mse_loss(model(x), y).item()


@ex.wrong("the sum of the squared errors", says="weight after", trap="02.2")
def sum_of_squares(model, opt, x, y):
    opt.zero_grad()
    loss = F.mse_loss(model(x), y, reduction="sum")
    loss.backward()
    opt.step()
    return loss.item()


@ex.wrong("the loss as a tensor that keeps its graph", says="type of the loss", trap="02.5")
def loss_with_graph(model, opt, x, y):
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss


# 02.2 weighted_loss ---------------------------------------------------------------------------

ex = exercise("02.2", "weighted_loss")


@ex.cases
def cases(g):
    def one(name, rows, scale, zeros=0):
        weights = (torch.rand(rows, generator=g) + 0.2) * scale
        weights[:zeros] = 0.0
        return name, {"x": torch.randn(rows, 3, generator=g), "weights": weights,
                      "theta": torch.randn(3, generator=g) + 1}
    return [one("weights near one", 7, 1.0), one("large weights", 5, 40.0),
            one("some weights are zero", 9, 2.0, zeros=3), one("one row", 1, 3.0)]


@ex.act
def act(fn, x, weights, theta):
    theta = theta.clone().requires_grad_()
    out = fn((x @ theta) ** 2, weights)
    linked = isinstance(out, torch.Tensor) and out.dim() == 0 and out.requires_grad
    grad = torch.autograd.grad(out, theta)[0] if linked else None
    return {"value": out, "grad": grad}


@ex.law
def law(out, x, weights, theta):
    expect_parts(out, "value", "grad")
    shares = weights.double() / weights.double().sum()
    score = x.double() @ theta.double()
    expect_close("weighted mean", out["value"], (shares * score**2).sum().float(), rtol=1e-4)
    if out["grad"] is None:
        raise Broken("graph behind the result", "none", "one that leads to the losses",
                     "Stay in tensors that require gradients.")
    by_hand = 2 * (shares * score) @ x.double()
    expect_close("gradient through the result", out["grad"], by_hand.float(), rtol=1e-3, atol=1e-5)


@ex.wrong("the weighted sum", says="weighted mean")
def weighted_sum(losses, weights):
    return (weights * losses).sum()


@ex.wrong("divided by the number of rows", says="weighted mean")
def over_rows(losses, weights):
    return (weights * losses).mean()


@ex.wrong("the product of two means", says="weighted mean")
def product_of_means(losses, weights):
    return losses.mean() * weights.mean()


@ex.wrong("divided by the number of rows with a weight", says="weighted mean")
def over_counted_rows(losses, weights):
    return (weights * losses).sum() / (weights > 0).sum()


@ex.wrong("softmax of the weights as shares", says="weighted mean")
def softmax_shares(losses, weights):
    return (weights.softmax(0) * losses).sum()


@ex.wrong("losses without their graph", says="graph behind the result")
def detached(losses, weights):
    return (weights * losses.detach()).sum() / weights.sum()


@ex.wrong("one value per row, never summed", says="shape of the weighted mean")
def not_reduced(losses, weights):
    return weights * losses / weights.sum()


# 02.3 stop_grad -------------------------------------------------------------------------------

ex = exercise("02.3", "stop_grad")


@ex.cases
def cases(g):
    def one(name, shape, kind, dtype="float32"):
        return name, {"x": torch.randn(*shape, generator=g).to(getattr(torch, dtype)),
                      "kind": kind}
    return [one("the result of an operation", (5,), "result"),
            one("a parameter", (2, 3), "leaf"),
            one("a float16 result", (4, 2), "result", "float16"),
            one("a tensor without a graph", (3,), "plain")]


@ex.act
def act(fn, x, kind):
    leaf = x.clone().requires_grad_(kind != "plain")
    t = leaf.sigmoid() if kind == "result" else leaf
    loss = (t**2).sum()
    copied = fn(t)
    found = {"copy": copied.detach().clone(), "copy_requires": copied.requires_grad}
    with torch.no_grad():
        copied.zero_()
    found |= {"after": t.detach().clone(), "requires": t.requires_grad, "grad": None}
    if kind != "plain":
        try:
            found["grad"] = torch.autograd.grad(loss, leaf)[0]
        except RuntimeError:
            found["grad"] = None  # the way back is gone
    return found


@ex.law
def law(out, x, kind):
    expect_parts(out, "copy", "copy_requires", "after", "requires", "grad")
    value = torch.sigmoid(x) if kind == "result" else x
    expect_close("copy", out["copy"], value, rtol=1e-3, atol=0.0)
    expect_equal("requires_grad of the copy", out["copy_requires"], False)
    expect_close("t after an edit of the copy", out["after"], value, rtol=1e-3, atol=0.0,
                 look="The two share their memory.")
    expect_equal("requires_grad of t afterwards", out["requires"], kind != "plain",
                 "t belongs to the caller.")
    if kind == "plain":
        expect_equal("gradient of a tensor without a graph", out["grad"], None)
    elif out["grad"] is None:
        raise Broken("gradient through t", "none", "one as before the call",
                     "t belongs to the caller.")
    else:
        slope = value * (1 - value) if kind == "result" else torch.ones_like(x)
        expect_close("gradient through t", out["grad"], 2 * value * slope, rtol=5e-3, atol=1e-5)


@ex.wrong(".data", says="t after an edit")
def dot_data(t):
    return t.data


@ex.wrong("detach() without clone()", says="t after an edit")
def only_detach(t):
    return t.detach()


@ex.wrong("clone() without detach()", says="requires_grad of the copy")
def only_clone(t):
    return t.clone()


@ex.wrong("t itself, returned from a no_grad block", says="requires_grad of the copy")
def same_under_no_grad(t):
    with torch.no_grad():
        return t


@ex.wrong("detach_(), which cuts off the caller's tensor", says="requires_grad of t")
def cuts_the_caller(t):
    return t.detach_().clone()


@ex.wrong("a copy by way of Python numbers", says="dtype of the copy")
def through_numbers(t):
    return torch.tensor(t.tolist())


@ex.wrong("a copy that wants gradients of its own", says="requires_grad of the copy")
def new_leaf(t):
    return t.detach().clone().requires_grad_()


# 02.4 accum_step ------------------------------------------------------------------------------

ex = exercise("02.4", "accum_step")


@ex.cases
def cases(g):
    def one(name, sizes, features, classes, preset=False):
        batches = [[torch.randn(n, features, generator=g) * 3,
                    torch.randint(classes, (n,), generator=g)] for n in sizes]
        return name, {"weight": torch.randn(classes, features, generator=g),
                      "bias": torch.randn(classes, generator=g), "preset": preset,
                      "batches": batches, "lr": 0.1}
    return [one("a small last part", (6, 6, 2), 4, 3),
            one("gradients left over from before", (5, 1), 3, 4, preset=True),
            one("four parts of different sizes", (1, 7, 3, 9), 5, 3)]


@ex.act
def act(fn, weight, bias, preset, batches, lr):
    import weakref
    alive, held = weakref.WeakSet(), []

    class Kept:
        def __init__(self, tensor):
            self.tensor = tensor.detach()
            alive.add(self)

    model = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.copy_(bias)
    for p in model.parameters() if preset else ():
        p.grad = torch.full_like(p, 2.0)
    model.register_forward_pre_hook(lambda module, given: held.append(len(alive)))
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        loss = fn(model, opt, [(x, y) for x, y in batches])
    return {"loss": loss, "weight": model.weight, "bias": model.bias,
            "one_graph": not any(held)}


@ex.law
def law(out, weight, bias, preset, batches, lr):
    expect_parts(out, "loss", "weight", "bias", "one_graph")
    x = torch.cat([x for x, _ in batches]).double()
    y = torch.cat([y for _, y in batches])
    logits = x @ weight.double().T + bias.double()
    top = logits.max(1, keepdim=True).values
    logs = logits - top - (logits - top).exp().sum(1, keepdim=True).log()
    delta = (logs.exp() - F.one_hot(y, logits.shape[1])) / len(y)
    expect_close("weight after the step", out["weight"],
                 (weight.double() - lr * delta.T @ x).float(), rtol=1e-4, atol=1e-5)
    expect_close("bias after the step", out["bias"],
                 (bias.double() - lr * delta.sum(0)).float(), rtol=1e-4, atol=1e-5)
    mean = -sum(float(row[k]) for row, k in zip(logs, y.tolist(), strict=True)) / len(y)
    expect_close("mean loss over all rows", out["loss"], mean, rtol=1e-4, atol=1e-6)
    # Counted by the act's hooks, beside the learner's code: a result does not show its graphs.
    expect_equal("at most one graph alive at a time", out["one_graph"], True,
                 "Call backward for each part before the next forward pass.")


def part_loss(model, x, y):
    return F.cross_entropy(model(x), y)


@ex.wrong("divided by the number of parts", says="weight after")
def over_parts(model, opt, batches):
    opt.zero_grad()
    total = 0.0
    for x, y in batches:
        loss = part_loss(model, x, y) / len(batches)
        loss.backward()
        total += loss.item()
    opt.step()
    return total


def mean_loss(model, batches):
    with torch.no_grad():
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return part_loss(model, x, y).item()


@ex.wrong("not divided at all", says="weight after")
def undivided(model, opt, batches):
    mean = mean_loss(model, batches)
    opt.zero_grad()
    for x, y in batches:
        part_loss(model, x, y).backward()
    opt.step()
    return mean


@ex.wrong("a step after every part", says="weight after")
def step_each(model, opt, batches):
    mean, rows = mean_loss(model, batches), sum(len(y) for _, y in batches)
    for x, y in batches:
        opt.zero_grad()
        (part_loss(model, x, y) * len(y) / rows).backward()
        opt.step()
    return mean


@ex.wrong("each part's gradient clipped", says="weight after", trap="03.3")
def clip_each(model, opt, batches):
    mean, rows = mean_loss(model, batches), sum(len(y) for _, y in batches)
    opt.zero_grad()
    for x, y in batches:
        (part_loss(model, x, y) * len(y) / rows).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step()
    return mean


@ex.wrong("gradients added to those left over from before", says="weight after", trap="02.1")
def keeps_old(model, opt, batches):
    mean, rows = mean_loss(model, batches), sum(len(y) for _, y in batches)
    for x, y in batches:
        (part_loss(model, x, y) * len(y) / rows).backward()
    opt.step()
    return mean


@ex.wrong("one backward for all parts together", says="one graph alive", trap="02.5")
def one_backward(model, opt, batches):
    rows = sum(len(y) for _, y in batches)
    opt.zero_grad()
    loss = sum(part_loss(model, x, y) * (len(y) / rows) for x, y in batches)
    loss.backward()
    opt.step()
    return loss.item()


@ex.wrong("the loss of the last part", says="mean loss over all rows")
def last_loss(model, opt, batches):
    rows = sum(len(y) for _, y in batches)
    opt.zero_grad()
    for x, y in batches:
        loss = part_loss(model, x, y)
        (loss * len(y) / rows).backward()
    opt.step()
    return loss.item()


# 02.5 evaluate --------------------------------------------------------------------------------

ex = exercise("02.5", "evaluate")


@ex.cases
def cases(g):
    def one(name, sizes, training):
        def batch(n):
            return [torch.randn(n, 4, generator=g), torch.randint(3, (n,), generator=g)]
        first = batch(sizes[0])
        return name, {"first": torch.randn(8, 4, generator=g),
                      "second": torch.randn(3, 8, generator=g) * 2, "training": training,
                      "batches": [first, *map(batch, sizes[1:])]}
    return [one("a small last batch", (7, 7, 1), True), one("a model in eval mode", (5, 2), False),
            one("batches of three sizes", (11, 4, 2), True)]


@ex.act
def act(fn, first, second, training, batches):
    kept = []

    def pack(tensor):
        kept.append(1)
        return tensor

    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Dropout(0.5),
                          nn.Linear(8, 3, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(first)
        model[3].weight.copy_(second)
    model.train(training)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = fn(model, [(x, y) for x, y in batches])
    return {"result": result, "graph": bool(kept), "modes": [m.training for m in model.modules()]}


@ex.law
def law(out, first, second, training, batches):
    expect_parts(out, "result", "graph", "modes")
    x = torch.cat([x for x, _ in batches]).double()
    y = torch.cat([y for _, y in batches])
    logits = (x @ first.double().T).clamp(min=0) @ second.double().T
    chosen = logits[torch.arange(len(y)), y]
    loss = float(((logits.exp().sum(1)).log() - chosen).mean())
    right = sum(max(range(3), key=row.__getitem__) == k
                for row, k in zip(logits.tolist(), y.tolist(), strict=True))
    expect_type("result", out["result"], tuple)
    expect_equal("number of results", len(out["result"]), 2)
    expect_close("mean cross-entropy", out["result"][0], loss, rtol=1e-4, atol=1e-6)
    expect_close("accuracy", out["result"][1], right / len(y), rtol=1e-5, atol=1e-6)
    # What was kept and the flags are seen by the act alone, beside the learner's code.
    expect_equal("whether tensors were kept for a backward", out["graph"], False,
                 "Switch the graph off while you measure.")
    # nn.Sequential and its four layers all came in one mode.
    expect_equal("training flags of the model afterwards", out["modes"], [training] * 5)


def totals(model, batches):
    """Sum of the losses and number of right rows, as the model is set up now."""
    loss, right = 0.0, 0
    for x, y in batches:
        logits = model(x)
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        right += int((logits.argmax(1) == y).sum())
    return loss, right


def count(batches):
    return sum(len(y) for _, y in batches)


@ex.wrong("the mean of the batch means", says="mean cross-entropy")
@torch.no_grad()
def mean_of_means(model, batches):
    was = model.training
    model.eval()
    pairs = [[value / len(part[1]) for value in totals(model, [part])] for part in batches]
    model.train(was)
    loss, right = (sum(values) / len(batches) for values in zip(*pairs, strict=True))
    return loss, right


@ex.wrong("dropout left on", says="mean cross-entropy", trap="01.1")
@torch.no_grad()
def dropout_on(model, batches):
    loss, right = totals(model, batches)
    return loss / count(batches), right / count(batches)


@ex.wrong("eval mode that is never left again", says="training flags", trap="01.1")
@torch.no_grad()
def stays_in_eval(model, batches):
    loss, right = totals(model.eval(), batches)
    return loss / count(batches), right / count(batches)


@ex.wrong("train() at the end, whatever the mode was", says="training flags", trap="01.1")
@torch.no_grad()
def always_train(model, batches):
    loss, right = totals(model.eval(), batches)
    model.train()
    return loss / count(batches), right / count(batches)


@ex.wrong("eval mode without no_grad", says="kept for a backward")
def builds_graphs(model, batches):
    was = model.training
    loss, right = totals(model.eval(), batches)
    model.train(was)
    return loss / count(batches), right / count(batches)


@ex.wrong("tensors instead of floats", says="type of the mean cross-entropy")
@torch.no_grad()
def as_tensors(model, batches):
    was = model.training
    loss, right = totals(model.eval(), batches)
    model.train(was)
    return torch.tensor(loss / count(batches)), torch.tensor(right / count(batches))


@ex.wrong("sums that are never divided", says="mean cross-entropy")
@torch.no_grad()
def undivided_sums(model, batches):
    was = model.training
    loss, right = totals(model.eval(), batches)
    model.train(was)
    return loss, float(right)


# 02.6 gradients -------------------------------------------------------------------------------

ex = exercise("02.6", "gradients")

# A program is a list of operations on earlier numbers, the leaves first: ["mul", 0, 1] multiplies
# the first two leaves and appends the product.
CHAIN, RUNGS = 3000, 12


def random_program(g, leaves, length):
    """Operations on random earlier numbers; the last number depends on many of them."""
    program = []
    for k in range(leaves, leaves + length):
        kind = ("add", "mul", "tanh")[int(torch.randint(3, (), generator=g))]
        i, j = (int(torch.randint(max(0, k - 6), k, (), generator=g)) for _ in range(2))
        program.append([kind, i, j])
    return program


@ex.cases
def cases(g):
    def one(name, leaves, program):
        values = torch.rand(leaves, generator=g) * 0.5 + 0.3
        return name, {"leaves": values.tolist(), "program": program}
    # Leaves w, x, b are 0, 1, 2; a = w * x is 3.
    branch = [["mul", 0, 1], ["add", 3, 2], ["tanh", 4, 4]]
    return [one("a value used twice, early use first", 3, [*branch, ["add", 3, 5]]),
            one("a value used twice, late use first", 3, [*branch, ["add", 5, 3]]),
            one("a value times itself", 2, [["add", 0, 1], ["mul", 2, 2], ["tanh", 3, 3]]),
            one("an input that does not matter", 3, [["mul", 0, 2], ["add", 3, 0]]),
            one("many paths", 1, [["add", k, k] for k in range(RUNGS)]),
            one("a random program", 4, random_program(g, 4, 20)),
            one("a long chain", 2, [["add", k if k else 0, 1] for k in (0, *range(2, CHAIN))])]


@ex.act
def act(fn, leaves, program):
    reads = []

    class Node:
        def __init__(self, value, parents=()):
            self.value, self._parents = value, list(parents)

        @property
        def parents(self):
            reads.append(1)
            return list(self._parents)

    nodes = [Node(value) for value in leaves]
    for kind, i, j in program:
        a, b = nodes[i], nodes[j]
        if kind == "add":
            nodes.append(Node(a.value + b.value, [(a, 1.0), (b, 1.0)]))
        elif kind == "mul":
            nodes.append(Node(a.value * b.value, [(a, b.value), (b, a.value)]))
        else:
            t = math.tanh(a.value)
            nodes.append(Node(t, [(a, 1 - t * t)]))
    grads, too_deep = None, False
    try:
        grads = fn(nodes[-1], nodes[:len(leaves)])
    except RecursionError:
        too_deep = True
    return {"grads": grads, "too_deep": too_deep, "few_reads": len(reads) <= 10 * len(nodes)}


def run_program(leaves, program):
    """The last number of a program."""
    numbers = list(leaves)
    for kind, i, j in program:
        a, b = numbers[i], numbers[j]
        numbers.append(math.tanh(a) if kind == "tanh" else a + b if kind == "add" else a * b)
    return numbers[-1]


def central_difference(leaves, program, place, step=1e-5):
    """Slope of the last number by one leaf."""
    ends = []
    for move in (step, -step):
        moved = list(leaves)
        moved[place] += move
        ends.append(run_program(moved, program))
    return (ends[0] - ends[1]) / (2 * step)


@ex.law
def law(out, leaves, program):
    expect_parts(out, "grads", "too_deep", "few_reads")
    if out["too_deep"] is not False:
        raise Broken("answer for a chain of thousands of nodes", "RecursionError", "gradients",
                     "Keep the nodes still to do in a list.")
    expect_type("result", out["grads"], list)
    expect_length("gradients", out["grads"], len(leaves), "Every input gets one, in order.")
    for k, got in enumerate(out["grads"]):
        wanted = central_difference(leaves, program, k)
        expect_close(f"gradient of input {k}", got, wanted, rtol=1e-4, atol=1e-6,
                     look="Compared with finite differences.")
    # Counted by the nodes, beside the learner's code: gradients do not show how often.
    expect_equal("few reads of node.parents", out["few_reads"], True,
                 "Each node reports once, not once per path.")


def as_reached(out, take):
    """Gradients when each node reports as soon as it is taken from the list of those reached."""
    grad, todo = {out: 1.0}, [out]
    while todo:
        node = todo.pop(take)
        for parent, slope in node.parents:
            if parent not in grad:
                grad[parent] = 0.0
                todo.append(parent)
            grad[parent] += slope * grad[node]
    return grad


@ex.wrong("a queue: each node reports as soon as it is reached", says="finite differences")
def by_queue(out, inputs):
    grad = as_reached(out, 0)
    return [grad.get(node, 0.0) for node in inputs]


@ex.wrong("a stack: each node reports as soon as it is reached", says="finite differences")
def by_stack(out, inputs):
    grad = as_reached(out, -1)
    return [grad.get(node, 0.0) for node in inputs]


def in_order(out, edges):
    """Nodes such that each stands before its parents, without recursion."""
    uses, todo, order = {out: 0}, [out], []
    parents = {}
    while todo:
        node = todo.pop()
        parents[node] = edges(node)
        for parent, _ in parents[node]:
            if parent not in uses:
                uses[parent] = 0
                todo.append(parent)
            uses[parent] += 1
    ready = [out]
    while ready:
        order.append(ready.pop())
        for parent, _ in parents[order[-1]]:
            uses[parent] -= 1
            if not uses[parent]:
                ready.append(parent)
    return order, parents


def sweep(out, edges, merge):
    order, parents = in_order(out, edges)
    grad = {out: 1.0}
    for node in order:
        for parent, slope in parents[node]:
            grad[parent] = merge(grad.get(parent, 0.0), slope * grad[node])
    return grad


@ex.wrong("the last share in place of the sum", says="finite differences")
def overwrites(out, inputs):
    grad = sweep(out, lambda node: node.parents, lambda old, new: new)
    return [grad.get(node, 0.0) for node in inputs]


@ex.wrong("a parent that stands twice counted once", says="finite differences")
def once_per_parent(out, inputs):
    grad = sweep(out, lambda node: list(dict(node.parents).items()), lambda old, new: old + new)
    return [grad.get(node, 0.0) for node in inputs]


@ex.wrong("inputs that do not matter left out", says="number of gradients")
def only_reached(out, inputs):
    grad = sweep(out, lambda node: node.parents, lambda old, new: old + new)
    return [grad[node] for node in inputs if node in grad]


@ex.wrong("one walk for every path", says="few reads")
def every_path(out, inputs):
    grad, todo = {}, [(out, 1.0)]
    while todo:
        node, share = todo.pop()
        grad[node] = grad.get(node, 0.0) + share
        todo += [(parent, share * slope) for parent, slope in node.parents]
    return [grad.get(node, 0.0) for node in inputs]


@ex.wrong("a function that calls itself for every parent", says="RecursionError")
def recursive(out, inputs):
    order = {}

    def visit(node):
        if node not in order:
            order[node] = None
            for parent, _ in node.parents:
                visit(parent)
            order[node] = order.pop(node)
    visit(out)
    grad = {out: 1.0}
    for node in reversed(order):
        for parent, slope in node.parents:
            grad[parent] = grad.get(parent, 0.0) + slope * grad[node]
    return [grad.get(node, 0.0) for node in inputs]
