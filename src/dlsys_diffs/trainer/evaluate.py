"""Scores of a model: every image counts once, and the model is left as it was."""

from contextlib import contextmanager

import torch
from torch.nn import functional as F


@contextmanager
def evaluating(model: torch.nn.Module):
    """Eval mode without gradients; afterwards each module has the mode it had."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def evaluate(model: torch.nn.Module, batches) -> dict[str, float]:
    """Mean loss and accuracy over all images of these batches."""
    loss = correct = images = 0
    with evaluating(model):
        for inputs, labels in batches:
            logits = model(inputs)
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            correct += (logits.argmax(dim=1) == labels).sum().item()
            images += len(labels)
    return {"loss": loss / images, "accuracy": correct / images, "images": images}


def predict(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The class of each image."""
    with evaluating(model):
        return model(images).argmax(dim=1)


class Running:
    """Means of what was logged since the last `take`."""

    def __init__(self):
        self.sums: dict[str, float] = {}
        self.count = 0

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.count += 1

    def take(self) -> dict[str, float]:
        means = {name: total / self.count for name, total in self.sums.items()}
        self.sums, self.count = {}, 0
        return means
