"""The command `dlsys`: start and check a worksheet, review it later, see progress, examine all.

Nothing slow is imported before a command needs it. A new command is one function that adds its
parser, listed in COMMANDS.
"""

import argparse
import json
import math
import os
import shutil
import sys
import textwrap
from collections import Counter
from functools import partial

from dlsys import (
    grading,
    my_parts,
    overview,
    reading_time,
    start_page,
    trap_names,
    update,
    windows,
    work_folder,
    worksheets,
)
from dlsys.answer import add_parser as add_answer
from dlsys.exam import add_parser as add_exam
from dlsys.find_command import add_parser as add_find
from dlsys.grading.books.term import add_parser as add_term
from dlsys.grading.command import add_parser as add_grade
from dlsys.grading.command import amount
from dlsys.grading.gradescope import add_parser as add_autograder
from dlsys.grading.text import clean
from dlsys.incident import add_parser as add_incident
from dlsys.lab import add_parser as add_lab
from dlsys.my_parts import add_parser as add_parts
from dlsys.placement import add_parser as add_placement
from dlsys.release import add_parser as add_release
from dlsys.review import add_parser as add_review
from dlsys.review_diff import add_parser as add_review_diff
from dlsys.room.command import add_join, add_leave, over_room
from dlsys.room.command import add_parser as add_room
from dlsys.slides import add_parser as add_slides
from dlsys.terminal import bold, new_table, say, styled
from dlsys_helpers import paths, progress, room_client
from dlsys_helpers.catalog import Trap
from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import SPAN, Stage
from dlsys_helpers.timeouts import SECONDS
from dlsys_helpers.verdicts import STATUSES, Verdict
from dlsys_same.command import add_parser as add_same
from dlsys_watch import command as watch

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
LONGEST = 2000  # characters of an error's line; a terminal wraps it
_STATE_STYLES = {start_page.SOLVED: STATUSES["pass"].style, start_page.UNTOUCHED: "dim",
                 start_page.TRIED: STATUSES["wrong"].style}


class Parser(argparse.ArgumentParser):
    """Reports bad input in one clear line, without the usage."""

    commands: tuple[str, ...] = ()

    def error(self, message: str):
        self.exit(BAD_INPUT, f"{self.prog}: {clean(message, LONGEST)}. See: {self.prog} --help\n")


# ---- dlsys start

def add_start(commands) -> None:
    parser = commands.add_parser("start", help="copy a lesson and worksheet to my-work/")
    parser.add_argument("stage", nargs="?", help=f"number of the stage, {SPAN}, or model for Your "
                                                 "model; without it, the start page")
    parser.add_argument("--copy", action="store_true",
                        help="make fresh copies next to existing ones")
    parser.add_argument("--core", action="store_true",
                        help="only the core path; --update adds the rest later")
    parser.add_argument("--update", action="store_true",
                        help="put your answers into the newest worksheet; the old one is kept")
    parser.set_defaults(run=run_start)


def run_start(args: argparse.Namespace) -> int:
    if args.stage is None:
        return run_start_page(args)
    if args.stage == "model":
        return run_start_model()
    if args.update:
        return run_update(args)
    stage = work_folder.stage_of(args.stage)
    started = work_folder.start(args.stage, copy=args.copy, core=args.core)
    worksheet, lesson = (f"{paths.MY_WORK.name}/{path.name}"
                         for path in (started.path, started.lesson))
    if started.created:
        print(f"Your worksheet is {worksheet}; your copy of the lesson is {lesson}.")
    else:
        print(f"{worksheet} already exists and is unchanged; the lesson is {lesson}. "
              f"For fresh ones next to them: dlsys start {args.stage} --copy"
              f"{' --core' if args.core else ''}")
    print(_length(stage, worksheets.is_core(started.path)))
    if not paths.MY_WORK.is_relative_to(paths.ROOT):
        print(f"Your folder is {paths.MY_WORK}")
    print(f"Open {lesson} in JupyterLab ({work_folder.open_lab()}). Check your answers in the "
          f"worksheet, or with: dlsys check {args.stage if not args.copy else worksheet}")
    for line in windows.left_out(stage.number):
        print(f"Note: {line}")
    return 0


def run_start_page(args: argparse.Namespace) -> int:
    if args.copy or args.core or args.update:
        raise UserError(f"start: got no stage, expected {SPAN}. Try: dlsys start 1")
    print(f"Your start page is {work_folder.start_page()}. Open it in JupyterLab "
          f"({work_folder.open_lab()}) or in VS Code.")
    return 0


def run_start_model() -> int:
    path, created = work_folder.start_model()
    shown = f"{paths.MY_WORK.name}/{path.name}"
    print(f"Your notebook is {shown}." if created
          else f"{shown} already exists and is unchanged.")
    print(f"Open it in JupyterLab ({work_folder.open_lab()}). "
          "To see which parts are yours: dlsys parts")
    return 0


def _length(stage: Stage, short: bool) -> str:
    """How long the stage takes, and where the rest is if the worksheet holds only the core path."""
    core, whole = reading_time.times(stage)
    if short:
        return (f"The worksheet has only the core path, which takes about {core}. To add the "
                f"rest to your answers: dlsys start {stage.number} --update")
    if core == whole:
        return f"The stage takes about {whole}."
    return f"The core path takes about {core}; the whole stage {whole}."


def run_update(args: argparse.Namespace) -> int:
    if args.copy:
        raise UserError("start: got --update and --copy, expected one of them.")
    updated = update.update(args.stage, core=args.core)
    for line in updated.lines:
        say(line)
    if updated.kept:
        say(f"{paths.MY_WORK.name}/{updated.path.name} is new and has no outputs; your old "
               f"one is kept as {paths.MY_WORK.name}/{update.KEPT}/{updated.kept.name}. "
               f"If it is open, reload it. Then: dlsys check {args.stage}")
    return 0


# ---- dlsys check

def add_check(commands) -> None:
    parser = commands.add_parser("check", help="run a worksheet and check all its exercises")
    parser.add_argument("notebook", help="a stage's number, an exercise such as 01.4, "
                                         "exam-a, or my-work/01_activations.ipynb")
    parser.add_argument("--all", action="store_true",
                        help="show a row for every exercise, including those off the core path")
    parser.add_argument("--limit", type=partial(amount, below=math.inf), default=SECONDS,
                        metavar="SECONDS",
                        help=f"time limit for one cell or check (default {SECONDS})")
    parser.add_argument("--json", action="store_true",
                        help="print the verdicts as JSON, with what was compared and the next hint")
    parser.set_defaults(run=run_check)


def run_check(args: argparse.Namespace) -> int:
    from dlsys import worksheet_runner

    asked = worksheets.exercise(args.notebook)
    worksheet = worksheets.read(worksheets.find(args.notebook))
    if asked:
        worksheet = worksheets.with_one_exercise(worksheet, asked)
    report = worksheet_runner.run(worksheet, args.limit)
    for id, verdict in report.verdicts.items():
        if verdict.status != "missing":
            progress.record(id, verdict.status, verdict.misconception)
    if over := over_room():
        print(over, file=sys.stderr)
    else:
        room_client.tell_verdicts(*report.verdicts.values())
    if args.json:
        print(json.dumps(_as_data(worksheet, report), indent=1))
    else:
        _show_check(worksheet, report, args.all)
    passed = all(verdict.status == "pass" for verdict in report.verdicts.values())
    return 0 if passed else FAILED


def _as_data(worksheet: worksheets.Worksheet, report) -> dict:
    """The report for a program or an assistant, without any solution."""
    rows = [exercise_data(exercise, report.verdicts[exercise.id])
            for exercise in worksheet.exercises]
    return {"worksheet": worksheet.path.name, "stage": worksheet.stage,
            "points": sum(row["points"] for row in rows),
            "possible": sum(row["possible"] for row in rows), "exercises": rows,
            "cells": [{"cell": number, "error": error}
                      for number, error in sorted(report.cell_errors.items())],
            "notes": worksheet.notes}


def exercise_data(exercise: Trap, verdict: Verdict) -> dict:
    """A verdict as data. law: what was compared; hint: a later one after each failure, or None."""
    solved = verdict.status == "pass"
    tries = max(progress.failures(exercise.id), 1)
    hint = None if solved else (exercise.hints[:tries] or (None,))[-1]
    return {"id": exercise.id, "name": exercise.name, "title": exercise.title,
            "core": exercise.core, "function": exercise.function,
            "verdict": verdict.status, "points": exercise.points if solved else 0,
            "possible": exercise.points, "law": verdict.law, "case": verdict.case,
            "message": verdict.message, "mistake": verdict.misconception,
            "read": verdict.trap or exercise.id, "hint": hint}


def _show_check(worksheet: worksheets.Worksheet, report, everything: bool) -> None:
    rows = sorted(worksheet.exercises, key=lambda exercise: not exercise.core)
    folded = [] if everything else _folded(rows, report.verdicts)
    shown = [exercise for exercise in rows if exercise not in folded]
    guessed = progress.guesses()
    names = {exercise.id: trap_names.shown_name(exercise, exercise.id in guessed or (
        report.verdicts[exercise.id].status == "pass")) for exercise in shown}
    width = max(map(len, names.values()), default=0)
    for exercise in shown:
        verdict = report.verdicts[exercise.id]
        look = STATUSES[verdict.status]
        say(bold(f"{exercise.id:<6}{names[exercise.id]:<{width}}"),
            styled(f" {look.mark} {verdict.status:<8}", look.style),
            f"{_earned([exercise], report)}/{exercise.points}")
        where = f'The case: "{verdict.case}".' if verdict.case else ""
        if found := clean(f"{verdict.message} {where} {verdict.see()}", LONGEST).strip():
            say(_paragraph(found))
    if folded:
        counts = Counter(STATUSES[report.verdicts[exercise.id].status].word for exercise in folded)
        said = ", ".join(f"{n} {word}" for word, n in counts.items())
        say(f"Off the core path: {said}. See them: dlsys check {worksheet.stage} --all")
    for number, error in sorted(report.cell_errors.items()):
        say(f"Code cell {number}: {error}")
    for note in worksheet.notes:
        say(f"Note: {note}")
    said = f"{_earned(rows, report)} of {_possible(rows)} points"
    core = [exercise for exercise in rows if exercise.core]
    if 0 < len(core) < len(rows):
        said += f", on the core path {_earned(core, report)} of {_possible(core)}"
    say(f"{said}.")


def _paragraph(words: str) -> str:
    """Text as wide as the terminal, a little indented, with an empty line after it."""
    columns = max(shutil.get_terminal_size((80, 24)).columns, 30)
    return textwrap.fill(words, columns - 1, initial_indent="  ", subsequent_indent="  ",
                         break_on_hyphens=False) + "\n"


def _folded(rows: list[Trap], verdicts: dict[str, Verdict]) -> list[Trap]:
    """The exercises that share one line: off the core path, and neither wrong nor stopped."""
    if not any(exercise.core for exercise in rows):
        return []
    return [exercise for exercise in rows if not exercise.core
            and verdicts[exercise.id].status in ("pass", "todo", "missing")]


def _earned(exercises: list[Trap], report) -> int:
    return sum(exercise.points for exercise in exercises
               if report.verdicts[exercise.id].status == "pass")


def _possible(exercises: list[Trap]) -> int:
    return sum(exercise.points for exercise in exercises)


# ---- dlsys progress

def add_progress(commands) -> None:
    parser = commands.add_parser("progress", help="show what you have solved and tried")
    parser.add_argument("--all", action="store_true",
                        help="show all traps, including those not started")
    parser.set_defaults(run=run_progress)


def run_progress(args: argparse.Namespace) -> int:
    rows = start_page.summary()
    begun = [row for row in rows if args.all or start_page.is_begun(row)]
    exams = start_page.exams()
    if begun or exams:
        table = new_table("trap", "name, and the last mistake", "guess", "exercise", "review",
                          "points")
        for row in begun:
            _add_stage(table, row, args.all)
        for exam in exams:
            _add_exam(table, exam)
        say(table)
        say("Guess and review: ✓ right, ✗ wrong, ? not measured yet; the latest one counts.")
    if (report := my_parts.report()) is not None:
        say(f"Your model: built, {report.parent.name}/{report.name}")
    say(_totals(rows))
    if not args.all:
        left = len(rows) - len(begun)
        say(f"{left} of {len(rows)} stages are not started. All traps: dlsys progress --all")
        for line in overview.next_steps():
            say(line)
    return 0


def _add_stage(table, row: start_page.StageState, everything: bool) -> None:
    """Add a stage's row and rows for its traps, either all or only those that were begun."""
    table.add_row(bold(f"{row.stage.number:02d}"), bold(row.stage.title), "",
                  "" if row.traps else "coming", "",
                  f"{row.points}/{row.possible}" if row.traps else "")
    shown = [one for one in row.traps if everything or start_page.touched(one)]
    for one in shown:
        core = " (core)" if one.trap.core else ""
        table.add_row(one.trap.id, _with_mistake(f"{one.shown}{core}", one.misconception),
                      _guess(one.guess), _state(one.state), _mark(one.review),
                      f"{one.points}/{one.trap.points}")
    if len(shown) < len(row.traps):
        table.add_row("", f"{len(row.traps) - len(shown)} more, not started", "", "", "", "")


def _with_mistake(name: str, mistake: str | None) -> str:
    return f"{name}\n  {clean(mistake)}" if mistake else name


def _state(state: str):
    return styled(f"{start_page.MARKS[state]} {state}", _STATE_STYLES[state])


def _guess(guess: dict):
    """A guess in a cell of the table: whether it was right, and how sure the learner was."""
    if not guess:
        return ""
    return _mark(guess["right"], "?", " sure" if guess["sure"] else " not sure")


def _mark(right: bool | None, unknown: str = "", more: str = ""):
    """✓ or ✗ in its colour, or `unknown` for None; `more` is printed after it."""
    if right is None:
        return f"{unknown}{more}"
    look = STATUSES["pass" if right else "wrong"]
    return styled(f"{look.mark}{more}", look.style)


def _add_exam(table, exam: start_page.StageState) -> None:
    """Rows for an exam sheet and its cases."""
    form = exam.stage.stem[3:].replace("_", "-")  # as `dlsys check` takes it: exam-a
    if start_page.is_at_desk(exam):
        table.add_row(bold(form), bold(exam.stage.title), "", start_page.AT_DESK, "", "")
        return
    table.add_row(bold(form), bold(exam.stage.title), "", "", "",
                  f"{exam.points}/{exam.possible}")
    for case in start_page.cases(exam):
        table.add_row("", _with_mistake(case.title, case.misconception), "", _state(case.state), "",
                      f"{case.points}/{case.possible}")


def _totals(rows: list) -> str:
    solved, traps = sum(row.solved for row in rows), sum(len(row.traps) for row in rows)
    points, possible = sum(row.points for row in rows), sum(row.possible for row in rows)
    return (f"{solved} of {traps} exercises solved, {points} of {possible} points."
            f"{overview.note_on_progress()}")


# ---- dlsys doctor

def add_watch(commands) -> None:
    """List `watch` in the help; `main` passes its arguments on unparsed."""
    commands.add_parser("watch", help="run your own training script and report silent faults")


def add_doctor(commands) -> None:
    parser = commands.add_parser("doctor", help="examine the installation and say how to fix it")
    parser.set_defaults(run=run_doctor)


def run_doctor(_: argparse.Namespace) -> int:
    from dlsys import doctor

    colours = {doctor.OK: "green", doctor.WARN: "yellow", doctor.FAIL: "red"}
    found = []
    for finding in doctor.findings():  # printed one by one: importing torch takes seconds
        say(styled(f"{finding.state:<5}", colours[finding.state]), finding.text)
        if finding.remedy:
            say(f"      {finding.remedy}")
        found.append(finding.state)
    return FAILED if doctor.FAIL in found else 0


COMMANDS = (add_start, add_lab, add_check, add_answer, add_review, add_placement, add_review_diff,
            add_incident, add_exam, add_parts, add_slides, add_room, add_join, add_leave,
            add_release, add_grade, add_term, add_autograder, add_progress, add_find, add_watch,
            add_same, add_doctor)


def parser() -> argparse.ArgumentParser:
    """The parser of `dlsys` with all its commands."""
    top = Parser(prog="dlsys", description="Deep Learning Systems: the learner's tools.")
    commands = top.add_subparsers(metavar="COMMAND", title="commands")
    for add in COMMANDS:
        add(commands)
    top.commands = tuple(commands.choices)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run `dlsys`; returns 0, 1 (not all passed, or a FAIL), 2 (bad input) or 130 (Ctrl-C)."""
    asked = sys.argv[1:] if argv is None else argv
    if asked[:1] == ["watch"]:  # the user's program: its errors and exit status pass through
        return watch.main(asked[1:])
    if getattr(sys.stdout, "errors", "") == "strict":  # a pipe on Windows has a small code page
        sys.stdout.reconfigure(errors="replace")
    try:
        if asked[:1] in (["grade"], ["term"]):
            grading.refuse_windows()  # before its --help as well
        top = parser()
        if asked and asked[0][:1] != "-" and asked[0] not in top.commands:
            raise UserError(overview.unknown(asked[0], top.commands))
        args = top.parse_args(asked)
        if "run" not in args:
            overview.show()
            return 0
        code = args.run(args)
        if sys.stdout:  # none if it was closed
            sys.stdout.flush()  # inside the try: raises BrokenPipeError if the reader is gone
        return code
    except UserError as error:
        print(f"dlsys: {clean(error, LONGEST)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("\nStopped. Nothing was changed.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe, as in `dlsys answer 01.4 | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at exit
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
