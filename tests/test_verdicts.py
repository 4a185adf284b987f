"""A verdict has one form: everything that shows or reads one agrees."""

import json
import re

import pytest

from dlsys_helpers import cards, catalog, verdicts
from dlsys_helpers.paths import ROOT, SOLUTIONS
from dlsys_helpers.verdicts import STATUSES, Verdict


@pytest.mark.parametrize("status", STATUSES)
def test_a_line_is_read_as_it_was_written(status):
    verdict = Verdict(status, "01.4", "got 1: expected 2.\nLook again")
    assert verdicts.read_line(verdict.line()) == (status, verdict.message)
    assert verdicts.read_line(Verdict(status, "01.4").line()) == (status, "")


def test_other_text_is_no_line():
    assert verdicts.read_line("exercise 01.4 is hard") is None


def test_each_status_has_a_word_and_a_mark_of_its_own():
    assert len({look.word for look in STATUSES.values()}) == len(STATUSES)
    assert len({look.mark for look in STATUSES.values()}) == len(STATUSES)


@pytest.mark.parametrize("status", STATUSES)
def test_a_card_says_the_word_and_stores_the_fact(status, monkeypatch):
    shown = []
    monkeypatch.setattr(cards, "emit", lambda *parts: shown.append(parts))
    cards.show_verdict(Verdict(status, "01.4", "got 1", trap="01.2"), catalog.trap("01.4"))
    ((html, text, facts),) = shown
    assert STATUSES[status].tone in html
    assert f"Exercise 01.4: {STATUSES[status].word}" in text
    assert "See trap 01.2: " in text
    assert facts == {"dlsys": {"id": "01.4", "status": status}}


@pytest.mark.parametrize("path", sorted(SOLUTIONS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_each_check_of_the_solutions_stores_a_pass(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    told = [output["metadata"]["dlsys"] for cell in cells for output in cell.get("outputs", [])
            if "dlsys" in output.get("metadata", {})]
    ids = [trap.id for trap in catalog.traps(int(path.stem[:2]))]
    assert sorted(told, key=lambda one: ids.index(one["id"])) == [
        {"id": id, "status": "pass"} for id in ids]


def test_no_other_file_holds_a_copy_of_words_or_colours():
    home = ROOT / "src/dlsys_helpers/verdicts.py"
    copies = [f"'{text}'" for look in STATUSES.values() for text in (look.word, look.tone)]
    pattern = re.compile("|".join(copy.replace("'", "[\"'>]") for copy in copies))
    files = [path for suffix in ("py", "html") for path in (ROOT / "src").rglob(f"*.{suffix}")]
    found = {path.name: pattern.findall(path.read_text("utf-8")) for path in files
             if path != home and pattern.search(path.read_text("utf-8"))}
    assert found == {"gradescope.py": ['"passed"']}  # a word of Gradescope's own
