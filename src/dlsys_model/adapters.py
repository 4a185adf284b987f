"""LoRA on a second text: the adapter, its rows, its training, its file, and the merge."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlsys_model.errors import ModelError, not_written
from dlsys_model.network import Network
from dlsys_model.parts import Parts
from dlsys_model.text import Text, TextError

NAMES = ["qkv", "out", "up", "down"]


class AdapterError(ModelError):
    """An adapter's file cannot be written. The message says what to do."""


class LoRA(nn.Module):
    """A frozen linear layer plus alpha / r times B A; A (r, d_in) and B (d_out, r), B zero."""

    def __init__(self, linear: nn.Linear, r: int, alpha: float) -> None:
        super().__init__()
        self.linear, self.alpha = linear, alpha
        self.A = nn.Parameter(torch.randn(r, linear.in_features) / r)
        self.B = nn.Parameter(torch.zeros(linear.out_features, r))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.alpha / len(self.A) * F.linear(F.linear(x, self.A), self.B)


class Rows(NamedTuple):
    """Padded texts: ids, labels (-100 where nothing is learned) and real, each (N, T) int64."""

    ids: Tensor
    labels: Tensor
    real: Tensor


def adapted(model: Network, r: int = 8, alpha: float = 16.0) -> Network:
    """A copy of the model, frozen, with a LoRA layer around each linear one of its blocks."""
    parts, twin = model.parts, copy.deepcopy(model)
    parts.freeze(twin)
    for paths in parts.hits(twin, NAMES).values():
        for path in paths:
            above, _, name = path.rpartition(".")
            block = twin.get_submodule(above)
            setattr(block, name, LoRA(getattr(block, name), r, alpha))
    return twin


def second_text(parts: Parts, text: Text, pairs: list[tuple[str, str]], length: int = 128,
                share: float = 0.2, seed: int = 0) -> tuple[Rows, Rows]:
    """Prompts and answers as padded rows to train and to test, without pairs of unknown letters.

    share: of the pairs, for testing. Raises TextError if fewer than 10 are left.
    """
    known = [pair for pair in pairs if set("".join(pair)) <= set(text.letters)]
    if len(known) < 10:
        raise TextError(f"second text: {len(known)} of {len(pairs)} pairs are written in the "
                        "letters of the first, expected 10 or more. Give pairs of your own.")
    train, test = parts.split_groups(torch.arange(len(known)), share, seed)
    return (_rows(parts, text, [known[n] for n in train], length),
            _rows(parts, text, [known[n] for n in test], length))


def _rows(parts: Parts, text: Text, pairs: list[tuple[str, str]], length: int) -> Rows:
    """Pad on the left; a long pair loses the beginning of its prompt."""
    ids, prompts, lengths = [], [], []
    for pair in pairs:
        prompt, answer = map(text.encode, pair)
        answer = answer[:length]
        row, labels = parts.fit_text(prompt, answer, length, 0)
        prompts.append(int((labels == -100).sum()))
        lengths.append(len(row))
        ids.append(F.pad(row, (length - len(row), 0)))
    ids, lengths = torch.stack(ids), torch.tensor(lengths)
    real = torch.arange(length) >= length - lengths[:, None]
    return Rows(ids, parts.lm_labels(ids, torch.tensor(prompts), lengths), real.long())


def loss_of(model: Network, rows: Rows) -> Tensor:
    """Mean loss of the answers' letters, in nats, a scalar with its graph."""
    logits = model(rows.ids, real=rows.real)[:, :-1]
    labels = rows.labels[:, 1:]
    return model.parts.class_loss(logits.flatten(0, 1),
                                  labels.masked_fill(labels == -100, -1).flatten())


def tune(model: Network, rows: Rows, epochs: int = 3, batch: int = 8, lr: float = 3e-3) -> None:
    """Train the adapter in place, with a cosine that falls to zero."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr,
                                  weight_decay=0.0)
    pieces = [Rows(*(part[n:n + batch] for part in rows)) for n in range(0, len(rows.ids), batch)]
    model.parts.train_cosine(optimizer, [partial(loss_of, model, piece) for piece in pieces],
                             epochs, 1)


def adapter(model: Network) -> dict[str, Tensor]:
    """The adapter alone, by the paths that peft writes into a file: x.A is x.lora_A.weight."""
    return {_in_peft(path, "weight"): p.detach().clone() for path, p in _own(model).items()}


def under_peft_paths(model: Network) -> nn.Module:
    """A module that holds the adapter's own parameters as peft does: x.lora_A.default.weight."""
    view = nn.Module()
    for path, p in _own(model).items():
        *holders, last = _in_peft(path, "default.weight").split(".")
        at = view
        for holder in holders:
            if holder not in dict(at.named_children()):
                at.add_module(holder, nn.Module())
            at = at.get_submodule(holder)
        at.register_parameter(last, p)
    return view


def _own(model: Network) -> dict[str, nn.Parameter]:
    return {path: p for path, p in model.named_parameters()
            if path.rpartition(".")[2] in ("A", "B")}


def _in_peft(path: str, end: str) -> str:
    layer, _, letter = path.rpartition(".")
    return f"base_model.model.{layer}.lora_{letter}.{end}"


def through_file(model: Network, path: Path) -> Network:
    """The adapter written to a file and read back into a fresh copy of the frozen model.

    Raises AdapterError if the disk does not take the file.
    """
    try:
        torch.save(adapter(model), path)
    except (OSError, RuntimeError) as error:
        Path(path).unlink(missing_ok=True)  # a half-written file takes up space
        raise AdapterError(f"{Path(path).name}: the adapter cannot be written "
                           f"({not_written(error)}). Free some space and run this cell again: the "
                           "adapter is in memory.") from None
    fresh = copy.deepcopy(model)
    with torch.no_grad():
        for p in _own(fresh).values():
            p.normal_()
    model.parts.load_adapter(under_peft_paths(fresh), torch.load(path))
    return fresh


def merged(model: Network) -> Network:
    """A plain model in which each weight and its adapter have become one."""
    twin = Network(model.shape, model.parts, model.p)
    state = {name.replace(".linear.", "."): tensor for name, tensor in model.state_dict().items()
             if name.rpartition(".")[2] not in ("A", "B")}
    for path in model.parts.passport(model)["layers"]:
        layer = model.get_submodule(path)
        state[f"{path}.weight"] = model.parts.merge(layer.linear.weight, layer.A, layer.B,
                                                    layer.alpha)
    twin.load_state_dict(state)
    return twin.eval()
