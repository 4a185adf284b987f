"""Exercise 01.4, `dead_units`."""

from __future__ import annotations

import torch

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_parts, expect_type

ex = exercise("01.4", "dead_units")


@ex.cases
def cases(g):
    def layer(rows, units, dead):
        h = torch.randn(rows, units, generator=g).relu() + 0.01
        h *= torch.rand(rows, units, generator=g) < 0.4  # a healthy unit is often off
        h[0] = 0.5 * (torch.arange(units) % 2)           # for the first row every other one
        columns = torch.arange(units)
        h[1 + columns % (rows - 1), columns] = 0.5       # yet each is on for some row
        h[:, torch.randperm(units, generator=g)[:dead]] = 0.0
        return h
    leaky = layer(8, 6, 2)
    leaky[:, 3] = torch.tensor([1.0, -1.0] * 4)  # sums to zero, and is anything but dead
    broken = layer(7, 5, 1)
    broken[:, 2] = float("nan")
    return [("some dead units", {"h": layer(31, 12, 3)}),
            ("no dead unit", {"h": layer(9, 16, 0)}),
            ("signed outputs", {"h": leaky}),
            ("a column of NaN", {"h": broken})]


@ex.act
def act(fn, h):
    try:
        return {"raised": False, "count": fn(h)}
    except ValueError:
        return {"raised": True, "count": None}


@ex.law
def law(out, h):
    expect_parts(out, "raised", "count")
    expect_type("whether it raised", out["raised"], bool)
    if out["raised"]:
        expect_equal("count beside a ValueError", out["count"], None)
    if h.isnan().any():
        if not out["raised"]:
            raise Broken("answer for NaN outputs", out["count"], "a ValueError",
                         "NaN == 0 is False: a broken layer must not look alive.")
        return
    if out["raised"]:
        raise Broken("answer for outputs without a NaN", "a ValueError", "a count")
    expect_type("count of dead units", out["count"], int)
    dead = sum(all(value == 0 for value in column) for column in zip(*h.tolist(), strict=True))
    expect_equal("count of dead units", out["count"], dead, "Dead means 0 for every row.")


def refuse_nan(h):
    if h.isnan().any():
        raise ValueError("NaN in h")


@ex.wrong("an alarm when a unit is off for more than a fifth of the rows", says="for every row")
def mostly_off(h):
    refuse_nan(h)
    return int(((h == 0).float().mean(0) > 0.2).sum())


@ex.wrong("rows counted instead of units", says="for every row")
def dead_rows(h):
    refuse_nan(h)
    return int((h == 0).all(1).sum())


@ex.wrong("a look at the first row only", says="for every row")
def first_row(h):
    refuse_nan(h)
    return int((h[0] == 0).sum())


@ex.wrong("zeros counted, not units", says="for every row")
def zeros(h):
    refuse_nan(h)
    return int((h == 0).sum())


@ex.wrong("NaN taken for life", says="a ValueError")
def nan_is_alive(h):
    return int((h == 0).all(0).sum())


@ex.wrong("columns that sum to zero, signed ones included", says="for every row")
def zero_sum(h):
    refuse_nan(h)
    return int((h.sum(0) == 0).sum())
