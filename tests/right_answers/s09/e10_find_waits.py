"""Exercise 09.10, `find_waits`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

from dlsys_checks.s09.e10_find_waits import WAITS, ex


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
              "of two events that overlap one lies inside the other: the outermost do not overlap")
