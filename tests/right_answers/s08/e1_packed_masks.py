"""Exercise 08.1, `packed_masks`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch

from dlsys_checks.s08.e1_packed_masks import ex, masks

ex.equivalent("same = document[:, None] == document -> same = document[:, None] <= document",
              "Documents are numbered along the row, and tril leaves the columns before.")


def forms(keep):
    return keep, keep.logical_not(), torch.where(keep, 0.0, -math.inf)


@ex.right("torch.block_diag of triangles")
def by_blocks(lengths):
    blocks = [torch.ones(n, n).tril() for n in lengths]
    keep = torch.block_diag(*blocks).bool() if blocks else torch.zeros(0, 0).bool()
    return forms(keep)


@ex.right("by the first token of each document")
def by_starts(lengths):
    starts, at = [], 0
    for n in lengths:
        starts += [at] * n
        at += n
    start, place = torch.tensor(starts).long(), torch.arange(at)
    return forms((place >= start[:, None]) & (place <= place[:, None]))


@ex.right("ends found by searching the cumulative sum")
def by_search(lengths):
    ends = torch.tensor(lengths, dtype=torch.int64).cumsum(0)
    place = torch.arange(sum(lengths))
    document = torch.searchsorted(ends, place, right=True)
    keep = (document[:, None] == document[None]) & ~torch.ones(
        len(place), len(place)).triu(1).bool()
    return forms(keep)


@ex.right("pair by pair")
def by_pairs(lengths):
    document = [k for k, n in enumerate(lengths) for _ in range(n)]
    size = len(document)
    bias = torch.full((size, size), -math.inf)
    for i in range(size):
        for j in range(i + 1):
            if document[i] == document[j]:
                bias[i, j] = 0.0
    return bias == 0, bias != 0, bias


@ex.probe("the example, looked up wrong", breaks="example")
def placeholder(lengths):
    if lengths == [1, 2]:
        return tuple(mask.mT for mask in masks(lengths))
    return masks(lengths)
