"""A script run as Python itself would run it: name, path, arguments, tracebacks, exit status."""

from __future__ import annotations

import io
import os
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader

from dlsys_watch import places
from dlsys_watch.frames import PASSED_OVER, hidden


@hidden  # type: ignore[arg-type]
def run(path: str, arguments: list[str]) -> None:
    """Run a script's file as `__main__`. Its errors are raised, without our own frames."""
    full = os.path.abspath(path)
    places.main_file.append(full)
    sys.argv[:] = [path, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(full))
    main = types.ModuleType("__main__")
    main.__file__, main.__loader__ = full, SourceFileLoader("__main__", full)
    main.__dict__.update(__builtins__=__builtins__, __annotations__={})
    sys.modules["__main__"] = main
    execute(hidden(lambda: exec(compiled(full), main.__dict__)))  # type: ignore[arg-type]


@hidden  # type: ignore[arg-type]
def run_module(name: str, arguments: list[str]) -> None:
    """Run a module as `python -m` does."""
    sys.argv[:] = [name, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    # What `python -m` itself calls; it has no public name.
    execute(hidden(lambda: runpy._run_module_as_main(name)))  # type: ignore[attr-defined, arg-type]


def compiled(full: str):
    with io.open_code(full) as file:
        return compile(file.read(), full, "exec", dont_inherit=True)


@hidden  # type: ignore[arg-type]
def execute(program) -> None:
    """Run it; an error is printed as Python prints it, and then passed on silently."""
    try:
        program()
    except SystemExit:
        raise
    except BaseException as error:
        strip(error, set())
        sys.excepthook(type(error), error, error.__traceback__)
        sys.excepthook = lambda *_: None   # printed, with the frames of the program alone
        raise


def strip(error: BaseException | None, seen: set[int]) -> None:
    """Remove this package's frames from the traceback of an error and of its causes."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    kept = []
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not file.startswith((places.HERE, PASSED_OVER, "<frozen runpy")):
            kept.append(step)
        step = step.tb_next
    for one, after in zip(kept, [*kept[1:], None], strict=False):
        one.tb_next = after
    error.__traceback__ = kept[0] if kept else None
    strip(error.__cause__, seen)
    strip(error.__context__, seen)
