"""The GPU measurements that lessons declare: the state of their records, and their validation.

Needs no Jupyter: `make record` uses it on a bare GPU machine.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from dlsys_helpers.gpu_records import (
    KEY,
    RecordError,
    extent,
    load_record,
    source_hash,
    state_of,
)
from dlsys_helpers.paths import NOTEBOOKS

PROVENANCE = {"device": str, "sms": int, "memory_gib": float, "driver": str, "cuda": str,
              "torch": str, "triton": str, "date": str, "commit": str, "dirty": bool}
FIELDS = {"key": str, "source": str, "columns": list, "provenance": dict, "rows": list}


# ---- what is declared

def evidence() -> list[dict[str, Any]]:
    """Every measurement that the notebooks declare, in order, with the state of its record.

    Each: notebook (stem), key, function, columns, state ("recorded", "stale" or "missing") and
    provenance (None when missing). Reads the cells' source; runs nothing.
    Raises RecordError for a damaged record or a declaration that cannot be read.
    """
    return [entry for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
            for entry in _declared(path)]


def _declared(path: Path) -> Iterator[dict[str, Any]]:
    cells = [c for c in json.loads(path.read_text("utf-8"))["cells"] if c["cell_type"] == "code"]
    defined: dict[str, str] = {}
    for cell in cells:
        source = "".join(cell["source"])
        defined |= dict.fromkeys(_constants(source), "")
        for node in _functions(source):
            first, last = extent(node)
            defined[node.name] = "\n".join(source.split("\n")[first - 1:last])
            call = _gpu_call(node)
            if call is not None and _role(cell) == "gpu":
                yield _entry(path.stem, node, call, defined)


def _statements(source: str) -> list[ast.stmt]:
    """The statements of a cell; none if it is not plain Python (magics)."""
    try:
        return ast.parse(source).body
    except SyntaxError:
        return []


def _functions(source: str) -> list[ast.FunctionDef]:
    return [node for node in _statements(source) if isinstance(node, ast.FunctionDef)]


def _constants(source: str) -> set[str]:
    """The names that a cell sets outside of functions and classes.

    A stub for a module that is not installed does not count: GPU machines have the module.
    """
    inside = [n for node in _statements(source)
              if not isinstance(node, ast.FunctionDef | ast.ClassDef) for n in ast.walk(node)]
    modules = {a.asname or a.name.partition(".")[0] for n in inside
               if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names}
    return {n.id for n in inside
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} - modules


def _role(cell: dict[str, Any]) -> str | None:
    return cell["metadata"].get("dlsys", {}).get("role")


def _gpu_call(node: ast.FunctionDef) -> ast.Call | None:
    for call in node.decorator_list:
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "gpu_result":
            return call
    return None


def _entry(stem: str, node: ast.FunctionDef, call: ast.Call,
           defined: dict[str, str]) -> dict[str, Any]:
    given = dict(zip(("key", "columns", "uses"), call.args, strict=False))
    given |= {k.arg: k.value for k in call.keywords if k.arg}
    try:
        key, columns = (ast.literal_eval(given[part]) for part in ("key", "columns"))
        used = [ast.unparse(u) for u in getattr(given.get("uses"), "elts", [])]
        sources = [defined[name] for name in (node.name, *used)]
    except (KeyError, ValueError) as error:
        raise RecordError(f"{stem}, {node.name}: cannot read {error}. Give gpu_result a literal "
                          "key and columns, and uses= functions defined above it.") from None
    unseen = {name for source in sources for name in outer_names(source)} & {*defined} - {*used}
    if unseen:
        raise RecordError(f"{stem}, {node.name}: uses {', '.join(sorted(unseen))}, which the "
                          "record's hash does not cover. Name functions in uses=, move constants "
                          "into one.")
    record = load_record(key)
    return {"notebook": stem, "key": key, "function": node.name, "columns": list(columns),
            "state": state_of(record, source_hash(sources)),
            "provenance": record["provenance"] if record else None}


def outer_names(source: str) -> set[str]:
    """The names that a function takes from outside: it reads them, but does not bind them."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    inside = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    inside |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    inside |= {n.name for n in nodes[1:] if isinstance(n, ast.FunctionDef)}
    return names - inside


# ---- what a record must be

def validate_record(record: Any) -> None:
    """Raise RecordError unless this is a whole record with full provenance and finite rows."""
    _check_fields("record", record, FIELDS)
    if not KEY.fullmatch(record["key"]):
        raise RecordError(f"record: got key {record['key']!r}, expected NN/name.")
    if not re.fullmatch("[0-9a-f]{64}", record["source"]):
        raise RecordError("record source: expected a SHA-256 in hex.")
    check_provenance(record["provenance"])
    _check_rows(record["key"], record["columns"], record["rows"])


def _check_fields(what: str, got: Any, fields: dict[str, type]) -> None:
    if not isinstance(got, dict) or set(got) != set(fields):
        seen = sorted(map(str, got)) if isinstance(got, dict) else type(got).__name__
        raise RecordError(f"{what}: got {seen}, expected {sorted(fields)}.")
    for name, kind in fields.items():
        empty = kind is not bool and got[name] in ("", 0, 0.0)
        if type(got[name]) is not kind or empty:
            raise RecordError(f"{what}: {name} is {got[name]!r}, expected a {kind.__name__}. "
                              + REMEDIES.get(name, "Record it again."))


REMEDIES = {"commit": "Set DLSYS_COMMIT where the checkout has no git history.",
            "driver": "Neither nvidia-smi nor /proc/driver/nvidia/version tells it.",
            "triton": "triton must be installed beside torch."}


def check_provenance(origin: Any) -> None:
    """Raise RecordError unless it says in full where a measurement comes from."""
    _check_fields("provenance", origin, PROVENANCE)
    if not re.fullmatch("[0-9a-f]{7,40}", origin["commit"]):
        raise RecordError(f"provenance: commit is {origin['commit']!r}, expected 7 to 40 hex "
                          "digits. " + REMEDIES["commit"])
    if origin["sms"] < 0 or not 0 < origin["memory_gib"] < math.inf:
        raise RecordError("provenance: sms and memory_gib must be positive and finite.")
    try:
        date.fromisoformat(origin["date"])
    except ValueError:
        raise RecordError(f"provenance: date is {origin['date']!r}, expected a day as YYYY-MM-DD."
                          ) from None


def _check_rows(key: str, columns: list[str], rows: Any) -> None:
    if not isinstance(rows, list) or not rows:
        raise RecordError(f"{key}: got {type(rows).__name__} of length "
                          f"{len(rows) if isinstance(rows, list) else 0}, expected rows.")
    for n, row in enumerate(rows):
        if not isinstance(row, dict) or list(row) != columns:
            got = list(row) if isinstance(row, dict) else row
            raise RecordError(f"{key}: row {n} is {got!r}, expected the columns {columns}.")
        for name, value in row.items():
            if type(value) not in (bool, int, float, str) or _not_finite(value):
                raise RecordError(f"{key}: row {n}, {name} is {value!r}, expected a finite plain "
                                  "number or text. Use .item() on tensors.")


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
