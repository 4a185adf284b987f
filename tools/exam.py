"""Record what the exam's probes measure for each fault and some fixes, so tests run few scripts.

    .venv/bin/python -m tools.exam        the scripts whose record is stale

tests/records/exam.json has the numbers of each script on three seeds, or on one for a fault's other
forms and for oddities, with a fingerprint of their dependencies: the script, the probes, the
pictures, the pinned packages. The ranges are in no record: the tests compare them with these
numbers, and measure a script that has no record.
"""

from __future__ import annotations

import inspect
import json
from functools import cache

from dlsys_checks.exam import decoys, faults, laws, mends, numbers, probes, variants
from tools import fingerprints
from tools.records import Facts, Record

RECORD = Record("exam.json", done="measured", renew=".venv/bin/python -m tools.exam",
                lines=True)
SEEDS = (501, 502, 503)
Found = dict[str, dict[str, float]]


def scripts() -> dict[str, str]:
    """Recorded scripts by name: healthy, each fault and form, each oddity, right and half fixes."""
    named = {"healthy": faults.healthy()}
    named |= {id: fault.planted(faults.healthy()) for id, fault in faults.FAULTS.items()}
    named |= {name: one.planted(faults.healthy()) for name, one in variants.every().items()}
    named |= decoys.alone()
    for word, some in (("right", mends.RIGHT), ("half", mends.HALF)):
        named |= {f"{word} {k} {id}": mends.mended(id, changes)
                  for k, (id, changes) in enumerate(some)}
    return named


@cache
def _ground() -> dict[str, str]:
    """The dependencies that all scripts share."""
    images, labels = laws.pictures()
    return {"probes": fingerprints.fingerprint(fingerprints.essence(inspect.getsource(probes))),
            "pictures": fingerprints.fingerprint(json.dumps([images.tolist(), labels.tolist()])),
            **fingerprints.pinned()}


def rests_on(source: str) -> dict[str, str]:
    """One script and its dependencies."""
    return {"script": fingerprints.fingerprint(fingerprints.essence(source)), **_ground()}


@cache
def _stored() -> dict[str, Facts]:
    """The entries of the record, by the fingerprint of their script."""
    return {entry["rests_on"]["script"]: entry for entry in RECORD.entries().values()}


@cache
def numbers_by_seed(source: str) -> list[Found]:
    """The numbers of a script: from the record, on each seed, or measured on one seed."""
    return recorded(source) or [measured(source, SEEDS[0])]


def recorded(source: str) -> list[Found]:
    """The recorded numbers of a script, whatever its name in the record; none if stale."""
    now = rests_on(source)
    entry = _stored().get(now["script"], {})
    return entry["shows"] if entry.get("rests_on") == now else []


def measured(source: str, seed: int, *names: str) -> Found:
    """The readings of all probes, or of these, to four digits and without the curve."""
    found = probes.look(source, *laws.pictures(), seed, names or tuple(numbers.HEALTHY))
    return {probe: {name: float(f"{value:.4g}") for name, value in shown.items()
                    if name != "curve"} for probe, shown in found.items()}


def main() -> None:
    """Write the record: measure stale scripts again, keep fresh ones, drop those that are gone.

    Writes the record after each script, so you may stop this and start it again.
    """
    named, once = scripts(), variants.every() | decoys.alone()
    entries = {name: entry for name, entry in RECORD.entries().items() if name in named}
    for name, source in named.items():
        kept = recorded(source)
        seeds = SEEDS[:1] if name in once else SEEDS
        entries[name] = {"rests_on": rests_on(source),
                         "shows": kept or [measured(source, seed) for seed in seeds]}
        if not kept:
            print(name, "measured", flush=True)
            RECORD.write_all(entries)
    RECORD.write_all({name: entries[name] for name in named})


if __name__ == "__main__":
    main()
