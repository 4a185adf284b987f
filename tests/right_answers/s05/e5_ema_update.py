"""Exercise 05.5, `ema_update`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s05.e5_ema_update import ex


@ex.right("lerp_ for parameters, over names")
@torch.no_grad()
def by_names(average, model, decay):
    news = dict(model.named_parameters())
    for name, old in average.named_parameters():
        old.lerp_(news[name], 1 - decay)
    for name, old in average.named_buffers():
        old.copy_(model.get_buffer(name))


@ex.right("a difference added")
def by_difference(average, model, decay):
    for old, new in zip(average.parameters(), model.parameters(), strict=True):
        old.data += (1 - decay) * (new.data - old.data)
    for old, new in zip(average.buffers(), model.buffers(), strict=True):
        old.data.copy_(new.data)


@ex.right("module by module")
@torch.no_grad()
def by_modules(average, model, decay):
    done = set()
    for mine, its in zip(average.modules(), model.modules(), strict=True):
        for key, old in mine.named_parameters(recurse=False):
            if old not in done:
                old.copy_(decay * old + (1 - decay) * getattr(its, key))
            done.add(old)
        for key, old in mine.named_buffers(recurse=False):
            old.copy_(getattr(its, key))


@ex.right("foreach, in float64")
@torch.no_grad()
def by_foreach(average, model, decay):
    for old, new in zip(average.parameters(), model.parameters(), strict=True):
        old[...] = old.double() * decay + new.double() * (1 - decay)
    theirs = list(model.buffers())
    for k, old in enumerate(average.buffers()):
        old[...] = theirs[k]
