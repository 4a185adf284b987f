"""Say in an error that the limit of processes was reached: Python's own errors do not say so.

Runs inside the sandbox, beside the learner's code. What it needs is bound here, before a cell can
change a module.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from os import O_RDONLY, close, listdir, open, read

MANY = 0.5     # share of the limit, about that of a DataLoader that waits for a refused thread
SHORT = 88     # most characters of the error's text, so that the advice behind it is not cut off
MOST = 1000    # a higher limit is the system's own, not the sandbox's
# Type of an error, and what its text has, after a new process or thread was refused.
_ERRORS = (("BlockingIOError", "Resource temporarily unavailable"),
           ("RuntimeError", "can't start new thread"),
           ("RuntimeError", "exited unexpectedly"))


def told(error_type: str, text: str) -> str:
    """An error's text; where a refused process or thread may be its cause, with the limit."""
    refused = any(error_type == kind and part in text for kind, part in _ERRORS)
    return f"{text[:SHORT].rstrip('. ')}. {allows(_most())}" if refused and _most() else text


def late() -> str:
    """What to say of code that is late while many processes and threads run; else ""."""
    most, found = _most(), _running()
    return (f"ran past the time limit, with {found} processes and threads running. {allows(most)}"
            if most and found >= MANY * most else "")


def allows(most: int) -> str:
    """The sentence that names the limit of processes and the usual remedy."""
    return (f"The sandbox allows {most} processes and threads together; with fewer it works, "
            "such as num_workers=0 in a DataLoader.")


def _most() -> int:
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return most if 0 < most <= MOST else 0


def _running() -> int:
    """The processes and threads of this sandbox."""
    total = 0
    for name in filter(str.isdigit, listdir("/proc")):
        with suppress(OSError, ValueError, IndexError):
            total += int(_stat(name).rpartition(b")")[2].split()[17])
    return total


def _stat(name: str) -> bytes:
    file = open(f"/proc/{name}/stat", O_RDONLY)
    try:
        return read(file, 4096)
    finally:
        close(file)
