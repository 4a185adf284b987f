# %% [markdown] role="hook" traps=5
# # 1. Perceptron, MLP and activations
#
# A small network reads handwritten digits. On your laptop it is right 97 times
# out of 100. You put it into a service, build an alarm for the digit 8 and try a
# deeper copy. Each step looks like a formality, and each goes wrong without an
# error message.
#
# The mistakes sit in what a layer computes, in how its weights begin, and in what
# you believe about its output. This stage takes the forward pass apart, then
# breaks it in five ways that look right.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers import (
    accuracy, begin, check, claim, datasheet, digits, draw_grids, fit,
    flops, gpu_result, gpu_table, guess, measured, new_axes, operations,
    plot_bars, plot_lines, seconds, show, xor_quadrants,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## One neuron is a weighted vote
#
# A neuron multiplies each input by a weight, adds a bias, and passes the sum
# through a function $\sigma$:
#
# $$a = \sigma(w \cdot x + b)$$
#
# The weights say how much each input counts and with which sign. The bias shifts
# the sum. A *layer* is many neurons with the same inputs, so it is one matrix
# product. A *multilayer perceptron* (MLP) is layers in a row.
#
# Shapes in this stage: `N` rows (examples), `F` inputs (features), `U` units in
# a layer, `C` classes. `nn.Linear(F, U)` holds a weight `(U, F)` and a bias
# `(U,)`, and maps `(N, F)` to `(N, U)`.

# %% role="concept"
x_train, y_train, x_test, y_test = digits()      # (1300, 64), (497, 64)
layer = nn.Linear(64, 32)
by_hand = x_test @ layer.weight.T + layer.bias   # (N, F) @ (F, U) + (U,)
gap = (layer(x_test) - by_hand).abs().max()

mlp = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64),
                    nn.ReLU(), nn.Linear(64, 1))
count = sum(p.numel() for p in mlp.parameters())
print(f"parameters of a 10-64-64-1 MLP: {count:,}")

# %% role="concept"
claim("largest gap between the layer and x @ W.T + b", gap, below=1e-5)
claim("weights and biases, counted by hand", count,
      expected=(10 * 64 + 64) + (64 * 64 + 64) + (64 * 1 + 1))

# %% [markdown] role="concept"
# Two linear layers in a row are one linear layer:
# $W_2(W_1x + b_1) + b_2 = (W_2W_1)x + (W_2b_1 + b_2)$. Depth buys nothing until
# something between them bends: an *activation* such as ReLU, $\max(0, x)$, the
# sigmoid, $1 / (1 + e^{-x})$, or tanh. What that buys is measured behind the traps.

# %% [markdown] trap="01.1" role="situation" core=true fault="no_grad without eval: dropout and BatchNorm stay on" symptom="predictions change between two calls on the same input"
# ## The same images, sent twice
#
# Your digit reader has BatchNorm and dropout. You wrap it in `torch.no_grad()`,
# because this is inference, and serve it. You send it the test images twice.

# %% trap="01.1" role="break"
reader = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
                       nn.Dropout(0.5), nn.Linear(64, 10))
fit(reader, x_train, y_train, steps=300, lr=1e-2)
stored = reader[1].running_mean.clone()

with torch.no_grad():                    # inference
    first = reader(x_test).argmax(1)     # (497,)
    second = reader(x_test).argmax(1)

# %% trap="01.1" role="guess"
guess("01.1",
      "Do the two passes give the same labels, and is the reader still the "
      "one that you trained?",
      choices=["both: without gradients nothing changes",
               "some labels differ; the reader is the same",
               "some labels differ, and so does the reader",
               "the labels are the same; the reader has changed"])

# %% trap="01.1" role="look"
flips = (first != second).float().mean()
drift = (reader[1].running_mean - stored).abs().max()
print(f"labels that differ between two calls: {flips:.1%}")
print(f"largest move of a stored mean: {drift:.3f}")

# %% trap="01.1" role="look"
measured("01.1", 2)

# %% trap="01.1" role="look"
claim("share of labels on which the passes differ", flips, above=0.02)

# %% [markdown] trap="01.1" role="look"
# And the model is no longer the one that you trained:

# %% trap="01.1" role="look"
claim("largest move of a stored mean, by looking", drift, above=0.005)

# %% [markdown] trap="01.1" role="why"
# `no_grad` switches off the *graph*. It does not switch the *mode*. In train mode
# dropout draws a new mask for every call, and BatchNorm normalises with the batch it
# sees and moves its stored statistics: each image you serve changes the model. A seed
# would hide the first fault and keep the second.

# %% trap="01.1" role="why" tags=["plumbing"]
import copy

from torch.random import fork_rng

def happens(train, no_grad):
    """What a call does: builds a graph, draws masks, moves statistics."""
    model = copy.deepcopy(reader).train(train)
    stored = model[1].running_mean.clone()
    with fork_rng(), torch.set_grad_enabled(not no_grad):
        one, two = model(x_test), model(x_test)
    return [one.requires_grad, not one.equal(two),
            not model[1].running_mean.equal(stored)]

switches = {"neither": (True, False), "no_grad": (True, True),
            "eval": (False, False), "both": (False, True)}
effects = torch.tensor([happens(*switch) for switch in switches.values()])

# %% trap="01.1" role="why"
draw_grids({"what a call does": effects.T},
           marks={"what a call does": effects.T & torch.tensor(
               [[False] * 4, [False, True, False, False],
                [False, True, False, False]])},
           row_names=["builds a graph", "draws a mask", "moves statistics"],
           column_names=[*switches], legend="what you serve",
           title="Two switches, and each does half",
           alt="A grid of three effects and four settings. no_grad alone "
               "leaves masks and moving statistics, eval alone leaves the "
               "graph, both together leave nothing.")

# %% trap="01.1" role="repair"
reader.eval()
stored = reader[1].running_mean.clone()
with torch.no_grad():
    first, second = reader(x_test), reader(x_test)
flips = (first.argmax(1) != second.argmax(1)).float().mean()
print(f"labels that differ between two calls: {flips:.1%}")
gap = (first - second).abs().max()
drift = (reader[1].running_mean - stored).abs().max()
print(f"largest move of a stored mean: {drift:.3f}")
score = accuracy(reader, x_test, y_test)

# %% trap="01.1" role="repair"
claim("largest gap between two calls in eval mode", gap, expected=0)

# %% [markdown] trap="01.1" role="more" topics="a plain net in train mode · BatchNorm on the same batch"
# Eval mode holds the stored statistics, too, and reads the digits:

# %% trap="01.1" role="more"
claim("move of the stored means", drift, expected=0)
claim("share of the digits that it reads", score, expected=0.97,
      within=0.02)

# %% [markdown] trap="01.1" role="more"
# Not each net in train mode changes its answer from call to call:

# %% trap="01.1" role="more"
plain = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
normed = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
                       nn.Linear(64, 10))
with torch.no_grad():                    # both are in train mode
    gaps = {name: (net(x_test) - net(x_test)).abs().max()
            for name, net in (("plain", plain), ("BatchNorm", normed))}
    moved = (normed(x_test)[:10] - normed(x_test[:10])).abs().max()
print({name: f"{gap:.1f}" for name, gap in gaps.items()},
      f"in other company: {moved:.1f}")

# %% trap="01.1" role="more"
claim("a plain MLP in train mode, two calls: gap", gaps["plain"],
      expected=0)
claim("BatchNorm on the same batch, two calls: gap", gaps["BatchNorm"],
      expected=0)
claim("the same ten images among other neighbours: gap", moved,
      above=0.05)

# %% [markdown] trap="01.1" role="folklore"
# **Told:** a model in train mode gives a different output on every call.
# **Measured:** the net with dropout does. A plain MLP repeats itself. So does a net
# with BatchNorm on the same batch, but what it answers for an image depends on the
# other images in the batch.

# %% trap="01.1" role="exercise" points=3 difficulty=2 minutes=10
def predict(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The model's output for x in eval mode; no graph is built.

    x: (N, ...) float32. Returns what model(x) returns, requires_grad False.
    Afterwards every module is in the mode in which it came, a frozen
    BatchNorm inside a model in train mode included. Nothing else changes.

    Example: a model in train mode with dropout gives equal results twice,
    and `model.training` is still True.
    """
    # BEGIN SOLUTION
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        out = model(x)
    for module, mode in modes:
        module.training = mode
    return out
    # END SOLUTION

# %% [markdown] trap="01.1" role="hint"
# 1. Two switches are independent: one for the mode, one for the graph.
# 2. `model.eval()` reaches every module. What do you need to know before you call it, to undo it exactly?
# 3. `model.modules()` yields every module, the root included; each has its own flag `training`.

# %% [markdown] trap="01.1" role="keep"
# **Keep:** `no_grad` is about memory, `eval` is about behaviour; inference needs
# both. **In your own code:** assert `not model.training` where you serve, and
# compare `state_dict()` before and after a pass. **Source:** PyTorch notes,
# [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html),
# section on evaluation mode.

# %% [markdown] trap="01.2" role="situation" core=true fault="a logit is cut at 0.5 as if it were a probability" symptom="classifier misses most positives although accuracy is high"
# ## An alarm at one half
#
# You train one output to recognise the digit 8 and raise an alarm when it exceeds
# one half. Accuracy on the test set is above 90 %, so you ship it.

# %% trap="01.2" role="break"
is_eight, truth = (y_train == 8).float(), y_test == 8
detector = nn.Linear(64, 1)
fit(detector, x_train, is_eight[:, None], steps=400, lr=1e-2,
    loss=F.binary_cross_entropy_with_logits)
with torch.no_grad():
    score = detector(x_test)[:, 0]       # (497,)
alarm = score > 0.5                      # one half

# %% trap="01.2" role="guess"
guess("01.2", "What share of the true eights raises the alarm?", unit="%")

# %% trap="01.2" role="look"
def recall(alarm):
    """Share of the true eights that raise the alarm, 0 to 1."""
    return alarm[truth].float().mean().item()

right = (alarm == truth).float().mean()
print(f"scores run from {score.min():.1f} to {score.max():.1f}")
print(f"accuracy {right:.2f}   eights found {recall(alarm):.2f}")

# %% trap="01.2" role="look"
measured("01.2", 100 * recall(alarm), right=(20, 60))

# %% trap="01.2" role="look"
claim("share of the eights that it finds", recall(alarm), below=0.6)

# %% [markdown] trap="01.2" role="look"
# Nine images of ten are no eights, and the accuracy counts those:

# %% trap="01.2" role="look"
claim("accuracy of the alarm", right, above=0.9)

# %% [markdown] trap="01.2" role="why"
# The output is a *logit*, the logarithm of the odds, and runs over all real
# numbers. A probability of one half is a logit of 0. Your cut at `0.5` demanded a
# probability of 0.622 before it raised an alarm, and many eights lie below.

# %% trap="01.2" role="why"
ax = new_axes("Many eights score between 0 and 0.5, or below",
              "score, a logit", "images")
edges = torch.arange(-10, 5, 1.0).tolist()
for name, rows, style in (("other digits", score[~truth], "-"),
                          ("eights", score[truth], "--")):
    ax.hist(rows.tolist(), edges, histtype="step", linestyle=style,
            linewidth=2, label=name)
for cut, name in ((0.0, "one half"), (0.5, "your cut")):
    ax.axvline(cut, linestyle=":", color="#7a8292")
    ax.annotate(name, (cut, 118), ha="right" if cut == 0 else "left",
                xytext=(-4 if cut == 0 else 4, 0),
                textcoords="offset points")
ax.legend(loc="upper left")
show(ax.figure, alt="Histogram of the scores. Other digits lie far below "
     "zero; the eights spread around zero, many of them below the cut.")

# %% trap="01.2" role="repair"
needed = torch.tensor(0.5).sigmoid().item()
repaired = score.sigmoid() > 0.5
print(f"a logit of 0.5 is a probability of {needed:.3f}")
print(f"eights found: {recall(alarm):.2f} -> {recall(repaired):.2f}")

# %% trap="01.2" role="repair"
claim("eights found more, as a share of all eights",
      recall(repaired) - recall(alarm), above=0.08)

# %% [markdown] trap="01.2" role="more" topics="a cut at logit 0 · a sigmoid inside the model"
# The score through a sigmoid, or the logit against 0: both give the same alarms.

# %% trap="01.2" role="more"
claim("the lowest score, so it is no probability", score.min(), below=0)
claim("a logit of 0.5 as a probability", needed,
      expected=0.622, within=0.001)
claim("images on which the two ways of saying one half differ",
      (repaired != (score > 0)).sum(), expected=0)

# %% [markdown] trap="01.2" role="more"
# With a sigmoid at the end of the model, the loss decides:

# %% trap="01.2" role="more"
def recall_of(loss):
    """Share of the eights found by a detector with a sigmoid at its end."""
    model = nn.Sequential(nn.Linear(64, 1), nn.Sigmoid())
    fit(model, x_train, is_eight[:, None], steps=400, lr=1e-2, loss=loss)
    with torch.no_grad():
        return recall(model(x_test)[:, 0] > 0.5)

probabilities = recall_of(F.binary_cross_entropy)
logits = recall_of(F.binary_cross_entropy_with_logits)
print(f"a sigmoid in the model: eights found {probabilities:.2f} with the "
      f"loss for probabilities, {logits:.2f} with the one for logits")

# %% trap="01.2" role="more"
claim("eights found with the loss that wants probabilities",
      probabilities, above=0.3)
claim("with the loss that wants logits", logits, below=0.1)

# %% [markdown] trap="01.2" role="folklore"
# **Told:** put a sigmoid at the end of the model, so that it outputs probabilities.
# **Measured:** that is right for `binary_cross_entropy`, which wants probabilities.
# With `binary_cross_entropy_with_logits` the same model finds almost no eights. With
# that loss, apply the sigmoid where you *read* the output.

# %% trap="01.2" role="exercise" points=3 difficulty=2 minutes=10
def to_probs(logits: torch.Tensor, kind: str) -> torch.Tensor:
    """Probabilities for logits (N, C) float32, same shape and dtype.

    kind: "binary" (one column, yes or no), "multiclass" (each row is one
    choice among C classes) or "multilabel" (each entry is a yes or no of
    its own). Logits may be as large as 200 either way.

    Example: to_probs(torch.zeros(1, 4), "multiclass") is four times 0.25.
    """
    # BEGIN SOLUTION
    if kind == "multiclass":
        return logits.softmax(dim=1)
    return logits.sigmoid()
    # END SOLUTION

# %% [markdown] trap="01.2" role="hint"
# 1. For each kind, ask which numbers have to add up to one: those of a row, those of a column, or none?
# 2. One column through a softmax is always 1. Two of the three kinds need the same function.
# 3. torch's own `softmax` and `sigmoid` are stable for large logits; `dim` says along which axis the sum is one.

# %% [markdown] trap="01.2" role="keep"
# **Keep:** a linear layer outputs logits; one half is logit 0. Accuracy hides a
# wrong threshold when one class is rare, so look at recall. **In your own code:**
# print the range of what you threshold. **Source:** Bishop 2006, *Pattern
# Recognition and Machine Learning*, section 4.2.

# %% [markdown] trap="01.3" role="situation" core=true fault="the init does not fit the activation: gradients vanish" symptom="deep network with sigmoid or ReLU does not learn, loss stays at chance, vanishing gradients"
# ## Eight slopes of a quarter
#
# One hidden layer reads the digits well. You stack eight layers of 32 units with
# sigmoids between them, and the loss sits at the level of guessing. "A sigmoid's
# slope is at most 0.25, and eight slopes multiply. So the first layer's gradient is
# $0.25^8$ times the last one's," says a colleague. "Take ReLU, its slope is 1." You
# build both stacks, with the weights that PyTorch draws by itself, and train the second.

# %% trap="01.3" role="break"
def stack(activation, init=None, depth=8, width=32):
    """An MLP for digits; init(weight), if given, sets each weight."""
    layers, fan_in = [], 64
    for _ in range(depth):
        layers += [nn.Linear(fan_in, width), activation()]
        fan_in = width
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    for m in model if init else []:
        if isinstance(m, nn.Linear):
            init(m.weight)
            nn.init.zeros_(m.bias)
    return model

# %% trap="01.3" role="break"
def gradient_norms(model):
    """Norm of every layer weight gradient on 256 digits, in order."""
    weights = [m.weight for m in model if isinstance(m, nn.Linear)]
    loss = F.cross_entropy(model(x_train[:256]), y_train[:256])
    return [g.norm().item() for g in torch.autograd.grad(loss, weights)]

relus = stack(nn.ReLU)                   # the colleague's advice
losses = fit(relus, x_train, y_train, steps=300, lr=3e-2,
             optimizer=torch.optim.SGD)
sigmoids = stack(nn.Sigmoid)             # fresh: the question is on these
first, *_, last = gradient_norms(sigmoids)

# %% trap="01.3" role="guess" quoted="wrong"
guess("01.3",
      "In the fresh stack of sigmoids, how large is `first / last`, the "
      "ratio of the two gradient norms, beside the colleague's `0.25**8`?",
      choices=["about as large, within a factor of three",
               "over ten times smaller",
               "over ten times larger"])

# %% trap="01.3" role="look"
share = accuracy(relus, x_test, y_test)
print(f"sigmoids: first over last gradient {first / last:.1e}, "
      f"0.25^8 is {0.25 ** 8:.1e}")
print(f"digits read by eight layers of ReLU: {share:.2f}")

# %% trap="01.3" role="look"
measured("01.3", 1)

# %% trap="01.3" role="look"
claim("first over last gradient, fresh stack", first / last,
      below=0.25 ** 8)

# %% [markdown] trap="01.3" role="look"
# So the slopes are not all of it. And ReLU, with slopes of 1, has learned nothing:

# %% trap="01.3" role="look"
claim("read by eight default ReLU layers, with SGD at 0.03",
      share, below=0.3)

# %% [markdown] trap="01.3" role="why"
# A gradient passes through the slope **and** the weights of every layer, so the
# slopes alone bound nothing. The default weights of `nn.Linear` are smaller than
# ReLU needs, by a factor of $\sqrt{6}$: each layer hands on less than it got, and
# nearly nothing reaches the first. Activation and init are one choice: ReLU with He,
# tanh with Xavier.

# %% trap="01.3" role="why"
he, xavier = nn.init.kaiming_normal_, nn.init.xavier_normal_
stacks = {"sigmoid, default": sigmoids,
          "ReLU, default": stack(nn.ReLU),
          "ReLU + He": stack(nn.ReLU, lambda w: he(w, nonlinearity="relu")),
          "tanh + Xavier": stack(nn.Tanh, xavier)}
norms = {name: gradient_norms(model) for name, model in stacks.items()}
ratios = {name: n[0] / n[-1] for name, n in norms.items()}

# %% trap="01.3" role="why"
plot_lines(range(1, 10), norms, xlabel="layer, input to output", logy=True,
           ylabel="norm of the weight gradient",
           title="Activation and init belong together",
           alt="Gradient norm by layer. Sigmoid falls by six orders of "
               "magnitude towards the input, default ReLU by two; He and "
               "Xavier stay level.")

# %% trap="01.3" role="why"
claim("first over last gradient, default ReLU", ratios["ReLU, default"],
      below=0.1)

# %% trap="01.3" role="repair"
fit(stacks["ReLU + He"], x_train, y_train, steps=300, lr=3e-2,
    optimizer=torch.optim.SGD)
share_he = accuracy(stacks["ReLU + He"], x_test, y_test)
print(f"digits read by eight layers of ReLU: {share_he:.2f} with He")

# %% trap="01.3" role="repair"
claim("by the same layers with He", share_he, above=0.5)

# %% [markdown] trap="01.3" role="more" topics="what the quarter bounds · sigmoids at ten times the rate · tanh with Xavier"
# With He and with Xavier the first gradient is about as large as the last. With
# sigmoids and large weights the ratio lies far above $0.25^8$:

# %% trap="01.3" role="more"
loud = gradient_norms(stack(
    nn.Sigmoid, lambda w: nn.init.xavier_normal_(w, gain=4)))

# %% trap="01.3" role="more"
claim("the same with He", ratios["ReLU + He"], above=0.2)
claim("the same for tanh with Xavier", ratios["tanh + Xavier"], above=0.2)
claim("the same ratio with larger weights", loud[0] / loud[-1],
      above=0.25 ** 8)

# %% [markdown] trap="01.3" role="more"
# A level gradient is worth having only if the net then learns. With Adam, tanh with
# Xavier reads the digits; sigmoids do not, at this rate or at ten times:

# %% trap="01.3" role="more"
def share_read(model, lr):
    fit(model, x_train, y_train, steps=300, lr=lr)
    return accuracy(model, x_test, y_test)

score_tanh = share_read(stacks["tanh + Xavier"], 3e-3)
score_sigmoid = share_read(stack(nn.Sigmoid), 3e-3)
score_faster = share_read(stack(nn.Sigmoid), 3e-2)

# %% trap="01.3" role="more"
claim("digits read by eight tanh layers with Xavier, with Adam",
      score_tanh, above=0.9)
claim("digits read after training, as a share; guessing reads 0.1",
      score_sigmoid, below=0.3)
claim("by eight sigmoids at ten times the rate", score_faster, below=0.3)

# %% [markdown] trap="01.3" role="folklore"
# **Told:** a chain of sigmoids passes at most a quarter per layer; replace them by
# ReLU and the problem is gone. **Measured:** with default weights the sigmoids pass
# far less than that quarter, with larger ones more. Eight default ReLU layers of 32 units lose over 90 % of the
# gradient and learn nothing in 300 steps of SGD at 0.03; with He they do.

# %% trap="01.3" role="exercise" points=4 difficulty=3 minutes=15
def grad_ratio(model: nn.Sequential, x: torch.Tensor,
               y: torch.Tensor) -> float:
    """Gradient norm of the first Linear's weight over that of the last.

    The Linears stand in the Sequential itself, among other layers. The loss
    is the cross-entropy of model(x) (N, C) against y (N,) int64. Gradients
    that the model holds already must not count, and no weight may move.
    Biases are left out. Both norms may be tiny: no constant is added to
    them.

    Example: 1.0 for a model with a single Linear.
    """
    # BEGIN SOLUTION
    weights = [m.weight for m in model if isinstance(m, nn.Linear)]
    loss = F.cross_entropy(model(x), y)
    grads = torch.autograd.grad(loss, [weights[0], weights[-1]])
    return (grads[0].norm() / grads[1].norm()).item()
    # END SOLUTION

# %% [markdown] trap="01.3" role="hint"
# 1. You need two gradients of one loss, and nothing else about the model may change.
# 2. `loss.backward()` adds to whatever `.grad` holds. Either clear it first, or do not use it at all.
# 3. `torch.autograd.grad(loss, [first, last])` returns the two gradients and touches no `.grad`.

# %% [markdown] trap="01.3" role="keep"
# **Keep:** what reaches the first layer is a product over slopes and weights;
# choose activation and init as a pair. **In your own code:** print the ratio of the
# first to the last gradient norm before the first long run. **Source:** [Glorot &
# Bengio 2010](https://proceedings.mlr.press/v9/glorot10a.html); [He et al. 2015,
# "Delving Deep into Rectifiers"](https://arxiv.org/abs/1502.01852), section 2.2.

# %% [markdown] trap="01.4" role="situation" core=true fault="zeros are counted as dead ReLU units" symptom="dead ReLU: units output zero for every input and never recover"
# ## Units that are off for every input
#
# Someone wanted sparse activations and set the bias of a ReLU layer to $-5$. You have
# read how to catch that: count the zeros of each unit, and raise an alarm where more than
# 20 % are zero. You try the detector on a *healthy*, fresh layer first.

# %% trap="01.4" role="break"
x_normal = torch.randn(2000, 10)
healthy, sunk = nn.Linear(10, 64), nn.Linear(10, 64)
nn.init.constant_(sunk.bias, -5.0)

def flagged(h):
    """Units whose output is zero for more than 20 % of the rows."""
    return int(((h == 0).float().mean(0) > 0.20).sum())

alarms = {"healthy": flagged(healthy(x_normal).relu()),
          "sunk": flagged(sunk(x_normal).relu())}

# %% trap="01.4" role="guess"
guess("01.4",
      "Of the healthy layer's 64 units, take the one that is zero most "
      "often. For what share of the rows is its output zero?", unit="%")

# %% trap="01.4" role="look"
def off_for_all(h):
    """Units whose output is zero for every row."""
    return int((h == 0).all(0).sum())

dead = {"healthy": off_for_all(healthy(x_normal).relu()),
        "sunk": off_for_all(sunk(x_normal).relu())}
print(f"flagged: {alarms}   off for every row: {dead}")

# %% trap="01.4" role="look"
measured("01.4", 100 * (healthy(x_normal) <= 0).float().mean(0).max(),
         right=(64, 96))

# %% trap="01.4" role="look"
claim("healthy units of 64 that the usual detector flags",
      alarms["healthy"], above=60)

# %% [markdown] trap="01.4" role="look"
# None of these units is dead, though one is off for most of the rows. The sunk ones
# are: off for every row.

# %% trap="01.4" role="look"
claim("sunk units off for every row, of 64", dead["sunk"], expected=64)

# %% [markdown] trap="01.4" role="why"
# On centred inputs such as these, the units of a fresh ReLU layer are off for half
# of the rows on average: a share of zeros is no illness. Dead means off for every
# row. Then the slope is zero for every row and the gradient is exactly zero, so
# nothing moves the unit again.

# %% trap="01.4" role="why"
zero_shares = {name: sorted((layer(x_normal) <= 0).float().mean(0).tolist())
               for name, layer in (("healthy", healthy), ("sunk", sunk))}
plot_lines(range(1, 65), {**zero_shares, "alarm": [0.2] * 64},
           xlabel="unit, sorted", ylabel="share of rows with zero",
           title="Half off is health, off for every row is death",
           alt="Share of zeros of 64 units, sorted. Healthy units lie "
               "around one half, all above the alarm at a fifth. Sunk "
               "units lie at one.")

# %% trap="01.4" role="repair"
target = x_normal.sum(1).sign().clamp(min=0).long()
net = nn.Sequential(sunk, nn.ReLU(), nn.Linear(64, 2))
leaky = nn.Sequential(nn.Linear(10, 64), nn.LeakyReLU(0.1),
                      nn.Linear(64, 2))
nn.init.constant_(leaky[0].bias, -5.0)
moves = {}
for name, model in (("dead", net), ("leaky", leaky)):
    before = model[0].weight.detach().clone()
    fit(model, x_normal, target, steps=200, lr=1e-2)
    moves[name] = (model[0].weight - before).abs().max()
score_leaky, score_dead = (accuracy(m, x_normal, target)
                           for m in (leaky, net))
print(f"accuracy: dead {score_dead:.2f}, leaky {score_leaky:.2f}")

# %% [markdown] trap="01.4" role="repair"
# 200 steps do not move the dead units. Give the layer a slope below zero, or better a
# bias that leaves some inputs above it:

# %% trap="01.4" role="repair"
claim("largest move of its weights in 200 steps of Adam", moves["dead"],
      expected=0)

# %% [markdown] trap="01.4" role="repair"
# With a slope below zero the weights move, and the task is learned.

# %% trap="01.4" role="repair"
claim("share right on this linear task, leaky", score_leaky, above=0.9)

# %% [markdown] trap="01.4" role="repair"
# A function is *saturated* where its slope is nearly zero: little gradient gets
# through. A unit is *dead* when its slope is exactly zero on every input. Push the
# bias down and compare ReLU with GELU.

# %% role="explore" explorer="activations"
from dlsys_helpers.explorers.activations import activations

activations

# %% [markdown] trap="01.4" role="more" topics="leaky layers are nearly linear · GELU, tanh and NaN · what a large rate does · the alarm on digits"
# The numbers behind the curves. This is a first layer, whose inputs stay as they are:
# without weight decay, and once no momentum is left, its dead units stay.

# %% trap="01.4" role="more"
share = (healthy(x_normal) < 0).float().mean()
claim("healthy units off for every row", dead["healthy"], expected=0)
claim("zeros among all outputs of the healthy layer", share,
      expected=0.5, within=0.06)
claim("with a slope below zero the weights move", moves["leaky"],
      above=0.01)
claim("share right, dead", score_dead, below=0.6)

# %% [markdown] trap="01.4" role="more"
# Far below zero a leaky unit is a straight line, so a layer of them learns linear
# tasks and few others. Take points in a square, labelled by whether their two signs
# differ: no line separates them. A leaky layer with all biases at $-5$ against a fresh
# ReLU layer:

# %% trap="01.4" role="more"
x_xor, y_xor = xor_quadrants(1000, seed=SEED)
bends = {}
for name, activation in (("leaky, sunk", nn.LeakyReLU(0.1)),
                         ("ReLU, fresh", nn.ReLU())):
    model = nn.Sequential(nn.Linear(2, 64), activation, nn.Linear(64, 2))
    if name == "leaky, sunk":
        nn.init.constant_(model[0].bias, -5.0)
    fit(model, x_xor, y_xor, steps=200, lr=1e-2)
    bends[name] = accuracy(model, x_xor, y_xor)
print(*(f"{name}: {score:.2f}" for name, score in bends.items()), sep="\n")

# %% trap="01.4" role="more"
claim("share right on the signs, leaky and sunk", bends["leaky, sunk"],
      below=0.8)
claim("share right on the signs, fresh ReLU", bends["ReLU, fresh"],
      above=0.9)

# %% [markdown] trap="01.4" role="more"
# Two more ways to be dead or broken. A tanh far out has slope zero and outputs 1, so
# nobody who counts zeros finds it. And a layer of NaN has no zeros either.

# %% trap="01.4" role="more"
depth = torch.tensor([-3.0, -5.0, -10.0, -15.0], requires_grad=True)
F.gelu(depth).sum().backward()
print(f"GELU's slope at -3, -5, -10, -15: {depth.grad.tolist()}")
far = torch.tensor([15.0], requires_grad=True)
far.tanh().sum().backward()
broken_layer = torch.full((5, 3), float("nan")).relu()

# %% trap="01.4" role="more"
claim("GELU's largest slope at -10 and -15, in float32",
      depth.grad[2:].abs().max(), expected=0)
claim("tanh's slope at 15", far.grad, expected=0)
claim("its output there", far.detach().tanh(), expected=1)
claim("units of a layer of NaN that count as off",
      off_for_all(broken_layer), expected=0)

# %% [markdown] trap="01.4" role="more"
# Does training make dead units? Take the digits, 64 ReLU units and SGD at a rate of
# 2, over ten times too large. Then lower the rate to 0.1 and go on.

# %% trap="01.4" role="more"
def digit_net():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def zeros(net):
    """(flagged, off for every row) of 64 units, on the training rows."""
    h = net[1](net[0](x_train))
    return flagged(h), off_for_all(h)

hot, sgd = digit_net(), torch.optim.SGD
start = zeros(hot)
fit(hot, x_train, y_train, steps=200, lr=2.0, optimizer=sgd)
burnt = (hot[0](x_train) <= 0).all(0)
fit(hot, x_train, y_train, steps=300, lr=0.1, optimizer=sgd)
back = burnt & (hot[0](x_train) > 0).any(0)
print(f"share off for every row: {start[1] / 64:.1f} fresh, "
      f"{burnt.sum() / 64:.1f} after rate 2")

# %% trap="01.4" role="more"
claim("fresh units off for every row, of 64", start[1], below=16)
claim("after 200 steps at rate 2", burnt.sum(), above=40)
claim("of these, back after 300 steps at 0.1", back.sum(), expected=0)

# %% trap="01.4" role="more"
one_hot = F.one_hot(y_train, 10).float()
losses = fit(digit_net(), x_train, one_hot, steps=200, lr=100.0,
             optimizer=sgd, loss=F.mse_loss)

good = digit_net()
fit(good, x_train, y_train, steps=300, lr=1e-2)
print(f"share flagged on digits: {start[0] / 64:.1f} fresh, "
      f"{zeros(good)[0] / 64:.1f} trained")

# %% trap="01.4" role="more"
claim("squared error at rate 100: is the last loss finite",
      torch.tensor(losses[-1]).isfinite(), expected=False)

# %% [markdown] trap="01.4" role="more"
# The gradient of squared error grows with the error: at rate 100 the steps throw the net
# further and further out, and nothing is left of it. The other net reads the digits
# well, and still sets off the alarm.

# %% trap="01.4" role="more"
claim("fresh units that the 20 % alarm flags on digits", start[0],
      above=20)
claim("trained units that it flags", zeros(good)[0], above=10)
claim("share of the digits that this net reads",
      accuracy(good, x_test, y_test), above=0.93)

# %% [markdown] trap="01.4" role="folklore"
# **Told:** alarm above 20 % zeros. **Measured:** the alarm flags over 60 of 64
# healthy units on normal inputs, over 20 of 64 on digits when fresh, and over 10 in
# a trained net that reads them. **Told:** GELU units cannot die. **Measured:** its
# slope is exactly zero at $-10$ in float32. **Told:** a large learning rate leaves
# dead units behind. **Measured:** it does. On digits SGD at rate 2 leaves over 40 of
# 64 dead, and none is back after 300 steps at 0.1. With squared error, whose gradient
# grows with the error, rate 100 ends in NaN.

# %% trap="01.4" role="exercise" points=3 difficulty=2 minutes=10
def dead_units(h: torch.Tensor) -> int:
    """Number of units (columns) of h that are 0 for every row.

    h: (N, U) float32, a layer's outputs, from any activation.
    Raises ValueError when h holds a NaN: a broken layer is not alive.

    Example: for [[0., 1.], [0., 0.]] the answer is 1.
    """
    # BEGIN SOLUTION
    if h.isnan().any():
        raise ValueError("h holds NaN; look for its origin first")
    return int((h == 0).all(dim=0).sum())
    # END SOLUTION

# %% [markdown] trap="01.4" role="hint"
# 1. Dead is a statement about *all* rows. Which reduction says "all"?
# 2. Compare with zero first, reduce over the rows (`dim=0`), then count units.
# 3. `NaN == 0` is False, so a NaN column passes for alive. Test for NaN before you count.

# %% [markdown] trap="01.4" role="keep"
# **Keep:** a ReLU unit is dead when it is off for *every* input; half off is health.
# **In your own code:** after a ReLU, count with `(h == 0).all(0)` over a large batch
# and check for NaN first. **Source:** [Lu et al. 2019, "Dying ReLU and
# Initialization"](https://arxiv.org/abs/1903.06733).

# %% [markdown] trap="01.5" role="situation" fault="a Python loop over tensor elements" symptom="forward pass is slow: Python loop over tensor elements"
# ## One value after the other
#
# A custom activation: shrink every value towards zero by 0.5 and keep its sign. You
# write what you mean, element by element, and the result is correct. Torch counts what
# it carries out.

# %% trap="01.5" role="break"
def shrink_loop(x, cut=0.5):
    """Soft threshold, one element at a time; x (N,)."""
    out = []
    for value in x:
        size = (value.abs() - cut).clamp(min=0)
        out.append(value.sign() * size)
    return torch.stack(out)

vector = torch.randn(1000)
slow = shrink_loop(vector)

# %% trap="01.5" role="guess"
guess("01.5", "How many operations does torch carry out for the 1,000 "
      "values?", unit="operations")

# %% trap="01.5" role="look" tags=["plumbing"]
from torch.utils._python_dispatch import TorchDispatchMode

class Counter(TorchDispatchMode):
    """Counts the operations that torch carries out inside its block."""
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))

# %% trap="01.5" role="look"
with Counter() as loop:
    shrink_loop(vector)
print(f"operations for 1,000 elements: {loop.count:,}")

# %% trap="01.5" role="look"
measured("01.5", loop.count, right=(3000, 9000))

# %% trap="01.5" role="look"
claim("operations per element", loop.count / 1000, above=4)

# %% [markdown] trap="01.5" role="why"
# A torch operation costs a fixed amount before it touches a number: Python calls it,
# the dispatcher picks a kernel, a result is allocated. On one element there is
# little else to pay for. Say the same thing about the whole tensor, and the count no
# longer depends on its length.

# %% trap="01.5" role="repair"
def shrink(x, cut=0.5):
    """Soft threshold of every element at once; x of any shape."""
    return x.sign() * (x.abs() - cut).clamp(min=0)

long_vector = torch.randn(100_000)
with Counter() as whole:
    fast = shrink(vector)
with Counter() as longer:
    shrink(long_vector)
print(f"operations: {loop.count:,} -> {whole.count}")

# %% trap="01.5" role="repair"
claim("operations for the whole vector", whole.count, below=10)

# %% trap="01.5" role="repair" tags=["plumbing"]
lengths = [1, 10, 100, 1000]
counts = {"loop": [], "whole tensor": []}
for name, function in (("loop", shrink_loop), ("whole tensor", shrink)):
    for length in lengths:
        with Counter() as counter:
            function(vector[:length])
        counts[name].append(counter.count)

# %% trap="01.5" role="repair"
plot_lines(lengths, counts, logx=True, logy=True, xlabel="elements",
           ylabel="operations",
           title="The loop pays for each element, the tensor once",
           alt="Operations by number of elements. The loop rises to over "
               "four thousand, the whole tensor stays below ten.")

# %% [markdown] trap="01.5" role="more" topics="the same numbers · a hundred times as long"
# The results are equal, and length costs no further operation:

# %% trap="01.5" role="more"
claim("gap between the two results", (fast - slow).abs().max(), expected=0)
claim("operations more for 100,000 elements", longer.count - whole.count,
      expected=0)

# %% trap="01.5" role="exercise" points=2 difficulty=2 minutes=10
def soft_threshold(x: torch.Tensor, cut: float) -> torch.Tensor:
    """sign(x) * max(|x| - cut, 0) for every element; cut > 0.

    x: float32 of any shape, left as it is. The result has its shape and
    dtype and stays connected to x, so gradients flow back. The number of
    torch operations must not grow with x.

    Example: soft_threshold(torch.tensor([-2., .3]), 0.5) is [-1.5, 0.].
    """
    # BEGIN SOLUTION
    return x.sign() * (x.abs() - cut).clamp(min=0)
    # END SOLUTION

# %% [markdown] trap="01.5" role="hint"
# 1. Leave no element by itself: `abs`, `sign`, `clamp` and `*` all take whole tensors.
# 2. Going through a list or numpy gives the right numbers and loses the gradient.
# 3. Size and sign are two factors; the floor at zero belongs to the size alone.

# %% [markdown] trap="01.5" role="keep"
# **Keep:** on small tensors the number of operations sets the time, because each has
# a fixed cost. **In your own code:** when a model is slow, look for a `for` over a
# tensor inside `forward`. **Source:** [He 2022, "Making Deep Learning Go Brrrr From
# First Principles"](https://horace.io/brrr_intro.html), section on overhead.

# %% [markdown] role="concept"
# ## Further
#
# No trap needs what follows: what an activation buys, what one hidden layer can do
# on paper, and which activations you will meet.

# %% [markdown] role="concept"
# ### Why the function in the middle matters
#
# Three linear layers in a row are still one. Try it on a task that no line can solve:
# points in a square, labelled by whether their two signs differ.

# %% role="concept"
x_new, y_new = xor_quadrants(1000, seed=SEED + 100)

def three_layers(activation):
    return nn.Sequential(nn.Linear(2, 32), activation(),
                         nn.Linear(32, 32), activation(),
                         nn.Linear(32, 2))

scores = {}
for activation in (nn.Identity, nn.Tanh, nn.ReLU):
    model = three_layers(activation)
    fit(model, x_xor, y_xor, steps=300, lr=1e-2)
    scores[activation.__name__] = accuracy(model, x_new, y_new)
print({name: f"{score:.2f}" for name, score in scores.items()})

# %% role="concept"
claim("share of new points right without an activation",
      scores["Identity"], below=0.75)
claim("share right with tanh", scores["Tanh"], above=0.9)
claim("share right with ReLU", scores["ReLU"], above=0.9)

# %% role="concept"
plot_bars(scores, xlabel="share of new points right",
          title="Three layers without an activation are one line",
          alt="Bars: accuracy below three quarters without an activation, "
              "above nine tenths with tanh and with ReLU.")

# %% [markdown] role="concept"
# They draw one straight line, and no line separates these points. Move the controls below and watch the boundary bend.

# %% role="explore" explorer="decision_surface"
from dlsys_helpers.explorers.decision_surface import decision_surface

decision_surface

# %% [markdown] role="concept"
# ### What the universal approximation theorem says, and what it does not
#
# One hidden layer with enough units, and an activation that is no polynomial, can come
# as close as you like to any continuous function on a closed, bounded region. That is a statement about *existence*.
# It does not say how many units you need, whether training finds the weights, or
# what happens on points you never showed.
#
# Depth is sometimes praised with a count: three layers of 256 units, or one layer of
# 100,000 "with the same parameters". Count both.

# %% role="concept"
def parameters(*sizes):
    """Weights and biases of an MLP with these layer sizes."""
    return sum(i * o + o for i, o in zip(sizes, sizes[1:]))

deep, wide = parameters(10, 256, 256, 256, 1), parameters(10, 100_000, 1)
print(f"three layers of 256: {deep:,}   one layer of 100,000: {wide:,}")

# %% role="concept"
claim("parameters of the wide one over those of the deep one",
      wide / deep, expected=9, within=0.2)

# %% [markdown] role="concept"
# ### The activations you will meet
#
# | function | formula | where you meet it |
# |---|---|---|
# | ReLU | $\max(0, x)$ | ResNets; default of `nn.TransformerEncoderLayer` |
# | GELU | $x\,\Phi(x)$ | BERT, GPT-2, vision transformers, ConvNeXt |
# | SiLU | $x\,s(x)$ | EfficientNet; inside LLaMA's gated layers |
# | sigmoid $s$ | $1 / (1 + e^{-x})$ | gates, yes-or-no outputs |
# | tanh | $(e^x - e^{-x}) / (e^x + e^{-x})$ | recurrent states, bounded outputs |
#
# "All modern transformers use GELU" is folklore: LLaMA does not, and PyTorch's own
# layer defaults to ReLU. Ask the models themselves. On the `meta` device they
# have shapes but no memory, so asking takes little.

# %% role="concept"
from torchvision import models

def activations_of(build):
    """Names of the activation modules a torchvision model is made of."""
    with torch.device("meta"):
        names = {type(m).__name__ for m in build().modules()}
    return sorted(names & {"ReLU", "GELU", "SiLU", "Sigmoid", "Tanh"})

used = {build.__name__: activations_of(build) for build in (
    models.resnet18, models.vit_b_16, models.convnext_tiny,
    models.efficientnet_b0)}
print(*(f"{name}: {', '.join(kinds)}" for name, kinds in used.items()),
      sep="\n")

# %% role="concept"
claim("kinds other than GELU in the vision transformer",
      len(set(used["vit_b_16"]) ^ {"GELU"}), expected=0)
default = nn.TransformerEncoderLayer(8, 2).activation
claim("PyTorch's encoder layer at -1, where GELU would give -0.159",
      default(torch.tensor(-1.0)), expected=0)

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then open a choice: each says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. A network of five `nn.Linear` layers without activations can represent**
#
# - [ ] more than one layer, because it has more parameters :: More numbers, same functions: the product of five matrices is one matrix.
# - [x] exactly what one linear layer of the same input and output can, at most :: A narrow layer in the middle can even make it less, because it limits the rank.
# - [ ] any continuous function, by the universal approximation theorem :: The theorem needs an activation that is not a polynomial. Without one you stay linear.

# %% [markdown] role="quiz"
# **2. `torch.no_grad()` around the forward pass of a model with dropout**
#
# - [x] saves memory and changes no number :: The values are those of train mode, just without a graph.
# - [ ] makes its output repeatable :: It only stops the graph from being stored. Dropout still draws a mask.
# - [ ] switches BatchNorm to its stored statistics :: That is what `eval()` does.

# %% [markdown] role="quiz"
# **3. Your binary head outputs 0.4. Is the answer yes or no at a cut of one half?**
#
# - [ ] No, because 0.4 is below 0.5 :: You read a logit as a probability: this is trap 01.2.
# - [x] Yes, because a logit of 0.4 is a probability of about 0.6 :: The sigmoid of a positive number is above one half.
# - [ ] It depends on the loss :: The loss shapes the weights. Once trained, the meaning of the head is fixed.

# %% [markdown] role="quiz"
# **4. Inputs are centred. In a fresh first layer, ReLU units are zero for about half of the rows on average. You**
#
# - [ ] lower the learning rate :: Nothing is wrong, and a fresh layer has not been trained at all.
# - [ ] switch to GELU :: It would hide the zeros, not mend anything: nothing is broken.
# - [x] leave it alone :: Weights as often negative as positive put half of the sums below zero.

# %% [markdown] role="quiz"
# **5. Eight layers of 32 sigmoids do not learn the digits. Which change was enough in trap 01.3?**
#
# - [ ] A larger learning rate :: Ten times the rate still leaves them guessing in trap 01.3.
# - [ ] ReLU with the default weights, trained by SGD :: The gradient still fades, and 300 steps at 0.03 leave it guessing.
# - [x] tanh with Xavier init :: The first gradient stays comparable to the last, and it reads the digits.

# %% [markdown] role="gpu"
# ## On a GPU: compute, memory or launches?
#
# A forward pass can be slow for three reasons. The arithmetic takes long
# (compute). The numbers take long to reach the arithmetic (memory). Or the
# GPU waits for the next order (launches). Each has its own cure, and the
# wrong cure does nothing.
#
# **Before you run anything:** GELU on an 8192 x 8192 tensor needs about
# 1/1600 of the arithmetic of the Linear layer before it. Would you guess
# that it takes 1/1600 of the time?
#
# You can count all three without a GPU: FLOPs, the fewest bytes that must
# move, and orders. A *meta* tensor has a shape and a type but no data, so you
# count a layer of any size in no time. FLOPs over bytes is the *arithmetic
# intensity*.

# %% role="gpu"
from dlsys_helpers.gpu import half_dtype

def prepare(step, rows, n, where):
    """A call on random 16-bit data, its FLOPs and the bytes it must move.

    x is (rows, n), the weight (n, n). Each tensor is read or written once.
    """
    x = torch.randn(rows, n, device=where, dtype=half_dtype(where))
    w = torch.randn(n, n, device=where, dtype=x.dtype)
    call = {"linear": lambda: F.linear(x, w), "gelu": lambda: F.gelu(x),
            "relu": lambda: F.relu(x), "copy": lambda: x.clone()}[step]
    if step == "linear":
        return call, flops(call), 2 * x.nbytes + w.nbytes
    # GELU's erf alone costs several FLOPs: 10 in all is an estimate.
    each = {"gelu": 10, "relu": 1, "copy": 0}[step]
    return call, each * x.numel(), 2 * x.nbytes

# %% role="gpu"
def cases():
    """(step, rows, n): squares up and down, then small batches."""
    squares = [(step, n, n) for step in ("linear", "gelu")
               for n in (64, 256, 1024, 4096, 8192)]
    batches = [("linear", 1, 8192), ("linear", 64, 8192)]
    return [*squares, *batches, ("relu", 8192, 8192), ("copy", 8192, 8192)]

counted = {}
print("step     rows     n     GFLOP        MB  FLOP/byte")
for step, rows, n in cases():
    _, work, moved = prepare(step, rows, n, "meta")
    counted[step, rows, n] = work / moved
    print(f"{step:6} {rows:6} {n:5} {work / 1e9:9.3f} {moved / 1e6:9.3f}"
          f" {work / moved:10.2f}")
net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
asked = operations(lambda: net(torch.randn(8, 64)))

# %% role="gpu"
claim("intensity of a square Linear of 8192, n / 3",
      counted["linear", 8192, 8192], expected=8192 / 3, within=1e-6)
claim("intensity of a Linear with one row, FLOP/byte",
      counted["linear", 1, 8192], expected=1, within=0.001)
claim("orders of Linear, GELU, Linear: one each",
      asked["aten::addmm"][0] + asked["aten::gelu"][0], expected=3)

# %% [markdown] role="gpu"
# A device has two roofs: its arithmetic rate and its memory rate. They meet
# at the *ridge*. Below it memory sets the pace, above it compute does.
# Matrix products run on tensor cores. GELU cannot, so its roof and its ridge
# are lower. In this *roofline* the roofs come from a datasheet. Hollow marks
# stand as high as the count lets a step get; filled marks, where there are
# any, are measured. A filled mark far under its hollow one waits for
# something that you did not count: what a launch costs, first of all.
#
# One row reads the whole weight for two FLOPs a number. A second row reads
# only itself on top: up to the ridge, a larger batch costs little.
#
# For GELU the count does not decide. While one 16-bit number comes and goes
# (4 bytes), the fp32 units of an H200 have time for 67 / 2 / (4.8 / 4), about
# 28 instructions. GELU compiles to 30 to 40; ReLU needs a few.

# %% role="gpu"
@gpu_result("01/forward_limits", uses=[cases, prepare],
            columns=["step", "rows", "n", "intensity", "us", "us_low",
                     "us_high", "tflops", "gbs"])
def limits():
    """Time every case; low and high are the quartiles."""
    for step, rows, n in cases():
        call, work, moved = prepare(step, rows, n, "cuda")
        t = seconds(call, repeats=10, device="cuda", calls=20)
        yield {"step": step, "rows": rows, "n": n,
               "intensity": work / moved, "us": t.median * 1e6,
               "us_low": t.low * 1e6, "us_high": t.high * 1e6,
               "tflops": work / t.median / 1e12,
               "gbs": moved / t.median / 1e9}

sheet = datasheet(limits.device_name)

# %% role="gpu"
ax = new_axes(f"Few FLOPs per byte keep a step low ({sheet.name})",
              "arithmetic intensity, FLOP/byte", "TFLOP/s",
              logx=True, logy=True)
for step, cores, mark, colour in (("linear", True, "o", "#3b7dd8"),
                                  ("gelu", False, "s", "#d9710d")):
    at = sorted(counted[case] for case in cases() if case[0] == step)
    for x, style in (([0.5, sheet.fp32_ridge, sheet.ridge, 5000], "-"),
                     (at, mark)):
        ax.plot(x, [sheet.ceiling(i, cores) for i in x], style, mfc="none",
                color=colour)
    rows = [row for row in limits.rows if row["step"] == step
            and limits.device_name == sheet.name]
    ax.plot([r["intensity"] for r in rows], [r["tflops"] for r in rows],
            mark, color=colour)
    ax.annotate(f"{step}, {'tensor cores' if cores else 'fp32 units'}",
                (5000, sheet.ceiling(5000, cores)), ha="right",
                xytext=(0, 4), color=colour, textcoords="offset points")
show(ax.figure, alt="A slope for memory, two flat roofs, log axes. GELU: "
     "on the slope. Linear: up the slope to the upper roof.")

# %% role="gpu"
def least(step, rows, n):
    """Microseconds by the datasheet."""
    _, work, moved = prepare(step, rows, n, "meta")
    return sheet.least_us(work, moved, tensor_cores=step == "linear")

def us(step, rows, n):
    return limits.value("us", step=step, rows=rows, n=n)

def ratio(time, one, other, n=8192):
    """How many times as long one step of (n, n) takes as the other."""
    return time(one, n, n) / time(other, n, n)

# %% role="gpu"
guide = "limited by memory (NVIDIA guide, V100)"
answers = gpu_table(
    sheet,
    limits.asks("GELU, 256 x 256 over 64 x 64: time",
                "16 or, by launches, 1",
                lambda: us("gelu", 256, 256) / us("gelu", 64, 64), below=2),
    limits.asks("ReLU over a copy: time", ratio(least, "relu", "copy"),
                lambda: ratio(us, "relu", "copy"), guide, below=1.33),
    limits.asks("GELU over a copy: time", "1 or, by instructions, more",
                lambda: ratio(us, "gelu", "copy"), below=2),
    limits.asks("GELU over its Linear: time",
                ratio(least, "gelu", "linear"),
                lambda: ratio(us, "gelu", "linear"), above=1 / 160),
    limits.asks("64 rows over 1 row of Linear: time",
                least("linear", 64, 8192) / least("linear", 1, 8192),
                lambda: us("linear", 64, 8192) / us("linear", 1, 8192),
                f"1 row: {guide}", below=4))
answers

# %% [markdown] role="gpu"
# Not 1/1600, says the datasheet of an H100, but 1/14 (that of an H200: 1/20):
# GELU's FLOPs are few, its bytes are two thirds of the Linear layer's.
#
# **On the H100 of the record** every product up to 1,024 rows and columns takes
# about 14 µs, and every GELU of those sizes about 7. The arithmetic of 1,024
# needs 2 µs by the datasheet; the rest is what it takes to give the order, at
# each of these sizes. A matrix of 8,192 costs 64 rows 3 % more than one. GELU
# takes 1/15 of its Linear layer's time, and a tenth more than a copy: this
# card's memory is slower than an H200's, so while a number comes and goes there
# is time for 40 instructions. The copy itself reaches 2.9 TB/s of the
# datasheet's 3.35.
#
# And the rate has a summit: at 4,096 the product runs at four fifths of the
# datasheet's rate, at 8,192 at less. The record does not say why. In stage 9
# the same product takes 1.38 ms instead of 1.52, called a dozen times and not
# two hundred; a card at its power limit lowers its clock, but nobody read the
# clock here, nor does a record tell one H100 from another.
#
# **Keep:** before you speed a step up, count its FLOPs and bytes. Above the
# ridge, fewer or cheaper FLOPs help. Below it, fewer bytes help: fuse the
# activation into the step before it, keep 16 bits, batch more rows. Far under
# both roofs, fewer launches help: larger batches, `torch.compile`, CUDA graphs.
# **Source:** [Williams, Waterman & Patterson 2009, "Roofline: an insightful
# visual performance model"](https://doi.org/10.1145/1498765.1498785);
# [NVIDIA, GPU Performance Background User's
# Guide](https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background/index.html).

# %% [markdown] role="summary"
# ## What you take with you
#
# - A layer is a matrix product; without an activation, many layers are one.
# - Inference is `eval()` **and** `no_grad()`; each does half.
# - A linear layer outputs logits. Read them with the right function, at the right
#   place, and look at recall when a class is rare.
# - Gradients pass through slopes and weights. Pick activation and init together.
# - A ReLU unit is dead when it is off for every input. Check for NaN before you count.
# - Each torch operation has a fixed cost. Work on whole tensors.
#
# **Next:** stage 2 follows the gradient backwards, one node at a time.
