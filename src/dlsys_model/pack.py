"""Trained weights as one block of bytes, a little over a quarter of their size.

A matrix is stored in 8 bits on the affine grid of exercise 11.1, a grid for each group of 32
neighbours of a row, with a float16 scale and a byte for the code of zero. Vectors stay float32.

    [uint32 length of the header][header as JSON][bytes of the tensors]

The header holds `shape` (the arguments of `network.Shape`), the letters in the order of their
numbers, what the caller notes, and where each tensor begins. All numbers are little-endian. A
matrix of R rows and C columns is R * C codes, R * C / 32 zeros, R * C / 32 scales. engine.js reads
the same format.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dlsys_helpers.errors import UserError

BITS, GROUP = 8, 32  # bits of what is stored; weights that share a scale
SMALLEST_NORMAL, STEP = 2.0**-14, 2.0**-24  # of float16: below the first, its steps are the second
Sizes = dict[str, tuple[int, ...]]
Grid = tuple[Tensor, Tensor, Tensor]


class PackError(UserError):
    """These weights or these bytes are not a model that can be packed or read."""


def grid(w: Tensor, bits: int, group: int) -> Grid:
    """Codes (R, C) uint8, scales and zeros (R, C // group) float32 and uint8, rounded by torch.

    Each group of a row has 2**bits levels, scale * (code - zero), 0 among them; a group of zeros
    has scale 1. A learner's `quantise` of 11.1 promises the same and can replace it.
    """
    groups, top = w.reshape(-1, group), 2**bits - 1
    low, high = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
    scales = (high - low) / top
    scales[scales == 0] = 1
    zeros = (-low / scales).round().int()
    levels = torch.fake_quantize_per_channel_affine(groups, scales, zeros, 0, 0, top)
    codes = (levels / scales[:, None]).round() + zeros[:, None]
    apart = (len(w), -1)
    return codes.byte().view(w.shape), scales.view(apart), zeros.byte().view(apart)


def halved(w: Tensor, bits: int, found: Grid) -> Grid:
    """A grid (see `grid`) with float16 scales; codes and zeros are recomputed for tiny scales.

    Below float16's normal range a scale has few digits or none, so it is rounded up to the next
    float16, and the codes use that scale. Such a group is within 0.016 of zero.
    """
    codes, scales, zeros = found
    tiny = scales < SMALLEST_NORMAL
    up = (scales / STEP).ceil() * STEP
    groups = w.view(*scales.shape, -1)
    zeros = torch.where(tiny, (-groups.amin(-1).clamp(max=0) / up).round(), zeros.float())
    anew = ((groups / up[..., None]).round() + zeros[..., None]).clamp(0, 2**bits - 1)
    codes = torch.where(tiny[..., None], anew, codes.view(groups.shape).float())
    return (codes.byte().view(w.shape), torch.where(tiny, up, scales).half(), zeros.byte())


def sizes(shape: Mapping[str, int]) -> Sizes:
    """The size of each tensor of a network: letters V, width d, layers, as in `network.Shape`."""
    v, d = shape["letters"], shape["width"]
    block = {"norm1.weight": (d,), "norm1.bias": (d,), "qkv.weight": (3 * d, d),
             "out.weight": (d, d), "norm2.weight": (d,), "norm2.bias": (d,),
             "up.weight": (4 * d, d), "up.bias": (4 * d,), "down.weight": (d, 4 * d),
             "down.bias": (d,)}
    blocks = {f"blocks.{n}.{name}": size for n in range(shape["layers"])
              for name, size in block.items()}
    return {"emb.weight": (v, d), **blocks, "norm.weight": (d,), "norm.bias": (d,),
            "head.weight": (v, d)}


def pack(state: Mapping[str, Tensor], shape: Mapping[str, int], letters: str,
         quantise: Callable[[Tensor, int, int], Grid] = grid, **notes: Any) -> bytes:
    """The weights of a network in 8 bits.

    state: its state dict, of any floating dtype, on any device. shape: letters, width, layers,
    heads, length. letters: V different letters, in the order of their numbers. quantise: the
    `quantise` of exercise 11.1. notes: further entries of the header, as JSON.
    Raises PackError for weights that do not fit the shape or are not finite.
    """
    _check(state, shape, letters)
    body, places = bytearray(), {}
    for name in sizes(shape):
        places[name] = len(body)
        body += _stored(state[name].detach().float().cpu(), quantise)
    header = json.dumps({"shape": dict(shape), "letters": letters, **notes, "tensors": places},
                        separators=(",", ":")).encode("ascii")
    return len(header).to_bytes(4, "little") + header + bytes(body)


def _check(state: Mapping[str, Tensor], shape: Mapping[str, int], letters: str) -> None:
    expected, width, heads = sizes(shape), shape["width"], shape["heads"]
    if width % GROUP or width % heads or width // heads % 2:
        raise PackError(f"width: got {width} with {heads} heads, expected a multiple of {GROUP} "
                        "that the heads cut into even parts.")
    if len(set(letters)) != len(letters) or len(letters) != shape["letters"]:
        raise PackError(f"letters: got {len(set(letters))} different ones of {len(letters)}, "
                        f"expected {shape['letters']}. Pass the letters that the model was "
                        "trained on, in their order.")
    if missing := [name for name in expected if name not in state]:
        raise PackError(f"weights: {missing[0]} is missing, expected {len(expected)} tensors. "
                        "Pass the state_dict() of a dlsys_model Network.")
    if unknown := [name for name in state if name not in expected]:
        raise PackError(f"weights: got {unknown[0]}, which a Network of {shape['layers']} layers "
                        "does not have. Merge adapters first, and pass the shape it was made of.")
    for name, size in expected.items():
        if tuple(state[name].shape) != size:
            raise PackError(f"{name}: got shape {tuple(state[name].shape)}, expected {size}. Pass "
                            "the shape that the network was made of.")
        if not state[name].isfinite().all():
            raise PackError(f"{name}: holds NaN or infinity, expected finite weights. Load the "
                            "last sound checkpoint.")


def _stored(w: Tensor, quantise: Callable[[Tensor, int, int], Grid]) -> bytes:
    if w.dim() == 1:
        return w.numpy().astype("<f4").tobytes()
    codes, scales, zeros = quantise(w, BITS, GROUP)
    if scales.max() > np.finfo(np.float16).max:
        raise PackError(f"weights: a scale of {scales.max():.3g} is too large for float16, "
                        "expected at most 65504. Weights of that size come from a run that "
                        "diverged.")
    codes, scales, zeros = halved(w, BITS, (codes, scales, zeros))
    return (codes.numpy().tobytes() + zeros.numpy().tobytes()
            + scales.numpy().astype("<f2").tobytes())


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header, and the weights as float32: what the page calculates with.

    Raises PackError for other bytes or a truncated file.
    """
    start = 4 + int.from_bytes(data[:4], "little")
    try:
        header = json.loads(data[4:start])
        expected, places = sizes(header["shape"]), header["tensors"]
        state = {name: _read(data[start + places[name]:], size)
                 for name, size in expected.items()}
    except (ValueError, KeyError, TypeError):
        raise PackError(f"packed model: {len(data):,} bytes that cannot be read, expected a file "
                        "written by dlsys_model.pack. Pack the model again.") from None
    return header, state


def _read(data: bytes, size: tuple[int, ...]) -> Tensor:
    """A tensor from the beginning of `data`. Raises ValueError if that is too short."""
    count = int(np.prod(size))
    if len(size) == 1:
        return torch.from_numpy(np.frombuffer(data, "<f4", count).copy())
    groups = count // GROUP
    codes = np.frombuffer(data, np.uint8, count).reshape(groups, GROUP).astype(np.float32)
    zeros = np.frombuffer(data, np.uint8, groups, count)
    scales = np.frombuffer(data, "<f2", groups, count + groups).astype(np.float32)
    return torch.from_numpy((codes - zeros[:, None]) * scales[:, None]).view(size)


def in_bits(state: Mapping[str, Tensor], bits: int) -> dict[str, Tensor]:
    """The weights with each matrix on a grid of `bits` bits, as the page computes from its own."""
    def rounded(w: Tensor) -> Tensor:
        codes, scales, zeros = grid(w, bits, GROUP)
        apart = codes.float().view(*scales.shape, GROUP) - zeros[..., None]
        return (apart * scales[..., None]).view(w.shape)
    return {name: rounded(w) if w.dim() == 2 else w for name, w in state.items()}
