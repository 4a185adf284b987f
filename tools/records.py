"""Records of measurements: each entry names its dependencies, and is stale once they change.

    swept = Record("sweep/{key}.json", done="swept", renew="make finish LESSON={key}")
    swept.stale("03", {"torch": "2.14.1", ...})
    -> "03: torch changed since it was swept. Run: make finish LESSON=03", or "" for a fresh entry

A file holds {key: {"rests_on": {part: fingerprint}, ...facts}}. The tests trust a fresh entry,
and measure again if it is stale.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlsys_helpers.paths import ROOT
from tools import fingerprints

FOLDER = ROOT / "tests" / "records"
NAMED = 4  # how many changed parts a message names
Facts = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """One kind of record, in one file or, if its name contains {key} or {stage}, in several.

    name: the file's name, below FOLDER. done: a participle for messages, such as "swept". renew:
    the command that renews an entry; it may name {key}. lines: whether each entry is on one line of
    its file.
    """

    name: str
    done: str
    renew: str
    lines: bool = False

    def path(self, key: str) -> Path:
        """The file of an entry; {stage} is the first two characters of its key."""
        return FOLDER / self.name.format(key=key, stage=key[:2])

    def entries(self, key: str = "") -> dict[str, Facts]:
        """All entries of the file for `key`; none if there is no file."""
        path = self.path(key)
        return json.loads(path.read_text("utf-8")) if path.exists() else {}

    def entry(self, key: str) -> Facts:
        """The entry for `key`; empty if there is none."""
        return self.entries(key).get(key, {})

    def stale(self, key: str, now: Mapping[str, str]) -> str:
        """Why an entry no longer counts, with the command that renews it; "" for a fresh one."""
        entry = self.entry(key)
        if not entry:
            why = f"not {self.done} yet"
        elif parts := fingerprints.changes(entry.get("rests_on", {}), now):
            more = f" and {len(parts) - NAMED} more" if len(parts) > NAMED else ""
            why = f"{', '.join(parts[:NAMED])}{more} changed since it was {self.done}"
        else:
            return ""
        return f"{key}: {why}. Run: {self.renew.format(key=key)}"

    def write(self, key: str, now: Mapping[str, str], facts: Mapping[str, Any],
              wanted: Collection[str] = ()) -> None:
        """Put one entry into its file. wanted: the keys that the file keeps; all if empty."""
        entries = self.entries(key) | {key: {"rests_on": dict(now), **facts}}
        self.write_all({name: entries[name] for name in sorted(entries)
                        if not wanted or name in wanted}, key)

    def write_all(self, entries: Mapping[str, Facts], key: str = "") -> None:
        """Write a file, whole or not at all."""
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.lines:
            rows = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
            text = "{\n" + ",\n".join(rows) + "\n}\n"
        else:
            text = json.dumps(entries, indent=1) + "\n"
        part = path.with_suffix(".part")
        part.write_text(text, "utf-8")
        os.replace(part, path)
