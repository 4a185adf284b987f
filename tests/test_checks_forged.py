"""What a law receives may be forged: any form must end in a clear "wrong", and cost little."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_checks import IDS, REFERENCE, REGISTRY

from dlsys_helpers import acting, judging
from dlsys_helpers.acting import Foreign, Outcome
from dlsys_helpers.expect import show
from dlsys_helpers.paths import ROOT
from tools.proof import replaced

CPU_SECONDS = 600  # many times what all of it takes


@pytest.mark.parametrize("id", IDS)
def test_every_input_of_an_act_is_known(id):
    for case in REGISTRY[id].arrange(0):
        assert set(case.inputs) == set(REGISTRY[id].seen)


@pytest.mark.parametrize("id", IDS)
def test_no_input_holds_what_comes_out(id):
    """A tensor or a text of the right outcome that no call had to produce would be an answer.

    One without numbers tells nothing.
    """
    exercise = REGISTRY[id]
    for case in exercise.arrange(0):
        given = [v for _, v in parts(case.inputs) if type(v) in (str, torch.Tensor)]
        given += [key for _, v in parts(case.inputs) if type(v) is dict for key in v]
        value = acting.run_act(exercise.act_fn, REFERENCE[id], case).value
        kept = set(exercise.kept)
        for path, leaf in parts(value):
            told = type(leaf) is str or (type(leaf) is torch.Tensor and leaf.numel())
            if told and not kept & set(path):
                assert not any(acting.same(leaf, other) for other in given), path


def parts(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Path and value of every part of a plain value, containers and the whole included."""
    yield path, value
    items = value.items() if type(value) is dict else (
        enumerate(value) if type(value) in (list, tuple) else ())
    for key, item in items:
        yield from parts(item, (*path, key))


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
    """Tensors that share some aspects of the right one."""
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
    """Named values to stand in place of `value`; none is the same."""
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
    """Whether both are numbers and equal: a law may take 0.0 for 0."""
    return {type(odd), type(value)} == {int, float} and odd == value


def some(found: list, count: int) -> list:
    """All of a short list, else its ends and a fixed choice between them."""
    if len(found) <= count:
        return found
    return [found[0], *random.Random(0).sample(found[1:-1], count - 2), found[-1]]


def forged(value: Any, count: int) -> Iterator[tuple[str, Any]]:
    """The value with one of `count` parts replaced, and with all tensors by one and the same."""
    found = list(parts(value))
    for path, part in some(found, count):
        for name, odd in hostile(part):
            yield f"{name} at {path}", replaced(value, path, lambda _, odd=odd: odd)
    tensors = [path for path, part in found if isinstance(part, torch.Tensor)]
    for name, odd in ODD.items():
        made = copy.copy(value)
        for path in tensors:
            made = replaced(made, path, lambda _, odd=odd: odd)
        if tensors and not acting.same(made, value):
            yield f"{name} at every tensor", made


def judged(id: str) -> None:
    """Every forged outcome of an exercise is wrong, by a law's own words.

    Eight parts of the first case; of the last, which has other sizes, the first and the last part.
    """
    exercise = REGISTRY[id]
    cases = exercise.arrange(0)
    for case, count in ((cases[0], 8), (cases[-1], 2)):
        right = acting.run_act(exercise.act_fn, REFERENCE[id], case)
        assert exercise.judge_one(case, right).status == "pass"
        for name, value in forged(right.value, count):
            outcome = Outcome("value", value)
            verdict = exercise.judge_one(case, outcome)
            judging.close(outcome.value, right.value)
            assert verdict.status == "wrong", f"{case.name}: {name}: {verdict.status}"
            assert not verdict.accident, f"{case.name}: {name}: {verdict.message}"
            assert len(verdict.message) <= 300, f"{case.name}: {name}: {verdict.message}"


@pytest.fixture(scope="module")
def complaints(request) -> dict[str, str]:
    """Id of each exercise asked for to what went wrong, "" for nothing, from a limited process.

    Its address space may grow by 1 GiB: a law that multiplies more fails, and that by accident. A
    law that calculates without end is killed with it.
    """
    asked = {item.callspec.params["id"] for item in request.session.items
             if getattr(item, "originalname", "") == "test_no_forged_outcome_passes_or_costs_much"}
    done = subprocess.run([sys.executable, __file__, *sorted(asked)], capture_output=True,
                          text=True, timeout=900, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("id", IDS)
def test_no_forged_outcome_passes_or_costs_much(complaints, id):
    assert complaints[id] == ""


def complaint(id: str) -> str:
    """What is wrong with a law, or ""."""
    try:
        judged(id)
    except Exception as error:  # a law must let nothing out, and what it does is reported
        return f"{type(error).__name__}: {error}"[:500]
    return ""


def limited(gib: float) -> None:
    """Let this process's address space grow by so much and no further, and end it if it hangs."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))


# ---- values in messages ------------------------------------------------------------------------

@pytest.mark.parametrize("value", [
    None, True, 3, -1.5, "text", "it's", "x" * 61, [], (), {}, [1, 2.5, None], (1,), (1, (2,)),
    {"a": [1, {"b": ()}], "c": "it's"}, list(range(40)), "é" * 60, ["x" * 70], [True, 1e-9],
    {"k" * 80: 1}, [[[["deep"]]]] * 9, (torch.tensor(0.5), 2), ("a", "b" * 57)], ids=repr)
def test_ordinary_values_are_shown_as_python_writes_them(value):
    text = f"{value:.4g}" if type(value) is float else str(value)
    assert show(value) == (text if len(text) <= 60 else text[:57] + "...")


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


ENDLESS = {
    "many tensors": [torch.empty(0)] * 200_000, "a long text": "x" * 10**8,
    "a list of long texts": ["x" * 10**8], "a long dict": dict.fromkeys(map(str, range(10**6)), 0),
    "a deep nest": nested(100_000), "a huge int": 1 << 10**7, "a huge int in a list": [1 << 10**7],
    "a big tensor": torch.zeros(10**7), "a big tensor in a list": [torch.zeros(10**7)],
    "a tensor of any shape": torch.empty(0, HUGE), "an expanded one": torch.zeros(1).expand(HUGE),
    "a sparse one": torch.eye(2).to_sparse(), "a long key": {"x" * 10**8: 0},
    "a long name": Foreign("x" * 10**8), "wide and deep": [[[0] * 10**6] * 10] * 10,
}


@pytest.mark.parametrize("name", ENDLESS)
def test_showing_costs_no_more_than_the_message(name):
    tracemalloc.start()
    text = show(ENDLESS[name])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(text) <= 80
    assert peak < 50_000


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0).step()  # loads the compiler
    limited(1.0)
    with acting.standard_session():  # once: that of each of some 800 values is quicker inside
        found = {id: complaint(id) for id in sys.argv[1:]}
    print(json.dumps(found))
