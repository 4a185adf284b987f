"""The checks of exercises that ask for another number than the usual one.

A check's file is executed once more, with the one assignment of its constant replaced. What it
registers is kept here, beside the usual exercises.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from dlsys import pool
from dlsys.pool_constants import CONSTANTS
from dlsys.told import Told
from dlsys_helpers import catalog, checking
from dlsys_helpers.acting import Case, Outcome
from dlsys_helpers.catalog import Trap
from dlsys_helpers.checking import Exercise
from dlsys_helpers.errors import UserError
from dlsys_helpers.verdicts import Verdict

_usual_trap = catalog.trap
_put: dict[str, Trap] = {}


class NotDrawn(checking.OneLine, UserError):
    """A number that no release draws for an exercise."""


@dataclass
class Drawn(Exercise):
    """An exercise with a drawn number, which names an answer that goes by the usual one.

    told: that name. by_usual: right answers for the usual number.
    """

    told: str = ""
    by_usual: tuple[Callable, ...] = ()

    def judge(self, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Verdict:
        """As for any exercise; what came out as with the usual number has its name.

        Where all that failed is an error, it has none: other mistakes end in the same one.
        """
        named = super().judge(cases, outcomes)
        if named.seen is None:
            return named
        mine = [self.judge_one(*pair).seen for pair in zip(cases, outcomes, strict=True)]
        if self._one_does(mine, cases, (wrong.fn for wrong in self.wrong_answers)) or (
                not self._one_does(mine, cases, self.by_usual)):
            return named
        first = self.first_failure(cases, outcomes)
        if all(seen is None or seen[0] == "raised" for seen in mine):
            return first
        return replace(first, status="wrong", misconception=self.told, trap=self.id,
                       message=f"{first.message} This is what you get from: {self.told}.")

    def _one_does(self, mine: list, cases: Sequence[Case], answers: Iterable[Callable]) -> bool:
        """Whether one of these answers comes out like this on every case."""
        return any(checking.close(mine, [self.run(fn, case)[1].seen for case in cases])
                   for fn in answers)


@cache
def exercise(id: str, value: int | float) -> Exercise:
    """The exercise whose constant has this value. Raises ValueError for an unknown id."""
    module = sys.modules[checking.find(id).law_fn.__module__]
    tree = _replaced(ast.parse(inspect.getsource(module)), CONSTANTS[id].name, value)
    space = types.ModuleType(module.__name__)
    usual, checking.REGISTRY = checking.REGISTRY, {}
    try:
        # Names and lines are those of the file: an act's source is read from there.
        exec(compile(tree, module.__file__, "exec"), vars(space))
        made = checking.REGISTRY[id]
    finally:
        checking.REGISTRY = usual
    return Drawn(**vars(made), told=f"the usual {CONSTANTS[id].values[0]} in place of {value}",
                 by_usual=tuple(module.ex.right_answers.values()))


def _replaced(tree: ast.Module, name: str, value: int | float) -> ast.Module:
    """The module with another value assigned to this name. Raises ValueError unless one line does.
    """
    lines = [node for node in tree.body if isinstance(node, ast.Assign)
             and ast.unparse(node.targets[0]) == name]
    if len(lines) != 1:
        raise ValueError(f"{name}: got {len(lines)} assignments in its check, expected one.")
    lines[0].value = ast.copy_location(ast.parse(repr(value), mode="eval").body, lines[0].value)
    return ast.fix_missing_locations(tree)


def use(constants: pool.Values) -> None:
    """Have `check` ask for these numbers, from here to the end of this process.

    Nothing where a worksheet is run for its answers alone: who runs it knows its numbers. Raises
    NotDrawn for a number that no release draws.
    """
    if not isinstance(checking.check, Told):
        put(constants)


def put(constants: pool.Values) -> None:
    """Put the exercises with these numbers, and their hints, in place of the usual ones."""
    for id, value in constants.items():
        _refuse_unknown(id, value)
        checking.REGISTRY[id] = exercise(id, value)
        _put[id] = pool.named([_usual_trap(id)], {}, {id: value})[0]
    catalog.trap = _trap  # a card shows the hints


def _trap(id: str) -> Trap:
    return _put.get(id) or _usual_trap(id)


def _refuse_unknown(id: str, value: object) -> None:
    known = CONSTANTS[id].values if id in CONSTANTS else ()
    if value not in known:
        wanted = f"one of {', '.join(map(str, known))}" if known else "an exercise with a number"
        raise NotDrawn(f"use: got {value!r} for {str(id)[:20]!r}, expected {wanted}. Take a fresh "
                       "copy of the worksheet, and put your answers into it.")
