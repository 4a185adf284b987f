"""`dlsys slides`: what stands on which slide, in one file that needs nothing else."""

import hashlib
import json
import re
import sys
from functools import cache
from itertools import pairwise

import nbformat
import pytest
from bs4 import BeautifulSoup

import dlsys
from dlsys import cli, deck, slides
from dlsys_helpers import catalog, paths
from dlsys_helpers.stages import STAGES, stage

# Of the files in dist/ of reveal.js 6.0.2, as the npm package has them.
REVEAL = {
    "reveal.js": "aa1bbbf2617b23a623b23612cb3c5bdb63de512e652bf20fcfa832b045d37844",
    "reveal.css": "615ee850cbbb98a0f688b60ed37b21819a3f54c9f3e6f20e33e63693ab74a0c0",
}


@cache
def made(number):
    return list(deck.slides(slides.lesson(stage(number))))


@pytest.fixture(scope="module")
def first():
    """The slides of stage 1, and their page."""
    return made(1), deck.html(made(1), "Stage 1")


@pytest.fixture
def my_work(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "my-work")
    return tmp_path / "my-work"


def printed(slide: deck.Slide) -> list[str]:
    return [out.get("text", "") for c in slide.cells for out in c.get("outputs", [])]


def words(slide: deck.Slide) -> str:
    return "\n".join([slide.heading, *(c.source for c in slide.cells), *printed(slide)])


@pytest.mark.parametrize("number", [s.number for s in STAGES])
def test_every_trap_is_asked_broken_measured_and_kept(number):
    """One column a trap: the situation, the wrong code, the question, then each step; no claim."""
    found = made(number)
    for trap in catalog.traps(number):
        column = [s for s in found if re.match(rf"#+ {trap.id} ", s.heading)]
        assert [s.first for s in column] == [True, *[False] * (len(column) - 1)]
        assert column[0].heading == f"## {trap.id} {trap.title}"
        named = [s.heading.removeprefix(f"### {trap.id} ") for s in column]
        steps = [heading.format(fault=trap.fault) for heading in deck.HEADINGS.values()]
        assert {*steps} - {*named} <= {"Told and measured"}
        opening = [c for s in column[:named.index("Measured")] for c in s.cells]
        code = max(k for k, c in enumerate(opening) if c.cell_type == "code")
        assert not opening[code].outputs
        assert "data-guess" in opening[-1].source, "the question comes after the code"
        assert not any(trap.fault in words(s) for s in column[:named.index("Measured")])
        code = "\n".join(c.source for s in column for c in s.cells if c.cell_type == "code")
        assert not re.search(r"^(claim|guess|measured)\(", code, re.MULTILINE)
        assert not any(text.startswith("holds: ") for s in column for text in printed(s))


def test_the_answer_stands_behind_the_question(first):
    found, _ = first
    asked, measured = next((one, after) for one, after in pairwise(found)
                           if one.heading.startswith("## 01.2"))
    assert "What share of the true eights raises the alarm?" in words(asked)
    assert "score > 0.5" in words(asked)
    assert "eights found 0.25" not in words(asked)
    assert "eights found 0.25" in words(measured)


def test_a_slide_is_packed_up_to_its_height_and_only_what_is_too_high_is_torn():
    code = nbformat.v4.new_code_cell("\n".join("x" * 10))
    parts = [[code, code], [code], [code]]
    each = deck.height(code)
    assert [len(s) for s in deck.pack(parts, 3 * each)] == [3, 1]
    assert [len(s) for s in deck.pack([*parts[1:], parts[0]], 3 * each)] == [2, 2]
    assert [len(s) for s in deck.pack(parts, each)] == [1, 1, 1, 1]
    assert list(deck.pack([], each)) == []


def test_no_code_is_too_long_for_a_slide():
    """A lesson's cells keep to 20 lines, blank ones and comments included."""
    assert max(len(c.source.splitlines()) for s in STAGES for one in made(s.number)
               for c in one.cells if c.cell_type == "code") <= 20


def test_the_page_loads_nothing(first):
    """No element fetches anything: links are there to be followed, by whoever has a network."""
    page = BeautifulSoup(first[1], "html.parser")
    assert not page.find_all(["link", "iframe", "object", "embed"])
    assert not page.find_all("script", src=True)
    assert all(img["src"].startswith("data:image/png;base64,") for img in page.find_all("img"))
    assert all(img["alt"] for img in page.find_all("img"))
    styles = "".join(style.string for style in page.find_all("style"))
    assert not re.search(r"@import|url\(\s*[\"']?(?!data:)", styles)
    assert len(page.select(".slides > section > section")) == len(first[0])


def test_a_line_that_begins_with_the_number_of_an_issue_is_no_heading():
    made = deck.markdown("Seen in [torch\n#312](https://example.org/312).\n\n# A heading")
    assert made.count("<h1") == 1
    assert '<a href="https://example.org/312">torch\n#312</a>' in made


def test_formulas_need_no_script(first):
    assert "<math" in first[1]
    assert "mathjax" not in first[1].lower()


def test_the_command_writes_a_new_file_and_overwrites_none(my_work, capsys, monkeypatch):
    monkeypatch.setattr(deck, "html", lambda found, title: f"{title}: {len(found)}")
    assert cli.main(["slides", "1"]) == 0
    file = my_work / "01_slides.html"
    assert file.read_text("utf-8").startswith(f"1. {stage(1).title}: ")
    assert str(file) in capsys.readouterr().out
    file.write_text("mine")
    assert cli.main(["slides", "01"]) == cli.BAD_INPUT
    assert "exists and stays as it is" in capsys.readouterr().err
    assert file.read_text() == "mine"


@pytest.mark.parametrize(("words", "said"), [
    (["13"], "expected 1 to 12"), (["0"], "expected 1 to 12"), (["1.2"], "expected 1 to 12"),
    (["²"], "expected 1 to 12"), (["1", "--out", "x.pdf"], "ends in .html"),
    (["1", "--out", "no/such/x.html"], "cannot be written (No such file or directory)"),
])
def test_bad_input_gets_one_line(words, said, my_work, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(deck, "html", lambda *_: "")
    assert cli.main(["slides", *words]) == cli.BAD_INPUT
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(("text", "said"), [
    (None, "No such file"), ("{", "no notebook, or damaged"), ("[]", "no notebook, or damaged")])
def test_a_lesson_that_cannot_be_read_is_named(text, said, my_work, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    if text is not None:
        (tmp_path / f"{stage(2).stem}.ipynb").write_text(text)
    assert cli.main(["slides", "2"]) == cli.BAD_INPUT
    assert said in capsys.readouterr().err


def test_a_lesson_without_outputs_as_in_a_wheel_is_refused(my_work, tmp_path, monkeypatch, capsys):
    book = json.loads((paths.NOTEBOOKS / f"{stage(2).stem}.ipynb").read_bytes())
    for cell in book["cells"]:
        cell.pop("outputs", None) if cell["cell_type"] != "code" else cell["outputs"].clear()
    (tmp_path / f"{stage(2).stem}.ipynb").write_text(json.dumps(book))
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    assert cli.main(["slides", "2"]) == cli.BAD_INPUT
    assert "A wheel has none: give the command in the course's repository" in (
        capsys.readouterr().err)


@pytest.mark.parametrize("name", REVEAL)
def test_reveal_is_that_of_its_release(name):
    data = (deck.TEMPLATE / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == REVEAL[name]


def test_a_missing_package_is_named_with_what_to_do(my_work, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "nbconvert", None)
    monkeypatch.delitem(sys.modules, "dlsys.deck")
    monkeypatch.delattr(dlsys, "deck")
    assert cli.main(["slides", "1"]) == cli.BAD_INPUT
    assert "nbconvert is not installed" in (told := capsys.readouterr().err)
    assert "make setup" in told
    assert not my_work.exists()
