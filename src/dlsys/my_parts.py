"""`dlsys parts`: which parts of *Your model* are the learner's, and `my-work/my_parts.py`.

The file has two halves. The command writes the half above the mark and keeps what the learner
writes below it. It does not touch a file that was changed above the mark or has no mark.
"""

import argparse
import hashlib
import os
from pathlib import Path

from dlsys.terminal import bold, new_table, say
from dlsys_helpers import paths, progress
from dlsys_helpers.errors import UserError
from dlsys_helpers.lesson_names import YOUR_MODEL
from dlsys_model import answers
from dlsys_model.answers import Sheet
from dlsys_model.part_table import CATALOGUE, OURS, PLACES, Part

FILE = "my_parts.py"
MARK = "# ==== Below this line is yours: `dlsys parts` keeps it. ===="
_HEAD = '''"""My parts of a language model, as `dlsys parts` wrote them from my worksheets.

Change an answer in its worksheet, check it, and run `dlsys parts` again.
"""
'''
_SUM = "# Written by dlsys parts, "


class PartsFileError(UserError):
    """my_parts.py cannot be written as it is. The message says what to do; nothing was lost."""


def add_parser(commands) -> None:
    """Add `parts` to the commands of `dlsys`."""
    parser = commands.add_parser("parts", help="which parts of your model are your own; "
                                               f"writes them to {FILE}")
    parser.add_argument("--all", action="store_true",
                        help="show all parts, and what replaces those that are not yours")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    notes: list[str] = []
    mine = answers.chosen(None, None, notes)
    ids = {part.id for part, _ in mine}
    listed = [part for part in CATALOGUE if args.all or part.id in ids]
    shown = new_table("part", "name, and what it does", "whose")
    for place in [place for place in PLACES if any(part.place == place for part in listed)]:
        shown.add_row("", bold(place.capitalize()), "")
        for part in listed:
            if part.place == place:
                shown.add_row(part.id, f"{part.function}\n  {part.used}",
                              "✓ yours" if part.id in ids else _library(part))
    if listed:
        say(shown)
    for note in notes:
        say(f"Note: {note}")
    kept = "" if progress.store() else " Progress is not kept: DLSYS_PROGRESS is off."
    say(f"{len(mine)} of {len(CATALOGUE)} parts are yours.{kept}")
    if not args.all:
        say("To see what replaces the others: dlsys parts --all")
    for note in write(mine):
        say(note)
    return 0


def report() -> Path | None:
    """The report of *Your model*; None if none was written."""
    store = progress.store()
    path = store.with_name(f"{YOUR_MODEL}.html") if store else None
    return path if path and path.exists() else None


def _library(part: Part) -> str:
    return "our stand-in" if part.standin == OURS else part.standin


def write(mine: list[tuple[Part, Sheet]]) -> list[str]:
    """Write the file again, with the learner's half unchanged; returns lines that say what changed.

    Raises PartsFileError if it was changed above the mark, or cannot be written.
    """
    path = paths.MY_WORK / FILE
    if not mine and not path.exists():
        return ["Solve one, then run dlsys parts again: it writes your own code to "
                f"{path.parent.name}/{FILE}."]
    upper, notes = generated_half(mine)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{FILE}.new")
        fresh.write_text(f"{upper}{MARK}\n{_lower(path)}", "utf-8")
        os.replace(fresh, path)
    except OSError as error:
        raise PartsFileError(f"{FILE}: cannot be written ({error.strerror}). The old file is "
                             "still there. Free some space, or make the folder writable.") from None
    return [*notes, f"Your own code: {path.parent.name}/{FILE}"]


def _lower(path: Path) -> str:
    """The learner's half of the file, empty if there is no file. Raises PartsFileError."""
    if not path.exists():
        return ""
    try:
        upper, mark, lower = path.read_text("utf-8").partition(f"{MARK}\n")
    except UnicodeDecodeError:
        upper, mark, lower = "", "", ""
    if not mark or not _is_ours(upper):
        raise PartsFileError(
            f"{FILE}: was changed above the mark, and is left as it is. Move what you wrote there "
            "below the mark of a new one: rename this file and run dlsys parts again.")
    return lower


def _is_ours(upper: str) -> bool:
    """Whether this half is as the command wrote it."""
    start, found, rest = upper.partition(_SUM)
    told, _, below = rest.partition("\n")
    return bool(found) and told == _digest(start + below)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def generated_half(mine: list[tuple[Part, Sheet]]) -> tuple[str, list[str]]:
    """The command's half: imports, then each part with its helpers; and notes on clashes."""
    notes, imports, bodies, seen = [], set(), [], {}
    for part, sheet in mine:
        names = sheet.needed(part.function)
        imports.update(sheet.imports_of([sheet.pieces[name] for name in names]))
        fresh = [name for name in names if seen.get(name) != sheet.pieces[name]]
        notes += [f"Note: {name} is defined differently in {part.id} and in an earlier part; in "
                  f"{FILE} the last definition counts. Rename one of them in its worksheet."
                  for name in fresh if name in seen]
        seen.update({name: sheet.pieces[name] for name in fresh})
        pieces = "\n\n\n".join(sheet.pieces[name] for name in fresh)
        bodies.append(f"# ---- {part.id} {part.function}: {part.used}\n{pieces}\n")
    ordered = sorted(imports, key=lambda line: (line.startswith("from"), line))
    body = "\n\n".join(["\n".join(ordered) + "\n", *bodies]) + "\n\n"
    return f"{_HEAD}{_SUM}{_digest(f'{_HEAD}{body}')}\n{body}", notes
