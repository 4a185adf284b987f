"""Start one sandbox at a time for the judge, watch its memory and time, and end it.

The supervisor never runs a learner's code, and a sandbox cannot see it. It is a small process
without torch; the zygote, which has torch loaded, forks the processes that run the code.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dlsys.grading.settings import Limits
from dlsys.grading.walls import framing, init, isolation
from dlsys.grading.walls.cgroups import NONE, Group, read

POLL_SECONDS = 0.02  # between two memory checks
LONGEST_MESSAGE = 4096
_OWN = re.compile(rb"\n(?:RssAnon|RssShmem|VmSwap|VmPTE):\s+(\d+)")
_SOCKETS = re.compile(rb"^sockets: used (\d+)")
_LENT = re.compile(rb"\n(Anonymous|Pss_Anon):\s+(\d+)")
_SHARED_OUT = re.compile(rb"\n(?:Pss|SwapPss):\s+(\d+)")


def main(judge: socket.socket, zygote: socket.socket, walled: bool,
         limits: Limits, user: int | None, group: Group) -> None:
    """Open one sandbox after the other until the judge is gone. Never returns."""
    lender = os.getppid()
    while True:
        kind, fds, _, _ = socket.recv_fds(judge, 1, 2)
        if kind == framing.LOAD_COMPILER:
            zygote.sendall(kind)
            if not (loaded := zygote.recv(1)):
                os._exit(1)  # the zygote ended while loading it
            judge.sendall(loaded)
            continue
        if len(fds) != 2:
            group.remove()  # a judge that was killed could not do this
            os._exit(0)
        pid = os.fork()
        if pid == 0:  # a process can make only one process namespace
            try:
                report = Supervised(zygote, walled, limits, user, group, lender).run(*fds)
                judge.sendall(json.dumps(report).encode().ljust(LONGEST_MESSAGE))
                os._exit(0)
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)
        if os.waitpid(pid, 0)[1] != 0:
            os._exit(1)  # the judge sees the line closed, and starts again


class Supervised:
    """One submission's sandbox, from its init's start to the end of its last process."""

    def __init__(self, zygote: socket.socket, walled: bool, limits: Limits,
                 user: int | None, group: Group = NONE, lender: int | None = None) -> None:
        self.zygote, self.walled, self.limits, self.user = zygote, walled, limits, user
        self.group, self.out_of_memory_kills = group, group.out_of_memory_kills()
        self.lender = lender
        self.proc: int | None = None
        self.socket_bytes = _socket_bytes()
        self.peak, self.ended_by = 0, ""

    def run(self, line: int, life: int) -> dict:
        """Watch the sandbox until the judge closes `life`; returns what it used, as JSON."""
        mine, theirs = socket.socketpair()
        pid = self._fork_init(line, life, mine, theirs)
        theirs.close()
        os.close(line)
        init_fd = os.pidfd_open(pid)
        try:
            self.watch_until_closed(init_fd, life, mine)
            if not self.ended_by:  # the judge has hung up: the init counts what has ended, and ends
                select.select([mine], [], [], init.END_SECONDS)
        finally:
            alive = self._cpu_of_living()
            used = self._end(pid)
            for fd in (init_fd, life, *([self.proc] if self.proc is not None else [])):
                os.close(fd)
            mine.close()
        if not self.ended_by and self.met_memory_bound():
            self.ended_by = "memory"
        return {"ended_by": self.ended_by, "peak_bytes": max(self.peak, used["peak_bytes"]),
                "cpu_seconds": used["cpu_seconds"] + alive}

    def _fork_init(self, line: int, life: int, mine: socket.socket,
                     theirs: socket.socket) -> int:
        if self.walled:
            isolation.unshare(isolation.NEW_PIDS)  # for children from now on
        pid = os.fork()
        if pid == 0:
            try:
                os.close(life)
                mine.close()
                keep = {line, theirs.fileno()}
                close_others(keep)
                init.main(socket.socket(fileno=line), theirs, self.walled, self.user)
            finally:
                os._exit(1)
        return pid

    def watch_until_closed(self, init_fd: int, life: int, mine: socket.socket) -> None:
        """Serve the init and hold it to its limits, until it or the judge has closed its end."""
        poll = select.poll()
        for fd in (init_fd, life, mine.fileno()):
            poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + self.limits.total
        while not self.ended_by:
            ready = {fd for fd, _ in poll.poll(POLL_SECONDS * 1000)}
            if life in ready or init_fd in ready:
                return
            if mine.fileno() in ready and not self._ask_zygote(mine, init_fd):
                return
            if self._memory() > self.limits.memory or self.met_memory_bound():
                self.ended_by = "memory"
            elif time.monotonic() > deadline:
                self.ended_by = "time"

    def _ask_zygote(self, mine: socket.socket, init_fd: int) -> bool:
        """Pass the init's request on to the zygote; False when the init has ended."""
        kind, fds, _, _ = socket.recv_fds(mine, 1, 1)
        if kind == framing.PROC:
            self.proc = fds[0]
        elif kind == framing.FORK:
            socket.send_fds(self.zygote, [framing.FORK], [fds[0], init_fd])
            os.close(fds[0])
            self.zygote.recv(1)
        return bool(kind)

    def _memory(self) -> int:
        """Bytes that this sandbox's processes use together, beyond what the zygote shares."""
        if self.proc is None:
            return 0
        waiting = _sockets(self.proc) * self.socket_bytes
        quick = waiting + self._sum(own_pages)
        if quick <= self.limits.memory:
            return quick
        # Processes may start or end in between, so the zygote is measured twice.
        lent, sharing = _charged_to_forks(self.lender), self._sum(proportional)
        used = waiting + sharing - max(lent, _charged_to_forks(self.lender))
        self.peak = max(self.peak, used)
        return used

    def met_memory_bound(self) -> bool:
        """Whether the kernel has ended a process because the group reached its bound."""
        return self.group.out_of_memory_kills() > self.out_of_memory_kills

    def _cpu_of_living(self) -> float:
        """CPU seconds of processes that still run and will end with the init, without runners."""
        return self._sum(_ticks) / os.sysconf("SC_CLK_TCK")

    def _sum(self, measure: Callable[[int, str], int]) -> int:
        total = 0
        if self.proc is None:
            return total
        for name in os.listdir(self.proc):
            if name.isdigit() and name != "1":
                # The process may have ended since it was listed.
                with contextlib.suppress(OSError, ValueError, IndexError):
                    total += measure(self.proc, name)
        return total

    def _end(self, pid: int) -> dict:
        """Kill the init, and with it every process of the sandbox; returns what they used."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        # The zygote is the parent of the runners: the namespace ends when it has reaped them.
        self.zygote.sendall(framing.REAP)
        used = json.loads(self.zygote.recv(LONGEST_MESSAGE))
        _, _, spent = os.wait4(pid, 0)  # of the init, and of the orphans that it waited for
        return {"cpu_seconds": used["cpu_seconds"] + spent.ru_utime + spent.ru_stime,
                "peak_bytes": max(used["peak_bytes"], spent.ru_maxrss * 1024)}


def _socket_bytes() -> int:
    """The most bytes in one socket: its buffer, one more message, the kernel's own.

    The kernel counts them for no process. The filter forbids larger buffers.
    """
    with socket.socket(socket.AF_UNIX) as one:
        return 3 * one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def _sockets(proc: int) -> int:
    """The number of sockets in the sandbox, including those on their way in a message."""
    try:
        used = _SOCKETS.search(read(proc, "1/net/sockstat"))
    except OSError:  # the sandbox is gone by now
        return 0
    return int(used[1]) if used else 0


def own_pages(proc: int, name: str) -> int:
    """Memory of a process without a file: anonymous, shared, swapped, page tables, in full."""
    text = read(proc, f"{name}/status")
    if b"\nRssAnon:" not in text:  # its first thread has ended; others may live
        text = next((t for t in _threads(proc, name) if b"\nRssAnon:" in t), b"")
    return sum(map(int, _OWN.findall(text))) * 1024


def _threads(proc: int, name: str) -> Iterator[bytes]:
    for thread in _names(proc, f"{name}/task"):
        with contextlib.suppress(OSError):
            yield read(proc, f"{name}/task/{thread}/status")


def _ticks(proc: int, name: str) -> int:
    """CPU ticks of one process and its children; 0 for a runner, whose parent is outside."""
    fields = read(proc, f"{name}/stat").rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) if fields[1] != b"0" else 0


def proportional(proc: int, name: str) -> int:
    """Proportional set size (PSS, with swap): a page shared by n processes counts 1 / n."""
    try:
        found = _SHARED_OUT.findall(read(proc, f"{name}/smaps_rollup"))
    except OSError:  # the process has hidden itself, or its first thread has ended
        found = []
    return sum(map(int, found)) * 1024 or own_pages(proc, name)


def _charged_to_forks(pid: int | None) -> int:
    """The part of the zygote's anonymous memory that PSS charges to the processes it forked."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
        found = {name: int(size) * 1024 for name, size in _LENT.findall(text)}
        return found[b"Anonymous"] - found[b"Pss_Anon"]
    except (OSError, KeyError):  # before Linux 5.3, it counts as theirs
        return 0


def _names(folder: int, name: str) -> list[str]:
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


def close_others(keep: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):  # the listing's own descriptor
                os.close(int(name))
