"""pytest plugin: points for the check cells of a notebook that nbval runs.

    pytest --nbval-lax my-work/01_activations.ipynb

prints a score table and writes ``my-work/01_scores.junit.xml``. A check cell is a code cell with
a line that calls `check`; the plugin changes no other pytest run. Each pytest run of the
environment loads it, so it imports nothing slow.

The exit code and the table are for the learner; `dlsys grade` is what an instructor uses.
"""

import argparse
import os
import re
import textwrap
from pathlib import Path

import pytest

from dlsys import assignments, worksheets
from dlsys_files import notebook_file
from dlsys_files.notebook_file import WorksheetError
from dlsys_files.notebook_reader import checked_in
from dlsys_helpers import paths, timeouts, verdicts
from dlsys_helpers.catalog import Trap
from dlsys_helpers.errors import UserError

LEARNER_FOLDER = "my-work"
NBVAL_SECONDS = 2000  # nbval's own default: too long for a loop that never ends
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


# LogXML reads its option in its own pytest_configure, so this one has to come first.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    runs_nbval = config.getoption("nbval_lax", False) or config.getoption("nbval", False)
    if is_worker or not runs_nbval:
        return
    config.pluginmanager.register(Scores(), "dlsys_scores")
    if notebooks := _learner_notebooks(config):
        _set_options(config.option, notebooks)


def _set_options(option: argparse.Namespace, notebooks: list[Path]) -> None:
    """Set what suits a learner, unless the command line says otherwise."""
    if option.nbval_cell_timeout == NBVAL_SECONDS:
        option.nbval_cell_timeout = timeouts.SECONDS
    if getattr(option, "dist", "no") == "load":
        option.dist = "loadfile"  # a notebook's cells share one kernel
    if getattr(option, "xmlpath", "") is None and os.access(notebooks[0].parent, os.W_OK):
        option.xmlpath = str(junit_path(notebooks))


def _learner_notebooks(config: pytest.Config) -> list[Path]:
    """The worksheets in my-work/ that this run names, directly or by their folder."""
    named = [Path(str(arg).split("::")[0]) for arg in config.args]
    inside = [path for path in named if _is_learners(path)]
    files = (sorted(path.glob("*.ipynb")) if path.is_dir() else [path] for path in inside)
    return [path for found in files for path in found
            if path.suffix == ".ipynb" and not notebook_file.is_read(path)]


def _is_learners(path: Path) -> bool:
    return (LEARNER_FOLDER in path.absolute().parts
            or path.absolute().is_relative_to(paths.MY_WORK))


def junit_path(notebooks: list[Path]) -> Path:
    """``NN_scores.junit.xml`` next to a single notebook, ``scores.junit.xml`` for several."""
    name = f"{_stage_prefix(notebooks[0])}scores.junit.xml" if len(notebooks) == 1 else (
        "scores.junit.xml")
    return notebooks[0].parent / name


def _stage_prefix(path: Path) -> str:
    """``01_`` from the notebook's metadata; nothing if it is not ours or cannot be read."""
    try:
        return f"{worksheets.stage_in(path):02d}_"
    except WorksheetError:
        return ""  # collection says what is wrong with it


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """Name check cells after their exercises; an unreadable worksheet gets one clear message."""
    report = yield
    if type(collector).__name__ != "IPyNbFile":
        return report
    if _is_learners(collector.path) and notebook_file.is_read(collector.path):
        report.result = []  # a lesson's copy earns no points, and takes minutes
        return report
    if message := _unreadable(collector.path):
        return pytest.CollectReport(collector.nodeid, "failed", message, [])
    report.result = [_named(item) for item in report.result]
    return report


def _unreadable(path: Path) -> str:
    """What is wrong with a learner's notebook, or "" for a sound one and for other folders."""
    try:
        if _is_learners(path):
            notebook_file.load(path)
    except WorksheetError as error:
        return str(error)
    return ""


def _named(item: pytest.Item) -> pytest.Item:
    """The cell as an item named ``01.4 (Cell 7)`` if it is a check, else unchanged."""
    if not (ids := _checks(item)):
        return item
    return type(item).from_parent(
        item.parent, name=f"{', '.join(ids)} ({item.name})", cell_num=item.cell_num,
        cell=item.cell, options=item.options,
    )


def _checks(item: pytest.Item) -> list[str]:
    """The exercises that a cell checks; none for every other item."""
    return checked_in(getattr(getattr(item, "cell", None), "source", ""))


def _possible(id: str) -> int:
    try:
        return assignments.trap(id).points
    except UserError:
        return 1


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """Add points to a check cell's report, and cut a failure to its message."""
    ids = _checks(item)
    # A failed set-up (no kernel) is the check's result, because its call never runs.
    if not ids or not (call.when == "call" or (call.excinfo and call.when == "setup")):
        return (yield)
    verdict, message = _verdict(call)
    # Plain data: xdist carries it to the process that prints the table.
    scores = [{"notebook": str(item.path), "id": id, "verdict": verdict, "message": message,
               "points": _possible(id) if verdict == "pass" else 0, "possible": _possible(id)}
              for id in ids]
    item.user_properties += [
        ("exercise", ", ".join(ids)), ("verdict", verdict),
        ("points", sum(score["points"] for score in scores)),
        ("max_points", sum(score["possible"] for score in scores))]
    report = yield
    if report.failed:
        report.longrepr = f"exercise {', '.join(ids)} {verdict}: {message}"
    report.dlsys_scores = scores
    return report


def _verdict(call: pytest.CallInfo) -> tuple[str, str]:
    """pass, skipped, todo, wrong or error, and the message."""
    if call.excinfo is None:
        return "pass", ""
    if call.excinfo.errisinstance(pytest.skip.Exception):
        return "skipped", "the cell is tagged to be skipped, so it earns nothing"
    error = call.excinfo.value
    text = _ANSI.sub("", getattr(error, "inner_traceback", None) or str(error)).strip()
    if said := verdicts.read_line(text):
        return said
    if text.startswith("Kernel dead"):
        return "error", "the kernel is gone: an earlier cell ended it, or ran past its time limit"
    if text.endswith(("KeyboardInterrupt", "KeyboardInterrupt:")):
        return "error", "ran past its time limit; is there a loop that never ends?"
    return "error", text.splitlines()[-1] if text else type(error).__name__


class Scores:
    """Collects the scores in the process that has the terminal, and prints them there."""

    def __init__(self) -> None:
        self.by_notebook: dict[str, dict[str, dict]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for score in getattr(report, "dlsys_scores", ()):
            self.by_notebook.setdefault(score["notebook"], {})[score["id"]] = score

    def pytest_terminal_summary(self, terminalreporter) -> None:
        for name, scores in sorted(self.by_notebook.items()):
            path = Path(name)
            terminalreporter.section(f"scores of {path.parent.name}/{path.name}")
            for line in score_lines(list(scores.values()), _declared(path)):
                terminalreporter.write_line(line)


def score_lines(scores: list[dict], declared: dict[str, Trap]) -> list[str]:
    """The table of one notebook: a line for each exercise, a message if it failed, a total.

    ``declared`` holds the stage's traps by id: it gives the names, and an exercise whose
    check cell is gone counts as not checked instead of vanishing from the total.
    """
    done = {score["id"]: score for score in scores}
    rows = [done.get(id) or _unchecked(entry) for id, entry in declared.items()]
    rows += [score for score in scores if score["id"] not in declared]
    lines = []
    for row in rows:
        name = declared[row["id"]].name if row["id"] in declared else ""
        marks = f"{row['points']}/{row['possible']}"
        lines.append(f"  {row['id']:<6} {row['verdict']:<11} {marks:>6}  {name}".rstrip())
        lines += [f"         {line}" for line in textwrap.wrap(row["message"], 90)]
    total, possible = (sum(row[key] for row in rows) for key in ("points", "possible"))
    return [*lines, f"  total  {'':<11} {f'{total}/{possible}':>6}"]


def _unchecked(entry: Trap) -> dict:
    return {"id": entry.id, "verdict": "not checked", "points": 0,
            "possible": entry.points, "message": "its check cell is missing or did not run"}


def _declared(path: Path) -> dict[str, Trap]:
    """The traps of the notebook's stage; none for a notebook that is not ours."""
    try:
        return {trap.id: trap for trap in assignments.traps(worksheets.stage_in(path))}
    except UserError:
        return {}
