"""Exercise 04.4, `decoupled_step`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s04.e4_decoupled_step import ex, live, subtracted

ex.right("the decayed part subtracted")(subtracted)


@ex.right("the weights' data")
def by_data(opt, weight_decay):
    for group in opt.param_groups:
        factor = 1 - group["lr"] * weight_decay
        for p in group["params"]:
            if p.grad is None:
                continue
            p.data = p.data * factor
    opt.step()


@ex.right("all weights of a group at once")
@torch.no_grad()
def foreach(opt, weight_decay):
    for group in opt.param_groups:
        weights = [p for p in group["params"] if p.grad is not None]
        if weights:
            torch._foreach_mul_(weights, 1 - group["lr"] * weight_decay)
    opt.step()


@ex.right("shrunk in a hook before the step")
def by_hook(opt, weight_decay):
    def shrink(*_):
        with torch.no_grad():
            for group, p in live(opt):
                p.add_(p, alpha=-group["lr"] * weight_decay)
    handle = opt.register_step_pre_hook(shrink)
    opt.step()
    handle.remove()


@ex.right("the step taken first, the decay of the old weights subtracted")
def old_weights(opt, weight_decay):
    due = [(p, group["lr"] * weight_decay * p.detach().clone()) for group, p in live(opt)]
    opt.step()
    with torch.no_grad():
        for p, amount in due:
            p -= amount
