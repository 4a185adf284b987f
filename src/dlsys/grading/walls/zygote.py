"""The process that has torch loaded, and forks a runner from it for every submission.

The zygote starts fresh, with an empty environment: no law, no key and no other submission was ever
in its memory. It builds the view, restarts as a program inside that view, starts the supervisor
while it is still small, and then loads torch.

    python -m dlsys.grading.walls.zygote      (its standard input is a socket to the judge)
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from dlsys.grading.settings import Limits
from dlsys.grading.walls import framing, isolation, supervisor
from dlsys.grading.walls.cgroups import NONE, Group

LONGEST_SETTINGS = 65536
LARGE_PAGE = 2 * 2**20  # bytes
COLLAPSE = 25  # MADV_COLLAPSE of linux/mman.h
INSIDE = "inside"  # the argument of the program that runs in the view


def main() -> None:
    """Read the settings, build the walls, say "ready", fork runners. Never returns."""
    judge, inside = socket.socket(fileno=os.dup(0)), INSIDE in sys.argv
    try:
        settings = json.loads(judge.recv(LONGEST_SETTINGS, socket.MSG_PEEK))
        if settings["package"] != (mine := str(isolation.PACKAGES[0])):
            judge.sendall(json.dumps({"package": mine}).encode())
            os._exit(1)
        if settings["walled"] and not inside:  # the settings wait in the line for the next program
            isolation.build_view(settings["visible"], settings["masked"])
            isolation.start_inside("-P", "-s", "-m", "dlsys.grading.walls.zygote", INSIDE)
        judge.recv(LONGEST_SETTINGS)
        open_null_at(0, 1, 2)
        limits = Limits(**settings["limits"])
        user = isolation.choose_user() if settings["walled"] else None
        group = _usable(Group.read(settings["group"]))
        zygote = _start_supervisor(judge, settings["walled"], limits, user, group)
        prepare = _load()
    except Exception as error:  # the judge refuses to grade, with this text
        judge.sendall(json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}).encode())
        os._exit(1)
    judge.sendall(json.dumps({"ready": True, "group": bool(group.fds)}).encode())
    judge.close()
    serve(zygote, settings["walled"], limits, user, group, prepare)


def open_null_at(*fds: int) -> None:
    """Open the null device at these descriptors."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)


def _usable(group: Group) -> Group:
    """The group, if a process here can enter it; else one without folders."""
    if (pid := os.fork()) == 0:
        with contextlib.suppress(OSError):
            group.enter()
            os._exit(0)
        os._exit(1)
    return NONE if os.waitpid(pid, 0)[1] else group


def _start_supervisor(judge: socket.socket, walled: bool, limits: Limits, user: int | None,
                      group: Group) -> socket.socket:
    mine, theirs = socket.socketpair()
    if os.fork() == 0:
        try:
            mine.close()
            isolation.prctl(isolation.DIE_WITH_PARENT, signal.SIGKILL)
            supervisor.main(judge, theirs, walled, limits, user, group)
        finally:
            os._exit(1)
    theirs.close()
    return mine


def _load() -> Callable:
    """Import what worksheets import, so that each fork has it loaded; returns the runner's main.

    This computes nothing: a thread pool or an autograd engine would not survive a fork.
    """
    os.environ.pop("DLSYS_WORK", None)  # importing `dlsys` sets it, but no learner works here
    import matplotlib.pyplot  # noqa: F401
    import numpy.random  # noqa: F401, with numpy's other parts loaded when they are first used
    import torch
    import torch.backends.cpu
    import torch.utils._device
    import torch.utils.data

    import dlsys_helpers
    from dlsys import arrival
    from dlsys.grading.walls import runner

    # The library looks at the processor once. A runner's /proc does not show it, and without it
    # torch falls back to its slowest kernels.
    torch.backends.cpu.get_cpu_capability()
    dlsys_helpers.check = runner.check
    arrival.arrive = lambda *_: None  # a worksheet's first cell has nothing to install here
    for name in dlsys_helpers.__all__:
        getattr(dlsys_helpers, name)
    _make_forks_cheap()
    return runner.main


def _load_compiler() -> None:
    """Import what optimizers and others import on first use, which takes seconds."""
    import torch._dynamo  # noqa: F401

    from dlsys.grading.walls import runner
    runner.MODULES.update(sys.modules)
    _make_forks_cheap()


def _make_forks_cheap() -> None:
    """Freeze all objects, so that no runner's GC copies their pages, and use large pages."""
    gc.collect()
    gc.freeze()
    for line in Path("/proc/self/maps").read_text().splitlines():
        match line.split():
            case [place, "rw-p", _, _, _] | [place, "rw-p", _, _, _, "[heap]"]:  # no file behind it
                use_large_pages(*(int(end, 16) for end in place.split("-")))


def use_large_pages(first: int, end: int) -> None:
    """Gather the memory at these addresses in large pages: a fork copies one entry, not 512.

    For the big regions of a loaded process this takes 0.4 s once, and makes a fork and its end
    twice as fast. Before Linux 6.1 nothing happens.
    """
    first, end = -(-first // LARGE_PAGE) * LARGE_PAGE, end // LARGE_PAGE * LARGE_PAGE
    if first < end:
        isolation.libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), COLLAPSE)


def serve(supervisor_line: socket.socket, walled: bool, limits: Limits, user: int | None,
          group: Group, run: Callable) -> None:
    """Do what the supervisor asks until it is gone; `framing` lists the requests.

    A runner is forked into its init's namespaces. The compiler is loaded for later forks.
    """
    children = Children(walled)
    while True:
        kind, fds, _, _ = socket.recv_fds(supervisor_line, 1, 2)
        if kind == framing.FORK:
            if not group.exists():
                os._exit(1)  # somebody removed it, so the judge starts again with a new one
            children.reap_ended()  # an unreaped one still counts as a process of its user
            with contextlib.suppress(isolation.WallError):  # the init has ended by now
                line, init_fd = fds
                children.pids.append(_fork_runner(line, init_fd, walled, limits, user, group, run))
            for fd in fds:
                os.close(fd)
            supervisor_line.sendall(framing.DONE)
        elif kind == framing.LOAD_COMPILER:
            _load_compiler()
            supervisor_line.sendall(framing.DONE)
        elif kind == framing.REAP:
            supervisor_line.sendall(json.dumps(children.reap_all()).encode())
            children = Children(walled)
        else:
            os._exit(0)


def _fork_runner(line: int, init_fd: int, walled: bool, limits: Limits, user: int | None,
                 group: Group, run: Callable) -> int:
    if walled:
        isolation.set_namespaces(init_fd, isolation.NEW_PIDS)  # for children from now on
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            group.enter()
            if walled:
                isolation.set_namespaces(init_fd, isolation.OWN)
                isolation.mount_new_home(limits)
                isolation.set_limits(limits)
                isolation.give_up_privileges(user)
                # So that the supervisor can measure its memory.
                isolation.prctl(isolation.SET_DUMPABLE, 1)
            supervisor.close_others({line})
            open_null_at(0, 1, 2)  # again: processes that share an open file share its flags
            run(socket.socket(fileno=line))
        finally:
            os._exit(1)
    return pid


class Children:
    """The runners of one sandbox, and the CPU time and memory of those that ended."""

    def __init__(self, walled: bool) -> None:
        self.walled = walled
        self.pids: list[int] = []
        self.cpu, self.peak = 0.0, 0

    def reap_ended(self) -> None:
        """Reap the runners that have ended, without waiting for the others."""
        self.pids = [pid for pid in self.pids if not self._reaped(pid, os.WNOHANG)]

    def reap_all(self) -> dict:
        """Wait until all runners have ended; returns their CPU seconds and largest peak memory."""
        for pid in self.pids:
            if not self.walled:  # without a namespace, nothing else ends it
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            self._reaped(pid, 0)
        with contextlib.suppress(ChildProcessError):  # orphans that became this process's children
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        return {"cpu_seconds": self.cpu, "peak_bytes": self.peak}

    def _reaped(self, pid: int, how: int) -> bool:
        found, _, used = os.wait4(pid, how)
        if found:
            self.cpu += used.ru_utime + used.ru_stime
            self.peak = max(self.peak, used.ru_maxrss * 1024)
        return bool(found)


if __name__ == "__main__":
    main()
