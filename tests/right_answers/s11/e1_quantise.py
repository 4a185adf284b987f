"""Exercise 11.1, `quantise`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s11.e1_quantise import ex, made, one_by_one

ex.right("group by group, in double precision")(one_by_one)
ex.equivalent("codes = codes.clamp(0, top).view(w.shape).to(torch.uint8) -> "
              "codes = codes.clamp(-1, top).view(w.shape).to(torch.uint8)",
              "no code is below 0: the least weight and zero are rounded to opposite numbers")


@ex.right("the nearest of all levels")
def nearest_level(w, bits, group):
    parts = torch.stack(w.split(group, 1), 1)                   # (R, G, group)
    none = torch.zeros(())
    low, high = parts.amin(-1).minimum(none), parts.amax(-1).maximum(none)
    scales = (high - low) / (2**bits - 1)
    scales[scales == 0] = 1
    zeros = torch.round(-low / scales)
    levels = torch.arange(2**bits) - zeros[..., None]           # in steps of the scale
    gaps = (parts / scales[..., None])[..., None] - levels[:, :, None]
    codes = gaps.abs().argmin(-1).to(torch.uint8)
    return codes.flatten(1), scales, zeros.to(torch.uint8)


@ex.right("rounded after zero is added")
def added_first(w, bits, group):
    parts = w.unfold(1, group, group)
    low, high = parts.amin(-1, True).clamp_max(0), parts.amax(-1, True).clamp_min(0)
    scales = ((high - low) / (2**bits - 1)).masked_fill((high - low) == 0, 1)
    zeros = (low.neg() / scales).round()
    codes = torch.clamp(torch.round(parts / scales + zeros), 0, 2**bits - 1)
    return codes.byte().reshape(w.shape), scales.squeeze(-1), zeros.byte().squeeze(-1)


@ex.right("torch's own rounding, taken back to codes")
def by_torch(w, bits, group):
    flat, top = w.reshape(-1, group), 2**bits - 1
    low, high = flat.amin(1).clamp(max=0), flat.amax(1).clamp(min=0)
    scales = (high - low) / top
    scales = scales + (scales == 0)
    zeros = (-low / scales).round()
    # The sizes are taken out first: torch's function clips scales that are tiny.
    levels = torch.fake_quantize_per_channel_affine(
        flat / scales[:, None], torch.ones_like(scales), zeros.int(), 0, 0, top)
    codes = levels + zeros[:, None]
    shape = (len(w), -1)
    return (codes.round().to(torch.uint8).view(shape), scales.view(shape),
            zeros.to(torch.uint8).view(shape))


@ex.probe("the example, with a number looked up wrong", says="codes of", breaks="example")
def looked_up(w, bits, group):
    codes, scales, zeros = made(w, bits, group)
    return (codes.clamp(max=2) if w.numel() == 3 else codes), scales, zeros
