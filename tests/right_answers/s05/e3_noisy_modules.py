"""Exercise 05.3, `noisy_modules`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s05.e3_noisy_modules import ex, parted


@ex.right("the second call compares as it goes")
@torch.no_grad()
def as_it_goes(model, x):
    names = {m: name for name, m in model.named_modules()}
    first, found = {}, set()

    def keep(m, given, out):
        first[m] = given[0].clone(), out.clone()

    def compare(m, given, out):
        a, b = first[m]
        if bool((a == given[0]).all()) and bool((b != out).any()):
            found.add(names[m])

    for look in (keep, compare):
        hooks = [m.register_forward_hook(look) for m in names]
        model(x)
        for hook in hooks:
            hook.remove()
    return [name for name in names.values() if name in found]


@ex.right("inputs by a hook before, outputs by one after")
def two_hooks(model, x):
    given, returned, hooks = {}, {}, []
    for name, m in model.named_modules():
        hooks.append(m.register_forward_pre_hook(
            lambda m, args, name=name: given.setdefault(name, []).append(args[0].clone())))
        hooks.append(m.register_forward_hook(
            lambda m, args, out, name=name: returned.setdefault(name, []).append(out.clone())))
    with torch.inference_mode():
        model(x)
        model(x)
    for hook in hooks:
        hook.remove()
    return [name for name, _ in model.named_modules() if name in given
            and given[name][0].equal(given[name][1]) and not returned[name][0].equal(
                returned[name][1])]


@ex.right("bytes compared")
def by_bytes(model, x):
    def one_pass():
        seen, hooks = {}, []
        for name, m in model.named_modules():
            hooks.append(m.register_forward_hook(lambda m, got, out, name=name: seen.update(
                {name: (got[0].tolist(), out.tolist())})))
        with torch.no_grad():
            model(x)
        [hook.remove() for hook in hooks]
        return seen

    a, b = one_pass(), one_pass()
    return [name for name, _ in model.named_modules()
            if name in a and a[name][0] == b[name][0] and a[name][1] != b[name][1]]


@ex.right("the largest difference, of inputs zero and of outputs more")
@torch.no_grad()
def by_difference(model, x):
    log = []
    hooks = [m.register_forward_hook(lambda m, got, out: log.append((m, got[0] + 0, out + 0)))
             for m in model.modules()]
    model(x)
    half = len(log)
    model(x)
    for hook in hooks:
        hook.remove()
    noisy = {m for (m, a, b), (_, c, d) in zip(log[:half], log[half:], strict=True)
             if not (a - c).any() and (b - d).abs().max() > 0}
    return [name for name, m in model.named_modules() if m in noisy]


ex.equivalent("seen[module] = (given[0], out) -> seen[module] = (given[-1], out)",
              "A module takes one tensor.")


@ex.probe("the example, looked up wrong", breaks="example")
def placeholder(model, x):
    found = parted(model, x)
    return found[1:] if "body" in found else found
