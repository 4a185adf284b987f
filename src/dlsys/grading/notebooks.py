"""Read what a stranger calls a notebook: its code and what it claims, or the reason why not.

Everything in it is data. Nothing here runs, and every pattern takes time in proportion to the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from dlsys.grading.text import clean
from dlsys_helpers import stages

MOST_CELLS = 1000
_CHECK = re.compile(r"""\bcheck\(\s*["'](\d\d\.\d+)["']""", re.A)
NO_WORKSHEET = "is no worksheet of this course: no stage in its metadata, no check."


class Refused(ValueError):
    """This submission cannot be graded. The message is the reason, fit to be shown."""


@dataclass(frozen=True)
class Notebook:
    """What is taken from a notebook: its code by number, and what its own checks showed."""

    stage: int
    cells: list[tuple[int, str]]
    shown: dict[str, bool] = field(default_factory=dict)  # exercise id: its stored output passed
    notes: list[str] = field(default_factory=list)


def parse(data: bytes, stage: int | None = None) -> Notebook:
    """The notebook in these bytes; `stage` overrides what it says itself. Raises Refused."""
    notebook = _json(data)
    if notebook.get("nbformat") != 4:
        raise Refused(f"has notebook format {clean(notebook.get('nbformat'), 20)}, expected 4. "
                      "Open it in JupyterLab and save it, or: jupyter nbconvert --to notebook")
    _python_only(notebook)
    cells = notebook.get("cells")
    if type(cells) is not list or not all(type(cell) is dict for cell in cells):
        raise Refused("has no list of cells.")
    if len(cells) > MOST_CELLS:
        raise Refused(f"has {len(cells)} cells, expected at most {MOST_CELLS}.")
    code = [cell for cell in cells if cell.get("cell_type") == "code"]
    sources = [_source(cell) for cell in code]
    said = _stage(notebook, [id for source in sources for id in checked_ids(source)])
    notes = _notes(notebook, cells, said, stage)
    return Notebook(stage or _known(said), list(enumerate(sources, 1)), _shown(code, sources),
                    notes)


def _json(data: bytes) -> dict:
    if not data.strip():
        raise Refused("is empty.")
    try:
        notebook = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Refused(f"is not UTF-8 text (byte {error.start}). Open it in JupyterLab and save "
                      "it.") from None
    except RecursionError:
        raise Refused("is nested too deep for a notebook.") from None
    except json.JSONDecodeError as error:
        raise Refused(f"is no JSON, or cut off (line {error.lineno}: {error.msg}).") from None
    except ValueError:
        raise Refused("holds a number too long to read.") from None
    if type(notebook) is not dict:
        raise Refused("is JSON but no notebook.")
    return notebook


def _python_only(notebook: dict) -> None:
    metadata = _dict(notebook.get("metadata"))
    spec, info = _dict(metadata.get("kernelspec")), _dict(metadata.get("language_info"))
    language = str(spec.get("language") or info.get("name") or "python")
    if not language.lower().startswith(("python", "ipython")):
        raise Refused(f"has a kernel that speaks {clean(language, 30)}, expected Python.")


def _source(cell: dict) -> str:
    source = cell.get("source", "")
    parts = source if type(source) is list else [source]
    if not all(type(part) is str for part in parts):
        raise Refused("has a cell whose source is no text.")
    return "".join(parts)


def _own(notebook: dict, key: str) -> object:
    """What the course itself wrote into the notebook's metadata."""
    return _dict(_dict(notebook.get("metadata")).get("dlsys")).get(key)


def _stage(notebook: dict, checked: list[str]) -> int | None:
    said = _own(notebook, "stage")
    if said is None and checked:
        return int(min(checked).partition(".")[0])
    return said if type(said) is int else None


def _known(said: int | None) -> int:
    if said is None or not 1 <= said <= len(stages.STAGES):
        raise Refused(NO_WORKSHEET)
    return said


def _notes(notebook: dict, cells: list[dict], said: int | None, wanted: int | None) -> list[str]:
    notes = []
    if (view := _own(notebook, "view")) in ("lesson", "solution"):
        notes.append(f"This is the course's own {view} notebook, not the worksheet.")
    ids = [cell["id"] for cell in cells if type(cell.get("id")) is str]
    if len(ids) != len(set(ids)):
        notes.append("Some cells have the same id; each was run all the same.")
    if wanted and said and said != wanted:
        notes.append(f"It says stage {said}; graded as stage {wanted}.")
    return notes


def _shown(code: list[dict], sources: list[str]) -> dict[str, bool]:
    """What the stored outputs of the check cells claim, by exercise; nothing for one not run."""
    shown = {}
    for cell, source in zip(code, sources, strict=True):
        outputs = cell.get("outputs")
        ids = checked_ids(source)
        if ids and type(outputs) is list and outputs:
            failed = any(_dict(output).get("output_type") == "error" for output in outputs)
            told = dict(filter(None, map(_told, outputs)))
            shown |= {id: not failed and told.get(id) == "pass" for id in ids
                      if failed or id in told}
    return shown


def _told(output: object) -> tuple[str, str] | None:
    """Exercise and status that a check's output says in its metadata."""
    match output:
        case {"metadata": {"dlsys": {"id": str(id), "status": str(status)}}}:
            return id, status
    return None


def _dict(value: object) -> dict:
    return value if isinstance(value, dict) else {}


def checked_ids(source: str) -> list[str]:
    """The exercises that a cell's source seems to check."""
    return _CHECK.findall(source)


def calls(source: str, names: Iterable[str]) -> list[str]:
    """Those of the names that a source seems to call; one in a comment counts, too."""
    return [name for name in names if re.search(rf"\b{re.escape(name)}\s*\(", source)]


def defines(source: str, function: str) -> bool:
    """Whether the source of a cell, broken or not, means to define this function."""
    pattern = rf"^[ \t]*(async[ \t]+)?def[ \t]+{re.escape(function)}\b"
    return re.search(pattern, source, re.M) is not None
