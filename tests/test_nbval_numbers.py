"""Stored outputs may differ in last digits and where a claim allows it, and nowhere else."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from dlsys_helpers import claims
from dlsys_helpers.paths import NOTEBOOKS, ROOT, SOLUTIONS
from tools import nbval_numbers
from tools.nbval_numbers import DECIMAL, ClaimedNumber, same

SAME = {
    "one unit of the last place": ("moved 0.033 far", "moved 0.032 far"),
    "through a carry": ("at 9.99 s", "at 10.00 s"),
    "a column": ("|  9.99|", "| 10.00|"),
    "zero from below": ("gap: 0.0", "gap: -0.0"),
    "many digits, float32": ("[-0.011945605278015137, 0.0]", "[-0.011945612728595734, 0.0]"),
    "an order of magnitude": ("first / last 4e-07", "first / last 9e-07"),
    "no gap, and one of rounding": ("gap 0e+00", "gap 6e-08"),
    "no gap, twice": ("gap 0e+00", "gap 0e+00"),
    "rounding, two digits": ("largest gap of a logit 1.7e-06", "largest gap of a logit 1.9e-06"),
    "rounding, all digits": ("gap 3.814697265625e-06", "gap 1.9073486328125e-06"),
    "rounding, either sign": ("mean -6.0e-08", "mean 1.2e-07"),
    "no gap, and all digits of one": ("moved by 0.0", "moved by 5.960464477539063e-08"),
    "rounding, at the border": ("gap 9.5e-06", "gap 1.9e-05"),
    "exponents that meet": ("9.9e-07", "1.0e-06"),
    "str drops a zero": ("[0.2, 0.105]", "[0.201, 0.105]"),
    "thousands": ("1,234.5 MB", "1,234.6 MB"),
}
OTHER = {
    "two units": ("moved 0.033 far", "moved 0.031 far"),
    "two units of a share": ("6.4%", "6.6%"),
    "sign": ("-7.7", "7.7"),
    "text": ("moved 0.033 far", "moved 0.033 fast"),
    "a count": ("flagged: 64", "flagged: 63"),
    "a count with thousands": ("operations: 5,002", "operations: 5,003"),
    "a shape": ("(8, 1)", "(8, 2)"),
    "a number more": ("[0.1, 0.2]", "[0.1, 0.2, 0.3]"),
    "a number that is NaN": ("loss 0.5", "loss nan"),
    "a version": ("torch 2.14.1", "torch 2.15.1"),
    "an integer where a decimal was": ("1.0", "1"),
    "no gap, and one beyond rounding": ("gap 0e+00", "gap 1e-05"),
    "no gap, with a point": ("generator 0.0e+00", "generator 1.0e-01"),
    "a gap that grows": ("largest gap of a logit 1.7e-06", "largest gap of a logit 1.7e-02"),
    "a gap that grows a little": ("gap 1.7e-06", "gap 2.0e-05"),
    "no gap, and one in the text's own form": ("gap 0.0", "gap 2e-06"),
    "another order of magnitude": ("first / last 4e-07", "first / last 5e-06"),
    "above rounding": ("gap 1.7e-04", "gap 1.9e-04"),
    "above rounding, the sign": ("slope -3e-02", "slope 3e-02"),
    "many digits": ("0.011945605278015137", "0.011955605278015137"),
}


@pytest.mark.parametrize("name", SAME)
def test_last_digits_may_differ(name):
    stored, shown = SAME[name]
    assert same(stored, shown)
    assert same(shown, stored)


@pytest.mark.parametrize("name", OTHER)
def test_anything_else_may_not(name):
    stored, shown = OTHER[name]
    assert not same(stored, shown)
    assert not same(shown, stored)


def stored_texts():
    """Every text that nbval compares in the lessons and the worked answers."""
    for path in sorted([*NOTEBOOKS.glob("*.ipynb"), *SOLUTIONS.glob("*.ipynb")]):
        for cell in nbformat.read(path, as_version=4).cells:
            if "nbval-check-output" in cell.metadata.get("tags", []):
                for out in cell.outputs:
                    yield from (out.get("text"), *(out.get("data", {}).get(kind) for kind in (
                        "text/plain", "text/html")))


TEXTS = [text for text in stored_texts() if text]


def changed(text, pattern, change):
    """One copy of the text for each match of the pattern, with only that match changed."""
    for match in re.finditer(pattern, text):
        yield text[:match.start()] + change(match[0]) + text[match.end():]


def last_digit_up(number):
    """0.033 -> 0.034, 0.039 -> 0.038, 4e-07 -> 5e-07; 0e+00 and 0.0e+00, which have no last place,
    -> 1e-07."""
    if "e" in number and float(number) == 0:
        return " 1e-07"
    mantissa, e, exponent = number.partition("e")
    step = -1 if mantissa[-1] == "9" else 1
    return mantissa[:-1] + str(int(mantissa[-1]) + step) + e + exponent


def test_every_stored_decimal_may_differ_in_its_last_digit():
    copies = [(text, other) for text in TEXTS
              for other in changed(text, DECIMAL, last_digit_up)]
    assert len(copies) > 100
    assert [pair for pair in copies if not same(*pair)] == []


def first_digit_up(number):
    """0.033 -> 0.083 and 4e-07 -> 4e-02, 4e-02 -> 4e-03: this is a different number."""
    if "e" in number and float(number) == 0:  # 0e+00, 0.0e+00: a new exponent changes nothing
        return number.replace("0", "5", 1)
    if "e" in number:
        return re.sub(r"e.*$", "e-02" if abs(float(number)) < 1e-3 else "e-03", number)
    return re.sub(r"[1-9]", lambda m: str((int(m[0]) + 5) % 10), number, count=1)


def test_no_stored_decimal_may_change_in_its_first_digit():
    copies = [(text, other) for text in TEXTS
              for other in changed(text, DECIMAL, first_digit_up) if other != text]
    assert len(copies) > 100
    assert [pair for pair in copies if same(*pair)] == []


def test_no_stored_integer_and_no_word_may_change():
    integer = r"(?<![\w.,#-])(?<!e\+)\d+(?![\w.,%]|e-)"
    copies = [(text, other) for text in TEXTS for other in (
        *changed(text, integer, lambda n: str(int(n) + 1)),
        *changed(text, r"[A-Za-z]{3,}", str.swapcase))]
    assert len(copies) > 1000
    assert [pair for pair in copies if same(*pair)] == []


# ---- numbers that a claim bounds

ABOVE = [ClaimedNumber(0.931, 0.8, float("inf"))]


@pytest.mark.parametrize(("stored", "shown", "agree"), [
    ("accuracy 0.93", "accuracy 0.85", True),
    ("accuracy 0.9308", "accuracy 0.8512", True),
    ("accuracy 0.93", "accuracy 0.75", False),
    ("accuracy 0.95", "accuracy 0.85", False),
    ("accuracy 0.93", "accuracy nan", False),
    ("of 93 digits", "of 85 digits", False),
    ("accuracy 0.93, before 0.51", "accuracy 0.85, before 0.44", False),
])
def test_a_number_may_vary_as_far_as_its_claim(stored, shown, agree):
    assert same(stored, shown, ABOVE) is agree
    assert not same(stored, shown)


def test_a_number_is_known_by_the_three_digits_that_its_claim_shows():
    held = [ClaimedNumber(10.2, 6, float("inf"))]
    assert same("10.15 nats", "10.19 nats", held)
    assert not same("10.26 nats", "10.19 nats", held)


@pytest.mark.parametrize("bound", [{"above": 1.5}, {"below": 2.5}, {"above": 1.5, "below": 2.5},
                                   {"expected": 2.0, "within": 0.5}])
def test_limits_are_those_of_the_claim(bound):
    words, _ = claims.judge(2.0, **bound)
    low, high = nbval_numbers.limits_of(f"expected {words}" if "expected" in bound else words)
    assert low == (1.5 if {"above", "expected"} & set(bound) else float("-inf"))
    assert high == (2.5 if {"below", "expected"} & set(bound) else float("inf"))


def holds(id, *lines):
    outputs = [new_output("display_data", {"text/plain": f"holds: {line}"}) for line in lines]
    return new_code_cell(id=id, outputs=outputs, metadata={"dlsys": {"trap": "01.2"}})


def test_only_what_varied_in_the_sweep_may_vary(monkeypatch):
    """A count of operations is the same on every machine."""
    monkeypatch.setattr(nbval_numbers, "varying_claims", lambda lesson: {f"{lesson}-2-look-1 2"})
    cells = [holds("01-2-look-1", "it runs: yes", "accuracy: tests: 0.931, above 0.8"),
             holds("01-2-look-2", "it runs: yes", "GFLOP: 1.35, above 1")]
    assert nbval_numbers.claimed_numbers(Path("01_activations.ipynb"), cells) == {"01.2": ABOVE}


def test_claims_that_vary_come_from_the_record_of_the_sweep():
    assert len(nbval_numbers.varying_claims("03")) > 20
    assert nbval_numbers.varying_claims("no such lesson") == set()


def test_a_tag_stands_only_where_no_claim_holds_the_numbers():
    """A claim whose words contain the number is better than a tag, because it sets bounds."""
    idle = []
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        held = nbval_numbers.claimed_numbers(path, cells)
        for cell in cells:
            if nbval_numbers.VARIES in cell.metadata.get("tags", []):
                text = "".join(out.get("text", "") for out in cell.outputs)
                mine = held.get(cell.metadata["dlsys"].get("trap"), [])
                left = DECIMAL.sub(lambda m, mine=mine: "" if any(
                    one.allows(m[1], m[1]) for one in mine) else m[0], text)
                if not re.search(r"\d", left):
                    idle.append(f"{path.name}: {text.strip()}")
    assert idle == [], "these need no tag varies-by-cpu"


CELLS = {  # name: what the cell prints, what is stored, its tags, whether it passes
    "last digit": ("print('moved 0.032')", "moved 0.033\n", [], True),
    "number": ("print('moved 0.042')", "moved 0.033\n", [], False),
    "text": ("print('moves 0.033')", "moved 0.033\n", [], False),
    "count": ("print('units: 63')", "units: 64\n", [], False),
    "rounding": ("print('gap 1.9e-06')", "gap 1.7e-06\n", [], True),
    "a gap that grows": ("print('gap 1.9e-02')", "gap 1.7e-06\n", [], False),
    "varies": ("print('core 11, share   9.64')", "core 13, share 10.68\n",
               [nbval_numbers.VARIES], True),
    "varies, other words": ("print('core 11 here')", "core 13\n", [nbval_numbers.VARIES], False),
    "varies, one number less": ("print(0.92, 0.92)", "0.90 0.90 0.90\n", [nbval_numbers.VARIES],
                                False),
    "varies, not a number": ("print('share nan')", "share 0.68\n", [nbval_numbers.VARIES], False),
    "html": ("display({'text/html': '<b>0.032</b>', 'text/plain': '0.032'}, raw=True)",
             {"text/html": "<b>0.033</b>", "text/plain": "0.033"}, [], True),
    "other html": ("display({'text/html': '<i>0.033</i>', 'text/plain': '0.033'}, raw=True)",
                   {"text/html": "<b>0.033</b>", "text/plain": "0.033"}, [], False),
    "no output": ("pass", "moved 0.033\n", [], False),
    "not compared": ("print(1)", "2\n", None, True),
}


def stored_cell(source, output, tags):
    cell = new_code_cell(source, execution_count=1)
    cell.metadata.tags = ["nbval-check-output", *tags] if tags is not None else []
    cell.outputs = [new_output("stream", name="stdout", text=output) if isinstance(output, str)
                    else new_output("display_data", data=output)]
    return cell


@pytest.mark.parametrize("folder", ["notebooks", "my-work"])
def test_nbval_accepts_last_digits_and_nothing_else(folder, tmp_path):
    """Compare as a lesson does; the same plugin treats a learner's worksheet alike."""
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "small.ipynb"
    nbformat.write(new_notebook(cells=[stored_cell(*cell[:3]) for cell in CELLS.values()],
                                metadata={"kernelspec": {"name": "python3", "language": "python",
                                                         "display_name": "p"}}), path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tools.nbval_numbers", "--nbval-lax", "-p",
         "no:cacheprovider", "-rfp", "-q", "--rootdir", str(tmp_path), str(path)],
        cwd=ROOT, capture_output=True, text=True, timeout=120)
    result = {int(n): word == "PASSED" for word, n in re.findall(
        r"^(PASSED|FAILED) \S+::Cell (\d+)", done.stdout, re.M)}
    assert result == {n: cell[3] for n, cell in enumerate(CELLS.values())}, done.stdout


def test_every_run_here_compares_so(pytestconfig):
    """The conftest.py next to the Makefile loads the plugin for every folder that a run names."""
    assert pytestconfig.pluginmanager.has_plugin("tools.nbval_numbers")
