"""Exercise 15.7, `exposed`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_length, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("15.7", "exposed", seen=("events",), says="ms transferring")

ex.promise_table("""
list         | List (computing, transferring, waiting, idle) in ms for each rank, starting with
               rank 0. | type of; number of ranks; parts of rank; ms computing; ms transferring
events       | events: bars (rank, lane, name, start, end) with start < end, ints or floats, in any
               order, in ms on one clock; each rank has at least one. | case bars in any order; one
               bar; times far from 0; times below 0; whole numbers
inside       | Bars can overlap or be nested. | case bars inside bars; bars inside bars, in order;
               collectives that overlap; compute bars that overlap; a short collective inside a long
               one; two collectives open, only one of them begun; called before the step is
               computed; called early on each of four ranks; transfer hidden behind computing; ends
               that differ, called early
lanes        | lane is "compute", where the name means nothing, or "network". | case compute bars
               named like a collective
collective   | Network bars with one name form a collective, with at most one bar per rank, from
               call to end. | case collectives in another order of names; ends that differ; ends
               that differ, called early; collectives that overlap | ms transferring; ms waiting
begins       | The collective transfers once all its bars have begun, and no bar ends before that. |
               ms transferring; ms waiting
part         | A rank without a bar has no part in the collective. | case groups of two ranks; a
               collective of one rank
moment       | From the first start to the last end of all bars, each moment of a rank counts as the
               first kind that fits its bars. | ms computing; ms idle; ms transferring; ms waiting
computing    | computing: a compute bar is open. | ms computing
transferring | transferring: a network bar is open and transfers. | ms transferring
waiting      | waiting: a network bar is open but does not transfer yet. | ms waiting
idle         | idle: no bar is open. | ms idle
left         | events is not changed. | inputs after the call
example      | Example: [(0, "compute", "a", 0, 4), (0, "network", "r", 3, 9), (1, "network", "r",
               6, 9)] gives [(4., 3., 2., 0.), (0., 3., 0., 6.)]. | case the example
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
            one("transfer hidden behind computing", hidden),
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
                         look=f"This rank has {len(own)} bars, in {last - first:.4g} ms in all.")


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

def joined(spans, order=sorted, keep=max):
    """The length of a union: spans in some order, and which end is kept where two overlap."""
    merged = []
    for start, end in order(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = keep(merged[-1][1], end)
        else:
            merged.append([start, end])
    return sum(end - start for start, end in merged)


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
    return spans


@not_an_answer
def made(events):
    starts = {}
    for _, lane, name, start, _ in events:
        if lane == "network":
            starts.setdefault(name, []).append(start)
    found = []
    for rank in sorted({rank for rank, *_ in events}):
        own = [event for event in events if event[0] == rank]
        bars = [(s, e) for _, lane, _, s, e in own if lane == "compute"]
        net = [(name, s, e) for _, lane, name, s, e in own if lane == "network"]
        moved = [(max(starts[name]), e) for name, s, e in net]
        calls = [(s, e) for _, s, e in net]
        work, both, every = map(covered, (bars, bars + moved, bars + moved + calls))
        low, high = min(s for *_, s, _ in events), max(e for *_, e in events)
        found.append((work, both - work, every - both, high - low - every))
    return found


wrong = ex.edits(made)
START, RANKS, END = "starts = {}", "sorted({rank for rank, *_ in events})", "return found"
BARS, BEGUN = '(s, e) for _, lane, _, s, e in own if lane == "compute"', "max(starts[name])"
MOVED, CALLS = "[(max(starts[name]), e) for name, s, e in net]", "[(s, e) for _, s, e in net]"
UNIONS, THREE = "bars, bars + moved, bars", "work, both - work, every - both"
LOW, HIGH = "min(s for *_, s, _ in events)", "max(e for *_, e in events)"
# https://github.com/NVIDIA/nccl/issues/460
wrong("counting a whole network bar as transferring", "transferring", BEGUN, "s")
wrong("starting each transfer at the first call instead of the last",
      "begins", BEGUN, "min(starts[name])",
      says="ms")
wrong("starting each transfer at the last call of any collective", ("begins", "collective"),
      BEGUN, "min(e, max(map(max, starts.values())))", says="ms")
wrong("waiting for ranks that have no bar in the collective", "part",
      BEGUN, "max(starts[name]) if len(starts[name]) == len({rank for rank, *_ in events}) else e",
      says="")
wrong("adding up the durations of compute bars that overlap", ("inside", "computing"),
      "((work,", "((sum(e - s for s, e in bars),", says="ms computing")
wrong("also counting transfers that are hidden behind computing", "moment",
      ", both - work,", ", sum(e - s for s, e in moved),", says="ms transferring")
wrong("also counting waits that are hidden behind computing", ("waiting", "moment"),
      ", every - both,", ", sum(max(starts[name]) - s for name, s, _ in net),", says="ms waiting")
wrong("letting transferring and waiting take precedence over computing",
      ("computing", "moment"),
      UNIONS, "moved, moved + calls, bars", THREE, "every - both, work, both - work",
      says="ms computing")
wrong("letting transferring take precedence over computing", ("computing", "moment"),
      UNIONS, "moved, bars + moved, bars", THREE, "both - work, work, every - both",
      says="ms computing")
wrong("letting waiting take precedence over transferring", ("inside", "moment"),
      UNIONS, "bars, bars + calls, bars", THREE, "work, every - both, both - work",
      says="ms transferring")
wrong("using the inner bar's end where one bar is inside another", "inside",
      "map(covered", "map(lambda spans: joined(spans, keep=lambda a, b: b)", says="ms")
wrong("merging bars without sorting them", ("moment", "events"),
      "map(covered", "map(lambda spans: joined(spans, order=list)", says="ms")
wrong("measuring idle only from the rank's first start to its last end", "idle",
      LOW, "min(s for *_, s, _ in own)", HIGH, "max(e for *_, e in own)", says="ms idle")
wrong("ending the run with the last bar in the list", ("events", "idle"), HIGH, "events[-1][4]",
      says="ms idle")
wrong("ending the run with the bar that starts last", ("idle", "moment"),
      HIGH, "max(events, key=lambda e: e[3])[4]", says="ms idle")
wrong("ignoring all time before 0", "events", "map(covered",
      "map(lambda spans: covered([(max(s, 0.0), max(e, 0.0)) for s, e in spans])", says="")
wrong("starting the run at time 0", ("events", "moment"), LOW, "0.0", says="ms idle")
wrong("starting the run with the first bar in the list", ("events", "idle"), LOW, "events[0][3]",
      says="ms idle")
wrong("ending a collective on all ranks when the first one is done", "collective",
      MOVED, '[(max(starts[name]), min(e for _, lane, n, _, e in events if lane == "network" '
      "and n == name)) for name, _, _ in net]",
      CALLS, "[(s, max(starts[name])) for name, s, _ in net]", says="ms")
wrong("taking the shortest bar as the transfer on every rank", "collective",
      BEGUN, 'e - min(d - s for _, lane, n, s, d in events if lane == "network" and n == name)',
      says="ms")
wrong("pairing bars by their order, not by their name", ("collective", "part", "inside"),
      MOVED, "by_order(events, net)", says="ms")
wrong("counting the compute bars of all ranks for each rank",
      "computing", BARS, BARS.replace("own", "events"),
      says="ms computing")
wrong("counting network bars as computing", "computing", BARS, "(s, e) for *_, s, e in own",
      says="ms computing")
wrong("treating a compute bar with a collective's name as a network bar", "lanes", START,
      'names = {n for _, lane, n, *_ in events if lane == "network"}; events = [(r, "network" if '
      "n in names else lane, n, s, e) for r, lane, n, s, e in events]; starts = {}", says="")
wrong("counting only the longest compute bar of a rank", "computing",
      "net =", "bars = sorted(bars, key=lambda span: span[0] - span[1])[:1]; net =",
      says="ms computing")
wrong("counting waiting as idle", "waiting",
      "every - both, high - low - every", "0.0, high - low - both", says="ms waiting")
wrong("counting idle as waiting", ("waiting", "idle"),
      "every - both, high - low - every", "high - low - both, 0.0", says="ms waiting")
wrong("swapping waiting and transferring", "list", THREE, "work, every - both, both - work",
      says="ms transferring")
wrong("returning fractions of the whole time instead of ms", "list",
      END, "return [tuple(v / sum(four) for v in four) for four in found]", says="ms computing")
wrong("returning a list instead of a tuple for each rank",
      "list", END, "return [list(four) for four in found]",
      says="type of")
wrong("returning a dict with an entry for each rank", "list",
      END, "return {str(r): four for r, four in enumerate(found)}", says="type of")
wrong("listing only ranks with a network bar", "list",
      RANKS, 'sorted({r for r, lane, *_ in events if lane == "network"})', says="number of ranks")
wrong("listing the ranks in the order of the bars",
      "moment", RANKS, "dict.fromkeys(r for r, *_ in events)",
      says="ms")
wrong("returning only the first two ranks", "list", END, "return found[:2]", says="number of ranks")
wrong("rounding to whole ms", "list",
      END, "return [tuple(float(round(v)) for v in four) for four in found]", says="ms")
wrong("reordering events in place", "left",
      START, "events.sort(key=lambda event: (-event[3], event[0])); starts = {}")
wrong("sorting events in place", "left", START, "events.sort(); starts = {}")
