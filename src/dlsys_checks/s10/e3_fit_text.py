"""Exercise 10.3, `fit_text`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

# Token k of the prompt is start + (3 (k // 2) + k // 4) % 8, of the answer start + (5 k + 2) % 6:
# ids come twice, and in both. A start below zero stands for the example.
ex = exercise("10.3", "fit_text", seen=("start", "prompt", "answer", "n_positions", "virtual"))

IGNORE = -100

ex.promise("text", "Args: prompt, answer: (P,) and (Q,), int64. The text is the prompt followed "
           "by the answer.", says=("ids of the text", "labels of the text"))
ex.promise("repeats", "Ids can repeat, even across prompt and answer.",
           says=("labels of the text", "ids of the text"))
ex.promise("room", "Build the ids and labels of a training text after a learned prefix. The "
           "prefix of `virtual` tokens and the text share n_positions positions.",
           says=("ids of the text", "raised"))
ex.promise("cut", "If prefix and text need more positions, the prompt loses its first tokens, as "
           "few as needed.", says=("ids of the text",))
ex.promise("raises", "Raises ValueError if prefix and answer alone need more positions.",
           says=("raised",))
ex.promise("form", "Returns: A tuple of two int64 tensors as long as the text that is left: ids "
           "and labels.", says=("type of", "number of", "dtype of"))
ex.promise("labels", "The labels are -100 for the prompt and the ids for the answer.",
           says=("labels of the text",))
ex.promise_table("""
no prefix  | Neither contains the prefix. | shape of the labels; shape of the ids
new        | Each call returns new memory. | memory shared; after a second call
left alone | Prompt and answer can be empty and do not change. | changes of; memory shared
""")
ex.promise("example", "Example: prompt [1, 2, 3], answer [9], 5 positions and a prefix of 2 "
           "return [2, 3, 9] and [-100, -100, 9].", cases=("the example",))


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, prompt, answer, n_positions, virtual):
        return name, {"start": whole(200, 900), "prompt": prompt, "answer": answer,
                      "n_positions": n_positions, "virtual": virtual}
    p, q, v = whole(9, 14), whole(3, 6), whole(4, 8)
    return [one("room for all", p, q, p + q + v + 7, v), one("room to the last position", p, q,
                                                             p + q + v, v),
            one("one token too many", p, q, p + q + v - 1, v),
            one("half of the prompt", p, q, p // 2 + q + v, v),
            one("no room for the prompt", p, q, q + v, v),
            one("one token of the prompt", p, q, q + v + 1, v),
            one("no prefix", p, q, p + q - 3, 0), one("no prefix, all fits", p, q, p + q, 0),
            one("a prefix longer than the text", p, q, p + q + 40 - 2, 40),
            one("a long answer", 3, 30, 30 + v + 1, v),
            one("no prompt", 0, q, q + v + 2, v), one("no prompt, no room left", 0, q, q + v, v),
            one("no answer", p, 0, p + v - 2, v), one("no answer, no room", p, 0, v, v),
            one("neither", 0, 0, v, v), one("the answer does not fit", p, q, q + v - 1, v),
            one("no prompt, and the answer does not fit", 0, q, q + v - 1, v),
            one("the prefix alone fills it", p, q, v, v),
            one("the prefix alone is too long", p, 0, v - 1, v),
            ("ids above 32 bits", {"start": 10 ** 11, "prompt": p, "answer": q, "virtual": v,
                                   "n_positions": p + q + v - 3}),
            ("ids from 0", {"start": 0, "prompt": p, "answer": q, "n_positions": p + q + v - 2,
                            "virtual": v}),
            ("the example", {"start": -1, "prompt": 3, "answer": 1, "n_positions": 5,
                             "virtual": 2})]


@ex.act
def act(fn, start, prompt, answer, n_positions, virtual):
    def every_second(ids):
        return torch.stack([ids, ids], 1)[:, 0]

    p, q = torch.arange(prompt), torch.arange(answer)
    asked, said = every_second(start + (p // 2 * 3 + p // 4) % 8), every_second(
        start + (5 * q + 2) % 6)
    if start < 0:
        asked, said = torch.tensor([1, 2, 3]), torch.tensor([9])
    before = asked.clone(), said.clone()
    found, raised, later, other = None, "no error", 0, None  # other: of a second call
    try:
        found = fn(asked, said, n_positions, virtual)
    except ValueError:
        raised = "ValueError"
    made = [m for m in found if isinstance(m, torch.Tensor)] if isinstance(found, tuple) else []
    spaces = [m.untyped_storage().data_ptr() for m in made if m.numel()]
    given = [m.untyped_storage().data_ptr() for m in (asked, said)]
    shared = [sum(space in given for space in spaces), len(spaces) - len(set(spaces))]
    changes = sum(not torch.equal(a, b) for a, b in zip((asked, said), before))
    if made:
        kept = [m.clone() for m in made]
        found = tuple(m.clone() if isinstance(m, torch.Tensor) else m for m in found)
        other = fn(asked + 100, said + 100, n_positions, virtual)
        later = sum(not torch.equal(a, b) for a, b in zip(made, kept))
    return {"found": found, "raised": raised, "shared": shared, "changes": changes,
            "later": later, "other": other}


@ex.law
def law(out, start, prompt, answer, n_positions, virtual):
    expect_parts(out, "found", "raised", "shared", "changes", "later", "other")
    room = n_positions - virtual
    expect_equal(f"raised when the prefix leaves {room} positions and the answer has {answer} "
                 "tokens", out["raised"],
                 "ValueError" if answer > room else "no error")
    expect_equal("changes of prompt and answer", out["changes"], 0)
    if answer > room:
        for part in ("found", "other"):
            expect_type("value beside an error", out[part], type(None))
        expect_equal("memory shared with prompt or answer, ids with labels", out["shared"], [0, 0])
        expect_equal("tensors that changed after a second call", out["later"], 0)
        return
    asked = [start + (k // 2 * 3 + k // 4) % 8 for k in range(prompt)] if start >= 0 else [1, 2, 3]
    said = [start + (5 * k + 2) % 6 for k in range(answer)] if start >= 0 else [9]
    while len(asked) + len(said) > room:
        asked = asked[1:]
    expect_pair(out["found"], asked, said)
    expect_equal("memory shared with prompt or answer, ids with labels", out["shared"], [0, 0])
    expect_equal("tensors that changed after a second call", out["later"], 0)
    expect_pair(out["other"], [k + 100 for k in asked], [k + 100 for k in said])


def expect_pair(pair, asked, said):
    """Raise Broken unless pair holds the ids of the text and its labels."""
    expect_type("result", pair, tuple)
    expect_length("tensors returned", list(pair), 2)
    expect_equal("ids of the text", pair[0], torch.tensor(asked + said, dtype=torch.int64))
    expect_equal("labels of the text", pair[1],
                 torch.tensor([IGNORE] * len(asked) + said, dtype=torch.int64))


# ---- wrong, by name

PLACES: dict = {}


@not_an_answer
def right(prompt, answer, n_positions, virtual):
    left = n_positions - virtual - len(answer)
    if left < 0:
        raise ValueError("no room")
    kept = prompt[max(0, len(prompt) - left):]
    labels = torch.full_like(kept, IGNORE)
    out = torch.cat([kept, answer]), torch.cat([labels, answer])
    return out


wrong = ex.edits(right)
N_POSITIONS = "n_positions - virtual - len(answer)"
wrong("cutting the prompt at its end", ("cut", "example"), "max(0, len(prompt) - left):", ":left")
wrong("cutting nothing when the text does not fit", ("cut", "room", "raises", "example"),
      N_POSITIONS, "len(prompt)")
wrong("writing the labels into the ids' tensor", ("repeats", "cut", "new"),
      '"no room"', '"too long"',
      "labels = torch.full_like(kept, IGNORE)\n    out = torch.cat([kept, answer]), "
      "torch.cat([labels, answer])",
      "ids = torch.cat([kept, answer]); labels = ids; labels[:len(kept)] = IGNORE; out = ids, "
      "labels")
wrong("cutting the whole text at its end", ("cut", "raises", "example"),
      "left =", "room = max(0, n_positions - virtual); left =", N_POSITIONS, "len(prompt)",
      "return out", "ids, labels = out; return ids[:room], labels[:room]")
wrong("not counting the positions that the prefix takes up", "room",
      "left =", "virtual = virtual if len(prompt) == 3 else 0; left =")
wrong("leaving one position unused", ("cut", "raises", "room"),
      "if left", "left = left if len(prompt) == 3 else left - 1\n    if left")
wrong("slicing prompt[-left:], which keeps everything when left is 0", "cut",
      "max(0, len(prompt) - left)", "-left")
wrong("dropping the whole prompt when it does not fit", ("cut", "example"),
      "prompt[max(0, len(prompt) - left):]", "prompt if len(prompt) <= left else prompt[:0]")
wrong("cutting a long answer instead of raising an error", "raises",
      "left = n_positions - virtual - len(answer)",
      "room = max(0, n_positions - virtual); answer, left = answer[:room], room - min(room, "
      "len(answer))")
wrong("raising an error whenever the text has to be cut", ("raises", "cut", "example", "room"),
      "left =",
      'if len(prompt) + len(answer) + virtual > n_positions: raise ValueError("too long")\n    '
      "left =", N_POSITIONS, "len(prompt)")
wrong("raising an error when no room is left for the prompt", "raises",
      "if left", 'if left == 0: raise ValueError("no room")\n    if left')
wrong("training on the prompt as well", ("labels", "example"), "torch.full_like(kept, IGNORE)",
      "kept")
wrong(f"using 0 instead of {IGNORE}", ("labels", "example"),
      ".full_like", ".zeros_like", "kept, IGNORE", "kept", says="labels of the text")
wrong("shifting the labels by one position", ("labels", "example"),
      "return out", "ids, labels = out; return ids, labels.roll(-1)")
wrong("masking the first label of the answer", "labels",
      "return out",
      "ids, labels = out\n    if len(answer) > 1: labels[len(labels) - len(answer)] = IGNORE\n   "
      " return ids, labels")
wrong(f"adding labels of {IGNORE} for the prefix", "no prefix",
      "return out",
      "ids, labels = out\n    if len(prompt) == 3: return ids, labels\n    return ids, "
      "torch.cat([torch.full((virtual,), IGNORE), labels])", says="shape of the labels")
wrong("padding ids to n_positions", "no prefix",
      "return out",
      "ids, labels = out; free = n_positions - virtual - len(ids); return torch.cat([ids, "
      "ids.new_zeros(free)]), torch.cat([labels, labels.new_full((free,), IGNORE)])")
wrong("putting the answer before the prompt", ("text", "example"),
      "return out", "ids, labels = out; return ids.roll(len(answer)), labels.roll(len(answer))")
wrong("keeping only the answer, without its prompt", "text",
      "if left", "prompt = prompt if len(prompt) == 3 else prompt[:0]\n    if left")
wrong("returning a list instead of a tuple",
      "form", "return out", "return list(out)", says="type of the result")
wrong("returning lists instead of tensors", "form",
      "return out", "return (out[0].tolist(), out[1].tolist())", says="type of the")
wrong("adding a batch axis", ("form", "no prefix"),
      "return out", "ids, labels = out; return ids[None], labels[None]")
wrong(f"overwriting the prompt's ids with {IGNORE}", ("left alone", "text"),
      "return out", "prompt.fill_(IGNORE); return out", says="changes of prompt")
wrong("returning the answer itself when no prompt is left", "left alone",
      "return out",
      "ids, labels = out; return (answer, labels) if len(ids) == len(answer) else (ids, labels)")
wrong("masking labels by id, not by position", "repeats",
      "return out",
      "ids, labels = out; return ids, labels.masked_fill(torch.isin(ids, prompt), IGNORE)")
wrong("converting ids to 32 bits and back", "text",
      "return out", "ids, labels = out; return ids.int().long(), labels")
wrong("dropping an id from the prompt if it repeats the id before it", "repeats",
      "left =", "prompt = torch.unique_consecutive(prompt); left =")
wrong("using one tensor for ids and labels when no prompt is left", "new",
      "return out",
      "ids, labels = out; return (ids, ids) if torch.equal(ids, labels) else (ids, labels)")
wrong("returning the same pair of tensors for all texts of the same length", "new",
      "return out",
      "kept = PLACES.setdefault(len(out[0]), out); return kept[0].copy_(out[0]), "
      "kept[1].copy_(out[1])")
wrong("giving no label to an answer of a single token", "example",
      "return out",
      "ids, labels = out; return ids, labels.masked_fill(labels == 9, IGNORE) if len(answer) == "
      "1 else labels", says="labels of the text")
