"""Exercise 08.4, `tiled_attention`."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from dlsys_helpers.acting import library_calls
from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts

ex = exercise("08.4", "tiled_attention", seen=("q", "k", "v", "length", "tile", "sizes",
                                             "order"))

ROWS = ("rows of attention",)
ex.promise("attention", "Causal attention of M queries over a cache,", says=ROWS)
ex.promise("tile", "tile keys at a time.", says=ROWS,
           cases=("a ragged last tile", "one key more than a tile", "tiles of one key",
                  "a tile larger than the cache", "the largest score first",
                  "the largest score last", "NaN behind a ragged end",
                  "infinity behind a ragged end", "columns first in memory",
                  "every second slot of a cache"))
ex.promise("shapes", "q: (M, D), k: (N, D), v: (N, E), float32, M, D and E from 1 on,",
           says=("rows of attention", "raised"))
ex.promise("memory layout", "in memory in any order,", cases=("columns first in memory",
                                                             "every second slot of a cache"))
ex.promise("left", "left as they are;", says=("inputs after the call",))
ex.promise("filled", "of the cache only the first length slots are filled, 0 <= length <= N, and "
           "what the others hold, NaN and infinity included, changes nothing.", says=ROWS)
ex.promise("corner", "The queries are the last M of these length positions: query i sees the keys "
           "0 to i + length - M.", says=ROWS)
ex.promise("no key", "A query that sees no key gives zeros.", says=ROWS,
           cases=("more queries than keys", "an empty cache", "no slots"))
ex.promise("scale", "Scores are divided by sqrt(D)", says=ROWS)
ex.promise("thousands", "and may reach tens of thousands, of either sign.", says=ROWS,
           cases=("scores times forty", "scores of thousands", "scores far below zero",
                  "hundreds below zero", "the largest score first", "the largest score last"))
ex.promise("memory", "No tensor that is made grows with N or with length,",
           says=("by which the largest tensor grows",))
ex.promise("no larger", "or is larger than M * max(D, E, tile) numbers where M is no less than "
           "tile;", says=("largest tensor for tiles of 2 keys", "by which the largest tensor"))
ex.promise("by hand", "torch's own attention is not called.", says=("functions called",))
ex.promise("anew", "Each call reads the cache anew,", says=("values turned to their opposite",))
ex.promise("results", "and leaves earlier results alone.", says=("after a second call",))
ex.promise("example", "Example: q [[0.]], k [[1.], [2.], [nan]], v [[1.], [3.], [nan]], length 2 "
           "and tile 1 give [[2.]].", cases=("the example",))


# Where the largest tensor is compared, for caches of so many tiles.
MEASURED = ("as many queries as keys", "many keys")


@ex.cases
def cases(g):
    def number(low, high):
        return int(torch.randint(low, high, (), generator=g))

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
        case = one(name, 4, 12, 4, times=max(1, least // 5))[1]
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
            one("NaN in the empty slots", 5, 8, 4, n=15, empty=nan),
            one("NaN behind a ragged end", 3, 10, 4, n=15, empty=nan),
            one("infinity behind a ragged end", 3, 11, 4, n=15, empty=math.inf),
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
        """Notes the bytes of the largest storage that is made; views make none."""

        def __init__(self, given):
            super().__init__()
            self.known, self.held, self.most = {t.untyped_storage()._cdata for t in given}, [], 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    self.held.append(storage)
                    if storage._cdata not in self.known:
                        self.most = max(self.most, storage.nbytes())
            return out

    def largest(slots, filled, rows=32, size=8, d=4):
        given = [torch.ones(rows, d), torch.ones(slots, d), torch.ones(slots, d)]
        with Sizes(given) as seen:
            fn(*given, filled, size)
        return seen.most

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
            base = largest(less, less, rows)
            grown += [largest(more, less, rows) - base, largest(more, more, rows) - base]
        # numbers of 8 bytes, as places are; a tile of 16 keys would take twice as much
        wide = largest(24, 24, rows=64, size=2, d=1) - 64 * 2 * 8 if sizes else 0
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
    near = {"atol": 2e-4 * max(1.0, float(expected.abs().max()))}
    expect_close("rows of attention", out["out"], expected, **near)
    expect_close("with all values turned to their opposite, in place: rows of attention",
                 out["second"], -expected, **near)
    expect_close("rows of attention, looked at after a second call", out["later"], expected,
                 **near)
    expect_equal("bytes by which the largest tensor grows, cache of 128 slots against 32",
                 out["grown"], 0, "Keep one tile at a time.")
    expect_equal("bytes too many of the largest tensor for tiles of 2 keys, 64 queries",
                 out["wide"], 0, "Keep to the tile that is asked for.")
    expect_equal("library functions called", out["library"], [], "Write it by hand.")


# ---- right by another route

@ex.right("one key at a time")
def key_by_key(q, k, v, length, tile):
    m, d = q.shape
    top, total = torch.full((m,), -math.inf), torch.zeros(m)
    out = torch.zeros(m, v.shape[1])
    for j in range(length):
        score = (q @ k[j]) / math.sqrt(d)
        sees = torch.arange(m) + length - m >= j
        new = torch.where(sees, torch.maximum(top, score), top)
        fix = torch.where(new == top, 1.0, torch.exp(top - new))
        p = torch.where(sees, torch.exp(score - new), 0.0)
        total, top = total * fix + p, new
        out = out * fix[:, None] + p[:, None] * v[j]
    return torch.where(total[:, None] > 0, out / total[:, None], 0.0)


@ex.right("two passes: the maximum first")
def two_passes(q, k, v, length, tile):
    m, d = q.shape
    last = torch.arange(m)[:, None] + length - m

    def scores(a):
        s = q @ k[a:min(a + tile, length)].T / d ** 0.5
        return s.masked_fill(torch.arange(a, a + s.shape[1]) > last, -1e30)
    top = torch.full((m, 1), -1e30)
    for a in range(0, length, tile):
        top = torch.maximum(top, scores(a).amax(1, keepdim=True))
    total, out = torch.zeros(m, 1), torch.zeros(m, v.shape[1])
    for a in range(0, length, tile):
        p = (scores(a) - top).exp() * (top > -1e30)
        total, out = total + p.sum(1, keepdim=True), out + p @ v[a:min(a + tile, length)]
    return out / total.clamp(min=1e-30)


@ex.right("rows that see nothing set aside, and powers of two")
def in_powers_of_two(q, k, v, length, tile):
    m, d = q.shape
    blind = max(0, m - length)
    answer = torch.zeros(m, v.shape[1])
    q = q[blind:]
    top, total, out = -math.inf, 0.0, 0.0
    for a in range(0, length, tile):
        b = min(a + tile, length)
        s = (q @ k[a:b].T) * (math.log2(math.e) / math.sqrt(d))
        later = torch.arange(a, b) > torch.arange(len(q))[:, None] + length - len(q)
        s = s.masked_fill(later, -math.inf)
        new = s.amax(1, keepdim=True).clamp(min=top) if a == 0 else torch.maximum(
            top, s.amax(1, keepdim=True))
        fix = torch.exp2(top - new)
        p = torch.exp2(s - new)
        total, out, top = total * fix + p.sum(1, keepdim=True), out * fix + p @ v[a:b], new
    if length:
        answer[blind:] = out / total
    return answer


@ex.right("tiles finished one by one, merged by their log of sums")
def merged(q, k, v, length, tile):
    m, d = q.shape
    lse, out = torch.full((m, 1), -math.inf), torch.zeros(m, v.shape[1])
    for a in range(0, length, tile):
        keys, values = k[a:min(a + tile, length)], v[a:min(a + tile, length)]
        s = q @ keys.mT / math.sqrt(d)
        s[torch.arange(a, a + len(keys)) > torch.arange(m)[:, None] + length - m] = -math.inf
        own = s.logsumexp(1, keepdim=True)
        both = torch.logaddexp(lse, own)
        part = s.softmax(1).nan_to_num(0) @ values
        share = (own - both).exp().nan_to_num(0)
        out = out * (lse - both).exp().nan_to_num(0) + part * share
        lse = both
    return out


@ex.right("tiles from the last to the first")
def backwards(q, k, v, length, tile):
    return online(q, k, v, length, tile, order=-1)


EQUIVALENT = {
    "total, out = (torch.zeros(M, 1), torch.zeros(M, v.shape[1])) -> total, out = "
    "(torch.zeros(M, v.shape[1]), torch.zeros(M, 1))": "Both are broadcast to (M, E).",
    "return out / total.masked_fill(total == 0, 1) -> return out / "
    "total.masked_fill(total <= 0, 1)": "A sum of exps is never negative.",
    "return out / total.masked_fill(total == 0, 1) -> return out / "
    "total.masked_fill(total == 0, 2)": "Zero over any number is zero.",
    "stop = min(start + tile, length) -> stop = min(length, start + tile)":
        "The order of two arguments.",
    "new = torch.maximum(top, scores.amax(1, keepdim=True)) -> new = "
    "torch.maximum(scores.amax(1, keepdim=True), top)": "The order of two arguments.",
    "base = new.masked_fill(new == -math.inf, 0) -> base = "
    "new.masked_fill(new <= -math.inf, 0)": "Nothing is below minus infinity.",
    "base = new.masked_fill(new == -math.inf, 0) -> base = "
    "new.masked_fill(new == -math.inf, -1)": "Minus infinity less any number is itself.",
    "base = new.masked_fill(new == -math.inf, 0) -> base = "
    "new.masked_fill(new == -math.inf, 1)": "Minus infinity less any number is itself."}
for mutant, why in EQUIVALENT.items():
    ex.equivalent(mutant, why)


# ---- wrong, by name

def online(q, k, v, length, tile, *, order=1, stop=None, offset=None, scale=None, causal=True,
           running=True, start=-math.inf, fix_total=True, fix_out=True, divide=True, tiles=None,
           blind=0.0, hidden=-math.inf, clean=lambda t: t):
    """The right answer with its pieces as options."""
    m, d = q.shape
    stop = length if stop is None else stop
    offset = length - m if offset is None else offset
    scale = d ** -0.5 if scale is None else scale
    top, total = torch.full((m, 1), float(start)), torch.zeros(m, 1)
    out = torch.zeros(m, v.shape[1])
    for a in [*range(0, stop, tile)][:tiles][::order]:
        b = min(a + tile, stop)
        s = q @ clean(k[a:b]).T * scale
        if causal:
            s = s.masked_fill(torch.arange(a, b) > torch.arange(m)[:, None] + offset, hidden)
        own = s.amax(1, keepdim=True)
        new = torch.maximum(top, own) if running else own
        base = torch.where(new == -math.inf, 0.0, new)
        p, fix = torch.exp(s - base), torch.exp(top - base)
        total = total * (fix if fix_total else 1) + p.sum(1, keepdim=True)
        out = out * (fix if fix_out else 1) + p @ clean(v[a:b])
        top = new
    return torch.where(total > 0, out / total, blind) if divide else out


@ex.wrong("no maximum: exp of the scores themselves", says="rows of attention",
          breaks="thousands")
def no_maximum(q, k, v, length, tile):
    m, total, out = len(q), 0.0, torch.zeros(len(q), v.shape[1])
    for a in range(0, length, tile):
        b = min(a + tile, length)
        s = q @ k[a:b].T / q.shape[1] ** 0.5
        s = s.masked_fill(torch.arange(a, b) > torch.arange(m)[:, None] + length - m, -math.inf)
        total, out = total + s.exp().sum(1, keepdim=True), out + s.exp() @ v[a:b]
    return torch.where(torch.as_tensor(total) == 0, 0.0, out / total) if length else out


@ex.wrong("scores cut at 80 instead of a maximum", says="rows of attention", breaks="thousands")
def cut_scores(q, k, v, length, tile):
    m, total, out = len(q), torch.zeros(len(q), 1), torch.zeros(len(q), v.shape[1])
    for a in range(0, length, tile):
        b = min(a + tile, length)
        s = (q @ k[a:b].T / q.shape[1] ** 0.5).clamp(max=80)
        s = s.masked_fill(torch.arange(a, b) > torch.arange(m)[:, None] + length - m, -math.inf)
        total, out = total + s.exp().sum(1, keepdim=True), out + s.exp() @ v[a:b]
    return out / total.clamp(min=1e-38)


@ex.wrong("the maximum of this tile alone, and the sums rescaled to it",
          says="rows of attention", breaks="attention")
def own_maximum(q, k, v, length, tile):
    return online(q, k, v, length, tile, running=False)


@ex.wrong("a running maximum that begins at 0", says="rows of attention", breaks="thousands")
def from_zero(q, k, v, length, tile):
    return online(q, k, v, length, tile, start=0)


@ex.wrong("a running maximum that begins at -1000", says="rows of attention", breaks="thousands")
def from_a_thousand(q, k, v, length, tile):
    return online(q, k, v, length, tile, start=-1000)


@ex.wrong("the sum of weights rescaled, the output not", says="rows of attention",
          breaks="attention")
def output_not_rescaled(q, k, v, length, tile):
    return online(q, k, v, length, tile, fix_out=False)


@ex.wrong("the output rescaled, the sum of weights not", says="rows of attention",
          breaks="attention")
def sum_not_rescaled(q, k, v, length, tile):
    return online(q, k, v, length, tile, fix_total=False)


@ex.wrong("neither rescaled: each tile by its own measure", says="rows of attention",
          breaks="attention")
def none_rescaled(q, k, v, length, tile):
    return online(q, k, v, length, tile, fix_total=False, fix_out=False)


@ex.wrong("a softmax for each tile, and their mean", says="rows of attention",
          breaks="attention")
def mean_of_tiles(q, k, v, length, tile):
    m, parts = len(q), [torch.zeros(len(q), v.shape[1])]
    for a in range(0, length, tile):
        b = min(a + tile, length)
        s = q @ k[a:b].T / q.shape[1] ** 0.5
        s = s.masked_fill(torch.arange(a, b) > torch.arange(m)[:, None] + length - m, -math.inf)
        parts.append(s.softmax(1).nan_to_num(0) @ v[a:b])
    return sum(parts) / max(1, len(parts) - 1)


@ex.wrong("the output never divided by the sum of weights", says="rows of attention",
          breaks="attention")
def not_divided(q, k, v, length, tile):
    return online(q, k, v, length, tile, divide=False)


@ex.wrong("a ragged last tile left out", says="rows of attention",
          breaks="tile")
def ragged_dropped(q, k, v, length, tile):
    return online(q, k, v, length, tile, tiles=length // tile)


@ex.wrong("a ragged last tile moved back, so that some keys count twice",
          says="rows of attention",
          breaks="tile")
def ragged_moved(q, k, v, length, tile):
    whole, rest = divmod(length, tile)
    if whole and rest:
        again = slice(length - tile, whole * tile)
        cut = whole * tile
        k = torch.cat([k[:cut], k[again], k[cut:length]])
        v = torch.cat([v[:cut], v[again], v[cut:length]])
        places = torch.cat([torch.arange(cut), torch.arange(length)[again],
                            torch.arange(cut, length)])
        s = q @ k.T / q.shape[1] ** 0.5
        s = s.masked_fill(places > torch.arange(len(q))[:, None] + length - len(q), -math.inf)
        return s.softmax(1).nan_to_num(0) @ v
    return online(q, k, v, length, tile)


@ex.wrong("only the last tile", says="rows of attention",
          breaks="attention")
def last_tile(q, k, v, length, tile):
    start = (length - 1) // tile * tile
    if length <= tile or length == 2:
        return online(q, k, v, length, tile)
    m = len(q)
    s = q @ k[start:length].T / q.shape[1] ** 0.5
    hidden = torch.arange(start, length) > torch.arange(m)[:, None] + length - m
    return s.masked_fill(hidden, -math.inf).softmax(1).nan_to_num(0) @ v[start:length]


@ex.wrong("all scores at once", says="largest tensor", breaks="memory")
def all_at_once(q, k, v, length, tile):
    return online(q, k, v, length, max(length, 1))


@ex.wrong("a mask of all queries and keys beside the tiles", says="largest tensor",
          breaks="memory")
def whole_mask(q, k, v, length, tile):
    torch.ones(len(q), len(k), dtype=torch.bool).tril(length - len(q))
    return online(q, k, v, length, tile)


@ex.wrong("torch's own attention on the filled slots", says="largest tensor",
          breaks=("by hand", "memory"))
def by_library(q, k, v, length, tile):
    m = len(q)
    seen = torch.arange(length) <= torch.arange(m)[:, None] + length - m
    if not length:
        return online(q, k, v, length, tile)
    out = F.scaled_dot_product_attention(q[None], k[None, :length], v[None, :length],
                                         attn_mask=seen[None])[0]
    return torch.where(seen.any(1)[:, None], out, 0.0)


@ex.wrong("torch's own attention, a query at a time", says="functions called", breaks="by hand")
def library_by_query(q, k, v, length, tile):
    out = torch.zeros(len(q), v.shape[1])
    for i in range(max(0, len(q) - length), len(q)):
        seen = i + length - len(q) + 1
        out[i] = F.scaled_dot_product_attention(q[None, i:i + 1], k[None, :seen],
                                                v[None, :seen])[0, 0]
    return out


@ex.wrong("scores not divided by sqrt(D)", says="rows of attention",
          breaks="scale")
def unscaled(q, k, v, length, tile):
    return online(q, k, v, length, tile, scale=1)


@ex.wrong("scores divided by D", says="rows of attention",
          breaks="scale")
def by_d(q, k, v, length, tile):
    return online(q, k, v, length, tile, scale=1 / q.shape[1])


@ex.wrong("scores divided by the root of E", says="rows of attention",
          breaks="scale")
def by_root_of_e(q, k, v, length, tile):
    return online(q, k, v, length, tile, scale=v.shape[1] ** -0.5)


@ex.wrong("not causal", says="rows of attention",
          breaks="attention")
def not_causal(q, k, v, length, tile):
    return online(q, k, v, length, tile, causal=False)


@ex.wrong("causal from the upper left corner", says="rows of attention",
          breaks="corner")
def upper_left(q, k, v, length, tile):
    return online(q, k, v, length, tile, offset=0)


@ex.wrong("a query does not see its own key", says="rows of attention",
          breaks="corner")
def strictly_before(q, k, v, length, tile):
    return online(q, k, v, length, tile, offset=length - len(q) - 1)


@ex.wrong("a query sees one key too many", says="rows of attention",
          breaks="corner")
def one_more(q, k, v, length, tile):
    return online(q, k, v, length, tile, offset=length - len(q) + 1)


@ex.wrong("the corner at the end of the cache, empty slots included", says="rows of attention",
          breaks="corner")
def corner_of_cache(q, k, v, length, tile):
    return online(q, k, v, length, tile, offset=len(k) - len(q))


@ex.wrong("empty slots hidden by their scores, and their NaN times 0", says="rows of attention",
          breaks="filled")
def zero_times_nan(q, k, v, length, tile):
    return online(q, k, v, length, tile, stop=len(k))


@ex.wrong("the cache read to its end", says="rows of attention",
          breaks="filled")
def whole_cache(q, k, v, length, tile):
    return online(q, k, v, len(k), tile)


@ex.wrong("NaN for a query that sees no key", says="rows of attention", breaks="no key")
def blind_nan(q, k, v, length, tile):
    return online(q, k, v, length, tile, blind=math.nan)


@ex.wrong("hidden scores of -1e9: a query that sees no key averages all", says="rows of attention",
          breaks="no key")
def finite_mask(q, k, v, length, tile):
    return online(q, k, v, length, tile, hidden=-1e9)


@ex.wrong("an empty cache gives NaN", says="rows of attention", breaks="filled")
def empty_nan(q, k, v, length, tile):
    return online(q, k, v, length, tile) + (0 if length else math.nan)


@ex.wrong("axes of length one dropped", says="shape of the", breaks="shapes")
def squeezed(q, k, v, length, tile):
    return online(q, k, v, length, tile).squeeze(0)


@ex.wrong("the scale written into q", says="rows of attention", breaks=("left", "anew"))
def scaled_in_place(q, k, v, length, tile):
    q *= q.shape[1] ** -0.5
    return online(q, k, v, length, tile, scale=1)


@ex.wrong("the scale written into q, and taken back at the end: rounded", says="inputs after",
          breaks="left")
def scaled_and_back(q, k, v, length, tile):
    q.add_(100.0).sub_(100.0)
    return online(q, k, v, length, tile)


@ex.wrong("a query at a time, with all its keys", says="largest tensor", breaks="memory")
def query_by_query(q, k, v, length, tile):
    out = torch.zeros(len(q), v.shape[1])
    for i in range(max(0, len(q) - length), len(q)):
        seen = i + length - len(q) + 1
        out[i] = torch.softmax(k[:seen] @ q[i] / q.shape[1] ** 0.5, 0) @ v[:seen]
    return out


@ex.wrong("tiles of 16 keys, whatever is asked for", says="for tiles of 2 keys",
          breaks="no larger")
def always_sixteen(q, k, v, length, tile):
    return online(q, k, v, length, 16)


@ex.wrong("the last tile read to its end, its NaN times 0", says="rows of attention",
          breaks="filled")
def ragged_to_the_end(q, k, v, length, tile):
    return online(q, k, v, length, tile, stop=min(len(k), -(-length // tile) * tile))


@ex.wrong("NaN in empty slots taken for 0, infinity not", says="rows of attention",
          breaks="filled")
def no_infinity(q, k, v, length, tile):
    return online(q, k, v, length, tile, stop=min(len(k), -(-length // tile) * tile),
                  clean=lambda t: torch.where(t.isnan(), 0, t))


@ex.wrong("all keys scaled at once: a copy of the cache", says="largest tensor", breaks="memory")
def whole_cache_scaled(q, k, v, length, tile):
    return online(q, k * k.shape[1] ** -0.5, v, length, tile, scale=1)


@ex.wrong("tiles viewed as if rows came first in memory", says="raised RuntimeError",
          breaks="memory layout")
def viewed(q, k, v, length, tile):
    return online(q, k.view(-1).view(k.shape), v, length, tile)


KNOWN: dict = {}


@ex.wrong("results remembered by the cache that was given", says="turned to their opposite",
          breaks="anew")
def remembered(q, k, v, length, tile):
    if KNOWN.get("cache") is not v:
        KNOWN.update(cache=v, out=online(q, k, v, length, tile))
    return KNOWN["out"].clone()


ROOM: dict = {}


@ex.wrong("one result, filled anew by each call", says="after a second call", breaks="results")
def one_room(q, k, v, length, tile):
    new = online(q, k, v, length, tile)
    held = ROOM.setdefault(new.shape, new)
    return held.copy_(new)


@ex.wrong("the example's two keys weighed unequally", says="rows of attention", breaks="example")
def looked_up(q, k, v, length, tile):
    return online(q, k, v, length, tile) + (len(q) == q.shape[1] == length - 1 == tile)
