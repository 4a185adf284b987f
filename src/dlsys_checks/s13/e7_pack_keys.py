"""Exercise 13.7, `pack_keys`."""

from __future__ import annotations

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_close,
    expect_equal,
    expect_like,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("13.7", "pack_keys", seen=("k", "bits", "group", "order"), kept=("rest",),
              says="scales")

ex.promise_table("""
parts   | Compute (codes, scales, rest): keys with a separate grid for each channel. | scales; type
          of the result; parts of the result
k       | k: (B, H, T, D) float32, not changed. | changed in k
groups  | The tokens are cut into groups of `group` consecutive tokens. | scales; codes
rest    | rest holds the tokens left over at the end, unchanged. | rest
each    | In every group, each channel of each head and row has its own scale. | scales
scale   | A scale is its channel's largest absolute value divided by 2**(bits - 1) - 1. | scales;
          codes
zero    | If all values are 0, the scale is 1.0. | case a channel of zeros; all zeros
scales  | scales: (B, H, T // group, D) float32. | of the scales
codes   | codes: int8, the integer nearest to k / scale, (B, H, T // group * group, D). | codes
bits    | bits: 2 to 8. | case 2 bits; 8 bits
short   | T can be less than group. | case fewer tokens than a group; no tokens
memory  | None of the three is a view of k or of a copy of k: each stores only its own values. |
          bytes held; bytes kept
example | Example: k of one channel, [3., -7., 1.], bits 4 and group 2 give codes [3, -7], scales
          [1.] and rest [1.]. | case the example
""")


@ex.cases
def cases(g):
    def one(name, shape=(2, 3, 12, 4), group=4, bits=4, size=1.0, order="plain"):
        k = size * torch.randn(*shape, generator=g)
        return name, {"k": k, "bits": bits, "group": group, "order": order}

    loud = one("a channel of large values", (2, 2, 9, 6), 3)
    loud[1]["k"][:, :, :, 2] *= 30
    empty = one("a channel of zeros", (2, 2, 8, 3))
    empty[1]["k"][0, 1, :4, 1] = 0.0
    empty[1]["k"][1, 0, 2:6, 2] = -0.0
    ties = one("the largest is below zero", (1, 2, 6, 3), 3)
    ties[1]["k"][:, :, ::3] = -3.0 - ties[1]["k"][:, :, ::3].abs()
    return [one("whole groups"), one("tokens left over", (2, 3, 11, 4), 4), loud,
            one("one row, one head", (1, 1, 7, 5), 3), one("one channel", (2, 3, 9, 1), 4),
            one("groups of one token", (2, 2, 5, 3), 1),
            one("one group of all tokens", (2, 2, 6, 3), 6),
            one("more groups than channels", (1, 2, 17, 2), 2),
            one("fewer tokens than a group", (2, 2, 3, 4), 5), one("no tokens", (2, 2, 0, 4), 3),
            one("2 bits", bits=2), one("3 bits", (2, 2, 10, 3), 3, bits=3), one("8 bits", bits=8),
            one("tiny", size=1e-20), one("huge", size=1e20), empty, ties,
            one("all zeros", (1, 2, 5, 3), 2, size=0.0),
            one("heads made from tokens", (2, 3, 8, 4), 3, order="heads"),
            one("a part of a larger cache", (2, 3, 8, 4), 3, order="part"),
            ("the example", {"k": torch.tensor([3.0, -7.0, 1.0]).reshape(1, 1, 3, 1), "bits": 4,
                             "group": 2, "order": "plain"})]


@ex.act
def act(fn, k, bits, group, order):
    if order == "heads":
        mine = k.transpose(1, 2).contiguous().transpose(1, 2)
    elif order == "part":
        mine = torch.cat([k, k + 1], 2)[:, :, :k.shape[2]]
    else:
        mine = k.clone()
    found = fn(mine, bits, group)
    held = more = 0
    if isinstance(found, (tuple, list)):
        tensors = [t for t in found if isinstance(t, torch.Tensor)]
        here = mine.untyped_storage().data_ptr()
        held = sum(t.untyped_storage().data_ptr() == here for t in tensors if t.nbytes)
        more = sum(max(0, t.untyped_storage().nbytes() - t.nbytes) for t in tensors)
    held *= mine.untyped_storage().nbytes()
    rest = found[2] if isinstance(found, (tuple, list)) and len(found) == 3 else None
    return {"found": tuple(found[:2]) if rest is not None and type(found) is tuple else found,
            "rest": rest, "held": held, "more": more, "moved": int((mine != k).sum())}


@ex.law
def law(out, k, bits, group, order):
    expect_parts(out, "found", "rest", "held", "more", "moved")
    expect_equal("values changed in k", out["moved"], 0, "Work on a copy.")
    expect_type("result", out["found"], tuple)
    if len(out["found"]) == 3:          # rest is None, or the three are no tuple
        expect_type("rest", out["found"][2], torch.Tensor)
    if len(out["found"]) != 2:
        raise Broken("parts of the result", len(out["found"]), 3)
    codes, scales = out["found"]
    B, H, T, D = k.shape
    n, top = T // group, 2 ** (bits - 1) - 1
    wanted, places = torch.ones(B, H, n, D), torch.zeros(B, H, n * group, D, dtype=torch.float64)
    for i in range(n):
        part = k[:, :, i * group:(i + 1) * group].double()
        largest = torch.maximum(part.max(2).values, -part.min(2).values)
        wanted[:, :, i] = torch.where(largest > 0, largest / top, 1.0).float()
        places[:, :, i * group:(i + 1) * group] = part / wanted[:, :, i, None].double()
    expect_close("scales", scales, wanted, rtol=1e-5, atol=0.0,
                 look=f"It is a channel's largest absolute value in its {group} tokens, divided by "
                      f"{top}.")
    expect_like("codes", codes, torch.empty(B, H, n * group, D, dtype=torch.int8))
    gap = (codes.double() - places).abs()
    if gap.numel() and gap.max() > 0.5 + 1e-3:
        at = int(gap.argmax())
        raise Broken("codes, for one of them", int(codes.flatten()[at]),
                     round(float(places.flatten()[at]), 3), "Round to the nearest whole number.")
    expect_equal("rest", out["rest"], k[:, :, n * group:], f"{T - n * group} tokens are left over.")
    expect_equal("bytes held in the memory of k", out["held"], 0,
                 "A view keeps all of k alive.")
    expect_equal("bytes kept in addition to the values", out["more"], 0,
                 "A view of a copy keeps all of the copy alive.")


# ---- wrong, by name

def over(sizes, dims):
    """The largest of the sizes over these axes, for each channel of each group."""
    largest = sizes.amax(dims if sizes.numel() else 3, keepdim=True)
    return largest.expand(*sizes.shape[:3], 1, sizes.shape[4])


@not_an_answer
def made(k, bits, group):
    B, H, T, D = k.shape
    n = T // group
    parts = k[:, :, :n * group].reshape(B, H, n, group, D)
    largest = parts.abs().amax(3, keepdim=True)
    scales = largest / (2 ** (bits - 1) - 1)
    scales = torch.where(scales > 0, scales, 1.0)
    codes = (parts / scales).round().to(torch.int8).reshape(B, H, n * group, D)
    return codes, scales[:, :, :, 0].clone(), k[:, :, n * group:].clone()


wrong = ex.edits(made)
LARGEST, ONE = "parts.abs().amax(3, keepdim=True)", "torch.where(scales > 0, scales, 1.0)"
TOP, SHOWN, REST = "(2 ** (bits - 1) - 1)", "[:, :, :, 0].clone()", "k[:, :, n * group:].clone()"
wrong("using one scale for all keys", ("each", "groups", "parts"),
      LARGEST, "over(parts.abs(), (0, 1, 2, 3, 4))")
wrong("using one scale for all channels of a head", ("each", "groups"),
      LARGEST, "over(parts.abs(), (0, 2, 3, 4))")
wrong("using the same scale for a channel in all groups", "groups",
      LARGEST, "over(parts.abs(), (2, 3))")
wrong("using one scale for all channels of a group", "each",
      LARGEST, "over(parts.abs(), (3, 4))")
wrong("using one scale for each token", ("each", "scale", "groups"),
      LARGEST, "over(parts[:, :, :, :1].abs(), 4)")
# https://github.com/ahb-sjsu/turboquant-pro/pull/98
wrong("using the same scale for a channel in all rows of the batch",
      "each", LARGEST, "over(parts.abs(), (0, 3))")
wrong("using the same scale for a channel in all heads",
      "each", LARGEST, "over(parts.abs(), (1, 3))")
# https://github.com/NVIDIA/Model-Optimizer/issues/20
wrong("setting all scales to 1", "scale", ONE, "torch.ones_like(scales)")
wrong("grouping every n-th token instead of consecutive tokens", "groups",
      "(B, H, n, group, D)", "(B, H, group, n, D).transpose(2, 3)",
      ".to(torch.int8)", ".to(torch.int8).transpose(2, 3)")
wrong("dividing the largest value by 2**bits - 1", ("scale", "bits"), TOP, "(2 ** bits - 1)")
wrong("dividing the largest value by 2**(bits - 1)",
      ("scale", "bits", "codes"), TOP, "2 ** (bits - 1)")
wrong("using the largest value instead of the largest absolute value",
      ("scale", "zero"), ".abs()", "")
wrong("using half the distance between the smallest and the largest value", "scale",
      LARGEST, "(parts.amax(3, keepdim=True) - parts.amin(3, keepdim=True)) / 2")
wrong("using twice the mean absolute value instead of the largest",
      "scale", LARGEST, "2 * parts.abs().mean(3, keepdim=True)")
wrong("truncating instead of rounding to the nearest integer", "codes", ".round()", ".trunc()")
wrong("rounding down instead of to the nearest integer", "codes", ".round()", ".floor()")
wrong("returning the rounded values instead of their codes", "codes",
      ".round().to(torch.int8)", ".round().mul(scales)", says="dtype of the codes")
wrong("returning codes in uint8", "codes", "int8", "uint8", says="dtype of the codes")
wrong("returning codes as floats", "codes", ".to(torch.int8)", "", says="dtype of the codes")
wrong("leaving an axis of size 1 in the scales",
      "scales", SHOWN, ".clone()", says="shape of the scales")
wrong("returning scales in bfloat16", "scales", SHOWN, "[:, :, :, 0].bfloat16()",
      says="dtype of the scales")
wrong("using a scale of 0 for a channel of zeros", "zero",
      ONE, "scales", "(parts / scales)", "(parts / scales).nan_to_num(0.0)")
wrong("clamping scales to at least 1e-8", ("scale", "zero"), ONE, "scales.clamp(min=1e-8)")
wrong("dropping the tokens that are left over", "rest", REST, "k[:, :, :0].clone()", says="rest")
wrong("putting a full last group into the rest", ("rest", "groups", "scales", "short"),
      "T // group", "max(0, (T - 1) // group)", says="")
wrong("returning the first tokens as the rest, not the last ones",
      ("rest", "groups", "scale", "codes"),
      REST, "k[:, :, :T - n * group].clone()", says="")
# https://github.com/rajveer43/VeloxQuant-MLX/issues/162
wrong("returning the rest as a view of k", "memory", REST, "k[:, :, n * group:]")
wrong("returning the rest as a view of a copy of k", "memory",
      REST, "k.clone()[:, :, n * group:]", says="bytes kept")
wrong("returning a list instead of a tuple", "parts",
      "return codes,", "return [codes,", REST, f"{REST}]", says="type of the result")
wrong("changing k in place", "k", "return", "given, k = k, k.clone(); given.add_(1.0); return")
