"""README's lesson table, between its markers, from the stages and what the lessons declare."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dlsys_helpers import catalog
from dlsys_helpers.catalog import Trap
from dlsys_helpers.stages import STAGES, Stage

BLOCK = re.compile(r"(?<=<!-- lessons -->\n).*?(?=<!-- /lessons -->)", re.DOTALL)
HEAD = "| | Lesson | In one line | Traps |\n|--:|:--|:--|:--|\n"


def lesson_table(stages: Iterable[Stage], written: Mapping[int, Sequence[Trap]]) -> str:
    """The Markdown table of all stages, those not yet written said to be so.

    ``written``: the traps of each written stage, by its number.
    """
    return HEAD + "".join(_row(stage, written.get(stage.number)) for stage in stages)


def _row(stage: Stage, traps: Sequence[Trap] | None) -> str:
    """One line of the table; the title of a written lesson links to the way to start it."""
    if traps is None:
        return f"| {stage.number} | {stage.title} | {stage.promise} | not written yet |\n"
    minutes = sum(trap.minutes for trap in traps)
    return (f"| {stage.number} | [{stage.title}](#start) "
            f"| {stage.promise} | {len(traps)}, with {minutes} min of exercises |\n")


def filled(text: str, table: str) -> str:
    """README's text with this table between the markers. Raises ValueError without markers."""
    text, count = BLOCK.subn(lambda _: table, text)
    if count != 1:
        raise ValueError(f"README.md: got {count} places for the lesson table, expected 1 between "
                         "the lines <!-- lessons --> and <!-- /lessons -->.")
    return text


def current_table() -> str:
    """The table of what the catalog holds now."""
    return lesson_table(STAGES, {s.number: catalog.traps(s.number) for s in catalog.written()})


def update(path: Path) -> None:
    """Rewrite the lesson table of this README from the catalog."""
    path.write_text(filled(path.read_text(encoding="utf-8"), current_table()), encoding="utf-8")
