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
two         | (rows, best): what a GPU holds and how long a step takes under each split, and which
              is best. | type of the result; parts of the result
model       | model: weights; layers; batch, the sequences of a step; and of one sequence: whole and
              cut: bytes that a layer keeps, and tp divides cut but not whole; | activations
given       | input, bytes of a layer's input; logits, bytes; work, operations forward and backward;
              again, those that checkpoints repeat. | activations; logits; seconds; mfu
machine     | machine: memory, bytes; speed and peak, operations a second that a GPU reaches and
              that its datasheet promises; alpha and beta of its links. | seconds; mfu; best
split       | splits: one or more dicts: dp, tp, pp; zero, 0, 1 or 3; checkpoint, a bool; micro, the
              sequences of a micro-batch. | state; activations; logits; seconds
small       | All divisions come out even, and each of the dp copies of the model takes m = batch /
              dp / micro micro-batches. | activations; seconds
rows        | rows: for each split a dict of these five numbers. | type of; number of; parts of a
              row
state       | state: 16 bytes a weight, which tp and pp divide; dp divides the optimizer's 12 with
              zero 1, and all with 3. | state
activations | activations: of layers / pp layers and min(m, pp) micro-batches what they keep; |
              activations
inputs      | with checkpoint only their inputs, which tp leaves whole, and what one layer keeps for
              one micro-batch. | activations
logits      | logits: of a micro-batch, divided by tp. | logits
waits       | seconds: (products + tp's calls) * (1 + (pp - 1) / m) + dp's calls. | seconds
products    | products: all operations of the batch over the speed of all GPUs. | seconds
ring        | Half a ring of b bytes on n ranks takes (n - 1) * (alpha + b / n / beta). | seconds
tensor      | tp's calls: for each layer of a GPU and each micro-batch 4 whole rings of the
              micro-batch's input, 5 with checkpoint. | seconds
copies      | dp's calls: for 2 bytes of each weight that tp and pp leave to a GPU one whole ring,
              with zero 3 three half rings in each micro-batch. | seconds
mfu         | mfu: operations of work, for the whole batch, over what all GPUs could do in these
              seconds at their peak. | mfu
best        | best: the index of the fastest split whose bytes are at most memory, or None; no two
              are equally fast. | best
left        | Nothing handed over changes. | inputs after the call
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
            some("copies alone", [split(8, 1, 1), split(8, 1, 1, 1, micro=2), split(8, 1, 1, 3),
                                  split(8, 1, 1, 3, True, micro=4)], room=middle),
            some("tensor alone", [split(1, 8, 1), split(1, 4, 1, micro=2),
                                  split(1, 8, 1, 0, True)], room=middle),
            some("stages alone", [split(1, 1, 8), split(1, 1, 4, micro=2),
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
def made(model, machine, splits, *, sizes=(2, 2, 12), shared=lambda zero: (zero == 3, zero == 3,
         zero > 0), over=lambda s: s["tp"] * s["pp"], whole=lambda s: 1, cut=lambda s: s["tp"],
         flying=lambda m, s: min(m, s["pp"]), layers=lambda s: s["pp"], more=1.0, extra=True,
         taken=lambda s, batch: s["micro"], logits=lambda s: s["tp"], kept=1.0, inputs=lambda s: 1,
         copies=lambda s: 1, count=lambda model, s: model["batch"] / s["dp"] / s["micro"],
         bubble=lambda s, m: 1 + (s["pp"] - 1) / m, late=False, ring=None, calls=(4, 5),
         of_gpu=lambda s: s["pp"], halves=lambda m, s: 3 * m if s["zero"] == 3 else 2,
         sent=lambda s: s["tp"] * s["pp"], gpus=lambda s: s["dp"] * s["tp"] * s["pp"], again=True,
         useful=False, top="peak", fits=lambda size, memory: size <= memory, pick=None,
         none=None, form=tuple, row=dict, per_gpu=lambda s: s["dp"] * s["tp"] * s["pp"],
         pace="speed"):
    """The right answer with its pieces as options."""
    def half(n, size):
        if ring:
            return ring(n, size, machine["alpha"], machine["beta"])
        return (n - 1) * (machine["alpha"] + size / n / machine["beta"])

    rows = []
    for s in splits:
        m, micro = count(model, s), taken(s, model["batch"])
        shares = [size / (s["dp"] if split else 1)
                  for size, split in zip(sizes, shared(s["zero"]))]
        state = sum(shares) * model["weights"] / over(s)
        layer = micro * (model["whole"] / whole(s) + model["cut"] / cut(s))
        stage = flying(m, s) * model["layers"] / layers(s)
        held = stage * layer
        if s["checkpoint"]:
            held = stage * micro * model["input"] / inputs(s) + layer * extra
        work = model["work"] + model["again"] * (s["checkpoint"] and again)
        busy = model["batch"] * work / gpus(s) / machine[pace]
        number = m * model["layers"] / of_gpu(s) * calls[s["checkpoint"]]
        busy += number * 2 * half(s["tp"], micro * model["input"])
        sends = halves(m, s) * half(s["dp"], 2 * model["weights"] / sent(s))
        wait = bubble(s, m)
        seconds = (busy + sends) * wait if late else busy * wait + sends
        done = model["batch"] * (work if useful else model["work"])
        rows.append(row(state=state, activations=held / copies(s),
                        logits=micro * model["logits"] / logits(s) * kept, seconds=seconds,
                        mfu=done / seconds / per_gpu(s) / machine[top]))
    fit = [k for k, r in enumerate(rows)
           if fits(r["state"] + r["activations"] + r["logits"], machine["memory"])]
    best = min(fit, key=pick(rows) if pick else lambda k: rows[k]["seconds"], default=none)
    return form((rows, best))


def size_of(rows):
    return lambda k: rows[k]["state"] + rows[k]["activations"] + rows[k]["logits"]


# https://github.com/deepspeedai/DeepSpeed/pull/5099
ex.wrong("12 bytes of state: no master weights", made, says="state", breaks=("state", "example"),
         sizes=(2, 2, 8))
ex.wrong("ZeRO-1 divides all 16 bytes", made, says="state", breaks=("state", "example"),
         shared=lambda zero: (zero > 0, zero > 0, zero > 0))
ex.wrong("ZeRO-1 divides the gradients, too", made, says="state", breaks=("state", "example"),
         shared=lambda zero: (zero == 3, zero > 0, zero > 0))
ex.wrong("ZeRO-3 leaves the weights whole", made, says="state", breaks="state",
         shared=lambda zero: (False, zero == 3, zero > 0))
ex.wrong("stages do not divide the state", made, says="state", breaks=("state", "split"),
         over=lambda s: s["tp"])
ex.wrong("tensor ranks do not divide the state", made, says="state", breaks=("state", "split"),
         over=lambda s: s["pp"])
ex.wrong("copies divide the state without ZeRO, too", made, says="state", breaks="state",
         shared=lambda zero: (zero != 1, zero != 1, True))
ex.wrong("ZeRO-3 divides the optimizer alone", made, says="state", breaks="state",
         shared=lambda zero: (False, False, zero > 0))
# https://github.com/NVIDIA/Megatron-LM/pull/6782
ex.wrong("activations divided by the copies", made, says="activations", breaks="activations",
         copies=lambda s: s["dp"])
ex.wrong("tp divides what a layer keeps, norms included", made, says="activations",
         breaks="model", whole=lambda s: s["tp"])
ex.wrong("tp divides no activations", made, says="activations", breaks="model", cut=lambda s: 1)
ex.wrong("the inputs of checkpoints divided by tp", made, says="activations", breaks="inputs",
         inputs=lambda s: s["tp"])
ex.wrong("checkpoints without the one layer that is alive", made, says="activations",
         breaks="inputs", extra=False)
ex.wrong("one micro-batch in flight", made, says="activations", breaks="activations",
         flying=lambda m, s: 1)
ex.wrong("all micro-batches in flight", made, says="activations", breaks="activations",
         flying=lambda m, s: m if s["pp"] > 1 else 1)
ex.wrong("as many micro-batches in flight as stages, however few there are", made,
         says="activations", breaks=("activations", "small"), flying=lambda m, s: s["pp"])
ex.wrong("all layers on each stage", made, says="activations", breaks="activations",
         layers=lambda s: 1)
ex.wrong("the copy's whole batch for a micro-batch", made, says="activations",
         breaks=("split", "small"), taken=lambda s, batch: batch / s["dp"])
ex.wrong("one sequence for a micro-batch", made, says="activations", breaks="split",
         taken=lambda s, batch: 1)
ex.wrong("logits forgotten", made, says="logits", breaks="logits", kept=0.0)
ex.wrong("logits of all micro-batches in flight", lambda model, machine, splits: made(
    model, machine, splits, logits=lambda s: s["tp"] / min(
        s["pp"], model["batch"] // s["dp"] // s["micro"])), says="logits", breaks="logits")
ex.wrong("logits not divided by tp", made, says="logits", breaks="logits", logits=lambda s: 1)
ex.wrong("logits divided by the copies", made, says="logits", breaks="logits",
         logits=lambda s: s["tp"] * s["dp"])
ex.wrong("the idle share (pp - 1) / (m + pp - 1) as what is added", made, says="seconds",
         breaks="waits", bubble=lambda s, m: 1 + (s["pp"] - 1) / (m + s["pp"] - 1))
ex.wrong("no bubble", made, says="seconds", breaks="waits", bubble=lambda s, m: 1)
ex.wrong("dp's calls wait for the bubble, too", made, says="seconds", breaks="waits", late=True)
ex.wrong("an all-reduce sends its bytes once", made, says="seconds", breaks="ring",
         ring=lambda n, size, alpha, beta: (n - 1) * alpha + size / 2 / beta * (n > 1))
ex.wrong("an all-reduce sends its bytes to each rank", made, says="seconds", breaks="ring",
         ring=lambda n, size, alpha, beta: (n - 1) * (alpha + size / beta))
ex.wrong("one latency a call, not one a step", made, says="seconds", breaks="ring",
         ring=lambda n, size, alpha, beta: (alpha + (n - 1) * size / n / beta) * (n > 1))
ex.wrong("latency forgotten", made, says="seconds", breaks=("ring", "machine"),
         ring=lambda n, size, alpha, beta: (n - 1) * size / n / beta)
ex.wrong("four all-reduces a layer, checkpoints or not", made, says="seconds", breaks="tensor",
         calls=(4, 4))
ex.wrong("two all-reduces a layer: forward alone", made, says="seconds", breaks="tensor",
         calls=(2, 3))
ex.wrong("all-reduces of all layers on each stage", made, says="seconds", breaks="tensor",
         of_gpu=lambda s: 1)
ex.wrong("ZeRO-3 sends as much as no ZeRO", made, says="seconds", breaks="copies",
         halves=lambda m, s: 2)
ex.wrong("ZeRO-3 gathers once a step", made, says="seconds", breaks="copies",
         halves=lambda m, s: 3 if s["zero"] == 3 else 2)
ex.wrong("half a ring for ZeRO-1", made, says="seconds", breaks=("copies", "example"),
         halves=lambda m, s: {0: 2, 1: 1, 3: 3 * m}[s["zero"]])
ex.wrong("gradients of all weights sent by each GPU", made, says="seconds", breaks="copies",
         sent=lambda s: 1)
ex.wrong("an all-reduce of the gradients in each micro-batch", made, says="seconds",
         breaks=("copies", "example"), halves=lambda m, s: (3 if s["zero"] == 3 else 2) * m)
ex.wrong("all products on one GPU", made, says="seconds", breaks="products", gpus=lambda s: 1)
ex.wrong("products of a copy on each of its GPUs", made, says="seconds", breaks="products",
         gpus=lambda s: s["dp"])
ex.wrong("products as fast as the datasheet promises", made, says="seconds", breaks="machine",
         pace="peak")
ex.wrong("m as if one copy took the whole batch", made, says="", breaks="small",
         count=lambda model, s: model["batch"] / s["micro"])
ex.wrong("what checkpoints repeat takes no time", made, says="seconds", breaks="given",
         again=False)
ex.wrong("MFU that counts what is repeated", made, says="mfu", breaks="mfu", useful=True)
ex.wrong("MFU over the speed that is reached", made, says="mfu", breaks=("mfu", "machine"),
         top="speed")
ex.wrong("MFU over the peak of one GPU", made, says="mfu", breaks="mfu", per_gpu=lambda s: 1)
ex.wrong("the fastest, whether it fits or not", made, says="best", breaks=("best", "machine"),
         fits=lambda size, memory: True)
ex.wrong("the smallest in place of the fastest", made, says="best", breaks="best", pick=size_of)
ex.wrong("the slowest that fits", made, says="best", breaks="best",
         pick=lambda rows: lambda k: -rows[k]["seconds"])
ex.wrong("what fills the memory to the last byte is refused", made, says="best", breaks="best",
         fits=lambda size, memory: size < memory)
ex.wrong("-1 where none fits", made, says="best", breaks="best", none=-1)
ex.wrong("a list of the two", made, says="type of the result", breaks="two", form=list)


@ex.wrong("the splits sorted in place", breaks="left")
def in_place(model, machine, splits):
    rows, best = made(model, machine, splits)
    splits.reverse()
    return rows, best


@ex.wrong("a row as a list of numbers", says="type of", breaks="rows")
def bare(model, machine, splits):
    rows, best = made(model, machine, splits)
    return [list(row.values()) for row in rows], best


@ex.wrong("the best split itself, not its index", says="best", breaks="best")
def itself(model, machine, splits):
    rows, best = made(model, machine, splits)
    return rows, None if best is None else dict(splits[best])
