"""Exercise 07.7, `freeze`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("07.7", "freeze", seen=("kind", "x", "state", "calls", "train"),
              says="output of the body")

ex.promise_table("""
freeze     | Freeze a module for good, in place. | returned value; raised; another object
tensors    | None of the body's parameters requires a gradient. | parameters of the body
eval       | The body always computes as in eval mode. | output of the body
train      | Putting the body, or a model that contains it at any depth, into train mode later, once
             or many times, does not change how the body computes. | case train() once; train()
             seven times; train() of the body itself; deep inside; eval() and train(); a dropout in
             the body; a norm by itself; weights of many sizes; a part that reads its training flag;
             frozen twice; already in eval mode; a scale with a name of its own
values     | The body's parameters and buffers keep their values. | that changed; output of the body
called     | You call the body as before, and gradients still flow through it to its input. |
             gradient at the input; its second argument; body's hook
given back | train() and eval() still return the body. | do not return
others     | Other modules, even of the same class, are not affected. | other modules; class
""")


@ex.cases
def cases(g):
    def one(name, kind, calls, train=True):
        rows, width = (int(torch.randint(5, 12, (), generator=g)) for _ in range(2))
        state = {"weight": torch.randn(width, 4, generator=g),
                 "mean": torch.randn(width, generator=g),
                 "var": 0.3 + 3 * torch.rand(width, generator=g),
                 "gain": 0.5 + torch.rand(width, generator=g),
                 "bias": torch.randn(width, generator=g)}
        return name, {"kind": kind, "calls": list(calls), "state": state, "train": train,
                      "x": torch.randn(rows, 4, generator=g) + 1}
    return [one("train() never", "plain", []), one("eval() alone", "plain", ["eval"]),
            one("train() once", "plain", ["train"]),
            one("train() seven times", "plain", ["train"] * 7),
            one("train() of the body itself", "plain", ["body"]),
            one("eval() and train()", "plain", ["eval", "train"]),
            one("weights of many sizes", "plain", ["train"]),
            one("deep inside", "deep", ["train", "train"]),
            one("a dropout in the body", "dropout", ["train"]),
            one("a dropout, train() never", "dropout", []),
            one("a part that reads its training flag", "own", ["train"]),
            one("a scale with a name of its own", "scale", ["train"]),
            one("frozen twice", "twice", ["train"]),
            one("already in eval mode", "plain", ["train"], train=False),
            one("a norm by itself", "norm", ["train"])]


@ex.act
def act(fn, kind, x, state, calls, train):
    class Own(nn.Module):
        """Doubles while it trains; times comes with the call."""

        def forward(self, x, times=1):
            return times * (2 * x if self.training else x)

    class Scaled(nn.Module):
        """A body with a parameter of its own, and a second argument."""

        def __init__(self, layers):
            super().__init__()
            self.layers, self.gamma = layers, nn.Parameter(torch.ones(()))

        def forward(self, x, times=1):
            return times * (2 if self.training else 1) * self.gamma * self.layers(x)

    width = len(state["mean"])
    linear, norm = nn.Linear(4, width, bias=False), nn.BatchNorm1d(width)
    with torch.no_grad():
        for tensor, key in ((linear.weight, "weight"), (norm.running_mean, "mean"),
                            (norm.running_var, "var"), (norm.weight, "gain"),
                            (norm.bias, "bias")):
            tensor.copy_(state[key])
        norm.num_batches_tracked.fill_(7)
    plain = nn.Sequential(linear, nn.Sequential(norm))
    body = {"deep": lambda: nn.Sequential(nn.Sequential(linear), norm),
            "dropout": lambda: nn.Sequential(linear, norm, nn.Dropout(0.5)),
            "own": lambda: nn.Sequential(linear, nn.Sequential(norm, Own())),
            "scale": lambda: Scaled(plain), "norm": lambda: norm}.get(kind, lambda: plain)()
    front = linear if kind == "norm" else nn.Identity()
    model = nn.Sequential(front, body, nn.Linear(width, 2))
    if kind == "deep":
        model = nn.Sequential(nn.Sequential(nn.Sequential(front, body)), nn.Linear(width, 2))
    model.train()
    body.train(train)
    first, heard = nn.Sequential(nn.Dropout(0.5)), []  # first is frozen before
    body.register_forward_hook(lambda *call: heard.append(len(call)))
    others = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), Own())
    names = ("train", "eval", "forward", "__call__", "requires_grad_")
    kinds = {nn.Module, nn.Sequential, nn.Linear, nn.BatchNorm1d, nn.Dropout, Own, Scaled}
    methods = {(c, n): vars(c)[n] for c in kinds for n in names if n in vars(c)}
    held = [*body.parameters(), *body.buffers()]
    before = [t.detach().clone() for t in held]
    fn(first)
    if "train" in calls:
        first.train()
    alone = first(torch.ones(64))
    out = fn(body)
    at_once = sum(not torch.equal(t, was) for t, was in zip(held, before))
    if kind == "twice":
        fn(body)
    for call in calls:
        if call == "body":
            body.train()
        else:
            getattr(model, call)()
            getattr(first, call)()
    others.eval()
    others.train()
    touched = [c.__name__ for c in kinds for n in names if vars(c).get(n) != methods.get((c, n))]
    for c in kinds:  # what an answer did to a class must not outlive it
        for n in names:
            if (c, n) in methods:
                setattr(c, n, methods[c, n])
            elif n in vars(c):
                delattr(c, n)
    given = front(x).detach().requires_grad_()
    made = [body(given)]
    if "train" in calls:
        model.train()
    made.append(body(given))
    if made[0].requires_grad:
        made[0].sum().backward()
    after = [*body.parameters(), *body.buffers()]
    moved = sum(not torch.equal(t, was) for t, was in zip(held, before))
    calls_heard, times = len(heard), 1.0
    if kind == "scale":
        try:
            times = (body(given, times=3) / made[0]).median().item()
        except TypeError:  # it takes no second argument any more
            times = 0.0
    return {"returned": out is None or out is body, "made": made,
            "at once": at_once, "moved": moved,
            "replaced": len(after) != len(held) or sum(a is not b for a, b in zip(after, held)),
            "grad": torch.zeros_like(given) if given.grad is None else given.grad,
            "asking": sum(p.requires_grad for p in body.parameters()), "times": times,
            "classes": sorted(set(touched)),
            "others": sum(not m.training for m in others.modules())
            + sum(not p.requires_grad for p in others.parameters()),
            "alone": alone, "first": first(torch.ones(64)), "heard": calls_heard,
            "given back": sum(one is not body for one in (body.eval(), body.train()))}


@ex.law
def law(out, kind, x, state, calls, train):
    expect_parts(out, "returned", "made", "at once", "moved", "replaced", "grad", "asking", "times",
                 "classes", "others", "alone", "first", "heard", "given back")
    expect_equal("classes that were changed instead of this one module", out["classes"], [],
                 "Replace the method on this one object only.")
    expect_equal("whether the returned value is None or the body", out["returned"], True)
    expect_equal("parameters of the body that require a gradient", out["asking"], 0)
    expect_length("outputs", out["made"], 2)
    h, scale = measured(x, state)
    wanted = ((h - state["mean"].double()) * scale + state["bias"].double()).float()
    for made in out["made"]:
        expect_close("output of the body", made, wanted, rtol=1e-3,
                     look="Does the body compute as in eval mode?")
    expect_equal("parameters and buffers that changed during the call", out["at once"], 0)
    expect_equal("parameters and buffers of the body that changed later", out["moved"], 0)
    expect_equal("parameters and buffers replaced by another object", out["replaced"], 0)
    through = scale.expand_as(h)
    through = through if kind == "norm" else through @ state["weight"].double()
    expect_close("gradient at the input of the body", out["grad"], through.float(), rtol=1e-3,
                 look="Gradients must flow through the body to its input.")
    times = 3.0 if kind == "scale" else 1.0
    expect_close("ratio of the outputs with and without its second argument", out["times"], times)
    expect_equal("calls that reached the body's hook", out["heard"], 2, "Keep the hooks.")
    expect_equal("other modules and parameters that were frozen as well", out["others"], 0)
    expect_equal("output of the body, when it is a single dropout layer", out["alone"],
                 torch.ones(64))
    expect_equal("output of the body frozen before this one (a dropout layer)", out["first"],
                 torch.ones(64))
    expect_equal("calls of train() and eval() that do not return the body", out["given back"], 0,
                 "Return the module, as torch does.")


def measured(x, state):
    """What the norm is given, and its factor, in float64."""
    h = x.double() @ state["weight"].double().T
    return h, state["gain"].double() * (state["var"].double() + 1e-5) ** -0.5


@not_an_answer
def held(body):
    body.requires_grad_(False)
    body.eval()
    body.train = lambda on=True: body


# ---- wrong, by name

wrong = ex.edits(held)
TRAIN = "body.train = lambda on=True: body"
NORMS = "for m in body.modules():\n        if isinstance(m, nn.BatchNorm1d): "
LAST: list = []
wrong("returning a frozen copy of the body", "freeze",
      "body.requires_grad_",
      "import copy; twin = copy.deepcopy(body).requires_grad_(False).eval()\n    "
      "body.requires_grad_",
      TRAIN, f"{TRAIN}; return twin")
wrong("setting only requires_grad, not eval mode", "eval", "body.eval()", "pass", TRAIN, "pass")
wrong("making eval mode permanent without setting requires_grad", "tensors", "False", "True")
wrong("freezing a copy but not the body itself", "tensors",
      "body.requires_grad_", "import copy; body = copy.deepcopy(body)\n    body.requires_grad_")
wrong("setting body.requires_grad = False, which changes no parameter",
      ("tensors", "eval", "train"),
      "body.requires_grad_(False)", "body.requires_grad = False", TRAIN, "pass")
wrong("freezing only the body's own tensors, not its submodules' tensors", "tensors",
      "body.requires_grad_(False)",
      "for p in body.parameters(): p.requires_grad_(True)\n    "
      "for p in body.parameters(recurse=False): p.requires_grad_(False)")
wrong("setting eval mode, which the next call of train() undoes", "train", TRAIN, "pass")


def held_for(body, times):
    def few(mode=True):
        left[0] -= 1
        return body if left[0] >= 0 else nn.Module.train(body, mode)
    left = [times]
    held(body)
    body.train = few


ex.wrong("keeping eval mode through one call of train(), but not through the next",
         held_for, breaks="train", times=1)
wrong("disabling train() without ever calling eval()", "eval", "body.eval()", "pass")
ex.wrong("keeping eval mode through only five calls of train()",
         held_for, breaks="train", times=5)
wrong("keeping only modules of class BatchNorm1d and Dropout in eval mode", "train",
      TRAIN,
      "for m in body.modules():\n        if isinstance(m, (nn.BatchNorm1d, nn.Dropout)): "
      "m.train = lambda mode=True, m=m: m")
wrong("freezing only the tensors named 'weight' or 'bias'", "tensors",
      TRAIN,
      f'{TRAIN}\n    for n, p in body.named_parameters(): '
      'p.requires_grad_(n.split(".")[-1] not in ("weight", "bias"))')
wrong("resetting the running variance to 1", "values",
      TRAIN, f"{TRAIN}\n    {NORMS}m.running_var.fill_(1.0)")
wrong("replacing the parameters by copies", "freeze",
      TRAIN,
      f"{TRAIN}\n    for m in body.modules():\n        "
      "for name, p in list(m.named_parameters(recurse=False)): "
      "setattr(m, name, nn.Parameter(p.detach().clone(), requires_grad=False))")
wrong("replacing the class's method train(), which affects all its objects", "others",
      TRAIN, "type(body).train = lambda self, mode=True: self", says="classes that were changed")
wrong("freezing only the latest body, so that the previous one can train again", "eval",
      TRAIN,
      "LAST[:] = [body]\n    "
      "body.train = lambda mode=True: nn.Module.train(body, mode and body is not LAST[0])",
      says="frozen before")


@ex.wrong("using a hook that switches to eval mode only at the first call",
          breaks=("eval", "train"))
def first_call_only(body):
    body.requires_grad_(False)

    def switch(module, args):
        handle.remove()
        module.eval()
    handle = body.register_forward_pre_hook(switch)


wrong("replacing train() by a function that returns None",
      "given back", TRAIN, "body.train = lambda mode=True: None")
wrong("removing the body's hooks", "called", TRAIN, f"{TRAIN}; body._forward_hooks.clear()")
wrong("replacing forward() by a function that passes on only its first argument", "called",
      TRAIN, f"inner = body.forward; body.forward = lambda x, **ignored: inner(x)\n    {TRAIN}")
wrong("keeping the BatchNorm layers in eval mode, but not the Dropout layers", "eval",
      "body.eval()", "pass",
      TRAIN, f"{NORMS}m.eval().train = lambda mode=True, m=m: m")
wrong("setting the BatchNorm layers' momentum to 0 without changing their mode", "eval",
      "body.eval()", "pass", TRAIN, f"{NORMS}m.momentum = 0.0")


@ex.wrong("letting BatchNorm's batch counter continue to count",
          says="buffers of the body", breaks="values")
def counting_on(body):
    def count(module, args):
        for name, buffer in module.named_buffers():
            if "tracked" in name:
                buffer.add_(1)
    held(body)
    body.register_forward_pre_hook(count)


wrong("using no_grad() or detach() on the body, which cuts off the gradient at its input", "called",
      TRAIN,
      f"inner = body.forward\n    {TRAIN}\n    "
      "body.forward = lambda x, **more: inner(x, **more).detach() + 0 * x.sum()")
