"""Record the gallery: ``make gallery``, or ``python -m tools.gallery mask list`` for some faults.

One process, one thread, half a minute of CPU a run. Saves each finished run, so that you can stop a
recording and continue it; recorded runs of the same program and text do not run again. All runs are
in tests/records/; the part that a page and an explorer show goes into the package.
"""

from __future__ import annotations

import argparse
import json
import sys

from dlsys_model import faults, gallery, instruments
from tools import fingerprints
from tools.records import Record

RECORD = Record("gallery.json", done="run", renew="make gallery", lines=True)
INSTRUMENTS = "dlsys_model.instruments"
HEALTHY = tuple(range(5))  # seeds of the healthy band; faults are compared with the first
SEEDS = (0, 1)


def planned_runs() -> list[tuple[str, int]]:
    """The fault and seed of every run: the healthy ones first, then one seed after the other."""
    return [("healthy", seed) for seed in HEALTHY] + [
        (fault.key, seed) for seed in SEEDS for fault in faults.FAULTS]


def rests_on(key: str) -> dict[str, str]:
    """The dependencies of a run with this fault: its program and text, the instruments, torch."""
    return {"program and text": instruments.digest(key),
            INSTRUMENTS: fingerprints.module_fingerprint(INSTRUMENTS),
            "torch": fingerprints.pinned()["torch"]}


def recorded_runs() -> dict[str, dict]:
    """The recorded runs, by "fault seed"; {} without a record."""
    return RECORD.entries()


def stale() -> list[tuple[str, int]]:
    """The runs that are not recorded, or whose program, instruments or torch have changed."""
    return [(key, seed) for key, seed in planned_runs()
            if RECORD.stale(f"{key} {seed}", rests_on(key))]


def write_record(runs: dict[str, dict]) -> None:
    """Write the record without the runs that are no longer planned."""
    names = [f"{key} {seed}" for key, seed in planned_runs()]
    RECORD.write_all({name: runs[name] for name in names if name in runs})


def condensed(runs: dict[str, dict]) -> dict:
    """The part of the runs for the package, see gallery.record; without faults that have no run."""
    healthy = [runs[f"healthy {seed}"] for seed in HEALTHY if f"healthy {seed}" in runs]
    bands = {name: gallery.band(healthy, name) for name in gallery.INSTRUMENTS}
    mine = {f.key: [seed for seed in SEEDS if f"{f.key} {seed}" in runs] for f in faults.FAULTS}
    rounded = {name: [[*map(instruments.significant, pair)] for pair in pairs]
               for name, pairs in bands.items()}
    first = healthy[0]
    return {"healthy": {**without_shared_curves(first, {}), "bands": rounded,
                        "seeds": len(healthy), "alarms": false_alarms(healthy)},
            "faults": {key: {**without_shared_curves(runs[f"{key} 0"], first["curves"]),
                             "seeds": seeds,
                             "shown": gallery.agreed([gallery.shown(runs[f"{key} {seed}"], bands)
                                                      for seed in seeds])}
                       for key, seeds in mine.items() if 0 in seeds}}


def without_shared_curves(run: dict, but: dict[str, list]) -> dict:
    """A run without the curves that equal those in `but`."""
    curves = {name: values for name, values in run["curves"].items() if but.get(name) != values}
    return {"curves": curves} | {name: run[name] for name in (*gallery.NUMBERS, "sample", "ended")}


def false_alarms(healthy: list[dict]) -> int:
    """How many instruments report a healthy run when compared with the band of the others."""
    rests = [(run, [other for other in healthy if other is not run]) for run in healthy]
    return sum(len(gallery.shown(run, {name: gallery.band(rest, name)
                                       for name in gallery.INSTRUMENTS})) for run, rest in rests)


def publish(runs: dict[str, dict]) -> None:
    """Write the package's part of the runs."""
    gallery.RECORD.parent.mkdir(exist_ok=True)
    text = json.dumps(condensed(runs), separators=(",", ":"))
    gallery.RECORD.write_text(text.replace(',"faults"', ',\n"faults"').replace("},", "},\n") + "\n",
                              "utf-8")


def bar(done: int, of: int, what: str) -> None:
    filled = round(30 * done / of)
    end = "" if sys.stdout.isatty() else "\n"
    print(f"\r[{'#' * filled}{'.' * (30 - filled)}] {done} of {of}  {what:28}", end=end, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the runs of the gallery.")
    parser.add_argument("keys", nargs="*", metavar="FAULT", help="record these anew, and no other")
    chosen = parser.parse_args().keys
    if unknown := set(chosen) - {key for key, _ in planned_runs()}:
        parser.error(f"fault: got {min(unknown)!r}, expected one of {', '.join(faults.BY_KEY)}.")
    runs = recorded_runs()
    todo = [run for run in planned_runs() if run[0] in chosen] if chosen else stale()
    for done, (key, seed) in enumerate(todo):
        bar(done, len(todo), f"{key}, seed {seed}")
        runs[f"{key} {seed}"] = {"rests_on": rests_on(key), **instruments.run(key, seed)}
        write_record(runs)
    publish(runs)
    bar(len(todo), max(1, len(todo)), "recorded")


if __name__ == "__main__":
    main()
