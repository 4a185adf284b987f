"""A weight that is a plain tensor."""

import weakref

import torch

from dlsys_watch.rule import Rule


class UnregisteredWeight(Rule):
    id, trap = "unregistered-weight", "07.8"
    reads = "plain tensors in a module that get gradients and are in no optimizer"
    rests = ("step",)

    def __init__(self, watch):
        super().__init__(watch)
        self.counts = {}

    def on_step(self, optimizer, closure):
        model = self.run.model
        if model is None or self.run.opt(optimizer).steps > 5:
            return
        held = self.run.held()
        for module in model.modules():
            for name, value in plain_attributes(module):
                if isinstance(value, torch.Tensor) and value.is_leaf and value.requires_grad and (
                        value.grad is not None and id(value) not in held):
                    self.count(module, name, value)

    def count(self, module, name, value):
        ref, times = self.counts.get((id(module), name), (lambda: None, 0))
        times = times + 1 if ref() is value else 1
        self.counts[id(module), name] = weakref.ref(value), times
        if times == 3:
            self.say(f"{type(module).__name__}.{name} {tuple(value.shape)} gets gradients and is "
                     "in no optimizer: it is not registered. A plain tensor, or one in a list?")


def plain_attributes(module):
    """(name, value) of what a module holds without registering it, lists and dicts opened."""
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        yield name, value
        if isinstance(value, list | tuple):
            yield from ((f"{name}[{i}]", part) for i, part in enumerate(value[:100]))
        elif isinstance(value, dict):
            yield from ((f"{name}[{key!r}]", part) for key, part in list(value.items())[:100])
