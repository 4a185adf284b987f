"""Exercise 06.5, `honest_cv`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s06.e5_honest_cv import crossed, ex


@ex.right("all answers gathered, compared at the end")
def by_answers(x, y, folds, select, fit):
    answers = torch.empty_like(y)
    for name in sorted(set(folds.tolist()), reverse=True):
        train, out = folds != name, folds == name
        columns = select(x[train], y[train])
        answers[out] = fit(x[train][:, columns], y[train])(x[out][:, columns])
    return (answers == y).float().mean().item()


@ex.right("row numbers instead of masks")
def by_numbers(x, y, folds, select, fit):
    right = 0
    for name in dict.fromkeys(folds.tolist()):
        inside = (folds == name).nonzero().flatten()
        outside = (folds != name).nonzero().flatten()
        columns = select(x[outside], y[outside])
        small = x.index_select(1, columns)
        model = fit(small[outside], y[outside])
        right += int((model(small[inside]) == y[inside]).sum())
    return right / y.numel()


@ex.right("a mean weighted by the folds' sizes")
def by_weights(x, y, folds, select, fit):
    names, sizes = folds.unique(return_counts=True)
    shares = []
    for name in names:
        out = folds == name
        columns = select(x[~out], y[~out])
        model = fit(x[~out][:, columns], y[~out])
        shares.append((model(x[out][:, columns]) == y[out]).float().mean())
    return float((torch.stack(shares) * sizes).sum() / sizes.sum())


@ex.right("lists of rows")
def by_lists(x, y, folds, select, fit):
    hits = []
    for name in set(folds.tolist()):
        inside = [i for i, f in enumerate(folds.tolist()) if f == name]
        outside = [i for i, f in enumerate(folds.tolist()) if f != name]
        columns = select(x[outside], y[outside])
        model = fit(x[outside][:, columns], y[outside])
        hits += (model(x[inside][:, columns]) == y[inside]).tolist()
    return sum(hits) / len(hits)


@ex.probe("the example, with its answer looked up wrong", says="fraction right", breaks="example")
def looked_up(x, y, folds, select, fit):
    share = crossed(x, y, folds, select, fit)
    return 0.5 if len(x) == 4 else share
