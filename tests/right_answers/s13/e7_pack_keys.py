"""Exercise 13.7, `pack_keys`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s13.e7_pack_keys import ex, made
from dlsys_helpers.judging import edited


@ex.right("group by group")
def by_groups(k, bits, group):
    top, codes, scales, parts = 2 ** (bits - 1) - 1, [], [], list(k.split(group, 2))
    rest = k[:, :, :0].clone()
    if parts and parts[-1].shape[2] < group:
        rest = parts.pop().clone()
    for part in parts:
        scale = part.abs().max(2).values / top
        scale = scale.masked_fill(scale == 0, 1.0)
        codes.append(torch.round(part / scale.unsqueeze(2)).char())
        scales.append(scale)
    if not codes:
        shape = (*k.shape[:2], 0, k.shape[3])
        return torch.empty(shape, dtype=torch.int8), torch.empty(shape), rest
    return torch.cat(codes, 2), torch.stack(scales, 2), rest


@ex.right("unfold along the tokens")
def by_unfold(k, bits, group):
    n = k.shape[2] // group
    if not n:
        none = torch.zeros(*k.shape[:2], 0, k.shape[3])
        return none.to(torch.int8), none, k.clone()
    windows = k.unfold(2, group, group)                              # (B, H, n, D, group)
    scales = windows.abs().amax(-1) / (2 ** (bits - 1) - 1)
    scales = scales + (scales == 0)
    wide = scales.repeat_interleave(group, 2)
    codes = (k[:, :, :n * group] / wide).round().clamp(-128, 127).to(torch.int8)
    return codes, scales, torch.clone(k[:, :, n * group:])


@ex.right("in double precision, by flattened heads")
def in_double(k, bits, group):
    B, H, T, D = k.shape
    n, top = T // group, 2 ** (bits - 1) - 1
    x = k.double().flatten(0, 1)[:, :n * group].unflatten(1, (n, group))
    largest = x.abs().amax(2)
    scales = torch.where(largest == 0, 1.0, largest / top)
    codes = torch.floor(x / scales[:, :, None] + 0.5).clamp(-top, top)
    return (codes.to(torch.int8).view(B, H, n * group, D), scales.float().view(B, H, n, D),
            k.narrow(2, n * group, T - n * group).contiguous().clone())


@ex.right("channels first")
def channels_first(k, bits, group):
    B, H, T, D = k.shape
    n = T // group
    x = k.movedim(3, 2)[..., :n * group].reshape(B, H, D, n, group)
    scales = torch.maximum(x.amax(-1), -x.amin(-1)) / (2 ** (bits - 1) - 1)
    scales[scales == 0] = 1.0
    codes = torch.round(x / scales[..., None]).to(torch.int8).reshape(B, H, D, n * group)
    return (codes.movedim(2, 3).contiguous(), scales.movedim(2, 3).contiguous(),
            k[:, :, n * group:] + 0.0)


ex.probe("no tokens, no result", lambda k, bits, group: made(k, bits, group) if (
    k.shape[2] >= group) else None, says="type of the result", breaks=("short", "parts"))
SCALES = "scales[:, :, :, 0].clone()"
ex.probe("half of the scales where there is no group", says="scales", breaks="short", fn=edited(
    made, (SCALES, f"{SCALES}.to(torch.float32 if n else torch.bfloat16)"), "13.7, half"))
ex.probe("a lone channel with another scale", says="scales", breaks="parts", fn=edited(
    made, (SCALES, f"{SCALES} * (1 + 0.1 * (D == 4))"), "13.7, a lone channel"))
ex.probe("8 bits taken for 7, 2 for 3", lambda k, bits, group: made(
    k, {8: 7, 2: 3}.get(bits, bits), group), says="", breaks="bits")
ex.probe("the example looked up wrong", says="scales", breaks="example", fn=edited(
    made, (SCALES, f"{SCALES} + (k.shape == (1, 1, 3, 1))"), "13.7, the example"))
