"""A room in a real browser: a presenter by keyboard and three phones, two rounds, an exercise."""

import re

import pytest
from browser import offline_page, violations
from playwright.sync_api import expect
from rooms import Learner, running, send, shown

from dlsys.room import questions, results, rounds
from dlsys_checks import registry
from dlsys_helpers.stages import stage

CHOICE = {"A": "more than 4", "B": "about 2.77",
          "C": "about 0.36"}


def overflows(page, down=False):
    """Whether a page is wider than its window, or also higher if `down`."""
    wide = "document.documentElement.scrollWidth > innerWidth"
    high = "document.documentElement.scrollHeight > innerHeight"
    return page.evaluate(f"{wide} || {high}" if down else wide)


def fine(*pages):
    for page in pages:
        assert violations(page) == []
        assert not overflows(page, down=page.viewport_size["width"] == 1280)


def end(room, pages, contexts):
    """Stop a room: each page says so and had no errors."""
    room.stop()
    for page in pages:
        expect(page.get_by_role("heading", name="The room is over")).to_be_visible()
        assert page.problems == page.refused == []
        page.close()
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """A room, its presenter's page, and three phones that have joined; then the room is ended."""
    with running(tmp_path_factory.mktemp("room")) as room:
        wall = offline_page(browser, viewport={"width": 1280, "height": 720})
        wall.goto(f"{room.url}present#{room.secret}")
        # Each phone has its own browser context, and so its own cookie.
        contexts = [browser.new_context(viewport={"width": w, "height": 700}, color_scheme=scheme)
                    for w, scheme in ((390, "light"), (320, "dark"), (320, "light"))]
        phones = [offline_page(context) for context in contexts]
        phones[0].goto(f"{room.url}#{room.code}")  # as the QR code leads
        for phone in phones[1:]:
            phone.goto(room.url)
            phone.get_by_label("The six letters on the wall").fill(room.code.lower())
            phone.keyboard.press("Enter")
        for phone in phones:
            expect(phone.get_by_role("heading", name="You are in")).to_be_visible()
        fine(wall, phones[1])
        yield room, wall, phones
        end(room, (wall, *phones), contexts)


@pytest.fixture
def class_(opened):
    """The room between two questions."""
    room, wall, phones = opened
    for step in ("close", "rest"):
        room.step(step)  # refused where it is not the next
    for phone in phones:
        expect(phone.get_by_role("heading", name="You are in")).to_be_visible()
    return room, wall, phones


def ask(room, wall, trap):
    assert room.step("ask", trap=trap) == 200
    expect(wall.locator("footer button").first).to_contain_text("Close")


def guess(phone, letter, sure):
    answer(phone, CHOICE[letter], sure)


def answer(phone, choice, sure="sure"):
    phone.get_by_role("radio", name=choice).check()
    phone.get_by_role("radio", name=sure, exact=True).check()
    phone.get_by_role("button", name="This is my answer").click()
    expect(phone.get_by_role("heading", name="Thank you")).to_be_visible()


def next_step(wall, words):
    """Press space once the page says what it will do."""
    expect(wall.locator("footer button").first).to_contain_text(words)
    wall.locator("body").press(" ")


def test_two_rounds_of_a_choice_and_one_of_a_number(class_):
    room, wall, phones = class_
    expect(wall.locator(".here")).to_have_text("3 here")
    assert room.secret not in wall.url, "a projector shows the address bar"
    next_step(wall, "Ask 08.1")
    expect(phones[1].get_by_role("heading", name="mean of the eight losses")).to_be_visible()
    for page in (wall, phones[1]):
        expect(page.get_by_text("You train on rows of 8 tokens")).to_be_visible()
    phones[1].get_by_text("The code", exact=True).click()
    expect(phones[1].get_by_text("open_lm = LM(VOCAB, T)")).to_be_visible()
    fine(wall, phones[1])
    guess(phones[0], "C", "sure")
    guess(phones[1], "B", "not sure")
    guess(phones[2], "A", "not sure")
    expect(wall.locator(".answered")).to_contain_text("3 answered of 3 here")
    phones[2].get_by_role("button", name="Change my answer").click()
    guess(phones[2], "B", "sure")
    expect(wall.locator(".answered")).to_contain_text("3 answered of 3 here")
    assert wall.locator(".bars").count() == phones[0].locator(".bars").count() == 0
    next_step(wall, "Close")
    expect(phones[0].get_by_text("The question is closed.")).to_be_visible()
    assert phones[0].locator(".bars").count() == 0
    next_step(wall, "Show the counts")
    for page in (wall, *phones):
        expect(page.locator(".bars .number")).to_have_text(
            ["0 %, 0, of them 0 sure", "67 %, 2, of them 1 sure", "33 %, 1, of them 1 sure"])
    for page in (wall, phones[0]):
        filled = page.locator(".bars li:nth-child(2) .track").evaluate(
            "t => [...t.children].reduce((sum, part) => sum + part.offsetWidth, 0) / t.offsetWidth")
        assert filled == pytest.approx(2 / 3, abs=0.02), "a full track is everybody"
    expect(wall.get_by_text("measured")).to_have_count(0)
    next_step(wall, "Ask again")
    for phone, letter in zip(phones, "AAB", strict=True):
        expect(phone.get_by_text("Again, after talking")).to_be_visible()
        guess(phone, letter, "sure")
    next_step(wall, "Close")
    expect(wall.get_by_text("Closed, with 3 answers.")).to_be_visible()
    wall.locator("body").press("r")
    expect(wall.locator(".measured")).to_have_text("Measured: “more than 4”.")
    for page in (wall, phones[0]):
        expect(page.locator(".found")).to_have_text(
            "Without a mask: loss for the token after a prefix, in nats: 4.96.")
    expect(wall.locator("figcaption")).to_have_text("1 from B to A, 1 from C to A, 1 of 3 stayed.")
    expect(phones[0].locator(".said")).to_have_text(
        ["Your answer before: C, about 0.36, sure.",
         "Your answer after: A, more than 4, sure."])
    phones[0].get_by_role("button", name="What to keep").click()
    expect(phones[0].locator("#keep")).to_contain_text("In your own code:",
                                                         timeout=20_000)
    fine(wall, *phones[:2])

    wall.locator("body").press("n")  # the next question asks for a number
    box = phones[1].get_by_label("Your guess")
    box.fill("80")
    phones[1].get_by_role("radio", name="not sure").check()
    phones[1].keyboard.press("Enter")
    expect(wall.locator(".answered")).to_contain_text("1 answered of 3 here")
    next_step(wall, "Close")
    next_step(wall, "Show the counts")
    expect(wall.get_by_role("img", name="Guesses from 0 to 100 %. 1 answer")).to_be_visible()
    expect(wall.locator(".band")).to_have_count(0)
    wall.locator("body").press("r")
    expect(wall.get_by_role("img", name="1 of them between 60 and 130 %")).to_be_visible()
    expect(wall.locator(".band")).to_have_count(1)
    fine(wall, phones[1])


DRAW = """async ([room, shown]) => {
  const { results } = await import(room + "static/draw.js");
  const main = document.querySelector("main");
  main.replaceChildren(...results(shown));
  const picture = main.querySelector("svg").getBoundingClientRect();
  const boxes = (kind) => [...main.querySelectorAll(kind)].map((node) =>
    node.getBoundingClientRect());
  const ticks = boxes(".tickname");
  return { words: [...main.querySelectorAll("text")].map((node) => node.textContent),
    columns: new Set(boxes("circle").map((box) => box.x)).size,
    outside: boxes("text").filter((box) =>
      box.left < picture.left || box.right > picture.right).length,
    touching: ticks.slice(1).filter((box, k) => box.left < ticks[k].right).length };
}"""


@pytest.mark.parametrize(("guesses", "said"), [
    ((0, 1, 500, 990, 1e15), "1 above 1,040 ▸"), ((-1e15, 70, 80, 90, 100), "◂ 1 below 0"),
    ((1e15, 1e15 - 0.125), ""), ((2e8, 9e8, 3e9), ""), ((1234.5, 1234.6, 1234.7), ""),
    ((-2e-5, 7e-5), ""), ((-300, 200, 600), "0 %"), ((-0.2, 0.1, 0.3), "0 %")])
def test_one_joker_does_not_hide_the_class_and_labels_stay_inside(class_, guesses, said):
    room, wall, phones = class_
    one = rounds.Room(questions.of_stage(stage(8)))
    one.apply({"kind": "ask", "trap": "08.2"})
    for k, guess in enumerate(guesses):
        one.answers.setdefault(("08.2", 1), {})[f"p{k}"] = rounds.Answer(float(guess), True)
    for page, revealed in ((wall, False), (phones[1], True)):
        found = page.evaluate(DRAW, [room.url, results.question_view(one, "08.2", revealed)])
        assert found["outside"] == found["touching"] == 0, found["words"]
        if not revealed:
            assert said in ("", *found["words"]), found["words"]
            assert found["columns"] >= len(guesses) - 2
    for page in (wall, phones[1]):
        page.reload()


def test_forty_learners_in_the_exercise_phase(class_):
    room, wall, phones = class_
    names = [w.name for w in registry.find("08.3").wrong_answers]
    ask(room, wall, "08.3")
    for step in ("close", "reveal"):
        assert room.step(step) == 200
    expect(wall.locator(".measured")).to_be_visible()
    wall.locator("body").press("x")
    expect(phones[0].get_by_role("heading", name="Exercise 08.3")).to_be_visible()
    made = [names[4]] * 13 + [names[0]] * 11 + names[5:10] + ["not one of its names"] * 3
    for name in made:
        assert Learner(room).verdict("08.3", "wrong", name) == 200
    for _ in range(8):
        assert Learner(room).verdict("08.3", "pass") == 200
    expect(wall.locator(".big")).to_have_text("8 passed, 32 trying")
    assert Learner(room).verdict("08.3", "todo") == 200
    rows = wall.locator(".stuck li")
    expect(rows.nth(0)).to_have_text(f"13{names[4]}")
    expect(rows.nth(1)).to_have_text(f"11{names[0]}")
    expect(rows.last).to_have_text("1not written yet")
    expect(rows.nth(5)).to_have_text("5another mistake")
    expect(wall.locator(".big")).to_have_text("8 passed, 32 trying")
    expect(wall.locator(".ask")).to_contain_text("Which of your lines keeps this promise?")
    phones[1].get_by_role("button", name="Open hint 1 (3 hints left)").click()
    expect(phones[1].locator(".hints li")).to_have_count(1)
    expect(wall.get_by_text("Hints opened here: 1. by 1")).to_be_visible()
    fine(wall, phones[0])


TYPED = {"5,5": 5.5, "5.5": 5.5, " 80 ": 80, ",5": 0.5, "0,125": 0.125, "\u22123": -3,
         "1e-3": 0.001, "1.000,5": None, "1,000.5": None, "about 5": None, "5 %": None,
         "0x10": None, "1,250": None, "Infinity": None, "1e400": None, "1e16": None}


def test_a_comma_is_a_decimal_sign_whatever_the_phone_speaks(class_):
    room, wall, phones = class_
    ask(room, wall, "08.5")
    phone = phones[1]
    for typed, answer in TYPED.items():
        phone.get_by_label("Your guess").fill(typed)
        phone.get_by_role("radio", name="not sure").check()
        phone.get_by_role("button", name="This is my answer").click()
        if answer is None:
            expect(phone.get_by_role("alert")).to_contain_text(re.compile(
                "not a number here. Write only digits|may be 1250 or 1.250|too large to be drawn"))
        else:
            expect(phone.locator(".said")).to_contain_text(f"Your answer: {answer:g} ")
            phone.get_by_role("button", name="Change my answer").click()


def test_space_leaves_no_exercise_and_one_key_comes_back(class_):
    room, wall, phones = class_
    ask(room, wall, "08.4")
    for step in ("close", "reveal"):
        assert room.step(step) == 200
    expect(wall.locator("footer button").first).to_contain_text("Exercise 08.4 Space")
    wall.locator("footer button").first.click()  # the button keeps the focus, so space goes to it
    expect(wall.get_by_role("timer")).to_be_visible()
    assert "Space" not in wall.locator("footer").inner_text()
    for _ in range(3):
        wall.keyboard.press(" ")
    expect(phones[0].get_by_role("heading", name="Exercise 08.4")).to_be_visible()
    wall.keyboard.press("n")
    expect(wall.locator("footer")).to_contain_text("Back to exercise 08.4 X")
    wall.keyboard.press("x")
    for page in (wall, phones[0]):
        expect(page.get_by_role("heading", name="Exercise 08.4")).to_be_visible()
        expect(page.get_by_role("timer")).to_contain_text(":")
    wall.keyboard.press("o")
    expect(wall.get_by_text("Join the room")).to_have_count(1)
    wall.keyboard.press("x")
    expect(wall.get_by_role("heading", name="Exercise 08.4")).to_be_visible()


def test_five_phones_and_one_of_them_with_a_notebook_are_five(browser, tmp_path):
    """The notebook joins with the code on the phone; the wall counts people, not devices."""
    with running(tmp_path) as room:
        contexts = [browser.new_context(viewport={"width": w, "height": 700}, has_touch=True,
                                        locale=locale)
                    for w, locale in ((320, "en-GB"), (360, "de-DE"), (390, "fr-FR"),
                                      (414, "en-US"), (430, "de-DE"))]
        phones = [offline_page(context) for context in contexts]
        for phone in phones:
            phone.goto(f"{room.url}#{room.code}")
            expect(phone.get_by_role("heading", name="You are in")).to_be_visible()
        shows = phones[1].locator("code", has_text="dlsys join").inner_text()
        own = shows.rpartition(" ")[2]
        assert re.fullmatch(rf"{room.code}-[A-Z]{{8}}", own)
        notebook = Learner(room)
        cookie = send(room.port, "join", {"code": own}, notebook.cookie)[2]
        assert room.step("ask", trap="08.2") == 200
        for phone, typed in zip(phones, ("80", "80,5", "37,5", "100", "12.5"), strict=True):
            phone.get_by_label("Your guess").fill(typed)
            phone.get_by_role("radio", name="sure", exact=True).check()
            phone.get_by_role("button", name="This is my answer").click()
            expect(phone.locator(".said")).to_have_text(
                f"Your answer: {typed.replace(',', '.')} %, sure.")
        assert send(room.port, "answer", {"trap": "08.2", "go": 1, "guess": 90, "sure": True},
                    cookie)[0] == 200
        wall = shown(room.port, "watch", key=room.secret)
        assert (wall["answered"], wall["here"]) == (5, 5)
        for phone in phones:
            assert not overflows(phone)
            assert phone.problems == []
        for context in contexts:
            context.close()


def test_pages_come_back_after_the_server_was_killed(class_):
    room, wall, phones = class_
    ask(room, wall, "08.10")
    first, second = "all five", "only the first one"
    answer(phones[0], first)
    phones[1].get_by_role("radio", name=second).check()  # half an answer
    room.kill()
    for page in (wall, phones[1]):
        expect(page.get_by_text("Reconnecting")).to_be_visible()
    phones[1].get_by_role("radio", name="not sure").check()
    phones[1].get_by_role("button", name="This is my answer").click()
    expect(phones[1].get_by_role("alert")).to_contain_text("does not answer")
    room.start(room.port)
    for page in (wall, phones[1]):
        expect(page.get_by_text("Reconnecting")).to_have_count(0, timeout=20_000)
    expect(phones[1].get_by_role("radio", name=second)).to_be_checked()
    phones[1].get_by_role("button", name="This is my answer").click()
    expect(wall.locator(".answered")).to_contain_text("2 answered")


def test_the_presenters_own_screen_has_the_counts_and_what_they_ask_for(class_, browser):
    room, wall, phones = class_
    ask(room, wall, "08.11")
    answer(phones[0], "the same")
    own = offline_page(browser, viewport={"width": 1280, "height": 720})
    own.goto(f"{room.url}present?notes#{room.secret}")
    expect(own.get_by_role("heading", name="For you alone")).to_be_visible()
    next_step(wall, "Close")
    expect(own.get_by_text("0 of 1 are right: too few to convince each other.")).to_be_visible()
    expect(own.locator(".bars")).to_have_count(1)
    expect(wall.locator(".bars")).to_have_count(0)
    assert violations(own) == own.problems == []
    own.close()


def test_a_name_is_asked_for_where_the_presenter_wants_names(browser, tmp_path):
    with running(tmp_path, "--names") as room:
        page = offline_page(browser)
        page.goto(f"{room.url}#{room.code}")
        page.get_by_label("Your name").fill("Ada")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="You are in")).to_be_visible()
        assert violations(page) == page.problems == []
        page.close()
        room.stop()
    assert next(tmp_path.glob("rooms/*/names.csv")).exists()


def test_without_the_secret_the_presenters_page_shows_nothing(class_, browser):
    room, _, _ = class_
    page = offline_page(browser)
    page.goto(f"{room.url}present")
    expect(page.get_by_role("heading", name="This is the presenter's page")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)
    page.close()
