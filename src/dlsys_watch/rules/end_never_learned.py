"""An end token that is masked together with the padding."""

import weakref

import torch

from dlsys_watch.rule import Rule

BATCHES = 4


class EndNeverLearned(Rule):
    id, trap = "end-never-learned", "10.6"
    reads = "labels of the end token, which the model's configuration names"

    def __init__(self, watch):
        super().__init__(watch)
        # model -> batches in which every end was masked
        self.masked = weakref.WeakKeyDictionary()

    def on_root(self, module, args, kwargs, grad):
        ids, labels = kwargs.get("input_ids"), kwargs.get("labels")
        if not grad or not torch.is_tensor(ids) or not torch.is_tensor(labels):
            return
        end = getattr(getattr(module, "config", None), "eos_token_id", None)
        if not isinstance(end, int) or ids.shape != labels.shape or not self.seldom(id(module), 8):
            return
        ends = ends_of_text(ids, end, kwargs.get("attention_mask"))
        if not ends[:, 1:].any() or (labels != -100).all():
            return
        if (labels[ends] != -100).any():
            self.masked[module] = -10**9
        self.masked[module] = self.masked.get(module, 0) + 1
        if self.masked[module] == BATCHES:
            self.say(f"none of the end tokens ({end}) in {BATCHES} batches is a label: they are "
                     "masked with the padding, so the model never learns to stop")


def ends_of_text(ids: torch.Tensor, end: int, mask) -> torch.Tensor:
    """Where the end token ends a text: padding may have the same id.

    Text is what the attention mask shows; without one, an end token between others.
    """
    ends = ids == end
    if torch.is_tensor(mask) and mask.shape == ids.shape:
        return ends & (mask != 0)
    alone = ends.clone()
    alone[:, 1:] &= ~ends[:, :-1]
    alone[:, :-1] &= ~ends[:, 1:]
    return alone
