"""Exercise 04.1, `decay_groups`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

from torch import nn

from dlsys_checks.s04.e1_decay_groups import embedding_ids, ex, in_two, trainable


@ex.right("a walk over modules, each tensor once")
def by_modules(model, weight_decay):
    tables, seen, groups = embedding_ids(model), set(), ([], [])
    for module in model.modules():
        for p in module.parameters(recurse=False):
            if id(p) not in seen and p.requires_grad:
                seen.add(id(p))
                groups[p.ndim < 2 or id(p) in tables].append(p)
    return [{"params": groups[0], "weight_decay": weight_decay},
            {"params": groups[1], "weight_decay": 0.0}]


@ex.right("a dict of tensors by id, embeddings taken out")
def by_dict(model, weight_decay):
    live = {id(p): p for p in model.parameters() if p.requires_grad}
    decayed = {key: p for key, p in live.items() if p.dim() > 1}
    for m in model.modules():
        if isinstance(m, nn.Embedding):
            decayed.pop(id(m.weight), None)
    exempt = [p for key, p in live.items() if key not in decayed]
    return [{"weight_decay": weight_decay, "params": [*decayed.values()]},
            {"weight_decay": 0.0, "params": exempt}]


@ex.right("identity asked tensor by tensor")
def by_identity(model, weight_decay):
    tables = [m.weight for _, m in model.named_modules() if isinstance(m, nn.Embedding)]
    return in_two(trainable(model), weight_decay,
                  lambda n, p: len(p.shape) <= 1 or any(p is t for t in tables))


@ex.right("sets, whose order is nobody's")
def by_sets(model, weight_decay):
    live = {p for p in model.parameters() if p.requires_grad}
    tables = {p for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    decayed = {p for p in live if p.ndim >= 2} - tables
    return [{"params": list(decayed), "weight_decay": weight_decay},
            {"params": list(live - decayed), "weight_decay": 0.0}]


ex.equivalent("decayed, exempt = ([], []) -> decayed, exempt = ([], [])",
              "Two empty lists are the same in either order.")
