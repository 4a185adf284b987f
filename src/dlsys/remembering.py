"""Memoised runs of the named wrong answers, for judging many answers on the same cases."""

import copy
from collections.abc import Callable, Iterable

from dlsys_helpers.acting import Case
from dlsys_helpers.judging import Exercise, Run


def with_cached_runs(exercise: Exercise, also: Iterable[Callable] = ()) -> Exercise:
    """A copy of the exercise with a cache: each named wrong answer runs once a case.

    To name a mistake, an answer is compared with what every wrong answer does, which costs the
    most. Cases are keyed by `id`, so they must live as long as the copy. also: other functions to
    cache.
    """
    mine, known = copy.copy(exercise), {}
    named = {*also, *(wrong.fn for wrong in (*exercise.wrong_answers, *exercise.probes))}

    def run(fn: Callable, case: Case) -> Run:
        if fn not in named:
            return exercise.run(fn, case)
        key = fn, id(case)
        if key not in known:
            known[key] = exercise.run(fn, case)
        return known[key]

    mine.run = run
    return mine
