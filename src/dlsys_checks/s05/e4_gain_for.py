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

ex.promise("gain", "The gain that keeps the size of a layer's signal for this activation.",
           says=("gain of",))
ex.promise("second moment", "For z from N(0, 1), gain squared times the mean of act(z) squared is "
           "1,", says=("gain of",))
ex.promise("precision", "within 2 % of the gain.", says=("gain of",))
ex.promise("any act", "act: a function or an nn.Module, element by element;",
           cases=("a module", "a module with a weight", "a module in place"))
ex.promise("in place", "it gets float32, may write into it,",
           cases=("a module in place", "a function in place"))
ex.promise("any scale", "and gives numbers as small as 1e-12 or as large as 1e12.",
           cases=("a tiny output", "a huge output"))
ex.promise("float", "Returns a Python float;", says=("type of the gain",))
ex.promise("no graph", "no graph is built.", says=("graphs built",))
ex.promise("left", "act stays as it is; numbers may be drawn, but no seed is set.",
           says=("after the call", "set a seed"))
ex.promise("example", "Example: 1 for the identity, 1.414 for ReLU.", cases=("the example",))


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
        gains.append(fn(unit))
        states.append(torch.get_rng_state())
        # Draws that end where those of the call before did began at a seed.
        again = len(states) > 1 and torch.equal(states[-2], states[-1])
        seeded += torch.initial_seed() != seed or (again and not torch.equal(start, states[-1]))
        if as_module:
            changed += not unit.training
            changed += sum(not p.requires_grad for p in unit.parameters())
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
            raise Broken(f"gain of {shown(kind, number)}", got, f"{right:.4g} within 2 %")
    expect_equal("graphs built behind act's output", out["graphs"], 0)
    expect_equal("act after the call: modes and requires_grad that changed", out["changed"], 0)
    expect_equal("calls that set a seed", out["seeded"], 0,
                 "Draw from the generator as it stands.")


# ---- wrong, by name

GRID = torch.distributions.Normal(0.0, 1.0).icdf(
    (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000).float()  # N(0, 1), without luck


@not_an_answer
@torch.no_grad()
def estimated(act, *, z=GRID, measure=lambda h: h.square().mean()):
    return float(measure(act(z.clone()).double())) ** -0.5


@ex.wrong("a seed set before the draw", says="set a seed", breaks="left")
def seeded(act):
    torch.manual_seed(0)
    return estimated(act, z=torch.randn(1_000_000))


ex.wrong("ReLU's gain for all", lambda act: math.sqrt(2), breaks="gain")


@ex.wrong("a gain of 1 for all, as Xavier's default", breaks=("gain", "example"))
def always_one(act):
    return 1.0


ex.wrong("the variance instead of the mean square", estimated, breaks="second moment",
         measure=lambda h: h.var())
ex.wrong("the mean of |act(z)|, squared", estimated, breaks="second moment",
         measure=lambda h: h.abs().mean() ** 2)
ex.wrong("gain squared returned", lambda act: estimated(act) ** 2, breaks="second moment")
ex.wrong("the inverse: what act leaves of the signal", lambda act: 1 / estimated(act),
         breaks="second moment")


ex.wrong("uniform numbers from -1 to 1 for z", estimated, breaks="second moment",
         z=torch.linspace(-1, 1, 20_001))


@ex.wrong("the slope at zero", breaks="gain")
def by_slope(act):
    with torch.no_grad():
        low, high = act(torch.tensor([-1e-2])).item(), act(torch.tensor([1e-2])).item()
    return 2e-2 / max(abs(high - low), 1e-30)


ex.wrong("a hundred samples, which scatter", lambda act: estimated(act, z=torch.randn(100)),
         breaks="precision")


@ex.wrong("an integral that ends at three standard deviations", says="relu(z) squared",
          breaks="gain")
@torch.no_grad()
def narrow_integral(act):
    z = torch.linspace(-3, 3, 6001)
    weight = torch.exp(-z.square() / 2)
    h = act(z.clone()).double()
    return float((weight * h ** 2).sum() / weight.sum()) ** -0.5


ex.wrong("samples that are all above zero", estimated, breaks="gain", z=GRID.abs())


@ex.wrong("a table of names", says="gain of tanh", breaks="any act")
def by_table(act):
    if isinstance(act, nn.Module):
        return nn.init.calculate_gain(type(act).__name__.lower())
    return estimated(act)


ex.wrong("a thousandth added under the root", estimated, breaks="any scale",
         measure=lambda h: h.square().mean() + 1e-12)


@ex.wrong("half precision, too coarse for the tiny and too short for the huge", breaks="any scale")
@torch.no_grad()
def in_half(act):
    return act(GRID.clone()).half().double().square().mean().rsqrt().item()


@ex.wrong("z compared with act(z), after act has overwritten it", breaks="in place")
@torch.no_grad()
def ratio_to_input(act):
    z = GRID.clone()
    h = act(z)
    return (z.double().square().mean() / h.double().square().mean()).sqrt().item()


ex.wrong("a tensor instead of a number", lambda act: torch.tensor(estimated(act)), breaks="float")
ex.wrong("a graph behind act's weights",
         lambda act: act(GRID.clone()).double().square().mean().item() ** -0.5,
         breaks="no graph")


@ex.wrong("a module left in eval mode", says="act after the call", breaks="left")
def left_in_eval(act):
    if isinstance(act, nn.Module):
        act.eval()
    return estimated(act)
