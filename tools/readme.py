"""README's lesson table, between its markers, from the stages and what the lessons declare."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from dlsys_helpers.catalog import CATALOG
from dlsys_helpers.stages import STAGES, Stage

BLOCK = re.compile(r"(?<=<!-- lessons -->\n).*?(?=<!-- /lessons -->)", re.DOTALL)
HEAD = "| | Lesson | In one line | Traps |\n|--:|:--|:--|:--|\n"


def lesson_table(stages: Iterable[Stage], catalog: dict) -> str:
    """The Markdown table of all stages, those not yet written said to be so.

    ``catalog`` is what catalog.json holds: stages with their traps.
    """
    written = {entry["number"]: entry for entry in catalog["stages"]}
    return HEAD + "".join(_row(stage, written.get(stage.number)) for stage in stages)


def _row(stage: Stage, entry: dict | None) -> str:
    """One line of the table; the title is a link once there is a notebook."""
    if entry is None:
        return f"| {stage.number} | {stage.title} | {stage.promise} | not written yet |\n"
    minutes = sum(trap["minutes"] for trap in entry["traps"])
    return (f"| {stage.number} | [{stage.title}](notebooks/{entry['stem']}.ipynb) "
            f"| {stage.promise} | {len(entry['traps'])}, with {minutes} min of exercises |\n")


def filled(text: str, table: str) -> str:
    """README's text with this table between the markers. Raises ValueError without markers."""
    text, count = BLOCK.subn(lambda _: table, text)
    if count != 1:
        raise ValueError(f"README.md: got {count} places for the lesson table, expected 1 between "
                         "the lines <!-- lessons --> and <!-- /lessons -->.")
    return text


def update(path: Path) -> None:
    """Rewrite the lesson table of this README from catalog.json."""
    table = lesson_table(STAGES, json.loads(CATALOG.read_text(encoding="utf-8")))
    path.write_text(filled(path.read_text(encoding="utf-8"), table), encoding="utf-8")
