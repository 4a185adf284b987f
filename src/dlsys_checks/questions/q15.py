"""Stage 15: layers, batches and sequences in pieces, experts, recomputation, and a plan."""

import math

import torch

from dlsys_checks.questions import asks, choice, number, whole

# ---- 15.1 a layer in pieces

@asks("15.1")
def sums_of_a_cut(rng):
    layers, world = rng.randint(4, 40), rng.choice([2, 4, 8])
    calls = [kind for _ in range(layers) for kind in ("forward", "backward")]
    return whole(
        f"A stack of {layers} cut layers of the form relu(h A.T) B.T, each behind the other, on "
        f"{world} ranks. How many all_reduce calls does a rank make in one training step?",
        len(calls), "One for each layer's output, one for each layer's input gradient.", layers,
        4 * layers)


@asks("15.1")
def bytes_of_a_cut(rng):
    rows, width, size = rng.choice([512, 1024, 2048]), rng.choice([256, 512]), rng.choice([2, 4])
    hidden = 4 * width
    y = torch.empty(rows, width, device="meta")
    total = sum(t.numel() * size for t in (y, torch.empty_like(y)))
    return whole(
        f"One cut layer, {width} wide with {hidden} units, {rows} tokens, numbers of {size} bytes. "
        "How many bytes do the tensors have that a rank hands to all_reduce in one step?", total,
        "The output and the gradient of the input; the units in between stay where they are.",
        total // 2, rows * hidden * size)


@asks("15.1")
def part_that_is_left(rng):
    parts = [rng.randint(1, 9) for _ in range(rng.choice([2, 3, 4]))]
    past = rng.randint(1, 9)
    h = torch.ones((), dtype=torch.float64, requires_grad=True)
    (h * past + sum(h * p for p in parts)).backward()
    return whole(
        f"h goes into a cut layer and past it. Backward, {past} comes past the layer and "
        f"{', '.join(map(str, parts))} from the parts of the ranks. What is the gradient of h?",
        int(h.grad), "All that h went into adds up, on whichever rank it was.", past + parts[0],
        sum(parts))


@asks("15.1")
def whose_copy(rng):
    what = rng.choice(["a norm before the cut layers", "the embedding", "the first bias"])
    return choice(
        f"Tensor parallel, and {what} differs between the ranks after some steps. The loss is as "
        "on one GPU. Where do you look first?",
        "at the sum of the input's gradient, at the entrance of a cut layer",
        "Forward is right, so the exit is; what all ranks have a copy of needs a whole gradient.",
        "at the sum of the output, at the exit of a cut layer",
        "at the gradients of the cut weights, which nobody sums",
        "at the learning rate: it has to fall with the number of ranks")


# ---- 15.2 a batch in pieces

@asks("15.2")
def last_over_first(rng):
    micro, passes = rng.choice([2, 4, 8]), rng.randint(2, 4)
    grads = []
    for _ in range(passes):
        grads = [g / micro for g in [*grads, 1.0]]
    return whole(
        f"Gradients of {passes} passes add up, and at the end of each pass the schedule divides "
        f".grad by its {micro} micro-batches. How many times as much does the last pass weigh as "
        "the first?", round(grads[-1] / grads[0]),
        "The first is divided again at the end of each later pass.", 1, micro ** passes)


@asks("15.2")
def divide_the_sum_by(rng):
    passes, micro, rows = rng.randint(2, 5), rng.choice([2, 4, 8]), rng.choice([3, 5, 6])
    labels = [[rows] * micro for _ in range(passes)]
    return whole(
        f"A step has {passes} passes of {micro} micro-batches with {rows} labels each, and no "
        "schedule divides. By what is the summed loss of a micro-batch divided?",
        sum(map(sum, labels)), "By all labels of the step: then every label weighs the same.",
        micro, rows, passes * micro)


@asks("15.2")
def bubble(rng):
    stages, micro = rng.randint(2, 8), rng.choice([4, 8, 16, 32])
    ends = {}
    for m in range(micro):
        for s in range(stages):
            ends[s, m] = max(ends.get((s - 1, m), 0), ends.get((s, m - 1), 0)) + 1
    total = ends[stages - 1, micro - 1]
    return number(
        f"{stages} stages of equal time, {micro} micro-batches, forward passes alone. For what "
        "share of the time, in percent, is a stage idle?", 100 * (1 - micro / total),
        "(p - 1) / (m + p - 1): each stage works for m units out of m + p - 1.",
        100 * (stages - 1) / micro)


@asks("15.2")
def what_is_sent(rng):
    width, rows, size = rng.choice([1024, 2048, 4096]), rng.choice([512, 1024]), rng.choice([2, 4])
    sent = torch.empty(rows, width, device="meta").numel() * size
    return whole(
        f"Two stages, {rows} tokens in a step, activations of width {width} between them, numbers "
        f"of {size} bytes, in 8 micro-batches. How many bytes does the first stage send in one "
        "step?", sent, "The activations of each token once, however they are cut.",
        sent // 8, 8 * sent)


# ---- 15.3 a sequence in pieces

@asks("15.3")
def place_on_rank(rng):
    ranks, size = rng.choice([4, 8]), rng.choice([512, 1024, 2048])
    rank, at = rng.randint(1, ranks - 1), rng.randint(3, 90)
    whole_sequence = range(ranks * size)
    return whole(
        f"A sequence of {ranks * size} tokens is cut into {ranks} parts, one a rank, in order. "
        f"Which position (from 0) has token {at} (from 0) of rank {rank}?",
        whole_sequence[rank * size:][at], "It stands behind the parts of all ranks before it.", at,
        rank + at, (rank + 1) * size + at)


@asks("15.3")
def second_piece(rng):
    ranks, size = rng.choice([2, 4]), rng.choice([4, 8, 16])
    rank = rng.randint(0, ranks - 1)
    places = list(range(2 * ranks * size))
    pieces = [places[k:k + size] for k in range(0, len(places), size)]
    return whole(
        f"A sequence of {len(places)} tokens is cut into {2 * ranks} pieces for {ranks} ranks. "
        "Rank r holds piece r and the piece as far from the end, both counted from 0. Which "
        f"position has the first token of rank {rank}'s second piece?", pieces[-1 - rank][0],
        "Pieces are paired from the outside in.", size, (rank + ranks) * size,
        (2 * ranks - rank) * size)


@asks("15.3")
def labels_left(rng):
    ranks, size = rng.choice([4, 8, 16]), rng.choice([256, 512, 1024])
    left = sum(len(range(size)[1:]) for _ in range(ranks))
    return whole(
        f"A sequence of {ranks * size} tokens is cut into {ranks} parts, and each rank shifts the "
        "labels of its own part by one. How many labels are left to learn from?", left,
        "Every part loses the label of its last token.", ranks * size - 1, ranks * size,
        ranks * (size - 2))


@asks("15.3")
def work_of_last(rng):
    ranks = rng.choice([2, 4, 8])
    size = 64
    pairs = [sum(place + 1 for place in range(rank * size, (rank + 1) * size))
             for rank in range(ranks)]
    return number(
        f"A long sequence with a causal mask is cut into {ranks} equal parts, one a rank, in "
        "order. What share (in percent) of all pairs of query and key does the last rank "
        "compute?", 100 * pairs[-1] / sum(pairs),
        "Its queries look at nearly all keys, those of rank 0 at few.", 100 / ranks, 100 / 2 ** (
            ranks - 1) if ranks > 2 else 60, within=0.03)


@asks("15.3")
def who_sees_it(rng):
    what = rng.choice(["a validation loss on the same ranks, cut in the same way",
                       "the training loss of the last steps", "the loss of new rows on the ranks",
                       "the best loss of the run"])
    return choice(
        "Each rank numbers the tokens of its part from 0, in training and in validation. What does "
        f"{what} show?", "nothing: the model has learnt to read numbered so",
        "It shows when the weights read a sequence that is not cut.",
        "a loss far above that of guessing", "a loss that is higher by the number of ranks",
        "a loss that is right for the first rank and high for the others")


# ---- 15.4 a router's weight

@asks("15.4")
def weight_of_one(rng):
    a, b, c = rng.choice([(2, 1, 0), (3, 1, 0), (1, 0, 0), (2, 0, 0)])
    chance = math.exp(a) / (math.exp(a) + math.exp(b) + math.exp(c))
    return number(
        f"A router scores three experts {a}, {b} and {c}, and the best one alone is calculated. "
        "Which weight should its output get, so that the router can learn?", chance,
        "Its chance under the softmax over all three.", 1.0, a, 1 / 3, within=0.01)


@asks("15.4")
def weights_of_two(rng):
    a, b = rng.choice([(2, 1), (3, 1), (1, 0), (4, 2), (3, 2.5)])
    return number(
        f"Of eight scores the two highest are {a} and {b}. The two chances are divided by their "
        "sum. Which weight has the likelier of the two?", 1 / (1 + math.exp(b - a)),
        "The other six cancel: it is the softmax over the two.", 0.5, 1.0, a / (a + b),
        within=0.01)


@asks("15.4")
def who_gets_no_gradient(rng):
    k = rng.choice(["top-1", "one expert a token", "one of eight experts a token", "k = 1"])
    return choice(
        f"A router with {k} divides the weight by the sum of the weights. Who gets no gradient of "
        "the task?", "the router",
        "The weight is 1 whatever the router says; what arrives there is rounding.", "the experts",
        "the experts that are never chosen, and nobody else", "nobody: no gradient is None")


@asks("15.4")
def slope_of_the_weight(rng):
    chance = rng.choice([0.2, 0.4, 0.6, 0.9])
    return number(
        f"One expert a token; its weight is its chance, {chance}. By how much does the weight rise "
        "for each unit of its own score, at this place?", chance * (1 - chance),
        "The derivative of a softmax: p times 1 - p. Divided by itself it would be 0.", 0.0,
        chance, 1.0, within=0.01)


@asks("15.4")
def bytes_that_travel(rng):
    n, k, d, gpus = rng.choice([1000, 4000]), rng.choice([1, 2]), rng.choice([512, 1024]), 4
    return whole(
        f"{gpus} GPUs hold the experts of a layer, loads are even. A GPU has {n:,} tokens, {k} "
        f"expert{'s' * (k > 1)} each, {d} numbers of 2 bytes a token. How many bytes leave it on "
        "the way to the experts?", n * k * d * 2 * (gpus - 1) // gpus,
        "A quarter of the rows is at home already.", n * k * d * 2, n * d * 2 * 8)


# ---- 15.5 a balance

@asks("15.5")
def balance_of_two(rng):
    first = rng.choice([0.55, 0.6, 0.65])
    count = rng.choice([0.7, 0.8, 0.9])
    return number(
        f"Two experts. The first one gets {count:.0%} of the choices, and its mean chance is "
        f"{first}. What is the balance loss, E times the sum of share times mean chance?",
        2 * (count * first + (1 - count) * (1 - first)), "Both experts count in the sum.",
        2 * count * first, 2 * (count**2 + (1 - count) ** 2), within=0.01)


@asks("15.5")
def all_to_some(rng):
    experts, used = rng.choice([8, 16, 64]), rng.choice([2, 4])
    return number(
        f"Of {experts} experts {used} get all tokens, evenly and for sure. What does the balance "
        "loss print, E times the sum of share times mean chance?",
        experts * sum((1 / used) ** 2 for _ in range(used)), "Each of the used ones has 1 over "
        "their number, twice.", 1, experts, within=0.001)


@asks("15.5")
def what_a_weight_does(rng):
    weight = rng.choice(["ten", "a hundred", "a thousand"])
    return choice(
        f"The balance loss is made of counts of the chosen experts. You make its weight {weight} "
        "times as large. What changes?", "the printed loss, and no parameter",
        "Counts of indices have no gradient, so nothing hangs on the weight.",
        "the router evens the load sooner", "the task's loss rises, as the router is pulled away",
        "training becomes unstable")


@asks("15.5")
def time_of_the_busiest(rng):
    experts, k, busy = rng.choice([8, 16, 32]), rng.choice([1, 2]), rng.choice([0.5, 0.75, 1.0])
    return number(
        f"{experts} experts, one a GPU, {k} of them for each token. The busiest sees {busy:.0%} of "
        "the tokens. How many times as long does the layer take as with an even load?",
        busy / (k / experts), "An even load is k of E of the tokens each, and all wait for the "
        "busiest.", busy * experts * 2 * k, 1.0, within=0.01)


@asks("15.5")
def pull_on_a_chance(rng):
    tokens, experts, share = rng.choice([100, 200]), rng.choice([4, 8]), rng.choice([0.25, 0.5])
    return number(
        f"A balance loss over {tokens} tokens and {experts} experts. An expert got {share:.0%} of "
        "the choices. What is the derivative of the loss by one token's chance for it?",
        experts * share / tokens, "E times its share, over the tokens of the mean.", 0,
        experts * share, share / tokens, within=0.01)


# ---- 15.6 a second forward pass

@asks("15.6")
def running_mean(rng):
    share, mean = rng.choice([0.1, 0.2, 0.3]), rng.randint(2, 9)
    stands = 0.0
    for _ in range(2):
        stands = (1 - share) * stands + share * mean
    return number(
        f"A BatchNorm1d with momentum {share} stands at 0. It lies in a checkpointed block, and "
        f"sees one batch whose mean is {mean}. Where does its running mean stand after backward?",
        stands, "It takes its share twice.", share * mean, 2 * share * mean, within=0.03)


@asks("15.6")
def batches_seen(rng):
    steps, other = rng.randint(20, 90), rng.randint(3, 9)
    seen = [run for _ in range(steps) for run in ("first", "second")]
    return whole(
        f"A BatchNorm lies in a checkpointed block. After {steps} training steps and {other} "
        "validation batches in eval mode: what is num_batches_tracked?", len(seen),
        "Two for each training step; eval mode counts none.", steps, 2 * (steps + other),
        2 * steps + other)


@asks("15.6")
def masks_agree(rng):
    p = rng.choice([0.1, 0.2, 0.3])
    differ = 2 * p * (1 - p)
    return number(
        f"Dropout with p = {p} draws another mask in the second run of a checkpointed block. What "
        "share (in percent) of the numbers is dropped in one of the two runs only?", 100 * differ,
        "Dropped in the first and kept in the second, or the other way round.", 100 * p,
        100 * 2 * p, within=0.03)


@asks("15.6")
def what_is_put_back(rng):
    what, wrong = rng.choice([
        ("a torch.Generator that the block holds", "torch's own generator for the CPU"),
        ("Python's random module", "torch's own generator for the CPU"),
        ("numpy's generator", "torch's own generator for the GPU of the input")])
    layers = rng.randint(2, 9)
    return choice(
        f"torch.utils.checkpoint with its defaults runs a block of {layers} layers again. The "
        "block draws from several sources. Which of these draws are other ones in the second run?",
        what, "It knows torch's default generators and nothing else.", wrong,
        "all of them: nothing is put back", "none of them: all are put back")


@asks("15.6")
def what_differs(rng):
    p = rng.choice([0.1, 0.2, 0.5])
    return choice(
        f"A checkpointed block drops {100 * p:.0f} % of its numbers, and draws other masks in its "
        "second run. What of the first step is not as without checkpoints?", "the gradient alone",
        "The loss comes from the first run, and the gradient from the second.",
        "the loss and the gradient", "the loss alone", "neither; it takes some steps to differ")


# ---- 15.7 a timeline

@asks("15.7")
def bar_and_transfer(rng):
    sending = rng.randint(2, 9)
    early = rng.randint(3, 12) * 10
    late = early + rng.randint(5, 15) * 10
    end = late + sending
    return whole(
        f"Rank 0 calls an all-reduce at {early} ms, rank 1 at {late} ms, and on both it ends at "
        f"{end} ms. For how many ms of rank 0's bar could gradients be sent?",
        end - max(early, late), "From the last call on; before that the first to come waits.",
        end - early, late - early)


@asks("15.7")
def a_faster_network(rng):
    sending = rng.randint(2, 4)
    long, short = rng.randint(60, 90), rng.randint(20, 40)
    steps = [(long, short), (short, long)]
    length = sum(max(step) + sending for step in steps)
    free = sum(max(step) for step in steps)
    bar = sum(max(step) - step[0] + sending for step in steps)
    return number(
        f"In step 1 rank 0 computes {long} ms and rank 1 {short} ms, in step 2 the other way "
        f"round; each all-reduce sends for {sending} ms. How many % shorter are both steps "
        "together on a network that takes no time?", 100 * (1 - free / length),
        "Only the sending goes; in each step both still wait for the slower rank.",
        100 * bar / length)


@asks("15.7")
def who_was_late(rng):
    bars = rng.sample(range(3, 60), 4)
    names = ["rank 0", "rank 1", "rank 2", "rank 3"]
    late = names[bars.index(min(bars))]
    return choice(
        f"One all-reduce takes {bars[0]}, {bars[1]}, {bars[2]} and {bars[3]} ms on ranks 0 to 3. "
        "Who kept the others waiting?", late,
        "It ends on all together, so who came last has the shortest bar.",
        *[name for name in names if name != late])


@asks("15.7")
def still_exposed(rng):
    layers, back, send = rng.randint(4, 8), rng.randint(4, 9), rng.randint(1, 3)
    now = free = 0
    for _ in range(layers):
        now += back
        free = max(now, free) + send
    return whole(
        f"A backward pass of {layers} layers takes {back} ms a layer. Each layer's gradients are "
        f"sent in {send} ms, one after the other, behind the next layer's backward, and are "
        "waited for in the end. For how many ms is the network busy and nothing computes?",
        free - now, "All but the last are hidden.", layers * send, 0)


@asks("15.7")
def summed_bars(rng):
    phase, inside = rng.randint(60, 90), rng.randint(20, 25)
    spans = [(0, phase), (5, 5 + inside), (7 + inside, 7 + 2 * inside)]
    busy = len({ms for start, end in spans for ms in range(start, end)})
    return whole(
        f"A lane holds `backward` from 0 to {phase} ms, and inside it two products of {inside} ms "
        "each. How many ms was the lane busy?", busy, "What lies inside another counts once.",
        sum(end - start for start, end in spans), 2 * inside)


# ---- 15.8 a plan

@asks("15.8")
def state_under_zero_one(rng):
    billions, copies = rng.choice([3, 7, 13]), rng.choice([4, 8, 16])
    parts = [(2, 1), (2, 1), (4, copies), (8, copies)]
    return number(
        f"A model of {billions} billion weights in bfloat16, AdamW with master weights, {copies} "
        "copies with ZeRO-1. How many GB of weights, gradients and optimizer state are on each "
        "GPU?", sum(billions * size / share for size, share in parts),
        "Weights and gradients stay whole, 2 bytes each; 12 bytes are shared.",
        16 * billions / copies, 16 * billions, billions * (4 + 8 / copies), within=0.01)


@asks("15.8")
def activations_of_copies(rng):
    each, micro, copies = rng.choice([5, 8, 20]), rng.choice([2, 4]), rng.choice([4, 8])
    one_gpu = sum(each for _ in range(micro))
    return number(
        f"A sequence's activations take {each} GB. {copies} copies take micro-batches of {micro} "
        f"sequences each, 64 sequences a step. How many GB of activations does a GPU hold?",
        one_gpu, "A micro-batch is one GPU's own; copies share the batch, not a micro-batch.",
        one_gpu / copies, 64 / copies * each if 64 / copies != micro else 64 * each, within=0.001)


@asks("15.8")
def waits_of_a_pipeline(rng):
    stages, small = rng.choice([2, 4, 8]), rng.choice([8, 12, 24])
    slots = small + stages - 1
    return number(
        f"{stages} stages, {small} micro-batches, all stages equally fast. By how many percent is "
        "the step longer than without waits?", 100 * (slots - small) / small,
        "Waits of p - 1 slots beside m that are busy.", 100 * (slots - small) / slots,
        100 * stages / small, within=0.01)


@asks("15.8")
def sent_by_a_ring(rng):
    ranks, gigabytes = rng.choice([4, 8, 16]), rng.choice([2, 14, 26])
    pieces = [gigabytes / ranks] * (2 * (ranks - 1))
    return number(
        f"{ranks} ranks sum {gigabytes} GB of gradients around a ring. How many GB does each rank "
        "send?", sum(pieces), "2 (n - 1) steps, each of an n-th of the buffer.",
        gigabytes, gigabytes * (ranks - 1), gigabytes * (ranks - 1) / ranks, within=0.005)


@asks("15.8")
def which_plan(rng):
    fast, slow = rng.choice([(2.6, 3.3), (1.9, 2.4)])
    big, small = rng.choice([(58, 40), (61, 35)])
    return choice(
        f"Cards of 80 GB. Plan A needs {big} GB and {fast} s a step, plan B {small} GB and {slow} "
        "s with checkpoints. Which do you try first?",
        "A: it fits with a tenth to spare, and nothing is done twice",
        "Memory that is free earns nothing; what is repeated costs time.",
        "B: the memory that is left makes a step faster",
        "B: more of the products' operations count towards MFU",
        "neither: a plan of both, with the mean of their seconds")
