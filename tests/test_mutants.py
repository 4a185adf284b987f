"""Mutants of the worked answers die, or the exercise's file says why they are right."""

import pytest

from dlsys_helpers import checking
from dlsys_helpers.expect import expect_close
from tools import mutants

REGISTRY = checking.load_all()


@pytest.fixture(scope="module", params=mutants.stages())
def record(request):
    """A stage's record; where it is out of date, the mutants are tried now."""
    kept = mutants.stored(request.param)
    fresh = kept.get("rests_on") == mutants.rests_on(request.param)
    return kept if fresh else mutants.record(request.param)


def test_no_mutant_survives_without_a_reason(record):
    assert {id: facts["unexplained"] for id, facts in record["exercises"].items()
            if facts["unexplained"]} == {}


def test_no_reason_stands_for_a_mutant_that_dies(record):
    assert {id: facts["not_needed"] for id, facts in record["exercises"].items()
            if facts["not_needed"]} == {}


def test_every_answer_has_mutants_and_the_counts_add_up(record):
    for id, facts in record["exercises"].items():
        assert facts["mutants"] >= 3, id
        assert facts["mutants"] == facts["killed"] + len(facts["equivalent"]) + len(
            facts["unexplained"])
        assert all(REGISTRY[id].equivalents[name].strip() for name in facts["equivalent"])


def test_each_kind_of_change_is_made():
    source = ("def f(a, state):\n    x = a.sum(0) + 2\n    for b in a:\n        x -= b\n"
              "    if x > 1.5 and a is not None:\n        return x, -x\n    return max(x, 1)\n")
    names = {name for name, _ in mutants.mutants(source)}
    for wanted in ("x = a.sum(0) + 2 -> dropped", "x = a.sum(0) + 2 -> x = a.mean(0) + 2",
                   "x = a.sum(0) + 2 -> x = a.sum(1) + 2", "x = a.sum(0) + 2 -> x = a.sum(0) - 2",
                   "x = a.sum(0) + 2 -> x = a.sum(0)", "x -= b -> x += b", "x -= b -> x = b",
                   "for b in a: -> for b in list(a)[:1]:", "return (x, -x) -> return (-x, x)",
                   "return (x, -x) -> return (x, x)", "return max(x, 1) -> return max(1, x)",
                   "if x > 1.5 and a is not None: -> if x >= 1.5 and a is not None:",
                   "if x > 1.5 and a is not None: -> if x > 3.0 and a is not None:",
                   "if x > 1.5 and a is not None: -> if x > 1.5 or a is not None:",
                   "if x > 1.5 and a is not None: -> if True:",
                   "the result of the first call kept", "one state for all"):
        assert wanted in names


def test_a_check_with_a_hole_lets_a_mutant_live():
    """Cases that are all positive cannot tell abs(x) from x."""
    ex = checking.Exercise("99.1", "f")
    ex.cases(lambda g: [("positive", {"x": 2.0})])
    ex.law(lambda out, x: expect_close("result", out, x))
    found = {name: mutants.fate(ex, code, [ex.arrange(0)])
             for name, code in mutants.mutants("def f(x):\n    return abs(x) * 1\n")}
    assert found["return abs(x) * 1 -> return x * 1"] == "survived"
