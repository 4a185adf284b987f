"""A guess in a real browser: on a page, which hides the rest until then, and in JupyterLab."""

import html
import json
import re
import shutil

import nbformat
import pytest
from browser import (
    forgetful_phone,
    lab_command,
    offline_page,
    open_notebook,
    run_all,
    running_lab,
    violations,
)
from playwright.sync_api import expect

from dlsys_helpers.explorers import write_assets
from dlsys_helpers.guesses import Measurement, Question, _html
from tools import book

HEADER = book.GUESS_FIRST.split("{raw} html\n")[1].split("```")[0]
CHOICE = Question("01.1", "Which of `a` and b?", ("`a`", "b", "neither"))
NUMBER = Question("01.2", "How many?", unit="%")
RESULTS = {"01.1": Measurement("01.1", "“b”", "b"),
           "01.2": Measurement("01.2", "6.4\N{NO-BREAK SPACE}%", (2, 20), 6.4)}


def section(question):
    """A trap as the book renders it: code, question, what waits for the guess, the way on."""
    facts = html.escape(json.dumps(RESULTS[question.id]._asdict()))
    slug = question.id.replace(".", "-")
    return (f'<section id="trap-{slug}"><h2>Trap {question.id}</h2>'
            f'<div class="pair"><div class="step step-break"><p>The code.</p></div>'
            f'<div class="step step-guess"><h3 class="step-name">Guess</h3>'
            f'<div class="cell tag_guess"><div>{_html(question)}</div></div></div></div>'
            f'<div class="waits"><div class="step"><h3 class="step-name">Look</h3>'
            f'<p>Seen here.</p></div><div class="step"><h3 id="deep-{slug}">Why</h3>'
            f'<p class="dlsys-measured" data-measured="{facts}">Measured: it.</p></div>'
            f'<details class="more"><summary>More: a topic (2 claims)</summary>'
            f'<p id="beside-{slug}">Beside it.</p></details></div>'
            f'<p class="role-next">Next on the core path.</p></section>')


PAGE = f"""<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">
<title>Guesses</title><link rel="stylesheet" href="explorers/explorer.css">
<link rel="stylesheet" href="course.css">
<style>html[data-theme=dark] body {{ background: #14181e; color: #ced6dd }}</style></head>
<body class="bd-article"><main><h1>Guesses</h1>{HEADER.replace("../", "")}
{section(CHOICE)}{section(NUMBER)}<p>After the traps.</p></main></body></html>"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    for front_end in ("explorer", "guess"):
        write_assets(folder / "explorers", front_end)
    shutil.copytree(book.BOOK / "assets" / "site", folder / "site")
    (folder / "course.css").write_text((book.BOOK / "_static/course.css").read_text("utf-8"))
    (folder / "page.html").write_text(PAGE, "utf-8")
    return (folder / "page.html").as_uri()


@pytest.fixture(scope="module")
def tab(browser):
    opened = offline_page(browser)
    yield opened
    opened.close()


@pytest.fixture
def page(tab, address):
    """The page in a browser that remembers nothing yet; afterwards, check that no script failed."""
    yield forgetful_phone(tab, address)
    assert tab.problems == []


def trap(page, question):
    return page.locator(f"#trap-{question.id.replace('.', '-')}")


def below(page, question):
    """The texts below a question that wait for its guess."""
    return trap(page, question).get_by_text(re.compile("^(Seen here|Measured|You said)"))


def expect_open(page, question, is_open=True):
    for part in below(page, question).all():
        expect(part).to_be_visible(visible=is_open)


def test_what_follows_waits_and_opens_by_keyboard_when_the_guess_is_made(page):
    expect_open(page, CHOICE, False)
    for text in ("The code.", "Next on the core path.", "After the traps."):
        expect(page.get_by_text(text).first).to_be_visible()
    page.get_by_role("button", name="Show all answers").focus()
    for key in ("Tab", "ArrowDown", "ArrowDown", "Tab", "Space", "Tab", "Enter"):
        page.keyboard.press(key)
    expect_open(page, CHOICE)
    expect_open(page, NUMBER, False)
    expect(trap(page, CHOICE).get_by_role("status")).to_have_text("Your guess: “neither”, sure.")
    expect(trap(page, CHOICE).get_by_role("status")).to_be_focused()
    expect(page.locator("#deep-01-1 ~ p")).to_have_text(
        "You said “neither” and were sure; measured “b”.")


def guess_number(page, text, sure="not sure"):
    box = trap(page, NUMBER)
    box.get_by_label("Your guess").fill(text)
    box.get_by_role("radio", name=sure, exact=True).check()
    box.get_by_role("button", name="This is my guess").click()


def test_a_guess_is_remembered_and_may_be_made_again(page):
    guess_number(page, "7.5")
    page.reload()
    expect_open(page, NUMBER)
    said = page.locator("#deep-01-2 ~ p")
    expect(said).to_have_text("You said 7.5\N{NO-BREAK SPACE}% and were not sure; "
                              "measured 6.4\N{NO-BREAK SPACE}%: right, as is "
                              "2 to 20\N{NO-BREAK SPACE}%.")
    trap(page, NUMBER).get_by_role("button", name="Guess again").click()
    expect(trap(page, NUMBER).get_by_label("Your guess")).to_be_focused()
    guess_number(page, "70", "sure")
    expect(said).to_contain_text("You said 70\N{NO-BREAK SPACE}% and were sure;")
    expect(said).to_contain_text("11 times too high.")


def test_one_right_number_is_no_band(page):
    page.evaluate("""() => document.querySelectorAll('[data-measured]').forEach((node) => {
      const facts = JSON.parse(node.dataset.measured);
      if (facts.id === '01.2') node.dataset.measured = JSON.stringify(
        {...facts, shown: '4\u00a0%', right: [4, 4], value: 4});
    })""")
    said = page.locator("#deep-01-2 ~ p")
    guess_number(page, "4")
    expect(said).to_have_text("You said 4\N{NO-BREAK SPACE}% and were not sure; "
                              "measured 4\N{NO-BREAK SPACE}%: right.")
    trap(page, NUMBER).get_by_role("button", name="Guess again").click()
    guess_number(page, "8")
    expect(said).to_contain_text("measured 4\N{NO-BREAK SPACE}%: 2 times too high.")


def test_the_answer_comes_into_sight_below_the_guess(page):
    page.set_viewport_size({"width": 390, "height": 480})
    look = trap(page, NUMBER).get_by_role("heading", name="Look")
    guess_number(page, "7")
    expect(look).to_be_in_viewport()
    expect(trap(page, NUMBER).get_by_role("status")).to_be_focused()


def test_a_question_that_stands_alone_is_asked_and_compared(page):
    page.evaluate("""() => {
      const box = document.querySelector("[data-guess]");
      box.dataset.guess = box.dataset.guess.replace("01.1", "model.1");
      box.closest(".pair").replaceWith(box);
    }""")
    page.evaluate("document.querySelectorAll('.waits')[0].remove()")
    alone = page.content()
    page.set_content(alone)
    expect(page.get_by_role("button", name="This is my guess")).to_have_count(2)
    expect(page.get_by_role("button", name="Show it without a guess")).to_have_count(1)


@pytest.mark.parametrize(("typed", "answer"), [
    ("7,5", "7.5"), ("7.5", "7.5"), (",5", "0.5"), ("1.000,5", None), ("1,250", None),
    ("seven", None)])
def test_a_comma_is_a_decimal_sign_and_what_may_be_two_numbers_is_none(page, typed, answer):
    guess_number(page, typed)
    expect_open(page, NUMBER, answer is not None)
    box = trap(page, NUMBER)
    if answer:
        expect(box.get_by_role("status")).to_have_text(
            f"Your guess: {answer}\N{NO-BREAK SPACE}%, not sure.")
    else:
        why = box.get_by_label("Your guess").evaluate("input => input.validationMessage")
        assert "with a point or without a separator" in why or "5,5 or 5.5" in why


def test_half_a_guess_opens_nothing(page):
    box = trap(page, NUMBER)
    box.get_by_label("Your guess").fill("7")
    box.get_by_role("button", name="This is my guess").click()
    expect_open(page, NUMBER, False)


def test_one_trap_opens_without_a_guess_and_says_only_what_was_measured(page):
    trap(page, NUMBER).get_by_role("button", name="Show it without a guess").click()
    expect_open(page, NUMBER)
    expect(trap(page, NUMBER).get_by_role("heading", name="Look")).to_be_focused()
    expect(page.locator("#beside-01-2")).to_be_hidden()
    expect_open(page, CHOICE, False)
    expect(page.locator("#deep-01-2 ~ p")).to_have_text("Measured: it.")


def test_one_button_shows_everything_and_is_remembered(page):
    page.get_by_role("button", name="Show all answers").click()
    for _ in range(2):
        expect_open(page, CHOICE)
        expect_open(page, NUMBER)
        page.reload()
    page.get_by_role("button", name="Hide them again").click()
    expect_open(page, CHOICE, False)


def test_print_shows_everything(page):
    page.emulate_media(media="print")
    expect_open(page, CHOICE)
    expect(page.get_by_role("button", name="This is my guess").first).to_be_hidden()


def test_an_address_that_leads_below_a_question_opens_it(page, address):
    page.goto(f"{address}#deep-01-2")
    expect_open(page, NUMBER)
    expect_open(page, CHOICE, False)
    page.goto(f"{address}#beside-01-1")
    expect(page.locator("#beside-01-1")).to_be_in_viewport()


def test_on_paper_what_is_folded_is_open_and_afterwards_folded_again(page):
    folds = page.locator("details.more[open]")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(folds).to_have_count(2)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    expect(folds).to_have_count(0)
    expect_open(page, CHOICE, False)


def test_a_guess_that_the_question_no_longer_offers_opens_nothing(page):
    page.evaluate("""localStorage.setItem("dlsys-guess-01.1",
                     '{"guess": "both", "sure": true}')""")
    page.reload()
    expect_open(page, CHOICE, False)


def test_a_browser_that_remembers_nothing_works_until_the_page_is_left(browser, address):
    page = offline_page(browser)
    page.add_init_script("Object.defineProperty(window, 'localStorage', "
                         "{ get() { throw new DOMException('denied', 'SecurityError'); } })")
    page.goto(address)
    expect_open(page, NUMBER, False)
    guess_number(page, "7")
    expect_open(page, NUMBER)
    assert page.problems == []
    page.close()


def test_without_javascript_everything_is_open_and_the_question_reads(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    expect_open(page, CHOICE)
    expect_open(page, NUMBER)
    expect(page.get_by_role("button")).to_have_count(0)
    expect(page.get_by_text("neither")).to_be_visible()
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_before_and_after_a_guess(page, theme):
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    assert violations(page) == []
    guess_number(page, "7")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


# ---- JupyterLab

CELLS = ["from dlsys_helpers import guess, measured\n"
         "guess('01.1', 'Which?', choices=['one', '`two`', 'three'])\n"
         "guess('01.2', 'How many?', unit='%')", "measured('01.1', 1)",
         "measured('01.2', 6.4, right=(2, 20))"]


# Below a question, a learner's copy folds the steps that answer it; here for two traps.
STEPS = ["### Look", "Seen.", "#### Why: a fault", "Because.", "#### More: a topic", "Beside it.",
         "### Keep", "Kept.", "## The next trap", "### Look", "Later."]


def step(source):
    fold = source.startswith(("### ", "#### More"))
    folded = {"jp-MarkdownHeadingCollapsed": True} if fold else {}
    return nbformat.v4.new_markdown_cell(source, metadata=folded)


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    notebook = nbformat.v4.new_notebook(
        cells=[*map(nbformat.v4.new_code_cell, CELLS), *map(step, STEPS)],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    nbformat.write(notebook, folder / "guesses.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLSYS_PROGRESS", str(folder))
        with running_lab(folder, tmp_path_factory.mktemp("home")) as running:
            page = offline_page(browser, viewport={"width": 1200, "height": 1400})
            open_notebook(page, running, "guesses.ipynb")
            run_all(page)
            expect(page.locator(".gs-form")).to_have_count(2, timeout=60_000)
            yield page, folder
            page.close()


def test_in_jupyterlab_a_run_waits_for_nothing_and_a_guess_is_kept_and_opens_the_steps(lab):
    page, folder = lab
    told = page.locator(".dlsys-measured")
    shown = [page.locator("p", has_text=text)
             for text in ("Seen.", "Because.", "Beside it.", "Kept.", "Later.")]
    assert [text.is_visible() for text in shown] == [False] * 5
    assert not page.locator("h4", has_text="Why: a fault").is_visible()
    expect(told).to_have_text(["Measured: “two”.", "Measured: 6.4\N{NO-BREAK SPACE}%."])
    notes = page.locator(".gs-note")
    expect(notes).to_have_text(["The cells below hold the answer: guess before you run them."] * 2)
    page.locator(".gs-form").first.get_by_role("radio", name="one").focus()
    for key in ("Space", "ArrowDown", "Tab", "Space", "Enter"):
        page.keyboard.press(key)
    expect(told.first).to_have_text("You said “two” and were sure; measured “two”: right.")
    expect(shown[3]).to_be_visible()
    expect(notes).to_have_count(1)
    assert [text.is_visible() for text in shown] == [True, True, False, True, False]
    kept = [json.loads(line) for line in (folder / ".guesses.jsonl").read_text().splitlines()]
    assert [(e["id"], e["guess"], e["sure"], e["right"]) for e in kept] == [
        ("01.1", "`two`", True, True)]
    form = page.locator(".gs-form")
    form.get_by_label("Your guess").fill("1e2")
    form.get_by_role("radio", name="not sure").check()
    form.get_by_role("button").click()
    expect(told.nth(1)).to_contain_text("You said 100\N{NO-BREAK SPACE}% and were not sure;")
    assert page.problems == []


@pytest.mark.parametrize("theme", ["Dark", "Light"])
def test_in_jupyterlab_axe_finds_nothing_in_a_guess(lab, theme):
    page, _ = lab
    lab_command(page, "apputils:change-theme", theme=f"JupyterLab {theme}")
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light",
                                                   "true" if theme == "Light" else "false")
    assert violations(page, context=".jp-OutputArea .xp") == []
