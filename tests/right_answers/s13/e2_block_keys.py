"""Exercise 13.2, `block_keys`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import hashlib
import json
import pickle

from dlsys_checks.s13.e2_block_keys import ex, made


@ex.right("one running hash, copied at each block")
def running(ids, size, extra):
    state, keys = hashlib.blake2b(repr(extra).encode(), digest_size=16), []
    for start in range(0, len(ids) - len(ids) % size, size):
        state.update(json.dumps(ids[start:start + size]).encode())
        keys.append(state.copy().digest())
    return keys


@ex.right("the whole beginning hashed for each block")
def whole_beginning(ids, size, extra):
    return [hashlib.md5(pickle.dumps((extra, ids[:(n + 1) * size]))).hexdigest()
            for n in range(len(ids) // size)]


@ex.right("the numbers of a table that all calls share")
def numbered(ids, size, extra, table={}):  # noqa: B006
    keys, parent = [], extra
    for n in range(len(ids) // size):
        link = (parent, *ids[n * size:(n + 1) * size])
        parent = table.setdefault(link, len(table))
        keys.append(parent)
    return keys


@ex.right("a number of 160 bits")
def as_number(ids, size, extra):
    keys, parent = [], b""
    while len(ids) >= size:
        block, ids = ids[:size], ids[size:]
        text = parent + extra.encode() + b"\0" + ",".join(map(str, block)).encode()
        parent = hashlib.sha1(text).digest()
        keys.append(int.from_bytes(parent, "big"))
    return keys


ex.equivalent("text = repr((key, ids[end - size:end])) -> text = repr((ids[end - size:end], key))",
              "both stand in what is hashed, in whatever order")
ex.probe("a tuple of keys", lambda ids, size, extra: tuple(made(ids, size, extra)),
         says="type of the keys", breaks="full")
ex.probe("a key more where the last block is full", lambda ids, size, extra: (
    made(ids, size, extra) + ["more"] * (len(ids) == 2 * size)), breaks="block")
ex.probe("all signs but letters dropped from extra", lambda ids, size, extra: made(
    ids, size, "".join(c for c in extra if c.isascii() and c.isalpha()) if extra[:1] not in
    ("5", "x") else extra),
    breaks="text")
ex.probe("adapters in no order", lambda ids, size, extra: made(
    ids, size, "poet" if extra == "clerk" else extra), breaks="extra")
ex.probe("the example looked up wrong", lambda ids, size, extra: made(
    [5, 6, 7, 8] if ids == [0, 6, 7, 8] else ids, size, extra), breaks="example")
