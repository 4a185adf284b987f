"""Forge the outcomes that a law receives: it must call any forgery wrong, at little cost.

    python -m tools.forging 01.1=8 01.2=1     how many parts of each exercise's outcome

Prints one line of JSON: for each exercise what is wrong with its law, or "".
"""

from __future__ import annotations

import copy
import json
import math
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from dlsys_checks import registry
from dlsys_helpers import acting, judging
from dlsys_helpers.acting import Foreign, Outcome
from dlsys_helpers.paths import ROOT
from tools import solutions

CPU_SECONDS = 600  # many times the usual time
PARTS = 8  # of an outcome, in full


def complaints(counts: Mapping[str, int]) -> dict[str, str]:
    """Map each exercise to what is wrong with its law, or "", in a process with limits.

    counts: how many parts of its outcome to forge. The process's address space may grow by 1 GiB:
    a law that needs more fails by accident. A law that never ends is killed with the process.
    """
    asked = [f"{id}={count}" for id, count in sorted(counts.items())]
    done = subprocess.run([sys.executable, "-m", "tools.forging", *asked], capture_output=True,
                          text=True, timeout=900, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"tools.forging ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def parts(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Path and value of every part of a plain value, including containers and the whole."""
    yield path, value
    items = value.items() if type(value) is dict else (
        enumerate(value) if type(value) in (list, tuple) else ())
    for key, item in items:
        yield from parts(item, (*path, key))


def replaced(value: Any, path: tuple, change: Callable) -> Any:
    """A copy of a plain value with the leaf at `path` changed."""
    if not path:
        return change(value)
    if isinstance(value, tuple):
        return tuple(replaced(v, path[1:], change) if i == path[0] else v
                     for i, v in enumerate(value))
    new = copy.copy(value)
    new[path[0]] = replaced(value[path[0]], path[1:], change)
    return new


# ---- hostile values in place of each part ------------------------------------------------------

HUGE = 10**9
ODD = {
    "None": None, "True": True, "False": False, "zero": 0, "one": 1, "minus one": -1,
    "a long int": 2**1023, "a float": 0.0, "NaN": math.nan, "infinity": math.inf,
    "minus infinity": -math.inf, "a text": "pass", "ValueError": "ValueError", "no text": "",
    "a long text": "x" * 10**6, "a list": [], "a tuple": (), "a dict": {}, "foreign": Foreign("X"),
    "a nest": [[[[[[[[]]]]]]]], "many lists": [[]] * 50_000, "many zeros": [0.0] * 50_000,
    "many tensors": [torch.empty(0)] * 20_000, "a list of huge tensors": [torch.empty(HUGE, 0)] * 3,
    "a pair": (torch.empty(0, HUGE), torch.empty(HUGE, 0)), "keys": {"weight": 0, "bias": None},
    "0-d": torch.tensor(0.0), "0-d NaN": torch.tensor(math.nan), "one element": torch.ones(1),
    "no element": torch.empty(0), "wide": torch.empty(0, HUGE), "tall": torch.empty(HUGE, 0),
    "deep": torch.empty(HUGE, 0, HUGE), "16 axes": torch.ones((1,) * 16),
    "a complex one": torch.ones((), dtype=torch.complex64), "many": torch.zeros(10**6),
    "expanded": torch.zeros(1).expand(HUGE), "expanded rows": torch.zeros(1, 1).expand(HUGE, 8),
}
DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8,
          torch.bool, torch.complex64, torch.complex128)


def disguises(value: torch.Tensor) -> dict[str, Any]:
    """Tensors that look like the right one in some respects."""
    n = value.shape
    found = {str(dtype): value.to(dtype) for dtype in DTYPES if dtype is not value.dtype}
    found |= {"as list": value.tolist(), "one axis more": value[None], "flat": value.flatten()[:1],
              "no rows": value.new_empty((0, *n[1:])), "no columns": value.new_empty((*n[:-1], 0)),
              "many rows, no columns": value.new_empty((HUGE, *n[1:-1], 0)),
              "no rows, many columns": value.new_empty((0, *n[1:-1], HUGE)),
              "rows expanded": value.new_zeros((1,) * max(1, len(n))).expand(
                  HUGE, *[1] * (len(n) - 1))}
    if value.is_floating_point():
        found |= {"NaN everywhere": value * math.nan, "infinite": torch.full_like(value, math.inf),
                  "minus infinite": torch.full_like(value, -math.inf)}
    return found


def hostile(value: Any) -> Iterator[tuple[str, Any]]:
    """Named values that replace `value`; none equals it."""
    found = dict(ODD)
    if isinstance(value, torch.Tensor):
        found |= disguises(value)
    elif type(value) is float:
        found |= {"as int": int(value) if math.isfinite(value) else 0, "as text": str(value),
                  "as tensor": torch.tensor(value)}
    elif type(value) is bool:
        found |= {"as int": int(value), "as tensor": torch.tensor(value), "not": not value}
    elif type(value) is dict:
        found |= {f"without {key}": {k: v for k, v in value.items() if k != key} for key in value}
        found |= {"one key more": {**value, "more": 0}, "as list": list(value.values())}
    elif type(value) in (list, tuple):
        found |= {"one more": type(value)([*value, *value[-1:]]), "one less": value[:-1],
                  "as other": tuple(value) if type(value) is list else list(value),
                  "many times": value * 5000}
    yield from ((name, odd) for name, odd in found.items()
                if not (acting.same(odd, value) or equal_number(odd, value)))


def equal_number(odd: Any, value: Any) -> bool:
    """Whether both are equal numbers, one int and one float: a law may accept 0.0 for 0."""
    return {type(odd), type(value)} == {int, float} and odd == value


def sampled(found: list, count: int) -> list:
    """At most `count` items: all, or both ends and a fixed sample in between; if 1, the last."""
    if len(found) <= count:
        return found
    if count == 1:
        return found[-1:]
    return [found[0], *random.Random(0).sample(found[1:-1], count - 2), found[-1]]


def forged(value: Any, count: int) -> Iterator[tuple[str, Any]]:
    """The value with one of `count` parts replaced, and with the same odd value for all tensors."""
    found = list(parts(value))
    for path, part in sampled(found, count):
        for name, odd in hostile(part):
            yield f"{name} at {path}", replaced(value, path, lambda _, odd=odd: odd)
    tensors = [path for path, part in found if isinstance(part, torch.Tensor)]
    for name, odd in ODD.items():
        made = copy.copy(value)
        for path in tensors:
            made = replaced(made, path, lambda _, odd=odd: odd)
        if tensors and not acting.same(made, value):
            yield f"{name} at every tensor", made


def judge_forged(id: str, count: int) -> None:
    """Assert that the law itself calls every forged outcome of an exercise wrong.

    Forges `count` parts of the first case; if `count` is more than one, also the first and the last
    part of the last case, which has other sizes.
    """
    exercise, answer = registry.find(id), solutions.worked(id)
    cases = exercise.arrange(0)
    tried = [(cases[0], count), *([(cases[-1], 2)] if count > 1 else [])]
    for case, some_parts in tried:
        right = acting.run_act(exercise.act_fn, answer, case)
        assert exercise.judge_one(case, right).status == "pass"
        for name, value in forged(right.value, some_parts):
            outcome = Outcome("value", value)
            verdict = exercise.judge_one(case, outcome)
            judging.close(outcome.value, right.value)
            assert verdict.status == "wrong", f"{case.name}: {name}: {verdict.status}"
            assert not verdict.accident, f"{case.name}: {name}: {verdict.message}"
            assert len(verdict.message) <= 300, f"{case.name}: {name}: {verdict.message}"


def complaint(id: str, count: int) -> str:
    """What is wrong with a law, or "" for nothing."""
    try:
        judge_forged(id, count)
    except Exception as error:  # a law must not raise; report what it raised
        return f"{type(error).__name__}: {error}"[:500]
    return ""


def limit_memory(gib: float) -> None:
    """Let this process's address space grow by at most `gib`, and end the process if it hangs."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))


def main() -> None:
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0).step()  # loads the compiler
    limit_memory(1.0)
    asked = (word.partition("=") for word in sys.argv[1:])
    with acting.standard_session():  # once, so that 800 inner ones are quick
        found = {id: complaint(id, int(count)) for id, _, count in asked}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
