"""Anything expensive is made once in a test run, by the first worker that asks for it."""

import os
from collections.abc import Callable
from pathlib import Path


def shared_folder(tmp_path_factory) -> Path:
    """A folder that every worker of this run sees, and no other run."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def once(target: Path, make: Callable[[Path], object]) -> Path:
    """`target`, written by `make(target)` in the first worker; the others wait for it.

    A worker that fails or dies on the way leaves it to the next one.
    """
    import fcntl  # not on Windows, where a learner's tests run without this

    done = target.with_name(f"{target.name}.done")
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(target)
            done.touch()
    return target
