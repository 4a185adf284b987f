"""A column minus or times a row: every prediction meets every target."""

import torch

from dlsys_watch.rule import Rule

LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


class BroadcastLoss(Rule):
    id, trap = "broadcast-loss", "03.2"
    reads = "the shapes of predictions and targets where they are subtracted or multiplied"

    def on_loss(self, loss):
        if loss.name in LOSSES:
            self.compare(loss.input.shape, loss.target.shape, loss.name)

    def on_arithmetic(self, sign, left, right, answer):
        if sign not in "-*" or not torch.is_tensor(right) or (
                left.requires_grad is right.requires_grad):
            return
        predicted = left if left.requires_grad else right
        if predicted.grad_fn is None:
            return
        if sign == "-":
            self.compare(left.shape, right.shape, "a difference")
        elif not self.run.stack and is_column_against_row(left.shape, right.shape) and (
                not self.seldom(self.here(), first=1)):   # outside of models, and again
            self.compare(left.shape, right.shape, "a product", "products")

    def compare(self, left, right, what, many="differences"):
        if is_column_against_row(left, right):
            rows = torch.broadcast_shapes(left, right)
            self.say(f"broadcast loss: {what} of {tuple(left)} and {tuple(right)} makes "
                     f"{rows[0]} x {rows[1]} {many}")


def is_column_against_row(left, right) -> bool:
    """(N, 1) against (N,), N > 1."""
    if len(left) < len(right):
        left, right = right, left
    return (len(left), len(right)) == (2, 1) and left[1] == 1 and left[0] == right[0] > 1
