"""Exercise 11.4, `drop_inputs`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s11.e4_drop_inputs import ex, made, put, staying


@ex.right("least squares of the whole output")
def whole_output(w, x, drop):
    rest = staying(w, drop)
    if not rest:
        return torch.zeros_like(w)
    return put(w, rest, torch.linalg.lstsq(x[:, rest], x @ w.T).solution.T)


@ex.right("least squares of what is lost")
def what_is_lost(w, x, drop):
    rest = staying(w, drop)
    lost = x[:, drop] @ w[:, drop].T
    return put(w, rest, w[:, rest] + (torch.linalg.pinv(x[:, rest]) @ lost).T)


@ex.right("one input after the other, each made up for by all that stay")
def one_by_one(w, x, drop):
    w, H = w.clone(), x.T @ x
    left = list(range(w.shape[1]))
    for j in drop:
        left.remove(j)
        w[:, left] += w[:, j:j + 1] * torch.linalg.solve(H[left][:, left], H[left, j])
        w[:, j] = 0
    return w


@ex.right("with the inverse of H, as the papers write it")
def by_inverse(w, x, drop):
    inverse = torch.linalg.inv(x.T @ x)
    step = torch.linalg.solve(inverse[drop][:, drop], w[:, drop].T).T @ inverse[drop]
    out = w - step
    out[:, drop] = 0
    return out


ex.probe("the example, with a number looked up wrong",
         lambda w, x, drop: made(w, x, drop) * (2 if w.numel() == 2 else 1), breaks="example")
