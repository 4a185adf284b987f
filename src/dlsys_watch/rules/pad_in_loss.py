"""Padding that counts as a target."""

import torch

from dlsys_watch.rule import Rule


class PadInLoss(Rule):
    id, trap = "pad-in-loss", "09.2"
    reads = "targets that are the padding index of the embedding"
    rests = ("root",)

    labelled = False    # the model gets labels and an attention mask: `pad-in-labels`

    def on_root(self, module, args, kwargs, grad):
        self.labelled = "labels" in kwargs

    def on_loss(self, loss):
        target = loss.target
        if loss.name not in ("cross_entropy", "nll_loss") or target.dtype != torch.long:
            return
        if not loss.grad or self.labelled or loss.input.dim() < 2 or not self.seldom(self.here()):
            return
        ignored = loss.options.get("ignore_index", -100)
        if loss.options.get("reduction") == "none" or loss.options.get("weight") is not None:
            return
        for known in self.run.tokens.seen:
            pad = known.pad()
            if pad is None or pad == ignored or loss.input.shape[1] != known.vocabulary:
                continue
            # a padding that was only inferred may be the end token, once in each row
            fewest = 0 if known.padding is not None else known.shape[0]
            count = int((target == pad).sum())
            share = count / target.numel()
            if count > fewest and (known.tensor() == pad).any() and len(target) >= known.shape[0]:
                self.say(f"{share:.0%} of the targets are the padding index {pad} of the "
                         f"input, and ignore_index is {ignored}: padding is learned")
                return
