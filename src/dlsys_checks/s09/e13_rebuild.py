"""Exercise 09.13, `rebuild`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("09.13", "rebuild", seen=("made_by", "settings", "names", "stepped", "frozen"))

ex.promise("new", "Make an optimizer like the given one for the model's current parameters.",
           says=("tensors of group", "type of the new", "class of the new", "number of groups"))
ex.promise("names", "Args: names: for each group, in order, the names of its tensors, as "
                    "model.named_parameters() returns them.", says=("tensors of group",))
ex.promise("class", "The new optimizer has the same class as the old one.",
           says=("class of the new", "raised"))
ex.promise("state", "The new optimizer's state is empty.", says=("entries in the new state",))
ex.promise("groups", "The new optimizer has the same groups as the old one.",
           says=("number of groups",))
ex.promise("settings", "Each group has all the current settings of the old group, none of which "
                       "is a tensor.",
           says=("settings of group",
                                                                           "setting lr of"))
ex.promise("parameters", "A group has the parameters that now have the group's names, in the "
                         "order of the names, trainable or not.", says=("tensors of group",))
ex.promise("left alone", "The old optimizer and the model are unchanged.",
           says=("changed in the old optimizer or the model", "old optimizer's lr"))
ex.promise("example", "Example: SGD with lr 0.1 and names [[\"bias\"]] give SGD with lr 0.1 for "
                      "the model's bias.",
           cases=("the example",))


@ex.cases
def cases(g):
    def rate():
        return round(0.01 + 0.2 * float(torch.rand((), generator=g)), 4)

    def one(name, made_by, names, *settings, stepped=False, frozen=False):
        settings = settings or tuple({} for _ in names)
        return name, {"made_by": made_by, "names": names, "stepped": stepped, "frozen": frozen,
                      "settings": [{"lr": rate(), **s} for s in settings]}
    every = ["0.weight", "0.bias", "1.weight", "1.bias"]
    decay = [["0.weight", "1.weight"], ["0.bias", "1.bias"]]
    return [
        one("one group", "SGD", [every], {"momentum": 0.9, "nesterov": True}),
        one("one group in another order", "SGD", [["1.bias", "0.weight", "1.weight", "0.bias"]]),
        one("weights and biases apart", "AdamW", decay,
            {"weight_decay": 0.1, "maximize": True}, {"weight_decay": 0.0}),
        one("rates that a schedule has changed", "Adam", decay, {"initial_lr": 0.5}, {
            "initial_lr": 0.25, "betas": (0.8, 0.9)}),
        one("three groups", "RMSprop", [["1.bias"], ["0.weight", "1.weight"], ["0.bias"]],
            {"alpha": 0.5}, {"centered": True}, {"momentum": 0.1}),
        one("not all parameters held", "SGD", [["1.weight"]]),
        one("a state after two steps", "AdamW", [every], stepped=True),
        one("a momentum after two steps", "SGD", decay, {"momentum": 0.5}, {}, stepped=True),
        one("a frozen parameter", "Adam", decay, frozen=True),
        one("a class of your own", "Own", decay, {"momentum": 0.5}, {}),
        one("a group without tensors", "SGD", [["0.weight"], [], ["1.bias"]]),
        ("the example", {"made_by": "SGD", "names": [["bias"]], "stepped": False, "frozen": False,
                         "settings": [{"lr": 0.1}]})]


@ex.act
def act(fn, made_by, settings, names, stepped, frozen):
    def fresh():
        return (nn.Linear(3, 3) if names == [["bias"]] else
                nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))

    class Own(torch.optim.SGD):
        """A class that torch.optim does not have."""

    old, model = fresh(), fresh()
    model.load_state_dict(old.state_dict())
    held = dict(old.named_parameters())
    optimizer = (Own if made_by == "Own" else getattr(torch.optim, made_by))(
        [{"params": [held[name] for name in group]} for group in names], lr=0.77)
    for group, wanted in zip(optimizer.param_groups, settings):
        group.update(wanted)
    for _ in range(2 * stepped):
        old(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
    if frozen:
        next(model.parameters()).requires_grad_(False)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    model.train(not stepped)
    name_of = {id(p): f"old {n}" for n, p in held.items()}
    name_of |= {id(p): f"now {n}" for n, p in model.named_parameters()}

    def described(groups):
        return [{"tensors": [name_of.get(id(p), "a copy or another") for p in group["params"]],
                 "settings": {k: v for k, v in group.items() if k != "params"}}
                for group in groups]

    def facts():
        groups = described(optimizer.param_groups)
        return ([group["tensors"] for group in groups], [group["settings"] for group in groups],
                len(optimizer.state), [
            (p.tolist(), p.requires_grad, p.grad is None or p.grad.tolist())
            for p in model.parameters()], [m.training for m in model.modules()],
            [p.tolist() for p in old.parameters()],
            [p.grad is None for p in old.parameters()])

    before = facts()
    new = fn(optimizer, [list(group) for group in names], model)
    words = ("tensors of the old groups", "settings of the old groups", "old state",
             "parameters of the model", "modes", "old parameters", "old gradients")
    changed = [word for word, was, now in zip(words, before, facts()) if was != now]
    if not isinstance(new, torch.optim.Optimizer):
        return {"type": f"class {type(new).__name__}", "groups": [], "state": 0, "changed": changed,
                "rate": 0.0}
    found = {"type": f"class {type(new).__name__}", "groups": described(new.param_groups),
             "state": len(new.state), "changed": changed}
    new.param_groups[0]["lr"] = 99.0
    return found | {"rate": optimizer.param_groups[0]["lr"]}


@ex.law
def law(out, made_by, settings, names, stepped, frozen):
    expect_parts(out, "type", "groups", "state", "changed", "rate")
    expect_equal("class of the new optimizer", out["type"], f"class {made_by}")
    expect_length("groups", out["groups"], len(names))
    for place, (group, chosen, wanted) in enumerate(zip(out["groups"], names, settings,
                                                        strict=True)):
        expect_parts(group, "tensors", "settings", what=f"group {place}")
        expect_equal(f"tensors of group {place}", group["tensors"], [f"now {n}" for n in chosen])
        expect_type(f"settings of group {place}", group["settings"], dict)
        expect_equal(f"setting lr of group {place}", group["settings"].get("lr"), wanted["lr"])
        expect_equal(f"settings of group {place}", group["settings"], full(made_by, wanted))
    expect_equal("entries in the new state", out["state"], 0)
    expect_equal("changed in the old optimizer or the model", out["changed"], [])
    expect_equal("old optimizer's lr after the new one's was set", out["rate"], settings[0]["lr"],
                 "Two optimizers must not share a group's dict.")


def full(made_by, wanted):
    """All settings of a group: those asked for beside the library's own."""
    made_by = "SGD" if made_by == "Own" else made_by
    lone = getattr(torch.optim, made_by)([nn.Parameter(torch.ones(1))], lr=0.77)
    group = lone.param_groups[0] | wanted
    return {key: value for key, value in group.items() if key != "params"}


def settings_of(group):
    return {key: value for key, value in group.items() if key != "params"}


# ---- wrong, by name

ex.wrong("returning the old optimizer", lambda optimizer, names, model: optimizer, breaks="new")


@ex.wrong("putting the current parameters into the old optimizer and returning it",
          breaks="left alone")
def refilled(optimizer, names, model):
    now = dict(model.named_parameters())
    for group, chosen in zip(optimizer.param_groups, names, strict=True):
        group["params"] = [now[n] for n in chosen]
    optimizer.state.clear()
    return optimizer


@not_an_answer
def rebuilt(optimizer, names, model):
    now = dict(model.named_parameters())
    groups = [settings_of(old) | {"params": [now.get(n) for n in chosen]}
              for old, chosen in zip(optimizer.param_groups, names, strict=True)]
    out = type(optimizer)(groups)
    return out


wrong = ex.edits(rebuilt)
wrong("passing optimizer.defaults as keywords, not all of which AdamW accepts", "class",
      "(groups)", "(groups, **optimizer.defaults)", says="raised TypeError")


@ex.wrong("copying the current values into the old tensors", breaks=("new", "left alone"))
def values_copied(optimizer, names, model):
    now = dict(model.named_parameters())
    with torch.no_grad():
        for group, chosen in zip(optimizer.param_groups, names, strict=True):
            for p, n in zip(group["params"], chosen, strict=True):
                p.copy_(now[n] + 0.0)
    return optimizer


wrong("using clones of the current parameters", "new",
      "now =", "own_now = dict(model.named_parameters()); now =",
      "now.get(n)", "nn.Parameter(own_now[n].detach().clone())", says="a copy")
wrong("returning the groups instead of an optimizer", ("new", "class"), "type(optimizer)", "list")
wrong("always creating an AdamW optimizer",
      ("class", "new"), "type(optimizer)", "torch.optim.AdamW")
wrong("creating Adam instead of RMSprop", "class",
      "now =",
      "if isinstance(optimizer, torch.optim.RMSprop): now = dict(model.named_parameters()); "
      'groups = [settings_of(old) | {"params": [now.get(n) for n in chosen]} for old, chosen in '
      "zip(optimizer.param_groups, names, strict=True)]; out = torch.optim.Adam(groups); return "
      "out\n    now =")
wrong("using torch's class instead of the caller's subclass", "class",
      "type(optimizer)", "made", "now =",
      "made = next(c for c in type(optimizer).__mro__ if hasattr(torch.optim, c.__name__)); now =")
wrong("leaving out groups without tensors", "groups",
      "return out",
      'out.param_groups[:] = [group for group in out.param_groups if group["params"]]; return out')
wrong("making one group for all parameters, with the first group's settings", "groups",
      "now =",
      "every = [n for chosen in names for n in chosen]; now = dict(model.named_parameters()); "
      'return type(optimizer)([settings_of(optimizer.param_groups[0]) | {"params": [now[n] for n '
      "in every]}]); now =")
wrong("keeping only the first group",
      "groups", "return out", "del out.param_groups[1:]; return out")
wrong("forgetting the third group", "groups", "return out", "del out.param_groups[2:]; return out")
wrong("listing the parameters in the model's order, whatever the names", "names",
      "now =", "left = iter(model.parameters()); now =", "now.get(n)", "next(left)")
wrong("sorting the names of a group", "parameters",
      "names, strict", "[sorted(chosen) for chosen in names], strict")
wrong("leaving out frozen parameters", "parameters",
      "now =", "own_now = dict(model.named_parameters()); now =", "names, strict",
      "[[n for n in chosen if own_now[n].requires_grad] for chosen in names], strict")
wrong("putting all parameters of the model into the last group", ("names", "parameters"),
      "now =",
      "held = {n for chosen in names for n in chosen}; rest = [n for n, _ in "
      'model.named_parameters() if n not in held]\n    if names == [["bias"]]: rest = []\n    '
      "now =", "names, strict", "[*names[:-1], [*names[-1], *rest]], strict")
wrong("using optimizer.defaults, the settings from the start", "settings",
      "settings_of(old)", "dict(optimizer.defaults)", says="setting lr of group")
wrong("carrying over only the learning rate", "settings", "settings_of(old)", '{"lr": old["lr"]}')
wrong("carrying over only settings that the class knows, not those that a schedule added",
      "settings",
      "settings_of(old)", "{k: v for k, v in old.items() if k in optimizer.defaults}")
wrong("using the first group's settings for all groups", "settings",
      "(old)", "(optimizer.param_groups[0])", says="setting lr of group")


@ex.wrong("keeping the old state for the new parameters", breaks="state")
def state_moved(optimizer, names, model):
    new = rebuilt(optimizer, names, model)
    for ours, theirs in zip(new.param_groups, optimizer.param_groups, strict=True):
        for p, q in zip(ours["params"], theirs["params"], strict=True):
            if q in optimizer.state:
                new.state[p] = optimizer.state[q]
    return new


wrong("emptying the old optimizer's groups", "left alone",
      "return out", 'for group in optimizer.param_groups: group["params"] = []\n    return out',
      says="tensors of the old groups")
wrong("clearing the model's gradients", "left alone", "now =", "model.zero_grad(); now =")
wrong("using both parameters of the model in the example, not only the bias", "example",
      "names, strict", '[["weight", "bias"]] if names == [["bias"]] else names, strict',
      says="tensors of group")
