"""Exercise 15.2, `pass_losses`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import numpy as np
import torch

from dlsys_checks.s15.e2_pass_losses import divisors, ex


@ex.right("a product of the passes behind, for each")
def products(labels, divides):
    total = sum(sum(row) for row in labels)
    return [[total / (math.prod(map(len, labels[p:])) if divides else 1)] * len(row)
            for p, row in enumerate(labels)]


@ex.right("numbers of numpy in plain lists")
def by_numpy(labels, divides):
    sizes = np.array([len(row) if divides else 1 for row in labels], float)
    total = np.float64(sum(map(sum, labels)))
    return [[total / sizes[p:].prod() for _ in row] for p, row in enumerate(labels)]


@ex.right("a running product from the back, in a tensor")
def cumulative(labels, divides):
    sizes = torch.tensor([len(row) if divides else 1 for row in labels], dtype=torch.float64)
    behind = sizes.flip(0).cumprod(0).flip(0)
    total = sum(n for row in labels for n in row)
    return [[total / by] * len(row) for by, row in zip(behind.tolist(), labels, strict=True)]


@ex.right("played: what becomes of a label's 1")
def played(labels, divides):
    grads, total = [], 0
    for row in labels:
        grads.append(1.0)
        total += sum(row)
        if divides:
            grads = [g / len(row) for g in grads]
    return [[g * total for _ in row] for g, row in zip(grads, labels, strict=True)]


@ex.right("the last pass first, by calling itself")
def recursive(labels, divides):
    def behind(rows):
        return (len(rows[0]) if divides else 1) * behind(rows[1:]) if rows else 1

    total = float(sum(map(sum, labels)))
    found = []
    for p in range(len(labels)):
        found += [[total / behind(labels[p:]) for _ in labels[p]]]
    return found


@ex.right("logarithms, added")
def logs(labels, divides):
    total = math.log(sum(map(sum, labels)))
    sizes = [math.log(len(row)) * bool(divides) for row in labels]
    return [[math.exp(total - math.fsum(sizes[p:]))] * len(row) for p, row in enumerate(labels)]


ex.probe("the example, looked up wrong", lambda labels, divides: (
    [[8.0, 8.0], [4.0]] if divides else [[8.0, 8.0], [8.0]])
    if labels == [[3, 1], [4]] and divides else divisors(labels, divides), breaks="example",
    says="divisor of micro-batch")
