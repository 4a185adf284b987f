"""0.5 is a threshold for probabilities."""

import weakref
from collections import deque

import torch

from dlsys_watch.rule import Rule
from dlsys_watch.values import some

NUMBERS = 8   # of an output that make it known


class ThresholdOnLogits(Rule):
    id, trap = "threshold-on-logits", "01.2"
    reads = "what is compared with 0.5, and whether the loss takes it for logits"
    rests = ("root_done",)

    def __init__(self, watch):
        super().__init__(watch)
        self.of_logits = weakref.WeakSet()
        self.last = None
        self.starts = deque(maxlen=16)   # the first numbers of outputs, which may be joined

    def on_loss(self, loss):
        if loss.name == "binary_cross_entropy_with_logits" and loss.grad and self.run.model:
            self.of_logits.add(self.run.model)

    def on_root_done(self, module, output, grad):
        self.last = None
        if module in self.of_logits and torch.is_tensor(output):
            self.last = output.data_ptr(), output.numel()
            if not grad and output.numel() >= NUMBERS:
                self.starts.append(some(output)[:NUMBERS].tolist())

    def on_compare(self, tensor, threshold):
        if threshold == 0.5 and self.is_output(tensor) and tensor.numel() and tensor.min() < 0:
            self.say("logits compared with 0.5: they go down to "
                     f"{tensor.min():.2f}. Probability 0.5 is logit 0")

    def is_output(self, tensor) -> bool:
        """Whether these are a model's logits, or several of its outputs in one tensor."""
        return (tensor.data_ptr(), tensor.numel()) == self.last or (
            tensor.numel() >= NUMBERS and some(tensor)[:NUMBERS].tolist() in self.starts)
