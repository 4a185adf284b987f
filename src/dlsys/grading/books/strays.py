"""Hand-ins that do not count as they are: why, and what learner and instructor should do.

Such a hand-in is for a different stage, is no worksheet, is from a person who is not in the
gradebook, has a number that two people share, or is somebody else's exam sheet. The other hand-ins
still get their points.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlsys import assignments
from dlsys.grading.books.people import Result, owner

# Words in the reason for a refusal, and what the learner should do.
_STEPS = (
    ("own lesson notebook|own solution notebook|not a worksheet of this course",
     "Hand in {file}, the notebook in which you wrote your answers."),
    ("not a notebook|no notebook|begin with a brace|not text",
     "Hand in {file} itself, the file that ends in .ipynb: no PDF, no link, no text."),
    ("a link", "Hand in {file} itself, not a link to it."),
    ("encrypted|packed|zip|of files|lies in",
     "Hand in {file} itself, not in a zip or a folder."),
    ("MiB", "Clear its outputs (in JupyterLab: Edit, Clear Outputs of All Cells), save it, and "
            "hand it in again."),
    ("was not begun", "Hand in the sheet that your class's desk gave you, with its first code cell "
                      "unchanged."),
    ("notebooks of one learner", "Hand in only {file}."),
    ("cut off|damaged|conflict|is empty|UTF-8|cells|format|nested|too long|is JSON|whose source",
     "Open {file} in JupyterLab, save it, check that it opens again, and hand it in again."),
    ("", "Hand in {file} again, or ask your instructor."))
_ASK = "Ask for {file}; until then, put points into overrides.csv."


@dataclass(frozen=True)
class Place:
    """Where the points of an LMS go.

    source: "canvas" or "moodle". stages: those that have a column; None for a single column, which
    takes the most frequent stage. rule: every stage has a column. ids: of the people in it.
    """

    source: str
    ids: frozenset[str]
    stages: frozenset[int] | None = None
    rule: bool = False


def column_stage(results: Iterable[Result], asked: Collection[int] = ()) -> int | None:
    """The stage of a single column: the only result stage that was asked for, else that of more
    than half; None if there is neither.
    """
    found = Counter(r["stage"] for r in results)
    if len(those := found.keys() & {*asked}) == 1:
        return next(iter(those))
    main, most = found.most_common(1)[0] if found else (None, 0)
    return main if 2 * most > found.total() else None


def noted(results: Sequence[Result], places: Sequence[Place], asked: Collection[int],
          course: Collection[int] = ()) -> list[Result]:
    """The results; one that does not count as it is gets a `stray`: reason, step, you.

    reason continues "it"; step is for the instructor, you for the learner. asked: stages.
    course: the stages of the course. They are the ones that count where there is no gradebook,
    unless every hand-in is for a different stage.
    """
    graded = [r for r in results if r["status"] == "graded"]
    wanted = {place.source: _wanted(place, graded, asked) for place in places}
    usual = column_stage(graded, asked)
    foreign = graded and not any(r["stage"] in course for r in graded)
    known = frozenset() if foreign else frozenset(course)

    def stages_for(result: Result) -> Collection[int]:
        return wanted.get(_source(result), known)

    fine = {owner(r) for r in graded if r["stage"] in (stages_for(r) or [r["stage"]])}
    people = {owner(r): r for r in graded}.values()
    twins = Counter((_source(r), r["learner"]["id"]) for r in people)
    sheets: dict[tuple, dict[tuple, str]] = {}
    for r in graded:
        if "sheet" in r:
            sheets.setdefault(_ticket(r), {})[owner(r)] = r["learner"]["name"]
    done = []
    for result in results:
        stages = stages_for(result)
        file = _file(stages or ([usual] if usual else ()))
        found = _why(result, stages, file, {p.source: p for p in places}, twins) or (
            _whose(result, sheets))
        if found and owner(result) in fine and found["kind"] in ("refused", "stage"):
            found |= {"step": "Nothing: a different hand-in of this learner counts.", "you": ""}
        done.append({**result, "stray": found} if found else result)
    return done


def _source(result: Result) -> str:
    return result["learner"]["source"]


def _wanted(place: Place, graded: Sequence[Result],
            asked: Collection[int]) -> frozenset[int]:
    """The stages that have a place; none if every stage has one, or if that is unclear."""
    if place.rule:
        return frozenset()
    if place.stages is not None:
        return place.stages
    stage = column_stage([r for r in graded if _source(r) == place.source], asked)
    return frozenset() if stage is None else frozenset([stage])


def _file(stages: Collection[int | None]) -> str:
    names = [f"`{assignments.stage(n).stem}.ipynb`" for n in sorted(filter(None, stages))]
    return " or ".join(names) if 0 < len(names) < 4 else "your worksheet"


def _why(result: Result, stages: Collection[int], file: str, places: Mapping[str, Place],
         twins: Counter) -> dict[str, Any]:
    """Kind, reason and steps of one result; {} if nothing is wrong."""
    learner, source = result["learner"], _source(result)
    if result["status"] == "refused":
        step = next(step for words, step in _STEPS if re.search(words, result["reason"]))
        return {"kind": "refused", "reason": result["reason"], "you": step.format(file=file),
                "step": _ASK.format(file=file.replace("your", "the"))}
    if result["status"] != "graded":
        return {"kind": "failed", "reason": f"stopped the grader: {result['reason']}", "you": "",
                "step": "Grade it again: --resume --regrade NAME; or put points into "
                        "overrides.csv."}
    number = result["stage"]
    if stages and number not in stages:
        which = ("stage " + " or ".join(map(str, sorted(stages))) if len(stages) < 4
                 else "a different one")
        return {"kind": "stage",
                "reason": f"is for stage {number}, but {which} was asked for.",
                "you": f"Hand in {file}.", "wanted": min(stages),
                "step": f"Ask for {file.replace('your', 'the')}; or give stage {number} a place: "
                        f'--canvas CSV "{number}=COLUMN", --moodle {number}=CSV.'}
    place = places.get(source)
    if place and learner["id"] and learner["id"] not in place.ids:
        return {"kind": "unknown", "reason": f"is of {learner['name']}, number {learner['id']}, "
                "who is not in the gradebook.", "you": "Tell your instructor: the gradebook of "
                "this course does not have you.",
                "step": f"Add the learner and type in {result['points']} points, or download the "
                        "gradebook again."}
    if place and twins[source, learner["id"]] > 1:
        return {"kind": "twins", "reason": f"has the number {learner['id']}, as does the "
                "hand-in of a different learner.",
                "you": "Tell your instructor: two hand-ins have your number.",
                "step": "Look at both and remove one; neither is filled in."}
    return {}


def _ticket(result: Result) -> tuple:
    return result["stage"], result["sheet"]["ticket"]


# By whether the desk's record has this learner's name: what is wrong, and what the learner does.
_COPIES = {
    True: ("is your exam sheet, and somebody else handed in a copy of it.",
           "You need not do anything. The record of the exam has this sheet under your name."),
    False: ("is a copy of an exam sheet that the desk gave to somebody else.",
            "Tell your instructor why you handed in this sheet, and which sheet is yours.")}


def _whose(result: Result, sheets: Mapping[tuple, Mapping[tuple, str]]) -> dict[str, Any]:
    """Kind, reason and steps of an exam sheet that may be somebody else's; {} for any other.

    The learner reads the reason, so it names nobody. If several learners have a copy, the name
    in the desk's record decides whose it is. Points stay until the instructor decides.
    """
    if "sheet" not in result:
        return {}
    begun, people = result["sheet"]["begun"], sheets.get(_ticket(result), {})
    who, owners = sorted(people.values()), [one for one, name in people.items()
                                            if begun and _same_person(begun, {"name": name})]
    you = "Tell your instructor whose sheet it is."
    if len(who) > 1 and len(owners) == 1:
        reason, you = _COPIES[owner(result) == owners[0]]
    elif len(who) > 1:
        reason = "is an exam sheet that more than one learner handed in."
    elif begun and not _same_person(begun, result["learner"]):
        reason = "is an exam sheet that was begun under another name."
    else:
        return {}
    return {"kind": "sheet", "reason": reason, "you": you,
            "step": f"Begun as {begun or 'nobody'!r}, handed in by {', '.join(who)}. Its points "
                    "count; if they should not, say so in overrides.csv."}


def _same_person(begun: str, learner: Mapping[str, str]) -> bool:
    """Whether a typed name and a learner have a word in common, as "Ada" and "Lovelace, Ada"."""
    known = " ".join(str(learner.get(key, "")) for key in ("name", "download_name", "raw", "id"))
    together = "".join(re.findall(r"\w+", known.casefold()))
    words = re.findall(r"\w+", begun.casefold())
    return any(word in together for word in words)
