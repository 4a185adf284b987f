"""`dlsys start 1 --update`: the course's newest worksheet with the learner's answers carried over.

Answers are matched by exercise id. The old file is first kept byte for byte, under a dated name in
``my-work/kept/``; only then does the new one take its place.
"""

import ast
import datetime
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dlsys import release, work_folder, worksheets
from dlsys_files import notebook_file
from dlsys_files.notebook_file import WorksheetError
from dlsys_helpers import paths
from dlsys_helpers.stages import Stage

KEPT = "kept"  # a separate folder: nothing in it counts as a worksheet in use
_NOT_WRITTEN = "is not written yet"  # as in `dlsys_helpers.acting`, whose import takes seconds
_OWN_ID = "own-"  # begins the id of each cell that is the learner's


class Updated(NamedTuple):
    """The worksheet, where the old one is kept (None: it was up to date), what to say about it."""

    path: Path
    kept: Path | None
    lines: list[str]


def update(stage: int | str, core: bool = False) -> Updated:
    """Bring the worksheet in ``my-work/``, and its lesson, to the course's version.

    A worksheet begun with the core path alone becomes the whole stage, unless ``core=True``.
    Raises WorksheetError if it is missing or cannot be read, or if the disk is full.
    """
    chosen = work_folder.stage_of(stage)
    mine, read = paths.MY_WORK / f"{chosen.stem}.ipynb", paths.lesson_copy(chosen.number)
    if not mine.exists():
        raise WorksheetError(f"{mine.name}: no such worksheet in {paths.MY_WORK.name}. Start one: "
                             f"dlsys start {chosen.number}")
    if (holds := worksheets.stage_in(mine)) != chosen.number:
        raise WorksheetError(f"{mine.name}: holds stage {holds}, expected {chosen.number}. "
                             "Rename it.")
    found = notebook_file.load(mine)
    if found.asked:
        core = found.core  # a worksheet that was handed out with some exercises keeps only these
    if core and not found.core:
        raise WorksheetError(f"{mine.name}: has more than the core path, and --core would remove "
                             f"it. Run: dlsys start {chosen.number} --update")
    lines = _update_lesson(chosen, read, mine, core)
    if found.core == core and not worksheets.is_outdated(found, chosen.number):
        return Updated(mine, None, [*lines, f"{mine.name} is up to date and is unchanged."])
    before = mine.read_bytes()
    old = json.loads(before.decode("utf-8-sig"))
    new = json.loads(work_folder.worksheet_copy(
        work_folder.shipped(chosen, paths.EXERCISES), chosen, read.name, core, found.asked))
    _keep_stamp(old, new)
    if isinstance(due := _facts(old).get("due"), str):
        release.show_due(new, due)
    told = carry_over(old, new)
    kept = _swap(mine, before, _bytes(new))
    return Updated(mine, kept, lines + told)


def _update_lesson(stage: Stage, read: Path, worksheet: Path, core: bool) -> list[str]:
    """Renew an older or a short copy of the lesson; it has no answers, but perhaps notes."""
    if not read.exists():
        return []
    short = notebook_file.load(read).core
    if short <= core and not work_folder.is_older(read, stage):
        return []
    before = read.read_bytes()
    old = json.loads(before.decode("utf-8-sig"))
    new = json.loads(work_folder.lesson_copy(
        work_folder.shipped(stage, paths.NOTEBOOKS), stage, worksheet.name, short and core))
    _keep_stamp(old, new)
    for cell in new["cells"] if _facts(old).get("release") else ():
        work_folder.empty(cell)
    kept = _swap(read, before, _bytes(new))
    return [f"{read.name} is new; yours is kept as {KEPT}/{kept.name}."]


def _keep_stamp(old: dict, new: dict) -> None:
    """Give a new notebook the stamp of the release that handed out the old one."""
    if isinstance(label := _facts(old).get("release"), str):
        _facts(new)["release"] = label


# ---- what is carried over

def carry_over(old: dict, new: dict) -> list[str]:
    """Put the learner's answers and own cells into the new worksheet; returns a line about each.

    If the text of an exercise has changed, the answer goes into a cell below the new text:
    learners can compare both, and the answer counts because it is defined last. If the exercise
    asks for another function, the answer goes there as well, but the new stub counts.
    """
    answers, shipped = _answers(old, new), {cell["id"] for cell in new["cells"]}
    told, found = [], set()
    # Above the course's first cell; without one, a tool has dropped the marks of all.
    cells = [_own(one) for one in old["cells"][:_end(old["cells"], shipped) or 0]]
    for cell in new["cells"]:
        trap = _facts(cell).get("trap")
        cells.append(cell)
        if _is_stub(cell):
            found.add(trap)
            line, below = _carry_answer(cell, answers.get(trap))
            told += [f"{trap}: {line}"] if line else []
            cells += below
        if cell["id"] == "stage-setup-2":
            cells += _imports(_source(cell), old)
        cells += [_own(one) for one in _own_cells_after(old, cell["id"], shipped)]
    for trap in sorted(answers.keys() - found):
        told.append(f"{trap}: is no longer in the course; your answer is at the end.")
        cells.append(_code(f"# Exercise {trap}, which the course no longer has.\n{answers[trap]}"))
    new["cells"] = _with_unique_ids(cells)
    return told


def _answers(old: dict, new: dict) -> dict[str, str]:
    """Exercise id to the cell that the learner wrote for it, if it is more than the stub.

    A tool may have dropped ids and metadata; then it is the last cell that defines the function.
    """
    stubs = {cell["id"]: cell for cell in new["cells"] if _is_stub(cell)}
    of_name = {_name(_source(cell)): _facts(cell)["trap"] for cell in stubs.values()}
    certain, likely = {}, {}
    for cell in old["cells"]:
        source = _source(cell)
        if cell["cell_type"] == "code" and not is_unwritten(source):
            likely[of_name.get(_name(source))] = source
            if _is_stub(cell):
                certain[_facts(cell).get("trap")] = source
            elif cell.get("id") in stubs:
                certain[_facts(stubs[cell["id"]])["trap"]] = source
    marked = any(map(_is_stub, old["cells"])) or any(c.get("id") in stubs for c in old["cells"])
    return {trap: source for trap, source in (certain if marked else likely).items() if trap}


def _is_stub(cell: dict) -> bool:
    return cell["cell_type"] == "code" and _facts(cell).get("role") == "exercise"


def _last_definition(source: str) -> ast.AST | None:
    """The function or class that a cell defines last; None if it is not Python."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return None
    found = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return found[-1] if found else None


def _name(source: str) -> str | None:
    return getattr(_last_definition(source), "name", None)


def is_unwritten(source: str) -> bool:
    """Whether the stub's error is the only code below the text of the exercise."""
    found = _last_definition(source)
    body = getattr(found, "body", [])[ast.get_docstring(found) is not None if found else 0:]
    if isinstance(found, ast.ClassDef) and len(body) == 1:
        body = getattr(body[0], "body", body)  # the stub of a class has an __init__ alone
    return len(body) == 1 and isinstance(body[0], ast.Raise) and _NOT_WRITTEN in source


def _carry_answer(stub: dict, answer: str | None) -> tuple[str, list[dict]]:
    """A line about an exercise, and the cells below its stub; an answer may take its place."""
    if answer is None:
        return "", []
    asked = _text(_source(stub))
    if _text(answer) == asked:
        stub["source"] = answer
        return "your answer is carried over.", []
    if asked and f"def {asked[0]}(" not in answer:
        return (f"asks for {asked[0]} now; your earlier answer is below the new text.",
                [_code(f"# Your answer to what this exercise asked for before.\n{answer}")])
    return ("its text has changed; your answer is below the new text. Compare them.",
            [_code(f"# Your answer, from before the text above was changed.\n{answer}")])


def _text(source: str) -> tuple[str, str, str] | None:
    """Name, arguments and docstring of what a cell defines last."""
    found = _last_definition(source)
    if found is None:
        return None
    arguments = ast.unparse(found.args) if isinstance(found, ast.FunctionDef) else ""
    return found.name, arguments, ast.get_docstring(found) or ""


def _imports(setup: str, old: dict) -> list[dict]:
    """A cell with what the learner added to the imports of the set-up."""
    mine = [line for cell in old["cells"] if cell.get("id") == "stage-setup-2"
            for line in import_lines(_source(cell))]
    more = [line for line in mine if line not in import_lines(setup) and "dlsys" not in line]
    return [_code("# From your set-up cell.\n" + "\n".join(more))] if more else []


def import_lines(source: str) -> list[str]:
    """A cell's imports, with `if` or `try` around them; if it is not Python, only one-line ones."""
    try:
        return [ast.unparse(node) for node in ast.parse(source).body
                if isinstance(node, ast.Import | ast.ImportFrom)
                or (isinstance(node, ast.If | ast.Try) and _holds_import(node))]
    except (SyntaxError, ValueError):
        return re.findall(r"^(?:import|from)\s[^(\n\\]*$", source, re.M)


def _holds_import(block: ast.AST) -> bool:
    return any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(block))


def _own_cells_after(old: dict, id: str, shipped: set[str]) -> list[dict]:
    """The learner's own cells between the cell with this id and the course's next one."""
    ids = [cell.get("id") for cell in old["cells"]]
    if id not in ids:
        return []
    rest = old["cells"][ids.index(id) + 1:]
    return rest if (end := _end(rest, shipped)) is None else rest[:end]


def _end(cells: list[dict], shipped: set[str]) -> int | None:
    """The position of the first course cell; None if there is none."""
    return next((n for n, cell in enumerate(cells) if _facts(cell).get("role")
                 or cell.get("id") in shipped), None)


def _own(cell: dict) -> dict:
    return {**cell, "outputs": [], "execution_count": None} if cell["cell_type"] == "code" else cell


def _code(source: str) -> dict:
    return {"cell_type": "code", "id": "", "metadata": {}, "outputs": [], "execution_count": None,
            "source": source}


def _with_unique_ids(cells: list[dict]) -> list[dict]:
    """Give cells with a missing or repeated id a new one: nbformat wants them unique. In place."""
    seen: set[str] = set()
    for number, cell in enumerate(cells):
        if not cell.get("id") or cell["id"] in seen:
            cell["id"] = f"{_OWN_ID}{number}"
        seen.add(cell["id"])
    return cells


def _facts(cell: dict) -> dict:
    """What the course wrote into the metadata of a cell or a notebook."""
    found = (cell.get("metadata") or {}).get("dlsys")
    return found if isinstance(found, dict) else {}


def _source(cell: dict) -> str:
    return "".join(cell.get("source", ""))


# ---- files

def _bytes(book: dict) -> bytes:
    return (json.dumps(book, indent=1, ensure_ascii=False) + "\n").encode()


def _swap(path: Path, before: bytes, after: bytes) -> Path:
    """Keep the file under a dated name, then put the new one in its place; returns where it is."""
    folder = paths.MY_WORK / KEPT
    day, end = datetime.date.today().isoformat(), 1
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise WorksheetError(f"{KEPT}: cannot be created ({error.strerror}). Nothing was "
                             "changed.") from None
    kept = folder / f"{path.stem}_{day}{path.suffix}"
    while not work_folder.keep(kept, before, "the copy of your file"):
        end += 1
        kept = folder / f"{path.stem}_{day}_{end}{path.suffix}"
    fresh = path.with_suffix(".new")
    try:
        fresh.write_bytes(after)
        os.replace(fresh, path)
    except OSError as error:
        with suppress(OSError):  # Windows keeps a file that another program has open
            fresh.unlink(missing_ok=True)
        raise WorksheetError(f"{path.name}: cannot be replaced ({error.strerror}). It is "
                             "unchanged.") from None
    return kept
