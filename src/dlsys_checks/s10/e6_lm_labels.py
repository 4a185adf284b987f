"""Exercise 10.6, `lm_labels`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

# Kept: where every row is full, the labels are the ids.
ex = exercise("10.6", "lm_labels", seen=("ids", "prompts", "lengths"), kept=("out", "again"),
              says="labels")

IGNORE = -100

ex.promise("labels", "Make labels for a causal language model that shifts them itself. A text is "
           "a prompt and its answer. Only the answer is learned, with its ids as the labels.",
           says=("labels",))
ex.promise("masked", "All other labels are -100, whatever the ids are.", says=("labels",))
ex.promise_table("""
ids        | Args: ids: (N, T) int64, | case one row; one column; transposed ids; many rows; ids in
             the trillions; as many rows as positions; long rows
rows       | possibly without rows. | case no rows
lengths    | lengths: (N,) int64, the number of tokens in each text, from 0 to T, its EOS included.
             | case a text of no tokens; texts that fill the row; texts of equal length; lengths
             that grow; one column; nothing to mask
prompts    | Texts are padded on the left. prompts: (N,) int64, the number of tokens in each prompt,
             from 0 to the length of its text. | case no prompts; prompts without an answer; prompts
             of equal length; prompts that grow; one column; nothing to mask
any id     | Padding can have the id of EOS or of any other token, and a text can contain EOS in the
             middle. | case padded with EOS; EOS inside the texts; padded with a word; two paddings;
             texts of padding only; EOS is also the first token; the last token is no EOS
new        | The result is int64. Each call returns new memory. | dtype of; memory shared; after a
             second call
left alone | The arguments do not change. | changes of
""")
ex.promise("example", "Example: ids [[0, 5, 6, 0]], prompts [1] and lengths [3] return [[-100, "
           "-100, 6, 0]].", cases=("the example",))


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, n, t, pad=0, eos=0, lengths=None, prompts=None, inside=False, first=False,
            last=True):
        ids = torch.randint(3, 40, (n, t), generator=g)
        if lengths is None:
            lengths = torch.randint(2, t, (n,), generator=g)
        lengths = torch.as_tensor(lengths, dtype=torch.int64)
        if prompts is None:  # an answer of one token at least, where there is one
            prompts = (torch.rand(n, generator=g) * lengths).long()
        prompts = torch.as_tensor(prompts, dtype=torch.int64)
        for row, length in zip(ids, lengths.tolist(), strict=True):
            start = t - length
            if inside and length > 2:
                row[whole(start, t - 1)] = eos
            if first and length:
                row[start] = eos
            if last and length:
                row[-1] = eos
            row[:start] = pad
        return name, {"ids": ids, "prompts": prompts, "lengths": lengths}
    n, t = whole(4, 7), whole(8, 12)
    two = one("two paddings", n, t, lengths=[t - 3 - k % 3 for k in range(n)])
    two[1]["ids"][:, 0] = 2
    turned = one("transposed ids", n, t)
    turned[1]["ids"] = turned[1]["ids"].T.contiguous().T
    large = one("ids in the trillions", n, t)
    large[1]["ids"] = large[1]["ids"] * 10 ** 12 + large[1]["ids"]
    only = one("texts of padding only", n, t)
    only[1]["ids"][1] = 0
    return [one("padded with EOS", n, t), one("padded with a padding token", n, t, pad=1),
            one("padded with a word", n, t, pad=7), two,
            one("EOS inside the texts", n, t, lengths=[t - 1 - (k % 3) for k in range(n)],
                prompts=[k % 3 for k in range(n)], inside=True),
            one("EOS is also the first token", n, t, first=True, prompts=[0] * n),
            one("the last token is no EOS", n, t, last=False), only,
            one("a text of no tokens", 3, t, lengths=[4, 0, t - 2]),
            one("texts that fill the row", 3, t, lengths=[t, 5, t]),
            one("texts of equal length", 3, t, lengths=[5, 5, 5], prompts=[1, 2, 4]),
            one("lengths that grow", t - 1, t, lengths=range(1, t)),
            one("no prompts", 3, t, prompts=[0, 0, 0]),
            one("prompts without an answer", 3, t, lengths=[4, t, 5], prompts=[4, t, 2]),
            one("prompts of equal length", 3, t, lengths=[4, 6, 7], prompts=[3, 3, 3]),
            one("prompts that grow", 4, t, lengths=[5] * 4, prompts=range(1, 5)),
            one("one row", 1, t), one("one column", 3, 1, lengths=[1, 0, 1], prompts=[0, 0, 1]),
            one("many rows", 40, t), turned, large, one("no rows", 0, t),
            one("as many rows as positions", 6, 6), one("long rows", 2, 300, lengths=[9, 280]),
            one("nothing to mask", 3, t, lengths=[t, t, t], prompts=[0, 0, 0]),
            ("the example", {"ids": torch.tensor([[0, 5, 6, 0]]), "prompts": torch.tensor([1]),
                             "lengths": torch.tensor([3])})]


@ex.act
def act(fn, ids, prompts, lengths):
    given = ids, prompts, lengths
    before = [v.clone() for v in given]
    out = fn(*given)
    changes = [int((a != b).sum()) for a, b in zip(given, before)]
    if not isinstance(out, torch.Tensor):
        return {"out": out, "changes": changes, "shared": 0, "later": 0, "again": out}
    first, places = out.clone(), [m.untyped_storage().data_ptr() for m in given]
    again = fn(ids + 1, *(torch.stack([v, v], 1)[:, 0].flip(0) for v in given[1:]))
    return {"out": first, "changes": changes, "again": again,
            "shared": int(out.numel() > 0 and out.untyped_storage().data_ptr() in places),
            "later": 1 - int(torch.equal(out, first))}


@ex.law
def law(out, ids, prompts, lengths):
    expect_parts(out, "out", "changes", "shared", "later", "again")
    expect_length("changes of the arguments", out["changes"], 3)
    for name, count in zip(("ids", "prompts", "lengths"), out["changes"], strict=True):
        expect_equal(f"changes of {name} in the arguments", count, 0)
    prompts, lengths = prompts.tolist(), lengths.tolist()
    expect_equal("labels", out["out"], cut(ids, prompts, lengths))
    expect_equal("memory shared with the arguments", out["shared"], 0)
    expect_equal("labels that changed after a second call", out["later"], 0)
    expect_equal("labels of the second call", out["again"],
                 cut(ids + 1, prompts[::-1], lengths[::-1]))


@not_an_answer
def cut(ids, prompts, lengths):
    """The tokens of each answer, by lists from the end, and the mark of no label in front."""
    rows = [[IGNORE] * (len(row) - n + p) + row[len(row) - n + p:]
            for row, p, n in zip(ids.tolist(), prompts, lengths, strict=True)]
    return torch.tensor(rows, dtype=torch.int64).reshape(ids.shape)


# ---- wrong, by name

LABELS: dict = {}


@not_an_answer
def labelled(ids, prompts, lengths):
    before = torch.arange(ids.shape[1]) < (ids.shape[1] - lengths + prompts)[:, None]
    out = ids.masked_fill(before, IGNORE)
    return out


wrong = ex.edits(labelled)
LENGTHS = "torch.arange(ids.shape[1]) < (ids.shape[1] - lengths + prompts)[:, None]"
wrong("copying the lesson's repair, which is for texts padded on the right", ("labels", "masked"),
      "before =",
      "return ids.masked_fill(torch.arange(ids.shape[1]) >= lengths[:, None], IGNORE); before =")
wrong(f"setting every label that equals the pad id to {IGNORE}, including EOS",
      ("labels", "masked", "any id"),
      "before =", "pad = ids[0, 0] if len(ids) else 0; before =",
      "return out", "return out.masked_fill(ids == pad, IGNORE)", says="labels")
# https://github.com/huggingface/transformers/issues/23530
wrong(f"setting every label that equals the padding of a shorter text to {IGNORE}",
      ("labels", "masked", "any id"),
      "before =", "short = [row for row, n in zip(ids, lengths) if n < len(row)]; before =",
      "return out", "return out.masked_fill(ids == short[0][0], IGNORE) if short else out",
      says="labels")
wrong(f"setting every EOS label to {IGNORE}, whatever the padding is",
      ("labels", "masked", "any id", "prompts", "lengths", "ids", "example"),
      "return out", "return out.masked_fill(ids == ids[:, -1:], IGNORE)")
wrong("counting both prompts and lengths from the left", ("labels", "masked"),
      "before =", "place = torch.arange(ids.shape[1]); inside =",
      LENGTHS, "(place >= prompts[:, None]) & (place < lengths[:, None])", "before,", "~inside,")
wrong("training on prompts as well", ("masked", "prompts"), "+ prompts", "+ 0 * prompts")
wrong("assuming that prompts begin at the first position", ("labels", "masked", "prompts"),
      "+ prompts", "+ 0 * prompts",
      "return out", "return out.masked_fill(torch.arange(ids.shape[1]) < prompts[:, None], IGNORE)")
wrong("training on the padding, but not on the first tokens of the prompt",
      ("labels", "masked", "prompts"),
      "before =",
      "return ids.masked_fill(torch.arange(ids.shape[1]) < prompts[:, None], IGNORE); before =")
wrong("treating lengths as the lengths of the answers", ("labels", "masked", "prompts"),
      "+ prompts", "+ -prompts")
wrong("giving no label to the EOS at the end",
      "labels", "return out", "out[:, -1:] = IGNORE; return out")
wrong("giving no label to the first token of the answer", "labels", "+ prompts", "+ prompts + 1")
wrong("training on the last token of the prompt as well",
      ("masked", "labels"), "+ prompts", "+ prompts - 1")
wrong("masking nothing at all", "masked", "before =", "return ids.clone(); before =")
wrong("shifting the labels by one position", ("labels", "masked"),
      "return out", "return torch.nn.functional.pad(out[:, 1:], (0, 1), value=IGNORE)")
wrong("ending an answer at its first EOS", ("any id", "labels"),
      "return out",
      "ended = (out == 0).long().cumsum(1) - (out == 0).long() > 0; return "
      "out.masked_fill(ended, IGNORE)")
wrong("treating repeated ids at the front as padding",
      ("any id", "labels", "masked", "lengths", "ids"),
      "before =", "same = (ids == ids[:, :1]).long().cumprod(1).sum(1); start =",
      LENGTHS, "torch.minimum(same, ids.shape[1] - lengths.clamp(max=ids.shape[1] - 1)) + prompts",
      "before,", "torch.arange(ids.shape[1]) < start[:, None],")
wrong(f"using 0 instead of {IGNORE}", "masked",
      "return out", "return out.masked_fill(out == IGNORE, 0)", says="labels")
wrong("keeping labels in the padding of an empty text", "lengths",
      "return out", "out[lengths == 0] = ids[lengths == 0]; return out")
wrong("training on a prompt that has no answer", "prompts",
      "return out",
      "alone = (prompts == lengths) & (lengths > 0); out[alone] = ids[alone]; return out")
wrong("slicing from the end, which takes the whole row when there is no answer", ("prompts",
      "lengths"),
      "before =",
      "labels = torch.full_like(ids, IGNORE)\n    for k, answer in enumerate((lengths - "
      "prompts).tolist()): labels[k, -answer:] = ids[k, -answer:]\n    return labels; before =")
wrong("using the first text's length for all texts", ("labels", "masked"),
      "- lengths", "- lengths[:1].expand_as(lengths)")
wrong("using the first text's prompt length for all texts", ("labels", "masked"),
      "+ prompts", "+ prompts[:1].expand_as(prompts)")
wrong("treating a single row as an answer without a prompt", "ids",
      "before =", "alone = len(ids) == 1 and ids.shape[1] > 4; before =",
      "return out", "return ids.clone() if alone else out")
wrong("never training on a token with id 0, except at the end", "any id",
      "before =", "special = ids < 1; special[:, -1:] = False; before =",
      "return out", "return out.masked_fill(special, IGNORE)")
wrong("writing into the given ids", ("left alone", "new"), "return out", "return ids.copy_(out)")
wrong("adding to the prompt lengths in place",
      "left alone", "return out", "prompts += 1; return out")
wrong("returning the given ids when nothing is masked", "new",
      "before =", "whole = bool((lengths - prompts == ids.shape[1]).all()) and len(ids); before =",
      "return out", "return ids if whole else out")
wrong("returning the same tensor for all batches of the same shape", "new",
      "return out", "return LABELS.setdefault(out.shape, out).copy_(out)")
wrong("comparing position t with the length of text t", "ids",
      "before =",
      "n, t = ids.shape\n    if n == t: return ids.masked_fill(torch.arange(t) < t - lengths + "
      "prompts, IGNORE)\n    before =")
wrong("storing positions in 8 bits", "ids",
      "before =", "places =", LENGTHS, "torch.arange(ids.shape[1]).to(torch.uint8).long()",
      "before,", "places < (ids.shape[1] - lengths + prompts)[:, None],")
wrong("converting ids to float32, which holds 24 bits", "ids",
      "before =", "ids = ids.float(); before =", "return out", "return out.long()")
wrong("raising an error for a batch without rows", "rows",
      "return out", "return torch.stack(list(out))", says="raised")
wrong("returning floating-point labels", "new", "return out", "return out.float()")
