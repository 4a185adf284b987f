"""A rehearsal: each part of the learner's alone in a small model, against its stand-in.

An answer may pass its check and still fail here: another dtype, an edit in place that autograd
meets only in the backward pass, a change made since the check passed. It is named before the
training begins, and not by whatever it breaks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from dlsys_model.network import Network, Shape, write
from dlsys_model.parts import BY_ID, CATALOGUE, PartBroke, Parts
from dlsys_model.text import Text
from dlsys_model.training import Plan, Training

SHAPE = Shape(letters=12, width=16, layers=2, heads=2, length=8)
PLAN = Plan(steps=4, rows=4, warm=1, every=2, average=0.9, patience=9)
WITHIN = 1e-3  # relative: other orders of summing stay far below it
# Plans that call a part which the plain one does not.
_PLANS = {"04.9": {"rule": "lion"}, "03.1": {"by_hand": True}, "02.4": {"parts_of": 2},
          "09.1": {"dtype": torch.bfloat16}}


def rehearse(parts: Parts) -> None:
    """Try each own part of data, model and training alone. Raises PartBroke for the first.

    A second or two. Global generators are left as they were.
    """
    tried = [part.id for part in CATALOGUE
             if part.place in ("data", "model", "training") and part.id in parts.mine]
    with torch.random.fork_rng(devices=[]):
        for id in tried:
            plan = PLAN._replace(**_PLANS.get(id, {}))
            _compare(id, _wanted(plan), partial(_outcome, parts.only(id), plan))


def _compare(id: str, wanted: dict[str, Tensor], run: Callable[[], dict[str, Tensor]]) -> None:
    part = BY_ID[id]
    try:
        got = run()
    except PartBroke as broken:
        if broken.part.id == id:
            raise
        raise PartBroke(part, f"stops {broken.part.function}.") from broken
    except Exception as error:  # the backward pass, or a loss that is not finite
        raise PartBroke(part, f"stops the training of a model of shape {tuple(SHAPE)}: "
                              f"{type(error).__name__}: {str(error).split(chr(10))[0][:120]}."
                        ) from error
    for name, expected in wanted.items():
        off = (got[name] - expected).abs().max().item()
        if not off <= WITHIN * max(1.0, expected.abs().max().item()):
            raise PartBroke(part, f"makes {name} of shape {tuple(expected.shape)} differ by "
                                  f"{off:.2g} from those with its stand-in.")


@cache
def _wanted(plan: Plan) -> dict[str, Tensor]:
    return _outcome(Parts(), plan)


def _outcome(parts: Parts, plan: Plan) -> dict[str, Tensor]:
    """What a small run with these parts comes to: losses, logits, what is written, the log."""
    torch.manual_seed(0)
    steps = torch.randint(1, 3, (600,))
    letters = "".join(parts.class_numbers(list("lkjihgfedcba"), {}))
    ids = steps.cumsum(0) % len(letters)
    text = Text(ids[:480], ids[480:], letters)
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
    torch.manual_seed(0)
    with torch.no_grad():
        return {"the letters": torch.tensor([ord(letter) for letter in letters]).float(),
                "the losses": torch.tensor([*run.losses, *again.losses]),
                "the log": torch.tensor([[entry["loss"], entry["valid"], entry["right"]]
                                         for entry in again.log()]),
                "the logits": model(row), "the logits of a padded row": model(row, real=real),
                "the averaged weights": torch.cat([weight.flatten() for weight
                                                   in again.averaged.parameters()]),
                "the letters written": F.one_hot(torch.tensor(list(write(
                    model, row[0, :3], 12, 0.01))), 12).float()}
