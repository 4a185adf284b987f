"""A packed model as part of a page that runs it: no kernel, no request to another host.

This is not an explorer of `dlsys_helpers.explorers`. Those compute in Python and store a frame for
each setting; here a setting is a text that somebody types. So the page has the weights and
JavaScript computes: engine.js is the model, panel.js the user interface. Card, controls and colours
are those of the explorers.
"""

import base64
import html
from pathlib import Path
from typing import NamedTuple

from dlsys_helpers import explorers
from dlsys_model.network import Network
from dlsys_model.pack import pack, unpack

HERE = Path(__file__).parent
TITLE = "It writes in this page"


class Part(NamedTuple):
    """A box of the drawing, and the trap that it leads to."""

    name: str
    trap: str


BEFORE = [Part("embedding", "03.4")]
BLOCK = [Part("norm", "05.2"), Part("causal mask", "08.1"), Part("attention, cache", "08.10"),
         Part("norm, MLP", "01.3"), Part("dropout", "05.3")]
BEHIND = [Part("norm, logits", "01.2"), Part("temperature", "11.3")]
TRAINED = [Part("rows of text", "09.5"), Part("next letter", "08.3"), Part("loss", "03.2"),
           Part("gradients", "02.1"), Part("clipping", "03.3"), Part("AdamW", "04.8"),
           Part("decay groups", "04.1"), Part("schedule", "04.6"), Part("validation", "02.5"),
           Part("checkpoint", "12.8")]
KEPT = [Part("8-bit grid", "11.1"), Part("bytes", "11.5")]


def drawing(layers: int, traps: str | None = None) -> str:
    """The model, its training and its file as rows of boxes, each with the number of its trap.

    traps: the folder of the trap pages, such as "traps/"; None if there are none to link to.
    """
    def box(part: Part) -> str:
        text = f"{html.escape(part.name)} <small>{part.trap}</small>"
        if traps is None:
            return f'<li><span class="lm-part">{text}</span></li>'
        page = f"{traps}{part.trap.replace('.', '-')}.html"
        return f'<li><a class="lm-part" href="{page}">{text}</a></li>'

    def row(parts: list[Part]) -> str:
        return "".join(map(box, parts))

    block = f'<li class="lm-block"><span>{layers} times</span><ol>{row(BLOCK)}</ol></li>'
    rows = ("<p>What a letter passes through</p><ol>"
            f"{row(BEFORE)}{block}{row(BEHIND)}</ol>"
            f"<p>What trained it</p><ol>{row(TRAINED)}</ol>"
            f"<p>How it is kept</p><ol>{row(KEPT)}</ol>")
    if traps is None:
        return f'<div class="lm-map">{rows}</div>'
    return f'<nav class="lm-map" aria-label="The model, part by part">{rows}</nav>'


def piece(layers: int, weights: str | None = None, traps: str | None = None, inside: str = "",
          starts: bool = False) -> str:
    """The panel as HTML; the page adds model.js, model.css and explorer.css.

    weights: address of what `weights_script` returns; or `inside`, the packed bytes in base64.
    starts: it begins to write by itself, one letter per frame, if the reader allows motion.
    Without JavaScript it shows title and drawing.
    """
    address = "" if weights is None else html.escape(weights)
    packed = f'<script type="text/plain">{inside}</script>' if inside else ""
    waits = ("It writes here once the notebook is trusted: File, Trust Notebook." if inside else
             "It writes in your browser, in JavaScript.")
    return (f'<div class="xp lm" role="group" aria-label="{TITLE}" data-waits '
            f'data-model="{address}"{" data-start" if starts else ""}>'
            f'<div class="xp-title">{TITLE}</div>'
            f'<p class="lm-wait">{waits}</p>{drawing(layers, traps)}{packed}</div>')


def script() -> str:
    """Engine and panel as one classic script that mounts every panel of its page."""
    parts = [(HERE / name).read_text("utf-8") for name in ("engine.js", "panel.js")]
    return f"(() => {{\n{''.join(parts)}}})();\n"


def weights_script(packed: bytes) -> str:
    """Packed weights as a classic script: a page opened from disk may load nothing else."""
    return f'window.dlsysModel = "{base64.b64encode(packed).decode()}";\n'


def write_assets(folder: Path) -> None:
    """Write model.js and model.css."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.js").write_text(script(), "utf-8")
    (folder / "model.css").write_text((HERE / "panel.css").read_text("utf-8"), "utf-8")


class Shown:
    """A model in a notebook: stored in its cell, it writes without a kernel."""

    def __init__(self, packed: bytes):
        self.packed = packed

    def _repr_html_(self) -> str:
        header, _ = unpack(self.packed)
        css = [(Path(explorers.__file__).parent / "explorer.css").read_text("utf-8"),
               (HERE / "panel.css").read_text("utf-8")]
        inside = base64.b64encode(self.packed).decode()
        return (f"<style>{''.join(css)}</style>"
                f"{piece(header['shape']['layers'], inside=inside)}<script>{script()}</script>")

    def __repr__(self) -> str:
        return (f"A model in {len(self.packed) / 1000:,.0f} kB that writes in this page, in "
                "JavaScript. Nothing here? Trust the notebook: File, Trust Notebook.")


def show(network: Network, letters: str) -> Shown:
    """The network in 8 bits, as the last line of a cell: it runs in the notebook's page.

    letters: those it was trained on, in the order of their numbers, as `Text.letters`.
    Raises PackError for other letters, and for weights that are not finite.
    """
    return Shown(pack(network.state_dict(), network.shape._asdict(), letters))
