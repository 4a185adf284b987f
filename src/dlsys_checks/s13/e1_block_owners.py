"""Exercise 13.1, `Blocks`."""

from __future__ import annotations

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("13.1", "Blocks", seen=("n", "steps"), says="free blocks after")

ex.promise_table("""
numbers | The n blocks of a paged cache, numbered 0 to n - 1; | blocks that do not exist; raised
free    | at first all free. | free blocks of a new object; free blocks after take; blocks from take
take    | take(k): a list of k blocks that are free, different ones, | blocks from take; blocks
          taken twice; blocks that somebody reads; take of enough
reader  | each of which has one reader now. | free blocks after give; free blocks after take; take
          of enough
memory  | MemoryError where fewer are free; then none is taken. | take of too many; after a take of
          too many
share   | share(table, k): a new list of the first k blocks of a table in use, | blocks from share
more    | each of which has one reader more now. | free blocks after give; blocks that somebody
          reads; give of a table in use; free blocks after share
give    | give(table): each block of the table has one reader fewer now, | free blocks after give;
          give of a table in use
last    | and is free again when that was the last one. | free blocks after give; blocks that
          somebody reads; take of enough
value   | ValueError where a block of it has no reader; then none is given back. | give of a table
          without readers; after a give that is refused
left    | left(): how many blocks are free. | type of the free blocks; free blocks
tables  | No table is changed. | tables that changed
joined  | A table may be joined from several lists, or have grown since; it holds no block twice,
          and none but 0 to n - 1. | case a table joined from two; a table that grows
own     | What happens to one object changes no other. | blocks of a second object
example | Example: n 3, a = take(2), b = share(a, 1), give(a): left() is 2, and after give(b) it is
          3. | case the example
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
            one("shared, the first goes first", k + m, (take, "a", k), (share, "b", "a", k - 1),
                (give, "a"), (take, "c", m + 1), (give, "b")),
            one("shared, the second goes first", k + m, (take, "a", k), (share, "b", "a", k - 1),
                (give, "b"), (take, "c", m), (give, "a")),
            one("shared by three", k + 2, (take, "a", k), (share, "b", "a", 1),
                (share, "c", "b", 1), (give, "a"), (give, "b"), (take, "d", 1), (give, "c")),
            one("shared whole, then nothing of it", k, (take, "a", k), (share, "b", "a", k),
                (share, "c", "a", 0), (give, "c"), (give, "a"), (give, "b")),
            one("served one after the other", 4, *[step for i in range(9) for step in (
                (take, f"a{i}", 3), (share, f"b{i}", f"a{i}", 2), (give, f"a{i}"),
                (give, f"b{i}"))]),
            one("too many", k, (take, "a", 1), (take, "b", k), (take, "c", k - 1)),
            one("too many of a new object", k, (take, "a", k + 1), (take, "b", k)),
            one("none is left", k, (take, "a", k), (take, "b", 1), (take, "c", 0), (give, "a")),
            one("given twice", k + m, (take, "a", k), (take, "b", m), (give, "a"), (give, "a"),
                (take, "c", k)),
            one("given once too often", m, (take, "a", 2), (share, "b", "a", 1), (give, "a"),
                (give, "b"), (give, "b"), (take, "c", m)),
            one("part of it is free already", m, (take, "a", 3), (share, "b", "a", 1),
                (give, "a"), (give, "a"), (give, "b"), (take, "c", m)),
            one("each block of an old table in turn", 4, (take, "z", 1), (take, "a", 3),
                (give, "a"),
                *[(take, name, 1) for name in "bcd"], *[step for name in "bcd" for step in (
                    (give, name), (give, "a"), (take, name, 1))]),
            one("many requests", 16, *long),
            one("free blocks that are no neighbours", 5, *[(take, name, 1) for name in "abcde"],
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
            one("a taken block and one that never was", 4, (take, "a", 1), (give, "a", 1),
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
        expect_equal("tables that changed", out["changed"], 0, "Return lists of their own.")
    expect_equal("blocks of a second object that are free", out["other"], n + 1)
    expect_equal("blocks of a second object that are free, given back behind the first's",
                 out["beside"], out["alone"], "Each object counts its own readers.")


def took(row, k, free, n, readers, look):
    """Judge one take, and count its readers."""
    if k > free:
        wanted_error("take of too many", row, "MemoryError",
                     f"{look} {free} are free, {k} wanted.")
        nothing(row)
        left("free blocks after a take of too many", row, n, readers, look)
        return
    no_error("take of enough", row, f"{look} {free} are free, {k} wanted.")
    expect_equal("type of the blocks from take", row["kind"], "list")
    expect_length("blocks from take", row["found"], k, look)
    expect_equal("blocks from take are a table in use", row["same"], False, "A new list.")
    for block in row["found"]:
        if type(block) is not int or not 0 <= block < n:
            raise Broken("blocks that do not exist", block, f"0 to {n - 1}", look)
    for block in row["found"]:
        if row["found"].count(block) > 1:
            raise Broken("blocks taken twice in one table", block, "different ones", look)
        if block in readers:
            raise Broken("blocks that somebody reads, taken by another", block, "a free one", look)
    readers.update(dict.fromkeys(row["found"], 1))
    left("free blocks after take", row, n, readers, look)


def shared(row, wanted, n, readers, look):
    """Judge one share, and count its readers."""
    no_error("blocks from share", row, look)
    expect_equal("type of the blocks from share", row["kind"], "list")
    expect_equal("blocks from share", row["found"], wanted, look)
    expect_equal("blocks from share are the table itself", row["same"], False, "A new list.")
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
    expect_equal("blocks of a step that gives none", (row["found"], row["kind"], row["same"]),
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

@not_an_answer
def pool(n, *, start=0, begin=1, step=1, drop=None, known=None, some=None,
         shares=None, say=None, state=None, show=lambda table: table):
    """The right object with its pieces as options."""
    class Pool:
        def __init__(self):
            self.readers, self.free = state or ({}, list(range(start, n + start)))
            self.shared, self.tables = set(), []

        def take(self, k):
            if not some and k > len(self.free):
                raise MemoryError
            table = some(self, k) if some else taken(self, k)
            self.readers.update(dict.fromkeys(table, begin))
            self.tables.append([*table])
            return show(table)

        def share(self, table, k):
            self.shared.update(table[:k])
            if shares:
                return shares(self, table, k)
            for block in table[:k]:
                self.readers[block] = self.readers.get(block, 0) + step
            self.tables.append(table[:k])
            return show(table[:k])

        def give(self, table):
            if known == "all" and not all(self.readers[block] for block in table):
                raise ValueError
            if known is None and not all(self.readers.get(block) for block in table):
                raise ValueError
            if known == "taken":
                if not all(self.readers.get(block, 1) for block in table):
                    raise ValueError
                table = [block for block in table if block in self.readers]
            for block in table:
                if drop:
                    drop(self, block, table)
                else:
                    self.fall(block)

        def fall(self, block):
            if known == "late" and not self.readers.get(block):
                raise ValueError
            self.readers[block] = self.readers.get(block, 0) - 1
            if self.readers[block] == 0:
                self.free.append(block)

        def left(self):
            return say(self) if say else len(self.free)
    return Pool()


def taken(self, k):
    """As many as are free, at most k."""
    return [self.free.pop(0) for _ in range(min(k, len(self.free)))]


def in_use(self, k):
    """A block that is read already comes first."""
    if k > len(self.free):
        raise MemoryError
    table, read = taken(self, k), [b for b, r in self.readers.items() if r > 0]
    return (read + table)[:k] if k else []


def freed(self, block, table):
    """Back at once, whoever reads it."""
    self.readers.pop(block, None)
    self.free.append(block)


def only(which):
    """Only some blocks of a table lose a reader."""
    return lambda self, block, table: self.fall(block) if block in which(table) else None


def at_zero(self, block, table):
    """Free at zero or below."""
    self.readers[block] = self.readers.get(block, 0) - 1
    if self.readers[block] <= 0:
        self.free.append(block)


def whole_or_none(self, block, table):
    """The table is free when nobody reads any of its blocks."""
    self.readers[block] -= 1
    if not any(self.readers[b] for b in table):
        self.free += [b for b in table if b not in self.free]


def one_more(self, table, k):
    for block in table[:k]:
        self.readers[block] += 1
    return table


def alias(self, table, k):
    for block in table[:k]:
        self.readers[block] += 1
    return table if k == len(table) else table[:k]


def cut(self, table, k):
    for block in table[:k]:
        self.readers[block] += 1
    del table[k:]
    return list(table)


def last_ones(self, table, k):
    for block in table[len(table) - k:]:
        self.readers[block] += 1
    return table[len(table) - k:]


def copies(self, table, k):
    return self.take(k)


def not_if_shared(self, block, table):
    """Freed only by the request that alone has read it."""
    self.readers[block] -= 1
    if self.readers[block] == 0 and block not in self.shared:
        self.free.append(block)


def neighbours(self, k):
    """The first k free blocks in a row."""
    free = sorted(self.free)
    runs = [free[i:i + k] for i in range(len(free) - k + 1) if not k
            or free[i + k - 1] - free[i] == k - 1]
    if not runs:
        raise MemoryError
    self.free = [block for block in self.free if block not in runs[0]]
    return runs[0]


class Bytes(dict):
    """Numbers of 8 bits by their keys."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value % 256)


def known_tables(self, block, table):
    """Only a table that was handed out as it stands can be given back."""
    if table not in self.tables:
        raise ValueError
    self.fall(block)


SHARED, COUNTS = {}, {}

ex.wrong("a block freed by the first who gives it back", pool, breaks=("last", "more"), drop=freed)
ex.wrong("share counts two", pool, breaks="more", step=2)
ex.wrong("a shared block is never free again", pool, breaks="last", drop=not_if_shared)
ex.wrong("share counts nobody", pool, breaks=("more", "last", "give"), step=0)
ex.wrong("a table of blocks in a row alone", pool, says="take of enough",
         breaks=("take", "memory"), some=neighbours)
ex.wrong("readers counted in 8 bits", lambda n: pool(n, state=(Bytes(), list(range(n)))), says="",
         breaks=("more", "last"))
ex.wrong("the counts of readers in one dict for all objects", lambda n: pool(
    n, state=(COUNTS, list(range(n)))), breaks="own", says="blocks of a second object")
# https://github.com/Wenyueh/MinivLLM/pull/87
ex.wrong("a new block counts no reader", pool, says="", breaks=("reader", "give", "last", "value"),
         begin=0, known="never")
ex.wrong("a new block counts two readers", pool, breaks="reader", begin=2)
# https://github.com/jjang-ai/vmlx/pull/68
ex.wrong("nothing is given back", pool, breaks=("give", "last"), drop=lambda *_: None)
# https://github.com/LMCache/LMCache/issues/5005
ex.wrong("given back twice, and free twice", pool, says="give of a table without readers",
         breaks="value", known="never", drop=at_zero)
ex.wrong("a second give passed over in silence", pool, breaks="value", known="never")
ex.wrong("looking a block up that was never taken: KeyError", pool, breaks="value", known="all")
ex.wrong("passing over a block that was never taken", pool, breaks="value", known="taken")
ex.wrong("part of a table given back before the error", pool, breaks="value", known="late")
ex.wrong("a table known only as it was handed out", pool, breaks="joined",
         says="give of a table in use", drop=known_tables)
ex.wrong("only the last block given back", pool, breaks="give", drop=only(lambda t: t[-1:]))
ex.wrong("only the first block given back", pool, breaks="give", drop=only(lambda t: t[:1]))
ex.wrong("a table free only when nobody reads any of it", pool, says="", breaks=("last", "memory"),
         drop=whole_or_none)
ex.wrong("fewer blocks where too many are asked for", pool, breaks="memory", some=taken)
ex.wrong("a block handed out that is in use", pool, breaks="take", some=in_use)
ex.wrong("one block k times", pool, breaks="take", show=lambda table: table[:1] * len(table))
ex.wrong("blocks numbered from 1", pool, says="blocks that do not exist", breaks="numbers",
         start=1)
ex.wrong("the whole table shared, whatever k", pool, says="blocks from share",
         breaks=("share", "tables"), shares=one_more)
ex.wrong("the last k blocks shared", pool, breaks="share", shares=last_ones)
ex.wrong("new blocks for a share", pool, says="", breaks=("share", "more"), shares=copies)
ex.wrong("the table itself given back by share", pool, breaks="share", shares=alias)
ex.wrong("the table cut by share", pool, breaks="tables", shares=cut)
ex.wrong("a tuple for a table", pool, says="type of the blocks", breaks=("take", "share"),
         show=tuple)
ex.wrong("left counts blocks in use", pool, says="free blocks of a new object",
         breaks=("left", "free"), say=lambda self: sum(r > 0 for r in self.readers.values()))
ex.wrong("left as a list", pool, says="type of the free blocks", breaks="left",
         say=lambda self: list(self.free))


@ex.wrong("one list for all objects, made by the first", says="free blocks of a new object",
          breaks=("own", "free"))
def in_common(n):
    key = "of one process"
    SHARED.setdefault(key, ({}, list(range(n))))
    return pool(n, state=SHARED[key])
