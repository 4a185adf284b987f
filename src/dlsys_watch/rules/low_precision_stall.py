"""Updates smaller than what bfloat16 or float16 can hold."""

import weakref

import torch

from dlsys_watch.rule import Rule
from dlsys_watch.run import params
from dlsys_watch.values import some

SHARE, SAMPLES = 0.8, 4


class LowPrecisionStall(Rule):
    id, trap = "low-precision-stall", "09.8"
    reads = "how many 16-bit weights with a gradient a step leaves unchanged"
    rests = ("step", "step_done")

    def __init__(self, watch):
        super().__init__(watch)
        self.before, self.stalled = None, weakref.WeakKeyDictionary()

    def on_step(self, optimizer, closure):
        if self.run.opt(optimizer).steps % 10 != 3 or len(self.stalled.get(optimizer, "")) > 9:
            return
        for p in params(optimizer):
            if p.dtype in (torch.bfloat16, torch.float16) and p.numel() >= 64 and (
                    p.grad is not None and not has_master(optimizer, p)):
                self.before = weakref.ref(p), some(p).clone(), some(p.grad) != 0
                return

    def on_step_done(self, optimizer):
        if self.before is None:
            return
        (ref, old, moved), self.before = self.before, None
        p = ref()
        if p is None or not moved.any():
            return
        share = ((some(p) == old) & moved).sum().item() / moved.sum().item()
        shares = self.stalled.setdefault(optimizer, [])
        shares.append(share)
        if len(shares) == SAMPLES and min(shares) > SHARE:
            self.say(f"{min(shares):.0%} of the {str(p.dtype).removeprefix('torch.')} weights with "
                     "a gradient did not change in a step: the updates are below their precision")


def has_master(optimizer, p) -> bool:
    """Whether the optimizer keeps a float32 copy that takes the small updates."""
    state = optimizer.state.get(p, {}).values()
    return any(torch.is_tensor(t) and t.dtype is torch.float32 and t.numel() == p.numel()
               for t in state)
