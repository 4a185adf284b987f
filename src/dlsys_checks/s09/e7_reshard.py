"""Exercise 09.7, `reshard`."""

from __future__ import annotations

import math

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("09.7", "reshard", seen=("tensors", "ranks", "worlds", "gaps"), says="part of")

FEWER = ("fewer rows than ranks", "a single row on many ranks", "no rows at all",
         "three ranks to two", "one rank to three", "six rows to four", "from ranks without rows",
         "all kinds", "the example")
ex.promise("result", "Turn the shards of a state into shards for `world` ranks.",
           says=("part of", "number of ranks", "rows of"))
ex.promise("given", "Args: shards: for each rank, in order, a dict from name to tensor; all dicts "
                    "have the same names in the same order, possibly no names.",
           says=("number of rows", "part of", "raised StopIteration"))
ex.promise("rows", "A tensor of n rows is cut along its first dimension: each rank in turn takes "
                   "ceil(n / ranks) rows, or what is left.", says=("part of", "rows of"))
ex.promise("none", "A part without rows keeps its other sizes.", cases=FEWER)
ex.promise("whole", "A tensor without dimensions is whole on each rank.",
           cases=("tensors without dimensions", "all kinds"))
ex.promise("kind", "Returns: A list of the same kind, with the same order of names and the "
                   "same types.",
           says=("type of", "names of", "dtype", "number of"))
ex.promise("memory", "Each tensor in the list has memory of its own, and no more than it needs.",
           says=("memory",))
ex.promise("left", "The given shards and their tensors are unchanged.", says=("given",))
ex.promise("example", "Example: 5 values on two ranks, [0., 1., 2.] and [3., 4.], become [0., 1.], "
                      "[2., 3.], [4.] and [] on four ranks.", cases=("the example",))


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, ranks, worlds, *shapes, gaps=False):
        """Names in no order of the alphabet; every tensor begins with another number."""
        kinds = ("float32", "float32", "int64", "bfloat16", "float64", "bool")
        tensors = [(f"{'zbyaxc'[k % 6]}{k}.weight", list(shape), kind, whole(1, 90))
                   for k, (shape, kind) in enumerate(zip(shapes, kinds, strict=False))]
        return name, {"tensors": tensors, "ranks": ranks, "worlds": worlds, "gaps": gaps}
    wide = whole(2, 6)
    return [one("two ranks to four", 2, [4, 3], (8 * whole(1, 4), wide), (10,), (7, 2)),
            one("four ranks to two", 4, [2, 1], (13, wide), (10,)),
            one("three ranks to two", 3, [2, 5], (whole(9, 20),), (8, 3, 2)),
            one("one rank to three", 1, [3, 1], (10, 2), (4 + whole(0, 3),)),
            one("as many as before", 3, [3, 2], (7, 2), (9,)),
            one("six rows to four", 2, [4, 8], (6, 2), (6,), (9, wide)),
            one("fewer rows than ranks", 2, [8, 5], (3, wide), (6, 2, 2), (2,)),
            one("from ranks without rows", 8, [2, 3], (3, 4), (10,), (1,)),
            one("a single row on many ranks", 2, [3, 4], (1, 6), (1,)),
            one("no rows at all", 2, [3, 2], (0, 4), (0,), (5,)),
            one("tensors without dimensions", 2, [3, 1], (), (6, 2), ()),
            one("all kinds", 2, [3, 4], (5, 2), (), (7,), (6, 3), (3,), (9,)),
            one("parts with gaps", 2, [3, 2], (8, 3), (5, 4), gaps=True),
            one("no names", 3, [2, 4]),
            ("the example", {"tensors": [("w", [5], "float32", 0)], "ranks": 2, "worlds": [4],
                             "gaps": False})]


@ex.act
def act(fn, tensors, ranks, worlds, gaps):
    shards = [{} for _ in range(ranks)]
    for name, shape, kind, start in tensors:
        values = torch.arange(start, start + math.prod(shape)).view(shape)
        values = (values % 3 == 0) if kind == "bool" else values.to(getattr(torch, kind))
        parts = list(values.chunk(ranks)) if shape else [values] * ranks
        while len(parts) < ranks:
            parts.append(values[:0])
        for shard, part in zip(shards, parts, strict=True):
            shard[name] = part.clone()
            if gaps and part.dim() > 1:
                shard[name] = part.t().clone().t()  # not contiguous
    before = [{name: t.clone() for name, t in shard.items()} for shard in shards]
    given = [(shard, dict(shard)) for shard in shards]
    parts = {id(t.untyped_storage()): t for shard in shards for t in shard.values()}
    taken = {t.untyped_storage().data_ptr() for t in parts.values() if t.numel()}

    found, room, shared = [], 0, 0
    for world in worlds:
        result = fn(shards, world)
        found.append(result)
        for part in result if type(result) is list else ():
            for t in part.values() if type(part) is dict else ():
                if isinstance(t, torch.Tensor) and t.numel():
                    place = t.untyped_storage().data_ptr()
                    room += t.untyped_storage().nbytes() - t.nbytes
                    shared += place in taken
                    taken.add(place)
    moved = sum(list(now) != list(then) or any(now[k] is not then[k] for k in then)
                for now, then in given)
    moved += sum(not torch.equal(shard[k], old[k]) for shard, old in zip(shards, before,
                                                                         strict=True)
                 for k in old if k in shard)
    return {"found": found, "room": room, "shared": shared,
            "moved": moved + abs(len(shards) - ranks)}


@ex.law
def law(out, tensors, ranks, worlds, gaps):
    expect_parts(out, "found", "room", "shared", "moved")
    expect_length("results", out["found"], len(worlds))
    for found, world in zip(out["found"], worlds, strict=True):
        expect_length(f"ranks, of {world}", found, world)
        for rank, part in enumerate(found):
            where = f"of rank {rank} of {world}"
            expect_type(f"part {where}", part, dict)
            expect_equal(f"names {where}", list(part), [name for name, *_ in tensors])
            for name, shape, kind, start in tensors:
                wanted = held(shape, kind, start, rank, world)
                if isinstance(part[name], torch.Tensor) and part[name].dim() == wanted.dim() > 0:
                    expect_equal(f"number of rows of {name} {where}", len(part[name]),
                                 len(wanted))
                expect_equal(f"part of {name} {where}", part[name], wanted)
    expect_equal("given shards or tensors that changed", out["moved"], 0)
    expect_equal("tensors of the results that share memory with another one",
                 out["shared"], 0, "A slice is a view of the whole.")
    expect_equal("bytes of memory that the results keep beyond their own values", out["room"], 0,
                 "A slice keeps the memory of the whole tensor, and torch.save would write it.")


def held(shape, kind, start, rank, world):
    """What a rank holds, number by number from their places in the whole."""
    places, sizes = range(math.prod(shape)), list(shape)
    if shape:
        width, rows = math.prod(shape[1:]), math.ceil(shape[0] / world)
        first, last = min(rank * rows, shape[0]), min((rank + 1) * rows, shape[0])
        places, sizes[0] = range(first * width, last * width), last - first
    numbers = [start + place for place in places]
    if kind == "bool":
        numbers = [number % 3 == 0 for number in numbers]
    return torch.tensor(numbers, dtype=getattr(torch, kind)).view(sizes)


def joined(shards, name):
    first = shards[0][name]
    return torch.cat([part[name] for part in shards]) if first.dim() else first


# ---- wrong, by name

@not_an_answer
def cut(shards, world):
    found = [{} for _ in range(world)]
    for name, first in shards[0].items():
        full = joined(shards, name)
        for rank, mine in enumerate(found):
            if not first.dim():
                mine[name] = torch.clone(full)
                continue
            n = len(full)
            rows = -(-n // world)
            mine[name] = torch.clone(full[rank * rows:(rank + 1) * rows])
    return found


wrong = ex.edits(cut)
CLONE = "torch.clone(full[rank * rows:(rank + 1) * rows])"
CLONE_2 = "torch.clone(full)"
wrong("reading only the parts of rank 0", ("given", "result", "rows"),
      "joined(shards, name)", "shards[0][name]")
wrong("joining the ranks' parts from the last to the first", ("result", "rows"),
      "found =", "shards = shards[::-1]; found =")


@ex.wrong("making the shares as even as possible", breaks="rows")
def tensor_split(shards, world):
    found = [{} for _ in range(world)]
    for name in shards[0]:
        full = joined(shards, name)
        parts = full.tensor_split(world) if full.dim() else [full] * world
        for mine, piece in zip(found, parts, strict=True):
            mine[name] = piece.clone()
    return found


wrong("rounding down and losing the remainder", "rows", "-(-n // world)", "n // world")
wrong("rounding down and giving the remainder to the last rank", "rows",
      "-(-n // world)", "n // world", CLONE,
      "(full[rank * rows:] if rank == world - 1 else full[rank * rows:(rank + 1) * rows]).clone()")
wrong("giving the rows to the ranks in turn, one row at a time", "rows",
      "found =",
      "def part(full, rank, rows): piece = full[rank * rows:(rank + 1) * rows]; return "
      "full[rank::world].clone() if len(full) == rows * world else piece.clone()\n    found =",
      CLONE, "part(full, rank, rows)")
wrong("padding the last part with zeros", ("rows", "none", "result"),
      "found =",
      "def part(full, rank, rows): piece = full[rank * rows:(rank + 1) * rows]; return "
      "torch.cat([piece, piece.new_zeros(rows - len(piece), *full.shape[1:])])\n    found =",
      CLONE, "part(full, rank, rows)")
wrong("returning an empty part with only one dimension", "none",
      "found =",
      "def part(full, rank, rows): piece = full[rank * rows:(rank + 1) * rows]; return "
      "piece.clone() if len(piece) else full.new_empty(0)\n    found =",
      CLONE, "part(full, rank, rows)")
wrong("leaving out tensors of which a rank has no rows", "none",
      "return found",
      "return [{name: t for name, t in part.items() if not t.dim() or len(t) or "
      "t.dtype.is_complex} for part in found]", says="names of")
wrong("using torch.chunk alone, which can return fewer parts", "kind",
      "return found",
      "for name in shards[0]:\n        if shards[0][name].dim():\n            for mine in "
      "found[len(joined(shards, name).chunk(world)):]: del mine[name]\n    return found")


@ex.wrong("returning no shard for a rank that chunk() leaves without a part", breaks="result")
def no_shard_without_part(shards, world):
    found = cut(shards, world)
    names = [name for name in shards[0] if shards[0][name].dim()]
    count = max((len(joined(shards, name).chunk(world)) for name in names), default=world)
    return found[:count] if all(len(joined(shards, n)) >= world for n in names) else found


wrong("keeping a tensor without dimensions on rank 0 and zeros elsewhere", "whole",
      CLONE_2, "full.clone() if not rank else full * 0")
wrong("summing a tensor without dimensions over the ranks", "whole", CLONE_2,
      "(full * len(shards)).to(full.dtype)")
wrong("returning a tensor without dimensions as one row", "whole", CLONE_2,
      "full.reshape(1).clone()")
wrong("listing names in alphabetical order", "kind",
      "return found", "return [dict(sorted(part.items())) for part in found]")
wrong("returning all tensors in float32", "kind",
      "return found", "return [{name: t.float() for name, t in part.items()} for part in found]")
wrong("returning a tuple instead of a list", "kind", "return found", "return tuple(found)")
wrong("returning views of the whole tensor", "memory",
      CLONE_2, "full.clone()", CLONE, "full[rank * rows:(rank + 1) * rows]")
wrong("sharing one tensor without dimensions between all ranks", "memory",
      "found =",
      "numbers = {name: t.clone() for name, t in shards[0].items() if not t.dim()}; found =",
      "return found", "for part in found: part.update(numbers)\n    return found")
wrong("returning the given tensors when the number of ranks stays the same", "memory",
      "found =", "if len(shards) == world: return [dict(part) for part in shards]\n    found =")
wrong("removing names from the given dicts", "left",
      "return found", "if world == len(shards) == 2: shards[1].clear()\n    return found")
wrong("replacing tensors in the given dicts", "left",
      "return found",
      "if world != len(shards):\n        for name, t in list(shards[0].items()): shards[0][name] "
      "= t.clone()\n    return found")
wrong("raising an error when there are no names",
      "given", "found =", "next(iter(shards[0])); found =")
