"""Exercise 02.6, `gradients`."""

from __future__ import annotations

import math

import torch

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
)

ex = exercise("02.6", "gradients",
              seen=("leaves", "program"))

# A program is a list of operations on earlier numbers, the leaves first: ["mul", 0, 1] multiplies
# the first two leaves and appends the product.
CHAIN, RUNGS = 3000, 12


def random_program(g, leaves, length):
    """Operations on random earlier numbers; the last number depends on many of them."""
    program = []
    for k in range(leaves, leaves + length):
        kind = ("add", "mul", "tanh")[int(torch.randint(3, (), generator=g))]
        i, j = (int(torch.randint(max(0, k - 6), k, (), generator=g)) for _ in range(2))
        program.append([kind, i, j])
    return program


@ex.cases
def cases(g):
    def one(name, leaves, program):
        values = torch.rand(leaves, generator=g) * 0.5 + 0.3
        return name, {"leaves": values.tolist(), "program": program}
    # Leaves w, x, b are 0, 1, 2; a = w * x is 3.
    branch = [["mul", 0, 1], ["add", 3, 2], ["tanh", 4, 4]]
    return [one("a value used twice, early use first", 3, [*branch, ["add", 3, 5]]),
            one("a value used twice, late use first", 3, [*branch, ["add", 5, 3]]),
            one("a value times itself", 2, [["add", 0, 1], ["mul", 2, 2], ["tanh", 3, 3]]),
            one("an input that does not matter", 3, [["mul", 0, 2], ["add", 3, 0]]),
            one("many paths", 1, [["add", k, k] for k in range(RUNGS)]),
            one("a random program", 4, random_program(g, 4, 20)),
            one("a long chain", 2, [["add", k if k else 0, 1] for k in (0, *range(2, CHAIN))])]


@ex.act
def act(fn, leaves, program):
    reads = []

    class Node:
        def __init__(self, value, parents=()):
            self.value, self._parents = value, list(parents)

        @property
        def parents(self):
            reads.append(1)
            return list(self._parents)

    nodes = [Node(value) for value in leaves]
    for kind, i, j in program:
        a, b = nodes[i], nodes[j]
        if kind == "add":
            nodes.append(Node(a.value + b.value, [(a, 1.0), (b, 1.0)]))
        elif kind == "mul":
            nodes.append(Node(a.value * b.value, [(a, b.value), (b, a.value)]))
        else:
            t = math.tanh(a.value)
            nodes.append(Node(t, [(a, 1 - t * t)]))
    grads, too_deep = None, False
    try:
        grads = fn(nodes[-1], nodes[:len(leaves)])
    except RecursionError:
        too_deep = True
    return {"grads": grads, "too_deep": too_deep, "few_reads": len(reads) <= 10 * len(nodes)}


def run_program(leaves, program):
    """The last number of a program."""
    numbers = list(leaves)
    for kind, i, j in program:
        a, b = numbers[i], numbers[j]
        numbers.append(math.tanh(a) if kind == "tanh" else a + b if kind == "add" else a * b)
    return numbers[-1]


def central_difference(leaves, program, place, step=1e-5):
    """Slope of the last number by one leaf."""
    ends = []
    for move in (step, -step):
        moved = list(leaves)
        moved[place] += move
        ends.append(run_program(moved, program))
    return (ends[0] - ends[1]) / (2 * step)


@ex.law
def law(out, leaves, program):
    expect_parts(out, "grads", "too_deep", "few_reads")
    if out["too_deep"] is not False:
        raise Broken("answer for a chain of thousands of nodes", "RecursionError", "gradients",
                     "Keep the nodes still to do in a list.")
    expect_type("result", out["grads"], list)
    expect_length("gradients", out["grads"], len(leaves), "Every input gets one, in order.")
    for k, got in enumerate(out["grads"]):
        wanted = central_difference(leaves, program, k)
        expect_close(f"gradient of input {k}", got, wanted, rtol=1e-4, atol=1e-6,
                     look="Compared with finite differences.")
    # Counted by the nodes, beside the learner's code: gradients do not show how often.
    expect_equal("few reads of node.parents", out["few_reads"], True,
                 "Each node reports once, not once per path.")


def as_reached(out, take):
    """Gradients when each node reports as soon as it is taken from the list of those reached."""
    grad, todo = {out: 1.0}, [out]
    while todo:
        node = todo.pop(take)
        for parent, slope in node.parents:
            if parent not in grad:
                grad[parent] = 0.0
                todo.append(parent)
            grad[parent] += slope * grad[node]
    return grad


@ex.wrong("a queue: each node reports as soon as it is reached", says="finite differences")
def by_queue(out, inputs):
    grad = as_reached(out, 0)
    return [grad.get(node, 0.0) for node in inputs]


@ex.wrong("a stack: each node reports as soon as it is reached", says="finite differences")
def by_stack(out, inputs):
    grad = as_reached(out, -1)
    return [grad.get(node, 0.0) for node in inputs]


def in_order(out, edges):
    """Nodes such that each stands before its parents, without recursion."""
    uses, todo, order = {out: 0}, [out], []
    parents = {}
    while todo:
        node = todo.pop()
        parents[node] = edges(node)
        for parent, _ in parents[node]:
            if parent not in uses:
                uses[parent] = 0
                todo.append(parent)
            uses[parent] += 1
    ready = [out]
    while ready:
        order.append(ready.pop())
        for parent, _ in parents[order[-1]]:
            uses[parent] -= 1
            if not uses[parent]:
                ready.append(parent)
    return order, parents


def sweep(out, edges, merge):
    order, parents = in_order(out, edges)
    grad = {out: 1.0}
    for node in order:
        for parent, slope in parents[node]:
            grad[parent] = merge(grad.get(parent, 0.0), slope * grad[node])
    return grad


@ex.wrong("the last share in place of the sum", says="finite differences")
def overwrites(out, inputs):
    grad = sweep(out, lambda node: node.parents, lambda old, new: new)
    return [grad.get(node, 0.0) for node in inputs]


@ex.wrong("a parent that stands twice counted once", says="finite differences")
def once_per_parent(out, inputs):
    grad = sweep(out, lambda node: list(dict(node.parents).items()), lambda old, new: old + new)
    return [grad.get(node, 0.0) for node in inputs]


@ex.wrong("inputs that do not matter left out", says="number of gradients")
def only_reached(out, inputs):
    grad = sweep(out, lambda node: node.parents, lambda old, new: old + new)
    return [grad[node] for node in inputs if node in grad]


@ex.wrong("one walk for every path", says="few reads")
def every_path(out, inputs):
    grad, todo = {}, [(out, 1.0)]
    while todo:
        node, share = todo.pop()
        grad[node] = grad.get(node, 0.0) + share
        todo += [(parent, share * slope) for parent, slope in node.parents]
    return [grad.get(node, 0.0) for node in inputs]


@ex.wrong("a function that calls itself for every parent", says="RecursionError")
def recursive(out, inputs):
    order = {}

    def visit(node):
        if node not in order:
            order[node] = None
            for parent, _ in node.parents:
                visit(parent)
            order[node] = order.pop(node)
    visit(out)
    grad = {out: 1.0}
    for node in reversed(order):
        for parent, slope in node.parents:
            grad[parent] = grad.get(parent, 0.0) + slope * grad[node]
    return [grad.get(node, 0.0) for node in inputs]
