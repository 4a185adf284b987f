"""zero_grad inside the accumulation loop."""

import weakref

from dlsys_watch.graphs import leaves
from dlsys_watch.rule import Rule
from dlsys_watch.run import params
from dlsys_watch.values import fingerprint, is_zero

WATCHED = 120  # backward passes after an optimizer was made


class GradientsThrownAway(Rule):
    id, trap = "gradients-thrown-away", "02.4"
    reads = "backward passes whose gradients are erased before any step, in a regular pattern"
    rests = ("step",)

    def __init__(self, watch):
        super().__init__(watch)
        self.passes = 0
        self.zeroed = None    # where gradients were last erased
        self.forget()

    def forget(self):
        """What was seen is not a plain accumulation: start again."""
        self.probe = self.line = self.stepped = None
        self.wasted, self.all, self.cycles = 0, 0, []   # (wasted, all) of the last 3 steps
        self.kept = 0         # passes whose gradients have not been erased yet

    def on_optimizer(self, optimizer):
        self.passes = 0
        self.forget()

    def on_backward(self, tensors, kept):
        self.passes += 1
        here = self.here()
        if self.passes > WATCHED:
            return
        held = self.run.held()
        inputs = any(id(leaf) not in held for leaf in leaves(tensors[0], 1000))
        if inputs or self.line not in (None, here):   # its gradient may be what is wanted
            self.forget()
        self.line, self.all = here, self.all + 1
        if self.probe is not None:
            ref, weights = self.probe
            p, self.probe = ref(), None
            if p is None or fingerprint(p) != weights:   # somebody used the gradient by hand
                self.forget()
            elif is_zero(p.grad):
                self.wasted, self.kept = self.wasted + self.kept, 0

    def on_backward_done(self, tensors):
        self.kept += 1
        for optimizer in list(self.run.optimizers) if self.passes <= WATCHED else ():
            p = next((p for p in params(optimizer) if not is_zero(p.grad)), None)
            if p is not None:
                self.probe = weakref.ref(p), fingerprint(p)

    def on_zero(self, owner, *_):
        self.zeroed = self.here() if self.passes <= WATCHED else self.zeroed

    def on_step(self, optimizer, closure):
        if closure is not None or (self.stepped is not None and self.stepped() is not optimizer):
            return self.forget()
        self.probe, self.stepped = None, weakref.ref(optimizer)
        last = self.cycles = [*self.cycles[-2:], (self.wasted, self.all)]
        self.wasted = self.all = self.kept = 0
        wasted, passes = last[0]
        if len(last) == 3 and len(set(last)) == 1 and wasted and self.passes <= WATCHED:
            self.say(f"the gradients of {wasted} of {passes} backward passes are erased before "
                     "the step: zero_grad belongs after it", self.zeroed)
