"""Stage 15: layers, batches and sequences in pieces, experts, recomputation, and a plan."""

import math

import torch

from dlsys_checks.questions import ask, choice, number, question_for, whole

# ---- 15.1 a layer in pieces

ask("15.1", {"layers": range(4, 41), "world": (2, 4, 8)}, lambda layers, world: whole(
    f"Behind its embedding, a net has {layers} cut layers of the form relu(h A.T) B.T, one after "
    f"the other, on {world} ranks. How many all_reduce calls does a rank make per training step?",
    2 * layers,
    "Each layer needs one call for its output and one for its input's gradient.",
    layers, 4 * layers))
ask("15.1", {"rows": (512, 1024, 2048), "width": (256, 512), "size": (2, 4)},
    lambda rows, width, size: whole(
        f"A cut layer is {width} wide with {4 * width} units. It gets {rows} tokens, with {size} "
        "bytes per value. How many bytes does a rank pass to all_reduce in one step?",
        2 * rows * width * size,
        "The rank passes the output and the input's gradient. The hidden units stay where they "
        "are.",
        rows * width * size, rows * 4 * width * size))


@question_for("15.1")
def part_that_is_left(rng):
    parts = [rng.randint(1, 9) for _ in range(rng.choice([2, 3, 4]))]
    past = rng.randint(1, 9)
    h = torch.ones((), dtype=torch.float64, requires_grad=True)
    (h * past + sum(h * p for p in parts)).backward()
    return whole(
        f"h goes into a cut layer and also around it. In the backward pass, a gradient of {past} "
        f"arrives around the layer and {', '.join(map(str, parts))} from the parts on the ranks. "
        "What is the gradient of h?",
        int(h.grad), "Everything that h went into adds up, on every rank.",
        past + parts[0],
        sum(parts))


ask("15.1", {"what": ("a norm before the cut layers", "the embedding", "the first bias")},
    lambda what: choice(
        f"With tensor parallelism, {what} differs between the ranks after some steps. The first "
        "loss is the same as on one GPU. Where do you look first?",
        "at the sum of the input's gradient, at the entrance of a cut layer",
        "The first loss is right, so the sum of the output is right. A copied weight needs the "
        "whole gradient.",
        "at the sum of the output, at the exit of a cut layer",
        "at the gradients of the cut weights, which are never summed",
        "at the learning rate, which has to fall with the number of ranks"))

# ---- 15.2 a batch in pieces

ask("15.2", {"micro": (2, 4, 8), "passes": range(2, 5)}, lambda micro, passes: whole(
    f"Gradients of {passes} passes add up, and at the end of each pass, the schedule divides .grad "
    f"by its {micro} micro-batches. How much does the last pass count in .grad, as a multiple "
    "of how much the first pass counts?",
    micro ** (passes - 1), "The first pass is divided again at the end of each later pass.", 1,
    micro**passes))
ask("15.2", {"passes": range(2, 6), "micro": (2, 4, 8), "rows": (3, 5, 6)},
    lambda passes, micro, rows: whole(
        f"A step has {passes} passes of {micro} micro-batches with {rows} labels each, and no "
        "schedule divides. By what do you divide the summed loss of a micro-batch?",
        passes * micro * rows,
        "By the number of labels in the step. Then every label has the same weight.",
        micro, rows, passes * micro))
ask("15.2", {"stages": range(2, 9), "micro": (4, 8, 16, 32)}, lambda stages, micro: number(
    f"A pipeline has {stages} stages of equal time, and {micro} micro-batches run forward only. "
    "For what percentage of the time is a stage idle?", 100 * (stages - 1) / (micro + stages - 1),
    "(p - 1) / (m + p - 1): each stage works for m units out of m + p - 1.",
    100 * (stages - 1) / micro))
ask("15.2", {"width": (1024, 2048, 4096), "rows": (512, 1024), "size": (2, 4)},
    lambda width, rows, size: whole(
        f"Two stages process {rows} tokens per step, with activations of width {width} between "
        f"them, {size} bytes per value, in 8 micro-batches. How many bytes does the first stage "
        "send in one step?", (sent := rows * width * size),
        "It sends the activations of each token once, however they are cut.", sent // 8, 8 * sent))

# ---- 15.3 a sequence in pieces

ask("15.3", {"ranks": (4, 8), "size": (512, 1024, 2048), "rank": lambda ranks, **_: range(1, ranks),
             "at": range(3, 91)},
    lambda ranks, size, rank, at: whole(
        f"A sequence of {ranks * size} tokens is cut into {ranks} parts, one per rank, in order. "
        f"Which position (from 0) has token {at} (from 0) of rank {rank}?", rank * size + at,
        "The rank's part comes after the parts of all earlier ranks.", at, rank + at,
        (rank + 1) * size + at))
ask("15.3", {"ranks": (2, 4), "size": (4, 8, 16), "rank": lambda ranks, **_: range(ranks)},
    lambda ranks, size, rank: whole(
        f"A sequence of {2 * ranks * size} tokens is cut into {2 * ranks} pieces for {ranks} "
        "ranks. Rank r holds piece r and the r-th piece from the end, both counted from 0. Which "
        f"position has the first token of rank {rank}'s second piece?",
        (2 * ranks - 1 - rank) * size, "The pieces are paired from the outside in.", size,
        (rank + ranks) * size, (2 * ranks - rank) * size))
ask("15.3", {"ranks": (4, 8, 16), "size": (256, 512, 1024)}, lambda ranks, size: whole(
    f"A sequence of {ranks * size} tokens is cut into {ranks} parts, and each rank shifts the "
    "labels of its own part by one. How many labels are left to learn from?", ranks * (size - 1),
    "Every part loses the label of its last token.", ranks * size - 1, ranks * size,
    ranks * (size - 2)))
ask("15.3", {"ranks": (2, 4, 8)}, lambda ranks: number(
    f"A long sequence with a causal mask is cut into {ranks} equal parts, one per rank, in order. "
    "What percentage of all pairs of query and key does the last rank compute?",
    100 * (2 * ranks - 1) / ranks**2,
    "The last rank's queries look at nearly all keys, but rank 0's queries look at few.",
    100 / ranks,
    100 / 2 ** (ranks - 1) if ranks > 2 else 60, within=0.03))
ask("15.3", {"what": ("a validation loss on the same ranks, cut in the same way",
                      "the training loss of the last steps", "the loss of new rows on the ranks",
                      "the best loss of the run")},
    lambda what: choice(
        "Each rank numbers the tokens of its part from 0, in training and in validation. What does "
        f"{what} show?", "nothing, because the model has learned with this numbering",
        "The fault shows when the weights read a sequence that is not cut.",
        "a loss far above that of guessing", "a loss that is higher by the number of ranks",
        "a loss that is right for the first rank and high for the others"))

# ---- 15.4 a router's weight

ask("15.4", {"a, b, c": [(2, 1, 0), (3, 1, 0), (1, 0, 0), (2, 0, 0)]}, lambda a, b, c: number(
    f"A router gives three experts the scores {a}, {b} and {c}, and only the best one is computed. "
    "Which weight should this expert's output get, so that the router can learn?",
    math.exp(a) / (math.exp(a) + math.exp(b) + math.exp(c)),
    "The weight should be the expert's probability under the softmax over all three scores.",
    1.0, a, 1 / 3, within=0.01))
ask("15.4", {"a, b": [(2, 1), (3, 1), (1, 0), (4, 2), (3, 2.5)]}, lambda a, b: number(
    f"Of eight scores, the two highest are {a} and {b}. Their probabilities are divided by their "
    "sum. Which weight does the likelier expert get?", 1 / (1 + math.exp(b - a)),
    "The other six scores cancel, so the weight is the softmax over the two.",
    0.5, 1.0, a / (a + b), within=0.01))
ask("15.4", {"k": ("top-1", "one expert per token", "one of eight experts per token", "k = 1")},
    lambda k: choice(
        f"A router with {k} divides the weight by the sum of the weights. What gets no gradient "
        "from the task?", "the router",
        "The weight is 1 whatever the router says, so only rounding error reaches the router.",
        "the experts", "only the experts that are never chosen", "nothing: no gradient is None"))
ask("15.4", {"chance": (0.2, 0.4, 0.6, 0.9)}, lambda chance: number(
    f"With one expert per token, the weight is the expert's probability, {chance}. What is the "
    "derivative of this weight with respect to the expert's own score?", chance * (1 - chance),
    "The derivative of a softmax is p times 1 - p. For p divided by itself, it would be 0.", 0.0,
    chance,
    1.0, within=0.01))
ask("15.4", {"n": (1000, 4000), "k": (1, 2), "d": (512, 1024)}, lambda n, k, d: whole(
    f"4 GPUs hold the experts of a layer, with even loads. A GPU has {n:,} tokens with {k} "
    f"expert{'s' * (k > 1)} each and {d} values of 2 bytes per token. How many bytes leave this "
    "GPU on the way to the experts?", n * k * d * 2 * (4 - 1) // 4,
    "A quarter of the rows is already on the right GPU.", n * k * d * 2, n * d * 2 * 8))

# ---- 15.5 a balance

ask("15.5", {"first": (0.55, 0.6, 0.65), "count": (0.7, 0.8, 0.9)}, lambda first, count: number(
    f"Of two experts, the first gets {count:.0%} of the choices, and its mean probability is "
    f"{first}. What is the balance loss, E times the sum of fraction times mean probability?",
    2 * (count * first + (1 - count) * (1 - first)), "Both experts count in the sum.",
    2 * count * first, 2 * (count**2 + (1 - count) ** 2), within=0.01))
ask("15.5", {"experts": (8, 16, 64), "used": (2, 4)}, lambda experts, used: number(
    f"Of {experts} experts, {used} get all tokens, evenly and with certainty. What is the balance "
    "loss, E times the sum of fraction times mean probability?", experts / used,
    "For each used expert, both factors are 1 divided by the number of used experts.", 1, experts,
    within=0.001))
ask("15.5", {"weight": ("ten", "a hundred", "a thousand")}, lambda weight: choice(
    f"The balance loss is computed only from counts of the chosen experts. You make its weight "
    f"{weight} times as large. What changes?", "the printed loss, but no parameter",
    "Counts of indices have no gradient, so the weight changes nothing in training.",
    "the router evens out the load sooner",
    "the task's loss rises, because the router is pulled away",
    "training becomes unstable"))
ask("15.5", {"experts": (8, 16, 32), "k": (1, 2), "busy": (0.5, 0.75, 1.0)},
    lambda experts, k, busy: number(
        f"A layer has {experts} experts, one per GPU, and uses {k} of them for each token. The "
        f"busiest expert gets {busy:.0%} of the tokens. How long does the layer take, as a "
        "multiple of the time with an even load?",
        busy / (k / experts),
        "With an even load, each expert gets k / E of the tokens, and all wait for the busiest.",
        busy * experts * 2 * k, 1.0, within=0.01))
ask("15.5", {"tokens": (100, 200), "experts": (4, 8), "share": (0.25, 0.5)},
    lambda tokens, experts, share: number(
        f"A balance loss covers {tokens} tokens and {experts} experts. An expert got {share:.0%} "
        "of the choices. What is the derivative of the loss with respect to one token's "
        "probability for that expert?",
        experts * share / tokens, "It is E times the fraction, divided by the number of tokens.", 0,
        experts * share, share / tokens, within=0.01))

# ---- 15.6 a second forward pass

ask("15.6", {"share": (0.1, 0.2, 0.3), "mean": range(2, 10)}, lambda share, mean: number(
    f"The running mean of a BatchNorm1d with momentum {share} is 0. The layer is in a checkpointed "
    f"block and gets one batch with mean {mean}. What is the running mean after backward?",
    (1 - (1 - share) ** 2) * mean,
    "The layer updates the running mean twice.", share * mean, 2 * share * mean,
    within=0.03))
ask("15.6", {"steps": range(20, 91), "other": range(3, 10)}, lambda steps, other: whole(
    f"A BatchNorm is in a checkpointed block. What is num_batches_tracked after {steps} training "
    f"steps and {other} validation batches in eval mode?", 2 * steps,
    "The counter rises by two in each training step and not at all in eval mode.",
    steps, 2 * (steps + other),
    2 * steps + other))
ask("15.6", {"p": (0.1, 0.2, 0.3)}, lambda p: number(
    f"Dropout with p = {p} draws a different mask in the second run of a checkpointed block. What "
    "percentage of the activations is dropped in only one of the two runs?",
    100 * (2 * p * (1 - p)),
    "An activation is dropped in one run and kept in the other, in either order.",
    100 * p, 100 * 2 * p, within=0.03))
ask("15.6", {"what, wrong": [
    ("a torch.Generator that the block holds", "torch's own generator for the CPU"),
    ("Python's random module", "torch's own generator for the CPU"),
    ("numpy's generator", "torch's own generator for the GPU of the input")],
             "layers": range(2, 10)},
    lambda what, wrong, layers: choice(
        f"torch.utils.checkpoint with its defaults runs a block of {layers} layers again. The "
        "block draws from several sources. Which of these draws differ in the second run?",
        what, "checkpoint restores torch's default generators, but no other generator.", wrong,
        "all of them, because nothing is restored", "none of them, because all are restored"))
ask("15.6", {"p": (0.1, 0.2, 0.5)}, lambda p: choice(
    f"A checkpointed block drops {100 * p:.0f} % of its activations and draws different masks in "
    "its second run. What in the first step differs from a step without checkpoints?",
    "only the gradient",
    "The loss comes from the first run, and the gradient from the second.",
    "the loss and the gradient", "only the loss", "neither; they differ only after some steps"))

# ---- 15.7 a timeline

ask("15.7", {"sending": range(2, 10), "early": range(30, 121, 10),
             "late": lambda early, **_: range(early + 50, early + 151, 10)},
    lambda sending, early, late: whole(
        f"Rank 0 calls an all-reduce at {early} ms, rank 1 calls it at {late} ms, and on both "
        f"ranks it ends at {late + sending} ms. For how many ms of rank 0's bar could gradients be "
        "sent?", sending,
        "Gradients move only from the last call on; until then, the first rank to call waits.",
        late + sending - early,
        late - early))
ask("15.7", {"sending": range(2, 5), "long": range(60, 91), "short": range(20, 41)},
    lambda sending, long, short: number(
        f"In step 1, rank 0 computes for {long} ms and rank 1 for {short} ms; in step 2, it is the "
        f"other way round. Each all-reduce sends for {sending} ms. By what percentage are the two "
        "steps together shorter on a network that takes no time?", 100 * sending / (long + sending),
        "Only the sending disappears. In each step, the faster rank still waits for the slower.",
        100 * (long - short + 2 * sending) / (2 * (long + sending))))


@question_for("15.7")
def who_was_late(rng):
    bars = rng.sample(range(3, 60), 4)
    names = ["rank 0", "rank 1", "rank 2", "rank 3"]
    late = names[bars.index(min(bars))]
    return choice(
        f"One all-reduce takes {bars[0]}, {bars[1]}, {bars[2]} and {bars[3]} ms on ranks 0 to 3. "
        "Which rank kept the other ranks waiting?", late,
        "It ends on all ranks together, so the rank that came last has the shortest bar.",
        *[name for name in names if name != late])


ask("15.7", {"layers": range(4, 9), "back": range(4, 10), "send": range(1, 4)},
    lambda layers, back, send: whole(
        f"A backward pass of {layers} layers takes {back} ms per layer. Sending each layer's "
        f"gradients takes {send} ms, during the next layer's backward pass, and only the end of "
        "the step waits for the sends. For how many ms is the network busy while nothing "
        "computes?", send,
        "All sends except the last are hidden.", layers * send, 0))
ask("15.7", {"phase": range(60, 91), "inside": range(20, 26)}, lambda phase, inside: whole(
    f"A lane shows `backward` from 0 to {phase} ms, and inside it two products of {inside} ms "
    "each. For how many ms was the lane busy?", phase, "Time inside another bar counts once.",
    phase + 2 * inside, 2 * inside))

# ---- 15.8 a plan

ask("15.8", {"billions": (3, 7, 13), "copies": (4, 8, 16)}, lambda billions, copies: number(
    f"A model has {billions} billion weights in bfloat16 and trains with AdamW, master weights and "
    f"ZeRO-1 on {copies} copies. How many GB of weights, gradients and optimizer state are on each "
    "GPU?",
    billions * (4 + 12 / copies),
    "Each GPU holds all weights and gradients, at 2 bytes each. The other 12 bytes are divided.",
    16 * billions / copies,
    16 * billions, billions * (4 + 8 / copies), within=0.01))
ask("15.8", {"each": (5, 8, 20), "micro": (2, 4), "copies": (4, 8)},
    lambda each, micro, copies: number(
        f"A sequence's activations take {each} GB. {copies} copies use micro-batches of {micro} "
        "sequences each, with 64 sequences per step. How many GB of activations does a GPU hold?",
        each * micro,
        "A micro-batch belongs to one GPU; copies share the batch, not a micro-batch.",
        each * micro / copies, 64 / copies * each if 64 / copies != micro else 64 * each,
        within=0.001))
ask("15.8", {"stages": (2, 4, 8), "small": (8, 12, 24)}, lambda stages, small: number(
    f"A pipeline has {stages} equally fast stages and {small} micro-batches. By what percentage is "
    "the step longer than without waits?", 100 * (stages - 1) / small,
    "A stage waits for p - 1 slots and is busy for m slots.",
    100 * (stages - 1) / (small + stages - 1),
    100 * stages / small, within=0.01))
ask("15.8", {"ranks": (4, 8, 16), "gigabytes": (2, 14, 26)}, lambda ranks, gigabytes: number(
    f"{ranks} ranks sum {gigabytes} GB of gradients in a ring. How many GB does each rank send?",
    2 * (ranks - 1) * gigabytes / ranks,
    "There are 2 (n - 1) steps, each with one n-th of the buffer.",
    gigabytes, gigabytes * (ranks - 1), gigabytes * (ranks - 1) / ranks, within=0.005))
ask("15.8", {"fast, slow": [(2.6, 3.3), (1.9, 2.4)], "big, small": [(58, 40), (61, 35)]},
    lambda fast, slow, big, small: choice(
        f"Your cards have 80 GB. Plan A needs {big} GB and {fast} s per step; plan B, with "
        f"checkpoints, needs {small} GB and {slow} s. Which do you try first?",
        "A, because it fits with a tenth to spare and repeats nothing",
        "Free memory gains nothing, but repeated work costs time.",
        "B, because the free memory makes a step faster",
        "B, because more of the products' operations count towards MFU",
        "neither, but a mixture of both, with the mean of their seconds"))


# ---- The idea before the traps: one matrix, cut two ways

ask("15.1", {"width": (512, 1024, 2048), "hidden": (4096, 8192), "ranks": (2, 4, 8)},
    lambda width, hidden, ranks: whole(
        f"An MLP has the matrices ({hidden}, {width}) and ({width}, {hidden}). Over {ranks} GPUs, "
        "the first matrix is cut by units and the second by inputs. How many weights does each GPU "
        "hold?",
        2 * width * hidden // ranks, "Both matrices are cut, and no weight is stored twice.",
        2 * width * hidden, width * hidden // ranks, width * hidden * (ranks + 1) // ranks))
ask("15.1", {"x": [(1, 2, 3, 4), (2, 1, 4, 1), (3, 5, 1, 2)],
             "w": [(2, 1, 1, 3), (1, 4, 2, 2), (5, 1, 3, 1)]}, lambda x, w: whole(
    f"A unit has the weights {[*w]}, and its layer is cut by inputs over two GPUs. For the input "
    f"{[*x]}, which value does the first GPU contribute to the sum?", x[0] * w[0] + x[1] * w[1],
    "The first GPU has half of the inputs and of the weights, so it has a part of every output.",
    sum(a * b for a, b in zip(x, w, strict=True)), x[0] * w[0]))
