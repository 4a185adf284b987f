"""No table passes an exercise: a guesser plays against every check with what it saw before.

It has recorded the worked answer on cases that anyone can draw. On other cases it replays that
record by the case's name, the order of the call, or the numbers or shapes of its arguments, or it
returns zeros, ones, a mean, or its own arguments. One case that refuses a guess is enough.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from test_checks import IDS, REFERENCE, REGISTRY
from torch import nn

from dlsys_checks.checking import FIXED_SEEDS
from dlsys_helpers import acting

SEEN, ASKED = FIXED_SEEDS[0], 20_261


# ---- what the worked answer did

@dataclass(frozen=True)
class Call:
    """One call of the worked answer: what it got, what it changed, and how to answer so again."""

    shapes: list
    numbers: list
    changed: dict[tuple, torch.Tensor]
    answer: Callable[[dict], Any]


def tensors(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, torch.Tensor]]:
    """Path and tensor for every tensor in the arguments, including lists, models, optimizers."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, nn.Module):
        yield from (((*path, name), held) for name, held in (
            *value.named_parameters(), *value.named_buffers()))
    elif isinstance(value, torch.optim.Optimizer):
        yield from tensors([group["params"] for group in value.param_groups], path)
    elif isinstance(value, list | tuple | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from tensors(item, (*path, key))


def copy_of(value: Any, places: dict[int, tuple]) -> Callable[[dict], Any]:
    """Copy an argument, so that a second call gets the same value in new tensors."""
    if id(value) in places:
        return lambda held: held[places[id(value)]]
    if isinstance(value, torch.Tensor):
        kept = value.detach().clone()
        return lambda _: kept.clone().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        parts = [copy_of(part, places) for part in value]
        return lambda held: type(value)(part(held) for part in parts)
    if type(value) is dict:
        items = {key: copy_of(part, places) for key, part in value.items()}
        return lambda held: {key: part(held) for key, part in items.items()}
    return lambda _: value if callable(value) else copy.deepcopy(value)


def recording_calls(fn: Callable, calls: list[Call]) -> Callable:
    """The function, which adds each of its calls to the list."""
    def call(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        before = {path: held.detach().clone() for path, held in tensors(given)}
        places = {id(held): path for path, held in tensors(given)}
        places |= {id(one): (place,) for place, one in enumerate(given)
                   if isinstance(one, nn.Module | torch.optim.Optimizer)}
        shapes, numbers = seen_in(given), acting.to_plain(given)
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            calls.append(Call(shapes, numbers, {}, raising(error)))
            raise
        changed = {path: held.detach().clone() for path, held in tensors(given)
                   if path in before and not acting.same(before[path], held.detach())}
        calls.append(Call(shapes, numbers, changed, copy_of(result, places)))
        return result
    return call


def raising(error: Exception) -> Callable[[dict], Any]:
    def answer(_: dict) -> Any:
        raise type(error)(*error.args)
    return answer


def seen_in(given: list) -> list:
    """What is visible without looking at any number: shapes, dtypes, types."""
    return [(path, held.shape, held.dtype) for path, held in tensors(given)] + [
        type(one) for one in given]


# ---- what the guesser does with it

def by_order(calls: list[Call], place: int, given: list) -> Call:
    return calls[place]


def by_shapes(calls: list[Call], place: int, given: list) -> Call:
    return next(call for call in calls if call.shapes == seen_in(given))


def by_numbers(calls: list[Call], place: int, given: list) -> Call:
    numbers, shapes = acting.to_plain(given), seen_in(given)
    alike = [call for call in calls if acting.same(call.numbers, numbers)] + [
        call for call in calls if call.shapes == shapes]
    return alike[0] if alike else calls[place]


def answer_as_in(call: Call, given: list) -> Any:
    """Replay what the worked answer did in this call on the new arguments."""
    held = dict(tensors(given)) | {(place,): one for place, one in enumerate(given)
                                   if isinstance(one, nn.Module | torch.optim.Optimizer)}
    with torch.no_grad():
        for path, value in call.changed.items():
            held[path].copy_(value)
    return call.answer(held)


def filled(value: Any, fill: Callable) -> Any:
    """A value of the same form with all numbers replaced."""
    if isinstance(value, torch.Tensor):
        return fill(value)
    if type(value) in (list, tuple):
        return type(value)(filled(part, fill) for part in value)
    if type(value) is dict:
        return {key: filled(part, fill) for key, part in value.items()}
    return type(value)(fill(torch.tensor([float(value)])).item()) if (
        type(value) in (int, float)) else value


def average(value: torch.Tensor) -> torch.Tensor:
    return torch.full_like(value, value.double().mean().item()) if value.numel() else value


TABLES = {"by the order of calls": by_order, "by shapes": by_shapes, "by numbers": by_numbers}
FILLS = {"zeros": torch.zeros_like, "ones": torch.ones_like, "the mean": average}
GUESSES: dict[str, Callable[[list[Call], int, list], Any]] = {
    **{name: lambda calls, place, given, find=find: answer_as_in(find(calls, place, given), given)
       for name, find in TABLES.items()},
    **{name: lambda calls, place, given, fill=fill: filled(answer_as_in(calls[place], given), fill)
       for name, fill in FILLS.items()},
    **{f"argument {n}": lambda calls, place, given, n=n: given[n] for n in range(3)}}
REPORT = "the report of the act"  # all that a forged act could return


def guessing(guess: Callable, calls: list[Call]) -> Callable:
    """A learner's function that guesses, and counts its calls."""
    made: list[int] = []

    def function(*args: Any, **kwargs: Any) -> Any:
        made.append(1)
        return guess(calls, len(made) - 1, [*args, *kwargs.values()])
    return function


def guesses_that_pass(id: str) -> list[str]:
    """The guesses that pass all cases of an unseen seed."""
    exercise, left = REGISTRY[id], [REPORT, *GUESSES]
    before = {case.name: case for case in exercise.arrange(SEEN)}
    for case in exercise.arrange(ASKED):
        calls: list[Call] = []
        spied = recording_calls(REFERENCE[id], calls)
        right = acting.run_act(exercise.act_fn, spied, before[case.name])
        left = [name for name in left if passes(exercise, case, right if name == REPORT else (
            acting.run_act(exercise.act_fn, guessing(GUESSES[name], calls), case)))]
        if not left:
            break
    return left


def passes(exercise: Any, case: acting.Case, outcome: acting.Outcome) -> bool:
    return exercise.judge_one(case, outcome).status == "pass"


@pytest.mark.parametrize("id", IDS)
def test_no_table_passes(id):
    assert guesses_that_pass(id) == []


# ---- answers outside any table, each of which once passed a check

def one_weight(net):
    """Weights that are equal except for differences too small to measure."""
    for layer in net[::2]:
        nn.init.constant_(layer.weight, (2 / layer.in_features) ** 0.5)
        layer.weight.data += 1e-7 * torch.randn_like(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def positive_weights(net):
    for layer in net[::2]:
        layer.weight.data = layer.weight.data.normal_().abs() * (2 / layer.in_features) ** 0.5
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


class Secretive(torch.Tensor):
    """A tensor that shares memory with another one, but detaches to a copy."""

    def detach(self):
        if not hasattr(self, "shown"):
            self.shown = torch.Tensor.detach(self).as_subclass(torch.Tensor).clone()
        return self.shown


def calls_the_hooks(opt, losses, epochs, accumulate):
    """An optimizer that reports steps to its hooks without taking them."""
    for _ in range(epochs * -(-len(losses) // accumulate)):
        for hook in opt._optimizer_step_pre_hooks.values():
            hook(opt, (), {})


PASSED_ONCE = {"one weight": ("03.4", one_weight), "positive weights": ("03.4", positive_weights),
               "a tensor that hides what it shares": (
                   "02.3", lambda t: t.detach().as_subclass(Secretive)),
               "hooks called": ("04.3", calls_the_hooks)}


@pytest.mark.parametrize("name", PASSED_ONCE)
def test_an_answer_that_passed_once_is_refused(name):
    id, fn = PASSED_ONCE[name]
    exercise = REGISTRY[id]

    assert not all(passes(exercise, case, acting.run_act(exercise.act_fn, fn, case))
                   for case in exercise.arrange(ASKED))


# ---- the guesser succeeds against a weak check

def test_a_check_whose_cases_do_not_vary_is_passed_by_a_table(monkeypatch):
    exercise = copy.copy(REGISTRY["01.4"])
    exercise.make_cases = lambda g: [("the only case", {"h": torch.eye(3)})]
    monkeypatch.setitem(REGISTRY, "01.4", exercise)

    assert {REPORT, *TABLES} <= set(guesses_that_pass("01.4"))


def test_a_table_of_an_arguments_tensors_is_played_on_the_new_ones():
    def halves(model: nn.Module) -> list:
        return [[model.weight], [model.bias]]
    calls: list[Call] = []
    recording_calls(halves, calls)(nn.Linear(2, 3))
    other = nn.Linear(2, 3)

    (weight,), (bias,) = guessing(GUESSES["by shapes"], calls)(other)

    assert weight is other.weight
    assert bias is other.bias
