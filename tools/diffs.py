"""Record the changes of review mode: ``make diffs``, or ``python -m tools.diffs larger-batch``.

Runs each change for real, on one thread: its own run with five seeds, with and without the change,
with the right repair and with the old lines typed back, and with two seeds after each wrong repair;
and all eight runs with one seed, which a reviewer may ask for. All this takes two minutes of CPU.
Runs go to tests/records/; what a reviewer sees goes into the package.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping

from dlsys_diffs import case_files, recorded, repository, runs
from dlsys_diffs.case_files import Case
from tools import fingerprints
from tools.records import Record

RECORD = Record("diffs.json", done="run", renew="make diffs", lines=True)
SEEDS = range(5)
FEW = range(2)  # for a wrong repair
BEFORE = "before"  # the entry for the unchanged repository
FLOOR = 1e-4  # smaller differences, relative to the number or to 1, are rounding
SIGMAS = 3
Numbers = dict[str, float]


def rests_on(files: Mapping[str, str], *others: Mapping[str, str]) -> dict[str, str]:
    """The dependencies of runs of these versions of the repository."""
    essences = [fingerprints.essence(text) for version in (files, *others)
                for name, text in sorted(version.items())]
    return {"repository": fingerprints.fingerprint("\0".join(essences)),
            "runs": fingerprints.module_fingerprint("dlsys_diffs.runs"),
            "torch": fingerprints.pinned()["torch"]}


def now(key: str) -> dict[str, str]:
    if key == BEFORE:
        return rests_on(repository.files())
    case = case_files.cases()[key]
    versions = [case.repaired(n) for n in range(len(case.repairs))] if case.faulty else []
    versions += other_repairs(case)
    return rests_on(case.after, *versions) | {
        "shown": fingerprints.fingerprint(f"{case.run}, {case.number}")}


def stale() -> list[str]:
    """The entries that are missing or depend on something that changed."""
    return [key for key in (BEFORE, *case_files.cases()) if RECORD.stale(key, now(key))]


def all_runs(files: Mapping[str, str], seeds: range) -> dict[str, list[dict]]:
    """Each of the eight runs with these seeds; for a run that stops, the reason."""
    with repository.loaded(files) as repo:
        return {run: [attempt(run, repo, seed) for seed in seeds] for run in runs.RUNS}


def attempt(run: str, repo, seed: int) -> dict:
    try:
        measured = runs.measure(run, repo, seed)
    except Exception as error:  # a change may break what another run needs; a reviewer sees that
        return {"stopped": f"{type(error).__name__}: {error}".splitlines()[0]}
    numbers = {name: plain(value) for name, value in measured.numbers.items()}
    curves = {name: [plain(v) for v in values] for name, values in measured.curves.items()}
    return {"numbers": numbers, "curves": curves}


def plain(value: float) -> float | str:
    """A number to six digits; as text if it is not finite, because JSON has only finite ones."""
    value = float(value)
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


def values(files: Mapping[str, str], case: Case, seeds: range = SEEDS) -> list[float | str]:
    """The number that the case measures, for each seed."""
    with repository.loaded(files) as repo:
        return [plain(runs.measure(case.run, repo, seed).numbers[case.number]) for seed in seeds]


def other_repairs(case: Case) -> list[Mapping[str, str]]:
    """Repairs that also count if typed: the old line typed back, other spellings."""
    back = [case.reverted] if case.kind == case_files.CHANGED else []
    return back + case.other_repairs


def record(key: str) -> dict:
    if key == BEFORE:
        return {"runs": all_runs(repository.files(), SEEDS)}
    case = case_files.cases()[key]
    facts = {"runs": all_runs(case.after, range(1))}
    if case.faulty:
        return facts | {"after": values(case.after, case), "repairs": [
            values(case.repaired(n), case, FEW if n else SEEDS)
            for n in range(len(case.repairs))], "typed": [
            values(files, case) for files in other_repairs(case)]}
    with repository.loaded(case.after) as repo:
        return facts | {"seeds": [attempt(case.run, repo, seed)["numbers"] for seed in SEEDS]}


# ---- what the runs prove

def before(run: str, number: str) -> list[float]:
    """A number of the unchanged repository, for each seed."""
    return [row["numbers"][number] for row in RECORD.entry(BEFORE)["runs"][run]]


def sigmas(plain_values: list[float], changed: list[float | str]) -> float:
    """The difference of the means, in standard deviations of the plain runs.

    inf for a real difference if the plain runs agree to rounding and so have no deviation.
    """
    changed = [float(value) for value in changed]
    middle = statistics.mean(plain_values)
    rounding = FLOOR * max(1.0, abs(middle))
    difference = abs(statistics.mean(changed) - middle)
    deviation = statistics.stdev(plain_values)
    if not difference <= rounding:
        return difference / deviation if deviation > rounding / 10 else math.inf
    return 0.0


def moved(case: Case) -> float:
    """How far a faulty change moves its number."""
    return sigmas(before(case.run, case.number), RECORD.entry(case.id)["after"])


def moved_after(case: Case, place: int) -> float:
    """How far the number is still off after one of the repairs."""
    return sigmas(before(case.run, case.number), RECORD.entry(case.id)["repairs"][place])


def moved_when_typed(case: Case) -> list[float]:
    """How far the number is still off after each repair in `other_repairs`."""
    return [sigmas(before(case.run, case.number), row)
            for row in RECORD.entry(case.id)["typed"]]


def moved_by_healthy(case: Case) -> dict[str, float]:
    """How far a healthy change moves each number of its run."""
    rows = RECORD.entry(case.id)["seeds"]
    return {name: sigmas(before(case.run, name), [row[name] for row in rows])
            for name in rows[0]}


# ---- what a reviewer sees

def condensed() -> dict:
    """One seed of each run: of the unchanged repository, and what differs after each change."""
    entries = RECORD.entries()
    first = {run: rows[0] for run, rows in entries[BEFORE]["runs"].items()}
    return {"before": first, "after": {
        key: {run: differing(first[run], rows[0]) for run, rows in entries[key]["runs"].items()}
        for key in sorted(case_files.cases())}}


def differing(first: dict, other: dict) -> dict:
    """A run without the parts that equal the other run's."""
    if "stopped" in other:
        return other
    found = {kind: {name: value for name, value in other[kind].items()
                    if first[kind].get(name) != value} for kind in ("numbers", "curves")}
    return {kind: shown for kind, shown in found.items() if shown}


def publish() -> None:
    text = json.dumps(condensed(), separators=(",", ":"))
    recorded.FILE.write_text(text.replace("}},", "}},\n") + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the changes of review mode.")
    parser.add_argument("keys", nargs="*", metavar="CASE", help="record these anew, and no other")
    chosen = parser.parse_args().keys
    if unknown := set(chosen) - {BEFORE, *case_files.cases()}:
        parser.error(f"case: got {min(unknown)!r}, expected the name of one, such as "
                     f"{next(iter(case_files.cases()))}.")
    entries = RECORD.entries()
    todo = chosen or stale()
    for done, key in enumerate(todo, 1):
        print(f"{done} of {len(todo)}  {key}", file=sys.stderr, flush=True)
        entries[key] = {"rests_on": now(key), **record(key)}
        RECORD.write_all({name: entries[name] for name in (BEFORE, *sorted(case_files.cases()))
                          if name in entries})
    if not stale():
        publish()


if __name__ == "__main__":
    main()
