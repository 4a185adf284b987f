"""Run a learner's function on one case and return plain data. Contains no laws, no answers.

The notebook and the sandboxed grader both use this module. It may be loaded next to untrusted code,
so everything it returns is data for a judge elsewhere, never a verdict.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import random
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# A stub raises NotImplementedError with this ending; the builder writes it, run_act reads it.
NOT_WRITTEN = "is not written yet"


@dataclass(frozen=True)
class Foreign:
    """A placeholder for a value that is not plain data; `type_name` says what it was."""

    type_name: str


@dataclass(frozen=True)
class Case:
    """One generated case: a name for the feedback and the inputs by name, all plain data."""

    name: str
    inputs: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one act.

    kind: "value" (see `value`); "raised" by the learner's function (see `error_type`, `error`,
    `where`); "unusable": the function returned `value`, and what the act did next raised an
    error; "late": it ran past its time limit (see `error`, `where`); or "todo".
    mutated: names of the inputs that the act changed, and what the function left on the tensors
    it was given, such as "requires_grad of argument 1", followed by WRITTEN if the function also
    wrote into the tensor.
    """

    kind: str
    value: Any = None
    error_type: str = ""
    error: str = ""
    where: str = ""
    mutated: tuple[str, ...] = field(default=())


# numpy's subclasses of built-in types: a float64 is a float, but an int64 is not an int.
NUMPYS = {np.float64: float, np.str_: str}


def to_plain(value: Any, depth: int = 0) -> Any:
    """`value` as plain data: tensors detached on the CPU, exact built-in types, else `Foreign`.

    Subclasses of float or str are foreign on purpose: a number that overrides `==` must not
    reach a law. numpy's subclasses do not, so `NUMPYS` become built-in types.
    """
    if depth > 16:
        return Foreign("structure nested deeper than 16 levels")
    value = built_in(value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (torch.Tensor, nn.Parameter):
        return value.detach().to("cpu", copy=True)
    if type(value) in (list, tuple):
        return type(value)(to_plain(item, depth + 1) for item in value)
    if type(value) is dict and all(type(built_in(key)) is str for key in value):
        return {built_in(key): to_plain(item, depth + 1) for key, item in value.items()}
    numpys = "numpy." if isinstance(value, np.generic) else ""
    return Foreign(numpys + type(value).__name__)


def built_in(value: Any) -> Any:
    """Convert a value of numpy's float or str subclass to Python's type; leave any other as is."""
    return NUMPYS[type(value)](value) if type(value) in NUMPYS else value


def same(a: Any, b: Any) -> bool:
    """Whether two plain values are identical in type, shape, dtype and every bit that counts."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and (torch.equal(a, b) or (torch.equal(
            torch.nan_to_num(a), torch.nan_to_num(b)) and torch.equal(a.isnan(), b.isnan())))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


def copied(value: Any, known: dict[int, Any] | None = None) -> Any:
    """A deep copy of plain data; an object that appears twice is copied once.

    copy.deepcopy takes several times as long for the tensors that make up nearly all cases.
    """
    known = {} if known is None else known
    kind = type(value)
    if kind is torch.Tensor and value._base is None and not value.requires_grad and (
            value.layout is torch.strided and value.is_contiguous()):
        found = known.get(id(value))
        return known.setdefault(id(value), value.clone()) if found is None else found
    if kind is dict:
        return {key: copied(item, known) for key, item in value.items()}
    if kind in (list, tuple) and value and id(value) not in known:
        known[id(value)] = found = kind(copied(item, known) for item in value)
        return found
    return copy.deepcopy(value, known)


RECURSION_LIMIT = 1000  # Python's default; raising it must not let a deep recursion pass


_generators_kept = False  # whether an open standard session restores them


@contextlib.contextmanager
def standard_session() -> Iterator[None]:
    """Run under torch's standard settings, whatever the session did; then restore the session's.

    Grad mode, inference mode, default dtype and device, autocast, deterministic flags, anomaly
    mode and the recursion limit are those of a fresh process. Threads and the states of all random
    generators stay as they are and are put back. A session inside another one leaves the generators
    to the outer one, because saving them takes as long as many answers do.
    """
    global _generators_kept
    restore, outermost = [_kept_settings()], not _generators_kept
    if outermost:
        restore.append(_kept_generators())
    _generators_kept = True
    _set_standard()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        _generators_kept = not outermost
        for put_back in restore:
            put_back()


def _set_standard() -> None:
    torch.set_default_dtype(torch.float32)
    if torch.get_default_device().type != "cpu":
        torch.set_default_device(None)
    torch.set_autocast_enabled("cpu", False)
    torch.autograd.set_detect_anomaly(False)
    _set_deterministic(False, False)
    sys.setrecursionlimit(RECURSION_LIMIT)


def _kept_settings() -> Callable[[], None]:
    """Return a function that restores the current settings."""
    grad, dtype, device = (torch.is_grad_enabled(), torch.get_default_dtype(),
                           torch.get_default_device())
    autocast, anomaly = torch.is_autocast_enabled("cpu"), torch.is_anomaly_enabled()
    deterministic = (torch.are_deterministic_algorithms_enabled(),
                     torch.is_deterministic_algorithms_warn_only_enabled())
    threads, depth = torch.get_num_threads(), sys.getrecursionlimit()

    def put_back() -> None:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            # None is the default; "cpu" would leave a mode that runs at every later call
            torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_autocast_enabled("cpu", autocast)
        torch.autograd.set_detect_anomaly(anomaly)
        _set_deterministic(*deterministic)
        torch.set_num_threads(threads)
        sys.setrecursionlimit(depth)
    return put_back


def _set_deterministic(on: bool, warn_only: bool) -> None:
    """Set it only if it changes: the call imports the compiler, which takes seconds."""
    if (on, warn_only) != (torch.are_deterministic_algorithms_enabled(),
                           torch.is_deterministic_algorithms_warn_only_enabled()):
        torch.use_deterministic_algorithms(on, warn_only=warn_only)


def _kept_generators() -> Callable[[], None]:
    """Return a function that restores the random generators of torch, Python and numpy."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()

    def put_back() -> None:
        for restore, state in zip((torch.set_rng_state, random.setstate, np.random.set_state),
                                  states, strict=True):
            restore(state)
    return put_back


class _Calls(TorchFunctionMode):
    """Records the names of the torch functions that are called while it is active."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names, self.used = names, set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self.names:
            self.used.add(name)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def library_calls(*names: str) -> Iterator[set[str]]:
    """Collect which of these torch functions and optimizers the code inside calls, by name.

    For an exercise that asks for something by hand: `with library_calls("cross_entropy") as used`.
    A function appears under its own name ("softmax"), an optimizer under its class ("Adam").
    """
    calls, begin = _Calls(names), torch.optim.Optimizer.__init__

    def noted(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        calls.used.update({type(optimizer).__name__} & set(names))
        begin(optimizer, *args, **kwargs)

    torch.optim.Optimizer.__init__ = noted
    try:
        with calls:
            yield calls.used
    finally:
        torch.optim.Optimizer.__init__ = begin


# Names that the source of an act may use without importing them.
ACT_NAMES = {"torch": torch, "nn": nn, "F": F, "math": math, "copy": copy,
             "library_calls": library_calls}


def call_function(fn: Callable, **inputs: Any) -> Any:
    """The default act: call the function with the inputs in their order, whatever their names."""
    return fn(*inputs.values())


def act_source(act: Callable) -> str:
    """Source of an act as a plain function definition, decorators removed, ready to travel."""
    lines = textwrap.dedent(inspect.getsource(act)).splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith("def "))
    return "".join(lines[start:])


def load_act(source: str) -> Callable:
    """The act defined by `source`, with nothing in scope but ACT_NAMES."""
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


class Watched:
    """The learner's function, with its last error and result, to tell its errors from the act's.

    left_on: what its calls left on the tensors they were given.
    """

    def __init__(self, fn: Callable) -> None:
        self.fn, self.raised, self.returned = fn, None, None
        self.left_on: set[str] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [(place, tensor, _traces(tensor))
                 for place, argument in enumerate([*args, *kwargs.values()], 1)
                 for tensor in _tensors(argument)]
        try:
            self.returned = built_in(self.fn(*args, **kwargs))
        except BaseException as error:
            self.raised = error
            raise
        for place, tensor, before in given:
            now = _traces(tensor)
            end = "" if now["version"] == before["version"] else WRITTEN
            self.left_on |= {f"{trace} of argument {place}{end}" for trace in TRACES
                             if now[trace] is not before[trace]}
        return self.returned


TRACES = "class", "requires_grad", "grad", "hooks"  # what a function can leave on a tensor unseen
WRITTEN = ", written into"  # whether a tensor may change is for the law to decide


def _traces(tensor: torch.Tensor) -> dict[str, Any]:
    """A tensor's TRACES and how often it was written into, read unseen by the act's modes."""
    with torch._C.DisableTorchFunction():
        later = getattr(tensor, "_post_accumulate_grad_hooks", None)
        return {"class": type(tensor), "requires_grad": tensor.requires_grad,
                "grad": tensor.grad if tensor.is_leaf else None,
                "hooks": bool(tensor._backward_hooks or later), "version": tensor._version}


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in plain data, except parameters: a model's are not its caller's inputs."""
    if type(value) is torch.Tensor and not value.is_inference():
        yield value
    elif type(value) in (list, tuple, dict) and depth < 8:
        for item in value.values() if type(value) is dict else value:
            yield from _tensors(item, depth + 1)


class TooLong(BaseException):
    """An answer ran past its time limit. Not an Exception, so few answers swallow it."""


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise TooLong inside after `seconds`; None means no limit.

    Only the main thread can be interrupted, and only on systems whose timers send a signal: other
    threads and Windows have no limit.
    """
    if seconds is None or not hasattr(signal, "setitimer") or (
            threading.current_thread() is not threading.main_thread()):
        yield
        return

    def stop(*_: Any) -> None:
        raise TooLong(f"ran longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)  # repeats in case an answer swallows one
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_act(act: Callable, fn: Callable, case: Case, seconds: float | None = None) -> Outcome:
    """Call `act(fn, **inputs)` on a fresh copy of the case's inputs, in a standard session.

    Everything a learner's function can raise ends here, as data; only KeyboardInterrupt
    passes through, so that a learner can stop a loop that does not end. seconds: its time limit.
    """
    inputs, watched = copied(case.inputs), Watched(fn)
    with standard_session():
        seed(0)
        random.seed(0)
        np.random.seed(0)
        try:
            with time_limit(seconds):
                value = to_plain(act(watched, **inputs))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return _stopped(error, watched)
    changed = [n for n, v in inputs.items() if not same(to_plain(v), case.inputs[n])]
    return Outcome("value", value, mutated=(*changed, *sorted(watched.left_on)))


def _stopped(error: BaseException, watched: Watched) -> Outcome:
    """The outcome of an act that an error ended: the learner's error, or the act's own."""
    text = said_by(error)
    if isinstance(error, NotImplementedError) and text.endswith(NOT_WRITTEN):
        return Outcome("todo")
    if isinstance(error, TooLong):
        return Outcome("late", error=text, where=learner_frame(error))
    kind, value = ("raised", None) if error is watched.raised else (
        "unusable", to_plain(watched.returned))
    return Outcome(kind, value, type(error).__name__, text, learner_frame(error))


def said_by(error: BaseException) -> str:
    """The text of an exception in one line of at most 300 characters; "" if it has none."""
    try:
        return " ".join(str(error).split())[:300]
    except BaseException:  # a learner's exception class may do anything
        return ""
