# %% [markdown] role="hook" traps=11
# # 4. Optimizers and learning-rate schedules
#
# An optimizer is ten lines of arithmetic that run a million times, and a schedule
# is a curve that moves when you call it. You hand them rates, names and step
# counts. Some values are defaults that you never chose. Hardly one is checked beyond its sign.
#
# Eleven times below the lines look right and raise nothing. This stage has you guess
# what they do, write them yourself and compare with torch, number by number.

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
from torch.optim import lr_scheduler as sched

from dlsys_helpers import (
    accuracy, begin, check, claim, cost, datasheet, digits, draw_blocks,
    draw_boxes, draw_line, fit, gpu_result, gpu_table, guess, measured,
    peak_bytes, plot_bars, plot_columns, plot_lines, seconds,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## Five rules, one shape
#
# Each rule below takes a gradient $g$ and gives a step. They differ in what they
# remember and in what they divide by. The learning rate is $\eta$; all products
# are element by element.
#
# | rule | what it remembers | the step it subtracts |
# |---|---|---|
# | SGD | nothing | $\eta\,g$ |
# | momentum | $b \leftarrow \mu b + g$ | $\eta\,b$ |
# | Adam | $m \leftarrow \beta_1 m + (1-\beta_1)g$, $v \leftarrow \beta_2 v + (1-\beta_2)g^2$ | $\eta\,\hat m / (\sqrt{\hat v} + \epsilon)$ |
# | AdamW | as Adam | as Adam, after $w \leftarrow (1-\eta\lambda)w$ |
# | Lion | $m \leftarrow \beta_2 m + (1-\beta_2)g$ | $\eta\,\mathrm{sign}(\beta_1 m + (1-\beta_1)g)$ |
#
# The hats are Adam's *bias correction*: $\hat m = m/(1-\beta_1^t)$ and
# $\hat v = v/(1-\beta_2^t)$ at step $t = 1, 2, \dots$ Look at the first step of
# two of them, for gradients that span six orders of magnitude.

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
# Adam's first step does not see the size of a gradient, as long as that is far above
# `eps`. What Adam stores, `exp_avg` and `exp_avg_sq`, are $m$ and $v$ without hats:
# after one step they hold a tenth of the gradient and a thousandth of its square.
#
# Move the explorer: multiply the loss by 10 and see who notices.

# %% role="explore" explorer="optimizer_paths"
from dlsys_helpers.explorers.optimizer_paths import optimizer_paths

optimizer_paths

# %% [markdown] trap="04.1" role="situation" core=true fault="gains get weight decay: filtered by name or by axes" symptom="weight decay is applied to LayerNorm or BatchNorm although it is excluded by name"
# ## Two filters for weight decay
#
# A *gain* is a weight that scales one channel. You keep gains and biases out of weight
# decay. Many scripts do so by a list of names. "A list misses some. Count axes instead: a
# matrix has two or more and decays, a gain has one and does not," says a colleague. You try
# a list on torch's own encoder layer, and the colleague's rule on a ConvNeXt.

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
guess("04.1", "Among the tensors of the ConvNeXt that the rule by axes "
      "decays, how many are gains?", unit="gains")

# %% trap="04.1" role="look"
scales = {name: p for name, p in by_axes.items() if "layer_scale" in name}
print(f"{len(scales)} gains, such as {next(iter(scales))}: "
      f"{tuple(next(iter(scales.values())).shape)}")

# %% trap="04.1" role="look"
measured("04.1", len(scales), right=(18, 18))

# %% trap="04.1" role="look"
claim("ConvNeXt-T: gains that the rule by axes decays", len(scales),
      expected=18)

# %% [markdown] trap="04.1" role="look"
# They multiply each residual branch, channel by channel. And in the encoder layer two
# gains escape the list of names, so they are decayed:

# %% trap="04.1" role="look"
print(*decayed, sep="\n")
gains = [name for name in decayed if name.startswith("norm")]

# %% trap="04.1" role="look"
claim("gains of a norm among them", len(gains), expected=2)

# %% [markdown] trap="04.1" role="why"
# `LayerNorm` is the name of a *class*. Parameters are named after *attributes*: `norm1` in
# this layer, `bn1` and `downsample.1` in ResNet, `ln_f` elsewhere. So the gains slip
# through the list. The number of axes depends on no name, but it says how a tensor is
# *stored*: a gain for images has the shape `(96, 1, 1)`. Neither filter raises anything.

# %% trap="04.1" role="repair"
def by_shape(model):
    """(matrices, vectors) of a model: two or more axes, and fewer."""
    every = list(model.parameters())
    return ([p for p in every if p.ndim >= 2],
            [p for p in every if p.ndim < 2])

matrices, vectors = by_shape(encoder)
print(f"decayed {len(matrices)}, exempt {len(vectors)}")

# %% [markdown] trap="04.1" role="repair"
# A rule by axes is the better start. It is not enough: print the decayed group once, and name
# the exceptions that you find there, such as `layer_scale`. In the encoder layer there are
# none:

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
# An embedding has two axes as well. Some recipes decay it, some do not: write the decision
# down, and print what the rule puts where. What a wrong group costs depends on three
# numbers, and you can measure that on one gain.

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
# **Told:** decaying the norms degrades fine-tuning notably. **Measured:** a gain
# without any gradient loses 0.06 % in 3,000 steps at a rate of 0.00002 with decay
# 0.01. In 1,000 steps at 0.01 with decay 0.1 only 0.368 of it is left. The
# product of rate, decay and steps tells you which of the two is yours.

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
# **Keep:** sort parameters by what they are, and count them: the groups together
# hold every trainable tensor once. **In your own code:** print the names of the
# decayed group once per model. **Source:** [Loshchilov & Hutter
# 2019](https://arxiv.org/abs/1711.05101) for decay; `configure_optimizers` in
# [nanoGPT's model.py](https://github.com/karpathy/nanoGPT/blob/master/model.py) for
# the rule by axes.

# %% [markdown] trap="04.2" role="situation" core=true fault="Adam runs at the learning rate of SGD" symptom="training collapses or crawls after switching from SGD to Adam with the same learning rate"
# ## A borrowed learning rate
#
# Trained by SGD with momentum at a rate of 0.3, your reader reads the digits well. You
# switch to Adam and leave the rate. Before you look at the result, you compare the two
# rules at one rate: `first_step` measures how far a weight goes in the very first step.

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
guess("04.2",
      "At one rate, 0.01: how many times as long is Adam's first step as "
      "that of SGD with momentum?", unit="times")

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
          title="At one rate Adam's step is hundreds of times as long",
          alt="Two bars on a log scale: Adam's first step is as long as "
              "the rate, SGD's is hundreds of times shorter.")

# %% [markdown] trap="04.2" role="look"
# So a rate that fits one rule does not fit the other. You gave Adam the rate of SGD, 0.3.
# A colleague gives SGD a usual rate of Adam, 0.001. The share that each run reads:

# %% trap="04.2" role="look"
borrowed["SGD at 0.001"] = score(momentum, 0.001)
print({name: f"{right:.2f}" for name, right in borrowed.items()})

# %% [markdown] trap="04.2" role="why"
# A rate is multiplied with something, and the two rules multiply it with different things.
# SGD's first step is rate times gradient, and this reader's gradients are far below one.
# Adam's first step has the size of the rate itself, for each weight whose gradient is far
# above `eps`. So 0.01 is a small step for one rule
# and a large one for the other. When you change the rule, search the rate again.

# %% trap="04.2" role="repair"
own = {"Adam at 0.01": score(adam, 0.01),
       "SGD at 0.3": score(momentum, 0.3)}
print({name: f"{right:.2f}" for name, right in own.items()})

# %% trap="04.2" role="repair"
claim("Adam at 0.01: share right", own["Adam at 0.01"], above=0.92)

# %% trap="04.2" role="repair"
plot_bars(borrowed | own, xlabel="share of test digits right",
          title="Each rule needs its own rate",
          alt="Bars: Adam at 0.3 and SGD at 0.001 fall far behind, Adam at "
              "0.01 and SGD at 0.3 both exceed nine tenths.")

# %% [markdown] trap="04.2" role="more" topics="the other three runs · Muon"
# The other three bars. Muon's rate is a third kind of number: *Muon, a rule for matrices*,
# under *Further*, measures it.

# %% trap="04.2" role="more"
claim("SGD at 0.001: share right", borrowed["SGD at 0.001"], below=0.75)
claim("Adam at 0.3: share right", borrowed["Adam at 0.3"], below=0.9)
claim("SGD at 0.3: share right", own["SGD at 0.3"], above=0.88)

# %% [markdown] trap="04.2" role="folklore"
# **Told:** a rate of 0.01 makes Adam crawl; 0.001 may make SGD diverge. **Measured:** for
# this reader it is the reverse. Adam at 0.01 is one of the good runs, SGD at 0.001 crawls,
# and it is Adam at 0.3 that breaks. Another page says that Adam at 0.01 "diverges at
# once": for a large pre-trained model it may. A rate belongs to a rule and a model.

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
# **Keep:** SGD's step scales with the gradient; Lion's has the size of the rate, and
# so has Adam's while gradients are steady and far above `eps`. **In your own
# code:** log the largest step beside the loss; a sane one is a small share of the
# weights. **Source:** [Kingma & Ba 2015](https://arxiv.org/abs/1412.6980), section
# 2.1, on the effective step.

# %% [markdown] trap="04.3" role="situation" core=true fault="scheduler.step() per batch, its numbers count epochs" symptom="learning rate never rises, decays far too early or goes up and down: scheduler.step() per epoch or per batch"
# ## Ten epochs on a cosine
#
# Your run has ten epochs of 100 batches. `CosineAnnealingLR(opt, T_max=10)` brings the rate
# down to zero over the ten epochs. While tidying up, somebody moves `schedule.step()` into
# the loop over batches. Nothing complains. "Then ten batches train, and at all others the
# rate is zero," says a colleague. You log the rate of each batch.

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
           title="Past its end the cosine comes up again",
           alt="The rate of the first 60 batches. Called per batch it "
               "swings between 0.1 and zero, three times; called per epoch "
               "it is still at 0.1.")

# %% [markdown] trap="04.3" role="look"
# The formula has no end: it climbs back to the full rate. The reverse is as silent. Call a
# one-cycle schedule with `total_steps=1000` once per epoch:

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
# numbers are numbers of calls. With `T_max=10` the cosine falls for ten calls and climbs for
# the next ten: in a thousand calls it does so fifty times. One-cycle, told of 1,000 calls and
# called ten times, has hardly begun to climb. Count both in one unit.

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
                "schedule.step, on the right behind it.")

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
# In the explorer, "its numbers count" is what you told the schedule, "step() is
# called" is what your loop does. Make them differ.

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
# **Told:** `CosineAnnealingLR` is stepped per epoch, `OneCycleLR` per batch, and a
# mix-up is silent. **Measured:** the class does not decide; the unit of its
# numbers does. `CosineAnnealingLR` with 1,000 in it belongs in the batch loop. And
# of the two mix-ups of `OneCycleLR` one is loud: too many calls raise `ValueError`.

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
# **Keep:** a scheduler counts calls; give it numbers in the unit in which you call
# it, and call it after `opt.step()`. **In your own code:** before a long run, loop
# over all steps without data, `opt.step()` included (torch warns without), and plot
# the rate. **Source:** PyTorch documentation, ["How to adjust learning
# rate"](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate).

# %% [markdown] trap="04.4" role="situation" fault="AdamW decays by 0.01 when no weight_decay is given" symptom="AdamW differs from Adam although no weight decay was set"
# ## Adam and AdamW, no decay given
#
# You compare Adam with AdamW and pass no decay to either. Both run 100 steps from one start,
# on the same batches.

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
print(f"decay alone takes a share of {1 - (1 - 0.01 * 0.01) ** 100:.3f}")

# %% trap="04.4" role="look"
measured("04.4", 0)

# %% trap="04.4" role="look"
claim("largest difference of a weight", gap, above=1e-4)

# %% [markdown] trap="04.4" role="why"
# Forgetting the argument does not lose the decay, it gives you AdamW's default, 0.01.
# Alone it would take 1 % of each weight in these 100 steps; the gap can be larger, since
# two models that differ get different gradients.
#
# Adam's own `weight_decay` is another method: it adds $\lambda w$ to the *gradient*, and
# Adam then divides it by the gradient's size. AdamW multiplies the weight itself.

# %% trap="04.4" role="why"
draw_blocks({"Adam": ["g + λw", "m and v", "divide", "step"],
             "AdamW": ["w times 1 − ηλ", "m and v", "divide", "step"]},
            marks={"Adam": ["g + λw"]},
            captions={"Adam": "the decay is divided, too",
                      "AdamW": "the same share of each weight"},
            title="Adam's decay goes through the division",
            alt="Two columns of boxes. In Adam the decay joins the "
                "gradient before the averages and the division; in "
                "AdamW it multiplies the weight, apart from them.")

# %% [markdown] trap="04.4" role="repair"
# Say `weight_decay=0`, and AdamW is Adam, bit for bit:

# %% trap="04.4" role="repair"
off = trained(torch.optim.AdamW, weight_decay=0)
claim("decay 0, AdamW minus Adam: largest difference",
      (off - plain).abs().max(), expected=0)

# %% [markdown] trap="04.4" role="repair"
# And with a decay of 0.1 in both? One weight of 1 gets small gradients, one gets large
# ones:

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
              "the same share of both.")

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
# argument it decays by 0.01 and ends at other weights; with `weight_decay=0` it is
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
# **Keep:** decoupled decay multiplies the weight by $1 - \eta\lambda$; decay in the
# gradient is another method. **In your own code:** always write `weight_decay=`,
# and read it back from `opt.param_groups`. **Source:** Loshchilov & Hutter 2019,
# ["Decoupled Weight Decay Regularization"](https://arxiv.org/abs/1711.05101),
# algorithm 2.

# %% [markdown] trap="04.5" role="situation" fault="a learning rate too high looks like one too low" symptom="loss does not go down: learning rate too high or too low?"
# ## A rate of 0.0001 and a rate of 3
#
# Two people train your digit reader with momentum for 200 steps, one at a rate of 0.0001,
# one at 3. The first ends at a loss of about 2.3, what guessing costs.

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
# At 0.0001 the weights have hardly moved. At 3 the first steps threw them so far that the
# hidden units give 0 for every digit. Only the last biases still learn, and the best that
# they can do is to guess:

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
# A range test asks all rates in one short run: multiply the rate by a constant factor
# after each batch and watch the loss. It stays flat, falls, and shoots up. The lowest
# loss was earned by the smaller rates before it: the rate at that point is already close
# to one that fails. Start at a tenth of it.

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
claim("a tenth of it: share right", tenth, above=0.92)

# %% role="explore" explorer="lr_range_test"
from dlsys_helpers.explorers.lr_range_test import lr_range_test

lr_range_test

# %% [markdown] trap="04.5" role="more" topics="the two runs · at the edge and beyond · without momentum"
# At the lowest point itself you gain little or lose some; beyond it, the run is lost:

# %% trap="04.5" role="more"
claim("rate 0.0001: loss", low[0], expected=2.3, within=0.15)
claim("the better of the two: share right", max(low[1], high[1]),
      below=0.35)
claim("rate at the lowest loss", edge, above=0.1, below=2)
claim("the lowest point itself: share right, beside the tenth's",
      at_edge - tenth, below=0.03)
claim("4 times beyond it: share right", beyond, below=0.9)

# %% [markdown] trap="04.5" role="more"
# A tenth is a margin, and what margin you need depends on the rule. Without
# momentum the same test gives a higher edge, and a tenth of it is slow.

# %% trap="04.5" role="more"
sgd = torch.optim.SGD
rates, losses = sweep(sgd)
plain_edge = rates[losses.index(min(losses))]
slow, third = (run_at(plain_edge / part, sgd)[1] for part in (10, 3))
print(f"plain SGD: edge {plain_edge:.2f}, trained at a tenth {slow:.2f}, "
      f"at a third {third:.2f}")

# %% trap="04.5" role="more"
claim("plain SGD, a tenth: share right", slow, above=0.87)
claim("plain SGD, a third: share right, beside the tenth's", third - slow,
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
# **Keep:** sweep the rate by a factor per step, stop when the loss runs away, and start
# with momentum at a tenth of the rate at the lowest point, with plain SGD at a third.
# **In your own code:** repeat it when you change optimizer, batch or model, with 100
# steps or more. **Source:** Smith 2017, ["Cyclical Learning Rates for Training Neural
# Networks"](https://arxiv.org/abs/1506.01186), section 3.3, for the sweep; the tenth is a
# rule of thumb, tried above.

# %% [markdown] trap="04.6" role="situation" fault="max() as a floor: the cosine stands still" symptom="learning rate is flat at the end of cosine decay; first step has learning rate zero"
# ## A floor under a cosine
#
# Warm up for 100 steps, then a cosine down to a tenth of the peak at step 1,000: the usual
# recipe for large models. You copy warm-up and floor from a script.
# "Your first batch is wasted," says a colleague.

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
# The colleague is right, too: the first batch moves nothing.

# %% trap="04.6" role="look"
claim("first step: share of the peak", cut[0], expected=0)

# %% [markdown] trap="04.6" role="why"
# `max` cuts the lower end off a cosine that was heading for zero: the rate arrives early
# and stays. A floor belongs *into* the formula: floor plus the rest times the cosine. And
# steps are counted from 0, so a warm-up over `warm` steps is `(step + 1) / warm`: step
# `warm - 1` runs at the peak. The cosine counts from there, so that the last step runs at
# the floor. (The exercise counts from step `warm`, so that its floor is step `total`.)

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
# **Keep:** a floor goes inside the cosine; the first step is `1 / warm`, not 0. **In
# your own code:** assert the rate at four steps: first, end of warm-up, middle,
# last. **Source:** Loshchilov & Hutter 2017,
# ["SGDR"](https://arxiv.org/abs/1608.03983), equation 5, for the floor inside.

# %% [markdown] trap="04.7" role="situation" fault="zero_grad(set_to_none=False): idle weights move on" symptom="parameters move although they received no gradient: zero_grad(set_to_none=False)"
# ## A head that is out of the loss
#
# A model has one trunk and two heads. For 20 steps you train both tasks, with Adam at a
# rate of 0.01, then only the first. "A zero gradient, a zero step," says a colleague. So
# you call `zero_grad(set_to_none=False)`, to be on the safe side.

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
      "How far, in rates, does the second head move in 20 steps in which "
      "its gradient is exactly zero?", unit="rates")

# %% trap="04.7" role="look"
print(f"the idle head moved by up to {drift:.3f} at a rate of 0.01")

# %% trap="04.7" role="look"
measured("04.7", drift / 0.01, right=(4.5, 12))

# %% trap="04.7" role="look"
claim("distance of the idle head, in rates", drift / 0.01, above=2)

# %% [markdown] trap="04.7" role="why"
# Adam steps along its *memory*, and a zero gradient only lets that fade: the head coasts
# on. Weight decay, where it is set, goes on as well. `None` means something else: torch
# skips the tensor, memory and all. One weight shows it, after a single gradient of 1:

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
           title="With zeros Adam coasts on, with None it stands",
           alt="A weight by step. Both lines fall from 1 to 0.9 in the "
               "first step. With None the line stays there, with zeros "
               "it goes on falling, ever more slowly.")

# %% trap="04.7" role="repair"
with_none = idle_drift(set_to_none=True)
print(f"the idle head moved by {with_none:.3f}")

# %% trap="04.7" role="repair"
claim("with None: distance of the idle head", with_none, expected=0)

# %% [markdown] trap="04.7" role="more" topics="one weight in numbers · other optimizers · what plain zero_grad leaves"
# The second step of the figure in numbers, and of other rules. Plain SGD, Adagrad and
# RMSprop have no momentum to coast on:

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
# And what you get if you do not ask:

# %% trap="04.7" role="more"
w = nn.Parameter(torch.ones(1))
w.square().backward()
torch.optim.SGD([w]).zero_grad()
claim("plain zero_grad() leaves None", w.grad is None,
      expected=True)

# %% [markdown] trap="04.7" role="folklore"
# **Told:** a zero gradient is a zero step, so the two settings of `zero_grad` differ in
# memory only. **Measured:** so it is with plain SGD, Adagrad and RMSprop, without
# momentum or decay. Adam and SGD with momentum go on along their memory with zeros, and stand
# still with `None`, which is what plain `zero_grad()` leaves behind.

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
# **Keep:** for an optimizer with momentum a zero gradient is a step, `None` is none. **In your own code:** to rest a
# part of a model, set its gradients to None or leave it out of the optimizer, and
# compare its weights before and after. **Source:** PyTorch documentation,
# [`Optimizer.zero_grad`](https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html).

# %% [markdown] trap="04.8" role="situation" fault="Adam without bias correction: steps too long" symptom="fine-tuning unstable in the first steps: Adam without bias correction"
# ## Adam without bias correction
#
# Somebody ported Adam and left out the bias correction. You expect cautious first steps:
# $m$ starts at zero, and only a tenth of the gradient gets in. "They are too long," says
# the reviewer.
#
# A weight sees the gradient 1 at each step. With the correction each of its steps is one
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
guess("04.8", "How long is its twelfth step without the correction?",
      unit="rates")

# %% trap="04.8" role="look"
print(f"step 1: {bare[0]:.2f}   step 12: {bare[11]:.2f}   "
      f"step 100: {bare[99]:.2f}   step 2,000: {bare[-1]:.3f}")

# %% trap="04.8" role="look"
measured("04.8", bare[11], right=(5, 8))

# %% trap="04.8" role="look"
claim("12th step, in rates", bare[11], expected=6.57, within=0.01)

# %% [markdown] trap="04.8" role="look"
# That is the longest. A hundred steps later the effect is still there:

# %% trap="04.8" role="look"
claim("step 100, in rates", bare[99], expected=3.24, within=0.01)

# %% [markdown] trap="04.8" role="why"
# $m$ starts too small, but so does $v$, and the step divides by its root. With
# $\beta_2 = 0.999$ the second average wakes up a hundred times more slowly than the
# first, so the quotient is too *large*: by $(1-\beta_1^t)/\sqrt{1-\beta_2^t}$. The
# correction divides both averages by what they still lack.

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
# The curve starts above 3 and is off by 7.5 % even at step 2,000:

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
# short indeed, 0.447 of a rate. A BERT optimizer that lacked the correction
# has been blamed for unstable fine-tuning on small data.

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
# **Keep:** with the default betas, Adam without correction starts with steps that are
# too long. **In your own code:** compare any port with torch for many steps, tiny
# gradients included. **Source:** [Kingma & Ba 2015](https://arxiv.org/abs/1412.6980),
# section 3; Zhang et al. 2020, ["Revisiting Few-sample BERT
# Fine-tuning"](https://arxiv.org/abs/2006.05987).

# %% [markdown] trap="04.9" role="situation" fault="Lion with one beta: its momentum forgets too fast" symptom="own Lion implementation differs from the paper: one beta for update and momentum"
# ## Lion with one beta for two jobs
#
# Lion is the sign of a blend of momentum and gradient. You port it from a summary that
# uses $\beta_1 = 0.9$ in both lines: once to blend, once to update the momentum. The paper
# has a second number, $\beta_2 = 0.99$, for the update. The network trains, and its
# accuracy is fine. Below, all gradients are noise, without any signal.

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
      "For what share of the weights does the summary step the other way "
      "than the paper?", unit="%")

# %% trap="04.9" role="look"
def flipped(a, b):
    """Share of directions that differ, after 500 steps of settling."""
    return (a != b)[500:].float().mean().item()

print(f"steps that go the other way: {flipped(summary, paper):.3f}")

# %% trap="04.9" role="look"
measured("04.9", 100 * flipped(summary, paper), right=(20, 36))

# %% trap="04.9" role="look"
claim("share of steps that go the other way, on noise",
      flipped(summary, paper), expected=0.279, within=0.01)

# %% [markdown] trap="04.9" role="why"
# The two numbers have two jobs. $\beta_1$ says how much the newest gradient counts in
# *this* step, $\beta_2$ how long the momentum remembers. With 0.9 for both, the memory is
# ten steps instead of a hundred: a noisier direction. A strong signal hides the fault,
# because then both agree.

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
               "only the newest weighs 0.1; the older ones lie low and "
               "fall slowly, over a hundred steps.")

# %% [markdown] trap="04.9" role="repair"
# With two betas the port is the paper's. To test any port, feed it noise: from the
# correlation $\rho$ of two blends follows the share of signs that differ,
# $\arccos(\rho)/\pi$.

# %% trap="04.9" role="repair"
rho = (one @ two) / (one.norm() * two.norm())
share = math.acos(rho) / math.pi
print(f"correlation {rho:.3f}, so {share:.3f} of the signs flip")

# %% trap="04.9" role="repair"
claim("share that theory gives", share, expected=0.279, within=0.001)

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
# **Told:** Lion wants a rate 3 to 10 times smaller than Adam. **Measured:** half of the
# advice is missing. Decoupled decay, AdamW's and Lion's alike, acts as rate times
# $\lambda$: in 1,000 steps without gradient a rate that is 10 times smaller needs a
# decay that is 10 times larger to leave the same share of a weight.

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
# **Keep:** $\beta_1$ for the step, $\beta_2$ for the memory; rate down means decay up.
# **In your own code:** feed a port pure noise and compare directions with the
# formula: accuracy will not tell. **Source:** Chen et al. 2023, ["Symbolic Discovery
# of Optimization Algorithms"](https://arxiv.org/abs/2302.06675), algorithm 2 and
# section 5.

# %% [markdown] trap="04.11" role="situation" fault="Adam's second moment in bfloat16 never falls" symptom="bfloat16 model with AdamW: steps stay too short after large gradients, exp_avg_sq does not fall"
# ## A model in sixteen bits
#
# To save memory you load a model in bfloat16, weights and all. AdamW keeps its running
# averages, the *moments*, in the dtype of the weights, so they take half
# the memory, too. bfloat16 has the range of float32 and a precision of two to three decimal
# digits. "With the default second beta of 0.999 I average a thousand gradients. The
# rounding cancels," says a colleague.
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
guess("04.11",
      "At the end, how many times as large as in float32 is the mean of "
      "the second moment in bfloat16?", unit="times")

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
# Adam divides by its root, so its steps are about half as long as they should be. How many
# of the 300 numbers are lower at the end than after the loud start?

# %% trap="04.11" role="look"
claim("bfloat16: numbers that are lower at the end",
      (half[-1] < half[0]).sum(), expected=0)

# %% [markdown] trap="04.11" role="why"
# A small gradient takes a thousandth off the moment: $0.999\,v$. From one power of two to
# the next bfloat16 has 128 numbers, evenly spaced, so the next one below $v$ is at least a
# 256th of $v$ away. A thousandth is less than half of that, and is rounded back. A gradient
# whose square is several times $v$ still gets in. So the moment is a ratchet: up, and never
# down.

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
# Keep the moments in float32. They stay there if the weights do, and autocast
# takes only the computation to bfloat16:

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
# Where memory forbids that, *round at random*: a number nine tenths of the way to the next
# one goes up nine times in ten, else down. Each rounding is wrong, and their mean is right.
# Here it is on whole numbers, where the nearest to $0.999 \cdot 100 = 99.9$ is 100 again
# and again:

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
# Without any loud start the moment is too large as well. That AdamW rounds after each
# operation is not the cause: `fused`, which computes in float32 and rounds once, ends about
# as high. A second beta of 0.95, as many language models have, takes off more than a gap at
# each step:

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
# the second beta. With 0.95 it follows the gradients, with the default of 0.999 it only
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
# **Keep:** a running average moves by $1-\beta$ of itself at a time, and its dtype has to
# see that much: rounded to the nearest, bfloat16 does not see a thousandth. **In your
# own code:** print `opt.state[p]["exp_avg_sq"].dtype`, and count how many of its numbers
# fell in a hundred steps. **Seen in the wild:**
# [`whitecircle/halo#30`](https://github.com/whitecircle/halo/pull/30), a second moment off
# by tens of percent when rounded to the nearest;
# [`NVIDIA-NeMo/Automodel#2248`](https://github.com/NVIDIA-NeMo/Automodel/pull/2248), a
# guide that warns of moments in the dtype of a bfloat16 model. **Source:** Zamirai et al.
# 2021, ["Revisiting BFloat16 Training"](https://arxiv.org/abs/2010.06192), on rounding at
# random.

# %% [markdown] trap="04.10" role="situation" fault="Muon orthogonalizes each rank's shard, not the matrix" symptom="Muon's update changes with the number of GPUs: sharded or tensor-parallel weights"
# ## One matrix on four ranks
#
# A hidden layer of 256 by 256 no longer fits on one GPU. So its rows lie on four, the
# *ranks* (no rank of a matrix): 64 rows on each, with their gradient and momentum. Each rank
# steps its own rows. With AdamW that is how sharding works. Now Muon takes over the layer: its step is a matrix whose singular
# values are near one. "Each rank still brings the singular values of its rows to one. So
# the step is as long as if one rank held them all," says a colleague.
#
# Below, one process plays the ranks, with the gradient of a batch of digits.

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
guess("04.10",
      "How long is the step of the four ranks together (the root of its "
      "sum of squares), if a single rank's is one?", unit="times")

# %% trap="04.10" role="look"
times = (apart.norm() / whole.norm()).item()
adamw = torch.optim.AdamW
moved = (step_of(adamw, pull, 4) - step_of(adamw, pull, 1)).abs().max()
print(f"AdamW: largest difference {moved:.0e}   Muon: {times:.2f} times")

# %% trap="04.10" role="look"
measured("04.10", times, right=(1.3, 2.3))

# %% trap="04.10" role="look"
claim("Muon, four ranks: length of the step over one rank's", times,
      above=1.5)

# %% trap="04.10" role="look"
lengths = {str(n): (step_of(muon, pull, n).norm() / whole.norm()).item()
           for n in (1, 2, 4, 8)}
plot_columns(lengths, xlabel="ranks", ylabel="length of the step",
             form=".2f", title="More ranks, a longer step",
             alt="Columns for 1, 2, 4 and 8 ranks. Each is higher than the "
                 "one before; at 8 ranks the step is nearly twice as long.")

# %% [markdown] trap="04.10" role="look"
# It points elsewhere, too. The two steps lie about as far apart as the right one is long:

# %% trap="04.10" role="look"
claim("distance of the two steps, in lengths of one rank's",
      (apart - whole).norm() / whole.norm(), above=0.9)

# %% [markdown] trap="04.10" role="why"
# AdamW's rule runs entry by entry: where a row lies does not matter. Muon's runs over a
# *matrix*. The gradient of these 64 digits has at most 64 directions, and each of them
# runs through all rows. On one rank a strong direction has length one as a whole, and each of
# its four pieces about one half, since $4 \cdot (1/2)^2 = 1$. Four ranks bring each piece to
# length one: together that is $\sqrt{4} = 2$. Weak directions grow less.

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
# *all-gather* hands each rank the parts of all. A smaller rate is no repair: it shortens
# the step and leaves its direction.
#
# Query, key and value are often stored as one stack. Orthogonalized together, the one with the largest gradient takes the
# directions that they share, and most of the step. Cut a stack into its matrices first.

# %% [markdown] trap="04.10" role="more" topics="a smaller rate · a gradient without strong directions · a stack of three · what the loss says · sharded tensors of torch"
# Divided by the root of four, the step has about the right length, and is still far from
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
# Does the loss say so? Train the layer on one rank and on sixteen, at a rate of 0.02:

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
# praises the fault. What you lose: with the same settings, another number of GPUs is
# another run.
#
# Torch's own sharded tensors, `DTensor`, are an exception: a product of two of them is
# the product of the whole matrices, and torch sends what that needs. So
# `torch.optim.Muon` is right on them, up to its rounding to bfloat16, but its ranks send
# much. A plain tensor that holds a shard, such as `to_local()` gives, looks like a matrix
# of its own.

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
# **Keep:** before you shard an optimizer, ask whether its rule runs entry by entry. A
# rule for matrices gets each one whole and alone. **In your own code:** take one step
# with the weight whole and one with it cut, and compare. **Seen in the wild:**
# [`deepspeedai/DeepSpeed#8090`](https://github.com/deepspeedai/DeepSpeed/pull/8090),
# silently wrong updates wherever a matrix crossed two ranks: no rank held all of it;
# [`InternLM/xtuner#2030`](https://github.com/InternLM/xtuner/pull/2030), query, key and
# value orthogonalized together. **Source:** Liu et al. 2025, ["Muon is Scalable for LLM
# Training"](https://arxiv.org/abs/2502.16982), with a Muon for many GPUs.

# %% [markdown] role="concept"
# ## Further
#
# No trap needs what follows: two optimizers at the rates of a chart, why a rate falls, or
# rises first, and which rate Muon wants.

# %% [markdown] role="concept"
# ### Which one wins?
#
# You may have seen a chart in which SGD with momentum is last after 1,000 steps, and
# AdamW lies below Adam "because decay fights overfitting". Run it: linear regression,
# one and the same start, the rates the chart gives.

# %% role="concept"
x_lin = torch.randn(256, 32)
y_lin = x_lin @ torch.randn(32, 1) + 0.1 * torch.randn(256, 1)
start = nn.Linear(32, 1)

def regression(build):
    """Loss after 1,000 full steps, and the farthest any weight went."""
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
# Adam was held back by the way that it can go in 1,000 steps of this rate, and decay makes
# its loss higher:

# %% role="concept"
claim("Adam: distance of the weight that went farthest", adam_moved,
      below=1.05)
claim("training loss of AdamW minus that of Adam", adamw_loss - adam_loss,
      above=0)

# %% [markdown] role="concept"
# The chart was about the *rate*, not about the rule: here 1,000 steps of 0.001
# carry a weight a distance of about 1, and some have farther to go. Decay pulls
# towards zero, so from this start, which is nearer to zero than the solution, the
# training loss of AdamW is the higher one. Compare optimizers only after each has
# had a rate of its own.

# %% [markdown] role="concept"
# ### Why the rate falls
#
# A batch gradient is the true one plus noise. With a constant rate the weights end
# up in a cloud around the minimum whose size grows with the rate. For a
# gradient $w + \text{noise}$ the mean of $w^2$ settles at $\eta/(2-\eta)$. A rate that
# falls to zero shrinks the cloud.

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
# ### Why the rate rises first
#
# Adam's first steps have the full size on the evidence of one batch. Many networks
# survive that. One that does not: here is a residual net with LayerNorm *after* each
# addition, the order of the first transformers, at a rate that is bold for it.

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
print(f"at 0.03: no warm-up {cold:.2f}, 50 steps of it {warmed:.1f}; "
      f"at 0.003 without {lower:.2f}")

# %% role="concept"
claim("rate 0.03, no warm-up: share right", cold, below=0.4)
claim("rate 0.03, 50 steps of warm-up, middle of three: share right",
      warmed, above=0.7)
claim("rate 0.003, no warm-up: share right", lower, above=0.7)

# %% [markdown] role="concept"
# The warm-up rescued a rate that is bold for this net, most of the time: one run in
# about fifty stays stuck all the same. A tenth of that rate needs no warm-up. With
# your own net, try both: a warm-up, and a lower rate.
#
# Peak, warm-up, shape and floor make a schedule. Torch's one-cycle is all four in
# one object, and it overrides the rate and the momentum that you gave the optimizer.

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
# ### Muon, a rule for matrices
#
# Muon takes the momentum of a weight matrix and pushes its singular values towards one
# before it steps, with a few matrix products (*Newton-Schulz*). So it is for the hidden
# matrices of a network. What is no matrix, `torch.optim.Muon` refuses: biases, gains,
# kernels of a convolution. An embedding or an output layer is a matrix, and it takes them
# without a word. Its documentation leaves them, like the vectors, to AdamW: you have to
# sort them out yourself, as in trap 04.1.

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
# Its default rate is 0.001, like AdamW's, but the step is another: an $n$ by $n$ matrix
# whose singular values are near one has entries of about $1/\sqrt{n}$. That is the step
# with `adjust_lr_fn="original"`, the default. `"match_rms_adamw"` multiplies that step by
# `0.2 * sqrt(max(rows, columns))`. Where the gradient has full rank, the entries are then
# about a fifth of the rate, so that Muon can be given a rate that was found for AdamW. Look
# at the first step of a matrix of 256 by 256:

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
# So AdamW's rate is too low for that default. Let Muon train the hidden matrices of a deeper reader,
# and AdamW the rest:

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
# In these 60 steps the default rate is far too low; twenty times as much is not. A rate
# belongs to its rule, once more. **Source:** PyTorch
# documentation of [`Muon`](https://docs.pytorch.org/docs/stable/generated/torch.optim.Muon.html).

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
# - [ ] it does not matter, it knows the loader :: A scheduler knows the number of its own calls and nothing else.

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
# - [ ] 0.5, because the loss was lowest there :: It was low thanks to the smaller rates before. At 0.5 you stand close to the edge.
# - [ ] 5, because the loss was still falling :: Past the lowest point it was rising, and soon out of sight.

# %% [markdown] role="quiz"
# **5. A layer gets a gradient of exactly zero, not None, from now on. With AdamW it**
#
# - [ ] stands still :: Only None makes torch skip it.
# - [ ] coasts, then stands still :: The momentum fades, but one force remains.
# - [x] coasts, and goes on shrinking :: The decay does not ask for a gradient, only for a step.

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
# them back. For a model of many small tensors the arithmetic takes little; the *orders*
# take the time. Torch has three ways to give them: a loop over tensors, `foreach`
# (one order for a list of tensors), and `fused` (one order for the whole step).
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
# **On the H100 of the record** the loop over 400 tensors takes 26 ms, with 1,000
# numbers in each as with 250,000: that is the price of orders. Fused, the same step
# takes less than a twentieth of it. Against `foreach`, the default on a GPU, it takes
# about a third of the time in all three shapes. But fused pays for orders as well: 400
# tensors of 1,000 numbers take 1.0 ms, of 250,000 numbers 1.1 ms.
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
# - A rate belongs to its rule: SGD's step follows the gradient; Adam's first step and
#   all of Lion's have the size of the rate.
# - Sort parameters by what they are, each into exactly one group.
# - A scheduler counts its calls. Numbers and calls share one unit.
# - AdamW decays by 0.01 unless you say otherwise; decoupled means multiplied.
# - Sweep the rate before you choose it, and start well below the edge: a tenth with
#   momentum.
# - A floor stands inside the cosine, the first step is not zero.
# - None skips a tensor; with a zero gradient momentum goes on.
# - With the default betas, bias correction shortens Adam's first steps. Lion has two
#   betas for two jobs.
# - A moment in bfloat16 rises and, at the default beta, does not fall. A rule for
#   matrices needs the whole matrix, and only one.
#
# **Next:** stage 5 looks at what a network keeps besides its weights: the numbers
# of its norms.
