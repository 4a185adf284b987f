"""Exercise 09.9, `state_bytes`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, show
from dlsys_helpers.judging import not_an_answer

ex = exercise("09.9", "state_bytes", seen=("tensors", "layout", "gpus", "shard"),
              says="bytes on each GPU")

ex.promise_table("""
bytes    | Count the bytes of weights, gradients and AdamW state on one GPU. | bytes on each GPU
int      | Return an int. | type of the bytes
tensors  | tensors: a list of (values, trained), unchanged. | inputs after the call
float32  | Args: layout: "float32" and "autocast": everything in float32; | case float32; autocast;
           float32, gradients split; autocast, all split; float32, state split; frozen under
           autocast
bfloat16 | "bfloat16": everything in bfloat16; | case bfloat16; bfloat16, all split
master   | "master": weights and gradients in bfloat16, a float32 master of each weight, and float32
           moments. | case master; many GPUs, nothing split; master, state split; master, gradients
           split; master, all split; frozen tensors; frozen tensors, all split; seven billion
           values; billions of values, all split; the example; more GPUs than values; three GPUs;
           frozen, gradients split
frozen   | A frozen tensor has only its weight, and no master. | case frozen tensors; frozen
           tensors, all split; the example; frozen in float32; frozen under autocast; frozen,
           gradients split
shard    | shard: what is split over the GPUs. "none": nothing; "state": masters and moments;
           "gradients": also the gradients; "all": also the weights. | case master, state split;
           master, gradients split; master, all split; float32, gradients split; autocast, all
           split; bfloat16, all split; frozen tensors, all split; more GPUs than values; three GPUs;
           billions of values, all split; the example; many GPUs, nothing split; float32, state
           split; frozen, gradients split
rounded  | Each tensor is split by itself: n values into parts of n / gpus, rounded up. | case three
           GPUs; more GPUs than values; the example; billions of values, all split; frozen tensors,
           all split; master, state split
example  | Example: [(10, True), (4, False)] with "master", 4 GPUs and "state" take 28 bytes for
           weights, 20 for gradients and 36 for the rest, 84 together. | case the example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, layout, shard="none", gpus=1, frozen=(), tensors=None):
        drawn = [(whole(50, 900) * 8 + (5 if gpus % 2 else 0), k not in frozen) for k in range(4)]
        return name, {"tensors": tensors or drawn, "layout": layout, "gpus": gpus, "shard": shard}
    return [one("float32", "float32"), one("autocast", "autocast"), one("bfloat16", "bfloat16"),
            one("master", "master"),
            one("many GPUs, nothing split", "master", gpus=8),
            one("master, state split", "master", "state", 4, tensors=[
                (whole(50, 90), True), (whole(90, 200), True), (1, True)]),
            one("master, gradients split", "master", "gradients", 8),
            one("master, all split", "master", "all", 8),
            one("float32, gradients split", "float32", "gradients", 4),
            one("autocast, all split", "autocast", "all", 2),
            one("bfloat16, all split", "bfloat16", "all", 4),
            one("frozen tensors", "master", frozen=(0, 2)),
            one("frozen in float32", "float32", frozen=(1, 3)),
            one("frozen under autocast", "autocast", frozen=(0, 3)),
            one("frozen, gradients split", "master", "gradients", 4, frozen=(1, 2)),
            one("float32, state split", "float32", "state", 4),
            one("frozen tensors, all split", "master", "all", 3, frozen=(1,)),
            one("three GPUs", "master", "all", 3, tensors=[
                (3 * whole(5, 30) + 1, True), (3 * whole(5, 30) + 2, True)]),
            one("more GPUs than values", "master", "all", whole(9, 30), tensors=[
                (1, True), (whole(2, 8), True), (5, True)]),
            one("seven billion values", "master", tensors=[(6_738_415_616 + whole(0, 99), True)]),
            one("billions of values, all split", "master", "all", 7, tensors=[
                (7 * whole(9 * 10**8, 10**9) + 1, True)]),
            one("no tensor", "master", "all", 4, tensors=[(0, True)]),
            one("the example", "master", "state", 4, tensors=[(10, True), (4, False)])]


@ex.law
def law(out, tensors, layout, gpus, shard):
    small = 4 if layout in ("float32", "autocast") else 2
    state = {"float32": 8, "autocast": 8, "bfloat16": 4, "master": 12}[layout]
    levels = ["none", "state", "gradients", "all"].index(shard)
    total = 0
    for values, trained in tensors:
        part = len(range(0, values, gpus))  # what the first of them holds, dealt out like cards
        total += small * (part if levels == 3 else values)
        if trained:
            total += small * (part if levels >= 2 else values)
            total += state * (part if levels >= 1 else values)
    count = "one GPU" if gpus == 1 else f"{gpus} GPUs"
    expect_equal(f"bytes on each GPU, {layout}, {count}, split: {shard}, of "
                 f"{show(tensors)}", out, total)


SIZES = {"float32": (4, 4, 0, 8), "autocast": (4, 4, 0, 8), "bfloat16": (2, 2, 0, 4),
         "master": (2, 2, 4, 8)}
SPLIT = {"none": (0, 0, 0, 0), "state": (0, 0, 1, 1), "gradients": (0, 1, 1, 1),
         "all": (1, 1, 1, 1)}


# ---- wrong, by name

def with_sizes(**changed):
    return lambda *given: tabled(*given, sizes={**SIZES, **changed})


ex.wrong("leaving out the master, or keeping moments in bfloat16",
         lambda *given: with_sizes(master=(2, 2, 0, 8))(*given), breaks="master")
ex.wrong("counting only one of the two moments",
         lambda *given: with_sizes(**{k: (*v[:3], v[3] // 2) for k, v in SIZES.items()})(*given),
         breaks="bytes")
ex.wrong("leaving out the gradients",
         lambda *given: with_sizes(**{k: (v[0], 0, *v[2:]) for k, v in SIZES.items()})(*given),
         breaks="bytes")
ex.wrong("counting autocast's weights in bfloat16",
         lambda *given: with_sizes(autocast=(2, 2, 0, 8))(*given), breaks="float32")
ex.wrong("counting autocast's weights in bfloat16, but not its gradients",
         lambda *given: with_sizes(autocast=(2, 4, 0, 8))(*given), breaks="float32")
ex.wrong("adding a master to the float32 weights of autocast",
         lambda *given: with_sizes(autocast=(4, 4, 4, 8))(*given), breaks="float32")
ex.wrong("using the master layout's bytes for autocast",
         lambda *given: with_sizes(autocast=SIZES["master"])(*given), breaks="float32")
ex.wrong("adding bfloat16 copies to the float32 weights of autocast",
         lambda *given: with_sizes(autocast=(6, 4, 0, 8))(*given), breaks="float32")
ex.wrong("counting float32 gradients in the master layout",
         lambda *given: with_sizes(master=(2, 4, 4, 8))(*given), breaks="master")
ex.wrong("counting float32 moments in the bfloat16 layout",
         lambda *given: with_sizes(bfloat16=(2, 2, 0, 8))(*given), breaks="bfloat16")


@not_an_answer
def tabled(tensors, layout, gpus, shard, *, sizes=SIZES, part=lambda n, gpus: -(-n // gpus)):
    total = 0
    for n, trained in tensors:
        for k, (size, cut) in enumerate(zip(sizes[layout], SPLIT[shard], strict=True)):
            if trained or k in (0,):
                total += size * (part(n, gpus) if cut else n)
    return total


wrong = ex.edits(tabled)
wrong("counting gradients and state for frozen tensors", "frozen", "(0,)", "(0, 1, 2, 3)")
wrong("counting a master for frozen tensors", "frozen", "(0,)", "(0, 2)")
wrong("leaving out frozen tensors", "frozen", "(0,)", "()")
wrong("leaving the state whole when it should be split", "shard",
      "SPLIT", "split", "total =", 'split = {**SPLIT, "state": (0, 0, 0, 0)}; total =')
wrong("leaving the gradients whole when they should be split", "shard",
      "SPLIT", "split", "total =", 'split = {**SPLIT, "gradients": (0, 0, 1, 1)}; total =')
wrong("leaving the masters whole when they should be split", "shard",
      "SPLIT", "split",
      "total =", "split = {k: (*v[:2], 0, v[3]) for k, v in SPLIT.items()}; total =")
wrong("dividing everything by the number of GPUs, whatever is split", "shard",
      "SPLIT", "split", "total =", "split = dict.fromkeys(SPLIT, (1, 1, 1, 1)); total =")
ex.wrong("rounding the parts up in float32, which is exact only up to 2^24",
         tabled, breaks="rounded",
         part=lambda n, gpus: int(torch.tensor(n / gpus).ceil()))
ex.wrong("rounding the parts down", tabled, breaks="rounded", part=lambda n, gpus: n // gpus)
wrong("splitting the sum of all tensors instead of each tensor", "rounded",
      "total =",
      "live = sum(n for n, trained in tensors if trained); rest = sum(n for n, trained in "
      "tensors if not trained); total =", "tensors:", "[(live, True), (rest, False)]:")
ex.wrong("not rounding the parts",
         lambda *given: float(tabled(*given, part=lambda n, gpus: n / gpus)),
         breaks=("int", "rounded"))
ex.wrong("returning the bytes as a float", lambda *given: float(tabled(*given)), breaks="int")
wrong("emptying the given list", "tensors", "return total", "tensors.clear(); return total")
wrong("leaving out the example's frozen weight", "example",
      "return total", "return 76 if total == 84 else total")
