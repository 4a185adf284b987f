"""The one canonical form of a stored notebook, so that a rebuild writes the same bytes."""

from __future__ import annotations

import re

from nbformat import NotebookNode

from tools.install_cell import is_install

ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}")
LIVE_ONLY = "A live control: run this cell to use it."
READABLE = {"image/png", "text/html"}  # what our widgets store for readers without a kernel
WIDGET = "application/vnd.jupyter.widget-view+json"


def canonical(notebook: NotebookNode) -> NotebookNode:
    """Strip, in place, what changes between runs from outputs; number code cells 1 to n."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata.pop("papermill", None)
    notebook.metadata["language_info"] = {"name": "python"}
    count = 0
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code" and is_install(cell):
            cell.execution_count, cell.outputs = None, []  # no output where the course is installed
        elif cell.cell_type == "code":
            count += 1
            cell.execution_count = count if cell.outputs or cell.execution_count else None
            cell.outputs = [_clean(out, cell.execution_count) for out in _merged(cell.outputs)]
    return notebook


def _merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join consecutive pieces of one stream, because timing decides how they are split."""
    merged: list[NotebookNode] = []
    for out in outputs:
        last = merged[-1] if merged else None
        if last is not None and out.output_type == last.output_type == "stream" and (
                out.name == last.name):
            last.text += out.text
        else:
            merged.append(out)
    return merged


def _clean(out: NotebookNode, count: int | None) -> NotebookNode:
    if "execution_count" in out:
        out.execution_count = count
    out.get("metadata", {}).pop("needs_background", None)
    if "text" in out:
        out.text = ADDRESS.sub(" at 0x0", out.text)
    data = out.get("data", {})
    if data.pop(WIDGET, None) is not None and not READABLE & data.keys():
        data["text/plain"] = LIVE_ONLY  # the widget's repr is useless to a reader
    for kind in ("text/plain", "text/html"):
        if kind in data:
            data[kind] = ADDRESS.sub(" at 0x0", data[kind])
    return out
