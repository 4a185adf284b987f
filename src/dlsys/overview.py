"""What `dlsys` prints without arguments: the next step, and the commands with an example each.

Also what it prints for an unknown command.
"""

import difflib
from collections.abc import Iterator, Sequence

from dlsys import review, start_page, work_folder
from dlsys.terminal import bold, say
from dlsys_helpers import paths, progress
from dlsys_helpers.errors import UserError

# Each command as you type it, and what it is for.
GROUPS = {
    "Learn": (
        ("dlsys start 1", "a lesson and a worksheet of your own"),
        ("dlsys lab", "JupyterLab on your start page"),
        ("dlsys check 1", "check the worksheet, or one exercise: dlsys check 01.4"),
        ("dlsys answer 01.4", "the worked answer next to yours, once you have solved it"),
        ("dlsys review", "short questions, after 2, 7 and 21 days"),
        ("dlsys review-diff", "small code changes to review: which one is faulty?"),
        ("dlsys incident", "find a cause with probes that cost GPU hours"),
        ("dlsys placement", "fifteen questions: which traps to take, and which to skip"),
        ("dlsys exam a", "five complaints about a script: find what is wrong"),
        ("dlsys progress", "what you have solved, and what to do next"),
        ("dlsys join URL CODE", "send your guesses to a class's room; dlsys leave stops it"),
    ),
    "Look something up": (
        ('dlsys find "loss stuck"', "the traps that fit what you see"),
        ("dlsys watch train.py", "run a script of your own and report the traps in it"),
        ('dlsys same "A.py" "B.py"', "the first tensor in which two runs differ"),
        ("dlsys doctor", "what is wrong with the installation, and how to fix it"),
    ),
    "Your model": (
        ("dlsys start model", "the notebook that trains it"),
        ("dlsys parts", "which of its parts you have written"),
    ),
    "Teach": (
        ("dlsys slides 1", "the traps of a stage as slides"),
        ("dlsys room 1", "the class guesses together, on its phones"),
        ("dlsys room --review", "the class reviews code changes together"),
        ("dlsys release 1 3 --out class", "the folder to hand out to a class"),
        ("dlsys grade class.zip --out g", "grade a class: feedback pages and gradebook columns"),
        ("dlsys autograder 8 --wheel W", "a zip for Gradescope"),
        ("dlsys term g1 g2 --out term", "one page over several runs of dlsys grade"),
    ),
}
WIDTH = max(len(typed) for rows in GROUPS.values() for typed, _ in rows) + 3


def show() -> None:
    """The next step, then the commands in their groups."""
    say(bold("Deep Learning Systems"))
    for line in next_steps():
        say(line)
    for name, rows in GROUPS.items():
        say("")
        say(bold(name))
        for typed, what in rows:
            say(f"  {typed:<{WIDTH}}{what}")
    say("")
    say("All options of a command: dlsys check --help")


def next_steps() -> Iterator[str]:
    """What to do next, by what was begun: one line, and one more if questions are due."""
    try:
        rows = start_page.summary()
        waiting = len(review.due(review.now()))
    except UserError as error:  # a damaged store or a missing catalog: help is shown all the same
        yield str(error)
        return
    yield _exercise(rows)
    if waiting:
        yield f"Due today: {waiting} question{'s' * (waiting != 1)}. Next: dlsys review"


def _exercise(rows: list[start_page.StageState]) -> str:
    """The first exercise that is open in the stage that was worked on last, or the first stage."""
    found = start_page.next_up(rows)
    if not found:
        return "You have solved every exercise. Next: dlsys exam b"
    stage, trap = found
    sheet = paths.MY_WORK / f"{stage.stem}.ipynb"
    if not (trap and sheet.exists()):
        return f"Next: dlsys start {stage.number}{f', trap {trap.id}' if trap else ''}"
    return (f"Next: exercise {trap.id} in {paths.MY_WORK.name}/{sheet.name} "
            f"({work_folder.open_lab()}), then: dlsys check {trap.id}")


def unknown(asked: str, known: Sequence[str]) -> str:
    """One line for a command that does not exist; it names the one that was likely meant."""
    near = difflib.get_close_matches(asked[:40], known, n=1, cutoff=0.6)
    meant = f"did you mean {near[0]}?" if near else "expected one that `dlsys` shows."
    return f"no command {asked[:40]!r}, {meant} See all of them: dlsys"


def note_on_progress() -> str:
    """A sentence if progress is not kept, else ""."""
    return "" if progress.store() else " Progress is not kept: DLSYS_PROGRESS is off."
