"""An exam desk's record in words: the price and the names of each case, and sheets not handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from dlsys import assignments
from dlsys.grading.books.people import Result
from dlsys.grading.text import clean, rounded
from dlsys_checks.exam import sheet

TRIED = {0: "not named", 1: "named at the first try", 2: "named at the second try"}
HEAD = ["learner", "id", "submission", "sheet", "ticket", "begun as", "case", "points", "possible",
        "paid", "budget", "bought", "named at try", "first name", "understood as", "second name",
        "understood as"]


def short_name(number: int) -> str:
    """A sheet's name in a narrow column: `exam A`, with its round from the second one on."""
    form, turn = sheet.form_and_round(number)
    return f"exam {form}" + (f", round {turn + 1}" if turn else "")


def by_case(result: Result) -> list[list[dict[str, Any]]]:
    """The rows of a result in groups, one for each case; a single group for a worksheet."""
    if not assignments.is_exam(result["stage"]):
        return [result["exercises"]]
    return [[*rows] for _, rows in groupby(result["exercises"], lambda row: row["function"])]


def points(rows: Iterable[dict[str, Any]], key: str = "points") -> float:
    """The points of a case."""
    return rounded(sum(row[key] for row in rows))


def cases(result: Result) -> list[dict[str, Any]]:
    """The points of each case and what the desk recorded; [] if the result is no exam sheet."""
    record = result.get("sheet", {}).get("cases", [])
    return [{**one, "place": place, "points": points(rows), "possible": points(rows, "possible"),
             "said": in_words(one)}
            for place, (rows, one) in enumerate(zip(by_case(result), record, strict=False), 1)]


def in_words(case: dict[str, Any]) -> str:
    """`paid 57, budget 10; named at the first try`."""
    said = TRIED[case["right"]]
    if case["names"] and not case["right"]:
        said = f"not named in {len(case['names'])} {'try' if len(case['names']) == 1 else 'tries'}"
    return f"paid {case['paid']}, budget {case['budget']}; {said}"


def table(results: Iterable[Result]) -> list[list]:
    """One row for each case of each exam sheet; only the head if there is none."""
    return [HEAD, *(_row(result, case) for result in results for case in cases(result))]


def _row(result: Result, case: dict[str, Any]) -> list:
    learner, record = result["learner"], result["sheet"]
    tried = [text for name in case["names"] for text in (name["said"], name["understood"])]
    return [learner["name"], learner["id"], result["name"],
            assignments.stage(result["stage"]).title, record["ticket"], record["begun"],
            case["place"], case["points"], case["possible"], case["paid"], case["budget"],
            ", ".join(case["bought"]), case["right"] or "", *tried, *[""] * (4 - len(tried))]


# ---- sheets that were begun

def unsettled(folder: str, results: Sequence[Result]) -> list[dict[str, str]]:
    """Sheets of this run's forms that were not handed in, and names under which several were begun.

    folder: the desk's, "" for none. Each has a name, its tickets, a reason and a next step.
    """
    handed = {(r["stage"], r["sheet"]["ticket"]) for r in results if "sheet" in r}
    if not handed:
        return []
    begun = _begun(folder)
    forms = {number for number, _ in handed}
    mine = {key: name for key, name in begun.items() if key[0] in forms}
    return [*(_open(name, key) for key, name in mine.items() if key not in handed), *_twice(mine)]


def _begun(folder: str) -> dict[tuple[int, str], str]:
    """The sheets that were begun at a desk, by number and ticket, with their names."""
    from dlsys import exam_desk
    if not (Path(folder) / exam_desk.KEY).is_file():
        return {}  # the run can continue after its desk was moved away
    desk = exam_desk.of_class(Path(folder))
    keys = dict.fromkeys((entry["sheet"], entry.get("ticket", "")) for entry in desk.entries()
                         if "begun" in entry)
    return {key: clean(desk.begun_by(*key), 80) for key in keys}


def _open(name: str, key: tuple[int, str]) -> dict[str, str]:
    return {"name": name or "no name", "tickets": key[1],
            "reason": f"was begun ({assignments.stage(key[0]).title}) and never handed in.",
            "step": "Ask for it. If its learner handed in a different sheet, ask why."}


def _twice(mine: dict[tuple[int, str], str]) -> list[dict[str, str]]:
    """Names under which several sheets of one form were begun."""
    found: dict[tuple[int, str], list[tuple[str, str]]] = {}
    for (number, ticket), name in mine.items():
        if name:
            found.setdefault((number, name.casefold()), []).append((name, ticket))
    return [{"name": same[0][0], "tickets": ", ".join(ticket for _, ticket in same),
             "reason": f"began {len(same)} sheets of one form.",
             "step": "Ask which of them counts. Two people may have the same name."}
            for same in found.values() if len(same) > 1]
