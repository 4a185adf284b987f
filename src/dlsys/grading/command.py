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
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dlsys.grading.text import clean, some
from dlsys_files.notebook_reader import NO_WORKSHEET
from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import NUMBERS
from dlsys_helpers.timeouts import SECONDS
from dlsys_helpers.verdicts import STATUSES

_OF_DISKS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
DONE, NOT_ALL, BAD_INPUT = 0, 1, 2
MOST_ROWS = 60  # of the terminal's table; the files have all
GIB = 2.0
NEEDS = ("cryptography", "distributed", "jinja2")  # the extra "grade" of pyproject.toml


def add_parser(commands: Any) -> None:
    """Add `grade` to the subcommands of `dlsys`."""
    parser = commands.add_parser(
        "grade", help="grade notebooks of a class, sandboxed",
        epilog="Points and comments by hand go into overrides.csv in the folder of the run: "
               "learner,exercise,points,comment. One page over several runs: dlsys term.")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH",
                        help="notebook, folder, zip, or a download of Canvas or Moodle")
    parser.add_argument("--out", type=Path, default=Path("grades"), metavar="FOLDER",
                        help="where the results go (default: grades)")
    parser.add_argument("--resume", action="store_true",
                        help="go on with the run in FOLDER; nothing is graded twice")
    parser.add_argument("--regrade", action="append", default=[], metavar="NAME",
                        help="with --resume: grade this learner again, after an installation, say; "
                             "in a finished run on other cases")
    parser.add_argument("--stage", type=int, choices=NUMBERS, metavar="N",
                        help="grade all as stage N, whatever the notebooks say")
    parser.add_argument("--model", action="store_true",
                        help="grade each my_parts.py, too: the parts of Your model; its stage in "
                             "gradebooks is 90")
    parser.add_argument("--workers", type=_count, default=os.cpu_count(), metavar="N",
                        help="processes on this machine (default: one for each core)")
    parser.add_argument("--scheduler", metavar="ADDRESS",
                        help="use the workers of this Dask scheduler, such as tls://host:8786")
    for part in ("ca", "cert", "key"):
        parser.add_argument(f"--tls-{part}", metavar="FILE",
                            help=f"for a tls:// scheduler: the {part} file")
    parser.add_argument("--sandbox", choices=("auto", "none"), default="auto",
                        help="none: run the learners' code unprotected, as yourself")
    parser.add_argument("--seconds", type=amount, metavar="S",
                        help=f"longest time for one cell or exercise (default {SECONDS})")
    parser.add_argument("--memory", type=amount, metavar="GIB",
                        help="memory for one submission (default 2)")
    parser.add_argument("--key", type=Path, metavar="GRADES.JSON",
                        help="draw the same cases as the run recorded there")
    parser.add_argument("--partial", action=argparse.BooleanOptionalAction,
                        help="points for the promises of the docstring that an answer keeps, "
                             "rounded down to half a point (default: all or none)")
    parser.add_argument("--course", type=Path, metavar="TOML",
                        help="due dates and what a late submission costs; extensions.csv beside it")
    parser.add_argument("--canvas", nargs=2, action="append", default=[],
                        metavar=("CSV", "COLUMN"),
                        help="fill this column of a gradebook downloaded from Canvas; for several "
                             'stages "Stage {stage}", or the option again with "2=COLUMN"')
    parser.add_argument("--moodle", action="append", default=[], metavar="[N=]CSV",
                        help="fill in a grading worksheet downloaded from Moodle, English or "
                             "German; for several stages the option again, with 2=CSV")
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
    from dlsys.grading.cohort import JOURNAL

    try:
        return _grade(args)
    except OSError as error:  # a full disk, a folder that is a file, ...
        at_disk = error.filename or (args.out if error.errno in _OF_DISKS else "this machine")
        print(f"dlsys grade: {clean(at_disk)}: {error.strerror or error}. What "
              "is graded is kept; set this right and add --resume, or give another folder: --out",
              file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        kept = (f"what is graded is kept. Go on with: dlsys grade ... --out {args.out} --resume"
                if (args.out / JOURNAL).exists() else "nothing was graded yet.")
        print(f"\nStopped; {kept}", file=sys.stderr)
        return 130


def _grade(args: argparse.Namespace) -> int:
    from dlsys.grading import cohort, kept_gradebooks, options, pages, reports, submissions

    before = kept_gradebooks.again(args) if args.resume else ""
    rules = options.scoring(args)  # a file that cannot be read is known before the work
    if args.model and not importlib.util.find_spec("dlsys_model.rehearsal"):
        raise cohort.RunError("--model: this class's wheel was handed out without Your model. "
                              "Install the course's wheel, or one of dlsys release --model.")
    found = submissions.find(args.paths, args.out, args.model)
    if not found.submissions:
        raise cohort.RunError("no notebook found. Give a notebook, a folder or a zip.")
    options.fill(args, [])  # a gradebook that cannot be filled in is known before the work
    lines = [line for line in (before, _left_out(found.left_out)) if line]
    if args.key:
        lines.append(f"The cases are those of {args.key}: who has read its feedback may know "
                     "something about them.")
    with contextlib.closing(_journal(args)) as journal:
        journal.scoring = rules
        journal.expect(one.name for one in found.submissions)
        journal.forget(args.regrade)
        if journal.unfinished:
            lines.append("Begun before and not finished, so graded last, in a process that may "
                         f"end: {some(sorted(journal.unfinished))}.")
        if not args.resume:
            kept_gradebooks.keep(args)  # before the work, so that --resume finds them after a kill
        options.keep_course(args)
        n = len(found.submissions)
        with Progress(n) as progress, ctrl_c() as stop_if_pressed:
            def seen(result: dict[str, Any]) -> None:
                progress.step(result)
                stop_if_pressed()
            grades = cohort.grade_all(found.submissions, journal, _workers(args, journal, n), seen)
        reports.write_all(grades, args.out)
        pages.write_all(grades, args.out)
        lines += _about_dates(grades["results"], rules.course)
        written = []
        try:
            for name, content, line in options.fill(args, grades["results"]):
                cohort.write_private(args.out / name, content)
                written.append(name)
                lines.append(line)
            kept_gradebooks.keep(args)  # only what has served replaces what was kept
        finally:
            show(grades, args.out, [*lines, *kept_gradebooks.stale(args.out, written)])
    graded = all(result["status"] == "graded" for result in grades["results"])
    return DONE if graded else NOT_ALL


@contextlib.contextmanager
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Gives a function that raises KeyboardInterrupt where Ctrl-C was pressed inside.

    The one that Python raises at once can be lost: it drops what a destructor raises.
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


def _left_out(names: list[str]) -> str:
    if not names:
        return ""
    return (f"No notebooks, and left out: {len(names)} {'file' if len(names) == 1 else 'files'} "
            f"({some(names)}).")


def _journal(args: argparse.Namespace) -> Any:
    from dlsys.grading import cohort, isolation

    if args.regrade and not args.resume:
        raise cohort.RunError("--regrade: belongs to a run that stands: add --resume.")
    if not args.resume:
        seconds, gib = args.seconds or SECONDS, args.memory or GIB
        limits = isolation.Limits(seconds=seconds, total=isolation.TIMES * seconds,
                                  memory=int(gib * 2**30))
        key = _recorded_key(args.key) if args.key else cohort.fresh_key()
        return cohort.Journal.begin(
            args.out, cohort.Settings(key, limits, args.sandbox != "none", args.stage))
    journal = cohort.Journal.resume(args.out)
    try:
        _same_options(args, journal.settings)
    except cohort.RunError:
        journal.close()
        raise
    return journal


def _same_options(args: argparse.Namespace, begun: Any) -> None:
    """Raise RunError for an option whose value differs from the one the run was begun with."""
    from dlsys.grading.cohort import RunError

    asked = {"--seconds": (args.seconds, begun.limits.seconds),
             "--memory": (args.memory, begun.limits.memory / 2**30),
             "--stage": (args.stage, begun.stage),
             "--key": (args.key and _recorded_key(args.key), begun.key)}
    other = [name for name, (now, then) in asked.items() if now not in (None, then)]
    if begun.walled != (args.sandbox != "none"):
        other.append("--sandbox")
    if other:
        raise RunError(f"{args.out}: this run was begun with another {other[0]}. Resume it "
                       "without it, or begin another one: --out OTHER_FOLDER")


def _recorded_key(path: Path) -> str:
    import json

    from dlsys.grading.cohort import RunError
    try:
        key = json.loads(path.read_text(encoding="utf-8"))["run"]["settings"]["key"]
    except (OSError, ValueError, KeyError, TypeError):
        key = ""
    if not (isinstance(key, str) and re.fullmatch(r"[0-9a-f]{32}", key)):
        raise RunError(f"{path}: holds no run's key, expected a grades.json.")
    return key


def _workers(args: argparse.Namespace, journal: Any, n: int) -> Any:
    """One process for one submission; else Dask, here or on a cluster.

    What was begun and not finished may end the process that grades it, so that is not this one.
    """
    from dlsys.grading import cohort

    settings = journal.settings
    if not args.scheduler and min(args.workers, n) == 1 and not journal.unfinished:
        return cohort.in_process(settings)
    from dlsys.grading import cluster
    if not args.scheduler:
        return cluster.local(settings, min(args.workers, n))
    return cluster.remote(settings, args.scheduler, _security(args))


def _security(args: argparse.Namespace) -> Any:
    from distributed import Security

    from dlsys.grading.cohort import RunError
    if not args.scheduler.startswith("tls://"):
        return None
    if not (args.tls_ca and args.tls_cert and args.tls_key):
        raise RunError(f"{args.scheduler}: give --tls-ca, --tls-cert and --tls-key.")
    return Security(tls_ca_file=args.tls_ca, tls_client_cert=args.tls_cert,
                    tls_client_key=args.tls_key, require_encryption=True)


def _about_dates(results: list[dict], course: Any) -> list[str]:
    """What a due date could not be compared with, and extensions that meet nobody."""
    from dlsys.grading import due
    unknown = sum("due" in r and not r["due"]["handed_in"] for r in results)
    lines = [f"When was handed in is not known for {unknown} of {len(results)}: nothing is taken "
             f"off there. A time can be given in {due.EXTENSIONS}."] if unknown else []
    if strangers := due.unmet(results, course):
        lines.append(f"{due.EXTENSIONS}: nobody of this run answers to {some(strangers)}.")
    return lines


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

    def step(self, _: dict) -> None:
        """One more submission is done."""
        speed = self._bar.tasks[0].finished_speed or self._bar.tasks[0].speed
        self._bar.update(self._task, advance=1,
                         rate=f"{speed * 60:.0f}/min" if speed else "")


def show(grades: dict, folder: Path, lines: list[str]) -> None:
    """The table of results, what needs a look, and where the files are."""
    from rich.console import Console

    from dlsys.grading import reports

    console = Console(markup=False, highlight=False)
    results = grades["results"]
    rows = reports.once(results)
    console.print(_table(rows[:MOST_ROWS]))
    if len(rows) > MOST_ROWS:
        console.print(f"... and {len(rows) - MOST_ROWS} more in {folder / 'grades.csv'}")
    for line in [*_summary(results), *lines]:
        console.print(line, soft_wrap=True)
    console.print(f"Results: {folder / 'overview.html'}; the record: {folder / 'grades.json'}")


def _table(results: list[dict]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    table.add_column("learner", overflow="fold", ratio=2)
    table.add_column("stage", justify="right")
    table.add_column("exercises", no_wrap=True)
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("to look at", overflow="fold", ratio=3)
    for result in results:
        looks = [STATUSES[entry["status"]] for entry in result["exercises"]]
        marks = Text.assemble(*((look.mark, look.style) for look in looks))
        points = (f"{result['points']}/{result['possible']}" if result["status"] == "graded"
                  else Text(result["status"], "red"))
        table.add_row(Text(result["learner"]["name"]), str(result["stage"] or ""), marks, points,
                      Text(_look(result)))
    return table


def _look(result: dict) -> str:
    from dlsys.grading import people
    if result["status"] != "graded":
        return result["reason"]
    differing = [e["id"] for e in result["exercises"] if e["differs"]]
    differs = [f"notebook shows something else for {', '.join(differing)}"] if differing else []
    return " ".join([*differs, *people.noted(result)])


def _people(names: list[str]) -> str:
    return f"{len(names)} {'learner' if len(names) == 1 else 'learners'}"


def _summary(results: list[dict]) -> list[str]:
    from dlsys.grading import people, reports
    graded = [r for r in results if r["status"] == "graded"]
    walls = sorted({r["wall"] for r in graded})
    lines = [f"{len(graded)} of {len(results)} graded."] + [f"Sandbox: {w}." for w in walls]
    if any(r.get("reason") == NO_WORKSHEET for r in results):
        lines.append("If it is a worksheet that lost its metadata, say which: --stage N")
    times = Counter((people.owner(r), r["stage"]) for r in graded)
    if again := sorted({r["learner"]["name"] for r in graded
                        if times[people.owner(r), r["stage"]] > 1}):
        lines.append(f"Handed in more than once for a stage, the best counts: {some(again)}.")
    for name, pin, who in reports.missing_packages(results):
        lines.append(f"{_people(who)} {'need' if len(who) > 1 else 'needs'} the package {name}, "
                     f"which is not installed here: {some(who)}. "
                     + (f"Install it: pip install {pin}; then: --resume --regrade NAME" if pin else
                        "The course pins no such package, and anybody may write a name."))
    if who := reports.prying(results):
        lines.append(f"{_people(who)} asked for the checks, which the sandbox hides: {some(who)}. "
                     "Look at the code.")
    lines += [f"The same code in several hand-ins: {some(who)}." for who in reports.alike(results)]
    if graded:
        cpu = sum(r["cpu_seconds"] for r in graded) / len(graded)
        inside, judge = (max(r[key] for r in graded) for key in ("peak_mib", "judge_peak_mib"))
        lines.append(f"{cpu:.2f} CPU s for each; peak memory of a sandbox {inside} MiB, "
                     f"of a judge {judge} MiB.")
    return lines
