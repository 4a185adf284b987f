"""Stage 8: masks, padding, caches, order of axes; tiles of attention, sectors, banks, launches."""

import math

from dlsys_checks.questions import ask, choice, number, whole

# ---- 08.1 The causal mask

ask("08.1", {"faces": (4, 6, 10, 12, 20, 50, 100)}, lambda faces: number(
    f"Tokens are thrown with a fair die of {faces} faces. What does the best possible model pay "
    "for the next one, in nats?", math.log(faces),
    "Each token has probability 1 / faces, and nobody can know more.", 0, 1 / faces))
ask("08.1", {"faces": (8, 16, 32, 64), "places": (4, 5, 8, 10, 16)}, lambda faces, places: number(
    "A model without a causal mask copies the next token wherever it stands in the row. Rows have "
    f"{places} places, tokens are dice of {faces} faces. At the last place it guesses. What is its "
    "mean loss, in nats?", math.log(faces) / places,
    "Zero at all places but one, and ln of the faces there.", 0, math.log(faces)))
ask("08.1", {"tokens": range(5, 61)}, lambda tokens: whole(
    f"How many pairs of a query and a key does a causal mask over {tokens} tokens allow?",
    tokens * (tokens + 1) // 2, "Token t sees itself and all before it: 1 + 2 + ... + T.",
    tokens * (tokens - 1) // 2, tokens * tokens))
ask("08.1", {"a": range(3, 13), "b": range(13, 26)}, lambda a, b: whole(
    f"Two documents of {a} and {b} tokens are packed into one row, each under its own causal mask. "
    "How many pairs may look?", a * (a + 1) // 2 + b * (b + 1) // 2,
    "Each document has a triangle of its own; nothing crosses the border.",
    (a + b) * (a + b + 1) // 2, a * a + b * b))
ask("08.1", {"tokens": range(8, 41), "place": lambda tokens: range(1, tokens // 2 - 1)},
    lambda tokens, place: whole(
        f"You hand `~torch.ones(T, T).tril().bool()` with T = {tokens} to SDPA, as if True meant "
        f"ignore. How many keys does the query at place {place} look at, counted from 0?",
        tokens - 1 - place, "SDPA's True means: may look. It looks at all that come after it.",
        place + 1, place, tokens))

# ---- 08.2 Padding

ask("08.2", {"tokens": range(4, 31), "pads": range(3, 21)}, lambda tokens, pads: number(
    f"All scores of a query are equal. The row holds {tokens} tokens and {pads} pads, and no mask "
    "is given. Which share of the attention goes to pads?", pads / (tokens + pads),
    "A softmax of equal scores is even over all keys, pads too.", 0, pads / tokens))
ask("08.2", {"tokens": range(3, 13), "pads": range(2, 10)}, lambda tokens, pads: number(
    f"All scores are 0. You hand SDPA the mask as floats, 1 for each of {tokens} tokens and 0 for "
    f"each of {pads} pads. Which share goes to pads?", pads / (tokens * math.e + pads),
    "Floats are added to the scores: a token counts e times as much as a pad.", 0,
    pads / (tokens + pads) * 1.2))
ask("08.2", {"tokens": range(4, 21), "pads": range(3, 13)}, lambda tokens, pads: choice(
    f"A row of {tokens} tokens and {pads} pads. SDPA gets the `key_padding_mask` of "
    "nn.MultiheadAttention, True for pads. Over how many keys is the softmax taken?", pads,
    "True means that a key may be looked at: only the pads may.", tokens, tokens + pads, 0))
ask("08.2", {"pads": range(2, 10), "place": range(10, 41)}, lambda pads, place: whole(
    f"A row begins with {pads} pads. How many keys may the query at place {place} look at, counted "
    "from 0, under a causal mask and a mask of the pads?", place + 1 - pads,
    "All places up to its own, without the pads.", place + 1, place - pads))
ask("08.2", {"tokens": range(2, 10), "pads": range(2, 10), "value": range(10, 91)},
    lambda tokens, pads, value: number(
        f"Attention is masked rightly, and each of {tokens} tokens gives {value}. {pads} pads give "
        "0. The model then takes the plain mean over all places. What does it get?",
        tokens * value / (tokens + pads),
        "The mean counts the pads' places, too; it needs the mask as well.", value))

# ---- 08.3 Masked and causal models

ask("08.3", {"kinds": (4, 8, 16), "keep": (0.5, 0.6, 0.7, 0.9)}, lambda kinds, keep: number(
    f"The next token follows a rule with probability {keep}, else it is thrown among {kinds} (the "
    "rule's own among them). What is the least mean loss for the next token, in nats?",
    -((p := keep + (1 - keep) / kinds) * math.log(p) + (1 - p) * math.log((1 - keep) / kinds)),
    "The entropy: one token has keep + (1 - keep) / kinds, each other (1 - keep) / kinds.",
    -math.log(keep), math.log(kinds)))
ask("08.3", {"length": (128, 256, 512), "hidden": (10, 15, 20, 30)}, lambda length, hidden: number(
    f"Of a row of {length} tokens BERT hides {hidden} % and is asked for those; GPT is asked at "
    "each place. How many times as many answers does GPT give?", 100 / hidden,
    "All places against the hidden share of them.", hidden / 100, 100 / hidden - 1))
ask("08.3", {"length": range(10, 201)}, lambda length: whole(
    f"A masked model is to price each token of a text of {length} but the first, from what stands "
    "before it alone. How many different inputs does it need?", length - 1,
    "One for each place: whatever is behind it must not be in the row.", 1, length))
ask("08.3", {"length": range(10, 201)}, lambda length: whole(
    f"A causal model is to price each token of a text of {length} but the first. How many forward "
    "passes does it need?", 1,
    "Under the mask each place sees only what comes before: one pass prices all.", length,
    length - 1))
ask("08.3", {"place": range(3, 61)}, lambda place: choice(
    f"A masked model gets a row with a mask at place {place}. Which of its logits speak of the "
    f"token at place {place}?", f"those at place {place}",
    "It is asked where the mask stands; only a causal model speaks of the next place.",
    f"those at place {place - 1}", f"those at place {place + 1}", "those of the last place"))

# ---- 08.4 A softmax tile by tile

ask("08.4", {"old": range(2, 10), "gap": range(1, 5), "total": range(2, 9)},
    lambda old, gap, total: number(
        f"Online softmax: the largest score so far is {old}, the sum of exp(score - {old}) is "
        f"{total}. The next tile holds a single key with score {old + gap}. What is the new sum?",
        total * math.exp(-gap) + 1,
        "The old sum is multiplied with exp(old maximum - new maximum).", total + 1,
        total + math.exp(gap)))
ask("08.4", {"old": range(2, 10), "gap": range(1, 4), "total": range(2, 9)},
    lambda old, gap, total: number(
        f"Online softmax: the largest score so far is {old}, the sum of exp(score - {old}) is "
        f"{total}. The next tile holds a single key with score {old - gap}. What is the new sum?",
        total + math.exp(-gap), "Nothing larger came, so the old sum stays as it is.",
        total * math.exp(-gap) + 1, total + 1))
ask("08.4", {"times": (2, 4, 8), "form": ("written out", "flash")}, lambda times, form: whole(
    f"A text grows to {times} times its tokens. By what factor does the memory that attention "
    f"needs grow ({form})?", times**2 if (squared := form == "written out") else times,
    "The matrix of weights has tokens squared; flash keeps a row of sums and the output.",
    times if squared else times**2, times + 1 if squared else 1))
ask("08.4", {"n": (1024, 2048, 4096), "d": (64, 128)}, lambda n, d: choice(
    f"One head, {n} tokens, {d} numbers a head, no mask. How many multiply-adds does flash "
    "attention do in its two products, in millions?", 2 * n * n * d / 1e6,
    "Every query meets every key, and every weight a value, as in the formula.", 2 * n * d / 1e6,
    n * n * d / 1e6, 2 * n * n * d / d / 1e6))
ask("08.4", {"length": range(8, 31), "queries": range(2, 7),
             "row": lambda queries, **_: range(queries)},
    lambda length, queries, row: whole(
        f"A cache holds {length} keys, the last {queries} of them belong to the {queries} queries. "
        f"Causal: how many keys does query {row} (counted from 0) see?", row + length - queries + 1,
        "Query i sees keys 0 to i + length - M, itself included.", row + 1, row + length - queries))


# ---- 08.5 Sectors

def sectors(start, step, size=4):
    bytes_read = {start + step * i + b for i in range(32) for b in range(size)}
    return len({b // 32 for b in bytes_read})


ask("08.5", {"step": (2, 3, 4, 5, 6, 8)}, lambda step: whole(
    f"Thread i of a warp reads the float at place {step} i of an array from a sector on. How many "
    "sectors of 32 bytes travel?", sectors(0, 4 * step),
    "The warp spans 32 steps; count the sectors in which one of its floats lies.",
    *{1, 33} - {sectors(0, 4 * step)}))
ask("08.5", {"off": range(1, 8)}, lambda off: whole(
    f"A warp reads 32 floats side by side, beginning {off} floats after the start of a sector. How "
    "many sectors travel?", sectors(4 * off, 4),
    "128 bytes that do not begin at a sector reach into a fifth.", 4, 32))
ask("08.5", {"size": (16, 32, 64, 128)}, lambda size: number(
    f"A table of records of {size} bytes; each thread reads one 4-byte field of its record. Which "
    "share of the bytes that travel is used?", 32 * 4 / (32 * sectors(0, size)),
    "A sector has 32 bytes; records of 32 bytes or more have a sector each.", 1,
    4 / size if size > 32 else 1 / 32))
ask("08.5", {"threads": (4, 8, 16)}, lambda threads: whole(
    "The 32 threads of a warp read 32 floats side by side, from a sector's start, but each group "
    f"of {threads} threads in reversed order. How many sectors travel?", sectors(0, 4),
    "Which thread reads which float of a sector does not matter.", 32, 32 // threads + 4))


# ---- 08.6 Banks

def turns(step):
    words = [step * i for i in range(32)]
    return max(len({w for w in words if w % 32 == bank}) for bank in range(32))


ask("08.6", {"step": (2, 4, 6, 8, 12, 16, 24, 32, 48)}, lambda step: whole(
    f"Thread i reads word {step} i of shared memory. How many turns does the warp take?",
    turns(step), "For a step of s words it is the greatest common divisor of s and 32.", 1,
    *{32, step} - {turns(step)}))
ask("08.6", {"step": [2 * k + 1 for k in range(1, 31)]}, lambda step: whole(
    f"Thread i reads word {step} i of shared memory. How many turns does the warp take?",
    turns(step), "An odd step goes through all 32 banks.", step, 32))
ask("08.6", {"words": (1, 2, 4)}, lambda words: whole(
    f"The threads of a warp read {words} different words of one bank, each word by {32 // words} "
    "threads. How many turns?", words, "A word is given out once, to all who want it.", 32,
    32 // words + 1))
ask("08.6", {"wide": (33, 34, 36, 40)}, lambda wide: whole(
    f"A tile of 32 rows has rows of {wide} words. A warp reads a column. How many turns?",
    turns(wide), "The step is the length of a row; take its common divisor with 32.",
    *{1, 32} - {turns(wide)}))

# ---- 08.7 Branches

ask("08.7", {"share": (0.01, 0.02, 0.03, 0.05)}, lambda share: number(
    f"Each thread takes a slow branch with probability {share}, on its own. In which share of the "
    "warps does somebody take it?", 1 - (1 - share)**32,
    "A warp is spared only if all 32 threads are.", share, 32 * share))
ask("08.7", {"short": range(5, 21), "long": range(40, 101), "few": range(1, 7)},
    lambda short, long, few: whole(
        f"In a warp {few} threads take a path of {long} instructions, the others one of {short}. "
        "How many instructions does the warp issue for both?", short + long,
        "Each path is issued once, for whoever takes it.", long, few * long + (32 - few) * short))
ask("08.7", {"warps": range(4, 17, 2), "cost": range(10, 51)}, lambda warps, cost: whole(
    f"A block of {warps} warps: the first half of its threads takes path A, the second path B, "
    f"{cost} instructions each. How many instructions do the warps issue together?", warps * cost,
    "The border lies between two warps; none of them walks both paths.", 2 * warps * cost,
    2 * cost))
ask("08.7", {"warps": range(2, 10), "a": range(10, 31), "b": range(31, 61)},
    lambda warps, a, b: whole(
        f"{warps} warps; even threads take a path of {a} instructions, odd ones one of {b}. How "
        "many instructions do the warps issue together?", warps * (a + b),
        "Each warp has both kinds, so it walks both paths.", warps * max(a, b),
        16 * warps * (a + b)))

# ---- 08.8 Launches

ask("08.8", {"launch": (2, 3, 5), "rate": (1, 2, 4)}, lambda launch, rate: number(
    f"A launch takes {launch} us, the memory moves {rate} TB/s. From how many million 16-bit "
    "numbers on does an operation that reads and writes each take longer than its launch?",
    launch * rate / 4, "Launch times rate are bytes; each number is 2 bytes in and 2 out.",
    launch * rate / 2, launch * rate / 4000))
ask("08.8", {"steps": range(5, 41), "launch": (3, 4, 5)}, lambda steps, launch: whole(
    f"A chain of {steps} operations on a few thousand numbers; a launch takes {launch} us. About "
    "how many us does the chain take on the device's clock?", steps * launch,
    "Small operations cost their launches.", launch, steps))
ask("08.8", {"steps": range(3, 10), "size": (1, 2, 4)}, lambda steps, size: whole(
    f"{steps} operations in a row, each reads one tensor of {size} GB and writes one. How many GB "
    "move less when they are fused into one kernel?", 2 * size * (steps - 1),
    "Fused, the tensor is read once and written once.", size * (steps - 1), 2 * size * steps))
ask("08.8", {"block": (128, 256, 1024),
             "n": lambda block: [n for n in range(2 * block, 10 * block) if n % block]},
    lambda block, n: whole(
        f"A kernel handles {block} numbers a program. How many programs cover {n} numbers?",
        -(-n // block), "Round up; the last program masks what lies beyond the end.", n // block,
        n))
ask("08.8", {"block": (128, 256, 512),
             "n": lambda block: [n for n in range(2 * block, 10 * block) if n % block]},
    lambda block, n: whole(
        f"A kernel handles {block} numbers a program and covers {n} numbers. How many places of "
        "its last program does the mask hide?", -n % block, "The last program covers what is left.",
        *{n % block, 0} - {-n % block}, block))

# ---- 08.9 Dropout in attention

ask("08.9", {"p": (0.05, 0.1, 0.2, 0.25, 0.3)}, lambda p: number(
    f"Attention drops its weights with p = {p} in two calls, values scatter around zero. Root mean "
    "square of the difference, over that of one of the two results?", math.sqrt(2 * p),
    "Dropout brings noise of p / (1 - p), twice; a noisy result has 1 / (1 - p) of the clean one's "
    "mean square.", p, math.sqrt(p)))
ask("08.9", {"p": (0.1, 0.2, 0.25, 0.5), "percent": range(10, 91)}, lambda p, percent: number(
    f"A weight of {percent / 100} survives a dropout of p = {p}. Which value has it then?",
    percent / 100 / (1 - p), "What stays is divided by 1 - p; the row no longer sums to one.",
    percent / 100, percent / 100 * (1 - p)))
ask("08.9", {"p": (0.1, 0.2, 0.3), "keys": range(4, 13)}, lambda p, keys: number(
    f"A query looks at {keys} keys, each weight is dropped with p = {p}. With what probability "
    "does none of them vanish?", (1 - p) ** keys, "All must stay, each by itself.", 1 - p,
    1 - p ** keys))
ask("08.9", {"tokens": (16, 32, 64, 128), "heads": (2, 4, 8)}, lambda tokens, heads: whole(
    f"SDPA gets q, k and v of shape (B, T, H, D), T = {tokens}, H = {heads}: the transpose was "
    "forgotten. Over how many keys does each softmax run?", heads,
    "The last axis but one is taken for the sequence.", tokens, tokens * heads))

# ---- 08.10 The cache

ask("08.10", {"cached": range(20, 201), "new": range(2, 10), "query": lambda new, **_: range(new)},
    lambda cached, new, query: whole(
        f"{cached} tokens are in the cache and {new} new ones ask with `is_causal=True` in SDPA. "
        f"How many keys does new query {query} look at, counted from 0?", query + 1,
        "The triangle starts at the upper left: query 0 sees key 0.", cached + query + 1,
        cached + new))
ask("08.10", {"cached": range(20, 201), "new": range(3, 10),
              "query": lambda new, **_: range(new - 1)},
    lambda cached, new, query: whole(
        f"{cached} tokens are in the cache, {new} new ones come. How many keys should new query "
        f"{query} look at, counted from 0?", cached + query + 1,
        "All that are cached, and the new ones up to itself.", query + 1, cached + new))
ask("08.10", {"layers": (16, 24, 32, 48), "heads": (4, 8, 32), "dim": (64, 128)},
    lambda layers, heads, dim: whole(
        f"{layers} layers, {heads} heads of keys and values with {dim} numbers each, in 16 bits. "
        "How many bytes does one token take in the cache?", 2 * layers * heads * dim * 2,
        "A key and a value, for each layer and head, two bytes a number.", layers * heads * dim * 2,
        layers * heads * dim * 8))
ask("08.10", {"heads": (32, 64), "groups": (2, 4, 8), "gb": range(3, 21)},
    lambda heads, groups, gb: number(
        f"A model with {heads} heads of queries and as many of keys and values has a cache of {gb} "
        f"GB. How many GB with {groups} heads of keys and values?", gb * groups / heads,
        "The cache holds keys and values only, one for each of their heads.", gb, gb / heads))
ask("08.10", {"i": range(40, 91), "j": range(1, 40), "later": (100, 500, 1000)},
    lambda i, j, later: whole(
        f"RoPE: a query at place {i + later} meets a key at place {j + later}. At which distance, "
        "in places, does the score take them to be?", i - j,
        "Both are turned by their own place; the score sees the difference.", i + later, i + j))

# ---- 08.11 The order of the axes

ask("08.11", {"batch": (16, 32, 64), "tokens": (8, 10, 20)}, lambda batch, tokens: whole(
    "nn.TransformerEncoderLayer as it comes, `batch_first` not given, gets a tensor of shape "
    f"({batch}, {tokens}, 128): {batch} sequences of {tokens} tokens. Over how many keys does each "
    "softmax run?", batch,
    "It takes the first axis for the sequence: each token looks across the batch.", tokens,
    batch * tokens))
ask("08.11", {"tokens": (8, 12, 16, 50)}, lambda tokens: whole(
    f"The same mistake, and one sequence of {tokens} tokens is sent alone, shape (1, {tokens}, "
    "64). How many other tokens does each token look at?", 0,
    "The first axis has length 1: each token sees itself only.", tokens - 1, tokens, 1))
ask("08.11", {"x": range(1, 10), "old": range(10, 31), "new": range(40, 91), "rows": (2, 4, 5, 10)},
    lambda x, old, new, rows: number(
        f"A model subtracts the mean of the batch of {rows} numbers. Row 0 is {x}, and all the "
        f"others change from {old} to {new}. By how much does output 0 move, without its sign?",
        (new - old) * (rows - 1) / rows, "The mean moves by the others' share of the change.", 0,
        new - old))
ask("08.11", {"rows": (8, 16, 32, 64)}, lambda rows: choice(
    f"A model mixes the {rows} rows of a batch by attention. Which test shows it?",
    "other rows in the places of all but row 0",
    "The outputs of permuted rows are permuted, and a mean of equal rows is that row.",
    f"the {rows} rows in another order", f"row 0 repeated {rows} times", "the same batch twice"))


# ---- The ideas: heads, and a mask of minus infinity

ask("08.1", {"width": (256, 384, 512, 768, 1024), "heads": (4, 8, 16)}, lambda width, heads: whole(
    f"Attention of width {width} has {heads} heads. How many values does a query have in one "
    "head?", width // heads, "Heads divide the width among themselves; they do not add to it.",
    width, width * heads))
ask("08.1", {"seen": range(2, 9), "hidden": range(3, 12)}, lambda seen, hidden: number(
    f"A query may look at {seen} keys, and {hidden} more are masked with minus infinity. All "
    "scores were equal. Which weight does a key get that it may look at?", 1 / seen,
    "e to the power of minus infinity is 0, so the others share the whole weight.",
    1 / (seen + hidden), 0))
