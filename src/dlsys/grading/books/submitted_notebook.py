"""What the grader reads from a stranger's notebook: its code, its stage, and notes about it.

None of the code runs here. Every pattern runs in time linear in the text, seconds at most.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dlsys import assignments, model_rows
from dlsys.grading.text import clean
from dlsys_files import notebook_reader
from dlsys_files.notebook_reader import NotebookFile, Unreadable
from dlsys_helpers import paths
from dlsys_helpers.errors import UserError

# Code that imports torch's compiler on first use, in 1 to 2 CPU s, or a part of it, in 0.3.
_ARGUMENT = r"(?:[^(),\[]|\([^()]{0,80}\)|\[[^]]{0,80}\]){1,20},"  # bounded: a stranger's text
_COMPILER = re.compile(
    r"\b(?:optim|fit|profiler|checkpoint|TorchDispatchMode|torch\.func|compile|_dynamo|distributed"
    r"|use_deterministic_algorithms|unravel_index|grad_outputs|gradcheck|[vj][jv]p|assert_close)\b"
    rf"|\bbackward\(\s*[\w\[]|\bgrad\({_ARGUMENT}{_ARGUMENT}\s*[\w.]+\s*[,()]")


# Names that let code read its callers or the memory, where an act may keep what it built. No
# exercise needs them.
_REACHES = re.compile(r"\b(?:_getframe|currentframe|f_back|f_locals|f_globals|get_objects"
                      r"|get_referrers|get_referents|__closure__|co_freevars|settrace|setprofile"
                      r"|inspect\.stack)\b")

LARGEST_PARTS, MOST_PIECES = 2**20, 200  # bytes and pieces of a my_parts.py
# Where a part begins, or the learner's own half.
_PIECE = re.compile(r"^# (?:---- \d\d\.\d+ |==== )", re.M | re.A)
LARGEST_PARSED = 2**16  # characters of the code that defines one answer


class Refused(UserError):
    """This submission cannot be graded. The message is the reason, fit to be shown."""


@dataclass(frozen=True)
class Notebook:
    """A notebook as it is graded. `shown` is what its stored outputs claim; it never counts."""

    stage: int
    cells: list[tuple[int, str]]
    shown: dict[str, str] = field(default_factory=dict)  # exercise id: status of a stored output
    notes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # notes for the instructor alone
    sheet: dict[str, Any] = field(default_factory=dict)  # of an exam: ticket, who began it, cases
    absent: str = "is not defined after all cells have run"  # said of a missing function
    short: bool = False  # its metadata says that it has only some exercises
    requests: dict[str, str] = field(default_factory=dict)  # for another look, by exercise


def parse(data: bytes, stage: int | None = None) -> Notebook:
    """The notebook in these bytes; `stage` overrides the one in its metadata. Raises Refused."""
    try:
        found = notebook_reader.parse(data)
        if found.view in ("lesson", "solution"):
            raise Refused(f"is the course's own {found.view} notebook, not the worksheet.")
        graded_as = stage or assignments.stage_of(found)
        return Notebook(graded_as, found.cells, found.shown, _outdated(found, graded_as),
                        _remarks(found, stage), short=bool(found.core or found.asked),
                        requests=found.requests)
    except Unreadable as error:
        raise Refused(str(error)) from None


def parts(data: bytes) -> Notebook:
    """What `dlsys parts` wrote, cut into a cell for each part, so that a bad part breaks no other.

    Lines keep their numbers. Nothing is parsed. Raises Refused.
    """
    if len(data) > LARGEST_PARTS:
        raise Refused(notebook_reader.oversize(len(data), LARGEST_PARTS))
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise Refused(f"is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None
    starts = [match.start() for match in _PIECE.finditer(text)]
    if "\0" in text or not 0 < len(starts) <= MOST_PIECES:
        raise Refused("is not what `dlsys parts` writes: no line that names a part, such as "
                      "# ---- 08.10 decode_step. Run dlsys parts and hand in its file.")
    pieces = [(a, text[a:b]) for a, b in zip([0, *starts], [*starts, len(text)], strict=True)]
    cells = ["\n" * text.count("\n", 0, a) + piece for a, piece in pieces]
    return Notebook(model_rows.NUMBER, list(enumerate(cells, 1)),
                    absent="is not in the file, so the model uses its stand-in")


def _remarks(found: NotebookFile, wanted: int | None) -> list[str]:
    remarks = []
    if len(found.ids) != len(set(found.ids)):
        remarks.append("Some cells have the same id; all of them were run.")
    if wanted and found.stage and found.stage != wanted:
        remarks.append(f"It says stage {clean(found.stage, 20)}; graded as stage {wanted}.")
    reach = sorted({name for _, source in found.cells for name in _REACHES.findall(source)})
    if reach:
        remarks.append(f"Its code reads its callers or the memory ({', '.join(reach)}), where an "
                       "answer may be looked up. Read it before you count its points.")
    return remarks


def _outdated(found: NotebookFile, stage: int) -> list[str]:
    """A note when the exercises here have changed since this worksheet was made."""
    if "" in (found.version, _version_here(stage)) or found.version == _version_here(stage):
        return []
    return ["The exercises have changed since this worksheet was made; it was graded against "
            "the new ones."]


@cache
def _version_here(stage: int) -> str:
    """The version of the worksheet of a stage, "" if there is none or it cannot be read."""
    try:
        path = paths.EXERCISES / f"{assignments.stage(stage).stem}.ipynb"
        return notebook_reader.parse(path.read_bytes()).version
    except (OSError, Unreadable):
        return ""


def calls(sources: Iterable[str], names: Iterable[str]) -> set[str] | None:
    """The names that the sources call as library functions; None if the sources are too long.

    A parser needs a thousand times its text in memory, and in a trusted process nothing limits it.
    """
    sources = list(sources)
    if sum(map(len, sources)) > LARGEST_PARSED:
        return None
    return {name for source in sources for name in _calls(source, names)}


def _calls(source: str, names: Iterable[str]) -> list[str]:
    """The names that a source calls; none if it is not valid Python."""
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
    """Whether the source of a cell, broken or not, has a `def` of this function, or its class."""
    pattern = rf"^[ \t]*((async[ \t]+)?def|class)[ \t]+{re.escape(function)}\b"
    return re.search(pattern, source, re.M) is not None


def loads_compiler(sources: Iterable[str]) -> bool:
    """Whether the code may need the compiler. If this misses it, the code is only slower."""
    return any(map(_COMPILER.search, sources))
