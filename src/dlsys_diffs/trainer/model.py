"""The network, and how its parameters are grouped for the optimizer."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Convolution, normalization, ReLU."""

    def __init__(self, inputs: int, outputs: int, norm: str):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=norm == "none")
        self.norm = nn.BatchNorm2d(outputs) if norm == "batch" else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Net(nn.Module):
    """Two blocks, each followed by pooling, and a linear head. Returns logits."""

    def __init__(self, config):
        super().__init__()
        self.dropout, self.freeze = config.dropout, config.freeze
        self.first = Block(1, config.width // 2, config.norm)
        self.second = Block(config.width // 2, config.width, config.norm)
        self.head = nn.Linear(config.width * 4, config.classes)
        self.reset(config.seed)
        if self.freeze:
            freeze_features(self)

    def reset(self, seed: int) -> None:
        """Draw the weights; a bias starts at zero."""
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def train(self, mode: bool = True) -> "Net":
        """As for any module; frozen blocks stay in eval mode."""
        super().train(mode)
        if self.freeze:
            self.first.eval()
            self.second.eval()
        return self

    def features(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.first(x), 2)
        x = F.max_pool2d(self.second(x), 2)
        return x.flatten(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.features(x), self.dropout, training=self.training)
        return self.head(x)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Weights decay; biases and the parameters of a normalization do not."""
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    plain = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
    return [{"params": decayed, "weight_decay": weight_decay},
            {"params": plain, "weight_decay": 0.0}]


def freeze_features(model: Net) -> None:
    """Train the head alone; `Net.train` also keeps the blocks' statistics as they are."""
    for block in (model.first, model.second):
        block.requires_grad_(False)
