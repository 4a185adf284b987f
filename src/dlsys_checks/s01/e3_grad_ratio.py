"""Exercise 01.3, `grad_ratio`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.acting import same
from dlsys_helpers.expect import Broken, expect_close, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("01.3", "grad_ratio", seen=("layers", "held", "calls", "x", "y"), kept=("after",),
              says="divided by the last Linear's")

ex.promise("ratio", "Divide the first Linear's gradient norm by the last Linear's.",
           says=("divided by the last Linear's",))
ex.promise("layers", "Args: model: its Linears are all direct children. The model can "
                     "also have other layers.",
           cases=("a gain before the first Linear", "a matrix that is not a Linear",
                  "layers after the last Linear", "a convolution between the Linears", "a bare "
                                                                                       "stack"))
ex.promise("loss", "x: float32; model(x) has the shape (N, C). y: (N,) int64, the classes. The "
                   "loss is the mean cross-entropy.", says=("divided by the last Linear's",))
ex.promise("held gradients", "Gradients that the model already holds must not count.",
           cases=("gradients left over from before", "the third call in a row"))
ex.promise("tiny", "Both norms can be tiny, so add no constant to either.",
           cases=("tiny inputs",))
ex.promise("weights", "The weights must not change.", says=("weights after the call",))
ex.promise("biases", "Returns: The ratio of the two gradient norms, as a float. The norms "
                     "cover the weights but not the biases.",
           says=("divided by the last Linear's",))
ex.promise("example", "Example: a model with a single Linear gives 1.0.",
           cases=("a single Linear",))


@ex.cases
def cases(g):
    number = integers(g)

    def linear(i, o, scale, bias=True):
        return {"kind": "linear", "weight": scale * torch.randn(o, i, generator=g) / i**0.5,
                "bias": 0.3 * torch.randn(o, generator=g) if bias else None}

    def stack(sizes, scale, between, bias=True):
        layers = []
        for i, o in zip(sizes, sizes[1:]):
            layers += [linear(i, o, scale, bias), {"kind": between}]
        return layers[:-1]

    def own(kind, *shape):
        return {"kind": kind, "weight": 0.6 + torch.rand(shape, generator=g)}

    def one(name, sizes, scale=1.0, between="tanh", front=(), back=(), rows=None, held=0.0,
            calls=1, bias=True, size=1.0):
        rows = rows or number(5, 12)
        layers = [*front, *stack(sizes, scale, between, bias), *back]
        return name, {"layers": layers, "held": held, "calls": calls,
                      "x": size * torch.randn(rows, sizes[0], generator=g),
                      "y": torch.randint(sizes[-1], (rows,), generator=g)}

    def sizes(count):
        return [number(3, 8) for _ in range(count)]

    def loud(name):
        """Drawn again while every row is right beyond doubt: then no gradient is left."""
        while True:
            name, inputs = one(name, sizes(5), scale=6.0, between="relu")
            if min(weight_norms(*(inputs[key] for key in ("layers", "x", "y")))) > 1e-2:
                return name, inputs
    few, four = sizes(3), sizes(4)
    matrix = own("matrix", few[0], few[0])
    gain, end = own("gain", four[0]), own("gain", four[-1])
    around = own("matrix", few[-1], few[-1])
    return [one("three layers", sizes(4)), one("two layers without bias", sizes(3), bias=False),
            one("gradients left over from before", sizes(3), held=0.2),
            one("the third call in a row", sizes(4), calls=3),
            one("a gain before the first Linear", four, front=[gain], back=[end]),
            one("a matrix that is not a Linear", few, front=[matrix], back=[around]),
            one("layers after the last Linear", sizes(4), between="sigmoid",
                back=[{"kind": "tanh"}]),
            one("a convolution between the Linears", sizes(3), between="conv", scale=1.5),
            one("a bare stack", sizes(4), between="tanh", front=[{"kind": "tanh"}]),
            one("a nearly silent first layer", sizes(7), scale=0.7, between="sigmoid"),
            loud("a first layer louder than the last"),
            one("tiny inputs", sizes(3), bias=False, size=1e-12),
            one("one row", sizes(4), rows=1), one("a single Linear", sizes(2))]


@ex.act
def act(fn, layers, held, calls, x, y):
    class Gain(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = nn.Parameter(weight.clone())

        def forward(self, x):
            return x * self.weight

    class Matrix(Gain):
        def forward(self, x):
            return x @ self.weight.T

    class Conv(nn.Conv1d):
        def forward(self, x):
            return super().forward(x[:, None])[:, 0].tanh()

    def made(kind, weight=None, bias=None):
        if kind == "linear":
            layer = nn.Linear(*weight.T.shape, bias=bias is not None)
            layer.weight = nn.Parameter(weight.clone())
            if bias is not None:
                layer.bias = nn.Parameter(bias.clone())
            return layer
        if kind in ("gain", "matrix"):
            return {"gain": Gain, "matrix": Matrix}[kind](weight)
        return {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "relu": nn.ReLU,
                "conv": lambda: Conv(1, 1, 1)}[kind]()

    model = nn.Sequential(*[made(**layer) for layer in layers])
    for layer in model:
        if isinstance(layer, Conv):
            nn.init.constant_(layer.weight, 0.9)
            nn.init.constant_(layer.bias, 0.1)
    for p in model.parameters() if held else ():
        p.grad = torch.full_like(p, held)
    for earlier in range(1, calls):
        fn(model, x.roll(earlier, 0), y)
    ratio = fn(model, x, y)
    after = [[m.weight, m.bias] for m in model if isinstance(m, nn.Linear)]
    return {"ratio": ratio, "after": after}


# The value of each layer without weights, and its slope from that value.
CURVES = {"tanh": (torch.tanh, lambda a: 1 - a**2), "sigmoid": (torch.sigmoid, lambda a: a - a**2),
          "relu": (torch.relu, lambda a: (a > 0).double()),
          "conv": (lambda h: torch.tanh(0.9 * h + 0.1), lambda a: 0.9 * (1 - a**2))}


def forward(layer, h):
    """A layer's output by hand, in float64."""
    kind = layer["kind"]
    if kind in CURVES:
        return CURVES[kind][0](h)
    weight = layer["weight"].double()
    if kind == "gain":
        return h * weight
    return h @ weight.T + (0 if layer.get("bias") is None else layer["bias"].double())


def weight_norms(layers, x, y):
    """Norms of the Linears' weight gradients by the chain rule, by hand, in float64."""
    values = [x.double()]
    for layer in layers:
        values.append(forward(layer, values[-1]))
    delta = (values[-1].softmax(1) - F.one_hot(y, values[-1].shape[1])) / len(y)
    norms = []
    for layer, before, value in reversed(list(zip(layers, values, values[1:]))):
        if layer["kind"] in CURVES:
            delta = delta * CURVES[layer["kind"]][1](value)
            continue
        if layer["kind"] == "linear":
            norms.insert(0, float((delta.T @ before).norm()))
        weight = layer["weight"].double()
        delta = delta * weight if layer["kind"] == "gain" else delta @ weight
    return norms


@ex.law
def law(out, layers, held, calls, x, y):
    expect_parts(out, "ratio", "after")
    linears = [layer for layer in layers if layer["kind"] == "linear"]
    expect_length("weights after the call", out["after"], len(linears))
    for place, (got, layer) in enumerate(zip(out["after"], linears, strict=True)):
        if not same(got, [layer["weight"], layer["bias"]]):
            raise Broken("weights after the call", f"a change in Linear {place}", "no change",
                         "A measurement must not train the model.")
    norms = weight_norms(layers, x, y)
    expect_close("first Linear's weight-gradient norm divided by the last Linear's", out["ratio"],
                 norms[0] / norms[-1], rtol=1e-3,
                 look=f"The two norms are {norms[0]:.4g} and {norms[-1]:.4g}.")


def linear_layers(model):
    return [m for m in model if isinstance(m, nn.Linear)]


def backward(model, x, y):
    F.cross_entropy(model(x), y).backward()


# ---- wrong, by name

def graded(model, x, y, loss=F.cross_entropy):
    """The Linears of a model after the gradients of this loss alone."""
    model.zero_grad()
    loss(model(x), y).backward()
    return linear_layers(model)


def ratio_of(first, last):
    return (first.norm() / last.norm()).item()


@not_an_answer
def ratio(model, x, y):
    linears = graded(model, x, y)
    return ratio_of(linears[0].weight.grad, linears[-1].weight.grad)


wrong = ex.edits(ratio)
GRADED = "graded(model, x, y)"
RATIO_OF = "ratio_of(linears[0].weight.grad, linears[-1].weight.grad)"
wrong("dividing the last Linear's norm by the first Linear's", "ratio",
      "return ratio_of(linears[0].weight.grad, linears[-1].weight.grad)",
      "out = ratio_of(linears[-1].weight.grad, linears[0].weight.grad); return out")
wrong("taking the largest entry instead of the norm", "ratio",
      RATIO_OF, "(linears[0].weight.grad.abs().max() / linears[-1].weight.grad.abs().max()).item()")
wrong("taking the mean absolute entry instead of the norm", "ratio",
      RATIO_OF,
      "(linears[0].weight.grad.abs().mean() / linears[-1].weight.grad.abs().mean()).item()")
wrong("taking the sum of the squares instead of its root", "ratio", RATIO_OF, RATIO_OF + " ** 2")
wrong("taking the root mean square instead of the norm", "ratio",
      "return ratio_of(linears[0].weight.grad, linears[-1].weight.grad)",
      "first, last = (m.weight.grad.square().mean().sqrt() for m in (linears[0], linears[-1])); "
      "return (first / last).item()")
wrong("measuring the weights instead of their gradients", "ratio",
      GRADED, "linear_layers(model)",
      "linears[0].weight.grad, linears[-1].weight.grad", "linears[0].weight, linears[-1].weight")
wrong("dividing each gradient norm by the norm of the layer's weight", "ratio",
      "linears =",
      "first, *_, last = [m.weight.grad.norm() / m.weight.norm() for m in graded(model, x, y)] * "
      "2; return (first / last).item(); linears =")
wrong("taking the second Linear instead of the last", "ratio", "linears[-1]", "linears[:2][-1]")
wrong("rounding the ratio to four decimals, which turns a small ratio into zero", "ratio",
      RATIO_OF, f"round({RATIO_OF}, 4)")


for small in (1e-4, 1e-6, 1e-8, 1e-12):
    @ex.wrong(f"adding {small:g} to the last Linear's norm", small=small,
              breaks="tiny" if small < 1e-5 else ("tiny", "ratio"))
    def with_constant(model, x, y, small):
        linears = graded(model, x, y)
        return (linears[0].weight.grad.norm() / (linears[-1].weight.grad.norm() + small)).item()


wrong("capping the ratio at one", "ratio", RATIO_OF, f"min(1.0, {RATIO_OF})")
wrong("taking the first and the last layer, even if they are not Linears", "layers",
      "linears =",
      GRADED + "; return ratio_of(model[0].weight.grad, model[-1].weight.grad); linears =")
wrong("treating every layer that has a weight as a Linear", "layers",
      "linears =",
      'graded(model, x, y); weights = [m.weight for m in model if hasattr(m, "weight")]; return '
      "ratio_of(weights[0].grad, weights[-1].grad); linears =")
wrong("treating every parameter with two axes as a Linear's weight", "layers",
      "linears =",
      "graded(model, x, y); weights = [p for p in model.parameters() if p.ndim == 2]; return "
      "ratio_of(weights[0].grad, weights[-1].grad); linears =")
wrong("using mean squared error instead of cross-entropy", "loss",
      GRADED, "graded(model, x, y, lambda z, y: F.mse_loss(z, F.one_hot(y, z.shape[1]).float()))")
wrong("passing probabilities to cross-entropy, which applies a second softmax", "loss",
      GRADED, "graded(model, x, y, lambda z, y: F.cross_entropy(z.softmax(1), y))", trap="03.1")
wrong("using the sum of the outputs instead of a loss", "loss",
      GRADED, "graded(model, x, y, lambda z, y: z.sum())")
wrong("using only the first row", "loss", GRADED, "graded(model, x[:1], y[:1])")
wrong("adding the new gradients to old ones that were not cleared", "held gradients",
      "linears =", "backward(model, x, y); linears =", GRADED, "linear_layers(model)", trap="02.1")
wrong("clearing only the first Linear's gradients", "held gradients",
      GRADED, "linear_layers(model); linears[0].zero_grad(); backward(model, x, y)", trap="02.1")
wrong("calling backward only if there is no gradient yet", "held gradients",
      GRADED, "linear_layers(model)\n    if linears[0].weight.grad is None: backward(model, x, y)",
      trap="02.1")
wrong("reading the gradients after zeroing them", ("ratio", "example"),
      "linears =", "backward(model, x, y); model.zero_grad(set_to_none=False); linears =",
      GRADED, "linear_layers(model)", says="got nan")


@ex.wrong("measuring one Adam step instead of the gradient", says="weights after",
          breaks="weights")
def adam_step(model, x, y):
    layers = linear_layers(model)
    before = [m.weight.detach().clone() for m in layers]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer.zero_grad()
    backward(model, x, y)
    optimizer.step()
    moves = [(m.weight - w).norm() for m, w in zip(layers, before)]
    return (moves[0] / moves[-1]).item()


@ex.wrong("taking a step and then undoing it, but not exactly",
          says="weights after", breaks="weights")
@torch.no_grad()
def step_and_back(model, x, y):
    with torch.enable_grad():
        linears = graded(model, x, y)
    ratio = ratio_of(linears[0].weight.grad, linears[-1].weight.grad)
    for m in linears:
        m.weight -= 0.3 * m.weight.grad
        m.weight += 0.3 * m.weight.grad + 1e-6
    return ratio


wrong("including the bias gradient in each norm", "biases",
      "return ratio_of",
      "first, last = ([p.grad.flatten() for p in m.parameters()] for m in (linears[0], "
      "linears[-1])); return ratio_of",
      "linears[0].weight.grad, linears[-1].weight.grad", "torch.cat(first), torch.cat(last)")
wrong("taking the first and the last parameter, although the last one is a bias", "biases",
      "linears =",
      "graded(model, x, y); first, *_, last = [p.grad for p in model.parameters()] * 2; return "
      "ratio_of(first, last); linears =")
wrong("assuming that there are at least two Linears", "example",
      "linears =", "first, *_, last =", "linears[0]", "first", "linears[-1]", "last",
      says="raised ValueError")
