"""Exercise 10.3, `fit_text`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length, expect_parts, expect_type

# Token k of the prompt is start + (3 (k // 2) + k // 4) % 8, of the answer start + (5 k + 2) % 6:
# ids come twice, and in both. A start below zero stands for the example.
ex = exercise("10.3", "fit_text", seen=("start", "prompt", "answer", "n_positions", "virtual"))

IGNORE = -100

ex.promise("text", "Ids and labels of one training text that follows a learned prefix. prompt and "
           "answer: (P,) and (Q,), int64; the text is the prompt, then the answer.",
           says=("ids of the text", "labels of the text"))
ex.promise("repeats", "An id may come twice, and in both.",
           says=("labels of the text", "ids of the text"))
ex.promise("room", "The prefix of `virtual` tokens and the text share n_positions positions.",
           says=("ids of the text", "raised"))
ex.promise("cut", "Where they need more, the prompt loses its first tokens, as few as will do.",
           says=("ids of the text",))
ex.promise("raises", "Raises ValueError if prefix and answer alone need more.", says=("raised",))
ex.promise("form", "Returns a tuple of two tensors, int64, of the length of the text that is "
           "left: its ids, and labels,", says=("type of", "number of", "dtype of"))
ex.promise("labels", f"which are {IGNORE} for the prompt and the ids for the answer.",
           says=("labels of the text",))
ex.promise("no prefix", "Nothing stands in them for the prefix.",
           says=("shape of the labels", "shape of the ids"))
ex.promise("new", "Each has memory of its own at each call.",
           says=("memory shared", "after a second call"))
ex.promise("left alone", "prompt and answer may be empty and stay as they are.",
           says=("changes of", "memory shared"))
ex.promise("example", "Example: prompt [1, 2, 3], answer [9], 5 positions and a prefix of 2 give "
           f"[2, 3, 9] and [{IGNORE}, {IGNORE}, 9].", cases=("the example",))


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, prompt, answer, n_positions, virtual):
        return name, {"start": whole(200, 900), "prompt": prompt, "answer": answer,
                      "n_positions": n_positions, "virtual": virtual}
    p, q, v = whole(9, 14), whole(3, 6), whole(4, 8)
    return [one("room for all", p, q, p + q + v + 7, v), one("room to the last place", p, q,
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
    expect_equal("raised where the room beside the prefix is "
                 f"{room} and the answer has {answer} tokens", out["raised"],
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

def fitted(prompt, answer, left, *, keep=None, label=None):
    """The worked answer with the room for the prompt given, and the cut as an option."""
    if left < 0:
        raise ValueError("no room")
    kept = prompt[max(0, len(prompt) - left):] if keep is None else keep(prompt, left)
    labels = torch.full_like(kept, IGNORE) if label is None else label(kept)
    return torch.cat([kept, answer]), torch.cat([labels, answer])


@ex.wrong("the prompt cut at its end", breaks=("cut", "example"))
def end_of_prompt(prompt, answer, n_positions, virtual):
    return fitted(prompt, answer, n_positions - virtual - len(answer),
                  keep=lambda prompt, left: prompt[:left])


ex.wrong("nothing cut, whatever the room",
         lambda prompt, answer, n_positions, virtual: fitted(prompt, answer, len(prompt)),
         breaks=("cut", "room", "raises", "example"))


@ex.wrong("one tensor as ids and labels, the labels written into it",
          breaks=("repeats", "cut", "new"))
def labels_into_ids(prompt, answer, n_positions, virtual):
    left = n_positions - virtual - len(answer)
    if left < 0:
        raise ValueError("too long")
    kept = prompt[max(0, len(prompt) - left):]
    ids = torch.cat([kept, answer])
    labels = ids
    labels[:len(kept)] = IGNORE
    return ids, labels


@ex.wrong("the whole text cut at its end", breaks=("cut", "raises", "example"))
def end_of_text(prompt, answer, n_positions, virtual):
    room = max(0, n_positions - virtual)
    ids, labels = fitted(prompt, answer, len(prompt))
    return ids[:room], labels[:room]


@ex.wrong("the prefix forgotten", breaks="room")
def prefix_forgotten(prompt, answer, n_positions, virtual):
    virtual = virtual if len(prompt) == 3 else 0
    return fitted(prompt, answer, n_positions - virtual - len(answer))


@ex.wrong("a place left free", breaks=("cut", "raises", "room"))
def one_free(prompt, answer, n_positions, virtual):
    left = n_positions - virtual - len(answer)
    return fitted(prompt, answer, left if len(prompt) == 3 else left - 1)


@ex.wrong("prompt[-left:], which keeps all for 0", breaks="cut")
def minus_zero(prompt, answer, n_positions, virtual):
    return fitted(prompt, answer, n_positions - virtual - len(answer),
                  keep=lambda prompt, left: prompt[-left:])


@ex.wrong("the prompt dropped whole where it does not fit", breaks=("cut", "example"))
def all_or_nothing(prompt, answer, n_positions, virtual):
    return fitted(prompt, answer, n_positions - virtual - len(answer),
                  keep=lambda prompt, left: prompt if len(prompt) <= left else prompt[:0])


@ex.wrong("no error for a long answer, which is cut", breaks="raises")
def answer_cut(prompt, answer, n_positions, virtual):
    room = max(0, n_positions - virtual)
    return fitted(prompt, answer[:room], room - min(room, len(answer)))


@ex.wrong("an error wherever something has to go", breaks=("raises", "cut", "example", "room"))
def strict(prompt, answer, n_positions, virtual):
    if len(prompt) + len(answer) + virtual > n_positions:
        raise ValueError("too long")
    return fitted(prompt, answer, len(prompt))


@ex.wrong("an error where no room is left for the prompt", breaks="raises")
def needs_prompt(prompt, answer, n_positions, virtual):
    left = n_positions - virtual - len(answer)
    if left == 0:
        raise ValueError("no room")
    return fitted(prompt, answer, left)


@ex.wrong("the prompt learned, too", breaks=("labels", "example"))
def prompt_learned(prompt, answer, n_positions, virtual):
    return fitted(prompt, answer, n_positions - virtual - len(answer), label=lambda kept: kept)


@ex.wrong(f"0 in place of {IGNORE}", says="labels of the text", breaks=("labels", "example"))
def zeros(prompt, answer, n_positions, virtual):
    return fitted(prompt, answer, n_positions - virtual - len(answer), label=torch.zeros_like)


@ex.wrong("labels shifted as well", breaks=("labels", "example"))
def shifted(prompt, answer, n_positions, virtual):
    ids, labels = fitted(prompt, answer, n_positions - virtual - len(answer))
    return ids, labels.roll(-1)


@ex.wrong("the first label of the answer masked", breaks="labels")
def first_masked(prompt, answer, n_positions, virtual):
    ids, labels = fitted(prompt, answer, n_positions - virtual - len(answer))
    if len(answer) > 1:
        labels[len(labels) - len(answer)] = IGNORE
    return ids, labels


@ex.wrong(f"{IGNORE} for the prefix in front of the labels", says="shape of the labels",
          breaks="no prefix")
def prefix_labelled(prompt, answer, n_positions, virtual):
    ids, labels = fitted(prompt, answer, n_positions - virtual - len(answer))
    if len(prompt) == 3:
        return ids, labels
    return ids, torch.cat([torch.full((virtual,), IGNORE), labels])


@ex.wrong("ids padded to all positions", breaks="no prefix")
def padded(prompt, answer, n_positions, virtual):
    ids, labels = fitted(prompt, answer, n_positions - virtual - len(answer))
    free = n_positions - virtual - len(ids)
    return torch.cat([ids, ids.new_zeros(free)]), torch.cat([labels, labels.new_full((free,),
                                                                                   IGNORE)])


@ex.wrong("answer before prompt", breaks=("text", "example"))
def answer_first(prompt, answer, n_positions, virtual):
    ids, labels = fitted(prompt, answer, n_positions - virtual - len(answer))
    return ids.roll(len(answer)), labels.roll(len(answer))


@ex.wrong("the answer alone, without its prompt", breaks="text")
def answer_alone(prompt, answer, n_positions, virtual):
    left = n_positions - virtual - len(answer)
    return fitted(prompt if len(prompt) == 3 else prompt[:0], answer, left)


@ex.wrong("a list of the two", says="type of the result", breaks="form")
def as_list(prompt, answer, n_positions, virtual):
    return list(fitted(prompt, answer, n_positions - virtual - len(answer)))


@ex.wrong("lists instead of tensors", says="type of the", breaks="form")
def plain_lists(prompt, answer, n_positions, virtual):
    pair = fitted(prompt, answer, n_positions - virtual - len(answer))
    return pair[0].tolist(), pair[1].tolist()


@ex.wrong("one batch axis too many", breaks=("form", "no prefix"))
def batched(prompt, answer, n_positions, virtual):
    ids, labels = fitted(prompt, answer, n_positions - virtual - len(answer))
    return ids[None], labels[None]


@ex.wrong(f"the prompt's tokens overwritten with {IGNORE}", says="changes of prompt",
          breaks=("left alone", "text"))
def overwritten(prompt, answer, n_positions, virtual):
    pair = fitted(prompt, answer, n_positions - virtual - len(answer))
    prompt.fill_(IGNORE)
    return pair


@ex.wrong("the answer handed back where no prompt is left", breaks="left alone")
def handed_back(prompt, answer, n_positions, virtual):
    ids, labels = fitted(prompt, answer, n_positions - virtual - len(answer))
    return (answer, labels) if len(ids) == len(answer) else (ids, labels)


@ex.wrong("labels masked by id, not by place", breaks="repeats")
def by_id(prompt, answer, n_positions, virtual):
    ids, labels = fitted(prompt, answer, n_positions - virtual - len(answer))
    return ids, labels.masked_fill(torch.isin(ids, prompt), IGNORE)


@ex.wrong("ids through 32 bits", breaks="text")
def in_32_bits(prompt, answer, n_positions, virtual):
    ids, labels = fitted(prompt, answer, n_positions - virtual - len(answer))
    return ids.int().long(), labels


@ex.wrong("an id that follows itself taken once", breaks="repeats")
def taken_once(prompt, answer, n_positions, virtual):
    return fitted(torch.unique_consecutive(prompt), answer, n_positions - virtual - len(answer))


@ex.wrong("one tensor as both where no prompt is left", breaks="new")
def one_for_both(prompt, answer, n_positions, virtual):
    ids, labels = fitted(prompt, answer, n_positions - virtual - len(answer))
    return (ids, ids) if torch.equal(ids, labels) else (ids, labels)


PLACES: dict = {}


@ex.wrong("one pair of tensors for all texts of a length", breaks="new")
def one_pair(prompt, answer, n_positions, virtual):
    pair = fitted(prompt, answer, n_positions - virtual - len(answer))
    kept = PLACES.setdefault(len(pair[0]), pair)
    return kept[0].copy_(pair[0]), kept[1].copy_(pair[1])


@ex.wrong("a single answer token left without a label", says="labels of the text", breaks="example")
def single_token(prompt, answer, n_positions, virtual):
    ids, labels = fitted(prompt, answer, n_positions - virtual - len(answer))
    return ids, labels.masked_fill(labels == 9, IGNORE) if len(answer) == 1 else labels
