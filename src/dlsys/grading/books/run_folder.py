"""The names of the files in a run's folder."""

from __future__ import annotations

from dlsys_helpers.errors import UserError

JOURNAL, GRADES = "journal.jsonl", "grades.json"
FEEDBACK = "feedback"  # the folder of the learners' pages
OVERRIDES = "overrides.csv"  # points by hand
COURSE, EXTENSIONS = "course.toml", "extensions.csv"  # due dates
COMMENTS = "comments.csv"  # an instructor's own comments, by name
MARKING = "marking"  # the folder of the pages for marking by hand
GIVEN = "given"  # copies of the gradebooks
FROM_THE_INSTRUCTOR = (OVERRIDES, COURSE, EXTENSIONS, COMMENTS, GIVEN)  # the points depend on these
FROM_A_FINISHED_RUN = (GRADES, FEEDBACK, MARKING)  # the next reports read these again
SCHEMA = 3  # the form of the journal and of grades.json


class RunError(UserError):
    """A run cannot begin or go on. The message says what to do."""
