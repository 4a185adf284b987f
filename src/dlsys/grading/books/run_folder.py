"""The names of the files in a run's folder, and how to write one there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dlsys_helpers.errors import UserError

JOURNAL, GRADES = "journal.jsonl", "grades.json"
FEEDBACK = "feedback"  # the folder of the learners' pages
OVERRIDES = "overrides.csv"  # points by hand
COURSE, EXTENSIONS = "course.toml", "extensions.csv"  # due dates
GIVEN = "given"  # copies of the gradebooks
FROM_THE_INSTRUCTOR = (OVERRIDES, COURSE, EXTENSIONS, GIVEN)  # the points depend on these
FROM_A_FINISHED_RUN = (GRADES, FEEDBACK)  # the next reports read these again
SCHEMA = 2  # the form of the journal and of grades.json


class RunError(UserError):
    """A run cannot begin or go on. The message says what to do."""


def write_private(path: Path, content: str | bytes, encoding: str = "utf-8") -> None:
    """Write a file that only its owner reads, whole or not at all."""
    data = content.encode(encoding) if isinstance(content, str) else content
    temporary = path.with_name(path.name + ".part")
    with suppress(FileNotFoundError):
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    temporary.replace(path)
