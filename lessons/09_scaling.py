# %% [markdown] role="hook" draft=true
# # 9. Mixed precision, distributed training and profiling
#
# Your model trains on one GPU, slowly, and the next one will not fit. You switch to
# 16 bits, cut the batch into pieces, move to two machines, and look for the time that
# is still lost. Each of these steps is a line or two, and each has a manual page.
#
# Each also changes what is computed: how numbers round, what a mean is a mean of,
# which bytes stay on which card, who waits for whom. This stage counts those bytes
# and waits and measures those changes. Nearly all of it runs on a CPU.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import copy

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers import (
    accuracy, begin, check, claim, digits, flops, guess, measured,
    saved_bytes,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## What a format can hold
#
# A float has a sign, an exponent and a fraction. The exponent decides how large and how
# small a number can be, the fraction how many numbers lie between 1 and 2. With 16 bits
# you have to choose: `float16` gives 5 bits to the exponent and 10 to the fraction,
# `bfloat16` 8 and 7. The two `float8` formats make the same choice with less.

# %% role="concept"
formats = [torch.float32, torch.float16, torch.bfloat16,
           torch.float8_e4m3fn, torch.float8_e5m2]
print(f"{'':14} bytes  largest  smallest   between 1 and 2")
for kind in formats:
    info = torch.finfo(kind)
    name = str(kind).removeprefix("torch.")
    print(f"{name:14} {kind.itemsize:4} {info.max:9.2g} "
          f"{info.smallest_normal:9.1g} {1 / info.eps:12.0f}")

# %% role="concept"
claim("largest float16", torch.finfo(torch.float16).max, expected=65504)
claim("largest float8_e4m3fn", torch.finfo(torch.float8_e4m3fn).max,
      expected=448)
claim("steps between 1 and 2 in bfloat16",
      1 / torch.finfo(torch.bfloat16).eps, expected=128)

# %% [markdown] role="concept"
# "Smallest" is the smallest number with a full fraction. Below it a format has a few
# coarser ones, then zero.
#
# `torch.autocast` leaves the weights in 32 bits. Each operation on its list gets a copy
# of its inputs in 16 bits: matrix products and convolutions, where the time goes.
# Others, such as most losses, are computed in 32 bits. Shapes in this stage: `N` rows,
# `F` features, `C` classes.

# %% role="concept"
x_train, y_train, x_test, y_test = digits()       # (1300, 64), (497, 64)

def reader():
    """An MLP that reads digits, 64-64-10."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

net = reader()
with torch.autocast("cpu", torch.bfloat16):
    logits = net(x_train)                         # (N, C)
    loss = F.cross_entropy(logits, y_train)
loss.backward()
kinds = {"weight": net[0].weight, "logits": logits, "loss": loss,
         "gradient": net[0].weight.grad}
print({name: str(t.dtype).removeprefix("torch.")
       for name, t in kinds.items()})

# %% role="concept"
claim("bytes of a number of the logits", logits.itemsize, expected=2)
claim("bytes of a number of the weight's gradient",
      net[0].weight.grad.itemsize, expected=4)

# %% [markdown] trap="09.1" role="predict" core=true symptom="GradScaler with bfloat16, loss does not fall, gradient norm of 30000"
# ## A scaler out of habit
#
# Last year you trained in `float16`. Its small gradients round to zero, so a
# `GradScaler` multiplied the loss by a large number before `backward()`, and divided
# the gradients by it inside `scaler.step`. This year you train in `bfloat16`, and you
# keep the loop. "In bfloat16 the scaler is not needed," a colleague says, "but it does
# no harm."
#
# The loop clips the gradient's norm to 1, as many do. You train a digit reader for
# 200 steps of SGD.

# %% trap="09.1" role="predict"
guess("09.1", "How does this run compare with one without the scaler?",
      choices=["it is the same, the scaler does nothing here",
               "its steps are far too long, and the loss explodes",
               "its steps are far too short, and the loss hardly moves",
               "it is a little worse, more gradients round to zero"])

# %% trap="09.1" role="break"
def train(model, opt, scaler, dtype=torch.bfloat16, unscale=False):
    """200 steps under autocast; the norms that the clip to 1 saw."""
    norms = []
    for rows in batches:
        opt.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = F.cross_entropy(model(x_train[rows]), y_train[rows])
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(opt)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        scaler.step(opt)
        scaler.update()
    return torch.stack(norms)

# %% trap="09.1" role="break"
def scaled(on=True):
    return torch.amp.GradScaler("cpu", enabled=on)     # 65,536 at first

def run(make, scaler, **settings):
    """Loss on new digits, and the norms, after 200 steps of a reader."""
    model = copy.deepcopy(start)
    norms = train(model, make(model.parameters()), scaler, **settings)
    with torch.no_grad():
        return F.cross_entropy(model(x_test), y_test).item(), norms

start, batches = reader(), torch.randint(len(x_train), (200, 64))

def sgd(params):
    return torch.optim.SGD(params, lr=0.1)

habit, habit_norms = run(sgd, scaled())
without, norms = run(sgd, scaled(on=False))

# %% trap="09.1" role="look"
print(f"with the scaler    loss {habit:.2f}, norm {habit_norms[0]:8.2f}")
print(f"without            loss {without:.2f}, norm {norms[0]:8.2f}")

# %% trap="09.1" role="look"
claim("loss after 200 steps with the scaler", habit, above=2.1)
claim("the same without it", without, below=0.9)
claim("first norm that the clip saw, over the true one",
      (habit_norms[0] / norms[0]).item(), expected=65536, within=700)

# %% trap="09.1" role="look"
measured("09.1", 2)

# %% [markdown] trap="09.1" role="repair"
# The scaler asks nobody for the format: `scale` multiplies by 65,536 in `bfloat16` as
# well. `clip_grad_norm_` then sees a norm in the ten thousands and cuts it to 1, and
# `scaler.step` divides what is left by 65,536. What reaches the optimizer has a norm of
# `0.000015`, whatever the gradient was.
#
# In `bfloat16` leave the scaler out: the exponent reaches as far as in `float32`. In
# `float16` you need it, and the order is *scale, backward, unscale, clip, step,
# update*. Between `scale` and `unscale_` gradients are in no unit that a clip, a log or
# a threshold knows.

# %% trap="09.1" role="repair"
ordered, _ = run(sgd, scaled(), unscale=True)
half, half_norms = run(sgd, scaled(), dtype=torch.float16, unscale=True)
print(f"bfloat16, scaler, right order  loss {ordered:.2f}")
print(f"float16,  scaler, right order  loss {half:.2f}, "
      f"norm {half_norms[0]:.2f}")

# %% trap="09.1" role="repair"
claim("loss in bfloat16 with the scaler, in the right order", ordered,
      below=0.9)
claim("loss in float16, in the right order", half, below=0.9)

# %% [markdown] trap="09.1" role="repair"
# Who trains with Adam may never notice: its step hardly depends on the size of the
# gradient. It loses the clip, for each norm becomes the same.
#
# And what does the scaler do for `float16`? Take a loss that is small because it is
# divided, by a number of micro-batches or a temperature. Count the gradients that
# round to zero without the scaler, and are found again with it.

# %% trap="09.1" role="repair"
def adam(params):
    return torch.optim.Adam(params, lr=1e-3)

adam_habit = run(adam, scaled())[0]
adam_without = run(adam, scaled(on=False))[0]
print(f"Adam: with the scaler {adam_habit:.2f}, without {adam_without:.2f}")

# %% trap="09.1" role="repair"
def gradient(half, scale=1):
    """All gradients of a loss divided by 10,000, in true units."""
    model = copy.deepcopy(start)
    with torch.autocast("cpu", torch.float16, enabled=half):
        loss = F.cross_entropy(model(x_train), y_train) / 1e4
    (loss * scale).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]) / scale

true = gradient(half=False)
lost = {scale: ((gradient(True, scale) == 0) & (true != 0)).float().mean()
        for scale in (1, 65536)}
print({f"scale {s}": f"{share:.1%} lost" for s, share in lost.items()})

# %% trap="09.1" role="repair"
claim("loss with Adam and the scaler, minus without", adam_habit
      - adam_without, below=0.3)
claim("share of gradients that float16 loses without the scaler",
      lost[1].item(), above=0.01)
claim("the same with a scale of 65,536", lost[65536].item(), below=0.001)

# %% [markdown] trap="09.1" role="repair"
# The scale finds its own size: an overflow halves it and skips the step; `2,000` steps
# without one double it. Guess before you move a control: how many steps does a scale
# lose that is a hundred times too large for the gradients?

# %% role="explore" explorer="loss_scale"
from dlsys_helpers.explorers.loss_scale import loss_scale

loss_scale

# %% [markdown] trap="09.1" role="folklore"
# **Told:** `bfloat16` cannot overflow, and `scale()` does nothing there. **Measured:**
# its range is that of `float32`, and it ends there too: `3e38` times ten is `inf` in
# both. And `scale()` multiplies whatever it gets.

# %% trap="09.1" role="folklore"
big = torch.tensor(3e38).bfloat16() * 10
twice = scaled().scale(torch.tensor(2.0).bfloat16())
print("3e38 times ten:", big.item(), "  scale(2):", twice.item())

# %% trap="09.1" role="folklore"
claim("ten times 3e38 in bfloat16 is infinite", big.isinf().item(),
      expected=True)
claim("what scale() makes of a 2 in bfloat16", twice.item(),
      expected=131072)

# %% trap="09.1" role="exercise" points=3 difficulty=2 minutes=15
def amp_step(opt: torch.optim.Optimizer, scaler: torch.amp.GradScaler,
             loss_of, dtype: torch.dtype, max_norm: float) -> float:
    """One step of opt under CPU autocast; returns the gradient's norm.

    loss_of() gives the loss, a float32 number; it is called once, under
    autocast with dtype. In torch.float16 the scaler is used, and updated
    once; in torch.bfloat16 it stays as it is. Old gradients do not count.
    The gradient of all of opt's parameters together is clipped to a norm of
    at most max_norm. Where it overflows in float16, parameters and opt's
    state stay. The norm is that before clipping, without the scale, as a
    float: inf or nan after an overflow.

    Example: gradient (3, 4), max_norm 1, SGD with a rate of 1: the step is
    (-0.6, -0.8), the norm 5.0.
    """
    # BEGIN SOLUTION
    half = dtype == torch.float16
    opt.zero_grad()
    with torch.autocast("cpu", dtype):
        loss = loss_of()
    if half:
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
    else:
        loss.backward()
    params = [p for group in opt.param_groups for p in group["params"]]
    norm = nn.utils.clip_grad_norm_(params, max_norm).item()
    if half:
        scaler.step(opt)
        scaler.update()
    else:
        opt.step()
    return norm
    # END SOLUTION

# %% [markdown] trap="09.1" role="hint"
# 1. Two ways through the function: one with the scaler, one without. Only the clip is common to both.
# 2. In `float16`: scale, backward, `unscale_`, clip, `scaler.step`, `scaler.update`. It is `scaler.step` that skips a step with overflows.
# 3. The parameters of all groups: `opt.param_groups`. `clip_grad_norm_` returns the norm before the clip, as a tensor.

# %% [markdown] trap="09.1" role="keep"
# **Keep:** a scaler belongs to `float16`. Its order is scale, backward, unscale, clip,
# step, update. **In your own code:** log the gradient's norm as the clip sees it; tens
# of thousands at the start are a scale, not a gradient. **Seen in the wild:**
# [`huggingface/accelerate#1036`](https://github.com/huggingface/accelerate/pull/1036)
# takes the scaler out of `bfloat16`;
# [`victorchall/EveryDream2trainer#175`](https://github.com/victorchall/EveryDream2trainer/pull/175):
# the clip saw scaled gradients, and a limit of 1 halted the training. **Source:**
# PyTorch documentation, [Automatic Mixed Precision
# examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html), "Gradient
# clipping".

# %% [markdown] trap="09.2" role="predict" core=true symptom="gradient accumulation gives another loss curve than the big batch, padding, ignore_index -100"
# ## Ten pieces instead of one batch
#
# A batch of 160 rows does not fit, so you feed it in ten pieces of 16 and divide each
# piece's loss by ten. Trap 02.4 made sure of the sizes: here all ten are equal.
#
# But not all labels count. Some are padding and carry -100, which
# `F.cross_entropy` leaves out of its mean. Of the 16 labels of a piece, between 1 and 16
# count. You compare the gradient of the ten pieces with that of all 160 rows
# at once, same weights, same rows.

# %% trap="09.2" role="predict"
guess("09.2", "By how many percent of its length does it miss?", unit="%")

# %% trap="09.2" role="break"
counts = [1, 2, 16, 3, 12, 1, 8, 2, 14, 5]        # labels that count
pieces = []
rows = torch.randperm(len(x_train))[:160].split(16)
for some, count in zip(rows, counts, strict=True):
    y = y_train[some].clone()
    y[count:] = -100
    pieces.append((x_train[some], y))

# %% trap="09.2" role="break"
def gradient_of(model, pieces, share):
    """All gradients in a row; share(y): the factor of a piece's mean."""
    model.zero_grad()
    for x, y in pieces:
        (F.cross_entropy(model(x), y) * share(y)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])

whole = [[torch.cat(part) for part in zip(*pieces, strict=True)]]
target = gradient_of(start, whole, lambda y: 1)
tenths = gradient_of(start, pieces, lambda y: 1 / len(pieces))

# %% trap="09.2" role="look"
def miss(found, target):
    """Distance of two gradients, over the length of the second."""
    return ((found - target).norm() / target.norm()).item()

print(f"ten pieces, a tenth each: {miss(tenths, target):.0%} off")

# %% trap="09.2" role="look"
claim("ten pieces, a tenth each: share by which the gradient misses",
      miss(tenths, target), above=0.15)

# %% trap="09.2" role="look"
measured("09.2", 100 * miss(tenths, target), right=(15, 150))

# %% [markdown] trap="09.2" role="repair"
# A tenth for each piece makes the single label of the first piece count as much as all
# sixteen of the third. The mean over all labels wants one divisor for all pieces: the
# number of labels that count in the whole step. That number is known before the first
# `backward`, from the labels alone.
#
# With class weights the divisor of `F.cross_entropy` is the sum of the weights of these
# labels, and so it is for the pieces:

# %% trap="09.2" role="repair"
def mass(y, weight=None):
    """What F.cross_entropy divides by: labels that count, weighted."""
    kept = y[y != -100]
    return len(kept) if weight is None else weight[kept].sum()

all_y = whole[0][1]
by_count = gradient_of(start, pieces, lambda y: mass(y) / mass(all_y))
print(f"divided by the labels that count: {miss(by_count, target):.0e} off")

# %% trap="09.2" role="repair"
rare = torch.linspace(0.2, 3, 10)                 # weights of ten classes

def weighed(pieces, divisor):
    """As gradient_of, with class weights: sums over one divisor."""
    start.zero_grad()
    for x, y in pieces:
        loss = F.cross_entropy(start(x), y, rare, reduction="sum")
        (loss / divisor).backward()
    return torch.cat([p.grad.flatten() for p in start.parameters()])

start.zero_grad()
F.cross_entropy(start(whole[0][0]), all_y, rare).backward()
heavy = torch.cat([p.grad.flatten() for p in start.parameters()])
offs = {"labels": miss(weighed(pieces, mass(all_y)), heavy),
        "their weights": miss(weighed(pieces, mass(all_y, rare)), heavy)}
print({f"sums over {name}": f"{off:.0e} off" for name, off in offs.items()})

# %% trap="09.2" role="repair"
claim("divided by the labels that count: the miss", miss(by_count, target),
      below=1e-5)
claim("class weights, divided by the number of labels: the miss",
      offs["labels"], above=0.05)
claim("class weights, divided by the sum of weights: the miss",
      offs["their weights"], below=1e-5)

# %% [markdown] trap="09.2" role="repair"
# The other loose end is the end of the epoch. Ten pieces and a step for each four
# of them leave two. Divided by four they make a step half as long as they should;
# not stepped at all, they are lost, or their gradient stays and joins the first step of
# the next epoch. And a piece without any label that counts has a mean of 0 / 0.

# %% trap="09.2" role="repair"
plain = [(x_train[k:k + 16], y_train[k:k + 16]) for k in range(0, 160, 16)]
rest = plain[8:]                                  # all labels count
fair = gradient_of(start, rest, lambda y: 1 / 2)
short = gradient_of(start, rest, lambda y: 1 / 4)
nothing = torch.full((16,), -100)
empty = F.cross_entropy(start(x_train[:16]), nothing)
print(f"the last step over a fair one: {short.norm() / fair.norm():.2f}")
print("mean over no label:", empty.item())

# %% trap="09.2" role="repair"
claim("two pieces left, divided by four: length over that of a fair step",
      (short.norm() / fair.norm()).item(), expected=0.5, within=1e-4)
claim("a mean over no label is a number", not empty.isnan().item(),
      expected=False)

# %% [markdown] trap="09.2" role="folklore"
# **Told:** with the right divisor accumulation *is* the big batch. **Measured:** not
# where rows of a batch see each other. BatchNorm takes its statistics from the piece,
# and the gradient is another one; LayerNorm is row by row, and stays exact.

# %% trap="09.2" role="folklore"
def with_norm(norm):
    """The miss of ten equal pieces, in a reader with this norm."""
    model = nn.Sequential(nn.Linear(64, 64), norm(64), nn.ReLU(),
                          nn.Linear(64, 10))
    both = [[torch.cat(part) for part in zip(*plain, strict=True)]]
    return miss(gradient_of(model, plain, lambda y: 1 / 10),
                gradient_of(model, both, lambda y: 1))

batch_miss, layer_miss = with_norm(nn.BatchNorm1d), with_norm(nn.LayerNorm)
print(f"BatchNorm {batch_miss:.0%} off, LayerNorm {layer_miss:.0e} off")

# %% trap="09.2" role="folklore"
claim("BatchNorm: the miss of ten equal pieces", batch_miss, above=0.08)
claim("LayerNorm: the miss of ten equal pieces", layer_miss, below=1e-5)

# %% trap="09.2" role="exercise" points=3 difficulty=3 minutes=15
def accumulate(model: nn.Module, opt: torch.optim.Optimizer, batches,
               n: int, weight: torch.Tensor | None) -> list[float]:
    """Train through batches once, a step of opt for each n of them.

    batches: an iterator of pairs x (rows, F) float32, y (rows,) int64, left
    as they are; labels of -100 do not count. Each step follows the mean
    cross-entropy over all labels that count in its batches; weight, (C,)
    float32 above 0, weighs classes as in F.cross_entropy. The last step
    takes what is left, be it fewer than n; where no label counts, there is
    no step. Only one graph may live at a time: call backward for each
    batch. Old gradients do not count. Returns the mean loss of each step,
    before it, as a list of floats.

    Example: n 2 and batches with 3, 1 and 2 labels that count: two steps;
    in the first the labels weigh 1/4 each.
    """
    # BEGIN SOLUTION
    def mass(y):
        kept = y[y != -100]
        return len(kept) if weight is None else weight[kept].sum()

    losses, batches = [], list(batches)
    for at in range(0, len(batches), n):
        group = batches[at:at + n]
        total = sum(mass(y) for _, y in group)
        if not total:
            continue
        opt.zero_grad()
        losses.append(0.0)
        for x, y in group:
            loss = F.cross_entropy(model(x), y, weight, reduction="sum")
            loss = loss / total
            loss.backward()
            losses[-1] += loss.item()
        opt.step()
    return losses
    # END SOLUTION

# %% [markdown] trap="09.2" role="hint"
# 1. Take n batches at a time from the iterator, fewer at the end, and look at their labels first: the divisor of the step.
# 2. `reduction="sum"` with `weight` gives the weighted sum over the labels that count; -100 adds nothing.
# 3. The loss of a step is the sum of its batches' shares.

# %% [markdown] trap="09.2" role="keep"
# **Keep:** divide by what counts in the whole step: labels, not pieces. The end of the
# epoch is a step of its own size. **In your own code:** compare the gradient of the
# pieces with that of one big batch, once, on rows with padding. **Seen in the wild:**
# [`huggingface/transformers#24725`](https://github.com/huggingface/transformers/issues/24725)
# and [`#34191`](https://github.com/huggingface/transformers/pull/34191), the fix a
# year later; [`meta-pytorch/torchtune#1875`](https://github.com/meta-pytorch/torchtune/pull/1875):
# "the day the ML community first discovered" that means of unequal parts do not add.
# **Source:** PyTorch documentation,
# [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html),
# the formula of the weighted mean.

# %% [markdown] trap="09.8" role="predict" core=true symptom="pure bfloat16 training stalls, small updates have no effect, weights do not change"
# ## A thousand small steps
#
# To save memory you put the weights themselves into `bfloat16`: `model.bfloat16()`, two
# bytes a weight, and the optimizer works on these. Late in training the steps are small.
# One weight stands at 1.0, and each step adds 0.001 to it.

# %% trap="09.8" role="predict"
guess("09.8", "What does the weight read after a thousand such steps?",
      choices=["2.0, as in 32 bits",
               "about 1.99, each step loses a little",
               "about 1.5, half of the steps are lost",
               "1.0, as before"])

# %% trap="09.8" role="break"
weight = torch.tensor(1.0, dtype=torch.bfloat16)
counter = torch.tensor(0.0, dtype=torch.bfloat16)
for _ in range(1000):
    weight += 0.001
    counter += 1

# %% trap="09.8" role="look"
print("weight ", weight.item())
print("counter", counter.item())

# %% trap="09.8" role="look"
claim("the weight after 1,000 steps of 0.001", weight.item(), expected=1)
claim("what a counter in bfloat16 reads after 1,000 additions of 1",
      counter.item(), expected=256)

# %% trap="09.8" role="look"
measured("09.8", 3)

# %% [markdown] trap="09.8" role="repair"
# Between 1 and 2 `bfloat16` has `128` steps, so the next number after 1 is about `1.008`.
# The sum `1.001` is nearer to 1, and becomes 1 again, a thousand times. The gradient was
# right and the optimizer did its work; the result does not fit into the weight. At 256
# the gap between neighbours is 2, and a counter stands still.
#
# Such a step is lost when it is smaller than half the gap: between a `256`th and a
# `512`th of the weight. So keep a copy in `float32`, the *master*. The optimizer steps
# there, and the weight is rounded from it anew each time. What is too small today adds
# up.

# %% trap="09.8" role="repair"
master = torch.tensor(1.0)
weight = torch.tensor(1.0, dtype=torch.bfloat16)
for _ in range(1000):
    master += 0.001
    weight.copy_(master)          # rounds; the master keeps what is lost
print(f"master {master:.3f}, weight {weight.item()}")

# %% trap="09.8" role="repair"
claim("the weight after 1,000 steps on a master", weight.item(),
      expected=2, within=0.01)

# %% [markdown] trap="09.8" role="repair"
# How much of this does a whole training feel? Readers with weights in `bfloat16`, 400
# steps, with a master and without:

# %% trap="09.8" role="repair"
def train_half(make, master):
    """A reader with weights in bfloat16, after 400 steps."""
    model = copy.deepcopy(start).bfloat16()
    held = [p.detach().float() if master else p for p in model.parameters()]
    opt = make(held)
    for rows in torch.randint(len(x_train), (400, 64)):
        logits = model(x_train[rows].bfloat16()).float()
        model.zero_grad()
        F.cross_entropy(logits, y_train[rows]).backward()
        for p, h in zip(model.parameters(), held, strict=True):
            h.grad = p.grad.to(h.dtype)
        opt.step()
        for p, h in zip(model.parameters(), held, strict=True):
            p.data.copy_(h)
    return model

# %% trap="09.8" role="repair"
plans = {"SGD, 0.02": lambda params: torch.optim.SGD(params, lr=0.02),
         "SGD, 0.2": lambda params: torch.optim.SGD(params, lr=0.2),
         "Adam, 1e-4": lambda params: torch.optim.Adam(params, lr=1e-4)}
half_losses = {}
for plan, make in plans.items():
    for kept in (False, True):
        model = train_half(make, kept)
        with torch.no_grad():
            logits = model(x_test.bfloat16()).float()
        half_losses[plan, kept] = F.cross_entropy(logits, y_test).item()

# %% trap="09.8" role="repair"
for plan in plans:
    print(f"{plan:11} without {half_losses[plan, False]:.2f}   "
          f"with a master {half_losses[plan, True]:.2f}")

# %% trap="09.8" role="repair"
claim("SGD at 0.02: loss without a master, over that with one",
      half_losses["SGD, 0.02", False] / half_losses["SGD, 0.02", True],
      above=1.08)
claim("Adam at 1e-4: the same",
      half_losses["Adam, 1e-4", False] / half_losses["Adam, 1e-4", True],
      above=1.05)
claim("SGD at 0.2: the same",
      half_losses["SGD, 0.2", False] / half_losses["SGD, 0.2", True],
      below=1.15)

# %% [markdown] trap="09.8" role="folklore"
# **Told:** gradients are noisy anyway, so rounding the weights costs nothing.
# **Measured:** with large steps that is nearly so. With small ones, the usual case late
# in training and with Adam's customary rates, the reader without a master learns less
# in as many steps. Under `autocast`, the weights are the master: they never left `float32`.

# %% trap="09.8" role="exercise" points=3 difficulty=2 minutes=10
def master_step(weights: list, grads: list, state: dict, lr: float,
                momentum: float) -> None:
    """One step of SGD with momentum on bfloat16 weights, in place.

    After each step a weight is the nearest bfloat16 to what the same steps
    give in float32: v = momentum * v + grad, with v = 0 before, and
    w = w - lr * v. state: a dict of these weights, empty before their first
    step, in which you keep what you need. lr may change from step to step.
    grads: a bfloat16 tensor for each weight, left alone; None leaves the
    weight and its v as they are. Weights have any shape and any strides,
    and ask for no gradient.

    Example: weight 1, gradient 1, lr 0.001, no momentum: after 4 steps the
    weight is 0.99609375.
    """
    # BEGIN SOLUTION
    if not state:
        state["master"] = [w.float() for w in weights]
        state["v"] = [0.0] * len(weights)
    for k, grad in enumerate(grads):
        if grad is not None:
            state["v"][k] = momentum * state["v"][k] + grad.float()
            state["master"][k] -= lr * state["v"][k]
            weights[k].copy_(state["master"][k])
    # END SOLUTION

# %% [markdown] trap="09.8" role="hint"
# 1. Before the first step `state` is empty: make a float32 copy and a float32 zero of each weight, and keep both there.
# 2. Step on the copy. The bfloat16 weight is never read again.
# 3. Write the copy into the weight with `copy_`, which rounds and keeps the weight's own memory.

# %% [markdown] trap="09.8" role="keep"
# **Keep:** a step much smaller than a 256th of a `bfloat16` weight does not arrive.
# Optimize a copy in `float32`, or use an optimizer that rounds at random or keeps the
# lost part. **In your own code:** count the weights that one step leaves the same to
# the last bit though their gradient is not zero. **Seen in the wild:**
# [`workofart/ml-by-hand#85`](https://github.com/workofart/ml-by-hand/pull/85): after
# `100` steps of Adam `0 of 768` weights had moved, with a master `603`;
# [`pytorch/ao#1124`](https://github.com/pytorch/ao/pull/1124) adds stochastic rounding for
# weights without a master. **Source:** [Micikevicius et al. 2017, "Mixed Precision
# Training"](https://arxiv.org/abs/1710.03740), section 3.1.

# %% [markdown] trap="09.9" role="predict" core=true symptom="how much GPU memory to train a 7B model: 84 or 112 GB, mixed precision does not halve it"
# ## Seven billion numbers
#
# Your model has 7 billion weights. In `float32`, AdamW needs 4 bytes for a weight, 4
# for its gradient and 8 for two moments: `112` GB, before any activation. The card has
# 80. "Mixed precision halves that," says one page. "Two bytes for the weight, two for
# the gradient, eight for the moments: `84` GB," says another.
#
# You choose the layout in which large models are often trained: weights and gradients in
# `bfloat16`, moments in `float32`, and no step is to be lost (trap 09.8).

# %% trap="09.9" role="predict"
guess("09.9", "How many GB do weights, gradients and optimizer take?",
      choices=["56, half of it", "84", "112, as before",
               "more than 112"])

# %% trap="09.9" role="break"
def held_bytes(dtype=torch.float32, cast=False, keep_master=False):
    """Bytes a weight after one step of AdamW, by part."""
    model = reader().to(dtype)
    params = list(model.parameters())
    held = [p.detach().float() if keep_master else p for p in params]
    opt = torch.optim.AdamW(held)
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        logits = model(x_train.to(dtype)).float()
    F.cross_entropy(logits, y_train).backward()
    for p, h in zip(params, held, strict=True):
        h.grad = p.grad.to(h.dtype)
    opt.step()
    return by_part(params, opt, held if keep_master else [])

# %% trap="09.9" role="break"
def by_part(params, opt, masters):
    """Bytes of each part, over the number of weights."""
    parts = {"weights": params, "gradients": [p.grad for p in params],
             "masters": masters,
             "moments": [v for state in opt.state.values()
                         for name, v in state.items() if name != "step"]}
    values = sum(p.numel() for p in params)
    return {name: sum(t.nbytes for t in tensors) / values
            for name, tensors in parts.items()}

layouts = {"float32": held_bytes(), "autocast": held_bytes(cast=True),
           "bfloat16": held_bytes(torch.bfloat16),
           "with masters": held_bytes(torch.bfloat16, keep_master=True)}

# %% trap="09.9" role="look"
for layout, parts in layouts.items():
    total = sum(parts.values())
    print(f"{layout:13}", {name: f"{b:.0f}" for name, b in parts.items()},
          f"= {total:.0f} bytes a weight, {7 * total:.0f} GB for 7e9")

# %% trap="09.9" role="look"
claim("bytes a weight in bfloat16 with masters",
      sum(layouts["with masters"].values()), expected=16)
claim("bytes a weight under autocast", sum(layouts["autocast"].values()),
      expected=16)
claim("bytes a weight with all in bfloat16",
      sum(layouts["bfloat16"].values()), expected=8)

# %% trap="09.9" role="look"
measured("09.9", 2)

# %% [markdown] trap="09.9" role="repair"
# The `84` forget the masters: 2 + 2 + 4 + 8 are 16 bytes, as many as 4 + 4 + 8. Under
# `autocast` nothing of this changes either: weights, gradients and moments are in
# `float32`. Only with all in `bfloat16` it is half, and then small steps are lost.
#
# What mixed precision does halve is what autograd keeps for the backward pass, the
# *activations*. They grow with the batch, and the 16-bit copies of the weights, which
# `autocast` makes and keeps for the backward pass, do not. So what is saved depends on the batch,
# and with a small one it is less than nothing:

# %% trap="09.9" role="repair"
blocks = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU())
                         for _ in range(8)])

def activations(rows, cast):
    """MB that autograd keeps for so many rows, beside the weights."""
    x = torch.randn(rows, 256)
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        return saved_bytes(lambda: blocks(x), blocks.parameters()) / 1e6

saved = {rows: (activations(rows, False), activations(rows, True))
         for rows in (64, 2048)}
for rows, (full, mixed) in saved.items():
    print(f"{rows:4} rows: {full:5.2f} MB in float32, {mixed:5.2f} mixed")

# %% trap="09.9" role="repair"
claim("64 rows: mixed over float32", saved[64][1] / saved[64][0], above=1.2)
claim("2,048 rows: mixed over float32", saved[2048][1] / saved[2048][0],
      below=0.6)

# %% [markdown] trap="09.9" role="repair"
# What does not fit can be split. With several GPUs each may keep a part of the moments
# and masters, of the gradients, of the weights: *ZeRO* 1, 2 and 3 in the paper's words,
# and the last is what FSDP does. Seven billion weights with masters, on eight cards:

# %% trap="09.9" role="repair"
def gigabytes(weights, gradients, state, gpus=8, billions=7):
    """GB on each GPU; what is True is split over all of them."""
    parts = ((2, weights), (2, gradients), (12, state))
    return billions * sum(size / (gpus if split else 1)
                          for size, split in parts)

each = {"nothing": gigabytes(False, False, False),
        "masters, moments": gigabytes(False, False, True),
        "and gradients": gigabytes(False, True, True),
        "and weights": gigabytes(True, True, True)}
print({name: f"{gb:.1f} GB" for name, gb in each.items()})

# %% trap="09.9" role="repair"
claim("GB on each of eight GPUs, masters and moments split",
      each["masters, moments"], expected=38.5)
claim("GB on each of eight GPUs, everything split", each["and weights"],
      expected=14)

# %% [markdown] trap="09.9" role="repair"
# Guess before you look: how many cards of `80` GB does a model of `70` billion weights need at
# least, when everything is split, and how many when the weights stay whole?

# %% role="explore" explorer="train_bytes"
from dlsys_helpers.explorers.train_bytes import train_bytes

train_bytes

# %% trap="09.9" role="exercise" points=2 difficulty=2 minutes=10
def state_bytes(tensors: list, layout: str, gpus: int, shard: str) -> int:
    """Bytes on each GPU for weights, gradients, masters and AdamW's
    moments, as an int.

    tensors: a list of (values, trained), left as it is. layout: "float32"
    and "autocast" hold all in float32; "bfloat16" holds all in bfloat16;
    "master" has weights and gradients in bfloat16, a float32 master of each
    weight, and float32 moments. A frozen tensor has its weight alone, no
    master. shard: "none"; "state" splits masters and moments over the GPUs,
    "gradients" these and the gradients, "all" the weights as well. Each
    tensor is split by itself, n values into parts of n / gpus, rounded up.

    Example: [(10, True), (4, False)], "master", 4 GPUs, "state": 28 for
    weights, 20 for gradients, 36 for the rest, together 84.
    """
    # BEGIN SOLUTION
    small, state = {"float32": (4, 8), "autocast": (4, 8),
                    "bfloat16": (2, 4), "master": (2, 12)}[layout]
    level = ["none", "state", "gradients", "all"].index(shard)
    total = 0
    for n, trained in tensors:
        part = -(-n // gpus)
        total += small * (part if level > 2 else n)
        if trained:
            total += small * (part if level > 1 else n)
            total += state * (part if level > 0 else n)
    return total
    # END SOLUTION

# %% [markdown] trap="09.9" role="hint"
# 1. Three parts for each tensor: weight, gradient, and what the optimizer keeps (moments, and a master where there is one). A frozen tensor has the first alone.
# 2. Bytes a value: 4, 4, 8 in float32; 2, 2, 4 in bfloat16; 2, 2, 12 with masters.
# 3. `-(-n // gpus)` rounds up. The split begins with the optimizer's part and ends with the weights.

# %% [markdown] trap="09.9" role="keep"
# **Keep:** AdamW takes 16 bytes a weight, in `float32`, under `autocast` and with
# masters alike. Mixed precision saves activations and time. **In your own code:** sum
# `nbytes` over weights, gradients and `opt.state` after one step, before you order
# cards. **Source:** [Rajbhandari et al. 2019, "ZeRO: Memory Optimizations Toward
# Training Trillion Parameter Models"](https://arxiv.org/abs/1910.02054), section 3.1: 16
# bytes for each parameter with mixed precision and Adam.

# %% [markdown] trap="09.10" role="predict" symptom="GPU utilization low, loss.item() every step, hidden cudaStreamSynchronize, implicit bool of a tensor"
# ## Who waits for whom
#
# A GPU works through a queue. Python puts the operations of a step into it and runs
# ahead, until it asks for a number: then it waits until the queue is empty, and the GPU
# has nothing to do until Python has filled it again.
#
# This is an ordinary step. It stops on NaN, skips rows that are not labelled, warns of
# long gradients, and adds up the loss for the log.

# %% trap="09.10" role="predict"
guess("09.10", "How often does Python wait for a number in one such step?",
      unit="times")

# %% trap="09.10" role="break"
def step(model, opt, x, y, log):
    labelled = y >= 0
    x, y = x[labelled], y[labelled]
    loss = F.cross_entropy(model(x), y)
    if torch.isnan(loss):
        raise ValueError("the loss is NaN")
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if norm > 100:
        print("a long gradient")
    opt.step()
    log["loss"] += loss.item()

# %% trap="09.10" role="break"
from torch.profiler import ProfilerActivity, profile

def trace(call):
    """Events of one call: (name, start, end), times in microseconds."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        call()
    return [(e.name, e.time_range.start, e.time_range.end)
            for e in seen.events()]

model = copy.deepcopy(start)
opt, log = torch.optim.SGD(model.parameters(), lr=0.1), {"loss": 0.0}

def one():
    step(model, opt, x_train[:64], y_train[:64], log)

one()                                     # the first call is special
events = trace(one)

# %% trap="09.10" role="look"
asks = ("aten::_local_scalar_dense", "aten::nonzero")
found = [name for name, _, _ in events if name in asks]
print(f"{len(events)} events, of which these ask for a number:")
print(found)

# %% trap="09.10" role="look"
claim("times that one step asks for a number", len(found), expected=5)

# %% trap="09.10" role="look"
measured("09.10", len(found), right=(5, 5))

# %% [markdown] trap="09.10" role="repair"
# This trace is from a CPU, where nobody waits; the calls are the same on a GPU. Only
# `item()` is easy to find in the code. `if` makes a `bool` of a tensor, twice. And
# `x[labelled]` has to know how many rows are left before it can make the result, once
# for `x` and once for `y`: that is `nonzero`.
#
# None of these numbers is needed *now*. A mask goes into the loss, where -100 leaves a row
# out. Sums stay tensors. And the log and the checks read them once in fifty steps.

# %% trap="09.10" role="repair"
def quiet_step(model, opt, x, y, log):
    loss = F.cross_entropy(model(x), y)           # -100: not labelled
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    log["loss"] += loss.detach()                  # a tensor
    log["longest"] = torch.maximum(log["longest"], norm)

# %% trap="09.10" role="repair"
def fifty():
    log = {"loss": torch.zeros(()), "longest": torch.zeros(())}
    for k in range(50):
        rows = slice(16 * k, 16 * k + 64)
        quiet_step(model, opt, x_train[rows], y_train[rows], log)
    return torch.stack(list(log.values())).tolist()   # NaN shows in both

quiet = [name for name, _, _ in trace(fifty) if name in asks]
print(f"50 steps ask {len(quiet)} times, before: {50 * len(found)}")

# %% trap="09.10" role="repair"
claim("numbers asked for one by one in fifty quiet steps", len(quiet),
      expected=0)
claim("the same in fifty steps as before", 50 * len(found), expected=250)

# %% [markdown] trap="09.10" role="repair"
# `tolist()` fetches both numbers with one copy, the only time that these fifty steps
# wait. On a GPU a copy shows in the trace, too: `.cpu()` and `.to("cuda")` from ordinary
# memory contain a `cudaStreamSynchronize`; from pinned memory, with
# `non_blocking=True`, they do not.

# %% trap="09.10" role="exercise" points=3 difficulty=2 minutes=15
def find_waits(events: list) -> list[str]:
    """What a step waits for: names of operations, in order of their start.

    events: a list of (name, start, end) of one thread, in any order, left
    as it is; an event lies inside another if it starts no earlier and ends
    no later. aten::_local_scalar_dense, aten::nonzero and
    cudaStreamSynchronize wait, and so does the outermost aten:: event
    around each of them, which is the one to name, or the wait itself where
    there is none; with several waits inside it is named once.

    Example: [("aten::item", 0, 9), ("aten::_local_scalar_dense", 1, 8),
    ("aten::mm", 10, 12)]: ["aten::item"].
    """
    # BEGIN SOLUTION
    waits = {"aten::_local_scalar_dense", "aten::nonzero",
             "cudaStreamSynchronize"}
    roots = set()
    for wait in [event for event in events if event[0] in waits]:
        _, start, end = wait
        around = [e for e in events if e[0].startswith("aten::")
                  and e[1] <= start and end <= e[2]]
        roots.add(max(around, key=lambda e: e[2] - e[1], default=wait))
    return [name for name, _, _ in sorted(roots, key=lambda e: e[1])]
    # END SOLUTION

# %% [markdown] trap="09.10" role="hint"
# 1. For each event that waits, collect the `aten::` events around it; an event lies around itself as well.
# 2. The outermost is the longest of them.
# 3. A set of events, not of names, keeps each operation once and two `item()` calls apart.

# %% [markdown] trap="09.10" role="keep"
# **Keep:** a number asked of the GPU is a wait: `item()`, `tolist()`, `print`, `if` on a
# tensor, a boolean mask as an index. Keep sums on the device and read them now and
# then. **In your own code:** look for `aten::item`, `aten::is_nonzero` and
# `aten::nonzero` in a trace of one step; on a GPU,
# `torch.cuda.set_sync_debug_mode("warn")` names the lines. **Seen in the wild:**
# [`meta-pytorch/torchtune#522`](https://github.com/meta-pytorch/torchtune/pull/522):
# `loss.item()` in each step waited for `40` to `50` ms, now only where it is logged;
# [`openvdb/fvdb-reality-capture#308`](https://github.com/openvdb/fvdb-reality-capture/pull/308):
# a debug message with `{loss.item()}` in it waits even where nothing is logged.
# **Source:** PyTorch documentation, [CUDA semantics, "Asynchronous
# execution"](https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution).

# %% [markdown] trap="09.14" role="predict" symptom="Expected all tensors to be on the same device, loaded model predicts badly, all keys matched, tensor attribute not moved"
# ## A model that takes its scaling along
#
# You have learnt from trap 07.4: the recipe belongs into the model. So your reader of digits
# keeps the mean and the deviation of each pixel as `self.mean` and `self.std`, learns
# them from the training data, and scales its own input. It reads nearly
# all new digits.
#
# You save its `state_dict`, build the reader anew in another program, load the file, and
# see "All keys matched successfully".

# %% trap="09.14" role="predict"
guess("09.14", "How many of 100 new digits does the loaded reader read?",
      choices=["96, it is the same reader", "10, it guesses",
               "about 78, it has lost its scaling",
               "none, the first call raises an error"])

# %% trap="09.14" role="break"
class Scaled(nn.Module):
    """A reader that scales its input, brightness 0 to 16."""

    def __init__(self):
        super().__init__()
        self.keep("mean", torch.zeros(64))
        self.keep("std", torch.ones(64))
        self.net = reader()

    def keep(self, name, tensor):
        setattr(self, name, tensor)               # self.mean = ...

    def forward(self, x):                         # (N, 64)
        return self.net((x - self.mean) / self.std)

# %% trap="09.14" role="break"
def fitted(kind):
    """A reader of this kind, trained on brightness from 0 to 16."""
    model, x = kind(), 16 * x_train
    model.mean.copy_(x.mean(0))
    model.std.copy_(x.std(0) + 1e-3)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for rows in torch.randint(len(x), (200, 64)):
        opt.zero_grad()
        F.cross_entropy(model(x[rows]), y_train[rows]).backward()
        opt.step()
    return model

trained, loaded = fitted(Scaled), Scaled()
print(loaded.load_state_dict(trained.state_dict()))
share = {name: accuracy(m, 16 * x_test, y_test)
         for name, m in (("trained", trained), ("loaded", loaded))}

# %% trap="09.14" role="look"
print({name: f"{s:.2f}" for name, s in share.items()})

# %% trap="09.14" role="look"
claim("share read before saving", share["trained"], above=0.92)
claim("share read after loading", share["loaded"], below=0.88)

# %% trap="09.14" role="look"
measured("09.14", 2)

# %% [markdown] trap="09.14" role="repair"
# A module knows parameters, buffers and other modules. A tensor in an ordinary attribute
# is none of these: `state_dict` does not save it, `load_state_dict` does not miss it, and
# `.to(...)` does not move it. The loaded reader works with zeros and ones. It still reads
# many digits, which is why nobody looks here.
#
# Moved to another device or type, the same model stops with an error. You need no GPU to
# see that: the device `"meta"` will do. `register_buffer` mends all three at once.

# %% trap="09.14" role="repair"
class Buffered(Scaled):
    def keep(self, name, tensor):
        self.register_buffer(name, tensor)

def moves(model):
    """What a forward pass on the device "meta" says."""
    try:
        x = torch.empty(2, 64, device="meta")
        return str(model.to("meta")(x).device)
    except RuntimeError as error:
        return str(error)

# %% trap="09.14" role="repair"
trained, loaded = fitted(Buffered), Buffered()
loaded.load_state_dict(trained.state_dict())
mended = [accuracy(m, 16 * x_test, y_test) for m in (trained, loaded)]
print(f"with buffers: {mended[0]:.2f} before, {mended[1]:.2f} after")
said = {kind.__name__: moves(kind()) for kind in (Scaled, Buffered)}
print(said)

# %% trap="09.14" role="repair"
claim("share read before saving, minus after loading, with buffers",
      mended[0] - mended[1], expected=0)
claim("plain attributes pass on another device", said["Scaled"] == "meta",
      expected=False)
claim("buffers pass on another device", said["Buffered"] == "meta",
      expected=True)

# %% [markdown] trap="09.14" role="repair"
# A buffer that can be computed anew, such as a mask, need not be saved:
# `register_buffer(name, tensor, persistent=False)` moves it with the model and leaves it
# out of the file. And hold on to no buffer in a list: `.to` gives the module a new tensor,
# and the list keeps the old one. Parameters are changed in place, so there a list stays
# right.

# %% trap="09.14" role="repair"
both = Buffered()
both.listed = [both.mean, both.net[0].weight]
both.to(torch.bfloat16)
followed = {"the buffer": both.listed[0].dtype == torch.bfloat16,
            "the parameter": both.listed[1].dtype == torch.bfloat16}
print("moved inside the list:", followed)

# %% trap="09.14" role="repair"
claim("a buffer in a list moves with the model", followed["the buffer"],
      expected=False)
claim("a parameter in a list does", followed["the parameter"],
      expected=True)

# %% trap="09.14" role="exercise" points=3 difficulty=3 minutes=15
def stays_behind(model: nn.Module) -> list[str]:
    """Sorted paths of the tensors that model.to(...) leaves behind, among
    the attributes of its modules themselves, or in lists, tuples and values
    of dicts there, at any depth.

    Tensors of every type and shape count, but for the model's parameters,
    under whatever name, and its buffers in their register. A path has the
    module's name, attribute, places and keys, with dots between; a module
    used twice has its first name, a tensor held twice both paths. Modules
    in lists are not searched. The model stays as it is.

    Example: self.mean and self.tables = [sin, cos], plain tensors, in a
    part "body": ["body.mean", "body.tables.0", "body.tables.1"].
    """
    # BEGIN SOLUTION
    registers = ("_parameters", "_buffers", "_modules")
    own = {id(p) for p in model.parameters()}

    def paths(value, path):
        if isinstance(value, torch.Tensor) and id(value) not in own:
            yield path
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from paths(item, f"{path}.{key}")
        elif isinstance(value, list | tuple):
            for place, item in enumerate(value):
                yield from paths(item, f"{path}.{place}")

    found = []
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key not in registers:
                found += paths(value, f"{name}.{key}" if name else key)
    return sorted(found)
    # END SOLUTION

# %% [markdown] trap="09.14" role="hint"
# 1. `vars(module)` has a module's own attributes. Its registers are among them: `_parameters`, `_buffers`, `_modules`; these move.
# 2. Walk through lists, tuples and dicts by recursion, and carry the path along.
# 3. A parameter held in a second place moves, too: leave out what is one of `model.parameters()`, by identity. A buffer held in a list does not.

# %% [markdown] trap="09.14" role="keep"
# **Keep:** a tensor that belongs to the model is a parameter or a buffer. **In your own
# code:** `copy.deepcopy(model).to("meta")` and one forward pass on meta find what stayed
# behind, without a GPU. **Seen in the wild:**
# [`meta-pytorch/botorch#1035`](https://github.com/meta-pytorch/botorch/pull/1035): tensor
# attributes of the input transforms were not moved;
# [`OpenNMT/OpenNMT-py#240`](https://github.com/OpenNMT/OpenNMT-py/pull/240): a mask
# becomes a buffer; [`pytorch/pytorch#29807`](https://github.com/pytorch/pytorch/issues/29807):
# a list of buffers does not move. **Source:** PyTorch documentation,
# [Module.register_buffer](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer).

# %% [markdown] role="concept"
# ## Further: what checkpointing keeps, to the byte
#
# *Activation checkpointing* keeps only the input of each block and runs the block again in
# the backward pass. What a step keeps can be computed before it runs: here eight blocks
# of a Linear and a GELU, `N` rows of `F` values. Without it autograd keeps two tensors of
# N x F for each block, the Linear's input and the GELU's. With it, one: the block's input.

# %% role="concept"
from torch.utils.checkpoint import checkpoint

x = torch.randn(2048, 256)                        # (N, F)

def kept_bytes(block_by_block):
    """Bytes that autograd keeps for the eight blocks, beside weights."""
    return saved_bytes(lambda: block_by_block(x), blocks.parameters())

def checkpointed(h):
    for block in blocks:
        h = checkpoint(block, h, use_reentrant=False)
    return h

plain_bytes, few_bytes = kept_bytes(blocks), kept_bytes(checkpointed)
one_map = 2048 * 256 * 4
print(f"without {plain_bytes / one_map:.0f} maps, "
      f"with {few_bytes / one_map:.0f}")

# %% role="concept"
claim("bytes kept without checkpointing", plain_bytes,
      expected=16 * one_map)
claim("bytes kept with a checkpoint for each block", few_bytes,
      expected=8 * one_map)

# %% [markdown] role="concept"
# The gradients are the same, and the price is a second forward pass. How much is saved
# depends on what a block keeps inside: for a transformer's block, with its wide MLP and
# its attention, far more than this half. A share that somebody quotes is that of one
# architecture. While the backward pass works on a block, this block's own tensors are there
# as well.

# %% role="concept"
def slopes(run):
    """All gradients after a backward pass through run, and its FLOPs."""
    blocks.zero_grad()
    work = flops(lambda: run(x).square().mean().backward())
    return torch.cat([p.grad.flatten() for p in blocks.parameters()]), work

(first, work), (second, more) = slopes(blocks), slopes(checkpointed)
print(f"largest difference {(first - second).abs().max():.0e}, "
      f"FLOPs {more / work:.2f} times")

# %% role="concept"
claim("largest difference of the gradients", (first - second).abs().max(),
      expected=0)
claim("FLOPs of a step with checkpoints, over those without", more / work,
      above=1.3, below=1.4)

# %% [markdown] role="concept"
# ## Further: what torch.compile compiles again, and where it stops
#
# `torch.compile` runs Python once, writes down the tensor operations as a graph, and puts
# guards around it: facts, such as shapes and types, for which the graph is right. If a
# guard fails, it compiles again. Where Python wants to know a number, the graph *breaks*
# in two, and Python runs in between. Both can be counted without a compiler: the backend
# "eager" only runs the graph as it is.

# %% role="concept"
from torch._dynamo.testing import CompileCounter

def compiled(function, calls, **options):
    """Graphs that dynamo makes of a function over these calls."""
    torch._dynamo.reset()
    counter = CompileCounter()
    fast = torch.compile(function, backend=counter, **options)
    for arguments in calls:
        fast(*arguments)
    return counter.frame_count

# %% role="concept"
def smooth(x):
    return torch.tanh(x) + 1

def stops(x):
    h = torch.tanh(x)
    if h.sum() > 0:                               # Python asks
        return h + 1
    return h - 1

# %% role="concept"
rows = [(torch.ones(n, 4),) for n in (2, 3, 5, 7, 9)]
graphs = {"one shape": compiled(smooth, rows[:1] * 5),
          "each size": compiled(smooth, rows, dynamic=False),
          "five sizes": compiled(smooth, rows),
          "an if on a number": compiled(stops, rows[:1])}
print(graphs)

# %% role="concept"
claim("graphs for five calls of one shape", graphs["one shape"],
      expected=1)
claim("graphs for five sizes, each compiled for itself",
      graphs["each size"], expected=5)
claim("graphs for five sizes by default", graphs["five sizes"], expected=2)

# %% [markdown] role="concept"
# The second size teaches the compiler that this side varies, and the second graph holds
# for all further sizes. With `dynamic=False` each size costs a compilation. And the `if` is the wait of
# trap 09.10 once more: what makes Python wait also cuts the graph.
# `torch.compile(..., fullgraph=True)` raises an error there, with the line.

# %% role="concept"
claim("graphs for one call with an if on a number",
      graphs["an if on a number"], expected=2)

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then open a choice: each says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. You train with `autocast` in `bfloat16`. The optimizer's moments are in**
#
# - [x] `float32`, as are weights and gradients :: `autocast` casts the inputs of some operations. What is stored keeps its type.
# - [ ] `bfloat16`, as all is :: That is `model.bfloat16()`, where small steps are lost.
# - [ ] `bfloat16`, and a master is kept :: There is no second copy: the weights never left `float32`.

# %% [markdown] role="quiz"
# **2. In `float16`, `clip_grad_norm_` stands between `backward` and `scaler.step`, without `unscale_`. With SGD**
#
# - [ ] nothing changes, as the scaler divides again :: It divides what the clip has left: a norm of 1 over 65,536.
# - [x] the steps become far too short :: The clip cuts a scaled gradient to 1, then the scale is taken away.
# - [ ] gradients overflow :: Overflows are found and skipped either way.

# %% [markdown] role="quiz"
# **3. A `bfloat16` weight of 2 gets steps of 0.003. It**
#
# - [ ] moves by about 0.003 each time :: The next number after 2 is 0.0156 away, half the gap is more than 0.003.
# - [ ] moves in every fifth step :: Nothing is remembered between steps, unless there is a master.
# - [x] stays where it is :: Each sum rounds back to 2.

# %% [markdown] role="quiz"
# **4. Four pieces with 10, 10, 10 and 2 labels that count. Each mean is divided by four. A label of the last piece counts**
#
# - [ ] as much as any other :: That needs one divisor, 32, for the sums of all pieces.
# - [x] five times as much :: A quarter over two labels, against a quarter over ten.
# - [ ] a fifth :: The other way round: few labels share a whole quarter.

# %% [markdown] role="quiz"
# **5. Of eight GPUs each holds all weights and gradients in 16 bits and an eighth of masters and moments. For 7 billion weights that is**
#
# - [ ] 14 GB each :: That is so when weights and gradients are split as well.
# - [x] 38.5 GB each :: 28 GB are whole, 84 GB are split by eight.
# - [ ] 112 GB each :: Then nothing would be split.

# %% [markdown] role="quiz"
# **6. A tensor stands in `self.mean = torch.zeros(64)`. After `load_state_dict`, which says that all keys matched, it**
#
# - [x] has the value of `__init__` :: It is in no register, so it is neither saved nor missed.
# - [ ] has the value of the file :: The file does not have it.
# - [ ] raises an error at the first call :: Only when the model moves to another device or type.

# %% [markdown] role="summary"
# ## What you take with you
#
# - A format is a range and a gap. `float16` lacks range, `bfloat16` is coarse.
# - A scaler belongs to `float16`: scale, backward, unscale, clip, step, update.
# - Steps below half a gap are lost; a master in `float32` adds them up.
# - Divide by what counts in the whole step.
# - AdamW takes 16 bytes a weight in three layouts of four. Activations are what mixed
#   precision halves.
# - A number asked of the GPU is a wait, and a cut in a compiled graph.
# - What belongs to the model is a parameter or a buffer.
#
# **Next:** stage 10 trains one percent of a model, and asks which percent.
