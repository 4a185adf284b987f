"""The stored outputs of a notebook: their dependencies, and when a build may keep them.

A build keeps them while their dependencies are unchanged: the code cells in their order, the
modules of this repository that the cells use, the locked packages, the GPU records of the stage;
for worked answers also the stage's checks and their points. Prose does not count.
"""

from __future__ import annotations

import base64
import copy
import io
import json
from collections.abc import Iterator

import numpy as np
from nbformat import NotebookNode
from PIL import Image

from dlsys_helpers.gpu_records import RECORDED
from dlsys_helpers.paths import ROOT
from tools import fingerprints, install_cell


def rests_on(book: NotebookNode) -> dict[str, str]:
    """The dependencies of a notebook's outputs, each with its fingerprint or version."""
    stage = f"{book.metadata['dlsys']['stage']:02d}"
    parts = fingerprints.rests_on([c.source for c in code_cells(book)], ignored=())
    parts["requirements.lock"] = fingerprints.fingerprint(
        (ROOT / "requirements.lock").read_text("utf-8"))
    if book.metadata["dlsys"]["view"] == "solution":
        parts["checks"] = fingerprints.fingerprint("\0".join(_checks(book, stage)))
    else:
        parts["GPU records"] = fingerprints.fingerprint("\0".join(
            path.read_text("utf-8") for path in sorted(RECORDED.glob(f"{stage}/*.json"))))
    return parts


def _checks(book: NotebookNode, stage: str) -> Iterator[str]:
    """The points that a verdict shows, and the stage's checks with all that they import."""
    yield from (str(cell.metadata["dlsys"].get("points")) for cell in code_cells(book))
    files = sorted((ROOT / f"src/dlsys_checks/s{stage}").glob("*.py"))
    modules = fingerprints.with_imports(f"dlsys_checks.s{stage}.{path.stem}" for path in files)
    for name in sorted(modules):  # worked answers pass, so messages do not count
        yield fingerprints.essence(fingerprints.source(name), fingerprints.check_words)


def code_cells(book: NotebookNode) -> list[NotebookNode]:
    """The code cells with stored outputs: all except the one that installs the course."""
    return [cell for cell in book.cells
            if cell.cell_type == "code" and not install_cell.is_install(cell)]


def changes(book: NotebookNode, old: NotebookNode) -> list[str]:
    """The sorted names of the dependencies that changed since the outputs of `old` were stored.

    Every letter of the code counts, because a cell may show its own source. Edited outputs count as
    changed.
    """
    stored = old.metadata.get("dlsys", {}).get("rests_on", {})
    found = fingerprints.changes(stored, book.metadata["dlsys"]["rests_on"]) + edited(old)
    same = [c.source for c in code_cells(book)] == [c.source for c in code_cells(old)]
    return found if same else sorted({*found, "code"})


def sign(book: NotebookNode) -> None:
    """Store a signature of the outputs in the metadata, so that we notice edits."""
    book.metadata["dlsys"]["outputs"] = _signature(book)


def edited(book: NotebookNode) -> list[str]:
    """["outputs"] if somebody edited the outputs since the build, else []."""
    mine = _signature(book)
    return ["outputs"] if book.metadata.get("dlsys", {}).get("outputs", mine) != mine else []


def _signature(book: NotebookNode) -> str:
    return fingerprints.fingerprint(json.dumps([cell.outputs for cell in code_cells(book)],
                                               sort_keys=True))


def keep_outputs(book: NotebookNode, old: NotebookNode) -> None:
    """Copy the outputs from a notebook with the same code cells."""
    for new, stored in zip(code_cells(book), code_cells(old), strict=True):
        new.outputs, new.execution_count = stored.outputs, stored.execution_count


PNG = "image/png"
# Of a million pixels, about 50 differ if the numbers of a curve change by 1e-5 of their size, and
# more than 200 if one digit of a label changes.
FAINT = 8  # channel levels, of 256, by which every pixel may differ
FEW = 64  # pixels that may differ by more


def keep_pictures(book: NotebookNode, old: NotebookNode) -> list[str]:
    """Give pictures that look unchanged their stored bytes; returns the ids of their cells.

    Compares a picture only if its cell's code, prints and claims are the same. Without this, git's
    history would grow with every picture whose bytes change.
    """
    stored = {cell.id: cell for cell in code_cells(old)}
    kept = []
    for cell in code_cells(book):
        before = stored.get(cell.id)
        if before is None or _said(cell) != _said(before):
            continue
        for output, earlier in zip(cell.outputs, before.outputs, strict=True):
            new, known = (one.get("data", {}).get(PNG) for one in (output, earlier))
            if new != known and looks_alike(new, known):
                output.data[PNG] = known
                kept.append(cell.id)
    return kept


def _said(cell: NotebookNode) -> tuple[str, list[NotebookNode]]:
    """A cell's code, and its outputs with the place of each picture but not its bytes."""
    outputs = copy.deepcopy(cell.outputs)
    for output in outputs:
        if PNG in output.get("data", {}):
            output.data[PNG] = ""
    return cell.source, outputs


def looks_alike(one: str, other: str) -> bool:
    """Whether two PNGs, in base64, have the same size and differ only by rendering noise."""
    first, second = map(_pixels, (one, other))
    return first.shape == second.shape and int(
        (np.abs(first - second).max(axis=-1) > FAINT).sum()) <= FEW


def _pixels(png: str) -> np.ndarray:
    """Height, width and four channels, as signed integers."""
    with Image.open(io.BytesIO(base64.b64decode(png))) as picture:
        return np.asarray(picture.convert("RGBA")).astype(np.int16)


def without_outputs(book: NotebookNode) -> NotebookNode:
    """A copy of the notebook without its outputs and their dependencies."""
    bare = copy.deepcopy(book)
    for name in ("rests_on", "outputs"):
        bare.metadata["dlsys"].pop(name, None)
    for cell in code_cells(bare):
        cell.outputs, cell.execution_count = [], None
    return bare


def stale_pictures(book: NotebookNode) -> list[str]:
    """The explorers that changed since the notebook stored their picture, and in which part.

    The front end counts, because the picture stands in for it where there is no kernel.
    """
    stored = book.metadata["dlsys"].get("rests_on", {})
    found = []
    for cell in code_cells(book):
        if name := cell.metadata["dlsys"].get("explorer"):
            now = {**fingerprints.rests_on([cell.source]), "code": stored.get("code")}
            parts = [part for part in fingerprints.changes(stored, now) if part in now]
            found += [f"explorer {name} ({', '.join(parts)})"] if parts else []
    return found
