"""Python imports this as it starts the compared programs, so it notices the import of torch."""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.dirname(os.path.dirname(HERE))


def begin() -> None:
    added = SOURCES not in sys.path
    if added:
        sys.path.append(SOURCES)
    try:
        from dlsys_same import child
    finally:
        if added:
            sys.path.remove(SOURCES)
    child.begin()


def run_the_own_one() -> None:
    """Run the environment's own sitecustomize, which this file may have displaced."""
    elsewhere = [path for path in sys.path if os.path.abspath(path) != HERE]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "DLSYS_SAME" in os.environ:
    begin()
run_the_own_one()
