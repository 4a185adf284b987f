"""Control groups (cgroups): they alone limit the kernel's own memory, such as cached file names.

`bound` reads the limits of the groups that this process is in. `make` creates a group below them
for a grader's runners, if this user may: the judge keeps it, the runners enter it. Linux only;
it needs no torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from dlsys.grading.settings import Limits

PREFIX = "dlsys-sandbox-"
MARGIN = 256 * 2**20  # bytes beyond what the watch counts: buffers, mappings, the kernel's own
NO_BOUND = 2**60  # cgroup v1 writes "no limit" as a number beyond it
TRIES = 3
END_SECONDS = 2.0  # killed processes leave their group a little later
_KILLS = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_SETTINGS = ("memory.max", "memory.limit_in_bytes")  # v2, v1


# ---- what there is

def bound(root: Path = Path("/")) -> int | None:
    """Bytes that this process's control groups leave to it and its children, or None.

    root: where /proc and /sys are.
    """
    bounds = [found for folder in own_groups(root, "memory")
              if (found := _bound(folder)) is not None]
    return min(bounds, default=None)


def own_groups(root: Path, kind: str) -> list[Path]:
    """The folders of this process's control group of a kind, up to the outermost one."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    base = root / "sys/fs/cgroup"
    groups = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    first = next((path for _, kinds, path in groups if kind in kinds.split(",")), None)
    if first is not None:  # cgroup v1 has a tree for each kind
        base, path = base / kind, first
    else:
        path = next((path for number, kinds, path in groups if (number, kinds) == ("0", "")), "/")
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [base.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]


def _bound(folder: Path) -> int | None:
    """What a group's file says: bytes, or None for "max", for v1's huge number, for no file."""
    for name in _SETTINGS:
        with contextlib.suppress(OSError, ValueError):
            found = int((folder / name).read_text())
            return found if found < NO_BOUND else None
    return None


# ---- one of our own

@dataclass(frozen=True)
class Group:
    """The control group of one grader's runners: a folder, or with cgroup v1 one for each kind.

    Without folders it bounds nothing, and entering it changes nothing. The descriptors go to the
    zygote and the supervisor, which see no other part of /sys; no runner keeps them.
    """

    name: str = ""
    fds: tuple[int, ...] = ()  # of its folders, the one for memory first
    most: int | None = None  # bytes

    def plain(self) -> dict:
        """The group as JSON, for the zygote."""
        return {"name": self.name, "fds": self.fds}

    @staticmethod
    def read(facts: dict) -> Group:
        """The group from what `plain` returned."""
        return Group(facts["name"], tuple(facts["fds"]))

    def enter(self) -> None:
        """Put this process into the group, and with it every child from now on."""
        for folder in self.fds:
            _write(folder, "cgroup.procs", "0")

    def exists(self) -> bool:
        """Whether the group is still there."""
        with contextlib.suppress(OSError):
            for folder in self.fds:
                os.stat("cgroup.procs", dir_fd=folder)
            return True
        return False

    def out_of_memory_kills(self) -> int:
        """How many processes the kernel has ended here because of the bound on memory."""
        for name in ("memory.events", "memory.oom_control") if self.fds else ():
            with contextlib.suppress(OSError):
                if found := _KILLS.search(read(self.fds[0], name)):
                    return int(found[1])
        return 0

    def remove(self) -> None:
        """Remove the group. One that still has processes stays: the next grader removes it."""
        for folder in self.fds:
            with contextlib.suppress(OSError):
                os.rmdir(f"../{self.name}", dir_fd=folder)

    def close(self) -> None:
        """Remove the group as soon as its processes have ended, and forget it."""
        deadline = time.monotonic() + END_SECONDS
        self.remove()
        while self.fds and self.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
            self.remove()
        for folder in self.fds:
            os.close(folder)


NONE = Group()


def make(limits: Limits, root: Path = Path("/")) -> Group:
    """A new group for the runners of one grader, or one without folders if none can be made.

    Also removes the groups that killed graders of this user have left here.
    """
    memory, most = parent_for_new(root, "memory"), limits.memory + limits.disk + MARGIN
    if memory is None:
        return NONE
    homes = dict.fromkeys([memory, parent_for_new(root, "pids") or memory])
    for home in homes:
        remove_leftovers(home)
    for _ in range(TRIES):
        name, fds = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}", []
        try:
            for home in homes:
                fds.append(_new(home / name))
            _set_bounds(fds, most, 2 * limits.processes)
        except (BlockingIOError, FileNotFoundError):  # another grader took it for a leftover
            Group(name, tuple(fds)).close()
        except OSError:
            Group(name, tuple(fds)).close()
            return NONE
        else:
            return Group(name, tuple(fds), min(most, bound(root) or most))
    return NONE


def parent_for_new(root: Path, kind: str) -> Path | None:
    """The folder in which a group may be made, so that all existing bounds still apply to it.

    With cgroup v1 it is this process's own group. With v2 a group that has processes delegates no
    controller on, so it is usually the group around it, unless that is systemd's (a slice) or
    the new group would escape a limit.
    """
    own = [folder for folder in own_groups(root, kind) if folder.is_dir()]
    if not own or not (own[0] / "cgroup.subtree_control").exists():
        return own[0] if own else None
    if _delegates(own[0], kind):
        return own[0]
    around = own[1] if len(own) > 1 else None
    if (around is None or around.suffix == ".slice" or _bound(own[0]) is not None
            or not _delegates(around, kind)):
        return None
    return around


def _delegates(folder: Path, kind: str) -> bool:
    with contextlib.suppress(OSError):
        return kind in (folder / "cgroup.subtree_control").read_text().split()
    return False


def _new(path: Path) -> int:
    """Make a group's folder; returns its locked descriptor. Raises OSError.

    The lock tells other graders, even in other process namespaces, that this grader is alive.
    """
    path.mkdir()
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat("cgroup.procs", dir_fd=folder)  # fails if it was removed before the lock
    except OSError:
        os.close(folder)
        with contextlib.suppress(OSError):
            path.rmdir()
        raise
    return folder


def _set_bounds(fds: list[int], memory: int, processes: int) -> None:
    """Write the bounds. Raises OSError if the one for memory cannot be set."""
    _write(fds[0], _SETTINGS[not _has_file(fds[0], _SETTINGS[0])], str(memory))
    with contextlib.suppress(OSError):  # v2: processes that share the memory end together
        _write(fds[0], "memory.oom.group", "1")
    with contextlib.suppress(OSError):
        _write(fds[-1], "pids.max", str(processes))


def remove_leftovers(home: Path) -> None:
    """Remove the groups in `home` that this user's killed graders left: no grader locks them."""
    for path in home.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if os.fstat(folder).st_uid == os.geteuid():
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.rmdir()
            finally:
                os.close(folder)


def _has_file(folder: int, name: str) -> bool:
    with contextlib.suppress(OSError):
        os.stat(name, dir_fd=folder)
        return True
    return False


def read(folder: int, name: str) -> bytes:
    """The content of a small kernel file, in one read. Raises OSError."""
    file = os.open(name, os.O_RDONLY, dir_fd=folder)
    try:
        return os.read(file, 65536)
    finally:
        os.close(file)


def _write(folder: int, name: str, text: str) -> None:
    file = os.open(name, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
