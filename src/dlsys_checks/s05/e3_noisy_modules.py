"""Exercise 05.3, `noisy_modules`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("05.3", "noisy_modules", seen=("kind", "x", "scale", "live", "front"))

ex.promise_table("""
result    | Name the modules where two calls to model(x) begin to differ. | names
given     | List a module only if its inputs in the two calls were equal. | names
returned  | Its outputs in the two calls must differ. | names
little    | Even the smallest difference counts. | case noise of a millionth; the last place of one
            number
names     | Return the names in the order of model.named_modules(), with "" for the model itself. |
            names; type of the result
called    | Args: model: each module takes one tensor, does not change it, returns one tensor, and
            is called once per pass, or never. A module that is never called is not listed. | case a
            list of modules; a part that is not called
x         | x: an input that model accepts. | case integers looked up
mode      | Call the model twice, and leave each module in its mode. | names; calls of the model;
            training flags
generator | Set no seed. | names; set a seed
as it was | Leave no hook behind | hooks after
no graph  | and build no graph. | graphs built
example   | Example: return ["", "body"] for a model whose body calls F.dropout. | case the example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, kind, *, scale=1.0, live=False, rows=None):
        x = torch.randn(rows or whole(5, 9), 6, generator=g)
        if kind == "codes":
            x = torch.randint(0, 7, (rows or whole(30, 40),), generator=g)
        return name, {"kind": kind, "x": x, "scale": scale, "live": live, "front": whole(1, 5)}

    return [one("nothing noisy", "quiet"), one("noise, and layers after it", "function"),
            one("two noises in a row", "two"), one("noise inside a block", "block"),
            one("noise of a millionth", "function", scale=1e-6),
            one("a large noise", "function", scale=100.0),
            one("the last place of one number", "last"), one("numbers that change places", "moved"),
            one("noise at the end", "end"), one("one row", "function", rows=1),
            one("a list of modules", "list"), one("a part that is not called", "idle"),
            one("a plain list of dropouts", "plain"),
            one("a dropout set to train mode", "module", live=True),
            one("a dropout in eval mode", "module"), one("a model in train mode", "train"),
            one("integers looked up", "codes"), one("the example", "example")]


@ex.act
def act(fn, kind, x, scale, live, front):
    class Noise(nn.Module):
        """Noise in any mode, as a function without a flag has it; of the size of each number."""

        def forward(self, h):
            return h * (1 + scale * torch.randn(h.shape))

    class Last(nn.Module):
        """In every second call the number nearest to 0 is the next one that float32 holds."""

        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, h):
            self.calls += 1
            low = h.abs() == h.abs().min()
            return torch.where(low, torch.nextafter(h, h + 1), h) if self.calls % 2 else h

    class Moved(nn.Module):
        """Whole numbers in an order of chance: their sum stays."""

        def forward(self, h):
            return (20 * h).round()[:, torch.randperm(h.shape[1])]

    class Block(nn.Module):
        def __init__(self, *parts):
            super().__init__()
            self.parts = nn.ModuleList(parts)

        def forward(self, h):
            for part in self.parts:
                h = part(h)
            return h

    class Own(nn.Module):
        """A linear layer with a call of F.dropout behind."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 40)

        def forward(self, h):
            return nn.functional.dropout(self.linear(h), 0.5)

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.drops, self.linear = [nn.Dropout(0.5)], nn.Linear(6, 40)

        def forward(self, h):
            return self.drops[0](self.linear(h))

    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.spare, self.used = Noise(), nn.Linear(6, 6)

        def forward(self, h):
            return self.used(h)

    def linear(n=6, m=6):
        return nn.Linear(n, m)

    model = {
        "quiet": lambda: nn.Sequential(linear(), nn.Dropout(0.5), nn.ReLU(), linear()),
        "function": lambda: nn.Sequential(*(linear() for _ in range(front)), Noise(), nn.Tanh(),
                                          linear()),
        "two": lambda: nn.Sequential(linear(), Noise(), Noise(), linear()),
        "block": lambda: nn.Sequential(linear(), nn.Sequential(
            linear(), nn.Sequential(nn.Tanh(), Noise()), linear()), linear()),
        "end": lambda: nn.Sequential(linear(), nn.Tanh(), Noise()),
        "last": lambda: nn.Sequential(linear(), nn.Tanh(), Last()),
        "moved": lambda: nn.Sequential(linear(6, 40), Moved()),
        "list": lambda: nn.Sequential(linear(), Block(linear(), Noise(), linear())),
        "idle": lambda: nn.Sequential(Idle(), Own()),
        "plain": lambda: nn.Sequential(linear(), Plain(), nn.ReLU()),
        "module": lambda: nn.Sequential(linear(6, 40), nn.Dropout(0.5), linear(40, 3)),
        "train": lambda: nn.Sequential(linear(6, 40), nn.Dropout(0.5), linear(40, 3)),
        "codes": lambda: nn.Sequential(nn.Embedding(7, 6), Noise(), linear()),
        "example": nn.Sequential}[kind]()
    if kind == "example":
        model.add_module("body", Own())
    model.eval()
    if kind == "train":
        model.train()
    if live:
        model[1].train()
    flags = [m.training for m in model.modules()]
    calls = []
    watch = model.register_forward_hook(lambda m, given, out: calls.append(
        int(out.requires_grad)))

    def hooked():
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    hooks = hooked()
    torch.default_generator.manual_seed(50_311)  # one that no answer sets by chance
    found = [fn(model, given.clone()) for given in (x, x.flip(0))]
    result = {"found": found, "calls": len(calls), "graphs": sum(calls),
              "hooks": hooked() - hooks, "seeded": int(torch.initial_seed() != 50_311),
              "modes": sum(a != m.training for a, m in zip(flags, model.modules()))}
    watch.remove()
    return result


NOISY = {"quiet": [], "two": ["", "1"],
         "block": ["", "1", "1.1", "1.1.1"], "end": ["", "2"], "last": ["", "2"],
         "moved": ["", "1"],
         "list": ["", "1", "1.parts.1"],
         "idle": ["", "1"], "plain": ["", "1"], "train": ["", "1"], "codes": ["", "1"],
         "example": ["", "body"]}


@ex.law
def law(out, kind, x, scale, live, front):
    expect_parts(out, "found", "calls", "graphs", "hooks", "seeded", "modes")
    expect_length("calls of your function", out["found"], 2)
    right = {"module": ["", "1"] if live else [], "function": ["", str(front)]} | NOISY
    for got in out["found"]:
        expect_type("result", got, list)
        expect_equal("names", got, right[kind],
                     "At these modules the inputs are equal and the outputs differ.")
    expect_equal("calls of the model, in two calls of your function", out["calls"], 4,
                 "Each call of your function calls the model twice.")
    expect_equal("training flags that changed", out["modes"], 0)
    expect_equal("hooks after the call, minus the hooks before it", out["hooks"], 0,
                 "Remove your hooks.")
    expect_equal("graphs built", out["graphs"], 0, "Run the model under torch.no_grad().")
    expect_equal("calls that set a seed (1 if any does)", out["seeded"], 0,
                 "Leave the generator as it is.")


# ---- wrong, by name

@not_an_answer
def parted(model, x):
    passes = []
    with torch.no_grad():
        for _ in range(2):
            seen = {}
            hooks = [module.register_forward_hook(
                lambda m, given, out, seen=seen: seen.update({m: (given[0], out)}))
                for module in model.modules()]
            model(x)
            for hook in hooks:
                hook.remove()
            passes.append(seen)
    first, second, same = passes[0], passes[-1], torch.equal
    found = [name for name, m in model.named_modules() if m in first
             and same(first[m][0], second[m][0]) and not same(first[m][1], second[m][1])]
    return found


wrong = ex.edits(parted)
END, EQUAL, START = "return found", "torch.equal", "passes = []"
wrong("naming every module whose output differs, even modules after the noise", "given",
      "same(first[m][0], second[m][0])", "True")
wrong("returning only the innermost name", "returned", END, "return found[-1:]")
wrong("returning only whether the two calls differ", "names", END, "return bool(found)")
wrong("returning modules instead of names", "names",
      END, "return [dict(model.named_modules())[name] for name in found]")
wrong("returning class names instead of names", "names",
      END, "return [type(dict(model.named_modules())[name]).__name__ for name in found]")
wrong("leaving out the model itself", "names", END, "return [name for name in found if name]")
wrong("listing the names from the innermost to the outermost", "names", END, "return found[::-1]")
wrong("checking only modules without children", ("names", "example"),
      END, "return [name for name in found if not list(model.get_submodule(name).children())]",
      says="names")
wrong("checking only the model itself and its direct children", "result",
      END, 'return [name for name in found if "." not in name]')
wrong("naming every nn.Dropout of the model", ("returned", "mode"),
      END, "return [name for name, m in model.named_modules() if isinstance(m, nn.Dropout)]",
      says="names")
wrong("naming every module in train mode", ("returned", "mode"),
      END, "return [name for name, m in model.named_modules() if m.training]", says="names")
wrong("comparing with torch.allclose, which treats close values as equal", "little",
      EQUAL, "lambda a, b: torch.allclose(a.float(), b.float())")
wrong("comparing with a relative tolerance of 1.2e-7, which hides a difference in the last bit",
      "little",
      EQUAL, "lambda a, b: torch.allclose(a.float(), b.float(), rtol=1.2e-7, atol=0.0)")
wrong("comparing sums instead of values", ("returned", "little"),
      EQUAL, "lambda a, b: a.sum().equal(b.sum())")
wrong("looking up modules that were never called", "called",
      "m in first\n             and", "", says="raised KeyError")
wrong("converting x to float32", "x", "model(x)", "model(x.float())", says="raised")
wrong("calling eval() on the model, which hides the noise of a part in train mode", "mode",
      START, f"model.eval(); {START}")
wrong("calling train() on the model", "mode", START, f"model.train(); {START}")
wrong("setting the same seed before each call, so that the noise repeats itself", "generator",
      "model(x)", "torch.manual_seed(0); model(x)")
wrong("setting a seed before the first call", "generator", START, f"torch.manual_seed(0); {START}",
      says="set a seed")
wrong("calling the model a third time", "mode", "range(2)", "range(3)", says="calls of the model")
wrong("not removing the hooks", "as it was", "hook.remove()", "passes or hook.remove()")
wrong("building a graph", "no graph", "with torch.no_grad():", "if True:")
