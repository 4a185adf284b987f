"""The first call of every lesson: seed, threads, style."""

from __future__ import annotations

import random

import numpy as np
import torch

from dlsys_helpers import gpu, plots


def begin(seed: int, threads: int, device: str) -> None:
    """Seed Python, numpy and torch, fix torch's thread count and set the plot style.

    device: "auto", "cpu" or "cuda", checked here so that a typing error shows at once.
    Raises ValueError for a negative seed, fewer than one thread or an unknown device.
    """
    if seed < 0 or threads < 1:
        raise ValueError(f"begin: got seed {seed} and {threads} threads, expected seed >= 0 "
                         "and at least 1 thread.")
    gpu.device(device)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    plots.use_house_style()
