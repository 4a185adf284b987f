"""Exercise 13.9, `first_token`."""

from __future__ import annotations

import math

import numpy as np
import torch

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("13.9", "first_token", seen=("arrive", "chunks"), says="seconds to the first token")

ex.promise_table("""
three   | Compute (p99, gap, rate) of a server's run, as floats, with times in seconds. | type of;
          parts of the result
arrive  | arrive: when each request was due, one or more, in any order. | case arrivals in any
          order; one request; arrivals long after 0
chunks  | chunks: for each request its pieces, (time, tokens), in order of time. | seconds to the
          first token; longest wait; tokens a second
empty   | A piece with 0 tokens only shows that the server is alive and is not part of the answer. |
          case pieces without tokens; an empty piece at the end; an empty piece in a gap; the
          example; nothing but empty pieces
p99     | p99: the smallest time within which at least 99 % of the requests have their first token,
          | seconds to the first token
arrival | measured from when each request was due; | seconds to the first token
never   | a request that never gets a token counts as math.inf. | case one of five gets nothing; one
          of two hundred gets nothing; three of two hundred get nothing; nothing but empty pieces
gap     | gap: the longest wait between two consecutive pieces of one answer, | longest wait
none    | or 0.0 if no answer has two. | case one piece each | longest wait; raised; type of
rate    | rate: the tokens of all answers per second, from the first arrival to the last piece of an
          answer. | tokens a second
least   | At least one request gets a token. | case nothing but empty pieces; one request
left    | Inputs are not changed. | inputs after the call
example | Example: arrive [0.], chunks [[(1., 0), (2., 3), (2.5, 1)]]: (2.0, 0.5, 1.6). | case the
          example
""")


@ex.cases
def cases(g):
    between, whole = floats(g), integers(g)

    def one(name, n, pieces=4, empty=False, nothing=(), begin=0.0, shuffled=False, late=0):
        """`n` requests; the server begins each with an empty piece where `empty`."""
        arrive, chunks, now = [], [], begin
        for r in range(n):
            now += between(0.0, 0.5)
            at = now + between(0.2, 2.0) + (8.0 + r % 3 if r < late else 0.0)
            row = [[at - 0.15, 0]] if empty else []
            for _ in range(0 if r in nothing else whole(2, pieces + 1) if pieces > 1 else 1):
                row.append([at, whole(1, 6)])
                at += between(0.02, 0.9)
            arrive.append(now)
            chunks.append([tuple(piece) for piece in row])
        if shuffled:
            # The first to arrive is never the first of the list.
            order = [*(1 + torch.randperm(n - 1, generator=g)).tolist(), 0]
            arrive, chunks = [arrive[i] for i in order], [chunks[i] for i in order]
        return name, {"arrive": arrive, "chunks": chunks}

    end = one("an empty piece at the end", 4)
    end[1]["chunks"][1].append((end[1]["chunks"][-1][-1][0] + 50.0, 0))
    split = one("an empty piece in a gap", 3)
    t = split[1]["chunks"][0][-1][0]
    split[1]["chunks"][0] += [(t + 2.0, 0), (t + 4.0, 1)]
    return [one("a few requests", 5), one("ninety-nine requests", 99, late=1),
            one("a hundred requests", 100, late=1),
            one("a hundred requests, two late", 100, late=2),
            one("two hundred and fifty", 250, late=3), one("fifty requests", 50, late=1),
            one("one request", 1), one("two requests", 2),
            one("arrivals in any order", 30, shuffled=True),
            one("arrivals long after 0", 6, begin=between(1e3, 2e3)),
            one("one piece each", 6, pieces=1), one("many pieces", 4, pieces=30),
            one("pieces without tokens", 6, empty=True), end, split,
            one("one of five gets nothing", 5, nothing=(2,)),
            one("one of two hundred gets nothing", 200, nothing=(7,)),
            one("three of two hundred get nothing", 200, nothing=(7, 70, 170)),
            one("nothing but empty pieces", 4, empty=True, nothing=(0, 1, 3)),
            ("the example", {"arrive": [0.0], "chunks": [[(1.0, 0), (2.0, 3), (2.5, 1)]]})]


@ex.act
def act(fn, arrive, chunks):
    found = fn(arrive, chunks)
    if type(found) in (tuple, list):             # infinity as a text: nothing is 2 % off it
        found = type(found)(str(v) if v == math.inf else v for v in found)
    return {"found": found}


@ex.law
def law(out, arrive, chunks):
    expect_parts(out, "found")
    expect_type("result", out["found"], tuple)
    if len(out["found"]) != 3:
        raise Broken("parts of the result", len(out["found"]), 3)
    p99, gap, rate = out["found"]
    waits, longest, tokens, last = [], 0.0, 0, -math.inf
    for start, row in zip(arrive, chunks, strict=True):
        before, wait = None, math.inf
        for time, n in row:
            if n == 0:
                continue
            if before is None:
                wait = time - start
            else:
                longest = max(longest, time - before)
            before, tokens, last = time, tokens + n, max(last, time)
        waits.append(wait)
    # the least time that so many do not exceed, without an index
    most = min(w for w in waits if 100 * sum(v <= w for v in waits) >= 99 * len(waits))
    look = (f"{len(waits)} requests, {waits.count(math.inf)} without a token; the longest waits "
            f"are {', '.join(f'{w:.4g}' for w in sorted(waits)[-3:])}.")
    if most == math.inf:
        if p99 != "inf":
            raise Broken("seconds to the first token, 99 %", p99, math.inf, look)
    else:
        if p99 == "inf":
            raise Broken("seconds to the first token, 99 %", math.inf, most, look)
        expect_close("seconds to the first token, 99 %", p99, most, rtol=1e-9, look=look)
    expect_close("longest wait between two pieces", gap, longest, rtol=1e-9, atol=1e-9)
    expect_close("tokens a second", rate, tokens / (last - min(arrive)), rtol=1e-9,
                 look=f"{tokens} tokens in {last - min(arrive):.4g} s.")


# ---- wrong, by name

@not_an_answer
def made(arrive, chunks, *, real=lambda n: n > 0, start=None, pick=None, lost=math.inf, gap=None,
         tokens=lambda one: sum(n for _, n in one), begin=min, last=None, form=tuple, none=0.0,
         pings=False):
    """The right answer with its pieces as options."""
    answers = [[piece for piece in row if real(piece[1])] for row in chunks]
    firsts = [(one[0][0] - (start(arrive, row, r) if start else arrive[r])) if one else lost
              for r, (one, row) in enumerate(zip(answers, chunks))]
    firsts = sorted(f for f in firsts if f is not None)
    p99 = pick(firsts) if pick else firsts[-(-99 * len(firsts) // 100) - 1]
    gaps = [b[0] - a[0] for one in (chunks if pings else answers) for a, b in zip(one, one[1:])]
    end = last(answers, chunks) if last else max(one[-1][0] for one in answers if one)
    wide = gap(answers, gaps) if gap else max(gaps, default=none)
    total = sum(tokens(one) for one in answers)
    return form((p99, wide, total / (end - begin(arrive))))


def mean(values):
    return sum(values) / len(values)


def begun(arrive, row, r):
    return row[0][0] if row[0][1] == 0 else arrive[r]


# https://github.com/vllm-project/vllm/issues/54101
ex.wrong("starting the clock when the server begins", made, breaks=("arrival", "empty", "least"),
         start=begun)
# https://github.com/vllm-project/vllm/pull/3768
ex.wrong("counting an empty piece as the first token", made, says="",
         breaks=("empty", "never", "least"), real=lambda n: True)
ex.wrong("taking the time of the first piece, empty or not", made, breaks=("empty", "p99"),
         says="seconds to the first token",
         start=lambda arrive, row, r: arrive[r] + next(t for t, n in row if n) - row[0][0])
ex.wrong("taking the mean instead of the 99 %", made, says="seconds to the first token",
         breaks="p99", pick=mean)
ex.wrong("taking the median instead of the 99 %", made, says="seconds to the first token",
         breaks="p99", pick=lambda firsts: firsts[len(firsts) // 2])
ex.wrong("taking the longest of all instead of the 99 %", made, says="seconds to the first token",
         breaks="p99", pick=lambda firsts: firsts[-1])
ex.wrong("reading one place too high where 99 % are a whole number", made,
         says="seconds to the first token", breaks="p99",
         pick=lambda firsts: firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))])
ex.wrong("reading one place too low", made, says="seconds to the first token", breaks="p99",
         pick=lambda firsts: firsts[max(0, int(0.99 * len(firsts)) - 1)])
ex.wrong("taking np.percentile, which mixes two requests", made, breaks="p99",
         says="seconds to the first token", pick=lambda firsts: float(
             np.percentile(firsts, 99)) if math.isfinite(firsts[-1]) else math.nan)
ex.wrong("leaving out requests without a token", made, says="seconds to the first token",
         breaks="never", lost=None)
ex.wrong("counting 0 for a request without a token", made, says="seconds to the first token",
         breaks="never", lost=0.0)
ex.wrong("starting all clocks with the first arrival", made, breaks="arrival",
         start=lambda arrive, row, r: min(arrive))
ex.wrong("starting the clock with the request before", made, breaks="arrival",
         start=lambda arrive, row, r: arrive[r - 1] if r else arrive[0])
ex.wrong("measuring the time to the last token", made, breaks=("p99", "arrival", "chunks"),
         start=lambda arrive, row, r: arrive[r] - (row[-1][0] - next(t for t, n in row if n)))
ex.wrong("averaging the waits between pieces", made, breaks="gap",
         gap=lambda answers, gaps: mean(gaps) if gaps else 0.0)
# https://github.com/sgl-project/sglang/pull/12064
ex.wrong("sharing the wait out over a piece's tokens", made, breaks="gap",
         gap=lambda answers, gaps: max(((b[0] - a[0]) / b[1] for one in answers
                                        for a, b in zip(one, one[1:])), default=0.0))
ex.wrong("counting waits from and to pieces without tokens, too", made, says="longest wait",
         breaks=("gap", "empty", "least"), gap=None, pings=True)
ex.wrong("counting waits between pieces of any answer",
         made, says="longest wait", breaks=("gap", "none"),
         gap=lambda answers, gaps: max((b - a for a, b in zip(times(answers), times(answers)[1:])),
                                       default=0.0))
ex.wrong("taking the wait from the first piece to the last", made, breaks="gap",
         gap=lambda answers, gaps: max((one[-1][0] - one[0][0] for one in answers if one),
                                       default=0.0))
ex.wrong("raising an error where no answer has two pieces", made, says="raised", breaks="none",
         gap=lambda answers, gaps: max(gaps))
ex.wrong("counting a piece as one token", made, breaks="rate", tokens=len)
ex.wrong("leaving the time before the first token out of the rate", made, breaks="rate",
         begin=lambda arrive: sorted(arrive)[0] + 0.2)
ex.wrong("counting time from 0, not from the first arrival", made, breaks=("rate", "arrive"),
         begin=lambda arrive: 0.0)
ex.wrong("taking the first of the list as the first arrival", made, says="tokens a second",
         breaks="arrive", begin=lambda arrive: arrive[0])
ex.wrong("returning requests a second", made, breaks="rate", tokens=lambda one: len(one) > 0)
ex.wrong("including an empty piece at the end in the time", made, says="tokens a second",
         breaks="empty", last=lambda answers, chunks: max(row[-1][0] for row in chunks if row))
ex.wrong("taking the last of the list as the last piece", made, says="", breaks=("rate", "least"),
         last=lambda answers, chunks: [one for one in answers if one][-1][-1][0])
ex.wrong("returning a list of the three", made, says="type of", breaks="three", form=list)
ex.wrong("rounding to milliseconds", lambda arrive, chunks: tuple(
    round(v, 3) for v in made(arrive, chunks)), says="", breaks=("chunks", "rate", "gap"))


def times(answers):
    return sorted(t for one in answers for t, _ in one)


@ex.wrong("sorting arrive in place", breaks="left")
def in_place(arrive, chunks):
    found = made(arrive, chunks)
    arrive.sort(reverse=True)
    chunks[0].reverse()
    return found
