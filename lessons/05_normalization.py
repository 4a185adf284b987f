# %% [markdown] role="hook" traps=5
# # 5. Normalization, dropout and initialization
#
# Your digit classifier is in production, where it processes single images from a new
# camera. A teammate is tidying up the dropout code, a deeper version is in training,
# and a copy with averaged weights is about to ship.
#
# A network is more than its weights. Its behaviour also depends on stored statistics, a
# mode, random masks and the scale of the initial weights, and no optimizer looks after
# these parts. This stage shows what each part is for, and then breaks the parts in five
# ways.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers import (
    accuracy, begin, check, claim, cost, datasheet, digits, draw_blocks,
    draw_grids, draw_histogram, draw_line, fit, gpu_result, gpu_table,
    guess, measured, operations, peak_bytes, plot_bars, plot_columns,
    plot_lines, seconds,
)

begin(SEED, THREADS, DEVICE)

# %% role="concept" tags=["plumbing"]
x_train, y_train, x_test, y_test = digits()      # (1300, 64), (497, 64)
pixels = torch.randn(6, 8, 4, 4) * 3 + 1         # (N, C, H, W)
before = torch.get_rng_state()    # put back below, before the first trap

# %% [markdown] role="concept"
# ## Why normalize: the network accepts higher learning rates
#
# In a deep network, each layer's inputs are the previous layer's outputs, so their size
# depends on all earlier layers. If one step makes an early layer's outputs larger, every
# later layer gets larger inputs. The later layers' updates were computed for the old
# inputs and are no longer right. So you have to keep the learning rate low, or start from
# carefully chosen weights.
#
# A *normalization layer*, or *norm layer*, removes this dependence on earlier layers. In
# training, a norm layer such as BatchNorm turns inputs of any size into values with mean
# 0 and standard deviation 1, unless the inputs hardly vary. At each of six learning
# rates, use plain SGD to train three versions of a classifier with four hidden layers.
# One version has `nn.BatchNorm1d`, the best-known norm layer. The other two have no norm
# layer and differ in their initial weights:

# %% role="concept"
def deep(norm):
    """Four hidden layers of 64 units; norm(64) follows each matrix."""
    parts = []
    for _ in range(4):
        parts += [nn.Linear(64, 64), norm(64), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(64, 10))

def scores(make, rates=(0.01, 0.03, 0.1, 0.3, 1, 3)):
    """Test accuracy after 100 steps of SGD at each rate."""
    found = {}
    for lr in rates:
        net = make()
        fit(net, x_train, y_train, steps=100, lr=lr,
            optimizer=torch.optim.SGD)
        found[lr] = accuracy(net, x_test, y_test)
    return found

# %% role="concept" tags=["plumbing"]
def with_he():
    """No norm, but with He's weights, which a section below derives."""
    net = deep(nn.Identity)
    for layer in net[::3]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
    return net

by_rate = {"BatchNorm": scores(lambda: deep(nn.BatchNorm1d)),
           "no norm, He's weights": scores(with_he),
           "no norm": scores(lambda: deep(nn.Identity))}

# %% role="concept"
plot_lines(list(by_rate["BatchNorm"]),
           {name: list(row.values()) for name, row in by_rate.items()},
           logx=True, xlabel="learning rate",
           ylabel="accuracy after 100 steps",
           title="With BatchNorm, a hundredfold range of rates works",
           alt="Test accuracy against the learning rate. With BatchNorm, "
               "the accuracy is high at rates from 0.03 to 3. Without a "
               "norm, He's weights reach an accuracy of about 0.9 at a "
               "rate of 0.1 and fall to chance at a rate of 1. The weights "
               "that torch draws by default hardly learn at any rate.")

# %% role="concept"
claim("lowest accuracy with BatchNorm at learning rates from 0.03 to 3",
      min(list(by_rate["BatchNorm"].values())[1:]), above=0.7)
claim("no norm layer, He's weights: accuracy at the best learning rate",
      max(by_rate["no norm, He's weights"].values()), above=0.75)
claim("no norm layer, He's weights: accuracy at a learning rate of 1",
      by_rate["no norm, He's weights"][1], below=0.6)

# %% [markdown] role="concept"
# Why does a network with BatchNorm tolerate such high rates? Take one layer and
# multiply its weights by 10, as a single step might do at a learning rate that is far
# too high. Look at the outputs and at the gradient of the weights:

# %% role="concept"
norm = nn.BatchNorm1d(64)
first_weight = nn.Linear(64, 64).weight.detach()

def out_and_gradient(weight, after):
    """Size of a layer's output, and norm of its weight's gradient."""
    weight = weight.clone().requires_grad_()
    out = after(x_train[:64] @ weight.T)
    loss = F.cross_entropy(out, y_train[:64])
    slope, = torch.autograd.grad(loss, weight)
    return out.std().item(), slope.norm().item()

for name, after in (("no norm", nn.Identity()), ("BatchNorm", norm)):
    small = out_and_gradient(first_weight, after)
    large = out_and_gradient(10 * first_weight, after)
    print(f"{name:10} output x {large[0] / small[0]:.2f}   "
          f"gradient x {large[1] / small[1]:.2f}")

# %% role="concept"
claim("with BatchNorm: factor by which the output grows if the weights "
      "are multiplied by 10", large[0] / small[0], expected=1, within=0.01)
claim("with BatchNorm: factor by which the gradient grows if the weights "
      "are multiplied by 10",
      large[1] / small[1], expected=0.1, within=0.005)

# %% [markdown] role="concept"
# With BatchNorm, the outputs stay the same, and the gradient shrinks to a tenth. A step
# that is too large makes the weights larger, and larger weights get smaller gradients.
# So the layer slows itself down.
#
# The paper that introduced BatchNorm gave a different reason, *internal covariate shift*.
# According to the paper, the inputs of later layers keep changing while early layers
# learn, and a norm layer keeps these inputs steady. [Santurkar et al.
# 2018](https://arxiv.org/abs/1805.11604) added random shifts after the norm layers, so
# that the inputs of later layers changed *more* than in a network without norm layers.
# The network still trained well. The authors attribute the benefit to a smoother loss
# surface instead. Why norm layers help is still debated, but they allow higher learning
# rates in many networks.

# %% [markdown] role="concept"
# ## What a norm computes, and over which group
#
# Build a norm layer by hand. Take three rows with two features of very different size,
# subtract each feature's mean, and divide by the feature's standard deviation:

# %% role="concept"
x = torch.tensor([[1.0, 100.0], [2.0, 300.0], [3.0, 200.0]])
centred = x - x.mean(0)                          # each column has mean 0
var = centred.square().mean(0)                   # its variance
print(centred, centred / var.sqrt(), sep="\n")

# %% [markdown] role="concept"
# The two features now have the same scale. Three additions turn this computation into a
# layer. A small $\epsilon$ under the square root prevents a division by zero when a
# feature is constant. A *gain* $\gamma$ and a *bias* $\beta$, both learned, let the
# network choose a different scale and mean where it needs them. With mean $\mu$ and
# variance $\sigma^2$, the output is:
#
# $$y = \gamma \, \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta$$
#
# The kinds of norm layer differ mainly in which values form a group, that is, share a
# mean and a variance. In this stage's shapes, `N` counts rows (images), `C` counts
# channels or features, and `H` and `W` are height and width in pixels. A *position* is
# one pixel of an image or one token of a sequence.
#
# | norm | one mean for each | taken over |
# |---|---|---|
# | `BatchNorm` | channel | `N`, `H`, `W` |
# | `LayerNorm(C)` | row (and position) | `C` |
# | `GroupNorm(G, C)` | row and group of channels | `C/G`, `H`, `W` |
# | `InstanceNorm` | row and channel | `H`, `W` |
# | `RMSNorm(C)` | row (and position); subtracts no mean | `C` |
#
# So the same few lines, applied over different axes, compute four of the norm layers:

# %% role="concept"
def standardised(x, axes, eps=1e-5):
    """x minus its mean over these axes, divided by its std (with eps)."""
    var = x.var(axes, keepdim=True, correction=0)
    return (x - x.mean(axes, keepdim=True)) / (var + eps).sqrt()

groups = pixels.view(6, 2, 4, 4, 4)              # (N, G, C/G, H, W)
tokens = pixels.flatten(2).transpose(1, 2)       # (N, H * W, C)
by_hand = {
    nn.BatchNorm2d(8): standardised(pixels, (0, 2, 3)),
    nn.GroupNorm(2, 8): standardised(groups, (2, 3, 4)).view(6, 8, 4, 4),
    nn.InstanceNorm2d(8): standardised(pixels, (2, 3))}
gaps = [(norm(pixels) - y).abs().max() for norm, y in by_hand.items()]
gaps.append((nn.LayerNorm(8)(tokens) - standardised(tokens, (2,))).abs()
            .max())

# %% role="concept"
claim("largest difference between torch's norm layers and the formula, for "
      "four kinds of norm",
      max(gaps), below=1e-5)

# %% role="concept" tags=["plumbing"]
def shares_mean(norm):
    """Inputs that move the norm's first output: (3 images * 4, 6)."""
    own = torch.Generator().manual_seed(SEED)
    x = torch.randn(3, 6, 2, 2, generator=own).requires_grad_()
    norm(x).flatten()[0].backward()
    return (x.grad != 0).permute(0, 2, 3, 1).reshape(12, 6)

def layer_norm(x):
    """nn.LayerNorm(C) over the channels of a pixel, as transformers do."""
    return F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2])

# %% role="concept"
draw_grids({
    "Batch": shares_mean(nn.BatchNorm2d(6)),
    "Layer": shares_mean(layer_norm),
    "Group (2)": shares_mean(nn.GroupNorm(2, 6)),
    "Instance": shares_mean(nn.InstanceNorm2d(6))},
    row_names=["image 1", "", "", "", "image 2", "", "", "", "image 3",
               "", "", ""], columns="channels",
    captions={"Batch": "one channel of all images",
              "Layer": "one pixel of one image",
              "Group (2)": "half the channels of one image",
              "Instance": "one channel of one image"},
    title="Which inputs share a mean with the first input",
    alt="Four grids with twelve rows, for the four pixels of three images, "
        "and six columns, for the channels. BatchNorm fills the first "
        "column, LayerNorm the first row, GroupNorm the first three "
        "columns of the first image, and InstanceNorm the first column of "
        "the first image.")

# %% [markdown] role="concept"
# ## Two details: where eps belongs, and what one group is
#
# $\epsilon$ belongs under the square root. Here, it is added to the *biased* variance,
# the sum of squared deviations divided by the number of values. If you add $\epsilon$
# outside the square root, the result hardly changes for inputs of scale 1 but changes a
# lot for small inputs. Also, do not expect torch's `std` of a normalized row to be
# exactly 1. By default, `std` takes the root of the unbiased variance, which is 64/63 for
# 64 normalized values.

# %% role="concept"
def eps_outside(x, eps=1e-5):
    """LayerNorm as it is often written: eps added to the std."""
    std = x.std(-1, correction=0, keepdim=True)
    return (x - x.mean(-1, keepdim=True)) / (std + eps)

rows = torch.randn(100, 64)
off = {scale: (F.layer_norm(rows * scale, (64,)) - eps_outside(
    rows * scale)).abs().max().item() for scale in (1, 1e-3)}
print({scale: f"{gap:.1e}" for scale, gap in off.items()})
spread = F.layer_norm(rows, (64,)).std(-1).mean()

# %% role="concept"
claim("inputs of scale 1: largest difference in output between eps under "
      "and outside the root", off[1], below=1e-3)
claim("inputs of scale 0.001: largest difference in output between eps "
      "under and outside the root", off[1e-3], above=0.1)
claim("unbiased std of 64 values after LayerNorm (in theory: sqrt(64/63))",
      spread, expected=math.sqrt(64 / 63), within=1e-4)

# %% [markdown] role="concept"
# `GroupNorm(1, C)` has one group, so it takes one mean over the channels *and* pixels of
# an image. A transformer's LayerNorm takes its mean over the channels of one position
# instead. With as many groups as channels, GroupNorm works like *InstanceNorm*, which
# takes its mean over the pixels of one channel of one image. So InstanceNorm removes the
# brightness and the contrast of each image. Removing them helps if brightness and
# contrast are not part of the answer, as in style transfer, for which InstanceNorm was
# made ([Ulyanov et al. 2016](https://arxiv.org/abs/1607.08022)), but hurts if they are.
# RMSNorm divides by the root mean square and does not subtract the mean.

# %% role="concept"
one_group = F.group_norm(pixels, 1)
by_position = F.layer_norm(
    pixels.permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2)
image = F.layer_norm(pixels, (8, 4, 4))
rms = rows / (rows.square().mean(-1, keepdim=True) + 1e-6).sqrt()

# %% role="concept"
claim("largest difference between GroupNorm with one group and LayerNorm "
      "over the image",
      (one_group - image).abs().max(), below=1e-4)
claim("largest difference between GroupNorm with one group and LayerNorm "
      "over the channels",
      (one_group - by_position).abs().max(), above=0.3)
claim("largest difference between RMSNorm and its formula",
      (F.rms_norm(rows, (64,), eps=1e-6) - rms).abs().max(), below=1e-5)

# %% [markdown] role="concept"
# The explorer below shows one block of values. Choose a value and guess how many other
# values share its mean under each norm layer, for images and for sequences. Then
# compare your guess with the explorer's count.

# %% role="explore" explorer="norm_axes"
from dlsys_helpers.explorers.norm_axes import norm_axes

norm_axes

# %% [markdown] role="concept"
# ## BatchNorm has two modes
#
# BatchNorm is the only norm layer in the table that mixes rows. In training, BatchNorm's
# output for an image depends on the other images in the batch. In production, where a
# batch may hold a single image, this dependence is unacceptable. So BatchNorm has two
# modes:
#
# - In *train mode* (`model.train()`), BatchNorm normalizes its inputs with the mean and
#   variance of the batch. BatchNorm also moves its stored *running* mean and variance a
#   tenth of the way towards the batch's mean and variance. This fraction, a tenth, is
#   torch's default `momentum`.
# - In *eval mode* (`model.eval()`), BatchNorm normalizes its inputs with the running
#   values and does not change them.
#
# How soon can you rely on the running values? The running variance starts at 1. Follow
# the running mean of a fresh norm layer, which starts at 0, over batches whose mean is
# 10:

# %% role="concept"
norm, ten = nn.BatchNorm1d(1), torch.full((8, 1), 10.0)
followed = []
for _ in range(22):
    norm(ten)
    followed.append(norm.running_mean.item() / 10)

# %% role="concept"
plot_lines(range(1, 23), {"running mean": followed,
                          "the batch's mean": [1.0] * 22},
           xlabel="batches", ylabel="fraction of the way",
           title="Each batch covers a tenth of the remaining distance",
           alt="The running mean starts at a tenth of the batch's mean and "
               "rises, more and more slowly, to nine tenths after 22 "
               "batches.")

# %% role="concept"
claim("running mean: fraction of the way to the batch's mean after one "
      "batch",
      followed[0], expected=0.1,
      within=1e-5)
claim("running mean: fraction of the way to the batch's mean after 22 "
      "batches (1 - 0.9^22)",
      followed[-1],
      expected=1 - 0.9 ** 22, within=1e-4)

# %% [markdown] role="concept"
# After one batch, the initial 0 still has nine tenths of the weight in the running mean,
# and after 22 batches, it has about a tenth. So after only a few batches, a model is not
# ready for eval mode.
#
# A norm over the batch also needs rows for which one common mean makes sense. *Sequences
# of different lengths* are padded with zeros to the length of the longest sequence, and
# the zeros enter the mean. In *online learning*, the model gets one row at a time, so
# there is no batch. LayerNorm works on one position at a time, so neither padding nor a
# single row is a problem. Pad every row of a batch except the first, and see whether the
# output for the first row changes:

# %% role="concept"
texts = torch.randn(4, 8, 16) + 3                # (N, T, C)
padded = texts.clone()
for row, length in enumerate((8, 5, 3, 2)):
    padded[row, length:] = 0

def batch_norm(x):
    """BatchNorm1d wants the channels on axis 1: (N, C, T)."""
    return nn.BatchNorm1d(16)(x.transpose(1, 2)).transpose(1, 2)

padding_moves = {
    "BatchNorm": (batch_norm(padded)[0] - batch_norm(texts)[0]).abs().max(),
    "LayerNorm": (nn.LayerNorm(16)(padded)[0]
                  - nn.LayerNorm(16)(texts)[0]).abs().max()}
print({name: f"{moved:.2f}" for name, moved in padding_moves.items()})

# %% role="concept"
claim("BatchNorm: change in the first row's output when other rows are "
      "padded",
      padding_moves["BatchNorm"], above=0.3)
claim("LayerNorm: change in the first row's output when other rows are "
      "padded",
      padding_moves["LayerNorm"], expected=0)

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] trap="05.1" role="situation" core=true fault="BatchNorm's stored statistics do not fit the new data" symptom="accuracy drops in deployment with BatchNorm, batch size 1, one image at a time"
# ## One image at a time
#
# Your digit classifier has two BatchNorm layers and gets nearly every test digit right.
# You deploy it in eval mode with a camera that sends one image at a time, and now its
# answers are wrong more often than right. A ticket says: "BatchNorm cannot work with a
# batch of one." To test this, you train `plain`, the same net without BatchNorm, and
# send it the same camera images.

# %% trap="05.1" role="break"
classifier = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
                       nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
                       nn.Linear(64, 10))
fit(classifier, x_train, y_train, steps=300, lr=1e-2)

def logits(model, x, batch):
    """Logits (N, 10) of x, fed `batch` rows at a time."""
    with torch.no_grad():
        return torch.cat([model(part) for part in x.split(batch)])

classifier.eval()
together, single = (logits(classifier, x_test, 497),
                    logits(classifier, x_test, 1))

# %% trap="05.1" role="break"
plain = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64),
                      nn.ReLU(), nn.Linear(64, 10))
fit(plain, x_train, y_train, steps=300, lr=1e-2)
x_camera = x_test + 1.0      # the same digits, as the camera sends them

# %% trap="05.1" role="guess" quoted="wrong"
guess("05.1",
      "How many of the camera images does `plain`, the net without "
      "BatchNorm, get right?",
      choices=["fewer than half",
               "more than half, but far from all",
               "nearly all of them"])

# %% trap="05.1" role="look"
camera = {batch: (logits(classifier, x_camera, batch).argmax(1) == y_test)
          .float().mean() for batch in (1, 497)}
print(f"accuracy on camera images, one at a time: {camera[1]:.2f}, "
      f"in one batch: {camera[497]:.2f}")
unnormed = accuracy(plain, x_camera, y_test)
print(f"without BatchNorm: {unnormed:.2f}")

# %% trap="05.1" role="look"
measured("05.1", 0)

# %% trap="05.1" role="look"
claim("camera images: accuracy if fed one at a time minus accuracy if fed "
      "in one batch",
      camera[1] - camera[497], expected=0, within=0.01)

# %% [markdown] trap="05.1" role="look"
# So the batch size is not the cause, and the net without BatchNorm also fails. Compare
# the inputs of the first norm layer with its stored statistics:

# %% trap="05.1" role="look"
def shift_of(norm, h):
    """How far the mean of h (N, C) is from the stored mean, by channel.

    The unit is the standard deviation that the norm has stored.
    """
    return ((h.mean(0) - norm.running_mean).abs()
            / norm.running_var.sqrt()).detach()

shift = {name: shift_of(classifier[1], classifier[0](x)).max()
         for name, x in (("test digits", x_test), ("camera", x_camera))}
print(f"largest shift, in stored standard deviations: test digits "
      f"{shift['test digits']:.1f}, camera {shift['camera']:.1f}")

# %% trap="05.1" role="look"
claim("largest shift of a unit's mean on camera images, in stored standard "
      "deviations",
      shift["camera"], above=3)

# %% [markdown] trap="05.1" role="why"
# The batch of one is innocent. In eval mode, BatchNorm normalizes its inputs with the
# mean and variance that it *stored* during training, so the other images in the batch
# have no effect. The camera causes the damage. The camera's images are brighter, so the
# inputs of the norm layer no longer have the mean that the layer subtracts.

# %% trap="05.1" role="why"
enters = {"test digits": classifier[0](x_test),
          "camera": classifier[0](x_camera)}
unit = (enters["camera"].mean(0)
        - classifier[1].running_mean).abs().argmax()
spans = {"stored": (classifier[1].running_mean[unit].item(),
                    classifier[1].running_var[unit].sqrt().item())}
for name, h in enters.items():
    spans[name] = h[:, unit].mean().item(), h[:, unit].std().item()
draw_line({name: [(m - s, m + s, ""), (m, "mean")]
           for name, (m, s) in spans.items()},
          unit="input of one unit of the first norm",
          title="The stored statistics fit the test digits, not the camera",
          alt="Three bars, each one standard deviation to either side of a "
              "mean. The stored bar and the bar of the test digits cover "
              "the same range. The bar of the camera is far to one side.")

# %% [markdown] trap="05.1" role="repair"
# Re-estimate the stored statistics on camera images with the usual mix of digits. You
# need no labels. Torch's `update_bn` resets the statistics, runs the images through the
# model in train mode without gradients, and stores the average over the batches. A small
# batch counts as much as a large batch, so pass batches of equal size.

# %% trap="05.1" role="repair"
torch.optim.swa_utils.update_bn((x_train + 1.0).split(100), classifier)
share = (logits(classifier, x_camera, 1).argmax(1) == y_test).float().mean()
print(f"accuracy on camera images after recalibration: {share:.2f}")

# %% trap="05.1" role="repair"
claim("after update_bn: accuracy on camera images fed one at a time", share,
      above=0.92)

# %% [markdown] trap="05.1" role="repair"
# The explorer below shows one digit and its *batch mates*, the other rows of the batch.
# Before you touch a control, say which of these can change the digit's logits: the norm
# layer, the mode, or the batch mates. Then guess for which norm layers train mode and
# eval mode produce the same logits.

# %% role="explore" explorer="batch_mates"
from dlsys_helpers.explorers.batch_mates import batch_mates

batch_mates

# %% [markdown] trap="05.1" role="more" topics="a pass in eval mode · an inverted camera · a net without norms · two rows in train mode · one row in train mode"
# In eval mode, a test digit gets the same logits, up to rounding, whether it is alone or
# in a batch with 496 other digits. The stored statistics change only in train mode. So a
# forward pass in eval mode, which is sometimes recommended as a fix, changes nothing:

# %% trap="05.1" role="more"
gap = (together - single).abs().max()
alone = (single.argmax(1) == y_test).float().mean()
stored = classifier[1].running_mean.clone()
logits(classifier, x_train, 100)                             # in eval mode
moved = (classifier[1].running_mean - stored).abs().max()
print(f"largest gap: {gap:.1e}, moved by a pass in eval mode: {moved:.1f}")

# %% trap="05.1" role="more"
claim("largest difference between logits of digits fed one at a time and "
      "in one batch", gap, below=1e-3)
claim("accuracy on test digits fed one at a time", alone, above=0.93)
claim("accuracy on camera images fed one at a time", camera[1], below=0.5)
claim("largest change in a stored mean during a forward pass in eval mode",
      moved, expected=0)

# %% [markdown] trap="05.1" role="more"
# In this classifier, re-estimated statistics undo a change in brightness or contrast, as
# long as no pixel is clipped to black or white. (If a layer before the norm pads with
# zeros, the new statistics do not quite undo a change in brightness.) But re-estimated
# statistics cannot undo every change to an image. The classifier was trained on light
# digits on a black background. Suppose the next camera shows dark digits on white:

# %% trap="05.1" role="more"
inverted = copy.deepcopy(classifier)
torch.optim.swa_utils.update_bn((1 - x_train).split(100), inverted)
negatives = accuracy(inverted, 1 - x_test, y_test)

# %% trap="05.1" role="more"
claim("accuracy on inverted images after update_bn on inverted images",
      negatives, below=0.3)

# %% [markdown] trap="05.1" role="more"
# A net without norm layers has no statistics to re-estimate, so you would have to undo
# the camera's shift in the pixels instead. Small batches do hurt in *train* mode, because
# there, the rows of the batch supply the statistics.

# %% trap="05.1" role="more"
torch.optim.swa_utils.update_bn(x_train.split(100), classifier)  # as before
in_train_mode = {}
for batch in (2, 8, 32):
    model = copy.deepcopy(classifier).train()
    labels = logits(model, x_test[:496], batch).argmax(1)
    in_train_mode[batch] = (labels == y_test[:496]).float().mean().item()

# %% trap="05.1" role="more"
plot_columns(in_train_mode, xlabel="rows in a batch, train mode",
             ylabel="accuracy on test digits", form=".2f", marks=[2],
             reference=(accuracy(classifier, x_test, y_test), "eval mode"),
             title="In train mode, the other rows count",
             alt="Three columns. With two rows in a batch, about half of "
                 "the digits are right, and with 8 rows, more are. With 32 "
                 "rows, nearly as many are right as in eval mode, which is "
                 "a dashed line.")

# %% trap="05.1" role="more"
claim("net without norm layers: accuracy on camera images",
      unnormed, below=0.5)
claim("in train mode: accuracy on batches of 2 rows", in_train_mode[2],
      below=0.75)
claim("in train mode: accuracy on batches of 32 rows", in_train_mode[32],
      above=0.88)

# %% [markdown] trap="05.1" role="more"
# In train mode, what does BatchNorm do with a batch of a single row? The answer depends
# on how many values each channel has:

# %% trap="05.1" role="more"
try:
    nn.BatchNorm1d(64)(x_test[:1])
    refused = ""
except ValueError as error:
    refused = str(error)
print(refused)
one_image = nn.BatchNorm2d(3)(torch.randn(1, 3, 8, 8) * 5)
spread = one_image.std(correction=0)

# %% trap="05.1" role="more"
claim("BatchNorm1d raises an error for one row in train "
      "mode", bool(refused),
      expected=True)
claim("standard deviation of one image of 8 x 8 pixels after BatchNorm2d "
      "in train mode",
      spread, expected=1, within=0.01)

# %% [markdown] trap="05.1" role="folklore"
# **Told:** BatchNorm breaks with a batch of one, because the variance is zero and the
# output is NaN. Even in eval mode, a batch of one lowers the accuracy. **Measured:** In
# eval mode, the batch size does not matter. In train mode, a single row raises an
# error, a single image of 64 pixels per channel works, and accuracy is lower with two
# rows per batch than with 32. (A norm with `track_running_stats=False` stores nothing
# and uses the batch's statistics in both modes.)

# %% trap="05.1" role="exercise" points=4 difficulty=3 minutes=15
def stored_gaps(model: nn.Module, x: torch.Tensor) -> dict[str, float]:
    """Measure how far a batch is from each BatchNorm's stored statistics.

    A channel's mean is the mean of the norm's input in model(x), over all
    axes except 1. Take the distance of this mean from running_mean. Divide
    the distance by the stored standard deviation, the root of running_var.

    Args:
        model: is in eval mode. Its BatchNorms are nn.BatchNorm1d on (N, C)
            and nn.BatchNorm2d on (N, C, H, W). They can be at any depth,
            and each is called once. Afterwards the model's hooks, modes and
            values are as they were.
        x: a batch that model accepts. Do not build a graph.

    Returns:
        A dict with each norm's largest distance, a float. The keys are the
        norms' names in model.named_modules().

    Example: a fresh nn.BatchNorm1d(1) with x [[1.], [3.]] gives {"": 2.0}.
    """
    # BEGIN SOLUTION
    gaps, hooks = {}, []
    for name, norm in model.named_modules():
        if isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)):
            def look(norm, given, name=name):
                mean = given[0].transpose(0, 1).flatten(1).mean(1)   # (C,)
                gap = (mean - norm.running_mean).abs()
                gaps[name] = (gap / norm.running_var.sqrt()).max().item()
            hooks.append(norm.register_forward_pre_hook(look))
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return gaps
    # END SOLUTION

# %% [markdown] trap="05.1" role="hint"
# 1. Most norm layers are in the middle of the model, so you have to record their inputs
#    while `model(x)` runs. How can you have torch call your own function when a layer
#    receives its input?
# 2. `norm.register_forward_pre_hook(look)` calls `look(norm, given)`, where `given` is the tuple of inputs. Remove every hook after the pass.
# 3. For both `(N, C)` and `(N, C, H, W)`, `h.transpose(0, 1).flatten(1)` has one row for each channel. If you define `look` in a loop, store the loop's `name` in a default argument, `name=name`.

# %% [markdown] trap="05.1" role="keep"
# **Keep:** In eval mode, BatchNorm fails when new data no longer match its stored
# statistics, not when the batch is small. Re-estimate outdated statistics with
# `update_bn`. **In your own code:** Compare `running_mean` and `running_var` with the
# mean and variance of that layer's inputs on a fresh batch. **Source:** [Ioffe & Szegedy
# 2015](https://arxiv.org/abs/1502.03167), section 3.1. **Seen in the wild:** In
# [wasidennis/AdaptSegNet 79](https://github.com/wasidennis/AdaptSegNet/issues/79), a
# model adapted to darker images got the old images wrong in eval mode. The reporter
# traced these errors to the stored statistics, which follow the images seen last.

# %% [markdown] trap="05.2" role="situation" core=true fault="post-norm at full rate from the first step" symptom="deep transformer with post-norm does not learn, loss stays at 2.303, norm_first, no warm-up"
# ## Sixteen layers, the norm after the sum
#
# You train 16 of torch's encoder layers on the digits. Each row of 8 pixels is a token,
# and Adam uses a learning rate of 0.007 from the first step. After 50 steps, the loss is
# still ln 10, the loss of guessing.
#
# In outline (stage 8 has the details), a *stream* $x$ runs through the whole net, and
# each layer adds the outputs of two *branches* $f$ to the stream. By default, torch
# normalizes the stream *after* each sum (*post-norm*), $x \leftarrow \mathrm{norm}(x +
# f(x))$. A review comment says: "Each norm layer shrinks the gradient."

# %% trap="05.2" role="break"
class Encoder(nn.Module):
    """The 8 rows of a digit as 8 tokens, through `depth` layers."""

    def __init__(self, norm_first, depth=16, d=32):
        super().__init__()
        self.embed = nn.Linear(8, d)
        self.place = nn.Parameter(0.1 * torch.randn(8, d))
        self.layers = nn.Sequential(*[nn.TransformerEncoderLayer(
            d, 4, 2 * d, dropout=0.0, batch_first=True,
            norm_first=norm_first) for _ in range(depth)])
        self.norm = nn.LayerNorm(d) if norm_first else nn.Identity()
        self.head = nn.Linear(d, 10)

    def forward(self, x):                        # x (N, 64)
        h = self.embed(x.view(-1, 8, 8)) + self.place
        return self.head(self.norm(self.layers(h)).mean(1))

# %% trap="05.2" role="break"
def first_over_last(net):
    """Gradient norm: the first layer's matrix divided by the last's."""
    loss = F.cross_entropy(net(x_train[:256]), y_train[:256])
    ends = [net.layers[k].linear1.weight for k in (0, -1)]
    first, last = torch.autograd.grad(loss, ends)
    return (first.norm() / last.norm()).item()

post = Encoder(norm_first=False)                 # no step taken yet
ratio = {"fresh": first_over_last(post)}

# %% trap="05.2" role="guess" quoted="wrong"
guess("05.2",
      "Before any training, how large is the first layer's gradient norm, "
      "as a multiple of the last layer's?",
      choices=["between `0.2` and `5`",
               "about `0.01`",
               "below `0.0001`"])

# %% trap="05.2" role="look"
print(f"first gradient over the last, fresh: {ratio['fresh']:.1f}")

# %% trap="05.2" role="look"
measured("05.2", 0)

# %% trap="05.2" role="look"
claim("fresh post-norm encoder: first layer's gradient norm divided by the "
      "last layer's",
      ratio["fresh"], above=0.2, below=5)

# %% [markdown] trap="05.2" role="look"
# So the gradient reaches the first layer. What fraction of the stream after the last
# layer differs from image to image?

# %% trap="05.2" role="look" tags=["plumbing"]
def train(net, lr, warm=1, steps=50):
    """Mean loss of the last ten steps; the rate climbs for `warm` steps."""
    opt, losses = torch.optim.Adam(net.parameters(), lr=lr), []
    for step in range(steps):
        opt.param_groups[0]["lr"] = lr * min(1, (step + 1) / warm)
        rows = torch.randint(1300, (64,))
        loss = F.cross_entropy(net(x_train[rows]), y_train[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return sum(losses[-10:]) / 10

# %% trap="05.2" role="look" tags=["plumbing"]
@torch.no_grad()
def differs(net):
    """Fraction of the stream that differs between images, by layer."""
    h = net.embed(x_test.view(-1, 8, 8)) + net.place
    shares = []
    for layer in [nn.Identity(), *net.layers]:
        h = layer(h)
        shares.append(((h - h.mean(0)).square().mean()
                       / h.square().mean()).item())
    return shares

# %% trap="05.2" role="look"
by_net = {"post-norm, fresh": differs(post)}
loss = {"post-norm": train(post, lr=7e-3)}       # 50 steps
by_net["post-norm, 50 steps"] = differs(post)
ratio["50 steps"] = first_over_last(post)
for name, shares in by_net.items():
    print(f"{name}: share that differs {shares[-1]:.1g}")
print(f"first gradient over the last, 50 steps: {ratio['50 steps']:.1g}")

# %% trap="05.2" role="look"
claim("post-norm after 50 steps: fraction of the last layer's stream that "
      "differs between images",
      by_net["post-norm, 50 steps"][-1], below=1e-3)

# %% [markdown] trap="05.2" role="look"
# The stream is now nearly the same for every image, and the first layer's gradient is
# small:

# %% trap="05.2" role="look"
claim("post-norm after 50 steps: first layer's gradient norm divided by "
      "the last layer's",
      ratio["50 steps"], below=0.05)

# %% [markdown] trap="05.2" role="why"
# Adam takes its first steps at the full rate. Then a branch adds nearly the same vector
# to *every* image's stream, and the norm layer divides the sum by its size. So the
# difference between images shrinks from layer to layer, and the head receives almost the
# same stream for every image.
#
# *Pre-norm* normalizes only the input of a branch, $x \leftarrow x +
# f(\mathrm{norm}(x))$. So both signal and gradient have a path without a norm layer.

# %% trap="05.2" role="why"
draw_blocks(
    {"post-norm": ["x", "branch f", "+", "norm", "next layer"],
     "pre-norm": ["x", "norm", "branch f", "+", "next layer"]},
    bypass={"post-norm": [(0, 2)], "pre-norm": [(0, 3)]},
    marks={"post-norm": ["norm"]},
    captions={"post-norm": "the stream passes every norm",
              "pre-norm": "the stream passes none"},
    title="Only the pre-norm stream has a path without a norm layer",
    alt="Two columns of blocks. In post-norm, the path around the branch "
        "ends at the sum, and a norm follows. In pre-norm, the norm is "
        "inside the branch, and the path leads around both to the next "
        "layer.")

# %% trap="05.2" role="why" tags=["plumbing"]
with torch.random.fork_rng(devices=[]):
    pre = Encoder(norm_first=True)
    train(pre, lr=7e-3)
by_net["pre-norm, 50 steps"] = differs(pre)

# %% trap="05.2" role="why"
plot_lines(range(17), by_net, logy=True, xlabel="layer",
           ylabel="fraction of the stream that differs",
           title="After 50 steps, all images look the same to post-norm",
           alt="On a log axis, the lines of fresh post-norm and of "
               "pre-norm after 50 steps stay high. The line of post-norm "
               "after 50 steps falls by many powers of ten.")

# %% trap="05.2" role="repair"
def three(norm_first, lr, warm=1):
    """The losses of three nets, lowest first: one may stay stuck."""
    return sorted(train(Encoder(norm_first), lr, warm) for _ in range(3))

middle = three(True, lr=7e-3)[1]
loss["pre-norm, middle of three"] = middle
bare = Encoder(norm_first=True)
bare.norm = nn.Identity()                        # no norm at the end
loss["pre-norm, no last norm"] = train(bare, lr=7e-3)
loss["post-norm, warm-up, best of three"] = three(
    False, lr=7e-3, warm=50)[0]
loss["post-norm, 0.0007"] = train(Encoder(norm_first=False), lr=7e-4)

# %% trap="05.2" role="repair"
plot_bars({"guessing": math.log(10), **loss},
          xlabel="loss, mean of steps 41 to 50, nats",
          title="Pre-norm or a gentle start lowers the loss",
          alt="Six bars. The first is guessing, and post-norm at full rate "
              "is just as high. Pre-norm, pre-norm without the last norm, "
              "post-norm with warm-up and post-norm at a tenth of the rate "
              "are lower.")

# %% trap="05.2" role="repair"
claim("loss of post-norm minus the median of three pre-norm losses, all at "
      "a rate of 0.007",
      loss["post-norm"] - middle, above=0)

# %% [markdown] trap="05.2" role="repair"
# Post-norm is not a mistake. A post-norm net learns at a tenth of the rate. With a
# *warm-up*, a learning rate that rises at first, the best of three post-norm nets also
# learns. Pre-norm (`norm_first=True`) usually tolerates the full rate at this width, even
# without a final norm layer.

# %% [markdown] trap="05.2" role="more" topics="nets that stay stuck · the numbers · what the last norm is for"
# How high a rate pre-norm tolerates depends on the width. At a rate of 0.007, nets four
# times as wide often stay stuck near the loss of guessing, and sometimes even a net of
# width 32 does. That is why the bar for pre-norm shows the median of three nets, and
# the bar for warm-up the best of three. Here are the losses:

# %% trap="05.2" role="more"
claim("loss of post-norm after 50 steps at a rate of 0.007 (guessing has "
      "a loss of 2.303)",
      loss["post-norm"], above=2.2)
claim("post-norm with 50 steps of warm-up to a rate of 0.007: lowest loss "
      "of three runs", loss["post-norm, warm-up, best of three"],
      below=2.15)
claim("loss of post-norm at a rate of 0.0007",
      loss["post-norm, 0.0007"], below=2.15)
claim("loss of pre-norm without the final norm layer, at a rate of 0.007",
      loss["pre-norm, no last norm"], below=2.25)

# %% [markdown] trap="05.2" role="more"
# The pre-norm stream grows as layers add to it. At any depth, a final norm layer brings
# the stream to a fixed scale, which matters if large values do harm. The last link of
# this trap is about a model that had no final norm layer and produced NaN in mixed
# precision. `norm_first=True` does not give `nn.TransformerEncoder` a final norm layer,
# so pass one as `norm=`.

# %% trap="05.2" role="more"
def stream_sizes(norm_first):
    """Root mean square of the stream after each fresh layer."""
    net = Encoder(norm_first)
    h, sizes = net.embed(x_test.view(-1, 8, 8)) + net.place, []
    with torch.no_grad():
        for layer in net.layers:
            h = layer(h)
            sizes.append(h.square().mean().sqrt().item())
    return sizes

sizes = {"pre-norm": stream_sizes(True), "post-norm": stream_sizes(False)}

# %% trap="05.2" role="more"
plot_lines(range(1, 17), sizes, xlabel="layer",
           ylabel="root mean square", title="The pre-norm stream grows",
           alt="Size of the stream after each layer. For post-norm, it is "
               "one throughout; for pre-norm, it rises.")

# %% trap="05.2" role="more"
claim("size of the pre-norm stream after the last layer divided by its "
      "size after the first layer",
      sizes["pre-norm"][-1] / sizes["pre-norm"][0], above=1.1)
claim("size of the post-norm stream after the last "
      "layer", sizes["post-norm"][-1],
      expected=1, within=0.01)

# %% [markdown] trap="05.2" role="folklore"
# **Told:** Post-norm shrinks the gradient of the first layers, and modern libraries
# default to pre-norm. **Measured:** In a fresh encoder of 16 layers, the first layer's
# gradient is about as large as the last layer's. After 50 steps without warm-up at a rate
# of 0.007, the first layer's gradient is small, and so is the part of the stream that
# differs between images. Torch's own encoder layer uses post-norm by default.

# %% trap="05.2" role="exercise" points=3 difficulty=2 minutes=10
def told_apart(layers: list, x: torch.Tensor) -> list[float]:
    """Measure what fraction of a stream differs between its rows, by layer.

    Subtract the mean row from the stream. Take the mean square of the rest.
    Divide it by the mean square of the whole stream. For a stream of zeros,
    the fraction is 0.0. Fractions down to 1e-6 are accurate to 1 %.

    Args:
        layers: K functions, K >= 0. Call each once, in order, on the
            previous result.
        x: (N, ...) float32, N >= 1.

    Returns:
        K + 1 floats: the fraction of x, then the fraction after each layer.

    Do not build a graph.

    Example: for x [[1.], [-1.]] and one layer that adds 9, return [1.0,
    1/82].
    """
    # BEGIN SOLUTION
    shares = []
    with torch.no_grad():
        for layer in [nn.Identity(), *layers]:
            x = layer(x)
            rest, whole = (x - x.mean(0)).square().mean(), x.square().mean()
            shares.append((rest / whole).item() if whole > 0 else 0.0)
    return shares
    # END SOLUTION

# %% [markdown] trap="05.2" role="hint"
# 1. Do the example by hand. After the layer, the rows are 10 and 8. What is their mean
#    row, what is left of each row after you subtract the mean row, and how large are
#    the two mean squares?
# 2. The mean row is the mean over axis 0 and has the shape of a row, so write `x - x.mean(0)`.
# 3. Keep the stream in one variable. With `nn.Identity()` before the layers, the same loop also computes the fraction for `x` itself.

# %% [markdown] trap="05.2" role="keep"
# **Keep:** Train a post-norm net with a warm-up or a low learning rate. Pre-norm keeps
# the residual stream free of norm layers and usually tolerates a higher rate. Measure
# whether a final norm layer helps. **In your own code:** Look for `norm_first`. If the
# loss does not fall, check whether two rows still differ after the last layer.
# **Source:** [Xiong et al. 2020, "On Layer Normalization in the Transformer
# Architecture"](https://arxiv.org/abs/2002.04745): in fresh post-norm nets, the
# gradients near the *output* are large, which is why, the authors say, warm-up helps.
# **Seen in the wild:** In [pytorch/pytorch
# 55270](https://github.com/pytorch/pytorch/issues/55270), a user reported that deep
# stacks of torch's post-norm layers were unstable and blamed vanishing gradients. In
# [PaddlePaddle/PaddleNLP 571](https://github.com/PaddlePaddle/PaddleNLP/pull/571), a
# pre-norm model produced NaN in mixed precision, and the proposed fix adds a final norm
# layer.

# %% [markdown] role="concept"
# ## Dropout: no unit may be indispensable
#
# A network with more weights than training rows can often memorize them. The network's
# units come to rely on one another, so that a few units together recognize a single row.
# The network then stores that row's label, right or wrong, and learns nothing general
# from it. *Dropout* makes such memorizing hard. At every training step, dropout sets each
# unit to zero with probability $p$, so no unit can rely on any other unit being present.

# %% role="concept" tags=["plumbing"]
before = torch.get_rng_state()    # put back below, before the next trap

# %% role="concept"
p = 0.5
units = torch.ones(10_000)                       # the outputs of a layer
keeps = (torch.rand(10_000) >= p).float()        # 1: stays, 0: dropped
print(f"mean: before {units.mean():.2f}, dropped "
      f"{(units * keeps).mean():.2f}, divided by 1 - p "
      f"{(units * keeps / (1 - p)).mean():.2f}")

# %% role="concept"
claim("mean of ones after dropping half of them and dividing by 1 - p",
      (units * keeps / (1 - p)).mean(), expected=1, within=0.05)

# %% [markdown] role="concept"
# If you drop half of the units, the next layer's input is half as large on average. In
# production, with all units present, this input would be twice as large as in training.
# The original dropout paper therefore multiplied the weights by $1-p$ after training
# (*standard dropout*). Today's libraries divide the surviving units by $1-p$ during
# training (*inverted dropout*). Then the mean is right in both modes, and in eval mode,
# dropout has nothing to do. `nn.Dropout(p)` is inverted dropout:

# %% role="concept"
drop = nn.Dropout(0.5)
hidden = torch.rand(64)
with torch.no_grad():
    passes = {f"step {k}": drop(hidden) / 2 for k in (1, 2, 3)}
    passes["eval mode"] = drop.eval()(hidden)
draw_grids({name: h.view(8, 8) for name, h in passes.items()},
           captions={"step 1": "half of 64 units",
                     "eval mode": "all of them"},
           title="For one row, each step drops different units",
           alt="Four grids of 64 units. In each of three steps, about half "
               "of the cells are empty, different ones each time. In eval "
               "mode, all cells are filled.")

# %% [markdown] role="concept"
# So each row trains a random, smaller network, and in production, the full network
# computes something like the average of these networks. Dropout is a *regularizer*: with
# dropout, the network fits the training rows less exactly, so that it does better on new
# rows. Does dropout help? Train a wide network on 200 digits, of which about three out of
# ten have a random label. Random labels give the network plenty to memorize:

# %% role="concept"
rows = torch.randperm(1300)[:200]
x_few, y_few = x_train[rows], y_train[rows].clone()
wrong = torch.rand(200) < 0.3
y_few[wrong] = torch.randint(10, (int(wrong.sum()),))

def wide(p):
    """256 hidden units, trained on the few digits with dropout p."""
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(p),
                        nn.Linear(256, 10))
    fit(net, x_few, y_few, steps=500, lr=3e-3)
    return net.eval()

# %% role="concept"
@torch.no_grad()
def judged(net):
    """Test loss; accuracy with all units, and with 20 random halves."""
    h = net[:2](x_test)
    halves = [accuracy(net[3], 2 * h * (torch.rand(256) >= 0.5), y_test)
              for _ in range(20)]
    return {"loss": F.cross_entropy(net(x_test), y_test).item(),
            "all": accuracy(net, x_test, y_test), "half": sum(halves) / 20}

plain, dropped = judged(wide(0)), judged(wide(0.5))
for name, found in (("no dropout", plain), ("dropout 0.5", dropped)):
    print(f"{name:11} test loss {found['loss']:.2f}, accuracy "
          f"{found['all']:.2f}, with half of its units {found['half']:.2f}")

# %% role="concept"
claim("test loss with dropout 0.5 divided by test loss without dropout",
      dropped["loss"] / plain["loss"],
      below=0.97)
claim("accuracy with a random half of the units: trained with dropout 0.5 "
      "minus trained without",
      dropped["half"] - plain["half"], above=0)

# %% [markdown] role="concept"
# The network trained with dropout has the lower test loss. This network also gets more
# digits right when you remove a random half of its units, because in training, every row
# lacked about half of the units.
#
# **Where to put it:** Place dropout after the activation of a wide layer and, in a
# transformer, on the output of each branch. Common values of $p$ are 0.5 for wide fully
# connected layers and 0.1 for transformers. Do not expect dropout to help if the
# network memorizes nothing. Large models trained on each text only once often use no
# dropout.

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] trap="05.3" role="situation" core=true fault="F.dropout stays on in eval mode" symptom="predictions change between two calls although model.eval() was called, F.dropout"
# ## One line less
#
# A teammate tidies up a small classifier's code. The dropout module is gone, and
# `forward` now calls a function instead. You train the classifier, call `eval()` and put
# it into production.
#
# Here are six ways to call dropout: `F.dropout(h, 0.5)`, `F.alpha_dropout(h, 0.5)`,
# `nn.Dropout(0.5)(h)`, `self.drop(h)`, `self.drops[0]` with a list `self.drops`, and
# `F.dropout(h, 0.5, self.training)`. You try each way once in eval mode.

# %% trap="05.3" role="break"
class Tidy(nn.Module):
    """64 pixels, 64 hidden units, 10 digits; half of the units dropped."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):                        # x (N, 64)
        return self.out(F.dropout(self.hidden(x).relu(), 0.5))

tidy = Tidy()
fit(tidy, x_train, y_train, steps=300, lr=1e-2)
tidy.eval()
with torch.no_grad():
    first, second = tidy(x_test), tidy(x_test)   # (497, 10)

# %% trap="05.3" role="break"
class Ways(nn.Module):
    """Six ways to drop half of the units h."""

    def __init__(self):
        super().__init__()
        self.drop, self.drops = nn.Dropout(0.5), [nn.Dropout(0.5)]

    def forward(self, h):
        return {"F.dropout(h, 0.5)": F.dropout(h, 0.5),
                "F.alpha_dropout(h, 0.5)": F.alpha_dropout(h, 0.5),
                "nn.Dropout(0.5)(h)": nn.Dropout(0.5)(h),
                "self.drop(h)": self.drop(h),
                "self.drops[0](h)": self.drops[0](h),
                "F.dropout(..., self.training)":
                    F.dropout(h, 0.5, self.training)}

# %% trap="05.3" role="guess"
guess("05.3",
      "Unlike `F.dropout`, `F.alpha_dropout` is off unless you pass "
      "`training=True`. How many of the six ways still drop units after "
      "`eval()`?",
      unit="calls")

# %% trap="05.3" role="look"
ways, units = Ways(), torch.ones(100)
with torch.random.fork_rng(devices=[]):
    acts = {mode: [not out.equal(units)
                   for out in ways.train(mode == "train")(units).values()]
            for mode in ("train", "eval")}
print(f"ways that drop units: {sum(acts['train'])} in train mode, "
      f"{sum(acts['eval'])} in eval mode")

# %% trap="05.3" role="look"
measured("05.3", sum(acts["eval"]), right=(3, 3))

# %% trap="05.3" role="look"
draw_grids({"who drops": torch.tensor([acts["train"], acts["eval"]]).T},
           marks={"who drops": torch.tensor(
               [[False] * 6, acts["eval"]]).T},
           row_names=[*ways(units)], column_names=["train", "eval"],
           legend="stays on in eval mode",
           title="Three of the six ways ignore eval()",
           alt="A grid of six ways and two modes. F.dropout, a module "
               "created in forward and a module in a plain list drop units "
               "in both modes. alpha_dropout drops none in either mode. "
               "The registered module and the call with self.training drop "
               "units only in train mode.")

# %% trap="05.3" role="look"
claim("number of ways, out of six, that drop units in eval mode",
      sum(acts["eval"]),
      expected=3)

# %% [markdown] trap="05.3" role="look"
# The tidied classifier uses the first of the six ways, `F.dropout(h, 0.5)`. Its
# predictions for the same images differ from call to call:

# %% trap="05.3" role="look"
flips = (first.argmax(1) != second.argmax(1)).float().mean()
noisy = (first.argmax(1) == y_test).float().mean()
print(f"labels that differ: {flips:.1%}   accuracy: {noisy:.2f}")

# %% trap="05.3" role="look"
claim("fraction of predicted labels that differ between two calls in eval "
      "mode", flips,
      above=0.03)

# %% [markdown] trap="05.3" role="why"
# `eval()` sets a flag, `training`, on every registered *module*. A function has no such
# flag. `F.dropout` takes the mode as an argument, `training`, whose default is `True`.
# A module created inside `forward`, or kept in a plain list, is not registered, so it
# stays in train mode. (In `F.alpha_dropout`, the default is `False`, so it drops
# nothing in either mode.) Pass `self.training` to the function. You do not have to
# train the classifier again.

# %% trap="05.3" role="repair"
class Mended(Tidy):
    def forward(self, x):
        h = F.dropout(self.hidden(x).relu(), 0.5, training=self.training)
        return self.out(h)

mended = Mended()
mended.load_state_dict(tidy.state_dict())
mended.eval()
with torch.no_grad():
    clean = mended(x_test)
    gap = (clean - mended(x_test)).abs().max()
right = (clean.argmax(1) == y_test).float().mean()
print(f"gap: {gap:.1f}   accuracy: {noisy:.2f} -> {right:.2f}")

# %% trap="05.3" role="repair"
claim("largest difference between two calls in eval mode, with "
      "training=self.training", gap, expected=0)

# %% [markdown] trap="05.3" role="more" topics="what the noise cost · attention has the same problem · dropout without the division"
# How accurate are the same weights without the noise?

# %% trap="05.3" role="more"
claim("accuracy with dropout off", right, above=0.94)
claim("same weights: accuracy with dropout off minus accuracy with dropout "
      "on",
      right - noisy, above=0.005)

# %% [markdown] trap="05.3" role="more"
# The plot shows which units two calls keep for the same image:

# %% trap="05.3" role="more"
with torch.no_grad(), torch.random.fork_rng(devices=[]):
    h = tidy.hidden(x_test[:1]).relu()           # one image, 64 units
    calls = {"the units": h, "first call": F.dropout(h, 0.5) / 2,
             "second call": F.dropout(h, 0.5) / 2}
draw_grids({name: (kept / h.max()).view(8, 8)
            for name, kept in calls.items()},
           captions={"the units": "after ReLU"},
           title="In eval mode, each call drops different units",
           alt="Three grids of 64 units. In each of the two calls, about "
               "half of the active units are empty, and different ones in "
               "each call.")

# %% [markdown] trap="05.3" role="more"
# Torch's attention function has the same problem. `scaled_dot_product_attention` (stage
# 8) drops a fraction `dropout_p` of the attention weights in both modes.

# %% trap="05.3" role="more"
q = torch.randn(1, 2, 16, 8)                     # (N, heads, T, head_dim)
with torch.no_grad():
    a, b = (F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
            for _ in range(2))

# %% trap="05.3" role="more"
claim("largest difference between two calls of torch's attention function "
      "with dropout",
      (a - b).abs().max(), above=0.05)

# %% [markdown] trap="05.3" role="more"
# If dropout stays on, what does it do to the *size* of an output? Here, inverted dropout
# keeps the mean and only adds noise. Average the outputs of many noisy calls and
# compare the average with one clean output. Then leave out the division by $1-p$:

# %% trap="05.3" role="more"
class Undivided(Tidy):
    def forward(self, x):
        h = self.hidden(x).relu()
        if self.training:
            h = h * (torch.rand_like(h) >= 0.5)  # and no division
        return self.out(h)

undivided = Undivided()
fit(undivided, x_train, y_train, steps=300, lr=1e-2)

@torch.no_grad()
def average(model, calls=200):
    """Mean logits over many calls, minus the bias, which is not masked."""
    return sum(model(x_test) for _ in range(calls)) / calls - model.out.bias

# %% trap="05.3" role="more" tags=["plumbing"]
def factor(a, b):
    """The factor that brings b closest to a, in least squares."""
    return ((a * b).sum() / (b * b).sum()).item()

kept = factor(average(tidy), clean - tidy.out.bias.detach())
noise_mean = average(undivided.train())
doubled = factor(average(undivided.eval(), 1), noise_mean)
score = accuracy(undivided, x_test, y_test)
print(f"mean of noisy calls divided by clean: {kept:.2f}")
print(f"undivided, eval over train: {doubled:.2f}, "
      f"accuracy {score:.2f}")

# %% trap="05.3" role="more"
claim("mean logits of 200 calls with dropout on, divided by the logits "
      "with dropout off", kept, expected=1,
      within=0.02)
claim("dropout without the division: logits in eval mode divided by logits "
      "in train mode",
      doubled, expected=2, within=0.05)
claim("dropout without the division: accuracy in eval mode",
      score, above=0.93)

# %% [markdown] trap="05.3" role="folklore"
# **Told:** Dropout that stays on leaves only a fraction $1 - p$ of the output, and
# without the division, the accuracy also falls to a fraction $1 - p$. **Measured:** In
# this net, with one dropout before the last layer, the mean stays the same and the
# *noise* does the damage. Without the division, the logits double in eval mode. The
# predictions hardly suffer, because if all logits double (apart from the bias), the
# largest logit remains the largest.

# %% trap="05.3" role="exercise" points=3 difficulty=3 minutes=15
def noisy_modules(model: nn.Module, x: torch.Tensor) -> list[str]:
    """Name the modules where two calls to model(x) begin to differ.

    List a module only if its inputs in the two calls were equal. Its
    outputs in the two calls must differ. Even the smallest difference
    counts. Return the names in the order of model.named_modules(), with ""
    for the model itself.

    Args:
        model: each module takes one tensor, does not change it, returns one
            tensor, and is called once per pass, or never. A module that is
            never called is not listed.
        x: an input that model accepts.

    Call the model twice, and leave each module in its mode. Set no seed.
    Leave no hook behind and build no graph.

    Example: return ["", "body"] for a model whose body calls F.dropout.
    """
    # BEGIN SOLUTION
    calls = []
    with torch.no_grad():
        for _ in range(2):
            seen = {}
            def keep(module, given, out, seen=seen):
                seen[module] = given[0], out
            hooks = [m.register_forward_hook(keep) for m in model.modules()]
            model(x)
            for hook in hooks:
                hook.remove()
            calls.append(seen)
    first, second = calls
    return [name for name, m in model.named_modules()
            if m in first and first[m][0].equal(second[m][0])
            and not first[m][1].equal(second[m][1])]
    # END SOLUTION

# %% [markdown] trap="05.3" role="hint"
# 1. If two calls differ, there is noise. To find out where the noise arises, record the
#    input and the output of every module.
# 2. `m.register_forward_hook(keep)` calls `keep(m, given, out)` after each pass of `m`, where `given` is a tuple. For each call to the model, store the input and the output of every module in a dict, with the module as the key.
# 3. A layer after the source of the noise also returns different values, but its inputs
#    were already different. Compare inputs and outputs with `equal`, and skip modules
#    that were never called.

# %% [markdown] trap="05.3" role="keep"
# **Keep:** `eval()` reaches only the registered modules of a model. Functions do not know
# the mode, so pass `self.training` to `F.dropout`. `torch.jit.trace` freezes the mode,
# and the module of an exported program rejects `eval()`, so call `eval()` *before* you
# trace or export. **In your own code:** Call the model twice in eval mode
# and assert that the results are equal. **Source:** The documentation of
# [`F.dropout`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html):
# `training` is `True` by default. **Seen in the wild:** In [rixwew/pytorch-fm
# 21](https://github.com/rixwew/pytorch-fm/issues/21), a library left out the `training`
# argument at first and later added it. In [pytorch/pytorch
# 26338](https://github.com/pytorch/pytorch/issues/26338), this default of `F.dropout`
# surprised a user, and the maintainers confirmed that it is intended.

# %% [markdown] role="concept"
# ## Initialization: keep the size of the signal
#
# Before the first step, the weights are random, and you choose their scale. If each
# layer shrinks its signal by a fifth, little of the signal is left after twenty layers,
# and the outputs are almost the same for every image. If each layer enlarges its
# signal, the signal explodes. So draw the weights so that every layer preserves the
# size of its signal. The *size* of a signal here means its mean square.
#
# One output is a sum of $n$ products, $z = w_1 x_1 + \dots + w_n x_n$. The weights are
# drawn independently, with mean 0 and variance $\sigma^2$. Each product then adds
# $\sigma^2$ times the mean square of $x$ to the mean square of $z$, so all $n$ products
# together add $n\sigma^2$ times that mean square:

# %% role="concept" tags=["plumbing"]
before = torch.get_rng_state()    # put back below, before the next trap

# %% role="concept"
n, sigma2 = 256, 0.01
x = 3 * torch.randn(1000, n)
z = x @ (torch.randn(n, 512) * sigma2 ** 0.5)
grown = (z.square().mean() / x.square().mean()).item()
print(f"mean square grew by {grown:.2f}; n sigma^2 = {n * sigma2:.2f}")

# %% role="concept"
claim("factor by which the mean square grows, divided by n sigma^2",
      grown / (n * sigma2),
      expected=1, within=0.1)

# %% [markdown] role="concept"
# So a variance of $\sigma^2 = 1/n$ keeps the size of the signal, where $n$ is the number
# of inputs, the *fan-in*. Stack twenty linear layers whose weights have variance $1/n$,
# and compare the result with stacks whose weights have half or twice that variance:

# %% role="concept"
sizes = {}
for name, factor in (("2/n", 2), ("1/n", 1), ("0.5/n", 0.5)):
    h, sizes[name] = torch.randn(200, n), []
    for _ in range(20):
        h = h @ (torch.randn(n, n) * math.sqrt(factor / n))
        sizes[name].append(h.square().mean().item())
plot_lines(range(1, 21), sizes, logy=True, xlabel="linear layer",
           ylabel="mean square",
           title="A factor of two per layer is a million after twenty "
                 "layers",
           alt="Mean square after each layer on a log axis. With a "
               "variance of 1/n, the line is level at one. With 2/n, it "
               "rises to about a million, and with 0.5/n, it falls to "
               "about a millionth.")

# %% role="concept"
claim("mean square after twenty linear layers with weights of variance 1/n",
      sizes["1/n"][-1], above=0.3,
      below=3)
claim("mean square after twenty linear layers with weights of variance 2/n",
      sizes["2/n"][-1], above=1e5)
claim("mean square after twenty linear layers with weights of variance "
      "0.5/n",
      sizes["0.5/n"][-1],
      below=1e-5)

# %% [markdown] role="concept"
# **Xavier.** The backward pass sends gradients through the same matrix in the other
# direction. There, each sum has as many terms as the layer has outputs, the *fan-out*, so
# the gradient keeps its size if $\sigma^2 = 1/n_\mathrm{out}$. If the layer is not
# square, no single variance satisfies both conditions. Xavier Glorot's rule averages the
# two counts: $\sigma^2 = 2/(n_\mathrm{in} + n_\mathrm{out})$. Try all three rules on a
# layer with 64 inputs and 512 outputs:

# %% role="concept"
def through(variance, n_in=64, n_out=512):
    """Growth of the signal forward, and of the gradient backward."""
    w = torch.randn(n_in, n_out) * math.sqrt(variance)
    forward = torch.randn(1000, n_in) @ w
    backward = torch.randn(1000, n_out) @ w.T
    return forward.square().mean().item(), backward.square().mean().item()

grows = {"1 / fan-in": through(1 / 64), "1 / fan-out": through(1 / 512),
         "Xavier": through(2 / (64 + 512))}
for name, (forward, backward) in grows.items():
    print(f"{name:11}  forward x {forward:.2f}   backward x {backward:.2f}")

# %% role="concept"
claim("weights of variance 1 / fan-in: factor by which the gradient's "
      "mean square grows",
      grows["1 / fan-in"][1], expected=8, within=0.5)
claim("weights of variance 1 / fan-out: factor by which the signal's mean "
      "square grows",
      grows["1 / fan-out"][0], expected=1 / 8, within=0.01)
claim("Xavier's weights: factor by which the signal's mean square grows",
      grows["Xavier"][0],
      expected=2 * 64 / 576, within=0.02)
claim("Xavier's weights: factor by which the gradient's mean square grows",
      grows["Xavier"][1],
      expected=2 * 512 / 576, within=0.1)

# %% [markdown] role="concept"
# The rules 1 / fan-in and 1 / fan-out are each off by a factor of 8 in one direction,
# forward or backward. Xavier's rule is off in both directions, but by smaller factors. In
# a square layer, all three rules agree.
#
# **He.** So far we have assumed that there is nothing between the layers. But ReLU sets
# negative values to zero, which removes half of the mean square of a signal that is
# symmetric around zero. So He's initialization doubles the variance: $\sigma^2 =
# 2/n_\mathrm{in}$.

# %% role="concept"
z = torch.randn(100_000)
left_by_relu = (z.relu().square().mean() / z.square().mean()).item()
print(f"ReLU leaves {left_by_relu:.3f} of the mean square")

# %% role="concept"
claim("fraction of the mean square that ReLU leaves", left_by_relu,
      expected=0.5, within=0.02)

# %% [markdown] role="concept"
# Torch provides Xavier's and He's rules as `nn.init.xavier_normal_` and
# `nn.init.kaiming_normal_`, each with a uniform variant, `..._uniform_`. The idea
# behind He's rule suits many other activations. Measure what fraction of the mean square
# the activation keeps, and scale the weights up to compensate. What would you have to
# do for a net with tanh?

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] trap="05.4" role="situation" core=true fault="the init's gain does not fit the activation" symptom="which weight initialization for tanh, ReLU or GELU; He init in a tanh network, saturation"
# ## He's weights in a tanh net
#
# In a net of ten layers of 512 units, a teammate replaces ReLU with tanh and keeps He's
# weights. Their variance is $2/n$ for $n$ inputs, twice Xavier's in a square layer. You
# have read that He's weights saturate tanh at once. "Leave them," says a colleague. "Tanh
# keeps the signal better with He's weights than with Xavier's."
#
# Outputs above 0.99 or below -0.99 count as *saturated*. The inputs are drawn from N(0,
# 1), and there are no biases. You also try tanh with Xavier's weights, and ReLU with both
# kinds of weights.

# %% trap="05.4" role="break"
def last_layer(activation, gain, depth=10, width=512):
    """Outputs (1000, width) of the last of `depth` layers."""
    h = torch.randn(1000, width)
    for _ in range(depth):
        weight = torch.randn(width, width) * gain / math.sqrt(width)
        h = activation(h @ weight)
    return h

xavier, he = 1.0, math.sqrt(2)   # root of the variance, times sqrt(width)
out = {"tanh, He": last_layer(torch.tanh, he),
       "tanh, Xavier": last_layer(torch.tanh, xavier),
       "ReLU, He": last_layer(torch.relu, he),
       "ReLU, Xavier": last_layer(torch.relu, xavier)}

# %% trap="05.4" role="guess" quoted="right"
guess("05.4",
      "In which net is the mean square of the tenth layer's outputs "
      "smallest?",
      choices=["ReLU with Xavier's weights",
               "tanh with Xavier's weights",
               "tanh with He's weights"])

# %% trap="05.4" role="look"
saturated = (out["tanh, He"].abs() > 0.99).float().mean()
size = {name: h.square().mean().item() for name, h in out.items()}
print("mean square:", {name: round(s, 4) for name, s in size.items()})
print(f"tanh, saturated with He: {saturated:.2%}")

# %% trap="05.4" role="look"
measured("05.4", 0)

# %% trap="05.4" role="look"
claim("tanh with He's weights: fraction of saturated outputs in the tenth "
      "layer", saturated,
      below=0.01)

# %% trap="05.4" role="look"
draw_histogram(out["tanh, He"], unit="output of the tenth layer", bins=60,
               grids={"beyond ±0.99": [-0.99, 0.99]},
               title="Tanh with He's weights uses its whole range",
               alt="A histogram between minus one and one. It is nearly "
                   "level but lower at both ends, and hardly any output is "
                   "beyond 0.99.")

# %% [markdown] trap="05.4" role="look"
# The signal fades fastest in a different net. Here is the mean square of each layer's
# output:

# %% trap="05.4" role="look"
pairs = {"ReLU, He": (torch.relu, he), "tanh, He": (torch.tanh, he),
         "tanh, Xavier": (torch.tanh, xavier),
         "ReLU, Xavier": (torch.relu, xavier)}
by_layer = {}
with torch.random.fork_rng(devices=[]):
    for name, (activation, gain) in pairs.items():
        h, by_layer[name] = torch.randn(1000, 512), []
        for _ in range(10):
            weight = torch.randn(512, 512) * gain / math.sqrt(512)
            h = activation(h @ weight)
            by_layer[name].append(h.square().mean().item())
plot_lines(range(1, 11), by_layer, logy=True, xlabel="layer",
           ylabel="mean square",
           title="ReLU with Xavier loses half at each layer",
           alt="Mean square by layer on a log axis. ReLU with He is level. "
               "Tanh with He falls a little, and tanh with Xavier falls "
               "more. ReLU with Xavier falls steadily to about a "
               "thousandth.")

# %% trap="05.4" role="look"
claim("tenth layer, Xavier's weights: mean square with ReLU divided by "
      "mean square with tanh",
      size["ReLU, Xavier"] / size["tanh, Xavier"], below=0.1)

# %% [markdown] trap="05.4" role="why"
# With weights of variance $g^2 / n$, the mean square of a sum of $n$ products is $g^2$
# times the inputs' mean square. The *gain* $g$ has to compensate for what the
# activation removes. So for inputs from N(0, 1), $g^2$ times the mean square of the
# activation's outputs should be one. ReLU halves the mean square, so it needs He's $g^2
# = 2$, and with Xavier's $g^2 = 1$, each layer loses half of the mean square. Tanh
# removes more than ReLU, so its gain has to be even larger than He's.

# %% trap="05.4" role="repair"
left = F.tanh(torch.randn(1_000_000)).square().mean().item()
fitting = left ** -0.5                   # gain^2 * left = 1
kept = {name: last_layer(torch.tanh, gain).square().mean().item() / left
        for name, gain in (("Xavier", xavier), ("He", he),
                           ("fitting", fitting), ("torch", 5 / 3))}
print(f"tanh leaves {left:.3f}, so a gain of {fitting:.2f} fits")

# %% trap="05.4" role="repair"
plot_columns(kept, xlabel="gain of the tanh layers", form=".2f",
             ylabel="mean square kept after ten layers",
             reference=(1.0, "all of it"), marks=["Xavier"],
             title="The gain that fits keeps the size",
             alt="Four columns. Xavier's gain keeps about an eighth of the "
                 "mean square, He's keeps most of it, and the fitting gain "
                 "keeps all of it. With torch's gain, the mean square "
                 "grows a little.")

# %% trap="05.4" role="repair"
claim("with the fitting gain: fraction of the mean square that ten tanh "
      "layers keep", kept["fitting"], expected=1, within=0.1)

# %% [markdown] trap="05.4" role="repair"
# The rule needs only the mean square of the activation's output, so it also yields
# GELU's gain. The explorer below shows six initializations over twenty layers. Guess
# first, for tanh and for GELU: which of the six keep the size of the signal, and which
# make it fade or explode? Then move the controls.

# %% role="explore" explorer="init_depth"
from dlsys_helpers.explorers.init_depth import init_depth

init_depth

# %% [markdown] trap="05.4" role="more" topics="the sizes in numbers · torch's 5/3 · tanh nets that learn · the first layer"
# Here are the mean squares of the tenth layer's outputs. Xavier's gain does not
# compensate for what tanh removes. He's gain comes closer to the right gain, and torch's
# gain for tanh, `calculate_gain("tanh")` or 5/3, is a little too large:

# %% trap="05.4" role="more"
claim("tanh with He's weights: mean square of the tenth layer's outputs",
      size["tanh, He"],
      above=0.2)
claim("tanh with Xavier's weights: mean square of the tenth layer's "
      "outputs", size["tanh, Xavier"], below=0.08)
claim("ReLU with Xavier's weights: mean square of the tenth layer's "
      "outputs divided by 0.5^10",
      size["ReLU, Xavier"] / 0.5 ** 10, above=0.3, below=3)
claim("ReLU with He's weights: mean square of the tenth layer's outputs",
      size["ReLU, He"], above=0.3, below=3)
claim("mean square of tanh's outputs for inputs from N(0, 1)",
      left, expected=0.394,
      within=0.005)
claim("with torch's gain of 5/3: fraction of the mean square that ten "
      "tanh layers keep", kept["torch"],
      expected=1.08, within=0.1)

# %% [markdown] trap="05.4" role="more"
# In trap 01.3, eight tanh layers learn with Xavier's weights, but other weights also work
# for tanh. This tanh net with He's weights does not need to be fixed. Now train tanh nets
# in three settings and, for comparison, ReLU nets in one:

# %% trap="05.4" role="more"
def trained(activation, gain, optimizer, lr):
    """Test accuracy of ten layers of 128 after 100 steps."""
    net, fan_in = nn.Sequential(), 64
    for _ in range(10):
        layer = nn.Linear(fan_in, 128)
        nn.init.normal_(layer.weight, std=gain / math.sqrt(fan_in))
        nn.init.zeros_(layer.bias)
        net.extend([layer, activation()])
        fan_in = 128
    net.append(nn.Linear(128, 10))
    fit(net, x_train, y_train, steps=100, lr=lr, optimizer=optimizer)
    return accuracy(net, x_test, y_test)

# %% trap="05.4" role="more"
SGD, Adam = torch.optim.SGD, torch.optim.Adam
tanh = {(opt.__name__, lr): [trained(nn.Tanh, g, opt, lr)
                             for g in (he, xavier)]
        for opt, lr in ((SGD, 0.03), (Adam, 1e-3), (Adam, 3e-4))}
relu = [trained(nn.ReLU, g, SGD, 0.03) for g in (he, xavier)]

# %% trap="05.4" role="more"
pairs = {f"tanh, {name} {lr:g}": pair for (name, lr), pair in tanh.items()}
plot_bars({f"{name}, {init}": share
           for name, pair in {**pairs, "ReLU, SGD 0.03": relu}.items()
           for init, share in zip(("He", "Xavier"), pair)},
          xlabel="test accuracy after 100 steps",
          title="Xavier's weights cost tanh a little, ReLU everything",
          alt="Eight bars. The six bars of tanh are high, and He is higher "
              "in each pair, by 0.02 to 0.11. ReLU with He is at 0.9, and "
              "ReLU with Xavier at 0.1, which is chance.")

# %% trap="05.4" role="more"
claim("tanh with He's weights: lowest accuracy in three settings",
      min(pair[0] for pair in tanh.values()), above=0.85)
claim("tanh, lowest of three settings: accuracy with He's weights minus "
      "accuracy with Xavier's",
      min(a - b for a, b in tanh.values()), above=-0.05)
claim("ReLU, SGD at a rate of 0.03: accuracy with He's weights minus "
      "accuracy with Xavier's",
      relu[0] - relu[1],
      above=0.2)

# %% [markdown] trap="05.4" role="more"
# Here is the fraction of saturated outputs in the first layer, where the sums are
# largest:

# %% trap="05.4" role="more"
first = (last_layer(torch.tanh, he, depth=1).abs() > 0.99).float().mean()

# %% trap="05.4" role="more"
claim("tanh with He's weights: fraction of saturated outputs in the first "
      "layer", first,
      expected=0.06, within=0.01)

# %% [markdown] trap="05.4" role="folklore"
# **Told:** He's weights saturate tanh in the first pass, so tanh needs Xavier and ReLU
# needs He. **Measured:** In ten layers without biases, He's weights saturate 6 % of the
# tanh outputs in the first layer and under 1 % in the tenth. In three settings, the
# accuracy with He's weights is about as high as with Xavier's, or higher. With ReLU and
# Xavier's weights, the signal does fade, because each layer halves the mean square.

# %% trap="05.4" role="exercise" points=3 difficulty=2 minutes=10
def gain_for(act) -> float:
    """Return the gain with which act keeps the size of a layer's signal.

    For z from N(0, 1), gain**2 times the mean of act(z)**2 is 1.
    The result is within 2 % of that gain.

    Args:
        act: an element-wise function or nn.Module. The function gets
            float32 and may write into its input. The outputs can be as
            small as 1e-12 or as large as 1e12.

    Returns:
        A Python float.

    Do not build a graph. Do not change act or set a seed. You may draw
    random numbers.

    Example: the identity has gain 1, and ReLU has gain 1.414.
    """
    # BEGIN SOLUTION
    z = torch.randn(1_000_000)
    with torch.no_grad():
        h = act(z)
    return h.square().mean().rsqrt().item()
    # END SOLUTION

# %% [markdown] trap="05.4" role="hint"
# 1. You need only one number, the mean square of the output of `act` for the inputs
#    that a layer gets at the start of training.
# 2. Draw many numbers from N(0, 1). With a thousand numbers, the result can be off by
#    more than 2 %. With a million numbers, the result is closer, unless `act` grows
#    very steeply.
# 3. The gain is 1 divided by the square root of the mean square. Use the mean square,
#    not the variance, and build no graph.

# %% [markdown] trap="05.4" role="keep"
# **Keep:** Choose the weights' gain to suit the activation. A layer keeps sums of mean
# square one if the squared gain, times the mean square of the activation's outputs for
# inputs from N(0, 1), is one. **In your own code:** Before training, run one forward
# pass and print the mean square after each layer and the fraction of it that differs
# between rows. **Source:** [He et al. 2015](https://arxiv.org/abs/1502.01852), section
# 2.2, for ReLU; [Glorot & Bengio 2010](https://proceedings.mlr.press/v9/glorot10a.html)
# for tanh near zero. **Seen in the wild:** In [pytorch/pytorch
# 57109](https://github.com/pytorch/pytorch/issues/57109), a user found that `nn.Linear`
# calls He's function, and a maintainer showed that the arguments passed by `nn.Linear`
# result in a gain of $\sqrt{1/3}$.

# %% [markdown] trap="05.5" role="situation" fault="the averaged model keeps a fresh BatchNorm's statistics" symptom="EMA model is far worse than the model itself, mean teacher with BatchNorm degrades"
# ## The average of the weights
#
# Averaged weights often do a little better than the last weights of a run. So you keep
# a second model. After each training step, you move each parameter of the second model
# by one hundredth of the way towards its trained counterpart. The second model's
# weights are then an *exponential moving average* (EMA) of the first model's. Many
# recipes use the second model as a *teacher* for the first, or ship the second model.
#
# The classifier has two BatchNorm layers. After 200 steps of SGD, the trained model gets
# nearly every test digit right.

# %% trap="05.5" role="break"
def make_reader():
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
                         nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
                         nn.Linear(64, 10))

@torch.no_grad()
def average_weights(average, model, decay=0.99):
    for old, new in zip(average.parameters(), model.parameters()):
        old.lerp_(new, 1 - decay)

# %% trap="05.5" role="break" tags=["plumbing"]
def train_with(update, model, average, steps=200):
    """SGD on model; after each step update(average, model)."""
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        rows = torch.randint(1300, (64,))
        loss = F.cross_entropy(model(x_train[rows]), y_train[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        update(average, model)

# %% trap="05.5" role="break"
student = make_reader()
teacher = copy.deepcopy(student).eval()
train_with(average_weights, student, teacher)

# %% trap="05.5" role="guess"
guess("05.5",
      "In eval mode, how accurate is the averaged model, compared with the "
      "trained model?",
      choices=["at least as accurate",
               "more than 5 percentage points less accurate",
               "up to 5 percentage points less accurate"])

# %% trap="05.5" role="look"
read = {name: accuracy(net, x_test, y_test)
        for name, net in (("student", student), ("teacher", teacher))}
seen = teacher[1].num_batches_tracked.item()
print({name: f"{share:.2f}" for name, share in read.items()})
print(f"batches that the teacher's norm has seen: {seen}")

# %% trap="05.5" role="look"
measured("05.5", 1)

# %% trap="05.5" role="look"
claim("accuracy of the trained model minus accuracy of the averaged "
      "model", read["student"] - read["teacher"],
      above=0.05)

# %% [markdown] trap="05.5" role="why"
# `parameters()` lists only values that are learned. The running mean and variance are
# *buffers*, which no optimizer updates and `parameters()` does not list. So the norm
# layers of the averaged model still store the initial values, mean 0 and variance 1.
# The weights are fine. Use the averaged weights with the statistics of a batch, or
# re-estimate the stored statistics as in trap 05.1:

# %% trap="05.5" role="repair"
with torch.no_grad():
    live = copy.deepcopy(teacher).train()(x_test).argmax(1)
by_batch = (live == y_test).float().mean()
measured_again = copy.deepcopy(teacher)
torch.optim.swa_utils.update_bn(x_train.split(65), measured_again)
again = accuracy(measured_again, x_test, y_test)

# %% trap="05.5" role="repair"
plot_bars({"student": read["student"], "average": read["teacher"],
           "average, batch statistics": by_batch.item(),
           "average, after update_bn": again},
          xlabel="test accuracy",
          title="The averaged weights are fine, the norms are not",
          alt="Four bars. The bar of the average is far lower than the "
              "student's. With the statistics of a batch, or with "
              "statistics measured again, the averaged weights are as "
              "good as the student's.")

# %% trap="05.5" role="repair"
claim("accuracy of the averaged weights after update_bn", again, above=0.94)

# %% [markdown] trap="05.5" role="repair"
# `update_bn` needs an extra pass over the data at the end. If you use the averaged model
# after every step in eval mode, update its buffers, too. Torch's `AveragedModel` copies
# the buffers from the model, or averages them with `use_buffers=True`.

# %% trap="05.5" role="repair"
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

def update_both(averages, model):
    for average in averages:
        average.update_parameters(model)

student = make_reader()
both = [AveragedModel(student, use_buffers=use_buffers,
                      multi_avg_fn=get_ema_multi_avg_fn(0.99))
        for use_buffers in (False, True)]
train_with(update_both, student, both)
handled = [accuracy(average, x_test, y_test) for average in both]
print(f"buffers copied: {handled[False]:.2f}, "
      f"averaged: {handled[True]:.2f}")

# %% trap="05.5" role="repair"
claim("accuracy of torch's averaged model with copied "
      "buffers", handled[False],
      above=0.85)

# %% [markdown] trap="05.5" role="more" topics="the numbers · copied or averaged buffers · LayerNorm"
# Here are the accuracy of the trained model, the number of batches that the averaged
# model's norm has seen, and the accuracy of the averaged weights with the statistics of
# the batch:

# %% trap="05.5" role="more"
claim("accuracy of the trained model", read["student"],
      above=0.93)
claim("number of batches that the averaged model's BatchNorm has seen",
      seen, expected=0)
claim("accuracy of the averaged weights with the statistics of the batch",
      by_batch, above=0.94)

# %% [markdown] trap="05.5" role="more"
# Copied buffers match the *trained* weights, not the averaged weights. At this learning
# rate, averaged buffers usually work better, but at a tenth of this rate, copied buffers
# usually do. A buffer such as a counter or a mask has no meaningful average. LayerNorm
# stores no statistics and cannot have this fault:

# %% trap="05.5" role="more"
claim("accuracy of torch's averaged model with averaged "
      "buffers", handled[True], above=0.93)
claim("number of buffers in a LayerNorm",
      len(list(nn.LayerNorm(64).buffers())),
      expected=0)

# %% [markdown] trap="05.5" role="folklore"
# **Told:** An EMA over `parameters()`, as in many training scripts, averages the whole
# model. **Measured:** With two BatchNorm layers and 200 steps, the averaged model's
# accuracy is more than 0.05 below the trained model's, sometimes far more. The same
# weights reach over 0.94 once their norm layers have the right statistics.

# %% trap="05.5" role="exercise" points=4 difficulty=2 minutes=15
def ema_update(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Update average in place by one step of an exponential moving average.

    Each parameter, even if it is frozen or tied, becomes decay * (its old
    value) + (1 - decay) * (model's value). Each buffer becomes a copy of
    model's buffer. This holds for every dtype, because counters and masks
    have no average.

    Args:
        average, model: have the same structure, with any dtypes and
            layouts. They can be without parameters or without buffers.
        decay: 0 <= decay <= 1.

    average keeps its tensors, so the change also reaches an optimizer or a
    state_dict made before. model does not change. No mode and no gradient
    changes. No memory is shared. No graph is built.

    Example: if a parameter is 1 in average and 2 in model, decay 0.75 makes
    it 1.25 in average.
    """
    # BEGIN SOLUTION
    with torch.no_grad():
        for old, new in zip(average.parameters(), model.parameters()):
            old.mul_(decay).add_(new, alpha=1 - decay)
        for old, new in zip(average.buffers(), model.buffers()):
            old.copy_(new)
    # END SOLUTION

# %% [markdown] trap="05.5" role="hint"
# 1. A module has two kinds of tensors, `parameters()` and `buffers()`. Your update has to reach both kinds.
# 2. `old = ...` only binds a name and changes no tensor. Methods whose names end in `_`
#    write in place.
# 3. Under `no_grad`, use `old.mul_(decay).add_(new, alpha=1 - decay)` for parameters and `copy_` for buffers.

# %% [markdown] trap="05.5" role="keep"
# **Keep:** A model is its parameters *and* its buffers. Code that copies or averages a
# model has to handle both. **In your own code:** After the first steps, compare the two
# models' entries of `state_dict()`, key by key. **Source:** The documentation of
# [`AveragedModel`](https://docs.pytorch.org/docs/stable/generated/torch.optim.swa_utils.AveragedModel.html),
# `use_buffers`. **Seen in the wild:** In [saltoricristiano/cosmix-uda
# 21](https://github.com/saltoricristiano/cosmix-uda/issues/21), a user reports that the
# update left out the buffers and that the teacher got worse step by step. In
# [YU1ut/MixMatch-pytorch 16](https://github.com/YU1ut/MixMatch-pytorch/issues/16), the
# author discusses an average that leaves out BatchNorm's statistics.

# %% [markdown] role="concept"
# ## Further
#
# Nothing below is needed for the traps. This section shows why you should subtract the
# mean of a sigmoid's output, and introduces two initializations besides Xavier's and
# He's.

# %% [markdown] role="concept"
# ### Sigmoid: the same constant for every row
#
# A sigmoid's output has a mean of one half, so the mean *square* of the output is far
# larger than its variance. Which of the two determines the size of the next layer's
# sums?

# %% role="concept"
s = torch.randn(1_000_000).sigmoid()
gains = {"mean square": s.square().mean().rsqrt().item(),
         "variance": s.var().rsqrt().item()}
# The last sigmoid is undone, to see the sum in front of it.
sums = {name: torch.logit(last_layer(torch.sigmoid, g).double()).square()
        .mean().item() for name, g in gains.items()}
print({name: f"gain {gains[name]:.2f}, mean square of the tenth sum "
       f"{value:.2f}" for name, value in sums.items()})

# %% role="concept"
claim("sigmoid with the gain from the mean square: mean square of the "
      "tenth layer's sums",
      sums["mean square"], expected=1, within=0.2)
claim("sigmoid with the gain from the variance: mean square of the tenth "
      "layer's sums", sums["variance"], above=4)

# %% [markdown] role="concept"
# The mean square determines the size of the sums. But what fraction of the tenth
# sigmoid's input varies from row to row? And which of the nets learns?

# %% role="concept"
h = torch.logit(last_layer(torch.sigmoid, gains["mean square"]).double())
differs = h.var(0).mean() / h.square().mean()

class Centred(nn.Sigmoid):
    def forward(self, x):
        return super().forward(x) - 0.5

learns = {name: trained(nn.Sigmoid, g, Adam, 1e-3)
          for name, g in gains.items()}
learns["centred"] = trained(Centred, (s - 0.5).square().mean().rsqrt()
                            .item(), Adam, 1e-3)
print(f"differs: {differs:.0e}; accuracy:",
      {name: f"{share:.2f}" for name, share in learns.items()})

# %% role="concept"
claim("gain from the mean square: fraction of the tenth layer's sums that "
      "differs between rows", differs, below=1e-5)
claim("ten sigmoid layers, gain from the mean square: accuracy with Adam "
      "at a rate of 0.001", learns["mean square"], below=0.3)
claim("ten sigmoid layers with the mean subtracted, gain from the mean "
      "square: accuracy",
      learns["centred"],
      above=0.8)

# %% [markdown] role="concept"
# The mean of a sigmoid's output is the same for all rows, so a gain that keeps the
# signal's size keeps little more than this constant. A constant adds to the size but does
# not help to tell rows apart. Subtract the mean, as the centred net does.

# %% [markdown] role="concept"
# ### Torch's default, and orthogonal weights
#
# The weights that `nn.Linear` draws have a gain of $\sqrt{1/3}$, which is neither
# Xavier's gain nor He's. An *orthogonal* matrix keeps the norm of every vector. In a
# linear *recurrence*, where the same layer is applied again and again, an orthogonal
# matrix also keeps the norm of gradients. With a tanh after each step, the slopes of
# tanh shrink the gradient. The recurrence below starts from a vector drawn from N(0,
# 1).

# %% role="concept"
gain = nn.Linear(512, 512).weight.std().item() * math.sqrt(512)
turn = nn.init.orthogonal_(torch.empty(64, 64))

def gradient_left(activation, steps=50):
    """Gradient norm at the start of a recurrence / at its end."""
    start = torch.randn(1, 64, requires_grad=True)
    h = start
    for _ in range(steps):
        h = activation(h @ turn)
    pull = torch.randn(1, 64)
    return (torch.autograd.grad(h, start, pull)[0].norm()
            / pull.norm()).item()

linear, curved = gradient_left(lambda h: h), gradient_left(torch.tanh)
print(f"default gain {gain:.3f}; left of the gradient after 50 steps: "
      f"linear {linear:.4f}, tanh {curved:.3f}")

# %% role="concept"
claim("gain of a fresh nn.Linear", gain, expected=math.sqrt(1 / 3),
      within=0.01)
claim("fraction of the gradient's norm left after 50 linear steps with an "
      "orthogonal matrix", linear,
      expected=1, within=1e-3)
claim("fraction of the gradient's norm left after 50 tanh steps with an "
      "orthogonal matrix", curved, below=0.6)

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. A classifier with BatchNorm is deployed on a device that sends one image at a time.
# The classifier is in eval mode and often wrong. What do you look at first?**
#
# - [ ] the batch size: collect 32 images before each call :: In eval mode, BatchNorm uses the stored statistics, so the other images of the batch change nothing.
# - [x] the stored statistics, compared with the statistics of the device's images :: The device's images differ from the training images. A pass in train mode can compensate for a change of brightness or contrast, but not for an inversion or a crop.
# - [ ] the norm layer: replace it with GroupNorm :: You would have to train again, and a shift of the data also hurts other nets.

# %% [markdown] role="quiz"
# **2. You want fresh running statistics for new images. You run them through the model**
#
# - [ ] in eval mode, so that nothing else changes :: Then nothing changes at all, because the statistics move only in train mode.
# - [x] with the norm layers in train mode, under no_grad, and dropout off :: The norm layers collect new statistics, no graph is kept, and no dropout adds noise to their inputs.
# - [ ] in train mode with the optimizer at rate 0 :: The running statistics do move, but the backward pass is wasted, and dropout adds noise.

# %% [markdown] role="quiz"
# **3. For which of these layers does an image's output change when the other images in
# the batch change?**
#
# - [ ] LayerNorm in train mode :: LayerNorm computes its means within one row.
# - [x] BatchNorm in train mode :: BatchNorm in train mode uses the mean and variance of the batch.
# - [ ] BatchNorm in eval mode :: In eval mode, BatchNorm uses its stored statistics.

# %% [markdown] role="quiz"
# **4. You called `model.eval()`, but two calls with the same input return different
# outputs. What do you search the code for?**
#
# - [x] `F.dropout` without `training=`, and `dropout_p=` in attention calls :: A function does not know the mode unless you pass it.
# - [ ] a missing `no_grad()` :: `no_grad()` keeps autograd from building a graph, but does not make anything less random. (`eval()` does not switch gradients off, either.)
# - [ ] BatchNorm layers, which never settle :: In eval mode, they use stored statistics, so the same input returns the same output.

# %% [markdown] role="quiz"
# **5. Your own dropout zeroes half of the units in training and does not divide the rest
# by $1-p$. In eval mode**
#
# - [ ] accuracy is halved :: The largest logit usually stays the largest.
# - [x] the next layer's input is twice as large as in training :: All units are present, and none of them was scaled.
# - [ ] nothing differs, because eval mode has no dropout :: In training, half of the units were missing, so the next layer was trained on half as much input.

# %% [markdown] role="quiz"
# **6. A deep encoder with post-norm stays at the loss of guessing. The cheapest thing to try is**
#
# - [ ] clipping its gradients :: Adam divides by the gradient's own size (stage 4), so clipping often leaves the steps nearly the same.
# - [x] a warm-up, or a smaller rate :: In trap 05.2, a tenth of the rate was enough, and a warm-up rescued at least one net out of three. Pre-norm also helps, but it changes the model.
# - [ ] a larger first layer, because its gradient vanishes :: In a fresh encoder, the first layer's gradient was about as large as the last layer's.

# %% [markdown] role="quiz"
# **7. An activation returns 0.5 + x/10 for all x near zero. What determines the gain that keeps the size of the next layer's sums?**
#
# - [ ] its slope of one tenth: a gain of 10 :: The sums of the next layer also contain the constant half, so they would grow.
# - [ ] the variance of its output :: The variance leaves out the mean, which makes up most of the size here, although the mean carries no signal.
# - [x] the mean square of its output :: With zero-mean weights, the size of a sum of products depends on the mean square of the inputs.

# %% [markdown] role="gpu"
# ## On a GPU: a norm is a copy that calculates
#
# A LayerNorm does a handful of FLOPs per value. Its ratio of FLOPs to bytes is far below
# the ridge point of stage 1's roofline, so LayerNorm's time depends on the bytes that it
# moves. If you write LayerNorm as separate torch operations, most operations read or
# write the tensor again. A *fused* kernel does everything in one launch.
#
# **Before you run anything:** LayerNorm by hand takes seven operations. How many bytes do
# these operations move in total, as a multiple of the bytes that a copy moves? BatchNorm
# in train mode needs a whole channel before it can write the first value. How many times
# must BatchNorm read its input?
#
# Images can be stored in two orders: one channel after the other or, with
# `channels_last`, all channels of one pixel side by side. Trap 07.5 explains both
# orders. In both orders, an image has the same number of bytes, so a count of bytes
# predicts no difference in time.
#
# `cost` counts kernel launches, which it calls orders, and the bytes that are written.
# To count the bytes that are read, we look at each operation's arguments.

# %% role="gpu"
from dlsys_helpers.gpu import half_dtype

def by_hand(x):
    """LayerNorm over the last axis, one torch operation at a time."""
    centred = x - x.mean(-1, keepdim=True)
    var = centred.square().mean(-1, keepdim=True)
    return centred * (var + 1e-5).rsqrt()

def fused(x):
    return F.layer_norm(x, x.shape[-1:])

def make_rows(where, rows=8192, width=4096):
    """Random rows in 16 bits."""
    return torch.randn(rows, width, device=where, dtype=half_dtype(where))

# %% role="gpu"
def make_norm(order, where, n=64, channels=256, size=56):
    """A call: BatchNorm in train mode and ReLU over images."""
    x = torch.randn(n, channels, size, size, device=where,
                    dtype=half_dtype(where)).to(memory_format=order)
    norm = nn.BatchNorm2d(channels, device=where)
    return lambda: norm(x).relu()

x = make_rows("meta")
counted = {f.__name__: cost(lambda: f(x)) for f in (by_hand, fused)}
# By hand: mean, x - mean, square, mean, centred * rsqrt read x or its like.
reads = {"by_hand": 5, "fused": 1}
moved = {name: reads[name] + c.written / x.nbytes
         for name, c in counted.items()}
for name, c in counted.items():
    print(f"{name}: {c.orders} launches, {moved[name]:.2f} times x is read "
          f"or written, {c.peak / x.nbytes:.2f} copies exist at a time")

# %% role="gpu"
small = torch.randn(32, 64)
claim("largest difference between LayerNorm by hand and the fused "
      "LayerNorm",
      (by_hand(small) - fused(small)).abs().max(), below=1e-5)
claim("number of bytes moved: LayerNorm by hand divided by the fused "
      "LayerNorm",
      moved["by_hand"] / moved["fused"], expected=4, within=0.05)
claim("number of kernel launches: LayerNorm by hand divided by the fused "
      "LayerNorm",
      counted["by_hand"].orders / counted["fused"].orders, above=6)

# %% role="gpu"
images = torch.randn(2, 8, 5, 5)
last = images.to(memory_format=torch.channels_last)
norm = nn.BatchNorm2d(8)
claim("largest difference between BatchNorm's outputs in the two storage "
      "orders",
      (norm(images) - norm(last)).abs().max(), below=1e-5)
claim("BatchNorm's output for a channels_last input is channels_last",
      norm(last).is_contiguous(memory_format=torch.channels_last),
      expected=True)
claim("stride of the channel axis in channels_last", last.stride(1),
      expected=1)

# %% role="gpu"
@gpu_result("05/norms", uses=[by_hand, fused, make_rows],
            columns=["form", "us", "us_low", "us_high", "peak_mb"])
def norms():
    """LayerNorm of 8,192 rows of 4,096 by hand and fused, and a copy."""
    x = make_rows("cuda")
    calls = {"by hand": lambda: by_hand(x), "fused": lambda: fused(x),
             "copy": lambda: x.clone()}
    for form, call in calls.items():
        t = seconds(call, repeats=10, device="cuda", calls=20)
        yield {"form": form, "us": t.median * 1e6, "us_low": t.low * 1e6,
               "us_high": t.high * 1e6, "peak_mb": peak_bytes(call) / 1e6}

# %% role="gpu"
@gpu_result("05/channels_last", uses=[make_norm],
            columns=["order", "us", "us_low", "us_high"])
def orders():
    """BatchNorm and ReLU on 64 images of 256 x 56 x 56, in both orders."""
    for name, order in (("contiguous", torch.contiguous_format),
                        ("channels_last", torch.channels_last)):
        t = seconds(make_norm(order, "cuda"), repeats=10, device="cuda",
                    calls=20)
        yield {"order": name, "us": t.median * 1e6, "us_low": t.low * 1e6,
               "us_high": t.high * 1e6}

# %% role="gpu"
def over(a, b):
    return norms.value("us", form=a) / norms.value("us", form=b)

def order_us(name):
    return orders.value("us", order=name)

sheet = datasheet(norms.device_name)
image_bytes = 64 * 256 * 56 * 56 * 2
# The norm reads twice and writes once, ReLU reads once and writes once.
least = sheet.least_us(0, image_bytes * (2 + 1 + 1 + 1))

# %% role="gpu"
answers = gpu_table(
    sheet,
    norms.asks("time of the fused LayerNorm divided by time of a copy", 1,
               lambda: over("fused", "copy"), below=1.5),
    norms.asks("time of LayerNorm by hand divided by time of the fused "
               "LayerNorm",
               moved["by_hand"] / moved["fused"],
               lambda: over("by hand", "fused"), above=2),
    norms.asks("extra memory of LayerNorm by hand divided by extra memory "
               "of the fused LayerNorm",
               counted["by_hand"].peak / counted["fused"].peak,
               lambda: norms.value("peak_mb", form="by hand")
               / norms.value("peak_mb", form="fused"), above=1.5),
    orders.asks("microseconds for BatchNorm and ReLU, contiguous", least,
                lambda: order_us("contiguous"), above=0.8 * least),
    orders.asks("time with channels_last divided by time with contiguous "
                "images", "1: equal bytes",
                lambda: order_us("channels_last") / order_us("contiguous"),
                below=2))
answers

# %% [markdown] role="gpu"
# **In the recorded run on an H100**, a fused LayerNorm takes a third longer than a copy,
# and LayerNorm by hand takes more than four times as long as the fused LayerNorm. Both
# times are close to what the bytes predict. But BatchNorm with ReLU takes 2.7 times as
# long as its bytes require. With `channels_last`, BatchNorm with ReLU takes a fifth less
# time, although it moves just as many bytes. A copy reaches only 84 % of the datasheet's
# bandwidth, which explains a small part of the gap. From the bytes, you can compute the
# least time that a kernel can take, but only a measurement shows how much longer the
# kernel takes.
#
# **Keep:** A norm layer cannot take less time than the GPU needs to move its bytes, so
# count how often the layer reads its input and writes its output. A fused LayerNorm reads
# its input once and writes its output once. BatchNorm in train mode reads its input
# twice, because it needs a whole channel before it can write. This count ignores caches:
# torch's fused LayerNorm also reads each row twice, but a row is short and still in a
# cache the second time. Use the library's fused form. **Source:** [Ba, Kiros & Hinton
# 2016](https://arxiv.org/abs/1607.06450), section 3, for LayerNorm; torch's kernel for
# it,
# [layer_norm_kernel.cu](https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cuda/layer_norm_kernel.cu),
# `compute_stats` and the loop after its call. Stage 1 has the formula that turns bytes
# into time.

# %% [markdown] role="summary"
# ## What you take with you
#
# - A norm layer feeds the next layer inputs of a fixed scale, so the network usually
#   tolerates higher learning rates. The kinds of norm layer differ in which values share
#   a mean.
# - In eval mode, BatchNorm uses its running statistics, no matter what the batch
#   contains. Compare the statistics with your data, and if they do not match, re-estimate
#   the statistics in train mode.
# - Train a post-norm net with a warm-up or a low learning rate. Pre-norm keeps the stream
#   free of norm layers and usually tolerates a higher rate. A final norm layer gives the
#   head an input of fixed scale.
# - Dropout keeps units from relying on one another. Inverted dropout divides the
#   surviving units by $1-p$ in training, so that dropout has nothing to do in eval mode.
# - `eval()` reaches only registered modules. Pass the mode to functions such as
#   `F.dropout` yourself.
# - Choose initial weights that keep the mean square of the signal, with a gain that
#   compensates for what the activation removes. Check separately whether the signal
#   still differs between rows.
# - A model is its parameters and its buffers. If you average the parameters, also copy or
#   average the statistics, or re-estimate them.
#
# **Next:** Stage 6 changes the data instead of the net, and asks when to stop training.
