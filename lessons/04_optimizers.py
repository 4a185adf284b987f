# %% [markdown] role="hook" traps=11
# # 4. Optimizers and learning-rate schedules
#
# An optimizer is ten lines of arithmetic that run a million times, and a schedule is a
# curve that advances one step per call. Both need learning rates, parameters and step
# counts. Some of these values are defaults that you never chose, and for most values,
# torch checks only the sign.
#
# The ideas come first: what momentum, Adam, weight decay and warm-up are for. Then come
# eleven traps in which the code looks right and raises no error. You guess what the code
# does, write the correct version yourself, and compare your version with torch's, value
# by value.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import copy
import math

import torch
from matplotlib import pyplot as plt
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as sched

from dlsys_helpers import (
    accuracy, begin, check, claim, cost, datasheet, digits, draw_blocks,
    draw_boxes, draw_line, fit, gpu_result, gpu_table, guess, measured,
    new_axes, peak_bytes, plot_bars, plot_columns, plot_lines, seconds,
    show,
)

begin(SEED, THREADS, DEVICE)

# %% role="concept" tags=["plumbing"]
before = torch.get_rng_state()    # put back below, before the five rules

# %% [markdown] role="concept"
# ## Momentum: remember the direction that stays
#
# An optimizer gets the gradient of every weight and decides how far to move that weight.
# The simplest rule, *stochastic gradient descent* (SGD), moves each weight downhill by
# the learning rate times its gradient. SGD has a problem when the loss is a long, narrow
# valley, steep across and nearly level along its length. The learning rate has to be
# small enough for the steep direction, or the weights bounce from wall to wall. At so
# small a rate, the weights hardly advance in the level direction.
#
# The simplest such valley is a loss of two weights and is 25 times as steep along the
# second weight as along the first:

# %% role="concept"
steepness = torch.tensor([1.0, 25.0])

def descend(momentum, lr=0.075, steps=30):
    """The path of two weights down the valley: (steps + 1, 2)."""
    w, b = torch.tensor([-10.0, 1.0]), torch.zeros(2)
    way = [w]
    for _ in range(steps):
        gradient = steepness * w
        b = momentum * b + gradient      # what is remembered
        w = w - lr * b
        way.append(w)
    return torch.stack(way)

def valley_loss(way):
    return (steepness * way[-1] ** 2).sum().item() / 2

ways = {"SGD": descend(0.0), "momentum 0.5": descend(0.5)}
print({name: f"{valley_loss(way):.4f}" for name, way in ways.items()})

# %% role="concept"
ax = new_axes("Momentum damps the zigzag and arrives sooner",
              "first weight: the level direction",
              "second weight: steep")
for (name, way), style in zip(ways.items(), ("-", "--")):
    ax.plot(way[:, 0], way[:, 1], style, marker="o", markersize=3,
            label=name)
ax.plot(0, 0, "k*", markersize=12, label="lowest point")
ax.legend()
show(ax.figure, "Two paths of 30 steps that start on the left; the lowest "
                "point is at zero. Plain SGD jumps up and down across the "
                "valley for most of the way and stops short. With "
                "momentum, the jumps die out within a few steps, and the "
                "path reaches the lowest point.")

# %% role="concept"
claim("loss with a momentum of 0.5 divided by plain SGD's loss, both "
      "after 30 steps",
      valley_loss(ways["momentum 0.5"]) / valley_loss(ways["SGD"]),
      below=0.01)

# %% [markdown] role="concept"
# The one new line is `b = momentum * b + gradient`. This line makes the step follow a sum
# of all gradients so far, in which older gradients count less. See how large the sum
# becomes for a gradient that keeps its sign, and for a gradient that alternates:

# %% role="concept"
def remembered(gradients, momentum=0.9):
    """What momentum has added up after these gradients."""
    b = 0.0
    for gradient in gradients:
        b = momentum * b + gradient
    return b

same = remembered([1.0] * 100)
alternating = remembered([1.0, -1.0] * 50)
print(f"same sign: {same:.2f}   alternating: {alternating:.2f}")

# %% role="concept"
claim("running sum of gradients, with a momentum of 0.9 and a gradient of "
      "1 at every step", same, expected=10, within=0.01)
claim("absolute value of the running sum of gradients whose sign "
      "alternates",
      abs(alternating), below=0.6)

# %% [markdown] role="concept"
# So momentum speeds up movement in a direction that stays the same, by a factor of up to
# $1/(1-0.9) = 10$, and damps movement in a direction that alternates. For the same
# reason, momentum averages out part of the noise of small batches. Usual values of the
# momentum are 0.9 and, for long runs, 0.99. Momentum has a price. With a momentum of 0.9,
# the steps become up to ten times as long, so a learning rate that suits plain SGD may be
# too high.

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] role="concept"
# ## Adam: a step size for every weight
#
# Momentum leaves one problem unsolved. Within one network, gradients differ by orders of
# magnitude, from layer to layer, and between the embeddings of common and of rare words.
# No single learning rate suits all of these gradients. *Adam* divides each weight's step
# by the typical size of that weight's own gradients. Adam keeps two running averages per
# weight, the *moments*: $m$ averages the gradient, much as momentum sums it, and $v$
# averages the gradient's square. The step is the learning rate times $m / \sqrt{v}$.
#
# What is left of the gradient after that division? If a gradient is steady, whatever its
# size, $m = g$ and $\sqrt{v} = |g|$, so only the gradient's sign is left. A gradient that
# is mostly noise has a small $m$ and a large $v$. Try a gradient of 1 without noise, then
# with noise of the same size, then with noise ten times as large:

# %% role="concept"
def adam_step_on(noise, steps=1500, b1=0.9, b2=0.99):
    """Mean of m / sqrt(v) over 1,000 weights, in the last 500 steps."""
    own, m, v, sizes = torch.Generator().manual_seed(SEED), 0, 0, []
    for _ in range(steps):
        g = 1 + noise * torch.randn(1000, generator=own)
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g ** 2
        sizes.append((m / v.sqrt()).mean().item())
    return sum(sizes[-500:]) / 500

by_noise = {noise: adam_step_on(noise) for noise in (0, 1, 10)}
print({f"noise {n}": f"{step:.2f} rates" for n, step in by_noise.items()})

# %% role="concept"
claim("Adam's mean step divided by the learning rate, with noise as large "
      "as the gradient", by_noise[1], expected=0.71, within=0.06)
claim("Adam's mean step divided by the learning rate, with noise of ten "
      "times the gradient's size", by_noise[10], expected=0.1, within=0.03)

# %% [markdown] role="concept"
# Where the gradient is steady, Adam moves a weight by the full learning rate at each
# step, whether the gradient is 100 or 0.0001. Where the gradient is mostly noise, Adam's
# steps are short and careful. Because of this division, a single learning rate, often
# 0.001, works for many networks.

# %% [markdown] role="concept"
# ## Five rules, one shape
#
# Each rule below takes a gradient $g$ and returns a step. The rules differ in what they
# remember and in what they divide by. The learning rate is $\eta$, and all products are
# element-wise.
#
# | rule | what it remembers | the step it subtracts |
# |---|---|---|
# | SGD | nothing | $\eta\,g$ |
# | momentum | $b \leftarrow \mu b + g$ | $\eta\,b$ |
# | Adam | $m \leftarrow \beta_1 m + (1-\beta_1)g$, $v \leftarrow \beta_2 v + (1-\beta_2)g^2$ | $\eta\,\hat m / (\sqrt{\hat v} + \epsilon)$ |
# | AdamW | the same as Adam | the same as Adam, after $w \leftarrow (1-\eta\lambda)w$ |
# | Lion | $m \leftarrow \beta_2 m + (1-\beta_2)g$, after the step | $\eta\,\mathrm{sign}(\beta_1 m + (1-\beta_1)g)$ |
#
# The hats mark Adam's *bias correction*: $\hat m = m/(1-\beta_1^t)$ and $\hat v =
# v/(1-\beta_2^t)$ at step $t = 1, 2, \dots$. Compare the first steps of SGD and Adam for
# gradients whose sizes span six orders of magnitude.

# %% role="concept"
gradient = torch.randn(1000).sign() * torch.logspace(-4, 2, 1000)

def first_move(optimizer):
    """Size of the first step of each weight, and the optimizer's state."""
    w = nn.Parameter(torch.zeros(1000))
    opt = optimizer([w], lr=0.01)
    w.grad = gradient.clone()
    opt.step()
    return w.detach().abs(), opt.state[w]

# %% role="concept"
sgd_move, _ = first_move(torch.optim.SGD)
adam_move, state = first_move(torch.optim.Adam)
print(f"SGD moves weights by {sgd_move.min():.0e} to {sgd_move.max():.0e}, "
      f"Adam by {adam_move.min():.4f} to {adam_move.max():.4f}")

# %% role="concept"
plot_lines(gradient.abs(), {"SGD": sgd_move, "Adam": adam_move},
           logx=True, logy=True, xlabel="size of the gradient",
           ylabel="first step at a rate of 0.01",
           title="SGD's first step follows the gradient, Adam's does not",
           alt="First step against the size of the gradient. SGD's line "
               "climbs over six decades. Adam's line is flat at the "
               "learning rate.")

# %% role="concept"
claim("SGD's longest first step divided by SGD's shortest first step",
      sgd_move.max() / sgd_move.min(), expected=1e6, within=100)
claim("Adam's first step: largest relative gap to the rate, for gradients "
      "from 1e-4 to 100",
      (adam_move / 0.01 - 1).abs().max(), below=1e-3)

# %% role="concept"
tiny = nn.Parameter(torch.zeros(1))
opt = torch.optim.Adam([tiny], lr=0.01)           # eps is 1e-8
tiny.grad = torch.tensor([1e-8])
opt.step()
print(f"a gradient of 1e-8 moves its weight by {tiny.item():.4f}")

# %% role="concept"
claim("Adam's first step divided by the learning rate, for a gradient as "
      "small as eps",
      tiny.abs() / 0.01, expected=0.5, within=0.01)
raw = (state["exp_avg"] / gradient - 0.1).abs().max()
claim("largest difference between 0.1 and the quotient of exp_avg and the "
      "gradient",
      raw, below=1e-6)

# %% [markdown] role="concept"
# Adam's first step does not depend on the size of a gradient, as long as the gradient is
# far above `eps`. In torch, the moments are called `exp_avg` and `exp_avg_sq`; they are
# $m$ and $v$ without hats. After one step, `exp_avg` holds a tenth of the gradient, and
# `exp_avg_sq` holds a thousandth of the gradient's square.
#
# In the explorer below, multiply the loss by 10 and see which rules react.

# %% role="explore" explorer="optimizer_paths"
from dlsys_helpers.explorers.optimizer_paths import optimizer_paths

optimizer_paths

# %% [markdown] role="concept"
# ## Weight decay: what it is for
#
# Without norm layers, a network that fits its training rows exactly usually needs large
# weights, because only large weights let the network change its answer sharply from one
# row to the next. *Weight decay* makes every weight a little smaller at each step, so a
# weight stays large only if the gradient keeps pushing it up. The network becomes
# smoother, fits the training rows less exactly, and with the right amount of decay does
# better on new rows. Measures of this kind are called *regularization*. Stage 6 compares
# the whole family.
#
# The key line shrinks the weight before the step: `w *= 1 - lr * decay`. Use AdamW with
# three values of the decay to train a network of 256 hidden units on 200 digits, of which
# about three out of ten have a random label:

# %% role="concept" tags=["plumbing"]
before = torch.get_rng_state()    # put back below, before the first trap

# %% role="concept"
x_train, y_train, x_test, y_test = digits()      # (1300, 64), (497, 64)
some = torch.randperm(1300)[:200]
x_few, y_few = x_train[some], y_train[some].clone()
random_label = torch.rand(200) < 0.3
y_few[random_label] = torch.randint(10, (int(random_label.sum()),))
untrained = nn.Sequential(nn.Linear(64, 256), nn.ReLU(),
                          nn.Linear(256, 10))

# %% role="concept"
def decayed_run(decay):
    """Norm of all weights, training accuracy and test loss."""
    net = copy.deepcopy(untrained)
    fit(net, x_few, y_few, steps=500, lr=0.003, optimizer=lambda p, lr:
        torch.optim.AdamW(p, lr=lr, weight_decay=decay))
    size = torch.cat([p.detach().flatten() for p in net.parameters()]
                     ).norm().item()
    with torch.no_grad():
        loss = F.cross_entropy(net(x_test), y_test).item()
    return size, accuracy(net, x_few, y_few), loss

# %% role="concept"
by_decay = {decay: decayed_run(decay) for decay in (0, 0.3, 1)}
for decay, (size, fitted, loss) in by_decay.items():
    print(f"decay {decay}: norm of the weights {size:.1f}, training "
          f"accuracy {fitted:.2f}, test loss {loss:.2f}")

# %% role="concept"
claim("weight norm with a decay of 1 divided by the weight norm without "
      "decay",
      by_decay[1][0] / by_decay[0][0], below=0.9)
claim("test loss with a decay of 1 divided by the test loss without decay",
      by_decay[1][2] / by_decay[0][2], below=1)

# %% [markdown] role="concept"
# In these runs, the more decay, the smaller the weights and the lower the test loss. A
# decay of 1 is large, but these runs are short, and what counts is the product of
# learning rate, decay and number of steps. In long runs, the decay is usually 0.01 to
# 0.1. Biases and the gains of norm layers are usually exempt (trap 04.1). Whether to
# decay *embeddings*, tables with one row per token, is a matter of choice. Unless the
# table is also the output layer, a row gets a gradient only when its token occurs. But
# decay shrinks the row at every step, so the rows of rare tokens fade. Published code
# does both: [nanoGPT](https://github.com/karpathy/nanoGPT/blob/master/model.py) decays
# its embeddings, but
# [minGPT](https://github.com/karpathy/minGPT/blob/master/mingpt/model.py), by the same
# author, does not.

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] trap="04.1" role="situation" core=true fault="gains get weight decay: filtered by name or by axes" symptom="weight decay is applied to LayerNorm or BatchNorm although it is excluded by name"
# ## Two filters for weight decay
#
# A *gain* is a weight that scales one channel. Weight decay pulls a weight towards zero,
# and a gain of zero switches its channel off. So you want to exempt gains and biases.
# Many scripts select such parameters with a list of names. A reviewer writes: "Why names?
# Count axes instead. A matrix has two or more, so decay it. A gain has one, so don't."
# You try the list on torch's own encoder layer, and the reviewer's rule on a ConvNeXt.

# %% trap="04.1" role="break"
from torchvision import models

encoder = nn.TransformerEncoderLayer(64, 4, batch_first=True)
exempt = ("bias", "LayerNorm.weight")      # the list that is copied
decayed = [name for name, _ in encoder.named_parameters()
           if not any(part in name for part in exempt)]

with torch.device("meta"):
    convnext = models.convnext_tiny()
by_axes = {name: p for name, p in convnext.named_parameters()
           if p.ndim >= 2}                 # these are decayed

# %% trap="04.1" role="guess" quoted="wrong"
guess("04.1",
      "You apply the list of names to the encoder layer, and the "
      "reviewer's rule to the ConvNeXt. Which of the two exempts every "
      "gain in its model?",
      choices=["both of them",
               "only the list of names",
               "only the reviewer's rule",
               "neither of them"])

# %% trap="04.1" role="look"
scales = {name: p for name, p in by_axes.items() if "layer_scale" in name}
print(f"{len(scales)} gains, such as {next(iter(scales))}: "
      f"{tuple(next(iter(scales.values())).shape)}")

# %% trap="04.1" role="look"
claim("number of gains in ConvNeXt-T that are decayed if the filter "
      "counts axes", len(scales),
      expected=18)

# %% [markdown] trap="04.1" role="look"
# The 18 decayed gains scale ConvNeXt's residual branches, channel by channel. The list of
# names misses two gains of the encoder layer, so both are decayed:

# %% trap="04.1" role="look"
print(*decayed, sep="\n")
gains = [name for name in decayed if name.startswith("norm")]

# %% trap="04.1" role="look"
measured("04.1", 3)

# %% trap="04.1" role="look"
claim("number of the norm layers' gains that the list of names does not "
      "exempt",
      len(gains),
      expected=2)

# %% [markdown] trap="04.1" role="why"
# `LayerNorm` is the name of a *class*. Parameters are named after *attributes*: `norm1`
# in this layer, `bn1` and `downsample.1` in ResNet, `ln_f` elsewhere. So the list of
# names misses these gains. The number of axes does not depend on a name, but it only
# tells you how a tensor is *stored*, not what it is for. A gain for images can have the
# shape `(96, 1, 1)`. Neither filter raises an error.

# %% trap="04.1" role="repair"
def by_shape(model):
    """(matrices, vectors) of a model: two or more axes, and fewer."""
    every = list(model.parameters())
    return ([p for p in every if p.ndim >= 2],
            [p for p in every if p.ndim < 2])

matrices, vectors = by_shape(encoder)
print(f"decayed {len(matrices)}, exempt {len(vectors)}")

# %% [markdown] trap="04.1" role="repair"
# An optimizer takes the two lists as *parameter groups*, each with its own decay:
#
# ```python
# opt = torch.optim.AdamW([
#     {"params": matrices, "weight_decay": 0.01},
#     {"params": vectors, "weight_decay": 0.0}], lr=1e-3)
# ```
#
# A bias needs decay less, because its own layer only adds it and multiplies no input by
# it.
#
# Counting axes is the better start but not enough. Print the names in the decayed group
# once, and list the exceptions, such as `layer_scale`. The encoder layer has no
# exceptions:

# %% trap="04.1" role="repair"
claim("number of the encoder layer's tensors that are decayed if the "
      "filter counts axes",
      len(matrices), expected=4)

# %% trap="04.1" role="repair"
draw_boxes({
    "names: decayed": {"matrices": len(decayed) - len(gains),
                       "gains": len(gains)},
    "names: exempt": {"biases": 12 - len(decayed)},
    "axes: decayed": {"matrices": len(matrices)},
    "axes: exempt": {"biases": len(vectors) - len(gains),
                     "gains": len(gains)}},
    unit="tensors", title="By names the gains decay, by axes they do not",
    alt="Four stacks of tensors. By names, four matrices and two gains are "
        "decayed and six biases are exempt. By axes, four matrices are "
        "decayed, and six biases and two gains are exempt.")

# %% [markdown] trap="04.1" role="more" topics="ResNet · embeddings · what a wrong group costs"
# In a ResNet, the list of names exempts no gain at all, but counting axes exempts every
# gain:

# %% trap="04.1" role="more"
with torch.device("meta"):
    resnet = models.resnet18()
norms = {name: m for name, m in resnet.named_modules()
         if isinstance(m, nn.BatchNorm2d)}
caught = [name for name in norms if "norm" in name.lower()]
exempt_ids = {id(p) for p in by_shape(resnet)[1]}
missed = [n for n, m in norms.items() if id(m.weight) not in exempt_ids]

# %% trap="04.1" role="more"
claim("number of the encoder layer's tensors that the list of names does "
      "not exempt",
      len(decayed), expected=6)
claim("number of the encoder layer's tensors that are exempt if the "
      "filter counts axes",
      len(vectors), expected=8)
claim("number of norm layers in ResNet-18", len(norms), expected=20)
claim("number of norm layers in ResNet-18 that have 'norm' in their name",
      len(caught), expected=0)
claim("number of gains in ResNet-18 that are decayed if the filter counts "
      "axes",
      len(missed), expected=0)

# %% [markdown] trap="04.1" role="more"
# An embedding's weight also has two axes. Some recipes decay the embedding and some do
# not, so write your decision down, and print which tensors your rule puts into which
# group. The cost of a wrong group depends on the learning rate, the decay and the number
# of steps, and you can measure this cost on a single gain.

# %% trap="04.1" role="more"
def shrunk(lr, decay, steps):
    """What AdamW leaves of a gain of 1 whose gradient is always 0."""
    gain = nn.Parameter(torch.ones(1, dtype=torch.float64))
    opt = torch.optim.AdamW([gain], lr=lr, weight_decay=decay)
    gain.grad = torch.zeros_like(gain)
    for _ in range(steps):
        opt.step()
    return gain.item()

short, long = shrunk(2e-5, 0.01, 3000), shrunk(1e-2, 0.1, 1000)
print(f"fine-tuning: {short:.5f}   a long run: {long:.3f}")

# %% trap="04.1" role="more"
claim("fraction of a gain lost in 3,000 steps with a rate of 0.00002 and "
      "a decay of 0.01", 1 - short, expected=0.0006, within=1e-5)
claim("fraction of a gain left after 1,000 steps with a rate of 0.01 and "
      "a decay of 0.1", long, expected=0.368, within=0.001)

# %% [markdown] trap="04.1" role="folklore"
# **Told:** Decaying the norm layers makes fine-tuning notably worse. **Measured:** A gain
# that gets no gradient loses 0.06 % in 3,000 steps at a learning rate of 0.00002 with a
# decay of 0.01. After 1,000 steps at a rate of 0.01 with a decay of 0.1, only 0.368 of
# the gain is left. The product of learning rate, decay and number of steps tells you
# which of these two cases applies to your run.

# %% trap="04.1" role="exercise" points=3 difficulty=2 minutes=15
def decay_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Sort a model's parameters into two groups for an optimizer.

    The first group is decayed, the second is exempt. A tensor with two or
    more axes is in the first group. But the weight of an nn.Embedding is in
    the second group.

    Args:
        model: may have frozen tensors (requires_grad False), which are in
            no group. All other tensors are in exactly one group, even when
            two modules share them.
        weight_decay: the decay of the first group.

    Returns:
        [first, second], each {"params": list of tensors, "weight_decay":
        float}. The second group's decay is 0.0.

    Example: nn.Linear(2, 3) has its weight in the first group and its bias
    in the second.
    """
    # BEGIN SOLUTION
    embeddings = {id(m.weight) for m in model.modules()
                  if isinstance(m, nn.Embedding)}
    decayed, exempt = [], []
    for p in model.parameters():
        if p.requires_grad:
            plain = p.ndim < 2 or id(p) in embeddings
            (exempt if plain else decayed).append(p)
    return [{"params": decayed, "weight_decay": weight_decay},
            {"params": exempt, "weight_decay": 0.0}]
    # END SOLUTION

# %% [markdown] trap="04.1" role="hint"
# 1. Names are only a convention. `p.ndim` and the type of a module are facts.
# 2. `model.parameters()` yields a shared tensor once, but walking over the modules yields it twice.
# 3. An embedding's weight has two axes, so first collect the `id` of `m.weight` for every `nn.Embedding`.

# %% [markdown] trap="04.1" role="keep"
# **Keep:** Decide whether to decay a parameter by what the parameter is, not by its name.
# Also count the tensors, because every trainable tensor must be in exactly one group.
# **In your own code:** Print the names in the decayed group once per model. **Source:**
# [Loshchilov & Hutter 2019](https://arxiv.org/abs/1711.05101) for decay;
# `configure_optimizers` in [nanoGPT's
# model.py](https://github.com/karpathy/nanoGPT/blob/master/model.py) for counting axes.

# %% [markdown] trap="04.2" role="situation" core=true fault="Adam runs at SGD's learning rate" symptom="training collapses or crawls after switching from SGD to Adam with the same learning rate"
# ## A borrowed learning rate
#
# You trained a classifier with SGD and momentum at a learning rate of 0.3, and it gets
# most digits right. You switch to Adam and keep the rate. Before you look at the result,
# you run both optimizers at the same rate of 0.01 and measure how far a weight moves, on
# average, in the very first step.

# %% trap="04.2" role="break"
x_train, y_train, x_test, y_test = digits()      # (1300, 64), (497, 64)

def batch_loss(model, rows=64):
    """Cross-entropy of random training digits."""
    i = torch.randint(len(x_train), (rows,))
    return F.cross_entropy(model(x_train[i]), y_train[i])

# %% trap="04.2" role="break"
def classifier():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def momentum(params, lr):
    return torch.optim.SGD(params, lr=lr, momentum=0.9)

def score(optimizer, lr):
    """Test accuracy of a new classifier after 200 steps at this rate."""
    model = classifier()
    fit(model, x_train, y_train, steps=200, lr=lr, optimizer=optimizer)
    return accuracy(model, x_test, y_test)

adam = torch.optim.Adam
borrowed = {"Adam at 0.3": score(adam, 0.3)}     # SGD's rate

# %% trap="04.2" role="break"
def first_step(optimizer, lr):
    """Mean distance that a weight goes in the first step."""
    model = classifier()
    before = [p.detach().clone() for p in model.parameters()]
    opt = optimizer(model.parameters(), lr=lr)
    batch_loss(model).backward()
    opt.step()
    moves = [(p.detach() - b).abs().flatten()
             for p, b in zip(model.parameters(), before)]
    return torch.cat(moves).mean().item()

# %% trap="04.2" role="guess"
guess("04.2",
      "On average, how long is a weight's first step with Adam, as a "
      "multiple of its first step with SGD?",
      choices=["about 3 times",
               "about 30 times",
               "about 300 times",
               "about 3,000 times"])

# %% trap="04.2" role="look"
by_adam, by_sgd = first_step(adam, 0.01), first_step(momentum, 0.01)
print(f"first step at 0.01: Adam {by_adam:.1e}, SGD {by_sgd:.1e}")

# %% trap="04.2" role="look"
measured("04.2", 2)

# %% trap="04.2" role="look"
claim("Adam's mean first step divided by SGD's, both at a learning rate of "
      "0.01", by_adam / by_sgd, above=100, below=900)

# %% trap="04.2" role="look"
plot_bars({"Adam": by_adam, "SGD + momentum": by_sgd}, log=True,
          xlabel="mean first step at a rate of 0.01",
          title="At one rate, Adam's step is hundreds of times as long",
          alt="Two bars on a log scale. Adam's first step is about 0.8 of "
              "the learning rate. SGD's first step is hundreds of times "
              "shorter.")

# %% [markdown] trap="04.2" role="look"
# So a learning rate that suits SGD may not suit Adam, and vice versa. You ran Adam at
# SGD's rate, 0.3. A colleague runs SGD at Adam's usual rate, 0.001. Compare the test
# accuracy of the two runs:

# %% trap="04.2" role="look"
borrowed["SGD at 0.001"] = score(momentum, 0.001)
print({name: f"{right:.2f}" for name, right in borrowed.items()})

# %% [markdown] trap="04.2" role="why"
# Each optimizer multiplies the learning rate by a different quantity. SGD's first step is
# the rate times the gradient, and this classifier's gradients are far below one. Adam's
# first step is as large as the rate itself, for every weight whose gradient is far above
# `eps`. So a rate of 0.01 means a small step for SGD and a large step for Adam. When you
# change the optimizer, search for the learning rate again.

# %% trap="04.2" role="repair"
own = {"Adam at 0.01": score(adam, 0.01),
       "SGD at 0.3": score(momentum, 0.3)}
print({name: f"{right:.2f}" for name, right in own.items()})

# %% trap="04.2" role="repair"
claim("accuracy with Adam at a learning rate of 0.01", own["Adam at 0.01"],
      above=0.92)

# %% trap="04.2" role="repair"
plot_bars(borrowed | own, xlabel="test accuracy",
          title="A rate from the other rule can fail",
          alt="Four bars. Adam at 0.01 and SGD at 0.3 are both above nine "
              "tenths. Adam at 0.3 and SGD at 0.001 are far lower.")

# %% [markdown] trap="04.2" role="more" topics="the other three runs · Muon"
# These claims put bounds on the other three bars. For Muon, the rate has a third meaning,
# as the section *Muon, a rule for matrices*, under *Further*, shows.

# %% trap="04.2" role="more"
claim("accuracy with SGD and momentum at a learning rate of 0.001",
      borrowed["SGD at 0.001"], below=0.75)
claim("accuracy with Adam at a learning rate of 0.3",
      borrowed["Adam at 0.3"],
      below=0.9)
claim("accuracy with SGD and momentum at a learning rate of 0.3",
      own["SGD at 0.3"],
      above=0.88)

# %% [markdown] trap="04.2" role="folklore"
# **Told:** Adam crawls at a learning rate of 0.01, and SGD may diverge at 0.001.
# **Measured:** For this classifier, the reverse is true. Adam at 0.01 is one of the good
# runs, SGD at 0.001 crawls, and Adam at 0.3 breaks. One web page says that Adam at 0.01
# "diverges at once". With a large pre-trained model, Adam at 0.01 may indeed diverge. A
# rate that is good for one optimizer and one model may be bad for another.

# %% trap="04.2" role="exercise" points=3 difficulty=3 minutes=15
def step_size(opt: torch.optim.Optimizer) -> float:
    """Return the largest distance that opt's next step would move a weight.

    The gradients are already in place. A weight without a gradient does not
    move. There may be one group or several.

    Afterwards, the weights, the gradients and the optimizer are as they
    were. So the next real step moves exactly as far as you say.

    Example: for SGD at rate 0.1 with gradients 3 and -5, return 0.5.
    """
    # BEGIN SOLUTION
    weights = [p for group in opt.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in weights]
    state = copy.deepcopy(opt.state_dict())
    opt.step()
    moves = [(p.detach() - b).abs().max().item()
             for p, b in zip(weights, before)]
    with torch.no_grad():
        for p, b in zip(weights, before):
            p.copy_(b)
    opt.load_state_dict(state)
    return max(moves)
    # END SOLUTION

# %% [markdown] trap="04.2" role="hint"
# 1. Do not predict the step from a formula. Take the step, measure it, and undo it.
# 2. A step changes two things, the weights and the optimizer's state. Restore both.
# 3. `opt.state_dict()` refers to the live tensors. Deep-copy this dictionary before the step, and pass the copy to `load_state_dict` after the step.

# %% [markdown] trap="04.2" role="keep"
# **Keep:** When you change the optimizer, search for the learning rate again. SGD's step
# is proportional to the gradient. Lion's step is as long as the learning rate, and so is
# Adam's while gradients are steady and far above `eps`. **In your own code:** Log the
# largest step alongside the loss. A sane step is small compared with the weights, except
# where weights start at zero. **Source:** [Kingma & Ba
# 2015](https://arxiv.org/abs/1412.6980), section 2.1, on the effective step.

# %% [markdown] role="concept"
# ## Which optimizer wins?
#
# You may have seen a chart in which SGD with momentum comes last after 1,000 steps, and
# AdamW's loss is below Adam's "because decay fights overfitting". Run the comparison
# yourself on linear regression, with the same start for all three optimizers and with the
# chart's rates.

# %% role="concept" tags=["plumbing"]
before = torch.get_rng_state()    # put back below, before the next trap

# %% role="concept"
x_lin = torch.randn(256, 32)
y_lin = x_lin @ torch.randn(32, 1) + 0.1 * torch.randn(256, 1)
start = nn.Linear(32, 1)

def regression(build):
    """Loss after 1,000 full steps, and the farthest any weight moved."""
    model = copy.deepcopy(start)
    opt = build(model.parameters())
    for _ in range(1000):
        opt.zero_grad()
        F.mse_loss(model(x_lin), y_lin).backward()
        opt.step()
    moved = (model.weight - start.weight).abs().max().item()
    return F.mse_loss(model(x_lin), y_lin).item(), moved

# %% role="concept"
sgd_loss, _ = regression(
    lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9))
adam_loss, adam_moved = regression(lambda p: torch.optim.Adam(p, lr=1e-3))
adamw_loss, _ = regression(
    lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.01))
print(f"SGD + momentum {sgd_loss:.3f}, Adam {adam_loss:.2f}, "
      f"AdamW {adamw_loss:.2f}; Adam moved at most {adam_moved:.2f}")

# %% role="concept"
claim("training loss with SGD and momentum after 1,000 steps", sgd_loss,
      below=0.02)
claim("training loss with Adam at a learning rate of 0.001 after 1,000 "
      "steps",
      adam_loss, above=1)

# %% [markdown] role="concept"
# Adam ends with a higher loss because it cannot get far in 1,000 steps at this rate.
# Decay makes the training loss higher, not lower:

# %% role="concept"
claim("largest distance by which Adam moved a weight in 1,000 steps",
      adam_moved, below=1.05)
claim("training loss of AdamW minus training loss of "
      "Adam", adamw_loss - adam_loss,
      above=0)

# %% [markdown] role="concept"
# The chart compared *rates*, not rules. Here 1,000 steps of 0.001 carry a weight a
# distance of about 1, and some weights have farther to go. Decay pulls the weights
# towards zero. The solution is farther from zero than the starting weights are, so AdamW
# ends at a higher training loss than Adam. Compare optimizers only after you have tuned
# each optimizer's rate.

# %% [markdown] role="concept"
# ## Why the rate falls: noise, and sharp minima
#
# With a high learning rate, the weights come near the minimum in few steps, and with a
# low rate, they end close to it. No constant rate does both, because the gradient of a
# batch is the true gradient plus noise. With a constant rate and noise that stays, the
# weights never come to rest. They end up in a cloud around the minimum, and the higher
# the rate, the larger the cloud. For a gradient $w + \text{noise}$ with noise of variance
# 1, the mean of $w^2$ settles at $\eta/(2-\eta)$. A rate that falls to zero shrinks the
# cloud.

# %% role="concept"
def end_of(rate, steps=1000):
    """Mean of w squared over 1,000 weights after noisy steps."""
    w = torch.ones(1000)
    for k in range(steps):
        w = w - rate(k) * (w + torch.randn(1000))
    return w.square().mean().item()

constant = end_of(lambda k: 0.1)
cosine = end_of(lambda k: 0.05 * (1 + math.cos(math.pi * k / 1000)))
print(f"constant {constant:.4f}, cosine to zero {cosine:.4f}")

# %% role="concept"
claim("mean square of the weights at a constant learning rate (in theory: "
      "0.1 / 1.9)", constant, expected=0.1 / 1.9, within=0.01)
claim("mean square of the weights: at a constant rate, divided by the "
      "value at a falling rate", constant / cosine, above=10)

# %% [markdown] role="concept"
# So why not use a low rate from the start? A low rate is slow, and there is a second
# argument against it, about the shape of minima. Around a *sharp* minimum, the loss rises
# steeply, and around a *flat* minimum, it rises slowly. A step at a high rate jumps out
# of a sharp minimum, because the gradient there is large:

# %% role="concept"
def distance_after(curvature, rate, steps=20):
    """Distance from a minimum at 0, after starting 0.01 away."""
    w = 0.01
    for _ in range(steps):
        w = w - rate * curvature * w
    return abs(w)

for name, curvature in (("flat", 1), ("sharp", 50)):
    print(f"{name:5}  rate 0.1: {distance_after(curvature, 0.1):.1e}   "
          f"rate 0.01: {distance_after(curvature, 0.01):.1e}")

# %% role="concept"
claim("distance from a sharp minimum after 20 steps at a learning rate of "
      "0.1",
      distance_after(50, 0.1), above=1)
claim("distance from a sharp minimum after 20 steps at a learning rate of "
      "0.01",
      distance_after(50, 0.01), below=0.01)
claim("distance from a flat minimum after 20 steps at a learning rate of "
      "0.1",
      distance_after(1, 0.1), below=0.01)

# %% [markdown] role="concept"
# Under plain gradient descent on a quadratic loss, a minimum holds the weights only if
# the learning rate times the curvature is below 2. So while the rate is high, the weights
# tend to stay in flat minima, and the low rate at the end lets them settle there. Flat
# minima are often said to generalize better, because a small shift of the data changes
# their loss only a little ([Keskar et al. 2017](https://arxiv.org/abs/1609.04836)). The
# argument is disputed, because rescaling the weights can make the same function look flat
# or sharp ([Dinh et al. 2017](https://arxiv.org/abs/1703.04933)).

# %% [markdown] role="concept"
# ## Schedules: one family, four decisions
#
# A *schedule* sets the learning rate of every step. All the usual schedules answer four
# questions. How high is the *peak*? How long is the *warm-up*, the climb at the start?
# What *shape* does the fall have? Where is the *floor*? Here are five schedules, each
# for a run of 100 steps with a peak of 1:

# %% role="concept"
def schedule_rates(build, steps=100):
    """The rate of each step; step() is called after every step."""
    opt = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0,
                          momentum=0.9)
    schedule, used = build(opt), []
    for _ in range(steps):
        used.append(opt.param_groups[0]["lr"])
        opt.step()
        schedule.step()
    return used

def warm_cosine(opt):
    """A linear climb for 10 steps, then half a cosine."""
    climb = sched.LinearLR(opt, 0.1, total_iters=10)
    fall = sched.CosineAnnealingLR(opt, T_max=90)
    return sched.SequentialLR(opt, [climb, fall], milestones=[10])

# %% role="concept"
def trapezoid(step):
    """Warm-up, a long level part, a linear fall in the last fifth."""
    return min(1, (step + 1) / 10, (100 - step) / 20)

family = {
    "constant": schedule_rates(lambda o: sched.ConstantLR(o, 1.0)),
    "steps": schedule_rates(lambda o: sched.StepLR(o, 30, gamma=0.3)),
    "warm-up, cosine": schedule_rates(warm_cosine),
    "warm-up, level, fall": schedule_rates(
        lambda o: sched.LambdaLR(o, trapezoid)),
    "one-cycle": schedule_rates(
        lambda o: sched.OneCycleLR(o, max_lr=1.0, total_steps=100))}

# %% role="concept" tags=["plumbing"]
figure, axes = plt.subplots(1, 5, figsize=(6.6, 1.9), sharey=True)
for ax, (name, used) in zip(axes, family.items()):
    ax.plot(range(100), used)
    ax.set_title(name, fontsize=8, fontweight="normal")
    ax.set_xlabel("step")
axes[0].set_ylabel("learning rate")
figure.suptitle("Five schedules: where they climb, stay and fall", x=0.01,
                ha="left", fontsize=11, fontweight="bold",
                color=axes[0].title.get_color())
show(figure, "Five small plots of the learning rate over 100 steps. The "
             "constant schedule is level. The steps schedule falls in "
             "three jumps. Warm-up with cosine climbs for ten steps and "
             "falls in a smooth curve to zero. Warm-up, level, fall stays "
             "at the peak and falls in the last fifth. One-cycle climbs "
             "for thirty steps and falls to zero.")

# %% role="concept"
claim("largest difference between the peaks of the five schedules",
      max(map(max, family.values())) - min(map(max, family.values())),
      below=0.01)
claim("one-cycle: step of the peak, counted from 0, in a run of 100 steps",
      family["one-cycle"].index(max(family["one-cycle"])),
      expected=29)

# %% [markdown] role="concept"
# *Warm-up and cosine* is the usual choice for transformers. With *warm-up, level, fall*
# you need not know the length of the run in advance, because you can start the fall at
# any time. Libraries build such schedules from a name. In Hugging Face, the call is
# `get_scheduler("cosine", opt, num_warmup_steps=…, num_training_steps=…)`. This call
# returns one of torch's schedulers, whose `step()` you call after each optimizer step.
# Hugging Face's `Trainer` creates and steps the scheduler for you. The argument
# `num_training_steps` is the length of the whole run in optimizer steps. If you pass the
# number of batches and accumulate gradients over four batches, the run ends when the
# schedule is only a quarter done.
#
# *One-cycle* is one climb and one fall over the whole run, and the momentum is low where
# the rate is high. Its author reports *super-convergence*: with a very high peak, some
# networks reach their accuracy in far fewer steps ([Smith & Topin
# 2018](https://arxiv.org/abs/1708.07120)). The explanation offered is the same as above:
# a high rate acts as a regularizer and skips sharp minima. Super-convergence does not
# happen with every network, so measure it on your own network. Torch's `OneCycleLR` makes
# all four decisions in one object, and it overrides the rate and, by default, the
# momentum that you gave the optimizer:

# %% role="concept"
opt = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
one_cycle = sched.OneCycleLR(opt, max_lr=0.1, total_steps=500)
found = [(opt.param_groups[0]["lr"], opt.param_groups[0]["momentum"])]
for _ in range(499):
    opt.step()
    one_cycle.step()
    found.append((opt.param_groups[0]["lr"],
                  opt.param_groups[0]["momentum"]))
rates, momenta = zip(*found)

# %% role="concept"
claim("first learning rate under one-cycle, although the optimizer was "
      "given 0.1",
      rates[0], expected=0.004, within=1e-9)
claim("first momentum under one-cycle, although the optimizer was given "
      "0.9", momenta[0], expected=0.95, within=1e-9)

# %% [markdown] role="concept"
# Under one-cycle, the learning rate rises for nearly a third of the run and ends almost
# at zero:

# %% role="concept"
claim("one-cycle: step of the peak, counted from 0 (30 % of 500 steps)",
      rates.index(max(rates)), expected=149)
claim("last learning rate under one-cycle (the first rate divided by "
      "10,000)",
      rates[-1], expected=4e-7, within=1e-9)

# %% [markdown] role="concept"
# ## Warm-up: small steps until large ones are safe
#
# Adam takes its first step at full length on the evidence of a single batch, because
# after one gradient the size of $\hat m/\sqrt{\hat v}$ is 1, unless the gradient is 0.
# Many networks survive such a first step. The network below does not. This residual net
# has LayerNorm *after* each addition, the order used in the first transformers, and is
# trained at a rate that is high for such a net.

# %% role="concept"
class Block(nn.Module):
    """Residual MLP with the norm after the addition; x (N, 64)."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x):
        return self.norm(x + self.down(self.up(x).relu()))

# %% role="concept"
def with_warmup(warm, steps=150, peak=0.03):
    """Test accuracy after training with `warm` steps of linear warm-up."""
    net = nn.Sequential(*(Block() for _ in range(8)), nn.Linear(64, 10))
    opt = torch.optim.Adam(net.parameters(), lr=peak)
    for k in range(steps):
        opt.param_groups[0]["lr"] = peak * min(1, (k + 1) / warm)
        opt.zero_grad()
        batch_loss(net).backward()
        opt.step()
    return accuracy(net, x_test, y_test)

# %% role="concept"
cold, lower = with_warmup(1), with_warmup(1, peak=0.003)
warmed = sorted(with_warmup(50) for _ in range(3))[1]  # the middle one
print(f"accuracy at 0.03: no warm-up {cold:.2f}, 50 steps of warm-up "
      f"{warmed:.1f}; at 0.003, no warm-up: {lower:.2f}")

# %% role="concept"
claim("accuracy at a learning rate of 0.03 without warm-up",
      cold, below=0.4)
claim("median accuracy of three runs at a learning rate of 0.03 with 50 "
      "steps of warm-up",
      warmed, above=0.7)
claim("accuracy at a learning rate of 0.003 without warm-up",
      lower, above=0.7)

# %% role="concept"
plot_columns({"none": cold, "50 steps": warmed,
              "none, a tenth of the rate": lower}, form=".2f",
             xlabel="warm-up", ylabel="test accuracy", marks=["none"],
             reference=(0.1, "guessing"),
             title="A high rate needs a warm-up, a low rate does not",
             alt="Three columns. Without warm-up, the accuracy is at the "
                 "dashed line for guessing. With 50 steps of warm-up, the "
                 "accuracy is high, as it is without warm-up at a tenth of "
                 "the rate.")

# %% [markdown] role="concept"
# With the warm-up, the net trains even at this high rate, except that about one run in
# fifty still gets stuck. At a tenth of that rate, the net needs no warm-up at all. Here,
# a warm-up is the price of a high peak. With your own net, try both a warm-up and a lower
# rate. A warm-up usually takes 1 to 5 % of the run, or a few hundred to a few thousand
# steps. Transformers with the norm after the addition need a warm-up most, because their
# attention and their norm layers amplify a bad first step. Trap 05.2 shows how this
# happens.

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] trap="04.3" role="situation" core=true fault="scheduler.step() per batch, but its numbers count epochs" symptom="learning rate never rises, decays far too early or goes up and down: scheduler.step() per epoch or per batch"
# ## Ten epochs on a cosine
#
# Your run has ten epochs of 100 batches. `CosineAnnealingLR(opt, T_max=10)` brings the
# learning rate down to zero over the ten epochs. While tidying up, a teammate moves
# `schedule.step()` into the loop over batches. Nothing complains. "Then the first ten
# batches train, and all later batches run at a rate of zero," says a colleague. You log
# the rate of every batch.

# %% trap="04.3" role="break"
def rates_of(build, batches, every=1):
    """The rate of each batch; step() is called every `every` batches."""
    opt = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1,
                          momentum=0.9)
    schedule, used = build(opt), []
    for batch in range(1, batches + 1):
        used.append(opt.param_groups[0]["lr"])
        opt.step()
        if batch % every == 0:
            schedule.step()
    return used

def cosine(opt):
    return sched.CosineAnnealingLR(opt, T_max=10)

used = rates_of(cosine, 1000)                  # once per batch

# %% trap="04.3" role="guess" quoted="wrong"
guess("04.3", "How many of the 1,000 batches run at a rate of zero?",
      unit="batches")

# %% trap="04.3" role="look"
at_zero = sum(rate < 1e-9 for rate in used)
print(f"batches at a rate of zero: {at_zero}; highest rate of the last "
      f"hundred: {max(used[-100:]):.2f}")

# %% trap="04.3" role="look"
measured("04.3", at_zero, right=(50, 50))

# %% trap="04.3" role="look"
claim("number of batches, out of 1,000, with a rate of zero if step() is "
      "called per batch", at_zero, expected=50)

# %% trap="04.3" role="look"
plot_lines(range(1, 61), {"called per batch": used[:60],
                          "called per epoch": rates_of(cosine, 60, 100)},
           xlabel="batch", ylabel="learning rate",
           title="Past its end, the cosine climbs again",
           alt="The learning rate over the first 60 batches. Called per "
               "batch, it swings between 0.1 and zero three times. Called "
               "per epoch, it is still at 0.1.")

# %% [markdown] trap="04.3" role="look"
# The cosine does not stop at zero but climbs back to the full learning rate. The reverse
# mistake is just as silent. Here you call the `step()` of a one-cycle schedule with
# `total_steps=1000` only once per epoch:

# %% trap="04.3" role="look"
def cycle(opt):
    return sched.OneCycleLR(opt, max_lr=0.1, total_steps=1000)

starved = rates_of(cycle, 1000, every=100)      # once per epoch
print(f"rates run from {min(starved):.5f} to {max(starved):.5f}")

# %% trap="04.3" role="look"
claim("highest learning rate with one-cycle if step() is called per epoch "
      "(planned: 0.1)", max(starved), expected=0.0042, within=0.0001)

# %% [markdown] trap="04.3" role="why"
# A scheduler knows neither batches nor epochs. Unless you pass `step()` a number, it
# counts calls to `step()`, and its arguments also count calls. With `T_max=10`, the
# cosine falls for ten calls and climbs for the next ten, so in a thousand calls, it falls
# fifty times and climbs fifty times. The one-cycle schedule expects 1,000 calls and gets
# ten, so it has hardly begun to climb. Use the same unit for the arguments and for the
# calls.

# %% trap="04.3" role="why"
draw_blocks({"called per epoch": ["batch", "opt.step()", "schedule.step()"],
             "called per batch": ["batch", "opt.step()",
                                  "schedule.step()"]},
            bypass={"called per epoch": [(1, 0)],
                    "called per batch": [(2, 0)]},
            marks={"called per epoch": ["schedule.step()"]},
            captions={"called per epoch": "10 calls of 1,000",
                      "called per batch": "1,000 calls of 1,000"},
            title="The loop over batches decides how often the schedule "
                  "counts",
            alt="Two columns of boxes: batch, opt.step, schedule.step. On "
                "the left, the loop over batches closes before "
                "schedule.step. On the right, it closes after "
                "schedule.step.")

# %% trap="04.3" role="repair"
fed = rates_of(cycle, 1000)                     # once per batch
print(f"rates run up to {max(fed):.3f}")

# %% trap="04.3" role="repair"
claim("highest learning rate with one-cycle if step() is called per batch",
      max(fed),
      expected=0.1, within=1e-6)

# %% trap="04.3" role="repair"
plot_lines(range(1, 1001), {"per batch": fed, "per epoch": starved},
           xlabel="batch", ylabel="learning rate",
           title="Called once per epoch, one-cycle never starts",
           alt="The learning rate at each batch. Called per batch, it "
               "climbs to 0.1 at batch 300 and falls to zero. Called per "
               "epoch, it stays near 0.004.")

# %% [markdown] trap="04.3" role="repair"
# In the explorer below, "its numbers count" sets the unit of the schedule's arguments,
# and "step() is called" sets how often your loop calls `step()`. Set these two controls
# to different units.

# %% role="explore" explorer="schedules"
from dlsys_helpers.explorers.schedules import schedules

schedules

# %% [markdown] trap="04.3" role="more" topics="StepLR · a cosine that hardly falls · when one-cycle raises an error"
# `StepLR` counts calls in the same way. A cosine over 1,000 calls hardly falls when its
# `step()` is called once per epoch:

# %% trap="04.3" role="more"
steps = rates_of(lambda opt: sched.StepLR(opt, 30, 0.1), 1000)
claim("StepLR(30), meant for epochs but called per batch: learning rate "
      "at batch 100", steps[100], expected=1e-4, within=1e-9)
flat = rates_of(lambda opt: sched.CosineAnnealingLR(opt, 1000), 1000, 100)
claim("cosine with T_max=1000, called per epoch: last learning rate "
      "(first rate: 0.1)", flat[-1], expected=0.09998, within=1e-5)

# %% trap="04.3" role="more"
try:
    rates_of(cycle, 1002)
    refused = False
except ValueError as error:
    refused = "Tried to step" in str(error)

# %% trap="04.3" role="more"
claim("does OneCycleLR raise an error if it is called too often", refused,
      expected=True)
claim("one-cycle: batch of the peak, counted from 0 (30 % of 1,000 "
      "batches)", fed.index(max(fed)), expected=299)

# %% [markdown] trap="04.3" role="folklore"
# **Told:** Call `CosineAnnealingLR` once per epoch and `OneCycleLR` once per batch; a
# mix-up is silent. **Measured:** What matters is the unit of the arguments, not the
# class. A `CosineAnnealingLR` with `T_max=1000` belongs in the loop over batches. One of
# the two mix-ups with `OneCycleLR` is not silent, because too many calls raise a
# `ValueError`.

# %% trap="04.3" role="exercise" points=4 difficulty=3 minutes=20
def train_cosine(opt: torch.optim.Optimizer, losses: list, epochs: int,
                 accumulate: int) -> None:
    """Train with a cosine schedule that falls to zero over the whole run.

    Args:
        losses: one function per micro-batch. Each returns its scalar loss.
        epochs: how many times to go through the losses, in order.
        accumulate: make an update after this many micro-batches. Also make
            an update after the last micro-batch of each epoch. Each update
            uses the sum of its micro-batches' gradients.

    Update k of all U updates, counted from 0, runs at start * (1 + cos(pi k
    / U)) / 2. For each group, start is the rate that the group started
    with. Gradients that are left over from before do not count. No
    gradients are left at the end.

    Example: with 5 losses, 2 epochs and accumulate 2, U is 6.
    """
    # BEGIN SOLUTION
    updates = epochs * math.ceil(len(losses) / accumulate)
    schedule = sched.CosineAnnealingLR(opt, T_max=updates)
    opt.zero_grad()
    for _ in range(epochs):
        for n, loss in enumerate(losses, 1):
            loss().backward()
            if n % accumulate == 0 or n == len(losses):
                opt.step()
                opt.zero_grad()
                schedule.step()
    # END SOLUTION

# %% [markdown] trap="04.3" role="hint"
# 1. First decide what one call to the schedule's `step()` stands for. Here, each call stands for one update of the weights.
# 2. The number of updates in an epoch is the number of micro-batches divided by `accumulate`, rounded up.
# 3. Within an update, step the optimizer first and the schedule second. `T_max` is the total number of updates over all epochs.

# %% [markdown] trap="04.3" role="keep"
# **Keep:** A scheduler counts calls to its `step()`. Give its arguments in the unit of
# these calls, batches or epochs, and call its `step()` after `opt.step()`. **In your own
# code:** Before a long run, loop over all steps without data and plot the rate. Also call
# `opt.step()` in that loop, because most schedulers print a warning if you do not.
# **Source:** PyTorch documentation, ["How to adjust learning
# rate"](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate).

# %% [markdown] trap="04.4" role="situation" fault="AdamW decays by 0.01 when no weight_decay is given" symptom="AdamW differs from Adam although no weight decay was set"
# ## Adam and AdamW, no decay given
#
# You compare Adam with AdamW and pass no weight decay to either. Both optimizers run for
# 100 steps from the same start, on the same batches. Then you look for the weight that
# differs most between the two models.

# %% trap="04.4" role="break"
origin = classifier()

def trained(optimizer, **options):
    """Weights after 100 steps at 0.01; same start, same batches."""
    torch.manual_seed(SEED)
    model = copy.deepcopy(origin)
    fit(model, x_train, y_train, steps=100, lr=0.01,
        optimizer=lambda params, lr: optimizer(params, lr=lr, **options))
    return torch.cat([p.detach().flatten() for p in model.parameters()])

plain = trained(torch.optim.Adam)
forgotten = trained(torch.optim.AdamW)           # no weight_decay given

# %% trap="04.4" role="guess"
guess("04.4",
      "By how much do the two models differ in the weight that differs "
      "most?",
      choices=["by more than `1e-4`",
               "by about `1e-7`",
               "not at all"])

# %% trap="04.4" role="look"
gap = (forgotten - plain).abs().max()
unasked = torch.optim.AdamW([nn.Parameter(torch.ones(1))])
print(f"largest difference of a weight: {gap:.1e}")
print(f"decay alone removes a fraction of "
      f"{1 - (1 - 0.01 * 0.01) ** 100:.3f}")

# %% trap="04.4" role="look"
measured("04.4", 0)

# %% trap="04.4" role="look"
claim("largest difference in a weight between Adam and AdamW",
      gap, above=1e-4)

# %% [markdown] trap="04.4" role="why"
# If you leave the argument out, AdamW does not switch the decay off but uses its default,
# 0.01. By itself, at this rate, that decay removes 1 % of each weight in 100 steps. The
# difference between the two models can be larger, because models that differ get
# different gradients.
#
# Adam's own `weight_decay` is by default a different method. It adds $\lambda w$ to the
# *gradient*, so Adam also divides the decay by the gradient's size. AdamW multiplies the
# weight itself by a factor just below one.

# %% trap="04.4" role="why"
draw_blocks({"Adam": ["g + λw", "m and v", "divide", "step"],
             "AdamW": ["w times 1 − ηλ", "m and v", "divide", "step"]},
            marks={"Adam": ["g + λw"]},
            captions={"Adam": "the decay is also divided",
                      "AdamW": "the same fraction of each weight"},
            title="Adam's decay goes through the division",
            alt="Two columns of boxes. In Adam, the decay is added to the "
                "gradient before the averages and the division. In AdamW, "
                "the decay multiplies the weight and enters neither the "
                "averages nor the division.")

# %% [markdown] trap="04.4" role="repair"
# With `weight_decay=0`, AdamW is Adam, bit for bit:

# %% trap="04.4" role="repair"
off = trained(torch.optim.AdamW, weight_decay=0)
claim("with a decay of 0: largest difference in a weight between Adam and "
      "AdamW", (off - plain).abs().max(), expected=0)

# %% [markdown] trap="04.4" role="repair"
# What happens with a decay of 0.1 in both optimizers? Two weights start at 1. One weight
# gets small gradients, and the other gets large ones:

# %% trap="04.4" role="repair"
def after_decay(optimizer):
    """Two weights of 1; gradients alternate in sign, small and large."""
    w = nn.Parameter(torch.ones(2))
    opt = optimizer([w], lr=0.01, weight_decay=0.1)
    for k in range(300):
        w.grad = torch.tensor([0.01, 10.0]) * (-1) ** k
        opt.step()
    return w.tolist()

small, large = after_decay(torch.optim.Adam)
low, high = after_decay(torch.optim.AdamW)
print(f"Adam: {small:.2f} and {large:.2f}   "
      f"AdamW: {low:.2f} and {high:.2f}")

# %% trap="04.4" role="repair"
plot_bars({"Adam, small gradients": small, "Adam, large gradients": large,
           "AdamW, small gradients": low, "AdamW, large gradients": high},
          xlabel="what is left of a weight of 1 after 300 steps",
          title="Adam's decay spares weights with large gradients",
          alt="Four bars. Adam leaves nothing of the weight with small "
              "gradients and nearly all of the weight with large "
              "gradients. AdamW leaves the same fraction of both weights.")

# %% trap="04.4" role="repair"
claim("fraction of a weight that Adam's decay leaves if the gradients are "
      "small", small,
      below=0.05)

# %% [markdown] trap="04.4" role="more" topics="the two defaults · the bars in numbers"
# Here are the two defaults and the values of the other bars:

# %% trap="04.4" role="more"
claim("default weight decay of AdamW",
      unasked.defaults["weight_decay"], expected=0.01)
claim("default weight decay of Adam", torch.optim.Adam(
    [nn.Parameter(torch.ones(1))]).defaults["weight_decay"], expected=0)
claim("fraction of a weight that Adam's decay leaves if the gradients are "
      "large", large,
      above=0.9)
claim("difference between the two weights after 300 steps of AdamW",
      high - low, expected=0, within=0.001)

# %% [markdown] trap="04.4" role="folklore"
# **Told:** If you forget `weight_decay`, AdamW is just Adam. **Measured:** Without the
# argument, AdamW uses a decay of 0.01 and ends at different weights. With
# `weight_decay=0`, AdamW is Adam, bit for bit.

# %% trap="04.4" role="exercise" points=3 difficulty=2 minutes=15
def decoupled_step(opt: torch.optim.Optimizer, weight_decay: float) -> None:
    """Take one step of `opt` with decoupled weight decay.

    First multiply each weight by 1 - lr * weight_decay. Here, lr is the
    rate of the weight's own group. Then let opt take its usual step. A
    parameter whose grad is None does not change. With torch.optim.Adam, the
    result is AdamW. With torch.optim.SGD, the result is SGDW.

    Args:
        opt: was made without decay, and its groups keep a decay of 0.

    Example: for SGD at rate 0.1, weight 2, gradient 1 and decay 0.5, the
    weight becomes 2 * 0.95 - 0.1 = 1.8.
    """
    # BEGIN SOLUTION
    with torch.no_grad():
        for group in opt.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - group["lr"] * weight_decay)
    opt.step()
    # END SOLUTION

# %% [markdown] trap="04.4" role="hint"
# 1. Decoupled means that the decay never enters the gradient.
# 2. `opt.param_groups` is a list, and each entry has its own `"lr"` and `"params"`.
# 3. Multiply the weights in place under `torch.no_grad()`, before `opt.step()`.

# %% [markdown] trap="04.4" role="keep"
# **Keep:** Torch's AdamW uses a weight decay of 0.01 unless you pass `weight_decay=`.
# This decay multiplies the weight by $1 - \eta\lambda$. By default, Adam's own
# `weight_decay` is added to the gradient, which is a different method. **In your own
# code:** Always write `weight_decay=`, and read the value back from `opt.param_groups`.
# **Source:** Loshchilov & Hutter 2019, ["Decoupled Weight Decay
# Regularization"](https://arxiv.org/abs/1711.05101), algorithm 2.

# %% [markdown] trap="04.5" role="situation" fault="a learning rate too high looks like a rate too low" symptom="loss does not go down: learning rate too high or too low?"
# ## A rate of 0.0001 and a rate of 3
#
# Two people train your digit classifier for 200 steps with SGD and momentum, one at a
# learning rate of 0.0001 and the other at a rate of 3. The first run ends at a loss of
# about 2.3, which is the loss of a uniform guess.

# %% trap="04.5" role="break"
def run_at(lr, optimizer=momentum):
    """Loss on all digits, test accuracy and model after 200 steps."""
    model = classifier()
    fit(model, x_train, y_train, steps=200, lr=lr, optimizer=optimizer)
    with torch.no_grad():
        loss = F.cross_entropy(model(x_train), y_train).item()
    return loss, accuracy(model, x_test, y_test), model

low, high = run_at(0.0001), run_at(3)

# %% trap="04.5" role="guess"
guess("04.5", "At what loss does the run with a rate of 3 end?",
      choices=["below `0.5`",
               "about `2.3`",
               "above `10`",
               "`nan`"])

# %% trap="04.5" role="look"
print(f"rate 0.0001: loss {low[0]:.2f}   rate 3: loss {high[0]:.2f}")

# %% trap="04.5" role="look"
measured("04.5", 1)

# %% trap="04.5" role="look"
claim("loss at a learning rate of 3", high[0], expected=2.3, within=0.4)

# %% trap="04.5" role="look"
plot_columns({"rate 0.0001": low[0], "rate 3": high[0]},
             xlabel="", ylabel="loss after 200 steps", form=".2f",
             reference=(math.log(10), "guessing: ln 10"),
             title="The loss does not say which way to go",
             alt="Two columns of about the same height, both close to the "
                 "dashed line for guessing.")

# %% [markdown] trap="04.5" role="why"
# At a learning rate of 0.0001, the weights have hardly moved. At a rate of 3, the first
# steps moved the weights so far that the hidden units return 0 for every digit. Only the
# last layer's biases still learn, and the best that they can do is guess:

# %% trap="04.5" role="why"
def silent(model):
    """Fraction of hidden units that are 0 for all digits."""
    return (model[:2](x_train) == 0).all(0).float().mean().item()

print(f"silent at 0.0001: {silent(low[2]):.2f}, "
      f"at 3: {silent(high[2]):.2f}")

# %% trap="04.5" role="why"
claim("fraction of hidden units that return 0 for every digit, at a "
      "learning rate of 3", silent(high[2]), above=0.8)

# %% [markdown] trap="04.5" role="why"
# A *range test* tries a whole range of learning rates in one short run. Multiply the rate
# by a constant factor after each batch and watch the loss. Typically, the loss stays
# flat, falls, and then shoots up. By the lowest point, the smaller rates have already
# brought the loss down, so the rate at that point is close to a rate that fails. Train at
# a tenth of the rate at the lowest point.

# %% trap="04.5" role="repair"
def sweep(optimizer=momentum, steps=100, low=1e-5, high=10.0):
    """Rates and losses of a range test on a model that is thrown away."""
    model, rates, losses = classifier(), [], []
    opt = optimizer(model.parameters(), lr=low)
    for k in range(steps):
        opt.param_groups[0]["lr"] = low * (high / low) ** (k / (steps - 1))
        loss = batch_loss(model)
        rates.append(opt.param_groups[0]["lr"])
        losses.append(loss.item())
        if not losses[-1] <= 4 * min(losses):            # NaN as well
            break
        opt.zero_grad()
        loss.backward()
        opt.step()
    return rates, losses

# %% trap="04.5" role="repair"
rates, losses = sweep()
edge = rates[losses.index(min(losses))]
print(f"rate at the lowest loss: {edge:.2f}")

# %% trap="04.5" role="repair"
plot_lines(rates, {"loss": losses}, logx=True, logy=True,
           xlabel="learning rate", ylabel="loss of the batch",
           title="The lowest point is close to an edge",
           alt="Loss of a batch against a growing rate. The line is flat "
               "near 2.3, then falls, then shoots up near a rate of one.")

# %% trap="04.5" role="repair"
tenth, at_edge, beyond = (run_at(rate)[1]
                          for rate in (edge / 10, edge, 4 * edge))
print(f"trained at a tenth: {tenth:.2f}, at the lowest point: {at_edge:.2f}"
      f", at 4 times that: {beyond:.2f}")

# %% trap="04.5" role="repair"
claim("accuracy at a tenth of the learning rate with the lowest loss",
      tenth,
      above=0.92)

# %% role="explore" explorer="lr_range_test"
from dlsys_helpers.explorers.lr_range_test import lr_range_test

lr_range_test

# %% [markdown] trap="04.5" role="more" topics="the two runs · at the edge and beyond · without momentum"
# Training at the rate of the lowest point itself gains hardly any accuracy and can fail.
# At four times that rate, training fails:

# %% trap="04.5" role="more"
claim("loss at a learning rate of 0.0001",
      low[0], expected=2.3, within=0.15)
claim("accuracy of the better of two runs, one at a rate of 0.0001 and "
      "one at a rate of 3",
      max(low[1], high[1]), below=0.35)
claim("learning rate with the lowest loss in the range test",
      edge, above=0.1,
      below=2)
claim("accuracy at the rate with the lowest loss minus accuracy at a "
      "tenth of that rate", at_edge - tenth, below=0.03)
claim("accuracy at 4 times the learning rate with the lowest loss", beyond,
      below=0.9)

# %% [markdown] trap="04.5" role="more"
# A tenth is a safety margin, and the margin that you need depends on the optimizer.
# Without momentum, the same test finds the lowest loss at a higher rate, but a tenth of
# that rate is slow.

# %% trap="04.5" role="more"
sgd = torch.optim.SGD
rates, losses = sweep(sgd)
plain_edge = rates[losses.index(min(losses))]
slow, third = (run_at(plain_edge / part, sgd)[1] for part in (10, 3))
print(f"plain SGD: edge {plain_edge:.2f}, trained at a tenth {slow:.2f}, "
      f"at a third {third:.2f}")

# %% trap="04.5" role="more"
claim("accuracy of plain SGD at a tenth of the learning rate with the "
      "lowest loss",
      slow, above=0.87)
claim("plain SGD: accuracy at a third of the rate with the lowest loss "
      "minus accuracy at a tenth", third - slow, above=-0.05)

# %% trap="04.5" role="exercise" points=4 difficulty=3 minutes=20
def lr_find(model: nn.Module, loss_of, steps: int, low: float,
            high: float) -> float:
    """Return a tenth of the rate at which a range test has its lowest loss.

    Run plain SGD for steps k = 0 ... steps - 1. The rate of step k is low *
    (high / low)**(k / (steps - 1)). Stop at a loss that is NaN. Also stop
    at a loss of more than 4 times the lowest so far. The first of several
    equal losses counts.

    Args:
        model: may hold gradients from before, which do not count.
        loss_of: loss_of(model) draws a batch and returns its scalar loss,
            above 0. Call it once per step. Then make the update.
        steps: 2 or more.

    Afterwards, the model's state_dict() is as before. The parameters are
    the same objects.

    Example: if step 2 of 5, from 1e-4 to 1, has the lowest loss, return
    0.01 / 10 = 0.001.
    """
    # BEGIN SOLUTION
    saved = copy.deepcopy(model.state_dict())
    opt = torch.optim.SGD(model.parameters(), lr=low)
    best, answer = math.inf, low
    for k in range(steps):
        rate = low * (high / low) ** (k / (steps - 1))
        opt.param_groups[0]["lr"] = rate
        loss = loss_of(model)
        if not loss <= 4 * best:
            break
        if loss < best:
            best, answer = loss.item(), rate
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.load_state_dict(saved)
    return answer / 10
    # END SOLUTION

# %% [markdown] trap="04.5" role="hint"
# 1. The learning rates span decades, so multiply the rate by a factor instead of adding
#    an amount to it.
# 2. The test ruins the weights. `model.state_dict()` refers to the same weights, so keep a copy of the state dict.
# 3. If the loss is NaN, `not loss <= 4 * best` is true, but `loss > 4 * best` is false.

# %% [markdown] trap="04.5" role="keep"
# **Keep:** To find a learning rate, multiply the rate by a constant factor after every
# step, and stop when the loss shoots up. Take the rate at the lowest loss. With momentum,
# train at a tenth of that rate; with plain SGD, train at a third. **In your own code:**
# Repeat the test, with 100 steps or more, when you change the optimizer, the batch size
# or the model. **Source:** Smith 2017, ["Cyclical Learning Rates for Training Neural
# Networks"](https://arxiv.org/abs/1506.01186), section 3.3, for a sweep in which the rate
# rises linearly. The factor of a tenth is a rule of thumb, which this lesson tests above.

# %% [markdown] trap="04.6" role="situation" fault="max() as a floor: the cosine stands still" symptom="learning rate is flat at the end of cosine decay; first step has learning rate zero"
# ## A floor under a cosine
#
# The usual recipe for large models warms up the learning rate and then lets it follow a
# cosine down to a *floor*, a tenth of the peak. You copy such a schedule from a script,
# with 100 steps of warm-up and 1,000 steps in all. After the warm-up, the schedule takes
# the larger of two values: the floor, and a cosine that falls to zero. A comment below
# the script says: "Your first batch is wasted."

# %% trap="04.6" role="break"
def factor(step, warm=100, total=1000, floor=0.1):
    """Fraction of the peak at a step, as it is often written."""
    if step < warm:
        return step / warm
    done = (step - warm) / (total - warm)
    return max(floor, 0.5 * (1 + math.cos(math.pi * done)))

cut = [factor(step) for step in range(1000)]

# %% trap="04.6" role="guess" quoted="right"
guess("04.6",
      "How many of the 900 steps after the warm-up run exactly at the "
      "floor?", unit="steps")

# %% trap="04.6" role="look"
at_floor = sum(share == 0.1 for share in cut[100:])
print(f"steps on the floor: {at_floor}   first step: {cut[0]}")

# %% trap="04.6" role="look"
measured("04.6", at_floor, right=(150, 220))

# %% trap="04.6" role="look"
claim("number of steps after the warm-up that run at the floor", at_floor,
      expected=184)

# %% [markdown] trap="04.6" role="look"
# The comment is right about the weights. The first step has a rate of zero, so the first
# batch changes no weight. (Momentum and Adam's averages still take its gradient in.)

# %% trap="04.6" role="look"
claim("learning rate of the first step as a fraction of the peak",
      cut[0], expected=0)

# %% [markdown] trap="04.6" role="why"
# `max` cuts the lower end off a cosine that was heading for zero, so the rate reaches the
# floor early and stays there. A floor belongs *inside* the formula: the floor, plus the
# rest times the cosine. Without a warm-up, `CosineAnnealingLR(opt, T_max, eta_min=floor)`
# uses this formula. Steps are counted from 0, so in a warm-up over `warm` steps the
# factor is `(step + 1) / warm`, and step `warm - 1` runs at the peak. The cosine starts
# from step `warm - 1`, so the last step of the run is at the floor. (In the exercise, the
# cosine starts at step `warm`, so it reaches the floor at step `total`.)

# %% trap="04.6" role="repair"
def scaled(step, warm=100, total=1000, floor=0.1):
    if step < warm:
        return (step + 1) / warm
    done = (step + 1 - warm) / (total - warm)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))

smooth = [scaled(step) for step in range(1000)]
print(f"steps on the floor: {sum(s == 0.1 for s in smooth[100:])}   "
      f"first step: {smooth[0]}")

# %% trap="04.6" role="repair"
plot_lines(range(1000), {"max()": cut, "scaled": smooth}, xlabel="step",
           ylabel="rate as a fraction of the "
                  "peak", title="A cut cosine goes flat before its end",
           alt="Two schedules with warm-up. The cut schedule falls faster "
               "and is flat at a tenth for the last fifth. The scaled "
               "schedule reaches a tenth only at the end.")

# %% trap="04.6" role="repair"
arrives = cut.index(0.1, 100)
claim("scaled schedule: fraction of the peak at the step where the cut "
      "schedule reaches its floor",
      smooth[arrives], expected=0.19, within=0.002)

# %% [markdown] trap="04.6" role="more" topics="both ends of the schedule"
# The repaired schedule begins and ends where it should:

# %% trap="04.6" role="more"
claim("number of steps after the warm-up at which the scaled schedule does "
      "not change", sum(a == b for a, b in zip(smooth[101:], smooth[102:])),
      expected=0)
claim("first learning rate of the scaled schedule as a fraction of the "
      "peak",
      smooth[0], expected=0.01)
claim("last learning rate of the scaled schedule as a fraction of the peak",
      smooth[-1], expected=0.1, within=1e-9)

# %% trap="04.6" role="exercise" points=3 difficulty=2 minutes=15
def warmup_cosine(step: int, warm: int, total: int, peak: float,
                  floor: float) -> float:
    """Return the learning rate of a step.

    In steps 0 to warm - 1, the rate rises in a straight line, from peak /
    warm to peak. From step warm on, the rate follows half a cosine, from
    peak at step warm to floor at step total. Later steps run at floor.

    Args:
        step: the steps may come in any order.
        warm, total: 0 <= warm < total.
        peak, floor: rates, 0 <= floor <= peak.

    Example: for warm 2, total 4, peak 1 and floor 0.2, the rates are 0.5,
    1, 1, 0.6, 0.2.
    """
    # BEGIN SOLUTION
    if step < warm:
        return peak * (step + 1) / warm
    done = min(1.0, (step - warm) / (total - warm))
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * done))
    # END SOLUTION

# %% [markdown] trap="04.6" role="hint"
# 1. Write down the rates of the example by hand. Let `done` be the finished fraction of the cosine. At which step is `done` 0, and at which step is `done` 1?
# 2. Half a cosine is `0.5 * (1 + cos(pi * done))`, and it falls from 1 to 0. Which two rates should the half cosine connect?
# 3. `done` is 0 at step `warm` and 1 at step `total`. Cap it at 1 for later steps.

# %% [markdown] trap="04.6" role="keep"
# **Keep:** Put a schedule's floor inside the cosine formula, not in a `max` around it.
# Start a warm-up at `1 / warm` of the peak, not at 0. **In your own code:** Assert the
# learning rate at four steps: the first, the end of the warm-up, the middle and the last.
# **Source:** Loshchilov & Hutter 2017, ["SGDR"](https://arxiv.org/abs/1608.03983),
# equation 5, for a floor inside the formula.

# %% [markdown] trap="04.7" role="situation" fault="zero_grad(set_to_none=False): idle weights move on" symptom="parameters move although they received no gradient: zero_grad(set_to_none=False)"
# ## A head that is out of the loss
#
# A model has one trunk and two heads, one for each task. You train both tasks for 20
# steps, with Adam at a learning rate of 0.01, and then only the first task for another 20
# steps. The team's wiki says: "A zero gradient is a zero step." To be on the safe side,
# you call `zero_grad(set_to_none=False)`. So in the last 20 steps, the second head's
# gradient is exactly zero.

# %% trap="04.7" role="break"
def heads_loss(trunk, used, idle, both):
    """Loss of a batch: which digit, and if both, odd or even as well."""
    i = torch.randint(len(x_train), (64,))
    h = trunk(x_train[i]).relu()
    loss = F.cross_entropy(used(h), y_train[i])
    return loss + F.cross_entropy(idle(h), y_train[i] % 2) if both else loss

# %% trap="04.7" role="break"
def idle_drift(set_to_none):
    """Farthest that an idle head moves in 20 steps without a gradient."""
    parts = nn.ModuleList([nn.Linear(64, 32), nn.Linear(32, 10),
                           nn.Linear(32, 2)])
    idle = parts[2]
    opt = torch.optim.Adam(parts.parameters(), lr=0.01)
    for step in range(40):
        opt.zero_grad(set_to_none=set_to_none)
        heads_loss(*parts, both=step < 20).backward()
        if step == 20:
            stopped = idle.weight.detach().clone()
        opt.step()
    return (idle.weight - stopped).abs().max().item()

drift = idle_drift(set_to_none=False)

# %% trap="04.7" role="guess" quoted="wrong"
guess("04.7",
      "Of the second head's weights, take the one that moves farthest in "
      "the last 20 steps. How far does it move, as a multiple of the "
      "learning rate?",
      unit="learning rates")

# %% trap="04.7" role="look"
print(f"the idle head moved by up to {drift:.3f} at a rate of 0.01")

# %% trap="04.7" role="look"
measured("04.7", drift / 0.01, right=(4.5, 12))

# %% trap="04.7" role="look"
claim("largest distance that a weight of the idle head moves, divided by "
      "the learning rate", drift / 0.01, above=2)

# %% [markdown] trap="04.7" role="why"
# Adam moves each weight along its *memory*, the running average of past gradients. A zero
# gradient only lets that average fade, so the head coasts on. Weight decay, if it is set,
# also continues. `None` means something else: torch skips the tensor completely,
# including its running averages. A single weight shows the difference, after one gradient
# of 1:

# %% trap="04.7" role="why"
def path(grad, steps=10):
    """A weight under Adam: one gradient of 1, then always `grad`."""
    w = nn.Parameter(torch.ones(1))
    opt, seen = torch.optim.Adam([w], lr=0.1), [1.0]
    for step in range(steps):
        w.grad = grad if step else torch.ones(1)
        opt.step()
        seen.append(w.item())
    return seen

# %% trap="04.7" role="why"
plot_lines(range(11), {"then None": path(None),
                       "then zeros": path(torch.zeros(1))},
           xlabel="step", ylabel="weight",
           title="Adam coasts on with zeros, and stops with None",
           alt="A weight at each step. Both lines fall from 1 to 0.9 in "
               "the first step. With None, the line stays there. With "
               "zeros, it keeps falling, more and more slowly.")

# %% trap="04.7" role="repair"
with_none = idle_drift(set_to_none=True)
print(f"the idle head moved by {with_none:.3f}")

# %% trap="04.7" role="repair"
claim("largest distance that a weight of the idle head moves if its "
      "gradient is None",
      with_none, expected=0)

# %% [markdown] trap="04.7" role="more" topics="one weight in numbers · other optimizers · what plain zero_grad leaves"
# These claims put bounds on the second step in the figure, and on the same step with
# other optimizers. Plain SGD, Adagrad and RMSprop have no momentum to coast on:

# %% trap="04.7" role="more"
def second_step(grad, optimizer=torch.optim.Adam):
    """A weight of 1 after two steps: a gradient of 1, then `grad`."""
    w = nn.Parameter(torch.ones(1))
    opt = optimizer([w], lr=0.1)
    for w.grad in (torch.ones(1), grad):
        opt.step()
    return w.item()

# %% trap="04.7" role="more"
def coasts(optimizer):
    """How far a zero gradient moves the weight of second_step."""
    return abs(second_step(torch.zeros(1), optimizer)
               - second_step(None, optimizer))

# %% trap="04.7" role="more"
claim("a weight of 1 after two steps of Adam, with a gradient of None in "
      "the second step", second_step(None), expected=0.9, within=1e-6)
claim("a weight of 1 after two steps of Adam, with a gradient of zero in "
      "the second step",
      second_step(torch.zeros(1)), expected=0.833, within=0.001)
claim("SGD with momentum: length of a step with a zero gradient",
      coasts(momentum), expected=0.09, within=1e-6)
claim("plain SGD, Adagrad and RMSprop: longest step with a zero gradient",
      max(map(coasts, (torch.optim.SGD, torch.optim.Adagrad,
                       torch.optim.RMSprop))), expected=0)

# %% [markdown] trap="04.7" role="more"
# What does `zero_grad()` do if you pass no argument?

# %% trap="04.7" role="more"
w = nn.Parameter(torch.ones(1))
w.square().backward()
torch.optim.SGD([w]).zero_grad()
claim("does plain zero_grad() set the gradient to None", w.grad is None,
      expected=True)

# %% [markdown] trap="04.7" role="folklore"
# **Told:** A zero gradient is a zero step, so the two settings of `zero_grad` differ only
# in the memory they use. **Measured:** With plain SGD, Adagrad and RMSprop, a zero
# gradient is a zero step, as long as there is no momentum and no decay. With zeros, Adam
# and SGD with momentum keep moving the weights along past gradients. With `None`, which
# is what plain `zero_grad()` leaves, the weights do not move.

# %% trap="04.7" role="exercise" points=3 difficulty=2 minutes=15
def momentum_step(w: torch.Tensor, grad: torch.Tensor | None, state: dict,
                  lr: float, momentum: float) -> None:
    """Take one step of SGD with momentum on w, in place, as torch.optim.SGD
    does. Write the rule out, without torch.optim.

    Args:
        w, grad: (N,) float32. Do not change grad. The caller can overwrite
            grad later. If grad is None, neither w nor state changes.
        state: a dict for this weight alone. It is empty before the first
            step.
        lr, momentum: may change from step to step. Momentum 0 is plain SGD.

    Example: with w 1, rate 0.1, momentum 0.5 and gradients 1 and 0, w
    becomes 0.9, then 0.85.
    """
    # BEGIN SOLUTION
    if grad is None:
        return
    velocity = momentum * state.get("velocity", 0) + grad
    w.sub_(lr * velocity)
    state["velocity"] = velocity
    # END SOLUTION

# %% [markdown] trap="04.7" role="hint"
# 1. The *buffer* is the running sum of gradients that you keep in `state`. Compare what the buffer holds after a step with `None` and after a step with zeros.
# 2. Torch adds the whole gradient to the buffer, not a fraction of it, and applies the learning rate when it moves the weight.
# 3. Do not keep `grad` itself in `state`, because the caller may write into it.

# %% [markdown] trap="04.7" role="keep"
# **Keep:** Momentum still moves a weight whose gradient became zero. The optimizer skips a
# weight whose gradient is `None`. **In your own code:** To freeze a part, set its
# gradients to `None` or leave it out of the optimizer. **Source:** PyTorch documentation,
# [`Optimizer.zero_grad`](https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html).

# %% [markdown] trap="04.8" role="situation" fault="Adam without bias correction: steps too long" symptom="fine-tuning unstable in the first steps: Adam without bias correction"
# ## Adam without bias correction
#
# Your port of Adam leaves out the bias correction. You expect cautious first steps,
# because $m$ starts at zero and takes in only a tenth of each gradient. "The first steps
# are too long," says a reviewer.
#
# To find out, you give a weight a gradient of 1 at every step. With the correction, each
# step is exactly as long as the learning rate.

# %% trap="04.8" role="break"
def adam_moves(steps, corrected, b1=0.9, b2=0.999):
    """Size of each step for the gradient 1, in units of the rate."""
    m = v = 0.0
    sizes = []
    for t in range(1, steps + 1):
        m = b1 * m + (1 - b1) * 1.0
        v = b2 * v + (1 - b2) * 1.0 ** 2
        if corrected:
            sizes.append((m / (1 - b1**t)) / math.sqrt(v / (1 - b2**t)))
        else:
            sizes.append(m / math.sqrt(v))
    return sizes

bare = adam_moves(2000, corrected=False)

# %% trap="04.8" role="guess" quoted="right"
guess("04.8",
      "How long is the twelfth step without the correction, as a multiple "
      "of the learning rate?", unit="learning rates")

# %% trap="04.8" role="look"
print(f"step 1: {bare[0]:.2f}   step 12: {bare[11]:.2f}   "
      f"step 100: {bare[99]:.2f}   step 2,000: {bare[-1]:.3f}")

# %% trap="04.8" role="look"
measured("04.8", bare[11], right=(5, 8))

# %% trap="04.8" role="look"
claim("without bias correction: length of the 12th step divided by the "
      "learning rate",
      bare[11], expected=6.57, within=0.01)

# %% [markdown] trap="04.8" role="look"
# The twelfth step is the longest. After a hundred steps, the effect is still there:

# %% trap="04.8" role="look"
claim("without bias correction: length of the 100th step divided by the "
      "learning rate",
      bare[99], expected=3.24, within=0.01)

# %% [markdown] trap="04.8" role="why"
# $m$ starts too small, but so does $v$, and the step divides by the root of $v$. With
# $\beta_2 = 0.999$, $v$ fills up at a hundredth of the speed of $m$. So the quotient is too
# *large*, by a factor of $(1-\beta_1^t)/\sqrt{1-\beta_2^t}$. The correction divides each
# average by the fraction to which that average has filled up.

# %% trap="04.8" role="why"
ts = range(1, 2001)
plot_lines(ts, {"m": [1 - 0.9**t for t in ts],
                "root of v": [math.sqrt(1 - 0.999**t) for t in ts]},
           xlabel="step", ylabel="average, for a gradient of 1", logx=True,
           title="m fills up first, so m divided by the root of v is too "
                 "large",
           alt="Two averages at each step, for a gradient of 1. m has "
               "reached 1 by step 50. The root of v is still at 0.2 there "
               "and comes close to 1 only by step 2000.")

# %% trap="04.8" role="repair"
whole = adam_moves(2000, corrected=True)
print(f"step 1: {whole[0]:.2f}   step 12: {whole[11]:.2f}   "
      f"step 100: {whole[99]:.2f}   step 2,000: {whole[-1]:.3f}")

# %% trap="04.8" role="repair"
claim("with bias correction: largest relative gap between a step and the "
      "learning rate", max(abs(s - 1) for s in whole), below=1e-9)

# %% trap="04.8" role="repair"
plot_lines(range(1, 2001), {"without": bare, "corrected": whole},
           xlabel="step", ylabel="step size / rate", logx=True,
           title="Without correction, Adam's first steps are too long",
           alt="Step size in learning rates at each step. Without "
               "correction, it starts at 3, peaks near 6.6 at step 12 and "
               "comes down close to 1 by step 2000. With correction, it is "
               "1 throughout.")

# %% [markdown] trap="04.8" role="more" topics="more of the curve · other betas and too short a step"
# The first step is more than 3 learning rates long, and step 2,000 is still 7.5 % too
# long:

# %% trap="04.8" role="more"
t = 12
claim("without bias correction: length of the first step divided by the "
      "learning rate",
      bare[0], expected=3.16, within=0.01)
claim("without bias correction: number of the longest step, counted from 1",
      bare.index(max(bare)) + 1, expected=12)
claim("without bias correction: mean length of the first 100 steps "
      "divided by the rate",
      sum(bare[:100]) / 100, expected=4.66, within=0.01)
claim("without bias correction: length of the 12th step (expected: the "
      "formula's value)", bare[t - 1],
      expected=(1 - 0.9**t) / math.sqrt(1 - 0.999**t), within=1e-9)
claim("without bias correction: length of the 2,000th step divided by the "
      "learning rate, minus 1", bare[-1] - 1, expected=0.075, within=0.001)

# %% [markdown] trap="04.8" role="more"
# The very first step is $(1-\beta_1)/\sqrt{1-\beta_2}$ learning rates long, so both betas
# matter. With betas of 0.9 and 0.95, which some language models use, the first step is
# too short:

# %% trap="04.8" role="more"
short = adam_moves(1, corrected=False, b2=0.95)
claim("no bias correction, second beta of 0.95: first step divided by the "
      "learning rate", short[0], expected=0.447, within=0.001)

# %% [markdown] trap="04.8" role="folklore"
# **Told:** Without the correction, the first steps are tiny, and after step 100, the
# correction no longer matters. **Measured:** With the default betas and a steady
# gradient, the early steps are 3 to 6.57 times too long, and step 100 is still 3.24 times
# too long. With betas of 0.9 and 0.95, the first step is indeed short, at 0.447 of the
# learning rate. A BERT optimizer that lacked the correction has been blamed for unstable
# fine-tuning on small data sets.

# %% trap="04.8" role="exercise" points=4 difficulty=3 minutes=20
def adam_step(w: torch.Tensor, grad: torch.Tensor, state: dict, lr: float,
              betas: tuple[float, float], eps: float,
              weight_decay: float) -> None:
    """Take one step of AdamW on w, in place.

    With weight_decay 0.0, AdamW is Adam. Write the rule out, without
    torch.optim. The decay is decoupled, so first multiply w by 1 - lr *
    weight_decay. Over 200 steps, the weights match torch.optim.AdamW's.
    This also holds for gradients near eps.

    Args:
        w, grad: (N,) float32. Do not change grad.
        state: a dict for this weight alone. It is empty before the first
            step.
        lr: may change from step to step.
        betas, eps, weight_decay: may differ from weight to weight.

    Example: with w 1, gradient -7, rate 0.1 and decay 0, w becomes 1.1.
    """
    # BEGIN SOLUTION
    b1, b2 = betas
    t = state["t"] = state.get("t", 0) + 1
    m = state["m"] = b1 * state.get("m", 0) + (1 - b1) * grad
    v = state["v"] = b2 * state.get("v", 0) + (1 - b2) * grad**2
    w.mul_(1 - lr * weight_decay)
    size = (v / (1 - b2**t)).sqrt() + eps
    w.sub_(lr * (m / (1 - b1**t)) / size)
    # END SOLUTION

# %% [markdown] trap="04.8" role="hint"
# 1. Keep three things in `state`: two averages, and a step count that is 1 in the first step.
# 2. Correct both averages, and keep the uncorrected averages in `state`.
# 3. First take the root, then add `eps`. With tiny gradients, the order matters.

# %% [markdown] trap="04.8" role="keep"
# **Keep:** With the default betas, Adam without bias correction starts with steps that
# are three to seven times too long. **In your own code:** Compare every port of an
# optimizer with torch's version for many steps, and include tiny gradients. **Source:**
# [Kingma & Ba 2015](https://arxiv.org/abs/1412.6980), section 3; Zhang et al. 2020,
# ["Revisiting Few-sample BERT Fine-tuning"](https://arxiv.org/abs/2006.05987).

# %% [markdown] trap="04.9" role="situation" fault="Lion with one beta: its momentum forgets too fast" symptom="own Lion implementation differs from the paper: one beta for update and momentum"
# ## Lion with one beta for two jobs
#
# Each step of Lion follows the sign of a blend of momentum and gradient. You port Lion
# from a summary that uses $\beta_1 = 0.9$ twice, once in the blend and once in the update
# of the momentum. The paper uses a second value, $\beta_2 = 0.99$, for the update. The
# network trains, and its accuracy is fine. You test the summary's rule and the paper's
# rule on gradients that are pure noise.

# %% trap="04.9" role="break"
def lion_signs(gradients, b1, b2):
    """The direction of every step; gradients (T, N)."""
    m, signs = torch.zeros_like(gradients[0]), []
    for g in gradients:
        signs.append((b1 * m + (1 - b1) * g).sign())
        m = b2 * m + (1 - b2) * g
    return torch.stack(signs)

noise = torch.randn(1000, 500)           # gradients that are all noise
summary = lion_signs(noise, 0.9, 0.9)
paper = lion_signs(noise, 0.9, 0.99)

# %% trap="04.9" role="guess"
guess("04.9",
      "In what percentage of the steps do the two rules move a weight in "
      "opposite directions?", unit="%")

# %% trap="04.9" role="look"
def flipped(a, b):
    """Fraction of directions that differ after the first 500 steps."""
    return (a != b)[500:].float().mean().item()

print(f"steps that go the other way: {flipped(summary, paper):.3f}")

# %% trap="04.9" role="look"
measured("04.9", 100 * flipped(summary, paper), right=(20, 36))

# %% trap="04.9" role="look"
claim("on noise: fraction of steps in which the two rules move a weight "
      "in opposite directions", flipped(summary, paper), expected=0.279,
      within=0.01)

# %% [markdown] trap="04.9" role="why"
# The two betas have different jobs. $\beta_1$ sets how much the newest gradient counts in
# *this* step, and $\beta_2$ sets how long the momentum remembers. With 0.9 for both
# betas, the momentum remembers ten steps instead of a hundred, so the direction is
# noisier. A strong signal hides the fault, because then the port and the paper's version
# move the weights in the same direction.

# %% trap="04.9" role="why"
ages = torch.arange(1, 2000, dtype=torch.float64)

def blend(b1, b2):
    """Weights in the blend: the newest gradient, then each older one."""
    old = b1 * (1 - b2) * b2 ** (ages - 1)
    return torch.cat([torch.tensor([1 - b1], dtype=torch.float64), old])

one, two = blend(0.9, 0.9), blend(0.9, 0.99)

# %% trap="04.9" role="why"
plot_lines(range(101), {"0.9 twice": one[:101],
                        "0.9 and 0.99": two[:101]},
           xlabel="age of a gradient, in steps",
           ylabel="its weight in the blend",
           title="With one beta, the memory is ten steps, not a hundred",
           alt="Weight of a gradient against its age. With 0.9 twice, it "
               "falls from 0.1 to almost nothing within 40 steps. With 0.9 "
               "and 0.99, only the newest gradient has a weight of 0.1. "
               "Older gradients have low weights that fall slowly over a "
               "hundred steps.")

# %% [markdown] trap="04.9" role="repair"
# With two betas, the port matches the paper. To test any port, feed it noise. The
# correlation $\rho$ between two blends predicts what fraction of their signs differ:
# $\arccos(\rho)/\pi$.

# %% trap="04.9" role="repair"
rho = (one @ two) / (one.norm() * two.norm())
share = math.acos(rho) / math.pi
print(f"correlation {rho:.3f}, so {share:.3f} of the signs flip")

# %% trap="04.9" role="repair"
claim("on noise: fraction of steps in opposite directions, as theory "
      "predicts it",
      share, expected=0.279, within=0.001)

# %% [markdown] trap="04.9" role="more" topics="where a signal hides the fault · a lower learning rate needs a higher decay"
# If the gradient contains a signal as large as its noise, the two versions almost always
# agree:

# %% trap="04.9" role="more"
biased = noise + 1.0
hidden = flipped(lion_signs(biased, 0.9, 0.9),
                 lion_signs(biased, 0.9, 0.99))
claim("fraction of steps in opposite directions if a signal is added to "
      "the noise", hidden, below=0.02)

# %% [markdown] trap="04.9" role="more"
# When you lower the learning rate for Lion, each step also decays the weights less:

# %% trap="04.9" role="more"
before, smaller = shrunk(1e-2, 0.1, 1000), shrunk(1e-3, 0.1, 1000)
print(f"left of a weight: {before:.3f}; tenth of the rate: {smaller:.3f}")

# %% trap="04.9" role="more"
claim("log of the fraction left of a weight: value at rate 0.01 divided "
      "by value at rate 0.001",
      math.log(before) / math.log(smaller), expected=10,
      within=0.01)
claim("fraction of a weight left at rate 0.001, decay 1 (expected: as at "
      "rate 0.01, decay 0.1)", shrunk(1e-3, 1.0, 1000), expected=before,
      within=1e-9)

# %% [markdown] trap="04.9" role="folklore"
# **Told:** Lion needs a third to a tenth of Adam's learning rate. **Measured:** The lower
# rate is only half of the advice. In both AdamW and Lion, the fraction of a weight that
# decoupled decay removes in one step is the rate times $\lambda$. At a tenth of the rate,
# 1,000 steps without a gradient shrink a weight to the same fraction only if the decay is
# ten times as large.

# %% trap="04.9" role="exercise" points=3 difficulty=2 minutes=15
def lion_step(w: torch.Tensor, grad: torch.Tensor, state: dict, lr: float,
              betas: tuple[float, float], weight_decay: float) -> None:
    """Apply decoupled decay to w. Then take one step of Lion.

    Work in place. The sign of 0 is 0.

    Args:
        w, grad: (N,) float32. Do not change grad.
        state: a dict for this weight alone. It is empty before the first
            step.
        lr: may change from step to step.
        betas, weight_decay: may differ from weight to weight. The first
            beta blends the direction of the step. The second beta updates
            the momentum. The momentum starts at zero.

    Example: with w 1, gradient -3, rate 0.1 and decay 0.5, the first step
    makes w 0.95 + 0.1 = 1.05.
    """
    # BEGIN SOLUTION
    b1, b2 = betas
    m = state.get("m", torch.zeros_like(w))
    direction = (b1 * m + (1 - b1) * grad).sign()
    w.mul_(1 - lr * weight_decay)
    w.sub_(lr * direction)
    state["m"] = b2 * m + (1 - b2) * grad
    # END SOLUTION

# %% [markdown] trap="04.9" role="hint"
# 1. You need two blends of the same two tensors, with different betas. One blend sets the direction, and the other is kept in `state`.
# 2. Compute the direction from the momentum as it was *before* this step's update.
# 3. The decay multiplies the weight by `1 - lr * weight_decay`. The decay never enters
#    the sign.

# %% [markdown] trap="04.9" role="keep"
# **Keep:** Lion needs both betas: $\beta_1$ sets the direction of the step, and $\beta_2$
# sets how long the momentum remembers. With a tenth of AdamW's rate and as many steps,
# use ten times its weight decay. **In your own code:** Feed your port pure noise, and
# compare its directions with the paper's. Accuracy may not show the fault. **Source:**
# [Chen et al. 2023](https://arxiv.org/abs/2302.06675), algorithm 2 and section 5.

# %% [markdown] trap="04.11" role="situation" fault="Adam's second moment in bfloat16 never falls" symptom="bfloat16 model with AdamW: steps stay too short after large gradients, exp_avg_sq does not fall"
# ## A model in sixteen bits
#
# To save memory, you load a model in bfloat16. AdamW keeps its moments in the same dtype.
# bfloat16 has the range of float32, but only two to three decimal digits of precision. A
# design document says: "With the default second beta of 0.999, we average a thousand
# gradients. The rounding errors cancel."
#
# Many runs begin with large gradients. Here the first five gradients are *loud*, 30 times
# as large as the next 3,000. You track the second moments in bfloat16 and in float32.

# %% trap="04.11" role="break"
def moments(dtype, loud=30.0, quiet=3000, **options):
    """exp_avg_sq (300,) after five loud gradients and each quiet one."""
    w = nn.Parameter(torch.zeros(300, dtype=dtype))
    opt, seen = torch.optim.AdamW([w], lr=0.001, **options), []
    for step in range(5 + quiet):
        noise = torch.randn(300) * (loud if step < 5 else 1.0)
        w.grad = noise.to(dtype)
        opt.step()
        if step >= 4:
            seen.append(opt.state[w]["exp_avg_sq"].float().clone())
    return torch.stack(seen)

full = moments(torch.float32)
half = moments(torch.bfloat16)

# %% trap="04.11" role="guess" quoted="wrong"
guess("04.11",
      "At the end, how large is the mean second moment in bfloat16, as a "
      "multiple of the mean in float32?", unit="times")

# %% trap="04.11" role="look"
larger = (half[-1].mean() / full[-1].mean()).item()
print(f"float32: {full[0].mean():.1f} falls to {full[-1].mean():.1f}   "
      f"bfloat16: {half[0].mean():.1f} becomes {half[-1].mean():.1f}")

# %% trap="04.11" role="look"
measured("04.11", larger, right=(2.8, 5.5))

# %% trap="04.11" role="look"
claim("final second moment in bfloat16 divided by final second moment in "
      "float32", larger, above=3)

# %% trap="04.11" role="look"
plot_lines(range(0, 3001, 50), {"float32": full[::50].mean(1),
                                "bfloat16": half[::50].mean(1)},
           xlabel="quiet steps", ylabel="mean of exp_avg_sq",
           title="float32 forgets the loud start, bfloat16 does not",
           alt="The second moment over 3,000 quiet steps. In float32, it "
               "falls from about 4.5 to about 1.2. In bfloat16, it also "
               "starts at about 4.5, but rises a little.")

# %% [markdown] trap="04.11" role="look"
# Adam divides by the root of the second moment, so in bfloat16, Adam's steps have about
# half the right length. How many of the 300 moments have fallen since the loud start?

# %% trap="04.11" role="look"
claim("number of bfloat16 moments that are lower at the end than after the "
      "loud start",
      (half[-1] < half[0]).sum(), expected=0)

# %% [markdown] trap="04.11" role="why"
# A small gradient lowers the moment by a thousandth, to $0.999\,v$. Between two
# neighbouring powers of two, bfloat16 has 128 evenly spaced values, so the nearest value
# below $v$ is at least a 256th of $v$ away. A thousandth is less than half of that gap,
# so the result rounds back to $v$. A gradient whose square is several times $v$ still
# raises the moment. So the moment goes up and never down.

# %% trap="04.11" role="why"
draw_line({"bfloat16": [(1.4921875, "1.492"), (1.5, "1.5"),
                        (1.5078125, "1.508")],
           "0.999 times 1.5": [(0.999 * 1.5, "1.4985")]},
          title="0.999 times 1.5 is rounded back to 1.5",
          alt="A number line. The bfloat16 values 1.492, 1.5 and 1.508 are "
              "far apart. 0.999 times 1.5 is just to the left of 1.5.")

# %% trap="04.11" role="why"
octave = (torch.arange(128, 256) / 128).bfloat16()      # all from 1 to 2
claim("number of the 128 bfloat16 values from 1 to 2 that fall when "
      "multiplied by 0.999", (octave * 0.999 < octave).sum(), expected=0)

# %% [markdown] trap="04.11" role="repair"
# Keep the weights, and with them the moments, in float32, and let autocast run only the
# computation in bfloat16:

# %% trap="04.11" role="repair"
layer = nn.Linear(8, 8)
opt = torch.optim.AdamW(layer.parameters(), lr=0.001)
with torch.autocast("cpu", torch.bfloat16):
    layer(torch.randn(4, 8)).square().mean().backward()
opt.step()
kept = opt.state[layer.weight]["exp_avg_sq"]
print(f"under autocast the second moment is {kept.dtype}")

# %% trap="04.11" role="repair"
claim("under autocast: number of bytes per value of the second moment",
      kept.element_size(), expected=4)

# %% [markdown] trap="04.11" role="repair"
# If memory is short, *round at random*. A value nine tenths of the way to the next value
# is rounded up nine times out of ten, and down otherwise. Each single result is off, but
# the mean of many is right. With whole numbers, rounding $0.999 \cdot 100 = 99.9$ to the
# nearest returns 100 every time:

# %% trap="04.11" role="repair"
def at_random(x):
    """x as whole numbers: 99.9 is 100 nine times out of ten, else 99."""
    low = x.floor()
    return low + (torch.rand_like(x) < x - low)

nearest = drawn = torch.full((1000,), 100.0)
for _ in range(1000):
    nearest = (0.999 * nearest).round()
    drawn = at_random(0.999 * drawn)
print(f"to the nearest: {nearest.mean():.1f}   drawn: {drawn.mean():.1f}   "
      f"exact: {100 * 0.999**1000:.1f}")

# %% trap="04.11" role="repair"
claim("mean value after 1,000 multiplications by 0.999, each rounded at "
      "random",
      drawn.mean(), expected=100 * 0.999**1000, within=1)

# %% [markdown] trap="04.11" role="more" topics="without a loud start · other betas · the fused step"
# Even without a loud start, the second moment in bfloat16 is too large. The cause is not
# that AdamW rounds after each operation, because the `fused` version, which computes in
# float32 and rounds once, ends with moments that are about as large. With a second beta
# of 0.95, as in many language models, each step reduces the average by more than the gap
# to the next value:

# %% trap="04.11" role="more"
even = moments(torch.bfloat16, loud=1.0)[-1].mean()
exact = 1 - 0.999**3005                     # as in float32
fused = moments(torch.bfloat16, fused=True)[-1].mean()
quick = moments(torch.bfloat16, quiet=500, betas=(0.9, 0.95))[-1].mean()
print(f"no loud start: {even:.2f} for {exact:.2f}   fused: {fused:.1f}   "
      f"beta 0.95: {quick:.2f}")

# %% trap="04.11" role="more"
claim("without a loud start: second moment in bfloat16 divided by second "
      "moment in float32", even / exact, above=1.5)
claim("after a loud start: fused step's bfloat16 second moment divided by "
      "the float32 moment", fused / full[-1].mean(), above=3)
claim("after a loud start, second beta of 0.95: mean second moment (it "
      "should be 1)", quick, expected=1, within=0.1)

# %% [markdown] trap="04.11" role="folklore"
# **Told:** Training works as well with bfloat16 moments as with float32 moments;
# [`NVIDIA/TransformerEngine#1465`](https://github.com/NVIDIA/TransformerEngine/pull/1465)
# reports similar convergence. **Measured:** With rounding to the nearest value, the
# result depends on the second beta. With a second beta of 0.95, the moment follows the
# gradients. With the default of 0.999, the moment only rises.

# %% trap="04.11" role="exercise" points=4 difficulty=3 minutes=25
def moment_step(v: torch.Tensor, grad: torch.Tensor, beta2: float,
                generator: torch.Generator) -> torch.Tensor:
    """Return Adam's next second moment, rounded stochastically to bfloat16.

    Let x = beta2 * v + (1 - beta2) * grad**2, computed in float32. Where x
    is a bfloat16 value, return x itself. Elsewhere, return one of the two
    bfloat16 neighbours of x. Return the upper one with probability (x -
    lower) / (upper - lower).

    Args:
        v: (N,) bfloat16, 0 or more, the moment so far.
        grad: (N,) float32 or bfloat16.
        beta2: 0 <= beta2 < 1.
        generator: the only source of randomness. Draw for every entry
            separately. Draw again in each call.

    Returns: (N,) bfloat16. v and grad do not change.

    Example: with v 1.5, gradient 0 and beta2 0.999, x is 1.4985. Return 1.5
    four times out of five, otherwise 1.4921875.
    """
    # BEGIN SOLUTION
    x = beta2 * v.float() + (1 - beta2) * grad.float()**2
    part, power = torch.frexp(x)              # x = part * 2**power
    scaled = 256 * part                       # bfloat16 has 8 bits of it
    low = scaled.floor()
    up = torch.rand(x.shape, generator=generator) < scaled - low
    return torch.ldexp((low + up) / 256, power).bfloat16()
    # END SOLUTION

# %% [markdown] trap="04.11" role="hint"
# 1. Only the returned moment has to be in bfloat16. Convert `v` and `grad` to float32 before you compute `x`, and draw with `torch.rand(x.shape, generator=generator)`.
# 2. `torch.frexp(x)` splits `x` into a part from 0.5 to 1 and a power of two. Multiply the part by 256. Then the whole numbers are exactly the bfloat16 values, so you only have to round up or down at random.
# 3. You can also work on the bits. A bfloat16 value is a float32 value whose lower 16 bits are zero, and `x.view(torch.int32)` shows the bits.

# %% [markdown] trap="04.11" role="keep"
# **Keep:** A running average changes by about $1-\beta$ of itself per step, and its dtype
# has to represent that change. bfloat16 with rounding to the nearest value cannot
# represent a change of a thousandth, so keep Adam's moments in float32. **In your own
# code:** Print the dtype of `opt.state[p]["exp_avg_sq"]`, and count its entries that have
# fallen after a hundred steps. **Seen in the wild:**
# [`whitecircle/halo#30`](https://github.com/whitecircle/halo/pull/30) measured a second
# moment that was off by tens of percent with rounding to the nearest value.
# [`NVIDIA-NeMo/Automodel#2248`](https://github.com/NVIDIA-NeMo/Automodel/pull/2248) adds
# a guide that warns against keeping the moments in the dtype of a bfloat16 model.
# **Source:** Zamirai et al. 2021, ["Revisiting BFloat16
# Training"](https://arxiv.org/abs/2010.06192), on rounding at random.

# %% [markdown] trap="04.10" role="situation" fault="Muon orthogonalizes each rank's shard, not the matrix" symptom="Muon's update changes with the number of GPUs: sharded or tensor-parallel weights"
# ## One matrix on four ranks
#
# A hidden layer of 256 by 256 no longer fits on one GPU. So its rows are split over four
# GPUs, the *ranks* (not the rank of a matrix). Each rank holds 64 rows with their
# gradient and momentum and updates only these rows. With AdamW, this works. You switch to
# Muon, whose step is a matrix with singular values near one. A pull request says: "Each
# rank still brings the singular values of its rows to one. So the step is as long as if
# one rank held all rows."
#
# In the code, one process plays all four ranks.

# %% trap="04.10" role="break"
def wide():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(),
                         nn.Linear(256, 256), nn.ReLU(),
                         nn.Linear(256, 10))

net = wide()
batch_loss(net).backward()
pull = net[2].weight.grad                    # (256, 256)

# %% trap="04.10" role="break"
def step_of(optimizer, grad, ranks):
    """First step of a weight whose rows are on this many ranks."""
    rows = []
    for part in grad.chunk(ranks):           # what one rank holds
        w = nn.Parameter(torch.zeros_like(part))
        w.grad = part.clone()
        optimizer([w], lr=1.0, weight_decay=0).step()
        rows.append(-w.detach())
    return torch.cat(rows)

muon = torch.optim.Muon
whole, apart = step_of(muon, pull, 1), step_of(muon, pull, 4)

# %% trap="04.10" role="guess" quoted="wrong"
guess("04.10",
      "How long is the four ranks' joint step, as a multiple of the step "
      "that one rank takes on all rows?", unit="times")

# %% trap="04.10" role="look"
times = (apart.norm() / whole.norm()).item()
adamw = torch.optim.AdamW
moved = (step_of(adamw, pull, 4) - step_of(adamw, pull, 1)).abs().max()
print(f"AdamW: largest difference {moved:.0e}   Muon: {times:.2f} times")

# %% trap="04.10" role="look"
measured("04.10", times, right=(1.3, 2.3))

# %% trap="04.10" role="look"
claim("norm of Muon's step on four ranks divided by the norm of the step "
      "on one rank", times, above=1.5)

# %% trap="04.10" role="look"
lengths = {str(n): (step_of(muon, pull, n).norm() / whole.norm()).item()
           for n in (1, 2, 4, 8)}
plot_columns(lengths, xlabel="ranks", ylabel="norm of the step",
             form=".2f", title="More ranks, a longer step",
             alt="Columns for 1, 2, 4 and 8 ranks. Each column is higher "
                 "than the one before. On 8 ranks, the step is nearly "
                 "twice as long as on one rank.")

# %% [markdown] trap="04.10" role="look"
# The direction also differs. The distance between the two steps is about as large as the
# right step's norm:

# %% trap="04.10" role="look"
claim("distance between four ranks' step and one rank's step, divided by "
      "the latter's norm", (apart - whole).norm() / whole.norm(), above=0.9)

# %% [markdown] trap="04.10" role="why"
# AdamW works entry by entry, so it does not matter where a row is stored. Muon's rule
# works on a *matrix*. The gradient of a batch of 64 digits has at most 64 directions, and
# each direction runs through all rows. On one rank, a strong direction gets a norm of
# one, so each quarter of it has a norm of about one half, since $4 \cdot (1/2)^2 = 1$.
# Four ranks bring each quarter to a norm of one, so the direction has a norm of $\sqrt{4}
# = 2$. Weak directions grow less.

# %% trap="04.10" role="why"
tops = {name: torch.linalg.svdvals(step)[:40]
        for name, step in {"one rank": whole, "four ranks": apart}.items()}
plot_lines(range(1, 41), tops, xlabel="index of the direction",
           ylabel="singular value of the step",
           title="Four ranks double each strong direction",
           alt="The forty largest singular values of the step. With one "
               "rank, these values are around one. With four ranks, each "
               "value is nearly twice as large.")

# %% trap="04.10" role="why"
claim("largest singular value of the step on four ranks",
      tops["four ranks"][0], above=1.8, below=2.6)

# %% trap="04.10" role="repair"
def gathered(grad, ranks):
    """The same step, but each rank orthogonalizes the whole matrix."""
    parts, rows = grad.chunk(ranks), []
    for rank in range(ranks):
        matrix = torch.cat(parts)            # an all-gather
        rows.append(step_of(muon, matrix, 1).chunk(ranks)[rank])
    return torch.cat(rows)

mended = (gathered(pull, 4) - whole).abs().max()
print(f"largest difference from one rank: {mended:.0e}")

# %% trap="04.10" role="repair"
claim("after gathering: largest difference between four ranks' step and "
      "one rank's step", mended, expected=0)

# %% [markdown] trap="04.10" role="repair"
# Each rank keeps its rows of the momentum. Only the matrix that Muon orthogonalizes has
# to be whole. An *all-gather* sends every part to every rank.
#
# Query, key and value weights are often stored as one stack. If you orthogonalize the
# stack as one matrix, a part with a far larger gradient gets most of the step. Cut the
# stack into its matrices first.

# %% [markdown] trap="04.10" role="more" topics="a smaller learning rate · a gradient without strong directions · a stack of three · what the loss says · sharded tensors of torch"
# If you divide the four ranks' step by the root of four, its norm is about right, but the
# step is still far from the right step. A matrix of noise has no strong directions. It
# has 256 directions of similar size, and each of four ranks finds 64 directions of its
# own, so the joint step is about as long as one rank's step. But the joint step still
# points in a different direction:

# %% trap="04.10" role="more"
noise = torch.randn(256, 256)
one, four = step_of(muon, noise, 1), step_of(muon, noise, 4)

# %% trap="04.10" role="more"
claim("on noise: norm of four ranks' step divided by the norm of one "
      "rank's step",
      four.norm() / one.norm(), above=0.85, below=1.1)
claim("on noise: distance from four ranks' step to one rank's step, "
      "divided by the latter's norm",
      (four - one).norm() / one.norm(), above=0.5)

# %% [markdown] trap="04.10" role="more"
# Here is a stack of three matrices, in which one gradient is ten times as large as the
# other two:

# %% trap="04.10" role="more"
stack = torch.randn(192, 64)
stack[:64] *= 10                            # the query's gradient
joint, each = step_of(muon, stack, 1), step_of(muon, stack, 3)

# %% trap="04.10" role="more"
claim("half of four ranks' step: distance from the right step, divided by "
      "the right step's norm", (apart / 2 - whole).norm() / whole.norm(),
      above=0.4)
claim("one stack: norm of the part with the large gradient divided by the "
      "step's norm", joint[:64].norm() / joint.norm(), above=0.85)
claim("stack cut apart: norm of the part with the large gradient divided "
      "by the step's norm", each[:64].norm() / each.norm(),
      expected=math.sqrt(1 / 3), within=0.03)

# %% [markdown] trap="04.10" role="more"
# Does the loss show the fault? Train the layer on one rank and on sixteen, at a learning
# rate of 0.02:

# %% trap="04.10" role="more" tags=["plumbing"]
def trained_on(ranks, steps=60):
    """Loss on all training digits; Muon has the hidden layer's rows."""
    model = wide()
    hidden = model[2].weight
    rest = [p for p in model.parameters() if p is not hidden]
    rows = hidden.detach().chunk(ranks)      # views: a step is seen
    opts = [muon(rows, lr=0.02), adamw(rest, lr=0.001)]
    for _ in range(steps):
        model.zero_grad()
        batch_loss(model).backward()
        for w, g in zip(rows, hidden.grad.chunk(ranks)):
            w.grad = g
        for opt in opts:
            opt.step()
    return F.cross_entropy(model(x_train), y_train).item()

# %% trap="04.10" role="more"
single, sixteen = trained_on(1), trained_on(16)
print(f"loss on one rank {single:.2f}, on sixteen {sixteen:.2f}")

# %% trap="04.10" role="more"
claim("loss on sixteen ranks divided by loss on one rank, at a learning "
      "rate of 0.02",
      sixteen / single, below=0.6)

# %% [markdown] trap="04.10" role="more"
# On sixteen ranks, the loss is lower, because the learning rate is low and sixteen ranks
# take longer steps. So the loss rewards the fault. But the fault has a cost, because with
# the same settings, a different number of GPUs leads to a different result.
#
# Torch's own sharded tensors, `DTensor`, are an exception. A product of two such tensors
# is the product of the whole matrices, and torch does the necessary communication. So
# `torch.optim.Muon` is correct on these tensors, up to its rounding to bfloat16 (not
# small if the gradient has a low rank), but the ranks send a lot of data. A plain tensor
# that holds a shard, such as the one `to_local()` returns, looks to Muon like a complete
# matrix.

# %% trap="04.10" role="exercise" points=4 difficulty=3 minutes=20
def muon_rows(shard: torch.Tensor, rank: int, gather, sizes: list[int],
              orthogonalize) -> torch.Tensor:
    """Return this rank's (n, m) rows of Muon's step.

    One or more matrices are stacked on top of each other: sizes[0] rows of
    the first, then sizes[1] rows of the second, and so on. The rows of the
    stack are split over the ranks in order, and a split can fall inside a
    matrix.

    Args:
        shard: (n, m) float32, the rows on this rank. n can differ from rank
            to rank. n can be 0. shard does not change.
        gather: gather(shard) returns the list of all ranks' shards. Every
            rank has to call gather once, or the other ranks wait for ever.
        orthogonalize: orthogonalize(matrix) returns a new tensor of the
            same shape. Pass it one whole matrix at a time.

    Example: for shards [[2., 4.], [1., 0.]] and [[0., 5.]], sizes [1, 2],
    and an orthogonalize that divides by the largest entry, rank 0 returns
    [[0.5, 1.], [0.2, 0.]].
    """
    # BEGIN SOLUTION
    shards = gather(shard)
    matrices = torch.cat(shards).split(sizes)
    step = torch.cat([orthogonalize(matrix) for matrix in matrices])
    return step.split([len(part) for part in shards])[rank]
    # END SOLUTION

# %% [markdown] trap="04.10" role="hint"
# 1. The same rows are cut in two ways, by rank and by matrix. Undo the first cut before you make the second.
# 2. `torch.cat` joins the shards row by row, and `split` accepts a list of sizes.
# 3. This rank's rows begin after all rows of the earlier ranks, and the number of those rows need not be `rank` times `n`.

# %% [markdown] trap="04.10" role="keep"
# **Keep:** Before you shard an optimizer, ask whether its rule works entry by entry. In a
# matrix rule such as Muon's, each part's step depends on the whole matrix. **In your own
# code:** Compare a step of the whole weight with a step of the split weight. **Seen in
# the wild:**
# [`deepspeedai/DeepSpeed#8090`](https://github.com/deepspeedai/DeepSpeed/pull/8090)
# rejects a setting that silently made wrong updates wherever a matrix was split across
# two ranks, because no rank held the whole reduced gradient.
# [`InternLM/xtuner#2030`](https://github.com/InternLM/xtuner/pull/2030) fixes code that
# orthogonalized query, key and value together. **Source:** Liu et al. 2025, ["Muon is
# Scalable for LLM Training"](https://arxiv.org/abs/2502.16982), which describes Muon on
# many GPUs.

# %% [markdown] role="concept"
# ## Further
#
# Nothing below is needed for the traps. This section introduces Muon, a rule for
# matrices, and measures which learning rate Muon needs.

# %% [markdown] role="concept"
# ### Muon, a rule for matrices
#
# Muon takes the momentum of a weight matrix and, before the step, uses a few matrix
# products (*Newton-Schulz*) to push the momentum's singular values towards one. So Muon
# is meant for a network's hidden matrices. `torch.optim.Muon` rejects every parameter
# that is not a matrix: biases, gains and convolution kernels. An embedding or an output
# layer is a matrix, so Muon accepts it without a warning. The documentation reserves Muon
# for hidden layers and recommends a method such as AdamW for biases and embeddings. You
# have to sort the parameters yourself, as in trap 04.1.

# %% role="concept"
def muon_takes(*shape):
    try:
        torch.optim.Muon([nn.Parameter(torch.zeros(shape))])
    except ValueError:
        return False
    return True

print({"hidden (64, 64)": muon_takes(64, 64), "bias": muon_takes(64),
       "kernel": muon_takes(8, 8, 3, 3),
       "embedding (1000, 64)": muon_takes(1000, 64)})

# %% role="concept"
claim("does Muon accept a bias or a convolution kernel",
      muon_takes(64) or muon_takes(8, 8, 3, 3), expected=False)
claim("does Muon accept an embedding", muon_takes(1000, 64), expected=True)

# %% [markdown] role="concept"
# Muon's default learning rate is 0.001, like AdamW's, but Muon's step has a different
# size. An $n$ by $n$ matrix whose singular values are near one has entries of about
# $1/\sqrt{n}$. With `adjust_lr_fn="original"`, the default, each entry of the step is
# about that large, in multiples of the rate. For a square matrix, `"match_rms_adamw"`
# multiplies this step by `0.2 * sqrt(max(rows, columns))`. If the gradient has full rank,
# the entries are then about a fifth of the rate, so you can give Muon a rate that was
# tuned for AdamW. Look at the first step of a 256 by 256 matrix:

# %% role="concept"
def first_rms(optimizer, **options):
    """Root mean square of a matrix's first step, in rates."""
    w = nn.Parameter(torch.zeros(256, 256))
    w.grad = torch.randn(256, 256)
    optimizer([w], lr=0.001, **options).step()
    return w.detach().square().mean().sqrt().item() / 0.001

rms = {"AdamW": first_rms(torch.optim.AdamW),
       "match_rms_adamw": first_rms(torch.optim.Muon,
                                    adjust_lr_fn="match_rms_adamw"),
       "original": first_rms(torch.optim.Muon)}

# %% role="concept"
plot_bars(rms, xlabel="root mean square of the first step, in rates",
          title="One rate, three steps: Muon's default is the shortest",
          alt="Three bars. AdamW's first step is one learning rate long. "
              "Muon's is about a fifth of that with match_rms_adamw, and "
              "about a twentieth with the original adjustment.")

# %% role="concept"
claim("Muon with 'original': root mean square of the first step divided "
      "by the rate", rms["original"], expected=0.056, within=0.006)
claim("Muon with 'match_rms_adamw': root mean square of the first step "
      "divided by the rate",
      rms["match_rms_adamw"], expected=0.18, within=0.02)

# %% [markdown] role="concept"
# So AdamW's learning rate is too low for Muon's default step. Here Muon trains the hidden
# matrices of a deeper classifier, and AdamW trains the rest:

# %% role="concept"
def with_hidden(rule, steps=60):
    """Training loss; `rule` has the hidden matrices, AdamW the rest."""
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64),
                        nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                        nn.Linear(64, 10))
    hidden = [net[2].weight, net[4].weight]
    rest = [p for p in net.parameters() if all(p is not h for h in hidden)]
    opts = rule(hidden), torch.optim.AdamW(rest, lr=0.001)
    for _ in range(steps):
        net.zero_grad()
        batch_loss(net).backward()
        for opt in opts:
            opt.step()
    return F.cross_entropy(net(x_train), y_train).item()

# %% role="concept"
by_adamw = with_hidden(torch.optim.AdamW)           # its default: 0.001
by_muon = with_hidden(torch.optim.Muon)             # its default: 0.001
bolder = with_hidden(lambda p: torch.optim.Muon(p, lr=0.02))
print(f"loss, AdamW {by_adamw:.2f}, Muon {by_muon:.2f}, "
      f"Muon at 0.02 {bolder:.2f}")

# %% role="concept"
claim("Muon's loss divided by AdamW's loss, both at a learning rate of "
      "0.001",
      by_muon / by_adamw, above=1.2)
claim("Muon's loss at a learning rate of 0.02 divided by Muon's loss at "
      "0.001",
      bolder / by_muon, below=0.8)

# %% [markdown] role="concept"
# In these 60 steps, Muon's default rate is far too low, and the loss is clearly lower at
# a rate twenty times as high. Again, a rate that suits one rule need not suit another.
# **Source:** PyTorch documentation of
# [`Muon`](https://docs.pytorch.org/docs/stable/generated/torch.optim.Muon.html).

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. You multiply the loss by 100 and change nothing else. With which optimizer does training stay the same?**
#
# - [x] Adam, up to eps :: Both averages grow, but the step that they determine stays the same, as the explorer shows.
# - [ ] SGD with momentum :: Its step is 100 times as long, as if you had multiplied the learning rate by 100.
# - [ ] neither of them :: Adam divides the scale out, so Adam's step does not change.

# %% [markdown] role="quiz"
# **2. You use `CosineAnnealingLR(opt, T_max=10)` in a run of 10 epochs. When do you call `step()`?**
#
# - [ ] after every batch :: Then the learning rate swings down and up again every 20 batches.
# - [x] after every epoch :: `T_max` counts calls, so 10 means ten epochs only if you call `step()` once per epoch.
# - [ ] whenever you like, because the scheduler knows the loader :: This scheduler counts its own calls and knows nothing of the loader.

# %% [markdown] role="quiz"
# **3. Which line switches weight decay off?**
#
# - [ ] `AdamW(params, lr=1e-3)` :: The default is 0.01, as trap 04.4 shows.
# - [ ] `AdamW(params, lr=1e-3).zero_grad()` :: This clears the gradients. Decoupled decay does not come from the gradients.
# - [x] `AdamW(params, lr=1e-3, weight_decay=0)` :: Then AdamW is Adam, bit for bit.

# %% [markdown] role="quiz"
# **4. Your range test, with a momentum of 0.9, has its lowest loss at a learning rate of 0.5. At which rate do you start your first full run?**
#
# - [x] about 0.05 :: A tenth leaves a margin. A schedule may bring the rate down from there.
# - [ ] 0.5, because the loss was lowest there :: The smaller rates had already brought the loss down. At 0.5, you are close to a rate that fails.
# - [ ] 5, because the loss was still falling :: Past the lowest point, the loss was rising, and soon it exploded.

# %% [markdown] role="quiz"
# **5. From now on, a layer gets a gradient of exactly zero, not None. What happens to the layer's weights with AdamW?**
#
# - [ ] they do not move :: Torch skips a layer only if its gradient is None.
# - [ ] they coast, then stop :: The momentum fades, but the decay remains.
# - [x] they coast and keep shrinking :: The decay needs no gradient, only a step.

# %% [markdown] role="quiz"
# **6. You port Adam with its default betas and forget the bias correction. With a steady gradient, how long are the first steps?**
#
# - [ ] ten times too short, because m holds a tenth of the gradient :: v holds only a thousandth of the gradient's square, and the step divides by the root of v.
# - [x] about three to seven times too long :: The first step is 3.2 times too long, and the twelfth is 6.6 times too long.
# - [ ] right from the eleventh step on :: By then m has partly caught up, but v takes about 2,000 steps.

# %% [markdown] role="gpu"
# ## On a GPU: the step that waits for its own kernel launches
#
# A step of Adam reads a few values per weight, does a dozen operations on them and writes
# the results back. For a model of many small tensors, the arithmetic takes little time,
# and most of the time goes into launching the kernels. Torch can launch them in three
# ways: in a loop over tensors, with `foreach` (one operation for a list of tensors), and
# with `fused` (one operation for all weights). Such an operation needs few launches.
#
# **Before you run anything:** A model has 100 tensors. How many operations does one step
# of AdamW take in each of the three ways? And which way needs the most extra memory while
# it runs?
#
# `cost` reports how many operations there are, how many bytes they write, and how much
# extra memory is in use at the peak. On a GPU, each operation has to be launched, and
# only a measurement shows how long a launch takes. The counts predict that `foreach`
# needs fewer launches than the loop but writes as many bytes, and that `fused` needs less
# of both.

# %% role="gpu"
def make_step(way, tensors, n, where):
    """A call: one more AdamW step, on `tensors` weights of n values."""
    ways = {"loop": {"foreach": False}, "foreach": {"foreach": True},
            "fused": {"fused": True}}
    weights = [nn.Parameter(torch.randn(n, device=where))
               for _ in range(tensors)]
    opt = torch.optim.AdamW(weights, lr=1e-3, **ways[way])
    for w in weights:
        w.grad = torch.randn_like(w)
    opt.step()                       # the state exists from now on
    return opt.step

# %% role="gpu"
orders, written, on_top = {}, {}, {}
for way in ("loop", "foreach", "fused"):
    for tensors in (10, 100):
        asked = cost(make_step(way, tensors, 12_800, "cpu"))
        orders[way, tensors] = asked.orders
    written[way] = asked.written / (100 * 12_800 * 4)
    on_top[way] = asked.peak / (100 * 12_800 * 4)
    print(f"{way:8} {orders[way, 10]:4} operations for 10 tensors, "
          f"{orders[way, 100]:4} for 100; writes {written[way]:.1f} copies "
          f"of the weights, holds {on_top[way]:.2f} on top")

# %% role="gpu"
claim("loop: number of operations for 100 tensors divided by the number "
      "for 10 tensors",
      orders["loop", 100] / orders["loop", 10], above=8)
claim("100 tensors: number of operations with foreach divided by the "
      "number with the loop",
      orders["foreach", 100] / orders["loop", 100], below=0.33)
claim("fused step: number of operations for 100 tensors",
      orders["fused", 100],
      below=10)

# %% role="gpu"
per_weight = {}
for name, optimizer in {"SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW,
                        "momentum": lambda p: torch.optim.SGD(
                            p, lr=0.1, momentum=0.9)}.items():
    w = nn.Parameter(torch.randn(100_000))
    w.grad = torch.randn_like(w)
    opt = optimizer([w])
    opt.step()
    kept = [t for t in opt.state[w].values() if torch.is_tensor(t)]
    per_weight[name] = sum(t.nbytes for t in kept) / w.numel()
print({name: round(b, 3) for name, b in per_weight.items()})

# %% role="gpu"
claim("number of extra copies of the weights that foreach holds",
      on_top["foreach"],
      expected=1, within=0.02)
claim("number of extra copies of the weights that the loop holds",
      on_top["loop"], below=0.1)
claim("number of bytes per weight in AdamW's state (two averages and one "
      "counter)",
      per_weight["AdamW"], expected=8, within=0.001)

# %% role="gpu"
@gpu_result("04/adamw_step", uses=[make_step],
            columns=["way", "tensors", "n", "us", "us_low", "us_high",
                     "on_top_mb"])
def steps():
    """Time of one AdamW step, and memory on top of what it keeps."""
    for tensors, n in ((4, 25_000_000), (400, 250_000), (400, 1000)):
        for way in ("loop", "foreach", "fused"):
            step = make_step(way, tensors, n, "cuda")
            t = seconds(step, repeats=10, device="cuda", calls=5)
            yield {"way": way, "tensors": tensors, "n": n,
                   "us": t.median * 1e6, "us_low": t.low * 1e6,
                   "us_high": t.high * 1e6,
                   "on_top_mb": peak_bytes(step) / 1e6}

# %% role="gpu"
def over_loop(way, n):
    """Time of this way, as a multiple of the loop's."""
    us = [steps.value("us", way=w, n=n) for w in (way, "loop")]
    return us[0] / us[1]

def mb(way):
    return steps.value("on_top_mb", way=way, n=250_000)

copies = {way: written[way] / written["loop"] for way in written}
docs = "the weights' size more than the loop (torch documentation)"

# %% role="gpu"
answers = gpu_table(
    datasheet(steps.device_name),
    steps.asks("400 small tensors, foreach over loop: time",
               "less: a fifth of the orders",
               lambda: over_loop("foreach", 1000), below=0.5),
    steps.asks("the same, fused over loop: time", "less than foreach",
               lambda: over_loop("fused", 1000), below=0.2),
    steps.asks("4 large tensors, foreach over loop: time",
               copies["foreach"],
               lambda: over_loop("foreach", 25_000_000), below=2),
    steps.asks("the same, fused over loop: time", copies["fused"],
               lambda: over_loop("fused", 25_000_000), below=1),
    steps.asks("400 MB of weights, foreach: MB on top",
               400 * on_top["foreach"], lambda: mb("foreach"), docs,
               expected=400, within=40),
    steps.asks("the same, fused: MB on top", 400 * on_top["fused"],
               lambda: mb("fused"), below=10))
answers

# %% [markdown] role="gpu"
# **In the recorded run on an H100**, the loop over 400 tensors takes 26 ms, whether each
# tensor holds 1,000 values or 250,000, so the launches take all the time. With `fused`,
# the same step takes less than a twentieth of the loop's time. Compared with `foreach`,
# the default on a GPU, `fused` takes about a third of the time for all three shapes. But
# `fused` also has overhead: 400 tensors of 1,000 values take 1.0 ms, nearly as long as
# 400 tensors of 250,000 values, which take 1.1 ms.
#
# With four large tensors, the loop is no slower than `foreach`. There, `fused` takes 0.38
# of the loop's time, although the counts predicted 0.5, because for `fused`, `cost` also
# counts the gradients as written, which this step only reads. If you count what is really
# read and written, as in stage 2, `fused` moves 7 tensors where the loop moves 20, a
# ratio of 0.35. The loop needs extra memory only for copies of the tensor that it is
# updating: 3 MB if the weights are in 400 tensors, and 302 MB if they are in four.
#
# **Keep:** When an optimizer step is slow, count tensors as well as weights. If your
# optimizer offers it, use `fused=True`, which needs the fewest launches and the least
# extra memory. `foreach` is torch's default on a GPU and holds temporary copies while it
# runs. On a CPU, the default is the loop. The optimizer's state stays in memory for the
# whole run, in addition to the weights (4 bytes each in fp32) and the gradients (4 more).
# Like SGD with momentum, Lion keeps one value per weight, half as many as AdamW: 28 GB
# instead of 56 GB for 7 billion weights. **Source:** PyTorch documentation of
# [`torch.optim`](https://docs.pytorch.org/docs/stable/optim.html), "Algorithms", and of
# [`AdamW`](https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html),
# "foreach".

# %% [markdown] role="summary"
# ## What you take with you
#
# - Momentum speeds up a direction that stays the same and damps a direction that
#   alternates. Adam divides each weight's step by the size of that weight's gradients.
#   Weight decay keeps weights small, so that the network memorizes less of its training
#   rows.
# - Search for the learning rate again when you change the optimizer. SGD's step is
#   proportional to the gradient; Lion's step has the size of the learning rate.
# - Put every parameter into exactly one group, and choose the group by what the parameter
#   is, not by its name.
# - A warm-up makes a high peak safer at the start, and a falling rate reduces the noise
#   at the end. A lower peak may need no warm-up.
# - A scheduler counts the calls to its `step()`, so give its arguments in the unit of
#   these calls, batches or epochs.
# - Torch's AdamW uses a weight decay of 0.01 unless you say otherwise. Decoupled decay
#   shrinks the weight itself.
# - Run a range test before you choose a learning rate, and stay well below the rate at
#   the lowest loss. With momentum, use a tenth of that rate.
# - Put a schedule's floor inside the cosine formula, and do not start the warm-up at
#   zero.
# - With momentum, a weight still moves after its gradient has become zero. If the
#   gradient is `None`, torch skips the weight.
# - With the default betas, bias correction shortens Adam's first steps. Lion has two
#   betas: one for the direction and one for the memory.
# - With Adam's default second beta, a second moment that is rounded to the nearest bfloat16
#   never falls. In a matrix rule such as Muon's, each shard's step depends on the whole
#   matrix.
#
# **Next:** Stage 5 looks at what a network has besides its weights: norm layers and
# their statistics, dropout, and the scale of its initial weights.
