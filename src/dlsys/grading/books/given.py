"""What the instructor passes to a run: a course, and gradebooks, read once, filled in at the end.

Gradebooks have people's names and Moodle's times, so the run's folder keeps copies. Without them,
--resume would drop the deductions for late submissions and leave a gradebook that contradicts the
other files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dlsys.grading.books import gradebooks
from dlsys.grading.books.gradebooks import Sheet
from dlsys.grading.books.people import Result
from dlsys.grading.books.run_folder import COMMENTS, COURSE, EXTENSIONS, GIVEN, RunError
from dlsys.grading.books.scoring import best, without_points
from dlsys.grading.books.strays import Place
from dlsys.grading.options import GradeOptions
from dlsys.grading.text import first_few
from dlsys_files.private_file import write_private

CANVAS, COLUMNS = "canvas.csv", "columns.json"
_MOODLE = re.compile(r"moodle(?:_(\d+))?\.csv")
_FILLED = re.compile(r"canvas\.csv|moodle(?:_\d+)?\.csv")


@dataclass(frozen=True)
class FilledGradebook:
    """A gradebook with the points of this run: its file's name, the text, a line about it."""

    name: str
    content: str
    line: str


@dataclass(frozen=True)
class Gradebooks:
    """The gradebooks of one run.

    columns: the columns of Canvas's gradebook to fill in. moodle: worksheets by stage; None is the
    key of the only one. names: people's names by source and id. times: Moodle's cells with
    the hand-in time, by source, id and stage. reused: a line about what the run was given before.
    """

    canvas: Sheet | None = None
    columns: tuple[str, ...] = ()
    moodle: dict[int | None, Sheet] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    times: dict[tuple[str, str, int | None], str] = field(default_factory=dict)
    reused: str = ""

    @property
    def places(self) -> tuple[Place, ...]:
        """Where the points of each LMS go."""
        found = []
        if self.canvas:
            found.append(Place("canvas", gradebooks.ids(self.canvas, "canvas"),
                               *gradebooks.stages_of(self.columns)))
        if self.moodle:
            people = [gradebooks.ids(sheet, "moodle") for sheet in self.moodle.values()]
            stages = None if None in self.moodle else frozenset(filter(None, self.moodle))
            found.append(Place("moodle", frozenset().union(*people), stages))
        return tuple(found)

    def fill(self, results: Sequence[Result], asked: Collection[int] = ()
             ) -> tuple[list[FilledGradebook], list[str]]:
        """The gradebooks with these results filled in, and a line about each that cannot be filled.

        Raises RunError.
        """
        counted, refused = best(results), without_points(results)
        filled, open_ones = [], []
        if self.canvas:
            try:
                made = gradebooks.fill_canvas(counted, self.canvas, self.columns, asked)
                filled.append(FilledGradebook(CANVAS, made.text, line_about(CANVAS, counted, made)))
            except gradebooks.NoStage as error:
                column = self.columns[0]
                open_ones.append(f"{CANVAS}: {error} --canvas {self.canvas.path} "
                                 f'"{error.main}={column}"')
        comments = sum(r["learner"]["source"] == "moodle" for r in refused)
        also = f" {comments} not graded get only a comment." if comments else ""
        for stage, sheet in self.moodle.items():
            mine, name = [r for r in counted if stage in (None, r["stage"])], moodle_file(stage)
            try:
                made = gradebooks.fill_moodle(mine, sheet, refused, asked)
                filled.append(FilledGradebook(name, made.text, line_about(name, mine, made) + also))
            except gradebooks.NoStage as error:
                open_ones.append(f"{name}: {error} --moodle {error.main}={sheet.path}")
        return filled, open_ones

    def write(self, results: Sequence[Result], out: Path, tell: Callable[[str], None],
              asked: Collection[int] = ()) -> bool:
        """Fill in the gradebooks, write them into the run's folder, and keep copies of them.

        tell: takes a line about each, and one about what this call did not fill in. asked: the
        stages that were asked for. Returns whether all were filled in; if not, the copies stay as
        they are. Raises RunError.
        """
        written = set()
        try:
            made, open_ones = self.fill(results, asked)
            for filled in made:
                write_private(out / filled.name, filled.content)
                written.add(filled.name)
                tell(filled.line)
            for line in open_ones:
                tell(line)
            if not open_ones:
                self.keep(out)
            return not open_ones
        finally:
            for line in _left_behind(out, written):
                tell(line)

    def keep(self, out: Path) -> None:
        """Copy these gradebooks into the run's folder, and remove all other copies there."""
        folder = out / GIVEN
        files = {moodle_file(stage): sheet.data for stage, sheet in self.moodle.items()}
        if self.canvas:
            files[CANVAS] = self.canvas.data
            files[COLUMNS] = json.dumps(self.columns).encode()
        if files:
            folder.mkdir(mode=0o700, exist_ok=True)
        for path in folder.glob("*"):
            if path.name not in files and (_FILLED.fullmatch(path.name) or path.name == COLUMNS):
                path.unlink()
        for name, content in files.items():
            write_private(folder / name, content)


def read(options: GradeOptions) -> Gradebooks:
    """The gradebooks of this call, and those that its run was given before. Raises RunError.

    A Canvas gradebook replaces the earlier one, a Moodle sheet the earlier one for its stage. A
    gradebook that cannot be filled in raises the error now, not after an hour of work.
    """
    canvas, moodle, reused = options.canvas, options.moodle, []
    folder = options.out / GIVEN
    if options.resume and not canvas and (folder / CANVAS).exists():
        canvas = tuple((folder / CANVAS, column) for column in _columns(folder / COLUMNS))
        reused.append(CANVAS)
    if options.resume:
        kept = _kept_sheets(folder, {stage for stage, _ in moodle})
        moodle += kept
        reused += [path.name for _, path in kept]
    if len(books := {book.resolve() for book, _ in canvas}) > 1:
        raise RunError(f"--canvas: got {len(books)} gradebooks, expected one, because Canvas has "
                       "one for a course. It may be given with several columns.")
    if len({stage for stage, _ in moodle}) < len(moodle):
        raise RunError("--moodle: got two sheets for one stage, expected one for each: "
                       "--moodle 1=CSV --moodle 2=CSV")
    return _read(canvas, moodle,
                 f"Given before and used again: {folder}, {', '.join(reused)}." if reused else "")


def _read(canvas: tuple[tuple[Path, str], ...], moodle: tuple[tuple[int | None, Path], ...],
          reused: str) -> Gradebooks:
    book = gradebooks.read(canvas[0][0]) if canvas else None
    names = gradebooks.canvas_names(book) if book else {}
    sheets: dict[int | None, Sheet] = {}
    times: dict[tuple[str, str, int | None], str] = {}
    for stage, path in moodle:
        sheets[stage] = sheet = gradebooks.read(path)
        names |= {("moodle", id): name for id, name in gradebooks.moodle_names(sheet).items()}
        times |= {("moodle", id, stage): cell
                  for id, cell in gradebooks.moodle_times(sheet).items()}
    found = Gradebooks(book, tuple(column for _, column in canvas), sheets, names, times, reused)
    found.fill([])
    return found


def keep(options: GradeOptions, given: Gradebooks) -> None:
    """Copy what the instructor gave into the run's folder before the work starts.

    Then --resume finds it after a kill. A resumed run replaces its gradebooks only after it has
    filled in the new ones.
    """
    if not options.resume:
        given.keep(options.out)
    course = options.course
    if not options.course_wanted:
        for name in (COURSE, EXTENSIONS):
            (options.out / name).unlink(missing_ok=True)
    if not course or course.resolve() == (options.out / COURSE).resolve():
        return
    for name, source in ((COURSE, course), (EXTENSIONS, course.with_name(EXTENSIONS)),
                         (COMMENTS, course.with_name(COMMENTS))):
        if source.exists():
            write_private(options.out / name, source.read_bytes())
        else:
            (options.out / name).unlink(missing_ok=True)


def _kept_sheets(folder: Path, given: set[int | None]) -> tuple[tuple[int | None, Path], ...]:
    """Moodle's sheets in the run's folder that do not overlap with those given now."""
    matches = {path: _MOODLE.fullmatch(path.name) for path in sorted(folder.glob("moodle*.csv"))}
    found = [(int(match[1]) if match[1] else None, path)
             for path, match in matches.items() if match]
    return tuple((stage, path) for stage, path in found
                 if not given or (stage is not None and not {None, stage} & given))


def moodle_file(stage: int | None) -> str:
    """The file's name for Moodle's sheet of a stage, or for the only sheet."""
    return "moodle.csv" if stage is None else f"moodle_{stage:02d}.csv"


def _columns(path: Path) -> list[str]:
    try:
        columns = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        columns = None
    if not (isinstance(columns, list) and columns and all(type(one) is str for one in columns)):
        raise RunError(f"{path}: got no list of columns. Give the gradebook again: --canvas CSV "
                       "COLUMN")
    return columns


def line_about(name: str, results: Sequence[Result], made: gradebooks.Filled) -> str:
    """How many learners' points are in a gradebook, who has no row in it, and who handed in
    a stage that its columns are not for; the list on top says what to do about these.
    """
    counted = len(results) - len(made.stray)
    filled = counted - len(made.absent) - len(made.twins)
    told = f"{name}: {filled} of {counted} learners filled in."
    if made.absent:
        told += f" Not in it: {first_few([one['learner']['name'] for one in made.absent])}."
    if made.stray:
        who = first_few([f"{one['learner']['name']} (stage {one['stage']})" for one in made.stray])
        told += f" Not filled in, because they are for a different stage: {who}."
    if made.twins:
        who = first_few([f"{one['name']} ({one['learner']['id']})" for one in made.twins])
        told += f" Not filled in, because several people share a number: {who}."
    return told


def _left_behind(out: Path, written: set[str]) -> list[str]:
    """A line if the folder has filled-in gradebooks that this call did not write."""
    names = sorted(path.name for path in out.glob("*.csv")
                   if _FILLED.fullmatch(path.name) and path.name not in written)
    return [f"Not filled in this time, so grades.csv may differ: {', '.join(names)}. "
            "Give --canvas or --moodle, or remove it."] if names else []
