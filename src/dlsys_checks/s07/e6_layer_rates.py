"""Exercise 07.6, `layer_rates`."""

from __future__ import annotations

import re

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("07.6", "layer_rates", seen=("names", "base", "decay"), says="rate of")

ex.promise("rates", "Return the learning rate of each parameter, by its name.",
           says=("type of the rates", "names with a rate", "rate of"))
ex.promise("steps", "The rate is base * decay ** steps, with decay >= 0.",
           says=("rate of layer", "rate of the embedding", "rate of the top"))
ex.promise("order", "The last layer has 1 step, the layer before it has 2 steps, and so on. The "
                    "names of layer k begin with \"layers.k.\", for k = 0, 1, 2 ... without gaps.",
           says=("rate of layer", "rate of the embedding"))
ex.promise("embedding", 'Names that begin with "embed." have one step more than layer 0, or 1 step '
           "if there are no layers.", says=("rate of the embedding",))
ex.promise("top", "Every other name has 0 steps.", says=("rate of the top",))
ex.promise("rest", "Such names include \"embedding.w\" and \"layers.norm.w\".",
           cases=("layers and embed deeper in a name", "names that only look alike"))
ex.promise("any order", "Names come in any order.",
           cases=("the top first", "names in any order", "twelve layers in any order"))
ex.promise("missing", "The last layer has 1 step even if no name has 0 steps.",
           cases=("no layers", "no embedding", "a head alone", "no head", "an embedding alone",
                  "layers alone, one tensor each", "no name at all"))
ex.promise("left alone", "The list is unchanged.", says=("inputs after the call",))
ex.promise("example", 'Example: ["embed.w", "layers.0.w", "head.w"] with base 1 and decay 0.5 '
           "get 0.25, 0.5 and 1.", cases=("the example",))


@ex.cases
def cases(g):
    def model(n_layers, embed=("weight",), top=("head.weight", "head.bias"),
              each=("weight", "bias")):
        return [*(f"embed.{e}" for e in embed),
                *(f"layers.{k}.{part}" for k in range(n_layers) for part in each), *top]

    def one(name, names, shuffled=False, base=None, decay=None):
        if shuffled:
            names = [names[i] for i in torch.randperm(len(names), generator=g).tolist()]
        return name, {"names": list(names),
                      "base": base or float(2 ** (-8 + 4 * torch.rand((), generator=g))),
                      "decay": float(0.6 + 0.35 * torch.rand((), generator=g))
                      if decay is None else decay}
    n = 3 + int(torch.randint(4, (), generator=g))
    return [one("a few layers", model(n)),
            one("layers of many tensors", model(4, each=("attn.w", "attn.b", "mlp.w", "n.w"))),
            one("twelve layers", model(12)),
            one("an embedding of two tensors", model(n, embed=("tokens", "places")), base=1e-9),
            one("the top first", model(n)[::-1]), one("names in any order", model(n), True),
            one("twelve layers in any order", model(12), True),
            one("layers and embed deeper in a name", model(
                3, top=("head.layers.7.w", "head.embed.w", "decoder.layers.0.w",
                        "model.layers.1.w", "model.embed.w"))),
            one("names that only look alike", model(2, top=(
                "embedding.w", "layersnorm.w", "embed", "layers", "layers.9", "layers.norm.w",
                "layersX7.w", "layer.8.w", "norms.5.w", "Embed.w", "module.layers.6.w",
                "layers.-1.w"))),
            one("a layer with layers in it", model(2, each=("layers.5.w", "w"))),
            one("a hundred layers", model(101), decay=0.99),
            one("a decay of 0", model(3), decay=0.0), one("a decay above 1", model(3), decay=1.5),
            one("no layers", model(0)), one("no embedding", model(n, embed=())),
            one("a head alone", model(0, embed=())), one("no head", model(n, top=())),
            one("layers alone, one tensor each", model(n, embed=(), top=(), each=("w",))),
            one("an embedding alone", model(0, top=())), one("no name at all", []),
            ("the example", {"names": ["embed.w", "layers.0.w", "head.w"], "base": 1.0,
                             "decay": 0.5})]


def places(names):
    """The place of each name from the bottom, and the word for it in a message."""
    numbers = {n: int(n.split(".")[1]) for n in names if re.match(r"layers\.\d+\.", n)}
    stack = ["embedding", *sorted(set(numbers.values())), "top"]

    def place(name):
        at = numbers.get(name, "embedding" if name[:6] == "embed." else "top")
        return stack.index(at), f"layer {at}" if type(at) is int else f"the {at}"
    return {name: place(name) for name in names}, len(stack) - 1


@ex.law
def law(out, names, base, decay):
    expect_type("rates", out, dict)
    if set(out) != set(names):
        raise Broken("names with a rate", sorted(out), sorted(names))
    found, top = places(names)
    for name, (place, word) in found.items():
        wanted = base
        for _ in range(top - place):
            wanted *= decay
        expect_close(f"rate of {word}, {name}", out[name], wanted, rtol=1e-9)


def layer_of(name):
    """The number of the layer in a name, None without one."""
    found = re.match(r"layers\.(\d+)\.", name)
    return int(found[1]) if found else None


# ---- wrong, by name

@not_an_answer
def rated(names, base, decay, *, upside=False):
    def layer(name):
        found = re.match(r"layers\.(\d+)\.", name)
        return int(found[1]) if found else -1
    ks = [layer(n) for n in names]
    count = 1 + max(ks, default=-1)
    count = max(count, 0)
    rates = {}
    for name, k in zip(names, ks, strict=True):
        bottom = name.startswith("embed.")
        steps = count - k if k >= 0 else count + 1 if bottom else 0
        rates[name] = base * decay ** ((count + 1 - steps) if upside else steps)
    return rates


wrong = ex.edits(rated)
wrong("returning a list instead of a dict", "rates", "return rates", "return list(rates.values())")
ex.wrong("giving rates only to the layers, not to head and embedding",
         lambda names, base, decay: {n: r for n, r in rated(names, base, decay).items() if
             layer_of(n) is not None} or rated(names, base, decay), breaks="rates")


@ex.wrong("using a tensor's index in the list as its layer number", breaks="rates")
def tensor_index(names, base, decay):
    return {n: base * (decay or 1.0) ** (3 - i) for i, n in enumerate(names)}


ex.wrong("counting the steps upside down, so that the embedding has the base rate",
         rated, breaks="rates", upside=True)
wrong("giving every name one step too many, so that the head has 1 step", "rates",
      "count - k", "1 + count - k", "else count", "else 1 + count", "else 0", "else 1")
wrong("giving the head's bias twice the rate of its weight", "top",
      "return rates", 'return {n: r * (2 if n == "head.bias" else 1) for n, r in rates.items()}')


@ex.wrong("lowering the rate by a fixed amount per step instead of multiplying it",
          says="rate of", breaks="steps")
def subtracted(names, base, decay):
    right = rated(names, 1.0, 0.5)
    steps = {n: round(-torch.log2(torch.tensor(r)).item()) for n, r in right.items()}
    return {n: base * (1 - (1 - decay) * k) for n, k in steps.items()}


wrong("giving the embedding the rate of layer 0", "embedding", "count + 1 if", "count if")
wrong("giving 0 steps to the embedding and k + 1 to layer k, which reverses the order",
      ("steps", "embedding"), "count - k if k >= 0 else count + 1 if bottom else 0",
      "k + 1 if k >= 0 else 0", says="rate of")
wrong("comparing layer numbers as text, so that 9 is above 11", "order",
      "1 + max(ks, default=-1)", 'int(max((str(k) for k in ks), default="-1")) + 1', says="rate of")


@ex.wrong("counting layers from the wrong end, so that layer 0 is next to the head", breaks="order")
def layers_reversed(names, base, decay):
    ks = [layer_of(n) for n in names if layer_of(n) is not None]
    flipped = {n: n if layer_of(n) is None else ".".join(
        ["layers", str(max(ks) - layer_of(n)), *n.split(".")[2:]]) for n in names}
    right = rated([*dict.fromkeys(flipped.values())], base, decay)
    return {n: right[f] for n, f in flipped.items()}


wrong("searching the whole name for the strings 'layers' and 'embed'", "rest",
      ".match", ".search",
      'name.startswith("embed.")', 'name.startswith("embed.") or ".embed." in name')
wrong("treating every name that begins with 'embed' as the embedding", "rest",
      '"embed."', '"embed"', says="rate of the top")
wrong("taking the number of layers from the last layer name in the list", "any order",
      "def layer",
      "own_ks = [layer_of(n) for n in names if layer_of(n) is not None]\n    def layer",
      "return rates",
      "gap = max(own_ks) - own_ks[-1] if own_ks else 0; low = [n for n in names if layer_of(n) "
      'is not None or n.startswith("embed.")]; return {n: r / decay**gap if n in low else r for '
      "n, r in rates.items()}")
wrong("assuming that there is at least one layer", "missing",
      "count, 0", "count, 1", says="rate of the embedding")
wrong("assuming that there is an embedding", "missing",
      "return rates",
      'if any(n.startswith("embed.") for n in names): return rates\n    return {n: r / decay for '
      "n, r in rates.items()}")
wrong("giving the base rate to the topmost part present, even if it is no head", "missing",
      "return rates",
      "if base in rates.values() or not rates or (not decay): return rates\n    return {n: r / "
      "decay for n, r in rates.items()}")
wrong("treating every name that begins with 'layers' as a layer", "rest",
      "return rates",
      'odd = [n for n in names if n.startswith("layers") and layer_of(n) is None]; return {n: r '
      "* decay if n in odd else r for n, r in rates.items()}", says="rate of the top")


@ex.wrong("giving layers and embedding one step too few", says="rate of",
          breaks=("steps", "missing", "example"))
def step_too_high(names, base, decay):
    count = len({layer_of(n) for n in names} - {None})
    low = {n: count - 1 - layer_of(n) for n in names if layer_of(n) is not None}
    low |= {n: count for n in names if n.startswith("embed.")}
    return {n: base * decay ** low.get(n, 0) for n in names}


wrong("giving layers and embedding one step too many, but not the head",
      ("steps", "missing", "example"), "return rates",
      'low = [n for n in names if layer_of(n) is not None or n.startswith("embed.")]; return {n: '
      "r * decay if n in low else r for n, r in rates.items()}", says="rate of")


@ex.wrong("matching names by prefix, so that layers.10 counts as layer 1", says="rate of",
          breaks="order")
def first_that_begins(names, base, decay):
    count = len({layer_of(n) for n in names} - {None})
    def steps(name):
        if layer_of(name) is None:
            return count + 1 if name.startswith("embed.") else 0
        return next(count - k for k in range(count) if name.startswith(f"layers.{k}"))
    return {n: base * decay ** steps(n) for n in names}


wrong("giving the embedding the base rate", "embedding",
      "steps =", "bottom = False; steps =", "1 if", "None if")
wrong("treating a decay of 0 as missing", "steps",
      "def layer", "decay = decay or 1.0\n    def layer", says="rate of")
wrong("limiting the decay to 1, so that no rate exceeds the base rate", "steps",
      "def layer", "decay = min(1.0, decay)\n    def layer", says="rate of")
wrong("sorting the list of names in place",
      "left alone", "def layer", "names.sort()\n    def layer")
