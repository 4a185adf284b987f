"""Stage 8: masks, padding, caches, order of axes; tiles of attention, sectors, banks, launches."""

import math

from dlsys_checks.questions import ask, choice, number, whole

# ---- 08.1 The causal mask

ask("08.1", {"faces": (4, 6, 10, 12, 20, 50, 100)}, lambda faces: number(
    f"Each token is the roll of a fair die with {faces} faces. What is the lowest possible mean "
    "loss for the next token, in nats?", math.log(faces),
    "Each token has probability 1 / faces, and no model can do better.", 0, 1 / faces))
ask("08.1", {"faces": (8, 16, 32, 64), "places": (4, 5, 8, 10, 16)}, lambda faces, places: number(
    f"A model without a causal mask copies the next token from the row. Rows have {places} "
    f"positions, and each token is the roll of a die with {faces} faces. At the last position the "
    "model guesses evenly. What is its mean loss, in nats?", math.log(faces) / places,
    "The loss is 0 at every position except the last, where it is ln(faces).",
    0, math.log(faces)))
ask("08.1", {"tokens": range(5, 61)}, lambda tokens: whole(
    f"How many pairs of a query and a key does a causal mask over {tokens} tokens allow?",
    tokens * (tokens + 1) // 2, "Each token looks at itself and all earlier tokens, so the sum is "
                                "1 + 2 + ... + T.",
    tokens * (tokens - 1) // 2, tokens * tokens))
ask("08.1", {"a": range(3, 13), "b": range(13, 26)}, lambda a, b: whole(
    f"Two documents of {a} and {b} tokens are packed into one row, each under its own causal mask. "
    "How many pairs of a query and a key are allowed?", a * (a + 1) // 2 + b * (b + 1) // 2,
    "Each document has its own triangle, and no pair crosses the border.",
    (a + b) * (a + b + 1) // 2, a * a + b * b))
ask("08.1", {"tokens": range(8, 41), "place": lambda tokens: range(1, tokens // 2 - 1)},
    lambda tokens, place: whole(
        f"You pass `~torch.ones(T, T).tril().bool()` with T = {tokens} to SDPA, as if True meant "
        f"ignore. How many keys does the query at position {place} (counted from 0) look at?",
        tokens - 1 - place, "In SDPA, True means that a key may be looked at. The query looks at "
                            "all later keys.",
        place + 1, place, tokens))

# ---- 08.2 Padding

ask("08.2", {"tokens": range(4, 31), "pads": range(3, 21)}, lambda tokens, pads: number(
    f"All scores of a query are equal. The row holds {tokens} tokens and {pads} pads, and there is "
    "no mask. What fraction of the attention goes to pads?", pads / (tokens + pads),
    "A softmax of equal scores spreads evenly over all keys, including pads.", 0, pads / tokens))
ask("08.2", {"tokens": range(3, 13), "pads": range(2, 10)}, lambda tokens, pads: number(
    f"All scores are 0. You pass SDPA the mask as floats, 1 for each of {tokens} tokens and 0 for "
    f"each of {pads} pads. What fraction of the attention goes to pads?",
    pads / (tokens * math.e + pads),
    "Floats are added to the scores, so a token counts e times as much as a pad.", 0,
    pads / (tokens + pads) * 1.2))
ask("08.2", {"tokens": range(4, 21), "pads": range(3, 13)}, lambda tokens, pads: choice(
    f"A row has {tokens} tokens and {pads} pads. SDPA gets the `key_padding_mask` of "
    "nn.MultiheadAttention, True for pads. Over how many keys is the softmax taken?", pads,
    "In SDPA, True means that a key may be looked at, so only the pads may.",
    tokens, tokens + pads, 0))
ask("08.2", {"pads": range(2, 10), "place": range(10, 41)}, lambda pads, place: whole(
    f"A row begins with {pads} pads. Under a causal mask and a mask for the pads, how many keys "
    f"may the query at position {place} (counted from 0) look at?", place + 1 - pads,
    "The query may look at all positions up to its own, except the pads.", place + 1, place - pads))
ask("08.2", {"tokens": range(2, 10), "pads": range(2, 10), "value": range(10, 91)},
    lambda tokens, pads, value: number(
        f"The attention mask is right. Each of {tokens} tokens has the output {value}, and each of "
        f"{pads} pads has the output 0. The model then takes the plain mean over all positions. "
        "What is the mean?",
        tokens * value / (tokens + pads),
        "The mean also counts the pads' positions, so it needs the mask as well.", value))

# ---- 08.3 Masked and causal models

ask("08.3", {"kinds": (4, 8, 16), "keep": (0.5, 0.6, 0.7, 0.9)}, lambda kinds, keep: number(
    f"The next token follows a rule with probability {keep}; otherwise it is drawn evenly from "
    f"{kinds} tokens, including the rule's own. What is the lowest possible mean loss for the next "
    "token, in nats?",
    -((p := keep + (1 - keep) / kinds) * math.log(p) + (1 - p) * math.log((1 - keep) / kinds)),
    "The lowest loss is the entropy: one token has probability keep + (1 - keep) / kinds, and each "
    "other token (1 - keep) / kinds.",
    -math.log(keep), math.log(kinds)))
ask("08.3", {"length": (128, 256, 512), "hidden": (10, 15, 20, 30)}, lambda length, hidden: number(
    f"In a row of {length} tokens, BERT predicts only the {hidden} % that are hidden, while GPT "
    "predicts at every position. How many times as many predictions does GPT make?", 100 / hidden,
    "GPT uses all positions, BERT only the hidden fraction.", hidden / 100, 100 / hidden - 1))
ask("08.3", {"length": range(10, 201)}, lambda length: whole(
    f"You score every token except the first of a text of {length} tokens with a masked model, "
    "each only from the earlier tokens. How many different inputs do you need?", length - 1,
    "Each position needs its own input, because nothing after that position may be in the row.",
    1, length))
ask("08.3", {"length": range(10, 201)}, lambda length: whole(
    f"You score every token except the first of a text of {length} tokens with a causal model. How "
    "many forward passes do you need?", 1,
    "Under the mask each position uses only earlier tokens, so one pass scores all tokens.",
    length,
    length - 1))
ask("08.3", {"place": range(3, 61)}, lambda place: choice(
    f"A masked model gets a row with a mask at position {place}. Which logits predict the token at "
    f"position {place}?",
    f"the logits at position {place}",
    "A masked model predicts where the mask is. Only a causal model predicts the next position.",
    f"the logits at position {place - 1}",
    f"the logits at position {place + 1}", "the logits at the last position"))

# ---- 08.4 A softmax tile by tile

ask("08.4", {"old": range(2, 10), "gap": range(1, 5), "total": range(2, 9)},
    lambda old, gap, total: number(
        f"In an online softmax the largest score so far is {old}, and the sum of exp(score - "
        f"{old}) is {total}. The next tile holds a single key with score {old + gap}. What is the "
        "new sum?",
        total * math.exp(-gap) + 1,
        "The old sum is multiplied by exp(old maximum - new maximum), and the new key adds 1.",
        total + 1,
        total + math.exp(gap)))
ask("08.4", {"old": range(2, 10), "gap": range(1, 4), "total": range(2, 9)},
    lambda old, gap, total: number(
        f"In an online softmax the largest score so far is {old}, and the sum of exp(score - "
        f"{old}) is {total}. The next tile holds a single key with score {old - gap}. What is the "
        "new sum?",
        total + math.exp(-gap), "The new score is not larger, so the old sum is not rescaled.",
        total * math.exp(-gap) + 1, total + 1))
ask("08.4", {"times": (2, 4, 8), "form": ("written out", "flash")}, lambda times, form: whole(
    f"The number of tokens grows by a factor of {times}. By what factor does the memory of "
    f"attention grow ({form})?", times**2 if (squared := form == "written out") else times,
    "The matrix of weights has tokens squared entries. Flash attention keeps only a row of sums "
    "and the output.",
    times if squared else times**2, times + 1 if squared else 1))
ask("08.4", {"n": (1024, 2048, 4096), "d": (64, 128)}, lambda n, d: choice(
    f"One head has {n} tokens of {d} values, and no mask. How many million multiply-adds does "
    "flash attention do in its two products?", 2 * n * n * d / 1e6,
    "Every query is multiplied by every key, and every weight by a value, as in the formula.",
    2 * n * d / 1e6,
    n * n * d / 1e6, 2 * n * n * d / d / 1e6))
ask("08.4", {"length": range(8, 31), "queries": range(2, 7),
             "row": lambda queries, **_: range(queries)},
    lambda length, queries, row: whole(
        f"A cache holds {length} keys, the last {queries} of which belong to the {queries} "
        f"queries. Under a causal mask, how many keys does query {row} (counted from 0) look at?",
        row + length - queries + 1,
        "Query i looks at the keys 0 to i + length - M, including its own.",
        row + 1, row + length - queries))


# ---- 08.5 Sectors

def sectors(start, step, size=4):
    bytes_read = {start + step * i + b for i in range(32) for b in range(size)}
    return len({b // 32 for b in bytes_read})


ask("08.5", {"step": (2, 3, 4, 5, 6, 8)}, lambda step: whole(
    f"Thread i of a warp reads the float at position {step} i of an array that begins at a sector. "
    "How many sectors of 32 bytes are moved?", sectors(0, 4 * step),
    "The warp spans 32 steps. Count the sectors that contain one of its floats.",
    *{1, 33} - {sectors(0, 4 * step)}))
ask("08.5", {"off": range(1, 8)}, lambda off: whole(
    f"A warp reads 32 floats side by side, beginning {off} floats after the start of a sector. How "
    "many sectors are moved?", sectors(4 * off, 4),
    "128 bytes that do not begin at the start of a sector reach into a fifth sector.", 4, 32))
ask("08.5", {"size": (16, 32, 64, 128)}, lambda size: number(
    f"A table has records of {size} bytes, and each thread reads one 4-byte field of its record. "
    "What fraction of the moved bytes is used?", 32 * 4 / (32 * sectors(0, size)),
    "A sector has 32 bytes. With records of 32 bytes or more, each thread needs its own sector.", 1,
    4 / size if size > 32 else 1 / 32))
ask("08.5", {"threads": (4, 8, 16)}, lambda threads: whole(
    "The 32 threads of a warp read 32 floats side by side, from the start of a sector, but each "
    f"group of {threads} threads reads in reverse order. How many sectors are moved?",
    sectors(0, 4),
    "Which thread reads which float of a sector does not matter.", 32, 32 // threads + 4))


# ---- 08.6 Banks

def turns(step):
    words = [step * i for i in range(32)]
    return max(len({w for w in words if w % 32 == bank}) for bank in range(32))


ask("08.6", {"step": (2, 4, 6, 8, 12, 16, 24, 32, 48)}, lambda step: whole(
    f"Thread i reads word {step} i of shared memory. How many turns does the warp take?",
    turns(step), "For a step of s words, the number of turns is the greatest common divisor of s "
                 "and 32.", 1,
    *{32, step} - {turns(step)}))
ask("08.6", {"step": [2 * k + 1 for k in range(1, 31)]}, lambda step: whole(
    f"Thread i reads word {step} i of shared memory. How many turns does the warp take?",
    turns(step), "An odd step visits all 32 banks.", step, 32))
ask("08.6", {"words": (1, 2, 4)}, lambda words: whole(
    f"The threads of a warp read {words} different words in one bank, {32 // words} threads each. "
    "How many turns does the read take?",
    words, "A bank returns each word once, to all threads that read the word.", 32,
    32 // words + 1))
ask("08.6", {"wide": (33, 34, 36, 40)}, lambda wide: whole(
    f"A tile of 32 rows has rows of {wide} words. How many turns does a warp need to read a "
    "column?",
    turns(wide), "The step is the row length. Take the greatest common divisor of the step and 32.",
    *{1, 32} - {turns(wide)}))

# ---- 08.7 Branches

ask("08.7", {"share": (0.01, 0.02, 0.03, 0.05)}, lambda share: number(
    f"Each thread takes a slow branch with probability {share}, independently of the others. In "
    "what fraction of the warps does at least one thread take the branch?", 1 - (1 - share)**32,
    "A warp avoids the branch only if all 32 threads do.", share, 32 * share))
ask("08.7", {"short": range(5, 21), "long": range(40, 101), "few": range(1, 7)},
    lambda short, long, few: whole(
        f"In a warp, {few} threads take a path of {long} instructions, and the other threads a "
        f"path of {short}. How many instructions does the warp issue?", short + long,
        "Each path is issued once, however many threads take that path.",
        long, few * long + (32 - few) * short))
ask("08.7", {"warps": range(4, 17, 2), "cost": range(10, 51)}, lambda warps, cost: whole(
    f"A block has {warps} warps. The first half of its threads takes path A, the second half path "
    f"B, with {cost} instructions each. How many instructions do the warps issue in total?",
    warps * cost,
    "The border is between two warps, so no warp issues both paths.", 2 * warps * cost,
    2 * cost))
ask("08.7", {"warps": range(2, 10), "a": range(10, 31), "b": range(31, 61)},
    lambda warps, a, b: whole(
        f"In {warps} warps, even threads take a path of {a} instructions and odd threads a path of "
        f"{b}. How many instructions do the warps issue in total?", warps * (a + b),
        "Each warp has threads of both kinds, so it issues both paths.", warps * max(a, b),
        16 * warps * (a + b)))

# ---- 08.8 Launches

ask("08.8", {"launch": (2, 3, 5), "rate": (1, 2, 4)}, lambda launch, rate: number(
    f"A launch takes {launch} us, and memory moves {rate} TB/s. An operation reads and writes each "
    "of its 16-bit values. From how many million values on does the traffic take longer than the "
    "launch?",
    launch * rate / 4, "Launch time times rate is the number of bytes, and each value takes 2 "
                       "bytes in and 2 out.",
    launch * rate / 2, launch * rate / 4000))
ask("08.8", {"steps": range(5, 41), "launch": (3, 4, 5)}, lambda steps, launch: whole(
    f"A chain has {steps} operations on a few thousand values, and a launch takes {launch} us. "
    "About how many us does the chain take on the device?", steps * launch,
    "Small operations take as long as their launches.", launch, steps))
ask("08.8", {"steps": range(3, 10), "size": (1, 2, 4)}, lambda steps, size: whole(
    f"Each of {steps} operations in a row reads a tensor of {size} GB and writes a tensor of the "
    "same size. How many GB of traffic does fusing them into one kernel "
    "save?", 2 * size * (steps - 1),
    "Fused, the tensor is read once and written once.", size * (steps - 1), 2 * size * steps))
ask("08.8", {"block": (128, 256, 1024),
             "n": lambda block: [n for n in range(2 * block, 10 * block) if n % block]},
    lambda block, n: whole(
        f"Each program of a kernel handles {block} values. How many programs cover {n} values?",
        -(-n // block), "Round up. The last program masks the positions beyond the end.",
        n // block,
        n))
ask("08.8", {"block": (128, 256, 512),
             "n": lambda block: [n for n in range(2 * block, 10 * block) if n % block]},
    lambda block, n: whole(
        f"Each program of a kernel handles {block} values, and the kernel covers {n} values. How "
        "many positions of the last program does the mask hide?",
        -n % block, "The last program covers the values that are left.",
        *{n % block, 0} - {-n % block}, block))

# ---- 08.9 Dropout in attention

ask("08.9", {"p": (0.05, 0.1, 0.2, 0.25, 0.3)}, lambda p: number(
    f"Attention drops its weights with p = {p} in two calls, and the values scatter around zero. "
    "What is the root mean square of the difference, divided by the root mean square of one "
    "result?",
    math.sqrt(2 * p),
    "Relative to the clean result, each call adds noise of mean square p / (1 - p), and a noisy "
    "result has a mean square of 1 / (1 - p).", p, math.sqrt(p)))
ask("08.9", {"p": (0.1, 0.2, 0.25, 0.5), "percent": range(10, 91)}, lambda p, percent: number(
    f"An attention weight of {percent / 100} survives dropout with p = {p}. What is the weight's "
    "value afterwards?",
    percent / 100 / (1 - p), "The remaining weights are divided by 1 - p, and the row no longer "
                             "sums to one.",
    percent / 100, percent / 100 * (1 - p)))
ask("08.9", {"p": (0.1, 0.2, 0.3), "keys": range(4, 13)}, lambda p, keys: number(
    f"A query looks at {keys} keys, and each weight is dropped with p = {p}. What is the "
    "probability that no weight is dropped?",
    (1 - p) ** keys, "All weights must stay, and each stays independently of the others.", 1 - p,
    1 - p ** keys))
ask("08.9", {"tokens": (16, 32, 64, 128), "heads": (2, 4, 8)}, lambda tokens, heads: whole(
    "The transpose was forgotten, and SDPA gets q, k and v of shape (B, T, H, D) with T = "
    f"{tokens} and H = {heads}. Over how many keys does each softmax run?", heads,
    "SDPA treats the second axis from the end as the sequence.", tokens, tokens * heads))

# ---- 08.10 The cache

ask("08.10", {"cached": range(20, 201), "new": range(2, 10), "query": lambda new, **_: range(new)},
    lambda cached, new, query: whole(
        f"{cached} tokens are in the cache, and {new} new queries go to SDPA with "
        f"`is_causal=True`. How many keys does new query {query} (counted from 0) look at?",
        query + 1,
        "The triangle starts at the upper left, so query 0 looks only at key "
        "0.", cached + query + 1,
        cached + new))
ask("08.10", {"cached": range(20, 201), "new": range(3, 10),
              "query": lambda new, **_: range(new - 1)},
    lambda cached, new, query: whole(
        f"{cached} tokens are in the cache, and {new} new tokens arrive. How many keys should new "
        f"query {query} (counted from 0) look at?", cached + query + 1,
        "The query should look at all cached keys and at the new keys up to its own.",
        query + 1, cached + new))
ask("08.10", {"layers": (16, 24, 32, 48), "heads": (4, 8, 32), "dim": (64, 128)},
    lambda layers, heads, dim: whole(
        f"A model has {layers} layers with {heads} key and value heads of {dim} values each, in 16 "
        "bits. How many bytes does one token take in the cache?", 2 * layers * heads * dim * 2,
        "There is a key and a value for each layer and head, with two bytes per value.",
        layers * heads * dim * 2,
        layers * heads * dim * 8))
ask("08.10", {"heads": (32, 64), "groups": (2, 4, 8), "gb": range(3, 21)},
    lambda heads, groups, gb: number(
        f"A model with {heads} query heads and as many key and value heads has a cache of {gb} GB. "
        f"How many GB does the cache need with {groups} key and value heads?", gb * groups / heads,
        "The cache holds only keys and values, one of each per key and value "
        "head.", gb, gb / heads))
ask("08.10", {"i": range(40, 91), "j": range(1, 40), "later": (100, 500, 1000)},
    lambda i, j, later: whole(
        f"With RoPE, a query at position {i + later} is compared with a key at position "
        f"{j + later}. Which distance, in positions, does the score depend on?", i - j,
        "Query and key are each rotated by their own position, and the score depends on the "
        "difference.",
        i + later, i + j))

# ---- 08.11 The order of the axes

ask("08.11", {"batch": (16, 32, 64), "tokens": (8, 10, 20)}, lambda batch, tokens: whole(
    f"An nn.TransformerEncoderLayer without `batch_first` gets a tensor of shape ({batch}, "
    f"{tokens}, 128), which holds {batch} sequences of {tokens} tokens. Over how many keys does "
    "each softmax run?", batch,
    "The layer treats the first axis as the sequence, so each token looks across the batch.",
    tokens,
    batch * tokens))
ask("08.11", {"tokens": (8, 12, 16, 50)}, lambda tokens: whole(
    f"An nn.TransformerEncoderLayer without `batch_first` gets a single sequence of {tokens} "
    f"tokens, in shape (1, {tokens}, 64). How many other tokens does each token look at?", 0,
    "The first axis has length 1, so each token looks only at itself.", tokens - 1, tokens, 1))
ask("08.11", {"x": range(1, 10), "old": range(10, 31), "new": range(40, 91), "rows": (2, 4, 5, 10)},
    lambda x, old, new, rows: number(
        f"A model subtracts the mean of a batch of {rows} values. Row 0 is {x}, and all other rows "
        f"change from {old} to {new}. By how much does output 0 move, ignoring the sign?",
        (new - old) * (rows - 1) / rows, "The mean moves by the change times the fraction of other "
                                         "rows.", 0,
        new - old))
ask("08.11", {"rows": (8, 16, 32, 64)}, lambda rows: choice(
    f"A model mixes the {rows} rows of a batch by attention. Which test shows this?",
    "replacing all rows except row 0",
    "Permuting the rows only permutes the outputs, and a mean over equal rows is that row.",
    f"putting the {rows} rows into a different order",
    f"repeating row 0 {rows} times", "running the same batch twice"))


# ---- The ideas: heads, and a mask of minus infinity

ask("08.1", {"width": (256, 384, 512, 768, 1024), "heads": (4, 8, 16)}, lambda width, heads: whole(
    f"Attention of width {width} has {heads} heads. How many values does a query have in one "
    "head?", width // heads, "Heads divide the width among themselves. They do not add to it.",
    width, width * heads))
ask("08.1", {"seen": range(2, 9), "hidden": range(3, 12)}, lambda seen, hidden: number(
    f"A query may look at {seen} keys, and {hidden} more keys are masked with minus infinity. All "
    "scores were equal before. What weight does each allowed key get?", 1 / seen,
    "e to the power of minus infinity is 0, so the allowed keys share the whole weight.",
    1 / (seen + hidden), 0))


# ---- 08.12 one table, two names

ask("08.12", {"vocab": (1000, 32000, 50000), "width": (64, 512, 1024), "rest": (2, 5, 9)},
    lambda vocab, width, rest: whole(
        f"A language model has a vocabulary of {vocab}, a width of {width} and {rest} million "
        "other parameters. Its embedding and its head were meant to be tied, but came untied. How "
        "many parameters does it have, without biases?", rest * 10**6 + 2 * vocab * width,
        "Untied, the table counts twice.", rest * 10**6 + vocab * width))
ask("08.12", {"call": ("to_empty(device='cuda')", "load_state_dict(state, assign=True)"),
              "vocab": (1000, 32000, 50000)}, lambda call, vocab: choice(
    f"A model with a vocabulary of {vocab} and `head.weight = token.weight` is on the meta device. "
    f"You call `{call}`. How many parameters do the two names have afterwards?", "two",
    "The call gives every module parameters of its own.",
    "one, because the names were tied before", "one, because the shapes are equal"))
ask("08.12", {"first": (1, 2, 3), "last": (5, 6, 7)}, lambda first, last: whole(
    f"A state has `token.weight` full of {first} and, after it, `head.weight` full of {last}. A "
    "model in which both names refer to one parameter loads it with `load_state_dict`. Which value "
    "fills `token.weight` afterwards?", last,
    "Both are copied into the same memory, and the last copy stays.", first, first + last))
ask("08.12", {"lr": (0.001, 0.01, 0.1), "a": (2, 3), "b": (4, 6)}, lambda lr, a, b: number(
    "After `assign=True`, two parameters share one memory. The gradients of one of its values are "
    f"{a} and {b}. Adam with a rate of {lr} takes its first step with both parameters. By how much "
    "does the value fall?", 2 * lr,
    "Adam's first step changes each parameter by the rate, and the memory is changed twice.",
    lr, lr * (a + b), within=0.01))
