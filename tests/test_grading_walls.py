"""The parts of the sandbox that can be looked at from outside."""

from __future__ import annotations

import fcntl
import mmap
import multiprocessing
import os
import re
import resource
import socket
import struct
import sys
import termios
from pathlib import Path

import pytest

from dlsys.grading import sandbox, seccomp, supervisor, walls
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
    """What the filter answers, by an interpreter for the five instructions that it uses."""
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
        sandbox.Zygote(walls.Limits())


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
    assert command in walls.remedy()


def test_nothing_that_is_shown_leads_to_the_course():
    shown = [Path(path) for path in walls.visible_paths()]
    package, checks = walls.PACKAGES[0], walls.PACKAGES[-1]
    for folder in ("solutions", "lessons", "tests", "notebooks"):
        assert not any((path / folder / "01_activations.ipynb").exists() for path in shown)
    assert package in shown
    assert checks.name == "dlsys_checks"
    assert not {package.parent, package.parents[1]} & set(shown)
    assert walls.masked_paths() == [str(checks)]


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
    """In a child: hold memory until the parent has looked."""
    held = mmap.mmap(-1, size, kind)
    held.write(b"x" * size)
    line.send(b".")
    line.recv(1)


@pytest.mark.parametrize("kind", [mmap.MAP_PRIVATE, mmap.MAP_SHARED])
@pytest.mark.parametrize("measure", [supervisor._own_pages, supervisor._proportional])
def test_the_watch_sees_memory_shared_or_not(kind, measure):
    size = 80 * 2**20
    mine, theirs = socket.socketpair()
    child = multiprocessing.get_context("fork").Process(target=fill, args=(kind, size, theirs))
    proc = os.open("/proc", os.O_RDONLY)
    with mine, theirs:
        child.start()
        mine.recv(1)
        found = measure(proc, str(child.pid))
        mine.send(b".")
        child.join()
    os.close(proc)

    assert found >= size


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


@pytest.mark.parametrize("name", GROUPS)
def test_the_bound_on_the_kernels_memory_is_that_of_the_control_groups(name, tmp_path):
    mine, files, expected = GROUPS[name]
    for path, content in (files if mine is None else files | {"proc/self/cgroup": mine}).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{content}\n")

    assert walls.kernel_bound(tmp_path) == expected


def test_two_zygotes_of_root_have_not_the_same_user(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getpid", lambda: 7)  # each in a process namespace of its own
    monkeypatch.setattr(Path, "read_text", lambda _: "0 0 4294967295\n")

    ids = {walls.own_id() for _ in range(50)}

    assert len(ids) == 50
    assert min(ids) >= 0x7000_0000


@pytest.mark.parametrize(("mapped", "given"), [
    ("0 1000 1", False), ("0 100000 65536", True), ("0 1000 1\n1 100000 65536", True),
    ("0 0 4294967295", True)])
def test_root_gives_ids_that_its_container_has(monkeypatch, mapped, given):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(Path, "read_text", lambda _: mapped + "\n")

    assert (walls.own_id() is not None) == given


def test_what_is_shown_are_the_interpreter_and_what_it_needs():
    shown = walls.visible_paths()
    assert os.path.realpath(sys.executable) in shown
    files = [os.path.isfile(path) for path in shown]
    assert files == sorted(files), "a file first would hide the folder around it"


def test_what_the_kernel_counts_by_user_is_limited():
    kinds = (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK,
             resource.RLIMIT_RTPRIO, resource.RLIMIT_NICE)

    def report(line: socket.socket) -> None:
        walls.limit(walls.Limits(open_files=99))
        line.send(repr([resource.getrlimit(kind) for kind in kinds]).encode())

    mine, theirs = socket.socketpair()
    with mine, theirs:
        child = multiprocessing.get_context("fork").Process(target=report, args=(theirs,))
        child.start()
        found = mine.recv(1000).decode()
        child.join()
    assert found == repr([(99, 99), *[(0, 0)] * 4])


def test_the_bounds_on_the_trust_page_are_those_of_the_code():
    limits, page = walls.Limits(), (paths.ROOT / "book" / "grading_trust.md").read_text("utf-8")
    stated = " ".join(page.split())
    assert f"with {limits.processes} processes, and {limits.open_files} open files" in stated
