"""Exercise 04.1, `decay_groups`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.param_groups import expect_groups
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("04.1", "decay_groups", seen=("kind", "width", "decay"))

ex.promise_table("""
two groups | Sort a model's parameters into two groups for an optimizer. The first group is decayed,
             the second is exempt. | number of groups; group: got
form       | weight_decay: the decay of the first group. Returns: [first, second], each {"params":
             list of tensors, "weight_decay": float}. | parts of the; type of the; weight_decay of
             the first; a copy
no decay   | The second group's decay is 0.0. | weight_decay of the second
axes       | A tensor with two or more axes is in the first group. | case norms in a Sequential;
             torch's encoder layer; tensors of 0 to 4 axes; parameters with misleading names; a
             frozen first layer; random layers; axes of length one
embeddings | But the weight of an nn.Embedding is in the second group. | case an embedding shared
             with the head; a head before the embedding it shares; an embedding deep inside; only an
             embedding; an embedding of its own class; random layers
frozen     | Args: model: may have frozen tensors (requires_grad False), which are in no group. |
             frozen
once       | All other tensors are in exactly one group, even when two modules share them. | twice;
             missing
example    | Example: nn.Linear(2, 3) has its weight in the first group and its bias in the second.
             | case the example
""")


# A layer of a drawn model, by its letter: the group of each of its tensors.
LAYERS = {"L": {"weight": 0, "bias": 1}, "N": {"weight": 1, "bias": 1}, "E": {"weight": 1},
          "C": {"weight": 0}, "F": {}}

# The group of each trainable tensor: 0 decayed, 1 exempt. Not among the inputs, for those stand
# in the act's frame, where a learner's function can read them.
GROUPS = {
    "conv": {"0.weight": 0, "1.weight": 1, "1.bias": 1, "4.weight": 0, "4.bias": 1},
    "tied": {"0.weight": 1, "1.weight": 1, "1.bias": 1, "2.weight": 0, "2.bias": 1},
    "head first": {"head.weight": 1, "middle.weight": 0, "middle.bias": 1},
    "shared": {"0.weight": 0, "0.bias": 1, "2.weight": 0, "2.bias": 1},
    "frozen": {"1.weight": 1, "1.bias": 1, "3.weight": 0},
    "frozen parts": {"1.weight": 0, "2.bias": 1},
    "all frozen": {},
    "encoder": {"self_attn.in_proj_weight": 0, "self_attn.in_proj_bias": 1,
                "self_attn.out_proj.weight": 0, "self_attn.out_proj.bias": 1,
                "linear1.weight": 0, "linear1.bias": 1, "linear2.weight": 0, "linear2.bias": 1,
                "norm1.weight": 1, "norm1.bias": 1, "norm2.weight": 1, "norm2.bias": 1},
    "axes": {"scale": 1, "gain": 1, "table": 0, "token": 0, "patch": 0},
    "names": {"bias": 0, "norm": 0, "weight": 1, "embedding.weight": 0, "embedding.bias": 1},
    "called": {"dense.weight": 0, "dense.bias": 1, "LayerNorm.weight": 1, "LayerNorm.bias": 1},
    "deep": {"0.0.0.weight": 1, "0.1.weight": 0, "0.1.bias": 1, "1.weight": 1},
    "embedding": {"weight": 1},
    "own embedding": {"0.weight": 1, "1.weight": 0},
    "narrow": {"0.weight": 0, "0.bias": 1, "1.weight": 0, "1.bias": 1, "2.weight": 0},
    "norms": {"0.weight": 1, "0.bias": 1, "1.weight": 1, "1.bias": 1},
    "example": {"weight": 0, "bias": 1},
}


def wanted(kind):
    """The group of each trainable tensor of a model, by name; a drawn one is told by letters."""
    if kind in GROUPS:
        return GROUPS[kind]
    return {f"{place}.{name}": group for place, letter in enumerate(kind.removeprefix("any of "))
            for name, group in LAYERS[letter].items()}


@ex.cases
def cases(g):
    def one(name, kind):
        width = 4 + int(torch.randint(5, (), generator=g))
        decay = 0.01 + round(0.2 * float(torch.rand((), generator=g)), 3)
        return name, {"kind": kind, "width": width, "decay": decay}
    some = "".join("LNECF"[int(torch.randint(5, (), generator=g))] for _ in range(16))
    return [one("norms in a Sequential", "conv"), one("torch's encoder layer", "encoder"),
            one("a norm called LayerNorm", "called"), one("tensors of 0 to 4 axes", "axes"),
            one("axes of length one", "narrow"),
            one("parameters with misleading names", "names"),
            one("an embedding shared with the head", "tied"),
            one("a head before the embedding it shares", "head first"),
            one("two layers that share their tensors", "shared"),
            one("an embedding deep inside", "deep"), one("only an embedding", "embedding"),
            one("an embedding of its own class", "own embedding"),
            one("a frozen first layer", "frozen"),
            one("a frozen weight and a frozen bias", "frozen parts"),
            one("a frozen model", "all frozen"), one("only norms", "norms"),
            one("random layers", f"any of {some}"),
            ("the example", {"kind": "example", "width": 3, "decay": 0.1})]


@ex.act
def act(fn, kind, width, decay):
    class Axes(nn.Module):
        """Tensors of 0, 1, 2, 3 and 4 axes; the batches it has seen are no parameter."""

        def __init__(self):
            super().__init__()
            self.scale, self.gain, self.table, self.token, self.patch = (
                nn.Parameter(torch.ones((width,) * axes)) for axes in range(5))
            self.register_buffer("seen", torch.zeros(width, width))

    class Names(nn.Module):
        """A matrix called bias, another called norm, a vector called weight."""

        def __init__(self):
            super().__init__()
            self.bias, self.norm, self.weight = (
                nn.Parameter(torch.ones((width,) * axes)) for axes in (2, 2, 1))
            self.embedding = nn.Linear(width, width)

    class HeadFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.middle = nn.Linear(width, 7, bias=False), nn.Linear(width, width)
            self.tokens = nn.Embedding(7, width)
            self.tokens.weight = self.head.weight

    class Positions(nn.Embedding):
        """An nn.Embedding by inheritance."""

    def tied():
        model = nn.Sequential(nn.Embedding(7, width), nn.LayerNorm(width),
                              nn.Linear(width, width), nn.Linear(width, 7, bias=False))
        model[3].weight = model[0].weight
        return model

    def shared():
        model = nn.Sequential(*[nn.Linear(width, width) for _ in range(3)])
        model[1].weight, model[1].bias = model[0].weight, model[0].bias
        return model

    def drawn():
        make = {"L": lambda: nn.Linear(width, width), "N": lambda: nn.LayerNorm(width),
                "E": lambda: nn.Embedding(width, width),
                "C": lambda: nn.Conv1d(width, width, 1, bias=False),
                "F": lambda: nn.Linear(width, width).requires_grad_(False)}
        return nn.Sequential(*[make[letter]() for letter in kind.removeprefix("any of ")])

    model = drawn() if kind.startswith("any of ") else {
        "conv": lambda: nn.Sequential(nn.Conv2d(1, width, 3, bias=False), nn.BatchNorm2d(width),
                                      nn.ReLU(), nn.Flatten(), nn.Linear(width, 3)),
        "tied": tied, "head first": HeadFirst, "shared": shared, "axes": Axes, "names": Names,
        "frozen": lambda: nn.Sequential(nn.Linear(3, width), nn.LayerNorm(width), nn.ReLU(),
                                        nn.Linear(width, 2, bias=False)),
        "frozen parts": lambda: nn.Sequential(nn.Embedding(5, width), nn.Linear(width, 4),
                                              nn.Linear(4, 2)),
        "all frozen": lambda: nn.Linear(2, width),
        "deep": lambda: nn.Sequential(
            nn.Sequential(nn.Sequential(nn.Embedding(5, width)), nn.Linear(width, 4)),
            nn.Embedding(3, 4)),
        "called": lambda: nn.ModuleDict({"dense": nn.Linear(2, width),
                                         "LayerNorm": nn.LayerNorm(width)}),
        "embedding": lambda: nn.Embedding(5, width),
        "own embedding": lambda: nn.Sequential(Positions(5, width),
                                               nn.Linear(width, 2, bias=False)),
        "narrow": lambda: nn.Sequential(nn.Linear(width, 1), nn.Linear(1, width),
                                        nn.Conv2d(width, 1, 1, bias=False)),
        "norms": lambda: nn.Sequential(nn.LayerNorm(width), nn.BatchNorm1d(width)),
        "encoder": lambda: nn.TransformerEncoderLayer(2 * width, 2, 3 * width, batch_first=True),
        "example": lambda: nn.Linear(2, 3)}[kind]()
    for name, parameter in model.named_parameters():
        frozen = kind == "all frozen" or (kind, name) in [
            ("frozen", "0.weight"), ("frozen", "0.bias"), ("frozen parts", "0.weight"),
            ("frozen parts", "1.bias"), ("frozen parts", "2.weight")]
        parameter.requires_grad_(parameter.requires_grad and not frozen)
    asked = [p.requires_grad for p in model.parameters()]
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
    groups = fn(model, decay)
    changed = sum(p.requires_grad != a for p, a in zip(model.parameters(), asked))
    return {"groups": [group(one) for one in groups] if type(groups) is list else groups,
            "changed": changed}


@ex.law
def law(out, kind, width, decay):
    expect_parts(out, "groups", "changed")
    expect_groups(out["groups"], ("decayed", "exempt"), "weight_decay", wanted(kind),
                  "Look at the tensor's number of axes and at its module.")
    expect_close("weight_decay of the first group", out["groups"][0]["weight_decay"], decay)
    expect_equal("weight_decay of the second group", out["groups"][1]["weight_decay"], 0.0)
    expect_equal("tensors frozen or unfrozen", out["changed"], 0, "Do not change requires_grad.")


def in_two(named, decay, plain):
    """Two groups from (name, tensor) pairs; plain(name, tensor) says which are exempt."""
    named = list(named)
    return [{"params": [p for n, p in named if not plain(n, p)], "weight_decay": decay},
            {"params": [p for n, p in named if plain(n, p)], "weight_decay": 0.0}]


def trainable(model):
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]


def embedding_ids(model, modules=None):
    return {id(m.weight) for m in modules or model.modules() if isinstance(m, nn.Embedding)}


# ---- wrong, by name

@not_an_answer
def sorted_out(model, weight_decay):
    tables = embedding_ids(model)
    out = in_two(trainable(model), weight_decay, lambda n, p: p.ndim < 2 or id(p) in tables)
    return out


wrong = ex.edits(sorted_out)
START, END = "tables =", "return out"
EMBEDDING_IDS = "embedding_ids(model)"
TABLES = "p.ndim < 2 or id(p) in tables"
wrong("exempting embeddings and tensors whose name contains bias or LayerNorm.weight", "two groups",
      TABLES, '"bias" in n or "LayerNorm.weight" in n or id(p) in tables',
      says="decayed group: got 1.weight in it")
wrong("exempting embeddings and tensors whose name contains bias or norm", "two groups",
      TABLES, '"bias" in n or "norm" in n.lower() or id(p) in tables',
      says="decayed group: got 1.weight in it")
wrong("exempting biases and embeddings, but not gains", "two groups",
      "p.ndim < 2", 'n.endswith("bias")', says="decayed group: got 1.weight in it")

# As they are usually written: nobody thinks of the embeddings.
NAMES = ("bias", "LayerNorm.weight")
ex.wrong("exempting only tensors whose name contains bias or LayerNorm.weight",
         lambda model, weight_decay: in_two(trainable(model), weight_decay, lambda n, p: any(
             part in n for part in NAMES)), breaks="two groups")
ex.wrong("exempting only tensors whose name contains bias, norm or emb",
         lambda model, weight_decay: in_two(trainable(model), weight_decay, lambda n, p: any(
             part in n.lower() for part in ("bias", "norm", "emb"))), breaks="two groups")
ex.wrong("looking up each whole name in a list that holds only parts of names",
         lambda model, weight_decay: in_two(trainable(model), weight_decay,
                                            lambda n, p: n in NAMES), breaks="two groups")
ex.wrong("exempting biases and nothing else",
         lambda model, weight_decay: in_two(trainable(model), weight_decay,
                                            lambda n, p: n.endswith("bias")), breaks="two groups")
wrong("exempting biases, nn.LayerNorm and nn.Embedding, but no other norm layer", "two groups",
      START, "known =", EMBEDDING_IDS,
      "{id(p) for m in model.modules() if isinstance(m, nn.LayerNorm | nn.Embedding) for p in "
      "m.parameters(recurse=False)}", "p.ndim < 2", 'n.endswith("bias")', "in tables", "in known")
wrong("decaying only the weights of nn.Linear", "two groups",
      START, "known =",
      EMBEDDING_IDS, "{id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}",
      TABLES, "id(p) not in known")
wrong("swapping the two groups", ("two groups", "example"),
      END, "return out[::-1]", says="decayed group")
wrong("leaving out an empty group", "two groups",
      END, 'return [group for group in out if group["params"]]')
wrong("returning tuples instead of lists", "form",
      END, 'return [{**group, "params": tuple(group["params"])} for group in out]')
wrong("returning copies of the tensors", "form",
      END,
      'return [{**group, "params": [p.detach().clone() for p in group["params"]]} for group in '
      "out]", says="not a copy")
wrong("setting a learning rate in each group", "form",
      END, 'return [{**group, "lr": 1e-3} for group in out]',
      says="parts of the decayed group")
wrong("leaving weight_decay out of the second group, which then gets the default", "form",
      END, 'first, second = out; return [first, {"params": second["params"]}]',
      says="parts of the exempt group")
wrong("setting a decay of 0.01, whatever is asked for", "form", "weight_decay,", "0.01,")
wrong("setting the same decay in both groups", "no decay",
      END, 'first, second = out; return [first, {**second, "weight_decay": weight_decay}]')
wrong("giving the second group a tenth of the decay", "no decay",
      END,
      'first, second = out; return [first, {**second, "weight_decay": 0.1 * weight_decay}]')
wrong("decaying only tensors with exactly two axes", "axes",
      "p.ndim < 2", "p.ndim != 2", says="decayed group: got 0.weight missing")
wrong("exempting tensors with one axis, but decaying scalars", "axes",
      "p.ndim < 2", "p.ndim == 1", says="decayed group: got scale")
wrong("not counting axes of length one, so that the weight of Linear(n, 1) is exempt", "axes",
      "p: p", "p: p.squeeze()", says="decayed group: got 0.weight missing")
wrong("decaying only the weights of Linear and Conv2d", "axes",
      "out =",
      "known = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)}; "
      "out =", "p.ndim < 2", "id(p) not in known",
      says="decayed group: got self_attn.in_proj_weight missing")


@ex.wrong("decaying a weight only if the first module that holds it is a Linear or Conv2d",
          breaks=("axes", "embeddings"), says="decayed group: got")
def listed_kinds(model, weight_decay):
    first_of = {}
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            first_of.setdefault(id(p), name == "weight" and isinstance(module, nn.Linear
                                                                       | nn.Conv2d))
    return in_two(trainable(model), weight_decay, lambda n, p: not first_of[id(p)])


wrong("exempting every tensor whose name contains bias, even a matrix", "axes",
      TABLES, 'p.ndim < 2 or "bias" in n or id(p) in tables', says="decayed group: got bias")
ex.wrong("decaying embeddings like any other matrix",
         lambda model, weight_decay: in_two(trainable(model), weight_decay, lambda n, p: p.ndim <
             2), says="decayed group: got 0.weight in it", breaks="embeddings")
wrong("looking for embeddings only in the model itself and its direct children", "embeddings",
      EMBEDDING_IDS, "embedding_ids(model, [model, *model.children()])",
      says="decayed group: got 0.0.0.wei")
wrong("recognizing embeddings by their exact class", "embeddings",
      EMBEDDING_IDS, "{id(m.weight) for m in model.modules() if type(m) is nn.Embedding}",
      says="decayed group: got 0.weight in it")
wrong("recognizing embeddings by the first module that holds the tensor", "embeddings",
      START, "modules =", EMBEDDING_IDS, "dict(model.named_modules())",
      "id(p) in tables", 'isinstance(modules[n.rpartition(".")[0]], nn.Embedding)',
      says="decayed group: got head.weight in it")
wrong("passing frozen tensors to the optimizer", "frozen",
      "trainable(model)", "list(model.named_parameters())", says="is frozen")
wrong("leaving out frozen matrices, but not frozen vectors", "frozen",
      "trainable(model)",
      "[(n, p) for n, p in model.named_parameters() if p.requires_grad or p.ndim < 2]",
      says="is frozen")
wrong("listing a shared tensor once for each module that holds it", "once",
      START,
      "pairs = [(n, p) for m in model.modules() for n, p in m.named_parameters(recurse=False) if "
      "p.requires_grad]; tables = embedding_ids(model); own_out = in_two(pairs, weight_decay, "
      f"lambda n, p: p.ndim < 2 or id(p) in tables); {START}",
      END, "return own_out if pairs else out", says="is in it twice")


@ex.wrong("deciding module by module, so that a shared tensor is listed twice",
          breaks=("once", "embeddings"), says="decayed group: got 0.weight in it")
def by_module(model, weight_decay):
    pairs = [(m, p) for m in model.modules() for p in m.parameters(recurse=False)
             if p.requires_grad]
    return in_two(pairs, weight_decay, lambda m, p: p.ndim < 2 or isinstance(m, nn.Embedding))


wrong("leaving out shared tensors altogether", "once",
      START, "every =",
      EMBEDDING_IDS, "[id(p) for _, p in model.named_parameters(remove_duplicate=False)]",
      "trainable(model)", "[(n, p) for n, p in trainable(model) if every.count(id(p)) == 1]",
      "in tables", f"in {EMBEDDING_IDS}")
wrong("decaying the bias as well if the model is a single nn.Linear", "example",
      START,
      "if isinstance(model, nn.Linear): return in_two(trainable(model), weight_decay, lambda n, "
      "p: False)\n    tables =", says="decayed group: got bias")
