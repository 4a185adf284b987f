"""Try a trap that is being written: everything that it lacks, in one table.

    python -m tools.try_trap 05.6

Builds the lesson's draft and runs its claims with a seed that the build does not take, meanwhile;
proves the exercise's check on the worked answer in the draft, with its mutants; asks the tests that
concern this exercise and its questions; and lints the Python files that differ from the last
commit. Writes nothing but drafts/.
"""

from __future__ import annotations

import argparse
import ast
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
from typing import Any, NamedTuple

import nbformat
import pytest
import torch

from dlsys_checks import registry
from dlsys_helpers import acting
from dlsys_helpers.paths import ROOT
from tools import build, lessons, proof, rows, solutions, sweep, views
from tools.rows import Row

TEST_FILES = ("test_checks.py", "test_tables.py", "test_review.py")


class Files(NamedTuple):
    """The four files that hold a trap."""

    lesson: Path
    check: Path
    right: Path
    questions: Path

    def names(self) -> list[str]:
        return [str(path.relative_to(ROOT)) for path in self]


def files_of(id: str) -> Files:
    """The files of a trap. Raises SystemExit where its lesson has no such trap, or no check."""
    stage, number = id.split(".")
    [lesson] = build.paths_of([stage])
    folder = f"s{stage}"
    checks = sorted((ROOT / "src/dlsys_checks" / folder).glob(f"e{number}_*.py"))
    if f'trap="{id}"' not in lesson.read_text("utf-8") or not checks:
        raise SystemExit(f"try: got {id}, expected a trap of {lesson.name} with a check. "
                         f"Run: make new TRAP={id} NAME=<the exercise's function>")
    return Files(lesson, checks[0], solutions.BESIDE / folder / checks[0].name,
                 ROOT / f"src/dlsys_checks/questions/q{stage}.py")


# ---- the draft and its claims

def built(source: lessons.Source) -> list[Row]:
    """Write and run the draft's notebooks: what the lesson lacks, and the cells that failed."""
    with contextlib.redirect_stdout(io.StringIO()):
        failed = build.build(source)
    return [*(Row(place_of_cell(source, text), text) for text in failed),
            *(Row(note.place, note) for note in source.notes)]


def place_of_cell(source: lessons.Source, text: str) -> str:
    """Where the cell that a message names stands in the lesson, with the line that it names."""
    found = re.search(r"cell (\S+?)(?:, line (\d+))?[,:]", text)
    first = source.lines.get(found[1].replace("-check-", "-exercise-")) if found else None
    return f"{source.name}:{first + int(found[2] or 0)}" if first else source.name


def refuted(source: lessons.Source) -> tuple[int, list[str]]:
    """How many claims one run of the draft makes, and a line for each that does not hold."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{source.path.stem}.ipynb"
        path.write_text(nbformat.writes(views.all_views(source)["lesson"]), "utf-8")
        claims, lines = sweep.tried(path, sweep.DRAFT_RUN)
    return len(claims), lines


def claim_rows(source: lessons.Source, lines: list[str]) -> list[Row]:
    """A row for each claim that does not hold; a cell that failed is named by its error."""
    found = []
    for line in lines:
        stopped = "a cell failed" in line
        says = line.strip().splitlines()[-1] if stopped else line
        found.append(Row(rows.line_of(source.path, "" if stopped else line.partition(": ")[0]),
                         f"at {sweep.DRAFT_RUN}: {says}" if stopped else
                         f"{says}. A claim holds for every seed: claim less, or measure more."))
    return found


# ---- the check

# What a proof says, by a part of it, and what to do about it.
DO = {
    "mutant lives": "Your check lets this change of the worked answer pass. Add a case that fails "
                    'on it; where it is right on every input, ex.equivalent("...", "why").',
    "a reason for a mutant that dies": "Drop its ex.equivalent: a case fails on it.",
    "a forged outcome": "The law stumbles over it: compare type and shape first, with an expect_ "
                        "function.",
    "is not wrong": "No case tells this answer from a right one: add the case that does.",
    "has not its name": "Two wrong answers fail alike on most cases: add a case that parts them, "
                        "or drop one.",
    "has not its trap": "Give it the trap that its message sends to.",
    "does not say": "Name with says= the phrase that it is told.",
    "fails by accident": "The law stumbled: compare type and shape first, with an expect_ "
                         "function.",
    "not by what it breaks": "Name the promise that decides this case in breaks=, add the case to "
                             "the cases= of its promise, or narrow the answer.",
    "of which no promise has the key": "Name the keys of promises.",
    "is accepted": "The law does not judge this part of what came back, or with a tolerance that "
                   "hides 2 %.",
}
REFUSED = "A right answer is refused: the law is too narrow, often a tolerance."
OWN = "The worked answer breaks your own law: find out which is wrong before you loosen one."


def proven(id: str, files: Files) -> list[Row]:
    """What contradicts the check of an exercise; where a file of it breaks, that alone."""
    with acting.standard_session():
        lines = guarded(lambda: proof.prove_in_full(id, proof.RIGHT_SEEDS)[1])
    return [lines] if isinstance(lines, Row) else proof_rows(id, files, lines)


def proof_rows(id: str, files: Files, lines: list[str]) -> list[Row]:
    """The lines of a proof as rows: of each answer the first one, from which others follow."""
    seen: dict[str, Row] = {}
    for line in lines:
        name = answer_in(id, line)
        seen.setdefault(name or line, proof_row(id, files, line, name))
    return list(seen.values())


def guarded(run: Callable[[], list[str]]) -> list[str] | Row:
    """What `run` returns, or the row of the error in a contributor's file that stopped it."""
    try:
        return run()
    except (Exception, SystemExit) as error:
        first = error.__cause__ or error  # a file that cannot be imported ends in SystemExit
        lines = [(frame.filename, frame.lineno)
                 for frame in traceback.extract_tb(first.__traceback__)]
        if isinstance(first, SyntaxError):  # a file that cannot be parsed runs no line
            lines.append((first.filename or "", first.lineno))
        ours = [f"{Path(name).relative_to(ROOT)}:{number}" for name, number in lines
                if "src/dlsys_checks/" in name or "tests/right_answers/" in name]
        if not ours:
            raise
        return Row(ours[-1], f"{type(first).__name__}: {first}")


def plain(line: str) -> str:
    """A line of a proof with its verdict as a sentence."""
    text, verdict, facts = line.partition(": Verdict(")
    told = re.search(r"message=(['\"])(.*?)\1, misconception=(['\"])(.*?)\3, ", facts)
    if not verdict or not told:
        return line
    taken = f"; it was taken for: {told[4]}" if "not its name" in text and told[4] else ""
    return f"{text}{taken}" if not told[2] else f"{text}{taken}. It was told: {told[2]}"


def sentences(says: str, remedy: str) -> str:
    return f"{says.rstrip('. ')}. {remedy}"


def answers_of(id: str) -> dict[str, Any]:
    """All that a file of this exercise names and a proof speaks of, by name."""
    exercise = solutions.beside(id)
    answers = {one.name: one.fn for one in (*exercise.wrong_answers, *exercise.probes)}
    return answers | {**exercise.right_answers} | dict.fromkeys([proof.WORKED])


def answer_in(id: str, line: str) -> str:
    """The answer that a line of a proof is about; "" for none."""
    found = (name for name in answers_of(id) if line.startswith(f"{id}, {name}: "))
    return max(found, key=len, default="")


def what_to_do(line: str) -> str:
    return next((remedy for part, remedy in DO.items() if part in line), "")


def proof_row(id: str, files: Files, line: str, name: str) -> Row:
    """A line of a proof with the place where its answer stands, and what to do."""
    exercise, says = registry.find(id), plain(line.removeprefix(id).lstrip(",: "))
    remedy = what_to_do(line)
    if name == proof.WORKED:
        return Row(rows.line_of(files.lesson, f"def {exercise.function}("), sentences(says, OWN))
    if name in exercise.right_answers:
        return Row(rows.line_of(files.right, f'"{name}'), sentences(says, remedy or REFUSED))
    if "a reason for a mutant" in line:
        return Row(rows.line_of(files.right, line.rpartition("dies: ")[2]),
                   sentences(says, remedy))
    anchor = "@ex.cases" if "mutant lives" in line else "@ex.law"
    path = files.right if name and name in {one.name for one in exercise.probes} else files.check
    words = (f'"{name}',) if name else (anchor,)
    return Row(rows.line_of(path, *words), sentences(says, remedy))


# ---- tests

# The tests whose question the proof has asked in full.
COVERED = {"test_reference_passes_on_many_seeds", "test_right_answers_by_other_routes_pass",
           "test_wrong_answer_fails_for_its_own_reason_on_every_seed",
           "test_law_compares_shape_dtype_and_values_of_everything_it_receives",
           "test_no_function_of_a_check_passes_as_it_stands"}


class Told(NamedTuple):
    """What a failed test means: the file, a word of the line to edit, and what to do."""

    file: str  # a field of Files
    word: str
    remedy: str


TOLD = {
    "test_stub_is_todo": Told("lesson", "# BEGIN SOLUTION", "Keep the answer inside the solution "
                              "region: the worksheet's stub must be unfinished."),
    "test_promises_cover_the_docstring": Told(
        "check", "ex.promise", "Promises and docstring hold the same words, each word once: copy "
        "the sentence from the exercise, or drop it there."),
    "test_each_promise_has_its_cases_and_an_answer_that_breaks_it_alone": Told(
        "check", "ex.wrong", "Write an answer that is wrong only there, such as one that forgets "
        "a single row; where no learner would write it, it is an ex.probe in the other file."),
    "test_at_least_four_named_wrong_answers": Told(
        "check", "ex.wrong", "Name four wrong answers or more, each once."),
    "test_constant_answers_fail": Told(
        "check", "@ex.cases", "An answer that ignores its input passes: draw other cases."),
    "test_same_seed_same_cases_other_seed_other_cases": Told(
        "check", "@ex.cases", "Draw the cases from the generator g, and from nothing else."),
    "test_cases_are_plain_data": Told(
        "check", "@ex.cases", "Inputs are numbers, texts, tensors, and lists, tuples and dicts of "
        "them."),
    "test_every_input_of_an_act_is_known": Told(
        "check", "seen=", "seen= names the inputs of the cases, all of them and no others."),
    "test_no_input_holds_what_comes_out": Told(
        "check", "@ex.cases", "An input of a case is a part of the answer: give less, or name in "
        "kept= what is only handed through."),
    "test_act_stands_alone": Told(
        "check", "@ex.act", "An act travels to a sandbox: it uses torch, nn, F, math, copy and "
        "library_calls, and no other function of the file."),
    "test_no_table_passes": Told(
        "check", "@ex.cases", "Who remembers the cases of one seed passes: vary numbers and shapes "
        "from seed to seed."),
    "test_a_trap_has_four_questions_or_more": Told(
        "questions", "", "Write four questions about the trap, or more."),
    "test_answers_are_taken_and_beliefs_refused_on_many_seeds": Told(
        "questions", "", "A belief is never close enough to count as right, a choice has three to "
        "five options, and a reason ends with a full stop."),
    "test_a_seed_fixes_a_question_and_another_one_draws_anew": Told(
        "questions", "", "Draw more than two different texts, from rng alone."),
}


class OfTrap:
    """Plugin of pytest: keeps the tests of one exercise, and notes those that fail."""

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


def tested(id: str, files: Files) -> tuple[int, list[Row]]:
    """How many tests of this exercise ran, and a row for each that fails."""
    plugin = OfTrap(id)
    options = ["-q", "-p", "no:cacheprovider", "-o", "verbosity_assertions=2",
               "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # this process has used plugins
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = pytest.main([*options, *(str(ROOT / "tests" / name) for name in TEST_FILES)],
                             plugins=[plugin])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not plugin.failed:
        raise SystemExit(f"try: the tests did not run.\n{said.getvalue()[-2000:]}")
    return plugin.ran, [test_row(id, files, name, text) for name, text in plugin.failed.items()]


def test_row(id: str, files: Files, name: str, message: str) -> Row:
    """A failed test as a row: the promise or case that its message begins with, else its file."""
    says = essence(message)
    told = TOLD.get(name, Told("check", "", f"See {name} in tests/."))
    path = getattr(files, told.file)
    key = says.partition(":")[0]
    words = (f'("{key}"', f"{key} ") if name.startswith("test_promises") else ()
    if told.file == "questions":
        return Row(place_of_question(path, id, says), sentences(says, told.remedy))
    return Row(rows.line_of(path, *words, told.word), sentences(says, told.remedy))


def place_of_question(path: Path, id: str, says: str) -> str:
    """Where the question begins that a message names, "05.6, question 2"; else the first one."""
    found = re.search(rf"{re.escape(id)}, question (\d+)", says)
    text = path.read_text("utf-8")
    begins = [text[:one.start()].count("\n") + 1
              for one in re.finditer(rf'^@?asks?\("{re.escape(id)}"', text, re.M)]
    name = rows.line_of(path)
    return f"{name}:{begins[int(found[1]) - 1 if found else 0]}" if begins else name


def essence(message: str) -> str:
    """What an assertion said: its own message, or the list that should have been empty."""
    text = message.removeprefix("AssertionError: ")
    own = text.partition("\nassert ")[0].strip()
    if found := re.match(r"assert (\[.*\]) == \[\]$", own.partition("\n")[0]):
        with contextlib.suppress(ValueError, SyntaxError):
            return "; ".join(map(str, ast.literal_eval(found[1])))
    return own.partition("\n")[0] if own.startswith("assert ") else own


# ---- the linter

def changed_files() -> list[str]:
    """The Python files that differ from the last commit, new ones included."""
    done = subprocess.run(["git", "ls-files", "--modified", "--others", "--exclude-standard",
                           "--", "*.py"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.split("\n") if done.returncode == 0 else []


def linted(names: list[str]) -> list[Row]:
    """What the linter says of these files, with its rule by name, such as E501."""
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


def missing(id: str) -> Iterator[Row]:
    """All that a trap lacks, with a line on the screen for each step."""
    console, files = rows.screen(), files_of(id)
    try:
        source = lessons.read(files.lesson, draft=True)
    except lessons.RuleBroken as broken:
        yield Row(broken.place, str(broken).partition(": ")[2])
        console.print("The rest waits: the lesson cannot be built with this.")
        return
    with ThreadPoolExecutor(1) as pool:
        claims = pool.submit(refuted, source)
        with rows.step(console, "draft") as say:
            found = built(source)
            say(f"built in drafts/, {rows.count(found, 'thing')} missing")
        yield from found
        with rows.step(console, "check") as say:
            found = proven(id, files)
            say(f"tried with its mutants, {rows.count(found, 'objection')}")
        yield from found
        with rows.step(console, "tests") as say:
            ran, found = tested(id, files)
            say(f"{ran} of the exercise and its questions, {len(found)} failed")
        yield from found
        with rows.step(console, "linter") as say:
            found = linted([*files.names(), *changed_files()])
            say(rows.count(found, "complaint"))
        yield from found
        with rows.step(console, "claims") as say:
            count, lines = claims.result()
            say(f"{count} at {sweep.DRAFT_RUN}, {len(lines)} do not hold")
        yield from claim_rows(source, lines)


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
    files = files_of(id)
    found = rows.in_order(missing(id), files.names())
    if found:
        rows.show(rows.screen(), found)
        sys.exit(1)
    print(f"Trap {id} lacks nothing. Next: make finish LESSON={id[:2]}")


if __name__ == "__main__":
    main()
