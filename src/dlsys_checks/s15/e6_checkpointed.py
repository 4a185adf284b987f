"""Exercise 15.6, `checkpointed`."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("15.6", "checkpointed",
              seen=("layers", "rounds", "needs", "training", "form", "seed"), says="buffer")

# By how much the gradient at a linear layer is larger where its output was made by a second run, of
# which the gradient is the witness.
SECOND = 1.5

MIXED = ("everything at once", "nested modules", "one module alone", "x without gradient",
         "two calls before backward", "two steps", "three calls, two steps", "three axes",
         "eval mode")

ex.promise("kept", "Compute block(x) without keeping the block's inner values for the backward "
                   "pass.",
           says=("tensors kept", "outputs"))
ex.promise("again", "In the backward pass, the block runs a second time, once for each call.",
           says=("runs of the block",))
ex.promise("as once", "After the call and again after backward, everything is as if block(x) had "
           "run once: the output, the gradients of x and of the block's parameters, the block's "
           "buffers and the state of every generator.",
           says=("outputs", "gradient", "buffer", "next draw"))
ex.promise("block", "block: a module that takes one tensor, made of any modules, in train or eval "
           "mode.",
           cases=("nested modules", "one module alone", "eval mode", "everything at once"))
ex.promise("x", "x: float32, with or without requires_grad.",
           cases=("x without gradient", "three axes", "one module alone",
                  "three calls, two steps"))
ex.promise("draws", "The block may draw from torch's generator and from generators that are "
           "attributes of its modules.",
           cases=("dropout", "a generator of its own", "two generators",
                  "one generator for two modules", "two generators, two calls", *MIXED))
ex.promise("buffers", "The block may read its buffers, which are tensors from the start, and "
           "change them, in place or by assigning a new tensor of any shape.",
           cases=("BatchNorm", "a buffer that is read and changed", "a buffer that is replaced",
                  "a buffer that is changed, then read", "a buffer that grows",
                  "a buffer outside the state_dict", "a buffer of two modules", "the example",
                  *MIXED))
ex.promise("between", "Each call has one backward pass, and before it there may be further "
           "calls of the block and other draws.",
           cases=("two calls before backward", "two generators, two calls", "two steps",
                  "three calls, two steps"))
ex.promise("example", "Example: after a call and its backward pass, an nn.BatchNorm1d has counted "
                      "1 batch.",
           cases=("the example",))


@ex.cases
def cases(g):
    number, between = integers(g), floats(g)
    width = number(3, 6)

    def linear():
        return ["linear", torch.randn(width, width, generator=g), torch.randn(width, generator=g)]

    def norm():
        return ["norm", between(0.1, 0.5)]

    def drop():
        return ["dropout", between(0.3, 0.6)]

    def dice(seed=None):
        return ["dice", number(1, 10_000) if seed is None else seed, between(0.3, 0.6)]

    def scaled(how="in place"):
        return ["scaled", between(0.5, 2.0), how]

    def one(name, *layers, rounds=(1,), needs=True, training=True, form="flat", shape=(6,)):
        calls = [[2 * torch.randn(*shape, width, generator=g) + 1 for _ in range(n)]
                 for n in rounds]
        return name, {"layers": list(layers), "rounds": calls, "needs": needs,
                      "training": training, "form": form, "seed": number(1, 10_000)}

    def all_kinds():
        return (linear(), norm(), ["gelu"], dice(), scaled("replaced"), linear(), ["gelu"], drop(),
                scaled())

    twin = number(1, 10_000)
    return [one("no draws, no buffers", linear(), ["gelu"], linear()),
            one("BatchNorm", linear(), norm(), ["gelu"], linear()),
            one("dropout", linear(), ["gelu"], drop(), linear()),
            one("a generator of its own", linear(), ["gelu"], dice(), linear()),
            one("two generators", dice(), linear(), ["gelu"], dice(), linear()),
            one("one generator for two modules", dice(twin), linear(), ["gelu"], dice(twin)),
            one("a buffer that is read and changed", linear(), ["gelu"], scaled(), linear()),
            one("a buffer that is replaced", linear(), ["gelu"], scaled("replaced"), linear()),
            one("a buffer outside the state_dict", linear(), ["gelu"], scaled("own"), linear()),
            one("a buffer that is changed, then read", linear(), ["gelu"], scaled("first"),
                linear(), rounds=(2,)),
            one("a buffer of two modules", linear(), ["gelu"], scaled(), linear(),
                ["shared", 1.0, "in place"], linear()),
            one("a buffer that grows", linear(), ["gelu"], scaled("grown"), linear()),
            one("everything at once", *all_kinds()),
            one("nested modules", *all_kinds(), form="nested"),
            one("one module alone", linear(), ["gelu"], dice(), scaled(), form="alone",
                needs=False),
            one("x without gradient", *all_kinds(), needs=False),
            one("eval mode", *all_kinds(), training=False),
            one("three axes", linear(), ["gelu"], drop(), scaled(), linear(), shape=(2, 3)),
            one("two calls before backward", *all_kinds(), rounds=(2,)),
            one("two generators, two calls", dice(), linear(), ["gelu"], dice(), linear(),
                rounds=(2,)),
            one("two steps", *all_kinds(), rounds=(1, 1)),
            one("three calls, two steps", *all_kinds(), rounds=(3, 1), needs=False),
            one("the example", norm())]


@ex.act
def act(fn, layers, rounds, needs, training, form, seed):
    import gc

    from torch.multiprocessing.reductions import StorageWeakRef

    runs, inside, generators, now = [], [], {}, [1.0]

    class Marked(torch.autograd.Function):
        """h; its gradient times a number that is saved in each run, and another in the second."""

        @staticmethod
        def forward(ctx, h, mark):
            ctx.save_for_backward(mark)
            return h.clone()

        @staticmethod
        def backward(ctx, up):
            return up * ctx.saved_tensors[0], None

    def noted(h):
        h = Marked.apply(h, torch.tensor(now[0]))
        inside.append(StorageWeakRef(h.untyped_storage()))
        return h

    class Start(nn.Module):
        def forward(self, h):
            runs.append(1)
            return h

    class Seen(nn.Module):
        def forward(self, h):
            return noted(h)

    class Dice(nn.Module):
        def __init__(self, number, p):
            super().__init__()
            self.p = p
            self.source = generators.setdefault(number, torch.Generator().manual_seed(number))

        def forward(self, h):
            if not self.training:
                return h
            return h * (torch.rand(h.shape, generator=self.source) >= self.p) / (1 - self.p)

    class Scaled(nn.Module):
        def __init__(self, size, how):
            super().__init__()
            self.how = how
            size = torch.tensor([size, 2 * size] if how == "grown" else size)
            self.register_buffer("size", size, persistent=how != "own")

        def forward(self, h):
            out = h / self.size.mean()       # a new tensor: what is kept for backward stays
            if self.training:
                with torch.no_grad():
                    new = h.abs().mean()
                    new = torch.cat([self.size, new[None]]) if self.how == "grown" else (
                        0.8 * self.size + 0.2 * new)
                    if self.how in ("in place", "own"):
                        self.size.copy_(new)
                    else:
                        self.size = new
            return h / self.size if self.how == "first" else out

    class Alone(nn.Module):
        """Weight, generator and buffer as attributes of its own."""

        def __init__(self, weight, bias, number, p, size):
            super().__init__()
            self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
            self.own = generators.setdefault(number, torch.Generator().manual_seed(number))
            self.p = p
            self.register_buffer("size", torch.tensor(size))

        def forward(self, h):
            runs.append(1)
            h = F.gelu(noted(F.linear(h, self.weight, self.bias)))
            h = h * (torch.rand(h.shape, generator=self.own) >= self.p) / (1 - self.p)
            out = h / self.size.clone()
            with torch.no_grad():
                self.size.copy_(0.8 * self.size + 0.2 * h.abs().mean())
            return out

    class Outer(nn.Module):
        def __init__(self, modules):
            super().__init__()
            self.rest = nn.ModuleDict({"deep": nn.Sequential(*modules[2:])})
            self.first = nn.Sequential(*modules[:2])

        def forward(self, h):
            return self.rest["deep"](self.first(h))

    def made(kind, *given):
        if kind == "linear":
            layer = nn.Linear(*given[0].shape[::-1])
            layer.weight.data, layer.bias.data = given[0].clone(), given[1].clone()
            return layer
        if kind == "norm":
            return nn.BatchNorm1d(width, momentum=given[0], affine=False)
        if kind == "shared":           # the buffer is that of the Scaled before it
            layer = Scaled(*given)
            layer.size = next(part for part in parts if isinstance(part, Scaled)).size
            return layer
        return {"gelu": nn.GELU, "dropout": nn.Dropout, "dice": Dice, "scaled": Scaled}[kind](
            *given)

    width = rounds[0][0].shape[-1]
    if form == "alone":
        block = Alone(layers[0][1].clone(), layers[0][2].clone(), *layers[2][1:], layers[3][1])
        parts = [block]
    else:
        parts, modules = [], [Start()]
        for kind, *given in layers:
            parts.append(made(kind, *given))
            modules += [parts[-1], Seen()] if kind == "linear" else [parts[-1]]
        if kind == "linear":
            modules.pop()              # the block's output is no inside
        block = nn.Sequential(*modules) if form == "flat" else Outer(modules)
    block.train(training)
    torch.manual_seed(seed)

    def held():
        return [buffer.clone() for part in parts for buffer in part.buffers()]

    def step(calls):
        """Calls of the block, then their backward."""
        xs = [x.clone().requires_grad_(needs) for x in calls]
        outs = [fn(block, x) for x in xs]
        found["called"].append(held())
        found["runs"].append(len(runs))
        alive = sum(not ref.expired() for ref in inside)
        if alive:
            gc.collect()
            alive = sum(not ref.expired() for ref in inside)
        found["kept"] += alive
        found["draws"].append(torch.rand(2))
        now[0] = 1.5                   # SECOND in the law
        sum(((k + 1) * out * out.detach().cos()).sum() for k, out in enumerate(outs)).backward()
        now[0] = 1.0
        found["runs"].append(len(runs))
        found["draws"] += [torch.rand(2), *[torch.rand(2, generator=die)
                                            for die in generators.values()]]
        found["outs"] += outs
        found["x_grads"] += [x.grad for x in xs]
        found["grads"].append([p.grad.clone() if p.grad is not None else None
                               for part in parts for p in part.parameters()])
        found["buffers"].append(held())

    found = {"outs": [], "x_grads": [], "grads": [], "called": [], "buffers": [], "runs": [],
             "kept": 0, "draws": []}
    # What was there before is set aside, so that a collection looks at what is new, in a hundredth
    # of the time; where that is done already, the session is one of a process that was forked.
    whole = not gc.get_freeze_count()
    if whole:
        gc.freeze()
    try:
        for calls in rounds:
            step(calls)
    finally:
        if whole:
            gc.unfreeze()
    return found


def through(h, layers, state, training):
    """What the layers make of h; their buffers move in state."""
    for place, ((kind, *given), own) in enumerate(zip(layers, state, strict=True)):
        if kind == "linear":
            h = h @ own["weight"].T + own["bias"]
            if place + 1 < len(layers):
                h = h.detach() + SECOND * (h - h.detach())
        elif kind == "gelu":
            h = h * (1 + torch.erf(h / 2 ** 0.5)) / 2
        elif kind == "dropout":
            h = F.dropout(h, given[0], training)
        elif kind == "dice" and training:
            h = h * (torch.rand(h.shape, generator=own["dice"]) >= given[1]) / (1 - given[1])
        elif kind == "norm":
            mean, var = h.mean(0), h.var(0, correction=0)
            if training:
                share, rows = given[0], len(h)
                own["mean"] = (1 - share) * own["mean"] + share * mean.detach()
                own["var"] = (1 - share) * own["var"] + share * var.detach() * rows / (rows - 1)
                own["seen"] = own["seen"] + 1
            else:
                mean, var = own["mean"], own["var"]
            h = (h - mean) / (var + 1e-5).sqrt()
        elif kind in ("scaled", "shared"):
            old = own["size"]
            if training:
                amount = h.detach().abs().mean()
                own["size"] = 0.8 * old + 0.2 * amount
                if given[1] == "grown":
                    own["size"] = torch.tensor([*old.tolist(), amount.item()])
            h = h / (own["size"] if given[1] == "first" else old.mean())
    return h


def once(layers, rounds, needs, training, seed):
    """What a block that runs once leaves behind."""
    width, generators, state = rounds[0][0].shape[-1], {}, []
    for kind, *given in layers:
        if kind == "linear":
            state.append({"weight": given[0].clone().requires_grad_(),
                          "bias": given[1].clone().requires_grad_()})
        elif kind == "norm":
            state.append({"mean": torch.zeros(width), "var": torch.ones(width),
                          "seen": torch.tensor(0)})
        elif kind == "dice":
            state.append({"dice": generators.setdefault(
                given[0], torch.Generator().manual_seed(given[0]))})
        elif kind == "shared":
            state.append(next(own for own in state if "size" in own))
        else:
            state.append({})
            if kind == "scaled":
                size, how = given
                state[-1]["size"] = torch.tensor([size, 2 * size] if how == "grown" else size)
    weights = [own[name] for own in state for name in ("weight", "bias") if name in own]
    found = {"outs": [], "x_grads": [], "grads": [], "buffers": [], "draws": []}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for calls in rounds:
            xs = [x.clone().requires_grad_(needs) for x in calls]
            outs = [through(x, layers, state, training) for x in xs]
            found["draws"].append(torch.rand(2))
            sum(((k + 1) * out * out.detach().cos()).sum()
                for k, out in enumerate(outs)).backward()
            found["draws"] += [torch.rand(2), *[torch.rand(2, generator=die)
                                                for die in generators.values()]]
            found["outs"] += [out.detach() for out in outs]
            found["x_grads"] += [x.grad for x in xs]
            found["grads"].append([p.grad.clone() for p in weights])
            found["buffers"].append([own[name] for own in state
                                     for name in ("mean", "var", "seen", "size") if name in own])
    return found


def expect_all(what, got, expected, look):
    """The same number of tensors, each of them close; one that is 0 but for rounding may be."""
    expect_length(what + "s", got, len(expected))
    largest = max((float(t.abs().max()) for t in expected if t is not None), default=0.0)
    for mine, wanted in zip(got, expected, strict=True):
        if wanted is None:
            expect_equal(what, mine, None)
        else:
            expect_close(what, mine, wanted, rtol=1e-3, atol=1e-5 * largest, look=look)


@ex.law
def law(out, layers, rounds, needs, training, form, seed):
    expect_parts(out, "outs", "x_grads", "grads", "called", "buffers", "runs", "kept", "draws")
    right = once(layers, rounds, needs, training, seed)
    expect_length("outputs", out["outs"], len(right["outs"]))
    for mine, wanted in zip(out["outs"], right["outs"], strict=True):
        expect_type("outputs", mine, torch.Tensor)
        expect_close("outputs", mine, wanted, rtol=1e-3)
    for calls in ("called", "buffers", "grads"):
        expect_length(f"steps in {calls}", out[calls], len(rounds))
    expect_equal("tensors kept between call and backward", out["kept"], 0,
                 "Keep only x and what the block reads.")
    for mine, wanted in zip(out["called"], right["buffers"], strict=True):
        expect_all("buffer after the call", mine, wanted,
                   "The first run changes the buffer, as usual.")
    done, wanted = 0, []
    for calls in rounds:
        wanted += [done + len(calls), done + 2 * len(calls)]
        done += 2 * len(calls)
    expect_equal("runs of the block after each call and backward", out["runs"], wanted)
    expect_all("gradient of x", out["x_grads"], right["x_grads"],
               "The second run has to repeat the first, with the same draws and buffers.")
    for mine, wanted in zip(out["grads"], right["grads"], strict=True):
        expect_all("gradient of a parameter", mine, wanted,
                   "The second run has to repeat the first, with the same draws and buffers.")
    for mine, wanted in zip(out["buffers"], right["buffers"], strict=True):
        expect_all("buffer after backward", mine, wanted, "The second run must leave no trace.")
    expect_all("next draw", out["draws"], right["draws"],
               "Generators should be where one run leaves them.")


# ---- wrong, by name

def dice_of(modules):
    """The generators that these modules hold."""
    return [value for module in modules for value in vars(module).values()
            if isinstance(value, torch.Generator)]


def copied(buffers):
    """A copy of each buffer, from pairs of name and buffer."""
    return {name: b.clone() for name, b in buffers}


def rewind(dice, states):
    """Put each of the generators into its state."""
    for die, state in zip(dice, states, strict=True):
        die.set_state(state)


@not_an_answer
def made(block, x):
    dice, first = dice_of(block.modules()), [True]
    start, buffers = [die.get_state() for die in dice], copied(block.named_buffers())

    def run(x):
        if first:
            first.clear()
            return block(x)
        now = [die.get_state() for die in dice]
        rewind(dice, start)
        try:
            return functional_call(block, copied(buffers.items()), x)
        finally:
            rewind(dice, now)

    return checkpoint(run, x, use_reentrant=False)


@contextmanager
def momentum_times(share, block):
    """Inside, BatchNorm's momentum is multiplied by `share`."""
    norms = [m for m in block.modules() if isinstance(m, nn.BatchNorm1d)]
    old = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.momentum *= share
        yield
    finally:
        for norm, momentum in zip(norms, old, strict=True):
            norm.momentum = momentum


@contextmanager
def rewritten(tensors, values):
    """Inside, the tensors hold these values; afterwards their own again."""
    own = [t.clone() for t in tensors]
    with torch.no_grad():
        for t, value in zip(tensors, values, strict=True):
            t.copy_(value)
    try:
        yield
    finally:
        with torch.no_grad():
            for t, value in zip(tensors, own, strict=True):
                t.copy_(value)


@contextmanager
def exchanged(block, buffers, back, forth):
    """Inside, the block is as back(block, buffers) leaves it; then forth(block, those of now)."""
    now = copied(block.named_buffers())
    back(block, buffers)
    try:
        yield
    finally:
        forth(block, now)


def copy_into(block, buffers):
    """Copy the values into the tensors that the block holds."""
    for name, b in block.named_buffers():
        b.data.copy_(buffers[name])


def put(block, buffers):
    """Put copies of the buffers into the block in place of its own."""
    for name, value in buffers.items():
        path, _, key = name.rpartition(".")
        setattr(block.get_submodule(path), key, value.clone())


wrong = ex.edits(made)
START, DICE, BEFORE = "dice, first =", "dice_of(block.modules())", "copied(block.named_buffers())"
FIRST, AGAIN = "return block(x)", "functional_call(block, copied(buffers.items()), x)"
BACK, FORTH, END = "rewind(dice, start)", "rewind(dice, now)", "checkpoint(run, x,"
ex.wrong("using no checkpoint at all", lambda block, x: block(x), says="tensors kept",
         breaks=("kept", "again"))
# https://github.com/pytorch/pytorch/issues/96136
wrong("using torch's checkpoint unchanged", ("as once", "buffers", "draws"),
      END, "checkpoint(block, x,", says="")
# https://github.com/allenai/OLMo-core/pull/828
wrong("not restoring torch's generator for the second run",
      "draws", END, f"{END} preserve_rng_state=False,",
      says="gradient")
wrong("not restoring the block's own generators for the second run",
      "draws", BACK, "pass", FORTH, "pass",
      says="gradient")
wrong("restoring the generators, but changing the buffers twice",
      "buffers", AGAIN, "block(x)", says="")
wrong("letting the second run read the buffers that the first run left", "buffers",
      AGAIN, f"functional_call(block, {BEFORE}, x)", says="gradient")
wrong("restoring only the buffers in the state_dict", "buffers", BEFORE,
      "copied(pair for pair in block.state_dict().items() if pair[0] in "
      "dict(block.named_buffers()))", says="")
wrong("restoring buffers by name, which splits a buffer that two modules share", "buffers",
      BEFORE, "copied(block.named_buffers(remove_duplicate=False))",
      AGAIN, "functional_call(block, copied(buffers.items()), x, tie_weights=False)", says="")
wrong("restoring only the buffers of BatchNorm layers", "buffers", BEFORE,
      'copied((f"{name}.{key}", b) for name, m in block.named_modules() '
      "if isinstance(m, nn.BatchNorm1d) for key, b in m.named_buffers())", says="")
wrong("letting BatchNorm count each batch twice", ("buffers", "example"), "buffers.items()",
      "pair for pair in buffers.items() if pair[1].is_floating_point()", says="buffer")
wrong("restoring only the block's own generators, not those of its submodules",
      "draws", DICE, "dice_of([block])", says="")
wrong("restoring only the generators of the block's submodules", ("draws", "block", "x"),
      DICE, "dice_of(m for child in block.children() for m in child.modules())", says="")
wrong("restoring only the first generator", "draws", DICE, f"{DICE}[:1]", says="")
wrong("leaving the generators where the second run ends",
      "between", FORTH, "pass", says="next draw")
wrong("leaving the generators where the first run began", "draws", FORTH, BACK, says="next draw")
wrong("using the reentrant checkpoint, for which x has to require grad", "x",
      "use_reentrant=False", "use_reentrant=True", says="")
wrong("halving BatchNorm's momentum", ("buffers", "as once"),
      FIRST, "with momentum_times(0.5, block): return block(x)",
      f"return {AGAIN}", f"with momentum_times(0.5, block): {FIRST}", says="buffer")
wrong("setting BatchNorm's momentum to 0 in the second run", "buffers",
      f"return {AGAIN}", f"with momentum_times(0.0, block): {FIRST}", says="buffer")
wrong("writing the old values into the original buffer tensors only", ("buffers", "as once"),
      START, f"places = [*block.buffers()]; {START}",
      f"return {AGAIN}", f"with rewritten(places, buffers.values()): {FIRST}", says="")
wrong("copying the values back into the buffer tensors that the second run left", "buffers",
      f"return {AGAIN}", f"with exchanged(block, buffers, copy_into, copy_into): {FIRST}",
      says="gradient")
wrong("copying old values into buffers that now have a different shape", "buffers",
      f"return {AGAIN}", f"with exchanged(block, buffers, copy_into, put): {FIRST}", says="")
wrong("leaving the buffers at their values from before the call", ("buffers", "as once"),
      f"return {AGAIN}",
      f"with exchanged(block, buffers, put, lambda *_: put(block, buffers)): {FIRST}",
      says="buffer after backward")
# https://github.com/facebookresearch/fairscale/issues/1035
wrong("letting the second run change the buffers instead of the first", ("buffers", "as once"),
      FIRST, f"return functional_call(block, {BEFORE}, x)", AGAIN, "block(x)",
      says="buffer after the call")
wrong("storing the state on the block, where the next call overwrites it", ("between", "buffers"),
      FIRST, f"block.start, block.then = start, buffers; {FIRST}",
      BACK, "rewind(dice, block.start)", "buffers.items()", "block.then.items()", says="gradient")
wrong("running the block a third time", "again", BACK,
      f"with torch.random.fork_rng(devices=[]), torch.no_grad(): {BACK}; {AGAIN}\n        {BACK}",
      says="runs of the block")
wrong("putting the block into train mode", "block", START, f"block.train(); {START}",
      says="outputs")
wrong("detaching the output", ("as once", "again", "x"),
      "use_reentrant=False)", "use_reentrant=False).detach().requires_grad_()", says="")


class OfX(torch.autograd.Function):
    """x's gradient by a second run; the parameters get none."""

    @staticmethod
    def forward(ctx, x, block):
        ctx.block, ctx.x = block, x
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, up):
        with torch.enable_grad():
            x = ctx.x.detach().requires_grad_()
            return torch.autograd.grad(ctx.block(x), x, up)[0], None


ex.wrong("returning only the gradient of x", lambda block, x: OfX.apply(x, block), says="",
         breaks=("as once", "x"))
wrong("setting a fixed seed at the start of each call", "as once",
      "start, buffers", "[die.manual_seed(0) for die in (torch, *dice)]; start, buffers", says="")
ex.wrong("averaging the outputs of two runs", lambda block, x: (
    made(block, x) + made(block, x)) / 2, says="", breaks=("again", "as once"))
