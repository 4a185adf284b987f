"""A padding mask that is inverted."""

import torch
from torch import nn

from dlsys_watch.rule import Rule

NAMES = ("key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask")
HIDING = -1e4   # a fill value or a bias below this hides a position


class MaskInverted(Rule):
    id, trap = "mask-inverted", "08.2"
    reads = "which token ids attention may see and which it may not"

    def on_module(self, module, args, kwargs, grad):
        if isinstance(module, nn.MultiheadAttention | nn.TransformerEncoder | nn.TransformerDecoder
                      | nn.TransformerEncoderLayer | nn.Transformer):
            for name in NAMES:
                mask = kwargs.get(name)
                if torch.is_tensor(mask) and mask.dim() == 2:
                    self.judge(mask if mask.dtype is torch.bool else mask < HIDING)

    def on_attention(self, attention):
        mask = attention.mask
        if torch.is_tensor(mask) and mask.dim() == 4 and mask.shape[1] == 1:
            hidden = ~mask if mask.dtype is torch.bool else mask < HIDING
            self.judge(hidden[:, 0].all(1))

    def on_fill(self, tensor, mask, value):
        if value < HIDING and mask.dtype is torch.bool and mask.dim() in (3, 4) and (
                tensor.shape[-1] == mask.shape[-1]):
            self.judge(mask.reshape(mask.shape[0], -1, mask.shape[-1]).all(1))

    def judge(self, hidden):
        """hidden (N, L): True where a key may not be looked at."""
        for known in self.run.tokens.seen:
            if known.shape != tuple(hidden.shape) or not hidden.any() or hidden.all():
                continue
            ids, mask = known.tensor(), hidden.detach().cpu()
            seen, unseen = ids[~mask].unique(), ids[mask].unique()
            if len(seen) == 1 and len(unseen) > 2 and seen[0] not in unseen and (
                    known.padding in (None, seen[0].item())):
                self.say(f"the padding mask is inverted: it hides {int(mask.sum())} real tokens "
                         f"and lets through {int((~mask).sum())} times the id {seen[0].item()}")
