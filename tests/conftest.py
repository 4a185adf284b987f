"""Shared by all tests: the learner's own progress is never touched."""

import os

os.environ.setdefault("DLSYS_PROGRESS", "off")
