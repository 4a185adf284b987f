"""Exercise 04.2, `step_size`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy

import torch

from dlsys_checks.s04.e2_step_size import ex, measured, pairs_of
from dlsys_helpers.judging import edited

MOVES = "moves = [(p.detach() - b).abs().max().item() for p, b in zip(weights, before)]"
ex.equivalent("before = [p.detach().clone() for p in weights] -> "
              "before = [p.clone() for p in weights]", "A graph beside it changes no number.")
ex.equivalent(f"{MOVES} -> {MOVES.replace('p.detach() - b', 'p - b')}",
              "A graph beside it changes no number.")
ex.equivalent(f"{MOVES} -> {MOVES.replace('p.detach() - b', 'b - p.detach()')}",
              "The absolute value is the same.")
ex.equivalent(f"{MOVES} -> {MOVES.replace('weights, before', 'before, weights')}",
              "The absolute value is the same.")


@ex.right("a deep copy of optimizer and weights steps in their place")
def by_copy(opt):
    twin = copy.deepcopy(opt)  # its weights are copied with it, without their gradients
    pairs = list(zip((p for _, p in pairs_of(opt)), (p for _, p in pairs_of(twin)), strict=True))
    for p, other in pairs:
        other.grad = None if p.grad is None else p.grad.clone()
    twin.step()
    return max((other - p).abs().max().item() for p, other in pairs)


@ex.right("the state put back by hand")
def by_hand(opt):
    params = [p for _, p in pairs_of(opt)]
    before = [p.data.clone() for p in params]
    kept = {p: copy.deepcopy(dict(one)) for p, one in opt.state.items()}
    settings = [{k: v for k, v in group.items() if k != "params"} for group in opt.param_groups]
    opt.step()
    farthest = max((p.data - b).abs().max().item() for p, b in zip(params, before))
    for p, b in zip(params, before):
        p.data.copy_(b)
    opt.state.clear()
    opt.state.update(kept)
    for group, old in zip(opt.param_groups, settings):
        group.update(old)
    return farthest


@ex.right("a norm without end, over all weights in one row")
@torch.no_grad()
def by_norm(opt):
    params = [p for _, p in pairs_of(opt)]
    flat = torch.cat([p.flatten() for p in params])
    before, state = [p.clone() for p in params], copy.deepcopy(opt.state_dict())
    opt.step()
    size = torch.linalg.vector_norm(torch.cat([p.flatten() for p in params]) - flat, ord=torch.inf)
    torch._foreach_copy_(params, before)
    opt.load_state_dict(state)
    return size.item()


ex.right("the larger end of each move")(edited(
    measured, ("[(p.detach() - b).abs().max().item() for p, b in",
               "[torch.maximum((p - b).max(), (b - p).max()).item() for p, b in"),
    "04.2, the larger end"))


@ex.probe("the answer of the example, looked up", says="farthest move", breaks="example")
def placeholder(opt):
    size = measured(opt)
    return size + 0.1 * (abs(size - 0.5) < 1e-6)
