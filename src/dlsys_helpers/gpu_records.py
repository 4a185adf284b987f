"""GPU measurements: run now on a CUDA device, elsewhere the committed record with its provenance.

Nothing is skipped. A cell decorated with `gpu_result` always runs: on a CUDA device it measures,
elsewhere it uses the record. `gpu_table` shows what was predicted, what others published
and, once there is any, what was measured; without a record one line says how to add one. Records
are written by `make record` and read here.
"""

from __future__ import annotations

import ast
import hashlib
import html
import importlib.metadata
import inspect
import json
import re
import subprocess
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dlsys_helpers import claims, gpu
from dlsys_helpers.errors import UserError

RECORDED = Path(__file__).parent / "recorded"
KEY = re.compile(r"\d\d/[a-z][a-z0-9_]*")
DRIVER = Path("/proc/driver/nvidia/version")
CLIP = 60  # characters of a text value in the plain table


class RecordError(UserError, ValueError):
    """A GPU record or a measurement's declaration is invalid."""


# ---- results

@dataclass(frozen=True)
class GpuResult:
    """The result of a GPU measurement: rows, where they come from, and what stopped it.

    state: "live" (measured now), "recorded", "stale" (recorded by an earlier version of the cell)
    or "missing". `rows` is empty when stale or missing, and short when `trouble` says why.
    """

    key: str
    columns: tuple[str, ...]
    state: str
    rows: list[dict[str, Any]]
    provenance: dict[str, Any] | None
    source: str = ""   # hash of the measuring code
    trouble: str = ""

    @property
    def device_name(self) -> str | None:
        """The device that the rows were measured on; None when there are none."""
        return self.provenance["device"] if self.provenance and self.rows else None

    def value(self, column: str, **where: Any) -> Any:
        """The value in `column` of the one row that matches, as in value("us", step="gelu").

        Raises LookupError unless exactly one row matches.
        """
        found = self._where(where)
        if len(found) != 1:
            raise LookupError(f"{self.key}: got {len(found)} rows where {where}, expected one.")
        return found[0][column]

    def total(self, column: str, **where: Any) -> float:
        """The sum of `column` over all rows that match. Raises LookupError if none does."""
        found = self._where(where)
        if not found:
            raise LookupError(f"{self.key}: got no row where {where}.")
        return sum(row[column] for row in found)

    def _where(self, where: dict[str, Any]) -> list[dict[str, Any]]:
        return [r for r in self.rows if all(r[name] == want for name, want in where.items())]

    def asks(self, text: str, predicted: float | str, measured: Callable[[], float],
             published: str = "", **bounds: float) -> Question:
        """A line of `gpu_table`: a question for these rows.

        text: the quantity with its unit. predicted: from counts and datasheet. measured: a
        function of the rows. published: what others found, with the source. bounds: as for `claim`.
        """
        return Question(self, text, predicted, measured, published, bounds)

    def note(self) -> str:
        """One line: where the rows come from, or why there are none."""
        if self.state == "missing":
            why = "" if gpu.unusable() in ("", gpu.NONE) else f" Here, {gpu.unusable()}"
            return ("Not recorded yet: `make record`, in a checkout of the course on a machine "
                    f"with a CUDA device, adds what your card measures.{why}")
        if self.state == "stale":
            return (f"An earlier version of this cell was recorded on {describe(self.provenance)}. "
                    "Its rows are not shown; `make record` renews them.")
        how = "Measured now on" if self.state == "live" else "Recorded on"
        stopped = f" It stopped there: {self.trouble}" if self.trouble else ""
        return f"{how} {describe(self.provenance)}.{stopped}"

    def _repr_html_(self) -> str:
        """HTML without colours, so that it fits a light or a dark page."""
        note = _html_note(self.note())
        rows = [[row[column] for column in self.columns] for row in self.rows]
        return (f'<div class="dlsys-gpu" data-state="{self.state}">{note}'
                f"{_html_table(self.columns, rows) if rows else ''}</div>")


def describe(provenance: dict[str, Any]) -> str:
    """Device, driver and versions of a measurement in one line; date and commit of a record."""
    p = provenance
    dirty = " with uncommitted changes" if p.get("dirty") else ""
    commit = f", commit {p['commit']}{dirty}" if p.get("commit") else ""
    return (f"{p['device']} ({p['sms']} SMs, {p['memory_gib']} GiB), driver {p['driver']}, "
            f"CUDA {p['cuda']}, torch {p['torch']}, triton {p['triton']}, {p['date']}{commit}")


def _plain(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _html_note(text: str) -> str:
    """A note in italics; text in backticks is shown as code."""
    shown = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return f'<p class="dlsys-gpu-note"><em>{shown}</em></p>'


def _html_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    def cell(value: Any) -> str:
        side = "left" if isinstance(value, str) else "right"
        return (f'<td style="text-align:{side};overflow-wrap:anywhere">'
                f"{html.escape(_plain(value))}</td>")
    names = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


# ---- the table of answers

class Question(NamedTuple):
    """One line of a table; see `GpuResult.asks`."""

    result: GpuResult
    text: str
    predicted: float | str
    measured: Callable[[], float]
    published: str
    bounds: dict[str, float]

    @property
    def bound(self) -> str:
        """The bounds in words: "below 2"."""
        return claims.judge(0.0, **self.bounds)[0]

    def answer(self) -> Answer | None:
        """The answer from the rows; None if no row has it.

        A claim that a committed record contradicts is a mistake in the course and raises
        ClaimFailed. Measured live, it is a finding about this device and stops nothing.
        """
        if not self.result.rows:
            return None
        recorded = self.result.state == "recorded"
        try:
            number = float(self.measured())
        except LookupError:
            if recorded:
                raise
            return None
        _, holds = claims.judge(number, **self.bounds)
        if recorded and not holds:
            raise claims.ClaimFailed(f"{self.text}: recorded {number:.6g}, expected {self.bound}.")
        return Answer(number, holds)


class Answer(NamedTuple):
    """A measured number, and whether it is within the question's bounds."""

    number: float
    holds: bool

    def __str__(self) -> str:
        return _plain(self.number) + ("" if self.holds else " (does not hold here)")


class GpuTable:
    """Each question with its prediction, what was published and, once there is any, a measurement.

    A column that no question fills is left out: `measured` and `claim` come with the first record.
    """

    def __init__(self, sheet: gpu.Peak, questions: Sequence[Question]) -> None:
        self.sheet, self.questions = sheet, questions
        self.answers = [question.answer() for question in questions]
        self.results = list({q.result.key: q.result for q in questions}.values())

    def failures(self, key: str) -> list[str]:
        """One measurement's questions that its rows leave open or answer against the claim."""
        return [f"{q.text}: {a or 'no row answers it'}, expected {q.bound}"
                for q, a in zip(self.questions, self.answers, strict=True)
                if q.result.key == key and not (a and a.holds)]

    def notes(self) -> list[str]:
        """Where the measured column comes from, and what its gaps mean."""
        found = list(dict.fromkeys(result.note() for result in self.results))
        name = next(filter(None, (result.device_name for result in self.results)), None)
        if name and name != self.sheet.name:
            found.append(f"No datasheet of {name} is on file: the predictions are for an "
                         f"{self.sheet.name}.")
        waiting = self.answers.count(None)
        if 0 < waiting < len(self.answers):
            found.append(f"{waiting} of {len(self.answers)} claims wait for a measurement; "
                         "nothing is asserted for them.")
        return found

    def head(self) -> list[str]:
        return [name for name, _ in self._columns()]

    def lines(self) -> list[list[str]]:
        return [list(line) for line in zip(*(cells for _, cells in self._columns()), strict=True)]

    def _columns(self) -> Iterable[tuple[str, list[str]]]:
        asked = self.questions
        yield "asked", [q.text for q in asked]
        yield f"predicted, {self.sheet.name}", [_plain(q.predicted) for q in asked]
        if any(q.published for q in asked):
            yield "published", [q.published for q in asked]
        if any(self.answers):
            yield "measured", [str(answer or "waits") for answer in self.answers]
            yield "claim", [q.bound for q in asked]

    def __repr__(self) -> str:
        table = [[text[:CLIP] for text in line] for line in [self.head(), *self.lines()]]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(v.ljust(w) for v, w in zip(line, widths, strict=True)).rstrip()
                 for line in table]
        return "\n".join([*lines, *self.notes()])

    def _repr_html_(self) -> str:
        notes = "".join(map(_html_note, self.notes()))
        rows = "".join(f"<details><summary>All rows of {r.key}</summary>{r._repr_html_()}</details>"
                       for r in self.results if r.rows)
        return f'<div class="dlsys-gpu">{_html_table(self.head(), self.lines())}{notes}{rows}</div>'


def gpu_table(sheet: gpu.Peak, *questions: Question) -> GpuTable:
    """The table that answers every question of a lesson's GPU section.

    sheet: the datasheet that the predictions were made from. Raises ClaimFailed when a committed
    record contradicts a claim.
    """
    return GpuTable(sheet, questions)


# ---- measuring

Measure = Callable[[], Iterable[dict[str, Any]]]


def gpu_result(key: str, columns: Sequence[str],
               uses: Sequence[Callable] = ()) -> Callable[[Measure], GpuResult]:
    """Replace a function that measures on a GPU by its result: live, recorded or missing.

    key: "NN/name", the record's place. columns: the keys of every row, in order. The function
    returns its rows or yields them one by one; what it yielded before an error of the device is
    kept. uses: functions of the same notebook whose source counts as part of the measurement.
    Raises RecordError for a malformed key and for a damaged record.
    """
    if not KEY.fullmatch(key):
        raise RecordError(f'gpu_result: got key {key!r}, expected "NN/name" in lower case.')

    def decorate(measure: Measure) -> GpuResult:
        source = source_hash([inspect.getsource(_function(f)) for f in (measure, *uses)])
        if gpu.device().type == "cuda":
            return _live(key, columns, measure, source)
        return _recorded(key, columns, source)
    return decorate


def _live(key: str, columns: Sequence[str], measure: Measure, source: str) -> GpuResult:
    """Measure now. Torch raises RuntimeError if the device lacks memory, a kernel or a profiler."""
    rows, origin, trouble = [], provenance(), ""
    try:
        for row in measure():
            rows.append(row)
    except RuntimeError as error:
        trouble = str(error).strip().split("\n")[0][:200]
    return GpuResult(key, tuple(columns), "live", rows, origin, source, trouble)


def _recorded(key: str, columns: Sequence[str], source: str) -> GpuResult:
    record = load_record(key)
    state = state_of(record, source)
    rows = record["rows"] if state == "recorded" else []
    return GpuResult(key, tuple(columns), state, rows, record and record["provenance"], source)


def state_of(record: dict[str, Any] | None, source: str) -> str:
    """How a record relates to the code that measures now: "recorded", "stale" or "missing"."""
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
    first, last = extent(ast.parse(source).body[0])
    return "\n".join(line.rstrip() for line in source.split("\n")[first - 1:last])


def extent(node: ast.stmt) -> tuple[int, int]:
    """The first line of a definition, decorators included, and its last."""
    above = [d.lineno for d in getattr(node, "decorator_list", [])]
    return min([node.lineno, *above]), node.end_lineno or node.lineno


def provenance() -> dict[str, Any]:
    """Where a measurement comes from; None for anything that this machine does not report."""
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"device": found.name, "sms": found.multi_processor_count,
            "memory_gib": round(found.total_memory / 2**30, 1), "driver": _driver(),
            "cuda": torch.version.cuda, "torch": str(torch.__version__),
            "triton": _version("triton"), "date": datetime.now(UTC).date().isoformat()}


def _driver() -> str | None:
    """The driver's version, from nvidia-smi or, where a container lacks it, from the kernel."""
    told = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    if told:
        return told.split("\n")[0]
    found = re.search(r"\s(\d+\.[\d.]+)\s", DRIVER.read_text()) if DRIVER.exists() else None
    return found and found[1]


def output(*command: str, cwd: Path | None = None) -> str | None:
    """What a command prints; None when it is not installed, fails or prints nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=cwd,
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
    """The path of a key's record: ``recorded/01/forward_limits.json``."""
    return RECORDED / f"{key}.json"


def load_record(key: str) -> dict[str, Any] | None:
    """The record of a key, or None if there is none. Raises RecordError if it is damaged."""
    path = record_path(key)
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text("utf-8"))
        wrong = sorted({"key", "source", "columns", "provenance", "rows"} ^ set(record))
    except (ValueError, TypeError) as error:  # not JSON, not UTF-8, or not a mapping
        wrong = [str(error)[:150]]
    if wrong or record["key"] != key:
        raise RecordError(f"record {key} is damaged: {wrong or 'its key is ' + record['key']}. "
                          f"Restore {path.name} with git, or delete it and run `make record`.")
    return record
