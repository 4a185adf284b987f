# %% [markdown] role="hook"
# # 9. Mixed precision, distributed training and profiling
#
# Your model trains slowly on one GPU, and your next model will not fit on that GPU. You
# switch to 16 bits, cut the batch into pieces, move to two machines, and look for the
# time that is still lost. Each of these changes takes a line or two of code, and each has
# a page in the documentation.
#
# Each of them also changes the computation: how values are rounded, what a mean is taken
# over, which bytes are on which card, and which process waits for which. This stage
# counts such bytes and such waits, in four parts: a single number, one card, several
# ranks, and a sharded model. Nearly all of the code in this stage runs on a CPU.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import copy
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers import (
    accuracy, begin, check, claim, datasheet, digits, draw_blocks,
    draw_boxes, draw_grids, draw_lanes, draw_line, draw_ranks, draw_tree,
    flops, gpu_result, gpu_table, guess, measured, new_axes, plot_bars,
    plot_columns, plot_lines, saved_bytes, seconds, show,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## One number: what a format can hold
#
# A float has a sign, an exponent and a fraction. The exponent determines how large and
# how small a number can be. The fraction determines how finely the numbers between 1 and
# 2 are spaced. With 16 bits, you have to choose between range and precision: `float16`
# gives 5 bits to the exponent and 10 to the fraction, and `bfloat16` gives 8 and 7. The
# usual 8-bit formats are `E5M2` and `E4M3`; the usual 4-bit format is `E2M1`. These names
# give the number of bits in the exponent (E) and in the fraction (M, for mantissa).

# %% role="concept"
# For each bar: where it begins, where it ends, and its label.
ranges = {"E2M1": [(1, 6, "half a byte")]}
for kind in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float16,
             torch.bfloat16, torch.float32):
    info = torch.finfo(kind)
    size = f"{kind.itemsize} byte{'s' * (kind.itemsize > 1)}"
    name = str(kind).removeprefix("torch.")
    if info.bits == 8:
        name = name.removeprefix("float8_").removesuffix("fn").upper()
    ranges[name] = [
        (info.smallest_normal, info.max, size)]
draw_line(ranges, log=True,
          title="bfloat16 reaches as far as float32, in half the bytes",
          alt="One bar per format on a logarithmic axis. bfloat16 and "
              "float32 reach from 1e-38 to 3e38, float16 and E5M2 from "
              "6e-5 to about 6e4, E4M3 from 0.02 to 448, E2M1 from 1 to 6.")

# %% role="concept"
claim("largest number in float16",
      torch.finfo(torch.float16).max, expected=65504)

# %% [markdown] role="concept"
# The left end of a bar is the format's smallest number with full precision. The format
# reaches a little further down, with fewer and fewer fraction bits. Values of at most
# half the smallest such number become zero.
#
# `torch.autocast` leaves `float32` weights as they are. Two of its lists of operations
# matter here. The operations on the first list, such as matrix products and convolutions,
# take most of the time. They get 16-bit copies of their `float32` inputs. Operations on
# the second list, such as most losses, run in 32 bits. All other operations use the
# format of their inputs.
#
# Shapes in this stage: `N` rows, `F` features, `C` classes.

# %% role="concept"
x_train, y_train, x_test, y_test = digits()       # (1300, 64), (497, 64)

def classifier():
    """A digit classifier, an MLP 64-64-10."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

net, start = classifier(), classifier()  # several traps begin with start
with torch.autocast("cpu", torch.bfloat16):
    logits = net(x_train)                         # (N, C)
    loss = F.cross_entropy(logits, y_train)
loss.backward()
kinds = {"weight": net[0].weight, "logits": logits, "loss": loss,
         "gradient": net[0].weight.grad}
print({name: str(t.dtype).removeprefix("torch.")
       for name, t in kinds.items()})

# %% role="concept"
claim("bytes per value of the logits", logits.itemsize, expected=2)
claim("bytes per value of a weight's gradient",
      net[0].weight.grad.itemsize, expected=4)

# %% [markdown] role="concept"
# ## Why float16 needs a loss scale
#
# Gradients are small numbers. The smallest value above zero in `float16` is about `6e-8`, and
# everything below half of that value becomes zero. A weight whose gradient is zero learns
# nothing.
#
# Take a loss that is small, for example because you divide it by the number of
# micro-batches. Compute its gradients in `float16` and count those that have become zero.
# Then repeat the count with the loss multiplied by 65,536. By the chain rule, every
# gradient is then 65,536 times as large, so divide the gradients by 65,536 afterwards:

# %% role="concept"
def gradient(half, scale=1):
    """All gradients of a loss divided by 10,000, without the scale."""
    model = copy.deepcopy(start)
    with torch.autocast("cpu", torch.float16, enabled=half):
        loss = F.cross_entropy(model(x_train), y_train) / 1e4
    (loss * scale).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]) / scale

true = gradient(half=False)
lost = {scale: ((gradient(True, scale) == 0) & (true != 0)).float().mean()
        for scale in (1, 65536)}
print({f"scale {s}": f"{share:.1%} lost" for s, share in lost.items()})

# %% role="concept"
sizes = true[true != 0].abs()
low, high = sizes.quantile(torch.tensor([0.1, 0.9])).tolist()
draw_line({"gradients": [(low, high, "8 of 10")],
           "scaled": [(65536 * low, 65536 * high, "8 of 10")],
           "float16": [(2**-24, 65504, "above zero")]}, log=True,
          title="Multiplied by 65,536, the gradients fit into float16",
          alt="Three bars on a logarithmic line. Without a scale, the "
              "gradients' bar is partly below the lower end of float16. "
              "Multiplied by 65,536, the gradients are inside the range.")

# %% role="concept"
claim("fraction of gradients that become zero in float16, without a loss "
      "scale", lost[1].item(), above=0.01)
claim("fraction of gradients that become zero in float16, with a loss "
      "scale of 65,536", lost[65536].item(), below=0.001)

# %% [markdown] role="concept"
# That is all a *loss scale* does: it lifts the gradients into the range of `float16` for
# the backward pass. `torch.amp.GradScaler` manages the loss scale for you.
# `scaler.scale(loss)` multiplies the loss by the scale. `scaler.step(opt)` divides the
# gradients by the scale before the optimizer uses them, and skips the step if any
# gradient has become infinite or NaN. `scaler.update()` then halves the scale after an
# overflow, and doubles it after many steps without one. `bfloat16` has as many exponent
# bits as `float32`, so it needs no loss scaling.

# %% [markdown] role="concept"
# ## Which format on which card
#
# Why is computing in 16 bits faster? One reason is that fewer bytes have to be moved. But
# matrix products gain more from special hardware: since the V100, most NVIDIA GPUs have
# *tensor cores*, units that multiply small matrices. Tensor cores accept 16-bit inputs,
# can accumulate in `float32`, and are faster than the ordinary units, on a V100, T4, A100
# or H100 many times. Which formats the tensor cores accept
# depends on the card's generation:

# %% role="concept"
older = ["float16"]
ampere = [*older, "bfloat16", "TF32"]
takes = {"V100, T4": older, "A100, RTX 30": ampere,
         "H100, L4, RTX 40": [*ampere, "float8"],
         "B200, RTX 50": [*ampere, "float8", "float4"]}
formats = takes["B200, RTX 50"]
draw_grids({"tensor cores accept": [[f in found for f in formats]
                                  for found in takes.values()]},
           row_names=[*takes], column_names=formats,
           title="Newer cards accept more formats",
           alt="A table of four groups of cards and five formats. Of these "
           "V100 and T4 take float16 only. From A100 on, bfloat16 and TF32 "
           "are added, from H100 on, float8, and from B200 on, float4.")

# %% role="concept"
cards = {"V100": "Tesla V100-SXM2-16GB", "T4": "Tesla T4",
         "A100": "NVIDIA A100-SXM4-80GB", "H100": "NVIDIA H100 80GB HBM3"}
times = {}
for short_name, full_name in cards.items():
    peak = datasheet(full_name)
    times[short_name] = peak.half_tflops / peak.fp32_tflops
    print(f"{short_name}: {peak.half_tflops:g} TFLOP/s in 16 bits, "
          f"{peak.fp32_tflops:g} in float32")

# %% role="concept"
claim("lowest ratio of the 16-bit rate to the float32 rate among four "
      "datasheets",
      min(times.values()), above=7)

# %% [markdown] role="concept"
# So first check whether the card supports `bfloat16`, with
# `torch.cuda.is_bf16_supported(including_emulation=False)`:
#
# - **If it supports `bfloat16`,** use `autocast` in `bfloat16`, without a scaler.
# - **On a V100 or T4,** use `autocast` in `float16`, with a `GradScaler`.
# - **For products that stay in `float32`,** call
#   `torch.set_float32_matmul_precision("high")`, which lets tensor cores multiply in
#   *TF32*, a format with the range of `float32` and 10 fraction bits. The default,
#   `"highest"`, does not use TF32 for matrix products; convolutions use it by default.
# - **Use `float8` and 4-bit formats** only with a library that scales each tensor or
#   block, and only if a measurement shows a gain. The GPU section at the end times a
#   matrix product in each format.

# %% [markdown] trap="09.1" role="situation" fault="a GradScaler in bfloat16 and a clip without unscale_" symptom="GradScaler with bfloat16, loss does not fall, gradient norm of 30000"
# ## A scaler out of habit
#
# Last year you trained in `float16`, with a `GradScaler` in the loop. This year you train
# in `bfloat16` and keep the loop. Your own comment above the scaler says: "In bfloat16,
# the scaler is not needed, but it does no harm."
#
# The loop clips the gradient norm to 1, as many training loops do. You train a digit
# classifier for 200 steps of SGD.

# %% trap="09.1" role="break"
def train(model, opt, scaler, dtype):
    """Train 200 steps under autocast; return the norms before the clip."""
    norms = []
    for rows in batches:
        opt.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = F.cross_entropy(model(x_train[rows]), y_train[rows])
        scaler.scale(loss).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        scaler.step(opt)
        scaler.update()
    return torch.stack(norms)

# %% trap="09.1" role="break"
def scaled(on=True):
    return torch.amp.GradScaler("cpu", enabled=on)

def run(make, scaler, loop=train, dtype=torch.bfloat16):
    """Train a classifier; return its loss on new digits, and norms."""
    model = copy.deepcopy(start)
    norms = loop(model, make(model.parameters()), scaler, dtype)
    with torch.no_grad():
        return F.cross_entropy(model(x_test), y_test).item(), norms

def sgd(params):
    return torch.optim.SGD(params, lr=0.1)

# %% trap="09.1" role="break"
batches = torch.randint(len(x_train), (200, 64))
habit, habit_norms = run(sgd, scaled())
without, norms = run(sgd, scaled(on=False))

# %% trap="09.1" role="guess" quoted="wrong"
guess("09.1",
      "How does the run with the scaler differ from the same run without "
      "a scaler?",
      choices=["not at all",
               "its steps are far too long, and the loss explodes",
               "its steps are far too short, and the loss hardly moves",
               "its loss is a little higher"])

# %% trap="09.1" role="look"
print(f"with the scaler    loss {habit:.2f}, norm {habit_norms[0]:8.2f}")
print(f"without            loss {without:.2f}, norm {norms[0]:8.2f}")

# %% trap="09.1" role="look"
measured("09.1", 2)

# %% trap="09.1" role="look"
claim("loss after 200 steps with the scaler", habit, above=2.1)

# %% [markdown] trap="09.1" role="why"
# `scale` ignores the number format. The scaler multiplies the loss, and with it every
# gradient, by 65,536, even in `bfloat16`. The gradient norm is then in the tens of
# thousands, and clipping cuts it to 1. Then `scaler.step` divides the clipped gradient by
# 65,536.

# %% trap="09.1" role="why"
draw_blocks(
    {"the habit": ["scale, backward", f"norm {habit_norms[0]:,.0f}",
                   "clip to 1", "norm 1", "step divides by 65,536",
                   f"norm {1 / 65536:.6f}"],
     "in order": ["scale, backward", f"norm {habit_norms[0]:,.0f}",
                  "unscale_ divides by 65,536", f"norm {norms[0]:.2f}",
                  "clip to 1", f"norm {min(1, norms[0]):.2f}"]},
    marks={"the habit": {"clip to 1"}},
    title="Clipping cuts a gradient that is still scaled",
    alt="Two columns of blocks. With the habit, the gradient's norm is in "
        "the tens of thousands, clipping makes it 1, and the step divides "
        "it by 65,536, which leaves 0.000015. In order, unscale_ divides "
        "before clipping, which then gets the true norm.")

# %% [markdown] trap="09.1" role="repair"
# In `bfloat16`, leave the scaler out. In `float16`, keep the scaler and use this order:
# *scale, backward, unscale, clip, step, update*. Between `scale` and `unscale_`, every
# gradient is multiplied by the scale, and no clip, log or threshold takes the scale into
# account.

# %% trap="09.1" role="repair"
def train_in_order(model, opt, scaler, dtype):
    """Like train, with one more line."""
    norms = []
    for rows in batches:
        opt.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = F.cross_entropy(model(x_train[rows]), y_train[rows])
        scaler.scale(loss).backward()
        scaler.unscale_(opt)                      # true gradients again
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        scaler.step(opt)
        scaler.update()
    return torch.stack(norms)

# %% trap="09.1" role="repair"
in_order, _ = run(sgd, scaled(), train_in_order)
half, half_norms = run(sgd, scaled(), train_in_order, torch.float16)
print(f"bfloat16, scaler, right order  loss {in_order:.2f}")
print(f"float16,  scaler, right order  loss {half:.2f}, "
      f"norm {half_norms[0]:.2f}")

# %% trap="09.1" role="repair"
claim("loss after 200 steps in float16, with the calls in the right order",
      half, below=0.9)

# %% [markdown] trap="09.1" role="repair"
# The scaler finds a suitable scale by itself. After an overflow, it halves the scale and
# skips the step. After two thousand steps without an overflow, it doubles the scale; in
# the run below, it does so after 20 steps. Before you look, guess how many steps are
# skipped at the start if the scale is 256 times too large.

# %% trap="09.1" role="repair"
def scales(first, steps=100):
    """The scale before each step; the gradient is always 15."""
    weight = nn.Parameter(torch.zeros(1))
    opt = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=first,
                                  growth_interval=20)
    seen = []
    for _ in range(steps):
        seen.append(scaler.get_scale())
        weight.grad = scaler.scale(torch.tensor([15.0])).half().float()
        scaler.step(opt)
        scaler.update()
    return torch.tensor(seen)

# %% trap="09.1" role="repair"
fits = 4096.0                           # 15 * 4096 is below 65,504
large, small = scales(256 * fits), scales(fits / 4)
skipped = (large > fits).sum().item()
print(f"{skipped} steps skipped, {(large[:20] > fits).sum()} at the start")

# %% trap="09.1" role="repair"
claim("number of steps skipped at the start, with a scale 256 times too "
      "large",
      (large[:20] > fits).sum(), expected=8)

# %% trap="09.1" role="repair"
plot_lines(range(len(large)), {"256 times too large": large.tolist(),
                               "4 times too small": small.tolist()},
           title="The scale settles, and now and then tries a larger one",
           xlabel="step", ylabel="scale", logy=True,
           alt="Two lines. One starts high and is halved with each of its "
               "first eight steps, the other doubles every twenty steps. "
               "Both then stay at the largest scale that fits, and every "
               "now and then jump above it for one step.")

# %% [markdown] trap="09.1" role="more" topics="the other runs · Adam hardly notices · float8, MXFP and NVFP4"
# These claims put bounds on the results of the runs above:

# %% trap="09.1" role="more"
claim("loss after 200 steps without the scaler", without, below=0.9)
claim("first gradient norm before clipping, with the scaler, divided by "
      "the true norm",
      (habit_norms[0] / norms[0]).item(), expected=65536, within=700)
claim("loss after 200 steps in bfloat16, with the scaler and the calls in "
      "the right order", in_order, below=0.9)

# %% [markdown] trap="09.1" role="more"
# With Adam, the scaler hardly hurts this small net. Adam divides each gradient by its
# usual size, so a common factor cancels, as long as each gradient stays above Adam's eps.
# In a net with millions of weights, some gradients may fall below eps. And clipping no
# longer does its job, because it cuts nearly every gradient, large or small, to the same
# norm.

# %% trap="09.1" role="more"
def adam(params):
    return torch.optim.Adam(params, lr=1e-3)

adam_habit = run(adam, scaled())[0]
adam_without = run(adam, scaled(on=False))[0]
print(f"Adam: with the scaler {adam_habit:.2f}, without {adam_without:.2f}")

# %% trap="09.1" role="more"
claim("with Adam: loss with the scaler minus loss without the scaler",
      adam_habit - adam_without, below=0.3)

# %% [markdown] trap="09.1" role="more"
# With 8 bits, one scale for the whole loss is not enough, because the largest number in
# `E4M3` is 448, and a value that is a millionth of the largest value becomes zero. One
# scale per tensor is often enough, unless an outlier uses up the range. So newer formats
# divide a tensor into blocks, each with its own scale. In the [microscaling
# formats](https://arxiv.org/abs/2310.10537), each block of 32 values shares one scale, a
# power of two (8 bits, `float8_e8m0fnu`); the values are `E4M3` or `E5M2` in `MXFP8`, and
# `E2M1` in `MXFP4`. In `NVFP4`, each block of sixteen values in `E2M1` shares a scale in
# `E4M3`, and the whole tensor has one more scale in `float32`. The next cell rounds a
# tensor with one outlier to `E4M3`, with a single scale and with one scale per block of
# 32 values.

# %% trap="09.1" role="more"
def in_float8(x, block):
    """x as E4M3 with a power of two for each block, and back."""
    parts = x.view(-1, block)
    top = parts.abs().amax(1, keepdim=True)
    scale = 2.0 ** (top / 448).log2().ceil()
    return ((parts / scale).to(torch.float8_e4m3fn).float()
            * scale).flatten()

outlier = torch.randn(4096, generator=torch.Generator().manual_seed(SEED))
outlier[0] = 1e5
zeros = {block: (in_float8(outlier, block) == 0).float().mean().item()
         for block in (4096, 32)}
print({f"a scale for {n}": f"{share:.1%} zeros"
       for n, share in zeros.items()})

# %% trap="09.1" role="more"
claim("fraction of values that become zero in E4M3, with one scale for "
      "all 4,096 values", zeros[4096], above=0.1)
claim("fraction of values that become zero in E4M3, with one scale per 32 "
      "values", zeros[32], below=0.01)

# %% [markdown] trap="09.1" role="folklore"
# **Told:** In `bfloat16`, `scale()` does nothing, because nothing can overflow.
# **Measured:** `bfloat16` can also overflow: its largest value is close to the largest
# `float32`, and `3e38` times ten is `inf`. And `scale()` multiplies whatever it gets,
# including a `bfloat16` value.

# %% trap="09.1" role="folklore"
big = torch.tensor(3e38).bfloat16() * 10
two_scaled = scaled().scale(torch.tensor(2.0).bfloat16())
print("3e38 times ten:", big.item(), "  scale(2):", two_scaled.item())

# %% trap="09.1" role="folklore"
claim("ten times 3e38 is infinite in bfloat16",
      big.isinf().item(), expected=True)
claim("value that scale() returns for a 2 in bfloat16",
      two_scaled.item(), expected=131072)

# %% trap="09.1" role="exercise" points=3 difficulty=2 minutes=15
def amp_step(opt: torch.optim.Optimizer, scaler: torch.amp.GradScaler,
             loss_of, dtype: torch.dtype, max_norm: float) -> float:
    """Take one step of opt under CPU autocast. Return the gradient's norm.

    loss_of() returns the loss, a float32 scalar. Call it once. Call
    loss_of() under autocast with dtype. With torch.float16, use the scaler
    and update it once. With torch.bfloat16, do not touch the scaler. Ignore
    old gradients. The norm is the global norm over all parameter groups. If
    the norm is larger than max_norm, clip it to max_norm. Parameters that
    the loss does not use are ignored. If a float16 gradient overflows, skip
    the step: the parameters and opt's state do not change.

    Returns:
        The norm before clipping, without the scale, as a float. After an
            overflow, the norm is inf or nan.

    Example: with gradient (3, 4), max_norm 1 and SGD at a rate of 1, the
    step is (-0.6, -0.8) and the norm is 5.0.
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
# 1. There are two ways through the function, one with the scaler and one without. Only clipping is common to both.
# 2. In `float16`: scale, backward, `unscale_`, clip, `scaler.step`, `scaler.update`. `scaler.step` is the call that skips a step with overflows.
# 3. The parameters of all groups are in `opt.param_groups`. `clip_grad_norm_` returns the norm before clipping, as a tensor.

# %% [markdown] trap="09.1" role="keep"
# **Keep:** Use a gradient scaler with `float16` and with nothing else. Scale the loss,
# call `backward`, unscale the gradients, clip, step, and update the scaler, in this
# order. **In your own code:** Log the gradient norm just before clipping. If this norm is
# in the tens of thousands at the start, the gradients are most likely still scaled.
# **Seen in the wild:**
# [`huggingface/accelerate#1036`](https://github.com/huggingface/accelerate/pull/1036)
# removes the scaler for `bfloat16`;
# [`victorchall/EveryDream2trainer#175`](https://github.com/victorchall/EveryDream2trainer/pull/175):
# gradients were clipped while they were still scaled, and a limit of 1 brought training
# to a halt. **Source:** PyTorch documentation, [Automatic Mixed Precision
# examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html), "Gradient
# clipping".

# %% [markdown] trap="09.8" role="situation" core=true fault="weights in bfloat16 lose small updates" symptom="pure bfloat16 training stalls, small updates have no effect, weights do not change"
# ## A hundred small steps
#
# To save memory, you convert the weights themselves with `model.bfloat16()`. The weights
# now take two bytes each, and the optimizer updates them in `bfloat16`. One weight is
# 1.0, and each step adds 0.004 to it. In `float32`, a hundred such steps move the weight
# by 0.4.

# %% trap="09.8" role="break"
def steps_of(size, dtype, steps=300):
    """The values of a weight: 1 at first, then after each step."""
    weight = torch.tensor(1.0, dtype=dtype)
    read = [1.0]
    for _ in range(steps):
        weight += size
        read.append(weight.item())
    return read

full = steps_of(0.004, torch.float32)
short = steps_of(0.004, torch.bfloat16)

# %% trap="09.8" role="guess"
guess("09.8",
      "How far do the first 100 steps move the weight in `bfloat16`, as a "
      "percentage of 0.4?", unit="%")

# %% trap="09.8" role="look"
print(f"after 100 steps: {full[100]:.3f} in 32 bits, {short[100]:.3f} "
      "in bfloat16")

# %% trap="09.8" role="look"
measured("09.8", 100 * (short[100] - 1) / 0.4, right=(180, 210))

# %% [markdown] trap="09.8" role="look"
# In `bfloat16`, the weight moves nearly twice as far as in `float32`, and after 128 steps
# it stops. Slightly smaller steps, of 0.003, have no effect from the start:

# %% trap="09.8" role="look"
plot_lines(range(301), {"0.004 in 32 bits": full,
                        "0.004 in bfloat16": short,
                        "0.003 in bfloat16": steps_of(0.003,
                                                      torch.bfloat16)},
           title="After rounding, a step is twice as long, or zero",
           xlabel="step", ylabel="the weight",
           alt="Three lines over 300 steps. In 32 bits, the weight rises "
           "evenly to 2.2. In bfloat16, it rises twice as fast to 2 and "
           "stays there; with steps of 0.003, it stays at 1.")

# %% trap="09.8" role="look"
claim("bfloat16 weight after 1,000 steps of 0.001, without a master",
      steps_of(0.001, torch.bfloat16, 1000)[-1], expected=1)

# %% [markdown] trap="09.8" role="why"
# With 7 bits for the fraction, there are 128 numbers from 1 to 2, and the next number
# after 1 is about `1.008`. The sum `1.004` is a little nearer to `1.008` than to 1, so it
# rounds up and the step is twice as long. The sum `1.003` rounds back to 1 every time. So
# rounding can double a step or erase it. From 2 on, the gaps are twice as wide, so a step
# of 0.004 is also lost there. The gradient was right and the optimizer did its job, but
# the weight's format cannot represent the result.

# %% trap="09.8" role="why"
gap_at_1 = torch.finfo(torch.bfloat16).eps
draw_line({"bfloat16": [(1 + k * gap_at_1, f"{1 + k * gap_at_1:.4f}")
                        for k in range(3)],
           "the sums": [(1.003, "1.003"), (1.004, "")]},
          moments={"rounds up from here": 1 + gap_at_1 / 2},
          title="1.003 rounds to 1, and 1.004 does not",
          alt="A number line. bfloat16 has the numbers 1, 1.0078 and "
              "1.0156. The sum 1.003 is to the left of the midpoint at "
              "1.0039, and the sum 1.004 is just to its right, where it "
              "rounds up.")

# %% [markdown] trap="09.8" role="repair"
# An upward step is lost when it is smaller than half the gap to the next number. At a
# weight of 1, half the gap is a 256th of the weight; just below 2, it is half that
# fraction. So keep a copy of the weight in `float32`, called the *master*. The optimizer
# updates the master, and after each step, the weight is set to the rounded master. In the
# master, steps that are too small on their own add up.

# %% trap="09.8" role="repair"
master = torch.tensor(1.0)
weight = torch.tensor(1.0, dtype=torch.bfloat16)
path = []
for _ in range(1000):
    master += 0.001
    weight.copy_(master)          # rounds; the master keeps what is lost
    path.append((master.item(), weight.item()))
print(f"master {master:.3f}, weight {weight.item()}")

# %% trap="09.8" role="repair"
claim("bfloat16 weight after 1,000 steps of 0.001, with a master",
      weight.item(), expected=2, within=0.01)

# %% trap="09.8" role="repair"
plot_lines(range(1, 41), {"master": [m for m, _ in path[:40]],
                          "weight": [w for _, w in path[:40]],
                          "no master": [1.0] * 40},
           title="The master climbs, and the weight follows in jumps",
           xlabel="step", ylabel="value",
           alt="Three lines over the first 40 steps. The master rises "
           "evenly from 1 to 1.04, the bfloat16 weight follows it in "
           "jumps of 0.0078, and the weight without a master stays at 1.")

# %% [markdown] trap="09.8" role="more" topics="a counter that stops · a whole training, with a master and without"
# A `bfloat16` counter stops for the same reason: at 256, the gap between neighbouring
# numbers is 2.

# %% trap="09.8" role="more"
counter = torch.tensor(0.0, dtype=torch.bfloat16)
for _ in range(1000):
    counter += 1
print("counter", counter.item())

# %% trap="09.8" role="more"
claim("value of a bfloat16 counter after 1,000 additions of 1",
      counter.item(), expected=256)
claim("after 100 steps of 0.004: distance moved in bfloat16 divided by "
      "distance moved in float32",
      (short[100] - 1) / (full[100] - 1), expected=1.953, within=0.001)
claim("bfloat16 weight after 300 steps of 0.004, without a master",
      short[-1], expected=2)
claim("number of gaps between bfloat16 numbers from 1 to 2",
      1 / torch.finfo(torch.bfloat16).eps, expected=128)

# %% [markdown] trap="09.8" role="more"
# How much does the rounding hurt a whole training run? The next cell trains classifiers
# with `bfloat16` weights for 400 steps, with and without a master:

# %% trap="09.8" role="more"
def train_half(make, master):
    """Train a classifier with weights in bfloat16 for 400 steps."""
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

# %% trap="09.8" role="more"
recipes = {"SGD, 0.02": lambda params: torch.optim.SGD(params, lr=0.02),
         "SGD, 0.2": lambda params: torch.optim.SGD(params, lr=0.2),
         "Adam, 1e-3": lambda params: torch.optim.Adam(params, lr=1e-3)}
half_losses = {}
for recipe, make in recipes.items():
    for kept in (False, True):
        model = train_half(make, kept)
        with torch.no_grad():
            logits = model(x_test.bfloat16()).float()
        half_losses[recipe, kept] = F.cross_entropy(logits, y_test).item()

# %% trap="09.8" role="more"
plot_bars({f"{recipe}{', master' * kept}": loss
           for (recipe, kept), loss in half_losses.items()},
          title="Small steps need a master most",
          xlabel="loss on new digits after 400 steps",
          alt="Six bars of losses, without and with a master. SGD at 0.02 "
              "and Adam at 0.001 end at a higher loss without a master. "
              "With SGD at 0.2, there is hardly a difference.")

# %% trap="09.8" role="more"
claim("SGD at a learning rate of 0.02: loss without a master, divided by "
      "loss with a master",
      half_losses["SGD, 0.02", False] / half_losses["SGD, 0.02", True],
      above=1.08)
claim("Adam at a learning rate of 0.001: loss without a master, divided by "
      "loss with a master",
      half_losses["Adam, 1e-3", False] / half_losses["Adam, 1e-3", True],
      above=1.05)
claim("SGD at a learning rate of 0.2: loss without a master, divided by "
      "loss with a master",
      half_losses["SGD, 0.2", False] / half_losses["SGD, 0.2", True],
      below=1.15)

# %% [markdown] trap="09.8" role="folklore"
# **Told:** Gradients are noisy anyway, so rounding the weights costs nothing.
# **Measured:** With SGD at a learning rate of 0.2, that is nearly true. With SGD at 0.02,
# and with Adam at its default learning rate, the classifier without a master learns less
# in the same number of steps. Under `autocast`, the weights of a `float32` model already
# serve as the master, because they stay in `float32`.

# %% trap="09.8" role="exercise" points=3 difficulty=2 minutes=10
def master_step(weights: list, grads: list, state: dict, lr: float,
                momentum: float) -> None:
    """Take one step of SGD with momentum on bfloat16 weights. Change the
    weights in place.

    After each step, a weight is the bfloat16 value nearest to the result of
    the same steps in float32. A float32 step first sets v = momentum * v +
    grad. Before the first step, v is 0. The step then sets w = w - lr * v.

    Args:
        weights: tensors of any shape and strides, without requires_grad.
        grads: a bfloat16 tensor for each weight, unchanged. For None, the
            weight and its v stay as they are.
        state: a dict for these weights alone. state is empty before the
            weights' first step. Keep in it what you need.
        lr: may change from step to step.

    Example: with weight 1, gradient 1, lr 0.001 and no momentum, the weight
    is 0.99609375 after 4 steps.
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
# 1. Before the first step, `state` is empty: make a float32 copy of each weight and float32 zeros of its shape, and keep both in `state`.
# 2. Take the step on the copy, and never read the bfloat16 weight again.
# 3. Write the copy into the weight with `copy_`, which rounds and keeps the weight's own memory.

# %% [markdown] trap="09.8" role="keep"
# **Keep:** A `bfloat16` weight loses every step that is much smaller than a 256th of the
# weight. Let the optimizer update a copy of the weights in `float32`, or use an optimizer
# that rounds stochastically or carries the rounding error over to the next step. **In
# your own code:** Take one step and count the weights that do not change by a single bit
# although their gradient is not zero. **Seen in the wild:**
# [`workofart/ml-by-hand#85`](https://github.com/workofart/ml-by-hand/pull/85): after
# `100` steps of Adam, none of `768` weights had moved without a master and `603` with a
# master; [`pytorch/ao#1124`](https://github.com/pytorch/ao/pull/1124) adds stochastic
# rounding for weights without a master. **Source:** [Micikevicius et al. 2017, "Mixed
# Precision Training"](https://arxiv.org/abs/1710.03740), section 3.1.

# %% [markdown] trap="09.9" role="situation" core=true fault="mixed precision with masters still takes 16 bytes per weight" symptom="how much GPU memory to train a 7B model: 84 or 112 GB, mixed precision does not halve it"
# ## Seven billion weights
#
# Your model has 7 billion weights, and the card has 80 GB. In `float32`, AdamW needs 4
# bytes for each weight, 4 for its gradient and 8 for its two moments: in total `112` GB,
# before activations.
#
# You choose a common layout for large models: weights and gradients in `bfloat16`,
# moments in `float32`. You also keep a *master* (trap 09.8), a `float32` copy of the
# weights that loses no small step. Weights and gradients now take half as much memory.
# The code counts the bytes of a small model after one step, in four layouts. Your layout
# is the last.

# %% trap="09.9" role="break"
def held_bytes(dtype=torch.float32, cast=False, keep_master=False):
    """Bytes per weight after one step of AdamW, by part."""
    model = classifier().to(dtype)
    params = list(model.parameters())
    held = [p.detach().float() if keep_master else p for p in params]
    opt = torch.optim.AdamW(held)
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        logits = model(x_train.to(dtype)).float()
    F.cross_entropy(logits, y_train).backward()
    for p, h in zip(params, held, strict=True):
        h.grad = p.grad.to(h.dtype)
    opt.step()
    for h in held if keep_master else ():
        h.grad = None                       # a copy for this step alone
    return by_part(params, opt, held if keep_master else [])

# %% trap="09.9" role="break"
def by_part(params, opt, masters):
    """Bytes of each part, divided by the number of weights."""
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

# %% trap="09.9" role="guess"
guess("09.9",
      "How many GB does your layout take in all, for weights, gradients, "
      "masters and moments?",
      choices=["56",
               "84",
               "112",
               "more than 112"])

# %% trap="09.9" role="look"
draw_boxes({layout: {part: 7 * size for part, size in parts.items()}
            for layout, parts in layouts.items()},
           limit=80, limit_name="the card",
           title="The masters take back what 16 bits saved",
           alt="Four stacks of memory for 7 billion weights. float32, "
           "autocast and bfloat16 with masters are 112 GB high, above the "
           "card's 80 GB; all in bfloat16 is 56 GB.")

# %% trap="09.9" role="look"
measured("09.9", 2)

# %% trap="09.9" role="look"
claim("bytes per weight in bfloat16 with masters",
      sum(layouts["with masters"].values()), expected=16)

# %% [markdown] trap="09.9" role="why"
# The usual estimate of `84` GB forgets the masters. With masters, a weight takes 2 + 2 +
# 4 + 8 = 16 bytes, as many as 4 + 4 + 8 in `float32`. Under `autocast`, weights,
# gradients and moments stay in `float32`, so the total does not change. Of the four, only
# the layout with everything in `bfloat16` takes half as much, but rounding loses small
# steps. Mixed precision can halve the activations, but not those of a small batch (*More*
# counts them).

# %% [markdown] trap="09.9" role="repair"
# Split what does not fit. With several GPUs, each GPU can keep only a part of the
# moments and masters, then also of the gradients, then of the weights. DeepSpeed calls
# these steps *ZeRO* stages 1, 2 and 3. FSDP corresponds to ZeRO stage 3, and DDP splits
# nothing. The plot shows how much memory each of eight cards needs, with masters:

# %% trap="09.9" role="repair"
def on_each(weights, gradients, state, gpus=8, billions=7):
    "GB on each GPU; each part that is True is split over all GPUs."
    parts = {"weights": (2, weights), "gradients": (2, gradients),
             "optimizer": (12, state)}
    return {name: billions * size / (gpus if split else 1)
            for name, (size, split) in parts.items()}

split_gb = {"DDP": on_each(False, False, False),
            "ZeRO-1": on_each(False, False, True),
            "ZeRO-2": on_each(False, True, True),
            "ZeRO-3, FSDP": on_each(True, True, True)}

# %% trap="09.9" role="repair"
draw_boxes(split_gb, limit=80, limit_name="the card",
           title="Split over eight cards, the training state fits on each",
           alt="Four stacks, the memory of one of eight cards. DDP holds "
               "all 112 GB, above the card's 80. ZeRO-1 splits masters and "
               "moments: 38.5 GB. ZeRO-2 also splits gradients: 26.2 GB. "
               "ZeRO-3 and FSDP split everything: 14 GB.")

# %% trap="09.9" role="repair"
claim("GB on each of eight GPUs for 7 billion weights, if everything is "
      "split", sum(split_gb["ZeRO-3, FSDP"].values()), expected=14)

# %% [markdown] trap="09.9" role="repair"
# How many 80 GB cards do seventy billion weights need if everything is split, and how
# many if each card keeps all weights? Guess, then use the explorer; the answer is below
# its panels.

# %% role="explore" explorer="train_bytes"
from dlsys_helpers.explorers.train_bytes import train_bytes

train_bytes

# %% [markdown] trap="09.9" role="more" topics="the other layouts · what mixed precision does halve"
# With torch's AdamW, updating the masters needs a copy of the gradients in `float32`. If
# memory is short, copy one tensor at a time. A copy of all gradients at once would take 4
# more bytes per weight.

# %% trap="09.9" role="more"
claim("bytes per weight under autocast", sum(layouts["autocast"].values()),
      expected=16)
claim("bytes per weight with everything in bfloat16",
      sum(layouts["bfloat16"].values()), expected=8)
claim("GB on each of eight GPUs for 7 billion weights, if masters and "
      "moments are split", sum(split_gb["ZeRO-1"].values()), expected=38.5)

# %% [markdown] trap="09.9" role="more"
# Mixed precision can halve the *activations*, which autograd keeps for the backward pass:
# the inputs of matrix products and of other operations that accept 16-bit inputs. On a
# GPU, `autocast` computes softmax and LayerNorm in `float32`; on a CPU, it computes them
# in the format of their input. Activations grow with the batch. The weights' 16-bit
# copies, which `autocast` makes and keeps for the backward pass, do not grow. So with a
# small batch, mixed precision keeps more bytes, not fewer:

# %% trap="09.9" role="more"
blocks = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU())
                         for _ in range(8)])

def activations(rows, cast):
    """MB that autograd keeps for this many rows, weights excluded."""
    x = torch.randn(rows, 256)
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        return saved_bytes(lambda: blocks(x), blocks.parameters()) / 1e6

kept_mb = {rows: (activations(rows, False), activations(rows, True))
           for rows in (64, 2048)}
for rows, (full, mixed) in kept_mb.items():
    print(f"{rows:4} rows: {full:5.2f} MB in float32, {mixed:5.2f} mixed")

# %% trap="09.9" role="more"
claim("64 rows: bytes kept in mixed precision, as a multiple of bytes kept "
      "in float32",
      kept_mb[64][1] / kept_mb[64][0],
      above=1.2)
claim("2,048 rows: bytes kept in mixed precision, as a multiple of bytes "
      "kept in float32",
      kept_mb[2048][1] / kept_mb[2048][0], below=0.6)

# %% trap="09.9" role="exercise" points=2 difficulty=2 minutes=10
def state_bytes(tensors: list, layout: str, gpus: int, shard: str) -> int:
    """Count the bytes of weights, gradients and AdamW state on one GPU.
    Return an int.

    Args:
        layout: "float32" and "autocast": everything in float32; "bfloat16":
            everything in bfloat16; "master": weights and gradients in
            bfloat16, a float32 master of each weight, and float32 moments.
        tensors: a list of (values, trained), unchanged.
        shard: what is split over the GPUs. "none": nothing; "state":
            masters and moments; "gradients": also the gradients; "all":
            also the weights.

    A frozen tensor has only its weight, and no master. Each tensor is split
    by itself: n values into parts of n / gpus, rounded up.

    Example: [(10, True), (4, False)] with "master", 4 GPUs and "state" take
    28 bytes for weights, 20 for gradients and 36 for the rest, 84 together.
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
# 1. Each tensor has three parts: weight, gradient, and what the optimizer keeps (moments, and a master if there is one). A frozen tensor has only the weight.
# 2. In bytes per value, the three parts take 4 + 4 + 8 in float32, 2 + 2 + 4 in bfloat16, and
#    2 + 2 + 12 with masters.
# 3. `-(-n // gpus)` rounds up. The optimizer's state is split first, and the weights are split last.

# %% [markdown] trap="09.9" role="keep"
# **Keep:** AdamW (without amsgrad) takes 16 bytes per weight, whether you train in
# `float32`, under `autocast`, or in `bfloat16` with masters (and `bfloat16` gradients).
# Mixed precision can save activation memory and time. **In your own code:** Before you
# order cards, take one step and sum `nbytes` over weights, gradients and `opt.state`.
# **Source:** [Rajbhandari et al. 2019, "ZeRO: Memory Optimizations Toward Training
# Trillion Parameter Models"](https://arxiv.org/abs/1910.02054), section 3.1: 16 bytes for
# each parameter with mixed precision and Adam.

# %% [markdown] role="concept"
# ## One card
#
# A card has its own memory and works through a queue that Python fills. So three
# questions matter: what fills the card's memory, which tensors move there with the model,
# and when Python has to wait for the card.
#
# ## What fills the card
#
# A run stops with "out of memory", and you have to know what to make smaller. Follow one
# step. The weights are in memory before the step begins. The forward pass adds the
# activations. The backward pass uses up the activations, layer by layer, and leaves a
# gradient for each weight. The optimizer's first step adds the moments, which stay:

# %% role="concept"
tower = nn.Sequential(*[nn.Sequential(
    nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    for _ in range(4)])
few = torch.randn(1024, 256)                        # (N, F)
state = sum(p.nbytes for p in tower.parameters()) / 1e6
kept = saved_bytes(lambda: tower(few), tower.parameters()) / 1e6
card_at = {
    "at first": {"weights": state},
    "after forward": {"weights": state, "activations": kept},
    "after backward": {"weights": state, "gradients": state},
    "after the step": {"weights": state, "gradients": state,
                       "moments": 2 * state},
    "second forward": {"weights": state, "moments": 2 * state,
                       "activations": kept}}

# %% role="concept"
draw_boxes(card_at, unit="MB",
           title="Activations come and go, and the moments stay",
           alt="Five stacks of memory to scale. At first there are only "
               "weights. The forward pass adds large activations on top. "
               "After the backward pass, there are weights and gradients, "
               "and after the step also moments, twice as large as the "
               "weights. The second forward pass is the highest: weights, "
               "moments and activations.")

# %% role="concept"
claim("memory added from the first forward pass to the second, as a "
      "multiple of the weights' size",
      (sum(card_at["second forward"].values())
       - sum(card_at["after forward"].values())) / state, expected=2,
      within=1e-6)

# %% [markdown] role="concept"
# So a run that survives its first step can still run out of memory in the second. On a
# GPU, these calls show how much memory is in use:
#
# - `torch.cuda.memory_allocated()` returns the bytes of all tensors that exist now, and
#   `torch.cuda.max_memory_allocated()` returns the peak so far.
#   `print(torch.cuda.memory_summary())` prints a table of both. Compare the peaks of
#   *Allocated memory* and *GPU reserved memory*. If *cudaMalloc retries* is above zero,
#   the card was full, and torch had to return its free blocks before it could get new
#   ones.
# - `torch.cuda.memory._record_memory_history()` before a few steps and
#   `torch.cuda.memory._dump_snapshot("steps.pickle")` after them write a *snapshot*. Drop
#   the file on [pytorch.org/memory_viz](https://pytorch.org/memory_viz): every tensor
#   appears as a band over time, together with the line of Python that created it.
# - `torch.cuda.memory_reserved()` returns how much of the card's memory torch holds,
#   including free blocks. `torch.cuda.empty_cache()` returns free blocks to other
#   programs, but frees no tensor, so it seldom helps against "out of memory".
#
# You can compute the size of the training state in advance. With Adam, the state takes 16
# bytes per weight, or 8 if everything is in `bfloat16` (trap 09.9). At 16 bytes, it takes
# 112 GB for 7 billion weights, 208 GB for 13 billion and 1,120 GB for 70 billion. For
# inference, the weights in 16 bits are enough: 14, 26 and 140 GB for these models, plus
# the key-value cache (stage 8).
#
# If the activations are too large, make the batch smaller and accumulate gradients, or
# use activation checkpointing. If the training state is too large, split it (trap 09.9)
# or train an adapter (stage 10).

# %% [markdown] role="concept"
# ## Activation checkpointing
#
# *Activation checkpointing* keeps only each block's input and runs the block again in the
# backward pass. You can compute how much memory a step keeps before you run it. Take
# eight blocks, each a Linear and a GELU, and `N` rows of `F` values. Autograd keeps two N
# x F tensors for each block: the input of the Linear and the input of the GELU. With a
# checkpoint, autograd keeps one tensor per block, the block's input.

# %% role="concept"
from torch.utils.checkpoint import checkpoint

x = torch.randn(2048, 256)                        # (N, F)

def kept_bytes(block_by_block):
    """Bytes that autograd keeps for the eight blocks, without weights."""
    return saved_bytes(lambda: block_by_block(x), blocks.parameters())

def checkpointed(h):
    for block in blocks:
        h = checkpoint(block, h, use_reentrant=False)
    return h

plain_bytes, few_bytes = kept_bytes(blocks), kept_bytes(checkpointed)
one_map = 2048 * 256 * 4
print(f"without checkpoints {plain_bytes / one_map:.0f} tensors, "
      f"with checkpoints {few_bytes / one_map:.0f}")

# %% role="concept"
claim("bytes that autograd keeps without checkpointing",
      plain_bytes, expected=16 * one_map)
claim("bytes that autograd keeps with a checkpoint for each block",
      few_bytes, expected=8 * one_map)

# %% [markdown] role="concept"
# With `use_reentrant=False`, checkpointing does not change the gradients of a block that
# computes the same both times. The cost is a second forward pass, in which a BatchNorm
# would update its running statistics a second time:

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
claim("largest difference between gradients with and without checkpointing",
      (first - second).abs().max(), expected=0)
claim("FLOPs of a step with checkpoints, divided by FLOPs of a step "
      "without checkpoints", more / work, above=1.3, below=1.4)

# %% [markdown] role="concept"
# How much memory checkpointing saves depends on how many tensors a block keeps. A
# transformer block, with its wide MLP and its attention, keeps far more than two tensors,
# so any quoted percentage holds for one architecture only. With `L` equal blocks, you
# need not even keep all `L` inputs. Checkpoint every $\sqrt{L}$-th block, and only about
# $2 \sqrt{L}$ tensors are alive at a time ([Chen et al.
# 2016](https://arxiv.org/abs/1604.06174)): 16 instead of 64 for 64 blocks. In plain
# PyTorch, the call is `torch.utils.checkpoint.checkpoint`. In most of Hugging Face's
# models, the method `model.gradient_checkpointing_enable()` (in newer versions,
# `activation_checkpointing_enable()`) puts this call around each block. A module of your
# own has no such method.

# %% [markdown] trap="09.14" role="situation" fault="tensors in plain attributes are not saved or moved" symptom="Expected all tensors to be on the same device, loaded model predicts badly, all keys matched, tensor attribute not moved"
# ## A model that takes its scaling along
#
# The preprocessing belongs in the model (trap 07.4). So your digit classifier keeps the
# mean and the standard deviation of each pixel, learns them from the training data, and
# scales its own input. The classifier gets nearly all new digits right.
#
# You save its `state_dict`, build the classifier again in another program, and load the
# file. `load_state_dict` says `All keys matched successfully`.

# %% trap="09.14" role="break"
class Scaled(nn.Module):
    """A classifier that scales its input, brightness 0 to 16."""

    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(64)
        self.std = torch.ones(64)
        self.net = classifier()

    def forward(self, x):                         # (N, 64)
        return self.net((x - self.mean) / self.std)

# %% trap="09.14" role="break"
def fitted(kind):
    """A classifier of this kind, trained on brightness 0 to 16."""
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
said = loaded.load_state_dict(trained.state_dict())

# %% trap="09.14" role="guess"
guess("09.14",
      "How many of 100 new digits does the loaded classifier get right?",
      choices=["about 96",
               "about 75",
               "about 10"])

# %% trap="09.14" role="look"
share = {name: accuracy(m, 16 * x_test, y_test)
         for name, m in (("trained", trained), ("loaded", loaded))}
print(said)
print({name: f"{s:.2f}" for name, s in share.items()})

# %% trap="09.14" role="look"
measured("09.14", 1)

# %% trap="09.14" role="look"
claim("accuracy after loading, with plain attributes",
      share["loaded"], above=0.63, below=0.88)

# %% [markdown] trap="09.14" role="why"
# A module knows its parameters, buffers and submodules, which it keeps in the
# dictionaries `_parameters`, `_buffers` and `_modules`. A tensor in an ordinary attribute
# is in none of these dictionaries: `state_dict` does not save it, `load_state_dict` does
# not report it as missing, and `.to(...)` does not move it. The loaded classifier scales
# with means of zero and standard deviations of one. Even so, it gets many digits right,
# so nobody suspects the file.

# %% trap="09.14" role="why" tags=["plumbing"]
class Holder(nn.Module):
    """One tensor in each of five places."""

    def __init__(self):
        super().__init__()
        self.parameter = nn.Parameter(torch.ones(2))
        self.register_buffer("buffer", torch.ones(2))
        self.register_buffer("unsaved", torch.ones(2), persistent=False)
        self.attribute, self.listed = torch.ones(2), [torch.ones(2)]

holder = Holder()
held_at = [*holder.state_dict()]                  # names that are saved
holder.to("meta")
places = {"parameter": holder.parameter, "buffer": holder.buffer,
          "persistent=False": holder.unsaved,
          "attribute": holder.attribute, "tensor in list": holder.listed[0]}

# %% trap="09.14" role="why"
facts = [[name in held_at, tensor.is_meta]
         for name, tensor in places.items()]
draw_grids({"": facts}, marks={"": [[not any(row)] * 2 for row in facts]},
           row_names=[*places], column_names=["saved", "moved"],
           legend="silently neither saved nor moved",
           title="Only registered tensors go along with the model",
           alt="A table of places for a tensor, and what happens to the "
               "tensor there. Parameters and buffers are saved and moved. "
               "A buffer with persistent=False is only moved. A plain "
               "attribute and a tensor in a list are neither saved nor "
               "moved.")

# %% [markdown] trap="09.14" role="repair"
# `register_buffer` fixes saving, loading and moving at once. The version without buffers
# raises an error in its first forward pass on another device. You need no GPU to see this
# error. The device `"meta"`, on which tensors have shapes but no values, is enough.

# %% trap="09.14" role="repair"
class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))
        self.register_buffer("std", torch.ones(64))
        self.net = classifier()

    forward = Scaled.forward

def moves(model):
    """The device of a forward pass on "meta", or its error."""
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
heard = {kind.__name__: moves(kind()) for kind in (Scaled, Buffered)}
print(heard)

# %% trap="09.14" role="repair"
claim("with buffers: accuracy before saving minus accuracy after loading",
      mended[0] - mended[1], expected=0)

# %% [markdown] trap="09.14" role="more" topics="a different device, as bounds · buffers that are not saved · a buffer in a list"
# These claims put bounds on the results of the runs above:

# %% trap="09.14" role="more"
claim("accuracy before saving, with plain attributes",
      share["trained"], above=0.92)
claim("the model with plain attributes runs on the meta device",
      heard["Scaled"] == "meta", expected=False)
claim("the model with buffers runs on the meta device",
      heard["Buffered"] == "meta", expected=True)

# %% [markdown] trap="09.14" role="more"
# A buffer that you can compute again, such as a mask, need not be saved:
# `register_buffer(name, tensor, persistent=False)` moves the buffer with the model but
# leaves it out of the file. Do not keep a buffer in a list, because `.to` puts a new
# tensor into the module while the list keeps the old one. By default, `.to` changes a
# parameter's dtype in place, so a list of parameters stays up to date (not on `"meta"`).

# %% trap="09.14" role="more"
lister = Buffered()
lister.listed = [lister.mean, lister.net[0].weight]
lister.to(torch.bfloat16)
followed = {"the buffer": lister.listed[0].dtype == torch.bfloat16,
            "the parameter": lister.listed[1].dtype == torch.bfloat16}
print("moved inside the list:", followed)

# %% trap="09.14" role="more"
claim("a buffer in a list moves with the model",
      followed["the buffer"], expected=False)
claim("a parameter in a list moves with the model",
      followed["the parameter"], expected=True)

# %% trap="09.14" role="exercise" points=3 difficulty=3 minutes=15
def stays_behind(model: nn.Module) -> list[str]:
    """List the tensors that model.to(...) leaves behind, as sorted paths.

    List every tensor, of any type and shape. The tensor has to be reachable
    from a module's own attributes, directly or through lists, tuples and
    dict values. Containers can be nested at any depth. Modules in lists are
    not searched. Skip the model's parameters wherever they are, and buffers
    where they are registered. If a registered buffer is also a second
    attribute, that attribute is listed.

    A path consists of the module's name, the attribute, positions and keys,
    with dots in between. A module that is used twice is listed under its
    first name, and a tensor held twice under both paths. The model is
    unchanged.

    Example: plain tensors self.mean and self.tables = [sin, cos] in a part
    "body" give ["body.mean", "body.tables.0", "body.tables.1"].
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
# 1. `vars(module)` returns the module's own attributes. They include the dictionaries
#    `_parameters`, `_buffers` and `_modules`; the tensors in these dictionaries move.
# 2. Walk through lists, tuples and dicts recursively, and pass the path along.
# 3. A parameter that is also in a list moves, so skip every tensor that is one of `model.parameters()`, by identity. A buffer in a list does not move.

# %% [markdown] trap="09.14" role="keep"
# **Keep:** Make every tensor that belongs to the model a parameter or a buffer. **In your
# own code:** Move a copy to `"meta"` with `copy.deepcopy(model).to("meta")` and run one
# forward pass there. Even without a GPU, this pass finds many of the tensors that stayed
# behind, but not scalar tensors (with no dimensions), indices, or a factor of a matrix
# product. **Seen in the wild:**
# [`meta-pytorch/botorch#1035`](https://github.com/meta-pytorch/botorch/pull/1035): tensor
# attributes of the input transforms were not moved;
# [`OpenNMT/OpenNMT-py#240`](https://github.com/OpenNMT/OpenNMT-py/pull/240): a mask
# becomes a buffer;
# [`pytorch/pytorch#29807`](https://github.com/pytorch/pytorch/issues/29807): a list of
# buffers does not move. **Source:** PyTorch documentation,
# [Module.register_buffer](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer).

# %% [markdown] role="concept"
# ## Profile first: who sets the pace?
#
# On one card, a step is mostly slow for one of four reasons: data arrive late, Python
# fills the queue too slowly, too many bytes move, or there is too much arithmetic. In the
# first two cases, the GPU is idle, and a faster card changes nothing. So measure before
# you change anything, in this order.
#
# 1. **The data.** Train on one batch again and again. If the steps get faster, the data
#    loader is too slow. A `DataLoader`'s `num_workers` sets how many processes load
#    data. Begin with the number of CPU cores per GPU, then halve and double
#    `num_workers` until a step gets no faster: with too few workers, the GPU waits, and
#    too many workers compete for cores and memory. `persistent_workers=True` keeps the
#    workers alive from one epoch to the next. Without this setting, the workers restart
#    in each epoch. A restart can take seconds, which is a lot in a short epoch. And with
#    `pin_memory=True`, `.to(device, non_blocking=True)` returns at once, because
#    *pinned* memory never moves and the GPU can fetch from it without the CPU. Python
#    queues more work while the copy waits its turn. To run during a computation,
#    the copy needs a second stream, as in the GPU section.
# 2. **Python.** Record a *trace*, a list of the operations with their start and end
#    times. A gap in the GPU's row of the trace means that the GPU waits. Another cause of
#    waiting is a loop that creates new tensors on the CPU and copies them to the GPU.
#    Write `torch.arange(n, device=x.device)` instead of `torch.arange(n).to(x.device)`,
#    which makes the values on the CPU, copies them, and holds up Python until the copy is
#    done. A tensor made on the GPU costs little, because torch keeps freed blocks of
#    memory and uses them again. Reuse a tensor only if the profiler shows that making it
#    is slow.
# 3. **Memory or arithmetic.** Look at the operations that take the longest. The profiler
#    lists these operations:

# %% role="concept" compare=false
from torch.profiler import profile, supported_activities

with profile(activities=supported_activities()) as seen:
    for rows in torch.randint(len(x_train), (20, 64)):
        F.cross_entropy(start(x_train[rows]), y_train[rows]).backward()
longest = sorted(seen.key_averages(), key=lambda e: -e.self_cpu_time_total)
for event in longest[:5]:
    print(f"{event.key:28} {event.count:4} calls "
          f"{event.self_cpu_time_total / event.count:6.1f} us each")
start.zero_grad()

# %% [markdown] role="concept"
# Is an operation limited by memory or by arithmetic? Divide the operation's FLOPs by the
# bytes moved. This ratio is the operation's *arithmetic intensity*. A card also has such
# a ratio, the *ridge*: its peak FLOPs per second divided by its bytes per second. Below
# the ridge, an operation waits for memory; above the ridge, it waits for arithmetic. The
# plot shows one card's two limits, a *roofline*, with an addition and three matrix
# products in `bfloat16`:

# %% role="concept"
card = datasheet("NVIDIA A100-SXM4-80GB")
jobs = {"add two tensors": 1 / 6}           # 1 FLOP, 3 values of 2 bytes
for rows in (1, 64, 4096):
    work = 2 * rows * 4096 * 4096
    moved = 2 * (4096 * 4096 + 2 * rows * 4096)
    jobs[f"product of {rows:,} row{'s' * (rows > 1)}"] = work / moved
for name, ratio in jobs.items():
    print(f"{name}: {ratio:.2f} FLOP per byte, "
          f"at most {card.ceiling(ratio):.1f} TFLOP/s")

# %% role="concept"
ax = new_axes("Left of the ridge, memory sets the pace (A100)",
              "FLOP per byte", "TFLOP/s at most", logx=True, logy=True)
line = [0.1, card.ridge, 5000]
ax.plot(line, [card.ceiling(ratio) for ratio in line])
for name, ratio in jobs.items():
    ax.plot([ratio], [card.ceiling(ratio)], "o", color="C1")
    ax.annotate(name, (ratio, card.ceiling(ratio)), xytext=(8, -12),
                textcoords="offset points")
ax.set_xlim(0.05, 1e5)
show(ax.figure, alt="A line that rises with FLOP per byte and becomes flat "
     "at the ridge. Adding tensors, a product of one row and a product of "
     "64 rows are on the slope, and a product of 4,096 rows is on the flat "
     "part.")

# %% role="concept"
claim("FLOP per byte at the ridge of an A100", card.ridge, expected=153,
      within=0.1)
claim("FLOP per byte in a product of 64 rows, as a fraction of the ridge",
      jobs["product of 64 rows"] / card.ridge, below=0.5)
claim("FLOP per byte in a product of 4,096 rows, as a multiple of the "
      "ridge",
      jobs["product of 4,096 rows"] / card.ridge, above=5)

# %% [markdown] role="concept"
# Below the ridge, move fewer bytes: fuse operations with `torch.compile`, use 16 bits, or
# take a larger batch. Above the ridge, do less arithmetic or use a faster format. For
# convolutions of fixed sizes, `torch.backends.cudnn.benchmark = True` tries several
# algorithms at the start and keeps the fastest. If the sizes vary, cuDNN tries the
# algorithms again for every new size, which can cost more than it gains. cuDNN may also
# choose another algorithm in the next run, so leave the flag off if a run has to be
# repeatable (stage 12).

# %% [markdown] trap="09.10" role="situation" fault="each step asks the GPU for numbers and waits" symptom="GPU utilization low, loss.item() every step, hidden cudaStreamSynchronize, implicit bool of a tensor"
# ## Who waits for whom
#
# A GPU works through a queue. Python puts a step's operations into the queue and runs
# ahead until it needs a value from the GPU. Then Python waits until the queue is empty,
# and from then on the GPU has nothing to do until Python has queued new work.
#
# The ordinary training step below skips rows without a label, stops on NaN, counts large
# gradients, and sums the loss for the log.

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
        log["long"] += 1
    opt.step()
    log["loss"] += loss.item()

# %% trap="09.10" role="break" tags=["plumbing"]
from torch.profiler import profile, supported_activities

def trace(call):
    """Events of one call: (name, start, end), times in microseconds."""
    with profile(activities=supported_activities()) as seen:
        call()
    return [(e.name, e.time_range.start, e.time_range.end)
            for e in seen.events()]

model = copy.deepcopy(start)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
log = {"loss": 0.0, "long": 0}

def one():
    step(model, opt, x_train[:64], y_train[:64], log)

one()                                     # a warm-up call
events = trace(one)

# %% trap="09.10" role="guess"
guess("09.10",
      "Suppose `step` runs on a GPU. How many times does Python wait for a "
      "value (a number, a truth value or a size) in one call?",
      unit="times")

# %% trap="09.10" role="look"
asks = ("aten::_local_scalar_dense", "aten::nonzero")
found = [name for name, _, _ in events if name in asks]
print(f"{len(events)} events, of which these ask for a value:")
print(found)

# %% trap="09.10" role="look"
measured("09.10", len(found), right=(5, 5))

# %% trap="09.10" role="look"
claim("number of times that one step asks for a value",
      len(found), expected=5)

# %% [markdown] trap="09.10" role="why"
# Only `item()` is easy to find in the code. Each of the two `if` statements turns a
# tensor into a `bool`. And indexing with `labelled`, as in `x[labelled]`, has to know how
# many rows are left before it can create the result, once for `x` and once for `y`. In
# the trace, this indexing appears as `nonzero`. The trace is from a CPU, where nothing
# waits. On a GPU, the calls are the same, and at each of the five calls, Python waits
# until the queue is empty.

# %% trap="09.10" role="why"
python, gpu, free = [], [], []
for k in range(len(found)):
    python += [(3 * k, 3 * k + 1, "queue"), (3 * k + 1, 3 * k + 3, "wait")]
    gpu.append((3 * k + 1, 3 * k + 3, "run"))
    free.append((2 * k + 1, 2 * k + 3, "run"))
draw_lanes({"Python": python, "GPU": gpu,
            "Python, asks nothing": [(0, len(found), "queue")],
            "its GPU": free}, marks={"wait"},
           unit="time, with a queue as long as half a run",
           title="After each question, the queue is empty and the GPU idle",
           alt="Four lanes of time. In the upper two, Python queues and "
               "waits five times, and the GPU is idle while Python queues. "
               "In the lower two, Python queues everything at once, and "
               "the GPU runs without a pause and ends earlier.")

# %% [markdown] trap="09.10" role="repair"
# Most of the requested values are not needed right away. Put the mask into the labels: a
# label of -100 leaves its row out of the loss. Keep the sums as tensors, and let the log
# and the checks read them once every fifty steps. The price is that you notice a NaN up
# to fifty steps late, when the weights are already NaN, so keep a checkpoint.

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
claim("number of times that fifty quiet steps ask for a single value",
      len(quiet), expected=0)

# %% [markdown] trap="09.10" role="more" topics="an event inside another · copies wait, too"
# In a trace, an operation's event encloses the events of the operations that it calls.
# The event of `item()`, for example, encloses the copy of one value.

# %% trap="09.10" role="more"
last = [e for e in events if e[0] in asks][-1]
around = [name for name, start, end in events if start <= last[1]
          and last[2] <= end and name.startswith("aten::")]
print("events around the last one, including itself:", around)

# %% trap="09.10" role="more"
claim("number of times that fifty ordinary steps ask for a value",
      50 * len(found), expected=250)

# %% [markdown] trap="09.10" role="more"
# In the quiet steps, `tolist()` fetches both values with one copy. Python waits for this
# copy and for nothing else in fifty steps. Copying data to a GPU may also make Python wait, and this wait
# appears in the trace as `cudaStreamSynchronize`. A copy from pinned memory with
# `non_blocking=True` does not have to wait. The GPU section at the end counts such waits
# and times copies from both kinds of memory.

# %% trap="09.10" role="exercise" points=3 difficulty=2 minutes=15
def find_waits(events: list) -> list[str]:
    """Name the operations in which a step waits, in order of their start.

    aten::_local_scalar_dense, aten::nonzero and cudaStreamSynchronize wait.
    For each of them, name the outermost aten:: event around it, or the wait
    itself if there is none. An event with several waits inside is named
    once.

    Args:
        events: a list of (name, start, end) of one thread, in any order.
            The list is unchanged. Of two events that overlap, one is inside
            the other: it starts no earlier and ends no later.

    Example: [("aten::item", 0, 9), ("aten::_local_scalar_dense", 1, 8),
    ("aten::mm", 10, 12)] give ["aten::item"].
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
# 1. For each event that waits, collect the `aten::` events around it. Include the event itself.
# 2. The outermost event is the longest of these events.
# 3. A set of events (not of names) holds each operation once and keeps two `item()` calls
#    apart.

# %% [markdown] trap="09.10" role="keep"
# **Keep:** Every request for a value from the GPU makes Python wait for the queue to
# drain: `item()`, `tolist()`, `print`, `if` on a tensor, `x[mask]` with a boolean mask.
# Keep sums on the device and read them now and then. **In your own code:** Look for
# `aten::item`, `aten::is_nonzero`, `aten::nonzero` and copies to the CPU (such as
# `tolist()`) in a trace of one step; on a GPU, `torch.cuda.set_sync_debug_mode("warn")`
# reports the lines. **Seen in the wild:**
# [`meta-pytorch/torchtune#522`](https://github.com/meta-pytorch/torchtune/pull/522):
# `loss.item()` in each step waited `40` to `50` ms and is now called only when the loss is
# logged;
# [`openvdb/fvdb-reality-capture#308`](https://github.com/openvdb/fvdb-reality-capture/pull/308):
# a debug message that contains `{loss.item()}` waits even if nothing is logged. **Source:**
# PyTorch documentation, [CUDA semantics, "Asynchronous
# execution"](https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution).

# %% [markdown] role="concept"
# ## torch.compile: a graph and its guards
#
# `torch.compile` traces your Python code once, records its tensor operations as a
# *graph*, and compiles the graph into fewer, larger kernels. `torch.compile` also adds
# *guards*: conditions, for example on shapes and dtypes, under which the graph is valid.
# If a guard fails, torch compiles again. Where Python needs a value, as in an `if`, the
# graph *breaks* in two by default, and Python runs in between. You can count compilations
# and breaks without a compiler: the backend `CompileCounter` counts the graphs and runs
# each one as it is.

# %% role="concept"
from torch._dynamo.testing import CompileCounter

def compiled(function, calls, **options):
    """Count the graphs that torch makes of a function in these calls."""
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
claim("number of graphs compiled for five calls with one shape",
      graphs["one shape"], expected=1)
claim("number of graphs compiled for five sizes, with dynamic=False",
      graphs["each size"], expected=5)
claim("number of graphs compiled for five sizes, by default",
      graphs["five sizes"], expected=2)

# %% role="concept"
claim("number of graphs compiled for one call, with an if on a tensor's "
      "value",
      graphs["an if on a number"], expected=2)

# %% [markdown] role="concept"
# At the second size, the compiler learns that this dimension varies, and its second graph
# works for all other sizes from two up. With `dynamic=False`, each size costs a
# compilation, up to a limit (`torch._dynamo.config.recompile_limit`). Beyond the limit,
# new sizes run as plain Python. The `if` in `stops` asks the GPU for a value, as in trap
# 09.10. By default, such an `if` cuts the graph in two; with `fullgraph=True`,
# `torch.compile` raises an error that points to the line.
#
# The *mode* says how the compiler spends its time. `mode="reduce-overhead"` records the
# kernels once and replays them as a CUDA graph, which helps small batches, where Python
# is the bottleneck. `mode="max-autotune"` tries several kernels for each matrix product,
# which can take minutes. Compiled code may round differently, because a fused kernel
# keeps intermediate values in `float32`, whereas plain code writes them out in 16 bits. So
# compare compiled code with plain code up to a tolerance, never bit for bit.

# %% [markdown] role="concept"
# ## Several ranks: processes and their tape
#
# Data-parallel training starts the same program once for each GPU. Each running copy is a
# *rank*, counted from 0; all ranks together are the *world*. Ranks share no memory. They
# communicate through *collectives*: calls that all ranks of a group have to make in the
# same order and, in this stage, with tensors of the same size. `all_reduce`, for example,
# replaces each rank's tensor by the sum over all ranks.
#
# Two processes on your machine stand in for two GPUs. `ranks.run` sends a function's
# source code to both processes and returns a list of the return values, rank 0 first. A
# rank has already imported `torch`, `nn`, `F`, `dist`, `DDP`, `fully_shard` and
# `contextlib`; pass your own functions with `uses=(...)`. Each rank keeps a *tape*, a
# list of its collectives: before each collective, the rank notes the collective's name
# and the tensor's size in bytes.

# %% role="concept"
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from dlsys_helpers.ranks import RankFailed, Ranks, digest, watch

ranks = Ranks(2)

def sum_of_ranks():
    """Three numbers of each rank, summed over the ranks in place."""
    x = torch.full((3,), 1.0 + dist.get_rank())
    dist.all_reduce(x)
    return x.tolist()

sums = ranks.run(sum_of_ranks)
print("returned:", sums)
print("tapes:   ", ranks.tapes)

# %% role="concept"
claim("number of ranks that hold the sum",
      sums.count([3.0, 3.0, 3.0]), expected=2)
claim("both tapes hold the same lines", ranks.tapes[0] == ranks.tapes[1],
      expected=True)

# %% role="concept" tags=["plumbing"]
def mlp(seed):
    """The classifier that the ranks train: 64 pixels, 32 units, 10."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

def descend(net, optimizer, x, y):
    """One step on these digits; returns the loss before it."""
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()

def flat(tensors):
    """All values of the tensors in one vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])

# %% role="concept" tags=["plumbing"]
def reads(weights):
    """The classes (497,) that a classifier with these weights predicts.

    These classes show whether two ranks still classify digits alike.
    """
    net = mlp(0)
    nn.utils.vector_to_parameters(weights, net.parameters())
    return net(x_test).argmax(1)

def calls(name, rank=0):
    """How often a collective is on the last tape of a rank."""
    return sum(line[0] == name for line in ranks.tapes[rank])

def gap(a, b):
    """The distance between two vectors, |a - b|, divided by |b|."""
    return ((a - b).norm() / b.norm()).item()

# %% role="concept" tags=["plumbing"]
# Places for the checkpoints of trap 09.7.
disk = tempfile.TemporaryDirectory()
folder, one_file = (str(Path(disk.name) / name)
                    for name in ("step60", "rank0"))
# One process loads what two have saved, and DCP would warn about that.
warnings.filterwarnings("ignore", "torch.distributed is disabled")

# %% [markdown] role="concept"
# ## What data parallelism adds up
#
# With two GPUs, you want to train on twice as many rows in the same time. Every rank
# holds the whole model and takes different rows. A rank's gradient is then the mean over
# the rank's own rows only. How do the ranks get the gradient of *all* rows?

# %% role="concept"
def its_gradient(x, y):
    net = mlp(SEED)                             # the same on each rank
    F.cross_entropy(net(x), y).backward()
    return flat(p.grad for p in net.parameters())

of_all = its_gradient(x_train[:64], y_train[:64])
of_rank = [its_gradient(x_train[r:64:2], y_train[r:64:2]) for r in (0, 1)]
added = (of_rank[0] + of_rank[1]) / 2
print(f"rank 0's own gradient is {gap(of_rank[0], of_all):.0%} off, "
      f"the mean of both {gap(added, of_all):.0%}")

# %% role="concept"
claim("relative error of rank 0's own gradient",
      gap(of_rank[0], of_all), above=0.1)
claim("relative error of the mean of both ranks' gradients",
      gap(added, of_all), below=1e-5)

# %% role="concept"
draw_ranks({"after backward": [["g0"], ["g1"]],
            "all_reduce": [["g0 + g1"], ["g0 + g1"]],
            "divided by 2": [["mean"], ["mean"]]},
           title="Every rank ends with the mean of all gradients",
           alt="Three tables of two ranks. After backward, rank 0 holds g0 "
           "and rank 1 g1. After all_reduce, both hold the sum, and after "
           "the division by two, both hold the mean.")

# %% [markdown] role="concept"
# If each rank has the same number of rows, the mean of the ranks' means is the mean over
# all rows. So one `all_reduce` and a division are enough. Every rank then takes the same
# step from the same weights, so the models stay equal although no step sends a weight.
# `DistributedDataParallel`, *DDP* for short, averages the gradients during the backward
# pass. The gradients of the last layers are ready first. So DDP packs gradients into
# *buckets* and sends each bucket while the backward pass continues:

# %% role="concept"
draw_lanes({"backward": [(0, 2, "layer 4"), (2, 4, "layer 3"),
                         (4, 6, "layer 2"), (6, 8, "layer 1")],
            "network": [(4, 6.5, "bucket 1"), (8, 10.5, "bucket 2")]},
           unit="time, schematic",
           title="The first bucket travels while backward continues",
           alt="Two lanes of time. Backward works on layers 4, 3, 2 and 1. "
               "The network sends bucket 1 after layer 3, while backward "
               "works on layer 2, and it sends bucket 2 after layer 1.")

# %% [markdown] role="concept"
# **The effective batch** is the number of rows whose losses one update averages: rows per
# pass x accumulated passes x ranks. With 8 rows, 4 passes and 16 ranks, the effective
# batch is 512. Adding ranks changes the effective batch, and with it the number of steps
# in an epoch and the best learning rate. For SGD, the learning rate usually grows with
# the batch, after a warm-up ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)); for
# Adam, start by scaling the learning rate with the square root of the batch size. To
# compare two runs, keep the effective batch the same.

# %% [markdown] trap="09.11" role="situation" core=true fault="the forward pass goes past the DDP wrapper" symptom="DDP: ranks hold different weights, gradients are not synchronized, no error"
# ## A name for what is inside the wrapper
#
# `DDP(model)` copies rank 0's weights to all ranks and promises to average the gradients
# during `backward`. You want to call methods that the wrapper lacks. So you write `net =
# ddp.module` at the top of the script and use `net` from then on. `net` is the model
# inside the wrapper, so `loss.backward()` still fills the `.grad` of the parameters that
# the optimizer updates.
#
# Both ranks train a digit classifier for 100 steps, each on its own digits.

# %% trap="09.11" role="break"
def train_rank(wrapped, x, y, seed, steps=100):
    """Weights and last loss of a rank that trains on every other digit.

    The first `wrapped` steps call ddp, all later ones ddp.module.
    """
    rank, ddp = dist.get_rank(), DDP(mlp(seed))
    watch(ddp)         # the tape also notes a digest of the parameters
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    x, y = x[rank::2], y[rank::2]
    torch.manual_seed(10 * seed + rank)
    for step in range(steps):
        net = ddp if step < wrapped else ddp.module
        rows = torch.randint(len(x), (32,))
        loss = descend(net, optimizer, x[rows], y[rows])
    return flat(ddp.parameters()), loss

# %% trap="09.11" role="break"
def both_ranks(wrapped):
    """Weights of the two ranks, and their last losses."""
    found = ranks.run(train_rank, wrapped, x_train, y_train, SEED,
                      uses=(mlp, flat, descend))
    return list(zip(*found, strict=True))

past, past_losses = both_ranks(wrapped=0)

# %% trap="09.11" role="guess"
guess("09.11",
      "How far apart are the two ranks' weight vectors at the end, as a "
      "percentage of their norm?",
      choices=["0 %",
               "about 5 %",
               "about 50 %",
               "about 100 %"])

# %% trap="09.11" role="look"
apart = (reads(past[0]) != reads(past[1])).sum().item()
right = [(reads(w) == y_test).float().mean().item() for w in past]
print("last losses:", *(f"{loss:.2f}" for loss in past_losses))
print("accuracy:", *(f"{share:.2f}" for share in right))
print(f"gap between the ranks' weights: {gap(*past):.2f}")
print(f"test digits that the ranks classify differently: {apart}")
past_calls = calls("all_reduce")
print("all_reduce on the tape:", past_calls)

# %% trap="09.11" role="look"
measured("09.11", 2)

# %% trap="09.11" role="look"
claim("relative gap between the weights of the two ranks",
      gap(*past), above=0.28, below=0.72)

# %% [markdown] trap="09.11" role="why"
# Both losses fall, and both ranks classify well, but each has its own model.
# `DDP(model)` puts a hook on each parameter. By themselves, the hooks send nothing. Each
# call to `ddp(x)`, with gradients on, *prepares the reducer* for one backward pass. After
# such a call, DDP sends each bucket in one `all_reduce` as soon as all of the bucket's
# gradients are ready; without the call, it sends nothing. A forward pass through
# `ddp.module` prepares nothing, so the gradients of the backward pass stay on the rank.

# %% trap="09.11" role="why"
draw_blocks({"ddp(x)": ["ddp.forward prepares the reducer", "model.forward",
                        "loss.backward()", "hooks fill the buckets",
                        "all_reduce", "the mean of all ranks"],
             "ddp.module(x)": ["nothing is prepared", "model.forward",
                               "loss.backward()", "hooks return",
                               "no call", "the rank's own gradient"]},
            marks={"ddp.module(x)": {"nothing is prepared"}},
            title="The wrapper's forward pass prepares backward's exchange",
            alt="Two columns of blocks. Through ddp(x), the wrapper "
            "prepares the reducer, hooks fill buckets in backward and "
            "all_reduce makes the mean. Through ddp.module(x), nothing is "
            "prepared, no call is made, and the gradient stays the rank's "
            "own.")

# %% [markdown] trap="09.11" role="repair"
# Usually, only rank 0's model is saved, so half of the data and half of the GPUs' work
# are wasted. Send every forward pass that leads to the loss through the wrapper. If the
# loss needs another method, let the model's `forward` call it.

# %% trap="09.11" role="repair" compare=false
through, _ = both_ranks(wrapped=100)
differ = (reads(through[0]) != reads(through[1])).sum().item()
print(f"gap {gap(*through):.2f}, digits classified differently: {differ}")
print("all_reduce on the tape:", calls("all_reduce"),
      "of", ranks.tapes[0][-1][1], "bytes each")
print("last lines:", ranks.tapes[0][-1], ranks.tapes[1][-1])

# %% trap="09.11" role="repair"
claim("relative gap between the ranks' weights, with every step through "
      "the wrapper", gap(*through), expected=0)

# %% [markdown] trap="09.11" role="repair"
# The last part of each line on the tape is the digest that `watch` requested: eight
# characters from all bits of the parameters.
#
# The explorer shows the tapes of one update, for this repair and for other strategies.
# Before you move a control, say how many calls each rank will make and where the curves
# will separate.

# %% role="explore" explorer="tape"
from dlsys_helpers.explorers.tape import tape

tape

# %% [markdown] trap="09.11" role="more" topics="both runs, as bounds · ranks with unequal rows · one step to warm up"
# These claims put bounds on the results of both runs:

# %% trap="09.11" role="more"
claim("number of all_reduce calls in 100 steps through the wrapper",
      calls("all_reduce"), expected=100)
claim("number of lines, digests included, in which the two tapes differ",
      sum(a != b for a, b in zip(*ranks.tapes, strict=True)), expected=0)
claim("number of test digits on which the ranks disagree", apart, above=10)
claim("larger of the two ranks' last losses",
      max(past_losses), below=1)
claim("accuracy of the worse rank on the test digits", min(right),
      above=0.85)
claim("number of all_reduce calls in 100 steps that bypass the wrapper",
      past_calls, expected=0)

# %% [markdown] trap="09.11" role="more"
# DDP divides the sum of the ranks' gradients by the number of ranks. The result is the
# mean over all rows only if each rank has the same number of rows. Here, rank 0 has three
# rows and rank 1 has one row:

# %% trap="09.11" role="more"
def uneven(x, y, seed):
    """Gradients of three rows and one: by DDP, and by sums over ranks."""
    net, rank = mlp(seed), dist.get_rank()
    mine = slice(0, 3) if rank == 0 else slice(3, 4)
    F.cross_entropy(DDP(net)(x[mine]), y[mine]).backward()
    total = F.cross_entropy(net(x[mine]), y[mine], reduction="sum")
    sums = flat(torch.autograd.grad(total, list(net.parameters())))
    rows = torch.tensor(float(len(y[mine])))
    for tensor in (sums, rows):
        dist.all_reduce(tensor)
    return flat(p.grad for p in net.parameters()), sums / rows

# %% trap="09.11" role="more"
four = mlp(SEED)
F.cross_entropy(four(x_train[:4]), y_train[:4]).backward()
of_four = flat(p.grad for p in four.parameters())
by_ddp, by_sums = ranks.run(uneven, x_train, y_train, SEED,
                            uses=(mlp, flat))[0]
print(f"by DDP {gap(by_ddp, of_four):.0%} off, by sums "
      f"{gap(by_sums, of_four):.0e} off")

# %% trap="09.11" role="more"
claim("three rows on one rank, one row on the other: relative error of "
      "DDP's gradient", gap(by_ddp, of_four), above=0.1)
claim("three rows on one rank, one row on the other: relative error with "
      "sums over the ranks", gap(by_sums, of_four), below=1e-5)

# %% [markdown] trap="09.11" role="more"
# A rank without rows, or without a gradient for some parameter (`allow_unused=True`
# returns None for such a parameter, trap 09.3), still has to make the same `all_reduce`
# calls, with zeros.

# %% [markdown] trap="09.11" role="more"
# Without dropout and BatchNorm, two ranks with half of the rows each must compute the
# same result as one process with all rows, up to rounding. The command `dlsys same` runs
# both versions and reports the first tensor that differs. Here, the forward pass of a
# training script bypasses the wrapper:
#
# ```sh
# dlsys same "train.py" "torchrun --nproc-per-node 2 train.py --unwrapped"
# ```
#
# ```text
# First difference: step 1, gradient, 0.weight, by 0.66 of the norm.
# The losses agree, so look at what comes between backward and step: gradients that are not reduced, not cleared, or clipped differently.
# ```

# %% [markdown] trap="09.11" role="folklore"
# **Told:** DDP puts its hooks on the parameters when you make the wrapper, so one warm-up
# pass through the wrapper is enough. **Measured:** If only the first of the 100 steps
# goes through the wrapper, the tape holds one `all_reduce`, and the ranks end nearly as
# far apart as without any such step. Each step has to prepare its own backward pass.

# %% trap="09.11" role="folklore"
warm, _ = both_ranks(wrapped=1)
print(f"first step wrapped: gap {gap(*warm):.2f}, all_reduce calls:",
      calls("all_reduce"))

# %% trap="09.11" role="folklore"
claim("relative gap between the ranks' weights, with only the first step "
      "through the wrapper", gap(*warm), above=0.2)
claim("number of all_reduce calls in 100 steps, with only the first step "
      "through the wrapper", calls("all_reduce"), expected=1)

# %% trap="09.11" role="exercise" points=4 difficulty=3 minutes=20
def average_grads(losses_of, params: list, batch, all_sum) -> float:
    """Return the mean loss of all ranks' examples. Put the gradients of
    this mean in .grad.

    Args:
        losses_of(batch): the losses (n,) of this rank's n examples, with a
            graph; n >= 0 can differ between ranks, and at least one rank
            has examples.
        params: the parameters; a parameter that no loss depends on gets
            zeros.
        all_sum(tensor): returns the sum over ranks, a new tensor. All ranks
            must call it the same number of times, in the same order, with
            the same shapes and dtypes.

    Ignore old gradients in .grad. The values of the parameters do not
    change.

    Example: losses (1., 3.) on one rank and (8.,) on the other give 4.0 on
    both.
    """
    # BEGIN SOLUTION
    losses = losses_of(batch)
    total, rows = losses.sum(), all_sum(torch.tensor(len(losses)))
    grads = torch.autograd.grad(total, params, allow_unused=True)
    for p, g in zip(params, grads):
        mine = torch.zeros_like(p) if g is None else g
        p.grad = all_sum(mine) / rows
    return (all_sum(total.detach()) / rows).item()
    # END SOLUTION

# %% [markdown] trap="09.11" role="hint"
# 1. Do not average on a rank. Take the sum of its losses and the number of its examples, and sum both over the ranks. The quotient of the two sums is the mean.
# 2. A rank without examples, or without a gradient for some parameter, must not skip a call. Such a rank takes part in the same sums, with zeros.
# 3. `torch.autograd.grad(total, params, allow_unused=True)` returns None for a parameter that the loss does not use, and does not touch `.grad`.

# %% [markdown] trap="09.11" role="keep"
# **Keep:** Send every forward pass that leads to `backward` through the DDP wrapper. Use
# `ddp.module` to save or read weights, and to evaluate on one rank. **In your own code:**
# Compare a digest of the parameters between ranks every few hundred steps, and search for
# `.module` in the code that computes a loss. **Source:** [DistributedDataParallel,
# "Implementation"](https://docs.pytorch.org/docs/stable/notes/ddp.html): the forward pass
# prepares the reducer. **Seen in the wild:** [minimind
# #853](https://github.com/jingyaogong/minimind/issues/853): three trainers unwrapped the
# policy before they computed the loss; [sd-scripts
# #604](https://github.com/kohya-ss/sd-scripts/pull/604) warns that "everything may look
# okay"; [openvla-oft #160](https://github.com/moojink/openvla-oft/issues/160): the loss
# called a method of `.module`.

# %% [markdown] trap="09.3" role="situation" fault="find_unused_parameters=True where every parameter is used" symptom="Expected to have finished reduction in the prior iteration, find_unused_parameters=True is slow"
# ## A flag against an error
#
# A net has one body and two heads. In an early version of the training script, each batch
# used one head, and DDP stopped with a long error that named
# `find_unused_parameters=True`. A teammate set the flag, the error went away, and the
# flag has been in every script since. Today, each batch uses both heads.

# %% trap="09.3" role="break"
def two_heads(seed):
    class TwoHeads(nn.Module):
        """One body; forward adds up the heads that it is told to use."""

        def __init__(self):
            super().__init__()
            self.body = nn.Linear(64, 32)
            self.a, self.b = nn.Linear(32, 10), nn.Linear(32, 10)

        def forward(self, x, heads):
            h = self.body(x).relu()
            return sum(getattr(self, name)(h) for name in heads)
    torch.manual_seed(seed)
    return TwoHeads()

# %% trap="09.3" role="break"
def three_steps(search, heads, x, y, seed):
    """Take three steps; return the error that stops them, if any."""
    rank, net = dist.get_rank(), two_heads(seed)
    ddp = DDP(net, find_unused_parameters=search)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = x[rank:64:2], y[rank:64:2]
    for step in range(3):
        try:
            loss = F.cross_entropy(ddp(x, heads[step % len(heads)]), y)
        except RuntimeError as error:
            return f"step {step + 1}: {error}"
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return ""

# %% trap="09.3" role="break"
def reduced(search, heads):
    """The ranks' errors, and the bytes of each all_reduce in 3 steps."""
    said = ranks.run(three_steps, search, heads, x_train, y_train, SEED,
                     uses=(two_heads,))
    return said, [line[1] for line in ranks.tapes[0]
                  if line[0] == "all_reduce"]

_, flagged = reduced(search=True, heads=["ab"])

# %% trap="09.3" role="guess"
guess("09.3",
      "How many `all_reduce` calls does one training step make with the "
      "flag?", unit="calls")

# %% trap="09.3" role="look"
print("bytes of the all_reduce calls in three steps:", flagged)
parameters = list(two_heads(SEED).parameters())
print("bytes of the gradients:", sum(p.nbytes for p in parameters),
      "  parameter tensors:", len(parameters))

# %% trap="09.3" role="look"
measured("09.3", len(flagged) / 3, right=(2, 2))

# %% trap="09.3" role="look"
claim("number of all_reduce calls per step, with both heads and the flag",
      len(flagged) / 3, expected=2)

# %% [markdown] trap="09.3" role="why"
# All gradients of this net fit into one bucket, which DDP sends in one call. With the
# flag, DDP walks through the graph of each forward pass and finds the parameters that
# backward will not reach, so that no bucket waits for them. In a second call, the ranks
# tell each other which parameters they used, with one value per parameter tensor. That
# call is small, but it waits for all ranks.

# %% trap="09.3" role="why"
draw_lanes({"with the flag": [(0, 3, "forward"), (3, 4.2, "walk"),
                              (4.2, 8.2, "backward"), (8.2, 10.4, "send"),
                              (10.4, 12.2, "used?")],
            "without": [(0, 3, "forward"), (3, 7, "backward"),
                        (7, 9.2, "send")]},
           marks={"walk", "used?"}, unit="time, schematic",
           title="The flag adds a walk and a call to every step",
           alt="Two lanes. With the flag, a step consists of forward, "
               "walk, backward, send and used?; without it, of forward, "
               "backward and send. Walk and used? are marked.")

# %% [markdown] trap="09.3" role="repair"
# Every step pays for the walk and the second call (unless you set `static_graph=True`),
# even if all parameters are used. Compare the calls without the flag:

# %% trap="09.3" role="repair"
_, unflagged = reduced(search=False, heads=["ab"])
stopped, none_sent = reduced(search=False, heads=["a"])
_, searched = reduced(search=True, heads=["a"])
print("both heads, no flag:  ", unflagged)
print("head a alone, flag:   ", searched)
print("head a alone, no flag:", none_sent, stopped[0][:48], "...")

# %% trap="09.3" role="repair"
claim("number of all_reduce calls per step, with both heads and without "
      "the flag",
      len(unflagged) / 3, expected=1)

# %% [markdown] trap="09.3" role="repair"
# So the flag is for nets in which a step may leave a parameter without a gradient. A dry
# run in one process can find such parameters before you wrap anything.
# `torch.autograd.grad` with `allow_unused=True` returns None for an unused parameter:

# %% trap="09.3" role="repair"
dry, some = two_heads(SEED), slice(0, 8)
loss = F.cross_entropy(dry(x_train[some], "a"), y_train[some])
grads = torch.autograd.grad(loss, list(dry.parameters()), allow_unused=True)
print("unused:", [name for (name, _), grad in
                  zip(dry.named_parameters(), grads, strict=True)
                  if grad is None])

# %% trap="09.3" role="repair"
claim("number of parameter tensors that a step with head a alone leaves "
      "unused",
      sum(grad is None for grad in grads), expected=2)

# %% [markdown] trap="09.3" role="more" topics="what the second call sends · all ranks leave out the same parameter · only one rank leaves out a parameter: a hang"
# These claims describe the second call, and the error that a run without the flag raises:

# %% trap="09.3" role="more"
claim("number of bytes in the second call, per parameter tensor",
      flagged[1] / len(parameters), expected=4)
claim("number of ranks whose error names the flag, with one head and "
      "without the flag",
      sum("find_unused_parameters=True" in text for text in stopped),
      expected=2)

# %% [markdown] trap="09.3" role="folklore"
# **Told:** With an unused parameter, DDP hangs. **Measured:** If both ranks leave out the
# same parameter, DDP raises an error on both in the second forward pass, whether you use
# head a, head b, or the two heads in turn. The first step is worse than an error: DDP
# waits for the missing gradients. The gradients of this net form one bucket, so nothing
# is exchanged, and each rank makes its own update.

# %% trap="09.3" role="folklore"
ways = [reduced(search=False, heads=heads)
        for heads in (["a"], ["b"], ["a", "b"])]
second = [text.startswith("step 2") for texts, _ in ways for text in texts]
print("stopped in step 2:", second)

# %% trap="09.3" role="folklore"
claim("number of ranks that stop in step 2, in three runs of two ranks",
      sum(second), expected=6)
claim("number of all_reduce calls before the errors, in all three runs",
      sum(len(calls) for _, calls in ways), expected=0)

# %% [markdown] trap="09.3" role="folklore"
# If only one rank leaves out a parameter, DDP does hang. Here, rank 0 uses both
# heads, and rank 1 only head a. Rank 0 sends its gradients and waits, while rank 1
# continues to the `barrier` at the end of the epoch. Neither rank raises an error until
# the process group's timeout expires, after half an hour with gloo or ten minutes with
# NCCL unless you set a different time. An `all_reduce` under `if rank == 0:`, for example
# when only one rank evaluates, can hang in the same way. If the run has a time limit, the
# last lines of the two tapes name the two calls that do not match.

# %% trap="09.3" role="folklore"
def one_without_b(x, y, seed):
    """Rank 0 uses both heads, rank 1 only head a; then both should meet."""
    ddp, heads = DDP(two_heads(seed)), ["ab", "a"][dist.get_rank()]
    F.cross_entropy(ddp(x[:8], heads), y[:8]).backward()
    dist.barrier()

ranks.seconds = 5
try:
    ranks.run(one_without_b, x_train, y_train, SEED, uses=(two_heads,))
except RankFailed as failure:
    waiting = str(failure)
ranks.seconds = 60
print(waiting)

# %% trap="09.3" role="folklore"
draw_lanes({"rank 0": [(0, 2, "forward"), (2, 4, "backward"),
                       (4, 9, "all_reduce …")],
            "rank 1": [(0, 2, "forward"), (2, 4, "backward"),
                       (4, 9, "barrier …")]},
           moments={"both wait, for different calls": 4},
           unit="time, schematic", marks={"all_reduce …", "barrier …"},
           title="A deadlock: each rank waits for a call that the other "
                 "does not make",
           alt="Two lanes, one per rank. Both end their backward pass at "
               "the same time. Then rank 0 waits in an all_reduce and rank "
               "1 in a barrier, and neither goes on.")

# %% trap="09.3" role="folklore"
claim("one rank waits in an all_reduce and the other in a barrier",
      "all_reduce" in waiting and "barrier" in waiting, expected=True)
claim("number of processes still running after the timeout",
      len(ranks.processes), expected=0)

# %% trap="09.3" role="exercise" points=4 difficulty=3 minutes=20
def unused_names(model: nn.Module, batches: list, loss_of) -> list[str]:
    """Return the sorted names of the parameters that some batch leaves
    unused.

    A batch leaves a parameter unused if loss_of(model, batch) has no
    gradient with respect to it; a gradient of zeros counts as a gradient.
    There may be any number of batches; if there are none, the list is
    empty. A loss may depend on no parameter at all.

    Frozen parameters are never listed. A parameter with two names is listed
    under the name that named_parameters() returns. Run each module in its
    current mode. The model's values, buffers, gradients and modes do not
    change, and neither does torch's global generator.

    Example: with heads a and b, if a batch uses only a, the two names of b
    are listed.
    """
    # BEGIN SOLUTION
    live = {n: p for n, p in model.named_parameters() if p.requires_grad}
    buffers = [b.clone() for b in model.buffers()]
    unused = set()
    with torch.random.fork_rng(devices=[]):
        for batch in batches:
            loss, grads = loss_of(model, batch), [None] * len(live)
            if loss.requires_grad:
                grads = torch.autograd.grad(loss, list(live.values()),
                                            allow_unused=True)
            unused |= {n for n, g in zip(live, grads) if g is None}
    with torch.no_grad():
        for buffer, old in zip(model.buffers(), buffers):
            buffer.copy_(old)
    return sorted(unused)
    # END SOLUTION

# %% [markdown] trap="09.3" role="hint"
# 1. `torch.autograd.grad(loss, tensors, allow_unused=True)` gives None for a tensor that the loss does not depend on, and does not change `.grad`.
# 2. A loss whose `requires_grad` is False depends on no parameter.
# 3. In train mode, a forward pass updates the buffers of a BatchNorm, and dropout draws from the global generator. Save and restore copies, and use `torch.random.fork_rng(devices=[])`.

# %% [markdown] trap="09.3" role="keep"
# **Keep:** Set `find_unused_parameters=True` only if a step can leave a parameter without
# a gradient, because the flag costs time in every step. **In your own code:** For each
# kind of batch, run one backward pass without the wrapper and list the trainable
# parameters whose `.grad` is None. **Source:**
# [DistributedDataParallel](https://docs.pytorch.org/docs/stable/notes/ddp.html),
# "Internal Design", on unused parameters.

# %% [markdown] trap="09.6" role="situation" fault="no_sync holds backward but not the forward pass" symptom="DDP gradient accumulation sends gradients at every micro-batch, no_sync has no effect"
# ## Four small batches, one update
#
# A batch does not fit in memory, so you add up the gradients of four small batches before
# each update. Each of the two ranks has four batches of 8 digits, so one update uses 64
# digits. Under DDP, the ranks exchange gradients in `backward`, and `ddp.no_sync()`
# switches the exchange off. So you put `with ddp.no_sync():` around the first three calls
# to `backward` and leave the fourth call as it is.

# %% trap="09.6" role="break"
def in_pieces(x, y, seed):
    """The gradient of a rank after four batches of 8 digits."""
    ddp, rank = DDP(mlp(seed)), dist.get_rank()
    x, y = x[rank:64:2].split(8), y[rank:64:2].split(8)
    for k in range(4):
        loss = F.cross_entropy(ddp(x[k]), y[k]) / 4
        with ddp.no_sync() if k < 3 else contextlib.nullcontext():
            loss.backward()
    return flat(p.grad for p in ddp.parameters())

# %% trap="09.6" role="break"
def tape_of_four(accumulated):
    """Gradients of both ranks, and the bytes of each all_reduce."""
    found = ranks.run(accumulated, x_train, y_train, SEED, uses=(mlp, flat))
    return found, [line[1] for line in ranks.tapes[0]
                   if line[0] == "all_reduce"]

outside, sent = tape_of_four(in_pieces)

# %% trap="09.6" role="guess"
guess("09.6",
      "How does each rank's gradient compare with the gradient that a "
      "single process computes from all 64 digits?",
      choices=["it is too small",
               "it differs from rank to rank",
               "it is equal, up to rounding"])

# %% trap="09.6" role="look"
whole_net = mlp(SEED)                              # all 64 digits at once
F.cross_entropy(whole_net(x_train[:64]), y_train[:64]).backward()
one_gradient = flat(p.grad for p in whole_net.parameters())
print("bytes of each all_reduce:", sent)
off = [gap(rank_gradient, one_gradient) for rank_gradient in outside]
print("gradient, relative gap to a single process: "
      f"{off[0]:.0e} and {off[1]:.0e}")

# %% trap="09.6" role="look"
measured("09.6", 2)

# %% trap="09.6" role="look"
claim("relative error of the worse rank's gradient, with no_sync around "
      "backward", max(off), below=1e-4)

# %% [markdown] trap="09.6" role="why"
# The gradient is right up to rounding, so no test of the gradient's values finds the
# fault. Only the number of bytes sent shows it. `ddp(x)` outside `no_sync` has prepared
# the reducer (trap 09.11), and the next `backward` makes the exchange, wherever you call
# it. So the forward pass belongs inside `no_sync`.

# %% trap="09.6" role="why"
claim("number of exchanges per update, with no_sync around backward",
      len(sent), expected=4)

# %% trap="09.6" role="repair"
def in_pieces_quiet(x, y, seed):
    """Like in_pieces, with the forward pass inside no_sync."""
    ddp, rank = DDP(mlp(seed)), dist.get_rank()
    x, y = x[rank:64:2].split(8), y[rank:64:2].split(8)
    for k in range(4):
        with ddp.no_sync() if k < 3 else contextlib.nullcontext():
            (F.cross_entropy(ddp(x[k]), y[k]) / 4).backward()
    return flat(p.grad for p in ddp.parameters())

inside, sent_once = tape_of_four(in_pieces_quiet)
print("bytes of each all_reduce:", sent_once)

# %% trap="09.6" role="repair"
claim("number of exchanges per update, with forward inside no_sync",
      len(sent_once), expected=1)

# %% trap="09.6" role="repair"
lanes = {"around backward": [], "around both": []}
for lane, count in zip(lanes.values(), (len(sent), len(sent_once))):
    now = 0
    for k in range(4):
        lane += [(now, now + 1, "F"), (now + 1, now + 3, "B")]
        now += 3
        if k >= 4 - count:
            lane.append((now, now + 2, "send"))
            now += 2
draw_lanes(lanes, unit="time, schematic: F forward, B backward",
           title="With forward inside no_sync, one exchange is left",
           alt="Two lanes of four batches, F for forward and B for "
               "backward. With no_sync around backward, each batch ends in "
               "a send. With no_sync around both, only the fourth batch "
               "does.")

# %% [markdown] trap="09.6" role="more" topics="the gradient is right both times · an epoch that ends without an exchange"
# These claims compare the repaired version with a single process:

# %% trap="09.6" role="more"
claim("relative error of rank 0's gradient, with forward inside no_sync",
      gap(inside[0], one_gradient), below=1e-4)
claim("bytes of the exchange, divided by the bytes of the parameters",
      sent_once[0] / (4 * one_gradient.numel()), expected=1)

# %% [markdown] trap="09.6" role="more"
# One case remains: an epoch of six batches, with four per update, ends with two batches
# whose gradients were added up without an exchange. If you take a step with these two
# batches anyway, each rank uses only its own gradients:

# %% trap="09.6" role="more"
def with_rest(last_is_loud, x, y, seed):
    """Digest of a rank's parameters after an update on two batches."""
    ddp, rank = DDP(mlp(seed)), dist.get_rank()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    x, y = x[rank:32:2].split(8), y[rank:32:2].split(8)
    with ddp.no_sync():
        (F.cross_entropy(ddp(x[0]), y[0]) / 2).backward()
    with contextlib.nullcontext() if last_is_loud else ddp.no_sync():
        (F.cross_entropy(ddp(x[1]), y[1]) / 2).backward()
    optimizer.step()
    return digest(ddp)

# %% trap="09.6" role="more" compare=false
ends = {}
for loud in (False, True):
    ends[loud] = ranks.run(with_rest, loud, x_train, y_train, SEED,
                           uses=(mlp,))
    print("last batch exchanged:", loud, "  digests:", *ends[loud])

# %% trap="09.6" role="more"
claim("number of different models after a last batch without an exchange",
      len(set(ends[False])), expected=2)
claim("number of different models after a last batch with an exchange",
      len(set(ends[True])), expected=1)

# %% trap="09.6" role="exercise" points=4 difficulty=3 minutes=15
def ddp_accum(ddp, optimizer, loss_fn, batches: list, every: int) -> int:
    """Make one update per `every` batches and return the number of updates.

    An update uses the mean of its batches' losses, loss_fn(ddp(x), y).
    Ignore old gradients in .grad. Each batch takes one forward pass
    through ddp, followed by its backward pass. Ranks exchange gradients
    once per update, in the update's last backward pass. Afterwards ddp
    exchanges gradients again.

    Args:
        batches: (x, y) pairs with equally many rows; the batches left over
            at the end make a last update of their own.

    Example: 5 batches with every 2 make 3 updates, with exchanges in
    batches 2, 4 and 5.
    """
    # BEGIN SOLUTION
    updates = 0
    for first in range(0, len(batches), every):
        group = batches[first:first + every]
        optimizer.zero_grad()
        for x, y in group[:-1]:
            with ddp.no_sync():
                (loss_fn(ddp(x), y) / len(group)).backward()
        x, y = group[-1]
        (loss_fn(ddp(x), y) / len(group)).backward()
        optimizer.step()
        updates += 1
    return updates
    # END SOLUTION

# %% [markdown] trap="09.6" role="hint"
# 1. Cut the list into groups of `every` batches first; the last group may be shorter, and its losses are divided by its own length.
# 2. Run all batches of a group except the last, forward and backward, inside `with ddp.no_sync():`.
# 3. Clear the gradients before each group, step after the group, and count the steps.

# %% [markdown] trap="09.6" role="keep"
# **Keep:** Put the forward pass inside `no_sync`, together with its backward pass. Leave
# the last batch before each `optimizer.step()` outside `no_sync`, including in the short
# group at the end. **In your own code:** Count one update's `all_reduce` calls in a
# profiler trace. **Source:**
# [DistributedDataParallel.no_sync](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html):
# "The forward pass should be included inside the context manager". **Seen in the wild:**
# [ClassyVision #706](https://github.com/facebookresearch/ClassyVision/pull/706):
# `no_sync` was around the backward pass only; [LoongForge
# #163](https://github.com/baidu-baige/LoongForge/pull/163): `no_sync` around `backward`
# alone did nothing; [accelerate
# #1726](https://github.com/huggingface/accelerate/pull/1726) explains the fault.

# %% [markdown] trap="09.2" role="situation" core=true fault="accumulation divides by pieces, not by labels that count" symptom="gradient accumulation gives another loss curve than the big batch, padding, ignore_index -100"
# ## Ten pieces instead of one batch
#
# A batch of 160 rows does not fit in memory. You split it into ten pieces of 16 rows, and
# divide the loss of each piece by ten.
#
# Some labels are padding. They are -100, and `F.cross_entropy` leaves them out of its
# mean. In each piece, between 1 and 16 labels count. At the same weights, you compare the
# sum of the ten gradients with the gradient of all 160 rows at once.

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
    """All gradients in one vector; share(y) scales a piece's loss."""
    model.zero_grad()
    for x, y in pieces:
        (F.cross_entropy(model(x), y) * share(y)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])

whole = [[torch.cat(part) for part in zip(*pieces, strict=True)]]
target = gradient_of(start, whole, lambda y: 1)
tenths = gradient_of(start, pieces, lambda y: 1 / len(pieces))

# %% trap="09.2" role="guess"
guess("09.2",
      "How large is the error of the summed gradient, relative to the "
      "norm of the whole batch's gradient?",
      choices=["0 %, up to rounding",
               "about 5 %",
               "about 25 %",
               "more than 50 %"])

# %% trap="09.2" role="look"
def miss(found, target):
    """Distance between two gradients, relative to the second's norm."""
    return ((found - target).norm() / target.norm()).item()

print(f"ten pieces, a tenth each: {miss(tenths, target):.0%} off")

# %% trap="09.2" role="look"
measured("09.2", 3)

# %% trap="09.2" role="look"
claim("relative error of the gradient, with each of ten losses divided by "
      "ten", miss(tenths, target), above=0.5)

# %% [markdown] trap="09.2" role="why"
# If each piece gets a weight of one tenth, the first piece's single label counts as much
# as all sixteen labels of the third piece together. The mean over all labels needs one
# divisor for all pieces: the number of labels that count in the whole step. You know that
# number before the first `backward`, from the labels alone.

# %% trap="09.2" role="why"
plot_columns({k: 1 / len(pieces) / count
              for k, count in enumerate(counts, 1)},
             reference=(1 / sum(counts), "one divisor for all"),
             title="At a tenth per piece, one label weighs as much as 16",
             xlabel="piece", ylabel="weight of one label", form=".2f",
             alt="Ten columns, the weight of one label in each piece. In "
                 "the pieces with one label, this weight is 0.1, and in "
                 "the piece with sixteen labels 0.006. A dashed line at "
                 "0.016 shows what each label should weigh.")

# %% [markdown] trap="09.2" role="repair"
# Multiply each piece's mean by its fraction of all labels that count:

# %% trap="09.2" role="repair"
def mass(y, weight=None):
    """What F.cross_entropy divides by: labels that count, weighted."""
    kept = y[y != -100]
    return len(kept) if weight is None else weight[kept].sum()

all_y = whole[0][1]
by_count = gradient_of(start, pieces, lambda y: mass(y) / mass(all_y))
print(f"divided by the labels that count: {miss(by_count, target):.0e} off")

# %% trap="09.2" role="repair"
claim("relative error of the gradient, with the number of counted labels "
      "as the divisor", miss(by_count, target), below=1e-5)

# %% [markdown] trap="09.2" role="more" topics="class weights · the end of the epoch · a piece without labels · BatchNorm"
# If you pass class weights and the labels are integers, `F.cross_entropy` divides the
# loss by the sum of the labels' weights. For the pieces, the divisor is the sum of the
# weights over the whole step. `reduction="sum"` returns each piece's sum without a
# division, so that you can use one divisor for all pieces:

# %% trap="09.2" role="more"
rare = torch.linspace(0.2, 3, 10)                 # weights of ten classes

def weighed(pieces, divisor):
    """Like gradient_of, but class weights, and one divisor for all."""
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

# %% trap="09.2" role="more"
claim("class weights: relative error of the gradient, with the number of "
      "labels as the divisor", offs["labels"], above=0.05)
claim("class weights: relative error of the gradient, with the sum of the "
      "weights as the divisor", offs["their weights"], below=1e-5)

# %% [markdown] trap="09.2" role="more"
# The end of the epoch also needs care. If each step takes four pieces, two of the ten
# pieces are left at the end. If you divide their losses by four, the gradient, and with
# plain SGD the step, is half as large as it should be. If you take no step with the last
# two pieces, they are lost, or their gradient stays and is added to the first step of the
# next epoch.

# %% trap="09.2" role="more"
plain = [(x_train[k:k + 16], y_train[k:k + 16]) for k in range(0, 160, 16)]
rest = plain[8:]                                  # all labels count
fair = gradient_of(start, rest, lambda y: 1 / 2)
short = gradient_of(start, rest, lambda y: 1 / 4)
print("norm of the last step, divided by a fair step's: "
      f"{short.norm() / fair.norm():.2f}")

# %% trap="09.2" role="more"
claim("gradient norm if two losses are divided by four, as a fraction of "
      "the correct norm",
      (short.norm() / fair.norm()).item(), expected=0.5, within=1e-4)

# %% [markdown] trap="09.2" role="more"
# A piece in which no label counts has a mean of 0 / 0, which is NaN, and NaN times zero
# is still NaN. The sum over such a piece is 0.

# %% trap="09.2" role="more"
nothing = torch.full((16,), -100)
empty = F.cross_entropy(start(x_train[:16]), nothing)
none = F.cross_entropy(start(x_train[:16]), nothing, reduction="sum")
print("over no label: mean", empty.item(), "  sum", none.item())

# %% trap="09.2" role="more"
claim("the mean over no labels is a number",
      not empty.isnan().item(), expected=False)

# %% [markdown] trap="09.2" role="folklore"
# **Told:** With the right divisor, accumulation *is* the big batch. **Measured:** That is
# false if the rows of a batch affect each other. BatchNorm takes its statistics from each
# piece, so the gradient differs from the gradient of the whole batch. LayerNorm works row
# by row, and in `float32` only rounding differs.

# %% trap="09.2" role="folklore"
def with_norm(norm):
    """Relative error of ten equal pieces, in a net with this norm."""
    model = nn.Sequential(nn.Linear(64, 64), norm(64), nn.ReLU(),
                          nn.Linear(64, 10))
    both = [[torch.cat(part) for part in zip(*plain, strict=True)]]
    return miss(gradient_of(model, plain, lambda y: 1 / 10),
                gradient_of(model, both, lambda y: 1))

batch_miss, layer_miss = with_norm(nn.BatchNorm1d), with_norm(nn.LayerNorm)
print(f"BatchNorm {batch_miss:.0%} off, LayerNorm {layer_miss:.0e} off")

# %% trap="09.2" role="folklore"
claim("BatchNorm: relative error of the gradient from ten equal pieces",
      batch_miss, above=0.08)
claim("LayerNorm: relative error of the gradient from ten equal pieces",
      layer_miss, below=1e-5)

# %% trap="09.2" role="exercise" points=3 difficulty=3 minutes=15
def accumulate(model: nn.Module, opt: torch.optim.Optimizer, batches,
               n: int, weight: torch.Tensor | None) -> list[float]:
    """Go through the batches once; take a step of opt for every n batches.

    Each step uses the gradient of the mean cross-entropy over all labels
    that count in its batches. The last step takes the batches that are
    left, even if there are fewer than n. If no label counts, there is no
    step. Only one graph may exist at a time, so call backward for each
    batch. Ignore old gradients; every loss uses all of opt's parameters.

    Args:
        batches: an iterator of pairs x (rows, F) float32, y (rows,) int64.
            The pairs are unchanged. Labels of -100 do not count.
        weight: (C,) float32 above 0, class weights as in F.cross_entropy.

    Returns:
        A list of floats, the mean loss of each step, computed before the
        step. Example: n 2 and batches with 3, 1 and 2 labels that count
        make two steps, and in the first step each label has weight 1/4.
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
# 1. Take n batches at a time from the iterator (fewer at the end). First add up the labels that count, or their class weights: this sum is the step's divisor.
# 2. `reduction="sum"` with `weight` returns the weighted sum over the labels that count; -100 adds nothing.
# 3. A step's loss is the sum of the contributions of its batches.

# %% [markdown] trap="09.2" role="keep"
# **Keep:** Divide by the number of labels that count in the whole step, not by the number
# of pieces. Count the labels again for every step, because the last step of an epoch is
# often smaller. **In your own code:** Take some rows with padding, and compare the
# pieces' summed gradient with the gradient of one big batch. **Seen in the wild:**
# [`huggingface/transformers#24725`](https://github.com/huggingface/transformers/issues/24725)
# and [`#34191`](https://github.com/huggingface/transformers/pull/34191), the fix a year
# later;
# [`meta-pytorch/torchtune#1875`](https://github.com/meta-pytorch/torchtune/pull/1875):
# "the day the ML community first discovered" that means of unequal parts do not add up.
# **Source:** PyTorch documentation,
# [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html),
# the formula of the weighted mean.

# %% [markdown] trap="09.5" role="situation" fault="set_epoch is not called, every epoch has the same order" symptom="DistributedSampler gives the same order every epoch, duplicated samples in distributed evaluation"
# ## A sampler for each rank
#
# Each rank gets a `DistributedSampler` over the 1,300 training digits, with shuffling on.
# The samplers deal out the digits so that no two ranks see the same digit, and each
# sampler passes its part to a `DataLoader`. Your loop is `for epoch in range(10): for
# batch in loader: ...`.

# %% trap="09.5" role="break"
from torch.utils.data import DistributedSampler

def sampler_of(rank, world, n, **settings):
    """The sampler of one rank of the world; needs no second process."""
    return DistributedSampler(range(n), num_replicas=world, rank=rank,
                              seed=SEED, **settings)

mine = sampler_of(rank=0, world=2, n=1300)
orders = [tuple(mine) for epoch in range(10)]

# %% trap="09.5" role="guess"
guess("09.5",
      "In how many different orders does rank 0 see its digits in the 10 "
      "epochs?", unit="orders")

# %% trap="09.5" role="look"
print("different orders in 10 epochs:", len(set(orders)))

# %% trap="09.5" role="look"
measured("09.5", len(set(orders)), right=(1, 1))

# %% trap="09.5" role="look"
claim("number of different orders in 10 epochs without set_epoch",
      len(set(orders)), expected=1)

# %% [markdown] trap="09.5" role="why"
# The digits are shuffled, but in the same way in every epoch. All ranks have to deal from
# the same order, so a sampler must not use the random generator of its own rank. Instead,
# each sampler seeds a fresh generator with `seed + epoch`. But the sampler knows the
# epoch only if you call `set_epoch` before you ask the loader for batches.

# %% trap="09.5" role="repair"
told = []
for epoch in range(10):
    mine.set_epoch(epoch)
    told.append(tuple(mine))
print("different orders in 10 epochs:", len(set(told)))

# %% trap="09.5" role="repair"
claim("number of different orders in 10 epochs with set_epoch",
      len(set(told)),
      expected=10)

# %% trap="09.5" role="repair"
first = {name: [[digit / 1300 for digit in order[:8]] for order in seen[:6]]
         for name, seen in (("without set_epoch", orders),
                            ("with set_epoch", told))}
draw_grids(first, rows="epoch", columns="first eight digits",
           title="Without set_epoch, each epoch repeats the first",
           alt="Two grids with a row for each of six epochs. A cell's "
               "shade is the digit's number. Without set_epoch, all rows "
               "are equal; with set_epoch, they differ.")

# %% [markdown] trap="09.5" role="more" topics="the order is shuffled · digits that an evaluation counts twice"
# The one order that all epochs share is at least shuffled:

# %% trap="09.5" role="more"
claim("the order in an epoch is just 0, 2, 4, ...",
      list(orders[0]) == sorted(orders[0]), expected=False)

# %% [markdown] trap="09.5" role="more"
# In evaluation, the sampler has a second surprise. All ranks get the same number of
# digits, because otherwise one rank would wait in a collective for a batch that another
# rank does not have. So if the division leaves a remainder, the sampler repeats the first
# digits, and an accuracy over all ranks counts the repeated digits twice.

# %% trap="09.5" role="more"
ten = [[str(digit) for digit in sampler_of(rank, 4, 10, shuffle=False)]
       for rank in range(4)]
draw_ranks({"ten digits on four ranks": ten},
           marks={"ten digits on four ranks": [(n % 4, n // 4)
                                               for n in range(10, 12)]},
           title="Two out of ten digits are evaluated twice",
           alt="Four ranks with three digits each: 0 4 8, 1 5 9, 2 6 0 and "
               "3 7 1. The last 0 and 1 are marked, because they are "
               "evaluated again.")

# %% [markdown] trap="09.5" role="more"
# Four ranks evaluate the 497 test digits:

# %% trap="09.5" role="more"
dealt = [list(sampler_of(rank, 4, 497, shuffle=False))
         for rank in range(4)]
read = [digit for part in dealt for digit in part]
twice = sorted(digit for digit in set(read) if read.count(digit) > 1)
print("digits on each rank:", *map(len, dealt), "  together:", len(read))
print("evaluated twice:", *twice)

# %% trap="09.5" role="more"
claim("number of digits that four ranks evaluate in total, for a test set "
      "of 497 digits",
      len(read), expected=500)
claim("number of digits evaluated twice", len(twice), expected=3)

# %% [markdown] trap="09.5" role="more"
# `drop_last=True` makes the parts equal in the opposite way: it uses 496 digits and
# leaves one out. If the result has to be exact, deal out the digits yourself, and sum the
# numbers of correct answers and of digits over the ranks instead of averaging accuracies.

# %% trap="09.5" role="more"
dropped = {digit for rank in range(4) for digit in
           sampler_of(rank, 4, 497, shuffle=False, drop_last=True)}
claim("number of different digits evaluated with drop_last",
      len(dropped), expected=496)

# %% trap="09.5" role="exercise" points=3 difficulty=2 minutes=15
def epoch_indices(n: int, world: int, rank: int, epoch: int, seed: int,
                  exact: bool) -> list[int]:
    """Return the examples that a rank gets in an epoch, in order.

    All ranks use one order of the n >= 1 examples: torch.randperm(n) with a
    torch.Generator seeded with seed + epoch. Rank r takes the positions r,
    r + world, r + 2 world, and so on.

    If exact is True, nothing is repeated and nothing dropped, so the ranks'
    shares can differ by one or be empty. Otherwise the order is repeated
    from its beginning, as many times as needed, up to the next multiple of
    world. torch's global generator is unchanged.

    Example: n 10, world 4, rank 3, epoch 0 and seed 0 give [5, 8, 1], or
    [5, 8] if exact.
    """
    # BEGIN SOLUTION
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist()
    if not exact:
        length = -(-n // world) * world
        order = (order * world)[:length]
    return order[rank::world]
    # END SOLUTION

# %% [markdown] trap="09.5" role="hint"
# 1. Seed a generator with `seed + epoch`, which is the same on every rank. The rank decides only where the slice begins.
# 2. The smallest multiple of `world` that is at least `n` is `ceil(n / world) * world`.
# 3. With fewer examples than ranks, the order has to be repeated more than once.

# %% [markdown] trap="09.5" role="keep"
# **Keep:** Call `sampler.set_epoch(epoch)` before each epoch. If the size of an
# evaluation set is not a multiple of the number of ranks, expect repeated examples. **In
# your own code:** Print the first indices of two epochs, and the total length over all
# ranks. **Source:**
# [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler):
# without `set_epoch` "the same ordering will be always used". **Seen in the wild:**
# `set_epoch` was missing in [DALLE-pytorch
# #230](https://github.com/lucidrains/DALLE-pytorch/pull/230) and in [ParallelWaveGAN
# #177](https://github.com/kan-bayashi/ParallelWaveGAN/issues/177); in [pytorch
# #31771](https://github.com/pytorch/pytorch/issues/31771), a user reports that the
# sampler "can't shuffle the dataset".

# %% [markdown] role="concept"
# ## The switches of a multi-GPU run
#
# Outside a notebook, `torchrun` starts the ranks. It sets `RANK`, `WORLD_SIZE`,
# `LOCAL_RANK` and the ranks' meeting address, and ends its machine's ranks if one fails.
# `init_process_group` reads all but `LOCAL_RANK`. Your script reads `LOCAL_RANK`, the
# rank's number on its own machine and therefore the number of the rank's GPU:

# %% role="concept" tags=["plumbing"]
import os
import subprocess
import sys

def launched(*command, seconds=300, **settings):
    """Run Python for at most `seconds`; return the lines it prints."""
    with subprocess.Popen([sys.executable, *command], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=os.environ | settings) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise RuntimeError((err.strip() or "no words").splitlines()[-1])
    return out.splitlines()

# %% role="concept"
script = Path(disk.name) / "train.py"
_ = script.write_text('''
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")                # on GPUs: "nccl"
here = int(os.environ["LOCAL_RANK"])           # which GPU of this machine
# On a GPU: torch.cuda.set_device(here)
x = torch.ones(3) * (1 + dist.get_rank())
dist.all_reduce(x)
me = f"rank {dist.get_rank()} of {dist.get_world_size()}, local {here}"
print(f"{me}: {x.tolist()}\\n", end="", flush=True)   # one write, one line
dist.destroy_process_group()
''')

# %% role="concept"
printed = launched("-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node=2", str(script), OMP_NUM_THREADS="1")
print(*sorted(printed), sep="\n")

# %% role="concept"
claim("number of ranks started by torchrun that hold the sum",
      sum("[3.0, 3.0, 3.0]" in line for line in printed), expected=2)

# %% [markdown] role="concept"
# On one machine, `--standalone` finds a free port by itself. On two machines with eight
# GPUs each, run the same command on both:
#
# ```sh
# torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d \
#     --rdzv-id=run7 --rdzv-endpoint=first-machine:29500 train.py
# ```
#
# If a run hangs, fails or is slow, these switches tell you more:

# %% [markdown] role="concept"
# | switch | what it does |
# |---|---|
# | `NCCL_DEBUG=INFO` | NCCL, which runs the collectives on GPUs, says which network it found and what failed |
# | `TORCH_DISTRIBUTED_DEBUG=DETAIL` | torch checks that all ranks make the same call, and names unused parameters; slow, so only for debugging |
# | `init_process_group(timeout=...)` | sets how long a rank waits before it raises an error |
# | `TORCH_NCCL_ASYNC_ERROR_HANDLING` | on by default: a failed collective ends the process; the reason is in the log, often far above the last lines |
# | `torch.set_float32_matmul_precision("high")` | uses TF32 for matrix products that stay in `float32` |
# | `DataLoader(num_workers=..., pin_memory=True)` | applies to each rank, so eight ranks with four workers each start 32 processes |
#
# The first two switches are environment variables, so put them in front of the command:
# `NCCL_DEBUG=INFO torchrun ...`. Every rank then prints NCCL's version, the chosen
# network interface, and how it reaches the other cards. If a run hangs at its start,
# compare these lines: two ranks on different networks never meet (set
# `NCCL_SOCKET_IFNAME` to the right one), and `NET/Socket` where you expect InfiniBand
# means that NCCL uses the slow network. If you set `TORCH_DISTRIBUTED_DEBUG=DETAIL`, a
# rank that makes a different call from the others, or the same call with a different
# shape, raises an error that names both calls. Without this setting, the run may
# hang, crash, or add up values that do not belong together.

# %% [markdown] role="concept"
# ## Shards: a model in pieces
#
# Under DDP, each rank holds the whole model. If the model does not fit on one GPU, cut it
# into pieces. Each rank then holds only its *shard* of each parameter, gradient and
# moment. A layer is whole only while it computes: an `all_gather` collects the layer's
# shards, and afterwards each rank again keeps only its own shard. In the backward pass, a
# `reduce_scatter` adds up the gradients and leaves each rank the sum for its own shard
# (`fully_shard` then divides the sum by the number of ranks to get the average):

# %% role="concept"
own = [["A", ""], ["", "B"]]
draw_ranks({"between": own, "while it works": [["A", "B"], ["A", "B"]],
            "its gradients": [["gA", "gB"], ["hA", "hB"]],
            "added up": [["gA+hA", ""], ["", "gB+hB"]]},
           title="A layer is whole only while it computes",
           alt="Four tables of two ranks and two halves of a layer. "
           "Between the layer's turns, rank 0 holds A and rank 1 B. While "
           "the layer works, both hold A and B. Each rank makes gradients "
           "for both halves. After the sum, each rank keeps the sum for "
           "its own half.")

# %% [markdown] role="concept"
# With `n` ranks, each rank holds one `n`-th of the weights, gradients and moments, plus
# one or two whole layers. This is *fully sharded data parallel*, FSDP. In this part,
# torch's `fully_shard` cuts the models, and the traps show what that changes: how much is
# sent, which rank holds which tensor, over which values a norm is computed, and what a
# file contains.

# %% [markdown] trap="09.4" role="situation" fault="a model that fits is sharded layer by layer" symptom="FSDP slower than DDP, too many all_gather calls, fully_shard of a model that fits"
# ## Six layers, each by itself
#
# Your net has six linear layers. You shard each layer separately with
# `fully_shard(layer)`, and then you shard the net. You know what DDP sends: one
# `all_reduce` of the gradients per step. A sharded net also has to fetch the weights,
# because each rank holds only a part of them. To compare the sharded net with DDP, you
# note for each call in one step how large the whole (unsharded) tensor is, and add up
# these sizes.

# %% trap="09.4" role="break"
def one_step(plan, layers=6):
    """One forward and one backward pass of six layers."""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(16, 16) for _ in range(layers)])
    if plan == "DDP":
        net = DDP(net)
    elif plan != "as one":
        for layer in net:
            fully_shard(layer, reshard_after_forward=plan == "each")
    if plan != "DDP":
        fully_shard(net)
    dist.barrier()                                  # the step begins here
    net(torch.ones(4, 16)).sum().backward()

# %% trap="09.4" role="break"
def step_calls(plan):
    """The bytes of each call in the step, by kind."""
    ranks.run(one_step, plan)
    names = [line[0] for line in ranks.tapes[0]]
    step = ranks.tapes[0][names.index("barrier") + 1:]
    return {kind: [size for name, size, _ in step if name == kind]
            for kind in ("all_gather", "reduce_scatter", "all_reduce")}

# %% trap="09.4" role="guess"
guess("09.4",
      "Add up the unsharded sizes of all tensors communicated in one step. "
      "How large is the sharded net's sum, as a multiple of DDP's sum?",
      unit="times")

# %% trap="09.4" role="look"
each = step_calls("each")
for kind, sizes in each.items():
    print(f"{kind:15} {len(sizes):3} calls   {sum(sizes):6} bytes")

# %% trap="09.4" role="look"
claim("number of all_gather calls per step, with each of six layers "
      "sharded",
      len(each["all_gather"]), expected=12)

# %% [markdown] trap="09.4" role="why"
# Each layer is gathered for the forward pass, released, and gathered again for the
# backward pass. Then a `reduce_scatter` leaves each rank the averaged gradients for its
# own part. Sharding by layer saves memory, because a rank holds only its own part and one
# or two whole layers. The price is more bytes and more calls, and each call waits for the
# slowest rank.
#
# In a ring, an `all_reduce` consists of a `reduce_scatter` and an `all_gather` of the
# same tensor, so it costs as much as the two calls together:

# %% trap="09.4" role="why"
hold = [[str(r)] * 3 for r in range(3)]
steps, arrows, name = {"at first": copy.deepcopy(hold)}, {}, "at first"
for n in range(4):
    moves = [(r, (r + 1) % 3, (r - n) % 3) for r in range(3)]
    for r, to, k in moves:
        hold[to][k] = hold[r][k] if n > 1 else "".join(
            sorted(hold[r][k] + hold[to][k]))
    if n < 3:
        arrows[name] = moves
    if n != 2:
        name = {0: "sent once", 1: "reduce_scatter is done",
                3: "all_gather is done"}[n]
        steps[name] = copy.deepcopy(hold)
draw_ranks(steps, arrows=arrows,
           title="A ring: two sends add up, two pass the sums on",
           alt="Three ranks in a ring with three shards each; each cell "
               "lists the ranks whose values are in the cell's sum. After "
               "two sends, each rank has one shard with the sum of all "
               "three, and after two more sends, each rank has all shards.")

# %% [markdown] trap="09.4" role="repair"
# A model that fits need not pay this price. You can keep layers whole until the backward
# pass (`reshard_after_forward=False`), shard the net as one piece, or shard nothing at
# all. In the plot, an `all_reduce` counts once, although it sends as much as the two
# other kinds of call together. So DDP and the plan that keeps layers whole send the same
# number of bytes, and releasing the layers adds half as much again.

# %% trap="09.4" role="repair"
plans = ("each", "kept", "as one", "DDP")
table = {plan: step_calls(plan) for plan in plans}
plan_calls = {plan: sum(map(len, kinds.values()))
              for plan, kinds in table.items()}
plan_bytes = {plan: sum(map(sum, kinds.values()))
              for plan, kinds in table.items()}

# %% trap="09.4" role="repair"
measured("09.4", plan_bytes["each"] / plan_bytes["DDP"], right=(3, 3))

# %% trap="09.4" role="repair"
plot_bars({f"{plan}, {n} call{'s' * (n > 1)}": plan_bytes[plan] / 1000
           for plan, n in plan_calls.items()},
          title="Sharding each layer sends three times DDP's bytes",
          xlabel="kB of whole tensors in one step",
          alt="Four bars. With each layer sharded, 18 calls send three "
              "times the bytes of DDP's one all_reduce. With layers kept "
              "until backward, 12 calls send twice the bytes of DDP; with "
              "the net as one piece, 2 calls also send twice the bytes.")

# %% trap="09.4" role="repair"
claim("bytes of all calls with each layer sharded, divided by the bytes "
      "of DDP's all_reduce",
      sum(map(sum, each.values())) / sum(table["DDP"]["all_reduce"]),
      expected=3)

# %% [markdown] trap="09.4" role="more" topics="the calls, as bounds · what NCCL counts"
# These claims count the calls of three plans:

# %% trap="09.4" role="more"
claim("number of reduce_scatter calls per step, with each of six layers "
      "sharded",
      len(each["reduce_scatter"]), expected=6)
claim("number of all_gather calls per step, with layers kept whole until "
      "backward",
      len(table["kept"]["all_gather"]), expected=6)
claim("number of collective calls per step, with the net sharded as one "
      "piece",
      sum(map(len, table["as one"].values())), expected=2)

# %% [markdown] trap="09.4" role="more"
# As one piece, the net is gathered once, because the outermost module keeps its weights
# until the backward pass unless you set `reshard_after_forward=True`. The plot counts the
# bytes of whole tensors. [NCCL's page on
# performance](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md) says
# for each collective which part of these bytes crosses the network.

# %% [markdown] trap="09.4" role="folklore"
# **Told:** Wrapping the whole model once is enough to shard it. **Measured:** If you wrap
# the net as one piece, a single call gathers all six layers, and each rank holds all
# weights during the forward pass. One piece saves calls. But only the moments stay sharded
# during the whole step, because each rank holds all gradients at the end of the backward
# pass, until the single `reduce_scatter`.

# %% trap="09.4" role="folklore"
model_bytes = 6 * sum(p.nbytes for p in nn.Linear(16, 16).parameters())
claim("bytes gathered in one call, with the net as one piece, divided by "
      "the model's bytes",
      table["as one"]["all_gather"][0] / model_bytes, expected=1)

# %% trap="09.4" role="exercise" points=3 difficulty=2 minutes=15
def comm_plan(sizes: list, world: int, each: bool, reshard: bool) -> dict:
    """Count the calls and bytes of one training step of a sharded model.

    "all_gather" and "reduce_scatter": the number of calls; "bytes": the
    total size of the whole tensors in all calls; "whole": the peak bytes of
    gathered layers in the forward pass, which runs one layer at a time.

    Args:
        sizes: float32 values per layer, unchanged; a layer without values
            makes no call, and one value has 4 bytes.
        each: if True, shard every layer by itself; if False, shard the
            model as one piece, gathered once for the forward pass.
        reshard: if True, release what forward gathered, and gather it again
            for backward; if False, keep it until backward ends.

    Before a call, a layer (or the one piece) is padded to a multiple of
    `world` values. A world of 1 needs no calls; its "whole" is all layers.
    Example: sizes [6, 2] and world 2, with each and reshard, give 4 and 2
    calls, 96 bytes and a "whole" of 24.
    """
    # BEGIN SOLUTION
    if world == 1:
        return {"all_gather": 0, "reduce_scatter": 0, "bytes": 0,
                "whole": 4 * sum(sizes)}
    pieces = sizes if each else [sum(sizes)]
    sent = [4 * world * -(-n // world) for n in pieces if n]
    gathers = 2 if reshard else 1
    return {"all_gather": gathers * len(sent), "reduce_scatter": len(sent),
            "bytes": (gathers + 1) * sum(sent),
            "whole": max(sent, default=0) if reshard else sum(sent)}
    # END SOLUTION

# %% [markdown] trap="09.4" role="hint"
# 1. First make a list of the pieces that have values, and pad each piece. For a model sharded as one piece, the list has one entry.
# 2. A piece is gathered for the forward pass, and with `reshard` again for the backward pass; its gradients go through one `reduce_scatter`.
# 3. At its peak, the forward pass holds the largest piece if pieces are released, and all pieces if they are kept.

# %% [markdown] trap="09.4" role="keep"
# **Keep:** If a model does not fit on one GPU, shard it layer by layer. If a model fits
# together with its gradients and optimizer state, use DDP, which gathers nothing and, in
# the same format, sends no more than any sharded plan. **In your own code:** Before you
# compare speeds, count a step's collectives in a profiler trace. **Source:**
# [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html),
# `reshard_after_forward`.

# %% [markdown] role="concept"
# ## Four ways to shard, and the bits on the wire
#
# How much of a model should you shard? The more you shard, the less memory each card
# needs, and the more data has to be sent. In the table, the bytes that an `all_gather` of
# the whole model sends count as 1, so an `all_reduce` counts as 2:
#
# | strategy | each of `n` ranks keeps whole | sent per step | in torch |
# |---|---|---|---|
# | DDP | weights, gradients, moments | 2 | `DistributedDataParallel` |
# | ZeRO-1, ZeRO-2 | weights; ZeRO-1 gradients as well | 2 | `ZeroRedundancyOptimizer` for ZeRO-1 (under DDP, it sends as much as FSDP); in place of ZeRO-2, `fully_shard` with `reshard_after_forward=False` |
# | ZeRO-3, FSDP | a layer or two | 3 | `fully_shard` for each layer |
# | hybrid | as FSDP, within a machine | 3 within a machine, gradients of one shard between machines | `fully_shard(layer, mesh=...)` with a mesh of two dimensions |
#
# *Hybrid* cuts the model within a machine, where cards are joined by a fast link, and
# keeps a copy on each machine, as DDP does. So only gradients cross the slow network.
#
# If even the shards do not fit, the host's memory can hold them. This is *CPU offload*,
# `fully_shard(layer, offload_policy=CPUOffloadPolicy())`. Each rank then copies its shard
# of a layer to the card before the layer runs, and copies the shard's gradient back
# afterwards. The moments stay in the host's memory, and the optimizer steps on the CPU.
# The card holds little more than the activations and the layer that is running. You pay
# with copies in every step and a slow update, so try a smaller batch and checkpointing
# before you offload.
#
# You can also send fewer bits. `MixedPrecisionPolicy` sets the dtype in which a layer is
# gathered and computed, and the dtype in which its gradients are added up. A `float32`
# model's shards stay in `float32`, so the optimizer has its master weights:

# %% role="concept"
def sharded_in(param, reduce):
    """Take a step with two layers; param and reduce name dtypes."""
    from torch.distributed.fsdp import MixedPrecisionPolicy
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, param),
                                  reduce_dtype=getattr(torch, reduce))
    net = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    for layer in net:
        fully_shard(layer, mp_policy=policy)
    fully_shard(net, mp_policy=policy)
    net(torch.ones(4, 16)).sum().backward()
    return str(next(net.parameters()).dtype)

# %% role="concept"
wire = {}
for param, reduce in (("float32", "float32"), ("bfloat16", "float32")):
    shard_dtype = ranks.run(sharded_in, param, reduce)[0]
    wire[param] = {kind: sum(size for name, size, _ in ranks.tapes[0]
                             if name == kind)
                   for kind in ("all_gather", "reduce_scatter")}
    print(f"computed in {param}: {wire[param]} bytes, "
          f"shards in {shard_dtype}")

# %% role="concept"
claim("bytes gathered in bfloat16, as a fraction of bytes gathered in "
      "float32",
      wire["bfloat16"]["all_gather"] / wire["float32"]["all_gather"],
      expected=0.5)
claim("bytes of gradients sent in the bfloat16 run, divided by bytes sent "
      "in the float32 run",
      wire["bfloat16"]["reduce_scatter"]
      / wire["float32"]["reduce_scatter"], expected=1)

# %% [markdown] role="concept"
# If you do not set a `reduce_dtype`, gradients are added up in `param_dtype`. In 16 bits,
# sums over many ranks lose small gradients, so set `reduce_dtype` to `torch.float32`
# until a measurement shows that fewer bits are enough.

# %% [markdown] trap="09.13" role="situation" fault="the optimizer is made before fully_shard" symptom="FSDP2 loss does not change at all, optimizer created before fully_shard"
# ## One line for shards
#
# A script for one GPU makes the model, makes the optimizer, and trains. You add the
# line `fully_shard(net)`, which cuts the model into shards. The function changes the
# model in place and returns it. You put the line where a comment in the script says
# "distributed", right before the loop.
#
# Before training, the test loss is about `2.3`. The script takes 60 steps with AdamW.

# %% trap="09.13" role="break"
def prepare(order, net, x):
    """Shard the net and make its optimizer, in this order."""
    make = torch.optim.AdamW
    if order == "optimizer, shard":
        optimizer = make(net.parameters(), lr=1e-2)
    fully_shard(net)
    if order == "shard, forward, optimizer":
        net(x)                                      # a look at the outputs
    if order != "optimizer, shard":
        optimizer = make(net.parameters(), lr=1e-2)
    return optimizer

# %% trap="09.13" role="break"
def sixty_steps(order, x, y, x_test, y_test, seed):
    """Losses before and after; how many of net's tensors opt holds."""
    net = mlp(seed)
    optimizer = prepare(order, net, x[:4])
    before = F.cross_entropy(net(x_test), y_test).item()
    for k in range(60):
        rows = torch.arange(20 * k, 20 * (k + 1))[dist.get_rank()::2]
        descend(net, optimizer, x[rows], y[rows])
    held = {id(p) for p in optimizer.param_groups[0]["params"]}
    kept = sum(id(p) in held for p in net.parameters())
    return before, F.cross_entropy(net(x_test), y_test).item(), kept

# %% trap="09.13" role="break"
def ordered(order):
    return ranks.run(sixty_steps, order, x_train, y_train, x_test, y_test,
                     SEED, uses=(mlp, descend, prepare))[0]

late = ordered("optimizer, shard")

# %% trap="09.13" role="guess"
guess("09.13", "What is the test loss after the 60 steps?",
      choices=["below `1`",
               "above `1`, but lower than before training",
               "exactly the same as before training"])

# %% trap="09.13" role="look"
print(f"test loss {late[0]:.4f} -> {late[1]:.4f}")
print("tensors of the model that the optimizer holds:", late[2], "of 4")

# %% trap="09.13" role="look"
measured("09.13", 2)

# %% trap="09.13" role="look"
claim("change in the test loss over 60 steps, with the optimizer made "
      "before sharding", late[1] - late[0], expected=0)

# %% [markdown] trap="09.13" role="why"
# `fully_shard` replaces the model's parameters with `DTensor`s that hold this rank's
# shard. The optimizer still holds the old parameters. The `.grad` of the old parameters
# stays None, so the optimizer silently skips them. The old tensors also keep their
# memory, so sharding has saved no memory.

# %% trap="09.13" role="why"
draw_tree({"net": "after fully_shard", "optimizer": "made before it",
           "shards (DTensor)": "backward fills their .grad",
           "old tensors": ".grad is None: skipped"},
          [("net", "shards (DTensor)"), ("optimizer", "shards (DTensor)"),
           ("optimizer", "old tensors")],
          cuts=[("optimizer", "shards (DTensor)")], marks={"old tensors"},
          cut_name="nothing leads from the optimizer to the shards",
          title="The optimizer holds what the model has discarded",
          alt="The net points to its shards, whose grad backward fills. "
              "The optimizer points to the old tensors, whose grad stays "
              "None; no arrow leads from it to the shards.")

# %% [markdown] trap="09.13" role="repair"
# The order that works is model, shard, optimizer. A forward pass between sharding the
# model and making the optimizer is a second way to lose parameters without an error.
# During the forward pass, the model holds whole tensors. The outermost module keeps its
# own tensors until a backward pass ends, so an optimizer made before that point holds
# whole tensors. Here, all four tensors belong to the outermost module. Layers that are
# sharded by themselves get their shards back after their own forward pass.

# %% trap="09.13" role="repair"
early = ordered("shard, optimizer")
between = ordered("shard, forward, optimizer")
for name, seen in {"shard, optimizer": early,
                   "shard, forward, optimizer": between}.items():
    print(f"{name:27} test loss {seen[0]:.4f} -> {seen[1]:.4f}, "
          f"{seen[2]} of 4 tensors")

# %% trap="09.13" role="repair"
claim("test loss after 60 steps, with the optimizer made right after "
      "sharding", early[1], below=1)

# %% [markdown] trap="09.13" role="more" topics="what an optimizer holds"
# An optimizer keeps its parameters in `optimizer.param_groups`. Each group is a dict with
# a list "params" and the settings, such as "lr". These claims count the tensors by
# identity:

# %% trap="09.13" role="more"
claim("number of the model's tensors that an optimizer made before "
      "sharding holds",
      late[2], expected=0)
claim("number of the model's tensors that an optimizer made right after "
      "sharding holds", early[2], expected=4)
claim("change in the test loss over 60 steps, with a forward pass before "
      "the optimizer is made", between[1] - between[0], expected=0)

# %% trap="09.13" role="exercise" points=3 difficulty=2 minutes=15
def rebuild(optimizer, names: list, model: nn.Module):
    """Make an optimizer like the given one for the model's current
    parameters.

    The new optimizer has the same class as the old one. The new optimizer's
    state is empty. The new optimizer has the same groups as the old one.
    Each group has all the current settings of the old group, none of which
    is a tensor. A group has the parameters that now have the group's names,
    in the order of the names, trainable or not. The old optimizer and the
    model are unchanged.

    Args:
        names: for each group, in order, the names of its tensors, as
            model.named_parameters() returns them.

    Example: SGD with lr 0.1 and names [["bias"]] give SGD with lr 0.1 for
    the model's bias.
    """
    # BEGIN SOLUTION
    present = dict(model.named_parameters())
    groups = []
    for old, chosen in zip(optimizer.param_groups, names):
        tensors = [present[name] for name in chosen]
        groups.append({**old, "params": tensors})
    return type(optimizer)(groups)
    # END SOLUTION

# %% [markdown] trap="09.13" role="hint"
# 1. `type(optimizer)` takes a list of dicts, one for each group, with `"params"` and the settings.
# 2. The settings of a group are all its keys except `"params"`. `optimizer.defaults` holds the initial settings, but a schedule may have changed them since.
# 3. Build new dicts, so that the old optimizer keeps its own.

# %% [markdown] trap="09.13" role="keep"
# **Keep:** Make the optimizer after every call that puts new parameters into the model,
# such as `fully_shard`, and before any forward pass. **In your own code:** Right before
# the loop, count the optimizer's tensors that also belong to the model; compare the
# tensors by identity. **Source:**
# [torch.distributed.fsdp.fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
# **Seen in the wild:** [pytorch
# #149205](https://github.com/pytorch/pytorch/issues/149205): a model ran forward before
# its optimizer was made; [accelerate
# #3394](https://github.com/huggingface/accelerate/pull/3394) replaces the parameters in
# the optimizer.

# %% [markdown] trap="09.12" role="situation" fault="the clip goes by the norm of a rank's own shards" symptom="FSDP gradient clipping by local norm, gradient norm differs between ranks"
# ## A clip of your own
#
# The gradient of a shard is itself a shard: `p.grad.to_local()` is a plain tensor with
# this rank's part of the values.
#
# You clip the gradient to a norm of 0.1. You wrote the clipping function yourself years
# ago: it computes the norm of all gradients and, if that norm is larger than 0.1,
# multiplies every gradient by `0.1 / norm`. On each of two ranks, you run this function
# on the tensors that `to_local()` returns. In this step, the norm of the whole gradient
# is well above 0.1.

# %% trap="09.12" role="break"
def norm_of(grads):
    """The norm of all values in these tensors."""
    return sum(g.square().sum() for g in grads).sqrt()

def clip_by_hand(net, limit):
    """Clip this rank's shards; return the norm that the clip used."""
    shards = [p.grad.to_local() for p in net.parameters()]
    norm = norm_of(shards)
    for g in shards:
        g.mul_((limit / norm).clamp(max=1))
    return norm.item()

# %% trap="09.12" role="break" tags=["plumbing"]
def deep(seed):
    """Three linear layers: 64 pixels -> 32 -> 32 -> 10 classes."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32),
                         nn.ReLU(), nn.Linear(32, 10))

def sharded(seed):
    """The net, each linear layer sharded by itself."""
    net = deep(seed)
    for layer in (net[0], net[2], net[4]):
        fully_shard(layer)
    return fully_shard(net)

# %% trap="09.12" role="break"
def clipped_run(x, y, seed, steps=30, limit=0.1):
    """The rank's first norm, first clipped gradient, last weights."""
    net, first = sharded(seed), None
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    torch.manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))[dist.get_rank()::2]
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        norm = clip_by_hand(net, limit)
        whole = flat(p.grad.full_tensor() for p in net.parameters())
        first = first or [norm, whole]
        optimizer.step()
    return *first, flat(p.full_tensor() for p in net.parameters())

# %% trap="09.12" role="break" tags=["plumbing"]
def one_process(x, y, seed, steps=30, limit=0.1):
    """The same run without shards, with torch's own clip."""
    net, first = deep(seed), None
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    torch.manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), limit)
        whole = flat(p.grad for p in net.parameters())
        first = first or [norm.item(), whole]
        optimizer.step()
    return *first, flat(net.parameters())

# %% trap="09.12" role="break" tags=["plumbing"]
def on_ranks():
    return ranks.run(clipped_run, x_train, y_train, SEED,
                     uses=(deep, sharded, norm_of, clip_by_hand, flat))

norm, clipped, ended = one_process(x_train, y_train, SEED)
own = on_ranks()

# %% trap="09.12" role="guess"
guess("09.12", "What is the norm of the whole gradient after clipping?",
      choices=["exactly 0.1",
               "more than 0.1",
               "less than 0.1"])

# %% trap="09.12" role="look"
plot_bars({"whole gradient": norm, "rank 0 believes": own[0][0],
           "rank 1 believes": own[1][0],
           "whole, after clipping": own[0][1].norm().item()},
          title="Both ranks clip to 0.1, but the whole norm is above",
          xlabel="norm of the gradient",
          alt="Four bars. The whole gradient is the longest; each rank "
              "computes a smaller norm, over its own part. After clipping "
              "at 0.1, the whole gradient's norm is above 0.1.")

# %% trap="09.12" role="look"
measured("09.12", 1)

# %% trap="09.12" role="look"
claim("norm of the whole gradient after each rank clips by its own norm",
      own[0][1].norm().item(), above=0.11, below=0.1415)

# %% [markdown] trap="09.12" role="why"
# Each rank has only a part of the values, so it computes too small a norm and clips too
# little, and each rank scales its shards by a different factor. If all `R` ranks clip,
# each rank's shard ends with a norm of 0.1 and the whole gradient with a norm of $0.1
# \sqrt{R}$, or $0.1 \sqrt{2} \approx 0.1414$ for two ranks. Nothing diverges here, but
# the steps are too long, and their direction changes a little. With 64 ranks, the steps
# could be eight times as long as intended.

# %% [markdown] trap="09.12" role="repair"
# Norms do not add up, but their squares do. So an `all_reduce` of a single value, the sum
# of a rank's squares, is enough:

# %% trap="09.12" role="repair"
def norm_of(grads):
    """The norm of the values that all ranks hold together."""
    squares = sum(g.square().sum() for g in grads)
    dist.all_reduce(squares)
    return squares.sqrt()

shared = on_ranks()
print(f"the ranks believe {shared[0][0]:.3f} and {shared[1][0]:.3f}")
print(f"after the clip at 0.1: {shared[0][1].norm():.4f}")
print(f"weights after 30 steps: {gap(shared[0][2], ended):.1%} off, "
      f"before {gap(own[0][2], ended):.1%}")

# %% trap="09.12" role="repair"
claim("norm of the whole gradient after clipping with squares summed over "
      "the ranks", shared[0][1].norm().item(), expected=0.1, within=1e-4)

# %% [markdown] trap="09.12" role="more" topics="compared with a single process, as bounds · torch's own clip on DTensors"
# These claims compare both clips with the run of a single process:

# %% trap="09.12" role="more"
claim("larger of the norms that the two ranks compute, divided by the true "
      "norm",
      max(own[0][0], own[1][0]) / norm, below=0.95)
claim("relative error of the weights after 30 steps, with each rank "
      "clipping by its own norm", gap(own[0][2], ended), above=0.02)
claim("relative error of the clipped gradient, with squares summed over "
      "the ranks", gap(shared[0][1], clipped), below=1e-4)
claim("relative error of the weights after 30 steps, with squares summed "
      "over the ranks", gap(shared[0][2], ended), below=5e-3)

# %% [markdown] trap="09.12" role="folklore"
# **Told:** `torch.nn.utils.clip_grad_norm_` is wrong on sharded models. **Measured:** If
# all gradients come from `fully_shard` and are sharded over the same ranks, the function
# clips as it does in a single process, because these gradients are `DTensor`s, which know
# that they are parts of a larger tensor. The advice comes from the older FSDP class,
# which has its own method for clipping. Torch's function also *returns* a `DTensor`, so
# call `.full_tensor()` on the result before you log it.

# %% trap="09.12" role="folklore"
def torch_clip(x, y, seed):
    """The first gradient after torch's own clip, and what it returned."""
    net, rows = sharded(seed), torch.arange(dist.get_rank(), 64, 2)
    F.cross_entropy(net(x[rows]), y[rows]).backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    whole = flat(p.grad.full_tensor() for p in net.parameters())
    return norm.full_tensor().item(), whole.norm().item()

returned, clipped_norm = ranks.run(torch_clip, x_train, y_train, SEED,
                                   uses=(deep, sharded, flat))[0]
print(f"returned {returned:.3f}, after the clip {clipped_norm:.4f}")

# %% trap="09.12" role="folklore"
claim("norm of the whole gradient after torch's own clipping of DTensors",
      clipped_norm, expected=0.1, within=1e-4)

# %% trap="09.12" role="exercise" points=3 difficulty=2 minutes=15
def clip_shards(shards: list, max_norm: float, all_sum) -> float:
    """Clip this rank's shards in place. Return the whole gradient's norm.

    If the norm of the whole gradient (all shards of all ranks) is above
    max_norm > 0, clip it to max_norm, up to a relative error of 1e-4.
    Otherwise change no shard. The sum of all squares fits into float32.
    Return the norm before clipping.

    Args:
        shards: this rank's parts of the gradients, float32, of any shape;
            some can have no elements, and a rank can have no shards.
        all_sum(tensor): returns the sum over ranks, a new tensor. All ranks
            must call it the same number of times, in the same order, with
            the same shapes and dtypes.

    Example: shards [3.] on this rank and [4.] on another, with max_norm 1,
    give 5.0, and this rank's shard becomes [0.6].
    """
    # BEGIN SOLUTION
    squares = torch.zeros(())
    for shard in shards:
        squares += shard.square().sum()
    norm = all_sum(squares).sqrt().item()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
    # END SOLUTION

# %% [markdown] trap="09.12" role="hint"
# 1. Which of the two adds up over the parts of a gradient: the norm or its square?
# 2. A rank without shards also has to take part in the sum, with a zero.
# 3. Take the root after the sum over ranks. If the norm is larger than `max_norm`, scale all shards in place by the same factor, `max_norm / norm`.

# %% [markdown] trap="09.12" role="keep"
# **Keep:** Before you clip sharded gradients, sum the squares over all ranks that hold
# *different* parts, and take the root. If several ranks hold copies of the same part, as
# in hybrid sharding, count each part once. **In your own code:** Print the gradient norm
# on two ranks of a sharded run. The two ranks have to report the same norm. **Source:**
# [pytorch
# #72548](https://github.com/pytorch/pytorch/issues/72548) explains why the older FSDP got
# a method of its own. **Seen in the wild:** [AReaL
# #312](https://github.com/areal-project/AReaL/issues/312): the norm was taken over local
# shards, so clipping changed with the number of GPUs; [miles_diffusion
# #35](https://github.com/radixark/miles_diffusion/pull/35): the clipping was right, but
# the log showed the norm of a single shard.

# %% [markdown] trap="09.7" role="situation" fault="rank 0 alone saves a sharded model" symptom="FSDP2 checkpoint saved by rank 0, All keys matched successfully, the resumed model is bad"
# ## A checkpoint, saved as always
#
# Your net is sharded over two ranks with `fully_shard` and has trained for 60 steps.
# You save the net as you always have in one process: `if dist.get_rank() == 0:
# torch.save(net.state_dict(), path)`.
#
# The next day, two ranks build and shard the net again, from different random weights.
# Each rank loads the file with `net.load_state_dict(torch.load(path))`. "Names and
# shapes are the same, so the file will load without complaint," a colleague says.

# %% trap="09.7" role="break"
def shard_and_train(x, y, seed, steps=60):
    """Shard and train a net with AdamW; return net and optimizer."""
    net = fully_shard(mlp(seed))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for k in range(steps):
        rows = torch.arange(20 * k, 20 * (k + 1))[dist.get_rank()::2]
        descend(net, optimizer, x[rows], y[rows])
    return net, optimizer

def all_numbers(net):
    """All values of a sharded net in one vector."""
    return flat(p.full_tensor() for p in net.parameters())

# %% trap="09.7" role="break"
def saved_by_one(path, x, y, seed):
    """The net before saving and after loading, and what loading said."""
    net, _ = shard_and_train(x, y, seed)
    if dist.get_rank() == 0:
        torch.save(net.state_dict(), path)
    dist.barrier()                                  # the next day
    fresh = fully_shard(mlp(seed + 1))
    said = fresh.load_state_dict(torch.load(path))
    return all_numbers(net), all_numbers(fresh), str(said)

helpers = (mlp, flat, descend, shard_and_train, all_numbers)
saved, read_back, said = ranks.run(saved_by_one, one_file, x_train, y_train,
                                SEED, uses=helpers)[0]

# %% trap="09.7" role="guess" quoted="right"
guess("09.7", "After loading, what do the two ranks together hold?",
      choices=["the same half of the saved net, twice",
               "the whole saved net",
               "half of the saved net and half of the random weights"])

# %% trap="09.7" role="look" compare=false
correct = [(reads(weights) == y_test).float().mean().item()
           for weights in (saved, read_back)]
other = (read_back != saved).float().mean().item()
print(said)
print(f"accuracy: saved {correct[0]:.2f}, loaded {correct[1]:.2f}")
print(f"values that differ from the saved ones: {other:.1%}")

# %% trap="09.7" role="look"
measured("09.7", 0)

# %% trap="09.7" role="look"
claim("fraction of loaded values that differ from the saved values",
      other, expected=0.5, within=1e-3)

# %% [markdown] trap="09.7" role="why"
# After `fully_shard`, the values of `state_dict()` are `DTensor`s. A `DTensor` reports
# the shape of the whole tensor, but holds only the rows of its own rank. The file that
# rank 0 saved contains only the rows of rank 0. When rank 1 loads the file, shapes and
# names match, so rank 0's rows replace rank 1's own rows. Only shards of different sizes
# would raise an error.

# %% trap="09.7" role="why"
upper, lower = read_back[:32 * 64].view(2, 16, 64)
doubled = "A" if torch.equal(upper, lower) else "?"
draw_ranks({"trained": [["A", ""], ["", "B"]],
            "in the file": [["A", ""], ["", ""]],
            "loaded": [["A", ""], ["", doubled]]},
           marks={"loaded": [(1, 1)]},
           title="Rank 1 gets rank 0's rows instead of its own",
           alt="Three tables of two ranks and two halves of the rows, A "
               "and B. After training, rank 0 holds A and rank 1 holds B. "
               "The file holds only A. After loading, both ranks hold A, "
               "and rank 1 has lost B.")

# %% [markdown] trap="09.7" role="repair"
# All ranks have to take part in saving a sharded net. `torch.distributed.checkpoint`,
# *DCP* for short, lets each rank write its own part into one folder, with a table of
# contents. A program that loads the checkpoint reads only the parts it needs, so a
# different number of ranks can load what two ranks have written. `get_state_dict` names
# parameters and optimizer state in the same way, however they are sharded.

# %% trap="09.7" role="repair"
def save(folder, net, optimizer):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    model, state = get_state_dict(net, optimizer)
    dcp.save({"model": model, "optimizer": state}, checkpoint_id=folder)

def load(folder, net, optimizer):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as states
    parts = dict(zip(("model", "optimizer"),
                     states.get_state_dict(net, optimizer), strict=True))
    dcp.load(parts, checkpoint_id=folder, no_dist=not dist.is_initialized())
    states.set_state_dict(net, optimizer, model_state_dict=parts["model"],
                          optim_state_dict=parts["optimizer"])

# %% trap="09.7" role="repair"
def on_and_back(folder, x, y, seed):
    """The net as saved and as loaded, and both two steps later."""
    net, optimizer = shard_and_train(x, y, seed)
    save(folder, net, optimizer)
    fresh = fully_shard(mlp(seed + 1))
    other = torch.optim.AdamW(fresh.parameters(), lr=1e-2)
    load(folder, fresh, other)
    seen = [all_numbers(net), all_numbers(fresh)]
    for model, its_own in ((net, optimizer), (fresh, other)):
        for k in range(2):
            descend(model, its_own, x[k::50], y[k::50])
        seen.append(all_numbers(model))
    return seen

# %% trap="09.7" role="repair"
before, after, straight, resumed = ranks.run(
    on_and_back, folder, x_train, y_train, SEED,
    uses=(*helpers, save, load))[0]
alone = mlp(SEED + 1)                               # a world of one
load(folder, alone, torch.optim.AdamW(alone.parameters(), lr=1e-2))
alone_reads = (reads(flat(alone.parameters())) == y_test).float().mean()
print("files:", sorted(path.name for path in Path(folder).iterdir()))
print(f"accuracy of one process that loaded them: {alone_reads:.2f}")

# %% trap="09.7" role="repair"
claim("number of values that differ between the resumed and uninterrupted "
      "runs, two steps later",
      (resumed != straight).sum(), expected=0)

# %% [markdown] trap="09.7" role="more" topics="both loads, as bounds · how rows are cut · one file to pass on"
# These claims put bounds on the results of both ways of loading:

# %% trap="09.7" role="more"
claim("accuracy of the saved net", correct[0], above=0.75)
claim("accuracy of the net loaded from rank 0's file",
      correct[1], below=0.6)
claim("number of values that differ between the two loaded halves of the "
      "first weight", (upper != lower).sum(), expected=0)
claim("number of values that differ from the saved values after two ranks "
      "load the checkpoint", (after != before).sum(), expected=0)
claim("number of values that differ from the saved values after one "
      "process loads the checkpoint",
      (flat(alone.parameters()) != before).sum(), expected=0)

# %% [markdown] trap="09.7" role="more"
# Each rank takes the same number of rows, rounded up, until no rows are left, so the last
# ranks can get fewer rows or none:

# %% trap="09.7" role="more"
def rows_held(features):
    """Shape of this rank's part of the weight, and of the weight."""
    weight = fully_shard(nn.Linear(2, features)).weight
    return tuple(weight.to_local().shape), tuple(weight.shape)

for features in (10, 3, 1):
    (first, full), (second, _) = ranks.run(rows_held, features)
    print(f"whole {full}: rank 0 holds {first}, rank 1 {second}")
print("ten rows on four ranks:", *map(len, torch.arange(10).chunk(4)))

# %% trap="09.7" role="more"
claim("number of rows that rank 1 holds of a weight with one row",
      second[0], expected=0)

# %% [markdown] trap="09.7" role="more"
# To pass a model on, one file with whole tensors is often better. For that file, all
# ranks have to take part: `get_model_state_dict(net,
# options=StateDictOptions(full_state_dict=True, cpu_offload=True))` gathers the whole
# tensors. So the call belongs outside `if rank == 0`, and only `torch.save` belongs
# inside. (Older scripts call `dcp.save_state_dict` with a storage writer; this function
# is deprecated.)

# %% trap="09.7" role="exercise" points=3 difficulty=2 minutes=15
def reshard(shards: list, world: int) -> list[dict]:
    """Turn the shards of a state into shards for `world` ranks.

    A tensor of n rows is cut along its first dimension: each rank in turn
    takes ceil(n / ranks) rows, or what is left. A part without rows keeps
    its other sizes. A tensor without dimensions is whole on each rank.

    Args:
        shards: for each rank, in order, a dict from name to tensor; all
            dicts have the same names in the same order, possibly no names.

    Returns:
        A list of the same kind, with the same order of names and the same
            types. Each tensor in the list has memory of its own, and no
            more than it needs.

    The given shards and their tensors are unchanged.
    Example: 5 values on two ranks, [0., 1., 2.] and [3., 4.], become [0.,
    1.], [2., 3.], [4.] and [] on four ranks.
    """
    # BEGIN SOLUTION
    found = [{} for _ in range(world)]
    for name, first in shards[0].items():
        whole = first
        if first.dim():
            whole = torch.cat([part[name] for part in shards])
            rows = -(-len(whole) // world)
        for rank, mine in enumerate(found):
            part = whole
            if first.dim():
                part = whole[rank * rows:(rank + 1) * rows]
            mine[name] = part.clone()
    return found
    # END SOLUTION

# %% [markdown] trap="09.7" role="hint"
# 1. Put a tensor together first: `torch.cat` of the parts, in the order of the ranks.
# 2. `-(-n // world)` rounds up. A slice beyond the end has no rows and keeps its other sizes.
# 3. A slice is a view of the whole tensor's memory, and `torch.save` would write this whole memory, so copy the slice first. A tensor without dimensions has no rows to cut.

# %% [markdown] trap="09.7" role="keep"
# **Keep:** Save a sharded model from all ranks. To resume later, use `dcp.save` and
# `dcp.load` with one folder. To pass the model on, gather and save one complete
# `state_dict`. **In your own code:** Right after saving, load each kind of checkpoint
# into a fresh model once, and compare a loss. **Seen in the wild:**
# [`huggingface/transformers#48569`](https://github.com/huggingface/transformers/pull/48569):
# under tensor parallelism, saving hangs because rank 0 alone gathers, and the optimizer
# state comes back wrong "without a word";
# [`PrimeIntellect-ai/prime-rl#827`](https://github.com/PrimeIntellect-ai/prime-rl/issues/827):
# each rank saved its own file, so it was hard to resume a run on a different number of
# GPUs; [`pytorch/pytorch#120356`](https://github.com/pytorch/pytorch/issues/120356):
# plain tensors with the same name are treated as copies even if they differ between
# ranks, and only one of them is saved. **Source:** PyTorch documentation,
# [torch.distributed.checkpoint](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html).

# %% [markdown] role="concept"
# ## Further: the same step in JAX
#
# JAX runs one program for all devices and has no wrapper that you could bypass. Each
# array knows how it is distributed: here, the batch is split over eight devices, and each
# device has all the weights. JAX reads this distribution and inserts the all-reduce
# itself. A flag makes one CPU appear as eight devices. The flag has to be set before JAX
# starts, so the script runs in its own process.

# %% role="concept"
jax_script = Path(disk.name) / "step.py"
_ = jax_script.write_text('''
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((8,), ("data",))
x = jax.random.normal(jax.random.key(0), (64, 16))
y, w = x.sum(1), jnp.zeros(16)
loss = lambda w, x, y: jnp.mean((x @ w - y) ** 2)
step = jax.jit(lambda w, x, y: w - 0.1 * jax.grad(loss)(w, x, y))
rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
spread = jax.device_put((w, x, y), (whole, rows, rows))
text = step.lower(*spread).compile().as_text()
gap = float(jnp.abs(step(*spread) - step(w, x, y)).max())
print(len(jax.devices()), text.count(" all-reduce("), gap)
''')

# %% role="concept"
devices, reduces, off = map(float, launched(
    str(jax_script), JAX_PLATFORMS="cpu",
    XLA_FLAGS="--xla_force_host_platform_device_count=8")[-1].split())
print(f"{devices:.0f} devices, all-reduce in the program: {reduces:.0f}")

# %% role="concept"
claim("number of devices that JAX uses", devices, expected=8)
claim("number of all-reduce operations that JAX inserted", reduces, above=0)
claim("largest gap between the results of the step on eight devices and of "
      "the step on one device",
      off, below=1e-5)

# %% role="concept" tags=["plumbing"]
disk.cleanup()

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. You train with `autocast` in `bfloat16`. The optimizer's moments are in**
#
# - [x] `float32`, like weights and gradients :: `autocast` casts the inputs of some operations. Stored tensors keep their type.
# - [ ] `bfloat16`, like everything else :: That would be the result of
#   `model.bfloat16()`, which loses small steps.
# - [ ] `bfloat16`, with a master :: There is no second copy: the weights never left `float32`.

# %% [markdown] role="quiz"
# **2. In `float16`, `clip_grad_norm_` is called between `backward` and `scaler.step`, without
# `unscale_`. With SGD**
#
# - [x] the steps become far too short :: Clipping cuts a scaled gradient to 1, and then the scale is divided out.
# - [ ] nothing changes, because the scaler divides again :: The scaler divides the
#   clipped gradient, so the norm is 1 / 65,536.
# - [ ] gradients overflow :: The scaler detects an overflow and skips the step in either
#   case.

# %% [markdown] role="quiz"
# **3. A `bfloat16` weight of 2 gets steps of 0.003. The weight**
#
# - [ ] moves by about 0.003 each time :: The next number after 2 is 0.0156 away, and half
#   of this gap is more than 0.003.
# - [ ] moves in every fifth step :: Without a master, nothing is kept from one step to the next.
# - [x] stays where it is :: Each sum rounds back to 2.

# %% [markdown] role="quiz"
# **4. Four pieces have 10, 10, 10 and 2 labels that count. The mean loss of each piece is
# divided by four. A label of the last piece counts**
#
# - [ ] as much as any other :: For this, you would have to divide the sums of all pieces
#   by one number, 32.
# - [ ] a fifth as much :: The opposite is true, because only two labels share a quarter
#   of the total weight.
# - [x] five times as much :: In the last piece, two labels share a quarter of the total
#   weight; in the others, ten labels do.

# %% [markdown] role="quiz"
# **5. Each of eight GPUs holds all weights and gradients in 16 bits, and an eighth of the
# masters and moments. For 7 billion weights, that is**
#
# - [ ] 14 GB each :: This would be right if weights and gradients were also split.
# - [x] 38.5 GB each :: Each GPU holds 28 GB of weights and gradients, and an eighth of
#   the 84 GB of masters and moments.
# - [ ] 112 GB each :: This would be right if nothing were split.

# %% [markdown] role="quiz"
# **6. A module has `self.mean = torch.zeros(64)`. After `load_state_dict`, which says that all keys matched, this tensor**
#
# - [x] has the value from `__init__` :: This tensor is neither a parameter nor a buffer,
#   so it is neither saved nor reported as missing.
# - [ ] has the value from the file :: The file does not contain this tensor.
# - [ ] raises an error at the first call :: This may happen once the model has moved to
#   another device.

# %% [markdown] role="quiz"
# **7. Two ranks train with DDP. The tape of a step has no `all_reduce`, but the losses fall.
# You look first for**
#
# - [ ] gradients that are too small to send :: DDP sends them whatever their size, even zeros.
# - [x] a forward pass that goes to `ddp.module` :: The wrapper's forward pass prepares the exchange. Without it, the gradients stay on the rank.
# - [ ] a network that is down :: A call that cannot be made is on the tape all the same,
#   and the rank waits or raises an error.

# %% [markdown] role="quiz"
# **8. Rank 0 evaluates alone, and the evaluation ends in an `all_reduce`. What happens?**
#
# - [ ] rank 0 gets its own values as the sum :: A collective has to be made by all ranks
#   of its group.
# - [ ] rank 1 raises an error, because it makes no call :: Rank 1 does not know of the
#   call and goes on to its own next call.
# - [x] rank 0 waits for rank 1, whose next call is a different one :: If rank 1's next
#   call is a gloo barrier, both ranks wait until a timeout ends them. If it is an
#   `all_reduce` of the same size, the two calls pair up, and both results are wrong.

# %% [markdown] role="quiz"
# **9. Each of four ranks clips its own shard to a norm of 1, and before clipping, every
# norm was larger than 1. The norm of the whole gradient is then**
#
# - [ ] 1 :: For this, the ranks would have to clip by the whole gradient's norm, from
#   squares summed over the ranks.
# - [x] 2 :: Four squares of 1 add up to 4, and the root of 4 is 2.
# - [ ] 4 :: Squares add up, norms do not.

# %% [markdown] role="quiz"
# **10. A model and its AdamW state fit on each GPU with room to spare. You want speed on four GPUs. You take**
#
# - [x] DDP :: Each gradient goes out once, in buckets; sharding would add gathers for memory that you do not need.
# - [ ] every layer in shards, as large models do :: This sends about half as much again,
#   and each layer waits for its weights.
# - [ ] the model as one shard :: Each GPU still holds all weights in forward and all
#   gradients at the end of backward; only memory for the moments is saved, and they fit
#   anyway.

# %% [markdown] role="gpu"
# ## On a GPU: what fewer bits, copies and waits cost
#
# Four things in this stage have to be timed: a matrix product in each format, the
# transfer of data to the card, the waits of trap 09.10, and a whole step. The step trains
# a small GPT, with 4 blocks of width 2,048, on 8 texts of 1,024 tokens. The step's *MFU*,
# model FLOPs utilization, is its FLOPs per second as a fraction of the card's peak rate.
#
# **Before you run anything:** How many FLOPs does a training step of this GPT need per
# token and per weight? How fast is a matrix product in `bfloat16`, and how fast in `float8`,
# as a multiple of its speed in `float32`? How much time does a copy cost if it runs at
# the same time as a product? And how often do three steps wait if each asks for its loss?

# %% role="gpu"
from dlsys_helpers.gpu import half_dtype
from torch.profiler import profile, supported_activities

class Block(nn.Module):
    """Causal attention of 16 heads, then an MLP; norms without weights."""

    def __init__(self, width):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in "qkvo")
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):                         # (texts, tokens, width)
        *qkv, out = self.parts
        h = F.layer_norm(x, x.shape[-1:])
        heads = [part(h).unflatten(-1, (16, -1)).transpose(1, 2)
                 for part in qkv]
        a = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + out(a.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(F.layer_norm(x, x.shape[-1:]))))

# %% role="gpu"
def gpt(where, width=2048, blocks=4, words=32768):
    """A small GPT: words, blocks, and a score for each word."""
    with torch.device(where):
        middle = [Block(width) for _ in range(blocks)]
        return nn.Sequential(nn.Embedding(words, width), *middle,
                             nn.Linear(width, words, bias=False))

def train_step(net, opt, tokens, half):
    """A step that predicts each next token; the loss stays a tensor."""
    with torch.autocast(tokens.device.type, half_dtype(tokens.device),
                        enabled=half):
        logits = net(tokens[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits, tokens[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()

# %% role="gpu"
def step_flops():
    """FLOPs of a step, and how many weights multiply each token."""
    net = gpt("meta")
    tokens = torch.zeros(8, 1024, dtype=torch.long, device="meta")
    used = sum(p.numel() for layer in net[1:] for p in layer.parameters()
               if p.dim() > 1)
    return flops(lambda: net(tokens).sum().backward()), used

def timed(what, call):
    """A row of a record: the median and the quartiles, in ms."""
    ms = [1e3 * s for s in seconds(call, repeats=10, device="cuda")]
    return {"what": what, "ms": ms[0], "ms_low": ms[1], "ms_high": ms[2]}

step_work, used = step_flops()
each_weight = step_work / (8 * 1024) / used
print(f"a step: {step_work / 1e12:.1f} TFLOP; {used / 1e6:.0f} million "
      f"weights in products, {each_weight:.1f} FLOPs per weight and token")
claim("FLOPs of one step, per token and per weight in a matrix product",
      each_weight, above=6, below=7.5)

# %% role="gpu"
def over(result, first, second):
    """Time of one row, compared with a second one."""
    ms = {row["what"]: row["ms"] for row in result.rows}
    return ms[first] / ms[second]

def product(a, b):
    if a.itemsize > 1:
        return a @ b.t()
    one, how = torch.ones((), device=a.device), F.ScalingType.TensorWise
    return F.scaled_mm(a, b.t(), one, how, one, how)

def waits(call):
    """How often three calls wait for the device, by the profiler."""
    with profile(activities=supported_activities()) as seen:
        [call() for _ in range(3)]
    return sum(e.name == "cudaStreamSynchronize" for e in seen.events())

# %% role="gpu"
@gpu_result("09/rates", uses=[timed, product],
            columns=["what", "ms", "ms_low", "ms_high"])
def rates():
    """A product of two random matrices of 8192 x 8192, by format."""
    for what in ("float32", "bfloat16", "float16", "float8_e4m3fn"):
        a, b = torch.randn(2, 8192, 8192, device="cuda").to(
            getattr(torch, what))
        yield timed(what, lambda: product(a, b))
    torch.set_float32_matmul_precision("high")
    a, b = torch.randn(2, 8192, 8192, device="cuda")
    yield timed("TF32", lambda: product(a, b))

# %% role="gpu"
def beside(there, host, call, side):
    """The copy on a stream of its own, while the call runs."""
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        there.copy_(host, non_blocking=True)
    call()
    torch.cuda.current_stream().wait_stream(side)

@gpu_result("09/copies", uses=[timed, beside],
            columns=["what", "ms", "ms_low", "ms_high"])
def copies():
    """A GB from the host, a product in float32, and both at a time."""
    host, there = torch.randn(2**28), torch.empty(2**28, device="cuda")
    a, pin = torch.randn(8192, 8192, device="cuda"), host.pin_memory()
    side = torch.cuda.Stream()
    yield timed("ordinary", lambda: there.copy_(host))
    yield timed("pinned", lambda: there.copy_(pin, non_blocking=True))
    yield timed("product", lambda: a @ a)
    yield timed("both", lambda: beside(there, pin, lambda: a @ a, side))

# %% role="gpu"
@gpu_result("09/steps", uses=[timed, gpt, train_step, waits],
            columns=["what", "ms", "ms_low", "ms_high", "waits", "asking"])
def steps():
    """Steps of the GPT; waits of three, and of three that ask the loss."""
    tokens = torch.randint(32768, (8, 1025), device="cuda")
    net = gpt("cuda")
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    forms = {"float32": net, "autocast": net,
             "compiled": torch.compile(net)}
    for what, form in forms.items():
        def call():
            return train_step(form, opt, tokens, half=what != "float32")
        yield timed(what, call) | {
            "waits": waits(call), "asking": waits(lambda: call().item())}

sheet = datasheet(rates.device_name)
cores = sheet.half_tflops / sheet.fp32_tflops
least = sheet.least_us(step_work, 0) / 1e3           # ms

# %% role="gpu"
answers = gpu_table(
    sheet,
    rates.asks("time of a product: float32 divided by bfloat16", cores,
               lambda: over(rates, "float32", "bfloat16"), above=3),
    rates.asks("time of a product: bfloat16 divided by float8", 2,
               lambda: over(rates, "bfloat16", "float8_e4m3fn"), above=1.2),
    copies.asks("time of a copy: ordinary divided by pinned", "above 1",
                lambda: over(copies, "ordinary", "pinned"), above=1),
    copies.asks("copy and product at once, divided by the longer one", 1,
                lambda: min(over(copies, "both", "pinned"),
                            over(copies, "both", "product")), below=1.3),
    steps.asks("three steps: extra waits if each asks for its loss", 3,
               lambda: steps.value("asking", what="autocast")
               - steps.value("waits", what="autocast"), above=2),
    steps.asks("time of a step: autocast divided by compiled", "above 1",
               lambda: over(steps, "autocast", "compiled"), above=1),
    steps.asks("compiled step: MFU in %", "below 100", lambda: 100 * least
               / steps.value("ms", what="compiled"), "52 % on 3,072 A100s "
               "(arXiv 2104.04473)", above=20, below=100))
answers

# %% [markdown] role="gpu"
# **On the H100 used for the recorded run**, a matrix product in `float32` takes 15.6
# times as long as in `bfloat16`. In TF32, the product takes 1.9 times as long as in
# `bfloat16`; in `float8`, it takes 0.55 times as long as in `bfloat16`. The cell that
# measures these times leaves TF32 switched on. So in the two cells after it, the rows
# called float32 compute their products in TF32, and the product that runs during the
# copies takes 2.7 ms, not 21 ms.
#
# Copies from pinned memory are six times as fast as ordinary copies. A product that runs
# during such a copy costs no extra time: copy and product together take as long as the
# copy. One after the other, the two would take 1.13 times as long, because this product
# takes an eighth of the copy's time. The compiled step reaches 47 % of the card's rate,
# with attention's FLOPs counted as if nothing were masked. Without `torch.compile`, the
# same step takes an eighth more time, and with TF32 instead of `autocast`, twice as long
# as the compiled step. Three training steps wait three times if each asks for its loss,
# and never if no step asks.
#
# **Keep:** Count a step's FLOPs and divide the count by the card's peak rate in the
# format you use. If the count holds only work that is done, the step cannot take less
# time than this quotient. The MFU says how close you are. Use 16 bits and pinned memory,
# and do not read values back from the card in every step. **Source:** [Narayanan et al.
# 2021](https://arxiv.org/abs/2104.04473) for utilization at scale, including recomputed
# FLOPs; PyTorch documentation, [CUDA
# semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html), on TF32, pinned memory
# and streams.

# %% [markdown] role="summary"
# ## What you take with you
#
# - A number format has a range, and a gap between neighbouring numbers. `float16` lacks
#   range, and `bfloat16` is coarse.
# - Use a gradient scaler only with `float16`, in this order: scale, backward, unscale,
#   clip, step, update.
# - With 8 bits or fewer, each tensor, or each block of a tensor, needs a scale of its own
#   (`MXFP8`, `NVFP4`).
# - A 16-bit weight loses updates that are smaller than half the gap to the next number. A
#   master copy in `float32` adds such updates up.
# - Profile before you change anything: the data, then Python, then memory or
#   arithmetic.
# - AdamW takes 16 bytes per weight in three of the four layouts in trap 09.9. Mixed
#   precision can halve the memory for activations.
# - The effective batch is rows per pass x accumulated passes x ranks. Divide the loss by
#   the number of labels that count in the whole step.
# - All ranks of a group have to make the same collective calls, in the same order. The
#   ranks' tapes show where the calls differ.
# - With several ranks, compute the loss through the DDP wrapper, sum squared norms over
#   the ranks, make the optimizer after sharding, and save from all ranks.
# - Every value that Python requests from the GPU causes a wait and usually a break in a
#   compiled graph.
# - Make every tensor that belongs to the model a parameter or a buffer.
#
# **Next:** Stage 10 trains one percent of a model, and asks which percent.
