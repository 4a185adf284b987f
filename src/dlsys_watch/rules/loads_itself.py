"""A network that is updated from itself."""

import weakref

import torch

from dlsys_watch.rule import Rule

TIMES = 2


class LoadsItself(Rule):
    id, trap = "loads-itself", "06.4"
    reads = "whether the state that a module loads was just taken from the same module"

    def __init__(self, watch):
        super().__init__(watch)
        self.taken = {}    # id of a state dict -> (weak reference to it, to its module)
        self.times = weakref.WeakKeyDictionary()   # module -> (loads, steps at the last of them)

    def on_state(self, module, state):
        self.taken = {key: known for key, known in self.taken.items() if known[0]() is not None}
        self.taken[id(state)] = weakref.ref(state), weakref.ref(module)

    def on_loading(self, module, state):
        ref, owner = self.taken.get(id(state), (lambda: None, lambda: None))
        own = {p.data_ptr() for p in module.parameters() if p.numel()}
        given = {t.data_ptr() for t in state.values() if torch.is_tensor(t) and t.numel()}
        if ref() is not state or owner() is not module or not own or not own <= given:
            if self.run.steps:    # before the first step a copy is made on purpose
                self.times[module] = -10**9, 0
            return
        count, steps = self.times.get(module, (0, 0))
        if count and steps == self.run.steps:
            return
        self.times[module] = count + 1, self.run.steps
        if count + 1 == TIMES:
            self.say(f"{type(module).__name__}.load_state_dict gets the state of the same module: "
                     "nothing is copied. The wrong name, or two names of one network?")
