"""The options of `dlsys grade`: read from the command line once, and never changed."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TlsFiles:
    """The files for a scheduler behind tls://, each None if it was not given."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class GradeOptions:
    """One call of `dlsys grade`. For an option that is None, the run or a default decides.

    Which submissions and where the results go:
        paths, model: where to look, and whether a my_parts.py counts as a submission.
        out, resume, regrade: the run's folder, whether to resume the run there, and the
            names of learners to grade again.
        workers, scheduler, tls: processes on this machine, or the address of a Dask scheduler.

    How they are judged, which cannot change when a run is resumed:
        stage: grade everything as this stage.
        walled: False runs the learners' code unprotected.
        seconds, memory: the limits of a cell or an exercise, and of a submission in GiB.
        cases_of: a grades.json whose secret cases are drawn again.
        exam: the folder of the desk at which exam sheets were sat.

    How points are counted, which may change each time:
        partial: points for the promises that an answer keeps.
        course: a course.toml with due dates. course_wanted: False if the run is to have none.
        canvas: gradebooks of Canvas, each with a column: "Stage 1", "Stage {stage}", "2=Losses".
        moodle: grading worksheets of Moodle by stage; the stage is None for the only sheet.
    """

    paths: tuple[Path, ...]
    out: Path = Path("grades")
    resume: bool = False
    regrade: tuple[str, ...] = ()
    model: bool = False
    workers: int = 1
    scheduler: str = ""
    tls: TlsFiles = TlsFiles()
    stage: int | None = None
    walled: bool = True
    seconds: float | None = None
    memory: float | None = None
    cases_of: Path | None = None
    exam: Path | None = None
    partial: bool | None = None
    course: Path | None = None
    course_wanted: bool = True
    canvas: tuple[tuple[Path, str], ...] = ()
    moodle: tuple[tuple[int | None, Path], ...] = ()

    @staticmethod
    def read(args: argparse.Namespace) -> GradeOptions:
        """The options from what the parser of `dlsys grade` returned."""
        sheets = (stage_and_name(argument) for argument in args.moodle)
        return GradeOptions(
            paths=tuple(args.paths), out=args.out, resume=args.resume, regrade=tuple(args.regrade),
            model=args.model, workers=args.workers or 1, scheduler=args.scheduler or "",
            tls=TlsFiles(args.tls_ca, args.tls_cert, args.tls_key), stage=args.stage,
            walled=args.sandbox != "none", seconds=args.seconds, memory=args.memory,
            cases_of=args.key, exam=args.exam, partial=args.partial, course=args.course,
            course_wanted=not args.no_course,
            canvas=tuple((Path(book), column) for book, column in args.canvas),
            moodle=tuple((stage, Path(name)) for stage, name in sheets))


def stage_and_name(argument: str) -> tuple[int | None, str]:
    """An argument "2=NAME" as stage and name; the stage is None if the argument names none."""
    match = re.fullmatch(r"(\d{1,4})=(.+)", argument, re.S)
    return (int(match[1]), match[2]) if match else (None, argument)
