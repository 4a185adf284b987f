"""README's moving picture: a visitor guesses on the home page, sees what was measured, and repairs.

    make picture        of the built book (make book), in Chromium

It is a GIF of a few frames. Its comment is the fingerprint of the home page's card and of the look
of the card, so that a test can tell when the picture is stale.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import nbformat
from PIL import Image
from playwright.sync_api import Browser, Page

from dlsys_helpers.errors import UserError
from dlsys_helpers.paths import NOTEBOOKS, ROOT
from dlsys_helpers.stages import stage
from tools import book_home, chromium, fingerprints

TARGET = ROOT / "book/_static/guess.gif"
PAGE = ROOT / "book/_build/html/index.html"
LOOK = ("book/assets/site/repair.js", "book/assets/site/repair.css",
        "src/dlsys_helpers/explorers/guess.js", "src/dlsys_helpers/explorers/guess.css")
WIDTH, HEIGHT, COLOURS = 760, 560, 64


def fingerprint() -> str:
    """The fingerprint of the card and of the scripts and styles that draw it."""
    stem = stage(int(book_home.SHOWN_TRAP[:2])).stem
    lesson = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", as_version=4)
    shown = [book_home.card(lesson), *((ROOT / name).read_text("utf-8") for name in LOOK)]
    return fingerprints.fingerprint("\0".join(shown))


def frames(page: Page, number: int) -> list[tuple[bytes, float]]:
    """The frames that a visitor sees, as PNG, each with its duration in seconds.

    number: the index of the choice on the repair bench that passes the check.
    """
    taken: list[tuple[bytes, float]] = []

    def take(seconds: float, at: str = ".ask-card") -> None:
        page.locator(at).first.evaluate(
            "one => scrollTo({top: one.getBoundingClientRect().top + scrollY - 16, "
            "behavior: 'instant'})")
        page.mouse.move(0, 0)
        page.wait_for_timeout(400)
        taken.append((page.screenshot(), seconds))

    guess = page.locator(".ask-card .step-guess")
    take(3)
    guess.locator(".gs-option").first.click()
    guess.get_by_text("sure", exact=True).click()
    take(1.2)
    guess.get_by_role("button", name="This is my guess").click()
    take(3.5, ".ask-card .waits")
    take(2.5, ".ask-card .repair")
    for pressed in (0 if number else 1, number):
        page.locator(".repair-choice").nth(pressed).click()
        take(3.5, f".ask-card .repair li:nth-child({pressed + 1})")
    return taken


def passing(page: Page) -> int:
    """The index of the choice that passes the check, found by pressing each choice."""
    page.get_by_text("Show it without a guess").first.click()
    choices = page.locator(".repair-choice")
    for number in range(choices.count()):
        choices.nth(number).click()
        if "Passed" in page.locator(".repair-said").nth(number).inner_text():
            return number
    raise UserError("no choice of the repair bench passes the check. Look at the built home page.")


def opened(browser: Browser) -> Page:
    """The home page as a new visitor sees it, without the fixed bar above it."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
    page.add_init_script("Math.random = () => 0.5")  # fixes the order of the choices
    page.goto(PAGE.as_uri())
    page.add_style_tag(content=".bd-header-article, .bd-header { display: none !important; }")
    page.wait_for_timeout(1000)
    return page


def picture(taken: list[tuple[bytes, float]], comment: str) -> bytes:
    """The frames as a looping GIF."""
    shots = [Image.open(io.BytesIO(data)).convert("RGB") for data, _ in taken]
    images = [shot.quantize(COLOURS, dither=Image.Dither.NONE) for shot in shots]
    out = io.BytesIO()
    images[0].save(out, "GIF", save_all=True, append_images=images[1:], loop=0, optimize=True,
                   duration=[int(1000 * seconds) for _, seconds in taken], comment=comment.encode())
    return out.getvalue()


def comment_of(path: Path) -> str:
    """The fingerprint stored in the picture."""
    with Image.open(path) as image:
        return image.info.get("comment", b"").decode()


def main() -> None:
    if not PAGE.is_file():
        sys.exit("picture: there is no built book. Run: make book, then make picture")
    try:
        with chromium.opened() as browser:
            number = passing(opened(browser))
            TARGET.write_bytes(picture(frames(opened(browser), number), fingerprint()))
    except UserError as error:
        sys.exit(f"picture: {error}")
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
