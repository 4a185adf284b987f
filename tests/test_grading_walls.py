"""The parts of the sandbox that can be looked at from outside."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from dlsys_helpers.grading import box, seccomp, walls

HEADERS = {0: Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
           1: Path("/usr/include/asm-generic/unistd.h")}
NAMED = {**seccomp.DENIED, "socket": seccomp.SOCKET, "clone": seccomp.CLONE,
         "clone3": seccomp.CLONE3, "prlimit64": seccomp.PRLIMIT}


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


def decide(code: bytes, number: int, first_argument: int = 0, arch: int = 0xC000003E) -> int:
    """What the filter answers, by an interpreter for the five instructions that it uses."""
    data = struct.pack("<IIQ6Q", number, arch, 0, first_argument, *[0] * 5)
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
    (2**32 - 1, 0, ENOSYS), (319, 0, EPERM), (257, 0, ALLOW)])
def test_the_filter_decides_as_it_should(number, argument, answer):
    assert decide(seccomp.program("x86_64"), number, argument) == answer


def test_another_architecture_in_the_same_process_is_killed():
    assert decide(seccomp.program("x86_64"), 0, arch=0x40000003) == KILL


def test_an_unknown_architecture_is_refused():
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.program("riscv64")


def test_another_system_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(box.SandboxRefused, match="Grade on Linux"):
        box.Nursery(walls.Limits())


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
    package = Path(walls.__file__).parents[1]
    for folder in ("solutions", "lessons", "tests", "notebooks"):
        assert not any((path / folder / "01_activations.ipynb").exists() for path in shown)
    assert package in shown
    assert package.parents[1] not in shown
    assert walls.masked_paths() == [str(package / "checks")]
