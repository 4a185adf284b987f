"""The Chromium of this machine, for booklets, measurements and tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from dlsys_helpers.errors import UserError

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]


def find() -> str | None:
    """The path of an installed Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def opened() -> Iterator[Browser]:
    """A headless Chromium. Raises UserError if none is installed."""
    path = find()
    if path is None:
        raise UserError(f"Chromium: none of {', '.join(NAMES)} is on the PATH. Install one.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()
