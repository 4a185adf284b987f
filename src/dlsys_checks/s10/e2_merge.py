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

ex.promise("merged", "The one weight that does the work of W and its LoRA adapter. That is W plus "
           "alpha / r times the product of B and A.", says=("merged weight",))
ex.promise("shapes", "W: (d_out, d_in),", cases=("a wide matrix", "a tall matrix", "one row",
                                                 "one number"))
ex.promise("dtypes", "float32 or bfloat16;", says=("dtype of the merged weight",
                                                   "in bfloat16"))
ex.promise("ranks", "A: (r, d_in) and B: (d_out, r), both float32, r at least 1.",
           cases=("rank one", "rank above the width", "a rank of twenty", "transposed views",
                  "one number",
                  "transposed views in bfloat16"))
ex.promise("once", "The sum is taken in float32 and rounded once, to the dtype of W.",
           says=("in bfloat16",))
ex.promise("own", "The result has memory of its own at each call,",
           says=("memory shared", "first of two calls"))
ex.promise("no graph", "and no graph is built, though all three may ask for gradients.",
           says=("graphs built",))
ex.promise("left alone", "W, A and B stay as they are, and so does the grad mode.",
           says=("changes of W, A and B", "grad mode"))
ex.promise("example", "Example: W = [[1.]], A = [[2.], [0.]], B = [[3., 5.]] and alpha = 4 give "
           "[[13.]].", cases=("the example",))


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
    fresh, big = one("B zero, as at the start", d, d, 3), one("large numbers", d, d + 1, 3)
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
            one("a tall matrix", 3 * d, d, 5), one("one row", 1, d, 2), one("one number", 1, 1, 1),
            one("rank one", d, d + 1, 1), one("rank above the width", 3, 4, 7),
            one("transposed views", d, d + 2, 3, views=True),
            one("transposed views in bfloat16", d, d + 2, 3, "bfloat16", views=True),
            fresh, big, bare, one("a rank of twenty", 24, 23, 20), one("all sides alike", 5, 5, 5),
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
    expect_equal("graphs built, that lead to so many of W, A and B", out["graphs"], 0,
                 "They may ask for gradients.")
    expect_equal("memory shared with W, A or B", out["shared"], 0)
    expect_equal("weight of the first of two calls, after the second", out["later"], out["out"])
    expect_equal("grad mode after the call: on at first, then off", out["modes"], [1, 0],
                 "Put it back.")


# ---- wrong, by name

@not_an_answer
@torch.no_grad()
def merged(W, A, B, alpha, *, scale=None, update=None):
    """The worked answer with the factor or the product replaced."""
    factor = alpha / len(A) if scale is None else scale
    return (W.float() + factor * (B @ A if update is None else update())).to(W.dtype)


ex.wrong("alpha / r forgotten", merged, breaks="merged", scale=1.0)
ex.wrong("alpha not divided by r", lambda W, A, B, alpha: merged(W, A, B, alpha, scale=alpha),
         breaks="merged")
ex.wrong("r over alpha",
         lambda W, A, B, alpha: merged(W, A, B, alpha, scale=len(A) / (alpha or 1.0)),
         breaks="merged")
ex.wrong("divided by the root of r",
         lambda W, A, B, alpha: merged(W, A, B, alpha, scale=alpha / len(A) ** 0.5),
         breaks="merged")
ex.wrong("divided by the width, not by r",
         lambda W, A, B, alpha: merged(W, A, B, alpha, scale=alpha / A.shape[1]), breaks="merged")
ex.wrong("the update taken away",
         lambda W, A, B, alpha: merged(W, A, B, alpha, scale=-alpha / len(A)), breaks="merged")


@ex.wrong("the update alone, without W", breaks="merged")
@torch.no_grad()
def without_w(W, A, B, alpha):
    return (alpha / len(A) * (B @ A)).to(W.dtype)


ex.wrong("merged twice", lambda W, A, B, alpha: merged(merged(W, A, B, alpha), A, B, alpha),
         breaks="merged")
ex.wrong("alpha taken without its sign", lambda W, A, B, alpha: merged(W, A, B, abs(alpha)),
         breaks="merged")


@ex.wrong("the product transposed where W is square", breaks=("merged", "dtypes", "once"))
def transposed_product(W, A, B, alpha):
    square = W.shape[0] == W.shape[1] and len(W) > 1
    return merged(W, A, B, alpha, update=lambda: (B @ A).T if square else B @ A)


@ex.wrong("A before B where the sides allow it", breaks="merged")
def a_before_b(W, A, B, alpha):
    return merged(W, A, B, alpha, update=lambda: A @ B if A.shape == B.shape == W.shape else B @ A)


ex.wrong("ranks above eight cut off",
         lambda W, A, B, alpha: merged(W, A[:8], B[:, :8], alpha, scale=alpha / len(A)),
         breaks="ranks")
ex.wrong("W handed back for a fresh adapter",
         lambda W, A, B, alpha: merged(W, A, B, alpha) if B.any() else W.detach(), breaks="own")


@ex.wrong("alpha / r rounded to the dtype of W", breaks="once")
def factor_rounded(W, A, B, alpha):
    return merged(W, A, B, alpha, scale=torch.tensor(alpha / len(A)).to(W.dtype).float())


@ex.wrong("a matrix of one row left alone", breaks="shapes")
def one_row(W, A, B, alpha):
    return W.clone() if len(W) == 1 and W.shape[1] > 1 else merged(W, A, B, alpha)


ex.wrong("r read as the smaller side",
         lambda W, A, B, alpha: merged(W, A, B, alpha, scale=alpha / min(A.shape)),
         breaks=("ranks", "example"))
ex.wrong("the result left in float32", lambda W, A, B, alpha: merged(W.float(), A, B, alpha),
         breaks="dtypes")


@ex.wrong("the update rounded before the sum", breaks="once")
@torch.no_grad()
def rounded_first(W, A, B, alpha):
    return W + (alpha / len(A) * (B @ A)).to(W.dtype)


@ex.wrong("A and B rounded to the dtype of W", breaks="once")
@torch.no_grad()
def in_low_precision(W, A, B, alpha):
    return W + alpha / len(A) * (B.to(W.dtype) @ A.to(W.dtype))


@ex.wrong("cut off instead of rounded", breaks="once")
@torch.no_grad()
def cut_off(W, A, B, alpha):
    total = W.float() + alpha / len(A) * (B @ A)
    if W.dtype == torch.float32:
        return total
    bits = total.contiguous().view(torch.int32) & -65536
    return bits.view(torch.float32).bfloat16()


@ex.wrong("merged into W itself", breaks=("left alone", "own"))
@torch.no_grad()
def into_w(W, A, B, alpha):
    W.copy_(merged(W, A, B, alpha))
    return W.detach()


ex.wrong("W handed back where the update is zero",
         lambda W, A, B, alpha: W.detach() if alpha == 0 else merged(W, A, B, alpha), breaks="own")


BUFFERS: dict = {}


@ex.wrong("one result for all calls of a shape, written over", breaks="own")
def one_buffer(W, A, B, alpha):
    found = merged(W, A, B, alpha)
    return BUFFERS.setdefault((found.shape, found.dtype), found).copy_(found)


@ex.wrong("gradients switched off and not on again", breaks="left alone")
def grad_off(W, A, B, alpha):
    torch.set_grad_enabled(False)
    return (W.float() + alpha / len(A) * (B @ A)).to(W.dtype)


@ex.wrong("gradients switched on at the end, whatever they were", breaks="left alone")
def grad_on(W, A, B, alpha):
    found = merged(W, A, B, alpha)
    torch.set_grad_enabled(True)
    return found


@ex.wrong("A and B detached, W not", breaks="no graph")
def w_asks(W, A, B, alpha):
    return (W.float() + alpha / len(A) * (B.detach() @ A.detach())).to(W.dtype)


@ex.wrong("memory read in its order, whatever the strides", breaks="ranks")
@torch.no_grad()
def by_memory(W, A, B, alpha):
    flat = torch.as_strided(A, A.shape, (A.shape[1], 1))
    return merged(W, flat, B, alpha)


ex.wrong("a graph behind the weight",
         lambda W, A, B, alpha: (W.float() + alpha / len(A) * (B @ A)).to(W.dtype),
         breaks="no graph")


@ex.wrong("A and B frozen", breaks="left alone")
def freezes(W, A, B, alpha):
    A.requires_grad_(False)
    B.requires_grad_(False)
    return merged(W, A, B, alpha)


@ex.wrong("a single number multiplied instead of added", breaks="example")
def one_number(W, A, B, alpha):
    out = merged(W, A, B, alpha)
    return out - W if W.tolist() == [[1.0]] and len(A) == 2 else out


@ex.wrong("the first rank only, where the ranks are many", breaks="ranks")
def few_ranks(W, A, B, alpha):
    return merged(W, A, B, alpha) if len(A) < 7 or W.dtype != torch.float32 else merged(
        W, A[:1], B[:, :1], alpha / len(A))
