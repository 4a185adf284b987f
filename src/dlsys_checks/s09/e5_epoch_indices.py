"""Exercise 09.5, `epoch_indices`."""

from __future__ import annotations

import itertools

import torch
from torch.utils.data import DistributedSampler

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("09.5", "epoch_indices", seen=("n", "world", "rank", "epochs", "seed", "exact"),
              says="number of examples")

ex.promise("list", "The examples that a rank gets in an epoch, in their order.",
           says=("examples of rank", "number of examples", "type of the examples", "type of a"))
ex.promise("order", "All ranks deal from one order of the n >= 1 examples: torch.randperm(n) of a "
           "torch.Generator that is seeded with seed + epoch.", says=("examples of rank",))
ex.promise("places", "Rank r takes the places r, r + world, r + 2 world, and so on.",
           says=("examples of rank",))
ex.promise("exact", "exact: nothing is repeated and nothing dropped, so that shares may differ by "
           "one, and may be empty.",
           cases=("exact, a rest", "exact, no rest", "exact, fewer examples than ranks",
                  "the example, exact"))
ex.promise("longer", "Otherwise the order is first made longer, by itself, from its beginning and "
           "as often as needed, until it is the next multiple of world.",
           cases=("a rest", "a rest, the first rank", "fewer examples than ranks",
                  "one example, many ranks", "the example"))
ex.promise("global", "torch's global generator is left as it is found.", says=("global generator",))
ex.promise("example", "Example: n 10, world 4, rank 3, epoch 0, seed 0: [5, 8, 1]; exact: [5, 8].",
           cases=("the example", "the example, exact"))


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, n, world, rank=None, *, exact=False, epochs=None):
        first = whole(0, 9)
        return name, {"n": n, "world": world, "exact": exact,
                      "rank": whole(0, world) if rank is None else rank,
                      "epochs": epochs or [first, first + whole(1, 5), first],
                      "seed": whole(0, 1000)}
    many = whole(6, 12)
    shown = {"n": 10, "world": 4, "rank": 3, "epochs": [0], "seed": 0}
    return [one("no rest", 12 * whole(2, 5), 4), one("one rank", whole(5, 30), 1),
            one("a rest", 4 * whole(4, 9) + whole(1, 4), 4, 3),
            one("a rest, the first rank", 3 * whole(4, 9) + 1, 3, 0),
            one("fewer examples than ranks", 3, 8, 7),
            one("one example, many ranks", 1, many, many - 1),
            one("exact, a rest", 4 * whole(4, 9) + 2, 4, whole(0, 2), exact=True),
            one("exact, no rest", 24, 3, exact=True),
            one("exact, fewer examples than ranks", 3, 8, 5, exact=True),
            one("a late epoch", 2 * whole(10, 20), 2, epochs=[1000, 1001]),
            ("the example", shown | {"exact": False}),
            ("the example, exact", shown | {"exact": True})]


@ex.act
def act(fn, n, world, rank, epochs, seed, exact):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    found = [fn(n, world, rank, epoch, seed, exact) for epoch in epochs]
    return {"found": found, "moved": int(not torch.equal(before, torch.get_rng_state()))}


@ex.law
def law(out, n, world, rank, epochs, seed, exact):
    expect_parts(out, "found", "moved")
    expect_length("epochs", out["found"], len(epochs))
    for got, epoch in zip(out["found"], epochs, strict=True):
        wanted = dealt(n, world, rank, epoch, seed, exact)
        expect_type("examples", got, list)
        for index in got:
            expect_type("a single example", index, int, "Plain whole numbers.")
        where = f"of rank {rank} of {world}, n {n}, exact {exact}"
        expect_equal(f"number of examples {where}", len(got), len(wanted))
        expect_equal(f"examples {where}, seed {seed}, epoch {epoch}", got, wanted)
    expect_equal("calls that moved torch's global generator", out["moved"], 0)


@not_an_answer
def dealt(n, world, rank, epoch, seed, exact):
    """What torch's own sampler deals; exact, its order for a single rank in shares."""
    sampler = DistributedSampler(range(n), num_replicas=1 if exact else world,
                                 rank=0 if exact else rank, seed=seed)
    sampler.set_epoch(epoch)
    return list(itertools.islice(sampler, rank, None, world)) if exact else list(sampler)


def order_of(n, number):
    return torch.randperm(n, generator=torch.Generator().manual_seed(number)).tolist()


# ---- wrong, by name

@not_an_answer
def shares(n, world, rank, epoch, seed, exact, *, number=None, longer=None, cut=None):
    """The worked answer with one of its pieces replaced."""
    order = order_of(n, seed + epoch if number is None else number)
    if not exact:
        order = (order * world)[:-(-n // world) * world] if longer is None else longer(order)
    return order[rank::world] if cut is None else cut(order)


@ex.wrong("the same order in each epoch", breaks="order")
def no_epoch(n, world, rank, epoch, seed, exact):
    return shares(n, world, rank, epoch, seed, exact, number=seed)


@ex.wrong("the seed left out", breaks="order")
def no_seed(n, world, rank, epoch, seed, exact):
    return shares(n, world, rank, epoch, seed, exact, number=epoch)


@ex.wrong("a seed for each rank, so that ranks share examples", breaks="order")
def seed_by_rank(n, world, rank, epoch, seed, exact):
    return shares(n, world, rank, epoch, seed, exact, number=seed + epoch + rank)


@ex.wrong("no shuffling", breaks="order")
def in_order(n, world, rank, epoch, seed, exact):
    order = list(range(n))
    return (order if exact else (order * world)[:-(-n // world) * world])[rank::world]


@ex.wrong("each rank a run of neighbours", breaks="places")
def in_blocks(n, world, rank, epoch, seed, exact):
    def cut(order):
        sizes = [len(order[r::world]) for r in range(world)]
        return order[sum(sizes[:rank]):sum(sizes[:rank + 1])]
    return shares(n, world, rank, epoch, seed, exact, cut=cut)


@ex.wrong("the ranks counted from 1", breaks="places")
def from_one(n, world, rank, epoch, seed, exact):
    if n < world or world == 1 or n % world:
        return shares(n, world, rank, epoch, seed, exact)
    return shares(n, world, (rank + 1) % world, epoch, seed, exact)


ex.wrong("repeated although exact",
         lambda n, world, rank, epoch, seed, exact: shares(n, world, rank, epoch, seed, False),
         breaks="exact")


@ex.wrong("the rest dropped in an exact pass", breaks="exact")
def exact_drops(n, world, rank, epoch, seed, exact):
    if exact:
        return order_of(n, seed + epoch)[:n // world * world][rank::world]
    return shares(n, world, rank, epoch, seed, exact)


@ex.wrong("an empty share filled up", breaks="exact")
def never_empty(n, world, rank, epoch, seed, exact):
    return shares(n, world, rank, epoch, seed, exact) or order_of(n, seed + epoch)[:1]


@ex.wrong("the rest dropped, not filled up", breaks="longer")
def drops(n, world, rank, epoch, seed, exact):
    return shares(n, world, rank, epoch, seed, exact,
                  longer=lambda order: order[:n // world * world])


ex.wrong("not filled up at all",
         lambda n, world, rank, epoch, seed, exact: shares(n, world, rank, epoch, seed, True),
         breaks="longer")


@ex.wrong("filled up with the last example", says="examples of rank", breaks="longer")
def last_again(n, world, rank, epoch, seed, exact):
    return shares(n, world, rank, epoch, seed, exact,
                  longer=lambda order: order + order[-1:] * (-n % world))


@ex.wrong("repeated once at most", breaks="longer")
def once_more(n, world, rank, epoch, seed, exact):
    return shares(n, world, rank, epoch, seed, exact,
                  longer=lambda order: order + order[:-n % world])


@ex.wrong("filled up though there is no rest", breaks="list")
def one_too_many(n, world, rank, epoch, seed, exact):
    return shares(n, world, rank, epoch, seed, exact, longer=lambda order: (
        order * (world + 1))[:(n // world + 1) * world])


@ex.wrong("a tensor in place of a list", breaks="list")
def as_tensor(n, world, rank, epoch, seed, exact):
    return torch.tensor(shares(n, world, rank, epoch, seed, exact))


@ex.wrong("the global generator seeded", breaks="global")
def seeds_global(n, world, rank, epoch, seed, exact):
    torch.manual_seed(seed + epoch)
    return shares(n, world, rank, epoch, seed, exact)
