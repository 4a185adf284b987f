"""Exercise 05.1, `stored_gaps`."""

from __future__ import annotations

import math

import torch
from torch import nn

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("05.1", "stored_gaps", seen=("kind", "x", "state"))

ex.promise_table("""
result     | Measure how far a batch is from each BatchNorm's stored statistics. | gap of; names of
eval       | Args: model: is in eval mode. | gap of; statistics that the call; raised ValueError
kinds      | Its BatchNorms are nn.BatchNorm1d on (N, C) and nn.BatchNorm2d on (N, C, H, W). | case
             images; one image; other norms between | gap of; names of
depth      | They can be at any depth, and each is called once. | case norms inside blocks; a norm
             that is the whole model; one of three channels; the example
input      | x: a batch that model accepts. | case integers looked up
enters     | A channel's mean is the mean of the norm's input in model(x), over all axes except 1. |
             gap of; raised RuntimeError
distance   | Take the distance of this mean from running_mean. | gap of
deviations | Divide the distance by the stored standard deviation, the root of running_var. | gap of
largest    | Returns: A dict with each norm's largest distance, a float. | gap of; type of the gap
names      | The keys are the norms' names in model.named_modules(). | names of
as it was  | Afterwards the model's hooks, modes and values are as they were. | hooks after;
             training flags; statistics that the call; values of the model; parameters whose
no graph   | Do not build a graph. | graphs built
example    | Example: a fresh nn.BatchNorm1d(1) with x [[1.], [3.]] gives {"": 2.0}. | case the
             example
""")

CODES = 9  # integers that a model of codes looks up
# What a pass meets, in order: layers with weights by letter, norms, and what has none.
PASS = {"flat": "a norm0 relu drop b norm1 c", "deep": "a norm0 relu drop b norm1 c norm2",
        "images": "a norm0 relu drop inst b norm1", "whole": "norm0",
        "codes": "look norm0 relu drop b norm1"}
NAMES = {"flat": ["1", "5"], "deep": ["0.1.0", "0.1.3.1", "tail.end"], "images": ["1", "6"],
         "whole": [""], "codes": ["1", "5"]}


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, kind, rows, *, far=0.0, scale=None):
        width = whole(3, 6)
        shape = (2, whole(6, 9), 6) if kind == "images" else (width,)
        x = torch.randn(rows, *shape, generator=g) * (scale or whole(1, 4)) + whole(-2, 3) + far
        if kind == "codes":
            x = torch.randint(0, CODES, (rows,), generator=g)
        return name, {"kind": kind, "x": x, "state": trained_state(g, kind, width)}

    n = whole(9, 14)
    wide = one("one of three channels", "whole", n)  # the farthest is the nearest in deviations
    wide[1]["x"] = torch.randn(n, 3, generator=g) + torch.tensor([-90.0, 3.0, 0.7])
    wide[1]["state"] = {"norm0.running_mean": torch.tensor([0.0, 0.5, 0.5]),
                        "norm0.running_var": torch.tensor([1e4, 4.0, 1e-2])}
    below = one("a mean below the stored one", "whole", n)
    below[1]["x"] = torch.randn(n, 3, generator=g) - 20
    below[1]["state"] = {"norm0.running_mean": torch.tensor([1.0, 2.0, 3.0]),
                         "norm0.running_var": torch.tensor([1.0, 9.0, 4.0])}
    still = one("a channel that hardly varies", "whole", n)  # where eps would count
    still[1]["x"] = 0.5 + 0.01 * torch.randn(n, 3, generator=g)
    still[1]["state"] = {"norm0.running_mean": torch.tensor([0.4, 0.45, 0.3]),
                         "norm0.running_var": 1e-5 * (2 + torch.rand(3, generator=g))}
    example = {"kind": "whole", "x": torch.tensor([[1.0], [3.0]]),
               "state": {"norm0.running_mean": torch.zeros(1), "norm0.running_var": torch.ones(1)}}
    return [one("a flat model", "flat", n), one("one row", "flat", 1),
            one("many rows", "flat", whole(60, 90)),
            one("a batch that fits", "whole", 400, scale=1.0),
            one("norms inside blocks", "deep", n),
            one("images", "images", n), one("one image", "images", 1),
            one("other norms between", "images", n, far=3.0),
            one("a norm that is the whole model", "whole", n),
            one("numbers far from zero", "flat", n, far=500.0),
            one("integers looked up", "codes", n), wide, below, still, ("the example", example)]


def trained_state(g, kind, width):
    """Weights and stored statistics by layer, none of them what torch begins with."""
    shapes = {"a": (4, 2, 3, 3), "b": (3, 4, 3, 3)} if kind == "images" else {
        "a": (6, width), "b": (5, width if kind == "codes" else 6), "c": (3, 5)}
    found, size = {}, width
    for name in PASS[kind].split():
        if name == "look":
            found["look.weight"] = torch.randn(CODES, width, generator=g)
        elif name in shapes:
            size, fan_in = shapes[name][0], math.prod(shapes[name][1:])
            found[f"{name}.weight"] = torch.randn(shapes[name], generator=g) / fan_in ** 0.5
            found[f"{name}.bias"] = 0.3 * torch.randn(size, generator=g)
        elif name == "inst" or name.startswith("norm"):
            found |= {f"{name}.running_mean": torch.randn(size, generator=g),
                      f"{name}.running_var": 0.5 + 4 * torch.rand(size, generator=g)}
            if name != "inst" and (kind, name) != ("codes", "norm1"):  # one norm has no gain
                found |= {f"{name}.weight": 0.5 + torch.rand(size, generator=g),
                          f"{name}.bias": 0.5 * torch.randn(size, generator=g)}
    return found


@ex.act
def act(fn, kind, x, state):
    class Deep(nn.Module):
        """A body, of which one module has a second name that comes later."""

        def __init__(self, body, end):
            super().__init__()
            self.tail = nn.Module()
            self.tail.end = end
            self.add_module("0", body)

        def forward(self, x):
            return self.tail.end(getattr(self, "0")(x))

    def layer(name, parts):
        w, images = parts.get("weight"), kind == "images"
        if "running_mean" in parts:
            size = len(parts["running_mean"])
            if name == "inst":
                return nn.InstanceNorm2d(size, track_running_stats=True)
            return (nn.BatchNorm2d if images else nn.BatchNorm1d)(size, affine=w is not None)
        if name == "look":
            return nn.Embedding(*w.shape)
        return nn.Conv2d(w.shape[1], len(w), 3) if images else nn.Linear(w.shape[1], len(w))

    held = {}
    for name in {key.split(".")[0] for key in state}:
        parts = {key.split(".")[1]: v for key, v in state.items() if key.split(".")[0] == name}
        held[name] = layer(name, parts)
        with torch.no_grad():
            for part, value in parts.items():
                getattr(held[name], part).copy_(value)
    relu, drop = nn.ReLU(), nn.Dropout(0.5)
    a, b, c, look = [held.get(name) for name in ("a", "b", "c", "look")]
    n0, n1, n2, inst = [held.get(name) for name in ("norm0", "norm1", "norm2", "inst")]
    model = {
        "whole": lambda: n0,
        "flat": lambda: nn.Sequential(a, n0, relu, drop, b, n1, c),
        "deep": lambda: Deep(nn.Sequential(
            a, nn.Sequential(n0, relu, drop, nn.Sequential(b, n1)), c), n2),
        "images": lambda: nn.Sequential(a, n0, relu, drop, inst, b, n1),
        "codes": lambda: nn.Sequential(look, n0, relu, drop, b, n1)}[kind]().eval()
    modules, graphs = list(model.modules()), []
    for p in list(model.parameters())[-1:]:
        p.requires_grad_(False)                          # the caller has frozen one
    trained = [p.requires_grad for p in model.parameters()]
    n0.register_forward_pre_hook(lambda m, given: None)  # and watches a norm
    n0.register_forward_hook(lambda m, given, out: None)
    watch = modules[-1].register_forward_hook(lambda m, given, out: graphs.append(
        int(out.requires_grad)))
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found, modes = [], 0
    for rows in (x, x.flip(0)[:-1] if len(x) > 2 else x):  # two calls, on other batches
        gaps = fn(model, rows.clone())
        found.append(dict(gaps) if isinstance(gaps, dict) else gaps)
        modes += sum(m.training for m in model.modules())
        model.eval()
    after = model.state_dict()
    result = {"found": found, "graphs": sum(graphs),
              "hooks": sum(len(m._forward_hooks) + len(m._forward_pre_hooks)
                           for m in modules) - hooks,
              "modes": modes, "frozen": sum(
                  p.requires_grad != was for p, was in zip(model.parameters(), trained)),
              "statistics": sum(int((after[k] != v).sum()) for k, v in before.items()
                                if "running" in k or "tracked" in k),
              "numbers": sum(int((after[k] != v).sum()) for k, v in before.items()
                             if "running" not in k and "tracked" not in k)
              + sum(p.grad is not None for p in model.parameters())}
    watch.remove()
    return result


def expected(kind, x, state):
    """The largest distance of each norm, in float64, in the order of the pass."""
    p, h, found = {k: v.double() for k, v in state.items()}, x.double(), []
    for name in PASS[kind].split():
        if name.startswith("norm") or name == "inst":
            shape = (1, -1, *[1] * (h.dim() - 2))
            mean, var = p[f"{name}.running_mean"], p[f"{name}.running_var"]
            if name != "inst":
                channels = h.movedim(1, 0).reshape(h.shape[1], -1)
                found.append(float((((channels - mean[:, None]).sum(1) / channels.shape[1]) ** 2
                                    / var).max() ** 0.5))
            h = (h - mean.view(shape)) / (var.view(shape) + 1e-5).sqrt()
            if f"{name}.weight" in p:
                h = h * p[f"{name}.weight"].view(shape) + p[f"{name}.bias"].view(shape)
        elif name == "look":
            h = p["look.weight"][x]
        elif name == "relu":
            h = h.clamp(min=0)
        elif name != "drop":
            w, b = p[f"{name}.weight"], p[f"{name}.bias"]
            h = torch.conv2d(h, w, b) if kind == "images" else h @ w.T + b
    return found


@ex.law
def law(out, kind, x, state):
    expect_parts(out, "found", "graphs", "hooks", "modes", "statistics", "numbers", "frozen")
    expect_length("calls of your function", out["found"], 2)
    for call, rows in enumerate((x, x.flip(0)[:-1] if len(x) > 2 else x)):
        got, right = out["found"][call], expected(kind, rows, state)
        expect_parts(got, *NAMES[kind], what="names of the norms")
        for name, gap in zip(NAMES[kind], right, strict=True):
            expect_close(f"gap of norm {name!r}", got[name], gap, rtol=2e-3, atol=2e-4)
    expect_equal("hooks after the call, minus the hooks before it", out["hooks"], 0,
                 "Remove your own hooks, and leave the caller's.")
    expect_equal("training flags that are on after the call", out["modes"], 0)
    expect_equal("stored statistics that the call changed", out["statistics"], 0,
                 "In train mode a norm stores the batch's statistics.")
    expect_equal("values of the model or its gradients that changed", out["numbers"], 0)
    expect_equal("parameters whose requires_grad changed", out["frozen"], 0)
    expect_equal("graphs built", out["graphs"], 0, "Run the model under torch.no_grad().")


# ---- wrong, by name

@not_an_answer
def gaps_of(model, x):
    gaps, hooks = {}, []
    for name, norm in model.named_modules():
        if isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)):
            def look(norm, given, name=name):
                h = given[0]
                mean = h.transpose(0, 1).flatten(1).mean(1)
                gap = (mean - norm.running_mean).abs()
                gaps[name] = (gap / norm.running_var.sqrt()).max().item()
            hooks.append(norm.register_forward_pre_hook(look))
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return gaps


wrong = ex.edits(gaps_of)
START, NO_GRAD, END = "gaps, hooks =", "with torch.no_grad():", "return gaps"
BOTH, MEAN = "(nn.BatchNorm1d, nn.BatchNorm2d)", "h.transpose(0, 1).flatten(1).mean(1)"
DEVIATIONS, LARGEST = "norm.running_var.sqrt()", ".max().item()"
wrong("measuring in train mode, in which the norms use and store the batch's statistics",
      ("eval", "as it was"), START, f"model.train(); {START}", END, f"model.eval(); {END}")
wrong("measuring a copy in train mode, in which the norms use the batch's statistics", "eval",
      START, f"import copy; model = copy.deepcopy(model).train(); {START}")
wrong("measuring BatchNorm1d only", "kinds", BOTH, "nn.BatchNorm1d")
wrong("measuring BatchNorm2d only", ("result", "kinds"), BOTH, "nn.BatchNorm2d", says="names of")
wrong("measuring every norm layer that stores a mean, even InstanceNorm", "kinds",
      BOTH, "(nn.BatchNorm1d, nn.BatchNorm2d, nn.InstanceNorm2d)")
wrong("measuring only the norms at the top of the model", "depth",
      "model.named_modules()", '[("", model), *model.named_children()]')
wrong("converting x to float32", "input", "model(x)", "model(x.float())", says="raised")
wrong("comparing the batch itself instead of each norm's input", "result",
      MEAN, "x.float().mean()")
wrong("comparing the output of each norm instead of its input", "enters",
      "given, name", "given, out, name", "given[0]", "out", "forward_pre_hook", "forward_hook")
wrong("taking the mean over the rows only, which gives one mean for each pixel", "enters",
      MEAN, "h.mean(0).flatten(1).T if h.dim() > 2 else h.mean(0)")
wrong("taking the mean over axis 0 alone", "enters", MEAN, "h.mean(0)")
wrong("using each channel's largest value instead of its mean", "enters", "mean(1)", "amax(1)")
wrong("keeping the sign, which hides a mean below the stored mean", "distance",
      ".abs()", "")
wrong("squaring the distance", "distance", ".abs()", ".square()")
wrong("returning the distance without dividing by the standard deviation", "deviations",
      f" / {DEVIATIONS}", "")
wrong("adding eps to running_var before taking the root", "deviations",
      DEVIATIONS, "(norm.running_var + norm.eps).sqrt()")
wrong("dividing by the variance", "deviations", DEVIATIONS, "norm.running_var")
wrong("averaging the channels' distances instead of taking the largest",
      "largest", LARGEST, ".mean().item()")
wrong("returning the first channel's distance instead of the largest",
      "largest", LARGEST, "[0].item()")
wrong("returning the distances of all channels instead of the largest", "largest", LARGEST, "")
wrong("returning a tensor instead of a float", "largest", LARGEST, ".max()")
wrong("using numbers instead of the norms' names", "names",
      END, "return dict(zip(map(str, range(100, 199)), gaps.values(), strict=False))")
wrong("defining the hook in a loop, so that every hook uses the loop's last name",
      "names", ", name=name",
      "",
      says="names of")
wrong("not removing the hooks", "as it was", "hook.remove()", "pass")
wrong("removing every hook, even the caller's", "as it was",
      "hook in hooks", "hooked in model.modules()",
      "hook.remove()", "hooked._forward_pre_hooks.clear()", says="hooks after")
wrong("leaving the model in train mode", "as it was",
      END, f"model.train(); {END}", says="training flags")
wrong("overwriting the stored means with zeros", ("as it was", "distance"),
      DEVIATIONS, f"(norm.running_mean.zero_() + {DEVIATIONS})")
wrong("switching requires_grad off for all parameters and not restoring it", "as it was",
      START, f"model.requires_grad_(False); {START}", says="parameters whose")
wrong("building a graph", "no graph", NO_GRAD, "if True:")
