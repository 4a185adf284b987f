"""Pages on which an instructor looks through one exercise for the whole class, and marks by hand.

A page runs no script. The instructor writes each mark into a row of overrides.csv:
`marking/overrides.csv` has all rows, still empty, to fill in and save in the run's folder.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dlsys.grading.books import overrides, reports
from dlsys.grading.books.people import Result, names, owner
from dlsys.grading.books.run_folder import MARKING, OVERRIDES
from dlsys.grading.books.scoring import best
from dlsys_files.private_file import write_private

_FIRST = ("wrong", "error", "missing", "todo", "pass")
_PAGE = re.compile(r"\d\d\.\d{1,2}\.html")


def requests(results: Iterable[Result]) -> list[tuple[Result, dict[str, Any]]]:
    """Each result and exercise for which the learner asks for another look."""
    return [(r, e) for r in results for e in r["exercises"] if "request" in e]


def write_all(grades: dict[str, Any], folder: Path, render: Callable[..., str]) -> None:
    """A page for each exercise, and a table with a row for each learner and exercise."""
    counted, known = best(grades["results"]), overrides.comments(folder)
    (folder / MARKING).mkdir(mode=0o700, exist_ok=True)
    pages = {f"{id}.html": rows for id, rows in by_exercise(counted).items()}
    for path in (folder / MARKING).iterdir():
        if _PAGE.fullmatch(path.name) and path.name not in pages:
            path.unlink()  # its exercise is no longer asked for
    for name, rows in pages.items():
        used = Counter(comment for row in rows for comment, text in known.items()
                       if text in row["entry"].get("by_hand", ""))
        write_private(folder / MARKING / name, render(
            "marking.html", id=rows[0]["entry"]["id"], title=rows[0]["entry"]["title"], rows=rows,
            comments=known, used=used, others=[*pages]))
    write_private(folder / MARKING / OVERRIDES, reports.rows_as_csv(table(counted)), reports.EXCEL)


def by_exercise(counted: Sequence[Result]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each exercise: requests for another look first, then what did not pass."""
    called, shown = callings(counted), names(counted)
    found: dict[str, list[dict[str, Any]]] = {}
    for result in counted:
        for entry in result["exercises"]:
            found.setdefault(entry["id"], []).append(
                {"name": shown[owner(result)], "entry": entry, "call": called[id(result)]})
    for rows in found.values():
        rows.sort(key=lambda row: ("request" not in row["entry"],
                                   _FIRST.index(row["entry"]["status"]), row["name"].casefold()))
    return dict(sorted(found.items(), key=lambda item: [int(n) for n in item[0].split(".")]))


def callings(results: Sequence[Result]) -> dict[int, str]:
    """What overrides.csv calls each result's learner: the name, or the path where two share it."""
    times = Counter(r["learner"]["name"] for r in {(owner(r)): r for r in results}.values())
    return {id(r): r["learner"]["name"] if times[r["learner"]["name"]] == 1 else r["name"]
            for r in results}


def table(counted: Sequence[Result]) -> list[list]:
    """An overrides.csv without any points; an empty row changes nothing."""
    called = callings(counted)
    return [overrides.COLUMNS, *([called[id(r)], e["id"], "", ""] for r in counted
                                 for e in r["exercises"])]
