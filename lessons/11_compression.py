# %% [markdown] role="hook"
# # 11. Quantization, pruning, distillation and export
#
# Your digit classifier has to move to a device with little memory, no Python, and a
# processor that is fast with small integers. So you round the model's weights, remove
# some of them, train a smaller model to imitate it, and write the result to a file that
# another program can run. Each of these steps can change the model a lot without an error
# message, and often without changing the one number that you happen to check. After every
# step, this stage measures three things: the size, the output error, and the accuracy. It
# also says which of the three you need.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import contextlib
import copy
import io
import warnings

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers import (
    accuracy, begin, check, claim, cost, datasheet, digits, draw_blocks,
    draw_boxes, draw_grids, draw_histogram, draw_line, fit, flops,
    gpu_result, gpu_table, guess, measured, plot_bars, plot_columns,
    plot_lines, seconds,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## A grid, a scale and a zero
#
# A weight is a float of 4 bytes, and your device has room for one byte per weight. A byte
# can take 256 different values. So you lay a *grid* of 256 evenly spaced levels over the
# weights, and for each weight you store only the number of the nearest level, its *code*.
# This is *quantization*. To turn a code back into a weight, you need two more numbers:
# the *scale*, which is the distance between two levels, and the *zero*, which is the code
# of the level at 0.
#
# Here are four weights. The lowest is -1.2, the highest is 2.1, and 256 levels have 255
# gaps:

# %% role="concept"
w = torch.tensor([-1.2, 0.0, 0.37, 2.1])
low, high = -1.2, 2.1
scale = (high - low) / 255              # the distance between two levels
steps = (w / scale).round()             # whole steps away from 0
print(f"scale {scale:.5f}   steps {steps.int().tolist()}")

# %% [markdown] role="concept"
# An unsigned byte cannot hold negative numbers, so shift all steps up by the number of
# steps between the lowest level and 0. This shift is the zero. (A signed byte holds -128
# to 127. Quantization to either type is called INT8.)

# %% role="concept"
zero = round(-low / scale)
codes = (steps + zero).to(torch.uint8)       # one byte each
back = scale * (codes.float() - zero)        # what the device computes with
print(f"zero {zero}   codes {codes.tolist()}")
print("back", [round(v, 4) for v in back.tolist()])

# %% role="concept"
by_torch = torch.fake_quantize_per_tensor_affine(w, scale, zero, 0, 255)
claim("largest gap between our rounded weights and torch's rounded weights",
      (back - by_torch).abs().max(), below=1e-6)
claim("largest rounding error, as a fraction of the scale",
      ((back - w).abs().max() / scale).item(), below=0.501)

# %% [markdown] role="concept"
# Rounding moves a weight by at most half a step, and 0 stays exactly 0. With fewer bits,
# the steps are larger, and the grid shifts a little so that 0 is still a level:

# %% role="concept"
def levels_of(bits):
    """All levels of a grid over these four weights."""
    top = 2**bits - 1
    step = (high - low) / top
    return [step * (code - round(-low / step)) for code in range(top + 1)]

draw_line({"weights": [(v, f"{v:g}") for v in w.tolist()],
           "8 bits": levels_of(8), "4 bits": levels_of(4),
           "2 bits": [(v, str(k)) for k, v in enumerate(levels_of(2))]},
          unit="value", title="Fewer bits, fewer levels: 256, 16, 4",
          alt="Four weights on a number line from -1.2 to 2.1. Below them "
              "are the levels of three grids: 256 at 8 bits, too dense to "
              "tell apart, 16 at 4 bits, and four at 2 bits, numbered 0 to "
              "3.")

# %% [markdown] role="concept"
# A grid that extends from the lowest to the highest weight is *affine*. A *symmetric*
# grid extends equally far on both sides of 0. Here, the codes of a symmetric grid have a
# sign, and the zero is 0, so you do not have to store the zero (some libraries add the
# same constant to codes and zero):
#
# | grid with `bits` bits | scale $s$ | code of $w$ | value of a code |
# |---|---|---|---|
# | *symmetric* | $\max \lvert w \rvert \,/\, (2^{bits-1} - 1)$ | $\mathrm{round}(w / s)$ | $s \cdot code$ |
# | *affine* | $(high - low) \,/\, (2^{bits} - 1)$ | $\mathrm{round}(w / s) + zero$ | $s \cdot (code - zero)$ |
#
# An affine grid of this kind always includes 0. If all weights are positive, the grid
# starts at 0; if all are negative, the grid ends at 0. One grid, with one scale, can
# cover the whole matrix, a single row (the weights of one output, also called a
# *channel*), or a *group* of neighbours within a row.

# %% role="concept"
def symmetric(w, bits):
    """Round weights (G, n) with one symmetric grid per row."""
    top = 2 ** (bits - 1) - 1
    scale = w.abs().amax(-1, keepdim=True) / top
    return (w / scale).round().clamp(-top, top) * scale

print("symmetric, 4 bits:",
      [round(v, 1) for v in symmetric(w[None], 4).tolist()[0]])

# %% role="concept"
claim("largest error of the symmetric grid with 4 bits, as a fraction of "
      "the scale",
      ((symmetric(w[None], 4) - w).abs().max() / (2.1 / 7)).item(),
      below=0.501)

# %% [markdown] role="concept"
# Shapes in this stage: a weight matrix is `(out, in)`; in `(G, n)`, each of `G` rows of `n`
# weights has its own grid; `N` is the number of rows of data.

# %% role="concept" tags=["plumbing"]
def saved(state):
    """The length in bytes of the file that torch.save writes."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getbuffer().nbytes

# %% [markdown] trap="11.1" role="situation" core=true fault="2 bits on a symmetric grid: most weights become zero" symptom="accuracy collapses after low-bit quantization, although a few more bits cost nothing"
# ## Fewer and fewer bits
#
# You train five four-layer classifiers on the digits; only their initial weights differ.
# Then you round each weight matrix with its own symmetric grid. At 8, 4 and 3 bits, the
# classifiers lose little accuracy. At 2 bits, they break down.
#
# Two bits allow four codes, and a symmetric grid uses three of them. Your comment says:
# "An affine grid has one more level, which cannot be worth much."

# %% trap="11.1" role="break"
x_train, y_train, x_test, y_test = digits()       # (1300, 64), (497, 64)

def mlp(*sizes):
    """Linear layers with a ReLU between them."""
    layers = [layer for i, o in zip(sizes, sizes[1:])
              for layer in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1])

classifiers = [mlp(64, 64, 64, 64, 10) for _ in range(5)]
for model in classifiers:
    fit(model, x_train, y_train, steps=400, lr=3e-3)
classifier = classifiers[0]

# %% trap="11.1" role="break"
def rounded(model, *rules):
    """Copy a model; rule k (or the only rule) rounds weight matrix k."""
    model = copy.deepcopy(model)
    layers = [m for m in model if isinstance(m, nn.Linear)]
    for k, layer in enumerate(layers):
        w = layer.weight.data
        layer.weight.data = rules[k % len(rules)](w).view_as(w)
    return model

# %% trap="11.1" role="break"
def whole(bits):
    """One symmetric grid for the whole matrix."""
    return lambda w: symmetric(w.view(1, -1), bits)

def mean_read(*rules):
    """Mean test accuracy of the five classifiers after rounding."""
    return sum(accuracy(rounded(model, *rules), x_test, y_test)
               for model in classifiers) / len(classifiers)

full = mean_read(lambda w: w)
read = {bits: mean_read(whole(bits)) for bits in (2, 3, 4, 8)}

# %% trap="11.1" role="break"
def grouped(bits, size=16):
    """A rule: each group of `size` neighbours gets an affine grid."""
    def rule(w):
        groups, top = w.reshape(-1, size), 2**bits - 1
        low = groups.amin(1).clamp(max=0)
        scale = (groups.amax(1).clamp(min=0) - low) / top
        zero = (-low / scale).round().int()
        return torch.fake_quantize_per_channel_affine(
            groups, scale, zero, 0, 0, top)      # axis 0, codes 0 to top
    return rule

def affine(bits):
    """A rule: one affine grid for the whole matrix, as a single group."""
    return lambda w: grouped(bits, w.numel())(w)

by_four = mean_read(affine(2))

# %% trap="11.1" role="guess" quoted="wrong"
guess("11.1",
      "At 2 bits, how many percentage points does the accuracy gain if you "
      "use affine grids instead of symmetric grids?",
      choices=["50",
               "20",
               "5",
               "none"])

# %% trap="11.1" role="look"
plot_columns(read, xlabel="bits per weight", ylabel="accuracy",
             reference=(full, "not rounded"), form=".2f", marks=[2],
             title="Down to 3 bits, little accuracy is lost; at 2 bits, a "
                   "lot",
             alt="Four columns of accuracy, for 2, 3, 4 and 8 bits. From 3 "
                 "bits on, the columns are near the line of the unrounded "
                 "classifiers. The column at 2 bits is far lower.")

# %% trap="11.1" role="look"
print(f"2 bits: symmetric {read[2]:.2f}, affine {by_four:.2f}")

# %% trap="11.1" role="look"
measured("11.1", 0)

# %% trap="11.1" role="look"
claim("accuracy at 2 bits: affine grids minus symmetric grids",
      by_four - read[2], above=0.35)

# %% [markdown] trap="11.1" role="why"
# Rounding errors of both signs mostly cancel in a sum of 64 products. But at 2 bits, a
# symmetric grid has only three levels: zero and plus or minus the largest absolute value.
# Every weight whose absolute value is below *half of the largest* is rounded to zero:

# %% trap="11.1" role="why"
matrices = [m.weight.data for m in classifier if isinstance(m, nn.Linear)]
gone = [(whole(2)(w) == 0).float().mean().item() for w in matrices]
w = matrices[1] / matrices[1].abs().max()
levels = {f"{bits} bits": symmetric(torch.linspace(-1, 1, 2001)[None],
                                    bits).unique().tolist()
          for bits in (2, 3, 4, 8)}

# %% trap="11.1" role="why"
draw_histogram(w, grids=levels, unit="weight / largest",
               title="At 2 bits, most weights are nearest to zero",
               alt="A bell-shaped histogram of weights around zero. Below "
                   "it are the levels: three at 2 bits, at the ends and at "
                   "zero, seven at 3 bits, fifteen at 4 bits, and a dense "
                   "row at 8 bits.")

# %% trap="11.1" role="why"
claim("smallest fraction of zeros in a matrix at 2 bits",
      min(gone), above=0.7)

# %% [markdown] trap="11.1" role="repair"
# So the levels are misplaced. In an affine grid for these matrices, the distance between
# levels is at most two thirds of the largest absolute value, so only weights below a third
# of it become zero. If each group of 16 neighbours has its
# own grid, the range depends only on these 16 weights. The *ends*, the first and the last
# layer, can stay at 8 bits.

# %% trap="11.1" role="repair"
plans = {"symmetric": [whole(2)],
         "symmetric, ends in 8 bits": [whole(8), whole(2), whole(2),
                                       whole(8)],
         "affine": [affine(2)],
         "affine, groups of 16": [grouped(2)],
         "groups and ends": [grouped(8), grouped(2), grouped(2),
                             grouped(8)]}
two_bits = {plan: mean_read(*rules) for plan, rules in plans.items()}

# %% trap="11.1" role="repair"
plot_bars(two_bits, xlabel="accuracy",
          title="At 2 bits, closer levels give a higher accuracy",
          alt="Five bars of accuracy at 2 bits. The accuracy is lowest for "
              "the symmetric grid, higher for the same grid with the ends "
              "in 8 bits, for the affine grid and for groups of 16, and "
              "highest for groups of 16 with the ends in 8 bits.")

# %% trap="11.1" role="repair"
claim("one 2-bit grid per matrix: accuracy with affine grids minus "
      "accuracy with symmetric grids",
      two_bits["affine"] - two_bits["symmetric"], above=0.35)

# %% [markdown] trap="11.1" role="repair"
# Groups help further, but each group stores a scale and a zero.

# %% [markdown] trap="11.1" role="repair"
# The explorer below shows the first layer of a digit classifier. Weights between two
# levels are *rounded*, and weights beyond the last level are *clipped*. The control
# *Outlier* divides one pixel's brightness by a number and multiplies the pixel's weights
# by the same number. Is the best clipping for the *weights* also best for the layer's
# *output*?

# %% role="explore" explorer="quantization"
from dlsys_helpers.explorers.quantization import quantization

quantization

# %% [markdown] trap="11.1" role="more" topics="the other widths · what groups cost"
# These claims give the weight error and the accuracy for the other bit widths and plans:

# %% trap="11.1" role="more"
w = classifier[0].weight.data
off = (whole(4)(w).view_as(w) - w).norm() / w.norm()
claim("relative error of the first layer's weights at 4 bits",
      off, above=0.1)
claim("accuracy lost at 4 bits", full - read[4], below=0.05)
claim("accuracy lost at 3 bits", full - read[3], below=0.15)
claim("accuracy lost at 2 bits", full - read[2], above=0.25)
claim("affine grids, 2 bits: accuracy with groups of 16 minus accuracy "
      "with whole matrices",
      two_bits["affine, groups of 16"] - two_bits["affine"], above=0)
claim("accuracy with groups of 16 in 2 bits, and the first and last matrix "
      "in 8 bits", two_bits["groups and ends"], above=0.85)

# %% [markdown] trap="11.1" role="more"
# If a scale takes 32 bits, then 2 bits in groups of 16 amount to more than 4 bits per
# weight:

# %% trap="11.1" role="more"
def bits_each(bits, group, scale=32, zero=0):
    """Bits per weight, with its part of the scale and the zero."""
    return bits + (scale + zero) / group

in_groups = bits_each(2, 16, zero=2)
print(f"2 bits in groups of 16: {in_groups:.2f}, of 64: "
      f"{bits_each(2, 64, zero=2):.2f}")

# %% trap="11.1" role="more"
claim("number of bits per weight, scale and zero included, with 2 bits in "
      "groups of 16", in_groups, expected=4.125)
claim("number of bits per weight, scale and zero included, with 2 bits in "
      "groups of 64", bits_each(2, 64, zero=2), below=2.6)

# %% [markdown] trap="11.1" role="folklore"
# **Told:** 4 bits cost several points of accuracy, unless the first and the last layer
# stay at 8 bits. **Measured:** In these classifiers, 4 bits everywhere cost almost
# nothing. At 2 bits, the five classifiers get far more digits right on average if the
# first and the last layer stay at 8 bits. A single classifier may gain nothing, because
# the most sensitive matrix depends on the training run. Round one matrix at a time, and
# give more bits to the matrices whose rounding costs accuracy.

# %% trap="11.1" role="folklore"
def only(k, rule):
    """Accuracy if only matrix k is rounded."""
    rules = [rule if j == k else (lambda w: w) for j in range(4)]
    return accuracy(rounded(classifier, *rules), x_test, y_test)

alone = [only(k, whole(2)) for k in range(4)]
print("2 bits in one matrix:", [f"{share:.2f}" for share in alone])

# %% trap="11.1" role="folklore"
claim("symmetric grids: accuracy with both ends in 8 bits minus accuracy "
      "with 2 bits everywhere",
      two_bits["symmetric, ends in 8 bits"] - two_bits["symmetric"],
      above=0.05)

# %% trap="11.1" role="exercise" points=3 difficulty=2 minutes=15
def quantise(w: torch.Tensor, bits: int, group: int) -> tuple:
    """Quantize each group of a row with an affine grid.

    Args:
        w: (R, C) float32 in any memory order, with tiny or huge values. w
            is left as it is.
        bits: 1 to 8.
        group: a divisor of C; each row is split into groups of this many
            neighbours.

    Returns (codes, scales, zeros):
        In a group, low = min(weights, 0) and high = max(weights, 0), so the
        group's grid contains 0. scales: (high - low) / (2**bits - 1),
        float32. A group of zeros has the scale 1. zeros: -low / scale,
        rounded, uint8. scales and zeros have the shape (R, C // group).
        codes: (R, C) uint8, each the code from 0 to 2**bits - 1 whose
        level, scale * (code - zero), is nearest to the weight.

    Example: w [[0., 4., 6.]], bits 2 and group 3 give [[0, 2, 3]], [[2.]]
    and [[0]].
    """
    # BEGIN SOLUTION
    rows, top = w.shape[0], 2**bits - 1
    groups = w.reshape(rows, -1, group)
    low = groups.amin(2).clamp(max=0)
    scales = (groups.amax(2).clamp(min=0) - low) / top
    scales = torch.where(scales > 0, scales, 1.0)
    zeros = (-low / scales).round()
    codes = (groups / scales[..., None]).round() + zeros[..., None]
    codes = codes.clamp(0, top).view(w.shape).to(torch.uint8)
    return codes, scales, zeros.to(torch.uint8)
    # END SOLUTION

# %% [markdown] trap="11.1" role="hint"
# 1. Reshape to `(R, C // group, group)`. Then every step is one line over the last axis.
# 2. A grid always contains 0, so clamp the smallest weight to at most 0 and the largest
#    to at least 0. In a group of zeros, the distance between levels is 0, so you cannot
#    divide by this distance.
# 3. Round, add the code of 0, and clamp the codes between 0 and the last code. Only then convert to bytes, because a number that is too large for a byte wraps around.

# %% [markdown] trap="11.1" role="keep"
# **Keep:** The weight error does not show how many predictions change, so measure the
# accuracy. At 2 bits, a symmetric grid turns most weights into zeros; use an affine grid
# for each small group. Scales and zeros count towards the model's size. **In your own
# code:** Before you decide which layers keep more bits, round one layer at a time, and
# note the rise in loss. **Source:** [Nagel et al. 2021, "A White Paper on Neural Network
# Quantization"](https://arxiv.org/abs/2106.08295), sections 2 and 3.

# %% [markdown] role="concept"
# ## Static or dynamic: who chooses the scale of the inputs?
#
# Trap 11.1 rounds only the weights. A processor that is fast with integers also needs the
# layer's inputs as integers, so the inputs also need a scale. The weights are known
# before the model ships, so you compute their scale once. The inputs change from row to
# row. *Dynamic* quantization finds the largest input of each row while the model runs.
# (torchao does so, whereas onnxruntime takes one scale for the whole input.) *Static*
# quantization fixes one scale in advance, from a few rows called the *calibration* data.

# %% role="concept"
draw_blocks({"weights only": ["inputs: float", "weights: codes to floats",
                              "product of floats"],
             "dynamic": ["inputs: float", "scale of this row, now",
                         "product of integers", "times both scales"],
             "static": ["inputs: float", "scale from calibration",
                        "product of integers", "times both scales"]},
            captions={"weights only": "saves memory",
                      "dynamic": "one more pass over the inputs",
                      "static": "as good as its calibration"},
            title="Dynamic and static differ in when the scale is chosen",
            alt="Three columns of blocks. With weights only, the codes are "
                "converted back to floats for a product of floats. With "
                "dynamic quantization, the scale of this row is computed, "
                "then a product of integers. With static quantization, the "
                "scale comes from calibration.")

# %% [markdown] role="concept"
# Dynamic and static quantization compute the product of integers in the same way. You
# multiply the codes, add the products as integers, and multiply the sums by the two
# scales at the end:

# %% role="concept"
def to_codes(x, scale):
    """Round to symmetric 8-bit codes, from -127 to 127."""
    return (x / scale).round().clamp(-127, 127).to(torch.int8)

second_layer = classifier[2].weight.detach()                 # (64, 64)
w_scale = second_layer.abs().amax(1, keepdim=True) / 127    # one per output
w_codes = to_codes(second_layer, w_scale)

def integer_product(x, x_scale):
    sums = to_codes(x, x_scale).int() @ w_codes.int().T     # whole numbers
    return sums * x_scale * w_scale.T

# %% [markdown] role="concept"
# Compare three sources for the inputs' scale: each row itself, 40 training digits, and
# the same 40 digits at a quarter of their brightness:

# %% role="concept"
with torch.no_grad():
    entering = classifier[:2](x_test)        # what the second layer gets
    seen, dark = (classifier[:2](x_train[:40]),
                  classifier[:2](x_train[:40] / 4))
    exact_product = entering @ second_layer.T
scales_in = {"dynamic": entering.abs().amax(1, keepdim=True) / 127,
             "static": seen.abs().max() / 127,
             "static, dark digits": dark.abs().max() / 127}
product_error = {
    name: ((integer_product(entering, s) - exact_product).norm()
           / exact_product.norm()).item() for name, s in scales_in.items()}
print({name: f"{error:.4f}" for name, error in product_error.items()})

# %% role="concept"
claim("relative error of the product, with dynamic scales",
      product_error["dynamic"], below=0.02)
claim("relative error of the product, with a static scale from 40 digits",
      product_error["static"], below=0.05)
claim("relative error of the product, with a static scale from 40 dark "
      "digits", product_error["static, dark digits"], above=0.15)

# %% [markdown] role="concept"
# Dynamic and static quantization both work. Dynamic quantization needs no data. Static
# quantization does not have to search for the largest input, but it fails silently when
# the real inputs are larger than the calibration data, because inputs beyond the last
# level are *clipped* to that level. `torchao`, a library that quantizes torch models, has
# a recipe for each method, and the section *Weights alone, or the inputs as well* near
# the end runs both recipes on a whole model.
#
# ## Training with the rounding: quantization-aware
#
# Rounding a trained model is called *post-training quantization*. If rounding costs too
# much accuracy, you can keep training while the weights are being rounded, so that the
# model learns weights that survive the rounding. Training needs a gradient, but the slope
# of rounding is 0: if you move a weight a little, the rounded weight does not move at
# all.

# %% role="concept"
w = torch.tensor([0.4, 1.6], requires_grad=True)
w.round().sum().backward()
print("slope of the rounding:", w.grad.tolist())

# %% [markdown] role="concept"
# *Quantization-aware training* uses the rounded weight in the forward pass and pretends
# in the backward pass that nothing was rounded. This *straight-through estimator* takes
# one line. `detach()` hides the rounding difference from autograd:

# %% role="concept"
w.grad = None
seen_by_layer = w + (w.round() - w).detach()
seen_by_layer.sum().backward()
print("forward:", seen_by_layer.tolist(), "  slope:", w.grad.tolist())

# %% role="concept"
claim("largest gap between the forward value and the rounded weight",
      (seen_by_layer - w.round()).abs().max(), below=1e-6)
claim("smallest slope with the straight-through estimator", w.grad.min(),
      expected=1)

# %% [markdown] role="concept"
# Try rounding after training first, because it is much faster than training and needs no
# labels. If the result is not good enough, which happens mostly below 4 bits, use
# quantization-aware training. The section *A model that learns with the rounding*, near
# the end, recovers the accuracy of a 2-bit model this way.
#
# ## Which weights can go
#
# *Pruning* removes weights. The usual assumption is that small weights matter least, so
# *magnitude pruning* sets the smallest weights to 0. How much memory and time this saves
# depends on the pattern of the zeros. The zeros can be anywhere. There can be two zeros
# among every four neighbours (the pattern *2:4*, which some GPUs can multiply faster). Or
# the zeros can fill whole rows (*structured pruning*).

# %% role="concept"
w = torch.randn(8, 8, generator=torch.Generator().manual_seed(SEED))
size, norms = w.abs(), w.norm(dim=1, keepdim=True)
fours = size.view(-1, 4)                          # neighbours in a row
stays = {"anywhere": size > size.median(),
         "2:4": (fours >= fours.topk(2).values[:, 1:]).view_as(w),
         "rows": (norms > norms.median()).expand_as(w)}

# %% role="concept"
draw_grids(stays, rows="output", columns="input",
           captions={"anywhere": "filled: kept"},
           title="Half of the weights, in three patterns",
           alt="Three grids of eight by eight weights, with half of the "
               "cells filled. In the first grid, they are anywhere. In the "
               "second grid, two out of every four neighbours in a row are "
               "filled, and in the third grid, four whole rows are filled.")

# %% [markdown] role="concept"
# In a dense tensor, zeros anywhere still take four bytes and one multiplication each. A
# whole row of zeros does not have to be stored or multiplied. The row belongs to one
# *unit*, and you can cut out a unit: its row in this layer and its column in the next
# layer. What is left is an ordinary, smaller pair of layers with the same outputs:

# %% role="concept"
keep = norms[:, 0] > norms.median()               # four units of eight
rng = torch.Generator().manual_seed(SEED + 1)
following = torch.randn(3, 8, generator=rng)     # the next layer, (out, in)
x = torch.randn(5, 8, generator=rng)
masked_out = (x @ (w * keep[:, None]).T).relu() @ following.T
smaller_out = (x @ w[keep].T).relu() @ following[:, keep].T
print("before:", tuple(w.shape), tuple(following.shape), "  after:",
      tuple(w[keep].shape), tuple(following[:, keep].shape))

# %% role="concept"
claim("largest gap between the outputs of the masked and the smaller pair "
      "of layers", (masked_out - smaller_out).abs().max(), below=1e-5)

# %% [markdown] role="concept"
# (These layers have no bias. If your layers have biases, also zero and remove the unit's
# bias.) The section *Three patterns of zeros* prunes a whole model in each of the three
# patterns and retrains it.

# %% [markdown] trap="11.2" role="situation" core=true fault="prune.remove drops the mask: pruned weights come back" symptom="sparsity is gone after fine-tuning a pruned model: prune.remove, zeros come back"
# ## Retraining a pruned net
#
# You set the smallest four fifths of a classifier's weights to zero, and the classifier
# gets far fewer digits right. To make the pruning permanent, you call
# `torch.nn.utils.prune.remove`. Then you retrain the classifier for 100 steps of Adam.
# The classifier is now as accurate as before the pruning, and you write your report.

# %% trap="11.2" role="break"
from torch.nn.utils import prune

dense = mlp(64, 64, 64, 10)
losses = fit(dense, x_train, y_train, steps=300, lr=3e-3)

def linears(model):
    return [m for m in model if isinstance(m, nn.Linear)]

def zeros(model):
    """Fraction of the weights that are exactly zero."""
    parts = [(m.weight == 0).flatten() for m in linears(model)]
    return torch.cat(parts).float().mean().item()

def cut(model, share):
    """Copy a model and mask the smallest weights of each layer."""
    model = copy.deepcopy(model)
    for layer in linears(model):
        prune.l1_unstructured(layer, "weight", amount=share)
    return model

# %% trap="11.2" role="break"
pruned = cut(dense, 0.8)
for layer in linears(pruned):
    prune.remove(layer, "weight")
retrained = copy.deepcopy(pruned)
losses = fit(retrained, x_train, y_train, steps=100, lr=1e-3)

# %% trap="11.2" role="guess"
guess("11.2",
      "What percentage of the retrained classifier's weights are zero?",
      choices=["80 %",
               "0 %",
               "about 20 %"])

# %% trap="11.2" role="look"
def report(name, model):
    right = accuracy(model, x_test, y_test)
    print(f"{name:10} accuracy {right:.2f}   zeros {zeros(model):.2f}")
    return right

before = report("dense", dense)
at_once = report("pruned", pruned)
after = report("retrained", retrained)

# %% trap="11.2" role="look"
measured("11.2", 2)

# %% trap="11.2" role="look"
claim("fraction of zeros after retraining without masks",
      zeros(retrained), above=0.1, below=0.35)

# %% [markdown] trap="11.2" role="why"
# `remove` writes the zeros into the weight and drops the mask. A zero is a value like any
# other, so the first training step moves it. Only weights that no gradient reaches stay
# zero, mostly the weights of pixels that are always dark, and of hidden units that are
# always off. The good accuracy belongs to a classifier that is dense again, but neither
# the loss nor the accuracy tells you so. Keep the masks, and set the pruned weights to
# zero again after *every* step:

# %% trap="11.2" role="repair"
def retrain(model, after_backward=None, after_step=None, steps=100,
            optimizer=None):
    """Take Adam steps; call a function after backward or after a step."""
    model = copy.deepcopy(model) if optimizer is None else model
    opt = optimizer or torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        rows = torch.randint(len(x_train), (64,))
        opt.zero_grad()
        F.cross_entropy(model(x_train[rows]), y_train[rows]).backward()
        if after_backward:
            after_backward(model)
        opt.step()
        if after_step:
            after_step(model)
    return model

# %% trap="11.2" role="repair"
masks = [m.weight != 0 for m in linears(pruned)]

@torch.no_grad()
def zero_again(model):
    for layer, mask in zip(linears(model), masks):
        layer.weight[~mask] = 0

kept = retrain(pruned, after_step=zero_again)
right = report("masked", kept)

# %% trap="11.2" role="repair"
corners = {name: linears(model)[1].weight[:10, :10] != 0
           for name, model in (("pruned", pruned),
                               ("retrained", retrained), ("masked", kept))}
draw_grids(corners, rows="output", columns="input",
           captions={"pruned": "filled: not zero"},
           title="Without masks, retraining removes most zeros",
           alt="Three grids of ten by ten weights, with nonzero cells "
               "filled. After pruning, few cells are filled. After "
               "retraining, nearly all are filled. After retraining with "
               "masks, as few cells are filled as after pruning.")

# %% trap="11.2" role="repair"
claim("fraction of zeros after retraining with masks",
      zeros(kept), above=0.79)

# %% [markdown] trap="11.2" role="repair"
# The explorer below shows the first layer of a digit classifier with some of its weights
# pruned, in one of three patterns. Guess first. Suppose half of the weights are removed,
# *anywhere* in the matrix, and each remaining 4-byte weight is stored with a 4-byte
# column number. What fraction of the dense layer's bytes is left? And which pattern costs
# the most accuracy before retraining, and which after retraining?

# %% role="explore" explorer="sparsity"
from dlsys_helpers.explorers.sparsity import sparsity

sparsity

# %% [markdown] trap="11.2" role="more" topics="which zeros stay · masks only on the gradients"
# Pruning costs this much accuracy, and retraining recovers this much:

# %% trap="11.2" role="more"
claim("accuracy lost by pruning, before retraining",
      before - at_once, above=0.05)
claim("accuracy after retraining without masks", after, above=0.92)
claim("accuracy after retraining with masks minus accuracy before "
      "retraining", right - at_once, above=0.03)
claim("accuracy after retraining with masks", right, above=0.8)

# %% [markdown] trap="11.2" role="more"
# Nearly all zeros that survive without a mask belong to hidden units that the pruning has
# cut off from the previous or the next layer, and to pixels that are always dark:

# %% trap="11.2" role="more"
probe = copy.deepcopy(pruned)
F.cross_entropy(probe(x_train), y_train).backward()
left = [m.weight == 0 for m in linears(retrained)]
unreached = [m.weight.grad == 0 for m in linears(probe)]
stuck = sum(int((a & b).sum()) for a, b in zip(left, unreached))
print(f"zeros left {sum(int(a.sum()) for a in left)}, of these without a "
      f"gradient from the start {stuck}")

# %% trap="11.2" role="more"
claim("fraction of the remaining zeros that no gradient reached",
      stuck / sum(int(a.sum()) for a in left), above=0.95)

# %% [markdown] trap="11.2" role="more"
# A tempting half-measure is to set only the *gradients* of the pruned weights to zero.
# With a new Adam optimizer, this works. With an Adam optimizer that has already trained
# the dense classifier, it fails, because the running averages remember earlier gradients
# and move a weight whose gradient is now zero. Muon updates a matrix as a whole, so from
# the first step on, the update of one weight depends on the other weights' gradients.

# %% trap="11.2" role="more"
def zero_gradients(model):
    for layer, mask in zip(linears(model), masks):
        layer.weight.grad[~mask] = 0

fresh = retrain(pruned, after_backward=zero_gradients)
warm = copy.deepcopy(dense)
used = torch.optim.Adam(warm.parameters(), lr=1e-3)
retrain(warm, optimizer=used)                 # trained a little more, dense
zero_again(warm)
retrain(warm, after_backward=zero_gradients, optimizer=used)
whole_step = copy.deepcopy(pruned)
retrain(whole_step, after_backward=zero_gradients, steps=1,
        optimizer=torch.optim.Muon([m.weight for m in linears(whole_step)]))
print(f"zeros: fresh Adam {zeros(fresh):.2f}, used before "
      f"{zeros(warm):.2f}, fresh Muon, one step {zeros(whole_step):.2f}")

# %% trap="11.2" role="more"
claim("fraction of zeros with masked gradients and a new Adam optimizer",
      zeros(fresh), above=0.79)
claim("fraction of zeros with masked gradients and a previously used Adam "
      "optimizer", zeros(warm), below=0.5)
claim("fraction of zeros after one step with masked gradients and a new "
      "Muon optimizer", zeros(whole_step), below=0.5)

# %% [markdown] trap="11.2" role="folklore"
# **Told:** You can remove half to four fifths of the weights for less than 2 percentage
# points of accuracy. **Measured:** In this classifier, without retraining, removing half
# of the weights costs little accuracy and removing four fifths costs a lot; retraining
# with masks recovers most of the accuracy. And zeros alone save neither memory nor time,
# because the dense tensor has as many bytes and needs as many products as before. (A file
# with zeros compresses better, but the tensors in memory stay as large.) Removing whole
# rows shrinks a layer; single zeros need a special format and a special kernel.

# %% trap="11.2" role="folklore"
half = accuracy(cut(dense, 0.5), x_test, y_test)
size = {name: sum(m.weight.nbytes for m in linears(model))
        for name, model in (("dense", dense), ("pruned", kept))}
print(f"half pruned: accuracy {half:.2f}   bytes {size}")

# %% trap="11.2" role="folklore"
claim("accuracy lost by pruning half the weights, divided by accuracy lost "
      "by pruning 4/5 of them",
      (before - half) / (before - at_once), below=0.6)
claim("bytes of the pruned weights divided by bytes of the dense weights",
      size["pruned"] / size["dense"], expected=1)

# %% trap="11.2" role="exercise" points=3 difficulty=2 minutes=8
def masked_step(optimizer: torch.optim.Optimizer, masks: dict) -> None:
    """Take one step of the optimizer. Then set each pruned weight to 0.

    Args:
        masks: {parameter: bool tensor of its shape}, False where a weight
            is pruned. A parameter without a mask is not pruned.

    A pruned weight is 0 even if its gradient is missing or not finite. A
    pruned weight is also 0 if its parameter is frozen or unknown to the
    optimizer. All other weights get the values that optimizer.step() alone
    would give them. All weights stay in the same tensors. Gradients, masks
    and the optimizer's settings do not change.

    Example: with SGD at rate 1, weights 2 and 2, gradients 3 and 3, and
    mask False and True, the weights become 0 and -1.
    """
    # BEGIN SOLUTION
    optimizer.step()
    with torch.no_grad():
        for parameter, mask in masks.items():
            parameter.masked_fill_(~mask, 0)
    # END SOLUTION

# %% [markdown] trap="11.2" role="hint"
# 1. The optimizer's running averages move a weight even if its gradient is zero, so
#    take the step first, and set the zeros afterwards.
# 2. To change a parameter in place, use `torch.no_grad()`.
# 3. NaN times 0 is NaN, so fill in zeros instead of multiplying by the mask.

# %% [markdown] trap="11.2" role="keep"
# **Keep:** `prune.remove` drops the mask, and the next training steps change the zeros.
# Keep the mask, and set the pruned weights to zero after every step. Masking only the
# gradients is not enough if the optimizer keeps averages of earlier gradients or mixes
# the gradients of different weights. **In your own code:** Count the exact zeros in the
# file that you ship, not in the model that you pruned. **Seen in the wild:** In
# [`jacobgil/pytorch-pruning#41`](https://github.com/jacobgil/pytorch-pruning/issues/41),
# a user asks whether the optimizer's step brings pruned weights back;
# [`he-y/filter-pruning-geometric-median#47`](https://github.com/he-y/filter-pruning-geometric-median/issues/47)
# reports that momentum revived weights whose gradients were masked. **Source:** PyTorch,
# [`torch.nn.utils.prune.remove`](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.prune.remove.html).

# %% [markdown] role="concept"
# ## What a teacher knows that a label does not
#
# A label says which digit an image shows, but nothing about the other nine digits. A
# trained model says more. Take the test digit that the classifier `dense` from above gets
# right with the least certainty:

# %% role="concept"
with torch.no_grad():
    believed = dense(x_test).softmax(1)
is_right = believed.argmax(1) == y_test
k = torch.where(is_right, believed.topk(2).values[:, 1], 0).argmax()
told = torch.stack([F.one_hot(y_test[k], 10).float(), believed[k]])

# %% role="concept"
draw_grids({"one test digit": told}, values=True,
           row_names=["label", "model"], columns="digit",
           column_names=[str(digit) for digit in range(10)],
           title="The model says which other digit the image could show",
           alt="Two rows of ten probabilities. The label has a one at the "
               "right digit. The model splits the probability between that "
               "digit and one that looks similar.")

# %% [markdown] role="concept"
# *Distillation* trains a small *student* on the probabilities of a large *teacher*, also
# called *soft targets*. The loss is the Kullback-Leibler divergence between the teacher's
# probabilities $p$ and the student's probabilities $q$, $\sum p \,(\log p - \log q)$.
# The loss is 0 if $p$ and $q$ agree. Its gradient with respect to the student's logits
# has the same form as the gradient of cross-entropy, with $p$ instead of the label:

# %% role="concept"
z = torch.zeros(10, requires_grad=True)       # a student that knows nothing
q = z.log_softmax(0)
loss = F.kl_div(q, told[1], reduction="sum")      # the student comes first
slope, = torch.autograd.grad(loss, z)
print("pushed up:", (slope < 0).nonzero().flatten().tolist())

# %% role="concept"
claim("largest gap between the gradient and q - p",
      (slope - (q.exp() - told[1])).abs().max(), below=1e-6)
claim("number of digits whose logits the label pushes up",
      (told[0] > 0).sum(), expected=1)
claim("number of digits whose logits the teacher pushes up",
      (slope < 0).sum(), above=1)

# %% [markdown] trap="11.3" role="situation" core=true fault="distilling at temperature 1: the teacher is too certain" symptom="knowledge distillation gives no gain over plain training: temperature 1, missing T squared"
# ## Temperatures for a small student
#
# The dense classifier is the *teacher* of a student with 16 hidden units. The student
# trains on 100 images, with the teacher's probabilities instead of labels. The logits of
# teacher and student are divided by a *temperature* $T$ before the softmax: $p_T =
# \mathrm{softmax}(z / T)$. A higher temperature makes the probabilities softer.
#
# You train students at temperatures 1, 4, 20 and 100.

# %% trap="11.3" role="break"
teacher = dense
few = torch.randperm(len(x_train))[:100]
x_few, y_few = x_train[few], y_train[few]
with torch.no_grad():
    z_teacher = teacher(x_few)                       # logits (100, 10)

# %% trap="11.3" role="break"
def taught(loss, students=6, steps=200):
    """Train students with loss(logits); return their mean test accuracy."""
    shares = []
    for _ in range(students):
        student = mlp(64, 16, 10)
        opt = torch.optim.Adam(student.parameters(), lr=1e-2)
        for _ in range(steps):
            opt.zero_grad()
            loss(student(x_few)).backward()
            opt.step()
        shares.append(accuracy(student, x_test, y_test))
    return sum(shares) / students

# %% trap="11.3" role="break"
def soft(z, T):
    """Divergence of the softened probabilities, as a mean over rows."""
    return F.kl_div(F.log_softmax(z / T, 1), F.softmax(z_teacher / T, 1),
                    reduction="batchmean")

def hard(z):
    return F.cross_entropy(z, y_few)

reads = {T: taught(lambda z: T**2 * soft(z, T)) for T in (1, 4, 20, 100)}
reads["labels"] = taught(hard)

# %% trap="11.3" role="guess"
guess("11.3",
      "At which temperature do the students get the fewest test digits "
      "right?",
      choices=["at `100`",
               "at `4`",
               "at `1`",
               "at none: all four are within half a percentage point"])

# %% trap="11.3" role="look"
plot_columns({T: 1 - reads[T] for T in (1, 4, 20, 100)}, form=".3f",
             xlabel="temperature", ylabel="error rate", marks=[1],
             reference=(1 - reads["labels"], "labels alone"),
             title="At temperature 1, the teacher hardly helps",
             alt="Four columns with the error rates of students at "
                 "temperatures 1, 4, 20 and 100. The first column is the "
                 "highest, just below the line of training on labels "
                 "alone. The other columns are lower.")

# %% trap="11.3" role="look"
measured("11.3", 2)

# %% trap="11.3" role="look"
claim("accuracy at temperature 4 minus accuracy at temperature 1",
      reads[4] - reads[1], above=0)

# %% [markdown] trap="11.3" role="why"
# The teacher is nearly certain: at temperature 1, it leaves a few hundredths of the
# probability for the other nine digits. This remainder would tell the student which
# digits look similar, but it is too small to matter. Dividing the logits by 4 gives the
# other digits a large part of the probability:

# %% trap="11.3" role="why"
def others(T):
    """Mean probability that the teacher leaves for the other digits."""
    return 1 - F.softmax(z_teacher / T, 1).amax(1).mean().item()

left = {T: others(T) for T in (1, 2, 4, 8, 20, 100)}

# %% trap="11.3" role="why"
plot_columns(left, xlabel="temperature", ylabel="left for nine digits",
             form=".2f", marks=[1], reference=(0.9, "all equal"),
             title="At temperature 1, the teacher names only one digit",
             alt="Columns of the probability that the teacher leaves for "
                 "the nine other digits. The columns rise with the "
                 "temperature, from a few hundredths at 1 to nearly nine "
                 "tenths at 100.")

# %% trap="11.3" role="why"
claim("probability that the teacher leaves for the other digits at "
      "temperature 1", others(1), below=0.12)

# %% [markdown] trap="11.3" role="repair"
# At a temperature of 100, the probabilities are nearly equal, but their *differences*
# still reflect the teacher's logits, and the gradient depends on these differences.
# At high temperatures, dividing the logits of both networks by $T$ shrinks the gradient
# in proportion to $1/T^2$. So multiply the loss by $T^2$. If the loss also has a term for
# labels, forgetting the factor $T^2$ silences the teacher:

# %% trap="11.3" role="repair"
beside = {
    "with": taught(lambda z: 0.5 * hard(z) + 0.5 * 20**2 * soft(z, 20)),
    "without": taught(lambda z: 0.5 * hard(z) + 0.5 * soft(z, 20)),
    "no labels, without": taught(lambda z: soft(z, 20))}
student = mlp(64, 16, 10)
size = {}
for T in (1, 20):
    grads = torch.autograd.grad(soft(student(x_few), T),
                                list(student.parameters()))
    size[T] = torch.cat([g.flatten() for g in grads]).norm().item()
print({name: f"{share:.3f}" for name, share in beside.items()})
print(f"gradient norm at 1 / gradient norm at 20: {size[1] / size[20]:.0f}")

# %% trap="11.3" role="repair"
claim("labels and teacher at T = 20: accuracy with the factor T squared "
      "minus accuracy without it",
      beside["with"] - beside["without"], above=0.01)

# %% [markdown] trap="11.3" role="repair"
# The explorer below shows a teacher, one digit, and the pull on the student's logits.
# Guess first: if the teacher gets a digit wrong, does it push the student away from the
# right answer at temperatures 1, 4 and 8? For which digits do teacher and label disagree
# at temperature 1?

# %% role="explore" explorer="temperature"
from dlsys_helpers.explorers.temperature import temperature

temperature

# %% [markdown] trap="11.3" role="more" topics="the square without labels · the differences in numbers"
# Adam follows the direction of a gradient more than its size, so a forgotten $T^2$ hardly
# matters if the loss has no other part and no weight decay is added to the gradient. With
# the factor $T^2$ and a high $T$, the loss is close to a squared error between the
# logits, with each row's mean subtracted. The least certain result is the advantage of
# temperature 100 over temperature 1: with two out of fifty seeds, there was none.

# %% trap="11.3" role="more"
claim("largest probability that the teacher gives a digit at temperature "
      "100", F.softmax(z_teacher / 100, 1).max(), below=0.2)
claim("accuracy at temperature 100 minus accuracy at temperature 1",
      reads[100] - reads[1], above=-0.01)
claim("accuracy at temperature 4 minus accuracy with labels alone",
      reads[4] - reads["labels"], above=0.015)
claim("probability that the teacher leaves for the other digits at "
      "temperature 4", others(4), above=0.25)
claim("without the factor T squared: gradient norm at T = 1 divided by "
      "gradient norm at T = 20", size[1] / size[20], above=40)
claim("accuracy at T = 20 without the factor T squared minus accuracy "
      "with labels alone",
      beside["no labels, without"] - reads["labels"], above=0.005)

# %% [markdown] trap="11.3" role="folklore"
# **Told:** Use a temperature of 3 to 5, because above 10 all signal is lost.
# **Measured:** With the factor $T^2$, these students learn about as well at temperatures
# 20 and 100 as at 4, and better than from labels. With a less certain teacher, there may
# be no gain. If you have plenty of labels, they may teach more than the teacher. Try
# three temperatures, and also try training without a teacher.

# %% trap="11.3" role="folklore"
claim("accuracy at temperature 20 minus accuracy with labels alone",
      reads[20] - reads["labels"], above=0.01)
claim("accuracy at temperature 100 minus accuracy with labels alone",
      reads[100] - reads["labels"], above=0.005)

# %% trap="11.3" role="exercise" points=3 difficulty=2 minutes=8
def kd_loss(student: torch.Tensor, teacher: torch.Tensor,
            labels: torch.Tensor, T: float, alpha: float) -> torch.Tensor:
    """Mix the loss on the labels with a loss against the teacher.

    The result is (1 - alpha) times the cross-entropy of the labels, plus
    alpha * T**2 times the divergence of the student from the teacher.

    Args:
        student, teacher: logits (N, K) float32, with values of any size.
        labels: (N,) int64.

    The divergence of a row is the sum over classes of p * (log p - log q).
    Here p are the teacher's probabilities and q the student's. Both
    probabilities are at temperature T > 0, and the cross-entropy is at
    temperature 1. Both terms are means over the rows. The result is a
    scalar, and finite even if p or q is 0 in float32. Only the student gets
    gradients. The arguments do not change.

    Example: logits [[0., 0.]] for both, label 0 and alpha 0.5 give 0.3466.
    """
    # BEGIN SOLUTION
    hard = F.cross_entropy(student, labels)
    log_p = F.log_softmax(teacher.detach() / T, 1)
    log_q = F.log_softmax(student / T, 1)
    soft = F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
    return (1 - alpha) * hard + alpha * T**2 * soft
    # END SOLUTION

# %% [markdown] trap="11.3" role="hint"
# 1. Compute both log p and log q with `log_softmax`, because the logarithm of a
#    probability that is rounded to 0 is minus infinity.
# 2. In `F.kl_div`, `reduction="batchmean"` computes the mean over the rows; `"mean"` also divides by the number of classes.
# 3. In `F.kl_div(log_q, log_p, log_target=True)`, the student comes first. Detach the teacher.

# %% [markdown] trap="11.3" role="keep"
# **Keep:** If the teacher is nearly certain and you have few labels, distil at a
# temperature above 1, and multiply the loss by the square of the temperature. Print how
# much probability the teacher leaves for the other classes. **In your own code:** Use
# `reduction="batchmean"`, not the default. `batchmean` divides by the first dimension
# only, so flatten a language model's batch and positions into one dimension. Compare your
# student with a student trained only on the labels. **Seen in the wild:** In
# [`IntelLabs/distiller#122`](https://github.com/IntelLabs/distiller/issues/122), the
# square was missing; in [`HikariTJU/LD#74`](https://github.com/HikariTJU/LD/issues/74), a
# mean over classes made the loss far too small. **Source:** [Hinton, Vinyals & Dean 2015,
# "Distilling the Knowledge in a Neural Network"](https://arxiv.org/abs/1503.02531),
# section 2.

# %% [markdown] role="concept"
# ## Distilling a language model
#
# A language model predicts a token at every position, so the teacher provides a soft
# target at every position. Two more things can help: the student can start from some of
# the teacher's layers, and it can imitate the teacher's *hidden states* between the
# blocks. [DistilBERT](https://arxiv.org/abs/1910.01108) does both: it starts from six of
# its teacher's twelve layers, and imitates the last hidden state.
#
# The teacher here is a transformer with four blocks that learns a language of 16 tokens,
# in which each token depends on the two previous tokens. (A folded cell draws the text
# and trains the teacher.)

# %% role="concept" tags=["plumbing"]
class TinyLM(nn.Module):
    """A small causal transformer; returns logits and last hidden states."""

    def __init__(self, layers, width=32):
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.place = nn.Embedding(24, width)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(
            width, 2, 2 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers))
        self.head = nn.Linear(width, 16)

    def forward(self, tokens):
        h = self.embed(tokens) + self.place.weight
        ahead = torch.ones(24, 24, dtype=torch.bool).triu(1)
        for block in self.blocks:
            h = block(h, src_mask=ahead)
        return self.head(h), h

# %% role="concept" tags=["plumbing"]
def tiny_text(rows, rng):
    """Draw (rows, 25) tokens; each depends on the previous two."""
    tokens = torch.randint(16, (rows, 25), generator=rng)
    for t in range(2, 25):
        pull = follows[0][tokens[:, t - 1]] + follows[1][tokens[:, t - 2]]
        tokens[:, t] = torch.multinomial(pull.softmax(1), 1,
                                         generator=rng)[:, 0]
    return tokens

def lm_loss(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1])[0].flatten(0, 1),
                           tokens[:, 1:].flatten())

# %% role="concept" tags=["plumbing"]
from torch.random import fork_rng

rng = torch.Generator().manual_seed(SEED)
follows = 2 * torch.randn(2, 16, 16, generator=rng)
lm_text, lm_new = tiny_text(512, rng), tiny_text(128, rng)

def lm_train(model, steps, loss):
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        rows = torch.randint(512, (32,), generator=rng)
        opt.zero_grad()
        loss(model, lm_text[rows]).backward()
        opt.step()
    with torch.no_grad():
        return lm_loss(model, lm_new).item()

with fork_rng():                     # the traps below keep their numbers
    lm_teacher = TinyLM(4)
    taught_lm = lm_train(lm_teacher, 200, lm_loss)
    students = {"fresh": TinyLM(2), "every second layer": TinyLM(2)}

# %% [markdown] role="concept"
# The student has half as many blocks as the teacher. Give the student the teacher's
# embeddings, head, and blocks 0 and 2:

# %% role="concept"
copied = students["every second layer"]
for part in ("embed", "place", "head"):
    getattr(copied, part).load_state_dict(
        getattr(lm_teacher, part).state_dict())
for own, theirs in ((0, 0), (1, 2)):
    copied.blocks[own].load_state_dict(
        lm_teacher.blocks[theirs].state_dict())
with torch.no_grad():
    untrained = {name: lm_loss(model, lm_new).item()
                 for name, model in students.items()}
print(f"teacher {taught_lm:.2f}; not trained yet:",
      {name: f"{loss:.2f}" for name, loss in untrained.items()})

# %% [markdown] role="concept"
# The divergence is a mean over *tokens*. `reduction="batchmean"` divides by the first
# dimension only, so flatten rows and positions into one dimension. If you do not, the
# loss is too large by a factor equal to the number of positions in a row:

# %% role="concept"
def lm_soft(model, tokens, T=2):
    """Divergence per token at temperature T, times T squared."""
    with torch.no_grad():
        p = (lm_teacher(tokens[:, :-1])[0] / T).log_softmax(-1)
    q = (model(tokens[:, :-1])[0] / T).log_softmax(-1)
    return T**2 * F.kl_div(q.flatten(0, 1), p.flatten(0, 1),
                           reduction="batchmean", log_target=True)

with torch.no_grad():
    p, q = (model(lm_new[:, :-1])[0].log_softmax(-1)
            for model in (lm_teacher, copied))
    flat, by_row = (F.kl_div(b, a, reduction="batchmean", log_target=True)
                    for a, b in ((p.flatten(0, 1), q.flatten(0, 1)),
                                 (p, q)))
print(f"flattened {flat:.3f}   not flattened {by_row:.3f}")

# %% role="concept"
claim("loss without flattening, divided by the loss per token",
      by_row / flat, expected=24, within=0.01)
claim("loss before training: start from random weights minus start from "
      "the teacher's layers",
      untrained["fresh"] - untrained["every second layer"], above=0.3)

# %% [markdown] role="concept"
# To imitate hidden states, add to the loss the mean squared difference between the hidden
# states of student and teacher. A student can be narrower than its teacher: BERT-base
# has 768 values per token, and BERT-large has 1,024. In that case, put a linear layer
# in between, train this layer together with the student, and discard it afterwards.

# %% role="concept"
with fork_rng():
    narrow, widen = TinyLM(2, width=16), nn.Linear(16, 32)
with torch.no_grad():
    (_, h_small), (_, h_large) = (m(lm_new[:4, :-1])
                                  for m in (narrow, lm_teacher))
print(tuple(h_small.shape), "->", tuple(widen(h_small).shape))
hidden_loss = F.mse_loss(widen(h_small), h_large)

after_forty = {name: lm_train(model, 40, lm_soft)
               for name, model in students.items()}
print("after 40 steps:", {n: f"{v:.2f}" for n, v in after_forty.items()})

# %% role="concept"
claim("loss after 40 steps: start from random weights minus start from "
      "the teacher's layers",
      after_forty["fresh"] - after_forty["every second layer"], above=0.1)

# %% [markdown] role="concept"
# After 40 steps on the teacher's probabilities, the student that started from the
# teacher's layers is still well ahead of the student that started from random weights.
# (The teacher was trained for only 200 steps, so a student can overtake it.)

# %% [markdown] role="concept"
# ## GPTQ: one weight is rounded, other weights compensate
#
# Rounding to nearest treats each weight independently. But a layer adds up its products,
# so one weight can compensate for another weight's error. For inputs `x` of shape `(N,
# in)`, an error `e` in the weights of one output changes that output by `x @ e`. The sum
# of the squares of this change is `e @ H @ e` with `H = x.T @ x`. Up to a factor of 2,
# `H` is the *Hessian* of this squared error. `H` says which errors are costly and which
# cancel.

# %% role="concept"
rng = torch.Generator().manual_seed(SEED)
common = torch.randn(1000, 1, generator=rng)
own = torch.randn(1000, 2, generator=rng)
pairs = {"rise and fall together": common + 0.4 * own,      # (1000, 2)
         "independent": own}
H_of = {name: x.T @ x / 1000 for name, x in pairs.items()}

def squared_error(H, move, error=0.3):
    """The first weight is off by `error`; the second moves by `move`."""
    e = torch.tensor([error, move])
    return (e @ H @ e).item()

moves = torch.linspace(-0.5, 0.3, 33).tolist()
curves = {name: [squared_error(H, move) for move in moves]
          for name, H in H_of.items()}

# %% role="concept"
plot_lines(moves, curves, xlabel="move of the second weight",
           ylabel="squared error of the output",
           title="The second weight can compensate for the first",
           alt="Two parabolas of the squared error over the move of the "
               "second weight. For inputs that rise and fall together, the "
               "lowest point is far to the left of 0, where the error is "
               "much lower than at 0. For independent inputs, the lowest "
               "point is at 0.")

# %% [markdown] role="concept"
# Where is the lowest point of each curve? Set the derivative with respect to the move to
# zero, which gives a move of `-error * H[1, 0] / H[1, 1]`. For many weights, the quotient
# becomes a system of linear equations over all weights that are not rounded yet:

# %% role="concept"
H = H_of["rise and fall together"]
best = -0.3 * H[1, 0] / H[1, 1]
print(f"best move {best:.3f}: squared error {squared_error(H, best):.4f}, "
      f"without a move {squared_error(H, 0.0):.4f}")

x = torch.randn(200, 6, generator=rng, dtype=torch.float64)
H = x.T @ x
rest = [1, 2, 3, 4, 5]                   # weight 0 has just been rounded
move = -0.3 * torch.linalg.solve(H[rest][:, rest], H[rest, 0])
inverse = torch.linalg.inv(H)            # the same, as the paper writes it
by_paper = 0.3 * inverse[0, rest] / inverse[0, 0]

# %% role="concept"
claim("squared error with the best move, divided by squared error without "
      "a move",
      squared_error(H_of["rise and fall together"], best)
      / squared_error(H_of["rise and fall together"], 0.0), below=0.5)
claim("largest gap between the two ways to write the update",
      (move - by_paper).abs().max(), below=1e-9)

# %% [markdown] role="concept"
# This is the core of *GPTQ*: it rounds one column, adds the solution of this system to
# the columns that are not rounded yet, and continues with the next column. *AWQ*, near
# the end of the lesson, changes the scale of a column instead.

# %% [markdown] trap="11.4" role="situation" core=true fault="GPTQ without act-order: costly columns get no help" symptom="GPTQ: which columns first; rounding error of the weights grows while the model gets better"
# ## Rounding one column after the other
#
# You quantize the second layer of a digit classifier to 3 bits with GPTQ, column by
# column; each column belongs to one input. After rounding a column, GPTQ adjusts the
# columns that are not rounded yet, so that the layer's *output* changes as little as
# possible.
#
# This layer's inputs differ a lot in size, and you have to choose which column to round
# first. A pull request adds an option and says: "Largest inputs first, because their
# errors cost most." You try this order and the opposite order on new digits.

# %% trap="11.4" role="break"
layer = linears(dense)[1]
w = layer.weight.data.double()                       # (64, 64)
with torch.no_grad():
    x_in, x_new = (F.relu(dense[0](x)).double()      # (N, 64)
                   for x in (x_train, x_test))

# %% trap="11.4" role="break"
def by_columns(w, x, order, bits=3, damp=0.01):
    """W after GPTQ in this order, with a symmetric grid per row."""
    w, top = w.clone(), 2 ** (bits - 1) - 1
    scale = w.abs().amax(1) / top
    H = x.T @ x                                      # (in, in)
    # With few rows or dark inputs, H has no inverse; damp fixes that.
    H += damp * H.diag().mean() * torch.eye(len(H), dtype=H.dtype)
    for k, j in enumerate(order):
        rest = order[k + 1:]
        error = w[:, j] - scale * (w[:, j] / scale).round().clamp(-top, top)
        w[:, j] -= error
        # Least squares: input j as a weighted sum of the inputs in rest.
        move = torch.linalg.solve(H[rest][:, rest], H[rest, j])
        w[:, rest] += error[:, None] * move
    return w

# %% trap="11.4" role="break"
large = x_in.square().sum(0).argsort(descending=True)
orders = {"smallest first": large.flip(0), "as they stand": large.sort()[0],
          "largest first": large}
found = {name: by_columns(w, x_in, order) for name, order in orders.items()}
found["to nearest"] = symmetric(w, 3)

# %% trap="11.4" role="guess" quoted="right"
guess("11.4",
      "How does the output error with the largest inputs first compare "
      "with the output error in the opposite order?",
      choices=["equal within 10 %",
               "over 10 % smaller",
               "over 10 % larger"])

# %% trap="11.4" role="look"
def errors(found, w=w, x=x_new):
    """Relative errors: of the weights, and of the output on new rows."""
    gap, out = found - w, x @ w.T
    return (gap.norm() / w.norm()).item(), (
        (x @ gap.T).norm() / out.norm()).item()

off = {name: errors(weights) for name, weights in found.items()}

# %% trap="11.4" role="look"
plot_bars({name: output for name, (_, output) in off.items()},
          xlabel="relative error of the output",
          title="Largest inputs first is the best order",
          alt="Four bars of the output's error. Rounding to nearest is by "
              "far the worst. Of GPTQ's three orders, smallest inputs "
              "first is the worst, and largest inputs first the best.")

# %% trap="11.4" role="look"
measured("11.4", 1)

# %% trap="11.4" role="look"
claim("output error with the largest inputs first, divided by output "
      "error of rounding to nearest",
      off["largest first"][1] / off["to nearest"][1], above=0.12, below=0.3)

# %% [markdown] trap="11.4" role="why"
# Only columns that are *not yet rounded* can compensate for an error. For the first
# column, all other columns can compensate. For the last column, no column can, and its
# error stays. Round the costly columns first, while others can still compensate.
# Implementations call this order *act-order*.

# %% trap="11.4" role="why"
draw_grids({"free to help": torch.ones(8, 8).triu(1)},
           rows="rounded", columns="column",
           marks={"free to help": torch.eye(8)}, legend="rounded now",
           title="The first column gets the most help, the last gets none",
           alt="A grid of eight steps and eight columns. At each step, one "
               "column is rounded, and the columns to its right are "
               "filled: seven at the first step, none at the last.")

# %% [markdown] trap="11.4" role="why"
# GPTQ moves the weights *further* from the trained weights than rounding to nearest does,
# and yet the layer's output error is several times smaller:

# %% trap="11.4" role="why"
claim("weight error with the largest inputs first, divided by weight "
      "error of rounding to nearest",
      off["largest first"][0] / off["to nearest"][0], above=1.1)

# %% [markdown] trap="11.4" role="repair"
# So round the columns of the largest inputs first, and judge the result by the output
# error. GPTQ needs some rows of data for calibration. Here, 40 digits are enough, because
# they resemble the test digits. Calibration with noise fails silently:

# %% trap="11.4" role="repair"
alone, alone_new = torch.randn(2, 1000, 64, dtype=torch.float64)
rows = {"1300 digits": x_in, "40 digits": x_in[:40], "noise": alone}
calibrated = {name: errors(by_columns(w, x, large))[1]
              for name, x in rows.items()}
calibrated["to nearest"] = off["to nearest"][1]

# %% trap="11.4" role="repair"
plot_bars(calibrated, xlabel="relative error of the output",
          title="Forty digits are enough to calibrate, noise is useless",
          alt="Four bars of the output's error. If GPTQ is calibrated with "
              "1300 or 40 digits, the error is small. With noise, the "
              "error is nearly as large as with rounding to nearest.")

# %% trap="11.4" role="repair"
claim("output error: largest inputs first divided by smallest inputs first",
      off["largest first"][1] / off["smallest first"][1], below=0.8)

# %% [markdown] trap="11.4" role="repair"
# Pruning can use the same idea. If you remove one input of a layer, the other columns can
# compensate for part of the damage. In the exercise, you compute this change. There, the
# order does not matter, because all remaining columns change at once.

# %% [markdown] trap="11.4" role="more" topics="independent inputs"
# One column can help another only if the mean product of their inputs is not zero. The
# control below has independent inputs of the same size with mean zero, so one column can
# hardly compensate for another:

# %% trap="11.4" role="more"
apart = by_columns(w, alone, large)
helped = errors(apart, x=alone_new)[1]
nearest = errors(symmetric(w, 3), x=alone_new)[1]
print(f"independent inputs: GPTQ {helped:.3f}, to nearest {nearest:.3f}")

# %% trap="11.4" role="more"
claim("output error, independent inputs: GPTQ divided by rounding to "
      "nearest",
      helped / nearest, above=0.97)
claim("output error: GPTQ calibrated on 40 digits, divided by rounding to "
      "nearest", calibrated["40 digits"] / off["to nearest"][1], below=0.3)
claim("output error: GPTQ calibrated on noise, divided by rounding to "
      "nearest", calibrated["noise"] / off["to nearest"][1], above=0.85)

# %% [markdown] trap="11.4" role="folklore"
# **Told:** Quantize the most influential weights last, because by then the other weights
# have compensated for their errors. **Measured:** The opposite order is better. In all
# three layers of this classifier, "largest inputs first" beats "smallest inputs first",
# by a little in one layer and by a lot in the other two. In the second layer, "largest
# inputs first" also wins at 2 bits.

# %% trap="11.4" role="folklore"
ratios, x_layer, x_later = [], x_train, x_test
for linear in linears(dense):
    w_layer, x, new = (t.double() for t in (
        linear.weight.data, x_layer, x_later))
    order = x.square().sum(0).argsort(descending=True)
    last, first = (errors(by_columns(w_layer, x, o), w_layer, new)[1]
                   for o in (order.flip(0), order))
    ratios.append(first / last)
    x_layer, x_later = (F.relu(linear(t)).detach()
                        for t in (x_layer, x_later))
two = {name: errors(by_columns(w, x_in, order, bits=2))[1]
       for name, order in orders.items()}
print("largest first divided by smallest first:",
      [f"{r:.2f}" for r in ratios])

# %% trap="11.4" role="folklore"
claim("output error: largest inputs first divided by smallest first, "
      "highest of three ratios", max(ratios), below=1)
claim("output error at 2 bits: largest inputs first divided by smallest "
      "first, second layer",
      two["largest first"] / two["smallest first"], below=0.8)

# %% trap="11.4" role="exercise" points=3 difficulty=3 minutes=15
def drop_inputs(w: torch.Tensor, x: torch.Tensor, drop: list
                ) -> torch.Tensor:
    """Remove some inputs from a layer and adjust its other weights.

    Args:
        w, x: (O, I) and (N, I), float64. The magnitudes of w and x are
            between 1e-8 and 1e8. The rows of x are typical inputs, N >= I,
            and the columns of x are linearly independent.
        drop: indices of one or more inputs, possibly all, each index once,
            in any order.

    Returns:
        (O, I) float64, with zeros in the columns listed in drop. The other
        columns are chosen so that x @ w.T changes as little as possible, in
        the sum of squares.

    The arguments do not change.
    Example: w [[1., 1.]], x [[1., 1.], [1., 0.]] and drop [1] give
    [[1.5, 0.]].
    """
    # BEGIN SOLUTION
    rest = [j for j in range(w.shape[1]) if j not in drop]
    H = x.T @ x
    move = torch.linalg.solve(H[rest][:, rest], H[rest][:, drop])
    out = torch.zeros_like(w)
    out[:, rest] = w[:, rest] + w[:, drop] @ move.T
    return out
    # END SOLUTION

# %% [markdown] trap="11.4" role="hint"
# 1. Without the columns in `drop`, the output lacks `x[:, drop] @ w[:, drop].T`. Which change of the remaining columns comes closest to restoring this product?
# 2. This is a least-squares problem. Use `torch.linalg.lstsq`, or `solve` with the
#    remaining rows and columns of `H = x.T @ x`.
# 3. Add the solution to the remaining columns, and write the result into a matrix of
#    zeros.

# %% [markdown] trap="11.4" role="keep"
# **Keep:** Judge rounding by the layer's output error, not by its weight error. In GPTQ,
# only columns that are not yet rounded can compensate for an error, so round the columns
# of the largest inputs first. **In your own code:** Measure each layer's output error on
# rows that were not used for calibration, and compare it with the error of rounding to
# nearest. **Seen in the wild:**
# [`huggingface/optimum#1216`](https://github.com/huggingface/optimum/pull/1216) offers
# this order as `desc_act`: the model is faster without this option, but has a slightly
# better perplexity with it. **Source:** [Frantar et al. 2022,
# "GPTQ"](https://arxiv.org/abs/2210.17323), section 3.

# %% [markdown] trap="11.5" role="situation" fault="numel times element_size misses what is stored" symptom="model size after quantization: parameters() counts too much or zero, file size differs"
# ## How large is it now?
#
# You quantize a larger classifier with the library `torchao`: each weight of a linear
# layer gets 8 bits, and the biases stay unchanged. Your report has to state the size. You
# use a popular line of code: for each parameter, it multiplies the number of entries by
# the bytes per entry, and then it adds up the products. A ticket says: "One byte instead
# of four, so expect about a quarter."

# %% trap="11.5" role="break" tags=["plumbing"]
with contextlib.redirect_stderr(io.StringIO()):   # a note of its own
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

# %% trap="11.5" role="break"
large_reader = mlp(64, 512, 512, 10)
losses = fit(large_reader, x_train, y_train, steps=100, lr=1e-3)
small_reader = copy.deepcopy(large_reader).eval()
quantize_(small_reader, Int8WeightOnlyConfig())

def counted(model):
    """The size in bytes, by the popular line of code."""
    return sum(p.numel() * p.element_size() for p in model.parameters())

# %% trap="11.5" role="guess" quoted="wrong"
guess("11.5",
      "How many bytes does the line of code report after quantization?",
      choices=["as many as before",
               "about half as many",
               "about a quarter as many",
               "zero"])

# %% trap="11.5" role="look"
said = [counted(model) for model in (large_reader, small_reader)]
both = [accuracy(model, x_test, y_test)
        for model in (large_reader, small_reader)]
print("bytes counted:", *said)
print("accuracy:     ", *[f"{share:.2f}" for share in both])

# %% trap="11.5" role="look"
measured("11.5", 0)

# %% trap="11.5" role="look"
claim("bytes reported by the line of code after quantization, divided by "
      "bytes reported before", said[1] / said[0], expected=1)

# %% [markdown] trap="11.5" role="why"
# The new weight is a wrapper that *claims* to be a float32 matrix, so that the rest of
# torch can work with it. The wrapper stores its values in other tensors: one-byte codes,
# and one scale per row.

# %% trap="11.5" role="why"
weight = small_reader[2].weight
stacks = {"what it says": {"float32": weight.numel() * 4 / 1e3},
          "what it stores": {"codes": weight.qdata.nbytes / 1e3,
                             "scales": weight.scale.nbytes / 1e3}}
draw_boxes(stacks, unit="kB",
           title="It claims four bytes per weight and stores one",
           alt="Two stacks of boxes, to scale. The claimed size is four "
               "times as high as the stored size, which consists of codes "
               "and a thin layer of scales.")

# %% [markdown] trap="11.5" role="repair"
# So measure what is stored: save the model to a file, and check the file's length.
# `saved` writes the file to memory and returns its length.

# %% trap="11.5" role="repair"
print("says:", weight.dtype, weight.element_size(), "bytes each")
print("has: ", weight.qdata.dtype, tuple(weight.qdata.shape),
      tuple(weight.scale.shape))
files = [saved(m.state_dict()) for m in (large_reader, small_reader)]
print("files:", *files)

# %% trap="11.5" role="repair"
claim("length of the file after quantization, divided by length before "
      "quantization", files[1] / files[0], above=0.25, below=0.28)

# %% [markdown] trap="11.5" role="repair"
# A file can also mislead you. `torch.save` writes *storages*, the memory behind the
# tensors. Each storage is written once, no matter how many tensors share it, and always
# as a whole, even if a tensor shows only a few of its rows.

# %% trap="11.5" role="repair"
table = torch.randn(10_000, 16)
rows = {"a view of ten rows": table[:10],
        "a copy of them": table[:10].clone()}
for name, tensor in rows.items():
    print(f"{name}: file {saved({'table': tensor})} bytes, storage "
          f"{tensor.untyped_storage().nbytes()}")

# %% trap="11.5" role="repair"
claim("length of a file with a view of ten rows, divided by the number of "
      "bytes in ten rows",
      saved({"t": table[:10]}) / table[:10].nbytes, above=500)

# %% [markdown] trap="11.5" role="more" topics="a copy of the rows · what 8 bits cost"
# A copy of the ten rows has its own storage. The claims below also show that 8 bits cost
# little accuracy:

# %% trap="11.5" role="more"
claim("length of the file with a copy, divided by length of the file with "
      "a view",
      saved({"t": table[:10].clone()}) / saved({"t": table[:10]}),
      below=0.01)
claim("bytes of one code", weight.qdata.element_size(), expected=1)
claim("accuracy lost at 8 bits", both[0] - both[1],
      below=0.02)

# %% [markdown] trap="11.5" role="folklore"
# **Told:** According to the popular line, the older function `quantize_dynamic` shrinks a
# model to a third or less. **Measured:** That function's packed weights are not
# parameters at all, so the line does not count them. This model has no other parameters,
# so the line reports zero bytes. The file shows how large the model is.

# %% trap="11.5" role="folklore"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")        # it is deprecated
    packed = torch.ao.quantization.quantize_dynamic(
        copy.deepcopy(large_reader), {nn.Linear}, dtype=torch.qint8)
    packed_file = saved(packed.state_dict())
print("counted", counted(packed), "  file", packed_file)

# %% trap="11.5" role="folklore"
claim("bytes that the line of code counts in the packed model",
      counted(packed), expected=0)
claim("length of the packed model's file, divided by the length of the "
      "float32 model's file",
      packed_file / files[0], above=0.24, below=0.28)

# %% trap="11.5" role="exercise" points=3 difficulty=2 minutes=10
def stored_bytes(state: dict) -> int:
    """Count the tensor bytes that torch.save would write for a state dict.

    Args:
        state: a dict whose values are strided CPU tensors, or dicts, lists
            and tuples of tensors, at any depth. Any other values do not
            count. state is left as it is.

    Returns:
        The bytes of all storages, not of the tensors: each storage counts
        once, no matter how many tensors share it. A storage counts in full,
        even if a tensor uses only a part of it or uses it several times.

    Example: {"a": torch.zeros(3)} gives 12.
    """
    # BEGIN SOLUTION
    found = {}

    def look(value):
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, dict):
            look(list(value.values()))
        elif isinstance(value, list | tuple):
            for one in value:
                look(one)
    look(state)
    return sum(found.values())
    # END SOLUTION

# %% [markdown] trap="11.5" role="hint"
# 1. `tensor.untyped_storage()` is the memory behind a tensor. Its size is `nbytes()`.
# 2. Two tensors share a storage if their storages have the same `data_ptr()`. Keep the
#    sizes in a dict, with that pointer as the key.
# 3. A small recursive function that calls itself for each value of a dict, list or tuple
#    handles any depth.

# %% [markdown] trap="11.5" role="keep"
# **Keep:** Measure a quantized model's size by the size of its files, not by `numel`
# times `element_size`. A parameter may report one type and store another, and packed
# weights may not be parameters at all. **In your own code:** Compare the file with your
# estimate of the bits for weights, scales and zeros. If the two sizes differ, something
# is not quantized, or a view has saved its whole storage. **Seen in the wild:** In
# [`huggingface/transformers#34317`](https://github.com/huggingface/transformers/issues/34317),
# a model seemed to have lost most of its parameters, and the user was told to "check
# directly the size of your files";
# [`markovka17/dla#14`](https://github.com/markovka17/dla/pull/14) corrects a course whose
# count made 8-bit models look far smaller than they are. **Source:** PyTorch,
# [serialization notes](https://docs.pytorch.org/docs/stable/notes/serialization.html),
# "Saving and loading tensors preserves views".

# %% [markdown] trap="11.6" role="situation" core=true fault="torch.jit.trace keeps one branch of an if" symptom="exported model is right on the example and wrong on other inputs: jit.trace, TracerWarning, if in forward"
# ## Two scanners, one program
#
# A second scanner delivers inverted digits, dark on a light background. So your model
# inverts every batch whose mean is above one half, and gets more than nine out of ten
# digits right from either scanner.
#
# The model has to run without Python. You pass the model and one digit from the first
# scanner to `torch.jit.trace`, which returns a program.

# %% trap="11.6" role="break"
class EitherWay(nn.Module):
    """Classify batches of light digits on dark, or of dark on light."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        if x.mean() > 0.5:
            x = 1 - x
        return self.net(x)

# %% trap="11.6" role="break"
either = EitherWay(dense).eval()
# torch.jit.trace is deprecated, and says so.
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    traced = torch.jit.trace(either, x_test[:1])

# %% trap="11.6" role="guess"
guess("11.6",
      "How many of the inverted test digits does the program get right?",
      choices=["more than nine out of ten",
               "about five out of ten",
               "two out of ten or fewer"])

# %% trap="11.6" role="look"
@torch.no_grad()
def share(program, x):
    """Accuracy of a program on the test digits in x."""
    return (program(x).argmax(1) == y_test).float().mean().item()

inverted = 1 - x_test
for name, program in (("model", either), ("program", traced)):
    print(f"{name:8} ordinary {share(program, x_test):.2f}   "
          f"inverted {share(program, inverted):.2f}")

# %% trap="11.6" role="look"
measured("11.6", 2)

# %% trap="11.6" role="look"
claim("accuracy of the trace on inverted digits",
      share(traced, inverted), below=0.2)

# %% trap="11.6" role="look"
for kind in sorted({warning.category.__name__ for warning in said}):
    text = next(str(warning.message) for warning in said
                if warning.category.__name__ == kind)
    print(f"{kind.replace('Warning', ' warning')}: {text[:77]}")

# %% [markdown] trap="11.6" role="why"
# `torch.jit.trace` runs the model on the example and records every torch operation.
# Python's `if` is not a torch operation. For the example, a digit from the first scanner,
# the condition was `False`, so Python skipped the branch. The trace contains neither the
# condition nor the branch. The only sign of the missing branch is a `TracerWarning` among
# other warnings.

# %% trap="11.6" role="why"
draw_blocks({"model": ["x", "mean > 0.5 ?", ("1 - x", "x as it is"),
                       "the net", "logits"],
             "trace": ["x", "the net", "logits"]},
            captions={"trace": "the path of the example"},
            title="The trace has only the branch of its example",
            alt="Two block diagrams. In the model, a condition on the mean "
                "leads to two branches before the net. In the trace, x "
                "goes straight to the net.")

# %% [markdown] trap="11.6" role="why"
# A test with normally distributed random numbers does not find the missing branch. Their
# mean is near 0, so every batch takes the same path as the example:

# %% trap="11.6" role="why" compare=false
noise = [torch.randn(n, 64) for n in (1, 7, 100, 1000)]
gap_on_noise = max((traced(x) - either(x)).abs().max().item()
                   for x in noise)
gap_inverted = (traced(inverted) - either(inverted)).abs().max().item()
print(f"largest gap: noise {gap_on_noise:.0e}, inverted {gap_inverted:.0f}")

# %% trap="11.6" role="why"
claim("largest gap between trace and model on batches of noise",
      gap_on_noise, below=1e-4)

# %% [markdown] trap="11.6" role="repair"
# Write the branch as an operation: `torch.cond(condition, one, other, inputs)` keeps both
# branches in the program. Both branches must return new tensors with the same dtype and
# the same number of dimensions. Returning `x` itself is not allowed, hence the `clone`.

# %% trap="11.6" role="repair"
class Cond(EitherWay):
    """The same model, with its branch as an operation."""

    def forward(self, x):
        x = torch.cond(x.mean() > 0.5, lambda x: 1 - x,
                       lambda x: x.clone(), (x,))
        return self.net(x)

cond = Cond(dense).eval()
sizes = ({0: torch.export.Dim("batch")},)       # the first size may vary
exported = torch.export.export(cond, (x_test[:2],),
                               dynamic_shapes=sizes)
program = exported.module()

# %% trap="11.6" role="repair" tags=["plumbing"]
@contextlib.contextmanager
def quiet():
    """Hide the warnings and notes of an exporter."""
    nowhere = io.StringIO()
    with (warnings.catch_warnings(), contextlib.redirect_stderr(nowhere),
          contextlib.redirect_stdout(nowhere)):
        warnings.simplefilter("ignore")
        yield nowhere

# %% trap="11.6" role="repair" tags=["plumbing"]
import onnxruntime

class OnnxFile:
    """A model exported to ONNX and run by onnxruntime on one thread."""

    def __init__(self, model, *example, **how):
        file = io.BytesIO()
        with quiet():
            torch.onnx.export(model, example, **how).save(file)
        self.bytes = file.getvalue()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(self.bytes, options)
        self.inputs = {i.name: i.shape for i in self.session.get_inputs()}

    def __call__(self, x):
        name, = self.inputs
        out, = self.session.run(None, {name: x.numpy()})
        return torch.from_numpy(out)

# %% trap="11.6" role="repair" compare=false
onnx_file = OnnxFile(cond, x_test[:2], dynamic_shapes=sizes)

@torch.no_grad()
def largest_gap(program, model=either):
    """Largest gap on both scanners and batches of 1, 7 and all digits."""
    return max((program(x[:n]) - model(x[:n])).abs().max().item()
               for x in (x_test, inverted) for n in (1, 7, len(x)))

gaps = {name: largest_gap(p) for name, p in
        (("trace", traced), ("export", program), ("ONNX", onnx_file))}
reads = {"model": share(either, inverted), "trace": share(traced, inverted),
         "cond, exported": share(program, inverted),
         "cond, as ONNX": share(onnx_file, inverted)}

# %% trap="11.6" role="repair"
plot_bars(reads, xlabel="accuracy on inverted digits",
          title="With torch.cond, programs handle both scanners",
          alt="Four bars of accuracy on inverted digits. The model and "
              "both programs with torch.cond get nearly all digits right, "
              "but the trace gets hardly any.")

# %% trap="11.6" role="repair"
claim("largest gap between exported program and model, on both branches",
      gaps["export"], below=1e-4)

# %% [markdown] trap="11.6" role="repair"
# In the exercise, you compare a program with its model, which takes some care. The model
# must be in eval mode, or dropout makes model and program differ. The program or the
# model may write into its input, so give each of them a copy. Compare shapes before
# values. The batches also have to reach each branch, but choosing the batches is the
# caller's job.

# %% [markdown] trap="11.6" role="more" topics="gaps in numbers · today's exporters refuse the if"
# The next claims give the gaps and accuracies behind the bars above:

# %% trap="11.6" role="more"
claim("largest gap between trace and model on ordinary digits",
      (traced(x_test) - either(x_test)).abs().max().item(), below=1e-4)
claim("accuracy of the model on inverted digits",
      share(either, inverted), above=0.9)
claim("largest gap between trace and model on inverted digits",
      gap_inverted, above=3)
claim("largest gap between ONNX file and model, on both branches",
      gaps["ONNX"], below=1e-3)
claim("accuracy of the ONNX file on inverted digits",
      share(onnx_file, inverted), above=0.9)

# %% [markdown] trap="11.6" role="more"
# Today's exporters run the model with tensors that have shapes but no values. Without
# values, the condition `x.mean() > 0.5` cannot be evaluated, and the exporters raise an
# error. (If a `try` in the model catches the error, the exporter keeps only one branch,
# as a trace does.)

# %% trap="11.6" role="more"
def refusal(way, model, example):
    """The name of the error that an exporter raises, or "none"."""
    try:
        with quiet():
            way(model, (example,))
    except RuntimeError as error:
        return type(error).__name__
    return "none"

refused = {f"{way.__module__}.{way.__name__}":
           refusal(way, either, x_test[:2])
           for way in (torch.export.export, torch.onnx.export)}
print(*refused.items(), sep="\n")

# %% trap="11.6" role="more"
claim("number of exporters that accept the branch without an error",
      list(refused.values()).count("none"), expected=0)

# %% [markdown] trap="11.6" role="folklore"
# **Told:** The ONNX exporter silently keeps one branch; `torch.jit.script` keeps both.
# **Measured:** The old exporter, `dynamo=False`, keeps one branch, but today's exporter
# raises an error, as you saw. `torch.jit.script` keeps both branches, but it is
# deprecated, and today's exporter does not accept a scripted model.

# %% trap="11.6" role="folklore"
import onnx

with quiet():
    scripted = torch.jit.script(either)
    file = io.BytesIO()
    torch.onnx.export(either, (x_test[:1],), file, dynamo=False,
                      input_names=["x"], dynamic_axes={"x": {0: "batch"}})
session = onnxruntime.InferenceSession(file.getvalue())

def old_file(x):
    return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])

print(f"inverted digits: old exporter {share(old_file, inverted):.2f}, "
      f"script {share(scripted, inverted):.2f}")
print("script, exported:", refusal(torch.onnx.export, scripted, x_test[:2]))

# %% trap="11.6" role="folklore"
claim("accuracy of the old exporter's file on inverted digits",
      share(old_file, inverted), below=0.2)
claim("accuracy of the scripted model on inverted digits",
      share(scripted, inverted), above=0.9)
claim("does today's exporter accept the scripted model",
      refusal(torch.onnx.export, scripted, x_test[:2]) == "none",
      expected=False)

# %% trap="11.6" role="exercise" points=3 difficulty=3 minutes=14
def disagreements(model: torch.nn.Module, program, batches: list,
                  rtol: float) -> list:
    """List the batches on which a program differs from its model.

    Args:
        model: returns finite tensors of a floating-point dtype.
        batches: float32 tensors, each with at least one entry. They do not
            change.

    Returns:
        The indices of the batches that differ, from 0, in ascending order.
        A batch differs if the program raises an Exception. A batch also
        differs if the program returns no tensor, or a tensor of a different
        shape or dtype. A batch also differs if an entry is not finite, or
        is further from the model's entry than rtol times the largest
        absolute value in the model's output for this batch.

    Model and program each get their own copy of a batch. Model and program
    run without gradients, and the model runs in eval mode. Afterwards, the
    grad mode and the mode of each module are as before.
    Example: nn.ReLU() and torch.abs, with batches [1.] and [-1.] and rtol
    0.1, give [1].
    """
    # BEGIN SOLUTION
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    found = []
    for number, batch in enumerate(batches):
        with torch.no_grad():
            wanted = model(batch.clone())
            try:
                got = program(batch.clone())
            except Exception:
                got = None
        same = (isinstance(got, torch.Tensor) and got.shape == wanted.shape
                and got.dtype == wanted.dtype)
        limit = rtol * wanted.abs().max()
        if not (same and (got - wanted).abs().max() <= limit):
            found.append(number)
    for module, mode in modes:
        module.training = mode
    return found
    # END SOLUTION

# %% [markdown] trap="11.6" role="hint"
# 1. Before `model.eval()`, store `(module, module.training)` for all of
#    `model.modules()`, and restore these modes at the end.
# 2. Compare type, shape and dtype first, because broadcasting lets you subtract tensors of shapes (1, 3) and (7, 3).
# 3. `<=` is false for NaN. So count a batch as different unless its largest gap is `<=`
#    the limit.

# %% [markdown] trap="11.6" role="keep"
# **Keep:** `torch.jit.trace` records the operations of one run, so it keeps only one
# branch of an `if`. If a branch depends on values, write it with `torch.cond`, and
# compare model and program on inputs for each branch. **In your own code:** Look for
# `if`, `while` and `.item()` on tensors in the forward pass, and do not use
# `torch.jit.trace` in new code. **Seen in the wild:** In
# [`ultralytics/yolov5#5505`](https://github.com/ultralytics/yolov5/issues/5505), a user
# asks about the warning and is told that it can be ignored. **Source:** PyTorch,
# [`torch.cond`](https://docs.pytorch.org/docs/stable/cond.html) and
# [`torch.jit.trace`](https://docs.pytorch.org/docs/stable/generated/torch.jit.trace.html),
# with its warning.

# %% [markdown] trap="11.7" role="situation" fault="an example of one row fixes the batch size" symptom="ONNX file takes only batch size 1 although dynamic_shapes was given; got invalid dimensions for input"
# ## One digit, or several
#
# Another classifier has a recurrent layer, which processes a digit row by row, and you
# have to export this classifier to an ONNX file. An exporter runs the model once, so it
# needs an example, and you pass one digit. The service may send several digits at a time,
# so you declare the input's first dimension as dynamic: `dynamic_shapes=({0:
# Dim("batch")},)`.
#
# The exporter raises no error.

# %% trap="11.7" role="break"
from torch.export import Dim

class ByRows(nn.Module):
    """Process eight rows of eight pixels, one after the other."""

    def __init__(self):
        super().__init__()
        self.rows = nn.GRU(8, 32, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        after_each_row, _ = self.rows(x.view(-1, 8, 8))
        return self.head(after_each_row[:, -1])

# %% trap="11.7" role="break"
by_rows = ByRows()
losses = fit(by_rows, x_train, y_train, steps=150, lr=1e-2)
by_rows.eval()
batch = ({0: Dim("batch")},)
one_digit = OnnxFile(by_rows, x_test[:1], dynamic_shapes=batch)

# %% trap="11.7" role="guess"
guess("11.7", "How many digits at a time does the exported file accept?",
      choices=["any number",
               "any number from `2` on",
               "only `1`",
               "any number, but with a warning from `2` on"])

# %% trap="11.7" role="look" compare=false
def takes(program, counts=(1, 2, 7, 100)):
    """The accepted batch sizes, and the error that others raise."""
    taken, raised = [], "nothing"
    for n in counts:
        try:
            program(x_test[:n])
            taken.append(n)
        except Exception as error:
            raised = type(error).__name__
    return taken, raised

with torch.no_grad():
    gap = (one_digit(x_test[:1]) - by_rows(x_test[:1])).abs().max().item()
taken, raised = takes(one_digit)
print(f"answers for {taken} digits, raises {raised} for others")
print(f"gap on the example: {gap:.0e}")

# %% trap="11.7" role="look"
measured("11.7", 2)

# %% trap="11.7" role="look"
claim("number of batch sizes, out of four, that the exported file accepts",
      len(takes(one_digit)[0]), expected=1)

# %% [markdown] trap="11.7" role="why"
# Torch treats sizes of 0 and 1 as special, because a dimension of size 1 broadcasts to
# any other size. The ONNX exporter lets the 1 in your example stand for any size, unless
# something in the model checks whether the size is 1. The recurrent layer does make this
# check. `torch.export` then raises an error and suggests a fixed size. The ONNX exporter
# follows the suggestion without telling you:

# %% trap="11.7" role="why"
with quiet() as said:
    torch.onnx.export(by_rows, (x_test[:1],), dynamic_shapes=batch)
print("mentioned:", [w for w in ("batch", "constant", "Suggested")
                     if w in said.getvalue()])

# %% trap="11.7" role="why"
claim("does the ONNX exporter mention that the size is fixed",
      "batch" in said.getvalue() or "constant" in said.getvalue(),
      expected=False)

# %% [markdown] trap="11.7" role="repair"
# Whether something checks the size depends on the model; in the plain classifier, nothing
# does. For both models, an example with two rows solves the problem.

# %% trap="11.7" role="repair"
plain_file = OnnxFile(dense.eval(), x_test[:1], dynamic_shapes=batch)
two_digits = OnnxFile(by_rows, x_test[:2], dynamic_shapes=batch)
counts, files = (1, 2, 7, 100), {"plain, one digit": plain_file,
                                 "by rows, one digit": one_digit,
                                 "by rows, two digits": two_digits}
answered = torch.tensor([[n in takes(file, counts)[0] for n in counts]
                         for file in files.values()])
for name, file in files.items():
    print(f"{name}: declares {file.inputs}")

# %% trap="11.7" role="repair"
draw_grids({"digits at a time": answered},
           marks={"digits at a time": ~answered}, row_names=[*files],
           column_names=[str(n) for n in counts], legend="refused",
           title="With an example of two rows, the size stays open",
           alt="A grid of three files and four numbers of digits at a "
               "time. The file of the row-by-row classifier, exported with "
               "one digit, accepts only one digit. The other two files "
               "accept all four numbers.")

# %% trap="11.7" role="repair"
claim("exported with two digits: number of batch sizes, out of four, that "
      "the file accepts", len(takes(two_digits)[0]), expected=4)

# %% [markdown] trap="11.7" role="repair"
# The file's declared inputs say which sizes it accepts. A declared size that is a number
# is fixed. If the declared size is a name, any size should work.
#
# An example fixes more than sizes. Almost everything that is not a tensor, such as a
# float, a string or the length of a list, becomes a constant. In the exercise, you check
# all of these constants by comparing examples.

# %% [markdown] trap="11.7" role="more" topics="the switch of the exporter · a dict of settings"
# On its own, `torch.export` treats every size of 1 in the example as fixed and refuses to
# make it dynamic, even for the plain classifier. The ONNX exporter calls `torch.export`
# with a switch, `backed_size_oblivious`, which lets a 1 stand for any size.

# %% trap="11.7" role="more"
from torch.fx.experimental import _config as switches

def refused_by_export(model, switch):
    """Whether torch.export refuses to make one row dynamic."""
    try:
        with quiet(), switches.patch(backed_size_oblivious=switch):
            torch.export.export(model, (x_test[:1],), dynamic_shapes=batch)
    except torch._dynamo.exc.UserError:
        return True
    return False

refusals = {(name, switch): refused_by_export(model.eval(), switch)
            for name, model in (("plain", dense), ("by rows", by_rows))
            for switch in (False, True)}

# %% trap="11.7" role="more"
for (name, switch), no in refusals.items():
    print(f"{name:8} switch {switch!s:5} refused {no}")

# %% trap="11.7" role="more"
claim("number of models, out of two, that torch.export rejects without the "
      "switch",
      refusals["plain", False] + refusals["by rows", False], expected=2)
claim("does torch.export with the switch reject only the recurrent "
      "classifier",
      refusals["by rows", True] and not refusals["plain", True],
      expected=True)
claim("largest gap between file and model on the example", gap, below=1e-3)
claim("number of batch sizes, out of four, that the plain classifier's "
      "file accepts",
      len(takes(plain_file)[0]), expected=4)
claim("exported with two digits: largest gap between file and model",
      largest_gap(two_digits, by_rows), below=1e-3)

# %% [markdown] trap="11.7" role="more"
# The classifier in the next cell also takes settings, a dict of values of different
# types. `torch.jit.script` treats every argument without a type annotation as a tensor
# and rejects this model. `torch.export` accepts the model, but everything that is not a
# tensor becomes a constant (except for an integer that you declare as dynamic):

# %% trap="11.7" role="more"
class WithSettings(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, settings):
        z = self.net(x) / settings["temperature"]
        return z.log_softmax(1) if settings["logs"] else z

with_settings = WithSettings(dense).eval()
settings = {"temperature": 2.0, "logs": True}
# None: not a tensor, so nothing can be dynamic.
free = {"x": {0: Dim("batch")},
        "settings": {"temperature": None, "logs": None}}
fixed = torch.export.export(with_settings, (x_test[:2], settings),
                            dynamic_shapes=free).module()

# %% trap="11.7" role="more"
def other(program, temperature):
    """Gap to the model at a different temperature, or the error."""
    changed = dict(settings, temperature=temperature)
    try:
        gap = program(x_test, changed) - with_settings(x_test, changed)
        return gap.abs().max().item()
    except Exception as error:
        return str(error).split("\n")[0]

print(other(fixed, 4.0))

# %% trap="11.7" role="more"
as_tensor = dict(settings, temperature=torch.tensor(2.0))
free["settings"]["temperature"] = {}         # a tensor, no dynamic size
opened = torch.export.export(with_settings, (x_test[:2], as_tensor),
                             dynamic_shapes=free).module()
print("gap at a different temperature:", other(opened, torch.tensor(4.0)))

# %% trap="11.7" role="more"
claim("does torch.jit.script accept this forward method",
      refusal(lambda model, _: torch.jit.script(model), with_settings, None)
      == "none", expected=False)
claim("exported with a number: does the program reject a different "
      "temperature", "temperature" in str(other(fixed, 4.0)), expected=True)
claim("largest gap between program and model, with a different temperature "
      "as a tensor", other(opened, torch.tensor(4.0)), below=1e-4)

# %% trap="11.7" role="exercise" points=3 difficulty=2 minutes=15
def free_dims(examples: list):
    """Find the dimensions that an exporter has to make dynamic.

    Args:
        examples: at least two inputs of one model: tensors, numbers, str,
            None, and lists, tuples and dicts of these, at any depth. The
            first is the example to export. They do not change.

    Returns:
        A copy of the structure of the first example. A tensor is replaced
        by a tuple of the dimensions whose size is not the same in all
        examples, in ascending order. Everything else is replaced by None.

    Raises ValueError if something varies that an exporter cannot make
    dynamic. The type of a value must not vary. A number, str or None must
    not vary. The length of a list or tuple must not vary. The keys of a
    dict must not vary. Their order may vary. A tensor's dtype and number of
    dimensions must not vary. The error is raised as well if a varying
    dimension has size 0 or 1 in the first example.
    Example: [(zeros(2, 3), 0.5), (zeros(7, 3), 0.5)] gives ((0,), None).
    """
    # BEGIN SOLUTION
    first, *others = examples
    if any(type(other) is not type(first) for other in others):
        raise ValueError("values of several types")
    if isinstance(first, torch.Tensor):
        if any(t.dtype != first.dtype or t.dim() != first.dim()
               for t in others):
            raise ValueError("tensors of several dtypes or ranks")
        varies = tuple(d for d in range(first.dim()) if any(
            t.shape[d] != first.shape[d] for t in others))
        if any(first.shape[d] < 2 for d in varies):
            raise ValueError("a free size of 0 or 1 in the first example")
        return varies
    if isinstance(first, dict):
        if any(set(other) != set(first) for other in others):
            raise ValueError("other keys")
        return {key: free_dims([e[key] for e in examples]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(free_dims(each)
                           for each in zip(*examples, strict=True))
    if any(other != first for other in others):
        raise ValueError("a value that varies becomes a constant")
    return None
    # END SOLUTION

# %% [markdown] trap="11.7" role="hint"
# 1. Write a recursive function: for a dict, call it with the values under each key; for a
#    list or tuple, call it with the values at each index.
# 2. Compare the types first. Then compare the dtype and `dim()` of tensors, the keys of
#    dicts, the length of lists and tuples, and every other value itself.
# 3. A dimension varies if the set of its sizes has more than one element. If it varies,
#    check its size in the first example.

# %% [markdown] trap="11.7" role="keep"
# **Keep:** An exporter may build its example into the program: sizes that you do not
# declare as dynamic, sizes of 0 and 1, and every value that is not a tensor. Use an
# example with two or more of everything that has to vary. **In your own code:** Before
# you ship the file, print its declared inputs and call it with several sizes. **Seen in
# the wild:** In
# [`pytorch/pytorch#157621`](https://github.com/pytorch/pytorch/issues/157621), a ResNet's
# dynamic size was exported as a fixed size, and the answer was to use a batch of two as
# the example; [`hqucms/weaver-core#29`](https://github.com/hqucms/weaver-core/pull/29)
# fixed the same problem with an example batch of two and tests at several sizes.
# **Source:** PyTorch,
# [`torch.export`](https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/export.html).

# %% [markdown] trap="11.8" role="situation" fault="block scales along the tokens, not along the sum" symptom="emulated MXFP4 or NVFP4 is much better than the hardware: block scales along the wrong axis, outlier channels"
# ## Two loud units in four bits
#
# A device will multiply in *MXFP4*. MXFP4 numbers have 4 bits, and each block of 32
# neighbours shares one scale, a power of two. Until the device arrives, you emulate it:
# round to the format and multiply in float32.
#
# Two inputs of the classifier's second layer are *loud*: you made them 35 times as large
# and divided their weights by 35, which leaves the product the same. (Language models
# have such inputs.) A comment in your emulation says: "The 32 neighbours are 32
# digits at the same input, so no quiet number shares a scale with a loud one."

# %% trap="11.8" role="break"
def to_fp4(x):
    """Round to 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives."""
    x = x.clamp(-6, 6)
    step = torch.where(x.abs() < 2, 0.5, torch.where(x.abs() < 4, 1.0, 2.0))
    return (x / step).round() * step

def to_mxfp4(x, axis):
    """Codes, and one scale per 32 neighbours along the axis."""
    blocks = x.unflatten(axis, (-1, 32))
    largest = blocks.abs().amax(axis + 1, keepdim=True)
    scale = 2.0 ** (largest.frexp().exponent - 3)
    return to_fp4(blocks / scale), scale        # the largest: from 4 to 8

# %% trap="11.8" role="break"
def mxfp4(x, axis):
    """Round x to MXFP4, with blocks along the axis."""
    codes, scale = to_mxfp4(x, axis)
    return (codes * scale).flatten(axis, axis + 1)

first, second, third = linears(dense)
with torch.no_grad():
    units = F.relu(first(x_train))              # (1300, 64)
    loudest = units.norm(dim=0).view(2, 32).argmax(1)
    gain = torch.ones(2, 32)
    gain[[0, 1], loudest] = 35
    gain = gain.flatten()                       # one loud unit in each 32
    inputs = gain * F.relu(first(x_test[:480]))            # (480, 64)
    weight = second.weight / gain                          # (64, 64)

# %% trap="11.8" role="break"
@torch.no_grad()
def read_with(x, w):
    """Accuracy on 480 digits if the second layer multiplies x and w."""
    hidden = F.relu(x @ w.T + second.bias)
    found = third(hidden).argmax(1)
    return (found == y_test[:480]).float().mean().item()

exact = read_with(inputs, weight)
emulated = read_with(mxfp4(inputs, 0), mxfp4(weight, 1))

# %% trap="11.8" role="guess" quoted="wrong"
guess("11.8",
      "When the device arrives, how many of 100 digits will the classifier "
      "get right on it?",
      choices=["about 95",
               "about 85",
               "about 50",
               "about 10"])

# %% trap="11.8" role="look"
on_device = read_with(mxfp4(inputs, 1), mxfp4(weight, 1))
plot_bars({"not rounded": exact, "your emulation": emulated,
           "the device": on_device}, xlabel="accuracy",
          title="The device gets far fewer digits right than the emulation",
          alt="Three bars of accuracy. The accuracy is nearly one without "
              "rounding and in the emulation, but far lower on the device.")

# %% trap="11.8" role="look"
measured("11.8", 2)

# %% trap="11.8" role="look"
claim("accuracy on the device", on_device, above=0.24, below=0.72)

# %% [markdown] trap="11.8" role="why"
# An entry of the product is a *sum* over the inputs. The device multiplies 32 pairs of
# codes, adds the products, and only then multiplies by two scales. This works because all
# 32 pairs share both scales. Scales that change from pair to pair, as in your emulation,
# cannot be factored out of the sum. So blocks have to run along the summed axis:

# %% trap="11.8" role="why"
def product(x, w):
    """x @ w.T from codes: sums of 32 pairs, each times two scales."""
    (x, scale_x), (w, scale_w) = to_mxfp4(x, 1), to_mxfp4(w, 1)
    sums = torch.einsum("nbk,obk->nob", x, w)            # of codes alone
    return (sums * (scale_x.mT * scale_w.squeeze(2))).sum(2)

along_sum = mxfp4(inputs, 1) @ mxfp4(weight, 1).T
apart = (product(inputs, weight) - along_sum).norm() / along_sum.norm()

# %% trap="11.8" role="why"
claim("relative gap between a product from codes and a product of rounded "
      "matrices", apart, below=1e-5)

# %% [markdown] trap="11.8" role="why"
# Along the summed axis, a loud input sets the scale of its quiet neighbours, and most of
# the quiet inputs become zero. In your emulation, a loud input's neighbours were the same
# input for other digits, and just as loud:

# %% trap="11.8" role="why"
shown = slice(int(loudest[0]) // 16 * 16, int(loudest[0]) // 16 * 16 + 16)
grids = {"along the digits": mxfp4(inputs, 0),
         "along the sum": mxfp4(inputs, 1)}
grids = {name: x[:12, shown] != 0 for name, x in grids.items()}
loud = (gain > 1)[shown].expand(12, 16)
draw_grids(grids, rows="digit", columns="input", legend="loud",
           marks={name: loud for name in grids},
           captions={"along the digits": "filled: not zero"},
           title="Along the sum, a loud input silences its block",
           alt="Two grids of twelve digits and sixteen inputs, with "
               "nonzero cells filled. With blocks along the digits, nearly "
               "all cells are filled. With blocks along the sum, few are "
               "filled except for the loud column.")

# %% [markdown] trap="11.8" role="repair"
# With blocks along the sum, your emulation shows what the device will do. Then you can
# help the device by moving a factor from a single *input* into that input's weights.
# Before rounding, divide each input by its largest size on the training digits, and
# multiply its weights by that size:

# %% trap="11.8" role="repair"
size = (gain * units).amax(0)
size = size.clamp(min=1e-4 * size.max())         # units that stay dark
moved = read_with(mxfp4(inputs / size, 1), mxfp4(weight * size, 1))
print(f"accuracy: along the sum {on_device:.2f}, sizes moved into the "
      f"weights {moved:.2f}")

# %% trap="11.8" role="repair"
claim("accuracy lost with blocks along the sum if the inputs' sizes move "
      "into the weights", exact - moved, below=0.05)

# %% [markdown] trap="11.8" role="more" topics="a test that shows nothing · torchao's numbers · which way a power of two is rounded"
# On inputs without a loud unit, blocks along either axis have about the same error, so a
# test on random numbers shows nothing. With a loud *digit* instead of a loud input, the
# emulation loses the quiet digits in the same block. Our rounding follows the format:
# torchao's `MXTensor.to_mx`, whose blocks run along the last axis, returns the
# same numbers to the last bit.
#
# The weights of loud inputs also suffer. These weights are smaller by a factor of 35 and
# share scales with ordinary weights, so nearly all become zero on the device and in the
# emulation.

# %% trap="11.8" role="more" tags=["plumbing"]
with contextlib.redirect_stderr(io.StringIO()):
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

# %% trap="11.8" role="more"
even = inputs / gain                    # no input is loud
plain = even @ second.weight.detach().T

def product_off(axis):
    """Relative error of the product, with blocks along an axis."""
    found = mxfp4(even, axis) @ mxfp4(second.weight.detach(), 1).T
    return ((found - plain).norm() / plain.norm()).item()

theirs = MXTensor.to_mx(inputs, torch.float4_e2m1fn_x2, 32).dequantize(
    torch.float32)

# %% trap="11.8" role="more"
claim("accuracy of the emulation minus accuracy of the device",
      emulated - on_device,
      above=0.2)
claim("no loud input: error with blocks along digits divided by error "
      "with blocks along the sum",
      product_off(0) / product_off(1), above=0.85, below=1.15)
claim("number of values that differ between torchao's MXFP4 and ours",
      int((theirs != mxfp4(inputs, 1)).sum()), expected=0)
claim("fraction of the quiet inputs that become zero, with blocks along "
      "the sum",
      1 - (mxfp4(inputs, 1)[:, gain == 1] != 0).sum()
      / (inputs[:, gain == 1] != 0).sum(), above=0.7)

# %% [markdown] trap="11.8" role="more"
# Blocks along the tokens are fine for numbers that are only *stored*, such as the keys of
# trap 13.7, which are converted to a wider type before the multiplication. And some sums
# do run along the tokens: over the keys in the product of attention weights and values,
# and over the batch in a weight's gradient. Training therefore rounds a tensor twice,
# once along each axis, unless its blocks are squares, which work for both sums.
#
# Which power of two becomes the scale is also a choice. The cell below uses blocks of
# MXFP8 in E4M3, whose largest level is 448. The specification takes only the exponent of
# the largest number, which rounds the scale down. Some kernels round the scale to the
# nearest power of two, and some round it up.

# %% trap="11.8" role="more"
drawn_blocks = torch.randn(4096, 32)
top, at = drawn_blocks.abs().max(1, keepdim=True)
powers = {"down": top.log2().floor() - 8,        # 448 lies above 2 ** 8
          "nearest": (top / 448).log2().round(),
          "up": (top / 448).log2().ceil()}
clipped, worst = {}, {}
for way, power in powers.items():
    scaled = drawn_blocks / 2**power
    seen = scaled.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    off = ((seen - scaled) / scaled).abs().gather(1, at)
    clipped[way] = (top / 2**power > 448).float().mean().item()
    worst[way] = off.max().item()
    print(f"{way:8} blocks clipped {clipped[way]:.2f}, largest error of "
          f"a block's maximum {worst[way]:.3f}")

# %% trap="11.8" role="more"
claim("fraction of blocks that are clipped, with the scale rounded to the "
      "nearest power", clipped["nearest"], above=0.5)
claim("fraction of blocks that are clipped, with the scale rounded up",
      clipped["up"], expected=0)
claim("largest relative error of a block's maximum, with the scale "
      "rounded to nearest", worst["nearest"], above=0.25)
claim("largest relative error of a block's maximum, with the scale "
      "rounded down", worst["down"], above=0.1, below=0.15)
claim("largest relative error of a block's maximum, with the scale "
      "rounded up", worst["up"], below=0.07)

# %% trap="11.8" role="exercise" points=3 difficulty=3 minutes=15
def mx_einsum(equation: str, a: torch.Tensor, b: torch.Tensor
              ) -> torch.Tensor:
    """Compute einsum(equation, a, b) as a device does in MXFP4.

    Args:
        equation: two operands and a result, such as "td,od->to". One letter
            is summed: it is in both operands but not in the result. All
            other letters are in the result; some can be in both operands.
        a, b: float32, in any memory order. a and b are left as they are.
            The number of entries along the summed axis is a multiple of 32.

    First, a and b are rounded. Each block of 32 neighbours along the summed
    axis shares a scale. The scale is the largest power of two that is at
    most a quarter of the block's largest absolute value. A number becomes
    the nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6 times the scale, with its
    sign. 32 zeros stay zeros. Then a and b are multiplied and added in
    float32.

    Example: "k,k->" with [33., 1., ..., 1.] and 32 ones gives 32., not 64.
    """
    # BEGIN SOLUTION
    operands, result = equation.split("->")
    rounded_ones = []
    for letters, x in zip(operands.split(","), (a, b)):
        axis, = [i for i, c in enumerate(letters) if c not in result]
        blocks = x.unflatten(axis, (-1, 32))
        largest = blocks.abs().amax(axis + 1, keepdim=True)
        scale = 2.0 ** (largest.frexp().exponent - 3)
        levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        gaps = ((blocks / scale).abs()[..., None] - levels).abs()
        codes = levels[gaps.argmin(-1)] * blocks.sign()
        rounded_ones.append((codes * scale).flatten(axis, axis + 1))
    return torch.einsum(equation, *rounded_ones)
    # END SOLUTION

# %% [markdown] trap="11.8" role="hint"
# 1. In each operand, find the letter that is not in the result. The letter's position is
#    the axis.
# 2. `x.unflatten(axis, (-1, 32))` splits that axis into blocks and puts their 32 entries at `axis + 1`; `flatten(axis, axis + 1)` reverses this.
# 3. The exponent of the scale is `largest.frexp().exponent - 3`, because `frexp` returns a mantissa from 0.5 to 1. A block of zeros also gets a scale, so you never divide by 0.

# %% [markdown] trap="11.8" role="keep"
# **Keep:** Let blocks with a shared scale run along the summed axis, as in hardware. An
# emulation with other blocks can report an accuracy that no device reaches. **In your own
# code:** Make one column of a tensor 35 times as large, and round the tensor. If the
# blocks run along the sum, most of the column's neighbours become zeros. **Seen in the
# wild:**
# [`btxchain/btx#89`](https://github.com/btxchain/btx/pull/89) describes a design with two
# products in which the scales ran along the free axis, so no block-scaled unit could
# compute them; in
# [`flashinfer-ai/flashinfer#3814`](https://github.com/flashinfer-ai/flashinfer/pull/3814),
# a test used the wrong axis in one operand and passed, because its numbers were too
# similar; in [`ml-explore/mlx#4353`](https://github.com/ml-explore/mlx/pull/4353), block
# scales were rounded to the nearest power, which clipped the largest numbers. **Source:**
# NVIDIA,
# [`cuda.tile.mma_scaled`](https://docs.nvidia.com/cuda/cutile-python/generated/cuda.tile.mma_scaled.html),
# "block scales along the K dimension".

# %% [markdown] trap="11.9" role="situation" fault="NVFP4 without the tensor's scale loses small numbers" symptom="NVFP4 without a global scale: small weights or gradients become all zeros, training stalls with a larger batch"
# ## Gradients in four bits, and a larger batch
#
# In *NVFP4*, each block of 16 neighbours shares a scale that is finer than a power of
# two: a float8 number in E4M3. Normally distributed numbers are rounded with a relative
# error of about a tenth. You train a classifier with gradients in NVFP4. In the backward
# pass, a layer uses its output gradient in two products, for the gradients of its inputs
# and weights. For each product, you round the output gradient along the summed axis.
# Everything else stays in float32.
#
# With 16 digits per step, the classifier learns. Then you use 256 digits per step, with
# Adam as before. With float32 gradients, the same run ends at a loss of about 0.1.

# %% trap="11.9" role="break"
def nvfp4(x, axis):
    """Round x to NVFP4: 16 neighbours on the axis share a float8 scale."""
    blocks = x.unflatten(axis, (-1, 16))
    largest = blocks.abs().amax(axis + 1, keepdim=True)
    scale = (largest / 6).clamp(max=448).to(torch.float8_e4m3fn).float()
    codes = to_fp4((blocks / scale).nan_to_num(0))     # 0 / 0 is no number
    return (codes * scale).flatten(axis, axis + 1)

# %% trap="11.9" role="break"
class Product(torch.autograd.Function):
    """x @ w.T, with its gradient rounded for each of two products."""

    @staticmethod
    def forward(ctx, x, w, rounding):
        ctx.save_for_backward(x, w)
        ctx.rounding = rounding
        return x @ w.T

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return ctx.rounding(g, 1) @ w, ctx.rounding(g, 0).T @ x, None

# %% trap="11.9" role="break"
class Rounding(nn.Linear):
    """A layer without a bias that rounds its output's gradient."""

    def __init__(self, inputs, outputs, rounding):
        super().__init__(inputs, outputs, bias=False)
        self.rounding = rounding

    def forward(self, x):
        return Product.apply(x, self.weight, self.rounding)

def reader_by(rounding):
    """64 pixels, 64 and 64 units, 16 outputs: ten digits, six unused."""
    return nn.Sequential(Rounding(64, 64, rounding), nn.ReLU(),
                         Rounding(64, 64, rounding), nn.ReLU(),
                         Rounding(64, 16, rounding))

# %% trap="11.9" role="break"
def curve(rounding, batch, steps=150):
    """Train a classifier; return its losses, each a mean over ten steps."""
    model = reader_by(rounding)
    losses = fit(model, x_train, y_train, steps=steps, lr=3e-3, batch=batch)
    return model, torch.tensor(losses).view(-1, 10).mean(1).tolist()

trained = {batch: curve(nvfp4, batch) for batch in (16, 64, 256)}
in_float = curve(lambda g, axis: g, 256)

# %% trap="11.9" role="guess"
guess("11.9",
      "At what loss does the run with 256 digits per step and NVFP4 "
      "gradients end?",
      unit="nats")

# %% trap="11.9" role="look"
final = {batch: losses[-1] for batch, (_, losses) in trained.items()}
lines = {f"{batch} digits": losses
         for batch, (_, losses) in trained.items()}
lines["256, float32"] = in_float[1]
plot_lines(range(10, 151, 10), lines, xlabel="step", ylabel="loss in nats",
           title="The more digits per step, the less the classifier learns",
           alt="Four curves of loss. With 16 digits per step, the loss "
               "falls. With 64, it falls half as far. With 256, it stays "
               "where it started. In float32 with 256 digits, it falls the "
               "furthest.")

# %% trap="11.9" role="look"
measured("11.9", final[256], right=(2, 3.5))

# %% trap="11.9" role="look"
claim("final loss with 256 digits per step, divided by final loss with 16 "
      "digits per step", final[256] / final[16], above=3)

# %% [markdown] trap="11.9" role="why"
# The loss is a mean, so one digit's gradient is divided by the number of digits. In
# float32, this division does not matter, because Adam ignores the size of a gradient. But
# a block's scale, its largest number divided by 6, has to be stored in E4M3, whose
# smallest positive number is `2 ** -9`. A scale below half of this number is rounded to
# zero. So every block whose largest number is below `6 * 2 ** -10`, or `0.0059`, becomes
# zero. With 256 digits per step, no gradient of a logit is larger than `1 / 256`, or
# `0.0039`.

# %% trap="11.9" role="why"
def error_at(size, rounding, axis=1):
    """Relative error of normally distributed numbers of this size."""
    x = size * torch.randn(64, 256)
    return ((rounding(x, axis) - x).norm() / x.norm()).item()

sizes = [10.0**k for k in (-4, -3, -2.7, -2.3, -2, -1, 0, 1, 2, 3, 3.5, 4)]
alone = [error_at(size, nvfp4) for size in sizes]

# %% trap="11.9" role="why"
def nvfp4_two(x, axis):
    """NVFP4 with a float32 scale for the whole tensor as well."""
    whole = x.abs().max() / (6 * 448)
    if whole == 0:
        return x
    return nvfp4(x / whole, axis) * whole

both = [error_at(size, nvfp4_two) for size in sizes]
plot_lines(sizes, {"one scale": alone, "two scales": both}, logx=True,
           xlabel="size of the numbers", ylabel="relative error",
           title="With only one float8 scale, there is a cliff at each end",
           alt="Two curves of the relative error over the size of the "
               "numbers. With two scales, the error is flat at a tenth. "
               "With only the block's scale, it rises to one below 0.002, "
               "and steeply above 3000.")

# %% trap="11.9" role="why"
claim("relative error with one scale, for numbers of size 0.001",
      alone[1], above=0.99)

# %% [markdown] trap="11.9" role="repair"
# So NVFP4 has a second scale, one float32 number for the tensor: the tensor's largest
# number divided by `6 * 448`. After division by this scale, the block with the largest
# number has the scale 448, the largest in E4M3, and other blocks use the range below 448.
# With `nvfp4_two`, training works as in float32:

# %% trap="11.9" role="repair" compare=false
repaired = curve(nvfp4_two, 256)
print(f"loss with 256 digits: one scale {final[256]:.2f}, two "
      f"{repaired[1][-1]:.2f}, float32 {in_float[1][-1]:.2f}")

# %% trap="11.9" role="repair"
claim("256 digits per step: final loss with two scales minus final loss "
      "in float32", repaired[1][-1] - in_float[1][-1], below=0.1)

# %% [markdown] trap="11.9" role="more" topics="the first step · torchao · a floor, and the other end · what two scales cannot represent"
# With 256 digits per step, not a single weight has moved. With 16 digits per step, a
# digit's gradient reaches the hidden layers only if the right answer has a probability
# below about `0.9`; with 64 digits, the probability has to be below about `0.6`. Along
# the outputs, the gradients of all other digits are rounded to zero.

# %% trap="11.9" role="more"
def first_step(batch):
    """Fraction of the weights that get a gradient in a first step."""
    model = reader_by(nvfp4)
    F.cross_entropy(model(x_train[:batch]), y_train[:batch]).backward()
    grads = torch.cat([p.grad.flatten() for p in model.parameters()])
    return (grads != 0).float().mean().item()

reached = {batch: first_step(batch) for batch in (16, 64, 256)}
print({batch: f"{share:.2f}" for batch, share in reached.items()})

# %% trap="11.9" role="more"
claim("fraction of weights that get a nonzero gradient in a first step "
      "with 256 digits", reached[256], expected=0)
claim("fraction of weights that get a nonzero gradient in a first step "
      "with 16 digits", reached[16], above=0.1)

# %% [markdown] trap="11.9" role="more"
# torchao returns the same numbers here, with one scale and with two. In torchao, block
# scales never become zero, because they stay at 1 / 64 or above. Small numbers are lost
# anyway: in `nvfp4`, their scales become zero, and in torchao, their codes become zero.

# %% trap="11.9" role="more" tags=["plumbing"]
with contextlib.redirect_stderr(io.StringIO()):
    from torchao.prototype.mx_formats.nvfp4_tensor import (
        NVFP4Tensor, per_tensor_amax_to_scale,
    )

def by_torchao(x, two):
    """Round x with torchao's NVFP4, with blocks along the last axis."""
    whole = per_tensor_amax_to_scale(x.abs().max()) if two else None
    return NVFP4Tensor.to_nvfp4(x, per_tensor_scale=whole).dequantize(
        torch.float32)

# %% trap="11.9" role="more"
numbers = torch.randn(256, 256)

def differ(ours, theirs):
    """Fraction of the numbers that differ by more than rounding."""
    return 1 - torch.isclose(ours, theirs, rtol=1e-5).float().mean().item()

one_off = differ(nvfp4(numbers, 1), by_torchao(numbers, False))
two_off = differ(nvfp4_two(numbers, 1), by_torchao(numbers, True))
lost = (by_torchao(numbers / 1000, False) == 0).float().mean().item()

# %% trap="11.9" role="more"
claim("with one scale: fraction of numbers that torchao and our code round "
      "differently", one_off, below=1e-3)
claim("with two scales: fraction of numbers that torchao and our code "
      "round differently", two_off, below=1e-3)
claim("fraction of numbers of size 0.001 that torchao rounds to zero, "
      "with one scale", lost, above=0.98)

# %% [markdown] trap="11.9" role="more"
# For very large numbers, all block scales are 448, and every number larger than `6 * 448`
# is clipped. Two scales can represent tensors of any size, but not sizes that are far
# apart in the same tensor: a block is lost again if its largest number is a millionth
# of the tensor's largest number.

# %% trap="11.9" role="more"
with_outlier = numbers.clone()
with_outlier[0, 0] = 1e7
left = nvfp4_two(with_outlier, 1)[1:]

# %% trap="11.9" role="more"
claim("relative error with one scale, for numbers of size 10,000",
      alone[-1], above=0.7)
claim("largest relative error with two scales, over all sizes",
      max(both), below=0.12)
claim("with two scales: fraction of zeros in the other rows if one number "
      "is 10,000,000", (left == 0).float().mean(), expected=1)

# %% trap="11.9" role="exercise" points=3 difficulty=2 minutes=12
def nvfp4_scales(parts: list) -> tuple:
    """Compute the NVFP4 scales of matrices that are multiplied as one.

    Args:
        parts: one or more matrices, such as the weights of q, k and v,
            which a server stacks for a single product. Each is (R, C)
            float32, finite and in any memory order. All are left as they
            are. Each has its own R; C is a multiple of 16. They share one
            tensor scale.

    Returns (whole, scales):
        whole: float32 of shape (), the largest absolute value in any part /
        (6 * 448). whole is 1 if all values are zero. scales: a list with a
        float8_e4m3fn tensor (R, C // 16) for each part. A scale is the
        largest absolute value among 16 neighbours of a row / 6 / whole. The
        scale is rounded to the nearest float8. A block of zeros has the
        scale 0.

    Example: parts [[2688., 0., ..., 0.]] and [[0., ..., 0., -6.]], with 16
    numbers each, give 1. and the scales [[448.]] and [[1.]].
    """
    # BEGIN SOLUTION
    whole = torch.stack([part.abs().max() for part in parts]).max()
    whole = whole / (6 * 448) if whole > 0 else torch.tensor(1.0)
    scales = []
    for part in parts:
        largest = part.abs().unflatten(1, (-1, 16)).amax(2)
        scales.append((largest / 6 / whole).to(torch.float8_e4m3fn))
    return whole, scales
    # END SOLUTION

# %% [markdown] trap="11.9" role="hint"
# 1. Use two passes: find the largest absolute value over all parts, then compute each part's blocks.
# 2. The number with the largest absolute value can be negative, so use `abs` before
#    each maximum.
# 3. `part.unflatten(1, (-1, 16))` has the 16 neighbours in its last axis; `.to(torch.float8_e4m3fn)` rounds to nearest.

# %% [markdown] trap="11.9" role="keep"
# **Keep:** NVFP4's block scale is a float8 number with a small range. So also use the
# second scale, for the whole tensor, or small tensors become zeros and large tensors are
# clipped. **In your own code:** Round a tensor. Then multiply the same tensor by 0.001
# and by 1,000, and round both results. The relative error must not change. **Seen in
# the wild:** In [`dropbox/gemlite#39`](https://github.com/dropbox/gemlite/issues/39),
# weights became zeros because their float8 scales did; in
# [`jax-ml/jax#30467`](https://github.com/jax-ml/jax/pull/30467), a global scale was not
# applied everywhere, and tests compared zeros with zeros; in
# [`pytorch/ao#2604`](https://github.com/pytorch/ao/pull/2604), a factor of 6 was
# missing in the tensor's scale. **Source:** Intel, [NVFP4
# quantization](https://intel.github.io/neural-compressor/latest/docs/source/3x/PT_NVFP4Quant.html),
# "two-level scaling".

# %% [markdown] role="concept"
# ## Further
#
# ### Weights alone, or the inputs as well
#
# The section on static and dynamic scales quantized one layer by hand. `torchao` has
# recipes for a whole model. *Weight-only* quantization stores the codes and converts them
# back to floats before the product, which saves memory. If the inputs also have 8 bits,
# the product itself can use integers. *Dynamic* quantization computes the inputs' scale
# for each row while the model runs. *Static* quantization uses one scale per layer,
# computed from the *calibration* rows.

# %% role="concept" tags=["plumbing"]
from torch.random import fork_rng

with contextlib.redirect_stderr(io.StringIO()):
    from torchao.quantization import (
        Int8DynamicActivationInt8WeightConfig,
        Int8StaticActivationInt8WeightConfig, Int8WeightOnlyConfig,
        IntxWeightOnlyConfig, PerGroup, PerTensor, quantize_,
    )

with fork_rng():                          # as large as that of trap 11.5
    large_reader = mlp(64, 512, 512, 10)
    losses = fit(large_reader, x_train, y_train, steps=100, lr=1e-3)
large_reader.eval()
batch = ({0: torch.export.Dim("batch")},)        # the first size may vary

# %% role="concept"
def by_recipe(config):
    """Quantize the large classifier with torchao."""
    model = copy.deepcopy(large_reader).eval()
    quantize_(model, config)
    return model

kinds = {
    "as trained": large_reader,
    "weights, 8 bits": by_recipe(Int8WeightOnlyConfig()),
    "weights, 4 bits": by_recipe(IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=PerGroup(32))),
    "dynamic, 8 bits": by_recipe(Int8DynamicActivationInt8WeightConfig())}

# %% role="concept"
def by_calibration(x):
    """Quantize it with static scales: each layer's largest input on x."""
    model = copy.deepcopy(large_reader).eval()
    for path, layer in large_reader.named_children():
        if isinstance(layer, nn.Linear):
            config = Int8StaticActivationInt8WeightConfig(
                act_quant_scale=(x.abs().amax() / 127).view(1, 1),
                granularity=PerTensor())
            quantize_(model, config,
                      lambda _, found, path=path: found == path)
        x = layer(x)
    return model

kinds["static, 40 digits"] = by_calibration(x_train[:40])
kinds["static, 40 dark digits"] = by_calibration(x_train[:40] / 4)

# %% role="concept" compare=false
@torch.no_grad()
def logits_off(model):
    """Relative error of the logits on the test digits."""
    right = large_reader(x_test)
    return ((model(x_test) - right).norm() / right.norm()).item()

logits, bytes_of = {}, {}
for name, model in kinds.items():
    logits[name] = logits_off(model)
    bytes_of[name] = saved(model.state_dict())
    print(f"{name:22} error {logits[name]:.3f}   accuracy "
          f"{accuracy(model, x_test, y_test):.2f}   file {bytes_of[name]}")

# %% role="concept"
claim("relative error of the logits, with only the weights in 8 bits",
      logits["weights, 8 bits"], below=0.02)
claim("relative error of the logits: larger of the dynamic and the static "
      "classifier's errors",
      max(logits["dynamic, 8 bits"], logits["static, 40 digits"]),
      below=0.5)

# %% [markdown] role="concept"
# The printed table depends on your processor. If it has instructions for 8-bit products
# (VNNI), the dynamic and the static classifier each have an error below a hundredth.
# On x86 without such instructions, pairs of products are added in 16 bits and clipped,
# and both classifiers have a large error. oneDNN explains this in [Nuances of int8
# computations](https://oneapi-src.github.io/oneDNN/dev_guide_int8_computations.html). So
# test a quantized file on the kind of machine that will run it.

# %% role="concept"
claim("relative error of the logits, with static scales calibrated on "
      "dark digits", logits["static, 40 dark digits"], above=0.4)
claim("accuracy with static scales calibrated on dark digits",
      accuracy(kinds["static, 40 dark digits"], x_test, y_test), above=0.75)

# %% [markdown] role="concept"
# Two lines of the table deserve a second look. For the static scale, 40 digits are
# enough, because they resemble the test digits. If you calibrate with the same digits at
# a quarter of their brightness, the bright pixels are clipped. With such a scale, the
# logits are far off, and yet most digits are classified correctly, so a check of the
# accuracy alone might not show the fault. A dynamic scale needs no calibration but costs
# one extra pass over each input.
#
# The file with 4 bits is also *longer* than the file with 8 bits. Look at the bytes per
# code in this recipe, and at how many weights share a scale and a zero:

# %% role="concept"
code = kinds["weights, 4 bits"][2].weight
claim("length of the file with 4 bits, divided by length of the file with "
      "8 bits",
      bytes_of["weights, 4 bits"] / bytes_of["weights, 8 bits"], above=1.05)
claim("bytes of one 4-bit code", code.qdata.element_size(), expected=1)
claim("number of weights that share a scale",
      code.numel() / code.scale.numel(), expected=32)

# %% [markdown] role="concept"
# Recipes that pack two codes into a byte, such as `Int4WeightOnlyConfig`, come with
# kernels for GPUs. torchao explains static scales step by step [in its
# documentation](https://docs.pytorch.org/ao/stable/static_quantization.html).

# %% [markdown] role="concept"
# ### Four bits that are not integers: NF4, MXFP4, NVFP4
#
# The sixteen levels of a 4-bit format need not be evenly spaced. *NF4* puts its levels at
# quantiles of a normal distribution. *FP4* is a float with two exponent bits and one
# mantissa bit, E2M1. FP4's levels are 0, 0.5, 1, 1.5, 2, 3, 4 and 6, and their negatives.
# On their own, these levels cover only a small range, so each block of neighbours has a
# scale. Two formats, MXFP4 and NVFP4, differ in this scale. *MXFP4*, of the [OCP
# specification](https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf),
# has one scale per 32 values, a power of two (E8M0, 8 bits). *NVFP4* has one scale per 16
# values, a float of 8 bits (E4M3), and one float32 scale for the whole tensor.

# %% role="concept"
def to_levels(w, levels, scale):
    """Round blocks (G, n) to the nearest level times their scale."""
    gaps = ((w / scale)[..., None] - levels).abs()
    return levels[gaps.argmin(-1)] * scale

normal, half_fp4 = torch.distributions.Normal(0.0, 1.0), torch.tensor(
    [0, 0.5, 1, 1.5, 2, 3, 4, 6])
nf4 = torch.cat([normal.icdf(torch.linspace(0.9677083, 0.5, 9)[:-1]),
                 -normal.icdf(torch.linspace(0.9677083, 0.5, 8))])
nf4 = nf4.sort().values / nf4.max()
fp4 = torch.cat([-half_fp4[1:], half_fp4]).sort().values
int4 = torch.arange(-7, 8) / 7
int8 = torch.arange(-127, 128) / 127
w_second = linears(dense)[1].weight.data

# %% role="concept"
draw_histogram(w_second / w_second.abs().max(), unit="weight / largest",
               grids={"int8": int8.tolist(), "int4": int4.tolist(),
                      "NF4": nf4.tolist(), "FP4": (fp4 / 6).tolist()},
               title="Where 8 and 4 bits put their levels",
               alt="A bell-shaped histogram of trained weights. Below it "
                   "are the levels: a dense row for int8, evenly spaced "
                   "ones for int4, denser around zero for NF4, and densest "
                   "there for FP4.")

# %% role="concept"
def largest(size):
    return w_second.view(-1, size).abs().amax(1, keepdim=True)

def off_by(levels, size, scale):
    found = to_levels(w_second.view(-1, size), levels, scale)
    return errors(found.view_as(w_second), w_second, x_new.float())[0]

power_of_two = 2 ** (largest(32).log2().floor() - 2)       # E8M0
tensor_scale = w_second.abs().max() / (6 * 448)            # float32
by_e4m3 = (largest(16) / 6 / tensor_scale).to(torch.float8_e4m3fn)
off_four = {"int4, groups of 16": off_by(int4, 16, largest(16)),
            "NF4, blocks of 64": off_by(nf4, 64, largest(64)),
            "MXFP4": off_by(fp4, 32, power_of_two),
            "NVFP4": off_by(fp4, 16, by_e4m3.float() * tensor_scale)}
print({name: f"{error:.3f}" for name, error in off_four.items()})

# %% role="concept"
claim("bits per weight in MXFP4", bits_each(4, 32, scale=8), expected=4.25)
claim("bits per weight in NVFP4, without the tensor's scale",
      bits_each(4, 16, scale=8), expected=4.5)
claim("weight error in NVFP4, divided by weight error in MXFP4",
      off_four["NVFP4"] / off_four["MXFP4"], below=0.97)
claim("weight error in NVFP4, divided by weight error in int4 with groups "
      "of 16",
      off_four["NVFP4"] / off_four["int4, groups of 16"], above=1.05)

# %% [markdown] role="concept"
# On this layer's weights, the float formats are no more precise than 4-bit integers in
# groups of 16, which take 6 bits per weight with their float32 scales. MXFP4 and NVFP4
# are made for matrix products: GPUs such as Blackwell multiply weights and inputs
# directly in these formats, block scales included. Traps 11.8 and 11.9 round inputs and
# gradients to these formats. Torch has the types `float4_e2m1fn_x2`, for two codes in a
# byte, and `float8_e8m0fnu`, for the power of two.

# %% [markdown] role="concept"
# ### A model that learns with the rounding
#
# Here, the straight-through estimator trains a whole model. The first classifier from
# trap 11.1, with a grid for each row, is trained for another 200 steps, either before the
# rounding or with the rounding in the forward pass. (The estimator is from [Bengio et al.
# 2013](https://arxiv.org/abs/1308.3432).)

# %% role="concept"
from torch.nn.utils import parametrize

class Rounded(nn.Module):
    """Round a weight with one symmetric grid per row."""

    def __init__(self, bits, through=True):
        super().__init__()
        self.bits, self.through = bits, through

    def forward(self, w):
        seen = symmetric(w, self.bits)
        return w + (seen - w).detach() if self.through else seen

# %% role="concept"
def learnt_behind(bits, through=True):
    """Train for 200 steps with the rounding; return the accuracy."""
    model = copy.deepcopy(classifier)
    for linear in linears(model):
        parametrize.register_parametrization(linear, "weight",
                                             Rounded(bits, through))
    fit(model, x_train, y_train, steps=200, lr=1e-3)
    return accuracy(model, x_test, y_test)

def in_rows(bits):
    """A rule for `rounded`: one symmetric grid per row."""
    return lambda w: symmetric(w, bits)

# %% role="concept"
longer = copy.deepcopy(classifier)
losses = fit(longer, x_train, y_train, steps=200, lr=1e-3)
share = {}
for bits in (2, 3):
    at_once, afterwards = (
        accuracy(rounded(model, in_rows(bits)), x_test, y_test)
        for model in (classifier, longer))
    share[bits] = {"at once": at_once, "trained, then rounded": afterwards,
                   "straight through": learnt_behind(bits)}
share[2]["slope of the rounding"] = learnt_behind(2, through=False)
for bits, row in share.items():
    print(bits, "bits:", {name: f"{s:.2f}" for name, s in row.items()})

# %% role="concept"
claim("accuracy at 2 bits with the straight-through estimator",
      share[2]["straight through"], above=0.85)
claim("accuracy at 2 bits: straight-through training minus training "
      "before the rounding",
      share[2]["straight through"] - share[2]["trained, then rounded"],
      above=0.05)
claim("accuracy at 2 bits: straight-through training minus training with "
      "the rounding's slope",
      share[2]["straight through"] - share[2]["slope of the rounding"],
      above=0.05)

# %% [markdown] role="concept"
# At 2 bits, training with the rounding recovers this classifier's accuracy. The same
# number of training steps before the rounding does not. Nor does training with the
# rounding's true slope, because this slope is zero except at each row's largest weight,
# on which the scale depends. At 3 bits, there is little accuracy to recover. In torchao,
# [`QATConfig`](https://docs.pytorch.org/ao/stable/generated/torchao.quantization.qat.QATConfig.html)
# trains in this way, with `step="prepare"` before the training and `step="convert"` after
# the training.

# %% role="concept"
claim("accuracy recovered by the straight-through estimator at 3 bits",
      share[3]["straight through"] - share[3]["at once"], below=0.1)

# %% [markdown] role="concept"
# ### AWQ: large inputs, large weights
#
# GPTQ needs inputs with nonzero mean products. [*AWQ*](https://arxiv.org/abs/2306.00978)
# uses the size of each input instead. If an input is large, an error in its weights costs
# a lot. So before the rounding, AWQ multiplies that input's column by a factor and
# divides the input by the same factor, which leaves the product the same. The step of a
# row's grid also stays the same, as long as the row's largest weight stays in a different
# column. So the weights in the enlarged column have a smaller relative rounding error.
# AWQ finds the factors by a search: each factor is the input's size, raised to a power
# between 0 and 1.

# %% role="concept"
def by_size(w, x, bits=4):
    """W after AWQ: scale columns by size**power, round, scale back."""
    size = x.abs().mean(0)
    size = size.clamp(min=1e-4 * size.max())     # units that stay dark
    found = [symmetric(w * size**power, bits) / size**power
             for power in torch.arange(11) / 10]
    return min(found, key=lambda f: (x @ (f - w).T).norm())

# %% role="concept"
second = linears(dense)[1].weight.data.double()
drawn = torch.randn(2, 1000, 64, dtype=torch.float64)
sizes = torch.logspace(-1, 1, 64, dtype=torch.float64)
inputs = {"of digits": (x_in, x_new), "alike, independent": drawn,
          "unlike, independent": drawn * sizes}
over = {}                # error divided by that of rounding to nearest
for name, (x, new) in inputs.items():
    order = x.square().sum(0).argsort(descending=True)
    awq, gptq, nearest = (errors(found, second, new)[1] for found in (
        by_size(second, x), by_columns(second, x, order, bits=4),
        symmetric(second, 4)))
    over[name] = awq / nearest, gptq / nearest
    print(f"inputs {name:20} AWQ {awq / nearest:.2f}   "
          f"GPTQ {gptq / nearest:.2f}   rounding to nearest 1")

# %% role="concept"
claim("output error, inputs from digits: AWQ divided by rounding to "
      "nearest",
      over["of digits"][0], below=1.02)
claim("output error, independent inputs of the same size: AWQ divided by "
      "rounding to nearest",
      over["alike, independent"][0], above=0.96, below=1.04)
claim("output error, independent inputs of unequal sizes: AWQ divided by "
      "rounding to nearest", over["unlike, independent"][0], below=0.95)

# %% [markdown] role="concept"
# The middle line of the output is the control: if all inputs have the same size, AWQ has
# nothing to scale. The last line separates AWQ from GPTQ: the inputs' sizes differ, so
# AWQ has something to scale, but the inputs are independent, so GPTQ has nothing to
# compensate with. On the inputs computed from digits, AWQ and GPTQ can both work, and
# GPTQ is far ahead in this layer.

# %% role="concept"
claim("output error, independent inputs of unequal sizes: GPTQ divided by "
      "rounding to nearest", over["unlike, independent"][1], above=0.96)
claim("output error, inputs from digits: GPTQ divided by AWQ",
      over["of digits"][1] / over["of digits"][0], below=0.5)

# %% [markdown] role="concept"
# ### Which layer needs the bits
#
# Round one matrix at a time and note how much the *loss* rises. These rises tell you
# which layers need more bits. In this classifier, the weight error does not tell you,
# because it is nearly the same in all four matrices. In the cell below, two matrices get
# 4 bits and the other two get 2 bits.

# %% role="concept"
@torch.no_grad()
def loss_of(model):
    return F.cross_entropy(model(x_train), y_train).item()

def weights_off(k):
    w = linears(classifier)[k].weight.data
    return ((symmetric(w, 2) - w).norm() / w.norm()).item()

def with_bits(plan):
    return rounded(classifier, *[in_rows(bits) for bits in plan])

rise = [loss_of(with_bits([2 if j == k else 16 for j in range(4)]))
        - loss_of(classifier) for k in range(4)]
print("loss rises by   ", [f"{r:.2f}" for r in rise])
print("weights are off ", [f"{weights_off(k):.2f}" for k in range(4)])

# %% role="concept"
costly = sorted(range(4), key=lambda k: -rise[k])[:2]
spent = [4 if k in costly else 2 for k in range(4)]
plans = {"2 bits": [2] * 4, "4 where it costs": spent,
         "4 where it does not": [6 - bits for bits in spent]}
numbers = [linear.weight.numel() for linear in linears(classifier)]
mixed = {}
for name, plan in plans.items():
    model = with_bits(plan)
    mixed[name] = loss_of(model)
    mean = sum(b * n for b, n in zip(plan, numbers)) / sum(numbers)
    print(f"{name:20} {plan}, mean {mean:.2f}: loss {mixed[name]:.2f},"
          f" accuracy {accuracy(model, x_test, y_test):.2f}")

# %% role="concept"
claim("largest rise in the loss minus smallest rise in the loss, over four "
      "matrices", max(rise) - min(rise), above=0.05)
claim("largest weight error divided by smallest weight error, over four "
      "matrices",
      max(map(weights_off, range(4))) / min(map(weights_off, range(4))),
      below=1.25)
claim("loss with 4 bits where they help least minus loss with 4 bits "
      "where they help most",
      mixed["4 where it does not"] - mixed["4 where it costs"], above=0)

# %% [markdown] role="concept"
# ### Three patterns of zeros
#
# Here, a whole net loses half of its weights in one of three patterns: the smallest
# weights *anywhere*, the two smallest out of *every four* neighbours in a row (2:4), or
# the *units* with the smallest norms, as whole rows. The last layer stays unpruned. Then
# each net is retrained for 100 steps with its masks, as in trap 11.2.

# %% role="concept"
def anywhere(w):
    """True for the larger half of a matrix."""
    return w.abs() > w.abs().median()

def two_of_four(w):
    """True for the two largest out of every four neighbours in a row."""
    parts = w.abs().view(-1, 4)
    kept = torch.zeros_like(parts, dtype=torch.bool)
    return kept.scatter_(1, parts.topk(2, 1).indices, True).view_as(w)

def units(w):
    """True for the rows of the larger half of the units."""
    size = w.norm(dim=1)
    return (size > size.median())[:, None].expand_as(w)

# %% role="concept"
def zero_by(masks):
    """A function that zeroes masked weights and biases of empty rows."""
    def zero(model):
        for linear, mask in zip(linears(model), masks):
            linear.weight.data[~mask] = 0
            linear.bias.data[~mask.any(1)] = 0
    return zero

whole_head = torch.ones(10, 64, dtype=torch.bool)
masks_of = {
    rule.__name__: [*[rule(linear.weight.data)
                      for linear in linears(dense)[:-1]], whole_head]
    for rule in (anywhere, two_of_four, units)}

# %% role="concept"
full_dense = accuracy(dense, x_test, y_test)
thin, lost = {}, {}
for name, masks in masks_of.items():
    thin[name] = copy.deepcopy(dense)
    zero_by(masks)(thin[name])
    at_first = accuracy(thin[name], x_test, y_test)
    thin[name] = retrain(thin[name], after_step=zero_by(masks))
    after = accuracy(thin[name], x_test, y_test)
    lost[name] = full_dense - at_first, full_dense - after
    print(f"{name:12} pruned {at_first:.2f}, retrained {after:.2f}, zeros "
          f"{zeros(thin[name]):.2f}")

# %% role="concept"
claim("accuracy lost before retraining: units minus the worse of the "
      "other two patterns",
      lost["units"][0] - max(lost["anywhere"][0], lost["two_of_four"][0]),
      above=-0.01)
claim("accuracy lost after retraining, for the worst pattern",
      max(after for _, after in lost.values()), below=0.04)
claim("smallest fraction of zeros after retraining, over three patterns",
      min(map(zeros, thin.values())), above=0.45)

# %% [markdown] role="concept"
# Before retraining, removing whole units nearly always costs the most accuracy. Whatever
# the pattern, retraining recovers almost all of the lost accuracy. How much memory the
# patterns save is a different question. If you cut out units, what is left is an
# ordinary, smaller net. Single zeros need a list of positions, one for each remaining
# weight.

# %% role="concept"
def without_units(model, masks):
    """A smaller net without the units whose rows are masked."""
    layers, alive = [], torch.ones(64, dtype=torch.bool)
    for linear, mask in zip(linears(model), masks):
        stays = mask.any(1)
        fewer = nn.Linear(int(alive.sum()), int(stays.sum()))
        fewer.weight.data = linear.weight.data[stays][:, alive]
        fewer.bias.data = linear.bias.data[stays]
        layers += [fewer, nn.ReLU()]
        alive = stays
    return nn.Sequential(*layers[:-1])

# %% role="concept"
smaller = without_units(thin["units"], masks_of["units"])
with torch.no_grad(), warnings.catch_warnings():
    warnings.simplefilter("ignore")              # CSR is said to be in beta
    gap = (smaller(x_test) - thin["units"](x_test)).abs().max()
    places = {name: linear.weight.to_sparse_csr() for name, linear in
              thin["anywhere"].named_children()
              if isinstance(linear, nn.Linear)}
size = {"dense": saved(dense.state_dict()), "without units":
        saved(smaller.state_dict()), "with places": saved(places)}
print(f"largest gap of a logit {gap:.0e}   bytes {size}")

# %% role="concept"
claim("largest gap between the logits of the smaller and the masked net",
      gap, below=1e-4)
claim("length of the smaller net's file, divided by length of the dense "
      "net's file", size["without units"] / size["dense"], below=0.55)
claim("length of the file that stores positions, divided by length of the "
      "dense net's file", size["with places"] / size["dense"], above=1.2)

# %% [markdown] role="concept"
# Half of the weights are gone, and yet the file has grown, because by default, torch
# stores a column index of 8 bytes with each 4-byte weight. The pattern 2:4 needs less
# space, because a position among four takes only two bits; torch's [sparse
# tensors](https://docs.pytorch.org/docs/stable/sparse.html) support this pattern on GPUs.
# The explorer at trap 11.2 counts the bytes of this pattern.

# %% role="concept"
claim("bytes of a column index",
      places["0"].col_indices().element_size(), expected=8)

# %% [markdown] role="concept"
# ### Ways out of Python
#
# | way | what the file holds | what runs it | here |
# |---|---|---|---|
# | state dict | tensors by name | your class, in Python | trap 11.5 |
# | `torch.export` | a graph of torch's operations, and tensors | torch | run below |
# | ONNX | a graph of ONNX operations, and tensors | onnxruntime, TensorRT and others | run below |
# | AOTInductor | machine code compiled from a `torch.export` graph | C++ with libtorch, or Python | shown, not run |
# | TensorRT | an engine, as a rule for one kind of NVIDIA GPU | TensorRT | shown, not run |
# | TorchScript | its own language and tensors | libtorch | deprecated: read old files, write no new ones |
#
# *TorchScript* was torch's first way out of Python. `torch.jit.trace` records one run
# (trap 11.6), and `torch.jit.script` compiles a subset of Python, with its branches and
# loops, so that C++ can run the result without Python. Both functions now warn that they
# are deprecated and name `torch.compile` and `torch.export` instead. You will still meet
# TorchScript files in older services.
#
# The next cells try the first three ways in the table on the large classifier from above:

# %% role="concept"
def program_file(example):
    """Export the large classifier to a file, for any batch size."""
    file = io.BytesIO()
    torch.export.save(torch.export.export(
        large_reader.eval(), (example,), dynamic_shapes=batch), file)
    return file

two = x_test[:2]
exported_file = program_file(two.clone())
large_file = OnnxFile(large_reader, two, dynamic_shapes=batch)
numbers = sum(p.nbytes for p in large_reader.parameters())
lengths = {"state dict": saved(large_reader.state_dict()),
           "torch.export": len(exported_file.getvalue()),
           "its example a view": len(program_file(two).getvalue()),
           "ONNX": len(large_file.bytes)}
print({name: f"{n / numbers:.2f}" for name, n in lengths.items()})

# %% role="concept"
claim("length of torch.export's file, divided by the bytes of the weights",
      lengths["torch.export"] / numbers, below=1.1)
claim("exported with a view: length of torch.export's file, divided by the "
      "bytes of the weights",
      lengths["its example a view"] / numbers, above=1.3)
claim("largest gap between the large classifier and its ONNX file",
      largest_gap(large_file, large_reader), below=1e-3)

# %% role="concept" compare=false
exported_file.seek(0)
ways = {"model": large_reader, "onnxruntime": large_file,
        "torch.export": torch.export.load(exported_file).module()}
for rows in (1, 256):
    x = x_test[:rows]
    with torch.no_grad():
        us = {name: seconds(lambda: way(x), repeats=20).median * 1e6
              for name, way in ways.items()}
    print(f"{rows:3} digits:", {n: f"{t:.0f} us" for n, t in us.items()})

# %% [markdown] role="concept"
# The files have about the same length, because nearly all of each file is weights. The
# longer file shows trap 11.5 again: an exported program keeps its example, and two rows
# of the test digits are a view of a storage that holds all digits. The times
# depend on the machine that ran this notebook. Measure your own times, with the number
# of rows that you serve, on the processor that will serve them. By itself, an
# `ExportedProgram` is not faster than the model, because it runs the same kernels from
# a graph. To make the program faster, you need a compiler.
#
# `AOTInductor` compiles the graph to C++ and the C++ to machine code. For this
# classifier, the compilation takes about half a minute of processor time, so the code is
# only shown. Older versions of PyTorch's documentation, such as 2.6, call AOTInductor a
# [prototype](https://docs.pytorch.org/docs/2.6/torch.compiler_aot_inductor.html):
#
# ```python
# torch._inductor.aoti_compile_and_package(program, package_path="reader.pt2")
# reader = torch._inductor.aoti_load_package("reader.pt2")
# ```
#
# *TensorRT* is NVIDIA's compiler for inference. It reads the graph, fuses neighbouring
# operations into one kernel, times several kernels for each operation on your GPU, and
# keeps the fastest. If you allow lower precision, it can also use 16 or 8 bits. By
# default, the result, the *engine*, is a file for this kind of GPU, this version of
# TensorRT and a range of sizes, so build the engine again when one of these changes. We
# have not run this line for the course:
#
# ```sh
# trtexec --onnx=reader.onnx --saveEngine=reader.plan \
#         --minShapes=input:1x64 --optShapes=input:32x64 --maxShapes=input:256x64
# ```
#
# [NVIDIA's
# documentation](https://docs.nvidia.com/tao/tao-toolkit/text/trtexec_integration/index.html)
# lists the options of `trtexec`.

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. You use a symmetric grid of 2 bits, one for a whole matrix. Which weights become
# zero, judged by their absolute values?**
#
# - [x] those below half of the largest :: The gap between two levels equals the largest
#   absolute weight, and weights whose absolute value is below half of this gap are
#   rounded to zero.
# - [ ] those below a quarter of the largest :: Two bits have four codes, but a symmetric grid uses only three levels: minus the largest, zero and the largest.
# - [ ] those below half of the mean :: The mean does not matter; only the largest weight sets the scale.

# %% [markdown] role="quiz"
# **2. You can round a layer in two ways. Way A has the smaller weight error, and way B
# has the smaller output error on new rows. You choose**
#
# - [ ] A, because its weights are closer to the trained ones :: The next layer receives
#   the output, not the weights. In trap 11.4, GPTQ had the smaller output error but the
#   larger weight error.
# - [ ] either, because both errors measure the same :: The two errors agree only if the
#   inputs have the same size, are uncorrelated and have mean zero.
# - [x] B, and check the accuracy as well :: The next layer receives the output, and in the end, the accuracy decides.

# %% [markdown] role="quiz"
# **3. You mask the gradients of pruned weights and use an SGD optimizer with momentum
# that has already trained the net. After a step, the pruned weights are**
#
# - [ ] zero, because nothing moves without a gradient :: The momentum remembers earlier gradients and still moves the weights.
# - [x] no longer zero where the momentum is not zero :: Set the weights to zero after the step, not the gradients before it.
# - [ ] zero if weight decay is on :: Weight decay acts on the weight's value, which is zero. The momentum still moves the weight.

# %% [markdown] role="quiz"
# **4. A student learns from labels and from a teacher at temperature 10, weighted
# equally, and the teacher's loss is not multiplied by T². At first, the student**
#
# - [ ] learns from both equally :: The two losses have equal weights, but their gradients are not equally large.
# - [x] learns almost only from the labels :: Without the factor, the teacher's gradient
#   is smaller by the square of the temperature. The teacher matters only once the labels
#   are learned.
# - [ ] learns almost only from the teacher :: Without the factor, the teacher's gradient is the smaller one.

# %% [markdown] role="quiz"
# **5. After quantization to 8 bits, `numel` times `element_size`, summed over all parameters, is the same as before. You conclude that**
#
# - [ ] the quantization failed :: The quantization may have worked. A wrapper can report
#   float32 and store bytes.
# - [ ] the model needs as much space as before :: The file may be a quarter as large; the
#   sum says nothing about the file.
# - [x] the sum does not measure what is stored, so you check the file :: A device has to
#   store the bytes of the file.

# %% [markdown] role="quiz"
# **6. The model and its exported program agree on a thousand batches of random numbers.
# The model has an `if` on the mean of its input. You conclude that**
#
# - [ ] the program is right :: Random numbers with mean 0 take the same branch each time,
#   so the other branch was never tested.
# - [ ] the program is right up to rounding :: What matters is not the size of the gap but which branch was taken.
# - [x] one branch is right, and you need inputs that test the other branch :: A test
#   needs an input for each branch.

# %% [markdown] role="quiz"
# **7. You export a model with one row as the example and declare the first size as
# dynamic. With a different model, the same call produced a file for any number of rows.
# This time**
#
# - [ ] the file again accepts any number, because the call is the same :: A size of 1
#   stays dynamic only if nothing in the model checks it.
# - [x] you check what the file declares and call it with several sizes :: In trap 11.7,
#   the same call wrote a fixed size for one of two models.
# - [ ] the exporter warns you if the size is fixed :: In trap 11.7, the exporter changed
#   the size without an error.

# %% [markdown] role="quiz"
# **8. You multiply inputs `(tokens, channels)` by weights, in MXFP4. One channel is loud
# in every token. Its 31 neighbours in the sum**
#
# - [ ] keep their precision if the blocks run along the tokens :: The device cannot multiply such blocks; only an emulation can.
# - [x] share the loud channel's scale and lose most of their precision :: The blocks run
#   along the channels, which are summed, so the loud channel sets the scale.
# - [ ] are clipped to the largest level :: The loud channel is the largest, so its
#   neighbours are too small for the levels, not too large.

# %% [markdown] role="quiz"
# **9. You round weights to NVFP4 with only the block scales. Weights of size 1 have a
# relative error of a tenth. If the weights are a thousandth as large, they come back**
#
# - [ ] with the same relative error, because these are floats :: The scale is a float of
#   8 bits, and this format has a smallest positive number.
# - [ ] with twice the relative error :: At first, the error rises a little. At a thousandth, nothing is left.
# - [x] as zeros :: Their scales are below half of the smallest positive E4M3 number, so they are rounded to 0.

# %% [markdown] role="gpu"
# ## On a GPU: when fewer bits save time
#
# With one input row, a linear layer reads each weight once and uses it once. A layer whose
# input has 4,096 rows uses each weight 4,096 times. So for a large matrix, the bytes read
# determine the time in the first case, and the multiplications in the second. A weight
# stored in 8 or 4 bits is converted back to 16 bits before it is multiplied, unless the
# hardware can multiply values of the narrow type directly.
#
# **Before you run anything:** Take a weight matrix of 16,384 x 16,384. With one row, how
# long does the product take with 8-bit and with 4-bit weights, as a fraction of the time
# with 16 bits? With 4,096 rows, how much time do you save with 8-bit weights that are
# converted back first, and with the kernel that torchao calls for 4 bits? And for 4,096
# rows, how long do products of 8-bit integers, of 8-bit floats, and of a 2:4 matrix take,
# as a fraction of the time with 16 bits?

# %% role="gpu"
from torch.nn.functional import ScalingType, scaled_mm
from torch.sparse import to_sparse_semi_structured

from dlsys_helpers.gpu import half_dtype

def stored(kind, where, width=16384):
    """A square weight as it is stored; int4 packs two codes per byte."""
    if kind == "16 bits":
        return torch.randn(width, width, device=where,
                           dtype=half_dtype(where))
    codes = torch.randint(0, 256, (width, width), device=where,
                          dtype=torch.uint8)
    if kind == "int4":
        return codes[:, ::2].clone()
    return codes.view(torch.int8)

# %% role="gpu"
def opened(w, half):
    """Convert the weight back to 16 bits, with a single scale."""
    if w.dtype == torch.uint8:
        w = torch.cat([w & 15, w >> 4], -1)
    return w if w.dtype == half else w.to(half) * 0.01

def product_with(w, rows, half):
    """A function of x and w; for 4 bits, the kernel that torchao calls."""
    if w.dtype == torch.uint8 and torch.cuda.is_available():
        packed = torch.ops.aten._convert_weight_to_int4pack(w, 8)
        scales = w.new_ones(len(w) // 128, len(w), 2, dtype=half)
        return lambda x, w: torch.ops.aten._weight_int4pack_mm(
            x, packed, 128, scales)
    if rows == 1:
        return torch.compile(lambda x, w: (opened(w, half) * x).sum(-1))
    return torch.compile(lambda x, w: x @ opened(w, half).T)

# %% role="gpu"
def product(kind, x, w):
    """A function without arguments that multiplies x and w.T."""
    if kind == "int8":
        a, b = (t.mul(20).to(torch.int8) for t in (x, w))
        return lambda: torch._int_mm(a, b.T)       # what torchao calls
    if kind == "fp8":
        a, b = (t.to(torch.float8_e4m3fn) for t in (x, w))
        how = torch.ones((), device=x.device), ScalingType.TensorWise
        return lambda: scaled_mm(a, b.T, *how, *how, output_dtype=x.dtype)
    if kind == "2:4":
        order = w.abs().view(-1, 4).argsort(-1).argsort(-1)
        w = w * (order > 1).view_as(w)
        if torch.cuda.is_available():              # no such kernel on a CPU
            w = to_sparse_semi_structured(w)
    return lambda: F.linear(x, w)

# %% role="gpu"
kinds = ("16 bits", "int8", "int4")
read = {kind: stored(kind, "meta").nbytes for kind in kinds}
for kind in kinds:
    print(f"{kind}: {read[kind] / 1e6:.0f} MB read for a product")

def per_byte(rows):
    """FLOPs per byte of a 16-bit weight."""
    x = torch.empty(rows, 16384, device="meta", dtype=half_dtype("meta"))
    w = stored("16 bits", "meta")
    return flops(lambda: x @ opened(w, x.dtype).T) / read["16 bits"]

chain = nn.Sequential(*[m for _ in range(8) for m in (
    nn.Linear(256, 256), nn.ReLU())]).to("meta")
row = torch.empty(1, 256, device="meta")
launches = cost(lambda: chain(row)).orders
print(f"launches of a chain of eight small layers: {launches}")

# %% role="gpu"
claim("bytes read with int4, divided by bytes read with 16 bits",
      read["int4"] / read["16 bits"],
      expected=0.25)
claim("FLOPs per byte with one row", per_byte(1), expected=1)
claim("FLOPs per byte with 4,096 rows, divided by the ridge point of an "
      "H200", per_byte(4096) / datasheet(None).ridge, above=10)

def over(kind, rows):
    """Time with this kind of weight, divided by time with 16 bits."""
    return (weights.value("us", kind=kind, rows=rows)
            / weights.value("us", kind="16 bits", rows=rows))

def times(kind, other="16 bits"):
    return (products.value("us", kind=kind)
            / products.value("us", kind=other))

# %% role="gpu"
@gpu_result("11/weights", uses=[stored, opened, product_with],
            columns=["kind", "rows", "us", "us_low", "us_high"])
def weights():
    """Weights of 16, 8 and 4 bits, for one row and for 4,096."""
    for kind in ("16 bits", "int8", "int4"):
        w = stored(kind, "cuda")
        for rows in (1, 4096):
            x = torch.randn(rows, len(w), device="cuda",
                            dtype=half_dtype("cuda"))
            call = product_with(w, rows, x.dtype)
            t = seconds(lambda: call(x, w), repeats=10, device="cuda",
                        calls=10)
            yield {"kind": kind, "rows": rows, "us": t.median * 1e6,
                   "us_low": t.low * 1e6, "us_high": t.high * 1e6}

# %% role="gpu"
@gpu_result("11/products", uses=[product],
            columns=["kind", "us", "us_low", "us_high"])
def products():
    """Small layers as a program, then 4,096 rows times 8192 x 8192."""
    half = half_dtype("cuda")
    net = nn.Sequential(*[m for _ in range(8) for m in (
        nn.Linear(48, 48), nn.ReLU())]).to("cuda", half)
    row = torch.randn(1, 48, device="cuda", dtype=half)
    program = torch.compile(torch.export.export(net, (row,)).module(),
                            mode="reduce-overhead")
    x = torch.randn(4096, 8192, device="cuda", dtype=half)
    w = torch.randn(8192, 8192, device="cuda", dtype=half)
    calls = {"layers": lambda: net(row), "program": lambda: program(row)}
    for kind in ("layers", "program", "16 bits", "int8", "fp8", "2:4"):
        call = calls.get(kind) or product(kind, x, w)
        with torch.no_grad():
            t = seconds(call, repeats=10, device="cuda", calls=10)
        yield {"kind": kind, "us": t.median * 1e6, "us_low": t.low * 1e6,
               "us_high": t.high * 1e6}

# %% role="gpu"
answers_here = gpu_table(
    datasheet(weights.device_name),
    weights.asks("one row, int8 over 16 bits: time", 0.5,
                 lambda: over("int8", 1), "0.62, a whole Llama-3-8B, A100, "
                 "torchao", below=0.8),
    weights.asks("one row, int4 over 16 bits: time", 0.25,
                 lambda: over("int4", 1), "0.53, the same", below=0.7),
    weights.asks("4,096 rows, int8 weights: time", "1 or more",
                 lambda: over("int8", 4096), above=0.9),
    weights.asks("4,096 rows, int4 weights: time", "1 or more",
                 lambda: over("int4", 4096), above=3),
    products.asks("4,096 rows, int8 products: time", 0.5,
                  lambda: times("int8"), below=1.2),
    products.asks("4,096 rows, fp8 products: time", 0.5,
                  lambda: times("fp8"), below=0.9),
    products.asks("4,096 rows, 2:4 over dense: time", 0.5,
                  lambda: times("2:4"), "0.59 at best, torchao", below=1),
    products.asks("small layers, exported over eager: time", "below 1: one "
                  "launch", lambda: times("program", "layers"), below=0.8))
answers_here

# %% [markdown] role="gpu"
# **On the H100 used for the recorded run**, the product with one row takes 0.55 of the
# 16-bit time with 8-bit weights, and 0.44 with 4-bit weights. Halving the bytes saves
# nearly half the time, but a second halving saves little. With 16 bits, the kernel reads
# the weights at 3.1 TB/s, 94 % of the datasheet's rate; with 4 bits, it reads the weights
# at 1.8 TB/s. With 4,096 rows, 8-bit weights take 9 % longer than 16-bit weights, and
# 4-bit weights take 24 times as long. A product with a 2:4 matrix, which needs half of
# the multiplications, takes 0.87 of the dense product's time. The exported and compiled
# net takes 129 µs instead of 207 µs. But 129 µs is nine times the 14 µs of a small
# product in stage 1, so a call costs more than its one launch.
#
# **Keep:** For one row, the bytes of the weights set the minimum time. With 16 and 8
# bits, a kernel comes close to this minimum; with 4 bits, the kernel measured here does
# not. For many rows, the products determine the time. Weights that are converted back to
# 16 bits save no multiplications, and the 4-bit kernel, which is fastest for one row, is
# by far the slowest for 4,096 rows. Products of 8-bit integers should take half as long
# as 16-bit products. Here, PyTorch's own call achieves less than half of this saving, and
# the call for 8-bit floats achieves nearly all of it. torchao's tables also differ: in
# the table of 2024, on an A100, 8-bit weights take 0.62 of the 16-bit time; in the table
# of 2026, where an H100 serves 32 prompts at once, they take 1.5 times as long as 16-bit
# weights. Measure with the batch size that you serve. **Source:** Torchao, [benchmarks of
# 2024](https://github.com/pytorch/ao/blob/03d01adcbcf8f85b0e61bef84957013b89e6902f/torchao/quantization/README.md),
# [benchmarks of today](https://docs.pytorch.org/ao/main/workflows/inference.html), and
# [sparsity](https://github.com/pytorch/ao/blob/0021c2f043aada339f3cad62535941b01f196bdc/torchao/sparsity/README.md),
# "up to 1.7x".

# %% [markdown] role="summary"
# ## What you take with you
#
# - A grid has a scale, a zero and a number of bits. You choose where the grid ends.
# - Weight error, output error and accuracy are three different measures. Choose a method
#   by its accuracy.
# - Scales and zeros count towards the model's size.
# - A static scale is only as good as its calibration data. A dynamic scale needs no data.
# - Keep a pruned net's mask. Without the mask, retraining brings pruned weights back.
# - If you have few labels, distil at a temperature above 1 and multiply the loss by the
#   square of the temperature.
# - In GPTQ, round the columns of the largest inputs first, while other columns can still
#   compensate. Calibrate with data that resemble the model's real inputs.
# - Measure how large a model is by the size of its files.
# - A trace records a single run of the model. Test an exported program on inputs for each
#   branch.
# - An exporter may build its example into the program. Give it an example with two of
#   everything, and read what the file declares.
# - Blocks with a shared scale run along the summed axis. The scale is itself stored in a
#   number format, which has a smallest and a largest number.
#
# The *Which compression first* page says which of these methods to try first.
#
# **Next:** Stage 12 asks what to do when the loss is NaN at step 500.

