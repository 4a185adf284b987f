"""Findings: said once a rule and place, on stderr and in files."""

from __future__ import annotations

import json
import os
import sys
from math import inf
from pathlib import Path

from dlsys_watch import baseline, places
from dlsys_watch.formats import LINES, Finding, written

MOST_PLACES = 5   # of one rule: a fault in a loop over models need not fill the screen


def also(file: str, others: list[Finding]) -> str:
    """The further places of a cause: "also at lines 208 and 212"."""
    here = [str(f.line) for f in others if f.file == file]
    named = [f"line{'s' * (len(here) > 1)} {joined(here)}"] if here else []
    return "also at " + joined(named + [f.where() for f in others if f.file != file])


def joined(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


class Report:
    """What was found in this process and, of its children, in `notes` (a folder)."""

    def __init__(self, settings, notes: Path | None = None):
        self.settings, self.notes = settings, notes
        self.findings: list[Finding] = []
        self.more: dict[Finding, list[Finding]] = {}   # by the first of a cause: its other places
        self.beyond: dict[Finding, set] = {}   # by the first of a rule: places past the most
        self.failed: dict[str, str] = {}   # rule -> its own error
        self.owner = os.getpid()
        known = settings.baseline
        self.base = known.absolute().parent if known else Path.cwd()
        self.expected = baseline.read(known) if known else frozenset()
        self.known: dict[tuple, Finding] = {}   # what was found and is in the baseline

    def add(self, rule, message: str, place, trap: str = "") -> bool:
        """Report a finding once; False if it is known, silenced or too much."""
        if rule.id in self.settings.silence or not (rule.sound or self.settings.hints):
            return False
        if {rule.id, "all"} & places.silenced(place):
            return False
        if any(f.rule in rule.follows for f in self.findings):   # one cause, told already
            return False
        file, line = place or ("", 0)
        same = [f for f in self.findings if f.rule == rule.id]
        found = Finding(rule.id, trap or rule.trap, file, line, message, rule.sound)
        if any((f.file, f.line) == (file, line) for f in same) or self.is_known(found):
            return False
        if len(same) >= self.most():
            self.beyond.setdefault(same[0], set()).add((file, line))
            return False
        self.findings.append(found)
        first = next((f for f in same if f.cause() == found.cause()), None)
        if first is None or self.settings.line_form != "text":
            self.tell(found)
        else:
            self.more.setdefault(first, []).append(found)
        self.write(found)
        return True

    def most(self) -> float:
        """How many places of a rule are kept: all of them where no person reads them."""
        asked = self.settings
        return inf if asked.new_baseline or asked.line_form != "text" else MOST_PLACES

    def is_known(self, found: Finding) -> bool:
        """Whether the baseline holds a finding; the end of the run says how many there were."""
        if not self.expected or found.key(self.base) not in self.expected:
            return False
        self.known[found[:4]] = found
        return True

    def tell(self, found: Finding) -> None:
        """Print a finding, and pass it to the callback if there is one."""
        if not self.is_told_by_rank_0():
            self.print(LINES[self.settings.line_form](found))
        if self.settings.on_finding is not None and "on_finding" not in self.failed:
            try:
                self.settings.on_finding(found)
            except Exception as error:
                self.failed["on_finding"] = f"{type(error).__name__}: {error}"
                self.print(f"dlsys watch: on_finding failed and is called no more "
                           f"({self.failed['on_finding']})")

    def tell_more(self) -> None:
        """One line for each cause that showed at further places: which ones."""
        for first, others in () if self.is_told_by_rank_0() else self.more.items():
            self.print(f"{first.where()}  {also(first.file, others)}  [{first.rule}]")
        for first, left_out in () if self.is_told_by_rank_0() else self.beyond.items():
            self.print(f"{first.where()}  and at {len(left_out)} more, which are not listed  "
                       f"[{first.rule}]")
        self.more.clear()
        self.beyond.clear()

    def rank(self) -> int:
        """The rank of this process among those that train together, 0 where it is alone."""
        dist = getattr(sys.modules.get("torch"), "distributed", None)
        return dist.get_rank() if dist and dist.is_available() and dist.is_initialized() else 0

    def is_told_by_rank_0(self) -> bool:
        """Whether this is one of several ranks that a watched process has started."""
        return os.getpid() != self.owner and self.notes is not None and self.rank() > 0

    def print(self, text: str) -> None:
        """A line on stderr, where there is one."""
        if sys.stderr is not None:
            print(places.printable(text), file=sys.stderr, flush=True)

    def write(self, found: Finding) -> None:
        """In a child, keep a finding for the parent; in the parent, write all findings again."""
        if os.getpid() != self.owner and self.notes is not None:
            self.notes.mkdir(mode=0o700, exist_ok=True)
            with (self.notes / f"{self.rank()}_{os.getpid()}.jsonl").open(
                    "a", encoding="utf-8") as notes:
                notes.write(json.dumps(found._asdict()) + "\n")
        else:
            self.write_files()

    def gather(self) -> None:
        """Take in what the children found, each rule and place once."""
        self.tell_more()
        if self.notes is None or os.getpid() != self.owner:
            return
        known = {(f.rule, f.file, f.line) for f in self.findings}
        for notes in sorted(self.notes.glob("*.jsonl")):
            for line in notes.read_text("utf-8").splitlines():
                found = Finding(**json.loads(line))
                if (found.rule, found.file, found.line) not in known:
                    known.add((found.rule, found.file, found.line))
                    self.findings.append(found)
                    if not notes.name.startswith("0_"):    # rank 0, which speaks, missed it
                        self.tell(found)
        self.write_files()
        if self.known:
            self.print(f"dlsys watch: {len(self.known)} left out, which are in "
                       f"{places.shown(str(self.settings.baseline))}")
        if (file := self.settings.new_baseline) is not None:
            every = [*self.findings, *self.known.values()]
            replace(file, baseline.text(every, file.absolute().parent))
            self.print(f"dlsys watch: wrote {len(every)} to {places.shown(str(file))}")
        self.known.clear()

    def write_files(self) -> None:
        """All findings of this process, in the files that were asked for."""
        asked = self.settings
        if os.getpid() != self.owner:
            return
        if asked.json is not None:
            replace(asked.json, json.dumps([f._asdict() for f in self.findings], indent=1) + "\n")
        if asked.output is not None:
            replace(asked.output, written(self.findings, asked.form))


def replace(file: Path, text: str) -> None:
    """Write a file that is whole at any moment."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(text, "utf-8")
    part.replace(file)
