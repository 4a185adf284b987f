"""Turns a notebook into verdicts. Trusted: the laws, the cases and the key live here.

The learner's functions act in a sandbox on cases drawn outside. Their outcomes come back as data,
and the same check objects that the learner ran judge them here. A failure counts only after it has
happened again in a fresh process, alone.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import resource
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

import dlsys_checks
from dlsys import assignments
from dlsys.grading import shapes, tally
from dlsys.grading.acts import act_source
from dlsys.grading.books import submitted_notebook
from dlsys.grading.books.submitted_notebook import Notebook
from dlsys.grading.text import cell_and_line, clean, visible
from dlsys.grading.walls import cgroups, framing, isolation, process_limit, serialization
from dlsys.grading.walls.framing import CELLS
from dlsys.grading.walls.sandbox import (
    Attempt,
    Sandbox,
    SandboxLost,
    SandboxRefused,
    Zygote,
    pack_act,
)
from dlsys.remembering import with_cached_runs
from dlsys_checks import registry
from dlsys_files.notebook_reader import checked_in
from dlsys_helpers import acting, judging, verdicts
from dlsys_helpers.acting import Case, Outcome
from dlsys_helpers.catalog import Trap
from dlsys_helpers.verdicts import Verdict

# An answer that is right by luck must be lucky on every seed. One would be enough: tools/proof.py
# shows that no named wrong answer passes even a single seed.
SEEDS = 2
_KINDS = ("value", "raised", "unusable", "todo")
# Characters of what a learner's code says about itself: an error, its type, a line of code.
LONGEST_ERROR, LONGEST_TYPE, LONGEST_LINE = 120, 40, 200
LONGEST_ERRORS = 2000  # bytes of all cells' different errors: enough to read, too few to leak cases
LONGEST_ANSWER = 6000  # characters of an answer that are kept to be looked at


@dataclass(frozen=True)
class Paper:
    """One exercise with the secret cases of this run, the same for every learner."""

    exercise: judging.Exercise
    trap: Trap
    seeds: tuple[int, ...]
    cases: tuple[tuple[Case, ...], ...]  # for each seed
    act: str

    @property
    def all_cases(self) -> list[Case]:
        """The cases of all seeds, in the order in which they are sent."""
        return [case for cases in self.cases for case in cases]

    @cached_property
    def packed(self) -> bytes:
        """This exercise's part of a job, the same for all learners."""
        return pack_act(self.exercise.id, self.trap.function, self.act, self.all_cases)


class Judge:
    """Grades one notebook after the other with one zygote. Close it after use.

    key: the run's secret, from which all cases are drawn. zygote: may still be loading. exam: the
    folder of the desk at which exam sheets were sat, "" for none. Raises SandboxRefused when the
    walls cannot be built, or do not hold.
    """

    def __init__(self, key: bytes, zygote: Zygote, exam: str = "") -> None:
        torch.set_num_threads(1)  # the laws are small; a pool's threads would only spin
        self.zygote = zygote
        self.zygote.wait()
        # The key is set last: the zygote started before this process knew a secret.
        self._key, self._exam = key, exam
        self._papers: dict[tuple[str, int], Paper] = {}
        self.wall = self._prove_walls() if zygote.walled else (
            "none: the learner's code ran with all rights of the grader")

    def close(self) -> None:
        """End the sandbox's processes."""
        self.zygote.close()

    def grade(self, notebook: Notebook, draw: int = 0) -> dict[str, Any]:
        """The result of one notebook as JSON, on the cases of this draw.

        Raises SandboxLost when the zygote has ended.
        """
        exam = assignments.is_exam(notebook.stage)
        papers = self._sheet(notebook, draw) if exam else self.papers(notebook.stage, draw)
        code = [*(source for _, source in notebook.cells), *(paper.act for paper in papers)]
        if not self.zygote.compiler and submitted_notebook.loads_compiler(code):
            self.zygote.load_compiler()
        started, own = time.monotonic(), time.process_time()
        # An outer session for the notebook makes the inner session of each law cheap to enter.
        with self.zygote.sandbox() as sandbox, acting.standard_session():
            session = GradingSession(notebook, papers, sandbox)
            session.judge_all()
            if assignments.is_model(notebook.stage):
                from dlsys.grading import in_model
                in_model.judge(session)
        judged = time.process_time() - own
        return {
            **session.result(),
            "code": code_digest(notebook), "wall": self.wall, "ended_by": sandbox.used["ended_by"],
            "seconds": round(time.monotonic() - started, 3),
            "cpu_seconds": round(sandbox.used["cpu_seconds"] + judged, 3),
            "peak_mib": round(sandbox.used["peak_bytes"] / 2**20),
            "judge_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }

    def papers(self, stage: int, draw: int = 0) -> list[Paper]:
        """The papers of a stage with the cases of a draw of this run.

        Raises Refused for a stage without exercises.
        """
        traps = assignments.traps(stage)
        if not traps:
            raise submitted_notebook.Refused(f"is for stage {stage}, which has no exercises.")
        return [self._paper(trap, draw) for trap in traps]

    def _sheet(self, notebook: Notebook, draw: int) -> list[Paper]:
        """The papers of an exam sheet, whose cases and record are at the desk. Raises Refused."""
        from dlsys import exam_desk
        from dlsys_checks.exam import sheet

        if not self._exam:
            raise submitted_notebook.Refused(
                "is an exam sheet. Name the folder of the desk at which it was sat: dlsys grade "
                "... --exam FOLDER")
        opened = next(filter(None, (sheet.opened(source) for _, source in notebook.cells)), None)
        desk = exam_desk.of_class(Path(self._exam))
        if opened is None or opened[0] != notebook.stage or not desk.knows(*opened):
            raise submitted_notebook.Refused(
                "is an exam sheet that was not begun at this desk: its first cell has no ticket "
                "from this desk.")
        begun = clean(desk.begun_by(*opened), 80)
        notebook.remarks.append(f"Sheet {opened[1]}, begun as {begun!r}.")
        notebook.sheet.update(ticket=opened[1], begun=begun, cases=desk.cases(*opened))
        return [self._drawn(trap, draw, desk.row(trap.id, opened[1]))
                for trap in assignments.traps(notebook.stage)]

    def _paper(self, trap: Trap, draw: int) -> Paper:
        key = trap.id, draw
        if key not in self._papers:
            self._papers[key] = self._drawn(trap, draw)
        return self._papers[key]

    def _drawn(self, trap: Trap, draw: int, row: judging.Exercise | None = None) -> Paper:
        try:
            exercise = row or find_check(trap.id)
        except ValueError as error:
            raise submitted_notebook.Refused(
                f"is for a stage without a check here: {error}") from None
        seeds = tuple(seed_of(self._key, exercise.id, k, draw) for k in range(SEEDS))
        return Paper(with_cached_runs(exercise, tally.IDLE), trap, seeds,
                     tuple(tuple(exercise.arrange(seed)) for seed in seeds),
                     act_source(exercise))

    def _prove_walls(self) -> str:
        """Try each wall from inside with a probe; returns what the walls are, if all hold."""
        hidden = [str(path) for folder in isolation.masked_paths()
                  for path in Path(folder).rglob("*")]
        folder = "" if isolation.installed() else str(Path(dlsys_checks.__file__).parents[1])
        packages = [path.name for path in isolation.PACKAGES]
        act = pack_act("", "probe", "", [Case("walls", {
            "hidden": hidden, "folder": folder, "packages": packages})])
        attempt = Attempt()
        with suppress(SandboxLost), self.zygote.sandbox() as sandbox:
            attempt = sandbox.attempt([(1, _PROBE)], [act])
        match [serialization.unpack(answer) for answer in attempt.answers.get(0, [])]:
            case [{"value": list(holes)}]:
                pass
            case other:
                holes = [f"no answer from inside ({attempt.fault or other})"]
        if holes:
            self.zygote.close()
            raise SandboxRefused(f"sandbox: does not hold: {clean(', '.join(map(str, holes)))}. "
                                 f"{isolation.remedy()}")
        limits = self.zygote.limits
        own = self.zygote.group.most
        bound = own or cgroups.bound()
        kernel = (_OWN_BOUND if own else _BOUND).format(bound / 2**30) if bound else _NO_BOUND
        return _WALL.format(memory=limits.memory / 2**30, processes=limits.processes) + kernel


_WALL = ("Linux namespaces (mount, process, network, IPC, host name, control group), read-only "
         "view without checks and answers, no capabilities, system-call filter, empty "
         "environment, {memory:g} GiB and {processes} processes for each submission")

_OWN_BOUND = "; with the kernel's memory {:.3g} GiB, by a control group made for them"
_BOUND = "; the kernel's memory is bounded by a control group of {:.3g} GiB"
_NO_BOUND = "; no control group bounds the kernel's memory"

# The probe returns the names of the walls that do not hold.
_PROBE = '''
import ctypes, os, resource, socket
def probe(hidden, folder, packages):
    holes = []
    def must_fail(what, action):
        try:
            action()
            holes.append(what)
        except OSError:
            pass
    status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines()
                  if line.count(":\\t") == 1)
    if any(int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")):
        holes.append("capabilities")
    if status["Seccomp"].strip() != "2" or status["NoNewPrivs"].strip() != "1":
        holes.append("system-call filter")
    if len([n for n in os.listdir("/proc") if n.isdigit()]) > 3:
        holes.append("process namespace")
    must_fail("network", lambda: socket.socket(socket.AF_INET))
    must_fail("read-only view", lambda: open("/tmp_probe", "w"))
    must_fail("read-only view of the packages", lambda: open(os.__file__, "a"))
    for path in ("/proc/self/exe", "/proc/self/fd/0", "/proc/self/fd/2", "/dev/null", "/"):
        mode = os.stat(path).st_mode & 0o7777
        must_fail(f"no changes to {path}", lambda: os.chmod(path, mode))
    must_fail("no new programs", lambda: os.execv("/proc/self/exe", ["x"]))
    must_fail("no other root", lambda: os.chroot("/sandbox"))
    must_fail("no memory beside the processes", lambda: os.memfd_create("x"))
    for name in ("AS", "CPU", "NPROC", "FSIZE", "NOFILE"):
        if resource.getrlimit(getattr(resource, "RLIMIT_" + name))[1] == resource.RLIM_INFINITY:
            holes.append("limit " + name)
    if not set(os.listdir("/etc")) <= {"ld.so.cache"}:
        holes.append("hidden files of the machine")
    if os.uname().nodename != "sandbox":
        holes.append("hidden name of the machine")
    if ctypes.CDLL(None).unshare(0x10000000) == 0:
        holes.append("no new namespaces")
    if len(os.environ) > 24 or "PATH" in os.environ:
        holes.append("empty environment")
    for path in hidden:
        if os.path.exists(path):
            holes.append("hidden checks")
    if os.path.isdir(folder) and set(os.listdir(folder)) != set(packages):
        holes.append("hidden files of the project")
    return holes
'''


def find_check(id: str) -> judging.Exercise:
    """The check of an exercise or a part of the model. Raises ValueError."""
    number = assignments.number_of(id)
    if assignments.is_model(number):
        from dlsys.grading import model_laws
        return model_laws.find(id)
    return registry.find(id)


def code_digest(notebook: Notebook) -> str:
    """A digest of a notebook's code without blanks: two notebooks with one digest are copies."""
    words = " ".join(word for _, source in notebook.cells for word in source.split())
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()


def seed_of(key: bytes, id: str, number: int, draw: int = 0) -> int:
    """The secret seed of an exercise: the same for every learner of a draw, known to none."""
    text = f"{id}/{number}" + (f"/{draw}" if draw else "")
    return int.from_bytes(hmac.digest(key, text.encode(), "sha256")[:7], "big")


class GradingSession:
    """Judges one notebook: a quick attempt at everything, then careful ones at what failed."""

    def __init__(self, notebook: Notebook, papers: Sequence[Paper], sandbox: Sandbox) -> None:
        self.notebook, self.papers, self.sandbox = notebook, papers, sandbox
        self.verdicts: dict[str, Verdict] = {}
        self.notes = list(notebook.notes)
        self.attempt = Attempt()
        self.died: dict[str, bool] = {}  # by exercise: no answer, because processes ended
        self.tallies: dict[str, dict[str, Any]] = {}  # by exercise: how far its answer got
        # By exercise and digest: a failing answer usually arrives a second time, unchanged.
        self.judged: dict[tuple[str, bytes], tuple[Verdict, dict[str, Any]]] = {}

    def judge_all(self) -> None:
        """Judge every exercise; retry each that did not pass, in a separate process."""
        self._judge()
        self.notes += filter(None, map(self.forbidden_call_note, self.papers))

    def _judge(self) -> None:
        self.attempt = self._try(self.papers)
        open_papers = [p for p in self.papers if not self._is_done(p)]
        if not open_papers:
            return
        answered = {paper.exercise.id for index, paper in enumerate(self.papers)
                    if index in self.attempt.answers}  # the attempt ended before the others
        self._try_alone(open_papers)
        late = [id for id in (paper.exercise.id for paper in open_papers)
                if id in answered and self.verdicts[id].status == "pass"]
        if late:
            self.notes.append(f"{', '.join(late)}: fails after all cells but passes alone, which "
                              "counts. Does another cell change something that it needs?")

    def _is_done(self, paper: Paper) -> bool:
        """Whether nothing is left to try. A stub further down may hide an answer that passes."""
        status = self.verdicts[paper.exercise.id].status
        if status != "todo":
            return status == "pass"
        name = paper.trap.function
        return sum(submitted_notebook.defines(source, name)
                   for _, source in self.notebook.cells) < 2

    def _try_alone(self, papers: Sequence[Paper]) -> None:
        """Judge these, each in a separate process; after a fault, try the rest again."""
        # After a fault, the quick attempt says nothing about the end of the notebook.
        both, checkpoints = bool(self.attempt.fault), not self.attempt.cells_done
        while papers:
            attempt = self._try(papers, careful=True, both=both, checkpoints=checkpoints)
            if attempt.cells_done or not self.attempt.cells_done:
                self.attempt = attempt
            # A timer that a cell set may have ended the whole attempt. With checkpoints the timer
            # ends with the cell's process. An answer that ended the attempt is not run again.
            papers = _not_reached(papers, attempt, attempt.at + checkpoints)
            checkpoints = True

    def _try(self, papers: Sequence[Paper], **how: bool) -> Attempt:
        attempt = self.sandbox.attempt(self.notebook.cells, [p.packed for p in papers], **how)
        for index, paper in enumerate(papers):
            id = paper.exercise.id
            self.tallies.pop(id, None)
            self.verdicts[id] = self._verdict(paper, attempt, index)
            self.died[id] = attempt.fault == "died" and index not in attempt.answers
        return attempt

    def forbidden_call_note(self, paper: Paper) -> str:
        """A note if a right answer calls a function that the exercise asks to write by hand."""
        id, unwanted = paper.exercise.id, paper.exercise.by_hand
        if not unwanted or self.verdicts[id].status != "pass":
            return ""
        used = submitted_notebook.calls(
            (source for _, source in self.notebook.cells
             if submitted_notebook.defines(source, paper.trap.function)), unwanted)
        if used is None:
            return (f"{id} has too much code to check whether it calls {', '.join(unwanted)}. "
                    "The points count; your instructor may look at it.")
        return (f"{id} seems to call {', '.join(sorted(used))}, which the exercise wants written "
                "by hand. The points count; your instructor may look at it.") if used else ""

    def _verdict(self, paper: Paper, attempt: Attempt, index: int) -> Verdict:
        """The first verdict that passes, else the one that says most."""
        if index not in attempt.answers:
            return self._no_answer(paper, attempt)
        verdicts = []
        for answer in attempt.answers[index]:
            verdicts.append(self._one_verdict(paper, attempt, answer))
            if verdicts[-1][0].status == "pass":
                break
        verdict, counted = min(verdicts, key=lambda pair: _ORDER.get(pair[0].status, 1))
        if counted:
            self.tallies[paper.exercise.id] = counted
        return verdict

    def _one_verdict(self, paper: Paper, attempt: Attempt, answer: bytes
                     ) -> tuple[Verdict, dict[str, Any]]:
        """The verdict on one answer, and how far it got."""
        key = paper.exercise.id, hashlib.sha256(answer).digest()
        if key not in self.judged:
            messages = _messages(answer)
            match messages[0] if messages else {}:
                case {"missing": str(kind)}:
                    return self._missing(paper, attempt, kind), {}
                case {"fault": kind}:
                    return fault_verdict(paper, kind, self.sandbox), {}
            try:
                outcomes = [_outcome(message, self.notebook.cells) for message in messages]
                self.judged[key] = self._judged(paper, outcomes)
            except Exception as error:  # the learner boundary: a law met an unforeseen form
                return Verdict("wrong", paper.exercise.id, "the returned value has a form that the "
                               f"check cannot read ({type(error).__name__})."), {}
        verdict, counted = self.judged[key]
        return self._with_first_broken_cell(verdict, attempt), counted

    def outcomes(self, paper: Paper, answer: bytes) -> list[Outcome]:
        """The outcomes in an answer. Raises ValueError, which says why there are none."""
        messages = _messages(answer)
        match messages[0] if messages else {}:
            case {"fault": kind}:
                raise ValueError(fault_verdict(paper, kind, self.sandbox).message)
        try:
            return [_outcome(message, self.notebook.cells) for message in messages]
        except (TypeError, ValueError):
            raise ValueError(fault_verdict(paper, "broken", self.sandbox).message) from None

    def cells_that_end(self) -> list[tuple[int, str]]:
        """The cells except those that ended their process or ran past the limit: those change
        nothing, and each would slow down every further attempt.
        """
        faults = {_CELL_FAULTS[kind] for kind in ("died", "timeout")}
        ended = {r["number"] for r in self._reports(self.attempt) if r["error"] in faults}
        return [cell for cell in self.notebook.cells if cell[0] not in ended]

    def _judged(self, paper: Paper, outcomes: Sequence[Outcome]) -> tuple[Verdict, dict[str, Any]]:
        """The verdict on an answer to all seeds, and how far it got. Raises what a law raises."""
        verdict = judge_answers(paper, outcomes)
        short = _with_short_error(verdict.message, outcomes, self.sandbox.limits.processes)
        return replace(verdict, message=short), _tally(paper, outcomes, verdict)

    def _no_answer(self, paper: Paper, attempt: Attempt) -> Verdict:
        if attempt.at == CELLS or not attempt.cells_done:
            return Verdict("error", paper.exercise.id, "no answer: the notebook's cells "
                           f"{_CELL_FAULTS[attempt.fault or 'broken']}")
        return fault_verdict(paper, attempt.fault, self.sandbox)

    def _missing(self, paper: Paper, attempt: Attempt, kind: str) -> Verdict:
        """The verdict on a missing function; names the cell that failed, if one did."""
        id, name = paper.exercise.id, paper.trap.function
        if kind:
            article = "an" if kind[0] in "aeiouAEIOU" else "a"
            return Verdict("missing", id, f"{name} is {article} {clean(kind, 60)}, not a function; "
                           "a later cell reassigned it.")
        broken = {report["number"]: report for report in self._reports(attempt)}
        for number, source in self.notebook.cells:
            if number in broken and submitted_notebook.defines(source, name):
                report = broken[number]
                return Verdict("error", id, f"{name} is not defined, because "
                               f"{cell_and_line(report)} stopped: {report['error']}")
        if (own := self._answer_cell(id)) in broken:
            return Verdict("error", id, f"{name} is not defined. The cell above its check, "
                           f"{cell_and_line(broken[own])}, stopped: {broken[own]['error']}")
        if first := self._first_broken(attempt):
            return Verdict("error", id, f"{name} is not defined. The first cell that stopped is "
                           f"{cell_and_line(first)}: {first['error']}")
        return Verdict("missing", id, f"{name} {self.notebook.absent}.")

    def _answer_cell(self, id: str) -> int | None:
        """The cell above the one that checks an exercise, where its worksheet asks for the answer.
        """
        above = None
        for number, source in self.notebook.cells:
            checked = checked_in(source)
            if id in checked:
                return above
            above = None if checked else number
        return None

    def _with_first_broken_cell(self, verdict: Verdict, attempt: Attempt) -> Verdict:
        """The verdict; after a NameError its message also names the first cell that stopped."""
        if "NameError" not in verdict.message or not (first := self._first_broken(attempt)):
            return verdict
        return replace(verdict, message=f"{verdict.message} Before that, {cell_and_line(first)} "
                                        f"stopped: {first['error']}")

    def _first_broken(self, attempt: Attempt) -> dict | None:
        """The report of the first cell that stopped; check cells only fail as a result."""
        checks = {n for n, source in self.notebook.cells if checked_in(source)}
        return next((r for r in self._reports(attempt) if r["number"] not in checks), None)

    def _reports(self, attempt: Attempt) -> list[dict]:
        return valid_reports(attempt, self.notebook.cells, self.sandbox.limits.processes)

    def result(self) -> dict[str, Any]:
        """Points, verdicts, cell errors and notes as JSON."""
        exercises = [self._entry(paper) for paper in self.papers]
        return {"status": "graded", "stage": self.notebook.stage,
                "points": sum(e["points"] for e in exercises),
                "possible": sum(e["possible"] for e in exercises),
                "exercises": exercises, "cells": self._reports(self.attempt), "notes": self.notes,
                "remarks": self.notebook.remarks, "short": self.notebook.short,
                **({"sheet": self.notebook.sheet} if self.notebook.sheet else {})}

    def _entry(self, paper: Paper) -> dict[str, Any]:
        verdict = self._with_reason_for_end(self.verdicts[paper.exercise.id])
        passed, shown = verdict.status == "pass", self.notebook.shown.get(verdict.id)
        written = verdict.status not in ("todo", "missing")
        shows = "nothing" if shown is None else "pass" if shown == "pass" else "fail"
        return {
            "id": verdict.id, "title": paper.trap.name, "function": paper.trap.function,
            "status": verdict.status, "points": paper.trap.points if passed else 0,
            "possible": paper.trap.points, "message": clean(verdict.message, 500),
            "misconception": verdict.misconception, "trap": verdict.trap,
            "case": verdict.case, "notebook_shows": shows,
            "differs": shown is not None and (shown == "pass") != passed,
            **self.tallies.get(verdict.id, {}),
            **(self._code(paper) if written else {}), **self._request(verdict.id, verdict.status),
        }

    def _request(self, id: str, status: str) -> dict[str, str]:
        """The sentence with which the learner asks for another look at an exercise, if any."""
        asked = self.notebook.requests
        said = asked.get(id) or (asked.get("") if status != "pass" else "")
        return {"request": clean(said)} if said else {}

    def _code(self, paper: Paper) -> dict[str, Any]:
        """The cell of an answer, shortened, and its shape without names; for the instructor."""
        if assignments.is_model(self.notebook.stage):
            return {}
        name = paper.trap.function
        source = next((source for _, source in reversed(self.notebook.cells)
                       if submitted_notebook.defines(source, name)), "")
        return {"answer": visible(source[:LONGEST_ANSWER]), "shape": shapes.shape(source, name)}

    def _with_reason_for_end(self, verdict: Verdict) -> Verdict:
        """The verdict, with the reason if the supervisor ended the sandbox."""
        limits, why = self.sandbox.limits, self.sandbox.used.get("ended_by", "")
        text = {"memory": f"took more than {limits.memory / 2**30:g} GiB of memory in total",
                "time": f"took more than {limits.total:g} s in total"}.get(why)
        if text is None or not self.died[verdict.id]:
            return verdict
        return replace(verdict, message=f"no answer: the notebook's cells and answers {text}.")


def _messages(answer: bytes) -> list[Any]:
    """What was packed into an answer; a fault if it cannot be read."""
    try:
        return serialization.unpack_all(answer)
    except serialization.WireError:
        return [{"fault": "broken"}]


def _not_reached(papers: Sequence[Paper], attempt: Attempt, first: int) -> list[Paper]:
    """The papers from index `first` on without an answer, if the attempt failed between two."""
    if not (attempt.fault and attempt.cells_done and attempt.at < len(papers)):
        return []
    return [paper for index, paper in enumerate(papers)
            if index >= first and index not in attempt.answers]


_ORDER = {"pass": 0, "missing": 2}  # every other verdict says more than "missing"
_CELL_FAULTS = {"died": "ended the Python process.", "timeout": "ran past the time limit.",
                "broken": "sent something that cannot be read."}

NO_ROOM = "an error, whose text is left out: the errors of other cells are very long."


def valid_reports(attempt: Attempt, cells: Sequence[tuple[int, str]], processes: int) -> list[dict]:
    """The cell reports that have the expected form; all others are dropped.

    A learner's code may have sent them, so the cell must be in the notebook, the line in the cell.
    """
    ends = {number: 2 + source.count("\n") for number, source in cells}  # an error may be after it
    kept, told = [], {*_CELL_FAULTS.values(), NO_ROOM}
    room = LONGEST_ERRORS
    for report in attempt.cells[:framing.MOST_REPORTS]:
        match report:
            case {"number": int(number), "line": int() | None as line,
                  "error": str(error)} if number in ends:
                line = line if line and 0 < line <= ends[number] else None
                error = _error(_CELL_FAULTS.get(error, error), processes)
                size = 0 if error in told else len(error.encode("utf-8", "replace"))
                if size > room:
                    error, size = NO_ROOM, 0
                told.add(error)
                room -= size
                kept.append({"number": number, "line": line, "error": error})
    return kept


def fault_verdict(paper: Paper, fault: object, sandbox: Sandbox) -> Verdict:
    """The verdict if a fault, such as "timeout" or "died", left no answer to judge."""
    name, seconds = paper.trap.function, sandbox.limits.seconds
    text = {"timeout": f"{name} did not return within {seconds:g} s; is there a loop that never "
                       "ends?",
            "crowded": f"{name} did not return within {seconds:g} s, with many processes and "
                       f"threads running. The sandbox allows {sandbox.limits.processes} together; "
                       "use fewer, for example num_workers=0 in a DataLoader.",
            "large": f"{name} returned more than 4 MiB, or a structure with too many parts.",
            "died": f"{name} ended the Python process (a crash, an exit, or too much memory)."}
    known = fault if type(fault) is str else ""
    return Verdict("error", paper.exercise.id,
                   text.get(known, f"{name} sent something that cannot be read."))


def judge_answers(paper: Paper, outcomes: Sequence[Outcome]) -> Verdict:
    """The verdict on the answers to all seeds: the verdict of the first seed that does not pass."""
    if outcomes[-1].kind == "todo":
        if assignments.is_exam(assignments.number_of(paper.exercise.id)):
            return Verdict("todo", paper.exercise.id, f"{paper.trap.function} has no fix.")
        return verdicts.todo(paper.exercise.id, paper.trap.function)
    if len(outcomes) != len(paper.all_cases):
        raise ValueError("number of answers")
    for seed, cases in zip(paper.seeds, paper.cases, strict=True):
        mine, outcomes = outcomes[:len(cases)], outcomes[len(cases):]
        verdict = paper.exercise.judge(cases, mine)
        if verdict.status != "pass":
            return replace(verdict, seed=seed)
    return Verdict("pass", paper.exercise.id)


def _tally(paper: Paper, outcomes: Sequence[Outcome], verdict: Verdict) -> dict[str, Any]:
    """How far an answer got, see `tally.count`; {} if that cannot be counted.

    A row of an exam sheet has no promises, so there is nothing to count.
    """
    exercise, cases = paper.exercise, paper.all_cases
    if not exercise.promises:
        return {}
    if verdict.status == "pass":
        return tally.complete(exercise, len(cases))
    try:
        return (tally.count(exercise, cases, outcomes, verdict)
                if len(outcomes) == len(cases) else {})
    except Exception:  # the learner boundary, as in the verdict, which says what is wrong
        return {}


def _with_short_error(message: str, outcomes: Sequence[Outcome], processes: int) -> str:
    """A message in which a learner's error has at most LONGEST_ERROR characters.

    It is cut only now, because the laws compare the whole error with the errors of known mistakes.
    """
    for outcome in outcomes:
        said = _error(outcome.error, processes)
        if said != outcome.error and (start := message.find(outcome.error[:LONGEST_ERROR])) >= 0:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(message[start:], outcome.error,
                                                               strict=False))
            return message[:start] + said + message[start + len(list(same)):]
    return message


def _error(text: str, processes: int) -> str:
    """A learner's error, too short to list a case's numbers; the runner's advice is kept."""
    added = process_limit.limit_sentence(processes)
    return clean(text.removesuffix(added), LONGEST_ERROR) + (f" {added}" if added in text else "")


def place_of(text: str, cells: Sequence[tuple[int, str]]) -> str:
    """`cell 4, line 2: x.sun()`, with the line taken from the notebook; "" for an unknown place."""
    match = re.match(r"cell (\d{1,4}), line (\d{1,7}): ", text, re.A)
    known = dict(cells)
    if not match or int(match[1]) not in known:
        return ""
    lines, number = known[int(match[1])].split("\n"), int(match[2])
    return match[0] + lines[number - 1].strip()[:LONGEST_LINE] if 0 < number <= len(lines) else ""


def _outcome(message: Any, cells: Sequence[tuple[int, str]]) -> Outcome:
    """An outcome from data that the sandbox sent. Raises TypeError or ValueError if malformed."""
    match message:
        case {"kind": str(kind), "value": value, "error_type": str(error_type),
              "error": str(error), "where": str(where), "mutated": list(mutated)}:
            if kind in _KINDS and all(type(name) is str for name in mutated):
                return Outcome(kind, value, error_type[:LONGEST_TYPE], error[:300],
                               place_of(where, cells), tuple(mutated))
    raise ValueError("no outcome")
