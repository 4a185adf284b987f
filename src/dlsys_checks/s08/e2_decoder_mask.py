"""Exercise 08.2, `decoder_mask`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("08.2", "decoder_mask", seen=("real", "order"))

ex.promise("mask", "Mask for SDPA in a causal model whose rows are padded.",
           says=("mask",))
ex.promise("kinds", "real: (B, T), 1 for a token and 0 for a pad, as int64, bool or float32,",
           cases=("bool", "float32", "float32, no pads"))
ex.promise("sizes", "B and T from 1 on,", cases=("one token", "one pad", "a row", "many places"))
ex.promise("memory", "in memory in any order.", cases=("a transposed tensor", "a crop",
                                                      "one row, expanded"))
ex.promise("places", "Pads stand on the right, on the left or in between.", says=("mask",))
ex.promise("form", "The mask is bool, of shape (B, 1, T, T), True where the row's place may look "
           "at the column's.", says=("mask",))
ex.promise("tokens", "A token looks at itself and at the tokens before it, not at pads.",
           says=("mask",))
ex.promise("pads", "A pad looks at itself and at nothing else, so no row is empty.",
           says=("mask",))
ex.promise("left", "real stays as it is,", says=("numbers changed",))
ex.promise("later", "and a later call leaves this mask alone.",
           says=("after a later call", "of a second call"))
ex.promise("example", "Example: for [[1, 1, 0]] the mask is [[[[True, False, False], "
           "[True, True, False], [False, False, True]]]].", cases=("the example",))


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
            one("a row of pads alone", rows([0, whole(2, 5)], whole(5, 8))),
            one("a row", rows([whole(2, 4)], whole(5, 8))),
            one("one token", torch.ones(1, 1, dtype=torch.int64)),
            one("one pad", torch.zeros(1, 1, dtype=torch.int64)),
            one("many places", rows([whole(30, 60), 140], whole(150, 170))),
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
    expect_equal("numbers changed in real", out["changed"], 0, "Work on a copy.")
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

@not_an_answer
def mask_of(real, *, before=lambda s: s.tril(), keys=True, queries=True, itself=True):
    """The worked answer with its pieces as options."""
    tokens = real.bool()
    size = real.shape[1]
    mask = before(torch.ones(size, size, dtype=torch.bool)).expand(len(real), -1, -1)
    if keys:
        mask = mask & tokens[:, None, :]
    if queries:
        mask = mask & tokens[:, :, None]
    if itself:
        mask = mask | torch.eye(size, dtype=torch.bool)
    return mask[:, None]


ex.wrong("the polarity of nn.MultiheadAttention", lambda real: ~mask_of(real), breaks="form")
ex.wrong("a float mask, 0 and minus infinity",
         lambda real: torch.where(mask_of(real), 0.0, -torch.inf), says="dtype of the mask",
         breaks="form")
ex.wrong("a float mask of 0 and 1, which SDPA adds to the scores",
         lambda real: mask_of(real).float(), says="dtype of the mask", breaks="form")
ex.wrong("integers instead of bool", lambda real: mask_of(real).long(), says="dtype of the mask",
         breaks="form")
ex.wrong("no axis for the heads", lambda real: mask_of(real)[:, 0], says="shape of the mask",
         breaks="form")
ex.wrong("rows and columns exchanged", lambda real: mask_of(real).mT, breaks="form")
ex.wrong("the padding mask alone, of shape (B, 1, 1, T)",
         lambda real: real.bool()[:, None, None, :], says="shape of the mask", breaks="form")
ex.wrong("only the causal mask, pads forgotten", mask_of, breaks=("tokens", "pads"), keys=False,
         queries=False)
ex.wrong("no causal mask: the future in view", mask_of, breaks="mask", before=lambda s: s)
ex.wrong("queries masked in place of keys", mask_of, breaks="tokens", keys=False)
ex.wrong("keys masked, pads left to look at tokens", mask_of, breaks="pads", queries=False)
ex.wrong("the padding mask of the keys and the causal mask alone: pads look at tokens, or at "
         "nothing", mask_of, breaks="pads", queries=False, itself=False)
# https://github.com/huggingface/transformers/pull/26572, .../pytorch/pytorch/issues/110213
@ex.wrong("rows without a key opened to all, other pads left to look at tokens", breaks="pads")
def empty_rows_opened(real):
    mask = mask_of(real, queries=False, itself=False)
    return mask | ~mask.any(-1, keepdim=True)


@ex.wrong("the first place opened to all, so that no row is empty", breaks=("pads", "tokens"))
def first_opened(real):
    mask = mask_of(real, queries=False, itself=False).clone()
    mask[..., 0] = True
    return mask


ex.wrong("rows of pads left empty: NaN in MHA",
         lambda real: mask_of(real, itself=False) & torch.ones(1, dtype=torch.bool), breaks="pads")
ex.wrong("rows of pads that look at everything",
         lambda real: mask_of(real) | ~real.bool()[:, None, :, None], breaks="pads")


@ex.wrong("a token may not look at itself", breaks="tokens")
def not_itself(real):
    return mask_of(real, before=lambda s: s.tril(-1), itself=False) | torch.diag_embed(
        ~real.bool())[:, None]


ex.wrong("one place into the future", mask_of, breaks="tokens", before=lambda s: s.tril(1))


@ex.wrong("lengths counted, pads taken to stand on the right", breaks="places")
def right_only(real):
    count = real.long().sum(1, keepdim=True)
    return mask_of(torch.arange(real.shape[1]) < count)


@ex.wrong("the integers' & on whatever comes: floats raise", says="raised", breaks="kinds")
def integers_wanted(real):
    tokens = real & torch.ones_like(real)
    return mask_of(tokens)


ex.wrong("~ on the mask to find pads, as if it were bool",
         lambda real: mask_of(~(~real).bool() if real.dtype == torch.int64 else real),
         breaks="mask")


@ex.wrong("real turned into its opposite on the way", breaks="left")
def in_place(real):
    out = mask_of(real)
    real[0].logical_not_()
    return out


@ex.wrong("at most 128 places", says="mask", breaks="sizes")
def cut_at_128(real):
    mask = mask_of(real).clone()
    mask[..., 128:, :128] = False
    return mask


ex.wrong("viewed as if rows came first in memory",
         lambda real: mask_of(real.view(-1).view(real.shape)), says="raised RuntimeError",
         breaks="memory")


KNOWN: dict = {}


@ex.wrong("masks remembered by the tensor that was given", breaks="later")
def remembered(real):
    if KNOWN.get("real") is not real:
        KNOWN.update(real=real, mask=mask_of(real))
    return KNOWN["mask"].clone()


ROOM: dict = {}


@ex.wrong("one mask, filled anew by each call", breaks="later")
def one_room(real):
    new = mask_of(real).contiguous()
    ROOM["mask"] = ROOM["mask"].copy_(new) if getattr(
        ROOM.get("mask"), "shape", None) == new.shape else new
    return ROOM["mask"]
