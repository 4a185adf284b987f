"""The presenter's pages: plans add up, ids exist, and code asserts every number in an answer."""

import functools
import re

import pytest
import yaml
from test_book import cell, lesson, printed

from dlsys import deck
from dlsys_helpers import catalog
from dlsys_helpers.errors import UserError
from dlsys_helpers.paths import NOTEBOOKS
from dlsys_helpers.stages import STAGES, stage
from tools import book, book_minutes, book_present, book_traps

NUMBERS = [s.number for s in STAGES]
# Whole numbers below 10 count as words; ids and digits after a letter (fp16) count as names.
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)*")


@pytest.fixture(scope="module")
def lessons():
    return {number: book.read(NOTEBOOKS / f"{stage(number).stem}.ipynb") for number in NUMBERS}


@pytest.fixture(scope="module")
def plans(lessons):
    """The plans of a stage, one for each frame."""
    @functools.cache
    def made(number):
        slides = book_present.first_slides(lessons[number])
        return [book_present.plan(lessons[number], frame, slides) for frame in book_present.FRAMES]
    return made


@pytest.mark.parametrize("number", NUMBERS)
def test_plans_add_up_and_hold_a_trap_with_its_exercise_unless_short(number, plans):
    known = {t.id: t for t in catalog.traps(number)}
    for frame, blocks in zip(book_present.FRAMES, plans(number), strict=True):
        assert sum(b.minutes for b in blocks) == frame.minutes
        assert all(b.minutes > 0 for b in blocks)
        about = [b.trap for b in blocks if b.trap]
        assert {*about} <= {*known}
        shown = [b.trap for b in blocks if b.text.startswith("Trap")]
        solved = [b.trap for b in blocks if b.text.startswith("Exercise")]
        assert len(shown) == len({*shown})
        assert bool(solved) == bool(frame.solved)
        assert shown
        assert {*solved} <= {*shown}
        assert about == sorted(about, key=list(known).index), "traps keep the lesson's order"
        assert blocks[-1].minutes <= 30, "what is left for questions is no plan"


@pytest.mark.parametrize("number", NUMBERS)
def test_a_short_session_stays_on_the_core_path(number, plans):
    core = {t.id for t in catalog.traps(number) if t.core}
    for blocks in plans(number)[:2]:
        shown = {b.trap for b in blocks if b.trap}
        assert shown <= core


def test_each_core_trap_has_a_line_and_each_stage_its_questions():
    written = book_present.data()
    assert list(written) == NUMBERS
    for number, entry in written.items():
        core = [t.id for t in catalog.traps(number) if t.core]
        assert list(entry["live"]) == core
        assert 4 <= len(entry["questions"]) <= 6
        assert len({q["ask"] for q in entry["questions"]}) == len(entry["questions"])
        assert all(q["ask"].endswith("?") for q in entry["questions"])


def of_trap(book_of_stage, trap: str) -> list:
    return [c for c in book_of_stage.cells if c.metadata.get("dlsys", {}).get("trap") == trap]


def cell_text(one) -> str:
    """A cell's source and its text outputs."""
    shown = (out.get("text") or out.get("data", {}).get("text/plain", "")
             for out in one.get("outputs", []))
    return "\n".join([one.source, *shown])


def numbers(text: str) -> set[str]:
    return {n.rstrip(",.").replace(",", "") for n in NUMBER.findall(text)
            if not re.fullmatch(r"-?\d|\d\d\.\d+", n)}


def test_the_numbers_of_a_text_are_found():
    assert numbers("65,536 of -10, 0.06 %, trap 04.5, 3 ways, bfloat16, top-1.") == {
        "65536", "-10", "0.06"}


@pytest.mark.parametrize("number", NUMBERS)
def test_an_answer_holds_no_number_that_its_trap_does_not(number, lessons):
    """The builder checks a lesson's numbers against its code; an answer may only repeat those."""
    entry = book_present.data()[number]
    told = [(q["trap"], q["answer"]) for q in entry["questions"]] + list(entry["live"].items())
    for trap, text in told:
        stored = "\n".join(map(cell_text, of_trap(lessons[number], trap)))
        assert numbers(text) <= numbers(stored), (trap, numbers(text) - numbers(stored))


def test_an_unknown_trap_stops_the_book_and_says_what_is_expected(tmp_path, monkeypatch):
    written = yaml.safe_load(book_present.DATA.read_text("utf-8"))
    written[1]["questions"][0]["trap"] = "01.9"
    monkeypatch.setattr(book_present, "DATA", tmp_path / "present.yml")
    (tmp_path / "present.yml").write_text(yaml.safe_dump(written, sort_keys=False), "utf-8")
    with pytest.raises(UserError, match=r"stage 1: .* questions 01\.9, .* expected live for 01\.2"):
        book_present.data()


def test_a_page_has_its_plans_the_live_lines_and_links_to_its_traps(lessons):
    pages = book_present.pages({1: lessons[1]})
    assert list(pages) == ["present", "present/01"]
    text = pages["present/01"]
    assert re.findall(r"^## (\d+) minutes$", text, re.MULTILINE) == ["20", "45", "90", "180"]
    for trap in catalog.traps(1):
        assert f"](../{book_traps.name(trap.id)}.md)" in text
    assert "| 0:05 | " in text
    assert "(present/01.md)" in pages["present"]


def test_a_plan_names_the_slide_on_which_a_trap_begins(lessons, plans):
    found = list(deck.slides(lessons[7]))
    blocks = plans(7)[-1]
    named = {b.trap: int(re.search(r"from slide (\d+):", b.text)[1])
             for b in blocks if b.text.startswith("Trap")}
    assert len(named) >= 5
    for trap, number in named.items():
        assert found[number - 1].heading == f"## {trap} {catalog.trap(trap).title}"


def test_what_a_plan_leaves_out_is_said():
    frame = [book_present.Block(8, "Trap", "01.1"), book_present.Block(8, "Trap", "01.2"),
             book_present.Block(13, "Exercise", "01.1")]
    said = book_present.left_out(1, frame)
    others = [trap.id for trap in catalog.traps(1) if trap.id not in ("01.1", "01.2")]
    assert re.findall(r"\[(01\.\d)\]", said) == others
    assert "home: 01.2 (10 minutes)." in said


def test_the_pause_lies_nearest_to_the_middle():
    blocks = [book_present.Block(n, "x") for n in (10, 30, 20, 10)]
    assert [b.text for b in book_present.with_pause(blocks, 5)] == ["x", "x", "Pause", "x", "x"]
    assert book_present.with_pause(blocks, 0) == blocks
    together = [book_present.Block(n, "x", id) for n, id in ((10, "a"), (20, "b"), (20, "b"))]
    assert [b.trap for b in book_present.with_pause(together, 5)] == ["a", "", "b", "b"]


def test_what_does_not_fit_is_left_and_what_follows_may_fit():
    groups = [[book_present.Block(n, str(n))] for n in (20, 15, 9)]
    assert book_present.fitting(groups, 30, 9) == ([groups[0][0], groups[2][0]], 1)
    assert book_present.fitting(groups, 30, 1) == ([groups[0][0]], 10)
    assert book_present.fitting(groups, 30, 0) == ([], 30)


def test_a_trap_takes_longer_to_read_with_more_text_and_a_lesson_is_more_than_its_traps():
    pace = book_minutes.PRACTISED
    words = " ".join(["word"] * pace.words)
    one = cell("markdown", words, "situation", trap="01.1")
    code = cell("code", "x = 1\n" * pace.lines, "break", [printed("y")], trap="01.1")
    other = cell("markdown", words, "concept")
    assert book_minutes.of_trap(lesson(one, other), "01.1") == 1
    assert book_minutes.of_trap(lesson(one, code, other), "01.1") == 2
    assert book_minutes.of_lesson(lesson(one, code, other)) == 5


def test_the_formula_is_stated_with_its_source():
    said = book_minutes.formula()
    assert f"{book_minutes.PRACTISED.words} words" in said
    assert f"{book_minutes.PRACTISED.lines} lines" in said
    assert "doi.org" in said


def test_a_plan_shows_the_traps_in_the_order_of_the_lesson(lessons):
    blocks = book_present.plan(lessons[9], book_present.FRAMES[-1],
                               book_present.first_slides(lessons[9]))
    shown = list(dict.fromkeys(block.trap for block in blocks if block.trap))
    told = [trap.id for trap in catalog.traps(9)]
    assert len(shown) > 2
    assert shown == [id for id in told if id in shown] != sorted(shown)
