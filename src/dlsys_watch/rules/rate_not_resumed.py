"""A resumed optimizer whose learning rate a new schedule resets."""

import weakref

from dlsys_watch.rule import Rule


class RateNotResumed(Rule):
    id, trap = "rate-not-resumed", "12.8"
    reads = "the learning rate that an optimizer loads, and the rate of its next step"
    begins = ("resumed",)

    def __init__(self, watch):
        super().__init__(watch)
        self.loaded = weakref.WeakKeyDictionary()   # optimizer -> its loaded rates, and first ones
        self.made = weakref.WeakKeyDictionary()     # optimizer -> line of a schedule made since

    def on_resumed(self, optimizer, state=None):    # None if it was named in the call
        groups = state.get("param_groups", ()) if isinstance(state, dict) else ()
        self.made.pop(optimizer, None)
        if groups and all("initial_lr" in group for group in groups) and state.get("state"):
            self.loaded[optimizer] = [(float(group["lr"]), group["initial_lr"]) for group in groups]

    def on_scheduler(self, scheduler):
        optimizer = getattr(scheduler, "optimizer", None)
        if optimizer in self.loaded and scheduler.last_epoch <= 0:
            self.made.setdefault(optimizer, self.here())

    def on_step(self, optimizer, closure):
        if not self.loaded:
            return
        loaded = self.loaded.pop(optimizer, None)
        place = self.made.pop(optimizer, None)
        if loaded is None or place is None:
            return
        for (before, first), group in zip(loaded, optimizer.param_groups, strict=False):
            after, own = float(group["lr"]), group.get("initial_lr") != first   # a rate of its own
            if not own and abs(before - after) > 1e-6 * abs(before):
                self.say(f"the optimizer loads the rate {before:.3g} and steps with {after:.3g}: "
                         "the schedule that is made afterwards begins anew. Make it first, then "
                         "load both", place)
                return
