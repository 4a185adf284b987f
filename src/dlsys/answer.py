"""`dlsys answer 01.4`: the worked answer next to the learner's, and known mistakes."""

import argparse
import ast
import re
import shutil
from itertools import zip_longest
from pathlib import Path

from dlsys import assignments, exam_checks, worksheets
from dlsys.grading.text import visible
from dlsys_checks.exam import sheet
from dlsys_files import notebook_file
from dlsys_helpers import catalog, paths, progress
from dlsys_helpers.catalog import Trap
from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import stage

GAP = "  |  "  # between two answers, side by side


class NoAnswer(UserError):
    """A worked answer is not shown. The message says why, and what to do."""


def add_parser(commands) -> None:
    """Add `answer` to the commands of `dlsys`."""
    parser = commands.add_parser("answer", help="the worked answer of an exercise you have solved")
    parser.add_argument("exercise", help="for example 01.4")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    id = catalog.as_id(args.exercise)
    if id.endswith("."):
        raise NoAnswer(f"exercise: got {args.exercise[:40]!r}, expected one such as 01.4.")
    if assignments.is_exam(assignments.number_of(id)):
        print(_exam(assignments.trap(id)))
        return 0
    trap = _solved(args.exercise)
    file = f"{stage(int(trap.id[:2])).stem}.ipynb"
    worked = _code(paths.SOLUTIONS / file, trap.function)
    if worked is None:
        raise NoAnswer(f"solutions/{file} has no answer here: the person who gave you this copy "
                       "may have removed it.")
    path = worksheets.of_stage(int(trap.id[:2]))
    mine = _code(path, trap.function)
    answers = [("Worked answer:", worked)]
    if mine is not None:
        answers.insert(0, (f"Yours, in {path.absolute().parent.name}/{file}:", mine))
    print(side_by_side(answers))
    print("\nMistakes that the check knows by name:\n")
    for mistake in _mistakes(trap):
        print(f"- {mistake}")
    return 0


def _exam(row: Trap) -> str:
    """The debrief of all cases of a finished exam. Raises NoAnswer while the exam is not over."""
    number = int(row.id[:2])
    if exam_checks.has_desk():
        desk = exam_checks.desk()
        if desk.happened(number, sheet.OWN, 1).over:
            return desk.ask(number, sheet.OWN, 1, "debrief")
    form, _ = sheet.form_and_round(number)
    raise NoAnswer("the answers of an exam are shown at its end, all at once: dlsys exam "
                   f"{form.lower()} --debrief. After that no further answer counts.")


def _solved(asked: str) -> Trap:
    """The exercise, written 01.4 or 1.4. Raises NoAnswer while it is not solved."""
    trap = catalog.trap(catalog.as_id(asked))
    if trap.id not in progress.solved():
        kept = "" if progress.store() else " Progress is not kept: DLSYS_PROGRESS is off."
        number = int(trap.id[:2])
        raise NoAnswer(f"exercise {trap.id} is not solved yet; its worked answer is "
                       "shown once you have solved it. "
                       f"Hints are in your worksheet. Check it: dlsys check {number}{kept}")
    return trap


def side_by_side(answers: list[tuple[str, str]]) -> str:
    """Both answers with headings, side by side if the terminal is wide enough."""
    columns = [[head, "", *visible(code).split("\n")] for head, code in answers]
    widths = [max(map(len, lines)) for lines in columns]
    if sum(widths) + len(GAP) > shutil.get_terminal_size().columns:
        return "\n\n".join("\n".join(lines) for lines in columns)
    rows = zip_longest(*columns, fillvalue="")
    return "\n".join(GAP.join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _code(path: Path, function: str) -> str | None:
    """The last code cell of a notebook that defines the function, without the exercise's text.

    None if no cell defines it.
    """
    if not path.exists():
        return None
    defined = re.compile(rf"^(def|class) {function}\b", re.M)
    found = [source for _, source in notebook_file.load(path).cells if defined.search(source)]
    return without_docstring(found[-1].rstrip(), function) if found else None


def without_docstring(code: str, function: str) -> str:
    """The code without the function's docstring, which both answers share."""
    try:
        found = next(node for node in ast.parse(code).body
                     if getattr(node, "name", "") == function)
    except (SyntaxError, StopIteration):  # IPython syntax, such as a magic
        return code
    text, *rest = found.body
    lines = code.split("\n")
    alone = rest and rest[0].lineno > text.end_lineno and (
        not lines[text.lineno - 1][:text.col_offset].strip())
    if alone and ast.get_docstring(found, clean=False) is not None:
        del lines[text.lineno - 1:text.end_lineno]
    return "\n".join(lines)


def _mistakes(trap: Trap) -> list[str]:
    """The names of the exercise's wrong answers, with the trap if it is a different one."""
    from dlsys_checks import registry

    return [wrong.name if wrong.trap == trap.id else f"{wrong.name} (trap {wrong.trap})"
            for wrong in registry.find(trap.id).wrong_answers]
