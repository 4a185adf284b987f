"""HTML for learners and instructors. Jinja escapes every value; a page runs no script at all."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from dlsys import sheets
from dlsys.grading import reports
from dlsys.grading.cohort import write_private
from dlsys.grading.reports import FEEDBACK, Result, best, owner, page_name
from dlsys.grading.text import place
from dlsys_helpers import catalog, stages
from dlsys_helpers.verdicts import STATUSES

MOST_BARS = 10


def write_all(grades: dict[str, Any], folder: Path) -> None:
    """`overview.html` for the instructor, and a page for each learner under `feedback/`."""
    (folder / FEEDBACK).mkdir(mode=0o700, exist_ok=True)
    by_learner: dict[tuple, list[Result]] = {}
    for result in grades["results"]:
        by_learner.setdefault(owner(result), []).append(result)
    for key, results in by_learner.items():
        write_private(folder / FEEDBACK / page_name(key, grades["run"]), feedback(results))
    write_private(folder / "overview.html", overview(grades))


def feedback(results: list[Result]) -> str:
    """The page of one learner: their submissions, never another's, never the run's key."""
    return _page("feedback.html", results=results, learner=results[0]["learner"]["name"],
                 hints=_hints(results))


def _hints(results: list[Result]) -> dict[str, str]:
    ids = {e["id"] for r in results for e in r["exercises"]}
    return {t.id: t.hints[0] for t in catalog.traps() if t.id in ids and t.hints}


def overview(grades: dict[str, Any]) -> str:
    """The instructor's page: distribution, exercises, misconceptions, results to look at."""
    results = grades["results"]
    counted = best(results)
    return _page(
        "overview.html", run=grades["run"], results=results, counted=counted,
        walls=sorted({r["wall"] for r in results if "wall" in r}),
        stages=[_stage(number, [r for r in counted if r["stage"] == number])
                for number in sorted({r["stage"] for r in counted})],
        refused=[r for r in results if r["status"] != "graded"],
        missing=reports.missing_packages(results), alike=reports.alike(results),
        noted=[r for r in results if r["notes"]],
        differing=[(r, e) for r in results for e in r["exercises"] if e["differs"]],
        learners=_learners(results, counted, grades["run"]))


def _learners(results: list[Result], counted: list[Result],
              run: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each learner: the link, the counted result of each stage, what was not graded."""
    rows: dict[tuple, dict[str, Any]] = {}
    for result in results:
        key = owner(result)
        row = rows.setdefault(key, {"name": result["learner"]["name"], "by_stage": {}, "n": 0,
                                    "link": f"{FEEDBACK}/{page_name(key, run)}"})
        row["n"] += 1
    for result in counted:
        rows[owner(result)]["by_stage"][result["stage"]] = result
    return sorted(rows.values(), key=lambda row: row["name"].casefold())


def _stage(number: int, results: list[Result]) -> dict[str, Any]:
    exercises = [_exercise(results, k) for k in range(len(results[0]["exercises"]))]
    return {"number": number, "title": sheets.stage(number).title, "n": len(results),
            "mean": sum(r["points"] for r in results) / len(results),
            "possible": results[0]["possible"], "bars": _bars(results), "exercises": exercises,
            "unsolved": [e["id"] for e in exercises if not e["solved"]]}


def _exercise(results: list[Result], k: int) -> dict[str, Any]:
    entries = [r["exercises"][k] for r in results]
    met = Counter(e["misconception"] for e in entries if e["misconception"])
    return {"id": entries[0]["id"], "title": entries[0]["title"],
            "solved": sum(e["status"] == "pass" for e in entries),
            "parts": _parts(Counter(e["status"] for e in entries)), "met": met.most_common()}


def _parts(counts: Counter) -> list[dict[str, Any]]:
    """The bar of an exercise: number and share of learners for each status."""
    return [{"status": status, "n": counts[status],
             "percent": round(100 * counts[status] / counts.total(), 2)}
            for status in STATUSES if counts[status]]


def _bars(results: list[Result]) -> list[dict[str, Any]]:
    """The histogram of points: number of learners in at most ten classes of equal width."""
    possible = results[0]["possible"]
    width = max(1, -(-(possible + 1) // MOST_BARS))
    counts = Counter(r["points"] // width for r in results)
    most = max(counts.values())
    bars = []
    for k in range(possible // width + 1):
        first, last = k * width, min((k + 1) * width - 1, possible)
        bars.append({"label": str(first) if first == last else f"{first}-{last}",
                     "n": counts[k], "percent": round(100 * counts[k] / most)})
    return bars


def _page(name: str, **values: Any) -> str:
    return _templates().get_template(name).render(statuses=STATUSES, place=place, lesson=_lesson,
                                                  **values)


def _lesson(trap: str) -> str:
    """Where a trap is told: `04.2 A borrowed learning rate, in notebooks/04_optimizers.ipynb`."""
    stem = stages.stage(int(trap[:2])).stem
    return f"{trap} {catalog.trap(trap).title}, in notebooks/{stem}.ipynb"


def _code(text: str) -> markupsafe.Markup:
    """Text whose `backquoted` parts are code; everything in it is escaped first."""
    return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(markupsafe.escape(text))))


@cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    templates.filters["code"] = _code
    return templates
