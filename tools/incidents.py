"""Record the incidents: `make incidents`, or `python -m tools.incidents restart`.

Each incident has a module in tools/incident_runs/ that plants its fault in a small real run, on one
thread. Five seeds prove the symptom; learners see the first one. Only what they see goes into the
package.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
from pathlib import Path

from dlsys_incidents import incident_files
from tools import fingerprints
from tools.records import Record

RECORD = Record("incidents.json", done="recorded", renew="make incidents", lines=True)
RUNS = Path(__file__).with_name("incident_runs")
SEEDS = range(5)
SIGMAS = 3
PROVEN = ("healthy", "fault", "repaired")


def now(name: str) -> dict[str, str]:
    """The dependencies of this incident's record."""
    files = {one: (RUNS / f"{one}.py").read_text("utf-8") for one in (name, "small")}
    return {one: fingerprints.fingerprint(fingerprints.essence(text))
            for one, text in files.items()} | {
        "text": fingerprints.module_fingerprint("dlsys_model.text"),
        "torch": fingerprints.pinned()["torch"]}


def stale() -> list[str]:
    """One sentence for each incident to record again, with the reason."""
    return [why for name in incident_files.ORDER if (why := RECORD.stale(name, now(name)))]


def record(name: str) -> dict:
    run = importlib.import_module(f"tools.incident_runs.{name}")
    rows = [run.measure(seed) for seed in SEEDS]
    return {"shown": rounded(rows[0]), "seeds": [
        {key: plain(row["numbers"][key]) for key in PROVEN} for row in rows]}


def rounded(row: dict) -> dict:
    """What learners see, with numbers to six digits."""
    return {"numbers": {name: plain(value) for name, value in row["numbers"].items()},
            "curves": {name: {line: [plain(v) for v in values] for line, values in lines.items()}
                       for name, lines in row["curves"].items()}}


def plain(value: float) -> float:
    return float(f"{value:.6g}")


def sigmas(name: str, other: str) -> float:
    """How far other runs are from the healthy ones, in standard deviations of the latter."""
    rows = RECORD.entry(name)["seeds"]
    healthy = [row["healthy"] for row in rows]
    difference = abs(statistics.mean(row[other] for row in rows) - statistics.mean(healthy))
    deviation = statistics.stdev(healthy)
    if not deviation:
        return math.inf if difference else 0.0
    return difference / deviation


def condensed() -> dict:
    return {name: RECORD.entries()[name]["shown"] for name in incident_files.ORDER}


def publish() -> None:
    text = json.dumps(condensed(), separators=(",", ":"))
    incident_files.RECORDED.write_text(text.replace("}},", "}},\n") + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the incidents.")
    parser.add_argument("names", nargs="*", metavar="INCIDENT",
                        help="record these anew, and no other")
    asked = parser.parse_args().names
    if unknown := set(asked) - {*incident_files.ORDER}:
        parser.error(f"incident: got {min(unknown)!r}, expected one of "
                     f"{', '.join(incident_files.ORDER)}.")
    for name in asked or [name for name in incident_files.ORDER if RECORD.stale(name, now(name))]:
        print(name, file=sys.stderr, flush=True)
        RECORD.write(name, now(name), record(name), incident_files.ORDER)
    if not stale():
        publish()


if __name__ == "__main__":
    main()
