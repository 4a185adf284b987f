"""The case in which an answer failed, in words and as inputs."""

import inspect
import re

import pytest
import torch
from torch import nn

from dlsys_checks import cases, registry
from dlsys_checks.checking import CheckFailed, check, run_check
from dlsys_helpers.verdicts import Verdict
from tools import solutions


def over_rows(logits, kind):
    return torch.softmax(logits, 0)


def test_a_card_says_which_case_failed_and_how_to_look_at_it(capsys):
    with pytest.raises(CheckFailed):
        check("01.2", over_rows)
    assert 'The case: "one column, binary" (logits = a float32 tensor of shape (9, 1), ' \
        "kind = binary). To look at it: from dlsys_checks.cases import case; " \
        'case("01.2", "one column, binary")\n' in capsys.readouterr().out


def test_the_inputs_are_those_that_the_answer_failed_on():
    verdict = run_check("01.2", over_rows)
    inputs = cases.case("01.2", verdict.case, verdict.seed)
    right = torch.sigmoid(inputs["logits"])
    got, expected = over_rows(**inputs)[3, 0].item(), right[3, 0].item()
    assert f"got {got:.4g} at [3, 0], expected {expected:.4g}" in verdict.message


def test_a_drawn_seed_is_said_and_gives_other_inputs():
    name = "one column, binary"
    verdict = Verdict("wrong", "01.2", "got 1.", case=name, seed=7)
    assert cases.failed_case(verdict, over_rows).endswith(f'case("01.2", "{name}", seed=7)')
    first, other = (cases.case("01.2", name, seed)["logits"] for seed in (0, 7))
    assert not torch.equal(first, other)


@pytest.mark.parametrize("verdict", [
    Verdict("pass", "01.2"), Verdict("todo", "01.2", "Write the body.")])
def test_without_a_failed_case_nothing_is_said(verdict):
    assert cases.failed_case(verdict, over_rows) == ""


def test_a_function_without_a_signature_and_a_long_input_cost_no_card():
    verdict = Verdict("wrong", "01.2", "got 1.", case="one column, binary", seed=0)
    assert cases.failed_case(verdict, iter).startswith('"one column, binary". To look at it:')


def test_a_case_that_does_not_exist_is_refused_with_those_that_do():
    names = [one.name for one in registry.find("01.2").arrange(0)]
    with pytest.raises(ValueError, match="one of: ") as error:
        cases.case("01.2", "many columns of nothing")
    assert all(repr(name) in str(error.value) for name in names)


def test_a_card_names_the_arguments_that_the_check_builds_for_a_function(capsys):
    def no_gaps(model, x):
        return {}

    with pytest.raises(CheckFailed):
        check("05.1", no_gaps)
    call = re.search(r"To look at it: (from .*?); (model, x = .*)\n", capsys.readouterr().out)
    space = {}
    exec("\n".join(call.groups()), space)
    assert isinstance(space["model"], nn.Module)
    assert torch.equal(space["x"], cases.case("05.1", "a flat model")["x"])
    assert isinstance(space["model"](space["x"]), torch.Tensor)


def test_the_arguments_are_new_at_each_call():
    (first, _), (other, _) = (cases.arguments("05.1", "a flat model") for _ in range(2))
    assert first is not other
    assert all(map(torch.equal, first.parameters(), other.parameters()))


def test_a_class_and_a_function_with_the_inputs_names_are_shown_the_case():
    class Blocks:
        def __init__(self, total):
            pass

    verdict = Verdict("wrong", "13.1", "got 1.", case="take and give", seed=0)
    assert cases.failed_case(verdict, Blocks).endswith('case("13.1", "take and give")')
    assert cases.failed_case(verdict, lambda *given, **named: 0).endswith(
        'case("13.1", "take and give")')


@pytest.mark.parametrize("id", [
    "01.3", "04.2", "06.6", "07.7", "08.8", "09.11", "09.13", "10.5", "12.1", "15.6"])
def test_arguments_are_those_that_the_worksheet_names(id):
    name = registry.find(id).arrange(0)[0].name
    names = list(inspect.signature(solutions.worked(id)).parameters)
    assert len(cases.arguments(id, name)) == len(names)
