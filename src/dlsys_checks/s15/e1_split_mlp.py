"""Exercise 15.1, `split_mlp`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer
from dlsys_helpers.lockstep import expect_agreement

ex = exercise("15.1", "split_mlp", seen=("h", "a", "b", "c", "dy"), says="dh on rank")

ex.promise_table("""
layer   | Compute y = relu(h A.T) B.T + c on one of several ranks, and its gradients. | y on rank;
          number of the results
cut     | The layer is cut by units: a (f, D) holds this rank's rows of A, and b (E, f) its columns
          of B. f is at least 1 and can differ between ranks. | case ranks of different sizes; one
          unit on a rank; the example
whole   | h (N, D), the bias c (E,) and dy (N, E), the gradient of the loss with respect to y, are
          complete and the same on all ranks. | y on rank; dc on rank
calls   | all_sum(tensor) returns the sum over the ranks as a new tensor. All ranks have to call it
          the same number of times, at most 60, in the same order and with the same shapes and
          dtypes. | what the ranks ask for
returns | Returns (y, dh, da, db, dc), in the common dtype of the inputs: y, and the gradients of h,
          a, b and c as in the uncut layer. | dh on rank; da on rank; db on rank; dc on rank; y on
          rank; type of the results; number of the results
slope   | The derivative of ReLU at 0 is 0. | case units at zero
stay    | Inputs and their requires_grad are not changed. | inputs that changed
example | Example: h is 2, c 0 and dy 1; a is 3 and b 5 on one rank, and a is 4 and b 7 on the
          other. Then y is 86 and dh 43 on both ranks, and da is 10 on the first. | case the example
""")


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
    idle = one("a rank without active units", [k, k])
    idle[1]["h"], idle[1]["a"][0] = idle[1]["h"].abs(), -idle[1]["a"][0].abs()
    example = {"h": torch.tensor([[2.0]]), "c": torch.zeros(1), "dy": torch.ones(1, 1),
               "a": [torch.tensor([[3.0]]), torch.tensor([[4.0]])],
               "b": [torch.tensor([[5.0]]), torch.tensor([[7.0]])]}
    return [one("two ranks", [k, k]), one("one rank alone", [k + 1]),
            one("four ranks", [4, 4, 4, 4]),
            one("ranks of different sizes", [k, 2, k + 3]),
            one("one unit on a rank", [1, k]), one("one row", [3, 3], n=1),
            one("many rows", [5, 5], n=whole(60, 90)), one("one output", [3, 3], e=1),
            one("one input", [3, 3], d=1), one("wider than it is deep", [2, 2], d=9, e=2),
            one("units at zero", [4, 4], n=6, zero=True),
            one("no bias", [3, 3], bias=0.0), one("a large bias", [4, 4], bias=50.0),
            one("in float32", [k, k], dtype=torch.float32), idle,
            ("the example", example)]


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

def half(part, s):
    return part


def world(s):
    return s(torch.ones(()))


@not_an_answer
def layer(h, a, b, c, dy, all_sum):
    z = h @ a.T
    units = z.clamp(min=0)
    y = all_sum(units @ b.T) + c
    back = dy @ b * (z > 0)
    dh = all_sum(back @ a)
    out = tuple((y, dh, back.T @ h, dy.T @ units, dy.sum(0)))
    return out


wrong = ex.edits(layer)
START, END = "z =", "return out"
# The lesson's broken layer.
wrong("returning only this rank's part of dh", "returns",
      "dh = all_sum", "dh = half", "back @ a", "back @ a, all_sum")
# The lesson's sum that autograd knows: its backward is a sum as well.
wrong("summing dy over the ranks as well", "returns",
      "back =", "dy = all_sum(dy); back =", says="dh on rank")
wrong("summing dh over the ranks twice", "returns", "back @ a", "all_sum(back @ a)")
wrong("averaging dh over the ranks", "returns",
      "all_sum(back @ a)", "all_sum(back @ a) / world(all_sum)")
wrong("multiplying dh by the number of ranks, as if all parts were equal", "returns",
      "all_sum(back @ a)", "back @ a * world(all_sum)")
wrong("returning only this rank's part of y", "layer",
      "all_sum(units @ b.T)", "units @ b.T", says="y on rank")
wrong("averaging y over the ranks", "layer",
      "all_sum(units @ b.T)", "all_sum(units @ b.T) / world(all_sum)", says="y on rank")
# https://github.com/huggingface/text-generation-inference/issues/1036
wrong("adding the bias once for each rank", ("whole", "layer"),
      "all_sum(units @ b.T) + c", "all_sum(units @ b.T + c)", says="y on rank")
wrong("leaving out the bias", ("whole", "layer"),
      "all_sum(units @ b.T) + c", "all_sum(units @ b.T)", says="y on rank")
wrong("summing dc over the ranks, although dc is complete on each rank", "whole",
      "dy.sum(0)", "all_sum(dy.sum(0))", says="dc on rank")
# https://github.com/pytorch/torchtitan/pull/4332
wrong("dividing dc by the number of ranks", "whole",
      "dy.sum(0)", "dy.sum(0) / world(all_sum)", says="dc on rank")
wrong("summing da over the ranks, although their units differ", ("returns", "calls", "cut"),
      "back.T @ h", "all_sum(back.T @ h)", says="")
wrong("using 1 as the derivative of ReLU at 0", "slope", "z > 0", "z >= 0", says="")
wrong("forgetting the ReLU in the backward pass", "returns", "z > 0", "torch.ones_like(z)")
wrong("returning a list instead of a tuple", "returns", "tuple", "list", says="type of the results")
wrong("returning only y and dh", "returns",
      "tuple((y, dh, back.T @ h, dy.T @ units, dy.sum(0)))",
      "(y, dh, back.T @ h, dy.T @ units, dy.sum(0))[:2]", says="number of the results")
wrong("assuming that all ranks have the same number of units", "cut",
      START,
      "most = int(all_sum(torch.tensor(len(a))) // all_sum(torch.tensor(1))); a = a[:most]; b = "
      f"b[:, :most]; {START}", says="")
wrong("passing the rank's own units, whose number differs, to all_sum", "calls",
      START, f"units = torch.relu(h @ a.T); all_sum(units); {START}", says="what the ranks ask for")
wrong("skipping all_sum if no unit of the rank is active", "calls",
      "dh = all_sum(back @ a)", "dh = all_sum(back @ a) if (z > 0).any() else back @ a",
      says="what the ranks ask for")
wrong("applying the ReLU to h in place", "stay",
      END, f"h.clamp_(min=0); {END}", says="inputs that changed")
wrong("changing c in place", "stay",
      END, f"c += out[0].sum(0); {END}", says="inputs that changed")
wrong("setting dy to zero in place", "stay",
      END, f"dy.zero_(); {END}", says="inputs that changed")
wrong("setting requires_grad on the inputs", "stay",
      END,
      "for t in (h, a, b, c): t.requires_grad_()\n    return tuple(t.detach() for t in out)",
      says="inputs that changed")
