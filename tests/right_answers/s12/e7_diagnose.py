"""Exercise 12.7, `diagnose`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy

import torch

from dlsys_checks.s12.e7_diagnose import ex, frozen, is_sum, share_fitting, whole


@ex.right("four tests, asked from the last on")
def from_last(model, loss_fn, batches):
    name = "none"
    if share_fitting(*whole(batches)) < 0.5:
        name = "labels"
    if {len(set(y.tolist())) for _, y in batches} == {1}:
        name = "order"
    if is_sum(model, loss_fn, batches):
        name = "sum"
    return "frozen" if frozen(model) else name


@ex.right("a table of verdicts")
def table(model, loss_fn, batches):
    verdicts = {"frozen": frozen(model), "sum": is_sum(model, loss_fn, batches),
                "order": all(int(y.min()) == int(y.max()) for _, y in batches),
                "labels": share_fitting(*whole(batches)) < 0.5}
    return next((name for name, holds in verdicts.items() if holds), "none")


@ex.right("the loss of made-up logits")
def made_up(model, loss_fn, batches):
    if frozen(model):
        return "frozen"
    y = batches[0][1]
    z = torch.linspace(-1, 1, 4 * len(y)).view(len(y), 4)
    if loss_fn(torch.cat([z] * 4), y.repeat(4)) / loss_fn(z, y) > 2:
        return "sum"
    if not any((y != y[0]).any() for _, y in batches):
        return "order"
    return "labels" if 2 * share_fitting(*whole(batches)) < 1 else "none"


@ex.right("the ratio of two losses, as Python numbers")
def by_ratio(model, loss_fn, batches):
    if frozen(model):
        return "frozen"
    (x, y), twin = batches[0], copy.deepcopy(model).eval()
    once, twice = (loss_fn(twin(x.repeat(n, 1)), y.repeat(n)).item() for n in (1, 2))
    if abs(twice / once - 2) < 0.1:
        return "sum"
    if all(len(set(y.tolist())) == 1 for _, y in batches):
        return "order"
    return "labels" if share_fitting(*whole(batches)) < 0.5 else "none"


@ex.right("row by row")
def row_by_row(model, loss_fn, batches):
    if not [p for p in model.parameters() if p.requires_grad]:
        return "frozen"
    if is_sum(model, loss_fn, batches):
        return "sum"
    if max(y.unique().numel() for _, y in batches) == 1:
        return "order"
    x, y = whole(batches)
    right = 0
    for i in range(len(x)):
        gaps = torch.linalg.vector_norm(x - x[i], dim=1)
        gaps[i] = torch.inf
        right += bool(y[gaps.argmin()] == y[i])
    return "labels" if right < len(x) / 2 else "none"


for mutant, why in {
    "fitting = y[gaps.argmin(1)] == y -> fitting = y[gaps.argmin(0)] == y":
        "distances are symmetric",
    "gaps = torch.cdist(x, x).fill_diagonal_(torch.inf) -> "
    "gaps = torch.cdist(x, x).fill_diagonal_(torch.inf)": "both arguments are the same",
    "if all((len(y.unique()) == 1 for _, y in batches)): -> "
    "if all((len(y.unique()) <= 1 for _, y in batches)):": "a batch has a class",
    "x, y = batches[0] -> x, y = batches[-1]": "any batch tells a sum from a mean",
    "z = copy.deepcopy(model).eval()(x) -> z = copy.deepcopy(model)(x)":
        "any logits tell a sum from a mean, and the copy is thrown away",
}.items():
    ex.equivalent(mutant, why)


ex.equivalent("if twice.abs() > 1.5 * loss_fn(z, y).abs(): -> "
              "if twice.abs() >= 1.5 * loss_fn(z, y).abs():", "the loss doubles or stays")
