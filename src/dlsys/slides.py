"""`dlsys slides`: the traps of a stage as slides in one file, which opens without a network."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dlsys import windows
from dlsys_files import locations
from dlsys_helpers import catalog, paths
from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import NUMBERS, SPAN, Stage

if TYPE_CHECKING:
    from nbformat import NotebookNode


class SlidesError(UserError):
    """No slides are made. The message says why, and what to do."""


def add_parser(commands) -> None:
    """Add `slides` to the commands of `dlsys`."""
    parser = commands.add_parser("slides", help="the traps of a stage as slides, for a class")
    parser.add_argument("stage", help=f"number of the stage, {SPAN}")
    parser.add_argument("--core", action="store_true",
                        help="only the core path, in at most 30 slides")
    parser.add_argument("--out", type=Path, metavar="FILE.html",
                        help="where to write them (default my-work/NN_slides.html)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    stage = find(args.stage)
    name = f"{stage.number:02d}_slides{'_core' if args.core else ''}.html"
    out = args.out or paths.MY_WORK / name
    refuse(out)  # before the seconds that nbconvert takes
    try:
        from dlsys import deck
    except ModuleNotFoundError as error:
        how = ("make setup" if locations.is_checkout() and not windows.HERE else
               "pip install nbconvert latex2mathml")
        raise SlidesError(f"{error.name} is not installed, but dlsys slides needs it. "
                          f"Run: {how}") from None
    slides = list(deck.slides(lesson(stage), core=args.core))
    write(out, deck.html(slides, f"{stage.number}. {stage.title}"))
    print(f"{len(slides)} slides: {out}. Open the file in a browser: space shows the next step, "
          "right skips to the next trap, 1 to 4 count hands for A to D, T starts an exercise's "
          "clock, S opens the speaker view, G and a number lead to a slide, R shows a room, "
          "D switches between light and dark, ? lists all keys.")
    return 0


def find(asked: str) -> Stage:
    """The stage with this number, if it is written. Raises SlidesError."""
    number = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 3 else 0
    written = {stage.number: stage for stage in catalog.written()}
    if number not in written:
        raise SlidesError(f"stage: got {asked[:40]!r}, expected {SPAN}"
                          f"{', and one that is written' if number in NUMBERS else ''}. "
                          "Try: dlsys slides 1")
    return written[number]


def lesson(stage: Stage) -> NotebookNode:
    """The lesson with its stored outputs. Raises SlidesError if it cannot be read."""
    import nbformat

    name = f"{paths.NOTEBOOKS.name}/{stage.stem}.ipynb"
    try:
        found = nbformat.read(paths.NOTEBOOKS / f"{stage.stem}.ipynb", as_version=4)
        if not any(cell.get("outputs") for cell in found.cells):
            raise SlidesError(f"{name}: has no outputs, and slides show what was measured. A "
                              "wheel has none, so run the command in the course's repository.")
        return found
    except OSError as error:
        why = error.strerror
    except (ValueError, AttributeError, nbformat.reader.NotJSONError):
        why = "it is damaged or not a notebook"
    raise SlidesError(f"{name}: cannot be read ({why}). Run: git checkout -- {name}")


def refuse(out: Path) -> None:
    """Raise SlidesError for a file that cannot or must not be written."""
    if out.suffix.lower() not in {".html", ".htm"}:
        raise SlidesError(f"--out: got {str(out)[-60:]!r}, expected a name that ends in .html.")
    if os.path.lexists(out):
        raise SlidesError(f"{out}: already exists and is unchanged. Delete it, or write the slides "
                          "elsewhere with --out FILE.html.")


def write(out: Path, text: str) -> None:
    """Write a new file. Raises SlidesError if there is one, or no place for it."""
    try:
        if out.parent == paths.MY_WORK:
            out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise SlidesError(f"{out}: cannot be written ({error.strerror}). Make its folder, or "
                          "name a different file with --out FILE.html.") from None
