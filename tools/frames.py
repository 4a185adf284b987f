"""Validate every frame of the explorers' pages, and visit each page in full in a browser.

    python -m tools.frames        the explorers whose record is stale

Frames must be computed, finite, small enough, and have a sentence. A visit tries every value of
every control, both themes and narrow pages, see tests/explorer_visit.py. For each explorer,
tests/records/explorers.json has a fingerprint of its code, the size of its frames in bytes, and a
fingerprint of its visit's dependencies. If the first matches, the tests compute only the frames
that they look at; if both match, they look at few settings, all on one page. Otherwise they do it
all.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache

import numpy as np
import pytest

from dlsys_helpers.explorers import Explorer, load, names
from dlsys_helpers.explorers._packing import pack
from dlsys_helpers.paths import ROOT
from tools import fingerprints
from tools.records import Record

RENEW = ".venv/bin/python -m tools.frames"
RECORD = Record("explorers.json", done="computed", renew=RENEW)
VISIT = "tests/test_browser_explorers.py::test_a_visit_to_its_page_finds_nothing_amiss"
LOOKED_WITH = [*(ROOT / "src" / "dlsys_helpers" / name for name in fingerprints.FRONT_END),
               *(ROOT / "tests" / f"explorer_{name}.py" for name in ("oracle", "visit"))]
LIMIT_BYTES = 180_000  # a third more as base64 in a page


def rests_on(name: str) -> dict[str, str]:
    """Fingerprints of the code that computes an explorer's frames; the front end draws them."""
    parts = fingerprints.rests_on([f"from dlsys_helpers.explorers.{name} import {name}\n{name}"])
    return {part: mark for part, mark in parts.items() if part not in fingerprints.FRONT_END}


@cache
def fresh(name: str) -> bool:
    """Whether the record of an explorer's frames is of today's code."""
    return RECORD.stale(name, rests_on(name)) == ""


@cache
def looks_fingerprints() -> dict[str, str]:
    """Fingerprints of the front end and of the code that inspects it."""
    texts = {path.name: path.read_text("utf-8") for path in LOOKED_WITH}
    return {name: fingerprints.fingerprint(
                fingerprints.essence(text) if name.endswith(".py") else text)
            for name, text in texts.items()}


def visit_rests_on(name: str) -> dict[str, str]:
    """Fingerprints of a visit's dependencies: frames, front end, the code that inspects it."""
    return rests_on(name) | looks_fingerprints()


@cache
def visited(name: str) -> bool:
    """Whether today's page of an explorer has had a full visit."""
    return stale(name) == ""


def stale(name: str) -> str:
    """A line on why an explorer's record no longer counts, and what to do; "" if it does."""
    why = RECORD.stale(name, rests_on(name))
    if not why and (changed := fingerprints.changes(RECORD.entry(name).get("visited", {}),
                                                    visit_rests_on(name))):
        why = f"{name}: {', '.join(changed)} changed since its page was visited. Run: {RENEW}"
    return f"explorer {why}" if why else ""


def some(explorer: Explorer, settings: Mapping[str, dict]) -> bytes:
    """The frames of some settings, packed as `Explorer.frames` packs all of them."""
    packed = pack({key: explorer.stored(setting) for key, setting in settings.items()})
    return gzip.compress(packed, 9, mtime=0)


def flaws(frames: bytes, keys: Collection[str]) -> Iterator[str]:
    """Find what is wrong with compressed frames that should belong to `keys`."""
    packed = gzip.decompress(frames)
    start = 4 + int.from_bytes(packed[:4], "little")
    header = json.loads(packed[4:start])
    if header["frames"].keys() != set(keys):
        yield f"got {len(header['frames'])} frames, expected {len(keys)} of other keys"
    yield from (f"{key}: the sentence {sentence!r} does not end"
                for key, (_, sentence) in header["frames"].items() if not sentence.endswith("."))
    for number, (offset, shape, size) in enumerate(header["arrays"]):
        if size == 4:  # float32, its bytes grouped by significance, as `_packing` stores them
            raw = np.frombuffer(packed, "u1", 4 * math.prod(shape), start + offset)
            if not np.isfinite(raw.reshape(4, -1).T.copy().view("<f4")).all():
                yield f"array {number}: not finite"
    if len(frames) > LIMIT_BYTES:
        yield f"got {len(frames)} bytes, expected at most {LIMIT_BYTES}"


class Visits:
    """A pytest plugin that collects the explorers whose visit passed."""

    def __init__(self) -> None:
        self.passed = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid.partition("[")[2].removesuffix("]"))


def visit(explorers: Collection[str]) -> set[str]:
    """Visit these explorers' pages in full; returns the explorers that passed."""
    visits = Visits()
    if explorers:
        # pytest cannot rewrite modules that are imported already; they have no asserts.
        quiet = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        pytest.main([*quiet, *(f"{ROOT / VISIT}[{name}]" for name in explorers)], [visits])
    return visits.passed


def write(record: Mapping[str, dict]) -> None:
    """Write the record, and forget what is cached of the old one."""
    RECORD.write_all({name: record[name] for name in sorted(record)})
    fresh.cache_clear()
    visited.cache_clear()


def main() -> None:
    for line in filter(None, map(stale, names())):
        print(line)
    record, failed = {k: facts for k, facts in RECORD.entries().items() if k in names()}, False
    for name in names():
        if not fresh(name):
            explorer = load(name)
            found = list(flaws(explorer.frames, explorer.grid().keys()))
            print("\n".join(f"{name}: {flaw}" for flaw in found) or f"{name}: every frame is whole",
                  flush=True)
            failed |= bool(found)
            if not found:
                record[name] = {"rests_on": rests_on(name), "bytes": len(explorer.frames)}
    write(record)
    wanted = [name for name in record if not visited(name)]
    passed = visit(wanted)
    write(record | {name: record[name] | {"visited": visit_rests_on(name)}
                    for name in wanted if name in passed})
    sys.exit(failed or passed != {*wanted})


if __name__ == "__main__":
    main()
