"""What float32 may do to a sum, where the sum itself can come out near zero.

A sum is only right to a share of the terms that were added, however small it is. So a law derives
its tolerance from those terms: `ROUNDED` times their size.
"""

from __future__ import annotations

import torch

from dlsys_helpers.expect import expect_like

ROUNDED = 1e-6


def settled(what: str, got: torch.Tensor, wanted: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """`got`, with the entries of `wanted` where the two are no further apart than `room` there.

    Compare the result with `wanted`. Raises Broken for another type, shape or dtype, as a law does.
    """
    expect_like(what, got, wanted)
    return torch.where((got - wanted).abs() <= room, wanted, got)
