"""Exercise 09.4, `comm_plan`."""

from __future__ import annotations

import math

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts, show
from dlsys_helpers.judging import not_an_answer

ex = exercise("09.4", "comm_plan", seen=("sizes", "world", "each", "reshard"),
              says="all_gather calls")

BYTES = 4
DTYPE = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[BYTES]
ex.promise("report", "What one training step of a sharded model sends and holds:",
           says=("parts of the plan", "type of the plan"))
ex.promise("gathers", '"all_gather" and "reduce_scatter": how many calls of each;',
           says=("all_gather calls", "reduce_scatter calls"))
ex.promise("bytes", '"bytes": of all these calls together, a call counting the whole tensor;',
           says=("bytes of all calls",))
ex.promise("whole", '"whole": the most bytes of gathered layers held at once in forward, which '
           "runs one layer at a time.", says=("bytes held whole",))
ex.promise("sizes", f"sizes: {str(DTYPE)[6:]} numbers of each layer, left as it is; a layer "
           f"without numbers makes no call, and one number counts {BYTES} bytes.",
           cases=("a layer without numbers", "no numbers at all", "no layers"))
ex.promise_table("""
padded  | Before a call a layer, or the model where it is sharded as one, is filled up to the next
          multiple of world numbers. | case layers that world does not divide; a model that world
          does not divide; kept layers that world does not divide; eight ranks, tiny layers
each    | each: every layer is sharded by itself; otherwise the model is one piece, gathered once
          for forward. | case each layer, resharded; each layer, kept; as one, resharded; as one,
          kept; a model that world does not divide; kept layers that world does not divide
reshard | reshard: what forward gathered is given back when it has been used and gathered again for
          backward; otherwise it stays until backward is done. | case each layer, resharded; each
          layer, kept; as one, resharded; as one, kept; kept layers that world does not divide
alone   | With a world of one there are no calls, and all layers are whole. | case a world of one
""")
ex.promise("example", "Example: sizes [6, 2], world 2, each, reshard: 4 and 2 calls, "
           f"{24 * BYTES} bytes, {6 * BYTES} whole.", cases=("the example",))


@ex.cases
def cases(g):
    def one(name, sizes, world, each=True, reshard=True):
        return name, {"sizes": sizes, "world": world, "each": each, "reshard": reshard}

    def drawn(n, step):
        return [step * int(k) for k in torch.randint(2, 90, (n,), generator=g)]
    odd = [8 * int(torch.randint(3, 20, (), generator=g)) + k for k in (1, 3, 2)]
    return [one("each layer, resharded", drawn(6, 4), 4), one("each layer, kept", drawn(5, 4), 4,
                                                              reshard=False),
            one("as one, resharded", drawn(4, 2), 2, each=False),
            one("as one, kept", drawn(7, 2), 2, each=False, reshard=False),
            one("one layer", drawn(1, 4), 4),
            one("layers that world does not divide", odd, 8),
            one("a model that world does not divide", odd, 4, each=False, reshard=False),
            one("kept layers that world does not divide", odd, 8, reshard=False),
            one("eight ranks, tiny layers", [1, 2, 9], 8),
            one("a layer without numbers", [16, 0, 32, 0], 4), one("no numbers at all", [0, 0], 2,
                                                                  each=False),
            one("no layers", [], 4), one("a world of one", drawn(3, 5), 1),
            one("billions of numbers", [7 * 10**9, 10**10], 64),
            one("the example", [6, 2], 2)]


@ex.law
def law(out, sizes, world, each, reshard):
    expect_parts(out, "all_gather", "reduce_scatter", "bytes", "whole", what="plan")
    calls, held = played(sizes, world, each, reshard)
    of = f", sizes {show(sizes)}, world {world}, each {each}, reshard {reshard}"
    for name in ("all_gather", "reduce_scatter"):
        expect_equal(f"{name} calls{of}", out[name], sum(kind == name for kind, _ in calls))
    expect_equal(f"bytes of all calls{of}", out["bytes"], sum(size for _, size in calls))
    expect_equal(f"bytes held whole in forward{of}", out["whole"], held)


def played(sizes, world, each, reshard):
    """The calls of a step, one after the other, and the most that forward holds at once."""
    if world == 1:
        return [], BYTES * sum(sizes)
    pieces = [n for n in (sizes if each else [sum(sizes)]) if n]
    padded = [BYTES * world * math.ceil(n / world) for n in pieces]
    calls, held, most = [], 0, 0
    for size in padded:
        calls.append(("all_gather", size))
        held += size
        most = max(most, held)
        held -= size if reshard else 0
    for size in reversed(padded):
        calls += [("all_gather", size)] if reshard else []
        calls.append(("reduce_scatter", size))
    return calls, most


def pieces_of(sizes, world, each):
    sizes = sizes if each else [sum(sizes)]
    return [n + -n % world for n in sizes if n]


def plan(gathers, scatters, numbers, whole):
    return {"all_gather": gathers, "reduce_scatter": scatters, "bytes": BYTES * numbers,
            "whole": BYTES * whole}


# ---- wrong, by name

@not_an_answer
def planned(sizes, world, each, reshard, *, pieces=None, **changed):
    """The worked answer with one of its pieces replaced."""
    if world == 1:
        return plan(0, 0, 0, sum(sizes))
    pieces = pieces_of(sizes, world, each) if pieces is None else pieces
    times = 1 + int(reshard)
    right = {"gathers": times * len(pieces), "scatters": len(pieces),
             "numbers": (times + 1) * sum(pieces),
             "whole": max(pieces, default=0) if reshard else sum(pieces)}
    return plan(**right | changed)


ex.wrong("returning a tuple instead of a dict",
         lambda sizes, world, each, reshard: tuple(planned(sizes, world, each, reshard).values()),
         breaks="report")


@ex.wrong("leaving out the gather for backward", breaks=("gathers", "reshard"))
def no_second_gather(sizes, world, each, reshard):
    n = len(pieces_of(sizes, world, each))
    return planned(sizes, world, each, reshard, gathers=n)


@ex.wrong("gathering twice though what was gathered stays", breaks="gathers")
def always_twice(sizes, world, each, reshard):
    n = len(pieces_of(sizes, world, each))
    return planned(sizes, world, each, reshard, gathers=2 * n)


@ex.wrong("gathering nothing where parameters stay", breaks="gathers")
def none_if_kept(sizes, world, each, reshard):
    return planned(sizes, world, each, reshard, **({} if reshard else {"gathers": 0}))


@ex.wrong("adding a reduce_scatter for each gather", breaks="gathers")
def as_many_scatters(sizes, world, each, reshard):
    n = len(pieces_of(sizes, world, each))
    return planned(sizes, world, each, reshard, scatters=2 * n if reshard else n)


@ex.wrong("counting the parameters once, without gradients", breaks="bytes")
def no_gradients(sizes, world, each, reshard):
    n = sum(pieces_of(sizes, world, each))
    return planned(sizes, world, each, reshard, numbers=n * (1 + int(reshard)))


@ex.wrong("counting a rank's own share of the bytes", breaks="bytes")
def share_of_bytes(sizes, world, each, reshard):
    n = sum(pieces_of(sizes, world, each))
    return planned(sizes, world, each, reshard, numbers=(2 + int(reshard)) * n // world)


@ex.wrong("counting what a ring sends: (world - 1) / world of the bytes", breaks="bytes")
def ring(sizes, world, each, reshard):
    n = sum(pieces_of(sizes, world, each))
    return planned(sizes, world, each, reshard, numbers=(2 + int(reshard)) * n // world
                   * (world - 1))


@ex.wrong("gathering the next layer ahead: two held", breaks="whole")
def prefetched(sizes, world, each, reshard):
    pieces = pieces_of(sizes, world, each)
    pairs = [a + b for a, b in zip(pieces, pieces[1:], strict=False)]
    return planned(sizes, world, each, reshard, **({"whole": max(pairs)} if pairs and reshard
                                                   else {}))


@ex.wrong("keeping the last layer from forward for backward", breaks="gathers")
def last_kept(sizes, world, each, reshard):
    pieces = pieces_of(sizes, world, each)
    if not (each and reshard and pieces):
        return planned(sizes, world, each, reshard)
    return planned(sizes, world, each, reshard, gathers=2 * len(pieces) - 1,
                   numbers=3 * sum(pieces) - pieces[-1])


@ex.wrong("returning numbers instead of bytes", breaks="bytes")
def in_numbers(sizes, world, each, reshard):
    found = planned(sizes, world, each, reshard)
    return found | {"bytes": found["bytes"] // BYTES}


@ex.wrong("holding one layer, although all stay", breaks="whole")
def always_one(sizes, world, each, reshard):
    return planned(sizes, world, each, reshard,
                   whole=max(pieces_of(sizes, world, each), default=0))


@ex.wrong("holding all layers, although they are freed", breaks="whole")
def always_all(sizes, world, each, reshard):
    return planned(sizes, world, each, reshard, whole=sum(pieces_of(sizes, world, each)))


@ex.wrong("taking the last layer as the largest", breaks="whole")
def last_layer(sizes, world, each, reshard):
    pieces = pieces_of(sizes, world, each)
    return planned(sizes, world, each, reshard,
                   **({"whole": pieces[-1]} if pieces and reshard else {}))


@ex.wrong("counting calls for layers without numbers", breaks="sizes")
def empty_calls(sizes, world, each, reshard):
    pieces = [n + -n % world for n in (sizes if each else [sum(sizes)])]
    return planned(sizes, world, each, reshard, pieces=pieces)


@ex.wrong("not filling up", says="bytes of all calls", breaks="padded")
def unpadded(sizes, world, each, reshard):
    pieces = [n for n in (sizes if each else [sum(sizes)]) if n]
    return planned(sizes, world, each, reshard, pieces=pieces)


@ex.wrong("cutting the rest off instead of filling up", says="bytes of all calls", breaks="padded")
def cut_off(sizes, world, each, reshard):
    pieces = [n - n % world for n in (sizes if each else [sum(sizes)]) if n]
    return planned(sizes, world, each, reshard, pieces=pieces)


@ex.wrong("filling each layer up where the model is one piece", says="bytes of all calls",
          breaks="padded")
def padded_early(sizes, world, each, reshard):
    whole = sum(n + -n % world for n in sizes)
    return planned(sizes, world, each, reshard,
                   pieces=pieces_of([whole], world, True) if not each else None)


@ex.wrong("always making a piece for each layer", breaks="each")
def always_each(sizes, world, each, reshard):
    if not sum(sizes):
        return planned(sizes, world, each, reshard)
    return planned(sizes, world, True, reshard)


@ex.wrong("never gathering the model as one piece again", breaks="reshard")
def root_stays(sizes, world, each, reshard):
    return planned(sizes, world, each, reshard and (each or not sum(sizes)))


@ex.wrong("counting calls in a world of one", breaks="alone")
def calls_alone(sizes, world, each, reshard):
    found = planned(sizes, world, each, reshard)
    return found if world > 1 else found | {"all_gather": 2 * len(sizes)}


@ex.wrong("holding one layer at a time in a world of one, too",
          says="bytes held whole", breaks="alone")
def sharded_alone(sizes, world, each, reshard):
    found = planned(sizes, world, each, reshard)
    return found if world > 1 else found | {"whole": BYTES * max(sizes)}


@ex.wrong("changing the list of sizes in place", says="inputs after the call", breaks="sizes")
def sorts(sizes, world, each, reshard):
    if 0 in sizes:
        sizes.sort()
    return planned(sizes, world, each, reshard)
