"""A room that reviews changes in a real browser: a presenter by keyboard, and three phones."""

import pytest
from browser import offline_page, violations
from playwright.sync_api import expect
from rooms import running
from test_room_browser import end, fine, next_step
from test_room_review import CASES, FAULTY, GOOD, place

from dlsys_diffs.case_files import CHANGED


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """A room, its presenter's page, and three phones that have joined; then the room is ended."""
    with running(tmp_path_factory.mktemp("room"), what=("--review", FAULTY, GOOD)) as room:
        wall = offline_page(browser, viewport={"width": 1280, "height": 720})
        wall.goto(f"{room.url}present#{room.secret}")
        contexts = [browser.new_context(viewport={"width": w, "height": 700}, color_scheme=scheme)
                    for w, scheme in ((390, "light"), (320, "dark"), (390, "dark"))]
        phones = [offline_page(context) for context in contexts]
        for phone in phones:
            phone.goto(f"{room.url}#{room.code}")
            expect(phone.get_by_text("The next change appears here by itself.")).to_be_visible()
        fine(wall, phones[0])
        yield room, wall, phones
        end(room, (wall, *phones), contexts)


def mark(phone, line, confidence):
    """Mark a line, or "none", and give a confidence."""
    phone.locator(f'.review input[value="{line}"]').first.check()
    phone.get_by_role("radio", name=str(confidence), exact=True).check()


def send(phone, consequence):
    phone.get_by_role("radio", name=consequence).check()
    phone.get_by_role("button", name="This is my answer").click()
    expect(phone.get_by_role("heading", name="Thank you")).to_be_visible()


def test_two_changes_and_the_rooms_score(opened):
    _, wall, phones = opened
    case, healthy = CASES[int(FAULTY) - 1], CASES[int(GOOD) - 1]
    next_step(wall, f"Ask change {FAULTY}")
    for page in (wall, *phones):
        expect(page.get_by_text(case.title).first).to_be_visible()
        expect(page.locator(".line").first).to_be_visible()
    fine(wall, *phones)
    wall.locator("body").press(" ")  # this closes nothing while the class is reading
    expect(phones[0].get_by_text(case.consequences[0])).to_be_hidden()
    first = next(line for line in case.diff if line.sign == "+")
    mark(phones[0], f"{first.file}:{first.at}", 0)
    phones[0].get_by_role("radio", name=case.consequences[1]).check()
    phones[0].get_by_role("button", name="This is my answer").click()
    expect(phones[0].get_by_role("alert")).to_contain_text(
        "You marked a line, and you think that the change is healthy.")
    mark(phones[0], f"{first.file}:{first.at}", 60)
    fine(phones[0])
    send(phones[0], case.consequences[1])
    expect(phones[0].locator(".said")).to_contain_text(f"{first.file}:{first.at}, 60 % sure")

    # A line in a file that the change does not touch is marked there.
    file = place(FAULTY).partition(":")[0]
    assert file not in {line.file for line in case.diff}
    phones[1].get_by_text("A different place, in any file").click()
    phones[1].locator("summary", has_text=file).click()
    mark(phones[1], place(FAULTY), 90)
    fine(phones[1])

    # A run that appears meanwhile does not clear a half-finished answer.
    wall.locator("body").press("t")
    expect(wall.get_by_role("button", name="serving")).to_be_visible()
    wall.locator("body").press("6")
    for page in (wall, *phones):
        expect(page.get_by_role("heading", name="Recorded run: serving")).to_be_visible()
    expect(wall.get_by_text("Show a recorded run")).to_have_count(0)
    fine(wall, phones[0])
    send(phones[1], case.consequences[0])
    mark(phones[2], "none", 10)
    send(phones[2], "Nothing bad")

    # A changed answer starts from the earlier choice.
    phones[1].get_by_role("button", name="Change my answer").click()
    expect(phones[1].locator(f'input[value="{place(FAULTY)}"]')).to_be_checked()
    phones[1].get_by_role("radio", name="80", exact=True).check()
    send(phones[1], case.consequences[0])
    expect(wall.locator(".answered")).to_contain_text("3 answered of 3 here")
    assert wall.locator(".gauge").count() == phones[0].locator(".gauge").count() == 0

    wall.locator("body").press("c")
    for page in (wall, *phones):
        expect(page.locator(".heading")).to_have_text("The change is incomplete.")
        expect(page.get_by_text("1 of 3 marked it right, on average 80 % sure")).to_be_visible()
        expect(page.get_by_text(f"Marked elsewhere: {place(FAULTY)} (1).")).to_be_visible()
        expect(page.get_by_role("heading", name="The repair")).to_be_visible()
        expect(page.locator(".bars .right .choice")).to_have_text(
            f"{case.consequences[0]} ✓ right")
        expect(page.locator(".measured")).to_contain_text("Measured, run serving:")
    expect(wall.locator(".gauge .n", has_text="marked it")).to_have_count(1)
    expect(phones[1].locator(".said")).to_contain_text("✓ marked right")
    expect(phones[2].locator(".said")).to_contain_text("✗ marked wrong")
    fine(wall, *phones)

    next_step(wall, f"Ask change {GOOD}")
    expect(phones[0].get_by_text(healthy.title).first).to_be_visible()
    for phone, confidence in zip(phones, (20, 50, 70), strict=True):
        mark(phone, "none", confidence)
        if confidence > 50:  # the page asks once for confirmation
            phone.get_by_role("radio", name="Nothing bad").check()
            phone.get_by_role("button", name="This is my answer").click()
            expect(phone.get_by_role("alert")).to_contain_text("You marked nothing")
        send(phone, "Nothing bad")
    wall.locator("body").press("c")
    for page in (wall, phones[0]):
        expect(page.locator(".heading")).to_have_text("This change is healthy.")
        expect(page.get_by_text("1 accused it: more than 50 % sure.")).to_be_visible()
        whole = page.locator(".bars .number", has_text="100 %")
        assert whole.evaluate("node => node.offsetHeight < 2 * parseFloat("
                              "getComputedStyle(node).fontSize)"), "100 % is on one line"
    fine(wall, phones[0])

    wall.locator("body").press("s")
    # In five of the nine pairs of 60, 80, 10 and 20, 50, 70, the faulty change has more.
    for page in (wall, *phones):
        expect(page.get_by_text("AUROC of the room: 0.56, from 6 answers to 2 changes.")
               ).to_be_visible()
        expect(page.get_by_text("1 of 3 accused a healthy change")).to_be_visible()
    expect(phones[1].get_by_text("AUROC of your answers: 1.00, from 2 answers to 2 changes.")
           ).to_be_visible()
    expect(wall.locator("tbody tr")).to_have_count(2)
    fine(wall, *phones)


def test_a_change_is_drawn_or_picked_and_left_again_by_key(opened):
    room, wall, phones = opened
    room.step("rest")
    numbers = wall.locator(".numbers button")
    expect(numbers).to_have_count(60)
    fine(wall)
    wall.locator("body").press("b")
    expect(wall.get_by_role("heading", name="Change ")).to_be_visible()
    wall.locator("body").press("o")
    expect(numbers.first).to_be_visible()
    changed = next(str(n) for n, case in enumerate(CASES, 1) if case.kind == CHANGED)
    numbers.filter(has_text=CASES[int(changed) - 1].title).first.click()
    expect(wall.get_by_role("heading", name=f"Change {changed}:")).to_be_visible()
    phones[0].get_by_role("button", name="This is my answer").click()
    expect(phones[0].get_by_role("heading", name="Thank you")).to_have_count(0)
    assert violations(phones[0]) == []


def test_the_presenters_own_screen_says_what_a_change_is(opened, browser):
    room, _, _ = opened
    room.step("rest")
    own = offline_page(browser, viewport={"width": 1280, "height": 720})
    own.goto(f"{room.url}present?notes#{room.secret}")
    expect(own.get_by_role("heading", name="For you alone")).to_be_visible()
    expect(own.get_by_text("The run that measures it:")).to_be_visible()
    assert violations(own) == own.problems == []
    own.close()
