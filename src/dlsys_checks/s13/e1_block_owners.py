"""Exercise 13.1, `Blocks`."""

from __future__ import annotations

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("13.1", "Blocks", seen=("n", "steps"), says="free blocks after")

ex.promise_table("""
numbers | Manage the n blocks of a paged cache, numbered 0 to n - 1. | blocks that do not exist;
          raised
free    | At first all blocks are free. | free blocks of a new object; free blocks after take;
          blocks from take
take    | take(k) returns a list of k different free blocks. | blocks from take; blocks taken twice;
          blocks in use that were taken again; take of enough
reader  | Each block taken now has one reader. | free blocks after give; free blocks after take;
          take of enough
memory  | If fewer than k blocks are free, raise MemoryError and take none. | take of too many;
          after a take of too many
share   | share(table, k) returns a new list of the first k blocks of a table in use. | blocks from
          share
more    | Each block shared now has one more reader. | free blocks after give; blocks in use that
          were taken again; give of a table in use; free blocks after share
give    | give(table) removes one reader from each block of the table. | free blocks after give;
          give of a table in use
last    | A block without readers is free again. | free blocks after give; blocks in use that were
          taken again; take of enough
value   | If a block of the table has no reader, raise ValueError and give none back. | give of a
          table without readers; after a give that is refused
left    | left() returns the number of free blocks. | type of the free blocks; free blocks
tables  | No method changes a table. | tables that changed
joined  | A table can be joined from several lists and can grow later. It contains no block twice,
          and only blocks from 0 to n - 1. | case a table joined from two; a table that grows
own     | Objects do not affect each other. | blocks of a second object
example | Example: with n 3, after a = take(2), b = share(a, 1) and give(a), left() is 2; after
          give(b) it is 3. | case the example
""")


@ex.cases
def cases(g):
    whole = integers(g)
    take, share, give = "take", "share", "give"

    def one(name, n, *steps):
        return name, {"n": n, "steps": [list(step) for step in steps]}

    k, m = whole(4, 6), whole(4, 7)
    long, names = [], []
    for i in range(40):                      # requests come, share a beginning, and go
        if len(names) > 3 or (names and whole(0, 3) == 0):
            long.append((give, names.pop(whole(0, len(names)))))
        elif names and whole(0, 2):
            long += [(share, f"r{i}", names[-1], 1)]
            names.append(f"r{i}")
        else:
            long += [(take, f"r{i}", whole(1, 4))]
            names.append(f"r{i}")
    join = "join"                            # the second table is put behind the first
    return [one("take and give", k + m, (take, "a", k), (give, "a"), (take, "b", k + m)),
            one("two tables", k + m, (take, "a", k), (take, "b", m), (give, "a"), (take, "c", k)),
            one("shared, and the first request leaves first", k + m, (take, "a", k),
                (share, "b", "a", k - 1), (give, "a"), (take, "c", m + 1), (give, "b")),
            one("shared, and the second request leaves first", k + m, (take, "a", k),
                (share, "b", "a", k - 1), (give, "b"), (take, "c", m), (give, "a")),
            one("shared by three", k + 2, (take, "a", k), (share, "b", "a", 1),
                (share, "c", "b", 1), (give, "a"), (give, "b"), (take, "d", 1), (give, "c")),
            one("shared whole, then not at all", k, (take, "a", k), (share, "b", "a", k),
                (share, "c", "a", 0), (give, "c"), (give, "a"), (give, "b")),
            one("served one after the other", 4, *[step for i in range(9) for step in (
                (take, f"a{i}", 3), (share, f"b{i}", f"a{i}", 2), (give, f"a{i}"),
                (give, f"b{i}"))]),
            one("too many blocks requested", k, (take, "a", 1), (take, "b", k), (take, "c", k - 1)),
            one("too many blocks requested from a new object", k, (take, "a", k + 1),
                (take, "b", k)),
            one("no block left", k, (take, "a", k), (take, "b", 1), (take, "c", 0), (give, "a")),
            one("given twice", k + m, (take, "a", k), (take, "b", m), (give, "a"), (give, "a"),
                (take, "c", k)),
            one("given once too often", m, (take, "a", 2), (share, "b", "a", 1), (give, "a"),
                (give, "b"), (give, "b"), (take, "c", m)),
            one("part of the table already free", m, (take, "a", 3), (share, "b", "a", 1),
                (give, "a"), (give, "a"), (give, "b"), (take, "c", m)),
            one("each block of an old table in turn", 4, (take, "z", 1), (take, "a", 3),
                (give, "a"),
                *[(take, name, 1) for name in "bcd"], *[step for name in "bcd" for step in (
                    (give, name), (give, "a"), (take, name, 1))]),
            one("many requests", 16, *long),
            one("free blocks that are not adjacent", 5, *[(take, name, 1) for name in "abcde"],
                (give, "a"), (give, "c"), (give, "e"), (take, "f", 3)),
            one("read by 300 requests", 2, (take, "a", 1),
                *[(share, f"r{i}", "a", 1) for i in range(299)], (give, "a"), (take, "b", 1),
                *[(give, f"r{i}") for i in range(299)], (take, "c", 1)),
            one("a table joined from two", k + m + 2, (take, "a", k), (share, "b", "a", 2),
                (take, "c", 2), (join, "b", "c"), (give, "a"), (share, "d", "b", 3), (give, "b"),
                (give, "d"), (take, "e", k + m)),
            one("a table that grows", k + m, (take, "a", 1), (take, "b", 1), (join, "a", "b"),
                (take, "c", 1), (join, "a", "c"), (give, "a"), (take, "d", k)),
            one("given before anything is taken", k, (give, "a", 2), (take, "b", k)),
            one("a taken block and one that was never taken", 4, (take, "a", 1), (give, "a", 1),
                (take, "b", 1), (give, "a"), (give, "b"), (take, "c", 3)),
            one("one block", 1, (take, "a", 1), (give, "a"), (take, "b", 1)),
            one("no request", k + m), one("nothing taken", k, (take, "a", 0), (give, "a")),
            one("the example", 3, (take, "a", 2), (share, "b", "a", 1), (give, "a"),
                (give, "b"))]


@ex.act
def act(fn, n, steps):
    def copied(found):
        return list(found) if type(found) in (list, tuple) else found

    def tried(step, *more):
        try:
            return step(*more)
        except (MemoryError, ValueError):    # the count of its free blocks tells
            return []

    blocks, other = fn(n), fn(n + 1)
    tables, kept, rows, changed = {}, {}, [], 0
    first, ever = blocks.left(), set()
    for kind, name, *more in steps:
        if kind == "join":
            if name in tables and more[0] in tables:
                tables[name] += tables.pop(more[0])
                kept[name] = list(tables[name])
            rows.append({"found": None, "kind": "NoneType", "same": False, "error": "",
                         "left": blocks.left()})
            continue
        try:
            if kind == "take":
                found = blocks.take(*more)
            elif kind == "share":
                found = blocks.share(tables.get(more[0], []), more[1])
            else:
                found = None
                # So many blocks besides that nobody has ever taken.
                new = [block for block in range(n) if block not in ever][:sum(more)]
                blocks.give(tables.get(name, []) + new)
            error = ""
        except NotImplementedError:
            raise
        except (MemoryError, ValueError, RuntimeError, LookupError) as raised:
            found, error = None, type(raised).__name__
        same = any(found is table for table in tables.values())
        if kind != "give" and type(found) is list:
            tables[name], kept[name] = found, list(found)
            ever |= {*found}
        changed += sum(tables[key] != kept[key] for key in tables)
        rows.append({"found": copied(found), "kind": type(found).__name__, "same": same,
                     "error": error, "left": blocks.left()})
    free, one, two = other.left(), fn(n + 1), fn(n + 1)
    tried(other.give, tried(other.take, 2))
    table = tried(one.take, 2)
    tried(two.give, tried(two.take, 2))
    tried(one.give, table)
    return {"first": first, "rows": rows, "changed": changed, "other": free,
            "alone": other.left(), "beside": one.left()}


@ex.law
def law(out, n, steps):
    expect_parts(out, "first", "rows", "changed", "other", "alone", "beside")
    expect_type("free blocks", out["first"], int)
    expect_equal("free blocks of a new object", out["first"], n)
    expect_length("steps", out["rows"], len(steps))
    readers, tables = {}, {}
    for number, ((kind, name, *more), row) in enumerate(zip(steps, out["rows"]), 1):
        expect_parts(row, "found", "kind", "same", "error", "left", what="step")
        expect_type("name of the error", row["error"], str)
        free = n - len(readers)
        look = f"Step {number}: {kind} for request {name}."
        if kind == "join":
            tables[name] = tables[name] + tables.pop(more[0])
            nothing(row)
            left("free blocks after a table grew", row, n, readers, look)
            continue
        if kind == "take":
            took(row, more[0], free, n, readers, look)
        elif kind == "share":
            shared(row, tables[more[0]][:more[1]], n, readers, look)
        else:
            gave(row, tables.get(name, []) + [None] * sum(more), n, readers, look)
        if kind != "give":
            tables[name] = row["found"] or []
        expect_equal("tables that changed", out["changed"], 0,
                     "Return new lists, and change no table.")
    expect_equal("blocks of a second object that are free", out["other"], n + 1)
    expect_equal("blocks of a second object that are free, used next to the first",
                 out["beside"], out["alone"], "Each object counts its own readers.")


def took(row, k, free, n, readers, look):
    """Judge one take, and count its readers."""
    if k > free:
        wanted_error("take of too many", row, "MemoryError",
                     f"{look} {free} blocks are free, and {k} are wanted.")
        nothing(row)
        left("free blocks after a take of too many", row, n, readers, look)
        return
    no_error("take of enough", row, f"{look} {free} blocks are free, and {k} are wanted.")
    expect_equal("type of the blocks from take", row["kind"], "list")
    expect_length("blocks from take", row["found"], k, look)
    expect_equal("blocks from take are a table in use", row["same"], False, "Return a new list.")
    for block in row["found"]:
        if type(block) is not int or not 0 <= block < n:
            raise Broken("blocks that do not exist", block, f"0 to {n - 1}", look)
    for block in row["found"]:
        if row["found"].count(block) > 1:
            raise Broken("blocks taken twice in one table", block, "different ones", look)
        if block in readers:
            raise Broken("blocks in use that were taken again", block, "a free one", look)
    readers.update(dict.fromkeys(row["found"], 1))
    left("free blocks after take", row, n, readers, look)


def shared(row, wanted, n, readers, look):
    """Judge one share, and count its readers."""
    no_error("blocks from share", row, look)
    expect_equal("type of the blocks from share", row["kind"], "list")
    expect_equal("blocks from share", row["found"], wanted, look)
    expect_equal("blocks from share are the table itself", row["same"], False, "Return a new list.")
    for block in wanted:
        readers[block] += 1
    left("free blocks after share", row, n, readers, look)


def gave(row, table, n, readers, look):
    """Judge one give, and count what is left of its readers."""
    nothing(row)
    if any(block not in readers for block in table):
        wanted_error("give of a table without readers", row, "ValueError", look)
        left("free blocks after a give that is refused", row, n, readers, look)
        return
    no_error("give of a table in use", row, look)
    for block in table:
        readers[block] -= 1
        if not readers[block]:
            del readers[block]
    left("free blocks after give", row, n, readers, look)


def nothing(row):
    """Judge that a step is reported without blocks."""
    expect_equal("result of a step that returns nothing", (row["found"], row["kind"], row["same"]),
                 (None, "NoneType", False))


def no_error(what, row, look):
    """Raise Broken for a step that raised an error."""
    if row["error"]:
        raise Broken(what, row["error"], "no error", look)


def wanted_error(what, row, name, look):
    """Raise Broken unless the step raised that error."""
    if row["error"] != name:
        raise Broken(what, row["error"] or "no error", name, look)


def left(what, row, n, readers, look):
    """Judge what left() says."""
    expect_equal(what, row["left"], n - len(readers), look)


# ---- wrong, by name

SHARED, COUNTS = {}, {}


@not_an_answer
def pool(n):
    class Pool:
        def __init__(self):
            self.readers, self.free = {}, list(range(n))

        def take(self, k):
            if k > len(self.free):
                raise MemoryError
            found = [self.free.pop(0) for _ in range(k)]
            self.readers.update(dict.fromkeys(found, 1))
            return found

        def share(self, table, k):
            mine = table[:k]
            for block in mine:
                self.readers[block] += 1
            return mine

        def give(self, table):
            if not all(self.readers.get(block) for block in table):
                raise ValueError
            for block in table:
                self.readers[block] -= 1
                if self.readers[block] == 0:
                    self.free.append(block)

        def left(self):
            return len(self.free)
    return Pool()


wrong = ex.edits(pool)
START, FREE, FOUND = "self.readers, self.free =", "list(range(n))", "found = ["
UPDATE, SHARES, LEFT = "self.readers.update(", "return mine", "return len(self.free)"
KNOWN, EACH, FEWER = "not all(self.readers.get(block)", "for block in table:", "[block] -= 1"
UNKNOWN = "not all(self.readers.get(block) for block in table)", "False"
BELOW = "self.readers[block] -= 1", "self.readers[block] = self.readers.get(block, 0) - 1"
wrong("freeing a block when the first reader gives it back", ("last", "more"), FEWER, "[block] = 0")
wrong("adding two readers instead of one to each shared block", "more", "+= 1", "+= 2")
wrong("never freeing a block that was once shared", "last",
      START, f"self.shared = set(); {START}", SHARES, f"self.shared.update(mine); {SHARES}",
      "[block] == 0", "[block] == 0 and block not in self.shared")
wrong("not counting the new reader of a shared block", ("more", "last", "give"), "+= 1", "+= 0")
wrong("handing out only blocks with consecutive numbers", ("take", "memory"),
      "[self.free.pop(0) for _ in range(k)]",
      "next((row for row in (sorted(self.free)[i:i + k] for i in range(n)) if len(row) == k and "
      "(not k or row[-1] - row[0] == k - 1)), None)\n            if found is None: raise "
      "MemoryError\n            self.free = [block for block in self.free if block not in found]",
      says="take of enough")
wrong("storing the reader counts in 8 bits", ("more", "last"),
      "[block] += 1", "[block] = (self.readers[block] + 1) % 256", says="")
wrong("keeping the reader counts of all objects in one dict", "own",
      "{}, list", "COUNTS, list", says="blocks of a second object")
# https://github.com/Wenyueh/MinivLLM/pull/87
wrong("starting a newly taken block with no reader", ("reader", "give", "last", "value"),
      "found, 1", "found, 0", *UNKNOWN, *BELOW, says="")
wrong("starting a newly taken block with two readers", "reader", "found, 1", "found, 2")
# https://github.com/jjang-ai/vmlx/pull/68
wrong("removing no readers in give()", ("give", "last"), EACH, "for block in []:")
# https://github.com/LMCache/LMCache/issues/5005
wrong("putting a block on the free list twice if it is given back twice", "value",
      *UNKNOWN, *BELOW, "== 0", "<= 0", says="give of a table without readers")
wrong("silently ignoring a table that is given back a second time", "value", *UNKNOWN, *BELOW)
wrong("raising KeyError for a block that was never taken", "value", ".get(block)", "[block]")
wrong("silently ignoring a block that was never taken", "value",
      ".get(block)", ".get(block, 1)", EACH, "for block in filter(self.readers.get, table):")
wrong("freeing some of a table's blocks before raising the error", "value",
      *UNKNOWN, EACH, f"{EACH}\n                if not self.readers.get(block): raise ValueError")
wrong("refusing tables other than those that take() and share() returned", "joined",
      START, f"self.tables = []; {START}", UPDATE, f"self.tables.append([*found]); {UPDATE}",
      SHARES, f"self.tables.append([*mine]); {SHARES}",
      KNOWN, f"table not in self.tables or {KNOWN}",
      says="give of a table in use")
wrong("giving back only the last block of a table", "give", EACH, "for block in table[-1:]:")
wrong("giving back only the first block of a table", "give", EACH, "for block in table[:1]:")
wrong("freeing a table only when nobody reads any of its blocks", ("last", "memory"),
      "self.readers[block] == 0", "not any(self.readers[b] for b in table)",
      "self.free.append(block)", "self.free += [b for b in table if b not in self.free]", says="")
wrong("handing out fewer blocks if too many are requested", "memory",
      "k > len(self.free)", "False", "range(k)", "range(min(k, len(self.free)))")
wrong("handing out a block that is in use", "take",
      "[self.free.pop(0) for _ in range(k)]",
      "[*(b for b, r in self.readers.items() if r > 0), *[self.free.pop(0) for _ in range(k)]][:k]")
wrong("handing out one block k times", "take", "return found", "return found[:1] * k")
wrong("numbering blocks from 1", "numbers",
      FREE, "list(range(1, n + 1))", says="blocks that do not exist")
wrong("sharing the whole table, whatever k is", ("share", "tables"),
      SHARES, "return table", says="blocks from share")
wrong("sharing the last k blocks", "share",
      "mine = table[:k]", "mine = table[len(table) - k:]")
wrong("taking new blocks in share() instead of sharing old ones",
      ("share", "more"), SHARES, "return self.take(k)", "+= 1", "+= 0",
      says="")
wrong("returning the table itself from share()", "share",
      SHARES, "return table if k == len(table) else mine")
wrong("shortening the caller's table in share()", "tables", SHARES, f"del table[k:]; {SHARES}")
wrong("returning a tuple instead of a list", ("take", "share"),
      "return found", "return tuple(found)", SHARES, "return tuple(mine)",
      says="type of the blocks")
wrong("returning the number of blocks in use from left(), not of free blocks", ("left", "free"),
      LEFT, "return sum(r > 0 for r in self.readers.values())", says="free blocks of a new object")
wrong("returning a list from left()",
      "left", LEFT, "return list(self.free)", says="type of the free blocks")
wrong("sharing one list of free blocks between all objects", ("own", "free"),
      "{}, list(range(n))", 'SHARED.setdefault("it", ({}, list(range(n))))',
      says="free blocks of a new object")
