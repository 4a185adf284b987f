"""The parts of the sandbox that we can inspect from outside."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import multiprocessing
import os
import re
import resource
import signal
import socket
import struct
import sys
import termios
import threading
from pathlib import Path

import pytest

from dlsys.grading.settings import Limits
from dlsys.grading.walls import (
    cgroups,
    isolation,
    process_limit,
    sandbox,
    seccomp,
    supervisor,
    zygote,
)
from dlsys_helpers import paths

HEADERS = {0: Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
           1: Path("/usr/include/asm-generic/unistd.h")}
NAMED = {**seccomp.DENIED, "socket": seccomp.SOCKET, "clone": seccomp.CLONE,
         "clone3": seccomp.CLONE3, "prlimit64": seccomp.PRLIMIT, "mmap": seccomp.MMAP,
         "setsockopt": seccomp.SETSOCKOPT, "fcntl": seccomp.FCNTL, "flock": seccomp.FLOCK,
         "ioctl": seccomp.IOCTL, "setpriority": seccomp.SETPRIORITY, **seccomp.SLOWS,
         **{name: numbers for name, (numbers, _) in seccomp.SENDS.items()}}


@pytest.mark.parametrize("column", HEADERS)
def test_numbers_of_system_calls_are_those_of_the_kernel(column):
    if not HEADERS[column].exists():
        pytest.skip("the kernel's headers are not installed")
    lines = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[column].read_text())
    known = {name: int(number) for name, number in lines}

    wrong = {name: (numbers[column], known.get(name)) for name, numbers in NAMED.items()
             if numbers[column] is not None and numbers[column] != known.get(name)}

    assert not wrong


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_one_that_the_kernel_takes(machine):
    code = seccomp.program(machine)
    steps = [struct.unpack("HBBI", code[i:i + 8]) for i in range(0, len(code), 8)]

    assert len(code) % 8 == 0
    assert len(steps) <= 4096
    assert steps[-1] == (6, 0, 0, 0x7FFF0000)
    assert all(i + 1 + max(yes, no) < len(steps)
               for i, (_, yes, no, _) in enumerate(steps[:-1]))


def decide(code: bytes, number: int, *arguments: int, arch: int = 0xC000003E) -> int:
    """Interpret the filter, which uses only five instructions, and return its answer."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    accumulator = at = 0
    while True:
        kind, yes, no, value = struct.unpack_from("HBBI", code, 8 * at)
        at += 1
        if kind == 0x06:
            return value
        if kind == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        else:
            tests = {0x15: accumulator == value, 0x35: accumulator >= value,
                     0x45: bool(accumulator & value)}
            at += yes if tests[kind] else no


ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000


@pytest.mark.parametrize(("number", "argument", "answer"), [
    (0, 0, ALLOW), (59, 0, EPERM), (41, 1, ALLOW), (41, 2, EPERM), (41, 10, EPERM),
    (56, 17, ALLOW), (56, 0x10000011, EPERM), (56, 0x00020011, EPERM), (435, 0, ENOSYS),
    (302, 0, ALLOW), (302, 1, EPERM), (451, 0, ENOSYS), (2**30 + 59, 0, ENOSYS),
    (2**32 - 1, 0, ENOSYS), (319, 0, EPERM), (257, 0, ALLOW),
    *[(number, who, EPERM if who == 1 else ALLOW) for number in (142, 144, 203, 314)
      for who in (0, 1, 7)]])
def test_the_filter_decides_as_it_should(number, argument, answer):
    assert decide(seccomp.program("x86_64"), number, argument) == answer


def test_another_architecture_in_the_same_process_is_killed():
    assert decide(seccomp.program("x86_64"), 0, arch=0x40000003) == KILL


def test_an_unknown_architecture_is_refused():
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.program("riscv64")


def test_another_system_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(sandbox.SandboxRefused, match="Grade on Linux"):
        sandbox.Zygote(Limits())


@pytest.mark.parametrize(("setting", "value", "command"), [
    ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "_userns=0"),
    ("user/max_user_namespaces", "0", "max_user_namespaces=10000"),
    ("user/max_user_namespaces", "500", "docker run")])
def test_the_remedy_follows_from_what_the_kernel_says(monkeypatch, setting, value, command):
    def read(path: Path) -> str:
        if str(path) == f"/proc/sys/{setting}":
            return value + "\n"
        raise FileNotFoundError
    monkeypatch.setattr(Path, "read_text", read)
    assert command in isolation.remedy()
    assert (isolation.forbidding_setting() is None) == (command == "docker run")


def test_nothing_that_is_shown_leads_to_the_course():
    shown = [Path(path) for path in isolation.visible_paths()]
    package, checks = isolation.PACKAGES[0], isolation.PACKAGES[-1]
    for folder in ("solutions", "lessons", "tests", "notebooks"):
        assert not any((path / folder / "01_activations.ipynb").exists() for path in shown)
    assert package in shown
    assert checks.name == "dlsys_checks"
    assert not {package.parent, package.parents[1]} & set(shown)
    assert isolation.masked_paths() == [str(checks)]


def test_of_an_installed_wheel_stand_ins_are_left_out_as_well(monkeypatch, tmp_path):
    """There the sandbox sees the whole folder, and some stand-ins would pass their exercise."""
    packages = [tmp_path / path.name for path in isolation.PACKAGES]
    (tmp_path / "dlsys_model").mkdir()
    monkeypatch.setattr(isolation, "PACKAGES", packages)
    assert isolation.masked_paths() == [str(packages[-1])]
    monkeypatch.setattr(isolation.site, "getsitepackages", lambda: [str(tmp_path)])
    assert isolation.masked_paths() == [str(packages[-1]), str(tmp_path / "dlsys_model")]


DONE, NOT_HERE = 0x00050000, 0x0005005F
ON_X86_64 = {
    "mmap": (9, 3), "setsockopt": (54, 1), "fcntl": (72, 1), "ioctl": (16, 1), "flock": (73, 1),
    "setpriority": (141, 0), "sendto": (44, 3), "sendmsg": (46, 2), "sendmmsg": (307, 3)}


@pytest.mark.parametrize(("name", "arguments", "answer"), [
    ("mmap", (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,), ALLOW), ("mmap", (mmap.MAP_SHARED,), ALLOW),
    ("mmap", (mmap.MAP_SHARED | mmap.MAP_ANONYMOUS,), EPERM),
    ("mmap", (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000,), EPERM),
    *[("setsockopt", (socket.SOL_SOCKET, size), EPERM)
      for size in (socket.SO_SNDBUF, socket.SO_RCVBUF, 32, 33)],
    ("setsockopt", (socket.SOL_SOCKET, socket.SO_REUSEADDR), ALLOW),
    ("setsockopt", (socket.IPPROTO_TCP, socket.SO_SNDBUF), ALLOW),
    *[("fcntl", (command,), ALLOW) for command in (
        fcntl.F_DUPFD, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_SETFL, fcntl.F_GETLK,
        fcntl.F_DUPFD_CLOEXEC, 1032)],
    *[("fcntl", (command,), DONE) for command in (fcntl.F_SETLK, fcntl.F_SETLKW, 37, 38)],
    *[("fcntl", (command,), EPERM)
      for command in (fcntl.F_SETLEASE, fcntl.F_NOTIFY, 1031, 1036, 1038)],
    ("flock", (2,), DONE),
    *[("ioctl", (command,), ALLOW) for command in (
        termios.TCGETS, termios.TIOCGWINSZ, termios.FIONBIO, termios.FIOCLEX, 0x40049409)],
    *[(call, (flags,), EPERM if flags & 1 else ALLOW)
      for call in ("sendto", "sendmsg", "sendmmsg")
      for flags in (0, socket.MSG_OOB, socket.MSG_OOB | socket.MSG_DONTWAIT, socket.MSG_DONTWAIT)],
    *[("setpriority", (which, who), EPERM if which == os.PRIO_USER or who == 1 else ALLOW)
      for which in (os.PRIO_PROCESS, os.PRIO_PGRP, os.PRIO_USER) for who in (0, 1, 7)],
    *[("ioctl", (command,), NOT_HERE) for command in (0x8915, 0x40086602, 0xB702, 0x53FF, 0x5500)],
])
def test_the_filter_decides_by_later_arguments(name, arguments, answer):
    number, first = ON_X86_64[name]

    assert decide(seccomp.program("x86_64"), number, *[0] * first, *arguments) == answer


# ---- what the watch counts

def fill(kind: int, size: int, line: socket.socket) -> None:
    """In a child, hold memory until the parent has looked."""
    held = mmap.mmap(-1, size, kind)
    held.write(b"x" * size)
    line.send(b".")
    line.recv(1)


@pytest.mark.parametrize("kind", [mmap.MAP_PRIVATE, mmap.MAP_SHARED])
@pytest.mark.parametrize("measure", [supervisor.own_pages, supervisor.proportional])
def test_the_watch_sees_memory_shared_or_not(kind, measure):
    size = 80 * 2**20
    mine, theirs = socket.socketpair()
    child = multiprocessing.get_context("fork").Process(target=fill, args=(kind, size, theirs),
                                                        daemon=True)
    proc = os.open("/proc", os.O_RDONLY)
    with mine:
        with theirs:
            child.start()
        assert mine.recv(1), "the child has ended"
        found = measure(proc, str(child.pid))
        mine.send(b".")
        child.join()
    os.close(proc)

    assert found >= size


def test_pages_are_gathered_where_the_kernel_can_and_keep_what_they_hold():
    held = mmap.mmap(-1, 4 * zygote.LARGE_PAGE, mmap.MAP_PRIVATE)
    held.write(b"x" * len(held))
    start = ctypes.addressof(ctypes.c_char.from_buffer(held))

    zygote.use_large_pages(start, start + len(held) - 1)

    assert held[:] == b"x" * len(held)
    lines = Path("/proc/self/smaps").read_text().split(f"{start:x}-")[1].splitlines()
    large = next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages:"))
    if not large:
        pytest.skip("this kernel gathers no pages (Linux 6.1 does)")
    assert large * 1024 >= 2 * zygote.LARGE_PAGE


V1, NO_LIMIT = "sys/fs/cgroup/memory", 2**63 - 4096
GROUPS = {
    "v2, a scope of its own": ("0::/user.slice/run.scope", {
        "sys/fs/cgroup/user.slice/run.scope/memory.max": 8 << 30,
        "sys/fs/cgroup/user.slice/memory.max": "max"}, 8 << 30),
    "v2, a smaller one around it": ("0::/a/b", {
        "sys/fs/cgroup/a/b/memory.max": 8 << 30, "sys/fs/cgroup/a/memory.max": 4 << 30}, 4 << 30),
    "v2, a container": ("0::/", {"sys/fs/cgroup/memory.max": 2 << 30}, 2 << 30),
    "v2, no bound": ("0::/a", {"sys/fs/cgroup/a/memory.max": "max"}, None),
    "v2, memory in no group": ("0::/a", {}, None),
    "v1": ("5:cpu,cpuacct:/\n4:memory:/jobs/7\n0::/x", {
        f"{V1}/jobs/7/memory.limit_in_bytes": 3 << 30,
        f"{V1}/memory.limit_in_bytes": NO_LIMIT, "sys/fs/cgroup/x/memory.max": 5}, 3 << 30),
    "v1, no bound": ("4:memory:/", {f"{V1}/memory.limit_in_bytes": NO_LIMIT}, None),
    "a path out of the tree": ("0::/../a", {"sys/fs/cgroup/a/memory.max": 1 << 30}, 1 << 30),
    "an empty file": ("0::/a", {"sys/fs/cgroup/a/memory.max": ""}, None),
    "no control groups": (None, {}, None)}


def plant(root: Path, files: dict[str, object]) -> None:
    """Write these files below `root` in place of /proc and /sys."""
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{content}\n")


@pytest.mark.parametrize("name", GROUPS)
def test_the_bound_on_the_kernels_memory_is_that_of_the_control_groups(name, tmp_path):
    mine, files, expected = GROUPS[name]
    plant(tmp_path, files if mine is None else files | {"proc/self/cgroup": mine})

    assert cgroups.bound(tmp_path) == expected


CGROUP, HANDED = "sys/fs/cgroup", "cpu memory pids"
HOMES = {
    "v2, below the group around the grader's": ("0::/job/grader", {
        f"{CGROUP}/job/grader/cgroup.subtree_control": "",
        f"{CGROUP}/job/cgroup.subtree_control": HANDED}, f"{CGROUP}/job"),
    "v2, in its own, which hands memory on": ("0::/", {
        f"{CGROUP}/cgroup.subtree_control": HANDED}, CGROUP),
    "v2, not where it would leave its bound": ("0::/job/grader", {
        f"{CGROUP}/job/grader/cgroup.subtree_control": "",
        f"{CGROUP}/job/grader/memory.max": 8 << 30,
        f"{CGROUP}/job/cgroup.subtree_control": HANDED}, None),
    "v2, not in systemd's": ("0::/user.slice/run.scope", {
        f"{CGROUP}/user.slice/run.scope/cgroup.subtree_control": "",
        f"{CGROUP}/user.slice/cgroup.subtree_control": HANDED}, None),
    "v2, memory is not handed on": ("0::/job/grader", {
        f"{CGROUP}/job/grader/cgroup.subtree_control": "",
        f"{CGROUP}/job/cgroup.subtree_control": "cpu pids"}, None),
    "v1": ("4:memory:/jobs/7\n0::/x", {f"{V1}/jobs/7/memory.limit_in_bytes": NO_LIMIT},
           f"{V1}/jobs/7"),
    "v1, in a container that sees only its own": ("4:memory:/docker/ab", {
        f"{V1}/memory.limit_in_bytes": NO_LIMIT}, V1),
    "no control groups": ("", {}, None)}


@pytest.mark.parametrize("name", HOMES)
def test_a_group_is_made_only_where_it_is_the_graders_to_make(name, tmp_path):
    mine, files, expected = HOMES[name]
    plant(tmp_path, files | {"proc/self/cgroup": mine})

    home = cgroups.parent_for_new(tmp_path, "memory")

    assert home == (expected and tmp_path / expected)


LIKE_V2 = {"cgroup.procs": "", "memory.max": "max", "memory.oom.group": "0", "pids.max": "max",
           "memory.events": "max 7\noom 3\noom_kill 2\noom_group_kill 1"}


@pytest.fixture
def delegated(tmp_path, monkeypatch):
    """A cgroup v2 tree in which a grader may make groups; each new group gets its files."""
    plant(tmp_path, {
        "proc/self/cgroup": "0::/job/grader", f"{CGROUP}/job/grader/cgroup.subtree_control": "",
        f"{CGROUP}/job/cgroup.subtree_control": HANDED, f"{CGROUP}/job/memory.max": 8 << 30})
    mkdir = Path.mkdir

    def filled(path: Path, *args: object, **kwargs: object) -> None:
        mkdir(path, *args, **kwargs)
        for name, content in LIKE_V2.items() if path.name.startswith(cgroups.PREFIX) else ():
            (path / name).write_text(f"{content}\n")
    monkeypatch.setattr(Path, "mkdir", filled)
    return tmp_path


def test_a_group_bounds_memory_with_a_margin_and_processes(delegated):
    limits = Limits(memory=2 << 30, disk=64 << 20, processes=32)

    group = cgroups.make(limits, delegated)
    (folder,) = (delegated / CGROUP / "job").glob("dlsys-sandbox-*")

    assert group.name == folder.name
    assert group.most == (2 << 30) + (64 << 20) + (256 << 20)
    assert (folder / "memory.max").read_text().startswith(str(group.most))
    assert (folder / "pids.max").read_text().startswith("64")
    assert group.out_of_memory_kills() == 2
    assert group.exists()
    group.enter()
    assert (folder / "cgroup.procs").read_text().startswith("0")


def test_the_bound_that_is_told_is_the_smallest_there_is(delegated):
    assert cgroups.make(Limits(memory=16 << 30), delegated).most == 8 << 30


def test_where_no_group_can_be_made_nothing_is_bounded_and_nothing_left(tmp_path):
    plant(tmp_path, {"proc/self/cgroup": "4:memory:/", f"{V1}/memory.limit_in_bytes": NO_LIMIT})

    group = cgroups.make(Limits(), tmp_path)  # its folder has no file to write to

    assert (group, group.out_of_memory_kills(), group.exists()) == (cgroups.NONE, 0, True)
    group.enter()
    assert list((tmp_path / V1).glob("dlsys*")) == []


def test_only_groups_of_killed_graders_are_swept(tmp_path, monkeypatch):
    for name in ("dlsys-sandbox-1-dead", "dlsys-sandbox-2-alive", "dlsys-sandbox-3-busy", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "dlsys-sandbox-3-busy" / "process").touch()  # like a process, this blocks removal
    alive = os.open(tmp_path / "dlsys-sandbox-2-alive", os.O_RDONLY)
    fcntl.flock(alive, fcntl.LOCK_EX)

    cgroups.remove_leftovers(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    os.close(alive)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    cgroups.remove_leftovers(tmp_path)

    assert left == {"dlsys-sandbox-2-alive", "dlsys-sandbox-3-busy", "other"}
    assert {path.name for path in tmp_path.iterdir()} == left, "somebody else's was removed"


def fill_group(group: cgroups.Group, size: int) -> int:
    """The exit code of a child that enters the group and fills memory there."""
    if (pid := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            group.enter()
            held = mmap.mmap(-1, size, mmap.MAP_PRIVATE)
            held.write(b"x" * 2**20 * (size >> 20))
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def group(monkeypatch):
    """A real group with a small memory limit; skip the test if this machine allows none."""
    monkeypatch.setattr(cgroups, "MARGIN", 0)
    made = cgroups.make(Limits(memory=40 * 2**20, disk=0))
    if not made.fds:
        pytest.skip("no control group can be made here: no right to it, or no memory controller")
    yield made
    made.close()


def test_what_the_kernel_ends_for_its_groups_bound_is_ended_by_memory(group):
    watch = supervisor.Supervised(None, False, Limits(), None, group)
    inside = fill_group(group, 10 * 2**20)
    before = watch.met_memory_bound()
    beyond = fill_group(group, 80 * 2**20)
    (life, kept), (mine, theirs) = os.pipe(), socket.socketpair()
    with mine, theirs:
        init_fd = os.pidfd_open(os.getpid())  # stands for an init that stays alive
        watch.watch_until_closed(init_fd, life, mine)
    for fd in (init_fd, life, kept):
        os.close(fd)

    assert (inside, before, beyond) == (0, False, -signal.SIGKILL)
    assert watch.ended_by == "memory"


def test_a_group_is_removed_with_its_grader_and_its_left_overs_by_the_next(group):
    home = next(folder for folder in cgroups.own_groups(Path("/"), "memory") if folder.is_dir())
    left = home / f"{cgroups.PREFIX}0-left"
    left.mkdir()

    other = cgroups.make(Limits())

    assert not left.exists()
    assert (home / group.name).exists()
    other.close()
    assert not (home / other.name).exists()


AGAIN, NO_THREAD = "[Errno 11] Resource temporarily unavailable", "can't start new thread"


@pytest.mark.parametrize(("kind", "text", "most", "named"), [
    ("BlockingIOError", AGAIN, 32, True), ("RuntimeError", NO_THREAD, 32, True),
    ("RuntimeError", "DataLoader worker (pid(s) 7) exited unexpectedly", 32, True),
    ("RuntimeError", NO_THREAD, resource.RLIM_INFINITY, False),
    ("RuntimeError", "shape mismatch", 32, False), ("ValueError", NO_THREAD, 32, False)])
def test_the_limit_is_named_where_a_process_or_thread_was_refused(
        monkeypatch, kind, text, most, named):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))

    assert process_limit.with_limit(kind, text) == (
        f"{text}. The sandbox allows 32 processes and threads together; use fewer, for example "
        "num_workers=0 in a DataLoader." if named else text)


@pytest.mark.parametrize(("running", "late"), [(31, True), (16, True), (15, False)])
def test_late_code_is_told_the_limit_where_many_run(monkeypatch, running, late):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (32, 32))
    monkeypatch.setattr(process_limit, "count_running", lambda: running)

    assert bool(process_limit.timeout_in_a_crowd()) == late


def test_threads_count_as_processes_do():
    stop = threading.Event()
    with open("/proc/self/stat", "rb") as stat:
        mine = int(stat.read().rpartition(b")")[2].split()[17])
    waiting = [threading.Thread(target=stop.wait, daemon=True) for _ in range(5)]
    for thread in waiting:
        thread.start()
    found = int(process_limit.read_stat("self").rpartition(b")")[2].split()[17])
    stop.set()
    for thread in waiting:
        thread.join()

    assert found == mine + 5
    assert process_limit.count_running() > 1


def test_two_zygotes_of_root_have_not_the_same_user(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getpid", lambda: 7)  # each in its own process namespace
    monkeypatch.setattr(Path, "read_text", lambda _: "0 0 4294967295\n")

    ids = {isolation.choose_user() for _ in range(50)}

    assert len(ids) == 50
    assert min(ids) >= 0x7000_0000


@pytest.mark.parametrize(("mapped", "given"), [
    ("0 1000 1", False), ("0 100000 65536", True), ("0 1000 1\n1 100000 65536", True),
    ("0 0 4294967295", True)])
def test_root_gives_ids_that_its_container_has(monkeypatch, mapped, given):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(Path, "read_text", lambda _: mapped + "\n")

    assert (isolation.choose_user() is not None) == given


def test_what_is_shown_are_the_interpreter_and_what_it_needs():
    shown = isolation.visible_paths()
    assert os.path.realpath(sys.executable) in shown
    files = [os.path.isfile(path) for path in shown]
    assert files == sorted(files), "a file first would hide the folder around it"


def test_what_the_kernel_counts_by_user_is_limited():
    kinds = (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK,
             resource.RLIMIT_RTPRIO, resource.RLIMIT_NICE)

    def report(line: socket.socket) -> None:
        isolation.set_limits(Limits(open_files=99))
        line.send(repr([resource.getrlimit(kind) for kind in kinds]).encode())

    mine, theirs = socket.socketpair()
    with mine:
        child = multiprocessing.get_context("fork").Process(target=report, args=(theirs,))
        with theirs:
            child.start()
        found = mine.recv(1000).decode()
        child.join()
    assert found == repr([(99, 99), *[(0, 0)] * 4])


def test_the_bounds_on_the_trust_page_are_those_of_the_code():
    limits, page = Limits(), (paths.ROOT / "book" / "grading_trust.md").read_text("utf-8")
    stated = " ".join(page.split())
    assert f"{limits.processes} processes, each with {limits.open_files} open files" in stated


# ---- a zygote that does not start

def refused(monkeypatch, **environment: str) -> str:
    """The error message of a zygote with this environment."""
    monkeypatch.setattr(isolation, "ENVIRONMENT", {**isolation.ENVIRONMENT, **environment})
    zygote = sandbox.Zygote(Limits(), walled=False)
    with pytest.raises(sandbox.SandboxRefused) as told:
        zygote.wait()
    return str(told.value)


def test_a_zygote_that_dies_says_why(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os; os.write(2, b'gone\\n'); os._exit(3)")

    assert "(its process ended: gone)" in refused(monkeypatch, PYTHONPATH=str(tmp_path))


def test_a_zygote_of_another_checkout_is_refused(monkeypatch):
    monkeypatch.setattr(isolation, "PACKAGES", [Path("/other/src/dlsys"), *isolation.PACKAGES[1:]])

    told = refused(monkeypatch)

    assert f"got the package in {paths.ROOT / 'src' / 'dlsys'}, expected the one in /other" in told
