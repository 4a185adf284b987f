"""The gallery as an explorer: what each instrument reads with one fault planted.

In JupyterLab: ``from dlsys_model.gallery_explorer import walk``; end a cell with ``walk``.
"""

from dlsys_helpers.explorers import Choice, Lines, Slider, explorer
from dlsys_model import gallery

INSTRUMENTS = {one.name: key for key, one in gallery.INSTRUMENTS.items() if one.step}


def name_of(fault):
    """A fault as the reader chooses it."""
    return f"{fault.trap} {fault.name}"


def recorded_faults():
    """The keys of faults whose runs have curves, by their names, in the order of the traps."""
    return {name_of(fault): fault.key for fault in gallery.recorded()
            if len(gallery.curve(fault.key, "loss")) > 1}


def readings(key, instrument):
    """Steps, readings with the fault, and the healthy band, up to where the run goes."""
    values = gallery.curve(key, instrument)
    low, high = (limits[:len(values)] for limits in gallery.limits(instrument))
    return gallery.steps(instrument, len(values)), values, low, high


LABELS = ("with the fault", "healthy, at least", "healthy, at most")
FAULTS = recorded_faults()


@explorer(
    title="What would you see? One program, one fault at a time",
    controls=[
        Slider("fault", "Fault", FAULTS, next(iter(FAULTS)), fmt="{}"),
        Choice("instrument", "Instrument", list(INSTRUMENTS)[1:], "gradient norm"),
    ],
    views=[
        Lines("step", dict(zip(("loss", "loss_low", "loss_high"), LABELS, strict=True)),
              title="The training loss", xlabel="step", ylabel="nats a letter", xlim=(0, 600)),
        Lines("at", dict(zip(("reading", "low", "high"), LABELS, strict=True)),
              title="The chosen instrument", xlabel="step", ylabel="what it reads",
              xlim=(0, 600)),
    ],
)
def walk(fault, instrument):
    """The training loss and one instrument, each next to the values of healthy runs."""
    key = FAULTS[fault]
    step, loss, loss_low, loss_high = readings(key, "loss")
    at, reading, low, high = readings(key, INSTRUMENTS[instrument])
    unit = gallery.INSTRUMENTS[INSTRUMENTS[instrument]].unit
    sentence = f"{gallery.evidence_of(key)} Drawn: {instrument}, {unit}."
    return {"step": step, "loss": loss, "loss_low": loss_low, "loss_high": loss_high, "at": at,
            "reading": reading, "low": low, "high": high}, sentence
