"""Training that never switched dropout on."""

import weakref

from dlsys_watch.rule import Rule


class NeverInTrainMode(Rule):
    id, trap, sound = "never-in-train-mode", "01.1", False
    reads = "the mode of a model with dropout during its first steps"
    rests = ("step",)

    def __init__(self, watch):
        super().__init__(watch)
        self.rows = weakref.WeakKeyDictionary()

    def on_step(self, optimizer, closure):
        model = self.run.model
        if model is None or not self.run.called(model).moody:
            return
        self.rows[model] = self.rows.get(model, 0) + 1 if not model.training else -10**9
        if self.rows[model] == 10:
            self.say(f"10 steps of {type(model).__name__} in eval mode, none in train mode: "
                     "dropout is off and batch norm fixed. model.train()?")
