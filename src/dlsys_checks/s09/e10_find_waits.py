"""Exercise 09.10, `find_waits`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length
from dlsys_helpers.judging import not_an_answer

ex = exercise("09.10", "find_waits", seen=("events",), says="operation")

ex.promise_table("""
names      | Name the operations in which a step waits, in order of their start. | operation; number
             of; type of
events     | Args: events: a list of (name, start, end) of one thread, in any order. | case order by
             the end; shuffled; masks and items, shuffled | operation; number of
left alone | The list is unchanged. | inputs after the call
inside     | Of two events that overlap, one is inside the other: it starts no earlier and ends no
             later. | case equal starts; equal ends; a wait inside three; side by side; operations
             that touch a wait; equal starts, the inner first; a random step
waits      | aten::_local_scalar_dense, aten::nonzero and cudaStreamSynchronize wait. | case one of
             each; kernels and copies; waits alone; shuffled; order by the end; nothing waits; names
             that look alike; two bare waits; a random step
outermost  | For each of them, name the outermost aten:: event around it, or the wait itself if
             there is none. | case a wait inside three; waits alone; inside a label of your own; one
             of each; equal starts; equal ends; shuffled; order by the end; many steps; kernels and
             copies; two waits in one; two bare waits; names that look alike; equal starts, the
             inner first; operations that touch a wait; a random step
once       | An event with several waits inside is named once. | case two waits in one; many steps;
             a random step
example    | Example: [("aten::item", 0, 9), ("aten::_local_scalar_dense", 1, 8), ("aten::mm", 10,
             12)] give ["aten::item"]. | case the example
""")

# Trees as torch.profiler writes them: a name and what lies inside.
LEAF = {
    "item": ("aten::item", [("aten::_local_scalar_dense", [])]),
    "bool": ("aten::is_nonzero", [("aten::item", [("aten::_local_scalar_dense", [])])]),
    "mask": ("aten::index", [("aten::nonzero", [("aten::empty", [])]), ("aten::select", [])]),
    "where": ("aten::nonzero", [("aten::empty", [])]),
    "blocking copy": ("aten::to", [("aten::_to_copy", [("aten::empty_strided", []), (
        "aten::copy_", [("cudaMemcpyAsync", []), ("cudaStreamSynchronize", [])])])]),
    "copy": ("aten::to", [("aten::_to_copy", [("aten::copy_", [("cudaMemcpyAsync", [])])])]),
    "linear": ("aten::linear", [("aten::t", []), ("aten::addmm", [("cudaLaunchKernel", [])])]),
    "kernel": ("cudaLaunchKernel", []),
    "device": ("cudaStreamSynchronize", []),
    "raw": ("aten::_local_scalar_dense", []),
    "numbers": ("aten::index", [("aten::as_strided", [])]),
}


@ex.cases
def cases(g):
    whole = integers(g)

    def laid(trees, at=None, gap=True):
        """Events of trees that follow each other; what is inside starts and ends inside."""
        events, at = [], whole(0, 1000) if at is None else at
        for name, inner in trees:
            start = at
            inside, at = laid(inner, at + (whole(1, 9) if gap else 0), gap)
            at += whole(1, 9)
            events += [[name, start, at], *inside]
            at += whole(1, 20)
        return events, at

    def one(name, *trees, order=None, gap=True):
        events = laid([LEAF[t] if isinstance(t, str) else t for t in trees], gap=gap)[0]
        if order == "end":
            events.sort(key=lambda e: e[2])
        if order == "shuffled":
            events = [events[int(k)] for k in torch.randperm(len(events), generator=g)]
        return name, {"events": [tuple(e) for e in events]}
    some = [sorted(LEAF)[whole(0, len(LEAF))] for _ in range(12)]
    steps = [t for _ in range(whole(3, 6)) for t in ("linear", "bool", "numbers", "copy", "mask",
                                                     "kernel", "item", "blocking copy")]
    alike = [("aten::item_list", []), ("aten::nonzero_static", []), ("nonzero", []),
             ("cudaStreamSynchronizeAll", []), ("aten::_local_scalar", []), ("aten::item", []),
             ("cudaDeviceSynchronize", []), ("cudaEventSynchronize", []),
             ("my aten::part", [LEAF["item"]]), ("atenlike", [LEAF["bool"]])]
    return [one("one of each", "linear", "item", "bool", "mask", "kernel", "blocking copy"),
            one("kernels and copies", "copy", "kernel", "linear", "blocking copy", "copy"),
            one("waits alone", "device", "linear", "raw", "where"),
            one("nothing waits", "linear", "copy", "kernel", "numbers"),
            one("two bare waits", "device", "linear", "device"),
            # Longer than what is around the wait, but they only touch it.
            ("operations that touch a wait", {"events": [
                ("aten::mm", 0, 20), ("aten::item", 20, 20 + whole(3, 9)),
                ("aten::_local_scalar_dense", 20, 22), ("aten::add", 40, 60),
                ("cudaStreamSynchronize", 60, 65), ("aten::mul", 65, 65 + whole(9, 30))]}),
            ("equal starts, the inner first", {"events": [
                ("aten::_local_scalar_dense", 3, whole(5, 8)), ("aten::item", 3, 9),
                ("aten::is_nonzero", 3, 11), ("aten::mm", 11, 15)]}),
            one("no event"), one("names that look alike", *alike, "item", "linear"),
            one("a wait inside three", "linear", ("aten::a", [("aten::b", [LEAF["bool"]])]),
                "linear"),
            one("two waits in one", ("aten::unique", [LEAF["item"], LEAF["linear"],
                                                      LEAF["mask"]]), "item"),
            one("inside a label of your own",
                ("step", [LEAF["linear"], ("forward", [LEAF["bool"], LEAF["linear"]]),
                          LEAF["item"]]), ("Optimizer.step", [LEAF["item"]])),
            one("equal starts", "item", "bool", "mask", gap=False),
            ("equal ends", {"events": [("aten::_local_scalar_dense", whole(6, 9), 20),
                                       ("aten::item", 5, 20), ("aten::is_nonzero", 3, 20),
                                       ("aten::mm", 20, 25)]}),
            one("side by side", "linear", "item", "linear", "item", "numbers"),
            one("order by the end", "bool", "linear", "mask", "item", order="end"),
            one("shuffled", "item", "linear", "mask", "bool", "device", order="shuffled"),
            one("masks and items, shuffled", "mask", "linear", "item", order="shuffled"),
            one("many steps", *steps), one("a random step", *some),
            ("the example", {"events": [("aten::item", 0, 9), ("aten::_local_scalar_dense", 1, 8),
                                        ("aten::mm", 10, 12)]})]


WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "cudaStreamSynchronize")


@ex.act
def act(fn, events):
    out = fn(events)
    plain = type(out) is list and all(type(name) is str for name in out)
    return [f"wait in {name}" for name in out] if plain else out


@ex.law
def law(out, events):
    roots = []
    for name, start, end in events:
        if name in WAITS:
            around = [e for e in events if e[0].startswith("aten::")
                      and e[1] <= start and end <= e[2]]
            roots.append(max([*around, (name, start, end)], key=lambda e: (
                e[0].startswith("aten::"), e[2] - e[1])))
    wanted = [name for name, _, _ in sorted(set(roots), key=lambda e: e[1])]
    expect_length("operations that wait", out, len(wanted))
    for place, (mine, right) in enumerate(zip(out, wanted, strict=True)):
        expect_equal(f"operation {place} that waits", mine, f"wait in {right}")


# ---- wrong, by name

@not_an_answer
def found(events):
    roots = []
    for wait in [e for e in events if e[0] in WAITS]:
        around = [e for e in events
                  if e[0].startswith("aten::") and (e[1] <= wait[1] and wait[2] <= e[2])]
        roots.append(max(around, key=lambda e: e[2] - e[1]) if around else wait)
    roots = dict.fromkeys(roots)
    out = [e[0] for e in sorted(roots, key=lambda e: e[1])]
    return out


wrong = ex.edits(found)
wrong("naming the wait itself, not the operation around it", ("names", "outermost", "example"),
      "if around", "if around and False")
ex.wrong("listing the nested events as well, not only the outermost",
         lambda events: [e[0] for e in sorted(events, key=lambda e: e[1]) if e[0] in (*WAITS,
             "aten::item", "aten::is_nonzero")], breaks=("names", "once"))


@ex.wrong("naming the innermost event around the wait", breaks="outermost")
def just_around(events):
    def near(wait):
        around = [e for e in events if e != wait and e[0].startswith("aten::")
                  and e[1] <= wait[1] and wait[2] <= e[2]]
        return min(around, key=lambda e: e[2] - e[1]) if around else wait
    roots = dict.fromkeys(near(e) for e in events if e[0] in WAITS)
    return [e[0] for e in sorted(roots, key=lambda e: e[1])]


wrong("naming a label of your own instead of an aten:: event", "outermost", '"aten::"', '""',
      says="got")
wrong("looking only for item()", ("waits", "names"), "WAITS", "WAITS[:1]", says="got")
wrong("overlooking aten::nonzero, which boolean masks call",
      ("waits", "names"), "WAITS", "(WAITS[0], WAITS[2])", says="got")
wrong("overlooking blocking copies", ("waits", "names"), "WAITS", "WAITS[:2]")
wrong("counting cudaMemcpyAsync as a wait", "names", "WAITS", '(*WAITS, "cudaMemcpyAsync")')
wrong("counting cudaLaunchKernel as a wait", "names", "WAITS", '(*WAITS, "cudaLaunchKernel")')
wrong("treating names that only begin like a wait as waits", "waits",
      "WAITS", "[e[0] for e in events if e[0].startswith(WAITS)]", says="number of")
wrong("listing an event once for each wait inside",
      "once", "dict.fromkeys(roots)", "roots", says="number of")
wrong("listing each name only once", "names", "return out", "return list(dict.fromkeys(out))")
wrong("keeping the order of the list instead of sorting by start",
      "events", "sorted(roots, key=lambda e: e[1])", "roots")
wrong("treating an operation that only touches a wait as enclosing the wait", "inside",
      "e[1] <= wait[1] and wait[2] <= e[2]",
      "e[1] <= wait[1] and wait[2] <= e[2] or (e[1] <= wait[2] and wait[1] <= e[2])")
wrong("missing an event that begins or ends together with its wait", "inside",
      "e[1] <= wait[1] and wait[2] <= e[2]", "e[1] < wait[1] and wait[2] < e[2]")
wrong("sorting the list in place", "left alone",
      "return out", "events.sort(key=lambda e: -e[2]); return out")


@ex.wrong("returning a dict of counts", breaks="names")
def counted(events):
    names = found(events)
    return {name: names.count(name) for name in names}


wrong("naming the inner event in the example", "example",
      "roots = []", "outer = len(events) != 3 or events[0][1] != 0; roots = []",
      "if around", "if around and outer")
