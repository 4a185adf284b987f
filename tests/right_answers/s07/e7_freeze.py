"""Exercise 07.7, `freeze`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import types

from torch import nn

from dlsys_checks.s07.e7_freeze import ex


@ex.right("a method bound to each part")
def bound_to_each(body):
    for module in body.modules():
        module.eval()
        module.train = types.MethodType(lambda self, mode=True: self, module)
    for p in body.parameters():
        p.requires_grad = False


@ex.right("a class of its own, derived on the spot")
def derived(body):
    def train(self, mode=True):
        return nn.Module.train(self, False)
    for module in body.modules():
        module.__class__ = type(type(module).__name__, (type(module),), {"train": train})
    body.train()
    body.requires_grad_(False)


@ex.right("a hook that switches to eval before each pass")
def by_hook(body):
    body.requires_grad_(False)
    body.register_forward_pre_hook(lambda module, args: nn.Module.train(module, False) and None)


@ex.right("the method replaced, and the body given back")
def given_back(body):
    for p in body.parameters():
        p.requires_grad_(False)
    eval_again = body.eval
    body.train = lambda mode=True: body
    for module in body.modules():
        module.training = False
    return eval_again()


ex.equivalent("body.train = lambda mode=True: body -> body.train = lambda mode=False: body",
              "the mode is not looked at")


@ex.probe("counters set back to 0", breaks="values")
def counters_set_back(body):
    body.requires_grad_(False).eval()
    body.train = lambda mode=True: body
    for name, buffer in body.named_buffers():
        if name.endswith("num_batches_tracked"):
            buffer.zero_()
