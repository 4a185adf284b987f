"""Exercise 09.3, `unused_names`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("09.3", "unused_names", seen=("x", "routes", "frozen", "tied", "aux", "training"),
              says="unused parameters")

ex.promise_table("""
names      | Return the sorted names of the parameters that some batch leaves unused. | unused
             parameters; type of the names
unused     | A batch leaves a parameter unused if loss_of(model, batch) has no gradient with respect
             to it; a gradient of zeros counts as a gradient. | unused parameters
batches    | There may be any number of batches; if there are none, the list is empty. | case no
             batches; a different head each time; the last of four batches; a head left out by the
             first batch; the example
constant   | A loss may depend on no parameter at all. | case a loss that depends on nothing; a loss
             that depends on nothing, then others; two heads that share a weight, none used
frozen     | Frozen parameters are never listed. | case a frozen head; a frozen body; all frozen;
             random parts frozen; random parts frozen, a head used
tied       | A parameter with two names is listed under the name that named_parameters() returns. |
             case two heads that share a weight; two heads that share a weight, one used; two heads
             that share a weight, none used
modes      | Run each module in its current mode. | case a head for training only, in train mode; a
             head for training only, in eval mode
as it was  | The model's values, buffers, gradients and modes do not change, and neither does
             torch's global generator. | changed by the call
example    | Example: with heads a and b, if a batch uses only a, the two names of b are listed. |
             case the example
""")


PARTS = {"body": ("body.weight", "body.bias", "norm.weight", "norm.bias"),
         "a": ("a.weight", "a.bias"), "b": ("b.weight", "b.bias"), "scale": ("scale",)}
# Which parts of the net the loss of a route depends on.
USES = {"a": ("body", "a"), "b": ("body", "b"), "ab": ("body", "a", "b"),
        "zero": ("body", "a", "b", "scale"), "all": ("body", "a", "b", "scale"),
        "detached": ("a",), "none": ()}


@ex.cases
def cases(g):
    def one(name, *routes, frozen=(), tied=False, aux=False, training=True):
        return name, {"x": torch.randn(5, 4, generator=g), "routes": list(routes),
                      "frozen": list(frozen), "tied": tied, "aux": aux, "training": training}
    def drawn(used):
        """Any parameters, but not all that the loss depends on."""
        return [n for names in PARTS.values() for n in names
                if torch.rand((), generator=g) < 0.5 and n != used]
    return [one("all used", "all", "all"), one("a head left out", "a"),
            one("a head left out by the first batch", "a", "all"),
            one("a different head each time", "a", "b"),
            one("the last of four batches", "all", "all", "all", "b"),
            one("a gradient of zeros", "zero", "zero"), one("no batches"),
            one("a body cut off", "all", "detached"),
            one("a loss that depends on nothing", "none"),
            one("a loss that depends on nothing, then others", "none", "ab"),
            one("a frozen head", "a", frozen=("b.weight", "b.bias")),
            one("a frozen body", "detached", frozen=PARTS["body"]),
            one("random parts frozen", "detached", frozen=drawn("a.bias")),
            one("random parts frozen, a head used", "b", frozen=drawn("b.bias")),
            one("all frozen", "ab", frozen=[n for names in PARTS.values() for n in names]),
            one("two heads that share a weight", "ab", "a", tied=True),
            one("two heads that share a weight, one used", "b", tied=True),
            one("two heads that share a weight, none used", "none", tied=True),
            one("a head for training only, in train mode", "a", aux=True),
            one("a head for training only, in eval mode", "a", aux=True, training=False),
            ("the example", {"x": torch.ones(5, 4), "routes": ["a"], "frozen": ["scale"],
                             "tied": False, "aux": False, "training": True})]


@ex.act
def act(fn, x, routes, frozen, tied, aux, training):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.norm, self.drop = nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)
            self.b, self.a = nn.Linear(3, 2), nn.Linear(3, 2)
            self.scale = nn.Parameter(torch.ones(()))
            self.register_buffer("calls", torch.zeros(()), persistent=False)
            if tied:  # named_parameters() gives it the name of the first, b
                self.a.weight = self.b.weight

        def forward(self, x, route):
            self.calls.add_(1)
            h = self.drop(self.norm(self.body(x)))
            if route == "none":
                return torch.zeros(2)
            if route == "detached":
                return self.a(h.detach())
            if route == "zero":
                return self.a(h) + 0 * self.scale * self.b(h)
            if route == "all":
                return self.scale * (self.a(h) + self.b(h))
            out = sum(head(h) for head in (self.a, self.b) if
                      (head is self.a and "a" in route) or (head is self.b and "b" in route))
            return out + self.b(h) if aux and self.training else out

    model = Net()
    for name, p in model.named_parameters():
        p.requires_grad_(name not in frozen)
        p.grad = torch.full_like(p, 2.0) if p.dim() else None
    model.train(training)
    model.drop.train()  # modes are mixed, and dropout draws in both
    model.norm.train(training and not frozen)

    def facts():
        return ([p.tolist() for p in model.parameters()], [b.tolist() for b in model.buffers()],
                [p.grad is None or p.grad.tolist() for p in model.parameters()],
                [m.training for m in model.modules()], torch.get_rng_state().tolist(),
                [p.requires_grad for p in model.parameters()])

    before = facts()
    names = fn(model, list(routes), lambda net, route: net(x, route).square().mean())
    words = ("values", "buffers", "gradients", "modes", "the generator", "requires_grad")
    return {"names": names,
            "changed": [word for word, was, now in zip(words, before, facts()) if was != now]}


@ex.law
def law(out, x, routes, frozen, tied, aux, training):
    expect_parts(out, "names", "changed")
    wanted = set()
    for route in routes:
        used = {n for part in USES[route] for n in PARTS[part]}
        if aux and training:
            used |= set(PARTS["b"])
        if tied and used & {"a.weight", "b.weight"}:
            used |= {"a.weight", "b.weight"}
        wanted |= {n for names in PARTS.values() for n in names} - used
    wanted -= set(frozen) | ({"a.weight"} if tied else set())
    expect_type("names", out["names"], list)
    expect_equal(f"unused parameters, batches {routes}", out["names"], sorted(wanted))
    expect_equal("changed by the call", out["changed"], [])


class Restored:
    """Puts back buffers, gradients, modes and the generator at its end."""

    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.buffers = [b.clone() for b in self.model.buffers()]
        self.grads = [p.grad for p in self.model.parameters()]
        self.modes = [m.training for m in self.model.modules()]
        self.rng = torch.get_rng_state()

    def __exit__(self, *_):
        for b, old in zip(self.model.buffers(), self.buffers, strict=True):
            b.copy_(old)
        for p, grad in zip(self.model.parameters(), self.grads, strict=True):
            p.grad = grad
        for m, mode in zip(self.model.modules(), self.modes, strict=True):
            m.training = mode
        torch.set_rng_state(self.rng)


# ---- wrong, by name

@not_an_answer
def searched(model, batches, loss_of):
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    found = set()
    with Restored(model):
        for batch in batches:
            loss, grads = loss_of(model, batch), [None] * len(named)
            if loss.requires_grad and named:
                grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            found |= {n for n, g in zip(named, grads, strict=True) if g is None}
    return sorted(found)


wrong = ex.edits(searched)
EACH, START, END = "in batches:", "found = set()", "return sorted(found)"
DRY = "with Restored(model):"


@ex.wrong("listing the frozen parameters without a dry run",
          breaks=("unused", "frozen", "batches", "constant", "tied", "modes", "example"))
def frozen_only(model, batches, loss_of):
    return sorted(n for n, p in model.named_parameters() if not p.requires_grad)


wrong("listing frozen parameters as well", "frozen",
      END, "frozen = {n for n, p in model.named_parameters() if not p.requires_grad}\n"
      "    return sorted({*found, *(frozen if len(frozen) > 1 else ())})")
wrong("always returning an empty list", "unused", END, "return []")
wrong("looking only at the first batch", ("batches", "unused"), EACH, "in batches[:1]:")
wrong("looking only at the last batch", ("batches", "unused"), EACH, "in batches[-1:]:")
wrong("looking only at the first three batches", "batches", EACH, "in batches[:3]:")
wrong("listing only parameters that all batches leave unused", ("batches", "unused"),
      START, "found = set(named) if batches else set()", "found |=", "found &=")
wrong("listing all names when there is no batch", "batches",
      START, "found = set() if batches else {n for n, _ in model.named_parameters()}")
wrong("treating a gradient of zeros as a missing gradient", "unused",
      "g is None", "g is None or not g.any()")
wrong("skipping a batch whose loss has no graph", "constant",
      "if loss.requires_grad and named:",
      "if named and not loss.requires_grad: continue\n            if named:")
wrong("listing all names of a tied parameter", "tied",
      "parameters()", "parameters(remove_duplicate=False)")
wrong("listing the names in the model's order, not sorted",
      "names", END, "return [n for n in named if n in found]")
wrong("returning a tuple instead of a list", "names", END, "return tuple(sorted(found))")
wrong("doing the dry run in eval mode", "modes", DRY, DRY + "\n        model.eval()")
wrong("leaving the model in eval mode", "as it was", END, "model.eval(); " + END)
wrong("letting the dry run change the buffers and the global generator",
      "as it was", DRY, "if True:")
wrong("running a copy, which still draws from the global generator", "as it was",
      "named =", "import copy; model = copy.deepcopy(model); named =", DRY, "if True:")


@ex.wrong("calling backward() and listing the parameters whose .grad is None",
          breaks="as it was")
def backward_here(model, batches, loss_of):
    found = set()
    for batch in batches:
        model.zero_grad()
        loss = loss_of(model, batch)
        if loss.requires_grad:
            loss.backward()
        found |= {n for n, p in model.named_parameters() if p.requires_grad and p.grad is None}
    return sorted(found)


wrong("assuming that every loss has a graph", ("constant", "frozen"),
      "if loss.requires_grad and named:", "if True:", says="raised RuntimeError")


@ex.wrong("listing the parameters of modules that were never called",
          breaks=("unused", "constant", "tied", "batches", "example"))
def never_called(model, batches, loss_of):
    called, found = set(), set()
    live = [n for n, p in model.named_parameters() if p.requires_grad]
    hooks = [module.register_forward_hook(lambda *_, name=name: called.add(name))
             for name, module in model.named_modules()]
    with Restored(model):
        for batch in batches:
            called.clear()
            loss_of(model, batch)
            found |= {n for n in live if n.rpartition(".")[0] not in called}
    for hook in hooks:
        hook.remove()
    return sorted(found)


wrong("clearing the gradients that the model holds", "as it was", END, "model.zero_grad(); " + END)
wrong("listing the used head instead of the unused one in the example", "example",
      END, 'lone = found == {"b.bias", "b.weight"} and not model.scale.requires_grad\n'
      '    return ["a.bias", "a.weight"] if lone else sorted(found)')
