"""Exercise 12.9, `class_numbers`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import collections

from dlsys_checks.s12.e9_class_numbers import ex, numbered


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


@ex.probe("the example looked up", breaks="example")
def looked_up(names, stored):
    return {"a": 0, "b": 1, "c": 2} if names == ["b", "a", "b"] else numbered(names, stored)
