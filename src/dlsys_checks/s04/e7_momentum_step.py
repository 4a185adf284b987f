"""Exercise 04.7, `momentum_step`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_checks.s04.common import by_torch, expect_by_hand, expect_manners, expect_paths
from dlsys_helpers.acting import library_calls
from dlsys_helpers.expect import expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("04.7", "momentum_step", by_hand=("SGD",),
              seen=("tables", "grads", "missing", "rates", "momenta", "one_buffer"),
              says="weights after")

ex.promise_table("""
step        | Take one step of SGD with momentum | weights after
in place    | on w, in place, | case a column of a table
torch       | as torch.optim.SGD does. | weights after
by hand     | Write the rule out, without torch.optim. | optimizers of torch.optim
numbers     | Args: w, grad: (N,) float32. | case one value; many values; tiny values; huge values
left alone  | Do not change grad. | the caller's gradient
overwritten | The caller can overwrite grad later. | case one buffer for all gradients
own state   | state: a dict for this weight alone. | case two weights in turn
empty state | It is empty before the first step. | raised KeyError
changes     | lr, momentum: may change from step to step. | case a rate that changes; a momentum
              that changes
None        | If grad is None, neither w nor state changes. | case steps with None; None at first
momentum 0  | Momentum 0 is plain SGD. | case momentum 0
example     | Example: with w 1, rate 0.1, momentum 0.5 and gradients 1 and 0, w becomes 0.9, then
              0.85. | case the example
""")


@ex.cases
def cases(g):
    between = floats(g)
    whole = integers(g)

    def one(name, *, sizes=(), steps=0, columns=1, scale=1.0, change=(), missing=((), ()),
            zeros=(), momentum=None, one_buffer=False):
        sizes, steps = sizes or (whole(2, 6),), steps or whole(9, 14)
        grads = [torch.randn(steps, n, generator=g) * scale for n in sizes]
        for k in zeros:
            grads[0][k] = 0.0 if k % 2 else -0.0
        rates, momenta = [between(0.02, 0.2)] * steps, [between(0.6, 0.95)] * steps
        if momentum is not None:
            momenta = [momentum] * steps
        if "rate" in change:
            rates = [rates[0] * between(0.2, 2) for _ in rates]
        if "momentum" in change:
            momenta = [between(0.5, 0.99) for _ in momenta]
        return name, {"tables": [torch.randn(n, columns, generator=g) * scale for n in sizes],
                      "grads": grads, "missing": [list(missing[i]) for i in range(len(sizes))],
                      "rates": rates, "momenta": momenta, "one_buffer": one_buffer}

    n = whole(2, 6)
    example = {"tables": [torch.ones(1, 1)], "grads": [torch.tensor([[1.0], [0.0]])],
               "missing": [[]], "rates": [0.1, 0.1], "momenta": [0.5, 0.5], "one_buffer": False}
    return [one("a few steps"), one("gradients of zeros", zeros=(1, 4, whole(6, 9))),
            one("60 steps", steps=60), one("momentum 0", momentum=0.0),
            one("steps with None", missing=((1, 4, 5, whole(6, 9)),)),
            one("None at first", missing=((0, 1),)),
            one("a rate that changes", change=("rate",)),
            one("a momentum that changes", change=("momentum",)),
            one("two weights in turn", sizes=(n, n, n + 1)[:whole(2, 4)], missing=((), (), ())),
            one("a column of a table", columns=whole(2, 5)),
            one("one buffer for all gradients", one_buffer=True),
            one("one value", sizes=(1,)), one("many values", sizes=(whole(300, 900),)),
            one("tiny values", scale=1e-9), one("huge values", scale=1e9),
            ("the example", example)]


@ex.act
def act(fn, tables, grads, missing, rates, momenta, one_buffer):
    def plain(value):  # what a state holds, for an exact comparison
        if hasattr(value, "tolist"):
            return value.tolist()
        if isinstance(value, dict):
            return {key: plain(v) for key, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value

    # A column is a view: what is not done in place does not reach its table.
    tables = [table.clone() for table in tables]
    views = [table.shape[1] > 1 for table in tables]
    ws = [t[:, 0] if view else t[:, 0].clone() for t, view in zip(tables, views)]
    others, states = [t[:, 1:].clone() for t in tables], [{} for _ in tables]
    buffers, paths = [torch.empty_like(w) for w in ws], [[] for _ in tables]
    touched = at_none = 0
    with library_calls("SGD") as used:
        for k in range(len(rates)):
            for i, w in enumerate(ws):
                given, now = None, None
                if k in missing[i]:
                    now = plain(states[i])
                else:
                    given = buffers[i].copy_(grads[i][k]) if one_buffer else grads[i][k].clone()
                fn(w, given, states[i], rates[k], momenta[k])
                if given is None:
                    at_none += plain(states[i]) != now
                else:
                    touched += not torch.equal(given, grads[i][k])
                paths[i].append((tables[i][:, 0] if views[i] else w).clone())
    beside = sum(int((t[:, 1:] != o).sum()) for t, o in zip(tables, others))
    return {"paths": [torch.stack(path) for path in paths], "touched": touched,
            "at_none": at_none, "beside": beside, "used": sorted(used)}


@ex.law
def law(out, tables, grads, missing, rates, momenta, one_buffer):
    expect_parts(out, "paths", "touched", "at_none", "beside", "used")
    settings = [{"lr": lr, "momentum": m} for lr, m in zip(rates, momenta, strict=True)]
    expect_by_hand(out["used"])
    expect_paths(out["paths"], [
        by_torch(lambda ps: torch.optim.SGD(ps, lr=0.1), table[:, 0], grad, settings, gaps)
        for table, grad, gaps in zip(tables, grads, missing, strict=True)], tables)
    expect_manners(out)
    expect_equal("calls with None that changed state", out["at_none"], 0,
                 "Return before you touch state.")


# ---- wrong, by name

def sgd(w, grad, state, lr, momentum, *, dampening=0.0, nesterov=False, in_buffer=False):
    """The right step with the mistakes as options."""
    scale = lr if in_buffer else 1.0
    b = momentum * state.get("b", 0) + scale * (1 - dampening) * grad
    state["b"] = b
    move = grad + momentum * b if nesterov else b
    w.sub_(move if in_buffer else lr * move)


@ex.wrong("treating None as a gradient of zeros", breaks="None")
def none_is_zero(w, grad, state, lr, momentum):
    sgd(w, torch.zeros_like(w) if grad is None else grad, state, lr, momentum)


@ex.wrong("clearing the buffer when the gradient is None", breaks="None")
def none_clears(w, grad, state, lr, momentum):
    if grad is None:
        state.clear()
    else:
        sgd(w, grad, state, lr, momentum)


@ex.wrong("letting the buffer fade when the gradient is None, although the weight does not move",
          breaks="None")
def none_fades(w, grad, state, lr, momentum):
    if grad is not None:
        sgd(w, grad, state, lr, momentum)
    elif state:
        state["b"] = momentum * state["b"]


@not_an_answer
def right(w, grad, state, lr, momentum):
    if grad is not None:
        b = momentum * state.get("b", 0) + grad
        state["b"] = b
        w.sub_(lr * b)


wrong = ex.edits(right)
wrong("counting the step in state before checking whether grad is None", "None",
      "if grad", 'state["step"] = state.get("step", 0) + 1\n    if grad',
      says="None that changed state")
wrong("skipping a gradient of zeros as if it were None", "step",
      "grad is not None", "grad is not None and (grad != 0).any()")
wrong("skipping a gradient near zero as if it were None", "numbers",
      "grad is not None", "grad is not None and (grad.norm() > 1e-6 or not (grad != 0).any())")
wrong("clipping gradients to a norm of 100", "numbers",
      "b =", "grad = grad * min(1.0, 100 / (float(grad.norm()) + 1e-30)); b =")
wrong("using the first gradient tensor itself as the buffer and updating it in place",
      ("overwritten", "left alone"),
      "if grad",
      'if grad is not None: state["b"] = state["b"].mul_(momentum).add_(grad) if state else '
      'grad; w.sub_(lr * state["b"])\n    return\n    if grad', says="weights after")
wrong("scaling every gradient except the first by 1 - momentum", "torch",
      "+ grad", "+ (1 - (momentum if state else 0.0)) * grad")
wrong("scaling the gradient by 1 - momentum before adding it", "torch",
      "+ grad", "+ (1 - momentum) * grad")
wrong("using Nesterov's look-ahead", "torch",
      "w.sub_", "move = grad + momentum * b; w.sub_", "lr * b", "lr * move")
wrong("forgetting the buffer between calls", "step",
      "if grad", "if grad is not None: w.sub_(lr * grad)\n    return\n    if grad")
wrong("adding the step instead of subtracting it", "step", "b =", "lr = -lr; b =")
wrong("returning a new tensor and leaving w unchanged", "step",
      "if grad",
      'if grad is None: return w\n    state["b"] = momentum * state.get("b", 0) + grad; return w '
      '- lr * state["b"]\n    if grad')
wrong("replacing w.data, which disconnects a view from its base", "in place",
      "if grad",
      'if grad is not None: state["b"] = momentum * state.get("b", 0) + grad; w.data = w - lr * '
      'state["b"]\n    return\n    if grad')


@ex.wrong("using torch's own optimizer", breaks="by hand")
def by_library(w, grad, state, lr, momentum):
    if grad is None:
        return
    if not state:
        state["opt"] = torch.optim.SGD([w], lr=lr)
    state["opt"].param_groups[0].update(lr=lr, momentum=momentum)
    w.grad = grad.clone()
    state["opt"].step()
    w.grad = None


@ex.wrong("keeping the caller's gradient tensor itself as the buffer", breaks="overwritten")
def keeps_reference(w, grad, state, lr, momentum):
    if grad is None:
        return
    state["b"] = state["b"] * momentum + grad if "b" in state else grad
    w.sub_(lr * state["b"])


@ex.wrong("overwriting the caller's gradient with the buffer", breaks="left alone")
def works_in_gradient(w, grad, state, lr, momentum):
    if grad is None:
        return
    grad.add_(momentum * state.get("b", torch.zeros_like(w)))
    state["b"] = grad.clone()
    w.sub_(lr * grad)


@ex.wrong("keeping one buffer for all weights, outside the state dict", breaks="own state")
def one_memory(w, grad, state, lr, momentum, memory={}):  # noqa: B006
    if grad is None:
        return
    if not state:
        memory[len(w)] = {}
        state["begun"] = True
    sgd(w, grad, memory[len(w)], lr, momentum)


wrong("reading the state dict before anything was written to it", "empty state",
      "if grad",
      'if grad is not None: state["b"] = momentum * state["b"] + grad; w.sub_(lr * state["b"])\n '
      "   return\n    if grad")
wrong("adding lr * grad instead of grad to the buffer, so that a new rate acts too late", "changes",
      "+ grad", "+ lr * grad", "lr * b", "b")
wrong("using the first step's momentum in every step", "changes",
      "b =", 'momentum = state.setdefault("first", momentum); b =')
wrong("using the first step's rate in every step",
      "changes", "b =", 'lr = state.setdefault("first", lr); b =')
wrong("replacing momentum 0 with a default of 0.9", "momentum 0",
      "b =", "momentum = momentum or 0.9; b =")
