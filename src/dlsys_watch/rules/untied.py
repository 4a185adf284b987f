"""Tied weights that are two after loading."""

from dlsys_watch.rule import Rule


class Untied(Rule):
    id, trap = "untied", "08.12"
    reads = "which names of a model share one weight, before and after it is loaded or emptied"
    begins = ("loading", "emptying")

    def __init__(self, watch):
        super().__init__(watch)
        self.tied, self.apart = {}, None

    def on_loading(self, module, state):
        self.tied = names(module)

    def on_emptying(self, module, *_):
        self.tied = names(module)

    def on_emptied(self, module, *_):
        self.compare(module, "to_empty")

    def on_loaded(self, module, state, result):
        self.compare(module, "load_state_dict(assign=True)")

    def compare(self, module, cause):
        now = dict(module.named_parameters(remove_duplicate=False)) if self.tied else {}
        for group in self.tied.values():
            if len({id(now.get(name)) for name in group}) > 1:
                self.apart = self.here(), group, cause
        self.tied = {}

    def on_root(self, module, args, kwargs, grad):
        """Tied again after loading is well: it is asked when the model runs."""
        if self.apart is None or not grad:
            return
        (place, group, cause), self.apart = self.apart, None
        held = dict(module.named_parameters(remove_duplicate=False))
        weights = [p for name, p in held.items() if name in group]
        if len({id(p) for p in weights}) > 1:
            self.say(f"{' and '.join(f'`{name}`' for name in group[:3])} were one weight before "
                     f"{cause} and are trained apart since: tie them again",
                     place)


def names(module) -> dict[int, list[str]]:
    """The names of each parameter of a module that has several."""
    found: dict[int, list[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        found.setdefault(id(p), []).append(name)
    return {key: group for key, group in found.items() if len(group) > 1}
