"""What the notebook shows: whose each part is, and a training as it goes."""

from __future__ import annotations

import html
import json
from pathlib import Path

from matplotlib.figure import Figure

from dlsys_helpers import cards, paths, plots
from dlsys_helpers.stages import stage
from dlsys_model.part_table import CATALOGUE, OURS, PLACES, Part
from dlsys_model.parts import Parts
from dlsys_model.training import Training

MINE, OTHER = "#0f9d76", plots.INK


def full_run() -> dict:
    """The record of a full run: plan, log, what it wrote, its CPU seconds and memory in bytes."""
    return json.loads(Path(__file__).with_name("full_run.json").read_text("utf-8"))


def map_of(parts: Parts) -> None:
    """Show each part in its place: with a tick and a full edge where it is yours.

    A part links to its exercise in my-work/ if that stage was started.
    """
    rows = "".join(f'<p style="margin:.5em 0 .1em"><strong>{place.capitalize()}</strong></p>'
                   + "".join(_chip(part, parts) for part in CATALOGUE if part.place == place)
                   for place in PLACES)
    mine = len(parts.mine)
    said = f"{mine} of {len(CATALOGUE)} parts are yours; a stand-in replaces each of the others."
    notes = "".join(f"<p>Note: {html.escape(note)}</p>" for note in parts.notes)
    lines = [f"{'✓' if part.id in parts.mine else ' '} {part.id:<6}{part.function}"
             for part in CATALOGUE]
    cards.emit(f'<div style="max-width:46rem">{rows}<p>{said}</p>{notes}</div>',
               "\n".join([*lines, said, *parts.notes]))


def _chip(part: Part, parts: Parts) -> str:
    """A part as a small box; its title says what it does and what stands in."""
    mine = part.id in parts.mine
    tone, edge = (MINE, "solid") if mine else (OTHER, "dashed")
    other = "lines of ours" if part.standin == OURS else part.standin
    title = html.escape(f"{part.used}. {'Yours.' if mine else f'Stand-in: {other}.'}", quote=True)
    words = f"{'✓ ' if mine else ''}{part.id} {part.function}"
    sheet = paths.MY_WORK / f"{stage(int(part.id[:2])).stem}.ipynb"
    key = part.id.replace(".", "-")
    text = (cards.link(sheet, words, f"#cell-id={key}-exercise-1") if sheet.exists()
            else html.escape(words))
    return (f'<span title="{title}" style="display:inline-block;margin:.15em;padding:.1em .5em;'
            f'border:2px {edge} {tone};border-radius:6px;font-size:.86em">{text}</span>')


def follow(run: Training, save: Path | None = None) -> None:
    """Train to the plan's end, with a bar and the curve so far over that of the full run.

    If nobody is watching, the curve is shown once, at the end.
    """
    shown = cards.watched()
    for number, entry in enumerate(run.run(save=save)):
        if shown:
            _update(run, entry, number > 0)
    plots.show(_curve(run), alt="Loss in training and in validation over the steps, falling, over "
                                "the pale curves of a full run of 1,000 steps.")


def _update(run: Training, entry: dict, again: bool) -> None:
    """Show bar and curve in place of the previous ones."""
    from IPython.display import HTML, Image, display

    bar = (f'<p><progress max="{run.plan.steps}" value="{run.step}"></progress> step {run.step} of '
           f'{run.plan.steps}, loss {entry["loss"]:.3f}, validation {entry["valid"]:.3f}</p>')
    display(HTML(bar), display_id="your-model-bar", update=again)
    display(Image(plots.picture(_curve(run)), width=660), display_id="your-model-curve",
            update=again)


def _curve(run: Training) -> Figure:
    from matplotlib import pyplot as plt

    stored, log = full_run()["log"], run.log()
    ax = plots.new_axes(f"After {run.step} steps: {log[-1]['valid']:.2f} nats per letter", "step",
                        "loss, nats per letter")
    for name, colour, dash in (("loss", plots.COLOURS[0], "-"), ("valid", plots.COLOURS[1], "--")):
        ax.plot([row["step"] for row in stored], [row[name] for row in stored], dash, color=colour,
                alpha=0.3, label="")
        label = {"loss": "training", "valid": "validation"}[name]
        ax.plot([row["step"] for row in log], [row[name] for row in log], dash, color=colour,
                marker="o", markersize=3, label=label)
    ax.legend()
    plt.close(ax.figure)
    return ax.figure
