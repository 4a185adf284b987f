"""Add a trap to a lesson, from tools/templates/; nothing is overwritten.

    python -m tools.new 05.7 [rescale]      after the stage's last trap

The last word is the name of the function that the exercise asks for.
"""

from __future__ import annotations

import argparse
import keyword
import re
from pathlib import Path

from dlsys_helpers import stages
from dlsys_helpers.paths import ROOT
from tools import lessons

TEMPLATES = Path(__file__).with_name("templates")
MARKER = re.compile(r'^# %% .*\brole="(\w+)".*', re.M)
TRAP_IDS = re.compile(r'^# %% .*\btrap="(\d\d\.\d+)"', re.M)


def filled(template: str, **facts: str) -> str:
    """The text of a template with each {{field}} replaced."""
    text = (TEMPLATES / template).read_text("utf-8")
    for name, value in facts.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text


def with_trap(lesson: str, trap: str) -> str:
    """The text of a lesson with these cells after its last trap, before further parts and the quiz.

    In a lesson without a trap, they go right before those parts.
    """
    markers = list(MARKER.finditer(lesson))
    last = max((n for n, found in enumerate(markers) if found[1] in lessons.TRAP_ORDER),
               default=max(n for n, found in enumerate(markers) if found[1] not in lessons.TAIL))
    end = markers[last + 1].start() if last + 1 < len(markers) else len(lesson)
    return f"{lesson[:end].rstrip()}\n\n{trap}\n{lesson[end:]}".rstrip() + "\n"


def with_ask(questions: str) -> str:
    """The text of a file of questions, which now imports `ask` for the new rows."""
    line = re.search(r"^from dlsys_checks\.questions import (.+)$", questions, re.M)
    names = sorted({"ask", *line[1].split(", ")})
    return questions[:line.start(1)] + ", ".join(names) + questions[line.end(1):]


def add_trap(id: str, function: str, root: Path = ROOT) -> list[Path]:
    """Put a trap's cells into its lesson and a question into its stage's, and write its check.

    Returns the four files. Raises SystemExit for an id that is not the next one, and for a check or
    a function that already exists.
    """
    stage = stages.stage(int(id[:2]))
    lesson = root / f"lessons/{stage.stem}.py"
    questions = root / f"src/dlsys_checks/questions/q{id[:2]}.py"
    name = f"s{id[:2]}/e{id[3:]}_{function}.py"
    check, beside = root / "src/dlsys_checks" / name, root / "tests/right_answers" / name
    text = lesson.read_text("utf-8")
    following = f"{id[:2]}.{len(set(TRAP_IDS.findall(text))) + 1}"
    if id != following:
        raise SystemExit(f"new: got trap {id}, expected {following}: ids count up and are never "
                         "used twice.")
    # A lesson runs without any answer, so no cell of it may use the function's name.
    code = [cell.source for cell in lessons.Source(lesson).of(kind="code")]
    named = any(function in lessons.names_used(one) | lessons.names_bound(one) for one in code)
    if check.exists() or beside.exists() or named:
        raise SystemExit(f"new: {function} is there already, nothing was written. "
                         "Choose another name: NAME=...")
    facts = {"id": id, "name": function, "stage": id[:2], "number": id[3:]}
    made = {lesson: with_trap(text, filled("trap.txt", **facts)),
            check: filled("check.txt", **facts),
            beside: filled("right_answers.txt", **facts),
            questions: f"{with_ask(questions.read_text('utf-8')).rstrip()}\n\n\n"
                       f"{filled('question.txt', **facts)}"}
    for path, content in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)  # for a stage's first trap
        path.write_text(content, "utf-8")
    return list(made)


def next_steps(id: str) -> str:
    """The steps that are left for a new trap; all commands print this list."""
    return filled("next_steps.txt", id=id, stage=id[:2]).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="make new", usage="make new TRAP=05.7, "
                                     "with NAME=<the exercise's function>")
    parser.add_argument("trap")
    parser.add_argument("name", nargs="?")
    args = parser.parse_args()
    match = re.fullmatch(r"(\d\d?)\.([1-9]\d*)", args.trap)
    if not match or int(match[1]) not in stages.NUMBERS:
        parser.error(f"TRAP: got {args.trap!r}, expected the id of a trap, such as 05.7.")
    name = args.name or f"answer_{match[2]}"
    if not name.isidentifier() or keyword.iskeyword(name):
        parser.error(f"NAME: got {name!r}, expected the name of a Python function.")
    id = f"{match[1].zfill(2)}.{match[2]}"
    made = add_trap(id, name)
    print("Written, each with a small example that runs and TODO: where you write your own:",
          *(path.relative_to(ROOT) for path in made), sep="\n  ")
    print("Two more places are yours, and make try asks for them: ten phrases of people who have\n"
          "the fault, in book/finder_said.yml, and the lesson's hook, if it counts the traps.")
    print(next_steps(id))


if __name__ == "__main__":
    main()
