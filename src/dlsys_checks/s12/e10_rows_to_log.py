"""Exercise 12.10, `rows_to_log`."""

from __future__ import annotations

import copy
import math

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("12.10", "rows_to_log", seen=("events",), says="number of rows")

ex.promise_table("""
rows        | Turn the events of a run into rows and axes for a log. Args: events: a list of (axis,
              step, values) in the order of time, with an int step >= 0 and a dict of metrics,
              perhaps empty. | case one axis; two axes; no event; no values; steps from 0; far
              steps; zeros; a NaN
any axes    | There may be any number of axes; no metric has the same name as an axis. | case three
              axes; an axis of another name; five axes
left        | The events are left as they are. | events that changed
tuple       | Returns a tuple (rows, axes). | type of the result; number of parts
axes        | axes: a dict from metric to axis. | axes
order       | rows: a list of dicts in time order, each {axis: step} plus the values. | row 0; row
              1; row 2; type of the rows; number of rows
same step   | If the previous event on an axis has the same step, both share a row. | case a step in
              two parts; a step in two parts, another axis between; step 0 in three parts
replaces    | Later values replace earlier values of the same name. | case a value replaced; resumed
              in the middle of an epoch
resumed     | An earlier step means a resumed run: drop the rows of this axis at that step or later.
              | case resumed; resumed between two steps; resumed at 0; resumed twice; resumed in the
              middle of an epoch; resumed, then a step in two parts; a dropped metric
others stay | Keep the rows of other axes. | case resumed before an epoch ends; resumed in the
              middle of an epoch; the slow axis resumed
raises      | Raises ValueError for a metric on two axes. | raised
example     | Example: [("epoch", 0, {"val": 3.0}), ("batch", 0, {"loss": 2.0})] returns [{"epoch":
              0, "val": 3.0}, {"batch": 0, "loss": 2.0}] and {"val": "epoch", "loss": "batch"}. |
              case the example
""")


@ex.cases
def cases(g):
    def number():
        return round(torch.rand((), generator=g).item() * 5, 4)

    whole = integers(g)

    def made(*events):
        """Events from axis, step and metrics, whose names no outcome holds as they are."""
        return [(f"={axis}", step, {f"={name}": number() for name in names})
                for axis, step, *names in events]
    b, e, v = (lambda *s, n="loss": [("batch", i, n) for i in s]), "epoch", "val"
    s, jump = whole(2, 9), whole(10, 90)
    every = {
        "one axis": made(*b(s, s + 1, s + 4)),
        "two axes": made(*b(1, 2), (e, 1, v), *b(3, 4), (e, 2, v)),
        "three axes": made(*b(s), ("hour", 1, "heat", "lr"), (e, 3, v), *b(s + 1), (e, 4, v),
                           ("hour", 2, "lr")),
        "an axis of another name": made(("tokens", s, "nll"), ("tokens", s + jump, "nll")),
        "no event": [],
        "no values": made(("batch", s), (e, s + 1), *b(s + 1)),
        "steps from 0": made(*b(0, 1), (e, 0, v), *b(2, 3), (e, 1, v)),
        "far steps": made(*b(s, 10**6 * jump), (e, 1, v)),
        "a step in two parts": made(*b(s), ("batch", s, "norm"), *b(s + 1)),
        "a step in two parts, another axis between": made(
            *b(s), (e, 1, v), ("batch", s, "norm"), *b(s + 1)),
        "step 0 in three parts": made(*b(0), ("batch", 0, "norm"), ("batch", 0, "lr"), *b(1)),
        "a value replaced": made(*b(s), ("batch", s, "loss", "norm"), *b(s + 1)),
        "resumed": made(*b(1, 2, 3, 4), *b(3, 4, 5)),
        "resumed between two steps": made(*b(s, s + 10, s + 20), *b(s + 5, s + 15)),
        "resumed at 0": made(*b(0, 1, 2), *b(0, 1)),
        "resumed twice": made(*b(1, 2, 3, 4, 5), *b(3, 4), *b(2, 3)),
        "resumed before an epoch ends": made(*b(1, 2), (e, 1, v), *b(3, 4), *b(3, 4), (e, 2, v)),
        "resumed in the middle of an epoch": made(
            *b(1, 2), (e, 1, v), *b(3, 4), (e, 2, v), *b(5), *b(3, 4), (e, 2, v), *b(5)),
        "resumed, then a step in two parts": made(*b(1, 2, 3), *b(2), ("batch", 2, "norm")),
        "the slow axis resumed": made(
            *b(s), (e, 1, v), *b(s + 1), (e, 2, v), *b(s + 2), (e, 3, v), (e, 1, v), *b(s + 3)),
        "five axes": made(*((f"axis {k}", s + k, f"metric {k}") for k in (3, 1, 0, 4, 2))),
        "zeros": [("=batch", s, {"=loss": 0.0, "=norm": 0, "=gain": -0.0}),
                  ("=batch", s + 1, {"=loss": 0.0})],
        "a NaN": [("=batch", s, {"=loss": math.nan, "=norm": 1.5}),
                  ("=batch", s + 1, {"=loss": 1.0})],
        "a dropped metric": made(*b(1), ("batch", 2, "norm"), *b(2, n="loss"), *b(1)),
        "a metric on two axes": made(*b(1, 2), (e, 1, "loss")),
        "a metric on two axes, far apart": made(
            *b(1), (e, 1, v), *b(2), (e, 2, v), ("batch", 3, v)),
        "a dropped metric on another axis": made(
            *b(1), ("batch", 2, "norm"), *b(1), (e, 1, "norm")),
    }
    example = [("=epoch", 0, {"=val": 3.0}), ("=batch", 0, {"=loss": 2.0})]
    return [*((name, {"events": events}) for name, events in every.items()),
            ("the example", {"events": example})]


@ex.act
def act(fn, events):
    events = [(axis[1:], step, {name[1:]: value for name, value in values.items()})
              for axis, step, values in events]
    fn([("hour", 5, {"lr": 1.0}), ("batch", 3, {"nothing": 2.0})])
    given, raised, out = copy.deepcopy(events), "no error", None
    try:
        out = copy.deepcopy(fn(given))
        for row in out[0] if type(out) is tuple and out and type(out[0]) is list else ():
            for name, value in row.items() if type(row) is dict else ():
                row[name] = "not a number" if value != value else value
    except ValueError:
        raised = "ValueError"
    changed = sum(repr(a) != repr(b) for a, b in zip(given, events))
    changed += abs(len(given) - len(events))
    return {"out": out, "raised": raised, "changed": int(changed)}


@ex.law
def law(out, events):
    expect_parts(out, "out", "raised", "changed")
    events = [(axis[1:], step, {name[1:]: value for name, value in values.items()})
              for axis, step, values in events]
    homes = {}
    for axis, _, values in events:
        for name in values:
            homes.setdefault(name, {axis: 0})[axis] = 0
    torn = [name for name, home in homes.items() if len(home) > 1]
    expect_equal(f"raised, with {len(torn)} metrics on two axes", out["raised"],
                 "ValueError" if torn else "no error")
    expect_equal("events that changed", out["changed"], 0, "Put the values into a new dict.")
    if torn:
        return
    expect_type("result", out["out"], tuple)
    if len(out["out"]) != 2:
        raise Broken("number of parts of the result", len(out["out"]), 2)
    rows, axes = out["out"]
    expect_type("rows", rows, list)
    expect_type("axes", axes, dict)
    wanted = [{name: "not a number" if value != value else value for name, value in row.items()}
              for row in surviving(events)]
    expect_length("rows", rows, len(wanted))
    for k, (row, right) in enumerate(zip(rows, wanted, strict=True)):
        expect_equal(f"row {k}", row, right)
    expect_equal("axes", axes, {name: next(iter(home)) for name, home in homes.items()})


def surviving(events):
    """The rows, by groups of one step on an axis: one stays if all that follow on it are later."""
    groups = []  # [axis, step, values], in the order of their first events
    for axis, step, values in events:
        mine = [group for group in groups if group[0] == axis]
        if mine and mine[-1][1] == step:
            mine[-1][2] = {**mine[-1][2], **values}
        else:
            groups.append([axis, step, values])
    return [{axis: step, **values} for k, (axis, step, values) in enumerate(groups)
            if all(other > step for name, other, _ in groups[k + 1:] if name == axis)]


def one_home(events):
    axes = {}
    for axis, _, values in events:
        for name in values:
            if axes.setdefault(name, axis) != axis:
                raise ValueError(f"{name}: got two axes, {axes[name]} and {axis}, expected one.")
    return axes


# ---- wrong, by name

# https://github.com/wandb/wandb/issues/10628
@ex.wrong("ignoring events at an earlier step, as the tracker does", says="got",
          breaks=("resumed", "others stay"))
def earlier_ignored(events):
    one_home(events)
    last, heard = {}, []
    for axis, step, values in events:
        if step >= last.get(axis, step):
            heard.append((axis, step, values))
            last[axis] = step
    rows, _ = logged(heard)
    return rows, {name: axis for axis, _, values in events for name in values}


@not_an_answer
def logged(events, *, merge=True, drop=lambda row, axis, step: row.get(axis, -1) >= step,
        kept=True):
    put = dict.update
    rows, axes, last = [], {}, {}
    for axis, step, values in events:
        for name in values:
            if axes.setdefault(name, axis) != axis:
                raise ValueError(name)
        if last.get(axis) == step and merge:
            put([row for row in rows if axis in row][-1], values)
        else:
            if step <= last.get(axis, -1):
                rows = [row for row in rows if not drop(row, axis, step)]
            rows.append({axis: step, **values})
        last[axis] = step
    if not kept:
        axes = {name: axis for name, axis in axes.items() if any(name in row for row in rows)}
    out = rows, axes
    return out


wrong = ex.edits(logged)
wrong("keeping one row for each axis and step, even after a resume", ("resumed", "others stay"),
      "put =",
      "own_rows = {}\n    for axis, step, values in events: own_rows.setdefault((axis, step), "
      "{axis: step}).update(values)\n    put =",
      "return out", "return (list(own_rows.values()), out[1])")


@ex.wrong("sharing a row only if the very last row is on the same axis",
      says="row 0",
          breaks=("same step", "replaces"))
def very_last_row(events):
    rows = []
    for axis, step, values in events:
        if rows and rows[-1].get(axis) == step:
            rows[-1].update(values)
        else:
            rows = [row for row in rows if row.get(axis, -1) < step]
            rows.append({axis: step, **values})
    return rows, logged(events)[1]


@ex.wrong("using one counter for all axes, as the tracker does",
          breaks=("rows", "order", "any axes", "others stay", "example", "same step", "resumed",
                  "replaces"))
def one_counter(events):
    rows, axes, last = [], one_home(events), -1
    for axis, step, values in events:
        if step >= last:
            rows.append({axis: step, **values})
            last = step
    return rows, axes


ex.wrong("copying the lesson's repair, with a row for each event",
         lambda events: ([{axis: step, **values} for axis, step, values in events],
             one_home(events)), breaks=("same step", "replaces", "resumed", "others stay", "order"))
wrong("leaving the axis and its step out of each row", "order",
      "return out",
      "rows, axes = out; return [{name: value for name, value in row.items() if name in axes} "
      "for row in rows], axes")
wrong("storing the step under the key 'step', not under the axis", "order",
      "return out",
      'rows, axes = out; return [{name if name in axes else "step": value for name, value in '
      "row.items()} for row in rows], axes")
ex.wrong("adding a second row for the same step", logged,
         breaks=("same step", "replaces", "resumed", "others stay"), merge=False,
         drop=lambda row, axis, step: row.get(axis, -1) > step)
ex.wrong("replacing the row of the same step with a new one", logged, says="row",
         breaks=("same step", "resumed"), merge=False)
wrong("keeping the earlier of two values with the same name", "replaces",
      "put = dict.update", "pass", "put([row for row in rows if axis in row][-1], values)",
      "[row for row in rows if axis in row][-1].update({**values, **[row for row in rows if axis "
      "in row][-1]})", says="row")
ex.wrong("dropping no rows when a run resumes", logged, breaks=("resumed", "others stay"),
         drop=lambda row, axis, step: False)
ex.wrong("dropping rows of other axes as well when a run resumes, by their own steps", logged,
         breaks="others stay", drop=lambda row, axis, step: next(iter(row.values())) >= step)
wrong("leaving out values of 0", "rows",
      "put =",
      "events = [(axis, step, {n: v for n, v in values.items() if v}) for axis, step, values in "
      "events]; put =", "return out", "return (out[0], one_home(events))", says="row 0")
wrong("leaving out values that are NaN", "rows",
      "put =",
      "events = [(axis, step, {n: v for n, v in values.items() if v == v}) for axis, step, "
      "values in events]; put =", "return out", "return (out[0], one_home(events))", says="row 0")
ex.wrong("dropping only the row of the same step when a run resumes",
         logged, breaks=("resumed", "others stay"),
         drop=lambda row, axis, step: row.get(axis) == step)
ex.wrong("keeping the old row of the same step when a run resumes",
         logged, breaks=("resumed", "others stay"),
         drop=lambda row, axis, step: row.get(axis, -1) > step)


@ex.wrong("dropping rows of all axes when a run resumes", breaks="others stay")
def all_dropped(events):
    rows, axes, last = [], one_home(events), {}
    for axis, step, values in events:
        if last.get(axis) == step:
            [row for row in rows if axis in row][-1].update(values)
            continue
        first = next((k for k, row in enumerate(rows) if row.get(axis, -1) >= step), len(rows))
        rows = [*rows[:first], {axis: step, **values}]
        last[axis] = step
    return rows, axes


ex.wrong("ignoring that a run resumes at step 0", logged, breaks="resumed",
         drop=lambda row, axis, step: bool(step) and row.get(axis, -1) >= step)


@ex.wrong("not sharing a row between two events at step 0", breaks=("same step",))
def zero_apart(events):
    rows, axes, last = [], one_home(events), {}
    for axis, step, values in events:
        if step and last.get(axis) == step:
            [row for row in rows if axis in row][-1].update(values)
        else:
            back = step < last.get(axis, 0)
            rows = [row for row in rows if not back or row.get(axis, -1) < step]
            rows.append({axis: step, **values})
        last[axis] = step
    return rows, axes


wrong("sharing a row only if the event directly before is on the same axis",
      ("same step", "replaces"),
      "last.get(axis) == step and merge", "rows and rows[-1].get(axis) == step",
      "step <= last", "step < last")
wrong("making no row for an event without values", "rows",
      "events:", "[event for event in events if event[2]]:")
wrong("handling only the axes named 'batch' and 'epoch'", "any axes",
      "events:", '[event for event in events if event[0] in ("batch", "epoch")]:')
wrong("raising no error for a metric on two axes", "raises",
      "axes.setdefault(name, axis) != axis", "axes.setdefault(name, axis) != axis and False")
wrong("raising an error only if the kept rows have a metric on two axes", "raises",
      "axes.setdefault(name, axis) != axis", "axes.setdefault(name, axis) != axis and False",
      "return out",
      "rows, axes = out\n    for name in axes:\n        if len({axis for row in rows for axis, "
      "_, _ in events if name in row and axis in row}) > 1: raise ValueError(name)\n    return "
      "rows, axes")
ex.wrong("returning only the axes of metrics in rows that are kept",
         logged, breaks="axes", kept=False)
wrong("returning metrics by axis instead of axes by metric", "axes",
      "return out",
      "rows, axes = out; return rows, {axis: [name for name in axes if axes[name] == axis] for "
      "axis in axes.values()}")
wrong("ordering the rows by axis, not by time", ("order", "others stay"),
      "return out", "rows, axes = out; return sorted(rows, key=lambda row: next(iter(row))), axes",
      says="row")
wrong("returning a list instead of a tuple", "tuple", "return out", "return list(out)")
wrong("returning only rows, without axes", "tuple", "return out", "return out[0]")
wrong("writing the axis and step into the event's own dict", "left",
      "rows.append({axis: step, **values})", "values[axis] = step; rows.append(values)")
