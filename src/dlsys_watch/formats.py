"""A finding, and the forms in which findings are told: text, JSON lines, annotations, SARIF."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata as metadata
import json
import linecache
import os
import re
from pathlib import Path, PurePath
from typing import NamedTuple
from urllib.parse import quote

from dlsys_watch import places

BOOK = Path(__file__).resolve().parents[2] / "book/_build/html"   # where the book was built here
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
EXPLANATIONS = Path(__file__).with_name("explanations.json")


class Finding(NamedTuple):
    """One line of the report; `trap` is the page that explains it."""

    rule: str
    trap: str
    file: str
    line: int
    message: str
    sound: bool

    def where(self) -> str:
        return f"{places.shown(self.file)}:{self.line}" if self.file else "(no line of yours)"

    def cause(self) -> str:
        """What the message says, whatever its numbers: the same at several places is one cause."""
        return re.sub(r"\d[\d.,e+-]*", "#", self.message)

    def told(self) -> str:
        return self.message if self.sound else f"perhaps {self.message}"

    def text(self) -> str:
        return (f"{self.where()}  {self.told()}  [{self.rule}] trap {self.trap} "
                f"{link(self.trap)}").rstrip()

    def key(self, folder: Path) -> tuple[str, str, str]:
        """What stays when lines are added above: rule, file as seen from `folder`, the code."""
        code = linecache.getline(self.file, self.line).strip() if self.file else ""
        return self.rule, seen_from(folder, self.file), code


def seen_from(folder: Path, file: str) -> str:
    """A file's path from a folder, with slashes; unchanged for a cell, or on another drive."""
    with contextlib.suppress(ValueError):
        file = os.path.relpath(file, folder) if os.path.isabs(file) else file
    return PurePath(file).as_posix() if file else ""


def link(trap: str) -> str:
    """Where the trap is explained: DLSYS_BOOK/traps/03-1.html, or in the book that was built here,
    or on the pages that the package names; "" if there are none.
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


def as_json(found: Finding) -> str:
    return json.dumps(found._asdict())


def as_annotation(found: Finding) -> str:
    """A workflow command: GitHub shows it at the line of the file."""
    kind = "warning" if found.sound else "notice"
    file = f"file={escaped(seen_from(Path.cwd(), found.file), ':,')},line={found.line},"
    said = f"{found.told()}  trap {found.trap} {link(found.trap)}".rstrip()
    return f"::{kind} {file if found.file else ''}title={found.rule}::{escaped(said)}"


def escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(c):02X}" if c in f"%\r\n{more}" else c for c in text)


def as_sarif(findings: list[Finding]) -> str:
    """A document in SARIF 2.1.0, as code scanning takes it."""
    told = json.loads(EXPLANATIONS.read_text("utf-8"))
    rules = [{"id": name, "name": name, "shortDescription": {"text": told[name]["finds"]},
              "fullDescription": {"text": f"Reads {told[name]['reads']}."},
              "help": {"text": f"Trap {told[name]['trap']}, {told[name]['title']}. "
                               f"See: dlsys-watch explain {name}"}}
             for name in sorted({f.rule for f in findings} & told.keys())]
    driver = {"name": "dlsys-watch", "rules": rules}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [
        {"tool": {"driver": driver}, "results": [result(f) for f in findings]}]}, indent=1)


def result(found: Finding) -> dict:
    """A result of SARIF; one without a line of its own stands at the script's first."""
    file = found.file or next(iter(places.main_file), "")
    place = {"artifactLocation": {"uri": quote(seen_from(Path.cwd(), file))},
             "region": {"startLine": max(found.line, 1)}}
    name = hashlib.sha256("\0".join(found.key(Path.cwd())).encode()).hexdigest()
    return {"ruleId": found.rule, "level": "warning" if found.sound else "note",
            "message": {"text": found.told()}, "partialFingerprints": {"dlsysWatch/v1": name},
            "locations": [{"physicalLocation": place}] if file else []}


LINES = {"text": Finding.text, "json": as_json, "github": as_annotation}
FORMATS = (*LINES, "sarif")


def written(findings: list[Finding], form: str) -> str:
    """All findings as the text of a file."""
    if form == "sarif":
        return as_sarif(findings) + "\n"
    return "".join(LINES[form](found) + "\n" for found in findings)
