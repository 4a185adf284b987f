"""Checkpoints: a resumed run continues as if it had never stopped."""

import os
from pathlib import Path

import torch

from .config import from_dict, to_dict
from .loop import Trainer

# Objects with a state of their own, by their name in the trainer.
PARTS = ("model", "optimizer", "schedule", "scaler", "ema", "loader")
# Names of version 1, and what they are called today.
RENAMED = {"conv1.": "first.conv.", "bn1.": "first.norm.", "conv2.": "second.conv.",
           "bn2.": "second.norm.", "fc.": "head."}


def save(trainer: Trainer, path: Path) -> None:
    """Write a checkpoint, whole or not at all."""
    state = {"config": to_dict(trainer.config), "rank": trainer.rank, "step": trainer.step,
             "best": trainer.best, "history": trainer.history, "rng": torch.get_rng_state(),
             "parts": {name: getattr(trainer, name).state_dict() for name in PARTS}}
    part = Path(path).with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def resume(path: Path) -> Trainer:
    """The trainer of a checkpoint that this version wrote; for older files, see `warm_start`."""
    state = torch.load(path, weights_only=False)
    trainer = Trainer(from_dict(state["config"]), state["rank"])
    for name in PARTS:
        getattr(trainer, name).load_state_dict(state["parts"][name])
    trainer.step, trainer.best = state["step"], state["best"]
    trainer.history = state["history"]
    torch.set_rng_state(state["rng"])
    return trainer


def today(name: str) -> str:
    """A weight's name of version 1 as it is called today."""
    for old, new in RENAMED.items():
        if name.startswith(old):
            return name.replace(old, new, 1)
    return name


def warm_start(model: torch.nn.Module, weights: dict) -> list[str]:
    """Begin from these weights, of any version; returns the names that the model lacks values for.

    A head for other classes does not fit and stays as it is.
    """
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    named = {today(name): value for name, value in weights.items()}
    fitting = {name: value for name, value in named.items() if shapes.get(name) == value.shape}
    return model.load_state_dict(fitting, strict=False).missing_keys
