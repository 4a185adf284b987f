"""Exercise 12.9, `class_numbers`."""

from __future__ import annotations

import bisect
import collections
import hashlib

import numpy as np
import torch

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import (
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
)

ex = exercise("12.9", "class_numbers", seen=("names", "pairs"), kept=("keys",))

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


# ---- right by another route

@ex.right("one after the other into a copy")
def into_copy(names, stored):
    numbers = dict(sorted(stored.items(), key=lambda pair: pair[1]))
    for name in sorted(names):
        numbers.setdefault(name, len(numbers))
    return numbers


@ex.right("places in a list, by counting")
def by_counting(names, stored):
    new = [n for n in dict.fromkeys(names) if n not in stored]
    found = {n: len(stored) + sum(other < n for other in new) for n in new} | stored
    return {n: found[n] for n in sorted(found, key=found.__getitem__)}


@ex.right("a stored list filled by number")
def by_slots(names, stored):
    slots = [None] * len(stored)
    for name in stored:
        slots[stored[name]] = name
    known = frozenset(slots)
    slots.extend(sorted({name for name in names if name not in known}))
    return dict(zip(slots, range(len(slots))))


@ex.right("a heap of names")
def by_counter(names, stored):
    missing = collections.Counter(names)
    missing.subtract({name: missing[name] for name in stored})
    ranked = sorted((name for name, rows in missing.items() if rows > 0), reverse=True)
    result = {name: place for place, name in sorted((p, n) for n, p in stored.items())}
    while ranked:
        result[ranked.pop()] = len(result)
    return result


# ---- wrong, by name

def numbered(names, stored, *, new=sorted, old=lambda known: sorted(known, key=known.get),
             start=0):
    """The right answer with its pieces as options."""
    order = [*old(stored), *new(set(names) - set(stored))]
    return {name: number for number, name in enumerate(order, start)}


def by_hash(names):
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


@ex.wrong("in the order of a set", says="classes, in the order", breaks=("next", "number"))
def of_a_set(names, stored):
    return numbered(names, stored, new=lambda names: sorted(names, key=hash))


@ex.wrong("in the order in which they come", says="classes, in the order",
          breaks="order")
def first_come(names, stored):
    return numbered(names, stored,
                    new=lambda new: [n for n in dict.fromkeys(names) if n in new])


@ex.wrong("all sorted anew, the checkpoint forgotten", says="classes, in the order",
          breaks=("keeps", "next"))
def sorted_anew(names, stored):
    return {name: number for number, name in enumerate(sorted({*names, *stored}))}


@ex.wrong("classes without rows dropped", says="classes, in the order", breaks="keeps")
def dropped(names, stored):
    return numbered(names, {n: k for n, k in stored.items() if n in names})


@ex.wrong("classes without rows dropped, their numbers left free",
          says="classes, in the order", breaks="keeps")
def with_gaps(names, stored):
    return {n: k for n, k in numbered(names, stored).items() if n in names}


@ex.wrong("keys in the order of the alphabet", says="classes, in the order", breaks="keys")
def by_alphabet(names, stored):
    return dict(sorted(numbered(names, stored).items()))


@ex.wrong("keys in the order of stored", says="classes, in the order", breaks=("keys", "order"))
def as_stored(names, stored):
    right = numbered(names, stored)
    return {**stored, **{n: right[n] for n in right if n not in stored}}


@ex.wrong("stored taken in its own order", says="classes, in the order",
          breaks=("keeps", "order"))
def stored_as_list(names, stored):
    return numbered(names, stored, old=list)


@ex.wrong("numbers from 1", says="number of", breaks="number")
def from_one(names, stored):
    return numbered(names, stored, start=1)


@ex.wrong("numbers of numpy", says="type of the number of", breaks="number")
def of_numpy(names, stored):
    return {n: np.int64(k) for n, k in numbered(names, stored).items()}


@ex.wrong("a list of names", says="type of the result", breaks="number")
def as_list(names, stored):
    return list(numbered(names, stored))


@ex.wrong("new numbers behind the rows, not behind the classes", says="number of",
          breaks="next")
def behind_rows(names, stored):
    return {n: k if n in stored else k + len(names) - len(set(names))
            for n, k in numbered(names, stored).items()}


@ex.wrong("upper and lower case taken for one", says="classes, in the order", breaks="names")
def folded(names, stored):
    return numbered([n.lower() for n in names], stored)


@ex.wrong("sorted without regard to case", says="classes, in the order", breaks="next")
def case_blind(names, stored):
    return numbered(names, stored, new=lambda new: sorted(sorted(new), key=str.lower))


@ex.wrong("blanks cut away", says="classes, in the order", breaks="names")
def stripped(names, stored):
    return numbered([n.strip() for n in names], stored)


@ex.wrong("the new ones numbered from 0 as well", says="number of", breaks="next")
def twice_from_zero(names, stored):
    return {n: k if n in stored else k - len(stored)
            for n, k in numbered(names, stored).items()}


@ex.wrong("in the order of a hash that lasts", says="classes, in the order", breaks="next")
def lasting_hash(names, stored):
    return numbered(names, stored, new=by_hash)


@ex.wrong("the new ones written into stored", says="arguments that changed", breaks="left")
def into_stored(names, stored):
    right = numbered(names, stored)
    stored.update(right)
    return right


@ex.wrong("names sorted in place", says="arguments that changed", breaks="left")
def sorted_in_place(names, stored):
    names.sort()
    return numbered(names, stored)


@ex.wrong("a checkpoint is expected", says="raised ValueError", breaks="stored")
def needs_one(names, stored):
    start = max(stored.values()) + 1
    return {**numbered([], stored), **{n: k for k, n in enumerate(
        sorted(set(names) - set(stored)), start)}}


@ex.wrong("the example looked up", says="classes, in the order", breaks="example")
def looked_up(names, stored):
    return {"a": 0, "b": 1, "c": 2} if names == ["b", "a", "b"] else numbered(names, stored)
