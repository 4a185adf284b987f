"""The judge's handle on the sandbox: start the zygote, open a sandbox, send jobs.

This code is trusted. The bytes that it receives come from a stranger, and it only decodes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dlsys.grading.settings import Limits
from dlsys.grading.text import clean
from dlsys.grading.walls import cgroups, framing, isolation, supervisor
from dlsys.grading.walls.framing import ACTS, CELLS, END, JOB
from dlsys_helpers.errors import UserError

START_SECONDS = 300.0  # loading torch from a cold disk, on a busy machine
MOST_BYTES = 64 * 2**20  # most that one attempt may send
MOST_ANSWERS = framing.EARLY + 2  # two more at the end: of what was checked last, and by name
GRACE = 20.0  # seconds that the judge waits longer than the sandbox may live


class SandboxRefused(UserError):
    """No sandbox can be built on this machine. The message says what to do."""


class SandboxLost(RuntimeError):
    """The processes around the sandbox have ended; a fresh zygote may still grade."""


@dataclass
class Attempt:
    """What one attempt sent: cell reports, packed answers by index, the fault that ended it."""

    cells: list[dict] = field(default_factory=list)
    cells_done: bool = False
    answers: dict[int, list[bytes]] = field(default_factory=dict)
    fault: str = ""
    at: int = CELLS


class Zygote:
    """The judge's connection to the zygote and its supervisor. Close it after use.

    The zygote takes seconds to load: do other work first, then call `wait`.
    """

    def __init__(self, limits: Limits, walled: bool = True) -> None:
        if sys.platform != "linux":
            raise SandboxRefused(
                f"grading: got {sys.platform}, expected Linux. {isolation.remedy()}")
        self.limits, self.walled = limits, walled
        self.group = cgroups.make(limits) if walled else cgroups.NONE
        self.compiler = False  # whether it is loaded
        self.line, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115, closed with the rest
        # -P and -s: nothing from the current folder or the user's own packages is imported.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-m", "dlsys.grading.walls.zygote"], stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL, stderr=self._stderr, cwd="/",
            env=isolation.ENVIRONMENT, start_new_session=True, pass_fds=self.group.fds)
        theirs.close()
        with contextlib.suppress(OSError):  # if it has ended by now, `wait` says so
            self.line.sendall(json.dumps({
                "walled": walled, "limits": limits.plain(), "group": self.group.plain(),
                "package": str(isolation.PACKAGES[0]), "visible": isolation.visible_paths(),
                "masked": isolation.masked_paths()}).encode())

    def wait(self) -> None:
        """Wait until the zygote can fork. Raises SandboxRefused, which says what to do."""
        self.line.settimeout(START_SECONDS)
        try:
            answer = json.loads(self.line.recv(4096))
        except TimeoutError:
            answer = {"error": f"no answer in {START_SECONDS:g} s"}
        except (OSError, ValueError):  # it has ended without one
            answer = {"error": f"its process ended: {self._last_line_of_stderr()}"}
        if "package" in answer:
            self.close()
            raise SandboxRefused(
                f"sandbox: got the package in {answer['package']}, expected the one in "
                f"{isolation.PACKAGES[0]}. Run this checkout's own dlsys, and leave PYTHONPATH "
                "unset.")
        if "error" in answer:
            self.close()
            raise SandboxRefused(
                f"sandbox: cannot be built here ({clean(answer['error'], 160)}). "
                f"{isolation.remedy()} Or, for notebooks you trust like your own: --sandbox=none")
        if not answer["group"]:
            self._leave_group()

    def load_compiler(self) -> None:
        """Load torch's compiler in the zygote, so that no runner has to. Raises SandboxLost."""
        self.line.settimeout(START_SECONDS)
        try:
            self.line.sendall(framing.LOAD_COMPILER)
            self.compiler = bool(self.line.recv(1))
        except OSError:
            self.compiler = False
        if not self.compiler:
            raise SandboxLost("zygote")

    def _last_line_of_stderr(self) -> str:
        """The last line that the zygote wrote to standard error, if it wrote one."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", "replace").split("\n")
        return next((clean(line, 120) for line in reversed(lines) if line.strip()), "no reason")

    def close(self) -> None:
        """End the zygote and every process that it started."""
        self.line.close()
        self._stderr.close()
        self._process.kill()
        self._process.wait()
        self._leave_group()

    def _leave_group(self) -> None:
        self.group.close()
        self.group = cgroups.NONE

    @contextlib.contextmanager
    def sandbox(self) -> Iterator[Sandbox]:
        """A sandbox for one submission, ended with everything in it afterwards."""
        line, theirs = socket.socketpair()
        life_in, life_out = os.pipe()
        try:
            socket.send_fds(self.line, [framing.OPEN], [theirs.fileno(), life_in])
        except OSError:
            raise SandboxLost("zygote") from None
        finally:
            theirs.close()
            os.close(life_in)
        opened = Sandbox(line, self.limits)
        try:
            yield opened
        finally:
            line.close()
            os.close(life_out)
            opened.used = self._used()

    def _used(self) -> dict:
        """CPU seconds, peak memory and what ended the sandbox, from its supervisor."""
        self.line.settimeout(GRACE)
        try:
            data = self.line.recv(supervisor.LONGEST_MESSAGE, socket.MSG_WAITALL)
            return json.loads(data)
        except (OSError, ValueError):
            raise SandboxLost("supervisor") from None


class Sandbox:
    """One open sandbox. `used` is set when the sandbox is closed."""

    def __init__(self, line: socket.socket, limits: Limits) -> None:
        self.line, self.limits = line, limits
        self._deadline = time.monotonic() + limits.total + GRACE
        self.used: dict = {}

    def attempt(self, cells: Sequence[tuple[int, str]], acts: Sequence[bytes], *,
                careful: bool = False, checkpoints: bool = False,
                both: bool = False) -> Attempt:
        """Run all cells, then the acts (packed by `pack_act`), in a new process.

        careful: act where a cell calls `check`, each time in a separate process; without a call,
        or if `both` is set, after all cells. checkpoints: a cell that faults ends only itself.
        """
        job = {"cells": list(cells), "seconds": self.limits.seconds, "careful": careful,
               "checkpoints": checkpoints, "both": both}
        found, received = Attempt(), 0
        try:
            self.line.settimeout(GRACE)
            self.line.sendall(framing.frame(JOB, json.dumps(job).encode()))
            self.line.sendall(framing.frame(ACTS, b"".join(acts)))
            while True:
                index, payload = framing.read_until(self.line, self._deadline)
                if index == END:
                    _take_end(found, payload)
                    return found
                found.at, received = index, received + len(payload)
                if received > MOST_BYTES:
                    raise framing.FrameError("broken")
                if index == CELLS:
                    _take_cells(found, payload)
                elif index < len(acts) and payload:
                    _take_answer(found, index, payload, MOST_ANSWERS if careful else 1)
        except OSError:
            found.fault = "died"
        except framing.FrameError as error:
            found.fault = error.kind
        return found


def pack_act(id: str, function: str, act: str, cases: Sequence[Any]) -> bytes:
    """One exercise's part of a job: the function's name, the act's source, the cases' inputs.

    The names of the cases are not sent, because they would reveal what each case tests.
    """
    from dlsys.grading.walls import serialization
    return serialization.pack({"id": id, "function": function, "act": act,
                               "cases": [case.inputs for case in cases]})


def _take_cells(found: Attempt, payload: bytes) -> None:
    from dlsys.grading.walls import serialization
    try:
        match serialization.unpack(payload) if payload else None:
            case {"cells": list(cells)}:
                found.cells, found.cells_done = cells, True
    except serialization.WireError:
        found.cells_done = False


def _take_answer(found: Attempt, index: int, payload: bytes, most: int) -> None:
    """Keep an answer packed, so that only the answer being judged is unpacked in memory.

    The learner's code may send more answers than the runner. They are capped, because with
    enough answers it could guess until one passes.
    """
    answers = found.answers.setdefault(index, [])
    if len(answers) < most:
        answers.append(payload)


def _take_end(found: Attempt, payload: bytes) -> None:
    """Store the init's last report on the attempt; an unexpected form is itself a fault."""
    try:
        facts = json.loads(payload)
        fault, at = facts["fault"], facts["at"]
    except (ValueError, TypeError, KeyError, RecursionError):
        fault, at = "broken", found.at
    found.fault = fault if fault in ("", "died", "timeout") else "broken"
    found.at = at if type(at) is int else found.at
