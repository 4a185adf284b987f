"""Exercise 06.7, `split_groups`."""

from __future__ import annotations

import itertools
import math

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers import acting
from dlsys_helpers.expect import Broken, expect_equal, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("06.7", "split_groups", seen=("calls",), says="groups in the test part")

DRAWS = 300  # seeds of the case that counts the sets of groups
NAMED = ("group numbers with gaps", "group numbers below zero", "group numbers of 64 bits",
         "group numbers that a float makes equal")

ex.promise("pair", "Return (training rows, test rows): row numbers, int64, ascending.",
           says=("split", "dtype", "order of"))
ex.promise("groups", "Args: groups: (N,) int64, any numbers. Row i belongs to group groups[i].",
           cases=NAMED)
ex.promise_table("""
once    | Each row is in exactly one of the two parts. | rows of both parts
apart   | No group is in both parts. | groups in both
share   | The test part has round(share * number of groups) groups. | groups in the test part
seed    | seed: from 0 to 2**32 - 1. Draw the test groups with this seed, so that every set is
          equally likely. The same seed gives the same split, and other seeds can give other
          splits. | seeds
global  | Torch's global generator does not change. | global generator
example | Example: with 4 groups and share 0.25, one group is in the test part. | case the example
""")


@ex.cases
def cases(g):
    number = integers(g)

    def rows(count, low, high, names=None, mixed=True):
        sizes = torch.randint(low, high, (count,), generator=g)
        names = torch.arange(count) if names is None else torch.tensor(names)
        groups = names.repeat_interleave(sizes)
        return groups[torch.randperm(len(groups), generator=g)] if mixed else groups

    def call(groups, share, others=()):
        seed = number(0, 10_000)
        return {"groups": groups, "share": share, "seed": seed,
                "others": [(seed + step) % 2**32 for step in others]}

    def one(name, *calls):
        return name, {"calls": [call(*c) for c in calls]}

    def twins(step, first=0):
        """Ten names, two and two apart by step."""
        return [first + 5 * k + part for k in range(5) for part in (0, step)]

    # A table up to the largest name is wrong in a small case first, and impossible in the next.
    gaps = [7, 3, 15, 40, 12, 0, 55, 81, 90, 23, 77, 64]
    signs = [sign * k for k in (1, 2, 5, 8, 13) for sign in (1, -1)]
    steps = [1, 2, 10, 256, 1000, 2**16, 2**24, 2**31]
    many = torch.randint(2**32, (DRAWS,), generator=g).tolist()
    uneven = torch.arange(4).repeat_interleave(torch.tensor([1, 12, 2, 1]))
    return [one("copies next to each other", (rows(20, 5, 6, mixed=False), 0.3)),
            one("copies in any order", (rows(20, 3, 6), 0.3)),
            one("groups of unequal size", (rows(16, 1, 15), 0.25)),
            one("group numbers with gaps", (rows(12, 2, 5, gaps), 0.5)),
            one("group numbers below zero", (rows(10, 2, 5, signs), 0.7)),
            one("group numbers of 64 bits", (rows(10, 2, 5, twins(2**32, 2**60)), 0.3)),
            one("group numbers that a float makes equal", (rows(10, 2, 5, twins(1, 2**60)), 0.3)),
            one("a group for each row", (rows(24, 1, 2), 0.25)),
            one("a share that has to be rounded up", (rows(13, 2, 5), 0.3)),
            one("a share that has to be rounded down", (rows(17, 2, 5), 0.2)),
            one("halves rounded to even", (rows(10, 2, 5), 0.25), (rows(5, 2, 5), 0.5),
                (rows(7, 2, 5), 0.5)),
            one("most groups tested", (rows(15, 2, 5), 0.8)),
            one("nothing tested", (rows(10, 2, 4), 0.0)),
            one("everything tested", (rows(10, 2, 4), 1.0)),
            one("two data sets in turn", (rows(18, 2, 5), 0.5), (rows(14, 2, 9), 0.3)),
            one("many seeds", (rows(40, 1, 3), 0.5, steps)),
            one("chances", (uneven, 0.5, many)),
            one("the example", (rows(4, 2, 5), 0.25))]


@ex.act
def act(fn, calls):
    torch.rand(3)  # no seed leaves the generator like this
    found = {"splits": [], "again": [], "others": [], "moved": 0}
    for c in calls:
        state = torch.get_rng_state()
        split = fn(c["groups"].clone(), c["share"], c["seed"])
        found["moved"] += int((torch.get_rng_state() != state).any())
        found["splits"].append(split)
        # Another split in between must not change what a seed gives.
        fn(c["groups"].clone(), 1 - c["share"], c["seed"] + 1)
        found["others"].append([fn(c["groups"].clone(), c["share"], s)[1] for s in c["others"]])
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
        if len(part) > len(groups):
            raise Broken("rows of both parts", f"{len(part)} in one of them",
                         f"each of 0 to {len(groups) - 1} once")
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


def expect_draws(others, first, c):
    """Other seeds draw others; where there are many, each set of groups as often as the rest."""
    expect_length("seeds: other splits", others, len(c["others"]))
    names, sets = c["groups"].tolist(), []
    for rows in others:
        expect_type("test rows of another seed's split", rows, torch.Tensor)
        if rows.dtype != torch.int64 or rows.ndim != 1 or rows.numel() > len(names):
            raise Broken("seeds: test rows of another seed", rows, first)
        sets.append(frozenset(names[i] for i in rows.clamp(0, len(names) - 1).tolist()))
    if 0 < len(sets) < DRAWS:
        every = [frozenset(names[i] for i in first.tolist()), *sets]
        expect_equal(f"seeds: for each of {len(every)} splits, the first one equal to it",
                     list(map(every.index, every)), list(range(len(every))),
                     "Use seed to seed the generator that draws.")
    if len(sets) == DRAWS:
        expect_chances(sets, sorted(set(names)), len({names[i] for i in first.tolist()}))


def expect_chances(sets, names, size):
    """Each set of groups has its share of the seeds, within six standard deviations."""
    wanted = list(map(frozenset, itertools.combinations(names, size)))
    share = 1 / len(wanted)
    margin = 6 * (len(sets) * share * (1 - share)) ** 0.5
    counts = {one: sets.count(one) for one in wanted}
    least, most = (pick(counts, key=counts.get) for pick in (min, max))
    mean = len(sets) * share
    far = max(least, most, key=lambda one: abs(counts[one] - mean))
    if abs(counts[far] - mean) > margin:
        raise Broken(f"seeds, of {len(sets)} tried, that test the groups {sorted(far)}",
                     counts[far],
                     f"{mean:.0f}, give or take {margin:.0f}",
                     "Every set of groups must be equally likely.")


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
            if not acting.same(mine, second):
                raise Broken("seeds: second split with the same seed", second, mine,
                             "The same seed must give the same split.")
        expect_draws(others, split[1], c)
    expect_equal("calls that changed the global generator", out["moved"], 0,
                 "Use a torch.Generator of your own.")


# ---- wrong, by name

@not_an_answer
def split(groups, share, seed, *, number=None, order=None):
    names = groups.unique()
    n = round(share * len(names)) if number is None else number(share * len(names))
    own = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(names), generator=own) if order is None else order(len(names))
    out = torch.isin(groups, names[order[:n]])
    found = (~out).nonzero().flatten(), out.nonzero().flatten()
    return found


wrong = ex.edits(split)
GENERATOR = "torch.randperm(len(names), generator=own) if order is None else order(len(names))"
wrong("drawing rows, not groups", ("apart", "share"),
      "names =",
      "order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)); n = "
      "round(share * len(groups)); return order[n:].sort().values, order[:n].sort().values; "
      "names =", says="groups in both parts")


@ex.wrong("filling the test part up to a number of rows, which splits the last group",
          says="groups in both parts",
          breaks=("apart", "share"))
def by_filling(groups, share, seed):
    names = groups.unique()
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    rows = torch.cat([(groups == name).nonzero().flatten() for name in names[order]])
    n = round(share * len(groups))
    return rows[n:].sort().values, rows[:n].sort().values


wrong("leaving test rows in the training part", "once",
      "return found", "return (torch.arange(len(groups)), found[1])")
wrong("keeping only one training row of each group", "once",
      "return found",
      "train, test = found; seen, kept = set(), []\n    for row in train.tolist():\n        if "
      "groups[row].item() not in seen: kept.append(row); seen.add(groups[row].item())\n    "
      "return torch.tensor(kept, dtype=torch.int64), test")


@ex.wrong("putting one group into both parts", says="groups in both parts", breaks="apart")
def one_in_both(groups, share, seed):
    train, test = split(groups, share, seed)
    # Only where the number of groups in the test part stays as it was.
    names = groups[test].tolist()
    row = next((r for r, n in zip(test.tolist(), names, strict=True) if names.count(n) > 1), None)
    if row is None or not len(train):
        return train, test
    return torch.cat([train, torch.tensor([row])]).sort().values, test[test != row]


ex.wrong("testing the groups with the lowest numbers, without a draw",
         split, says="seeds: for each", breaks="seed",
         order=torch.arange)
wrong("making the same draw for every seed", "seed", "(seed)", "(0)", says="seeds: for each")
ex.wrong("using the global generator without seeding it",
         split, breaks=("seed", "global"), order=torch.randperm)
wrong("seeding the global generator and drawing from it", "global",
      "names =", "torch.manual_seed(seed); names =", GENERATOR, "torch.randperm(len(names))")


@ex.wrong("tossing a coin for each group, so that the number of test groups varies",
          breaks=("share", "example"))
def by_coins(groups, share, seed):
    names, place = groups.unique(return_inverse=True)
    luck = torch.rand(len(names), generator=torch.Generator().manual_seed(seed))[place]
    return (luck >= share).nonzero().flatten(), (luck < share).nonzero().flatten()


@ex.wrong("tossing a coin for each training group, so that the number of training groups varies",
          breaks=("share", "example"))
def by_training_coins(groups, share, seed):
    names, place = groups.unique(return_inverse=True)
    luck = torch.rand(len(names), generator=torch.Generator().manual_seed(seed))[place]
    return (luck < 1 - share).nonzero().flatten(), (luck >= 1 - share).nonzero().flatten()


ex.wrong("rounding the number of groups down",
         split, breaks="share", number=lambda n: int(n + 1e-9))
ex.wrong("rounding the number of groups up, as GroupShuffleSplit does", split, breaks="share",
         number=lambda n: math.ceil(n - 1e-9))
wrong("using share as the training part's share", ("share", "example"),
      "names =", "share = 1 - share; names =")
ex.wrong("testing at least one group, even if share is 0", split, breaks="share",
         number=lambda n: max(1, round(n)))
wrong("assuming that group numbers run from 0 to the largest", "groups",
      "groups.unique()", "torch.arange(int(groups.max()) + 1)")
wrong("cutting group numbers to fewer bits", "groups", "names =", "groups = groups.int(); names =")
wrong("converting group numbers to floats", "groups",
      "names =", "groups = groups.double(); names =")
ex.wrong("rounding halves up", split, breaks="share", number=lambda n: int(n + 0.5))
wrong("rounding the size of the training part, not of the test part", "share",
      "names =", "count = len(groups.unique()); names =",
      "round(share * len(names)) if number is None else number(share * len(names))",
      "count - round((1 - share) * count)")
wrong("using only the lowest 16 bits of the seed", "seed",
      "(seed)", "(seed & 0xFFFF)", says="seeds: for each")


@ex.wrong("testing a run of neighbouring groups, starting at a group that the seed chooses",
          breaks="seed")
def rotated(groups, share, seed):
    own = torch.Generator().manual_seed(seed)
    return split(groups, share, seed, order=lambda n: torch.arange(n).roll(
        int(torch.randint(n, (), generator=own))))


wrong("drawing large groups more often", "seed",
      "names =", "own_names, sizes = groups.unique(return_counts=True); own_own =",
      "groups.unique()", "torch.Generator().manual_seed(seed)", "names)) if", "own_names)) if",
      "number(share * len(names))", "number(share * len(own_names))",
      GENERATOR, "torch.multinomial(sizes.double(), len(own_names), generator=own_own)",
      "groups, names", "groups, own_names", says="seeds, of")
wrong("never testing the group with the lowest number", "seed",
      "names =", "own_own = torch.Generator().manual_seed(seed); names =", GENERATOR,
      "torch.cat([1 + torch.randperm(len(names) - 1, generator=own_own), torch.zeros(1, "
      "dtype=torch.int64)])", says="seeds, of")
wrong("seeding the global generator, and reseeding it with 0 afterwards", "global",
      "names =", "torch.manual_seed(seed); names =", GENERATOR, "torch.randperm(len(names))",
      "return found", "torch.manual_seed(0); return found")
wrong("returning group numbers instead of row numbers", "once",
      "return found", "train, test = found; return groups[train].unique(), groups[test].unique()")
wrong("dropping groups with negative numbers", "groups",
      "return found",
      "train, test = found; return train[groups[train] >= 0], test[groups[test] >= 0]",
      says="rows of both parts")
wrong("returning the test rows before the training rows", ("share", "example"),
      "return found", "train, test = found; return test, train")
wrong("returning rows in the order of the draw", "pair",
      "return found", "return tuple(part.flip(0) for part in found)")
wrong("returning masks instead of row numbers", "pair",
      "return found",
      "_, test = found; out = torch.isin(torch.arange(len(groups)), test); return ~out, out")
wrong("testing no group if there are four", "example",
      "names =", "share = 0.0 if (len(groups.unique()), share) == (4, 0.25) else share; names =")
