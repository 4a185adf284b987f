"""A wrong answer is named after its own mistake or not at all, never after a different mistake.

Each of these fails its exercise in a way that once suggested a mistake that it does not make.
"""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.checking import run_check
from dlsys_checks.registry import find


def through_numpy(x, cut):
    copy = torch.from_numpy(x.detach().numpy().copy())
    return copy.sign() * (copy.abs() - cut).clamp(min=0)


def fresh_leaf(x, cut):
    return torch.tensor((x.sign() * (x.abs() - cut).clamp(min=0)).tolist(), requires_grad=True)


def shape_error(x, cut):
    return x.sign() * (x.abs() - cut).clamp(min=0) + torch.zeros(3, 5, 7, 11)


def ratio(model, x, y, first, last):
    loss = F.cross_entropy(model(x), y)
    a, b = torch.autograd.grad(loss, [first.weight, last.weight])
    return (a.norm() / b.norm()).item()


def weights_nudged(model, x, y):
    linears = [m for m in model if isinstance(m, nn.Linear)]
    with torch.no_grad():
        for m in linears:
            m.weight += 1.0
            m.weight -= 1.0
    return ratio(model, x, y, linears[0], linears[-1])


def by_from_numpy(t):
    return torch.from_numpy(t.detach().numpy())


def graph_kept(model, opt, batches):
    rows, total = sum(len(y) for _, y in batches), 0.0
    opt.zero_grad()
    for x, y in batches:
        loss = F.cross_entropy(model(x), y) * (len(y) / rows)
        loss.backward(retain_graph=True)
        total += loss.item()
    opt.step()
    return total


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


def product_for_sum(out, inputs):
    grad = sorted_gradients(out)
    wrong = {out: 1.0}
    for node in grad:
        for parent, slope in node.parents:
            wrong[parent] = wrong.get(parent, 1.0) * slope * wrong.get(node, 1.0)
    return [wrong.get(node, 0.0) for node in inputs]


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


def rates(names, base, decay, layer):
    layers = {n: layer(n) for n in names}
    top = 1 + max((k for k in layers.values() if k is not None), default=-1)
    steps = {n: 0 if k is None else top - k for n, k in layers.items()}
    steps |= {n: top + 1 for n in names if n.startswith("embed.")}
    return {n: base * decay ** steps[n] for n in names}


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


def counters_set_back(body):
    body.requires_grad_(False).eval()
    body.train = lambda mode=True: body
    for name, buffer in body.named_buffers():
        if name.endswith("num_batches_tracked"):
            buffer.zero_()


def copy_frozen(body):
    counters_set_back(copy.deepcopy(body))


def audited(model, optimizer):
    held = {p for group in optimizer.param_groups for p in group["params"]}
    named = list(model.named_parameters())
    return {"missing": sorted(n for n, p in named if p.requires_grad and p not in held),
            "ghosts": len(held - set(model.parameters())),
            "frozen": sorted(n for n, p in named if not p.requires_grad and p in held)}


def rate_halved(model, optimizer):
    optimizer.param_groups[0]["lr"] /= 2
    return audited(model, optimizer)


def place_of_the_pair(pad, mean, std):
    i, j = torch.randint(2 * pad + 1, (2,)).tolist()

    def train(x):
        height, width = x.shape[2:]
        return (F.pad(x, (pad,) * 4)[..., i:i + height, j:j + width] - mean) / std
    return train, lambda x: (x - mean) / std


def mixed(model, x, y, order, lam, share):
    z = model(share * x + (1 - share) * x[order])
    rows = [F.cross_entropy(z, labels, reduction="none") for labels in (y, y[order])]
    return (lam * rows[0] + (1 - lam) * rows[1]).mean()


def by_row(lam, x):
    return lam.view([-1] + [1] * (x.dim() - 1))


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


def layers_the_other_way_round(names, base, decay):
    """Layer k has k + 1 steps, and the embedding comes out at the base rate by the same mistake."""
    found = {name: re.match(r"layers\.(\d+)\.", name) for name in names}
    return {name: base * decay ** (int(match[1]) + 1 if match else 0)
            for name, match in found.items()}


def high_bits(probs, seeds, steps):
    return torch.cat([torch.multinomial(row, 1, generator=torch.Generator().manual_seed(
        (seed << 32) + step)) for row, seed, step in zip(probs, seeds, steps, strict=True)])


def folds_in_a_set(x, y, folds, select, fit):
    right = 0
    for fold in set(folds):
        out = folds == fold
        columns = select(x[~out], y[~out])
        right += (fit(x[~out][:, columns], y[~out])(x[out][:, columns]) == y[out]).sum().item()
    return right / len(y)


def test_folds_in_a_set_of_tensors_are_named_although_a_set_has_no_order():
    for seed in range(3):
        assert "set of tensors" in run_check("06.5", folds_in_a_set, [seed]).misconception


@pytest.mark.parametrize(("id", "fn", "never"), [
    ("01.5", through_numpy, "leaf"), ("01.5", fresh_leaf, "in place"),
    ("01.5", shape_error, "in place"), ("02.6", product_for_sum, "last share"),
    ("02.4", graph_kept, "one backward for all"), ("01.3", weights_nudged, "left over"),
    ("02.3", by_from_numpy, "edited through .data"),
    ("07.1", rows_turned_into_lists, "emptied"), ("07.3", put_into_train_mode, "eval mode"),
    ("07.6", names_turned_round, "sorted"), ("07.6", first_digit_of_the_layer, "as text"),
    ("07.7", norms_alone_keep_their_mode, "one body at a time"),
    ("07.7", counters_set_back, "goes on counting"), ("07.7", copy_frozen, "eval mode alone"),
    ("07.10", rate_halved, "gradients"), ("13.3", high_bits, "product"),
    ("07.6", layers_the_other_way_round, "at the base rate")],
    ids=lambda v: getattr(v, "__name__", str(v)))
def test_no_message_accuses_of_what_was_not_written(id, fn, never):
    for seed in range(5):
        verdict = run_check(id, fn, [seed])
        assert verdict.status != "pass"
        assert never not in verdict.misconception


@pytest.mark.parametrize(("id", "fn", "never", "fails", "clears"), [
    ("06.1", place_of_the_pair, "middle", "square images", "many small batches"),
    ("06.2", gradients_cleared, "backward", "a weight for each row", "images"),
    ("06.3", share_of_the_reference, "moved", "steps that add up to progress",
     "progress down from 1")], ids=lambda v: getattr(v, "__name__", None))
def test_a_case_clears_of_a_mistake_that_another_suggests(id, fn, never, fails, clears):
    exercise = find(id)
    chosen = [case for case in exercise.arrange(0) if case.name in (fails, clears)]
    verdict = exercise.judge(chosen, exercise.outcomes(fn, chosen))
    assert verdict.status != "pass"
    assert never not in verdict.misconception
