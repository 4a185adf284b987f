"""`dlsys autograder 8 --wheel FILE`: the zip that Gradescope runs for each hand-in.

Gradescope unpacks it to /autograder/source, runs setup.sh once, and for each hand-in
run_autograder, which reads /autograder/submission and writes /autograder/results/results.json. It
finds the folder from its own path, so any other folder works too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlsys.grading.options import GradeOptions
from dlsys_helpers.errors import UserError

COURSE, STAGE = "course.toml", "stage.json"
SETUP = """\
#!/usr/bin/env bash
# Runs once, when Gradescope builds the image.
set -e
here=$(cd "$(dirname "$0")" && pwd)
env=$(dirname "$here")/env
apt-get update -y && apt-get install -y python3-pip
python3 -m pip install uv || python3 -m pip install --break-system-packages uv
python3 -m uv venv --python 3.12 "$env"
python3 -m uv pip install --python "$env/bin/python" --torch-backend cpu {packages}
python3 -m uv pip install --python "$env/bin/python" --no-deps "$here"/{wheel}
"""
RUN = """\
#!/usr/bin/env bash
# Runs for each hand-in.
base=$(cd "$(dirname "$0")" && pwd)
exec "$base/env/bin/python" -m dlsys.grading.gradescope "$base"
"""
GRADER = ("cryptography", "distributed", "jinja2")


class AutograderError(UserError):
    """The zip cannot be made. The message says what to do."""


def add_parser(commands: Any) -> None:
    """Add `autograder` to the subcommands of `dlsys`."""
    parser = commands.add_parser("autograder", help="a zip for Gradescope's autograder")
    parser.add_argument("stage", metavar="STAGE", help="number of the stage")
    parser.add_argument("--wheel", type=Path, required=True, metavar="FILE",
                        help="the course's wheel, from make wheel")
    parser.add_argument("--out", type=Path, default=Path("autograder.zip"), metavar="ZIP",
                        help="a new file (default: autograder.zip)")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--core", action="store_true", help="only the core path")
    some.add_argument("--exercises", metavar="IDS", help="only these exercises: 8.1,8.3")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the zip. Raises UserError."""
    from dlsys import class_course, release, work_folder

    stage = work_folder.stage_of(args.stage)
    wheel = release.wheel_at(args.wheel)
    asked = release.asked_for([stage], args.core, args.exercises)
    course = class_course.text(asked)
    files = {"setup.sh": SETUP.format(packages=" ".join([*release.packages_of(stage), *GRADER]),
                                      wheel=wheel.name),
             "run_autograder": RUN, STAGE: json.dumps({"stage": stage.number}) + "\n",
             **({COURSE: course} if course else {})}
    try:
        with zipfile.ZipFile(args.out, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, text in files.items():
                info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                info.external_attr = 0o755 << 16
                archive.writestr(info, text, zipfile.ZIP_DEFLATED)
            archive.write(wheel, wheel.name)
    except OSError as error:
        raise AutograderError(f"{args.out}: cannot be written ({error.strerror}). Give another "
                              "file: --out ZIP") from None
    print(f"{args.out}: made for stage {stage.number}. In Gradescope, open a programming "
          "assignment, choose Configure Autograder, and upload this file.")
    return 0


# ---- inside Gradescope's container

def grade(base: Path) -> dict[str, Any]:
    """What goes into results.json for the hand-in below this folder."""
    from dlsys.grading.walls.sandbox import SandboxRefused

    source = base / "source"
    stage = json.loads((source / STAGE).read_text(encoding="utf-8"))["stage"]
    course = source / COURSE
    with tempfile.TemporaryDirectory() as out:
        options = GradeOptions((base / "submission",), Path(out) / "grades",
                               course=course if course.is_file() else None)
        try:
            results = _graded(options)
        except SandboxRefused:  # most containers are not allowed to build walls
            results = _graded(replace(options, out=Path(out) / "open", walled=False))
        except UserError as error:
            return _nothing(str(error))
    return autograder_results(results, stage)


def _graded(options: GradeOptions) -> list[dict[str, Any]]:
    from dlsys.grading import command

    command.grade(options)
    return json.loads((options.out / "grades.json").read_text(encoding="utf-8"))["results"]


def autograder_results(results: Sequence[dict[str, Any]], stage: int) -> dict[str, Any]:
    """results.json for these results of one hand-in; only this stage has points."""
    from dlsys.grading.books import scoring

    mine = [r for r in scoring.best(results) if r["stage"] == stage]
    if not mine:
        return _nothing(" ".join(_why_not(r, stage) for r in results) or "no notebook found.")
    one = max(mine, key=lambda r: r["points"])
    return {"score": one["points"], "output": "\n".join([
        f"{one['points']} of {one['possible']} points.", *one["notes"]]),
        "stdout_visibility": "hidden", "visibility": "visible",
        "extra_data": {"wall": one["wall"]},
        "tests": [_test(entry) for entry in one["exercises"]]}


def _why_not(result: dict[str, Any], stage: int) -> str:
    if result["status"] == "graded":
        return f"{result['name']} is for stage {result['stage']}, but stage {stage} was asked for."
    you = result.get("stray", {}).get("you", "").replace("`", "")
    return f"{result['name']} was not graded: it {result['reason']} {you}".strip()


def _nothing(why: str) -> dict[str, Any]:
    return {"score": 0, "output": why, "stdout_visibility": "hidden", "visibility": "visible",
            "tests": []}


def _test(entry: dict[str, Any]) -> dict[str, Any]:
    passed = entry["status"] == "pass"
    from dlsys_helpers.verdicts import STATUSES
    said = [STATUSES[entry["status"]].word + ".", "" if passed else entry["message"]]
    return {"name": f"{entry['id']} {entry['title']}", "score": entry["points"],
            "max_score": entry["possible"], "status": "passed" if passed else "failed",
            "output": " ".join(filter(None, said)), "output_format": "text",
            "visibility": "visible"}


def main(arguments: Sequence[str]) -> int:
    """Grade the hand-in below a folder, and always write results.json."""
    base = Path(arguments[0])
    try:
        found = grade(base)
    except Exception as error:  # the learner reads this, and tells the instructor
        found = _nothing(f"The autograder itself stopped ({type(error).__name__}). Tell your "
                         "instructor.")
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    (base / "results").mkdir(exist_ok=True)
    (base / "results" / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
