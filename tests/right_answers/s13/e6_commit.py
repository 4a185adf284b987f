"""Exercise 13.6, `commit`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import itertools

import torch

from dlsys_checks.s13.e6_commit import ex, made
from dlsys_helpers.judging import edited


@ex.right("the first place that differs, by next")
def by_next(past, draft, says):
    n = next((i for i, (a, b) in enumerate(zip(draft, says)) if a != b), len(draft))
    write = says[:n + 1]
    return write, write[-1], past + len(write)


@ex.right("takewhile")
def by_takewhile(past, draft, says):
    good = [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(draft, says))]
    return [*good, says[len(good)]], says[len(good)], past + 1 + len(good)


@ex.right("a running product in torch")
def by_cumprod(past, draft, says):
    same = torch.tensor(draft).eq(torch.tensor(says[:-1])).long()
    good = int(same.cumprod(0).sum())
    return [int(t) for t in says[:good + 1]], says[good], past + good + 1


@ex.right("by recursion")
def by_recursion(past, draft, says):
    if not draft or draft[0] != says[0]:
        return says[:1], says[0], past + 1
    write, feed, stay = by_recursion(past + 1, draft[1:], says[1:])
    return draft[:1] + write, feed, stay


ex.equivalent("for token, said in zip(draft, says): -> for token, said in zip(says, draft):",
              "pairs are compared, whichever comes first, and zip ends with the shorter list")
ex.probe("no guess taken for granted not to come", lambda past, draft, says: (
    made(past, draft, says) if draft else ([says[0]], says[0], past)), breaks="fed")
ex.probe("a cache of more than a thousand entries cut", lambda past, draft, says: made(
    min(past, 1000), draft, says), says="entries that stay", breaks="past")
ex.probe("many guesses, of which only eight are looked at", lambda past, draft, says: made(
    past, draft[:8], says[:9]) if len(draft) > 10 else made(past, draft, says),
    says="", breaks=("says", "write"))
ex.probe("what is said behind the last guess left out", breaks="says", fn=edited(
    made, ("says[:n + 1]", "says[:n + 1] if n < len(draft) or n < 2 else says[:n]"),
    "13.6, what is said behind the last guess"))
ex.probe("the example looked up wrong", lambda past, draft, says: (
    ([4, 7], 7, 12) if (past, draft) == (10, [4, 7, 9]) else made(past, draft, says)),
    breaks="example")
