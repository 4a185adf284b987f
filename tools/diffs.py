"""Record the changes of review mode: ``make diffs``, or ``python -m tools.diffs larger-batch``.

Each change is run for real, on one thread: its own run with five seeds, with and without the
change, with the right repair and with the old lines typed back, and with two seeds after each
wrong repair; and all eight runs with one seed, which a reviewer may ask for. Two minutes of CPU for
all of them. Runs lie in tests/records/; what a reviewer is shown goes into the package.
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
BEFORE = "before"  # the entry of the repository without any change
FLOOR = 1e-4  # rounding: differences up to this, as a share of a number or of 1, say nothing
SIGMAS = 3
Numbers = dict[str, float]


def rests_on(files: Mapping[str, str], *others: Mapping[str, str]) -> dict[str, str]:
    """What runs of these versions of the repository rest on."""
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
    """The entries that are missing or rest on something that changed."""
    return [key for key in (BEFORE, *case_files.cases()) if RECORD.stale(key, now(key))]


def all_runs(files: Mapping[str, str], seeds: range) -> dict[str, list[dict]]:
    """Each of the eight runs with these seeds; a run that stops says why."""
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
    """A number of six digits; what is not finite as text, as JSON has none of it."""
    value = float(value)
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


def values(files: Mapping[str, str], case: Case, seeds: range = SEEDS) -> list[float | str]:
    """The case's number with each seed."""
    with repository.loaded(files) as repo:
        return [plain(runs.measure(case.run, repo, seed).numbers[case.number]) for seed in seeds]


def other_repairs(case: Case) -> list[Mapping[str, str]]:
    """Repairs that count when somebody types them: a changed line typed back, other spellings."""
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
    """A number of the unchanged repository with each seed."""
    return [row["numbers"][number] for row in RECORD.entry(BEFORE)["runs"][run]]


def sigmas(plain_values: list[float], changed: list[float | str]) -> float:
    """How many standard deviations of the plain runs lie between the means; inf where exact.

    Plain runs that agree to rounding have no deviation: then any real difference is exact.
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
    """The same after one of its repairs."""
    return sigmas(before(case.run, case.number), RECORD.entry(case.id)["repairs"][place])


def moved_when_typed(case: Case) -> list[float]:
    """The same after each repair that only counts when somebody types it."""
    return [sigmas(before(case.run, case.number), row)
            for row in RECORD.entry(case.id)["typed"]]


def moved_by_healthy(case: Case) -> dict[str, float]:
    """How far a healthy change moves each number of its run."""
    rows = RECORD.entry(case.id)["seeds"]
    return {name: sigmas(before(case.run, name), [row[name] for row in rows])
            for name in rows[0]}


# ---- what a reviewer is shown

def condensed() -> dict:
    """One seed of each run: the unchanged repository's, and what each change shows differently."""
    entries = RECORD.entries()
    first = {run: rows[0] for run, rows in entries[BEFORE]["runs"].items()}
    return {"before": first, "after": {
        key: {run: differing(first[run], rows[0]) for run, rows in entries[key]["runs"].items()}
        for key in sorted(case_files.cases())}}


def differing(first: dict, other: dict) -> dict:
    """A run without what equals the other run's."""
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
