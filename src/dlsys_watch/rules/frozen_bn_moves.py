"""Frozen weights, moving statistics."""

from torch.nn.modules.batchnorm import _BatchNorm

from dlsys_watch.rule import Rule


class FrozenBnMoves(Rule):
    id, trap, sound = "frozen-bn-moves", "07.7", False
    reads = "the mode of a BatchNorm whose weights are frozen"

    def on_module(self, module, args, kwargs, grad):
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats and (
                self.run.steps and module.weight is not None and not module.weight.requires_grad):
            self.say("a BatchNorm with frozen weights is in train mode: its running statistics "
                     "move")
