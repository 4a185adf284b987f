"""Read a notebook file: its code, its stage, what its stored checks say; or why it cannot be read.

Everything in it is data, and may come from strangers: nothing here runs, sizes are capped, and
every pattern runs in time linear in the text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from dlsys_helpers.errors import UserError

LARGEST = 32 * 2**20  # bytes; a worksheet has tens of kilobytes, its plots some more
MOST_READ = 8 * 2**20  # bytes that are parsed; a larger file is read without its pictures
LONG = 2**10  # characters of a text that is left out there: a picture, a widget, a printed page
MOST_CELLS = 1000
NO_WORKSHEET = "is not a worksheet of this course: no stage in its metadata, no check."
VARIANT = ("is from a variant: got other names for its functions in the metadata, expected the "
           "usual ones. Check and grade it with version 1.0.0, which drew them.")
# A check cell is a code cell with such a line.
_CHECK = re.compile(r"""^[ \t]*check\(\s*["'](\d\d\.\d+)["']""", re.M | re.A)
# A line with which a learner asks for another look, at one exercise or at all that do not pass;
# the sentence may begin on the next line, and is cut if it is long.
_REGRADE = re.compile(
    r"^[ \t*_#>-]{0,8}Regrade(?:(?:[ \t]+(?:of|exercise))?[ \t]+(\d\d?)\.(\d{1,2})[*_]{0,2}[ \t]*"
    r"[:.,;\u2013\u2014-]{0,2}|[*_]{0,2}[ \t]*:)[*_]{0,2}[ \t]*\n?[ \t]*(\S[^\n]{0,400})",
    re.M | re.I | re.A)
# A JSON string, and the colon that makes it a name. It always matches, so its time is linear.
_STRING = re.compile(rb'"([^"\\]*+(?:\\.?[^"\\]*+)*+)"?(\s*:)?', re.S)
# What people hand in under a notebook's name, by its first bytes.
_KINDS = ((b"%PDF", "a PDF"), (b"PK\x03\x04", "a zip or a document of an office program"),
          (b"\x89PNG", "a picture"), (b"\xff\xd8\xff", "a picture"))
MOST_REQUESTS = 100
_ID = re.compile(r"\d\d\.\d{1,2}", re.A)
_SHOWN = 60  # characters of a stranger's word in a message


class Unreadable(UserError):
    """This file cannot be worked with. The message continues its name: "is empty."

    kind: "format", "language", "strange" (another notebook), "variant", "large" or "damaged", for
    callers that add advice.
    """

    def __init__(self, message: str, kind: str = "damaged") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class NotebookFile:
    """What the course takes from a notebook.

    stage: as the metadata say, or if a tool dropped them, of the first exercise checked; None
    without either. cells: (number among the code cells, source). shown: exercise id to the status
    that the stored output of its check shows; for display only, grading never reads it. core: it
    was begun with only the core path, or handed out with the exercises `asked`.
    requests: exercise id to the sentence with which the learner asks for another look at it; "" is
    for all that do not pass.
    """

    stage: int | None
    view: str
    version: str
    cells: list[tuple[int, str]]
    ids: list[str]
    shown: dict[str, str] = field(default_factory=dict)
    core: bool = False
    asked: tuple[str, ...] = ()
    requests: dict[str, str] = field(default_factory=dict)

    @property
    def checked(self) -> list[str]:
        """Ids of the exercises that its cells check, in their order."""
        return [id for _, source in self.cells for id in checked_in(source)]


def checked_in(source: str) -> list[str]:
    """The exercises that the source of a cell checks; none for a cell that is not a check cell."""
    return _CHECK.findall(source)


def parse(data: bytes) -> NotebookFile:
    """The Python notebook in these bytes. Raises Unreadable."""
    if len(data) > LARGEST:
        raise Unreadable(oversize(len(data)), "large")
    _right_kind(data)
    notebook = _json(_text(data if len(data) <= MOST_READ else _without_long_texts(data)))
    if notebook.get("nbformat") != 4:
        raise Unreadable(f"has notebook format {_word(notebook.get('nbformat'))}, expected 4. "
                         "Open it in JupyterLab and save it.", "format")
    metadata = _dict(notebook.get("metadata"))
    _python_only(metadata)
    cells = _cells(notebook)
    code = [cell for cell in cells if cell.get("cell_type") == "code"]
    sources = [_source(cell) for cell in code]
    own = _dict(metadata.get("dlsys"))
    if own.get("names") or own.get("constants"):
        raise Unreadable(VARIANT, "variant")
    shown: dict[str, str] = {}
    for cell, source in zip(code, sources, strict=True):
        shown |= _shown(cell, checked_in(source))
    return NotebookFile(_stage(own.get("stage"), sources), _word(own.get("view")),
                        _word(own.get("version", "")), list(enumerate(sources, 1)),
                        [cell["id"] for cell in cells if type(cell.get("id")) is str], shown,
                        own.get("core") is True, _asked(own.get("exercises")), _requests(cells))


def _asked(said: Any) -> tuple[str, ...]:
    known = type(said) is list and all(type(id) is str and _ID.fullmatch(id) for id in said)
    return tuple(said) if known and len(said) <= MOST_CELLS else ()


def _requests(cells: list[dict]) -> dict[str, str]:
    """What text cells ask for: `Regrade 08.4: my reason`. The last one of an exercise counts."""
    found = [match for cell in cells if cell.get("cell_type") == "markdown"
             for match in _REGRADE.finditer(_source(cell))]
    return {f"{match[1].zfill(2)}.{match[2]}" if match[1] else "": match[3].strip()
            for match in found[:MOST_REQUESTS]}


def oversize(size: int, most: int = LARGEST) -> str:
    """What is wrong with this many bytes."""
    return f"has {size / 2**20:.1f} MiB, expected at most {most / 2**20:.1f} MiB."


def _right_kind(data: bytes) -> None:
    kind = next((kind for start, kind in _KINDS if data.startswith(start)), "")
    if kind:
        raise Unreadable(f"is {kind}, not a notebook, whatever its name says.")


def _without_long_texts(data: bytes) -> bytes:
    """The notebook with "" for each long text that is no cell's source. Raises Unreadable.

    Outputs never count, so they should not cost memory to read.
    """
    left, name, done = bytearray(), b"", 0
    for match in _STRING.finditer(data):
        if match[2]:
            name = match[1] if len(match[1]) < LONG else b""
        elif len(match[1]) > LONG and name != b"source":
            left += data[done:match.start()] + b'""'
            done = match.end()
    left += data[done:]
    if len(left) > MOST_READ:
        raise Unreadable(f"has {len(left) / 2**20:.1f} MiB without its pictures, expected at most "
                         f"{MOST_READ / 2**20:.1f} MiB.", "large")
    return bytes(left)


def _text(data: bytes) -> str:
    if not data.strip():
        raise Unreadable("is empty, expected a notebook.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not UTF-8 text (byte {error.start}). Open it in an editor and save "
                         "it as UTF-8.") from None


def _json(text: str) -> dict:
    try:
        notebook = json.loads(text)
    except RecursionError:
        raise Unreadable("is nested too deeply for a notebook.") from None
    except json.JSONDecodeError as error:
        raise Unreadable(_damage(text, error)) from None
    except ValueError:
        raise Unreadable("holds a number too long to read.") from None
    if type(notebook) is not dict:
        raise Unreadable(f"is JSON but not a notebook (got a {type(notebook).__name__}).")
    return notebook


def _damage(text: str, error: json.JSONDecodeError) -> str:
    """What happened to the file, as far as its text tells."""
    if re.search(r"^<<<<<<< ", text, re.M):
        return "holds git conflict marks (<<<<<<<). Resolve them in a text editor."
    if not text.lstrip().startswith("{"):
        return "is not a notebook (its text does not begin with a brace)."
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
        return f"stops in the middle (line {error.lineno}): it was cut off while being saved."
    return f"is damaged at line {error.lineno}, column {error.colno}: {error.msg}."


def _python_only(metadata: dict) -> None:
    spec, info = _dict(metadata.get("kernelspec")), _dict(metadata.get("language_info"))
    language = _word(spec.get("language") or info.get("name") or "python")
    if not language.lower().startswith(("python", "ipython")):
        raise Unreadable(f"has a kernel for {language}, expected Python.", "language")


def _cells(notebook: dict) -> list[dict]:
    cells = notebook.get("cells")
    if type(cells) is not list or not all(type(cell) is dict for cell in cells):
        raise Unreadable("has no list of cells, expected a notebook.")
    if not cells:
        raise Unreadable("has no cells at all, expected a worksheet.")
    if len(cells) > MOST_CELLS:
        raise Unreadable(f"has {len(cells)} cells, expected at most {MOST_CELLS}.", "large")
    return cells


def _source(cell: dict) -> str:
    """A cell's text; the format allows a string or a list of lines."""
    source = cell.get("source", "")
    parts = source if type(source) is list else [source]
    if not all(type(part) is str for part in parts):
        raise Unreadable("has a cell whose source is not text.")
    return "".join(parts)


def _stage(said: Any, sources: list[str]) -> int | None:
    checked = [id for source in sources for id in checked_in(source)]
    if said is None and checked:
        return int(min(checked).partition(".")[0])
    return said if type(said) is int else None


def _shown(cell: dict, ids: list[str]) -> dict[str, str]:
    """What the stored outputs of a check cell show: an error, or what a card says; else nothing."""
    outputs = cell.get("outputs")
    outputs = outputs if ids and type(outputs) is list else []
    if any(_dict(output).get("output_type") == "error" for output in outputs):
        return dict.fromkeys(ids, "error")
    told = dict(filter(None, map(_told, outputs)))
    return {id: told[id] for id in ids if id in told}


def _told(output: Any) -> tuple[str, str] | None:
    """Exercise and status in the metadata of an output, as `Verdict.facts` puts them there."""
    match output:
        case {"metadata": {"dlsys": {"id": str(id), "status": str(status)}}}:
            return id, status
    return None


def _word(value: Any) -> str:
    """A stranger's value, short enough for a message; of a nested one only its type."""
    plain = value is None or type(value) in (str, int, float, bool)
    return str(value if plain else type(value).__name__)[:_SHOWN]


def _dict(value: Any) -> dict:
    return value if isinstance(value, dict) else {}
