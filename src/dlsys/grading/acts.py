"""The act of an exercise as source code: it is sent into the sandbox and runs there."""

from functools import singledispatch

from dlsys_helpers import acting
from dlsys_helpers.judging import Exercise


@singledispatch
def act_source(exercise: Exercise) -> str:
    """The source of an exercise's act; "" if the act only calls the function."""
    return "" if exercise.act_fn is acting.call_function else acting.act_source(exercise.act_fn)
