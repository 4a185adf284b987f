"""Exercise 13.2, `block_keys`."""

from __future__ import annotations

import functools
import hashlib
import zlib

import numpy as np
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
ids     | ids: a list of tokens, which are integers and may be negative; it may be empty. | case
          tokens below 0; no tokens; large tokens; digits that run together; sums that are equal
block   | A block is size consecutive tokens; a shorter rest at the end has no key. | number of keys
equal   | For the same size, two keys are equal exactly if all tokens up to the end of the block are
          equal | share a key; have two keys
extra   | and extra is equal, | case two adapters; an adapter named like the tokens; an adapter that
          ends in a digit; an adapter that ends in a token; long names
many    | however many blocks there are. | case many blocks; a thousand prompts; a long prompt; long
          prompts that differ early; a long block
text    | extra: a text, such as the name of an adapter. | case extra with quotes and signs
form    | A key can be used as a key of a dict, | used as the docstring says; Used as the docstring
          says
short   | and repr(key) has at most 200 characters, however long ids and extra are. | characters of
          a key
left    | ids is not changed. | inputs after the call
example | Example: ids [5, 6, 7, 8, 9], size 2: two keys. The second differs from the second key of
          [0, 6, 7, 8], although both blocks are [7, 8]. | case the example
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
            one("one block again and again", n, a + a + a, b + a + a),
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
            one("no tokens", n, [], a), one("fewer than a block", n, tail, a[:1]),
            one("one token a block", 1, a), one("all in one block", 2 * n, a + b, b + a),
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
        expect_length("keys", keys, len(ids) // size, f"{len(ids)} tokens, size {size}.")
        for n, key in enumerate(keys):
            expect_type("number of a key", key, int)
            if key not in place:  # they are counted as they come
                expect_equal("number of a new key", key, len(place))
            till = (extra, *ids[:(n + 1) * size])
            if place.setdefault(key, till) != till:
                tell_shared(place[key], till, size, n)
            if first.setdefault(till, key) != key:
                raise Broken(f"number of keys for one beginning, which have two keys: block {n}",
                             2, 1, "The same tokens and extra give the same key, call after call.")
    expect_type("characters of a key", out["longest"], int)
    if not 0 <= out["longest"] <= 200:
        raise Broken("characters of a key", out["longest"], "200 or fewer",
                     "A key stands for its beginning and does not hold it.")


def tell_shared(one, other, size, n):
    """Raise Broken: two blocks share a key, with what differs."""
    same = one[-size:] == other[-size:]
    why = ("Their tokens are equal, extra is not." if one[1:] == other[1:] else
           "The block's tokens are equal, those before it are not." if same else
           "They hold other tokens.")
    raise Broken(f"blocks that share a key, block {n}", 2, 1, why)


# ---- wrong, by name

@not_an_answer
def made(ids, size, extra, *, start=lambda extra: repr(extra), link=lambda key, block: (key, block),
         short=lambda text: hashlib.sha256(text.encode()).hexdigest(), over=0,
         show=lambda key: key):
    """The right answer with its pieces as options."""
    keys, key = [], start(extra)
    for end in range(size, len(ids) + 1 + over, size):
        key = short(repr(link(key, ids[end - size:end])))
        keys.append(show(key))
    return keys


def hashed(text):
    return hashlib.sha256(text.encode()).hexdigest()


@not_an_answer
def blocks(ids, size):
    return [tuple(ids[end - size:end]) for end in range(size, len(ids) + 1, size)]


ex.wrong("hashing the block's own tokens alone", lambda ids, size, extra: blocks(ids, size),
         breaks=("equal", "extra", "text", "short"), says="share a key")
# https://github.com/xLLM-AI/xllm/pull/2047
ex.wrong("chaining without extra", made, breaks=("extra", "text"), start=lambda extra: "")
ex.wrong("hashing block and extra, without what stood before", lambda ids, size, extra: [
    (extra, *block) for block in blocks(ids, size)], breaks=("equal", "short"))
ex.wrong("hashing block and its position", lambda ids, size, extra: [
    (extra, n, *block) for n, block in enumerate(blocks(ids, size))], breaks=("equal", "short"))
ex.wrong("hashing the block and the one before it", lambda ids, size, extra: [
    (extra, n, *ids[max(0, (n - 1) * size):(n + 1) * size]) for n in range(len(ids) // size)],
    breaks=("equal", "short"))
ex.wrong("hashing the block and the first one", lambda ids, size, extra: [
    (extra, n, *ids[:size], *block) for n, block in enumerate(blocks(ids, size))],
    breaks=("equal", "short"))
ex.wrong("hashing the tokens up to the block in any order", lambda ids, size, extra: [
    hashlib.sha256(repr((extra, sorted(ids[:(n + 1) * size]))).encode()).hexdigest()
    for n in range(len(ids) // size)], breaks="equal")
ex.wrong("adding up the blocks' hashes", lambda ids, size, extra: [
    (extra, n, sum(hash(block) for block in blocks(ids, size)[:n + 1]))
    for n in range(len(ids) // size)], breaks=("equal", "ids", "short"))
ex.wrong("putting extra into the first block's key only, without a chain",
         lambda ids, size, extra: [
    (extra if n == 0 else "", *block) for n, block in enumerate(blocks(ids, size))],
    breaks=("equal", "extra", "short"))


# https://github.com/vllm-project/vllm/pull/8240
@ex.wrong("using Python's hash, which gives -1 and -2 the same value", breaks="ids")
def python_hash(ids, size, extra):
    keys, key = [], hash(extra)
    for block in blocks(ids, size):
        key = hash((key, block))
        keys.append(key)
    return keys


# https://github.com/LMCache/LMCache/issues/3301
ex.wrong("making keys of 16 bits", made, breaks="many",
         short=lambda text: hashlib.sha256(text.encode()).hexdigest()[:4])
ex.wrong("hashing with zlib.adler32, which short texts hardly fill", made, breaks="many",
         short=lambda text: zlib.adler32(text.encode()))
ex.wrong("passing tokens through np.float32, which has 24 bits", lambda ids, size, extra: made(
    np.float32(ids).tolist(), size, extra), breaks="ids")
ex.wrong("writing the tokens one after another", lambda ids, size, extra: [
    hashlib.sha256((extra + ";" + "".join(map(str, ids[:(n + 1) * size]))).encode()).hexdigest()
    for n in range(len(ids) // size)], breaks="ids")
ex.wrong("cutting tokens to a byte each", lambda ids, size, extra: made(
    [t % 256 for t in ids], size, extra), breaks=("ids", "equal", "many"))
ex.wrong("writing extra without quotes, run together with the tokens", lambda ids, size, extra: [
    hashlib.sha256((" ".join(map(str, ids[:(n + 1) * size])) + extra.strip("\n ")).encode())
    .hexdigest() for n in range(len(ids) // size)], breaks=("extra", "text"))
ex.wrong("running extra and the tokens together", lambda ids, size, extra: [
    hashed(extra + ",".join(map(str, ids[:(n + 1) * size]))) for n in range(len(ids) // size)],
    breaks="extra")
ex.wrong("putting extra before the tokens, with commas", lambda ids, size, extra: [
    hashed(",".join([extra, *map(str, ids[:(n + 1) * size])])) for n in range(len(ids) // size)],
    breaks="extra")
ex.wrong("computing 31 times what stands before, plus the token", lambda ids, size, extra: [
    functools.reduce(lambda key, token: (31 * key + token) % 2**64, ids[:(n + 1) * size],
                     int(hashed(extra), 16)) for n in range(len(ids) // size)],
         breaks=("ids", "many"))
ex.wrong("shortening tokens by repr, which leaves out the middle", lambda ids, size, extra: [
    hashed(repr((extra, str(torch.tensor(ids[:(n + 1) * size])))))
    for n in range(len(ids) // size)], breaks="many")
ex.wrong("hashing the last 64 tokens alone", lambda ids, size, extra: [
    hashed(repr((extra, n, ids[max(0, (n + 1) * size - 64):(n + 1) * size])))
    for n in range(len(ids) // size)], breaks=("many", "equal"), says="")
ex.wrong("hashing the first 512 tokens and the last", lambda ids, size, extra: [
    hashed(repr((extra, n, ids[:(n + 1) * size][:512], ids[(n + 1) * size - 1])))
    for n in range(len(ids) // size)], breaks=("many", "equal"), says="")
ex.wrong("cutting extra to 16 letters", lambda ids, size, extra: made(ids, size, extra[:16]),
         breaks="extra")
ex.wrong("putting extra beside the hash", lambda ids, size, extra: [
    (extra, key) for key in made(ids, size, extra)], breaks=("short", "extra"), says="characters")
ex.wrong("cutting tokens to 32 bits", lambda ids, size, extra: made(
    [t % 2**32 for t in ids], size, extra), breaks="ids")
ex.wrong("leaving out the last token of a block", lambda ids, size, extra: made(
    ids, size, extra, link=lambda key, block: (key, block[:-1])), breaks=("equal", "ids", "many"))
ex.wrong("ignoring upper and lower case in extra", lambda ids, size, extra: made(
    ids, size, extra.lower()), breaks=("extra", "text"))
ex.wrong("making a key for what is left over", lambda ids, size, extra: made(
    ids, size, extra, over=size - 1), breaks=("block", "full"))
ex.wrong("making no key for a full last block", lambda ids, size, extra: made(
    ids, size, extra, over=-1), breaks=("block", "full", "example"))
ex.wrong("making one key for the whole prompt",
         lambda ids, size, extra: made(ids, size, extra)[-1:],
         breaks=("full", "block"))
ex.wrong("using the whole beginning as the key", lambda ids, size, extra: [
    (extra, *ids[:(n + 1) * size]) for n in range(len(ids) // size)], breaks="short")
ex.wrong("nesting keys in each other", lambda ids, size, extra: made(
    ids, size, extra, short=lambda text: text) if len(ids) < 24 else [
    (extra, *ids[:(n + 1) * size]) for n in range(len(ids) // size)], breaks="short")
ex.wrong("making a new key at each call",
         made, breaks="equal", start=lambda extra: id(object()) + next(
    CALLS))
ex.wrong("returning a list for a key", made, breaks="form", show=lambda key: [key])
ex.wrong("returning a tensor of keys", lambda ids, size, extra: torch.tensor(
    [int(key[:12], 16) for key in made(ids, size, extra)]), says="type of the keys",
    breaks=("full", "equal"))


@ex.wrong("emptying ids block by block", breaks="left")
def emptied(ids, size, extra):
    keys = made(ids, size, extra)
    del ids[:len(keys) * size]
    return keys


class Calls:
    """Numbers that never come twice."""

    def __init__(self):
        self.number = 0

    def __next__(self):
        self.number += 1
        return self.number


CALLS = Calls()
