"""Measure what a user waits for, part by part, side by side in one run, with the machine.

    python -m benchmarks                     all parts, then the page
    python -m benchmarks learners lessons    these parts; the others keep what they have
    python -m benchmarks page                only the page, from what is recorded

The record is benchmarks/bench.json, the page benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from benchmarks import (
    explorers,
    machine,
    page,
    starting,
    steps,
    waiting,
    weights,
    writing,
    your_model,
)

# "setup" needs a network and eleven GB, so it is measured only when it is named.
MEASURE: dict[str, Callable[[], list[list]]] = {
    "setup": starting.fresh_setup, "start": starting.first_cell, "learners": starting.learners,
    "lessons": waiting.lessons, "checks": waiting.checks, "explorers": explorers.rows,
    "steps": steps.rows, "weights": weights.rows, "writing": writing.rows,
    "building": waiting.building, "model": your_model.rows}
ALL = [name for name in MEASURE if name != "setup"]


def measure(name: str) -> dict:
    """The part's record: run, its machine and load before it began, and rows."""
    run = machine.describe()
    rows = MEASURE[name]()
    print(f"{name}: {len(rows)} rows", flush=True)
    return {"run": run, "rows": [[round(c, 4) if isinstance(c, float) else c for c in row]
                                 for row in rows]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART",
                        help=f"{', '.join(MEASURE)} or page; all but setup, unless named")
    parts = parser.parse_args().parts or ALL
    if unknown := sorted({*parts} - {*MEASURE, "page"}):
        parser.error(f"part: got {unknown[0]!r}, expected one of {', '.join(MEASURE)}, page.")
    for name in parts:
        if name != "page":
            found = measure(name)
            record = (page.stored(page.RECORD) or {}) | {name: found}
            page.RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    page.TARGET.write_text(page.page(), "utf-8")
    print(f"written: {page.TARGET.relative_to(page.HERE.parent)}")


if __name__ == "__main__":
    main()
