"""Exercise 02.6, `gradients`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

from dlsys_checks.s02.e6_gradients import collected, counted, ex

for mutant in ("-1", "1"):
    ex.equivalent("uses, todo = ({out: 0}, [out]) -> "
                  f"uses, todo = ({{out: {mutant}}}, [out])",
                  "out is no node's parent in its own graph: nobody reads its count")


ex.equivalent("if uses[parent] == 0: -> if uses[parent] <= 0:",
              "each pair is counted once up and once down: no count falls below 0")


@ex.right("a queue of nodes that are ready")
def by_counting(out, inputs):
    uses = counted(out)
    grad, ready = {node: 0.0 for node in uses}, [out]
    grad[out] = 1.0
    while ready:
        node = ready.pop(0)
        for parent, slope in node.parents:
            grad[parent] = grad[parent] + grad[node] * slope
            uses[parent] -= 1
            if uses[parent] == 0:
                ready.append(parent)
    return [grad.get(node, 0.0) for node in inputs]


@ex.right("a stack that lists each node after its parents")
def by_finish(out, inputs):
    order, seen, stack = [], {out}, [(out, iter(out.parents))]
    while stack:
        node, rest = stack[-1]
        for parent, _ in rest:
            if parent not in seen:
                seen.add(parent)
                stack.append((parent, iter(parent.parents)))
                break
        else:
            order.append(node)
            stack.pop()
    grad = dict.fromkeys(order, 0.0)
    grad[out] = 1.0
    for node in reversed(order):
        for parent, slope in node.parents:
            grad[parent] += slope * grad[node]
    return [grad.get(node, 0.0) for node in inputs]


@ex.right("graphlib's order")
def by_graphlib(out, inputs):
    import graphlib
    sorter = graphlib.TopologicalSorter(
        {node: [parent for parent, _ in node.parents] for node in counted(out)})
    grad = {out: 1.0}
    for node in list(sorter.static_order())[::-1]:
        for parent, slope in node.parents:
            grad[parent] = grad.get(parent, 0.0) + slope * grad[node]
    return [float(grad.get(node, 0)) for node in inputs]


@ex.right("each node asks its children")
def by_pulling(out, inputs):
    uses, children = counted(out), {}
    for node in uses:
        for parent, slope in node.parents:
            children.setdefault(parent, []).append((node, slope))
    grad, ready = {}, [out]
    while ready:
        node = ready.pop()
        shares = [grad[child] * slope for child, slope in children.get(node, [])]
        grad[node] = 1.0 if node is out else sum(shares)
        for parent, _ in node.parents:
            uses[parent] -= 1
            if not uses[parent]:
                ready.append(parent)
    return [grad.get(node, 0.0) for node in inputs]


ex.probe("the answer of the example, looked up",
         lambda out, inputs: [value + (value == 5.0) for value in collected(out, inputs)],
         says="of input", breaks="example")


@ex.probe("out among the inputs forgotten", breaks="each")
def out_itself_forgotten(out, inputs):
    return [0.0 if node is out else value
            for node, value in zip(inputs, collected(out, inputs), strict=True)]


@ex.probe("each change sent on by itself", breaks="paths")
def changes_sent_on_again(out, inputs):
    grad, todo = {}, {out: 1.0}
    while todo:
        node = next(iter(todo))
        change = todo.pop(node)
        grad[node] = grad.get(node, 0.0) + change
        for parent, slope in node.parents:
            todo[parent] = todo.get(parent, 0.0) + slope * change
    return [grad.get(node, 0.0) for node in inputs]
