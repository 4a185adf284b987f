"""Try every right answer on many seeds: the worked one and those by other routes.

    python -m tools.rights                    all exercises, 1,000 seeds each; takes long
    python -m tools.rights 01 02.3 --seeds 50 a stage and an exercise, fewer seeds

Tests try 20 seeds. A refusal names seed and case: the law is too narrow, or a draw is degenerate.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dlsys_helpers import checking
from tools import mutants


def right_answers(id: str) -> dict[str, Callable]:
    """The worked answer of an exercise and those by other routes, by name."""
    exercise, (setup, source) = checking.find(id), mutants.answers(id[:2])[id]
    space: dict[str, Any] = {"__name__": "worksheet"}
    exec(compile(f"{setup}\n{source}", f"<{id}>", "exec"), space)
    return {"the worked answer": space[exercise.function], **exercise.right_answers}


def refusals(id: str, seeds: range) -> Iterator[str]:
    """A line for each right answer that is refused, with the first seed that refuses it."""
    for route, fn in right_answers(id).items():
        verdict = checking.run_check(id, fn, seeds)
        if verdict.status != "pass":
            yield f"{id}, {route}: seed {verdict.seed}, case {verdict.case!r}: {verdict.message}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", help="stages or exercises; all when absent")
    parser.add_argument("--seeds", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    wanted, found = args.what or mutants.stages(), 0
    for id in (id for stage in mutants.stages() for id in mutants.answers(stage)):
        if id in wanted or id[:2] in wanted:
            lines = list(refusals(id, range(args.seeds)))
            print("\n".join(lines) or f"{id}: none refused on {args.seeds} seeds", flush=True)
            found += len(lines)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
