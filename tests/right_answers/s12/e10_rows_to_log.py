"""Exercise 12.10, `rows_to_log`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

from dlsys_checks.s12.e10_rows_to_log import ex, logged, one_home


@ex.right("a stack of rows for each axis, joined by time")
def by_stacks(events):
    axes, stacks = one_home(events), {}
    for time, (axis, step, values) in enumerate(events):
        stack, back = stacks.setdefault(axis, []), False
        while stack and stack[-1][1] > step:
            stack.pop()
            back = True
        if back and stack and stack[-1][1] == step:
            stack.pop()
        if stack and stack[-1][1] == step:
            stack[-1][2].update(values)
        else:
            stack.append([time, step, {axis: step, **values}])
    rows = sorted((row for stack in stacks.values() for row in stack), key=lambda row: row[0])
    return [row for _, _, row in rows], axes


@ex.right("from the end, with the earliest step that is still to come")
def from_the_end(events):
    axes, groups, last = one_home(events), [], {}
    for axis, step, values in events:
        if axis in last and last[axis][axis] == step:
            last[axis].update(values)
        else:
            last[axis] = {axis: step} | values
            groups.append((axis, last[axis]))
    rows, earliest = [], {}
    for axis, row in reversed(groups):
        if row[axis] < earliest.get(axis, math.inf):
            rows.insert(0, row)
            earliest[axis] = row[axis]
    return rows, axes


@ex.right("void rows are marked, and left out at the end")
def by_marks(events):
    axes, rows, void = {}, [], set()
    for axis, step, values in events:
        for name in values:
            if name in axes and axes[name] != axis:
                raise ValueError(name)
            axes[name] = axis
        mine = [k for k, row in enumerate(rows) if k not in void and axis in row]
        if mine and rows[mine[-1]][axis] == step:
            rows[mine[-1]] = {**rows[mine[-1]], **values}
            continue
        void.update(k for k in mine if rows[k][axis] >= step)
        rows.append({**values, axis: step})
    return [row for k, row in enumerate(rows) if k not in void], dict(reversed(axes.items()))


@ex.right("each axis by itself, with the place of each row")
def axis_by_axis(events):
    axes, placed = one_home(events), {}
    for axis in {axis for axis, _, _ in events}:
        mine = {}
        for place, (other, step, values) in enumerate(events):
            if other != axis:
                continue
            newest = max(mine, default=-1)
            if step == newest:
                at, row = mine[step]
                mine[step] = at, {**row, **values}
                continue
            mine = {old: kept for old, kept in mine.items() if old < step}
            mine[step] = place, {axis: step, **values}
        placed |= dict(mine.values())
    return [placed[place] for place in sorted(placed)], axes


@ex.probe("the example looked up, with the rows turned", says="row", breaks="example")
def looked_up(events):
    rows, axes = logged(events)
    return (rows[::-1] if rows == [{"epoch": 0, "val": 3.0}, {"batch": 0, "loss": 2.0}] else rows,
            axes)


ex.equivalent("rows = [row for row in rows if row.get(axis, -1) < step] -> "
              "rows = [row for row in rows if row.get(axis, -2) < step]",
              "steps are 0 or more, and all numbers below 0 stay")
