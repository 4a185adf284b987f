"""What a room leaves: report.html and report.csv, for each trap that was asked, without names.

The normalized gain is Hake's (1998, doi:10.1119/1.18809): (after - before) / (1 - before), the
share of the missing knowledge that the class gained, here for those who answered both times.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tornado.template import Loader

from dlsys.grading.text import cell
from dlsys.room import results
from dlsys.room.questions import Item
from dlsys.room.rounds import Answer, Room, Tried
from dlsys_files.private_file import write_private

HTML, CSV, NAMED = "report.html", "report.csv", "names.csv"
COLUMNS = ("trap", "title", "question", "measured", "answers_before", "right_before",
           "share_before", "answers_after", "right_after", "share_after", "answers_both", "gain",
           "sure_and_wrong_before", "sure_and_wrong_after", "tried", "solved", "commonest_mistake")


def rows(room: Room) -> list[dict[str, Any]]:
    """A row for each trap that was asked or tried, by column; None for what nobody answered."""
    return [_row(room, item) for item in room.items
            if item.trap.id in room.rounds or _tried(room, item.trap.id)]


def _tried(room: Room, id: str) -> list[Tried]:
    """Verdicts on what somebody wrote: an untouched stub does not count."""
    return [one for one in room.verdicts.get(id, {}).values() if one.tries]


def _row(room: Room, item: Item) -> dict[str, Any]:
    id = item.trap.id
    last = room.rounds[id].go if id in room.rounds else 1
    first = room.answers.get((id, 1), {})
    after = room.answers.get((id, last), {}) if last > 1 else {}
    tried = _tried(room, id)
    mistakes = results.stuck(item, [one for one in tried if one.mistake])
    row = {"trap": id, "title": room.shown_name(id), "question": item.asked.text,
           "measured": item.measured.shown, **_counts(item, first, "before"),
           **_counts(item, after, "after"), "answers_both": len(first.keys() & after.keys()),
           "gain": gain(item, first, after), "tried": len(tried),
           "solved": sum(one.passed for one in tried),
           "commonest_mistake": mistakes[0].name if mistakes else ""}
    return {column: row[column] for column in COLUMNS}


def _counts(item: Item, answers: dict[str, Answer], when: str) -> dict[str, Any]:
    right = results.right(item, answers.values())
    wrong = [a for a in answers.values() if a.sure and not item.measured.agrees(a.guess)]
    return {f"answers_{when}": len(answers), f"right_{when}": right,
            f"share_{when}": round(right / len(answers), 3) if answers else None,
            f"sure_and_wrong_{when}": len(wrong)}


def gain(item: Item, first: dict[str, Answer], after: dict[str, Answer]) -> float | None:
    """The normalized gain of those in both rounds; None without any, or where all were right."""
    both = first.keys() & after.keys()
    before = results.right(item, [first[who] for who in both])
    if before == len(both):
        return None
    return round((results.right(item, [after[who] for who in both]) - before)
                 / (len(both) - before), 3)


def write(folder: Path, room: Room, settings: dict[str, Any]) -> list[Path]:
    """Write the report into the room's folder; returns the files."""
    found = rows(room)
    texts = {HTML: page(found, settings), CSV: table(COLUMNS, [row.values() for row in found])}
    if settings["names"]:
        texts[NAMED] = table(("name", "participant", "trap", "round", "guess", "sure", "right"),
                             _named(room))
    return write_texts(folder, texts)


def write_texts(folder: Path, texts: dict[str, str]) -> list[Path]:
    """Write texts, by file name, that only the presenter may read; returns the files."""
    for name, text in texts.items():
        write_private(folder / name, text)
    return [folder / name for name in texts]


def page(found: list[dict[str, Any]], settings: dict[str, Any], template: str = "report.html",
         **more: Any) -> str:
    """The report as one self-contained page."""
    folder = Path(__file__).with_name("pages")
    made = Loader(str(folder)).load(template).generate(
        rows=found, settings=settings, date=time.strftime("%Y-%m-%d"),
        style=(folder / "room.css").read_text("utf-8"), percent=percent, **more)
    return made.decode()


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def table(columns: tuple[str, ...], rows: Any) -> str:
    """A CSV text in which a spreadsheet sees no formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[cell(value) for value in row] for row in rows])
    return out.getvalue()


def _named(room: Room) -> Iterator[tuple]:
    """Answers of those who gave a name, if the presenter asked for one."""
    for (trap, go), answers in sorted(room.answers.items()):
        for who, answer in answers.items():
            if who in room.names:
                yield (room.names[who], who, trap, go, answer.guess, answer.sure,
                       room.by_id[trap].measured.agrees(answer.guess))
