"""`dlsys answer 01.4`: the worked answer after one's own, and the mistakes that the check knows."""

import argparse
import re
from pathlib import Path

from dlsys import worksheets
from dlsys_helpers import catalog, paths, progress
from dlsys_helpers.catalog import Trap
from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import stage


class NoAnswer(UserError):
    """A worked answer is not shown. The message says why, and what to do."""


def add_parser(commands) -> None:
    """Add `answer` to the commands of `dlsys`."""
    parser = commands.add_parser("answer", help="the worked answer of an exercise you have solved")
    parser.add_argument("exercise", help="for example 01.4")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    trap = _solved(args.exercise)
    file = f"{stage(int(trap.id[:2])).stem}.ipynb"
    worked = _code(paths.SOLUTIONS / file, trap.function)
    if worked is None:
        raise NoAnswer(f"solutions/{file} holds no answer here: whoever gave you this copy may "
                       "have taken it out.")
    mine = _code(paths.MY_WORK / file, trap.function)
    if mine is not None:
        print(f"Yours, in {paths.MY_WORK.name}/{file}:\n\n{mine}\n")
    print(f"Worked answer:\n\n{worked}\n\nMistakes that the check knows by name:\n")
    for name in _mistakes(trap):
        print(f"- {name}")
    return 0


def _solved(asked: str) -> Trap:
    """The exercise, written 01.4 or 1.4. Raises NoAnswer while it is not solved."""
    trap = catalog.trap(catalog.as_id(asked))
    if trap.id not in progress.solved():
        kept = "" if progress.store() else " Progress is not kept: DLSYS_PROGRESS is off."
        number = int(trap.id[:2])
        raise NoAnswer(f"exercise {trap.id} is not solved yet; its worked answer comes after that. "
                       f"Hints are in your worksheet. Check it: dlsys check {number}{kept}")
    return trap


def _code(path: Path, function: str) -> str | None:
    """The last code cell of a notebook that defines the function; None without one."""
    if not path.exists():
        return None
    defined = re.compile(rf"^(def|class) {function}\b", re.M)
    found = [source for _, source in worksheets.load(path).cells if defined.search(source)]
    return found[-1].rstrip() if found else None


def _mistakes(trap: Trap) -> list[str]:
    """The names of the exercise's wrong answers, with the trap where it is another's."""
    from dlsys_helpers import checking  # imports torch, which takes seconds

    return [wrong.name if wrong.trap == trap.id else f"{wrong.name} (trap {wrong.trap})"
            for wrong in checking.find(trap.id).wrong_answers]
