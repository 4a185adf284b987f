"""Weights that are loaded, and initialised again before the model runs."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.values import fingerprint

MOST, FEWEST = 16, 2   # tensors of one load that are compared


class LoadedThenOverwritten(Rule):
    id, trap = "loaded-then-overwritten", "10.5"
    reads = "the weights of a model after they were loaded and at its first call"

    def __init__(self, watch):
        super().__init__(watch)
        self.loaded = weakref.WeakKeyDictionary()   # module -> (line, [(reference, fingerprint)])
        self.begun = None     # where weights were last initialised while some wait to be used

    def on_loaded(self, module, state, result):
        if module in self.run.models or len(self.loaded) > 50:
            return
        fresh = [(weakref.ref(p), fingerprint(p)) for name, p in module.named_parameters()
                 if name in state and p.numel() > 1 and p.device.type != "meta"]
        self.begun = None
        self.loaded[module] = self.here(), fresh[::max(1, len(fresh) // MOST)]

    def on_init(self, *_):
        if self.loaded and self.begun is None:
            self.begun = self.here()

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
        gone = [p for p, mark in alive if fingerprint(p) != mark]
        if self.begun is not None and len(gone) == len(alive) >= FEWEST:
            file, number = self.begun
            where = f"line {number}" if line and file == line[0] else f"{file}:{number}"
            self.say(f"what is loaded into {type(module).__name__} is gone before the model runs: "
                     f"it is initialised again at {where}", line)
