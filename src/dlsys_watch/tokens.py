"""The token ids that went through embeddings in the current forward pass, as copies."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

MOST = 65536   # ids of a batch that are kept


class Ids(NamedTuple):
    """The ids that one embedding looked up: numbers, no tensor of the run."""

    numbers: list[int]
    shape: tuple[int, int]     # (N, L)
    padding: int | None
    vocabulary: int

    def tensor(self) -> torch.Tensor:
        """The ids, int64 (N, L), on the CPU."""
        return torch.tensor(self.numbers, device="cpu").view(self.shape)

    def pad(self) -> int | None:
        """The id of padding: the embedding's padding_idx, else one that only fills up rows.

        Such an id occurs at the ends of rows and nowhere else, in runs of different lengths.
        """
        if self.padding is not None:
            return self.padding
        ids = self.tensor()
        last = int(ids[:, -1].mode().values.item())
        fills = ids == last
        runs = fills.flip(1).long().cumprod(1).sum(1)
        if int(runs.sum()) != int(fills.sum()) or fills.all(1).any():
            return None
        return last if len(runs.unique()) > 2 and int(runs.max()) > 2 else None


class Tokens:
    """Collects them at the events of a rule; it has nothing to say."""

    id = "tokens"
    begins, rests = (), ("root", "step_done")

    def __init__(self, run):
        self.run = run
        self.seen: list[Ids] = []

    def on_root(self, module, args, kwargs, grad):
        self.seen.clear()

    def on_module(self, module, args, kwargs, grad):
        if isinstance(module, nn.Embedding) and args and torch.is_tensor(args[0]):
            ids = args[0]
            if ids.dim() == 2 and ids.numel() <= MOST and ids.shape[1] > 1 and not (
                    is_places(ids, module.padding_idx)):
                self.seen.append(Ids(ids.flatten().tolist(), (ids.shape[0], ids.shape[1]),
                                     module.padding_idx, module.num_embeddings))

    def on_step_done(self, optimizer):
        self.seen.clear()

    def on_end(self):
        self.seen.clear()


def is_places(ids: torch.Tensor, padding: int | None = None) -> bool:
    """Whether these are position numbers: every row counts up, except over padding."""
    counts = ids[:, 1:] - ids[:, :-1] == 1
    if padding is not None and counts.any():
        counts = counts | (ids[:, 1:] == padding) | (ids[:, :-1] == padding)
    return bool(counts.all())
