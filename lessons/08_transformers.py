# %% [markdown] role="hook" draft=true
# # 8. Transformers, attention and GPU kernels
#
# Your model is to read longer texts. The formula stays, the weights stay, and yet
# memory runs out, or a kernel that does no more work takes eight times as long.
#
# What decides is how numbers travel: what is written down on the way, and which
# addresses are asked for together. All of it can be counted on paper, without a GPU.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import math
import os

import torch
from torch.nn import functional as F

from dlsys_helpers.gpu import device

if device(DEVICE).type == "cpu":       # before anything imports triton
    os.environ["TRITON_INTERPRET"] = "1"

from dlsys_helpers import (
    begin, check, claim, cost, datasheet, flops, gpu_result, gpu_table,
    guess, measured, peak_bytes, plot_lines, seconds,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## Attention in one formula
#
# $$\mathrm{softmax}\left(\frac{q k^\top}{\sqrt{D}}\right) v$$
#
# Shapes: `M` queries and `N` keys of `D` numbers, `N` values of `E`. Each query
# weighs all values.

# %% [markdown] trap="08.1" role="predict" symptom="the other half of the stage"
# ## Trap 08.1: the other half of this stage

# %% [markdown] trap="08.2" role="predict" symptom="the other half of the stage"
# ## Trap 08.2: the other half of this stage

# %% [markdown] trap="08.3" role="predict" symptom="the other half of the stage"
# ## Trap 08.3: the other half of this stage

# %% [markdown] trap="08.4" role="predict" core=true symptom="attention runs out of memory for long sequences, n x n matrix, what does flash attention leave out"
# ## The same attention without the matrix
#
# You write attention as in the formula. Twice the tokens, four times the memory, until
# it is gone. A colleague replaces three lines by torch's
# `scaled_dot_product_attention`, and memory is no question any more. "Flash," he says.
# "It cheats somewhere, of course."

# %% trap="08.4" role="predict"
guess("08.4", "Where does it save?",
      choices=["it leaves out products that hardly count",
               "nowhere in products: it never keeps all weights at a time",
               "it rounds: results differ beyond `0.001`"])

# %% trap="08.4" role="break"
def written_out(q, k, v):
    """Attention (..., M, E) as the formula says it."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])       # (..., M, N)
    return scores.softmax(-1) @ v

def tokens(n, heads=4, d=64, device="cpu"):
    """Random q, k and v (1, heads, n, d)."""
    return torch.randn(3, 1, heads, n, d, device=device).unbind()

torch_s = F.scaled_dot_product_attention
lengths = [256, 512, 1024, 2048]
kept = {"written out": [], "torch's": []}                # bytes at a time
for n in lengths:
    qkv = tokens(n)
    kept["written out"].append(cost(lambda: written_out(*qkv)).peak)
    kept["torch's"].append(cost(lambda: torch_s(*qkv)).peak)

# %% trap="08.4" role="look"
gap = (written_out(*qkv) - torch_s(*qkv)).abs().max()
print(f"largest gap between the two results: {gap:.0e}")
plot_lines(lengths, {name: [b / 2**20 for b in values]
                     for name, values in kept.items()},
           xlabel="tokens", ylabel="MiB at a time (log)", logx=True,
           logy=True, title="Twice the tokens: four times, or twice",
           alt="Memory over tokens on log axes; written out rises twice "
               "as steeply as torch's.")

# %% trap="08.4" role="look"
claim("largest gap between the formula and torch's attention", gap,
      below=1e-4)
claim("written out, 2048 tokens over 1024: bytes at a time",
      kept["written out"][-1] / kept["written out"][-2], expected=4,
      within=0.1)
claim("torch's, 2048 tokens over 1024: bytes at a time",
      kept["torch's"][-1] / kept["torch's"][-2], expected=2, within=0.1)

# %% [markdown] trap="08.4" role="repair"
# So it does not round. Does it multiply less? A softmax needs the sum over all keys, so
# how can one do without the row of scores?
#
# Take a row of scores in tiles. Keep two numbers: the largest score so far, `top`, and
# the sum so far of $e^{s - \mathrm{top}}$. When a tile brings a larger score, each old
# term was measured from the wrong top. All of them are wrong by the same factor,
# $e^{\mathrm{old} - \mathrm{new}}$, and one product puts them right. That is the *online
# softmax*.

# %% trap="08.4" role="repair"
def online(scores, tile):
    """Largest score, and sum of exp(score - largest), a tile at a time."""
    top, total = -math.inf, 0.0
    for part in scores.split(tile):
        new = max(top, part.max().item())
        fix = math.exp(top - new)                # 1 if nothing larger came
        total = total * fix + (part - new).exp().sum().item()
        top = new
    return top, total

# %% trap="08.4" role="repair"
scores = 40 * torch.randn(1000)
top, total = online(scores, tile=64)
in_tiles = top + math.log(total)
at_once = scores.double().logsumexp(0).item()
bare = scores.exp().sum().item()                 # no maximum taken away
print(f"in tiles {in_tiles:.4f}, at once {at_once:.4f}, "
      f"without a maximum {bare}")

# %% trap="08.4" role="repair"
claim("log of the sum of exps, in tiles less at once", in_tiles - at_once,
      expected=0, within=1e-3)
claim("without a maximum the sum overflows", math.isinf(bare),
      expected=True)

# %% [markdown] trap="08.4" role="repair"
# The output is a sum of values, weighted with the same terms. So the same factor mends
# it, too, and the weights of a tile may be thrown away as soon as they were used.

# %% trap="08.4" role="repair"
def tiled(q, k, v, tile=128):
    """Attention (..., M, E), with the weights of one tile at a time."""
    top = q.new_full((*q.shape[:-1], 1), -math.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    for keys, values in zip(k.split(tile, -2), v.split(tile, -2)):
        scores = q @ keys.mT / math.sqrt(q.shape[-1])
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        fix, weights = (top - new).exp(), (scores - new).exp()
        total = total * fix + weights.sum(-1, keepdim=True)
        out = out * fix + weights @ values
        top = new
    return out / total

# %% trap="08.4" role="repair"
q, k, v = tokens(1024)
off = (tiled(q, k, v) - written_out(q, k, v)).abs().max()
size = {n: cost(lambda: tiled(*tokens(n, device="meta"))).peak
        for n in (4096, 8192)}

# %% trap="08.4" role="repair"
claim("tiles of 128 keys: largest gap to the formula", off, below=1e-4)
claim("8192 tokens over 4096: bytes at a time", size[8192] / size[4096],
      expected=2, within=0.1)
claim("products in tiles over products of the formula",
      flops(lambda: tiled(q, k, v)) / flops(lambda: written_out(q, k, v)),
      expected=1)

# %% trap="08.4" role="repair"
measured("08.4", 1)

# %% [markdown] trap="08.4" role="repair"
# The same products, and a few more exponentials. On a GPU this is faster all the same,
# for what costs time there is traffic with the large memory: the formula writes the
# scores, reads them, writes the weights and reads those. A flash kernel holds a block of
# queries on the chip and streams all keys and values past it. So it reads them once for
# each block of queries.

# %% trap="08.4" role="repair"
def traffic(n, d=64, block=None, size=2):
    """Bytes of one head to and from memory; block: queries on the chip."""
    ends = 2 * n * d * size                      # q is read, out written
    if block is None:                            # scores and weights travel
        return ends + 2 * n * d * size + 4 * n * n * size
    return ends + math.ceil(n / block) * 2 * n * d * size

moved = {n: (traffic(n), traffic(n, block=128)) for n in (4096, 8192)}
for n, (formula, flash) in moved.items():
    print(f"{n} tokens: formula {formula / 1e6:.0f} MB, "
          f"flash {flash / 1e6:.0f} MB")

# %% trap="08.4" role="repair"
claim("4096 tokens, 16 bit, 128 queries a block: bytes of the formula "
      "over bytes of flash", moved[4096][0] / moved[4096][1],
      above=3, below=5)
claim("bytes of flash, 8192 tokens over 4096", moved[8192][1]
      / moved[4096][1], above=3.8)

# %% [markdown] trap="08.4" role="repair"
# Step through the tiles of one row below. Switch a rescaling off, and say first which
# rows of scores hide the mistake.

# %% role="explore" explorer="online_softmax"
from dlsys_helpers.explorers.online_softmax import online_softmax

online_softmax

# %% [markdown] trap="08.4" role="folklore"
# **Told:** flash attention makes the traffic linear in the number of tokens. **Counted**
# for blocks of 128 queries and heads of 64 numbers: what is *kept* is linear. What is
# *moved* still grows fourfold when the tokens double, from a start that is four times
# smaller.

# %% trap="08.4" role="exercise" points=5 difficulty=4 minutes=30
def tiled_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                    length: int, tile: int) -> torch.Tensor:
    """Causal attention of M queries over a cache, tile keys at a time.

    q: (M, D), k: (N, D), v: (N, E), float32, left as they are; of the
    cache only the first length slots are filled, 0 <= length <= N, and
    what the others hold, NaN included, changes nothing. The queries are
    the last M of these length positions: query i sees the keys 0 to
    i + length - M. A query that sees no key gives zeros. Scores are divided
    by sqrt(D) and may reach thousands, of either sign. The largest tensor
    that is made does not grow with N; torch's own attention is not called.

    Example: q [[0.]], k [[1.], [2.], [nan]], v [[1.], [3.], [nan]], length
    2 and tile 1 give [[2.]].
    """
    # BEGIN SOLUTION
    M, D = q.shape
    top = torch.full((M, 1), -math.inf)
    total, out = torch.zeros(M, 1), torch.zeros(M, v.shape[1])
    last = torch.arange(M)[:, None] + length - M     # the last key it sees
    for start in range(0, length, tile):
        stop = min(start + tile, length)
        scores = q @ k[start:stop].T / math.sqrt(D)
        hidden = torch.arange(start, stop) > last
        scores = scores.masked_fill(hidden, -math.inf)
        new = torch.maximum(top, scores.amax(1, keepdim=True))
        base = new.masked_fill(new == -math.inf, 0)  # sees nothing yet
        fix, weights = (top - base).exp(), (scores - base).exp()
        total = total * fix + weights.sum(1, keepdim=True)
        out = out * fix + weights @ v[start:stop]
        top = new
    return out / total.masked_fill(total == 0, 1)
    # END SOLUTION

# %% [markdown] trap="08.4" role="hint"
# 1. Begin with `tiled` above. Let the loop end at `length`, and slice k and v by hand, so that the last tile may be short and no empty slot is read.
# 2. Query `i` sees key `j` if `j <= i + length - M`. Give all other scores of the tile the value minus infinity.
# 3. A row that has seen nothing has a top of minus infinity, and infinity minus infinity is NaN. Measure such a row from 0 instead; its sum stays 0, and you divide by 1.

# %% [markdown] trap="08.4" role="keep"
# **Keep:** a softmax can be built tile by tile with a running maximum, a running sum and
# one factor that mends both sum and output. Memory becomes linear; the products stay.
# **In your own code:** look for a tensor of shape `(..., N, N)`; call
# `scaled_dot_product_attention`, and test an own kernel with scores of thousands, ragged
# tiles and rows without any key. **Source:**
# [Milakov & Gimelshein 2018](https://arxiv.org/abs/1805.02867) for the online softmax;
# [Dao et al. 2022](https://arxiv.org/abs/2205.14135), theorem 2, for the traffic.
# **Seen in the wild:**
# [tracel-ai/cubecl 1070](https://github.com/tracel-ai/cubecl/pull/1070): rows without a
# key gave NaN in the reference and numbers in the kernel, and the test let that pass;
# [pytorch/pytorch 101967](https://github.com/pytorch/pytorch/issues/101967): a NaN
# behind the mask reaches the result.

# %% [markdown] trap="08.5" role="predict" core=true symptom="GPU kernel reads an eighth of the data and is as slow as reading all, uncoalesced memory access, array of structs"
# ## One field of every record
#
# A table of particles holds records of eight 32-bit floats: place, velocity, mass,
# charge. Your kernel needs the mass alone, an eighth of the table. Thread `i` reads the
# mass of record `i`. "An eighth of the bytes," you say, "an eighth of the time."

# %% trap="08.5" role="predict"
guess("08.5", "What share of the table's bytes travels from memory?",
      unit="%")

# %% trap="08.5" role="break"
SECTOR, WARP, FLOAT = 32, 32, 4                  # bytes, threads, bytes

def moved(address, threads=WARP):
    """Bytes that one load of a warp moves; thread i reads address(i)."""
    return SECTOR * len({address(i) // SECTOR for i in range(threads)})

fields, mass = 8, 6
table_bytes = WARP * fields * FLOAT              # the records of a warp
by_record = moved(lambda i: FLOAT * (fields * i + mass))

# %% trap="08.5" role="look"
share = by_record / table_bytes
print(f"of {table_bytes} bytes {by_record} travel, "
      f"{WARP * FLOAT} of them are used")

# %% trap="08.5" role="look"
claim("bytes moved over bytes of the table", share, expected=1)

# %% trap="08.5" role="look"
measured("08.5", 100 * share, right=(95, 100))

# %% [markdown] trap="08.5" role="repair"
# Memory is not read by the number. 32 threads, a *warp*, ask together, and what comes is
# whole *sectors* of 32 bytes. Eight floats fill a sector, and each thread touches another
# one. The cure is the layout: all masses side by side, so that a sector brings eight of
# them. Loads of neighbours that fall into few sectors are called *coalesced*.

# %% trap="08.5" role="repair"
by_field = moved(lambda i: FLOAT * i)
strides = {s: moved(lambda i: FLOAT * s * i) // SECTOR
           for s in (1, 2, 4, 8, 16, 32)}
shifted = moved(lambda i: FLOAT * (i + 1)) // SECTOR
backwards = moved(lambda i: FLOAT * (31 - i)) // SECTOR
print("sectors by stride:", strides)
print(f"one number off: {shifted}, from the last to the first: {backwards}")

# %% trap="08.5" role="repair"
claim("masses side by side: bytes moved over bytes used",
      by_field / (WARP * FLOAT), expected=1)
claim("sectors at stride 8 over stride 1", strides[8] / strides[1],
      expected=8)
claim("sectors at stride 32 over stride 8", strides[32] / strides[8],
      expected=1)

# %% [markdown] trap="08.5" role="repair"
# Order within the warp costs nothing. A start one number off costs one sector more. From
# stride 8 on nothing gets worse: each thread has a sector of its own already.
#
# The same holds for a matrix, without a word about records: down a column, neighbours in
# the warp are a row apart. Which index runs with the thread decides.

# %% trap="08.5" role="repair"
matrix = torch.empty(64, 256)
row_step, column_step = (FLOAT * s for s in matrix.stride())
along = moved(lambda i: column_step * i) // SECTOR
down = moved(lambda i: row_step * i) // SECTOR
print(f"along a row {along} sectors, down a column {down}")

# %% trap="08.5" role="repair"
claim("sectors down a column over along a row", down / along, expected=8)

# %% [markdown] trap="08.5" role="repair"
# This counts bytes of one load, and no time. A cache may still hold a sector when the
# next load wants the rest of it; then the bytes are not lost. A kernel that reads *all*
# fields, one after the other, can live on that.
#
# Move the controls below, and say the number of sectors first.

# %% role="explore" explorer="warp_addresses"
from dlsys_helpers.explorers.warp_addresses import warp_addresses

warp_addresses

# %% trap="08.5" role="exercise" points=3 difficulty=2 minutes=15
def sectors(addresses: list, size: int) -> list:
    """For each warp of a block, the number of sectors that it touches.

    addresses: for each thread, in order, the byte where its read begins,
    from 0 on; in any order, and several may be the same. None for a thread
    that reads nothing. A warp is 32 threads in a row, the last one maybe
    fewer; a sector is 32 bytes from a multiple of 32 on. A thread reads
    size bytes from there, 1 to 16; where they lie in two sectors, both are
    touched.

    Example: sectors([0, 4, 64, None], 4) is [2].
    """
    # BEGIN SOLUTION
    counts = []
    for start in range(0, len(addresses), 32):
        touched = set()
        for first in addresses[start:start + 32]:
            if first is not None:
                last = first + size - 1
                touched.update((first // 32, last // 32))
        counts.append(len(touched))
    return counts
    # END SOLUTION

# %% [markdown] trap="08.5" role="hint"
# 1. Go through the list in slices of 32, and begin a new set for each.
# 2. Byte `b` lies in sector `b // 32`. A read of at most 16 bytes lies in one sector or two: that of its first byte and that of its last.
# 3. The last byte is `first + size - 1`. Skip `None`; `0` is an address.

# %% [markdown] trap="08.5" role="keep"
# **Keep:** a warp moves sectors, not numbers: let neighbouring threads read neighbouring
# numbers. **In your own code:** look at what the index of the thread is multiplied
# with; in Nsight Compute, read sectors per request, 4 for 32-bit numbers side by side.
# **Source:** [CUDA C++ Best Practices
# Guide](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/), "Coalesced Access to
# Global Memory".

# %% [markdown] trap="08.6" role="predict" symptom="shared memory transpose slow, column access in a 32 by 32 tile, why pad to 33 columns"
# ## A column that nobody uses
#
# To transpose a matrix without strides you fetch a tile of 32 x 32 floats into shared
# memory, row by row, and read it out column by column. Shared memory has no sectors. It
# has 32 *banks*: word `w` of 4 bytes lies in bank `w % 32`, and a bank gives out one
# word at a time. Your profiler complains, and a forum says: make the tile 33 columns
# wide, and leave the last one empty.

# %% trap="08.6" role="predict"
guess("08.6", "How many turns does a warp need to read one column of the "
      "wider tile?",
      choices=["`32`, as before: it is the same column",
               "`16`: every second word moves to another bank", "`1`"])

# %% trap="08.6" role="break"
def turns(words):
    """Turns that 32 banks take to give out these words to a warp."""
    banks = [{w for w in words if w % 32 == bank} for bank in range(32)]
    return max(map(len, banks))

def row(width):
    return [i for i in range(32)]                # thread i reads column i

def column(width):
    return [width * i for i in range(32)]        # thread i reads row i

found = {width: (turns(row(width)), turns(column(width)))
         for width in (32, 33, 34, 36, 40)}

# %% trap="08.6" role="look"
for width, (of_row, of_column) in found.items():
    print(f"{width} columns wide: a row {of_row}, a column {of_column}")

# %% trap="08.6" role="look"
claim("turns for a column, 32 wide", found[32][1], expected=32)
claim("turns for a column, 33 wide", found[33][1], expected=1)

# %% trap="08.6" role="look"
measured("08.6", 2)

# %% [markdown] trap="08.6" role="repair"
# Rows of 32 words put a whole column into one bank. With 33 words a row, each row begins
# one bank further on, and the column goes once round all banks. It is not the odd tail
# that helps but the step: with a step of `s` words the warp needs as many turns as the
# greatest common divisor of `s` and 32.

# %% trap="08.6" role="repair"
agree = all(turns([step * i for i in range(32)]) == math.gcd(step, 32)
            for step in range(1, 200))
same_word = turns([7] * 32)
two_words = turns([7, 39] * 16)
print(f"all threads read one word: {same_word}, two words of a bank: "
      f"{two_words}")

# %% trap="08.6" role="repair"
claim("turns are gcd(step, 32) for steps of 1 to 199", agree,
      expected=True)
claim("turns where all read one word", same_word, expected=1)
claim("turns where they read two words of one bank", two_words, expected=2)

# %% [markdown] trap="08.6" role="repair"
# One word for all is no conflict: it is given out once, to everybody. Only *different*
# words of one bank wait for each other. And wider is not better: 36 or 40 columns bring
# conflicts back.

# %% trap="08.6" role="repair"
claim("turns for a column, 40 wide", found[40][1], expected=8)

# %% trap="08.6" role="exercise" points=2 difficulty=2 minutes=10
def conflict_degree(addresses: list) -> int:
    """How many turns shared memory takes for one read of a warp.

    addresses: for each of at most 32 threads the byte that it reads, from
    0 on, or None for one that reads nothing. A word is 4 bytes from a
    multiple of 4 on, and word w lies in bank w % 32. In a turn each bank
    gives out one word, to all threads that read any byte of it; where
    nobody reads, there is no turn.

    Example: conflict_degree([0, 128, 2, None]) is 2.
    """
    # BEGIN SOLUTION
    banks = {}
    for address in addresses:
        if address is not None:
            word = address // 4
            banks.setdefault(word % 32, set()).add(word)
    return max(map(len, banks.values()), default=0)
    # END SOLUTION

# %% [markdown] trap="08.6" role="hint"
# 1. The example: bytes 0 and 2 belong to word 0, byte 128 to word 32. Which bank has both?
# 2. Keep a set of words for each bank; a set counts a word once.
# 3. The answer is the size of the largest set, and 0 where there is none.

# %% [markdown] trap="08.6" role="keep"
# **Keep:** different words of one bank are given out one after the other; a row that is
# one word longer moves a column through all banks. **In your own code:** write down the
# step between neighbouring threads in words; odd is free of conflicts. This model is for
# reads of 4 bytes a thread; wider ones are served in parts of a warp. **Source:**
# [CUDA C++ Best Practices
# Guide](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/), "Shared Memory and
# Memory Banks".

# %% [markdown] trap="08.7" role="predict" symptom="rare branch in a CUDA kernel is slow, warp divergence, if with few threads"
# ## A branch for one thread in twenty
#
# Most numbers take a short path of 10 instructions. One in twenty, drawn at random, is
# an outlier and takes a long one of 100. "Rare enough," says the review. "On average 5
# of the 100."
#
# The threads of a warp issue their instructions together. Where they disagree, the warp
# walks both paths, and those who do not belong there wait.

# %% trap="08.7" role="predict"
guess("08.7", "In what share of the warps does somebody take the long "
      "path?", unit="%")

# %% trap="08.7" role="break"
SHORT, LONG, WARPS = 10, 100, 4000
outlier = torch.rand(WARPS, 32) < 0.05           # (warps, threads)

def issued(takes_long):
    """Instructions that warps issue; takes_long: (warps, 32) of bool."""
    long = takes_long.any(1).sum() * LONG
    short = (~takes_long).any(1).sum() * SHORT
    return (long + short).item()

wanted = (outlier.sum() * LONG + (~outlier).sum() * SHORT).item() / 32

# %% trap="08.7" role="look"
share = outlier.any(1).float().mean().item()
print(f"warps with an outlier: {share:.0%}, expected "
      f"{1 - 0.95 ** 32:.0%}")
print(f"issued over what full warps would issue: "
      f"{issued(outlier) / wanted:.1f}")

# %% trap="08.7" role="look"
claim("share of warps that walk the long path", share,
      expected=1 - 0.95 ** 32, within=0.03)
claim("instructions issued over those of full warps",
      issued(outlier) / wanted, above=5.5, below=6.8)

# %% trap="08.7" role="look"
measured("08.7", 100 * share, right=(75, 87))

# %% [markdown] trap="08.7" role="repair"
# A warp is spared only if all 32 agree. So bring together who goes the same way: sort
# the numbers, or write the outliers into a list and give it to a second kernel.

# %% trap="08.7" role="repair"
together = outlier.flatten().sort().values.view(WARPS, 32)
halves = torch.arange(64 * 32).view(-1, 32) < 32 * 32
stripes = torch.arange(64 * 32).view(-1, 32) % 2 == 0
print(f"sorted: {issued(together) / wanted:.2f}")
print(f"first half against second: {issued(halves)}, "
      f"even against odd: {issued(stripes)} instructions")

# %% trap="08.7" role="repair"
claim("sorted: instructions issued over those of full warps",
      issued(together) / wanted, below=1.05)
claim("even against odd over first half against second",
      issued(stripes) / issued(halves), expected=2)

# %% [markdown] trap="08.7" role="repair"
# A branch by warp costs nothing: `if i < n / 2` splits the block between two warps. A
# branch by thread, `if i % 2`, splits every warp. Sorting is work of its own, and it
# scatters the addresses of trap 08.5; whether it pays is a measurement.

# %% trap="08.7" role="exercise" points=2 difficulty=2 minutes=10
def warp_passes(paths: list, lengths: dict) -> int:
    """How many instructions the warps of a block issue at a branch.

    paths: for each thread, in order, the name of the path that it takes,
    or None if it has left already. lengths: instructions on each path, by
    name, 0 or more. A warp is 32 threads in a row, the last one maybe
    fewer; it issues each path that one of its threads takes, once, whoever
    else waits.

    Example: warp_passes(["a", "b", "a", None], {"a": 5, "b": 2}) is 7.
    """
    # BEGIN SOLUTION
    issued = 0
    for start in range(0, len(paths), 32):
        taken = set(paths[start:start + 32]) - {None}
        issued += sum(lengths[path] for path in taken)
    return issued
    # END SOLUTION

# %% [markdown] trap="08.7" role="hint"
# 1. Slices of 32 again. What counts in a slice is which names occur, not how often.
# 2. `set(paths[start:start + 32])` has each name once; take `None` out of it.

# %% [markdown] trap="08.7" role="keep"
# **Keep:** a warp issues every path that one of its threads takes. A rare branch is
# rarely rare for 32. **In your own code:** ask whether a condition is the same for the
# whole warp; in Nsight Compute, read the active threads per warp. **Source:**
# [CUDA C++ Best Practices
# Guide](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/), "Branching and
# Divergence".

# %% [markdown] trap="08.8" role="predict" core=true symptom="GPU idle with many small operations, kernel launch overhead, fuse elementwise operations"
# ## A chain of small steps
#
# An activation, written out as torch operations: multiply, add, tanh, multiply. Each is
# a *kernel* of its own: it is launched, reads its input and writes its output. To
# launch one takes about four microseconds, and the device moves 4.8 TB each second.

# %% trap="08.8" role="predict"
guess("08.8", "From how many 16-bit numbers on does one operation, which "
      "reads and writes each, take longer than its launch?",
      choices=["about `5000`", "about `100 000`", "about `5 000 000`"])

# %% trap="08.8" role="break"
def gelu(x):
    """GELU by its tanh formula, one torch operation at a time."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + torch.tanh(inner))

LAUNCH, RATE = 4e-6, 4.8e12                      # seconds, bytes/s
even = LAUNCH * RATE / 4                         # 2 bytes in, 2 out
x = torch.empty(4096, device="meta", dtype=torch.float16)
chain, fused = cost(lambda: gelu(x)), cost(lambda: F.gelu(x))

# %% trap="08.8" role="look"
print(f"launch and traffic are equal at {even / 1e6:.1f} million numbers")
for name, c in (("written out", chain), ("fused", fused)):
    print(f"{name}: {c.orders} launches, "
          f"{c.written / x.nbytes:.0f} tensors written")

# %% trap="08.8" role="look"
claim("numbers at which launch and traffic are equal, in millions",
      even / 1e6, expected=4.8)
claim("launches of the chain over one", chain.orders / fused.orders,
      above=7)

# %% trap="08.8" role="look"
measured("08.8", 2)

# %% [markdown] trap="08.8" role="repair"
# Below that size a chain is the sum of its launches, whatever the operations do. Above
# it the chain is the sum of its traffic. One *fused* kernel helps on both sides: one
# launch, one read and one write. So predict both sides before you fuse:

# %% trap="08.8" role="repair"
def predicted(numbers, launches, tensors):
    """Microseconds: launches and traffic, whichever takes longer."""
    return 1e6 * max(launches * LAUNCH, tensors * numbers * 2 / RATE)

gain = {}
for numbers in (4096, 2**20, 2**28):
    # each order reads one tensor or two; here one, the least
    alone = predicted(numbers, chain.orders, 2 * chain.orders)
    gain[numbers] = alone / predicted(numbers, 1, 2)
    print(f"{numbers:>10,} numbers: {alone:8.0f} us in a chain, "
          f"{gain[numbers]:.0f} times the fused kernel")

# %% trap="08.8" role="repair"
claim("predicted gain for 4096 numbers", gain[4096],
      expected=chain.orders)
claim("predicted gain for 2^28 numbers", gain[2**28],
      expected=chain.orders)

# %% [markdown] trap="08.8" role="repair"
# How does a fused kernel look from inside? It is a *program* that is started many times.
# Each start knows its number and takes a block of places. The last block is seldom full,
# and whoever does not mask it reads and writes somebody else's memory. Here a load and a
# store of lists stand for the device:

# %% trap="08.8" role="repair"
memory = {"x": torch.randn(10), "y": torch.full((10,), math.nan)}

def double(n, block, program):
    """Program number `program` of a kernel that writes y = 2 x."""
    places = program * block + torch.arange(block)
    places = places[places < n]                  # the mask of the tail
    memory["y"][places] = 2 * memory["x"][places]

for program in range(math.ceil(10 / 4)):
    double(10, 4, program)

# %% trap="08.8" role="repair"
claim("largest gap to 2 x over ten numbers in blocks of four",
      (memory["y"] - 2 * memory["x"]).abs().max(), expected=0)

# %% trap="08.8" role="exercise" points=3 difficulty=2 minutes=15
def silu_gate(load, store, n: int, block: int, program: int) -> None:
    """One program of a kernel that writes y = a * sigmoid(a) * b.

    load("a", places) and load("b", places) give the numbers there,
    store("y", places, values) writes them; places: int64 tensor, from 0 to
    n - 1, beyond which lies somebody else's memory. Programs 0, 1, ... of
    block places each cover all n, and no place twice; they run in any order
    and share nothing. Each number is loaded once, and nothing but y is
    stored. a may be as large as 1000, of either sign, and y stays finite.

    Example: n 5, block 4, program 1: it loads and stores at place 4 alone.
    """
    # BEGIN SOLUTION
    places = program * block + torch.arange(block)
    places = places[places < n]
    a, b = load("a", places), load("b", places)
    store("y", places, a * torch.sigmoid(a) * b)
    # END SOLUTION

# %% [markdown] trap="08.8" role="hint"
# 1. Which places are yours? Write them down for the example, then look at `double`.
# 2. Load a and b into variables, compute from those, store once. `torch.sigmoid` is safe for large numbers.

# %% [markdown] trap="08.8" role="keep"
# **Keep:** small tensors pay for launches, large ones for traffic; a fused kernel saves
# both. Mask the tail. **In your own code:** count the operations between two matrix
# products; `torch.compile` fuses chains, CUDA graphs launch many kernels at once.
# **Source:** [NVIDIA, "Getting Started with CUDA
# Graphs"](https://developer.nvidia.com/blog/cuda-graphs/) measures the launches of a
# chain of short kernels.

# %% [markdown] role="concept"
# ## Further
#
# The same attention as a kernel, run without a GPU; what compilers make of it for three
# of them; a window; the roof over each kernel; and how one reads a profile.

# %% [markdown] role="concept"
# ### The kernel in Triton, interpreted
#
# Triton writes a program for a *block* of numbers. `tl.load` with a mask fetches,
# `tl.dot` multiplies matrices, and a GPU runs as many copies as there are blocks of
# queries. Where there is none, the set-up cell sets `TRITON_INTERPRET=1` before triton is
# imported, and the same source runs on a CPU. Triton exists for Linux. First the step of
# the online softmax:

# %% role="concept"
import triton
import triton.language as tl

@triton.jit
def fold(top, total, out, scores, values):
    """One tile of keys, folded into what a block of queries has."""
    new = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new == float("-inf"), 0.0, new)
    fix, p = tl.exp(top - base), tl.exp(scores - base[:, None])
    out = out * fix[:, None] + tl.dot(p.to(values.dtype), values,
                                      input_precision="ieee")
    return new, total * fix + tl.sum(p, 1), out

# %% [markdown] role="concept"
# Then the loop over the tiles. Rows and columns beyond the end are masked at each load
# and at the store; query `i` sees the keys up to `i + N - M`.

# %% role="concept" tags=["plumbing"]
@triton.jit
def flash(Q, K, V, Out, M, N, scale, D: tl.constexpr, TILE: tl.constexpr):
    """Causal attention of TILE queries, TILE keys at a time."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    d = tl.arange(0, D)[None, :]
    q = tl.load(Q + row * D + d, mask=row < M, other=0.0)
    top = tl.full((TILE,), float("-inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    out = tl.zeros((TILE, D), tl.float32)
    for start in range(0, N, TILE):
        col = start + tl.arange(0, TILE)[:, None]
        k = tl.load(K + col * D + d, mask=col < N, other=0.0)
        v = tl.load(V + col * D + d, mask=col < N, other=0.0)
        seen = (tl.trans(col) < N) & (tl.trans(col) <= row + N - M)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(seen, s, float("-inf"))
        top, total, out = fold(top, total, out, s, v)
    out = out / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(Out + row * D + d, out.to(Out.dtype.element_ty), mask=row < M)

# %% role="concept"
def by_kernel(q, k, v, tile=32):
    """Causal attention (M, D) by the kernel, a program a block."""
    q, k, v = (part.to(device()) for part in (q, k, v))
    (M, D), out = q.shape, torch.full_like(q, math.nan)
    flash[(math.ceil(M / tile),)](q, k, v, out, M, len(k), D ** -0.5,
                                  D=D, TILE=tile)
    return out.cpu()

def exact(q, k, v):
    """The same in float64, all at once; rows without a key are zero."""
    M, N = len(q), len(k)
    scores = q.double() @ k.double().T / q.shape[1] ** 0.5
    hidden = torch.arange(N) > torch.arange(M)[:, None] + N - M
    weights = scores.masked_fill(hidden, -math.inf).softmax(1)
    return weights.nan_to_num(0) @ v.double()

# %% role="concept" tags=["plumbing"]
laws = {"a ragged last tile": (50, 50, 1), "more keys": (20, 70, 1),
        "rows without a key": (40, 20, 1), "scores times 40": (50, 50, 40),
        "one token": (1, 1, 1)}
gaps = {}
for name, (M, N, times) in laws.items():
    q, k, v = (torch.randn(rows, 32) for rows in (M, N, N))
    gap = (by_kernel(q * times, k, v) - exact(q * times, k, v)).abs().max()
    gaps[name] = gap.item()
    print(f"{name}: largest gap {gap:.0e}")

# %% role="concept"
claim("largest gap between the kernel and float64, over five laws",
      max(gaps.values()), below=1e-3)

# %% [markdown] role="concept"
# A kernel that passes here is right in its arithmetic, in float32, on these cases. The
# interpreter runs one program after the other. It proves neither the precision of a GPU
# nor that programs which run at once leave each other alone. On a machine with a GPU
# the same cells run the same kernel there, under the same laws; `"ieee"` asks its
# products for all 32 bits.

# %% [markdown] role="concept"
# ### Two faults that the interpreter hides, and how to see them
#
# A store without a mask writes beyond the end, and nobody notices: the memory there
# belongs to the same process. So give the kernel a piece of a larger tensor and look at
# the *guards* behind it.

# %% role="concept"
@triton.jit
def twice(x, y, n, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = (i < n) | (not MASKED)
    tl.store(y + i, 2 * tl.load(x + i, mask=keep), mask=keep)

x, broken = torch.ones(128, device=device()), {}
for masked in (False, True):
    y = torch.full_like(x, 7.0)                  # 100 numbers, 28 guards
    twice[(2,)](x, y, 100, MASKED=masked, BLOCK=64)
    broken[masked] = (y[100:] != 7).sum().item()
print(f"guards overwritten: {broken[False]} without a mask, "
      f"{broken[True]} with one")

# %% role="concept"
claim("guards overwritten without a mask", broken[False], expected=28)
claim("guards overwritten with a mask", broken[True], expected=0)

# %% [markdown] role="concept"
# A race needs programs that run at the same time. Write a program as a generator that
# pauses between its load and its store, and let chance decide who goes on. Here eight
# programs count numbers into four bins that they share:

# %% role="concept"
import random

def tally(numbers, bins):
    """Count numbers into bins: load, add, store."""
    for number in numbers:
        before = bins[number]
        yield                                    # others may run here
        bins[number] = before + 1

def run(programs, interleaved):
    """Run programs to their end: one by one, or a step at a time."""
    left, rng = list(programs), random.Random(SEED)
    while left:
        one = rng.choice(left) if interleaved else left[0]
        if next(one, "end") == "end":
            left.remove(one)

# %% role="concept"
numbers, counted = torch.randint(0, 4, (8, 50)).tolist(), {}
for name, interleaved in (("in turn", False), ("interleaved", True)):
    bins = [0] * 4
    run([tally(part, bins) for part in numbers], interleaved)
    counted[name] = sum(bins)
own = [[0] * 4 for _ in numbers]                 # bins for each program
run([tally(part, mine) for part, mine in zip(numbers, own)], True)
counted["interleaved, own bins"] = sum(map(sum, own))
print("of 400 numbers were counted:", counted)

# %% role="concept"
claim("numbers counted, one program after the other", counted["in turn"],
      expected=400)
claim("numbers counted, interleaved", counted["interleaved"], below=350)
claim("numbers counted, interleaved, a set of bins for each program",
      counted["interleaved, own bins"], expected=400)

# %% [markdown] role="concept"
# One after the other, as the interpreter runs them, the fault is invisible. Give each
# program bins of its own and add them at the end, or use `tl.atomic_add`, which lets
# nobody in between.

# %% [markdown] role="concept"
# ### Compiled, not guessed
#
# No GPU is needed to compile for one. `compiled` hands the same source to Triton's
# compiler, for 16-bit tensors and tiles of 64, and reads the machine code: registers of
# a thread, shared memory of a block, instructions that *spill* registers to memory, and
# instructions on tensor cores. Occupancy, the share of its warps that a multiprocessor
# can hold at a time, then follows by arithmetic.

# %% role="concept"
from dlsys_helpers.kernels import compiled, occupancy

names = dict.fromkeys(("Q", "K", "V", "Out"), "*fp16")
table = compiled(fold, flash, constants={"D": 64, "TILE": 64},
                 signature={**names, "M": "i32", "N": "i32",
                            "scale": "fp32"})
for code in table:
    print(f"sm_{code.capability}: {code.registers} registers, "
          f"{code.shared} bytes shared, {code.spills} spills, "
          f"{code.tensor_cores} on tensor cores, {code.fp32} FFMA, "
          f"occupancy {occupancy(code, warps=4):.1%}")
turing, ampere, hopper = table

# %% role="concept"
claim("instructions on tensor cores, sm_75", turing.tensor_cores,
      expected=0)
claim("the same, the smaller of sm_80 and sm_90",
      min(ampere.tensor_cores, hopper.tensor_cores), above=1)
claim("spills, sm_75 less the most of the others",
      turing.spills - max(ampere.spills, hopper.spills), above=100)

# %% [markdown] role="concept"
# One source, three machines. For `sm_75`, a T4, this compiler uses no tensor cores,
# although the device has some. It multiplies with thousands of FFMA, and the accumulators
# do not fit into the registers. So promise no speed there. For `sm_90` a handful of
# instructions do what takes tens on `sm_80`, as each covers a larger product. An
# occupancy of an eighth or a quarter is usual for such kernels: they live on large tiles,
# not on many warps.

# %% [markdown] role="concept"
# ### A sliding window
#
# With a window of `W` keys a query sees its last `W` keys only. Written as a mask it
# saves nothing: all scores are computed, then hidden. Flex attention takes the mask as a
# function and leaves out the blocks that hold nothing:

# %% role="concept"
from torch.nn.attention.flex_attention import create_block_mask

def window(batch, head, query, key):
    return (query >= key) & (query - key < 256)

n, block = 2048, 128
blocks = create_block_mask(window, None, None, n, n, device="cpu",
                           BLOCK_SIZE=block)
kept = 1 - blocks.sparsity() / 100
# a row of blocks keeps its own, one whole before it and one in part
by_hand = sum(min(i + 1, 3) for i in range(n // block)) / (n // block)**2
print(f"blocks that are computed: {kept:.1%}, by hand {by_hand:.1%}")

# %% role="concept"
claim("share of blocks computed, by flex attention less by hand",
      kept - by_hand, expected=0, within=1e-4)

# %% [markdown] role="concept"
# ### The roof over a kernel
#
# Stage 1 drew a roof: bytes limit a kernel that does few FLOPs for each, FLOPs the
# others. Choose a kernel and a length below. Which attention leaves the slope? What does
# decoding one token do, at any length?

# %% role="explore" explorer="roofline"
from dlsys_helpers.explorers.roofline import roofline

roofline

# %% [markdown] role="concept"
# ### Reading a profile
#
# `torch.profiler` gives a row for each operation. Four questions in this order find what
# to mend:
#
# 1. Is the device busy at all? If its rows add up to far less than the wall clock, and
#    there are few launches, the **host** is slow: data, Python, a `.item()` that waits.
# 2. Idle, and thousands of launches of a few microseconds each: **launch**.
# 3. Busy: does the largest row move its bytes near the memory's rate? **memory**.
# 4. Near the peak of FLOPs: **compute**. Far from both: look at its addresses
#    (08.5, 08.6) and branches (08.7).
#
# Below, three traces of one step. Each hides one fault; the rows are made up, with
# numbers as an H200 gives them. Read them before you run the cell after them.

# %% role="concept" tags=["plumbing"]
# operation, calls, us on the device, FLOPs, bytes moved
TRACES = {
    "A": (5200, [("aten::mm", 24, 2900, 1.9e12, 3e9),
                 ("aten::softmax", 12, 610, 0, 2.4e9),
                 ("aten::bmm", 24, 840, 1e11, 3.2e9),
                 ("aten::add", 48, 610, 0, 2.4e9)]),
    "B": (41000, [("aten::mm", 24, 2900, 1.9e12, 3e9),
                  ("aten::flash_attention", 12, 500, 2e11, 4e8),
                  ("aten::copy_", 2, 90, 0, 3e8)]),
    "C": (26000, [("aten::mul", 3100, 4700, 0, 2e8),
                  ("aten::add", 2900, 4400, 0, 2e8),
                  ("aten::mm", 24, 2900, 1.9e12, 3e9)])}
for name, (wall, rows) in TRACES.items():
    print(f"trace {name}: wall clock {wall} us")
    for what, calls, us, work, size in rows:
        print(f"  {what:22} {calls:5} calls {us:6} us "
              f"{work / us / 1e6:6.0f} TFLOP/s {size / us / 1e3:6.0f} GB/s")

# %% [markdown] role="concept"
# Which one waits for the host, which for launches? And what is the remedy for the one
# that waits for neither?

# %% role="concept"
def what_holds(wall, rows, launch=4):
    """The four questions, as code: host, launch, memory or compute."""
    busy = sum(us for _, _, us, _, _ in rows)
    calls = sum(calls for _, calls, _, _, _ in rows)
    if busy < 0.6 * wall:
        return "launch" if calls * launch > 0.5 * wall else "host"
    sheet = datasheet("NVIDIA H200")
    slow = sum(us for _, _, us, work, moved in rows
               if work < moved * sheet.ridge / 2)
    return "memory" if slow > 0.3 * busy else "compute"

found = {name: what_holds(*trace) for name, trace in TRACES.items()}
print(found)

# %% role="concept"
claim("trace A is held by memory, B by the host, C by launches",
      list(found.values()) == ["memory", "host", "launch"], expected=True)

# %% [markdown] role="concept"
# In A attention is written out: softmax, two batched products and the mask's sum move
# the scores back and forth; call the flash form. In B the device works for a tenth of
# the step: look at the loader. In C six thousand small operations surround 24 products:
# compile, or fuse by hand.
#
# A trace says which operation. Why it is slow, two tools say that need a GPU:
#
# - `nsys profile -o step python train.py`, then `nsys stats step.nsys-rep`: a time line
#   of launches, copies and gaps. Look for white space between kernels.
# - `ncu --set full -k regex:flash -c 1 python train.py`: one kernel in depth. "Speed of
#   Light" gives its share of both roofs; "Memory Workload" the sectors per request of
#   08.5; "Warp State" what warps wait for; "Occupancy" the limit found above.

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then open a choice: each says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. A flash kernel gives the same numbers as attention written out. It is faster because**
#
# - [ ] it skips keys whose weight is small :: It multiplies every query with every key that is not masked.
# - [ ] its traffic is linear in the number of tokens :: Each block of queries still reads all keys and values; that is quadratic, with a small factor.
# - [x] scores and weights never travel to memory :: They live on the chip for one tile and are gone.

# %% [markdown] role="quiz"
# **2. Your online softmax is right on rows whose scores fall, and wrong on those that rise. You forgot**
#
# - [x] to rescale what was summed up when a larger score comes :: On a falling row the first tile holds the largest score, so the factor is always one.
# - [ ] to subtract the maximum :: Falling rows of large scores would overflow as well.
# - [ ] the last division :: It would be missed on every row.

# %% [markdown] role="quiz"
# **3. Thread `i` reads the float at place `4 i`. A warp moves**
#
# - [ ] 4 sectors, for it reads 128 bytes :: It uses 128 bytes, and these lie 16 bytes apart.
# - [x] 16 sectors :: Two threads share each sector of 32 bytes.
# - [ ] 32 sectors, one for each thread :: That begins at a step of eight floats.

# %% [markdown] role="quiz"
# **4. All 32 threads of a warp read the same word of shared memory. This takes**
#
# - [x] one turn :: The bank gives the word to all who want it.
# - [ ] 32 turns, for they want the same bank :: Only different words of a bank wait for each other.
# - [ ] two turns, one for each half of the warp :: Halves matter for reads of 8 bytes a thread, not here.

# %% [markdown] role="quiz"
# **5. One thread in a hundred, at random, takes a slow branch. Among warps it is taken by**
#
# - [ ] one in a hundred :: That is the share of threads.
# - [x] more than one in four :: A warp is spared only if all 32 agree: 0.99 to the power of 32 is 0.72.
# - [ ] nearly all :: That would take a share of ten in a hundred.

# %% [markdown] role="quiz"
# **6. A profile shows 5,000 calls of 2 us in a step of 30 ms. You look first at**
#
# - [ ] the slowest of these kernels :: None of them is slow; the device waits between them.
# - [x] fusing them, or launching them as a graph :: Launches take longer than the work.
# - [ ] a larger learning rate :: It changes no time.

# %% [markdown] role="gpu"
# ## On a GPU: what the counts promise
#
# Three counts of this stage can be held against a clock: attention written out against
# flash, strided reads, and a chain of small steps.
#
# **Before you run anything:** 8,192 tokens, 16 heads of 128 numbers. How many GiB do the
# scores take in 16 bits? By what factor do more bytes move at stride 8 than at stride 1?
# And how much of a chain of ten operations on 4,096 numbers is launches?

# %% role="gpu"
from torch.nn.attention import SDPBackend, sdpa_kernel

from dlsys_helpers.gpu import half_dtype

HEADS, HEAD = 16, 128

def make_qkv(where, n):
    """q, k and v (1, HEADS, n, HEAD) in 16 bits, random."""
    return [torch.randn(1, HEADS, n, HEAD, device=where,
                        dtype=half_dtype(where)) for _ in range(3)]

def attend(qkv, how):
    with sdpa_kernel(how):
        return F.scaled_dot_product_attention(*qkv)

def scores_bytes(n):
    return HEADS * n * n * 2

# %% role="gpu"
def strided_copy(x, stride, n):
    """n numbers, `stride` apart, side by side."""
    return x[:n * stride:stride].clone()

def small_chain(x):
    """Ten operations, each a launch."""
    for _ in range(5):
        x = x * 0.5 + 1.0
    return x

def stride_bytes(stride):
    """Bytes moved for each 4-byte number: its share of a sector, 4 out."""
    return min(4 * stride, 32) + 4

qkv = make_qkv("meta", 8192)
written = cost(lambda: (qkv[0] @ qkv[1].mT).softmax(-1) @ qkv[2])
short = torch.empty(4096, device="meta")
chain = cost(lambda: small_chain(short))
print(f"scores {scores_bytes(8192) / 2**30:.1f} GiB, written out "
      f"{written.peak / 2**30:.1f} GiB at a time, {chain.orders} launches")

# %% role="gpu"
claim("GiB of scores, 16 heads and 8,192 tokens",
      scores_bytes(8192) / 2**30, expected=2)
claim("bytes moved at stride 8 over stride 1",
      stride_bytes(8) / stride_bytes(1), expected=4.5)
claim("launches of the chain", chain.orders, expected=10)

# %% role="gpu"
@gpu_result("08/attention", uses=[make_qkv, attend],
            columns=["form", "n", "ms", "ms_low", "ms_high", "peak_mb"])
def attention():
    """Attention of 16 heads of 128 numbers, math and flash, two lengths."""
    for n in (4096, 8192):
        qkv = make_qkv("cuda", n)
        for form, how in (("math", SDPBackend.MATH),
                          ("flash", SDPBackend.FLASH_ATTENTION)):
            t = seconds(lambda: attend(qkv, how), repeats=10, device="cuda")
            yield {"form": form, "n": n, "ms": t.median * 1e3,
                   "ms_low": t.low * 1e3, "ms_high": t.high * 1e3,
                   "peak_mb": peak_bytes(lambda: attend(qkv, how)) / 1e6}

# %% role="gpu"
@gpu_result("08/addresses", uses=[strided_copy, small_chain],
            columns=["what", "us", "us_low", "us_high"])
def addresses():
    """Copies of 2^24 floats by stride, and ten operations on 4,096."""
    x = torch.randn(8 * 2**24, device="cuda")
    calls = {f"stride {s}": lambda s=s: strided_copy(x, s, 2**24)
             for s in (1, 2, 8)}
    small = torch.randn(4096, device="cuda")
    calls |= {"ten small": lambda: small_chain(small),
              "one small": lambda: small * 0.5}
    for what, call in calls.items():
        t = seconds(call, repeats=10, device="cuda", calls=20)
        yield {"what": what, "us": t.median * 1e6, "us_low": t.low * 1e6,
               "us_high": t.high * 1e6}

# %% role="gpu"
def doubled(form):
    """Memory on top at 8,192 tokens over that at 4,096."""
    return (attention.value("peak_mb", form=form, n=8192)
            / attention.value("peak_mb", form=form, n=4096))

def ms(form):
    return attention.value("ms", form=form, n=8192)

def times(what, than):
    return (addresses.value("us", what=what)
            / addresses.value("us", what=than))

sheet = datasheet(attention.device_name)
work = 4 * HEADS * 8192**2 * HEAD                # FLOPs of both products
least = sheet.least_us(work, 0) / 1e3            # ms

# %% role="gpu"
answers = gpu_table(
    sheet,
    attention.asks("math, 8,192 over 4,096 tokens: memory on top", 4,
                   lambda: doubled("math"), above=3.5),
    attention.asks("flash, the same", 2, lambda: doubled("flash"),
                   below=2.5),
    attention.asks("math over flash: time", "above 1: traffic",
                   lambda: ms("math") / ms("flash"), above=1.5),
    attention.asks("flash: ms, FLOPs at full rate", least,
                   lambda: ms("flash"),
                   "FlashAttention-2 reaches 35 % of an H100 "
                   "(arXiv 2407.08608, abstract)", above=0.9 * least),
    addresses.asks("stride 8 over stride 1: time",
                   stride_bytes(8) / stride_bytes(1),
                   lambda: times("stride 8", "stride 1"), above=2),
    addresses.asks("ten small operations over one: time", 10,
                   lambda: times("ten small", "one small"), above=4))
answers

# %% [markdown] role="gpu"
# **Keep:** count bytes, sectors and launches before you measure; what the clock says
# beyond them is a question for the profiler. A record compares with the datasheet of its
# own device. **Source:** [Dao 2023](https://arxiv.org/abs/2307.08691) and [Shah et al.
# 2024](https://arxiv.org/abs/2407.08608) for flash attention on an A100 and an H100.

# %% [markdown] role="summary"
# ## What you take with you
#
# - A softmax needs no whole row: a running maximum, a running sum, and one factor that
#   mends sum and output.
# - Flash attention multiplies as much as the formula. It keeps less, and moves less.
# - A warp moves sectors: neighbouring threads read neighbouring numbers.
# - Different words of one bank wait for each other; an odd step never does.
# - A warp issues every path that one of its threads takes.
# - Small tensors pay for launches, large ones for traffic; fuse, and mask the tail.
# - Compile without a GPU, and read registers, spills and tensor cores.
#
# **Next:** stage 9 trains on more than one device, in fewer bits.
