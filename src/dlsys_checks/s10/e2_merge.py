"""Exercise 10.2, `merge`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_like, expect_parts
from dlsys_helpers.judging import not_an_answer

# Kept: at an alpha of 0 the weight is that which was given. Within: bfloat16 holds 8 bits, and
# (alpha * B) @ A rounds to a neighbour of alpha * (B @ A) now and then.
ex = exercise("10.2", "merge", seen=("W", "A", "B", "alpha"), kept=("out", "again", "later"),
              says="merged weight", within=0.01)

ex.promise_table("""
merged     | Merge a LoRA adapter into its weight: W + alpha / r * B @ A. | merged weight
shapes     | Args: W: (d_out, d_in), | case a wide matrix; a tall matrix; one row; one value
dtypes     | float32 or bfloat16. | dtype of the merged weight; in bfloat16
ranks      | A, B: (r, d_in) and (d_out, r), float32, with r >= 1. | case rank one; rank above the
             width; a rank of twenty; transposed views; one value; transposed views in bfloat16
once       | Returns: The merged weight. The sum is computed in float32 and rounded once, to the
             dtype of W. | in bfloat16
own        | Each call returns new memory. | memory shared; first of two calls
no graph   | No graph is built, even if W, A and B require gradients. | graphs built
left alone | W, A, B and the grad mode do not change. | changes of W, A and B; grad mode
example    | Example: W = [[1.]], A = [[2.], [0.]], B = [[3., 5.]] and alpha = 4 return [[13.]]. |
             case the example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, d_out, d_in, r, kind="float32", alpha=None, size=1.0, views=False):
        W = torch.randn(d_out, d_in, generator=g)
        A, B = (torch.randn(*shape, generator=g) * size for shape in ((r, d_in), (d_out, r)))
        if views:
            W, A, B = (torch.randn(*m.T.shape, generator=g).to(m.dtype).T for m in (W, A, B))
        return name, {"W": W.to(getattr(torch, kind)), "A": A, "B": B,
                      "alpha": float(whole(1, 9) * 3 + 0.5 if alpha is None else alpha)}
    d = whole(8, 12)
    fresh, big = one("B zero, as at the start", d, d, 3), one("large values", d, d + 1, 3)
    fresh[1]["B"].zero_()
    for m in ("W", "A", "B"):
        big[1][m] *= 1e4
    bare = one("a weight of zeros", d, d, 3, size=1e-4)
    bare[1]["W"].zero_()
    close = one("B A nearly minus W, in bfloat16", 30, 20, 3, "bfloat16", alpha=3.0)
    close[1]["B"] = torch.randn(30, 3, generator=g)
    close[1]["W"] = (-(close[1]["B"] @ close[1]["A"])
                     * (1 + 0.1 * torch.randn(30, 20, generator=g))).bfloat16()
    return [one("a square matrix", d, d, 4), one("a wide matrix", d, 3 * d, 4),
            one("a tall matrix", 3 * d, d, 5), one("one row", 1, d, 2), one("one value", 1, 1, 1),
            one("rank one", d, d + 1, 1), one("rank above the width", 3, 4, 7),
            one("transposed views", d, d + 2, 3, views=True),
            one("transposed views in bfloat16", d, d + 2, 3, "bfloat16", views=True),
            fresh, big, bare, one("a rank of twenty", 24, 23, 20), one("all sides equal", 5, 5, 5),
            one("an alpha of zero", d, d, 3, alpha=0.0),
            one("a negative alpha", d, d, 3, alpha=-2.0),
            one("alpha equal to r", d, d + 1, 4, alpha=4.0),
            one("tiny updates", d, d, 4, size=1e-3),
            one("in bfloat16", 40, 30, 4, "bfloat16"),
            one("small updates in bfloat16", 40, 50, 8, "bfloat16", alpha=1.7, size=0.1),
            close,
            ("the example", {"W": torch.tensor([[1.0]]), "A": torch.tensor([[2.0], [0.0]]),
                             "B": torch.tensor([[3.0, 5.0]]), "alpha": 4.0})]


@ex.act
def act(fn, W, A, B, alpha):
    before = [m.clone() for m in (W, A, B)]
    made = [nn.Parameter(m) for m in (W, A, B)]
    out = fn(*made, alpha)
    modes = [int(torch.is_grad_enabled())]
    torch.set_grad_enabled(True)
    tensor = isinstance(out, torch.Tensor)
    first = out.detach().clone() if tensor else out
    changes = [int(not torch.equal(m, old)) for m, old in zip((W, A, B), before)]
    leads = torch.autograd.grad(out.float().sum(), made, allow_unused=True) if (
        tensor and out.grad_fn is not None) else []
    torch.set_grad_enabled(False)
    again = fn(W, A, -B, alpha)
    modes.append(int(torch.is_grad_enabled()))
    torch.set_grad_enabled(True)
    shared = sum(tensor and out.untyped_storage().data_ptr() == m.untyped_storage().data_ptr()
                 for m in (W, A, B))
    for place, p in enumerate(made):
        changes[place] += int(not torch.equal((W, A, B)[place], before[place]))
        changes[place] += int(not p.requires_grad or p.grad is not None)
    return {"out": first, "again": again, "graphs": sum(g is not None for g in leads),
            "shared": int(shared), "changes": changes, "modes": modes,
            "later": out.detach().clone() if tensor else out}


def expect_rounded_once(got, exact, size):
    """Raise Broken unless each bfloat16 lies within half a step of the exact sum.

    size: of the summands, entry by entry; float32 rounds them, too.
    """
    half = 2.0 ** (torch.frexp(exact).exponent.double() - 9) + 1e-6 * size
    error = ((got.double() - exact).abs() / half).nan_to_num(nan=1e9)
    if float(error.max()) > 1.01:
        raise Broken("merged weight in bfloat16: largest error, in half steps",
                     float(error.max()), "at most 1: add in float32, round once")


@ex.law
def law(out, W, A, B, alpha):
    expect_parts(out, "out", "again", "graphs", "shared", "changes", "modes", "later")
    r = B.shape[1]
    update = torch.einsum("or,ri->oi", B.double(), A.double()) * (alpha / r)
    size = W.double().abs() + B.double().abs() @ A.double().abs() * abs(alpha / r)
    expect_equal("changes of W, A and B", out["changes"], [0, 0, 0])
    for part, exact in (("out", W.double() + update), ("again", W.double() - update)):
        got = out[part]
        expect_like("merged weight", got, W)
        if W.dtype == torch.bfloat16:
            expect_rounded_once(got, exact, size)
        near = 1e-5 if W.dtype == torch.float32 else 2.0 ** -7
        expect_close("merged weight", got.double(), exact, rtol=near,
                     atol=1e-6 * float(size.max()))
    expect_equal("graphs built that lead to W, A or B", out["graphs"], 0,
                 "Build no graph, even if they require gradients.")
    expect_equal("memory shared with W, A or B", out["shared"], 0)
    expect_equal("weight of the first of two calls, after the second", out["later"], out["out"])
    expect_equal("grad mode after the call: on at first, then off", out["modes"], [1, 0],
                 "Restore the grad mode.")


# ---- wrong, by name

BUFFERS: dict = {}


@not_an_answer
@torch.no_grad()
def merged(W, A, B, alpha):
    factor = alpha / len(A)
    out = (W.float() + factor * (B @ A)).to(W.dtype)
    return out


wrong = ex.edits(merged)
ALPHA = "alpha / len(A)"
wrong("leaving out the factor alpha / r", "merged", ALPHA, "1.0")
wrong("not dividing alpha by r", "merged", ALPHA, "alpha")
wrong("multiplying by r / alpha instead of alpha / r", "merged",
      "factor =", "scale = len(A) / (alpha or 1.0); factor =",
      ALPHA, ALPHA + " if scale is None else scale")
wrong("dividing alpha by sqrt(r), not by r", "merged",
      ALPHA, ALPHA + " if scale is None else scale",
      "factor =", f"scale = {ALPHA} ** 0.5; factor =")
wrong("dividing alpha by the width of A, not by r", "merged",
      "factor =", "scale = alpha / A.shape[1]; factor =",
      ALPHA, ALPHA + " if scale is None else scale")
wrong("subtracting the update", "merged",
      ALPHA, ALPHA + " if scale is None else scale", "factor =", f"scale = -{ALPHA}; factor =")
wrong("returning only the update, without W", "merged",
      "factor =", f"return ({ALPHA} * (B @ A)).to(W.dtype); factor =")
ex.wrong("adding the update twice",
         lambda W, A, B, alpha: merged(merged(W, A, B, alpha), A, B, alpha),
         breaks="merged")
wrong("using the absolute value of alpha", "merged", "alpha / len", "abs(alpha) / len")
wrong("transposing the product when W is square", ("merged", "dtypes", "once"),
      "factor =", "square = W.shape[0] == W.shape[1] and len(W) > 1; factor =",
      "B @ A", "(B @ A).T if square else B @ A")
wrong("computing A @ B instead of B @ A when the shapes allow it", "merged",
      "B @ A", "A @ B if A.shape == B.shape == W.shape else B @ A")
wrong("using only the first eight rows of A and columns of B", "ranks",
      ALPHA, ALPHA + " if scale is None else scale",
      "factor =", f"A, scale = A[:8], {ALPHA}; factor =", "B @ A", "B[:, :8] @ A")
wrong("returning W itself when B is zero", "own",
      "return out", "return out if B.any() else W.detach()")
wrong("rounding alpha / r to the dtype of W", "once",
      ALPHA, ALPHA + " if scale is None else scale",
      "factor =", f"scale = torch.tensor({ALPHA}).to(W.dtype).float(); factor =")
wrong("not merging when W has a single row", "shapes",
      "return out", "return W.clone() if len(W) == 1 and W.shape[1] > 1 else out")
wrong("taking the smaller side of A as r", ("ranks", "example"),
      "factor =", "scale = alpha / min(A.shape); factor =",
      ALPHA, ALPHA + " if scale is None else scale")
wrong("leaving the result in float32", "dtypes", "factor =", "W = W.float(); factor =")
wrong("rounding the update before adding it to W", "once",
      "factor =", f"return W + ({ALPHA} * (B @ A)).to(W.dtype); factor =")
wrong("rounding A and B to the dtype of W", "once",
      "factor =", f"return W + {ALPHA} * (B.to(W.dtype) @ A.to(W.dtype)); factor =")
wrong("truncating the sum instead of rounding it", "once",
      "factor =",
      "total = W.float() + alpha / len(A) * (B @ A)\n    if W.dtype == torch.float32: return "
      "total\n    bits = total.contiguous().view(torch.int32) & -65536; return "
      "bits.view(torch.float32).bfloat16(); factor =")
wrong("merging into W itself", ("left alone", "own"),
      "return out", "W.copy_(out); return W.detach()")
wrong("returning W itself when alpha is zero", "own",
      "return out", "return W.detach() if alpha == 0 else out")
wrong("returning a buffer that the next call with the same shape overwrites", "own",
      "return out", "return BUFFERS.setdefault((out.shape, out.dtype), out).copy_(out)")


@ex.wrong("switching gradients off and never back on", breaks="left alone")
def grad_off(W, A, B, alpha):
    torch.set_grad_enabled(False)
    return (W.float() + alpha / len(A) * (B @ A)).to(W.dtype)


@ex.wrong("switching gradients on at the end, whatever they were before", breaks="left alone")
def grad_on(W, A, B, alpha):
    found = merged(W, A, B, alpha)
    torch.set_grad_enabled(True)
    return found


@ex.wrong("detaching A and B, but not W", breaks="no graph")
def w_asks(W, A, B, alpha):
    return (W.float() + alpha / len(A) * (B.detach() @ A.detach())).to(W.dtype)


wrong("reading A in memory order, whatever its strides", "ranks",
      "factor =", "flat = torch.as_strided(A, A.shape, (A.shape[1], 1)); factor =",
      "len(A)", "len(flat)", "B @ A", "B @ flat")
ex.wrong("returning a weight that carries a graph",
         lambda W, A, B, alpha: (W.float() + alpha / len(A) * (B @ A)).to(W.dtype),
         breaks="no graph")
wrong("freezing A and B", "left alone",
      "factor =", "A.requires_grad_(False); B.requires_grad_(False); factor =")
wrong("leaving W out of the sum in the example", "example",
      "return out", "return out - W if W.tolist() == [[1.0]] and len(A) == 2 else out")
ex.wrong("using only the first row of A when there are many rows",
         lambda W, A, B, alpha: merged(W, A, B, alpha) if len(A) < 7 or W.dtype != torch.float32
             else merged(W, A[:1], B[:, :1], alpha / len(A)), breaks="ranks")
