"""Labels on positions that the attention mask calls padding."""

import torch

from dlsys_watch.rule import Rule


class PadInLabels(Rule):
    id, trap = "pad-in-labels", "10.6"
    reads = "labels at positions whose attention_mask is 0"
    rests = ("root",)

    def on_root(self, module, args, kwargs, grad):
        labels, mask = kwargs.get("labels"), kwargs.get("attention_mask")
        if not (torch.is_tensor(labels) and torch.is_tensor(mask) and labels.shape == mask.shape):
            return
        if labels.dim() == 2 and (self.run.looking or self.seldom()):
            wrong = int(((mask == 0) & (labels != -100)).sum())
            if wrong:
                self.say(f"{wrong} of {labels.numel()} labels are padding (attention_mask 0) and "
                         "are not -100: the model learns to write padding")
