"""An optimizer that holds tensors no layer uses any more."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.run import params
from dlsys_watch.values import counted, is_zero

VERDICT = 5


class StaleOptimizer(Rule):
    id, trap = "stale-optimizer", "07.10"
    reads = "which tensors the optimizer holds, and which layers get gradients"
    rests = ("step",)

    def __init__(self, watch):
        super().__init__(watch)
        self.ran = weakref.WeakSet()
        self.idle = weakref.WeakKeyDictionary()   # optimizer -> steps at which a tensor is idle
        self.since = weakref.WeakKeyDictionary()  # optimizer -> layers that ran after its step 1

    def on_module(self, module, args, kwargs, grad):
        if grad and module._parameters:
            self.ran.add(module)
            for beside in self.since.values():
                beside.add(module)

    def on_step(self, optimizer, closure):
        steps = self.run.opt(optimizer).steps
        if steps > VERDICT or closure is not None:
            return
        counts = self.idle.setdefault(optimizer, {})
        self.since.setdefault(optimizer, weakref.WeakSet())
        for p in params(optimizer):
            if p.requires_grad and is_zero(p.grad):
                counts[id(p)] = counts.get(id(p), 0) + 1
        if steps == VERDICT:
            self.judge(optimizer, counts)

    def judge(self, optimizer, counts):
        used = {id(p) for layer in self.ran for p in layer._parameters.values()}
        held = self.run.held()
        ours = [p for p in params(optimizer) if p.requires_grad]
        ghosts = [p for p in ours if id(p) not in used and counts.get(id(p)) == VERDICT + 1]
        out = [layer for layer in self.since.pop(optimizer) for p in layer._parameters.values()
               if p is not None and p.requires_grad and not is_zero(p.grad) and id(p) not in held]
        if ghosts and out:
            sharded = any(type(p).__name__ == "DTensor" for p in out[0]._parameters.values())
            self.say(f"the optimizer holds {counted(len(ghosts), 'tensor')} that no layer uses, "
                     f"and {self.run.name(out[0])} gets gradients that no optimizer holds: it was "
                     "made before the layers were replaced", self.run.opt(optimizer).place,
                     trap="09.13" if sharded else "")
