"""The weight of a single chosen expert, which is 1 whatever the router says."""

import torch

from dlsys_watch.graphs import kind, maker, previous, step_back
from dlsys_watch.rule import Rule


class WeightByItself(Rule):
    id, trap = "weight-by-itself", "15.4"
    reads = "weights chosen by topk, one per row, that are divided by their sum"

    def on_arithmetic(self, sign, left, right, answer):
        if sign == "/" and torch.is_tensor(right) and right.shape == answer.shape and (
                kind_of(right) == "Sum" or kind_of(right) == "Topk"):
            self.look(right, answer, "divided by their sum")

    def on_softmax(self, values, answer, dim):
        if dim is not None and values.dim() and values.shape[dim] == 1:
            self.look(values, answer, "put through a softmax over one")

    def look(self, before, answer, how):
        # Exactly 1: with 1e-6 in the sum a trickle is left, of which AdamW makes full steps.
        if answer.requires_grad and answer.numel() > 1 and is_chosen(before) and (
                (answer == 1).all()):
            self.say(f"the weights of the chosen experts, one a row, are {how}: all "
                     f"{answer.numel()} are 1, and the router learns nothing from the loss")


def kind_of(tensor) -> str:
    """The function that made a tensor, past views and an added number; "" for a leaf."""
    node = maker(tensor)
    if node is not None and kind(node) in ("Add", "Clamp", "ClampMin"):
        node = step_back(previous(node))
    return kind(node) if node is not None else ""


def is_chosen(tensor) -> bool:
    """Whether topk has chosen what a tensor holds, or what it sums."""
    node = maker(tensor)
    for _ in range(3):
        if node is None or kind(node) == "Topk":
            return node is not None
        node = step_back(previous(node))
    return False
