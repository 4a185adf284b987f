"""Record what the exam's probes measure for each fault and some mends: the tests run few scripts.

    .venv/bin/python -m tools.exam        the scripts whose record is stale

tests/records/exam.json holds the numbers of each script on a few seeds, under a fingerprint of what
they rest on: the script, the probes, the pictures, the pinned packages. The ranges stand in no
record: the tests hold them against these numbers. A script without a record is measured there.
"""

from __future__ import annotations

import inspect
import json
from functools import cache

from dlsys_checks.exam import faults, laws, mends, numbers, probes
from dlsys_helpers.paths import ROOT
from tools import fingerprints

RECORD = ROOT / "tests" / "records" / "exam.json"
SEEDS = (501, 502, 503)
Found = dict[str, dict[str, float]]


def scripts() -> dict[str, str]:
    """The recorded scripts by name: without a fault, with each fault, with a whole or half mend."""
    named = {"healthy": faults.healthy()}
    named |= {id: fault.planted(faults.healthy()) for id, fault in faults.FAULTS.items()}
    for word, some in (("right", mends.RIGHT), ("half", mends.HALF)):
        named |= {f"{word} {k} {id}": mends.mended(id, changes)
                  for k, (id, changes) in enumerate(some)}
    return named


@cache
def _ground() -> str:
    """Fingerprint of the dependencies that all scripts share."""
    images, labels = laws.pictures()
    return fingerprints.fingerprint(json.dumps([
        fingerprints.without_prose(inspect.getsource(probes)), images.tolist(), labels.tolist(),
        sorted(fingerprints.pinned().items())]))


def rests_on(source: str) -> str:
    """Fingerprint of one script with its dependencies."""
    return fingerprints.fingerprint(_ground() + fingerprints.without_prose(source))


@cache
def stored() -> dict[str, list[Found]]:
    """What was recorded, by fingerprint; empty when there is no record."""
    entries = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    return {entry["rests_on"]: entry["shows"] for entry in entries.values()}


@cache
def shows(source: str) -> list[Found]:
    """The numbers of a script on each seed, from the record; else measured, on one seed."""
    return stored().get(rests_on(source)) or [measured(source, SEEDS[0])]


def measured(source: str, seed: int, *names: str) -> Found:
    """What the probes show, all or these; without the curve, to four digits."""
    found = probes.look(source, *laws.pictures(), seed, names or tuple(numbers.HEALTHY))
    return {probe: {name: float(f"{value:.4g}") for name, value in shown.items()
                    if name != "curve"} for probe, shown in found.items()}


def main() -> None:
    """Write the record: measure stale scripts again, keep fresh ones, drop those that are gone."""
    entries = {}
    for name, source in scripts().items():
        mark = rests_on(source)
        kept = stored().get(mark)
        print(name, "kept" if kept else "measured", flush=True)
        entries[name] = {"rests_on": mark,
                         "shows": kept or [measured(source, seed) for seed in SEEDS]}
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
