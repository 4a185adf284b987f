"""The page "What would you see?", and the gallery's sections on trap pages, as Markdown."""

from __future__ import annotations

import base64
import html
import json
from collections import Counter

from matplotlib import pyplot as plt

from dlsys_helpers import catalog, plots
from dlsys_model import faults, gallery, quiz
from dlsys_model.faults import Fault
from dlsys_model.gallery_explorer import walk
from tools import book_pages

TITLE = "What would you see?"
# Shown only for faults that ran with two seeds; the readings are from the first seed.
SURPRISES = {
    "mask": "Without the causal mask both losses are lower than any prose allows: training "
            "ends at {loss}, validation at {validation}. The model copies each next letter "
            "from the row itself. In use the next letter is not there yet, so the loss is "
            "{delivered}.",
    "scale": "A loss scale of 1024 that stays in the gradients shows only in the gradient "
             "norm, which ends at {norm}. Clipping cuts the norm to 1, and AdamW's step does "
             "not depend on the gradients' size.",
    "f_dropout": "`F.dropout` drops a tenth of two layers' outputs, also in validation and in "
                 "use, but no instrument shows this: validation ends at {validation}, within "
                 "the healthy band from {low} to {high}. Two calls on the same row differ.",
}


def page() -> str:
    found = gallery.recorded()
    return "\n\n".join([
        f"# {TITLE}", book_pages.raw(book_pages.GUESS_FIRST.format(up="", which="")),
        introduction(found),
        "## Walk along",
        "Each stop is one fault. The band between the two healthy lines contains the program's "
        "runs without a fault, with several seeds.",
        book_pages.raw(walk.static_html()),
        "## Name the fault",
        "You see the curves of one faulty run and the band of the healthy runs. Which fault is "
        "it? The page keeps only your guesses, in your browser.",
        *(book_pages.raw(question(asked)) for asked in quiz.questions()),
        "## Which instrument shows how many", faults_by_instrument(found),
        "## What no instrument shows", faults_not_in_curves(found), *surprising(),
        "## All faults", table(found),
        "## The program", program()]) + "\n"


def introduction(found: list[Fault]) -> str:
    healthy, known = gallery.record()["healthy"], gallery.record()["faults"]
    by_loss = sum("loss" in gallery.findings(one.key) for one in found)
    twice = sum(len(known[one.key]["seeds"]) > 1 for one in found)
    asked = healthy["seeds"] * len(gallery.INSTRUMENTS)
    return (f"One program trains a small language model on the prose of this course for 600 steps. "
            f"Of its runs, {healthy['seeds']} are healthy, and {len(found)} have one fault each: a "
            "few words of the program were replaced. The healthy loss ends at "
            f"{gallery.curve('healthy', 'loss')[-1]:.2f} nats per letter. The training loss shows "
            f"{by_loss} of the {len(found)} faults. The other faults need a different instrument, "
            "and some faults are shown by no instrument.\n\n"
            "A fault *shows* if an instrument leaves the band of the healthy runs for two "
            "readings in a row, or at its last reading. The reading need not be worse than a "
            "healthy one: some faulty runs of this length end with a better reading. The band "
            "extends three standard deviations to either side of the healthy mean, or five for "
            "a number that is read only once. Compared with the band of the other healthy "
            "runs, a healthy run counts as "
            f"faulty in {healthy['alarms']} of {asked} cases. We ran "
            f"{twice} of the faults with a second seed as well; such a fault counts as shown "
            "only if both runs show it. All of this holds for this program, its size, its "
            "learning rate and its "
            "600 steps: a longer run or a larger model can show what these runs do not. In a "
            "sample, `_` is the end of a sentence.\n\n[Your model](notebooks/your_model.ipynb) "
            "assembles a model like this one from your own answers and trains it.")


def faults_by_instrument(found: list[Fault]) -> str:
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
    drawn = png(plots.picture(ax.figure),
                f"Bars: faults of {len(found)} that each instrument shows: {said}.")
    plt.close(ax.figure)
    return book_pages.raw(drawn)


def faults_not_in_curves(found: list[Fault]) -> str:
    """The faults that no curve shows, and those that no instrument shows."""
    seen = {one.key: gallery.findings(one.key) for one in found}
    whole = [one for one in found if not gallery.ending(one.key)]
    nothing = [one for one in whole if not seen[one.key]]
    late = [one for one in whole
            if seen[one.key] and not any(name in gallery.CURVES for name in seen[one.key])]
    return "\n\n".join([
        f"{len(nothing)} faults leave all {len(gallery.INSTRUMENTS)} instruments within the "
        "spread of healthy seeds; compared with a healthy run with the same seed, some of "
        "these faults would show. Such faults are the reason to test code: look at the batch, "
        "count the tensors that the program keeps, and call the model twice with the same "
        "input.", fault_list(nothing),
        f"{len(late)} more faults change no training curve and show only in use.",
        fault_list(late)])


def surprising() -> list[str]:
    """Surprising results with their numbers; [] without a second seed."""
    known = gallery.record()["faults"]
    told = [f"- {text.format(**last_readings(key))} {trap_link(faults.BY_KEY[key])}"
            for key, text in SURPRISES.items() if len(known.get(key, {}).get("seeds", ())) > 1]
    return ["## Surprises", "\n".join(told)] if told else []


def last_readings(key: str) -> dict[str, str]:
    """The last readings of a run by instrument, and the healthy band of the validation loss."""
    run = gallery.record()["faults"][key]
    found = {name: gallery.curve(key, name)[-1] for name in gallery.CURVES}
    low, high = (limits[-1] for limits in gallery.limits("validation"))
    found |= {name: run[name] for name in gallery.NUMBERS} | {"low": low, "high": high}
    return {name: f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            for name, value in found.items() if value is not None}


def fault_list(found: list[Fault]) -> str:
    return "\n".join(f"- {trap_link(one)}" for one in found) or "- None."


def trap_link(one: Fault, up: str = "") -> str:
    name = one.trap.replace(".", "-")
    return f"[{one.trap} {book_pages.plain(one.name)}]({up}traps/{name}.md)"


def table(found: list[Fault]) -> str:
    head = ("The fault", "Training loss", "Other curves", "In use", "What it writes")
    return f":::{{div}} rows gallery\n{book_pages.table(head, map(row, found))}\n:::"


def row(one: Fault) -> tuple[str, ...]:
    seen, run = gallery.findings(one.key), gallery.record()["faults"][one.key]
    curves = [f"{gallery.INSTRUMENTS[name].name} {gallery.when(where)}"
              for name, where in seen.items() if where.step and name != "loss"]
    in_use = [f"{gallery.INSTRUMENTS[name].name} {run[name]:g}" for name, where in seen.items()
              if not where.step and run[name] is not None]
    ended = [f"ends by itself: {book_pages.plain(by)}"] if (by := gallery.ending(one.key)) else []
    return (f'<span id="fault-{one.key}"></span>{trap_link(one)}',
            gallery.when(seen["loss"]) if "loss" in seen else "as healthy",
            "; ".join(curves) or "as healthy", "; ".join(in_use + ended) or "as healthy",
            book_pages.plain(run["sample"][:60].strip()) or "nothing")


def program() -> str:
    return ("All runs share this program. A fault replaces a few words of it; the text shown here "
            "has no fault.\n\n:::{dropdown} Show the program\n```python\n"
            f"{faults.healthy()}```\n:::")


# ---- on the page of a trap, and in the symptom finder

def link(trap: str) -> str:
    """The first fault of a trap here, for its row in the finder; "" for none."""
    keys = [one.key for one in gallery.recorded() if one.trap == trap]
    return f"; {curves_of(keys[0], '', 'gallery')}" if keys else ""


def curves_of(key: str, up: str, text: str) -> str:
    """A link to the row of a fault, from a page whose way to the root of the book is `up`."""
    return f'<a href="{up}gallery.html#fault-{key}">{text}</a>'


def lines(trap: str) -> list[str]:
    """A section for a trap's page on what its faults did in the language model; [] for none."""
    found = [one for one in gallery.recorded() if one.trap == trap]
    rows = [f"- *{sentence(one.name)}* {book_pages.plain(gallery.evidence_of(one.key))} "
            f"See {curves_of(one.key, '../', 'its curves')}.\n\n{changed(one.key)}"
            for one in found]
    return ["## In a language model", "\n".join(rows)] if rows else []


def changed(key: str) -> str:
    """The fault's change to the program, as a block below a list entry."""
    block = f"```diff\n{faults.difference(key)}\n```\n"
    return "\n".join(f"  {line}".rstrip() for line in block.splitlines()) + "\n"


def sentence(text: str) -> str:
    return f"{catalog.sentence_case(book_pages.plain(text))}."


# ---- questions

def question(asked: quiz.Asked) -> str:
    """Curves next to a form; the answer appears after the guess, as in a lesson."""
    measured = {"id": asked.form["id"], "right": asked.right,
                "shown": f"\N{LEFT DOUBLE QUOTATION MARK}{asked.right}"
                         f"\N{RIGHT DOUBLE QUOTATION MARK}"}
    trap = faults.BY_KEY[asked.key].trap
    drawn = png(quiz.panels(asked.key), f"{asked.form['text']} {quiz.seen(asked.key)}")
    return (f'<div class="pair"><div class="step">{drawn}</div>'
            f'<div class="step step-guess"><div class="xp gs" '
            f'data-guess="{attribute(asked.form)}"></div></div></div>'
            f'<div class="waits"><p class="dlsys-measured" data-measured="{attribute(measured)}">'
            f"It is: {html.escape(asked.right)}.</p>"
            f"<p>{html.escape(gallery.evidence_of(asked.key))} "
            f'<a href="traps/{trap.replace(".", "-")}.html">Trap {trap}</a></p></div>')


def attribute(facts: dict) -> str:
    return html.escape(json.dumps(facts))


def png(data: bytes, alt: str) -> str:
    return (f'<img class="figure" alt="{html.escape(alt)}" '
            f'src="data:image/png;base64,{base64.b64encode(data).decode()}">')
