"""Compute the answers of review questions in a second way: by torch, a count, or a new formula.

A row answers by a formula. Here the numbers in the question go through the mechanism that it is
about, so a wrong formula shows up, and so does a torch that behaves differently.
"""

import copy
import functools
import itertools
import math
import random
import re
import statistics

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DistributedSampler
from torchvision.transforms import v2

from dlsys_checks import questions
from dlsys_helpers.measure import saved_bytes


def values(one) -> list[float]:
    """The numbers in a question's text, in order."""
    found = re.findall(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", one.text)
    return [float(text) if set(text) & set(".e") else int(text.replace(",", "")) for text in found]


# ---- machines

def slope(function, at):
    """The derivative of a function of one number."""
    x = torch.tensor(float(at), dtype=torch.float64, requires_grad=True)
    function(x).backward()
    return x.grad


def sigmoids(x, depth, w):
    for _ in range(depth):
        x = torch.sigmoid(w * (x - x.detach()))  # every pre-activation is 0
    return x


def edited(function, edit, at):
    """The gradient at x after y = function(x), with y.data edited before the backward pass."""
    x = torch.tensor(float(at), dtype=torch.float64, requires_grad=True)
    y = function(x)
    edit(y.data)
    y.backward()
    return x.grad


def piled(norm, calls):
    """What `calls` backward passes leave in .grad."""
    w = torch.zeros(1, requires_grad=True)
    for _ in range(calls):
        (norm * w).sum().backward()
    return w.grad


def summed(rows, norm):
    """The gradient after losses.backward(ones), where the mean loss has this gradient."""
    w = torch.ones(1, dtype=torch.float64, requires_grad=True)
    (norm * w.expand(rows)).backward(torch.ones(rows, dtype=torch.float64))
    return w.grad


def pendulum(a, _, __, w, lr):
    first = w - lr * a * w
    return first - lr * (a * w + a * first)


def stepped(rule, start, grads, **options):
    """Where a float64 weight ends after these gradients; None is a step without one."""
    w = nn.Parameter(torch.tensor([float(start)], dtype=torch.float64))
    opt = getattr(torch.optim, rule)([w], **options)
    for g in grads:
        w.grad = None if g is None else torch.full_like(w, g)
        opt.step()
    return w.item()


def first_moment(g, steps, *_):
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = torch.optim.Adam([w])
    for _ in range(steps):
        w.grad = torch.full_like(w, g)
        opt.step()
    return opt.state[w]["exp_avg"]


def last_rate(size, gamma, _, lr, calls):
    opt = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    schedule = torch.optim.lr_scheduler.StepLR(opt, size, gamma=gamma)
    for _ in range(calls):
        opt.step()
        schedule.step()
    return schedule.get_last_lr()[0]


def total_norm(a, b, limit):
    params = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    for p, g in zip(params, (a, b), strict=True):
        p.grad = torch.tensor([float(g)])
    return nn.utils.clip_grad_norm_(params, limit)


def polar(matrix):
    """The matrix with its singular values brought to one."""
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    return u @ v


def stacked(k, d, *_):
    stack = torch.randn(k * d, d, generator=torch.Generator().manual_seed(0)).double()
    return torch.cat([polar(part) for part in stack.chunk(k)]).norm() / polar(stack).norm()


def normed(x, mean, var):
    """What a BatchNorm with these statistics returns in eval mode."""
    norm = nn.BatchNorm1d(1, affine=False).eval()
    norm.running_mean.fill_(mean)
    norm.running_var.fill_(var)
    return norm(torch.tensor([[float(x)]]))


def moved_mean(stored, seen, batches=1, momentum=0.1):
    """The stored mean after batches of mean `seen` in train mode."""
    norm = nn.BatchNorm1d(1, momentum=momentum).requires_grad_(False)
    norm.running_mean.fill_(stored)
    for _ in range(batches):
        norm(torch.tensor([[seen - 1.0], [seen + 1.0]]))
    return norm.running_mean


def moved_buffers(norms):
    norm = nn.BatchNorm1d(2).requires_grad_(False)
    before = [b.clone() for b in norm.buffers()]
    norm(torch.tensor([[3.0, 1.0], [8.0, -4.0], [1.0, 2.0]]))
    return norms * sum(not torch.equal(a, b) for a, b in zip(before, norm.buffers(), strict=True))


def products_in_an_entry(rows, inputs, units):
    """One entry of a weight's gradient if every factor is 1."""
    weight = torch.zeros(units, inputs, requires_grad=True)
    (torch.ones(rows, inputs) @ weight.T).sum().backward()
    return weight.grad[0, 0]


def first_adam_step(lr, gradient):
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    weight.grad = torch.full_like(weight, gradient)
    torch.optim.Adam([weight], lr=lr).step()
    return weight.detach().abs()


def many(kind, count):
    return nn.Sequential(*(kind() for _ in range(count)))


def size(*modules):
    """How many parameters these modules have, as numbers."""
    return sum(p.numel() for module in modules for p in module.parameters())


def listed(registered, hidden):
    """A module with registered parts, and others in a plain list."""
    net = nn.Sequential(*registered)
    net.blocks = hidden
    return net


def frozen_and_woken(layers, frozen):
    model = many(lambda: nn.BatchNorm1d(2), layers)
    for module in model[:frozen]:
        module.eval()
    model.eval()
    model.train()
    return sum(module.training for module in model[:frozen])


def unheld(layers, replaced):
    model = many(lambda: nn.Linear(2, 2), layers)
    held = set(model.parameters())
    for n in range(replaced):
        model[n] = nn.Linear(2, 2)
    return sum(p not in held for p in model.parameters())


def kept(keep, epochs, at):
    """A weight grows by 1 per epoch; return, at the end, what `keep` kept after one epoch."""
    model = nn.Linear(1, 1, bias=False).requires_grad_(False)
    model.weight.zero_()
    for epoch in range(1, epochs + 1):
        model.weight.add_(1)
        if epoch == at:
            best = keep(model.state_dict())
    return best["weight"]


def byte(value):
    return torch.tensor([value], dtype=torch.uint8)


def field(layers):
    """The receptive field of the middle unit, by autograd; layers (K, S, D)."""
    x = torch.zeros(1, 1, 400, requires_grad=True)
    h = x
    for kernel, stride, dilation in layers:
        h = F.conv1d(h, torch.ones(1, 1, kernel), stride=stride, dilation=dilation)
    h[0, 0, h.shape[-1] // 2].backward()
    seen = x.grad[0, 0].nonzero()[:, 0]
    return int(seen[-1] - seen[0]) + 1


def meta(*shape, **options):
    return torch.empty(*shape, device="meta", **options)


def counter(_, step):
    value = torch.zeros((), dtype=torch.bfloat16)
    while value + step != value:
        value += step
    return value


def saved_tensors(linears, buffers, plain):
    model = many(lambda: nn.Linear(2, 2), linears)
    for k in range(buffers):
        model.register_buffer(f"table{k}", torch.ones(2))
    for k in range(plain):
        setattr(model, f"plain{k}", torch.ones(2))
    return len(model.state_dict())


def dealt(n, world, **options):
    """How many examples a rank gets."""
    return len(DistributedSampler(range(n), num_replicas=world, rank=0, **options))


def orders(epochs, n):
    sampler = DistributedSampler(range(n), num_replicas=2, rank=0)
    return len({tuple(sampler) for _ in range(epochs)})


def reader(inputs, width, classes):
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, classes))


def kl_slope(p, _, q, __):
    logits = torch.tensor([p, 1 - p], dtype=torch.float64).log().requires_grad_()
    policy = logits.softmax(0)
    (policy * (policy / torch.tensor([q, 1 - q]).double()).log()).sum().backward()
    return logits.grad[0]


def divided(passes, micro):
    grads = []
    for _ in range(passes):
        grads = [g / micro for g in [*grads, 1.0]]
    return grads[-1] / grads[0]


def idle(stages, micro):
    ends = {}
    for m, s in itertools.product(range(micro), range(stages)):
        ends[s, m] = max(ends.get((s - 1, m), 0), ends.get((s, m - 1), 0)) + 1
    return 100 * (1 - micro / ends[stages - 1, micro - 1])


def exposed(layers, back, send):
    now = free = 0
    for _ in range(layers):
        now += back
        free = max(now, free) + send
    return free - now


def pairs_of_last(ranks, part=100_000):
    return 100 * sum(range((ranks - 1) * part + 1, ranks * part + 1)) / sum(
        range(1, ranks * part + 1))


# ---- routes: a trap and its question's number, from 1; a function of the numbers in the text

ROUTES = {
    ("01.1", 1): lambda scale, p: F.dropout(torch.full((1000,), float(scale)), p).max(),
    ("01.1", 2): lambda momentum, stored, seen: moved_mean(stored, seen, momentum=momentum),
    ("01.1", 3): lambda mean, var, x, *_: normed(x, mean, var),
    ("01.1", 4): frozen_and_woken,
    ("01.2", 1): lambda cut: torch.tensor(float(cut)).sigmoid(),
    ("01.2", 3): lambda *z: torch.tensor(z[:3])[:, None].softmax(1).mean(),
    ("01.3", 1): lambda depth, w, at: slope(lambda x: sigmoids(x, depth, w), at),
    ("01.3", 2): lambda z: 1 / slope(torch.sigmoid, z),
    ("01.4", 2): lambda a, b, c, low, high: -max(
        a * x + b * y + c * z for x, y, z in itertools.product((low, high), repeat=3)),
    ("01.4", 4): lambda leak, bias, g, steps, lr: -steps * lr * g * slope(
        lambda b: F.leaky_relu(b, leak), bias),
    ("02.1", 1): piled,
    ("02.1", 2): lambda g, lr, steps: lr * g * steps * (steps + 1) / 2,
    ("02.1", 4): pendulum,
    ("02.2", 1): lambda rows, norm, _: summed(rows, norm),
    ("02.2", 2): lambda rows, _, lr: lr * summed(rows, 1),
    ("02.2", 3): lambda a, b, c, *weights: statistics.fmean([a, b, c], weights),
    ("02.3", 1): lambda x, v: edited(torch.sigmoid, lambda y: y.fill_(v), x),
    ("02.3", 2): lambda x, k: edited(torch.exp, lambda y: y.mul_(k), x),
    ("02.3", 3): lambda c, x: edited(lambda t: c * t, lambda y: y.zero_(), x),
    ("02.4", 1): lambda _, norm, parts, __: piled(norm, parts),
    ("02.4", 2): lambda _, full, last, __: full / last,
    ("02.4", 4): lambda parts, g, lr: -stepped("Adam", 0, [parts * g], lr=lr),
    ("02.5", 1): lambda relus, rows, width, batches, *_: batches * relus / 1e6 * saved_bytes(
        torch.zeros(rows, width, requires_grad=True).relu),
    ("02.5", 2): lambda relus, rows, width, *_: relus / 1e6 * saved_bytes(
        torch.zeros(rows, width, requires_grad=True).relu),
    ("02.6", 1): lambda w, x, b: slope(lambda w: w * x + w * x * b, w),
    ("02.6", 4): lambda p, q, s: slope(lambda a: p * (s * a) + q * (s * a), 1),
    ("03.1", 1): lambda classes: F.cross_entropy(torch.eye(classes)[:1], torch.tensor([0])),
    ("03.1", 2): lambda classes: F.cross_entropy(torch.zeros(1, classes), torch.tensor([0])),
    ("03.1", 3): lambda rows, classes, _: slope(lambda z: F.cross_entropy(
        F.pad(z.view(1, 1), (0, classes - 1)), torch.tensor([0])) / rows, 0),
    ("03.2", 1): lambda n, *_: (torch.zeros(n, 1) - torch.zeros(n)).numel(),
    ("03.2", 4): lambda rows, _, classes, without: F.cross_entropy(
        torch.zeros(rows, classes), torch.tensor([0] * (rows - without) + [-1] * without),
        ignore_index=-1),
    ("03.3", 3): total_norm,
    ("03.3", 4): lambda scale, _, limit, lr: lr * limit / scale,
    ("03.4", 1): lambda inputs, std: std**2 * inputs / 2,
    ("04.1", 1): lambda w, g, steps, lr, decay: stepped(
        "AdamW", w, [g] * steps, lr=lr, weight_decay=decay),
    ("04.1", 2): lambda layers, _: layers * sum(
        "bias" not in name and "LayerNorm.weight" not in name
        for name, _ in nn.TransformerEncoderLayer(8, 2, 8).named_parameters()),
    ("04.1", 3): lambda blocks: sum(p.ndim < 2 for p in nn.ModuleList(
        [nn.Embedding(2, 2), many(lambda: nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)),
                                  blocks)]).parameters()),
    ("04.2", 1): lambda g, lr: stepped("Adam", 0, [g], lr=lr) / stepped("SGD", 0, [g], lr=lr),
    ("04.2", 2): lambda factor, lr, g: -stepped("Adam", 0, [factor * g], lr=lr),
    ("04.2", 3): lambda g, lr, steps: -stepped("Adam", 0, [g] * steps, lr=lr),
    ("04.2", 4): lambda lr, mu, g: (stepped("SGD", 0, [g] * 200, lr=lr, momentum=mu)
                                    - stepped("SGD", 0, [g] * 201, lr=lr, momentum=mu)),
    ("04.3", 2): last_rate,
    ("04.3", 3): lambda total, lr, calls: lr * math.cos(math.pi * calls / total / 2) ** 2,
    ("04.4", 1): lambda lr, w, g, steps: stepped("AdamW", w, [g] * steps, lr=lr),
    ("04.4", 3): lambda lr, decay, w, g: w - stepped("Adam", w, [g], lr=lr, weight_decay=decay),
    ("04.4", 4): lambda w, steps, lr, decay: stepped(
        "AdamW", w, [None] * steps, lr=lr, weight_decay=decay),
    ("04.5", 1): lambda low, high, steps, _, __, k: torch.logspace(
        math.log10(low), math.log10(high), steps, dtype=torch.float64)[k],
    ("04.5", 4): lambda low, high, steps: torch.logspace(
        math.log10(low), math.log10(high), steps, dtype=torch.float64)[1] / low,
    ("04.7", 1): lambda lr, mu, g, zero: (stepped("SGD", 0, [g], lr=lr, momentum=mu)
                                          - stepped("SGD", 0, [g, zero], lr=lr, momentum=mu)),
    ("04.7", 2): lambda lr, mu, w, g, steps: stepped(
        "SGD", w, [g] + [None] * steps, lr=lr, momentum=mu),
    ("04.7", 4): lambda lr, mu, g: -stepped("SGD", 0, [g] + [0] * 200, lr=lr, momentum=mu),
    ("04.8", 3): first_moment,
    ("04.8", 4): lambda steps, beta, stored: stored / (1 - beta**steps),
    ("04.9", 3): lambda _, beta, m, g: m + (1 - beta) * (g - m),
    ("04.9", 5): lambda billions, *_: billions * torch.zeros(1000).nbytes / 1000,
    ("04.10", 1): lambda rows, ranks: torch.linalg.svdvals(torch.cat(
        [polar(part) for part in torch.ones(rows, 1).chunk(ranks)]))[0],
    ("04.10", 2): stacked,
    ("04.10", 4): lambda ranks, rows, *_: torch.arange(rows).chunk(ranks)[-1][0],
    ("05.1", 1): lambda mean, var, x: normed(x, mean, var),
    ("05.1", 2): lambda momentum, batches: moved_mean(1, 0, batches, momentum),
    ("05.1", 3): lambda big, a, small, b: statistics.fmean([a] * big + [b] * small),
    ("05.1", 4): lambda low, high: nn.BatchNorm1d(1, affine=False)(
        torch.tensor([[float(low)], [high]]))[1],
    ("05.1", 5): lambda _, __, side, ___: (
        statistics.variance(range(side**2)) / statistics.pvariance(range(side**2))),
    ("05.2", 1): lambda layers: layers * sum(
        isinstance(part, nn.LayerNorm) for part in nn.TransformerEncoderLayer(8, 2, 8).modules()),
    ("05.2", 3): lambda x, first, factor, last: x * (1 + factor) + first * factor + last,
    ("05.3", 4): lambda x, p: (x**2 / (1 - p) - x**2) ** 0.5,
    ("05.5", 1): lambda decay, start, w, steps: functools.reduce(
        lambda average, _: decay * average + (1 - decay) * w, range(steps), start),
    ("05.5", 2): lambda norms, _: len([*many(lambda: nn.BatchNorm1d(4), norms).buffers()]),
    ("05.5", 3): lambda mean, var, x: nn.BatchNorm1d(1, affine=False).eval()(
        torch.tensor([[float(x)]])),
    ("06.1", 1): lambda _, padding, *__: len(
        [*itertools.product(range(-padding, padding + 1), repeat=2)]),
    ("06.1", 2): lambda n: len(v2.RandomHorizontalFlip()(
        torch.arange(4.0).expand(n, 1, 4, 4)).unique(dim=0)),
    ("06.2", 2): lambda a, b, p, q: F.cross_entropy(
        torch.tensor([[p, q, max(1 - p - q, 1e-9)]]).log(), torch.tensor([[a, b, 0.0]])),
    ("06.2", 4): lambda total: (F.cross_entropy(torch.eye(3), total * torch.eye(3).roll(1, 0))
                                / F.cross_entropy(torch.eye(3), torch.eye(3).roll(1, 0))),
    ("06.3", 4): lambda p, batches: math.prod([p] * batches),
    ("06.4", 1): lambda _, epochs, __, at: kept(lambda state: state, epochs, at),
    ("06.4", 2): lambda _, epochs, __, at: kept(copy.deepcopy, epochs, at),
    ("06.4", 3): lambda norms: len(many(lambda: nn.BatchNorm1d(4), norms).state_dict()) - len(
        [*many(lambda: nn.BatchNorm1d(4), norms).parameters()]),
    ("06.5", 3): lambda *v: sum(v[3:]) / sum(v[:3]),
    ("06.6", 1): lambda value, d: byte(value) + d,
    ("06.6", 2): lambda value, d: byte(value) - d,
    ("06.6", 3): lambda value, d, low, high: (byte(value) + d).clamp(low, high),
    ("06.6", 4): lambda n, d: sum((byte(k) + d).item() < k for k in range(n)) / n,
    ("06.7", 1): lambda copies, share: 1 - (1 - share) ** (copies - 1),
    ("06.8", 2): lambda k, p: (torch.tensor(p).logit() - math.log(k)).sigmoid(),
    ("07.1", 1): lambda *window: F.max_pool1d(
        torch.zeros(1, 1, window[-1]), *window[:-1]).shape[-1],
    ("07.1", 2): lambda channels, rows, columns, _, batch: meta(
        batch, channels, rows, columns).nbytes / 1e6,
    ("07.1", 3): lambda side, _, times, *__: many(
        lambda: nn.Conv2d(1, 1, 3, 2, 1, device="meta"), times)(meta(1, 1, side, side)).shape[-1],
    ("07.1", 4): lambda side, _, channels, factor: meta(
        factor * channels, side // 2, side // 2).nbytes / meta(channels, side, side).nbytes,
    ("07.2", 1): lambda depth, kernel, _: field([(kernel, 1, 1)] * depth),
    ("07.2", 2): lambda _, __, depth, *___: field([(3, 1, 1)] * depth + [(2, 2, 1)]),
    ("07.2", 3): lambda before, _, __, stride, after: field(
        [(3, 1, 1)] * before + [(3, stride, 1)] + [(3, 1, 1)] * after),
    ("07.2", 4): lambda depth, _, __, spread, ___: field([(3, 1, spread)] * depth) // 2,
    ("07.3", 1): lambda width, classes: size(nn.Linear(width, classes)),
    ("07.3", 2): lambda inputs, channels, kernel, _: size(
        nn.Conv2d(inputs, channels, kernel, bias=False), nn.BatchNorm2d(channels)),
    ("07.4", 3): lambda mean, std, shift: normed(shift, mean, std**2),
    ("07.5", 1): lambda *shape: meta(shape, memory_format=torch.channels_last).stride(3),
    ("07.5", 2): lambda *shape: meta(shape, memory_format=torch.channels_last).stride(2),
    ("07.5", 3): lambda *shape: meta(shape).stride(1),
    ("07.6", 4): lambda decay: next(k for k in itertools.count() if decay**k < 0.5),
    ("07.7", 1): moved_buffers,
    ("07.7", 2): lambda momentum, stored, batches, seen: moved_mean(
        stored, seen, batches, momentum),
    ("07.7", 3): lambda parts, _: sum(
        part.training for part in nn.Sequential(many(nn.ReLU, parts).eval()).train()[0]),
    ("07.8", 1): lambda width, classes, blocks, *_: size(listed(
        [nn.Linear(width, classes)], [nn.Linear(width, width) for _ in range(blocks)])),
    ("07.8", 2): lambda heads, inputs, outputs: heads * size(nn.Linear(inputs, outputs)),
    ("07.8", 3): lambda blocks: len(listed(
        [nn.Linear(2, 2)], [nn.Linear(2, 2)] * blocks).state_dict()),
    ("07.8", 4): lambda registered, hidden: sum(part.training for part in listed(
        many(nn.Dropout, registered), [*many(nn.Dropout, hidden)]).eval().blocks),
    ("07.9", 1): lambda _, h, w, c, *rest: torch.arange(h * w * c).view(1, h, w, c).permute(
        rest[1:5])[rest[5:]],
    ("07.9", 2): lambda _, h, w, c, __, *rest: torch.arange(h * w * c).reshape(rest[:4])[rest[4:]],
    ("07.9", 3): lambda n, h, w, c, *_: meta(n, h, w, c).permute(0, 3, 1, 2).stride(3),
    ("07.10", 1): unheld,
    ("07.10", 2): lambda w, steps, lr, decay: stepped(
        "AdamW", w, [0] * steps, lr=lr, weight_decay=decay),
    ("07.10", 3): lambda w, lr, momentum, decay, steps: stepped(
        "SGD", w, [None] * steps, lr=lr, momentum=momentum, weight_decay=decay),
    ("07.11", 1): lambda _, channels, __, ___, images, *side: len(
        meta(images, channels, *side[:2]).view(-1, 64)),
    ("07.11", 2): lambda *shape: meta(shape[:4]).flatten(1).shape[1],
    ("07.11", 3): lambda images, channels, h, w, side, _: F.adaptive_avg_pool2d(
        meta(images, channels, h, w), side).flatten(1).shape[1],
    ("08.1", 3): lambda tokens: torch.ones(tokens, tokens).tril().sum(),
    ("08.2", 2): lambda _, one, tokens, zero, pads: torch.tensor(
        [float(one)] * tokens + [zero] * pads).softmax(0)[tokens:].sum(),
    ("08.2", 5): lambda tokens, value, pads, zero: statistics.fmean(
        [value] * tokens + [zero] * pads),
    ("08.9", 2): lambda weight, p: F.dropout(torch.full((1000,), weight), p).max(),
    ("09.2", 2): lambda pieces, n: len(range(0, pieces, n)),
    ("09.7", 1): lambda rows, world, rank, _: sum(
        map(len, torch.empty(rows).chunk(world)[rank:rank + 1])),
    ("09.8", 1): lambda number: number * torch.finfo(torch.bfloat16).eps,
    ("09.8", 2): counter,
    ("09.14", 2): saved_tensors,
    ("09.3", 2): lambda layers: 4 * len([*many(lambda: nn.Linear(2, 2), layers).parameters()]),
    ("09.5", 1): dealt,
    ("09.5", 2): lambda world, n: world * dealt(n, world) - n,
    ("09.5", 3): orders,
    ("09.5", 4): lambda world, n: n - world * dealt(n, world, drop_last=True),
    ("09.6", 3): lambda inputs, width, classes, small: 4 * size(
        reader(inputs, width, classes)) * (small - 1),
    ("09.11", 2): lambda *widths: 4 * size(reader(*widths)),
    ("10.2", 5): lambda w, change: (torch.tensor(float(w)) + change).bfloat16(),
    ("11.1", 1): lambda bits: len(range(-(2 ** (bits - 1) - 1), 2 ** (bits - 1))),
    ("11.1", 2): lambda bits, low, high, _: round(-low / ((high - low) / (2**bits - 1))),
    ("11.2", 2): lambda _, zero, rate, mu, memory: (
        stepped("SGD", 0, [memory, zero], lr=rate, momentum=mu)
        - stepped("SGD", 0, [memory], lr=rate, momentum=mu)),
    ("11.3", 1): lambda a, b, temperature: (torch.tensor([a, b]) / temperature).softmax(0)[0],
    ("11.3", 3): lambda rows, classes: math.prod((rows, classes)) / rows,
    ("11.3", 4): lambda _, alpha, classes: (1 - alpha) * F.cross_entropy(
        torch.zeros(1, classes), torch.tensor([0])),
    ("11.4", 2): lambda one, share: torch.tensor([1, -share]) @ torch.tensor(
        [[one, share], [share, one]]) @ torch.tensor([1, -share]),
    ("11.5", 1): lambda rows, columns, _: (
        meta(rows, columns, dtype=torch.int8).nbytes + meta(rows, 1).nbytes),
    ("11.5", 2): lambda rows, width, shown: torch.zeros(
        rows, width)[:shown].untyped_storage().nbytes(),
    ("11.5", 3): lambda *shape: meta(shape).nbytes,
    ("11.6", 4): lambda *shapes: (torch.zeros(shapes[:2]) - torch.zeros(shapes[2:])).numel(),
    ("11.9", 3): lambda rows, columns, group: (
        meta(rows, columns // 2, dtype=torch.uint8).nbytes + torch.zeros(()).nbytes
        + meta(rows, columns // group, dtype=torch.float8_e4m3fn).nbytes),
    ("13.1", 4): lambda block, tokens: len(range(block, tokens + 1, block)),
    ("13.4", 3): lambda first, _: sum(part.decode("utf-8", "replace").count("\ufffd") for part in (
        "🙂".encode()[:first], "🙂".encode()[first:])),
    ("13.5", 3): lambda p, _, q, __: min(p, q) + (1 - min(p, q) - min(1 - p, 1 - q)) * p,
    ("13.8", 3): lambda a, b, temperature: (torch.tensor([a, b]) / temperature).softmax(0)[0],
    ("14.2", 1): lambda n, right, *_: (1 - right / n) / statistics.stdev(
        [1] * right + [0] * (n - right)),
    ("14.3", 2): kl_slope,
    ("15.2", 1): divided,
    ("15.2", 3): idle,
    ("15.3", 2): lambda tokens, pieces, _, __, rank: range(tokens)[::tokens // pieces][-1 - rank],
    ("15.3", 4): pairs_of_last,
    ("15.7", 4): exposed,
    ("15.7", 5): lambda low, high, inside: len({*range(low, high), *range(5, 5 + inside)}),
    # ---- the ideas before the traps
    ("02.1", 5): lambda w, x, y: slope(lambda v: (v * x - y) ** 2, w),
    ("02.1", 6): products_in_an_entry,
    ("03.1", 5): lambda heads, tosses: min(
        (k / 100 for k in range(1, 100)),
        key=lambda p: -heads * math.log(p) - (tosses - heads) * math.log(1 - p)),
    ("03.4", 5): lambda layers, factor: slope(lambda v: functools.reduce(
        lambda h, _: factor * h, range(layers), v), 1),
    ("04.2", 5): lambda momentum: sum(momentum ** k for k in range(5000)),
    ("04.8", 5): first_adam_step,
    ("05.1", 6): lambda a, b, c, d, _: torch.tensor([[a, b], [c, d]]).float().mean(1)[0],
    ("05.4", 6): lambda inputs, _: nn.init.calculate_gain("relu") ** 2 / inputs,
    ("06.3", 5): lambda best, patience: next(
        epoch for epoch in itertools.count(best) if epoch - best >= patience),
    ("06.2", 5): lambda smoothing, classes: 1 / classes - slope(lambda z: F.cross_entropy(
        torch.cat([z[None], torch.zeros(classes - 1)])[None], torch.tensor([0]),
        label_smoothing=smoothing), 0),
    ("07.1", 5): lambda ins, outs, window, *_: size(nn.Conv2d(ins, outs, window, bias=False)),
    ("08.1", 6): lambda width, heads: len(torch.zeros(width).chunk(heads)[0]),
    ("08.1", 7): lambda seen, hidden: torch.tensor(
        [0.0] * seen + [-math.inf] * hidden).softmax(0)[0],
    ("09.2", 5): lambda *counts: len([*itertools.product(*map(range, counts))]),
    ("09.1", 5): lambda _base, _least, base, power, *_: next(
        k for k in range(60) if torch.tensor(base ** (power + k)).half() > 0),
    ("10.1", 5): lambda outs, ins, rank: meta(outs, rank).numel() + meta(rank, ins).numel(),
    ("10.1", 6): lambda alpha, rank, larger: (alpha / larger) / (alpha / rank),
    ("13.1", 5): lambda prompt, new: sum(range(prompt, prompt + new)),
    ("14.1", 6): lambda one, two: math.exp(one) / (math.exp(one) + math.exp(two)),
    ("15.1", 5): lambda hidden, width, _, __, ranks: sum(
        meta(shape).chunk(ranks, cut)[0].numel() for shape, cut in (
            ((hidden, width), 0), ((width, hidden), 1))),
    ("15.1", 6): lambda a, b, _, __, x, y, *___: torch.tensor([a, b]) @ torch.tensor([x, y]),
}


@pytest.mark.parametrize(("trap", "place"), ROUTES)
def test_an_answer_agrees_with_another_route(trap, place):
    draw = questions.about(trap)[place - 1]
    for seed in range(4):
        one = draw(random.Random(seed))
        route = float(ROUTES[trap, place](*values(one)))
        assert one.answer == pytest.approx(route, rel=1e-4, abs=1e-9), one.text
