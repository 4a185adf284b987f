"""The checks on the pages of explorers, opened from disk in a browser without network.

Once in full, a page each, which tests/records/explorers.json keeps; then briefly, all on one page.
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
    """Open a page from disk with these explorers in a tab, which is returned.

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


# Each look says what is amiss and leaves the page as it found it, except for the last one. It
# gets the page, the box of an explorer on it, and the explorer.
def themes(page, box, e):
    """What axe objects to, in light and in dark."""
    expect(box).to_have_css("background-color", "rgb(251, 252, 254)")
    yield from violations(page)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    expect(box).to_have_css("background-color", "rgb(24, 28, 37)")
    yield from violations(page, options={"runOnly": ["color-contrast"]})  # no more can differ
    page.evaluate("document.documentElement.dataset.theme = 'light'")


FOCUSED = """() => {
  const node = document.activeElement, group = node.closest("fieldset");
  return (group ? group.querySelector("legend") : node.labels?.[0])?.textContent;
}"""


def tab_order(page, box, e):
    """Tab reaches every control once, in their order."""
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
    """On a narrow page everything is drawn again, to the scale of its labels."""
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
    """On a phone of 320 pixels, of which a lesson leaves 256 to the card, no text leaves it."""
    canvas = box.locator(".xp-canvas svg").first
    wide = canvas.get_attribute("viewBox")
    page.set_viewport_size(PHONE)
    expect(canvas).to_have_attribute("viewBox", ITS_DRAWING)
    yield from box.evaluate(BEYOND_THE_CARD)
    page.set_viewport_size(DESK)
    expect(canvas).to_have_attribute("viewBox", wide)


def far_off(page, box, e):
    """Settings in which all controls are moved at once show what Python computes."""
    now = e.defaults
    for setting in far(e):
        for control in e.controls:
            move(box, control, now[control.name], setting[control.name], static=True)
        now = setting
        yield from differences(box, e, setting)


def asked_and_thrown(page, box, e):
    """What the page asked of the network, and errors that nothing caught."""
    yield from page.refused + page.problems


LOOKS = (themes, tab_order, keyboard, narrow, narrowest, far_off, asked_and_thrown)


def amiss(page, box, e, looks=LOOKS) -> dict[str, list]:
    """What these looks find, by look, of one explorer."""
    found = {look.__name__: list(look(page, box, e)) for look in looks}
    return {name: flaws for name, flaws in found.items() if flaws}


def brief(page, explorers) -> Iterator[tuple[str, dict]]:
    """What a brief visit finds, on a page with all of these: names, each with what is amiss.

    Axe looks once at all of them, in one theme, and the page is made narrow once.
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
