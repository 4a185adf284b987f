"""The page "What would you see?", and what the pages of traps say of the gallery, as Markdown."""

from __future__ import annotations

import base64
import html
import json
from collections import Counter

from matplotlib import pyplot as plt

from dlsys_helpers import catalog, plots
from dlsys_model import faults, gallery
from dlsys_model.faults import Fault
from dlsys_model.walk import walk
from tools import book_pages

# What is asked: the fault whose curves are drawn, and the other choices. The place of the right
# one goes round.
ASKED = {
    "scale": ("rate_10", "same_rows", "epochs"),
    "not_shifted": ("mask", "padding_counts", "twentieth"),
    "softmax": ("rate_100", "next_row", "no_end"),
    "reshape": ("post_norm", "batch_first", "no_warm"),
    "bfloat16": ("list", "frozen", "slow_mean"),
    "plain": ("no_state", "no_schedule", "new_head"),
    "buffers": ("overlap", "eval", "one_rank"),
    "epochs": ("seldom", "zero_grad", "data"),
}
PANELS = ("loss", "validation", "norm", "moved")
HEAD = """```{raw} html
<script>document.documentElement.classList.add("guess-first");</script>
<link rel="stylesheet" href="explorers/guess.css">
<script defer src="explorers/guess.js"></script>
```"""


def page() -> str:
    found = gallery.recorded()
    return "\n\n".join([
        "# What would you see?", HEAD, introduction(found),
        "## Walk along", "Each stop is one fault. The band between the two healthy lines holds "
        "what the program does without a fault, at several seeds.",
        book_pages.raw(walk.static_html()),
        "## Name the fault", "Curves of one run beside the band of healthy ones. Which fault is "
        "it? Nothing is kept but your guesses, in your browser.", *questions(),
        "## Which instrument shows how many", counted(found),
        "## What no instrument shows", unseen(found),
        "## All of them", table(found),
        "## The program", program()]) + "\n"


def introduction(found: list[Fault]) -> str:
    healthy = gallery.record()["healthy"]
    by_loss = sum("loss" in gallery.findings(one.key) for one in found)
    ends = gallery.curve("healthy", "loss")[-1]
    return (f"One program trains a small language model on the prose of this course: 600 steps, "
            f"{healthy['seeds']} healthy runs, and {len(found)} runs with one fault each, planted "
            f"text for text. The healthy loss ends at {ends:.2f} nats a letter. "
            f"Of {len(found)} faults the training loss shows {by_loss}. For the others you need "
            "another instrument, and some show in none.\n\n"
            "A fault *shows* where an instrument leaves the band of the healthy runs for two "
            "readings in a row, "
            "at every recorded seed. The band is the range of the healthy runs, wider by half at "
            f"either side. Held against the band of the others, the healthy runs give "
            f"{healthy['alarms']} false alarms in {healthy['seeds'] * len(gallery.INSTRUMENTS)}. "
            "All of it holds for this program, its size, its rate and its 600 steps: a "
            "longer run or a larger model may show what this one does not.")


def counted(found: list[Fault]) -> str:
    """A picture: how many faults each instrument shows."""
    shows = Counter(name for one in found for name in gallery.findings(one.key))
    counts = {gallery.INSTRUMENTS[name].name: shows[name] for name in gallery.INSTRUMENTS}
    names = list(counts)
    plots.use_house_style()
    ax = plots.new_axes(f"Of {len(found)} faults the training loss shows {shows['loss']}",
                        "faults that show", "")
    bars = ax.barh(names, list(counts.values()), color=plots.COLOURS[0], height=0.6)
    ax.bar_label(bars, padding=5, color=plots.INK)
    ax.invert_yaxis()
    said = ", ".join(f"{name} {count}" for name, count in counts.items())
    return image(ax.figure, f"Bars: faults of {len(found)} that each instrument shows: {said}.")


def image(figure: plt.Figure, alt: str) -> str:
    data = base64.b64encode(plots.picture(figure)).decode()
    plt.close(figure)
    return book_pages.raw(f'<img class="figure" alt="{html.escape(alt)}" '
                          f'src="data:image/png;base64,{data}">')


def unseen(found: list[Fault]) -> str:
    """The faults that the curves do not show, and those that nothing shows."""
    seen = {one.key: gallery.findings(one.key) for one in found}
    nothing = [one for one in found if not seen[one.key]]
    late = [one for one in found
            if seen[one.key] and not any(name in gallery.CURVES for name in seen[one.key])]
    return "\n\n".join([
        f"{len(nothing)} faults leave all {len(gallery.INSTRUMENTS)} instruments within the "
        "healthy band. They are why there are tests of code: look at the batch, count what is "
        "held, ask the same twice.", listed(nothing),
        f"{len(late)} more leave every curve of the training as it is, and show in use.",
        listed(late)])


def listed(found: list[Fault]) -> str:
    return "\n".join(f"- {of_trap(one)}" for one in found) or "- None."


def of_trap(one: Fault, up: str = "") -> str:
    name = one.trap.replace(".", "-")
    return f"[{one.trap} {book_pages.plain(one.name)}]({up}traps/{name}.md)"


def table(found: list[Fault]) -> str:
    head = ("The fault", "Training loss", "Other curves", "In use", "What it writes")
    return f":::{{div}} rows\n{book_pages.table(head, map(row, found))}\n:::"


def row(one: Fault) -> tuple[str, ...]:
    seen, run = gallery.findings(one.key), gallery.record()["faults"][one.key]
    curves = [f"{gallery.INSTRUMENTS[name].name} {when(where)}" for name, where in seen.items()
              if where.step and name != "loss"]
    in_use = [f"{gallery.INSTRUMENTS[name].name} {run[name]:g}" for name, where in seen.items()
              if not where.step and run[name] is not None]
    ended = [f"ends by itself: {book_pages.plain(run['ended'])}"] if run["ended"] else []
    return (f'<span id="fault-{one.key}"></span>{of_trap(one)}',
            when(seen["loss"]) if "loss" in seen else "as healthy",
            "; ".join(curves) or "as healthy", "; ".join(in_use + ended) or "as healthy",
            book_pages.plain(run["sample"][:60].strip()) or "nothing")


def when(where: gallery.Seen) -> str:
    return f"{'above' if where.above else 'below'} from step {where.step}"


def program() -> str:
    return ("The text that all runs share. A fault replaces a few words of it; what stands here "
            "repairs it.\n\n:::{dropdown} Show the program\n```python\n"
            f"{faults.healthy()}```\n:::")


# ---- on the page of a trap, and in the symptom finder

def link(trap: str) -> str:
    """What follows a trap's name in a row of the finder: its first fault here; "" for none."""
    keys = [one.key for one in gallery.recorded() if one.trap == trap]
    return f"; [its curves](gallery.md#fault-{keys[0]})" if keys else ""


def lines(trap: str) -> list[str]:
    """A section for a trap's page: what its faults did in the language model; [] for none."""
    found = [one for one in gallery.recorded() if one.trap == trap]
    rows = [f"- *{sentence(one.name)}* {book_pages.plain(gallery.told(one.key))} "
            f"[Its curves](../gallery.md#fault-{one.key})" for one in found]
    return ["## In a language model", "\n".join(rows)] if rows else []


def sentence(text: str) -> str:
    return f"{catalog.sentence_case(book_pages.plain(text))}."


# ---- questions

def questions() -> list[str]:
    known = gallery.record()["faults"]
    asked = [(key, others) for key, others in ASKED.items()
             if all(one in known for one in (key, *others))]
    return [book_pages.raw(question(number, key, others))
            for number, (key, others) in enumerate(asked)]


def question(number: int, key: str, others: tuple[str, ...]) -> str:
    """Curves and a form beside them; the answer waits for the guess, as in a lesson."""
    choices = [faults.BY_KEY[one].name for one in others]
    choices.insert(number % 4, faults.BY_KEY[key].name)
    right, id = choices[number % 4], f"gallery-{number + 1}"
    asked = {"id": id, "text": f"{number + 1}. Which fault is it?", "choices": choices, "unit": ""}
    measured = {"id": id, "shown": f"\N{LEFT DOUBLE QUOTATION MARK}{right}"
                f"\N{RIGHT DOUBLE QUOTATION MARK}", "right": right}
    trap = faults.BY_KEY[key].trap
    return (f'<div class="pair"><div class="step">{panels(key, number + 1)}</div>'
            f'<div class="step step-guess"><div class="xp gs" data-guess="{attribute(asked)}">'
            f"</div></div></div>"
            f'<div class="waits"><p class="dlsys-measured" data-measured="{attribute(measured)}">'
            f"It is: {html.escape(right)}.</p><p>{html.escape(gallery.told(key))} "
            f'<a href="traps/{trap.replace(".", "-")}.html">Trap {trap}</a></p></div>')


def attribute(facts: dict) -> str:
    return html.escape(json.dumps(facts))


def panels(key: str, number: int) -> str:
    """Four small plots of a run over the healthy band, as one picture."""
    plots.use_house_style()
    figure, axes = plt.subplots(2, 2, figsize=(6.6, 4.2))
    for ax, name in zip(axes.flat, PANELS, strict=True):
        values = gallery.curve(key, name)
        low, high = gallery.limits(name)
        every = gallery.INSTRUMENTS[name].step
        steps = range(every, every * len(low) + 1, every)
        ax.fill_between(steps, low, high, color=plots.INK, alpha=0.35, linewidth=0)
        ax.plot(steps[:len(values)], values, color=plots.COLOURS[1])
        ax.set_title(gallery.INSTRUMENTS[name].name)
        ax.set_xlabel("step")
    data = base64.b64encode(plots.picture(figure)).decode()
    plt.close(figure)
    return (f'<img class="figure" alt="{html.escape(alt(key, number))}" '
            f'src="data:image/png;base64,{data}">')


def alt(key: str, number: int) -> str:
    """What is seen in the panels, in words that do not name the fault."""
    seen = gallery.findings(key)
    said = [f"{gallery.INSTRUMENTS[name].name} "
            f"{when(seen[name]) if name in seen else 'within the band'}, last "
            f"{gallery.curve(key, name)[-1]:.3g}" for name in PANELS]
    return f"Question {number}: {'; '.join(said)}."
