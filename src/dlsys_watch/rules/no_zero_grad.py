"""Gradients of the previous step that nobody cleared."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.run import params
from dlsys_watch.values import fingerprint, is_zero

WATCHED = 60  # steps of an optimizer


class NoZeroGrad(Rule):
    id, trap = "no-zero-grad", "02.1"
    reads = "whether a backward pass begins with the gradients of the previous step"
    rests = ("step", "step_done")

    def __init__(self, watch):
        super().__init__(watch)
        self.marks = weakref.WeakKeyDictionary()    # optimizer -> (parameter, its gradient then)
        self.dirty = weakref.WeakKeyDictionary()    # optimizer -> steps in a row

    def on_step_done(self, optimizer):
        if self.run.opt(optimizer).steps > WATCHED or optimizer not in self.dirty:
            return
        for p in params(optimizer):
            if p.grad is not None and not is_zero(p.grad) and not p.grad.is_sparse:
                self.marks[optimizer] = weakref.ref(p), fingerprint(p.grad)
                return

    def on_backward(self, tensors, kept):
        """At the first pass after a step the same gradient, and never none: it was not cleared."""
        for optimizer, (ref, mark) in list(self.marks.items()):
            p = ref()
            if p is None or p.grad is None or (
                    is_zero(p.grad) if mark is None else fingerprint(p.grad) != mark):
                del self.marks[optimizer]

    def on_backward_done(self, tensors):
        """The new gradient came on top; one that is set by hand does not change here."""
        for optimizer, (ref, mark) in list(self.marks.items()):
            p = ref()
            if mark is not None and p is not None and p.grad is not None and (
                    fingerprint(p.grad) != mark):
                self.marks[optimizer] = ref, None

    def on_step(self, optimizer, closure):
        if closure is not None:
            self.dirty.pop(optimizer, None)
            return
        left = self.marks.pop(optimizer, (None, 0))[1] is None
        self.dirty[optimizer] = self.dirty.get(optimizer, 0) + 1 if left else 0
        if self.dirty[optimizer] == 3:
            self.say("3 steps in a row used gradients that still held those of the step before: "
                     "zero_grad is missing")
