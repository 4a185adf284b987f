"""Attention to padding."""

from typing import Any

import torch
from torch import nn

from dlsys_watch.rule import Rule

SEGMENTS = 4   # an embedding of so few entries tells parts of a text apart
LAYERS = (nn.MultiheadAttention, nn.TransformerEncoder)


class PadAttended(Rule):
    id, trap = "pad-attended", "08.2"
    reads = "padding token ids, and attention over them without any mask"

    def on_module(self, module, args, kwargs, grad):
        if not isinstance(module, LAYERS) or not args or not torch.is_tensor(args[0]):
            return
        if any(isinstance(outer, LAYERS) for outer in self.run.stack):
            return
        queries = args[0]
        keys = args[1] if isinstance(module, nn.MultiheadAttention) and len(args) > 1 else queries
        given = [*args[2:], *kwargs.values()] if isinstance(module, nn.MultiheadAttention) else [
            *args[1:], *kwargs.values()]
        masks = [a for a in given if a is True or (torch.is_tensor(a) and a.dim() < 3)]
        if keys.dim() != 3 or keys is not queries or masks:
            return
        first = keys.shape[:2]
        batch_first = getattr(module, "batch_first", None)
        if batch_first is None:
            layers: Any = module.layers
            batch_first = layers[0].self_attn.batch_first
        self.judge(tuple(first) if batch_first else tuple(first[::-1]))

    def on_attention(self, attention):
        inside = any(isinstance(outer, LAYERS) for outer in self.run.stack)
        keys = attention.key.shape
        if attention.mask is None and not attention.causal and not inside and len(keys) == 4 and (
                attention.query.shape[-2] == keys[-2]):
            self.judge((keys[0], keys[-2]))

    def judge(self, shape):
        """shape: (N, L) of the keys."""
        for known in words(self.run.tokens.seen):
            pad = known.pad()
            if pad is None or known.shape != shape:
                continue
            pads = known.tensor() == pad
            uneven = pads.sum(1).float().std() > 0 if len(pads) > 1 else False
            if uneven and pads[:, -1].any() and not pads[:, 0].any():
                self.say(f"attention without a mask over {int(pads.sum())} paddings of "
                         f"{pads.numel()} tokens (id {pad}): real tokens look "
                         "at them")


def words(seen: list) -> list:
    """The ids of the one embedding of words; [] if there are several. Segments are no words."""
    found = [known for known in seen if known.vocabulary > SEGMENTS]
    return found if len(found) == 1 else []
