"""Measure what a user waits for, side by side in one run, and write benchmarks/RESULTS.md."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from datetime import UTC, datetime

from benchmarks import explorers, waiting
from dlsys_helpers.paths import ROOT

TARGET = ROOT / "benchmarks" / "RESULTS.md"
PACKAGES = ("torch", "nbclient", "jupyterlab", "jupyter-book", "anywidget")


def processor() -> str:
    """The processor's name as the system gives it, else its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            names = [line.split(":", 1)[1].strip() for line in info if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def table(head: list[str], rows: list[list[object]]) -> str:
    def line(cells: list[object]) -> str:
        shown = (f"{c:.3g}" if isinstance(c, float) else str(c) for c in cells)
        return "| " + " | ".join(shown) + " |"
    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])


def header(rounds: int) -> str:
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in PACKAGES)
    load = os.getloadavg()[0]
    return (f"# What you wait for\n\nMeasured {datetime.now(UTC).date()} on {os.cpu_count()} "
            f"cores of {processor()} ({platform.system()}), Python {platform.python_version()}, "
            f"{versions}. Load before the run: {load:.1f}; each lesson {rounds} times each way. "
            "Compare the ratios: single times move with the machine.\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each lesson, each way")
    rounds = parser.parse_args().rounds
    parts = [header(rounds), "## A lesson through nbclient, against the same cells as a script\n"]
    rows = []
    for path in waiting.LESSONS:
        found = waiting.lesson_ratio(path, rounds)
        rows.append([path.stem, *found.values()])
        print(path.stem, found, flush=True)
    parts.append(table(["lesson", "kernel start, s", "cells in nbclient, s",
                        "cells in a script, s", "ratio (aim 1.15)"], rows))
    parts.append("\n## From running a check cell to its verdict\n")
    latency = waiting.check_latency()
    parts.append(table(["exercise", "right answer, ms", "slowest wrong answer, ms"],
                       [[id, *found.values()] for id, found in latency.items()]))
    parts.append("\n## An explorer, from key press to redraw\n")
    redraw = explorers.measure()
    parts.append(table(["where", "median, ms", "95th percentile, ms", "aim, ms"],
                       [[row[k] for k in ("where", "median_ms", "p95_ms", "aim_ms")]
                        for row in redraw]))
    parts.append("\n## Building\n")
    parts.append(table(["command", "seconds"], [
        ["make build, nothing changed", waiting.command_seconds("-m", "tools.build", "--quick")],
        ["make book", waiting.command_seconds("-m", "tools.book")]]))
    TARGET.write_text("\n".join(parts) + "\n", encoding="utf-8")
    print(f"written: {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
