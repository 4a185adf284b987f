"""Mutants of the worked answers die, or the exercise's file says why they are right."""

import pytest

from dlsys_helpers import judging
from dlsys_helpers.expect import expect_close
from tools import mutants, proof, solutions
from tools.nightly import trusted

IDS = [id for stage in solutions.stages() for id in solutions.answers(stage)]


@pytest.fixture(scope="module", params=IDS)
def tried(request):
    """The fates of an exercise's mutants; if the record is stale, they are tried now."""
    id = request.param
    if id[:2] != solutions.DRAFT and trusted(proof.fresh(id)):
        return id, proof.RECORD.entry(id)["mutants"]
    solutions.with_kept_answers(id)
    return id, mutants.tried(id, *solutions.answers(id[:2])[id])


def test_mutants_die_or_have_a_reason_and_the_counts_add_up(tried):
    id, facts = tried
    assert not facts["unexplained"], "\n".join([
        "a case must refuse each of these, or ex.equivalent(mutant, why) say that it is right:",
        *facts["unexplained"]])
    assert not facts["not_needed"], f"drop these ex.equivalent: {facts['not_needed']}"
    assert facts["mutants"] >= 3
    assert facts["mutants"] == facts["killed"] + len(facts["equivalent"])
    known = solutions.with_kept_answers(id).equivalents
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
    ex = judging.Exercise("99.1", "f")
    ex.cases(lambda g: [("positive", {"x": 2.0})])
    ex.law(lambda out, x: expect_close("result", out, x))
    found = {name: mutants.fate(ex, code, [ex.arrange(0)])
             for name, code in mutants.mutants("def f(x):\n    return abs(x) * 1\n")}
    assert found["return abs(x) * 1 -> return x * 1"] == "survived"


def test_the_draft_that_is_asked_for_is_read_and_no_other(tmp_path, monkeypatch):
    for name in ("01_activations", "02_backpropagation"):  # with another stage's answers
        (tmp_path / f"{name}.ipynb").write_text(
            (solutions.SOLUTIONS / "03_losses.ipynb").read_text("utf-8"), "utf-8")
    monkeypatch.setattr(solutions, "DRAFTED", tmp_path)
    monkeypatch.setattr(solutions, "DRAFT", "01")
    assert solutions.answers("01") == solutions.answers("03")
    assert {id[:2] for id in solutions.answers("02")} == {"02"}


@pytest.mark.parametrize(("draft", "command"), [("99", "LESSON=99 DRAFT=1"), ("", "LESSON=99")])
def test_answers_that_were_not_built_are_asked_for(monkeypatch, draft, command):
    monkeypatch.setattr(solutions, "DRAFT", draft)
    with pytest.raises(SystemExit, match=f"stage 99: no worked .* Run: make build {command}$"):
        solutions.answers("99")
