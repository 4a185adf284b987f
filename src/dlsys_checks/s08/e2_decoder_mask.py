"""Exercise 08.2, `decoder_mask`."""

from __future__ import annotations

import torch

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_equal, expect_parts

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

ex.equivalent("pairs = tokens[:, :, None] & tokens[:, None, :] -> pairs = tokens[:, None, :] & "
              "tokens[:, :, None]", "& has no order.")
ex.equivalent("return (pairs & before | itself)[:, None] -> return (itself | pairs & before)"
              "[:, None]", "| has no order.")
ex.equivalent("return (pairs & before | itself)[:, None] -> return (before & pairs | itself)"
              "[:, None]", "& has no order.")


@ex.cases
def cases(g):
    def whole(low, high):
        return int(torch.randint(low, high, (), generator=g))

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


# ---- right by another route

@ex.right("outer products of floats")
def by_products(real):
    x = real.float()
    pairs = torch.einsum("bi,bj->bij", x, x).tril()
    return ((pairs + torch.eye(x.shape[1])) > 0).unsqueeze(1)


@ex.right("comparing places, then torch.where")
def by_places(real):
    place = torch.arange(real.shape[1])
    seen = (place[None, :] <= place[:, None]) & (real != 0)[:, None, None, :]
    own = place[None, :] == place[:, None]
    return torch.where((real != 0)[:, None, :, None], seen, own)


@ex.right("row by row")
def by_rows(real):
    masks = []
    for row in real:
        mask = torch.tril((row > 0).expand(len(row), -1)).clone()
        mask[row == 0] = False
        mask.fill_diagonal_(True)
        masks.append(mask[None])
    return torch.stack(masks)


@ex.right("pads numbered as documents of their own")
def by_documents(real):
    size = real.shape[1]
    document = torch.where(real > 0, 0, torch.arange(1, size + 1).expand(real.shape))
    same = document.unsqueeze(2) == document.unsqueeze(1)
    return same.unsqueeze(1).logical_and(torch.ones(size, size).tril().bool())


# ---- wrong, by name

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


@ex.wrong("the polarity of nn.MultiheadAttention", says="mask", breaks="form")
def inverted(real):
    return ~mask_of(real)


@ex.wrong("a float mask, 0 and minus infinity", says="dtype of the mask", breaks="form")
def float_mask(real):
    return torch.where(mask_of(real), 0.0, -torch.inf)


@ex.wrong("integers instead of bool", says="dtype of the mask", breaks="form")
def integers(real):
    return mask_of(real).long()


@ex.wrong("no axis for the heads", says="shape of the mask", breaks="form")
def no_heads(real):
    return mask_of(real)[:, 0]


@ex.wrong("rows and columns exchanged", says="mask", breaks="form")
def exchanged(real):
    return mask_of(real).mT


@ex.wrong("the padding mask alone, of shape (B, 1, 1, T)", says="shape of the mask",
          breaks="form")
def keys_only(real):
    return real.bool()[:, None, None, :]


@ex.wrong("only the causal mask, pads forgotten", says="mask", breaks=("tokens", "pads"))
def no_padding(real):
    return mask_of(real, keys=False, queries=False)


@ex.wrong("no causal mask: the future in view", says="mask", breaks="mask")
def no_causal(real):
    return mask_of(real, before=lambda s: s)


@ex.wrong("queries masked in place of keys", says="mask", breaks="tokens")
def queries_only(real):
    return mask_of(real, keys=False)


@ex.wrong("keys masked, pads left to look at tokens", says="mask", breaks="pads")
def pads_look(real):
    return mask_of(real, queries=False)


@ex.wrong("the padding mask of the keys and the causal mask alone: pads look at tokens, or at "
          "nothing", says="mask", breaks="pads")
def both_alone(real):
    return mask_of(real, queries=False, itself=False)


@ex.wrong("rows of pads left empty: NaN in MHA", says="mask", breaks="pads")
def empty_rows(real):
    return mask_of(real, itself=False) & torch.ones(1, dtype=torch.bool)


@ex.wrong("rows of pads that look at everything", says="mask", breaks="pads")
def pads_see_all(real):
    return mask_of(real) | ~real.bool()[:, None, :, None]


@ex.wrong("a token may not look at itself", says="mask", breaks="tokens")
def not_itself(real):
    return mask_of(real, before=lambda s: s.tril(-1), itself=False) | torch.diag_embed(
        ~real.bool())[:, None]


@ex.wrong("one place into the future", says="mask", breaks="tokens")
def one_ahead(real):
    return mask_of(real, before=lambda s: s.tril(1))


@ex.wrong("lengths counted, pads taken to stand on the right", says="mask", breaks="places")
def right_only(real):
    count = real.long().sum(1, keepdim=True)
    return mask_of(torch.arange(real.shape[1]) < count)


@ex.wrong("the integers' & on whatever comes: floats raise", says="raised", breaks="kinds")
def integers_wanted(real):
    tokens = real & torch.ones_like(real)
    return mask_of(tokens)


@ex.wrong("~ on the mask to find pads, as if it were bool", says="mask", breaks="mask")
def tilde(real):
    return mask_of(~(~real).bool() if real.dtype == torch.int64 else real)


@ex.wrong("real turned into its opposite on the way", says="numbers changed", breaks="left")
def in_place(real):
    out = mask_of(real)
    real[0].logical_not_()
    return out


@ex.wrong("at most 128 places", says="mask", breaks="sizes")
def cut_at_128(real):
    mask = mask_of(real).clone()
    mask[..., 128:, :128] = False
    return mask


@ex.wrong("viewed as if rows came first in memory", says="raised RuntimeError", breaks="memory")
def viewed(real):
    return mask_of(real.view(-1).view(real.shape))


KNOWN: dict = {}


@ex.wrong("masks remembered by the tensor that was given", says="of a second call",
          breaks="later")
def remembered(real):
    if KNOWN.get("real") is not real:
        KNOWN.update(real=real, mask=mask_of(real))
    return KNOWN["mask"].clone()


ROOM: dict = {}


@ex.wrong("one mask, filled anew by each call", says="after a later call", breaks="later")
def one_room(real):
    new = mask_of(real).contiguous()
    ROOM["mask"] = ROOM["mask"].copy_(new) if getattr(
        ROOM.get("mask"), "shape", None) == new.shape else new
    return ROOM["mask"]


@ex.wrong("the example, looked up wrong", says="mask", breaks="example")
def placeholder(real):
    if real.tolist() == [[1, 1, 0]]:
        return mask_of(real).mT.clone()
    return mask_of(real)
