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

ex.promise_table("""
number  | Number the classes from 0, in the same way in every process. | classes, in the order;
          number of; type of the result
names   | Args: names: the class of each row of the data, a list of str in any order. | classes, in
          the order; number of; raised
stored  | stored: the numbers from a checkpoint, 0 to len(stored) - 1, or {} if there is no
          checkpoint. | case no checkpoint; no checkpoint, many classes; upper case and digits; no
          rows at all; one class; a blank and no letters
keeps   | A class in stored keeps its number, even if no row has this class. | case a checkpoint; a
          class without rows; a checkpoint and no rows; nothing new; many of each; stored out of
          order; the example
next    | Other classes get the next numbers, in the order of sorted(). | classes, in the order;
          number of
keys    | Returns: A dict from class to number, with its keys in the order of their numbers. |
          classes, in the order
order   | The order of names and of stored makes no difference. | classes, in the order; number of
left    | names and stored are left as they are. | arguments that changed
example | Example: ["b", "a", "b"] and {"c": 0} give {"c": 0, "a": 1, "b": 2}. | case the example
""")


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
            one("a class without rows", some(6), some(5), some(3)),
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

def by_hash(names):
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


@not_an_answer
def numbered(names, stored):
    order = [*sorted(stored, key=stored.get), *sorted(set(names) - set(stored))]
    out = {name: number for number, name in enumerate(order, 0)}
    return out


wrong = ex.edits(numbered)
wrong("numbering new classes in the order of hash()",
      ("next", "number"), "(stored)", "(stored), key=hash")
wrong("numbering new classes in the order of a set", ("next", "number"),
      "*sorted(set(names) - set(stored))", "*(n for n in set(names) if n not in stored)")
wrong("numbering new classes in the order in which they occur", "order",
      "*sorted(set(names) - set(stored))",
      "*[n for n in dict.fromkeys(names) if n in set(names) - set(stored)]")


@ex.wrong("numbering all classes again and ignoring the checkpoint", breaks=("keeps", "next"))
def sorted_anew(names, stored):
    return {name: number for number, name in enumerate(sorted({*names, *stored}))}


wrong("dropping stored classes that have no rows", "keeps",
      "order =", "stored = {n: k for n, k in stored.items() if n in names}; order =")
wrong("dropping stored classes that have no rows, but leaving their numbers free", "keeps",
      "return out", "return {n: k for n, k in out.items() if n in names}")
wrong("returning the keys in alphabetical order",
      "keys", "return out", "return dict(sorted(out.items()))")
wrong("returning the keys in the order of the stored dict", ("keys", "order"),
      "return out", "return {**stored, **{n: out[n] for n in out if n not in stored}}")
wrong("numbering stored classes by their order in the dict, not by their numbers",
      ("keeps", "order"),
      "*sorted(stored, key=stored.get)", "*list(stored)")
wrong("numbering from 1", "number", "0", "1")
ex.wrong("returning numpy integers instead of Python ints",
         lambda names, stored: {n: np.int64(k) for n, k in numbered(names, stored).items()},
         says="type of the number of", breaks="number")
wrong("returning a list of names instead of a dict", "number", "return out", "return list(out)")
wrong("counting rows instead of classes to get the new numbers", "next",
      "return out",
      "return {n: k if n in stored else k + len(names) - len(set(names)) for n, k in out.items()}")
wrong("converting names to lower case", "names", "(names)", "([n.lower() for n in names])")
wrong("sorting without regard to upper and lower case", "next",
      "set(names) - set(stored)", "sorted(set(names) - set(stored)), key=str.lower")
wrong("stripping spaces from the names", "names", "(names)", "([n.strip() for n in names])")
wrong("numbering the new classes from 0 as well", "next",
      "return out", "return {n: k if n in stored else k - len(stored) for n, k in out.items()}")
wrong("numbering new classes in the order of a stable hash",
      "next", "get), *sorted(", "get), *by_hash(")
wrong("writing the new classes into the stored dict", "left", "return out",
      "stored.update(out); return out")
wrong("sorting the list of names in place", "left", "order =", "names.sort(); order =")
wrong("assuming that there is a checkpoint", "stored",
      "order =", "start = max(stored.values()) + 1; order =", "(names)", "([])", "return out",
      "return {**out, **{n: k for k, n in enumerate(sorted(set(names) - set(stored)), start)}}",
      says="raised ValueError")
