"""The stand-ins for exercises that are not solved yet: torch or another library.

Each function has the signature of its exercise. Where no library has it, our own lines do what this
model needs and no more. Some pass their exercise's check all the same, so a class wheel includes
them only on request, and the grader's sandbox does not show them.
"""

from __future__ import annotations

import copy
import math
import os
from collections import Counter
from functools import cache
from itertools import accumulate, islice

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.optim.adamw import adamw

# ---- data


def class_numbers(names, stored):
    return {name: number for number, name in enumerate(sorted(Counter(names)))}


def epoch_indices(n, world, rank, epoch, seed, exact):
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(range(n), world, rank, shuffle=True, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def split_groups(groups, share, seed):
    from sklearn.model_selection import GroupShuffleSplit

    split = GroupShuffleSplit(1, test_size=round(share * len(set(groups.tolist()))),
                              random_state=seed)
    train, test = next(split.split(groups, groups=groups))
    return torch.from_numpy(train), torch.from_numpy(test)


def fit_text(prompt, answer, n_positions, virtual):
    ids = torch.cat([prompt, answer])[virtual - n_positions:]
    return ids, torch.cat([torch.full_like(prompt, -100), answer])[-len(ids):]


def lm_labels(ids, prompts, lengths):
    from_end = torch.arange(ids.shape[1]).flip(0)
    return torch.where(from_end < (lengths - prompts)[:, None], ids, -100)


# ---- model

def decode_step(q, k, v, cache, rotate):
    past = cache["k"].shape[2] if cache else 0
    place = torch.arange(past, past + q.shape[2], device=q.device)
    q, k = rotate(q, place), rotate(k, place)
    if past:
        k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
    cache.update(k=k, v=v)
    if past and q.shape[2] > 1:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(past)
        return F.scaled_dot_product_attention(q, k, v, mask)
    return F.scaled_dot_product_attention(q, k, v, is_causal=not past)


def decoder_mask(real):
    places = real.shape[1]
    causal = torch.ones(places, places, dtype=torch.bool, device=real.device).tril()
    return (causal & real.bool()[:, None] | torch.eye(places, device=real.device).bool())[:, None]


def to_probs(logits, kind):
    return torch.softmax(logits, 1)


# ---- training

def decay_groups(model, weight_decay):
    weights = dict(model.named_parameters())
    matrices = [name for name in weights if weights[name].dim() > 1 and name != "emb.weight"]
    return [{"params": [weights[name] for name in matrices], "weight_decay": weight_decay},
            {"params": [weights[name] for name in weights if name not in matrices],
             "weight_decay": 0.0}]


def warmup_cosine(step, warm, total, peak, floor):
    return _rates(warm, total, peak, floor)[min(step, total)]


@cache
def _rates(warm, total, peak, floor):
    """The rates of steps 0 to total, from torch's schedulers."""
    opt = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=peak)
    fall = lr_scheduler.CosineAnnealingLR(opt, total - warm, floor)
    schedule = fall
    if warm:
        rise = lr_scheduler.LinearLR(opt, 1 / warm, total_iters=warm - 1)
        schedule = lr_scheduler.SequentialLR(opt, [rise, fall], [warm])
    rates = []
    for _ in range(total + 1):
        rates.append(schedule.get_last_lr()[0])
        opt.step()
        schedule.step()
    return rates


def adam_step(w, grad, state, lr, betas, eps, weight_decay):
    if not state:
        state.update(mean=torch.zeros_like(w), square=torch.zeros_like(w), t=torch.zeros(()))
    adamw([w], [grad], [state["mean"]], [state["square"]], [], [state["t"]], amsgrad=False,
          beta1=betas[0], beta2=betas[1], lr=lr, weight_decay=weight_decay, eps=eps,
          maximize=False)


def lion_step(w, grad, state, lr, betas, weight_decay):
    mean = state.setdefault("mean", torch.zeros_like(w))
    w.mul_(1 - lr * weight_decay).sub_(torch.lerp(grad, mean, betas[0]).sign_(), alpha=lr)
    mean.lerp_(grad, 1 - betas[1])


def class_loss(scores, labels):
    return F.cross_entropy(scores, labels, ignore_index=-1)


def ce_from_logits(logits, y):
    with torch.enable_grad():
        logits = logits.detach().requires_grad_()
        loss = F.cross_entropy(logits, y)
        return loss.detach(), torch.autograd.grad(loss, logits)[0]


def clipped_step(optimizer, loss, scale, max_norm):
    optimizer.zero_grad()
    (loss / scale).backward()
    norm = nn.utils.clip_grad_norm_(_weights(optimizer), max_norm).item()
    optimizer.step()
    return norm, min(norm, max_norm)


def amp_step(opt, scaler, loss_of, dtype, max_norm):
    with torch.autocast("cpu", dtype):
        loss = loss_of()
    return clipped_step(opt, loss, 1.0, max_norm)[0]


def accum_step(model, opt, batches):
    opt.zero_grad()
    losses = []
    for x, y in batches:
        loss = F.cross_entropy(model(x), y) / len(batches)
        loss.backward()
        losses.append(loss.item())
    opt.step()
    return sum(losses)


def ema_update(average, model, decay):
    with torch.no_grad():
        torch.optim.swa_utils.get_ema_multi_avg_fn(decay)(
            list(average.parameters()), list(model.parameters()), None)


def evaluate(model, batches):
    sums = torch.zeros(3, dtype=torch.float64)
    for x, y in batches:
        logits = predict(model, x)
        sums += torch.tensor([F.cross_entropy(logits, y, reduction="sum"),
                              (logits.argmax(1) == y).sum(), len(y)], dtype=torch.float64)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


def make_meter():
    seen = []
    return (lambda loss, rows: seen.append((loss.item(), rows)),
            lambda: sum(loss * n for loss, n in seen) / sum(n for _, n in seen))


def rows_to_log(events):
    rows = {}
    for axis, step, values in events:
        rows = {key: row for key, row in rows.items() if key <= (axis, step) or key[0] != axis}
        rows.setdefault((axis, step), {axis: step}).update(values)
    return list(rows.values()), {name: axis for axis, _, values in events for name in values}


def stop_and_best(losses, patience, min_delta):
    best = min(range(len(losses)), key=losses.__getitem__)
    return min(best + patience, len(losses) - 1), best


def save_checkpoint(path, parts, facts):
    with open(f"{path}.part", "wb") as file:
        torch.save({"parts": {name: part.state_dict() for name, part in parts.items()},
                    "facts": facts, "rng": torch.get_rng_state()}, file)
    os.replace(f"{path}.part", path)


# ---- two processes

def average_grads(losses_of, params, batch, all_sum):
    losses = losses_of(batch)
    for p in params:
        p.grad = None
    losses.sum().backward()
    count = all_sum(torch.tensor(len(losses)))
    for p in params:
        p.grad = all_sum(p.grad) / count
    return (all_sum(losses.detach().sum()) / count).item()


def ddp_accum(ddp, optimizer, loss_fn, batches, every):
    left = iter(batches)
    groups = list(iter(lambda: list(islice(left, every)), []))
    for group in groups:
        optimizer.zero_grad()
        with ddp.no_sync():
            for x, y in group[:-1]:
                loss_fn(ddp(x), y).div(len(group)).backward()
        x, y = group[-1]
        loss_fn(ddp(x), y).div(len(group)).backward()
        optimizer.step()
    return len(groups)


def reshard(shards, world):
    whole = {name: torch.cat([part[name] for part in shards]) for name in shards[0]}
    cut = {name: torch.chunk(tensor, world) for name, tensor in whole.items()}
    return [{name: parts[rank].clone() if rank < len(parts) else whole[name][:0].clone()
             for name, parts in cut.items()} for rank in range(world)]


# ---- adapters

def hits(model, names):
    linear = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    return {name: [path for path in linear if f".{path}".endswith(f".{name}")] for name in names}


def freeze(body):
    body.requires_grad_(False).eval()
    body.train = lambda mode=True: body


def passport(model):
    learns = {name: p for name, p in model.named_parameters() if p.requires_grad}
    layers = [name[:-2] for name, _ in model.named_parameters() if name.endswith(".A")]
    inside = {f"{layer}.{letter}" for layer in layers for letter in "AB"}
    weights = dict(model.named_parameters())
    return {"layers": layers, "trainable": sum(p.numel() for p in learns.values()),
            "other": [name for name in learns if name not in inside],
            "frozen": [name for name in weights if name in inside and name not in learns],
            "idle": [layer for layer in layers if not weights[f"{layer}.B"].any()]}


def train_cosine(opt, losses, epochs, accumulate):
    schedule = lr_scheduler.CosineAnnealingLR(opt, epochs * math.ceil(len(losses) / accumulate))
    for _ in range(epochs):
        for first in range(0, len(losses), accumulate):
            opt.zero_grad()
            for loss in losses[first:first + accumulate]:
                loss().backward()
            opt.step()
            schedule.step()
    opt.zero_grad()


def load_adapter(model, file):
    named = {f"{path.removesuffix('weight')}default.weight": t for path, t in file.items()}
    strange = model.load_state_dict(named, strict=False).unexpected_keys
    if strange:
        raise ValueError(f"adapter: the model has no {strange[0]}")


def merge(W, A, B, alpha):
    with torch.no_grad():
        return torch.addmm(W, B, A, alpha=alpha / len(A))


# ---- compression

def stored_bytes(state):
    storages = {}
    for tensor in state.values():
        parts = tensor if isinstance(tensor, list | tuple) else [tensor]
        storages.update((part.untyped_storage().data_ptr(), part.untyped_storage().nbytes())
                        for part in parts)
    return sum(storages.values())


def quantise(w, bits, group):
    low, high = torch.aminmax(F.pad(w.reshape(-1, group), (0, 1)), dim=1)  # 0 is in every grid
    scales = (high - low).div(2**bits - 1)
    scales[scales == 0] = 1
    zeros = low.neg().div(scales).round()
    codes = (w.reshape(-1, group) / scales[:, None] + zeros[:, None]).round()
    shape = (len(w), w.shape[1] // group)
    return (codes.clamp(0, 2**bits - 1).byte().view(w.shape), scales.view(shape),
            zeros.byte().view(shape))


def soft_threshold(x, cut):
    return F.softshrink(x, cut)


def masked_step(optimizer, masks):
    optimizer.step()
    with torch.no_grad():
        for weight, kept in masks.items():
            weight.mul_(kept)


def drop_inputs(w, x, drop):
    keep = sorted(set(range(w.shape[1])) - set(drop))
    out = torch.zeros_like(w)
    out[:, keep] = torch.linalg.lstsq(x[:, keep], x @ w.T).solution.T
    return out


def kd_loss(student, teacher, labels, T, alpha):
    soft = F.kl_div((student / T).log_softmax(1), (teacher / T).softmax(1),
                    reduction="batchmean")
    return torch.lerp(F.cross_entropy(student, labels), soft * T * T, alpha)


def stop_grad(t):
    return t.clone().detach()


def keep_best(model, train_epoch, val_loss, epochs):
    best = (math.inf, {})
    for _ in range(epochs):
        train_epoch(model)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        best = min(best, (val_loss(model), state), key=lambda one: one[0])
    model.load_state_dict(best[1])
    return best[0]


def free_dims(examples):
    sizes = torch.tensor([list(example.shape) for example in examples])
    return tuple((sizes != sizes[0]).any(0).nonzero().flatten().tolist())


def disagreements(model, program, batches, rtol):
    pairs = [(predict(model, batch), program(batch)) for batch in batches]
    return [number for number, (wanted, got) in enumerate(pairs)
            if not torch.allclose(wanted, got, 0, rtol * wanted.abs().max().item())]


# ---- meters

def predict(model, x):
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            return model.eval()(x)
    finally:
        for module in modes:
            module.training = modes[module]


def state_bytes(tensors, layout, gpus, shard):
    return sum(4 * n * (4 if trained else 1) for n, trained in tensors)


def step_size(opt):
    kept = copy.deepcopy([opt.state_dict(), _weights(opt)])
    opt.step()
    with torch.no_grad():
        moved = [new - old for new, old in zip(_weights(opt), kept[1], strict=True)]
        torch._foreach_copy_(_weights(opt), kept[1])
    opt.load_state_dict(kept[0])
    return max(move.abs().max().item() for move in moved)


def layer_report(model, step):
    before = copy.deepcopy(dict(model.named_parameters()))
    step()
    return {name: (torch.dist(p, before[name]) / before[name].norm().clamp(min=1e-30)).item()
            for name, p in model.named_parameters()}


def find_waits(events):
    waits = [event for event in events if event[0] == "aten::_local_scalar_dense"]
    outer = [event for event in events if event[0] == "aten::item"]
    return [next((name for name, start, end in outer if start <= wait[1] <= end), wait[0])
            for wait in sorted(waits, key=lambda event: event[1])]


def told_apart(layers, x):
    with torch.no_grad():
        streams = list(accumulate(layers, lambda stream, layer: layer(stream), initial=x))
    return [(x.var(0, correction=0).mean() / x.pow(2).mean()).item() for x in streams]


def noisy_modules(model, x):
    log = []
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, given, out: log.append((module, given[0].clone(), out.clone())))
    try:
        with torch.no_grad():
            model(x), model(x)
    finally:
        hook.remove()
    half = len(log) // 2
    parted = {one[0] for one, two in zip(log[:half], log[half:], strict=True)
              if torch.equal(one[1], two[1]) and not torch.equal(one[2], two[2])}
    return [name for name, module in model.named_modules() if module in parted]


def gain_for(act):
    return nn.init.calculate_gain("relu")


def dead_units(h):
    return int((torch.count_nonzero(h, 0) == 0).sum())


def hidden_values(model):
    lists = [value for module in model.modules() for value in vars(module).values()
             if isinstance(value, list)]
    return sum(p.numel() for found in lists for module in found if isinstance(module, nn.Module)
               for p in module.parameters())


def audit(model, optimizer):
    held = {id(p) for p in _weights(optimizer)}
    names = {id(p): name for name, p in model.named_parameters()}
    learns = {id(p) for p in model.parameters() if p.requires_grad}
    return {"missing": sorted(names[one] for one in learns - held),
            "ghosts": len(held - names.keys()),
            "frozen": sorted(names[one] for one in held & names.keys() - learns)}


def batch_dependence(model, x, others):
    rows = (predict(model, torch.cat([x[:1], rest]))[0] for rest in (x[1:], others))
    return torch.dist(*rows, p=math.inf).item()


def unused_names(model, batches, loss_of):
    learns = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    grads = [torch.autograd.grad(loss_of(model, batch), [p for _, p in learns], allow_unused=True)
             for batch in batches]
    return sorted(name for place, (name, _) in enumerate(learns)
                  if any(one[place] is None for one in grads))


def first_nan_module(model, x):
    names = {module: name for name, module in model.named_modules()}
    seen = []

    def look(module, given, out):
        if module in names and out.isnan().any() and not any(
                one.isnan().any() for one in given if one.is_floating_point()):
            seen.append(names[module])

    hook = nn.modules.module.register_module_forward_hook(look)
    try:
        predict(model, x)
    finally:
        hook.remove()
    return next(iter(seen), None)


def tiled_attention(q, k, v, length, tile):
    keep = torch.ones(len(q), length, dtype=torch.bool).tril(length - len(q))
    return F.scaled_dot_product_attention(q[None], k[None, :length], v[None, :length], keep)[0]


def _weights(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]
