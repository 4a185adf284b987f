"""`same(first, second)`: an assertion that two training runs compute the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dlsys_same.compare import Result, compare, epsilon
from dlsys_same.pairs import Pair, SameError
from dlsys_same.recorder import Enough, Recorder
from dlsys_same.report import lines
from dlsys_same.runs import same_pair

Program = str | Callable[[], object]


def same(first: Program, second: Program, *, steps: int = 3, after: int = 0, whole: bool = False,
         limit: float = 600.0, folder: str | Path = ".") -> Result:
    """Assert that two programs agree in their first optimizer steps, up to rounding.

    Args:
        first, second: both commands, such as "train.py --bs 8", or both functions without
            arguments that build a model and train it. A function has to set its seeds.
        steps: optimizer steps to compare, 1 or more.
        after: steps of `first` that are left out because `second` resumes after them.
        whole: let both run to their end, and also compare their evaluations.
        limit: time limit for one command, in seconds.
        folder: where commands run.

    Returns:
        What was compared. `first` runs twice, the second time with weights changed by rounding.

    Raises:
        AssertionError: they differ; the message names the first tensor that does.
        SameError: a program fails, or makes no step.
    """
    if callable(first) and callable(second):
        result = _functions(first, second, steps, after, whole)
    elif isinstance(first, str) and isinstance(second, str):
        result = same_pair(Pair(first, second, "", steps, after, whole, limit, Path(folder)),
                           say=lambda _: None)
    else:
        raise SameError(f"got {type(first).__name__} and {type(second).__name__}, expected two "
                        "commands or two functions.")
    if not result.agree:
        raise AssertionError("\n".join(lines(result)))
    return result


def _functions(first, second, steps: int, after: int, whole: bool) -> Result:
    one = [recorded(first, steps, after, whole)]
    other = [recorded(second, steps, 0, whole)]
    shaken = recorded(first, steps, after, whole, epsilon(one + other))
    return compare(one, other, [shaken])


def recorded(program: Callable[[], object], steps: int, after: int, whole: bool,
             rounding: float = 0.0) -> dict:
    """Record what a function computes. Unless `whole` is true, an exception ends it early."""
    recorder = Recorder(steps, after, rounding)

    def enough():
        if not whole:
            raise Enough

    recorder.enough = enough
    recorder.attach()
    try:
        program()
    except Enough:
        pass
    finally:
        recorder.detach()
    if not recorder.roots:
        raise SameError(f"{getattr(program, '__name__', 'the function')} ended without calling a "
                        "model: no tensor was recorded.")
    return recorder.record()
