"""Grade many submissions: read each, pass it to a judge, keep each result in the journal.

A judge is a process of this machine or a worker of a cluster; the flow is the same.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlsys.grading.books import (
    exam_record,
    overrides,
    scoring,
    submissions,
    submitted_notebook,
)
from dlsys.grading.books.budget import Budget
from dlsys.grading.books.journal import Journal
from dlsys.grading.books.people import Result
from dlsys.grading.books.run_folder import GRADES
from dlsys.grading.books.scoring import Scoring
from dlsys.grading.books.submissions import Submission
from dlsys.grading.books.submitted_notebook import Notebook, Refused
from dlsys.grading.settings import Settings
from dlsys.grading.text import clean
from dlsys.grading.walls.sandbox import SandboxLost, SandboxRefused, Zygote

if TYPE_CHECKING:
    from dlsys.grading.judge import Judge

TRIES = 2  # each with a fresh zygote, before a submission counts as failed


@dataclass(frozen=True)
class Job:
    """One submission with its bytes, on its way to a judge."""

    submission: Submission
    sha256: str
    data: bytes
    draw: int = 0


# Maps jobs to pairs of a job and its result, in any order.
Workers = Callable[[Iterator[Job]], Iterator[tuple[Job, Result]]]


class Grader:
    """A judge that survives the loss of its sandbox: it returns a result for any bytes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.judge = self._judge()

    def _judge(self) -> Judge:
        zygote = Zygote(self.settings.limits, self.settings.walled)
        from dlsys.grading.judge import Judge  # loads torch, while the zygote loads it as well
        return Judge(bytes.fromhex(self.settings.key), zygote, self.settings.exam)

    def close(self) -> None:
        """End the sandbox's processes."""
        self.judge.close()

    def grade(self, data: bytes, draw: int = 0, is_parts: bool = False) -> Result:
        """The result for one notebook's bytes. A refusal and a failure are results as well.

        draw: which cases of the run's key, see `Journal.draw`. is_parts: the bytes are a
        my_parts.py.
        """
        try:
            notebook = self._notebook(data, is_parts)
            for _ in range(TRIES):
                try:
                    return self.judge.grade(notebook, draw)
                except SandboxLost:
                    self.judge.close()
                    self.judge = self._judge()
        except Refused as error:
            return refused(str(error))
        except SandboxRefused:
            raise
        except Exception as error:  # one unforeseen submission must not stop the class
            return failed(f"the grader itself failed on it ({_where(error)}). Look at it by hand.")
        return failed("the sandbox ended twice without an answer. Grade again with --resume.")

    def _notebook(self, data: bytes, is_parts: bool) -> Notebook:
        if is_parts:
            return submitted_notebook.parts(data)
        return submitted_notebook.parse(data, self.settings.stage)


def _where(error: Exception) -> str:
    """An error's type and place in the grader, without its text: the learner reads this, and the
    text may contain what an answer is compared with."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(place.filename).name}, line {place.lineno}"


def refused(reason: str) -> Result:
    """The result of a submission that cannot be graded."""
    return {"status": "refused", "reason": clean(reason), **_NOTHING}


def failed(reason: str) -> Result:
    """The result if the grader is at fault; `--resume` tries it again."""
    return {"status": "failed", "reason": clean(reason), **_NOTHING}


_NOTHING: dict[str, Any] = {"stage": None, "points": 0, "possible": 0, "exercises": [],
                            "cells": [], "notes": []}


# ---- the run

def grade_all(found: list[Submission], journal: Journal, workers: Workers,
              on_result: Callable[[Result], None] = lambda _: None,
              rules: Scoring | None = None) -> dict[str, Any]:
    """Grade the submissions that are not in the journal yet; returns the finished grades.

    on_result: called with each result, first with those from the journal. rules: how points are
    counted.
    """
    cohort = _Cohort(journal, on_result)
    for result in journal.done.values():
        cohort.budget.add(result)
    jobs = cohort.jobs(found)
    first = list(islice(jobs, 1))  # if there is none, no worker has to start
    for job, result in workers(chain(first, jobs)) if first else ():
        cohort.keep(job.submission, job.sha256, {**result, "draw": job.draw})
    judged = [journal.done[cohort.keys[one.name]] for one in found]
    return finish(journal, judged, rules or Scoring())


def finish(journal: Journal, judged: list[Result], rules: Scoring) -> dict[str, Any]:
    """Write grades.json with the points that count; returns what is in it."""
    rows = overrides.read(journal.folder)
    results = scoring.scored(judged, rows, rules)
    sheets = exam_record.unsettled(journal.settings.exam, results)
    return journal.finish(results, rules.plain(), sheets)


class _Cohort:
    """The submissions of one call, on their way from the files into the journal."""

    def __init__(self, journal: Journal, on_result: Callable[[Result], None]) -> None:
        self.journal, self.on_result = journal, on_result
        self.keys: dict[str, tuple[str, str]] = {}  # by a submission's name: its journal key
        self.budget = Budget(journal.settings.limits.total, journal.folder / GRADES)

    def jobs(self, found: list[Submission]) -> Iterator[Job]:
        """Read submissions one by one, so that only those being graded are in memory."""
        for one in sorted(found, key=lambda one: one.name in self.journal.unfinished):  # these last
            data, result = self._read(one)
            sha256 = submissions.digest(data) if data is not None else ""
            self.keys[one.name] = key = (one.name, sha256)
            if key in self.journal.done:
                self.on_result(self.journal.done[key])
            elif result:
                self.keep(one, sha256, result)
            else:
                self.journal.note_begun(one.name)
                yield Job(one, sha256, data or b"", self.journal.draw)

    def _read(self, one: Submission) -> tuple[bytes | None, Result | None]:
        """A submission's bytes, and its result if no judge has to see it."""
        try:
            data = one.read()
        except Refused as error:
            return None, refused(str(error))
        except Exception as error:  # an archive may be broken in unforeseen ways
            return None, refused(f"cannot be read ({type(error).__name__}).")
        spent = self.budget.refusal(one.learner)
        return data, refused(spent) if spent else None

    def keep(self, one: Submission, sha256: str, result: Result) -> None:
        """Put a result into the journal, and count its seconds for its learner."""
        facts = _described(one, sha256, result)
        self.journal.add(facts)
        self.budget.add(facts)
        self.on_result(facts)


def _described(one: Submission, sha256: str, result: Result) -> Result:
    notes = ["According to the LMS, this was handed in late."] if one.late else []
    if result.get("draw"):
        notes.append("Graded on different cases from the hand-ins whose feedback was already out.")
    return {"name": one.name, "learner": asdict(one.learner), "sha256": sha256, "late": one.late,
            "handed_in": one.handed_in, "assignment": one.assignment, **result,
            "notes": [*notes, *result["notes"]]}


def in_process(settings: Settings) -> Workers:
    """Workers for `grade_all`: this process alone, one job after the other."""
    def work(jobs: Iterator[Job]) -> Iterator[tuple[Job, Result]]:
        grader = None
        try:
            for job in jobs:
                grader = grader or Grader(settings)
                yield job, grader.grade(job.data, job.draw, job.submission.is_parts)
        finally:
            if grader:
                grader.close()
    return work
