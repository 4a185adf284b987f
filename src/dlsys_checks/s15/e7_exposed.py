"""Exercise 15.7, `exposed`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_length, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("15.7", "exposed", seen=("events",), says="ms transferring")

ex.promise_table("""
list         | List (computing, transferring, waiting, idle) of each rank in ms, from rank 0 on. |
               type of; number of ranks; parts of rank; ms computing; ms transferring
events       | events: bars (rank, lane, name, start, end) with start < end, ints or floats, in any
               order, in ms on one clock; each rank has at least one. | case bars in any order; one
               bar; times far from 0; times below 0; whole numbers
inside       | Bars may overlap or lie inside each other. | case bars inside bars; bars inside bars,
               in order; collectives that overlap; compute bars that overlap; a short collective
               inside a long one; two collectives open, only one of them begun; called before the
               step is computed; called early on each of four ranks; transfer behind computing; ends
               that differ, called early
lanes        | lane is "compute", where the name means nothing, or "network". | case compute bars
               named like a collective
collective   | All network bars of one name are one collective, at most one bar per rank, from the
               call to the end there. | case collectives in another order of names; ends that
               differ; ends that differ, called early; collectives that overlap | ms transferring;
               ms waiting
begins       | It transfers as soon as all its bars have begun, and none ends earlier. | ms
               transferring; ms waiting
part         | A rank without such a bar has no part in it. | case groups of two ranks; a collective
               of one rank
moment       | From the first start to the last end of all bars, each moment of a rank counts as the
               first of these that fits: | ms computing; ms idle; ms transferring; ms waiting
computing    | computing, if a compute bar of its own is open; | ms computing
transferring | transferring, if a network bar of its own is open and transfers; | ms transferring
waiting      | waiting, if one is open that does not transfer yet; | ms waiting
idle         | otherwise idle. | ms idle
left         | events is not changed. | inputs after the call
example      | Example: [(0, "compute", "a", 0, 4), (0, "network", "r", 3, 9), (1, "network", "r",
               6, 9)]: [(4., 3., 2., 0.), (0., 3., 0., 6.)]. | case the example
""")


@ex.cases
def cases(g):
    between, whole = floats(g), integers(g)

    def play(ranks=2, steps=3, early=0.0, nested=False, gap=0.3, skew=0.0, begin=0.0, groups=None):
        """Bars of a run: each step computes, then calls one collective for each group of ranks.

        early: share of a step's computing that is left when the call is made. skew: how far the
        ends of a collective lie apart. nested: two operations inside each compute bar.
        """
        now, events = [begin + between(0.0, 1.0) for _ in range(ranks)], []
        for step in range(steps):
            call, done = [], []
            for rank in range(ranks):
                start, long = now[rank], between(2.0, 9.0)
                events.append((rank, "compute", "step", start, start + long))
                if nested:
                    a, b = start + 0.1 * long, start + between(0.5, 0.8) * long
                    events.extend([(rank, "compute", "mm", a, b),
                                   (rank, "compute", "mm", b, b + 0.1 * long)])
                call.append(start + (1 - early) * long + between(0.05, 0.2))
                done.append(start + long)
            for n, group in enumerate(groups or [range(ranks)]):
                end = max(call[rank] for rank in group) + between(1.0, 3.0)
                for rank in group:
                    over = end + skew * between(0.2, 1.0)
                    events.append((rank, "network", f"sum {step}, {n}", call[rank], over))
                    done[rank] = max(done[rank], over)
            now = [t + gap * between(0.5, 1.5) for t in done]
        return events

    def mixed(events):
        return [events[i] for i in torch.randperm(len(events), generator=g).tolist()]

    def one(name, events):
        return name, {"events": list(events)}

    renamed = [(rank, "compute", "sum 0, 0", s, e) if lane == "compute" else
               (rank, lane, name, s, e) for rank, lane, name, s, e in play()]
    t = [between(1.0, 2.0) for _ in range(12)]
    upset = [(0, "compute", "a", 0.0, t[0]), (1, "compute", "a", 0.0, t[1] + 2),
             (0, "network", "first", t[0], t[1] + 4),
             (0, "network", "second", t[0] + 0.1, 9 + t[2]),
             (1, "network", "second", t[1] + 3, 9 + t[2]),
             (1, "network", "first", t[1] + 2.5, t[1] + 4)]
    inside = [(0, "network", "long", 0.0, 20 + t[3]), (1, "network", "long", 4 + t[4], 20 + t[3]),
              (0, "network", "short", 8.0, 10 + t[5]), (1, "network", "short", 8.5, 10 + t[5]),
              (1, "compute", "a", 0.0, 4.0)]
    half = [(0, "network", "late", 0.0, 10 + t[6]), (1, "network", "late", 8.0, 10 + t[6]),
            (0, "network", "soon", 1.0, 3 + t[7]), (1, "network", "soon", 2.0, 3 + t[7])]
    over = [(0, "compute", "a", 0.0, 2 + t[8]), (0, "compute", "b", 1.0, 5 + t[9]),
            (0, "compute", "c", 7.0, 8.0), (1, "compute", "a", 0.5, 1.5)]
    still = [(1, "compute", "a", 0.0, t[10]), (0, "compute", "a", 3 + t[10], 4 + t[11] + t[10]),
             (1, "compute", "b", 5 + t[10], 6 + t[10])]
    hidden = [(0, "compute", "a", 0.0, 12.0), (0, "network", "r", 1.0, 6 + t[0]),
              (1, "compute", "a", 0.0, 3.0), (1, "network", "r", 3 + t[1], 6 + t[0])]
    return [one("two ranks, three steps", play()),
            one("bars in any order", mixed(play(steps=4))),
            one("bars inside bars", mixed(play(nested=True))),
            one("bars inside bars, in order", play(nested=True)),
            one("called before the step is computed", mixed(play(early=between(0.3, 0.5)))),
            one("called early on each of four ranks", mixed(play(4, early=0.4, nested=True))),
            one("transfer behind computing", hidden),
            one("ends that differ", mixed(play(skew=between(1.0, 2.0)))),
            one("ends that differ, called early", mixed(play(3, early=0.3, skew=1.5))),
            one("four ranks", mixed(play(4, 2))),
            one("groups of two ranks", mixed(play(4, 3, groups=[(0, 1), (2, 3)]))),
            one("a collective of one rank", mixed(play(3, 2, groups=[(0, 2), (1,)]))),
            one("long pauses between the steps", play(gap=6.0)),
            one("times far from 0", mixed(play(begin=between(400.0, 900.0)))),
            one("times below 0", mixed(play(begin=-between(20.0, 30.0)))),
            one("whole numbers", [(r, lane, n, round(s), round(e) + 1)
                                  for r, lane, n, s, e in mixed(play(steps=1))]),
            one("compute bars named like a collective", mixed(renamed)),
            one("collectives in another order of names", upset),
            one("collectives that overlap", mixed(upset)),
            one("a short collective inside a long one", mixed(inside)),
            one("two collectives open, only one of them begun", mixed(half)),
            one("compute bars that overlap", mixed(over)),
            one("ranks that only compute", still),
            one("rank 1 first", [(1 - r, *rest) for r, *rest in play()]),
            one("one step", play(steps=1)), one("many steps", mixed(play(steps=whole(9, 13)))),
            one("one bar", [(0, "compute", "a", t[2], t[2] + t[3])]),
            ("the example", {"events": [(0, "compute", "a", 0, 4), (0, "network", "r", 3, 9),
                                        (1, "network", "r", 6, 9)]})]


@ex.law
def law(out, events):
    ranks = sorted({rank for rank, *_ in events})
    expect_length("ranks", out, len(ranks), "The result is a list with a tuple for each rank.")
    begun = {}
    for _, lane, name, start, _ in events:
        if lane == "network":
            begun[name] = max(start, begun.get(name, start))
    first, last = min(s for *_, s, _ in events), max(e for *_, e in events)
    for rank in ranks:
        own = [event for event in events if event[0] == rank]
        bars = [(s, e) for _, lane, _, s, e in own if lane == "compute"]
        calls = [(name, s, e) for _, lane, name, s, e in own if lane == "network"]
        sums = [covered(bars), covered(bars + [(begun[name], e) for name, _, e in calls]),
                covered(bars + [(s, e) for _, s, e in calls]), last - first]
        wanted = [b - a for a, b in zip([0.0, *sums], sums)]
        got = out[rank]
        expect_type(f"times of rank {rank}", got, tuple)
        if len(got) != 4:
            raise Broken(f"parts of rank {rank}", len(got), 4)
        for what, mine, right in zip(("computing", "transferring", "waiting", "idle"), got, wanted):
            expect_type(f"ms {what} of rank {rank}", mine, (int, float))
            expect_close(f"rank {rank}, ms {what}", float(mine), float(right), rtol=1e-9,
                         atol=1e-9 * (1 + abs(last) + abs(first)),
                         look=f"{len(own)} bars of this rank, {last - first:.4g} ms in all.")


@not_an_answer
def covered(spans):
    """Length of what at least one span covers."""
    total, reach = 0.0, None
    for start, end in sorted(spans):
        if reach is None or start > reach:
            total, reach = total + end - start, end
        elif end > reach:
            total, reach = total + end - reach, end
    return total


# ---- wrong, by name

@not_an_answer
def made(events, *, begun=None, work=None, first=None, last=None, order=(0, 1, 2), form=tuple,
         ranks=None, moves=None, calls=None, length=covered, after=lambda four: four):
    """The right answer with its pieces as options."""
    starts = {}
    for _, lane, name, start, _ in events:
        if lane == "network":
            starts.setdefault(name, []).append(start)
    found = []
    for rank in ranks(events) if ranks else sorted({rank for rank, *_ in events}):
        own = [event for event in events if event[0] == rank]
        bars = work(events, own) if work else [(s, e) for _, lane, _, s, e in own
                                               if lane == "compute"]
        net = [(name, s, e) for _, lane, name, s, e in own if lane == "network"]
        from_then = [(begun(starts, name, s, events) if begun else max(starts[name]), e)
                     for name, s, e in net]
        moved = moves(events, net, starts) if moves else [(s, e) for s, e in from_then if s < e]
        waits = calls(net, from_then) if calls else [(s, e) for _, s, e in net]
        low = first(events, own) if first else min(s for *_, s, _ in events)
        high = last(events, own) if last else max(e for *_, e in events)
        kinds = [(bars, moved, waits)[k] for k in order]
        parts, before, sofar = {}, 0.0, []
        for k, spans in zip(order, kinds):
            sofar = sofar + spans
            now = length(sofar)
            parts[k], before = now - before, now
        found.append(form(after([parts[0], parts[1], parts[2], high - low - before])))
    return found


@not_an_answer
def apart(events, *, hidden=(True, True), nested=False):
    """Each kind measured by itself; what is not hidden by computing counts as hidden."""
    right = made(events)
    found = []
    for rank, (work, moved, waits, idle) in enumerate(right):
        own = [event for event in events if event[0] == rank]
        begun = {}
        for _, lane, name, start, _ in events:
            if lane == "network":
                begun[name] = max(start, begun.get(name, start))
        net = [(name, s, e) for _, lane, name, s, e in own if lane == "network"]
        moved = sum(e - begun[n] for n, _, e in net) if hidden[0] else moved
        waits = sum(begun[n] - s for n, s, _ in net) if hidden[1] else waits
        work = sum(e - s for _, lane, _, s, e in own if lane == "compute") if nested else work
        found.append((work, moved, waits, idle))
    return found


@not_an_answer
def joined(spans, *, order=sorted, keep=max, touch=lambda start, reach: start <= reach):
    """Length of a union with its pieces as options."""
    merged = []
    for start, end in order(spans):
        if merged and touch(start, merged[-1][1]):
            merged[-1][1] = keep(merged[-1][1], end)
        else:
            merged.append([start, end])
    return sum(end - start for start, end in merged)


def own_start(starts, name, start, events):
    return start


# https://github.com/NVIDIA/nccl/issues/460
ex.wrong("treating the whole bar as transfer", made, breaks="transferring", begun=own_start)
ex.wrong("counting from the first call, not from the last", made, says="ms", breaks="begins",
         begun=lambda starts, name, start, events: min(starts[name]))
ex.wrong("starting a collective with the last call of any", made, says="ms",
         breaks=("begins", "collective"),
         begun=lambda starts, name, start, events: max(map(max, starts.values())))
ex.wrong("waiting for a rank without a bar", made, says="", breaks="part",
         begun=lambda starts, name, start, events: max(starts[name]) if len(starts[name]) == len(
             {rank for rank, *_ in events}) else float("inf"))
ex.wrong("adding up durations of compute bars", apart, says="ms computing",
         breaks=("inside", "computing"), hidden=(False, False), nested=True)
ex.wrong("counting transfer behind computing, too", apart, says="ms transferring",
         breaks="moment", hidden=(True, False))
ex.wrong("counting waiting behind computing, too", apart, says="ms waiting",
         breaks=("waiting", "moment"), hidden=(False, True))
ex.wrong("leaving out computing behind a transfer", made, says="ms computing",
         breaks=("computing", "moment"), order=(1, 2, 0))
ex.wrong("leaving out computing behind a transfer, but not behind a wait",
         made, says="ms computing",
         breaks=("computing", "moment"), order=(1, 0, 2))
ex.wrong("counting waiting before transferring where both are open", made, says="ms transferring",
         breaks=("inside", "moment"), order=(0, 2, 1))
ex.wrong("keeping the later bar's end where one lies inside another", made, says="ms",
         breaks="inside", length=lambda spans: joined(spans, keep=lambda a, b: b))
ex.wrong("merging bars in the order of the list", made, says="ms", breaks=("moment", "events"),
         length=lambda spans: joined(spans, order=list))
ex.wrong("counting from the first start of the rank to its last end", made, says="ms idle",
         breaks="idle", first=lambda events, own: min(s for *_, s, _ in own),
         last=lambda events, own: max(e for *_, e in own))
ex.wrong("taking the end of the last bar in the list",
         made, says="ms idle", breaks=("events", "idle"),
         last=lambda events, own: events[-1][4])
ex.wrong("taking the end of the bar that starts last",
         made, says="ms idle", breaks=("idle", "moment"),
         last=lambda events, own: max(events, key=lambda e: e[3])[4])
ex.wrong("starting the union at 0", made, says="", breaks="events",
         length=lambda spans: covered([(max(s, 0.0), max(e, 0.0)) for s, e in spans]))
ex.wrong("counting time from 0", made, says="ms idle", breaks=("events", "moment"),
         first=lambda events, own: 0.0)
ex.wrong("taking the start of the first bar in the list", made, says="ms idle",
         breaks=("events", "idle"), first=lambda events, own: events[0][3])
ex.wrong("ending for all when the first rank is done", made, says="ms", breaks="collective",
         moves=lambda events, net, starts: [(max(starts[name]), min(
             e for _, lane, n, _, e in events if lane == "network" and n == name))
             for name, _, _ in net],
         calls=lambda net, then: [(s, max(s, b)) for (_, s, _), (b, _) in zip(net, then)])
ex.wrong("taking the shortest bar as everyone's transfer", made, says="ms", breaks="collective",
         moves=lambda events, net, starts: [(e - min(
             d - s for _, lane, n, s, d in events if lane == "network" and n == name), e)
             for name, _, e in net])
ex.wrong("pairing bars by their order, not by their name", made, says="ms",
         breaks=("collective", "part", "inside"),
         moves=lambda events, net, starts: by_order(events, net))
ex.wrong("counting compute bars of all ranks", made, says="ms computing", breaks="computing",
         work=lambda events, own: [(s, e) for _, lane, _, s, e in events if lane == "compute"])
ex.wrong("counting network bars as computing", made, says="ms computing", breaks="computing",
         work=lambda events, own: [(s, e) for *_, s, e in own])
ex.wrong("mistaking a compute bar with a collective's name for it", lambda events: made(
    [(r, "network" if lane == "compute" and n in {
        name for _, kind, name, *_ in events if kind == "network"} else lane, n, s, e)
     for r, lane, n, s, e in events]), says="", breaks="lanes")
ex.wrong("counting only the longest compute bar of a rank",
         made, says="ms computing", breaks="computing",
         work=lambda events, own: sorted(((s, e) for _, lane, _, s, e in own if lane == "compute"),
                                         key=lambda span: span[0] - span[1])[:1])
ex.wrong("counting waiting as idle", made, says="ms waiting", breaks="waiting",
         after=lambda four: [four[0], four[1], 0.0, four[2] + four[3]])
ex.wrong("counting idle as waiting", made, says="ms waiting", breaks=("waiting", "idle"),
         after=lambda four: [four[0], four[1], four[2] + four[3], 0.0])
ex.wrong("swapping waiting and transferring", made, says="ms transferring",
         breaks="list", after=lambda four: [four[0], four[2], four[1], four[3]])
ex.wrong("returning shares of the whole", made, says="ms computing", breaks="list",
         after=lambda four: [v / sum(four) for v in four])
ex.wrong("returning a list for each rank", made, says="type of", breaks="list", form=list)
ex.wrong("returning a dict by rank",
         lambda events: {str(r): four for r, four in enumerate(made(events))},
         says="type of", breaks="list")
ex.wrong("listing only ranks with a network bar", made, says="number of ranks", breaks="list",
         ranks=lambda events: sorted({r for r, lane, *_ in events if lane == "network"}))
ex.wrong("ordering ranks as in the list", made, says="ms", breaks="moment",
         ranks=lambda events: list(dict.fromkeys(r for r, *_ in events)))
ex.wrong("handling two ranks only",
         lambda events: made(events)[:2], says="number of ranks", breaks="list")
ex.wrong("rounding to whole ms", made, says="ms", breaks="list",
         after=lambda four: [float(round(v)) for v in four])


@not_an_answer
def by_order(events, net):
    """Spans of transfer if the k-th call of each rank were one collective."""
    lines = {}
    for rank, lane, _, start, _ in sorted(events, key=lambda event: event[3]):
        if lane == "network":
            lines.setdefault(rank, []).append(start)
    spans = []
    for k, (_, _, end) in enumerate(sorted(net, key=lambda call: call[1])):
        begun = max(line[k] for line in lines.values() if k < len(line))
        spans.append((min(begun, end), end))
    return [(s, e) for s, e in spans if s < e]


@ex.wrong("changing events in place", breaks="left")
def in_place(events):
    events.sort(key=lambda event: (-event[3], event[0]))
    return made(events)


@ex.wrong("sorting events in place", breaks="left")
def sorted_in_place(events):
    events.sort()
    return made(events)
