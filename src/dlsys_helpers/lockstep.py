"""One process plays all ranks of an exercise: no port, no thread, no second process.

Acts import this, in the grader's sandbox as well, which has no checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dlsys_helpers.expect import expect_equal, expect_length, expect_parts

MOST_SUMS = 60


class _Waits(BaseException):
    """Ends a run that waits for the other ranks. Not an Exception, so few answers swallow it."""


def in_lockstep(run: Callable, ranks: Sequence, outsider: Any = None) -> dict[str, list]:
    """What `run(rank, all_sum)` returns for each of `ranks`, or how their requests differ.

    all_sum(tensor) is the sum over the ranks, a new tensor. Each rank is run until it asks for a
    sum that is not known yet; when all have asked, the sum is known and each is run again from its
    start. Returns {"ranks": [...], "asks": []}. Where the ranks ask for different things, or for
    more than 60 sums, "ranks" is empty and "asks" says in words what each asks for.

    outsider: an extra rank that `run` gets before each turn and whose sums never count: an answer
    that keeps what other ranks were given also keeps the outsider's part.
    """
    sums: list[torch.Tensor] = []
    for _ in range(MOST_SUMS + 1):  # the last turn asks for nothing
        if outsider is not None:
            _turn(run, outsider, sums)
        turns = [_turn(run, rank, sums) for rank in ranks]
        asks = [ask for ask, _ in turns]
        if all(ask is None for ask in asks):
            return {"ranks": [done for _, done in turns], "asks": []}
        words = ["nothing more" if ask is None else f"{tuple(ask.shape)} {ask.dtype}"
                 for ask in asks]
        if len(set(words)) > 1:
            return {"ranks": [], "asks": words}
        sums.append(sum(asks[1:], asks[0].clone()))
    return {"ranks": [], "asks": [f"more than {MOST_SUMS} sums"]}


def _turn(run: Callable, rank: Any, sums: list[torch.Tensor]) -> tuple[torch.Tensor | None, Any]:
    """Run one rank from its start with the known sums; return what it asks for, or its result.
    """
    known, asked = iter(sums), []

    def all_sum(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"all_sum: got a {type(tensor).__name__}, expected a tensor.")
        found = next(known, None)
        if found is not None:
            return found.clone()
        asked.append(tensor.detach().clone())
        raise _Waits

    try:
        return None, run(rank, all_sum)
    except _Waits:
        return asked[0], None


def expect_agreement(out: Any, ranks: int) -> None:
    """Raise Broken unless `out` is what `in_lockstep` returns for `ranks` ranks that agree."""
    expect_parts(out, "ranks", "asks")
    expect_equal("what the ranks ask for, where they differ", out["asks"], [],
                 "A rank that asks for less, or for another shape, lets the others wait for ever.")
    expect_length("ranks", out["ranks"], ranks)
