"""What `dlsys grade` prints: a table of the results, and what needs a look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dlsys import assignments
from dlsys.grading.books import exam_record, marking, people, reports, similar
from dlsys.grading.books.people import Result
from dlsys.grading.books.run_folder import MARKING
from dlsys.grading.text import first_few
from dlsys_files.notebook_reader import NO_WORKSHEET
from dlsys_helpers.verdicts import STATUSES

MOST_ROWS = 60  # of the table; the files have all


def show(grades: dict[str, Any], folder: Path, lines: list[str]) -> None:
    """The table of results, what needs a look, and where the files are."""
    console = Console(markup=False, highlight=False)
    results = grades["results"]
    rows = reports.one_refusal_each(results)
    console.print(_table(rows[:MOST_ROWS], people.names(results)))
    if len(rows) > MOST_ROWS:
        console.print(f"... and {len(rows) - MOST_ROWS} more in {folder / 'grades.csv'}")
    for line in [*about(results), *_about_sheets(grades.get("sheets", [])), *lines]:
        console.print(line, soft_wrap=True)
    console.print(f"Results: {folder / 'overview.html'}; the record: {folder / 'grades.json'}")


def _table(results: Sequence[Result], names: dict[tuple[str, ...], str]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("learner", overflow="fold", ratio=2)
    table.add_column("stage", justify="right")
    table.add_column("exercises", no_wrap=True)
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("to look at", overflow="fold", ratio=3)
    for result in results:
        points = (f"{result['points']}/{result['possible']}" if result["status"] == "graded"
                  else Text(result["status"], "red"))
        table.add_row(Text(names[people.owner(result)]), _stage(result["stage"]), _marks(result),
                      points, Text(_look(result)))
    return table


def _stage(number: int | None) -> str:
    if number is not None and assignments.is_exam(number):
        return exam_record.short_name(number)
    return str(number or "")


def _marks(result: Result) -> Text:
    """A mark for each exercise; for an exam the points of each case, as thirty marks are too wide.
    """
    if record := exam_record.cases(result):
        return Text(" + ".join(f"{case['points']:g}" for case in record))
    looks = [STATUSES[entry["status"]] for entry in result["exercises"]]
    return Text.assemble(*((look.mark, look.style) for look in looks))


def _about_sheets(sheets: Sequence[dict[str, str]]) -> list[str]:
    """The exam sheets to settle, so that the instructor sees them without opening the overview."""
    told = [f"{one['name']} ({one['tickets']})" for one in sheets]
    return [f"Exam sheets to settle, see the overview: {first_few(told)}."] if told else []


def _look(result: Result) -> str:
    stray = result.get("stray")
    if result["status"] != "graded":
        return _plain(stray) if stray else result["reason"]
    differing = [e["id"] for e in result["exercises"] if e["differs"]]
    differs = ([f"notebook shows a different verdict for {', '.join(differing)}"] if differing
               else [])
    return " ".join([_plain(stray) if stray else "", *differs,
                     *people.all_notes(result)]).strip().replace("`", "")


def _plain(stray: dict[str, str]) -> str:
    """Why a hand-in does not count as it is, and what to do."""
    return f"It {stray['reason']} {stray['step']}".replace("`", "")


def _people(names: list[str]) -> str:
    return f"{len(names)} {'learner' if len(names) == 1 else 'learners'}"


def about(results: Sequence[Result]) -> list[str]:
    """What the instructor should know about the results of a run, line by line."""
    graded = [r for r in results if r["status"] == "graded"]
    walls = sorted({r["wall"] for r in graded})
    lines = [f"{len(graded)} of {len(results)} graded."] + [f"Sandbox: {w}." for w in walls]
    if any(r.get("reason") == NO_WORKSHEET for r in results):
        lines.append("If it is a worksheet that lost its metadata, say which: --stage N")
    times = Counter((people.owner(r), r["stage"]) for r in graded)
    if again := sorted({r["learner"]["name"] for r in graded
                        if times[people.owner(r), r["stage"]] > 1}):
        lines.append("Several hand-ins for one stage, of which the best counts: "
                     f"{first_few(again)}.")
    for name, pin, who in reports.missing_packages(results):
        lines.append(f"{_people(who)} {'need' if len(who) > 1 else 'needs'} the package {name}, "
                     f"which is not installed here: {first_few(who)}. "
                     + (f"Install it: pip install {pin}; then: --resume --regrade NAME" if pin else
                        "The course does not pin this package, and a learner can write any name."))
    if who := reports.asked_for_checks(results):
        lines.append(f"{_people(who)} tried to import the checks, which the sandbox hides: "
                     f"{first_few(who)}. Look at the code.")
    if asked := marking.requests(results):
        shown = people.names(results)
        askers = first_few([f"{shown[people.owner(r)]} ({e['id']})" for r, e in asked])
        lines.append(f"Learners asked for another look, see the folder {MARKING}: {askers}.")
    if alike := similar.alike_answers(results):
        lines.append(f"Answers that are alike, for you to look at: {len(alike)} groups, in "
                     "overview.html and similar.csv.")
    lines += [f"The same code in several hand-ins: {first_few(who)}."
              for who in reports.with_the_same_code(results)]
    if graded:
        cpu = sum(r["cpu_seconds"] for r in graded) / len(graded)
        inside, judge = (max(r[key] for r in graded) for key in ("peak_mib", "judge_peak_mib"))
        lines.append(f"{cpu:.2f} CPU s for each; peak memory of a sandbox {inside} MiB, "
                     f"of a judge {judge} MiB.")
    return lines
