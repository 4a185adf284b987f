"""What the grader takes from a notebook that a stranger handed in: code, stage, and notes about it.

Nothing here runs, and every pattern takes time in proportion to the text: seconds for the largest.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from dlsys import notebook_file, pool, sheets
from dlsys.grading.text import some
from dlsys.notebook_file import NotebookFile, Unreadable
from dlsys_helpers import catalog, paths
from dlsys_helpers.errors import UserError

# What imports torch's compiler when first used, in 1 to 2 CPU s, or a part of it, in 0.3.
_ARGUMENT = r"(?:[^(),\[]|\([^()]{0,80}\)|\[[^]]{0,80}\]){1,20},"  # bounded: a stranger's text
_COMPILER = re.compile(
    r"\b(?:optim|fit|profiler|checkpoint|TorchDispatchMode|torch\.func|compile|_dynamo|distributed"
    r"|use_deterministic_algorithms|unravel_index|grad_outputs|gradcheck|[vj][jv]p|assert_close)\b"
    rf"|\bbackward\(\s*[\w\[]|\bgrad\({_ARGUMENT}{_ARGUMENT}\s*[\w.]+\s*[,()]")


class Refused(UserError):
    """This submission cannot be graded. The message is the reason, fit to be shown."""


@dataclass(frozen=True)
class Notebook:
    """A notebook as it is graded. `shown` is what its stored outputs claim; it never counts."""

    stage: int
    cells: list[tuple[int, str]]
    shown: dict[str, str] = field(default_factory=dict)  # exercise id: status of a stored output
    notes: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)  # exercise id: the function's drawn name
    constants: dict[str, Any] = field(default_factory=dict)  # exercise id: its drawn number


def parse(data: bytes, stage: int | None = None) -> Notebook:
    """The notebook in these bytes; `stage` overrides the one in its metadata. Raises Refused."""
    try:
        found = notebook_file.parse(data)
        if found.view in ("lesson", "solution"):
            raise Refused(f"this is the course's own {found.view} notebook, not the worksheet.")
        graded_as = stage or found.known_stage()
        return Notebook(graded_as, found.cells, found.shown,
                        [*_notes(found, stage), *_outdated(found, graded_as)], found.names,
                        pool.drawable(found.constants))
    except Unreadable as error:
        raise Refused(str(error)) from None


def of_variant(notebook: Notebook, key: str) -> Notebook:
    """The notebook with the names and numbers of this key, and a note where it says others.

    A sheet of the exam has none.
    """
    if sheets.is_exam(notebook.stage):
        return notebook
    names, constants = (draw(notebook.stage, key) for draw in (pool.draw, pool.draw_constants))
    traps = pool.named(catalog.traps(notebook.stage), notebook.names)
    others = {"names": [trap.id for trap in traps if trap.function != names[trap.id]],
              "numbers": [id for id in constants if notebook.constants.get(id) != constants[id]]}
    said = " and ".join(f"other {what} in {some(ids)}" for what, ids in others.items() if ids)
    note = [f"Its metadata are not those of the worksheet that the class was given: {said}. It is "
            "graded by the class's."] if said else []
    return replace(notebook, names=names, constants=constants, notes=[*notebook.notes, *note])


def _notes(found: NotebookFile, wanted: int | None) -> list[str]:
    notes = []
    if len(found.ids) != len(set(found.ids)):
        notes.append("Some cells have the same id; each was run all the same.")
    if wanted and found.stage and found.stage != wanted:
        notes.append(f"It says stage {found.stage}; graded as stage {wanted}.")
    return notes


def _outdated(found: NotebookFile, stage: int) -> list[str]:
    """A note when the exercises here have changed since this worksheet was made."""
    if "" in (found.version, _version_here(stage)) or found.version == _version_here(stage):
        return []
    return ["The worksheet is older than the exercises here, which have changed since; it is "
            "graded by these."]


@cache
def _version_here(stage: int) -> str:
    """The version of the worksheet of a stage, "" where it is not here or cannot be read."""
    try:
        path = paths.EXERCISES / f"{sheets.stage(stage).stem}.ipynb"
        return notebook_file.parse(path.read_bytes()).version
    except (OSError, Unreadable):
        return ""


def calls(source: str, names: Iterable[str]) -> list[str]:
    """The names that a source calls, as a function of a library; none where it is no Python."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    called = {getattr(node.func, "attr", None) or getattr(node.func, "id", None)
              for node in nodes if isinstance(node, ast.Call)
              and getattr(node.func, "id", None) not in own}
    return [name for name in names if name in called]


def defines(source: str, function: str) -> bool:
    """Whether the source of a cell, broken or not, has a `def` of this function."""
    pattern = rf"^[ \t]*(async[ \t]+)?def[ \t]+{re.escape(function)}\b"
    return re.search(pattern, source, re.M) is not None


def loads_compiler(sources: Iterable[str]) -> bool:
    """Whether such code may need the compiler. Code that does unannounced is only slower."""
    return any(map(_COMPILER.search, sources))
