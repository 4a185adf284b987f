"""Feedback pages as a zip that Canvas and Moodle hand out, under the names that they look for.

Canvas finds the person by the two numbers in the name of the downloaded file, Moodle by the number
in the name of the folder.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from dlsys import sheets
from dlsys.grading.people import owner
from dlsys.grading.scoring import best
from dlsys.grading.submissions import CANVAS_NAME

Result = dict[str, Any]
BEGINNING = (1980, 1, 1, 0, 0, 0)  # the first time that a zip can hold: the same pages, one zip


def archives(grades: dict[str, Any],
             page: Callable[[list[Result], dict[str, Any]], str]) -> dict[str, bytes]:
    """Name and content of a zip for each LMS and stage that the results came from.

    page: makes a page of one learner's results.
    """
    results = grades["results"]
    made: dict[str, bytes] = {}
    for lms, naming in (("canvas", canvas_name), ("moodle", moodle_name)):
        counted = [r for r in best(results) if r["learner"]["source"] == lms]
        for stage in sorted({r["stage"] for r in counted}):
            pages = {name: page(_of(results, one), grades) for one in counted
                     if one["stage"] == stage and (name := naming(one))}
            made[f"feedback_{lms}_{sheets.stage(stage).stem}.zip"] = _zipped(pages)
    return made


def _of(results: list[Result], one: Result) -> list[Result]:
    """All submissions of this learner for this stage."""
    return [r for r in results if owner(r) == owner(one) and r.get("stage") == one["stage"]]


def canvas_name(result: Result) -> str:
    """The name of the downloaded file, ending in .html: `ada_7734_99120_work.html`."""
    found = [part for part in PurePosixPath(result["name"]).parts if CANVAS_NAME.fullmatch(part)]
    return f"{PurePosixPath(found[0]).stem}.html" if found else ""


def moodle_name(result: Result) -> str:
    """A page in a folder as Moodle names it: `Ada L_4711_assignsubmission_file_/...`."""
    learner = result["learner"]
    who = re.sub(r"[_/\\:]", " ", learner["name"])
    stem = sheets.stage(result["stage"]).stem
    return f"{who}_{learner['id']}_assignsubmission_file_/feedback_{stem}.html"


def _zipped(pages: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(pages.items()):
            archive.writestr(zipfile.ZipInfo(name, BEGINNING), text, zipfile.ZIP_DEFLATED)
    return out.getvalue()
