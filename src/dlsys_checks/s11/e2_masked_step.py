"""Exercise 11.2, `masked_step`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("11.2", "masked_step", seen=("kind", "weights", "grads", "masks", "plain"),
              says="pruned weights")

ex.promise("step", "Take one step of the optimizer.", says=("weights", "raised"))
ex.promise("zeros", "Then set each pruned weight to 0.", says=("pruned weights",))
ex.promise("masks", "Args: masks: {parameter: bool tensor of its shape}, False where a weight is "
           "pruned. A parameter without a mask is not pruned.",
           cases=("one parameter without a mask", "no mask at all",
                                                "two masks", "a mask that keeps all"))
ex.promise("odd", "A pruned weight is 0 even if its gradient is missing or not finite.",
           cases=("no gradient", "a gradient of NaN"))
ex.promise("strange", "A pruned weight is also 0 if its parameter is frozen or unknown to the "
           "optimizer.",
           cases=("a frozen parameter", "a parameter that the optimizer does not hold"))
ex.promise("others", "All other weights get the values that optimizer.step() alone would give "
           "them.", says=("weights that are kept", "weights without a mask"))
ex.promise("same", "All weights stay in the same tensors.", says=("tensors that were replaced",))
ex.promise("left", "Gradients, masks and the optimizer's settings do not change.",
           says=("besides the weights", "inputs after the call"))
ex.promise("example", "Example: with SGD at rate 1, weights 2 and 2, gradients 3 and 3, and mask "
                      "False and True, the weights become 0 and -1.", cases=("the example",))


@ex.cases
def cases(g):
    def one(name, kind, shapes=((4, 3), (5,)), masked=2, plain=0, steps=2, share=0.5):
        weights = [torch.randn(s, generator=g) for s in shapes]
        return name, {"kind": kind, "plain": plain, "weights": weights,
                      "grads": [[torch.randn(s, generator=g) for s in shapes]
                                for _ in range(plain + steps)],
                      "masks": [torch.rand(s, generator=g) >= share for s in shapes[:masked]]}

    nan = one("a gradient of NaN", "SGD", steps=1)
    nan[1]["masks"][0][0] = torch.tensor([False, True, False])
    nan[1]["grads"][0][0][0, :2] = torch.nan                # one pruned, one kept
    nan[1]["grads"][0][0][0, 2] = torch.inf                 # pruned
    nought = one("kept weights that are 0", "momentum", steps=3)
    nought[1]["weights"][0] *= 0
    none = one("no gradient", "no gradient", shapes=((4, 3), (6,), (2, 2)), masked=3)
    none[1]["masks"][1][2] = False
    return [one("plain SGD", "SGD"), one("momentum after some steps", "momentum", plain=3),
            one("momentum from the start", "momentum"),
            one("Adam after some steps", "Adam", plain=2),
            one("Adam from the start", "Adam", steps=3),
            one("weight decay and momentum", "decay", plain=1),
            one("one parameter without a mask", "SGD", masked=1),
            one("no mask at all", "momentum", masked=0, plain=1), one("two masks", "Adam"),
            one("a mask that keeps all", "SGD", masked=1, share=0.0),
            one("a mask that keeps none", "momentum", share=1.1, plain=1),
            one("three parameters in two groups", "momentum", shapes=((3,), (2, 3, 2), ()),
                masked=3, plain=1), none, nan, nought,
            one("a frozen parameter", "frozen"),
            one("a parameter that the optimizer does not hold", "not held"),
            one("transposed in memory", "columns", shapes=((4, 3), (2, 5))),
            ("the example", {"kind": "SGD", "plain": 0, "weights": [torch.tensor([2.0, 2.0])],
                             "grads": [[torch.tensor([3.0, 3.0])]],
                             "masks": [torch.tensor([False, True])]})]


@ex.act
def act(fn, kind, weights, grads, masks, plain):
    def laid(x):
        return x.T.contiguous().T if kind == "columns" and x.dim() == 2 else x.clone()

    held = [nn.Parameter(laid(w)) for w in weights]
    below = [p.detach() for p in held]
    groups = [{"params": held[:1]}]
    if held[1:] and kind != "not held":
        groups.append({"params": held[1:]})
    still = kind in ("no gradient", "frozen", "not held")   # the second one, decay or not
    if kind == "frozen":
        held[1].requires_grad_(False)
    optimizer = (torch.optim.Adam(groups, lr=0.1) if kind == "Adam" else
                 torch.optim.SGD(groups, lr=1.0 if kind in ("SGD", "columns") else 0.1,
                                 momentum=0.9 if kind in ("momentum", "decay") or still else 0.0,
                                 weight_decay=0.3 if kind == "decay" or still else 0.0))
    given = dict(zip(held, [laid(m) for m in masks], strict=False))

    def facts():
        settings = [[(k, v) for k, v in group.items() if k != "params"]
                    for group in optimizer.param_groups]
        return [settings, [len(group["params"]) for group in optimizer.param_groups],
                [p.requires_grad for p in held], len(given)]

    before, ends, others, changed = facts(), [], 0, set()
    for n, step in enumerate(grads):
        for k, (p, grad) in enumerate(zip(held, step, strict=True)):
            p.grad = None if still and k == 1 else grad.clone()
        seen = [p.grad for p in held]
        if n < plain:
            optimizer.step()
            continue
        fn(optimizer, given)
        inside = [p for group in optimizer.param_groups for p in group["params"]]
        others += sum(a is not b for a, b in zip(inside, held, strict=False))
        others += sum(p.data_ptr() != b.data_ptr() for p, b in zip(held, below, strict=True))
        for p, was, grad in zip(held, seen, step, strict=True):
            same = was is None or torch.equal(was.nan_to_num(7.0), grad.nan_to_num(7.0))
            if p.grad is None and was is not None:
                changed.add("gradients set to None")
            elif p.grad is not was or not same:
                changed.add("gradients")
        if any(p not in given or not torch.equal(given[p], m)
               for p, m in zip(held, masks, strict=False)):
            changed.add("masks")
        if facts() != before:
            changed.add("settings")
        ends.append([p.detach().clone() for p in held])
    return {"ends": ends, "others": others, "changed": sorted(changed)}


@ex.law
def law(out, kind, weights, grads, masks, plain):
    expect_parts(out, "ends", "others", "changed")
    expect_equal("tensors that were replaced", out["others"], 0,
                 "Change the parameters in place, because the optimizer holds the old tensors.")
    expect_equal("what changed besides the weights", out["changed"], [])
    expect_length("calls", out["ends"], len(grads) - plain)
    for k, w in enumerate(weights):
        pruned = ~masks[k] if k < len(masks) else torch.zeros_like(w, dtype=torch.bool)
        still = kind in ("no gradient", "frozen", "not held")
        silent = still and k == 1
        path = by_hand("decay" if still else kind, w, [step[k] for step in grads], pruned, plain,
                       silent)
        for got, wanted in zip(out["ends"], path, strict=True):
            expect_length("parameters", got, len(weights))
            what = "weights that are kept" if k < len(masks) else "weights without a mask"
            compare(what, got[k], wanted.float(), pruned, silent)


def compare(what, got, wanted, pruned, still):
    """The pruned weights are 0, and the others as near as single precision allows."""
    expect_like(what, got, wanted)
    lost = wanted.isnan()                       # a kept weight whose gradient is NaN
    kept = torch.where(pruned, 0.0, got)
    if not torch.equal(kept.isnan(), lost):
        raise Broken(what, f"{int(kept.isnan().sum())} NaN", f"{int(lost.sum())} NaN",
                     "A kept weight takes the value that the step gives it, even NaN.")
    expect_close(what, kept.masked_fill(lost, 0.0), wanted.masked_fill(lost, 0.0), rtol=1e-4,
                 atol=1e-5)
    left = got[pruned][got[pruned] != 0]
    look = ("NaN times 0 is NaN: fill in zeros." if left.isnan().any() else
            "The step leaves this parameter out, but its pruned weights must be 0." if still else
            "Take the step first, then set the zeros.")
    expect_equal("pruned weights that are not 0", len(left), 0, look)


def by_hand(kind, w, grads, pruned, plain, silent):
    """The weights in double precision after each masked step; element by element."""
    w, m, v = w.double(), 0.0, 0.0
    for n, grad in enumerate(grads):
        grad = torch.where(pruned, 0.0, grad.double()) if n >= plain else grad.double()
        if kind == "Adam":
            m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad ** 2
            move = 0.1 * (m / (1 - 0.9 ** (n + 1))) / ((v / (1 - 0.999 ** (n + 1))).sqrt() + 1e-8)
        else:
            grad = grad + (0.3 * w if kind == "decay" else 0.0)
            m = grad + (0.9 * m if kind in ("momentum", "decay") else 0.0)
            move = (1.0 if kind in ("SGD", "columns") else 0.1) * m
        w = w if silent else w - move
        if n >= plain:
            w = torch.where(pruned, 0.0, w)
            yield w


# ---- wrong, by name

def zero(masks):
    for parameter, mask in masks.items():
        parameter.data.masked_fill_(~mask, 0)


@not_an_answer
def masked(optimizer, masks):
    optimizer.step()
    zero(masks)


wrong = ex.edits(masked)
OPTIMIZER = "optimizer.step"
wrong("applying the masks to the gradients, not to the weights", "zeros",
      OPTIMIZER,
      "kept = {p: p.grad for p in masks}\n    for parameter, mask in masks.items():\n        if "
      "parameter.grad is not None: parameter.grad = parameter.grad.masked_fill(~mask, 0)\n    "
      "optimizer.step", "zero(masks)", "for parameter, grad in kept.items(): parameter.grad = grad")
wrong("setting the zeros before the step, not after it", "zeros",
      "zero(masks)", "pass", OPTIMIZER, f"zero(masks); {OPTIMIZER}")
wrong("taking the step without setting any zeros", "zeros", "zero(masks)", "pass")
wrong("pruning where the mask is True", ("zeros", "others"),
      "zero(masks)", "for parameter, mask in masks.items(): parameter.data.masked_fill_(mask, 0)")
wrong("multiplying the weights by the mask", "odd",
      "zero(masks)", "for parameter, mask in masks.items(): parameter.data.mul_(mask)")
wrong("not pruning weights that have no gradient", ("odd", "strange"),
      "(masks)", "({p: m for p, m in masks.items() if p.grad is not None})")
wrong("not pruning frozen parameters", "strange",
      "(masks)", "({p: m for p, m in masks.items() if p.requires_grad})")
wrong("pruning only parameters that the optimizer holds", "strange",
      "zero(masks)",
      'for group in optimizer.param_groups: zero({p: masks[p] for p in group["params"] if p in '
      "masks})")
wrong("replacing a missing gradient with zeros", ("others", "left"),
      "zero", "for parameter in none: parameter.grad = None\n    zero", OPTIMIZER,
      "none = [p for p in masks if p.grad is None]\n    for parameter in none: parameter.grad = "
      "torch.zeros_like(parameter)\n    optimizer.step")
wrong("replacing NaN with 0, then multiplying the weights by the mask", "odd",
      "zero(masks)",
      "for parameter, mask in masks.items(): parameter.data.masked_fill_(parameter.isnan() & "
      "~mask, 0).mul_(mask)")
wrong("using only the first mask", ("masks", "zeros"), "(masks)", "(dict(list(masks.items())[:1]))")
wrong("assuming that every parameter has a mask", "masks",
      "zero(masks)",
      'held = [p for group in optimizer.param_groups for p in group["params"]]; zero({**masks, '
      "**{p: masks[p] for p in held}})", says="raised")
wrong("taking no step", ("step", "others"), OPTIMIZER, f"return zero(masks); {OPTIMIZER}")
wrong("taking two steps", "step", OPTIMIZER, "optimizer.step(); optimizer.step")
wrong("clearing the optimizer's state before the step", "others",
      OPTIMIZER, f"optimizer.state.clear(); {OPTIMIZER}", says="weights")
wrong("setting small weights to zero as well", "others",
      "(masks)",
      "(masks)\n    for group in optimizer.param_groups:\n        for parameter in "
      'group["params"]: parameter.data[parameter.data.abs() < 0.7] = 0', says="weights")
wrong("replacing NaN with 0 in all weights", "others",
      "(masks)", "(masks)\n    for parameter in masks: parameter.data.nan_to_num_()")
wrong("treating every weight that is 0 as pruned", "others",
      OPTIMIZER, "now = {p: m & (p != 0) for p, m in masks.items()}; " + OPTIMIZER,
      "(masks)", "(now)")
wrong("moving the weights to new memory", "same",
      "zero(masks)",
      "for parameter, mask in masks.items(): parameter.data = parameter.data.masked_fill(~mask, "
      "0)")
wrong("assuming that each row is contiguous in memory", "zeros",
      "zero(masks)",
      "for parameter, mask in masks.items(): "
      "parameter.data.reshape(-1).masked_fill_(~mask.reshape(-1), 0)")
wrong("replacing the parameters in the optimizer", "same",
      "(masks)",
      '(masks)\n    for group in optimizer.param_groups: group["params"] = '
      '[torch.nn.Parameter(p.detach().clone()) for p in group["params"]]')
wrong("clearing the gradients as well", "left", "(masks)", "(masks); optimizer.zero_grad()")
wrong("setting the gradients of pruned weights to zero as well", "left",
      OPTIMIZER,
      "for parameter, mask in masks.items():\n        if parameter.grad is not None: "
      "parameter.grad.masked_fill_(~mask, 0)\n    optimizer.step")
wrong("inverting the masks in place", "left",
      "zero(masks)",
      "for parameter, mask in masks.items(): parameter.data.masked_fill_(mask.logical_not_(), 0)")
wrong("changing a setting of the optimizer", "left",
      "(masks)", '(masks)\n    for group in optimizer.param_groups: group["weight_decay"] = 0.01')
