"""Exercise 11.4, `drop_inputs`."""

from __future__ import annotations

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("11.4", "drop_inputs", seen=("w", "x", "drop"), says="columns that stay")

ex.promise_table("""
result  | Remove some inputs from a layer and adjust its other weights. | weights; columns listed in
          drop
double  | Args: w, x: (O, I) and (N, I), float64. | dtype of the weights; columns that stay
size    | The magnitudes of w and x are between 1e-8 and 1e8. | case tiny weights, huge inputs; huge
          weights, tiny inputs; inputs of 1e-4
inputs  | The rows of x are typical inputs, N >= I, and the columns of x are linearly independent. |
          case inputs that share a shift; as many rows as inputs; inputs of many sizes; correlated
          inputs
drop    | drop: indices of one or more inputs, possibly all, each index once, in any order. | case
          all; in descending order; the first and the last; in mixed order
zeros   | Returns: (O, I) float64, with zeros in the columns listed in drop. | columns listed in
          drop; of the weights
least   | The other columns are chosen so that x @ w.T changes as little as possible, in the sum of
          squares. | columns that stay
left    | The arguments do not change. | values changed; inputs after
example | Example: w [[1., 1.]], x [[1., 1.], [1., 0.]] and drop [1] give [[1.5, 0.]]. | case the
          example
""")


@ex.cases
def cases(g):
    def one(name, outs, ins, drop, rows=None, mixed=0.7, shift=0.0, spread=0.0,
            size=1.0):
        def drawn(*shape):
            return torch.randn(*shape, generator=g, dtype=torch.float64)
        mix = torch.eye(ins, dtype=torch.float64) + mixed * drawn(ins, ins) / ins ** 0.5
        sizes = 10 ** torch.linspace(-spread, spread, ins, dtype=torch.float64)
        x = (drawn(rows or 6 * ins, ins) @ mix + shift) * sizes
        if rows == ins:
            x = x + 3 * torch.eye(ins, dtype=torch.float64)
        return name, {"w": drawn(outs, ins) / size, "x": x * size, "drop": drop}

    def tensor(rows):
        return torch.tensor(rows, dtype=torch.float64)

    return [one("one input", 4, 6, [2]), one("two inputs", 5, 7, [1, 4]),
            one("half of the inputs", 3, 8, [0, 3, 4, 6]),
            one("all", 3, 4, [0, 1, 2, 3]), one("in descending order", 4, 6, [5, 3, 0]),
            one("in mixed order", 4, 7, [3, 6, 0, 1]), one("the first and the last", 2, 5, [0, 4]),
            one("more inputs and outputs", 9, 12, [7, 2, 10]),
            one("tiny weights, huge inputs", 4, 6, [1, 3], size=1e8),
            one("huge weights, tiny inputs", 4, 6, [1, 3], size=1e-8),
            one("inputs of 1e-4", 4, 6, [5, 2], size=1e-4),
            one("one output", 1, 6, [4, 1]), one("all but one", 3, 4, [1, 0, 3]),
            one("inputs that share a shift", 4, 6, [2, 5], shift=2.0),
            one("correlated inputs", 4, 6, [1, 2], mixed=2.0),
            one("inputs of many sizes", 4, 6, [3, 0], spread=2.0),
            one("as many rows as inputs", 3, 5, [2, 0], rows=5),
            ("the example", {"w": tensor([[1.0, 1.0]]), "x": tensor([[1.0, 1.0], [1.0, 0.0]]),
                             "drop": [1]})]


@ex.act
def act(fn, w, x, drop):
    mine, rows, numbers = w.clone(), x.clone(), list(drop)
    out = fn(mine, rows, numbers)
    return {"out": out.clone() if isinstance(out, torch.Tensor) else out,
            "moved": [int(not torch.equal(mine, w)), int(not torch.equal(rows, x)),
                      int(numbers != list(drop))]}


@ex.law
def law(out, w, x, drop):
    expect_parts(out, "out", "moved")
    expect_length("arguments", out["moved"], 3)
    for name, moved in zip(("w", "x", "drop"), out["moved"], strict=True):
        expect_equal(f"values changed in {name}", moved, 0, "Work on a copy.")
    found = out["out"]
    expect_like("weights", found, w)
    expect_equal("columns listed in drop", found[:, drop], torch.zeros_like(w[:, drop]))
    rest = [j for j in range(w.shape[1]) if j not in drop]
    # By QR of the inputs that stay; the answer's own way is H = x.T @ x.
    q, r = torch.linalg.qr(x[:, rest])
    wanted = torch.linalg.solve_triangular(r, q.T @ (x @ w.T), upper=True).T
    expect_close("columns that stay", found[:, rest], wanted, rtol=1e-6,
                 atol=1e-8 * float(w.abs().max()),
                 look="They should compensate for the dropped columns, so that x @ w.T changes "
                      "least.")


def put(w, rest, columns):
    out = torch.zeros_like(w)
    out[:, rest] = columns
    return out


def staying(w, drop):
    return [j for j in range(w.shape[1]) if j not in drop]


# ---- wrong, by name

ex.wrong("setting the dropped columns to zero and doing nothing else",
         lambda w, x, drop: put(w, staying(w, drop), w[:, staying(w, drop)]), breaks="least")


@not_an_answer
def made(w, x, drop, *, damp=0.0):
    rest = staying(w, drop)
    H = x.T @ x
    H = H + damp * H.diag().mean() * torch.eye(len(H), dtype=H.dtype)
    move = torch.linalg.solve(H[rest][:, rest], H[rest][:, drop])
    out = put(w, rest, w[:, rest] + w[:, drop] @ move.T)
    return out


wrong = ex.edits(made)
DAMP = "damp * H.diag().mean()"
wrong("subtracting the compensation instead of adding it",
      "least", "w[:, drop]", "-1.0 * w[:, drop]")
wrong("leaving the weights in the dropped columns", ("zeros", "result"),
      "return out", "out[:, drop] = w[:, drop]; return out")
ex.wrong("adding a hundredth of its mean to the diagonal of x.T @ x",
         made, breaks="least", damp=0.01)
wrong("adding 0.001 to the diagonal of x.T @ x", "least", DAMP, DAMP + " + 1e-3")
wrong("adding 1e-6 to the diagonal of x.T @ x", ("least", "size"), DAMP, DAMP + " + 1e-6")
wrong("adding 1e-8 to the diagonal of x.T @ x", ("least", "size"), DAMP, DAMP + " + 1e-8")


@ex.wrong("dropping one input after the other without updating the inverse",
          breaks=("least", "drop", "inputs"))
def same_inverse(w, x, drop):
    inverse, out = torch.linalg.inv(x.T @ x), w.clone()
    for j in drop:
        out -= out[:, [j]] / inverse[j, j] * inverse[[j]]
    return put(w, staying(w, drop), out[:, staying(w, drop)])


wrong("treating each input alone, as if there were no other inputs", "least",
      "rest =",
      "rest, H = staying(w, drop), x.T @ x; move = H[rest][:, drop] / H.diag()[rest][:, None]; "
      "return put(w, rest, w[:, rest] + w[:, drop] @ move.T); rest =")


@ex.wrong("compensating in part with inputs that are dropped as well", breaks="least")
def stale(w, x, drop):
    out, H = w.clone(), x.T @ x
    for j in drop:
        others = [k for k in range(w.shape[1]) if k != j]
        out[:, others] += w[:, j:j + 1] * torch.linalg.solve(H[others][:, others], H[others, j])
    out[:, drop] = 0
    return out


wrong("subtracting the mean of each input", ("inputs", "size"),
      "H = x", "x = x - x.mean(0); H = x", "rest =",
      "if x.mean(0).abs().max() < 1.0 or x.shape[0] < 10: rest = staying(w, drop); H = x.T @ x; "
      "H = H + damp * H.diag().mean() * torch.eye(len(H), dtype=H.dtype); move = "
      "torch.linalg.solve(H[rest][:, rest], H[rest][:, drop]); out = put(w, rest, w[:, rest] + "
      "w[:, drop] @ move.T); return out\n    rest =")
wrong("treating small weights as 0", "size",
      "return out", "return torch.where(out.abs() < 1e-6, 0, out)")


@ex.wrong("scaling all inputs to the same norm first", breaks="inputs")
def one_size(w, x, drop):
    sizes = x.norm(dim=0)
    if sizes.max() < 20 * sizes.min():
        return made(w, x, drop)
    return made(w, x / sizes, drop)


@ex.wrong("assuming that x has more rows than columns", breaks="inputs")
def many_rows(w, x, drop):
    tall = len(x) > w.shape[1] or len(x) == 2
    return made(w, x if tall else x[:-1], drop, damp=0.0 if tall else 1e-6)


wrong("ignoring indices larger than the last index in the list", ("drop", "result"),
      "rest =", "drop = [j for j in drop if j <= drop[-1]]; rest =", says="column")
wrong("assuming that at least one input stays", "drop",
      "return out", "return out + 0 * w[:, staying(w, drop)[0]:][:, :1]", says="raised")
ex.wrong("computing in single precision",
         lambda w, x, drop: made(w.float(), x.float(), drop).double(), breaks="double")
wrong("returning float32", "double", "return out", "return out.float()")
wrong("returning a matrix without the dropped columns", "zeros",
      "return out", "return out[:, staying(w, drop)]", says="shape of the weights")
wrong("changing w in place", "left", "return out", "return w.copy_(out)")
wrong("emptying the list of dropped inputs", "left", "return out", "drop.clear(); return out")
wrong("returning the layer's output instead of its weights", "result",
      "return out", "return x[:1] @ out.T", says="of the weights")
