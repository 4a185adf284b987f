"""A checkpointed block whose second run draws different random numbers."""

import weakref

import torch
from torch import nn

from dlsys_watch.rule import Rule


class CheckpointRedraws(Rule):
    id, trap = "checkpoint-redraws", "15.6"
    reads = "generators that a checkpointed block advances, and whether backward does so again"

    def __init__(self, watch):
        super().__init__(watch)
        self.before = []    # of the checkpoints that run now: marks of their generators
        self.ran = {}       # id of a block's own generator -> reference, mark, name, line

    def on_checkpoint(self, function, options):
        look = "context_fn" not in options and self.seldom(self.here())
        self.before.append(states(function, options) if look else {})

    def on_checkpoint_done(self, function, options):
        before = self.before.pop() if self.before else {}
        for key, (generator, name, mark) in (states(function, options) if before else {}).items():
            if key not in before or before[key][2] == mark:
                continue
            if generator is None:
                self.tell(name, None)
            else:    # it may be seeded again in each run: backward shows it, if one block has it
                self.ran[key] = None if key in self.ran else (
                    weakref.ref(generator), mark, name, self.here())

    def on_backward_done(self, tensors):
        ran, self.ran = self.ran, {}
        for ref, mark, name, line in filter(None, ran.values()):
            if ref() is not None and marked(ref().get_state()) != mark:
                self.tell(name, line)

    def tell(self, name, line):
        self.say(f"a checkpointed block draws from {name}: backward runs it again with other "
                 "random numbers", line)


def states(function, options) -> dict:
    """The generators that torch does not put back, by key: (it or None, its name, its mark)."""
    found: dict[int | str, tuple] = {
        id(it): (it, f"its own generator `{name}`", marked(it.get_state()))
        for name, it in generators(function)}
    if not options.get("preserve_rng_state", True):
        now = [torch.get_rng_state(), *(
            [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]
        found["torch"] = (None, "torch with preserve_rng_state=False", [*map(marked, now)])
    return found


def marked(state: torch.Tensor) -> int:
    return hash(state.numpy().tobytes())


def generators(function):
    """Name and generator of those that the modules of a block hold."""
    module = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    for inner in module.modules() if isinstance(module, nn.Module) else ():
        for name, value in vars(inner).items():
            if isinstance(value, torch.Generator):
                yield f"{type(inner).__name__}.{name}", value
