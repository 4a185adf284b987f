"""Exercise 08.6, `conflict_degree`."""

from __future__ import annotations

import math
from collections import Counter

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_checks.s08.common import brief
from dlsys_helpers.expect import expect_equal
from dlsys_helpers.judging import not_an_answer

ex = exercise("08.6", "conflict_degree", seen=("addresses",))

TURNS = ("turns", "type of the")
ex.promise("turns", "Count the turns that shared memory needs for one read by a warp.", says=TURNS)
ex.promise("addresses", "Args: addresses: for each of at most 32 threads, the byte that it reads, "
                        "0 or more.", says=TURNS)
ex.promise("none", "A thread that reads nothing has None.", says=(*TURNS, "raised"),
           cases=("half a column", "every second thread", "no thread reads", "no thread",
                  "the example"))
ex.promise("banks", "A word is 4 bytes and begins at a multiple of 4, and word w is in bank w % "
                    "32.",
           says=TURNS)
ex.promise("one word", "In a turn, each bank returns one word, to all threads that read any of "
                       "the word's bytes.", says=TURNS,
           cases=("all threads read one word", "most threads on one word", "single bytes",
                  "pairs share a word", "two words in one bank, many threads", "half words",
                  "the example"))
ex.promise("idle", "If no thread reads, there is no turn.", says=TURNS,
           cases=("no thread reads", "no thread"))
ex.promise("left", "The list is unchanged.", says=("inputs after the call",))
ex.promise("example", "Example: conflict_degree([0, 128, 2, None]) is 2.", cases=("the example",))


@ex.cases
def cases(g):
    number = integers(g)

    def words(step, threads=32, base=0):
        return [4 * (base + step * i) for i in range(threads)]

    base, odd = number(1, 60), 2 * number(1, 15) + 1
    order = torch.randperm(32, generator=g).tolist()
    anywhere = torch.randint(0, 8000, (32,), generator=g).tolist()
    readers = torch.randint(0, 2, (32,), generator=g).tolist()
    readers[:2] = [0, 1]

    def crowded(turns):
        """So many words of one bank, in any order between words of the banks behind it."""
        bank, others = number(0, 8), torch.randperm(20, generator=g)[:32 - turns]
        reads = [4 * (bank + 32 * k) for k in range(turns)]
        reads += [4 * (bank + 1 + int(k)) for k in others]
        return [reads[k] for k in torch.randperm(len(reads), generator=g).tolist()]

    cases = {
        "a row": words(1), "a row from another word": words(1, base=base),
        "every second word": words(2), "every third word": words(3),
        "every fourth word": words(4, base=base), "an odd step": words(odd),
        "a column of 32": words(32), "a column of 33": words(33),
        "a column of 40": words(40), "a column of 64": words(64),
        "a permutation": [4 * k for k in order],
        "all threads read one word": [4 * base] * 32, "single bytes": [*range(32)],
        "half words": [2 * k for k in range(32)],
        "pairs share a word": [4 * 16 * (k // 2) for k in range(32)],
        "two words in one bank, many threads": [4 * (base + 32 * k) for k in readers],
        "a crowded bank": crowded(number(12, 29)), "another crowded bank": crowded(number(12, 29)),
        "anywhere": anywhere, "far away": [4 * base + 2**k for k in (7, 16, 20, 31, 32, 40)],
        "most threads on one word": [4 * base] * 20 + [4 * base + 4 + 128 * (k % 3)
                                                       for k in range(9)],
        "half a column": [a if i < 16 else None for i, a in enumerate(words(32))],
        "every second thread": [a if i % 2 else None for i, a in enumerate(words(16))],
        "no thread reads": [None] * 32, "no thread": [], "three threads": words(32, 3),
        "one thread": [4 * base], "the example": [0, 128, 2, None]}
    return [(name, {"addresses": addresses}) for name, addresses in cases.items()]


@ex.law
def law(out, addresses):
    # A table of rows of 128 bytes; a bank takes a turn for each of its words that is wanted.
    rows = sorted({a // 128 for a in addresses if a is not None})
    table = torch.zeros(len(rows) + 1, 32)
    for a in addresses:
        if a is not None:
            table[rows.index(a // 128), a % 128 // 4] = 1
    expect_equal(f"turns for bytes {brief(addresses)}", out, int(table.sum(0).max()))


# ---- wrong, by name

@not_an_answer
def turns(addresses):
    words = [a // 4 for a in addresses if a is not None]
    words = set(words)
    out = max(Counter(w % 32 for w in words).values(), default=0)
    return out


wrong = ex.edits(turns)
wrong("counting threads per bank, even those that read the same word", "one word",
      "set(words)", "words")
wrong("counting bytes instead of words", ("banks", "turns"), "4 for", "1 for")
wrong("using words of 8 bytes", "banks", "4 for", "8 for")
wrong("using 16 banks", "banks", "w % 32", "w % 16")
wrong("using 33 banks", "banks", "w % 32", "w % 33")
ex.wrong("running half-warps one after the other, as on the oldest devices",
         lambda addresses: sum(turns(addresses[k:k + 16]) for k in (0, 16)), breaks="turns")


@ex.wrong("applying the step between the first two threads to the whole warp",
          breaks="turns")
def by_step(addresses):
    read = [a // 4 for a in addresses if a is not None]
    return math.gcd(read[1] - read[0], 32) if len(read) > 1 else len(read)


ex.wrong("putting 32 consecutive words into one bank",
         lambda addresses: max(Counter(w // 32 for w in {a // 4 for a in addresses if a is not
             None}).values(), default=0), breaks="banks")
wrong("counting only extra turns, without the first turn",
      "turns", "return out", "return max(0, out - 1)")
ex.wrong("counting the banks in use",
         lambda addresses: len({a // 4 % 32 for a in addresses if a is not None}), breaks="turns")
ex.wrong("dividing the number of words by 32, rounded up",
         lambda addresses: -(-len({a // 4 for a in addresses if a is not None}) // 32),
         breaks="turns")
ex.wrong("counting one turn for every word",
         lambda addresses: len({a // 4 for a in addresses if a is not None}), breaks="turns")
wrong("returning only 1 without a conflict and 2 with one", "turns", "return out",
      "return min(2, out)")
wrong("wrapping addresses around at 4 KiB", "addresses",
      "in addresses", "in [None if a is None else a % 4096 for a in addresses]")


@ex.wrong("looking only at the bank that most threads read", breaks="one word")
def busiest(addresses):
    read = [a // 4 for a in addresses if a is not None]
    if not read:
        return 0
    [(bank, _)] = Counter(w % 32 for w in read).most_common(1)
    return len({w for w in read if w % 32 == bank})


@ex.wrong("counting two bytes of one word as a conflict", breaks="one word")
def bytes_conflict(addresses):
    return max(Counter(a // 4 % 32 for a in {*addresses} if a is not None).values(), default=0)


wrong("adding a turn for threads that read nothing", "none",
      "return out", "return out + (None in addresses)")
ex.wrong("treating None as byte 0", lambda addresses: turns([a or 0 for a in addresses]),
         breaks=("none", "idle"))
ex.wrong("treating byte 0 as None", lambda addresses: turns([a or None for a in addresses]),
         breaks="turns")


@ex.wrong("raising an error for None", says="raised TypeError", breaks="none")
def no_none(addresses):
    banks = {}
    for a in addresses:
        banks.setdefault(a // 4 % 32, set()).add(a // 4)
    return max(map(len, banks.values()), default=0)


wrong("counting one turn when no thread reads", "idle", "0", "1")
wrong("returning None for no threads", "idle", "return out", "return out if addresses else None")
wrong("removing None from the list itself", "left",
      "return out", "addresses[:] = [a for a in addresses if a is not None]; return out")
wrong("storing addresses in 32-bit integers", "addresses",
      "in addresses", "in [None if a is None else a % 2**32 for a in addresses]")
