"""The machine that a measurement ran on, in words, and the memory of a process on it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime

import psutil

PACKAGES = ("torch", "nbclient", "jupyterlab", "jupyter-book")
MIB = 2**20


def processor() -> str:
    """The processor's name as the system reports it, else its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            names = [line.split(":", 1)[1].strip() for line in info if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def memory_gib() -> float:
    """All memory of this machine."""
    return psutil.virtual_memory().total / 2**30


def describe() -> dict[str, str]:
    """Date, machine, versions and load of a run; two runs with one `machine` may be compared."""
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in PACKAGES)
    return {"date": str(datetime.now(UTC).date()), "load": f"{os.getloadavg()[0]:.1f}",
            "machine": f"{os.cpu_count()} cores of {processor()}, {memory_gib():.0f} GiB of "
                       f"memory, {platform.system()}, Python {platform.python_version()}, "
                       f"{versions}"}


def pss_mib(pid: int) -> float:
    """Memory of a process and its children in MiB, with shared pages counted proportionally.

    Raises AttributeError if the system does not report it; only Linux does.
    """
    children = psutil.Process(pid).children(recursive=True)
    return pss([pid, *(child.pid for child in children)]) / MIB


def pss(pids: Iterable[int]) -> int:
    """Memory of these processes in bytes, with shared pages counted in parts; only on Linux."""
    return sum(psutil.Process(pid).memory_full_info().pss for pid in pids)
