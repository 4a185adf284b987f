"""Exercise 09.10, `find_waits`."""

from __future__ import annotations

import torch

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_equal, expect_length

ex = exercise("09.10", "find_waits", seen=("events",))

ex.promise("names", "What a step waits for: names of operations, in order of their start.",
           says=("operation", "number of", "type of"))
ex.promise("events", "events: a list of (name, start, end) of one thread, in any order,",
           cases=("order by the end", "shuffled", "masks and items, shuffled"),
           says=("operation", "number of"))
ex.promise("left alone", "left as it is;", says=("inputs after the call",))
ex.promise("inside", "an event lies inside another if it starts no earlier and ends no later.",
           cases=("equal starts", "equal ends", "a wait inside three", "side by side",
                  "an operation that ends where a wait starts", "equal starts, the inner first",
                  "a step nobody knows"))
ex.promise("waits", "aten::_local_scalar_dense, aten::nonzero and cudaStreamSynchronize wait,",
           cases=("one of each", "kernels and copies", "waits alone", "shuffled",
                  "order by the end", "nothing waits", "names that look alike",
                  "two bare waits", "a step nobody knows"))
ex.promise("outermost", "and so does the outermost aten:: event around each of them, which is the "
           "one to name, or the wait itself where there is none;",
           cases=("a wait inside three", "waits alone", "inside a step of one's own",
                  "one of each", "equal starts", "equal ends", "shuffled", "order by the end",
                  "many steps", "kernels and copies", "two waits in one", "two bare waits",
                  "names that look alike", "equal starts, the inner first",
                  "an operation that ends where a wait starts", "a step nobody knows"))
ex.promise("once", "with several waits inside it is named once.",
           cases=("two waits in one", "many steps", "a step nobody knows"))
ex.promise("example", 'Example: [("aten::item", 0, 9), ("aten::_local_scalar_dense", 1, 8), '
           '("aten::mm", 10, 12)]: ["aten::item"].', cases=("the example",))

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
    def whole(low, high):
        return int(torch.randint(low, high, (), generator=g))

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
            ("an operation that ends where a wait starts", {"events": [
                ("aten::mm", 0, 5), ("aten::item", 5, whole(8, 12)),
                ("aten::_local_scalar_dense", 5, 7), ("aten::add", 12, 20)]}),
            ("equal starts, the inner first", {"events": [
                ("aten::_local_scalar_dense", 3, whole(5, 8)), ("aten::item", 3, 9),
                ("aten::is_nonzero", 3, 11), ("aten::mm", 11, 15)]}),
            one("no event"), one("names that look alike", *alike, "item", "linear"),
            one("a wait inside three", "linear", ("aten::a", [("aten::b", [LEAF["bool"]])]),
                "linear"),
            one("two waits in one", ("aten::unique", [LEAF["item"], LEAF["linear"],
                                                      LEAF["mask"]]), "item"),
            one("inside a step of one's own",
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
            one("many steps", *steps), one("a step nobody knows", *some),
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


# ---- right by another route

@ex.right("a stack of open events")
def by_stack(events):
    found, open_events, named = [], [], None
    for name, start, end in sorted(events, key=lambda e: (e[1], -e[2])):
        while open_events and open_events[-1][2] < end:
            open_events.pop()
        open_events.append((name, start, end))
        if name in WAITS:
            root = next((e for e in open_events if e[0].startswith("aten::")), open_events[-1])
            if root != named:
                found.append(root)
            named = root
    return [name for name, _, _ in sorted(dict.fromkeys(found), key=lambda e: e[1])]


@ex.right("tops first, then what lies inside each")
def tops_first(events):
    ops = [e for e in events if e[0].startswith("aten::")]
    tops = [e for e in ops if not any(
        o != e and o[1] <= e[1] and e[2] <= o[2] for o in ops)]
    tops += [e for e in events if e[0] in WAITS and not any(
        o[1] <= e[1] and e[2] <= o[2] for o in tops)]
    hits = [t for t in tops if any(t[1] <= e[1] and e[2] <= t[2] and e[0] in WAITS
                                   for e in events)]
    return [name for name, start, _ in sorted(hits, key=lambda e: e[1])]


@ex.right("a line swept from left to right")
def swept(events):
    found, until, top = [], -1, None
    waits = sorted((e for e in events if e[0] in WAITS), key=lambda e: e[1])
    ops = sorted((e for e in events if e[0][:6] == "aten::"), key=lambda e: (e[1], -e[2]))
    tops = []
    for e in ops:
        if e[2] > until:
            tops.append(e)
            until = e[2]
    for wait in waits:
        root = [t for t in tops if t[1] <= wait[1] and wait[2] <= t[2]]
        top = root[0] if root else wait
        if top not in found:
            found.append(top)
    return [e[0] for e in sorted(found, key=lambda e: e[1])]


@ex.right("by recursion from each wait outwards")
def outwards(events):
    def out_of(event):
        wider = [e for e in events if e != event and e[0].startswith("aten::")
                 and e[1] <= event[1] and event[2] <= e[2]]
        return event if not wider else out_of(min(wider, key=lambda e: e[2] - e[1]))
    roots = {out_of(e) for e in events if e[0] in WAITS}
    return [name for _, _, name in sorted((e[1], -e[2], e[0]) for e in roots)]


ex.equivalent("return [name for name, _, _ in sorted(roots, key=lambda e: e[1])] -> "
              "return [name for name, _, _ in sorted(roots, key=lambda e: e[2])]",
              "outermost events of one thread do not overlap: they end in the order of their start")


# ---- wrong, by name

def found(events, *, waits=WAITS, outer=True, once=True, prefix="aten::", order=1, strict=False):
    """The right answer with the mistakes as options."""
    roots = []
    for wait in [e for e in events if e[0] in waits]:
        around = [e for e in events if e[0].startswith(prefix) and (
            (e[1] < wait[1] and wait[2] < e[2]) if strict
            else (e[1] <= wait[1] and wait[2] <= e[2]))]
        roots.append(max(around, key=lambda e: e[2] - e[1]) if around and outer else wait)
    roots = dict.fromkeys(roots) if once else roots
    return [e[0] for e in (sorted(roots, key=lambda e: e[order]) if order else roots)]


@ex.wrong("the wait itself named, not the operation around it", says="operation",
          breaks=("names", "outermost", "example"))
def inner_names(events):
    return found(events, outer=False)


@ex.wrong("each nested event counted", says="number of", breaks=("names", "once"))
def nested(events):
    return [e[0] for e in sorted(events, key=lambda e: e[1]) if e[0] in (
        *WAITS, "aten::item", "aten::is_nonzero")]


@ex.wrong("the event just around the wait named", says="operation", breaks="outermost")
def just_around(events):
    def near(wait):
        around = [e for e in events if e != wait and e[0].startswith("aten::")
                  and e[1] <= wait[1] and wait[2] <= e[2]]
        return min(around, key=lambda e: e[2] - e[1]) if around else wait
    roots = dict.fromkeys(near(e) for e in events if e[0] in WAITS)
    return [e[0] for e in sorted(roots, key=lambda e: e[1])]


@ex.wrong("a label of one's own named", says="got", breaks="outermost")
def own_label(events):
    return found(events, prefix="")


@ex.wrong("item() only", says="got", breaks=("waits", "names"))
def items_only(events):
    return found(events, waits=WAITS[:1])


@ex.wrong("masks overlooked", says="got", breaks=("waits", "names"))
def no_masks(events):
    return found(events, waits=(WAITS[0], WAITS[2]))


@ex.wrong("blocking copies overlooked", says="number of", breaks=("waits", "names"))
def no_copies(events):
    return found(events, waits=WAITS[:2])


@ex.wrong("copies that do not block counted", says="number of", breaks="names")
def all_copies(events):
    return found(events, waits=(*WAITS, "cudaMemcpyAsync"))


@ex.wrong("kernels counted", says="number of", breaks="names")
def kernels(events):
    return found(events, waits=(*WAITS, "cudaLaunchKernel"))


@ex.wrong("names that only begin alike taken for waits", says="number of", breaks="waits")
def alike(events):
    return found(events, waits=[e[0] for e in events if e[0].startswith(WAITS)])


@ex.wrong("one name for each wait inside", says="number of", breaks="once")
def each_wait(events):
    return found(events, once=False)


@ex.wrong("each name once in all", says="number of", breaks="names")
def distinct(events):
    return list(dict.fromkeys(found(events)))


@ex.wrong("in the order of the list", says="operation", breaks="events")
def list_order(events):
    return found(events, order=0)


@ex.wrong("an event that begins with its wait not seen around it", says="operation",
          breaks="inside")
def strict_inside(events):
    return found(events, strict=True)


@ex.wrong("the list sorted in place", says="inputs after the call", breaks="left alone")
def sorted_in_place(events):
    out = found(events)
    events.sort(key=lambda e: -e[2])
    return out


@ex.wrong("names and numbers", says="type of", breaks="names")
def counted(events):
    names = found(events)
    return {name: names.count(name) for name in names}


@ex.wrong("the example, its inner event named", says="operation", breaks="example")
def looked_up(events):
    return found(events, outer=len(events) != 3 or events[0][1] != 0)
