"""What several exercises of stage 3 share."""

from __future__ import annotations

import torch

from dlsys_helpers.expect import Broken


def pair(out, what):
    """Refuse anything but a tuple of two."""
    if type(out) is not tuple or len(out) != 2:
        raise Broken("returned value", out, f"a tuple ({what})")
    return out


def between(g, low, high):
    """An integer from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=g))
