"""Exercise 09.3, `unused_names`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s09.e3_unused_names import Restored, ex

ex.equivalent("with torch.random.fork_rng(devices=[]): -> with torch.random.fork_rng():",
              "it keeps the generators of all GPUs, too, which nothing here moves")
ex.equivalent("with torch.no_grad(): -> for buffer, old in zip(model.buffers(), buffers):",
              "buffers ask for no gradient, so a copy into them is recorded nowhere")
ex.equivalent("grads = torch.autograd.grad(loss, list(live.values()), allow_unused=True) -> "
              "grads = torch.autograd.grad(loss, live.values(), allow_unused=True)",
              "grad makes a tuple of what it is given")


@ex.right("backward with empty gradients, batch by batch")
def by_backward(model, batches, loss_of):
    found = set()
    with Restored(model):
        for batch in batches:
            for p in model.parameters():
                p.grad = None
            loss = loss_of(model, batch)
            if loss.requires_grad:
                loss.backward()
            found |= {n for n, p in model.named_parameters() if p.requires_grad and p.grad is None}
    return sorted(found)


@ex.right("each parameter asked for on its own")
def one_by_one(model, batches, loss_of):
    found = []
    with Restored(model):
        losses = [loss_of(model, batch) for batch in batches]
        for name, p in model.named_parameters():
            asked = [loss.requires_grad and torch.autograd.grad(
                loss, p, retain_graph=True, allow_unused=True)[0] is not None
                for loss in losses if p.requires_grad]
            found += [name] * (not all(asked))
    return sorted(found)


@ex.right("a walk through the graph")
def by_walk(model, batches, loss_of):
    live = {p: n for n, p in model.named_parameters() if p.requires_grad}
    found = set()
    with Restored(model):
        for batch in batches:
            seen, todo, left = set(), [loss_of(model, batch).grad_fn], dict(live)
            while todo:
                node = todo.pop()
                if node is None or node in seen:
                    continue
                seen.add(node)
                left.pop(getattr(node, "variable", None), None)
                todo += [following for following, _ in node.next_functions]
            found |= set(left.values())
    return sorted(found)


@ex.right("a copy of the model, its gradients counted by hooks")
def by_copy(model, batches, loss_of):
    import copy
    twin, found = copy.deepcopy(model), set()
    with torch.random.fork_rng(devices=[]):
        for batch in batches:
            twin.zero_grad(set_to_none=True)
            loss = loss_of(twin, batch)
            if loss.grad_fn is not None:
                loss.backward()
            found.update(n for n, p in twin.named_parameters()
                         if p.requires_grad and p.grad is None)
    return sorted(found)
