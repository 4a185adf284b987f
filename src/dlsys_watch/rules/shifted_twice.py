"""Labels that were shifted by hand for a model that shifts them itself."""

import torch

from dlsys_watch.rule import Rule

SHIFTING = ("ForCausalLM", "LMHeadModel")


class ShiftedTwice(Rule):
    id, trap = "shifted-twice", "08.3"
    reads = "labels of a causal language model that are its inputs shifted by one"
    rests = ("root",)

    def on_root(self, module, args, kwargs, grad):
        ids, labels = kwargs.get("input_ids"), kwargs.get("labels")
        if not type(module).__name__.endswith(SHIFTING) or not self.seldom(id(module)):
            return
        if not (torch.is_tensor(ids) and torch.is_tensor(labels) and ids.shape == labels.shape):
            return
        here, ahead = labels[:, :-1], ids[:, 1:]
        counted = here != -100
        if int(counted.sum()) > 8 and (here == ahead)[counted].all() and (
                (here != ids[:, :-1])[counted].any()):
            self.say(f"the labels are the inputs shifted by one, and {type(module).__name__} "
                     "shifts them again: it learns the token after the next")
