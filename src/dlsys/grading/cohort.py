"""Grade many submissions: a journal that survives a kill at any moment, and one JSON at the end.

Each result is on disk before the next one counts. `--resume` reads the journal, grades what is
missing, and nothing twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import dlsys_checks
from dlsys.grading import due, isolation, overrides, scoring, submissions, submitted_notebook
from dlsys.grading.budget import Budget
from dlsys.grading.people import answers_to, doubt
from dlsys.grading.sandbox import SandboxLost, SandboxRefused, Zygote
from dlsys.grading.submissions import Submission
from dlsys.grading.submitted_notebook import Refused
from dlsys.grading.text import clean, some
from dlsys_helpers.errors import UserError
from dlsys_helpers.verdicts import STATUSES

SCHEMA = 2
# What an instructor puts, or a run keeps, into its folder, and what the points depend on.
OF_A_RUN = (overrides.FILE, due.FILE, due.EXTENSIONS, "given")
FEEDBACK = "feedback"  # the folder of the learners' pages
BEGUN = "begun"  # in a line of the journal that is no result: the name of a submission
JOURNAL, GRADES = "journal.jsonl", "grades.json"
MADE = (GRADES, FEEDBACK)  # what a finished run has, and its reports read again
TRIES = 2  # with a fresh zygote, before a submission is called failed


class RunError(UserError):
    """A run cannot begin or go on. The message says what to do."""


@dataclass(frozen=True)
class Settings:
    """What a run is made of, as it goes to the workers and into the record.

    key: hex; all cases follow from it. stage: overrides what the notebooks say, or None.
    """

    key: str
    limits: isolation.Limits
    walled: bool = True
    stage: int | None = None

    def plain(self) -> dict[str, Any]:
        """The settings as JSON."""
        return asdict(self)

    @staticmethod
    def read(facts: dict[str, Any]) -> Settings:
        """The settings from what `plain` returned."""
        return Settings(**{**facts, "limits": isolation.Limits(**facts["limits"])})


def fresh_key() -> str:
    """A new secret for a run."""
    return secrets.token_hex(16)


def checks_digest() -> str:
    """SHA-256 over the source of all checks: machines with the same digest judge alike."""
    total = hashlib.sha256()
    folder = Path(dlsys_checks.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        total.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def versions() -> dict[str, str]:
    """What the record of a run says about the machine that judged."""
    return {"torch": importlib.metadata.version("torch"), "checks": checks_digest()}


class Grader:
    """A judge that outlives its sandbox: grades bytes, whatever they are, and returns a result."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.judge = self._judge()

    def _judge(self) -> Any:
        zygote = Zygote(self.settings.limits, self.settings.walled)
        from dlsys.grading.judge import Judge  # loads torch, while the zygote does, too
        return Judge(bytes.fromhex(self.settings.key), zygote)

    def close(self) -> None:
        """End the sandbox's processes."""
        self.judge.close()

    def grade(self, data: bytes, draw: int = 0, is_parts: bool = False) -> dict[str, Any]:
        """The result for one notebook's bytes; a refusal or a failure is a result, too.

        draw: which cases of the run's key, see `Journal.draw`. is_parts: of a my_parts.py.
        """
        try:
            notebook = (submitted_notebook.parts(data) if is_parts
                        else submitted_notebook.parse(data, self.settings.stage))
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
        except Exception as error:  # one submission that nobody foresaw must not end the class
            return failed(f"the grader itself stopped at it ({type(error).__name__}: {error}). "
                          "Look at it by hand.")
        return failed("the sandbox ended twice without an answer. Grade again with --resume.")


def refused(reason: str) -> dict[str, Any]:
    """The result of a submission that cannot be graded."""
    return {"status": "refused", "reason": clean(reason), **_NOTHING}


def failed(reason: str) -> dict[str, Any]:
    """The result where the grader is at fault; `--resume` tries it again."""
    return {"status": "failed", "reason": clean(reason), **_NOTHING}


_NOTHING: dict[str, Any] = {"stage": None, "points": 0, "possible": 0, "exercises": [],
                            "cells": [], "notes": []}


# ---- the journal

class Journal:
    """The folder of one run. Its first line is the run; others are results, or what is begun.

    unfinished: names that an earlier process began and did not finish: one of them may have ended
    it.
    """

    def __init__(self, folder: Path, run: dict[str, Any], file: IO[str],
                 done: dict[tuple[str, str], dict], draw: int = 0,
                 unfinished: Iterable[str] = ()) -> None:
        self.folder, self.run, self._file, self.done = folder, run, file, done
        self.unfinished = frozenset(unfinished)
        # After a run has been finished its feedback may be in the learners' hands, and with it
        # something about its cases: what is graded later gets others.
        self.draw = draw
        self.scoring = scoring.Scoring()

    @staticmethod
    def begin(folder: Path, settings: Settings) -> Journal:
        """A new run in `folder`.

        Raises RunError where the folder holds a run with results, or what gives or takes points: it
        may have been unpacked with what a learner handed in.
        """
        path = folder / JOURNAL
        _expect_none(folder, OF_A_RUN if path.exists() else (*OF_A_RUN, *MADE))
        file = _open_locked(path)
        try:
            if _whole_lines(file)[1:]:
                raise RunError(f"{folder}: holds a run already. If it is yours, go on with it: "
                               "--resume; or begin another one: --out OTHER_FOLDER")
            _expect_none(folder, MADE)
        except RunError:
            file.close()
            raise
        file.truncate(0)
        run = {"schema": SCHEMA, "begun": datetime.now(UTC).isoformat(timespec="seconds"),
               "settings": settings.plain(), **versions()}
        journal = Journal(folder, run, file, {})
        journal._write({"run": run})
        return journal

    @staticmethod
    def resume(folder: Path) -> Journal:
        """The run in `folder`, at the point where it stopped. Raises RunError for none."""
        path = folder / JOURNAL
        if not path.exists():
            raise RunError(f"{folder}: holds no run to go on with. Leave out --resume.")
        file = _open_locked(path)
        try:
            run, results, begun = _recorded(file, path)
        except RunError:
            file.close()
            raise
        done = {(r["name"], r["sha256"]): r for r in results if r["status"] != "failed"}
        last = max((r.get("draw", 0) for r in results), default=0)
        return Journal(folder, run, file, done, last + (folder / GRADES).exists(), begun)

    def forget(self, names: Iterable[str]) -> None:
        """Have these learners' or submissions' results made again.

        Raises RunError for a stranger, and for a name of several people.
        """
        shown = {**_recorded_names(self.folder / GRADES), **self.scoring.names}
        for name in names:
            known = {key: scoring.named(result, shown) for key, result in self.done.items()}
            of_name = [key for key, one in known.items() if answers_to(one, name)]
            if said := doubt(known.values(), name):
                raise RunError(f"--regrade: {said}")
            if not of_name:
                such = some(sorted({one["learner"]["name"] for one in known.values()}), 3)
                raise RunError(f"--regrade: got {clean(name)}, expected a learner of this run, "
                               f"such as {such}.")
            for key in of_name:
                del self.done[key]

    def expect(self, names: Iterable[str]) -> None:
        """Raise RunError if a graded submission is not among `names`: the reports would lose it."""
        if gone := sorted({name for name, _ in self.done} - set(names)):
            raise RunError(
                f"{self.folder}: {len(gone)} submissions of this run are not there now "
                f"({some(gone, 3)}). "
                f"{_AGAIN_MODEL if any('.py' in name for name in gone) else ''}"
                "Give the same PATH again, with all of them. To grade a late one alike: "
                f"--out OTHER_FOLDER --key {self.folder / GRADES}")

    @property
    def settings(self) -> Settings:
        """What the run was begun with."""
        return Settings.read(self.run["settings"])

    def begin_with(self, name: str) -> None:
        """Note that a judge is given this submission now."""
        self._file.write(json.dumps({BEGUN: name}) + "\n")
        self._file.flush()  # outlives this process; only a result has to outlive the machine

    def add(self, result: dict[str, Any]) -> None:
        """Append a result to the journal; it is on disk when this returns."""
        self._write(result)
        self.done[result["name"], result["sha256"]] = result

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self, names: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """Write grades.json, the one source of all reports: the results of these submissions."""
        judged = [self.done[key] for key in names]
        results = scoring.scored(judged, overrides.read(self.folder), self.scoring)
        grades = {"schema": SCHEMA, "run": self.run, "scoring": self.scoring.plain(),
                  "results": results}
        write_private(self.folder / GRADES, json.dumps(grades, indent=1) + "\n")
        return grades

    def close(self) -> None:
        """Close the journal and release the lock on its folder."""
        self._file.close()


_AGAIN_MODEL = "Add --model, if it was given before. "


def _recorded_names(path: Path) -> dict[tuple[str, str], str]:
    """People by source and id, as the gradebook of the run's last reports had them."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        learners = [r["learner"] for r in json.loads(path.read_text(encoding="utf-8"))["results"]]
        return {(one["source"], one["id"]): one["name"] for one in learners
                if "download_name" in one}
    return {}


def _expect_none(folder: Path, names: Iterable[str]) -> None:
    """Raise RunError where the folder holds one of these, be it a link to nothing."""
    if there := [name for name in names if os.path.lexists(folder / name)]:
        raise RunError(f"{folder}: holds {some(there)}, expected none where a run begins. If it is "
                       "your run: --resume; else give another folder: --out")


def _open_locked(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # It holds the key, and is emptied when a run begins: no link to something else.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        raise RunError(f"{path}: is no file of its own, expected none or that of a run. Give "
                       "another folder: --out")
    file = open(fd, "r+", encoding="utf-8")  # noqa: SIM115
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise RunError(f"{path.parent}: another grader is at work here. Wait for it, or give "
                       "another folder: --out") from None
    return file


def _recorded(file: IO[str], path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], set[str]]:
    """The run in a journal, its results, and the names begun without a result. Raises RunError."""
    lines = _whole_lines(file)
    if not lines:
        raise RunError(f"{path.parent}: its run stopped before anything was graded. Leave out "
                       "--resume.")
    try:
        run = json.loads(lines[0])["run"]
        noted = [json.loads(line) for line in lines[1:]]
        results, begun = [line for line in noted if BEGUN not in line], _unfinished(noted)
        Settings.read(run["settings"])
        now = {"schema": SCHEMA, **versions()}
        other = [_HAS[name] for name in now if run[name] != now[name]]
        for result in results:
            _expect_result(result)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RunError(f"{path}: is damaged. Begin another run: --out OTHER_FOLDER") from None
    if other:
        raise RunError(f"{path.parent}: {other[0]} changed since this run began, so its results "
                       "would not compare. Begin another run: --out OTHER_FOLDER")
    file.buffer.truncate(sum(map(len, lines)))
    return run, results, begun


def _unfinished(lines: Iterable[dict[str, Any]]) -> set[str]:
    begun: set[str] = set()
    for line in lines:
        if BEGUN in line:
            begun.add(line[BEGUN])
        else:
            begun.discard(line["name"])
    return begun


_HAS = {"schema": "the form of the journal has", "torch": "the version of torch has",
        "checks": "the checks have"}


def _expect_result(result: Any) -> None:
    """Raise KeyError, TypeError or ValueError for a line that is no result of this program."""
    kinds = {"name": str, "sha256": str, "status": str, "learner": dict, "notes": list,
             "exercises": list, "points": int, "possible": int}
    if wrong := [key for key, kind in kinds.items() if type(result[key]) is not kind]:
        raise ValueError(f"not of its type: {', '.join(wrong)}")
    if missing := {"name", "id", "source", "raw"} - set(result["learner"]):
        raise ValueError(f"a learner without {', '.join(sorted(missing))}")
    for entry in result["exercises"]:
        if entry["status"] not in STATUSES:
            raise ValueError(f"status: {entry['status']!r}")


def _whole_lines(file: IO[str]) -> list[bytes]:
    """The journal's complete lines; a last line that a kill cut off is dropped."""
    file.seek(0)
    lines = file.buffer.read().splitlines(keepends=True)
    return [line for line in lines if line.endswith(b"\n")]


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


# ---- the run

@dataclass(frozen=True)
class Job:
    """One submission with its bytes, on its way to a judge."""

    submission: Submission
    sha256: str
    data: bytes
    draw: int = 0


def grade_all(found: list[Submission], journal: Journal, workers: Any,
              seen: Any = lambda _: None) -> dict[str, Any]:
    """Grade the submissions that the journal does not hold yet; returns the finished grades.

    workers: maps an iterator of jobs to an iterator of (job, result), in any order.
    seen: called with each result, those from the journal first.
    """
    keys: dict[str, tuple[str, str]] = {}
    budget = Budget(journal.settings.limits.total, journal.folder / GRADES)
    for result in journal.done.values():
        budget.add(result)
    jobs = _open_jobs(found, journal, keys, budget, seen)
    first = list(islice(jobs, 1))  # without one, no worker has to start
    for job, result in workers(chain(first, jobs)) if first else ():
        facts = _described(job.submission, job.sha256, {**result, "draw": job.draw})
        journal.add(facts)
        budget.add(facts)
        seen(facts)
    return journal.finish(keys[one.name] for one in found)


def _open_jobs(found: list[Submission], journal: Journal, keys: dict[str, tuple[str, str]],
               budget: Budget, seen: Any) -> Iterator[Job]:
    """Read submissions one by one, so that only those being graded are in memory."""
    for one in sorted(found, key=lambda one: one.name in journal.unfinished):  # these last
        try:
            data = one.read()
        except Refused as error:
            data, sha256, result = b"", "", refused(str(error))
        except Exception as error:  # an archive may be broken in ways that no list foresees
            data, sha256 = b"", ""
            result = refused(f"cannot be read ({type(error).__name__}).")
        else:
            sha256, late = submissions.digest(data), budget.refusal(one.learner)
            result = refused(late) if late else None
        keys[one.name] = key = (one.name, sha256)
        if key in journal.done:
            seen(journal.done[key])
        elif result:
            facts = _described(one, sha256, result)
            journal.add(facts)
            seen(facts)
        else:
            journal.begin_with(one.name)
            yield Job(one, sha256, data, journal.draw)


def _described(one: Submission, sha256: str, result: dict[str, Any]) -> dict[str, Any]:
    notes = ["Handed in late, says the LMS."] if one.late else []
    if result.get("draw"):
        notes.append("Graded on other cases than those hand-ins whose feedback was out by then.")
    return {"name": one.name, "learner": asdict(one.learner), "sha256": sha256, "late": one.late,
            "handed_in": one.handed_in, "assignment": one.assignment, **result,
            "notes": [*notes, *result["notes"]]}


def in_process(settings: Settings) -> Any:
    """Workers for `grade_all`: this process alone, one job after the other."""
    def work(jobs: Iterator[Job]) -> Iterator[tuple[Job, dict]]:
        grader = None
        try:
            for job in jobs:
                grader = grader or Grader(settings)
                yield job, grader.grade(job.data, job.draw, job.submission.is_parts)
        finally:
            if grader:
                grader.close()
    return work
