"""Pruned weights that come back."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.run import params
from dlsys_watch.values import some


class PrunedRegrows(Rule):
    id, trap = "pruned-regrows", "11.2"
    reads = "the zeros of a weight whose mask was removed, after the next steps"
    begins = ("pruned",)

    def __init__(self, watch):
        super().__init__(watch)
        self.pruned = {}   # id of a weight -> (weak reference, where it is zero, line)

    def on_pruned(self, module, name):
        weight = getattr(module, name)
        holes = zeros(weight)
        if share(holes) > 0.1:
            self.pruned[id(weight)] = weakref.ref(weight), holes, self.here()

    def on_step(self, optimizer, closure):
        if not self.pruned or self.run.opt(optimizer).steps:
            return
        for p in params(optimizer):     # a copy of a pruned weight counts as well
            for _, holes, line in list(self.pruned.values()):
                if id(p) not in self.pruned and not all(holes) and zeros(p) == holes:
                    self.pruned[id(p)] = weakref.ref(p), holes, line

    def on_step_done(self, optimizer):
        for p in params(optimizer) if self.pruned else ():
            ref, holes, line = self.pruned.get(id(p), (lambda: None, (), None))
            if ref() is p and (now := share(zeros(p))) < share(holes) / 4:
                del self.pruned[id(p)]
                self.say(f"{share(holes):.0%} of a weight was pruned, {now:.0%} is zero after a "
                         "step: prune.remove took the mask away before the training", line)


def zeros(weight) -> tuple[bool, ...]:
    """Which of some entries of a weight are zero."""
    return tuple((some(weight) == 0).flatten().tolist())


def share(holes: tuple[bool, ...]) -> float:
    return sum(holes) / len(holes)
