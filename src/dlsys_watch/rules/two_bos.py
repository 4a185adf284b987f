"""Texts that begin with two BOS tokens."""

import weakref

import torch

from dlsys_watch.rule import Rule

BATCHES = 3


class TwoBos(Rule):
    id, trap = "two-bos", "10.7"
    reads = "the first two tokens of each text, if the model's configuration names the first"
    rests = ("root",)

    def __init__(self, watch):
        super().__init__(watch)
        self.times = weakref.WeakKeyDictionary()   # model -> batches in a row

    def on_root(self, module, args, kwargs, grad):
        ids = kwargs.get("input_ids", args[0] if args else None)
        config = getattr(module, "config", None)
        begin = getattr(config, "bos_token_id", None)
        if not torch.is_tensor(ids) or ids.dim() != 2 or ids.shape[1] < 4 or (
                not isinstance(begin, int) or self.times.get(module, 0) >= BATCHES):
            return
        others = (getattr(config, "eos_token_id", None), getattr(config, "pad_token_id", None))
        if begin in others or ids.is_floating_point() or not self.seldom(id(module), first=12):
            return
        first = (ids == begin).long().argmax(1).clamp(max=ids.shape[1] - 2)   # after left padding
        pair = ids.gather(1, torch.stack([first, first + 1], 1))
        twice = bool((pair == begin).all()) and bool((ids != begin).any())
        self.times[module] = self.times.get(module, 0) + 1 if twice else 0
        if self.times[module] == BATCHES:
            self.say(f"each text begins with two BOS tokens ({begin}): its template and the "
                     "tokenizer add one each. Tokenize with add_special_tokens=False")
