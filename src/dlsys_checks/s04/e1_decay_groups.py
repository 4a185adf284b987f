"""Exercise 04.1, `decay_groups`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
    show,
)

ex = exercise("04.1", "decay_groups",
              seen=("kind", "width", "decay"))


# The group of each trainable tensor: 0 decayed, 1 exempt. Not among the inputs, for those stand
# in the act's frame, where a learner's function can read them.
GROUPS = {
    "conv": {"0.weight": 0, "1.weight": 1, "1.bias": 1, "4.weight": 0, "4.bias": 1},
    "tied": {"0.weight": 1, "1.weight": 1, "1.bias": 1, "2.weight": 0, "2.bias": 1},
    "frozen": {"1.weight": 1, "1.bias": 1, "3.weight": 0},
    "encoder": {"self_attn.in_proj_weight": 0, "self_attn.in_proj_bias": 1,
                "self_attn.out_proj.weight": 0, "self_attn.out_proj.bias": 1,
                "linear1.weight": 0, "linear1.bias": 1, "linear2.weight": 0, "linear2.bias": 1,
                "norm1.weight": 1, "norm1.bias": 1, "norm2.weight": 1, "norm2.bias": 1},
}


@ex.cases
def cases(g):
    def one(name, kind):
        width = 4 + int(torch.randint(5, (), generator=g))
        decay = 0.01 + round(0.2 * float(torch.rand((), generator=g)), 3)
        return name, {"kind": kind, "width": width, "decay": decay}
    return [one("norms in a Sequential", "conv"),
            one("an embedding shared with the head", "tied"),
            one("a frozen first layer", "frozen"), one("torch's encoder layer", "encoder")]


@ex.act
def act(fn, kind, width, decay):
    if kind == "conv":
        model = nn.Sequential(nn.Conv2d(1, width, 3, bias=False), nn.BatchNorm2d(width),
                              nn.ReLU(), nn.Flatten(), nn.Linear(width, 3))
    elif kind == "tied":
        model = nn.Sequential(nn.Embedding(7, width), nn.LayerNorm(width),
                              nn.Linear(width, width), nn.Linear(width, 7, bias=False))
        model[3].weight = model[0].weight
    elif kind == "frozen":
        model = nn.Sequential(nn.Linear(3, width), nn.LayerNorm(width), nn.ReLU(),
                              nn.Linear(width, 2, bias=False))
        model[0].requires_grad_(False)
    else:
        model = nn.TransformerEncoderLayer(2 * width, 2, 3 * width, batch_first=True)
    name_of = {id(p): n for n, p in model.named_parameters()}
    groups = fn(model, decay)
    return [{"params": [name_of.get(id(p), "a tensor of another model") for p in g["params"]],
             "weight_decay": g["weight_decay"]} for g in groups]


def names_in(group):
    """The sorted names of one group's tensors. Raises Broken for another form."""
    expect_parts(group, "params", "weight_decay")
    expect_type("tensors of a group", group["params"], list)
    for name in group["params"]:
        expect_type("name of a tensor", name, str)
    return sorted(group["params"])


@ex.law
def law(out, kind, width, decay):
    expect_type("list of groups", out, list)
    expect_length("groups", out, 2)
    wanted = GROUPS[kind]
    for place, word in ((0, "decayed"), (1, "exempt")):
        names = names_in(out[place])
        mine = sorted(n for n, where in wanted.items() if where == place)
        extra = [n for n in names if n not in mine]
        if extra:
            why = ("it is frozen." if extra[0] not in wanted
                   else "look at its axes and its module.")
            raise Broken(f"{word} group", f"{show(extra[0])} in it", "it elsewhere",
                         why.capitalize())
        lost = [n for n in mine if n not in names]
        if lost:
            raise Broken(f"{word} group", f"{lost[0]} missing", "every trainable tensor")
        expect_equal(f"size of the {word} group", len(names), len(mine),
                     "A tensor stands in it twice.")
    expect_close("weight_decay of the first group", out[0]["weight_decay"], decay)
    expect_close("weight_decay of the second group", out[1]["weight_decay"], 0.0)


def in_two(named, decay, plain):
    """Two groups from (name, tensor) pairs; plain(name, tensor) says which are exempt."""
    named = list(named)
    return [{"params": [p for n, p in named if not plain(n, p)], "weight_decay": decay},
            {"params": [p for n, p in named if plain(n, p)], "weight_decay": 0.0}]


def trainable(model):
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]


def embedding_ids(model):
    return {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}


@ex.wrong("names: bias and LayerNorm.weight", says="decayed group: got 1.weight in it")
def by_class_name(model, weight_decay):
    tables = embedding_ids(model)
    return in_two(trainable(model), weight_decay, lambda n, p: (
        "bias" in n or "LayerNorm.weight" in n or id(p) in tables))


@ex.wrong("names: everything with 'norm' in it", says="decayed group: got 1.weight in it")
def by_norm_in_name(model, weight_decay):
    tables = embedding_ids(model)
    return in_two(trainable(model), weight_decay, lambda n, p: (
        "bias" in n or "norm" in n.lower() or id(p) in tables))


@ex.wrong("embeddings decayed like matrices", says="decayed group: got 0.weight in it")
def by_axes_alone(model, weight_decay):
    return in_two(trainable(model), weight_decay, lambda n, p: p.ndim < 2)


@ex.wrong("frozen tensors handed to the optimizer", says="It is frozen")
def with_frozen(model, weight_decay):
    tables = embedding_ids(model)
    return in_two(model.named_parameters(), weight_decay,
                  lambda n, p: p.ndim < 2 or id(p) in tables)


@ex.wrong("a shared tensor taken once for each module that holds it", says="stands in it twice")
def shared_twice(model, weight_decay):
    tables = embedding_ids(model)
    pairs = [(n, p) for m in model.modules() for n, p in m.named_parameters(recurse=False)
             if p.requires_grad]
    return in_two(pairs, weight_decay, lambda n, p: p.ndim < 2 or id(p) in tables)


@ex.wrong("only biases exempt", says="decayed group: got 1.weight in it")
def only_biases(model, weight_decay):
    return in_two(trainable(model), weight_decay, lambda n, p: n.endswith("bias"))


@ex.wrong("the two groups swapped", says="decayed group")
def swapped(model, weight_decay):
    tables = embedding_ids(model)
    return in_two(trainable(model), weight_decay,
                  lambda n, p: p.ndim < 2 or id(p) in tables)[::-1]
