"""All exercises by id: each file of a stage registers its own."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil

import dlsys_checks
from dlsys_helpers.judging import Exercise

REGISTRY: dict[str, Exercise] = {}


def exercise(id: str, function: str, may_change: tuple[str, ...] = (),
             by_hand: tuple[str, ...] = (), seen: tuple[str, ...] = (),
             kept: tuple[str, ...] = (), within: float = 1e-4, says: str = "") -> Exercise:
    """Register an exercise: permanent id and the name of the learner's function.

    may_change: inputs that an answer is meant to change in place. by_hand: the library's
    functions that an answer should do without; the grader notes their use, which costs nothing.
    seen: the names of all inputs. They are local variables of the act, and a learner's function
    can read them there: before you add one, make sure that it does not hold what the law expects.
    kept: parts of an outcome that an answer has to return as they were given. within: the relative
    tolerance within which an answer's numbers count as those of a registered mistake. says: a
    phrase that a wrong answer is told where no promise that it breaks names one. Raises ValueError
    when the id is registered already.
    """
    if id in REGISTRY:
        raise ValueError(f"exercise {id}: got a second registration, expected one. Renumber it.")
    REGISTRY[id] = Exercise(id, function, may_change, by_hand, seen, kept, within, says)
    return REGISTRY[id]


def load_all() -> dict[str, Exercise]:
    """Import every stage's checks and return the registry by id."""
    for module in pkgutil.iter_modules(dlsys_checks.__path__):
        if module.name[1:].isdigit():  # s01, s02, ...: the other folder holds questions
            _load_stage(module.name)
    return REGISTRY


def of_stage(number: int) -> dict[str, Exercise]:
    """Import the checks of one stage and return its exercises by id; none if none is written."""
    _load_stage(f"s{number:02d}")
    return {id: found for id, found in REGISTRY.items() if id[:2] == f"{number:02d}"}


def _load_stage(name: str) -> None:
    """Import the exercises of one stage, "s01"; nothing for a stage without any."""
    if importlib.util.find_spec(f"dlsys_checks.{name}"):
        package = importlib.import_module(f"dlsys_checks.{name}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")


def find(id: str) -> Exercise:
    """The exercise with this id. Raises ValueError that lists the known ids."""
    if id not in REGISTRY and id[:2].isdigit():
        _load_stage(f"s{id[:2]}")
    if id not in REGISTRY:
        known = ", ".join(sorted(REGISTRY)) or "none"
        raise ValueError(f"exercise: got {id!r}, expected one of {known}.")
    return REGISTRY[id]
