"""Methods of tensors, listened to while a model is looked at: every one is called too often.

What a wrapper does when nothing is looked at costs nothing, because it is not there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dlsys_watch import places
from dlsys_watch.patching import Patches

is_compiling = torch.compiler.is_compiling
METHODS = {"view": "view", "reshape": "view", "detach": "detach", "masked_fill": "fill",
           "masked_fill_": "fill", "softmax": "softmax", "argmax": "choose", "max": "choose",
           "topk": "choose", "sigmoid": "softmax", "round": "round",
           "__gt__": "compare", "__ge__": "compare", "gt": "compare",
           "ge": "compare", "__add__": "+", "__iadd__": "+", "__radd__": "+", "add": "+",
           "__sub__": "-", "sub": "-", "__mul__": "*", "__rmul__": "*", "mul": "*",
           "__truediv__": "/", "__itruediv__": "/", "div": "/", "div_": "/"}
FUNCTIONS = ("reshape", "softmax", "sigmoid", "round",
             "argmax", "max", "topk", "add", "sub", "mul", "div", "gt", "ge")


class TensorCalls:
    """The wrappers of tensor methods: put in place by `arm(True)`, taken out by `arm(False)`."""

    def __init__(self, watch):
        self.watch, self.patches = watch, Patches()
        self.makers = {event: telling(watch, event) for event in set(METHODS.values())}
        self.armed: bool | None = False   # None: methods alone
        self.closed = False

    def arm(self, wanted: bool) -> None:
        if wanted is self.armed or self.closed:
            return
        self.armed = wanted
        self.patches.undo()
        if not wanted:
            return
        for name, event in METHODS.items():
            self.patches.replace(Tensor, name, self.makers[event])
        for name in FUNCTIONS if self.watch.run.models else ():
            self.patches.replace(torch, name, self.makers[METHODS[name]])

    def arm_methods(self) -> None:
        """Methods alone, until a model runs: what a program imports from torch is torch's own."""
        self.arm(True)
        self.armed = None

    def close(self) -> None:
        """Take all out for good."""
        self.patches.undo()
        self.armed, self.closed = False, True


def telling(watch, event: str):
    """A maker of wrappers that emit an event after the call."""
    teller, plain, compiling = TELLERS.get(event, arithmetic), PLAIN, is_compiling

    def make(real):
        def method(self, *args, **kwargs):
            answer = real(self, *args, **kwargs)
            if type(self) in plain and not compiling() and watch.may_inspect():
                watch.tell(teller, (event, self, answer, *args), kwargs)
            return answer
        return method
    return make


PLAIN = (Tensor, torch.nn.Parameter)


def view(watch, _, tensor, answer, *args, **kwargs) -> None:
    if tensor.dim() > 2 and places.is_theirs(places.asking()):
        watch.emit("view", tensor, answer)


def detach(watch, _, tensor, answer) -> None:
    if tensor.grad_fn is not None:
        watch.emit("detach", tensor)


def fill(watch, _, tensor, answer, mask, value) -> None:
    if type(mask) is Tensor and isinstance(value, int | float):
        watch.emit("fill", tensor, mask, value)


def softmax(watch, _, tensor, answer, *args, dim=None, **kwargs) -> None:
    watch.emit("softmax", tensor, answer, args[0] if args else dim)


def choose(watch, _, tensor, answer, *args, **kwargs) -> None:
    watch.emit("choose", tensor)


def compare(watch, _, tensor, answer, threshold) -> None:
    if isinstance(threshold, int | float):
        watch.emit("compare", tensor, threshold)


def rounded(watch, _, tensor, answer, *args, **kwargs) -> None:
    watch.emit("compare", tensor, 0.5)


def arithmetic(watch, sign, left, answer, right=None, **_) -> None:
    if type(right) in PLAIN or left.dtype is torch.uint8:
        watch.emit("arithmetic", sign, left, right, answer)


TELLERS = {"view": view, "detach": detach, "fill": fill, "softmax": softmax, "choose": choose,
           "compare": compare, "round": rounded}
