"""Exercise 02.6, `gradients`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("02.6", "gradients", seen=("graph", "calls"), says="computed forwards")

ex.promise_table("""
each        | Compute d out / d node for each node in inputs. | gradient of input; gradients;
              result
parents     | Args: out: a node. A node has one attribute, parents, which is a list of pairs
              (parent, slope). The slope is d node / d parent, as a float. | case more than two
              parents; slopes of zero; a random graph; tiny slopes
twice       | The same parent can occur twice in the list. | case a parent that occurs twice; a
              value added to itself; many paths over pairs; the example
independent | inputs: a list of nodes. Returns: A list of floats, with 0.0 where out does not
              depend on the input. | case inputs that do not matter; an inner node for out; a random
              graph; two calls on one graph
long        | The graph can be a chain of thousands of nodes, so do not recurse. | case a long
              chain | nested calls
paths       | The graph can have millions of paths, so let each node pass its gradient on only once.
              | reads of a node's parents; uses of a slope
example     | Example: out.parents = [(a, 2.0), (a, 3.0)] gives [5.0] for [a]. | case the example
""")

RUNGS = 6
# A graph is a list: for each node the pairs [index of an earlier node, slope]. A call is the index
# of `out` and those of `inputs`.


@ex.cases
def cases(g):
    number = integers(g)

    def slope():
        return (0.4 + float(torch.rand((), generator=g))) * (1 - 2 * number(0, 2))

    def pairs(*parents):
        return [[k, slope()] for k in parents]

    def one(name, graph, *calls):
        return name, {"graph": graph, "calls": [list(call) for call in calls]}

    def residual(rungs):
        """v + f(v), rung after rung: two ways from each v to the next."""
        graph = [[]]
        for _ in range(rungs):
            v = len(graph) - 1
            graph += [[[v, slope()]], [[v, 1.0], [v + 1, slope()]]]
        return graph

    def doubled(rungs):
        return [[], *([[k, 1.0], [k, slope()]] for k in range(rungs))]

    def drawn(leaves, length, most):
        """Nodes with one to `most` parents among the six before them."""
        return [[] for _ in range(leaves)] + [
            pairs(*{number(max(0, k - 6), k) for _ in range(number(1, most + 1))})
            for k in range(leaves, leaves + length)]

    chain, n = 2500 + number(0, 800), number(4, 7)
    early = [[], [], [], pairs(0, 1), pairs(3, 2), pairs(4)]
    zero = [[], [], [[0, 0.0], [1, 0.0]], pairs(0, 2), [[3, 0.0], [2, slope()]], pairs(3, 4)]
    wide = drawn(n, 18, 2)
    tiny = [[], [[0, 1e-9 * slope()]], [[1, 1e-9 * slope()], [0, 1e-18 * slope()]]]
    separate = [[], [], [], pairs(0), pairs(1), pairs(4, 1), pairs(3, 0)]
    return [
        one("a value used twice, early use first", [*early, pairs(3, 5)], (6, [0, 1, 2])),
        one("a value used twice, late use first", [*early, pairs(5, 3)], (6, [2, 0, 1])),
        one("a parent that occurs twice", [[], [], pairs(0, 1), pairs(2, 2), pairs(0, 3, 0)],
            (4, [0, 1])),
        one("a value added to itself", [[], [], pairs(0, 1), [[2, 1.0], [2, 1.0]], pairs(3, 0)],
            (4, [0, 1])),
        one("more than two parents", [[], [], [], [], pairs(2, 0, 3, 1), pairs(4, 1, 0)],
            (5, [0, 1, 2, 3])),
        one("slopes of zero", zero, (5, [0, 1])),
        one("tiny slopes", tiny, (2, [0, 1])),
        one("inputs that do not matter", separate, (6, [1, 0, 2, 4])),
        one("inner nodes and out among the inputs", [*early, pairs(3, 5)], (6, [3, 6, 0, 5, 4])),
        one("an input twice", [[], [], pairs(0, 1), pairs(2, 0)], (3, [1, 0, 1])),
        one("no inputs, no parents", [[], [], pairs(0, 1)], (2, []), (0, [0])),
        one("an inner node for out", wide, (len(wide) - 4, [0, len(wide) - 1, 1, 2])),
        one("a random graph", drawn(n, 25, 4), (n + 24, list(range(n))[::-1])),
        one("two calls on one graph", wide, (len(wide) - 1, [0, 1]), (len(wide) - 2, [1, 3, 0]),
            (len(wide) - 1, [0, 1])),
        one("many paths over pairs", doubled(2 * RUNGS), (RUNGS, [0]), (2 * RUNGS, [0])),
        one("many paths over branches", residual(2 * RUNGS), (2 * RUNGS, [0]),
            (4 * RUNGS, [0, 2])),
        one("a long chain", [[], [], *([[k, 1.0], [1, slope()]] for k in (0, *range(2, chain)))],
            (40, [0, 1]), (chain, [0, 1])),
        one("the example", [[], [[0, 2.0], [0, 3.0]]], (1, [0]))]


@ex.act
def act(fn, graph, calls):
    import sys
    reads, uses, depths = {}, {}, [0]

    class Slope(float):
        """A float that counts how often it is multiplied."""

        def __mul__(self, other):
            uses[id(self)] = uses.get(id(self), 0) + 1
            return float(self) * other

        __rmul__ = __mul__

    class Node:
        @property
        def parents(self):
            reads[self] = reads.get(self, 0) + 1
            try:  # once a frame that deep exists, look for the next
                while True:
                    sys._getframe(base + depths[0] + 10)
                    depths[0] += 10
            except ValueError:
                return list(known[self])

    base = 0
    while True:
        try:
            sys._getframe(base)
        except ValueError:
            break
        base += 1
    nodes = [Node() for _ in graph]
    known = {node: [(nodes[k], Slope(slope)) for k, slope in parents]
             for node, parents in zip(nodes, graph, strict=True)}
    found = []
    for out, inputs in calls:
        reads.clear()
        uses.clear()
        depths[0] = 0
        grads = None
        try:
            grads = fn(nodes[out], [nodes[k] for k in inputs])
        except RecursionError:
            depths[0] = max(depths[0], out)
        if isinstance(grads, list):
            grads = [float(v) if type(v) is Slope else v for v in grads]
        found.append({"grads": grads, "depth": depths[0], "reads": max(reads.values(), default=0),
                      "uses": max(uses.values(), default=0)})
    first, last = found[0], found[-1]
    # What grows between a small `out` and a large one is too much; twice is for good measure.
    return {"grads": [part["grads"] for part in found],
            "deeper": last["depth"] if last["depth"] > 100 + first["depth"] else 0,
            "more_reads": last["reads"] if last["reads"] > 4 * max(2, first["reads"]) else 0,
            "more_uses": last["uses"] if last["uses"] > 2 * max(1, first["uses"]) else 0}


def forward(graph, out, place):
    """Slope of `out` by one node, from that node forwards; and the sum over all paths' sizes."""
    slopes, sizes = [0.0] * len(graph), [0.0] * len(graph)
    slopes[place] = sizes[place] = 1.0
    for k in range(place + 1, out + 1):
        slopes[k] = sum(slope * slopes[j] for j, slope in graph[k])
        sizes[k] = sum(abs(slope) * sizes[j] for j, slope in graph[k])
    return (slopes[out], sizes[out]) if place <= out else (0.0, 0.0)


@ex.law
def law(out, graph, calls):
    expect_parts(out, "grads", "deeper", "more_reads", "more_uses")
    # Seen by the nodes, beside the learner's code: gradients do not show how they were found.
    expect_equal("nested calls, which grow with the chain", out["deeper"], 0,
                 "Keep a list of the nodes that are still to be visited.")
    expect_length("answers", out["grads"], len(calls))
    for (last, inputs), grads in zip(calls, out["grads"], strict=True):
        expect_type("result", grads, list)
        expect_length("gradients", grads, len(inputs), "Every input gets one gradient, in order.")
        for k, (place, got) in enumerate(zip(inputs, grads, strict=True)):
            wanted, size = forward(graph, last, place)
            expect_close(f"gradient of input {k}", got, wanted, rtol=1e-9, atol=1e-12 * size,
                         look="The expected value is computed forwards, from this input to out.")
    expect_equal("reads of a node's parents, which grow with the paths", out["more_reads"], 0,
                 "Each node passes its gradient on once, not once per path.")
    expect_equal("uses of a slope, which grow with the graph", out["more_uses"], 0,
                 "Each node passes its gradient on once, after all its contributions have arrived.")


def counted(out):
    """How often each node under `out` stands among the parents of others."""
    uses, todo = {out: 0}, [out]
    while todo:
        for parent, _ in todo.pop().parents:
            if parent not in uses:
                uses[parent] = 0
                todo.append(parent)
            uses[parent] += 1
    return uses


@not_an_answer
def collected(out, inputs):
    parents, uses, todo = {}, {out: 0}, [out]
    while todo:
        node = todo.pop()
        parents[node] = node.parents
        for parent, _ in parents[node]:
            if parent not in uses:
                uses[parent] = 0
                todo.append(parent)
            uses[parent] += 1
    grad, ready = {out: 1.0}, [out]
    while ready:
        node = ready.pop()
        for parent, slope in parents[node]:
            grad[parent] = grad.get(parent, 0.0) + slope * grad[node]
            uses[parent] -= 1
            if not uses[parent]:
                ready.append(parent)
    return [grad.get(node, 0.0) for node in inputs]


# ---- wrong, by name

wrong = ex.edits(collected)
AT_ONCE = "uses = dict.fromkeys(uses, 1)\n    grad, ready ="  # a node is ready at its first share
wrong("using a queue and passing a node's gradient on as soon as the node is reached", "each",
      "grad, ready =", AT_ONCE, "ready.pop()", "ready.pop(0)", says="computed forwards")
wrong("using a stack and passing a node's gradient on as soon as the node is reached", "each",
      "grad, ready =", AT_ONCE, says="computed forwards")
wrong("keeping only the last contribution to a gradient instead of the sum", "each",
      "grad.get(parent, 0.0) + ", "", says="computed forwards")
wrong("adding up the absolute values of the contributions", "each",
      "+ slope * grad[node]", "+ abs(slope * grad[node])", says="computed forwards")
wrong("returning the gradients in the order in which they were found", "each",
      "in inputs", "in sorted(inputs, key=[*grad, *inputs].index)", says="of input")
wrong("returning 0.0 for every input that has parents", "each",
      "grad.get(node, 0.0)", "0.0 if node.parents else grad.get(node, 0.0)", says="of input")
wrong("adding each node's gradient to its gradient from the last call", "each",
      "return [", 'for n in grad: n.grad = getattr(n, "grad", 0.0) + grad[n]\n    return [',
      "grad.get(node, 0.0)", 'getattr(node, "grad", 0.0)', says="of input")
wrong("counting a parent only once if it occurs twice", "twice",
      "= node.parents", "= dict(node.parents).items()")
wrong("storing the parents in a set, which merges equal pairs", "twice",
      "= node.parents", "= set(node.parents)", says="of input")
wrong("using at most two parents of each node", "parents",
      "= node.parents", "= node.parents[:2] if len(dict(node.parents)) > 2 else node.parents")
wrong("treating a contribution of zero as one that has not arrived", "parents",
      "-= 1", "-= slope * grad[node] != 0", says="of input")
wrong("ignoring tiny contributions", "parents",
      "slope * grad[node]", "(share if abs(share := slope * grad[node]) > 1e-12 else 0.0)")
wrong("assuming that out depends on every input", "independent",
      "grad.get(node, 0.0)", "grad[node]", says="raised KeyError")
wrong("skipping inputs that do not affect the output", "independent",
      "in inputs", "in inputs if node in grad", says="number of gradients")
wrong("returning None for inputs that do not affect the output", "independent",
      "grad.get(node, 0.0)", "grad.get(node)", says="type of the gradient")


def picked(grad, inputs):
    return [grad.get(node, 0.0) for node in inputs]


@ex.wrong("walking every path separately", breaks="paths")
def every_path(out, inputs):
    grad, todo = {}, [(out, 1.0)]
    while todo:
        node, share = todo.pop()
        grad[node] = grad.get(node, 0.0) + share
        todo += [(parent, share * slope) for parent, slope in node.parents]
    return picked(grad, inputs)


@ex.wrong("passing the gradient on once for each contribution that arrives", breaks="paths")
def each_share(out, inputs):
    grad, todo = {out: 1.0}, [(out, 1.0)]
    while todo:
        node, share = todo.pop()
        merged = {}
        for parent, slope in node.parents:
            merged[parent] = merged.get(parent, 0.0) + slope * share
        for parent, more in merged.items():
            grad[parent] = grad.get(parent, 0.0) + more
            todo.append((parent, more))
    return picked(grad, inputs)


@ex.wrong("looping over all nodes until no gradient changes", breaks="paths")
def rounds(out, inputs):
    edges = {node: node.parents for node in counted(out)}
    grad, before = {out: 1.0}, None
    for _ in range(100 if len(edges) > 100 else len(edges)):
        grad, before = {out: 1.0}, grad
        for node, parents in edges.items():
            for parent, slope in parents:
                grad[parent] = grad.get(parent, 0.0) + slope * before.get(node, 0.0)
        if grad == before:
            break
    return picked(grad, inputs) if len(edges) <= 100 else collected(out, inputs)


def visited(out):
    """Nodes under `out`, each after its parents, by a function that calls itself."""
    order = {}

    def visit(node, seen):
        if node not in seen:
            seen.add(node)
            for parent, _ in node.parents:
                visit(parent, seen)
            order[node] = None
    visit(out, set())
    return list(order)


def along(order, out, inputs):
    grad = {out: 1.0}
    for node in reversed(order):
        for parent, slope in node.parents:
            grad[parent] = grad.get(parent, 0.0) + slope * grad.get(node, 0.0)
    return picked(grad, inputs)


ex.wrong("walking from the inputs to out instead of from out to the inputs",
         lambda out, inputs: along(counted(out), out, inputs), says="of input", breaks="each")
wrong("starting inner nodes with their gradients from an earlier call", "each",
      "grad, ready = {out: 1.0}, [out]", "out.grad, ready = 1.0, [out]",
      "grad[parent] = grad.get(parent, 0.0) + slope * grad[node]",
      'parent.grad = getattr(parent, "grad", 0.0) + slope * node.grad',
      "grad.get(node, 0.0)", 'getattr(node, "grad", 0.0)', says="of input")
ex.wrong("recursing into every parent",
         lambda out, inputs: along(visited(out), out, inputs), breaks="long")


@ex.wrong("recursing after raising the recursion limit", breaks="long")
def raised_limit(out, inputs):
    import sys
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        return along(visited(out), out, inputs)
    finally:
        sys.setrecursionlimit(limit)
