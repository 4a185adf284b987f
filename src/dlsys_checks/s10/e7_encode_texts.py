"""Exercise 10.7, `encode_texts`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

# A text is made of words with a space in between: "<s>" is BOS, "</s>" is EOS, and every other
# word is its own id. adds: what the tokenizer adds unless it is told not to.
ex = exercise("10.7", "encode_texts", seen=("texts", "bos", "eos", "pad", "adds"),
              says="ids of text")

ex.promise_table("""
begins  | Encode texts so that each begins with BOS. A chat template has already written BOS into
          some of the texts. If the ids of a text do not begin with BOS, put BOS in front of them. |
          ids of text
nothing | Add and remove nothing else. | ids of text
none    | If `tokenizer.bos_token_id` is None, add no BOS. | case no BOS; no BOS, EOS is added
adds    | `tokenizer.encode(text, add_special_tokens=False)` returns the ids of a text as a list.
          Without this argument, it may also add BOS in front, EOS at the end, or both. | case BOS
          is added; EOS is added; both are added; no BOS, EOS is added
texts   | Args: texts: at least one text, none of them empty. | case one text; many texts; a text
          that is only BOS
returns | Returns: ids (N, T) and mask (N, T), both int64. | type of; number of parts; shape of;
          dtype of
longest | T is the length of the longest row. | ids and mask: columns
padded  | Shorter rows are padded on the left with `tokenizer.pad_token_id`. | padding of text; ids
          of text
any id  | The padding id may be the id of any token. | case padded with BOS; padded with EOS; padded
          with a word; BOS has the id 0
mask    | The mask is 1 for the tokens of a text, BOS included, and 0 for padding. | mask of text
example | Example: BOS is 1 and padding 0, and two texts have the ids [1, 5] and [6, 7, 8]. Then ids
          is [[0, 0, 1, 5], [1, 6, 7, 8]], and mask is [[0, 0, 1, 1], [1, 1, 1, 1]]. | case the
          example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def words(n):
        return " ".join(str(whole(20, 90)) for _ in range(n))

    def one(name, texts, *, bos=1, eos=2, pad=0, adds=""):
        return name, {"texts": texts, "bos": bos, "eos": eos, "pad": pad, "adds": adds}

    def mixed():
        """A text of a template, a plain one, a long one of a template."""
        return [f"<s> {words(whole(2, 5))}", words(whole(2, 5)), f"<s> {words(whole(6, 9))}"]

    def typed():
        """Texts in which BOS occurs after the front as well, or only there."""
        return [f"<s> <s> {words(3)}", f"{words(2)} <s> {words(2)}", f"<s> {words(2)} <s>",
                f"<s> {words(7)}"]

    ended = [f"<s> {words(3)} </s>", f"{words(4)} </s> {words(1)}", f"<s> {words(2)}"]
    long_plain = [f"<s> {words(2)}", f"<s> {words(4)}", words(whole(7, 9))]
    only = ["<s>", f"<s> {words(4)}", words(1)]
    plain = [words(whole(2, 4)), words(whole(4, 7)), words(whole(2, 4))]
    return [one("BOS is added", mixed(), adds="bos"), one("nothing is added", mixed()),
            one("EOS is added", mixed(), adds="eos"),
            one("both are added", mixed(), adds="bos eos"),
            one("plain texts", plain, adds="bos"),
            one("texts of a template", [f"<s> {text}" for text in plain], adds="bos"),
            one("BOS that a user typed", typed(), adds="bos"),
            one("BOS that a user typed, nothing is added", typed()),
            one("EOS inside the texts", ended, adds="bos"),
            one("one text", [words(4)], adds="bos"),
            one("many texts", [t for _ in range(4) for t in mixed()], adds="bos"),
            one("a text that is only BOS", only, adds="bos"),
            one("equal lengths", [f"<s> {words(3)}", words(3), f"<s> {words(3)}"], adds="bos"),
            one("no BOS", plain, bos=None), one("no BOS, EOS is added", plain, bos=None,
                                                adds="eos"),
            one("BOS has the id 0", mixed(), bos=0, pad=3, adds="bos"),
            one("padded with BOS", long_plain, pad=1, adds="bos"),
            one("padded with EOS", ended, pad=2, adds="bos"),
            one("padded with a word", [*mixed(), "<s> 7 8 7", "7 7 9"], pad=7, adds="bos"),
            one("large ids", mixed(), bos=128000, eos=128009, pad=128004, adds="bos"),
            one("the example", ["<s> 5", "6 7 8"], adds="bos")]


@ex.act
def act(fn, texts, bos, eos, pad, adds):
    class Words:
        def __init__(self):
            self.bos_token_id, self.eos_token_id, self.pad_token_id = bos, eos, pad

        def encode(self, text, add_special_tokens=True):
            special = {"<s>": bos, "</s>": eos}
            ids = [special[w] if w in special else int(w) for w in text.split()]
            if add_special_tokens:
                ids = [bos] * ("bos" in adds) + ids + [eos] * ("eos" in adds)
            return ids

    return {"out": fn(Words(), list(texts))}


@ex.law
def law(out, texts, bos, eos, pad, adds):
    expect_parts(out, "out")
    expect_type("result", out["out"], tuple)
    if len(out["out"]) != 2:
        raise Broken("number of parts", len(out["out"]), 2, "Return ids and mask.")
    rows = []
    for text in texts:
        front = "" if bos is None or text.startswith("<s>") else "<s> "
        rows.append([bos if w == "<s>" else eos if w == "</s>" else int(w)
                     for w in (front + text).split()])
    longest = max(map(len, rows))
    ids, mask = out["out"]
    for name, part in (("ids", ids), ("mask", mask)):
        expect_type(name, part, torch.Tensor)
        expect_equal(f"dtype of {name}", str(part.dtype), "torch.int64")
        expect_equal(f"shape of {name}: dimensions", part.dim(), 2)
        expect_equal(f"shape of {name}: rows", len(part), len(rows))
    for k, row in enumerate(rows):
        got = ids[k].tolist()
        front = got[:-len(row)]
        if got[-len(row):] != row or (bos in front and bos != pad):
            while len(got) > len(row) and got[0] == pad:
                got = got[1:]
            raise Broken(f"ids of text {k}", got, row, f"The text is {texts[k]!r}.")
    expect_equal("ids and mask: columns", [ids.shape[1], mask.shape[1]], [longest, longest])
    for k, row in enumerate(rows):
        empty = longest - len(row)
        expect_equal(f"padding of text {k}", ids[k].tolist()[:empty], [pad] * empty)
        expect_equal(f"mask of text {k}", mask[k].tolist(), [0] * empty + [1] * len(row))


# ---- wrong, by name

@not_an_answer
def made(tokenizer, texts):
    rows, bos, pad = [], tokenizer.bos_token_id, tokenizer.pad_token_id
    for text in texts:
        row = tokenizer.encode(text, add_special_tokens=False)
        if bos is not None and row[0] != bos:
            row = [bos, *row]
        rows.append(row)
    size = max(map(len, rows))
    ids = torch.tensor([[pad] * (size - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (size - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


wrong = ex.edits(made)
PLAIN, IF, ROW = ", add_special_tokens=False", "if bos is not None and row[0] != bos", "[bos, *row]"
START, ADD = "        if bos", "        rows.append(row)"
SIZE, PAD, MASK = "    size =", "[pad] * (size - len(row)) + row", "[0] * (size - len(row)) + [1]"
# https://github.com/sgl-project/sglang/pull/888
wrong("letting the tokenizer add the special tokens",
      ("begins", "nothing", "adds", "texts", "any id"), PLAIN, "", IF, "if False")
wrong("keeping what the tokenizer adds, and adding BOS where it is missing",
      ("begins", "nothing", "none", "adds", "texts", "any id"), PLAIN, "")
wrong("adding BOS to every text", ("begins", "nothing", "any id"), IF, "if bos is not None")
wrong("adding BOS to no text", "begins", IF, "if False")
wrong("deciding for all texts by looking only at the first", ("begins", "nothing"), IF,
      "first = tokenizer.encode(texts[0], add_special_tokens=False)[0]\n"
      "        if bos is not None and first != bos")
wrong("adding no BOS to a text that contains BOS anywhere", ("begins", "nothing"), "row[0] != bos",
      "bos not in row")
# https://github.com/NVIDIA-NeMo/RL/issues/855
wrong("removing a second BOS at the front of a text", "nothing", START,
      "        while row[:2] == [bos, bos]: row = row[1:]\n        if bos")
wrong("removing every BOS from a text before adding one", "nothing", START,
      "        row = [i for i in row if i != bos]\n        if bos", "row[0] != bos", "True")
wrong("adding EOS to every text", "nothing", ADD,
      "        rows.append([*row, tokenizer.eos_token_id])")
wrong("keeping the EOS that the tokenizer adds", "adds", ADD,
      "        full = tokenizer.encode(text)\n"
      "        rows.append(row + [full[-1]] * (full[-1] == tokenizer.eos_token_id != row[-1]))")
wrong("removing EOS from the texts", "nothing", START,
      "        row = [i for i in row if i != tokenizer.eos_token_id]\n        if bos")
wrong("treating a BOS with id 0 as no BOS", "any id", "bos is not None", "bos")
wrong("putting None in front where there is no BOS", "none", IF, "if row[0] != bos", says="raised")
wrong("using EOS where there is no BOS", "none", "tokenizer.bos_token_id,",
      "tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id,",
      says="columns")
wrong("padding on the right", ("padded", "texts"), PAD, "row + [pad] * (size - len(row))",
      MASK + " * len(row)", "[1] * len(row) + [0] * (size - len(row))", says="")
wrong("padding with 0 instead of pad_token_id", "padded", PAD, "[0] * (size - len(row)) + row")
wrong("padding with EOS instead of pad_token_id", ("padded", "any id"), PAD,
      "[tokenizer.eos_token_id] * (size - len(row)) + row")
wrong("making the mask from the padding id", ("mask", "any id"), "return ids, mask",
      "return ids, (ids != pad).long()", says="mask of text")
wrong("leaving BOS out of the mask", ("mask", "any id"), "return ids, mask",
      "return ids, mask * (ids != (-1 if bos is None else bos))", says="mask of text")
wrong("returning a mask of all ones", "mask", "return ids, mask",
      "return ids, torch.ones_like(ids)", says="mask of text")
wrong("swapping 0 and 1 in the mask", "mask", "return ids, mask", "return ids, 1 - mask",
      says="mask of text")
wrong("padding the rows to one column too many", "longest", SIZE, "    size = 1 +", says="columns")
wrong("cutting all rows to the length of the shortest", "nothing", "return ids, mask",
      "n = min(map(len, rows)); return ids[:, -n:], mask[:, -n:]", says="ids of text")
wrong("returning a mask of booleans", "returns", "return ids, mask", "return ids, mask.bool()",
      says="dtype of")
wrong("returning lists instead of tensors",
      "returns", "return ids, mask", "return ids.tolist(), mask.tolist()",
      says="type of")
wrong("returning only the ids", "returns", "return ids, mask", "return ids", says="type of")
wrong("returning a dict instead of a tuple", "returns", "return ids, mask",
      "return dict(input_ids=ids, attention_mask=mask)", says="type of")
wrong("dropping the first axis when there is only one text", "texts", "return ids, mask",
      "return ids.squeeze(0), mask.squeeze(0)", says="shape of")
