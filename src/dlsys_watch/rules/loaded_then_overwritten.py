"""Weights that are loaded, then initialized again before the model runs."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.values import fingerprint

MOST, FEWEST = 16, 2   # tensors of one load that are compared


class LoadedThenOverwritten(Rule):
    id, trap = "loaded-then-overwritten", "10.5"
    reads = "the weights of a model after loading and at its first call"
    begins = ("loaded",)

    def __init__(self, watch):
        super().__init__(watch)
        self.loaded = weakref.WeakKeyDictionary()   # module -> (line, [(reference, fingerprint)])
        self.begun = {}    # address of weights that were initialized since -> line

    def on_loaded(self, module, state, result):
        if module in self.run.models or len(self.loaded) > 50:
            return
        fresh = [(weakref.ref(p), fingerprint(p)) for name, p in module.named_parameters()
                 if name in state and p.numel() > 1 and p.device.type != "meta"]
        self.begun.clear()
        self.loaded[module] = self.here(), fresh[::max(1, len(fresh) // MOST)]

    def on_init(self, *tensors):
        if self.loaded and tensors and len(self.begun) < 10**5:
            self.begun[tensors[0].data_ptr()] = self.here()

    def on_root(self, module, args, kwargs, grad):
        if not self.loaded:
            return
        inside = {id(p) for p in module.parameters()}
        for loaded, (line, marks) in list(self.loaded.items()):
            alive = [(p, mark) for ref, mark in marks if (p := ref()) is not None]
            if alive and any(id(p) in inside for p, _ in alive):
                del self.loaded[loaded]
                self.judge(loaded, line, alive)

    def judge(self, module, line, alive):
        begun = [self.begun.get(p.data_ptr()) for p, mark in alive if fingerprint(p) != mark]
        if len(begun) == len(alive) >= FEWEST and all(begun):
            file, number = begun[0]  # type: ignore[misc]
            where = f"line {number}" if line and file == line[0] else f"{file}:{number}"
            self.say(f"what is loaded into {type(module).__name__} is gone before the model runs: "
                     f"it is initialised again at {where}", line)
