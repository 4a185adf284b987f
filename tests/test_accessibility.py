"""The page on accessibility covers every criterion that level AA requires."""

import re

import pytest

from dlsys_helpers.paths import ROOT

PAGE = (ROOT / "book" / "accessibility.md").read_text("utf-8")
ROW = re.compile(r"^\| (\d\.\d\.\d+) ([^|]+) \| (A{1,2}) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE)
# WCAG 2.2, W3C Recommendation of 12 December 2024: 4.1.1 is gone.
A = """1.1.1 1.2.1 1.2.2 1.2.3 1.3.1 1.3.2 1.3.3 1.4.1 1.4.2 2.1.1 2.1.2 2.1.4 2.2.1 2.2.2 2.3.1
2.4.1 2.4.2 2.4.3 2.4.4 2.5.1 2.5.2 2.5.3 2.5.4 3.1.1 3.2.1 3.2.2 3.2.6 3.3.1 3.3.2 3.3.7 4.1.2"""
AA = """1.2.4 1.2.5 1.3.4 1.3.5 1.4.3 1.4.4 1.4.5 1.4.10 1.4.11 1.4.12 1.4.13 2.4.5 2.4.6 2.4.7
2.4.11 2.5.7 2.5.8 3.1.2 3.2.3 3.2.4 3.3.3 3.3.4 3.3.8 4.1.3"""
RESULTS = {"supports", "partly", "does not", "not applicable", "not tested"}


def test_each_criterion_of_both_levels_stands_once_in_its_order():
    found = {level: [row[0] for row in ROWS if row[2] == level] for level in ("A", "AA")}
    assert found == {"A": A.split(), "AA": AA.split()}
    assert "all 55 criteria" in PAGE
    assert len(ROWS) == 55
    assert PAGE.count("\n| ") == 55 + 4 + 6  # and the heads, and what the results mean


@pytest.mark.parametrize(("number", "name", "level", "result", "how"), ROWS,
                         ids=[row[0] for row in ROWS])
def test_a_result_says_how_it_is_known(number, name, level, result, how):
    assert result in RESULTS
    if result == "supports":
        assert how.startswith(("Tested: ", "Looked at: ", "Built so: "))
    if result == "partly":
        assert len(how) > 60, "what falls short is named"
