"""Exercise 12.9, `class_numbers`."""

from __future__ import annotations

import bisect
import hashlib

import numpy as np
import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("12.9", "class_numbers", seen=("names", "pairs"), kept=("keys",),
              says="classes, in the order")

ex.promise("number", "The number of each class, from 0, the same in every process.",
           says=("classes, in the order", "number of", "type of the result"))
ex.promise("names", "names: one text a row of the data, each as often as its class comes, in any "
           "order.", says=("classes, in the order", "number of", "raised"))
ex.promise("stored", "stored: the numbers from a checkpoint, 0 to len(stored) - 1; {} without one.",
           cases=("no checkpoint", "no checkpoint, many classes", "upper case and digits",
                  "no rows at all", "one class", "a blank and no letters"))
ex.promise("keeps", "A class in stored keeps its number, though no row may have it.",
           cases=("a checkpoint", "a class that no row has", "a checkpoint and no rows",
                  "nothing new", "many of each", "stored out of order", "the example"))
ex.promise("next", "The others take the next numbers, in the order of sorted().",
           says=("classes, in the order", "number of"))
ex.promise("keys", "The result's keys stand in the order of their numbers.",
           says=("classes, in the order",))
ex.promise("order", "In what order names and stored come changes nothing,",
           says=("classes, in the order", "number of"))
ex.promise("left", "and they are left as they are.", says=("arguments that changed",))
ex.promise("example", 'Example: ["b", "a", "b"] and {"c": 0}: {"c": 0, "a": 1, "b": 2}.',
           cases=("the example",))


@ex.cases
def cases(g):
    def shuffled(items):
        return [items[i] for i in torch.randperm(len(items), generator=g).tolist()]

    def word():
        return "".join(chr(97 + i) for i in torch.randint(26, (5,), generator=g).tolist())

    def one(name, new, old=(), unseen=(), seen=None):
        """Rows of new and of seen classes; old and unseen are the checkpoint's."""
        old, unseen = list(old), list(unseen)
        rows = list(new) + (old if seen is None else list(seen))
        pairs = [[n, k] for k, n in enumerate(shuffled(old + unseen))]
        return name, {"names": shuffled(rows + rows + rows[:1]), "pairs": shuffled(pairs)}

    def some(n):
        return list(dict.fromkeys(word() for _ in range(n)))
    return [one("no checkpoint", some(9)), one("no checkpoint, many classes", some(60)),
            one("a checkpoint", some(8), some(7)),
            one("a class that no row has", some(6), some(5), some(3)),
            one("a checkpoint and no rows", [], some(6), seen=[]),
            one("nothing new", [], some(9)), one("many of each", some(40), some(40)),
            one("stored out of order", some(5), ["c", "a", "d", "b", "e", "f", "g", "h"]),
            one("upper case and digits", ["b", "B", "a", "A", "10", "9", "é", "z", "Ä"]),
            one("a blank and no letters", ["", " ", "-", "a b", "a", "ab"]),
            one("no rows at all", []), one("one class", some(1)),
            ("the example", {"names": ["b", "a", "b"], "pairs": [["c", 0]]})]


@ex.act
def act(fn, names, pairs):
    rows, stored = list(names), {name: number for name, number in pairs}
    fn(["qq", "pp", "qq"], {"oo": 0})  # nothing is kept of this
    out = fn(rows, stored)
    changed = int(rows != names) + int([*map(list, stored.items())] != pairs)
    is_dict = type(out) is dict
    return {"type": type(out).__name__, "keys": list(out) if is_dict else [],
            "numbers": list(out.values()) if is_dict else [], "changed": changed}


@ex.law
def law(out, names, pairs):
    expect_parts(out, "type", "keys", "numbers", "changed")
    expect_equal("type of the result", out["type"], "dict")
    expect_equal("arguments that changed", out["changed"], 0)
    known = {name: number for name, number in pairs}
    wanted = [""] * len(known)
    for name, number in known.items():
        wanted[number] = name
    new: list[str] = []
    for name in names:
        if name not in known and name not in new:
            bisect.insort(new, name)
    wanted += new
    got, numbers = out["keys"], out["numbers"]
    expect_type("classes, in the order of their numbers", got, list)
    expect_length("numbers", numbers, len(got))
    for place, name in enumerate(wanted[:len(got)]):
        expect_equal(f"classes, in the order of their numbers: number {place}", got[place], name)
    expect_equal("classes, in the order of their numbers: how many", len(got), len(wanted))
    for place, (name, number) in enumerate(zip(wanted, numbers)):
        expect_equal(f"number of {name!r}", number, place)


# ---- wrong, by name

@not_an_answer
def numbered(names, stored, *, new=sorted, old=lambda known: sorted(known, key=known.get),
             start=0):
    """The right answer with its pieces as options."""
    order = [*old(stored), *new(set(names) - set(stored))]
    return {name: number for number, name in enumerate(order, start)}


def by_hash(names):
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


ex.wrong("in the order of a set",
         lambda names, stored: numbered(names, stored, new=lambda names: sorted(names, key=hash)),
         breaks=("next", "number"))


@ex.wrong("in the order in which they come", breaks="order")
def first_come(names, stored):
    return numbered(names, stored,
                    new=lambda new: [n for n in dict.fromkeys(names) if n in new])


@ex.wrong("all sorted anew, the checkpoint forgotten", breaks=("keeps", "next"))
def sorted_anew(names, stored):
    return {name: number for number, name in enumerate(sorted({*names, *stored}))}


ex.wrong("classes without rows dropped",
         lambda names, stored: numbered(names, {n: k for n, k in stored.items() if n in names}),
         breaks="keeps")
ex.wrong("classes without rows dropped, their numbers left free",
         lambda names, stored: {n: k for n, k in numbered(names, stored).items() if n in names},
         breaks="keeps")
ex.wrong("keys in the order of the alphabet",
         lambda names, stored: dict(sorted(numbered(names, stored).items())), breaks="keys")


@ex.wrong("keys in the order of stored", breaks=("keys", "order"))
def as_stored(names, stored):
    right = numbered(names, stored)
    return {**stored, **{n: right[n] for n in right if n not in stored}}


ex.wrong("stored taken in its own order", numbered, breaks=("keeps", "order"), old=list)
ex.wrong("numbers from 1", numbered, breaks="number", start=1)
ex.wrong("numbers of numpy",
         lambda names, stored: {n: np.int64(k) for n, k in numbered(names, stored).items()},
         says="type of the number of", breaks="number")
ex.wrong("a list of names", lambda names, stored: list(numbered(names, stored)), breaks="number")


@ex.wrong("new numbers behind the rows, not behind the classes", breaks="next")
def behind_rows(names, stored):
    return {n: k if n in stored else k + len(names) - len(set(names))
            for n, k in numbered(names, stored).items()}


ex.wrong("upper and lower case taken for one",
         lambda names, stored: numbered([n.lower() for n in names], stored), breaks="names")
ex.wrong("sorted without regard to case", numbered, breaks="next",
         new=lambda new: sorted(sorted(new), key=str.lower))
ex.wrong("blanks cut away", lambda names, stored: numbered([n.strip() for n in names], stored),
         breaks="names")


@ex.wrong("the new ones numbered from 0 as well", breaks="next")
def twice_from_zero(names, stored):
    return {n: k if n in stored else k - len(stored)
            for n, k in numbered(names, stored).items()}


ex.wrong("in the order of a hash that lasts", numbered, breaks="next", new=by_hash)


@ex.wrong("the new ones written into stored", breaks="left")
def into_stored(names, stored):
    right = numbered(names, stored)
    stored.update(right)
    return right


@ex.wrong("names sorted in place", breaks="left")
def sorted_in_place(names, stored):
    names.sort()
    return numbered(names, stored)


@ex.wrong("a checkpoint is expected", says="raised ValueError", breaks="stored")
def needs_one(names, stored):
    start = max(stored.values()) + 1
    return {**numbered([], stored), **{n: k for k, n in enumerate(
        sorted(set(names) - set(stored)), start)}}
