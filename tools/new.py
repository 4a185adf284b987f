"""Start a stage's files, or a further trap, from tools/templates/; nothing is overwritten.

    python -m tools.new 05 [rescale]        a stage with its first trap
    python -m tools.new 05.2 [rescale]      one more trap, before the lesson's quiz

The last word is the name of the function that the exercise asks for.
"""

from __future__ import annotations

import argparse
import keyword
import re
from pathlib import Path

from dlsys_helpers import stages
from dlsys_helpers.paths import ROOT
from dlsys_helpers.stages import Stage

TEMPLATES = Path(__file__).with_name("templates")
AFTER_TRAPS = re.compile(r'^# %% .*\brole="(quiz|gpu|summary)"', re.M)
TRAP_IDS = re.compile(r'^# %% .*\btrap="(\d\d\.\d+)"', re.M)


def filled(template: str, **facts: object) -> str:
    """The text of a template, each {{field}} replaced."""
    text = (TEMPLATES / template).read_text("utf-8")
    for name, value in facts.items():
        text = text.replace(f"{{{{{name}}}}}", str(value))
    return text


def stage_files(stage: Stage, function: str, root: Path) -> dict[Path, str]:
    """The files that start a stage: lesson, package of checks, first check."""
    id, facts = f"{stage.number:02d}.1", {"number": stage.number, "title": stage.title}
    trap = filled("trap.txt", id=id, name=function, core=" core=true")
    return {root / f"lessons/{stage.stem}.py": filled("stage.txt", **facts, trap=trap),
            checks(root, stage) / "__init__.py": filled("checks_init.txt", **facts),
            check_path(root, stage, id, function): filled("check.txt", id=id, name=function)}


def checks(root: Path, stage: Stage) -> Path:
    return root / f"src/dlsys_checks/s{stage.number:02d}"


def check_path(root: Path, stage: Stage, id: str, function: str) -> Path:
    return checks(root, stage) / f"e{id.partition('.')[2]}_{function}.py"


def next_id(number: int, root: Path) -> str:
    """The id of the next trap of a stage: one more than its lesson has."""
    lesson = root / f"lessons/{stages.stage(number).stem}.py"
    text = lesson.read_text("utf-8") if lesson.exists() else ""
    return f"{number:02d}.{len(set(TRAP_IDS.findall(text))) + 1}"


def start_stage(number: int, function: str, root: Path = ROOT) -> list[Path]:
    """Write a stage's files; returns them. Raises SystemExit when one of them is there."""
    files = stage_files(stages.stage(number), function, root)
    there = [str(path.relative_to(root)) for path in files if path.exists()]
    if there:
        raise SystemExit(f"new: {', '.join(there)}: there already, nothing was written. "
                         f"A further trap: make new TRAP={next_id(number, root)}")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return list(files)


def add_trap(id: str, function: str, root: Path = ROOT) -> list[Path]:
    """Put a trap's cells behind the lesson's last trap and write its check; returns both files.

    Raises SystemExit without a lesson, for an id that is not the next one, and for a check or a
    function that is there.
    """
    stage = stages.stage(int(id[:2]))
    lesson, check = root / f"lessons/{stage.stem}.py", check_path(root, stage, id, function)
    if not lesson.exists():
        raise SystemExit(f"new: no lesson {lesson.name}. Start it: make new STAGE={id[:2]}")
    text = lesson.read_text("utf-8")
    following = next_id(stage.number, root)
    if id != following:
        raise SystemExit(f"new: got trap {id}, expected {following}: ids count up and are never "
                         "used twice.")
    if check.exists() or f"def {function}(" in text:
        raise SystemExit(f"new: {function} is there already, nothing was written. "
                         "Choose another name: NAME=...")
    tail = AFTER_TRAPS.search(text)
    end = tail.start() if tail else len(text)
    cells = filled("trap.txt", id=id, name=function, core="")
    lesson.write_text(f"{text[:end].rstrip()}\n\n{cells}\n{text[end:]}".rstrip() + "\n", "utf-8")
    check.write_text(filled("check.txt", id=id, name=function), "utf-8")
    return [lesson, check]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make new", usage="make new STAGE=05, or TRAP=05.2; "
                                     "with NAME=<the exercise's function>")
    parser.add_argument("what")
    parser.add_argument("name", nargs="?")
    args = parser.parse_args()
    if not args.what:
        parser.error("neither a stage nor a trap was named, expected STAGE=05 or TRAP=05.2.")
    match = re.fullmatch(r"(0[1-9]|1[0-2])(?:\.([1-9]\d*))?", args.what.zfill(2))
    if not match:
        parser.error(f"got {args.what!r}, expected a stage, 01 to 12, or the id of a trap.")
    name = args.name or f"answer_{match[2] or 1}"
    if not name.isidentifier() or keyword.iskeyword(name):
        parser.error(f"NAME: got {name!r}, expected the name of a Python function.")
    made = add_trap(match[0], name) if match[2] else start_stage(int(match[1]), name)
    print(*(path.relative_to(ROOT) for path in made), sep="\n")
    print(f"Next: make build LESSON={match[1]} DRAFT=1")


if __name__ == "__main__":
    main()
