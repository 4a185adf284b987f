"""Exercise 05.4, `gain_for`."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("05.4", "gain_for", seen=("kinds", "numbers", "as_module"), within=0.02,
              says="gain of")

ex.promise_table("""
gain          | Return the gain with which act keeps the size of a layer's signal. | gain of
second moment | For z from N(0, 1), gain**2 times the mean of act(z)**2 is 1. | gain of
precision     | The result is within 2 % of that gain. | gain of
any act       | Args: act: an element-wise function or nn.Module. | case a module; a module with a
                weight; a module in place
in place      | The function gets float32 and may write into its input. | case a module in place; a
                function in place
any scale     | The outputs can be as small as 1e-12 or as large as 1e12. | case a tiny output; a
                huge output
float         | Returns: A Python float. | type of the gain
no graph      | Do not build a graph. | graphs built
left          | Do not change act or set a seed. You may draw random numbers. | that the call
                changed; set a seed
example       | Example: the identity has gain 1, and ReLU has gain 1.414. | case the example
""")


@ex.cases
def cases(g):
    def near(low, high):
        return round(low + (high - low) * float(torch.rand((), generator=g)), 3)

    def one(name, *kinds, numbers=None, as_module=False):
        return name, {"kinds": list(kinds), "as_module": as_module,
                      "numbers": numbers or [near(0.5, 2.0) for _ in kinds]}

    return [one("ReLU times a number", "relu"), one("tanh of a multiple", "tanh"),
            one("a sigmoid, whose mean is not zero", "sigmoid"),
            one("a shifted one", "shift", numbers=[near(1.0, 3.0)]),
            one("a negative one", "negative", numbers=[near(1.0, 3.0)]),
            one("a leaky one", "leaky", numbers=[near(0.1, 0.9)]),
            one("an even one", "absolute"), one("a squared one", "squared"),
            one("GELU, SiLU and softplus in turn", "gelu", "silu", "softplus"),
            one("a module", "relu", "tanh", "sigmoid", numbers=[1.0] * 3, as_module=True),
            one("a module with a weight", "prelu", numbers=[near(0.1, 0.9)], as_module=True),
            one("a module in place", "relu_", numbers=[1.0], as_module=True),
            one("a function in place", "tanh_", numbers=[1.0]),
            one("a tiny output", "tanh", "scaled", numbers=[near(1, 2), near(1, 9) * 1e-12]),
            one("a huge output", "scaled", numbers=[near(1, 9) * 1e12]),
            one("the example", "identity", "relu", numbers=[1.0, 1.0])]


@ex.act
def act(fn, kinds, numbers, as_module):
    functions = {
        "relu": lambda z, a: a * z.relu(), "tanh": lambda z, a: torch.tanh(a * z),
        "sigmoid": lambda z, a: torch.sigmoid(a * z), "shift": lambda z, a: torch.tanh(z) + a,
        "negative": lambda z, a: -a * z.relu(), "leaky": lambda z, a: torch.where(z > 0, z, a * z),
        "absolute": lambda z, a: (a * z).abs(), "gelu": lambda z, a: a * F.gelu(z),
        "silu": lambda z, a: a * F.silu(z), "softplus": lambda z, a: a * F.softplus(z),
        "tanh_": lambda z, a: z.tanh_(), "scaled": lambda z, a: a * z, "identity": lambda z, a: z,
        "squared": lambda z, a: a * z.relu() ** 2}
    modules = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid,
               "relu_": lambda: nn.ReLU(inplace=True)}
    gains, graphs, changed, seeded, states = [], [], 0, 0, []
    seed, start = torch.initial_seed(), torch.get_rng_state()
    for kind, number in zip(kinds, numbers, strict=True):
        if kind == "prelu":
            unit = nn.PReLU(init=number)
        elif as_module:
            unit = modules[kind]()
        else:
            unit = lambda z, kind=kind, number=number: functions[kind](z, number)  # noqa: E731
        if as_module:
            unit.register_forward_hook(lambda m, given, out: graphs.append(out.requires_grad))
            before = [p.detach().clone() for p in unit.parameters()]
        gains.append(fn(unit))
        states.append(torch.get_rng_state())
        # Draws that end where those of the call before did began at a seed.
        again = len(states) > 1 and torch.equal(states[-2], states[-1])
        seeded += torch.initial_seed() != seed or (again and not torch.equal(start, states[-1]))
        if as_module:
            changed += not unit.training
            changed += sum(not p.requires_grad or p.grad is not None or p.dtype != old.dtype
                           or not torch.equal(p, old) for p, old in zip(unit.parameters(), before))
    return {"gains": gains, "graphs": sum(graphs), "changed": changed, "seeded": seeded}


CURVES = {
    "relu": lambda z, a: a * z.clamp(min=0), "tanh": lambda z, a: torch.tanh(a * z),
    "sigmoid": lambda z, a: 1 / (1 + torch.exp(-a * z)), "shift": lambda z, a: torch.tanh(z) + a,
    "negative": lambda z, a: -a * z.clamp(min=0),
    "leaky": lambda z, a: z.clamp(min=0) + a * z.clamp(max=0), "prelu": lambda z, a: (
        z.clamp(min=0) + a * z.clamp(max=0)), "absolute": lambda z, a: a * z.abs(),
    "gelu": lambda z, a: a * z * (1 + torch.erf(z / math.sqrt(2))) / 2,
    "silu": lambda z, a: a * z / (1 + torch.exp(-z)), "softplus": lambda z, a: a * torch.log1p(
        torch.exp(z)), "relu_": lambda z, a: z.clamp(min=0), "tanh_": lambda z, a: torch.tanh(z),
    "scaled": lambda z, a: a * z, "identity": lambda z, a: z,
    "squared": lambda z, a: a * z.clamp(min=0) ** 2}

SHOWN = {"tanh": "tanh({} * z)", "sigmoid": "sigmoid({} * z)", "shift": "tanh(z) + {}",
         "negative": "-{} * relu(z)", "leaky": "leaky ReLU with {}", "prelu": "PReLU with {}",
         "absolute": "|{} * z|", "scaled": "{} * z", "squared": "{} * relu(z) squared"}


def shown(kind, number):
    """What an activation computes, as a message names it."""
    name = kind.rstrip("_")
    return name if number == 1 else SHOWN.get(name, f"{{}} * {name}(z)").format(f"{number:g}")


def exact(kind, number):
    """The gain by the trapezoid rule over +-12 standard deviations, in float64."""
    z = torch.linspace(-12, 12, 2_401, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    moment = torch.trapezoid(density * CURVES[kind](z, number).square(), z)
    return float(moment) ** -0.5


@ex.law
def law(out, kinds, numbers, as_module):
    expect_parts(out, "gains", "graphs", "changed", "seeded")
    expect_length("gains", out["gains"], len(kinds))
    for kind, number, got in zip(kinds, numbers, out["gains"], strict=True):
        expect_type("gain", got, float, "Return a Python number.")
        right = exact(kind, number)
        if not abs(got - right) <= 0.02 * right:
            near = abs(got - right) <= 0.2 * right
            raise Broken(f"gain of {shown(kind, number)}", got, f"{right:.4g} within 2 %",
                         "If you draw random numbers, draw more of them. With a thousand, the "
                         "error is several percent." if near else "")
    expect_equal("graphs built for act's output", out["graphs"], 0)
    expect_equal("modes and parameters of act that the call changed", out["changed"], 0)
    expect_equal("calls that set a seed", out["seeded"], 0,
                 "Draw from the generator as it is.")


# ---- wrong, by name

GRID = torch.distributions.Normal(0.0, 1.0).icdf(
    (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000).float()  # N(0, 1), without luck


@not_an_answer
@torch.no_grad()
def estimated(act):
    out = float(act(GRID.clone()).double().square().mean()) ** (-0.5)
    return out


wrong = ex.edits(estimated)
DOUBLE = "act(GRID.clone()).double().square().mean()"
wrong("setting a seed before the draw", "left",
      "out =", "torch.manual_seed(0); out =", "GRID", "torch.randn(1_000_000)", says="set a seed")
wrong("using ReLU's gain for every activation", "gain", "return out", "return math.sqrt(2)")
wrong("using Xavier's default gain of 1 for every activation",
      ("gain", "example"), "return out", "return 1.0")
wrong("using the variance instead of the mean square", "second moment",
      DOUBLE, "act(GRID.clone()).double().var()")
wrong("using the squared mean of |act(z)| instead of the mean of act(z)**2", "second moment",
      DOUBLE, "act(GRID.clone()).double().abs().mean()**2")
wrong("returning the gain squared", "second moment", "return out", "return out**2")
wrong("returning the inverse of the gain",
      "second moment", "return out", "return 1 / out")
wrong("drawing z uniformly from -1 to 1", "second moment",
      "GRID", "torch.linspace(-1, 1, 20_001)")
wrong("returning one divided by act's slope at zero", "gain",
      "out = float(act(GRID.clone()).double().square().mean()) ** (-0.5)\n    return out",
      "with torch.no_grad(): low, high = act(torch.tensor([-1e-2])).item(), "
      "act(torch.tensor([1e-2])).item()\n    return 2e-2 / max(abs(high - low), 1e-30)")
wrong("drawing only a hundred samples, too few for an error below 2 %", "precision", "GRID",
      "torch.randn(100)")
wrong("drawing only a thousand samples, too few for an error below 2 %", "precision", "GRID",
      "torch.randn(1_000)")
wrong("ending the integral at three standard deviations", "gain",
      "out =",
      "z = torch.linspace(-3, 3, 6001); weight = torch.exp(-z.square() / 2); h = "
      "act(z.clone()).double(); out =", DOUBLE, "(weight * h ** 2).sum() / weight.sum()",
      says="relu(z) squared")
wrong("drawing only samples above zero", "gain", "GRID", "GRID.abs()")
wrong("looking up the gain by the name of act's class", "any act",
      "out =",
      "if isinstance(act, nn.Module): return nn.init.calculate_gain(type(act).__name__.lower())\n"
      "    out =", says="gain of tanh")
wrong("adding 1e-12 to the mean square", "any scale", DOUBLE, DOUBLE + " + 1e-12")
wrong("computing in half precision, which loses tiny outputs and overflows on huge ones",
      "any scale",
      "return out", "return act(GRID.clone()).half().double().square().mean().rsqrt().item()")
wrong("comparing z with act(z) after act has overwritten z", "in place",
      "out = float(act(GRID.clone()).double().square().mean()) ** (-0.5)",
      "z = GRID.clone(); h = act(z); out = (z.double().square().mean() / "
      "h.double().square().mean()).sqrt().item()")
wrong("returning a tensor instead of a number", "float", "return out", "return torch.tensor(out)")
ex.wrong("building a graph through act's weights",
         lambda act: act(GRID.clone()).double().square().mean().item() ** -0.5,
         breaks="no graph")
wrong("leaving a module in eval mode", "left",
      "out =", "if isinstance(act, nn.Module): act.eval()\n    out =",
      says="of act that the call changed")
