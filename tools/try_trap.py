"""Try a trap that you are writing, and list in one table everything that it lacks.

    python -m tools.try_trap 05.6

Builds the lesson's draft while it runs the claims with a seed that the build does not use; proves
the exercise's check on the worked answer in the draft, with its mutants; runs the tests of this
exercise and its questions; and lints the Python files that differ from the last commit. Writes only
to drafts/.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from rich.console import Console

from dlsys_helpers import acting
from dlsys_helpers.paths import ROOT
from tools import build, lessons, proof, rows, solutions, sweep, trap_rows, views
from tools.rows import Row

TEST_FILES = ("test_checks.py", "test_tables.py", "test_review.py")


# ---- the draft and its claims

def built(source: lessons.Source) -> tuple[list[Row], list[Row]]:
    """Write and run the draft's notebooks; returns rows of failed cells and of what is missing."""
    with contextlib.redirect_stdout(io.StringIO()):
        failed = build.build(source)
    return ([Row(trap_rows.place_of_cell(source, text), text) for text in failed],
            [Row(note.place, note) for note in source.notes])


def refuted(source: lessons.Source) -> tuple[int, list[str]]:
    """How many claims one run of the draft makes, and a line for each that does not hold."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{source.path.stem}.ipynb"
        path.write_text(nbformat.writes(views.all_views(source)["lesson"]), "utf-8")
        claims, lines = sweep.try_run(path, sweep.DRAFT_RUN)
    return len(claims), lines


# ---- the check

def proven(id: str, files: trap_rows.Files) -> list[Row]:
    """Rows of what contradicts an exercise's check; if one of its files breaks, only that row."""
    with acting.standard_session():
        lines = result_or_row(lambda: proof.prove_in_full(id, proof.RIGHT_SEEDS)[1])
    return [lines] if isinstance(lines, Row) else trap_rows.proof_rows(id, files, lines)


def result_or_row(run: Callable[[], list[str]]) -> list[str] | Row:
    """What `run` returns, or the row of the error in a contributor's file that stopped it."""
    try:
        return run()
    except (Exception, SystemExit) as error:
        first = error.__cause__ or error  # a failed import ends in SystemExit
        lines = [(frame.filename, frame.lineno)
                 for frame in traceback.extract_tb(first.__traceback__)]
        if isinstance(first, SyntaxError):  # not in the traceback, since no line ran
            lines.append((first.filename or "", first.lineno))
        ours = [f"{Path(name).relative_to(ROOT)}:{number}" for name, number in lines
                if "src/dlsys_checks/" in name or "tests/right_answers/" in name]
        if not ours:
            raise
        return Row(ours[-1], f"{type(first).__name__}: {first}")


# ---- tests

# Tests that the proof already covers in full.
COVERED = {"test_reference_passes_on_many_seeds", "test_right_answers_by_other_routes_pass",
           "test_wrong_answer_fails_for_its_own_reason_on_every_seed",
           "test_law_compares_shape_dtype_and_values_of_everything_it_receives",
           "test_no_function_of_a_check_passes_as_it_stands"}


class OfTrap:
    """A pytest plugin that keeps the tests of one exercise, and notes those that fail."""

    def __init__(self, id: str) -> None:
        self.id, self.ran, self.failed = id, 0, {}

    def pytest_collection_modifyitems(self, items: list) -> None:
        items[:] = [item for item in items if item.originalname not in COVERED
                    and self.id in getattr(getattr(item, "callspec", None), "params", {}).values()]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed[report.nodeid] = str(report.longrepr)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.ran += report.when == "call"
        if report.failed:
            name = report.nodeid.partition("::")[2].partition("[")[0]
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failed[name] = crash.message if crash else str(report.longrepr)


def tested(id: str, files: trap_rows.Files) -> tuple[int, list[Row]]:
    """How many tests of this exercise ran, and a row for each that fails."""
    plugin = OfTrap(id)
    options = ["-q", "-p", "no:cacheprovider", "-o", "verbosity_assertions=2",
               "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # this process has loaded plugins
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = pytest.main([*options, *(str(ROOT / "tests" / name) for name in TEST_FILES)],
                             plugins=[plugin])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not plugin.failed:
        raise SystemExit(f"try: the tests did not run.\n{said.getvalue()[-2000:]}")
    return plugin.ran, [trap_rows.test_row(id, files, name, text)
                        for name, text in plugin.failed.items()]


# ---- the linter

def changed_files() -> list[str]:
    """The Python files that differ from the last commit, including new ones."""
    done = subprocess.run(["git", "ls-files", "--modified", "--others", "--exclude-standard",
                           "--", "*.py"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.split("\n") if done.returncode == 0 else []


def linted(names: list[str]) -> list[Row]:
    """The linter's complaints about these files, with the name of the rule, such as E501."""
    wanted = sorted({name for name in names if name and (ROOT / name).exists()})
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--output-format", "json",
                           "--force-exclude", *wanted], cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"try: ruff ended with {done.returncode}: {done.stderr[-500:]}")
    return [Row(f"{Path(one['filename']).relative_to(ROOT)}:{one['location']['row']}",
                f"{one['code']}: {one['message']}.") for one in json.loads(done.stdout)]


# ---- all of it

def as_draft(stage: str) -> None:
    """Take the worked answers of this stage from its draft, here and in the tests."""
    os.environ["DRAFT"] = solutions.DRAFT = stage


def outcome(count: int, lines: list[str]) -> str:
    """The outcome of one run's claims, in a few words."""
    if lines and not count:
        return f"none: a cell failed at {sweep.DRAFT_RUN}"
    return f"{count} at {sweep.DRAFT_RUN}, {len(lines)} do not hold"


def lint_shown(console: Console, files: trap_rows.Files) -> list[Row]:
    """Show the linter's complaints at once: they take seconds to fix, the rest takes minutes."""
    with rows.step(console, "linter") as say:
        found = linted([*files.names(), *changed_files()])
        say(rows.count(found, "complaint"))
    for place, says in found:
        console.print(f"  {place}: {says}", markup=False, soft_wrap=True)
    return found


def missing(id: str) -> Iterator[Row]:
    """All that a trap lacks, with a line on the screen for each step."""
    console, files = rows.screen(), trap_rows.files_of(id)
    try:
        source = lessons.read(files.lesson, draft=True)
    except lessons.RuleBroken as broken:
        yield Row(broken.place, str(broken).partition(": ")[2])
        console.print("The rest waits: the lesson cannot be built with this.")
        return
    yield from lint_shown(console, files)
    with ThreadPoolExecutor(1) as pool:
        claims = pool.submit(refuted, source)
        with rows.step(console, "draft") as say:
            failed, notes = built(source)
            say(f"built in drafts/, {rows.count([*failed, *notes], 'thing')} missing")
        yield from (*failed, *notes)
        with rows.step(console, "check") as say:
            found = proven(id, files)
            say(f"tried with its mutants, {rows.count(found, 'objection')}")
        yield from found
        with rows.step(console, "tests") as say:
            ran, found = tested(id, files)
            say(f"{ran} of the exercise and its questions, {len(found)} failed")
        yield from found
        yield from trap_rows.finder_rows(id)
        with rows.step(console, "claims") as say:
            count, lines = claims.result()
            say(f"{outcome(count, lines)}; they ran beside the steps above")
        # If a cell failed in both runs, the draft has already named the line.
        yield from trap_rows.claim_rows(source, lines if count or not failed else [])


def main() -> None:
    parser = argparse.ArgumentParser(prog="make try", usage="make try TRAP=05.6")
    parser.add_argument("trap")
    trap = parser.parse_args().trap
    if not re.fullmatch(r"\d\d?\.[1-9]\d*", trap):
        parser.error(f"TRAP: got {trap!r}, expected the id of a trap, such as 05.6.")
    stage, _, number = trap.partition(".")
    id = f"{stage.zfill(2)}.{number}"
    as_draft(id[:2])
    torch.set_num_threads(1)
    files = trap_rows.files_of(id)
    found = rows.in_order(missing(id), files.names())
    if found:
        rows.show(rows.screen(), found)
        sys.exit(1)
    print(f"Trap {id} lacks nothing. Next: make finish LESSON={id[:2]}")


if __name__ == "__main__":
    main()
