"""Name the fault: curves of a run, four faults to choose from, and the answer after the guess.

In JupyterLab: ``from dlsys_model.quiz import ask``, then ``ask(1)``.
"""

from __future__ import annotations

import html
from typing import NamedTuple

from dlsys_helpers import plots, without_widgets
from dlsys_model import gallery
from dlsys_model.faults import BY_KEY

# The fault whose curves are drawn, and the other choices. The position of the right one rotates.
ASKED = {
    "scale": ("rate_10", "early_clip", "new_head"),
    "mask": ("twentieth", "f_dropout", "buffers"),
    "softmax": ("rate_100", "next_row", "dead"),
    "list": ("frozen", "seldom", "rate_100"),
    "zero_grad": ("next_row", "rate_100", "mask"),
    "twentieth": ("overlap", "mask", "next_row"),
    "buffers": ("overlap", "eval", "one_rank"),
    "f_dropout": ("seldom", "zero_grad", "data"),
}
PANELS = ("loss", "validation", "norm", "moved")


class Asked(NamedTuple):
    """A question: `form` is what the form of a guess takes; right: the right choice."""

    key: str
    form: dict
    right: str


def questions() -> list[Asked]:
    """Every question whose fault and other choices are recorded."""
    known = gallery.record()["faults"]
    keys = [key for key, others in ASKED.items() if known.keys() >= {key, *others}]
    return [question(number, key) for number, key in enumerate(keys, 1)]


def question(number: int, key: str) -> Asked:
    choices = [BY_KEY[other].name for other in ASKED[key]]
    right = BY_KEY[key].name
    choices.insert(number % 4, right)
    return Asked(key, {"id": f"gallery-{number}", "text": f"{number}. Which fault is it?",
                       "choices": choices, "unit": ""}, right)


def panels(key: str) -> bytes:
    """Four curves of a run over the band of the healthy ones, as a PNG."""
    from matplotlib import pyplot as plt

    plots.use_house_style()
    figure, axes = plt.subplots(2, 2, figsize=(6.6, 4.2))
    for ax, name in zip(axes.flat, PANELS, strict=True):
        values = gallery.curve(key, name)
        low, high = gallery.limits(name)
        steps = gallery.steps(name, len(low))
        ax.fill_between(steps, low, high, color=plots.INK, alpha=0.35, linewidth=0)
        ax.plot(steps[:len(values)], values, color=plots.COLOURS[1])
        if name not in ("loss", "validation"):
            ax.set_ylim(bottom=0)
        ax.set(title=gallery.INSTRUMENTS[name].name, xlabel="step")
    made = plots.picture(figure)
    plt.close(figure)
    return made


def seen(key: str) -> str:
    """What the curves show, in words that do not name the fault."""
    found = gallery.findings(key)
    return "; ".join(f"{gallery.INSTRUMENTS[name].name} "
                     f"{gallery.when(found[name]) if name in found else 'within the band'}, last "
                     f"{gallery.curve(key, name)[-1]:.3g}" for name in PANELS) + "."


def answer(asked: Asked, said: str) -> str:
    """The reply to a guess: whether it is right, and what shows the fault."""
    verdict = "Right" if said == asked.right else f"It is: {asked.right}"
    return f"{verdict} (trap {BY_KEY[asked.key].trap}). {gallery.evidence_of(asked.key)}"


def ask(number: int) -> None:
    """Show question `number`, from 1, in a notebook. Raises ValueError if there is none."""
    from IPython.display import Image, display

    if missing := without_widgets.missing():
        print(without_widgets.sentence(missing))
        return
    from ipywidgets import HTML

    from dlsys_helpers.explorers._guess import GuessWidget

    found = questions()
    if not 1 <= number <= len(found):
        raise ValueError(f"question: got {number}, expected 1 to {len(found)}.")
    asked, told = found[number - 1], HTML()

    def tell(change):
        told.value = html.escape(answer(asked, change.new["guess"]))

    form = GuessWidget(question=asked.form, said={})
    form.observe(tell, "said")
    display(Image(data=panels(asked.key), width=660, metadata={"alt": seen(asked.key)}), form, told)
