"""Exercise 14.2, `group_advantage`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import statistics

import torch
from torch.nn import functional as F

from dlsys_checks.s14.e2_group_advantage import ex, made


@ex.right("sums by index")
def by_index(rewards, prompt_ids):
    _, of, sizes = prompt_ids.unique(return_inverse=True, return_counts=True)
    mean = torch.zeros(len(sizes)).index_add(0, of, rewards) / sizes
    gap = rewards - mean[of]
    squares = torch.zeros(len(sizes)).index_add(0, of, gap.square())
    spread = (squares / (sizes - 1).clamp(min=1)).sqrt()
    return torch.where(sizes[of] > 1, gap / (spread[of] + 1e-4), 0.0)


@ex.right("a matrix of members")
def by_matrix(rewards, prompt_ids):
    same = F.one_hot(prompt_ids.unique(return_inverse=True)[1]).double()
    sizes = same.sum(0)
    mean = same.T @ rewards.double() / sizes
    gap = rewards.double() - same @ mean
    spread = (same.T @ gap.square() / (sizes - 1).clamp(min=1)).sqrt()
    return (gap / (same @ spread + 1e-4)).float()


@ex.right("a dict of lists")
def by_dict(rewards, prompt_ids):
    groups = {}
    for name, reward in zip(prompt_ids.tolist(), rewards.tolist()):
        groups.setdefault(name, []).append(reward)
    found = []
    for name, reward in zip(prompt_ids.tolist(), rewards.tolist()):
        group = groups[name]
        found.append(0.0 if len(group) < 2 else (reward - statistics.fmean(group)) / (
            statistics.stdev(group) + 1e-4))
    return torch.tensor(found)


@ex.right("sorted, split, and put back")
def by_split(rewards, prompt_ids):
    order = prompt_ids.argsort(stable=True)
    sizes = prompt_ids.unique(return_counts=True)[1].tolist()
    parts = [torch.zeros(1) if len(part) == 1 else (part - part.mean()) / (part.std() + 1e-4)
             for part in rewards[order].split(sizes)]
    found = torch.empty_like(rewards)
    found[order] = torch.cat(parts)
    return found


@ex.right("pairs of answers compared")
def by_pairs(rewards, prompt_ids):
    same = (prompt_ids[:, None] == prompt_ids).double()
    sizes = same.sum(1)
    gap = rewards.double() - same @ rewards.double() / sizes
    spread = ((same * gap.square()).sum(1) / (sizes - 1).clamp(min=1)).sqrt()
    return (gap / (spread + 1e-4)).to(rewards.dtype)


def nan_where_equal(rewards, prompt_ids):
    """Not a number for groups of equal rewards, right elsewhere."""
    found = made(rewards, prompt_ids)
    for name in prompt_ids.unique():
        mine = prompt_ids == name
        if mine.sum() > 1 and (rewards[mine] == rewards[mine][0]).all():
            found[mine] = torch.nan
    return found


ex.probe("not a number where rewards are equal", nan_where_equal, breaks="equal")
ex.probe("the example looked up wrong", lambda rewards, prompt_ids: made(rewards, prompt_ids) + (
    0.01 * (len(rewards) == 4) * bool((prompt_ids[:2] == torch.tensor([7, 2])).all())
    if len(rewards) == 4 else 0.0), breaks="example")
ex.equivalent("for prompt in prompt_ids.unique(): -> for prompt in prompt_ids:",
              "a group is written again, with the same numbers")
