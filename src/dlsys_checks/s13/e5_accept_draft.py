"""Exercise 13.5, `accept_draft`."""

from __future__ import annotations

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
    show,
)
from dlsys_helpers.judging import not_an_answer

NEXT = 1e-9  # how near to p / q, as a share of it, a number u is tried

ex = exercise("13.5", "accept_draft", seen=("p", "q", "tries", "grid"), says="rejection")

ex.promise("pair", "Return (token, kept): the token to write for a draft x, and whether that "
                   "token is x.",
           says=("token of a draft that is kept", "of a draft that is rejected"))
ex.promise("any", "p, q: the probabilities of target and draft, (V,) float64, possibly with zeros.",
           cases=("zeros in p and in q", "a confident target", "equal, except for two",
                  "many tokens", "almost equal"))
ex.promise("drawn", "x: a token sampled from q.", cases=("a confident draft",))
ex.promise("edges", "u, v: independent uniform random numbers, above 0 and below 1.",
           cases=("probabilities of thousandths", "many tokens"))
ex.promise_table("""
rule    | x is kept if u is less than p[x] / q[x]. | kept for draft; number kept of
alone   | If x is not kept, only v decides which token is written. | after another u
follows | Over all x, u and v, the token follows p exactly. | share of token; raised
types   | token is an int, and kept is a bool. | types of
left    | p and q are not changed. | values changed
example | Example: p [0.5, 0.5], q [1., 0.], x 0: u 0.2 gives (0, True), u 0.7 gives (1, False). |
          case the example
""")


@ex.cases
def cases(g):
    def one(name, p, q, tries=None, grid=100):
        p, q = (t / t.sum() for t in (p.double(), q.double()))
        xs = [x for x in range(len(q)) if q[x] > 0]
        if tries is None:
            ratios = [min(1.0, (p[x] / q[x]).item()) for x in xs]
            tries = [(x, u, v) for x, r in zip(xs, ratios) for u, v in (
                (0.9 * r, 0.3), ((1 + 2 * r) / 3, 0.55), (0.5, 0.8), ((1 + r) / 2, 0.1),
                (r * (1 - NEXT), 0.4), (r * (1 + NEXT), 0.6)) if abs(u - r) > 1e-12 and u < 1]
        return name, {"p": p, "q": q, "tries": tries, "grid": grid}

    def some(n):
        return 0.2 + torch.rand(n, generator=g, dtype=torch.float64)

    holes = some(6), some(6)
    holes[0][[0, 3]], holes[1][[1, 3, 5]] = 0.0, 0.0
    sure = torch.zeros(4)
    sure[int(torch.randint(4, (), generator=g))] = 1.0
    near = some(5)
    moved = near.clone()
    moved[1], moved[3] = near[1] + 0.1, near[3] - 0.1
    almost = one("almost equal", near, near, tries=[(0, 0.5, 0.3), (1, 0.5, 0.8), (3, 0.9, 0.1)])
    shift = 1e-10 * torch.tensor([0.0, 1.0, 0.0, -1.0, 0.0], dtype=torch.float64)
    almost[1]["q"] = almost[1]["p"] + shift
    fine = torch.tensor([0.1603, 0.3397, 0.5]), torch.tensor([0.0, 0.0, 1.0])
    thirds = torch.tensor([3.0, 1.0, 1.0, 1.0, 1.0, 1.0]), torch.tensor([5.0, 1, 0.5, 0.5, 0.5, 0])
    return [one("four tokens", some(4), some(4)), one("six tokens", some(6), some(6) ** 3),
            one("a peaked target", some(5) ** 6, some(5)), one("a peaked draft", some(5),
                                                               some(5) ** 6),
            one("two tokens", some(2), some(2)), one("zeros in p and in q", *holes),
            one("a confident draft", some(4), sure),
            one("a confident target", sure, some(4)),
            one("equal", near, near), one("equal, except for two", near, moved),
            one("many tokens", some(40), some(40) ** 4, grid=200),
            one("one token", torch.ones(1), torch.ones(1)),
            one("sixths", *thirds), almost,
            one("probabilities of thousandths", *fine, grid=1000),
            one("the example", torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]),
                tries=[(0, 0.2, 0.4), (0, 0.7, 0.4)], grid=0)]


@ex.act
def act(fn, p, q, tries, grid):
    def asked(x, u, v):
        mine, yours = p.clone(), q.clone()
        token, kept = fn(mine, yours, x, u, v)
        moved.append(int((mine != p).sum() + (yours != q).sum()))
        kinds.add(f"{kind(token)}, {kind(kept)}")
        return [int(token), bool(kept)]

    def kind(value):  # numpy's bool is called bool as well
        return f"numpy.{type(value).__name__}" if type(value).__module__ == "numpy" else (
            type(value).__name__)

    def too_seldom(token):
        return 0 <= token < len(p) and bool(p[token] > q[token])

    kinds, moved = set(), []
    found = [asked(*one) for one in tries]
    # After a rejection any of these may come: only another one is reported.
    found = [[None if not kept and too_seldom(token) else token, kept]
             for token, kept in found]
    shares, again = [], []
    for x in range(len(q)) if grid else []:
        if q[x] > 0 and p[x] < q[x] and len(shares) < 4:
            ratio = (p[x] / q[x]).item()
            picked = [asked(x, (1 + ratio) / 2, (i + 0.5) / grid) for i in range(grid)]
            tokens = [token for token, _ in picked]
            shares.append([x, [tokens.count(token) for token in range(len(p))],
                           sum(kept for _, kept in picked)])
            again.append([asked(x, ratio + (1 - ratio) * at, 0.37)[0] for at in (0.2, 0.5, 0.9)])
    return {"found": found, "shares": shares, "again": again, "kinds": sorted(kinds),
            "moved": max(moved)}


@ex.law
def law(out, p, q, tries, grid):
    expect_parts(out, "found", "shares", "again", "kinds", "moved")
    expect_equal("values changed in p or q", out["moved"], 0, "Work on copies.")
    missing = [max(0.0, a - b) for a, b in zip(p.tolist(), q.tolist())]
    expect_length("answers", out["found"], len(tries))
    for (x, u, _), pair in zip(tries, out["found"], strict=True):
        expect_length("answer", pair, 2)
        token, kept = pair
        ratio = (p[x] / q[x]).item()
        near = f" u is just {'below' if u < ratio else 'above'} p / q."
        expect_equal(f"kept for draft {x}, u {u:.4g}", kept, u < ratio,
                     f"For this draft, p is {p[x]:.4g} and q is {q[x]:.4g}."
                     f"{near if abs(u - ratio) < 2 * NEXT else ''}")
        if kept:
            expect_equal("token of a draft that is kept", token, x)
        elif token is not None:
            raise Broken(f"share of token {show(token)} after a rejection of {x}", "above 0", "0",
                         "After a rejection, only tokens with p above q may be written.")
    rejected = [x for x in range(len(q)) if grid and q[x] > 0 and p[x] < q[x]][:4]
    expect_length("drafts that are rejected", out["shares"], len(rejected))
    for x, row in zip(rejected, out["shares"], strict=True):
        expect_length("counts", row, 3)
        expect_equal("draft that is rejected", row[0], x)
        counts, kept = row[1:]
        expect_equal("number kept of a draft that is rejected", kept, 0)
        expect_length("counted tokens", counts, len(p))
        for token, count in enumerate(counts):
            expect_type(f"count of token {token}", count, int)
            wanted, got = missing[token] / sum(missing), count / grid
            if abs(got - wanted) > (2.5 / grid if wanted else 0.0):
                raise Broken(f"share of token {token} after a rejection of {x}", got, wanted,
                             f"For this token, p is {p[token]:.4g} and q is {q[token]:.4g}.")
        expect_equal(f"share of token after a rejection of {x}: valid tokens", sum(counts), grid,
                     "No other token exists.")
    expect_length("drafts asked again", out["again"], len(rejected))
    for tokens in out["again"]:
        expect_length("tokens after another u", tokens, 3)
        expect_type("token after another u", tokens[0], int)
        expect_equal("tokens after another u, same v", tokens, tokens[:1] * len(tokens))
    expect_equal("types of token and kept", out["kinds"], ["int, bool"])


# ---- wrong, by name

@not_an_answer
def made(p, q, x, u, v):
    if u * q[x] < p[x]:
        return x, True
    ends = (p - q).clamp(min=0).double().cumsum(0)
    token = min(int((ends <= v * ends[-1]).sum()), len(p) - 1)
    return token, False


wrong = ex.edits(made)
KEPT, MISSING, AT = "u * q[x] < p[x]", "(p - q).clamp(min=0)", "v * ends[-1]"
REJECTED = "return token, False"
# https://github.com/ShopeeLLM/Spec-RL/issues/14
wrong("drawing from p after a rejection", "follows", MISSING, "p")
wrong("drawing from q after a rejection", "follows", MISSING, "q")
wrong("using q - p instead of p - q", "follows", "(p - q)", "(q - p)")
wrong("using the absolute difference of p and q", "follows", MISSING, "(p - q).abs()")
wrong("not dividing the missing part by its sum", "follows", AT, "v")
# https://github.com/SafeAILab/EAGLE/issues/20
wrong("drawing from p after a rejection, with only x excluded", "follows",
      MISSING, "p.index_fill(0, torch.tensor(x), max(0.0, float(p[x] - q[x])))")
wrong("taking the likeliest token of p after a rejection", "follows",
      MISSING, "torch.nn.functional.one_hot(p.argmax(), len(p))")
wrong("taking the token with the largest p - q after a rejection", "follows",
      MISSING, "torch.nn.functional.one_hot((p - q).argmax(), len(p))")
wrong("using u a second time instead of v", ("follows", "alone", "edges"),
      AT, "u * ends[-1]", says="")
wrong("keeping the draft only if p is at least q",
      ("rule", "follows", "example"), KEPT, "p[x] >= q[x]")
wrong("keeping the draft if u is below p", ("rule", "follows"), KEPT, "u < p[x]")
# https://github.com/ml-explore/mlx-swift-lm/pull/459
wrong("keeping the draft only if it is the likeliest token of p", ("rule", "follows", "example"),
      KEPT, "x == p.argmax()")
wrong("using q / p instead of p / q", ("rule", "follows"), KEPT, "u * p[x] < q[x]")
wrong("keeping the draft if u is not below the ratio",
      ("rule", "pair"), KEPT, "u * q[x] >= p[x]")
wrong("rounding v to two digits", "edges", AT, "round(v, 2) * ends[-1]", says="share of token")
wrong("never keeping the draft", ("rule", "pair", "follows", "example"), KEPT, "False")
wrong("adding a small number to q in p / q", "rule", KEPT, "u < p[x] / (q[x] + 1e-8)")
wrong("computing the missing part in float32", "any",
      MISSING, "(p.float() - torch.minimum(p.float(), q.float()))", says="")
wrong("adding a small number to the sum of the missing part", "any",
      AT, "v * (ends[-1] + 1e-8)")
wrong("drawing from p if the missing part is tiny", "any",
      MISSING, f"(p if {MISSING}.sum() < 1e-6 else {MISSING})")
wrong("multiplying each token's p by that token's probability of being rejected", "follows",
      MISSING, "(p * (1 - (p / q.clamp(min=1e-300)).clamp(max=1)))")
wrong("always keeping the draft", ("rule", "pair"), KEPT, "True")
wrong("returning the draft's token after a rejection", "follows", REJECTED, "return x, False")
wrong("swapping the two parts of the result", ("pair", "follows", "types", "rule"),
      "return x, True", "return True, x", REJECTED, "return False, token", says="")
wrong("returning a tensor instead of an int for the token", "types",
      "return x,", "return torch.tensor(x),", "return token,", "return torch.tensor(token),")
wrong("returning an np.bool_ instead of a bool", "types",
      "True", "np.bool_(True)", "False", "np.bool_(False)", "if u", "import numpy as np\n    if u")
wrong("returning a tensor instead of a bool", "types",
      "True", "torch.tensor(True)", "False", "torch.tensor(False)")
wrong("subtracting q from p in place", "left",
      "if u", "p, given = p.clone(), p\n    given.sub_(q).clamp_(min=0)\n    if u")
wrong("raising values of q below 0.1 to 0.1", "follows",
      MISSING, "(p - q.clamp(min=0.1)).clamp(min=0)", says="share of token")
