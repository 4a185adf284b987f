"""Exercise 13.9, `first_token`."""

from __future__ import annotations

import math

import torch

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("13.9", "first_token", seen=("arrive", "chunks"), says="seconds to the first token")

ex.promise_table("""
three   | Compute (p99, gap, rate) for a server's run, as floats, with times in seconds. | type of;
          parts of the result
arrive  | arrive: the times at which the requests were due, one or more, in any order. | case
          arrivals in any order; one request; arrivals long after 0
chunks  | chunks: the pieces of each request, (time, tokens), in order of time. | seconds to the
          first token; longest wait; tokens per second
empty   | A piece with 0 tokens shows only that the server is alive, and is not part of the answer.
          | case pieces without tokens; an empty piece at the end; an empty piece in a gap; the
          example; nothing but empty pieces
p99     | p99: the smallest time within which at least 99 % of the requests have their first token.
          | seconds to the first token
arrival | Each time is measured from when the request was due. | seconds to the first token
never   | A request that never gets a token counts as math.inf. | case one request in five gets
          nothing; one request in two hundred gets nothing; three requests in two hundred get
          nothing; nothing but empty pieces
gap     | gap: the longest wait between two consecutive pieces of one answer. | longest wait
none    | gap is 0.0 if no answer has two pieces. | case one piece each | longest wait; raised; type
          of
rate    | rate: the number of tokens in all answers, divided by the seconds from the first arrival
          to the last piece of an answer. | tokens per second
least   | At least one request gets a token. | case nothing but empty pieces; one request
left    | Inputs are not changed. | inputs after the call
example | Example: arrive [0.], chunks [[(1., 0), (2., 3), (2.5, 1)]] give (2.0, 0.5, 1.6). | case
          the example
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
            one("one request in five gets nothing", 5, nothing=(2,)),
            one("one request in two hundred gets nothing", 200, nothing=(7,)),
            one("three requests in two hundred get nothing", 200, nothing=(7, 70, 170)),
            one("nothing but empty pieces", 4, empty=True, nothing=(0, 1, 3)),
            ("the example", {"arrive": [0.0], "chunks": [[(1.0, 0), (2.0, 3), (2.5, 1)]]})]


@ex.act
def act(fn, arrive, chunks):
    found = fn(arrive, chunks)
    if type(found) in (tuple, list):
        # Infinity as a text: nothing is 2 % off it. A float64 of numpy is a float.
        found = type(found)(str(v) if v == math.inf else float(v) if isinstance(v, float) else v
                            for v in found)
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
    look = (f"There are {len(waits)} requests, {waits.count(math.inf)} without a token; the "
            f"longest waits are {', '.join(f'{w:.4g}' for w in sorted(waits)[-3:])}.")
    if most == math.inf:
        if p99 != "inf":
            raise Broken("seconds to the first token, 99 %", p99, math.inf, look)
    else:
        if p99 == "inf":
            raise Broken("seconds to the first token, 99 %", math.inf, most, look)
        expect_close("seconds to the first token, 99 %", p99, most, rtol=1e-9, look=look)
    expect_close("longest wait between two pieces", gap, longest, rtol=1e-9, atol=1e-9)
    expect_close("tokens per second", rate, tokens / (last - min(arrive)), rtol=1e-9,
                 look=f"The answers have {tokens} tokens, in {last - min(arrive):.4g} s.")


# ---- wrong, by name

@not_an_answer
def made(arrive, chunks):
    answers = [[(t, n) for t, n in row if n > 0] for row in chunks]
    firsts = [one[0][0] - due if one else math.inf for one, due in zip(answers, arrive)]
    p99 = sorted(firsts)[-(-99 * len(firsts) // 100) - 1]
    gaps = [b[0] - a[0] for one in answers for a, b in zip(one, one[1:])]
    gap = max(gaps, default=0.0)
    total = sum(n for one in answers for _, n in one)
    end = max(one[-1][0] for one in answers if one)
    rate = total / (end - min(arrive))
    return p99, gap, rate


def begun(row, due):
    return row[0][0] if row and row[0][1] == 0 else due


wrong = ex.edits(made)
PAIRS, FIRST = "zip(answers, arrive)", "one[0][0] - due"
P99, SECONDS = "sorted(firsts)[-(-99 * len(firsts) // 100) - 1]", "seconds to the first token"
GAPS, GAP = "b[0] - a[0] for one in answers for a, b in zip(one, one[1:])", "max(gaps, default=0.0)"
TOTAL = "sum(n for one in answers for _, n in one)"
LAST = "max(one[-1][0] for one in answers if one)"
# https://github.com/vllm-project/vllm/issues/54101
wrong("starting the clock when the server begins to work on the request",
      ("arrival", "empty", "least"),
      PAIRS, "zip(answers, map(begun, chunks, arrive))")
# https://github.com/vllm-project/vllm/pull/3768
wrong("counting an empty piece as the first token", ("empty", "never", "least"),
      " if n > 0", "", says="")
wrong("taking the time of the first piece, empty or not", ("empty", "p99"),
      FIRST, "row[0][0] - due", f"one, due in {PAIRS}",
      "one, row, due in zip(answers, chunks, arrive)", says=SECONDS)
wrong("taking the mean instead of p99", "p99", P99, "sum(firsts) / len(firsts)", says=SECONDS)
wrong("taking the median instead of p99", "p99",
      P99, "sorted(firsts)[len(firsts) // 2]", says=SECONDS)
wrong("taking the longest time instead of p99", "p99", P99, "max(firsts)", says=SECONDS)
wrong("taking a position one too high if 0.99 * n is a whole number", "p99",
      P99, "sorted(firsts)[min(len(firsts) - 1, int(0.99 * len(firsts)))]", says=SECONDS)
wrong("taking a position one too low in the sorted times", "p99",
      P99, "sorted(firsts)[max(0, int(0.99 * len(firsts)) - 1)]", says=SECONDS)
wrong("using np.percentile, which interpolates between two requests", "p99", P99,
      "float(np.percentile(firsts, 99)) if math.isfinite(max(firsts)) else math.nan",
      "p99 =", "import numpy as np; p99 =", says=SECONDS)
wrong("leaving out requests without a token", "never",
      " if one else math.inf", "", PAIRS, f"{PAIRS} if one", says=SECONDS)
wrong("counting a request without a token as 0 seconds", "never", "math.inf", "0.0", says=SECONDS)
wrong("starting all clocks at the first arrival", "arrival", FIRST, "one[0][0] - min(arrive)")
wrong("starting each clock at the previous request's arrival", "arrival",
      PAIRS, "zip(answers, [arrive[0], *arrive])")
wrong("measuring the time to the last token", ("p99", "arrival", "chunks"),
      FIRST, "one[-1][0] - due")
wrong("averaging the waits between pieces", "gap",
      GAP, "sum(gaps) / len(gaps) if gaps else 0.0")
# https://github.com/sgl-project/sglang/pull/12064
wrong("dividing each wait by the number of tokens in the piece",
      "gap", "b[0] - a[0]", "(b[0] - a[0]) / b[1]")
wrong("also counting waits before and after empty pieces", ("gap", "empty", "least"),
      "in answers for a", "in chunks for a", says="longest wait")
wrong("counting waits between pieces of different answers", ("gap", "none"),
      "gaps =", "times = sorted(t for one in answers for t, _ in one); gaps =",
      GAPS, "b - a for a, b in zip(times, times[1:])", says="longest wait")
wrong("measuring from the first piece to the last, not between neighbours", "gap",
      GAPS, "one[-1][0] - one[0][0] for one in answers if one")
wrong("raising an error where no answer has two pieces", "none", GAP, "max(gaps)", says="raised")
wrong("counting a piece as one token", "rate", TOTAL, "sum(map(len, answers))")
wrong("leaving out the first 0.2 s of the time for the rate", "rate",
      "min(arrive)", "min(arrive) - 0.2")
wrong("measuring the time for the rate from 0, not from the first arrival", ("rate", "arrive"),
      "(end - min(arrive))", "end")
wrong("taking the first request in the list as the first arrival", "arrive",
      "min(arrive)", "arrive[0]", says="tokens per second")
wrong("returning requests per second", "rate", TOTAL, "sum(map(bool, answers))")
wrong("letting a final empty piece lengthen the time for the rate", "empty",
      LAST, "max(row[-1][0] for row in chunks if row)", says="tokens per second")
wrong("ending the time for the rate with the last answer in the list", ("rate", "least"),
      LAST, "[one for one in answers if one][-1][-1][0]", says="")
wrong("returning a list instead of a tuple", "three", "p99, gap, rate", "[p99, gap, rate]",
      says="type of")
wrong("rounding to milliseconds", ("chunks", "rate", "gap"),
      "p99, gap, rate", "tuple(round(v, 3) for v in (p99, gap, rate))", says="")
wrong("sorting the arrival times in place", "left",
      "return", "arrive.sort(reverse=True); chunks[0].reverse(); return")
