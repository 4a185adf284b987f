"""Wrong answers as edits of a right one, and promises as a table, in a check's file."""

import inspect
import traceback

import pytest
import torch

from dlsys_helpers.expect import expect_close
from dlsys_helpers.judging import Exercise, Promise, not_an_answer


def scaled(x, factor):
    return factor * x


@not_an_answer
def doubled(x):
    twice = scaled(x, 2)
    return twice


@torch.no_grad()
def doubled_without_a_graph(x):
    return 2 * x


def again(x, times=2):
    """Calls itself once for each doubling."""
    return x if times == 1 else again(x, times - 1) + x


@pytest.fixture
def ex() -> Exercise:
    found = Exercise("99.1", "double")
    found.promise("result", "Twice x.", says=("result",))
    found.cases(lambda g: [("three numbers", {"x": torch.randn(3, generator=g)})])
    found.law(lambda out, x: expect_close("result", out, 2 * x))
    return found


# ---- edits

def test_an_edit_is_a_named_wrong_answer(ex):
    wrong = ex.edits(doubled)
    wrong("tripling", "result", "(x, 2)", "(x, 3)")
    wrong("the sign lost", "result", "twice = scaled", "found = scaled",
          "return twice", "return found.abs()", says="a phrase", trap="99.2")
    first, second = ex.wrong_answers
    assert (first.name, first.breaks, first.says, first.trap) == (
        "tripling", ("result",), ("result",), "99.1")
    assert (second.says, second.trap) == (("a phrase",), "99.2")
    assert second.fn(torch.tensor([-1.0])).item() == 2.0
    cases = ex.arrange(0)
    assert ex.judge(cases, ex.outcomes(lambda x: 3 * x, cases)).misconception == "tripling"


def test_the_right_answer_stays_as_it_is_and_guarded(ex):
    ex.edits(doubled)("tripling", "result", "(x, 2)", "(x, 3)")
    with pytest.raises(RuntimeError, match="no answer"):
        doubled(1.0)
    assert inspect.unwrap(doubled)(1.0) == 2.0


def test_decorators_and_recursion_are_those_of_the_edited_function(ex):
    ex.edits(doubled_without_a_graph)("tripling", "result", "2 * x", "3 * x")
    ex.edits(again)("one more", "result", "times == 1", "times == 0")
    without_a_graph, one_more = (answer.fn for answer in ex.wrong_answers)
    assert not without_a_graph(torch.ones(1, requires_grad=True)).requires_grad
    assert one_more(1.0) == 3.0  # every call runs the edited function, not only the first


def test_source_and_tracebacks_show_the_edited_text(ex):
    ex.edits(doubled)("no number", "result", "return twice", "return twice[9]")
    fn = ex.wrong_answers[0].fn
    assert "return twice[9]" in inspect.getsource(fn)
    assert inspect.getmodule(fn).__name__ == __name__
    with pytest.raises(IndexError) as error:
        fn(torch.ones(1))
    frames = traceback.extract_tb(error.tb)  # with a default device, the last may be torch's
    assert ("<99.1, no number>", "return twice[9]") in [(f.filename, f.line) for f in frames]


def local():
    def inner(x):
        return 2 * x
    return inner


@pytest.mark.parametrize(("fn", "texts", "message"), [
    (doubled, ("x, 4", "x, 3"), "'x, 4' stands 0 times"),
    (doubled, ("twice", "thrice"), "'twice' stands 2 times"),
    (doubled, ("(x, 2)", "(x, 3)", "(x, 2)", "(x, 4)"), "'.x, 2.' stands 0 times"),
    (doubled, (), "got 0 texts"),
    (doubled, ("(x, 2)",), "got 1 texts"),
    (doubled, ("(x, 2)", "(x, 3"), "is no Python, line 3"),
    (local(), ("2", "3"), "top level"),
    (lambda x: 2 * x, ("2", "3"), "top level")])
def test_an_edit_that_cannot_be_made_names_the_mistake(ex, fn, texts, message):
    with pytest.raises(ValueError, match=f"^99.1, tripling: .*{message}"):
        ex.edits(fn)("tripling", "result", *texts)
    assert not ex.wrong_answers


# ---- promises as a table

def test_each_row_is_a_promise(ex):
    ex.promise_table("""
sum   | Twice x, | the sum; a number
sizes | of any size, | case one number; two, each with its settings
order | in memory in any order, with |x| < 1,
      | case a column
      | raised
long  | and a text that goes on
        in the next line. | finite
""")
    assert ex.promises[1:] == [
        Promise("sum", "Twice x,", (), ("the sum", "a number")),
        Promise("sizes", "of any size,", ("one number", "two, each with its settings"), ()),
        Promise("order", "in memory in any order, with |x| < 1,", ("a column",), ("raised",)),
        Promise("long", "and a text that goes on in the next line.", (), ("finite",))]


@pytest.mark.parametrize("row", [
    "sum", "sum | x + y", "sum | x + y |", "sum | | number", " | x + y | number",
    "sum | x + y | number; ; text", "sum | x + y | number | text",
    "sum | x + y | case one | case two", "sum | x + y | case one | number | text",
    "sum | x + y | number\n"])
def test_a_malformed_row_is_shown(ex, row):
    with pytest.raises(ValueError, match=r"^99\.1, promise table, row .*: expected key \| text"):
        ex.promise_table(f"\nfirst | A text. | number\n{row}\nlast | A text. | number\n")
