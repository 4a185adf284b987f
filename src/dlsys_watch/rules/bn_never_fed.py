"""A BatchNorm in eval mode that never gathered statistics."""

from torch.nn.modules.batchnorm import _BatchNorm

from dlsys_watch.rule import Rule

FEWEST = 20   # steps of the run
MOVED = 8     # changes in place of its weight: an average, or training, and no initialization


class BnNeverFed(Rule):
    id, trap = "bn-never-fed", "05.5"
    reads = "the statistics of a BatchNorm in eval mode whose weights were changed many times"

    def on_module(self, module, args, kwargs, grad):
        if not isinstance(module, _BatchNorm) or module.training or not module.track_running_stats:
            return
        if self.run.steps < FEWEST or module.weight is None or module.weight._version <= MOVED:
            return
        mean, seen = module.running_mean, module.num_batches_tracked
        if mean is not None and seen is not None and seen.item() == 0 and not mean.any():
            self.say("a BatchNorm answers in eval mode with running_mean 0 and variance 1 after "
                     f"{self.run.steps} steps: it never saw a batch. An average of weights needs "
                     "the buffers, too")
