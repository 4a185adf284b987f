"""When a mistake is named: a poor observation needs further cases that confirm it."""

import math

import pytest
import torch

from dlsys_helpers import judging
from dlsys_helpers.acting import Foreign, Outcome
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import Exercise
from dlsys_helpers.verdicts import Verdict


@pytest.fixture
def ex() -> Exercise:
    """Numbers above 0, sorted, and their sum; cases with a pair, a zero, no number at all."""
    found = Exercise("99.1", "positive")
    found.promise("result", "All of it.")
    found.cases(lambda g: [("a pair", {"x": [2.0, 1.0]}), ("a zero", {"x": [0.0, 3.0]}),
                           ("one number", {"x": [4.0]}), ("none", {"x": []}),
                           ("zeros", {"x": [0.0, 0.0]})])

    @found.act
    def act(fn, x):
        numbers = fn(list(x))
        return {"numbers": numbers, "sum": float(sum(numbers)), "count": len(numbers)}

    @found.law
    def law(out, x):
        expect_parts(out, "numbers", "sum", "count")
        right = sorted(v for v in x if v > 0)
        expect_equal("count", out["count"], len(right))
        expect_equal("numbers", out["numbers"], right)
        expect_close("sum", out["sum"], float(sum(right)))
    return found


def named(ex, fn):
    cases = ex.arrange(0)
    return ex.judge(cases, ex.outcomes(fn, cases)).misconception


def positive(x):
    return sorted(v for v in x if v > 0)


def test_an_error_of_one_case_is_the_mistake_if_all_other_cases_pass(ex):
    ex.wrong("assuming a number", breaks="result")(lambda x: positive(x) if x[0] + 1 else [])
    assert named(ex, lambda x: x[0] * 0 + 1 and positive(x)) == "assuming a number"


def test_an_error_that_another_answer_raises_everywhere_is_not_that_mistake(ex):
    def wrong(x):
        if x == [2.0, 1.0]:
            raise IndexError("out of range")
        return positive(x)

    def everywhere(x):
        raise IndexError("out of range")
    ex.wrong("failing on pairs", breaks="result")(wrong)
    assert named(ex, wrong) == "failing on pairs"
    assert named(ex, everywhere) == ""


def test_a_count_needs_the_rest_of_the_outcome_to_be_alike(ex):
    ex.wrong("keeping zeros", breaks="result")(sorted)
    assert named(ex, lambda x: list(sorted(x))) == "keeping zeros"
    assert named(ex, lambda x: [v or 9.0 for v in sorted(x)]) == ""


def test_nothing_needs_a_second_case(ex):
    """An answer that, like the mistake, returns nothing in one case differs from it elsewhere."""
    def only_large(x):
        return positive(x) if sum(x) > 3.5 else []

    def by_chance(x):
        return [] if x == [2.0, 1.0] else [v + 1 for v in positive(x)]
    ex.wrong("dropping small sums", breaks="result")(only_large)
    assert named(ex, only_large) == "dropping small sums"
    assert named(ex, by_chance) == ""


def raises_type_error(x):
    return sorted(x, key="value")


@pytest.mark.parametrize("slip", [
    lambda x: raises_type_error(x), lambda x: x.numbers, lambda x: None, lambda x: 1.0])
def test_an_error_in_types_is_no_mistake_of_another_kind(ex, slip):
    """Even if the mistake's own answer fails in the same way on the first case."""
    ex.wrong("mistaking the order", breaks="result")(
        lambda x: slip(x) if len(x) == 2 and x[0] else positive(x)[::-1] + [0.0][:len(x) // 2])
    assert named(ex, slip) == ""
    assert named(ex, ex.wrong_answers[0].fn) == "mistaking the order"


def test_a_wrong_type_everywhere_is_the_mistake_that_returns_it_everywhere(ex):
    def in_a_tuple(x):
        return tuple(positive(x))
    ex.act_fn = lambda fn, x: {"numbers": (out := fn(list(x))), "sum": float(sum(out)),
                               "count": len(out)}
    ex.wrong("returning a tuple", breaks="result")(in_a_tuple)
    assert named(ex, lambda x: (*positive(x),)) == "returning a tuple"


# ---- the rule itself

SEEN = [("raised", "TypeError", "text"), ("raised", "IndexError", "text"), ("unusable", "E", ""),
        ("accident", "", 1.0), ("law", "type of the loss", "int"), ("law", "count", 1),
        ("law", "loss", 1.5), ("law", "loss", torch.ones(2)), ("law", "loss", math.nan),
        ("law", "names", []), ("law", "names", ["a", "b"]), ("law", "flag", False),
        ("law", "loss", None), ("law", "loss", Foreign("Loss")), ("law", "share", 0.0),
        ("law", "share", 1.0), ("law", "share", torch.tensor(0.0))]


def run_of(seen):
    return Outcome("value", {"out": 1.0}), Verdict("pass" if seen is None else "wrong", "99.1",
                                                   seen=seen)


@pytest.mark.parametrize("seen", SEEN, ids=str)
@pytest.mark.parametrize("others", [(), (None,), (None, None)])
def test_by_any_observation_an_answer_agrees_with_itself(seen, others):
    """So each registered mistake keeps its name; the proofs' records rely on that."""
    runs = [run_of(one) for one in (*others, seen, *others)]
    both = list(zip(runs, runs, strict=True))
    assert judging.is_borne_out(both, len(others), 1e-4)


@pytest.mark.parametrize(("seen", "poor", "types"), [
    (SEEN[0], True, True), (SEEN[1], True, False), (SEEN[2], True, False), (SEEN[3], True, True),
    (SEEN[4], True, True), (SEEN[5], True, False), (SEEN[6], False, False),
    (SEEN[7], False, False), (SEEN[9], True, False), (SEEN[10], False, False),
    (SEEN[11], True, False), (SEEN[12], True, False), (SEEN[13], True, True),
    (SEEN[14], True, False), (SEEN[15], True, False), (SEEN[16], False, False)], ids=str)
def test_what_says_too_little(seen, poor, types):
    assert (judging.is_poor(seen), judging.is_of_types(seen)) == (poor, types)


def test_a_rich_observation_names_a_mistake_by_itself(ex):
    def law(out, x):
        if out["sum"] != sum(x):
            raise Broken("sum", out["sum"], sum(x))
    ex.law(law)
    ex.wrong("halving", breaks="result")(lambda x: [v / 2 for v in x])
    assert named(ex, lambda x: [sum(x) / 2]) == "halving"
