"""What a learner is told if an answer only raises an error, and how a mistake is named.

The texts of the laws are in the laws; no verdict depends on any text.
"""

from __future__ import annotations

from dataclasses import replace

from dlsys_helpers.acting import Outcome
from dlsys_helpers.expect import show
from dlsys_helpers.verdicts import Verdict


def raised(id: str, case: str, outcome: Outcome, seen: tuple) -> Verdict:
    """The verdict on an answer that itself raised an error."""
    message = f"raised {outcome.error_type}: {outcome.error}"[:230] + _place(outcome)
    return Verdict("error", id, f'{message} on the case "{case}".', case=case, seen=seen)


def late(id: str, case: str, outcome: Outcome) -> Verdict:
    """The verdict on an answer that ran past its time limit."""
    return Verdict("error", id, f'{outcome.error} on the case "{case}"; is there a loop that never '
                   f"ends?{_place(outcome)}", case=case)


def unusable(id: str, case: str, outcome: Outcome, seen: tuple) -> Verdict:
    """The function returned, but what the check then did with it or its arguments failed."""
    message = (f"returned value: got {show(outcome.value)}. Used as the docstring says, it led to "
               f"{outcome.error_type}: {outcome.error}")[:290]
    return Verdict("wrong", id, message, case=case, seen=seen)


def of_no_form(id: str, case: str, outcome: Outcome, seen: tuple) -> Verdict:
    """The verdict if the law itself raised an error on the returned value."""
    message = f"got {show(outcome.value)}, expected the form that the docstring gives."
    return Verdict("wrong", id, f"returned value: {message}", case=case, accident=True, seen=seen)


def named(verdict: Verdict, mistake: str, trap: str) -> Verdict:
    """The verdict with the name of the mistake behind it."""
    return replace(verdict, status="wrong", misconception=mistake, trap=trap,
                   message=f"{verdict.message} You get exactly this by {mistake}.")


def _place(outcome: Outcome) -> str:
    return f" ({outcome.where})" if outcome.where else ""
