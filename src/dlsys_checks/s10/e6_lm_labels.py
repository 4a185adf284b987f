"""Exercise 10.6, `lm_labels`."""

from __future__ import annotations

import torch

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_equal, expect_length, expect_parts

# Kept: where every row is full, the labels are the ids.
ex = exercise("10.6", "lm_labels", seen=("ids", "lengths"), kept=("out", "again"))

ex.promise("labels", "Labels for a causal language model that shifts them itself. They are the ids "
           "as far as each text goes,", says=("labels",))
ex.promise("masked", "and -100 after it, whatever ids stand there.", says=("labels",))
ex.promise("ids", "ids: (N, T) int64,", cases=("one row", "one column", "transposed ids",
                                               "many rows", "ids of a million millions",
                                               "as many rows as places", "long rows"))
ex.promise("rows", "and there may be no rows;", cases=("no rows",))
ex.promise("lengths", "texts padded on the right; lengths: (N,) int64, the tokens of each "
           "text, its EOS among them, from 0 to T.",
           cases=("a text of no tokens", "texts that fill the row", "all texts as long",
                  "lengths that grow", "one column"))
ex.promise("any id", "The id of the padding may be that of EOS or of any other token, and EOS may "
           "stand inside a text.",
           cases=("padded with EOS", "EOS inside the texts", "padded with a word",
                  "two paddings", "texts of padding only", "EOS is also the first token",
                  "the last token is no EOS"))
ex.promise("new", "The result is int64 and has memory of its own at each call;",
           says=("dtype of", "memory shared", "after a second call"))
ex.promise("left alone", "ids and lengths stay as they are.", says=("changes of",))
ex.promise("example", "Example: ids [[5, 0, 0]] with lengths [2] give [[5, 0, -100]].",
           cases=("the example",))


@ex.cases
def cases(g):
    def whole(low, high):
        return int(torch.randint(low, high, (), generator=g))

    def one(name, n, t, pad=0, eos=0, lengths=None, inside=False, first=False, last=True):
        ids = torch.randint(3, 40, (n, t), generator=g)
        if lengths is None:
            lengths = torch.randint(1, t, (n,), generator=g)
        lengths = torch.as_tensor(lengths, dtype=torch.int64)
        for row, length in zip(ids, lengths.tolist(), strict=True):
            if inside and length > 2:
                row[whole(0, length - 1)] = eos
            if first and length:
                row[0] = eos
            if last and length:
                row[length - 1] = eos
            row[length:] = pad
        return name, {"ids": ids, "lengths": lengths}
    n, t = whole(4, 7), whole(8, 12)
    two = one("two paddings", n, t, pad=0)
    two[1]["ids"][:, -1] = 2
    two[1]["lengths"].clamp_(max=t - 3)
    turned = one("transposed ids", n, t)
    turned[1]["ids"] = turned[1]["ids"].T.contiguous().T
    large = one("ids of a million millions", n, t)
    large[1]["ids"] = large[1]["ids"] * 10 ** 12 + large[1]["ids"]
    only = one("texts of padding only", n, t)
    only[1]["ids"][1] = 0
    return [one("padded with EOS", n, t), one("padded with a token of its own", n, t, pad=1),
            one("padded with a word", n, t, pad=7), two,
            one("EOS inside the texts", n, t, lengths=[t - 1 - (k % 3) for k in range(n)],
                inside=True),
            one("EOS is also the first token", n, t, first=True),
            one("the last token is no EOS", n, t, last=False), only,
            one("a text of no tokens", 3, t, lengths=[4, 0, t - 2]),
            one("texts that fill the row", 3, t, lengths=[t, 5, t]),
            one("all texts as long", 3, t, lengths=[4, 4, 4]),
            one("lengths that grow", t - 1, t, lengths=range(1, t)),
            one("one row", 1, t), one("one column", 3, 1, lengths=[1, 0, 1]),
            one("many rows", 40, t), turned, large, one("no rows", 0, t),
            one("as many rows as places", 6, 6), one("long rows", 2, 300),
            one("nothing to mask", 3, t, lengths=[t, t, t]),
            ("the example", {"ids": torch.tensor([[5, 0, 0]]), "lengths": torch.tensor([2])})]


@ex.act
def act(fn, ids, lengths):
    before = ids.clone(), lengths.clone()
    out = fn(ids, lengths)
    changes = [int((a != b).sum()) for a, b in zip((ids, lengths), before)]
    if not isinstance(out, torch.Tensor):
        return {"out": out, "changes": changes, "shared": 0, "later": 0, "again": out}
    first, given = out.clone(), [m.untyped_storage().data_ptr() for m in (ids, lengths)]
    again = fn(ids + 1, torch.stack([lengths, lengths], 1)[:, 0].flip(0))
    return {"out": first, "changes": changes, "again": again,
            "shared": int(out.numel() > 0 and out.untyped_storage().data_ptr() in given),
            "later": 1 - int(torch.equal(out, first))}


@ex.law
def law(out, ids, lengths):
    expect_parts(out, "out", "changes", "shared", "later", "again")
    expect_length("changes of the arguments", out["changes"], 2)
    for name, count in zip(("ids", "lengths"), out["changes"], strict=True):
        expect_equal(f"changes of {name} in the arguments", count, 0)
    lengths = lengths.tolist()
    expect_equal("labels", out["out"], cut(ids, lengths))
    expect_equal("memory shared with ids or lengths", out["shared"], 0)
    expect_equal("labels that changed after a second call", out["later"], 0)
    expect_equal("labels of the second call", out["again"], cut(ids + 1, lengths[::-1]))


def cut(ids, lengths):
    """The ids as far as each text goes, by lists, and -100 behind it."""
    rows = [row[:length] + [-100] * (len(row) - length)
            for row, length in zip(ids.tolist(), lengths, strict=True)]
    return torch.tensor(rows, dtype=torch.int64).reshape(ids.shape)


# ---- right by another route

@ex.right("row by row")
def by_row(ids, lengths):
    labels = torch.full_like(ids, -100)
    for k, length in enumerate(lengths.tolist()):
        labels[k, :length] = ids[k, :length]
    return labels


@ex.right("torch.where")
def by_where(ids, lengths):
    inside = torch.arange(ids.shape[1]).expand_as(ids) < lengths.unsqueeze(1)
    return torch.where(inside, ids, torch.tensor(-100))


@ex.right("a mask by counting")
def by_counting(ids, lengths):
    after = torch.ones_like(ids).cumsum(1) > lengths[:, None]
    labels = ids.clone()
    labels[after] = -100
    return labels


@ex.right("multiplied by the mask")
def by_product(ids, lengths):
    keep = (torch.arange(ids.size(1))[None] < lengths[:, None]).long()
    return ids * keep - 100 * (1 - keep)


@ex.right("lists, padded anew")
def by_lists(ids, lengths):
    made = [list(row[:n]) + [-100] * (len(row) - n)
            for row, n in zip(ids.tolist(), lengths.tolist(), strict=True)]
    return torch.tensor(made, dtype=torch.long).view(ids.shape)


@ex.right("padded anew, row by row")
def by_stack(ids, lengths):
    labels = ids.new_full(ids.shape, -100)
    for row, text, length in zip(labels, ids, lengths.tolist(), strict=True):
        row[:length] = text[:length]
    return labels


# ---- wrong, by name

def labelled(ids, lengths):
    after = torch.arange(ids.shape[1]) >= lengths[:, None]
    return ids.masked_fill(after, -100)


@ex.wrong("every pad id becomes -100, EOS among them", says="labels", breaks=(
    "labels", "masked", "any id"))
def by_pad_id(ids, lengths):
    pad = ids[0, -1] if len(ids) else 0
    return ids.masked_fill(ids == pad, -100)


@ex.wrong("the EOS at the end left out", says="labels", breaks="labels")
def without_eos(ids, lengths):
    return labelled(ids, (lengths - 1).clamp(min=0))


@ex.wrong("one pad learned", says="labels", breaks="masked")
def one_pad(ids, lengths):
    return labelled(ids, lengths + 1)


@ex.wrong("no mask at all", says="labels", breaks="masked")
def unmasked(ids, lengths):
    return ids.clone()


@ex.wrong("shifted as well", says="labels", breaks=("labels", "masked"))
def shifted(ids, lengths):
    return labelled(ids, lengths).roll(-1, 1)


@ex.wrong("the first EOS taken for the end", says="labels", breaks=("any id", "labels"))
def first_eos(ids, lengths):
    ends = [row.index(0) + 1 if 0 in row[:n] else n
            for row, n in zip(ids.tolist(), lengths.tolist(), strict=True)]
    return labelled(ids, torch.tensor(ends, dtype=torch.int64))


@ex.wrong("masked where ids equal the last column's", says="labels", breaks=(
    "any id", "labels", "masked"))
def like_last(ids, lengths):
    same = (ids == ids[:, -1:]).flip(1).cumprod(1).flip(1).bool()
    return ids.masked_fill(same, -100)


@ex.wrong("the padding guessed from the end, one EOS kept", says="labels",
          breaks=("any id", "labels", "masked"))
def trailing_zeros(ids, lengths):
    zero = (ids == 0).flip(1).cumprod(1).flip(1).bool()
    first = zero & (zero.cumsum(1) == 1)
    return ids.masked_fill(zero & ~first, -100)


@ex.wrong("0 in place of -100", says="labels", breaks="masked")
def zero_filled(ids, lengths):
    return labelled(ids, lengths).masked_fill(
        torch.arange(ids.shape[1]) >= lengths[:, None], 0)


@ex.wrong("an empty text left whole", says="labels", breaks="lengths")
def empty_text(ids, lengths):
    out = labelled(ids, lengths)
    out[lengths == 0] = ids[lengths == 0]
    return out


@ex.wrong("the length of the first text for all", says="labels",
          breaks=("labels", "masked"))
def first_length(ids, lengths):
    return labelled(ids, lengths[:1].expand_as(lengths))


@ex.wrong("masked on the left", says="labels", breaks=("labels", "masked"))
def on_the_left(ids, lengths):
    return ids.masked_fill(torch.arange(ids.shape[1]) < (ids.shape[1] - lengths)[:, None], -100)


@ex.wrong("a single row taken for a single text of full length", says="labels", breaks="ids")
def single_row(ids, lengths):
    return ids.clone() if len(ids) == 1 and ids.shape[1] > 3 else labelled(ids, lengths)


@ex.wrong("a special token of ids below 2 never learned", says="labels", breaks="any id")
def no_special(ids, lengths):
    special = (ids < 1) & (torch.arange(ids.shape[1]) < lengths[:, None] - 1)
    return labelled(ids, lengths).masked_fill(special, -100)


@ex.wrong("written into ids", says="changes of", breaks=("left alone", "new"))
def into_ids(ids, lengths):
    return ids.masked_fill_(torch.arange(ids.shape[1]) >= lengths[:, None], -100)


@ex.wrong("lengths used up", says="changes of", breaks="left alone")
def uses_lengths(ids, lengths):
    out = labelled(ids, lengths)
    lengths -= 1
    return out


@ex.wrong("ids handed back where nothing is masked", says="memory shared", breaks="new")
def handed_back(ids, lengths):
    return ids if bool((lengths == ids.shape[1]).all()) and len(ids) else labelled(ids, lengths)


LABELS: dict = {}


@ex.wrong("one tensor of labels for all batches of a shape", says="after a second call",
          breaks="new")
def one_tensor(ids, lengths):
    found = labelled(ids, lengths)
    return LABELS.setdefault(found.shape, found).copy_(found)


@ex.wrong("places compared with lengths along the row", says="labels", breaks="ids")
def along_the_row(ids, lengths):
    n, t = ids.shape
    return ids.masked_fill(torch.arange(t) >= lengths, -100) if n == t else labelled(ids, lengths)


@ex.wrong("places counted in 8 bits", says="labels", breaks="ids")
def in_8_bits(ids, lengths):
    places = torch.arange(ids.shape[1]).to(torch.uint8).long()
    return ids.masked_fill(places >= lengths[:, None], -100)


@ex.wrong("ids through float32, which holds 24 bits", says="labels", breaks="ids")
def through_float(ids, lengths):
    return labelled(ids.float(), lengths).long()


@ex.wrong("an error for a batch without rows", says="raised", breaks="rows")
def needs_rows(ids, lengths):
    rows = [torch.where(torch.arange(len(row)) < n, row, torch.tensor(-100))
            for row, n in zip(ids, lengths, strict=True)]
    return torch.stack(rows)


@ex.wrong("floating-point labels", says="dtype of", breaks="new")
def floating(ids, lengths):
    return labelled(ids, lengths).float()


@ex.wrong("an EOS after a single token left out", says="labels", breaks="example")
def short_text(ids, lengths):
    out = labelled(ids, lengths)
    return out.masked_fill(ids == 0, -100) if ids.tolist() == [[5, 0, 0]] else out
