"""A checkpoint in which no key fits."""

from dlsys_watch.rule import Rule


class NothingLoaded(Rule):
    id, trap = "nothing-loaded", "10.5"
    reads = "the unexpected keys of load_state_dict(strict=False)"

    def on_loaded(self, module, state, result):
        unexpected = set(getattr(result, "unexpected_keys", ()))
        wanted = len(module.state_dict())
        if not wanted:
            return
        if state and unexpected >= set(state):
            self.say(f"load_state_dict(strict=False): none of the {len(state)} keys fits the "
                     f"model, the first is {next(iter(state))!r}. Nothing was loaded")
        elif not state:
            self.say(f"load_state_dict(strict=False) got an empty state: none of {wanted} tensors "
                     "was loaded")
