"""Make anything expensive once per test run, in the first worker that asks for it."""

import os
from collections.abc import Callable
from pathlib import Path


def shared_folder(tmp_path_factory) -> Path:
    """A folder that all workers of this run share with no other run."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def once(target: Path, make: Callable[[Path], object]) -> Path:
    """Return `target`, which the first worker writes by `make(target)` while the others wait.

    If that worker fails or dies, the next one takes over.
    """
    import fcntl  # not on Windows, where a learner's tests run without it

    done = target.with_name(f"{target.name}.done")
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(target)
            done.touch()
    return target
