"""Export for serving: one file that takes raw images and says what they show."""

from pathlib import Path

import torch
from torch.nn import functional as F

from .loop import Trainer

LABELS = [str(digit) for digit in range(10)]


def folded(block) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a convolution that also does the normalization."""
    if isinstance(block.norm, torch.nn.Identity):
        return block.conv.weight, block.conv.bias
    norm = block.norm
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return block.conv.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale


def export(trainer: Trainer, path: Path) -> None:
    """Write the average of the weights, with what raw images need."""
    model, normalizer = trainer.ema.model, trainer.train_set.normalizer
    convs = [folded(block) for block in (model.first, model.second)]
    torch.save({"convs": [[t.detach().clone() for t in pair] for pair in convs],
                "head": [model.head.weight.clone(), model.head.bias.clone()],
                "mean": normalizer.mean, "std": normalizer.std, "labels": LABELS}, path)


class Predictor:
    """What is served: no training code, no configuration."""

    def __init__(self, path: Path):
        self.parts = torch.load(path)

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Of raw images, (N, 1, 8, 8) between 0 and 16."""
        x = (images - self.parts["mean"]) / self.parts["std"]
        for weight, bias in self.parts["convs"]:
            x = F.max_pool2d(torch.relu(F.conv2d(x, weight, bias, padding=1)), 2)
        return F.linear(x.flatten(1), *self.parts["head"])

    def names(self, images: torch.Tensor) -> list[str]:
        """What each image shows."""
        return [self.parts["labels"][place] for place in self.logits(images).argmax(dim=1)]
