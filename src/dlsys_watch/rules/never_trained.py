"""A part of the model that is cut off from the loss."""

import weakref

from dlsys_watch import places
from dlsys_watch.graphs import leaves
from dlsys_watch.rule import Rule
from dlsys_watch.run import params
from dlsys_watch.values import counted, is_zero

VERDICT, PATIENT = 20, 200  # steps; without gradients on purpose for a while is more common


class NeverTrained(Rule):
    id, trap = "never-trained", "02.3"
    reads = "weights in the optimizer that get no gradient although their layers run"
    follows = ("weight-by-itself",)

    def __init__(self, watch):
        super().__init__(watch)
        self.order = weakref.WeakKeyDictionary()   # layer -> (number, line, with gradients)
        self.cut = {}      # id of a parameter -> line of a detach after it
        self.suspects = weakref.WeakKeyDictionary()  # optimizer -> [refs of tensors]
        self.said = False

    def on_module(self, module, args, kwargs, grad):
        outer = grad or (self.run.model_grad and self.run.stack)
        if outer and any(p is not None for p in module._parameters.values()):
            number, line, before = self.order.get(module, (len(self.order), None, False))
            self.order[module] = number, places.here() or line, grad or before

    def on_detach(self, tensor):
        if (place := self.here()) and self.seldom(place, first=3):
            for leaf in leaves(tensor, 2000):
                self.cut[id(leaf)] = place

    def on_step(self, optimizer, closure):
        known = self.run.opt(optimizer)
        if self.said or (known.steps > 30 and known.steps % 50):
            return
        if optimizer not in self.suspects:
            self.suspects[optimizer] = [weakref.ref(p) for p in params(optimizer)]
        self.suspects[optimizer] = [ref for ref in self.suspects[optimizer]
                                    if (p := ref()) is not None and is_zero(p.grad)]
        if known.steps in (VERDICT, PATIENT):
            self.judge(optimizer, known.steps, known.steps == PATIENT)

    def on_end(self):
        for optimizer in list(self.suspects):
            if (steps := self.run.opt(optimizer).steps) >= 3:
                self.judge(optimizer, steps, True)

    def judge(self, optimizer, steps, patient):
        ids = {id(p) for ref in self.suspects[optimizer]
               if (p := ref()) is not None and p.requires_grad}
        dead, alive = [], []
        for layer, (number, line, grad) in list(self.order.items()):
            weight = next((p for p in layer._parameters.values() if p is not None), None)
            (dead if id(weight) in ids else alive).append((number, line, grad, layer))
        dead.sort(key=lambda found: found[0])
        if not dead or not alive or self.said:
            return
        lines = [line for *_, layer in dead for p in layer._parameters.values()
                 if p is not None and (line := self.cut.get(id(p))) is not None]
        if lines:
            return self.tell(dead, steps, "detach() cuts them off", max(lines))
        quiet = [found for found in dead if not found[2]]
        if quiet and patient:
            return self.tell(quiet, steps, "they run under no_grad", quiet[0][1])
        first = min(number for number, *_ in alive)
        if dead[-1][0] < first and dead[-1][2]:
            self.tell(dead, steps, "the graph ends between them and what follows", dead[-1][1])

    def tell(self, dead, steps, why, line):
        self.said = True
        names = [self.run.name(layer) for *_, layer in dead]
        tensors = sum(p is not None for *_, layer in dead for p in layer._parameters.values())
        more = f" and {counted(len(names) - 1, 'more layer')}" if len(names) > 1 else ""
        self.say(f"{steps} optimizer steps moved nothing of {names[0]}{more}: "
                 f"{counted(tensors, 'tensor')}, no gradient; {why}", line)
