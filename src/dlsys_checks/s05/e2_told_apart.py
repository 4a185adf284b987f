"""Exercise 05.2, `told_apart`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

# Kept: the first layer is handed x as it is.
ex = exercise("05.2", "told_apart", seen=("x", "weights", "kind"), kept=("seen",))

ex.promise_table("""
result   | Measure what fraction of a stream differs between its rows, by layer. | fraction; number
           of
layers   | Args: layers: K functions, K >= 0. | case no layer; one layer; sixteen layers; the
           example
in turn  | Call each once, in order, on the previous result. | order of calls; argument of
x        | x: (N, ...) float32, N >= 1. | case one row; rows of rows; one number a row
list     | Returns: K + 1 floats: the fraction of x, then the fraction after each layer. | number
           of; type of the
rest     | Subtract the mean row from the stream. | fraction
squares  | Take the mean square of the rest. | fraction
whole    | Divide it by the mean square of the whole stream. | fraction
zero     | For a stream of zeros, the fraction is 0.0. | case a stream of zeros
tiny     | Fractions down to 1e-6 are accurate to 1 %. | case rows nearly alike; rows more and more
           alike; a stream of small numbers
no graph | Do not build a graph. | graph
example  | Example: for x [[1.], [-1.]] and one layer that adds 9, return [1.0, 1/82]. | case the
           example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, count, *shape, kind="mixed", offset=0.0, spread=1.0):
        shape = shape or (whole(4, 9), whole(3, 7), whole(2, 5))
        x = torch.randn(shape, generator=g) * spread + offset
        # Layer k returns z * factor + shift; a factor below one draws the rows together.
        weights = torch.stack([0.4 + torch.rand(count, generator=g),
                               torch.randn(count, generator=g)], 1)
        return name, {"x": x, "weights": weights, "kind": kind}

    example = {"x": torch.tensor([[1.0], [-1.0]]), "weights": torch.tensor([[1.0, 9.0]]),
               "kind": "plain"}
    alike = one("rows nearly alike", 2, whole(5, 9), 6, offset=3.0, spread=4e-3)
    sixteen = one("sixteen layers", 16, kind="plain")  # that leave the share large
    sixteen[1]["weights"] = torch.stack([0.9 + 0.2 * torch.rand(16, generator=g),
                                         0.05 * torch.randn(16, generator=g)], 1)
    small = one("a stream of small numbers", 2, whole(5, 9), 6, spread=1e-4, kind="plain")
    small[1]["weights"][:, 1] *= 1e-4
    closer = one("rows more and more alike", 5, whole(5, 9), 6, kind="closer", offset=1.0)
    dead = one("a stream of zeros", 3, whole(4, 9), 5, kind="dead")
    return [one("three layers", 3), one("no layer", 0), one("one layer", 1),
            sixteen, one("two rows", 3, 2, 5),
            one("one row", 2, 1, 6), one("rows of rows", 3, whole(3, 6), 2, 3, 4),
            one("one number a row", 2, whole(5, 9)), one("many rows", 2, 200, 3),
            one("numbers in the thousands", 3, offset=1000.0, spread=300.0),
            alike, closer, small, dead, ("the example", example)]


@ex.act
def act(fn, x, weights, kind):
    calls, seen, graphs = [], [], []

    def layer(k):
        def run(z):
            calls.append(k)
            seen.append(z.detach().clone())
            graphs.append(int((z * 1).requires_grad))
            factor, shift = weights[k]
            if kind == "dead":
                return z * 0.0
            if kind == "closer":
                return z + 2.0 + shift.abs()
            if kind == "plain":
                return z * factor + shift
            return torch.tanh(z * factor + shift) + 0.1 * z
        return run

    found = []
    for rows in (x, x.flip(0) * 1.5):  # two calls in a row, on another stream
        given = rows.clone().requires_grad_()
        calls.clear(), seen.clear()
        layers = [layer(k) for k in range(len(weights))]
        shares = fn(layers, given)
        found.append({"shares": shares, "calls": list(calls), "seen": list(seen)})
    return {"found": found, "graphs": sum(graphs)}


def expected(x, weights, kind):
    """Shares, and the argument of each layer, in float64: by pairs of rows, not by the mean row."""
    h, shares, seen = x.double(), [], []
    for k in range(len(weights) + 1):
        rows = h.reshape(len(h), -1)
        apart = (rows[:, None] - rows[None]).square().sum() / (2 * len(h) ** 2)
        size = rows.square().sum() / len(h)
        shares.append(float(apart / size) if size > 0 else 0.0)
        if k < len(weights):
            seen.append(h.float())
            h = behind_layer(h, *weights[k].double(), kind)
    return shares, seen


def behind_layer(h, factor, shift, kind):
    """What a layer of this kind returns for h."""
    if kind == "closer":
        return h + 2.0 + shift.abs()
    line = h * factor + shift
    return h * 0.0 if kind == "dead" else line if kind == "plain" else line.tanh() + 0.1 * h


@ex.law
def law(out, x, weights, kind):
    expect_parts(out, "found", "graphs")
    expect_length("calls of your function", out["found"], 2)
    for got, rows in zip(out["found"], (x, x.flip(0) * 1.5), strict=True):
        expect_parts(got, "shares", "calls", "seen")
        shares, seen = expected(rows, weights, kind)
        expect_equal("order of calls of the layers", got["calls"], list(range(len(weights))),
                     "Call each layer once, in order.")
        expect_length("arguments of the layers", got["seen"], len(seen))
        for k, (mine, right) in enumerate(zip(got["seen"], seen, strict=True)):
            expect_close(f"argument of layer {k}", mine, right, rtol=1e-4)
        expect_type("list of fractions", got["shares"], list)
        expect_length("fractions", got["shares"], len(shares),
                      "The fraction for x itself comes first.")
        for k, (mine, right) in enumerate(zip(got["shares"], shares, strict=True)):
            expect_close("fraction for x" if k == 0 else f"fraction after layer {k - 1}", mine,
                         right, rtol=1e-2, atol=1e-9)
    expect_equal("layers called with a graph", out["graphs"], 0,
                 "Call the layers under torch.no_grad().")


# ---- wrong, by name

@not_an_answer
def behind(layers, x):
    shares = []
    with torch.no_grad():
        for layer in [lambda h: h, *layers]:
            x = layer(x)
            rest, size = (x - x.mean(0)).square().mean(), x.square().mean()
            shares.append((rest / size).item() if size > 0 else 0.0)
    return shares


wrong = ex.edits(behind)
LAYERS, CALL, END = "*layers]", "x = layer(x)", "return shares"
REST, SIZE, SHARE = "(x - x.mean(0)).square().mean()", " x.square().mean()", "rest / size"
wrong("leaving out the fraction for x itself",
      "list", END, "return shares[1:]", says="number of fractions")
wrong("returning only the last fraction", "list", END, "return shares[-1]")
wrong("returning tensors instead of floats", "list",
      END, "return [torch.tensor(share) for share in shares]")
wrong("raising an error if there is no layer", "layers",
      "shares = []", "layers[0]; shares = []", says="raised")
wrong("calling at most twelve layers", "layers", LAYERS, "*layers[:12]]", says="order of calls")
wrong("calling every layer on x itself", "in turn",
      CALL, "h = layer(x)", f"{REST},{SIZE}", "(h - h.mean(0)).square().mean(), h.square().mean()")
wrong("calling the layers in reverse order", "in turn", LAYERS, "*layers[::-1]]")
wrong("passing the centred stream to the next layer", "in turn",
      CALL, "x = layer(x - x.mean(0) if shares else x)")
wrong("subtracting one mean over all values instead of the mean row", "rest", "x.mean(0)",
      "x.mean()")
wrong("subtracting each row's own mean, as LayerNorm does", "rest",
      REST, "(x.reshape(len(x), -1) - x.reshape(len(x), -1).mean(1)[:, None]).square().mean()")
wrong("subtracting the mean over the last axis instead of the mean row", "rest",
      " - x.mean(0)", " - x.mean(-1, keepdim=True)")
wrong("not subtracting the mean row", "rest", " - x.mean(0)", "")
wrong("using the unbiased variance, which divides by N - 1", "squares",
      REST, "x.var(0, correction=min(1, len(x) - 1)).mean()")
wrong("using absolute values instead of squares", "squares",
      REST, "(x - x.mean(0)).abs().mean()", SIZE, " x.abs().mean()")
wrong("taking the root of the fraction", "result", END, "return [share ** 0.5 for share in shares]")
wrong("returning the variance itself instead of a fraction", "whole", SHARE, "rest")
wrong("dividing by the variance of all values", "whole", SIZE, " x.var(correction=0)")
wrong("dividing by the mean square of the mean row", "whole", SIZE, " x.mean(0).square().mean()")
wrong("averaging a separate ratio for each position in a row", "whole",
      SHARE,
      "((x - x.mean(0)).square().mean(0) / x.square().mean(0).clamp(min=1e-30)).mean()")
wrong("dividing 0 by 0 for a stream of zeros", "zero", " if size > 0 else 0.0", "")
wrong("returning a fraction of 1 for a stream of zeros", "zero", "else 0.0", "else 1.0")
wrong("computing 1 minus the mean row's part, which loses tiny fractions to rounding", "tiny",
      SHARE, "1 - x.mean(0).square().mean() / size")
wrong("adding 0.05 to the mean square", "whole", SHARE, "rest / (size + 0.05)")
wrong("adding 1e-6 to the mean square", "tiny", SHARE, "rest / (size + 1e-6)")
wrong("building a graph", "no graph", "with torch.no_grad():", "if True:")
wrong("assuming that x has at least two axes", "x", "shares = []", "x.shape[1]; shares = []",
      says="raised")
