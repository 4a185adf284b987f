"""A scalar graph stepped forward and backward, in the right order and in a hasty one."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from dlsys_helpers.explorers import Choice, Graph, Grip, Lines, Slider, explorer

INPUTS = {"x": 1.5, "b": 0.25, "y": 1.0}  # w is a control
REACH = 2  # the loss is drawn for w from -REACH to REACH


class Op(NamedTuple):
    """One operation: its formula for the reader, where it takes its inputs, what it computes."""

    formula: str
    parents: tuple[str, ...]
    compute: Callable
    keeps: str


OPS = {"a": Op("w·x", ("w", "x"), torch.mul, "w and x"),
       "s": Op("a + b", ("a", "b"), torch.add, "nothing"),
       "h": Op("tanh s", ("s",), torch.tanh, "h itself"),
       "o": Op("a + h", ("a", "h"), torch.add, "nothing"),
       "e": Op("o − y", ("o", "y"), torch.sub, "nothing"),
       "L": Op("e²", ("e",), torch.square, "e")}
# Label, column and row of every node; inputs are at the top.
PLACES = {"w": ("w", 0, 0), "x": ("x", 1, 0), "b": ("b", 2, 0), "y": ("y", 3, 0),
          "a": ("a = w·x", 0.5, 1), "s": ("s = a + b", 1.5, 2), "h": ("h = tanh s", 1.5, 3),
          "o": ("o = a + h", 1, 4), "e": ("e = o − y", 2, 5), "L": ("L = e²", 2, 6)}
NAMES = list(PLACES)
USES = {name: sum(name in op.parents for op in OPS.values()) for name in NAMES}
# Who reports when: `a` is used by s and by o, so it must wait for both.
ORDERS = {"after all its uses": "Leohsa", "when first reached": "Leoahs"}
LAST = 2 * len(OPS)


def values_at(w):
    """Value of every node, float64, at this w."""
    value = {"w": torch.tensor(float(w), dtype=torch.float64)}
    value |= {name: torch.tensor(v, dtype=torch.float64) for name, v in INPUTS.items()}
    for name, op in OPS.items():
        value[name] = op.compute(*(value[p] for p in op.parents))
    return value


def slopes(name, value):
    """Slope of one operation by each of its inputs, by autograd."""
    op = OPS[name]
    inputs = [value[p].clone().requires_grad_() for p in op.parents]
    return [float(s) for s in torch.autograd.grad(op.compute(*inputs), inputs)]


def backward(value, order, reports):
    """Gradients after some reports, the names that reported, and uses still open by name."""
    grad, waiting = dict.fromkeys(NAMES, 0.0) | {"L": 1.0}, dict(USES)
    done = ORDERS[order][:reports]
    for name in done:
        for parent, slope in zip(OPS[name].parents, slopes(name, value), strict=True):
            grad[parent] += slope * grad[name]
            waiting[parent] -= 1
    return grad, done, waiting


def true_slope(w):
    """dL/dw by autograd through the whole graph."""
    w = torch.tensor(float(w), dtype=torch.float64, requires_grad=True)
    known = {"w": w, **{k: torch.tensor(v, dtype=torch.float64) for k, v in INPUTS.items()}}
    for name, op in OPS.items():
        known[name] = op.compute(*(known[p] for p in op.parents))
    return float(torch.autograd.grad(known["L"], w)[0])


def text(number):
    """Three decimals with a real minus sign, never minus zero."""
    return f"{number:z.3f}".replace("-", "\N{MINUS SIGN}")


def told_forward(step, value):
    if step == 0:
        return "Only the inputs are known. Each step forward computes one node."
    name = list(OPS)[step - 1]
    op = OPS[name]
    return (f"Forward: {name} = {op.formula} = {text(value[name])}. "
            f"Kept for its slope: {op.keeps}.")


def state_of(name, step, done, waiting):
    """0: nothing known, 1: the value, 2: a part of the gradient, 3: the gradient."""
    if name in list(OPS)[step:]:
        return 0
    if not done or waiting[name] == USES[name] > 0:
        return 1
    return 2 if waiting[name] else 3


def told_backward(w, grad, done, waiting):
    name = done[-1]
    parents = " and ".join(OPS[name].parents)
    said = f"Backward: {name} reports {text(grad[name])}, times its slopes, to {parents}."
    if waiting[name]:
        said = (f"Backward: {name} reports {text(grad[name])} too early, with a use still to "
                f"come; {parents} hear no more of it.")
    elif waiting["a"] == 1:
        said += " a is used twice and has heard from one use."
    if len(done) == len(OPS):
        said += f" dL/dw is {text(grad['w'])} by these steps; in truth {text(true_slope(w))}."
    return said


@explorer(
    title="Forward and backward through one graph",
    controls=[
        Slider("step", "Step: 6 forward, 6 back", range(LAST + 1), LAST),
        Choice("order", "A node reports", ORDERS, "after all its uses"),
        Slider("w", "w", [-1.5, -1, -0.5, 0, 0.5, 1], -0.5),
    ],
    views=[
        Graph(title="= value, ∂ gradient of L", nodes=list(PLACES.values()),
              edges=[(NAMES.index(p), NAMES.index(k)) for k, op in OPS.items()
                     for p in op.parents],
              value="value", grad="grad", state="state", active="active"),
        Lines("w_axis", {"loss": "L", "tangent": "slope so far"}, xlabel="w", ylabel="L",
              title="The loss and the slope that backward found", xlim=(-REACH, REACH),
              ylim=(-6, 24), mark="w_now", grips=[Grip("w", x=float)]),
    ],
)
def scalar_graph(step, order, w):
    """The graph after some steps, and the tangent that dL/dw stands for."""
    value = values_at(w)
    grad, done, waiting = backward(value, order, max(0, step - len(OPS)))
    told = told_backward(w, grad, done, waiting) if done else told_forward(step, value)
    at_work = done[-1:] or list(OPS)[:step][-1:]
    axis = torch.linspace(-REACH, REACH, 41, dtype=torch.float64)
    return {"value": [value[name] for name in NAMES], "grad": [grad[name] for name in NAMES],
            "state": [state_of(name, step, done, waiting) for name in NAMES],
            "active": [name in at_work for name in NAMES], "w_axis": axis, "w_now": [w],
            "loss": [values_at(v)["L"] for v in axis.tolist()],
            "tangent": value["L"] + grad["w"] * (axis - w)}, told
