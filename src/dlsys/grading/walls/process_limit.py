"""Name the process limit in an error that it caused, because Python's own errors do not.

Runs inside the sandbox, in the learner's process. It imports what it needs here, before a cell can
change a module.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from os import O_RDONLY, close, listdir, open, read

MANY = 0.5     # share of the limit that counts as many; a DataLoader that hangs reaches it
SHORT = 88     # longest text of the error itself, so that the advice after it is not cut off
MOST = 1000    # a higher limit is the system's own, not the sandbox's
# Type of an error and a part of its text, after a new process or thread was refused.
_ERRORS = (("BlockingIOError", "Resource temporarily unavailable"),
           ("RuntimeError", "can't start new thread"),
           ("RuntimeError", "exited unexpectedly"))


def with_limit(error_type: str, text: str) -> str:
    """An error's text, and the limit if it may have refused a process or a thread."""
    refused = any(error_type == kind and part in text for kind, part in _ERRORS)
    if not refused or not process_limit():
        return text
    return f"{text[:SHORT].rstrip('. ')}. {limit_sentence(process_limit())}"


def timeout_in_a_crowd() -> str:
    """What to say when code timed out while many processes and threads ran; "" for few."""
    most, found = process_limit(), count_running()
    if not most or found < MANY * most:
        return ""
    return (f"ran past the time limit, with {found} processes and threads running. "
            f"{limit_sentence(most)}")


def limit_sentence(most: int) -> str:
    """The sentence that names the limit of processes and the usual remedy."""
    return (f"The sandbox allows {most} processes and threads together; use fewer, for example "
            "num_workers=0 in a DataLoader.")


def process_limit() -> int:
    """The sandbox's limit of processes and threads, or 0 if only the system has one."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return most if 0 < most <= MOST else 0


def count_running() -> int:
    """The processes and threads of this sandbox."""
    total = 0
    for name in filter(str.isdigit, listdir("/proc")):
        with suppress(OSError, ValueError, IndexError):
            total += int(read_stat(name).rpartition(b")")[2].split()[17])
    return total


def read_stat(name: str) -> bytes:
    file = open(f"/proc/{name}/stat", O_RDONLY)
    try:
        return read(file, 4096)
    finally:
        close(file)
