"""The small language model of the incidents: it reads eight characters and learns the prose."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlsys_model import text

CONTEXT = 8


class Small(nn.Module):
    """Embedding, one hidden layer and a head; about 20,000 parameters."""

    def __init__(self, letters: int, width: int = 96, dim: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, dim)
        self.hidden = nn.Linear(CONTEXT * dim, width)
        self.head = nn.Linear(width, letters)

    def forward(self, rows: Tensor) -> Tensor:
        """Logits (N, letters) of rows (N, CONTEXT)."""
        return self.head(torch.tanh(self.hidden(self.embed(rows).flatten(1))))


def rows_of(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Every window of CONTEXT characters, and the character after it."""
    windows = tokens.unfold(0, CONTEXT + 1, 1)
    return windows[:, :CONTEXT], windows[:, CONTEXT]


def prose() -> text.Text:
    return text.prose()


def loss_of(model: nn.Module, rows: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(rows), targets)


def norm(tensors) -> float:
    """The norm of several tensors taken together."""
    return float(torch.sqrt(sum((tensor.detach() ** 2).sum() for tensor in tensors)))
