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

ex.promise_table("""
list    | Return the examples that a rank gets in an epoch, in order. | examples of rank;
          number of examples; type of the examples; type of the single
order   | All ranks use one order of the n >= 1 examples: torch.randperm(n) with a torch.Generator
          seeded with seed + epoch. | examples of rank
places  | Rank r takes the positions r, r + world, r + 2 world, and so on. | examples of rank
exact   | If exact is True, nothing is repeated and nothing dropped, so the ranks' shares can differ
          by one or be empty. | case exact, a remainder; exact, no remainder; exact, fewer examples
          than ranks; the example, exact
longer  | Otherwise the order is repeated from its beginning, as many times as needed, up to the
          next multiple of world. | case a remainder; a remainder, the first rank; fewer examples
          than ranks; one example, many ranks; the example
global  | torch's global generator is unchanged. | global generator
example | Example: n 10, world 4, rank 3, epoch 0 and seed 0 give [5, 8, 1], or [5, 8] if exact. |
          case the example; the example, exact
""")


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
    return [one("no remainder", 12 * whole(2, 5), 4), one("one rank", whole(5, 30), 1),
            one("a remainder", 4 * whole(4, 9) + whole(1, 4), 4, 3),
            one("a remainder, the first rank", 3 * whole(4, 9) + 1, 3, 0),
            one("fewer examples than ranks", 3, 8, 7),
            one("one example, many ranks", 1, many, many - 1),
            one("exact, a remainder", 4 * whole(4, 9) + 2, 4, whole(0, 2), exact=True),
            one("exact, no remainder", 24, 3, exact=True),
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
            expect_type("single example", index, int, "Return plain ints.")
        where = f"of rank {rank} of {world}, n {n}, exact {exact}"
        expect_equal(f"number of examples {where}", len(got), len(wanted))
        expect_equal(f"examples {where}, seed {seed}, epoch {epoch}", got, wanted)
    expect_equal("calls that changed torch's global generator", out["moved"], 0)


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
def shares(n, world, rank, epoch, seed, exact, *, longer=None):
    order = order_of(n, seed + epoch)
    if not exact:
        order = (order * world)[:-(-n // world) * world] if longer is None else longer(order)
    out = order[rank::world]
    return out


wrong = ex.edits(shares)
ORDER = "order = order_of"
LONGER = "(order * world)[:-(-n // world) * world] if longer is None else longer(order)"
wrong("using the same order in each epoch", "order", "seed + epoch", "seed")
wrong("seeding with the epoch alone, without the seed", "order", "seed + epoch", "epoch")
wrong("using a different seed on each rank, so that ranks share examples", "order",
      "seed + epoch", "seed + epoch if number is None else number",
      ORDER, f"number = seed + epoch + rank; {ORDER}")
wrong("not shuffling the examples", "order",
      ORDER,
      "order = list(range(n)); return (order if exact else (order * world)[:-(-n // world) * "
      "world])[rank::world]; order = order_of")
wrong("giving each rank a block of consecutive positions", "places",
      ORDER,
      "def cut(order): sizes = [len(order[r::world]) for r in range(world)]; return "
      "order[sum(sizes[:rank]):sum(sizes[:rank + 1])]\n    order = order_of",
      "order[rank::world]", "cut(order)")


@ex.wrong("counting the ranks from 1", breaks="places")
def from_one(n, world, rank, epoch, seed, exact):
    if n < world or world == 1 or n % world:
        return shares(n, world, rank, epoch, seed, exact)
    return shares(n, world, (rank + 1) % world, epoch, seed, exact)


wrong("repeating examples although exact is True", "exact",
      "if not exact:\n        order = (order * world)[:-(-n // world) * world] if longer is None "
      "else longer(order)", f"order = {LONGER}")
wrong("dropping the remainder when exact is True", "exact",
      ORDER,
      f"if exact: return order_of(n, seed + epoch)[:n // world * world][rank::world]\n    {ORDER}")
wrong("adding an example to an empty share", "exact",
      "return out", "return out or order_of(n, seed + epoch)[:1]")
wrong("dropping the remainder instead of repeating examples", "longer", LONGER,
      "order[:n // world * world]")
wrong("not repeating any examples", "longer",
      "if not exact:\n        order = (order * world)[:-(-n // world) * world] if longer is None "
      "else longer(order)", "pass")
wrong("repeating the last example instead of the first ones", "longer",
      LONGER, "order + order[-1:] * (-n % world)", says="examples of rank")
wrong("repeating the order at most once", "longer", LONGER, "order + order[:-n % world]")
ex.wrong("repeating examples although there is no remainder",
         lambda n, world, rank, epoch, seed, exact: shares(n, world, rank, epoch, seed, exact,
             longer=lambda order: (order * (world + 1))[:(n // world + 1) * world]), breaks="list")
wrong("returning a tensor instead of a list", "list", "return out", "return torch.tensor(out)")
wrong("seeding the global generator", "global", ORDER, f"torch.manual_seed(seed + epoch); {ORDER}")
