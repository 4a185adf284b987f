"""A teacher that is asked with dropout on."""

import weakref

from torch.nn.modules.dropout import _DropoutNd

from dlsys_watch.rule import Rule
from dlsys_watch.values import fingerprint

STEPS = 5


class TeacherInTrainMode(Rule):
    id, trap, sound = "teacher-in-train-mode", "11.3", False
    reads = "the mode of a model with dropout that is called without gradients at every step"

    def __init__(self, watch):
        super().__init__(watch)
        self.asked = weakref.WeakKeyDictionary()   # module -> [steps, calls, mark, line]
        self.said = False

    def on_module(self, module, args, kwargs, grad):
        if self.said or not module.training or isinstance(module, _DropoutNd) or (
                not has_dropout(module)):
            return
        if grad or module in self.run.trained:
            self.asked.pop(module, None)
            return
        row = self.asked.setdefault(module, [self.run.steps, 0, mark(module), self.here()])
        row[1] += 1
        steps, calls, weights, line = row
        if self.run.steps < steps + STEPS:
            return
        self.asked.pop(module)
        held = self.run.held()
        if calls == STEPS + 1 and weights == mark(module) and not any(
                id(p) in held for p in module.parameters()):
            self.said = True
            self.say(f"{type(module).__name__} answers without gradients at each of {STEPS} steps, "
                     "its weights stay, and its dropout is active: a teacher without eval()", line)


def has_dropout(module) -> bool:
    return any(isinstance(m, _DropoutNd) and m.training and m.p > 0 for m in module.modules()) and (
        next(module.parameters(), None) is not None)


def mark(module) -> float:
    """A number that changes when the weights do."""
    return sum(fingerprint(p) for p in list(module.parameters())[:4])
