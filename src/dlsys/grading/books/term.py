"""`dlsys term`: one page over the runs of a term, for the instructor.

    dlsys term week1 week2 week3 --out term

It reads the grades.json of each folder; nothing is graded.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dlsys.grading.books import people
from dlsys.grading.books.people import Result
from dlsys.grading.text import clean, first_few, rounded
from dlsys_files.private_file import write_private
from dlsys_helpers.errors import UserError

PAGE, TABLE = "term.html", "term.csv"
MOST_MISTAKES = 40  # rows on the page; the table has all


class BadRun(UserError):
    """A folder holds no finished run. The message says what to do."""


@dataclass(frozen=True)
class Run:
    """One finished run: its folder, when it began, and the results that count in it."""

    name: str
    begun: datetime
    counted: list[Result]

    @property
    def day(self) -> str:
        """The day it began, as a heading: `15 Jan`."""
        return f"{self.begun.day} {self.begun:%b}"


def add_parser(commands: Any) -> None:
    """Add `term` to the subcommands of `dlsys`."""
    parser = commands.add_parser("term", help="make one page from several runs of dlsys grade")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER",
                        help="the folder of a run of dlsys grade")
    parser.add_argument("--out", type=Path, default=Path("term"), metavar="FOLDER",
                        help=f"where {PAGE} and {TABLE} go (default: term)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write page and table. Raises UserError."""
    from dlsys.grading.books import pages, reports
    
    runs = sorted((read(folder) for folder in dict.fromkeys(args.folders)),
                  key=lambda one: one.begun)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        write_private(args.out / PAGE, pages.render("term.html", **facts(runs)))
        write_private(args.out / TABLE, reports.rows_as_csv(table(runs)), reports.EXCEL)
    except OSError as error:
        raise BadRun(f"{clean(error.filename or args.out)}: {error.strerror}. Give another "
                     "folder: --out") from None
    print(f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}: {args.out / PAGE}, "
          f"{args.out / TABLE}")
    if line := matched(runs):
        print(line)
    return 0


def read(folder: Path) -> Run:
    """The finished run in a folder. Raises BadRun."""
    from dlsys.grading.books import scoring
    from dlsys.grading.books.run_folder import GRADES, SCHEMA

    path = folder / GRADES
    try:
        grades = json.loads(path.read_text(encoding="utf-8"))
        if grades["schema"] != SCHEMA:
            raise ValueError
        return Run(clean(folder.name or folder.resolve().name, 40),
                   datetime.fromisoformat(grades["run"]["begun"]), scoring.best(grades["results"]))
    except OSError as error:
        raise BadRun(f"{path}: {error.strerror}. Give the folders of finished runs of dlsys "
                     "grade.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadRun(f"{path}: has no results that can be read. Grade again, or leave the folder "
                     "out.") from None


# ---- what the page says

def facts(runs: list[Run]) -> dict[str, Any]:
    """Everything that the page shows."""
    everyone = _everyone(runs)
    counted = [result for by_stage in everyone.values() for result in by_stage.values()]
    stages = sorted({result["stage"] for result in counted})
    return {"runs": runs, "matched": matched(runs), "stages": stages, "people": _people(everyone),
            "solved": [row for stage in stages
                       for row in _exercises([r for r in counted if r["stage"] == stage])],
            "mistakes": mistakes(runs)[:MOST_MISTAKES]}


def _everyone(runs: list[Run]) -> dict[tuple, dict[int, Result]]:
    """Each learner's result with the most points in each stage, over all runs."""
    shared = _shared_names(runs)
    found: dict[tuple, dict[int, Result]] = {}
    for one in runs:
        for result in one.counted:
            mine = found.setdefault(_person(result, shared), {})
            best = mine.setdefault(result["stage"], result)
            if result["points"] > best["points"]:
                mine[result["stage"]] = result
    return found


def _person(result: Result, shared: set[tuple]) -> tuple:
    """A key for a learner over all runs; Moodle assigns new numbers for each assignment."""
    source, id, name, raw = people.owner(result)
    nameless = source, "", name, raw
    return nameless if source == "moodle" and nameless not in shared else (source, id, name, raw)


def _shared_names(runs: list[Run]) -> set[tuple]:
    """Names that two people have in one stage of one run: the number has to tell them apart."""
    shared = set()
    for one in runs:
        whose = {(result["stage"], people.owner(result)) for result in one.counted}
        times = Counter((stage, (source, "", name, raw))
                        for stage, (source, _, name, raw) in whose)
        shared |= {who for (_, who), n in times.items() if n > 1}
    return shared


def matched(runs: list[Run]) -> str:
    """A line about Moodle's learners, whose numbers differ between runs; "" if there are none."""
    shared = _shared_names(runs)
    found: dict[tuple, list[Result]] = {}
    for result in (result for one in runs for result in one.counted):
        if result["learner"]["source"] == "moodle":
            found.setdefault(_person(result, shared), []).append(result)
    several = _with_numbers(found)
    if not found or (len(runs) < 2 and not several):
        return ""
    rule = "Moodle renumbers people for each assignment, so its learners are matched by name."
    return " ".join(filter(None, [rule, several, _of_one_name(found)]))


def _with_numbers(found: dict[tuple, list[Result]]) -> str:
    """Learners merged by name from several Moodle numbers, as a warning: they may be two people."""
    several = []
    for mine in found.values():
        numbers = dict.fromkeys(result["learner"]["id"] for result in mine)
        if len(numbers) > 1:
            several.append(f"{mine[-1]['learner']['name']} ({', '.join(numbers)})")
    if not several:
        return ""
    return f"{len(several)} with different numbers: {first_few(sorted(several))}."


def _of_one_name(found: dict[tuple, list[Result]]) -> str:
    names = {mine[-1]["learner"]["name"] for (_, id, *_), mine in found.items() if id}
    return (f"Two people in one run have the same name, so there is a row for each number: "
            f"{first_few(sorted(names))}.") if names else ""


def _people(everyone: dict[tuple, dict[int, Result]]) -> list[dict[str, Any]]:
    names = people.distinct_names([next(reversed(mine.values())) for mine in everyone.values()])
    rows = [{"name": name, "by_stage": mine,
             "points": rounded(sum(r["points"] for r in mine.values())),
             "possible": sum(r["possible"] for r in mine.values())}
            for name, mine in zip(names, everyone.values(), strict=True)]
    return sorted(rows, key=lambda row: row["name"].casefold())


def _exercises(results: Iterable[Result]) -> list[dict[str, Any]]:
    """A row for each exercise of a stage: how many handed it in, and how many solved it."""
    rows: dict[str, dict[str, Any]] = {}
    for entry in (entry for result in results for entry in result["exercises"]):
        row = rows.setdefault(entry["id"], {"id": entry["id"], "title": entry["title"], "n": 0,
                                            "solved": 0})
        row["n"] += 1
        row["solved"] += entry["status"] == "pass"
    return [{**row, "percent": round(100 * row["solved"] / row["n"])} for row in rows.values()]


def mistakes(runs: list[Run]) -> list[dict[str, Any]]:
    """Misconceptions, the most frequent first: their exercise, and their count in each run."""
    met: dict[tuple[str, str], Counter] = {}
    for number, one in enumerate(runs):
        for entry in (entry for result in one.counted for entry in result["exercises"]):
            if entry["misconception"]:
                met.setdefault((entry["id"], entry["misconception"]), Counter())[number] += 1
    rows = [{"id": id, "name": name, "total": counts.total(),
             "by_run": [counts[number] for number in range(len(runs))]}
            for (id, name), counts in met.items()]
    return sorted(rows, key=lambda row: (-row["total"], id_order(row["id"]), row["name"]))


def id_order(id: str) -> list[int]:
    """A key to sort exercises by: 08.2 comes before 08.10."""
    return [int(part) for part in id.split(".")]


def table(runs: list[Run]) -> list[list]:
    """A row for each exercise of each run, then one for each misconception met in it."""
    rows: list[list] = [["run", "begun", "exercise", "title", "learners", "solved",
                         "misconception", "times"]]
    for number, one in enumerate(runs):
        met = [row for row in mistakes(runs) if row["by_run"][number]]
        for exercise in sorted(_exercises(one.counted), key=lambda row: id_order(row["id"])):
            first = [one.name, one.begun.isoformat(), exercise["id"], exercise["title"],
                     exercise["n"], exercise["solved"]]
            rows.append([*first, "", ""])
            rows += [[*first, row["name"], row["by_run"][number]] for row in met
                     if row["id"] == exercise["id"]]
    return rows
