"""The runs that a reviewer may ask for: recorded, one seed, with and without each change.

`make diffs` writes recorded.json; see tools/diffs.py.
"""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("recorded.json")


# For each number that a fault moves: what it is, and the verb that introduces its value.
SAYS = {
    "gradients": ("the gradients of one batch and of the same images in four pieces", "differ by"),
    "norm of a gradient clipped to 0.5": ("the norm of a gradient that is clipped to 0.5", "is"),
    "scale of the loss after both": (
        "the loss scale after an overflow and a good update", "is"),
    "loss: batches of 64 and of 7": ("the loss in batches of 64 and in batches of 7", "differs by"),
    "share of a change that a late average takes": (
        "the fraction of a change that a late average takes over in one update", "is"),
    "modules whose mode it changed": ("the number of modules whose mode scoring changes", "is"),
    "images that were not scored": ("the number of images that are not scored", "is"),
    "weights: scored at each update and never": (
        "the weights of a run that is scored at each update and of one that never is",
        "differ by"),
    "logged values that a second `take` still remembers": (
        "the number of logged values that a second `take` still remembers", "is"),
    "mean rate / peak": ("the mean learning rate, as a fraction of its peak,", "is"),
    "first rate / peak": ("the first learning rate, as a fraction of its peak,", "is"),
    "last rate / peak": ("the last learning rate, as a fraction of its peak,", "is"),
    "norms, biases and single values that decay": (
        "the number of norms, biases and single values that decay", "is"),
    "kept best weights change with the average": (
        "the number of kept best states that change when the average does", "is"),
    "passes over the images": ("the number of passes over the images", "is"),
    "settings that the optimizer ignores": (
        "the number of settings that the optimizer ignores", "is"),
    "rates that are not the schedule's times the group's factor": (
        "the number of rates that are not the schedule's times the group's factor", "is"),
    "places equal in the first and second epoch": (
        "the fraction of positions with the same image in the first and second epoch", "is"),
    "images in two parts": ("the number of images that are in two parts", "is"),
    "validation images, as normalized by the training part": (
        "the validation images and those images, normalized by the training part,", "differ by"),
    "images with the label of another": (
        "the number of images with the label of another image", "is"),
    "images that an epoch shows twice": ("the number of images that an epoch shows twice", "is"),
    "combined accuracy of 10 wrong and 30 right": (
        "the combined accuracy of 10 wrong and 30 right images", "is"),
    "gradients: two ranks and one": (
        "the gradients of two ranks and of one with the same images", "differ by"),
    "averages: first rank's and second's": (
        "the averages of the first and the second rank", "differ by"),
    "scores that combining loses or distorts": (
        "the number of scores that combining loses or distorts", "is"),
    "average of the weights": (
        "the averaged weights of the resumed and of the uninterrupted run", "differ by"),
    "outputs of a model begun from a file of version 1": (
        "the outputs of a model begun from a file of version 1 and those of that version",
        "differ by"),
    "scale of the loss": (
        "the loss scales of the resumed and of the uninterrupted run", "differ by"),
    "plain values that the checkpoint lost": (
        "the number of plain values that the checkpoint loses", "is"),
    "loss at any update": (
        "the losses of the resumed and of the uninterrupted run at the same update",
        "differ by at most"),
    "logits: served and the average's": (
        "the served logits and those of the average", "differ by"),
    "buffers of frozen modules that moved": (
        "the number of buffers in frozen modules that move", "is"),
    "classes: predicted and computed by hand": (
        "the predicted classes and those computed by hand", "differ by"),
    "classes: predicted twice": ("the classes that are predicted twice", "differ by"),
    "weights": ("the weights of the resumed and of the uninterrupted run", "differ by"),
    "buffers that scoring moved": ("the number of buffers that scoring moves", "is"),
    "loss of the last 10 updates": ("the loss of the last 10 updates", "is"),
}


class Row(NamedTuple):
    """A number of a run, without and with the change."""

    name: str
    before: float | str
    after: float | str


@cache
def all_of() -> dict:
    """The file: {"before": runs, "after": {case: what differs}}."""
    return json.loads(FILE.read_text("utf-8"))


def stopped(case: str, run: str) -> str:
    """Why the run stopped with the change; "" if it did not."""
    return all_of()["after"][case][run].get("stopped", "")


def numbers(case: str, run: str) -> list[Row]:
    """Every number of a run, in its order."""
    plain, changed = all_of()["before"][run]["numbers"], all_of()["after"][case][run]
    other = plain | changed.get("numbers", {})
    return [Row(name, plain.get(name, "-"), value) for name, value in other.items()]


def curves(case: str, run: str) -> dict[str, tuple[list[float], list[float]]]:
    """Every curve of a run, without and with the change."""
    plain, changed = all_of()["before"][run]["curves"], all_of()["after"][case][run]
    return {name: (values, changed.get("curves", {}).get(name, values))
            for name, values in plain.items()}


def measured(case: str, run: str, number: str) -> str:
    """What a case's number shows, as a sentence."""
    row = next(row for row in numbers(case, run) if row.name == number)
    subject, verb = SAYS[number]
    what = verb.partition(" ")[2]
    return (f"Measured, run {run}: {subject} {verb} {shown(row.before)} without the change and "
            f"{what + ' ' if what else ''}{shown(row.after)} with it.")


def shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
