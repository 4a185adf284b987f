"""Run a learner's cells and acts inside the sandbox. There are no laws and no expected values here.

The runner sends data to the judge, in another process. It imports the functions of `os` that it
needs here, before a cell can change that module, so that a learner's slip does not break it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import random
import re
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from os import _exit, close, fork, killpg, pipe, read, setpgid, waitpid, write
from time import monotonic, sleep
from typing import Any, cast

import numpy as np
import torch

from dlsys.check_stub import CheckStub
from dlsys.grading.walls import framing, process_limit, serialization
from dlsys.grading.walls.framing import CELLS, END
from dlsys.grading.walls.shell import Shell
from dlsys_helpers import acting
from dlsys_helpers.acting import Case, Outcome

FORK_SECONDS = 4.0
LARGEST_ANSWER = 4 * 2**20  # bytes of tensors in what one call returns
LONGEST_TYPE, MOST_LINES = 80, 10**7
MOST_INPUTS = 10**8  # parts of a job; it comes from the judge
DONE, GOES_ON = b".", b"+"  # from a checkpoint to its parent
_CELL_FILE = re.compile(r"<cell (\d+)>")
_DEFAULT_WARNINGS = list(warnings.filters)
_DEFAULT_NUMPY = np.geterr()
_RECURSION_LIMIT = sys.getrecursionlimit()
MODULES = dict(sys.modules)  # the zygote adds what it loads later
_LOADED_ONCE = {"torch", "numpy"}  # cannot be imported twice in a process
FAULTS = tuple(serialization.pack({"fault": kind}) for kind in ("timeout", "crowded", "died"))


check = CheckStub()


def main(line: socket.socket) -> None:
    """Tell the init that the runner is ready, read one job and do it; return when all is sent."""
    line.sendall(framing.frame(CELLS))
    _, head = framing.read(line.recv)
    _, acts = framing.read(line.recv)
    job = json.loads(head)
    runner = Runner(line, job, serialization.unpack_all(acts, MOST_INPUTS))
    runner.cells(job["cells"])
    runner.answers()
    line.sendall(framing.frame(END))


class Runner:
    """One attempt at one submission: all its cells, then the acts of its exercises."""

    def __init__(self, line: socket.socket, job: dict, acts: list[dict]) -> None:
        self.line, self.seconds, self.acts = line, job["seconds"], acts
        self.careful, self.checkpoints, self.both = (
            job["careful"], job["checkpoints"], job["both"])
        self.shell = Shell()
        self.reports: list[dict] = []
        self.checked: dict[str, Callable] = {}     # exercise id: what its check was called with
        self.early: dict[str, list[tuple[Callable, bytes]]] = {}
        self.done: int | None = None               # in a checkpoint: where its parent listens
        check.tell = self.note_check

    # ---- cells

    def cells(self, cells: list) -> None:
        """Run the cells in order; an exception ends only its cell and is reported."""
        for number, source in cells:
            self.line.sendall(framing.frame(CELLS))  # this cell's time starts
            if self.checkpoints:
                self._checkpointed(number, source)
            else:
                self._cell(number, source)
        payload = serialization.pack({"cells": self.reports[:framing.MOST_REPORTS]})
        self.line.sendall(framing.frame(CELLS, payload))

    def _cell(self, number: int, source: str) -> None:
        before = len(sys.modules)
        try:
            self.shell.run(number, source)
        except BaseException as error:
            self.reports.append(_report(error, number))
        if not sys.modules.keys() >= _LOADED_ONCE or len(sys.modules) < before:
            # Comparing name by name would change reference counts, and so copy a thousand memory
            # pages that are shared with the zygote.
            sys.modules.update(MODULES | sys.modules)

    def _checkpointed(self, number: int, source: str) -> None:
        """Run the cell in a child, which continues the attempt; return here only after a fault.

        The parent keeps the state from before the cell, so a crash costs only that cell.
        """
        done_in, done_out = pipe()
        pid = fork_with_retry()
        if pid == 0:
            setpgid(0, 0)  # a signal to "my group" stays in the child
            close(done_in)
            self.done = done_out
            self._cell(number, source)
            self.done = None
            with contextlib.suppress(OSError):  # a cell may have ended the parent
                write(done_out, DONE)
            close(done_out)
            return
        close(done_out)
        fault = _wait(done_in, self.seconds)
        if fault == "timeout":
            fault = process_limit.timeout_in_a_crowd() or fault
        close(done_in)
        if not fault:
            _exit(0)
        _kill(pid)
        self.reports.append({"number": number, "line": None, "error": fault})

    def _more_time(self) -> None:
        """Restart the time limit, because what comes next is not part of the cell."""
        self.line.sendall(framing.frame(CELLS))
        if self.done is not None:
            with contextlib.suppress(OSError):
                write(self.done, GOES_ON)

    # ---- acts

    def note_check(self, id: Any, fn: Any) -> None:
        """Note which function a cell passes to `check`.

        When careful, act now: a later cell may break the function.
        """
        if type(id) is not str or not callable(fn):
            return
        self.checked[id] = fn
        act = next((act for act in self.acts if act["id"] == id), None)
        early = self.early.setdefault(id, [])
        if self.careful and act and len(early) < framing.EARLY:
            self._more_time()
            early.append((fn, run_in_child(lambda: answer(act, fn), self.seconds)))
            self._more_time()

    def answers(self) -> None:
        """Send an answer for each act: in this process, or each in its own when careful."""
        for index, act in enumerate(self.acts):
            self.line.sendall(framing.frame(index))  # this exercise's time starts
            if self.careful:
                self._all_answers(index, act)
            else:
                fn = self.checked.get(act["id"], self.shell.space.get(act["function"]))
                self.line.sendall(framing.frame(index, answer(act, fn)))

    def _all_answers(self, index: int, act: dict) -> None:
        """Send answers of the function last checked and of the one with the name; then early ones.

        The quick attempt has already run both after all cells. So unless `both` is set, a function
        that acted where a cell checked it does not act again.
        """
        early = self.early.get(act["id"], [])
        named = self.shell.space.get(act["function"])
        last = self.checked.get(act["id"], named)
        for fn in [last] if last is named else [last, named]:
            known = [payload for f, payload in early if f is fn]
            if not known or (self.both and known[0] not in FAULTS):
                self.line.sendall(framing.frame(index))
                payload = run_in_child(partial(answer, act, fn), self.seconds)
                self.line.sendall(framing.frame(index, payload))
        for _, payload in early:
            self.line.sendall(framing.frame(index, payload))


def _report(error: BaseException, number: int) -> dict:
    """What stopped a cell: its number, the line in it, and one line about the error."""
    try:
        said = error.msg if isinstance(error, SyntaxError) else error  # its str() repeats the line
        text = " ".join(str(said).split())[:300]
    except BaseException:  # a learner's exception class may do anything
        text = ""
    line = error.lineno if isinstance(error, SyntaxError) else _line(error)
    name = str(type(error).__name__)[:LONGEST_TYPE]  # its class may say anything
    if type(line) is not int or abs(line) > MOST_LINES:
        line = None
    said = process_limit.with_limit(name, text)
    return {"number": number, "line": line, "error": f"{name}: {said}"}


def _line(error: BaseException) -> int | None:
    found = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if _CELL_FILE.fullmatch(frame.filename)]
    return found[-1] if found else None


def answer(act: dict, fn: Any) -> bytes:
    """The outcomes of the learner's function on all cases, packed one after the other."""
    if not callable(fn):
        return serialization.pack({"missing": "" if fn is None else type(fn).__name__})
    call = acting.load_act(act["act"]) if act["act"] else acting.call_function
    messages, budget = [], serialization.Budget()
    reset_globals()
    with acting.standard_session():  # makes each act's inner session cheap
        for inputs in act["cases"]:
            outcome = _act(call, fn, Case("", inputs))
            try:
                messages.append(serialization.pack(_facts(outcome), budget, LARGEST_ANSWER))
            except (serialization.TooLarge, MemoryError):
                return serialization.pack({"fault": "large"})
            if outcome.kind == "todo":
                break
    return b"".join(messages)


def _act(call: Callable, fn: Callable, case: Case) -> Outcome:
    try:
        return acting.run_act(call, fn, case)
    except BaseException as error:  # KeyboardInterrupt, or an exception that cannot be shown
        return Outcome("raised", error_type=type(error).__name__)


def _facts(outcome: Outcome) -> dict[str, Any]:
    error = process_limit.with_limit(outcome.error_type, outcome.error)
    return {"kind": outcome.kind, "value": outcome.value, "error_type": outcome.error_type,
            "error": error, "where": outcome.where, "mutated": list(outcome.mutated)}


def reset_globals() -> None:
    """Reset global settings that a cell may have changed, so that no exercise affects another."""
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_num_threads(1)
    if torch.are_deterministic_algorithms_enabled():  # the call imports the compiler
        torch.use_deterministic_algorithms(False)
    torch.autograd.set_detect_anomaly(False)
    torch.set_autocast_enabled("cpu", False)
    torch.set_flush_denormal(False)
    random.seed(0)
    np.random.seed(0)
    np.seterr(**_DEFAULT_NUMPY)
    cast(list, warnings.filters)[:] = _DEFAULT_WARNINGS
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(_RECURSION_LIMIT)
    sys.settrace(None)
    sys.setprofile(None)
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)


# ---- children of the runner

def fork_with_retry() -> int:
    """Fork; if there are too many processes, wait for those that are being killed.

    Raises BlockingIOError if there are still too many after FORK_SECONDS.
    """
    deadline = monotonic() + FORK_SECONDS
    while True:
        try:
            return fork()
        except BlockingIOError:
            if monotonic() > deadline:
                raise
            sleep(0.02)


def run_in_child(unit: Callable[[], bytes], seconds: float) -> bytes:
    """The result of `unit()`, run in a child process; after a fault, a message that names it."""
    answer_in, answer_out = pipe()
    pid = fork_with_retry()
    if pid == 0:
        setpgid(0, 0)
        close(answer_in)
        with contextlib.suppress(BaseException):
            _write_all(answer_out, framing.frame(0, unit()))
        _exit(0)
    close(answer_out)
    deadline = time.monotonic() + seconds
    try:
        return framing.read(lambda n: _read_until(answer_in, n, deadline))[1]
    except framing.FrameError as error:
        late = error.kind == "timeout" and process_limit.timeout_in_a_crowd()
        return serialization.pack({"fault": "crowded" if late else error.kind})
    finally:
        close(answer_in)
        _kill(pid)


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[write(fd, rest):]


def _read_until(fd: int, n: int, deadline: float) -> bytes:
    ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
    if not ready:
        raise framing.FrameError("timeout")
    return read(fd, n)


def _wait(fd: int, seconds: float) -> str:
    """The fault of a child: "" when it is done, else "died" or "timeout".

    Each GOES_ON byte restarts the time limit.
    """
    while True:
        ready, _, _ = select.select([fd], [], [], seconds)
        if not ready:
            return "timeout"
        byte = read(fd, 1)
        if byte != GOES_ON:
            return "" if byte else "died"


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):  # the learner's code may have reaped it
        killpg(pid, signal.SIGKILL)
        waitpid(pid, 0)
