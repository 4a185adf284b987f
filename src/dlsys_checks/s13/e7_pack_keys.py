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
groups  | The tokens are cut into groups of `group` consecutive tokens; | scales; codes
rest    | rest is what is left over at the end, unchanged. | rest
each    | In every group, each channel of each head and row has its own scale: | scales
scale   | its largest absolute value divided by 2**(bits - 1) - 1, | scales; codes
zero    | or 1. if all values are 0. | case a channel of zeros; all zeros
scales  | scales: (B, H, T // group, D) float32. | of the scales
codes   | codes: int8, the integer nearest to k / scale, (B, H, T // group * group, D). | codes
bits    | bits: 2 to 8. | case 2 bits; 8 bits
short   | T may be less than group. | case fewer tokens than a group; no tokens
memory  | None of the three is a view of k or of a copy of k: each stores only its own values. |
          bytes held; bytes kept
example | Example: k of one channel, [3., -7., 1.], bits 4, group 2: codes [3, -7], scales [1.],
          rest [1.]. | case the example
""")


@ex.cases
def cases(g):
    def one(name, shape=(2, 3, 12, 4), group=4, bits=4, size=1.0, order="plain"):
        k = size * torch.randn(*shape, generator=g)
        return name, {"k": k, "bits": bits, "group": group, "order": order}

    loud = one("a loud channel", (2, 2, 9, 6), 3)
    loud[1]["k"][:, :, :, 2] *= 30
    empty = one("a channel of zeros", (2, 2, 8, 3))
    empty[1]["k"][0, 1, :4, 1] = 0.0
    empty[1]["k"][1, 0, 2:6, 2] = -0.0
    ties = one("the largest is below zero", (1, 2, 6, 3), 3)
    ties[1]["k"][:, :, ::3] = -3.0 - ties[1]["k"][:, :, ::3].abs()
    return [one("whole groups"), one("tokens left over", (2, 3, 11, 4), 4), loud,
            one("one row, one head", (1, 1, 7, 5), 3), one("one channel", (2, 3, 9, 1), 4),
            one("group of one token", (2, 2, 5, 3), 1), one("one group of all", (2, 2, 6, 3), 6),
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
    expect_equal("numbers changed in k", out["moved"], 0, "Work on a copy.")
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
                 look=f"The largest absolute value of a channel in its {group} tokens, over {top}.")
    expect_like("codes", codes, torch.empty(B, H, n * group, D, dtype=torch.int8))
    gap = (codes.double() - places).abs()
    if gap.numel() and gap.max() > 0.5 + 1e-3:
        at = int(gap.argmax())
        raise Broken("codes, one of them", int(codes.flatten()[at]),
                     round(float(places.flatten()[at]), 3), "The nearest whole number is meant.")
    expect_equal("rest", out["rest"], k[:, :, n * group:], f"{T - n * group} tokens are left over.")
    expect_equal("bytes held of the memory of k", out["held"], 0,
                 "A view keeps all of it alive.")
    expect_equal("bytes kept beside the numbers", out["more"], 0,
                 "A view of a copy keeps all of the copy alive.")


# ---- wrong, by name

@not_an_answer
def made(k, bits, group, *, dims=(3,), top=lambda bits: 2 ** (bits - 1) - 1, size=None, zero=1.0,
         turn=torch.round, rest=lambda k, n: k[:, :, n:].clone(), whole=lambda T, group: T // group,
         strided=False, dtype=torch.int8, form=tuple, show=lambda scales: scales):
    """The right answer with its pieces as options."""
    B, H, T, D = k.shape
    n = whole(T, group)
    body = k[:, :, :n * group]
    if strided:
        parts = body.reshape(B, H, group, n, D).transpose(2, 3)
    else:
        parts = body.reshape(B, H, n, group, D)
    largest = (size or (lambda parts, dims: parts.abs().amax(dims, keepdim=True)))(parts, dims)
    scales = (largest / top(bits)).expand(B, H, n, 1, D)
    scales = torch.where(scales > 0, scales, zero)
    codes = turn(parts / scales).nan_to_num(0.0).to(dtype)
    if strided:
        codes = codes.transpose(2, 3)
    return form((codes.reshape(B, H, n * group, D), show(scales[:, :, :, 0].clone()),
                 rest(k, n * group)))


EMPTY = ("fewer tokens than a group", "no tokens")


@not_an_answer
def where_any(k, bits, group, **options):
    """The wrong answer, and the right one where there is no group to be wrong about."""
    return made(k, bits, group, **(options if k.shape[2] >= group else {}))


ex.wrong("using one scale for everything", where_any, breaks=("each", "groups", "parts"),
         dims=(0, 1, 2, 3, 4))
ex.wrong("using a scale for each head, for all its channels", where_any, breaks=("each", "groups"),
         dims=(0, 2, 3, 4))
ex.wrong("using a scale for each channel of all groups", where_any, breaks="groups", dims=(2, 3))
ex.wrong("using a scale for each group, for all its channels",
         where_any, breaks="each", dims=(3, 4))
ex.wrong("using a scale for each token",
         lambda k, bits, group: made(k, bits, group, show=lambda s: s,
         size=lambda parts, dims: parts.abs().amax(4, keepdim=True)[:, :, :, :1])
         if k.shape[2] >= group else made(k, bits, group), breaks=("each", "scale", "groups"))
# https://github.com/ahb-sjsu/turboquant-pro/pull/98
ex.wrong("using a scale for all rows of the batch", where_any, breaks="each", dims=(0, 3))
ex.wrong("using a scale for all heads", where_any, breaks="each", dims=(1, 3))
# https://github.com/NVIDIA/Model-Optimizer/issues/20
ex.wrong("setting all scales to 1", where_any, breaks="scale",
         size=lambda parts, dims: 7.0 * torch.ones_like(parts[:, :, :, :1]))
ex.wrong("grouping every n-th token, not neighbours", where_any, breaks="groups", strided=True)
ex.wrong("using as many levels as bits give, on one side", where_any, breaks=("scale", "bits"),
         top=lambda bits: 2 ** bits - 1)
ex.wrong("using one level too many", where_any, breaks=("scale", "bits", "codes"),
         top=lambda bits: 2 ** (bits - 1))
ex.wrong("taking the largest number, not the largest absolute value",
         where_any, breaks=("scale", "zero"),
         size=lambda parts, dims: parts.amax(dims, keepdim=True))
ex.wrong("taking half the distance from the smallest to the largest", where_any, breaks="scale",
         size=lambda parts, dims: (parts.amax(dims, keepdim=True) -
                                   parts.amin(dims, keepdim=True)) / 2)
ex.wrong("taking twice the mean size", where_any, breaks="scale",
         size=lambda parts, dims: 2 * parts.abs().mean(dims, keepdim=True))
ex.wrong("truncating instead of rounding", where_any, breaks="codes", turn=torch.trunc)
ex.wrong("rounding down", where_any, breaks="codes", turn=torch.floor)
ex.wrong("returning the values of the grid, not their codes", lambda k, bits, group: (
    unpacked(*made(k, bits, group)), *made(k, bits, group)[1:]), says="dtype of the codes",
    breaks="codes")
ex.wrong("returning codes in uint8",
         made, says="dtype of the codes", breaks="codes", dtype=torch.uint8)
ex.wrong("returning codes as floats",
         made, says="dtype of the codes", breaks="codes", dtype=torch.float32)
ex.wrong("leaving an axis on the scales", made, says="shape of the scales", breaks="scales",
         show=lambda scales: scales[:, :, :, None])
ex.wrong("returning scales in bfloat16", made, says="dtype of the scales", breaks="scales",
         show=lambda scales: scales.bfloat16())
ex.wrong("using a scale of 0 for a channel of zeros", where_any, breaks="zero", zero=0.0)
ex.wrong("keeping scales above 1e-8", lambda k, bits, group: (
    lambda codes, scales, rest: (codes, scales.clamp(min=1e-8), rest))(*made(
        k, bits, group, zero=1e-8)), breaks=("scale", "zero"))
ex.wrong("dropping what is left over", made, says="rest", breaks="rest",
         rest=lambda k, n: k[:, :, :0].clone())
ex.wrong("keeping back a group though it is full",
         made, says="", breaks=("rest", "groups", "scales",
                                                                       "short"),
         whole=lambda T, group: max(0, (T - 1) // group))
ex.wrong("cutting the tokens left over off at the front", made, says="", breaks=("rest", "groups",
                                                                             "scale", "codes"),
         rest=lambda k, n: k[:, :, :k.shape[2] - n].clone())
# https://github.com/rajveer43/VeloxQuant-MLX/issues/162
ex.wrong("returning the rest as a view of k", made, breaks="memory", rest=lambda k, n: k[:, :, n:])
ex.wrong("returning the rest as a view of a copy of k", made, says="bytes kept", breaks="memory",
         rest=lambda k, n: k.clone()[:, :, n:])
ex.wrong("returning a list of the three",
         made, says="type of the result", breaks="parts", form=list)


def unpacked(codes, scales, rest):
    n = scales.shape[2]
    if not n:
        return codes.float()
    return codes.float() * scales.repeat_interleave(codes.shape[2] // n, 2)


@ex.wrong("writing the codes over k", breaks="k")
def in_place(k, bits, group):
    found = made(k, bits, group)
    k.add_(1.0)
    return found
