"""DistributedSampler without set_epoch."""

import weakref

from dlsys_watch.rule import Rule


class SameOrder(Rule):
    id, trap = "same-order", "09.5"
    reads = "the epoch of a DistributedSampler at the start of each pass"
    begins = ("sampler",)

    def __init__(self, watch):
        super().__init__(watch)
        self.trained = weakref.WeakKeyDictionary()   # sampler -> epochs of passes with steps
        self.now = None     # (sampler, epoch, line) of the pass that runs

    def on_sampler(self, sampler):
        self.now = None
        if sampler.shuffle:
            self.now = weakref.ref(sampler), sampler.epoch, self.here()

    def on_step(self, optimizer, closure):
        if self.now is None:
            return
        (ref, epoch, line), self.now = self.now, None
        sampler = ref()
        epochs = self.trained.setdefault(sampler, []) if sampler is not None else []
        if epoch in epochs:
            self.say(f"DistributedSampler starts pass {len(epochs) + 1} with epoch {epoch} again: "
                     "the order repeats. Call set_epoch", line)
        epochs.append(epoch)
