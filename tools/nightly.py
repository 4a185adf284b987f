"""A pytest plugin that decides what `make test` leaves to `make nightly`.

    python -m pytest -p tools.nightly tests notebooks solutions

`make test` repeats nothing that a fresh record answers. It leaves out

- the notebooks whose stored outputs come from today's files, except for one lesson and one
  notebook of worked answers, the next ones each day;
- the tests marked `nightly`, which test every page, stage or fresh record where the others test a
  few.

A file named on the command line runs in full. `make nightly` sets DLSYS_NIGHTLY=1: it leaves
nothing out and trusts no record, but proves every check, visits every page and runs every notebook
again. A run first says which notebooks it runs, and at the end how many tests it left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest

from dlsys_helpers.paths import NOTEBOOKS, ROOT, SOLUTIONS
from tools import fingerprints, stored_outputs


def runs_everything() -> bool:
    """Whether this run leaves nothing out."""
    return os.environ.get("DLSYS_NIGHTLY") == "1"


def trusted(fresh: bool) -> bool:
    """Whether a test may trust a record instead of repeating the work."""
    return fresh and not runs_everything()


def mark_nightly(values: Iterable[Any], today: Callable[[Any], bool]) -> list:
    """For `parametrize`: all values; those that are not for today get the mark `nightly`."""
    return [value if today(value) else pytest.param(value, marks=pytest.mark.nightly)
            for value in values]


# ---- notebooks

def changed(path: Path) -> list[str]:
    """The dependencies of a notebook's stored outputs that have changed; [] for none."""
    book = nbformat.v4.reads(path.read_text("utf-8"))  # unlike nbformat.read, checks no schema
    if "rests_on" not in book.metadata.get("dlsys", {}):
        return ["no record"]
    return stored_outputs.edited(book) + fingerprints.changes(
        book.metadata["dlsys"]["rests_on"], stored_outputs.rests_on(book))


def short(names: list[str]) -> str:
    """The first three names, and how many more there are."""
    return ", ".join([*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])])


def drawn_for(fresh: list[Path], day: date) -> Path:
    """One of these notebooks, each day the next one."""
    return fresh[day.toordinal() % len(fresh)]


@cache
def to_run(folder: Path) -> dict[str, str]:
    """The notebooks of a folder that run today, by path, each with the reason."""
    why = {path: short(changed(path)) for path in sorted(folder.glob("*.ipynb"))}
    today, fresh = date.today(), [path for path, names in why.items() if not names]
    if fresh:
        why[drawn_for(fresh, today)] = f"drawn for {today}"
    return {str(path): names for path, names in why.items() if names}


def notebooks_to_run(config: pytest.Config) -> dict[str, str]:
    """The notebooks to run in the folders on the command line; workers get them from xdist."""
    if hasattr(config, "workerinput"):
        return config.workerinput["notebooks"]
    return {} if runs_everything() else {
        path: why for folder in sorted(named_paths(config) & {NOTEBOOKS, SOLUTIONS})
        for path, why in to_run(folder).items()}


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    node.workerinput["notebooks"] = notebooks_to_run(node.config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    if runs_everything():
        return ["nightly: everything runs, and no record is believed"]
    runs = notebooks_to_run(config)
    return [f"runs {Path(path).relative_to(ROOT)}: {why}" for path, why in runs.items()] + [
        "believes the stored outputs of all other notebooks: nothing they rest on has changed"
    ] * bool(runs)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a notebook that need not run; pytest does not ask about files that you name."""
    left_out = (collection_path.suffix == ".ipynb"
                and collection_path.parent in (NOTEBOOKS, SOLUTIONS) and not runs_everything()
                and str(collection_path) not in notebooks_to_run(config))
    return left_out or None


# ---- tests

def named_paths(config: pytest.Config) -> set[Path]:
    """The files and folders that the command names, by path or by a test in them."""
    return {(config.invocation_params.dir / arg.partition("::")[0]).resolve()
            for arg in config.args}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    whole = named_paths(config)
    left = [] if runs_everything() else [
        item for item in items if item.get_closest_marker("nightly") and item.path not in whole]
    items[:] = [item for item in items if item not in {*left}]
    config.hook.pytest_deselected(items=left)
    getattr(config, "workeroutput", {})["left_out"] = len(left)


class Count:
    """Say at the end how many tests were left out, because xdist does not count them."""

    left_out = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        # A worker that died reports nothing; the others all drop the same tests.
        self.left_out = getattr(node, "workeroutput", {}).get("left_out", self.left_out)

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self.left_out:
            terminalreporter.write_line(f"{self.left_out} tests left to make nightly")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Count(), "left_to_nightly")
