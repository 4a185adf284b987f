"""How many letters a second the model writes in a page."""

import base64
import sys

from dlsys_helpers.paths import ROOT
from dlsys_model import page
from tools.own_model import PACKED

sys.path.insert(0, str(ROOT / "tests"))  # the browser helpers are in tests/
from browser import offline_page, open_browser

LETTERS = {True: 600, False: 12}  # with the cache, and without it, when each costs a whole pass
REPEATS = 5
WRITE = f"""([base64, counts]) => {{
  {(page.HERE / "engine.js").read_text("utf-8")}
  const model = unpack(Uint8Array.from(atob(base64), c => c.charCodeAt(0)));
  const prompt = encode(model, "The gradient of the loss ".repeat(10));
  window.timed = (cached) => {{
    let left = counts[cached];
    const begin = performance.now();
    for (const _ of write(model, prompt, {{ temperature: 0.7, seed: left, cached, masked: true }}))
      if (!--left) return performance.now() - begin;
  }};
  timed(true);  // once, so that what follows is compiled
}}"""


def rows() -> list[list]:
    """The text, letters per second and per CPU second (best of five), and the aim.

    The CPU seconds are those of the page's thread, so they are valid on a busy machine, too.
    """
    packed = base64.b64encode(PACKED.read_bytes()).decode()
    with open_browser() as browser:
        tab = offline_page(browser)
        tab.goto("about:blank")
        tab.evaluate(WRITE, [packed, {str(how).lower(): n for how, n in LETTERS.items()}])
        metrics = tab.context.new_cdp_session(tab)
        metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
        return [["with the cache", *_best(tab, metrics, True), "300"],
                ["without it", *_best(tab, metrics, False), ""]]


def _best(tab, metrics, cached: bool) -> list[float]:
    """Letters per second and per CPU second."""
    times = [_once(tab, metrics, cached) for _ in range(REPEATS)]
    return [LETTERS[cached] / min(column) for column in zip(*times, strict=True)]


def _once(tab, metrics, cached: bool) -> tuple[float, float]:
    """Seconds and CPU seconds of one text."""
    before = _thread_seconds(metrics)
    wall = tab.evaluate("cached => timed(cached)", cached) / 1000
    return wall, _thread_seconds(metrics) - before


def _thread_seconds(metrics) -> float:
    found = metrics.send("Performance.getMetrics")["metrics"]
    return next(one["value"] for one in found if one["name"] == "TaskDuration")


if __name__ == "__main__":
    for row in rows():
        print(row)
