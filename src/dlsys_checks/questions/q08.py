"""Stage 8, first half: masks, padding, masked models, dropout, caches, order of axes."""

import math

import torch
from torch.nn import functional as F

from dlsys_checks.questions import asks, choice, number, whole

# ---- 08.1 The causal mask


@asks("08.1")
def price_of_guessing(rng):
    faces = rng.choice([4, 6, 10, 12, 20, 50, 100])
    return number(
        f"Tokens are thrown with a fair die of {faces} faces. What does the best possible model "
        "pay for the next one, in nats?", math.log(faces),
        "Each token has probability 1 / faces, and nobody can know more.", 0, 1 / faces)


@asks("08.1")
def leak_with_a_last_place(rng):
    faces, places = rng.choice([8, 16, 32, 64]), rng.choice([4, 5, 8, 10, 16])
    return number(
        f"A model without a causal mask copies the next token wherever it stands in the row. Rows "
        f"have {places} places, tokens are dice of {faces} faces. At the last place it guesses. "
        "What is its mean loss, in nats?", math.log(faces) / places,
        "Zero at all places but one, and ln of the faces there.", 0, math.log(faces))


@asks("08.1")
def pairs_allowed(rng):
    tokens = rng.randint(5, 60)
    return whole(
        f"How many pairs of a query and a key does a causal mask over {tokens} tokens allow?",
        int(torch.ones(tokens, tokens).tril().sum()),
        "Token t sees itself and all before it: 1 + 2 + ... + T.", tokens * (tokens - 1) // 2,
        tokens * tokens)


@asks("08.1")
def packed_pairs(rng):
    a, b = rng.randint(3, 12), rng.randint(13, 25)
    return whole(
        f"Two documents of {a} and {b} tokens are packed into one row, each under its own causal "
        "mask. How many pairs may look?", a * (a + 1) // 2 + b * (b + 1) // 2,
        "Each document has a triangle of its own; nothing crosses the border.",
        (a + b) * (a + b + 1) // 2, a * a + b * b)


@asks("08.1")
def row_of_the_other_polarity(rng):
    tokens = rng.randint(8, 40)
    place = rng.randint(1, tokens // 2 - 2)
    return whole(
        f"You hand `~torch.ones(T, T).tril().bool()` with T = {tokens} to SDPA, as if True meant "
        f"ignore. How many keys does the query at place {place} look at, counted from 0?",
        tokens - 1 - place, "SDPA's True means: may look. It looks at all that come after it.",
        place + 1, place, tokens)


# ---- 08.2 Padding

@asks("08.2")
def even_share_of_pads(rng):
    tokens, pads = rng.randint(4, 30), rng.randint(3, 20)
    return number(
        f"All scores of a query are equal. The row holds {tokens} tokens and {pads} pads, and no "
        "mask is given. Which share of the attention goes to pads?", pads / (tokens + pads),
        "A softmax of equal scores is even over all keys, pads too.", 0, pads / tokens)


@asks("08.2")
def added_floats(rng):
    tokens, pads = rng.randint(3, 12), rng.randint(2, 9)
    scores = torch.tensor([1.0] * tokens + [0.0] * pads, dtype=torch.float64)
    return number(
        f"All scores are 0. You hand SDPA the mask as floats, 1 for each of {tokens} tokens and 0 "
        f"for each of {pads} pads. Which share goes to pads?", scores.softmax(0)[tokens:].sum(),
        "Floats are added to the scores: a token counts e times as much as a pad.", 0,
        pads / (tokens + pads) * 1.2)


@asks("08.2")
def inverted_padding(rng):
    tokens, pads = rng.randint(4, 20), rng.randint(3, 12)
    return choice(
        rng, f"A row of {tokens} tokens and {pads} pads. SDPA gets the `key_padding_mask` of "
        "nn.MultiheadAttention, True for pads. Over how many keys is the softmax taken?",
        pads, [tokens, tokens + pads, 0],
        "True means that a key may be looked at: only the pads may.")


@asks("08.2")
def keys_of_a_padded_row(rng):
    pads, place = rng.randint(2, 9), rng.randint(10, 40)
    return whole(
        f"A row begins with {pads} pads. How many keys may the query at place {place} look at, "
        "counted from 0, under a causal mask and a mask of the pads?", place + 1 - pads,
        "All places up to its own, without the pads.", place + 1, place - pads)


@asks("08.2")
def mean_with_pads(rng):
    tokens, pads, value = rng.randint(2, 9), rng.randint(2, 9), rng.randint(10, 90)
    mean = F.pad(torch.full((tokens,), float(value)), (0, pads)).mean()
    return number(
        f"Attention is masked rightly, and each of {tokens} tokens gives {value}. {pads} pads give "
        "0. The model then takes the plain mean over all places. What does it get?", mean,
        "The mean counts the pads' places, too; it needs the mask as well.", value)


# ---- 08.3 Masked and causal models

@asks("08.3")
def entropy_of_a_noisy_rule(rng):
    kinds, keep = rng.choice([4, 8, 16]), rng.choice([0.5, 0.6, 0.7, 0.9])
    p, rest = keep + (1 - keep) / kinds, (1 - keep) / kinds
    return number(
        f"The next token follows a rule with probability {keep}, else it is thrown among {kinds} "
        "(the rule's own among them). What is the least mean loss for the next token, in nats?",
        -(p * math.log(p) + (kinds - 1) * rest * math.log(rest)),
        "The entropy: one token has keep + (1 - keep) / kinds, each other (1 - keep) / kinds.",
        -math.log(keep), math.log(kinds))


@asks("08.3")
def share_asked(rng):
    length, hidden = rng.choice([128, 256, 512]), rng.choice([10, 15, 20, 30])
    return number(
        f"Of a row of {length} tokens BERT hides {hidden} % and is asked for those; GPT is asked "
        "at each place. How many times as many answers does GPT give?", 100 / hidden,
        "All places against the hidden share of them.", hidden / 100, 100 / hidden - 1)


@asks("08.3")
def calls_for_a_text(rng):
    length = rng.randint(10, 200)
    return whole(
        f"A masked model is to price each token of a text of {length} but the first, from what "
        "stands before it alone. How many different inputs does it need?", length - 1,
        "One for each place: whatever is behind it must not be in the row.", 1, length)


@asks("08.3")
def calls_of_a_causal_model(rng):
    length = rng.randint(10, 200)
    return whole(
        f"A causal model is to price each token of a text of {length} but the first. How many "
        "forward passes does it need?", 1,
        "Under the mask each place sees only what comes before: one pass prices all.",
        length, length - 1)


@asks("08.3")
def which_logits(rng):
    place = rng.randint(3, 60)
    return choice(
        rng, f"A masked model gets a row with a mask at place {place}. Which of its logits speak "
        f"of the token at place {place}?", f"those at place {place}",
        [f"those at place {place - 1}", f"those at place {place + 1}", "those of the last place"],
        "It is asked where the mask stands; only a causal model speaks of the next place.")


# ---- 08.9 Dropout in attention

@asks("08.9")
def gap_of_two_calls(rng):
    p = rng.choice([0.05, 0.1, 0.2, 0.25, 0.3])
    return number(
        f"Attention drops its weights with p = {p} in two calls, values scatter around zero. Root "
        "mean square of the difference, over that of one of the two results?",
        math.sqrt(2 * p),
        "Dropout brings noise of p / (1 - p), twice; a noisy result has 1 / (1 - p) of the clean "
        "one's mean square.", p, math.sqrt(p))


@asks("08.9")
def kept_weight(rng):
    p, percent = rng.choice([0.1, 0.2, 0.25, 0.5]), rng.randint(10, 90)
    return number(
        f"A weight of {percent / 100} survives a dropout of p = {p}. Which value has it then?",
        F.dropout(torch.full((1000,), percent / 100), p).max(),
        "What stays is divided by 1 - p; the row no longer sums to one.", percent / 100,
        percent / 100 * (1 - p))


@asks("08.9")
def rows_left_whole(rng):
    p, keys = rng.choice([0.1, 0.2, 0.3]), rng.randint(4, 12)
    return number(
        f"A query looks at {keys} keys, each weight is dropped with p = {p}. With what probability "
        "does none of them vanish?", (1 - p) ** keys, "All must stay, each by itself.",
        1 - p, 1 - p ** keys)


@asks("08.9")
def shape_without_transpose(rng):
    tokens, heads = rng.choice([16, 32, 64, 128]), rng.choice([2, 4, 8])
    return whole(
        f"SDPA gets q, k and v of shape (B, T, H, D), T = {tokens}, H = {heads}: the transpose was "
        "forgotten. Over how many keys does each softmax run?", heads,
        "The last axis but one is taken for the sequence.", tokens, tokens * heads)


# ---- 08.10 The cache

@asks("08.10")
def upper_left_keys(rng):
    cached, new = rng.randint(20, 200), rng.randint(2, 9)
    query = rng.randint(0, new - 1)
    return whole(
        f"{cached} tokens are in the cache and {new} new ones ask with `is_causal=True` in SDPA. "
        f"How many keys does new query {query} look at, counted from 0?", query + 1,
        "The triangle starts at the upper left: query 0 sees key 0.", cached + query + 1,
        cached + new)


@asks("08.10")
def lower_right_keys(rng):
    cached, new = rng.randint(20, 200), rng.randint(3, 9)
    query = rng.randint(0, new - 2)
    return whole(
        f"{cached} tokens are in the cache, {new} new ones come. How many keys should new query "
        f"{query} look at, counted from 0?", cached + query + 1,
        "All that are cached, and the new ones up to itself.", query + 1, cached + new)


@asks("08.10")
def bytes_of_a_token(rng):
    layers, heads, dim = rng.choice([16, 24, 32, 48]), rng.choice([4, 8, 32]), rng.choice([64, 128])
    return whole(
        f"{layers} layers, {heads} heads of keys and values with {dim} numbers each, in 16 bits. "
        "How many bytes does one token take in the cache?", 2 * layers * heads * dim * 2,
        "A key and a value, for each layer and head, two bytes a number.",
        layers * heads * dim * 2, layers * heads * dim * 8)


@asks("08.10")
def groups_of_queries(rng):
    heads, groups, gb = rng.choice([32, 64]), rng.choice([2, 4, 8]), rng.randint(3, 20)
    return number(
        f"A model with {heads} heads of queries and as many of keys and values has a cache of {gb} "
        f"GB. How many GB with {groups} heads of keys and values?", gb * groups / heads,
        "The cache holds keys and values only, one for each of their heads.", gb, gb / heads)


@asks("08.10")
def turned_distance(rng):
    i, j, later = rng.randint(40, 90), rng.randint(1, 39), rng.choice([100, 500, 1000])
    return whole(
        f"RoPE: a query at place {i + later} meets a key at place {j + later}. At which distance, "
        "in places, does the score take them to be?", i - j,
        "Both are turned by their own place; the score sees the difference.", i + later, i + j)


# ---- 08.11 The order of the axes

@asks("08.11")
def keys_across_the_batch(rng):
    batch, tokens = rng.choice([16, 32, 64]), rng.choice([8, 10, 20])
    return whole(
        f"nn.TransformerEncoderLayer as it comes, `batch_first` not given, gets a tensor of "
        f"shape ({batch}, {tokens}, 128): {batch} sequences of {tokens} tokens. Over how many keys "
        "does each softmax run?", batch,
        "It takes the first axis for the sequence: each token looks across the batch.", tokens,
        batch * tokens)


@asks("08.11")
def one_by_one(rng):
    tokens = rng.choice([8, 12, 16, 50])
    return whole(
        f"The same mistake, and one sequence of {tokens} tokens is sent alone, shape (1, {tokens}, "
        "64). How many other tokens does each token look at?", 0,
        "The first axis has length 1: each token sees itself only.", tokens - 1, tokens, 1)


@asks("08.11")
def mean_of_the_batch(rng):
    x, old, new, rows = (rng.randint(1, 9), rng.randint(10, 30), rng.randint(40, 90),
                         rng.choice([2, 4, 5, 10]))
    return number(
        f"A model subtracts the mean of the batch of {rows} numbers. Row 0 is {x}, and all the "
        f"others change from {old} to {new}. By how much does output 0 move, without its sign?",
        (new - old) * (rows - 1) / rows, "The mean moves by the others' share of the change.",
        0, new - old)


@asks("08.11")
def blind_tests(rng):
    rows = rng.choice([8, 16, 32, 64])
    return choice(
        rng, f"A model mixes the {rows} rows of a batch by attention. Which test shows it?",
        "other rows in the places of all but row 0",
        [f"the {rows} rows in another order", f"row 0 repeated {rows} times",
         "the same batch twice"],
        "The outputs of permuted rows are permuted, and a mean of equal rows is that row.")
