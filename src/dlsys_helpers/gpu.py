"""GPU measurements: run now on a CUDA device, elsewhere the committed record with its provenance.

Nothing is skipped. A cell decorated with `gpu_result` always runs: on a CUDA device it measures,
elsewhere it shows what was recorded, and where nothing was recorded it says exactly that.
"""

from __future__ import annotations

import ast
import hashlib
import html
import importlib.metadata
import inspect
import json
import math
import os
import re
import subprocess
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dlsys_helpers import cards
from dlsys_helpers.errors import UserError
from dlsys_helpers.paths import NOTEBOOKS, ROOT

RECORDED = Path(__file__).parent / "recorded"
PROVENANCE = {"device": str, "sms": int, "memory_gib": float, "driver": str, "cuda": str,
              "torch": str, "triton": str, "date": str, "commit": str, "dirty": bool}
FIELDS = {"key": str, "source": str, "columns": list, "provenance": dict, "rows": list}
KEY = re.compile(r"\d\d/[a-z][a-z0-9_]*")
CLIP = 60  # characters of a text value in the plain table

_chosen = "auto"  # what the lesson's DEVICE parameter asked for


class RecordError(UserError, ValueError):
    """A GPU record or a measurement's rows are not what they must be."""


# ---- the device

def device(choice: str | None = None) -> torch.device:
    """The device to compute on; a choice ("auto", "cpu" or "cuda") holds for later calls too.

    "auto" takes a CUDA device where there is one; "cpu" forces the recorded view.
    Raises ValueError for another word, RuntimeError for "cuda" where there is none.
    """
    global _chosen
    wanted = _chosen if choice is None else choice
    if wanted not in ("auto", "cpu", "cuda"):
        raise ValueError(f'DEVICE: got {wanted!r}, expected "auto", "cpu" or "cuda".')
    found = torch.cuda.is_available()
    if wanted == "cuda" and not found:
        raise RuntimeError('DEVICE: got "cuda", but torch sees no CUDA device. Set DEVICE = "auto" '
                           "to see the recorded results, or run `dlsys doctor` to find out why.")
    _chosen = wanted
    return torch.device("cuda" if found and wanted != "cpu" else "cpu")


def half_dtype(where: torch.device | str) -> torch.dtype:
    """bfloat16, or float16 on a CUDA device that cannot compute bfloat16 natively."""
    on_cuda = torch.device(where).type == "cuda"
    if on_cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16


class Peak(NamedTuple):
    """Datasheet rates of one device: dense, at boost clock. A roof, not a promise."""

    name: str           # as torch reports it
    half_tflops: float  # bf16 and fp16 on tensor cores, TFLOP/s (Turing and Volta: fp16 only)
    fp32_tflops: float  # outside tensor cores, TFLOP/s
    memory_gbs: float   # device memory, GB/s
    source: str

    @property
    def ridge(self) -> float:
        """FLOP/byte where the tensor-core roof meets the memory roof."""
        return self.half_tflops * 1e3 / self.memory_gbs

    @property
    def fp32_ridge(self) -> float:
        """FLOP/byte where the fp32 roof meets the memory roof."""
        return self.fp32_tflops * 1e3 / self.memory_gbs


# NVIDIA prints bf16 with 2:4 sparsity for Hopper and Ada; dense is half of that.
PEAKS = {p.name: p for p in (
    Peak("NVIDIA H200", 989.5, 67, 4800, "NVIDIA H200 datasheet, SXM column"),
    Peak("NVIDIA H100 80GB HBM3", 989.5, 67, 3350, "NVIDIA H100 datasheet, SXM column"),
    Peak("NVIDIA H100 PCIe", 756.5, 51, 2000, "NVIDIA H100 datasheet (2022), PCIe column"),
    Peak("NVIDIA H100 NVL", 835.5, 60, 3900, "NVIDIA H100 datasheet, NVL column"),
    Peak("NVIDIA A100-SXM4-80GB", 312, 19.5, 2039, "NVIDIA A100 datasheet, 80GB SXM column"),
    Peak("NVIDIA A100 80GB PCIe", 312, 19.5, 1935, "NVIDIA A100 datasheet, 80GB PCIe column"),
    Peak("NVIDIA A100-SXM4-40GB", 312, 19.5, 1555, "NVIDIA A100 datasheet (2020), SXM column"),
    Peak("NVIDIA A100-PCIE-40GB", 312, 19.5, 1555, "NVIDIA A100 datasheet (2020), PCIe column"),
    Peak("NVIDIA L40S", 362, 91.6, 864, "NVIDIA L40S datasheet"),
    Peak("NVIDIA L4", 121, 30.3, 300, "NVIDIA L4 datasheet"),
    Peak("NVIDIA A10", 125, 31.2, 600, "NVIDIA A10 datasheet"),
    Peak("Tesla T4", 65, 8.1, 320, "NVIDIA T4 datasheet; memory: 256 bit at 10 Gbit/s"),
    Peak("Tesla V100-SXM2-16GB", 125, 15.7, 900, "NVIDIA V100 datasheet, SXM2 column"),
    Peak("Tesla V100-SXM2-32GB", 125, 15.7, 900, "NVIDIA V100 datasheet, SXM2 column"),
)}


def peak(device_name: str) -> Peak:
    """Datasheet peak of a device, by the name that `torch.cuda.get_device_name()` gives.

    Raises LookupError for a device without an entry: a peak is looked up, never guessed.
    """
    if device_name not in PEAKS:
        known = ", ".join(name.removeprefix("NVIDIA ") for name in PEAKS)
        raise LookupError(f"peak: got {device_name!r}, which has no entry. Add its datasheet "
                          f"values to PEAKS in gpu.py. Known: {known[:120]} ...")
    return PEAKS[device_name]


# ---- results

@dataclass(frozen=True)
class GpuResult:
    """What a GPU measurement shows: rows, where they come from, and how they are rendered.

    state: "live" (measured now), "recorded", "stale" (recorded by an earlier version of the cell)
    or "missing". `rows` is empty when missing, and when a stale record has other columns.
    """

    key: str
    columns: tuple[str, ...]
    state: str
    rows: list[dict[str, Any]]
    provenance: dict[str, Any] | None

    @property
    def device_name(self) -> str | None:
        """The device that the rows were measured on; None when nothing was recorded."""
        return self.provenance["device"] if self.provenance else None

    def value(self, column: str, **where: Any) -> Any:
        """The value in `column` of the one row that matches, as in value("us", step="gelu").

        Raises LookupError unless exactly one row matches.
        """
        found = [r for r in self.rows if all(r[name] == want for name, want in where.items())]
        if len(found) != 1:
            raise LookupError(f"{self.key}: got {len(found)} rows where {where}, expected one.")
        return found[0][column]

    def claim(self, text: str, value: Callable[[], float], **bounds: float) -> None:
        """Make a claim on the rows shown, or say that there are none and nothing is asserted.

        value: a function without arguments, called only when there are rows.
        bounds: as for `dlsys_helpers.claim`.
        """
        from dlsys_helpers.claims import claim
        if self.rows:
            claim(text, value(), **bounds)
            return
        shown = f"Not asserted, no data yet: {text}"
        cards.emit(f'<div class="dlsys-claim dlsys-unasserted" style="font-size:.86em;opacity:.85">'
                   f"{html.escape(shown)}</div>", shown)

    def note(self) -> str:
        """One line: where the rows come from, or that there are none."""
        if self.provenance is None:
            return ("Not recorded yet: this run uses no CUDA device, and no one has run "
                    "`make record` on one. Nothing below rests on a measurement.")
        how = "Measured now on" if self.state == "live" else "No CUDA device in use. Recorded on"
        text = f"{how} {describe(self.provenance)}."
        if self.state == "stale":
            text += " Recorded with an earlier version of this cell; `make record` renews it."
        if not self.rows:
            text += " Its columns were others, so no row is shown."
        return text

    def __repr__(self) -> str:
        table = [list(self.columns)] + [[_plain(v)[:CLIP] for v in r.values()] for r in self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(v.rjust(w) for v, w in zip(row, widths, strict=True)) for row in table]
        return "\n".join([self.note(), *(lines if self.rows else [])])

    def _repr_html_(self) -> str:
        """No colours of its own, so that it follows a light or a dark page."""
        note = f'<p class="dlsys-gpu-note"><em>{html.escape(self.note())}</em></p>'
        table = _table(self.columns, self.rows) if self.rows else ""
        return f'<div class="dlsys-gpu" data-state="{self.state}">{note}{table}</div>'


def describe(provenance: dict[str, Any]) -> str:
    """Device, driver, versions, date and commit of a measurement in one line."""
    p = provenance
    dirty = " with uncommitted changes" if p["dirty"] else ""
    return (f"{p['device']} ({p['sms']} SMs, {p['memory_gib']} GiB), driver {p['driver']}, "
            f"CUDA {p['cuda']}, torch {p['torch']}, triton {p['triton']}, {p['date']}, "
            f"commit {p['commit']}{dirty}")


def _plain(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _table(columns: Sequence[str], rows: list[dict[str, Any]]) -> str:
    def cell(value: Any) -> str:
        side = "left" if isinstance(value, str) else "right"
        return (f'<td style="text-align:{side};overflow-wrap:anywhere">'
                f"{html.escape(_plain(value))}</td>")
    head = "".join(f'<th scope="col">{html.escape(c)}</th>' for c in columns)
    body = "".join(f"<tr>{''.join(cell(row[c]) for c in columns)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


# ---- measuring and recording

Measure = Callable[[], list[dict[str, Any]]]


def gpu_result(key: str, columns: Sequence[str],
               uses: Sequence[Callable] = ()) -> Callable[[Measure], GpuResult]:
    """Replace a function that measures on a GPU by its result: live, recorded or missing.

    key: "NN/name", the record's place. columns: the keys of every row, in order.
    uses: functions of the same notebook whose source counts as part of the measurement.
    With DLSYS_RECORD=1 in the environment a live result is written as the record.
    Raises RecordError for a malformed key or rows, and for a damaged record.
    """
    if not KEY.fullmatch(key):
        raise RecordError(f'gpu_result: got key {key!r}, expected "NN/name" in lower case.')

    def decorate(measure: Measure) -> GpuResult:
        source = source_hash([inspect.getsource(_function(f)) for f in (measure, *uses)])
        if device().type == "cuda":
            return _live(key, columns, measure, source)
        return _recorded(key, columns, source)
    return decorate


def _live(key: str, columns: Sequence[str], measure: Measure, source: str) -> GpuResult:
    rows, origin = measure(), provenance()
    _check_rows(key, list(columns), rows)
    if os.environ.get("DLSYS_RECORD") == "1":
        write_record({"key": key, "source": source, "columns": list(columns),
                      "provenance": origin, "rows": rows})
    return GpuResult(key, tuple(columns), "live", rows, origin)


def _recorded(key: str, columns: Sequence[str], source: str) -> GpuResult:
    record = load_record(key)
    if record is None:
        return GpuResult(key, tuple(columns), "missing", [], None)
    rows = record["rows"] if record["columns"] == list(columns) else []
    return GpuResult(key, tuple(columns), _state(record, source), rows, record["provenance"])


def _state(record: dict[str, Any] | None, source: str) -> str:
    if record is None:
        return "missing"
    return "recorded" if record["source"] == source else "stale"


def _function(f: Any) -> Any:
    """The Python function itself, where a decorator such as `triton.jit` wraps it."""
    while not inspect.isfunction(f) and hasattr(f, "fn"):
        f = f.fn
    if not inspect.isfunction(f):
        raise TypeError(f"uses: got {f!r}, expected functions defined in the notebook.")
    return f


def source_hash(definitions: Sequence[str]) -> str:
    """SHA-256, in hex, over function definitions from first decorator to last line, dedented."""
    return hashlib.sha256("\n\n".join(map(_definition, definitions)).encode()).hexdigest()


def _definition(source: str) -> str:
    """The lines of the first statement: no comment after it, no space at a line's end."""
    source = textwrap.dedent(source)
    first, last = _extent(ast.parse(source).body[0])
    return "\n".join(line.rstrip() for line in source.split("\n")[first - 1:last])


def _extent(node: ast.stmt) -> tuple[int, int]:
    above = [d.lineno for d in getattr(node, "decorator_list", [])]
    return min([node.lineno, *above]), node.end_lineno or node.lineno


def provenance() -> dict[str, Any]:
    """Where a measurement comes from; None for what this machine does not tell."""
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    commit = os.environ.get("DLSYS_COMMIT") or commit_here()
    return {"device": found.name, "sms": found.multi_processor_count,
            "memory_gib": round(found.total_memory / 2**30, 1),
            "driver": driver.split("\n")[0] if driver else None,
            "cuda": torch.version.cuda, "torch": str(torch.__version__),
            "triton": _version("triton"), "date": datetime.now(UTC).date().isoformat(),
            "commit": commit.removesuffix("-dirty") if commit else None,
            "dirty": bool(commit) and commit.endswith("-dirty")}


def commit_here() -> str | None:
    """The checkout's commit, with "-dirty" after it when anything but records has changed."""
    commit = _output("git", "rev-parse", "--short=12", "HEAD")
    records = RECORDED.relative_to(ROOT) if RECORDED.is_relative_to(ROOT) else RECORDED
    changes = _output("git", "status", "--porcelain", "--", ".", f":(exclude){records}")
    return f"{commit}-dirty" if commit and changes else commit


def _output(*command: str) -> str | None:
    """What a command prints; None when it is not installed, fails or prints nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT,
                              check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# ---- records

def record_path(key: str) -> Path:
    """Where the record of a key lies: ``recorded/01/forward_limits.json``."""
    return RECORDED / f"{key}.json"


def write_record(record: dict[str, Any]) -> None:
    """Write a validated record; it appears whole or not at all."""
    validate_record(record)
    path = record_path(record["key"])
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", "utf-8")
    part.replace(path)


def load_record(key: str) -> dict[str, Any] | None:
    """The validated record of a key, or None if there is none. Raises RecordError if damaged."""
    path = record_path(key)
    if not path.exists():
        return None
    remedy = f"Restore {path.name} with git, or delete it and run `make record`."
    try:
        record = json.loads(path.read_text("utf-8"))
        validate_record(record)
    except ValueError as error:  # also JSONDecodeError, UnicodeDecodeError and RecordError
        raise RecordError(f"record {key} is damaged: {str(error)[:150]} {remedy}") from None
    if record["key"] != key:
        raise RecordError(f"record {key}: got the record of {record['key']}. {remedy}")
    return record


def validate_record(record: Any) -> None:
    """Raise RecordError unless this is a whole record with full provenance and finite rows."""
    _check_fields("record", record, FIELDS)
    if not KEY.fullmatch(record["key"]):
        raise RecordError(f"record: got key {record['key']!r}, expected NN/name.")
    if not re.fullmatch("[0-9a-f]{64}", record["source"]):
        raise RecordError("record source: expected a SHA-256 in hex.")
    _check_provenance(record["provenance"])
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
            "driver": "nvidia-smi must be on the PATH.",
            "triton": "triton must be installed beside torch."}


def _check_provenance(origin: Any) -> None:
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


# ---- evidence

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
        for node in _functions(source):
            first, last = _extent(node)
            defined[node.name] = "\n".join(source.split("\n")[first - 1:last])
            call = _gpu_call(node)
            if call is not None and _role(cell) == "gpu":
                yield _entry(path.stem, node.name, call, defined)


def _functions(source: str) -> list[ast.FunctionDef]:
    """Functions at the top of a cell; a cell that is not plain Python (magics) has none."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return []
    return [node for node in body if isinstance(node, ast.FunctionDef)]


def _role(cell: dict[str, Any]) -> str | None:
    return cell["metadata"].get("dlsys", {}).get("role")


def _gpu_call(node: ast.FunctionDef) -> ast.Call | None:
    for call in node.decorator_list:
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "gpu_result":
            return call
    return None


def _entry(stem: str, name: str, call: ast.Call, defined: dict[str, str]) -> dict[str, Any]:
    given = dict(zip(("key", "columns", "uses"), call.args, strict=False))
    given |= {k.arg: k.value for k in call.keywords if k.arg}
    try:
        key, columns = (ast.literal_eval(given[part]) for part in ("key", "columns"))
        uses = [defined[ast.unparse(u)] for u in getattr(given.get("uses"), "elts", [])]
    except (KeyError, ValueError) as error:
        raise RecordError(f"{stem}, {name}: cannot read {error}. Give gpu_result a literal key "
                          "and columns, and uses= functions defined above it.") from None
    record = load_record(key)
    return {"notebook": stem, "key": key, "function": name, "columns": list(columns),
            "state": _state(record, source_hash([defined[name], *uses])),
            "provenance": record["provenance"] if record else None}
