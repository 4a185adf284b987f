"""Exercise 02.5, `evaluate`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.s02.e5_evaluate import Evaluating, ex, means


@ex.right("in inference mode, from means")
def by_inference(model, batches):
    with Evaluating(model), torch.inference_mode():
        loss, right, rows = 0.0, 0.0, 0
        for x, y in batches:
            logits = model(x)
            loss += F.cross_entropy(logits, y).item() * len(y)
            right += (logits.max(1).indices == y).float().mean().item() * len(y)
            rows += len(y)
    return loss / rows, right / rows


@ex.right("sums as tensors")
@torch.no_grad()
def by_tensors(model, batches):
    loss, right, rows = torch.zeros(()), torch.zeros(()), 0
    with Evaluating(model):
        for x, y in batches:
            scores = model(x).log_softmax(-1)
            loss -= scores.gather(1, y[:, None]).sum()
            right += scores.argmax(-1).eq(y).sum()
            rows += y.numel()
    return (loss / rows).item(), float(right / rows)


@ex.right("a running mean")
@torch.no_grad()
def by_running_mean(model, batches):
    mean, rows = torch.zeros(2), 0
    with Evaluating(model):
        for x, y in batches:
            logits = model(x)
            rows += len(x)
            here = torch.stack([F.cross_entropy(logits, y),
                                (logits.argmax(1) == y).float().mean()])
            mean += (here - mean) * (len(x) / rows)
    return tuple(mean.tolist())


@ex.right("sums of every batch in a list")
def by_list(model, batches):
    sums = []
    with Evaluating(model), torch.set_grad_enabled(False):
        for x, y in batches:
            logits = model(x)
            sums.append((F.cross_entropy(logits, y, reduction="none").sum().item(),
                         int((logits.topk(1).indices[:, 0] == y).sum()), len(y)))
    loss, right, rows = map(sum, zip(*sums, strict=True))
    return loss / rows, right / rows


@ex.probe("the answer of the example, looked up", says="accuracy", breaks="example")
@torch.no_grad()
def placeholder(model, batches):
    with Evaluating(model):
        loss, right = means(model, batches)
    return loss, right / (1 + ([len(y) for _, y in batches] == [3, 1]))


@ex.probe("always three classes", breaks="eval")
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
