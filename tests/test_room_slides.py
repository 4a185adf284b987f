"""What slides do in a class: letters, hands, a clock, notes, and a framed room; all offline."""

import hashlib
import json
import re

import pytest
from browser import offline_page, violations
from playwright.sync_api import expect
from rooms import running

from dlsys import deck, slides
from dlsys_helpers.stages import NUMBERS, stage
from tools.nightly import mark_nightly

# The hash of plugin/notes.js in dist/ of the npm package reveal.js 6.0.2.
NOTES = "447c42f365876e41853de81453d0c53c580c5b2099132e8f61200de4a0ba2af3"


SIZES = """() => Reveal.getSlides().map((slide) => {
  const { h, v } = Reveal.getIndices(slide);
  Reveal.slide(h, v);
  const pre = [...slide.querySelectorAll("pre")];
  return { name: slide.textContent.trim().slice(0, 40), height: slide.scrollHeight,
    wide: pre.some((one) => one.scrollWidth > one.clientWidth),
    small: [...slide.querySelectorAll("img")].some(
      (img) => img.offsetHeight < Number(img.dataset.least) - 1),
    code: Math.min(24, ...[...slide.querySelectorAll(".jp-InputArea pre")].map(
      (one) => parseFloat(getComputedStyle(one).fontSize))) };
})"""


# If a frame disappears while a key is pressed, the browser may never answer, and a press has no
# time limit. So the frame presses the key itself, after the test has its answer.
ESCAPE_SOON = """body => { setTimeout(() => body.dispatchEvent(
    new KeyboardEvent("keydown", { key: "Escape", bubbles: true })), 100); }"""


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """The slides of two traps of stage 8, one that asks for a choice and one for a number."""
    found = [s for s in deck.slides(slides.lesson(stage(8)))
             if re.match(r"#+ 08\.[12] ", s.heading)]
    file = tmp_path_factory.mktemp("slides") / "08.html"
    file.write_text(deck.html(found, "Stage 8"), "utf-8")
    opened = offline_page(browser, viewport={"width": 1280, "height": 720})
    opened.goto(file.as_uri())
    yield opened
    assert opened.problems == opened.refused == []
    opened.close()


@pytest.fixture
def first(page):
    page.evaluate("Reveal.slide(0, 0)")
    return page


def go_to(page, selector):
    """The first slide that has an element."""
    place = page.evaluate(f"""() => {{
      const slide = document.querySelector("{selector}").closest("section");
      const {{ h, v }} = Reveal.getIndices(slide);
      Reveal.slide(h, v);
      return [h, v];
    }}""")
    expect(page.locator(f"section.present:not(.stack):has({selector})")).to_be_visible()
    return place


def test_hands_are_counted_taken_back_and_stand_beside_the_measurement(first):
    go_to(first, ".choices")
    for key in ("1", "3", "3", "2", "3", "Backspace", "4"):  # there is no fourth choice
        first.keyboard.press(key)
    hands = first.locator("section.present .choices .hand")
    expect(hands).to_have_text(["1", "1", "2"])
    for key in ("Backspace", "Backspace"):
        first.keyboard.press(key)
    expect(hands).to_have_text(["1", "0", "1"])
    bars = hands.evaluate_all(
        "all => all.map(n => parseFloat(getComputedStyle(n, '::before').width))")
    assert bars[1] == 0 < bars[0], "nobody draws no bar"
    for key in ("2", "3"):
        first.keyboard.press(key)
    expect(hands).to_have_text(["1", "1", "2"])
    go_to(first, ".hands[data-guess='08.1']")
    expect(first.locator("section.present .hands")).to_have_text("A 1B 1C 2")
    first.keyboard.press("2")
    expect(first.locator("section.present .hands")).to_have_text("A 1B 1C 2")
    go_to(first, ".choices")
    assert violations(first, context="section.present") == []


@pytest.mark.parametrize("number", mark_nightly(NUMBERS, lambda number: number == 8))
def test_no_slide_is_over_full_and_code_has_24_pixels(browser, tmp_path, number):
    file = tmp_path / "slides.html"
    found = [slide for core in (False, True)
             for slide in deck.slides(slides.lesson(stage(number)), core=core)]
    file.write_text(deck.html(found, "x"), "utf-8")
    opened = offline_page(browser, viewport={"width": 1280, "height": 720})
    opened.goto(file.as_uri())
    opened.wait_for_function("window.Reveal && Reveal.isReady()")
    measured = opened.evaluate(SIZES)
    opened.close()
    assert len(measured) > 20
    assert [m for m in measured if m["height"] > 720 or m["wide"] or m["code"] < 24
            or m["small"]] == []


def test_choices_carry_letters(first):
    style = "getComputedStyle(document.querySelector('.choices')).listStyleType"
    assert first.evaluate(style) == "upper-alpha"
    go_to(first, ".choices")
    expect(first.locator("section.present .choices li code").first).to_have_text("4")


def test_an_exercise_has_a_countdown(page):
    go_to(page, ".clock")
    clock = page.locator("section.present .clock")
    expect(clock).to_have_text("10:00")
    page.clock.install()
    page.keyboard.press("t")
    page.clock.run_for(61_000)
    expect(clock).to_have_text("8:59")
    page.clock.run_for(600_000)
    expect(clock).to_have_text("Time is up")
    page.keyboard.press("t")
    expect(clock).to_have_text("10:00")


def test_the_speaker_view_has_the_notes_of_a_trap(first):
    with first.expect_popup() as opened:
        first.keyboard.press("s")
    view = opened.value
    expect(view.locator(".speaker-controls-notes")).to_contain_text("Live:", timeout=20_000)
    view.close()
    assert first.locator("section.present section.present aside.notes").is_hidden()


def test_a_room_stands_in_a_frame_and_is_about_the_trap_of_the_slide(page, tmp_path):
    with running(tmp_path) as room:
        go_to(page, "[data-guess='08.2']")
        page.keyboard.press("r")
        expect(page.get_by_role("status")).to_contain_text("it is not shown")
        paste(page, f"{room.url}present#{room.secret}\n")
        expect(page.get_by_role("status")).to_have_count(0)
        assert room.secret not in page.evaluate("document.body.innerText + location.href")
        frame = page.frame_locator("iframe.room")
        expect(frame.locator("footer button").first).to_contain_text("Ask 08.2")
        frame.locator("body").press(" ")
        asked = frame.get_by_role("heading", name="By what percentage (root mean square)")
        expect(asked).to_be_visible()
        frame.locator("body").evaluate(ESCAPE_SOON)
        expect(page.locator("iframe")).to_have_count(0)
        before = page.evaluate("Reveal.getIndices().h")
        page.keyboard.press("ArrowLeft")
        assert page.evaluate("Reveal.getIndices().h") == before - 1


def paste(page, text):
    page.evaluate("""text => { const data = new DataTransfer(); data.setData("text", text);
        document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data })); }""", text)


@pytest.mark.parametrize("said", ["", "javascript:alert(1)", "http://x/", "file:///etc/passwd"])
def test_what_is_no_presenters_address_opens_no_frame_and_is_not_shown(page, said):
    page.evaluate("address = ''; note?.remove(); note = null")
    page.keyboard.press("r")
    paste(page, said)
    expect(page.get_by_role("status")).to_contain_text("That was not a presenter’s address")
    assert not said or said not in page.evaluate("document.body.innerText")
    expect(page.locator("iframe")).to_have_count(0)
    page.keyboard.press("r")
    expect(page.get_by_role("status")).to_have_count(0)


def test_the_line_that_a_room_prints_gives_slides_its_address_and_no_bar_shows_it(
        browser, page, tmp_path):
    (tmp_path / "08_slides.html").write_text(page.content(), "utf-8")
    with running(tmp_path) as room:
        line = re.search(r"Slides +(\S+)", room.output)[1]
        file = tmp_path / "08_slides.html"
        assert line == f"{file.as_uri()}#room={room.url}present#{room.secret}"
        opened = offline_page(browser, viewport={"width": 1280, "height": 720})
        file.write_text(deck.html([deck.Slide("x", [])], "x"), "utf-8")
        opened.goto(line)
        opened.wait_for_function("window.Reveal && Reveal.isReady()")
        assert room.secret not in opened.url
        opened.reload()
        opened.keyboard.press("r")
        expect(opened.frame_locator("iframe.room").locator(".here")).to_contain_text("here")
        assert room.secret not in opened.url
        opened.close()


def test_the_speaker_view_is_that_of_its_release():
    assert hashlib.sha256((deck.TEMPLATE / "vendor/notes.js").read_bytes()).hexdigest() == NOTES


def test_a_script_in_a_script_is_no_tag():
    """The speaker view holds a page as text. Its tags would end the script around it."""
    made = deck.html([deck.Slide("x", [])], "x")
    assert made.count("<script>") == made.count("</script>") == 3
    assert json.loads('"' + deck._SCRIPT.sub(r"\\u003c\1", "<!-- <script></script>") + '"') == (
        "<!-- <script></script>")
