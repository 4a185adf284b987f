"""The candidates, derived from the course: what each shows, holds back, and measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from benchmarks.silent import reader, runs
from benchmarks.silent.admit import Measured, Numbers
from benchmarks.silent.sources import OF_TRAP
from dlsys_checks.exam.numbers import HEALTHY
from dlsys_diffs import case_files, reading, repository
from tools import diffs

# For each faulty change, the traps that teach its mechanism; if there are none, the cause is not
# scored.
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
PRICES = {"loss_curve": 1, "look_at_batch": 2, "one_batch": 2}  # all others cost 3


class Candidate(NamedTuple):
    """key: form and name in the corpus. shown: what an adapter gets. held: what it never gets."""

    key: str
    form: str
    shown: dict[str, Any]
    held: dict[str, Any]
    measured: Measured


def every() -> Iterator[Candidate]:
    yield from of_diffs()
    yield from of_reader()


def shared() -> dict[str, dict[str, Any]]:
    """What all cases of a form have in common."""
    earlier = runs.run_of(runs.EARLIER).get("curves", [])[:2]
    return {"curves": {"program": CLASSIFIER, "earlier": earlier},
            "probes": {"program": SCRIPT,
                       "probes": {probe: PRICES.get(probe, 3) for probe in HEALTHY},
                       "healthy": {probe: {name: list(ends) for name, ends in rows.items()}
                                   for probe, rows in HEALTHY.items()}},
            "source": {"program": SCRIPT}, "diff": {"files": dict(repository.files())}}


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


# ---- source, probes and curves: the exam's script

CLASSIFIER = ("A classifier of digits: 60 steps of AdamW with one cycle of its rate, gradients "
              "clipped to a norm of 1. A point of a curve is the mean of five steps. `earlier` are "
              "two healthy runs with other seeds.")
SCRIPT = ("One file: a classifier of digits, its training, evaluation and 8-bit copy, two ranks in "
          "one process, a server of a small language model, learning from preferences, and layers "
          "that are cut over ranks.")


def of_reader() -> Iterator[Candidate]:
    for one in reader.programs().values():
        whole = measured_reader(one)
        yield as_source(one, whole)
        yield as_probes(one, only(whole, HEALTHY))
        yield as_curves(one, only(whole, [runs.CURVE]))


def measured_reader(one: reader.Program) -> Measured:
    """All numbers of a program, with those of the healthy script."""
    run = runs.run_of(runs.shown_by(one.name)[0])
    reference, repaired = (runs.run_of(name).get("numbers", {})
                           for name in (runs.PLAIN, runs.REPAIRED))
    own = run.get("numbers", {})
    if one.healthy is None:
        return Measured(reference, None, own, "", "stopped" in run)
    return Measured(reference, own, repaired, OF_TRAP.get(one.trap, ""), "stopped" in run)


def only(whole: Measured, kinds: Iterable[str]) -> Measured:
    """The measurements of only these probes or curves, as a form is judged by what it shows."""
    def part(numbers: Numbers) -> Numbers:
        return {name: values for name, values in numbers.items()
                if name.partition(": ")[0] in kinds}

    return whole._replace(reference=part(whole.reference), repaired=part(whole.repaired),
                          with_fault=whole.with_fault and part(whole.with_fault))


def right(one: reader.Program) -> dict[str, Any]:
    """The right answer for a program in forms without lines."""
    return {"faulty": one.healthy is not None, "causes": [one.trap] if one.trap else [],
            "places": [], "near": 0}


def as_source(one: reader.Program, measured: Measured) -> Candidate:
    places, near = one.places()
    return Candidate(f"source/{one.name}", "source", {"files": one.files},
                     {**right(one), "places": places, "near": near}, measured)


def as_probes(one: reader.Program, measured: Measured) -> Candidate:
    """The same program without its text: what its probes show with one of the five seeds."""
    values = measured.repaired if measured.with_fault is None else measured.with_fault
    probes: dict[str, dict] = {}
    for name, by_seed in values.items():
        probe, _, number = name.partition(": ")
        probes.setdefault(probe, {})[number] = by_seed[runs.shown_by(one.name)[1]]
    return Candidate(f"probes/{one.name}", "probes", {}, {**right(one), "probes": probes}, measured)


def as_curves(one: reader.Program, measured: Measured) -> Candidate:
    name, seed = runs.shown_by(one.name)
    curves = runs.run_of(name).get("curves")
    return Candidate(f"curves/{one.name}", "curves",
                     {"curves": curves and curves[seed]}, right(one), measured)
