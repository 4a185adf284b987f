"""`dlsys grade`: the instructor's command.

    dlsys grade submissions.zip --out grades

Nothing slow is imported before the command runs.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.util
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlsys.grading.options import GradeOptions
from dlsys.grading.text import clean, first_few
from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import NUMBERS
from dlsys_helpers.timeouts import SECONDS

if TYPE_CHECKING:
    from dlsys.grading.books.journal import Journal
    from dlsys.grading.books.people import Result
    from dlsys.grading.books.submissions import Found
    from dlsys.grading.cohort import Workers

_OF_DISKS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
DONE, NOT_ALL, BAD_INPUT = 0, 1, 2
NEEDS = ("cryptography", "distributed", "jinja2")  # the extra "grade" of pyproject.toml


def add_parser(commands: Any) -> None:
    """Add `grade` to the subcommands of `dlsys`."""
    parser = commands.add_parser(
        "grade", help="grade the notebooks of a class in a sandbox",
        epilog="Put points and comments of your own into overrides.csv in the folder of the run: "
               "learner,exercise,points,comment. One page over several runs: dlsys term.")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH",
                        help="a notebook, a folder, a zip, or a download from Canvas or Moodle")
    parser.add_argument("--out", type=Path, default=Path("grades"), metavar="FOLDER",
                        help="where the results go (default: grades)")
    parser.add_argument("--resume", action="store_true",
                        help="continue the run in FOLDER; nothing is graded twice")
    parser.add_argument("--regrade", action="append", default=[], metavar="NAME",
                        help="with --resume: grade this learner again, for example after you "
                             "installed a package; a finished run uses different cases")
    parser.add_argument("--stage", type=int, choices=NUMBERS, metavar="N",
                        help="grade everything as stage N, whatever the notebooks say")
    parser.add_argument("--model", action="store_true",
                        help="also grade each my_parts.py, the parts of Your model; in "
                             "gradebooks it is stage 90")
    parser.add_argument("--workers", type=_count, default=os.cpu_count(), metavar="N",
                        help="processes on this machine (default: one for each core)")
    parser.add_argument("--scheduler", metavar="ADDRESS",
                        help="use the workers of this Dask scheduler, such as tls://host:8786")
    for part in ("ca", "cert", "key"):
        parser.add_argument(f"--tls-{part}", type=Path, metavar="FILE",
                            help=f"for a tls:// scheduler: the {part} file")
    parser.add_argument("--sandbox", choices=("auto", "none"), default="auto",
                        help="none: run the learners' code without protection, with your rights")
    parser.add_argument("--seconds", type=amount, metavar="S",
                        help=f"time limit for one cell or exercise (default {SECONDS})")
    parser.add_argument("--memory", type=amount, metavar="GIB",
                        help="memory for one submission (default 2)")
    parser.add_argument("--key", type=Path, metavar="GRADES.JSON",
                        help="draw the same cases as the run recorded there")
    parser.add_argument("--exam", type=Path, metavar="FOLDER",
                        help="grade exam sheets by the key and the record in this folder, which "
                             "dlsys exam serve made")
    parser.add_argument("--partial", action=argparse.BooleanOptionalAction,
                        help="points for the promises of the docstring that an answer keeps, "
                             "rounded down to half a point (default: all or none)")
    course = parser.add_mutually_exclusive_group()
    course.add_argument("--course", type=Path, metavar="TOML",
                        help="what was asked for, due dates and late deductions, with "
                             "extensions.csv next to it (default: the course.toml in this folder "
                             "or next to the submissions)")
    course.add_argument("--no-course", action="store_true",
                        help="every exercise of a stage counts, and nothing is late")
    parser.add_argument("--canvas", nargs=2, action="append", default=[],
                        metavar=("CSV", "COLUMN"),
                        help="fill in this column of a gradebook downloaded from Canvas; for "
                             'several stages use "Stage {stage}", or repeat the option with '
                             '"2=COLUMN"')
    parser.add_argument("--moodle", action="append", default=[], metavar="[N=]CSV",
                        help="fill in a grading worksheet downloaded from Moodle, English or "
                             "German; for several stages repeat the option, with 2=CSV")
    parser.set_defaults(run=run)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"got {text}, expected a whole number of 1 or more")
    return int(text)


def amount(text: str, below: float = 100_000) -> float:
    """An argument's number above 0. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < below:
        bound = f", below {below:g}" if below < math.inf else ""
        raise argparse.ArgumentTypeError(f"got {text}, expected a number above 0{bound}")
    return value


def run(args: argparse.Namespace) -> int:
    """Grade, write all reports, show the table: 0, 1 when some were not graded, 2 for a bad disk.

    Raises UserError for all other bad input.
    """
    if missing := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
        raise UserError(f"grade: got no {', '.join(missing)}. Install what the grader needs: make "
                        "setup, or: pip install -e '.[grade]'")
    from dlsys.grading.books import course_file
    from dlsys.grading.books.run_folder import JOURNAL

    options, told = course_file.looked_for(GradeOptions.read(args))
    if options.exam:
        from dlsys import exam_desk
        exam_desk.of_class(options.exam)  # fails here, before the work
    try:
        return grade(options, told)
    except OSError as error:  # a full disk, a folder that is a file, ...
        at_disk = error.filename or (options.out if error.errno in _OF_DISKS else "this machine")
        print(f"dlsys grade: {clean(at_disk)}: {error.strerror or error}. What was graded is "
              "kept. Fix this and add --resume, or give a different folder: --out",
              file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        kept = (f"what is graded is kept. Go on with: dlsys grade ... --out {options.out} --resume"
                if (options.out / JOURNAL).exists() else "nothing was graded yet.")
        print(f"\nStopped; {kept}", file=sys.stderr)
        return 130


def grade(options: GradeOptions, told: Sequence[str] = ()) -> int:
    """Grade, write all reports, show the table. told: lines for it. Raises UserError, OSError."""
    from dlsys.grading import cohort
    from dlsys.grading.books import due, given, pages, reports, scoring, summary
    from dlsys.grading.books.journal import Journal

    # A file that cannot be read raises its error before the work.
    gradebooks = given.read(options)
    rules = scoring.rules(options, gradebooks.names, gradebooks.times, gradebooks.places)
    found = _submissions(options)
    names = [one.name for one in found.submissions]
    with contextlib.closing(Journal.open(options, names, gradebooks.names)) as journal:
        given.keep(options, gradebooks)
        with Progress(len(names)) as progress, ctrl_c() as stop_if_pressed:
            def on_result(_: Result) -> None:
                progress.step()
                stop_if_pressed()
            workers = _workers(options, journal, len(names))
            grades = cohort.grade_all(found.submissions, journal, workers, on_result, rules)
        lines = [*told]
        lines += _about_the_call(options, gradebooks.reused, found.left_out, journal.unfinished)
        lines += due.remarks(grades["results"], rules.course)
        lines += scoring.remarks(grades["results"], rules)
        reports.write_all(grades, options.out)
        pages.write_all(grades, options.out)
        try:
            filled = gradebooks.write(grades["results"], options.out, lines.append, rules.stages)
        finally:
            summary.show(grades, options.out, lines)
    if not filled:
        return BAD_INPUT
    graded = all(result["status"] == "graded" for result in grades["results"])
    return DONE if graded else NOT_ALL


def _submissions(options: GradeOptions) -> Found:
    """What was handed in. Raises RunError if there is nothing."""
    from dlsys.grading.books import submissions
    from dlsys.grading.books.run_folder import RunError

    if options.model and not importlib.util.find_spec("dlsys_model.rehearsal"):
        raise RunError("--model: this class's wheel was handed out without Your model. Install "
                       "the course's wheel, or one of dlsys release --model.")
    found = submissions.find(options.paths, options.out, options.model)
    if not found.submissions:
        raise RunError("no notebook found. Give a notebook, a folder or a zip.")
    return found


def _about_the_call(options: GradeOptions, reused: str, left_out: list[str],
                    unfinished: frozenset[str]) -> list[str]:
    """What the instructor should know about this call, whatever its results are."""
    lines = [reused] if reused else []
    if left_out:
        files = "file" if len(left_out) == 1 else "files"
        lines.append(f"No notebooks, and left out: {len(left_out)} {files} "
                     f"({first_few(left_out)}).")
    if options.cases_of:
        lines.append(f"The cases are those of {options.cases_of}: anyone who has read its "
                     "feedback may know something about them.")
    if options.walled and root_is_not_needed():
        lines.append("Graded as root, which the sandbox does not need: on this system, ordinary "
                     "users can set it up as well.")
    if unfinished:
        lines.append("Begun before and not finished, so graded last, in a process of its own: "
                     f"{first_few(sorted(unfinished))}.")
    return lines


def root_is_not_needed() -> bool:
    """Whether root grades on a system that lets ordinary users have the walls."""
    from dlsys.grading.walls import isolation

    return os.geteuid() == 0 and isolation.forbidding_setting() is None


def warn_without_tls(address: str) -> None:
    """Warn, before anything is sent, of a scheduler that anyone can impersonate or talk to."""
    if not address.startswith("tls://"):
        print(f"dlsys grade: warning: {clean(address, 80)} is not encrypted. Anyone who reaches "
              "this scheduler can run code on its workers and read the key of this run. Use a "
              "tls:// address, unless nobody else can reach the network.", file=sys.stderr)


@contextlib.contextmanager
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Give a function that raises KeyboardInterrupt if Ctrl-C was pressed inside.

    Python's own KeyboardInterrupt can be lost, because Python drops what a destructor raises.
    """
    pressed = []

    def note(*_: Any) -> None:
        pressed.append(True)
        raise KeyboardInterrupt

    def look() -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield look
    finally:
        signal.signal(signal.SIGINT, before)


def _workers(options: GradeOptions, journal: Journal, n: int) -> Workers:
    """This process if one is enough; else Dask, here or on a cluster.

    A submission that was begun but not finished may kill its grader, so this process does not
    grade it.
    """
    from dlsys.grading import cohort

    settings = journal.settings
    if not options.scheduler and min(options.workers, n) == 1 and not journal.unfinished:
        return cohort.in_process(settings)
    from dlsys.grading import cluster
    if not options.scheduler:
        return cluster.local(settings, min(options.workers, n))
    warn_without_tls(options.scheduler)
    return cluster.remote(settings, options.scheduler, options.tls)


class Progress:
    """A bar with the rate and the time left, on standard error."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        self._bar = Progress(
            TextColumn("grading"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"), TimeElapsedColumn(), TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False), console=Console(stderr=True))
        self._task = self._bar.add_task("", total=total, rate="")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self) -> None:
        """One more submission is done."""
        speed = self._bar.tasks[0].finished_speed or self._bar.tasks[0].speed
        self._bar.update(self._task, advance=1,
                         rate=f"{speed * 60:.0f}/min" if speed else "")
