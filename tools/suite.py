"""A pytest plugin that splits `make test` between workers, and says where the minutes go.

    python -m pytest -p tools.suite -n 3 --dist loadscope tests notebooks

Tests that share something expensive stay on one worker: the cells of a notebook, the tests of a
file. Files whose tests share nothing are split by the stages of their tests. The longest groups
start first, by the times in benchmarks/suite.json, which `--suite-record` rewrites.
tools/nightly.py says which tests `make test` leaves to `make nightly`.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import re
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from dlsys_helpers.paths import ROOT

RECORD = ROOT / "benchmarks" / "suite.json"
BY_STAGE = {"checks", "mutants", "notebooks"}
# The stage in test_x[01.2-a], test_x[notebooks-01_activations], test_x[01].
STAGE = re.compile(r"\[(?:\w+-)?(\d\d)[._\]]")
SHOWN = 14


def part(nodeid: str) -> str:
    """The line of the table that a test belongs to: "hostile", "nbval notebooks"."""
    path = PurePosixPath(nodeid.partition("::")[0])
    if path.suffix == ".ipynb":
        return f"nbval {path.parent.name}"
    return path.stem.removeprefix("test_").replace("_", " ")


def group(nodeid: str) -> str:
    """The group of a test, which stays on one worker: a notebook, a file, or a stage of a file."""
    path, _, name = nodeid.partition("::")
    if path.endswith(".ipynb"):
        return path
    about = STAGE.search(name) if part(nodeid) in BY_STAGE else None
    return f"{part(nodeid)} {about[1]}" if about else part(nodeid)


def cpu_seconds() -> float:
    """User and system CPU time of this process and of the children that it has waited for.

    Browsers and forked kernels are not among these: only the worker's seconds include their time.
    """
    return sum(os.times()[:4])


def recorded() -> dict[str, dict[str, float]]:
    """Seconds by group of the recorded run; empty if there is none."""
    return json.loads(RECORD.read_text("utf-8"))["groups"] if RECORD.exists() else {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite-record", action="store_true",
                     help=f"write the seconds of this run to {RECORD.relative_to(ROOT)}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Minutes(config.getoption("suite_record")), "suite_minutes")


class ByGroup(LoadScopeScheduling):
    """xdist scheduler: a worker takes a whole `group` of tests at a time, in their order.

    xdist's own loadgroup does not help: it renames tests in a way that this pytest ignores.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """The test that ended a worker; None without one.

        Unlike xdist, we give it to no other worker: a test that hangs would hang thirteen times.
        """
        units = self.assigned_work[node].values()
        ended = next(((unit, nodeid) for unit in units for nodeid, done in unit.items()
                      if not done), None)
        if ended:
            unit, nodeid = ended
            unit[nodeid] = True
        super().remove_node(node)
        return ended and nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log) -> ByGroup:
    config.option.loadscopereorder = False  # it would start the groups with the most tests first
    return ByGroup(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest group first; break ties, and order new groups, as collected."""
    longest = {name: -seconds["worker"] for name, seconds in recorded().items()}
    first: dict[str, int] = {}
    for place, item in enumerate(items):
        first.setdefault(group(item.nodeid), place)
    items.sort(key=lambda item: (longest.get(group(item.nodeid), 0), first[group(item.nodeid)]))


def pytest_collection_finish() -> None:
    """Freeze what is imported by now, because it stays.

    The garbage collector takes 0.2 s for each walk through it, in all a tenth of the tests' CPU.
    """
    gc.collect()
    gc.freeze()


class Clock:
    """Measures CPU seconds between calls; pytest runs the phases of all tests one by one."""

    def __init__(self) -> None:
        self.last = cpu_seconds()

    def since(self) -> float:
        before, self.last = self.last, cpu_seconds()
        return self.last - before


CLOCK = Clock()


def pytest_runtest_logstart() -> None:
    CLOCK.since()  # restart, since no test pays for collection


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Add the CPU seconds of the phase to its report; xdist sends them to the main process."""
    report = yield
    report.cpu_seconds = CLOCK.since()
    return report


class Minutes:
    """Adds up the reports in the process that has the terminal."""

    def __init__(self, record: bool) -> None:
        self.record = record
        self.parts = defaultdict(new_sum)
        self.groups = defaultdict(new_sum)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for row in (self.parts[part(report.nodeid)], self.groups[group(report.nodeid)]):
            row["worker"] += report.duration
            row["cpu"] += getattr(report, "cpu_seconds", 0)  # none from a worker that died
            row["tests"] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter) -> None:
        terminalreporter.section("where the minutes go")
        for line in lines(self.parts):
            terminalreporter.write_line(line)
        if self.record:
            RECORD.write_text(as_json(self.parts, self.groups), "utf-8")
            terminalreporter.write_line(f"written: {RECORD.relative_to(ROOT)}")


def new_sum() -> dict[str, float]:
    return {"worker": 0.0, "cpu": 0.0, "tests": 0}


def total(rows) -> dict[str, float]:
    """The sum of rows, column by column."""
    rows = list(rows)
    return {name: sum(row[name] for row in rows) for name in new_sum()}


def lines(parts: dict[str, dict[str, float]]) -> list[str]:
    """The table: the longest parts, the rest in one line, the sum."""
    ordered = sorted(parts.items(), key=lambda pair: -pair[1]["worker"])
    rows = ordered[:SHOWN]
    if rest := ordered[SHOWN:]:
        rows.append((f"{len(rest)} others", total(row for _, row in rest)))
    rows.append(("all", total(parts.values())))
    return [f"{'part':<24} {'worker s':>9} {'CPU s':>7} {'tests':>6}",
            *(f"{name:<24} {row['worker']:>9.0f} {row['cpu']:>7.0f} {row['tests']:>6}"
              for name, row in rows)]


def as_json(parts: dict, groups: dict) -> str:
    """The record, rounded to a tenth of a second and sorted by name."""
    def rounded(rows: dict) -> dict:
        return {name: {key: round(value, 1) for key, value in rows[name].items()}
                for name in sorted(rows)}
    run = f"{datetime.now(UTC).date()}, {os.cpu_count()} cores of {platform.machine()}"
    record = {"run": run, "parts": rounded(parts), "groups": rounded(groups)}
    return json.dumps(record, indent=1) + "\n"
