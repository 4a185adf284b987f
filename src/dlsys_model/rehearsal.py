"""A rehearsal: each of the learner's parts alone in a small model, against its stand-in.

An answer may pass its check and still fail here: another dtype, an edit in place that autograd
meets only in the backward pass, a change made since the check passed. The rehearsal names the
part before training begins, so that nothing else breaks first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dlsys_model.network import Network, Shape, write
from dlsys_model.part_table import BY_ID, CATALOGUE, Part
from dlsys_model.parts import PartBroke, Parts
from dlsys_model.training import Plan, Training
from dlsys_model.trials import TRIED, Numbers, trial, walk

SHAPE = Shape(letters=12, width=16, layers=2, heads=2, length=8)
PLAN = Plan(steps=4, rows=4, warm=1, every=2, average=0.9, patience=9)
WITHIN = 1e-3  # relative: a different order of summing stays far below it
# Plans that call a part which the plain one does not.
_PLANS = {"04.9": {"rule": "lion"}, "03.1": {"by_hand": True}, "02.4": {"parts_of": 2},
          "09.1": {"dtype": torch.bfloat16}}


def rehearse(parts: Parts) -> None:
    """Try each of the learner's parts alone. Raises PartBroke for the first that fails.

    Takes some seconds with all parts. Leaves global generators as they were.
    """
    for part in CATALOGUE:
        if part.id in parts.mine and (said := tried(part, parts.only(part.id))):
            raise PartBroke(part, f"{said}.")


def tried(part: Part, parts: Parts, seed: int = 0) -> str:
    """Try one part in a small model; return what is wrong with it, or "" if nothing is.

    Raises PartBroke if the part itself raises, or returns another kind of result.
    """
    numbers, said = measured(part, parts, seed)
    return said or differs(wanted(part.id, seed), numbers)


def measured(part: Part, parts: Parts, seed: int) -> tuple[Numbers, str]:
    """The numbers of a small run with these parts, or why there are none; see `tried`."""
    try:
        return _numbers(part.id, parts, seed), ""
    except PartBroke as broken:
        if broken.part.id == part.id:
            raise
        return {}, f"stops {broken.part.function}"
    except Exception as error:  # the backward pass, or a loss that is not finite
        return {}, (f"stops the training of a model of shape {tuple(SHAPE)}: "
                    f"{type(error).__name__}: {str(error).split(chr(10))[0][:120]}")


@cache
def wanted(id: str, seed: int) -> Numbers:
    """The numbers of the same run with stand-ins alone."""
    return _numbers(id, Parts(), seed)


def differs(expected: Numbers, got: Any) -> str:
    """Which number of a run differs from the expected one, and by how much; "" for none.

    got may be anything, because untrusted code may have sent it.
    """
    if type(got) is not dict or got.keys() != expected.keys():
        return "comes to other numbers than its stand-in"
    for name, value in expected.items():
        words, mine = name.replace("_", " "), got[name]
        if not isinstance(mine, Tensor) or (mine.shape, mine.dtype) != (value.shape, value.dtype):
            return f"makes {words} another kind of tensor than {tuple(value.shape)}"
        off = (mine - value).abs().max().item()
        if not off <= WITHIN * max(1.0, value.abs().max().item()):
            return (f"makes {words} of shape {tuple(value.shape)} differ by {off:.2g} from those "
                    "with its stand-in")
    return ""


def _numbers(id: str, parts: Parts, seed: int) -> Numbers:
    with torch.random.fork_rng(devices=[]):
        if id in TRIED or BY_ID[id].place in TRIED:
            return trial(id, parts, seed)
        return _trained(parts, PLAN._replace(seed=seed, **_PLANS.get(id, {})))


def _trained(parts: Parts, plan: Plan) -> Numbers:
    """The results of a small run with these parts: losses, logits, what is written, the log."""
    torch.manual_seed(plan.seed)
    letters = "".join(parts.class_numbers(list("lkjihgfedcba"), {}))
    text = walk(letters)
    run = Training(Network(SHAPE, parts, 0.0), text, plan)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rehearsal.pt")
        list(run.run(2, path))
        again = Training(Network(SHAPE, parts, 0.0), text, plan)
        again.resume(path)
        list(again.run())
    model = again.model.eval()
    row = text.valid[None, :8]
    real = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]])
    torch.manual_seed(plan.seed)
    with torch.no_grad():
        return {"the_letters": torch.tensor([ord(letter) for letter in letters]).float(),
                "the_losses": torch.tensor([*run.losses, *again.losses]),
                "the_log": torch.tensor([[entry["loss"], entry["valid"], entry["right"]]
                                         for entry in again.log()]),
                "the_logits": model(row), "the_logits_of_a_padded_row": model(row, real=real),
                "the_averaged_weights": torch.cat([weight.flatten() for weight
                                                   in again.averaged.parameters()]),
                "the_letters_written": F.one_hot(torch.tensor(list(write(
                    model, row[0, :3], 12, 0.01))), 12).float()}


def held(id: str, fn: Callable, seed: int) -> Numbers | str:
    """The numbers of a small run with this function as the part, or why there are none.

    It runs in a place that does not trust the function; the judge uses `wanted` and `differs`.
    """
    part = BY_ID[id]
    try:
        numbers, said = measured(part, Parts({id: fn}), seed)
    except PartBroke as broken:
        return broken.what
    return numbers or said
