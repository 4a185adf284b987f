"""Processes that the program starts: they are also watched, and their findings are collected.

A forked process inherits the watch. A spawned one is a new Python: it begins to watch when it
unpickles what its parent prepared, and only where it imports torch.
"""

from __future__ import annotations

import multiprocessing.spawn
import multiprocessing.util
import threading
from pathlib import Path

# What a spawned process unpickles: it must not fail there, whatever is missing.
BEGIN = """
import sys
sys.path.append({here!r})
try:
    from dlsys_watch import children
    children.begin({settings!r}, {notes!r})
except Exception:
    pass
finally:
    sys.path.remove({here!r})
"""


class Stowaway:
    """Begins the watch where it is unpickled; without this package there, nothing happens."""

    def __init__(self, settings, notes):
        self.settings, self.notes = settings, notes

    def __reduce__(self):
        asked = self.settings
        settings = {"hints": asked.hints, "silence": sorted(asked.silence), "form": asked.line_form,
                    "baseline": str(asked.baseline.absolute()) if asked.baseline else ""}
        here = str(Path(__file__).resolve().parents[1])
        return exec, (BEGIN.format(here=here, settings=settings, notes=str(self.notes)), {})


def follow(session):
    """Let spawned processes begin a watch of their own; gives a function that ends this."""
    real = multiprocessing.spawn.get_preparation_data

    def get_preparation_data(name):
        return {**real(name), "dlsys_watch": Stowaway(session.settings, session.notes)}

    multiprocessing.spawn.get_preparation_data = get_preparation_data

    def undo():
        if multiprocessing.spawn.get_preparation_data is get_preparation_data:
            multiprocessing.spawn.get_preparation_data = real
    return undo


def begin(settings: dict, notes: str) -> None:
    """Watch this process, and leave the findings in the folder `notes`."""
    from dlsys_watch.session import Session
    from dlsys_watch.settings import Settings

    known = settings["baseline"]
    session = Session(Settings(hints=settings["hints"], silence=frozenset(settings["silence"]),
                               form=settings["form"], baseline=Path(known) if known else None),
                      Path(notes))
    session.owner = session.report.owner = 0    # the parent's
    session.attach_with_torch()
    multiprocessing.util.Finalize(None, finish, args=(session,), exitpriority=100)


def finish(session) -> None:
    if threading.current_thread() is threading.main_thread():
        session.end()
