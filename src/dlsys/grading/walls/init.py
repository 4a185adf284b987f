"""The first process of a sandbox: it passes jobs in and answers out, and ends runners that hang.

It is process 1 of its own process namespace, runs none of the learner's code, and has neither laws
nor expected values. When it ends, the kernel ends everything in the sandbox.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time

from dlsys.grading.walls import framing, isolation
from dlsys.grading.walls.framing import ACTS, CELLS, END, JOB, FrameError

START_SECONDS = 60.0
END_SECONDS = 1.0  # killed processes end as soon as the kernel has reclaimed their memory
GRACE = 3.0  # seconds beyond the limit, if the runner watches its own children


def main(judge: socket.socket, supervisor: socket.socket, walled: bool,
         user: int | None) -> None:
    """Serve the judge's jobs until it hangs up. Never returns."""
    with contextlib.suppress(FrameError, OSError):
        if walled:
            isolation.enter_own_namespaces()
            proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
            socket.send_fds(supervisor, [framing.PROC], [proc])
            os.close(proc)
            isolation.give_up_privileges(user)
            isolation.prctl(isolation.DIE_WITH_PARENT, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, _reap)
        # Python has a handler for it, and the sandbox can send process 1 any signal with a handler.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            serve(judge, supervisor, walled)
    os._exit(0)


def _reap(*_: object) -> None:
    """Wait for orphans that have ended, so that their CPU time counts as this process's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _wait_for_orphans() -> None:
    """Wait until the killed processes have ended, and their children belong to this process."""
    deadline = time.monotonic() + END_SECONDS
    while any(map(_alive, filter(str.isdigit, os.listdir("/proc")))):
        if time.monotonic() > deadline:
            return
        time.sleep(0.002)
    _reap()


def _alive(name: str) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
        return name != "1" and stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    return False


def serve(judge: socket.socket, supervisor: socket.socket, walled: bool) -> None:
    """Run one job in a new runner; pass its frames to the judge, then an END frame."""
    judge.settimeout(None)
    _, job = framing.read(judge.recv)
    _, acts = framing.read(judge.recv)
    runner = _start_runner(supervisor)
    try:
        fault = _relay(job, acts, runner, judge)
    finally:
        runner.close()
        if walled and os.getpid() == 1:  # as process 1, -1 reaches only the sandbox
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
    judge.settimeout(None)
    judge.sendall(framing.frame(END, json.dumps(fault).encode()))
    if walled:
        _wait_for_orphans()


def _start_runner(supervisor: socket.socket) -> socket.socket:
    """A socket to a new runner, which the zygote forks from the loaded process."""
    mine, theirs = socket.socketpair()
    isolation.prctl(isolation.SET_DUMPABLE, 1)  # the zygote joins the namespaces of this process
    socket.send_fds(supervisor, [framing.FORK], [theirs.fileno()])
    theirs.close()
    framing.read_until(mine, time.monotonic() + START_SECONDS)  # it has joined, and waits
    # Closes /proc/1/mem to the learner's code, which has the same user.
    isolation.prctl(isolation.SET_DUMPABLE, 0)
    return mine


def _relay(job: bytes, acts: bytes, runner: socket.socket, judge: socket.socket) -> dict:
    """Pass frames on until the runner ends, dies or is late; returns its fault and the place."""
    seconds = _frame_timeout(job)
    at = CELLS
    try:
        runner.sendall(framing.frame(JOB, job) + framing.frame(ACTS, acts))
        while True:
            index, payload = framing.read_until(runner, time.monotonic() + seconds)
            if index == END:
                return {"fault": "", "at": at}
            at = index
            judge.settimeout(None)
            judge.sendall(framing.frame(index, payload))
    except FrameError as error:
        return {"fault": error.kind, "at": at}
    except OSError:
        return {"fault": "died", "at": at}


def _frame_timeout(job: bytes) -> float:
    facts = json.loads(job)
    return facts["seconds"] + (GRACE if facts["careful"] else 0.0)
