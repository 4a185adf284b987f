"""Stage 4: laws and named wrong answers for optimizers and learning-rate schedules."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as sched

from dlsys_helpers.checking import (
    Broken,
    exercise,
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
    expect_type,
    show,
)

# 04.1 decay_groups -----------------------------------------------------------------------------

ex = exercise("04.1", "decay_groups")


# The group of each trainable tensor: 0 decayed, 1 exempt. Not among the inputs, for those stand
# in the act's frame, where a learner's function can read them.
GROUPS = {
    "conv": {"0.weight": 0, "1.weight": 1, "1.bias": 1, "4.weight": 0, "4.bias": 1},
    "tied": {"0.weight": 1, "1.weight": 1, "1.bias": 1, "2.weight": 0, "2.bias": 1},
    "frozen": {"1.weight": 1, "1.bias": 1, "3.weight": 0},
    "encoder": {"self_attn.in_proj_weight": 0, "self_attn.in_proj_bias": 1,
                "self_attn.out_proj.weight": 0, "self_attn.out_proj.bias": 1,
                "linear1.weight": 0, "linear1.bias": 1, "linear2.weight": 0, "linear2.bias": 1,
                "norm1.weight": 1, "norm1.bias": 1, "norm2.weight": 1, "norm2.bias": 1},
}


@ex.cases
def cases(g):
    def one(name, kind):
        width = 4 + int(torch.randint(5, (), generator=g))
        decay = 0.01 + round(0.2 * float(torch.rand((), generator=g)), 3)
        return name, {"kind": kind, "width": width, "decay": decay}
    return [one("norms in a Sequential", "conv"),
            one("an embedding shared with the head", "tied"),
            one("a frozen first layer", "frozen"), one("torch's encoder layer", "encoder")]


@ex.act
def act(fn, kind, width, decay):
    if kind == "conv":
        model = nn.Sequential(nn.Conv2d(1, width, 3, bias=False), nn.BatchNorm2d(width),
                              nn.ReLU(), nn.Flatten(), nn.Linear(width, 3))
    elif kind == "tied":
        model = nn.Sequential(nn.Embedding(7, width), nn.LayerNorm(width),
                              nn.Linear(width, width), nn.Linear(width, 7, bias=False))
        model[3].weight = model[0].weight
    elif kind == "frozen":
        model = nn.Sequential(nn.Linear(3, width), nn.LayerNorm(width), nn.ReLU(),
                              nn.Linear(width, 2, bias=False))
        model[0].requires_grad_(False)
    else:
        model = nn.TransformerEncoderLayer(2 * width, 2, 3 * width, batch_first=True)
    name_of = {id(p): n for n, p in model.named_parameters()}
    groups = fn(model, decay)
    return [{"params": [name_of.get(id(p), "a tensor of another model") for p in g["params"]],
             "weight_decay": g["weight_decay"]} for g in groups]


def names_in(group):
    """The sorted names of one group's tensors. Raises Broken for another form."""
    expect_parts(group, "params", "weight_decay")
    expect_type("tensors of a group", group["params"], list)
    for name in group["params"]:
        expect_type("name of a tensor", name, str)
    return sorted(group["params"])


@ex.law
def law(out, kind, width, decay):
    expect_type("list of groups", out, list)
    expect_length("groups", out, 2)
    wanted = GROUPS[kind]
    for place, word in ((0, "decayed"), (1, "exempt")):
        names = names_in(out[place])
        mine = sorted(n for n, where in wanted.items() if where == place)
        extra = [n for n in names if n not in mine]
        if extra:
            why = ("it is frozen." if extra[0] not in wanted
                   else "look at its axes and its module.")
            raise Broken(f"{word} group", f"{show(extra[0])} in it", "it elsewhere",
                         why.capitalize())
        lost = [n for n in mine if n not in names]
        if lost:
            raise Broken(f"{word} group", f"{lost[0]} missing", "every trainable tensor")
        expect_equal(f"size of the {word} group", len(names), len(mine),
                     "A tensor stands in it twice.")
    expect_close("weight_decay of the first group", out[0]["weight_decay"], decay)
    expect_close("weight_decay of the second group", out[1]["weight_decay"], 0.0)


def in_two(named, decay, plain):
    """Two groups from (name, tensor) pairs; plain(name, tensor) says which are exempt."""
    named = list(named)
    return [{"params": [p for n, p in named if not plain(n, p)], "weight_decay": decay},
            {"params": [p for n, p in named if plain(n, p)], "weight_decay": 0.0}]


def trainable(model):
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]


def embedding_ids(model):
    return {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}


@ex.wrong("names: bias and LayerNorm.weight", says="decayed group: got 1.weight in it")
def by_class_name(model, weight_decay):
    tables = embedding_ids(model)
    return in_two(trainable(model), weight_decay, lambda n, p: (
        "bias" in n or "LayerNorm.weight" in n or id(p) in tables))


@ex.wrong("names: everything with 'norm' in it", says="decayed group: got 1.weight in it")
def by_norm_in_name(model, weight_decay):
    tables = embedding_ids(model)
    return in_two(trainable(model), weight_decay, lambda n, p: (
        "bias" in n or "norm" in n.lower() or id(p) in tables))


@ex.wrong("embeddings decayed like matrices", says="decayed group: got 0.weight in it")
def by_axes_alone(model, weight_decay):
    return in_two(trainable(model), weight_decay, lambda n, p: p.ndim < 2)


@ex.wrong("frozen tensors handed to the optimizer", says="It is frozen")
def with_frozen(model, weight_decay):
    tables = embedding_ids(model)
    return in_two(model.named_parameters(), weight_decay,
                  lambda n, p: p.ndim < 2 or id(p) in tables)


@ex.wrong("a shared tensor taken once for each module that holds it", says="stands in it twice")
def shared_twice(model, weight_decay):
    tables = embedding_ids(model)
    pairs = [(n, p) for m in model.modules() for n, p in m.named_parameters(recurse=False)
             if p.requires_grad]
    return in_two(pairs, weight_decay, lambda n, p: p.ndim < 2 or id(p) in tables)


@ex.wrong("only biases exempt", says="decayed group: got 1.weight in it")
def only_biases(model, weight_decay):
    return in_two(trainable(model), weight_decay, lambda n, p: n.endswith("bias"))


@ex.wrong("the two groups swapped", says="decayed group")
def swapped(model, weight_decay):
    tables = embedding_ids(model)
    return in_two(trainable(model), weight_decay,
                  lambda n, p: p.ndim < 2 or id(p) in tables)[::-1]


# 04.2 step_size --------------------------------------------------------------------------------

ex = exercise("04.2", "step_size")


@ex.cases
def cases(g):
    def one(name, kind, scale, steps):
        rate = 0.02 + 0.05 * float(torch.rand((), generator=g))
        return name, {"kind": kind, "rates": [rate, 2.5 * rate],
                      "weights": torch.randn(2, 5, generator=g),
                      "grads": scale * torch.randn(steps, 2, 5, generator=g)}
    return [one("Adam and tiny gradients", "adam", 1e-3, 1),
            one("SGD and large gradients", "sgd", 30.0, 1),
            one("momentum after three steps", "momentum", 1.0, 4),
            one("Adam after five steps", "adam", 2.0, 6)]


@ex.act
def act(fn, kind, rates, weights, grads):
    params = [nn.Parameter(w.clone()) for w in weights]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(params, rates)]
    opt = (torch.optim.Adam(groups) if kind == "adam"
           else torch.optim.SGD(groups, momentum=0.9 if kind == "momentum" else 0.0))
    for step in grads[:-1]:
        for p, grad in zip(params, step):
            p.grad = grad.clone()
        opt.step()
    for p, grad in zip(params, grads[-1]):
        p.grad = grad.clone()
    before = torch.stack([p.detach().clone() for p in params])
    size = fn(opt)
    kept = torch.stack([p.detach().clone() for p in params])
    opt.step()
    after = torch.stack([p.detach().clone() for p in params])
    return {"size": size, "drift": float((kept - before).abs().max()), "kept": kept,
            "after": after}


def last_move(kind, rates, weights, grads):
    """The weights before the last step and after it, by the published update rules in float64."""
    w, g = weights.double(), grads.double()
    lr = torch.tensor(rates, dtype=torch.float64)[:, None]
    b = m = v = torch.zeros_like(g[0])
    for t, grad in enumerate(g, 1):
        b = (0.9 if kind == "momentum" else 0.0) * b + grad
        m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
        adam = m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        before, w = w, w - lr * (adam if kind == "adam" else b)
    return before, w


@ex.law
def law(out, kind, rates, weights, grads):
    expect_parts(out, "size", "drift", "kept", "after")
    before, after = last_move(kind, rates, weights, grads)
    wanted = (after - before).abs().max().item()
    expect_close("farthest move of the next step", out["size"], wanted, rtol=1e-3, atol=1e-7)
    back = "Put the weights back."
    # The act alone can see the last bit; weights calculated here see all that matters.
    expect_equal("move of the weights by the measurement", out["drift"], 0.0, back)
    expect_close("weights after the measurement", out["kept"], before.float(), look=back)
    expect_like("weights after the real step", out["after"], out["kept"])
    real = (out["after"] - out["kept"]).abs().max().item()
    memory = "The optimizer's memory changed: restore it, too."
    expect_close("real step after the measurement", real, wanted, rtol=1e-3, atol=1e-7,
                 look=memory)
    expect_close("weights after the real step", out["after"], after.float(), rtol=1e-4, atol=1e-5,
                 look=memory)


def pairs_of(opt):
    return [(group["lr"], p) for group in opt.param_groups for p in group["params"]]


def measured(opt, distance=lambda d: d.abs().max(), pick=max, weights=True, memory=True):
    """Take a step, measure it, take back what the flags say."""
    params = [p for _, p in pairs_of(opt)]
    before = [p.detach().clone() for p in params]
    state = copy.deepcopy(opt.state_dict())
    opt.step()
    moves = [distance(p.detach() - b).item() for p, b in zip(params, before, strict=True)]
    for p, b in zip(params, before, strict=True) if weights else []:
        p.data.copy_(b)
    if memory:
        opt.load_state_dict(state)
    return pick(moves)


@ex.wrong("rate times gradient, whatever the optimizer", says="farthest move")
def rate_times_gradient(opt):
    return max(lr * p.grad.abs().max().item() for lr, p in pairs_of(opt))


@ex.wrong("the rate alone, as if every optimizer divided by the gradient", says="farthest move")
def rate_alone(opt):
    return max(lr for lr, _ in pairs_of(opt))


@ex.wrong("the weights left where the step took them", says="Put the weights back")
def leaves_weights(opt):
    return measured(opt, weights=False)


@ex.wrong("the optimizer's memory left one step ahead", says="restore it, too")
def leaves_memory(opt):
    return measured(opt, memory=False)


@ex.wrong("the mean move instead of the farthest", says="farthest move")
def mean_move(opt):
    return measured(opt, distance=lambda d: d.abs().mean())


@ex.wrong("the norm of the move instead of the farthest entry", says="farthest move")
def norm_of_move(opt):
    return measured(opt, distance=torch.Tensor.norm)


@ex.wrong("the first group only", says="farthest move")
def first_group(opt):
    return measured(opt, pick=lambda moves: moves[0])


# 04.3 train_cosine -----------------------------------------------------------------------------

ex = exercise("04.3", "train_cosine")


@ex.cases
def cases(g):
    def one(name, micro, epochs, accumulate):
        return name, {"slopes": torch.randn(micro, 3, generator=g), "epochs": epochs,
                      "accumulate": accumulate,
                      "rate": 0.05 + 0.2 * float(torch.rand((), generator=g))}
    return [one("a last update with fewer micro-batches", 5, 2, 2),
            one("one micro-batch an update", 4, 3, 1),
            one("groups of three", 6, 3, 3),
            one("seven micro-batches in groups of four", 7, 4, 4)]


@ex.act
def act(fn, slopes, epochs, accumulate, rate):
    import warnings

    w = nn.Parameter(torch.zeros(slopes.shape[1]))
    opt = torch.optim.SGD([w], lr=rate)
    rates, grads = [], []

    def record(opt, args, kwargs):
        rates.append(float(opt.param_groups[0]["lr"]))
        grads.append(torch.zeros_like(w) if w.grad is None else w.grad.clone())
    opt.register_step_pre_hook(record)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a scheduler called first shows in the rates
        fn(opt, [lambda s=s: (w * s).sum() for s in slopes], epochs, accumulate)
    left = w.grad is not None and bool((w.grad != 0).any())
    return {"rates": rates, "grads": torch.stack(grads) if grads else None, "left": left}


def group_sums(slopes, accumulate):
    """The gradient of each update of one epoch: sums of consecutive rows."""
    return [part.double().sum(0) for part in slopes.split(accumulate)]


@ex.law
def law(out, slopes, epochs, accumulate, rate):
    sums = group_sums(slopes, accumulate)
    updates = epochs * len(sums)
    expect_parts(out, "rates", "grads", "left")
    expect_length("updates", out["rates"], updates,
                  f"{len(slopes)} micro-batches in groups of {accumulate}, {epochs} epochs.")
    for k, got in enumerate(out["rates"]):
        wanted = rate * math.cos(math.pi * k / (2 * updates)) ** 2
        expect_close(f"rate of update {k} of {updates}", got, wanted, rtol=1e-4, atol=1e-8)
    expect_close("gradients of the updates", out["grads"],
                 torch.stack(sums * epochs).float(), rtol=1e-4, atol=1e-5)
    if out["left"] is not False:
        raise Broken("gradient after the call", "left over", "none", "Clear it after each update.")


def loop(opt, losses, epochs, accumulate, length, after, before=False, clear=True, ragged=True):
    """A training loop with the mistakes as options; `after` names when the schedule moves."""
    schedule = sched.CosineAnnealingLR(opt, length)
    for _ in range(epochs):
        for n, loss in enumerate(losses, 1):
            loss().backward()
            if n % accumulate == 0 or (ragged and n == len(losses)):
                if before:
                    schedule.step()
                opt.step()
                if clear:
                    opt.zero_grad()
                if after == "update" and not before:
                    schedule.step()
            if after == "micro":
                schedule.step()
        if after == "epoch":
            schedule.step()


def updates_of(losses, epochs, accumulate):
    return epochs * -(-len(losses) // accumulate)


@ex.wrong("T_max in epochs, called after every update", says="rate of update")
def epochs_per_update(opt, losses, epochs, accumulate):
    loop(opt, losses, epochs, accumulate, epochs, "update")


@ex.wrong("T_max in updates, called after every epoch", says="rate of update 1")
def updates_per_epoch(opt, losses, epochs, accumulate):
    loop(opt, losses, epochs, accumulate, updates_of(losses, epochs, accumulate), "epoch")


@ex.wrong("the schedule moved after every micro-batch", says="rate of update")
def per_micro(opt, losses, epochs, accumulate):
    loop(opt, losses, epochs, accumulate, updates_of(losses, epochs, accumulate), "micro")


@ex.wrong("T_max counts micro-batches", says="rate of update")
def length_in_micro(opt, losses, epochs, accumulate):
    loop(opt, losses, epochs, accumulate, epochs * len(losses), "update")


@ex.wrong("the schedule called before the optimizer", says="rate of update 0")
def schedule_first(opt, losses, epochs, accumulate):
    loop(opt, losses, epochs, accumulate, updates_of(losses, epochs, accumulate), "update",
         before=True)


@ex.wrong("the last, smaller group of an epoch never used", says="number of updates")
def drops_the_rest(opt, losses, epochs, accumulate):
    loop(opt, losses, epochs, accumulate, epochs * (len(losses) // accumulate), "update",
         ragged=False)


@ex.wrong("gradients never cleared", says="gradients of the updates", trap="02.1")
def never_clears(opt, losses, epochs, accumulate):
    loop(opt, losses, epochs, accumulate, updates_of(losses, epochs, accumulate), "update",
         clear=False)


# What the hand-written update rules share ------------------------------------------------------

STEPS, AT = 200, (0, 1, 11, 99, 199)


def expect_path(got, wanted, after):
    """Compare weights step by step, so that the feedback names the first step that is off."""
    expect_like(f"weights after {len(after)} of {STEPS} steps", got, wanted)
    for row, step in enumerate(after):
        expect_close(f"weights after {step + 1} of {STEPS} steps", got[row], wanted[row],
                     rtol=1e-4, atol=1e-4)


def snapshots(step, weights, grads):
    """Weights after the steps AT, for step(w, grad, k) applied in place to a copy."""
    w, shown = weights.clone(), []
    for k, grad in enumerate(grads):
        step(w, grad, k)
        if k in AT:
            shown.append(w.clone())
    return torch.stack(shown)


def by_torch(build, weights, grads, rate_at=None, missing=()):
    """The same from a torch optimizer; steps in `missing` have grad None."""
    w = nn.Parameter(weights.clone())
    opt = build([w])

    def step(kept, grad, k):
        w.grad = None if k in missing else grad.clone()
        if rate_at:
            opt.param_groups[0]["lr"] = rate_at(k)
        opt.step()
        kept.copy_(w.detach())
    return snapshots(step, weights, grads)


# 04.4 decoupled_step ---------------------------------------------------------------------------

ex = exercise("04.4", "decoupled_step")
SHOWN = (0, 9, 199)  # steps after which weights are compared


@ex.cases
def cases(g):
    def one(name, kind, decay):
        rate = 0.01 + 0.02 * float(torch.rand((), generator=g))
        return name, {"kind": kind, "rates": [rate, 3 * rate], "decay": decay,
                      "weights": torch.randn(3, 5, generator=g) + 1,
                      "grads": torch.randn(200, 2, 5, generator=g) * torch.tensor(
                          [0.01, 0.1, 1.0, 3.0, 10.0])}
    return [one("Adam, 200 steps", "adam", 0.1), one("SGD, 200 steps", "sgd", 0.2),
            one("SGD with momentum", "momentum", 0.05)]


@ex.act
def act(fn, kind, rates, decay, weights, grads):
    params = [nn.Parameter(w.clone()) for w in weights]
    groups = [{"params": [params[0], params[2]], "lr": rates[0]},
              {"params": [params[1]], "lr": rates[1]}]
    opt = (torch.optim.Adam(groups) if kind == "adam"
           else torch.optim.SGD(groups, momentum=0.9 if kind == "momentum" else 0.0))
    shown = []
    for step, pair in enumerate(grads):
        for p, grad in zip(params, pair):  # the third parameter never has a gradient
            p.grad = grad.clone()
        fn(opt, decay)
        if step in (0, 9, 199):
            shown.append(torch.stack([p.detach().clone() for p in params]))
    return {"weights": torch.stack(shown)}


def with_torch_adamw(rates, decay, weights, grads):
    params = [nn.Parameter(w.clone()) for w in weights]
    opt = torch.optim.AdamW([{"params": [p], "lr": lr} for p, lr in zip(params, rates)],
                            weight_decay=decay)
    shown = []
    for step, pair in enumerate(grads):
        for p, grad in zip(params, pair, strict=True):
            p.grad = grad.clone()
        opt.step()
        if step in SHOWN:
            shown.append(torch.stack([p.detach().clone() for p in params]))
    return torch.stack(shown)


def with_decayed_sgd(momentum, rates, decay, weights, grads):
    """w <- (1 - lr decay) w - lr b with b <- momentum b + g, in float64."""
    lr = torch.tensor(rates, dtype=torch.float64)[:, None]
    w, b, shown = weights.double(), torch.zeros(2, 5, dtype=torch.float64), []
    for step, g in enumerate(grads.double()):
        b = momentum * b + g
        w = w - lr * decay * w - lr * b
        if step in SHOWN:
            shown.append(w)
    return torch.stack(shown).float()


@ex.law
def law(out, kind, rates, decay, weights, grads):
    if kind == "adam":
        wanted = with_torch_adamw(rates, decay, weights[:2], grads)
    else:
        wanted = with_decayed_sgd(0.9 if kind == "momentum" else 0.0, rates, decay,
                                  weights[:2], grads)
    expect_parts(out, "weights")
    rest = weights[2].expand(len(SHOWN), 1, 5)
    expect_path(out["weights"], torch.cat([wanted, rest], 1), SHOWN)


def live(opt):
    return [(group, p) for group in opt.param_groups for p in group["params"]
            if p.grad is not None]


@ex.wrong("decay added to the gradient: L2, not decoupled", says="weights after")
def into_the_gradient(opt, weight_decay):
    for _, p in live(opt):
        p.grad.add_(p.detach(), alpha=weight_decay)
    opt.step()


@ex.wrong("the weight shrunk after the step", says="weights after")
@torch.no_grad()
def after_the_step(opt, weight_decay):
    opt.step()
    for group, p in live(opt):
        p.mul_(1 - group["lr"] * weight_decay)


@ex.wrong("shrunk by the decay alone, the rate forgotten", says="weights after")
@torch.no_grad()
def without_the_rate(opt, weight_decay):
    for _, p in live(opt):
        p.mul_(1 - weight_decay)
    opt.step()


@ex.wrong("the first group's rate for every group", says="weights after")
@torch.no_grad()
def first_rate(opt, weight_decay):
    for _, p in live(opt):
        p.mul_(1 - opt.param_groups[0]["lr"] * weight_decay)
    opt.step()


@ex.wrong("parameters without a gradient shrunk as well", says="weights after")
@torch.no_grad()
def shrinks_all(opt, weight_decay):
    for group in opt.param_groups:
        for p in group["params"]:
            p.mul_(1 - group["lr"] * weight_decay)
    opt.step()


@ex.wrong("a fixed amount off each weight, by its sign", says="weights after")
@torch.no_grad()
def by_sign(opt, weight_decay):
    for group, p in live(opt):
        p.sub_(group["lr"] * weight_decay * p.sign())
    opt.step()


# 04.5 lr_find ----------------------------------------------------------------------------------

ex = exercise("04.5", "lr_find")


@ex.cases
def cases(g):
    def one(name, steps, low, high, broken_at=None):
        x = torch.randn(steps, 24, 3, generator=g)
        y = x @ torch.randn(3, 1, generator=g) + 2 + 0.1 * torch.randn(steps, 24, 1, generator=g)
        if broken_at is not None:
            y[broken_at] = float("nan")
        return name, {"x": x, "y": y, "weight": torch.randn(1, 3, generator=g) * 3,
                      "low": low, "high": high}
    return [one("a sweep that runs away", 40, 1e-3, 10.0),
            one("a wider sweep", 60, 1e-4, 100.0),
            one("a NaN in the middle", 30, 1e-3, 0.5, broken_at=22)]


@ex.act
def act(fn, x, y, weight, low, high):
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.zero_()
    drawn = []

    def loss_of(model):
        k = len(drawn)
        drawn.append(k)
        return F.mse_loss(model(x[k]), y[k])
    rate = fn(model, loss_of, len(x), low, high)
    return {"rate": rate, "drawn": len(drawn), "weight": model.weight, "bias": model.bias}


def swept(x, y, weight, low, high):
    """Losses and rates of the test, with the gradient of the mean square written out."""
    x = torch.cat([x, torch.ones_like(x[..., :1])], -1).double()
    w = torch.cat([weight, torch.zeros(1, 1)], 1).double().T
    losses, rates = [], torch.logspace(math.log10(low), math.log10(high), len(x),
                                       dtype=torch.float64).tolist()
    for rows, target, rate in zip(x, y.double(), rates, strict=True):
        error = rows @ w - target
        losses.append(error.square().mean().item())
        if not losses[-1] <= 4 * min(losses):
            break
        w = w - rate * 2 / len(rows) * rows.T @ error
    return losses, rates


@ex.law
def law(out, x, y, weight, low, high):
    expect_parts(out, "rate", "drawn", "weight", "bias")
    losses, rates = swept(x, y, weight, low, high)
    sane = [v for v in losses if v == v]
    wanted = rates[losses.index(min(sane))] / 10
    expect_close("suggested rate", out["rate"], wanted, rtol=1e-3, atol=1e-9,
                 look="A tenth of the rate at the lowest loss.")
    # Counted beside the learner's code: the rate alone does not show where the test ended.
    expect_equal("batches drawn", out["drawn"], len(losses),
                 "The test ends at a NaN or at 4 times the lowest loss.")
    expect_close("weights after the test", out["weight"], weight, rtol=0.0, atol=0.0,
                 look="Keep a copy and load it back.")
    expect_close("bias after the test", out["bias"], torch.zeros(1), rtol=0.0, atol=0.0)


def find(model, loss_of, steps, low, high, *, at=lambda rates, best: rates[best] / 10,
         rate_of=lambda k, n, low, high: low * (high / low) ** (k / (n - 1)),
         ends=lambda loss, best: not loss <= 4 * best, restore=True):
    """A range test with the mistakes as options."""
    saved = copy.deepcopy(model.state_dict())
    opt = torch.optim.SGD(model.parameters(), lr=low)
    rates, losses = [rate_of(k, steps, low, high) for k in range(steps)], []
    for rate in rates:
        opt.param_groups[0]["lr"] = rate
        loss = loss_of(model)
        if ends(loss.item(), min(losses, default=math.inf)):
            break
        losses.append(loss.item())
        opt.zero_grad()
        loss.backward()
        opt.step()
    if restore:
        model.load_state_dict(saved)
    return at(rates, losses.index(min(v for v in losses if v == v)))


@ex.wrong("the rate of the lowest loss itself", says="suggested rate")
def the_minimum(model, loss_of, steps, low, high):
    return find(model, loss_of, steps, low, high, at=lambda rates, best: rates[best])


@ex.wrong("the weights left as the test made them", says="Keep a copy")
def not_restored(model, loss_of, steps, low, high):
    return find(model, loss_of, steps, low, high, restore=False)


@ex.wrong("rates that grow by an amount, not by a factor", says="suggested rate")
def linear_rates(model, loss_of, steps, low, high):
    return find(model, loss_of, steps, low, high,
                rate_of=lambda k, n, low, high: low + (high - low) * k / (n - 1))


@ex.wrong("no early end: the sweep goes on after the loss ran away", says="batches drawn")
def never_ends(model, loss_of, steps, low, high):
    return find(model, loss_of, steps, low, high, ends=lambda loss, best: False)


@ex.wrong("loss > 4 * best, which NaN slips through", says="batches drawn")
def nan_goes_on(model, loss_of, steps, low, high):
    return find(model, loss_of, steps, low, high, ends=lambda loss, best: loss > 4 * best)


@ex.wrong("each loss paired with the rate of the step before it", says="suggested rate")
def one_early(model, loss_of, steps, low, high):
    return find(model, loss_of, steps, low, high,
                at=lambda rates, best: rates[max(0, best - 1)] / 10)


@ex.wrong("k / steps in the exponent: the last rate is never reached", says="suggested rate")
def never_at_high(model, loss_of, steps, low, high):
    return find(model, loss_of, steps, low, high,
                rate_of=lambda k, n, low, high: low * (high / low) ** (k / n))


# 04.6 warmup_cosine ----------------------------------------------------------------------------

ex = exercise("04.6", "warmup_cosine")


@ex.cases
def cases(g):
    def one(name, warm, total):
        peak = 0.1 + float(torch.rand((), generator=g))
        floor = peak * (0.1 + 0.2 * float(torch.rand((), generator=g)))
        return name, {"warm": warm, "total": total, "peak": peak, "floor": floor}
    return [one("a warm-up of 4 steps", 4, 20), one("a single step of warm-up", 1, 9),
            one("a long warm-up", 10, 13)]


@ex.act
def act(fn, warm, total, peak, floor):
    return [fn(step, warm, total, peak, floor) for step in range(total + 4)]


@ex.law
def law(out, warm, total, peak, floor):
    expect_length("rates", out, total + 4)
    for step, got in enumerate(out):
        if step < warm:
            wanted, where = peak * (step + 1) / warm, "in the warm-up"
        elif step < total:
            angle = math.pi / 2 * (step - warm + 1) / (total - warm)
            wanted = peak * math.cos(angle) ** 2 + floor * math.sin(angle) ** 2
            where = "on the cosine"
        else:
            wanted, where = floor, "past the end"
        expect_close(f"rate at step {step} ({where}, warm {warm}, total {total})", got, wanted,
                     rtol=1e-5, atol=1e-9)


def curve(step, warm, total, peak, floor, *, shift=1, first=1, span=None, cap=True,
          shape=lambda d: 0.5 * (1 + math.cos(math.pi * d))):
    """The right curve with the mistakes as options."""
    if step < warm:
        return peak * (step + first) / warm
    done = (step - warm + shift) / (span or total - warm)
    return floor + (peak - floor) * shape(min(1.0, done) if cap else done)


@ex.wrong("max() of the cosine and the floor", says="on the cosine")
def cut_off(step, warm, total, peak, floor):
    return max(floor, curve(step, warm, total, peak, 0.0)) if step >= warm else curve(
        step, warm, total, peak, floor)


@ex.wrong("a cosine that ends at zero", says="on the cosine")
def no_floor(step, warm, total, peak, floor):
    return curve(step, warm, total, peak, 0.0)


@ex.wrong("step / warm: the first step has a rate of zero", says="rate at step 0")
def zero_first(step, warm, total, peak, floor):
    return curve(step, warm, total, peak, floor, first=0)


@ex.wrong("off by one: the peak twice, the floor never", says="on the cosine")
def peak_twice(step, warm, total, peak, floor):
    return curve(step, warm, total, peak, floor, shift=0)


@ex.wrong("the cosine counted over all steps, warm-up included", says="on the cosine")
def over_total(step, warm, total, peak, floor):
    return curve(step, warm, total, peak, floor, span=total)


@ex.wrong("a rate that climbs again past the end", says="past the end")
def climbs_again(step, warm, total, peak, floor):
    return curve(step, warm, total, peak, floor, cap=False)


@ex.wrong("a straight line instead of a cosine", says="on the cosine")
def straight(step, warm, total, peak, floor):
    return curve(step, warm, total, peak, floor, shape=lambda d: 1 - d)


# 04.7 momentum_step ----------------------------------------------------------------------------

ex = exercise("04.7", "momentum_step")


@ex.cases
def cases(g):
    def one(name, momentum, gaps, zeros):
        grads = torch.randn(STEPS, 4, generator=g)
        grads[zeros] = 0.0
        first = 0.01 + 0.05 * float(torch.rand((), generator=g))
        return name, {"weights": torch.randn(4, generator=g), "grads": grads, "missing": gaps,
                      "momentum": momentum, "rates": [first, 0.3 * first]}
    return [one("a gradient at every step", 0.9, [], []),
            one("steps with None", 0.9, [1, 7, 8, 9, 50, 99, 199], []),
            one("steps with zeros", 0.8, [], [1, 11, 60, 99, 199]),
            one("momentum 0 is plain SGD", 0.0, [3], [])]


@ex.act
def act(fn, weights, grads, missing, momentum, rates):
    w, state, shown = weights.clone(), {}, []
    buffer = torch.empty_like(w)  # one tensor for all gradients, as a caller may do
    for k, grad in enumerate(grads):
        buffer.copy_(grad)
        fn(w, None if k in missing else buffer, state, rates[k >= 100], momentum)
        if k in (0, 1, 11, 99, 199):
            shown.append(w.clone())
    return {"weights": torch.stack(shown)}


@ex.law
def law(out, weights, grads, missing, momentum, rates):
    expect_parts(out, "weights")
    wanted = by_torch(lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=momentum), weights, grads,
                      rate_at=lambda k: rates[k >= 100], missing=missing)
    expect_path(out["weights"], wanted, AT)


def sgd(w, grad, state, lr, momentum, *, dampening=0.0, nesterov=False, in_buffer=False):
    """The right step with the mistakes as options."""
    scale = lr if in_buffer else 1.0
    b = momentum * state.get("b", 0) + scale * (1 - dampening) * grad
    state["b"] = b
    move = grad + momentum * b if nesterov else b
    w.sub_(move if in_buffer else lr * move)


@ex.wrong("None treated as a gradient of zeros", says="weights after")
def none_is_zero(w, grad, state, lr, momentum):
    sgd(w, torch.zeros_like(w) if grad is None else grad, state, lr, momentum)


@ex.wrong("a gradient of zeros skipped as if it were None", says="weights after")
def zero_is_none(w, grad, state, lr, momentum):
    if grad is not None and (grad != 0).any():
        sgd(w, grad, state, lr, momentum)


@ex.wrong("only a share 1 - momentum of the gradient goes into the buffer", says="weights after")
def averaged(w, grad, state, lr, momentum):
    if grad is not None:
        sgd(w, grad, state, lr, momentum, dampening=momentum)


@ex.wrong("the rate inside the buffer: a later change comes too late", says="weights after")
def rate_in_buffer(w, grad, state, lr, momentum):
    if grad is not None:
        sgd(w, grad, state, lr, momentum, in_buffer=True)


@ex.wrong("Nesterov's look-ahead", says="weights after")
def look_ahead(w, grad, state, lr, momentum):
    if grad is not None:
        sgd(w, grad, state, lr, momentum, nesterov=True)


@ex.wrong("the caller's gradient kept as the buffer", says="weights after")
def keeps_reference(w, grad, state, lr, momentum):
    if grad is None:
        return
    state["b"] = state["b"].mul_(momentum).add_(grad) if "b" in state else grad
    w.sub_(lr * state["b"])


@ex.wrong("the buffer forgotten between calls", says="weights after")
def forgets(w, grad, state, lr, momentum):
    if grad is not None:
        w.sub_(lr * grad)


# 04.8 adam_step --------------------------------------------------------------------------------

ex = exercise("04.8", "adam_step", by_hand=("Adam", "AdamW", "adam", "adamw"))


@ex.cases
def cases(g):
    def one(name, decay=0.0, scale=1.0, betas=(0.9, 0.999), drift=0.3):
        grads = (torch.randn(STEPS, 4, generator=g) + drift) * scale
        return name, {"weights": torch.randn(4, generator=g) + 1, "grads": grads,
                      "lr": 0.005 + 0.01 * float(torch.rand((), generator=g)),
                      "betas": list(betas), "decay": decay}
    return [one("Adam"), one("AdamW", decay=0.3),
            one("Adam with gradients near eps", scale=3e-8),
            one("other betas, with decay", decay=0.1, betas=(0.8, 0.95))]


@ex.act
def act(fn, weights, grads, lr, betas, decay):
    w, state, shown, touched = weights.clone(), {}, [], False
    for k, grad in enumerate(grads):
        given = grad.clone()
        fn(w, given, state, lr, tuple(betas), 1e-8, decay)
        touched = touched or not torch.equal(given, grad)
        if k in (0, 1, 11, 99, 199):
            shown.append(w.clone())
    return {"weights": torch.stack(shown), "touched": touched}


@ex.law
def law(out, weights, grads, lr, betas, decay):
    expect_parts(out, "weights", "touched")

    def build(params):
        if decay:
            return torch.optim.AdamW(params, lr=lr, betas=tuple(betas), weight_decay=decay)
        return torch.optim.Adam(params, lr=lr, betas=tuple(betas))
    expect_path(out["weights"], by_torch(build, weights, grads), AT)
    if out["touched"] is not False:  # seen from inside: the gradients do not come back
        raise Broken("the caller's gradient", "changed", "left alone", "Work on a copy.")


def adam(w, grad, state, lr, betas, eps, decay, *, fix_m=True, fix_v=True, start=0, inside=False,
         store=False, coupled=False, keep_decay=True):
    """The right step with the mistakes as options."""
    b1, b2 = betas
    g = grad + decay * w if coupled else grad
    t = state["t"] = state.get("t", start) + 1
    m = b1 * state.get("m", 0) + (1 - b1) * g
    v = b2 * state.get("v", 0) + (1 - b2) * g * g
    m_hat, v_hat = m / (1 - b1**t) if fix_m else m, v / (1 - b2**t) if fix_v else v
    state["m"], state["v"] = (m_hat, v_hat) if store else (m, v)
    if keep_decay and not coupled:
        w.mul_(1 - lr * decay)
    w.sub_(lr * m_hat / ((v_hat + eps).sqrt() if inside else v_hat.sqrt() + eps))


@ex.wrong("no bias correction", says="weights after")
def uncorrected(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, fix_m=False, fix_v=False)


@ex.wrong("only the first average corrected", says="weights after")
def corrects_m_only(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, fix_v=False)


@ex.wrong("a count that starts one too high", says="weights after")
def late_count(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, start=1)


@ex.wrong("eps under the root", says="weights after")
def eps_inside(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, inside=True)


@ex.wrong("the corrected averages kept as state", says="weights after")
def stores_corrected(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, store=True)


@ex.wrong("decay added to the gradient: L2, not decoupled", says="weights after", trap="04.4")
def coupled_decay(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, coupled=True)


@ex.wrong("no decay at all", says="weights after")
def without_decay(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, keep_decay=False)


# 04.9 lion_step --------------------------------------------------------------------------------

ex = exercise("04.9", "lion_step")


def blends(grads, b1, b2):
    """What Lion takes the sign of at each step, in float64. Source: Chen et al. 2023, alg. 2."""
    m, out = torch.zeros_like(grads[0], dtype=torch.float64), []
    for g in grads.double():
        out.append(b1 * m + (1 - b1) * g)
        m = b2 * m + (1 - b2) * g
    return torch.stack(out)


@ex.cases
def cases(g):
    def one(name, decay, betas=(0.9, 0.99)):
        grads = torch.randn(STEPS, 4, generator=g)
        while blends(grads, *betas).abs().min() < 1e-5:  # a sign that rounding could turn
            grads = torch.randn(STEPS, 4, generator=g)
        return name, {"weights": torch.randn(4, generator=g) + 1, "grads": grads,
                      "lr": 0.005 + 0.01 * float(torch.rand((), generator=g)),
                      "betas": list(betas), "decay": decay}
    return [one("no decay", 0.0), one("with decay", 0.5),
            one("other betas", 0.2, (0.5, 0.95))]


@ex.act
def act(fn, weights, grads, lr, betas, decay):
    w, state, shown, touched = weights.clone(), {}, [], False
    for k, grad in enumerate(grads):
        given = grad.clone()
        fn(w, given, state, lr, tuple(betas), decay)
        touched = touched or not torch.equal(given, grad)
        if k in (0, 1, 11, 99, 199):
            shown.append(w.clone())
    return {"weights": torch.stack(shown), "touched": touched}


@ex.law
def law(out, weights, grads, lr, betas, decay):
    expect_parts(out, "weights", "touched")
    w, shown = weights.double(), []
    for k, blend in enumerate(blends(grads, *betas)):
        w = w - lr * (blend.sign() + decay * w)
        if k in AT:
            shown.append(w)
    expect_path(out["weights"], torch.stack(shown).float(), AT)
    if out["touched"] is not False:  # seen from inside: the gradients do not come back
        raise Broken("the caller's gradient", "changed", "left alone", "Work on a copy.")


def lion(w, grad, state, lr, b1, b2, decay, *, early=False, bare=False, coupled=False,
         signed=True, with_rate=True):
    """The right step with the mistakes as options."""
    g = grad + decay * w if coupled else grad
    m = state.get("m", torch.zeros_like(w))
    state["m"] = b2 * m + (1 - b2) * g
    m = state["m"] if early else m
    move = m if bare else b1 * m + (1 - b1) * g
    if not coupled:
        w.mul_(1 - (lr if with_rate else 1.0) * decay)
    w.sub_(lr * (move.sign() if signed else move))


@ex.wrong("one beta for both jobs", says="weights after")
def one_beta(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, betas[0], betas[0], weight_decay)


@ex.wrong("the two betas swapped", says="weights after")
def swapped_betas(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, betas[1], betas[0], weight_decay)


@ex.wrong("the momentum updated before the direction is taken", says="weights after")
def updates_first(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, *betas, weight_decay, early=True)


@ex.wrong("the sign of the momentum alone", says="weights after")
def sign_of_momentum(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, *betas, weight_decay, early=True, bare=True)


@ex.wrong("decay added to the gradient, where the sign swallows it", says="weights after",
          trap="04.4")
def decay_in_the_sign(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, *betas, weight_decay, coupled=True)


@ex.wrong("the blend itself, without its sign", says="weights after")
def no_sign(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, *betas, weight_decay, signed=False)


@ex.wrong("shrunk by the decay alone, the rate forgotten", says="weights after")
def decay_without_rate(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, *betas, weight_decay, with_rate=False)
