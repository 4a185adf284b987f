"""Explorers and questions without a widget library: the stored picture or text, and one line.

A missing library must not stop a lesson. The explorers' modules do not change: this one replaces
the only class that they take from anywidget.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

NEEDED = ("anywidget", "ipywidgets")


def missing() -> str:
    """The first widget library that is not installed; "" if both are."""
    return next((name for name in NEEDED if not _is_there(name)), "")


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # a finder may refuse
        return False


def sentence(name: str) -> str:
    return (f"The controls of this cell need {name}, which is not installed. Everything else works "
            f"without it. To get them: %pip install {name}, then restart the kernel.")


def stand_in() -> None:
    """Make `import anywidget` provide a class without controls, if a library is missing."""
    if name := missing():
        module = ModuleType("anywidget")
        module.__spec__ = importlib.util.spec_from_loader("anywidget", loader=None)
        module.__getattr__ = lambda asked: _class(name) if asked == "AnyWidget" else _none(asked)
        sys.modules["anywidget"] = module


def _class(name: str) -> type:
    import traitlets

    from dlsys_helpers import cards

    class AnyWidget(traitlets.HasTraits):
        """Holds the traits of a widget; shows a sentence if somebody is watching."""

        def _repr_mimebundle_(self, **_: Any) -> tuple[dict, dict]:
            shown = f"<p>{sentence(name)}</p>" if cards.watched() else None
            return {"text/html": shown} if shown else {}, {}

    return AnyWidget


def _none(asked: str) -> Any:
    raise AttributeError(f"anywidget: {asked} is not here, as the package is not installed.")
