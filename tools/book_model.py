"""The model that writes in the book's pages: its panel, and the page on how it was trained.

`python -m tools.own_model` trains it. The weights are not part of a page: the panel loads
their script once it is about to scroll into view.
"""

from __future__ import annotations

import json
from pathlib import Path

from dlsys_helpers.catalog import trap
from dlsys_model import page
from tools import book_pages
from tools.own_model import PACKED, RECORD

FROM = "mean_of_weights_from"
FOLDER = "model"  # on the website, for script, style and weights


def panel(starts: bool = False) -> str:
    """The panel, for a page at the root of the book; with `starts` it writes by itself."""
    layers = json.loads(RECORD.read_text("utf-8"))["shape"]["layers"]
    box = page.piece(layers, f"{FOLDER}/weights.js", "traps/", starts=starts)
    return book_pages.raw(f'<link rel="stylesheet" href="{FOLDER}/model.css">\n'
                          f'<script defer src="{FOLDER}/model.js"></script>\n{box}')


def write_assets(assets: Path) -> None:
    """Write script, style and weights into the folder that the book copies unchanged."""
    page.write_assets(assets / FOLDER)
    (assets / FOLDER / "weights.js").write_text(page.weights_script(PACKED.read_bytes()), "utf-8")


def filled_in(template: str) -> str:
    """The written page with its marks replaced by the panel and by values from the record."""
    facts = json.loads(RECORD.read_text("utf-8"))
    first, last = facts["curve"][0], facts["curve"][-1]
    marks = {"panel": panel(), "weights": f"{facts['weights']:,}", "parts": len(facts["parts"]),
             "kilobytes": round(facts["bytes"] / 1000), "length": facts["shape"]["length"],
             "minutes": round(facts["cpu_seconds"] / 60), "steps": f"{last[0]:,}",
             "rows": facts["plan"]["rows"], "torch": facts["torch"], "bits": bits(facts),
             "first": f"{first[2]:.2f} after {first[0]}",
             "last": f"{facts['validation']['32']:.2f}", "from": f"{facts['plan'][FROM]:,}",
             "grid": book_pages.link("trap", "11.1", trap("11.1").title)}
    for name, text in marks.items():
        template = template.replace(f"{{{{ {name} }}}}", str(text))
    return template


def bits(facts: dict) -> str:
    """The table of losses by bits, from the record."""
    names = {"32": "32, as trained", "8": "8, as stored"}
    return book_pages.table(("Bits a weight", "Loss on held-out text, nats per letter"),
                            [(names.get(n, n), f"{loss:.3f}")
                             for n, loss in facts["validation"].items()])
