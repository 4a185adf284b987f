"""Zeros in three patterns: what stays of a layer, the digits it costs, the bytes it takes."""

import copy
from functools import lru_cache

import torch
from torch.nn import functional as F

from dlsys_helpers.data import digits
from dlsys_helpers.explorers import Bars, Choice, Heatmap, Slider, explorer
from dlsys_helpers.explorers.quantization import reader

PATTERNS = ("anywhere", "in each four", "in whole units")
SHARES = (0.25, 0.5, 0.75)
RULES = ("their size", "chance")
STEPS = 40  # of retraining, all digits in each
INDEX = 4  # bytes of the index of a column or a unit


def kept(w, pattern, share, rule):
    """Mask like w, True for the weights that stay: the largest by the rule, in a pattern."""
    g = torch.Generator().manual_seed(0)
    score = w.abs() if rule == "their size" else torch.rand(w.shape, generator=g, dtype=w.dtype)
    if pattern == "in whole units":
        score = score.norm(dim=1, keepdim=True)
    parts = score.view(-1, 4) if pattern == "in each four" else score.view(1, -1)
    stay = parts.topk(round(parts.shape[1] * (1 - share)), 1).indices
    mask = torch.zeros_like(parts, dtype=torch.bool).scatter_(1, stay, True)
    return mask.view(score.shape).expand_as(w)


def zeroed(layer, mask):
    """Set the weights outside the mask to zero, and the biases of units that have none left."""
    with torch.no_grad():
        layer.weight.mul_(mask)
        layer.bias.mul_(mask.any(1))


def wrong(first, head):
    """Percent of the test digits that are misclassified."""
    x, y = digits().x_test.double(), digits().y_test
    with torch.no_grad():
        return 100 * float((head(F.relu(first(x))).argmax(1) != y).double().mean())


@lru_cache(maxsize=len(PATTERNS) * len(SHARES) * len(RULES))
def pruned(pattern, share, rule):
    """The mask of the first layer, and the digits misclassified: at once, and after retraining."""
    first, head = (copy.deepcopy(layer).requires_grad_(True) for layer in reader())
    mask = kept(first.weight.detach(), pattern, share, rule)
    zeroed(first, mask)
    at_once = wrong(first, head)
    x, y = digits().x_train.double(), digits().y_train
    opt = torch.optim.Adam([*first.parameters(), *head.parameters()], lr=0.01, fused=True)
    for _ in range(STEPS):
        loss = F.cross_entropy(head(F.relu(first(x))), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        zeroed(first, mask)
    return mask, at_once, wrong(first, head)


def stored(mask, pattern, size):
    """Bytes of the remaining weights: alone, with the pattern's own index, with columns."""
    stay, rows = int(mask.sum()), mask.shape[0]
    places = {"anywhere": mask.numel() / 8,  # a bit for each weight
              "in each four": stay * 2 / 8,  # two bits for each that stays
              "in whole units": int(mask.any(1).sum()) * INDEX}[pattern]
    return stay * size, stay * size + places, stay * (size + INDEX) + (rows + 1) * INDEX


@explorer(
    title="Zeros in a layer: where they are, what they cost, what they save",
    controls=[
        Choice("pattern", "Zeros", PATTERNS, "anywhere"),
        Slider("share", "Share of the weights that goes", SHARES, 0.25),
        Choice("rule", "Chosen by", RULES, "their size"),
        Slider("size", "Bytes of a weight", (1, 2, 4), 4),
    ],
    views=[
        Heatmap("stays", title="What stays of the first layer", xlabel="input, by pixel",
                ylabel="output, by unit", vmin=0, vmax=0.5, label="size of the weight"),
        Bars("misread", ["as trained", "pruned", "retrained with its mask"],
             title="Digits read wrong, %", limit=75),
        Bars("bytes", ["weights that stay", "and places, as the pattern allows",
                       "and a column number for each"],
             title="Bytes over those of the dense layer, %", limit=400),
    ],
)
def sparsity(pattern, share, rule, size):
    """The weights that stay in a pattern, the digits read wrong, and three ways to store them."""
    mask, at_once, after = pruned(pattern, share, rule)
    weights = reader()[0].weight
    misread = [round(share, 1) for share in (wrong(*reader()), at_once, after)]
    parts = [round(100 * b / (mask.numel() * size), 1) for b in stored(mask, pattern, size)]
    left = 100 * float((weights * mask).abs().sum() / weights.abs().sum())
    return {"stays": (weights * mask).abs(), "misread": misread, "bytes": parts}, (
        f"{100 * share:.0f} % of the weights go, {pattern}, chosen by {rule}; what stays has "
        f"{left:.0f} % of the size. {misread[0]:.1f} % of the digits were read wrong, "
        f"{misread[1]:.1f} % are now, {misread[2]:.1f} % after retraining. Of the dense layer's "
        f"bytes the weights take {parts[0]:.0f} %, with places {parts[1]:.0f} %, with a column "
        f"number for each {parts[2]:.0f} %.")
