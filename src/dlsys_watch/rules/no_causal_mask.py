"""A language model that sees the answer."""

import torch
from torch import nn

from dlsys_watch.rule import Rule

IGNORED = -100


class NoCausalMask(Rule):
    id, trap = "no-causal-mask", "08.1"
    reads = "whether position i can attend to i+1, if the targets are the inputs shifted by one"
    rests = ("root",)

    def __init__(self, watch):
        super().__init__(watch)
        self.open = {}     # length -> line of attention that sees ahead, in this forward pass
        self.closed = set()    # lengths for which attention was causal

    def on_root(self, module, args, kwargs, grad):
        self.open.clear()
        self.closed.clear()

    def on_attention(self, attention):
        length = attention.query.shape[-2]
        if length < 3 or length != attention.key.shape[-2]:
            return
        if attention.causal:
            self.closed.add(length)
        elif attention.mask is None:
            self.open.setdefault(length, self.here())
        elif attention.mask.shape[-2:] == (length, length):
            mask = attention.mask
            seen = mask if mask.dtype is torch.bool else mask > -1e4
            self.see(seen, length)

    def on_softmax(self, values, answer, dim):
        length = answer.shape[-1] if answer.dim() in (3, 4) else 0
        if length > 2 and answer.shape[-2] == length and (
                dim in (-1, answer.dim() - 1)):
            self.see(answer > 0, length)

    def on_module(self, module, args, kwargs, grad):
        if isinstance(module, nn.MultiheadAttention) and len(args) > 1 and args[0].dim() == 3 and (
                kwargs.get("need_weights", True) and kwargs.get("attn_mask") is None
                and len(args) < 6 and args[0].shape == args[1].shape):
            length = args[0].shape[1 if module.batch_first else 0]
            self.open.setdefault(length, self.here())

    def see(self, seen, length):
        """seen (..., L, L): whether a row may look at a column."""
        ahead = seen.diagonal(1, -2, -1)
        if ahead.any():
            self.open.setdefault(length, self.here())
        elif not seen.triu(1).any():
            self.closed.add(length)

    def on_loss(self, loss):
        if loss.name not in ("cross_entropy", "nll_loss") or loss.target.dtype != torch.long:
            return
        if not loss.grad or not (self.open or self.closed):
            return
        ignored = loss.options.get("ignore_index", IGNORED)
        target = loss.target.detach().flatten().cpu()
        for known in self.run.tokens.seen:
            rows, length = known.shape
            if seen := self.sees_answer(target, known.tensor(), ignored):
                self.say("the causal mask is missing: the targets are the inputs one position "
                         f"further, and attention lets each of {seen} positions see the next",
                         self.open[seen])
            elif length in self.closed and len(self.run.tokens.seen) == 1 and (
                    target.numel() == rows * length > 15 and target.max() > target.min()
                    and torch.equal(target, known.tensor().flatten())):
                self.say("the targets are the inputs, not shifted by one: each position predicts "
                         "the token that it reads")

    def sees_answer(self, target, ids, ignored) -> int:
        """The length over which the targets are the ids one further, in plain sight; else 0."""
        for tokens, turned in ((ids, False), (ids.T, True)):    # (N, L), or time first
            length = tokens.shape[1]
            if length in self.open and length not in self.closed and (
                    is_shifted(target, tokens, ignored, turned)):
                return length
        return 0


def is_shifted(target, ids, ignored, turned=False) -> bool:
    """Whether target (flat) is ids (N, L) moved by one, in full rows or without the last.

    turned: the target was flattened with time first.
    """
    rows, length = ids.shape
    if turned and target.numel() in (rows * length, rows * (length - 1)):
        target = target.view(-1, rows).T.flatten()
    if target.numel() == rows * length:
        target = target.view(rows, length)[:, :-1]
    elif target.numel() == rows * (length - 1):
        target = target.view(rows, length - 1)
    else:
        return False
    counted = target != ignored
    return int(counted.sum()) > 8 and bool((target == ids[:, 1:])[counted].all()) and (
        ids[:, 1:].max() > ids[:, 1:].min())
