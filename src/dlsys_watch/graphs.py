"""Reading the graph that autograd has recorded; nothing here changes or keeps it."""

from __future__ import annotations

import torch

PASSED = ("Squeeze", "Unsqueeze", "View", "Reshape", "Alias", "Transpose", "Permute", "TBackward",
          "Clone", "ToCopy", "Select", "Slice", "Expand", "Flatten", "MovedimBackward", "Movedim")


def maker(tensor, passed=PASSED, most: int = 8):
    """The node that computed a tensor's values, past views and copies; None for a leaf."""
    return step_back(tensor.grad_fn, passed, most)


def step_back(node, passed=PASSED, most: int = 8):
    """The first node, from `node` backwards, that is not a view or a copy."""
    while node is not None and most and node.name().startswith(passed):
        node, most = previous(node), most - 1
    return node


def previous(node):
    """The node of a node's first input."""
    return node.next_functions[0][0] if node.next_functions else None


def is_made_by(tensor, *names: str) -> bool:
    """Whether a tensor comes straight from one of these functions: "Sigmoid", "Softmax"."""
    node = maker(tensor)
    return node is not None and kind(node) in names


def kind(node) -> str:
    """The name of a node's function without number and ending: "Softmax"."""
    return node.name().partition("Backward")[0]


def saved_number(node) -> float | None:
    """The one number by which / or * makes a tensor; None for all else."""
    other = getattr(node, "_saved_other", None) if node and kind(node) in ("Div", "Mul") else None
    return float(other) if torch.is_tensor(other) and other.numel() == 1 else None


def nodes(tensor, most: int = 4000) -> list:
    """All nodes that a tensor was computed by, nearest first; at most `most` of them."""
    return nodes_before(tensor.grad_fn, most)


def nodes_before(node, most: int = 4000) -> list:
    """A node and all nodes before it, nearest first; at most `most` of them."""
    todo, seen, found = [node], set(), []
    for node in todo:
        if node is None or node in seen:
            continue
        seen.add(node)
        found.append(node)
        if len(found) >= most:
            break
        todo += [before for before, _ in node.next_functions]
    return found


def leaves(tensor, most: int = 4000) -> list:
    """The leaf tensors that a tensor was computed from and that require a gradient."""
    return leaves_of(nodes(tensor, most))


def leaves_of(found: list) -> list:
    """The leaf tensors among nodes."""
    return [node.variable for node in found if node.name() == "torch::autograd::AccumulateGrad"]


def summands(node, most: int = 20) -> list:
    """The nodes of the terms whose sum a number is, past factors; [node] if it is no sum."""
    found, todo = [], [node]
    while todo and len(found) + len(todo) <= most:
        node = todo.pop(0)
        before = [one for one, _ in node.next_functions if one is not None]
        single = len(before) == 1 and kind(node) in ("Mul", "Div", "Neg", "ToCopy")
        if kind(node) in ("Add", "Sub") or single:
            todo += before
        else:
            found.append(node)
    return found + todo
