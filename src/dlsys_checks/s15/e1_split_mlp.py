"""Exercise 15.1, `split_mlp`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer
from dlsys_helpers.lockstep import expect_agreement

ex = exercise("15.1", "split_mlp", seen=("h", "a", "b", "c", "dy"), says="dh on rank")

ex.promise("layer", "y = relu(h A.T) B.T + c on one of several ranks, and its gradients.",
           says=("y on rank", "number of the results"))
ex.promise("cut", "The units of the layer are cut: a (f, D) holds this rank's rows of A, "
           "b (E, f) its columns of B; f is at least 1 and differs from rank to rank.",
           cases=("ranks of other sizes", "one unit on a rank", "the example"))
ex.promise("whole", "h (N, D), the bias c (E,) and dy (N, E), the gradient of the loss for y, are "
           "whole and the same on all ranks.", says=("y on rank", "dc on rank"))
ex.promise("calls", "all_sum(tensor): the sum over the ranks, a new tensor; all ranks have to call "
           "it equally often, 60 times at most, in the same order, with the same shapes and "
           "dtypes.",
           says=("what the ranks ask for",))
ex.promise("returns", "Returns (y, dh, da, db, dc), in the one dtype of all inputs: y, and the "
           "gradients of h, a, b and c as the uncut layer has them.",
           says=("dh on rank", "da on rank", "db on rank", "dc on rank", "y on rank",
                 "type of the results", "number of the results"))
ex.promise("slope", "The slope of ReLU at 0 is 0.", cases=("units at zero",))
ex.promise("stay", "Inputs stay as they are, requires_grad as well.", says=("inputs that changed",))
ex.promise("example", "Example: h 2, c 0, dy 1; on one rank a 3, b 5, on the other a 4, b 7: y is "
           "86 and dh 43 on both, da 10 on the first.", cases=("the example",))


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, units, n=5, d=3, e=4, dtype=torch.float64, zero=False, bias=1.0):
        def drawn(*shape):
            return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)
        h = drawn(n, d)
        if zero:
            h[: (n + 1) // 2] = 0
        # Views with other strides, as a slice of a larger tensor has them.
        return name, {"h": h, "c": bias * drawn(e), "dy": drawn(e, n).T,
                      "a": [drawn(f, d) for f in units], "b": [drawn(f, e).T for f in units]}

    k = whole(3, 7)
    example = {"h": torch.tensor([[2.0]]), "c": torch.zeros(1), "dy": torch.ones(1, 1),
               "a": [torch.tensor([[3.0]]), torch.tensor([[4.0]])],
               "b": [torch.tensor([[5.0]]), torch.tensor([[7.0]])]}
    return [one("two ranks", [k, k]), one("one rank alone", [k + 1]),
            one("four ranks", [4, 4, 4, 4]),
            one("ranks of other sizes", [k, 2, k + 3]),
            one("one unit on a rank", [1, k]), one("one row", [3, 3], n=1),
            one("many rows", [5, 5], n=whole(60, 90)), one("one number out", [3, 3], e=1),
            one("one number in", [3, 3], d=1), one("wider than it is deep", [2, 2], d=9, e=2),
            one("units at zero", [4, 4], n=6, zero=True),
            one("no bias", [3, 3], bias=0.0), one("a large bias", [4, 4], bias=50.0),
            one("in float32", [k, k], dtype=torch.float32), ("the example", example)]


@ex.act
def act(fn, h, a, b, c, dy):
    from dlsys_helpers.lockstep import in_lockstep

    def run(mine, all_sum):
        given = [t.clone(memory_format=torch.preserve_format) for t in (h, *mine, c, dy)]
        kept = [t.clone() for t in given]
        found = fn(*given, all_sum)
        results = [t.detach() if isinstance(t, torch.Tensor) else t for t in found]
        named = dict(zip(("h", "a", "b", "c", "dy"), zip(given, kept, strict=True), strict=True))
        changed = [name for name, (t, k) in named.items() if not torch.equal(t, k)]
        changed += [f"{name}.requires_grad" for name, (t, _) in named.items() if t.requires_grad]
        return {"kind": type(found).__name__, "results": results, "changed": changed}

    return in_lockstep(run, list(zip(a, b)), outsider=(-a[-1], b[-1]))


@ex.law
def law(out, h, a, b, c, dy):
    expect_agreement(out, len(a))
    y, dh, das, dbs, dc = by_hand(h, a, b, c, dy)
    for rank, done in enumerate(out["ranks"]):
        expect_parts(done, "kind", "results", "changed", what=f"run of rank {rank}")
        expect_equal("type of the results", done["kind"], "tuple")
        expect_length("the results", done["results"], 5)
        wanted = {"y": y, "dh": dh, "da": das[rank], "db": dbs[rank], "dc": dc}
        for (name, right), got in zip(wanted.items(), done["results"], strict=True):
            expect_close(f"result {name} on rank {rank}", got, right.to(h.dtype), rtol=1e-3,
                         atol=1e-4 * float(right.abs().max()))
        expect_equal("inputs that changed", done["changed"], [])


def by_hand(h, a, b, c, dy):
    """The uncut layer in float64, unit by unit: y, dh, da and db of each rank, dc."""
    h, c, dy = h.double(), c.double(), dy.double()
    y, dh = c.expand(len(h), len(c)).clone(), torch.zeros_like(h)
    das, dbs = [], []
    for rows, columns in zip(a, b, strict=True):
        da, db = torch.zeros_like(rows.double()), torch.zeros_like(columns.double())
        for unit, (into, out) in enumerate(zip(rows.double(), columns.double().T, strict=True)):
            before = h @ into
            on = (before > 0).double()
            y += (before * on)[:, None] * out
            back = (dy @ out) * on                       # gradient before the ReLU, (N,)
            dh += back[:, None] * into
            da[unit], db[:, unit] = back @ h, (before * on) @ dy
        das.append(da)
        dbs.append(db)
    return y, dh, das, dbs, dy.sum(0)


# ---- wrong, by name

@not_an_answer
def layer(h, a, b, c, dy, all_sum, *, out=lambda part, c, s: s(part) + c,
          into=lambda part, s: s(part), slope=lambda z: z > 0, more=lambda t, s: t,
          bias=lambda dc, s: dc, first=lambda dy, s: dy, form=tuple):
    """The worked answer with one of its pieces replaced; s is all_sum."""
    z = h @ a.T
    units = z.clamp(min=0)
    y = out(units @ b.T, c, all_sum)
    dy = first(dy, all_sum)
    back = (dy @ b) * slope(z)
    dh = into(back @ a, all_sum)
    return form((y, dh, more(back.T @ h, all_sum), dy.T @ units, bias(dy.sum(0), all_sum)))


def half(part, s):
    return part


def world(s):
    return s(torch.ones(()))


# The lesson's broken layer.
ex.wrong("dh of this rank's half alone", layer, breaks="returns", into=half)
# The lesson's sum that autograd knows: its backward is a sum as well.
ex.wrong("dy summed as well, so all inner gradients count twice", layer, says="dh on rank",
         breaks="returns", first=lambda dy, s: s(dy))
ex.wrong("dh summed twice", layer, breaks="returns", into=lambda part, s: s(s(part)))
ex.wrong("dh summed and divided by the ranks", layer, breaks="returns",
         into=lambda part, s: s(part) / world(s))
ex.wrong("dh times the number of ranks, as if halves were alike", layer, breaks="returns",
         into=lambda part, s: part * world(s))
ex.wrong("y of this rank's half alone", layer, says="y on rank", breaks="layer",
         out=lambda part, c, s: part + c)
ex.wrong("the mean of the parts for y", layer, says="y on rank", breaks="layer",
         out=lambda part, c, s: s(part) / world(s) + c)
# https://github.com/huggingface/text-generation-inference/issues/1036
ex.wrong("the bias in each part, so once for each rank", layer, says="y on rank",
         breaks=("whole", "layer"), out=lambda part, c, s: s(part + c))
ex.wrong("no bias at all", layer, says="y on rank", breaks=("whole", "layer"),
         out=lambda part, c, s: s(part))
ex.wrong("dc summed over the ranks, where each had all of it", layer, says="dc on rank",
         breaks="whole", bias=lambda dc, s: s(dc))
# https://github.com/pytorch/torchtitan/pull/4332
ex.wrong("dc divided by the ranks", layer, says="dc on rank", breaks="whole",
         bias=lambda dc, s: dc / world(s))
ex.wrong("da summed over the ranks, unit by unit of other units", layer, says="",
         breaks=("returns", "calls", "cut"), more=lambda t, s: s(t))
ex.wrong("a slope of 1 at 0", layer, breaks="slope", says="", slope=lambda z: z >= 0)
ex.wrong("the ReLU forgotten in the backward pass", layer, breaks="returns",
         slope=lambda z: torch.ones_like(z))
ex.wrong("a list for the tuple", layer, says="type of the results", breaks="returns", form=list)
ex.wrong("y and dh alone", layer, says="number of the results", breaks="returns",
         form=lambda found: found[:2])


@ex.wrong("units shared out evenly, as if all ranks had as many", says="", breaks="cut")
def even(h, a, b, c, dy, all_sum):
    most = int(all_sum(torch.tensor(len(a))) // all_sum(torch.tensor(1)))
    return layer(h, a[:most], b[:, :most], c, dy, all_sum)


@ex.wrong("the ranks' parts gathered along their units", says="what the ranks ask for",
          breaks="calls")
def gathered(h, a, b, c, dy, all_sum):
    units = torch.relu(h @ a.T)
    all_sum(units)
    return layer(h, a, b, c, dy, all_sum)


@ex.wrong("ReLU in place on h", says="inputs that changed", breaks="stay")
def in_place(h, a, b, c, dy, all_sum):
    found = layer(h, a, b, c, dy, all_sum)
    h.clamp_(min=0)
    return found


@ex.wrong("the bias added into c itself", says="inputs that changed", breaks="stay")
def into_c(h, a, b, c, dy, all_sum):
    found = layer(h, a, b, c, dy, all_sum)
    c += found[0].sum(0)
    return found


@ex.wrong("dy emptied for the gradient", says="inputs that changed", breaks="stay")
def emptied(h, a, b, c, dy, all_sum):
    found = layer(h, a, b, c, dy, all_sum)
    dy.zero_()
    return found


@ex.wrong("gradients asked for on the inputs themselves", says="inputs that changed",
          breaks="stay")
def on_inputs(h, a, b, c, dy, all_sum):
    found = layer(h, a, b, c, dy, all_sum)
    for t in (h, a, b, c):
        t.requires_grad_()
    return tuple(t.detach() for t in found)
