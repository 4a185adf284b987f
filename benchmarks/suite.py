"""Write benchmarks/SUITE.md from the recorded run of the suite: python -m benchmarks.suite

The record is written by `make test TESTS="--suite-record tests notebooks solutions"`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from benchmarks.__main__ import table
from dlsys_helpers import catalog
from dlsys_helpers.explorers import names
from dlsys_helpers.paths import ROOT
from tools.suite import RECORD

TARGET = ROOT / "benchmarks" / "SUITE.md"
LIMIT_MINUTES = 20
SETUP_MINUTES = 2.4  # a fresh clone, measured with packages already downloaded
WORKERS = 2


@dataclass(frozen=True)
class Growth:
    """What a part grows with, and its seconds that do not: a start-up, tests of the machinery."""

    of: str
    fixed: float = 0


GROWTH = {
    "checks": Growth("exercises"), "checks forged": Growth("exercises"),
    "notebooks": Growth("stages", fixed=10),  # a trap each of the newest two lessons
    "nbval notebooks": Growth("stages", fixed=5),  # the start page
    "nbval solutions": Growth("stages"),
    "worksheets": Growth("stages", fixed=13),  # two of them through nbval
    "gpu sections": Growth("stages"), "told": Growth("exercises"),
    "build": Growth("stages", fixed=45),  # all but whether the generated files are fresh
    "book": Growth("exercises"), "browser book": Growth("stages", fixed=60),
    "explorers": Growth("explorers"), "browser explorers": Growth("explorers", fixed=50),
}
AT_TWELVE = {"stages": 12, "exercises": 80, "explorers": 30}


def counts() -> dict[str, int]:
    """How many there are today."""
    exercises = catalog.traps()
    return {"stages": len({trap.id[:2] for trap in exercises}), "exercises": len(exercises),
            "explorers": len(names())}


def projected(part: str, seconds: float, now: dict[str, int]) -> float:
    """Worker seconds of a part at twelve stages; a part that is not in GROWTH stays."""
    if (growth := GROWTH.get(part)) is None:
        return seconds
    fixed = min(seconds, growth.fixed)
    return fixed + (seconds - fixed) * AT_TWELVE[growth.of] / now[growth.of]


def grows(part: str) -> str:
    """The assumption, in words."""
    growth = GROWTH.get(part)
    if growth is None:
        return "stays"
    return f"with {growth.of}" + (f", but for {growth.fixed:g} s" if growth.fixed else "")


def minutes(worker_seconds: float) -> float:
    """Wall-clock minutes on all workers with set-up, if none of them waits."""
    return worker_seconds / WORKERS / 60 + SETUP_MINUTES


def page(record: dict, now: dict[str, int]) -> str:
    """The page, as Markdown."""
    found = sorted(record["parts"].items(), key=lambda pair: -pair[1]["worker"])
    rows = [[part, round(row["worker"]), grows(part),
             round(projected(part, row["worker"], now))] for part, row in found]
    today, then = sum(row[1] for row in rows), sum(row[3] for row in rows)
    growth = ", ".join(f"{now[what]} {what} to {many}" for what, many in AT_TWELVE.items())
    return "\n".join([
        "# Where the minutes of the suite go\n",
        f"Recorded: {record['run']}. Worker seconds are the time of all workers together.\n",
        table(["part", "worker s", "grows", "worker s at twelve stages"],
              [*rows, ["all", today, "", then]]),
        f"\nOn {WORKERS} cores with {SETUP_MINUTES} minutes of set-up: {minutes(today):.0f} "
        f"minutes today, {minutes(then):.0f} at twelve stages; the limit is {LIMIT_MINUTES}.\n",
        f"Assumed: {growth}; a lesson, an exercise and an explorer cost on average what they "
        "cost today; no worker waits for the other at the end.\n"])


def main() -> None:
    if not RECORD.exists():
        raise SystemExit(f"{RECORD.relative_to(ROOT)}: missing, expected the record of a run. "
                         'Run: make test TESTS="--suite-record tests notebooks solutions"')
    TARGET.write_text(page(json.loads(RECORD.read_text("utf-8")), counts()), "utf-8")
    print(f"written: {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
