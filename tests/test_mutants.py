"""Mutants of the worked answers die, or the exercise's file says why they are right."""

import os

import pytest

from dlsys_helpers import checking
from dlsys_helpers.expect import expect_close
from tools import mutants, proof, worked

DRAFT = os.environ.get("DRAFT", "")  # `make test DRAFT=05`: the answers of this draft as well
IDS = [id for stage in sorted({*worked.stages(), DRAFT} - {""}) for id in worked.answers(stage)]


@pytest.fixture(scope="module", params=IDS)
def tried(request):
    """What became of an exercise's mutants; where the record is stale, they are tried now."""
    id = request.param
    if id[:2] != DRAFT and proof.fresh(id):
        return id, proof.stored(id[:2])[id]["mutants"]
    return id, mutants.tried(id, *worked.answers(id[:2])[id])


def test_mutants_die_or_have_a_reason_and_the_counts_add_up(tried):
    id, facts = tried
    assert not facts["unexplained"], "\n".join([
        "a case must refuse each of these, or ex.equivalent(mutant, why) say that it is right:",
        *facts["unexplained"]])
    assert not facts["not_needed"], f"drop these ex.equivalent: {facts['not_needed']}"
    assert facts["mutants"] >= 3
    assert facts["mutants"] == facts["killed"] + len(facts["equivalent"])
    known = checking.find(id).equivalents
    assert all(known[name].strip() for name in facts["equivalent"])


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


def test_worked_answers_of_a_draft_are_found_and_none_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(worked, "DRAFTED", tmp_path)
    with pytest.raises(SystemExit, match="stage 13: no worked answers"):
        worked.answers("13")
    (tmp_path / "13_x.ipynb").write_text((worked.SOLUTIONS / "01_activations.ipynb").read_text())
    assert worked.answers("13") == worked.answers("01")
