"""*Your model* behind the walls: parts that passed their checks, in a small model and in the
course's notebook.

Stand-ins enter the sandbox only here, after the last check. The stand-in of the part on trial never
does.
"""

from __future__ import annotations

from typing import Any, Protocol

from dlsys.grading import model_laws
from dlsys.grading.walls import serialization
from dlsys.grading.walls.sandbox import Attempt, Sandbox, pack_act
from dlsys_helpers.acting import Case, Outcome
from dlsys_helpers.verdicts import Verdict

Cells = list[tuple[int, str]]
# This text is on every page with points of *Your model*.
FORGEABLE = ("A part's check ran where no stand-in can be reached, and was judged outside. Whether "
             "the part also holds in the model is measured in its own process, where its stand-in "
             "is missing. Code that rewrites that process can forge this second measurement only.")


class Session(Protocol):
    """What this module needs of `judge.GradingSession`."""

    sandbox: Sandbox
    papers: Any
    verdicts: dict[str, Verdict]
    died: dict[str, bool]
    notes: list[str]

    def cells_that_end(self) -> Cells: ...

    def outcomes(self, paper: Any, answer: bytes) -> list[Outcome]: ...


def judge(session: Session) -> None:
    """Try each part that passed its check in a small model; then run the course's notebook.

    A part that does not work in the model loses its pass. See FORGEABLE.
    """
    passed = [paper for paper in session.papers
              if session.verdicts[paper.exercise.id].status == "pass"]
    if not passed:
        return
    cells = session.cells_that_end()
    for paper in passed:
        if said := _fault(session, paper, cells):
            id = paper.exercise.id
            session.verdicts[id] = Verdict("wrong", id, case=model_laws.IN_MODEL, message=(
                f"passes its check, but in the model {said.rstrip('.')}."))
    session.notes += [FORGEABLE, *_claims(session, cells)]


def _fault(session: Session, paper: Any, cells: Cells) -> str:
    """What is wrong with a part in a small model, "" if it works.

    A fault counts only if it happens again when each cell and each answer has its own process.
    """
    row, said = paper.exercise, ""
    cases = [row.trial(seed) for seed in paper.seeds]
    packed = pack_act(row.id, paper.trap.function, model_laws.TRIAL, cases)
    for careful in (False, True):
        attempt = session.sandbox.attempt(cells, [packed], careful=careful, checkpoints=careful,
                                          both=careful)
        session.died[row.id] = attempt.fault == "died" and not attempt.answers
        found = [_said(session, paper, cases, answer) for answer in attempt.answers.get(0, [])]
        if "" in found:
            return ""
        said = found[0] if found else f"{paper.trap.function} sent no answer"
    return said


def _said(session: Session, paper: Any, cases: list[Case], answer: bytes) -> str:
    """What the model says about one answer to all cases, "" if it works in each."""
    try:
        outcomes = session.outcomes(paper, answer)
    except ValueError as error:
        return str(error)
    if len(outcomes) != len(cases):
        return f"{paper.trap.function} sent something that cannot be read"
    found = (paper.exercise.fault_in_model(case, outcome)
             for case, outcome in zip(cases, outcomes, strict=True))
    return next(filter(None, found), "")


def _claims(session: Session, cells: Cells) -> list[str]:
    """Notes about the claims of the course's own notebook, run with the parts that hold.

    They earn no points. Each cell has the usual time limit, and a cell that needs more processes
    or sockets stops in the sandbox.
    """
    mine = [id for id, verdict in session.verdicts.items() if verdict.status == "pass"]
    if not mine:
        return []
    course = model_laws.notebook_cells(mine)
    asked: Attempt = session.sandbox.attempt(
        [*cells, *enumerate(course, 1 + max(number for number, _ in cells))],
        [pack_act("90.0", "claims_made", "", [Case("all", {})])], careful=True, checkpoints=True)
    sent = [message.get("value") for payload in asked.answers.get(0, [])
            for message in _messages(payload) if type(message) is dict]
    known = model_laws.claims(course)
    held, broken = model_laws.claims_that_held(known, sent[0] if sent else None)
    rest = len(known) - len(held) - len(broken)
    said = [f"The notebook of the course with these parts: of its {len(known)} claims {len(held)} "
            f"hold and {len(broken)} do not; {rest} were not reached, because they need "
            "processes of their own, or more time than a cell has in the sandbox."]
    return said + [f"With these parts, this claim does not hold: {text}." for text in broken]


def _messages(payload: bytes) -> list:
    try:
        return serialization.unpack_all(payload)
    except serialization.WireError:
        return []
