"""Exercise 10.2, `merge`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s10.e2_merge import ex


@ex.right("einsum on detached tensors")
def by_einsum(W, A, B, alpha):
    update = torch.einsum("or,ri->oi", B.detach(), A.detach()) * (alpha / A.shape[0])
    return update.add(W.detach()).to(W.dtype)


@ex.right("a sum of outer products")
@torch.no_grad()
def by_outer(W, A, B, alpha):
    total = W.to(torch.float32, copy=True)
    for k in range(B.shape[1]):
        total += torch.outer(B[:, k], A[k]) * alpha / B.shape[1]
    return total.to(dtype=W.dtype)


@ex.right("addmm")
def by_addmm(W, A, B, alpha):
    return torch.addmm(W.data.float(), B.data, A.data, alpha=alpha / len(A)).to(W.dtype)


@ex.right("transposed, through float64, and back")
@torch.no_grad()
def transposed(W, A, B, alpha):
    total = W.double().T + A.double().T @ B.double().T * (alpha / len(A))
    return total.T.to(W.dtype).contiguous()


@ex.right("the adapter run on an identity")
@torch.no_grad()
def on_identity(W, A, B, alpha):
    eye = torch.eye(W.shape[1])
    return (eye @ W.float().T + alpha / len(A) * (eye @ A.T @ B.T)).T.to(W.dtype).clone()


ex.equivalent("return (W.float() + update).to(W.dtype) -> return (W + update).to(W.dtype)",
              "The update is float32, so that torch takes the sum in float32.")
