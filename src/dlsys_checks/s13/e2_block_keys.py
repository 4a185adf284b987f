"""Exercise 13.2, `block_keys`."""

from __future__ import annotations

import hashlib
import itertools

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

MANY = 3000  # blocks: 16 bits tell about 250 of them apart

ex = exercise("13.2", "block_keys", seen=("prompts", "size"), says="share a key")

ex.promise_table("""
full    | Compute the key of each full block of a prompt, for a prefix cache. | number of keys; type
          of the keys
ids     | ids: a list of tokens, possibly empty. Tokens are integers and can be negative. | case
          tokens below 0; no tokens; large tokens; digits that run together; sums that are equal
block   | A block consists of `size` consecutive tokens. A shorter remainder at the end has no
          key. | number of keys
equal   | For the same size and extra, two keys are equal if and only if all tokens up to the end of
          the block are equal. | share a key; keys of one prefix
extra   | For the same size, a different extra makes every key different. | case two adapters; an
          adapter named like the tokens; an adapter that ends in a digit; an adapter that ends in a
          token; long names
many    | Both rules hold however many blocks there are. | case many blocks; a thousand prompts; a
          long prompt; long prompts that differ early; a long block
text    | extra: a text, such as the name of an adapter. | case extra with quotes and signs
form    | A key can be used as a dict key. | used as the docstring says; Used as the docstring says
short   | repr(key) has at most 200 characters, however long ids and extra are. | characters of a
          key
left    | ids is not changed. | inputs after the call
example | Example: ids [5, 6, 7, 8, 9] and size 2 give two keys. The second differs from the second
          key of [0, 6, 7, 8], although both blocks are [7, 8]. | case the example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def some(n, top=900):
        return torch.randint(1, top, (n,), generator=g).tolist()

    def one(name, size, *prompts):
        return name, {"prompts": [p if type(p) is tuple else (p, "") for p in prompts],
                      "size": size}

    n = whole(3, 6)
    a, b, c, d = some(n), some(n), some(n), some(n)
    tail = some(n - 1)
    nine, early = some(9), some(1400)
    long = "adapters/" + "".join(chr(97 + whole(0, 26)) for _ in range(600))
    return [one("a common beginning", n, a + b + c, a + b + d, a + c, a),
            one("the same blocks in another order", n, a + b + c + d, b + a + c + d, c + b + a + d),
            one("another first block", n, a + b + c, d + b + c),
            one("another block in the middle", n, a + b + c + d, a + c + c + d),
            one("one block repeated", n, a + a + a, b + a + a),
            one("two blocks exchanged far ahead", 1, nine, [*nine[:2][::-1], *nine[2:]]),
            one("the same prompt twice", n, a + b + tail, list(a + b + tail), a + b),
            one("two adapters", n, (a + b, "poet"), (a + b, "clerk"), a + b, (a + b, "poet")),
            one("an adapter named like the tokens", 2, ([1, 2, 3, 4], "5"), ([1, 2, 3, 4], "")),
            one("extra with quotes and signs", 2, ([7, 8], "a', 'b"), ([7, 8], "a"), ([7, 8], "ä"),
                ([7, 8], "a', ('b"), ([7, 8], " "), ([7, 8], "\n"), ([7, 8], "Ä"), ([7, 8], "A")),
            one("tokens below 0", 1, [-1], [-2], [1], [2], [-1, -2], [-2, -1], [-1, -1]),
            one("large tokens", 2, [150_000, 3], [150_000, 259], [22_464, 3], [2**40, 3],
                [2**40, 2**32 + 3], [0, 3], [2**32, 3], [2**24, 3], [2**24 + 1, 3], [2**53, 3],
                [2**53 + 1, 3]),
            one("digits that run together", 2, [1, 23, 4, 5], [12, 3, 4, 5], [1, 2, 34, 5]),
            one("no tokens", n, [], a), one("fewer tokens than a block", n, tail, a[:1]),
            one("one token per block", 1, a), one("all in one block", 2 * n, a + b, b + a),
            one("full to the last token", n, a + b), one("one token over", n, a + b + [4]),
            one("an adapter that ends in a digit", 2, ([2, 3], "x1"), ([12, 3], "x"),
                ([2, 3], "x1,"), ([2, 3], "")),
            one("an adapter that ends in a token", 1, ([2, 3], "x"),
                *[([3], "x" + end) for end in (",2", " 2", ", 2", "[2]", ":2", "-2", "|2")]),
            one("sums that are equal", 2, *[ids for m in (31, 33, 257, 1_000_003)
                                            for ids in ([4, 5 + m], [5, 5])]),
            one("long names", 1, ([7], long + "a"), ([7], long + "b"), ([7], long)),
            one("long prompts that differ early", 700, early, [*early[:3], 0, *early[4:]],
                [*early[:1000], 0, *early[1001:]], [*early[:650], 0, *early[651:]]),
            one("a long block", 1400, early, [*early[:700], 0, *early[701:]]),
            one("many blocks", 1, torch.randperm(10 * MANY, generator=g)[:MANY].tolist()),
            one("a thousand prompts", 4, *torch.randint(900, (1000, 4), generator=g).tolist()),
            one("a long prompt", 2, (some(1600), "poet")),
            one("the example", 2, [5, 6, 7, 8, 9], [0, 6, 7, 8])]


@ex.act
def act(fn, prompts, size):
    numbers, found, longest, kinds = {}, [], 0, set()
    for ids, extra in prompts:
        keys = fn(ids, size, extra)
        kinds.add(type(keys).__name__)
        found.append([numbers.setdefault(key, len(numbers)) for key in keys])
        longest = max([longest, *(len(repr(key)) for key in keys[-1:])])
    return {"found": found, "longest": longest, "kinds": sorted(kinds)}


@ex.law
def law(out, prompts, size):
    expect_parts(out, "found", "longest", "kinds")
    expect_equal("type of the keys", out["kinds"], ["list"])
    expect_length("prompts", out["found"], len(prompts))
    first, place = {}, {}
    for (ids, extra), keys in zip(prompts, out["found"]):
        expect_length("keys", keys, len(ids) // size,
                      f"There are {len(ids)} tokens, and size is {size}.")
        for n, key in enumerate(keys):
            expect_type("number of a key", key, int)
            if key not in place:  # they are counted as they come
                expect_equal("number of a new key", key, len(place))
            till = (extra, *ids[:(n + 1) * size])
            if place.setdefault(key, till) != till:
                tell_shared(place[key], till, size, n)
            if first.setdefault(till, key) != key:
                raise Broken(f"number of keys of one prefix, block {n}",
                             2, 1, "The same tokens and extra should give the same key each time.")
    expect_type("characters of a key", out["longest"], int)
    if not 0 <= out["longest"] <= 200:
        raise Broken("characters of a key", out["longest"], "200 or fewer",
                     "A key stands for its prefix; it does not contain it.")


def tell_shared(one, other, size, n):
    """Raise Broken: two blocks share a key, with what differs."""
    same = one[-size:] == other[-size:]
    why = ("Their tokens are equal, but extra is not." if one[1:] == other[1:] else
           "The blocks' tokens are equal, but the tokens before them are not." if same else
           "Their tokens differ.")
    raise Broken(f"blocks that share a key, block {n}", 2, 1, why)


# ---- wrong, by name

def hashed(text):
    return hashlib.sha256(text.encode()).hexdigest()


@not_an_answer
def made(ids, size, extra):
    keys, key = [], repr(extra)
    for end in range(size, len(ids) + 1, size):
        block = ids[end - size:end]
        key = hashed(repr((key, block)))
        keys.append(key)
    return keys


CALLS = itertools.count()
wrong = ex.edits(made)
START, FIRST, KEY, END = "keys, key =", "repr(extra)", "hashed(repr((key, block)))", "return keys"
wrong("hashing only the block's own tokens", ("equal", "extra", "text", "short"),
      KEY, "tuple(block)", says="share a key")
# https://github.com/xLLM-AI/xllm/pull/2047
wrong("chaining the keys without the extra text", ("extra", "text"), FIRST, '""')
wrong("hashing the block and the extra text, but not the tokens before the block",
      ("equal", "short"),
      KEY, "(extra, *block)")
wrong("hashing the block and its position", ("equal", "short"), KEY, "(extra, end, *block)")
wrong("hashing the block and the previous block", ("equal", "short"),
      KEY, "(extra, end, *ids[max(0, end - 2 * size):end])")
wrong("hashing the block and the first block", ("equal", "short"),
      KEY, "(extra, end, *ids[:size], *block)")
wrong("ignoring the order of the tokens", "equal",
      KEY, "hashed(repr((extra, sorted(ids[:end]))))")
wrong("adding up the blocks' hashes", ("equal", "ids", "short"),
      FIRST, "0", KEY, "key + hash(tuple(block))", "append(key)", "append((extra, end, key))")
wrong("including the extra text only in the first block's key, without chaining the keys",
      ("equal", "extra", "short"), KEY, '(extra if end == size else "", *block)')
# https://github.com/vllm-project/vllm/pull/8240
wrong("using Python's hash, which gives -1 and -2 the same value", "ids",
      FIRST, "hash(extra)", KEY, "hash((key, tuple(block)))")
# https://github.com/LMCache/LMCache/issues/3301
wrong("making keys of only 16 bits", "many", KEY, f"{KEY}[:4]")
wrong("hashing with zlib.adler32, which has few values for short texts", "many",
      START, f"import zlib; {START}", KEY, "zlib.adler32(repr((key, block)).encode())")
wrong("converting tokens to np.float32, which keeps only 24 bits", "ids",
      START, f"import numpy as np; ids = np.float32(ids).tolist(); {START}")
wrong("joining the tokens without a separator", "ids",
      KEY, 'hashed(extra + ";" + "".join(map(str, ids[:end])))')
wrong("truncating each token to one byte", ("ids", "equal", "many"),
      START, f"ids = [t % 256 for t in ids]; {START}")
wrong("appending the extra text to the tokens without a separator", ("extra", "text"),
      KEY, r'hashed(" ".join(map(str, ids[:end])) + extra.strip("\n "))')
wrong("putting the extra text before the tokens without a separator", "extra",
      KEY, 'hashed(extra + ",".join(map(str, ids[:end])))')
wrong("joining the extra text and the tokens with commas", "extra",
      KEY, 'hashed(",".join([extra, *map(str, ids[:end])]))')
wrong("updating the key as 31 * key + token, token by token", ("ids", "many"),
      START, f"import functools; {START}", FIRST, "int(hashed(extra), 16)",
      KEY, "functools.reduce(lambda key, token: (31 * key + token) % 2**64, block, key)")
wrong("hashing str() of a tensor, which leaves out the middle of a long tensor", "many",
      KEY, "hashed(repr((extra, str(torch.tensor(ids[:end])))))")
wrong("hashing only the last 64 tokens", ("many", "equal"),
      KEY, "hashed(repr((extra, end, ids[:end][-64:])))", says="")
wrong("hashing only the first 512 tokens and the last one", ("many", "equal"),
      KEY, "hashed(repr((extra, end, ids[:end][:512], block[-1])))", says="")
wrong("truncating the extra text to 16 characters", "extra", FIRST, "repr(extra[:16])")
wrong("storing the extra text in the key, next to the hash", ("short", "extra"),
      "append(key)", "append((extra, key))", says="characters")
wrong("truncating tokens to 32 bits", "ids", START, f"ids = [t % 2**32 for t in ids]; {START}")
wrong("leaving out the last token of a block", ("equal", "ids", "many"),
      "(key, block)", "(key, block[:-1])")
wrong("converting the extra text to lower case", ("extra", "text"), FIRST, "repr(extra.lower())")
wrong("making a key for an incomplete last block",
      ("block", "full"), "len(ids) + 1", "len(ids) + size")
wrong("making no key for a full last block", ("block", "full", "example"),
      "len(ids) + 1", "len(ids)")
wrong("making one key for the whole prompt", ("full", "block"), END, "return keys[-1:]")
wrong("using the whole prefix as the key", "short", KEY, "(extra, *ids[:end])")
wrong("storing the previous key inside each key", "short",
      KEY, "repr((key, block)) if len(ids) < 24 else (extra, *ids[:end])")
wrong("making different keys for the same prompt at each call", "equal", FIRST, "next(CALLS)")
wrong("returning a list as a key", "form", "append(key)", "append([key])")
wrong("returning a tensor of keys", ("full", "equal"),
      END, "return torch.tensor([int(key[:12], 16) for key in keys])", says="type of the keys")
wrong("deleting tokens from the caller's list",
      "left", END, "del ids[:len(keys) * size]; return keys")
