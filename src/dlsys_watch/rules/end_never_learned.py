"""An end token that is masked together with the padding."""

import weakref

import torch

from dlsys_watch.rule import Rule

BATCHES = 4


class EndNeverLearned(Rule):
    id, trap = "end-never-learned", "10.6"
    reads = "labels of the end token: the configuration names it, or each text ends with padding"
    rests = ("root",)

    def __init__(self, watch):
        super().__init__(watch)
        # model -> batches in which every end was masked
        self.masked = weakref.WeakKeyDictionary()

    def on_root(self, module, args, kwargs, grad):
        ids, labels = kwargs.get("input_ids", args[0] if args else None), kwargs.get("labels")
        if not grad or not torch.is_tensor(ids) or not torch.is_tensor(labels) or (
                ids.shape != labels.shape or ids.dim() != 2 or not self.seldom(id(module), 8)):
            return
        mask = kwargs.get("attention_mask")
        end = getattr(getattr(module, "config", None), "eos_token_id", None)
        if not isinstance(end, int):
            end = padding_that_ends(ids, mask)
        if end is None:
            return
        ends = ends_of_text(ids, end, mask)
        if not ends[:, 1:].any() or (labels != -100).all():
            return
        if (labels[ends] != -100).any():
            self.masked[module] = -10**9
        self.masked[module] = self.masked.get(module, 0) + 1
        if self.masked[module] == BATCHES:
            self.say(f"none of the end tokens ({end}) in {BATCHES} batches is a label: they are "
                     "masked with the padding, so the model never learns to stop")


def padding_that_ends(ids: torch.Tensor, mask) -> int | None:
    """The id of the padding, if it is also the last token of each text."""
    if not torch.is_tensor(mask) or mask.shape != ids.shape or (mask != 0).all():
        return None
    fill, kept = ids[mask == 0].unique(), (mask != 0).long()
    last = ids.gather(1, (kept * torch.arange(1, ids.shape[1] + 1, device=ids.device)).argmax(
        1, keepdim=True))
    return int(fill) if len(fill) == 1 and len(ids) > 1 and (last == fill).all() else None


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
