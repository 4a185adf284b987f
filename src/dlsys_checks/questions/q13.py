"""Stage 13: blocks and their keys, seeds, streams, speculation, small caches, and clocks."""

import codecs
import math

import torch

from dlsys_checks.questions import asks, choice, number, whole

# ---- 13.1 blocks

@asks("13.1")
def blocks_in_use(rng):
    size, shared, mates = rng.choice([8, 16, 32]), rng.randint(2, 5), rng.randint(3, 6)
    own = [rng.randint(1, 4) for _ in range(mates)]
    blocks = {("shared", b) for b in range(shared)}
    for mate, count in enumerate(own):
        blocks |= {(mate, b) for b in range(count)}
    return whole(
        f"Blocks hold {size} tokens. {mates} requests share a beginning of {size * shared} tokens, "
        f"and have {', '.join(map(str, own))} further blocks of their own. How many blocks are in "
        "use?", len(blocks), "Shared blocks are there once.", mates * shared + sum(own), sum(own))


@asks("13.1")
def readers_left(rng):
    readers, gone = rng.randint(4, 9), rng.randint(1, 3)
    tables = [[0] for _ in range(readers)][gone:]
    return whole(
        f"{readers} requests read one block, and {gone} of them have ended. How many readers must "
        "its count show?", sum(0 in table for table in tables),
        "One for each request that still holds it; at 0 it is free.", 0, readers)


@asks("13.1")
def whose_text(rng):
    user = rng.choice(["A", "B", "the first one", "the second one"])
    return choice(
        f"A shared block is freed when the first of its two readers ends; {user} goes on reading "
        "it. A stranger comes. What happens?",
        f"{user} reads the stranger's keys, and no error is raised",
        "The block is filled again while a table still points at it.",
        "the server raises an error about a block without owner",
        "the stranger has to wait until the block is free", f"{user} reads zeros")


@asks("13.1")
def last_block(rng):
    size, tokens = rng.choice([8, 16]), rng.randint(20, 60)
    while tokens % size == 0:
        tokens += 1
    full = len([end for end in range(size, tokens + 1, size)])
    return whole(
        f"Blocks of {size} tokens. A prompt of {tokens} tokens is shared with a second request, "
        "which goes on writing. How many blocks can both read without a copy?", full,
        "Only full ones: in the last both would write one slot.", full + 1)


# ---- 13.2 keys

@asks("13.2")
def blocks_hit(rng):
    size, same, tail = rng.choice([8, 16]), rng.randint(2, 6), rng.randint(2, 5)
    first = ["a"] * (size * same) + ["b"] * (size * tail)
    other = [*first]
    other[size * same + rng.randint(0, size - 1)] = "c"
    hits = 0
    while first[:(hits + 1) * size] == other[:(hits + 1) * size]:
        hits += 1
    return whole(
        f"Blocks of {size} tokens. Two prompts of {same + tail} blocks differ in one token, in "
        f"block {same + 1}. The first is in the cache. How many blocks does the second find, with "
        "the right keys?", hits, "From the difference on every key is another one.",
        same + tail - 1, same + tail)


@asks("13.2")
def other_order(rng):
    blocks = rng.randint(3, 6)
    return whole(
        f"A prompt of {blocks} different blocks is in the cache. A second prompt has the same "
        "blocks, the first two exchanged. The key of a block is made of its own tokens alone. How "
        "many blocks are found that must not be?", blocks,
        "All are found; before each of them, or in it, something else stands now.", 2, 0)


@asks("13.2")
def what_belongs(rng):
    what = rng.choice(["the adapter's weights", "the image that the prompt shows",
                       "the version of the weights"])
    return choice(
        f"Two requests have the same tokens and differ in {what}. May they share blocks of the "
        "cache?", "no: their keys and values are others",
        "A block holds what the model computed, and that depends on more than tokens.",
        "yes: the tokens decide", "yes, but only the first block",
        "only if they are sampled with the same seed")


@asks("13.2")
def short_keys(rng):
    bits, blocks = rng.choice([16, 20, 24]), rng.choice([1000, 2000, 4000])
    pairs = sum(range(blocks)) / 2 ** bits
    return number(
        f"{blocks} different blocks have random keys of {bits} bits. How many pairs of blocks "
        f"share a key, on average?", pairs,
        f"There are n (n - 1) / 2 pairs, each with one chance in 2**{bits}.",
        blocks / 2 ** bits, within=0.03)


# ---- 13.3 seeds

@asks("13.3")
def numbers_taken(rng):
    rows, step = rng.randint(2, 8), rng.randint(2, 9)
    tape = [(s, r) for s in range(step + 1) for r in range(rows)]
    return whole(
        f"One generator serves a batch of {rows} rows, one number a row and step. How many numbers "
        f"were taken before row 0 draws at step {step} (steps count from 0)?",
        tape.index((step, 0)), "All rows take from one tape; alone it would be the step.", step,
        step + rows)


@asks("13.3")
def same_number(rng):
    seed, step, other = rng.randint(10, 60), rng.randint(5, 20), rng.randint(1, 4)
    return whole(
        f"A server seeds each draw with seed + step. Request {seed} draws at step {step}. At which "
        f"step does request {seed + other} draw with the same number?", seed + step - seed - other,
        "The sums are equal, so the two requests share all but a few numbers.", step,
        step + other)


@asks("13.3")
def depends_on(rng):
    moved = rng.choice(["another request ends and the rows move up", "the first request ends",
                        "a request joins in front"])
    return choice(
        f"Each slot of the batch has a generator, seeded for its request. Then {moved}. Whose text "
        "may change?", "that of each request whose row has another slot now",
        "The generator stayed in the slot, the request did not.",
        "nobody's: every slot has its seed", "only that of the request that came or went",
        "everybody's, in each step from the first on")


@asks("13.3")
def dice_for_a_row(rng):
    seed = rng.choice([7, 42, 1234, 99])
    return choice(
        f"Which number makes request {seed} repeat its text in any company?",
        "one made of seed and step alone",
        "It may depend on nothing that others can change, and on who asks.",
        "one made of seed, step and the row's place", "the next one of a generator for the batch",
        "one made of the step alone, the same for all requests")


# ---- 13.4 streams

@asks("13.4")
def letters_held(rng):
    stop = rng.choice(["User:", "<end>", "STOP"])
    n = rng.randint(1, len(stop) - 2)
    text = "so it goes " + stop[:n]
    held = max(k for k in range(len(stop)) if text.endswith(stop[:k]))
    return whole(
        f"The stop word is `{stop}`. So far `{text}` was decoded. How many letters must be held "
        "back?", held, "The longest ending that a stop word begins with.", len(stop) - 1, 0)


@asks("13.4")
def whole_letters(rng):
    text = rng.choice(["Zürich", "żółć", "日本", "мир", "güneş"])
    data = text.encode()
    cut = rng.randint(3, len(data) - 1)
    sent = codecs.getincrementaldecoder("utf-8")().decode(data[:cut])
    return whole(
        f"`{text}` takes {len(data)} bytes in UTF-8. How many whole letters are in the first "
        f"{cut}?", len(sent), "An unfinished letter waits for its last byte.", cut)


@asks("13.4")
def broken_letters(rng):
    letter = rng.choice(["🙂", "🎉", "🚀"])
    first = rng.randint(1, 3)
    data = letter.encode()
    shown = data[:first].decode("utf-8", "replace") + data[first:].decode("utf-8", "replace")
    return whole(
        f"The four bytes of {letter} come in two tokens, {first} and {4 - first}. Each is decoded "
        'alone with `errors="replace"`. How many replacement characters appear?',
        shown.count("\ufffd"), "The first part is one broken letter; each byte that begins none is "
        "another.", 0, 4 if first != 1 else 5)


@asks("13.4")
def why_tests_pass(rng):
    script = rng.choice(["Korean", "Japanese", "Russian"])
    return choice(
        f"Streamed {script} text has replacement characters, and every test of the tokenizer "
        "passes. Why?", "the tests decode all tokens in one call",
        "In one call the bytes meet again.", "the tokenizer does not know the script",
        "the model writes them", "the tests use other weights")


# ---- 13.5 accepting drafts

def two(rng):
    """Probabilities of target and draft for three tokens, in twentieths."""
    def cut():
        a, b = sorted(rng.sample(range(2, 19), 2))
        return [a / 20, (b - a) / 20, (20 - b) / 20]
    p = cut()
    q = cut()
    while sorted(p) == sorted(q) or min(abs(a - b) for a, b in zip(p, q, strict=True)) < 0.01:
        q = cut()
    return p, q


@asks("13.5")
def acceptance(rng):
    p, q = two(rng)
    kept = sum(b * min(1, a / b) for a, b in zip(p, q, strict=True))
    both = sum(a * b for a, b in zip(p, q, strict=True))
    return number(
        f"Target {p}, draft {q}. What share of the drafts does the right rule keep?", kept,
        "The sum of the smaller ones.", both, 1 - both + (abs(1 - both - kept) < 0.02), within=0.01)


@asks("13.5")
def after_refusal(rng):
    p, q = two(rng)
    missing = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
    token = missing.index(max(missing))
    return number(
        f"Target {p}, draft {q}. A draft is refused. With which probability does token {token} "
        "follow (tokens count from 0)?", missing[token] / sum(missing),
        "What drafts bring too seldom, divided by the sum of it.", p[token], missing[token],
        within=0.01)


@asks("13.5")
def twice_from_p(rng):
    p = rng.choice([0.2, 0.4, 0.6])
    q = rng.choice([0.1, 0.3, 0.5])
    q = q if q < p else q / 10
    both = torch.minimum(torch.tensor([p, 1 - p]), torch.tensor([q, 1 - q])).double()
    comes = both + (1 - both.sum()) * torch.tensor([p, 1 - p]).double()
    return number(
        f"Two tokens; target {p} and {1 - p:.1f}, draft {q:g} and {1 - q:g}. A refusal draws from "
        "the target. With which probability does the first token come?", comes[0].item(),
        "Kept drafts bring the smaller of both; the refused share brings it with p more.", p, q,
        within=0.02)


@asks("13.5")
def rises_and_lies(rng):
    share = rng.choice(["0.52 to 0.57", "0.73 to 0.78", "0.60 to 0.66", "0.41 to 0.47"])
    return choice(
        f"After a change to the acceptance rule the acceptance rises from {share}, and texts look "
        "as before. What does that say of the distribution?",
        "nothing: wrong rules often keep more",
        "Acceptance counts what is kept, not what comes out.", "it is nearer to the target's",
        "it is the target's still", "it is the draft's now")


# ---- 13.6 the cache after a refusal

@asks("13.6")
def entries_that_stay(rng):
    past, k = rng.randint(10, 90), rng.randint(3, 6)
    good = rng.randint(0, k - 1)
    cache = [*range(past), "fed", *["right"] * good, *["wrong"] * (k - good)]
    return whole(
        f"The cache has {past} entries. The token written last and {k} guesses are fed; the first "
        f"{good} guesses are right. How many entries stay?", cache.index("wrong"),
        "The token that was fed first has an entry as well.", past + good, len(cache))


@asks("13.6")
def tokens_a_call(rng):
    chance, k = rng.choice([0.5, 0.8, 0.9]), rng.choice([2, 3, 4])
    mean = sum(chance ** i for i in range(k + 1))
    return number(
        f"Each guess is right with probability {chance}, on its own; {k} guesses a round. How many "
        "tokens does one call of the large model bring on average?", mean,
        "The guesses up to the first wrong one, and one of the model's own.", chance * k,
        1 + chance * k, within=0.02)


@asks("13.6")
def guess_behind_wrong(rng):
    k = rng.randint(4, 6)
    bad = rng.randint(0, k - 3)
    says = [10 + i for i in range(k + 1)]
    draft = [99 if i == bad else says[i] for i in range(k)]
    n = next(i for i in range(k) if draft[i] != says[i])
    return whole(
        f"The guesses are {draft}, the model says {says}. How many tokens are written in this "
        "round?", n + 1, "Guesses behind a wrong one answer another text.", k, k + 1)


@asks("13.6")
def greedy_test(rng):
    k = rng.choice([3, 4, 5])
    return choice(
        f"Greedy decoding with {k} guesses a round. How do you test that the cache is rolled back "
        "rightly?", "the text equals that without guesses, token for token",
        "Greedy speculation may change the time, never the text.",
        "the acceptance is not lower than before", "no error is raised", "the text reads well")


# ---- 13.7 keys of few bits

@asks("13.7")
def step_of_a_grid(rng):
    bits, loud, quiet = 4, rng.choice([14, 28, 70]), rng.choice([0.5, 1.0])
    codes = round(quiet / (loud / 7))
    return whole(
        f"Keys on a symmetric grid of {bits} bits, one scale for all channels. The loudest channel "
        f"reaches {loud}, another {quiet:g}. Which code does {quiet:g} get?", codes,
        "A step of the grid is the largest size over 7.", 7, 1)


@asks("13.7")
def bits_a_number(rng):
    bits, group, scale = rng.choice([2, 4]), rng.choice([8, 16, 32]), rng.choice([16, 32])
    return number(
        f"Keys take {bits} bits, with a scale of {scale} bits for each channel and group of "
        f"{group} tokens. How many bits does one number take?", (bits * group + scale) / group,
        "A group of tokens shares a channel's scale.", bits, bits + scale, within=0.01)


@asks("13.7")
def tokens_left_over(rng):
    group, tokens = rng.choice([16, 32]), rng.randint(1100, 1500)
    return whole(
        f"Keys are packed in full groups of {group} tokens, the rest waits as it is. Of {tokens} "
        "tokens, how many wait?", len(range(tokens)[tokens // group * group:]),
        "What is left over by whole groups.", tokens, tokens // group)


@asks("13.7")
def one_token_groups(rng):
    bits = rng.choice([2, 3, 4])
    return choice(
        f"In decode each new key is packed at once to {bits} bits, with a scale for each channel "
        "of that one token. What is saved?", "nothing: each number brings a scale of its own",
        "With one number a group the scale is the number.", f"{32 - bits} of 32 bits", "half",
        "nothing at first, then more and more")


# ---- 13.8 log-probabilities

@asks("13.8")
def ratio_of_the_cut(rng):
    kept = rng.choice([0.85, 0.9, 0.95])
    return number(
        f"A server draws from a distribution cut to {kept:.0%} of its mass; the trainer scores "
        f"with all of it, same weights. What is the ratio of trainer to server for each token?",
        math.exp(math.log(0.3) - math.log(0.3 / kept)), "The server stretched each bar by one over "
        "the kept mass.", 1.0, 1 / kept, within=0.005)


@asks("13.8")
def product_over_an_answer(rng):
    kept, tokens = rng.choice([0.9, 0.95, 0.98]), rng.choice([20, 50, 100])
    return number(
        f"The ratio is {kept} for each token. What is it for an answer of {tokens} tokens?",
        math.prod([kept] * tokens), "Ratios of tokens are multiplied.", kept,
        1 - tokens * (1 - kept), within=0.05)


@asks("13.8")
def score_with_temperature(rng):
    gap, temperature = rng.choice([1, 2]), rng.choice([0.5, 0.8])
    p = torch.softmax(torch.tensor([float(gap), 0.0], dtype=torch.float64) / temperature, 0)
    plain = torch.softmax(torch.tensor([float(gap), 0.0], dtype=torch.float64), 0)
    return number(
        f"Two tokens, logits {gap} and 0, drawn at temperature {temperature}. What is the "
        "probability of the first under the distribution that was drawn from?", p[0].item(),
        "Divide the logits by the temperature first.", plain[0].item(), 1 - p[0].item(),
        within=0.01)


@asks("13.8")
def cut_again(rng):
    rule = rng.choice(["top-p 0.9", "top-k 50", "min-p 0.1"])
    return choice(
        f"A server cut by {rule}. What should a trainer use for the same cut?",
        "the set of tokens that the server kept",
        "Its logits differ in the last bits: a drawn token may fall outside its own cut.",
        f"{rule} on its own logits", "no cut, and a clip of the ratio",
        "the server's log-probability as its own")


# ---- 13.9 clocks

@asks("13.9")
def percentile_place(rng):
    n = rng.choice([200, 500, 1000, 2000])
    place = next(k for k in range(1, n + 1) if 100 * k >= 99 * n)
    return whole(
        f"{n} times are sorted, the shortest first. At which place, counted from 1, stands the "
        "least that 99 % do not exceed?", place, "99 of 100, rounded up.", n, place + 1)


@asks("13.9")
def hidden_queue(rng):
    wait, prefill = rng.choice([2.5, 4.0, 8.0]), rng.choice([0.05, 0.2])
    arrive, sent = 10.0, 10.0 + wait
    return number(
        f"A request arrives, waits {wait} s behind a semaphore, is sent, and gets its first token "
        f"{prefill} s later. What is its time to the first token?", sent + prefill - arrive,
        "The user's clock starts at the arrival.", prefill, wait, within=0.001)


@asks("13.9")
def closed_loop(rng):
    clients, seconds = rng.choice([4, 8, 16]), rng.choice([1, 2, 4])
    return number(
        f"A test has {clients} clients, each of which sends its next request when its answer is "
        f"there, after {seconds} s. The server gets slower: {2 * seconds} s. How many requests a "
        "second does it get now?", clients / (2 * seconds),
        "In a closed loop the load falls as the server slows down.", clients / seconds,
        clients, within=0.001)


@asks("13.9")
def piece_is_not_token(rng):
    pieces, each = rng.choice([40, 100]), rng.choice([2, 3, 4])
    seconds = rng.choice([2, 5, 10])
    return number(
        f"A server with speculation sends {pieces} pieces of {each} tokens in {seconds} s. How "
        f"many tokens a second are that?", pieces * each / seconds, "A piece is not a token.",
        pieces / seconds, within=0.001)


# ---- 13.10 given a valid answer

@asks("13.10")
def given_one_of_two(rng):
    a, b = rng.choice([0.1, 0.25, 0.3]), rng.choice([0.05, 0.15, 0.2])
    return number(
        f"A model writes `yes` with probability {a} and `no` with {b}; only these are allowed. "
        f"With which probability is it `yes`, given that the answer is allowed?", a / (a + b),
        "Divide once, by the sum over the allowed answers.", a, a / (1 - b), within=0.01)


@asks("13.10")
def masked_instead(rng):
    first, second = rng.choice([0.6, 0.8]), rng.choice([0.05, 0.1])
    other = rng.choice([0.5, 0.9])
    masked = first / (first + (1 - first))
    return number(
        f"Behind a first letter A (probability {first}) one answer is allowed, which goes on "
        f"with {second}; behind B ({1 - first:.1f}) one, which goes on with {other}. "
        "With a mask at each step, how often comes the answer with A?", masked,
        "The mask looks at one step: it does not know how unlikely the rest is.",
        first * second / (first * second + (1 - first) * other), within=0.005)


@asks("13.10")
def given_instead(rng):
    first, second = rng.choice([0.6, 0.8]), rng.choice([0.05, 0.1])
    other = rng.choice([0.5, 0.9])
    return number(
        f"Behind a first letter A (probability {first}) one answer is allowed, which goes on "
        f"with {second}; behind B ({1 - first:.1f}) one, which goes on with {other}. "
        "How often does the model write the one with A, given that it writes one of the two?",
        first * second / (first * second + (1 - first) * other),
        "The products, divided by their sum.", first, within=0.02)


@asks("13.10")
def what_a_mask_keeps(rng):
    form = rng.choice(["a JSON schema", "a regular expression", "a list of labels"])
    return choice(
        f"Answers are held to {form} by a mask at each step. What is guaranteed?",
        "that an answer is valid", "A step's mask moves probability to whatever begins alike.",
        "that it is the likeliest valid one", "that valid answers come as often as given validity",
        "that its log-probability rises")
