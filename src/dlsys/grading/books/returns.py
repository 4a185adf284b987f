"""Zips of feedback pages that Canvas and Moodle accept and pass on to the learners.

Canvas finds the learner by the two numbers in the name of the downloaded file, Moodle by the number
in the name of the folder.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from dlsys import assignments
from dlsys.grading.books.people import Result, owner
from dlsys.grading.books.scoring import best, without_points
from dlsys.grading.books.submissions import CANVAS_NAME

BEGINNING = (1980, 1, 1, 0, 0, 0)  # a zip's earliest time, so the same pages give the same zip


def archives(grades: dict[str, Any],
             page: Callable[[list[Result], dict[str, Any]], str]) -> dict[str, bytes]:
    """Name and content of a zip for each LMS and stage that the results came from.

    page: makes a page of one learner's results.
    """
    results, made = grades["results"], {}
    for lms, naming in (("canvas", canvas_name), ("moodle", moodle_name)):
        counted = [r for r in best(results) if r["learner"]["source"] == lms]
        refused = [r for r in without_points(results) if r["learner"]["source"] == lms]
        # A hand-in of another stage goes back to the assignment that it was uploaded to.
        places = {id(r): r.get("stray", {}).get("wanted", r["stage"]) for r in counted}
        met: dict[int, dict[tuple, Result]] = {}
        for r in sorted(counted, key=lambda r: r["stage"] != places[id(r)]):
            met.setdefault(places[id(r)], {}).setdefault(owner(r), r)
        whole: dict[int | None, list[Result]] = {n: [*mine.values()] for n, mine in met.items()}
        stages = sorted(met)
        # An unreadable file names no stage. If there is only one stage, it goes with that one.
        if refused:
            whole.setdefault(stages[0] if len(stages) == 1 else None, []).extend(refused)
        for stage, mine in whole.items():
            pages = {name: page(_submissions_of(results, one), grades) for one in mine
                     if (name := naming(one, _stem(stage)))}
            made[f"feedback_{lms}_{_stem(stage)}.zip"] = _zipped(pages)
    return made


def _stem(stage: int | None) -> str:
    return "not_graded" if stage is None else assignments.stage(stage).stem


def _submissions_of(results: list[Result], one: Result) -> list[Result]:
    """All submissions of this learner for this stage, and those that name none."""
    place = one.get("stray", {}).get("wanted", one["stage"])
    return [r for r in results if owner(r) == owner(one)
            and r.get("stray", {}).get("wanted", r["stage"]) in (place, None)]


def canvas_name(result: Result, _: str) -> str:
    """The name of the downloaded file, ending in .html: `ada_7734_99120_work.html`.

    A learner wrote its last part: nothing in it may lead out of a folder, on any system.
    """
    found = [part for part in PurePosixPath(result["name"]).parts if CANVAS_NAME.fullmatch(part)]
    return f"{_plain(PurePosixPath(found[0]).stem)}.html" if found else ""


def moodle_name(result: Result, stem: str) -> str:
    """A page in a folder as Moodle names it: `Ada L_4711_assignsubmission_file_/...`."""
    learner = result["learner"]
    who = _plain(learner["name"].replace("_", " "))
    return f"{who}_{learner['id']}_assignsubmission_file_/feedback_{stem}.html"


def _plain(name: str) -> str:
    return re.sub(r'[/\\:*?"<>|]', " ", name)


def _zipped(pages: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(pages.items()):
            archive.writestr(zipfile.ZipInfo(name, BEGINNING), text, zipfile.ZIP_DEFLATED)
    return out.getvalue()
