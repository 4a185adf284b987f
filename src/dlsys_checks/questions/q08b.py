"""Stage 8, second half: tiles of attention, sectors, banks, branches and launches."""

import math

import torch

from dlsys_checks.questions import asks, choice, number, whole

# ---- 08.4 A softmax tile by tile


@asks("08.4")
def sum_after_a_larger_score(rng):
    old, gap = rng.randint(2, 9), rng.randint(1, 4)
    total = rng.randint(2, 8)
    fix = torch.tensor(float(-gap)).exp().item()
    return number(
        f"Online softmax: the largest score so far is {old}, the sum of exp(score - {old}) is "
        f"{total}. The next tile holds a single key with score {old + gap}. What is the new sum?",
        total * fix + 1, "The old sum is multiplied with exp(old maximum - new maximum).",
        total + 1, total + math.exp(gap))


@asks("08.4")
def sum_after_a_smaller_score(rng):
    old, gap, total = rng.randint(2, 9), rng.randint(1, 3), rng.randint(2, 8)
    return number(
        f"Online softmax: the largest score so far is {old}, the sum of exp(score - {old}) is "
        f"{total}. The next tile holds a single key with score {old - gap}. What is the new sum?",
        total + math.exp(-gap), "Nothing larger came, so the old sum stays as it is.",
        total * math.exp(-gap) + 1, total + 1)


@asks("08.4")
def memory_of_longer_texts(rng):
    times, form = rng.choice([2, 4, 8]), rng.choice(["written out", "flash"])
    squared = form == "written out"
    return whole(
        f"A text grows to {times} times its tokens. By what factor does the memory that attention "
        f"needs grow ({form})?", times**2 if squared else times,
        "The matrix of weights has tokens squared; flash keeps a row of sums and the output.",
        times if squared else times**2, times + 1 if squared else 1)


@asks("08.4")
def products_of_flash(rng):
    n, d = rng.choice([1024, 2048, 4096]), rng.choice([64, 128])
    return choice(
        rng, f"One head, {n} tokens, {d} numbers a head, no mask. How many multiply-adds does "
        "flash attention do in its two products, in millions?", 2 * n * n * d / 1e6,
        [2 * n * d / 1e6, n * n * d / 1e6, 2 * n * n * d / d / 1e6],
        "Every query meets every key, and every weight a value, as in the formula.")


@asks("08.4")
def keys_that_a_query_sees(rng):
    length, queries = rng.randint(8, 30), rng.randint(2, 6)
    row = rng.randrange(queries)
    return whole(
        f"A cache holds {length} keys, the last {queries} of them belong to the {queries} queries. "
        f"Causal: how many keys does query {row} (counted from 0) see?",
        row + length - queries + 1, "Query i sees keys 0 to i + length - M, itself included.",
        row + 1, row + length - queries)


# ---- 08.5 Sectors

def sectors(start, step, size=4):
    bytes_read = {start + step * i + b for i in range(32) for b in range(size)}
    return len({b // 32 for b in bytes_read})


@asks("08.5")
def sectors_of_a_stride(rng):
    step = rng.choice([2, 3, 4, 5, 6, 8])
    return whole(
        f"Thread i of a warp reads the float at place {step} i of an array from a sector on. "
        "How many sectors of 32 bytes travel?", sectors(0, 4 * step),
        "The warp spans 32 steps; count the sectors in which one of its floats lies.",
        *{1, 33} - {sectors(0, 4 * step)})


@asks("08.5")
def sectors_of_an_offset(rng):
    off = rng.randint(1, 7)
    return whole(
        f"A warp reads 32 floats side by side, beginning {off} floats after the start of a sector. "
        "How many sectors travel?", sectors(4 * off, 4),
        "128 bytes that do not begin at a sector reach into a fifth.", 4, 32)


@asks("08.5")
def share_that_is_used(rng):
    size = rng.choice([16, 32, 64, 128])
    return number(
        f"A table of records of {size} bytes; each thread reads one 4-byte field of its record. "
        "Which share of the bytes that travel is used?", 32 * 4 / (32 * sectors(0, size)),
        "A sector has 32 bytes; records of 32 bytes or more have a sector each.",
        1, 4 / size if size > 32 else 1 / 32)


@asks("08.5")
def order_in_the_warp(rng):
    threads = rng.choice([4, 8, 16])
    return whole(
        f"The 32 threads of a warp read 32 floats side by side, from a sector's start, but each "
        f"group of {threads} threads in reversed order. How many sectors travel?", sectors(0, 4),
        "Which thread reads which float of a sector does not matter.", 32, 32 // threads + 4)


# ---- 08.6 Banks

def turns(step):
    words = [step * i for i in range(32)]
    return max(len({w for w in words if w % 32 == bank}) for bank in range(32))


@asks("08.6")
def turns_of_a_step(rng):
    step = rng.choice([2, 4, 6, 8, 12, 16, 24, 32, 48])
    return whole(
        f"Thread i reads word {step} i of shared memory. How many turns does the warp take?",
        turns(step), "For a step of s words it is the greatest common divisor of s and 32.",
        1, *{32, step} - {turns(step)})


@asks("08.6")
def turns_of_an_odd_step(rng):
    step = 2 * rng.randint(1, 30) + 1
    return whole(
        f"Thread i reads word {step} i of shared memory. How many turns does the warp take?",
        turns(step), "An odd step goes through all 32 banks.", step, 32)


@asks("08.6")
def one_word_for_many(rng):
    words = rng.choice([1, 2, 4])
    return whole(
        f"The threads of a warp read {words} different words of one bank, each word by "
        f"{32 // words} threads. How many turns?", words,
        "A word is given out once, to all who want it.", 32, 32 // words + 1)


@asks("08.6")
def padding_of_a_tile(rng):
    wide = rng.choice([33, 34, 36, 40])
    return whole(
        f"A tile of 32 rows has rows of {wide} words. A warp reads a column. How many turns?",
        turns(wide), "The step is the length of a row; take its common divisor with 32.",
        *{1, 32} - {turns(wide)})


# ---- 08.7 Branches

@asks("08.7")
def warps_with_a_rare_thread(rng):
    share = rng.choice([0.01, 0.02, 0.03, 0.05])
    return number(
        f"Each thread takes a slow branch with probability {share}, on its own. In which share of "
        "the warps does somebody take it?", 1 - (1 - share)**32,
        "A warp is spared only if all 32 threads are.", share, 32 * share)


@asks("08.7")
def cost_of_a_mixed_warp(rng):
    short, long = rng.randint(5, 20), rng.randint(40, 100)
    few = rng.randint(1, 6)
    return whole(
        f"In a warp {few} threads take a path of {long} instructions, the others one of {short}. "
        "How many instructions does the warp issue for both?", short + long,
        "Each path is issued once, for whoever takes it.", long,
        few * long + (32 - few) * short)


@asks("08.7")
def halves_of_a_block(rng):
    warps, cost = 2 * rng.randint(2, 8), rng.randint(10, 50)
    return whole(
        f"A block of {warps} warps: the first half of its threads takes path A, the second path B, "
        f"{cost} instructions each. How many instructions do the warps issue together?",
        warps * cost, "The border lies between two warps; none of them walks both paths.",
        2 * warps * cost, 2 * cost)


@asks("08.7")
def even_and_odd(rng):
    warps, a, b = rng.randint(2, 9), rng.randint(10, 30), rng.randint(31, 60)
    return whole(
        f"{warps} warps; even threads take a path of {a} instructions, odd ones one of {b}. How "
        "many instructions do the warps issue together?", warps * (a + b),
        "Each warp has both kinds, so it walks both paths.", warps * max(a, b),
        16 * warps * (a + b))


# ---- 08.8 Launches

@asks("08.8")
def even_size(rng):
    launch, rate = rng.choice([2, 3, 5]), rng.choice([1, 2, 4])
    return number(
        f"A launch takes {launch} us, the memory moves {rate} TB/s. From how many million 16-bit "
        "numbers on does an operation that reads and writes each take longer than its launch?",
        launch * rate / 4, "Launch times rate are bytes; each number is 2 bytes in and 2 out.",
        launch * rate / 2, launch * rate / 4000)


@asks("08.8")
def chain_of_small_operations(rng):
    steps, launch = rng.randint(5, 40), rng.choice([3, 4, 5])
    return whole(
        f"A chain of {steps} operations on a few thousand numbers; a launch takes {launch} us. "
        "About how many us does the chain take on the device's clock?", steps * launch,
        "Small operations cost their launches.", launch, steps)


@asks("08.8")
def traffic_of_a_chain(rng):
    steps, size = rng.randint(3, 9), rng.choice([1, 2, 4])
    return whole(
        f"{steps} operations in a row, each reads one tensor of {size} GB and writes one. How many "
        "GB move less when they are fused into one kernel?", 2 * size * (steps - 1),
        "Fused, the tensor is read once and written once.", size * (steps - 1),
        2 * size * steps)


@asks("08.8")
def programs_of_a_kernel(rng):
    block = rng.choice([128, 256, 1024])
    n = block * rng.randint(2, 9) + rng.randint(1, block - 1)
    return whole(
        f"A kernel handles {block} numbers a program. How many programs cover {n} numbers?",
        -(-n // block), "Round up; the last program masks what lies beyond the end.",
        n // block, n)


@asks("08.8")
def masked_places(rng):
    block = rng.choice([128, 256, 512])
    n = block * rng.randint(2, 9) + rng.randint(1, block - 1)
    return whole(
        f"A kernel handles {block} numbers a program and covers {n} numbers. How many places of "
        "its last program does the mask hide?", -n % block, "The last program covers what is left.",
        *{n % block, 0} - {-n % block}, block)
