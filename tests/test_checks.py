"""Prove every check: which answers pass, which are "todo", which fail, and for which reason."""

import ast
import inspect
import os
import re
from functools import cache

import nbformat
import numpy as np
import pytest
import torch

from dlsys_checks import checking, registry
from dlsys_checks.checking import run_check
from dlsys_helpers import acting, catalog, stages
from dlsys_helpers.expect import Broken, expect_close, expect_equal
from dlsys_helpers.judging import Exercise
from dlsys_helpers.paths import EXERCISES, ROOT, SOLUTIONS
from tools import fingerprints, proof, solutions
from tools.forging import parts
from tools.nightly import mark_nightly, trusted

DRAFT = os.environ.get("DRAFT", "")  # `make test DRAFT=05`: take this stage from its draft
REGISTRY = {id: found for stage in stages.STAGES
            for id, found in registry.of_stage(stage.number).items()}
IDS = sorted(REGISTRY)


def functions_of(folder) -> dict:
    """The exercise functions of all notebooks in a folder, by id; each has its own namespace."""
    found = {}
    drafted = (ROOT / "drafts" / folder.name).glob(f"{DRAFT}_*.ipynb")
    for path in [*sorted(folder.glob("[0-9]*.ipynb")), *drafted]:
        cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
        after_setup = {"__name__": "worksheet"}
        exec("\n".join(c.source for c in cells if c.metadata.dlsys.role == "setup"), after_setup)
        for cell in cells:
            if cell.metadata.dlsys.role == "exercise":
                space = {**after_setup}
                exec(cell.source, space)
                id = cell.metadata.dlsys.trap
                found[id] = space[REGISTRY[id].function]
    return found


def fresh(id) -> bool:
    """Whether a record can replace a test; a draft is always tested in full."""
    return id[:2] != DRAFT and trusted(proof.fresh(id))


def seeds(id, all) -> range:
    """One seed if a fresh record has the results for the others, else all."""
    return range(1) if fresh(id) else range(all)


REFERENCE = functions_of(SOLUTIONS)
STUBS = functions_of(EXERCISES)
FIRST = sorted({id[:2] + ".1" for id in IDS} & set(IDS))  # of each stage
# tools.proof asks this, too. Here we ask it of stale exercises, and of the first one of each stage
# to see that the check works on this machine.
proven = pytest.mark.parametrize("id", mark_nightly(IDS, lambda id: id in FIRST or not fresh(id)))


def test_exercises_checks_and_catalog_name_the_same_ids():
    assert set(REFERENCE) == set(STUBS) == set(IDS)
    assert {id for id in IDS if id[:2] != DRAFT} == {
        t.id for t in catalog.traps() if t.id[:2] != DRAFT}


@cache
def worked_outcomes(id) -> list[acting.Outcome]:
    """What the worked answer does on the cases of seed 0, in an act made from its source alone.

    Cached for two tests: that the outcomes are right, and that no input contained them.
    """
    lonely = acting.load_act(acting.act_source(REGISTRY[id].act_fn))
    with acting.standard_session():  # outer, so that entering it again for each case is cheap
        return [acting.run_act(lonely, REFERENCE[id], case)
                for case in proof.exercise_with_cases(id, 0)[1]]


@proven
def test_reference_passes_on_many_seeds(id):
    verdict = REGISTRY[id].first_failure(proof.exercise_with_cases(id, 0)[1], worked_outcomes(id))
    assert verdict.status == "pass", verdict
    if not fresh(id):
        verdict = run_check(id, REFERENCE[id], range(proof.RIGHT_SEEDS))
        assert verdict.status == "pass", verdict


@pytest.mark.parametrize("id", IDS)
def test_stub_is_todo(id):
    assert run_check(id, STUBS[id]).status == "todo"


@proven
def test_wrong_answer_fails_for_its_own_reason_on_every_seed(id):
    """If the record is fresh, run every third, up to its first failure, to try the check here.

    The first one of each stage is judged on all cases of one seed and named among the others.
    """
    found = []
    for place, (wrong, named) in enumerate(proof.all_wrong(id)):
        if not fresh(id) or (id in FIRST and place == 0):
            lines = proof.complaints(id, wrong, seeds(id, proof.WRONG_SEEDS), named)
        else:
            lines = proof.first_complaints(id, wrong) if place % 3 == 0 else ()
        found += [f"{wrong.name}: {line}" for line in lines]
    assert not found, "\n".join(found)


# ---- promises: every word of a docstring belongs to one

@pytest.mark.parametrize("id", IDS)
def test_promises_cover_the_docstring(id):
    """Together the promises are the docstring, word for word."""
    assert proof.unpromised(REGISTRY[id], REFERENCE[id].__doc__) == []


@pytest.mark.parametrize("id", IDS)
def test_each_promise_has_its_cases_and_an_answer_that_breaks_it_alone(id):
    exercise = REGISTRY[id]
    names = {case.name for case in proof.exercise_with_cases(id, 0)[1]}
    keys = [promise.key for promise in exercise.promises]
    assert len(set(keys)) == len(keys)
    for promise in exercise.promises:
        assert promise.cases or promise.says, f"{promise.key}: neither case nor phrase decides it"
        assert set(promise.cases) <= names, f"{promise.key}: {set(promise.cases) - names}"
    lonely = set(keys) - {w.breaks[0] for w, _ in proof.all_wrong(id) if len(w.breaks) == 1}
    assert not lonely, f"no wrong answer breaks this alone: {', '.join(sorted(lonely))}"


@proven
def test_right_answers_by_other_routes_pass(id):
    """If the record is fresh, they share the cases of one seed, and each runs on its part."""
    rights = solutions.with_kept_answers(id).right_answers
    assert len(rights) >= 4, f"{len(rights)} other right answers, expected at least 4"
    for place, (route, fn) in enumerate(rights.items()):
        verdict = proof.failure(id, fn, slice(place, None, len(rights))) if fresh(id) else (
            run_check(id, fn, range(proof.RIGHT_SEEDS)))
        assert verdict.status == "pass", (route, verdict)


def named(id):
    """The verdict on the first wrong answer, with the name of the mistake."""
    return run_check(id, REGISTRY[id].wrong_answers[0].fn, [0])


@pytest.mark.parametrize(("place", "session"), [*enumerate(proof.SESSIONS)])
def test_the_session_changes_no_verdict(place, session):
    """One setting at a time, each on the first exercise of three stages."""
    tried = FIRST[place::len(proof.SESSIONS)]
    assert [line for id in tried for line in proof.changed_verdicts(id, [session])] == []


def test_a_session_with_all_settings_changed_changes_no_verdict():
    """Try the first exercise of each stage and the stale ones; the proof has tried all.

    Naming a mistake costs most, so only three stages try it.
    """
    asked = {*FIRST, *(id for id in IDS if not fresh(id))}
    assert [line for id in sorted(asked)
            for line in proof.changed_verdicts(id, proof.SESSIONS)] == []
    names = {id: named(id) for id in FIRST[::5]}
    with acting.standard_session():
        proof.change_session(proof.SESSIONS)
        assert {id: named(id) for id in names} == names


def test_a_standard_session_leaves_no_device_mode_behind():
    """Without a default device, torch keeps no mode that every later call goes through."""
    modes = torch.overrides._len_torch_function_stack()
    assert torch.get_default_device() == torch.device("cpu")
    with acting.standard_session():
        torch.set_default_device("meta")
    assert torch.get_default_device() == torch.device("cpu")
    assert torch.overrides._len_torch_function_stack() == modes


@pytest.mark.parametrize("id", IDS)
def test_at_least_four_named_wrong_answers(id):
    names = [w.name for w in REGISTRY[id].wrong_answers]
    assert len(names) >= 4
    assert len(set(names)) == len(names)


@proven
def test_law_compares_shape_dtype_and_values_of_everything_it_receives(id):
    """All cases if the record is stale, else the first."""
    cases = proof.exercise_with_cases(id, 0)[1]
    some = cases[:1] if fresh(id) else cases
    assert list(proof.accepted_corruptions(id, REFERENCE[id], some)) == []


@proven
def test_no_function_of_a_check_passes_as_it_stands(id):
    """A class gets the check's file. If the record is fresh, the proof has tried all functions."""
    found = [] if fresh(id) else list(proof.passing_functions(id))
    assert not found, "\n".join(found)


CONSTANTS = [None, 0, 0.0, True, "", [], {}, torch.zeros(()), torch.ones(1), float("nan"), object()]


@pytest.mark.parametrize("id", IDS)
def test_constant_answers_fail(id):
    exercise, cases = proof.exercise_with_cases(id, 0)
    passed = [answer for answer in CONSTANTS if not any(
        exercise.run(lambda *a, answer=answer, **k: answer, case)[1].status in {"wrong", "error"}
        for case in cases)]
    assert passed == []


@pytest.mark.parametrize("id", IDS)
def test_same_seed_same_cases_other_seed_other_cases(id):
    exercise = REGISTRY[id]

    def inputs(seed):
        return [case.inputs for case in exercise.arrange(seed)]
    assert acting.same(inputs(3), inputs(3))
    assert not acting.same(inputs(3), inputs(4))


@pytest.mark.parametrize("id", IDS)
def test_cases_are_plain_data(id):
    def plain(value):
        if isinstance(value, list | tuple):
            return all(map(plain, value))
        if isinstance(value, dict):
            return all(type(k) is str and plain(v) for k, v in value.items())
        return value is None or type(value) in (bool, int, float, str, torch.Tensor)
    assert all(plain(case.inputs) for case in proof.exercise_with_cases(id, 0)[1])


@pytest.mark.parametrize("id", IDS)
def test_every_input_of_an_act_is_known(id):
    for case in proof.exercise_with_cases(id, 0)[1]:
        assert set(case.inputs) == set(REGISTRY[id].seen)


@pytest.mark.parametrize("id", IDS)
def test_no_input_holds_what_comes_out(id):
    """If an input contained a tensor or text of the right outcome, no answer would be needed.

    An empty tensor gives nothing away.
    """
    kept = set(REGISTRY[id].kept)
    for case, outcome in zip(proof.exercise_with_cases(id, 0)[1], worked_outcomes(id), strict=True):
        given = [v for _, v in parts(case.inputs) if type(v) in (str, torch.Tensor)]
        given += [key for _, v in parts(case.inputs) if type(v) is dict for key in v]
        for path, leaf in parts(outcome.value):
            told = type(leaf) is str or (type(leaf) is torch.Tensor and leaf.numel())
            if told and not kept & set(path):
                assert not any(acting.same(leaf, other) for other in given), path


@pytest.mark.parametrize("id", IDS)
def test_act_stands_alone(id):
    """Its source goes to a sandbox that has no laws. The worked answer's test shows that it runs
    from its source alone.
    """
    source = acting.act_source(REGISTRY[id].act_fn)
    assert fingerprints.used_modules(source) <= {*proof.ACTS}
    assert proof.names_a_sandbox_lacks(id) == []


def bodies(tree) -> set[str]:
    """Each function's body without its docstring, as normalized source."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            rest = node.body[1:] if ast.get_docstring(node) else node.body
            found.add("\n".join(map(ast.unparse, rest)))
    return found


def trusted_bodies(path) -> set[str]:
    """Bodies of the functions that are neither wrong answers nor edited into wrong ones."""
    tree = ast.parse(path.read_text("utf-8"))
    edited = {call.args[0].id for call in ast.walk(tree)
              if isinstance(call, ast.Call) and ast.unparse(call.func) == "ex.edits"}
    answers = [n for n in tree.body if isinstance(n, ast.FunctionDef) and (n.name in edited or any(
        ast.unparse(d).startswith("ex.wrong") for d in n.decorator_list))]
    for node in answers:
        tree.body.remove(node)
    return bodies(tree)


@pytest.mark.parametrize("path", sorted(SOLUTIONS.glob("[0-9]*.ipynb")), ids=lambda p: p.stem)
def test_no_check_holds_the_reference_as_its_expected_value(path):
    cells = [c.source for c in nbformat.read(path, as_version=4).cells
             if c.cell_type == "code" and c.metadata.dlsys.role == "exercise"]
    answers = set().union(*(bodies(ast.parse(source)) for source in cells))
    folder = ROOT / f"src/dlsys_checks/s{path.stem[:2]}"
    checks = set().union(*map(trusted_bodies, folder.glob("*.py")))
    assert checks
    assert not answers & checks


def test_stubs_hold_no_answer():
    for path in EXERCISES.glob("[0-9]*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            assert "SOLUTION" not in cell.source
            assert not cell.get("outputs")
            if cell.cell_type == "code" and cell.metadata.dlsys.role == "exercise":
                last = ast.parse(cell.source).body[-1].body[-1]
                assert isinstance(last, ast.Raise | ast.FunctionDef)


# The framework itself, on a made-up exercise ---------------------------------------------------

def doubling() -> Exercise:
    ex = Exercise("99.1", "double")
    ex.cases(lambda g: [("three numbers", {"x": torch.randn(3, generator=g)})])
    ex.law(lambda out, x: expect_close("result", out, 2 * x))
    ex.wrong("tripling", says="result")(lambda x: 3 * x)
    return ex


def verdict_on(fn, ex=None):
    ex = ex or doubling()
    cases = ex.arrange(0)
    return ex.judge(cases, ex.outcomes(fn, cases))


def test_right_wrong_and_named():
    assert verdict_on(lambda x: x + x).status == "pass"
    assert verdict_on(lambda x: 3 * x).misconception == "tripling"
    unknown = verdict_on(lambda x: 5 * x)
    assert (unknown.status, unknown.misconception) == ("wrong", "")
    assert re.search(r"result: got .* expected ", unknown.message)


def test_an_exception_is_reported_with_type_and_case():
    verdict = verdict_on(lambda x: x + torch.zeros(4, 5))
    assert verdict.status == "error"
    assert "RuntimeError" in verdict.message
    assert "three numbers" in verdict.message


def test_an_answer_that_changes_its_inputs_fails():
    def in_place(x):
        x *= 2
        return x.clone()
    verdict = verdict_on(in_place)
    assert verdict.status == "wrong"
    assert "x changed" in verdict.message


# Changes that a function can leave on its input tensor without changing a value.
TRACES = {
    "requires_grad": lambda x: x.requires_grad_(),
    "grad": lambda x: setattr(x, "grad", torch.ones(3)),
    "hooks": lambda x: (x.requires_grad_().register_hook(print), x.requires_grad_(False)),
    "class": lambda x: setattr(x, "__class__", torch.nn.Parameter),
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("trace", TRACES)
def test_a_trace_on_an_input_counts_where_the_docstring_promises_none(trace, nested):
    def answer(x):
        TRACES[trace](x[0]["x"] if nested else x)
        return 2 * (x[0]["x"] if nested else x).detach()
    ex = doubling()
    if nested:
        ex.act(lambda fn, x: fn([{"x": x.clone()}]))
    assert verdict_on(answer, ex).status == "pass"
    ex.promise("shape", "It has the shape of x.", says=("shape",))
    assert verdict_on(answer, ex).status == "pass"
    ex.promise("left alone", "x is unchanged.", says=("values that changed",))
    verdict = verdict_on(answer, ex)
    assert verdict.message == (f"inputs after the call: got {trace} of argument 1 changed, "
                               "expected no change. Work on a detached copy.")
    assert [p.key for p in ex.promises if p.decides(verdict)] == ["left alone"]
    assert verdict_on(lambda x: 2 * (x[0]["x"] if nested else x), ex).status == "pass"


def test_a_trace_that_is_taken_back_or_on_a_tensor_meant_to_be_written_is_none():
    def there_and_back(x):
        y = 2 * x.requires_grad_()
        y.sum().backward()
        x.grad = None
        x.requires_grad_(False)
        return y.detach()

    ex = doubling()
    ex.promise("left", "x is unchanged.")
    assert verdict_on(there_and_back, ex).status == "pass"
    written = verdict_on(lambda x: 2 * x.mul_(1).requires_grad_().detach(), ex)
    assert "got requires_grad of argument 1 changed" in written.message
    ex.may_change = ("x",)
    ex.law(lambda out, x: expect_close("result", out, x))
    assert verdict_on(lambda x: x.mul_(1).requires_grad_().detach(), ex).status == "pass"


def test_a_float64_of_numpy_is_a_float_and_any_other_number_of_numpy_is_none():
    assert type(acting.to_plain(np.float64(0.5))) is float
    assert acting.to_plain([np.float64(0.5), {np.str_("a"): np.str_("b")}]) == [0.5, {"a": "b"}]
    for number, kind in [(np.float32(1), float), (np.int64(1), int), (np.bool_(1), bool)]:
        with pytest.raises(Broken, match=rf"got numpy.{type(number).__name__}, expected "
                           rf"{kind.__name__}. Convert a numpy number with .item"):
            expect_equal("number", acting.to_plain(number), kind(1))


def test_an_act_sees_the_float_that_numpy_calls_float64():
    ex = Exercise("99.2", "norm")
    ex.cases(lambda g: [("three numbers", {"x": torch.randn(3, generator=g)})])
    ex.act(lambda fn, x: type(fn(x)).__name__)
    ex.law(lambda out, x: expect_equal("type", out, "float"))
    assert verdict_on(lambda x: np.linalg.norm(x.double().numpy()), ex).status == "pass"
    assert verdict_on(lambda x: np.float32(1), ex).status == "wrong"


def test_a_number_that_equals_everything_is_foreign():
    class Liar(float):
        def __eq__(self, other):
            return True

        __hash__ = float.__hash__
    with pytest.raises(Broken, match="Liar"):
        expect_equal("number", acting.to_plain(Liar(1.0)), 1.0)


def test_a_huge_integer_is_described_not_printed():
    with pytest.raises(Broken, match=r"an integer of 16610 bits"):
        expect_equal("count", 10**5000, 3)


def test_global_state_is_put_back():
    def careless(x):
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1 + torch.get_num_threads())
        torch.manual_seed(7)
        torch.use_deterministic_algorithms(True)
        return x * 2
    before = (torch.get_num_threads(), torch.get_rng_state())
    assert verdict_on(careless).status == "pass"
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_law_that_stumbles_still_says_wrong_and_admits_the_accident():
    ex = doubling()
    ex.law(lambda out, x: out["missing"])
    verdict = verdict_on(lambda x: x, ex)
    assert verdict.status == "wrong"
    assert verdict.accident


@pytest.mark.parametrize(("got", "expected"), [
    (torch.ones(1, 3), torch.ones(3)), (torch.ones(1), torch.ones(3)),
    (torch.ones(3, dtype=torch.float64), torch.ones(3)), (torch.tensor([1, float("nan"), 1]),
                                                          torch.ones(3)),
    (1, 1.0), (True, 1), (float("nan"), float("nan")), ("1", 1.0)])
def test_close_forgives_neither_shape_nor_dtype_nor_nan(got, expected):
    with pytest.raises(Broken):
        expect_close("value", got, expected)


def test_check_refuses_an_unknown_exercise_and_a_result_instead_of_a_function():
    with pytest.raises(ValueError, match=r"01\.1"):
        run_check("01.99", len)
    assert "without brackets" in run_check("01.4", 3).message


def test_check_shows_a_card_records_and_raises_one_line(monkeypatch, capsys):
    recorded = []
    monkeypatch.setattr("dlsys_helpers.progress.record", lambda *a: recorded.append(a))
    with pytest.raises(checking.CheckFailed) as failed:
        checking.check("01.4", lambda h: int((h == 0).all(1).sum()))
    assert recorded == [("01.4", "wrong", "counting rows instead of units")]
    assert failed.value._render_traceback_() == [str(failed.value)]
    shown = capsys.readouterr().out
    assert "counting rows instead of units" in shown
    assert "Hint: First compare with zero" in shown
    checking.check("01.4", REFERENCE["01.4"])
    assert "passed" in capsys.readouterr().out


def test_wrong_answers_are_functions_of_this_package():
    for id in IDS:
        for wrong in REGISTRY[id].wrong_answers:
            fn = getattr(wrong.fn, "func", wrong.fn)
            assert inspect.getmodule(fn).__name__.startswith("dlsys_checks.")
