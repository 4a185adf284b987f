"""Exercise 09.13, `rebuild`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

from dlsys_checks.s09.e13_rebuild import ex, settings_of


@ex.right("get_parameter, and groups added one by one")
def added(optimizer, names, model):
    groups = [{**old, "params": [model.get_parameter(n) for n in chosen]}
              for old, chosen in zip(optimizer.param_groups, names, strict=True)]
    new = type(optimizer)(groups[:1])
    for group in groups[1:]:
        new.add_param_group(group)
    return new


@ex.right("parameters first, settings put in afterwards")
def updated(optimizer, names, model):
    now = dict(model.named_parameters())
    new = optimizer.__class__([{"params": [now[n] for n in chosen]} for chosen in names])
    for group, old in zip(new.param_groups, optimizer.param_groups, strict=True):
        group.update(settings_of(old))
    return new


@ex.right("the settings through state_dict, without its state")
def by_state_dict(optimizer, names, model):
    now = dict(model.named_parameters())
    new = type(optimizer)([{"params": [now[n] for n in chosen]} for chosen in names])
    new.load_state_dict({"state": {}, "param_groups": optimizer.state_dict()["param_groups"]})
    return new


@ex.right("a shallow copy of each group")
def copied(optimizer, names, model):
    groups = [group.copy() for group in optimizer.param_groups]
    for group, chosen in zip(groups, names, strict=True):
        group["params"] = [p for n in chosen for m, p in model.named_parameters() if m == n]
    return type(optimizer)(groups)
