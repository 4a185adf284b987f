"""What a room that reviews changes serves: the changes, their files, and its report."""

from __future__ import annotations

import json
import secrets
from functools import lru_cache
from pathlib import Path
from typing import Any

from dlsys import review_diff
from dlsys.room import changes, report
from dlsys.room.changes import DRAWS, SCORE, ReviewRoom
from dlsys.room.rounds import OPEN, REVEALED
from dlsys.room.server import LiveRoom, ParticipantHandler, SayHandler, StepHandler
from dlsys_diffs.case_files import Case

TITLE = "Review of changes"
PARTS = ("mark", "confidence", "consequence")


class LiveReview(LiveRoom):
    """A room that reviews changes, with its log and its open pages."""

    room: ReviewRoom

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.welcome["runs"] = review_diff.RUNS

    def warm(self) -> None:
        """Nothing here takes long the first time."""

    def own_answers(self, who: str) -> str:
        room = self.room
        if room.phase == SCORE:
            return json.dumps({"score": changes.score(room, who)})
        given = room.answers.get((room.now, 1), {}).get(who)
        if given is None:
            return "{}"
        mine = given._asdict()
        if room.phase == REVEALED:
            mine["right"] = changes.is_right(room.reviews(room.now, who)[who])
        return json.dumps({1: mine})

    def _asked(self) -> dict[str, Any]:
        room = self.room
        if room.phase == SCORE:
            return {"review": True, "score": changes.score(room), "rows": changes.rows(room)}
        if room.now is None:
            return {"review": True}
        shown = {"review": True, "trap": room.now, "go": 1,
                 "change": changes.change_view(room, room.now)}
        if room.phase == REVEALED:
            shown["results"] = changes.outcome(room, room.now)
        return shown

    def _traps(self) -> list[dict]:
        return [{"id": id, "title": case.title, "form": case.form,
                 "phase": self.room.rounds[id].phase if id in self.room.rounds else ""}
                for id, case in self.room.by_id.items()]

    def _notes(self) -> dict[str, Any]:
        """For the presenter alone: what the change is, and how many have marked it right."""
        trap = self.room.now or self.room.next()
        case = self.room.by_id[trap]
        where = " or ".join(f"{file}, line {line}" for file, line in case.places)
        said = [f"Change {trap}. {review_diff.HEADINGS[case.kind]}", where and f"Place: {where}.",
                f"The run that measures it: {case.run}."]
        if self.room.now and self.room.phase == OPEN:
            found = self.room.reviews(trap).values()
            said.append(f"So far {sum(map(changes.is_right, found))} of {len(found)} have "
                        "marked it right.")
        return {"advice": " ".join(filter(None, said)), "live": "", "questions": []}

    def routes(self) -> list[tuple]:
        own = {"live": self}
        return [("(answer|name)", SayChangeHandler, own), ("files", FilesHandler, own),
                ("step", StepChangeHandler, own)]

    def report(self, folder: Path) -> list[Path]:
        room, total = self.room, changes.score(self.room)
        found = changes.rows(room)
        everything = {"change": "all", "answers": total["answers"], "auroc": total["auroc"],
                      "accused": total["accused"].right,
                      **{column: sum(row[column] for row in found)
                         for column in ("marked_right", "named_right")}}
        table = [*found, everything] if found else []
        texts = {report.HTML: report.page(found, self.settings, "review_report.html",
                                          score=total, headings=review_diff.HEADINGS),
                 report.CSV: report.table(changes.COLUMNS, [
                     [row.get(column) for column in changes.COLUMNS] for row in table])}
        if self.settings["names"]:
            texts[report.NAMED] = report.table(
                ("name", "participant", "change", "mark", "marked_right", "named_right",
                 "confidence"),
                changes.named(room))
        return report.write_texts(folder, texts)


class SayChangeHandler(SayHandler):
    """An answer to a change, each part as it was typed or chosen."""

    def answer(self, data: dict[str, Any], _: str) -> dict[str, Any]:
        return {part: self.text(data, part) for part in PARTS}


class StepChangeHandler(StepHandler):
    """The presenter asks a change, or lets the room draw one, shows a run, closes, ..."""

    def event(self, data: dict[str, Any]) -> dict[str, Any]:
        room, name = self.live.room, self.text(data, "step")
        if name in room.steps() and name in DRAWS:
            return self._ask(secrets.choice(room.unasked(DRAWS[name])))
        if name == "ask":
            return self._ask(self.text(data, "trap") or room.next())
        return {"kind": name} | ({"run": self.text(data, "run")} if name == "run" else {})

    def _ask(self, trap: str) -> dict[str, Any]:
        case = self.live.room.by_id.get(trap)
        return {"kind": "ask", "trap": trap, "digest": case and case.digest,
                "seed": secrets.randbits(32)}


class FilesHandler(ParticipantHandler):
    """The repository after the change that is open; it is large, and few pages ask for it."""

    def get(self) -> None:
        room = self.live.room
        if room.phase != OPEN:
            return self.refuse(404, "No change is open.")
        self.set_header("Content-Type", "application/json")
        return self.finish(_files(room.item))


@lru_cache(1)
def _files(case: Case) -> str:
    return json.dumps(case.after)
