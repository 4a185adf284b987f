"""Rules that watch a training run for silent faults, and say in one line where one shows.

`dlsys watch train.py`, `python -m dlsys_watch train.py`, `%load_ext dlsys_watch` in a notebook, or

    with dlsys_watch.watching():
        train()

Nothing that the program computes changes: no value, no random number, no file. It needs torch only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Attached", "load_ipython_extension", "unload_ipython_extension", "watching"]
__version__ = "1.0.0"
_in_notebook = []


class watching:
    """Watch what runs inside of the block; `as` gives the list that findings are added to.

    hints: also rules that guess. silence: ids of rules to leave out. json: a file for the
    findings. baseline: a file of findings that are known. on_finding: a function that gets each
    finding when it is told. steps: let go of torch after so many optimizer steps. debug: say at
    the end which rules failed; they are in `failed` then.
    """

    def __init__(self, *, hints: bool = False, silence=(), json: str | Path | None = None,
                 baseline: str | Path | None = None, on_finding: Callable | None = None,
                 steps: int | None = None, debug: bool = False):
        self.asked: dict[str, Any] = {"hints": hints, "silence": frozenset(silence), "steps": steps,
                                      "debug": debug, "json": Path(json) if json else None,
                                      "baseline": Path(baseline) if baseline else None,
                                      "on_finding": on_finding}
        self.failed: dict[str, str] = {}

    def __enter__(self) -> list:
        from dlsys_watch.session import Session
        from dlsys_watch.settings import Settings

        self.session = Session(Settings(**self.asked).with_file(Path.cwd()))
        self.session.attach()
        self.failed = self.session.report.failed
        return self.session.report.findings

    def __exit__(self, *_) -> None:
        self.session.end()


class Attached:
    """What a trainer's callback is made of. It does nothing where the program is watched."""

    def __init__(self, **asked):
        self.block, self.block_of, self.found = None, asked, []

    def begin(self) -> None:
        from dlsys_watch.session import Session

        if self.block is None and not Session.running:
            self.block = watching(**self.block_of)
            self.found = self.block.__enter__()

    def end(self) -> None:
        block, self.block = self.block, None
        if block is not None:
            block.__exit__()


def load_ipython_extension(_) -> None:
    """`%load_ext dlsys_watch`: watch all cells from now on."""
    if not _in_notebook:
        _in_notebook.append(watching())
        _in_notebook[0].__enter__()


def unload_ipython_extension(_) -> None:
    """`%unload_ext dlsys_watch`: stop."""
    if _in_notebook:
        _in_notebook.pop().__exit__(None, None, None)
