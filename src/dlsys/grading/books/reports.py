"""Other formats of a run's grades.json: CSV, JUnit, nbgrader, columns for Canvas and Moodle.

Everything here reads that one JSON; nothing is graded again.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dlsys import assignments, needed
from dlsys.grading import text
from dlsys.grading.books import exam_record, similar
from dlsys.grading.books.gradebooks import canvas, moodle
from dlsys.grading.books.people import Result, all_notes, names, owner
from dlsys.grading.books.run_folder import FEEDBACK
from dlsys.grading.books.scoring import best
from dlsys_files.private_file import write_private

_NO_PACKAGE = re.compile(r"ModuleNotFoundError: No module named '([\w.-]{1,80})'")
_SPELT = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "æ": "ae", "ø": "o", "ł": "l",
                        "đ": "d", "ı": "i"})  # NFKD takes the marks off other letters
CHECKS = "dlsys_checks"  # hidden on purpose, so it is no missing package
EXCEL = "utf-8-sig"  # Excel reads a CSV file as UTF-8 only if it begins with this mark
# The columns of nbgrader's own `nbgrader export`.
NBGRADER = ["assignment", "duedate", "timestamp", "student_id", "last_name", "first_name",
            "email", "raw_score", "late_submission_penalty", "score", "max_score"]


def write_all(grades: dict[str, Any], folder: Path) -> None:
    """Write CSV, JUnit and the columns of nbgrader, Canvas and Moodle next to grades.json."""
    results = grades["results"]
    write_private(folder / "grades.csv", rows_as_csv(table(results, grades["run"])), EXCEL)
    write_private(folder / "exercises.csv", rows_as_csv(exercises(results)), EXCEL)
    if any(exam_record.cases(result) for result in results):
        write_private(folder / "exam.csv", rows_as_csv(exam_record.table(results)), EXCEL)
    write_private(folder / "similar.csv", rows_as_csv(similar.table(results)), EXCEL)
    write_private(folder / "junit.xml", junit(results))
    write_private(folder / "nbgrader.csv", rows_as_csv(nbgrader(results)))
    for stage in sorted({r["stage"] for r in best(results)}):
        chosen = [r for r in best(results) if r["stage"] == stage]
        stem = assignments.stage(stage).stem
        write_private(folder / f"canvas_{stem}.csv", rows_as_csv(canvas(chosen, stem)), EXCEL)
        write_private(folder / f"moodle_{stem}.csv", rows_as_csv(moodle(chosen)), EXCEL)


def missing_packages(results: Sequence[Result]) -> list[tuple[str, str, list[str]]]:
    """Packages that cells import and that are not installed: name, pin for pip, learners' names.

    The name comes from a learner, so only a package that the course pins has a pin; others have "".
    """
    asked = _names(results, lambda result: (
        found[1] for cell in result["cells"] if (found := _NO_PACKAGE.match(cell["error"]))
        and not found[1].startswith(CHECKS)))
    pins = {name: f"{name}=={version}" for name, version in needed.locked().items()}
    return sorted((name, pins.get(needed.normal(name.partition(".")[0]), ""), who)
                  for name, who in asked.items())


def one_refusal_each(results: Iterable[Result]) -> list[Result]:
    """The results, with one row for all ungraded submissions of a learner, and their number."""
    results = list(results)
    times = Counter(owner(r) for r in results if r["status"] != "graded")
    shown, met = [], set()
    for result in results:
        who = owner(result)
        if result["status"] == "graded" or who not in met:
            more = times[who] - 1 if result["status"] != "graded" else 0
            shown.append(_with_count(result, more) if more else result)
        if result["status"] != "graded":
            met.add(who)
    return shown


def _with_count(result: Result, more: int) -> Result:
    reason = (f"{result['reason']} Also not graded: {more} more of the same learner, see "
              "grades.csv.")
    stray = {"stray": {**result["stray"], "reason": reason}} if "stray" in result else {}
    return {**result, "reason": reason, **stray}


def asked_for_checks(results: Sequence[Result]) -> list[str]:
    """Learners whose code stopped when it tried to import the checks, which the sandbox hides."""
    return _names(results, lambda result: (
        CHECKS for said in (*(cell["error"] for cell in result["cells"]),
                            *(entry["message"] for entry in result["exercises"]))
        if f"'{CHECKS}" in said)).get(CHECKS, [])


def with_the_same_code(results: Sequence[Result]) -> list[list[str]]:
    """Groups of learners whose submissions for a stage have the same code, and pass an exercise."""
    return sorted(who for who in _names(results, _codes).values() if len(who) > 1)


def _codes(result: Result) -> list[tuple]:
    right = any(entry["status"] == "pass" for entry in result["exercises"])
    return [(result["stage"], result["code"])] if right and result.get("code") else []


def _names(results: Sequence[Result], keys: Callable[[Result], Iterable]) -> dict[Any, list[str]]:
    """For each key that the results have, the names of their learners, each name once."""
    shown = names(results)
    found: dict[Any, set[str]] = {}
    for result in results:
        for key in keys(result):
            found.setdefault(key, set()).add(shown[owner(result)])
    return {key: sorted(who) for key, who in found.items()}


def page_name(owner: tuple[str, ...], run: dict[str, Any]) -> str:
    """A file name that is safe anywhere, different for each learner, and cannot be guessed.

    Pages may share a folder on a server, so the name depends on the run's secret key.
    """
    name = unicodedata.normalize("NFKD", owner[2].lower().translate(_SPELT))
    plain = name.encode("ascii", "ignore").decode()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:40] or "learner"
    secret, text = run["settings"]["key"].encode(), repr(owner).encode()
    return f"{slug}-{hmac.new(secret, text, hashlib.sha256).hexdigest()[:20]}.html"


def rows_as_csv(rows: Iterable[list]) -> str:
    """Rows as CSV text, in which no spreadsheet finds a formula.

    Text is quoted, so that a program that splits at semicolons leaves it whole.
    """
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_NONNUMERIC).writerows(
        [text.cell(value) for value in row] for row in rows)
    return out.getvalue()


def table(results: Iterable[Result], run: dict[str, Any]) -> list[list]:
    """One row for each submission, with the learner's page."""
    head = ["learner", "id", "submission", "stage", "status", "points", "possible", "reason",
            "next step", "notes", "handed in", "due", "late deduction", "sandbox", "seconds",
            "feedback"]
    return [head, *([r["learner"]["name"], r["learner"]["id"], r["name"], r["stage"],
                     r["status"], r["points"], r["possible"],
                     r.get("stray", {}).get("reason", r.get("reason", "")),
                     r.get("stray", {}).get("step", ""),
                     " ".join(all_notes(r)), *_lateness(r), r.get("wall", "").partition(" ")[0],
                     r.get("seconds", ""), f"{FEEDBACK}/{page_name(owner(r), run)}"]
                    for r in results)]


def _lateness(result: Result) -> list:
    """When it was handed in, when it was due, and how many points were deducted."""
    due = result.get("due", {})
    return [due.get("handed_in") or result.get("handed_in", ""), due.get("due", ""),
            due.get("off", "")]


def exercises(results: Iterable[Result]) -> list[list]:
    """One row for each exercise of each submission."""
    head = ["learner", "id", "submission", "exercise", "status", "points", "possible",
            "cases held", "cases", "promises held", "promises", "message", "misconception", "trap",
            "case", "notebook shows", "differs"]
    return [head, *([r["learner"]["name"], r["learner"]["id"], r["name"], e["id"], e["status"],
                     e["points"], e["possible"],
                     *(e.get(key, "") for key in ("cases_held", "cases", "promises_held",
                                                  "promises")),
                     " ".join(filter(None, [e["message"], e.get("by_hand")])),
                     e["misconception"], e["trap"], e["case"],
                     e["notebook_shows"], "yes" if e["differs"] else ""]
                    for r in results for e in r["exercises"])]


def nbgrader(results: Iterable[Result]) -> list[list]:
    """The columns of `nbgrader export`, for programs that read those."""
    rows: list[list] = [NBGRADER]
    for r in best(results):
        if r.get("stray", {}).get("kind") == "stage":
            continue  # its points do not belong to the assignment it was handed in for
        handed_in, due, off = _lateness(r)
        rows.append([r.get("assignment") or assignments.stage(r["stage"]).stem, due, handed_in,
                     r["learner"]["id"] or r["learner"].get("download_name", r["learner"]["name"]),
                     "", r["learner"]["name"], "", text.rounded(r["points"] + (off or 0)), off or 0,
                     r["points"], r["possible"]])
    return rows


def junit(results: Iterable[Result]) -> str:
    """JUnit XML: a suite for each submission, a case for each exercise."""
    root = ElementTree.Element("testsuites", name="dlsys grade")
    for result in results:
        cases = result["exercises"]
        suite = ElementTree.SubElement(
            root, "testsuite", name=result["name"], tests=str(max(1, len(cases))),
            failures=str(sum(e["status"] == "wrong" for e in cases)),
            errors=str(sum(e["status"] in ("error", "missing") for e in cases) if cases else 1),
            skipped=str(sum(e["status"] == "todo" for e in cases)),
            time=str(result.get("seconds", 0)))
        for entry in cases:
            _case(suite, entry, result["name"])
        if not cases:
            case = ElementTree.SubElement(suite, "testcase", name="notebook",
                                          classname=result["name"])
            ElementTree.SubElement(case, "error", message=result["reason"])
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, entry: dict, name: str) -> None:
    case = ElementTree.SubElement(suite, "testcase", name=entry["id"], classname=name)
    kind = {"wrong": "failure", "todo": "skipped", "error": "error", "missing": "error"}
    if entry["status"] in kind:
        ElementTree.SubElement(case, kind[entry["status"]], message=entry["message"])
    facts = ElementTree.SubElement(case, "properties")
    for key in ("points", "possible", "misconception"):
        ElementTree.SubElement(facts, "property", name=key, value=str(entry[key]))
