"""Exercise 01.4, `dead_units`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("01.4", "dead_units", seen=("h",), says="for every row")

ex.promise_table("""
count          | Count the units (columns) of h that are 0 for every row. | count of dead units
every row      | Args: h: a layer's outputs, (N, U) float32. | case one row; one unit
any activation | The layer can end in any activation. Returns: The count as an int. | case signed
                 outputs; never above zero; constant units; tiny outputs
NaN            | Raises: ValueError: if h contains a NaN. Such a layer is broken, not alive. | case
                 a column of NaN; a single NaN; a NaN in the first row; an infinite output
example        | Example: for [[0., 1.], [0., 0.]] the count is 1. | case the example
""")


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

    def place(h):
        return int(torch.randint(1, h.shape[0], (), generator=g)), int(
            torch.randint(h.shape[1], (), generator=g))

    drawn = integers(g)
    leaky = layer(8, 6, 2)
    leaky[:, 3] = torch.tensor([1.0, -1.0] * 4)  # sums to zero, and is anything but dead
    leaky[:, 4] = -0.0                           # minus zero is zero
    below = -layer(9, 14, drawn(1, 13))  # no output above zero: a maximum of 0 is no sign
    constant = layer(6, 15, drawn(1, 13))
    constant[:, place(constant)[1]] = 0.7
    tiny = layer(7, 5, 1) * 1e-30
    broken, spot, infinite, top = (layer(rows, 6, 2) for rows in (7, 12, 10, 5))
    broken[:, 2] = float("nan")
    spot[place(spot)] = float("nan")             # one, never in the first row
    top[0, place(top)[1]] = float("nan")
    row, unit = place(infinite)
    infinite[row, unit], infinite[0, unit] = float("inf"), -float("inf")  # large, but numbers
    single = layer(2, 11, 4)[1:]
    rarely = torch.rand(40, 9, generator=g) + 0.01
    rarely[torch.randint(40, (9,), generator=g), torch.arange(9)] = 0.0
    rarely[:, :drawn(1, 5)] = 0.0
    seldom = torch.zeros(250, 8)         # on for a single row of many: alive
    seldom[torch.randint(250, (8,), generator=g), torch.arange(8)] = 0.3
    seldom[:, :drawn(1, 5)] = 0.0
    return [("some dead units", {"h": layer(31, 12, drawn(1, 9))}),
            ("no dead unit", {"h": layer(9, 16, 0)}),
            ("all units dead", {"h": torch.zeros(4, 3 + place(leaky)[0])}),
            ("units off for one row", {"h": rarely}), ("units on for one row", {"h": seldom}),
            ("signed outputs", {"h": leaky}), ("never above zero", {"h": below}),
            ("constant units", {"h": constant}), ("tiny outputs", {"h": tiny}),
            ("one row", {"h": single}), ("one unit", {"h": layer(6, 1, 1)}),
            ("a column of NaN", {"h": broken}), ("a single NaN", {"h": spot}),
            ("a NaN in the first row", {"h": top}), ("an infinite output", {"h": infinite}),
            ("the example", {"h": torch.tensor([[0.0, 1.0], [0.0, 0.0]])})]


@ex.act
def act(fn, h):
    if not h.isnan().any():
        return {"raised": False, "count": fn(h)}
    try:
        return {"raised": False, "count": fn(h)}
    except ValueError:
        return {"raised": True, "count": None}


@ex.law
def law(out, h):
    expect_parts(out, "raised", "count")
    expect_type("whether it raised", out["raised"], bool)
    if h.isnan().any():
        if not out["raised"]:
            raise Broken("answer for NaN outputs", out["count"], "a ValueError",
                         "NaN == 0 is False, so without a test for NaN, a broken layer looks "
                         "alive.")
        expect_equal("count next to a ValueError", out["count"], None)
        return
    expect_equal("whether it raised without a NaN", out["raised"], False)
    dead = sum(all(value == 0 for value in column) for column in zip(*h.tolist(), strict=True))
    expect_equal("count of dead units", out["count"], dead,
                 look=f"There are {h.shape[1]} units and {len(h)} rows. A dead unit is 0 for "
                      "every row.")


# ---- wrong, by name

def refuse_nan(h):
    if h.isnan().any():
        raise ValueError("NaN in h")


@not_an_answer
def dead(h):
    refuse_nan(h)
    return int((h == 0).all(0).sum())


wrong = ex.edits(dead)
END = "return int((h == 0).all(0).sum())"
wrong("testing only the sum of h for NaN, although inf plus -inf is also NaN", "NaN",
      "refuse_nan(h)", 'if h.sum().isnan(): raise ValueError("NaN in h")', says="raised ValueError")


@ex.wrong("counting every unit that is off for more than a fifth of the rows",
          says="for every row",
          breaks="count")
def mostly_off(h):
    refuse_nan(h)
    return int(((h == 0).float().mean(0) > 0.2).sum())


wrong("counting every unit that is off for at least one row", "count",
      END, "out = int((h == 0).any(0).sum()); return out", says="for every row")


@ex.wrong("counting every unit that is off for more than nine out of ten rows",
          says="for every row",
          breaks="count")
def nearly_always_off(h):
    refuse_nan(h)
    return int(((h == 0).float().mean(0) > 0.9).sum())


wrong("counting rows instead of units", "count", "all(0)", "all(1)", says="for every row")
wrong("looking only at the first row", "count",
      END, "out = int((h[0] == 0).sum()); return out", says="for every row")
wrong("counting zeros instead of units", "count",
      END, "out = int((h == 0).sum()); return out", says="for every row")
wrong("calling squeeze(), which removes every axis of length one",
      "every row", "h ==", "h.squeeze() ==")
wrong("counting units with NaN as alive", "NaN", "refuse_nan(h)", "pass", says="a ValueError")
wrong("looking for NaN only in the first row", "NaN",
      "refuse_nan(h)", "refuse_nan(h[:1])", says="a ValueError")
wrong("raising ValueError only if a whole column is NaN", "NaN",
      "refuse_nan(h)", 'if h.isnan().all(0).any(): raise ValueError("NaN in h")',
      says="a ValueError")
wrong("raising ValueError for infinite values as well as for NaN", "NaN",
      "refuse_nan(h)", 'if not h.isfinite().all(): raise ValueError("h is not finite")',
      says="raised ValueError")
wrong("testing whether a column's sum is zero, as it can be with mixed signs", "any activation",
      END, "out = int((h.sum(0) == 0).sum()); return out")
wrong("counting values below zero as zero", "any activation", "h == 0", "h <= 0")
wrong("counting constant units as dead", "any activation",
      "int((h == 0).all(0).sum())",
      "int((h.amax(0) == h.amin(0)).sum()) if len(h) > 1 else int((h == 0).sum())")
wrong("counting tiny values as zero", "any activation", "h == 0", "h.abs() < 1e-3")
