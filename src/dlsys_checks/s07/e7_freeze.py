"""Exercise 07.7, `freeze`."""

from __future__ import annotations

import copy
import types

import torch
from torch import nn

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts

ex = exercise("07.7", "freeze", seen=("kind", "x", "weight", "mean", "calls"))

ex.promise("freeze", "Freeze a module for good, in place.", says=("returned value", "raised"))
ex.promise("tensors", "No tensor of it asks for a gradient,", says=("tensors of the body",))
ex.promise("eval", "and it always computes as in eval mode:", says=("output of the body",))
ex.promise("train", "also when a model that holds it, at any depth, is put into train mode "
           "afterwards, once or often.",
           cases=("train() once", "train() three times", "deep inside", "eval() and train()",
                  "a dropout in the body", "a norm by itself", "weights of many sizes"))
ex.promise("buffers", "Its buffers do not move then.", says=("buffers of the body",))
ex.promise("called", "It is still called as before, with gradients flowing through it to its "
           "input.", says=("gradient at the input",))


@ex.cases
def cases(g):
    def one(name, kind, calls):
        rows, width = (int(torch.randint(5, 12, (), generator=g)) for _ in range(2))
        return name, {"kind": kind, "calls": list(calls),
                      "x": torch.randn(rows, 4, generator=g) + 1,
                      "weight": torch.randn(width, 4, generator=g),
                      "mean": torch.randn(width, generator=g)}
    return [one("train() never", "plain", []), one("eval() alone", "plain", ["eval"]),
            one("train() once", "plain", ["train"]),
            one("train() three times", "plain", ["train"] * 3),
            one("eval() and train()", "plain", ["eval", "train"]),
            one("weights of many sizes", "plain", ["train"]),
            one("deep inside", "deep", ["train", "train"]),
            one("a dropout in the body", "dropout", ["train"]),
            one("a dropout, train() never", "dropout", []),
            one("a norm by itself", "norm", ["train"])]


@ex.act
def act(fn, kind, x, weight, mean, calls):
    width = len(mean)
    linear, norm = nn.Linear(4, width, bias=False), nn.BatchNorm1d(width)
    with torch.no_grad():
        linear.weight.copy_(weight)
        norm.running_mean.copy_(mean)
    body = {"plain": lambda: nn.Sequential(linear, nn.Sequential(norm)),
            "deep": lambda: nn.Sequential(nn.Sequential(linear), norm),
            "dropout": lambda: nn.Sequential(linear, norm, nn.Dropout(0.5)),
            "norm": lambda: norm}[kind]()
    front = linear if kind == "norm" else nn.Identity()
    model = nn.Sequential(front, body, nn.Linear(width, 2))
    if kind == "deep":
        model = nn.Sequential(nn.Sequential(nn.Sequential(front, body)), nn.Linear(width, 2))
    model.train()
    out = fn(body)
    for call in calls:
        getattr(model, call)()
    before = {n: b.clone() for n, b in body.named_buffers()}
    given = front(x).detach().requires_grad_()
    made = [body(given) for _ in range(2)]
    made[0].sum().backward()
    moved = sum(not torch.equal(b, before[n]) for n, b in body.named_buffers())
    return {"returned": out is None or out is body, "made": made, "moved": moved,
            "grad": given.grad, "asking": sum(p.requires_grad for p in body.parameters())}


@ex.law
def law(out, kind, x, weight, mean, calls):
    expect_parts(out, "returned", "made", "moved", "grad", "asking")
    expect_equal("returned value is nothing or the body", out["returned"], True)
    expect_equal("tensors of the body that ask for a gradient", out["asking"], 0)
    expect_length("outputs", out["made"], 2)
    h = x.double() @ weight.double().T
    scale = (1 + 1e-5) ** -0.5
    wanted = ((h - mean.double()) * scale).float()
    for made in out["made"]:
        expect_close("output of the body after train()", made, wanted, rtol=1e-3,
                     look="It computes as in train mode.")
    expect_equal("buffers of the body that moved", out["moved"], 0)
    through = torch.full_like(h, scale)
    through = through if kind == "norm" else through @ weight.double()
    expect_close("gradient at the input of the body", out["grad"], through.float(), rtol=1e-3)


# ---- right by another route

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
    body.register_forward_pre_hook(lambda module, args: module.eval() and None)


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


# ---- wrong, by name

def held(body, *, grad=False, evaluate=True, keep=True):
    """The worked answer with its pieces as options."""
    body.requires_grad_(grad)
    if evaluate:
        body.eval()
    if keep:
        body.train = lambda mode=True: body


@ex.wrong("a frozen copy", says="returned value", breaks="freeze")
def frozen_copy(body):
    twin = copy.deepcopy(body)
    held(twin)
    held(body)
    return twin


@ex.wrong("requires_grad alone", says="output of the body", breaks="eval")
def requires_grad_only(body):
    body.requires_grad_(False)


@ex.wrong("eval mode alone, kept for good", says="tensors of the body", breaks="tensors")
def eval_only(body):
    held(body, grad=True)


@ex.wrong("the direct tensors only, not those of its parts", says="tensors of the body",
          breaks="tensors")
def shallow(body):
    held(body, grad=True)
    for p in body.parameters(recurse=False):
        p.requires_grad_(False)


@ex.wrong("eval mode that the next train() takes back", says="output of the body",
          breaks="train")
def eval_once(body):
    held(body, keep=False)


@ex.wrong("eval mode that outlives one train(), but not the next", says="output of the body",
          breaks="train")
def outlives_one(body):
    held(body, keep=False)

    def once(mode=True):
        if mode:
            del body.train
        return body
    body.train = once


@ex.wrong("train() without effect, eval() never called", says="output of the body",
          breaks="eval")
def never_eval(body):
    held(body, evaluate=False)


@ex.wrong("the norms held in eval mode, dropout not", says="output of the body", breaks="eval")
def norms_only(body):
    body.requires_grad_(False)
    for module in body.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
            module.train = types.MethodType(lambda self, mode=True: self, module)


@ex.wrong("the norms' momentum set to 0, their mode left", says="output of the body",
          breaks="eval")
def no_momentum(body):
    body.requires_grad_(False)
    for module in body.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = 0.0


@ex.wrong("a counter that goes on counting batches", says="buffers of the body",
          breaks="buffers")
def counts_on(body):
    held(body)

    def count(module, args):
        for name, buffer in module.named_buffers():
            if "tracked" in name:
                buffer.add_(1)
    body.register_forward_pre_hook(count)


@ex.wrong("no_grad around the body, which cuts the gradient off", says="gradient at the input",
          breaks="called")
def cut_off(body):
    held(body)
    inner = body.forward

    def forward(x):
        with torch.no_grad():
            out = inner(x)
        return out + 0 * x.sum()
    body.forward = forward
