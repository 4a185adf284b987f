# %% [markdown] role="hook" traps=11
# # 4. Optimizers and learning-rate schedules
#
# An optimizer is ten lines of arithmetic that run a million times, and a schedule is a
# curve that moves when you call it. You pass them rates, names and step counts. Some
# values are defaults that you never chose, and hardly one is checked beyond its sign.
#
# First come the ideas: what momentum, Adam, weight decay and warm-up are for. Then there
# are eleven traps in which the lines look right and raise nothing. You guess what they
# do, write them yourself, and compare with torch, number by number.

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
# An optimizer gets the gradient of every weight and decides how far to move it. The
# simplest rule, *stochastic gradient descent* (SGD), moves each weight by the learning
# rate times its gradient, downhill. It has a problem when the loss is a long, narrow
# valley: steep across, nearly level along. The rate has to be small enough for the steep
# direction, or the weights are thrown from wall to wall. At that rate the level direction
# hardly moves.
#
# Take the smallest such valley: two weights, and a slope that is 25 times as steep for
# the second as for the first.

# %% role="concept"
steepness = torch.tensor([1.0, 25.0])

def descend(momentum, lr=0.075, steps=30):
    """The way of two weights down the valley: (steps + 1, 2)."""
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
show(ax.figure, "Two paths of 30 steps from the left to the lowest point "
     "at zero. Plain SGD jumps up and down across the valley for most of "
     "the way and stops short. With momentum the jumps die out within a "
     "few steps and the path reaches the lowest point.")

# %% role="concept"
claim("loss after 30 steps, momentum 0.5 over plain SGD",
      valley_loss(ways["momentum 0.5"]) / valley_loss(ways["SGD"]),
      below=0.01)

# %% [markdown] role="concept"
# The one new line is `b = momentum * b + gradient`: the step follows a sum of the
# gradients so far, in which older ones count less. See what that does to a gradient that
# keeps its sign, and to one that alternates:

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
claim("momentum 0.9, gradient 1 each time: what is added up", same,
      expected=10, within=0.01)
claim("momentum 0.9, signs alternate: size of what is added up",
      abs(alternating), below=0.6)

# %% [markdown] role="concept"
# So momentum speeds up a direction that stays, up to $1/(1-0.9) = 10$ times, and cancels
# a direction that alternates. For the same reason it averages out part of the noise of
# small batches. Usual values are 0.9 and, for long runs, `0.99`. And it has a price: with
# momentum 0.9 the steps become up to ten times as long, so a rate that suits plain SGD
# may be too high.

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] role="concept"
# ## Adam: a step size for every weight
#
# Momentum leaves one problem. The gradients of one network differ by orders of magnitude:
# between layers, and between a common word and a rare one. No single rate fits all.
# *Adam* divides each weight's step by the typical size of that weight's own gradients. It
# keeps two running averages per weight, the *moments*: $m$ of the gradient, as momentum
# does, and $v$ of its square. The step is the rate times $m / \sqrt{v}$.
#
# What is left after that division? A steady gradient of any size has $m = g$ and
# $\sqrt{v} = |g|$, which leaves its sign. A gradient that is mostly noise has a small $m$
# and a large $v$. Try a gradient of 1 with no noise, with as much noise, and with ten
# times as much:

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
claim("noise as large as the gradient: mean step in rates", by_noise[1],
      expected=0.71, within=0.06)
claim("noise ten times as large: mean step in rates", by_noise[10],
      expected=0.1, within=0.03)

# %% [markdown] role="concept"
# Where the gradient is steady, Adam goes one rate per step, whatever the gradient's size.
# Where it is noise, the steps are short and careful. That is why one rate, often 0.001,
# works for so many networks.

# %% [markdown] role="concept"
# ## Five rules, one shape
#
# Each rule below takes a gradient $g$ and returns a step. The rules differ in what they
# remember and in what they divide by. The learning rate is $\eta$; all products are
# element by element.
#
# | rule | what it remembers | the step it subtracts |
# |---|---|---|
# | SGD | nothing | $\eta\,g$ |
# | momentum | $b \leftarrow \mu b + g$ | $\eta\,b$ |
# | Adam | $m \leftarrow \beta_1 m + (1-\beta_1)g$, $v \leftarrow \beta_2 v + (1-\beta_2)g^2$ | $\eta\,\hat m / (\sqrt{\hat v} + \epsilon)$ |
# | AdamW | the same as Adam | the same as Adam, after $w \leftarrow (1-\eta\lambda)w$ |
# | Lion | $m \leftarrow \beta_2 m + (1-\beta_2)g$ | $\eta\,\mathrm{sign}(\beta_1 m + (1-\beta_1)g)$ |
#
# The hats are Adam's *bias correction*: $\hat m = m/(1-\beta_1^t)$ and $\hat v =
# v/(1-\beta_2^t)$ at step $t = 1, 2, \dots$ Look at the first step of two of the rules,
# for gradients that span six orders of magnitude.

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
               "climbs over six decades, Adam's is flat at the rate.")

# %% role="concept"
claim("SGD's longest step over its shortest: six orders of magnitude",
      sgd_move.max() / sgd_move.min(), expected=1e6, within=100)
claim("Adam's first step over the rate, minus 1, from 1e-4 to 100",
      (adam_move / 0.01 - 1).abs().max(), below=1e-3)

# %% role="concept"
tiny = nn.Parameter(torch.zeros(1))
opt = torch.optim.Adam([tiny], lr=0.01)           # eps is 1e-8
tiny.grad = torch.tensor([1e-8])
opt.step()
print(f"a gradient of 1e-8 moves its weight by {tiny.item():.4f}")

# %% role="concept"
claim("a gradient as small as eps: Adam's first step over the rate",
      tiny.abs() / 0.01, expected=0.5, within=0.01)
raw = (state["exp_avg"] / gradient - 0.1).abs().max()
claim("torch's exp_avg is the raw m: distance from a tenth of g", raw,
      below=1e-6)

# %% [markdown] role="concept"
# Adam's first step does not depend on the size of a gradient, as long as the gradient is
# far above `eps`. What Adam stores, `exp_avg` and `exp_avg_sq`, are $m$ and $v$ without
# hats: after one step they hold a tenth of the gradient and a thousandth of its square.
#
# In the explorer, multiply the loss by 10 and see which rules notice.

# %% role="explore" explorer="optimizer_paths"
from dlsys_helpers.explorers.optimizer_paths import optimizer_paths

optimizer_paths

# %% [markdown] role="concept"
# ## Weight decay: what it is for
#
# A network that fits its training rows exactly needs large weights: only they let it
# change its answer sharply from one row to the next. *Weight decay* makes every weight a
# little smaller at each step, so a weight stays large only if the gradient keeps asking
# for it. The network becomes smoother, fits the training rows less exactly, and does
# better on new ones. Measures of this kind are called *regularisation*; stage 6 compares
# the whole family.
#
# The key line multiplies before the step: `w *= 1 - lr * decay`. Train 256 units on 200
# digits of which about three in ten have a random label, with AdamW and three values of
# its decay:

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
claim("norm of the weights, decay 1 over none",
      by_decay[1][0] / by_decay[0][0], below=0.9)
claim("test loss, decay 1 over none", by_decay[1][2] / by_decay[0][2],
      below=1)

# %% [markdown] role="concept"
# The more decay, the smaller the weights and the lower the test loss. A decay of 1 is
# large because this run is short: what counts is rate times decay times steps. Usual
# values for long runs are 0.01 to 0.1. Biases and the gains of norms are usually left out
# (trap 04.1).

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] trap="04.1" role="situation" core=true fault="gains get weight decay: filtered by name or by axes" symptom="weight decay is applied to LayerNorm or BatchNorm although it is excluded by name"
# ## Two filters for weight decay
#
# A *gain* is a weight that scales one channel. Decay pulls a weight towards zero, which
# for a gain means switching its channel off, so you want to keep gains and biases out of
# weight decay. Many scripts do so with a list of names. A reviewer writes: "A list misses
# some. Count axes instead: a matrix has two or more and decays, a gain has one and does
# not." You try a list on torch's own encoder layer, and the reviewer's rule on a
# ConvNeXt.

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
guess("04.1", "How many gains of the ConvNeXt does the rule by axes "
      "decay?",
      choices=["none", "`18`, one in each block", "all of them"])

# %% trap="04.1" role="look"
scales = {name: p for name, p in by_axes.items() if "layer_scale" in name}
print(f"{len(scales)} gains, such as {next(iter(scales))}: "
      f"{tuple(next(iter(scales.values())).shape)}")

# %% trap="04.1" role="look"
measured("04.1", 1)

# %% trap="04.1" role="look"
claim("ConvNeXt-T: gains that the rule by axes decays", len(scales),
      expected=18)

# %% [markdown] trap="04.1" role="look"
# They multiply each residual branch, channel by channel. In the encoder layer, two gains
# escape the list of names, so they are decayed:

# %% trap="04.1" role="look"
print(*decayed, sep="\n")
gains = [name for name in decayed if name.startswith("norm")]

# %% trap="04.1" role="look"
claim("gains of a norm among them", len(gains), expected=2)

# %% [markdown] trap="04.1" role="why"
# `LayerNorm` is the name of a *class*. Parameters are named after *attributes*: `norm1`
# in this layer, `bn1` and `downsample.1` in ResNet, `ln_f` elsewhere. So the gains slip
# through the list. The number of axes does not depend on a name, but it says how a tensor
# is *stored*: a gain for images has the shape `(96, 1, 1)`. Neither filter raises an
# error.

# %% trap="04.1" role="repair"
def by_shape(model):
    """(matrices, vectors) of a model: two or more axes, and fewer."""
    every = list(model.parameters())
    return ([p for p in every if p.ndim >= 2],
            [p for p in every if p.ndim < 2])

matrices, vectors = by_shape(encoder)
print(f"decayed {len(matrices)}, exempt {len(vectors)}")

# %% [markdown] trap="04.1" role="repair"
# A rule by axes is the better start, and it is not enough. Print the decayed group once,
# and name the exceptions that you find there, such as `layer_scale`. In the encoder layer
# there are none:

# %% trap="04.1" role="repair"
claim("encoder: tensors that are decayed", len(matrices), expected=4)

# %% trap="04.1" role="repair"
draw_boxes({
    "names: decayed": {"matrices": len(decayed) - len(gains),
                       "gains": len(gains)},
    "names: exempt": {"biases": 12 - len(decayed)},
    "axes: decayed": {"matrices": len(matrices)},
    "axes: exempt": {"biases": len(vectors) - len(gains),
                     "gains": len(gains)}},
    unit="tensors", title="By names the gains decay, by axes they do not",
    alt="Four stacks of tensors. By names four matrices and two gains are "
        "decayed, six biases exempt; by axes four matrices are decayed, "
        "six biases and two gains exempt.")

# %% [markdown] trap="04.1" role="more" topics="ResNet · embeddings · what it costs"
# In ResNet the list exempts no gain at all. The rule by axes exempts all of them:

# %% trap="04.1" role="more"
with torch.device("meta"):
    resnet = models.resnet18()
norms = {name: m for name, m in resnet.named_modules()
         if isinstance(m, nn.BatchNorm2d)}
caught = [name for name in norms if "norm" in name.lower()]
exempt_ids = {id(p) for p in by_shape(resnet)[1]}
missed = [n for n, m in norms.items() if id(m.weight) not in exempt_ids]

# %% trap="04.1" role="more"
claim("tensors that are decayed", len(decayed), expected=6)
claim("encoder: tensors that are exempt", len(vectors), expected=8)
claim("norms in ResNet-18", len(norms), expected=20)
claim("norms that a filter for 'norm' in the name finds", len(caught),
      expected=0)
claim("ResNet-18: gains that are decayed", len(missed), expected=0)

# %% [markdown] trap="04.1" role="more"
# An embedding has two axes as well. Some recipes decay it, some do not: write the
# decision down, and print which tensors the rule puts in which group. What a wrong group
# costs depends on three numbers, and you can measure that on one gain.

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
claim("taken by 3,000 steps at 0.00002, decay 0.01: share", 1 - short,
      expected=0.0006, within=1e-5)
claim("left by 1,000 steps at 0.01, decay 0.1: exp(-1)", long,
      expected=0.368, within=0.001)

# %% [markdown] trap="04.1" role="folklore"
# **Told:** decaying the norms degrades fine-tuning notably. **Measured:** a gain without
# any gradient loses 0.06 % in 3,000 steps at a rate of 0.00002 with decay 0.01. In 1,000
# steps at 0.01 with decay 0.1, only 0.368 of it is left. The product of rate, decay and
# steps tells you which case is yours.

# %% trap="04.1" role="exercise" points=3 difficulty=2 minutes=15
def decay_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two groups for an optimizer: decayed first, exempt second.

    Each is {"params": list of tensors, "weight_decay": float}; the second
    has 0.0. Decayed are the tensors with two or more axes, except the
    weights of nn.Embedding. Frozen tensors (requires_grad False) are in no
    group, all others in exactly one, also when two modules share them.

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
# 1. Names are a convention. `p.ndim` and the type of a module are facts.
# 2. `model.parameters()` yields a shared tensor once; walking over modules yields it twice.
# 3. An embedding's weight has two axes: collect the `id` of `m.weight` for every `nn.Embedding` first.

# %% [markdown] trap="04.1" role="keep"
# **Keep:** sort parameters for weight decay by what they are, not by their names, and
# count them: the groups together must hold every trainable tensor exactly once. **In your
# own code:** print the names of the decayed group once per model. **Source:** [Loshchilov
# & Hutter 2019](https://arxiv.org/abs/1711.05101) for decay; `configure_optimizers` in
# [nanoGPT's model.py](https://github.com/karpathy/nanoGPT/blob/master/model.py) for the
# rule by axes.

# %% [markdown] trap="04.2" role="situation" core=true fault="Adam runs at the learning rate of SGD" symptom="training collapses or crawls after switching from SGD to Adam with the same learning rate"
# ## A borrowed learning rate
#
# Trained by SGD with momentum at a rate of 0.3, your classifier gets most digits right.
# You switch to Adam and keep the rate. Before you look at the result, you compare the two
# rules at the same rate: `first_step` measures how far a weight moves in the very first
# step.

# %% trap="04.2" role="break"
x_train, y_train, x_test, y_test = digits()      # (1300, 64), (497, 64)

def batch_loss(model, rows=64):
    """Cross-entropy of random training digits."""
    i = torch.randint(len(x_train), (rows,))
    return F.cross_entropy(model(x_train[i]), y_train[i])

# %% trap="04.2" role="break"
def reader():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def momentum(params, lr):
    return torch.optim.SGD(params, lr=lr, momentum=0.9)

def score(optimizer, lr):
    """Test accuracy of a new reader after 200 steps at this rate."""
    model = reader()
    fit(model, x_train, y_train, steps=200, lr=lr, optimizer=optimizer)
    return accuracy(model, x_test, y_test)

adam = torch.optim.Adam
borrowed = {"Adam at 0.3": score(adam, 0.3)}     # SGD's rate

# %% trap="04.2" role="break"
def first_step(optimizer, lr):
    """Mean distance that a weight goes in the first step."""
    model = reader()
    before = [p.detach().clone() for p in model.parameters()]
    opt = optimizer(model.parameters(), lr=lr)
    batch_loss(model).backward()
    opt.step()
    moves = [(p.detach() - b).abs().flatten()
             for p, b in zip(model.parameters(), before)]
    return torch.cat(moves).mean().item()

# %% trap="04.2" role="guess"
guess("04.2", "At the same rate of 0.01, Adam's first step is how many "
      "times as long as that of SGD with momentum?", unit="times")

# %% trap="04.2" role="look"
by_adam, by_sgd = first_step(adam, 0.01), first_step(momentum, 0.01)
print(f"first step at 0.01: Adam {by_adam:.1e}, SGD {by_sgd:.1e}")

# %% trap="04.2" role="look"
measured("04.2", by_adam / by_sgd, right=(150, 450))

# %% trap="04.2" role="look"
claim("mean first step at 0.01, Adam over SGD", by_adam / by_sgd, above=100)

# %% trap="04.2" role="look"
plot_bars({"Adam": by_adam, "SGD + momentum": by_sgd}, log=True,
          xlabel="mean first step at a rate of 0.01",
          title="At the same rate Adam's step is hundreds of times as long",
          alt="Two bars on a log scale: Adam's first step is as long as "
              "the rate, SGD's is hundreds of times shorter.")

# %% [markdown] trap="04.2" role="look"
# So a rate that fits one rule does not fit the other. You gave Adam the rate of SGD, 0.3.
# A colleague gives SGD a usual rate of Adam, 0.001. The test accuracy of each run:

# %% trap="04.2" role="look"
borrowed["SGD at 0.001"] = score(momentum, 0.001)
print({name: f"{right:.2f}" for name, right in borrowed.items()})

# %% [markdown] trap="04.2" role="why"
# The learning rate multiplies something, and the two rules multiply it by different
# things. SGD's first step is rate times gradient, and this classifier's gradients are far
# below one. Adam's first step has the size of the rate itself, for each weight whose
# gradient is far above `eps`. So 0.01 is a small step for one rule and a large one for
# the other. When you change the rule, search for the rate again.

# %% trap="04.2" role="repair"
own = {"Adam at 0.01": score(adam, 0.01),
       "SGD at 0.3": score(momentum, 0.3)}
print({name: f"{right:.2f}" for name, right in own.items()})

# %% trap="04.2" role="repair"
claim("Adam at 0.01: accuracy", own["Adam at 0.01"], above=0.92)

# %% trap="04.2" role="repair"
plot_bars(borrowed | own, xlabel="test accuracy",
          title="Each rule needs its own rate",
          alt="Four bars. Adam at 0.3 and SGD at 0.001 are far lower; Adam "
              "at 0.01 and SGD at 0.3 both exceed nine tenths.")

# %% [markdown] trap="04.2" role="more" topics="the other three runs · Muon"
# The other three bars. Muon's rate means something different again: *Muon, a rule for
# matrices*, under *Further*, measures it.

# %% trap="04.2" role="more"
claim("SGD at 0.001: accuracy", borrowed["SGD at 0.001"], below=0.75)
claim("Adam at 0.3: accuracy", borrowed["Adam at 0.3"], below=0.9)
claim("SGD at 0.3: accuracy", own["SGD at 0.3"], above=0.88)

# %% [markdown] trap="04.2" role="folklore"
# **Told:** a rate of 0.01 makes Adam crawl; 0.001 may make SGD diverge. **Measured:** for
# this classifier it is the reverse. Adam at 0.01 is one of the good runs, SGD at 0.001
# crawls, and Adam at 0.3 breaks. Another page says that Adam at 0.01 "diverges at once":
# for a large pre-trained model it may. A rate belongs to a rule and a model.

# %% trap="04.2" role="exercise" points=3 difficulty=3 minutes=15
def step_size(opt: torch.optim.Optimizer) -> float:
    """The farthest that any weight would move in opt's next step.

    The gradients are in place already; a weight without one stays. There
    is one group or several. Afterwards all weights, gradients and the
    optimizer are as they were, so that the next real step moves exactly as
    far as you say.

    Example: SGD at rate 0.1, gradients 3 and -5: the answer is 0.5.
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
# 1. Do not predict the step from a formula: take it, measure it, take it back.
# 2. A step changes two things: the weights, and what the optimizer remembers.
# 3. `opt.state_dict()` refers to the live tensors. Deep-copy it before the step, and give it to `load_state_dict` after.

# %% [markdown] trap="04.2" role="keep"
# **Keep:** when you change the optimizer, search for the learning rate again. SGD's step
# scales with the gradient; Lion's has the size of the rate, and so has Adam's while
# gradients are steady and far above `eps`. **In your own code:** log the largest step
# next to the loss; a sane step is a small fraction of the weights. **Source:** [Kingma &
# Ba 2015](https://arxiv.org/abs/1412.6980), section 2.1, on the effective step.

# %% [markdown] role="concept"
# ## Which optimizer wins?
#
# You may have seen a chart in which SGD with momentum comes last after 1,000 steps, and
# AdamW is below Adam "because decay fights overfitting". Run it: linear regression, the
# same start for all, and the rates that the chart gives.

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
claim("SGD with momentum reaches the noise: loss", sgd_loss, below=0.02)
claim("Adam at 0.001 after 1,000 steps: loss", adam_loss, above=1)

# %% [markdown] role="concept"
# Adam was held back by how far it can go in 1,000 steps at this rate, and decay makes its
# loss higher:

# %% role="concept"
claim("Adam: distance of the weight that moved farthest", adam_moved,
      below=1.05)
claim("training loss of AdamW minus that of Adam", adamw_loss - adam_loss,
      above=0)

# %% [markdown] role="concept"
# The chart was about the *rate*, not about the rule. Here 1,000 steps of 0.001 carry a
# weight a distance of about 1, and some weights have farther to go. Decay pulls towards
# zero, and this start is closer to zero than the solution is, so the training loss of
# AdamW is the higher one. Compare optimizers only after each has a rate of its own.

# %% [markdown] role="concept"
# ## Why the rate falls: noise, and sharp minima
#
# The gradient of a batch is the true gradient plus noise. With a constant rate the
# weights never come to rest: they end up in a cloud around the minimum, and the cloud is
# larger for a higher rate. For a gradient $w + \text{noise}$, the mean of $w^2$ settles
# at $\eta/(2-\eta)$. A rate that falls to zero shrinks the cloud.

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
claim("constant rate: mean square, as theory has it",
      constant, expected=0.1 / 1.9, within=0.01)
claim("constant over falling rate: mean square", constant / cosine,
      above=10)

# %% [markdown] role="concept"
# So why not use a low rate from the start? It is slow, and there is a second argument,
# from the shape of minima. In a *sharp* minimum the loss rises steeply on all sides, in a
# *flat* one slowly. A step at a high rate jumps out of a sharp minimum, because there the
# gradient is large:

# %% role="concept"
def distance_after(curvature, rate, steps=20):
    """Distance from a minimum at 0, after starting 0.01 from it."""
    w = 0.01
    for _ in range(steps):
        w = w - rate * curvature * w
    return abs(w)

for name, curvature in (("flat", 1), ("sharp", 50)):
    print(f"{name:5}  rate 0.1: {distance_after(curvature, 0.1):.1e}   "
          f"rate 0.01: {distance_after(curvature, 0.01):.1e}")

# %% role="concept"
claim("sharp minimum at a rate of 0.1: distance after 20 steps",
      distance_after(50, 0.1), above=1)
claim("sharp minimum at a rate of 0.01: distance after 20 steps",
      distance_after(50, 0.01), below=0.01)
claim("flat minimum at a rate of 0.1: distance after 20 steps",
      distance_after(1, 0.1), below=0.01)

# %% [markdown] role="concept"
# A minimum holds the weights only if rate times curvature stays below 2. So a high rate
# at first leaves only flat minima to settle in, and the low rate at the end settles
# there. Flat minima are often said to generalise better, because a small shift of the
# data changes their loss little ([Keskar et al. 2017](https://arxiv.org/abs/1609.04836)).
# The argument is disputed: rescaling the weights can make the same function look flat or
# sharp ([Dinh et al. 2017](https://arxiv.org/abs/1703.04933)).

# %% [markdown] role="concept"
# ## Schedules: one family, four decisions
#
# A *schedule* sets the learning rate of every step. All the usual ones answer four
# questions. How high is the *peak*? How long is the *warm-up*, the climb at the start?
# Which *shape* does the fall have? Where is the *floor*? Here are five, each for a run of
# 100 steps with a peak of 1:

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
show(figure, "Five small plots of the rate over 100 steps. Constant is "
     "level. Steps falls in three jumps. Warm-up and cosine climbs for ten "
     "steps and falls in a smooth curve to zero. Warm-up, level and fall "
     "stays at the peak and falls in the last fifth. One-cycle climbs for "
     "thirty steps and falls to zero.")

# %% role="concept"
claim("highest rate of the five, largest and smallest: difference",
      max(map(max, family.values())) - min(map(max, family.values())),
      below=0.01)
claim("one-cycle: step of the peak", family["one-cycle"].index(
      max(family["one-cycle"])), expected=29)

# %% [markdown] role="concept"
# *Warm-up and cosine* is the usual choice for transformers. *Warm-up, level, fall* does
# not need to know the length of the run in advance: you decide at any time to start the
# fall. Libraries build these from names; Hugging Face has `get_scheduler("cosine", opt,
# num_warmup_steps=…, num_training_steps=…)`, and its trainer calls it for you.
#
# *One-cycle* is one climb and one fall over the whole run, with the momentum low where
# the rate is high. Its author reports *super-convergence*: some networks reach their
# accuracy in far fewer steps at a very high peak ([Smith & Topin
# 2018](https://arxiv.org/abs/1708.07120)). The explanation given is the one above: a high
# rate acts as a regulariser and passes sharp minima. It does not hold for every network,
# so measure it on yours. Torch's class holds all four decisions in one object, and it
# overrides the rate and the momentum that you gave the optimizer:

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
claim("one-cycle, first rate, where the optimizer had 0.1", rates[0],
      expected=0.004, within=1e-9)
claim("one-cycle, first momentum, where it had 0.9", momenta[0],
      expected=0.95, within=1e-9)

# %% [markdown] role="concept"
# It rises for nearly a third of the run, and ends almost at zero:

# %% role="concept"
claim("up for 30 % of the 500 steps: step of the peak",
      rates.index(max(rates)), expected=149)
claim("last rate, 10,000 times below the first", rates[-1],
      expected=4e-7, within=1e-9)

# %% [markdown] role="concept"
# ## Warm-up: small steps until large ones are safe
#
# Adam's first steps have full length on the evidence of one batch: after a single
# gradient, $m/\sqrt{v}$ is 1 for every weight. Many networks survive that. This one does
# not: a residual net with LayerNorm *after* each addition, the order of the first
# transformers, at a rate that is bold for it.

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
print(f"accuracy at 0.03: no warm-up {cold:.2f}, 50 steps of it "
      f"{warmed:.1f}; at 0.003 without {lower:.2f}")

# %% role="concept"
claim("rate 0.03, no warm-up: accuracy", cold, below=0.4)
claim("rate 0.03, 50 steps of warm-up, middle of three: accuracy",
      warmed, above=0.7)
claim("rate 0.003, no warm-up: accuracy", lower, above=0.7)

# %% role="concept"
plot_columns({"none": cold, "50 steps": warmed,
              "none, a tenth of the rate": lower}, form=".2f",
             xlabel="warm-up", ylabel="test accuracy", marks=["none"],
             reference=(0.1, "guessing"),
             title="A warm-up rescues the bold rate; so does a lower one",
             alt="Three columns. Without warm-up the accuracy is at "
                 "guessing, a dashed line; with 50 steps of warm-up, and "
                 "without warm-up at a tenth of the rate, it is high.")

# %% [markdown] role="concept"
# The warm-up rescued a rate that is bold for this net, most of the time: one run in about
# fifty stays stuck all the same. And a tenth of that rate needs no warm-up at all. So a
# warm-up is what a high peak costs at the start. With your own net, try both: a warm-up,
# and a lower rate. Usual lengths are 1 to 5 % of the run, or a few hundred to a few
# thousand steps. Transformers need it most, because their attention and their norms
# amplify a bad first step; trap 05.2 shows how.

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] trap="04.3" role="situation" core=true fault="scheduler.step() per batch, its numbers count epochs" symptom="learning rate never rises, decays far too early or goes up and down: scheduler.step() per epoch or per batch"
# ## Ten epochs on a cosine
#
# Your run has ten epochs of 100 batches. `CosineAnnealingLR(opt, T_max=10)` brings the
# rate down to zero over the ten epochs. While tidying up, somebody moves
# `schedule.step()` into the loop over batches. Nothing complains. "Then ten batches
# train, and all the others have a rate of zero," says a colleague. You log the rate of
# each batch.

# %% trap="04.3" role="break"
def rates_of(build, batches, every=1):
    """The rate each batch sees; step() is called every `every` batches."""
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
claim("T_max=10 called per batch: times down to zero in 1,000", at_zero,
      expected=50)

# %% trap="04.3" role="look"
plot_lines(range(1, 61), {"called per batch": used[:60],
                          "called per epoch": rates_of(cosine, 60, 100)},
           xlabel="batch", ylabel="learning rate",
           title="Past its end the cosine climbs again",
           alt="The rate of the first 60 batches. Called per batch it "
               "swings between 0.1 and zero, three times; called per epoch "
               "it is still at 0.1.")

# %% [markdown] trap="04.3" role="look"
# The formula has no end: after zero it climbs back to the full rate. The reverse mistake
# is just as silent. Call a one-cycle schedule with `total_steps=1000` once per epoch:

# %% trap="04.3" role="look"
def cycle(opt):
    return sched.OneCycleLR(opt, max_lr=0.1, total_steps=1000)

starved = rates_of(cycle, 1000, every=100)      # once per epoch
print(f"rates run from {min(starved):.5f} to {max(starved):.5f}")

# %% trap="04.3" role="look"
claim("highest rate that a batch sees, where 0.1 was the plan",
      max(starved), expected=0.0042, within=0.0001)

# %% [markdown] trap="04.3" role="why"
# A scheduler knows neither batches nor epochs. It counts calls of `step()`, and its
# arguments are numbers of calls. With `T_max=10` the cosine falls for ten calls and
# climbs for the next ten, so in a thousand calls it does both fifty times. One-cycle,
# told to expect 1,000 calls and called ten times, has hardly begun to climb. Use the same
# unit for the arguments and the calls.

# %% trap="04.3" role="why"
draw_blocks({"called per epoch": ["batch", "opt.step()", "schedule.step()"],
             "called per batch": ["batch", "opt.step()",
                                  "schedule.step()"]},
            bypass={"called per epoch": [(1, 0)],
                    "called per batch": [(2, 0)]},
            marks={"called per epoch": ["schedule.step()"]},
            captions={"called per epoch": "10 calls of 1,000",
                      "called per batch": "1,000 calls of 1,000"},
            title="The loop over batches decides how often it counts",
            alt="Two columns of boxes: batch, opt.step, schedule.step. On "
                "the left the loop over batches closes before "
                "schedule.step, on the right after it.")

# %% trap="04.3" role="repair"
fed = rates_of(cycle, 1000)                     # once per batch
print(f"rates run up to {max(fed):.3f}")

# %% trap="04.3" role="repair"
claim("called per batch: highest rate", max(fed), expected=0.1, within=1e-6)

# %% trap="04.3" role="repair"
plot_lines(range(1, 1001), {"per batch": fed, "per epoch": starved},
           xlabel="batch", ylabel="learning rate",
           title="Called once per epoch, one-cycle never starts",
           alt="The rate by batch. Called per batch it climbs to 0.1 at "
               "batch 300 and falls to zero; called per epoch it stays "
               "near 0.004.")

# %% [markdown] trap="04.3" role="repair"
# In the explorer, "its numbers count" is the unit in which you wrote the arguments, and
# "step() is called" is what your loop does. Make them differ.

# %% role="explore" explorer="schedules"
from dlsys_helpers.explorers.schedules import schedules

schedules

# %% [markdown] trap="04.3" role="more" topics="StepLR · a cosine that hardly falls · where one-cycle is loud"
# `StepLR` counts in the same way, and a cosine of 1,000 calls that is called per epoch
# hardly falls:

# %% trap="04.3" role="more"
steps = rates_of(lambda opt: sched.StepLR(opt, 30, 0.1), 1000)
claim("StepLR(30), meant for epochs, per batch: rate at batch 100",
      steps[100], expected=1e-4, within=1e-9)
flat = rates_of(lambda opt: sched.CosineAnnealingLR(opt, 1000), 1000, 100)
claim("T_max=1000 called per epoch: last rate, of 0.1", flat[-1],
      expected=0.09998, within=1e-5)

# %% trap="04.3" role="more"
try:
    rates_of(cycle, 1002)
    refused = False
except ValueError as error:
    refused = "Tried to step" in str(error)

# %% trap="04.3" role="more"
claim("OneCycleLR refuses to be called too often", refused, expected=True)
claim("at 30 % of the batches: batch of the peak", fed.index(max(fed)),
      expected=299)

# %% [markdown] trap="04.3" role="folklore"
# **Told:** `CosineAnnealingLR` is stepped per epoch, `OneCycleLR` per batch, and a mix-up
# is silent. **Measured:** the class does not decide; the unit of its arguments does.
# `CosineAnnealingLR` with 1,000 in it belongs in the batch loop. And of the two mix-ups
# of `OneCycleLR` one is loud: too many calls raise `ValueError`.

# %% trap="04.3" role="exercise" points=4 difficulty=3 minutes=20
def train_cosine(opt: torch.optim.Optimizer, losses: list, epochs: int,
                 accumulate: int) -> None:
    """Train with a cosine that falls to zero over the whole run.

    losses: one function per micro-batch, each returns its scalar loss. Go
    through them `epochs` times. Update after every `accumulate` of them,
    and after the last of an epoch, with the sum of their gradients; no
    gradient is left at the end, and one left over from before does not
    count. Update k (from 0) of U in all runs at
    rate * (1 + cos(pi k / U)) / 2, rate being what each group started with.

    Example: 5 losses, 2 epochs, accumulate 2: U is 6.
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
# 1. Decide first what one call of `step()` stands for. Here it is one update of the weights.
# 2. An epoch has as many updates as its micro-batches divided by `accumulate`, rounded up.
# 3. Within an update the order is: optimizer, then schedule. `T_max` is the number of updates in all epochs.

# %% [markdown] trap="04.3" role="keep"
# **Keep:** a scheduler counts its calls to `step()`. Write its arguments in the unit in
# which you call it, and call it after `opt.step()`. **In your own code:** before a long
# run, loop over all steps without data, including `opt.step()` (without it torch warns),
# and plot the rate. **Source:** PyTorch documentation, ["How to adjust learning
# rate"](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate).

# %% [markdown] trap="04.4" role="situation" fault="AdamW decays by 0.01 when no weight_decay is given" symptom="AdamW differs from Adam although no weight decay was set"
# ## Adam and AdamW, no decay given
#
# You compare Adam with AdamW and pass no decay to either. Both run 100 steps from the
# same start, on the same batches.

# %% trap="04.4" role="break"
origin = reader()

def trained(optimizer, **options):
    """The same start on the same batches, 100 steps at a rate of 0.01."""
    torch.manual_seed(SEED)
    model = copy.deepcopy(origin)
    fit(model, x_train, y_train, steps=100, lr=0.01,
        optimizer=lambda params, lr: optimizer(params, lr=lr, **options))
    return torch.cat([p.detach().flatten() for p in model.parameters()])

plain = trained(torch.optim.Adam)
forgotten = trained(torch.optim.AdamW)           # no weight_decay given

# %% trap="04.4" role="guess"
guess("04.4",
      "How large is the largest difference between their weights after "
      "100 steps?",
      choices=["over `1e-4`", "about `1e-7`", "`0`"])

# %% trap="04.4" role="look"
gap = (forgotten - plain).abs().max()
unasked = torch.optim.AdamW([nn.Parameter(torch.ones(1))])
print(f"largest difference of a weight: {gap:.1e}")
print(f"decay alone removes a fraction of "
      f"{1 - (1 - 0.01 * 0.01) ** 100:.3f}")

# %% trap="04.4" role="look"
measured("04.4", 0)

# %% trap="04.4" role="look"
claim("largest difference of a weight", gap, above=1e-4)

# %% [markdown] trap="04.4" role="why"
# Leaving out the argument does not switch the decay off; it selects AdamW's default,
# 0.01. On its own, that removes 1 % of each weight in these 100 steps. The gap can be
# larger, because two models that differ get different gradients.
#
# Adam's own `weight_decay` is a different method. It adds $\lambda w$ to the *gradient*,
# and Adam then divides it by the gradient's size. AdamW multiplies the weight itself.

# %% trap="04.4" role="why"
draw_blocks({"Adam": ["g + λw", "m and v", "divide", "step"],
             "AdamW": ["w times 1 − ηλ", "m and v", "divide", "step"]},
            marks={"Adam": ["g + λw"]},
            captions={"Adam": "the decay is also divided",
                      "AdamW": "the same fraction of each weight"},
            title="Adam's decay goes through the division",
            alt="Two columns of boxes. In Adam the decay joins the "
                "gradient before the averages and the division; in "
                "AdamW it multiplies the weight, apart from them.")

# %% [markdown] trap="04.4" role="repair"
# Pass `weight_decay=0`, and AdamW is Adam, bit for bit:

# %% trap="04.4" role="repair"
off = trained(torch.optim.AdamW, weight_decay=0)
claim("decay 0, AdamW minus Adam: largest difference",
      (off - plain).abs().max(), expected=0)

# %% [markdown] trap="04.4" role="repair"
# And with a decay of 0.1 in both? One weight of 1 gets small gradients, another gets
# large ones:

# %% trap="04.4" role="repair"
def after_decay(optimizer):
    """Two weights of 1 whose gradients swing, one little, one widely."""
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
plot_bars({"Adam, small gradients": small, "Adam, large": large,
           "AdamW, small": low, "AdamW, large": high},
          xlabel="left of a weight of 1 after 300 steps",
          title="Adam's decay spares weights with large gradients",
          alt="Four bars. Adam leaves nothing of the weight with small "
              "gradients and nearly all of the other; AdamW leaves "
              "the same fraction of both.")

# %% trap="04.4" role="repair"
claim("Adam: left of the weight with small gradients", small, below=0.05)

# %% [markdown] trap="04.4" role="more" topics="the two defaults · the bars in numbers"
# The defaults, and the other bars:

# %% trap="04.4" role="more"
claim("AdamW's default is a decay of 0.01",
      unasked.defaults["weight_decay"], expected=0.01)
claim("Adam's is none", torch.optim.Adam(
    [nn.Parameter(torch.ones(1))]).defaults["weight_decay"], expected=0)
claim("Adam: left of the other", large, above=0.9)
claim("AdamW: difference between the two", high - low, expected=0,
      within=0.001)

# %% [markdown] trap="04.4" role="folklore"
# **Told:** forget `weight_decay` in AdamW and it is Adam. **Measured:** without the
# argument it decays by 0.01 and ends at different weights; with `weight_decay=0` it is
# Adam, bit for bit.

# %% trap="04.4" role="exercise" points=3 difficulty=2 minutes=15
def decoupled_step(opt: torch.optim.Optimizer, weight_decay: float) -> None:
    """One step of `opt` (made without decay) with decoupled weight decay.

    Each weight first shrinks by the factor 1 - lr * weight_decay, lr being
    the rate of its own group; then opt steps as ever. A parameter whose
    grad is None is left alone. With torch.optim.Adam this is AdamW, with
    SGD it is SGDW.

    Example: SGD at rate 0.1, weight 2, gradient 1, decay 0.5: the weight
    becomes 2 * 0.95 - 0.1 = 1.8.
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
# 1. Decoupled means: the gradient never hears of the decay.
# 2. `opt.param_groups` is a list; each entry has its own `"lr"` and `"params"`.
# 3. Multiply in place under `torch.no_grad()`, before `opt.step()`.

# %% [markdown] trap="04.4" role="keep"
# **Keep:** AdamW decays by 0.01 unless you pass `weight_decay=`, and it multiplies the
# weight by $1 - \eta\lambda$; decay added to the gradient, as in Adam, is a different
# method. **In your own code:** always write `weight_decay=`, and read it back from
# `opt.param_groups`. **Source:** Loshchilov & Hutter 2019, ["Decoupled Weight Decay
# Regularization"](https://arxiv.org/abs/1711.05101), algorithm 2.

# %% [markdown] trap="04.5" role="situation" fault="a learning rate too high looks like one too low" symptom="loss does not go down: learning rate too high or too low?"
# ## A rate of 0.0001 and a rate of 3
#
# Two people train your digit classifier with momentum for 200 steps, one at a rate of
# 0.0001, one at 3. The first run ends at a loss of about 2.3, the loss of guessing.

# %% trap="04.5" role="break"
def run_at(lr, optimizer=momentum):
    """Loss on all digits, test accuracy and model after 200 steps."""
    model = reader()
    fit(model, x_train, y_train, steps=200, lr=lr, optimizer=optimizer)
    with torch.no_grad():
        loss = F.cross_entropy(model(x_train), y_train).item()
    return loss, accuracy(model, x_test, y_test), model

low, high = run_at(0.0001), run_at(3)

# %% trap="04.5" role="guess"
guess("04.5", "At which loss does the run at a rate of 3 end?",
      choices=["below `0.5`", "about `2.3`", "over `10`", "`nan`"])

# %% trap="04.5" role="look"
print(f"rate 0.0001: loss {low[0]:.2f}   rate 3: loss {high[0]:.2f}")

# %% trap="04.5" role="look"
measured("04.5", 1)

# %% trap="04.5" role="look"
claim("rate 3: loss", high[0], expected=2.3, within=0.4)

# %% trap="04.5" role="look"
plot_columns({"rate 0.0001": low[0], "rate 3": high[0]},
             xlabel="", ylabel="loss after 200 steps", form=".2f",
             reference=(math.log(10), "guessing: ln 10"),
             title="The loss does not say which way to go",
             alt="Two columns of about the same height, both close to the "
                 "dashed line of guessing.")

# %% [markdown] trap="04.5" role="why"
# At 0.0001 the weights have hardly moved. At 3 the first steps moved them so far that the
# hidden units return 0 for every digit. Only the last biases still learn, and the best
# that they can do is guess:

# %% trap="04.5" role="why"
def silent(model):
    """Share of hidden units that ReLU sets to 0 for all digits."""
    return (model[:2](x_train) == 0).all(0).float().mean().item()

print(f"silent at 0.0001: {silent(low[2]):.2f}, "
      f"at 3: {silent(high[2]):.2f}")

# %% trap="04.5" role="why"
claim("rate 3: share of hidden units that are silent", silent(high[2]),
      above=0.8)

# %% [markdown] trap="04.5" role="why"
# A *range test* tries all rates in one short run: multiply the rate by a constant factor
# after each batch and watch the loss. It stays flat, falls, and then shoots up. The
# lowest loss is the work of the smaller rates before it, so the rate at that point is
# already close to one that fails. Start at a tenth of it.

# %% trap="04.5" role="repair"
def sweep(optimizer=momentum, steps=100, low=1e-5, high=10.0):
    """Rates and losses of a range test on a model that is thrown away."""
    model, rates, losses = reader(), [], []
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
           alt="Loss of a batch against a growing rate: flat near 2.3, "
               "then falling, then shooting up near a rate of one.")

# %% trap="04.5" role="repair"
tenth, at_edge, beyond = (run_at(rate)[1]
                          for rate in (edge / 10, edge, 4 * edge))
print(f"trained at a tenth: {tenth:.2f}, at the lowest point: {at_edge:.2f}"
      f", at 4 times that: {beyond:.2f}")

# %% trap="04.5" role="repair"
claim("a tenth of it: accuracy", tenth, above=0.92)

# %% role="explore" explorer="lr_range_test"
from dlsys_helpers.explorers.lr_range_test import lr_range_test

lr_range_test

# %% [markdown] trap="04.5" role="more" topics="the two runs · at the edge and beyond · without momentum"
# At the lowest point itself you gain little or lose some; beyond it, the run is lost:

# %% trap="04.5" role="more"
claim("rate 0.0001: loss", low[0], expected=2.3, within=0.15)
claim("the better of the two: accuracy", max(low[1], high[1]),
      below=0.35)
claim("rate at the lowest loss", edge, above=0.1, below=2)
claim("accuracy at the lowest point itself, minus at a tenth",
      at_edge - tenth, below=0.03)
claim("4 times beyond it: accuracy", beyond, below=0.9)

# %% [markdown] trap="04.5" role="more"
# A tenth is a margin, and how much margin you need depends on the rule. Without momentum
# the same test finds a higher edge, and a tenth of it is slow.

# %% trap="04.5" role="more"
sgd = torch.optim.SGD
rates, losses = sweep(sgd)
plain_edge = rates[losses.index(min(losses))]
slow, third = (run_at(plain_edge / part, sgd)[1] for part in (10, 3))
print(f"plain SGD: edge {plain_edge:.2f}, trained at a tenth {slow:.2f}, "
      f"at a third {third:.2f}")

# %% trap="04.5" role="more"
claim("plain SGD, a tenth: accuracy", slow, above=0.87)
claim("plain SGD: accuracy at a third minus at a tenth", third - slow,
      above=-0.05)

# %% trap="04.5" role="exercise" points=4 difficulty=3 minutes=20
def lr_find(model: nn.Module, loss_of, steps: int, low: float,
            high: float) -> float:
    """A tenth of the rate at which a range test has its lowest loss.

    loss_of(model) draws a batch and returns its scalar loss, above 0; call
    it once a step, in front of the update. Update by plain SGD; a gradient
    left over from before does not count. Step k = 0 ... steps - 1 runs at
    low * (high / low)**(k / (steps - 1)); steps is 2 or more. Of equal
    losses the first counts. Stop at a loss that is NaN or more than 4 times
    the lowest so far. Afterwards the model's state_dict() is as before, its
    parameters the same objects.

    Example: lowest loss at step 2 of 5 from 1e-4 to 1: 0.01 / 10 = 0.001.
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
# 1. Rates span decades, so they grow by a factor, not by an amount.
# 2. The test ruins the weights. `model.state_dict()` refers to them; what you keep must be a copy.
# 3. `not loss <= 4 * best` is true for NaN as well; `loss > 4 * best` is not.

# %% [markdown] trap="04.5" role="keep"
# **Keep:** to find a learning rate, increase it by a constant factor per step and stop
# when the loss runs away. Start with a tenth of the rate at the lowest loss if you use
# momentum, with a third for plain SGD. **In your own code:** repeat the test when you
# change optimizer, batch or model, with 100 steps or more. **Source:** Smith 2017,
# ["Cyclical Learning Rates for Training Neural
# Networks"](https://arxiv.org/abs/1506.01186), section 3.3, for the sweep; the tenth is a
# rule of thumb, tried above.

# %% [markdown] trap="04.6" role="situation" fault="max() as a floor: the cosine stands still" symptom="learning rate is flat at the end of cosine decay; first step has learning rate zero"
# ## A floor under a cosine
#
# Warm up for 100 steps, then follow a cosine down to a tenth of the peak at step 1,000:
# that is the usual recipe for large models. You copy warm-up and floor from a script. A
# comment below it says: "Your first batch is wasted."

# %% trap="04.6" role="break"
def factor(step, warm=100, total=1000, floor=0.1):
    """Share of the peak at a step, the way it is often written."""
    if step < warm:
        return step / warm
    done = (step - warm) / (total - warm)
    return max(floor, 0.5 * (1 + math.cos(math.pi * done)))

cut = [factor(step) for step in range(1000)]

# %% trap="04.6" role="guess" quoted="right"
guess("04.6",
      "After the warm-up, how many of the steps run exactly at the floor?",
      unit="steps")

# %% trap="04.6" role="look"
at_floor = sum(share == 0.1 for share in cut[100:])
print(f"steps on the floor: {at_floor}   first step: {cut[0]}")

# %% trap="04.6" role="look"
measured("04.6", at_floor, right=(150, 220))

# %% trap="04.6" role="look"
claim("steps that stand on the floor", at_floor, expected=184)

# %% [markdown] trap="04.6" role="look"
# The comment is right as well: the first batch moves nothing.

# %% trap="04.6" role="look"
claim("first step: share of the peak", cut[0], expected=0)

# %% [markdown] trap="04.6" role="why"
# `max` cuts the lower end off a cosine that was heading for zero, so the rate arrives
# early and stays. A floor belongs *inside* the formula: floor plus the rest times the
# cosine. And steps are counted from 0, so a warm-up over `warm` steps is `(step + 1) /
# warm`, and step `warm - 1` runs at the peak. The cosine counts from there, so the last
# step runs at the floor. (The exercise counts from step `warm`, so its floor is at step
# `total`.)

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
           ylabel="share of the peak", title="A cut cosine stands still",
           alt="Two schedules with warm-up. The cut one falls faster and "
               "is flat at a tenth for the last fifth; the scaled one "
               "reaches a tenth only at the end.")

# %% trap="04.6" role="repair"
arrives = cut.index(0.1, 100)
claim("where the cut one arrives, the scaled one: share of the peak",
      smooth[arrives], expected=0.19, within=0.002)

# %% [markdown] trap="04.6" role="more" topics="both ends"
# Both ends stay where they were asked for:

# %% trap="04.6" role="more"
claim("steps at which the scaled one stands still", sum(
    a == b for a, b in zip(smooth[101:], smooth[102:])), expected=0)
claim("scaled, first step: share of the peak", smooth[0], expected=0.01)
claim("scaled, last step: share of the peak", smooth[-1], expected=0.1,
      within=1e-9)

# %% trap="04.6" role="exercise" points=3 difficulty=2 minutes=15
def warmup_cosine(step: int, warm: int, total: int, peak: float,
                  floor: float) -> float:
    """The learning rate of a step; peak and floor are rates, too.

    Steps 0 to warm - 1 rise in a line: the first runs at peak / warm, the
    last at peak. From step warm on the rate follows half a cosine: peak at
    step warm, floor at step total. Later steps stay at floor.
    0 <= warm < total, 0 <= floor <= peak; the steps come in any order.

    Example: warm 2, total 4, peak 1, floor 0.2: 0.5, 1, 1, 0.6, 0.2.
    """
    # BEGIN SOLUTION
    if step < warm:
        return peak * (step + 1) / warm
    done = min(1.0, (step - warm) / (total - warm))
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * done))
    # END SOLUTION

# %% [markdown] trap="04.6" role="hint"
# 1. Write down the rates of the example by hand and find the step at which the share done is 0, and that at which it is 1.
# 2. Half a cosine is `0.5 * (1 + cos(pi * done))`: it goes from 1 to 0. Which two numbers should it join?
# 3. `done` is 0 at step `warm` and 1 at step `total`; cap it for later steps.

# %% [markdown] trap="04.6" role="keep"
# **Keep:** put a schedule's floor inside the cosine, not in a `max` around it, and let
# the first warm-up step be `1 / warm`, not 0. **In your own code:** assert the rate at
# four steps: first, end of warm-up, middle, last. **Source:** Loshchilov & Hutter 2017,
# ["SGDR"](https://arxiv.org/abs/1608.03983), equation 5, for the floor inside.

# %% [markdown] trap="04.7" role="situation" fault="zero_grad(set_to_none=False): idle weights move on" symptom="parameters move although they received no gradient: zero_grad(set_to_none=False)"
# ## A head that is out of the loss
#
# A model has one trunk and two heads. For 20 steps you train both tasks, with Adam at a
# rate of 0.01, then only the first. Your note from March says: "A zero gradient is a zero
# step." So you call `zero_grad(set_to_none=False)`, to be on the safe side.

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
guess("04.7", "In the 20 steps in which its gradient is exactly zero, how "
      "far does the second head move, in units of the rate?",
      unit="rates")

# %% trap="04.7" role="look"
print(f"the idle head moved by up to {drift:.3f} at a rate of 0.01")

# %% trap="04.7" role="look"
measured("04.7", drift / 0.01, right=(4.5, 12))

# %% trap="04.7" role="look"
claim("distance of the idle head, in rates", drift / 0.01, above=2)

# %% [markdown] trap="04.7" role="why"
# Adam steps along its *memory*, and a zero gradient only lets that memory fade, so the
# head coasts on. Weight decay, where it is set, continues as well. `None` means something
# else: torch skips the tensor, memory and all. One weight shows it, after a single
# gradient of 1:

# %% trap="04.7" role="why"
def path(grad, steps=10):
    """A weight under Adam: one gradient of 1, then always this one."""
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
           title="With zeros Adam coasts on, with None it stands still",
           alt="A weight by step. Both lines fall from 1 to 0.9 in the "
               "first step. With None the line stays there, with zeros "
               "it goes on falling, ever more slowly.")

# %% trap="04.7" role="repair"
with_none = idle_drift(set_to_none=True)
print(f"the idle head moved by {with_none:.3f}")

# %% trap="04.7" role="repair"
claim("with None: distance of the idle head", with_none, expected=0)

# %% [markdown] trap="04.7" role="more" topics="one weight in numbers · other optimizers · what plain zero_grad leaves"
# The second step of the figure in numbers, and the same for other rules. Plain SGD,
# Adagrad and RMSprop have no momentum to coast on:

# %% trap="04.7" role="more"
def second_step(grad, optimizer=torch.optim.Adam):
    """A weight of 1 after steps with a gradient of 1 and with this one."""
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
claim("None: the weight after it", second_step(None), expected=0.9,
      within=1e-6)
claim("zero: the weight after it", second_step(torch.zeros(1)),
      expected=0.833, within=0.001)
claim("SGD with momentum: step of a zero gradient", coasts(momentum),
      expected=0.09, within=1e-6)
claim("plain SGD, Adagrad, RMSprop: longest step of a zero gradient",
      max(map(coasts, (torch.optim.SGD, torch.optim.Adagrad,
                       torch.optim.RMSprop))), expected=0)

# %% [markdown] trap="04.7" role="more"
# And what does `zero_grad()` do if you pass nothing?

# %% trap="04.7" role="more"
w = nn.Parameter(torch.ones(1))
w.square().backward()
torch.optim.SGD([w]).zero_grad()
claim("plain zero_grad() leaves None", w.grad is None,
      expected=True)

# %% [markdown] trap="04.7" role="folklore"
# **Told:** a zero gradient is a zero step, so the two settings of `zero_grad` differ only
# in memory. **Measured:** that holds for plain SGD, Adagrad and RMSprop, without momentum
# or decay. With zeros, Adam and SGD with momentum continue along their memory. With
# `None`, which is what plain `zero_grad()` leaves, they stand still.

# %% trap="04.7" role="exercise" points=3 difficulty=2 minutes=15
def momentum_step(w: torch.Tensor, grad: torch.Tensor | None, state: dict,
                  lr: float, momentum: float) -> None:
    """One step of SGD with momentum on w, in place, as torch.optim.SGD.

    Write it out, without torch.optim. w and grad: (N,) float32; grad is
    left alone and may be overwritten later. state: this weight's own dict,
    empty before its first step, for you to keep what you like in. lr and
    momentum may change from step to step. With grad None nothing changes,
    neither w nor state. Momentum 0 is plain SGD.

    Example: w 1, rate 0.1, momentum 0.5, gradients 1 and 0: w becomes 0.9,
    then 0.85.
    """
    # BEGIN SOLUTION
    if grad is None:
        return
    velocity = momentum * state.get("velocity", 0) + grad
    w.sub_(lr * velocity)
    state["velocity"] = velocity
    # END SOLUTION

# %% [markdown] trap="04.7" role="hint"
# 1. What does the buffer hold after a step with None, and what after a step with zeros?
# 2. Torch adds the whole gradient to the buffer, not a share of it, and applies the rate when it moves the weight.
# 3. Do not keep `grad` itself in `state`: the caller may write into it.

# %% [markdown] trap="04.7" role="keep"
# **Keep:** for an optimizer with momentum, a gradient of zero is a step and a gradient of
# `None` is none. **In your own code:** to freeze a part of a model, set its gradients to
# None or leave it out of the optimizer, and compare its weights before and after.
# **Source:** PyTorch documentation,
# [`Optimizer.zero_grad`](https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html).

# %% [markdown] trap="04.8" role="situation" fault="Adam without bias correction: steps too long" symptom="fine-tuning unstable in the first steps: Adam without bias correction"
# ## Adam without bias correction
#
# Somebody ported Adam and left out the bias correction. You expect cautious first steps:
# $m$ starts at zero, and only a tenth of the gradient gets in. "They are too long," says
# the reviewer.
#
# A weight sees the gradient 1 at each step. With the correction, each of its steps is one
# rate long.

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
guess("04.8", "Without the correction, how long is the twelfth step, in "
      "units of the rate?", unit="rates")

# %% trap="04.8" role="look"
print(f"step 1: {bare[0]:.2f}   step 12: {bare[11]:.2f}   "
      f"step 100: {bare[99]:.2f}   step 2,000: {bare[-1]:.3f}")

# %% trap="04.8" role="look"
measured("04.8", bare[11], right=(5, 8))

# %% trap="04.8" role="look"
claim("12th step, in rates", bare[11], expected=6.57, within=0.01)

# %% [markdown] trap="04.8" role="look"
# That is the longest. A hundred steps in, the effect is still there:

# %% trap="04.8" role="look"
claim("step 100, in rates", bare[99], expected=3.24, within=0.01)

# %% [markdown] trap="04.8" role="why"
# $m$ starts too small, but so does $v$, and the step divides by its root. With $\beta_2 =
# 0.999$ the second average fills up a hundred times more slowly than the first. So the
# quotient is too *large*, by $(1-\beta_1^t)/\sqrt{1-\beta_2^t}$. The correction divides
# each average by the fraction it has filled.

# %% trap="04.8" role="why"
ts = range(1, 2001)
plot_lines(ts, {"m": [1 - 0.9**t for t in ts],
                "root of v": [math.sqrt(1 - 0.999**t) for t in ts]},
           xlabel="step", ylabel="average of a gradient of 1", logx=True,
           title="m wakes up first, so m over the root of v is too large",
           alt="Two averages of a gradient of 1 by step. m has reached 1 "
               "by step 50; the root of v is still at 0.2 there and comes "
               "close to 1 only by step 2000.")

# %% trap="04.8" role="repair"
whole = adam_moves(2000, corrected=True)
print(f"step 1: {whole[0]:.2f}   step 12: {whole[11]:.2f}   "
      f"step 100: {whole[99]:.2f}   step 2,000: {whole[-1]:.3f}")

# %% trap="04.8" role="repair"
claim("corrected, in rates: largest distance from 1",
      max(abs(s - 1) for s in whole), below=1e-9)

# %% trap="04.8" role="repair"
plot_lines(range(1, 2001), {"without": bare, "corrected": whole},
           xlabel="step", ylabel="step size / rate", logx=True,
           title="Without correction Adam's first steps are too long",
           alt="Step size in rates against the step. Without correction it "
               "starts at 3, peaks near 6.6 at step 12 and comes down to 1 "
               "by step 2000; corrected it is 1 throughout.")

# %% [markdown] trap="04.8" role="more" topics="more of the curve · other betas: too short"
# The curve starts above 3 and is still off by 7.5 % at step 2,000:

# %% trap="04.8" role="more"
t = 12
claim("first step, in rates", bare[0], expected=3.16,
      within=0.01)
claim("which of the steps is the longest", bare.index(max(bare)) + 1,
      expected=12)
claim("mean of the first 100 steps, in rates", sum(bare[:100]) / 100,
      expected=4.66, within=0.01)
claim("12th step, as the closed form has it", bare[t - 1],
      expected=(1 - 0.9**t) / math.sqrt(1 - 0.999**t), within=1e-9)
claim("step 2,000, in rates, minus 1", bare[-1] - 1, expected=0.075,
      within=0.001)

# %% [markdown] trap="04.8" role="more"
# The first step alone is $(1-\beta_1)/\sqrt{1-\beta_2}$ rates long, so neither beta
# decides without the other. With 0.9 for the first and 0.95 for the second, as some
# language models use, it is short:

# %% trap="04.8" role="more"
short = adam_moves(1, corrected=False, b2=0.95)
claim("second beta 0.95: first step, in rates", short[0], expected=0.447,
      within=0.001)

# %% [markdown] trap="04.8" role="folklore"
# **Told:** without correction the first steps are tiny; after step 100 it does not
# matter. **Measured:** with the default betas and a steady gradient they are 3 to 6.57
# times too long, and at step 100 still 3.24 times. With 0.9 and 0.95 the first step is
# short indeed, 0.447 of a rate. A BERT optimizer that lacked the correction has been
# blamed for unstable fine-tuning on small data.

# %% trap="04.8" role="exercise" points=4 difficulty=3 minutes=20
def adam_step(w: torch.Tensor, grad: torch.Tensor, state: dict, lr: float,
              betas: tuple[float, float], eps: float,
              weight_decay: float) -> None:
    """One step of AdamW on w, in place; with weight_decay 0.0 it is Adam.

    Write it out, without torch.optim. w and grad: (N,) float32; grad is
    left alone. state: a dict of this weight, empty before its first step,
    in which you keep what you need. lr may change from step to step,
    betas, eps and weight_decay from weight to weight. The decay is
    decoupled: w is first multiplied by 1 - lr * weight_decay. Equal to
    torch.optim.AdamW over 200 steps, gradients near eps included.

    Example: w 1, gradient -7, rate 0.1, decay 0: w becomes 1.1.
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
# 1. Three things must survive between calls: two averages and a count that starts at 1.
# 2. Correct both averages, and keep the uncorrected ones in `state`.
# 3. `eps` is added to the root, not under it. With a tiny gradient the two differ.

# %% [markdown] trap="04.8" role="keep"
# **Keep:** with the default betas, Adam without bias correction starts with steps that
# are three to seven times too long. **In your own code:** compare any port with torch for
# many steps, including tiny gradients. **Source:** [Kingma & Ba
# 2015](https://arxiv.org/abs/1412.6980), section 3; Zhang et al. 2020, ["Revisiting
# Few-sample BERT Fine-tuning"](https://arxiv.org/abs/2006.05987).

# %% [markdown] trap="04.9" role="situation" fault="Lion with one beta: its momentum forgets too fast" symptom="own Lion implementation differs from the paper: one beta for update and momentum"
# ## Lion with one beta for two jobs
#
# Lion steps by the sign of a blend of momentum and gradient. You port it from a summary
# that uses $\beta_1 = 0.9$ in both lines: once for the blend, once to update the
# momentum. The paper has a second number, $\beta_2 = 0.99$, for the update. The network
# trains, and its accuracy is fine. In the test below, all gradients are noise, without
# any signal.

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
guess("04.9", "For what percentage of the weights does the summary's step "
      "go the opposite way from the paper's?", unit="%")

# %% trap="04.9" role="look"
def flipped(a, b):
    """Share of directions that differ, after 500 steps of settling."""
    return (a != b)[500:].float().mean().item()

print(f"steps that go the other way: {flipped(summary, paper):.3f}")

# %% trap="04.9" role="look"
measured("04.9", 100 * flipped(summary, paper), right=(20, 36))

# %% trap="04.9" role="look"
claim("fraction of steps that go the opposite way, on noise",
      flipped(summary, paper), expected=0.279, within=0.01)

# %% [markdown] trap="04.9" role="why"
# The two numbers have two jobs. $\beta_1$ says how much the newest gradient counts in
# *this* step, $\beta_2$ how long the momentum remembers. With 0.9 for both, the memory is
# ten steps instead of a hundred, so the direction is noisier. A strong signal hides the
# fault, because then both agree.

# %% trap="04.9" role="why"
ages = torch.arange(1, 2000, dtype=torch.float64)

def blend(b1, b2):
    """Weight of the newest gradient and of each older one, in the sign."""
    old = b1 * (1 - b2) * b2 ** (ages - 1)
    return torch.cat([torch.tensor([1 - b1], dtype=torch.float64), old])

one, two = blend(0.9, 0.9), blend(0.9, 0.99)

# %% trap="04.9" role="why"
plot_lines(range(101), {"0.9 twice": one[:101],
                        "0.9 and 0.99": two[:101]},
           xlabel="age of a gradient, in steps",
           ylabel="its weight in the sign",
           title="With one beta the memory is ten steps, not a hundred",
           alt="Weight of a gradient by its age. With 0.9 twice it falls "
               "from 0.1 to nothing within 40 steps. With 0.9 and 0.99 "
               "only the newest weighs 0.1; the older ones are low and "
               "fall slowly, over a hundred steps.")

# %% [markdown] trap="04.9" role="repair"
# With two betas the port matches the paper. To test any port, feed it noise: the
# correlation $\rho$ of two blends predicts the fraction of signs that differ,
# $\arccos(\rho)/\pi$.

# %% trap="04.9" role="repair"
rho = (one @ two) / (one.norm() * two.norm())
share = math.acos(rho) / math.pi
print(f"correlation {rho:.3f}, so {share:.3f} of the signs flip")

# %% trap="04.9" role="repair"
claim("fraction that theory predicts", share, expected=0.279, within=0.001)

# %% [markdown] trap="04.9" role="more" topics="where a signal hides it · a lower rate wants a higher decay"
# Where the gradient carries a signal, the two agree almost always:

# %% trap="04.9" role="more"
biased = noise + 1.0
hidden = flipped(lion_signs(biased, 0.9, 0.9),
                 lion_signs(biased, 0.9, 0.99))
claim("share that differs when a signal is added", hidden, below=0.02)

# %% [markdown] trap="04.9" role="more"
# And when you lower the rate for Lion, the decay of each step falls with it:

# %% trap="04.9" role="more"
before, smaller = shrunk(1e-2, 0.1, 1000), shrunk(1e-3, 0.1, 1000)
print(f"left of a weight: {before:.3f}; tenth of the rate: {smaller:.3f}")

# %% trap="04.9" role="more"
claim("logarithm of what is left, rate 0.01 over rate 0.001",
      math.log(before) / math.log(smaller), expected=10, within=0.01)
claim("rate 0.001 with a decay of 1: left, as before",
      shrunk(1e-3, 1.0, 1000), expected=before, within=1e-9)

# %% [markdown] trap="04.9" role="folklore"
# **Told:** Lion needs a rate 3 to 10 times smaller than Adam. **Measured:** half of the
# advice is missing. Decoupled decay, in AdamW and Lion alike, acts as rate times
# $\lambda$: in 1,000 steps without gradient, a rate that is 10 times smaller needs a
# decay that is 10 times larger to leave the same fraction of a weight.

# %% trap="04.9" role="exercise" points=3 difficulty=2 minutes=15
def lion_step(w: torch.Tensor, grad: torch.Tensor, state: dict, lr: float,
              betas: tuple[float, float], weight_decay: float) -> None:
    """One step of Lion on w, in place, after decoupled weight decay.

    w and grad: (N,) float32; grad is left alone. state: a dict of this
    weight, empty before its first step. lr may change from step to step,
    betas and weight_decay from weight to weight. betas: the first blends
    the step's direction, the second updates the momentum, which starts at
    zero. The sign of 0 is 0.

    Example: w 1, gradient -3, rate 0.1, decay 0.5, first step: w becomes
    0.95 + 0.1 = 1.05.
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
# 1. Two blends of the same two tensors, with different shares: one decides, one is kept.
# 2. The direction uses the momentum as it was *before* this step's update.
# 3. The decay multiplies the weight by `1 - lr * weight_decay`; the sign never sees it.

# %% [markdown] trap="04.9" role="keep"
# **Keep:** in Lion, $\beta_1$ is for the step and $\beta_2$ for the memory. If you lower
# the rate, raise the decay. **In your own code:** feed a port pure noise and compare
# directions with the formula; accuracy will not show the fault. **Source:** Chen et al.
# 2023, ["Symbolic Discovery of Optimization
# Algorithms"](https://arxiv.org/abs/2302.06675), algorithm 2 and section 5.

# %% [markdown] trap="04.11" role="situation" fault="Adam's second moment in bfloat16 never falls" symptom="bfloat16 model with AdamW: steps stay too short after large gradients, exp_avg_sq does not fall"
# ## A model in sixteen bits
#
# To save memory you load a model in bfloat16, weights and all. AdamW keeps its moments in
# the dtype of the weights, so they also take half the memory. bfloat16 has the range of
# float32 and a precision of two to three decimal digits. The design document says: "With
# the default second beta of 0.999 we average a thousand gradients. The rounding cancels."
#
# Many runs begin with large gradients. Below, the first five are 30 times as large as the
# 3,000 after them, and `moments` follows the second moment of 300 weights.

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
guess("04.11", "At the end, the mean second moment in bfloat16 is how many "
      "times as large as in float32?", unit="times")

# %% trap="04.11" role="look"
larger = (half[-1].mean() / full[-1].mean()).item()
print(f"float32: {full[0].mean():.1f} falls to {full[-1].mean():.1f}   "
      f"bfloat16: {half[0].mean():.1f} becomes {half[-1].mean():.1f}")

# %% trap="04.11" role="look"
measured("04.11", larger, right=(2.8, 5.5))

# %% trap="04.11" role="look"
claim("second moment at the end, bfloat16 over float32", larger, above=3)

# %% trap="04.11" role="look"
plot_lines(range(0, 3001, 50), {"float32": full[::50].mean(1),
                                "bfloat16": half[::50].mean(1)},
           xlabel="quiet steps", ylabel="mean of exp_avg_sq",
           title="In float32 the loud start is forgotten, in bfloat16 not",
           alt="The second moment over 3,000 quiet steps. In float32 it "
               "falls from about 4.5 to about 1.2; in bfloat16 it starts "
               "there and rises a little.")

# %% [markdown] trap="04.11" role="look"
# Adam divides by its root, so its steps are about half as long as they should be. How
# many of the 300 moments are lower at the end than after the loud start?

# %% trap="04.11" role="look"
claim("bfloat16: moments that are lower at the end",
      (half[-1] < half[0]).sum(), expected=0)

# %% [markdown] trap="04.11" role="why"
# A small gradient takes a thousandth off the moment: $0.999\,v$. From one power of two to
# the next, bfloat16 has 128 evenly spaced values, so the next one below $v$ is at least a
# 256th of $v$ away. A thousandth is less than half of that, so it is rounded back. A
# gradient whose square is several times $v$ still gets in. The moment is a ratchet: it
# goes up and never down.

# %% trap="04.11" role="why"
draw_line({"bfloat16": [(1.4921875, "1.492"), (1.5, "1.5"),
                        (1.5078125, "1.508")],
           "0.999 times 1.5": [(0.999 * 1.5, "1.4985")]},
          title="A thousandth off 1.5 is rounded back to 1.5",
          alt="A number line. The bfloat16 numbers 1.492, 1.5 and 1.508 "
              "stand far apart; 0.999 times 1.5 lies just left of 1.5.")

# %% trap="04.11" role="why"
octave = (torch.arange(128, 256) / 128).bfloat16()      # all from 1 to 2
claim("of the 128 numbers from 1 to 2: lower after times 0.999",
      (octave * 0.999 < octave).sum(), expected=0)

# %% [markdown] trap="04.11" role="repair"
# Keep the moments in float32. They stay there if the weights do, and autocast runs only
# the computation in bfloat16:

# %% trap="04.11" role="repair"
layer = nn.Linear(8, 8)
opt = torch.optim.AdamW(layer.parameters(), lr=0.001)
with torch.autocast("cpu", torch.bfloat16):
    layer(torch.randn(4, 8)).square().mean().backward()
opt.step()
kept = opt.state[layer.weight]["exp_avg_sq"]
print(f"under autocast the second moment is {kept.dtype}")

# %% trap="04.11" role="repair"
claim("autocast: bytes of a number of the second moment",
      kept.element_size(), expected=4)

# %% [markdown] trap="04.11" role="repair"
# Where memory forbids that, *round at random*: a value nine tenths of the way to the next
# one goes up nine times in ten, otherwise down. Each rounding is wrong, and their mean is
# right. Here it is on whole numbers, where the nearest to $0.999 \cdot 100 = 99.9$ is 100
# again and again:

# %% trap="04.11" role="repair"
def at_random(x):
    """x as whole numbers: 99.9 is 100 nine times in ten, else 99."""
    low = x.floor()
    return low + (torch.rand_like(x) < x - low)

nearest = drawn = torch.full((1000,), 100.0)
for _ in range(1000):
    nearest = (0.999 * nearest).round()
    drawn = at_random(0.999 * drawn)
print(f"to the nearest: {nearest.mean():.1f}   drawn: {drawn.mean():.1f}   "
      f"exact: {100 * 0.999**1000:.1f}")

# %% trap="04.11" role="repair"
claim("whole numbers, rounded at random: mean after 1,000 times 0.999",
      drawn.mean(), expected=100 * 0.999**1000, within=1)

# %% [markdown] trap="04.11" role="more" topics="without a loud start · other betas · the fused step"
# Without any loud start the moment is too large as well. The cause is not that AdamW
# rounds after each operation: `fused`, which computes in float32 and rounds once, ends
# about as high. With a second beta of 0.95, as in many language models, each step
# reduces the average by more than the gap to the next number:

# %% trap="04.11" role="more"
even = moments(torch.bfloat16, loud=1.0)[-1].mean()
exact = 1 - 0.999**3005                     # as in float32
fused = moments(torch.bfloat16, fused=True)[-1].mean()
quick = moments(torch.bfloat16, quiet=500, betas=(0.9, 0.95))[-1].mean()
print(f"no loud start: {even:.2f} for {exact:.2f}   fused: {fused:.1f}   "
      f"beta 0.95: {quick:.2f}")

# %% trap="04.11" role="more"
claim("no loud start: bfloat16 over float32", even / exact, above=1.5)
claim("fused, loud start: bfloat16 over float32",
      fused / full[-1].mean(), above=3)
claim("second beta 0.95, loud start: the mean, which should be 1", quick,
      expected=1, within=0.1)

# %% [markdown] trap="04.11" role="folklore"
# **Told:** moments in bfloat16 train as well as in float32;
# [`NVIDIA/TransformerEngine#1465`](https://github.com/NVIDIA/TransformerEngine/pull/1465)
# reports similar convergence. **Measured:** rounded to the nearest, the moment depends on
# the second beta. With 0.95 it follows the gradients; with the default of 0.999 it only
# rises.

# %% trap="04.11" role="exercise" points=4 difficulty=3 minutes=25
def moment_step(v: torch.Tensor, grad: torch.Tensor, beta2: float,
                generator: torch.Generator) -> torch.Tensor:
    """Adam's next second moment, rounded to bfloat16 at random.

    v: (N,) bfloat16, 0 or more, the moment so far. grad: (N,) float32 or
    bfloat16. Let x = beta2 * v + (1 - beta2) * grad**2, calculated in
    float32; 0 <= beta2 < 1. Returns (N,) bfloat16: x itself where that is a
    bfloat16 number, elsewhere one of its two neighbours there, the upper
    one with the probability (x - lower) / (upper - lower). Every entry is
    drawn for itself, and anew in each call, with `generator` and nothing
    else. v and grad are left alone.

    Example: v 1.5, gradient 0, beta2 0.999: x is 1.4985, and the answer 1.5
    four times in five, else 1.4921875.
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
# 1. What is too coarse is the storage. Calculate `x` in float32 from the first product on, and draw with `torch.rand(x.shape, generator=generator)`.
# 2. `torch.frexp(x)` splits x into a part from 0.5 to 1 and a power of two. Take 256 times the part: there the whole numbers are those of bfloat16, and the rounding is the lesson's.
# 3. Or look at the bits: a bfloat16 number is a float32 whose lower 16 bits are zero. `x.view(torch.int32)` shows them.

# %% [markdown] trap="04.11" role="keep"
# **Keep:** a running average changes by $1-\beta$ of itself per step, and its dtype must
# be able to hold that change. Rounded to the nearest, bfloat16 loses a thousandth, so
# keep Adam's moments in float32. **In your own code:** print
# `opt.state[p]["exp_avg_sq"].dtype`, and count how many of its values fell in a hundred
# steps. **Seen in the wild:**
# [`whitecircle/halo#30`](https://github.com/whitecircle/halo/pull/30) measured a second
# moment that was off by tens of percent when rounded to the nearest.
# [`NVIDIA-NeMo/Automodel#2248`](https://github.com/NVIDIA-NeMo/Automodel/pull/2248) is a
# guide that warns of moments in the dtype of a bfloat16 model. **Source:** Zamirai et al.
# 2021, ["Revisiting BFloat16 Training"](https://arxiv.org/abs/2010.06192), on rounding at
# random.

# %% [markdown] trap="04.10" role="situation" fault="Muon orthogonalizes each rank's shard, not the matrix" symptom="Muon's update changes with the number of GPUs: sharded or tensor-parallel weights"
# ## One matrix on four ranks
#
# A hidden layer of 256 by 256 no longer fits on one GPU. So its rows are split over four,
# the *ranks* (not the rank of a matrix): each holds 64 rows, with their gradient and
# momentum, and steps its own rows. With AdamW that is how sharding works. Now Muon takes
# over; its step is a matrix whose singular values are near one. The pull request says:
# "Each rank still brings the singular values of its rows to one. So the step is as long
# as if one rank held them all."
#
# In the code, one process plays the ranks, with the gradient of a batch of digits.

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
    """First step of a weight whose rows lie on this many ranks."""
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
guess("04.10", "If one rank held the whole matrix, its update would have "
      "norm 1; what norm does the update of four ranks have?",
      unit="times")

# %% trap="04.10" role="look"
times = (apart.norm() / whole.norm()).item()
adamw = torch.optim.AdamW
moved = (step_of(adamw, pull, 4) - step_of(adamw, pull, 1)).abs().max()
print(f"AdamW: largest difference {moved:.0e}   Muon: {times:.2f} times")

# %% trap="04.10" role="look"
measured("04.10", times, right=(1.3, 2.3))

# %% trap="04.10" role="look"
claim("Muon, four ranks: norm of the step, one rank's being 1", times,
      above=1.5)

# %% trap="04.10" role="look"
lengths = {str(n): (step_of(muon, pull, n).norm() / whole.norm()).item()
           for n in (1, 2, 4, 8)}
plot_columns(lengths, xlabel="ranks", ylabel="norm of the step",
             form=".2f", title="More ranks, a longer step",
             alt="Columns for 1, 2, 4 and 8 ranks. Each is higher than the "
                 "one before; at 8 ranks the step is nearly twice as long.")

# %% [markdown] trap="04.10" role="look"
# The direction is different as well. The two steps are about as far apart as the right
# one is long:

# %% trap="04.10" role="look"
claim("distance of the two steps, as a multiple of one rank's norm",
      (apart - whole).norm() / whole.norm(), above=0.9)

# %% [markdown] trap="04.10" role="why"
# AdamW's rule works entry by entry, so it does not matter where a row is stored. Muon's
# rule works on a *matrix*. The gradient of these 64 digits has at most 64 directions, and
# each of them runs through all rows. On one rank, a strong direction has length one as a
# whole, and each of its four pieces about one half, since $4 \cdot (1/2)^2 = 1$. Four
# ranks bring each piece to length one: together that is $\sqrt{4} = 2$. Weak directions
# grow less.

# %% trap="04.10" role="why"
tops = {name: torch.linalg.svdvals(step)[:40]
        for name, step in {"one rank": whole, "four ranks": apart}.items()}
plot_lines(range(1, 41), tops, xlabel="number of the direction",
           ylabel="singular value of the step",
           title="Four ranks double each strong direction",
           alt="The forty largest singular values of the step. With one "
               "rank they lie around one; with four ranks each is nearly "
               "twice as large.")

# %% trap="04.10" role="why"
claim("four ranks: largest singular value of the step",
      tops["four ranks"][0], above=1.8, below=2.6)

# %% trap="04.10" role="repair"
def gathered(grad, ranks):
    """The same, but each rank orthogonalizes the whole."""
    parts, rows = grad.chunk(ranks), []
    for rank in range(ranks):
        matrix = torch.cat(parts)            # an all-gather
        rows.append(step_of(muon, matrix, 1).chunk(ranks)[rank])
    return torch.cat(rows)

mended = (gathered(pull, 4) - whole).abs().max()
print(f"largest difference from one rank: {mended:.0e}")

# %% trap="04.10" role="repair"
claim("gathered first: largest difference from one rank", mended,
      expected=0)

# %% [markdown] trap="04.10" role="repair"
# Momentum may stay on its rank; only what is orthogonalized has to be whole. An
# *all-gather* gives every rank all parts. A smaller rate only shortens the wrong step.
#
# Query, key and value are often one stack. Orthogonalized together, the one with the
# largest gradient takes the directions that they share, and most of the step. Cut the
# stack first.

# %% [markdown] trap="04.10" role="more" topics="a smaller rate · a gradient without strong directions · a stack of three · what the loss says · sharded tensors of torch"
# Divided by the root of four, the step has about the right length and is still far from
# the right step. A matrix of noise has no strong directions, but 256 of similar size.
# Four ranks find 64 each, so their step is about as long as one rank's. It still points
# elsewhere:

# %% trap="04.10" role="more"
noise = torch.randn(256, 256)
one, four = step_of(muon, noise, 1), step_of(muon, noise, 4)

# %% trap="04.10" role="more"
claim("noise: length of four ranks' step over one rank's",
      four.norm() / one.norm(), above=0.85, below=1.1)
claim("noise: distance of the two steps, in lengths of one rank's",
      (four - one).norm() / one.norm(), above=0.5)

# %% [markdown] trap="04.10" role="more"
# And a stack of three in which one gradient is ten times as large:

# %% trap="04.10" role="more"
stack = torch.randn(192, 64)
stack[:64] *= 10                            # the query's gradient
joint, each = step_of(muon, stack, 1), step_of(muon, stack, 3)

# %% trap="04.10" role="more"
claim("the step of four ranks, halved: distance from the right one",
      (apart / 2 - whole).norm() / whole.norm(), above=0.4)
claim("one stack: the loud matrix's share of the step's length",
      joint[:64].norm() / joint.norm(), above=0.85)
claim("three matrices: its share", each[:64].norm() / each.norm(),
      expected=math.sqrt(1 / 3), within=0.03)

# %% [markdown] trap="04.10" role="more"
# Does the loss show it? Train the layer on one rank and on sixteen, at a rate of 0.02:

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
claim("rate 0.02: loss on sixteen ranks over one rank's",
      sixteen / single, below=0.6)

# %% [markdown] trap="04.10" role="more"
# It is lower, because this rate was low and sixteen ranks take longer steps. So the loss
# rewards the fault. What you lose: with the same settings, a different number of GPUs is
# a different run.
#
# Torch's own sharded tensors, `DTensor`, are an exception: a product of two of them is
# the product of the whole matrices, and torch sends what that needs. So
# `torch.optim.Muon` is right on them, up to its rounding to bfloat16, but its ranks send
# much. A plain tensor that holds a shard, such as `to_local()` returns, looks like a
# matrix of its own.

# %% trap="04.10" role="exercise" points=4 difficulty=3 minutes=20
def muon_rows(shard: torch.Tensor, rank: int, gather, sizes: list[int],
              orthogonalize) -> torch.Tensor:
    """This rank's rows of Muon's step, for a stack that lies on ranks.

    The stack holds one or more matrices on top of each other: sizes[0]
    rows of the first, then sizes[1] of the second, and so on. Its rows are
    cut over the ranks in order; a cut may fall inside a matrix. shard:
    (n, m) float32, what this rank holds; n may differ from rank to rank,
    and may be 0. gather(shard) returns the list of all ranks' shards.
    Every rank has to call it once, or the others wait for ever.
    orthogonalize(matrix) returns a new tensor of the same shape; each
    matrix of the stack goes through it whole and alone. Returns the (n, m)
    rows of the result that belong to this rank. shard is left alone.

    Example: shards [[2., 4.], [1., 0.]] and [[0., 5.]], sizes [1, 2], and
    an orthogonalize that divides by the largest entry: rank 0 returns
    [[0.5, 1.], [0.2, 0.]].
    """
    # BEGIN SOLUTION
    shards = gather(shard)
    matrices = torch.cat(shards).split(sizes)
    step = torch.cat([orthogonalize(matrix) for matrix in matrices])
    return step.split([len(part) for part in shards])[rank]
    # END SOLUTION

# %% [markdown] trap="04.10" role="hint"
# 1. There are two cuts through the same rows: where ranks change, and where matrices change. Undo the first before you make the second.
# 2. `torch.cat` puts shards together along the rows; `split` takes a list of sizes.
# 3. Where this rank's rows begin depends on how many rows the ranks before it hold, not on `rank` times `n`.

# %% [markdown] trap="04.10" role="keep"
# **Keep:** before you shard an optimizer, ask whether its rule works entry by entry. A
# rule for matrices, such as Muon's, needs each matrix whole and alone. **In your own
# code:** take one step with the weight whole and one with it split, and compare. **Seen
# in the wild:**
# [`deepspeedai/DeepSpeed#8090`](https://github.com/deepspeedai/DeepSpeed/pull/8090) fixes
# silently wrong updates wherever a matrix crossed two ranks, because no rank held all of
# it. In [`InternLM/xtuner#2030`](https://github.com/InternLM/xtuner/pull/2030), query,
# key and value were orthogonalized together. **Source:** Liu et al. 2025, ["Muon is
# Scalable for LLM Training"](https://arxiv.org/abs/2502.16982), with a Muon for many
# GPUs.

# %% [markdown] role="concept"
# ## Further
#
# Nothing below is needed for the traps. It introduces Muon, a rule for matrices, and
# measures which rate it needs.

# %% [markdown] role="concept"
# ### Muon, a rule for matrices
#
# Muon takes the momentum of a weight matrix and pushes its singular values towards one
# before it steps, with a few matrix products (*Newton-Schulz*). So it is meant for the
# hidden matrices of a network. `torch.optim.Muon` refuses whatever is not a matrix:
# biases, gains, kernels of a convolution. An embedding or an output layer is a matrix, so
# it accepts them without a warning. Its documentation leaves them, like the vectors, to
# AdamW. You have to sort them yourself, as in trap 04.1.

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
claim("Muon takes a bias or a kernel",
      muon_takes(64) or muon_takes(8, 8, 3, 3), expected=False)
claim("Muon takes an embedding", muon_takes(1000, 64), expected=True)

# %% [markdown] role="concept"
# Its default rate is 0.001, like AdamW's, but the step is different: an $n$ by $n$ matrix
# whose singular values are near one has entries of about $1/\sqrt{n}$. That is the step
# with `adjust_lr_fn="original"`, the default. `"match_rms_adamw"` multiplies that step by
# `0.2 * sqrt(max(rows, columns))`. Where the gradient has full rank, the entries are then
# about a fifth of the rate, so you can give Muon a rate that was found for AdamW. Look at
# the first step of a matrix of 256 by 256:

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
          alt="Three bars. AdamW's first step is one rate, Muon's with "
              "match_rms_adamw about a fifth of it, with the original "
              "adjustment about a twentieth.")

# %% role="concept"
claim("Muon, original, 256 by 256: first step in rates", rms["original"],
      expected=0.056, within=0.006)
claim("Muon, match_rms_adamw: first step in rates",
      rms["match_rms_adamw"], expected=0.18, within=0.02)

# %% [markdown] role="concept"
# So AdamW's rate is too low for that default. Let Muon train the hidden matrices of a
# deeper classifier, and AdamW the rest:

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
claim("hidden matrices at 0.001: loss with Muon over AdamW's",
      by_muon / by_adamw, above=1.2)
claim("Muon: loss at 0.02 over that at 0.001", bolder / by_muon,
      below=0.8)

# %% [markdown] role="concept"
# In these 60 steps the default rate is far too low; twenty times as much is not. Again, a
# rate belongs to its rule. **Source:** PyTorch documentation of
# [`Muon`](https://docs.pytorch.org/docs/stable/generated/torch.optim.Muon.html).

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then open a choice: each says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. You multiply the loss by 100 and change nothing else. Training is the same with**
#
# - [x] Adam, up to eps :: Both averages grow, and the quotient stays. The explorer shows it.
# - [ ] SGD with momentum :: Its step is 100 times as long: as if you had multiplied the rate.
# - [ ] neither :: Adam and Lion divide the scale out or take a sign. They do not notice.

# %% [markdown] role="quiz"
# **2. `CosineAnnealingLR(opt, T_max=10)` in a run of 10 epochs. You call `step()`**
#
# - [ ] after every batch :: Then it swings down and up again every 20 batches.
# - [x] after every epoch :: Its 10 are epochs only if you call it once per epoch.
# - [ ] it does not matter, it knows the loader :: A scheduler counts its own calls and knows nothing else.

# %% [markdown] role="quiz"
# **3. Which line switches weight decay off?**
#
# - [ ] `AdamW(params, lr=1e-3)` :: The default is 0.01: trap 04.4.
# - [ ] `AdamW(params, lr=1e-3).zero_grad()` :: That clears gradients. Decoupled decay does not come from them.
# - [x] `AdamW(params, lr=1e-3, weight_decay=0)` :: And then it is Adam, bit for bit.

# %% [markdown] role="quiz"
# **4. Your range test, with momentum 0.9, has its lowest loss at 0.5. Your first full run is at**
#
# - [x] about 0.05 :: A tenth leaves a margin. A schedule may bring it down from there.
# - [ ] 0.5, because the loss was lowest there :: It was low thanks to the smaller rates before. At 0.5 you are close to the edge.
# - [ ] 5, because the loss was still falling :: Past the lowest point it was rising, and soon out of sight.

# %% [markdown] role="quiz"
# **5. A layer gets a gradient of exactly zero, not None, from now on. With AdamW it**
#
# - [ ] stands still :: Only None makes torch skip it.
# - [ ] coasts, then stands still :: The momentum fades, but one force remains.
# - [x] coasts, and goes on shrinking :: The decay needs no gradient, only a step.

# %% [markdown] role="quiz"
# **6. You port Adam with its default betas and forget the bias correction. For a steady gradient the first steps are**
#
# - [ ] ten times too short, because m holds a tenth of the gradient :: v holds only a thousandth of its square, and the step divides by the root.
# - [x] about three to seven times too long :: 3.2 at the first, 6.6 at the twelfth.
# - [ ] right, from the eleventh on :: m has caught up by then, v has not: it takes about 2,000 steps.

# %% [markdown] role="gpu"
# ## On a GPU: the step that waits for its own orders
#
# A step of Adam reads a few numbers per weight, does a dozen operations and writes
# them back. For a model of many small tensors the arithmetic takes little time; the
# *orders* (calls of a kernel) take most of it. Torch has three ways to issue them: a loop
# over tensors, `foreach` (one order for a list of tensors), and `fused` (one order for
# the whole step).
#
# **Before you run anything:** a model has 100 tensors. How many operations does
# one step of AdamW ask for in each of the three ways? And which way needs the most
# memory on top while it runs?
#
# `cost` counts the operations, the bytes that they write, and the most that exist
# at a time beside what was there before. What an order takes has to be measured on a GPU.
# Bytes predict: `foreach` saves orders and no bytes, `fused` saves both.

# %% role="gpu"
def make_step(way, tensors, n, where):
    """A call: AdamW steps once more, on `tensors` weights of n numbers."""
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
    print(f"{way:8} {orders[way, 10]:4} orders for 10 tensors, "
          f"{orders[way, 100]:4} for 100; writes {written[way]:.1f} copies "
          f"of the weights, holds {on_top[way]:.2f} on top")

# %% role="gpu"
claim("orders of the loop, 100 tensors over 10",
      orders["loop", 100] / orders["loop", 10], above=8)
claim("orders of foreach over the loop's, 100 tensors",
      orders["foreach", 100] / orders["loop", 100], below=0.33)
claim("orders of fused, 100 tensors", orders["fused", 100], below=10)

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
claim("copies of the weights that foreach holds on top", on_top["foreach"],
      expected=1, within=0.02)
claim("copies that the loop holds", on_top["loop"], below=0.1)
claim("bytes a weight that AdamW remembers: two means, and one counter",
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
    """How many times as long as the loop this way takes."""
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
# **On the H100 of the record** the loop over 400 tensors takes 26 ms, whether each holds
# 1,000 values or 250,000: that is the cost of orders. Fused, the same step takes less than
# a twentieth of that time. Compared with `foreach`, the default on a GPU, fused takes
# about a third of the time in all three shapes. But fused also pays for orders: 400
# tensors of 1,000 values take 1.0 ms, of 250,000 values 1.1 ms.
#
# With four large tensors the loop is no slower than `foreach`. Fused takes 0.38 of the
# loop's time where 0.5 was predicted: `cost` sees what is written. With what is read as
# well, it is 7 tensors against 20, as in stage 2, or 0.35. What the loop holds on top
# is copies of one tensor: 3 MB where 400 share the weights, 302 MB where four do.
#
# **Keep:** count tensors, not weights, when a step is slow; `fused=True` is the
# cheapest in orders and in memory on top, where it exists. `foreach` is torch's
# default on a GPU and holds temporary copies while it runs. On a CPU the default is
# the loop. What an optimizer remembers stays for the whole run, beside weights (4
# bytes each in fp32) and gradients (4 more). Lion remembers one number per weight, as
# momentum does: half of AdamW, 28 GB instead of 56 GB for 7 billion weights.
# **Source:** PyTorch documentation of [`torch.optim`](https://docs.pytorch.org/docs/stable/optim.html),
# "Algorithms", and of [`AdamW`](https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html),
# "foreach".

# %% [markdown] role="summary"
# ## What you take with you
#
# - Momentum speeds up a direction that stays and cancels one that alternates. Adam
#   divides each weight's step by the size of its gradients. Weight decay keeps weights
#   small so that rows are not stored.
# - A rate belongs to its rule: SGD's step follows the gradient; Adam's first step and all
#   of Lion's have the size of the rate.
# - Put every parameter into exactly one group, by what it is.
# - A warm-up makes a high peak safe at the start, and the fall of the rate settles the
#   noise. A lower peak may need no warm-up.
# - A scheduler counts its calls to `step()`, so write its arguments in that unit.
# - AdamW decays by 0.01 unless you say otherwise; decoupled decay multiplies the weight.
# - Sweep the rate before you choose it, and start well below the edge: at a tenth with
#   momentum.
# - Put the floor inside the cosine, and do not start the warm-up at zero.
# - With momentum, a gradient of zero is a step; None skips the tensor.
# - With the default betas, bias correction shortens Adam's first steps. Lion has two
#   betas for two jobs.
# - A moment in bfloat16 rises and, at the default beta, does not fall. A rule for
#   matrices needs the whole matrix, and only one.
#
# **Next:** stage 5 looks at what a network carries besides its weights: norms and their
# statistics, dropout, and the scale it starts from.
