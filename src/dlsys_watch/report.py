"""Findings: said once a rule and place, on stderr and in a JSON file."""

from __future__ import annotations

import contextlib
import importlib.metadata as metadata
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

from dlsys_watch import places

BOOK = Path(__file__).resolve().parents[2] / "book/_build/html"   # where the book was built here
MOST_PLACES = 5   # of one rule: a fault in a loop over models need not fill the screen


class Finding(NamedTuple):
    """One line of the report; `trap` is the page that explains it."""

    rule: str
    trap: str
    file: str
    line: int
    message: str
    sound: bool

    def text(self) -> str:
        where = f"{places.shown(self.file)}:{self.line}" if self.file else "(no line of yours)"
        guess = "" if self.sound else "perhaps "
        return (f"{where}  {guess}{self.message}  [{self.rule}] trap {self.trap} "
                f"{link(self.trap)}").rstrip()


def link(trap: str) -> str:
    """Where the trap is explained: DLSYS_BOOK/traps/03-1.html, or in the book that was built here,
    or on the pages that the package names; "" where there are none.
    """
    page = f"traps/{trap.replace('.', '-')}.html"
    if base := os.environ.get("DLSYS_BOOK"):
        return f"{base.rstrip('/')}/{page}"
    if (BOOK / page).is_file():
        return str(BOOK / page)
    return f"{base.rstrip('/')}/{page}" if (base := published()) else ""


def published() -> str:
    """The address of the course's pages, as the installed package has it; "" for none."""
    for package in ("dlsys-watch", "dlsys-helpers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            for line in metadata.metadata(package).get_all("Project-URL") or []:
                if line.startswith("Documentation, "):
                    return line.removeprefix("Documentation, ")
    return ""


class Report:
    """What was found in this process and, of its children, in `notes` (a folder)."""

    def __init__(self, settings, notes: Path | None = None):
        self.settings, self.notes = settings, notes
        self.findings: list[Finding] = []
        self.failed: dict[str, str] = {}   # rule -> its own error
        self.owner = os.getpid()

    def add(self, rule, message: str, place, trap: str = "") -> bool:
        """Report a finding once; False where it is known, silenced or too much."""
        if rule.id in self.settings.silence or not (rule.sound or self.settings.hints):
            return False
        if {rule.id, "all"} & places.silenced(place):
            return False
        file, line = place or ("", 0)
        same = [f for f in self.findings if f.rule == rule.id]
        if any((f.file, f.line) == (file, line) for f in same) or len(same) >= MOST_PLACES:
            return False
        found = Finding(rule.id, trap or rule.trap, file, line, message, rule.sound)
        self.findings.append(found)
        self.print(found.text())
        self.write(found)
        return True

    def print(self, text: str) -> None:
        """A line on stderr, where there is one."""
        if sys.stderr is not None:
            print(text, file=sys.stderr, flush=True)

    def write(self, found: Finding) -> None:
        """Keep a finding of a child for its parent; of the parent, write all anew."""
        if os.getpid() != self.owner and self.notes is not None:
            self.notes.mkdir(mode=0o700, exist_ok=True)
            with (self.notes / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as notes:
                notes.write(json.dumps(found._asdict()) + "\n")
        else:
            self.write_json()

    def gather(self) -> None:
        """Take in what the children found, each rule and place once."""
        if self.notes is None or os.getpid() != self.owner:
            return
        known = {(f.rule, f.file, f.line) for f in self.findings}
        for notes in sorted(self.notes.glob("*.jsonl")):
            for line in notes.read_text("utf-8").splitlines():
                found = Finding(**json.loads(line))
                if (found.rule, found.file, found.line) not in known:
                    known.add((found.rule, found.file, found.line))
                    self.findings.append(found)
        self.write_json()

    def write_json(self) -> None:
        """The findings as a list, [] where there are none; whole at any moment."""
        file = self.settings.json
        if file is None or os.getpid() != self.owner:
            return
        part = file.with_name(f"{file.name}.part")
        part.write_text(json.dumps([f._asdict() for f in self.findings], indent=1) + "\n", "utf-8")
        part.replace(file)
