"""Turn verdicts into the points that count: names, promises, points by hand, due dates.

The journal keeps what was judged, and every call applies these rules to it again. So dropping an
option or a row undoes it completely.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlsys.grading.books import due, overrides, strays
from dlsys.grading.books.due import Course
from dlsys.grading.books.overrides import Override
from dlsys.grading.books.people import Result, names_of_one, owner, with_gradebook_name
from dlsys.grading.books.run_folder import COURSE, GRADES
from dlsys.grading.books.strays import Place
from dlsys.grading.options import GradeOptions
from dlsys.grading.text import rounded

STEP = 0.5  # points for promises are rounded down to it
OWN_SHARE = 0.5  # of an exercise's points, for the promise that its trap is about


@dataclass(frozen=True)
class Scoring:
    """How this run turns verdicts into points.

    partial: points for the promises that are kept. names: people as the gradebook has them, by
    source and id. cells: what Moodle's sheets say about the time, see `due.apply`. places: where
    the points of an LMS go.
    """

    partial: bool = False
    course: Course | None = None
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    cells: dict[tuple[str, str, int | None], str] = field(default_factory=dict)
    places: tuple[Place, ...] = ()

    @property
    def asked(self) -> dict[int, tuple[str, ...]]:
        """The exercises that count, by stage; if a stage is not in it, all its exercises count."""
        return self.course.asked if self.course else {}

    @property
    def stages(self) -> frozenset[int]:
        """The stages of the course: those that something is asked for or due in."""
        return frozenset({*self.asked, *(self.course.due if self.course else ())})

    @property
    def own_share(self) -> float:
        """The part of the points that is for the trap's own promise."""
        given = self.course.partial_trap if self.course else None
        return OWN_SHARE if given is None else given / 100

    def plain(self) -> dict[str, Any]:
        """The rules as JSON, for the pages and for grades.json."""
        return {"partial": self.partial, "own_share": round(100 * self.own_share, 2),
                "late": self.course.rule() if self.course else "",
                "asked": {str(stage): list(ids) for stage, ids in self.asked.items()},
                "due": {str(stage): date.isoformat()
                        for stage, date in (self.course.due if self.course else {}).items()}}


def rules(options: GradeOptions, names: dict[tuple[str, str], str],
          cells: dict[tuple[str, str, int | None], str],
          places: tuple[Place, ...] = ()) -> Scoring:
    """How this call counts points. Raises UserError for a file that cannot be used.

    Without an option, a resumed run keeps what it was given before. A new run takes nothing from
    its folder, which may have come with a submission.
    """
    course, partial = options.course, bool(options.partial)
    if options.resume:
        overrides.read(options.out, course)
        kept = options.out / COURSE
        if options.course_wanted:
            course = course or (kept if kept.exists() else None)
        partial = recorded_partial(options.out) if options.partial is None else partial
    return Scoring(partial, due.read(course) if course else None, names, cells, places)


def recorded_partial(folder: Path) -> bool:
    """Whether the run in this folder gave points for kept promises; False if there is none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        grades = json.loads((folder / GRADES).read_text(encoding="utf-8"))
        return grades["scoring"]["partial"] is True
    return False


def scored(judged: Iterable[Result], rows: list[Override], scoring: Scoring) -> list[Result]:
    """The results as every report shows them; the given results are left unchanged.

    Raises BadOverride.
    """
    judged = list(judged)
    names = names_of_one(judged, scoring.names)
    under_names = [_as_asked(with_gradebook_name(result, names), scoring.asked)
                   for result in judged]
    pointed = ([_by_promises(result, scoring.own_share) for result in under_names]
               if scoring.partial else under_names)
    by_hand = [_as_asked(result, scoring.asked) for result in overrides.apply(pointed, rows)]
    counted = _with_counts(due.apply(by_hand, scoring.course, scoring.cells))
    return strays.noted(counted, scoring.places, scoring.stages, scoring.stages)


def _as_asked(result: Result, asked: dict[int, tuple[str, ...]]) -> Result:
    """The result with the exercises that were asked for; other attempts are listed separately."""
    ids = asked.get(result["stage"])
    if result["status"] != "graded" or not ids:
        return result
    kept = [e for e in result["exercises"] if e["id"] in ids]
    beyond = [e for e in result["exercises"]
              if e["id"] not in ids and (e["status"] in ("pass", "wrong") or e.get("answer"))]
    return {**result, "exercises": kept, "points": rounded(sum(e["points"] for e in kept)),
            "possible": sum(e["possible"] for e in kept),
            "beyond": [*result.get("beyond", []), *beyond]}


def _by_promises(result: Result, own_share: float) -> Result:
    """The result with points for kept promises where an exercise does not pass."""
    entries = [{**entry, "points": points_for_promises(entry, own_share)}
               for entry in result["exercises"]]
    if result["status"] != "graded":
        return result
    return {**result, "exercises": entries, "points": rounded(sum(e["points"] for e in entries))}


def points_for_promises(entry: dict[str, Any], own_share: float = OWN_SHARE) -> float:
    """The points of an exercise for the promises that its answer keeps, in half points.

    own_share: the part of the points that is for the trap's own promise; the other promises share
    the rest equally. The share of cases with a right result is an upper bound; for an answer that
    is a registered mistake and nothing else, the bound is halfway between that share and all. An
    answer that does nothing gets nothing, and only a pass gets all points: an answer may keep every
    promise and still change its input.
    """
    if entry["status"] == "pass" or not entry.get("promises"):
        return entry["points"]
    if entry.get("idle"):
        return 0
    share = min(share_of_promises(entry, own_share), most_for_results(entry))
    whole_steps = math.floor(entry["possible"] * share / STEP + 1e-9) * STEP
    return rounded(min(whole_steps, entry["possible"] - STEP))


def share_of_promises(entry: dict[str, Any], own_share: float) -> float:
    """The share of an exercise's points for the promises that its answer keeps."""
    others = entry["promises"] - 1
    own = own_share if others else 1.0
    return own * entry["own_credit"] + (1 - own) * entry["others_credit"] / max(others, 1)


def most_for_results(entry: dict[str, Any]) -> float:
    """The largest share of an exercise's points that its answer can earn by its results."""
    right = entry["results_held"] / entry["cases"]
    return (1 + right) / 2 if entry["exactly"] else right


# ---- several submissions of one learner

def best(results: Iterable[Result]) -> list[Result]:
    """The graded submission with the most points for each learner and stage, the first of equals.

    A gradebook has one cell for it; grades.csv has a row for each submission.
    """
    chosen: dict[tuple, Result] = {}
    for result in results:
        if result["status"] == "graded":
            key = (owner(result), result["stage"])
            if key not in chosen or result["points"] > chosen[key]["points"]:
                chosen[key] = result
    return list(chosen.values())


def without_points(results: Iterable[Result]) -> list[Result]:
    """The first result of each learner without a graded submission; it has the reason."""
    results = list(results)
    graded = {owner(result) for result in results if result["status"] == "graded"}
    first: dict[tuple, Result] = {}
    for result in results:
        if owner(result) not in graded:
            first.setdefault(owner(result), result)
    return list(first.values())


def _with_counts(results: Sequence[Result]) -> list[Result]:
    """The results; where a learner has several for one stage, a note says which one counts."""
    times = Counter((owner(r), r["stage"]) for r in results if r["status"] == "graded")
    counted = {id(result) for result in best(results)}
    done = []
    for result in results:
        n = times.get((owner(result), result.get("stage")), 0)
        if result["status"] == "graded" and n > 1:
            which = "this one counts" if id(result) in counted else (
                "a different one, with more points, counts")
            note = f"Handed in {n} times for this stage; {which}."
            result = {**result, "notes": [*result["notes"], note]}
        done.append(result)
    return done


def remarks(results: Iterable[Result], scoring: Scoring) -> list[str]:
    """For the instructor: stages where worksheets lack exercises, but all exercises count."""
    short = sorted({r["stage"] for r in results if r.get("short") and r["status"] == "graded"
                    and r["stage"] not in scoring.asked and "stray" not in r})
    return [f"Stage {', '.join(map(str, short))}: some worksheets have only some of the "
            "exercises, but all exercises count here. The course.toml that dlsys release wrote "
            "says what was asked for: --course course.toml --resume"] if short else []
