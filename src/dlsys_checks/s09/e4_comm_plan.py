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
ex.promise("report", "Count the calls and bytes of one training step of a sharded model.",
           says=("parts of the plan", "type of the plan"))
ex.promise("gathers", "\"all_gather\" and \"reduce_scatter\": the number of calls;",
           says=("all_gather calls", "reduce_scatter calls"))
ex.promise("bytes", "\"bytes\": the total size of the whole tensors in all calls;",
           says=("bytes of all calls",))
ex.promise("whole", "\"whole\": the peak bytes of gathered layers in the forward pass, which runs "
                    "one layer at a time.", says=("bytes held whole",))
ex.promise("sizes", f"Args: sizes: {str(DTYPE)[6:]} values per layer, unchanged; a layer without "
                    f"values makes no call, and one value has {BYTES} bytes.",
           cases=("a layer without values", "no values at all", "no layers"))
ex.promise_table("""
padded  | Before a call, a layer (or the one piece) is padded to a multiple of `world` values. |
          case layers that world does not divide; a model that world does not divide; kept
          layers that world does not divide; eight ranks, tiny layers
each    | each: if True, shard every layer by itself; if False, shard the model as one piece,
          gathered once for the forward pass. | case each layer, resharded; each layer, kept; as
          one, resharded; as one, kept; a model that world does not divide; kept layers that world
          does not divide
reshard | reshard: if True, release what forward gathered, and gather it again for backward; if
          False, keep it until backward ends. | case each layer, resharded; each layer, kept; as
          one, resharded; as one, kept; kept layers that world does not divide
alone   | A world of 1 needs no calls; its "whole" is all layers. | case a world of one
""")
ex.promise("example", "Example: sizes [6, 2] and world 2, with each and reshard, give 4 and "
           f'2 calls, {24 * BYTES} bytes and a "whole" of {6 * BYTES}.', cases=("the example",))


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
            one("a layer without values", [16, 0, 32, 0], 4), one("no values at all", [0, 0], 2,
                                                                  each=False),
            one("no layers", [], 4), one("a world of one", drawn(3, 5), 1),
            one("billions of values", [7 * 10**9, 10**10], 64),
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


@not_an_answer
def planned(sizes, world, each, reshard):
    sizes = sizes if each else [sum(sizes)]
    pieces = [n + -n % world for n in sizes if n]
    largest, whole = max(pieces, default=0), sum(pieces)
    plan = {"all_gather": len(pieces) * (2 if reshard else 1), "reduce_scatter": len(pieces),
            "bytes": BYTES * whole * (3 if reshard else 2),
            "whole": BYTES * (largest if reshard else whole)}
    if world == 1:
        plan |= {"all_gather": 0, "reduce_scatter": 0, "bytes": 0, "whole": BYTES * sum(sizes)}
    return plan


# ---- wrong, by name

wrong = ex.edits(planned)
wrong("returning a tuple instead of a dict", "report", "return plan", "return tuple(plan.values())")
wrong("leaving out the gather for the backward pass",
      ("gathers", "reshard"), "(2 if reshard else 1)", "1")
wrong("gathering twice although gathered layers are kept", "gathers", "(2 if reshard else 1)", "2")
wrong("gathering nothing when gathered layers are kept", "gathers",
      "2 if reshard else 1", "2 if reshard else 0")
wrong("adding a reduce_scatter for each gather", "gathers",
      '"reduce_scatter": len(pieces)', '"reduce_scatter": len(pieces) * (2 if reshard else 1)')
wrong("leaving out the bytes of the reduce_scatter calls", "bytes",
      "3 if reshard else 2", "2 if reshard else 1")
wrong("counting only a rank's share of the bytes", "bytes",
      "(3 if reshard else 2)", "(3 if reshard else 2) // world")
wrong("counting what a ring sends: (world - 1) / world of the bytes", "bytes",
      "(3 if reshard else 2)", "(3 if reshard else 2) // world * (world - 1)")
wrong("gathering the next layer ahead, so that two layers are in memory", "whole",
      "plan =", "largest = max(map(sum, zip(pieces, pieces[1:])), default=largest)\n    plan =")
wrong("keeping the last layer from the forward pass for the backward pass", "gathers",
      "    if world == 1",
      "    if each and reshard and pieces:\n"
      '        plan["all_gather"] -= 1; plan["bytes"] -= BYTES * pieces[-1]\n'
      "    if world == 1")
wrong("counting values instead of bytes", "bytes",
      "return plan", 'return plan | {"bytes": plan["bytes"] // BYTES}')
wrong("counting one gathered layer although all layers are kept", "whole",
      "largest if reshard else whole", "largest")
wrong("counting all gathered layers although they are released", "whole",
      "largest if reshard else whole", "whole")
wrong("taking the last layer as the largest", "whole",
      "max(pieces, default=0)", "pieces[-1] if pieces else 0")
wrong("counting calls for layers without values", "sizes", " if n]", "]")
wrong("not padding the layers", "padded", "n + -n % world", "n", says="bytes of all calls")
wrong("cutting off the remainder instead of padding", "padded",
      "n + -n % world", "n - n % world", says="bytes of all calls")
wrong("padding each layer when the model is one piece", "padded",
      "[sum(sizes)]", "[sum(n + -n % world for n in sizes)]", says="bytes of all calls")
wrong("always sharding every layer by itself", "each", "if each else", "if each or sum(sizes) else")
wrong("never gathering again when the model is one piece", "reshard",
      "pieces =", "reshard = reshard and (each or not sum(sizes)); pieces =")
wrong("counting calls in a world of one",
      "alone", '"all_gather": 0', '"all_gather": 2 * len(sizes)')
wrong("counting only the largest layer in a world of one", "alone",
      "BYTES * sum(sizes)", "BYTES * max(sizes)", says="bytes held whole")
wrong("changing the list of sizes in place", "sizes",
      "sizes = ", "if 0 in sizes: sizes.sort()\n    sizes = ", says="inputs after the call")
