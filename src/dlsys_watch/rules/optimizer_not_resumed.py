"""A checkpoint whose optimizer state is not loaded."""

from dlsys_watch.rule import Rule

STEPS = 5


class OptimizerNotResumed(Rule):
    id, trap, sound = "optimizer-not-resumed", "12.8", False
    reads = "what torch.load returns, and which of its states are loaded before training goes on"
    begins = ("read",)

    def __init__(self, watch):
        super().__init__(watch)
        self.models, self.waiting = set(), None   # ids of states of models; (steps, line)
        self.place = None

    def on_read(self, held):
        if not isinstance(held, dict) or not any(map(is_optimizer, held.values())):
            return
        self.models, self.place = {id(value) for value in held.values()}, self.here()

    def on_loaded(self, module, state, result):
        if id(state) in self.models:
            self.models, self.waiting = set(), (self.run.steps, self.place)

    def on_resumed(self, optimizer, state=None):
        self.models, self.waiting = set(), None

    def on_step(self, optimizer, closure):
        if self.waiting is not None and self.run.steps >= self.waiting[0] + STEPS:
            (_, place), self.waiting = self.waiting, None
            self.say("the file that is read here holds an optimizer's state; the weights were "
                     f"loaded and {STEPS} steps made without it: resumed, it forgets its averages",
                     place)


def is_optimizer(value) -> bool:
    return isinstance(value, dict) and bool(value.get("state")) and "param_groups" in value
