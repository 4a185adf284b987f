"""Exercise 06.7, `split_groups`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s06.e7_split_groups import ex


@ex.right("Python's own dice and sets")
def by_random(groups, share, seed):
    import random
    names = sorted(set(groups.tolist()))
    chosen = set(random.Random(seed).sample(names, round(share * len(names))))
    test = [i for i, name in enumerate(groups.tolist()) if name in chosen]
    train = [i for i, name in enumerate(groups.tolist()) if name not in chosen]
    return torch.tensor(train, dtype=torch.int64), torch.tensor(test, dtype=torch.int64)


@ex.right("a random number for each group, the smallest chosen")
def by_numbers(groups, share, seed):
    names, place = groups.unique(return_inverse=True)
    luck = torch.rand(len(names), generator=torch.Generator().manual_seed(seed))
    test = (luck.argsort().argsort() < round(share * len(names)))[place]
    rows = torch.arange(len(groups))
    return rows[~test], rows[test]


@ex.right("numpy's permutation")
def by_numpy(groups, share, seed):
    import numpy as np
    names, place = np.unique(groups.numpy(), return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(names))
    test = np.isin(place, order[:round(share * len(names))])
    return tuple(torch.from_numpy(np.flatnonzero(side)) for side in (~test, test))


@ex.right("the global generator, put back")
def by_fork(groups, share, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        names = groups.unique()
        names = names[torch.randperm(len(names))]
    test = (groups[:, None] == names[:round(share * len(names))]).any(1)
    return torch.where(~test)[0], torch.where(test)[0]
