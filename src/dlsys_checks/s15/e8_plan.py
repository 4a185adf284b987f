"""Exercise 15.8, `plan`."""

from __future__ import annotations

import math
from fractions import Fraction

import torch

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_length, expect_type
from dlsys_helpers.judging import not_an_answer

PARTS = ("state", "activations", "logits", "seconds", "mfu")

ex = exercise("15.8", "plan", seen=("model", "machine", "splits"), says="split")

ex.promise_table("""
two         | Compute (rows, best). | type of the result; parts of the result
model       | layer = micro * (whole + cut / tp). | activations
given       | model: weights, layers, batch; per sequence whole, cut, input and logits in bytes,
              work and again in operations. | activations; logits; seconds; mfu
machine     | machine: memory, speed, peak, alpha, beta. | seconds; mfu; best
split       | splits: dicts of dp, tp, pp, zero (0, 1 or 3), checkpoint (bool), micro. | state;
              activations; logits; seconds
small       | n = dp * tp * pp, m = batch / dp / micro, own = weights / tp / pp, deep = layers / pp,
              | activations; seconds
rows        | rows has one dict of 5 costs for each split. | type of; number of; parts of a row
state       | state: 16 * own. dp divides 12 of the 16 with zero 1, all 16 with zero 3. | state
activations | activations: min(m, pp) * deep * layer. | activations
inputs      | With checkpoint: min(m, pp) * deep * micro * input + layer. | activations
logits      | logits: micro * logits / tp. | logits
products    | seconds: (batch * (work + checkpoint * again) / n / speed + sums) * (1 + (pp - 1) / m)
              + sends. | seconds
ring        | half(r, b) = (r - 1) * (alpha + b / r / beta). | seconds
tensor      | sums = m * deep * (8 + 2 * checkpoint) * half(tp, micro * input). | seconds
copies      | sends = (3 * m with zero 3, else 2) * half(dp, 2 * own). | seconds
mfu         | mfu: batch * work / seconds / n / peak. | mfu
best        | best: the index of the fastest row that fits in memory, or None; no ties. | best
left        | All divisions come out even. Inputs are not changed. | inputs after the call
example     | Example: 10 weights, dp 2, tp 1, pp 1, zero 1: state 100. | case the example
""")


def held(model, split):
    """Bytes of state, activations and logits, as exact fractions, part by part."""
    dp, tp, pp, zero = (split[key] for key in ("dp", "tp", "pp", "zero"))
    first = split["batch_of_copy"] // split["micro"]      # micro-batches of a copy
    per_weight = Fraction(0)
    for size, shared_from in ((2, 3), (2, 3), (12, 1)):
        per_weight += Fraction(size, dp if zero >= shared_from else 1)
    one_layer = split["micro"] * (model["whole"] + Fraction(model["cut"], tp))
    flying, layers = min(first, pp), model["layers"] // pp
    if split["checkpoint"]:
        kept = flying * layers * split["micro"] * model["input"] + one_layer
    else:
        kept = sum([one_layer] * (flying * layers))
    return (per_weight * Fraction(model["weights"], tp * pp), kept,
            Fraction(split["micro"] * model["logits"], tp))


def duration(model, machine, split):
    """Seconds of a step, as slots of a pipeline and steps of rings."""
    dp, tp, pp = (split[key] for key in ("dp", "tp", "pp"))
    m = split["batch_of_copy"] // split["micro"]

    def steps(n, size, number):           # so many steps, each of a piece
        return number * (machine["alpha"] + size / (n * machine["beta"]))

    work = model["work"] + model["again"] * split["checkpoint"]
    slot = split["micro"] * work / (tp * pp) / machine["speed"]
    rings = (5 if split["checkpoint"] else 4) * (model["layers"] // pp)
    slot += steps(tp, split["micro"] * model["input"], rings * 2 * (tp - 1))
    halves = 3 * m if split["zero"] == 3 else 2
    mine = 2 * model["weights"] / (tp * pp)
    return (m + pp - 1) * slot + steps(dp, mine, halves * (dp - 1))


def truth(model, machine, splits):
    """Rows by another route, and the places of what fits, fastest first."""
    rows = []
    for split in splits:
        split = {**split, "batch_of_copy": model["batch"] // split["dp"]}
        seconds = duration(model, machine, split)
        gpus = split["dp"] * split["tp"] * split["pp"]
        rows.append([*held(model, split), seconds,
                     model["batch"] * model["work"] / seconds / gpus / machine["peak"]])
    fits = [k for k, row in enumerate(rows) if sum(row[:3]) <= machine["memory"]]
    return rows, sorted(fits, key=lambda k: rows[k][3])


def clear(model, machine, splits):
    """Whether the fastest that fits is 5 % faster than the next, and nothing fits by a hair."""
    rows, fits = truth(model, machine, splits)
    close = [row for row in rows if 0 < abs(sum(row[:3]) / machine["memory"] - 1) < 0.02]
    return not close and (len(fits) < 2 or rows[fits[1]][3] > 1.05 * rows[fits[0]][3])


@ex.cases
def cases(g):
    between, whole = floats(g), integers(g)

    def split(dp, tp, pp, zero=0, checkpoint=False, micro=1):
        return {"dp": dp, "tp": tp, "pp": pp, "zero": zero, "checkpoint": checkpoint,
                "micro": micro}

    def model(layers, batch, scale=1.0):
        width = whole(4, 20) * 256
        return {"weights": layers * 12 * width * width, "layers": layers, "batch": batch,
                "whole": 1440 * width * whole(2, 7), "cut": 1440 * width * whole(20, 60),
                "input": 1440 * width, "logits": 1440 * whole(20, 300) * 1000,
                "work": int(scale * layers * width * width * between(2e4, 9e4)),
                "again": int(scale * layers * width * width * between(6e3, 9e3))}

    def machine(alpha=5e-6, beta=4e11, **chosen):
        speed = between(1e14, 6e14)
        return {"memory": 8e10, "speed": speed, "peak": speed * between(1.5, 2.5),
                "alpha": alpha * between(0.5, 2), "beta": beta * between(0.5, 2), **chosen}

    wide = [split(8, 1, 1), split(8, 1, 1, 1), split(8, 1, 1, 3, micro=2),
            split(8, 1, 1, 1, True, 2), split(4, 2, 1, 1), split(4, 1, 2, 1, micro=2),
            split(2, 2, 2, 1), split(2, 4, 1, 1, True, 4), split(1, 8, 1, micro=2),
            split(1, 1, 8, checkpoint=True), split(1, 2, 4, micro=4), split(2, 1, 4, 3, True)]

    def some(name, splits, layers=24, batch=64, room=None, scale=1.0, **links):
        """A model and a machine such that the answer is clear; room picks how much memory."""
        while True:
            m, card = model(layers, batch, scale), machine(**links)
            rows, _ = truth(m, card, splits)
            sizes = sorted(math.ceil(sum(row[:3])) for row in rows)
            card["memory"] = room(sizes)
            if clear(m, card, splits):
                return name, {"model": m, "machine": card, "splits": [dict(s) for s in splits]}

    def middle(sizes):
        return sizes[len(sizes) // 2] * 1.05

    def shuffled(splits):
        return [splits[k] for k in torch.randperm(len(splits), generator=g).tolist()]

    fitted = some("fits to the last byte", [split(2, 1, 1, 1), split(1, 1, 2, micro=4)],
                  room=lambda sizes: sizes[1])
    sure = fitted[1]
    rows = truth(**sure)[0]
    quick = min((0, 1), key=lambda k: rows[k][3])
    sure["machine"]["memory"] = int(sum(rows[quick][:3]))
    # The faster one fits but for half of its logits.
    tight = some("too large by its logits", [split(8, 1, 1, 1), split(8, 1, 1, 1, True)],
                 room=lambda sizes: 2 * sizes[-1])
    row = truth(**tight[1])[0][0]
    tight[1]["machine"]["memory"] = int(row[0] + row[1] + row[2] / 2)
    example = {"model": {"weights": 10, "layers": 1, "batch": 4, "whole": 8, "cut": 40, "input": 4,
                         "logits": 20, "work": 600, "again": 150},
               "machine": {"memory": 1000, "speed": 300.0, "peak": 600.0, "alpha": 0.125,
                           "beta": 64.0}, "splits": [split(2, 1, 1, 1)]}
    return [some("copies without ZeRO", [split(4, 1, 1)], room=lambda s: s[0] * 2),
            ("the example", example), fitted, tight,
            some("eight GPUs", wide, room=middle),
            some("eight GPUs, in another order", shuffled(wide), room=middle),
            some("slow links", shuffled(wide), room=middle, beta=1e10),
            some("long latency", shuffled(wide), room=lambda s: s[-1] * 2, alpha=2e-3, scale=0.1),
            some("all fit", shuffled(wide), room=lambda s: s[-1] * 2),
            some("none fits", shuffled(wide), room=lambda s: s[0] * 0.9),
            some("few fit", shuffled(wide), room=lambda s: s[0] * 1.03),
            some("fewer micro-batches than stages", [split(1, 1, 8, micro=4), split(2, 1, 4, 1,
                 micro=4), split(1, 2, 4, 0, True, 8), split(1, 1, 1, micro=8)], batch=8,
                 room=lambda s: s[-1] * 2),
            some("only copies", [split(8, 1, 1), split(8, 1, 1, 1, micro=2), split(8, 1, 1, 3),
                                  split(8, 1, 1, 3, True, micro=4)], room=middle),
            some("only tensor ranks", [split(1, 8, 1), split(1, 4, 1, micro=2),
                                  split(1, 8, 1, 0, True)], room=middle),
            some("only stages", [split(1, 1, 8), split(1, 1, 4, micro=2),
                                  split(1, 1, 8, 0, True, 2)], room=middle),
            some("three and five ranks", [split(3, 1, 5, 1), split(5, 3, 1, 1, True, 3),
                                          split(1, 5, 3, micro=5), split(15, 1, 1, 3)],
                 layers=30, batch=225, room=middle),
            some("sixty-four GPUs", [split(64, 1, 1, 3), split(16, 4, 1, 1),
                                     split(8, 8, 1, 1, True), split(8, 2, 4, 1),
                                     split(4, 4, 4, 3, True)],
                 batch=256, layers=32, room=middle),
            some("one GPU", [split(1, 1, 1), split(1, 1, 1, 0, True), split(1, 1, 1, 1, micro=8),
                             split(1, 1, 1, 3, True, 4)], room=middle)]


@ex.act
def act(fn, model, machine, splits):
    found = fn(model, machine, splits)
    if type(found) is tuple and len(found) == 2 and type(found[0]) in (list, tuple):
        plain = [{key: value.item() if hasattr(value, "item") else value
                  for key, value in row.items()} if type(row) is dict else row for row in found[0]]
        found = (plain, found[1].item() if hasattr(found[1], "item") else found[1])
    return found


@ex.law
def law(out, model, machine, splits):
    expect_type("result", out, tuple)
    if len(out) != 2:
        raise Broken("parts of the result", len(out), 2)
    rows, fits = truth(model, machine, splits)
    expect_length("rows", out[0], len(splits))
    for split, got, row in zip(splits, out[0], rows, strict=True):
        expect_type("row", got, dict)
        if sorted(map(str, got)) != sorted(PARTS):
            raise Broken("parts of a row", list(got), list(PARTS))
        for part, value in zip(PARTS, row, strict=True):
            expect_type(part, got[part], (int, float))
            expect_close(part, float(got[part]), float(value), rtol=1e-6,
                         look=f"The split is {', '.join(f'{k} {v}' for k, v in split.items())}.")
    wanted = fits[0] if fits else None
    if type(out[1]) not in (int, type(None)) or out[1] != wanted:
        sizes = [f"{float(sum(row[:3])):.3g} B, {row[3]:.3g} s" for row in rows]
        raise Broken("best", out[1], wanted, f"Memory is {machine['memory']:.3g} B; the splits "
                     f"take {'; '.join(sizes[:4])}{', ...' * (len(sizes) > 4)}.")


# ---- wrong, by name

@not_an_answer
def made(model, machine, splits):
    def half(n, size):
        return (machine["alpha"] + size / n / machine["beta"]) * (n - 1)

    rows = []
    for s in splits:
        dp, tp, pp, zero, micro = (s[key] for key in ("dp", "tp", "pp", "zero", "micro"))
        m, gpus = model["batch"] / dp / micro, dp * tp * pp
        weights, slopes = 2 / (dp if zero > 2 else 1), 2 / (dp if zero == 3 else 1)
        sixteen = weights + slopes + 12 / (dp if zero > 0 else 1)
        layer = micro * (model["whole"] + model["cut"] / tp)
        stage = min(m, pp) * model["layers"] / pp
        held = stage * micro * model["input"] + layer if s["checkpoint"] else stage * layer
        work = model["work"] + model["again"] * s["checkpoint"]
        busy = model["batch"] * work / gpus / machine["speed"]
        calls = m * model["layers"] / pp * (4 + s["checkpoint"])
        busy += calls * 2 * half(tp, micro * model["input"])
        sends = (3 * m if zero == 3 else 2) * half(dp, 2 * model["weights"] / tp / pp)
        seconds = busy * (1 + (pp - 1) / m) + sends
        rows.append({"state": sixteen * model["weights"] / tp / pp, "activations": held,
                     "logits": micro * model["logits"] / tp, "seconds": seconds,
                     "mfu": model["batch"] * model["work"] / seconds / gpus / machine["peak"]})
    fit = [k for k, row in enumerate(rows)
           if row["state"] + row["activations"] + row["logits"] <= machine["memory"]]
    best = min(fit, key=lambda k: rows[k]["seconds"], default=None)
    return rows, best


wrong = ex.edits(made)
WEIGHTS, SLOPES, REST = "dp if zero > 2", "dp if zero == 3", "dp if zero > 0"
STATE, LOGITS = 'sixteen * model["weights"] / tp / pp', 'model["logits"] / tp'
RING = '(machine["alpha"] + size / n / machine["beta"]) * (n - 1)'
FLYING, TIMES = "min(m, pp)", "(3 * m if zero == 3 else 2)"
SECONDS, MICRO, END = "(1 + (pp - 1) / m)", 'model["batch"] / dp / micro,', "return rows, best"
FASTEST = 'rows[k]["seconds"]'
# https://github.com/deepspeedai/DeepSpeed/pull/5099
wrong("counting 12 bytes of state per weight, without the master weights",
      ("state", "example"), "12 /", "8 /", says="state")
wrong("dividing all 16 bytes under ZeRO-1", ("state", "example"),
      WEIGHTS, REST, SLOPES, REST, says="state")
wrong("dividing the gradients as well under ZeRO-1",
      ("state", "example"), SLOPES, REST, says="state")
wrong("leaving the weights whole under ZeRO-3", "state", WEIGHTS, "1 if zero > 2", says="state")
wrong("not dividing the state by the number of stages", ("state", "split"),
      STATE, 'sixteen * model["weights"] / tp', says="state")
wrong("not dividing the state by the number of tensor ranks", ("state", "split"),
      STATE, 'sixteen * model["weights"] / pp', says="state")
wrong("dividing the state by the number of copies even without ZeRO", "state",
      WEIGHTS, "dp if zero != 1", SLOPES, "dp if zero != 1", REST, "dp if True", says="state")
wrong("dividing only the optimizer's bytes under ZeRO-3", "state",
      WEIGHTS, "1 if zero > 2", SLOPES, "1 if zero == 3", says="state")
# https://github.com/NVIDIA/Megatron-LM/pull/6782
wrong("dividing the activations by the number of copies", "activations",
      '"activations": held', '"activations": held / dp', says="activations")
wrong("dividing all bytes that a layer keeps by tp, not only the part called cut", "model",
      'model["whole"]', 'model["whole"] / tp', says="activations")
wrong("dividing none of the bytes that a layer keeps by tp", "model",
      'model["cut"] / tp', 'model["cut"]', says="activations")
wrong("dividing the inputs of checkpoints by tp", "inputs",
      "+ layer if", "/ tp + layer if", says="activations")
wrong("leaving out the one layer that is kept in full, with checkpoints", "inputs",
      " + layer if", " if", says="activations")
wrong("counting only one micro-batch in flight", "activations", FLYING, "1", says="activations")
wrong("counting all m micro-batches in flight if there are several stages", "activations",
      FLYING, "(m if pp > 1 else 1)", says="activations")
wrong("counting all m micro-batches in flight, even with a single stage", "activations",
      FLYING, "m", says="activations")
wrong("counting pp micro-batches in flight, even if m is smaller",
      ("activations", "small"),
      FLYING, "pp", says="activations")
wrong("counting all layers on each stage", "activations",
      f'{FLYING} * model["layers"] / pp', f'{FLYING} * model["layers"]', says="activations")
wrong("using the copy's whole batch as a micro-batch", ("split", "small"),
      "dp * tp * pp", 'dp * tp * pp; micro = model["batch"] / dp', says="activations")
wrong("using one sequence as a micro-batch", "split",
      "dp * tp * pp", "dp * tp * pp; micro = 1", says="activations")
wrong("forgetting the logits", "logits", LOGITS, 'model["logits"] * 0.0', says="logits")
wrong("counting the logits of all micro-batches in flight", "logits",
      LOGITS, f"{LOGITS} * {FLYING}", says="logits")
wrong("not dividing the logits by tp", "logits", LOGITS, 'model["logits"]', says="logits")
wrong("dividing the logits by the number of copies",
      "logits", LOGITS, f"{LOGITS} / dp", says="logits")
wrong("stretching the time by (pp - 1) / (m + pp - 1) instead of (pp - 1) / m", "products",
      SECONDS, "(1 + (pp - 1) / (m + pp - 1))", says="seconds")
wrong("leaving out the bubble", "products", SECONDS, "1", says="seconds")
wrong("stretching the sends by the bubble as well", "products",
      f"busy * {SECONDS} + sends", f"(busy + sends) * {SECONDS}", says="seconds")
wrong("counting the bytes of an all-reduce only once", "ring",
      RING, '(n - 1) * machine["alpha"] + size / 2 / machine["beta"] * (n > 1)', says="seconds")
wrong("counting all bytes of an all-reduce in each step of the ring", "ring",
      "size / n / machine", "size / machine", says="seconds")
wrong("counting one latency per call instead of one per step of the ring", "ring",
      RING, '(machine["alpha"] + (n - 1) * size / n / machine["beta"]) * (n > 1)',
      says="seconds")
wrong("leaving out the latency", ("ring", "machine"), 'machine["alpha"] + ', "", says="seconds")
wrong("counting four all-reduces per layer even with checkpoints", "tensor",
      '(4 + s["checkpoint"])', "4", says="seconds")
wrong("counting two all-reduces per layer, only in the forward pass",
      "tensor", "(4 + s", "(2 + s", says="seconds")
wrong("counting all-reduces of all layers on each stage", "tensor",
      ' / pp * (4', " * (4", says="seconds")
wrong("counting as many sends under ZeRO-3 as without ZeRO", "copies", TIMES, "2", says="seconds")
wrong("gathering the weights once per step under ZeRO-3, not per micro-batch",
      "copies", "3 * m if", "3 if", says="seconds")
wrong("counting only one half of the ring under ZeRO-1", ("copies", "example"),
      TIMES, "{0: 2, 1: 1, 3: 3 * m}[zero]", says="seconds")
wrong("sending the gradients of all weights from each GPU", "copies",
      '2 * model["weights"] / tp / pp', '2 * model["weights"]', says="seconds")
wrong("counting an all-reduce of the gradients for each micro-batch", ("copies", "example"),
      TIMES, "(3 if zero == 3 else 2) * m", says="seconds")
wrong("counting all products on one GPU", "products", "work / gpus", "work", says="seconds")
wrong("counting all products of a copy on each of its GPUs", "products",
      "work / gpus", "work / dp", says="seconds")
wrong("using peak instead of speed for the time of the products",
      "machine", '"speed"', '"peak"', says="seconds")
wrong("computing m as if one copy took the whole batch", "small",
      MICRO, 'model["batch"] / micro,', says="")
wrong("counting no time for the repeated work of checkpoints", "given",
      ' + model["again"] * s["checkpoint"]', "", says="seconds")
wrong("counting repeated work in the MFU", "mfu",
      'model["work"] / seconds', "work / seconds", says="mfu")
wrong("dividing the MFU by the real speed instead of the peak",
      ("mfu", "machine"), '"peak"', '"speed"', says="mfu")
wrong("dividing the MFU by the peak of one GPU", "mfu", "seconds / gpus", "seconds", says="mfu")
wrong("choosing the fastest split, whether it fits or not", ("best", "machine"),
      '<= machine["memory"]', "> 0", says="best")
wrong("choosing the split with the least memory instead of the fastest", "best",
      FASTEST, 'rows[k]["state"] + rows[k]["activations"] + rows[k]["logits"]', says="best")
wrong("choosing the slowest split that fits", "best", FASTEST, f"-{FASTEST}", says="best")
wrong("rejecting a split that fills the memory exactly", "best",
      "<= machine", "< machine", says="best")
wrong("returning -1 if no split fits", "best", "default=None", "default=-1", says="best")
wrong("returning a list instead of a tuple",
      "two", END, "return [rows, best]", says="type of the result")
wrong("sorting the splits in place", "left", END, f"splits.reverse(); {END}")
wrong("returning each row as a list instead of a dict", "rows",
      END, "return [list(row.values()) for row in rows], best", says="type of")
wrong("returning the best split instead of its index", "best",
      END, "return rows, None if best is None else dict(splits[best])", says="best")
