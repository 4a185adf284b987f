"""The case on which an answer failed, in words and as inputs."""

import pytest
import torch

from dlsys_checks import cases, registry
from dlsys_checks.checking import CheckFailed, check, run_check
from dlsys_helpers.verdicts import Verdict


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
