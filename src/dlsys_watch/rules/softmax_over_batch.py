"""A softmax that runs along the batch."""

from dlsys_watch.graphs import kind, previous
from dlsys_watch.rule import Rule

LOSSES = ("nll_loss", "kl_div", "cross_entropy", "binary_cross_entropy")


class SoftmaxOverBatch(Rule):
    id, trap = "softmax-over-batch", "01.2"
    reads = "the axis of the softmax before a loss"

    def on_loss(self, loss):
        values, node = loss.input, loss.input.grad_fn
        if loss.name not in LOSSES or not loss.grad or node is None or values.dim() < 2:
            return
        if kind(node) == "Log":
            node = previous(node)
        if node is None or kind(node) not in ("Softmax", "LogSoftmax"):
            return
        axis = axis_of(node, values.dim())
        if axis == 0 and values.shape[0] > 1 and values.shape[1] > 1 and self.seldom(self.here()):
            self.say(f"softmax ran over axis 0, the {values.shape[0]} rows of the batch, and "
                     f"{loss.name} reads the {values.shape[1]} classes in axis 1")


def axis_of(node, dims: int) -> int:
    """The axis of a softmax, 0 or more; autograd keeps it as an unsigned number."""
    axis = node._saved_dim
    return (axis - 2**64 if axis > 2**63 else axis) % dims
