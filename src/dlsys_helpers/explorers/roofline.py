"""A roofline: the rate that a device allows a kernel, by its FLOPs per byte moved."""

import torch

from dlsys_helpers.explorers import Choice, Lines, Slider, explorer
from dlsys_helpers.gpu import PEAKS

NUMBER = 2         # bytes of a 16-bit number
WIDTH, HEAD, BLOCK = 4096, 128, 128  # of a matrix, of a head, queries on the chip
DEVICES = {"H200": "NVIDIA H200", "A100": "NVIDIA A100-SXM4-80GB", "L4": "NVIDIA L4",
           "T4": "Tesla T4"}


def product(rows):
    """FLOPs and bytes of a product (rows, WIDTH) by (WIDTH, WIDTH)."""
    return 2 * rows * WIDTH**2, NUMBER * (2 * rows * WIDTH + WIDTH**2)


def attention(n, written=True):
    """FLOPs and bytes of one head over n tokens, its scores written out or kept on the chip."""
    ends = 2 * n * HEAD * NUMBER
    keys = 2 * n * HEAD * NUMBER * (1 if written else -(-n // BLOCK))
    return 4 * n * n * HEAD, ends + keys + (4 * n * n * NUMBER if written else 0)


def decode(n):
    """One query over a cache of n keys: each number of it is used once."""
    return 4 * n * HEAD, 2 * (n + 1) * HEAD * NUMBER


# FLOPs and bytes by the number of tokens (rows). A tensor of WIDTH is added to another, below.
KERNELS = {"sum of two tensors": lambda n: (n * WIDTH, 3 * n * WIDTH * NUMBER),
           "matrix product": product, "attention, written out": attention,
           "attention, flash": lambda n: attention(n, written=False), "decoding one token": decode}


@explorer(
    title="Roofline: FLOPs for each byte",
    controls=[
        Choice("kernel", "Kernel", KERNELS, "attention, written out"),
        Slider("tokens", "Tokens", [1, 16, 128, 1024, 8192, 65536], 8192, fmt="{:,}"),
        Choice("device", "Device", DEVICES, "H200"),
    ],
    views=[
        Lines("intensity", {"tensor": "roof, tensor cores", "plain": "roof, 32-bit units"},
              title="What the datasheet allows", xlabel="FLOP/byte (log)",
              ylabel="TFLOP/s (log)", xlog=True, ylog=True, mark="at"),
    ],
)
def roofline(kernel, tokens, device):
    """Both roofs over FLOP/byte, a mark at the kernel, and its minimum time."""
    peak = PEAKS[DEVICES[device]]
    flops, moved = KERNELS[kernel](tokens)
    intensity = flops / moved
    x = torch.logspace(-2, 4, 61, dtype=torch.float64)
    bound = "Its bytes" if intensity < peak.ridge else "Its FLOPs"
    sentence = (f"{kernel.capitalize()}, {tokens:,} tokens on {device}: {intensity:.3g} FLOP/byte, "
                f"ridge at {peak.ridge:.0f}. {bound} set the pace: at most "
                f"{peak.ceiling(intensity):.3g} TFLOP/s, at least "
                f"{peak.least_us(flops, moved):.3g} us.")
    return {"intensity": x, "at": [intensity],
            "tensor": [peak.ceiling(i) for i in x.tolist()],
            "plain": [peak.ceiling(i, tensor_cores=False) for i in x.tolist()]}, sentence
