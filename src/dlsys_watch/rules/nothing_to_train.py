"""An optimizer whose weights are all frozen."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.run import params

STEPS = 3
ADAPTERS = ("lora", "adapter", "prompt")


class NothingToTrain(Rule):
    id, trap = "nothing-to-train", "10.4"
    reads = "requires_grad of all tensors of the optimizer and of the model that runs"
    rests = ("step",)

    def __init__(self, watch):
        super().__init__(watch)
        self.times = weakref.WeakKeyDictionary()    # optimizer -> steps, the backward pass before

    def on_step(self, optimizer, closure):
        times, before = self.times.get(optimizer, (0, -1))
        if times < 0 or closure is not None:
            return
        held, model = params(optimizer), self.run.model
        if any(p.requires_grad or p.grad is not None for p in held) or model is None or any(
                p.requires_grad for p in model.parameters()):
            self.times[optimizer] = -1, 0
            return
        if before == self.run.backwards:
            return
        self.times[optimizer] = times + 1, self.run.backwards
        if times + 1 == STEPS:
            names = [name for name, _ in model.named_parameters()
                     if any(word in name.lower() for word in ADAPTERS)]
            also = f", not even `{names[0]}`" if names else ""
            self.say(f"{STEPS} steps moved nothing: none of the optimizer's {len(held)} tensors "
                     f"and no weight of {type(model).__name__} requires a gradient{also}. All were "
                     "frozen, the new ones too?", self.run.opt(optimizer).place)
