"""What the options of `dlsys grade` about points and gradebooks mean.

They judge nothing, so a run that stands takes other ones: --resume with them changes every report.
"""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from dlsys.grading import cohort, due, gradebooks, kept_gradebooks, overrides
from dlsys.grading.cohort import RunError
from dlsys.grading.scoring import Scoring, best, without_points
from dlsys.grading.text import some

Result = dict[str, Any]


def scoring(args: argparse.Namespace) -> Scoring:
    """How this run counts points. Raises UserError for a file that cannot be used.

    Without an option, a run that is resumed goes on with what it was given before. A new one takes
    nothing from its folder, which may have come with a hand-in.
    """
    path, partial = args.course, bool(args.partial)
    if args.resume:
        overrides.read(args.out)
        beside = args.out / due.FILE
        path = path or (beside if beside.exists() else None)
        partial = _recorded_partial(args.out) if args.partial is None else partial
    names, cells = _people(args)
    return Scoring(partial, due.read(path) if path else None, names, cells)


def _recorded_partial(folder: Path) -> bool:
    with suppress(OSError, ValueError, KeyError, TypeError):
        grades = json.loads((folder / cohort.GRADES).read_text(encoding="utf-8"))
        return grades["scoring"]["partial"] is True
    return False


def keep_course(args: argparse.Namespace) -> None:
    """Put the course into the folder of the run, where --resume finds it."""
    if not args.course or args.course.resolve() == (args.out / due.FILE).resolve():
        return
    for name, source in ((due.FILE, args.course),
                         (due.EXTENSIONS, args.course.with_name(due.EXTENSIONS))):
        if source.exists():
            cohort.write_private(args.out / name, source.read_bytes())
        else:
            (args.out / name).unlink(missing_ok=True)


def _people(args: argparse.Namespace) -> tuple[dict, dict]:
    """Names by source and id, and Moodle's cells about the time by source, id and stage."""
    names: dict[tuple[str, str], str] = {}
    cells: dict[tuple[str, str, int | None], str] = {}
    for book, _ in args.canvas:
        names |= gradebooks.canvas_names(Path(book))
    for argument in args.moodle:
        stage, path = gradebooks.of_stage(argument)
        people, times = gradebooks.moodle_people(Path(path))
        names |= {("moodle", id): name for id, name in people.items()}
        cells |= {("moodle", id, stage): cell for id, cell in times.items()}
    return names, cells


# ---- filling in

def fill(args: argparse.Namespace, results: list[Result]) -> list[tuple[str, str, str]]:
    """The filled-in gradebooks of the LMS: name, content and one line about each.

    Raises RunError.
    """
    counted = best(results)
    filled = [*_canvas(args.canvas, counted),
              *_moodle(args.moodle, counted, without_points(results))]
    return [(name, content, f"{name}: {line_about(meant, missing)}{_alone(name, results)}")
            for name, content, meant, missing in filled]


def _alone(name: str, results: list[Result]) -> str:
    """How many rows of Moodle's sheet may have got a comment without points."""
    n = sum(r["learner"]["source"] == "moodle" for r in without_points(results))
    return f" A comment alone for {n} not graded." if n and name.startswith("moodle") else ""


def _canvas(asked: list[list[str]], counted: list[Result]) -> list[tuple]:
    if not asked:
        return []
    if len(books := {Path(book).resolve() for book, _ in asked}) > 1:
        raise RunError(f"--canvas: got {len(books)} gradebooks, expected one, with several "
                       "columns. Canvas has one for a course.")
    text, missing = gradebooks.fill_canvas(counted, Path(asked[0][0]), [name for _, name in asked])
    return [(kept_gradebooks.CANVAS, text, counted, missing)]


def _moodle(asked: list[str], counted: list[Result], refused: list[Result]) -> list[tuple]:
    made = []
    for stage, path in map(gradebooks.of_stage, asked):
        mine = [r for r in counted if stage in (None, r["stage"])]
        text, missing = gradebooks.fill_moodle(mine, Path(path), refused)
        made.append((kept_gradebooks.moodle_name(stage), text, mine, missing))
    if len({name for name, *_ in made}) < len(made):
        raise RunError("--moodle: got two sheets for one stage, expected one for each: "
                       "--moodle 1=CSV --moodle 2=CSV")
    return made


def line_about(counted: list[Result], missing: list[Result]) -> str:
    """How many learners a gradebook got points of, and who has no row in it."""
    names = [result["learner"]["name"] for result in missing]
    absent = f" Not in it: {some(names)}." if names else ""
    return f"{len(counted) - len(missing)} of {len(counted)} learners filled in.{absent}"
