"""Exercise 15.6, `checkpointed`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy
from contextlib import contextmanager, nullcontext

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from dlsys_checks.s15.e6_checkpointed import ex, made
from dlsys_helpers.judging import edited


def dice_of(block):
    return [v for m in block.modules() for v in m.__dict__.values()
            if isinstance(v, torch.Generator)]


def buffers_of(block):
    """Each buffer by its name; one that modules share has several."""
    return dict(block.named_buffers(remove_duplicate=False))


def copies(buffers):
    """Copies by the same names; names that share a buffer share its copy."""
    known = {id(b): b.clone() for b in buffers.values()}
    return {name: known[id(b)] for name, b in buffers.items()}


def put(block, buffers):
    for name, value in buffers.items():
        path, _, key = name.rpartition(".")
        setattr(block.get_submodule(path), key, value)


@ex.right("two contexts, the buffers put at their places")
def by_contexts(block, x):
    dice = dice_of(block)
    start, before = [d.get_state() for d in dice], copies(buffers_of(block))

    @contextmanager
    def once_more():
        now, after = [d.get_state() for d in dice], buffers_of(block)
        for d, state in zip(dice, start, strict=True):
            d.set_state(state)
        put(block, copies(before))
        try:
            yield
        finally:
            put(block, after)
            for d, state in zip(dice, now, strict=True):
                d.set_state(state)

    return checkpoint(block, x, use_reentrant=False,
                      context_fn=lambda: (nullcontext(), once_more()))


class Again(torch.autograd.Function):
    """Runs the block without a graph; backward runs it with one, on states of before."""

    @staticmethod
    def forward(ctx, block, x, *weights):
        ctx.block, ctx.needs = block, x.requires_grad
        ctx.save_for_backward(x)
        ctx.start = [d.get_state() for d in dice_of(block)], torch.get_rng_state()
        ctx.before = copies(buffers_of(block))
        return block(x)

    @staticmethod
    def backward(ctx, up):
        block, (x,), dice = ctx.block, ctx.saved_tensors, dice_of(ctx.block)
        now = [d.get_state() for d in dice], torch.get_rng_state()
        tables = [(module, dict(module._buffers)) for module in block.modules()]
        put(block, copies(ctx.before))
        for d, state in zip(dice, ctx.start[0], strict=True):
            d.set_state(state)
        torch.set_rng_state(ctx.start[1])
        with torch.enable_grad():
            mine = x.detach().requires_grad_(ctx.needs)
            out = block(mine)
        wanted = [t for t in (mine, *block.parameters()) if t.requires_grad]
        grads = torch.autograd.grad(out, wanted, up)
        for module, buffers in tables:
            module._buffers.update(buffers)
        for d, state in zip(dice, now[0], strict=True):
            d.set_state(state)
        torch.set_rng_state(now[1])
        return None, *(grads if ctx.needs else (None, *grads))


@ex.right("an autograd function of one's own")
def by_function(block, x):
    return Again.apply(block, x, *block.parameters())


def copied(tables):
    """Copies of the tables' buffers, a shared one copied once."""
    known = {id(b): b.clone() for table in tables for b in table.values() if b is not None}
    return [{key: known.get(id(b)) for key, b in table.items()} for table in tables]


@ex.right("copies of states in both runs, the block's tables exchanged")
def by_tables(block, x):
    modules = list(block.modules())
    tables = copied([dict(m._buffers) for m in modules])
    sources = [v for m in modules for v in m.__dict__.values() if type(v) is torch.Generator]
    states, runs = [s.get_state() for s in sources], []

    def run(x):
        runs.append(len(runs))
        if runs[-1] == 0:
            return block(x)
        kept = [dict(m._buffers) for m in modules], [s.get_state() for s in sources]
        for module, table in zip(modules, copied(tables), strict=True):
            module._buffers.update(table)
        for source, state in zip(sources, states, strict=True):
            source.set_state(state)
        try:
            return block(x)
        finally:
            for module, table in zip(modules, kept[0], strict=True):
                module._buffers.update(table)
            for source, state in zip(sources, kept[1], strict=True):
                source.set_state(state)

    return checkpoint(run, x, use_reentrant=False)


@ex.right("reentrant, with a number that needs a gradient")
def by_reentrant(block, x):
    # The older kind keeps torch's generator too, but only runs again where an input needs it.
    sources = dice_of(block)
    start, before = [s.get_state() for s in sources], copies(buffers_of(block))
    first = [True]

    def run(_, x):
        if first:
            first.clear()
            return block(x)
        now, after = [s.get_state() for s in sources], buffers_of(block)
        for source, state in zip(sources, start, strict=True):
            source.set_state(state)
        put(block, copies(before))
        out = block(x)
        put(block, after)
        for source, state in zip(sources, now, strict=True):
            source.set_state(state)
        return out

    return checkpoint(run, torch.zeros((), requires_grad=True), x, use_reentrant=True)


@ex.right("a deep copy for the second run")
def by_copy(block, x):
    # Gradients flow along the first run's graph; the second only gives it the numbers.
    twin, runs = copy.deepcopy(block), []

    def run(x):
        runs.append(1)
        return (block if len(runs) == 1 else copy.deepcopy(twin))(x)

    return checkpoint(run, x, use_reentrant=False)


HELD = []


def with_hooks(block, x):
    """Right, and all that the modules return is held."""
    HELD.clear()
    inner = [m for m in block.modules() if m is not block]
    hooks = [m.register_forward_hook(lambda m, given, out: HELD.append(out)) for m in inner]
    out = made(block, x)
    for hook in hooks:
        hook.remove()
    return out


def claimed(block, x):
    """One run, what it keeps in copies; in backward the module that counts runs is called."""
    with saved_tensors_hooks(lambda t: t if t.is_leaf else t.detach().clone(), lambda t: t):
        out = block(x)
    starts = [m for m in block.modules() if type(m).__name__ == "Start"]

    def count(up):
        for start in starts:
            start(up)

    out.register_hook(count)
    return out


ex.probe("a second run that is claimed", claimed, says="gradient", breaks=("again", "as once"))
ex.probe("held by hooks", with_hooks, says="tensors kept", breaks="kept")
ex.probe("x's last axis alone", lambda block, x: made(block, x) if x.dim() < 3 else made(
    block, x.flatten(0, 1)), says="shape of the outputs", breaks="x")
ex.probe("the example looked up wrong", breaks="example", fn=edited(
    made, ("now =", "if len([*block.modules()]) == 3: return block(x)\n        now ="),
    "15.6, the example"))
ex.equivalent("copies = {name: b.clone() for name, b in buffers.items()} -> "
              "copies = {name: b for name, b in buffers.items()}",
              "the first copies are read by one second run only")
ex.equivalent("dice = [value for module in block.modules() for value in vars(module).values() "
              "if isinstance(value, torch.Generator)] -> dice = [value for module in "
              "block.modules() for value in list(vars(module).values())[1:] if isinstance(value, "
              "torch.Generator)]", "a module's first attribute is `training`")
for other in ("if len(runs) == 1: -> if len(runs) <= 1:", "runs.append(1) -> runs.append(0)",
              "runs.append(1) -> runs.append(2)"):
    ex.equivalent(other, "only how many runs were noted counts, and that is 1 or more")
