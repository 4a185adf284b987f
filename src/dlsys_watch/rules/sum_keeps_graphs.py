"""A running sum of losses that were never detached."""

import weakref

from dlsys_watch.rule import Rule


class SumKeepsGraphs(Rule):
    id, trap = "sum-keeps-graphs", "12.6"
    reads = "whether losses of earlier steps are summed with their graphs"

    def __init__(self, watch):
        super().__init__(watch)
        self.used = {}     # id of a loss that backward ran from -> weak reference
        self.sums = {}     # id of a sum -> (weak reference, losses in it)

    def on_backward_done(self, tensors):
        self.used = {key: ref for key, ref in self.used.items() if ref() is not None}
        self.sums = {key: found for key, found in self.sums.items() if found[0]() is not None}
        for loss in tensors:
            if loss.grad_fn is not None:
                self.used[id(loss)] = weakref.ref(loss)

    def on_arithmetic(self, sign, left, right, answer):
        if sign != "+" or not answer.requires_grad:
            return
        for total, loss in ((left, right), (right, left)):
            if (ref := self.used.get(id(loss))) is not None and ref() is loss:
                _, count = self.sums.get(id(total), (None, 1))
                self.sums[id(answer)] = weakref.ref(answer), count + 1
                if count + 1 == 4:
                    self.say("a running sum holds the graphs of 4 steps: add loss.item(), or "
                             "loss.detach()")
                return
