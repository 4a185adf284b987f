"""The checks on the pages of explorers, opened from disk in a browser without network.

The first visit is full, a page each, and tests/records/explorers.json keeps it; later ones are
brief, all on one page.
"""

import re
from collections.abc import Iterator

from browser import violations
from explorer_oracle import differences, far, move, stroll
from playwright.sync_api import expect

from dlsys_helpers.explorers import write_assets

PAGE = """<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">
<title>Explorers</title><link rel="stylesheet" href="explorer.css">
<script defer src="explorer.js"></script>
<style>html[data-theme=dark] body {{ background: #14181e; color: #ced6dd }}</style></head>
<body><main><h1>Explorers</h1>{}</main></body></html>"""
DESK = {"width": 900, "height": 1000}


def open_explorers(tab, folder, *explorers, mend=lambda script: script):
    """Open a page from disk with these explorers in a tab and return the tab.

    mend: may change the front end's script.
    """
    script, _ = write_assets(folder)
    script.write_text(mend(script.read_text()))
    target = folder / "page.html"
    target.write_text(PAGE.format("".join(e.static_html() for e in explorers)))
    tab.refused.clear()
    tab.problems.clear()
    tab.set_viewport_size(DESK)
    tab.goto(target.as_uri())
    expect(tab.locator(".xp[data-drawn]")).to_have_count(len(explorers))
    return tab


# Each look takes the page, the box of an explorer on it, and the explorer. It yields what is
# wrong and leaves the page as it found it, except for the last one.
def themes(page, box, e):
    """Axe's violations in the light and the dark theme."""
    expect(box).to_have_css("background-color", "rgb(251, 252, 254)")
    yield from violations(page)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    expect(box).to_have_css("background-color", "rgb(24, 28, 37)")
    yield from violations(page, options={"runOnly": ["color-contrast"]})  # nothing else can differ
    page.evaluate("document.documentElement.dataset.theme = 'light'")


FOCUSED = """() => {
  const node = document.activeElement, group = node.closest("fieldset");
  return (group ? group.querySelector("legend") : node.labels?.[0])?.textContent;
}"""


def tab_order(page, box, e):
    """Tab reaches every control once, in order."""
    box.locator(".xp-title").click()
    reached = []
    for _ in e.controls:
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUSED))
    if reached != [c.label for c in e.controls]:
        yield reached


def keyboard(page, box, e):
    """Every value of every control shows what Python computes; briefly, the way to the far end."""
    yield from stroll(box, e)


def narrow(page, box, e):
    """On a narrow page the explorer redraws everything to the scale of its labels."""
    canvas = box.locator(".xp-canvas svg").first
    wide = canvas.get_attribute("viewBox")
    page.set_viewport_size({"width": 380, "height": 800})
    expect(canvas).to_have_attribute("viewBox", re.compile(r"^0 0 [23]\d\d "))
    yield from differences(box, e, e.defaults)
    if (width := page.evaluate("document.documentElement.scrollWidth")) > 380:
        yield f"{width} pixels wide"
    page.set_viewport_size(DESK)
    expect(canvas).to_have_attribute("viewBox", wide)


BEYOND_THE_CARD = """box => [...box.querySelectorAll("text, span, label, p")]
  .filter(node => node.checkVisibility())
  .filter(node => node.getBoundingClientRect().right > box.getBoundingClientRect().right)
  .map(node => node.textContent)"""
PHONE, ITS_DRAWING = {"width": 272, "height": 800}, re.compile(r"^0 0 [12]\d\d ")


def narrowest(page, box, e):
    """No text sticks out of the card on a 320-pixel phone, where a lesson leaves it 256 pixels."""
    canvas = box.locator(".xp-canvas svg").first
    wide = canvas.get_attribute("viewBox")
    page.set_viewport_size(PHONE)
    expect(canvas).to_have_attribute("viewBox", ITS_DRAWING)
    yield from box.evaluate(BEYOND_THE_CARD)
    page.set_viewport_size(DESK)
    expect(canvas).to_have_attribute("viewBox", wide)


def far_off(page, box, e):
    """With all controls moved, the page still shows what Python computes."""
    now = e.defaults
    for setting in far(e):
        for control in e.controls:
            move(box, control, now[control.name], setting[control.name], static=True)
        now = setting
        yield from differences(box, e, setting)


def asked_and_thrown(page, box, e):
    """The page's network requests and uncaught errors."""
    yield from page.refused + page.problems


LOOKS = (themes, tab_order, keyboard, narrow, narrowest, far_off, asked_and_thrown)


def amiss(page, box, e, looks=LOOKS) -> dict[str, list]:
    """What these looks find in one explorer, by look."""
    found = {look.__name__: list(look(page, box, e)) for look in looks}
    return {name: flaws for name, flaws in found.items() if flaws}


def brief(page, explorers) -> Iterator[tuple[str, dict]]:
    """Visit one page with all of these briefly: yields each name with what is wrong.

    Axe checks all of them once, in one theme, and the page becomes narrow once.
    """
    boxes = {e.name: page.locator(f"[data-explorer={e.name}]") for e in explorers}
    found = {e.name: amiss(page, boxes[e.name], e, (tab_order, keyboard))
             for e in explorers}
    page.set_viewport_size(PHONE)
    for name, box in boxes.items():
        expect(box.locator(".xp-canvas svg").first).to_have_attribute("viewBox", ITS_DRAWING)
        if beyond := box.evaluate(BEYOND_THE_CARD):
            found[name]["narrowest"] = beyond
    page.set_viewport_size(DESK)
    yield from found.items()
    yield "all", {"axe": violations(page), "asked_and_thrown": page.refused + page.problems}
