"""Small copies of tensors that keep their distances, so that large ones can be compared too.

A count sketch (Charikar, Chen and Farach-Colton 2002) adds each element, with a random sign, to
one of K sums. It is linear, and two sketches are about as far apart as their tensors.
"""

from __future__ import annotations

import functools

import torch

OF_A_ROW, OF_A_TENSOR = 64, 4096   # sums; a tensor with no more elements is kept whole


@functools.lru_cache(maxsize=256)
def plan(elements: int, sums: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which sum each element goes to, (elements,) int64, and its sign, (elements,) float64."""
    g = torch.Generator().manual_seed(elements)
    return (torch.randint(sums, (elements,), generator=g),
            torch.randint(2, (elements,), generator=g).double() * 2 - 1)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Its values as float64 on the CPU."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.to("cpu", torch.float64)


def sketched(values: torch.Tensor, sums: int) -> torch.Tensor:
    """(N, D) float64 -> (N, D), or (N, sums) where D is larger."""
    if values.shape[1] <= sums:
        return values.clone()
    where, sign = plan(values.shape[1], sums)
    return values.new_zeros(len(values), sums).index_add_(1, where, values * sign)


def of_rows(tensor: torch.Tensor) -> torch.Tensor:
    """(N, ...) -> (N, K) float64: each row by itself."""
    values = plain(tensor)
    return sketched(values.reshape(len(values), -1), OF_A_ROW)


def of_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of any shape -> (1, K) float64."""
    return sketched(plain(tensor).reshape(1, -1), OF_A_TENSOR)
