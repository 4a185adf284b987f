"""What is done with an answer, as source: it travels to the answer and runs there."""

from functools import singledispatch

from dlsys_helpers import acting
from dlsys_helpers.judging import Exercise


@singledispatch
def act_source(exercise: Exercise) -> str:
    """The act of an exercise; "" for a plain call."""
    return "" if exercise.act_fn is acting.call_function else acting.act_source(exercise.act_fn)
