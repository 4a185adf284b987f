"""The candidates, derived from what the course has: each with what is shown, held and measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.silent.admit import Measured
from dlsys_diffs import case_files, reading
from tools import diffs

# Of each change with a fault, the traps that teach its mechanism; where none does, the cause of the
# case is not scored.
TAUGHT = {
    "log-once": ["02.4"], "mean-of-means": ["09.2"], "clip-first": ["09.1"],
    "zero-inside": ["02.4"], "schedule-each-batch": ["04.3"], "cosine-over-all": ["04.6"],
    "lerp-weight": ["05.5"], "order-by-seed": ["09.5"], "order-by-rank": ["09.5"],
    "decay-by-name": ["04.1"], "own-draw-for-held-out": ["06.7"], "statistics-of-all": ["06.5"],
    "train-afterwards": ["01.1"], "mean-of-ranks": ["09.2"], "best-by-reference": ["06.4"],
    "late-average": ["12.8"], "classifier-name": ["10.5"], "logged-margin": ["01.1"],
    "growing-patience": ["12.8"], "adaptive-clip": ["12.8"], "square-root-pixels": ["07.4"],
    "pixel-noise": ["12.8"], "freeze-first": ["07.7"], "order-object": ["09.5"],
    "count-scored": ["12.8"], "growing-shift": ["12.8"], "brightest-first": ["12.7"]}


class Candidate(NamedTuple):
    """key: form and name in the corpus. shown: what an adapter gets. held: what it never gets."""

    key: str
    form: str
    shown: dict[str, Any]
    held: dict[str, Any]
    measured: Measured


def every() -> Iterator[Candidate]:
    yield from of_diffs()


# ---- diff: the changes of `dlsys review-diff`

def of_diffs() -> Iterator[Candidate]:
    for case in case_files.cases().values():
        changed = {name: text for name, text in case.after.items()
                   if text != case_files.files()[name]}
        shown = {"title": case.title, "text": case.text, "changed": changed,
                 "diff": "\n".join(f"--- {line.text}" if line.sign == "@" else
                                   reading.numbered(line) for line in case.diff)}
        held = {"faulty": case.faulty, "causes": TAUGHT.get(case.id, []),
                "places": case.places if case.faulty else [], "near": reading.near(case)}
        yield Candidate(f"diff/{case.id}", "diff", shown, held, _measured_diff(case))


def _measured_diff(case: case_files.Case) -> Measured:
    entry = diffs.RECORD.entry(case.id)
    if case.faulty:
        number = case.number
        return Measured({number: diffs.before(case.run, number)}, {number: entry["after"]},
                        {number: entry["repairs"][0]}, case.source)
    names = entry["seeds"][0]
    return Measured({name: diffs.before(case.run, name) for name in names}, None,
                    {name: [row[name] for row in entry["seeds"]] for name in names}, case.source)
