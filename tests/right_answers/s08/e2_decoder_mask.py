"""Exercise 08.2, `decoder_mask`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s08.e2_decoder_mask import ex, mask_of

ex.equivalent("pairs = tokens[:, :, None] & tokens[:, None, :] -> pairs = tokens[:, None, :] & "
              "tokens[:, :, None]", "& has no order.")
ex.equivalent("return (pairs & before | itself)[:, None] -> return (itself | pairs & before)"
              "[:, None]", "| has no order.")
ex.equivalent("return (pairs & before | itself)[:, None] -> return (before & pairs | itself)"
              "[:, None]", "& has no order.")


@ex.right("outer products of floats")
def by_products(real):
    x = real.float()
    pairs = torch.einsum("bi,bj->bij", x, x).tril()
    return ((pairs + torch.eye(x.shape[1])) > 0).unsqueeze(1)


@ex.right("comparing places, then torch.where")
def by_places(real):
    place = torch.arange(real.shape[1])
    seen = (place[None, :] <= place[:, None]) & (real != 0)[:, None, None, :]
    own = place[None, :] == place[:, None]
    return torch.where((real != 0)[:, None, :, None], seen, own)


@ex.right("row by row")
def by_rows(real):
    masks = []
    for row in real:
        mask = torch.tril((row > 0).expand(len(row), -1)).clone()
        mask[row == 0] = False
        mask.fill_diagonal_(True)
        masks.append(mask[None])
    return torch.stack(masks)


@ex.right("pads numbered as documents of their own")
def by_documents(real):
    size = real.shape[1]
    document = torch.where(real > 0, 0, torch.arange(1, size + 1).expand(real.shape))
    same = document.unsqueeze(2) == document.unsqueeze(1)
    return same.unsqueeze(1).logical_and(torch.ones(size, size).tril().bool())


ex.probe("the example, looked up wrong",
         lambda real: mask_of(real).mT.clone() if real.tolist() == [[1, 1, 0]] else mask_of(real),
         says="mask", breaks="example")
