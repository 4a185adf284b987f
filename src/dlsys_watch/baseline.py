"""A file of the findings of today: tomorrow they are passed over, and only new ones are told.

A finding is known by its rule, its file and the text of its line, so that lines may be added above.
"""

from __future__ import annotations

import json
from pathlib import Path

from dlsys_watch.settings import SettingsError

VERSION = 1


def read(file: Path) -> frozenset[tuple[str, str, str]]:
    """The keys of the findings that a file holds. Raises SettingsError."""
    try:
        held = json.loads(file.read_text("utf-8"))
        if held["dlsys_watch_baseline"] != VERSION:
            raise ValueError(f"version {held['dlsys_watch_baseline']}")
        return frozenset((f["rule"], f["file"], f["code"]) for f in held["findings"])
    except FileNotFoundError:
        raise SettingsError(f"--baseline {file}: there is no such file. Make it with "
                            f"--write-baseline {file}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{file} is not a baseline of version {VERSION} "
                            f"({type(error).__name__}: {error}). Write a new one under a "
                            "different name: --write-baseline FILE") from None


def text(findings: list, folder: Path) -> str:
    """The text of a baseline in `folder` that knows these findings, each once and in order."""
    rows = [dict(zip(("rule", "file", "code"), key, strict=True))
            for key in sorted({found.key(folder) for found in findings})]
    return json.dumps({"dlsys_watch_baseline": VERSION, "findings": rows}, indent=1) + "\n"
