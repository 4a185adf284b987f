"""Exercise 08.4, `tiled_attention`."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.acting import library_calls
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("08.4", "tiled_attention", seen=("q", "k", "v", "length", "tile", "sizes",
                                             "order"))

ROWS = ("rows of attention",)
ex.promise("attention", "Attend causally from M queries to a cache.", says=ROWS)
ex.promise("tile", "Take `tile` keys at a time.", says=ROWS,
           cases=("a ragged last tile", "one key more than a tile", "tiles of one key",
                  "a tile larger than the cache", "the largest score first",
                  "the largest score last", "NaN after a ragged end",
                  "infinity after a ragged end", "columns first in memory",
                  "every second slot of a cache"))
ex.promise("shapes", "Args: q, k, v: (M, D), (N, D), (N, E), float32; M, D and E >= 1.",
           says=("rows of attention", "raised"))
ex.promise("memory layout", "Any memory order is possible.",
           cases=("columns first in memory", "every second slot of a cache"))
ex.promise("left", "q, k and v are unchanged.", says=("inputs after the call",))
ex.promise("filled", "length: 0 <= length <= N; later slots (NaN or inf) change nothing.",
           says=ROWS)
ex.promise("corner", "The queries are the last M of the `length` filled positions, so query i sees "
                     "the keys 0 to i + length - M.", says=ROWS)
ex.promise("no key", "A query that sees no key gets zeros.", says=ROWS,
           cases=("more queries than keys", "an empty cache", "no slots"))
ex.promise("scale", "Scores are divided by sqrt(D).", says=ROWS)
ex.promise("thousands", "Scores can reach tens of thousands, of either sign.", says=ROWS,
           cases=("scores times forty", "scores of thousands", "scores far below zero",
                  "hundreds below zero", "the largest score first", "the largest score last"))
ex.promise("memory", "Hold one tile of scores at a time: make no tensor whose size depends on N "
                     "or length.", says=("by which the largest tensor grows",))
ex.promise("no larger", "For M >= tile, make no tensor with more than M * max(D, E, tile) values.",
           says=("largest tensor for tiles of 2 keys", "by which the largest tensor"))
ex.promise("by hand", "Do not call torch's own attention.", says=("functions called",))
ex.promise("anew", "Each call reads the cache again.", says=("values changed sign",))
ex.promise("results", "A call leaves earlier results unchanged.", says=("after a second call",))
ex.promise("example", "Example: q [[0.]], k [[1.], [2.], [nan]], v [[1.], [3.], [nan]], length 2 "
                      "and tile 1 give [[2.]].", cases=("the example",))


# Where the largest tensor is compared, for caches of so many tiles.
MEASURED = ("as many queries as keys", "many keys")


@ex.cases
def cases(g):
    number = integers(g)

    def whole(*shape, top=8):
        """Whole numbers, with which torch computes scores exactly, whatever the order."""
        return torch.randint(-top, top + 1, shape, generator=g).float()

    def one(name, m, length, tile, *, n=None, d=None, e=None, times=1, empty=None, order="rows"):
        n, d, e = length + 3 if n is None else n, d or number(5, 9), e or number(2, 5)
        q, k = (torch.randn(rows, d, generator=g) for rows in (m, n))
        if times > 1:  # exact: sums of whole numbers, and a root of 16
            q, k = whole(m, 16) * times, whole(n, 16)
        v = torch.randn(n, e, generator=g) + 1
        if empty is not None:
            k[length:], v[length:] = empty, empty
        return name, {"q": q, "k": k, "v": v, "length": length, "tile": tile, "order": order,
                      "sizes": [4, 16] if name in MEASURED else []}

    def ordered(name, sign):
        """Scores that rise (or fall) by hundreds from key to key, and many tiles."""
        case = one(name, 3, 12, 3, d=4)[1]
        case["q"] = torch.full((3, 4), 10.0)
        case["k"] = (sign * torch.arange(-6, 9)[:, None] * 5.0 * torch.ones(4))
        return name, case

    def below(name, least):
        # The last tiles are hidden from the first queries, whichever end an answer begins at.
        case = one(name, 9, 12, 4, times=max(1, least // 5))[1]
        case["q"], case["k"] = case["q"].abs() + least, -case["k"].abs() - 1
        return name, case

    nan, tile = math.nan, number(3, 6)
    nothing = one("an empty cache", 3, 0, 4, n=6, empty=nan)
    return [one("as many queries as keys", 9, 9, 3),
            one("fewer queries than keys", 5, 16, 4),
            one("many keys", 6, 40, 5, d=4, n=40),
            one("a ragged last tile", 7, 3 * tile + 2, tile),
            one("one key more than a tile", 4, tile + 1, tile),
            one("tiles of one key", 4, 9, 1),
            one("a tile larger than the cache", 4, 7, 32),
            one("a cache half full", 6, 12, 4, n=29),
            one("values wider than keys", 5, 8, 4, d=3, e=8),
            one("NaN in the empty slots", 5, 8, 4, n=15, empty=nan),
            one("NaN after a ragged end", 3, 10, 4, n=15, empty=nan),
            one("infinity after a ragged end", 3, 11, 4, n=15, empty=math.inf),
            one("one query", 1, 4 * number(2, 5), 4, n=20),
            one("one key", 1, 1, 1, n=2, empty=nan),
            one("more queries than keys", 10, 6, 3, n=8, empty=nan),
            nothing, one("no slots", 2, 0, 3, n=0),
            one("columns first in memory", 4, 11, 4, order="columns"),
            one("every second slot of a cache", 4, 10, 3, order="gaps", empty=nan),
            one("scores times forty", 6, 20, 5, times=5),
            one("scores of thousands", 6, 20, 5, times=200),
            below("hundreds below zero", 20),
            below("scores far below zero", 2800),
            ordered("the largest score first", -1),
            ordered("the largest score last", 1),
            ("the example", {"q": torch.zeros(1, 1), "k": torch.tensor([[1.0], [2.0], [nan]]),
                             "v": torch.tensor([[1.0], [3.0], [nan]]), "length": 2, "tile": 1,
                             "sizes": [], "order": "rows"})]


@ex.act
def act(fn, q, k, v, length, tile, sizes, order):
    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        """Notes bytes and numbers of the largest storages that are made; views make none."""

        def __init__(self, given):
            super().__init__()
            self.known, self.held = {t.untyped_storage()._cdata for t in given}, []
            self.bytes = self.numbers = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    self.held.append(storage)
                    if storage._cdata not in self.known:
                        size = storage.nbytes()
                        self.bytes = max(self.bytes, size)
                        self.numbers = max(self.numbers, size // tensor.element_size())
            return out

    def largest(slots, filled, rows=32, size=8, d=4):
        given = [torch.ones(rows, d), torch.ones(slots, d), torch.ones(slots, d)]
        with Sizes(given) as seen:
            fn(*given, filled, size)
        return seen

    if order == "columns":
        q, k, v = (t.T.contiguous().T for t in (q, k, v))
    if order == "gaps":
        q, k, v = (t.repeat_interleave(2, 0)[::2] for t in (q, k, v))
    with library_calls("scaled_dot_product_attention",
                       "multi_head_attention_forward") as used:
        first = fn(q, k, v, length, tile)
        out = first.clone() if isinstance(first, torch.Tensor) else first
        v.neg_()  # a cache is filled in place, between one step and the next
        second = fn(q, k, v, length, tile)
        v.neg_()
        grown = [0]
        for rows in (1, 32) if sizes else ():  # more slots, and more slots that are filled
            less, more = (8 * tiles for tiles in sizes)
            base = largest(less, less, rows).bytes
            grown += [largest(more, filled, rows).bytes - base for filled in (less, more)]
        wide = largest(24, 24, rows=64, size=2, d=1).numbers - 64 * 2 if sizes else 0
    return {"out": out, "second": second, "later": first, "grown": max(grown),
            "wide": max(0, wide), "library": sorted(used)}


def row_by_row(q, k, v, length):
    """Attention in float64, one query at a time, over the keys that it sees."""
    rows = []
    for i, query in enumerate(q.double()):
        seen = max(0, i + length - len(q) + 1)
        scores = [float(query @ key) / q.shape[1] ** 0.5 for key in k[:seen].double()]
        weights = [math.exp(s - max(scores)) for s in scores]
        values = zip(weights, v[:seen].double(), strict=True)
        total = sum((w * value for w, value in values), torch.zeros(v.shape[1]).double())
        rows.append(total / (sum(weights) or 1))
    return torch.stack(rows).float()


@ex.law
def law(out, q, k, v, length, tile, sizes, order):
    expect_parts(out, "out", "second", "later", "grown", "wide", "library")
    expected = row_by_row(q, k, v, length)
    # Beside the usual: a score, or a logarithm of sums, is no finer than float32 holds it.
    scores = (q.double() @ k[:length].double().T / q.shape[1] ** 0.5).abs()
    # Half a per cent at most: what is off by more is wrong, however large the scores.
    finest = min(float(scores.max()) * 2.0 ** -22, 5e-3) if length else 0.0
    near = {"atol": (2e-4 + finest) * max(1.0, float(expected.abs().max()))}
    expect_close("rows of attention", out["out"], expected, **near)
    expect_close("rows of attention after all values changed sign in place",
                 out["second"], -expected, **near)
    expect_close("rows of attention, read again after a second call", out["later"], expected,
                 **near)
    expect_equal("bytes by which the largest tensor grows from a cache of 32 slots to one of 128",
                 out["grown"], 0, "Keep one tile at a time.")
    expect_equal("surplus values in the largest tensor for tiles of 2 keys, 64 queries",
                 out["wide"], 0, "Use the given tile size.")
    expect_equal("library functions called", out["library"], [], "Write the attention by hand.")


# ---- wrong, by name

ROOM: dict = {}


@not_an_answer
def online(q, k, v, length, tile):
    m, d = q.shape
    offset = length - m
    scale = d ** -0.5
    top, total = torch.full((m, 1), float(-math.inf)), torch.zeros(m, 1)
    out = torch.zeros(m, v.shape[1])
    for a in range(0, length, tile):
        b = min(a + tile, length)
        s = q @ k[a:b].T * scale
        s = s.masked_fill(torch.arange(a, b) > torch.arange(m)[:, None] + offset, -math.inf)
        own = s.amax(1, keepdim=True)
        new = torch.maximum(top, own)
        base = torch.where(new == -math.inf, 0.0, new)
        p, fix = torch.exp(s - base), torch.exp(top - base)
        total = total * fix + p.sum(1, keepdim=True)
        out = out * fix + p @ v[a:b]
        top = new
    found = torch.where(total > 0, out / total, 0.0)
    return found


wrong = ex.edits(online)
TILES, LOW = "range(0, length, tile)", "(-math.inf)"
NEW, SCORES = "torch.maximum(top, own)", "q @ k[a:b].T * scale"
wrong("exponentiating the scores without first subtracting their maximum", "thousands",
      LOW, "(0)", NEW, "top")
wrong("clamping scores at 80 instead of subtracting a maximum", "thousands",
      LOW, "(0)", NEW, "top", SCORES, f"({SCORES}).clamp(max=80)")
wrong("using only the current tile's maximum and rescaling the sums to it", "attention",
      NEW, "own")
wrong("starting the running maximum at 0", "thousands", LOW, "(0)")
wrong("starting the running maximum at a finite number, such as -1000", "thousands",
      LOW, "(-1000)")


# https://github.com/Dao-AILab/flash-attention/issues/2082
wrong("going from the last tile to the first and using 0 as a hidden tile's maximum", "thousands",
      TILES, f"reversed({TILES})", "top = new", "top = base")
wrong("rescaling the sum of weights, but not the output", "attention", "out * fix", "out")
wrong("rescaling the output, but not the sum of weights", "attention", "total * fix", "total")
wrong("rescaling neither the output nor the sum of weights", "attention",
      "total * fix", "total", "out * fix", "out")


wrong("taking a softmax for each tile and averaging them", "attention",
      "torch.exp(s - base), torch.exp(top - base)", "s.softmax(1).nan_to_num(0), 1",
      "p.sum(1, keepdim=True)", "1")
wrong("never dividing the output by the sum of weights", "attention", "return found", "return out")
wrong("leaving out a short last tile", "tile",
      "range(0, length, tile)", "[*range(0, length, tile)][:length // tile]")


wrong("moving a short last tile back, so that some keys count twice", "tile",
      "b = min(a + tile, length)", "b = min(a + tile, length); a = max(0, b - tile)")
wrong("using only the last tile", "attention",
      TILES, "range((length - 1) // tile * tile if length > 2 else 0, length, tile)")
wrong("computing all scores at once", "memory",
      "m, d =", "tile = max(length, 1); m, d =", says="largest tensor")
wrong("building one mask for all queries and keys", "memory",
      "m, d =", "torch.ones(len(q), len(k), dtype=torch.bool).tril(length - len(q)); m, d =",
      says="largest tensor")


@ex.wrong("calling torch's own attention on the filled slots", says="largest tensor",
          breaks=("by hand", "memory"))
def by_library(q, k, v, length, tile):
    m = len(q)
    seen = torch.arange(length) <= torch.arange(m)[:, None] + length - m
    if not length:
        return online(q, k, v, length, tile)
    out = F.scaled_dot_product_attention(q[None], k[None, :length], v[None, :length],
                                         attn_mask=seen[None])[0]
    return torch.where(seen.any(1)[:, None], out, 0.0)


@ex.wrong("calling torch's own attention for one query at a time", breaks="by hand")
def library_by_query(q, k, v, length, tile):
    out = torch.zeros(len(q), v.shape[1])
    for i in range(max(0, len(q) - length), len(q)):
        seen = i + length - len(q) + 1
        out[i] = F.scaled_dot_product_attention(q[None, i:i + 1], k[None, :seen],
                                                v[None, :seen])[0, 0]
    return out


wrong("not dividing scores by sqrt(D)", "scale", "d ** -0.5", "1")
wrong("dividing scores by D", "scale", "d ** -0.5", "1 / q.shape[1]")
wrong("dividing scores by sqrt(E)", "scale", "scale = d", "scale = v.shape[1]")
wrong("leaving out the causal mask", "attention",
      "s = s.masked_fill(torch.arange(a, b) > torch.arange(m)[:, None] + offset, -math.inf)",
      "pass")
wrong("aligning the causal mask to the upper left corner", "corner", "length - m", "0")
wrong("hiding a query's own key", "corner", "length - m", "length - len(q) - 1")
wrong("showing a query one key too many", "corner", "length - m", "length - len(q) + 1")
wrong("aligning the causal mask to the end of the cache, including empty slots", "corner",
      "length - m", "len(k) - len(q)")
wrong("masking the scores of empty slots, but still multiplying their NaN values by 0", "filled",
      "offset =", "stop = len(k); offset =", "0, length", "0, stop", "tile, length", "tile, stop")
wrong("reading the whole cache, including empty slots", "filled", "m, d =",
      "length = len(k); m, d =")
wrong("returning NaN for a query without any key", "no key", "total, 0.0", "total, math.nan")
wrong("hiding keys with a score of -1e9, so that a query without keys averages all values",
      "no key", "offset, -math.inf", "offset, -1e9")
wrong("returning NaN for an empty cache", "filled",
      "return found", "return found + (0 if length else math.nan)")
wrong("dropping axes of length one", "shapes",
      "return found", "return found.squeeze(0)", says="shape of the")
wrong("scaling q in place", ("left", "anew"),
      "m, d =", "q *= q.shape[1] ** -0.5; m, d =", "d ** -0.5", "1", says="rows of attention")
wrong("changing q in place and undoing the change, which rounds its values", "left",
      "m, d =", "q.add_(100.0).sub_(100.0); m, d =", says="inputs after")


@ex.wrong("computing one query at a time, over all its keys at once",
          says="largest tensor", breaks="memory")
def query_by_query(q, k, v, length, tile):
    out = torch.zeros(len(q), v.shape[1])
    for i in range(max(0, len(q) - length), len(q)):
        seen = i + length - len(q) + 1
        out[i] = torch.softmax(k[:seen] @ q[i] / q.shape[1] ** 0.5, 0) @ v[:seen]
    return out


wrong("allocating a tensor for two tiles of scores", "no larger",
      "m, d =", "torch.empty(2, len(q), max(q.shape[1], v.shape[1], tile)); m, d =",
      says="for tiles of 2 keys")
wrong("using tiles of 16 keys, whatever the tile size", "no larger",
      "0, length, tile", "0, length, 16", "a + tile", "a + 16", says="for tiles of 2 keys")
wrong("reading the last tile beyond the filled slots and multiplying NaN by 0", "filled",
      "offset =", "stop = min(len(k), -(-length // tile) * tile); offset =", "0, length", "0, stop",
      "tile, length", "tile, stop")
wrong("treating NaN in empty slots as 0, but not infinity", "filled",
      "offset =", "stop = min(len(k), -(-length // tile) * tile); offset =", "0, length", "0, stop",
      "tile, length", "tile, stop", "k[a:b]", "torch.where(k[a:b].isnan(), 0, k[a:b])",
      "v[a:b]", "torch.where(v[a:b].isnan(), 0, v[a:b])")
wrong("scaling all keys at once, which copies the cache", "memory",
      "m, d =", "k = k * k.shape[1] ** -0.5; m, d =", "d ** -0.5", "1", says="largest tensor")
wrong("calling view() on k, whatever its memory order", "memory layout",
      "m, d =", "k = k.view(-1).view(k.shape); m, d =", says="raised RuntimeError")

KNOWN: dict = {}


@ex.wrong("caching results by tensor object, so that new values are missed", says="changed sign",
          breaks="anew")
def remembered(q, k, v, length, tile):
    if KNOWN.get("cache") is not v:
        KNOWN.update(cache=v, out=online(q, k, v, length, tile))
    return KNOWN["out"].clone()


wrong("returning one buffer that every call overwrites", "results",
      "return found", "held = ROOM.setdefault(found.shape, found); return held.copy_(found)")
wrong("weighing the example's two keys unequally", "example",
      "return found", "return found + (len(q) == q.shape[1] == length - 1 == tile)",
      says="rows of attention")
