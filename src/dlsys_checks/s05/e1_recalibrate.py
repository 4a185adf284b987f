"""Exercise 05.1, `recalibrate`."""

from __future__ import annotations

import math

import torch
from torch import nn

from dlsys_checks.kit import integers
from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
)
from dlsys_helpers.judging import not_an_answer

# Kept: weights stay, and so does what an InstanceNorm stored.
ex = exercise("05.1", "recalibrate", seen=("kind", "batches", "modes", "momenta", "state"),
              kept=("weights", "others"))

STORED = ("running_mean of", "running_var of")
ex.promise("all norms", "Measure the running statistics of all BatchNorms of model again.",
           says=STORED)
ex.promise("any depth", "model: nn.BatchNorm1d and nn.BatchNorm2d at any depth, each called "
           "once in a pass.",
           cases=("a norm inside a block", "a large last batch", "a block in eval mode",
                  "BatchNorm2d on images", "images of two sizes", "one image in a batch",
                  "a norm that is the whole model", "integers looked up",
                  "numbers far from zero", "the example"))
ex.promise("once", "batches: an iterable of inputs, gone through once;",
           says=("times that batches", "raised TypeError"))
ex.promise("as it is", "each is handed to model as it is,",
           says=("rows handed", "batches handed as", "raised RuntimeError"))
ex.promise("modes of the pass", "with its BatchNorms in train mode and everything else in eval "
           "mode.", says=(*STORED, "InstanceNorm"))
ex.promise("mean", "running_mean becomes the average of the means of the batches,",
           says=("running_mean of",))
ex.promise("variance", "and running_var that of their unbiased variances, as torch stores them;",
           says=("running_var of",))
ex.promise("weighted", "a batch of N rows counts N times.", says=STORED)
ex.promise("nothing left", "Nothing of what both held before is left, not even NaN; what "
           "num_batches_tracked ends as is up to you.", says=STORED)
ex.promise("weights", "Weights and their gradients stay;", says=("weights after",
                                                                "gradients after"))
ex.promise("modes after", "every module gets its former mode", says=("training flags",))
ex.promise("momenta", "and momentum back;", says=("momenta",))
ex.promise("no graph", "no graph is built;", says=("graphs built",))
ex.promise("grad mode", "grad mode stays as it was.", says=("grad mode",))
ex.promise("example", "Example: nn.BatchNorm1d(1) and the batches [[0.], [2.]] and four rows of "
           "[4.]: running_mean is 3, running_var 2/3.", cases=("the example",))

CODES = 9  # integers that a model of codes looks up
# What a pass meets, in order: layers with weights by letter, norms, and what has none.
PASS = {"flat": "a norm0 relu drop b norm1 c", "deep": "a norm0 relu drop b norm1 c norm2",
        "images": "a norm0 relu drop inst b norm1", "whole": "norm0",
        "codes": "look norm0 relu drop b norm1"}
# The modules in the order of model.modules(); the last norm of a deep model has a second name.
MODULES = {"flat": "root a norm relu drop b norm c", "whole": "norm",
           "deep": "root body a block norm relu inner drop b norm last tail end c norm",
           "images": "root a norm relu drop inst b norm",
           "codes": "root look norm relu drop b norm"}


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, kind, sizes, *, evals="", every=True, momenta=None, broken=False, grow=0, far=0,
            double=False):
        width = whole(3, 6)
        shapes = [(2, 6 + grow * k, 6) if kind == "images" else (width,) for k in range(len(sizes))]
        batches = [torch.randn(n, *shape, generator=g) * whole(1, 4) + whole(-2, 3) + far
                   for n, shape in zip(sizes, shapes, strict=True)]
        if kind == "codes":
            batches = [torch.randint(0, CODES, (n,), generator=g) for n in sizes]
        state = trained_state(g, kind, width)
        if double:  # thirds, which float32 does not hold
            batches = [batch.double() / 3 for batch in batches]
            state = {key: tensor.double() / 3 for key, tensor in state.items()}
        if broken:
            state["norm0.running_mean"][0] = state["norm1.running_var"][-1] = math.nan
        count = PASS[kind].count("norm")
        return name, {"kind": kind, "batches": batches, "state": state,
                      "momenta": momenta or [round(0.05 + 0.1 * k, 2) for k in range(count)],
                      "modes": [every != (n in evals.split()) for n in MODULES[kind].split()]}

    n, rows = whole(9, 14), whole(4, 7)
    name, example = one("the example", "whole", (2, 4))
    example["batches"] = [torch.tensor([[0.0], [2.0]]), torch.full((4, 1), 4.0)]
    example["state"] = trained_state(g, "whole", 1)
    return [one("batches of one size", "flat", (n, n, n)),
            one("a small last batch", "flat", (n, n, 3)),
            one("a large last batch", "deep", (rows, 5 * n)),
            one("a single batch", "flat", (n,)),
            one("many batches", "flat", (rows,) * whole(12, 18)),
            one("a norm inside a block", "deep", (n, n + 2, n)),
            one("BatchNorm2d on images", "images", (n, n, rows)),
            one("images of two sizes", "images", (n, rows), grow=5),
            one("one image in a batch", "images", (n, 1)),
            one("a norm that is the whole model", "whole", (n, rows)),
            one("numbers far from zero", "whole", (n, rows), far=1000),
            one("integers looked up", "codes", (n, 3 * rows)),
            one("a model in float64", "flat", (n, rows), double=True),
            one("a model in eval mode", "flat", (n, n), every=False),
            one("a frozen norm in a model in train mode", "flat", (n, rows), evals="norm"),
            one("a live dropout in a model in eval mode", "flat", (n, rows), evals="drop",
                every=False),
            one("a block in eval mode", "deep", (n, rows), evals="block inner"),
            one("stored NaN", "flat", (n, n), broken=True),
            one("a momentum of None", "flat", (n, rows), momenta=[None, 0.01]),
            (name, example)]


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
def act(fn, kind, batches, modes, momenta, state):
    class Stream:
        """The batches, to be gone through; it has neither a length nor an order of its own."""

        def __init__(self, batches):
            self.batches, self.times = batches, 0

        def __iter__(self):
            self.times += 1
            return iter(self.batches)

    class Deep(nn.Module):
        """A body, of which one module has a second name."""

        def __init__(self, body, last):
            super().__init__()
            self.body, self.last = body, last

        def forward(self, x):
            return self.body(x)

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
        held[name] = layer(name, parts).to(next(iter(parts.values())).dtype)
        with torch.no_grad():
            for part, value in parts.items():
                getattr(held[name], part).copy_(value)
    norms = [held[f"norm{k}"] for k in range(len(momenta))]
    relu, drop = nn.ReLU(), (nn.AlphaDropout if kind == "deep" else nn.Dropout)(0.5)
    a, b, c = [held.get(name) for name in "abc"]
    model = {
        "whole": lambda: norms[0],
        "flat": lambda: nn.Sequential(a, norms[0], relu, drop, b, norms[1], c),
        "deep": lambda: Deep(nn.Sequential(
            a, nn.Sequential(norms[0], relu, nn.Sequential(drop, b, norms[1])),
            nn.Sequential(nn.Sequential(nn.Sequential(c, norms[2])))), norms[2]),
        "images": lambda: nn.Sequential(a, norms[0], relu, drop, held["inst"], b, norms[1]),
        "codes": lambda: nn.Sequential(held["look"], norms[0], relu, drop, b, norms[1])}[kind]()
    for layer, momentum in zip(norms, momenta, strict=True):
        layer.momentum = momentum
    norms[-1].requires_grad_(len(norms) == 1)  # of several norms the last is frozen
    asked = [p.requires_grad for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    rows, graphs, handed = [], [], []

    def look(module, given, out):
        handed.append(given[0])
        rows.append(len(given[0]))
        graphs.append(out.requires_grad)

    model.register_forward_hook(look)
    before, stream = Stream([batch.flip(0) for batch in batches[:2]]), Stream(batches)
    fn(model, before)
    grad_modes = [torch.is_grad_enabled()]
    with torch.no_grad():
        fn(model, stream)
        grad_modes.append(torch.is_grad_enabled())
    torch.set_grad_enabled(True)
    own = [*before.batches, *stream.batches]
    return {"stored": {f"norm{k}.{part}": getattr(m, part) for k, m in enumerate(norms)
                       for part in ("running_mean", "running_var")},
            "others": {key: getattr(held["inst"], key.split(".")[1]) for key in state
                       if key.startswith("inst")},
            "times": [before.times, stream.times], "rows": rows, "graphs": sum(graphs),
            "copies": sum(mine is not given for mine, given in zip(handed, own)),
            "grads": sum(p.grad is None or int((p.grad != 1).sum()) for p in model.parameters()),
            "grad modes": grad_modes, "modes": [m.training for m in model.modules()],
            "momenta": [m.momentum for m in norms],
            "asked": sum(p.requires_grad != a for p, a in zip(model.parameters(), asked)),
            "weights": {f"{name}.{part}": tensor for name, layer in held.items()
                        for part, tensor in layer.named_parameters()}}


def measured(kind, batch, state):
    """Mean and unbiased variance that each norm meets in one batch, in float64, by name."""
    p, h, found = {k: v.double() for k, v in state.items()}, batch.double(), {}
    for name in PASS[kind].split():
        if name.startswith("norm"):
            axes = [0, *range(2, h.dim())]
            shape = (1, -1, *[1] * (h.dim() - 2))
            mean, var = h.mean(axes), h.var(axes, correction=0)
            found[name] = mean, h.var(axes)
            h = (h - mean.view(shape)) / (var.view(shape) + 1e-5).sqrt()
            if f"{name}.weight" in p:
                h = h * p[f"{name}.weight"].view(shape) + p[f"{name}.bias"].view(shape)
        elif name == "inst":
            h = h - p["inst.running_mean"].view(1, -1, 1, 1)
            h = h / (p["inst.running_var"].view(1, -1, 1, 1) + 1e-5).sqrt()
        elif name == "look":
            h = p["look.weight"][batch]
        elif name == "relu":
            h = h.clamp(min=0)
        elif name != "drop":
            w, b = p[f"{name}.weight"], p[f"{name}.bias"]
            h = torch.conv2d(h, w, b) if kind == "images" else h @ w.T + b
    return found


def wanted(kind, batches, state):
    """What each norm is to store: the batches' statistics, each weighted with its rows."""
    total = sum(map(len, batches))
    parts = [(len(batch) / total, measured(kind, batch, state)) for batch in batches]
    dtype = next(iter(state.values())).dtype
    return {f"{name}.{part}": sum(share * found[name][k] for share, found in parts).to(dtype)
            for name in parts[0][1] for k, part in enumerate(("running_mean", "running_var"))}


@ex.law
def law(out, kind, batches, modes, momenta, state):
    expect_parts(out, "stored", "others", "times", "rows", "copies", "graphs", "grads", "modes",
                 "momenta", "asked", "weights", "grad modes")
    expect_equal("times that batches was gone through, in two calls", out["times"], [1, 1],
                 "A stream can be read once.")
    sizes = [len(batch) for batch in batches]
    expect_equal("rows handed to model, by batch", out["rows"], sizes[:2] + sizes)
    expect_equal("batches handed as copies, not as they are", out["copies"], 0)
    others = {k: v for k, v in state.items() if k.startswith("inst")}
    expect_parts(out["others"], *others, what="statistics of an InstanceNorm")
    for name, value in others.items():
        expect_equal(f"{name.split('.')[1]} of an InstanceNorm", out["others"][name], value,
                     "Everything but the BatchNorms works in eval mode.")
    weights = {k: v for k, v in state.items() if "running" not in k}
    expect_parts(out["weights"], *weights, what="weights after the call")
    for name, value in weights.items():
        expect_like(f"weights after the call, {name}", out["weights"][name], value)
        expect_equal(f"weights after the call, {name}", out["weights"][name], value,
                     "Gain and bias are learned; only the statistics are measured.")
    expect_equal("weights after the call that ask otherwise for gradients", out["asked"], 0)
    expect_equal("gradients after the call that changed", out["grads"], 0)
    expected = wanted(kind, batches, state)
    expect_parts(out["stored"], *expected, what="stored statistics")
    for key, right in expected.items():
        name, part = key.split(".")
        scale = expected[f"{name}.running_var"].max().item()
        tolerance = 1e-4 if right.dtype == torch.float32 else 1e-6
        expect_close(f"{part} of {name}", out["stored"][key], right, rtol=tolerance,
                     atol=tolerance * (scale if part == "running_var" else scale ** 0.5))
    expect_equal("graphs built in the passes", out["graphs"], 0, "Nothing is trained here.")
    expect_equal("grad mode after a call with gradients on, and with gradients off",
                 out["grad modes"], [True, False], "Use torch.no_grad() in a with statement.")
    expect_equal("training flags of all modules after the call", out["modes"], modes,
                 "Each module gets its own former mode back.")
    expect_length("momenta", out["momenta"], len(momenta))
    expect_equal("momenta after the call", out["momenta"], momenta, "Put them back.")


def norms_of(model):
    return [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]


def put_back(flags, momenta):
    for module, flag in flags:
        module.training = flag
    for norm, momentum in momenta:
        norm.momentum = momentum


# ---- wrong, by name

@not_an_answer
def recalibrated(model, batches, *, norms=None, reset=True, weighted=True, modes="norms",
                 back=True, momenta_back=True, no_grad=True, after=None):
    """The worked answer with its mistakes as options."""
    flags = [(m, m.training) for m in model.modules()]
    norms = norms_of(model) if norms is None else norms
    momenta, seen = [(norm, norm.momentum) for norm in norms], 0
    model.train(modes == "all")
    for norm in norms:
        norm.train(modes != "none")
        if reset:
            norm.reset_running_stats()
    with torch.set_grad_enabled(not no_grad):
        for batch in batches:
            size = len(batch) if weighted else 1
            seen += size
            for norm in norms:
                norm.momentum = size / seen
            model(batch)
    put_back(flags if back else [], momenta if momenta_back else [])
    if after:
        after(norms)


@ex.wrong("a pass in eval mode, which moves nothing", says="running_mean of norm0",
          breaks="all norms")
@torch.no_grad()
def in_eval_mode(model, batches):
    flags = [(m, m.training) for m in model.modules()]
    model.eval()
    for batch in batches:
        model(batch)
    put_back(flags, [])


def at_momentum(model, batches, momentum, reset=True):
    """A pass with every norm at one momentum, "own" for its own."""
    flags, norms = [(m, m.training) for m in model.modules()], norms_of(model)
    momenta = [(norm, norm.momentum) for norm in norms]
    model.eval()
    for norm in norms:
        norm.train()
        norm.momentum = norm.momentum if momentum == "own" else momentum
        if reset:
            norm.reset_running_stats()
    with torch.no_grad():
        for batch in batches:
            model(batch)
    put_back(flags, momenta)


ex.wrong("a momentum of 0, which moves nothing", at_momentum, says="running_mean of norm0",
         breaks="mean", momentum=0.0)
ex.wrong("a reset, and the momentum left as it was", at_momentum, says="running_mean of norm0",
         breaks="mean", momentum="own")
ex.wrong("a momentum of None without a reset", at_momentum, says="running_mean of norm0",
         breaks="nothing left", momentum=None, reset=False)


@ex.wrong("eval() at the end, whatever the mode was", breaks="modes after")
def eval_at_the_end(model, batches):
    recalibrated(model, batches)
    model.eval()


@ex.wrong("a frozen norm left as it is", breaks="all norms")
def live_norms_only(model, batches):
    norms = norms_of(model)
    if not any(norm.training for norm in norms) and model.training:
        in_eval_mode(model, batches)
    else:
        recalibrated(model, batches)


@ex.wrong("norms without a gain left out", breaks="all norms")
def affine_only(model, batches):
    recalibrated(model, batches, norms=[norm for norm in norms_of(model) if norm.affine])


@ex.wrong("an InstanceNorm taken for a BatchNorm", says="of an InstanceNorm",
          breaks="modes of the pass")
def all_kinds(model, batches):
    recalibrated(model, batches, norms=[m for m in model.modules() if isinstance(
        m, nn.modules.batchnorm._NormBase)])


@ex.wrong("the direct children only", says="running_mean of", breaks="any depth")
def children_only(model, batches):
    recalibrated(model, batches, norms=[m for m in model.children() if m in norms_of(model)])


@ex.wrong("BatchNorm1d only", says="running_mean of norm0", breaks="any depth")
def one_class_only(model, batches):
    recalibrated(model, batches, norms=[m for m in model.modules()
                                        if isinstance(m, nn.BatchNorm1d)])


@ex.wrong("batches gone through twice: first to count the rows", breaks="once")
def counted_first(model, batches):
    sum(len(batch) for batch in batches)
    recalibrated(model, batches)


ex.wrong("batches taken for a list",
         lambda model, batches: recalibrated(model, [batches[k] for k in range(len(batches))]),
         breaks="once")


@ex.wrong("all batches in one", breaks="as it is")
def all_in_one(model, batches):
    batches = [*batches]
    alike = len({batch.shape[1:] for batch in batches}) == 1
    recalibrated(model, [torch.cat(batches)] if alike else batches)


ex.wrong("copies of the batches handed to model",
         lambda model, batches: recalibrated(model, (batch.clone() for batch in batches)),
         says="batches handed as copies", breaks="as it is")
ex.wrong("every batch turned into float32",
         lambda model, batches: recalibrated(model, (batch.float() for batch in batches)),
         breaks="as it is")
ex.wrong("only the first batch", lambda model, batches: recalibrated(model, [*batches][:1]),
         breaks="as it is")
ex.wrong("model.train(): dropout is on while the norms measure", recalibrated, says="of norm1",
         breaks="modes of the pass", modes="all")


@ex.wrong("update_bn itself: dropout is on, every batch counts the same", says="of norm",
          breaks=("modes of the pass", "weighted", "momenta", "no graph"))
def by_update_bn(model, batches):
    flags = [(m, m.training) for m in model.modules()]
    torch.optim.swa_utils.update_bn(batches, model)
    put_back(flags, [])


ex.wrong("every batch counts the same", recalibrated, says="running_mean of norm0",
         breaks="weighted", weighted=False)


@ex.wrong("the mean of the last batch alone", says="running_mean of norm0", breaks="mean")
def last_mean(model, batches):
    last = {}

    def note(norm, given):
        last[norm] = given[0].detach().transpose(0, 1).flatten(1).mean(1)
    hooks = [norm.register_forward_pre_hook(note) for norm in norms_of(model)]
    recalibrated(model, batches)
    for hook in hooks:
        hook.remove()
    for norm, mean in last.items():
        norm.running_mean.copy_(mean)


@ex.wrong("the biased variance", says="running_var of norm0", breaks="variance")
def biased(model, batches):
    seen = {}

    def note(norm, given):
        h = given[0].detach().transpose(0, 1).flatten(1)
        seen.setdefault(norm, []).append((len(given[0]), h.var(1, correction=0)))
    hooks = [norm.register_forward_pre_hook(note) for norm in norms_of(model)]
    recalibrated(model, batches)
    for hook in hooks:
        hook.remove()
    for norm, found in seen.items():
        rows = sum(size for size, _ in found)
        norm.running_var.copy_(sum(size * var for size, var in found) / rows)


@ex.wrong("the variance as a difference of squares, in float32", breaks="variance")
def by_difference(model, batches):
    seen = {}

    def note(norm, given):
        h = given[0].detach().transpose(0, 1).flatten(1)
        var = (h.square().mean(1) - h.mean(1).square()) * h.shape[1] / (h.shape[1] - 1)
        seen.setdefault(norm, []).append((len(given[0]), var))
    hooks = [norm.register_forward_pre_hook(note) for norm in norms_of(model)]
    recalibrated(model, batches)
    for hook in hooks:
        hook.remove()
    for norm, found in seen.items():
        norm.running_var.copy_(sum(n * var for n, var in found) / sum(n for n, _ in found))


@ex.wrong("the momentum left as it was: old numbers fade, they do not go", breaks="nothing left")
@torch.no_grad()
def old_fades(model, batches):
    flags = [(m, m.training) for m in model.modules()]
    model.eval()
    for norm in norms_of(model):
        norm.train()
    for batch in batches:
        model(batch)
    put_back(flags, [])


ex.wrong("no reset: a stored NaN stays", recalibrated, says="running_mean of norm0: got nan",
         breaks="nothing left", reset=False)


@ex.wrong("weights that learn no longer", says="weights after the call that ask", breaks="weights")
def frozen_for_good(model, batches):
    recalibrated(model, batches)
    model.requires_grad_(False)


@ex.wrong("gradients cleared", breaks="weights")
def clears_gradients(model, batches):
    recalibrated(model, batches)
    model.zero_grad()


@ex.wrong("norms whose weights are frozen left out", breaks="all norms")
def learning_norms_only(model, batches):
    recalibrated(model, batches, norms=[n for n in norms_of(model) if all(
        p.requires_grad for p in n.parameters())])


@ex.wrong("each batch weighted with its pixels", breaks="weighted")
def by_pixels(model, batches):
    norms, seen = norms_of(model), 0
    kept = [(norm, norm.momentum) for norm in norms]
    flags = [(m, m.training) for m in model.modules()]
    model.eval()
    for norm in norms:
        norm.train().reset_running_stats()
    for batch in batches:
        pixels = batch.select(1, 0).numel() if batch.dim() > 1 else len(batch)
        seen += pixels
        for norm in norms:
            norm.momentum = pixels / seen
        with torch.no_grad():
            model(batch)
    put_back(flags, kept)


@ex.wrong("gain and bias reset as well", breaks="weights")
def all_reset(model, batches):
    recalibrated(model, batches)
    with torch.no_grad():
        for norm in filter(lambda norm: norm.affine, norms_of(model)):
            norm.weight.fill_(1.0)
            norm.bias.zero_()


ex.wrong("norms that stay in train mode", recalibrated, breaks="modes after", back=False)
ex.wrong("model.train() at the end",
         lambda model, batches: recalibrated(model, batches, after=lambda _: model.train()),
         breaks="modes after")


@ex.wrong("the root's former mode for every module", breaks="modes after")
def one_mode_for_all(model, batches):
    mode = model.training
    recalibrated(model, batches, after=lambda _: model.train(mode))


ex.wrong("momenta that stay changed", recalibrated, says="momenta after", breaks="momenta",
         momenta_back=False)


@ex.wrong("a momentum of 0.1 for every norm at the end", says="momenta after", breaks="momenta")
def default_momenta(model, batches):
    def reset(norms):
        for norm in norms:
            norm.momentum = 0.1
    recalibrated(model, batches, after=reset)


@ex.wrong("the momentum of a norm with two names noted twice, the second time changed",
          says="momenta after", breaks="momenta")
def noted_twice(model, batches):
    saved = []

    def walk(module):
        if module in norms_of(model):
            saved.append((module, module.momentum))
            module.momentum = 0.5
        for child in module.children():
            walk(child)
    walk(model)
    recalibrated(model, batches, momenta_back=False)
    put_back([], saved)


ex.wrong("a graph built for every batch", recalibrated, breaks="no graph", no_grad=False)


@ex.wrong("gradients switched off and never on again", breaks="grad mode")
def gradients_off(model, batches):
    torch.set_grad_enabled(False)
    recalibrated(model, batches)


@ex.wrong("gradients switched on at the end, whatever they were", breaks="grad mode")
def gradients_on(model, batches):
    recalibrated(model, batches)
    torch.set_grad_enabled(True)


@ex.wrong("a norm of one channel taken for one that needs nothing", says="running_mean of norm0",
          breaks="example")
def single_channel(model, batches):
    norms = norms_of(model)
    if len(norms[0].running_mean) == 1:
        in_eval_mode(model, batches)
    else:
        recalibrated(model, batches)
