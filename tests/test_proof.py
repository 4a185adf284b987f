"""The proof of a check: what it finds, what its record depends on, and when tests rely on it."""


import pytest
import torch

from dlsys_checks import registry
from dlsys_helpers import acting, judging
from dlsys_helpers.expect import expect_close
from tools import fingerprints, probes, proof, records, solutions

ID = "99.1"
ANSWER = "def double(x):\n    return 2 * x\n"


def forget():
    for kept in (proof.fresh, proof.has_fresh_feedback, proof.exercise_with_cases,
                 proof.with_remembered_runs, probes.derived):
        kept.cache_clear()


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """An exercise with one named wrong answer that passes its proof."""
    ex = judging.Exercise(ID, "double")
    ex.cases(lambda g: [("two", {"x": 2.0}), ("three", {"x": 3.0})])

    def law(out, x):
        expect_close("result", out, 2 * x)
    law.__module__ = "dlsys_checks.s01.e1_predict"
    ex.law(law)
    ex.promise("twice", "Twice x.")
    ex.wrong("tripling", says="result", trap="01.1", breaks="twice")(lambda x: 3 * x)
    ex.right("a sum")(lambda x: x + x)
    monkeypatch.setitem(registry.REGISTRY, ID, ex)
    monkeypatch.setattr(solutions, "answers", lambda stage: {ID: ("", ANSWER)})
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    forget()
    yield ex
    forget()


def found(seeds=2):
    return proof.prove(ID, seeds)[1]


@pytest.mark.parametrize("text", ["import torch\n\nmissing\n", "import torch\n\nx = (\n"])
def test_a_file_that_cannot_be_imported_is_named_with_its_line(text, toy, tmp_path, monkeypatch):
    folder = tmp_path / "tests/right_answers"
    (folder / "s01").mkdir(parents=True)
    (folder / "s01/e1_predict.py").write_text(text, "utf-8")
    monkeypatch.setattr(solutions, "RIGHT_ANSWERS", folder)
    for _ in range(2):  # it is refused again: no cache counts it as read
        with pytest.raises(SystemExit, match=r"s01/ cannot be imported: e1_predict\.py, line 3: "):
            solutions.with_kept_answers(ID)


def test_an_unknown_exercise_is_told_the_known_ones():
    with pytest.raises(ValueError, match=r"got '01\.99', expected one of 01\.1"):
        solutions.with_kept_answers("01.99")


def test_a_sound_check_is_proven(toy):
    facts, lines = proof.prove(ID, 3)
    assert lines == []
    assert facts["right"] == {"answers": 2, "seeds": 3}
    assert facts["wrong"]["answers"] == 1
    assert list(facts["told"]) == ["tripling"]
    assert "result" in facts["told"]["tripling"]
    assert facts["mutants"]["killed"] == facts["mutants"]["mutants"] >= 3


def test_a_right_answer_that_is_refused_is_found(toy):
    toy.right("with an offset that rounding does not explain")(lambda x: 2 * x + 1e-3)
    assert any("with an offset" in line and "seed 0" in line for line in found())


@pytest.mark.parametrize(("name", "fn", "says", "breaks", "complaint"), [
    ("a pass", lambda x: 2 * x, "result", "twice", "is not wrong"),
    ("another phrase", lambda x: 5 * x, "shape", "twice", "does not say 'shape'"),
    ("no such promise", lambda x: 7 * x, "result", "thrice", "of which no promise"),
    ("no promise at all", lambda x: 8 * x, "result", (), "of which no promise"),
])
def test_a_wrong_answer_that_is_not_what_it_claims_is_found(toy, name, fn, says, breaks, complaint):
    toy.wrong(name, says=says, trap="01.1", breaks=breaks)(fn)
    assert any(name in line and complaint in line for line in found())
    assert any(complaint in line for line in proof.first_complaints(ID, toy.wrong_answers[-1]))


def test_a_glance_at_what_is_wrong_by_its_own_promise_finds_nothing(toy):
    assert list(proof.first_complaints(ID, toy.wrong_answers[0])) == []


def test_a_glance_goes_no_further_than_the_first_failure(toy):
    seen = []
    toy.wrong("counted", says="result", trap="01.1", breaks="twice")(
        lambda x: seen.append(x) or 3 * x + (x == 2.0))
    assert list(proof.first_complaints(ID, toy.wrong_answers[-1])) == []
    assert seen == [2.0]


def test_two_wrong_answers_that_look_alike_are_found(toy):
    toy.wrong("tripling again", says="result", trap="01.1", breaks="twice")(lambda x: x + x + x)
    assert any("has not its name" in line for line in found())


def test_a_case_that_fails_by_another_promise_is_found(toy):
    toy.promise("for three", "Three, too.", cases=("three",))
    toy.wrong("on all", says="result", trap="01.1", breaks="for three")(lambda x: 9 * x)
    assert any("'two'" in line and "not by what it breaks" in line for line in found())


def test_a_law_that_forgets_the_dtype_is_found(toy):
    def careless(out, x):
        expect_close("result", float(out), 2 * x)
    careless.__module__ = toy.law_fn.__module__
    toy.law(careless)
    assert any("text at () is accepted" in line for line in found())


def test_an_act_that_would_not_run_alone_is_found(toy):
    toy.act(lambda fn, x: (ID, fn(x))[1])
    assert any("the grader's sandbox lacks ID" in line for line in found())


def test_a_mutant_that_lives_is_found(toy):
    toy.cases(lambda g: [("zero", {"x": 0.0})])
    assert any("mutant lives" in line for line in found())


def test_a_record_is_fresh_until_the_answer_changes(toy, monkeypatch):
    assert not proof.fresh(ID)
    proof.write(ID, proof.prove(ID, 1)[0])
    proof.fresh.cache_clear()
    assert proof.fresh(ID)
    monkeypatch.setattr(solutions, "answers", lambda stage: {ID: ("", ANSWER.replace("2", "2.0"))})
    proof.fresh.cache_clear()
    assert not proof.fresh(ID)


@pytest.mark.parametrize("module", [*proof.ENGINE, "dlsys_checks.s01.e1_predict"])
def test_a_record_rests_on_the_engine_and_the_exercises_file(toy, monkeypatch, module):
    before, read = proof.rests_on(ID), fingerprints.source
    monkeypatch.setattr(fingerprints, "source", lambda name: read(name) + (
        "\nCHANGED = 1\n" if name == module else ""))
    assert proof.rests_on(ID) != before


def test_a_record_rests_on_what_its_act_imports(monkeypatch):
    before, read = {id: proof.rests_on(id) for id in ("15.1", "15.2")}, fingerprints.source
    monkeypatch.setattr(fingerprints, "source", lambda name: read(name) + (
        "\nCHANGED = 1\n" if name in proof.ACTS else ""))
    assert proof.rests_on("15.1") != before["15.1"]
    assert proof.rests_on("15.2") == before["15.2"]


def test_a_record_does_not_rest_on_comments(toy, monkeypatch):
    before, read = proof.rests_on(ID), fingerprints.source
    monkeypatch.setattr(fingerprints, "source", lambda name: read(name) + "\n# a remark\n")
    assert proof.rests_on(ID) == before


@pytest.mark.parametrize(("old", "new", "verdicts_change"), [
    ('"Work on a copy."', '"Copy it first."', False),
    ('Broken(CHANGED, f"{\', \'.join(traces)} changed", "no change",\n'
     '                         "Work on a detached copy.")',
     'Broken(CHANGED,\n                         f"{\', \'.join(traces)} changed", "none", "Copy.")',
     False),
    ('"raised"', '"threw"', True),
    ("rel_tol=within", "rel_tol=2 * within", True),
])
def test_a_word_in_a_message_makes_no_verdict_stale(toy, monkeypatch, old, new, verdicts_change):
    before, words, read = proof.rests_on(ID), proof.words_of(ID), fingerprints.source
    assert old in read("dlsys_helpers.judging")
    monkeypatch.setattr(fingerprints, "source", lambda name: read(name).replace(old, new))
    assert (proof.rests_on(ID) != before) == verdicts_change
    assert proof.words_of(ID) != words


def test_what_only_chooses_the_name_of_a_mistake_makes_nothing_stale(toy, monkeypatch):
    before, words, read = proof.rests_on(ID), proof.words_of(ID), fingerprints.source
    source = read("dlsys_helpers.judging")
    assert all(f"def {name}(" in source or f"{name} = (" in source for name in proof.NAMING)
    changed = source.replace("return all(alike)", "return any(alike)")
    monkeypatch.setattr(fingerprints, "source", lambda name: (
        changed if name == "dlsys_helpers.judging" else read(name)))
    assert changed != source
    assert (proof.rests_on(ID), proof.words_of(ID)) == (before, words)


def test_where_only_words_changed_what_is_told_is_made_anew(toy, monkeypatch):
    facts = proof.prove(ID, 2)[0]
    proof.write(ID, {**facts, "told": {"tripling": "old words"}, "words": "of yesterday"})
    assert proof.fresh(ID)
    assert not proof.has_fresh_feedback(ID)
    assert proof.refresh_feedback(ID) == (facts, [])


def test_a_probe_must_fail_and_names_nobody(toy):
    toy.probe("odd", lambda x: 5 * x, breaks="twice")
    assert found() == []
    toy.probe("right after all", lambda x: x + x, breaks="twice")
    assert any("right after all: seed 0: is not wrong" in line for line in found())
    verdict = toy.judge(toy.arrange(0), toy.outcomes(lambda x: 5 * x, toy.arrange(0)))
    assert (verdict.status, verdict.misconception) == ("wrong", "")


def test_probes_are_derived_where_nothing_registered_breaks_a_promise_alone(toy):
    """One promise for the example's case, and one that the inputs stay unchanged."""
    toy.cases(lambda g: [("three", {"x": torch.tensor([3.0])}),
                         ("the example", {"x": torch.tensor([2.0])})])
    toy.promise("example", "Example: 2 gives 4.", cases=("the example",))
    toy.promise("left alone", "x stays.", says=("inputs after the call",))
    derived = {probe.breaks[0]: probe.fn for probe in probes.derived(ID)}
    assert [derived["example"](torch.tensor([x])).item() for x in (2.0, 3.0)] == [5, 6]
    given = torch.tensor([3.0])
    assert (derived["left alone"](given).item(), given.item()) == (6, 4)
    assert [one.breaks for one, _ in proof.all_wrong(ID)] == [
        ("twice",), ("example",), ("left alone",)]
    assert [line for one, named in proof.all_wrong(ID)[1:]
            for line in proof.complaints(ID, one, range(2), named)] == []
    probes.derived.cache_clear()
    toy.probe("looked up", lambda x: 2 * x + (x == 2), breaks="example")
    assert len(proof.all_wrong(ID)) == 3


def test_what_is_right_in_a_check_is_no_answer(monkeypatch):
    guarded = judging.not_an_answer(lambda x, *, factor=2: factor * x)
    ex = judging.Exercise(ID, "double")
    ex.cases(lambda g: [("two", {"x": guarded(2.0)})])
    ex.law(lambda out, x: expect_close("result", out, guarded(x)))
    ex.wrong("tripling", guarded, factor=3.0)
    cases = ex.arrange(0)
    stolen = ex.judge(cases, ex.outcomes(guarded, cases))
    assert stolen.status == "error"
    assert "no answer" in stolen.message
    assert ex.judge(cases, ex.outcomes(lambda x: 3 * x, cases)).misconception == "tripling"
    assert ex.judge(cases, ex.outcomes(lambda x: 2 * x, cases)).status == "pass"


def test_an_answer_that_comes_late_after_another_failure_has_the_first_one(toy):
    cases = toy.arrange(0)
    outcomes = [acting.Outcome("value", 6.0), acting.Outcome("late", error="ran longer than 1 s")]
    assert "result" in toy.judge(cases, outcomes).message
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        toy.judge(cases, [acting.Outcome("value", 4.0)])


def test_looking_for_functions_that_pass_registers_no_exercise():
    """A check's file imports `exercise`: called as an answer, it once took a model as an id."""
    known = set(registry.load_all())
    assert list(proof.passing_functions("01.3")) == []
    assert set(registry.REGISTRY) == known


def test_the_records_name_what_the_registry_holds():
    """A fresh record has the same counts as the exercise."""
    for id in registry.load_all():
        facts, exercise = proof.RECORD.entry(id), solutions.with_kept_answers(id)
        if facts and proof.fresh(id):
            assert facts["right"]["answers"] == 1 + len(exercise.right_answers), id
            assert facts["wrong"]["answers"] == len(proof.all_wrong(id)), id
            assert facts["right"]["seeds"] >= proof.RIGHT_SEEDS, id


def test_writing_one_exercise_keeps_the_others(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    monkeypatch.setattr(solutions, "answers", lambda stage: {"01.1": (), "01.2": ()})
    proof.RECORD.write_all({"01.1": {"a": 1}, "01.9": {}}, "01")
    proof.write("01.2", {"rests_on": {}, "b": 2})
    assert proof.RECORD.entries("01") == {"01.1": {"a": 1}, "01.2": {"rests_on": {}, "b": 2}}

