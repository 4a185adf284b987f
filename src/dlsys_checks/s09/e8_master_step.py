"""Exercise 09.8, `master_step`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("09.8", "master_step", seen=("sets", "steps", "momentum"), says="weight")

MOVING = ("momentum", "large gradients", "a rate that changes", "a gradient missing now and then",
          "a gradient of zeros", "a momentum with many digits")
ex.promise("step", "Take one step of SGD with momentum on bfloat16 weights.", says=("weight",))
ex.promise("in place", "Change the weights in place.", says=("weight",))
ex.promise("nearest", "After each step, a weight is the bfloat16 value nearest to the result of "
                      "the same steps in float32.", says=("weight",))
ex.promise("rule", "A float32 step first sets v = momentum * v + grad.",
           cases=MOVING)
ex.promise("start", "Before the first step, v is 0.", cases=MOVING)
ex.promise_table("""
descent | The step then sets w = w - lr * v. | weight
state   | state: a dict for these weights alone. | case two sets in turn; sets of two sizes in turn
empty   | state is empty before the weights' first step. Keep in it what you need. | raised KeyError
rate    | lr: may change from step to step. | case a rate that changes; a large step, then tiny ones
grads   | grads: a bfloat16 tensor for each weight, unchanged. | the caller's gradients
None    | For None, the weight and its v stay as they are. | case a gradient missing now and then;
          no gradient at first
shapes  | Args: weights: tensors of any shape and strides, without requires_grad. | case shapes of
          all kinds; columns of a table
example | Example: with weight 1, gradient 1, lr 0.001 and no momentum, the weight is 0.99609375
          after 4 steps. | case the example
""")


# Rates and momentum have few digits in base 2, gradients are small integers: float32 holds each
# sum exactly, so that the order of operations cannot change a rounding.
@ex.cases
def cases(g):
    whole = integers(g)

    def weights(*shapes, views=()):
        """bfloat16 numbers between 1/2 and 2, of either sign."""
        def drawn(shape):
            sign = torch.randint(0, 2, shape, generator=g) * 2 - 1
            return (sign * (0.5 + 1.4 * torch.rand(shape, generator=g))).bfloat16()
        return {"start": [drawn(shape) for shape in shapes],
                "views": list(views) or [False] * len(shapes)}

    def slope(shape, most):
        drift = torch.randint(1, most, shape, generator=g)
        return (drift * (torch.randint(0, 5, shape, generator=g).sign() * 2 - 1)).bfloat16()

    def zeros(*shapes):
        return {"start": [torch.zeros(shape).bfloat16() for shape in shapes],
                "views": [False] * len(shapes)}

    def one(name, *sets, turns=30, rates=(-10,), momentum=0.0, gaps=(), still=(), most=5):
        """rates: powers of two; gaps, still: weights without a gradient, or with one of zeros."""
        steps = []
        for k in range(turns * len(sets)):
            held = sets[k % len(sets)]
            given = [slope(w[:, 0].shape if view else w.shape, most)
                     for w, view in zip(held["start"], held["views"], strict=True)]
            missing = gaps[k % len(gaps)] if gaps else ()
            zero = still[k % len(still)] if still else ()
            rate = rates[k % len(rates)]
            steps.append({"set": k % len(sets),
                          "lr": 2.0**rate if type(rate) is int else rate,
                          "grads": [None if i in missing else v * (i not in zero)
                                    for i, v in enumerate(given)]})
        return name, {"sets": list(sets), "steps": steps, "momentum": momentum}
    n, m = whole(3, 7), whole(2, 5)
    example = {"sets": [{"start": [torch.ones(1).bfloat16()], "views": [False]}],
               "momentum": 0.0, "steps": [{"set": 0, "lr": 0.001,
                                           "grads": [torch.ones(1).bfloat16()]}] * 4}
    return [one("small steps", weights((n,), (m, 2)), rates=(whole(-11, -9),)),
            one("one weight", weights((1,)), turns=60, rates=(-12,)),
            one("large steps", weights((n, m)), rates=(-4,), turns=5),
            one("momentum", weights((n,), (m,)), turns=9, momentum=0.5),
            one("large gradients", weights((n, m), (7, 7)), turns=9, momentum=0.5, rates=(-7,),
                most=250),
            one("a rate that changes", weights((n,), (2, m)), turns=9, momentum=0.5,
                rates=(-8, -10, 0.0, -9)),
            one("a rate with many digits", zeros((40,)), rates=(257 * 2.0**-18,), turns=6),
            one("a momentum with many digits", zeros((40,)), turns=3, momentum=257 / 512),
            one("a large step, then tiny ones", weights((40,)), turns=130, most=2,
                rates=(31 * 2.0**-13, *[-18] * 129)),
            one("a gradient of zeros", weights((n,), (m,)), turns=12, momentum=0.5, rates=(-6,),
                still=((), (0,), (0, 1), (1,))),
            one("a gradient missing now and then", weights((n,), (m,), (2,)), turns=9,
                momentum=0.5, gaps=((), (0,), (), (2,), (0, 1))),
            one("no gradient at first", weights((n,), (m,)), gaps=((0,), (1,), (0, 1), ())),
            one("two sets in turn", weights((n,), (m,)), weights((n,), (m,)), turns=20),
            one("sets of two sizes in turn", weights((n,)), weights((m, 2), (n,), (3,)), turns=20),
            one("shapes of all kinds", weights((), (0,), (1, 1, 3), (m, n)), turns=20),
            one("columns of a table", weights((n, 3), (m, 2, n), (4,), views=(True, True, False)),
                turns=20),
            one("six weights of one size", weights(*[(n,)] * 6)),
            ("the example", example)]


@ex.act
def act(fn, sets, steps, momentum):
    tables = [[w.clone() for w in held["start"]] for held in sets]
    weights = [[t[:, 0] if view else t for t, view in zip(own, held["views"])]
               for own, held in zip(tables, sets)]
    beside = [[t[:, 1:].clone() for t, view in zip(own, held["views"]) if view]
              for own, held in zip(tables, sets)]
    states, path, touched = [{} for _ in sets], [], 0
    for step in steps:
        own = weights[step["set"]]
        given = [None if v is None else v.clone() for v in step["grads"]]
        fn(list(own), given, states[step["set"]], step["lr"], momentum)
        touched += sum((a is None) != (b is None) or (a is not None and not torch.equal(a, b))
                       for a, b in zip(given, step["grads"]))
        views = sets[step["set"]]["views"]
        first = sets[step["set"]]["start"]
        path.append([(t[:, 0] if view else t).float() - (w[:, 0] if view else w).float()
                     for t, w, view in zip(tables[step["set"]], first, views)])
    spoilt = 0
    for own, held, kept in zip(tables, sets, beside):
        mine = [t for t, view in zip(own, held["views"]) if view]
        spoilt += sum(int((t[:, 1:] != old).sum()) for t, old in zip(mine, kept))
    types = [str(t.dtype) for own in tables for t in own]
    return {"path": path, "types": types, "touched": touched, "spoilt": spoilt}


@ex.law
def law(out, sets, steps, momentum):
    expect_parts(out, "path", "types", "touched", "spoilt")
    expect_length("types of the weights", out["types"], sum(len(v["start"]) for v in sets))
    for place, kind in enumerate(out["types"]):
        expect_equal(f"type of weight {place}", kind, "torch.bfloat16")
    expect_length("steps", out["path"], len(steps))
    start = [[(w[:, 0] if view else w).float() for w, view in
              zip(held["start"], held["views"], strict=True)] for held in sets]
    exact = [[[(w[:, 0] if view else w).double(), 0.0] for w, view in
              zip(held["start"], held["views"], strict=True)] for held in sets]
    for k, (step, got) in enumerate(zip(steps, out["path"], strict=True)):
        own = exact[step["set"]]
        expect_length("weights", got, len(own))
        for place, (slot, grad) in enumerate(zip(own, step["grads"], strict=True)):
            if grad is not None:
                slot[1] = momentum * slot[1] + grad.double()
                slot[0] = slot[0] - step["lr"] * slot[1]
            right = slot[0].float().bfloat16().float() - start[step["set"]][place]
            expect_equal(f"change of weight {place} up to step {k}, set {step['set']}", got[place],
                         right, "Take each step on a float32 copy that you keep.")
    expect_equal("the caller's gradients: tensors that changed", out["touched"], 0,
                 "Work on a copy.")
    expect_equal("values next to the weights that changed", out["spoilt"], 0,
                 "Write only into the weights' own memory.")


# ---- wrong, by name

@not_an_answer
def stepped(weights, grads, state, lr, momentum, *, key=None):
    for k, (w, grad) in enumerate(zip(weights, grads, strict=True)):
        slot = k if key is None else key(k, w)
        master, v = state.get(slot) or (w.detach().float().clone(), torch.full(w.shape, 0.0))
        if grad is not None:
            slope = grad.float()
            v = momentum * v + slope
            move = v
            move = move * lr
            master = master - move
            w.data.copy_(master)
        state[slot] = (master, v)


wrong = ex.edits(stepped)
wrong("copying the bfloat16 weight to float32 again at each step", "nearest",
      "if grad", "master = w.detach().float().clone()\n        if grad")


# https://github.com/pytorch/torchdistx/pull/52: its buffer is of bfloat16, too.
@ex.wrong("keeping the rounding error in bfloat16 next to the weight", breaks="nearest")
def kahan(weights, grads, state, lr, momentum):
    for k, (w, grad) in enumerate(zip(weights, grads, strict=True)):
        if grad is not None:
            v, lost = state.get(k, (0.0, torch.zeros_like(w)))
            v = momentum * v + grad.float()
            old, move = w.float(), lost.float() - lr * v
            w.copy_(old + move)
            state[k] = v, (move - (w.float() - old)).bfloat16()


@ex.wrong("keeping no copy and updating the bfloat16 weight itself", breaks="nearest")
def no_master(weights, grads, state, lr, momentum):
    for k, (w, grad) in enumerate(zip(weights, grads, strict=True)):
        if grad is not None:
            state[k] = momentum * state.get(k, 0) + grad
            w.sub_(lr * state[k])


wrong("truncating to bfloat16 instead of rounding", ("nearest", "example"),
      "for k",
      "def cut(weights, k, master): bits = master.clone().view(torch.int32) & -65536; "
      "weights[k].data.copy_(bits.view(torch.float32))\n    for k", "w.data.copy_", "cut",
      "(master)", "(weights, k, master)")
wrong("keeping v in bfloat16", "rule", "move = v", "v = v.bfloat16().float(); move = v")
wrong("rounding lr * v to bfloat16 before subtracting it from the copy", "nearest",
      "- move", "- move.bfloat16().float()")
wrong("putting a new tensor into the list instead of changing the weight in place",
      ("in place", "nearest", "step", "descent"),
      "for k", "def rebind(weights, k, master): weights[k] = master.bfloat16()\n    for k",
      "w.data.copy_", "rebind", "(master)", "(weights, k, master)")
wrong("giving the weight new memory", "in place",
      "for k", "def swap(weights, k, master): weights[k].data = master.bfloat16()\n    for k",
      "w.data.copy_", "swap", "(master)", "(weights, k, master)")
wrong("adding lr * v instead of subtracting it", "descent", "move * lr", "-1 * move * lr")
wrong("leaving out the momentum", "step", "v = momentum", "v = 0.0")
wrong("starting with v = 1 instead of 0", "start", "0.0", "1.0")
wrong("using Nesterov's momentum", "rule", "move = v", "move = momentum * v + slope")
wrong("multiplying the gradient by 1 - momentum", "rule",
      "for k", "damp = 1 - momentum\n    for k", "grad.float()", "damp * grad.float()")
wrong("multiplying the gradient by lr before adding it to v",
      "rate", "grad.float()", "grad.float() * lr", "move = move * lr", "pass")
wrong("keeping the first step's rate for good", "rate",
      "for k", 'rate = state.setdefault("rate", lr)\n    for k', "move * lr", "move * rate")
wrong("treating a missing gradient as zeros", "None",
      "if grad", "if grad is None: grad = torch.zeros_like(w)\n        if grad")


@ex.wrong("skipping the whole step when one gradient is missing", breaks="None")
def skipped(weights, grads, state, lr, momentum):
    if all(v is not None for v in grads):
        stepped(weights, grads, state, lr, momentum)


ex.wrong("sharing one state among weights of the same shape",
         stepped, breaks=("nearest", "state", "step"),
         key=lambda k, w: str(tuple(w.shape)))


@ex.wrong("keeping the state in a dict of your own, not in the caller's dict", breaks="state")
def global_state(weights, grads, state, lr, momentum):
    kept = vars(global_state).setdefault("kept", {})
    if not state:
        state["begun"] = True
        kept.clear()
    stepped(weights, grads, kept, lr, momentum)


@ex.wrong("assuming that the state is never empty", breaks="empty")
def not_empty(weights, grads, state, lr, momentum):
    for w, master in zip(weights, state["masters"], strict=True):
        w.copy_(master)


wrong("scaling the caller's gradients in place", "grads",
      "(master, v)", "(master, v)\n    for v in grads:\n        if v is not None: v.mul_(lr)")
wrong("ignoring a view's strides and overwriting the values next to it", "shapes",
      "w.data.copy_", "write", "(master)", "(weights, k, master)", "for k",
      "def write(weights, k, master):\n        w = weights[k]\n        if w.is_contiguous() or "
      "w.dim() != 1: w.data.copy_(master)\n        else: w.data.as_strided(w.shape, "
      "(1,)).copy_(master)\n    for k", says="got")
wrong("writing into a flat copy when the weight is a view", "shapes",
      "w.data", "weights[k].reshape(-1)", "(master)", "(master.reshape(-1))")
wrong("treating a gradient of zeros as None", "rule",
      "for k", "some = [None if v is None or not v.any() else v for v in grads]\n    for k",
      "grads, strict", "some, strict")
wrong("rounding the rate to bfloat16", "nearest",
      "for k", "lr = torch.tensor(lr).bfloat16().item()\n    for k")


@ex.wrong("leaving out the example's last step", breaks="example")
def three_steps(weights, grads, state, lr, momentum):
    count = state["count"] = state.get("count", 0) + 1
    if lr != 0.001 or count < 2:
        stepped(weights, grads, state, lr, momentum, key=lambda k, w: f"slot {k}")
