"""Exercise 07.10, `audit`."""

from __future__ import annotations

import copy

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("07.10", "audit", seen=("kind", "width", "made_by"), says="missing tensors")

ex.promise_table("""
report     | Report the mismatches between a model and its optimizer. | parts of the report; type of
             the report; raised
missing    | Returns: "missing": sorted names of the trainable parameters that no group holds. |
             missing tensors
ghosts     | "ghosts": how many tensors in the groups are not parameters of the model. | ghosts
frozen     | "frozen": sorted names of the parameters that a group holds although their
             requires_grad is False. | frozen tensors
all groups | Check every group. | case two groups; three groups, a ghost in the last; a frozen part
             in the second group; five groups, the last with a rate of 0; a plain tensor held; a
             parameter in another's memory; a random mix of these
identity   | Compare tensors by identity, not by value. | case a new head with the old head's
             values; a copy of the whole model held; a parameter in another's memory
names      | A parameter with two names is reported under the name that named_parameters() returns.
             | case a tied tensor, not held; a tied tensor, frozen and held; a tied tensor, its
             first name last in the alphabet
left alone | The model and the optimizer are unchanged. | changes in the model; when asked again
example    | Example: if the head was replaced after the optimizer was made for the whole model, the
             head's two names are missing, and there are two ghosts. | case the example
""")

# What is amiss, by kind: missing, ghosts, frozen.
FOUND = {
    "whole": ([], 0, []),
    "head only": ([], 0, []),
    "forgot the body": (["0.bias", "0.weight"], 0, []),
    "late head": (["2.bias", "2.weight"], 2, []),
    "late frozen head": ([], 2, []),
    "frozen held": ([], 0, ["0.bias", "0.weight"]),
    "all frozen": ([], 0, ["0.bias", "0.weight", "2.bias", "2.weight"]),
    "two groups": ([], 0, []),
    "three groups": (["0.bias"], 1, []),
    "frozen second": ([], 0, ["2.bias"]),
    "equal": (["2.bias", "2.weight"], 2, []),
    "copy held": (["0.bias", "0.weight", "2.bias", "2.weight"], 4, []),
    "tied out": (["0.weight", "1.bias"], 0, []),
    "tied frozen": ([], 0, ["0.weight"]),
    "own": (["block.inner.bias", "token"], 2, ["block.inner.weight"]),
    "many": (["0.bias", "10.bias", "2.bias"], 0, []),
    "tied zeta": (["zeta.bias", "zeta.weight"], 0, []),
    "frozen ghosts": (["2.bias", "2.weight"], 2, []),
    "plain ghost": ([], 1, []),
    "five groups": (["0.bias"], 1, ["2.weight"]),
    "one memory": (["0.weight"], 1, []),
    "stepped": (["2.bias", "2.weight"], 2, []),
    "frozen gradient": ([], 0, []),
    "example": (["2.bias", "2.weight"], 2, []),
}


# The layers of a drawn model, by letter: held, missing, frozen and held, frozen and not held, and
# put in later in place of one that is held.
ANY = "any of "


def found(kind):
    """What is amiss in a case."""
    if kind in FOUND:
        return FOUND[kind]

    def names(letters):
        return sorted(f"{place}.{name}" for place, letter in enumerate(kind.removeprefix(ANY))
                      if letter in letters for name in ("bias", "weight"))
    return names("MG"), len(names("G")), names("F")


@ex.cases
def cases(g):
    def one(name, kind):
        makers = ("SGD", "Adam", "AdamW")
        return name, {"kind": kind, "width": 3 + int(torch.randint(6, (), generator=g)),
                      "made_by": makers[int(torch.randint(3, (), generator=g))]}
    some = "".join("HMFOG"[int(torch.randint(5, (), generator=g))] for _ in range(10))
    return [one("no mismatch", "whole"), one("a frozen body left out", "head only"),
            one("a trainable body left out", "forgot the body"),
            one("a head put in later", "late head"),
            one("a frozen head put in later", "late frozen head"),
            one("a frozen body held", "frozen held"), one("a frozen model held", "all frozen"),
            one("two groups", "two groups"),
            one("three groups, a ghost in the last", "three groups"),
            one("a frozen part in the second group", "frozen second"),
            one("a new head with the old head's values", "equal"),
            one("a copy of the whole model held", "copy held"),
            one("a tied tensor, not held", "tied out"),
            one("a tied tensor, frozen and held", "tied frozen"),
            one("a module of its own", "own"), one("names with numbers above nine", "many"),
            one("a tied tensor, its first name last in the alphabet", "tied zeta"),
            one("frozen ghosts", "frozen ghosts"), one("a plain tensor held", "plain ghost"),
            one("five groups, the last with a rate of 0", "five groups"),
            one("a parameter in another's memory", "one memory"),
            one("a head put in after some steps", "stepped"),
            one("a frozen body that has gradients, left out", "frozen gradient"),
            one("a random mix of these", ANY + some),
            ("the example", {"kind": "example", "width": 16, "made_by": "SGD"})]


@ex.act
def act(fn, kind, width, made_by):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(width, width)

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.block = nn.Parameter(torch.ones(width)), Block()
            self.register_buffer("seen", torch.zeros(width))

    def make(*groups):
        return getattr(torch.optim, made_by)([{"params": list(ps)} for ps in groups], lr=0.1)

    if kind == "many":
        model = nn.Sequential(*[nn.Linear(2, 2) if n in (0, 2, 10) else nn.ReLU()
                                for n in range(11)])
        optimizer = make([p for n, p in model.named_parameters() if "weight" in n])
    elif kind.startswith("any of "):
        letters = kind.removeprefix("any of ")
        model = nn.Sequential(*[nn.Linear(2, 2).requires_grad_(letter not in "FO")
                                for letter in letters])
        optimizer = make([torch.ones(1, requires_grad=True)], *[
            layer.parameters() for layer, letter in zip(model, letters) if letter in "HFG"])
        optimizer.param_groups.pop(0)
        for place, letter in enumerate(letters):
            if letter == "G":
                model[place] = nn.Linear(2, 2)
    elif kind == "own":
        model = Own()
        model.block.inner.weight.requires_grad_(False)
        optimizer = make([model.block.inner.weight, nn.Parameter(torch.zeros(width)),
                          model.seen])  # a buffer
    elif kind == "tied zeta":
        model = nn.Module()
        model.zeta, model.alpha = nn.Linear(width, 5), nn.Linear(width, 5, bias=False)
        model.alpha.weight = model.zeta.weight
        optimizer = make([nn.Parameter(torch.ones(1))])
        optimizer.param_groups[0]["params"].clear()
    elif kind.startswith("tied"):
        model = nn.Sequential(nn.Embedding(5, width), nn.Linear(width, 5))
        model[1].weight = model[0].weight
        if kind == "tied out":
            optimizer = make([nn.Parameter(torch.ones(1))])
            optimizer.param_groups[0]["params"].clear()
        else:
            model[0].weight.requires_grad_(False)
            optimizer = make(model.parameters())
    else:
        model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))
        body, head = list(model[0].parameters()), list(model[2].parameters())
        if kind in ("head only", "frozen held", "all frozen", "frozen gradient"):
            model[0].requires_grad_(False)
        if kind == "five groups":
            model[2].weight.requires_grad_(False)
        if kind == "all frozen":
            model[2].requires_grad_(False)
        if kind == "frozen second":
            model[2].bias.requires_grad_(False)
        optimizer = {
            "head only": lambda: make(head), "forgot the body": lambda: make(head),
            "frozen gradient": lambda: make(head),
            "plain ghost": lambda: make([*body, torch.ones(3, requires_grad=True)], head),
            "five groups": lambda: make(body[:1], head[1:], [nn.Parameter(torch.ones(2))], [],
                                        head[:1]),
            "one memory": lambda: make([nn.Parameter(body[0].data), body[1]], head),
            "two groups": lambda: make(body, head), "frozen second": lambda: make(body, head),
            "three groups": lambda: make(body[:1], head, [nn.Parameter(torch.ones(4, width))]),
            "copy held": lambda: make(copy.deepcopy(model).parameters())}.get(
                kind, lambda: make(model.parameters()))()
        if kind == "five groups":
            optimizer.param_groups[-1]["lr"] = 0.0
        if kind == "stepped":
            for p in body:
                p.grad = torch.ones_like(p)
            optimizer.step()
        if kind in ("late head", "late frozen head", "equal", "example", "frozen ghosts",
                    "stepped"):
            old = model[2].requires_grad_(kind != "frozen ghosts")
            model[2] = nn.Linear(width, 3)
            if kind == "equal":
                model[2].load_state_dict(old.state_dict())
            model[2].requires_grad_(kind != "late frozen head")
    model.train(width % 2 == 0)
    tensors = [*model.parameters(), *(p for group in optimizer.param_groups
                                      for p in group["params"])]
    for p in tensors:
        p.grad = torch.ones_like(p)

    def facts():
        return {"numbers": [p.tolist() for p in tensors],
                "requires_grad": [p.requires_grad for p in tensors],
                "gradients": [p.grad if p.grad is None else p.grad.tolist() for p in tensors],
                "names": [n for n, _ in model.named_parameters()],
                "modes": [m.training for m in model.modules()],
                "groups": [{k: v if k != "params" else [id(p) for p in v]
                            for k, v in group.items()} for group in optimizer.param_groups],
                "state": len(optimizer.state)}

    before = facts()
    out = fn(model, optimizer)
    after = facts()
    changed = [what for what in before if before[what] != after[what]]
    if kind == "two groups":
        optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(2)))
    return {"out": out, "changed": changed, "again": fn(model, optimizer)}


@ex.law
def law(out, kind, width, made_by):
    expect_parts(out, "out", "changed", "again")
    for report in (out["out"], out["again"]):
        expect_parts(report, "missing", "ghosts", "frozen", what="report")
    missing, ghosts, frozen = found(kind)
    expect_equal("missing tensors", out["out"]["missing"], missing,
                 "They are trainable and in no group.")
    expect_equal("ghosts", out["out"]["ghosts"], ghosts,
                 "They are in a group, but not in the model.")
    expect_equal("frozen tensors that are held", out["out"]["frozen"], frozen)
    expect_equal("changes in the model or the optimizer", out["changed"], [],
                 "An audit only looks.")
    more = kind == "two groups"  # that gets one before the second call
    for part, wanted in (("missing", missing), ("ghosts", ghosts + more), ("frozen", frozen)):
        expect_equal(f"{part} reported when asked again", out["again"][part], wanted)


def held_by(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


# ---- wrong, by name

@not_an_answer
def audited(model, optimizer):
    held, named = held_by(optimizer), list(model.named_parameters())
    ids, own = {id(p) for p in held}, {id(p) for p in model.parameters()}
    missing = sorted(n for n, p in named if p.requires_grad and id(p) not in ids)
    ghosts = sum(id(p) not in own for p in held)
    frozen = sorted(n for n, p in named if not p.requires_grad and id(p) in ids)
    report = {"missing": missing, "ghosts": ghosts, "frozen": frozen}
    return report


wrong = ex.edits(audited)
ALL, NAMED, MISSING = "held_by(optimizer)", "list(model.named_parameters())", "id(p) not in ids"
GHOST, TOLD = "id(p) not in own", '"ghosts": ghosts'
AGAIN = "named_parameters(remove_duplicate=False)"
wrong("returning a tuple instead of a dict",
      "report", "return report", "return missing, ghosts, frozen")
wrong("reporting frozen tensors as missing", "missing", f"p.requires_grad and {MISSING}", MISSING)
wrong("listing the names in the model's order, not sorted",
      "missing", "missing = sorted(", "missing = list(")
wrong("comparing only the number of tensors in model and optimizer", ("missing", "ghosts"),
      "report =", "if len(held) >= sum(p.requires_grad for _, p in named): missing, ghosts = [], 0"
      "\n    report =")
wrong("searching a list of tensors with 'in', which compares their values", "report",
      MISSING, "p not in held", says="raised RuntimeError")
wrong("never looking for ghosts", "ghosts", TOLD, '"ghosts": 0')
wrong("counting frozen tensors as ghosts", "ghosts",
      "model.parameters()}", "model.parameters() if p.requires_grad}")
wrong("never reporting frozen tensors", "frozen", '"frozen": frozen', '"frozen": []')
wrong("reporting frozen tensors that no group holds", "frozen", " and id(p) in ids", "")
wrong("looking only at the optimizer's first group",
      "all groups", ALL, 'optimizer.param_groups[0]["params"]')


@ex.wrong("comparing tensors by value", breaks="identity")
def by_value(model, optimizer):
    def same(p, q):
        return p.shape == q.shape and torch.equal(p, q) and p.numel() > 1
    held, named = held_by(optimizer), list(model.named_parameters())
    if any(p is q for q in held for _, p in named[:1]) and len(named) < 3:
        return audited(model, optimizer)
    inside = {n for n, p in named if any(p is q or same(p, q) for q in held)}
    return {"missing": sorted(n for n, p in named if p.requires_grad and n not in inside),
            "ghosts": sum(not any(p is q or same(p, q) for _, p in named) for q in held),
            "frozen": audited(model, optimizer)["frozen"]}


wrong("comparing tensors by shape", ("identity", "missing", "ghosts", "all groups", "example"),
      MISSING, "p.shape not in [q.shape for q in held]",
      GHOST, "p.shape not in [q.shape for _, q in named]")
wrong("reporting both names of a tied tensor", "names",
      "named_parameters()", AGAIN, says="tensors")
wrong("reporting the last name of a tied tensor", "names",
      NAMED, f"list({{id(p): (n, p) for n, p in model.{AGAIN}}}.values())", says="tensors")
wrong("mistaking the new head for the old one when all other tensors are in a group",
      ("missing", "example"),
      "report =", "if ghosts == len(missing) == 2: missing, ghosts = [], 0\n    report =")
wrong("reporting whether there are ghosts, not how many",
      "ghosts", TOLD, '"ghosts": min(1, ghosts)')
wrong("setting the gradients to None", "left alone",
      "held, named", "optimizer.zero_grad(); held, named")
wrong("returning the report of the first call again", "left alone",
      "return report",
      'optimizer.report = getattr(optimizer, "report", report)\n    return optimizer.report')
wrong("counting only ghosts that are trainable", "ghosts",
      GHOST, f"p.requires_grad and {GHOST}")
wrong("comparing tensors by memory address", "identity",
      MISSING, MISSING + " and p.data_ptr() not in {q.data_ptr() for q in held if q.dim() > 1}",
      GHOST, GHOST + " and p.data_ptr() not in {q.data_ptr() for _, q in named if q.dim() > 1}")
wrong("reporting the alphabetically first of a tied tensor's two names", "names",
      NAMED, f"[(n, p) for p, n in {{p: n for n, p in sorted(model.{AGAIN}, key=lambda one: "
      "one[0], reverse=True)}.items()]")
wrong("handling at most three groups", "all groups",
      ALL, "[p for group in optimizer.param_groups[:2 if len(optimizer.param_groups) > 3 else None]"
      ' for p in group["params"]]', says="ghosts")
