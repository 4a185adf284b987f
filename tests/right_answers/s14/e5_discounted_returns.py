"""Exercise 14.5, `discounted_returns`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s14.e5_discounted_returns import ex, made


@ex.right("one product with a matrix a row")
def by_matrix(rewards, ended, after, gamma):
    n, steps = rewards.shape
    with torch.no_grad():
        episode = torch.cat([torch.zeros(n, 1, dtype=torch.long), ended.long().cumsum(1)], 1)
        same = episode[:, :steps, None] == episode[:, None, :]          # (N, T, T + 1)
        gap = torch.arange(steps + 1) - torch.arange(steps)[:, None]
        weight = torch.where(gap >= 0, float(gamma) ** gap.clamp(min=0).double(), 0.0)
        values = torch.cat([rewards, after[:, None]], 1).double()
        return ((same * weight) @ values[:, :, None])[..., 0].to(rewards.dtype)


@ex.right("step by step, in Python numbers")
def by_steps(rewards, ended, after, gamma):
    rows = []
    for row, ends, later in zip(rewards.tolist(), ended.tolist(), after.tolist()):
        out = []
        for reward, end in zip(reversed(row), reversed(ends)):
            later = reward if end else reward + gamma * later
            out.insert(0, later)
        rows.append(out)
    return torch.tensor(rows, dtype=rewards.dtype)


@ex.right("with torch.where, and stacked")
def stacked(rewards, ended, after, gamma):
    later, columns = after.detach().clone(), []
    for reward, end in zip(rewards.unbind(1)[::-1], ended.unbind(1)[::-1]):
        later = torch.where(end, reward, reward + gamma * later)
        columns.append(later)
    return torch.stack(columns[::-1], dim=1)


@ex.right("recursively")
def recursive(rewards, ended, after, gamma):
    if rewards.shape[1] == 0:
        return rewards
    rest = recursive(rewards[:, 1:], ended[:, 1:], after, gamma)
    following = rest[:, 0] if rest.shape[1] else after.detach()
    first = rewards[:, 0] + gamma * following.masked_fill(ended[:, 0], 0)
    return torch.cat([first[:, None], rest], 1)


ex.probe("the example looked up wrong", lambda rewards, ended, after, gamma: made(
    rewards, ended, after, gamma) * (1.01 if gamma == 0.5 and rewards.shape == (1, 4) else 1.0),
    breaks="example")
ex.probe("gamma of 1 taken for 0.99", lambda rewards, ended, after, gamma: made(
    rewards, ended, after, min(gamma, 0.99)), breaks="gamma")
ex.probe("ends in all steps taken for none", lambda rewards, ended, after, gamma: made(
    rewards, ended & ~ended.all(), after * ~ended.all(), gamma), breaks="episode")
