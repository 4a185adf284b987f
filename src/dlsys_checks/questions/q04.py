"""Stage 4: what an optimizer does with a gradient, and a schedule with a rate."""

import math

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim import lr_scheduler as sched

from dlsys_checks.questions import asks, choice, number, whole


def _after(build, w0, grads):
    """A float64 weight after one step for each gradient; None is a step without one."""
    w = nn.Parameter(torch.tensor([float(w0)], dtype=torch.float64))
    opt = build([w])
    for g in grads:
        w.grad = None if g is None else torch.full_like(w, g)
        opt.step()
    return w.item()


# ---- 04.1 Norm gains that are decayed after all

@asks("04.1")
def gain_that_shrinks(rng):
    lr, decay = rng.choice([0.01, 0.02, 0.05]), rng.choice([0.05, 0.1, 0.2])
    steps = rng.choice([100, 200, 300])
    return number(
        f"A gain of 1 was left in the decayed group; its gradient is always 0. What is left of it "
        f"after {steps} steps of AdamW at rate {lr} with decay {decay}?", (1 - lr * decay) ** steps,
        "Each step multiplies by 1 - rate * decay.", 1, (1 - decay) ** steps)


@asks("04.1")
def list_of_names(rng):
    layers, width = rng.randint(2, 24), rng.choice([8, 16, 32])
    with torch.device("meta"):
        one = nn.TransformerEncoderLayer(width, 2)
    decayed = [name for name, _ in one.named_parameters()
               if not any(part in name for part in ("bias", "LayerNorm.weight"))]
    matrices = sum(p.ndim > 1 for p in one.parameters())
    return whole(
        f"{layers} of torch's encoder layers, each with 4 matrices and the norms `norm1` and "
        "`norm2`. You exempt all names with `bias` or `LayerNorm.weight`. How many tensors are "
        "decayed?", layers * len(decayed),
        "LayerNorm is a class; the gains are named norm1.weight and norm2.weight.",
        layers * matrices)


@asks("04.1")
def exempt_by_shape(rng):
    blocks = rng.randint(2, 15)
    net = nn.ModuleList([nn.Embedding(7, 4)])
    for _ in range(blocks):
        net.extend([nn.Linear(4, 4), nn.LayerNorm(4)])
    matrices = sum(p.ndim >= 2 for p in net.parameters())
    exempt = sum(p.ndim < 2 for p in net.parameters())
    return whole(
        f"A model has one `nn.Embedding` and {blocks} times an `nn.Linear` and an `nn.LayerNorm`. "
        "Decayed is what has two or more axes. How many tensors are exempt?", exempt,
        "A Linear's bias, a norm's gain and its bias each have one axis; the embedding has two.",
        blocks, 2 * blocks, matrices)


@asks("04.1")
def steps_to_one_half(rng):
    lr, decay = rng.choice([1e-4, 1e-3, 1e-2]), rng.choice([0.01, 0.05, 0.1])
    return number(
        f"Rate {lr:g}, decay {decay:g}, AdamW, a gain that gets zero gradients. After how many "
        "steps is half of it left?", math.log(0.5) / math.log1p(-lr * decay),
        "The product of rate, decay and steps must be ln 2.", 0.5 / (lr * decay), 0.5 / decay)


# ---- 04.2 A borrowed learning rate

@asks("04.2")
def same_rate_two_rules(rng):
    lr, g = rng.choice([0.01, 0.1, 0.3]), rng.choice([0.001, 0.002, 0.005, 0.02, 0.05])
    by_adam = abs(_after(lambda p: Adam(p, lr=lr), 0, [g]))
    by_sgd = abs(_after(lambda p: SGD(p, lr=lr), 0, [g]))
    return number(
        f"A weight has the gradient {g}. At one rate of {lr}, how many times as far as SGD's does "
        "Adam's first step go?", by_adam / by_sgd,
        "Adam's first step has the size of the rate, SGD's that of rate times gradient.", 1, g)


@asks("04.2")
def loss_times_a_factor(rng):
    lr, factor, g = rng.choice([0.001, 0.01, 0.02]), rng.choice([10, 50, 100, 1000]), 0.5
    return number(
        f"You multiply the loss by {factor}. Adam's rate is {lr}, a weight's gradient was {g} "
        "before. How far does the first step move that weight?",
        abs(_after(lambda p: Adam(p, lr=lr), 0, [g * factor])),
        "Adam divides by the gradient's own size; its step is the rate.",
        lr * factor, lr * factor * g)


@asks("04.2")
def as_far_as_adam_goes(rng):
    lr, steps, g = rng.choice([0.001, 0.003, 0.01]), rng.choice([50, 100, 200]), rng.randint(3, 40)
    return number(
        f"The gradient of a weight is {g} at every step. How far does Adam at rate {lr} carry it "
        f"in {steps} steps?", lr * steps,
        "With a constant gradient each step is one rate long.", lr * steps * g, lr * g)


@asks("04.2")
def step_of_momentum(rng):
    lr, mu, g = rng.choice([0.01, 0.1]), rng.choice([0.5, 0.8, 0.9, 0.95]), rng.randint(2, 9)
    return number(
        f"SGD at rate {lr} with momentum {mu}; the gradient is {g} at every step. How long are the "
        "steps in the end?", lr * g / (1 - mu),
        "The buffer settles at g / (1 - momentum), and the rate multiplies it.", lr * g,
        lr * g * mu)


# ---- 04.3 The schedule that counts the wrong thing

def _rates(build, lr, calls):
    """The rate after 0, 1, ... calls of step()."""
    opt = SGD([nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)
    schedule, rates = build(opt), [lr]
    rates[0] = opt.param_groups[0]["lr"]
    for _ in range(calls):
        opt.step()
        schedule.step()
        rates.append(opt.param_groups[0]["lr"])
    return rates


@asks("04.3")
def starved_cycle(rng):
    peak, epochs = rng.choice([0.05, 0.1, 0.2, 0.4]), rng.randint(3, 8)
    total = epochs * rng.choice([100, 200])
    rates = _rates(lambda opt: sched.OneCycleLR(opt, max_lr=peak, total_steps=total), peak,
                   epochs - 1)
    return choice(
        f"`OneCycleLR(max_lr={peak}, total_steps={total})` in a run of {epochs} epochs with "
        f"{total // epochs} batches each; `step()` is called once per epoch. What is the highest "
        "rate that any batch sees?", max(rates),
        "The schedule counts its calls: after so few it has hardly left peak / 25.", peak, peak / 2,
        peak / epochs)


@asks("04.3")
def steps_too_often(rng):
    size, epochs = rng.choice([10, 20, 30]), rng.choice([40, 60])
    lr, batch = rng.choice([0.1, 0.2, 0.5]), rng.choice([45, 65, 95])
    rates = _rates(lambda opt: sched.StepLR(opt, size, gamma=0.1), lr, batch)
    return number(
        f"`StepLR(step_size={size}, gamma=0.1)`, meant for {epochs} epochs, starts at {lr}; "
        f"`step()` is called after every batch. Which rate is left after {batch} batches?",
        rates[-1], "Each call counts, whatever you call it for.", lr, lr / 10 ** (batch / size),
        within=0.01)


@asks("04.3")
def cosine_called_per_epoch(rng):
    lr, epochs = rng.choice([0.1, 0.2, 0.4]), rng.choice([5, 10, 20])
    total = epochs * rng.choice([4, 5, 8])
    rates = _rates(lambda opt: sched.CosineAnnealingLR(opt, T_max=total), lr, epochs)
    return number(
        f"`CosineAnnealingLR(T_max={total})` starts at {lr}; T_max is the number of batches, but "
        f"`step()` is called once per epoch, {epochs} times. Which rate is left at the end?",
        rates[-1], "Only a share of the half cosine was walked: calls over T_max.", 0, lr)


@asks("04.3")
def updates_of_a_run(rng):
    accumulate, epochs = rng.randint(2, 6), rng.randint(2, 9)
    batches = accumulate * rng.randint(3, 12) + rng.randint(1, accumulate - 1)
    return whole(
        f"{epochs} epochs of {batches} micro-batches; an update after every {accumulate} and after "
        "the last of an epoch. Which T_max does a cosine need that is stepped per update?",
        epochs * math.ceil(batches / accumulate),
        "Count updates: micro-batches over accumulate, rounded up in every epoch.",
        epochs * batches, epochs * (batches // accumulate), epochs)


# ---- 04.4 AdamW decays whether you ask or not

@asks("04.4")
def decay_nobody_asked_for(rng):
    w0, steps, lr = rng.randint(2, 9), rng.choice([500, 1000, 2000]), rng.choice([0.01, 0.02])
    default = AdamW([nn.Parameter(torch.zeros(1))]).defaults["weight_decay"]
    return number(
        f"`AdamW(params, lr={lr})`, nothing else. A weight of {w0} gets a gradient of exactly 0 "
        f"for {steps} steps. Where does it end?", w0 * (1 - lr * default) ** steps,
        "The default weight_decay is 0.01: each step multiplies by 1 - rate * 0.01.", w0, 0)


@asks("04.4")
def decoupled_first_step(rng):
    w0, lr, decay = rng.choice([5, 10, 20]), rng.choice([0.1, 0.2]), rng.choice([0.5, 1, 2])
    g = rng.randint(2, 9)
    coupled = _after(lambda p: Adam(p, lr=lr, weight_decay=decay), w0, [float(g)])
    return number(
        f"A weight of {w0} with gradient {g}: one first step of AdamW at rate {lr} with "
        f"weight_decay {decay}. Where does it land?",
        _after(lambda p: AdamW(p, lr=lr, weight_decay=decay), w0, [float(g)]),
        "First times 1 - rate * decay, then Adam's step, one rate long.",
        coupled, w0 - lr * g - lr * decay * w0, within=0.005)


@asks("04.4")
def decay_in_the_gradient(rng):
    w0, lr, decay = rng.randint(2, 9), rng.choice([0.05, 0.1, 0.2]), rng.choice([0.01, 0.1])
    moved = w0 - _after(lambda p: Adam(p, lr=lr, weight_decay=decay), w0, [0.0])
    return number(
        f"`Adam(params, lr={lr}, weight_decay={decay})`, not AdamW. A weight of {w0} has the "
        "gradient 0. By how much does its first step shrink it?", moved,
        "Adam adds decay to the gradient and divides by its size: one whole rate.",
        lr * decay * w0, 0)


@asks("04.4")
def decay_of_a_resting_weight(rng):
    w0, lr = rng.randint(2, 30), rng.choice([0.1, 0.2])
    steps, decay = rng.choice([50, 100, 200]), rng.choice([0.05, 0.1])
    return number(
        f"A weight of {w0} has `grad` None in all of {steps} steps of AdamW at rate {lr} with "
        f"decay {decay}. Where does it end?",
        _after(lambda p: AdamW(p, lr=lr, weight_decay=decay), w0, [None] * steps),
        "Torch skips a parameter without a gradient, its decay too.",
        w0 * (1 - lr * decay) ** steps, w0 - lr * steps)


# ---- 04.5 Too high and too low look alike

@asks("04.5")
def rate_of_a_step(rng):
    decades, steps = rng.choice([4, 5, 6]), rng.choice([50, 100, 101])
    low, k = 10.0 ** -decades, rng.choice([20, 25, 30, 40])
    rates = torch.logspace(-decades, 1, steps, dtype=torch.float64)
    return number(
        f"A range test goes from {low:g} to 10 in {steps} steps (k = 0 to {steps - 1}), by a "
        f"constant factor. Which rate does step k = {k} run at?", rates[k].item(),
        "low * (high / low)^(k / (steps - 1)).", low + (10 - low) * k / (steps - 1), within=0.03)


@asks("04.5")
def rate_to_choose(rng):
    rates = [round(rng.choice([1, 2, 3]) * 10.0**k, 5) for k in range(-4, 2)]
    lowest = rng.randint(2, 4)
    losses = [round(2.3 - 0.3 * k + rng.random() / 10, 2) for k in range(lowest + 1)]
    losses += [round(losses[-1] + 1.5 + 9 * k, 2) for k in range(len(rates) - len(losses))]
    best = rates[min(range(len(losses)), key=losses.__getitem__)]
    return number(
        f"A range test at the rates {rates} found the losses {losses}. At which rate do you train?",
        best / 10, "A tenth of the rate with the lowest loss, which stands on the edge.",
        best, max(rates))


@asks("04.5")
def step_to_stop_at(rng):
    low = rng.randint(10, 20) / 10
    losses = [round(low + 0.2 * k, 1) for k in (4, 2, 0)]
    losses += [round(low * factor, 1) for factor in (1.6, rng.choice([2.5, 3]), 3.5)]
    losses += [round(low * 5, 1), round(low * 30, 1)]
    stop = next(k for k, loss in enumerate(losses) if not loss <= 4 * min(losses[:k + 1]))
    return whole(
        f"A range test stops at a loss of more than 4 times the lowest so far. Losses from step 0: "
        f"{losses}. At which step does it stop?", stop,
        "Noise may raise a loss; only one that runs away ends the test.",
        losses.index(min(losses)) + 1, len(losses) - 1)


@asks("04.5")
def factor_between_steps(rng):
    low, high, steps = rng.choice([1e-5, 1e-4, 1e-3]), rng.choice([1, 10]), rng.randint(6, 20)
    rates = torch.logspace(math.log10(low), math.log10(high), steps, dtype=torch.float64)
    return number(
        f"A range test from {low:g} to {high} in {steps} steps, both ends included. By which "
        "constant factor does the rate grow from one step to the next?",
        (rates[1] / rates[0]).item(), "The number of factors is one less than the steps.",
        (high - low) / (steps - 1), (high / low) / steps)


# ---- 04.6 max() is not a floor on a cosine

def _half_cosine(done):
    return 0.5 * (1 + math.cos(math.pi * done))


@asks("04.6")
def steps_that_stand_still(rng):
    total, floor = rng.choice([200, 400, 500, 800]), rng.choice([0.05, 0.1, 0.2])
    flat = sum(_half_cosine(k / total) < floor for k in range(total))
    return number(
        f"`max({floor}, 0.5 * (1 + cos(pi * k / {total})))` for k = 0 to {total - 1}. At how many "
        f"steps does the maximum cut, so that the rate stands at {floor}?", flat,
        "The cosine heads for zero: it arrives at the floor early and stays.",
        0, total * floor, within=0.03)


@asks("04.6")
def first_step(rng):
    peak, warm = rng.choice([0.001, 0.01, 0.1, 0.3]), rng.choice([10, 20, 50, 100, 500])
    return number(
        f"Warm-up in a line over {warm} steps, counted from 0; the last of them, step {warm - 1}, "
        f"runs at the peak, {peak}. At which rate does step 0 run?", peak * (0 + 1) / warm,
        "(step + 1) / warm: a first step at 0 would waste its batch.", 0, peak)


@asks("04.6")
def rate_of_a_step_with_floor(rng):
    warm, peak, floor = rng.choice([5, 10]), 1, rng.choice([0.1, 0.2, 0.3])
    total = warm + rng.choice([20, 40, 80])
    step = warm - 1 + (total - warm) * 3 // 4
    bare = _half_cosine((step - warm + 1) / (total - warm))
    return number(
        f"Warm-up of {warm} steps to a peak of {peak}, then half a cosine from step {warm - 1} "
        f"down to a floor of {floor} at step {total - 1}, floor inside the formula. Which rate "
        f"does step {step} have?", floor + (peak - floor) * bare,
        "Floor plus the rest times the half cosine.", max(floor, bare), bare)


@asks("04.6")
def where_the_cut_arrives(rng):
    floor = rng.choice([0.05, 0.1, 0.15, 0.2, 0.25, 0.3])
    done = math.acos(2 * floor - 1) / math.pi  # where the bare cosine is at the floor
    return number(
        f"Two cosine decays from 1: one cut by max() at {floor}, one scaled to end at {floor}. At "
        "the step at which the first reaches its floor, where is the second?",
        floor + (1 - floor) * _half_cosine(done),
        "Floor plus the rest times the cosine, and the cosine is the floor there.", floor, 0)


# ---- 04.7 None is not zero

@asks("04.7")
def coasting(rng):
    lr, mu, g = rng.choice([0.1, 0.2]), rng.choice([0.5, 0.8, 0.9]), rng.randint(2, 9)
    ends = [_after(lambda p: SGD(p, lr=lr, momentum=mu), 0, [float(g)] + [0.0] * n)
            for n in (0, 1)]
    return number(
        f"SGD at rate {lr} with momentum {mu}: a first gradient of {g}, then one of exactly 0. How "
        "far does the second step move the weight?", abs(ends[1] - ends[0]),
        "The buffer remembers: rate times momentum times the first gradient.", 0, lr * g)


@asks("04.7")
def skipped(rng):
    lr, mu, g = rng.choice([0.1, 0.2]), rng.choice([0.5, 0.8, 0.9]), rng.randint(2, 9)
    idle = rng.randint(1, 5)

    def build(params):
        return SGD(params, lr=lr, momentum=mu)

    coasted = _after(build, 0, [-float(g)] + [0.0] * idle)
    return number(
        f"SGD at rate {lr} with momentum {mu}: a weight of 0 gets the gradient {-g}, then `None` "
        f"for {idle} more step(s). Where does it end?",
        _after(build, 0, [-float(g), *[None] * idle]),
        "None makes torch skip the parameter, its memory and all.", coasted, 0)


@asks("04.7")
def coasting_with_adam(rng):
    lr, g, idle = rng.choice([0.001, 0.01, 0.1]), rng.randint(2, 50), rng.randint(1, 9)
    ends = [_after(lambda p: Adam(p, lr=lr), 0, [float(g)] + [0.0] * n) for n in (0, idle)]
    return choice(
        f"Adam at rate {lr}: a weight gets a gradient of {g} once, then exactly 0 for {idle} "
        "step(s). How far do the steps with zero move it, together?", abs(ends[1] - ends[0]),
        "Adam steps along its memory, and a zero only lets it fade.", 0, lr * g, lr * (idle + 1))


@asks("04.7")
def far_in_the_end(rng):
    lr, mu, g = rng.choice([0.01, 0.1]), rng.choice([0.5, 0.8, 0.9]), rng.randint(2, 9)
    return number(
        f"SGD at rate {lr} with momentum {mu}: one gradient of {g}, then zeros for ever. How far "
        "does the weight go in all?", lr * g / (1 - mu),
        "The steps are a geometric row: rate times gradient over 1 - momentum.", lr * g,
        lr * g * (1 + mu))


# ---- 04.8 Bias correction, the wrong way round

def _bare(t, b1, b2):
    """Step t of Adam without correction for a constant gradient, in rates."""
    m = v = 0.0
    for _ in range(t):
        m, v = b1 * m + (1 - b1), b2 * v + (1 - b2)
    return m / math.sqrt(v)


@asks("04.8")
def first_step_bare(rng):
    b1, b2 = rng.choice([0.8, 0.85, 0.9]), rng.choice([0.995, 0.998, 0.999])
    return number(
        f"Adam without bias correction, betas ({b1}, {b2}), averages start at 0. How many rates "
        "long is the first step (eps is negligible)?", _bare(1, b1, b2),
        "m holds 1 - b1 of the gradient, but the root of v only sqrt(1 - b2).", 1, 1 - b1)


@asks("04.8")
def later_step_bare(rng):
    t, b2 = rng.choice([5, 10, 20, 50, 100]), rng.choice([0.99, 0.999])
    right = _bare(t, 0.9, b2)
    return choice(
        f"Adam without bias correction, betas (0.9, {b2}), the gradient is 1 at every step. How "
        f"many rates long is step {t}?", right,
        "The second average wakes up far later than the first: the quotient is too large.", 1,
        1 - 0.9**t, 1 / right)


@asks("04.8")
def stored_average(rng):
    t, g = rng.randint(1, 8), rng.randint(2, 20)
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = Adam([w], lr=0.1)
    for _ in range(t):
        w.grad = torch.full_like(w, g)
        opt.step()
    return number(
        f"The gradient was {g} at each of the first {t} steps of Adam (betas 0.9 and 0.999). What "
        "does torch's `exp_avg` hold?", opt.state[w]["exp_avg"].item(),
        "The raw average, without correction: g (1 - 0.9^t).", g, g * 0.9**t)


@asks("04.8")
def corrected_second(rng):
    t, g = rng.choice([2, 5, 10, 20]), rng.randint(2, 9)
    v = (1 - 0.999**t) * g**2
    return number(
        f"After {t} steps with beta2 = 0.999, torch's `exp_avg_sq` holds {v:.5g}. Which value does "
        "Adam take the root of?", float(f"{v:.5g}") / (1 - 0.999**t),
        "The stored average over 1 - beta2^t.", v, v / (1 - 0.999))


# ---- 04.9 Lion with one beta for two jobs

@asks("04.9")
def lion_first_step(rng):
    w0, lr, decay = rng.randint(3, 9), rng.choice([0.1, 0.2]), rng.choice([0.5, 1])
    g = rng.choice([-1, 1]) * rng.randint(20, 60)
    direction = math.copysign(1, (1 - 0.9) * g)
    return number(
        f"A weight of {w0} with gradient {g}: first step of Lion at rate {lr}, decay {decay}, "
        "betas (0.9, 0.99). Where does it land?", w0 * (1 - lr * decay) - lr * direction,
        "Times 1 - rate * decay, then one rate against the sign of the blend.",
        w0 * (1 - lr * decay) - lr * 0.1 * g, w0 - lr * g, within=0.005)


@asks("04.9")
def lion_direction(rng):
    g, lr, w0 = rng.randint(2, 9), rng.choice([0.1, 0.2, 0.3]), rng.randint(1, 5)
    m = -round(g * rng.choice([0.03, 0.05, 0.08]), 2)  # 0.9 and 0.99 disagree about the sign
    blend = 0.9 * m + (1 - 0.9) * g
    return number(
        f"Lion with betas (0.9, 0.99), rate {lr}, no decay: the momentum is {m}, the gradient {g}, "
        f"the weight {w0}. Where does the weight land?", w0 - lr * math.copysign(1, blend),
        "The first beta blends the step: 0.9 m + 0.1 g decides the sign.",
        w0 - lr * math.copysign(1, 0.99 * m + 0.01 * g), w0 - lr * g)


@asks("04.9")
def lion_memory(rng):
    m, g = rng.randint(2, 9), rng.choice([-1, 1]) * rng.randint(20, 90)
    return number(
        f"Lion with betas (0.9, 0.99): the momentum is {m}, the gradient {g}. What is the momentum "
        "after the step?", 0.99 * m + (1 - 0.99) * g, "The second beta updates the memory.",
        0.9 * m + 0.1 * g, 0.9 * m + g)


@asks("04.9")
def lion_decay(rng):
    times, decay = rng.choice([3, 4, 5, 8, 10]), rng.choice([0.01, 0.05, 0.1])
    lr = rng.choice([1e-3, 3e-3, 1e-2])
    return number(
        f"You go from AdamW at rate {lr:g} with decay {decay} to Lion at a rate {times} times "
        "smaller. Which decay pulls the weights as hard as before?", lr * decay / (lr / times),
        "Decay acts as rate times lambda: rate down means decay up.", decay, decay / times)


@asks("04.9")
def lion_state(rng):
    billions = rng.choice([0.5, 1.3, 3, 7, 8, 13])
    w = nn.Parameter(torch.zeros(100_000))
    opt = AdamW([w])
    w.grad = torch.zeros_like(w)
    opt.step()
    by_adam = sum(t.nbytes for t in opt.state[w].values() if t.numel() > 1) / w.numel()
    return number(
        f"A model of {billions:g} billion float32 weights. How many GB does Lion remember between "
        "two steps (1 GB = 1e9 bytes)?", billions * torch.zeros_like(w).nbytes / w.numel(),
        "One momentum a weight, half of what AdamW keeps.", billions * by_adam, 0)


# ---- 04.10 One matrix on four ranks

def _polar(matrix):
    """The matrix with its singular values brought to one."""
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    return u @ v


@asks("04.10")
def strong_direction(rng):
    ranks, rows = rng.choice([2, 4, 8, 16]), rng.randint(3, 8)
    direction = torch.ones(ranks * rows, 1, dtype=torch.float64)
    step = torch.cat([_polar(part) for part in direction.chunk(ranks)])
    return number(
        f"A gradient has one strong direction, spread evenly over {ranks * rows} rows. They lie on "
        f"{ranks} ranks, and each orthogonalizes its own rows exactly. Which singular value has "
        "that direction in the step of all ranks together?", torch.linalg.svdvals(step)[0].item(),
        "Each rank brings its part to a length of one: together the root of the ranks.", 1, ranks)


@asks("04.10")
def stack_of_matrices(rng):
    k, d = rng.choice([2, 3, 4, 6]), rng.choice([4, 8, 16])
    g = torch.Generator().manual_seed(rng.randrange(1000))
    stack = torch.randn(k * d, d, generator=g, dtype=torch.float64)
    apart = torch.cat([_polar(matrix) for matrix in stack.chunk(k)])
    return number(
        f"{k} matrices of {d} by {d} are stored as one stack of {k * d} rows. How many times as "
        "long is the step with each matrix orthogonalized exactly by itself, as with the whole "
        "stack orthogonalized as one?", (apart.norm() / _polar(stack).norm()).item(),
        f"Each of the {k} has {d} singular values of one, and so has the stack.", 1, k)


@asks("04.10")
def may_be_cut(rng):
    rows, ranks = rng.choice([256, 512, 1024]), rng.choice([2, 4, 8])
    right, *others = [
        "Muon", *rng.sample(["SGD with momentum", "AdamW", "Lion", "RMSprop", "Adagrad"], 3)]
    return choice(
        f"A weight's {rows} rows lie on {ranks} ranks, and each rank steps its own rows. With "
        "which optimizer is the step another one than on a single rank?", right,
        "Its rule runs over the matrix; the others run entry by entry.", *others)


@asks("04.10")
def first_own_row(rng):
    ranks, m = rng.choice([4, 5, 6, 7]), rng.choice([64, 128])
    rows = ranks * rng.randint(5, 12) - rng.randint(1, 3)
    parts = torch.arange(rows).chunk(ranks)
    rank = len(parts) - 1
    return whole(
        f"`chunk({ranks})` cuts a ({rows}, {m}) gradient over {ranks} ranks. After the gather, at "
        f"which row, counted from 0, do the rows of rank {rank} begin in the whole step?",
        int(parts[rank][0]),
        "All parts before the last one are equal; the last is the shorter one.",
        rank * len(parts[rank]), rows - len(parts[0]))


@asks("04.10")
def gathered_bytes(rng):
    n, ranks = rng.choice([1024, 2048, 4096, 8192]), rng.choice([4, 8, 16])
    own = n // ranks * n * 4
    return number(
        f"A float32 gradient of {n} by {n} lies on {ranks} ranks by rows. To orthogonalize the "
        "whole, how many MB does each rank receive from the others (1 MB = 1e6 bytes)?",
        own * (ranks - 1) / 1e6, "All parts but its own.", own * ranks / 1e6, own / 1e6)


# ---- 04.11 A model in sixteen bits

def _after_zeros(v, beta2, steps):
    """A bfloat16 moment after this many gradients of 0, rounded to the nearest."""
    v = torch.tensor([v]).bfloat16()
    for _ in range(steps):
        v = beta2 * v
    return v.item()


@asks("04.11")
def never_falls(rng):
    v, steps = rng.choice([1.5, 2.5, 3.0, 6.0, 20.0]), rng.choice([500, 1000, 2000, 3000])
    return number(
        f"A second moment of {v} is stored in bfloat16 and rounded to the nearest; beta2 is 0.999. "
        f"What does it hold after {steps} gradients of exactly 0?", _after_zeros(v, 0.999, steps),
        "A thousandth is less than half the gap to the next number below.",
        v * 0.999**steps, 0)


@asks("04.11")
def falls_at_random(rng):
    v, steps = rng.choice([2.0, 3.0, 5.0, 8.0]), rng.choice([500, 1000, 2000])
    return number(
        f"A thousand second moments of {v} are stored in bfloat16 and rounded at random, without "
        f"bias; beta2 is 0.999. What is their mean after {steps} gradients of 0, about?",
        v * 0.999**steps, "The mean of the roundings is exact: v times beta2 to the steps.",
        v, 0, within=0.02)


@asks("04.11")
def chance_of_the_upper(rng):
    k, share = rng.randint(130, 250), rng.choice([0.2, 0.3, 0.4, 0.6, 0.7, 0.8])
    low, high = k / 128, (k + 1) / 128
    x = low + share * (high - low)
    return number(
        f"{low:.7g} and {high:.7g} are neighbours in bfloat16. With which probability does {x:.7g} "
        "become the upper one, when it is rounded at random without bias?",
        (x - low) / (high - low), "Its distance from the lower one, in gaps.",
        1 - share, 0.5, within=0.01)


@asks("04.11")
def steps_too_short(rng):
    times = rng.choice([2, 3, 4, 5, 9])
    return number(
        f"A second moment in bfloat16 has stayed {times} times as large as the gradients of the "
        "last thousands of steps make it. How many times as long would Adam's steps be with the "
        "right one (eps is negligible)?", math.sqrt(times),
        "Adam divides by the root of the second moment.", times, 1)


@asks("04.11")
def which_beta_falls(rng):
    v = rng.choice([1.0, 1.5, 2.0, 3.0, 7.0])
    betas = [*rng.sample([0.9995, 0.9999, 0.999, 0.9985], 3), rng.choice([0.9, 0.95, 0.99])]
    falling = [beta for beta in betas if _after_zeros(v, beta, 50) < v]
    return choice(
        f"A second moment of {v} is stored in bfloat16 and rounded to the nearest, the gradients "
        "are 0. With which beta2 does it fall?", falling[0],
        "1 - beta2 has to be more than half a gap, which is between a 512th and a 256th of v.",
        *[beta for beta in betas if beta not in falling])
