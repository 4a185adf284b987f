"""Exercise 08.1, `packed_masks`."""

from __future__ import annotations

import copy
import math

import torch

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_equal, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("08.1", "packed_masks", seen=("lengths",), says="keep")

ex.promise("three", "Three forms of one mask for packed documents: keep, ignore, bias.",
           says=("masks",))
ex.promise("lengths", "lengths: how many tokens each document has,",
           cases=("three documents", "many documents", "a long document", "one document",
                  "hundreds of documents"))
ex.promise("no list", "the list may be empty.", cases=("no documents",))
ex.promise("empty", "0 included;", cases=("empty documents", "empty ones first and last",
                                          "hundreds of documents", "no tokens",
                                          "one token between empty ones"))
ex.promise("row", "They stand one behind the other in one row of T tokens, T their sum.",
           says=("keep", "ignore", "bias"))
ex.promise("causal", "A token may look at itself and at the earlier tokens of its own document,",
           says=("keep", "ignore", "bias"))
ex.promise("apart", "and at nothing of another.", cases=(
    "three documents", "many documents", "a long document", "the example",
    "hundreds of documents", "documents of one token",
    "empty documents", "empty ones first and last"))
ex.promise("shape", "All three are of shape (T, T),", says=("shape of the",))
ex.promise("axes", "the row looks at the column.", says=("keep", "ignore", "bias"))
ex.promise("keep", "keep is bool, True where it may look, as SDPA wants it.", says=("keep",))
ex.promise("ignore", "ignore is bool, True where it may not, as MHA wants it.", says=("ignore",))
ex.promise("bias", "bias is float32, to be added to scores: 0 where it may look, else minus "
           "infinity.", says=("bias",))
ex.promise("left", "lengths stays as it is.", says=("lengths changed",))
ex.promise("new", "Each call makes new masks", says=("of a second call", "of a third call"))
ex.promise("later", "and leaves earlier ones alone.", says=("after a later call",))
ex.promise("example", "Example: for [1, 2] keep is [[True, False, False], [False, True, False], "
           "[False, True, True]].", cases=("the example",))


@ex.cases
def cases(g):
    def some(n, low, high):
        return torch.randint(low, high, (n,), generator=g).tolist()

    def one(name, lengths):
        return name, {"lengths": lengths}
    return [one("three documents", [*some(2, 2, 5), *some(1, 5, 8)]),
            one("many documents", some(9, 1, 6)), one("one document", some(1, 3, 9)),
            one("a long document", [*some(1, 130, 170), 2]),
            one("hundreds of documents", some(300, 0, 3)),
            one("documents of one token", [1] * some(1, 3, 9)[0]),
            one("empty documents", [some(1, 2, 4)[0], 0, 0, some(1, 2, 6)[0]]),
            one("empty ones first and last", [0, *some(3, 2, 6), 0]),
            one("no tokens", [0] * some(1, 1, 4)[0]), one("no documents", []),
            one("one token", [1]), one("one token between empty ones", [0, 1, 0]),
            one("the example", [1, 2])]


@ex.act
def act(fn, lengths):
    """The masks, and those of two more calls; the first ones are written to before the third."""
    def copied(out):
        return copy.deepcopy(out) if isinstance(out, (tuple, torch.Tensor)) else out

    first = fn(lengths)
    masks, second, later = copied(first), copied(fn(lengths[::-1])), copied(first)
    for mask in first if isinstance(first, tuple) else ():
        if isinstance(mask, torch.Tensor):
            mask.fill_(1)
    return {"first": masks, "second": second, "later": later, "third": fn(lengths)}


@ex.law
def law(out, lengths):
    expect_parts(out, "first", "second", "later", "third")
    expect_masks("", out["first"], lengths)
    expect_masks(" of a second call", out["second"], lengths[::-1])
    expect_masks(" after a later call", out["later"], lengths)
    expect_masks(" of a third call, the first masks written to", out["third"], lengths)


def expect_masks(when, out, lengths):
    expect_type(f"masks{when}", out, tuple)
    expect_equal(f"number of masks{when}", len(out), 3)
    size = sum(lengths)
    keep = torch.zeros(size, size, dtype=torch.bool)
    start = 0
    for length in lengths:
        for t in range(start, start + length):
            keep[t, start:t + 1] = True
        start += length
    bias = torch.where(keep, 0.0, -math.inf)
    expect_equal(f"keep{when}", out[0], keep, "True where a token may look.")
    expect_equal(f"ignore{when}", out[1], keep.logical_not(), "True where a token may not look.")
    expect_equal(f"bias{when}", out[2], bias, "0 or minus infinity.")


# ---- wrong, by name

@not_an_answer
def masks(lengths, *, cut=lambda same: same.tril(), same=lambda a, b: a == b, forbid=-math.inf):
    """The worked answer with its pieces as options."""
    document = torch.repeat_interleave(torch.arange(len(lengths)),
                                       torch.tensor(lengths, dtype=torch.int64))
    keep = cut(same(document[:, None], document[None]))
    return keep, ~keep, torch.where(keep, 0.0, forbid)


@ex.wrong("keep and ignore swapped: the polarity of the other API", breaks=("keep", "ignore"))
def swapped(lengths):
    keep, ignore, bias = masks(lengths)
    return ignore, keep, bias


@ex.wrong("keep handed to both", breaks="ignore")
def one_for_both(lengths):
    keep, _, bias = masks(lengths)
    return keep, keep.clone(), bias


@ex.wrong("keep as floats of 0 and 1", breaks="keep")
def float_keep(lengths):
    keep, ignore, bias = masks(lengths)
    return keep.float(), ignore, bias


ex.wrong("the causal mask over all documents", masks, breaks="apart",
         same=lambda a, b: (a - b) == (a - b))
@ex.wrong("places counted anew in each document, whoever it is", breaks=("apart", "causal"))
def by_place(lengths):
    place = torch.cat([torch.arange(n) for n in [0, *lengths]])
    keep = place[:, None] >= place
    return keep, ~keep, torch.where(keep, 0.0, -math.inf)


@ex.wrong("torch.block_diag, which makes a row of no blocks", says="shape of the keep",
          breaks="no list")
def by_blocks(lengths):
    keep = torch.block_diag(*[torch.ones(n, n).tril() for n in lengths]).bool()
    return keep, ~keep, torch.where(keep, 0.0, -math.inf)


ex.wrong("later documents see the earlier ones as well, none its own future", masks,
         breaks=("apart", "causal"), same=lambda a, b: a > b,
         cut=lambda s: s | torch.eye(len(s)).bool())
ex.wrong("the whole document in view, the future too", masks, breaks="causal",
         cut=lambda same: same)
ex.wrong("a token may not look at itself", masks, breaks="causal", cut=lambda same: same.tril(-1))
ex.wrong("one place into the future", masks, breaks="causal", cut=lambda same: same.tril(1))
ex.wrong("rows and columns exchanged: triu", masks, breaks="axes", cut=lambda same: same.triu())
ex.wrong("an axis for the batch in front",
         lambda lengths: tuple(mask[None] for mask in masks(lengths)), says="shape of the keep",
         breaks="shape")


@ex.wrong("the bias by multiplying with infinity: NaN", breaks="bias")
def by_product(lengths):
    keep, ignore, _ = masks(lengths)
    return keep, ignore, (1 - keep.float()) * -math.inf


ex.wrong("a large negative number in place of infinity", masks, breaks="bias", forbid=-1e9)
ex.wrong("the lowest number of float32 in place of infinity", masks, breaks="bias",
         forbid=torch.finfo(torch.float32).min)


@ex.wrong("the bias with 1 where it may look", breaks="bias")
def float_mask(lengths):
    keep, ignore, _ = masks(lengths)
    return keep, ignore, keep.float()


@ex.wrong("the bias upside down", breaks="bias")
def bias_flipped(lengths):
    keep, ignore, _ = masks(lengths)
    return keep, ignore, torch.where(ignore, 0.0, -math.inf)


ex.wrong("one mask only", lambda lengths: masks(lengths)[0], says="type of the masks",
         breaks="three")
ex.wrong("empty documents counted as one token",
         lambda lengths: masks([max(n, 1) for n in lengths]), says="shape of the keep",
         breaks="empty")


@ex.wrong("documents longer than 50 tokens cut in two", breaks="lengths")
def cut_long(lengths):
    return masks([part for n in lengths for part in ([50, n - 50] if n > 50 else [n])])


@ex.wrong("an empty list turned into floats", says="raised", breaks="no list")
def floats(lengths):
    torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return masks(lengths)


@ex.wrong("all documents as long as the longest", says="shape of the keep", breaks="row")
def padded(lengths):
    longest = max(lengths, default=0)
    return masks([longest if n else 0 for n in lengths])


@ex.wrong("empty documents taken off the list", breaks="left")
def takes_off(lengths):
    out = masks(lengths)
    while 0 in lengths:
        lengths.remove(0)
    return out


ex.wrong("axes of length one dropped",
         lambda lengths: tuple(mask.squeeze() for mask in masks(lengths)), says="shape of the keep",
         breaks="shape")


@ex.wrong("the same masks handed out again", breaks="new")
def handed_again(lengths):
    key = str(lengths)
    if key == HANDED.get("last") or (key not in HANDED and len(HANDED) == 3):
        HANDED.clear()  # it remembers the last two lists
    HANDED["last"] = key
    return HANDED.setdefault(key, masks(lengths))


HANDED: dict = {}


ex.wrong("documents numbered in 8 bits", masks, breaks="lengths",
         same=lambda a, b: a % 256 == b % 256)


KNOWN: dict = {}


@ex.wrong("masks remembered, whatever the order of the documents", breaks="new")
def remembered(lengths):
    if KNOWN.get("lengths") != sorted(lengths):
        KNOWN.update(lengths=sorted(lengths), masks=masks(lengths))
    return tuple(mask.clone() for mask in KNOWN["masks"])


ROOM: dict = {}


@ex.wrong("one set of masks, filled anew by each call", breaks="later")
def one_room(lengths):
    new = masks(lengths)
    held = ROOM.setdefault(sum(lengths), new)
    for old, mask in zip(held, new, strict=True):
        old.copy_(mask)
    return held
