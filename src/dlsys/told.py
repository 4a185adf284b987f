"""What stands for `check` where a notebook is run for its answers: it notes, and never judges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Told:
    """A `check` that only says which function the learner means, to `tell`."""

    def __init__(self) -> None:
        self.tell: Callable[[Any, Any], None] = lambda _id, _fn: None

    def __call__(self, id: Any = None, fn: Any = None, *_: Any, **__: Any) -> None:
        """Like the real one, without a verdict."""
        self.tell(id, fn)
