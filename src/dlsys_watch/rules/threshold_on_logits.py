"""0.5 is a threshold for probabilities."""

import weakref

import torch

from dlsys_watch.rule import Rule


class ThresholdOnLogits(Rule):
    id, trap = "threshold-on-logits", "01.2"
    reads = "what is compared with 0.5, and whether the loss takes it for logits"

    def __init__(self, watch):
        super().__init__(watch)
        self.of_logits = weakref.WeakSet()
        self.last = None

    def on_loss(self, loss):
        if loss.name == "binary_cross_entropy_with_logits" and loss.grad and self.run.model:
            self.of_logits.add(self.run.model)

    def on_root_done(self, module, output, grad):
        self.last = None
        if module in self.of_logits and torch.is_tensor(output):
            self.last = output.data_ptr(), output.numel()

    def on_compare(self, tensor, threshold):
        if threshold == 0.5 and (tensor.data_ptr(), tensor.numel()) == self.last and (
                tensor.numel() and tensor.min() < 0):
            self.say("logits compared with 0.5: they go down to "
                     f"{tensor.min():.2f}. Probability 0.5 is logit 0")
