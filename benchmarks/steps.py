"""The CPU time of a slider step on stage 8's page: scripts, style and layout."""

from __future__ import annotations

import sys

from dlsys_helpers.errors import UserError
from dlsys_helpers.paths import ROOT
from tools.book import BOOK

sys.path.insert(0, str(ROOT / "tests"))  # the browser helpers are in tests/
from browser import offline_page, open_browser

PAGE = BOOK / "_build" / "html" / "notebooks" / "08_transformers.html"
STEPS, PAUSE_MS, AIM_MS = 40, 60, 8
COSTS = ("ScriptDuration", "RecalcStyleDuration", "LayoutDuration")
WAYS = {"part by part": "part", "on one page": "whole"}  # as flow.js keeps the choice
# Sliders in a hidden part take no key.
SLIDER = ".xp input[type=range]:visible"


def rows() -> list[list]:
    """Reading mode; script, style, layout and script plus style in CPU ms per step; and aim.

    Raises UserError if the book is not built.
    """
    if not PAGE.is_file():
        raise UserError(f"{PAGE.name}: missing in the built book. Run: make book")
    with open_browser() as browser:
        return [[way, *costs(browser, kept)] for way, kept in WAYS.items()]


def costs(browser, kept: str) -> list[float]:
    """The cost of a step on the page in one reading mode."""
    page = offline_page(browser, viewport={"width": 1280, "height": 900})
    page.add_init_script(f"localStorage.setItem('dlsys-parts', '{kept}');"
                         "localStorage.setItem('dlsys-show-everything', 'yes')")
    page.goto(PAGE.as_uri())
    page.wait_for_selector(".xp input[type=range]", state="attached")
    anchor = page.evaluate("document.querySelector('.xp input[type=range]').closest"
                           "('.bd-article > section > section').id")
    page.evaluate("id => { location.hash = id; }", anchor)
    page.locator(SLIDER).first.focus()
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable", {"timeDomain": "threadTicks"})
    press(page, 6)
    before = read(client)
    press(page, STEPS)
    after = read(client)
    page.close()
    script, style, layout = ((after[name] - before[name]) * 1e3 / STEPS for name in COSTS)
    return [script, style, layout, script + style, AIM_MS]


def press(page, times: int) -> None:
    for n in range(times):
        page.keyboard.press("ArrowRight" if n % 2 else "ArrowLeft")
        page.wait_for_timeout(PAUSE_MS)


def read(client) -> dict[str, float]:
    found = client.send("Performance.getMetrics")["metrics"]
    return {metric["name"]: metric["value"] for metric in found}


if __name__ == "__main__":
    for row in rows():
        print(row)
