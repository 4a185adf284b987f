"""Stage 13: blocks and their keys, seeds, streams, speculation, small caches, and clocks."""

import math

from dlsys_checks.questions import ask, choice, number, question_for, whole

# ---- 13.1 blocks

@question_for("13.1")
def blocks_in_use(rng):
    size, shared, mates = rng.choice([8, 16, 32]), rng.randint(2, 5), rng.randint(3, 6)
    own = [rng.randint(1, 4) for _ in range(mates)]
    return whole(
        f"Blocks hold {size} tokens. {mates} requests share their first {size * shared} tokens and "
        f"then have {', '.join(map(str, own))} blocks of their own. How many blocks are in use?",
        shared + sum(own), "Shared blocks are stored once.", mates * shared + sum(own),
        sum(own))


ask("13.1", {"readers": range(4, 10), "gone": range(1, 4)}, lambda readers, gone: whole(
    f"{readers} requests read one block, and {gone} of them have ended. What must the block's "
    "reference count be?", readers - gone,
    "The count is the number of requests that still hold the block. At 0 the block is free.", 0,
    readers))
ask("13.1", {"gone, user": (("A", "B"), ("B", "A"), ("R1", "R2"), ("R2", "R1"))},
    lambda gone, user: choice(
    f"Requests {min(gone, user)} and {max(gone, user)} share a block. When {gone} ends, the block "
    f"is freed, although {user} still reads it. Then a new request comes in. What happens?",
    f"{user} reads the new request's keys, and no error is raised",
    "The block is overwritten while a table still points to it.",
    "the server raises an error about a block without an owner",
    "the new request has to wait until the block is free", f"{user} reads zeros"))
ask("13.1", {"size": (8, 16), "tokens": lambda size: [n for n in range(20, 61) if n % size]},
    lambda size, tokens: whole(
        f"A block holds {size} tokens. A second request shares a prompt of {tokens} tokens and "
        "writes more tokens after it. How many blocks can both requests read without a copy?",
        tokens // size,
        "Only the full blocks. In a partly filled block, both would write into the same slot.",
        tokens // size + 1))

# ---- 13.2 keys

ask("13.2", {"size": (8, 16), "same": range(2, 7), "tail": range(2, 6)},
    lambda size, same, tail: whole(
        f"A block holds {size} tokens. Two prompts of {same + tail} blocks differ in one token, in "
        f"block {same + 1}. The first prompt is in the cache. With the right keys, how many blocks "
        "does the second prompt find?", same, "From the difference on, every key is different.",
        same + tail - 1, same + tail))
ask("13.2", {"blocks": range(3, 7)}, lambda blocks: whole(
    f"A prompt of {blocks} different blocks is in the cache. A second prompt has the same blocks "
    "with the first two swapped. A block's key is made from its own tokens only. How many blocks "
    "are found that must not be found?", blocks,
    "All are found, and each of them now has a different position or a different prefix.", 2, 0))
ask("13.2", {"what": ("the adapter's weights", "the image that the prompt shows",
                      "the version of the weights")},
    lambda what: choice(
        f"Two requests have the same tokens but differ in {what}. May they share blocks of the "
        "cache?", "no, because their keys and values differ",
        "A block holds what the model computed, and that depends on more than the tokens.",
        "yes, because the tokens decide", "yes, but only the first block",
        "only if they are sampled with the same seed"))
ask("13.2", {"bits": (16, 20, 24), "blocks": (1000, 2000, 4000)}, lambda bits, blocks: number(
    f"{blocks} different blocks have random keys of {bits} bits. How many pairs of blocks share a "
    "key, on average?", blocks * (blocks - 1) / 2 / 2**bits,
    f"There are n (n - 1) / 2 pairs, and each collides with probability 1 in 2**{bits}.",
    blocks / 2**bits,
    within=0.03))

# ---- 13.3 seeds

ask("13.3", {"rows": range(2, 9), "step": range(2, 10)}, lambda rows, step: whole(
    f"One generator serves a batch of {rows} rows, with one number per row and step. How many "
    f"numbers were drawn before row 0 draws at step {step} (steps count from 0)?", rows * step,
    "All rows draw from one generator. Alone, the row would have drawn one number per step.", step,
    step + rows))
ask("13.3", {"seed": range(10, 61), "step": range(5, 21), "other": range(1, 5)},
    lambda seed, step, other: whole(
        f"A server seeds each draw with seed + step. Request {seed} draws at step {step}. At which "
        f"step does request {seed + other} draw with the same number?", step - other,
        "The sums are equal, so the two requests share all but a few of their numbers.", step,
        step + other))
ask("13.3", {"moved": ("another request ends and the rows move up", "the first request ends",
                       "a request joins in front")},
    lambda moved: choice(
        f"Each slot of the batch has a generator, seeded for its request. Then {moved}. Whose text "
        "may change?", "the text of each request that is now in a different slot",
        "The generator stayed in the slot, but the request did not.",
        "nobody's, because every slot has its seed",
        "only the text of the request that came or left",
        "everybody's, at every step from the first on"))
ask("13.3", {"seed": (7, 42, 1234, 99)}, lambda seed: choice(
    f"Which number makes request {seed} repeat its text, whatever else is in the batch?",
    "one computed from seed and step only",
    "It must depend on the request, and on nothing that other requests can change.",
    "one computed from seed, step and the row's position",
    "the next one from a generator for the whole batch",
    "one computed from the step only, the same for all requests"))

# ---- 13.4 streams

ask("13.4", {"stop": ("User:", "<end>", "STOP"), "n": lambda stop: range(1, len(stop) - 1)},
    lambda stop, n: whole(
        f"The stop word is `{stop}`. So far, the server has decoded `so it goes {stop[:n]}`. How "
        "many letters must it hold back?", n,
        "It must hold the longest ending that is the beginning of a stop word.", len(stop) - 1,
        0))
ask("13.4", {"text": ("Zürich", "żółć", "日本", "мир", "güneş"),
             "cut": lambda text: range(3, len(text.encode()))},
    lambda text, cut: whole(
        f"`{text}` takes {len(text.encode())} bytes in UTF-8. How many whole letters are in the "
        f"first {cut} bytes?", len(text.encode()[:cut].decode(errors="ignore")),
        "An unfinished letter waits for its last byte.", cut))
ask("13.4", {"letter": ("🙂", "🎉", "🚀"), "first": range(1, 4)}, lambda letter, first: whole(
    f"The four bytes of {letter} come in two tokens, {first} and {4 - first}. Each token is "
    "decoded "
    'alone with `errors="replace"`. How many replacement characters appear?', 1 + (4 - first),
    "The first part is one broken letter. No later byte can begin a letter, so each of them is one "
    "more.", 0,
    4 if first != 1 else 5))
ask("13.4", {"script": ("Korean", "Japanese", "Russian")}, lambda script: choice(
    f"Streamed {script} text has replacement characters, and every test of the tokenizer passes. "
    "Why?", "the tests decode all tokens in one call",
    "In one call, the bytes of a letter are together again.",
    "the tokenizer does not know the script", "the model writes them itself",
    "the tests use different weights"))


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


@question_for("13.5")
def acceptance(rng):
    p, q = two(rng)
    kept = sum(b * min(1, a / b) for a, b in zip(p, q, strict=True))
    both = sum(a * b for a, b in zip(p, q, strict=True))
    return number(
        f"The target's probabilities are {p}, and the draft's are {q}. What fraction of the drafts "
        "does the right rule accept?", kept,
        "It is the sum over the tokens of the smaller of the two probabilities.", both,
        1 - both + (abs(1 - both - kept) < 0.02), within=0.01)


@question_for("13.5")
def after_rejection(rng):
    p, q = two(rng)
    missing = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
    token = missing.index(max(missing))
    return number(
        f"The target's probabilities are {p}, and the draft's are {q}. A draft is rejected. With "
        f"what probability is token {token} written instead (tokens count from 0)?",
        missing[token] / sum(missing),
        "It is this token's missing probability, divided by the sum of all missing probabilities.",
        p[token], missing[token], within=0.01)


ask("13.5", {"p": (0.2, 0.4, 0.6),
             "q": lambda p: [q if q < p else q / 10 for q in (0.1, 0.3, 0.5)]},
    lambda p, q: number(
        f"For two tokens, the target's probabilities are {p} and {1 - p:.1f}, and the draft's are "
        f"{q:g} and {1 - q:g}. After a rejection, you sample from the target. With what "
        "probability is the first token written?",
        q + (p - q) * p, "Accepted drafts contribute the smaller of the two probabilities; a "
        "rejection adds p times the probability of rejecting.", p, q,
        within=0.02))
ask("13.5", {"share": ("0.52 to 0.57", "0.73 to 0.78", "0.60 to 0.66", "0.41 to 0.47")},
    lambda share: choice(
        f"After a change to the acceptance rule, acceptance rises from {share}, and the texts look "
        "as before. What does that say about the output's distribution?",
        "nothing, because wrong rules often accept more",
        "Acceptance counts what is accepted, not what is written.", "it is closer to the target's",
        "it is still the target's", "it is now the draft's"))

# ---- 13.6 the cache after a rejection

ask("13.6", {"past": range(10, 91), "k": range(3, 7), "good": lambda k, **_: range(k)},
    lambda past, k, good: whole(
        f"The cache has {past} entries. The token written last and {k} guesses are fed; the first "
        f"{good} guesses are right. How many entries stay?", past + 1 + good,
        "The token that was fed first has an entry as well.", past + good, past + 1 + k))
ask("13.6", {"chance": (0.5, 0.8, 0.9), "k": (2, 3, 4)}, lambda chance, k: number(
    f"Each of the {k} guesses per round is right with probability {chance}, independently of the "
    "others. How many tokens does one call of the large model write on average?",
    sum(chance ** i for i in range(k + 1)),
    "It writes the guesses before the first wrong one, and one token of its own.", chance * k,
    1 + chance * k, within=0.02))


@question_for("13.6")
def guess_behind_wrong(rng):
    k = rng.randint(4, 6)
    bad = rng.randint(0, k - 3)
    says = [10 + i for i in range(k + 1)]
    draft = [99 if i == bad else says[i] for i in range(k)]
    return whole(
        f"The guesses are {draft}, the model says {says}. How many tokens are written in this "
        "round?", bad + 1, "Guesses after a wrong one belong to another text.", k, k + 1)


ask("13.6", {"k": (3, 4, 5)}, lambda k: choice(
    f"You decode greedily with {k} guesses per round. How do you test that the cache is rolled "
    "back correctly?", "the text equals the text without guesses, token for token",
    "Apart from near ties, greedy speculation changes the time, but not the text.",
    "the acceptance is not lower than before", "no error is raised", "the text reads well"))

# ---- 13.7 keys of few bits

ask("13.7", {"loud": (14, 28, 70), "quiet": (0.5, 1.0)}, lambda loud, quiet: whole(
    "Keys are stored on a symmetric grid of 4 bits, with one scale for all channels. The largest "
    f"channel reaches {loud}, and another reaches {quiet:g}. Which code does {quiet:g} get? "
    "(Halves round to the even code.)",
    round(quiet / (loud / 7)), "One step of the grid is the largest absolute value divided by 7.",
    7, 1))
ask("13.7", {"bits": (2, 4), "group": (8, 16, 32), "scale": (16, 32)},
    lambda bits, group, scale: number(
        f"Keys take {bits} bits, with a scale of {scale} bits for each channel and group of "
        f"{group} tokens. How many bits does one value take?", (bits * group + scale) / group,
        "A group of tokens shares a channel's scale.", bits, bits + scale, within=0.01))
ask("13.7", {"group": (16, 32), "tokens": range(1100, 1501)}, lambda group, tokens: whole(
    f"Keys are packed in full groups of {group} tokens, and the rest waits in full precision. Of "
    f"{tokens} tokens, how many wait?", tokens % group,
    "The tokens that are left over after the whole groups wait.", tokens, tokens // group))
ask("13.7", {"bits": (2, 3, 4)}, lambda bits: choice(
    f"In decode, each new key is packed at once to {bits} bits, with one 32-bit scale per channel "
    "of that token. How much is saved?", "nothing, because each value needs a scale of its own",
    "With one value per group, the scale is the value.", f"{32 - bits} of 32 bits", "half",
    "nothing at first, then more and more"))

# ---- 13.8 log-probabilities

ask("13.8", {"kept": (0.85, 0.9, 0.95)}, lambda kept: number(
    f"A server samples from a distribution cut to {kept:.0%} of its mass. The trainer scores with "
    "the same weights and without the cut. What is the ratio of trainer to server for each token?",
    kept, "The server divides each probability by the kept mass.", 1.0, 1 / kept, within=0.005))
ask("13.8", {"kept": (0.9, 0.95, 0.98), "tokens": (20, 50, 100)}, lambda kept, tokens: number(
    f"The ratio is {kept} for each token. What is it for an answer of {tokens} tokens?",
    kept**tokens, "The ratios of the tokens are multiplied.", kept, 1 - tokens * (1 - kept),
    within=0.05))
ask("13.8", {"gap": (1, 2), "temperature": (0.5, 0.8)}, lambda gap, temperature: number(
    f"Two tokens have the logits {gap} and 0 and are sampled at temperature {temperature}. What is "
    "the first token's probability under the distribution that both were sampled from?",
    (p := 1 / (1 + math.exp(-gap / temperature))), "Divide the logits by the temperature before "
                                                   "the softmax.",
    1 / (1 + math.exp(-gap)), 1 - p, within=0.01))
ask("13.8", {"rule": ("top-p 0.9", "top-k 50", "min-p 0.1")}, lambda rule: choice(
    f"A server cuts by {rule}. What should the trainer use to make the same cut?",
    "the set of tokens that the server kept",
    "The trainer's logits differ in the last bits, so a sampled token may be outside the trainer's "
    "own cut.",
    f"{rule} on its own logits", "no cut, but a clip on the ratio",
    "the server's log-probability instead of its own"))

# ---- 13.9 clocks

ask("13.9", {"n": (200, 500, 1000, 2000)}, lambda n: whole(
    f"{n} times are sorted, the shortest first. At which position, counted from 1, is the smallest "
    "time that 99 % do not exceed?", (place := n * 99 // 100),
    "It is 99 % of the number of times, rounded up.", n, place + 1))
ask("13.9", {"wait": (2.5, 4.0, 8.0), "prefill": (0.05, 0.2)}, lambda wait, prefill: number(
    f"A request arrives, waits {wait} s at a semaphore, is sent, and gets its first token "
    f"{prefill} s later. What is its time to the first token?", wait + prefill,
    "The user's clock starts at the arrival.", prefill, wait, within=0.001))
ask("13.9", {"clients": (4, 8, 16), "seconds": (1, 2, 4)}, lambda clients, seconds: number(
    f"A test has {clients} clients. Each sends its next request as soon as it has an answer, which "
    f"takes {seconds} s. Then the server slows down, and an answer takes {2 * seconds} s. How many "
    "requests per second does the server get now?", clients / (2 * seconds),
    "In a closed loop, the load falls as the server slows down.", clients / seconds, clients,
    within=0.001))
ask("13.9", {"pieces": (40, 100), "each": (2, 3, 4), "seconds": (2, 5, 10)},
    lambda pieces, each, seconds: number(
        f"A server with speculation sends {pieces} pieces of {each} tokens in {seconds} s. How "
        "many tokens per second is that?", pieces * each / seconds,
        "A piece is not a token; it can hold several.",
        pieces / seconds, within=0.001))

# ---- 13.10 given a valid answer

ask("13.10", {"a": (0.1, 0.25, 0.3), "b": (0.05, 0.15, 0.2)}, lambda a, b: number(
    f"A model writes `yes` with probability {a} and `no` with {b}; only these answers are allowed. "
    "With what probability is the answer `yes`, given that it is allowed?", a / (a + b),
    "Divide once, by the sum over the allowed answers.", a, a / (1 - b), within=0.01))
ask("13.10", {"first": (0.6, 0.8), "second": (0.05, 0.1), "other": (0.5, 0.9)},
    lambda first, second, other: number(
        f"After a first letter A (probability {first}), one answer is allowed, whose rest has "
        f"probability {second}. After B ({1 - first:.1f}), one answer is allowed, whose rest has "
        f"{other}. With a mask at each step, how often is the answer with A written?", first,
        "The mask looks at one step only. It does not know how unlikely the rest is.",
        first * second / (first * second + (1 - first) * other), within=0.005))
ask("13.10", {"first": (0.6, 0.8), "second": (0.05, 0.1), "other": (0.5, 0.9)},
    lambda first, second, other: number(
        f"After a first letter A (probability {first}), one answer is allowed, whose rest has "
        f"probability {second}. After B ({1 - first:.1f}), one answer is allowed, whose rest has "
        f"{other}. How often does the model write the answer with A, given that it writes one of "
        "the two answers?",
        first * second / (first * second + (1 - first) * other),
        "Divide the product for A by the sum of both products.", first, within=0.02))
ask("13.10", {"form": ("a JSON schema", "a regular expression", "a list of labels")},
    lambda form: choice(
        f"A mask at each step restricts answers to {form}. What is guaranteed?",
        "that a finished answer is valid",
        "The mask gives the removed probability to answers with the same beginning.",
        "that it is the likeliest valid answer",
        "that the valid answers keep the odds that the model gives them",
        "that its log-probability rises"))


# ---- The idea before the traps: why old keys may be reused

ask("13.1", {"prompt": (10, 20, 50, 100), "new": (10, 20, 40, 100)}, lambda prompt, new: whole(
    f"A server has no cache and sends the whole text through the model for each new token. For a "
    f"prompt of {prompt} tokens and an answer of {new}, how many tokens does it send in all?",
    new * prompt + new * (new - 1) // 2,
    "Each call sends the prompt and all tokens written so far: n p + n (n - 1) / 2.",
    prompt + new, new, new * prompt))
ask("13.2", {"tokens": range(5, 41), "mask": ("with a causal mask", "without any mask")},
    lambda tokens, mask: whole(
        f"A transformer {mask} reads {tokens} tokens, and then the same tokens and one more. How "
        f"many of the {tokens} old keys of its second layer change?",
        tokens * ("without" in mask),
        "With a causal mask, nothing at a position depends on later tokens; without a mask, "
        "everything after the first attention does.", tokens * ("without" not in mask), 1))
