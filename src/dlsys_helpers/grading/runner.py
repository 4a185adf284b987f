"""Runs a learner's cells and acts, inside the sandbox. Holds no laws and no expected values.

What it sends is data for a judge elsewhere. All that it needs from `os` is bound here, before a
cell can change that module, so that a learner's slip does not reach it.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import gc
import inspect
import json
import linecache
import random
import re
import select
import signal
import socket
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable
from os import _exit, close, fork, killpg, pipe, read, setpgid, waitpid, write
from typing import Any

import numpy as np
import torch
from IPython.core.inputtransformer2 import TransformerManager
from IPython.display import display

from dlsys_helpers import acting
from dlsys_helpers.acting import Case, Outcome
from dlsys_helpers.grading import frames, wire
from dlsys_helpers.grading.frames import CELLS, END

LARGEST_ANSWER = 4 * 2**20  # bytes of tensors in what one call returns
MOST_REPORTS = 100
_CELL_FILE = re.compile(r"<cell (\d+)>")
_DEFAULT_WARNINGS = list(warnings.filters)
_DEFAULT_NUMPY = np.geterr()
_RECURSION_LIMIT = sys.getrecursionlimit()
_MODULES = dict(sys.modules)


def no_check(*_: Any, **__: Any) -> None:
    """Stands for `check` here: a check cell is the learner's own tool, never a verdict."""


def main(line: socket.socket) -> None:
    """Say that it is there, read one job, do it. Returns when all is sent."""
    line.sendall(frames.frame(CELLS))
    _, head = frames.read(line.recv)
    _, acts = frames.read(line.recv)
    job = json.loads(head)
    runner = Runner(line, job)
    runner.cells(job["cells"])
    # The acts are read after the cells: while those run, no inputs are in this process.
    runner.acts(wire.unpack_all(acts))
    line.sendall(frames.frame(END))


class Runner:
    """One attempt at one submission: all its cells, then the acts of its exercises."""

    def __init__(self, line: socket.socket, job: dict) -> None:
        self.line, self.seconds = line, job["seconds"]
        self.careful, self.checkpoints = job["careful"], job["checkpoints"]
        self.space = _main_module()
        self.reports: list[dict] = []

    # ---- cells

    def cells(self, cells: list) -> None:
        """Run the cells in order; an exception ends only its cell and is reported."""
        for number, source in cells:
            self.line.sendall(frames.frame(CELLS))  # the time of this cell begins
            if self.checkpoints:
                self._checkpointed(number, source)
            else:
                self._cell(number, source)
        payload = wire.pack({"cells": self.reports[:MOST_REPORTS]})
        self.line.sendall(frames.frame(CELLS, payload))

    def _cell(self, number: int, source: str) -> None:
        try:
            run_cell(number, source, self.space)
        except BaseException as error:
            self.reports.append(_report(error, number))
        for name in _MODULES.keys() - sys.modules.keys():
            sys.modules[name] = _MODULES[name]  # torch cannot be loaded a second time

    def _checkpointed(self, number: int, source: str) -> None:
        """Run the cell in a child that goes on as this attempt; return in its parent if it fails.

        The parent holds the state before the cell: a crash costs the cell and nothing else.
        """
        done_in, done_out = pipe()
        pid = fork()
        if pid == 0:
            setpgid(0, 0)  # a signal to "my group" stays in the child
            close(done_in)
            self._cell(number, source)
            write(done_out, b".")
            close(done_out)
            return
        close(done_out)
        fault = _wait(done_in, self.seconds)
        close(done_in)
        if not fault:
            _exit(0)
        _end(pid)
        self.reports.append({"number": number, "line": None, "error": fault})

    # ---- acts

    def acts(self, acts: list[dict]) -> None:
        """Send an answer for each act: in this process, or each in its own when careful."""
        for index, act in enumerate(acts):
            self.line.sendall(frames.frame(index))  # the time of this exercise begins
            if self.careful:
                payload = isolated(lambda act=act: answer(act, self.space), self.seconds)
            else:
                payload = answer(act, self.space)
            self.line.sendall(frames.frame(index, payload))


def _main_module() -> dict:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    module.__dict__.update(__builtins__=builtins, get_ipython=Notebook(module.__dict__).me,
                           display=display)
    return module.__dict__


class Notebook:
    """What `get_ipython()` gives: magics that run Python do so, all others do nothing."""

    def __init__(self, space: dict) -> None:
        self.space = space
        self.user_ns = space

    def me(self) -> Notebook:
        """The object itself, for `get_ipython`."""
        return self

    def run_line_magic(self, name: str, line: str, *_: Any, **__: Any) -> None:
        """`%time f()` runs f; `%matplotlib inline` does nothing."""
        if name == "time":
            exec(line, self.space)

    def run_cell_magic(self, name: str, _line: str, cell: str) -> None:
        """`%%time` and `%%capture` run their cell; `%%bash` does nothing."""
        if name in ("time", "capture", "prun"):
            exec(compile(TransformerManager().transform_cell(cell), "<magic>", "exec"), self.space)

    def __getattr__(self, name: str) -> Callable:
        return lambda *_, **__: None


def run_cell(number: int, source: str, space: dict) -> None:
    """Run one cell as a notebook would, await at the top level included."""
    code = TransformerManager().transform_cell(source)
    name = f"<cell {number}>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    compiled = compile(code, name, "exec", flags=flags, dont_inherit=True)
    result = eval(compiled, space)
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(result)


def _report(error: BaseException, number: int) -> dict:
    """What stopped a cell: its number, the line in it, and one line about the error."""
    try:
        said = error.msg if isinstance(error, SyntaxError) else error  # its str() repeats the line
        text = " ".join(str(said).split())[:300]
    except BaseException:  # a learner's exception class may do anything
        text = ""
    line = error.lineno if isinstance(error, SyntaxError) else _line(error)
    return {"number": number, "line": line, "error": f"{type(error).__name__}: {text}"}


def _line(error: BaseException) -> int | None:
    found = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if _CELL_FILE.fullmatch(frame.filename)]
    return found[-1] if found else None


def answer(act: dict, space: dict) -> bytes:
    """What the learner's function does on every case, as messages behind one another."""
    fn = next((space[name] for name in act["names"] if callable(space.get(name))), None)
    if fn is None:
        return wire.pack({"missing": True})
    call = acting.load_act(act["act"]) if act["act"] else acting.call_function
    messages, room = [], wire.LARGEST_TENSORS
    settle()
    for name, inputs in act["cases"]:
        outcome = _act(call, fn, Case(name, inputs))
        try:
            messages.append(wire.pack(_facts(outcome), min(LARGEST_ANSWER, room)))
        except (wire.TooLarge, MemoryError):
            return wire.pack({"fault": "large"})
        room -= len(messages[-1])
        if outcome.kind == "todo":
            break
    return b"".join(messages)


def _act(call: Callable, fn: Callable, case: Case) -> Outcome:
    try:
        return acting.run_act(call, fn, case)
    except BaseException as error:  # KeyboardInterrupt, or an exception that cannot be shown
        return Outcome("raised", error_type=type(error).__name__)


def _facts(outcome: Outcome) -> dict[str, Any]:
    return {"kind": outcome.kind, "value": outcome.value, "error_type": outcome.error_type,
            "error": outcome.error, "where": outcome.where, "mutated": list(outcome.mutated)}


def settle() -> None:
    """Put back what a cell may have left changed: no exercise pays for another's setting."""
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
    warnings.filters[:] = _DEFAULT_WARNINGS
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(_RECURSION_LIMIT)
    sys.settrace(None)
    sys.setprofile(None)
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)


# ---- children of the runner

def isolated(unit: Callable[[], bytes], seconds: float) -> bytes:
    """What `unit()` returns, run in a child of its own; a message about its fault otherwise."""
    answer_in, answer_out = pipe()
    pid = fork()
    if pid == 0:
        setpgid(0, 0)
        close(answer_in)
        with contextlib.suppress(BaseException):
            _write_all(answer_out, frames.frame(0, unit()))
        _exit(0)
    close(answer_out)
    deadline = time.monotonic() + seconds
    try:
        return frames.read(lambda n: _read_until(answer_in, n, deadline))[1]
    except frames.FrameError as error:
        return wire.pack({"fault": error.kind})
    finally:
        close(answer_in)
        _end(pid)


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[write(fd, rest):]


def _read_until(fd: int, n: int, deadline: float) -> bytes:
    ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
    if not ready:
        raise frames.FrameError("timeout")
    return read(fd, n)


def _wait(fd: int, seconds: float) -> str:
    """"" when the child's byte came, else "died" or "timeout"."""
    ready, _, _ = select.select([fd], [], [], seconds)
    if not ready:
        return "timeout"
    return "" if read(fd, 1) else "died"


def _end(pid: int) -> None:
    with contextlib.suppress(OSError):  # a learner may have reaped it
        killpg(pid, signal.SIGKILL)
        waitpid(pid, 0)
