"""The verdict on an answer: its five statuses, with their wording and look everywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple


class Status(NamedTuple):
    """How a status looks: a word for people, a mark, a colour for HTML, a style for terminals."""

    word: str
    mark: str
    tone: str
    style: str


# Mid tones with a contrast of at least 3:1 on white and on black; the words carry the meaning.
STATUSES = {
    "pass": Status("passed", "✓", "#07875a", "green"),
    "todo": Status("not written yet", "·", "#667085", "dim"),
    "wrong": Status("not right yet", "✗", "#c4620a", "yellow"),
    "error": Status("stopped with an error", "!", "#d92d20", "red"),
    "missing": Status("not found", "?", "#d92d20", "red"),
}
_LINE = re.compile(rf"exercise \S+ ({'|'.join(STATUSES)})(?:: )?(.*)", re.S)


@dataclass(frozen=True)
class Verdict:
    """The result of judging an answer: one of STATUSES, and why.

    message: the sentence for people; it names the misconception if one is known. law: what was
    compared. case, seed: where it failed. accident: the law itself raised an error, so the
    diagnosis is only general. seen: the observation that failed, which is compared with those of
    the named wrong answers; None for a pass.
    """

    status: str
    id: str
    message: str = ""
    misconception: str = ""
    trap: str = ""
    law: str = ""
    case: str = ""
    seed: int | None = None
    accident: bool = False
    seen: tuple | None = field(default=None, compare=False, repr=False)

    def head(self) -> str:
        """`Exercise 01.4: not right yet`."""
        return f"Exercise {self.id}: {STATUSES[self.status].word}"

    def see(self, title: str | None = None) -> str:
        """Where to read on, with the trap's title where it is known; "" without a trap."""
        named = f"{self.trap}: {title}" if title else self.trap
        return f"See trap {named}." if self.trap else ""

    def line(self) -> str:
        """One line for terminals, nbval and papermill; `read_line` parses it."""
        return f"exercise {self.id} {self.status}: {self.message}".rstrip(": ")

    def facts(self) -> dict[str, dict[str, str]]:
        """Metadata of the output that shows this verdict, for code that reads notebooks."""
        return {"dlsys": {"id": self.id, "status": self.status}}


def todo(id: str, function: str) -> Verdict:
    """The verdict on an exercise whose stub is still there."""
    return Verdict("todo", id, f"Write the body of {function}, then check it again.")


def read_line(text: str) -> tuple[str, str] | None:
    """Status and message of a `Verdict.line`, or None for other text."""
    match = _LINE.match(text)
    return (match[1], match[2].strip()) if match else None
