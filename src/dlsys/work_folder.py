"""The learner's own copies in ``my-work/``: start page, lesson and worksheet.

Learners run and edit only copies, so that git sees no change and ``git pull`` meets no conflict.
A copy's links lead to its siblings. Existing files are never overwritten.
"""

import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dlsys import assignments, reading_time, windows
from dlsys_files import locations, notebook_file
from dlsys_files.notebook_file import WorksheetError
from dlsys_helpers import catalog, paths
from dlsys_helpers.lesson_names import YOUR_MODEL
from dlsys_helpers.stages import NUMBERS, SPAN, STAGES, Stage

# What a lesson says below an exercise; a learner's copy has a link to the worksheet there.
WAY_IN = "Run `dlsys start {number}` in a terminal for a worksheet of your own."
START_PAGE = "00_start_here.ipynb"
# Their outputs answer the question above them: the learner makes them with the first run.
_ANSWERING = {"look", "why", "repair", "more", "folklore"}
# So does the text under a step's heading: JupyterLab folds each, and unfolds it when you run on.
# These reveal no answer.
_OPEN_STEPS = ("The code", "Guess", "Your turn")
# Their headings also reveal an answer: they become part of the folded step before them.
_WITHIN = ("### Why", "### Repair", "### More")


class Started(NamedTuple):
    """The learner's worksheet, whether it was made now or was there before, and the lesson."""

    path: Path
    created: bool
    lesson: Path


def start(stage: int | str, copy: bool = False, core: bool = False) -> Started:
    """Copy a stage's worksheet and its lesson to ``my-work/``; existing files stay as they are.

    ``copy=True`` makes fresh ones next to them under the next free names, ``01_activations_2`` and
    ``01_lesson_2``; ``core=True`` leaves out what is off the core path. Raises WorksheetError for
    an unknown stage, one without a worksheet, or a full or read-only disk.
    """
    chosen = stage_of(stage)
    worksheet, lesson = shipped(chosen, paths.EXERCISES), shipped(chosen, paths.NOTEBOOKS)
    with _writing("the worksheet"):
        for end in name_endings():
            mine = paths.MY_WORK / f"{chosen.stem}{end}.ipynb"
            read = paths.lesson_copy(chosen.number, end)
            created = _create(mine, worksheet_copy(worksheet, chosen, read.name, core))
            if created or not copy:
                _create(read, lesson_copy(lesson, chosen, mine.name, core))
                return Started(mine, created, read)


def open_lab() -> str:
    """The command that opens JupyterLab where the learner's files are."""
    return "make lab" if locations.is_checkout() and not windows.HERE else "dlsys lab"


def start_page() -> Path:
    """The learner's copy of the start page, made if there is none. Raises WorksheetError."""
    path = paths.MY_WORK / START_PAGE
    with _writing("the start page"):
        _create(path, _bytes(paths.NOTEBOOKS / START_PAGE))
    return path


def start_model() -> tuple[Path, bool]:
    """The learner's copy of *Your model*, without its outputs, and whether it was made now.

    An existing copy stays as it is. Raises WorksheetError.
    """
    book = json.loads(_bytes(paths.NOTEBOOKS / f"{YOUR_MODEL}.ipynb"))
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            empty(cell)
    path = paths.MY_WORK / f"{YOUR_MODEL}.ipynb"
    with _writing("the notebook of your model"):
        return path, _create(path, _written(book))


def keep(path: Path, data: bytes, what: str) -> bool:
    """Write one of the learner's files; False if it exists. Raises WorksheetError."""
    with _writing(what):
        return _create(path, data)


# ---- what a copy holds

def core_ids(stage: Stage) -> list[str]:
    """The exercises of a stage's core path, by number."""
    return [trap.id for trap in assignments.by_number(stage.number) if trap.core]


def worksheet_copy(shipped: bytes, stage: Stage, lesson: str, core: bool = False,
                   asked: Collection[str] = ()) -> bytes:
    """A worksheet whose link leads to the learner's lesson of this name.

    core: only the exercises of the core path. asked: only these exercises.
    """
    linked = shipped.replace(f"../notebooks/{stage.stem}.ipynb".encode(), lesson.encode())
    if not (core or asked):
        return linked
    book = json.loads(linked)
    kept = {None, *(asked or core_ids(stage))}
    _shorten(book, [c for c in book["cells"] if reading_time.facts(c).get("trap") in kept])
    if asked:
        book["metadata"]["dlsys"]["exercises"] = sorted(asked)
    return _written(book)


def lesson_copy(shipped: bytes, stage: Stage, worksheet: str, core: bool = False,
                asked: Collection[str] = ()) -> bytes:
    """A lesson with links into the learner's worksheet, and without what reveals answers.

    The steps of a trap that answer its question are folded in JupyterLab. core: without the traps
    off the core path. asked: the exercises that the worksheet has; if empty, all of them.
    """
    book = json.loads(shipped)
    book["metadata"]["dlsys"]["version"] = lesson_version(book)
    if core:
        _shorten(book, reading_time.core(book["cells"]))
    end = worksheet.removeprefix(stage.stem).removesuffix(".ipynb")
    _lead_to_guess(book["cells"], paths.lesson_copy(stage.number, end).name)
    for cell in book["cells"]:
        facts = cell["metadata"].get("dlsys", {})
        if facts.get("role") == "exercise" and (not asked or facts.get("trap") in asked):
            _link(cell, stage, f"{worksheet}#cell-id={cell['id']}")
        if cell["cell_type"] == "code" and facts.get("role") in _ANSWERING:
            empty(cell)
        source = "".join(cell["source"])
        if facts.get("role") == "step" and source.startswith(_WITHIN):
            cell["source"] = f"#{source}"
        elif facts.get("role") == "step" and not source.endswith(_OPEN_STEPS):
            cell["metadata"]["jp-MarkdownHeadingCollapsed"] = True
    fold_elsewhere(book)
    return _written(book)


def fold_elsewhere(book: dict) -> None:
    """Tell Colab and Kaggle, by their own marks, what JupyterLab folds. VS Code has no such mark.

    Colab keeps the names of folded sections with the notebook, and a cell's name in its metadata.
    """
    sections = []
    for cell in book["cells"]:
        facts = cell["metadata"]
        if facts.get("jupyter", {}).get("source_hidden"):
            facts["cellView"], facts["_kg_hide-input"] = "form", True
        if facts.get("jp-MarkdownHeadingCollapsed"):
            facts["id"] = cell["id"]
            sections.append(cell["id"])
    book["metadata"]["colab"] = {"collapsed_sections": sections}


def _shorten(book: dict, cells: list[dict]) -> None:
    """Keep only these cells, and mark that others are missing."""
    if len(cells) < len(book["cells"]):
        book["metadata"]["dlsys"]["core"] = True
    book["cells"] = cells


def _written(book: dict) -> bytes:
    return (json.dumps(book, indent=1, ensure_ascii=False) + "\n").encode()


def _lead_to_guess(cells: list[dict], name: str) -> None:
    """Add the way to the first guess below the lesson's title: one link, one command."""
    asked = next((c for c in cells if "guess" in c["metadata"].get("tags", [])), None)
    if asked:
        trap = asked["metadata"]["dlsys"]["trap"]
        title, end, rest = "".join(cells[0]["source"]).partition("\n")
        way = (f"**In a hurry?** Go to [the first guess]({name}#cell-id={asked['id']}), click it "
               "and choose *Run*, *Run All Above Selected Cell*; then run it. Trap "
               f"{trap} needs nothing more.")
        cells[0]["source"] = f"{title}\n\n{way}\n{end}{rest}"


def lesson_version(book: dict) -> str:
    """Fingerprint of a shipped lesson's code: tells an old copy from a new one."""
    return book["metadata"]["dlsys"].get("rests_on", {}).get("code", "")


def is_older(copy: Path, stage: Stage) -> bool:
    """Whether the lesson's code has changed since this copy was made. Raises WorksheetError."""
    now = lesson_version(json.loads(shipped(stage, paths.NOTEBOOKS)))
    return notebook_file.load(copy).version not in ("", now)


def _link(cell: dict, stage: Stage, target: str) -> None:
    text = "".join(cell["source"])
    cell["source"] = text.replace(WAY_IN.format(number=stage.number),
                                  f"[Open your worksheet]({target}).")


def empty(cell: dict) -> None:
    """Drop a code cell's outputs, and the tag that compares them."""
    cell["outputs"], cell["execution_count"] = [], None
    tags = cell["metadata"].get("tags", [])
    cell["metadata"]["tags"] = [tag for tag in tags if tag != "nbval-check-output"]


# ---- files

def stage_of(asked: int | str) -> Stage:
    """A stage that has a worksheet. Raises WorksheetError for any other."""
    match = re.fullmatch(r"0*(\d{1,2})(_\w+)?", str(asked))
    number = int(match[1]) if match else 0
    if number not in NUMBERS:
        raise WorksheetError(
            f"stage: got {str(asked)[:40]!r}, expected {SPAN}. Try: dlsys start 1"
        )
    written = catalog.written()
    if STAGES[number - 1] not in written:
        ready = ", ".join(str(s.number) for s in written)
        raise WorksheetError(f"stage {number} has no worksheet yet; with a worksheet: {ready}.")
    return STAGES[number - 1]


def shipped(stage: Stage, folder: Path) -> bytes:
    """The bytes of a stage's notebook in a folder of the course. Raises WorksheetError."""
    return _bytes(folder / f"{stage.stem}.ipynb")


def _bytes(path: Path) -> bytes:
    name = f"{path.parent.name}/{path.name}"
    try:
        return path.read_bytes()
    except OSError as error:
        remedy = (f"Run: git checkout -- {name}" if not locations.SHIPPED.is_dir()
                  else "A class's wheel contains only what was handed out; for more, install the "
                       "course's wheel.")
        raise WorksheetError(
            f"{name}: cannot be read ({error.strerror}). {remedy}") from None


@contextmanager
def _writing(what: str) -> Iterator[None]:
    """Make the folder; say what could not be written there, and what to do."""
    try:
        paths.MY_WORK.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise WorksheetError(
            f"{paths.MY_WORK.name}: cannot write {what} ({error.strerror}). "
            "Free some space, make the folder writable, or set DLSYS_WORK to a folder of yours; "
            "dlsys doctor says more."
        ) from None


def name_endings() -> Iterator[str]:
    """What follows a name while it is taken: nothing, then _2, _3, ... without end."""
    yield ""
    number = 2
    while True:
        yield f"_{number}"
        number += 1


def _create(path: Path, data: bytes) -> bool:
    """Write a new file; if the name is taken, touch nothing and return False."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink()  # ours, and only half written
        raise
    return True
