"""Layers in a plain list."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.values import counted


class UnregisteredLayer(Rule):
    id, trap = "unregistered-layer", "07.8"
    reads = "layers that run inside a model but are not registered in it or in any optimizer"
    rests = ("step",)

    def __init__(self, watch):
        super().__init__(watch)
        self.loose = {}    # id of a layer -> (weak reference, its name, model, line)

    def on_module(self, module, args, kwargs, grad):
        if not grad or not self.run.stack or not module._parameters or len(self.loose) > 200:
            return
        model = self.run.stack[0]
        names = self.run.called(model).names
        if id(module) not in names and not any(module is m for m in model.modules()):
            self.loose[id(module)] = (weakref.ref(module), type(module).__name__,
                                      type(model).__name__, self.here())

    def on_step(self, optimizer, closure):
        if not self.loose or self.run.opt(optimizer).steps not in (1, 2, 5):
            return
        held = self.run.held()
        found = [(name, model, line) for ref, name, model, line in self.loose.values()
                 if (layer := ref()) is not None and any(
                     p.requires_grad and p.grad is not None and id(p) not in held
                     for p in layer.parameters(recurse=False))]
        if found:
            name, model, line = found[0]
            self.say(f"{counted(len(found), 'layer')} in {model} with gradients and in no "
                     f"optimizer, the first a {name}: not registered in it. A plain list? Use "
                     "nn.ModuleList", line)
            self.loose.clear()
