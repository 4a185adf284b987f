"""Other formats of a run's grades.json: CSV, JUnit, Canvas, Moodle, nbgrader.

Everything here reads that one JSON; nothing is graded again.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import html
import io
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dlsys import sheets
from dlsys.grading import text
from dlsys.grading.cohort import RunError, write_private

Result = dict[str, Any]
_NO_PACKAGE = re.compile(r"ModuleNotFoundError: No module named '([\w.-]{1,80})'")
FEEDBACK = "feedback"  # the folder of the learners' pages
CANVAS_FIXED = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
MOODLE_FIXED = ["Identifier", "Full name", "Grade", "Maximum Grade", "Feedback comments"]
# The columns of nbgrader's own `nbgrader export`.
NBGRADER = ["assignment", "duedate", "timestamp", "student_id", "last_name", "first_name",
            "email", "raw_score", "late_submission_penalty", "score", "max_score"]


def write_all(grades: dict[str, Any], folder: Path) -> None:
    """CSV, JUnit and the columns of nbgrader, Canvas and Moodle, beside grades.json."""
    results = grades["results"]
    write_private(folder / "grades.csv", rows_as_csv(table(results, grades["run"])))
    write_private(folder / "exercises.csv", rows_as_csv(exercises(results)))
    write_private(folder / "junit.xml", junit(results))
    write_private(folder / "nbgrader.csv", rows_as_csv(nbgrader(results)))
    for stage in sorted({r["stage"] for r in best(results)}):
        chosen = [r for r in best(results) if r["stage"] == stage]
        stem = sheets.stage(stage).stem
        write_private(folder / f"canvas_{stem}.csv", rows_as_csv(canvas(chosen, stem)))
        write_private(folder / f"moodle_{stem}.csv", rows_as_csv(moodle(chosen)))


def best(results: Iterable[Result]) -> list[Result]:
    """The graded submission with the most points for each learner and stage, the first of equals.

    A gradebook has one cell for it; grades.csv has a row for each submission.
    """
    chosen: dict[tuple, Result] = {}
    for result in results:
        if result["status"] == "graded":
            key = (owner(result), result["stage"])
            if key not in chosen or result["points"] > chosen[key]["points"]:
                chosen[key] = result
    return list(chosen.values())


def owner(result: Result) -> tuple[str, ...]:
    """The learner as a key: source, id, name and raw name, since two people may share a name."""
    learner = result["learner"]
    return learner["source"], learner["id"], learner["name"], learner["raw"]


def missing_packages(results: Iterable[Result]) -> list[tuple[str, list[str]]]:
    """Packages that cells asked for and that are not here, each with the learners' names."""
    return sorted(_names((found[1], result) for result in results for cell in result["cells"]
                         if (found := _NO_PACKAGE.match(cell["error"]))).items())


def alike(results: Iterable[Result]) -> list[list[str]]:
    """Learners whose hand-ins of one stage have the same code, and points by it."""
    groups = _names(((result["stage"], result["code"]), result) for result in results
                    if result["points"] and result.get("code"))
    return sorted(names for names in groups.values() if len(names) > 1)


def _names(pairs: Iterable[tuple[Any, Result]]) -> dict[Any, list[str]]:
    """Under each key the names of the learners whose results stand with it, each learner once."""
    found: dict[Any, dict[tuple, str]] = {}
    for key, result in pairs:
        found.setdefault(key, {})[owner(result)] = result["learner"]["name"]
    return {key: sorted(who.values()) for key, who in found.items()}


def page_name(owner: tuple[str, ...], run: dict[str, Any]) -> str:
    """A file name that is safe anywhere, different for each learner, and cannot be guessed.

    Pages may lie side by side on a server; the key of the run, which nobody else has, is in it.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", owner[2].lower()).strip("-")[:40] or "learner"
    secret, text = run["settings"]["key"].encode(), repr(owner).encode()
    return f"{slug}-{hmac.new(secret, text, hashlib.sha256).hexdigest()[:20]}.html"


def rows_as_csv(rows: Iterable[list]) -> str:
    """Rows as CSV text; no cell of it is a formula to a spreadsheet.

    Text is quoted, so that a program which separates by semicolons does not split it.
    """
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_NONNUMERIC).writerows(
        [text.cell(value) for value in row] for row in rows)
    return out.getvalue()


def table(results: Iterable[Result], run: dict[str, Any]) -> list[list]:
    """One row for each submission, with the learner's page."""
    head = ["learner", "id", "submission", "stage", "status", "points", "possible", "reason",
            "notes", "sandbox", "seconds", "feedback"]
    return [head, *([r["learner"]["name"], r["learner"]["id"], r["name"], r["stage"],
                     r["status"], r["points"], r["possible"], r.get("reason", ""),
                     " ".join(r["notes"]), r.get("wall", "").partition(" ")[0],
                     r.get("seconds", ""), f"{FEEDBACK}/{page_name(owner(r), run)}"]
                    for r in results)]


def exercises(results: Iterable[Result]) -> list[list]:
    """One row for each exercise of each submission."""
    head = ["learner", "id", "submission", "exercise", "status", "points", "possible", "message",
            "misconception", "trap", "notebook shows", "differs"]
    return [head, *([r["learner"]["name"], r["learner"]["id"], r["name"], e["id"], e["status"],
                     e["points"], e["possible"], e["message"], e["misconception"], e["trap"],
                     e["notebook_shows"], "yes" if e["differs"] else ""]
                    for r in results for e in r["exercises"])]


def nbgrader(results: Iterable[Result]) -> list[list]:
    """The columns of `nbgrader export`, for programs that read those."""
    return [NBGRADER, *([sheets.stage(r["stage"]).stem, "", "",
                         r["learner"]["id"] or r["learner"]["name"], "", r["learner"]["name"], "",
                         r["points"], 0, r["points"], r["possible"]] for r in best(results))]


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


# ---- Canvas and Moodle

def canvas(results: Iterable[Result], column: str) -> list[list]:
    """A gradebook to import into Canvas, where there is no download to fill in."""
    return [[*CANVAS_FIXED, column],
            *([r["learner"]["name"], r["learner"]["id"], "", "", "", r["points"]]
              for r in results)]


def fill_canvas(results: Iterable[Result], gradebook: Path,
                column: str) -> tuple[str, list[Result]]:
    """The instructor's gradebook with one column filled in, and the results that it has no row for.

    column: the beginning of the assignment's column. Every other cell stays as it is.
    Raises RunError.
    """
    rows, bom = _read(gradebook)
    target = _find_column(rows[0], column, gradebook)
    identity = _find_column(rows[0], "ID", gradebook)
    kept = _one_stage(results)
    return _filled(rows, identity, kept, _by_id(kept, "canvas"),
                   {target: lambda r: r["points"]}, bom)


def moodle(results: Iterable[Result]) -> list[list]:
    """A grading worksheet for Moodle, where there is no download to fill in."""
    return [MOODLE_FIXED,
            *([f"Participant {r['learner']['id']}" if r["learner"]["id"] else "",
               r["learner"]["name"], r["points"], r["possible"], summary(r)] for r in results)]


def fill_moodle(results: Iterable[Result], worksheet: Path) -> tuple[str, list[Result]]:
    """The instructor's grading worksheet with grades and comments, and the results without a row.

    Raises RunError.
    """
    rows, bom = _read(worksheet)
    find = {name: _find_column(rows[0], name, worksheet)
            for name in ("Identifier", "Grade", "Feedback comments")}
    kept = _one_stage(results)
    by_id = {f"Participant {id}": result for id, result in _by_id(kept, "moodle").items()}
    return _filled(rows, find["Identifier"], kept, by_id,
                   {find["Grade"]: lambda r: r["points"],
                    find["Feedback comments"]: lambda r: text.cell(summary(r))}, bom)


def summary(result: Result) -> str:
    """Points and message of each exercise, in one line, as HTML: Moodle stores comments as such."""
    parts = [f"{e['id']}: {e['points']}/{e['possible']}"
             + (f" ({e['message']})" if e["status"] != "pass" else "")
             for e in result["exercises"]]
    return html.escape("; ".join(parts), quote=False)


def _one_stage(results: Iterable[Result]) -> list[Result]:
    """The results as a list. Raises RunError when they are of more than one stage."""
    kept = list(results)
    found = Counter(r["stage"] for r in kept)
    if len(found) > 1:
        rarest = min(found, key=lambda stage: found[stage])
        names = ", ".join([r["learner"]["name"] for r in kept if r["stage"] == rarest][:3])
        raise RunError(f"gradebook: got results of stages {', '.join(map(str, sorted(found)))} "
                       f"(stage {rarest}: {names}), expected one stage for one column. All else is "
                       "written; grade the notebooks of one stage, all as one with --stage N, or "
                       "import canvas_NN.csv or moodle_NN.csv.")
    return kept


def _by_id(results: Iterable[Result], source: str) -> dict[str, Result]:
    """The results of learners whose id that LMS gave. Raises RunError where two have one id."""
    found: dict[str, Result] = {}
    for result in results:
        learner = result["learner"]
        if learner["source"] == source:
            other = found.setdefault(learner["id"], result)
            if other is not result:
                raise RunError(f"gradebook: {other['name']} and {result['name']} both say that "
                               f"they are of id {learner['id']}. Look at both, remove one.")
    return found


def _read(path: Path) -> tuple[list[list[str]], str]:
    try:
        data = path.read_bytes()
        rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")))
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}. Give the file that the LMS exports.") from None
    except (ValueError, csv.Error) as error:
        raise RunError(f"{path}: cannot be read as CSV ({type(error).__name__}). Download it "
                       "again.") from None
    if not rows:
        raise RunError(f"{path}: is empty, expected a gradebook. Download it again.")
    return rows, "\ufeff" if data.startswith(b"\xef\xbb\xbf") else ""


def _find_column(head: list[str], name: str, path: Path) -> int:
    exact = [i for i, cell in enumerate(head) if cell.strip() == name]
    near = [i for i, cell in enumerate(head) if cell.strip().startswith(name)]
    found = exact or near
    if len(found) != 1:
        shown = ", ".join(text.clean(cell, 30) for cell in head)[:150]
        raise RunError(f"{path.name}: got {len(found)} columns that begin with {name!r}, "
                       f"expected one of: {shown}")
    return found[0]


def _filled(rows: list[list[str]], identity: int, results: list[Result],
            by_id: dict[str, Result], fill: dict[int, Any], bom: str) -> tuple[str, list[Result]]:
    met = set()
    for row in rows[1:]:
        id = row[identity].strip() if len(row) > max(identity, *fill) else ""
        if id in by_id:
            met.add(owner(by_id[id]))
            for column, value in fill.items():
                row[column] = str(value(by_id[id]))
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return bom + out.getvalue(), [r for r in results if owner(r) not in met]
