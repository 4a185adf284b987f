"""A sequence layer that treats the batch as time."""

import weakref

import torch
from torch import nn

from dlsys_watch.rule import Rule


class BatchAsTime(Rule):
    id, trap = "rnn-batch-first", "08.11"
    reads = "which axis of a recurrent or attention layer has as many entries as the targets"
    rests = ("root",)

    def __init__(self, watch):
        super().__init__(watch)
        self.layers = {}    # rows of axis 0 -> (name, other axis, line), in this forward pass
        self.seen = weakref.WeakKeyDictionary()

    def on_root(self, module, args, kwargs, grad):
        self.layers.clear()

    def on_module(self, module, args, kwargs, grad):
        if not args or not torch.is_tensor(args[0]) or args[0].dim() != 3:
            return
        if is_time_first(module):
            rows, other = args[0].shape[:2]
            if rows != other and other > 1:
                self.layers.setdefault(rows, (type(module).__name__, other, self.here()))

    def on_loss(self, loss):
        model = self.run.model
        rows = loss.target.shape[0] if loss.target.dim() else 0
        if not loss.grad or rows not in self.layers or model is None or loss.input.dim() > 2:
            return
        if loss.input.shape[0] != rows or loss.target.numel() > 64 * rows:
            return
        name, other, line = self.layers[rows]
        times = self.seen[model] = self.seen.get(model, 0) + 1
        if times == 2 and not self.taken_apart(rows, other):
            self.say(f"{name} takes the {rows} rows of the batch for time steps: its input is "
                     f"({rows}, {other}, ...) and batch_first is False", line)

    def taken_apart(self, rows, other) -> bool:
        """Whether another layer read the same rows along the second axis, as it should."""
        return any(rows == second for _, second, _ in self.layers.values())


def is_time_first(module) -> bool:
    """Whether a layer reads time along the first axis."""
    if isinstance(module, nn.TransformerEncoder):
        module = module.layers[0]
    if isinstance(module, nn.TransformerEncoderLayer):
        module = module.self_attn
    return isinstance(module, nn.RNNBase | nn.MultiheadAttention) and not module.batch_first
