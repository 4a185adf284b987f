"""The folder of a run: a journal that survives a kill at any moment, and one JSON at the end.

Each result is on disk before the next one counts. `--resume` reads the journal, grades what is
missing, and grades nothing twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

import dlsys_checks
from dlsys.grading.books.people import Result, ambiguity, is_called, with_gradebook_name
from dlsys.grading.books.run_folder import (
    FROM_A_FINISHED_RUN,
    FROM_THE_INSTRUCTOR,
    GRADES,
    JOURNAL,
    SCHEMA,
    RunError,
)
from dlsys.grading.options import GradeOptions
from dlsys.grading.settings import TIMES, Limits, Settings, fresh_key
from dlsys.grading.text import clean, first_few
from dlsys_files.private_file import write_private
from dlsys_helpers.timeouts import SECONDS
from dlsys_helpers.verdicts import STATUSES

BEGUN = "begun"  # the key of a journal line that only names a submission


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


class Journal:
    """The journal of one run: its first line is the run, the others are results or what was begun.

    settings: what the run was begun with. unfinished: submissions that an earlier process began
    and did not finish; one of them may have killed it.
    """

    def __init__(self, folder: Path, run: dict[str, Any], file: TextIO,
                 done: dict[tuple[str, str], dict], draw: int = 0,
                 unfinished: Iterable[str] = ()) -> None:
        self.folder, self.run, self._file, self.done = folder, run, file, done
        self.settings = Settings.read(run["settings"])
        self.unfinished = frozenset(unfinished)
        # Once a run is finished, learners may have read its feedback, which reveals something
        # about its cases. Anything graded later gets different cases.
        self.draw = draw

    @staticmethod
    def open(options: GradeOptions, found: Iterable[str],
             gradebook: Mapping[tuple[str, str], str]) -> Journal:
        """Begin or resume the run that the options ask for. Raises RunError.

        found: the names of all submissions. gradebook: people's names, as for `forget`.
        """
        if options.regrade and not options.resume:
            raise RunError("--regrade: works only on an existing run: add --resume.")
        if not options.resume:
            return Journal.begin(options.out, _settings(options))
        journal = Journal.resume(options.out)
        try:
            _expect_same(options, journal.settings)
            journal.expect(found)
            journal.forget(options.regrade, gradebook)
        except RunError:
            journal.close()
            raise
        return journal

    @staticmethod
    def begin(folder: Path, settings: Settings) -> Journal:
        """A new run in `folder`.

        Raises RunError if the folder holds a run with results, or a file that gives or takes
        points, because that file may come from a learner's submission.
        """
        path = folder / JOURNAL
        _expect_none(folder, FROM_THE_INSTRUCTOR if path.exists() else
                     (*FROM_THE_INSTRUCTOR, *FROM_A_FINISHED_RUN))
        file = _open_locked(path)
        try:
            if _whole_lines(file)[1:]:
                raise RunError(f"{folder}: already has a run. If it is yours, continue it: "
                               "--resume; or begin a new one: --out OTHER_FOLDER")
            _expect_none(folder, FROM_A_FINISHED_RUN)
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
        """The run in `folder`, at the point where it stopped. Raises RunError if there is none."""
        path = folder / JOURNAL
        if not path.exists():
            raise RunError(f"{folder}: has no run to continue. Leave out --resume.")
        file = _open_locked(path)
        try:
            run, results, begun = _recorded(file, path)
        except RunError:
            file.close()
            raise
        done = {(r["name"], r["sha256"]): r for r in results if r["status"] != "failed"}
        last = max((r.get("draw", 0) for r in results), default=0)
        return Journal(folder, run, file, done, last + (folder / GRADES).exists(), begun)

    def forget(self, names: Iterable[str],
               gradebook: Mapping[tuple[str, str], str] = MappingProxyType({})) -> None:
        """Drop these learners' or submissions' results, so that they are graded again.

        gradebook: people's names by source and id, as a gradebook has them. Raises RunError for an
        unknown name, and for one that several people share.
        """
        shown = {**_recorded_names(self.folder / GRADES), **gradebook}
        for name in names:
            known = {key: with_gradebook_name(result, shown) for key, result in self.done.items()}
            of_name = [key for key, one in known.items() if is_called(one, name)]
            if said := ambiguity(known.values(), name):
                raise RunError(f"--regrade: {said}")
            if not of_name:
                such = first_few(sorted({one["learner"]["name"] for one in known.values()}), 3)
                raise RunError(f"--regrade: got {clean(name)}, expected a learner of this run, "
                               f"such as {such}.")
            for key in of_name:
                del self.done[key]

    def expect(self, names: Iterable[str]) -> None:
        """Raise RunError if a graded submission is not among `names`: the reports would lose it."""
        if gone := sorted({name for name, _ in self.done} - set(names)):
            raise RunError(
                f"{self.folder}: {len(gone)} submissions of this run are missing now "
                f"({first_few(gone, 3)}). "
                f"{_AGAIN_MODEL if any('.py' in name for name in gone) else ''}"
                "Give the same PATH again, with all of them. To grade a late submission "
                "with the same cases: "
                f"--out OTHER_FOLDER --key {self.folder / GRADES}")

    def note_begun(self, name: str) -> None:
        """Record that a judge is about to get this submission."""
        self._file.write(json.dumps({BEGUN: name}) + "\n")
        self._file.flush()  # survives this process; only a result must survive the machine

    def add(self, result: dict[str, Any]) -> None:
        """Append a result to the journal; it is on disk when this returns."""
        self._write(result)
        self.done[result["name"], result["sha256"]] = result

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self, results: list[Result], scoring: dict[str, Any],
               sheets: Sequence[dict[str, str]] = ()) -> dict[str, Any]:
        """Write grades.json, the one source of all reports; returns what is in it.

        scoring: the rules in words and dates, for the record. sheets: exam sheets to settle.
        """
        grades = {"schema": SCHEMA, "run": self.run, "scoring": scoring, "results": results,
                  "sheets": [*sheets]}
        write_private(self.folder / GRADES, json.dumps(grades, indent=1) + "\n")
        return grades

    def close(self) -> None:
        """Close the journal and release the lock on its folder."""
        self._file.close()


def _settings(options: GradeOptions) -> Settings:
    seconds, usual = options.seconds or SECONDS, Limits()
    memory = int(options.memory * 2**30) if options.memory else usual.memory
    limits = Limits(seconds=seconds, total=TIMES * seconds, memory=memory)
    key = _recorded_key(options.cases_of) if options.cases_of else fresh_key()
    exam = str(options.exam.absolute()) if options.exam else ""
    return Settings(key, limits, options.walled, options.stage, exam)


def _expect_same(options: GradeOptions, begun: Settings) -> None:
    """Raise RunError for an option whose value differs from the one the run was begun with."""
    key = options.cases_of and _recorded_key(options.cases_of)
    asked = {"--seconds": (options.seconds, begun.limits.seconds),
             "--memory": (options.memory, begun.limits.memory / 2**30),
             "--stage": (options.stage, begun.stage), "--key": (key, begun.key)}
    other = [name for name, (now, then) in asked.items() if now not in (None, then)]
    if begun.walled != options.walled:
        other.append("--sandbox")
    if other:
        raise RunError(f"{options.out}: this run was begun with a different {other[0]}. Resume "
                       "the run without it, or begin a new one: --out OTHER_FOLDER")


def _recorded_key(path: Path) -> str:
    try:
        key = json.loads(path.read_text(encoding="utf-8"))["run"]["settings"]["key"]
    except (OSError, ValueError, KeyError, TypeError):
        key = ""
    if not (isinstance(key, str) and re.fullmatch(r"[0-9a-f]{32}", key)):
        raise RunError(f"{path}: does not have the key of a run, expected a grades.json.")
    return key


_AGAIN_MODEL = "Add --model, if it was given before. "


def _recorded_names(path: Path) -> dict[tuple[str, str], str]:
    """People by source and id, as the gradebook of the run's last reports had them."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        learners = [r["learner"] for r in json.loads(path.read_text(encoding="utf-8"))["results"]]
        return {(one["source"], one["id"]): one["name"] for one in learners
                if "download_name" in one}
    return {}


def _expect_none(folder: Path, names: Iterable[str]) -> None:
    """Raise RunError if the folder has one of these, even as a broken link."""
    if there := [name for name in names if os.path.lexists(folder / name)]:
        raise RunError(f"{folder}: already holds {first_few(there)}, expected a folder without "
                       "them for a new run. If it is your run: --resume; else give a different "
                       "folder: --out")


def _open_locked(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The journal holds the key and is emptied when a run begins, so it must not be a link.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        raise RunError(f"{path}: is a link or not a regular file, expected the file of a run, "
                       "or none. Give a different folder: --out")
    os.fchmod(fd, 0o600)  # an existing file may have been readable by others
    file = open(fd, "r+", encoding="utf-8")  # noqa: SIM115
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise RunError(f"{path.parent}: another grader is working here. Wait for it, or give a "
                       "different folder: --out") from None
    return file


def _recorded(file: TextIO, path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], set[str]]:
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
        raise RunError(f"{path}: is damaged. Start a new run: --out OTHER_FOLDER") from None
    if other:
        raise RunError(f"{path.parent}: {other[0]} changed since this run began, so its results "
                       "could not be compared. Start a new run: --out OTHER_FOLDER")
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


def _whole_lines(file: TextIO) -> list[bytes]:
    """The journal's complete lines; a last line that a kill cut off is dropped."""
    file.seek(0)
    lines = file.buffer.read().splitlines(keepends=True)
    return [line for line in lines if line.endswith(b"\n")]
