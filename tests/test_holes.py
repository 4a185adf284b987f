"""Answers that checks once misjudged, written by somebody who had only the docstrings.

Each wrong one passed on every seed, or on some; each right one was refused; each name accused of
what was not written. They stand here and not among the registered answers: a learner seldom
writes them, but a check that lets one through has lost a promise.
"""

from __future__ import annotations

import copy
import re
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.checking import run_check
from dlsys_checks.registry import find

SEEDS = range(4)
WRONG: dict[str, list] = {}
RIGHT: dict[str, list] = {}


def passed(id):
    """Register a wrong answer that once passed the check of this exercise."""
    return lambda fn: WRONG.setdefault(id, []).append(fn) or fn


def refused(id):
    """Register a right answer that was once refused."""
    return lambda fn: RIGHT.setdefault(id, []).append(fn) or fn


def cases(table):
    return [pytest.param(id, fn, id=f"{id}-{fn.__name__}") for id in sorted(table)
            for fn in table[id]]


# ---- 01.1 predict: only some modules, only some models

def in_eval(model, x, modules):
    modes = [(m, m.training) for m in modules]
    model.eval()
    with torch.no_grad():
        out = model(x)
    for module, mode in modes:
        module.training = mode
    return out


@passed("01.1")
def direct_children_only(model, x):
    return in_eval(model, x, [model, *model.children()])


@passed("01.1")
def norms_only(model, x):
    was = model.training
    norms = [(m, m.training) for m in model.modules()
             if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    model.eval()
    with torch.no_grad():
        out = model(x)
    model.train(was)
    for module, mode in norms:
        module.training = mode
    return out


@passed("01.1")
def nothing_to_do_in_eval_mode(model, x):
    return model(x) if not model.training else in_eval(model, x, list(model.modules()))


@passed("01.1")
def layer_after_layer(model, x):
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    with torch.no_grad():
        for layer in model:
            x = layer(x)
    for module, mode in modes:
        module.training = mode
    return x


@passed("01.1")
def flattened_input(model, x):
    return in_eval(model, x.reshape(len(x), -1), list(model.modules()))


# ---- 01.2 to_probs: stable on one side, or for a batch that is alike

@passed("01.2")
def exp_over_one_plus_exp(logits, kind):
    if kind == "multiclass":
        return logits.softmax(1)
    return logits.exp() / (1 + logits.exp())


@passed("01.2")
def one_maximum_a_batch(logits, kind):
    if kind != "multiclass":
        return logits.sigmoid()
    odds = (logits - logits.max()).exp()
    return odds / odds.sum(1, keepdim=True)


@passed("01.2")
def mean_subtracted(logits, kind):
    if kind != "multiclass":
        return logits.sigmoid()
    odds = (logits - logits.mean(1, keepdim=True)).exp()
    return odds / odds.sum(1, keepdim=True)


@refused("01.2")
def other_names_01_2(z, what):
    return z.softmax(1) if what == "multiclass" else z.sigmoid()


# ---- 01.3 grad_ratio: the first and last entry instead of the first and last Linear

def ratio(model, x, y, first, last):
    loss = F.cross_entropy(model(x), y)
    a, b = torch.autograd.grad(loss, [first.weight, last.weight])
    return (a.norm() / b.norm()).item()


@passed("01.3")
def first_and_last_entry(model, x, y):
    return ratio(model, x, y, model[0], model[-1])


@passed("01.3")
def starred(model, x, y):
    first, *_, last = [m for m in model if isinstance(m, nn.Linear)]
    return ratio(model, x, y, first, last)


@passed("01.3")
def rounded(model, x, y):
    layers = [m for m in model if isinstance(m, nn.Linear)]
    return round(ratio(model, x, y, layers[0], layers[-1]), 4)


# ---- 01.4 dead_units: what looks like zero, and where a NaN is sought

def no_nan(h):
    if h.isnan().any():
        raise ValueError("NaN")
    return h


@passed("01.4")
def at_most_zero(h):
    return int((no_nan(h) <= 0).all(0).sum())


@passed("01.4")
def largest_is_zero(h):
    return int((no_nan(h).amax(0) == 0).sum())


@passed("01.4")
def no_variance(h):
    return int((no_nan(h).var(0) == 0).sum())


@passed("01.4")
def almost_zero(h):
    return int((no_nan(h).abs() < 1e-3).all(0).sum())


@passed("01.4")
def nan_in_row_zero(h):
    no_nan(h[0])
    return int((h == 0).all(0).sum())


@passed("01.4")
def nan_in_whole_columns(h):
    if h.isnan().all(0).any():
        raise ValueError("NaN")
    return int((h == 0).all(0).sum())


@passed("01.4")
def infinity_refused(h):
    if not h.isfinite().all():
        raise ValueError("not finite")
    return int((h == 0).all(0).sum())


@passed("01.4")
def squeezed(h):
    return int((no_nan(h).squeeze() == 0).all(0).sum())


# ---- 01.5 soft_threshold: zero, and shapes

@passed("01.5")
def divided_by_the_size(x, cut):
    return x * (1 - cut / x.abs()).clamp(min=0)


@passed("01.5")
def first_row_needed(x, cut):
    x[:1]
    return x.sign() * (x.abs() - cut).clamp(min=0)


@refused("01.5")
def many_operations_at_any_size(x, cut):
    above = (x - cut) * (x > cut).to(x.dtype)
    below = (x + cut) * (x < -cut).to(x.dtype)
    rest = x * (x.abs() <= cut).to(x.dtype) * 0
    return (above + below + rest) * 1.0 + 0.0


# ---- 02.1 train_step, 02.4 accum_step: a step by hand; groups and batches cut short

def step_by_hand(opt):
    with torch.no_grad():
        for group in opt.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p -= group["lr"] * p.grad


@passed("02.1")
def plain_sgd(model, opt, x, y):
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    step_by_hand(opt)
    return loss.item()


@passed("02.1")
def first_group_cleared(model, opt, x, y):
    for p in opt.param_groups[0]["params"]:
        p.grad = None
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()


@passed("02.4")
def one_big_batch(model, opt, batches):
    opt.zero_grad()
    xs, ys = zip(*batches, strict=True)
    loss = F.cross_entropy(model(torch.cat(xs)), torch.cat(ys))
    loss.backward()
    opt.step()
    return loss.item()


@passed("02.4")
def accumulated_for_plain_sgd(model, opt, batches):
    rows, total = sum(len(y) for _, y in batches), 0.0
    opt.zero_grad()
    for x, y in batches:
        loss = F.cross_entropy(model(x), y) * (len(y) / rows)
        loss.backward()
        total += loss.item()
    step_by_hand(opt)
    return total


@refused("02.4")
def by_functional_gradients(model, opt, batches):
    rows, total = sum(len(y) for _, y in batches), 0.0
    names, params = zip(*model.named_parameters(), strict=True)
    opt.zero_grad()
    for x, y in batches:
        def loss_of(values, x=x, y=y):
            out = torch.func.functional_call(model, values, (x,))
            return F.cross_entropy(out, y) * (len(y) / rows)
        values = dict(zip(names, [p.detach() for p in params], strict=True))
        grads, loss = torch.func.grad_and_value(loss_of)(values)
        for name, p in zip(names, params, strict=True):
            p.grad = grads[name] if p.grad is None else p.grad + grads[name]
        total += loss.item()
    opt.step()
    return total


# ---- 02.2 weighted_loss, 02.3 stop_grad

@passed("02.2")
def weights_clamped(losses, weights):
    weights = weights.clamp(min=1e-4)
    return (weights * losses).sum() / weights.sum()


@passed("02.2")
def divisor_clamped(losses, weights):
    return (weights * losses).sum() / weights.sum().clamp(min=1)


@passed("02.3")
def through_half_precision(t):
    return t.detach().half().clone().to(t.dtype)


@passed("02.3")
def stacked_rows(t):
    return torch.stack([row.detach().clone() for row in t])


@passed("02.3")
def drops_the_gradient(t):
    t.grad = None
    return t.detach().clone()


# ---- 02.5 evaluate: everything at once, norms that train, three classes

@passed("02.5")
def all_at_once(model, batches):
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    with torch.no_grad():
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        out = model(x)
        pair = F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()
    for module, mode in modes:
        module.training = mode
    return pair


@passed("02.5")
def logits_collected(model, batches):
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    with torch.no_grad():
        out = torch.cat([model(x) for x, _ in batches])
        y = torch.cat([y for _, y in batches])
        pair = F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()
    for module, mode in modes:
        module.training = mode
    return pair


@passed("02.5")
@torch.no_grad()
def norms_left_in_train_mode(model, batches):
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
    loss, right, rows = 0.0, 0, 0
    for x, y in batches:
        out = model(x)
        loss += F.cross_entropy(out, y, reduction="sum").item()
        right += int((out.argmax(1) == y).sum())
        rows += len(y)
    for module, mode in modes:
        module.training = mode
    return loss / rows, right / rows


@passed("02.5")
@torch.no_grad()
def three_classes(model, batches):
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    loss, right, rows = 0.0, 0, 0
    for x, y in batches:
        out = model(x)
        loss -= (out.log_softmax(1) * F.one_hot(y, 3)).sum().item()
        right += int((out.argmax(1) == y).sum())
        rows += len(y)
    for module, mode in modes:
        module.training = mode
    return loss / rows, right / rows


# ---- 02.6 gradients: recursion with a raised limit, inner inputs, repeated work

def recursive(out, inputs):
    order, seen = [], set()

    def visit(node):
        if node not in seen:
            seen.add(node)
            for parent, _ in node.parents:
                visit(parent)
            order.append(node)
    visit(out)
    grad = {out: 1.0}
    for node in reversed(order):
        for parent, slope in node.parents:
            grad[parent] = grad.get(parent, 0.0) + slope * grad[node]
    return [grad.get(node, 0.0) for node in inputs]


@passed("02.6")
def recursion_with_a_raised_limit(out, inputs):
    sys.setrecursionlimit(20_000)
    return recursive(out, inputs)


def sorted_gradients(out):
    uses, todo = {out: 0}, [out]
    while todo:
        for parent, _ in todo.pop().parents:
            if parent not in uses:
                todo.append(parent)
            uses[parent] = uses.get(parent, 0) + 1
    grad, ready = dict.fromkeys(uses, 0.0) | {out: 1.0}, [out]
    while ready:
        node = ready.pop()
        for parent, slope in node.parents:
            grad[parent] += slope * grad[node]
            uses[parent] -= 1
            if not uses[parent]:
                ready.append(parent)
    return grad


@passed("02.6")
def inner_inputs_forgotten(out, inputs):
    grad = sorted_gradients(out)
    leaves = [node for node in grad if not node.parents]
    return [grad[node] if node in leaves else 0.0 for node in inputs]


@passed("02.6")
def out_itself_forgotten(out, inputs):
    grad = sorted_gradients(out)
    return [0.0 if node is out else grad.get(node, 0.0) for node in inputs]


@passed("02.6")
def changes_sent_on_again(out, inputs):
    grad, todo = {}, {out: 1.0}
    while todo:
        node = next(iter(todo))
        change = todo.pop(node)
        grad[node] = grad.get(node, 0.0) + change
        for parent, slope in node.parents:
            todo[parent] = todo.get(parent, 0.0) + slope * change
    return [grad.get(node, 0.0) for node in inputs]


# ---- 03.1, 04.6: right, and refused

@refused("03.1")
def other_names_03_1(scores, labels):
    logs = scores.double().log_softmax(1)
    grad = logs.exp()
    grad[torch.arange(len(labels)), labels] -= 1
    loss = -logs[torch.arange(len(labels)), labels].mean()
    return loss.float(), (grad / len(labels)).float()


@refused("03.1")
def by_logsumexp(logits, y):
    rows = torch.arange(len(y))
    total = logits.logsumexp(1)
    grad = (logits - total[:, None]).exp()
    grad[rows, y] -= 1
    return (total - logits[rows, y]).mean(), grad / len(y)


# ---- 07: a window of even size; what was left changed where nobody looked

@passed("07.1")
def half_a_window_keeps_the_size(size, batch, layers):
    (h, w), found = size, []
    for channels, kernel, stride, padding in layers:
        if stride > 1 or padding != kernel // 2:
            h, w = ((n + 2 * padding - kernel) // stride + 1 for n in (h, w))
        found.append(4 * batch * channels * h * w)
    return found


@passed("07.3")
def gradients_zeroed(model, head, body_lr, head_lr):
    names = [n for n, m in model.named_modules(remove_duplicate=False) if m is head]
    body = {p for n, p in model.named_parameters(remove_duplicate=False)
            if not n.startswith(tuple(f"{name}." for name in names))}
    live = [p for p in model.parameters() if p.requires_grad]
    model.zero_grad(set_to_none=False)
    return [{"params": [p for p in live if p in body], "lr": body_lr},
            {"params": [p for p in live if p not in body], "lr": head_lr}]


def rates(names, base, decay, layer):
    layers = {n: layer(n) for n in names}
    top = 1 + max((k for k in layers.values() if k is not None), default=-1)
    steps = {n: 0 if k is None else top - k for n, k in layers.items()}
    steps |= {n: top + 1 for n in names if n.startswith("embed.")}
    return {n: base * decay ** steps[n] for n in names}


@passed("07.6")
def any_whole_number(names, base, decay):
    def layer(name):
        try:
            return int(name.split(".")[1]) if name.startswith("layers.") else None
        except ValueError:
            return None
    return rates([n for n in names if n != "layers.9"], base, decay, layer) | {
        n: base for n in names if n == "layers.9"}


@passed("07.6")
def model_in_front_cut_off(names, base, decay):
    def layer(name):
        found = re.match(r"layers\.(\d+)\.", name)
        return int(found[1]) if found else None
    short = {n: n.removeprefix("model.") for n in names}
    found = rates([*dict.fromkeys(short.values())], base, decay, layer)
    return {n: found[s] for n, s in short.items()}


@passed("07.7")
def counters_set_back(body):
    body.requires_grad_(False).eval()
    body.train = lambda mode=True: body
    for name, buffer in body.named_buffers():
        if name.endswith("num_batches_tracked"):
            buffer.zero_()


def reached(thing):
    if isinstance(thing, nn.Parameter):
        return {thing}
    parts = vars(thing) if isinstance(thing, nn.Module) else thing
    parts = parts.values() if isinstance(parts, dict) else parts
    return set().union(*map(reached, parts)) if isinstance(
        thing, (nn.Module, dict, list, tuple)) else set()


def hidden(model):
    return reached(model) - set(model.parameters())


@passed("07.8")
def hidden_gradients_dropped(model):
    for p in hidden(model):
        p.grad = None
    return sum(p.numel() for p in hidden(model))


@passed("07.8")
def all_gradients_dropped(model):
    model.zero_grad()
    return sum(p.numel() for p in hidden(model))


@passed("07.8")
def hidden_thawed(model):
    for p in hidden(model):
        p.requires_grad_(True)
    return sum(p.numel() for p in hidden(model))


@passed("07.8")
def hidden_frozen(model):
    for p in hidden(model):
        p.requires_grad_(False)
    return sum(p.numel() for p in hidden(model))


@passed("07.8")
def all_tensors_marked(model):
    for p in reached(model):
        p.counted = True
    return sum(p.numel() for p in hidden(model))


@passed("07.8")
def frozen_ones_never_registered(model):
    held = {v for m in model.modules() for k, v in vars(m).items() if k[0] != "_"
            for v in reached(v if isinstance(v, (list, tuple, dict)) else [])}
    frozen = {p for p in model.parameters() if not p.requires_grad}
    return sum(p.numel() for p in hidden(model) | (held & frozen))


def audited(model, optimizer):
    held = {p for group in optimizer.param_groups for p in group["params"]}
    named = list(model.named_parameters())
    return {"missing": sorted(n for n, p in named if p.requires_grad and p not in held),
            "ghosts": len(held - set(model.parameters())),
            "frozen": sorted(n for n, p in named if not p.requires_grad and p in held)}


def ghosts(model, optimizer):
    return {p for g in optimizer.param_groups for p in g["params"]} - set(model.parameters())


@passed("07.10")
def ghosts_frozen(model, optimizer):
    for p in ghosts(model, optimizer):
        p.requires_grad_(False)
    return audited(model, optimizer)


@passed("07.10")
def gradients_of_ghosts_dropped(model, optimizer):
    for p in ghosts(model, optimizer):
        p.grad = None
    return audited(model, optimizer)


@passed("07.10")
def buffers_taken_for_parameters(model, optimizer):
    own = {*model.parameters(), *model.buffers()}
    return {**audited(model, optimizer), "ghosts": len(ghosts(model, optimizer) - own)}


def shapes(features, shape):
    twin = copy.deepcopy(features).to("meta").eval()
    return twin(torch.empty(1, *shape, device="meta")).numel()


@passed("07.11")
def hooks_cleared(features, shape):
    for module in features.modules():
        module._forward_hooks.clear()
    return shapes(features, shape)


@passed("07.11")
def hooks_before_cleared(features, shape):
    for module in features.modules():
        module._forward_pre_hooks.clear()
    return shapes(features, shape)


@passed("07.11")
def hooks_behind_cleared(features, shape):
    for module in features.modules():
        module._backward_hooks.clear()
    return shapes(features, shape)
# ---- 05.4, 05.5, 06.1, 06.2, 06.8: what is left as it was, during the call as well; what counts

def gain(act):
    z = torch.special.ndtri((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000).float()
    with torch.no_grad():
        return float(act(z).double().square().mean()) ** -0.5


@passed("05.4")
def seed_set(act):
    torch.manual_seed(0)
    torch.randn(3)
    return gain(act)


@passed("05.4")
def weights_frozen(act):
    for p in act.parameters() if isinstance(act, nn.Module) else ():
        p.requires_grad_(False)
    return gain(act)


@passed("05.5")
@torch.no_grad()
def where_a_gradient_is(average, model, decay):
    for old, new in zip(average.parameters(), model.parameters(), strict=True):
        if new.grad is not None:
            old.lerp_(new, 1 - decay)
    for old, new in zip(average.buffers(), model.buffers(), strict=True):
        old.copy_(new)


@passed("06.8")
def each_weight_once(z, y, w, pos_weight):
    means = [w[y == label].unique().double().mean() for label in (1, 0)]
    return z - (means[0] / means[1]).log() - torch.tensor(pos_weight, dtype=z.dtype).log()


@passed("06.1")
def seeded_by_the_clock(pad, mean, std):
    def train(x):
        torch.seed()
        wide = F.pad(x, (pad,) * 4).unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)
        i, j = torch.randint(2 * pad + 1, (2, len(x)))
        return (wide[torch.arange(len(x)), :, i, j] - mean) / std
    return train, lambda x: (x - mean) / std


def mixed(model, x, y, order, lam, share):
    z = model(share * x + (1 - share) * x[order])
    rows = [F.cross_entropy(z, labels, reduction="none") for labels in (y, y[order])]
    return (lam * rows[0] + (1 - lam) * rows[1]).mean()


def by_row(lam, x):
    return lam.view([-1] + [1] * (x.dim() - 1))


@passed("06.2")
def eval_mode_for_the_call(model, x, y, order, lam):
    was = model.training
    model.eval()
    loss = mixed(model, x, y, order, lam, by_row(lam, x))
    model.train(was)
    return loss


@passed("06.2")
def share_of_a_column(model, x, y, order, lam):
    share = lam if len(lam) == x.shape[-1] else by_row(lam, x)
    return mixed(model, x, y, order, lam, share)


@pytest.mark.parametrize(("id", "fn"), cases(WRONG))
def test_what_once_passed_is_refused_on_every_seed(id, fn):
    limit = sys.getrecursionlimit()
    for seed in SEEDS:
        assert fails(find(id), fn, seed), seed
    assert sys.getrecursionlimit() == limit


def fails(exercise, fn, seed):
    """Whether a case of this seed is not passed; stops at the first and gives it no name."""
    return any(exercise.first_failure([case], exercise.outcomes(fn, [case])).status != "pass"
               for case in exercise.arrange(seed))


@pytest.mark.parametrize(("id", "fn"), cases(RIGHT))
def test_what_was_right_and_refused_passes(id, fn):
    verdict = run_check(id, fn, SEEDS)
    assert verdict.status == "pass", verdict


# ---- names: nobody is accused of what was not written

def through_numpy(x, cut):
    copy = torch.from_numpy(x.detach().numpy().copy())
    return copy.sign() * (copy.abs() - cut).clamp(min=0)


def fresh_leaf(x, cut):
    return torch.tensor((x.sign() * (x.abs() - cut).clamp(min=0)).tolist(), requires_grad=True)


def shape_error(x, cut):
    return x.sign() * (x.abs() - cut).clamp(min=0) + torch.zeros(3, 5, 7, 11)


def product_for_sum(out, inputs):
    grad = sorted_gradients(out)
    wrong = {out: 1.0}
    for node in grad:
        for parent, slope in node.parents:
            wrong[parent] = wrong.get(parent, 1.0) * slope * wrong.get(node, 1.0)
    return [wrong.get(node, 0.0) for node in inputs]


def graph_kept(model, opt, batches):
    rows, total = sum(len(y) for _, y in batches), 0.0
    opt.zero_grad()
    for x, y in batches:
        loss = F.cross_entropy(model(x), y) * (len(y) / rows)
        loss.backward(retain_graph=True)
        total += loss.item()
    opt.step()
    return total


def weights_nudged(model, x, y):
    linears = [m for m in model if isinstance(m, nn.Linear)]
    with torch.no_grad():
        for m in linears:
            m.weight += 1.0
            m.weight -= 1.0
    return ratio(model, x, y, linears[0], linears[-1])


def by_from_numpy(t):
    return torch.from_numpy(t.detach().numpy())


def rows_turned_into_lists(size, batch, layers):
    (h, w), found = size, []
    for place, (channels, kernel, stride, padding) in enumerate(layers):
        h, w = ((n + 2 * padding - kernel) // stride + 1 for n in (h, w))
        found.append(4 * batch * channels * h * w)
        layers[place] = [channels, kernel, stride, padding]
    return found


def put_into_train_mode(model, head, body_lr, head_lr):
    model.train()
    body = [p for p in model.parameters() if not any(p is q for q in head.parameters())]
    return [{"params": body, "lr": body_lr}, {"params": list(head.parameters()), "lr": head_lr}]


def names_turned_round(names, base, decay):
    names.reverse()
    return rates(names, base, decay, lambda n: int(n.split(".")[1]) if n[:7] == "layers." else None)


def first_digit_of_the_layer(names, base, decay):
    return rates(names, base, decay, lambda n: int(n[7]) if re.match(r"layers\.\d", n) else None)


def norms_alone_keep_their_mode(body):
    body.requires_grad_(False).eval()
    for module in body.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.train = lambda mode=True, module=module: module


def copy_frozen(body):
    counters_set_back(copy.deepcopy(body))


def rate_halved(model, optimizer):
    optimizer.param_groups[0]["lr"] /= 2
    return audited(model, optimizer)
def place_of_the_pair(pad, mean, std):
    i, j = torch.randint(2 * pad + 1, (2,)).tolist()

    def train(x):
        height, width = x.shape[2:]
        return (F.pad(x, (pad,) * 4)[..., i:i + height, j:j + width] - mean) / std
    return train, lambda x: (x - mean) / std


def gradients_cleared(model, x, y, order, lam):
    model.zero_grad()
    return mixed(model, x, y, order, lam, by_row(lam, x))


def share_of_the_reference(losses, patience, min_delta):
    reference, since = float("inf"), 0
    seen = []
    for loss in losses:
        seen.append(loss)
        better = loss < reference * (1 - min_delta)
        reference, since = (loss, 0) if better else (reference, since + 1)
        if since == patience:
            break
    return len(seen) - 1, seen.index(min(seen))


@pytest.mark.parametrize(("id", "fn", "never"), [
    ("01.5", through_numpy, "leaf"), ("01.5", fresh_leaf, "in place"),
    ("01.5", shape_error, "in place"), ("02.6", product_for_sum, "last share"),
    ("02.4", graph_kept, "one backward for all"), ("01.3", weights_nudged, "left over"),
    ("02.3", by_from_numpy, "edited through .data"),
    ("07.1", rows_turned_into_lists, "emptied"), ("07.3", put_into_train_mode, "eval mode"),
    ("07.6", names_turned_round, "sorted"), ("07.6", first_digit_of_the_layer, "as text"),
    ("07.7", norms_alone_keep_their_mode, "one body at a time"),
    ("07.7", counters_set_back, "goes on counting"), ("07.7", copy_frozen, "eval mode alone"),
    ("07.10", rate_halved, "gradients")], ids=lambda v: getattr(v, "__name__", str(v)))
def test_no_message_accuses_of_what_was_not_written(id, fn, never):
    for seed in range(5):
        assert never not in run_check(id, fn, [seed]).misconception


@pytest.mark.parametrize(("id", "fn", "never", "fails", "clears"), [
    ("06.1", place_of_the_pair, "middle", "square images", "many small batches"),
    ("06.2", gradients_cleared, "backward", "a share for each row", "images"),
    ("06.3", share_of_the_reference, "moved", "steps that add up to progress",
     "progress down from 1")], ids=lambda v: getattr(v, "__name__", None))
def test_a_case_clears_of_a_mistake_that_another_suggests(id, fn, never, fails, clears):
    exercise = find(id)
    chosen = [case for case in exercise.arrange(0) if case.name in (fails, clears)]
    verdict = exercise.judge(chosen, exercise.outcomes(fn, chosen))
    assert verdict.status != "pass"
    assert never not in verdict.misconception
