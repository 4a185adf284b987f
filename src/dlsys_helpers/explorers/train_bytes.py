"""Bytes on each GPU for weights, gradients and AdamW's state, over the number of GPUs."""

from dlsys_helpers.explorers import Bars, Choice, Grip, Lines, Slider, explorer

PARTS = ("weights", "gradients", "masters", "moments")
# Bytes a weight in each part.
LAYOUTS = {"float32 or autocast": (4, 4, 0, 8), "16 bits with masters": (2, 2, 4, 8),
           "all in bfloat16": (2, 2, 0, 4)}
# Which parts are split over the GPUs.
SPLITS = {"nothing": (), "masters and moments": (2, 3), "gradients too": (1, 2, 3),
          "weights too": (0, 1, 2, 3)}
GPUS = (1, 2, 4, 8, 16, 32, 64)
CARD = 80  # GB, before activations
LIMIT = 16


def shares(layout, split, gpus):
    """Bytes a weight on each GPU, by part."""
    return [size / (gpus if part in SPLITS[split] else 1)
            for part, size in enumerate(LAYOUTS[layout])]


def gigabytes(billions, layout, split, gpus):
    """GB on each GPU (1e9 bytes); activations and buffers for communication come on top."""
    return billions * sum(shares(layout, split, gpus))


def fewest(billions, layout, split):
    """The smallest of GPUS that leaves all of this below a card's memory, or None."""
    return next((n for n in GPUS if gigabytes(billions, layout, split, n) < CARD), None)


@explorer(
    title="Bytes on each GPU: model, layout, number of GPUs",
    controls=[
        Slider("billions", "Weights, billions", [0.1, 1, 3, 7, 13, 70], 7),
        Choice("layout", "Layout", LAYOUTS, "16 bits with masters"),
        Choice("split", "Split over the GPUs", SPLITS, "nothing"),
        Slider("gpus", "GPUs", GPUS, 8),
    ],
    views=[
        Bars("parts", PARTS, title="Bytes a weight on each GPU", limit=LIMIT),
        Lines("count", {"each": "GB on each GPU", "card": "a card of 80 GB"},
              title="GB on each GPU, activations left aside", xlabel="GPUs (log)",
              ylabel="GB (log)", xlog=True, ylog=True, mark="at",
              grips=[Grip("gpus", x=int)]),
    ],
)
def train_bytes(billions, layout, split, gpus):
    """GB of weights, gradients and AdamW's state on each GPU, and when they fit a card."""
    here, least = gigabytes(billions, layout, split, gpus), fewest(billions, layout, split)
    fits = (f"{least} GPU{'s' if least > 1 else ''} of {CARD} GB are the fewest" if least
            else f"up to {GPUS[-1]} GPUs of {CARD} GB are too few")
    return {"parts": shares(layout, split, gpus), "count": GPUS, "at": [gpus],
            "each": [gigabytes(billions, layout, split, n) for n in GPUS],
            "card": [CARD] * len(GPUS)}, (
        f"{billions:g} billion weights, {layout}, split: {split}. {here:.4g} GB on each of "
        f"{gpus} GPU{'s' if gpus > 1 else ''}; {fits}, before any activation.")
