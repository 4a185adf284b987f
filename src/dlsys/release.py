"""`dlsys release 01 03 --due 2027-01-15 --out class`: the folder that a class gets.

It holds the worksheets, the lessons without outputs, INSTALL.md, and RELEASE.json, which says what
was given out. Next to the folder it writes course.toml, from which `dlsys grade` learns what
was asked for and when it is due. The folder contains no worked answer and no history, and *Your
model*, whose stand-ins solve some exercises, only with --model.
Lessons repair their own small cases, and some of those lines answer an exercise.
"""

import argparse
import datetime
import hashlib
import importlib.metadata as metadata
import json
import re
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path

from dlsys import assignments, class_course, class_wheel, work_folder
from dlsys_helpers import catalog, paths
from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import Stage

STAMP, HOW_TO = "RELEASE.json", "INSTALL.md"
PACKAGE = "dlsys-helpers"
BEGINS = "Run the cells below first"  # of a worksheet's first cell; the due date goes above it


class ReleaseError(UserError):
    """A folder for a class cannot be made. The message says what to do."""


def add_parser(commands) -> None:
    """Add `release` to the commands of `dlsys`."""
    parser = commands.add_parser("release", help="make the folder to hand out to a class")
    parser.add_argument("stages", nargs="+", metavar="STAGE", help="numbers of stages: 01 03")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER",
                        help="a new or empty folder")
    parser.add_argument("--due", metavar="DATE", help="shown in each worksheet: 2027-01-15, which "
                        "ends at 23:59 here, or 2027-01-15T18:00, or with a zone: +01:00")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--core", action="store_true", help="only the core path")
    some.add_argument("--exercises", metavar="IDS", help="only these exercises: 8.1,8.3")
    parser.add_argument("--course", type=Path, metavar="TOML",
                        help="where to write, for dlsys grade, what is due and when "
                        f"(default: {class_course.NAME} next to the folder)")
    parser.add_argument("--wheel", type=Path, metavar="FILE",
                        help="the course's wheel (make wheel), handed out with these stages only")
    parser.add_argument("--model", action="store_true",
                        help="keep Your model in the wheel; its stand-ins solve some exercises")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    stages = sorted({work_folder.stage_of(asked) for asked in args.stages})
    due, wheel = _date(args.due), args.wheel and wheel_at(args.wheel)
    asked = asked_for(stages, args.core, args.exercises)
    _refuse_taken(args.out)
    course = class_course.planned(args.course or args.out.absolute().parent / class_course.NAME,
                                  [stage.number for stage in stages], due, asked)
    stamp = {"version": metadata.version(PACKAGE), "due": due and due.isoformat(),
             "stages": [stage.number for stage in stages],
             "exercises": {str(number): ids for number, ids in asked.items()}}
    books = {name: book for stage in stages
             for name, book in _books(stage, args.core, asked.get(stage.number, ())).items()}
    stamp["content"] = _fingerprint(books)
    files = {name: _text(_stamped(book, stamp)) for name, book in books.items()}
    files[HOW_TO] = how_to(stages, stamp, wheel, packages(books.values()))
    files[STAMP] = json.dumps(stamp, indent=1) + "\n"
    _write(args.out, files, wheel, stamp["stages"], args.model)
    print(f"{args.out}: release {label(stamp)}, {len(files) + bool(wheel)} files.")
    if course:
        class_course.write(course)
        print(f"{course.path}: what was asked for and when. dlsys grade finds it in "
              f"the folder that you call it from, or next to the submissions.")
    if not wheel:
        print("Without the course's wheel a worksheet cannot check itself. Make one with make "
              "wheel and hand it out as well, or give --wheel FILE")
    return 0


def label(stamp: dict) -> str:
    """A release's name: the course's version and what its notebooks hold."""
    return f"{stamp['version']}-{stamp['content']}"


# ---- what is asked

def _date(text: str | None) -> datetime.datetime | None:
    """The due time: a date alone means 23:59, and a time without an offset is local."""
    if not text:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ReleaseError(f"--due: got {text[:40]!r}, expected a date such as 2027-01-15 or "
                           "2027-01-15T18:00+01:00.") from None
    if len(text) <= len("2027-01-15"):
        moment = moment.replace(hour=23, minute=59)
    return moment if moment.tzinfo else moment.astimezone()


def _exercises(text: str | None, stages: list[Stage]) -> dict[int, list[str]]:
    """Exercises by stage, from a list such as 8.1,8.3. Raises ReleaseError."""
    if text is None:
        return {}
    known = {trap.id: stage.number for stage in stages
             for trap in assignments.by_number(stage.number)}
    ids = [catalog.as_id(part) for part in text.split(",") if part.strip()]
    if odd := [id for id in ids if id not in known]:
        raise ReleaseError(f"--exercises: got {odd[0][:40]!r}, expected some of "
                           f"{', '.join(known)}.")
    asked = {stage.number: [id for id in known if id in ids and known[id] == stage.number]
             for stage in stages}
    if empty := [number for number, ids in asked.items() if not ids]:
        raise ReleaseError(f"--exercises: got none of stage {empty[0]}, expected one or more "
                           "from each stage. Leave the stage out, or add an exercise of it.")
    return asked


def asked_for(stages: list[Stage], core: bool, exercises: str | None) -> dict[int, list[str]]:
    """Exercises by stage if not all are asked for; else nothing. Raises ReleaseError."""
    return ({stage.number: work_folder.core_ids(stage) for stage in stages} if core
            else _exercises(exercises, stages))


def packages_of(stage: Stage) -> list[str]:
    """What pip has to install for a stage's worksheet."""
    return packages(_books(stage, False, ()).values()).split()


def wheel_at(path: Path) -> Path:
    """A wheel of this course. Raises ReleaseError for anything else."""
    own = f"{PACKAGE.replace('-', '_')}-"
    if not (path.name.startswith(own) and path.suffix == ".whl" and zipfile.is_zipfile(path)):
        raise ReleaseError(f"--wheel: got {str(path)[-80:]}, expected the file {own}*.whl that "
                           "make wheel puts into dist/.")
    return path


def _refuse_taken(out: Path) -> None:
    try:
        taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    except OSError as error:
        raise ReleaseError(f"{out}: cannot be read ({error.strerror}).") from None
    if taken:
        raise ReleaseError(f"{out}: is not empty, expected a new or empty folder. Nothing was "
                           "written. Give a different one: --out FOLDER")


# ---- what is in it

def _books(stage: Stage, core: bool, exercises: Collection[str]) -> dict[str, dict]:
    """A stage's worksheet and lesson, linked to each other, by file name.

    exercises: those of the worksheet; if empty, all. core: the lesson is short as well.
    """
    worksheet, lesson = f"{stage.stem}.ipynb", paths.lesson_copy(stage.number).name
    asked = json.loads(work_folder.worksheet_copy(
        work_folder.shipped(stage, paths.EXERCISES), stage, lesson, asked=exercises))
    told = json.loads(work_folder.lesson_copy(
        work_folder.shipped(stage, paths.NOTEBOOKS), stage, worksheet, core, exercises))
    for cell in told["cells"]:
        if cell["cell_type"] == "code":
            work_folder.empty(cell)
    return {worksheet: asked, lesson: told}


def _stamped(book: dict, stamp: dict) -> dict:
    """A notebook with the stamp in its metadata; a worksheet says on top when it is due."""
    facts = book["metadata"]["dlsys"]
    facts["release"] = label(stamp)
    if facts["view"] == "exercise" and stamp["due"]:
        show_due(book, stamp["due"])
    return book


def show_due(worksheet: dict, due: str) -> None:
    """Write when a worksheet is due into its first cell and its metadata."""
    worksheet["metadata"]["dlsys"]["due"] = due[:40]
    top = worksheet["cells"][0]
    top["source"] = "".join(top["source"]).replace(
        BEGINS, f"**Hand in by {due_in_words(due)}.**\n\n{BEGINS}", 1)


def due_in_words(due: str) -> str:
    """A due date as people read it: `2027-01-15, 23:59 (UTC+01:00)`."""
    try:
        moment = datetime.datetime.fromisoformat(due)
    except ValueError:
        return due[:10]
    return f"{moment:%Y-%m-%d, %H:%M} ({moment.tzinfo or 'local time'})" if "T" in due else due[:10]


def _text(book: dict) -> str:
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def _fingerprint(books: dict[str, dict]) -> str:
    text = "\0".join(_text(books[name]) for name in sorted(books))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


INSTALL = """# {title}

Release {label}.{due}

1. Use Python 3.11 or newer on Linux, macOS, Windows or Colab, in an environment of its own:
   `python3 -m venv env`, then `. env/bin/activate`. On Windows, in PowerShell: `py -m venv env`,
   then `env\\Scripts\\activate`. If PowerShell says that running scripts is disabled, first run
   `Set-ExecutionPolicy -Scope Process Bypass`.
2. `pip install {packages}`
3. {wheel}
   `--no-deps` leaves the versions that you have as they are; `--force-reinstall` replaces an older
   build of the course.
4. `jupyter lab` in this folder. Read a lesson, then solve its worksheet:

{files}

`dlsys check {worksheet}` checks a whole worksheet. What you have solved and guessed
is kept in `~/dlsys-work`; set `DLSYS_WORK` to keep it elsewhere. Hand in the worksheet itself, the
`.ipynb` file, with its check cells.

On Colab: open the worksheet with *File, Upload notebook*. Then click the folder at the left edge
and the upload symbol above its list, and choose the wheel; Colab forgets it when the session ends.
Run the first cell of the worksheet, which installs the wheel. *File, Download, Download .ipynb*
gives you the file to hand in.
"""


# What every stage uses, and what some notebooks also import; imports under a different name last.
BASE = ("torch", "torchvision", "numpy", "matplotlib", "scikit-learn", "rich", "jupyterlab",
        "ipywidgets", "anywidget")
SOME = {name: name for name in ("jax", "bitsandbytes", "peft", "transformers", "onnxruntime",
                                "torchao", "optuna", "wandb")}
SOME |= {"onnx": "onnx onnxruntime onnxscript"}


def packages(books: Iterable[dict]) -> str:
    """What to install for these notebooks, as pip takes it."""
    code = "\n".join("".join(cell["source"]) for book in books for cell in book["cells"]
                     if cell["cell_type"] == "code")
    return " ".join([*BASE, *beyond_base(code)])


def beyond_base(code: str) -> list[str]:
    """The packages that this code imports and not every stage uses."""
    used = [given for name, given in SOME.items()
            if re.search(rf"(?:import|from) {name}\b|(?:torch\.|\bas_){name}\b", code)]
    return [*dict.fromkeys(" ".join(used).split())]


def how_to(stages: list[Stage], stamp: dict, wheel: Path | None, needed: str) -> str:
    """INSTALL.md; needed: what pip has to install in addition to the wheel."""
    rows = [f"   - {stage.number}. {stage.title}: `{paths.lesson_copy(stage.number).name}`, "
            f"`{stage.stem}.ipynb`" for stage in stages]
    file = wheel.name if wheel else "dlsys_helpers-*.whl"
    line = f"pip install --force-reinstall --no-deps {file}"
    return INSTALL.format(
        packages=needed,
        title="Deep Learning Systems", label=label(stamp), files="\n".join(rows),
        due=f" Hand in by {due_in_words(stamp['due'])}." if stamp["due"] else "",
        wheel=f"`{line}`." + ("" if wheel else " That file is not here: your instructor has it."),
        worksheet=f"{stages[0].stem}.ipynb")


# ---- files

def _write(out: Path, files: dict[str, str], wheel: Path | None, stages: list[int],
           model: bool) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with open(out / name, "x", encoding="utf-8") as file:
                file.write(text)
        if wheel:
            class_wheel.write(wheel, out / wheel.name, stages, model)
    except OSError as error:
        raise ReleaseError(f"{out}: cannot be written ({error.strerror}). It may hold a part of "
                           "the release; delete that and run the command again.") from None
