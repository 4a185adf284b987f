"""`dlsys slides`: what each slide shows, in one file that needs no other."""

import hashlib
import json
import re
import sys
from functools import cache

import pytest
from bs4 import BeautifulSoup

import dlsys
from dlsys import cli, deck, deck_figures, slides
from dlsys_helpers import catalog, drawing_canvas, paths, plots
from dlsys_helpers.explorers import _picture
from dlsys_helpers.stages import SPAN, STAGES, stage

# Hashes of the files in dist/ of the npm package reveal.js 6.0.2.
REVEAL = {
    "reveal.js": "aa1bbbf2617b23a623b23612cb3c5bdb63de512e652bf20fcfa832b045d37844",
    "reveal.css": "615ee850cbbb98a0f688b60ed37b21819a3f54c9f3e6f20e33e63693ab74a0c0",
}


@cache
def lesson(number):
    return slides.lesson(stage(number))


@cache
def slides_of(number):
    return list(deck.slides(lesson(number)))


@cache
def core_of(number):
    return list(deck.slides(lesson(number), core=True))


@pytest.fixture(scope="module")
def first():
    """The slides of stage 1, and their page."""
    return slides_of(1), deck.html(slides_of(1), "Stage 1")


@pytest.fixture
def my_work(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "my-work")
    return tmp_path / "my-work"


def printed(slide: deck.Slide) -> list[str]:
    return [out.get("text", "") for c in slide.cells for out in c.get("outputs", [])]


def words(slide: deck.Slide) -> str:
    return "\n".join([slide.heading, *(c.source for c in slide.cells), *printed(slide)])


def column(number: int, trap: str) -> list[deck.Slide]:
    return [s for s in slides_of(number) if re.match(rf"#+ {trap} ", s.heading)]


@pytest.mark.parametrize("number", [s.number for s in STAGES])
def test_every_trap_is_asked_measured_explained_repaired_and_kept(number):
    """One column per trap: the situation, the wrong code, the question, each step; no claim."""
    for trap in catalog.traps(number):
        found = column(number, trap.id)
        assert 6 <= len(found) <= 10  # a long break takes three, a long repair two
        assert [s.first for s in found] == [True, *[False] * (len(found) - 1)]
        named = list(dict.fromkeys(re.sub(r"^#+ \S+ ", "", s.heading) for s in found))
        assert named == [trap.title, "Your guess", "Measured", f"Why: {trap.fault}", "Repair",
                         "Keep"]
        opening = found[:[s.heading for s in found].index(f"### {trap.id} Measured")]
        cells = [c for s in opening for c in s.cells]
        assert any(c.cell_type == "code" and not c.outputs for c in cells)
        assert "data-guess" in cells[-1].source, "the question comes after the code"
        assert not any(trap.fault in words(s) for s in opening)
        code = "\n".join(c.source for s in found for c in s.cells if c.cell_type == "code")
        assert not re.search(r"^(claim|guess|measured|print)\(", code, re.MULTILINE)
        assert not any(text.startswith("holds: ") for s in found for text in printed(s))
        assert trap.function in words(found[-1])


def test_no_line_of_the_wrong_code_is_lost():
    for entry in STAGES:
        for trap in catalog.traps(entry.number):
            broken = [c.source for c in lesson(entry.number).cells
                      if c.cell_type == "code" and c.metadata["dlsys"].get("trap") == trap.id
                      and c.metadata["dlsys"]["role"] == "break"
                      and not c.metadata.get("jupyter", {}).get("source_hidden")]
            shown = "\n".join(c.source for s in column(entry.number, trap.id)
                              for c in s.cells if c.cell_type == "code").split("\n")
            assert {*"\n".join(broken).split("\n")} <= {*shown, ""}, trap.id


@pytest.mark.parametrize("number", [s.number for s in STAGES])
def test_no_slide_is_empty_and_notes_stay_through_a_trap(number):
    for slide in slides_of(number):
        assert any(c.source or printed(deck.Slide("", [c])) or deck.figures([c])
                   for c in slide.cells), slide.heading
    for trap in catalog.traps(number):
        assert {s.notes for s in column(number, trap.id)} == {deck.notes(trap.id)}


@pytest.mark.parametrize("number", [s.number for s in STAGES])
def test_who_votes_has_the_situation_and_who_voted_reads_the_letter(number):
    for trap in catalog.traps(number):
        asked, = [s for s in column(number, trap.id) if s.heading.endswith("Your guess")]
        told = [c.source for c in lesson(number).cells
                if c.metadata["dlsys"].get("trap") == trap.id
                and c.metadata["dlsys"]["role"] == "situation"]
        assert told[-1].rpartition("\n\n")[2] in words(asked), trap.id
        measured = next(s for s in column(number, trap.id) if s.heading.endswith("Measured"))
        listed = [li.get_text() for li in BeautifulSoup(words(asked), "html.parser").select("li")]
        if listed:
            letter, said, behind = re.search(r"Measured: ([A-D]), “(.*?)”\.\*\* (.*)",
                                             words(measured)).groups()
            assert listed["ABCD".index(letter)] == said.replace("`", ""), trap.id
            assert re.search(r"\d|: yes\.", behind), "a choice is shown with its number"


@pytest.mark.parametrize("number", [s.number for s in STAGES])
def test_a_core_deck_is_short_and_has_the_ideas_in_front_of_the_core_traps(number):
    found, core = core_of(number), [t for t in catalog.traps(number) if t.core]
    assert len(found) <= 30
    begun = [re.sub(r"^## ", "", s.heading) for s in found if s.first]
    asked = [f"{t.id} {t.title}" for t in core]
    assert [heading for heading in begun if heading in asked] == asked
    assert begun[-1] == "What you take with you"
    assert begun.index(asked[0]) > 1 or number in (12, 13), "an idea comes first"
    said = "\n".join(map(words, found))
    for trap in core:
        assert f"data-guess=\"{trap.id}\"" in said
        assert "Measured: " in said
        assert f"<code>{trap.function}</code>" in said
    off = [t for t in catalog.traps(number) if not t.core]
    assert not any(re.match(rf"#+ {t.id} ", s.heading) for t in off for s in found)
    assert words(found[-1]).count("\n- ") + 1 == len(core) + 1, "a rule for each trap, no others"


@pytest.mark.parametrize("number", [s.number for s in STAGES])
def test_no_slide_names_a_fault_before_its_question_is_answered(number):
    """Check the words on the slide; the presenter's notes, on another screen, may name it."""
    for found in (slides_of(number), core_of(number)):
        answered = set()
        for slide in found:
            answered |= {t.id for t in catalog.traps(number)
                         if slide.heading.startswith(f"### {t.id} ")
                         and "Measured: " in words(slide)}
            for trap in catalog.traps(number):
                assert trap.id in answered or trap.fault not in slide.heading


@pytest.mark.parametrize("number", [s.number for s in STAGES])
def test_every_drawing_of_an_idea_is_shown_with_words_in_front(number):
    drawn = sum("image/png" in out.get("data", {}) for c in lesson(number).cells
                if c.metadata.get("dlsys", {}).get("role") == "concept"
                and not c.metadata["dlsys"].get("trap") for out in c.get("outputs", []))
    ideas = [part for part in deck.parts(lesson(number).cells) if isinstance(part, deck.Idea)]
    assert sum(len(one.drawings) for one in ideas) == drawn
    assert all(len(deck.beginning(one.text, 2).split()) > 5 for one in ideas)


def test_your_turn_says_the_task():
    assert "Measure how far each position leaks" in words(column(8, "08.1")[-1])
    for entry in STAGES:
        for trap in catalog.traps(entry.number):
            assert len(deck.beginning(deck.asked_of(trap), 1).split()) > 3, trap.id


def test_the_letters_of_a_figure_are_taken_for_as_large_as_they_are():
    with plots.mpl.rc_context():
        plots.use_house_style()
        drawn = plots.mpl.rcParams["font.size"], plots.mpl.rcParams["figure.dpi"]
    assert drawn == (deck_figures.POINTS, deck_figures.INCH)
    assert drawing_canvas.SIZE == deck_figures.POINTS
    assert drawing_canvas.Sheet("x", "y").figure.dpi == deck_figures.INCH
    assert (_picture.WIDTH_PX, _picture._STYLE["font.size"], _picture._INCH) == (
        deck_figures.EXPLORER, deck_figures.ITS_POINTS, deck_figures.ITS_INCH)


def test_a_figure_asks_for_letters_of_18_pixels_and_a_tall_one_is_torn_where_it_is_empty():
    picture = deck_figures.Image.new("RGBA", (1144, 1400))
    for top in (100, 800):
        picture.paste((0, 0, 0, 255), (0, top, 1144, top + 500))
    output = deck.nb4.new_output("display_data", {"image/png": deck_figures.as_png(picture)},
                                 metadata={"image/png": {"width": 572, "alt": "two"}})
    whole = deck_figures.figure(output, "")
    # 10 points are 15.28 pixels where the picture is 572 wide and 700 high.
    assert deck_figures.least(whole) == round(700 * 18 / (10 * 110 / 72)) == 825
    assert deck_figures.least(deck_figures.figure(output, "fontsize=5")) == round(
        1240 * 1400 / 1144)
    pieces = deck_figures.torn(whole, 626)
    assert [deck_figures.as_picture(c.outputs[0].data["image/png"]).height for c in pieces] == [
        700, 700]
    assert sum(map(deck_figures.least, pieces)) in (824, 825, 826)
    assert [c.outputs[0].metadata["image/png"]["alt"] for c in pieces] == ["two", "two"]
    assert deck_figures.torn(pieces[0], 626) == [pieces[0]]


def test_code_that_goes_on_on_another_slide_keeps_its_colours():
    """A docstring begins on the first slide, but the code on the second is not all string."""
    code = 'def f():\n    """One.\n\n' + "    Two.\n" * 17 + '    """\n    return 1\n'
    first, second = deck.code_pages([deck.nb4.new_code_cell(code)])
    assert '"""' not in second.source.partition("return")[2]
    made = BeautifulSoup(deck.html([deck.Slide("x", [first]), deck.Slide("y", [second])], "x"),
                         "html.parser")
    shown = made.select(".highlight pre")
    assert [one.get_text().rstrip("\n") for one in shown] == [first.source, second.source.rstrip()]
    assert [one.get_text() for one in shown[1].select(".k")] == ["return"]
    assert "Two." in "".join(one.get_text() for one in shown[1].select("[class^=s]"))


def test_a_repair_that_is_no_code_says_what_to_decide():
    repair, = [s for s in column(7, "07.3") if s.heading.endswith("Repair")]
    assert "give the body a smaller rate" in words(repair)


def test_an_explorer_has_its_own_name_and_its_picture_what_it_says():
    found = {s.heading: s for s in slides_of(7) if s.heading.startswith("## Explore")}
    assert list(found) == [f"## Explore: {name}" for name in (
        "A kernel slides over a picture", "Output size", "Receptive field", "Forgetting")]
    cell, = found["## Explore: Forgetting"].cells
    assert "Adam, 100 steps" in cell.outputs[0].metadata["image/png"]["alt"]
    assert "controls" in found["## Explore: Forgetting"].notes


def test_a_third_of_the_slides_shows_a_picture():
    found = [s for entry in STAGES for s in slides_of(entry.number)]
    assert sum(bool(deck.figures(s.cells)) for s in found) >= len(found) / 3


def test_the_answer_stands_behind_the_question(first):
    found, _ = first
    code, asked, measured = [s for s in found if " 01.2 " in s.heading][:3]
    assert "What percentage of the eights in the test set raise the alarm?" in words(asked)
    assert "score > 0.5" in words(code)
    assert "eights found 0." not in words(asked)
    assert "eights found 0." in words(measured)


def test_a_lesson_names_the_cells_that_stand_for_its_look_and_its_repair():
    measured, = [s for s in column(15, "15.1") if s.heading.endswith("Measured")]
    assert "gradient of body, off by" in words(measured)
    assert not deck.figures(measured.cells)
    repair = [words(s) for s in column(15, "15.8") if s.heading.endswith("Repair")]
    assert "def needs(" in repair[0]
    assert "def step_seconds(" not in "".join(repair)


def test_a_function_from_the_why_stands_above_the_repair_that_uses_it():
    repair = next(s for s in column(15, "15.4") if s.heading.endswith("Repair"))
    code = next(c.source for c in repair.cells if c.cell_type == "code")
    assert code.startswith("def plain(top):")
    assert "switch.weigh = plain" in code


def test_a_repair_shows_what_is_new_and_nothing_that_only_reports():
    code = "x = 1\n\ny = g(x)\nprint(\n    y)\nclaim('y', y, above=0)"
    assert deck.changed_lines(code, ["x = 1\ny = f(x)"]) == "y = g(x)"
    assert deck.changed_lines("x = 1\nprint(x)", ["x = 1"]) == "x = 1"
    code = "def f():\n    return 1\n\n\nprint(2)\n\ny = f()\n"
    assert deck.changed_lines(code, []) == "def f():\n    return 1\n\ny = f()"
    before = "def f(x):\n    for y in x:\n        g(y)"
    assert deck.changed_lines("def f(x):\n    k = 1\n    for y in x:\n        h(y)", [before]) == (
        "def f(x):\n    k = 1\n    for y in x:\n        h(y)")
    assert deck.changed_lines("def f(x):\n    for y in x:\n        g(y)\nf(3)", [before]) == "f(3)"
    long = "\n\n".join(f"x = {n}" for n in range(12))
    assert deck.changed_lines(long, []) == long.replace("\n\n", "\n")


def test_the_beginning_of_a_text_is_its_first_sentences():
    text = "One is\n`a`. Two is b. Three.\n\nFour."
    assert deck.beginning(text, 2) == "One is `a`. Two is b."
    assert deck.beginning("- a list\n\nAfter it.", 1) == "After it."


def test_pages_take_as_much_as_fits_and_tear_nothing():
    assert list(deck.pages([2, 2, 3, 9, 1], sum, 5)) == [[2, 2], [3], [9], [1]]
    assert list(deck.pages([], sum, 5)) == []


def test_the_page_loads_nothing(first):
    """No element loads anything. Links may point to the network."""
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


def test_a_core_deck_has_a_file_of_its_own(my_work, capsys, monkeypatch):
    monkeypatch.setattr(deck, "html", lambda found, title: f"{title}: {len(found)}")
    assert cli.main(["slides", "8", "--core"]) == 0
    assert f"{len(core_of(8))} slides" in capsys.readouterr().out
    assert (my_work / "08_slides_core.html").is_file()


def test_the_command_writes_a_new_file_and_overwrites_none(my_work, capsys, monkeypatch):
    monkeypatch.setattr(deck, "html", lambda found, title: f"{title}: {len(found)}")
    assert cli.main(["slides", "1"]) == 0
    file = my_work / "01_slides.html"
    assert file.read_text("utf-8").startswith(f"1. {stage(1).title}: ")
    assert str(file) in capsys.readouterr().out
    file.write_text("mine")
    assert cli.main(["slides", "01"]) == cli.BAD_INPUT
    assert "already exists and is unchanged" in capsys.readouterr().err
    assert file.read_text() == "mine"


@pytest.mark.parametrize(("words", "said"), [
    *(([number], f"expected {SPAN}") for number in (f"{len(STAGES) + 1}", "0", "1.2", "²")),
    (["1", "--out", "x.pdf"], "ends in .html"),
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
    (None, "No such file"), ("{", "damaged or not a notebook"),
    ("[]", "damaged or not a notebook")])
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
    assert "A wheel has none, so run the command in the course's repository" in (
        capsys.readouterr().err)


@pytest.mark.parametrize("name", REVEAL)
def test_reveal_is_that_of_its_release(name):
    data = (deck.TEMPLATE / "vendor" / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == REVEAL[name]


def test_a_missing_package_is_named_with_what_to_do(my_work, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "nbconvert", None)
    monkeypatch.delitem(sys.modules, "dlsys.deck")
    monkeypatch.delattr(dlsys, "deck")
    assert cli.main(["slides", "1"]) == cli.BAD_INPUT
    assert "nbconvert is not installed" in (told := capsys.readouterr().err)
    assert "make setup" in told
    assert not my_work.exists()
