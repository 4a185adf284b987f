"""Exercise 09.6, `ddp_accum`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import contextlib

from dlsys_checks.s09.e6_ddp_accum import ex, groups_of


@ex.right("the flag that no_sync sets, set by hand")
def by_flag(ddp, optimizer, loss_fn, batches, every):
    groups = groups_of(batches, every)
    for group in groups:
        optimizer.zero_grad()
        for k, (x, y) in enumerate(group):
            ddp.require_backward_grad_sync = k == len(group) - 1
            (loss_fn(ddp(x), y) / len(group)).backward()
        optimizer.step()
    return len(groups)


@ex.right("all but the last of a group inside no_sync, then the last")
def last_apart(ddp, optimizer, loss_fn, batches, every):
    updates = 0
    while batches[updates * every:]:
        *early, (x, y) = batches[updates * every:(updates + 1) * every]
        optimizer.zero_grad(set_to_none=False)
        with ddp.no_sync():
            for a, b in early:
                loss_fn(ddp(a), b).div(1 + len(early)).backward()
        loss_fn(ddp(x), y).div(1 + len(early)).backward()
        optimizer.step()
        updates += 1
    return updates


@ex.right("forward alone inside no_sync, backward outside")
def forward_inside(ddp, optimizer, loss_fn, batches, every):
    optimizer.zero_grad()
    for k, (x, y) in enumerate(batches, 1):
        size = min(every, len(batches) - (k - 1) // every * every)
        ends = k % every == 0 or k == len(batches)
        with contextlib.nullcontext() if ends else ddp.no_sync():
            loss = loss_fn(ddp(x), y)
        (loss / size).backward()
        if ends:
            optimizer.step()
            optimizer.zero_grad()
    return -(-len(batches) // every)


@ex.right("losses added up, the gradients divided before the step")
def divided_late(ddp, optimizer, loss_fn, batches, every):
    done = 0
    for group in groups_of(batches, every):
        optimizer.zero_grad()
        for k, (x, y) in enumerate(group):
            with contextlib.ExitStack() as stack:
                if k + 1 < len(group):
                    stack.enter_context(ddp.no_sync())
                loss_fn(ddp(x), y).backward()
        for p in ddp.parameters():
            p.grad /= len(group)
        optimizer.step()
        done += 1
    return done
