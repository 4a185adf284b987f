"""First layers of a deep net whose updates are too small to change them."""

import weakref

import torch
from torch import nn

from dlsys_watch.graphs import kind, nodes
from dlsys_watch.rule import Rule

SAMPLED = (5, 10, 15, 20, 25)
RESOLUTION, LIVELY = 3e-8, 1e-5   # half a unit of float32's last place; an update that is one
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LayersAsleep(Rule):
    id, trap = "layers-asleep", "01.3"
    reads = "the largest SGD update of each layer, relative to its weights"
    rests = ("step",)

    def __init__(self, watch):
        super().__init__(watch)
        self.sleepy = weakref.WeakKeyDictionary()   # optimizer -> numbers of sleeping layers
        self.sigmoids = False

    def on_backward(self, tensors, kept):
        if self.run.backwards in (3, 10):
            made = [kind(node) for node in nodes(tensors[0], 1000)]
            self.sigmoids = made.count("Sigmoid") + made.count("Tanh") > 3

    def on_step(self, optimizer, closure):
        if type(optimizer) is not torch.optim.SGD or (
                self.run.opt(optimizer).steps not in SAMPLED or self.run.model is None):
            return
        ours = {id(p): group["lr"] * (10 if group["momentum"] else 1)
                for group in optimizer.param_groups for p in group["params"]}
        sizes = [largest(layer.weight, ours[id(layer.weight)])
                 for layer in self.run.model.modules()
                 if isinstance(layer, LAYERS) and id(layer.weight) in ours]
        asleep = next((i for i, size in enumerate(sizes) if size > RESOLUTION), len(sizes))
        found = self.sleepy.setdefault(optimizer, [])
        found.append(asleep if sizes and sizes[-1] > LIVELY else 0)
        if len(found) == len(SAMPLED) and min(found) > 0:
            self.say(f"the first {min(found)} of {len(sizes)} layers sleep: the largest update of "
                     f"their weights is {sizes[0]:.0e} of a weight, the last layer's "
                     f"{sizes[-1]:.0e}", trap="01.3" if self.sigmoids else "03.4")


def largest(weight, rate) -> float:
    """The largest change that a step makes, as a part of the mean weight."""
    if weight.grad is None:
        return 1.0
    return (float(rate) * weight.grad.abs().max() / weight.abs().mean().clamp(min=1e-30)).item()
