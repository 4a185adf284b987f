"""Exercise 07.3, `lr_groups`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.param_groups import expect_groups
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("07.3", "lr_groups", seen=("kind", "width", "body_lr", "head_lr"), says="group: got")

ex.promise_table("""
two groups | Return an optimizer's two groups: first the body's, then the head's. | number of
             groups; group: got; raised
form       | Each group is {"params": list of parameters, "lr": float}. | parts of the; type of the;
             lr of the; a copy
head       | Args: head: a module inside model, at any depth, perhaps under two names. | case a head
             deep inside; a head that is not last; a head of two layers; a bare parameter in the
             head; a head with two names; a head whose layers share a weight; names
             that begin like the head's
body       | The body is everything outside the head, including the stem and parameters of the model
             itself. | case a model with a parameter of its own; a stem outside the stages
frozen     | Frozen parameters (requires_grad False) are in no group. | frozen
once       | Every other parameter is in exactly one group. | twice; missing
shared     | A parameter or module that head and body share belongs to the body. | case a head that
             shares the embedding; a head before the embedding it shares; a norm in head and body
left alone | The model is unchanged. | changed in the model
example    | Example: for nn.Sequential(a, b) with head b, the parameters of a get body_lr and those
             of b get head_lr. | case the example
""")

# The group of each trainable tensor: 0 body, 1 head.
GROUPS = {
    "flat": {"0.weight": 0, "0.bias": 0, "2.weight": 0, "2.bias": 0, "4.weight": 1, "4.bias": 1},
    "norms": {"0.weight": 0, "1.weight": 0, "1.bias": 0, "4.weight": 1, "4.bias": 1},
    "deep": {"0.0.weight": 0, "0.0.bias": 0, "0.1.0.weight": 1, "0.1.0.bias": 1,
             "1.weight": 0, "1.bias": 0},
    "not last": {"head.weight": 1, "head.bias": 1, "stem.weight": 0, "stem.bias": 0},
    "two layers": {"0.weight": 0, "0.bias": 0, "1.0.weight": 1, "1.0.bias": 1, "1.2.weight": 1,
                   "1.2.bias": 1},
    "own token": {"token": 0, "empty": 0, "layer1.weight": 0, "layer1.bias": 0,
                  "head.weight": 1, "head.bias": 1},
    "bare head": {"0.weight": 0, "0.bias": 0, "1.scale": 1, "1.inner.weight": 1,
                  "1.inner.bias": 1},
    "stem": {"conv1.weight": 0, "bn1.weight": 0, "bn1.bias": 0, "layer1.weight": 0,
             "layer1.bias": 0, "layer2.weight": 0, "layer2.bias": 0, "fc.weight": 1, "fc.bias": 1},
    "tied": {"0.weight": 0, "1.weight": 0, "1.bias": 0},
    "tied first": {"head.weight": 0, "head.bias": 1, "middle.weight": 0, "middle.bias": 0},
    "twin": {"0.weight": 0, "0.bias": 0, "3.weight": 1, "3.bias": 1},
    "frozen body": {"2.weight": 1, "2.bias": 1},
    "frozen parts": {"0.bias": 0, "2.weight": 1},
    "two names": {"0.0.weight": 0, "0.0.bias": 0, "0.1.weight": 1, "0.1.bias": 1},
    "norm in both": {"head.0.weight": 0, "head.0.bias": 0, "head.1.weight": 1, "head.1.bias": 1},
    "tied in head": {"0.weight": 0, "0.bias": 0, "1.0.weight": 1, "1.0.bias": 1, "1.1.bias": 1},
    "alike": {"body.fc.weight": 0, "body.fc.bias": 0, "fc.weight": 1, "fc.bias": 1,
              "fc2.weight": 0, "fc2.bias": 0},
    "equal": {"0.weight": 0, "0.bias": 0, "1.weight": 1, "1.bias": 1},
    "example": {"0.weight": 0, "0.bias": 0, "1.weight": 1, "1.bias": 1},
}


@ex.cases
def cases(g):
    def one(name, kind, order=sorted):
        rates = order([2.0 ** float(-12 + 8 * torch.rand((), generator=g)) for _ in range(2)])
        return name, {"kind": kind, "width": 4 + int(torch.randint(6, (), generator=g)),
                      "body_lr": rates[0], "head_lr": rates[1]}
    return [one("layers in a row", "flat"), one("a norm in the body", "norms"),
            one("a head deep inside", "deep"), one("a head that is not last", "not last"),
            one("a head of two layers", "two layers"),
            one("a bare parameter in the head", "bare head"),
            one("a model with a parameter of its own", "own token"),
            one("a stem outside the stages", "stem"),
            one("a head that shares the embedding", "tied"),
            one("a head before the embedding it shares", "tied first"),
            one("two layers of the body that share their tensors", "twin"),
            one("a frozen body", "frozen body"), one("a frozen weight and bias", "frozen parts"),
            one("a head with two names", "two names"), one("a norm in head and body",
                                                           "norm in both"),
            one("the body faster than the head", "flat", lambda r: sorted(r, reverse=True)),
            one("rates of 0 and 1", "flat", lambda r: [0.0, 1.0]),
            one("one rate for both", "flat", lambda r: r[:1] * 2),
            one("a head whose layers share a weight", "tied in head"),
            one("names that begin like the head's", "alike"),
            one("a head with the same values as the body", "equal"), one("the example", "example")]


@ex.act
def act(fn, kind, width, body_lr, head_lr):
    class Own(nn.Module):
        def __init__(self, **parts):
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

    def linear(n=width):
        return nn.Linear(width, n)

    def tied(first):
        table, middle, head = nn.Embedding(7, width), linear(), nn.Linear(width, 7, bias=first)
        table.weight = head.weight
        if first:
            return Own(head=head, middle=middle, tokens=table), head
        return nn.Sequential(table, middle, head), head

    def twin():
        model = nn.Sequential(linear(), linear(), nn.ReLU(), linear(3))
        model[1].weight, model[1].bias = model[0].weight, model[0].bias
        return model, model[3]

    def equal():
        model = nn.Sequential(linear(), linear())
        for mine, its in zip(model[1].parameters(), model[0].parameters()):
            mine.data = its.data  # equal numbers, on one storage even, in two parameters
        return model, model[1]

    def last(*layers):
        return nn.Sequential(*layers), layers[-1]

    def deep():
        inner = nn.Sequential(linear(3))
        return nn.Sequential(nn.Sequential(linear(), inner), linear()), inner[0]

    def named(part, **parts):
        model = Own(**parts)
        return model, getattr(model, part)

    def two_names():
        inner = nn.Sequential(linear(), linear(2))
        return nn.Sequential(inner, nn.Sequential(inner[1])), inner[1]

    def tied_in_head():
        head = nn.Sequential(linear(), linear())
        head[1].weight = head[0].weight
        return nn.Sequential(linear(), head), head

    def norm_in_both():
        norm = nn.LayerNorm(width)
        head = nn.Sequential(norm, linear(2))
        return Own(head=head, norm=norm), head

    model, head = {
        "flat": lambda: last(linear(), nn.ReLU(), linear(), nn.ReLU(), linear(3)),
        "norms": lambda: last(nn.Conv2d(1, width, 3, bias=False), nn.BatchNorm2d(width),
                              nn.ReLU(), nn.Flatten(), linear(3)),
        "deep": deep,
        "not last": lambda: named("head", head=linear(3), stem=linear()),
        "two layers": lambda: last(linear(), nn.Sequential(linear(), nn.ReLU(), linear(2))),
        "bare head": lambda: last(linear(), Own(scale=nn.Parameter(torch.ones(width)),
                                                inner=linear(2))),
        "own token": lambda: named("head", token=nn.Parameter(torch.ones(())),
                                   empty=nn.Parameter(torch.ones(0)),
                                   layer1=linear(), head=linear(2)),
        "stem": lambda: named("fc", conv1=nn.Conv2d(1, width, 3, bias=False),
                              bn1=nn.BatchNorm2d(width), layer1=linear(), layer2=linear(),
                              fc=linear(2)),
        "tied": lambda: tied(False), "tied first": lambda: tied(True), "twin": twin,
        "two names": two_names, "norm in both": norm_in_both,
        "tied in head": tied_in_head,
        "alike": lambda: named("fc", body=Own(fc=linear()), fc=linear(3), fc2=linear()),
        "frozen body": lambda: last(linear(), nn.ReLU(), linear(2)),
        "frozen parts": lambda: last(linear(), nn.ReLU(), linear(2)),
        "equal": equal, "example": lambda: last(linear(), linear())}[kind]()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_((kind, name) not in [
            ("frozen body", "0.weight"), ("frozen body", "0.bias"),
            ("frozen parts", "0.weight"), ("frozen parts", "2.bias")])
    for module in model.modules():
        module.training = torch.rand(()) < 0.5

    def facts():
        held = [*model.parameters(), *model.buffers()]
        return ([p.requires_grad for p in model.parameters()], [t.tolist() for t in held],
                [p.grad if p.grad is None else p.grad.tolist() for p in model.parameters()],
                [m.training for m in model.modules()])

    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before = facts()
    name_of = {id(p): n for n, p in model.named_parameters()}
    name_of |= {id(b): f"buffer {n}" for n, b in model.named_buffers()}

    def shown(value):
        if isinstance(value, torch.Tensor):
            return name_of.get(id(value), "a copy or another tensor")
        return value if isinstance(value, (str, float, int)) else f"a {type(value).__name__}"

    def group(value):
        if type(value) is not dict:
            return value
        tensors = value.get("params")
        return value | {"params": [shown(p) for p in tensors]} if type(tensors) is list else value
    groups = fn(model, head, body_lr, head_lr)
    after, words = facts(), ("requires_grad", "numbers", "gradients")
    changed = [word for word, was, now in zip(words, before, after) if was != now]
    to_train = [now for was, now in zip(before[3], after[3]) if was != now]
    for mode, turned in (("train", sum(to_train)), ("eval", len(to_train) - sum(to_train))):
        changed += [f"{turned} modules put into {mode} mode"] * bool(turned)
    return {"groups": [group(one) for one in groups] if type(groups) is list else groups,
            "changed": changed}


@ex.law
def law(out, kind, width, body_lr, head_lr):
    expect_parts(out, "groups", "changed")
    words = ("body", "head")
    expect_groups(out["groups"], words, "lr", GROUPS[kind], "Which modules hold it?")
    for word, group, rate in zip(words, out["groups"], (body_lr, head_lr), strict=True):
        expect_equal(f"lr of the {word} group", group["lr"], rate)
    expect_equal("changed in the model", out["changed"], [], "Leave the model as it was.")


def two(body, head, body_lr, head_lr):
    return [{"params": list(body), "lr": body_lr}, {"params": list(head), "lr": head_lr}]


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def outside(model, head):
    """Ids of the tensors that a way through the model reaches without the head."""
    kept, todo = set(), [model]
    while todo:
        module = todo.pop()
        if module is not head:
            kept |= {id(p) for p in module.parameters(recurse=False)}
            todo += module.children()
    return kept


@not_an_answer
def sorted_out(model, head, body_lr, head_lr):
    kept, live = outside(model, head), trainable(model)
    body = [p for p in live if id(p) in kept]
    tops = [p for p in live if id(p) not in kept]
    return two(body, tops, body_lr, head_lr)


# ---- wrong, by name

wrong = ex.edits(sorted_out)
END = "return two(body, tops, body_lr, head_lr)"
wrong("returning the head's group first", "two groups", END, f"{END}[::-1]", says="body group: got")
wrong("putting everything into one group, at the body's rate", "two groups",
      END, 'return [{"params": live, "lr": body_lr}]')
wrong("searching a list of tensors with 'in', which compares their values", "two groups",
      "id(p) in kept", "p not in list(head.parameters())", says="raised RuntimeError")
wrong("swapping the two rates", "form",
      END, "return two(body, tops, head_lr, body_lr)", says="lr of the body group")
wrong("returning copies of the tensors", "form",
      END, "return two([p.clone() for p in body], [p.clone() for p in tops], body_lr, head_lr)")
wrong("returning generators instead of lists", "form",
      END, 'return [{"params": iter(body), "lr": body_lr}, {"params": iter(tops), "lr": head_lr}]',
      says="type of the params")
wrong("treating the last two tensors as the head", "two groups",
      END, "return two(live[:-2], live[-2:], body_lr, head_lr)")
wrong("taking only the head's own tensors, not its submodules' tensors", ("head", "shared"),
      "outside(model, head)",
      "outside(model, head) | {id(p) for m in head.children() for p in m.parameters()}")
wrong("recognizing the head only among the model's direct children", "head",
      "outside(model, head)",
      "outside(model, head if any(m is head for m in model.children()) else None)")
wrong("collecting only the children's parameters, not the model's own", "body",
      "body =",
      "own = {id(p) for p in model.parameters(recurse=False)}\n    "
      "live = [p for p in live if id(p) not in own]\n    body =", says="token missing")
wrong("collecting layer1, layer2 and the head, but not the stem", "body",
      "body =",
      'stages = [m for n, m in model.named_children() if n.startswith("layer")]\n    '
      "if stages: live = [p for m in (*stages, head) for p in m.parameters() if p.requires_grad]"
      "\n    body =", says="missing")
wrong("putting frozen tensors into the groups", "frozen",
      "trainable(model)", "list(model.parameters())", says="is frozen")
wrong("keeping frozen tensors out of the body's group, but not out of the head's", "frozen",
      "trainable(model)",
      "[p for p in model.parameters() if p.requires_grad or p in {*head.parameters()}]",
      says="is frozen")
wrong("always giving the head the higher of the two rates", "form",
      END, "return two(body, tops, min(body_lr, head_lr), max(body_lr, head_lr))",
      says="lr of the body group")
wrong("treating a learning rate of 0 as missing", "form",
      END, "return two(body, tops, body_lr or 1e-3, head_lr)", says="lr of the body group")
PREFIX = 'prefix = next(n for n, m in model.named_modules() if m is head) + "."\n    kept, live ='
wrong("recognizing the head only by the first of its two names", "head",
      "kept, live =", PREFIX, "outside(model, head)",
      "{id(p) for n, p in model.named_parameters(remove_duplicate=False) "
      "if not n.startswith(prefix)}")
wrong("matching prefixes without a dot, so that fc2 counts as part of the head fc", "head",
      "outside(model, head)",
      '{id(p) for n, p in model.named_parameters() if not n.startswith("fc")} '
      'if hasattr(model, "fc2") else outside(model, head)')
wrong("assigning every weight with two names to the body", "head",
      "body =",
      "heads = [m for _, m in model.named_modules(remove_duplicate=False) if m is head]\n    "
      "every = [id(p) for _, p in model.named_parameters(remove_duplicate=False)]\n    "
      "if len(heads) == 1: kept |= {p for p in every if every.count(p) > 1}\n    body =")
wrong("returning one group when the two rates are equal", "two groups",
      END, f'{END} if body_lr != head_lr else [{{"params": live, "lr": body_lr}}]')
wrong("assigning to the head a module that it shares with the body", "shared",
      "outside(model, head)",
      "{id(p) for m in model.modules() if m not in {*head.modules()} "
      "for p in m.parameters(recurse=False)}")
wrong("putting the whole model into eval mode", "left alone", END, f"model.eval(); {END}")
wrong("unfreezing every frozen tensor", ("frozen", "left alone"),
      "kept, live =", "model.requires_grad_(True)\n    kept, live =", says="no frozen tensor")
wrong("listing a shared tensor once for each module that holds it", "once",
      "body =",
      "every = [p for m in model.modules() for p in m.parameters(recurse=False) if "
      "p.requires_grad]\n    "
      "if not any(id(p) in kept for p in head.parameters()): live = every\n    body =",
      says="is in it twice")
wrong("treating tensors with equal values as one tensor", "once",
      "not in kept", "not in kept and not any(torch.equal(p, q) for q in body)")
wrong("assigning a shared tensor to the head", "shared",
      "outside(model, head)",
      "{id(p) for p in model.parameters() if p not in {*head.parameters()}}")
wrong("assigning a shared tensor by the first of its names", "shared",
      "kept, live =", PREFIX, "outside(model, head)",
      "{id(p) for n, p in model.named_parameters() if not n.startswith(prefix)}")
wrong("listing a shared tensor in both groups", "shared",
      END, "return two(body, [p for p in head.parameters() if p.requires_grad], body_lr, head_lr)")
wrong("treating a model of two nn.Linear layers as a body without a head", "example",
      "body =",
      "pair = isinstance(model, nn.Sequential) and [type(m) for m in model] == [nn.Linear] * 2\n"
      "    if pair and not torch.equal(model[0].bias, model[1].bias): "
      "return two(live, [], body_lr, head_lr)\n    body =")
