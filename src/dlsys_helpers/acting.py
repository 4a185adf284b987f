"""Run a learner's function on one case and bring home plain data. Holds no laws, no answers.

The notebook and the sandboxed grader use this same module; it may be loaded beside code that
nobody trusts, so everything it returns is data for a judge elsewhere, never a verdict.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import random
import textwrap
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

# What the source of an act may use without importing it.
ACT_NAMES = {"torch": torch, "nn": nn, "F": F, "math": math, "copy": copy}


# A stub raises NotImplementedError with this ending; the builder writes it, run_act reads it.
NOT_WRITTEN = "is not written yet"


@dataclass(frozen=True)
class Foreign:
    """Stands for a value that is not plain data; `type_name` says what it was."""

    type_name: str


@dataclass(frozen=True)
class Case:
    """One generated case: a name for the feedback and the inputs by name, all plain data."""

    name: str
    inputs: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What became of one act.

    kind: "value" (see `value`), "raised" (see `error_type`, `error`, `where`) or "todo".
    mutated: names of the inputs that the act left changed.
    """

    kind: str
    value: Any = None
    error_type: str = ""
    error: str = ""
    where: str = ""
    mutated: tuple[str, ...] = field(default=())


def to_plain(value: Any, depth: int = 0) -> Any:
    """`value` as plain data: tensors detached on the CPU, exact built-in types, else `Foreign`.

    Subclasses of float or str are foreign on purpose: a number that overrides `==` must not
    reach a law.
    """
    if depth > 16:
        return Foreign("structure nested deeper than 16 levels")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (torch.Tensor, nn.Parameter):
        return value.detach().to("cpu", copy=True)
    if type(value) in (list, tuple):
        return type(value)(to_plain(item, depth + 1) for item in value)
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: to_plain(item, depth + 1) for key, item in value.items()}
    return Foreign(type(value).__name__)


def same(a: Any, b: Any) -> bool:
    """Whether two plain values are identical in type, shape, dtype and every bit that counts."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(
            torch.nan_to_num(a), torch.nan_to_num(b)) and torch.equal(a.isnan(), b.isnan())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@contextlib.contextmanager
def untouched_globals() -> Iterator[None]:
    """Put back grad mode, default dtype, threads, deterministic flags and all RNG states."""
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    numpy_state = np.random.get_state()
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        # Only where it changed: the call imports the compiler, which takes seconds.
        if (deterministic, warn_only) != (torch.are_deterministic_algorithms_enabled(),
                                          torch.is_deterministic_algorithms_warn_only_enabled()):
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def call_function(fn: Callable, **inputs: Any) -> Any:
    """The default act: call the function with the inputs by name."""
    return fn(**inputs)


def act_source(act: Callable) -> str:
    """Source of an act as a plain function definition, decorators removed, ready to travel."""
    lines = textwrap.dedent(inspect.getsource(act)).splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith("def "))
    return "".join(lines[start:])


def load_act(source: str) -> Callable:
    """The act defined by `source`, with nothing in scope but torch, nn, F, math and copy."""
    space = dict(ACT_NAMES)
    exec(compile(source, "<act>", "exec"), space)
    return next(v for k, v in space.items() if k not in ACT_NAMES and inspect.isfunction(v))


def learner_frame(error: BaseException) -> str:
    """`line 3: return x.sun()` of the innermost frame in the learner's code, or "".

    Where cells have numbers (the grader names their code "<cell 4>"): `cell 4, line 3: ...`.
    """
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if f.filename.startswith(("<ipython", "<cell"))
            or "ipykernel_" in f.filename]
    if not mine:
        return ""
    cell = f"{mine[-1].filename[1:-1]}, " if mine[-1].filename.startswith("<cell") else ""
    return f"{cell}line {mine[-1].lineno}: {(mine[-1].line or '').strip()}"


def seed(number: int) -> None:
    """Seed torch's generators. On a CPU a hundred times faster than torch.manual_seed."""
    if torch.cuda.is_initialized():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


def run_act(act: Callable, fn: Callable, case: Case) -> Outcome:
    """Call `act(fn, **inputs)` on a fresh copy of the case's inputs, global state restored.

    Everything a learner's function can raise ends here, as data; only KeyboardInterrupt
    passes through, so that a learner can stop a loop that does not end.
    """
    inputs = copy.deepcopy(case.inputs)
    with untouched_globals():
        seed(0)
        try:
            value = to_plain(act(fn, **inputs))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, NotImplementedError) and str(error).endswith(NOT_WRITTEN):
                return Outcome("todo")
            text = " ".join(str(error).split())[:300]
            return Outcome("raised", error_type=type(error).__name__, error=text,
                           where=learner_frame(error))
    changed = tuple(n for n, v in inputs.items() if not same(to_plain(v), case.inputs[n]))
    return Outcome("value", value, mutated=changed)
