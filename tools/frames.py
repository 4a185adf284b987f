"""Validate every frame of the explorers' pages: computed, finite, with a sentence, small enough.

    python -m tools.frames        the explorers whose record is stale

tests/records/explorers.json holds for each explorer a fingerprint of its code and the bytes of its
frames. Where the fingerprint still matches, the tests compute only the frames that they look at;
otherwise all of them.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from dlsys_helpers.explorers import Explorer, load, names
from dlsys_helpers.explorers._packing import pack
from dlsys_helpers.paths import ROOT
from tools import fingerprints

RECORD = ROOT / "tests" / "records" / "explorers.json"
LIMIT_BYTES = 180_000  # as base64 in a page a third more


def rests_on(name: str) -> str:
    """Fingerprint of the code behind an explorer's frames; the front end only draws them."""
    parts = fingerprints.rests_on([f"from dlsys_helpers.explorers.{name} import {name}\n{name}"])
    return fingerprints.fingerprint(json.dumps(
        {part: mark for part, mark in parts.items() if part not in fingerprints.FRONT_END}))


def stored() -> dict[str, dict[str, Any]]:
    """The record: facts by explorer; empty when there is none."""
    return json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}


@cache
def fresh(name: str) -> bool:
    """Whether an explorer's recorded fingerprint matches today's code."""
    return stored().get(name, {}).get("rests_on") == rests_on(name)


def some(explorer: Explorer, settings: Mapping[str, dict]) -> bytes:
    """The frames of some settings, packed as `Explorer.frames` packs all of them."""
    packed = pack({key: explorer.stored(setting) for key, setting in settings.items()})
    return gzip.compress(packed, 9, mtime=0)


def flaws(frames: bytes, keys: Collection[str]) -> Iterator[str]:
    """What is wrong with compressed frames that should be those of `keys`."""
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


def main() -> None:
    record, failed = {name: facts for name, facts in stored().items() if name in names()}, False
    for name in names():
        if not fresh(name):
            explorer = load(name)
            found = list(flaws(explorer.frames, explorer.grid().keys()))
            print("\n".join(f"{name}: {flaw}" for flaw in found) or f"{name}: every frame is whole",
                  flush=True)
            failed |= bool(found)
            if not found:
                record[name] = {"rests_on": rests_on(name), "bytes": len(explorer.frames)}
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")
    sys.exit(failed)


if __name__ == "__main__":
    main()
