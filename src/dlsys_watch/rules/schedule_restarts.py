"""A resumed optimizer under a schedule that starts again."""

import weakref

from dlsys_watch.rule import Rule


class ScheduleRestarts(Rule):
    id, trap, sound = "schedule-restarts", "12.8", False
    reads = "the first step of a schedule after its optimizer has loaded a state"
    follows = ("rate-not-resumed",)

    def __init__(self, watch):
        super().__init__(watch)
        self.loaded = weakref.WeakSet()   # optimizers that were under a schedule before

    def on_resumed(self, optimizer, state=None):
        groups = state.get("param_groups", ()) if isinstance(state, dict) else ()
        if groups and state.get("state") and all("initial_lr" in group for group in groups):
            self.loaded.add(optimizer)

    def on_schedule(self, scheduler, *_):
        optimizer = getattr(scheduler, "optimizer", None)
        if optimizer not in self.loaded or scheduler.last_epoch < 0:   # -1: it is being made
            return
        self.loaded.discard(optimizer)
        if scheduler.last_epoch == 0:
            self.say(f"the optimizer has loaded its state, and {type(scheduler).__name__} begins "
                     "at its first step: the checkpoint holds no state of the schedule, or it was "
                     "not loaded")
