"""Layers that get gradients and that no optimizer holds."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.run import params


class NotInOptimizer(Rule):
    id, trap, sound = "not-in-optimizer", "07.10", False
    reads = "layers with gradients whose weights are in no optimizer"
    follows = ("stale-optimizer", "unregistered-layer")
    rests = ("step",)

    def __init__(self, watch):
        super().__init__(watch)
        self.ran = weakref.WeakSet()
        self.trained = {}    # id of a tensor that an optimizer held -> weak reference

    def on_module(self, module, args, kwargs, grad):
        if grad and module._parameters:
            self.ran.add(module)

    def on_optimizer(self, optimizer):
        self.ran = weakref.WeakSet()    # gradients of what ran before may be left over

    def on_step(self, optimizer, closure):
        steps = self.run.opt(optimizer).steps
        if steps == 0:   # a model trained before may have a gradient, and no optimizer any more
            self.trained |= {id(p): weakref.ref(p) for p in params(optimizer)}
        if steps != 6:   # the rules that it follows have spoken
            return
        held = self.run.held()
        out = [layer for layer in list(self.ran) for p in layer._parameters.values()
               if p is not None and p.requires_grad and p.grad is not None
               and self.trained.get(id(p), int)() is not p and id(p) not in held]
        if out:
            self.say(f"{self.run.name(out[0])} gets gradients, and no optimizer holds its "
                     "weights: forgotten?", self.run.opt(optimizer).place)
