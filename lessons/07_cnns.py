# %% [markdown] role="hook"
# # 7. CNNs, ResNet and transfer learning
#
# You inherit a small image classifier. It was trained on five kinds of digits, and now
# it has to learn five more, with ten examples of each. You keep the layers, put a new
# head on them, freeze what should stay unchanged, and train for a minute.
#
# Every part of this work is routine: convolutions, a frozen body, two learning rates,
# and a file of weights. Each part can also go wrong without raising an error. This
# stage first shows what a convolution, a pooling layer and a residual block assume.
# Then it measures which pixels influence a unit, what freezing preserves, and what
# fine-tuning costs.

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
    accuracy, begin, check, claim, datasheet, digits, draw_blocks,
    draw_boxes, draw_grids, draw_line, draw_tree, fit, flops, gpu_result,
    gpu_table, guess, measured, plot_bars, plot_columns, plot_lines,
    saved_bytes, seconds,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## What a convolution assumes
#
# On a picture, a linear layer has one weight per pixel for each output. If such a layer
# learns to recognize a stroke in the upper left corner, it still does not recognize the
# same stroke elsewhere.
#
# A *convolution* makes two assumptions. **Locality**: an output depends only on a small
# window of pixels. **Weight sharing**: the same few weights, the *kernel*, are used at
# every position. The assumptions that a layer makes before it has seen any data are
# called its *inductive bias*.
#
# The data are the digits of stage 1, as images of 8 x 8 pixels with one channel. Nothing
# is downloaded.

# %% role="concept"
x_train, y_train, x_test, y_test = digits()       # (1300, 64), (497, 64)
images = x_train.view(-1, 1, 8, 8)                # (N, C, H, W)
images_test = x_test.view(-1, 1, 8, 8)

# %% [markdown] role="concept"
# The kernel below responds to ink above an empty row. Try the kernel at a single
# position: multiply the window and the kernel value by value, and add up the products.

# %% role="concept"
digit = images[3, 0]                              # (8, 8), from 0 to 1
kernel = torch.tensor([[1., 1., 1.],
                       [0., 0., 0.],
                       [-1., -1., -1.]])
one_window = digit[0:3, 2:5]                      # rows 0-2, columns 2-4
print(f"one position: {(one_window * kernel).sum():.2f}")

# %% [markdown] role="concept"
# Then slide the same nine weights over all positions. torch does this in one call,
# which expects two more axes in front. The picture's extra axes are batch and channel,
# and the kernel's are output channel and input channel:

# %% role="concept"
slid = torch.zeros(6, 6)
for row in range(6):
    for column in range(6):
        seen_here = digit[row:row + 3, column:column + 3]
        slid[row, column] = (seen_here * kernel).sum()

edges = F.conv2d(images[3:4], kernel[None, None])[0, 0]       # (6, 6)

# %% role="concept"
claim("largest difference between sliding by hand and torch's convolution",
      (slid - edges).abs().max(), expected=0, within=1e-5)

# %% role="concept"
strong = edges > edges.max() / 2                  # (6, 6)
draw_grids({"digit": digit, "kernel": (kernel + 1) / 2,
            "map": strong.float()},
           marks={"digit": F.pad(strong, (1, 1, 1, 1))},
           captions={"digit": "8 x 8 pixels",
                     "kernel": "dark 1, pale 0, white −1",
                     "map": "6 x 6 positions, filled above half"},
           legend="centre of a window with a strong response",
           title="The map responds at the lower edge of a stroke",
           alt="Three grids: a seven of 8 by 8 pixels, a kernel of three "
               "rows, dark, pale and white, and a map of 6 by 6 positions. "
               "In the digit, crosses mark the centres of the windows with "
               "a strong response, along the lower edges of the digit's "
               "two bars.")

# %% [markdown] role="concept"
# Now move the digit two rows down. The map also moves two rows down, because every
# position uses the same weights. This property is *translation equivariance*, and it
# needs no training.

# %% role="concept"
wide = F.pad(images[3:4], (4, 4, 4, 4))           # room to move
moved_first = F.conv2d(wide.roll(2, dims=2), kernel[None, None])
moved_last = F.conv2d(wide, kernel[None, None]).roll(2, dims=2)

# %% role="concept"
claim("largest difference between moving the input and moving the output "
      "of the convolution",
      (moved_first - moved_last).abs().max(), expected=0, within=1e-5)

# %% [markdown] role="explore"
# The explorer below slides a kernel over the same seven, with a border of zeros around
# the digit. Ink is measured from 0 to 16, so that the numbers stay short. Choose *right
# edges* and drag the window. Is the output on the left side of a stroke positive or
# negative? Then move both sliders to their ends, so that the map is complete, and shift
# the picture by one pixel. What does the map do?

# %% role="explore" explorer="sliding_kernel"
from dlsys_helpers.explorers.sliding_kernel import sliding_kernel

sliding_kernel

# %% [markdown] role="concept"
# What do you gain from the inductive bias? Put each digit somewhere on a canvas of 12 x
# 12 pixels and train two small networks on 200 canvases, one with convolutions and one
# with only linear layers:

# %% role="concept"
def somewhere(pictures, side=12):
    """Each picture at a random position on an empty canvas."""
    canvas = torch.zeros(len(pictures), 1, side, side)
    corners = torch.randint(side - 7, (len(pictures), 2)).tolist()
    for n, (top, left) in enumerate(corners):
        canvas[n, 0, top:top + 8, left:left + 8] = pictures[n, 0]
    return canvas

conv_net = nn.Sequential(
    nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 32, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1),
    nn.Flatten(), nn.Linear(32, 10))
dense_net = nn.Sequential(nn.Flatten(), nn.Linear(144, 128), nn.ReLU(),
                          nn.Linear(128, 10))

# %% role="concept" tags=["varies-by-cpu"]
canvases, canvases_test = somewhere(images[:200]), somewhere(images_test)
of_200 = {}
for name, net in (("convolutions", conv_net), ("linear layers", dense_net)):
    fit(net, canvases, y_train[:200], steps=300, lr=5e-3)
    values = sum(p.numel() for p in net.parameters())
    of_200[name] = accuracy(net, canvases_test, y_test)
    print(f"{name}: {values:,} parameters, accuracy {of_200[name]:.2f}")

# %% role="concept"
claim("accuracy with convolutions minus accuracy with linear layers",
      of_200["convolutions"] - of_200["linear layers"], above=0.25)

# %% [markdown] role="concept"
# The linear layers have nearly twice as many parameters but do far worse, because they
# would have to see each stroke at each position in training. A convolution uses the
# same weights for a stroke everywhere. The inductive bias helps where its assumptions hold: for
# pixels, whose neighbours belong together, but not for the columns of a table.
#
# ## How many positions fit
#
# In this stage's shapes, `N` counts images, `C` counts channels, and `H` and `W` are
# rows and columns of pixels. A batch has the shape `(N, C, H, W)`. `K` is the window's
# width and `S` its step (the *stride*). `P` is the width of the border of zeros around
# the image (the *padding*), and `D` is the distance between neighbouring weights of the
# window (the *dilation*).
#
# The number of positions is an integer, so the formula rounds the fraction down:
#
# $$H_{out} = \left\lfloor \frac{H + 2P - D(K-1) - 1}{S} \right\rfloor + 1$$
#
# With stride 1, dilation 1 and a padding of `(K - 1) / 2`, so 1 for a 3 x 3 window, the
# map is as large as its input. Such padding is called *same padding*.

# %% role="concept"
def positions(size, kernel, stride=1, padding=0, dilation=1):
    """Number of window positions along one side of the image."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1

image = torch.rand(1, 1, 224, 224)
cases = {"3x3, padding 1": (3, 1, 1), "3x3, stride 2": (3, 2, 0),
         "ResNet's first layer": (7, 2, 3)}
sides = {}
for name, (kernel, stride, padding) in cases.items():
    out = nn.Conv2d(1, 1, kernel, stride, padding)(image)
    sides[name] = out.shape[-1] - positions(224, kernel, stride, padding)
    print(f"{name}: 224 -> {out.shape[-1]}")

# %% role="concept"
claim("largest difference between torch's number of positions and the "
      "formula's",
      max(map(abs, sides.values())), expected=0)
claim("number of positions of a 3x3 window with stride 2 along 224 pixels "
      "(111.5, rounded down)",
      positions(224, 3, 2), expected=111)

# %% [markdown] role="concept"
# If the division leaves a remainder, no window reads the last rows and columns. If the
# remainder is at most as large as the padding, these unread rows and columns contain
# only zeros. If the remainder is larger, they also contain pixels.

# %% role="concept"
begins = 2 * torch.arange(positions(8, 3, 2, 1))[:, None]        # (4, 1)
column = torch.arange(10)                        # 8 pixels and the rim
draw_grids({"3 wide, stride 2, padding 1":
            (column >= begins) & (column < begins + 3)},
           row_names=[f"window {n}" for n in range(1, 5)],
           column_names=["zero", *"12345678", "zero"],
           title="Four windows, and one column is never read",
           alt="A grid with a row for each window, a column for each pixel "
               "and a column for the padding on either side. Each window "
               "reads three columns, two further right than the previous "
               "window. No window reads the padding on the right.")

# %% [markdown] role="concept"
# A window of width 3 moves with stride 3 over 10 columns. Guess how many columns the
# window never reads, then set size 10, kernel 3 and stride 3 in the explorer below.

# %% role="explore" explorer="conv_sizes"
from dlsys_helpers.explorers.conv_sizes import conv_sizes

conv_sizes

# %% [markdown] role="concept"
# ## One pixel wide, or one channel deep
#
# Two special convolutions save weights. A **1 x 1 convolution** (*pointwise*) reads a
# single pixel in all channels, so it is a linear layer applied at every position. It is
# a cheap way to change the number of channels. A **depthwise convolution** gives
# each channel its own window and never mixes channels; in torch, you set `groups=` to the
# number of channels. The two together, a *depthwise separable* convolution, can replace a
# full convolution:

# %% role="concept"
full = nn.Conv2d(64, 64, 3, padding=1, bias=False)
depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False)
pointwise = nn.Conv2d(64, 64, 1, bias=False)
grey = torch.rand(2, 64, 5, 5)
as_linear = F.linear(grey.movedim(1, -1), pointwise.weight[:, :, 0, 0])
print(f"full: {full.weight.numel():,} weights, separable: "
      f"{depthwise.weight.numel() + pointwise.weight.numel():,}")

# %% role="concept"
claim("largest difference between a 1x1 convolution and a linear layer at "
      "every pixel",
      (pointwise(grey).movedim(1, -1) - as_linear).abs().max(), below=1e-5)
claim("number of weights in the separable pair, divided by the number in "
      "the full convolution",
      (depthwise.weight.numel() + pointwise.weight.numel())
      / full.weight.numel(), expected=0.127, within=0.001)

# %% [markdown] role="concept"
# For 64 channels, this pair has an eighth of the full convolution's weights. But the
# pair cannot look for a different pattern in each combination of an input and an output
# channel. Whether your task needs such patterns has to be measured.
#
# ## Pooling keeps the answer and drops the position
#
# Often the next layer needs to know only whether there is a stroke in a corner, not at
# which pixel. *Max pooling* keeps the largest value of each window. The example cuts a
# map of 4 x 4 into windows of 2 x 2 and takes each window's largest value:

# %% role="concept"
spot = torch.zeros(4, 4)
spot[0, 0] = 1
windows = spot.view(2, 2, 2, 2)          # (row of windows, row, column ...)
print(windows.amax(dim=(1, 3)))          # largest within each window
print(F.max_pool2d(spot[None], 2)[0])    # the same by torch's own call

# %% role="concept"
by_one, by_two = spot.roll(1, dims=1), spot.roll(2, dims=1)
pooled = [F.max_pool2d(x[None], 2)[0] for x in (spot, by_one, by_two)]
draw_grids({"a spot": spot, "one column on": by_one,
            "two columns on": by_two, "pooled": pooled[0],
            "pooled ": pooled[1], "pooled  ": pooled[2]},
           title="A move inside a window does not change the pooled map",
           alt="Three grids of 4 by 4 with a filled cell that moves by one "
               "and by two columns. Below them are three pooled grids of 2 "
               "by 2: two are equal, and in the third the filled cell has "
               "moved.")

# %% role="concept"
claim("number of pooled cells that change when the spot moves by one "
      "column",
      (pooled[0] != pooled[1]).sum(), expected=0)
claim("number of pooled cells that change when the spot moves by two "
      "columns",
      (pooled[0] != pooled[2]).sum(), expected=2)

# %% [markdown] role="concept"
# So pooling is *invariant* to some shifts, whereas a convolution is equivariant to
# them. This pooling also halves both sides of the map, so the next layer's step is two
# pixels wide. *Average pooling* keeps the mean of a window. Over the whole map, average
# pooling leaves one value per channel, whatever the size of the picture (*global
# average pooling*). Many classifiers use it in front of the head.

# %% [markdown] trap="07.1" role="situation" fault="activations fill the memory, not the weights" symptom="CUDA out of memory although the model is small: activations of convolutions"
# ## A small net that fills the memory
#
# A net has eight convolutions with 32 channels each, 3 x 3 windows, stride 1 and
# padding 1, and a ReLU after each convolution. All weights of the net together take
# 0.26 MB, less than a photo. You feed the net one grey image of 128 x 128 pixels with
# gradients on, so autograd keeps what the backward pass will need.

# %% trap="07.1" role="break"
def stack(channels, strides):
    """3x3 convolutions, each with a ReLU; the input has one channel."""
    sizes = [1, *channels]
    return nn.Sequential(*[
        nn.Sequential(nn.Conv2d(i, o, 3, stride=s, padding=1), nn.ReLU())
        for i, o, s in zip(sizes, channels, strides, strict=False)])

def megabytes(net, picture):
    """MB of the weights, and MB that autograd keeps for the image."""
    weights = sum(p.nbytes for p in net.parameters())
    kept = saved_bytes(lambda: net(picture), net.parameters())
    return weights / 1e6, kept / 1e6

picture = torch.rand(1, 1, 128, 128)
flat = stack([32] * 8, [1] * 8)
flat_weights, flat_kept = megabytes(flat, picture)

# %% trap="07.1" role="guess"
guess("07.1", "How many MB does autograd keep for the one image?",
      unit="MB")

# %% trap="07.1" role="look"
measured("07.1", flat_kept, right=(10, 30))

# %% trap="07.1" role="look"
print(f"weights {flat_weights:.2f} MB   kept {flat_kept:.1f} MB")
print(f"one map: {32 * 128 * 128 * 4 / 1e6:.1f} MB")

# %% trap="07.1" role="look"
claim("MB that autograd keeps for one image", flat_kept, above=16, below=18)

# %% [markdown] trap="07.1" role="why"
# All positions share a convolution's weights. But the output of a convolution, the *map*,
# has a separate value of 4 bytes for each channel, row and column of each image in the
# batch. Nothing in this net ever shrinks a map, so all eight maps have the full size. For
# a batch of 64, autograd keeps 64 times as much.
#
# The usual plan halves the rows and columns several times along the net and doubles the
# channels each time. After each halving, a map has a quarter of the positions and twice
# the channels, so it takes half the bytes.

# %% trap="07.1" role="repair"
pyramid = stack([32, 32, 64, 64, 128, 128, 256, 256],
                [1, 1, 2, 1, 2, 1, 2, 1])
weights, kept = megabytes(pyramid, picture)
print(f"weights {flat_weights:.2f} -> {weights:.2f} MB")
print(f"kept    {flat_kept:.1f} -> {kept:.1f} MB")

# %% trap="07.1" role="repair"
claim("bytes kept for the backward pass with halved maps, divided by bytes "
      "kept with full maps",
      kept / flat_kept,
      below=0.5)

# %% trap="07.1" role="repair"
def maps(net):
    """MB of all maps of a net for 16 images."""
    found, x = 0, picture
    for layer in net:
        x = layer(x)
        found += 16 * x.nbytes / 1e6
    return found

draw_boxes({"one size": {"weights": flat_weights, "maps": maps(flat)},
            "halved": {"weights": weights, "maps": maps(pyramid)}},
           unit="MB", title="16 images: halved maps halve the memory",
           alt="Two columns of boxes. In both, the maps are nearly "
               "everything and the weights are a thin box. The column with "
               "halved maps is less than half as high.")

# %% [markdown] trap="07.1" role="repair"
# Memory use moves from the maps, which every image needs separately, to the weights,
# which the whole batch shares.

# %% [markdown] trap="07.1" role="more" topics="why eight maps and not sixteen · what the weights cost · ResNet's last map"
# The ReLU keeps its output and the next convolution keeps its input. Both are the same
# tensor, so autograd keeps eight maps, not sixteen.

# %% trap="07.1" role="more"
claim("MB of weights in the net with full maps",
      flat_weights, expected=0.26, within=0.001)
claim("MB of weights in the net with halved maps, divided by MB in the net "
      "with full maps",
      weights / flat_weights, above=15)

# %% [markdown] trap="07.1" role="folklore"
# **Told:** A first layer (the *stem*) and a pooling layer, both with stride 2, and
# three more halvings shrink each side of an image eightfold, from `224` to `28`.
# **Measured:** Five halvings divide each side by 32, and ResNet-18's last map has 7
# x 7 positions. A single map of 256 channels at full size would take 51.4 MB.

# %% trap="07.1" role="folklore"
from torchvision.models import resnet18

with torch.device("meta"):               # shapes without numbers
    net = resnet18()
    trunk = nn.Sequential(*list(net.children())[:-2])
    last = trunk(torch.empty(1, 3, 224, 224))
print("last map of a ResNet-18:", tuple(last.shape))

# %% trap="07.1" role="folklore"
claim("number of positions along one side of ResNet-18's last map",
      last.shape[-1], expected=7)
claim("224 divided by the number of positions along one side of the last "
      "map",
      224 / last.shape[-1],
      expected=32)
claim("MB of a map of 256 channels at 224 x 224", 256 * 224**2 * 4 / 1e6,
      expected=51.4, within=0.03)

# %% trap="07.1" role="exercise" points=2 difficulty=2 minutes=10
def map_bytes(size: tuple, batch: int, layers: list) -> list[int]:
    """List the bytes of each layer's float32 output. The first layer comes
    first.

    Args:
        size: (height, width) of the input.
        batch: the number of images.
        layers: a list of (channels, kernel, stride, padding), with square
            windows and dilation 1. The list is unchanged.

    The number of positions is rounded down, as in torch. Also count maps
    that are too large for any memory.

    Example: size (5, 8), batch 2 and layers [(3, 3, 2, 0)] give [144].
    """
    # BEGIN SOLUTION
    height, width = size
    found = []
    for channels, kernel, stride, padding in layers:
        height = (height + 2 * padding - kernel) // stride + 1
        width = (width + 2 * padding - kernel) // stride + 1
        found.append(4 * batch * channels * height * width)
    return found
    # END SOLUTION

# %% [markdown] trap="07.1" role="hint"
# 1. How many windows fit along one side? The padded side has `size + 2 * padding` values, and the first window takes `kernel` of them. Count for both height and width.
# 2. The number of positions in a layer's output is the size of the next layer's input. The channels do not matter here.
# 3. A float32 takes 4 bytes, so multiply 4 by batch, channels, height and width.

# %% [markdown] trap="07.1" role="keep"
# **Keep:** The maps of a convolutional net grow with the batch and with the pixels, but
# the convolutions' weights do not. If memory runs out, shrink the maps first. **In your
# own code:** Before you rent a larger GPU, sum batch x channels x rows x columns over
# all layers that keep their input: convolutions, linear layers, pooling, norm layers and
# activations such as GELU. **Source:** [He et al. 2015, "Deep Residual Learning for Image
# Recognition"](https://arxiv.org/abs/1512.03385), section 3.3: half the map, twice the
# filters, "so as to preserve the time complexity per layer". The number of
# multiplications per layer stays the same, and the maps take fewer bytes.

# %% [markdown] trap="07.2" role="situation" core=true fault="the receptive field is too small" symptom="CNN ignores context: receptive field too small, prediction does not react to distant pixels"
# ## Scratches on metal
#
# A net looks for scratches on metal in photos of 81 x 81 pixels. Five convolutions with
# same padding keep the photo's size, and each of the 81 x 81 units of the last map says
# whether its pixel belongs to a scratch. The model card says: "The net is five layers
# deep and was trained on whole photos, so every unit judges its pixel by the whole
# photo."
#
# You measure each pixel's *influence* on the middle unit: how fast the unit's value
# changes with the pixel's value.

# %% trap="07.2" role="break"
def five_convs(dilations=(1, 1, 1, 1, 1), channels=8):
    """Five 3x3 convolutions that keep height and width."""
    sizes = [1] + [channels] * 5
    return nn.Sequential(*[
        nn.Sequential(nn.Conv2d(i, o, 3, padding=d, dilation=d),
                      nn.LeakyReLU())            # a dead ReLU is 0
        for i, o, d in zip(sizes, sizes[1:], dilations)])

body = five_convs()
photo = torch.rand(1, 1, 81, 81)

# %% trap="07.2" role="guess" quoted="wrong"
guess("07.2",
      "Add up the influences, beginning with the most influential pixel. "
      "How many pixels does it take to reach half of the total?",
      unit="pixels")

# %% trap="07.2" role="look"
def footprint(net, side=81):
    """|d unit / d pixel| for the unit in the middle, summed over channels.

    Mean of four random photos; (side, side).
    """
    x = torch.rand(4, 1, side, side, requires_grad=True)
    net(x)[:, :, side // 2, side // 2].sum().backward()
    return x.grad[:, 0].abs().mean(0)

def width(share):
    """Pixels between the first and last column that a unit depends on."""
    columns = (share.sum(0) > 0).nonzero()[:, 0]
    return int(columns[-1] - columns[0]) + 1

foot = footprint(body)

# %% trap="07.2" role="look"
measured("07.2", ((strong := footprint(body).flatten().sort(
    descending=True).values).cumsum(0) < strong.sum() / 2).sum() + 1,
    right=(12, 36))

# %% trap="07.2" role="look"
middle = foot[32:49, 32:49]                      # 17 x 17 of 81 x 81
scratch = torch.zeros(17, 17, dtype=torch.bool)
scratch[8, 14] = True
draw_grids({"what it reads": middle > 0,
            "how much": (middle / middle.max()).sqrt()},
           marks={"what it reads": scratch, "how much": scratch},
           legend="a scratch, six pixels away",
           title="The unit reads a small square and nothing else",
           alt="Two grids of 17 x 17 pixels around the unit. The first has "
               "a square of 11 x 11 filled; in the second, the square "
               "fades towards its edges. A pixel just outside the square "
               "is marked.")

# %% trap="07.2" role="look"
claim("width of the square that the unit reads, in pixels",
      width(footprint(body)), expected=11)

# %% [markdown] trap="07.2" role="look"
# The unit reads 11 x 11 pixels, and half of the influence comes from a small part in the
# middle, the *effective* receptive field. Now raise the marked pixel, just outside the
# square, by a hundred. The unit's value does not change:

# %% trap="07.2" role="look"
scratched = photo.clone()
scratched[..., 40, 46] += 100           # six pixels right of the middle
with torch.no_grad():
    gap = (body(photo) - body(scratched))[0, :, 40, 40].abs().max()

# %% trap="07.2" role="look"
claim("change in the unit's value when a pixel six columns away is raised "
      "by 100", gap,
      expected=0)

# %% [markdown] trap="07.2" role="why"
# Each 3 x 3 layer adds one pixel on each side, so a unit after five layers reads a
# square 1 + 5 x 2 pixels wide. This square is the unit's *receptive field*. Training
# does not widen the field, because the derivative with respect to a pixel outside it is
# zero, whatever the weights.
#
# Two options of a convolution widen the field without adding a weight. A dilation
# spreads the window. A stride enlarges the *steps* of later layers. So from layer to
# layer, keep track of two numbers, the field's width and the step:

# %% trap="07.2" role="repair"
def walk(layers):
    """Receptive field and step, in pixels; layers: (K, S, D) each."""
    field, step = 1, 1
    for kernel, stride, dilation in layers:
        field += dilation * (kernel - 1) * step
        step *= stride
    return field, step

spread = (1, 2, 4, 8, 1)
wide = five_convs(spread)
seen = width(footprint(wide))
count = [sum(p.numel() for p in net.parameters()) for net in (body, wide)]
print("dilated, computed:", walk([(3, 1, d) for d in spread])[0])
print("dilated, measured:", seen, "  weights:", *count)

# %% trap="07.2" role="repair"
claim("measured width of the dilated net's receptive field, in pixels",
      seen, expected=33)

# %% trap="07.2" role="repair"
def spans(dilations):
    """A row for each layer: the pixels that a unit after it reads."""
    fields = [walk([(3, 1, d) for d in dilations[:n]])[0]
              for n in range(6)]
    away = torch.arange(-17, 18).abs()
    return torch.stack([away <= field // 2 for field in fields])

draw_grids({"plain": spans((1,) * 5), "dilated": spans(spread)},
           row_names=["the pixel", "", "", "", "", "layer 5"],
           captions={"plain": "two more pixels per layer: 11",
                     "dilated": "dilations 1, 2, 4, 8, 1: 33"},
           title="Five layers, the same weights, three times the field",
           alt="Two grids, a row for each layer. The filled part grows "
               "from one pixel to 11 without dilation and to 33 with "
               "dilation.")

# %% [markdown] trap="07.2" role="repair"
# In the explorer, set five layers, then a stride or a dilation of 2. First guess the
# field's width, and whether the measured footprint fills it.

# %% role="explore" explorer="receptive_field"
from dlsys_helpers.explorers.receptive_field import receptive_field

receptive_field

# %% [markdown] trap="07.2" role="more" topics="layers that average · what counts inside the field · strides, and ResNet-50"
# `walk` computes the field only for nets of windowed layers. A layer that averages over
# the map (a BatchNorm in train mode, a GroupNorm, a global pooling) lets every pixel
# influence the unit.
#
# The field says which pixels *can* influence the unit, not which ones do. Where windows
# overlap, a pixel in the middle reaches the unit along many paths, a pixel at the edge
# along fewer paths, and a pixel in a corner along a single path. The next cell takes a
# net of ten 3 x 3 convolutions with tanh and measures how many middle columns hold 95 %
# of the gradient, before and after the net learns the digits.

# %% trap="07.2" role="more" tags=["varies-by-cpu"]
def core(share, part=0.95):
    """How many middle columns hold this part of the gradient."""
    columns = share.sum(0) / share.sum()
    middle = len(columns) // 2
    return next(2 * k + 1 for k in range(middle + 1)
                if columns[middle - k:middle + k + 1].sum() >= part)

deep = nn.Sequential(*[layer for n in range(10) for layer in (
    nn.Conv2d(8 if n else 1, 8, 3, padding=1), nn.Tanh())])
before = core(footprint(deep))
classifier = nn.Sequential(deep, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                       nn.Linear(8, 10))
fit(classifier, images, y_train, steps=100, lr=1e-2,
    batch=32)
after = core(footprint(deep))
print(f"field 21, core {before} before training and {after} after")

# %% trap="07.2" role="more"
claim("computed width of the dilated net's receptive field, in pixels",
      walk([(3, 1, d) for d in spread])[0], expected=33)
claim("number of weights that the dilation adds",
      count[1] - count[0], expected=0)
claim("width of the receptive field of ten 3x3 convolutions, in pixels",
      width(footprint(deep)), expected=21)
claim("number of middle columns that hold 95 % of the gradient, before "
      "training",
      before, below=19)
claim("number of middle columns that hold 95 % of the gradient, after "
      "training",
      after, below=19)

# %% [markdown] trap="07.2" role="folklore"
# **Told:** A layer with stride 2 doubles the receptive field, and the field of
# `ResNet-50` is over `900` pixels. **Measured:** Four 3 x 3 layers have a field of 9
# pixels. A pooling layer of window and stride 2 after them widens the field to 10
# pixels, and one more 3 x 3 layer widens it to 14, because the stride doubled the step,
# not the field. According to `walk`, torchvision's `ResNet-50` has a field of `427`
# pixels. The source below says `483`, because its blocks have their stride in a
# different layer. In the same source, a field of over `900` belongs to `ResNet-101`.

# %% trap="07.2" role="folklore"
from torchvision import models

def main_path(net):
    """(K, S, D) of each window of a ResNet, without skip connections."""
    def one(value):
        return value[0] if isinstance(value, tuple) else value
    return [(one(m.kernel_size), one(m.stride), one(m.dilation))
            for name, m in net.named_modules() if "downsample" not in name
            and isinstance(m, nn.Conv2d | nn.MaxPool2d)]

with torch.device("meta"):
    resnet50 = models.resnet50()
four, pool = [(3, 1, 1)] * 4, (2, 2, 1)
steps = [walk(four), walk([*four, pool]), walk([*four, pool, (3, 1, 1)])]
print("fields:", *(field for field, _ in steps))
print("ResNet-50:", walk(main_path(resnet50))[0], "pixels")

# %% trap="07.2" role="folklore"
claim("width of the receptive field after the pooling layer, in pixels",
      steps[1][0],
      expected=10)
claim("width of the receptive field after one more 3x3 layer, in pixels",
      steps[2][0], expected=14)
claim("width of the receptive field of torchvision's ResNet-50, in pixels",
      walk(main_path(resnet50))[0],
      expected=427)

# %% trap="07.2" role="exercise" points=3 difficulty=2 minutes=15
def seen_span(layers: list, unit: int) -> tuple[int, int]:
    """Find the first and last input pixel that a unit reads along one axis.

    Args:
        layers: a list of (kernel, stride, padding, dilation), in order from
            the input. Without layers, the unit is the pixel itself. The
            list is unchanged.
        unit: the unit's index in the last map.

    The input is as wide as it needs to be, and pixels are counted from 0.
    Positions in the padding, even in the padding of inner maps, count like
    all others, so both results can be negative.

    Example: layers [(3, 1, 1, 1)] and unit 0 give (-1, 1).
    """
    # BEGIN SOLUTION
    first = last = unit
    for kernel, stride, padding, dilation in reversed(layers):
        first = first * stride - padding
        last = last * stride - padding + dilation * (kernel - 1)
    return first, last
    # END SOLUTION

# %% [markdown] trap="07.2" role="hint"
# 1. Go backwards. Begin with the given unit. For each layer, find the range of input positions that the units from `first` to `last` read.
# 2. Unit `u` of a layer begins to read at position `u * stride - padding`.
# 3. The window of unit `u` ends `dilation * (kernel - 1)` positions later.

# %% [markdown] trap="07.2" role="keep"
# **Keep:** In a net of windowed layers, nothing outside a unit's receptive field can
# change the unit. Before you train, compute the field's width, 1 plus the sum of
# `dilation * (kernel - 1)` times all earlier strides. **In your own code:** For several
# random inputs, call `backward()` from one position of the last map, summed over all
# channels with random weights, and see where the input's gradient is not zero.
# **Source:** [Araujo, Norris & Sim 2019, "Computing Receptive Fields of Convolutional
# Neural Networks"](https://distill.pub/2019/computing-receptive-fields/).

# %% [markdown] role="concept"
# ## A residual block adds to its input
#
# A deeper network should be at least as good as a shallow one, because the extra layers
# could copy their input. Plain layers often fail to copy. In 2015, a net of 56 plain
# layers had a higher error *in training* than a net of 20 such layers. A **residual
# block** does not have to learn to copy. It computes a change and *adds* this change to
# its input: $y = x + F(x)$. If $F(x)$ is zero, the block copies its input.

# %% role="concept"
class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a way around them, unless skip=False."""
    def __init__(self, c_in, c_out, stride=1, skip=True):
        super().__init__()
        self.skip, self.around = skip, nn.Identity()
        self.layers = nn.Sequential(
            nn.Conv2d(c_in, c_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(c_out), nn.ReLU(),
            nn.Conv2d(c_out, c_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(c_out))
    def forward(self, x):
        change = self.layers(x)
        return (self.around(x) + change if self.skip else change).relu()

# %% [markdown] role="concept"
# The sum needs two tensors of the same shape. (Torch would broadcast a single
# channel without an error.) If a block halves the map and doubles the channels, the
# input no longer has the right shape:

# %% role="concept"
down = BasicBlock(8, 16, stride=2)
maps_in = torch.rand(2, 8, 8, 8)
try:
    down(maps_in)
except RuntimeError as error:
    print(error)

# %% [markdown] role="concept"
# The shortcut of a block that changes the shape usually gets its own layers, the
# *projection*: a 1 x 1 convolution with the same stride, and a norm layer. In the other
# blocks, the shortcut passes the input on unchanged.

# %% role="concept"
down.around = nn.Sequential(nn.Conv2d(8, 16, 1, stride=2, bias=False),
                            nn.BatchNorm2d(16))
print("after the projection:", tuple(down(maps_in).shape))

# %% role="concept"
draw_blocks({"basic block": ["x", "conv 3x3", "BatchNorm, ReLU", "conv 3x3",
                             "BatchNorm", "+", "ReLU"],
             "half the size, twice the channels": [
                 "x", ("conv 3x3, stride 2", "conv 1x1, stride 2"),
                 ("BatchNorm, ReLU", ""), ("conv 3x3", ""),
                 ("BatchNorm", "BatchNorm"), "+", "ReLU"]},
            bypass={"basic block": [(0, 5)]},
            captions={"basic block": "the input passes unchanged",
                      "half the size, twice the channels":
                      "a projection makes it fit"},
            title="A ResNet block: two convolutions and a way around them",
            alt="Two columns of blocks. Left: convolution, BatchNorm and "
                "ReLU, convolution, BatchNorm, a sum, ReLU; a path leads "
                "from the input around these layers to the sum. Right: the "
                "path has its own 1 x 1 convolution and BatchNorm.")

# %% [markdown] role="concept"
# torchvision's `BasicBlock`, of which ResNet-18 and ResNet-34 are made, has the same
# layers. Does the addition help? Stack twelve blocks, with and without the addition, and
# train each stack for 60 steps on the digits:

# %% role="concept"
from torchvision.models.resnet import BasicBlock as Theirs

ours = sum(p.numel() for p in BasicBlock(64, 64).parameters())
theirs = sum(p.numel() for p in Theirs(64, 64).parameters())

def stacked(skip):
    """A stem, twelve blocks of 8 channels and a head."""
    blocks = [BasicBlock(8, 8, skip=skip) for _ in range(12)]
    return nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), *blocks,
                         nn.Flatten(), nn.Linear(8 * 16, 10))

# %% role="concept" tags=["varies-by-cpu"]
deep_score = {}
for name, skip in (("residual", True), ("plain", False)):
    net = stacked(skip)
    fit(net, images, y_train, steps=60, lr=3e-3, batch=32)
    deep_score[name] = accuracy(net, images_test, y_test)
    print(f"{name}: accuracy {deep_score[name]:.2f}")

# %% role="concept"
claim("number of parameters in our block minus the number in torchvision's "
      "block",
      ours - theirs,
      expected=0)
claim("twelve blocks, 60 steps: accuracy with the addition minus accuracy "
      "without the addition",
      deep_score["residual"] - deep_score["plain"], above=0.05)

# %% [markdown] role="concept"
# The stack without the addition has the same layers, including BatchNorm, but learns
# far more slowly. Why? Follow a gradient backwards. The gradient of $x$ is the gradient
# of $y$ plus the gradient that comes back through $F$. So if $F'$ is small, nearly all
# of the gradient of $y$ arrives at $x$. The next cell stacks 40 small linear layers,
# with and without the addition, and adds a third stack in which $F(x) = -0.5 x$ cancels
# half of the input:

# %% role="concept"
def through(matrices, skip):
    """Norm of a unit gradient after its way back through the layers."""
    g = torch.ones(32) / 32**0.5
    for m in matrices:
        g = m.T @ g + (g if skip else 0)
    return g.norm().item()

small = [0.05 * torch.randn(32, 32) / 32**0.5 for _ in range(40)]
against = [-0.5 * torch.eye(32)] * 40
norms = {"plain": through(small, False), "residual": through(small, True),
         "residual, F(x) = -x/2": through(against, True)}
print({name: f"{norm:.1e}" for name, norm in norms.items()})

# %% role="concept"
claim("norm of the gradient after 40 small layers without additions",
      norms["plain"], below=1e-30)
claim("norm of the gradient after 40 small layers with additions",
      norms["residual"], above=0.5)
claim("norm of the gradient after 40 layers with additions and F(x) = -x/2",
      norms["residual, F(x) = -x/2"], expected=0.5**40, within=1e-14)

# %% [markdown] role="concept"
# So with the addition, a block with small $F(x)$ *nearly copies* its input, and
# torchvision's option `zero_init_residual` makes blocks without projection start as
# copies. Starting
# with blocks that nearly copy is a good default, but additions guarantee nothing for
# trained nets, because the third stack also has additions and still loses its gradient.
# He et al. do not blame vanishing gradients for the poor results of their deep nets
# without additions, because these nets had BatchNorm and healthy gradient norms. The
# authors attribute the failure to difficult optimization. Source: [He et al.
# 2015](https://arxiv.org/abs/1512.03385), figure 1 and section 4.1.
#
# ## Transfer: start from layers that have learned
#
# You rarely have enough labelled pictures to train a deep network from random weights.
# *Transfer learning* starts from a network that was trained on another task. The first
# layers of image networks respond to edges and strokes, which occur in most pictures.
# The last layers respond to features of the classes that the network was trained on. So
# you can reuse the *body*, which is all layers except the last, and replace the last
# layer, the *head* ([Yosinski et al. 2014](https://arxiv.org/abs/1411.1792) measured
# layer by layer how well this works).
#
# How much is the body worth? The answer depends on how many examples you have and on
# how different the new task is from the old one. Train a body on the digits 0 to 4,
# placed anywhere on a canvas. Then freeze this body, so that its weights stay as they
# are. Train one new head for a near task, the digits 5 to 9, and one for a far task,
# the same digits with their 64 pixels in shuffled order. Compare both with networks
# that start from random weights.

# %% role="concept"
def new_body():
    """From canvases (N, 1, 12, 12) to features (N, 32)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1),
        nn.Flatten())

is_old, is_old_test = y_train < 5, y_test < 5
old_body = new_body()
fit(nn.Sequential(old_body, nn.Linear(32, 5)), somewhere(images[is_old]),
    y_train[is_old], steps=200, lr=5e-3)
old_body.requires_grad_(False)
print("frozen:", sum(p.numel() for p in old_body.parameters()), "values")

# %% role="concept"
def task(pixels):
    """The digits 5 to 9, with pixels in this order, placed anywhere."""
    x, x_new = (somewhere(of[:, pixels].view(-1, 1, 8, 8)) for of in (
        x_train[~is_old], x_test[~is_old_test]))
    return x, y_train[~is_old] - 5, x_new, y_test[~is_old_test] - 5

def transfer(pixels, examples):
    """Accuracy with n examples per class: old body, then random body."""
    x, y, x_new, y_new = task(pixels)
    chosen = torch.cat([(y == c).nonzero()[:examples, 0] for c in range(5)])
    reused = nn.Sequential(old_body, nn.Linear(32, 5))
    fit(reused, x[chosen], y[chosen], steps=150, lr=2e-2)
    random = nn.Sequential(new_body(), nn.Linear(32, 5))
    fit(random, x[chosen], y[chosen], steps=150, lr=5e-3, batch=32)
    return accuracy(reused, x_new, y_new), accuracy(random, x_new, y_new)

# %% role="concept"
as_is, shuffled = torch.arange(64), torch.randperm(64)
gained = {(where, n): transfer(pixels, n) for n in (5, 100)
          for where, pixels in (("near", as_is), ("far", shuffled))}

# %% role="concept"
plot_bars({f"{where}, {n} each: {how}": scores[k]
           for (where, n), scores in gained.items()
           for k, how in enumerate(("frozen", "random start"))},
          xlabel="accuracy on the new digits",
          title="Far task or much data: freezing costs accuracy",
          alt="Eight bars: near and far task, 5 and 100 examples of each "
              "class, each with the frozen body and from a random start. "
              "The frozen body does better on the near task than on the "
              "far task. With 100 examples, the random start is clearly "
              "better on both tasks.")

# %% role="concept"
claim("frozen body, 100 images per class: accuracy on the near task minus "
      "accuracy on the far one",
      gained["near", 100][0] - gained["far", 100][0], above=0.02)
claim("near task, 100 images per class: accuracy from scratch minus "
      "accuracy with a frozen body",
      gained["near", 100][1] - gained["near", 100][0], above=0.05)

# %% [markdown] role="concept"
# The body above knows only five shapes, so it is of little help. A body trained on a
# million photos knows far more, but how best to use it still depends on the number of
# examples and on the distance between the tasks. These are the usual starting points:
#
# | | near the old task | far from it |
# |---|---|---|
# | few examples | freeze the body, train a head (*feature extraction*) | keep the early layers, retrain the later ones |
# | many examples | train everything (*fine-tuning*), the body at a smaller rate | train everything, perhaps from random weights |
#
# The table is not a law, as trap 07.3 will show. A third way, between freezing and
# fine-tuning, is *gradual unfreezing*: train only the head at first, then also the
# layer below it, and so on downwards. By the time the early layers start to train, the
# head no longer sends them random gradients.

# %% role="concept"
from_bottom = {"conv 1": nn.Conv2d(1, 32, 5),
               "conv 2": nn.Conv2d(32, 32, 3), "head": nn.Linear(32, 5)}
for layer in from_bottom.values():
    layer.requires_grad_(False)
trains = []                                       # a row for each epoch
for layer in reversed(from_bottom.values()):      # the head first
    layer.requires_grad_(True)
    trains.append([float(part.weight.requires_grad)
                   for part in from_bottom.values()])
    # here: an optimizer for what requires a gradient, and an epoch

# %% role="concept"
draw_grids({"trained": trains}, column_names=[*from_bottom],
           row_names=["first epoch", "second epoch", "third epoch"],
           title="Gradual unfreezing goes from the head downwards",
           alt="A grid of three epochs and three layers. In the first "
               "epoch only the head is filled, in the second also the "
               "layer below it, in the third all three.")

# %% role="concept"
claim("number of layers that train in the first epoch",
      sum(trains[0]), expected=1)

# %% [markdown] trap="07.3" role="situation" core=true fault="fine-tuning at one rate forgets the old task" symptom="fine-tuning: old task forgotten, one learning rate for body and head"
# ## Ten examples of each new digit
#
# A classifier for the digits 0 to 4 is nearly always right. You have ten examples of
# each digit from 5 to 9. You replace the head, give it a learning rate of 0.01, and try
# three plans, each with 100 steps of Adam: the body is frozen, trains at a hundredth of
# the head's rate, or trains at the head's rate. Afterwards you put the old head back
# and also test the old digits.
#
# A fine-tuning guide says: "If a body learns as fast as its head, it forgets what it knew
# and also does worst on the new task."

# %% trap="07.3" role="break"
class Reader(nn.Module):
    """A body of two layers and a head for five digits."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(),
                                  nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(self.body(x))

low, low_test = y_train < 5, y_test < 5
teacher = Reader()
losses = fit(teacher, x_train[low], y_train[low], steps=300, lr=3e-3)

# %% trap="07.3" role="break"
rows = [(y_train == digit).nonzero()[:10, 0] for digit in range(5, 10)]
few = torch.cat(rows)                    # 50 rows, ten of each new digit
x_new, y_new = x_train[few], y_train[few] - 5

def both(model):
    """Accuracy on new digits and, with the old head, on old digits."""
    new = accuracy(model, x_test[~low_test], y_test[~low_test] - 5)
    old = nn.Sequential(model.body, teacher.head)
    return new, accuracy(old, x_test[low_test], y_test[low_test])

# %% trap="07.3" role="break"
def tune(body_rate, head_rate=1e-2):
    """Accuracy on new and old digits after each of 100 steps."""
    model, shares = copy.deepcopy(teacher), []
    model.head = nn.Linear(64, 5)
    optimizer = torch.optim.Adam([
        {"params": model.body.parameters(), "lr": body_rate},
        {"params": model.head.parameters(), "lr": head_rate}])
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(model(x_new), y_new).backward()
        optimizer.step()
        shares.append(both(model))
    return shares

# %% trap="07.3" role="guess" quoted="wrong"
guess("07.3", "Which plan ends with the best accuracy on the new digits?",
      choices=["the frozen body",
               "the body at a hundredth of the head's rate",
               "the body at the head's rate",
               "none: all are within three percentage points"])

# %% trap="07.3" role="look"
plans = {"frozen": 0.0, "a hundredth": 1e-4, "a tenth": 1e-3,
         "one rate": 1e-2}
paths = {plan: tune(rate) for plan, rate in plans.items()}
new = {plan: shares[-1][0] for plan, shares in paths.items()}
old = {plan: shares[-1][1] for plan, shares in paths.items()}

# %% trap="07.3" role="look"
measured("07.3", 2)

# %% trap="07.3" role="look"
plot_bars({**{f"new, {p}": s for p, s in new.items()},
           **{f"old, {p}": s for p, s in old.items()}},
          xlabel="accuracy on the test digits",
          title="What the new digits gain, the old digits pay for",
          alt="Two groups of bars for four rates of the body. New digits "
              "do worst with the frozen body and best with the body at the "
              "head's rate. For the old digits, the order is reversed.")

# %% trap="07.3" role="look"
claim("new digits: accuracy with the body at the head's rate minus "
      "accuracy with a frozen body",
      new["one rate"] - new["frozen"], above=0.08)

# %% [markdown] trap="07.3" role="look"
# On the new digits, the fast body does best, which contradicts the guide. The lower four
# bars show the cost:

# %% trap="07.3" role="look"
claim("old digits: accuracy with a frozen body minus accuracy with the "
      "body at the head's rate",
      old["frozen"] - old["one rate"], above=0.08)

# %% [markdown] trap="07.3" role="why"
# The new loss measures the new digits only. At the head's rate, training moves the body
# so far that the old head no longer works with it: *catastrophic forgetting*. The guide
# is right about the forgetting. But with fifty examples and Adam, the head's rate is
# *best* on the new task.

# %% trap="07.3" role="why"
plot_lines(range(1, 101),
           {plan: [old_share for _, old_share in shares]
            for plan, shares in paths.items()},
           xlabel="step", ylabel="accuracy on the old digits",
           title="The faster the body moves, the more it forgets",
           alt="Four lines: the accuracy on old digits over 100 steps. The "
               "line of the frozen body is flat. The lines of the body at "
               "a hundredth and a tenth of the head's rate fall less than "
               "the line of the body at the head's rate, which is lowest.")

# %% [markdown] trap="07.3" role="repair"
# First ask whether anybody still uses the old head. If nobody does, choose by the new
# digits alone. Otherwise, give the body a smaller rate and measure both tasks. A tenth
# of the head's rate costs little accuracy on either task:

# %% trap="07.3" role="repair"
claim("old digits: accuracy with the body at a tenth of the head's rate",
      old["a tenth"], above=0.85)

# %% [markdown] trap="07.3" role="repair"
# In the explorer, try other rates, optimizers, steps or widths. First guess: at the
# head's rate, does the body forget more with SGD and momentum or with Adam?

# %% role="explore" explorer="forgetting" compare=false
from dlsys_helpers.explorers.forgetting import forgetting

forgetting

# %% [markdown] trap="07.3" role="more" topics="a rate that is too high for both · the other gaps"
# A rate can also be too high for both tasks. If head and body both train at a rate of
# 0.3, the classifier is worse on both tasks than at 0.01:

# %% trap="07.3" role="more"
hot_new, hot_old = tune(0.3, 0.3)[-1]
print(f"body and head at 0.3: new {hot_new:.2f}   old {hot_old:.2f}")

# %% trap="07.3" role="more"
claim("old digits: accuracy with a rate of 0.3 for body and head",
      hot_old, below=0.6)
claim("new digits: accuracy with the whole net at a rate of 0.3 minus "
      "accuracy at a rate of 0.01",
      hot_new - new["one rate"], below=-0.05)
claim("new digits: accuracy at the head's rate minus accuracy at a "
      "hundredth of the head's rate",
      new["one rate"] - new["a hundredth"], above=0.05)
claim("new digits: accuracy at a tenth of the head's rate minus accuracy "
      "with a frozen body",
      new["a tenth"] - new["frozen"], above=0.05)

# %% [markdown] trap="07.3" role="folklore"
# **Told:** One large rate for the whole model makes it forget, *and* on the new task the
# model ends up worse than with small rates for the body. **Measured:** For this
# classifier, fifty examples and Adam, the first half is true and the second is not. Among
# the rates tried, a faster body helps the new task until training itself breaks down.
# With other data, the result may be the opposite, so measure both tasks.

# %% trap="07.3" role="exercise" points=3 difficulty=2 minutes=15
def lr_groups(model: nn.Module, head: nn.Module, body_lr: float,
              head_lr: float) -> list[dict]:
    """Return an optimizer's two groups: first the body's, then the head's.

    Each group is {"params": list of parameters, "lr": float}. The body is
    everything outside the head, including the stem and parameters of the
    model itself. Frozen parameters (requires_grad False) are in no group.
    Every other parameter is in exactly one group. A parameter or module
    that head and body share belongs to the body.

    Args:
        head: a module inside model, at any depth, perhaps under two names.

    The model is unchanged.

    Example: for nn.Sequential(a, b) with head b, the parameters of a get
    body_lr and those of b get head_lr.
    """
    # BEGIN SOLUTION
    def around(module):
        found = set(module.parameters(recurse=False))
        for child in module.children():
            found |= around(child) if child is not head else set()
        return found
    outside = around(model)
    live = [p for p in model.parameters() if p.requires_grad]
    body = [p for p in live if p in outside]
    tops = [p for p in live if p not in outside]
    return [{"params": body, "lr": body_lr},
            {"params": tops, "lr": head_lr}]
    # END SOLUTION

# %% [markdown] trap="07.3" role="hint"
# 1. A list of layers by name leaves out the layers you did not think of. Go through `model.parameters()`, which yields every tensor once, and decide where each tensor belongs.
# 2. A tensor belongs only to the head if every path to it leads through the head. Walk from the model through `children()`, stop at the head, and collect each module's own parameters: `module.parameters(recurse=False)`.
# 3. Compare by identity (`is`, or a set of tensors), because two different tensors can have equal values.

# %% [markdown] trap="07.3" role="keep"
# **Keep:** Measure forgetting on the old task, because the new task's loss does not
# show it. Without BatchNorm (trap 07.7), a smaller rate for the body keeps more of the
# old task. The effect of a smaller rate on the new task depends on the data. **In your
# own code:** Compare the optimizer's tensors with the model's trainable tensors. A
# first layer is easily forgotten. **Source:** [Howard & Ruder 2018, "Universal Language
# Model Fine-tuning for Text Classification"](https://arxiv.org/abs/1801.06146), section
# 3.2 on one rate for each layer and section 3.3 on gradual unfreezing.

# %% [markdown] trap="07.4" role="situation" fault="preprocessing in use differs from training" symptom="pretrained model predicts badly: wrong mean and std, preprocessing differs from training"
# ## Three ways to serve a model
#
# Weights come with a recipe that says how the images were scaled before training. This
# digit classifier has a BatchNorm after each hidden layer and was trained on pixels
# from 0 to 1, normalized with one mean and one standard deviation. Served with the same
# recipe, the classifier gets nearly every digit right.
#
# Three teams serve the classifier. The first team forgets to normalize. The second team
# swaps the two numbers: it subtracts the standard deviation and divides by the mean. The
# third team normalizes the images, and then the library normalizes them again. No team
# sees an error.

# %% trap="07.4" role="break"
mean, std = x_train.mean(), x_train.std()

def normalise(x):
    return (x - mean) / std

def reader_with(norm):
    """An MLP 64-64-64-10, with norm after both hidden layers."""
    hidden = [layer for _ in range(2)
              for layer in (nn.Linear(64, 64), norm(64), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(64, 10))
    fit(model, normalise(x_train), y_train, steps=200, lr=1e-2)
    return model

served = reader_with(nn.BatchNorm1d)
ways = {"as trained": normalise(x_test), "forgotten": x_test,
        "mixed up": (x_test - std) / mean,
        "twice": normalise(normalise(x_test))}

# %% trap="07.4" role="guess"
guess("07.4", "Which team gets the fewest digits right?",
      choices=["none: no team loses much accuracy",
               "the third, which normalizes twice",
               "the second, which swaps the two numbers",
               "the first, which forgets to normalize"])

# %% trap="07.4" role="look"
read = {way: accuracy(served, x, y_test) for way, x in ways.items()}

# %% trap="07.4" role="look"
measured("07.4", 3)

# %% trap="07.4" role="look"
plot_columns(read, xlabel="how it is served", form=".2f",
             ylabel="accuracy on the test digits", marks=["forgotten"],
             title="Forgetting the recipe costs most",
             alt="Four columns. As trained, the accuracy is nearly 1. With "
                 "the two numbers swapped or with images normalized twice, "
                 "it is somewhat lower, and without normalization, it is "
                 "lowest.")

# %% trap="07.4" role="look"
claim("accuracy on images that are not normalized",
      read["forgotten"], below=0.85)

# %% [markdown] trap="07.4" role="why"
# In eval mode, BatchNorm normalizes with the mean and variance that it *stored* in
# training (trap 05.1). BatchNorm does not adapt to the images that you serve. So if the
# images have a new scale, so do the outputs of the norm layer, and the layers after it
# were not trained for that scale.

# %% trap="07.4" role="why"
layer, norm = served[0], served[1]

def spread(x):
    """Standard deviation after the first norm, before its gain."""
    h = (layer(x) - norm.running_mean) / norm.running_var.sqrt()
    return h.std(0).mean().item()

plot_columns({way: spread(x) for way, x in ways.items()}, form=".1f",
             xlabel="how it is served", reference=(1, "trained for"),
             ylabel="standard deviation after the first norm",
             title="Stored statistics do not follow what you serve",
             alt="Columns and a line at one. As trained, the column "
                 "reaches the line. Without normalization, it ends far "
                 "below the line, and with images normalized twice, far "
                 "above.")

# %% [markdown] trap="07.4" role="repair"
# So the recipe has to travel with the weights. torchvision stores a recipe with each
# set of weights: `ResNet50_Weights.IMAGENET1K_V2.transforms()` returns one. Use this
# recipe instead of numbers from a tutorial. With your own weights, put the recipe into
# the model, so that `state_dict()` includes it:

# %% trap="07.4" role="repair"
class Scaled(nn.Module):
    """Normalizes its input; mean and std are saved with the model."""

    def __init__(self, model, mean, std):
        super().__init__()
        self.model = model
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x):
        return self.model((x - self.mean) / self.std)

shares = accuracy(Scaled(served, mean, std), x_test, y_test)

# %% trap="07.4" role="repair"
claim("accuracy with the recipe in the model minus accuracy on images "
      "prepared as in training",
      shares - read["as trained"], expected=0)

# %% [markdown] trap="07.4" role="more" topics="without BatchNorm · the numbers that were mixed up · torchvision's recipes"
# On these digits, BatchNorm even makes a forgotten recipe more harmful. Without
# BatchNorm, a forgotten recipe hurts the same model far less, because a plain ReLU net
# passes a scale factor on to the logits (except for the biases), and the largest logit
# usually stays the largest. The missing shift hurts both nets. It does nearly all of
# the damage in the plain net, whereas with BatchNorm, the missing scale does more
# damage than the missing shift.

# %% trap="07.4" role="more"
plain = reader_with(nn.Identity)
bare = {way: accuracy(plain, x, y_test) for way, x in ways.items()}
print(f"mean {mean:.2f}, standard deviation {std:.2f}")

# %% trap="07.4" role="more"
plot_bars({**{f"{way}, BatchNorm": share for way, share in read.items()},
           **{f"{way}, none": share for way, share in bare.items()}},
          xlabel="accuracy on the test digits",
          title="Without BatchNorm, a forgotten recipe costs less",
          alt="Eight bars. Of the four bars with BatchNorm, the one "
              "without normalization is the lowest. Without BatchNorm, the "
              "accuracy without normalization is higher.")

# %% trap="07.4" role="more"
claim("accuracy on images prepared as in training",
      read["as trained"], above=0.93)
claim("accuracy on images normalized twice minus accuracy on images not "
      "normalized",
      read["twice"]
      - read["forgotten"], above=0.05)
claim("images not normalized: accuracy without BatchNorm minus accuracy "
      "with BatchNorm",
      bare["forgotten"] - read["forgotten"], above=0.05)
claim("mean and standard deviation swapped: accuracy with BatchNorm",
      read["mixed up"], above=0.85)

# %% [markdown] trap="07.4" role="more"
# With BatchNorm, swapping the mean and the standard deviation costs little, because the
# two happen to be close to each other for these digits. So a test on a single data set
# may miss such a mistake.
#
# You can read the recipe for each of torchvision's sets of weights without downloading
# the weights:

# %% trap="07.4" role="more"
from torchvision.models import ResNet50_Weights

recipes = {w.name: w.transforms() for w in ResNet50_Weights}
for name, recipe in recipes.items():
    print(f"{name}: resize {recipe.resize_size}, mean {recipe.mean}")
sizes = [recipe.resize_size[0] for recipe in recipes.values()]

# %% trap="07.4" role="more"
claim("size in pixels to which the second ResNet-50 recipe resizes a photo",
      sizes[1],
      expected=232)

# %% [markdown] trap="07.4" role="more"
# The two sets of weights for this one architecture have two recipes. The means and
# standard deviations agree, but the sizes for resizing do not. Many tutorials use
# `256`, from the first recipe.

# %% trap="07.4" role="exercise" points=2 difficulty=2 minutes=10
def prepare(images: torch.Tensor, mean: list, std: list) -> torch.Tensor:
    """Prepare images for a pretrained model, as (N, C, H, W) in float32.

    Scale brightness to the range 0 to 1. Then subtract each channel's mean
    and divide by its std.

    Args:
        images: (N, H, W, C) uint8 in any memory order, brightness 0 to 255.
        mean, std: C floats each, of any size; every std is above 0.

    The arguments are unchanged, and a later call changes no earlier result.

    Example: a single black pixel with mean [0.5] and std [0.25] becomes -2.
    """
    # BEGIN SOLUTION
    x = images.permute(0, 3, 1, 2) / 255
    centre = torch.tensor(mean).view(-1, 1, 1)
    return (x - centre) / torch.tensor(std).view(-1, 1, 1)
    # END SOLUTION

# %% [markdown] trap="07.4" role="hint"
# 1. Start with the axes: `permute` moves the channels in front of the rows, while `reshape`
#    would mix pixels.
# 2. Then scale: convert from uint8 before you divide.
# 3. `mean` has C values. As a tensor of shape `(C, 1, 1)`, it is broadcast along the channel axis, not along the columns.

# %% [markdown] trap="07.4" role="keep"
# **Keep:** Weights without their preprocessing are half a model. Store the parameters
# of normalization and resizing with the weights, and apply each of the two steps
# exactly once. **In your own code:** Before the first deployment, run one labelled
# image through the serving path and compare the input tensor with the tensor used in
# training. **Source:** [torchvision, Models and pre-trained
# weights](https://docs.pytorch.org/vision/stable/models.html), "Using the pre-trained
# models".

# %% [markdown] trap="07.5" role="situation" fault="channels_last changes the strides, not the shape" symptom="channels_last: permute changes the shape, memory format is strides; no speedup on CPU"
# ## Channels last
#
# The PyTorch tutorial says that convolutions on tensor cores run faster if photos are
# stored with the channels last. Your first try, `x = x.permute(0, 2, 3, 1)` in front of the
# net, fails, because the first layer now gets as many channels as the photo has rows.
# So you move the channels to the end, call `contiguous()`, and move the channels back.
# A reviewer comments: "These two permutations cancel, so the three calls do nothing."
# Then you find torch's own call, `to(memory_format=torch.channels_last)`, which also
# converts a model.

# %% trap="07.5" role="break"
batch = torch.arange(2 * 3 * 4 * 5.).view(2, 3, 4, 5)   # (N, C, H, W)
there = batch.permute(0, 2, 3, 1).contiguous()
back = there.permute(0, 3, 1, 2)

# %% trap="07.5" role="break"
def formats(net, x):
    """True where a layer's output has its channels last in memory."""
    found = []
    for layer in net:
        x = layer(x)
        found.append(x.stride(1) == 1)
    return found

layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
photos = torch.rand(2, 3, 16, 16)
plain = formats(layers, photos)

# %% trap="07.5" role="guess" quoted="wrong"
guess("07.5",
      "If you convert only the model, not the photos, how many of its "
      "three layers return their output with the channels last?",
      unit="layers")

# %% trap="07.5" role="look"
print("shape  ", tuple(batch.shape), "->", tuple(back.shape))
print("strides", batch.stride(), "->", back.stride())
official = batch.to(memory_format=torch.channels_last)
print("to(memory_format=torch.channels_last):", official.stride())

# %% trap="07.5" role="look"
pixel = torch.full((3, 2, 2), 0.2)               # (C, H, W)
pixel[:, 0, 0] = 1
draw_grids({"twelve values in memory": torch.stack(
                [pixel.flatten(), pixel.permute(1, 2, 0).flatten()])},
           row_names=["channels first", "channels last"],
           captions={"twelve values in memory":
                     "dark: the three channels of the first pixel"},
           title="The same photo, in a different order in memory",
           alt="Two rows of twelve cells for a photo of 2 x 2 pixels. "
               "The three channels of the first pixel are four cells apart "
               "in the first row and side by side in the second.")

# %% trap="07.5" role="look"
claim("stride of the channel axis after a conversion by hand or by torch, "
      "whichever is larger",
      max(back.stride(1), official.stride(1)), expected=1)

# %% [markdown] trap="07.5" role="why"
# A tensor's *strides* say, axis by axis, how many values apart two neighbours are in
# memory. With the channels last, the channels of a pixel are side by side, so the
# stride of the channel axis is 1. The shape stays (N, C, H, W), so convolutions work as
# before. `permute` alone changes the shape but moves nothing in memory; your call of
# `.contiguous()` moved the values.
#
# torch has one call for the whole conversion, `to(memory_format=...)`, which works on a
# batch or on a model. Some layers pass the format on, but others do not, so check the
# outputs layer by layer.

# %% trap="07.5" role="repair"
data = formats(layers, photos.to(memory_format=torch.channels_last))
model_only = formats(layers.to(memory_format=torch.channels_last), photos)
print(f"the batch converted: {data}, the model: {model_only}")

# %% trap="07.5" role="repair"
measured("07.5", sum(model_only), right=(3, 3))

# %% trap="07.5" role="repair"
draw_grids({"channels last in memory": torch.tensor(
                [plain, data, model_only])},
           row_names=["neither moved", "the batch", "the model"],
           column_names=["conv 1", "ReLU", "conv 2"],
           title="Converting the batch or the model converts the whole "
                 "chain",
           alt="A grid of three rows and three layers. The row for neither "
               "of the two is empty. The rows for the batch and for the "
               "model are filled.")

# %% trap="07.5" role="repair"
claim("number of layers with a channels-last output if only the model is "
      "converted",
      sum(model_only), expected=3)

# %% [markdown] trap="07.5" role="more" topics="exceptions · what it is worth · the other counts"
# There are exceptions: a convolution with circular padding does not pass the format
# on, and `view` cannot join axes that are no longer side by side. With one channel or
# with 1 x 1 pixels, both formats have the same order in memory. How much time the
# channels-last format saves on a GPU or a CPU depends on the layer and the machine. The
# GPU section measures the saving with tensor cores and 16 bits.

# %% trap="07.5" role="more"
claim("number of the batch's values that change when the channels are "
      "moved",
      (batch != back).sum(),
      expected=0)
claim("stride of the channel axis before the channels were moved",
      batch.stride(1), expected=20)
claim("number of layers with a channels-last output if nothing is "
      "converted",
      sum(plain), expected=0)
claim("number of layers with a channels-last output if only the batch is "
      "converted", sum(data),
      expected=3)

# %% trap="07.5" role="exercise" points=2 difficulty=2 minutes=10
def layout(shape: tuple, strides: tuple) -> str:
    """Name the dense memory layout of a tensor with axes (N, C, H, W).

    Returns:
        "NCHW": torch's default, with W innermost.
        "NHWC": channels last, with C innermost.
        "both": the strides fit both layouts.
        "neither": the strides fit neither.

    An axis of length 1 has a single entry, so its stride does not matter.
    No axis has length 0.

    Example: shape (2, 3, 4, 5) with strides (60, 1, 15, 3) gives "NHWC".
    """
    # BEGIN SOLUTION
    def dense(order):
        step = 1
        for axis in order:
            if shape[axis] > 1 and strides[axis] != step:
                return False
            step *= shape[axis]
        return True
    first, last = dense((3, 2, 1, 0)), dense((1, 3, 2, 0))
    if first and last:
        return "both"
    if first:
        return "NCHW"
    return "NHWC" if last else "neither"
    # END SOLUTION

# %% [markdown] trap="07.5" role="hint"
# 1. In a dense layout, the innermost axis has stride 1, and the stride of every other axis is the product of the lengths of all axes inside it.
# 2. From the inside out, the axes are W, H, C, N in the layout "NCHW", and C, W, H, N in "NHWC".
# 3. Do not compare the stride of an axis of length 1. Test both layouts, then name the
#    four outcomes.

# %% [markdown] trap="07.5" role="keep"
# **Keep:** The memory format is a matter of strides, not of shape. To change the
# order in memory, use `to(memory_format=torch.channels_last)`; to change the order of the
# axes, use `permute`. **In your own code:** Print `stride(1)` of a layer's output.
# **Source:** PyTorch tutorial, [Channels Last Memory
# Format](https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html).

# %% [markdown] trap="07.6" role="situation" fault="layer-wise rates counted by tensor, not by layer" symptom="layer-wise learning rate decay: rates explode, wrong exponent from parameter index"
# ## A rate for each layer
#
# Lower layers are said to hold general features, so you give them smaller rates: each
# layer gets 0.9 times the rate of the layer above it. A helper function from a handbook
# goes through `named_parameters()`, counts the tensors and gives tensor `i` the rate
# `0.9 ** (n_layers - i)`. The model has an embedding, 12 encoder layers of 12 tensors
# each, and a head, and `n_layers` is the number of the model's children. The base rate
# is 1, so you can read the rates as factors.

# %% trap="07.6" role="break"
class Encoder(nn.Module):
    """An embedding, 12 transformer layers and a head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList([
            nn.TransformerEncoderLayer(8, 2, 16) for _ in range(12)])
        self.head = nn.Linear(8, 4)

encoder = Encoder()
names = [name for name, _ in encoder.named_parameters()]
n_layers = len(list(encoder.children()))
rates = {name: 0.9 ** (n_layers - i) for i, name in enumerate(names)}

# %% trap="07.6" role="guess"
guess("07.6",
      "What is the rate of the head's weight, as a multiple of the base "
      "rate?",
      unit="times")

# %% trap="07.6" role="look"
measured("07.6", rates["head.weight"], right=(1_500_000, 4_500_000))

# %% trap="07.6" role="look"
above = sum(rate > 1 for rate in rates.values())

# %% trap="07.6" role="look"
shown = {"embed": "embed.weight",
         **{f"layer {k}": f"layers.{k}.linear1.weight"
            for k in (0, 3, 6, 9, 11)}, "head": "head.weight"}
plot_bars({place: rates[name] for place, name in shown.items()}, log=True,
          xlabel="factor of the base rate",
          title="The helper gives the head three million times the base "
                "rate",
          alt="Bars on a log scale rise in even steps, from below 1 for "
              "the embedding to three million for the head.")

# %% trap="07.6" role="look"
claim("with the helper: the head's rate, as a multiple of the base rate",
      rates["head.weight"], above=1000)

# %% [markdown] trap="07.6" role="why"
# Both counts are wrong. `n_layers` counts the model's three children, not its 12
# layers. `i` counts *tensors*, 12 per layer. So the exponent reaches zero at the fourth
# tensor, and every later tensor gets a rate above the base rate.

# %% trap="07.6" role="why"
plot_lines(range(len(names)),
           {"i": list(range(len(names))),
            "its layer": [0, *(1 + i // 12 for i in range(144)), 13, 13]},
           xlabel="tensor in named_parameters()", ylabel="count",
           title="146 is not a layer number",
           alt="Two lines over the 147 tensors. The index climbs to 146, "
               "and the layer number climbs in twelve steps to 13.")

# %% [markdown] trap="07.6" role="repair"
# In an optimizer, a learning rate belongs to a parameter group, so put each tensor into
# a group of its own:
#
# ```python
# groups = [{"params": [p], "lr": base * rates[name]}
#           for name, p in encoder.named_parameters()]
# opt = torch.optim.AdamW(groups)
# ```
#
# A tensor's depth is in its name. The embedding is at the bottom, the layers `layers.k`
# are above it, and everything else is at the top:

# %% trap="07.6" role="repair"
def depth_of(name):
    """0 for the embedding, k + 1 for layers.k, 13 for the rest."""
    if name.startswith("embed."):
        return 0
    if name.startswith("layers."):
        return int(name.split(".")[1]) + 1
    return 13

rates = {name: 0.9 ** (13 - depth_of(name)) for name in names}

# %% trap="07.6" role="repair"
plot_columns({place: rates[name] for place, name in shown.items()},
             xlabel="part of the model", ylabel="factor of the base rate",
             form=".2f", title="By depth, the head has the base rate",
             alt="Seven columns that climb from a quarter for the "
                 "embedding to one for the head.")

# %% trap="07.6" role="repair"
claim("with rates by depth: the head's rate, as a multiple of the base "
      "rate",
      rates["head.weight"], expected=1)

# %% [markdown] trap="07.6" role="more" topics="how many are above the base rate · the two ends by depth"
# With the helper, all except four tensors have a rate above the base rate. With rates
# by depth, no tensor has such a rate.

# %% trap="07.6" role="more"
claim("with the helper: number of tensors whose rate is not above the base "
      "rate",
      len(names) - above, expected=4)
claim("with rates by depth: the embedding's rate, which is 0.9 to the "
      "power of 13",
      rates["embed.weight"], expected=0.9**13, within=1e-9)
claim("with rates by depth: the largest rate of any tensor",
      max(rates.values()), expected=1)

# %% trap="07.6" role="exercise" points=3 difficulty=2 minutes=10
def layer_rates(names: list[str], base: float, decay: float) -> dict:
    """Return the learning rate of each parameter, by its name.

    The rate is base * decay ** steps, with decay >= 0. The last layer has 1
    step, the layer before it has 2 steps, and so on. The names of layer k
    begin with "layers.k.", for k = 0, 1, 2 ... without gaps. Names that
    begin with "embed." have one step more than layer 0, or 1 step if there
    are no layers. Every other name has 0 steps. Such names include
    "embedding.w" and "layers.norm.w".

    Names come in any order. The last layer has 1 step even if no name has 0
    steps. The list is unchanged.

    Example: ["embed.w", "layers.0.w", "head.w"] with base 1 and decay 0.5
    get 0.25, 0.5 and 1.
    """
    # BEGIN SOLUTION
    def layer(name):
        parts = name.split(".")
        inside = parts[0] == "layers" and len(parts) > 2
        return int(parts[1]) if inside and parts[1].isdigit() else -1
    n_layers = len({layer(name) for name in names} - {-1})
    steps = {}
    for name in names:
        inside = layer(name) >= 0 or name.startswith("embed.")
        steps[name] = n_layers - layer(name) if inside else 0
    return {name: base * decay**step for name, step in steps.items()}
    # END SOLUTION

# %% [markdown] trap="07.6" role="hint"
# 1. Find the number of layers first: the largest `k` in any `layers.k.`, plus one. `k` can have two digits.
# 2. Count the steps down from the top: 0 for the head, 1 for the highest layer, and the number of layers plus one for the embedding.
# 3. Look only at the beginning of the name: `head.layers.0.w` belongs to the head, and so does `layers.norm.w`, which has no number.

# %% [markdown] trap="07.6" role="keep"
# **Keep:** Compute a layer's rate from its depth in the model, and read the depth from
# the layer's name. Never use an index into `parameters()`, because such an index counts
# tensors. **In your own code:** Print each group's rate next to the name of its first
# tensor. Assert that the head has the base rate and that the highest layer has the next
# lower rate. **Source:** [Clark et al. 2020,
# "ELECTRA"](https://arxiv.org/abs/2003.10555), appendix on fine-tuning, with layer-wise
# decay. **Seen in the wild:**
# [google-research/electra#51](https://github.com/google-research/electra/issues/51): a
# layer was removed but was still counted, so all layers had rates one step too low.

# %% [markdown] trap="07.7" role="situation" core=true fault="BatchNorm statistics move in a frozen body" symptom="frozen backbone still changes: BatchNorm running statistics move with requires_grad False"
# ## A frozen body on new data
#
# A small convolutional net gets nearly all of the digits 0 to 4 right. For the digits 5
# to 9, which come from another scanner, you freeze the net's body and train a new head.
# You keep the old head. Later, a customer needs the old net again, so you put the old
# head back on the body and classify the digits 0 to 4 from the old scanner.

# %% trap="07.7" role="break"
def conv_body():
    """From images (N, 1, 8, 8) to features (N, 64)."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16),
        nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())

eyes, old_head = conv_body(), nn.Linear(64, 5)
fit(nn.Sequential(eyes, old_head), images[low], y_train[low], steps=200,
    lr=1e-2)

def old_score(body):
    return accuracy(nn.Sequential(body, old_head), images_test[low_test],
                    y_test[low_test])

# %% trap="07.7" role="break"
frozen = copy.deepcopy(eyes).requires_grad_(False)
score_before = old_score(frozen)
state = copy.deepcopy(frozen.state_dict())
model = nn.Sequential(frozen, nn.Linear(64, 5))
brighter, labels = 3 * images[~low] + 1, y_train[~low] - 5
losses = fit(model, brighter, labels, steps=100, lr=1e-2)

# %% trap="07.7" role="guess"
guess("07.7",
      "After the training, what accuracy do the frozen body and the old "
      "head reach together on the digits 0 to 4?",
      choices=["more than 90 %",
               "less than 70 %",
               "between 70 and 90 %"])

# %% trap="07.7" role="look"
changed = [name for name, now in frozen.state_dict().items()
           if not torch.equal(now, state[name])]
print("changed:", *changed, sep="\n  ")
print("accuracy on the old digits: "
      f"{score_before:.2f} -> {old_score(frozen):.2f}")

# %% trap="07.7" role="look"
measured("07.7", 1)

# %% trap="07.7" role="look"
claim("accuracy lost on the old digits with the body in train mode",
      score_before - old_score(frozen),
      above=0.3)

# %% [markdown] trap="07.7" role="why"
# `requires_grad` affects only gradients. BatchNorm's running mean and variance are
# buffers (trap 05.5), which have no gradients, and every pass in train mode updates
# them, even under `torch.no_grad()`. The norm layers of the body now describe the new
# scanner.

# %% trap="07.7" role="why"
def stored(kept, channel):
    """What the first norm stores for a channel, as a range and a mean."""
    m = kept["1.running_mean"][channel].item()
    s = kept["1.running_var"][channel].sqrt().item()
    return [(m - s, m + s, ""), (m, "mean")]

after = frozen.state_dict()
move = (after["1.running_mean"] - state["1.running_mean"]).abs().argmax()
draw_line({"from the old scanner": stored(state, move),
           "after training on the new": stored(after, move)},
          title="A frozen norm adapts to the new scanner",
          alt="Two ranges on a number line: the mean and the standard "
              "deviation that the first norm stores for one channel. "
              "After training the range has moved and is wider.")

# %% [markdown] trap="07.7" role="repair"
# Eval mode stops the updates. But `model.train()`, which many training loops call at
# the start of an epoch, reaches every submodule and puts the body back into train mode.
# So either call `body.eval()` after each `train()`, or make the body keep its mode, as
# the exercise asks:

# %% trap="07.7" role="repair"
def trained(keep_eval):
    """The body after two epochs; eval() before both or inside each."""
    body = copy.deepcopy(eyes).requires_grad_(False).eval()
    model = nn.Sequential(body, nn.Linear(64, 5))
    optimizer = torch.optim.Adam(model[1].parameters(), lr=1e-2)
    for _ in range(2):
        model.train()
        if keep_eval:
            body.eval()
        for x, y in zip(brighter.split(64), labels.split(64), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return body

# %% trap="07.7" role="repair"
once, always = old_score(trained(False)), old_score(trained(True))

# %% trap="07.7" role="repair"
plot_bars({"before training": score_before,
           "train mode": old_score(frozen), "eval() once": once,
           "eval() after each train()": always},
          xlabel="accuracy on the old digits",
          title="eval() after each train() freezes the body",
          alt="Four bars. The accuracy is the same before training and "
              "with eval after each train. In train mode, and with eval "
              "called once, it is lower.")

# %% trap="07.7" role="repair"
claim("accuracy lost on the old digits with eval() called after each "
      "train()",
      score_before - always, expected=0)

# %% [markdown] trap="07.7" role="more" topics="what moved and what did not · eval() once"
# A test that compares only the body's weights would pass, because it ignores the
# buffers, that is, the mean, the variance and the batch count of each norm layer.

# %% trap="07.7" role="more"
weights = [name for name, _ in frozen.named_parameters()]
claim("number of the body's weight tensors that changed",
      len({*changed} & {*weights}),
      expected=0)
claim("number of the body's buffers that changed", len(changed), expected=6)
claim("accuracy lost on the old digits with eval() called once",
      score_before - once,
      above=0.05)

# %% trap="07.7" role="exercise" points=3 difficulty=3 minutes=15
def freeze(body: nn.Module) -> None:
    """Freeze a module for good, in place.

    None of the body's parameters requires a gradient. The body always
    computes as in eval mode. Putting the body, or a model that contains it
    at any depth, into train mode later, once or many times, does not change
    how the body computes. The body's parameters and buffers keep their
    values.

    You call the body as before, and gradients still flow through it to its
    input. train() and eval() still return the body. Other modules, even of
    the same class, are not affected.
    """
    # BEGIN SOLUTION
    body.requires_grad_(False)
    body.eval()
    body.train = lambda mode=True: body
    # END SOLUTION

# %% [markdown] trap="07.7" role="hint"
# 1. There are two switches, one on the tensors and one on the modules. Every `model.train()` flips the second switch back.
# 2. `model.train()` calls `train` on each part of the model. What if the body's `train` did nothing?
# 3. A method is an attribute, so you can replace it with your own function on this one object. Your function takes `mode` and returns the module.

# %% [markdown] trap="07.7" role="keep"
# **Keep:** Freezing a body takes two things: no gradients, and an eval mode that
# survives `model.train()`. Without that eval mode, BatchNorm's statistics move. **In
# your own code:** Before and after an epoch, compare parameters, buffers and the
# outputs for one fixed batch. **Source:** [Keras, Transfer learning and
# fine-tuning](https://keras.io/guides/transfer_learning/), section on the
# BatchNormalization layer: in Keras, freezing this layer implies inference mode; in
# PyTorch, not. **Seen in the wild:**
# [pgniewko/gt-pyg#112](https://github.com/pgniewko/gt-pyg/issues/112): the project's
# `freeze()` set eval mode, and the next `model.train()` undid it.
# [lightly-ai/lightly#1438](https://github.com/lightly-ai/lightly/issues/1438): the
# statistics of frozen backbones kept moving; whether they should, a maintainer answered,
# depends on the model.

# %% [markdown] trap="07.8" role="situation" fault="layers in a Python list are not registered" symptom="blocks in a Python list: parameters missing, loads but predicts badly"
# ## Stem, blocks, head
#
# A digit classifier has a stem, three blocks and a head. The forward pass loops over
# the list `self.blocks`. The trained classifier gets many of the digits right. You save
# its `state_dict` and load the file into a new object of the same class, and torch
# answers `<All keys matched successfully>`.

# %% trap="07.8" role="break"
class Blocks(nn.Module):
    """A stem, three blocks and a head."""

    def __init__(self, wrap):
        super().__init__()
        self.stem, self.head = nn.Linear(64, 64), nn.Linear(64, 10)
        self.blocks = wrap([nn.Sequential(nn.Linear(64, 64), nn.ReLU())
                            for _ in range(3)])

    def forward(self, x):
        h = self.stem(x).relu()
        for block in self.blocks:
            h = block(h)
        return self.head(h)

saved = Blocks(list)
losses = fit(saved, x_train, y_train, steps=200, lr=3e-3)

# %% trap="07.8" role="guess"
guess("07.8",
      "Suppose you call `torch.manual_seed(SEED)` before you create each "
      "of the two objects. How much of the saved model's accuracy does the "
      "loaded model then lose?",
      choices=["none of it", "about half of it", "nearly all of it"])

# %% trap="07.8" role="look"
loaded = Blocks(list)
message = loaded.load_state_dict(saved.state_dict())
scores = [accuracy(net, x_test, y_test) for net in (saved, loaded)]
print(message)
print(f"accuracy: before saving {scores[0]:.2f}, loaded {scores[1]:.2f}")
count = sum(p.numel() for p in saved.parameters())
print(f"parameters: {count:,}")

# %% trap="07.8" role="look"
claim("with a list: accuracy after loading", scores[1], below=0.4)

# %% [markdown] trap="07.8" role="look"
# The loaded classifier does no better than guessing. Now set the same seed before you
# create each of the two objects:

# %% trap="07.8" role="look"
torch.manual_seed(SEED)
first = Blocks(list)
torch.manual_seed(SEED)
second = Blocks(list)
fit(first, x_train, y_train, steps=200, lr=3e-3)
second.load_state_dict(first.state_dict())
gap = accuracy(first, x_test, y_test) - accuracy(second, x_test, y_test)
print(f"same seed before both: lost in loading {gap:.2f}")

# %% trap="07.8" role="look"
measured("07.8", 0)

# %% trap="07.8" role="look"
claim("with a list: accuracy lost by loading when both models are created "
      "with the same seed",
      gap, expected=0)

# %% [markdown] trap="07.8" role="why"
# A module registers the parameters and modules that are assigned to it, but does not look
# inside a Python list. So `parameters()`, `state_dict()`, `train()` and `to(device)` miss
# the blocks. The blocks keep their random initial weights. The stem and the head learn to
# work with those weights, so the accuracy looks good. The new object has *different*
# random blocks, unless both objects start from the same seed.

# %% trap="07.8" role="why"
inside = sum(p.numel() for block in saved.blocks
             for p in block.parameters())
draw_tree({"model": f"knows {count:,}", "stem": "", "blocks": "a list",
           "head": "", "three blocks": f"{inside:,} parameters"},
          [("model", "stem"), ("model", "blocks"), ("model", "head"),
           ("blocks", "three blocks")], cuts=[("model", "blocks")],
          marks=["blocks"], cut_name="not registered",
          title="torch does not look inside a list",
          alt="A tree: the model leads to stem and head; the line to the "
              "list of blocks, which holds most parameters, is cut.")

# %% [markdown] trap="07.8" role="repair"
# `nn.ModuleList` is a list that registers its modules.

# %% trap="07.8" role="repair"
mended = Blocks(nn.ModuleList)
fit(mended, x_train, y_train, steps=200, lr=3e-3)
again = Blocks(nn.ModuleList)
again.load_state_dict(mended.state_dict())
whole = [accuracy(net, x_test, y_test) for net in (mended, again)]
hidden = sum(p.numel() for p in mended.parameters()) - count
print(f"parameters that were hidden: {hidden:,}")

# %% trap="07.8" role="repair"
plot_bars({"list, saved": scores[0], "list, loaded": scores[1],
           "ModuleList, saved": whole[0], "ModuleList, loaded": whole[1]},
          xlabel="accuracy on the test digits",
          title="A ModuleList is loaded completely, a list is not",
          alt="Four bars. With a list, the accuracy falls to a low value "
              "after loading. With a ModuleList both bars are equal.")

# %% trap="07.8" role="repair"
claim("with a ModuleList: accuracy before saving minus accuracy after "
      "loading",
      whole[0] - whole[1], expected=0)

# %% [markdown] trap="07.8" role="more" topics="tests that catch the list, and one that does not · the counts"
# Would a test have caught the list? A test that counts parameters would. So would a
# test that saves and loads the model, provided that the second object is created from a
# different state of the random number generator, as you saw.

# %% trap="07.8" role="more"
claim("with a list: accuracy before saving", scores[0], above=0.7)
claim("number of parameters that the model with a list has registered",
      count,
      expected=64 * 64 + 64 + 64 * 10 + 10)
claim("number of parameters that the list had hidden", hidden,
      expected=3 * (64 * 64 + 64))

# %% trap="07.8" role="exercise" points=3 difficulty=3 minutes=15
def hidden_values(model: nn.Module) -> int:
    """Count the parameter values that a model hides in plain containers.

    torch finds no parameters inside plain lists, tuples and dicts. Go
    through each module's own attributes and open each such container (in a
    dict, the values). Also open every container inside such a container.
    Count the values of every nn.Parameter that you find, frozen or not,
    whether it is alone or in a module. Also search the attributes of every
    module that you find. Skip the parameters that model.parameters()
    returns.

    A parameter that you find twice counts once; two parameters with equal
    values count as two. There are no cycles. The model is unchanged.

    Example: self.blocks = [nn.Linear(2, 3)] hides 9 parameter values.
    """
    # BEGIN SOLUTION
    def held(thing):
        if isinstance(thing, nn.Parameter):
            return {thing}
        if isinstance(thing, nn.Module):
            thing = vars(thing)
        if isinstance(thing, dict):
            thing = list(thing.values())
        if isinstance(thing, list | tuple):
            return set().union(*map(held, thing))
        return set()
    return sum(p.numel() for p in held(model) - set(model.parameters()))
    # END SOLUTION

# %% [markdown] trap="07.8" role="hint"
# 1. `vars(module)` is a dict of everything in a module: your attributes, and torch's own registers of parameters and modules.
# 2. Write a function that returns the set of parameters in an object and calls itself for each part of a list, tuple, dict or module.
# 3. A set holds each tensor once. Subtract `set(model.parameters())` at the end.

# %% [markdown] trap="07.8" role="keep"
# **Keep:** `parameters()`, `state_dict()` and `to()` miss tensors that are not
# registered. So assign
# parameters and modules to a module directly, or in `ModuleList`, `ModuleDict` or
# `ParameterList`, and register other tensors with `register_buffer`. **In your own
# code:** Load the file into an object created with a different seed, and compare the
# outputs. **Source:** PyTorch documentation,
# [ModuleList](https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html).
# **Seen in the wild:**
# [pytorch/pytorch#59925](https://github.com/pytorch/pytorch/issues/59925) says that
# implicit module registration "permits silent programming errors".
# [pytorch/pytorch#72580](https://github.com/pytorch/pytorch/issues/72580) reports that
# this mistake happened in a master's thesis.

# %% [markdown] trap="07.9" role="situation" fault="reshape instead of permute scrambles the image" symptom="image looks scrambled or model predicts badly after reshape from HWC to CHW"
# ## Coloured digits from a file
#
# Your pictures come as `(N, H, W, C)`, and torch wants `(N, C, H, W)`. Your
# loader calls `x.reshape(N, C, H, W)`. The shape is right and nothing fails. The digits
# are coloured and placed anywhere on a canvas of 12 x 12 pixels. You train one net on
# pictures whose axes were moved with `permute`, and a second net on what `reshape` made
# of the pictures. Each net is then served pictures that were prepared in the same way
# as its training pictures.

# %% trap="07.9" role="break"
def coloured(x, seed, side=12):
    """Digits somewhere on a canvas, two colours each; (N, H, W, 3)."""
    g = torch.Generator().manual_seed(seed)
    canvas = torch.zeros(len(x), side, side, 1)
    corners = torch.randint(side - 7, (len(x), 2), generator=g)
    for row, (top, left) in enumerate(corners.tolist()):
        canvas[row, top:top + 8, left:left + 8, 0] = x[row].view(8, 8)
    ink = 0.4 + 0.6 * torch.rand(len(x), 1, 1, 3, generator=g)
    paper = 0.4 * torch.rand(len(x), 1, 1, 3, generator=g)
    return canvas * ink + (1 - canvas) * paper

files, files_test = coloured(x_train, SEED), coloured(x_test, SEED + 50)

# %% trap="07.9" role="break"
ways_in = {"permute": lambda a: a.permute(0, 3, 1, 2).contiguous(),
           "reshape": lambda a: a.reshape(len(a), 3, 12, 12)}

def colour_reader(way):
    """A small conv net, trained on pictures loaded in this way."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveMaxPool2d(1),
        nn.Flatten(), nn.Linear(32, 10))
    fit(net, ways_in[way](files), y_train, steps=300, lr=1e-2,
        batch=32)
    return net

# %% trap="07.9" role="break"
proper, scrambled = colour_reader("permute"), colour_reader("reshape")
share = {way: accuracy(proper, turn(files_test), y_test)
         for way, turn in ways_in.items()}
consistent = accuracy(scrambled, ways_in["reshape"](files_test), y_test)

# %% trap="07.9" role="guess"
guess("07.9", "What accuracy does the net that is trained and served with "
              "`reshape` reach on the test digits?",
      choices=["about 10 %, which is guessing",
               "30 % to 90 %",
               "more than 95 %"])

# %% trap="07.9" role="look"
print(f"permute in both: {share['permute']:.2f}")
print(f"reshape in both: {consistent:.2f}")

# %% trap="07.9" role="look"
measured("07.9", 1)

# %% trap="07.9" role="look"
claim("accuracy with reshape in both training and serving",
      consistent, above=0.3,
      below=0.9)

# %% [markdown] trap="07.9" role="look"
# The net trained on scrambled pictures does far better than guessing, though worse than
# the net trained with `permute`. Nothing in its loss reveals the mistake. The accuracy
# collapses if training and serving differ, for example when the net trained with
# `permute` gets scrambled pictures:

# %% trap="07.9" role="look"
claim("accuracy of the net trained with permute when served with reshape",
      share["reshape"],
      below=0.3)

# %% trap="07.9" role="look"
plot_columns({"permute, both": share["permute"],
              "reshape, both": consistent,
              "reshape, serving": share["reshape"]}, form=".2f",
             xlabel="axes moved by", ylabel="accuracy on the test digits",
             reference=(0.1, "guessing"),
             title="The same mistake on both sides stays hidden",
             alt="Three columns and a line at guessing. With permute in "
                 "training and serving, the accuracy is highest. With "
                 "reshape in both, it is lower, and with reshape only in "
                 "serving, it is near the line.")

# %% [markdown] trap="07.9" role="why"
# `reshape` leaves the values in index order (here, the order in memory) and only divides
# this sequence in different places. So the first "channel" holds the top third of the
# picture, with each pixel's colours side by side as if they were pixels. `permute`
# moves the channel axis.

# %% trap="07.9" role="why"
k = files_test[:, :4].std((1, 2)).sum(1).argmax()    # most ink on top
one = files_test[k:k + 1]
one = (one - one.min()) / (one.max() - one.min())
draw_grids({way: turn(one)[0, 0] for way, turn in ways_in.items()},
           captions={"permute": "the red of each pixel",
                     "reshape": "the top third, torn apart"},
           title="The first channel of one digit, by permute and by "
                 "reshape",
           alt="Two grids of 12 x 12. With permute you can see a digit. "
               "With reshape there are stripes and no digit.")

# %% [markdown] trap="07.9" role="repair"
# For a short test that shows the difference, take a picture whose values count up from
# 0:

# %% trap="07.9" role="repair"
tiny = torch.arange(12).reshape(1, 2, 2, 3)      # pixel 0 is (0, 1, 2)
print("channel 0 by permute:", tiny.permute(0, 3, 1, 2)[0, 0].tolist())
print("channel 0 by reshape:", tiny.reshape(1, 3, 2, 2)[0, 0].tolist())

# %% trap="07.9" role="repair"
claim("second value of channel 0 after permute, which comes from pixel 1",
      tiny.permute(0, 3, 1, 2)[0, 0, 0, 1], expected=3)

# %% [markdown] trap="07.9" role="repair"
# The net trained with `permute` does well if it is also served with `permute`:

# %% trap="07.9" role="repair"
claim("accuracy with permute in both training and serving",
      share["permute"], above=0.6)

# %% [markdown] trap="07.9" role="more" topics="what the scrambling cost · the other number"
# The first claim below shows how much accuracy the scrambling cost. If the net with
# `permute` happens to train badly, it may be no better than the net with `reshape`. In
# a test with fifty seeds, the net with `permute` was worse once, by 0.6 percentage
# points.

# %% trap="07.9" role="more"
claim("in both training and serving: accuracy with permute minus accuracy "
      "with reshape",
      share["permute"] - consistent, above=-0.02)
claim("second value of channel 0 after reshape, which comes from pixel 0",
      tiny.reshape(1, 3, 2, 2)[0, 0, 0, 1], expected=1)

# %% [markdown] trap="07.9" role="folklore"
# **Told:** With its axes in the wrong order, a net can only guess. **Measured:** True
# here if training and serving use different orders. If both use the same wrong
# order, this net usually loses some accuracy on digits placed anywhere, but stays far
# above guessing. How much accuracy the net loses depends on the seed.

# %% trap="07.9" role="exercise" points=2 difficulty=1 minutes=5
def to_nchw(a: torch.Tensor) -> torch.Tensor:
    """Move the channels to the front: out[n, c, h, w] is a[n, h, w, c].

    Args:
        a: (N, H, W, C) of any dtype, size and memory order. a is unchanged.

    Returns:
        A contiguous tensor of the same dtype. The tensor has memory of its
            own, to which no later call writes.

    Example: a single pixel (0, 1, 2) becomes three channels of one pixel.
    """
    # BEGIN SOLUTION
    first = a.permute(0, 3, 1, 2)
    return first.clone(memory_format=torch.contiguous_format)
    # END SOLUTION

# %% [markdown] trap="07.9" role="hint"
# 1. Only the axes change places, and the values are not regrouped. Write down where each of the four axes goes.
# 2. `permute` returns a view with different strides. Which call always makes a copy whose order in memory matches its shape?

# %% [markdown] trap="07.9" role="keep"
# **Keep:** `permute` moves axes; `reshape` keeps their sequence and cuts it anew. A
# right shape proves nothing, so check the values. **In your own code:** Convert one
# picture and look at a single channel, or test with a tensor that counts up.
# **Source:** PyTorch documentation,
# [torch.permute](https://docs.pytorch.org/docs/stable/generated/torch.permute.html).
# **Seen in the wild:**
# [jeya-maria-jose/TransWeather#2](https://github.com/jeya-maria-jose/TransWeather/issues/2):
# `view` put the images into the wrong axis order just before the metric computed their
# brightness.
# [Selen-Suyue/DensePolicy2D#3](https://github.com/Selen-Suyue/DensePolicy2D/issues/3):
# convolutions ran over what the reporter calls a "pretend image".

# %% [markdown] trap="07.10" role="situation" core=true fault="head replaced after the optimizer was made" symptom="loss does not fall after replacing the head; optimizer holds old parameters"
# ## A new head
#
# You create an Adam optimizer for all weights of the classifier, and only then remember
# that the head was trained on the old digits. So you replace the head with a fresh
# `nn.Linear` and train for 200 steps on the new digits. Nothing is frozen. A warning
# from your own audit script appears in the log: "The optimizer does not hold
# head.weight and head.bias. Both tensors will stay as random as they are now."

# %% trap="07.10" role="break"
xs, ys = x_train[~low], y_train[~low] - 5         # all the new digits
xt, yt = x_test[~low_test], y_test[~low_test] - 5

def train(model, optimizer, steps=200):
    """Cross-entropy on all new digits, before each step and at the end."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(xs), ys)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, F.cross_entropy(model(xs), ys).item()]

# %% trap="07.10" role="break"
free = copy.deepcopy(teacher)
optimizer = torch.optim.Adam(free.parameters(), lr=1e-2)
free.head = nn.Linear(64, 5)
start = free.head.weight.detach().clone()
free_losses = train(free, optimizer)

# %% trap="07.10" role="guess" quoted="right"
guess("07.10",
      "What accuracy does the classifier reach on the new test digits "
      "after the 200 steps?", unit="%")

# %% trap="07.10" role="look"
free_reads = accuracy(free, xt, yt)
shift = (free.head.weight - start).abs().max()
print(f"accuracy on the new digits: {free_reads:.2f}")
print(f"largest move of a weight in the head: {shift:.1f}")

# %% trap="07.10" role="look"
measured("07.10", 100 * free_reads, right=(85, 100))

# %% trap="07.10" role="look"
claim("largest change in a weight of the new head", shift, expected=0)

# %% [markdown] trap="07.10" role="look"
# The classifier gets nearly all new digits right with a head that is as random as at
# the start, because the body has adapted to that head. The loss hides that the head was
# never trained. Freeze the body, and the same mistake is plain to see:

# %% trap="07.10" role="look"
late = copy.deepcopy(teacher)
late.body.requires_grad_(False)
optimizer = torch.optim.Adam(late.parameters(), lr=1e-2)
late.head = nn.Linear(64, 5)
stuck = train(late, optimizer)
print(f"loss before {stuck[0]:.4f}   after 200 steps {stuck[-1]:.4f}")

# %% trap="07.10" role="look"
claim("change in the loss over 200 steps with a frozen body",
      stuck[0] - stuck[-1],
      expected=0)

# %% [markdown] trap="07.10" role="why"
# An optimizer keeps the list of tensors that it was created with. The new head is not
# in that list, whereas the old head still is, although no model uses it. The old head's
# gradient stays `None`, so each step skips the old head (stage 4).

# %% trap="07.10" role="why"
draw_blocks({"the model runs": ["body", "new head"],
             "the optimizer holds": [("body", "old head")]},
            marks={"the optimizer holds": ["old head"]},
            captions={"the model runs": "no optimizer steps the new head",
                      "the optimizer holds": "no model runs the old head"},
            title="Two lists that no longer agree",
            alt="Two diagrams. The model runs the body, then the new head; "
                "the optimizer holds the body and the old head, which is "
                "marked.")

# %% [markdown] trap="07.10" role="repair"
# Create the optimizer last. Then take one step and list the tensors that changed. This
# audit is short.

# %% trap="07.10" role="repair"
def moved(model, optimizer):
    """Names of the tensors that one step changes, including buffers."""
    before = copy.deepcopy(model.state_dict())
    optimizer.zero_grad()
    F.cross_entropy(model(xs), ys).backward()
    optimizer.step()
    return [name for name, now in model.state_dict().items()
            if not torch.equal(now, before[name])]

fresh = copy.deepcopy(late)
fresh_optimizer = torch.optim.Adam(fresh.head.parameters(), lr=1e-2)
still = moved(late, optimizer)
print("head after the optimizer:", still)
print("optimizer after the head:", moved(fresh, fresh_optimizer))
falling = train(fresh, fresh_optimizer)

# %% trap="07.10" role="repair"
plot_lines(range(201), {"head last": stuck, "optimizer last": falling,
                        "head last, body free": free_losses},
           xlabel="step", ylabel="loss on the new digits",
           title="An optimizer made before the head misses it",
           alt="Loss over 200 steps. With the body frozen and the head put "
               "in last, the loss is a level line. With the optimizer made "
               "last, the loss falls. It falls most with the body free, "
               "although the head never moves.")

# %% trap="07.10" role="repair"
claim("decrease in the loss over 200 steps when the optimizer is created "
      "last",
      falling[0] - falling[-1],
      above=0.3)

# %% [markdown] trap="07.10" role="more" topics="accuracy with a frozen and a free body · what moves · weight decay on frozen tensors"
# With the body free, the classifier gets nearly all new digits right; with the body
# frozen, it can only guess:

# %% trap="07.10" role="more"
claim("accuracy on the new digits with a trainable body and a head that "
      "never changed",
      free_reads, above=0.85)
claim("accuracy on the new digits with a frozen body",
      accuracy(late, xt, yt),
      below=0.5)
claim("number of tensors that one step changes if the head is replaced "
      "last",
      len(still), expected=0)

# %% [markdown] trap="07.10" role="folklore"
# **Told:** Weight decay moves frozen tensors that an optimizer still holds. [MoCo's
# thread](https://github.com/facebookresearch/moco/issues/14) says that SGD does not move
# frozen tensors. **Measured:** Frozen tensors do not move while their gradient is `None`,
# because SGD with momentum, Adam and AdamW skip such tensors. After
# `requires_grad_(False)` and today's `zero_grad()`, the gradient is `None`. If the
# gradient holds *zeros*, for example because it was masked, all three optimizers decay
# the tensor. SGD and Adam add the decay to the gradient and step with the sum; AdamW
# multiplies the tensor by `1 - lr * weight_decay` at each step.

# %% trap="07.10" role="folklore"
def drift(make, zeros):
    """Relative change in a frozen tensor's norm after 100 steps."""
    frozen = nn.Parameter(torch.ones(8), requires_grad=False)
    optimizer = make([frozen])
    for _ in range(100):
        frozen.grad = torch.zeros(8) if zeros else None
        optimizer.step()
    return float((frozen.norm() / 8**0.5 - 1).abs())

makers = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.1),
    "Adam": lambda p: torch.optim.Adam(p, 3e-3, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, 3e-3, weight_decay=0.1)}
for name, make in makers.items():
    print(f"{name:5} None: {drift(make, False):.3f}"
          f"   zeros: {drift(make, True):.3f}")

# %% trap="07.10" role="folklore"
claim("largest drift of a frozen tensor with a gradient of None",
      max(drift(make, False) for make in makers.values()), expected=0)
claim("drift of a frozen tensor with AdamW and a gradient of zeros, 1 - (1 "
      "- 3e-4)^100",
      drift(makers["AdamW"], True), expected=1 - (1 - 3e-4)**100,
      within=1e-4)

# %% trap="07.10" role="exercise" points=4 difficulty=3 minutes=15
def audit(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    """Report the mismatches between a model and its optimizer.

    Returns:
        "missing": sorted names of the trainable parameters that no group
            holds.
        "ghosts": how many tensors in the groups are not parameters of the
            model.
        "frozen": sorted names of the parameters that a group holds although
            their requires_grad is False.

    Check every group. Compare tensors by identity, not by value. A
    parameter with two names is reported under the name that
    named_parameters() returns. The model and the optimizer are unchanged.

    Example: if the head was replaced after the optimizer was made for the
    whole model, the head's two names are missing, and there are two ghosts.
    """
    # BEGIN SOLUTION
    held = [p for group in optimizer.param_groups for p in group["params"]]
    held_ids = {id(p) for p in held}
    own = {id(p): name for name, p in model.named_parameters()}
    named = dict(model.named_parameters())
    return {
        "missing": sorted(name for name, p in named.items()
                          if p.requires_grad and id(p) not in held_ids),
        "ghosts": sum(id(p) not in own for p in held),
        "frozen": sorted(name for name, p in named.items()
                         if not p.requires_grad and id(p) in held_ids)}
    # END SOLUTION

# %% [markdown] trap="07.10" role="hint"
# 1. First collect the optimizer's tensors: every group of `optimizer.param_groups` has a list under `"params"`.
# 2. Compare by `id`, or with sets of tensors, because `==` on tensors compares values.
# 3. Each entry answers one question: which trainable tensors are in no group, which tensors in a group are not in the model, and which tensors in a group are frozen?

# %% [markdown] trap="07.10" role="keep"
# **Keep:** An optimizer knows tensors, not models. Replace layers first, freeze second,
# and create the optimizer last; then list the tensors that a single step moves. **In
# your own code:** After any change to the model, compare the model's trainable tensors
# with the tensors in `param_groups`, by identity. **Source:** PyTorch documentation,
# [torch.optim](https://docs.pytorch.org/docs/stable/optim.html), "Constructing it".
# **Seen in the wild:**
# [microsoft/nni#4521](https://github.com/microsoft/nni/issues/4521): pruning replaced
# the layers, and fine-tuning changed nothing until a new optimizer was created.
# [huggingface/diffusers#1009](https://github.com/huggingface/diffusers/issues/1009):
# embeddings were "frozen" by setting their gradients to zero, and AdamW decayed them.

# %% [markdown] trap="07.11" role="situation" fault="view(-1, n) folds pixels into the batch" symptom="more predictions than images: view(-1, n) folds pixels into the batch"
# ## Larger images
#
# A small net classifies 8 x 8 digits well. Its head takes 64 values, one for each of 2
# x 2 positions in 16 channels, and `view(-1, 64)` puts these values into a row. A new
# scanner delivers the same 497 test digits as 16 x 16 pixels. You run the unchanged net
# on all 497. A forum answer says: "Convolutions take images of any size, so the net
# will run as it is."

# %% trap="07.11" role="break"
class Viewer(nn.Module):
    """Convolutions, then a head that expects 64 values per row."""

    def __init__(self, flat):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.flat, self.head = flat, nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.flat(self.features(x)))

viewer = Viewer(lambda h: h.view(-1, 64))
fit(viewer, images, y_train, steps=200, lr=1e-2)
large = F.interpolate(images_test, scale_factor=2)    # (497, 1, 16, 16)

# %% trap="07.11" role="guess" quoted="right"
guess("07.11", "How many predictions does the net return?",
      choices=["none: it raises an error",
               "497",
               "1,988",
               "7,952"])

# %% trap="07.11" role="look"
measured("07.11", 2)

# %% trap="07.11" role="look"
with torch.no_grad():
    predictions = viewer(large).argmax(1)
pairs = list(zip(predictions, y_test, strict=False))
right = sum(int(p == y) for p, y in pairs) / len(pairs)
print(f"8 x 8: {accuracy(viewer, images_test, y_test):.2f} right")
print(f"16 x 16: {len(predictions):,} predictions for {len(large)} images")
print(f"paired by zip: {right:.2f} right")

# %% trap="07.11" role="look"
claim("number of predictions for 497 images",
      len(predictions), expected=1988)

# %% [markdown] trap="07.11" role="why"
# With 4 x 4 positions, each image's map holds four times 64 values. `view(-1, 64)`
# makes rows of 64 values, however many rows that takes, so each image becomes four
# rows. An error comes only later, for example in a loss or an `==` with the labels, far
# from the cause.

# %% trap="07.11" role="why"
draw_blocks({"view(-1, 64)": ["497, 16, 4, 4", "1988, 64", "1988, 10"],
             "flatten(1)": ["497, 16, 4, 4", "497, 256", "error"],
             "pool, flatten": ["497, 16, 4, 4", "497, 16, 2, 2",
                               "497, 64", "497, 10"]},
            marks={"view(-1, 64)": ["1988, 64", "1988, 10"]},
            title="view(-1, 64) makes four rows of each of 497 images",
            alt="Three columns of shapes. View makes 1988 rows of 64 and "
                "as many predictions, which are marked. Flatten makes rows "
                "of 256 and an error. With pooling before flatten, there "
                "are 497 predictions.")

# %% [markdown] trap="07.11" role="repair"
# `flatten(1)` says what you mean: one row for each image in the batch, however large
# the image is. Now the program stops at the head, with an error message that names both
# widths:

# %% trap="07.11" role="repair"
viewer.flat = lambda h: h.flatten(1)
try:
    viewer(large)
    said = ""
except RuntimeError as error:
    said = str(error)
print("flatten(1):", said)

# %% trap="07.11" role="repair"
claim("the error message names both widths, 256 and 64",
      "497x256 and 64x10" in said, expected=True)

# %% [markdown] trap="07.11" role="repair"
# To accept images of other sizes, pool the map to a fixed size before flattening it:

# %% trap="07.11" role="repair"
viewer.flat = lambda h: F.adaptive_avg_pool2d(h, 2).flatten(1)
with torch.no_grad():
    rows = len(viewer(large))

# %% trap="07.11" role="repair"
claim("number of predictions for 497 images after pooling to a fixed size",
      rows, expected=497)

# %% trap="07.11" role="repair"
by_side = {side: accuracy(viewer, F.interpolate(images_test, size=side),
                          y_test) for side in (8, 16, 24, 32)}
plot_columns(by_side, xlabel="pixels along a side", form=".2f",
             ylabel="accuracy on the test digits",
             reference=(0.1, "guessing"),
             title="The shapes fit, the scale is still new",
             alt="Four columns and a line at guessing. The accuracy is "
                 "high at 8 pixels and lower at larger sides.")

# %% [markdown] trap="07.11" role="more" topics="what zip pairs · a new scale"
# Without an error, `zip` pairs the first 497 of the 1,988 predictions with the labels.
# Pooling fixes the shapes, but not the accuracy at a scale that was not in the training
# data:

# %% trap="07.11" role="more"
score = by_side[16]
claim("with pooling: accuracy on images of 8 x 8 pixels",
      by_side[8], above=0.85)
claim("accuracy when zip pairs predictions and labels", right, below=0.25)
claim("with pooling: accuracy on images of 16 x 16 pixels",
      score, above=0.15)

# %% trap="07.11" role="exercise" points=3 difficulty=2 minutes=10
def linear_in(features: nn.Module, shape: tuple) -> int:
    """Count the inputs that a Linear layer needs after the module features.

    Args:
        features: any module that maps float32 (N, *shape) to (N, M, ...),
            with all its tensors registered and on the CPU.
        shape: the shape of one image, without the batch.

    Compute no values. Shapes are enough, so a large image costs no more
    than a small one. The module is unchanged: weights, buffers, modes,
    gradients and hooks.

    Example: nn.MaxPool2d(2) and shape (3, 5, 8) give 3 x 2 x 4 = 24.
    """
    # BEGIN SOLUTION
    twin = copy.deepcopy(features).to("meta").eval()
    return twin(torch.empty(1, *shape, device="meta")).numel()
    # END SOLUTION

# %% [markdown] trap="07.11" role="hint"
# 1. Ask the module itself: run one image through it and count the output values.
# 2. A tensor on the device `"meta"` has a shape but no values. The weights also have to be on that device, so move a copy of the module.
# 3. In train mode, BatchNorm needs more than one value per channel, so put the copy into eval
#    mode.

# %% [markdown] trap="07.11" role="keep"
# **Keep:** In front of a head, write `flatten(1)`, not `view(-1, n)`, because the batch
# axis must not absorb pixels. **In your own code:** Assert `len(predictions) ==
# len(images)` before you compare, and call `zip` with `strict=True`. **Source:** PyTorch
# documentation,
# [torch.flatten](https://docs.pytorch.org/docs/stable/generated/torch.flatten.html).

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. You put a pooling layer with a window of 2 after five 3 x 3 convolutions. The
# receptive field of 11 becomes**
#
# - [ ] 22, twice as much :: A stride of 2 doubles the step of the layers after it, but
#   not the receptive field reached so far.
# - [x] 12, one pixel more :: A window of width two adds one step to the field, and the step is still one pixel.
# - [ ] 11, because pooling reads nothing new :: A pooling window of width two also
#   reads a neighbour, which adds one more pixel.

# %% [markdown] role="quiz"
# **2. One part of a net halves the rows and columns and doubles the channels. The bytes
# that a map takes**
#
# - [x] are halved :: A quarter of the positions times twice the channels makes half the
#   bytes.
# - [ ] stay the same, because the channels make up for the positions :: Two sides are halved,
#   so a quarter of the positions is left for twice the channels.
# - [ ] are quartered :: That would be right with the same number of channels.

# %% [markdown] role="quiz"
# **3. All parameters of a body have `requires_grad=False`. In an ordinary training loop**
#
# - [ ] the body computes the same function as before :: With BatchNorm or dropout, it
#   does not, because the mode is a separate switch.
# - [ ] an optimizer that holds the parameters decays them :: After a `zero_grad()`, their
#   gradient is `None`, and SGD, Adam and AdamW skip such tensors.
# - [x] the body's BatchNorm statistics still move :: The statistics are buffers, and
#   each pass in train mode updates them.

# %% [markdown] role="quiz"
# **4. A fine-tuned classifier is better on the new digits with one rate for body and head than with a small rate for the body. That**
#
# - [ ] is impossible, because a large rate destroys what was learned :: In trap 07.3, a
#   large rate destroyed the old task but was best on the new task.
# - [x] is possible, but says nothing about the old digits :: The new loss does not
#   measure the old task, so measure the old task separately.
# - [ ] shows that the body was badly trained before :: The body was nearly always right on its
#   own task.

# %% [markdown] role="quiz"
# **5. In float32, with a rate of 0.01, `loss` is the same to the last digit after 200 steps. Where do you look first?**
#
# - [x] Which tensors the optimizer holds :: The likely cause is the fault of
#   trap 07.10: the optimizer holds no tensor of the forward pass. List what one step moves.
# - [ ] The learning rate, which is too small :: This rate is not too small for float32.
#   With 16-bit weights, a small step may round to nothing.
# - [ ] Saturated activations :: Saturation slows down learning, but a bias of the head,
#   if there is one, would still move.

# %% [markdown] role="quiz"
# **6. Pictures reach a convolutional net through `reshape` instead of `permute`, both in
# training and in production. The net**
#
# - [ ] can only guess :: The net learns what the scrambled pictures still show. In trap
#   07.9, it did far better than guessing.
# - [x] learns, but its windows no longer match the picture's neighbourhoods :: Nothing
#   in the loss reveals the mistake.
# - [ ] is as good as ever, because both sides agree :: A convolution relies on which
#   pixels are neighbours, and `reshape` destroys this order.

# %% [markdown] role="gpu"
# ## On a GPU: what the memory format, 16 bits and the choice of an algorithm are worth
#
# A convolution is a matrix product in disguise, so tensor cores can compute it. Three
# settings determine how close a convolution comes to the tensor cores' rate: the width of
# the values, the memory format (trap 07.5), and the algorithm that cuDNN picks. With
# `cudnn.benchmark`, torch times some algorithms once for each new shape and takes the
# fastest.
#
# **Before you run anything:** The settings change the rounding and the order of values
# and operations, not the formula. "32 bits" means full precision here: TF32, torch's
# default for convolutions, is off. How fast is a convolution in 16 bits with channels
# last, as a multiple of the speed in 32 bits with channels first?
#
# You can count the work without a GPU, on meta tensors: the FLOPs of ResNet-50 for one
# image, and the FLOPs of one middle layer. A multiplication and an addition count as two
# FLOPs.

# %% role="gpu"
from torchvision import models

from dlsys_helpers.gpu import half_dtype

def make_conv(where, dtype, last, n=64):
    """A call of a middle 3x3 layer of ResNet-50, 256 channels, 14 x 14."""
    conv = nn.Conv2d(256, 256, 3, padding=1, bias=False)
    x = torch.randn(n, 256, 14, 14, device=where, dtype=dtype)
    conv = conv.to(device=where, dtype=dtype)
    if last:
        conv = conv.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    return lambda: F.conv2d(x, conv.weight, padding=1)

# %% role="gpu"
def make_resnet(where, n=64, train=True):
    """A step of ResNet-50 in 16 bits, channels last, n images."""
    kind = {"device": where, "dtype": half_dtype(where)}
    net = models.resnet50().to(**kind, memory_format=torch.channels_last)
    x = torch.randn(n, 3, 224, 224, **kind)
    x = x.to(memory_format=torch.channels_last)
    net.train(train)
    if train:
        return lambda: net(x).float().logsumexp(1).mean().backward()
    return torch.no_grad()(lambda: net(x))

# %% role="gpu"
def layer_flops():
    return flops(make_conv("meta", torch.float32, False))

def image_flops(train):
    """FLOPs of an image through ResNet-50; backward takes twice more."""
    with torch.device("meta"):
        net, image = models.resnet50(), torch.empty(1, 3, 224, 224)
        return flops(lambda: net(image)) * (3 if train else 1)

layer_work, inference = layer_flops(), image_flops(train=False)
training = image_flops(train=True)
print(f"ResNet-50, one image: {inference / 1e9:.1f} GFLOP forward")
print(f"one layer, 64 images: {layer_work / 1e9:.1f} GFLOP")

# %% role="gpu"
claim("GFLOP for one image through ResNet-50", inference / 1e9,
      expected=8.18, within=0.02)
claim("FLOPs of the layer computed by hand, divided by the FLOPs counted "
      "on meta tensors",
      2 * 64 * 14 * 14 * 256 * 256 * 9 / layer_work, expected=1)
same = make_conv("cpu", torch.float32, True, n=1)().stride(1)
claim("stride of the output's channel axis if the input is channels last",
      same,
      expected=1)

# %% role="gpu"
@gpu_result("07/convolution", uses=[make_conv, layer_flops],
            columns=["kind", "us", "us_low", "us_high", "tflops"])
def switches():
    """The layer in 32 and 16 bits, both formats; then with benchmark."""
    half = half_dtype("cuda")
    torch.backends.cudnn.allow_tf32 = False     # full 32 bits
    cases = {"fp32, first": (torch.float32, False, False),
             "half, first": (half, False, False),
             "half, last": (half, True, False),
             "half, last, benchmark": (half, True, True)}
    for kind, (dtype, last, timed) in cases.items():
        torch.backends.cudnn.benchmark = timed
        call = make_conv("cuda", dtype, last)
        t = seconds(call, 10, "cuda", calls=20)
        yield {"kind": kind, "us": t.median * 1e6, "us_low": t.low * 1e6,
               "us_high": t.high * 1e6,
               "tflops": layer_flops() / t.median / 1e12}
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = True

# %% role="gpu"
@gpu_result("07/resnet50", uses=[make_resnet, image_flops],
            columns=["step", "images_s", "low", "high", "tflops"])
def throughput():
    """Images a second, 64 at a time, in 16 bits, channels last."""
    for step, train in (("training", True), ("inference", False)):
        call, work = make_resnet("cuda", train=train), image_flops(train)
        t = seconds(call, 5, "cuda", calls=3)
        yield {"step": step, "images_s": 64 / t.median, "low": 64 / t.high,
               "high": 64 / t.low, "tflops": 64 * work / t.median / 1e12}

def over(a, b):
    """Time of one kind of the layer, divided by another's."""
    return switches.value("us", kind=a) / switches.value("us", kind=b)

sheet = datasheet(switches.device_name)

# %% role="gpu"
answers = gpu_table(
    sheet,
    switches.asks("time in 16 bits, channels last, divided by time in 32 "
                  "bits, channels first",
                  sheet.fp32_tflops / sheet.half_tflops,
                  lambda: over("half, last", "fp32, first"), below=0.7),
    switches.asks("time in 16 bits: channels last divided by channels "
                  "first",
                  "1: the same FLOPs and bytes",
                  lambda: over("half, last", "half, first"), below=1.1),
    switches.asks("time with cudnn.benchmark divided by time without it",
                  "1 or less",
                  lambda: over("half, last, benchmark", "half, last"),
                  below=1.2),
    throughput.asks("images per second in training",
                    sheet.half_tflops * 1e12 / training,
                    lambda: throughput.value("images_s", step="training"),
                    below=sheet.half_tflops * 1e12 / training))
answers

# %% [markdown] role="gpu"
# The prediction for the training step assumes the peak rate, and published runs stay
# far below it. BatchNorm, ReLU and the additions do few FLOPs but move many bytes, so
# memory limits them, as in stage 1's roofline. NVIDIA published 2,470 images per second
# for an A100, with float16 where autocast allows it, which is a fifth of the A100's
# limit. For a V100, NVIDIA published 1,200 images per second, 3.3 times its rate in 32
# bits. On a device that it does not name, PyTorch's tutorial shows 773 images per
# second with channels first and 1,012 with channels last.
#
# Both formats need the same FLOPs and bytes, but cuDNN may have to reorder channels-first
# tensors for the tensor cores, which takes time. `cudnn.benchmark` chooses by measured
# time, so a second run may choose another algorithm. In that case, the last bits of the
# results may differ.
#
# **On the H100 used for the recorded run**, the convolution in 16 bits with channels
# last takes an eighth of its time in 32 bits with channels first; the datasheet's rates
# promise a fifteenth. The 32-bit convolution is faster than its FLOPs allow: by our
# count it runs at 67.8 TFLOP/s, on a card with a peak rate of 67 TFLOP/s. So cuDNN must
# multiply less often than the formula, as Winograd's algorithm does for 3x3 windows.
# The recorded results do not say which algorithm cuDNN used. In 16 bits, the
# channels-last format saves two fifths of the time, although the FLOPs and the bytes
# stay the same. `cudnn.benchmark` changes nothing for this one shape.
#
# In 16 bits with channels last, this layer runs at half the card's rate; the layer's
# input takes 6 MB and may stay in the card's cache from call to call. ResNet-50 runs at
# less than a tenth of the card's rate, both with and without its backward pass. At the
# rate of the measured layer, ResNet-50's convolutions would take a sixth of ResNet-50's
# measured time. The recorded results cannot tell whether slower convolutions, the bytes
# moved between them, or launches account for the rest of the time. Our step does not
# update the weights, whereas NVIDIA's step does.
#
# **Keep:** To speed up convolutions, first use 16 bits, then channels last. Try
# `cudnn.benchmark` third, and only if the shapes stay the same. **Source:** [NVIDIA, ResNet50
# v1.5 for
# PyTorch](https://github.com/NVIDIA/DeepLearningExamples/blob/master/PyTorch/Classification/ConvNets/resnet50v1.5/README.md),
# "Training performance results", one GPU (A100 80GB; V100 16GB); PyTorch tutorial, [Channels
# Last Memory
# Format](https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html),
# "Performance Gains", ResNet-50 in float16; [cuDNN, Data and Filter
# Formats](https://docs.nvidia.com/deeplearning/cudnn/developer/legacy-api.html); [torch's
# notes on reproducibility](https://docs.pytorch.org/docs/stable/notes/randomness.html), "CUDA
# convolution benchmarking".

# %% [markdown] role="summary"
# ## What you take with you
#
# - A convolution assumes that nearby pixels belong together and that a pattern means the
#   same everywhere. If you move the input by a multiple of the stride, the map moves with
#   it, except near the borders.
# - Max pooling keeps that something is there and discards where in the window. A
#   residual block adds to its input, so it can also leave the input unchanged.
# - The maps of a convolutional net grow with the batch and the pixels, but the
#   convolutions' weights do not.
# - To compute a unit's field, track its width and the step. In windowed layers, nothing
#   outside the field can change the unit.
# - Measure forgetting on the old task. Without BatchNorm, a small rate for the body keeps
#   more of the old task, but is not always best on the new.
# - Store the preprocessing with the weights. BatchNorm's stored statistics do not
#   replace the preprocessing.
# - The memory format is a matter of strides. `permute` moves axes, whereas `reshape` cuts
#   the same sequence in different places.
# - If each layer gets its own rate, compute the rate from the layer's depth in the model.
#   The head has the base rate.
# - Freezing a body with BatchNorm needs two things, no gradients and eval mode, and
#   `train()` undoes the second.
# - `parameters()`, `state_dict()` and `to()` leave out tensors that are not registered,
#   such as the weights of layers in a Python list.
# - An optimizer holds tensors, not a model. List the tensors that one step moves.
# - In front of a head, use `flatten(1)`, which keeps one row for each image, whatever the
#   image size.
#
# **Next:** Stage 8 lets every position look at all other positions, and counts what that
# costs.
