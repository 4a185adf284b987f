"""Exercise 06.7, `split_groups`."""

from __future__ import annotations

import torch

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_length, expect_parts, expect_type

ex = exercise("06.7", "split_groups", seen=("calls",))

ex.promise("pair", "(training rows, test rows): row numbers, int64, each ascending.",
           says=("split", "dtype", "order of"))
ex.promise("groups", "groups: (N,) int64, any numbers; row i belongs to groups[i].",
           says=("groups in the test part", "groups in both", "rows of both parts"))
ex.promise("once", "Each row is in exactly one of the two,", says=("rows of both parts",))
ex.promise("apart", "and no group is in both.", says=("groups in both",))
ex.promise("share", "In the test part are round(share * number of groups) groups,",
           says=("groups in the test part",))
ex.promise("seed", "drawn by seed >= 0, each set of them with equal chance: the same seed "
           "gives the same split, other seeds give others,",
           says=("seeds",))
ex.promise("global", "and torch's global generator stays as it is.", says=("global generator",))
ex.promise("example", "Example: 4 groups, share 0.25: one group is in the test part.",
           cases=("the example",))


@ex.cases
def cases(g):
    def number(low, high):
        return int(torch.randint(low, high, (), generator=g))

    def rows(count, low, high, names=None, mixed=True):
        sizes = torch.randint(low, high, (count,), generator=g)
        names = torch.arange(count) if names is None else names
        groups = names.repeat_interleave(sizes)
        return groups[torch.randperm(len(groups), generator=g)] if mixed else groups

    def call(groups, share):
        return {"groups": groups, "share": share, "seed": number(0, 10_000)}

    def one(name, *calls):
        return name, {"calls": [call(*c) for c in calls]}

    names = torch.tensor([7, -3, 10**9, 40, 12, 0, 55, 81, 90, 23, 77, 64])
    return [one("copies next to each other", (rows(20, 5, 6, mixed=False), 0.3)),
            one("copies in any order", (rows(20, 3, 6), 0.3)),
            one("groups of unequal size", (rows(16, 1, 15), 0.25)),
            one("any names", (rows(12, 2, 5, names), 0.5)),
            one("a group a row", (rows(24, 1, 2), 0.25)),
            one("a share that has to be rounded up", (rows(13, 2, 5), 0.3)),
            one("a share that has to be rounded down", (rows(17, 2, 5), 0.2)),
            one("most of them tested", (rows(15, 2, 5), 0.8)),
            one("nothing tested", (rows(10, 2, 4), 0.0)),
            one("everything tested", (rows(10, 2, 4), 1.0)),
            one("two data sets in turn", (rows(18, 2, 5), 0.5), (rows(14, 2, 9), 0.3)),
            one("the example", (rows(4, 2, 5), 0.25))]


@ex.act
def act(fn, calls):
    found = {"splits": [], "again": [], "others": [], "moved": 0}
    for c in calls:
        state = torch.get_rng_state()
        split = fn(c["groups"].clone(), c["share"], c["seed"])
        found["moved"] += int((torch.get_rng_state() != state).any())
        found["splits"].append(split)
        # Another split in between must not change what a seed gives.
        others = [fn(c["groups"].clone(), c["share"], c["seed"] + k)[1] for k in range(1, 9)]
        found["others"].append(others)
        torch.rand(3)
        found["again"].append(fn(c["groups"].clone(), c["share"], c["seed"]))
    return found


def expect_split(split, groups, share):
    """What one split owes: form, rows, groups, number of groups."""
    expect_type("split", split, tuple)
    expect_equal("number of parts of the split", len(split), 2)
    for part, word in zip(split, ("training", "test"), strict=True):
        expect_type(f"{word} rows of the split", part, torch.Tensor)
        expect_equal(f"dtype of the {word} rows", str(part.dtype), "torch.int64")
        expect_equal(f"axes of the {word} rows of the split", part.ndim, 1)
        if part.tolist() != sorted(part.tolist()):
            raise Broken(f"order of the {word} rows", part, "ascending")
    both = sorted(split[0].tolist() + split[1].tolist())
    if both != list(range(len(groups))):
        raise Broken("rows of both parts", f"{len(both)} numbers, {len(set(both))} different",
                     f"each of 0 to {len(groups) - 1} once")
    names = groups.tolist()
    sides = [{names[i] for i in part.tolist()} for part in split]
    expect_equal("groups in both parts", len(sides[0] & sides[1]), 0,
                 "Draw groups; their rows follow.")
    expect_equal("groups in the test part", len(sides[1]), round(share * len(set(names))))


@ex.law
def law(out, calls):
    expect_parts(out, "splits", "again", "others", "moved")
    for part in ("splits", "again", "others"):
        expect_length(part, out[part], len(calls))
    for c, split, again, others in zip(calls, out["splits"], out["again"], out["others"],
                                       strict=True):
        expect_split(split, c["groups"], c["share"])
        expect_type("second split with the same seed", again, tuple)
        expect_equal("seeds: parts of the second split", len(again), 2)
        for mine, second in zip(split, again, strict=True):
            expect_type("rows of the second split", second, torch.Tensor)
            if mine.tolist() != second.tolist() or mine.dtype != second.dtype:
                raise Broken("seeds: second split with the same seed", second, mine,
                             "It depends on seed alone.")
        expect_length("seeds: other splits", others, 8)
        for other in others:
            expect_type("test rows of another seed's split", other, torch.Tensor)
        different = sum(other.tolist() != split[1].tolist() for other in others)
        if 0 < c["share"] < 1 and different < 2:
            raise Broken("other seeds whose split differs, of 8", different, "most of them",
                         "Give seed to the generator that draws.")
    expect_equal("calls that moved the global generator", out["moved"], 0,
                 "Use a torch.Generator of your own.")


# ---- right by another route

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


# ---- wrong, by name

def split(groups, share, seed, *, number=None, names=None, order=None):
    """The right split with the mistakes as options."""
    names = groups.unique() if names is None else names
    n = round(share * len(names)) if number is None else number(share * len(names))
    own = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(names), generator=own) if order is None else order(len(names))
    out = torch.isin(groups, names[order[:n]])
    return (~out).nonzero().flatten(), out.nonzero().flatten()


@ex.wrong("rows drawn, not groups", says="groups in both parts",
          breaks=("apart", "groups", "share"))
def by_rows(groups, share, seed):
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed))
    n = round(share * len(groups))
    return order[n:].sort().values, order[:n].sort().values


@ex.wrong("filled up by rows, the last group cut", says="groups in both parts",
          breaks=("apart", "groups", "share"))
def by_filling(groups, share, seed):
    names = groups.unique()
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    rows = torch.cat([(groups == name).nonzero().flatten() for name in names[order]])
    n = round(share * len(groups))
    return rows[n:].sort().values, rows[:n].sort().values


@ex.wrong("test rows left in the training part", says="rows of both parts", breaks="once")
def all_train(groups, share, seed):
    return torch.arange(len(groups)), split(groups, share, seed)[1]


@ex.wrong("one row of each group kept", says="rows of both parts", breaks="once")
def first_rows(groups, share, seed):
    train, test = split(groups, share, seed)
    seen, kept = set(), []
    for row in train.tolist():
        if groups[row].item() not in seen:
            kept.append(row)
            seen.add(groups[row].item())
    return torch.tensor(kept, dtype=torch.int64), test


@ex.wrong("one group on both sides", says="groups in both parts", breaks="apart")
def one_in_both(groups, share, seed):
    train, test = split(groups, share, seed)
    # Only where the number of groups in the test part stays as it was.
    names = groups[test].tolist()
    row = next((r for r, n in zip(test.tolist(), names, strict=True) if names.count(n) > 1), None)
    if row is None or not len(train):
        return train, test
    return torch.cat([train, torch.tensor([row])]).sort().values, test[test != row]


@ex.wrong("the first groups in order, no draw", says="seeds whose split differs", breaks="seed")
def in_order(groups, share, seed):
    return split(groups, share, seed, order=torch.arange)


@ex.wrong("the same draw for every seed", says="seeds whose split differs", breaks="seed")
def one_seed(groups, share, seed):
    return split(groups, share, 0)


@ex.wrong("the global generator, not seeded", says="seeds", breaks=("seed", "global"))
def unseeded(groups, share, seed):
    return split(groups, share, seed, order=torch.randperm)


@ex.wrong("the global generator, seeded", says="global generator", breaks="global")
def seeded_globally(groups, share, seed):
    torch.manual_seed(seed)
    return split(groups, share, seed, order=torch.randperm)


@ex.wrong("the number of groups rounded down", says="groups in the test part", breaks="share")
def floored(groups, share, seed):
    return split(groups, share, seed, number=lambda n: int(n + 1e-9))


@ex.wrong("the share of groups that are left", says="groups in the test part",
          breaks=("share", "groups", "example"))
def other_share(groups, share, seed):
    return split(groups, 1 - share, seed)


@ex.wrong("always one group at least", says="groups in the test part", breaks=("share", "groups"))
def one_at_least(groups, share, seed):
    return split(groups, share, seed, number=lambda n: max(1, round(n)))


@ex.wrong("groups taken for 0 to 8", says="groups in the test part",
          breaks=("groups", "share"))
def counted_names(groups, share, seed):
    if groups.max() > 10**6:
        return split(groups, share, seed, names=torch.arange(9))
    return split(groups, share, seed)


@ex.wrong("the labels of the groups instead of rows", says="rows of both parts", breaks=(
    "once", "groups"))
def labels(groups, share, seed):
    train, test = split(groups, share, seed)
    return groups[train].unique(), groups[test].unique()


@ex.wrong("group numbers drawn from -1 up by name", says="rows of both parts", breaks="groups")
def negative_lost(groups, share, seed):
    train, test = split(groups, share, seed)
    return train[groups[train] >= 0], test[groups[test] >= 0]


@ex.wrong("test and training part exchanged", says="groups in the test part",
          breaks=("share", "groups", "example"))
def exchanged(groups, share, seed):
    train, test = split(groups, share, seed)
    return test, train


@ex.wrong("rows in the order of the draw", says="order of", breaks="pair")
def unsorted(groups, share, seed):
    return tuple(part.flip(0) for part in split(groups, share, seed))


@ex.wrong("masks instead of row numbers", says="dtype", breaks="pair")
def masks(groups, share, seed):
    _, test = split(groups, share, seed)
    out = torch.isin(torch.arange(len(groups)), test)
    return ~out, out


@ex.wrong("no group tested where there are four", says="groups in the test part",
          breaks="example")
def looked_up(groups, share, seed):
    return split(groups, share if len(groups.unique()) != 4 else 0.0, seed)
