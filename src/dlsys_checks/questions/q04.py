"""Stage 4: what an optimizer does with a gradient, and a schedule with a rate."""

import math
from itertools import combinations

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from dlsys_checks.questions import ask, choice, number, question_for, whole


def _after(rule, w0, grads, **options):
    """A float64 weight after one step of this rule for each gradient."""
    w = nn.Parameter(torch.tensor([float(w0)], dtype=torch.float64))
    opt = rule([w], **options)
    for g in grads:
        w.grad = torch.full_like(w, g)
        opt.step()
    return w.item()


# ---- 04.1 Norm gains that are decayed after all

ask("04.1", {"lr": (0.01, 0.02, 0.05), "decay": (0.05, 0.1, 0.2), "steps": (100, 200, 300)},
    lambda lr, decay, steps: number(
        "A gain of 1 was left in the decayed group, and its gradient is always 0. What is its "
        f"value after {steps} steps of AdamW at rate {lr} with decay "
        f"{decay}?", (1 - lr * decay) ** steps,
        "Each step multiplies the gain by 1 - rate * decay.", 1, (1 - decay) ** steps))
ask("04.1", {"layers": range(2, 25), "width": (8, 16, 32)}, lambda layers, width: whole(
    f"A model has {layers} of torch's encoder layers, each with 4 matrices and the norms `norm1` "
    "and `norm2`. You exempt all names that contain `bias` or `LayerNorm.weight`. How many tensors "
    "are decayed?",
    layers * (4 + 2), "LayerNorm is the name of a class. The gains are called norm1.weight and "
                      "norm2.weight, so they are decayed as well.",
    layers * 4))
ask("04.1", {"blocks": range(2, 16)}, lambda blocks: whole(
    f"A model has one `nn.Embedding` and {blocks} pairs of an `nn.Linear` and an `nn.LayerNorm`. "
    "You decay every tensor with two or more axes. How many tensors are exempt?", 3 * blocks,
    "A Linear's bias and a norm's gain and bias have one axis each. The embedding has two.",
    blocks, 2 * blocks, 1 + blocks))
ask("04.1", {"lr": (1e-4, 1e-3, 1e-2), "decay": (0.01, 0.05, 0.1)}, lambda lr, decay: number(
    f"AdamW runs at rate {lr:g} with decay {decay:g}, and a gain always gets a gradient of zero. "
    "After how many steps is half of the gain left?", math.log(0.5) / math.log1p(-lr * decay),
    "The product of rate, decay and steps must be about ln 2.", 0.5 / (lr * decay), 0.5 / decay))

# ---- 04.2 A borrowed learning rate

ask("04.2", {"lr": (0.01, 0.1, 0.3), "g": (0.001, 0.002, 0.005, 0.02, 0.05)}, lambda lr, g: number(
    f"A weight has the gradient {g}, and SGD and Adam both run at a rate of {lr}. How many times "
    "as long is Adam's first step as SGD's?", 1 / g,
    "Adam's first step is as long as the rate, and SGD's is the rate times the gradient.", 1, g))
ask("04.2", {"lr": (0.001, 0.01, 0.02), "factor": (10, 50, 100, 1000)}, lambda lr, factor: number(
    f"You multiply the loss by {factor}. Adam's rate is {lr}, and a weight's gradient was 0.5 "
    "before the change. How far does the first step move that weight?", lr,
    "Adam divides by the gradient's own size, so its first step is one rate long.", lr * factor,
    lr * factor * 0.5))
ask("04.2", {"lr": (0.001, 0.003, 0.01), "steps": (50, 100, 200), "g": range(3, 41)},
    lambda lr, steps, g: number(
        f"The gradient of a weight is {g} at every step. How far does Adam at rate {lr} move "
        f"the weight in {steps} steps?", lr * steps, "With a constant gradient each step is one "
                                                     "rate long.",
        lr * steps * g, lr * g))
ask("04.2", {"lr": (0.01, 0.1), "mu": (0.5, 0.8, 0.9, 0.95), "g": range(2, 10)},
    lambda lr, mu, g: number(
        f"SGD runs at rate {lr} with momentum {mu}, and the gradient is {g} at every step. How "
        "far does one step move the weight after many steps?", lr * g / (1 - mu),
        "The buffer settles at g / (1 - momentum), and the rate multiplies it.", lr * g,
        lr * g * mu))


# ---- 04.3 The schedule that counts the wrong thing

def _rates(schedule, lr, calls, **options):
    """The rate after 0, 1, ... calls of step()."""
    opt = SGD([nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)
    made = schedule(opt, **options)
    rates = [opt.param_groups[0]["lr"]]
    for _ in range(calls):
        opt.step()
        made.step()
        rates.append(opt.param_groups[0]["lr"])
    return rates


ask("04.3", {"peak": (0.05, 0.1, 0.2, 0.4), "epochs": range(3, 9), "batches": (100, 200)},
    lambda peak, epochs, batches: choice(
        f"A run has {epochs} epochs of {batches} batches and uses `OneCycleLR(max_lr={peak}, "
        f"total_steps={epochs * batches})`, but `step()` is called once per epoch. What is the "
        "highest rate that any batch gets?",
        max(_rates(OneCycleLR, peak, epochs - 1, max_lr=peak, total_steps=epochs * batches)),
        "The schedule counts its calls, and after so few calls it has hardly left "
        "peak / 25.", peak, peak / 2,
        peak / epochs))
ask("04.3", {"size": (10, 20, 30), "epochs": (40, 60), "lr": (0.1, 0.2, 0.5),
             "batch": (45, 65, 95)},
    lambda size, epochs, lr, batch: number(
        f"`StepLR(step_size={size}, gamma=0.1)` is meant for {epochs} epochs and starts at {lr}, "
        f"but `step()` is called after every batch. What is the rate after {batch} batches?",
        lr * 0.1 ** (batch // size), "The schedule counts calls, so it counts every batch.", lr,
        lr / 10 ** (batch / size), within=0.01))
ask("04.3", {"lr": (0.1, 0.2, 0.4), "epochs": (5, 10, 20),
             "total": lambda epochs, **_: [epochs * k for k in (4, 5, 8)]},
    lambda lr, epochs, total: number(
        f"`CosineAnnealingLR(T_max={total})` starts at {lr}. T_max is the number of batches, but "
        f"`step()` is called once per epoch, {epochs} times. What is the rate at the end?",
        _rates(CosineAnnealingLR, lr, epochs, T_max=total)[-1],
        "The schedule covers only a fraction of the half cosine, namely calls divided by T_max.",
        0, lr))
ask("04.3", {"accumulate": range(2, 7), "epochs": range(2, 10),
             "batches": lambda accumulate, **_: [
                 n for n in range(3 * accumulate, 13 * accumulate) if n % accumulate]},
    lambda accumulate, epochs, batches: whole(
        f"A run has {epochs} epochs of {batches} micro-batches, with an update after every "
        f"{accumulate} micro-batches and after each epoch's last micro-batch. Which T_max does a "
        "cosine need if you step it once per update?",
        epochs * math.ceil(batches / accumulate),
        "Count updates: micro-batches divided by accumulate, rounded up in every epoch.",
        epochs * batches, epochs * (batches // accumulate), epochs))

# ---- 04.4 AdamW decays whether you ask or not

ask("04.4", {"w0": range(2, 10), "steps": (500, 1000, 2000), "lr": (0.01, 0.02)},
    lambda w0, steps, lr: number(
        f"You create `AdamW(params, lr={lr})` and pass nothing else. A weight of {w0} gets a "
        f"gradient of exactly 0 for {steps} steps. What is its value "
        "then?", w0 * (1 - lr * 0.01) ** steps,
        "The default weight_decay is 0.01, so each step multiplies the weight by 1 - rate * "
        "0.01.", w0, 0))
ask("04.4", {"w0": (5, 10, 20), "lr": (0.1, 0.2), "decay": (0.5, 1, 2), "g": range(2, 10)},
    lambda w0, lr, decay, g: number(
        f"A weight of {w0} has the gradient {g}. AdamW makes its first step at rate {lr} with "
        f"weight_decay {decay}. What is the weight then?",
        _after(AdamW, w0, [g], lr=lr, weight_decay=decay),
        "The weight is first multiplied by 1 - rate * decay. Then comes Adam's step, which is one "
        "rate long.",
        _after(Adam, w0, [g], lr=lr, weight_decay=decay), w0 - lr * g - lr * decay * w0,
        within=0.005))
ask("04.4", {"w0": range(2, 10), "lr": (0.05, 0.1, 0.2), "decay": (0.01, 0.1)},
    lambda w0, lr, decay: number(
        f"You use `Adam(params, lr={lr}, weight_decay={decay})`, not AdamW. A weight of {w0} has "
        "the gradient 0. By how much does the first step shrink the weight?", lr,
        "Adam adds the decay to the gradient and divides by the size of the sum, so the step is "
        "as long as the rate.", lr * decay * w0,
        0))
ask("04.4", {"w0": range(2, 31), "lr": (0.1, 0.2), "steps": (50, 100, 200), "decay": (0.05, 0.1)},
    lambda w0, lr, steps, decay: number(
        f"A weight of {w0} has `grad` None in all {steps} steps of AdamW at rate {lr} with decay "
        f"{decay}. What is its value then?", w0,
        "Torch skips a parameter without a gradient, and does not decay it either.",
        w0 * (1 - lr * decay) ** steps, w0 - lr * steps))

# ---- 04.5 Too high and too low look alike

ask("04.5", {"low": (1e-4, 1e-5, 1e-6), "steps": (50, 100, 101), "k": (20, 25, 30, 40)},
    lambda low, steps, k: number(
        f"A range test goes from {low:g} to 10 in {steps} steps (k = 0 to {steps - 1}), by a "
        f"constant factor. What is the rate of step k = {k}?",
        low * (10 / low) ** (k / (steps - 1)),
        "The factor is the same at each step, so the rate is low * (high / low)^(k / (steps - 1)).",
        low + (10 - low) * k / (steps - 1), within=0.03))


@question_for("04.5")
def rate_to_choose(rng):
    rates = [round(rng.choice([1, 2, 3]) * 10.0**k, 5) for k in range(-4, 2)]
    lowest = rng.randint(2, 4)
    losses = [round(2.3 - 0.3 * k + rng.random() / 10, 2) for k in range(lowest + 1)]
    losses += [round(losses[-1] + 1.5 + 9 * k, 2) for k in range(len(rates) - len(losses))]
    best = rates[min(range(len(losses)), key=losses.__getitem__)]
    return number(
        f"A range test with momentum found the losses {losses} at the rates {rates}. At what rate "
        "do you train?",
        best / 10, "Use a tenth of the rate with the lowest loss, because that rate is already "
                   "close to a rate that fails.",
        best, max(rates))


@question_for("04.5")
def step_to_stop_at(rng):
    low = rng.randint(10, 20) / 10
    losses = [round(low + 0.2 * k, 1) for k in (4, 2, 0)]
    losses += [round(low * factor, 1) for factor in (1.6, rng.choice([2.5, 3]), 3.5)]
    losses += [round(low * 5, 1), round(low * 30, 1)]
    stop = next(k for k, loss in enumerate(losses) if not loss <= 4 * min(losses[:k + 1]))
    return whole(
        "A range test stops at a loss of more than 4 times the lowest loss so far. From step 0 "
        f"on, the losses are {losses}. At which step does the test stop?", stop,
        "Noise can raise a loss a little. Only a loss that runs away ends the test.",
        losses.index(min(losses)) + 1, len(losses) - 1)


ask("04.5", {"low": (1e-5, 1e-4, 1e-3), "high": (1, 10), "steps": range(6, 21)},
    lambda low, high, steps: number(
        f"A range test goes from {low:g} to {high} in {steps} steps, both ends included. By what "
        "constant factor does the rate grow from one step to the next?",
        (high / low) ** (1 / (steps - 1)), "There is one factor fewer than there are steps.",
        (high - low) / (steps - 1), (high / low) / steps))


# ---- 04.6 max() is not a floor on a cosine

def _half_cosine(done):
    return 0.5 * (1 + math.cos(math.pi * done))


ask("04.6", {"total": (200, 400, 500, 800), "floor": (0.05, 0.1, 0.2)}, lambda total, floor: number(
    f"A schedule is `max({floor}, 0.5 * (1 + cos(pi * k / {total})))` for k = 0 to {total - 1}. At "
    f"how many steps does the maximum hold the rate at {floor}?",
    sum(_half_cosine(k / total) < floor for k in range(total)),
    "The cosine is heading for zero, so it reaches the floor early, and the maximum keeps it "
    "there.", 0, total * floor,
    within=0.03))
ask("04.6", {"peak": (0.001, 0.01, 0.1, 0.3), "warm": (10, 20, 50, 100, 500)},
    lambda peak, warm: number(
        f"A linear warm-up has {warm} steps, counted from 0. The last step, {warm - 1}, runs "
        f"at the peak, {peak}. At what rate does step 0 run?", peak / warm,
        "The rate is peak * (step + 1) / warm. A first step at a rate of 0 would waste its batch.",
        0, peak))
ask("04.6", {"warm": (5, 10), "floor": (0.1, 0.2, 0.3), "fall": (20, 40, 80)},
    lambda warm, floor, fall: number(
        f"A warm-up of {warm} steps ends at a peak of 1. Half a cosine then leads from step "
        f"{warm - 1} down to a floor of {floor} at step {warm + fall - 1}, with the floor inside "
        f"the formula. What is the rate of step {warm - 1 + fall * 3 // 4}?",
        floor + (1 - floor) * (bare := _half_cosine(3 / 4)),
        "The rate is the floor plus the distance from floor to peak times the half cosine.",
        max(floor, bare), bare))
ask("04.6", {"floor": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)}, lambda floor: number(
    f"Two cosines fall from 1. The first is cut off by max() at {floor}, and the second is scaled "
    f"to end at {floor}. What is the value of the second cosine when the first cosine reaches its "
    "floor?",
    floor + (1 - floor) * _half_cosine(math.acos(2 * floor - 1) / math.pi),
    "The value is the floor plus the rest times the cosine, and at that step the cosine equals the "
    "floor.", floor, 0))

# ---- 04.7 None is not zero

ask("04.7", {"lr": (0.1, 0.2), "mu": (0.5, 0.8, 0.9), "g": range(2, 10)}, lambda lr, mu, g: number(
    f"SGD runs at rate {lr} with momentum {mu}. The first gradient is {g}, and the second "
    "gradient is exactly 0. How far does the second step move the weight?", lr * mu * g,
    "The buffer still holds momentum times the first gradient, and the rate multiplies "
    "it.", 0, lr * g))
ask("04.7", {"lr": (0.1, 0.2), "mu": (0.5, 0.8, 0.9), "g": range(2, 10), "idle": range(1, 6)},
    lambda lr, mu, g, idle: number(
        f"SGD runs at rate {lr} with momentum {mu}. A weight of 0 gets the gradient {-g}, then "
        f"`None` for {idle} more step(s). What is its value then?", lr * g,
        "With None, torch skips the parameter and its momentum buffer.",
        lr * g * (1 - mu ** (idle + 1)) / (1 - mu), 0))
ask("04.7", {"lr": (0.001, 0.01, 0.1), "g": range(2, 51), "idle": range(1, 10)},
    lambda lr, g, idle: choice(
        f"Adam runs at rate {lr}. A weight gets a gradient of {g} once, then exactly 0 for {idle} "
        "step(s). How far do the steps with a zero gradient move the weight in total?",
        _after(Adam, 0, [g], lr=lr) - _after(Adam, 0, [g] + [0] * idle, lr=lr),
        "Adam steps along its running average, and a zero gradient only lets that average "
        "fade.", 0, lr * g, lr * (idle + 1)))
ask("04.7", {"lr": (0.01, 0.1), "mu": (0.5, 0.8, 0.9), "g": range(2, 10)}, lambda lr, mu, g: number(
    f"SGD runs at rate {lr} with momentum {mu}. The first gradient is {g}, and all later "
    "gradients are zero. How far does the weight move in total?", lr * g / (1 - mu),
    "The steps are a geometric series, with the sum rate * gradient / (1 - momentum).", lr * g,
    lr * g * (1 + mu)))


# ---- 04.8 Bias correction, the wrong way round

def _bare(t, b1, b2):
    """Step t of Adam without correction for a constant gradient, in rates."""
    m = v = 0.0
    for _ in range(t):
        m, v = b1 * m + (1 - b1), b2 * v + (1 - b2)
    return m / math.sqrt(v)


ask("04.8", {"b1": (0.8, 0.85, 0.9), "b2": (0.995, 0.998, 0.999)}, lambda b1, b2: number(
    f"Adam runs without bias correction, with betas ({b1}, {b2}) and averages that start at 0. How "
    "many times the learning rate is the first step (eps is negligible)?", _bare(1, b1, b2),
    "m holds 1 - b1 of the gradient, and the root of v holds only sqrt(1 - b2) of it.", 1, 1 - b1))
ask("04.8", {"t": (5, 10, 20, 50, 100), "b2": (0.99, 0.999)}, lambda t, b2: choice(
    f"Adam runs without bias correction, with betas (0.9, {b2}), and the gradient is 1 at every "
    f"step. How many times the learning rate is step {t}?", (right := _bare(t, 0.9, b2)),
    "The second average fills up far more slowly than the first, so the quotient is too large.", 1,
    1 - 0.9**t, 1 / right))
ask("04.8", {"t": range(1, 9), "g": range(2, 21)}, lambda t, g: number(
    f"The gradient was {g} at each of the first {t} steps of Adam (betas 0.9 and 0.999). What does "
    "torch's `exp_avg` hold?", g * (1 - 0.9**t),
    "It holds the raw average, without correction: g (1 - 0.9^t).", g, g * 0.9**t))
ask("04.8", {"t": (2, 5, 10, 20), "g": range(2, 10)}, lambda t, g: number(
    f"After {t} steps with beta2 = 0.999, torch's `exp_avg_sq` holds {(1 - 0.999**t) * g**2:.5g}. "
    "Which value does Adam take the root of?", g**2,
        "Adam divides the stored average by 1 - beta2^t.",
    (v := (1 - 0.999**t) * g**2), v / (1 - 0.999)))

# ---- 04.9 Lion with one beta for two jobs

ask("04.9", {"w0": range(3, 10), "lr": (0.1, 0.2), "decay": (0.5, 1),
             "g": [*range(-60, -19), *range(20, 61)]},
    lambda w0, lr, decay, g: number(
        f"A weight of {w0} has the gradient {g}. Lion makes its first step at rate {lr} with decay "
        f"{decay} and betas (0.9, 0.99). What is the weight "
        "then?", w0 * (1 - lr * decay) - math.copysign(lr, g),
        "The weight is multiplied by 1 - rate * decay, then moved by one rate against the sign of "
        "the blend.",
        w0 * (1 - lr * decay) - lr * 0.1 * g, w0 - lr * g, within=0.005))
ask("04.9", {"g": range(2, 10), "lr": (0.1, 0.2, 0.3), "w0": range(1, 6),
             "m": lambda g, **_: [-round(g * k, 2) for k in (0.03, 0.05, 0.08)]},
    lambda g, lr, w0, m: number(
        f"Lion has betas (0.9, 0.99), a rate of {lr} and no decay. The momentum is {m}, the "
        f"gradient {g} and the weight {w0}. What is the weight after the step?",
        w0 - lr * math.copysign(1, 0.9 * m + 0.1 * g),
        "The first beta sets the blend for the step, so the sign of 0.9 m + 0.1 g decides.",
        w0 - lr * math.copysign(1, 0.99 * m + 0.01 * g), w0 - lr * g))
ask("04.9", {"m": range(2, 10), "g": [*range(-90, -19), *range(20, 91)]}, lambda m, g: number(
    f"Lion has betas (0.9, 0.99). The momentum is {m} and the gradient {g}. What is the momentum "
    "after the step?", 0.99 * m + 0.01 * g, "The second beta updates the momentum.",
    0.9 * m + 0.1 * g, 0.9 * m + g))
ask("04.9", {"times": (3, 4, 5, 8, 10), "decay": (0.01, 0.05, 0.1), "lr": (1e-3, 3e-3, 1e-2)},
    lambda times, decay, lr: number(
        f"You switch from AdamW at rate {lr:g} with decay {decay} to Lion at a rate "
        f"{times} times smaller. What decay shrinks the weights as much as before?", decay * times,
        "Decay acts as rate times lambda, so raise the decay by the factor by which you lower the "
        "rate.", decay, decay / times))
ask("04.9", {"billions": (0.5, 1.3, 3, 7, 8, 13)}, lambda billions: number(
    f"A model has {billions:g} billion float32 weights. How many GB does Lion keep from one step "
    "to the next (1 GB = 1e9 "
    "bytes)?", billions * 4, "Lion keeps one momentum per weight, half of what AdamW keeps.",
    billions * 8, 0))

# ---- 04.10 One matrix on four ranks

ENTRY_BY_ENTRY = ("SGD with momentum", "AdamW", "Lion", "RMSprop", "Adagrad")

ask("04.10", {"ranks": (2, 4, 8, 16), "rows": range(3, 9)}, lambda ranks, rows: number(
    f"A gradient has one strong direction, spread evenly over {ranks * rows} rows. The rows are on "
    f"{ranks} ranks, and each rank orthogonalizes its own rows exactly. What is the singular value "
    "of that direction in the step of all ranks together?", math.sqrt(ranks),
    "Each rank brings its part to norm one, so the whole has a norm of the root of the number of "
    "ranks.", 1, ranks))
ask("04.10", {"k": (2, 3, 4, 6), "d": (4, 8, 16)}, lambda k, d: number(
    f"{k} matrices of {d} by {d} are stored as one stack of {k * d} rows. You orthogonalize "
    "either each matrix separately or the whole stack as one matrix, both exactly. How many times "
    "as large is the norm of the step in the first case as in the second?", math.sqrt(k),
    f"Each of the {k} matrices then has {d} singular values of one, and the stack as a whole also "
    f"has only {d}.", 1, k))
ask("04.10", {"rows": (256, 512, 1024), "ranks": (2, 4, 8),
              "others": list(combinations(ENTRY_BY_ENTRY, 3))},
    lambda rows, ranks, others: choice(
        f"A weight's {rows} rows are on {ranks} ranks, and each rank updates its own rows. With "
        "which optimizer does the step differ from the step on a single rank?", "Muon",
        "Muon's rule works on the whole matrix. The other rules work entry by entry.", *others))
ask("04.10", {"ranks": (4, 5, 6, 7), "m": (64, 128), "each": range(5, 13), "missing": range(1, 4)},
    lambda ranks, m, each, missing: whole(
        f"`chunk({ranks})` cuts a ({ranks * each - missing}, {m}) gradient over {ranks} ranks. "
        f"After the gather, at which row, counted from 0, do the rows of rank {ranks - 1} begin in "
        "the whole step?", (ranks - 1) * each,
        "All parts before the last part are equal, and the last part is shorter.",
        (ranks - 1) * (each - missing), ranks * each - missing - each))
ask("04.10", {"n": (1024, 2048, 4096, 8192), "ranks": (4, 8, 16)}, lambda n, ranks: number(
    f"A float32 gradient of {n} by {n} is split by rows over {ranks} ranks. To orthogonalize the "
    "whole matrix, how many MB does each rank receive from the other ranks (1 MB = 1e6 bytes)?",
    (own := n // ranks * n * 4) * (ranks - 1) / 1e6,
        "Each rank receives all parts except its own.", own * ranks / 1e6,
    own / 1e6))


# ---- 04.11 A model in sixteen bits

def _after_zeros(v, beta2, steps):
    """A bfloat16 moment after this many gradients of 0, rounded to the nearest."""
    v = torch.tensor([v]).bfloat16()
    for _ in range(steps):
        v = beta2 * v
    return v.item()


ask("04.11", {"v": (1.5, 2.5, 3.0, 6.0, 20.0), "steps": (500, 1000, 2000, 3000)},
    lambda v, steps: number(
        f"A second moment of {v} is stored in bfloat16 and rounded to the nearest; beta2 is 0.999. "
        f"What does it hold after {steps} gradients of exactly 0?", _after_zeros(v, 0.999, steps),
        "A thousandth is less than half the gap to the next value below, so the product is rounded "
        "back.", v * 0.999**steps, 0))
ask("04.11", {"v": (2.0, 3.0, 5.0, 8.0), "steps": (500, 1000, 2000)}, lambda v, steps: number(
    f"A thousand second moments of {v} are stored in bfloat16 and rounded at random, without bias. "
    f"beta2 is 0.999. What is their mean, roughly, after {steps} gradients of 0?", v * 0.999**steps,
    "The roundings are right on average, so the mean is v * beta2^steps.", v, 0, within=0.02))
ask("04.11", {"low": [k / 128 for k in range(130, 251)], "share": (0.2, 0.3, 0.4, 0.6, 0.7, 0.8)},
    lambda low, share: number(
        f"{low:.7g} and {low + 1 / 128:.7g} are neighbours in bfloat16. If {low + share / 128:.7g} "
        "is rounded at random without bias, what is the probability that it becomes the upper "
        "neighbour?", share, "The probability is the value's distance from the lower neighbour, "
                             "divided by the gap.", 1 - share, 0.5, within=0.01))
ask("04.11", {"times": (2, 3, 4, 5, 9)}, lambda times: number(
    f"A second moment in bfloat16 is {times} times as large as it should be after thousands of "
    "steps. How many times as long would Adam's steps be with the right second moment (eps is "
    "negligible)?", math.sqrt(times), "Adam divides by the root of the second moment.",
    times, 1))
ask("04.11", {"v": (1.0, 1.5, 2.0, 3.0, 7.0),
              "stay": list(combinations((0.9995, 0.9999, 0.999, 0.9985), 3)),
              "falls": (0.9, 0.95, 0.99)},
    lambda v, stay, falls: choice(
        f"A second moment of {v} is stored in bfloat16 and rounded to the nearest value, and the "
        "gradients are 0. With which beta2 does the moment fall?", falls,
        "Each step lowers v by a fraction of 1 - beta2. That has to be more than half a gap, and "
        "half a gap is between a 512th and a 256th of v.",
        *stay))


# ---- The ideas: momentum, and a step size for every weight

ask("04.2", {"momentum": (0.5, 0.75, 0.8, 0.9, 0.95, 0.98, 0.99)}, lambda momentum: number(
    f"SGD has a momentum of {momentum}, and every step gets the same gradient. After many steps, "
    "how many times as large as one gradient is the running sum?", 1 / (1 - momentum),
    "The series 1 + m + m² + ... adds up to 1 / (1 - m).", momentum, 1, 1 + momentum))
ask("04.8", {"lr": (0.001, 0.003, 0.01, 0.1), "g": (0.002, 0.05, 0.3, 5, 40, 300)},
    lambda lr, g: number(
        f"Adam, with its bias correction and a rate of {lr}, makes its first step. A weight has "
        f"the gradient {g}. How far does the weight move?", lr,
        "The mean and the root of the mean square both equal the gradient, so their ratio is 1.",
        lr * g, lr * g * 0.1))
