"""Ask right answers under seeds that no proof has tried: does a check ever refuse one?

    python -m tools.fresh_seeds                                   all exercises, today's seeds
    python -m tools.fresh_seeds 02.1 11 --seeds 1000 --others 100
    python -m tools.fresh_seeds 02.1 --day 2026-11-28             the seeds of that day again

A learner's check draws a seed that nobody has seen, and so does the grader. A proof always tries
the same few, so it cannot find a tolerance that is too tight on one draw in five hundred. Each day
draws other seeds. Prints each refusal with its seed, and the rate; ends with status 1 if there was
one.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import date

import torch

from dlsys_checks import registry
from dlsys_helpers import acting
from tools import proof, solutions

SEEDS, OTHERS = 60, 12  # of the worked answer, and of right answers by other routes


def seeds_of(day: date, id: str, count: int) -> list[int]:
    """Seeds as large as those of `check`; a longer list begins with the shorter one."""
    drawn = random.Random(f"{day.isoformat()} {id}")
    return [drawn.randrange(2**31) for _ in range(count)]


def refused(id: str, seeds: Sequence[int], others: int) -> Iterator[str]:
    """A line for each seed and right answer that the check refuses; "" for each it accepts.

    others: for how many of the seeds, the first ones, the other routes are asked as well.
    """
    exercise, answers = registry.find(id), proof.right_answers(id)
    for place, seed in enumerate(seeds):
        cases = exercise.arrange(seed)
        for route, fn in answers.items():
            if route == proof.WORKED or place < others:
                verdict = exercise.first_failure(cases, exercise.outcomes(fn, cases))
                yield "" if verdict.status == "pass" else (
                    f"{id}, {route}: seed {seed}, case {verdict.case!r}: {verdict.message}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", help="stages or exercises; all when absent")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="for the worked answer")
    parser.add_argument("--others", type=int, default=OTHERS, help="for the other right answers")
    parser.add_argument("--day", type=date.fromisoformat, default=date.today(), help="2026-11-28")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ids = [id for stage in solutions.stages() for id in solutions.answers(stage)]
    if unknown := [w for w in args.what if not any(w in (id, id[:2]) for id in ids)]:
        parser.error(f"got {', '.join(unknown)}, expected stages or exercises with an answer in "
                     "solutions/. Run: make build LESSON=05")
    runs, lines = 0, []
    for id in ids:
        if args.what and not {id, id[:2]} & {*args.what}:
            continue
        began = time.process_time()
        with acting.standard_session():  # outer: cheap to enter again per case
            found = list(refused(id, seeds_of(args.day, id, args.seeds), args.others))
        runs, new = runs + len(found), [line for line in found if line]
        lines += new
        print("\n".join([*new, f"{id}: {len(new)} of {len(found)} refused, "
                         f"{time.process_time() - began:.0f} s of CPU"]), flush=True)
    print(f"{args.day}: {len(lines)} of {runs} right answers refused")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
