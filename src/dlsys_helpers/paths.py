"""Where the checkout is: the package is installed editable, the repository two levels up.

``DLSYS_WORK`` names another folder for the learner's own files.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
EXERCISES = ROOT / "exercises"
SOLUTIONS = ROOT / "solutions"
MY_WORK = Path(os.environ.get("DLSYS_WORK") or ROOT / "my-work").absolute()
DRAFT_MARK = "draft=true"  # in the first line of a lesson that is not finished


def lesson_copy(stage: int, end: str = "") -> Path:
    """The learner's copy of a stage's lesson, ``my-work/01_lesson.ipynb``."""
    return MY_WORK / f"{stage:02d}_lesson{end}.ipynb"


def lessons() -> list[Path]:
    """The sources of all lessons, the start page first and drafts included."""
    return sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))


def is_draft(lesson: Path) -> bool:
    """Whether this lesson's source is marked as a draft."""
    return DRAFT_MARK in lesson.read_text("utf-8").partition("\n")[0].split()


def drafts() -> list[Path]:
    """The sources of unfinished lessons, which catalog, book and tests leave out."""
    return list(filter(is_draft, lessons()))
