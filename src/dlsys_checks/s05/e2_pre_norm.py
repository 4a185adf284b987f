"""Exercise 05.2, `pre_norm`."""

from __future__ import annotations

import itertools

import torch

from dlsys_checks.kit import integers
from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

# Kept: the first norm is handed x as it is.
ex = exercise("05.2", "pre_norm", seen=("x", "weights", "gains", "writes", "kind"),
              kept=("seen",))

ex.promise("result", "The stream x after all branches of a pre-norm net, and its last norm.",
           says=("result",))
ex.promise("none", "branches: K functions, K >= 0;",
           cases=("no branch", "no branch, a norm that writes"))
ex.promise("count", "norms: K + 1 functions.",
           cases=("no branch", "one branch", "seven branches", "sixteen branches", "the example",
                  "an image", "one number"))
ex.promise("into the branch", "Branch k gets the stream through norm k,", says=("argument of",))
ex.promise("added", "and what it returns is added to the stream.", says=("argument of", "result"))
ex.promise("stream", "The stream itself passes no norm but the last one, at the end.",
           says=("argument of", "result"))
ex.promise("order", "Each function is called once, in this order;", says=("order of calls",))
ex.promise("writes", "it may write into its argument", says=("argument of", "result", "gradient",
                                                            "caller's x", "RuntimeError"))
ex.promise("shape", "and keeps the shape.", cases=("an image", "one number"))
ex.promise("x left", "x and the lists stay as they were;", says=("caller's x", "caller's lists"))
ex.promise("gradients", "gradients reach x.", says=("gradient",))
ex.promise("example", "Example: x 1, one branch that doubles, norms that add 10 and 100: the "
           "branch gets 11 and returns 22, and the result is 123.", cases=("the example",))


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, count, *shape, writes=False, scale=1.0, kind="tanh"):
        shape = shape or (whole(2, 5), whole(3, 7), whole(4, 9))
        x = torch.randn(shape, generator=g) * scale
        # A branch is tanh(w * z + w / 2); norm k scales to a mean square of one, then by a gain.
        weights = (1 + torch.rand(count, generator=g)) * (1 - 2 * (torch.rand(
            count, generator=g) < 0.3).float())
        if count > 7:  # each branch multiplies the rounding before it
            weights = weights / 4
        return name, {"x": x, "weights": weights, "gains": 0.5 + 2 * torch.rand(
            count + 1, generator=g), "writes": writes, "kind": kind}

    number = one("one number", 2, 1)  # no sum near zero, where rounding is all that is left
    number[1].update(x=0.1 + number[1]["x"].abs(), weights=number[1]["weights"].abs())
    example = {"x": torch.tensor(1.0), "weights": torch.tensor([2.0]), "writes": False,
               "gains": torch.tensor([10.0, 100.0]), "kind": "plain"}
    return [one("three branches", 3), one("no branch", 0), one("one branch", 1),
            one("seven branches", 7), one("sixteen branches", 16),
            one("a large stream", 4, scale=100.0),
            one("a tiny stream", 3, scale=1e-3),
            one("functions that write", whole(2, 5), writes=True),
            one("no branch, a norm that writes", 0, writes=True),
            one("an image", 2, 2, 3, 5, 4), number,
            ("the example", example)]


@ex.act
def act(fn, x, weights, gains, writes, kind):
    seen, calls = [], []

    def given_back(z, out):
        if not writes:
            return out
        if z.is_leaf and z.requires_grad:
            raise RuntimeError("a norm or branch that writes into its argument was handed x "
                               "itself. Hand it a copy: x.clone()")
        return z.copy_(out)

    def norm(k):
        def run(z):
            calls.append(f"norm {k}")
            seen.append(z.detach().clone())
            if kind == "plain":
                return z + gains[k]
            own = z.clone()
            out = own * gains[k] / (own.square().mean(-1, keepdim=True) + 1e-6).sqrt()
            return given_back(z, out)
        return run

    def branch(k):
        def run(z):
            calls.append(f"branch {k}")
            seen.append(z.detach().clone())
            if kind == "plain":
                return z * weights[k]
            return given_back(z, torch.tanh(weights[k] * z.clone() + weights[k] / 2))
        return run

    found = []
    for origin in ("plain", "inner", "leaf"):  # three calls in a row, none may know another
        seen.clear()
        calls.clear()
        leaf = x.clone().requires_grad_(origin != "plain")
        given = leaf * 1.0 if origin == "inner" else leaf
        lists = [branch(k) for k in range(len(weights))], [norm(k) for k in range(len(gains))]
        mine = [list(functions) for functions in lists]
        out = fn(given, *mine)
        touched = int((given.detach() != x).sum())
        grad = None
        if isinstance(out, torch.Tensor) and out.requires_grad:
            grad, = torch.autograd.grad(out, leaf, torch.cos(out.detach()), allow_unused=True)
        if origin == "plain":
            grad = None
        found.append({"out": out, "grad": grad, "calls": list(calls), "seen": list(seen),
                      "touched": touched, "moved": sum(a != b for a, b in zip(mine, lists))})
    return found


def expected(x, weights, gains, kind):
    """Result, its gradient and the argument of each call, in float64."""
    leaf = x.double().requires_grad_()
    w, g, seen, sums = weights.double(), gains.double(), [], [leaf]
    for k in range(len(w) + 1):
        stream = torch.stack(sums).sum(0)
        seen.append(stream.detach())
        out = stream + g[k] if kind == "plain" else g[k] * stream * (
            stream.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        if k < len(w):
            seen.append(out.detach())
            sums.append(out * w[k] if kind == "plain" else torch.tanh(w[k] * (out + 0.5)))
    grad, = torch.autograd.grad(out, leaf, torch.cos(out.detach()))
    return out.detach().float(), grad.float(), [z.float() for z in seen]


def expect_order(got, order):
    """Raise Broken at the first call that is not the one in order."""
    expect_type("order of calls", got, list)
    for k, (mine, right) in enumerate(itertools.zip_longest(got, order, fillvalue="none"), 1):
        expect_equal(f"order of calls, number {k}", mine, right, "Each function once, in turn.")


@ex.law
def law(out, x, weights, gains, writes, kind):
    expect_length("calls of your function", out, 3)
    result, grad, seen = expected(x, weights, gains, kind)
    order = [name for k in range(len(weights)) for name in (f"norm {k}", f"branch {k}")]
    order.append(f"norm {len(weights)}")
    for k, one in enumerate(out):
        expect_parts(one, "out", "grad", "calls", "seen", "touched", "moved")
        expect_equal("numbers changed in the caller's x", one["touched"], 0, "Work on a copy.")
        expect_order(one["calls"], order)
        expect_equal("changes in the caller's lists", one["moved"], 0, "Take nothing off them.")
        expect_length("arguments", one["seen"], len(seen))
        for name, mine, right in zip(order, one["seen"], seen, strict=True):
            expect_close(f"argument of {name}", mine, right, rtol=1e-4,
                         atol=1e-5 * float(right.abs().max()))
        expect_close("result", one["out"], result, rtol=1e-4,
                     atol=1e-5 * float(result.abs().max()))
        if k == 0:
            expect_equal("gradient for an x that asks for none", one["grad"], None)
            continue
        expect_like("gradient for x", one["grad"], grad, "It has to reach x.")
        expect_close("gradient for x", one["grad"], grad, rtol=2e-3,
                     atol=1e-4 * max(1.0, float(grad.abs().max())))


# ---- wrong, by name

@not_an_answer
def stack(x, branches, norms, *, carry=None, last=True, hand=torch.clone):
    """The worked answer with its mistakes as options; carry(x, normed, out) is the new stream."""
    for branch, norm in zip(branches, norms, strict=False):
        normed = norm(hand(x))
        kept = normed.clone()
        x = (carry or (lambda x, n, out: x + out))(x, kept, branch(normed))
    return norms[-1](hand(x)) if last else x


@ex.wrong("post-norm: the norm after the sum", breaks="order")
def post_norm(x, branches, norms):
    for branch, norm in zip(branches, norms, strict=False):
        x = norm(x + branch(x.clone()))
    return norms[-1](x.clone())


@ex.wrong("post-norm as in torch's default layer, with no norm at the end",
          breaks=("order", "none"))
def post_norm_only(x, branches, norms):
    for branch, norm in zip(branches, norms, strict=False):
        x = norm(x + branch(x.clone()))
    return x


@ex.wrong("the norm behind the branch, before the sum", says="order of calls", breaks="order")
def norm_behind(x, branches, norms):
    for branch, norm in zip(branches, norms, strict=False):
        x = x + norm(branch(x.clone()))
    return norms[-1](x.clone())


@ex.wrong("x += in place, which a leaf refuses", says="raised RuntimeError",
          breaks=("x left", "writes"))
def added_in_place(x, branches, norms):
    for branch, norm in zip(branches, norms, strict=False):
        x += branch(norm(x.clone()))
    return norms[-1](x.clone())


ex.wrong("the norm on the stream as well", stack, breaks="stream",
         carry=lambda x, normed, out: normed + out)
ex.wrong("no norm at the end", stack, breaks="order", last=False)


@ex.wrong("the last norm's result thrown away", breaks="result")
def last_norm_ignored(x, branches, norms):
    x = stack(x, branches, norms, last=False)
    norms[-1](x.clone())
    return x


@ex.wrong("no sum: each branch takes the place of the stream", breaks="added")
def no_sum(x, branches, norms):
    return stack(x, branches, norms, carry=lambda x, normed, out: out + 0 * x)


@ex.wrong("the stream halved with each sum", breaks="added")
def averaged(x, branches, norms):
    return stack(x, branches, norms, carry=lambda x, normed, out: (x + out) / 2)


@ex.wrong("every branch fed from x, not from the stream", breaks="into the branch")
def from_the_start(x, branches, norms):
    total = x
    for branch, norm in zip(branches, norms, strict=False):
        total = total + branch(norm(x.clone()))
    return norms[-1](total.clone())


@ex.wrong("branches fed without their norms, which are called for nothing",
          says="argument of branch 0", breaks="into the branch")
def norms_ignored(x, branches, norms):
    for branch, norm in zip(branches, norms, strict=False):
        norm(x.clone())
        x = x + branch(x.clone())
    return norms[-1](x.clone())


ex.wrong("an early end where there is no branch",
         lambda x, branches, norms: stack(x, branches, norms) if branches else x,
         says="order of calls", breaks="none")
ex.wrong("one norm for all: the first",
         lambda x, branches, norms: stack(x, branches, [norms[0]] * len(norms)), breaks="order")


@ex.wrong("only seven norms known", says="order of calls", breaks="count")
def seven_at_most(x, branches, norms):
    return stack(x, branches, norms[:7]) if len(norms) > 7 else stack(x, branches, norms)


ex.wrong("the stream itself handed to functions that write", stack, breaks="writes",
         hand=lambda z: z)


@ex.wrong("more than three axes flattened to three", says="shape of the argument", breaks="shape")
def three_axes(x, branches, norms):
    flat = x.flatten(1, -2) if x.dim() > 3 else x
    return stack(flat, branches, norms).view(x.shape)


@ex.wrong("the sums written into x", breaks="x left")
def into_x(x, branches, norms):
    out = stack(x, branches, norms)
    if branches:
        x.data.add_(1.0)
    return out


@ex.wrong("norms and branches taken off the caller's lists", breaks="x left")
def takes_off(x, branches, norms):
    while branches:
        x = x + branches.pop(0)(norms.pop(0)(x.clone()))
    return norms[0](x.clone())


ex.wrong("a stream cut off from x", lambda x, branches, norms: stack(x.detach(), branches, norms),
         breaks="gradients")


@ex.wrong("gradients through the branches only", breaks="gradients")
def detached_sum(x, branches, norms):
    return stack(x, branches, norms, carry=lambda x, normed, out: x.detach() + out)
