"""`dlsys release 01 03 --due 2027-01-15 --out class`: the folder that a class is handed.

It holds the worksheets, the lessons without outputs, INSTALL.md, and RELEASE.json, which says what
was given out. No worked answer is in it, and no history; *Your model*, whose stand-ins solve some
exercises, with --model only. Lessons repair their own small cases, and
some of those lines answer an exercise: they are the lesson.
"""

import argparse
import datetime
import hashlib
import importlib.metadata as metadata
import json
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

from dlsys import class_wheel, work_folder
from dlsys_helpers import paths
from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import Stage

STAMP, HOW_TO = "RELEASE.json", "INSTALL.md"
PACKAGE = "dlsys-helpers"
BEGINS = "Run the cells below first"  # of a worksheet's first cell; the due date goes above it


class ReleaseError(UserError):
    """A folder for a class cannot be made. The message says what to do."""


def add_parser(commands) -> None:
    """Add `release` to the commands of `dlsys`."""
    parser = commands.add_parser("release", help="the folder that a class is handed")
    parser.add_argument("stages", nargs="+", metavar="STAGE", help="numbers of stages: 01 03")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER",
                        help="a new or an empty folder")
    parser.add_argument("--due", metavar="DATE", help="shown in each worksheet: 2027-01-15")
    parser.add_argument("--wheel", type=Path, metavar="FILE",
                        help="the course's wheel (make wheel), handed out with these stages only")
    parser.add_argument("--model", action="store_true",
                        help="leave Your model in the wheel, whose stand-ins solve some exercises")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    stages = sorted({work_folder.stage_of(asked) for asked in args.stages})
    due, wheel = _date(args.due), _wheel(args.wheel)
    _refuse_taken(args.out)
    stamp = {"version": metadata.version(PACKAGE), "due": due,
             "stages": [stage.number for stage in stages]}
    books = {name: book for stage in stages for name, book in _books(stage).items()}
    stamp["content"] = _fingerprint(books)
    files = {name: _text(_stamped(book, stamp)) for name, book in books.items()}
    files[HOW_TO] = how_to(stages, stamp, wheel, packages(books.values()))
    files[STAMP] = json.dumps(stamp, indent=1) + "\n"
    _write(args.out, files, wheel, stamp["stages"], args.model)
    print(f"{args.out}: release {label(stamp)}, {len(files) + bool(wheel)} files.")
    if not wheel:
        print("Without the course's wheel a worksheet cannot check itself. Make one: make wheel; "
              "hand it out, too, or say --wheel FILE")
    return 0


def label(stamp: dict) -> str:
    """A release's name: the course's version and what its notebooks hold."""
    return f"{stamp['version']}-{stamp['content']}"


# ---- what is asked

def _date(text: str | None) -> str | None:
    try:
        return text and datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise ReleaseError(f"--due: got {text[:40]!r}, expected a date as 2027-01-15.") from None


def _wheel(path: Path | None) -> Path | None:
    """A wheel of this course. Raises ReleaseError for anything else."""
    if path is None:
        return None
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
        raise ReleaseError(f"{out}: is not empty, expected a new or an empty folder. Nothing was "
                           "written. Give another one: --out FOLDER")


# ---- what is in it

def _books(stage: Stage) -> dict[str, dict]:
    """A stage's worksheet and lesson, linked to each other, by file name."""
    worksheet, lesson = f"{stage.stem}.ipynb", paths.lesson_copy(stage.number).name
    asked = json.loads(work_folder.worksheet_copy(
        work_folder.shipped(stage, paths.EXERCISES), stage, lesson))
    told = json.loads(work_folder.lesson_copy(
        work_folder.shipped(stage, paths.NOTEBOOKS), stage, worksheet))
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
    """Write the day on which a worksheet is due into its first cell and its metadata."""
    worksheet["metadata"]["dlsys"]["due"] = due
    top = worksheet["cells"][0]
    top["source"] = "".join(top["source"]).replace(
        BEGINS, f"**Hand in by {due}.**\n\n{BEGINS}", 1)


def _text(book: dict) -> str:
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def _fingerprint(books: dict[str, dict]) -> str:
    text = "\0".join(_text(books[name]) for name in sorted(books))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


INSTALL = """# {title}

Release {label}.{due}

1. Have Python 3.11 or newer on Linux, macOS, Windows or Colab, in an environment of your own:
   `python3 -m venv env`, then `. env/bin/activate`. On Windows, in PowerShell: `py -m venv env`,
   then `env\\Scripts\\activate`.
2. `pip install {packages}`
3. {wheel}
   `--no-deps` leaves the versions that you have as they are; `--force-reinstall` replaces an older
   build of the course.
4. `jupyter lab` in this folder. Read a lesson, then solve its worksheet:

{files}

`dlsys check {worksheet}` checks a whole worksheet. What you have solved and guessed
is kept in `~/dlsys-work`; set `DLSYS_WORK` to have it elsewhere. Hand in the worksheet itself, the
file `.ipynb`, with its check cells.

On Colab, upload the worksheet and the wheel. The first cell of the worksheet installs the wheel.
"""


# What every stage uses, and what some notebooks import besides; an import by another's name last.
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
    """INSTALL.md; needed: what pip has to install besides the wheel."""
    rows = [f"   - {stage.number}. {stage.title}: `{paths.lesson_copy(stage.number).name}`, "
            f"`{stage.stem}.ipynb`" for stage in stages]
    file = wheel.name if wheel else "dlsys_helpers-*.whl"
    line = f"pip install --force-reinstall --no-deps {file}"
    return INSTALL.format(
        packages=needed,
        title="Deep Learning Systems", label=label(stamp), files="\n".join(rows),
        due=f" Hand in by {stamp['due']}." if stamp["due"] else "",
        wheel=f"`{line}`." + ("" if wheel else " That file is not here: whoever teaches gives it."),
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
        raise ReleaseError(f"{out}: cannot be written ({error.strerror}). It may hold a part; "
                           "delete that and give the command again.") from None
