"""Exercise 08.2, `decoder_mask`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("08.2", "decoder_mask", seen=("real", "order"))

ex.promise_table("""
mask    | Build the SDPA mask for a causal model whose rows are padded. | mask
kinds   | Args: real: (B, T), 1 for a token and 0 for a pad, as int64, bool or float32. | case bool;
          float32; float32, no pads
sizes   | B and T are at least 1. | case one token; one pad; one row; many positions
memory  | Any memory order is possible. | case a transposed tensor; a crop; one row, expanded
places  | Pads can be on the right, on the left or in between. | mask
form    | Returns: A bool mask (B, 1, T, T), True where the row's position may look at the column's
          position. | mask
tokens  | A token may look at itself and at the tokens before it, but not at pads. | mask
pads    | A pad may look only at itself, so no row is empty. | mask
left    | The argument is unchanged. | values changed
later   | A later call does not change this mask. | after a later call; of a second call
example | Example: for [[1, 1, 0]] the mask is [[[[True, False, False], [True, True, False], [False,
          False, True]]]]. | case the example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def rows(counts, size, side="right"):
        real = torch.zeros(len(counts), size, dtype=torch.int64)
        for row, count in zip(real, counts, strict=True):
            row[size - count:] = side == "left"
            if side == "right":
                row[:count] = 1
        return real

    def anywhere():
        real = (torch.rand(whole(3, 5), whole(7, 11), generator=g) < 0.6).long()
        real[:, 0], real[:, 1], real[:, 2], real[:, 3] = 1, 0, 1, 0
        return real

    def one(name, real, order="rows"):
        return name, {"real": real, "order": order}
    size = whole(6, 10)
    right = rows([size, whole(2, 4), whole(4, size)], size)
    left = rows([size, whole(2, 4), whole(4, size)], size, "left")
    return [one("pads right", right), one("pads left", left), one("pads anywhere", anywhere()),
            one("pads right and left", torch.cat([right, left])),
            one("a transposed tensor", anywhere(), "columns"), one("a crop", anywhere(), "crop"),
            one("one row, expanded", anywhere()[:1].repeat(3, 1), "expanded"),
            one("bool", anywhere().bool()), one("float32", anywhere().float()),
            one("float32, no pads", torch.ones(2, whole(3, 7))),
            one("no pads", torch.ones(whole(2, 4), whole(3, 7), dtype=torch.int64)),
            one("a row of nothing but pads", rows([0, whole(2, 5)], whole(5, 8))),
            one("one row", rows([whole(2, 4)], whole(5, 8))),
            one("one token", torch.ones(1, 1, dtype=torch.int64)),
            one("one pad", torch.zeros(1, 1, dtype=torch.int64)),
            one("many positions", rows([whole(30, 60), 140], whole(150, 170))),
            one("the example", torch.tensor([[1, 1, 0]]))]


@ex.act
def act(fn, real, order):
    """The mask of real, and of the same tensor when its numbers are others: all turned around."""
    given = real.clone()
    if order == "columns":
        given = real.T.contiguous().T
    if order == "crop":
        given = torch.ones(len(real) + 2, 2 * real.shape[1] + 1, dtype=real.dtype)[1:-1, 1::2]
        given.copy_(real)
    if order == "expanded":
        given = real[:1].clone().expand(len(real), -1)
    first = fn(given)
    mask = first.clone() if isinstance(first, torch.Tensor) else first
    changed = int((given != real).sum())
    for row in given[:1] if order == "expanded" else given:
        row.copy_(row.flip(0))
    return {"mask": mask, "second": fn(given), "later": first, "changed": changed}


@ex.law
def law(out, real, order):
    expect_parts(out, "mask", "second", "later", "changed")
    expected = mask_by_place(real)
    look = "True where the row may look at the column."
    expect_equal("mask", out["mask"], expected, look)
    expect_equal("values changed in real", out["changed"], 0, "Work on a copy.")
    expect_equal("mask of a second call", out["second"], mask_by_place(real.flip(1)), look)
    expect_equal("mask after a later call", out["later"], expected, look)


@not_an_answer
def mask_by_place(real):
    rows, size = real.shape
    expected = torch.zeros(rows, 1, size, size, dtype=torch.bool)
    for b, row in enumerate(real.tolist()):
        tokens = [t for t, kind in enumerate(row) if kind]
        for t in range(size):
            expected[b, 0, t, t] = True
            if t in tokens:
                expected[b, 0, t, [u for u in tokens if u <= t]] = True
    return expected


# ---- wrong, by name

ROOM: dict = {}


@not_an_answer
def mask_of(real):
    tokens = real.bool()
    size = real.shape[1]
    mask = torch.ones(size, size, dtype=torch.bool).tril().expand(len(real), -1, -1)
    mask = mask & tokens[:, None, :]
    mask = mask & tokens[:, :, None]
    mask = mask | torch.eye(size, dtype=torch.bool)
    out = mask[:, None]
    return out


wrong = ex.edits(mask_of)
DTYPE = "torch.ones(size, size, dtype=torch.bool).tril()"
wrong("returning True for hidden positions, as nn.MultiheadAttention expects",
      "form", "return out", "return ~out")
wrong("returning a float mask of 0 and minus infinity", "form",
      "return out", "return torch.where(out, 0.0, -torch.inf)", says="dtype of the mask")
wrong("returning a float mask of 0 and 1, which SDPA adds to the scores", "form",
      "return out", "return out.float()", says="dtype of the mask")
wrong("returning integers instead of bool", "form",
      "return out", "return out.long()", says="dtype of the mask")
wrong("leaving out the axis for the heads",
      "form", "return out", "return out[:, 0]", says="shape of the mask")
wrong("swapping the mask's rows and columns", "form", "return out", "return out.mT")
ex.wrong("returning only the padding mask, of shape (B, 1, 1, T)",
         lambda real: real.bool()[:, None, None, :], says="shape of the mask", breaks="form")
wrong("using only the causal mask, ignoring the pads", ("tokens", "pads"),
      "mask = mask & tokens[:, None, :]\n    mask = mask & tokens[:, :, None]", "pass")
wrong("leaving out the causal mask, so that the future is visible", "mask",
      DTYPE, "torch.ones(size, size, dtype=torch.bool)")
wrong("masking pads only as queries, not as keys",
      "tokens", "mask = mask & tokens[:, None, :]", "pass")
wrong("masking pads only as keys, so that pads look at tokens", "pads",
      "mask = mask & tokens[:, :, None]", "pass")
wrong("combining only the causal mask and the keys' padding mask", "pads",
      "mask = mask & tokens[:, :, None]\n    mask = mask | torch.eye(size, dtype=torch.bool)",
      "pass")
# https://github.com/huggingface/transformers/pull/26572, .../pytorch/pytorch/issues/110213
wrong("letting pads look at earlier tokens, or at everything if there are none", "pads",
      "mask = mask & tokens[:, :, None]\n    mask = mask | torch.eye(size, dtype=torch.bool)",
      "pass", "return out", "return out | ~out.any(-1, keepdim=True)")
wrong("letting every row look at the first position, so that no row is empty", ("pads", "tokens"),
      "mask = mask & tokens[:, :, None]\n    mask = mask | torch.eye(size, dtype=torch.bool)",
      "pass", "return out", "mask = out.clone(); mask[..., 0] = True; return mask")
wrong("leaving the rows of pads empty, which gives NaN", "pads",
      "mask = mask | torch.eye(size, dtype=torch.bool)", "pass",
      "return out", "return out & torch.ones(1, dtype=torch.bool)")
wrong("letting pads look at everything", "pads",
      "return out", "return out | ~real.bool()[:, None, :, None]")
wrong("forbidding a token to look at itself", "tokens",
      DTYPE, "torch.ones(size, size, dtype=torch.bool).tril(-1)",
      "mask = mask | torch.eye(size, dtype=torch.bool)", "pass",
      "return out", "return out | torch.diag_embed(~real.bool())[:, None]")
wrong("letting tokens look one position into the future", "tokens",
      DTYPE, "torch.ones(size, size, dtype=torch.bool).tril(1)")
wrong("using only the number of tokens, as if all pads were on the right", "places",
      "tokens =",
      "count = real.long().sum(1, keepdim=True); real = torch.arange(real.shape[1]) < count; "
      "tokens =")
wrong("applying & to the argument itself, which fails for floats", "kinds",
      "tokens =", "real = real & torch.ones_like(real); tokens =", says="raised")
wrong("applying ~ to the argument, as if it were bool", "mask",
      "tokens =", "real = ~(~real).bool() if real.dtype == torch.int64 else real; tokens =")
wrong("inverting the argument in place", "left",
      "return out", "real[0].logical_not_(); return out")
wrong("handling at most 128 positions", "sizes",
      "return out", "mask = out.clone(); mask[..., 128:, :128] = False; return mask", says="mask")
wrong("calling view() on the argument, whatever its memory order", "memory",
      "tokens =", "real = real.view(-1).view(real.shape); tokens =", says="raised RuntimeError")

KNOWN: dict = {}


@ex.wrong("caching masks by tensor object, so that new values are missed", breaks="later")
def remembered(real):
    if KNOWN.get("real") is not real:
        KNOWN.update(real=real, mask=mask_of(real))
    return KNOWN["mask"].clone()


wrong("returning one buffer that every call overwrites", "later",
      "return out",
      'new = out.contiguous(); ROOM["mask"] = ROOM["mask"].copy_(new) if '
      'getattr(ROOM.get("mask"), "shape", None) == new.shape else new; return ROOM["mask"]')
