"""HTML for learners and instructors. Jinja escapes every value; a page runs no script at all."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from dlsys import assignments
from dlsys.grading.books import exam_record, marking, reports, returns, scoring, similar
from dlsys.grading.books.people import Result, all_notes, names, owner
from dlsys.grading.books.reports import page_name
from dlsys.grading.books.run_folder import FEEDBACK, MARKING
from dlsys.grading.text import cell_and_line
from dlsys_checks import aims
from dlsys_files.private_file import write_private
from dlsys_helpers import catalog
from dlsys_helpers.verdicts import STATUSES

MOST_BARS = 10


def write_all(grades: dict[str, Any], folder: Path) -> None:
    """`overview.html` for the instructor, a page for each learner, and pages for the LMS to return.
    """
    (folder / FEEDBACK).mkdir(mode=0o700, exist_ok=True)
    by_learner: dict[tuple, list[Result]] = {}
    for result in grades["results"]:
        by_learner.setdefault(owner(result), []).append(result)
    for key, results in by_learner.items():
        write_private(folder / FEEDBACK / page_name(key, grades["run"]), feedback(results, grades))
    for name, content in returns.archives(grades, feedback).items():
        write_private(folder / name, content)
    write_private(folder / "overview.html", overview(grades))
    marking.write_all(grades, folder, render)


# ---- the page of one learner

def feedback(results: list[Result], grades: dict[str, Any]) -> str:
    """The page of one learner: their submissions, never another's, never the run's key."""
    return render("feedback.html", results=results, learner=results[0]["learner"]["name"],
                  begun=grades["run"]["begun"], day=_day, scoring=_scoring(grades), hint=_hint,
                  for_learners=_for_learners, next_steps=_next_steps, stage_name=_stage_name,
                  ask_again=_ask_again, uncounted=_uncounted,
                  cases=exam_record.cases)


def _uncounted(result: Result) -> list[dict[str, Any]] | None:
    """The attempts in a hand-in for a stage that was not asked for; None for any other hand-in."""
    stray = result.get("stray", {})
    if stray.get("kind") != "stage" or not stray["you"]:
        return None
    return [e for e in result["exercises"] if e["status"] in ("pass", "wrong", "error")]


def _day(iso: str, time: str = "") -> str:
    """A date as people write it, with the time and its zone if `time` is set."""
    moment = datetime.fromisoformat(iso)
    return f"{moment.day} {moment:%B %Y}" + (f", {moment:%H:%M} {moment:%Z}" if time else "")


def _scoring(grades: dict[str, Any]) -> dict[str, Any]:
    return grades.get("scoring", {"partial": False, "own_share": 50, "late": "", "due": {}})


def _stage_name(number: int) -> str:
    title = assignments.stage(number).title
    named = assignments.is_exam(number) or assignments.is_model(number)
    return title if named else f"Stage {number}: {title}"


def _hint(entry: dict[str, Any]) -> str:
    """The hint that belongs to the registered mistake, "" if none does."""
    trap = _traps().get(entry["id"])
    return aims.hint_for(entry["id"], entry["misconception"], trap.hints) if trap else ""


@cache
def _traps() -> dict[str, catalog.Trap]:
    return {trap.id: trap for trap in catalog.traps()}


def _for_learners(message: str) -> str:
    """A message in a learner's words."""
    return message.replace("ended the Python process", "made Python itself end")


def _ask_again(result: Result) -> str:
    """An exercise of a worksheet that did not pass, "" if there is none."""
    if assignments.is_exam(result["stage"]) or assignments.is_model(result["stage"]):
        return ""
    return next((e["id"] for e in result["exercises"]
                 if e["status"] in ("wrong", "error", "missing")), "")


def _next_steps(result: Result) -> list[str]:
    """What the learner should do after reading the page; nothing for an exam sheet."""
    number, open_ones = result["stage"], [e for e in result["exercises"] if e["status"] != "pass"]
    if assignments.is_exam(number):
        return []
    if assignments.is_model(number):
        return _next_parts(open_ones)
    if not open_ones:
        after = [stage for stage in catalog.written() if stage.number > number][:1]
        return [f"All exercises pass. Continue with stage {stage.number}, {stage.title}: "
                f"`dlsys start {stage.number}`" for stage in after]
    tried = [e for e in open_ones if e["status"] in ("wrong", "error")]
    first = (tried or open_ones)[0]
    others = [f"{e['id']} (`{e['function']}`)" for e in open_ones if e is not first]
    verb = "Fix" if first in tried else "Write"
    return [f"{verb} `{first['function']}`, exercise {first['id']}, in your worksheet.",
            f"Check it: `dlsys check {number}`, or the cell below your answer.",
            *([f"Go on with {', '.join(others)}."] if others else []),
            "Hand the worksheet in again if your instructor still accepts it. Of several hand-ins, "
            "the one with the most points counts."]


def _next_parts(open_ones: list[dict[str, Any]]) -> list[str]:
    """What is next for *Your model*: to fix a part, or to write one more."""
    if not open_ones:
        return []
    tried = [e for e in open_ones if e["status"] in ("wrong", "error")]
    first = (tried or open_ones)[0]
    verb = "Fix" if tried else "Write"
    return [f"{verb} `{first['function']}` in its worksheet, and check it there.",
            "Run `dlsys parts`, and `rehearse` in the notebook *Your model*.",
            "Hand in the new `my_parts.py`."]


# ---- the page of the instructor

def overview(grades: dict[str, Any]) -> str:
    """The instructor's page: distribution, exercises, misconceptions, results to look at."""
    results = grades["results"]
    counted, shown = scoring.best(results), names(results)
    return render(
        "overview.html", run=grades["run"], day=_day, results=results, counted=counted,
        scoring=_scoring(grades),
        undated=sum("due" in r and not r["due"]["handed_in"] for r in results),
        walls=sorted({r["wall"] for r in results if "wall" in r}),
        stages=[_stage(number, [r for r in counted if r["stage"] == number])
                for number in sorted({r["stage"] for r in counted})],
        strays=[r for r in reports.one_refusal_each(results) if "stray" in r],
        graded=sum(r["status"] == "graded" for r in results),
        missing=reports.missing_packages(results), prying=reports.asked_for_checks(results),
        alike=reports.with_the_same_code(results), similar=similar.alike_answers(results),
        likeness=similar.WORDS, requests=marking.requests(results), marking=MARKING,
        called=lambda result: shown[owner(result)], sheets=grades.get("sheets", []),
        exams=_exams(counted),
        noted=[(r, all_notes(r)) for r in results if all_notes(r)],
        differing=[(r, e) for r in results for e in r["exercises"] if e["differs"]],
        learners=_learners(results, counted, grades["run"]))


def _learners(results: list[Result], counted: list[Result],
              run: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each learner: the link, the counted result of each stage, what was not graded."""
    rows: dict[tuple, dict[str, Any]] = {}
    shown = names(results)
    for result in results:
        key = owner(result)
        row = rows.setdefault(key, {"name": shown[key], "by_stage": {}, "n": 0,
                                    "link": f"{FEEDBACK}/{page_name(key, run)}"})
        row["n"] += 1
    for result in counted:
        rows[owner(result)]["by_stage"][result["stage"]] = result
    return sorted(rows.values(), key=lambda row: row["name"].casefold())


def _exams(counted: list[Result]) -> list[dict[str, Any]]:
    """For each form its title, and for each learner what the desk recorded of the cases."""
    shown = names(counted)
    sheets = [r for r in counted if exam_record.cases(r)]
    return [{"title": assignments.stage(number).title,
             "rows": [{"name": shown[owner(r)], "cases": exam_record.cases(r)}
                      for r in sheets if r["stage"] == number]}
            for number in sorted({r["stage"] for r in sheets})]


def _stage(number: int, results: list[Result]) -> dict[str, Any]:
    exercises = [_exercise(results, k) for k in range(len(results[0]["exercises"]))]
    return {"number": number, "name": _stage_name(number), "column": _column(number),
            "n": len(results),
            "mean": sum(r["points"] for r in results) / len(results),
            "possible": results[0]["possible"], "bars": _bars(results), "exercises": exercises,
            "unsolved": [_row_name(number, e) for e in exercises if not e["solved"]]}


def _column(number: int) -> str:
    """The head of a stage's column."""
    return exam_record.short_name(number) if assignments.is_exam(number) else f"stage {number}"


def _row_name(number: int, exercise: dict[str, Any]) -> str:
    """An exercise's id; for a row of an exam its title, because nobody knows its id."""
    title = exercise["title"]
    return title[:1].lower() + title[1:] if assignments.is_exam(number) else exercise["id"]


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


def render(name: str, **values: Any) -> str:
    """The page of a template."""
    template = _templates().get_template(name)
    return template.render(statuses=STATUSES, place=cell_and_line, lesson=_lesson,
                           heading=_heading, partial_rule=_partial_rule,
                           why_points=_why_points, whole=_whole,
                           by_case=exam_record.by_case, **values)


def _heading(entry: dict[str, Any]) -> str:
    """An exercise as its worksheet names it: the trap's situation, not its fault."""
    trap = _traps().get(entry["id"])
    return f"{entry['id']} {trap.title if trap else entry['title']}"


def _whole(promise: str) -> str:
    """A piece of a docstring; dots where it ends within a sentence."""
    return promise if promise[-1:] in ".!?" else f"{promise.rstrip(',;:')} \N{HORIZONTAL ELLIPSIS}"


def _partial_rule(scoring: dict[str, Any]) -> str:
    """How an exercise that does not pass gets points, in words, for the instructor."""
    return (f"If an exercise does not pass, the trap's own promise is worth "
            f"{scoring['own_share']:g} % of the points, and the other promises share the rest. "
            "The result is never more than the share of cases with a right result; if the "
            "mistake is known, it may go halfway from there to full points. It is rounded down to "
            "half a point.")


def _why_points(entry: dict[str, Any], own_share: float) -> str:
    """In a sentence or two, how an exercise that does not pass got its partial points.

    own_share: percent of the points for the trap's own promise.
    """
    if entry["idle"]:
        return "It does the same as a function that does nothing, so it earns no points."
    most = scoring.most_for_results(entry)
    if most < scoring.share_of_promises(entry, own_share / 100):
        known = " As the mistake is a known one, half of the rest is added." * entry["exactly"]
        return (f"The result is right in {entry['results_held']} of {entry['cases']} cases, which "
                f"limits the points.{known}")
    others = entry["promises_held"] - entry["own_held"]
    kept = "kept" if entry["own_held"] else "kept in part" if entry["own_credit"] else "not kept"
    return (f"The promise that the trap is about is worth {own_share:g} % of the points, and is "
            f"{kept}. Of the {entry['promises'] - 1} other promises {others} are kept.")


def _lesson(trap: str) -> str:
    """Where a trap is explained; the file may have a different name in the class."""
    return f"{trap} {catalog.trap(trap).name}, in the lesson of {_stage_name(int(trap[:2]))}"


def code_html(text: str) -> markupsafe.Markup:
    """Text whose `backquoted` parts are code; everything in it is escaped first."""
    return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(markupsafe.escape(text))))


@cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    templates.filters["code"] = code_html
    return templates
