"""Every event of a room in one append-only SQLite file.

Every acknowledged event is in the file: killing the server, even with -9, loses none. (A power
failure may lose the last moments, because the file is not forced to the disk at each answer.)
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlsys.room.questions import RoomError

NAME = "room.sqlite"
STALE = 12 * 3600  # seconds after which a room was another class's


class Log:
    """The events of a room. The first holds what it was opened with: stages, code and secrets."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            for path in (self.path, *folder.glob(f"{NAME}-*")):
                os.chmod(path, 0o600)  # only for the presenter, even if it existed before
            self.base = sqlite3.connect(self.path, isolation_level=None, timeout=0)
            self.base.execute("PRAGMA locking_mode=EXCLUSIVE")  # one server for a room
            self.base.execute("PRAGMA journal_mode=WAL")
            self.base.execute("PRAGMA synchronous=NORMAL")
            self.base.execute("CREATE TABLE IF NOT EXISTS events "
                              "(number INTEGER PRIMARY KEY, at REAL, event TEXT)")
        except (OSError, sqlite3.Error) as error:
            if hasattr(self, "base"):
                self.base.close()
            if getattr(error, "sqlite_errorname", "") == "SQLITE_BUSY":
                raise RoomError(f"{folder}: this room is already open. Name a different folder "
                                "with --out FOLDER.") from None
            raise RoomError(f"{self.path}: cannot be written ({error}). Name another folder with "
                            "--out FOLDER.") from None

    def append(self, event: dict[str, Any]) -> None:
        """Keep an event; it is in the file when this returns. Raises sqlite3.Error."""
        self.base.execute("INSERT INTO events (at, event) VALUES (?, ?)",
                          (time.time(), json.dumps(event)))

    def events(self) -> Iterator[dict[str, Any]]:
        """All events in order. Raises RoomError if the file is not a room's."""
        try:
            for (text,) in self.base.execute("SELECT event FROM events ORDER BY number"):
                yield json.loads(text)
        except (sqlite3.Error, ValueError) as error:
            raise RoomError(f"{self.path}: cannot be read ({error}).") from None

    def close(self) -> None:
        self.base.close()


def is_open(folder: Path) -> bool:
    """Whether a room in this folder was begun today and never ended: its server was killed.

    False while its server runs.
    """
    if not (folder / NAME).is_file():
        return False
    try:
        log = Log(folder)
    except RoomError:
        return False
    try:
        last = log.base.execute("SELECT at, event FROM events ORDER BY number DESC").fetchone()
        return (last is not None and last[0] > time.time() - STALE
                and json.loads(last[1])["kind"] != "end")
    except (sqlite3.Error, ValueError, KeyError, TypeError):
        return False
    finally:
        log.close()
