"""state_dict(best), which writes where load_state_dict would read."""

from dlsys_watch.rule import Rule


class KeptStateOverwritten(Rule):
    id, trap = "kept-state-overwritten", "06.4"
    reads = "what a dictionary that is passed to state_dict held before"

    def on_state_into(self, module, before, state):
        if before and before == set(state):
            self.say(f"{type(module).__name__}.state_dict(...) writes the present weights into a "
                     f"dictionary that held {len(before)} others: they are lost, and nothing was "
                     "restored. load_state_dict was meant")
