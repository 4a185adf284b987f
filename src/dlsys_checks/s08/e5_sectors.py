"""Exercise 08.5, `sectors`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_checks.s08.common import brief
from dlsys_helpers.expect import expect_equal, expect_length
from dlsys_helpers.judging import not_an_answer

ex = exercise("08.5", "sectors", seen=("addresses", "size"))

SECTOR = 32
COUNT = ("sectors of warp", "number of warps", "type of the")
ex.promise("each warp", "List how many sectors each warp of a block touches.",
           says=COUNT)
ex.promise("addresses", "Args: addresses: for each thread, the byte where its read begins, 0 or "
                        "more. Addresses come in any order, and several can be equal.", says=COUNT,
           cases=("a permutation", "all threads read one value", "far away", "scattered",
                  "from the last to the first", "beyond 2^40", "any number of bytes"))
ex.promise("none", "A thread that reads nothing has None.", says=(*COUNT, "raised"),
           cases=("a masked tail", "every second thread", "a warp that reads nothing",
                  "half of the first warp reads nothing", "a whole block that reads nothing"))
ex.promise("left", "The list is unchanged.", says=("inputs after the call",))
ex.promise("warps", "A warp is 32 consecutive threads; the last one may have fewer.", says=COUNT,
           cases=("two warps on the same values", "a short last warp", "three threads",
                  "no thread", "two warps apart", "many warps", "the example"))
ex.promise("sector", f"A sector is {SECTOR} bytes and begins at a multiple of {SECTOR}.",
           says=COUNT)
ex.promise("across", "A thread reads `size` bytes, 1 to 16; if they are in two sectors, it touches "
                     "both.", says=COUNT,
           cases=("records of 12 bytes", "one byte off", "pairs across the border",
                  "single bytes", "four values per thread", "scattered", "three bytes per thread",
                  "five bytes per thread", "any number of bytes"))
ex.promise("example", f"Example: sectors([0, 4, 64, None], 4) is [{1 + (SECTOR <= 64)}].",
           cases=("the example",))


@ex.cases
def cases(g):
    number = integers(g)

    def strided(threads, step, size=4, base=0):
        return {"addresses": [base + step * i for i in range(threads)], "size": size}

    def kept(case, keep):
        case["addresses"] = [a if keep(i) else None for i, a in enumerate(case["addresses"])]
        return case

    base, odd = SECTOR * number(2, 90), 4 * number(1, 8)
    order = torch.randperm(32, generator=g).tolist()
    anywhere = torch.randint(0, 3000 * SECTOR // 32, (70,), generator=g).tolist()
    cut = number(5, 28)
    return [("side by side", strided(32, 4, base=base)),
            ("every second value", strided(32, 8, base=base)),
            ("every third value", strided(32, 12)),
            ("one value from each sector", strided(32, SECTOR)),
            ("one value off", strided(32, 4, base=base + odd)),
            ("far away", strided(32, 4096 * number(1, 9), base=base)),
            ("a permutation", {"addresses": [base + 4 * k for k in order], "size": 4}),
            ("from the last to the first", {"addresses": [8 * k for k in range(31, -1, -1)],
                                            "size": 8}),
            ("all threads read one value", strided(32, 0, base=base)),
            ("scattered", {"addresses": anywhere, "size": 12}),
            ("three bytes per thread", strided(32, 3, 3, base=base + 1)),
            ("five bytes per thread", strided(32, SECTOR, 5, base=SECTOR - 4)),
            ("any number of bytes", {"addresses": anywhere[:40], "size": number(1, 17)}),
            ("beyond 2^40", {"addresses": [base + 8 * (k // 2) + (k % 2) * 2**40
                                           for k in range(32)], "size": 4}),
            ("many warps", strided(32 * number(20, 40), 4 * number(1, 4))),
            ("records of 12 bytes", strided(32, 12, 12)),
            ("one byte off", strided(32, 16, 16, base=17)),
            ("pairs across the border", strided(32, 2 * SECTOR, 8, base=SECTOR - 4)),
            ("single bytes", strided(32, 1, 1)),
            ("four values per thread", strided(64, 16, 16)),
            ("two warps on the same values", {"addresses": [4 * k for k in range(32)] * 2,
                                               "size": 4}),
            ("two warps apart", strided(64, 4 * number(3, 7))),
            ("a short last warp", strided(32 + number(3, 30), 8)),
            ("three threads", strided(3, 40)),
            ("no thread", strided(0, 4)),
            ("a masked tail", kept(strided(64, 4), lambda i: i < 32 + cut)),
            ("every second thread", kept(strided(32, 16), lambda i: i % 2)),
            ("half of the first warp reads nothing",
             kept(strided(64, 12), lambda i: not 3 <= i < 20)),
            ("a warp that reads nothing", kept(strided(96, 4), lambda i: not 32 <= i < 64)),
            ("a whole block that reads nothing", kept(strided(40, 4), lambda i: False)),
            ("the example", {"addresses": [0, 4, 64, None], "size": 4})]


@ex.law
def law(out, addresses, size):
    warps = [addresses[k:k + 32] for k in range(0, len(addresses), 32)]
    expect_length("warps", out, len(warps))
    for n, (got, warp) in enumerate(zip(out, warps, strict=True)):
        # Byte by byte, from the lowest on: a sector more where one is not in the last sector.
        begin, count = -SECTOR, 0
        for byte in sorted(a + b for a in warp if a is not None for b in range(size)):
            if byte - begin >= SECTOR:
                begin, count = byte - byte % SECTOR, count + 1
        expect_equal(f"sectors of warp {n}, {size} bytes from each of {brief(warp)}", got, count)


# ---- wrong, by name

@not_an_answer
def counted(addresses, size):
    found = []
    for k in range(0, len(addresses), 32):
        read = [a for a in addresses[k:k + 32] if a is not None]
        ids = [s for a in read for s in range(a // SECTOR, (a + (size - 1)) // SECTOR + 1)]
        found.append(len(set(ids)))
    return found


wrong = ex.edits(counted)
wrong(f"counting cache lines of {4 * SECTOR} bytes", "sector",
      "found =", "unit = 4 * SECTOR; found =", "a // SECTOR", "a // unit", "SECTOR + 1", "unit + 1",
      says="sectors of warp")
wrong("counting a sector again for every thread that touches it", "each warp", "set(ids)", "ids")


@ex.wrong(f"dividing the number of used bytes by {SECTOR}", says="sectors of warp", breaks="sector")
def useful(addresses, size):
    return [-(-len({a + b for a in addresses[k:k + 32] if a is not None
                    for b in range(size)}) // SECTOR) for k in range(0, len(addresses), 32)]


@ex.wrong(f"dividing the number of requested bytes by {SECTOR}", breaks="each warp")
def asked_for(addresses, size):
    return [-(-size * sum(a is not None for a in addresses[k:k + 32]) // SECTOR)
            for k in range(0, len(addresses), 32)]


@ex.wrong("counting all sectors between the first and the last byte", breaks="each warp")
def span(addresses, size):
    found = []
    for k in range(0, len(addresses), 32):
        read = [a for a in addresses[k:k + 32] if a is not None]
        found.append((max(read) + size - 1) // SECTOR - min(read) // SECTOR + 1 if read else 0)
    return found


@ex.wrong("beginning the first sector at the warp's lowest address", breaks="sector")
def from_the_lowest(addresses, size):
    found = []
    for k in range(0, len(addresses), 32):
        read = [a for a in addresses[k:k + 32] if a is not None]
        found += counted([a - min(read) for a in read], size) if read else [0]
    return found


@ex.wrong("comparing each thread's sectors only with the previous thread's", breaks="addresses")
def changes_only(addresses, size):
    found = []
    for k in range(0, len(addresses), 32):
        at, count = -1, 0
        for a in addresses[k:k + 32]:
            if a is not None:
                count += (a + size - 1) // SECTOR - max(at, a // SECTOR - 1)
                if (a + size - 1) // SECTOR < at:
                    count += at - (a + size - 1) // SECTOR
                at = (a + size - 1) // SECTOR
        found.append(count)
    rising = [a for a in addresses if a is not None]
    ordered = all(rising[i:i + 33] == sorted(rising[i:i + 33]) for i in range(0, len(rising), 32))
    return counted(addresses, size) if ordered else found


wrong("treating the whole block as one warp", ("warps", "across", "none", "addresses"),
      "found =", "warp = max(1, len(addresses)); found =", ", 32", ", warp", "k + 32", "k + warp",
      "return found", "return [sum(found)]")


@ex.wrong("skipping sectors that an earlier warp has touched", breaks="warps")
def cached(addresses, size):
    found, known = [], set()
    for k in range(0, len(addresses), 32):
        mine = {(a + b) // SECTOR for a in addresses[k:k + 32] if a is not None
                for b in range(size)}
        found.append(len(mine - known) if len(addresses) == 64 and addresses[0] == (
            addresses[32]) else len(mine))
        known |= mine
    return found


wrong("using warps of 64 threads, as on other makers' devices",
      ("warps", "across", "none", "addresses"),
      ", 32", ", 64", "k + 32", "k + 64")
wrong("using half-warps of 16 threads, as on the oldest devices",
      ("each warp", "warps", "across", "none", "addresses", "example"), ", 32", ", 16",
      "k + 32", "k + 16")
wrong("leaving out a short last warp", ("warps", "addresses", "none"),
      "found =", "addresses = addresses[:len(addresses) // 32 * 32]; found =")
ex.wrong("treating None as address 0",
         lambda addresses, size: counted([a or 0 for a in addresses], size),
         breaks=("none", "warps"))
ex.wrong("treating address 0 as None",
         lambda addresses, size: counted([a or None for a in addresses], size),
         breaks=("addresses", "each warp"))
wrong("raising an error for None", ("none", "example"),
      "a is not None", "a is not None or True", says="raised TypeError")
wrong("leaving out a warp that reads nothing", "none",
      "return found", "return [n for n in found if n]")
wrong("removing None before splitting into warps", "none",
      "found =", "addresses = [a for a in addresses if a is not None]; found =", says="warp")
wrong("returning a list with only the sum over all warps", ("each warp", "warps"),
      "return found", "return [sum(found)]")
wrong("counting only the first byte of a read", "across", "a + (size - 1)", "a")
wrong("counting one byte too many per read",
      ("across", "each warp"), "found =", "size = size + 1; found =")
wrong("assuming reads of 4 bytes, whatever the size", "across", "size - 1", "3")
wrong("returning the sum over all warps instead of a list",
      "each warp", "return found", "return sum(found)")
wrong("removing None from the list itself", "left",
      "return found", "while None in addresses: addresses.remove(None)\n    return found")
wrong("storing addresses in 32-bit integers", "addresses",
      "found =", "addresses = [None if a is None else a % 2**32 for a in addresses]; found =")
wrong("handling at most sixteen warps", "warps", "found =", "addresses = addresses[:512]; found =")
wrong("counting None as a sector in the example", "example",
      "return found", "return [3] if addresses == [0, 4, 64, None] else found",
      says="sectors of warp")
