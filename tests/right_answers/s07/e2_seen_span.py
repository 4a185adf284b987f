"""Exercise 07.2, `seen_span`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

from dlsys_checks.s07.e2_seen_span import ex, walked


@ex.right("the field and the step, from the input on")
def forwards(layers, unit):
    field, step, start = 1, 1, 0
    for kernel, stride, padding, dilation in layers:
        start -= padding * step
        field += dilation * (kernel - 1) * step
        step *= stride
    first = start + unit * step
    return first, first + field - 1


@ex.right("by recursion")
def recursive(layers, unit):
    if not layers:
        return unit, unit
    kernel, stride, padding, dilation = layers[-1]
    begin = unit * stride - padding
    return (recursive(layers[:-1], begin)[0],
            recursive(layers[:-1], begin + dilation * (kernel - 1))[1])


@ex.right("the two ends, one after the other")
def end_by_end(layers, unit):
    def end(share):
        at = unit
        for kernel, stride, padding, dilation in layers[::-1]:
            at = at * stride - padding + share * dilation * (kernel - 1)
        return at
    return end(0), end(1)


@ex.right("ranges instead of ends")
def by_ranges(layers, unit):
    seen = range(unit, unit + 1)
    for k, s, p, d in reversed(layers):
        seen = range(seen[0] * s - p, seen[-1] * s - p + d * (k - 1) + 1)
    return seen[0], seen[-1]


@ex.probe("the example, with its last pixel looked up wrong", says="last pixel", breaks="example")
def looked_up(layers, unit):
    return (-1, 2) if layers == [(3, 1, 1, 1)] and unit == 0 else walked(layers, unit)
