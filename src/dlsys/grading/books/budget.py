"""Limit how long one learner's submissions may take, so that no learner blocks a worker for hours.

Each submission has a limit, but a learner may hand in forty that each use all of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dlsys.grading.books.people import owner
from dlsys.grading.books.submissions import Learner

TIMES = 3       # times the limit of one submission
LEAST = 1200.0  # seconds at least: forty harmless submissions on a slow machine take far less


class Budget:
    """The seconds that each learner's submissions have taken in a run.

    total: the limit of one submission. record: the grades.json of the run, named in the refusal.
    """

    def __init__(self, total: float, record: Path) -> None:
        self.most, self.record = max(TIMES * total, LEAST), record
        self._spent: Counter[tuple[str, ...]] = Counter()

    def add(self, result: dict[str, Any]) -> None:
        """Count what a result took."""
        self._spent[owner(result)] += result.get("seconds", 0.0)

    def refusal(self, learner: Learner) -> str:
        """Why no further submission of this learner may start; "" if one may."""
        spent = self._spent[owner({"learner": asdict(learner)})]
        return "" if spent < self.most else (
            f"was not begun: this learner's other hand-ins took {spent / 60:.0f} min, of at most "
            f"{self.most / 60:g}. To grade it anyway: dlsys grade FILE --out OTHER_FOLDER "
            f"--key {self.record}")
