"""A policy that is its own reference."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.values import fingerprint, first_tensor, is_zero

ROW = 5                   # steps with zeros alone until it is said
WATCHED, WEIGHTS = 40, 40  # steps after the first logsigmoid, weights that are compared


class ReferenceMoves(Rule):
    id, trap = "reference-moves", "14.1"
    reads = "the margins that reach logsigmoid while one model runs with and without gradients"
    begins = ("logsigmoid",)

    def __init__(self, watch):
        super().__init__(watch)
        self.steps = None        # after the first logsigmoid; None before it
        self.trained, self.asked = set(), set()   # first weights of the models of this step
        self.model = self.zero = self.line = None
        self.row, self.begun = 0, []

    def on_root_done(self, module, output, grad):
        if self.steps is None or self.steps > WATCHED:
            return
        answer = first_tensor((output,), floating=True)
        if answer is not None and not is_zero(answer.detach()):   # what begins at 0 has no margin
            (self.trained if grad else self.asked).add(id(next(module.parameters(), None)))
            self.model = weakref.ref(module) if grad else self.model

    def on_logsigmoid(self, values, grad):
        self.steps = self.steps or 0
        if grad and self.trained & self.asked and values.numel():
            self.zero = self.zero is not False and is_zero(values.detach())
            self.line = self.here()

    def on_step(self, optimizer, closure):
        if self.steps is None or self.steps > WATCHED:
            return
        model = self.model() if self.model is not None else None
        weights = [fingerprint(p) for p in list(model.parameters())[:WEIGHTS]] if (
            self.zero and model is not None) else []
        self.begun = self.begun if self.row else weights
        self.row, self.steps = self.row + 1 if self.zero else 0, self.steps + 1
        if self.row == ROW and weights != self.begun:
            self.say(f"at {ROW} steps in a row all margins are 0, while the weights move: the "
                     "model is its own reference", self.line)
        self.trained, self.asked, self.zero = set(), set(), None
