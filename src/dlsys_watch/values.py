"""Reading values: small answers about tensors, of at most a few thousand of their numbers."""

from __future__ import annotations

import torch

MOST = 4096


def counted(number: int, noun: str) -> str:
    """"1 tensor", "2 tensors"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def some(tensor: torch.Tensor) -> torch.Tensor:
    """The first numbers of a tensor, flat and detached; a view where it can be one."""
    flat = tensor.detach()
    while flat.dim() > 1 and flat.shape[0] > 0 and flat[0].numel() >= MOST:
        flat = flat[0]
    return flat.reshape(-1)[:MOST]


def size(tensor: torch.Tensor) -> float:
    """The root mean square of a tensor's first numbers."""
    numbers = some(tensor).double()
    return (torch.linalg.vector_norm(numbers) / len(numbers) ** 0.5).item()


def first_tensor(value, floating: bool = False):
    """The first tensor in a batch or an answer, however it is wrapped; None without one.

    floating: only one of floating-point numbers counts.
    """
    if torch.is_tensor(value):
        return value if value.is_floating_point() or not floating else None
    parts = value.values() if isinstance(value, dict) else value
    if not isinstance(parts, list | tuple | type({}.values())):
        return None
    return next((t for part in parts if (t := first_tensor(part, floating)) is not None), None)


def fingerprint(tensor: torch.Tensor) -> float:
    """A number that changes when the values or their order do; nan stays nan."""
    numbers = some(tensor).double()
    weights = torch.arange(1, len(numbers) + 1, device=numbers.device) % 89 + 1
    return (numbers * weights).sum().item()


def is_zero(tensor: torch.Tensor | None) -> bool:
    """Whether a gradient is missing or zero everywhere."""
    if tensor is None:
        return True
    if tensor.layout is not torch.strided or type(tensor) is not torch.Tensor:
        return False
    return not tensor.any().item()


def are_probabilities(values: torch.Tensor, dim: int) -> bool:
    """Whether values lie in 0..1, sum to 1 along `dim`, and are more than a choice of one."""
    if not values.is_floating_point() or values.numel() < 2 or values.shape[dim] < 2:
        return False
    near = 1e-3 if values.dtype in (torch.float32, torch.float64) else 2e-2
    off = (values.float().sum(dim) - 1).abs().max()
    if not (values.min() >= 0 and off <= near):   # nan is neither
        return False
    return bool(((values > near) & (values < 1 - near)).any())
