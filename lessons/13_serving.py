# %% [markdown] role="hook"
# # 13. Serving a language model
#
# You have trained a model, and people want to talk to it. So you write a server. At
# first, it answers one request at a time. Then it handles several requests at once, which
# share one memory. Then the memory fills up, and the server also has to become faster.
# Later, a trainer learns from the server's answers, and in the end, your boss asks how
# fast the server is.
#
# Each of these steps takes a few lines of code, and each can go wrong without raising an
# error. The answers are fluent, the tests pass, and the report looks good. In this stage,
# you build that server around a small GPT and break it once at every step.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import codecs
import copy
import hashlib
import heapq
import math
import random
import re
from collections import Counter, deque
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers import (
    begin, check, claim, cost, datasheet, draw_blocks, draw_boxes,
    draw_grids, draw_histogram, draw_lanes, draw_line, draw_ranks,
    draw_tree, flops, gpu_result, gpu_table, guess, measured,
    new_axes, plot_bars, plot_columns, plot_lines, seconds, show,
)
from dlsys_model.text import prose

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## A model to serve
#
# The server needs a model. Here it gets a small GPT that reads and writes single letters.
# It has two blocks of width 64 and has been trained for a few seconds on the prose of
# this course. The model's code is folded below. The GPT differs from the models of stage
# 8 in two ways that matter here. First, positions enter the model by *rotation* (RoPE):
# every query and key is rotated by an angle that grows with its position, so a score
# depends on the two positions only through their distance. Second, attention reads the
# keys and values of earlier letters from a *cache*.
#
# A *KV cache* stores the key and the value of every letter that the model has read. With
# the cache, a new letter costs the work for one position, not the work for the whole
# text. The price is memory, because every letter of every request adds a key and a value
# in each layer.
#
# The model produces an answer in two phases. *Prefill* reads the whole prompt in one call
# and fills the cache. *Decode* then writes one letter per call, and each call reads all
# the weights and all of the cache.
#
# Shapes: `B` rows, `n` new tokens, `T` tokens in the cache, `H` heads of `D` channels.

# %% role="concept"
class Cache:
    """Keys and values (B, H, T, D) of each layer, in reading order."""

    def __init__(self, layers=()):
        self.layers = dict(enumerate(layers))

    def add(self, layer, k, v):
        """Append the new entries; return all that attention reads."""
        if layer in self.layers:
            old_k, old_v = self.layers[layer]
            k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
        self.layers[layer] = k, v
        return k, v

# %% role="concept" tags=["plumbing"]
def length(cache):
    """Tokens that a cache holds."""
    return cache.layers[0][0].shape[2] if cache.layers else 0

def part(cache, start, stop):
    """The entries from start to stop, as a separate cache."""
    return Cache([(k[:, :, start:stop], v[:, :, start:stop])
                  for k, v in cache.layers.values()])

def joined(caches):
    """Several parts of a cache, joined in this order."""
    whole = Cache()
    for piece in caches:
        for layer, (k, v) in piece.layers.items():
            whole.add(layer, k, v)
    return whole

# %% role="concept" tags=["plumbing"]
class Block(nn.Module):
    """Attention over everything in the cache, then two linear layers."""

    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(),
                                 nn.Linear(3 * d, d))

    def forward(self, h, layer, cache, positions, keep):
        return read_and_add(self, h, layer, cache, positions, keep)

# %% role="concept" tags=["plumbing"]
def turn(x, positions):
    """Rotate x (B, H, n, D) by the angles of its positions (B, n)."""
    half = x.shape[-1] // 2
    speeds = 1e4 ** (-torch.arange(half, device=x.device) / half)
    angles = (positions[:, None, :, None] * speeds).to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(),
                      a * angles.sin() + b * angles.cos()], -1)

def read_and_add(block, h, layer, cache, positions, keep):
    """The block's output for h (B, n, d); new keys go into the cache."""
    q, k, v = block.qkv(block.norm1(h)).unflatten(
        -1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)   # (B, H, n, D)
    q, k = turn(q, positions), turn(k, positions)
    k, v = cache.add(layer, k, v)
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    h = h + block.out(seen.transpose(1, 2).flatten(2))
    return h + block.mlp(block.norm2(h))

# %% role="concept" tags=["plumbing"]
class GPT(nn.Module):
    """ids (B, n) -> logits (B, n, letters) of the letter after each."""

    def __init__(self, letters, d=64, heads=4, layers=2):
        super().__init__()
        self.letter = nn.Embedding(letters, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(d)
        self.head = nn.Linear(d, letters, bias=False)

    def forward(self, ids, cache=None, positions=None, keep=None):
        return logits_of(self, ids, Cache() if cache is None else cache,
                         positions, keep)

# %% role="concept" tags=["plumbing"]
def logits_of(model, ids, cache, positions, keep):
    """Logits (B, n, letters); ids follow the letters in the cache."""
    past, n = length(cache), ids.shape[1]
    if positions is None:
        positions = torch.arange(past, past + n).expand(len(ids), n)
    if keep is None:                     # each sees the past and itself
        keep = torch.ones(n, past + n, dtype=torch.bool).tril(past)
    h = model.letter(ids)
    for layer, block in enumerate(model.blocks):
        h = block(h, layer, cache, positions, keep)
    return model.head(model.norm(h))

# %% role="concept" tags=["plumbing"]
text = prose()
letters, train_ids, kept_back = text.letters, text.train, text.valid
V = len(letters)

def shown_letter(i):
    """A letter as an axis can label it."""
    return {" ": "blank", "\n": "line"}.get(letters[i], letters[i])

def rows(n, size, source=train_ids):
    """n random pieces of the text, (n, size) int64."""
    starts = torch.randint(len(source) - size, (n, 1))
    return source[starts + torch.arange(size)]

# %% role="concept" tags=["plumbing"]
gpt = GPT(V)
adam = torch.optim.AdamW(gpt.parameters(), lr=6e-3)
for step in range(150):
    adam.param_groups[0]["lr"] = 6e-3 * min(1, (step + 1) / 20) * (
        1 - step / 150)
    batch = rows(16, 49)
    loss = F.cross_entropy(gpt(batch[:, :-1]).flatten(0, 1),
                           batch[:, 1:].flatten())
    adam.zero_grad()
    loss.backward()
    adam.step()
gpt.requires_grad_(False)
final_loss = loss.item()

# %% role="concept"
claim("loss of the GPT, in nats per letter", final_loss, below=2.7)

# %% [markdown] role="concept"
# ## Why old keys may be reused
#
# To write one more letter, the model has to look at every letter before it. If every call
# sends the whole text through the model again, the model processes half a million letters
# for an answer of 1,000, and most of this work repeats earlier work. But are the old
# results still right once the text has grown? Let the model read seven letters, and then
# the same seven plus one more, and compare the keys of the second layer:

# %% role="concept"
piece = kept_back[:8]                  # eight letters of the text

def second_keys(ids, keep=None):
    """Keys of the second layer for ids (n,), as rows (n, 64)."""
    cache = Cache()
    gpt(ids[None], cache, keep=keep)
    return cache.layers[1][0][0].transpose(0, 1).flatten(1)

def change(shorter, longer):
    """How far each old key moves, as a fraction of its norm."""
    gap = (longer[:len(shorter)] - shorter).norm(dim=1)
    return gap / shorter.norm(dim=1)

masked = change(second_keys(piece[:7]), second_keys(piece))
print("each key moves by", [round(m, 3) for m in masked.tolist()])

# %% role="concept"
claim("largest change in an old key, as a fraction of the key's norm",
      masked.max(), below=1e-4)

# %% [markdown] role="concept"
# No old key changes, and the reason is the causal mask. In every layer, a position sees
# only itself and what came before it. So nothing that a layer computes at a position can
# depend on a later letter. Without the mask, the new letter changes every old key of the
# second layer:

# %% role="concept"
everyone = torch.ones(8, 8, dtype=torch.bool)     # all see all
unmasked = change(second_keys(piece[:7], everyone[:7, :7]),
                  second_keys(piece, everyone))
print("without a mask:  ", [round(m, 2) for m in unmasked.tolist()])

# %% role="concept"
claim("without the mask: smallest change in an old key, as a fraction of "
      "the key's norm", unmasked.min(), above=1e-3)

# %% role="concept" tags=["plumbing"]
steps = {"causal mask": torch.eye(6), "no mask": torch.eye(6)}
for n in range(1, 6):
    for name, keep in (("causal mask", None), ("no mask", everyone)):
        before, after = (second_keys(
            piece[:m], None if keep is None else keep[:m, :m])
            for m in (n, n + 1))
        steps[name][n, :n] = (change(before, after) > 1e-4).float()

# %% role="concept"
draw_grids(steps, rows="letters read, 1 to 6",
           columns="position of the key",
           title="Only with a causal mask do old keys stay as they were",
           alt="Two grids of six calls and six positions. A filled cell is "
               "a key that this call computed for the first time or "
               "changed. With a causal mask, only the diagonal is filled. "
               "Without a mask, each call fills every position up to the "
               "newest.")

# %% [markdown] role="concept"
# The same holds for the values. Keep the keys and the values, and send only the newest
# letter through the model. The newest letter has one query, which is compared with all
# keys, old and new. The old queries are no longer needed, because the letters that they
# predicted have already been written.

# %% role="concept"
kept = Cache()
gpt(piece[None, :7], kept)                        # seven letters, once
one_more = gpt(piece[None, 7:], kept)[0, -1]      # and one alone
all_again = gpt(piece[None])[0, -1]
print(f"letters read to write 1,000: {1000 * 1001 // 2:,} without a cache, "
      f"1,000 with it; the cache now holds {length(kept)}")

# %% role="concept"
claim("largest difference between the logits with and without the cache",
      (one_more - all_again).abs().max(), below=1e-3)

# %% [markdown] trap="13.1" role="situation" core=true fault="a cache block is freed while another request reads it" symptom="an answer contains another user's words, with no error, once requests share a prefix"
# ## One memory for all
#
# Nobody knows how long an answer will be, so you do not reserve one long piece of memory
# per request. Instead, you cut the memory into *blocks*. Each block holds the keys and
# values of four letters. Every request has a *table*, the list of its blocks in order.
# Requests that begin with the same system prompt share the blocks of that prompt, which
# are computed and stored once.
#
# In the code, Ann and Bob share the system prompt. Bob's answer is finished, and his
# blocks go back to the free list. Then Cem arrives. Cem's prompt needs four blocks and
# shares nothing with Ann's and Bob's prompts. Your design document says: "Ann's table
# does not change, so her answer does not change either."

# %% trap="13.1" role="break"
SIZE = 4                                          # letters of a block

class Pool:
    """Blocks of keys and values, and the letters that they belong to."""

    def __init__(self, blocks):
        self.free = list(range(blocks))
        self.letters = torch.zeros(blocks, SIZE, dtype=torch.long)
        # layer, key or value, head, block, place, channel
        self.kv = torch.zeros(2, 2, 4, blocks, SIZE, 16)

    def read(self, table, n):
        """The first n letters of a table as a cache."""
        kv = self.kv[:, :, :, table].flatten(3, 4)[:, :, None, :, :n]
        return Cache([(k, v) for k, v in kv])

# %% trap="13.1" role="break"
def admit(pool, ids, shared=()):
    """The table of a request (T,); its first blocks may be shared."""
    table, start = list(shared), SIZE * len(shared)
    while SIZE * len(table) < len(ids):
        table.append(pool.free.pop(0))
    cache = pool.read(table, start) if start else Cache()
    gpt(ids[None, start:], cache)                 # prefill of the rest
    for at in range(start, len(ids)):
        block, place = table[at // SIZE], at % SIZE
        pool.letters[block, place] = ids[at]
        for layer, (k, v) in cache.layers.items():
            pool.kv[layer, 0, :, block, place] = k[0, :, at]
            pool.kv[layer, 1, :, block, place] = v[0, :, at]
    return table

# %% trap="13.1" role="break"
system = "Answer briefly. "
ann_ids, bob_ids, cem_ids = (text.encode(t) for t in (
    system + "What is a GPU?  ", system + "Tell me a joke. ",
    "My PIN is 4711. "))

pool = Pool(12)
ann = admit(pool, ann_ids)
bob = admit(pool, bob_ids, shared=ann[:4])        # the system prompt
pool.free += bob                                  # Bob is done
cem = admit(pool, cem_ids)

# %% trap="13.1" role="guess" quoted="wrong"
guess("13.1",
      "How far does Cem's request shift the distribution of Ann's next "
      "letter, from 0 % (not at all) to 100 % (no overlap)?",
      choices=["0 %",
               "from 1 to 30 %",
               "from 30 to 70 %",
               "over 70 %"])

# %% trap="13.1" role="look"
def reads(pool, table):
    """The letters in the blocks of a table."""
    return text.decode(pool.letters[table].flatten())

print("Ann sent  ", repr(text.decode(ann_ids)))
print("Ann reads ", repr(reads(pool, ann)))
foreign = pool.letters[ann].flatten() != ann_ids     # (32,)

# %% trap="13.1" role="look"
claim("number of blocks that are in both Ann's table and Cem's table",
      len({*ann} & {*cem}), expected=4)

# %% [markdown] trap="13.1" role="why"
# Bob's table holds eight blocks, and four of them are also in Ann's table. The free list
# cannot know that blocks are shared: `free += table` says "nobody reads these blocks",
# but Ann's request still reads four of them. The next request that needs memory
# overwrites the shared blocks. Ann's table has not changed, and every block number in it
# is valid. So nothing fails, but Ann's answer is computed partly from Cem's keys.

# %% trap="13.1" role="why"
def owners(**tables):
    """Which request holds which of the 12 blocks, one row per request."""
    return torch.stack([torch.tensor([float(b in table) for b in range(12)])
                        for table in tables.values()])

then = owners(Ann=ann, Bob=bob, Cem=())
now = owners(Ann=ann, Bob=(), Cem=cem)
both = (now.sum(0) > 1) & (now > 0)

# %% trap="13.1" role="why"
draw_grids({"Ann and Bob are served": then,
            "Bob has gone, Cem has come": now},
           marks={"Bob has gone, Cem has come": both},
           row_names=["Ann", "Bob", "Cem"], columns="blocks of the memory",
           legend="two owners, and neither of them knows",
           title="Four of Ann's blocks get a second owner",
           alt="Two grids of three requests by twelve blocks. On the left, "
               "Ann and Bob share the first four blocks. On the right, Bob "
               "is gone, and the first four, which are crossed, belong to "
               "both Ann and Cem.")

# %% [markdown] trap="13.1" role="repair"
# Count the requests that read each block (a *reference count*). The count is one when a
# block is taken and rises by one for each request that shares the block. The block is
# free when its last reader leaves:

# %% trap="13.1" role="repair"
class CountedPool(Pool):
    """A pool that knows how many requests read a block."""

    def __init__(self, blocks):
        super().__init__(blocks)
        self.readers = Counter()

    def leave(self, table):
        """A request gives up the blocks of its table."""
        self.readers.subtract(table)
        self.free += [b for b in table if self.readers[b] == 0]

# %% trap="13.1" role="repair"
pool = CountedPool(12)
ann = admit(pool, ann_ids)
pool.readers.update(ann)
bob = admit(pool, bob_ids, shared=ann[:4])
pool.readers.update(bob)
pool.leave(bob)
cem = admit(pool, cem_ids)
pool.readers.update(cem)
print("Ann reads ", repr(reads(pool, ann)))

# %% trap="13.1" role="repair"
claim("number of blocks in both Ann's table and Cem's table when readers "
      "are counted", len({*ann} & {*cem}), expected=0)

# %% [markdown] trap="13.1" role="repair"
# Now bring the fault back:

# %% trap="13.1" role="repair"
def next_letter(pool, table, ids):
    """Distribution of the letter after ids, from the blocks of a table."""
    cache = pool.read(table, len(ids) - 1)
    return gpt(ids[None, -1:], cache)[0, -1].double().softmax(-1)

def variation(p, q):
    """Total variation between distributions (..., V)."""
    return (p - q).abs().sum(-1) / 2

true_next = next_letter(pool, ann, ann_ids)
pool.free += ann[:4]                              # the fault again
pool.free.sort()
cem = admit(pool, cem_ids)
moved = variation(next_letter(pool, ann, ann_ids), true_next).item()
print(f"probability that moves: {100 * moved:.0f} %")

# %% trap="13.1" role="repair"
measured("13.1", 1)

# %% trap="13.1" role="repair"
claim("total variation between Ann's next-letter distributions with and "
      "without the fault", moved, above=0.005, below=0.3)

# %% [markdown] trap="13.1" role="more" topics="what the model makes of it · blocks given twice · a block that is half full"
# What does the fault do to Ann's answer? Cem's letters are now where Ann's request reads
# the system prompt, so her next letter has a different distribution. To measure how
# different the two distributions are, add up the absolute differences of their
# probabilities and halve the sum. The result is the *total variation*. It is 0 for equal
# distributions and 1 for distributions that have no letter in common.

# %% trap="13.1" role="more"
claim("number of letters in the blocks of Ann's prompt that are not from "
      "Ann's prompt", foreign.sum(), above=10)

# %% [markdown] trap="13.1" role="more"
# Reference counting can also go wrong in other ways. If a new block starts with a count
# of zero and is not shared, it is never freed, and the server stops when its memory is
# used up. If a table is given back twice, once at a *preemption* (when the request had to
# make room) and again at the request's end, the second return frees blocks that a
# different request has taken in the meantime. If a shared last block is only half full,
# the server has to copy it before one of its readers writes more. Otherwise, two requests
# write to the same place.

# %% trap="13.1" role="exercise" points=4 difficulty=3 minutes=14
class Blocks:
    """Manage the n blocks of a paged cache, numbered 0 to n - 1. At first
    all blocks are free.

    take(k) returns a list of k different free blocks. Each block taken now
    has one reader. If fewer than k blocks are free, raise MemoryError and
    take none. share(table, k) returns a new list of the first k blocks of a
    table in use. Each block shared now has one more reader. give(table)
    removes one reader from each block of the table. A block without readers
    is free again. If a block of the table has no reader, raise ValueError
    and give none back. left() returns the number of free blocks.

    No method changes a table. A table can be joined from several lists and
    can grow later. It contains no block twice, and only blocks from 0 to
    n - 1. Objects do not affect each other.

    Example: with n 3, after a = take(2), b = share(a, 1) and give(a),
    left() is 2; after give(b) it is 3.
    """

    def __init__(self, n: int) -> None:
        # BEGIN SOLUTION
        self.readers = [0] * n

    def take(self, k: int) -> list:
        free = [b for b, count in enumerate(self.readers) if count == 0]
        if len(free) < k:
            raise MemoryError(f"{k} blocks wanted, {len(free)} are free")
        for block in free[:k]:
            self.readers[block] = 1
        return free[:k]

    def share(self, table: list, k: int) -> list:
        for block in table[:k]:
            self.readers[block] += 1
        return table[:k]

    def give(self, table: list) -> None:
        if not all(self.readers[block] for block in table):
            raise ValueError(f"given back twice: {table}")
        for block in table:
            self.readers[block] -= 1

    def left(self) -> int:
        return self.readers.count(0)
    # END SOLUTION

# %% [markdown] trap="13.1" role="hint"
# 1. You need five methods: `__init__(self, n)`, `take`, `share`, `give` and `left`. For
#    each block, keep one number: how many requests read the block.
# 2. A block that nobody reads is free. `take` sets a block's number to 1, `share` adds
#    1, and `give` subtracts 1.
# 3. Check before you change anything. Are enough blocks free? Does every block have a
#    reader? Only then change the counts.

# %% [markdown] trap="13.1" role="keep"
# **Keep:** A shared cache block belongs to every request that reads it. A request that
# finishes gives up only its own claim; the block is free when the last claim is gone.
# **In your own code:** After each step, count how often each block occurs across all
# tables, and compare this number with its reference count. A block that is in two
# tables but has a count of one shows the fault. **Source:** [Kwon et al. 2023,
# "Efficient Memory Management for Large Language Model Serving with
# PagedAttention"](https://arxiv.org/abs/2309.06180). **Seen in the wild:** In
# [Wenyueh/MinivLLM 84](https://github.com/Wenyueh/MinivLLM/pull/84), new blocks started
# with a count of zero, and blocks with one reader were never freed.

# %% [markdown] role="concept"
# ## Prompt and dice
#
# From here on, the server writes answers letter by letter, and each letter is sampled.
# Every request brings its own random numbers, its *dice*: one number between 0 and 1 for
# each letter of the answer. The chosen letter is the first one whose cumulative
# probability exceeds that number. So the prompt and the dice determine the answer. Such a
# server is easy to test, because its letters must be the same, apart from rounding,
# whatever happens to its memory.

# %% role="concept"
def pick(probs, number):
    """The first letter (...,) whose cumulative probability > number."""
    passed = probs.double().cumsum(-1) <= number
    return passed.sum(-1).clamp(max=V - 1)

def same(a, b):
    """Fraction of letters that agree."""
    return (a == b).float().mean().item()

# %% role="concept"
def write(model, ids, dice, cache=None):
    """len(dice) letters after ids (B, T), with these dice for all rows."""
    cache = Cache() if cache is None else cache
    logits, written = model(ids, cache)[:, -1], []      # prefill
    for number in dice:
        new = pick(logits.softmax(-1), number)[:, None]
        written.append(new)
        logits = model(new, cache)[:, -1]               # decode
    return torch.cat(written, 1)

prompt, dice = rows(1, 24, kept_back), torch.rand(40)
answer = write(gpt, prompt, dice)
print(repr(text.decode(prompt[0])), "->", repr(text.decode(answer[0])))

# %% role="concept" tags=["plumbing"]
afresh = prompt                    # no cache: read everything each time
for number in dice:
    new = pick(gpt(afresh)[:, -1:].softmax(-1), number)
    afresh = torch.cat([afresh, new], 1)

# %% role="concept"
claim("fraction of letters that are the same with and without a cache",
      same(afresh[:, 24:], answer), above=0.99)

# %% [markdown] trap="13.2" role="situation" core=true fault="a prefix-cache key leaves out what stood before the block" symptom="answers differ with the prefix cache on: a hit for a prompt that was never served"
# ## Have we read this before?
#
# Many prompts begin with the same text. So when nobody reads a block any more, the server
# does not wipe it. It keeps the block until the memory is needed, and stores it under a
# *key* made from the block's letters. A new prompt is also cut into blocks, and a block
# whose key is already known need not be computed again. (From here on, a block has eight
# letters.)
#
# In the code below, the first prompt consists of three blocks of a document and a
# question about the document. The second prompt contains the same blocks with the first
# two swapped.

# %% trap="13.2" role="break"
def key_alone(ids, size=8):
    """A key for each full block of ids (T,): its letters."""
    return [hash(tuple(block.tolist()))
            for block in ids.split(size) if len(block) == size]

# %% trap="13.2" role="break"
def prefill(model, store, ids, keys_of):
    """Logits after ids (1, T), the cache, and how many letters it had."""
    keys, found = keys_of(ids[0]), []
    for key in keys[:(ids.shape[1] - 1) // 8]:    # leave one letter
        if key not in store:
            break
        found.append(store[key])
    cache = joined(found)
    hit = length(cache)
    logits = model(ids[:, hit:], cache)[:, -1]
    for at, key in enumerate(keys):
        store.setdefault(key, part(cache, 8 * at, 8 * at + 8))
    return logits, cache, hit

# %% trap="13.2" role="break"
one, two, three = rows(3, 8, kept_back)
question = rows(1, 4, kept_back)[0]
first = torch.cat([one, two, three, question])[None]
second = torch.cat([two, one, three, question])[None]

store = {}
prefill(gpt, store, first, key_alone)             # fills the store
served, _, hits = prefill(gpt, store, second, key_alone)

# %% trap="13.2" role="guess"
guess("13.2", "Which answer does the second request get?",
      choices=["the same answer as the first request",
               "the same answer as without the store",
               "noise that fits neither prompt"])

# %% trap="13.2" role="look"
def continued(logits, cache, dice):
    """len(dice) more letters, from these logits and this cache."""
    written = []
    for number in dice:
        written.append(pick(logits.softmax(-1), number))
        logits = gpt(written[-1][:, None], cache)[:, -1]
    return torch.cat(written)

numbers = torch.rand(40)
alone = write(gpt, second, numbers)[0]
stored = continued(*prefill(gpt, store, second, key_alone)[:2], numbers)
before = write(gpt, first, numbers)[0]
print(f"{hits} of {second.shape[1]} letters found")
print("no store:     ", repr(text.decode(alone)))
print("with store:   ", repr(text.decode(stored)))
print("first request:", repr(text.decode(before)))

# %% trap="13.2" role="look"
measured("13.2", 0)

# %% trap="13.2" role="look"
claim("number of letters found in the store for a prompt that was never "
      "served", hits, expected=24)

# %% [markdown] trap="13.2" role="why"
# A key or a value need not depend only on the letters in its block. Keys are computed for
# a certain position, and from the second layer on, keys and values also depend on
# everything before that position. After a different prefix, the same eight letters have
# different keys and values there. The store returns the keys and values of the first
# request, still rotated for their old positions. Attention does not depend on the order
# of keys and values, so the second request gets the first request's answer:

# %% trap="13.2" role="why"
claim("fraction of letters that are the same in the second answer and in "
      "the first", same(stored, before), above=0.95)

# %% [markdown] trap="13.2" role="why"
# In the tree below, blocks with the same letters but different prefixes are different
# nodes. A key made only from a block's own letters gives these nodes a single entry in
# the store.

# %% trap="13.2" role="why"
draw_tree({"start": "", "A": "1st, at 0", "B after A": "1st, at 8",
           "C after A, B": "1st, at 16", "B": "2nd, at 0",
           "A after B": "2nd, at 8", "C after B, A": "2nd, at 16"},
          [("start", "A"), ("A", "B after A"),
           ("B after A", "C after A, B"), ("start", "B"),
           ("B", "A after B"), ("A after B", "C after B, A")],
          cuts=[("start", "B"), ("B", "A after B"),
                ("A after B", "C after B, A")],
          marks=["B", "A after B", "C after B, A"],
          cut_name="found under a key that belongs to the other branch",
          title="A key made of the letters alone finds the wrong branch",
          alt="A tree of blocks. From the start, one branch is A, then B "
              "after A, then C after both: the first request. The other "
              "is B, then A after B, then C after both: the second "
              "request, which is marked. Its edges are dashed and crossed: "
              "these blocks are found under keys that belong to the "
              "first branch.")

# %% [markdown] trap="13.2" role="repair"
# Include the previous block's key in each block's key. Then two keys are equal if and
# only if all letters from the start of the prompt to the end of the block are equal:

# %% trap="13.2" role="repair"
def key_chain(ids, size=8, made_by=""):
    """Keys that cover everything before a block, and who computed it."""
    keys, parent = [], made_by.encode()
    for block in ids.split(size):
        if len(block) == size:
            parent = hashlib.sha256(
                parent + repr(block.tolist()).encode()).digest()
            keys.append(parent)
    return keys

store = {}
prefill(gpt, store, first, key_chain)
logits, cache, false_hits = prefill(gpt, store, second, key_chain)
chained = continued(logits, cache, numbers)
again = prefill(gpt, store, first, key_chain)[2]
print("with store:", repr(text.decode(chained)))

# %% trap="13.2" role="repair"
claim("fraction of letters that are the same with and without the store, "
      "with chained keys", same(chained, alone), above=0.99)

# %% [markdown] trap="13.2" role="more" topics="how far off the next letter is · adapters, images, new weights · a prompt that is found whole"
# How wrong does the distribution of the next letter become? The test uses prompts of
# three blocks, with the first two swapped:

# %% trap="13.2" role="more" tags=["plumbing"]
def off(model, keys_first, keys_second, swap):
    """Mean total variation of the next letter, over eight prompts."""
    total = 0
    for a, b, c, tail in rows(32, 8, kept_back).view(8, 4, 8):
        store, before = {}, torch.cat([a, b, c, tail[:4]])[None]
        after = torch.cat([b, a, c, tail[:4]])[None] if swap else before
        prefill(gpt, store, before, keys_first)
        got, true = (prefill(model, s, after, keys_second)[0].double()
                     for s in (store, {}))
        total += (got.softmax(-1) - true.softmax(-1)).abs().sum() / 2
    return (total / 8).item()

# %% trap="13.2" role="more" tags=["plumbing"]
tuned = copy.deepcopy(gpt)                    # an adapter: rank 4 on qkv
for block in tuned.blocks:
    down, up = torch.randn(4, 64), torch.randn(192, 4)
    block.qkv.weight += up @ down / 16

wrong_order = off(gpt, key_alone, key_alone, swap=True)
wrong_maker = off(tuned, key_chain, key_chain, swap=False)
right_maker = off(tuned, key_chain,
                  lambda ids: key_chain(ids, made_by="tuned"), swap=False)

# %% trap="13.2" role="more"
claim("total variation from the true next-letter distribution, with the "
      "blocks swapped", wrong_order, above=0.005)
claim("total variation from the true next-letter distribution, with the "
      "adapter not in the key", wrong_maker, above=0.02)
claim("total variation from the true next-letter distribution, with the "
      "adapter in the key", right_maker, below=1e-4)
claim("number of letters found in the store after the swap, with chained "
      "keys", false_hits, expected=0)
claim("number of letters found in the store for a repeated prompt, with "
      "chained keys", again, expected=24)

# %% [markdown] trap="13.2" role="more"
# The second of these claims shows the same fault in a different form: the letters agree,
# but their keys and values were computed with different weights. An *adapter* (LoRA) is a
# small change to the weights, which a request can ask for. Everything that changes the
# keys and values belongs in the cache key: the adapter, an image in the prompt, the
# version of the weights. It is enough to include all of this in the key of the first
# block, because the chain passes it on. In this design, as in vLLM's, only *full* blocks
# have a key. And if the whole prompt is found in the store, no letter is left to compute,
# so there are no logits. Python's `hash` is not a safe key: `hash((-1,)) == hash((-2,))`.

# %% trap="13.2" role="exercise" points=3 difficulty=2 minutes=12
def block_keys(ids: list, size: int, extra: str) -> list:
    """Compute the key of each full block of a prompt, for a prefix cache.

    ids: a list of tokens, possibly empty. Tokens are integers and can be
    negative. A block consists of `size` consecutive tokens. A shorter
    remainder at the end has no key. extra: a text, such as the name of an
    adapter.

    For the same size and extra, two keys are equal if and only if all
    tokens up to the end of the block are equal. For the same size, a
    different extra makes every key different. Both rules hold however many
    blocks there are. A key can be used as a dict key. repr(key) has at most
    200 characters, however long ids and extra are. ids is not changed.

    Example: ids [5, 6, 7, 8, 9] and size 2 give two keys. The second
    differs from the second key of [0, 6, 7, 8], although both blocks are
    [7, 8].
    """
    # BEGIN SOLUTION
    keys, key = [], extra
    for end in range(size, len(ids) + 1, size):
        text = repr((key, ids[end - size:end]))
        key = hashlib.sha256(text.encode()).hexdigest()
        keys.append(key)
    return keys
    # END SOLUTION

# %% [markdown] trap="13.2" role="hint"
# 1. The cache entries of a block depend on every token before it. So include the previous
#    block's key in each block's key, starting at the front.
# 2. Start the chain with `extra`, so that every key depends on `extra`.
# 3. Python's `hash` is made for dicts, not for telling texts apart: `hash(-1) ==
#    hash(-2)`. `hashlib.sha256(repr(what).encode()).hexdigest()` is short, and no two
#    texts are known that give the same value.

# %% [markdown] trap="13.2" role="keep"
# **Keep:** A cache key has to cover everything that the cached values were computed from:
# all letters so far, any images, and the weights. **In your own code:** Serve a prompt,
# then a second prompt with the same middle but a different beginning. Serve the second
# prompt with the prefix cache on and off, and compare the logits. **Source:** [vLLM,
# "Automatic Prefix Caching"](https://docs.vllm.ai/en/latest/design/prefix_caching/).
# **Seen in the wild:** In [vllm-project/vllm
# 30931](https://github.com/vllm-project/vllm/issues/30931), two adapters with the same
# name shared blocks, a fault that took eight hours to find. In [vllm-project/vllm
# 44250](https://github.com/vllm-project/vllm/issues/44250), the key of
# an external cache left out the adapter.

# %% [markdown] role="concept"
# ## A far cheaper model
#
# Besides the GPT, there is a table that says how often each letter follows every other
# letter. The table needs neither a cache nor a network. Some of the traps below sample
# letters from the table.

# %% role="concept"
counts = torch.bincount(V * train_ids[:-1] + train_ids[1:], minlength=V * V)
pairs = counts.view(V, V).double() + 0.05         # (letter, next letter)
pairs /= pairs.sum(1, keepdim=True)

# %% [markdown] trap="13.3" role="situation" fault="a request's seed depends on who shares its batch" symptom="the same prompt and seed give another answer when the server is busy"
# ## The same seed
#
# Your server accepts a `seed` with each request and uses it to seed a generator. A tester
# sends a prompt with seed 42 and notes the answer. At noon, she sends the same prompt
# again, while three other requests are being served. The logits of her row are the same
# to the last digit.
#
# "Same prompt, same seed, same probabilities," she says, "so it is the same answer."

# %% trap="13.3" role="break"
def sample(starts, n, seed):
    """n letters after each start; one call draws for all rows."""
    die = torch.Generator().manual_seed(seed)
    letter, answers = torch.tensor(starts), []
    for _ in range(n):
        letter = torch.multinomial(pairs[letter], 1, generator=die)[:, 0]
        answers.append(letter)
    return torch.stack(answers, 1)                # (rows, n)

hers, *others = text.encode("tqxz").tolist()
quiet = sample([hers], 400, seed=42)[0]
noon = sample([hers, *others], 400, seed=42)[0]   # she is row 0

# %% trap="13.3" role="guess" quoted="wrong"
guess("13.3",
      "At what percentage of positions do the tester's two answers have "
      "the same letter?", unit="%")

# %% trap="13.3" role="look"
percent = 100 * same(quiet, noon)
print("quiet:", repr(text.decode(quiet[:50])))
print("noon: ", repr(text.decode(noon[:50])))

# %% trap="13.3" role="look"
measured("13.3", percent, right=(4, 12))

# %% trap="13.3" role="look"
claim("fraction of letters that stay the same when three other requests "
      "join the batch", percent / 100, below=0.15)

# %% [markdown] trap="13.3" role="why"
# Her two answers agree at about as many positions as two unrelated texts. (Even
# unrelated texts agree now and then, because blanks and the letter e are frequent.) On
# a CPU, a generator is like a tape of random numbers, and each call to `multinomial` uses
# one piece of the tape per row (one number for each letter). When the tester's request is
# alone, it gets every piece. When it is one of four, the three pieces after each of its
# own go to the other requests. So from the second letter on, her request gets different
# pieces of the tape.

# %% trap="13.3" role="why"
def tape(people):
    """The first 16 pieces of the tape, and who gets them."""
    return [(i, i + 1, "hers" if i % people == 0 else "not hers")
            for i in range(16)]

# %% trap="13.3" role="why"
draw_lanes({"alone": tape(1), "among four": tape(4)}, unit="pieces",
           marks=["not hers"],
           title="Among four, she gets every fourth piece of the tape",
           alt="Two lanes of sixteen pieces of the tape. Alone, every "
               "piece is hers. Among four requests, only every fourth "
               "piece is.")

# %% [markdown] trap="13.3" role="repair"
# Give each request its own generator, and let the generator travel with the request, not
# with the row:

# %% trap="13.3" role="repair"
def sample_each(starts, n, generators):
    """n letters after each start, with a generator for each row."""
    letters, answers = list(starts), []
    for _ in range(n):
        letters = [torch.multinomial(pairs[a], 1, generator=die).item()
                   for a, die in zip(letters, generators)]
        answers.append(letters)
    return torch.tensor(answers).T

def seeded(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]

quiet = sample_each([hers], 100, seeded(42))[0]
noon = sample_each([*others, hers], 100, seeded(1, 2, 3, 42))[3]
print("quiet:", repr(text.decode(quiet[:50])))
print("noon: ", repr(text.decode(noon[:50])))

# %% trap="13.3" role="repair"
claim("fraction of letters that stay the same, with one generator per "
      "request", same(quiet, noon), expected=1)

# %% [markdown] trap="13.3" role="more" topics="a fresh generator at each step · seed + step · requests that move"
# You may not want to store a generator state for every request. If you build a fresh
# generator from the same seed at each step, every step gets the same random number.
# Such an answer is reproducible, but it uses only a few letters. With `seed + step`,
# the numbers differ from step to step, but seed `43` gets each number of seed `42` one
# step earlier. Mix the seed and the step into one number instead:

# %% trap="13.3" role="more"
def answer_with(seed_of, seed, n=200):
    """n letters, with a new generator at each step."""
    letter, answer = hers, []
    for step in range(n):
        die = torch.Generator().manual_seed(seed_of(seed, step))
        letter = torch.multinomial(pairs[letter], 1, generator=die).item()
        answer.append(letter)
    return answer

def number_of(seed, step):
    """One number, mixed from the seed and the step."""
    mixed = hashlib.sha256(f"{seed} {step}".encode()).digest()
    return int.from_bytes(mixed[:7], "big")

# %% trap="13.3" role="more"
kinds = {name: len({*answer_with(rule, 42)}) for name, rule in {
    "same seed each step": lambda seed, step: seed,
    "seed + step": lambda seed, step: seed + step,
    "seed and step mixed": number_of}.items()}
print(kinds)

# %% trap="13.3" role="more"
claim("number of different letters among 200, with the same seed at each "
      "step", kinds["same seed each step"], below=6)
claim("number of different letters among 200, with seed and step mixed",
      kinds["seed and step mixed"], above=15)

# %% [markdown] trap="13.3" role="more"
# One generator for each *row* of the batch works until a running request moves to another
# row, or a new request takes over a row whose generator is not seeded again. Whatever
# belongs to a request (random numbers, stop words, grammar masks) has to move with the
# request. Otherwise, it affects a different user's answer.

# %% trap="13.3" role="exercise" points=3 difficulty=2 minutes=12
def draw(probs: torch.Tensor, seeds: list, steps: list) -> torch.Tensor:
    """Draw one token for each row of a batch: (B,) int64, each from its own
    row.

    probs: (B, V) float64. Each row sums to 1, up to rounding, and may
    contain zeros, which are never drawn. Row r is for token number steps[r]
    of a request with seed seeds[r]; both are from 0 to 2**31 - 1.

    The token depends only on probs[r], seeds[r] and steps[r], not on other
    rows, the row's position, the batch size or earlier draws. The tokens of
    many steps of one request follow the row's probabilities. The tokens of
    many requests at one step also follow their rows' probabilities. No two
    pairs of seed and step use the same random numbers, even if the pairs
    are neighbours, one request is some steps behind the other, or seed and
    step are exchanged. The generators of torch, numpy and Python do not
    advance. Inputs are not changed.

    Example: probs [[0., 1.], [1., 0.]], any seeds and steps give [1, 0].
    """
    # BEGIN SOLUTION
    tokens = []
    for row, seed, step in zip(probs, seeds, steps):
        dice = np.random.Generator(np.random.Philox(key=seed, counter=step))
        ends = row.cumsum(0)
        tokens.append((ends <= dice.random() * ends[-1]).sum())
    return torch.tensor(tokens)
    # END SOLUTION

# %% [markdown] trap="13.3" role="hint"
# 1. If several rows share a generator, the number that a row gets depends on the row's
#    position in the batch. Compute the random number of each row from its own seed and
#    step, and from nothing else.
# 2. `seed + step` is not enough: request 42 at step 8 and request 43 at step 7 would draw
#    the same number. `np.random.default_rng([seed, step]).random()` mixes the two;
#    `np.random.Philox(key=seed, counter=step)` is made for exactly this.
# 3. Compare the random number with the cumulative probabilities, `row.cumsum(0)`. The
#    token is the number of these sums that do not exceed the random number.

# %% [markdown] trap="13.3" role="keep"
# **Keep:** The letters that a request draws may depend only on that request's own seed,
# step and probabilities. **In your own code:** Send one seeded request alone, then in
# the first and in the last row of a full batch, and compare the answers. If your
# kernels' results depend on the batch size, look at the first letter that differs; there,
# a change in the last bits of the logits has to flip the draw. **Source:** [Salmon et
# al. 2011, "Parallel random numbers: as easy as 1, 2,
# 3"](https://doi.org/10.1145/2063384.2063405), on generators that are functions of a
# key and a counter. **Seen in the wild:** In [vllm-project/vllm
# 51226](https://github.com/vllm-project/vllm/issues/51226), the CPU version ignored a
# seed when another request in the batch had none. [NVIDIA/TensorRT-LLM
# 17172](https://github.com/NVIDIA/TensorRT-LLM/pull/17172) derives random numbers from
# seeds and counters, and discusses what happens when slots are reused.

# %% [markdown] trap="13.4" role="situation" fault="streamed tokens are decoded and searched one by one" symptom="replacement characters and stop words in streamed text, and none in the whole text"
# ## Word for word
#
# Nobody likes to wait for a whole answer, so you send each token as soon as the model has
# written it. The tokens come from a byte-level tokenizer, so each token is a few bytes.
# The answer has to end before the stop word `\nUser:`, because the model would otherwise
# continue with the user's next message.
#
# Your test decodes the whole list of tokens at once and compares the result with the
# text. The test passes.

# %% trap="13.4" role="break" tags=["plumbing"]
def learn(data, n):
    """The first n merges of byte-pair encoding."""
    parts, merges = [bytes([b]) for b in data], []
    for _ in range(n):
        merges.append(max(Counter(zip(parts, parts[1:])).items(),
                          key=lambda pair: (pair[1], pair[0]))[0])
        parts = merged(parts, merges[-1])
    return merges

def merged(parts, pair):
    """The parts, with every such pair of neighbours joined."""
    done = []
    for b in parts:
        if done and (done[-1], b) == pair:
            done[-1] = pair[0] + b
        else:
            done.append(b)
    return done

# %% trap="13.4" role="break"
phrases = ["Grüße aus Zürich:", "das kostet 5 €.", "你好,世界!", "Привет, мир!",
           "naïve café,", "日本語のテキスト", "güneş doğdu,", "żółć", "🙂🎉"]
order = torch.randperm(3 * len(phrases)).tolist()
body = " ".join(phrases[i % len(phrases)] for i in order)
stop = "\nUser:"
merges = learn(body.encode(), 100)
tokens = [bytes([b]) for b in (body + stop + " my password").encode()]
for pair in merges:
    tokens = merged(tokens, pair)

# %% trap="13.4" role="break"
def stream(tokens):
    """Pieces of text, until the stop word appears."""
    for token in tokens:
        piece = token.decode("utf-8", "replace")
        if stop in piece:
            return
        yield piece

# %% trap="13.4" role="guess"
guess("13.4", "What does the client of the stream see?",
      choices=["the intact text, ending before the stop word",
               "broken letters, the stop word and the text after it",
               "broken letters, ending before the stop word",
               "the text up to the first broken letter, then an error"])

# %% trap="13.4" role="look"
received = "".join(stream(tokens))
broken = received.count("\ufffd")
print(received[:90])
print("...", repr(received[-24:]))
print("letters broken:", broken)

# %% trap="13.4" role="look"
measured("13.4", 1)

# %% trap="13.4" role="look"
claim("number of broken letters in the stream", broken, above=3)

# %% [markdown] trap="13.4" role="why"
# In UTF-8, a letter outside ASCII takes two to four bytes, and a token may end in the
# middle of these bytes. Each part of the letter then becomes one or more replacement
# characters, and no later step repairs this. Likewise, a stop word may be spread over
# several tokens, and then no single piece contains it. It is not enough to search in the
# text *so far*, because the first tokens of the stop word have been sent before the last
# token arrives. Hold back everything that can still become part of a letter or of a stop
# word.

# %% trap="13.4" role="why"
pieces = ["Z", "\\xc3", "\\xbc", "rich", "\\nUs", "er:"]
sent = {"by token": ["Z", "\ufffd", "\ufffd", "rich", "\\nUs", "er:"],
        "held back": ["Z", "", "ü", "rich", "", ""]}

# %% trap="13.4" role="why"
draw_ranks({"six tokens": [pieces, *sent.values()]},
           ranks=["token", *sent], marks={"six tokens": [
               (1, 1), (1, 2), (1, 4), (1, 5)]},
           title="What may still change has to wait",
           alt="Three rows over six tokens: the bytes that arrive, what is "
               "sent token by token, and what is sent when unfinished "
               "endings are held back. Token by token, two halves of a "
               "letter are broken and the stop word is sent in two parts. "
               "With unfinished endings held back, neither happens.")

# %% [markdown] trap="13.4" role="repair"
# An incremental decoder keeps the bytes of an unfinished letter. You also hold back the
# longest ending of the text that could begin a stop word, until that ending is a complete
# stop word or can no longer become one:

# %% trap="13.4" role="repair"
def held_stream(tokens):
    """Pieces of text, each as early as it can be sent."""
    decoder, waiting = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for token in tokens:
        waiting += decoder.decode(token)
        if stop in waiting:
            yield waiting[:waiting.index(stop)]
            return
        hold = max(n for n in range(len(stop))
                   if waiting.endswith(stop[:n]))
        yield waiting[:len(waiting) - hold]
        waiting = waiting[len(waiting) - hold:]
    yield waiting + decoder.decode(b"", True)

# %% trap="13.4" role="repair"
repaired = "".join(held_stream(tokens))
print(repaired[:90])
print("...", repr(repaired[-24:]))

# %% trap="13.4" role="repair"
claim("does the stream equal the text before the stop word",
      repaired == body, expected=True)

# %% [markdown] trap="13.4" role="more" topics="letters that vanish · a search in the text so far"
# Two other repairs come to mind, and both fail. `errors="ignore"` silently drops broken
# letters. Searching all the text so far finds the stop word only after most of the word
# has been sent:

# %% trap="13.4" role="more"
def late_stream(tokens):
    """Search the whole text, although its beginning has been sent."""
    decoder, sent = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for token in tokens:
        piece = decoder.decode(token)
        if stop in sent + piece:
            return sent
        sent += piece
    return sent

ignored = "".join(t.decode("utf-8", "ignore") for t in tokens)
leaked = late_stream(tokens).removeprefix(body)
print("leaked:", repr(leaked))

# %% trap="13.4" role="more"
claim("number of letters lost with errors='ignore'",
      len(body) - len(ignored.split(stop)[0]), above=0)
claim("number of the stop word's letters that are sent if you search in "
      "the text so far", len(leaked), above=2)

# %% trap="13.4" role="exercise" points=4 difficulty=3 minutes=15
class Stream:
    """Send the text of an answer while it is written, up to the first stop
    word.

    stops: a list of texts, possibly empty. No stop word is empty, is part
    of another one or contains "\\ufffd". stops is not changed.

    push(token): token holds the next bytes of the answer in UTF-8, cut
    anywhere. push returns the text that can be sent now. Bytes that are not
    UTF-8 become "\\ufffd". Sent text is never taken back, so push keeps the
    ending that can become a stop word. push also keeps the bytes of an
    unfinished letter. push keeps nothing else. Neither the first stop word
    nor what follows is sent. From then on, push returns "". end() is called
    once, when the answer is over, and returns the text still kept. At the
    end, an unfinished letter becomes "\\ufffd". Objects do not affect each
    other.

    Example: stops ["\\nUser"], push(b"Hi\\nU") "Hi", push(b"se") "",
    push(b"d!") "\\nUsed!", end() "".
    """

    def __init__(self, stops: list) -> None:
        # BEGIN SOLUTION
        self.stops, self.held, self.over = stops, "", False
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: bytes, final: bool = False) -> str:
        self.held += self.decoder.decode(token, final)
        found = [self.held.find(s) for s in self.stops if s in self.held]
        if self.over or found:
            text = "" if self.over else self.held[:min(found)]
            self.over, self.held = True, ""
            return text
        begun = [n for s in self.stops for n in range(len(s))
                 if self.held.endswith(s[:n]) and not final]
        cut = len(self.held) - max(begun, default=0)
        text, self.held = self.held[:cut], self.held[cut:]
        return text

    def end(self) -> str:
        return self.push(b"", True)
    # END SOLUTION

# %% [markdown] trap="13.4" role="hint"
# 1. You need three methods: `__init__(self, stops)`, `push` and `end`.
#    `codecs.getincrementaldecoder("utf-8")("replace")` keeps the bytes of an unfinished
#    letter until the rest arrives; `decode(b"", True)` replaces such bytes by `"\ufffd"`.
# 2. Append the decoded text to what you hold back. If the result contains a stop word,
#    send everything before the first stop word. After that, send nothing.
# 3. Otherwise hold back the longest ending that could begin a stop word, and send the
#    rest. Test `held.endswith(stop[:n])` for each `n` below `len(stop)`.

# %% [markdown] trap="13.4" role="keep"
# **Keep:** Decode a stream as one text, and hold back every byte that a later byte can
# still turn into something else. **In your own code:** Take a text with two-, three-
# and four-byte letters, cut it at every byte, push the pieces one by one, and compare
# the output with the text. A test that decodes the whole list at once cannot reveal the
# fault. **Source:** Python's
# [`codecs.IncrementalDecoder`](https://docs.python.org/3/library/codecs.html#incrementaldecoder-objects).
# **Seen in the wild:** In [ai-dynamo/dynamo
# 12630](https://github.com/ai-dynamo/dynamo/issues/12630), 5 to 13 syllables of every
# Korean answer in a user's tests were broken. In [vllm-project/vllm
# 3574](https://github.com/vllm-project/vllm/issues/3574), the server sent letters of a
# stop word before the stop word was complete.

# %% [markdown] trap="13.10" role="situation" fault="a grammar mask at each step changes which answer is likely" symptom="constrained decoding gives valid answers, and picks ones that the model finds unlikely"
# ## One of twelve words
#
# A program will parse the answer, which has to be one of twelve words. At each step, you
# mask every letter that does not continue one of the twelve words, and sample from the
# remaining letters. Now every answer is valid. The model's *own odds* of the twelve words
# follow from the probability that the model gives to each whole word.
#
# A colleague who reviews the change writes: "You have not only forbidden the other words,
# you have also changed the odds among the twelve."

# %% trap="13.10" role="break"
known = sorted({w for w in re.findall(r"\b[a-z]{5}\b",
                                    text.decode(train_ids))})
opening = text.encode("The answer is ")

def twelve():
    """Twelve words, and all letters' log-probabilities at each step."""
    words = [known[i] for i in torch.randperm(len(known))[:12]]
    ids = torch.stack([text.encode(w) for w in words])        # (12, 5)
    read = torch.cat([opening.expand(12, -1), ids], 1)        # one call
    steps = gpt(read)[:, len(opening) - 1:-1].double().log_softmax(-1)
    return words, ids, steps                                  # (12, 5, V)

# %% trap="13.10" role="break"
def own(ids, steps):
    """The model's log-probability of each word, summed over its letters."""
    return steps.gather(2, ids[..., None])[..., 0].sum(1)

def masked(words, ids, steps):
    """Probability of each word when every step allows only some letters."""
    log = own(ids, steps)
    for w, word in enumerate(words):
        for i in range(5):
            allowed = {x[i] for x in words if x[:i] == word[:i]}
            letters_left = text.encode("".join(sorted(allowed)))
            log[w] -= steps[w, i, letters_left].logsumexp(0)
    return log.exp()

sets = [twelve() for _ in range(8)]
drawn = [masked(*one) for one in sets]
meant = [own(*one[1:]).softmax(0) for one in sets]   # given validity

# %% trap="13.10" role="guess" quoted="right"
guess("13.10",
      "Compare the masked odds of the twelve words with the model's own. "
      "How far apart are they, from 0 % (equal) to 100 % (no overlap)?",
      choices=["about 5 %",
               "about 20 %",
               "about 50 %",
               "about 90 %"])

# %% trap="13.10" role="look"
apart = [variation(a, b).item() for a, b in zip(drawn, meant)]
moved = 100 * sum(apart) / len(apart)
words = sets[0][0]
for w in meant[0].argsort(descending=True)[:6].tolist():
    print(f"{words[w]}   the model {meant[0][w]:.2f}   "
          f"masked {drawn[0][w]:.2f}")
print(f"{moved:.0f} %, mean of eight sets of twelve words")

# %% trap="13.10" role="look"
measured("13.10", 2)

# %% trap="13.10" role="look"
claim("total variation between masked sampling and the model's own odds",
      moved / 100, above=0.35, below=0.7)

# %% [markdown] trap="13.10" role="why"
# The mask looks only one letter ahead. If only one of the words begins with a certain
# letter, all other letters of that word are forced. They get probability one, whatever
# the model thinks of them. So a word with a likely first letter and an absurd ending
# gains probability, and a word with an unlikely first letter and a likely ending loses
# probability.

# %% trap="13.10" role="why" tags=["plumbing"]
gains = (drawn[0] - meant[0]).argsort(descending=True)[:2].tolist()
likely = meant[0].argsort(descending=True).tolist()
four = [*[w for w in likely if w not in gains][:2], *gains]
spots = torch.arange(4)

# %% trap="13.10" role="why"
ax = new_axes("Masking letter by letter changes which word is likely",
              "word", "probability")
ax.bar(spots - 0.2, meant[0][four], width=0.4, color="C0",
       label="the model")
ax.bar(spots + 0.2, drawn[0][four], width=0.4, color="C1", hatch="//",
       label="masked letter by letter")
ax.set_xticks(spots, [words[w] for w in four])
ax.legend()
show(ax.figure, alt="Two bars for each of four words: its probability "
     "among the twelve according to the model, and under the mask. Two of "
     "the words are likely under the model; the other two gain most.")

# %% [markdown] trap="13.10" role="repair"
# If there are only a few possible answers, score each whole word and normalize once, over
# the words. Scoring all the words takes one call, as above, and no mask:

# %% trap="13.10" role="repair"
def score_whole(words, ids, steps, number):
    """The first word whose cumulative probability exceeds number."""
    chances = own(ids, steps).softmax(0)
    return words[int((chances.cumsum(0) <= number).sum())]

throws = (torch.arange(2000) + 0.5) / 2000         # evenly spread numbers
scored = Counter(score_whole(*sets[0], u) for u in throws)
shares = torch.tensor([scored[w] / 2000 for w in words])

# %% trap="13.10" role="repair"
claim("total variation from the model's own odds if whole words are "
      "scored", variation(shares, meant[0]), below=0.01)

# %% [markdown] trap="13.10" role="more" topics="answers that are too many to list"
# The masked probabilities also sum to one. So they form a distribution, but not the
# model's own:

# %% trap="13.10" role="more"
claim("sum of the masked probabilities", drawn[0].sum(), expected=1,
      within=1e-6)
claim("largest total variation, over eight sets of words, between masked "
      "odds and own odds", max(apart), above=0.3)

# %% [markdown] trap="13.10" role="more"
# If a grammar allows infinitely many answers, you cannot score them all. In that case,
# sample under the mask and multiply, over the steps, the total probability of the tokens
# that the mask allows. The smaller this product, the more the mask favoured the answer,
# and you can use the product to weight or reject answers. Most servers do neither, and
# for many uses, validity is enough. But do not read the resulting frequencies as the
# model's beliefs.

# %% trap="13.10" role="exercise" points=3 difficulty=2 minutes=10
def given_valid(logprob: Callable, words: list) -> torch.Tensor:
    """Compute the probability of each word, given that the model writes one
    of these words.

    words: different lists of one or more tokens, of any length. No word is
    the beginning of another. logprob(begin) returns the log-probabilities
    of the next token, (V,) float64, after the tokens in the list begin,
    which is [] for a word's first token. Some log-probabilities can be
    minus infinity, but at least one word is possible.

    Returns (len(words),) float64. The entries sum to 1. The sum is 1 even
    if every word is less likely than the smallest positive float. words and
    the results of logprob are not changed.

    Example: if 'ab' has the probability 0.5 * 0.2 and 'ba' 0.5 * 0.6,
    return [0.25, 0.75].
    """
    # BEGIN SOLUTION
    total = torch.tensor([
        sum(logprob(word[:i])[token] for i, token in enumerate(word))
        for word in words], dtype=torch.float64)
    return total.softmax(0)
    # END SOLUTION

# %% [markdown] trap="13.10" role="hint"
# 1. The model's probability of a word is the product of its tokens' probabilities, each
#    given the tokens before it. You need neither a mask nor a division along the way.
# 2. Divide only once, at the end, by the sum over the words.
# 3. Add log-probabilities instead of multiplying probabilities. `softmax` over these
#    sums then divides by the total without overflow or underflow.

# %% [markdown] trap="13.10" role="keep"
# **Keep:** A mask at each step makes every finished answer valid, but over several steps,
# it changes the odds. To get the model's own odds among the valid answers, score whole
# answers. **In your own code:** Compute the masked odds and the model's own odds for ten
# allowed answers, and compare them. **Source:** [Park et al. 2024, "Grammar-Aligned
# Decoding"](https://arxiv.org/abs/2405.21047). **Seen in the wild:** In
# [guidance-ai/guidance 564](https://github.com/guidance-ai/guidance/issues/564), a user
# asked for a word like `sky` and allowed `skill` and `cloud`. The model said `skill`,
# because `sk` is a likely beginning.

# %% [markdown] role="concept"
# ## Who may come in
#
# Decoding is expensive because it has to read so much from memory. One call reads the
# weights of every layer once, whether it processes one letter or a prompt of 24 letters.
# (The FLOPs below count the products with weights; the products of queries with keys are
# left out.)

# %% role="concept"
weights = sum(p.numel() for p in gpt.parameters())
per_letter = 2 * 2 * 64                      # layers, key and value, width
of_prompt, of_letter = (flops(lambda: gpt(prompt[:, :n]))
                        for n in (24, 1))
print(f"weights read in a call: {weights}; FLOPs: prefill {of_prompt}, "
      f"one letter {of_letter}; cache per letter: {per_letter} values")

# %% role="concept"
claim("FLOPs for a prefill of 24 letters, divided by FLOPs for one letter",
      of_prompt / of_letter, above=20)

# %% [markdown] role="concept"
# So several requests share a call, as the rows of a batch. The batch need not wait for
# its longest row. At every step, finished requests leave the batch and waiting ones
# take their slots. This is *continuous batching*. A scheduler decides which requests to
# admit. The server's memory has a fixed number of cache positions, and nobody knows how
# long an answer will be. The scheduler can admit every request that fits *now*, and
# evict a request when the others have grown. Later, the evicted request has to be read
# again from the beginning, unless its cache was copied elsewhere. Alternatively, the
# scheduler can reserve room for the longest possible answer.
#
# Under which of the two policies does the server write more letters in the same time, and
# by what factor? Decide before you look. In the simulation, a call takes 1 unit of time
# to read the weights, and 0.02 units more for each letter read or written. The 200
# requests share 6,000 cache positions. The answers have 200 letters on average and at
# most 800.

# %% role="concept" tags=["plumbing"]
def queue(requests, seed):
    """Waiting requests: letters in the cache, written, still to write."""
    rng = random.Random(seed)
    return deque([rng.randint(50, 150), 0,
                  min(800, 1 + int(rng.expovariate(1 / 200)))]
                 for _ in range(requests))

# %% role="concept" tags=["plumbing"]
def schedule(room_for, requests=200, places=6000, seed=SEED):
    """Evictions, letters read again per written one, letters per time."""
    waiting, live = queue(requests, seed), []
    evicted, again, written, clock = 0, 0, 0, 0.0
    while waiting or live:
        read = 0
        while waiting and (not live or waiting[0][0] + 1 <= room_for(
                live, places)):
            live.append(waiting.popleft())
            read += live[-1][0]
            again += live[-1][0] if live[-1][1] else 0
        while sum(job[0] + 1 for job in live) > places:
            waiting.appendleft(live.pop())        # the newest has to go
            evicted += 1
        for job in live:
            job[:] = job[0] + 1, job[1] + 1, job[2] - 1
        written += len(live)
        clock += 1 + 0.02 * (read + len(live))    # weights, then each token
        live = [job for job in live if job[2]]
    return evicted, again / written, written / clock

# %% role="concept"
def used(live):
    return sum(job[0] for job in live)

def growth(live):
    """What the running requests will still write, at 200 per answer."""
    return sum(max(0, 200 - job[1]) for job in live)

policies = {
    "fits now": lambda live, places: places - used(live),
    "5 % stays free": lambda live, places: 0.95 * places - used(live),
    "half the growth": lambda live, places: (
        places - used(live) - growth(live) / 2 - 100),
    "longest answer": lambda live, places: (
        places - used(live) - sum(800 - job[1] for job in live) - 800)}
runs = {name: schedule(rule) for name, rule in policies.items()}

# %% role="concept"
plot_columns({name: run[2] for name, run in runs.items()}, form=".1f",
             xlabel="which requests are admitted",
             ylabel="letters written per unit of time",
             title="Reserving for the longest answer costs most",
             alt="Four columns of letters written per unit of time. Fits "
                 "now, five percent free and half the growth are close to "
                 "each other; reserving for the longest answer is half as "
                 "high.")

# %% [markdown] role="concept"
# **Told:** Do not admit a request that you may have to evict. **Measured:** Here, where
# most answers are short, reserving room for the longest answer costs about half of the
# throughput. Admitting everything that fits now causes a storm of evictions: for each
# letter written, about one letter is read again. A server that keeps a little memory free
# writes the most letters, and a server that keeps half of the expected growth free evicts
# almost no requests:

# %% role="concept"
storm, _, fits = runs["fits now"]
calm, _, half = runs["half the growth"]
claim("number of evictions if every request that fits now is admitted",
      storm, above=100)
claim("number of evictions if half of the expected growth is kept free",
      calm, below=60)
claim("throughput with room for the longest answer, divided by throughput "
      "with no reserve", runs["longest answer"][2] / fits, below=0.75)
claim("throughput with room for half of the growth, divided by throughput "
      "with no reserve", half / fits, above=0.95)
claim("throughput with 5 % of the cache kept free, divided by throughput "
      "with no reserve", runs["5 % stays free"][2] / fits, above=1.02)

# %% role="concept" tags=["plumbing"]
def lives(lengths, slots, continuous):
    """Spans (start, end, name) per slot; all requests wait at the start."""
    waiting, clock = list(enumerate(lengths)), [0] * slots
    spans = {f"slot {s}": [] for s in range(slots)}
    while waiting:
        if not continuous:                # all wait for the longest
            clock = [max(clock)] * slots
        group = 1 if continuous else slots
        for number, steps in waiting[:group]:
            s = min(range(slots), key=lambda k: clock[k]) if continuous \
                else number % slots
            spans[f"slot {s}"].append(
                (clock[s], clock[s] + steps, f"r{number}"))
            clock[s] += steps
        waiting = waiting[group:]
    return spans, max(clock)

answers = [3, 9, 2, 4, 8, 2, 3, 5]
static, long_way = lives(answers, 4, continuous=False)
flowing, short_way = lives(answers, 4, continuous=True)

# %% role="concept"
draw_lanes({**{f"static {n[5:]}": s for n, s in static.items()},
            **{f"continuous {n[5:]}": s for n, s in flowing.items()}},
           unit="steps", moments={"static: all done": long_way,
                                  "continuous: all done": short_way},
           title="The static batch waits for its longest answer",
           alt="Eight lanes, four slots for each kind of batch. In the "
               "static batch, slots are empty until the longest of four "
               "answers is done. In the continuous batch, the next "
               "request follows at once, and all eight are done earlier.")

# %% role="concept"
claim("number of steps with the static batch, divided by the number with "
      "the continuous batch", long_way / short_way, above=1.2)

# %% [markdown] role="concept"
# A prefill is one long step, and while it runs, no other request gets a letter. So a
# server can cut the prompt into pieces and run each piece in the same step as other
# requests' decoding. This is *chunked prefill*. In the explorer below, choose the load,
# the memory and how prompts are read. Guess first. With room for 40,000 tokens, pieces of
# 512 reduce either the longest wait between two tokens or the p99 of these waits (the
# value that 99 % of the waits do not exceed). Which one?

# %% role="explore" explorer="scheduler"
from dlsys_helpers.explorers.scheduler import scheduler

scheduler

# %% [markdown] role="explore"
# With room for 40,000 tokens, the longest wait falls when prompts are read in pieces,
# because no step is longer than a piece. With pieces of 512, the p99 rises, because more
# steps contain a piece of a prompt, and the first token comes later. With pieces of 128,
# these steps are so short that the p99 also falls, but the first token comes even later.
# Servers report these waits as *ITL* (inter-token latency, the time between two tokens)
# or *TPOT* (time per output token, its mean over an answer), next to *TTFT* (time to
# first token). *Goodput* is the number of requests per second that stay within the limits
# set for TTFT and for TPOT.

# %% [markdown] trap="13.5" role="situation" core=true fault="a rejected draft is replaced by a draw from the whole target" symptom="speculative decoding changes what the model writes, at the right acceptance rate"
# ## A cheap writer and an expensive judge
#
# One call to the GPT reads all the weights to write one letter. If reading the weights
# takes most of the time, one call can check several letters at almost the same cost. So a
# cheap *draft* model proposes a letter, and the *target* model accepts or rejects it.
# Here the draft is the table of letter pairs, and the target is the GPT.
#
# Let `p` be the target's probabilities and `q` the draft's. You accept a proposed letter
# `x` with probability `min(1, p[x] / q[x])`. If you reject it, you sample a letter from
# the target instead. The text is fluent, and the acceptance rate is what it should be.

# %% trap="13.5" role="break"
contexts = rows(300, 24, kept_back)
p = gpt(contexts)[:, -1].double().softmax(-1)     # the target
q = pairs[contexts[:, -1]]                        # the draft

def comes_out(kept, after):
    """Distribution (N, V) of the letters that are written.

    kept: how often each letter is proposed and accepted. after: the
    distribution that you sample from after a rejection.
    """
    rejected = 1 - kept.sum(-1, keepdim=True)
    return kept + rejected * after

kept = q * (p / q).clamp(max=1)                   # drawn and accepted
from_target = comes_out(kept, p)                  # rejected: draw from p

# %% trap="13.5" role="guess"
guess("13.5",
      "How far is the distribution of the written letters from the "
      "target's, on a scale from 0 % (equal) to 100 % (no overlap)?",
      choices=["about 30 %",
               "about 10 %",
               "about 1 %",
               "0 %"])

# %% trap="13.5" role="look"
wrong = 100 * variation(from_target, p).mean().item()
accepted = kept.sum(-1).mean().item()
print(f"drafts accepted: {accepted:.2f}, letters that would have to "
      f"change: {wrong:.1f} %")

# %% trap="13.5" role="look"
measured("13.5", 1)

# %% trap="13.5" role="look"
claim("total variation from the target if you sample from the target "
      "after a rejection", wrong / 100, above=0.05, below=0.15)

# %% [markdown] trap="13.5" role="why"
# If the draft proposes a letter more often than the target would, rejections cut that
# letter down to exactly the target's probability. So the accepted letters fill the area
# that both distributions have in common. Only the part of the target above the draft is
# missing. Sampling from all of `p` also adds probability to letters that already have
# their full probability.

# %% trap="13.5" role="why" tags=["plumbing"]
row = variation(p, q).argsort()[200]              # one context
nine = p[row].argsort(descending=True)[:9]        # likeliest letters
common = torch.minimum(p, q)[row, nine]
names = [shown_letter(i) for i in nine.tolist()]

# %% trap="13.5" role="why"
ax = new_axes("Accepted, missing and rejected", "letter", "probability")
ax.bar(names, common, color="C0", label="accepted: both have it")
ax.bar(names, (p[row, nine] - common), bottom=common, color="none",
       edgecolor="C1", hatch="///", label="missing: only the target")
ax.bar(names, (q[row, nine] - common), bottom=common, color="none",
       edgecolor="C2", hatch="...", label="rejected: only the draft")
ax.legend()
show(ax.figure, alt="Bars for nine letters. The lower part of each bar is "
     "what target and draft have in common. Above it, some bars have a "
     "hatched part that only the target has, others a dotted part that "
     "only the draft has.")

# %% [markdown] trap="13.5" role="repair"
# After a rejection, sample from what is missing: the positive part of the target minus the
# draft, normalized. The acceptance rate stays the same, and the output follows the
# target's distribution up to rounding:

# %% trap="13.5" role="repair"
missing = (p - q).clamp(min=0)
missing /= missing.sum(-1, keepdim=True)
right = comes_out(kept, missing)

# %% trap="13.5" role="repair"
claim("total variation from the target if you sample from the missing "
      "part after a rejection", variation(right, p).max(), below=1e-9)

# %% [markdown] trap="13.5" role="repair"
# In the explorer below, make the draft a mixture of the target and a uniform
# distribution, and choose a rule. Look for a rule that accepts *more* drafts than the
# right rule.

# %% role="explore" explorer="speculation"
from dlsys_helpers.explorers.speculation import speculation

speculation

# %% [markdown] trap="13.5" role="more" topics="keep if p >= q · a draft that takes its likeliest letter · another temperature"
# This fault has three relatives, each seen in real code:
#
# - The test `p >= q` makes some letters impossible.
# - The draft always takes its likeliest letter, but is scored with the `q` of a sampled
#   draft.
# - The draft is sampled at one temperature, but its probabilities in the ratio are
#   computed at a different one.
#
# The last two rules use a `q` that the draft was not sampled from. (Even the right rule
# can be slow, because in a large batch, arithmetic can be the limit, and every rejected
# draft wastes arithmetic.)

# %% trap="13.5" role="more" tags=["plumbing"]
hot = F.one_hot(q.argmax(-1), V).double()
cold = q ** (1 / 0.7)
cold /= cold.sum(-1, keepdim=True)
rules = {"keep if p >= q": q * (p >= q),
         "greedy draft, soft q": hot * (p / q).clamp(max=1),
         "drawn at 0.7, q at 1": cold * (p / q).clamp(max=1)}
bent = {name: (keep.sum(-1).mean().item(),
               variation(comes_out(keep, missing), p).mean().item())
        for name, keep in rules.items()}
never = ((comes_out(rules["keep if p >= q"], missing) < 1e-12)
         & (p > 1e-6)).double().sum(-1).mean().item()
others = p * (1 - hot)                            # q as one-hot, rejected
hot_right = comes_out(hot * p, others / others.sum(-1, keepdim=True))

# %% trap="13.5" role="more"
ax = new_axes("None of these is the target", "", "fraction")
spots = torch.arange(3)
for side, (what, hatch) in enumerate((("drafts kept", ""),
                                      ("total variation", "//"))):
    ax.bar(spots + 0.4 * side - 0.2, [pair[side] for pair in bent.values()],
           width=0.4, color=f"C{side}", hatch=hatch, label=what)
ax.set_xticks(spots, [name.replace(", ", ",\n") for name in bent])
ax.legend()
show(ax.figure, alt="Two bars for each of three wrong rules: the fraction "
     "of drafts accepted, and the total variation from the target, which "
     "is above zero for all three.")

# %% trap="13.5" role="more"
claim("number of letters that can never be written, with the rule p >= q",
      never, above=5)
claim("total variation from the target, with the rule p >= q",
      bent["keep if p >= q"][1], above=0.05)
claim("total variation from the target, with a greedy draft and the q of "
      "a sampled draft", bent["greedy draft, soft q"][1], above=0.1)
claim("total variation from the target, with a greedy draft and a one-hot "
      "q", variation(hot_right, p).mean(), below=1e-9)

# %% [markdown] trap="13.5" role="folklore"
# **Told:** Accepting a draft only if a sample from the target agrees with it distorts the
# distribution. **Measured:** That depends on what you write after a mismatch. If you
# write that same sample, the output *is* the target's distribution, but fewer drafts are
# accepted. If you sample from the target again, the output is distorted.

# %% trap="13.5" role="folklore"
claim("acceptance rate if samples have to agree, divided by the right "
      "rule's acceptance rate", (p * q).sum(-1).mean() / accepted,
      below=0.7)
claim("total variation from the target, with a new sample after a mismatch",
      variation(comes_out(p * q, p), p).mean(), above=0.01)

# %% trap="13.5" role="exercise" points=3 difficulty=2 minutes=12
def accept_draft(p: torch.Tensor, q: torch.Tensor, x: int, u: float,
                 v: float) -> tuple:
    """Return (token, kept): the token to write for a draft x, and whether
    that token is x.

    p, q: the probabilities of target and draft, (V,) float64, possibly with
    zeros. x: a token sampled from q. u, v: independent uniform random
    numbers, above 0 and below 1.

    x is kept if u is less than p[x] / q[x]. If x is not kept, only v
    decides which token is written. Over all x, u and v, the token follows p
    exactly. token is an int, and kept is a bool. p and q are not changed.

    Example: p [0.5, 0.5], q [1., 0.], x 0: u 0.2 gives (0, True), u 0.7
    gives (1, False).
    """
    # BEGIN SOLUTION
    if u * q[x] < p[x]:
        return x, True
    rest = (p - q).clamp(min=0).cumsum(0)
    return int((rest <= v * rest[-1]).sum()), False
    # END SOLUTION

# %% [markdown] trap="13.5" role="hint"
# 1. Accepted drafts produce each token with probability `min(p, q)`. How much is
#    missing from `p`?
# 2. The missing part is `p - q` where this difference is positive. Divided by its sum, it
#    is the distribution to sample from after a rejection.
# 3. Lay the probabilities end to end on a line, and let `v` choose the piece: `cumsum`
#    gives the ends of the pieces.

# %% [markdown] trap="13.5" role="keep"
# **Keep:** After rejecting a draft, sample from max(0, p - q), normalized. Let `q` be
# the distribution that the draft was really sampled from. **In your own code:** Do not
# judge a rule by its acceptance rate. Feed it a known `p` and `q`, and count the
# tokens. **Source:** [Leviathan et al.
# 2023](https://arxiv.org/abs/2211.17192) and [Chen et al.
# 2023](https://arxiv.org/abs/2302.01318). **Seen in the wild:** In
# [huggingface/transformers
# 47932](https://github.com/huggingface/transformers/issues/47932), the code used a `q`
# that the draft had not been sampled from. The acceptance rate rose, but the median total
# variation from `p` was 0.05.

# %% [markdown] trap="13.6" role="situation" fault="rejected draft tokens stay in the KV cache" symptom="speculative decoding repeats or skips words, though each check is right"
# ## Four letters in one call
#
# Now the draft proposes three letters at once, and one call to the GPT reads them. At
# each of the four positions, the GPT samples its own letter, with the random numbers of
# the request. Drafted letters are accepted as long as they equal the letters that the GPT
# sampled. At the first position where the two differ, you write the GPT's letter and drop
# the remaining drafts.
#
# The GPT itself drew every letter of the answer, with the request's own random numbers.
# So you expect the same answer as without a draft.

# %% trap="13.6" role="break"
def one_call(new, cache, dice):
    """Three drafts after the letter new, and what the GPT draws there.

    Returns the four letters that it read, its own four, and how many
    drafts agree.
    """
    draft = [new]
    for number in dice[:3]:
        draft.append(pick(pairs[draft[-1]], number).item())
    probs = gpt(torch.tensor([draft]), cache)[0].softmax(-1)
    says = pick(probs, dice[:4, None]).tolist()
    good = next((i for i in range(3) if draft[i + 1] != says[i]), 3)
    return draft, says, good

# %% trap="13.6" role="break"
def speculate(ids, dice, n, stays):
    """(n letters after ids (1, T), fraction of drafts kept, calls)."""
    cache, answer, kept, calls = Cache(), [], 0, 0
    new = pick(gpt(ids, cache)[0, -1].softmax(-1), dice[0]).item()
    while len(answer) < n:
        past = length(cache)
        draft, says, good = one_call(new, cache, dice[len(answer) + 1:])
        answer += draft[:good + 1]
        new, kept, calls = says[good], kept + good, calls + 1
        cache = part(cache, 0, stays(past, good, length(cache)))
    return torch.tensor(answer[:n]), kept / (3 * calls), calls

# %% trap="13.6" role="break"
starts, throws = rows(6, 12, kept_back), torch.rand(6, 50)
plain = torch.cat([write(gpt, ids[None], dice[:40])
                   for ids, dice in zip(starts, throws)])

def trial(stays):
    """(fraction of letters as without a draft, drafts kept, calls)."""
    runs = [speculate(ids[None], dice, 40, stays)
            for ids, dice in zip(starts, throws)]
    return (same(torch.stack([r[0] for r in runs]), plain),
            sum(r[1] for r in runs) / 6, sum(r[2] for r in runs) / 6)

first_try = trial(lambda past, good, read: read)

# %% trap="13.6" role="guess"
guess("13.6", "How many of the letters are the same as without a draft?",
      choices=["all of them",
               "fewer than half of them",
               "none of them"])

# %% trap="13.6" role="look"
agree, kept_share, calls = first_try
print(f"letters that agree: {agree:.2f}; drafts kept: {kept_share:.2f}; "
      f"calls for 40 letters: {calls:.0f}")

# %% trap="13.6" role="look"
measured("13.6", 1)

# %% trap="13.6" role="look"
claim("with all entries kept: fraction of letters that agree with plain "
      "decoding", agree, below=0.6)

# %% [markdown] trap="13.6" role="why"
# The call that checked the drafts also wrote the keys and values of all four letters into
# the cache. The entries after the first disagreement belong to letters that are not in
# the answer. These entries stay in the cache, the next letter gets a position after them,
# and from then on, the GPT attends to letters that nobody wrote.

# %% trap="13.6" role="why"
holds = {"before": ["T", "h", "e", "", "", "", ""],
         "checked": ["T", "h", "e", "_", "c", "a", "r"],
         "rolled back": ["T", "h", "e", "_", "c", "", ""]}

# %% trap="13.6" role="why"
draw_ranks({"what the cache holds": [*holds.values()]}, ranks=[*holds],
           marks={"what the cache holds": [(1, 5), (1, 6)]},
           title="What was rejected has already been read",
           alt="Three rows of seven cache positions. Before: T, h, e. "
               "After the check there are four more letters, and the last "
               "two, a and r, are marked as rejected. After the rollback, "
               "these two are gone.")

# %% [markdown] trap="13.6" role="repair"
# Keep the entries from before the call, the entry of the letter that was fed first, and
# the entries of the accepted drafts. The letter that replaced the rejected draft has not
# been read yet, so feed it next.

# %% trap="13.6" role="repair"
rolled = trial(lambda past, good, read: past + good + 1)
print(f"letters that agree: {rolled[0]:.2f}; drafts kept: {rolled[1]:.2f}; "
      f"calls for 40 letters: {rolled[2]:.0f}")

# %% trap="13.6" role="repair"
claim("with the cache rolled back: fraction of letters that agree with "
      "plain decoding", rolled[0], above=0.95)

# %% [markdown] trap="13.6" role="more" topics="one too few, one too many · what it saves"
# If you keep one entry too few, the last accepted letter is never read. If you keep one
# entry too many, a rejected letter stays. Each is an off-by-one error, and each leaves the
# text fluent:

# %% trap="13.6" role="more"
short = trial(lambda past, good, read: past + good)
long = trial(lambda past, good, read: min(past + good + 2, read))
plot_columns({"all stay": first_try[0], "one too few": short[0],
              "one too many": long[0], "rolled back": rolled[0]},
             xlabel="entries that stay",
             ylabel="fraction of equal letters",
             form=".2f", title="Off by one is as bad as keeping them all",
             alt="Four columns. Only the cache that is rolled back to the "
                 "right position writes the letters of plain decoding.")

# %% trap="13.6" role="more"
claim("with one entry too few: fraction of letters that agree with plain "
      "decoding", short[0], below=0.7)
claim("with one entry too many: fraction of letters that agree with plain "
      "decoding", long[0], below=0.8)
claim("number of calls for 40 letters, with the cache rolled back",
      rolled[2], below=39)

# %% trap="13.6" role="exercise" points=3 difficulty=2 minutes=10
def commit(past: int, draft: list, says: list) -> tuple:
    """Compute (write, feed, stay) after one round of greedy speculative
    decoding.

    past: the number of cache entries before the round. In the round, the
    last written token was fed first. Then draft was fed, a list of guesses
    that may be empty. Each token that was fed left one cache entry. says:
    for each token that was fed, the token that the model itself wants next.
    So says has one token more than draft. Tokens are integers, 0 or more.

    write: a list of all tokens that, as this round shows, the model would
    write without a draft. feed: the token to feed next, which is the last
    token written, because that token has no entry. stay: the number of
    cache entries, counted from the first, that can stay. draft and says are
    not changed.

    Example: past 10, draft [4, 7, 9], says [4, 8, 9, 2] give ([4, 8], 8,
    12).
    """
    # BEGIN SOLUTION
    good = 0
    for token, said in zip(draft, says):
        if token != said:
            break
        good += 1
    return draft[:good] + says[good:good + 1], says[good], past + 1 + good
    # END SOLUTION

# %% [markdown] trap="13.6" role="hint"
# 1. A guess is right if it equals what the model says after the preceding token. Compare
#    `draft[i]` with `says[i]`, and stop at the first difference. What the model says
#    after a wrong guess belongs to a different text.
# 2. Also write the model's own token at that position, which costs no extra call. If
#    all guesses are right, that token follows the last guess.
# 3. The token that was fed first now has a cache entry, and so does each right guess. The
#    token that the model added has not been fed yet.

# %% [markdown] trap="13.6" role="keep"
# **Keep:** After checking drafts, cut the KV cache back. The cache must hold every
# token of the text except the last, and nothing else. **In your own code:** With greedy
# decoding, or if drafts have to equal samples drawn with the same random numbers,
# speculative and plain decoding have to write the same text. Test this with a draft that
# is often wrong. If your kernels' results depend on the number of tokens per call, greedy
# texts may differ only from a near tie on, so look at the two logits at the first
# difference. **Source:** [Leviathan et al. 2023](https://arxiv.org/abs/2211.17192).
# **Seen in the wild:** In [ml-explore/mlx-lm
# 1109](https://github.com/ml-explore/mlx-lm/pull/1109), a cache that could not be
# trimmed kept the rejected drafts without any error.

# %% [markdown] trap="13.7" role="situation" fault="one scale for all keys: one large channel takes the grid" symptom="perplexity jumps with a low-bit KV cache, though the keys reconstruct well"
# ## A smaller cache
#
# In long conversations, keys and values fill the memory. So you store the keys in 4 bits,
# with one scale for the whole tensor and integer codes from -7 to 7. On your GPT, this
# adds almost nothing to the loss.
#
# Real models often have a few channels whose keys are much larger than the rest. To build
# such a model, you change each head: you make two key channels thirty times as large and
# the same two query channels a thirtieth as large. The products of queries and keys stay
# the same, and so does the loss. Then you measure how much the loss rises with 4-bit
# keys, and how much it rises if you set all keys to zero.

# %% trap="13.7" role="break"
def with_outlier(model, factor=30):
    """The same function, with larger keys in the slowest two channels."""
    model = copy.deepcopy(model)
    for block in model.blocks:
        q, k, _ = block.qkv.weight.view(3, 4, 16, 64)   # heads, channels
        q[:, [7, 15]] /= factor
        k[:, [7, 15]] *= factor
    return model

# %% trap="13.7" role="break"
class FourBits(Cache):
    """Return keys rounded to 15 levels; dims share a scale."""

    def __init__(self, dims):
        super().__init__()
        self.dims = dims

    def add(self, layer, k, v):
        k, v = super().add(layer, k, v)
        scale = k.abs().amax(self.dims, keepdim=True).clamp(min=1e-8) / 7
        return (k / scale).round() * scale, v

# %% trap="13.7" role="break"
passages = rows(16, 49, kept_back)

def nats(model, cache=None):
    """Loss on held-out text, read through this cache."""
    logits = model(passages[:, :-1], cache)
    return F.cross_entropy(logits.flatten(0, 1),
                           passages[:, 1:].flatten()).item()

class Blind(Cache):
    """All keys are zero, so attention is a plain mean of the past."""

    def add(self, layer, k, v):
        k, v = super().add(layer, k, v)
        return 0 * k, v

outlier, tensor = with_outlier(gpt), (0, 1, 2, 3)
full = nats(outlier)
worth = nats(outlier, Blind()) - full             # what keys are good for
lost = nats(outlier, FourBits(tensor)) - full

# %% trap="13.7" role="guess"
guess("13.7",
      "How large is the rise in loss with 4-bit keys, compared with the "
      "rise with all keys set to zero?",
      choices=["more than half as large",
               "about a third as large",
               "about a tenth as large",
               "about a hundredth as large"])

# %% trap="13.7" role="look"
percent = 100 * lost / worth
print(f"loss {full:.3f}; keys zero {worth:+.3f}; 4 bits {lost:+.3f}: "
      f"{percent:.0f} %")

# %% trap="13.7" role="look"
measured("13.7", 0)

# %% trap="13.7" role="look"
claim("loss added by 4-bit keys, divided by the loss added by all-zero "
      "keys", lost / worth, above=0.5)

# %% [markdown] trap="13.7" role="why"
# With one scale for the whole tensor, the largest entry sets the scale. All other
# channels have to share the few levels near zero, and here nearly all of their keys round
# to zero. The two large channels get all the levels, but they matter no more than the
# other channels, because their queries are small.

# %% trap="13.7" role="why" tags=["plumbing"]
cache = Cache()
nats(outlier, cache)
some = cache.layers[0][0][0, 0, :12].abs()        # (tokens, channels)
grid = cache.layers[0][0].abs().max() / 7
zero = (some / grid).round() == 0
gone = ((cache.layers[0][0] / grid).round() == 0).float().mean().item()

# %% trap="13.7" role="why"
draw_grids({"size of the keys": some / some.max(),
            "codes that are zero": zero.float()},
           rows="tokens", columns="channels of one head",
           title="Two channels get all the levels",
           alt="Two grids of twelve tokens by sixteen channels. On the "
               "left, two columns are dark and all others are pale. On the "
               "right, nearly all cells outside these two columns are "
               "filled, which means that their codes are zero.")

# %% [markdown] trap="13.7" role="repair"
# In the left grid, the same two channels are large in every row. So give each channel of
# each head its own scale, shared by all tokens:

# %% trap="13.7" role="repair"
rules = {"tensor": tensor, "head": (0, 2, 3), "token": (3,),
         "channel": (2,)}
costs = {name: max(0.0, nats(outlier, FourBits(dims)) - full)
         for name, dims in rules.items()}

# %% trap="13.7" role="repair"
plot_columns({"all zero": worth, **costs}, xlabel="what shares a scale",
             ylabel="nats lost", form=".3f", marks=["tensor"],
             title="The same 4 bits cost little with a scale per channel",
             alt="Five columns of loss: all keys zero, and 4 bits with one "
                 "scale per tensor, head, token or channel. The last is "
                 "close to zero.")

# %% trap="13.7" role="repair"
claim("loss added by 4-bit keys with one scale per channel, in nats",
      costs["channel"], below=0.02)

# %% [markdown] trap="13.7" role="more" topics="without outliers · 8 bits · float8 · a scale over one token · bytes"
# Without large channels, one scale for the whole tensor is good enough here. With 8 bits,
# it is nearly good enough even with channels thirty times as large. (Larger channels need
# more than 8 bits, or scales of their own.) Each `float8` number has its own exponent, so
# the grid of `float8` stays fine near zero:

# %% trap="13.7" role="more" tags=["plumbing"]
class EightBits(FourBits):
    def add(self, layer, k, v):
        k, v = Cache.add(self, layer, k, v)
        scale = k.abs().amax(self.dims, keepdim=True) / 127
        return (k / scale).round() * scale, v

class Float8(Cache):
    def add(self, layer, k, v):
        k, v = super().add(layer, k, v)
        scale = k.abs().max() / 448
        return (k / scale).to(torch.float8_e4m3fn).float() * scale, v

plain_cost = nats(gpt, FourBits(tensor)) - full
floats = nats(outlier, Float8()) - full
eight = nats(outlier, EightBits(tensor)) - full
alone = torch.randn(1, 4, 1, 16)
nothing = (FourBits((2,)).add(0, alone, alone)[0] - alone).abs().max()

# %% trap="13.7" role="more"
claim("difference between the losses with and without large channels, in "
      "float32", abs(full - nats(gpt)), below=1e-4)
claim("no large channels: loss added by 4-bit keys with one scale, in "
      "nats", plain_cost, below=0.05)
claim("large channels: loss added by 8-bit keys with one scale, in nats",
      eight, below=0.05)
claim("large channels: loss added by float8 keys with one scale, in nats",
      floats, below=0.02)
claim("large channels: fraction of 4-bit codes that are zero, with one "
      "scale", gone, above=0.6)
claim("largest error in a key if a scale covers only one channel of a "
      "single token", nothing, below=1e-5)

# %% [markdown] trap="13.7" role="more"
# The last claim above shows a further trap. In decode, tokens arrive one at a time. If
# the scale of a channel covers only that single token, the scale repeats the size of
# the key. Nothing is lost, but nothing is saved either, because each scale is as large
# as the number that it replaces. So the newest tokens wait in full precision until a
# *group* of, for example, 32 tokens is complete. The scales also take bytes, so count
# them as well:

# %% trap="13.7" role="more"
def bytes_a_token(group, channels=16, bits=4):
    """Codes, plus each channel's part of a 4-byte scale."""
    return channels * (bits / 8 + 4 / group)

draw_boxes({f"groups of {g}": {"codes": 16 * 0.5, "scales": 64 / g}
            for g in (1, 8, 32)}, unit="bytes", limit=64,
           limit_name="float32",
           title="A group of one token saves nothing",
           alt="Three stacks of bytes for one token and head. With groups "
               "of one token, the scales alone are as large as float32; "
               "with groups of 32 they are small.")

# %% trap="13.7" role="more"
claim("bytes per token and head, with groups of 32 tokens",
      bytes_a_token(32), expected=10)

# %% trap="13.7" role="exercise" points=3 difficulty=2 minutes=12
def pack_keys(k: torch.Tensor, bits: int, group: int) -> tuple:
    """Compute (codes, scales, rest): keys with a separate grid for each
    channel.

    k: (B, H, T, D) float32, not changed. bits: 2 to 8. The tokens are cut
    into groups of `group` consecutive tokens. rest holds the tokens left
    over at the end, unchanged. T can be less than group.

    In every group, each channel of each head and row has its own scale. A
    scale is its channel's largest absolute value divided by 2**(bits - 1) -
    1. If all values are 0, the scale is 1.0. scales: (B, H, T // group, D)
    float32. codes: int8, the integer nearest to k / scale, (B, H, T //
    group * group, D). None of the three is a view of k or of a copy of k:
    each stores only its own values.

    Example: k of one channel, [3., -7., 1.], bits 4 and group 2 give codes
    [3, -7], scales [1.] and rest [1.].
    """
    # BEGIN SOLUTION
    B, H, T, D = k.shape
    n = T // group
    parts = k[:, :, :n * group].reshape(B, H, n, group, D)
    scales = parts.abs().amax(3) / (2 ** (bits - 1) - 1)
    scales = torch.where(scales > 0, scales, 1.0)
    codes = (parts / scales[:, :, :, None]).round().to(torch.int8)
    codes = codes.reshape(B, H, n * group, D)
    return codes, scales, k[:, :, n * group:].clone()
    # END SOLUTION

# %% [markdown] trap="13.7" role="hint"
# 1. Reshape the complete groups to `(B, H, n, group, D)`. A channel's scale comes from
#    the largest absolute value along the token axis of a group, and along no other axis.
# 2. Before you divide, give the scales a token axis of length 1 again.
# 3. `k[:, :, n * group:]` is a view. As long as the view lives, all of `k` stays in
#    memory. Use `clone()`.

# %% [markdown] trap="13.7" role="keep"
# **Keep:** Numbers that share a quantization scale should have similar sizes. For keys,
# share a scale within one channel, over many tokens. For values, share a scale within
# one token. Judge the result by the loss, not by the error of the keys. **In your own
# code:** Print the largest absolute value in each channel of the keys. If a few
# channels are ten times as large as the rest, 4-bit integers with one scale per tensor
# lose nearly everything in the other channels. **Source:** [Liu et al. 2024,
# "KIVI"](https://arxiv.org/abs/2402.02750) and [Hooper et al. 2024,
# "KVQuant"](https://arxiv.org/abs/2401.18079). **Seen in the wild:** In
# [ahb-sjsu/turboquant-pro 98](https://github.com/ahb-sjsu/turboquant-pro/pull/98), 4
# bits raised the perplexity from 12.2 to about 10,000. In [rajveer43/VeloxQuant-MLX
# 162](https://github.com/rajveer43/VeloxQuant-MLX/issues/162), each scale covered one
# channel of a single token.

# %% [markdown] trap="13.8" role="situation" core=true fault="the trainer scores tokens under another distribution" symptom="importance ratios are not 1 in the first step of RL, with the same weights"
# ## What did you write, and how likely was it?
#
# A trainer improves the model with the model's own answers, so that good answers become
# likelier. For each letter, the trainer needs a *ratio*: the letter's probability now,
# divided by its probability when it was sampled. In the first step, both probabilities
# come from the same weights.
#
# The server samples at temperature 0.8 from the smallest set of likeliest letters whose
# probabilities sum to at least 0.9 (top-p). For each letter, it reports the
# log-probability under the distribution that the letter was sampled from. (vLLM does this
# if you ask for `processed_logprobs`. By default, vLLM reports log-probabilities without
# temperature and top-p.) The trainer computes its own log-probabilities at the same
# temperature. You sample 64 answers of 24 letters and, for each answer, multiply its 24
# ratios.

# %% trap="13.8" role="break"
def nucleus(logits, top_p):
    """The letters to keep: the likeliest, until their sum passes top_p."""
    chances, order = logits.softmax(-1).sort(-1, descending=True)
    kept = chances.cumsum(-1) - chances < top_p
    return torch.zeros_like(kept).scatter(-1, order, kept)

# %% trap="13.8" role="break"
ids, cache = rows(64, 16, kept_back), Cache()
logits = gpt(ids, cache)[:, -1]
drawn_at, drawn_ids, server, kept_sets = [], [], [], []
for _ in range(24):
    hot = logits / 0.8
    kept_set = nucleus(hot, 0.9)
    cut = hot.masked_fill(~kept_set, -math.inf).log_softmax(-1)
    new = torch.multinomial(cut.exp(), 1)
    drawn_at.append(logits)
    drawn_ids.append(new)
    server.append(cut.gather(1, new))
    kept_sets.append(kept_set)
    logits = gpt(new, cache)[:, -1]

# %% trap="13.8" role="break"
logits, new = torch.stack(drawn_at, 1), torch.stack(drawn_ids, 1)
server, kept_sets = torch.cat(server, 1), torch.stack(kept_sets, 1)
trainer = (logits / 0.8).log_softmax(-1).gather(2, new)[..., 0]
ratio = (trainer - server).exp()                      # (64, 24)
whole = ratio.prod(1)                                 # of each answer

# %% trap="13.8" role="guess"
guess("13.8",
      "For each of the 64 answers, you multiply the ratios of its letters. "
      "What is the median of the 64 products?",
      choices=["about 0.1",
               "about 0.6",
               "about 0.9",
               "exactly 1"])

# %% trap="13.8" role="look"
print(f"per letter: {ratio.mean():.3f}, answer of 24: "
      f"{whole.median():.3f}")

# %% trap="13.8" role="look"
measured("13.8", 0)

# %% trap="13.8" role="look"
claim("median, over all answers, of the product of an answer's 24 ratios",
      whole.median(), above=0.06, below=0.18)

# %% [markdown] trap="13.8" role="why"
# The server cuts off the tail and rescales the rest to a sum of one, so the probability
# of each remaining letter is divided by the kept mass. The trainer's softmax runs over
# all letters. So the ratio of a letter is exactly the probability mass that was kept at
# its position, whichever letter was sampled. The ratio of an answer of 24 letters is the
# product of 24 such masses.

# %% trap="13.8" role="why"
claim("mean ratio of a letter, with the same weights in server and trainer",
      ratio.mean(), below=0.95)

# %% trap="13.8" role="why" tags=["plumbing"]
spread = (logits[:, 0] / 0.8).softmax(-1)
row = (spread.amax(-1) - 0.4).abs().argmin()      # neither sure nor flat
chances = spread[row]
at = chances.argsort(descending=True)[:14]
kept_mass = chances[kept_sets[row, 0]].sum()
before = chances[at]
after = torch.where(kept_sets[row, 0, at], before / kept_mass, 0)
axis_names = [shown_letter(i) for i in at.tolist()]

# %% trap="13.8" role="why"
ax = new_axes("What is left is stretched", "letter", "probability")
spots = torch.arange(14)
ax.bar(spots - 0.2, before, width=0.4, color="C0", label="the trainer's")
ax.bar(spots + 0.2, after, width=0.4, color="C1", hatch="//",
       label="the server's: cut at 0.9")
ax.set_xticks(spots, axis_names)
ax.legend()
show(ax.figure, alt="Two bars for each of the fourteen likeliest letters: "
     "the trainer's probability and the probability after the cut. Kept "
     "letters have a higher second bar; letters in the tail have none.")

# %% [markdown] trap="13.8" role="repair"
# The trainer needs to know what the server knew: the temperature, and which letters were
# kept. With both, the trainer can compute the distribution that the letters were sampled
# from:

# %% trap="13.8" role="repair"
def as_drawn(logits, ids, temperature, kept):
    """Log-probability of ids (B, T) under what they were sampled from."""
    cut = (logits / temperature).masked_fill(~kept, -math.inf)
    return cut.log_softmax(-1).gather(2, ids[..., None])[..., 0]

mended = (as_drawn(logits, new[..., 0], 0.8, kept_sets) - server).exp()
print(f"per letter: {mended.mean():.3f}, per answer: "
      f"{mended.prod(1).median():.3f}")

# %% trap="13.8" role="repair"
claim("largest distance of a ratio from 1, with temperature and kept set "
      "applied",
      (mended - 1).abs().max(), below=1e-4)

# %% [markdown] trap="13.8" role="more" topics="the kept mass · a forgotten temperature · rounding noise · text that is tokenized again"
# Each letter's ratio is the probability mass that was kept at its position. If the
# trainer also forgets the temperature, the ratios here fall on both sides of 1. Without
# top-p, the *mean* ratio is then 1, although nearly every single ratio is wrong. The
# reason is that the mean of `p / q` over samples from `q` is the sum of `p`, which is
# always one. So look at the log ratios, in which rounding noise (for example from a
# server in bfloat16) is small:

# %% trap="13.8" role="more" tags=["plumbing"]
mass = ((logits / 0.8).softmax(-1) * kept_sets).sum(-1)
raw = (logits.log_softmax(-1).gather(2, new)[..., 0] - server).exp()

low = copy.deepcopy(gpt).to(torch.bfloat16)
answers = torch.cat([ids, new[..., 0]], 1)
there, here = ((model(answers)[:, 15:-1].float() / 0.8).log_softmax(-1)
               .gather(2, new)[..., 0] for model in (low, gpt))
noise = (here - there).abs().mean()

die = torch.Generator().manual_seed(SEED)
warm = (logits / 0.8).log_softmax(-1)             # no cut
free = torch.multinomial(warm.exp().flatten(0, 1), 1, generator=die)
cold_gap = (logits.log_softmax(-1) - warm).gather(
    2, free.view(64, 24, 1))                      # log ratio, at 1

# %% trap="13.8" role="more"
claim("largest difference between a ratio and the kept mass",
      (ratio - mass).abs().max(), below=1e-5)
claim("smallest ratio, with the temperature forgotten", raw.min(),
      below=0.8)
claim("largest ratio, with the temperature forgotten", raw.max(), above=1.1)
claim("mean ratio, with the temperature forgotten and no cut",
      cold_gap.exp().mean(), expected=1, within=0.08)
claim("mean absolute log ratio, with the temperature forgotten and no cut",
      cold_gap.abs().mean(), above=0.1)
claim("mean absolute log ratio, with a server in bfloat16 and no cut",
      noise, below=0.05)

# %% [markdown] trap="13.8" role="more"
# If a trainer recomputes the kept set from its own logits, in a different precision, it
# may find that a sampled letter is outside the set, and the letter's log-probability
# becomes minus infinity. So the server should send the kept set along. If a trainer uses
# the server's log-probability in place of its own current log-probability, the ratio is 1
# forever, even after an update. And if a trainer receives *text* and tokenizes it again,
# it may score tokens that were never sampled.

# %% trap="13.8" role="exercise" points=3 difficulty=2 minutes=10
def kept_logprob(logits: torch.Tensor, tokens: torch.Tensor,
                 temperature: float, kept: torch.Tensor) -> torch.Tensor:
    """Compute the log-probability of each token under the distribution that
    it was sampled from: the softmax of logits / temperature over only the
    kept tokens.

    logits: (..., V) float32 or bfloat16. tokens: (...) int64, each of them
    kept. temperature: above 0. kept: (..., V) bool, as the server reports
    it, whatever the server's rule. Logits of tokens that are not kept have
    no effect, even if they are infinite or nan.

    Returns (...) float32, computed in float32. Gradients flow to logits.
    Inputs are not changed.

    Example: logits [2., 2., 5.], token 0, temperature 1, kept [True, True,
    False] give -0.6931.
    """
    # BEGIN SOLUTION
    z = (logits.float() / temperature).masked_fill(~kept, -math.inf)
    return z.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    # END SOLUTION

# %% [markdown] trap="13.8" role="hint"
# 1. A token that was cut had probability zero. Set its logit to minus infinity before the
#    softmax, and the kept tokens share the whole probability.
# 2. Convert to float32 first. Then divide by the temperature, apply the cut, and take
#    `log_softmax` over the last axis.
# 3. `gather(-1, tokens[..., None])` picks each token's entry and leaves an axis of length
#    one.

# %% [markdown] trap="13.8" role="keep"
# **Keep:** Compute the log-probability of a token under the distribution that the token
# was sampled from, including the temperature and the top-p cut. A log-probability under
# any other distribution cannot be the ratio's denominator. **In your own code:** Before
# the first update, *every* ratio has to be 1 up to rounding. A mean ratio of 1 does not
# show this, so print the largest and the mean absolute log ratio, and the probability
# mass that the cut keeps. **Source:** [huggingface/trl
# 6789](https://github.com/huggingface/trl/issues/6789), with the closed form. **Seen in
# the wild:** The same thread reports the fault. In [huggingface/trl
# 4159](https://github.com/huggingface/trl/issues/4159), the server returned raw
# log-probabilities without the temperature, and the ratio stayed at the limit of its
# clamp.

# %% [markdown] trap="13.9" role="situation" core=true fault="the benchmark's clock starts when the queue is over" symptom="measured latency stays flat under load, while users wait for seconds"
# ## How fast is it?
#
# The server is finished, and your boss asks how fast it is. It handles eight requests at
# a time, and an answer takes about a second. Your load generator sends 16,000 requests.
# They arrive at random times, as real users' requests do, at a rate of 0.8 times the
# server's capacity.
#
# A semaphore allows at most eight open requests. A request's clock starts when the
# request is sent and stops at its first letter; a prefill takes 0.05 seconds. Your report
# says that the p99 of the time to first token is 0.05 s. (The p99 is the smallest time
# that 99 % of the requests do not exceed.) For users, the clock starts when they press
# Enter.

# %% trap="13.9" role="break"
def simulate(load, slots=8, requests=16000, seed=SEED):
    """(arrival, start, end) of each request; first come, first served."""
    rng = random.Random(seed)
    work = [0.05 + min(20, rng.expovariate(1)) for _ in range(requests)]
    rate = load * slots / (sum(work) / requests)
    free, now, log = [0.0] * slots, 0.0, []
    for seconds_needed in work:
        now += rng.expovariate(rate)
        start = max(now, heapq.heappop(free))
        heapq.heappush(free, start + seconds_needed)
        log.append((now, start, start + seconds_needed))
    return log

# %% trap="13.9" role="break"
def p99(values):
    """The smallest value that 99 % of all values do not exceed."""
    return sorted(values)[math.ceil(99 * len(values) / 100) - 1]

log = simulate(0.8)
reported = p99([start + 0.05 - start for _, start, _ in log])

# %% trap="13.9" role="guess"
guess("13.9",
      "What is the p99 of the time from pressing Enter to the first "
      "letter?", unit="s")

# %% trap="13.9" role="look"
waits = [start + 0.05 - arrival for arrival, start, _ in log]
true = p99(waits)
print(f"from dispatch {reported:.2f} s, from arrival {true:.2f} s; "
      f"mean {sum(waits) / len(waits):.2f} s")

# %% trap="13.9" role="look"
measured("13.9", true, right=(1.4, 4))

# %% trap="13.9" role="look"
claim("p99 time from arrival to first token, divided by p99 time from "
      "dispatch to first token", true / reported, above=20)

# %% [markdown] trap="13.9" role="why"
# A request waits from its arrival until the semaphore lets it through, and the clock
# starts only after this wait. The busier the server, the longer the wait that the clock
# does not measure. The worst case is a *closed loop*: eight clients that each send a
# request only after the previous one has been answered. There are as many clients as
# slots, so no request ever waits, and the report shows the highest throughput.

# %% trap="13.9" role="why"
busiest = max(range(16000), key=lambda i: waits[i])
lanes = {}
for i in range(busiest - 3, busiest + 1):
    arrival, start, end = (t - log[busiest - 3][0] for t in log[i])
    lanes[f"user {i - busiest + 4}"] = [
        (arrival, start, "waits"), (start, min(end, start + 2), "served")]

# %% trap="13.9" role="why"
draw_lanes(lanes, unit="seconds since the first arrival", marks=["waits"],
           title="Users wait for seconds before the clock starts",
           alt="Four lanes, one for each of four users who arrive one "
               "after another. Each user waits for seconds (this wait is "
               "marked) and is then served. The benchmark's clock starts "
               "when the wait ends.")

# %% [markdown] trap="13.9" role="repair"
# Start the clock when the request was *due*, whether or not it could be sent. And report
# the load, because a latency without a load says nothing. At a high load, a single run is
# noisy, so each point is the median of five runs:

# %% trap="13.9" role="repair"
loads = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)

def middle(load):
    """p99 from arrival, the median of five runs."""
    runs = [simulate(load, seed=SEED + k) for k in range(5)]
    return sorted(p99([s + 0.05 - a for a, s, _ in run])
                  for run in runs)[2]

from_arrival = [middle(load) for load in loads]

# %% trap="13.9" role="repair"
plot_lines(loads, {"from arrival": from_arrival,
                   "from dispatch": [0.05] * len(loads)},
           title="Only one clock shows the load", xlabel="load",
           ylabel="p99 of the time to first token, s",
           alt="Two lines over the load. The line from dispatch is flat at "
               "0.05 seconds. The line from arrival rises, steeply as the "
               "load approaches one.")

# %% trap="13.9" role="repair"
claim("p99 time from arrival to first token at a load of 0.95, divided by "
      "the same at 0.5", from_arrival[-1] / from_arrival[1], above=3)

# %% [markdown] trap="13.9" role="more" topics="means · the closed loop · pads and pieces counted as tokens"
# At half load, the mean hides the wait. The throughput hides the wait at every load
# below 1:

# %% trap="13.9" role="more" tags=["plumbing"]
def closed_loop(clients=8, requests=16000, seed=SEED):
    """Answers per second, when each client waits for its answer."""
    rng = random.Random(seed)
    free = [0.0] * clients
    for _ in range(requests):
        start = heapq.heappop(free)
        heapq.heappush(free, start + 0.05 + min(20, rng.expovariate(1)))
    return requests / max(free)

half_log = simulate(0.5)
half_mean = sum(s + 0.05 - a for a, s, _ in half_log) / 16000
open_rate = 16000 / (max(end for *_, end in log) - log[0][0])
sizes_of = random.Random(SEED)
answer_sizes = [sizes_of.randint(8, 512) for _ in range(16000)]
padded_sizes = sum(16 * max(answer_sizes[i:i + 16])
                   for i in range(0, 16000, 16))

# %% trap="13.9" role="more"
claim("mean time from arrival to first token at a load of 0.5, in s",
      half_mean, below=0.2)
claim("answers per second in a closed loop, divided by those in an open "
      "loop at a load of 0.8", closed_loop() / open_rate, above=1)
claim("token count with pads, divided by token count without pads",
      padded_sizes / sum(answer_sizes), above=1.5)

# %% [markdown] trap="13.9" role="more"
# The last claim above shows a second way to make a server look fast: counting the pads of
# a batch as tokens. A third way is to send the same prompts twice, so that the second
# time, the prefix cache does most of the work. You can also make a server look slow by
# counting each piece of a stream as one token, although speculation sends several tokens
# at once. Then the measured gaps between tokens are too long. With more clients than
# slots, requests do queue in a closed loop. But the clients can never send more requests
# than the server can serve.

# %% trap="13.9" role="exercise" points=3 difficulty=2 minutes=12
def first_token(arrive: list, chunks: list) -> tuple:
    """Compute (p99, gap, rate) for a server's run, as floats, with times in
    seconds.

    arrive: the times at which the requests were due, one or more, in any
    order. chunks: the pieces of each request, (time, tokens), in order of
    time. A piece with 0 tokens shows only that the server is alive, and is
    not part of the answer. At least one request gets a token.

    p99: the smallest time within which at least 99 % of the requests have
    their first token. Each time is measured from when the request was due.
    A request that never gets a token counts as math.inf. gap: the longest
    wait between two consecutive pieces of one answer. gap is 0.0 if no
    answer has two pieces. rate: the number of tokens in all answers,
    divided by the seconds from the first arrival to the last piece of an
    answer. Inputs are not changed.

    Example: arrive [0.], chunks [[(1., 0), (2., 3), (2.5, 1)]] give (2.0,
    0.5, 1.6).
    """
    # BEGIN SOLUTION
    answers = [[(t, n) for t, n in pieces if n > 0] for pieces in chunks]
    first = sorted(pieces[0][0] - start if pieces else math.inf
                   for start, pieces in zip(arrive, answers))
    p99 = first[math.ceil(99 * len(first) / 100) - 1]
    gaps = [b[0] - a[0] for one in answers for a, b in zip(one, one[1:])]
    last = max(one[-1][0] for one in answers if one)
    tokens = sum(n for one in answers for _, n in one)
    return p99, max(gaps, default=0.0), tokens / (last - min(arrive))
    # END SOLUTION

# %% [markdown] trap="13.9" role="hint"
# 1. First discard the pieces without tokens. A request's clock starts at its arrival and
#    stops at the first remaining piece.
# 2. Sort the times. The p99 is the time at position `ceil(0.99 * n)`, counted from 1.
# 3. A request that got nothing waits forever. If you leave such requests out, the
#    server looks better the more requests get nothing.

# %% [markdown] trap="13.9" role="keep"
# **Keep:** Start the clock when the user asks, and report every latency with its load and
# its percentile. **In your own code:** Record for each request when it was due, when it
# was sent, and when its first token came. The p99 of the delay between due and sent has
# to be about zero. If it is not, your load generator contains a queue of its own, even if
# that queue does not grow. **Source:** [Schroeder et al. 2006, "Open Versus Closed: A
# Cautionary
# Tale"](https://www.usenix.org/conference/nsdi-06/open-versus-closed-cautionary-tale).
# **Seen in the wild:** In [vllm-project/vllm
# 54101](https://github.com/vllm-project/vllm/issues/54101), the benchmark's latency left
# out the wait at its own semaphore.

# %% [markdown] role="concept"
# ## Further
#
# Real servers use the techniques of this stage. Three names are worth knowing: vLLM, with
# paged blocks and continuous batching; SGLang, which keeps prefixes in a tree; and
# llama.cpp, for small machines. Two parts of this section use Hugging Face's
# `transformers`, which is installed here; nothing is downloaded.

# %% [markdown] role="concept"
# ### Rows of unequal length
#
# In a padded batch, short prompts get *pads* on the left, and a mask hides the pads. But
# which positions do the letters get? You will often read that each row has to count from
# its own first letter, and that using one `arange` for all rows is the classic fault of
# batched generation.

# %% role="concept"
sizes = (8, 12, 20, 40)
prompts = [rows(1, n, kept_back)[0] for n in sizes]
padded = torch.stack([F.pad(p, (40 - len(p), 0)) for p in prompts])
real = torch.stack([torch.arange(40) >= 40 - n for n in sizes])
counted = (real.long().cumsum(1) - 1).clamp(min=0)    # from 0 in each row
shared = torch.arange(40).expand(4, 40)               # one for all rows

# %% role="concept" tags=["plumbing"]
def together(prefill, later, dice):
    """Letters of the padded rows; later(step): positions (4, 1)."""
    cache = Cache()
    keep = torch.ones(40, 40, dtype=torch.bool).tril() & real[:, None, None]
    keep = keep | torch.eye(40, dtype=torch.bool)     # a pad sees itself
    logits = gpt(padded, cache, prefill, keep)[:, -1]
    seen, written = real, []
    for step, number in enumerate(dice):
        new = pick(logits.softmax(-1), number)[:, None]
        written.append(new)
        seen = F.pad(seen, (0, 1), value=True)
        logits = gpt(new, cache, later(step), seen[:, None, None])[:, -1]
    return torch.cat(written, 1)

# %% role="concept" tags=["plumbing"]
single = torch.cat([write(gpt, p[None], dice) for p in prompts])
own = counted[:, -1:] + 1

def common(step):
    return torch.full((4, 1), 40 + step)

rules = {"own places": (counted, lambda step: own + step),
         "one arange for all": (shared, common),
         "own, then one for all": (counted, common)}
agree = {name: same(together(*rule, dice)[:3], single[:3])
         for name, rule in rules.items()}

# %% role="concept"
claim("one arange for all rows: fraction of a short row's letters that "
      "are the same as alone", agree["one arange for all"], above=0.95)

# %% [markdown] role="concept"
# With rotations, one `arange` for all rows is harmless, because within a row, every
# position is shifted by the same number and only differences count. One `arange` does
# harm with a table of learned positions, and with rotations whose speeds depend on the
# length (dynamic NTK and LongRoPE, two ways to handle longer texts). With rotations, half
# of the repair is worse than none. If each row has its own positions in the prefill but
# all rows share one position in decode, the short rows get a gap between prompt and
# answer. The first letter is still right. **Seen in the wild:** In [unslothai/unsloth
# 3699](https://github.com/unslothai/unsloth/issues/3699), the short prompts got garbage
# and the longest one was right. The thread blames the positions that all rows shared in
# decode; in the prefill, each row had its own positions.

# %% role="concept"
claim("own positions in prefill only: fraction of a short row's letters "
      "the same as when alone", agree["own, then one for all"], below=0.9)

# %% [markdown] role="concept"
# ### The same in a library
#
# The `generate` method of `transformers` accepts left-padded batches and by default
# decodes from a `DynamicCache`, which can be cropped after a rejection if no layer has a
# sliding window. A Llama built from a configuration, with random weights, is enough for a
# comparison:

# %% role="concept" tags=["plumbing"]
import contextlib
import io

with contextlib.redirect_stderr(io.StringIO()):   # notes of the imports
    import transformers
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
transformers.logging.set_verbosity_error()

# %% role="concept" tags=["plumbing"]
llama = LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=128, bos_token_id=None, eos_token_id=None,
    pad_token_id=0, initializer_range=0.5)).eval().requires_grad_(False)
small = torch.randint(1, 64, (1, 12))
options = {"max_new_tokens": 24, "do_sample": False}

# %% role="concept"
def by_hand(ids, n):
    """Greedy decoding, one token per call, from the library's cache."""
    cache, new, written = DynamicCache(config=llama.config), ids, []
    for _ in range(n):
        new = llama(new, past_key_values=cache).logits[:, -1:].argmax(-1)
        written.append(new)
    return torch.cat(written, 1)

own_way = by_hand(small, 24)
library = llama.generate(small, **options)[:, 12:]

# %% role="concept"
claim("fraction of greedy tokens on which decoding by hand and generate "
      "agree", same(own_way, library), above=0.99)

# %% [markdown] role="concept"
# Now put a short row and a long one into one batch, and let `generate` look for drafts in
# the text itself (`prompt_lookup_num_tokens`). Nearly all tokens stay the same.

# %% role="concept"
batch = torch.cat([F.pad(small, (20, 0)), torch.randint(1, 64, (1, 32))])
mask = torch.ones_like(batch)
mask[0, :20] = 0
beside = llama.generate(batch, attention_mask=mask, **options)[:1, 32:]
drafted = llama.generate(small, prompt_lookup_num_tokens=3,
                         **options)[:, 12:]

cache = DynamicCache(config=llama.config)
first_logits = llama(small, past_key_values=cache).logits[:, -1]
llama(torch.randint(1, 64, (1, 3)), past_key_values=cache)   # rejected
cache.crop(-4)                                   # and one more, fed again
after_crop = llama(small[:, 11:], past_key_values=cache).logits[:, -1]

# %% role="concept"
claim("short row in a batch with a long one: fraction of its tokens that "
      "are the same as alone", same(beside, library), above=0.95)
claim("drafts from the prompt: fraction of tokens that agree with "
      "decoding without drafts", same(drafted, library), above=0.95)
claim("largest change in a logit after three rejected tokens are cropped "
      "from the cache", (after_crop - first_logits).abs().max(), below=1e-4)

# %% [markdown] role="concept"
# ### The library's continuous batching
#
# `generate_batch` is the library's own server. It has a cache of pages, a queue, and
# requests that join and leave the batch as it runs. Five requests ask for 24 tokens each.
# One pass may read at most 24 tokens, so a long prompt is cut into pieces. A page (called
# a block in trap 13.1) holds 16 tokens. All five requests together need 15 pages. You
# first give the server 16 pages, then 12.

# %% role="concept" tags=["plumbing"]
from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig

# Older versions, such as 5.15, call a page a block.
page_size = ("page_size" if hasattr(ContinuousBatchingConfig, "page_size")
             else "block_size")
prompts = [torch.randint(1, 64, (n,)).tolist() for n in (5, 40, 12, 30, 7)]
greedy = GenerationConfig(**options, pad_token_id=0, eos_token_id=-1)

passes = []          # tokens of each pass of the model
counting = llama.register_forward_pre_hook(
    lambda _, args, given: passes.append(given["input_ids"].shape[1]),
    with_kwargs=True)

# %% role="concept"
def served(pages):
    """The five answers, (5, 24), and the number of tokens in each pass."""
    passes.clear()
    answers = llama.generate_batch(
        prompts, generation_config=greedy, warmup=False,
        continuous_batching_config=ContinuousBatchingConfig(
            **{page_size: 16}, num_blocks=pages, max_batch_tokens=24,
            use_cuda_graph=False, use_async_batching=False))
    return torch.tensor([answers[f"req_{i}"].generated_tokens
                         for i in range(5)]), passes.copy()

one_by_one = torch.cat([
    llama.generate(torch.tensor([ids]), **options)[:, -24:]
    for ids in prompts])
(with_room, wide), (pressed, narrow) = served(16), served(12)

# %% role="concept" tags=["plumbing"]
reread = sum(narrow) - sum(wide)
ax = new_axes(f"Four pages fewer: {reread} tokens are read again", "pass",
              "tokens in the pass")
for sizes, name, line in ((wide, "16 pages", "--"),
                          (narrow, "12 pages", "-")):
    ax.step(range(len(sizes)), sizes, line, where="post", label=name)
ax.legend()
show(ax.figure, "Tokens in each pass of the library's server. Both runs "
     "begin with four full passes of 24 tokens, followed by passes of one "
     "to five. With twelve pages, more full passes follow near the end, "
     "and the run ends later.")

# %% role="concept"
claim("requests join and leave a batch: fraction of their tokens that are "
      "the same as alone",
      min(same(with_room, one_by_one), same(pressed, one_by_one)),
      above=0.95)
claim("number of passes for five answers, which take 120 passes if served "
      "one by one", len(wide), below=40)
claim("number of tokens that are read again, with twelve pages", reread,
      above=10)

# %% [markdown] role="concept"
# Each answer is the same as when its request is served alone. With 12 pages, one request
# has to leave when the others grow, and its tokens are read again later. Reading these
# tokens twice costs extra passes but does not change the answers. This is the same
# eviction as in the section *Who may come in*. On a GPU, the library chooses the size of
# its cache from the free memory; on a CPU, new versions do so too, from the main memory
# (if `psutil` is installed).

# %% [markdown] role="concept"
# ### Greedy text and the size of the batch
#
# **Told:** Greedy decoding gives the same text, whatever else is in the batch.
# **Measured:** On a CPU in float32, with one new letter per row and a cache, a matrix
# product with one row may use a different kernel from a product with sixteen rows. So the
# logits may differ in their last bits, but the likeliest letter is the same. (With
# prompts of seven or more letters, no bit changed on the machine that built this page.)
# On a GPU in 16 bits, near ties can go either way, and then the text differs. vLLM
# promises equal text only if you switch on its batch-invariant kernels, which are slower.

# %% role="concept"
crowd = rows(16, 24, kept_back)

def after_prefill(rows):
    """Logits of one decode step, (rows, letters): one letter per row."""
    cache = Cache()
    gpt(rows[:, :-1], cache)
    return gpt(rows[:, -1:], cache)[:, -1]

with_others = after_prefill(crowd)
by_itself = torch.cat([after_prefill(one[None]) for one in crowd])

# %% role="concept"
claim("largest difference between a row's logits when it is alone and "
      "when it is among sixteen", (with_others - by_itself).abs().max(),
      below=1e-4)
claim("fraction of rows whose likeliest letter is the same alone and "
      "among sixteen rows",
      same(with_others.argmax(-1), by_itself.argmax(-1)), above=0.9)

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. Three requests share a block. One of them ends. Who may have the block?**
#
# - [ ] the next request that needs memory :: Two requests still read the block; they
#   would read the newcomer's keys.
# - [x] nobody yet, because two readers are left :: The block is free when its reference
#   count reaches zero.
# - [ ] the request that took it first :: It does not matter who took the block first;
#   only the count matters.

# %% [markdown] role="quiz"
# **2. A prefix cache finds 900 of 1,000 tokens of a prompt that nobody has sent before.
# That**
#
# - [ ] must be a fault :: A different prompt may have begun with the same 900 tokens.
# - [ ] is always right, because the tokens agree :: The tokens have to agree from the
#   start on, and the same weights and adapter must have read them.
# - [x] is right if all 900 are the beginning of a prompt that the same weights have read
#   :: A chained key that includes the extras guarantees exactly that.

# %% [markdown] role="quiz"
# **3. You keep one generator for each row of the batch. A seeded request is
# reproducible**
#
# - [x] until it moves to another row :: There it continues with the random numbers of
#   that row's previous request.
# - [ ] always, because no other request draws from the row's generator :: Rows are
#   reused, and each row keeps its generator.
# - [ ] never, because the batch size changes :: The other rows draw from their own
#   generators.

# %% [markdown] role="quiz"
# **4. The stop word is `###`. The text so far ends with `#`. The server sends**
#
# - [ ] all of it, because a single `#` is not the stop word :: If two more follow, the
#   first `#` should never have been sent.
# - [x] all but the last character :: This `#` is the longest ending that could begin the
#   stop word. The server sends it as soon as the next character is not a `#`.
# - [ ] nothing until the answer is complete :: Holding back the whole answer is safe, but
#   then the server no longer streams.

# %% [markdown] role="quiz"
# **5. Speculation with a new rule keeps 85 out of 100 drafts, and the old rule kept 75.
# You conclude that**
#
# - [ ] the new rule is better :: A wrong rule may accept more drafts; the acceptance
#   rate says nothing about the distribution.
# - [ ] the draft model has become better :: The draft model is the same; only the rule
#   has changed.
# - [x] you know nothing yet, and should test with a known p and q :: For one token at a
#   time, given p and q, no correct rule accepts more than the sum of `min(p, q)`. (Over
#   several tokens at once, a rule can: *block verification*.)

# %% [markdown] role="quiz"
# **6. A call read four tokens: the one written last and three drafts. The first two
# drafts are accepted. How many entries does the cache gain?**
#
# - [ ] four, because all were computed :: The rejected draft is in no answer, so its entry
#   has to go.
# - [ ] two, the accepted drafts :: The token that was fed first also has an entry.
# - [x] three, the token that was fed first and the two drafts :: The token that replaces
#   the rejected one has not been read yet.

# %% [markdown] role="quiz"
# **7. The keys have a few large channels, and you store them in 4 bits. Which numbers
# should share a scale?**
#
# - [x] one channel over many tokens :: The sizes in a channel are mostly similar, so few
#   entries take the levels away from the others.
# - [ ] one token over all channels :: Every token has the same few large channels, and
#   they set every scale.
# - [ ] all of them, with more clipping :: Clipping that helps the small channels cuts off
#   the large ones.

# %% [markdown] role="quiz"
# **8. The server uses top-p 0.9, the trainer has the same weights, and the ratios are all
# near 0.91. You should**
#
# - [ ] clip the ratios :: Clipping hides the fault, and the gradient stays scaled.
# - [x] give the trainer the kept sets :: The ratio is the kept mass; under the same cut
#   it is 1.
# - [ ] lower the learning rate :: The ratio is wrong before the first update.

# %% [markdown] role="quiz"
# **9. Eight clients each send a new request only when their last one has been answered,
# and the latency is low. With real users, the latency**
#
# - [ ] is the same, because eight are served at a time :: Real users do not wait for each
#   other; they queue.
# - [ ] is lower, because they send fewer requests :: The latency depends on the load, and
#   at a high load, requests wait.
# - [x] has to be measured with arrivals that do not wait for answers :: A closed loop
#   slows down with the server; with no more clients than slots, no queue ever forms.

# %% [markdown] role="quiz"
# **10. A grammar allows `yes` and `no`, one token each. Masking at this single step
# gives**
#
# - [x] the model's own odds of the two words :: With a single step, the mask cannot miss
#   anything that lies ahead.
# - [ ] the odds of a different distribution, as always :: The odds change only if an
#   answer has several steps.
# - [ ] odds of one half each :: The mask removes tokens; the other tokens keep their
#   ratios.

# %% [markdown] role="gpu"
# ## On a GPU: why a server wants a batch
#
# A layer reads its weights once per call, whether it gets one row or many. In decode,
# each request adds one row, its newest token. In prefill, each token of the prompt is a
# row. So in 16 bits, a prefill of hundreds of tokens does hundreds of FLOPs per byte of
# weights, and decode does one FLOP per byte of weights for each request. The requests of
# a batch share the weights, but each reads its own cache.
#
# **Before you run anything:** Take a model of 8 billion weights in 16 bits, with
# grouped-query attention, on one H200. How many tokens per second does a single user get?
# Above what context length do 16 users read more cache than weights? And how long does a
# prefill of 2,048 tokens take, as a multiple of a decode step?

# %% role="gpu"
from dlsys_helpers.gpu import half_dtype

def layer_weights(where, dtype, width=4096, inner=14336, kv=1024):
    """The matrices of one layer, as in Llama-3-8B: five products."""
    shapes = ((width + 2 * kv, width), (width, width), (inner, width),
              (inner, width), (width, inner))
    return [torch.randn(a, b, device=where, dtype=dtype) * 0.01
            for a, b in shapes]

def layer(x, weights):
    """All products of a layer for the rows x (rows, width)."""
    qkv, out, gate, up, down = weights
    h = F.linear(F.linear(x, qkv)[:, :out.shape[1]], out)
    return F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)

# %% role="gpu"
sheet = datasheet(None)
meta = layer_weights("meta", torch.bfloat16)
layer_bytes = sum(w.nbytes for w in meta)
head_bytes = 128_256 * 4096 * 2                  # also read in each step
weight_bytes = 32 * layer_bytes + head_bytes
token_bytes = 32 * 2 * 1024 * 2                  # keys, values, 16 bits

def tokens_a_second(users, context):
    """Tokens per second of all users, if memory is the limit."""
    read = weight_bytes + users * context * token_bytes
    return users * sheet.memory_gbs * 1e9 / read

def layer_flops(n):
    x = torch.empty(n, 4096, device="meta", dtype=torch.bfloat16)
    return flops(lambda: layer(x, meta))

# %% role="gpu"
level = weight_bytes / (16 * token_bytes)             # context, 16 users
print(f"weights {weight_bytes / 1e9:.1f} GB, cache {token_bytes / 1e3:.0f} "
      f"kB per token; 16 users: equal at {level:.0f} tokens")
for users in (1, 16, 64):
    rate = tokens_a_second(users, 2048)
    slower = users * tokens_a_second(1, 2048) / rate
    print(f"{users} users, context 2,048: at most {rate:,.0f} tokens per "
          f"second; a step takes {slower:.2f} times one user's")

# %% role="gpu"
claim("FLOPs per byte of weights, for one token",
      layer_flops(1) / layer_bytes, expected=1, within=0.01)
claim("FLOPs per byte of weights in a prefill of 2,048 tokens, divided by "
      "the GPU's ridge", layer_flops(2048) / layer_bytes / sheet.ridge,
      above=5)
claim("tokens per second at a context of 2,048 for 64 users, divided by "
      "those for one user",
      tokens_a_second(64, 2048) / tokens_a_second(1, 2048), above=20)

# %% role="gpu"
@gpu_result("13/layer", uses=[layer_weights, layer],
            columns=["rows", "us", "us_low", "us_high", "gb"])
def layer_times():
    """One layer: a token each of 1, 16, 64 users, and a prefill."""
    half = half_dtype("cuda")
    # four copies, used in turn: none is still in the GPU's own cache
    copies = [layer_weights("cuda", half) for _ in range(4)]
    for n in (1, 16, 64, 2048):
        x = torch.randn(n, 4096, device="cuda", dtype=half)
        t = seconds(lambda: [layer(x, w) for w in copies], repeats=10,
                    device="cuda", calls=5)
        yield {"rows": n, "us": t.median / 4 * 1e6,
               "us_low": t.low / 4 * 1e6, "us_high": t.high / 4 * 1e6,
               "gb": sum(w.nbytes for w in copies[0]) / 1e9}

# %% role="gpu"
@gpu_result("13/cache", uses=[], columns=["context", "us", "gb"])
def cache_times():
    """Attention of one token each of 16 users over their caches."""
    half = half_dtype("cuda")
    for context in (2048, 16384):
        q = torch.randn(16, 32, 1, 128, device="cuda", dtype=half)
        k, v = (torch.randn(16, 8, context, 128, device="cuda", dtype=half)
                for _ in range(2))
        t = seconds(lambda: F.scaled_dot_product_attention(
            q, k, v, enable_gqa=True), repeats=10, device="cuda", calls=5)
        yield {"context": context, "us": t.median * 1e6,
               "gb": (k.nbytes + v.nbytes) / 1e9}

# %% role="gpu"
def bandwidth(result, **row):
    """GB/s read for one row, divided by the datasheet's bandwidth."""
    rate = result.value("gb", **row) / result.value("us", **row) * 1e6
    return rate / datasheet(result.device_name).memory_gbs

def over_one(rows):
    """Time with this many rows, divided by the time with one."""
    return (layer_times.value("us", rows=rows)
            / layer_times.value("us", rows=1))

# %% role="gpu"
peak = datasheet(layer_times.device_name)
prefill_over_one = (layer_flops(2048) / peak.half_tflops / 1e12) / (
    layer_bytes / peak.memory_gbs / 1e9)
answers_here = gpu_table(
    peak,
    layer_times.asks("one row: bandwidth, divided by the datasheet's", 1,
                     lambda: bandwidth(layer_times, rows=1),
                     "0.69, all of Llama-2-7B, A100, gpt-fast", above=0.3),
    layer_times.asks("time for 16 rows, divided by time for one", 1,
                     lambda: over_one(16), below=2),
    layer_times.asks("time for a prefill of 2,048, divided by time for one",
                     round(prefill_over_one, 1), lambda: over_one(2048),
                     above=2),
    cache_times.asks("16 users, 16,384 tokens: fraction of bandwidth", 1,
                     lambda: bandwidth(cache_times, context=16384),
                     above=0.1))
answers_here

# %% [markdown] role="gpu"
# **On the H100 used for the recorded run**, the products of a layer take 6 % more time
# for 64 rows than for one row, because the layer mostly reads weights, and it reads them
# once for all rows. A prefill of 2,048 tokens takes eight times as long as one token, for
# 2,048 times the work. One row reaches three quarters of the datasheet's bandwidth;
# attention over caches of 16,384 tokens reaches nine tenths. In one layer, reading the
# caches for 16 users takes 351 µs, twice as long as the products of one row, which read
# all weights of the layer. For separate caches, batching saves nothing.
#
# **Keep:** A decode step of a dense model on one GPU takes at least as long as reading
# the weights of all its layers. (Speculation writes more than one token per step.) More
# users are almost free as long as they are few (64 are measured here; from about 300 on,
# an H100 computes longer than it reads weights) and their caches are small compared with
# the weights. When the caches are as large as the weights, a step takes twice as long.
# gpt-fast reports 104.9 tokens per second for Llama-2-7B in 16 bits on an A100 (with
# power limited to 330 W), which is 1,397 GB/s out of the datasheet's 2,039. With 8
# bits, it reports 155.58 tokens per second, and with 4 bits (groups of 32) 196.80. The
# reported bandwidth divided by the tokens per second is the amount that the model reads
# for one token: 13.3, 6.9 and 4.4 GB. From the bytes alone, you would expect 1.9 and
# 3.0 times the speed, not two and four times. With 4 bits, about a fifth of the bytes
# are the scales and zeros of the groups. **Source:** [pytorch-labs/gpt-fast,
# README](https://github.com/pytorch-labs/gpt-fast/blob/0f925b5d4ce457b89a7ca6c9ce50f42bf2576945/README.md),
# "Benchmarks".

# %% [markdown] role="summary"
# ## What you take with you
#
# - The prompt and the random numbers determine the answer if the kernels' results do not
#   depend on the batch. If the results do depend on the batch, texts may part at a near
#   tie, or where a random number is close to the border between two letters.
# - Free a cache block only when the last request that reads it has left.
# - A cache block's key has to cover everything that the block was computed from.
# - Let everything that belongs to a request travel with the request: random numbers,
#   stop words, masks.
# - Decode a stream as one text, and hold back every byte that may still become part of
#   something else.
# - A mask at each step makes every finished answer valid, but over several steps, it
#   changes the answers' odds.
# - After a rejected draft, sample from the missing part of the target's distribution, and
#   remove the rejected tokens from the cache.
# - Let numbers share a quantization scale only if their sizes are similar.
# - Compute a token's log-probability under the distribution that the token was sampled
#   from.
# - When you measure latency, start the clock when the user asks.
#
# **Next:** Try one of these checks on a server of your own. Send one prompt with one
# seed, alone and in a full batch, with batch-invariant kernels, and compare the
# answers. Without such kernels, look at the first token that differs, and check that a
# tiny change of the logits there flips the draw.
