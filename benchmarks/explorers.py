"""How long an explorer takes from a key press to the new drawing, on a page and in JupyterLab."""

import sys
import tempfile
from pathlib import Path

import nbformat
import numpy as np

from dlsys_helpers.explorers import Explorer, load, write_assets
from dlsys_helpers.paths import ROOT

sys.path.insert(0, str(ROOT / "tests"))  # the browser and JupyterLab helpers live with the tests
from browser import offline_page, open_browser, open_notebook, run_all, running_lab
from explorer_oracle import focus

NAME, CONTROL = "activations", "bias"
PRESSES = 60
PAUSE_MS = 150  # between presses, as a reader looks at each drawing

# Press, wait for `data-drawn` (set after the last drawing call), read the difference in the page.
# The key event is the browser's own; both times are the page's performance.now().
WATCH = """node => {
  node.redraws = [];
  node.addEventListener("keydown", () => (node.pressed = performance.now()), true);
  new MutationObserver(() => node.redraws.push(+node.dataset.drawn - node.pressed))
    .observe(node, { attributeFilter: ["data-drawn"] });
}"""


def measure() -> list[dict]:
    """Key press to redraw on a page and in JupyterLab: where, median_ms, p95_ms, aim_ms.

    Each press moves one slider of the activation explorer one step; warm, one press at a time.
    Raises RuntimeError when a press is not followed by exactly one drawing.
    """
    explorer = load(NAME)
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        return [_static(browser, explorer, Path(folder)), _live(browser, explorer, Path(folder))]


def rows() -> list[list]:
    """The same as rows of a table."""
    return [[row[key] for key in ("where", "median_ms", "p95_ms", "aim_ms")] for row in measure()]


def _static(browser, explorer: Explorer, folder: Path) -> dict:
    write_assets(folder)
    target = folder / "page.html"
    target.write_text('<!doctype html><meta charset="utf-8">'
                      '<link rel="stylesheet" href="explorer.css">'
                      f'<script defer src="explorer.js"></script>{explorer.static_html()}')
    page = offline_page(browser)
    page.goto(target.as_uri())
    return _redraws(page, explorer, "static page", aim_ms=16)


def _live(browser, explorer: Explorer, folder: Path) -> dict:
    source = f"from dlsys_helpers.explorers import load\nload({explorer.name!r})"
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source)],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    nbformat.write(notebook, folder / "bench.ipynb")
    with running_lab(folder, folder / "home") as lab:
        page = offline_page(browser)
        open_notebook(page, lab, "bench.ipynb")
        run_all(page)
        return _redraws(page, explorer, "JupyterLab", aim_ms=50)


def _redraws(page, explorer: Explorer, where: str, aim_ms: int) -> dict:
    page.wait_for_selector(".xp[data-drawn]")
    box = page.locator(".xp")
    box.evaluate(WATCH)
    focus(box, next(c for c in explorer.controls if c.name == CONTROL))
    for n in range(PRESSES + 5):
        page.keyboard.press("ArrowLeft" if n % 2 else "ArrowRight")
        page.wait_for_function("n => document.querySelector('.xp').redraws.length > n", arg=n)
        page.wait_for_timeout(PAUSE_MS)
    times = box.evaluate("node => node.redraws")
    if len(times) != PRESSES + 5:
        raise RuntimeError(f"{where}: {PRESSES + 5} presses, {len(times)} drawings.")
    median, p95 = np.percentile(times[5:], [50, 95]).round(1).tolist()
    return {"where": where, "median_ms": median, "p95_ms": p95, "aim_ms": aim_ms}


if __name__ == "__main__":
    for row in measure():
        print(row)
