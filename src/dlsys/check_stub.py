"""A stub for `check`: it records the function that a cell passes, and judges nothing.

`dlsys check` and the grader run a notebook's cells with the stub in place, then judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CheckStub:
    """Stands in for `check`; each call goes to `tell`, with the id and the function."""

    def __init__(self) -> None:
        self.tell: Callable[[Any, Any], None] = lambda _id, _fn: None

    def __call__(self, id: Any = None, fn: Any = None, *_: Any, **__: Any) -> None:
        """Take any arguments, as the real one does; returns nothing."""
        self.tell(id, fn)
