# %% [markdown] role="hook" traps=6
# # 2. Backpropagation and autograd
#
# A network has a million weights, and its answer is wrong. Which weights should change,
# in which direction, and by how much? *Backpropagation* answers this question for all
# weights in one pass, and `loss.backward()` runs it for you.
#
# This stage computes gradients by hand and with *autograd*, PyTorch's engine for
# gradients, and builds a training loop from them. Then it breaks the backward pass with
# six mistakes that look like correct code, and most of them raise no error. At the end,
# you write your own autograd engine.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import math

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers import (
    begin, check, claim, cost, datasheet, digits, draw_backward,
    draw_blocks, draw_boxes, draw_grids, draw_tree, fit,
    flops, gpu_result, gpu_table, guess, measured, operations,
    peak_bytes, plot_bars, plot_columns, plot_lines, saved_bytes,
    seconds_in_turns,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## A gradient by hand
#
# To improve a weight, you need one number: how much does the loss change when the weight
# grows a little? That number is the *slope* of the loss with respect to this weight, and
# the slopes for all weights together are the *gradient*. The obvious way to find a slope
# is to nudge the weight and compute the loss again. Take a model with one input, one
# weight and one bias. The model predicts $3 \cdot 2 + 0.5$, and the target is 10.

# %% role="concept"
def loss_for(w):
    """Squared error of w * 2 + 0.5 against a target of 10."""
    return (w * 2 + 0.5 - 10) ** 2

nudge = 0.001
slope = (loss_for(3 + nudge) - loss_for(3)) / nudge
print(f"loss {loss_for(3)}, slope about {slope:.1f}")

# %% [markdown] role="concept"
# Here a larger weight makes the loss smaller. At first, the loss falls by about 14 for
# each unit that you add to the weight. But the nudge gives only an approximate slope, and
# it costs one forward pass for every weight.
#
# The *chain rule* gives the exact answer for all weights at once. Split the computation
# into small operations, $z = wx + b$, $e = z - y$ and $L = e^2$. Each operation has its
# own simple slope, and the slope of the whole computation is the product of the slopes
# along the path. The *forward pass* computes the values, from the inputs to the loss. The
# *backward pass* starts at the loss with $dL/dL = 1$. Every operation multiplies the
# arriving gradient by its own slope and passes the product on.

# %% role="concept"
x, w, b, y = 2.0, 3.0, 0.5, 10.0
z = w * x + b                    # forward: keep what you will need
e = z - y
loss = e ** 2

d_e = 2 * e                      # backward: slope times what arrived
d_z = d_e * 1
d_w, d_x, d_b = d_z * x, d_z * w, d_z * 1
print(f"z {z}   L {loss}   dL/dw {d_w}   dL/db {d_b}   dL/dx {d_x}")

leaves = [torch.tensor(v, requires_grad=True) for v in (w, b)]
loss = (leaves[0] * x + leaves[1] - y) ** 2
loss.backward()

# %% role="concept"
claim("loss at w = 3 and b = 0.5", loss, expected=12.25)
claim("dL/dw from autograd (expected: dL/dw by hand)",
      leaves[0].grad, expected=d_w)
claim("dL/db from autograd (expected: dL/db by hand)",
      leaves[1].grad, expected=d_b)

# %% role="concept"
draw_backward(
    {"w": f"{w:g}\ngradient {d_w:g}", "x": f"{x:g}\ngradient {d_x:g}",
     "b": f"{b:g}\ngradient {d_b:g}", "y": f"{y:g}",
     "z = w x + b": f"{z:g}\ngradient {d_z:g}",
     "e = z - y": f"{e:g}\ngradient {d_e:g}",
     "L = e²": f"{e ** 2:g}\ngradient 1"},
    [("w", "z = w x + b"), ("x", "z = w x + b"), ("b", "z = w x + b"),
     ("z = w x + b", "e = z - y"), ("y", "e = z - y"),
     ("e = z - y", "L = e²")],
    {("w", "z = w x + b"): f"times x = {x:g}",
     ("x", "z = w x + b"): f"times w = {w:g}",
     ("b", "z = w x + b"): "times 1",
     ("z = w x + b", "e = z - y"): "times 1",
     ("e = z - y", "L = e²"): f"times 2e = {2 * e:g}"},
    title="Values go down, gradients come back up",
    alt="A graph. Arrows lead down from w, x and b to z, from z and y to "
        "e, and from e to L. Next to every arrow except y's, an arrow with "
        "a factor leads back up. Every node except y shows its gradient.")

# %% [markdown] role="concept"
# Read the gradient of `w` off the arrows, from the bottom up: it is 1 times −7 times 1
# times 2. Notice two things. First, the factors come from the forward pass: the arrow to
# `w` needs `x`, and the arrow to `e` needs `e` itself. So the graph has to keep these
# values until the backward pass. Second, autograd computed no gradient for `x` and `y`,
# because they were plain numbers. Only a tensor with `requires_grad=True` gets a
# gradient, and by default `backward` fills `.grad` only for a *leaf*: a tensor that no
# recorded operation produced, such as a model parameter.
#
# While the forward pass runs, autograd records one node per operation and links it to the
# nodes that produced its inputs. The node of a result is its `grad_fn`, and `backward`
# follows the links:

# %% role="concept"
def walk(node, depth=0):
    """Print a result's graph, from the loss to the leaves."""
    print("   " * depth + node.name())
    for parent, _ in node.next_functions:
        if parent is not None:
            walk(parent, depth + 1)

walk(loss.grad_fn)

# %% [markdown] role="concept"
# `AccumulateGrad` is a leaf's node. This node adds every gradient that it receives to the
# leaf's `.grad`.
#
# ## Two uses, two gradients
#
# What if a value is used more than once? Then a change in the value reaches the loss
# along several paths, and every path counts. So autograd adds up the gradients from all
# paths:

# %% role="concept"
a = torch.tensor(3.0, requires_grad=True)
(a * a + 5 * a).backward()               # a is used three times
print(a.grad)

# %% role="concept"
claim("slope of a * a + 5 * a at a = 3 (3 + 3 from a * a, and 5 from "
      "5 * a)", a.grad, expected=11)

# %% [markdown] role="concept"
# *Skip connections* rely on this sum of gradients. A *residual block* is a small part of
# a network that computes $h = x + F(x)$, so $x$ is used twice. ($F$ stands for a layer or
# two, and not for PyTorch's collection of functions.) One gradient comes back through
# $F$. The other gradient comes back unchanged, even if the slopes inside $F$ are tiny.
# That helps networks with skip connections to train at depths at which plain networks
# usually cannot. The section *Further* measures this effect. A skip connection
# guarantees nothing, because if $F(x) = -x$, the two gradients cancel.
#
# ## Backward through a layer
#
# A layer has a whole matrix of weights, and nobody writes down their slopes one by one.
# Two matrix products and a sum are enough for the gradients of the weights, the inputs
# and the biases. Take a batch of `N` rows with `D` input values (*features*) each, and a
# layer of `U` units followed by a ReLU, which replaces negative values with zero: $z =
# xW^T + b$ and $h = \max(0, z)$.

# %% role="concept"
draw = torch.Generator().manual_seed(SEED)
x = torch.randn(4, 3, generator=draw)         # (N, D): 4 rows
weight = torch.randn(5, 3, generator=draw)    # (U, D): 5 units
bias = torch.zeros(5)                         # (U,)
z = x @ weight.T + bias                       # (N, U)
h = z.relu()
d_h = torch.randn(4, 5, generator=draw)       # arrives from the next layer

# %% [markdown] role="concept"
# `d_h` is the gradient of the loss with respect to each entry of `h`. First, this
# gradient passes back through the ReLU. Where `z` is positive, the ReLU returns its
# input, so its slope is 1. Elsewhere, the ReLU returns 0 for any input, so its slope is
# 0. The slopes form a *mask* of ones and zeros, and the backward pass multiplies the
# gradient by this mask:

# %% role="concept"
mask = z > 0
d_z = d_h * mask                              # (N, U)
print(f"{int(mask.sum())} of {mask.numel()} gradients pass")

# %% role="concept"
arrives = d_h.abs() / d_h.abs().max()
draw_grids({"slope of ReLU": mask, "arrives: d_h": arrives,
            "goes on: d_z": arrives * mask},
           marks={"goes on: d_z": ~mask}, rows="row", columns="unit",
           legend="blocked: this unit was off for this row",
           title="A unit that was off passes no gradient back",
           alt="Three grids of four rows and five units. The first is the "
               "mask of ones and zeros, and the second shows the sizes of "
               "the gradients that arrive. The third shows the gradients "
               "that pass, with the blocked cells crossed out.")

# %% [markdown] role="concept"
# Then the gradient passes back through the product. Unit $u$ computes $z_u = b_u + \sum_d
# W_{ud}\, x_d$. So the slope with respect to the weight $W_{ud}$ is $x_d$, and the slope
# with respect to the input $x_d$ is $W_{ud}$. Every row uses each weight once, so the
# gradient of a weight is a sum over rows. Every unit uses each input once, so the
# gradient of an input is a sum over units. Each of these sums is a matrix product. The
# gradient of a bias is a plain sum over rows. The cell also asks autograd for the three
# gradients. The layer's output is not a single number, so the third argument of
# `torch.autograd.grad` is the gradient that arrives from the next layer, `d_h`:

# %% role="concept"
d_weight = d_z.T @ x                          # (U, D), like weight
d_x = d_z @ weight                            # (N, D), like x
d_bias = d_z.sum(0)                           # (U,), like bias

leaves = [t.clone().requires_grad_() for t in (weight, x, bias)]
out = F.linear(leaves[1], leaves[0], leaves[2]).relu()
by_autograd = torch.autograd.grad(out, leaves, d_h)
gap = max((ours - theirs).abs().max() for ours, theirs in zip(
    (d_weight, d_x, d_bias), by_autograd))

# %% role="concept"
claim("largest gap between our three gradients and autograd's gradients",
      gap, below=1e-5)

# %% [markdown] role="concept"
# You need not learn the formulas by heart. A gradient has the shape of its tensor, and
# unless sizes happen to be equal, only one order of the factors produces that shape. And
# `d_x` is the previous layer's `d_h`. Repeat the two steps from the last layer to the
# first, and you have backpropagation through a whole network.

# %% [markdown] role="concept"
# ### No need for the whole Jacobian
#
# A layer that maps $n$ values to $m$ values has $m \cdot n$ slopes, one for each pair of
# an output and an input. Together, the slopes form a matrix, the *Jacobian* $J$, with a
# row for each output and a column for each input. Take a node that computes $x_1 x_2$ and
# $x_1 + x_2$, at $x_1 = 3$ and $x_2 = 2$. Each entry of $J$ says how much one output
# changes with one input:
#
# ```
#               for x1   for x2
# x1 * x2          2        3
# x1 + x2          1        1
# ```
#
# The backward pass never builds a Jacobian. A node receives a vector $v$ with one value
# per *output* and returns $vJ$, which has one value per *input*. If the node in the
# example receives $v = (1, 10)$, it returns $1 \cdot 2 + 10 \cdot 1 = 12$ for $x_1$, and
# $1 \cdot 3 + 10 \cdot 1 = 13$ for $x_2$. The product $vJ$ is called a *vector-Jacobian
# product*. The mask and the matrix products above compute vector-Jacobian products.

# %% role="concept"
weight, point = torch.randn(4, 6), torch.randn(6, requires_grad=True)

def small_layer(x):
    """tanh(W x); x (6,) to (4,)."""
    return torch.tanh(weight @ x)

v = torch.randn(4)
product, = torch.autograd.grad(small_layer(point), point, v)    # (6,)
jacobian = torch.func.jacrev(small_layer)(point.detach())       # (4, 6)
gap = (product - v @ jacobian).abs().max()

numbers = 64 * 256               # 64 rows, 256 features, in and out
print(f"vector: {4 * numbers / 1e3:.0f} kB   "
      f"Jacobian: {4 * numbers ** 2 / 1e9:.2f} GB")

# %% role="concept"
claim("largest gap between autograd's vector-Jacobian product and v @ J",
      gap, below=1e-5)
claim("number of bytes in the Jacobian of one layer",
      4 * numbers ** 2, above=1e9)

# %% [markdown] role="concept"
# A loss is a single number, so $v$ starts with one entry, and **one** backward pass
# computes the slopes with respect to all parameters, even for a billion of them. You
# could also start at the other end: pick one parameter, and follow a small change in it
# forward through the network. This is called *forward mode*. One forward pass of this
# kind computes the slope with respect to that parameter only, so a billion parameters
# need a billion passes. That is why training computes its gradients backwards.
#
# ## What is saved for the backward pass
#
# The factors on the arrows come from the forward pass, so these values stay in memory
# until the backward pass has used them. In training, these saved values often take more
# memory than the weights. Which values an operation keeps depends on its slope. A
# product of two tensors that both need a gradient keeps both, because each factor is
# the slope with respect to the other. `tanh` keeps its own result. A sum keeps nothing,
# because its slopes are always 1. In the next cell, `saved_bytes` asks autograd how
# many bytes an operation keeps for vectors of 1,000 four-byte values.

# %% role="concept"
def kept_by(operation, count=1):
    """Bytes kept for backward; the inputs are vectors of 1,000 values."""
    inputs = [torch.randn(1000, requires_grad=True) for _ in range(count)]
    return saved_bytes(lambda: operation(*inputs))

kept = {"a + b": kept_by(torch.add, 2), "2 * a": kept_by(lambda a: 2 * a),
        "sum": kept_by(torch.sum), "tanh": kept_by(torch.tanh),
        "relu": kept_by(torch.relu), "gelu": kept_by(F.gelu),
        "a * b": kept_by(torch.mul, 2)}
print(*(f"{name:6} {bytes:5,}" for name, bytes in kept.items()), sep="\n")

# %% role="concept"
claim("number of bytes that a sum of two vectors keeps for the backward "
      "pass", kept["a + b"], expected=0)
claim("number of bytes that tanh keeps for the backward pass",
      kept["tanh"], expected=4000)
claim("number of bytes that a product of two vectors keeps for the "
      "backward pass", kept["a * b"],
      expected=8000)

# %% [markdown] role="concept"
# Until `backward` has run, you must not change a value that the graph keeps. Most
# operations make a new tensor, but some change a tensor *in place*: assignments such as
# `t[0] = 0` and `t += 1`, and methods whose names end in an underscore, such as
# `t.zero_()`. If an in-place edit changes a kept value, the slope computed from that
# value is wrong. To detect this, every tensor counts its in-place edits, and the graph
# records the count when it keeps the tensor. If `backward` finds a different count, it
# raises an error instead of returning a wrong gradient.
#
# In a network, each row of the batch adds its own inputs and results to what the graph
# keeps. So the memory of the graph grows with the batch:

# %% role="concept"
net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(),
                    nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
kept = {rows: saved_bytes(lambda: net(torch.randn(rows, 256)),
                          net.parameters()) for rows in (64, 128, 256)}
print({rows: f"{bytes:,}" for rows, bytes in kept.items()})

# %% role="concept"
claim("number of bytes that the graph keeps for 64 rows (the input and two "
      "ReLU results)", kept[64],
      expected=3 * 64 * 256 * 4)
claim("number of bytes that the graph keeps for 128 rows, in float32 "
      "without norm layers", kept[128], expected=2 * kept[64])

# %% [markdown] role="concept"
# By default, `backward()` frees the tensors that the graph kept, so a second call that
# needs one of them raises an error.
#
# ## A training loop in five steps
#
# A gradient tells you in which direction the loss falls, but only for a small step. So
# you take a small step, compute the gradient again, and repeat. Here is the loop by hand,
# for the single weight from above. The *learning rate*, 0.05, sets how far a step goes.

# %% role="concept"
w = torch.tensor(3.0, requires_grad=True)
for _ in range(4):
    prediction = w * 2.0 + 0.5           # 1. predict
    loss = (prediction - 10.0) ** 2      # 2. compare
    w.grad = None                        # 3. clear the old gradient
    loss.backward()                      # 4. compute the new one
    with torch.no_grad():                # (record no graph for this)
        w -= 0.05 * w.grad               # 5. step against the slope
    print(f"loss {loss:5.2f}, gradient {w.grad:6.2f}, weight {w:.2f}")

# %% [markdown] role="concept"
# The step goes *against* the slope. Here the slope with respect to `w` is negative, so
# `w` grows. In a real program, an *optimizer* does steps 3 and 5 for all parameters it
# is given. The optimizer for plain gradient descent is `torch.optim.SGD`. And a step
# rarely uses all the data. Usually it uses only a *batch*, a few rows drawn at random.
# One pass over all rows is called an *epoch*.

# %% role="concept"
facts = torch.randn(200, 3, generator=draw)
answers = facts @ torch.tensor([1.5, -2.0, 0.5]) + 1.0
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(60):
    batch = torch.randint(len(facts), (16,), generator=draw)
    prediction = model(facts[batch]).squeeze(1)        # 1
    loss = F.mse_loss(prediction, answers[batch])      # 2
    opt.zero_grad()                                    # 3
    loss.backward()                                    # 4
    opt.step()                                         # 5
    losses.append(loss.item())           # item(): only the number

# %% role="concept"
claim("last loss of the loop divided by its first loss",
      losses[-1] / losses[0], below=0.01)

# %% role="concept"
draw_blocks({"the five steps": ["1. predict: model(x)",
                                "2. compare: the loss",
                                "3. clear: zero_grad()",
                                "4. backward()", "5. step()"],
             "what each leaves behind": ["predictions, and a graph",
                                         "one number at its end",
                                         ".grad is None",
                                         ".grad holds the slopes",
                                         "the weights have moved"]},
            bypass={"the five steps": [(4, 0)]},
            title="Five steps, then the next batch",
            alt="Two columns of five boxes. The first column holds the "
                "steps predict, compare, clear, backward and step, with "
                "an arrow from the last step to the first. The second "
                "column says what each step leaves behind.")

# %% [markdown] role="concept"
# PyTorch training programs usually have these five steps. The course calls `fit` where
# the loop is not the subject, and `fit` is this loop with Adam as its optimizer. *Adam*
# divides a running average of each weight's gradient by a running average of the
# gradient's size, so the length of a step depends little on how large the gradients are
# (stage 4). Each of the five steps is one line, and each line is easy to forget.

# %% [markdown] trap="02.1" role="situation" core=true fault="zero_grad is missing: gradients add up" symptom="loss goes up and down and never settles, zero_grad missing"
# ## A training loop from memory
#
# You write a training loop from memory and forget `zero_grad`. "Without `zero_grad`, the
# steps are just too long, as with a higher learning rate," says a comment in an old
# script. The data are linear without noise, so the loss can reach zero. You run the loop
# for 800 steps, once on all rows and once on 8 random rows per step.

# %% trap="02.1" role="break"
rows = torch.randn(64, 3)
truth = rows @ torch.tensor([2.0, -1.0, 0.5]) + 0.3

def at_zero():
    model = nn.Linear(3, 1)
    for p in model.parameters():
        nn.init.zeros_(p)
    return model

# %% trap="02.1" role="break"
def descend(steps, clear, momentum=0.0, batch=None):
    """Losses, over all rows, of a linear fit by SGD that starts at zero."""
    model = at_zero()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    losses = []
    for _ in range(steps):
        each = (model(rows).squeeze(1) - truth) ** 2              # (64,)
        losses.append(each.mean().item())
        if clear:
            opt.zero_grad()
        pick = torch.randint(64, (batch,)) if batch else slice(None)
        each[pick].mean().backward()
        opt.step()
    return losses

# %% trap="02.1" role="break"
cleared, piled = descend(800, clear=True), descend(800, clear=False)
pushed = descend(800, clear=False, batch=8)

# %% trap="02.1" role="guess" quoted="wrong"
guess("02.1", "What does the loss do in the two runs without `zero_grad`?",
      choices=["it swings in both runs",
               "it grows in both runs",
               "it falls in the run on all rows and swings in the run on "
               "batches of 8",
               "it swings in the run on all rows and grows in the run on "
               "batches of 8"])

# %% trap="02.1" role="look"
measured("02.1", 3)

# %% trap="02.1" role="look"
runs = {"zero_grad": cleared, "all rows": piled, "batches of 8": pushed}
plot_lines(range(800), {name: [max(loss, 1e-6) for loss in losses]
                        for name, losses in runs.items()}, logy=True,
           title="Without zero_grad, the loss swings or grows",
           xlabel="step", ylabel="mean squared error, cut at 1e-6",
           alt="Three curves on a log scale. With zero_grad, the loss "
               "falls to the floor. Without zero_grad, the loss on all "
               "rows keeps swinging at about its first value or below, "
               "and the loss on batches of 8 climbs by several orders of "
               "magnitude.")

# %% trap="02.1" role="look"
claim("highest loss divided by the first loss, on batches of 8 without "
      "zero_grad", max(pushed) / pushed[0], above=100)

# %% [markdown] trap="02.1" role="look"
# On all rows, the loss neither settles nor diverges. On batches of 8, the loss grows by
# orders of magnitude. To see why, call `backward` four times on one batch, without a
# step. Each call adds its gradient to the earlier gradients:

# %% trap="02.1" role="look"
probe = nn.Linear(3, 1)
norms = []
for _ in range(4):                        # equal batches, no step
    F.mse_loss(probe(rows).squeeze(1), truth).backward()
    norms.append(probe.weight.grad.norm().item())
print("norms:", [f"{norm / norms[0]:.0f}x" for norm in norms])

# %% trap="02.1" role="look"
claim("gradient norm after four calls of backward divided by the norm "
      "after one call", norms[3] / norms[0], expected=4, within=1e-4)

# %% [markdown] trap="02.1" role="why"
# `backward` *adds* to `.grad`. If nothing clears or rescales `.grad`, each step uses the
# sum of all gradients so far. A running sum of gradients is called *momentum*: SGD with
# momentum $m$ multiplies the sum by $m$ and then adds the new gradient. So without weight
# decay, a forgotten `zero_grad` turns plain SGD into SGD of momentum 1. On all rows, the
# weights swing around the minimum like a pendulum without friction. Random batches push
# the pendulum at random moments, and it swings ever higher.

# %% trap="02.1" role="why"
plot_lines(range(60), {"zero_grad": cleared[:60], "without": piled[:60]},
           title="On all rows, the loss swings like a pendulum",
           xlabel="step", ylabel="mean squared error",
           alt="The first 60 steps on all rows. The curve with zero_grad "
               "falls to zero and stays there. The curve without zero_grad "
               "falls and rises again and again, with swings of changing "
               "height.")

# %% [markdown] trap="02.1" role="repair"
# Clear the gradients at the start of **every** step. Then it does not matter what other
# code has left in `.grad`. The run below clears the gradients, but sets a momentum of 1
# on purpose:

# %% trap="02.1" role="repair"
pendulum = descend(40, clear=True, momentum=1.0)
gap = max(abs(a - b) for a, b in zip(pendulum, piled))
print(f"largest gap between momentum 1 and no zero_grad: {gap:.0e}")
print(f"cleared: loss {cleared[-1]:.0e} after 800 steps")

# %% trap="02.1" role="repair"
claim("loss after 800 steps on all rows with zero_grad",
      cleared[-1], below=1e-3)

# %% [markdown] trap="02.1" role="more" topics="momentum 1 in numbers · None and zeros · batches with zero_grad"
# Up to rounding, the run without `zero_grad` has the same losses as the run with a
# momentum of 1:

# %% trap="02.1" role="more"
import inspect

arguments = inspect.signature(torch.optim.Optimizer.zero_grad).parameters
print(arguments["set_to_none"])

# %% trap="02.1" role="more"
claim("largest gap between the losses without zero_grad and the losses "
      "with a momentum of 1", gap, below=1e-3)
claim("highest of the last 100 losses divided by the first loss, on all "
      "rows without zero_grad", max(piled[-100:]) / piled[0], above=0.2)
claim("highest loss divided by the first loss, on all rows without "
      "zero_grad", max(piled) / piled[0], below=2)
claim("is set_to_none True by default",
      arguments["set_to_none"].default, expected=True)

# %% [markdown] trap="02.1" role="more"
# By default, `zero_grad` sets each gradient to None, which does more than save memory.
# Besides the running average of the gradients' size, Adam keeps a running mean of the
# gradients themselves and moves each weight along this mean. If a weight's gradient is
# None, Adam leaves the weight alone. If the gradient is a tensor of zeros, Adam still
# takes a step, using the running means:

# %% trap="02.1" role="more"
def after_idle_step(to_none):
    """A weight after one Adam step with a gradient and one without."""
    weight = nn.Parameter(torch.ones(1))
    opt = torch.optim.Adam([weight], lr=0.1)
    weight.sum().backward()
    opt.step()
    opt.zero_grad(set_to_none=to_none)
    opt.step()
    return weight.item()

# %% trap="02.1" role="more"
none, zeros = after_idle_step(True), after_idle_step(False)
print(f"an idle step of Adam: {none:.3f} with None, {zeros:.3f} with zeros")

# %% trap="02.1" role="more"
claim("weight after an idle step of Adam with a gradient of None "
      "(unchanged)", none, expected=0.9, within=1e-3)
claim("weight after an idle step of Adam with a gradient of zeros (moved)",
      zeros, expected=0.833, within=1e-3)

# %% [markdown] trap="02.1" role="more"
# With `zero_grad` back in place, the loss on batches of 8 rows also falls to zero:

# %% trap="02.1" role="more"
calm = descend(800, clear=True, batch=8)

# %% trap="02.1" role="more"
claim("loss after 800 steps on batches of 8 with zero_grad", calm[-1],
      below=1e-3)

# %% [markdown] trap="02.1" role="folklore"
# **Told:** Without `zero_grad`, the loss falls faster at first and then diverges.
# **Measured:** On random batches of 8, the loss does grow, to more than 100 times its
# first value within 800 steps. On the full batch of noise-free data, at a learning rate
# of 0.05, the loss swings and stays below twice its first value. **Told:** Pass
# `set_to_none=True` to save memory. **Measured:** `zero_grad` sets gradients to None by
# default, which does more than save memory. With Adam, an unused weight stays at 0.9 if
# its gradient is None, and moves to 0.833 if its gradient is zero.

# %% trap="02.1" role="exercise" points=3 difficulty=2 minutes=10
def train_step(model: nn.Module, opt: torch.optim.Optimizer,
               x: torch.Tensor, y: torch.Tensor) -> float:
    """Take one optimizer step.

    Args:
        model: some parameters can be frozen, and others can be unused.
        opt: the model's optimizer.
        x: (N, F) float32.
        y: (N, 1) float32.

    Returns:
        The loss before the update, as a float.

    The loss is the mean squared error over all rows. Gradients that the
    model already holds must not count.

    Example: if the model outputs 0 and y is [[2.], [0.]], the loss is 2.0.
    """
    # BEGIN SOLUTION
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()
    # END SOLUTION

# %% [markdown] trap="02.1" role="hint"
# 1. One step has four parts, and their order matters: clear the gradients, compute the loss, call `backward`, call `step`.
# 2. If you clear the gradients between `backward` and `step`, you throw the new gradients away. If you clear them only at the end of the call, gradients from before the call still count.
# 3. `opt.zero_grad()` clears the gradients of all parameters that the optimizer knows, including the biases. `loss.item()` returns a number without a graph.

# %% [markdown] trap="02.1" role="keep"
# **Keep:** `backward` adds to `.grad`, so clear the gradients at the start of every step.
# Otherwise plain SGD has a momentum of 1, and the loss can swing or grow. **In your
# own code:** If a loss swings with a steady period, run your step twice on one batch at a
# learning rate of 0. If the gradient norm doubles, nothing clears the gradients.
# **Source:** PyTorch documentation,
# [Optimizer.zero_grad](https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html).

# %% [markdown] trap="02.2" role="situation" fault="backward on a vector of ones: a sum, not the mean" symptom="RuntimeError: grad can be implicitly created only for scalar outputs"
# ## Backward on a vector
#
# You want to give each example its own weight in the loss, so you ask `cross_entropy` for
# one loss per row, with `reduction="none"`. Now `backward` raises an error, because it
# expects a single number. The first answer you find online passes `backward` a vector of
# ones. You try it on 64 rows, and the error goes away.

# %% trap="02.2" role="break"
x_train, y_train, x_test, y_test = digits()      # (1300, 64), (497, 64)
classifier = nn.Linear(64, 10)
losses = F.cross_entropy(classifier(x_train[:64]), y_train[:64],
                         reduction="none")       # (64,)
losses.backward(torch.ones_like(losses))         # no error any more
with_ones = classifier.weight.grad.clone()

# %% trap="02.2" role="guess"
guess("02.2",
      "How large is the gradient with the vector of ones, as a multiple of "
      "the gradient of the mean loss?",
      choices=["1",
               "64",
               "4,096"])

# %% trap="02.2" role="look"
try:
    F.cross_entropy(classifier(x_train[:64]), y_train[:64],
                    reduction="none").backward()
except RuntimeError as error:
    print("without ones:", error)
mean = F.cross_entropy(classifier(x_train[:64]), y_train[:64])
of_mean, = torch.autograd.grad(mean, classifier.weight)
ratio = (with_ones.norm() / of_mean.norm()).item()
print(f"gradient with ones / gradient of the mean: {ratio:.1f}")

# %% trap="02.2" role="look"
measured("02.2", 1)

# %% trap="02.2" role="look"
claim("gradient norm with the vector of ones divided by the gradient norm "
      "of the mean loss", ratio, expected=64, within=0.01)

# %% [markdown] trap="02.2" role="look"
# Does the larger gradient do any harm? Train once with each gradient, at a learning
# rate that suits the mean:

# %% trap="02.2" role="look"
def worst_loss(vector):
    """Largest mean loss after the first of 20 SGD steps at rate 0.5."""
    model, losses = nn.Linear(64, 10), []
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(20):
        opt.zero_grad()
        each = F.cross_entropy(model(x_train[:64]), y_train[:64],
                               reduction="none")
        each.backward(vector)
        opt.step()
        losses.append(each.mean().item())
    return max(losses[1:])

# %% trap="02.2" role="look"
calm = worst_loss(torch.full((64,), 1 / 64))
wild = worst_loss(torch.ones(64))
print(f"worst loss on the way: {calm:.1f} with the mean, "
      f"{wild:.0f} with ones")

# %% trap="02.2" role="look"
plot_bars({"mean": calm, "vector of ones": wild},
          xlabel="worst mean loss in 20 steps", log=True,
          title="The loss stays calm with the mean, and explodes with ones",
          alt="Two bars on a log scale: the worst loss in 20 steps. It is "
              "near two with the mean and above twenty with ones.")

# %% trap="02.2" role="look"
claim("highest loss in 20 steps with the vector of ones, at the same "
      "learning rate", wild, above=20)

# %% [markdown] trap="02.2" role="why"
# Each row has its own loss, and each loss has a gradient. `backward(v)` multiplies
# the gradient of row $i$ by $v_i$ and adds up the results. With ones, every row counts
# in full, so you get the gradient of the *sum* of the losses, which is 64 times the
# gradient of their mean. A learning rate of 0.5 then acts like a rate of 32. For the
# mean, pass a vector whose entries are all 1/64. For a weighted mean, divide the weights
# by **their own** sum, so that doubling all weights changes nothing.

# %% trap="02.2" role="repair"
counts = torch.where(y_train[:64] == 8, 5.0, 1.0)  # an eight counts 5 times

def losses_by_row():
    """Cross-entropy of the first 64 digits, one per row: (64,)."""
    return F.cross_entropy(classifier(x_train[:64]), y_train[:64],
                           reduction="none")

def gradient(loss, vector=None):
    return torch.autograd.grad(loss, classifier.weight, vector)[0]

as_vector = gradient(losses_by_row(), counts / counts.sum())
as_scalar = gradient((counts * losses_by_row()).sum() / counts.sum())

# %% trap="02.2" role="repair"
claim("largest gap between the gradients from the vector and from the "
      "weighted mean", (as_vector - as_scalar).abs().max(), below=1e-6)

# %% [markdown] trap="02.2" role="more" topics="a learning rate of 0.5 that acts like 32 · torch's class weights"
# The first claim puts a bound on the highest loss with the gradient of the mean. The
# second claim gives the learning rate at which the mean loss leads to the same steps as
# the vector of ones:

# %% trap="02.2" role="more"
claim("highest loss in 20 steps with the gradient of the mean loss",
      calm, below=2.6)
claim("learning rate at which the mean loss leads to the same steps as "
      "the vector of ones", 0.5 * ratio, expected=32, within=0.01)

# %% [markdown] trap="02.2" role="more"
# PyTorch's own class weights produce the same gradient:

# %% trap="02.2" role="more"
classes = torch.ones(10)
classes[8] = 5.0
built_in = F.cross_entropy(classifier(x_train[:64]), y_train[:64], classes)
claim("largest gap between our gradient and PyTorch's gradient with class "
      "weights", (as_scalar - gradient(built_in)).abs().max(), below=1e-6)

# %% [markdown] trap="02.2" role="folklore"
# **Told:** Reduce the losses with `(weights * losses).sum()`, or pass a vector of ones,
# which is equivalent. **Measured:** Both reductions compute a sum, not a mean. In this
# batch of 64 rows, the vector of ones makes the gradient 64 times as large as the
# gradient of the mean. This factor grows with the batch size, so in SGD, the same
# learning rate means something different for each batch size.

# %% trap="02.2" role="exercise" points=2 difficulty=2 minutes=10
def weighted_loss(losses: torch.Tensor,
                  weights: torch.Tensor) -> torch.Tensor:
    """Compute the weighted mean of per-row losses.

    Args:
        losses: (N,) float32, with a graph.
        weights: (N,) float32, each at least 0. Some can be 0, but not all.

    Returns:
        The mean in float32. The result is a scalar that stays connected to
        the graph of the losses.

    Doubling every weight changes nothing, even if the weights are tiny or
    huge.

    Example: losses [1., 3.] with weights [1., 3.] give 2.5.
    """
    # BEGIN SOLUTION
    return (weights * losses).sum() / weights.sum()
    # END SOLUTION

# %% [markdown] trap="02.2" role="hint"
# 1. You need a vector that says how much each row counts, and whose entries add up to one. How do you compute this vector from the weights?
# 2. The mean of the products of weights and losses is not the product of their two means.
# 3. Use tensors all the way from `losses` to the result, because `.item()`, `float()` and `detach()` cut the graph.

# %% [markdown] trap="02.2" role="keep"
# **Keep:** `backward(v)` weights the rows by `v`, so a vector of ones gives you the
# gradient of the sum. For a mean, the weights have to add up to one. **In your own
# code:** After you change a reduction, compare the gradient norm with the norm before the
# change. **Source:** PyTorch documentation,
# [torch.autograd.backward](https://docs.pytorch.org/docs/stable/generated/torch.autograd.backward.html)
# and
# [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html).

# %% [markdown] role="concept"
# ## Five switches, and what each is for
#
# By default, autograd records what you compute from parameters. Often you want autograd
# to record less. For instance, an evaluation needs no graph, and a target must not get
# a gradient. Sometimes you want more than one backward pass. There is a switch for each
# case:
#
# | switch | what it does | what it is for |
# |---|---|---|
# | `t.detach()` | returns the tensor without its graph, in the same memory | a part of a computation that must not learn |
# | `no_grad()` | records no graph inside the block | evaluation; updating weights by hand |
# | `inference_mode()` | records no graph; no later graph can save its new tensors | serving |
# | `retain_graph=True` | keeps the saved tensors after a backward pass | a second backward pass over **one** graph |
# | `create_graph=True` | also records the backward pass | derivatives of derivatives |
#
# With the first three switches, autograd records less. `detach` acts on a single tensor,
# and its result shares the tensor's memory and its count of in-place edits. `no_grad`
# acts on everything in its block. If you write `@torch.no_grad()` above a function, the
# whole function becomes such a block.

# %% role="concept"
p = torch.ones(2, requires_grad=True)

@torch.no_grad()                         # the decorator
def measured_only(p):
    return 3 * p

recorded = 3 * p
print(recorded.requires_grad, recorded.detach().requires_grad,
      measured_only(p).requires_grad)

# %% [markdown] role="concept"
# Use `detach` if the forward pass needs a value, but the part of the model that computed
# the value must get no gradient. A GAN (generative adversarial network) is trained to
# make new samples that look as if they came from a data set. In a GAN, a *generator*
# makes the samples, and a *judge* learns to recognize them as fakes. The judge's training
# step must not train the generator, so the judge gets `fake.detach()`:

# %% role="concept"
generator, judge = nn.Linear(2, 4), nn.Linear(4, 1)
fake = generator(torch.randn(8, 2))                  # (8, 4)
F.softplus(judge(fake.detach())).mean().backward()   # the loss of a fake
print("judge:", judge.weight.grad is not None,
      "  generator:", generator.weight.grad is not None)

# %% role="concept"
claim("does the generator get a gradient",
      generator.weight.grad is not None, expected=False)

# %% role="concept"
draw_tree({"noise": "", "generator": "gets no gradient", "fake": "",
           "judge": "learns", "loss": ""},
          [("noise", "generator"), ("generator", "fake"),
           ("fake", "judge"), ("judge", "loss")],
          cuts=[("fake", "judge")], cut_name="detach: no gradient passes",
          title="detach stops the gradient on its way back",
          alt="A chain leads from noise to generator, fake, judge and "
              "loss. The edge from fake to judge is cut.")

# %% [markdown] role="concept"
# Targets that come from a copy of the model, such as a *momentum encoder* or the target
# network of Q-learning, are detached for the same reason. In a long sequence, `h =
# h.detach()` after every chunk keeps the hidden state but cuts its graph. The backward
# pass then does not go all the way back to the beginning. This method is called
# *truncated backpropagation through time*.
#
# The last two switches are for a second backward pass. If you have two losses over one
# graph, add them and call `backward` once, because the gradient of a sum is the sum of
# the gradients. You need `retain_graph` only if you want the two gradients separately.
# You need `create_graph` for the gradient of a gradient, for instance in second
# derivatives, gradient penalties, or *MAML*, whose loss is computed after a training step
# and has to be differentiated through that step:

# %% role="concept"
t = torch.tensor(3.0, requires_grad=True)
first, = torch.autograd.grad(t ** 3, t, create_graph=True)   # 3 t^2
second, = torch.autograd.grad(first, t)                      # 6 t
plain, = torch.autograd.grad(t ** 3, t, retain_graph=True)
print(f"first {first:g}, second {second:g}; "
      f"with retain_graph the first has a graph: {plain.requires_grad}")

# %% role="concept"
claim("second derivative of t cubed at t = 3", second, expected=18)

# %% [markdown] role="concept"
# With `retain_graph` alone, the first derivative has no graph, so you cannot
# differentiate it again. *Further* shows the switches in longer examples.

# %% [markdown] trap="02.3" role="situation" core=true fault="an edit of .data changes what backward reads" symptom="gradients are zero or wrong after editing tensor.data, no error"
# ## Small outputs set to zero for a plot
#
# For a plot, you want to set the small outputs of a layer to zero. "`y.data` is a copy
# without a graph, so you can edit it freely," says a note in the plotting script. You
# edit `y.data`, and the plot looks fine. The loss was computed before the edit, and
# `backward` raises no error. Then you try `y.detach()` in place of `y.data`.

# %% trap="02.3" role="break"
x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
y = torch.sigmoid(x)
loss = y.sum()

shown = y.data                   # has no graph
shown[shown < 0.99] = 0          # for the plot

loss.backward()

# %% trap="02.3" role="guess" quoted="wrong"
guess("02.3", "What does `backward` produce in the two versions?",
      choices=["zeros with `y.data`, and an error with `y.detach()`",
               "the true slopes with `y.data`, and zeros with "
               "`y.detach()`",
               "zeros in both versions",
               "the true slopes in both versions"])

# %% trap="02.3" role="look"
s = 1 / (1 + torch.exp(-torch.tensor([1.0, 2.0, 3.0])))
edited = y.detach().clone()
truth = s * (1 - s)              # the derivative of the sigmoid
print(f"got    {x.grad.tolist()}")
print(f"truth  {[round(t, 3) for t in truth.tolist()]}")

# %% trap="02.3" role="look"
claim("largest absolute entry in the gradient of x after the edit of "
      "y.data", x.grad.abs().max(), expected=0)

# %% trap="02.3" role="look"
plot_columns({f"{side}, x = {v:g}": g for v, t, got in zip(
    (1, 2, 3), truth.tolist(), x.grad.tolist())
    for side, g in (("true", t), ("got", got))},
    xlabel="", ylabel="gradient", form=".3f",
    marks=[f"got, x = {v}" for v in (1, 2, 3)],
    title="Three slopes are lost without an error",
    alt="Pairs of columns for x = 1, 2 and 3. In each pair, the first "
        "column is the true slope, and the second column is the gradient "
        "that came out, which is zero each time.")

# %% [markdown] trap="02.3" role="why"
# `.data` is not a copy, because it shares its memory with `y`. The slope of a sigmoid is
# $y(1 - y)$, so the sigmoid had kept its *result* for the backward pass, and you
# overwrote that result with zeros. To notice such an overwrite, autograd counts the
# in-place edits of each tensor. But it does not count an edit through `.data`. The result
# of `detach()` shares both the memory and the count of edits. So after you edit
# `y.detach()` with a PyTorch operation, `backward` raises an error, as *More* shows.
# To get a copy that you can edit, add `clone()`.

# %% trap="02.3" role="why"
measured("02.3", 0)

# %% trap="02.3" role="why"
draw_tree({"x": "1, 2, 3", "y": "kept for backward",
           "shown": "y.data, the same memory",
           "loss": "sum"},
          [("x", "y"), ("y", "loss"), ("y", "shown")],
          cuts=[("y", "shown")], marks=["y"], cut_name="no graph",
          title="No graph leads to y.data, but editing it changes y",
          alt="Arrows lead from x to y, and from y to the loss and to "
              "shown. The edge to shown is cut. y is marked, because the "
              "edit changed it.")

# %% trap="02.3" role="repair"
x.grad = None
y = torch.sigmoid(x)
shown = y.detach().clone()
shown[shown < 0.99] = 0
y.sum().backward()
print(f"gradient {[round(g, 3) for g in x.grad.tolist()]}")

# %% trap="02.3" role="repair"
claim("largest error in the gradient after an edit of y.detach().clone()",
      (x.grad - truth).abs().max(), below=1e-6)

# %% [markdown] trap="02.3" role="more" topics="where the same edit does no harm · what detach notices"
# An edit does the gradient no harm if no operation kept the edited value. After the same
# edit of `2 * x`, `x` still gets the right gradient:

# %% trap="02.3" role="more"
x.grad = None
doubled = 2 * x
doubled.data.zero_()
doubled.sum().backward()
print(x.grad)

# %% trap="02.3" role="more"
claim("gradient of x after the same edit of the result of 2 * x",
      x.grad[0], expected=2)
claim("true slope of the sigmoid at 1",
      truth[0], expected=0.197, within=1e-3)
claim("largest absolute entry in y after the edit of y.data",
      edited.abs().max(), expected=0)

# %% [markdown] trap="02.3" role="more"
# If you edit the detached tensor with PyTorch, autograd counts the edit. If you edit it
# with NumPy, autograd does not:

# %% trap="02.3" role="more"
x.grad = None
y = torch.sigmoid(x)
y.detach()[0] = 0.0
try:
    y.sum().backward()
    noticed = False
except RuntimeError as error:
    noticed = "modified by an inplace operation" in str(error)

x.grad = None
y = torch.sigmoid(x)
y.detach().numpy()[:] = 0
y.sum().backward()
print(f"detach: noticed {noticed}   numpy: {x.grad.tolist()}")

# %% trap="02.3" role="more"
claim("does backward notice an edit of the detached tensor by a PyTorch "
      "operation", noticed, expected=True)
claim("largest absolute entry in the gradient of x after an edit with "
      "NumPy (no error)", x.grad.abs().max(), expected=0)

# %% trap="02.3" role="exercise" points=2 difficulty=2 minutes=8
def stop_grad(t: torch.Tensor) -> torch.Tensor:
    """Return a copy of t. No gradient may flow through the copy.

    Args:
        t: float32 or float16. The tensor can have any shape. The tensor
            can come with or without a graph.

    Returns:
        A copy with the same shape and dtype. The copy is safe to edit.

    Neither this call nor an edit of the result changes t, its graph, or
    the gradients that flow through t.

    Example: after c = stop_grad(y), c.zero_() leaves y unchanged.
    """
    # BEGIN SOLUTION
    return t.detach().clone()
    # END SOLUTION

# %% [markdown] trap="02.3" role="hint"
# 1. The result has to leave the graph, and it needs memory of its own. That takes two calls.
# 2. Methods whose names end in an underscore change the tensor they are called on. Do not call such a method on `t`.
# 3. One of the two calls is `clone()`. Which other call takes the result out of the graph?

# %% [markdown] trap="02.3" role="keep"
# **Keep:** `.data` shares memory with its tensor and hides your edits from autograd.
# `detach()` also shares memory, but autograd notices edits that you make with PyTorch.
# `detach().clone()` is yours to edit. **In your own code:** Search for `.data` and
# replace each use of it. To set a weight by hand, use `no_grad()`. **Source:** PyTorch
# notes, [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html),
# section on in-place correctness checks.

# %% [markdown] trap="02.4" role="situation" core=true fault="gradient accumulation weights unequal parts equally" symptom="gradient accumulation: loss explodes or differs from the large batch"
# ## Four small batches for one big one
#
# Your batch of 32 rows does not fit into memory. You cut the batch into 4
# *micro-batches* of 8 rows, call `backward` for each part, and then take one step,
# because the gradients add up in `.grad` anyway. The first six rows are padding. They
# have the label `-100`, and `cross_entropy` ignores rows with this label. "Divide each
# loss by 4, or your learning rate will in effect be about 4 times too large," says a
# reviewer. You divide by 4, and compare the accumulated gradient with the gradient of
# the whole batch.

# %% trap="02.4" role="break"
inputs = torch.randn(32, 16)
head, labels = nn.Linear(16, 5), torch.randint(5, (32,))
labels[:6] = -100                # padding

def gradient_of(x, y):
    """Gradient of the mean loss with respect to the head's weights."""
    loss = F.cross_entropy(head(x), y)
    return torch.autograd.grad(loss, head.weight)[0]

def error(parts):
    """Error of the summed gradient, as a fraction of the right norm."""
    return ((sum(parts) - whole).norm() / whole.norm()).item()

# %% trap="02.4" role="break"
whole, cut = gradient_of(inputs, labels), labels.split(8)
by_four = error(gradient_of(x, y) / 4
                for x, y in zip(inputs.split(8), cut))

# %% trap="02.4" role="guess" quoted="right"
guess("02.4",
      "How large is the error of the accumulated gradient, as a fraction "
      "of the norm of the whole batch's gradient?",
      choices=["zero, up to rounding",
               "a few percent",
               "more than a quarter"])

# %% trap="02.4" role="look"
print(f"error: {by_four:.0%}; labelled rows in each part: "
      f"{[int((y >= 0).sum()) for y in cut]}")

# %% trap="02.4" role="look"
measured("02.4", 2)

# %% trap="02.4" role="look"
claim("relative gradient error when each loss is divided by 4, with "
      "padding", by_four, above=1 / 4)

# %% [markdown] trap="02.4" role="why"
# Each part's loss is the mean over its *labelled* rows. The first part has only two
# labelled rows, yet, like every part, it supplies a quarter of the gradient. So each
# labelled row of the first part counts as much as four rows of any other part. Dividing
# by the *number* of parts is right only if every part's loss is a mean over the same
# number of rows. Instead, weight each loss by **its share of the denominator**: the
# number of its labelled rows, divided by the number of labelled rows in the whole
# batch.

# %% trap="02.4" role="why"
draw_boxes({"labelled rows": {f"part {k}": n for k, n in enumerate(
                [int((y >= 0).sum()) for y in cut], 1)},
            "divided by 4": {f"part {k}": 6.5 for k in range(1, 5)}},
           unit="rows",
           title="Divided by 4, two rows weigh as much as six and a half",
           alt="Two stacks of four boxes. Counted in labelled rows, the "
               "parts have weights of 2, 8, 8 and 8. Divided by the "
               "number of parts, each part has a weight of 6.5.")

# %% trap="02.4" role="repair"
labelled = int((labels >= 0).sum())
by_labels = error(gradient_of(x, y) * int((y >= 0).sum()) / labelled
                  for x, y in zip(inputs.split(8), cut))
print(f"error: {by_four:.0%} divided by 4, {by_labels:.0%} by share")

# %% trap="02.4" role="repair"
claim("relative gradient error when each loss is weighted by its share of "
      "the labelled rows", by_labels, below=1e-5)

# %% [markdown] trap="02.4" role="more" topics="a smaller last part · BatchNorm · Adam hides a factor"
# Without padding, you can weight each part by its share of the rows. If the batch has 28
# rows, the last part has only 4. If you then divide each loss by the number of parts,
# each row of the last part counts twice:

# %% trap="02.4" role="more"
wanted = inputs @ torch.randn(16, 1)

def undivided(n):
    return 1.0

def accumulate(model, rows, scale, size=8):
    """Sum of the micro-batches' gradients; scale(n) multiplies a loss."""
    model.zero_grad()
    for x, y in zip(inputs[:rows].split(size), wanted[:rows].split(size)):
        (scale(len(x)) * F.mse_loss(model(x), y)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])

# %% trap="02.4" role="more"
def off(model, rows, scale):
    """Relative error of the accumulated gradient."""
    whole = accumulate(model, rows, undivided, size=rows)
    error = accumulate(model, rows, scale) - whole
    return (error.norm() / whole.norm()).item()

model = nn.Linear(16, 1)
normed = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(),
                       nn.Linear(32, 1))
with_norm = off(normed, 32, lambda n: n / 32)

# %% trap="02.4" role="more"
claim("relative gradient error when each loss is divided by 4, for equal "
      "parts without padding", off(model, 32, lambda n: 1 / 4), below=1e-5)
claim("relative gradient error when each loss is divided by 4 and the last "
      "part is smaller", off(model, 28, lambda n: 1 / 4), above=0.05)
claim("relative gradient error when each loss is weighted by its share of "
      "the rows", off(model, 28, lambda n: n / 28), below=1e-5)
claim("with BatchNorm: relative gradient error when each loss is weighted "
      "by its share of rows", with_norm, above=0.15)

# %% [markdown] trap="02.4" role="more"
# In train mode, BatchNorm computes its statistics over 8 rows instead of 32, and no
# scaling of the loss repairs that. What if you forget to divide the losses by 4? Then
# every gradient is four times as large, and at a learning rate of 0.15, SGD diverges.
# Adam divides each gradient by the gradient's own running size, so without weight decay,
# the factor cancels:

# %% trap="02.4" role="more"
def fitted(optimizer, lr, scale, size=8):
    """Final loss and weight after 20 accumulated steps."""
    torch.manual_seed(SEED)      # the same start every time
    model = nn.Linear(16, 1)
    opt = optimizer(model.parameters(), lr=lr)
    for _ in range(20):
        accumulate(model, 32, scale, size)
        opt.step()
    return F.mse_loss(model(inputs), wanted).item(), model.weight.detach()

# %% trap="02.4" role="more"
from torch.optim import SGD, Adam

sgd_big, _ = fitted(SGD, 0.15, undivided, size=32)
sgd_small, _ = fitted(SGD, 0.15, undivided)
_, adam_big = fitted(Adam, 0.05, undivided, size=32)
_, adam_small = fitted(Adam, 0.05, undivided)
once = accumulate(model, 32, undivided, size=32).norm()
ratio = (accumulate(model, 32, undivided).norm() / once).item()

# %% trap="02.4" role="more"
claim("gradient norm without dividing by 4, divided by the whole batch's "
      "gradient norm", ratio, expected=4, within=1e-3)
claim("largest gap between Adam's weights with the whole batch and with "
      "undivided losses", (adam_big - adam_small).abs().max(), below=1e-4)
claim("final loss of SGD with the whole batch", sgd_big, below=2)
claim("final loss of SGD with four parts whose losses are not divided by "
      "4", sgd_small, above=1000)

# %% [markdown] trap="02.4" role="more"
# You can check gradient accumulation with a test of a whole training loop. `same` runs
# two functions, or two commands, that must compute the same thing. `same` compares the
# data, the loss, the gradients and the updates, and raises an error that names the first
# difference:
#
# ```python
# from dlsys.testing import same
#
# x, y = torch.randn(96, 10), torch.randint(3, (96,))
#
# def train(parts):
#     torch.manual_seed(0)
#     model = nn.Linear(10, 3)
#     opt = torch.optim.SGD(model.parameters(), lr=0.1)
#     for rows in torch.arange(96).split(32):
#         for part in rows.chunk(parts):
#             loss = F.cross_entropy(model(x[part]), y[part])
#             loss.backward()
#         opt.step()
#         opt.zero_grad()
#
# same(lambda: train(1), lambda: train(4))
# ```
#
# ```text
# First difference: step 1, loss, loss, by 0.75 of the norm.
# The second's is 4 times the first's.
# ```
#
# With `(loss / parts).backward()`, the two functions agree up to rounding.

# %% [markdown] trap="02.4" role="folklore"
# **Told:** Divide by the number of micro-batches, and you get the gradient of the big
# batch. **Measured:** Dividing gives that gradient for equal parts without padding and
# without BatchNorm. If the last part is half as large as the other parts, the gradient is
# off by more than 5 %. If most of one part is padding, the gradient is off by more than a
# third. With BatchNorm in parts of 8 rows, the gradient is off by more than 15 %.
# **Told:** If you do not divide, training becomes unstable. **Measured:** With SGD at a
# learning rate of 0.15, training does become unstable. With Adam and no weight decay,
# this linear layer ends up with the same weights, up to rounding, whether you divide or
# not.

# %% trap="02.4" role="exercise" points=4 difficulty=3 minutes=15
def accum_step(model: nn.Module, opt: torch.optim.Optimizer,
               batches: list) -> float:
    """Take one optimizer step on the mean cross-entropy over all rows.

    Args:
        model, opt: the model and its optimizer.
        batches: pairs of x (n, F) float32 and y (n,) int64, where n
            can differ from pair to pair.

    Returns:
        The mean loss over all rows before the step, as a float.

    Keep at most one graph alive at a time, so call backward for each pair.
    Gradients that the model already holds must not count.

    Example: a batch of 3 rows counts 3/4, and a batch of 1 row counts 1/4.
    """
    # BEGIN SOLUTION
    rows = sum(len(y) for _, y in batches)
    total = 0.0
    opt.zero_grad()
    for x, y in batches:
        loss = F.cross_entropy(model(x), y) * (len(y) / rows)
        loss.backward()
        total += loss.item()
    opt.step()
    return total
    # END SOLUTION

# %% [markdown] trap="02.4" role="hint"
# 1. Every row has to count the same. So by what factor do you multiply the mean loss of a batch of n rows?
# 2. You need the total number of rows before the first `backward`, because every `backward` already adds its gradients to `.grad`.
# 3. Clear the gradients once before the loop, and take one step after the loop. The scaled losses add up to the mean.

# %% [markdown] trap="02.4" role="keep"
# **Keep:** When you accumulate gradients, weight each part's loss by the part's share
# of the rows, or of the labelled rows if there is padding. If a constant factor is
# wrong, SGD can diverge, whereas Adam without weight decay hides the mistake. **In your
# own code:** At least once, compare the accumulated gradient with the whole batch's
# gradient. **Source:** PyTorch notes, [Automatic Mixed Precision
# examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html), which divide
# by the number of parts; [Kingma & Ba 2015](https://arxiv.org/abs/1412.6980), section
# 2.1. **Seen in the wild:** In [huggingface/transformers
# 24725](https://github.com/huggingface/transformers/issues/24725), the trainer gave a
# sample of 11 tokens the same weight as a sample of 101 tokens.

# %% [markdown] trap="02.5" role="situation" core=true fault="the summed loss keeps every batch's graph in memory" symptom="out of memory during evaluation, memory grows with every batch"
# ## An evaluation that runs out of memory
#
# Training fits into memory. Evaluation uses the same batch size, calls `eval()`, and only
# adds up the batch losses, yet it runs out of memory after a while. "`eval()` only
# affects layers, so nothing but `no_grad` will help," says a ticket. Your net has 20
# hidden layers of 64 units. You evaluate 4 batches of 124 digits, and after each batch,
# you measure the memory that the graphs hold.

# %% [markdown] trap="02.5" role="break"
# `held_bytes()` adds up the memory of all tensors that autograd still holds for a
# backward pass, and counts shared memory only once. The function counts only tensors that
# a graph saves inside a `watched()` block.

# %% trap="02.5" role="break" tags=["plumbing"]
import weakref
from torch.autograd.graph import saved_tensors_hooks

alive = weakref.WeakSet()

class Kept:
    """A tensor that some graph holds for its backward pass."""
    def __init__(self, tensor):
        self.tensor = tensor.detach()     # the same storage
        alive.add(self)

def held_bytes():
    """Bytes that living graphs hold now; each storage counts once."""
    storages = [kept.tensor.untyped_storage() for kept in alive]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())

def watched():
    """A block whose saved tensors `held_bytes` can see."""
    return saved_tensors_hooks(Kept, lambda kept: kept.tensor)

# %% trap="02.5" role="break"
x_train, y_train, x_test, y_test = digits()
layers = [module for _ in range(20)
          for module in (nn.Linear(64, 64), nn.ReLU())]
deep = nn.Sequential(*layers, nn.Linear(64, 10))
parts = list(zip(x_test[:496].split(124), y_test[:496].split(124)))

deep.eval()
total, held = 0.0, []
with watched():                  # only looks, changes nothing
    for x, y in parts:
        total = total + F.cross_entropy(deep(x), y)
        held.append(held_bytes())

# %% trap="02.5" role="guess" quoted="wrong"
guess("02.5",
      "Suppose the loop adds up `.item()` of each loss, still without "
      "`no_grad`. How much memory does each batch then add?",
      choices=["as much as now",
               "about half as much as now",
               "none"])

# %% trap="02.5" role="look"
print(f"kB held after each batch: {[round(h / 1000) for h in held]}")
each = held[1] - held[0]
had_graph = total.requires_grad
del total
print(f"without the sum: {held_bytes()}")
numbers, left = 0.0, []
with watched():
    for x, y in parts:
        numbers += F.cross_entropy(deep(x), y).item()
        left.append(held_bytes())
print(f"with item(), bytes held after each batch: {left}")

# %% trap="02.5" role="look"
measured("02.5", 2)

# %% trap="02.5" role="look"
plot_columns({f"batch {n}": kept / 1000 for n, kept in enumerate(held, 1)},
             xlabel="", ylabel="kB held by graphs", form=".0f",
             title="Each batch adds a graph, and none is freed",
             alt="Four columns: the kB held after each batch. Each column "
                 "is higher than the one before by the same amount.")

# %% trap="02.5" role="look"
claim("number of bytes that batches 2 to 4 add, divided by the number of "
      "bytes that batch 2 adds", (held[3] - held[0]) / each, expected=3)

# %% [markdown] trap="02.5" role="look"
# The first column also counts the weights and the digits, which all graphs share. From
# the second batch on, every batch adds only its own graph. None of the graphs is freed,
# because the sum of the losses holds them all. Once you delete the sum, all the graphs
# are freed:

# %% trap="02.5" role="look"
claim("number of bytes that graphs hold after the sum is deleted",
      held_bytes(), expected=0)

# %% [markdown] trap="02.5" role="look"
# With `.item()`, no graph joins the sum:

# %% trap="02.5" role="look"
claim("largest number of bytes that graphs hold after any batch, with "
      "item()", max(left), expected=0)

# %% [markdown] trap="02.5" role="why"
# `total` is a tensor with a graph, and its graph contains the graph of every batch.
# `eval()` switches the mode of layers such as dropout, but does not turn off graphs.
# But `no_grad()` is not the only way out. If you add up the plain numbers that `.item()`
# returns, autograd builds each graph for nothing and frees it again. Inside `no_grad()`,
# autograd does not build a graph at all.

# %% trap="02.5" role="repair"
def one_pass():
    return F.cross_entropy(deep(x_test[:124]), y_test[:124])

weights = [*deep.parameters(), x_test, y_test]
spent = {"eval() and item()":
         saved_bytes(lambda: one_pass().item(), weights)}
for switch in (torch.no_grad, torch.inference_mode):
    with switch():
        spent[switch.__name__] = saved_bytes(one_pass, weights)
print({name: f"{bytes / 1000:.0f} kB" for name, bytes in spent.items()})

# %% trap="02.5" role="repair"
claim("number of bytes kept for the backward pass under no_grad",
      spent["no_grad"], expected=0)

# %% [markdown] trap="02.5" role="more" topics="item() and inference_mode · the mean of batch means"
# `inference_mode()` builds no graph either. In addition, no later graph can save a tensor
# allocated in the block. You can add such a tensor to a parameter, but a layer that has
# to save it raises an error. If you clone the tensor outside the block, the clone is an
# ordinary tensor.

# %% trap="02.5" role="more"
with torch.inference_mode():
    features = deep[0](x_test[:8])
shift = torch.zeros(64, requires_grad=True)
(features + shift).sum().backward()
try:
    nn.Linear(64, 2)(features)
except RuntimeError as error:
    print(str(error).split(".")[0])
nn.Linear(64, 2)(features.clone()).sum().backward()    # no error

# %% trap="02.5" role="more"
claim("number of bytes that each batch adds (mostly the results of 20 "
      "ReLUs)", each,
      expected=20 * 124 * 64 * 4, within=10_000)
claim("does the sum of the losses have a graph", had_graph, expected=True)
claim("number of bytes in the graph of one batch, which is freed after the "
      "call of item()",
      spent["eval() and item()"], expected=each, within=10_000)
claim("number of bytes kept for the backward pass under inference_mode",
      spent["inference_mode"], expected=0)

# %% trap="02.5" role="more"
claim("gradient of a shift added to 8 rows that were created in "
      "inference_mode",
      shift.grad[0], expected=8)

# %% [markdown] trap="02.5" role="more"
# Many evaluation loops make a second mistake: they take the mean of the batch means. If
# you cut the 497 test digits into batches of 62, the last batch holds a single digit, and
# this digit counts as much as a whole batch of 62.

# %% trap="02.5" role="more"
trained = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
fit(trained, x_train, y_train, steps=300, lr=3e-3)
cut = list(zip(x_test.split(62), y_test.split(62)))
with torch.no_grad():
    means = [F.cross_entropy(trained(x), y).item() for x, y in cut]
    mean = F.cross_entropy(trained(x_test), y_test).item()
sizes = [len(x) for x, _ in cut]
by_rows = sum(m * n for m, n in zip(means, sizes)) / 497
gap = abs(sum(means) / len(means) - mean)
print("rows in each batch:", sizes)

# %% trap="02.5" role="more"
claim("error in the loss if you take the mean of the batch means",
      gap, above=0.003)
claim("error in the loss if you weight each batch mean by its number of "
      "rows", abs(by_rows - mean), below=1e-5)

# %% trap="02.5" role="exercise" points=3 difficulty=3 minutes=12
def evaluate(model: nn.Module, batches: list) -> tuple:
    """Compute mean cross-entropy and accuracy over all rows, in eval mode.

    Args:
        model: any module.
        batches: pairs of x (n, F) float32 and y (n,) int64. The last pair
            can have fewer rows than the others.

    Returns:
        (mean cross-entropy, accuracy), two floats.

    Build no graph at any time. Keep only sums from each batch.
    Afterwards the grad mode and the mode of every module are as before.

    Example: with 3 of 4 rows right, in batches of 3 and 1, the accuracy is
    0.75.
    """
    # BEGIN SOLUTION
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    loss, right, rows = 0.0, 0, 0
    with torch.no_grad():
        for x, y in batches:
            logits = model(x)
            loss += F.cross_entropy(logits, y, reduction="sum").item()
            right += int((logits.argmax(1) == y).sum())
            rows += len(y)
    for module, was in modes:
        module.training = was
    return loss / rows, right / rows
    # END SOLUTION

# %% [markdown] trap="02.5" role="hint"
# 1. You need two switches: one for the mode of the layers, and one for the graph.
# 2. Add up the losses of all rows, and count the right answers. At the end, divide both results by the number of rows.
# 3. Store the `training` flag of every module before you change it, and restore each one afterwards.

# %% [markdown] trap="02.5" role="keep"
# **Keep:** A loss with a graph keeps its batch's activations in memory until `backward()`
# or its deletion frees them. `eval()` switches the mode of layers, `no_grad()` stops the
# recording of graphs, and an evaluation should use both. Average the loss over rows, not
# over batches. **In your own code:** Look for `+= loss` without `.item()`. **Source:**
# PyTorch notes, [Autograd
# mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html), section on locally
# disabling gradient computation.

# %% [markdown] trap="02.6" role="situation" fault="a node passes its gradient on too early" symptom="hand-written autograd gives wrong gradients when a value is used twice"
# ## An engine of your own
#
# You write a small autograd engine of your own. Each value remembers its parents and its
# slope with respect to each parent. The backward pass takes a node out of a queue, passes
# the node's gradient on to its parents, and puts them into the queue. On a chain of
# products and on `tanh`, the gradients are right, so you ship the engine. The first user
# computes `a + tanh(a + b)`, with `a = w * x`.

# %% trap="02.6" role="break"
class Value:
    """A number that knows its parents and its slope for each parent."""
    def __init__(self, data, parents=()):
        self.data, self.parents = data, parents   # pairs (Value, slope)

    def __add__(self, other):
        return Value(self.data + other.data, [(self, 1.0), (other, 1.0)])

    def __mul__(self, other):
        return Value(self.data * other.data,
                     [(self, other.data), (other, self.data)])

    def tanh(self):
        t = math.tanh(self.data)
        return Value(t, [(self, 1 - t * t)])

# %% trap="02.6" role="break"
def hasty(out):
    """Gradients of out; a node passes its gradient on when reached."""
    grad, queue = {out: 1.0}, [out]
    while queue:
        node = queue.pop(0)
        for parent, slope in node.parents:
            if parent not in grad:
                grad[parent] = 0.0
                queue.append(parent)
            grad[parent] += slope * grad[node]
    return grad

# %% trap="02.6" role="break"
def model_of(w, x, b):
    """Return L = a + tanh(a + b), where a = w * x, and also a."""
    a = w * x
    return a + (a + b).tanh(), a

w, x, b = Value(0.5), Value(1.5), Value(-0.25)
out, a = model_of(w, x, b)
grads = hasty(out)

# %% trap="02.6" role="guess"
guess("02.6",
      "Which of the gradients of `a`, `b` and `w` does the engine get "
      "wrong?",
      choices=["only the gradient of `w`",
               "only the gradient of `a`",
               "all three gradients",
               "the gradients of `a` and `b`"])

# %% trap="02.6" role="look"
def slope_of(place, step=1e-6):
    """dL/dw, dL/dx or dL/db for place 0, 1 or 2, by differences."""
    ends = []
    for sign in (1, -1):
        values = [0.5, 1.5, -0.25]
        values[place] += sign * step
        ends.append(model_of(*map(Value, values))[0].data)
    return (ends[0] - ends[1]) / (2 * step)

true_w, true_b = slope_of(0), slope_of(2)
print(f"dL/db: engine {grads[b]:.4f}   differences {true_b:.4f}")
print(f"dL/dw: engine {grads[w]:.4f}   differences {true_w:.4f}")

# %% trap="02.6" role="look"
measured("02.6", 0)

# %% trap="02.6" role="look"
claim("error in the engine's dL/dw", abs(grads[w] - true_w), above=0.5)

# %% [markdown] trap="02.6" role="why"
# `a` is used twice. The engine reached `a` through its first use, the direct one, and at
# once passed on the gradient of `a`. The gradient from the second use arrived later,
# after `w` had already received its gradient. A node may pass on its gradient only after
# **all** its uses have passed their gradients to it. This order, with every child before
# its parents, is a *topological order*. To get one, list every node after its parents,
# and then go through that list backwards.

# %% trap="02.6" role="why"
draw_tree({"w": f"{grads[w]:.2f}, true {true_w:.2f}", "x": "", "b": "",
           "a": "used twice", "a + b": "", "tanh": "", "L": ""},
          [("w", "a"), ("x", "a"), ("a", "a + b"), ("b", "a + b"),
           ("a + b", "tanh"), ("a", "L"), ("tanh", "L")],
          marks=["w"],
          title="The long path's gradient reaches node a too late",
          alt="A graph. Arrows lead from w and x to a, and from a to L, "
              "once directly and once through a + b and tanh. The "
              "gradient of w is marked as wrong.")

# %% trap="02.6" role="repair"
def after_parents(node, order, seen):
    """Append node to order, once, after everything it came from."""
    if node not in seen:
        seen.add(node)
        for parent, _ in node.parents:
            after_parents(parent, order, seen)
        order.append(node)
    return order

# %% trap="02.6" role="repair"
def patient(out):
    """Gradients of out; a node waits for the gradients of all its uses."""
    order = after_parents(out, [], set())
    grad = dict.fromkeys(order, 0.0)
    grad[out] = 1.0
    for node in reversed(order):
        for parent, slope in node.parents:
            grad[parent] += slope * grad[node]
    return grad

# %% trap="02.6" role="repair"
grads = patient(out)
leaves = [torch.tensor(v, dtype=torch.float64, requires_grad=True)
          for v in (0.5, 1.5, -0.25)]
model_of(*leaves)[0].backward()
for node, leaf in zip((w, x, b), leaves):
    print(f"engine {grads[node]:.4f}   torch {leaf.grad:.4f}")

# %% trap="02.6" role="repair"
claim("repaired engine's dL/dw (expected: the value from finite "
      "differences)", grads[w], expected=true_w, within=1e-6)

# %% [markdown] trap="02.6" role="repair"
# In the explorer, step backwards through the same graph. Then switch the order, and
# compare the slope with respect to `w` with the true slope.

# %% role="explore" explorer="scalar_graph"
from dlsys_helpers.explorers.scalar_graph import scalar_graph

scalar_graph

# %% [markdown] trap="02.6" role="more" topics="long chains · paths that double"
# The hasty engine was right about `b` and, in the end, even about `a`. The patient engine
# agrees with PyTorch on all three leaves:

# %% trap="02.6" role="more"
gap = max(abs(grads[n] - leaf.grad.item())
          for n, leaf in zip((w, x, b), leaves))
hurried = hasty(out)
claim("hasty engine's dL/db (expected: the true dL/db)", hurried[b],
      expected=true_b, within=1e-6)
claim("x times the hasty engine's dL/da (expected: the true dL/dw)",
      hurried[a] * x.data, expected=true_w, within=1e-6)
claim("largest gap between the gradients of the patient engine and of "
      "PyTorch", gap,
      below=1e-12)

# %% [markdown] trap="02.6" role="more"
# But the patient engine fails on a long chain:

# %% trap="02.6" role="more"
chain = Value(1.0)
for _ in range(5000):
    chain = chain + b
try:
    patient(chain)
    deep_enough = True
except RecursionError:
    deep_enough = False

# %% trap="02.6" role="more"
claim("does the patient engine get through a chain of 5000 nodes",
      deep_enough, expected=False)

# %% [markdown] trap="02.6" role="more"
# The engine's helper function calls itself for each node along the chain, and Python
# limits the number of nested calls. PyTorch's engine does not recurse. Instead, the
# engine first **counts** how often each node is used, and a node is ready once it has
# received one gradient for each use. Your engine will also count uses. You could also
# follow every *path* instead of visiting every node once. Following every path gives
# the right result, but takes too long. In the ladder below, each value that is used
# twice doubles the number of paths:

# %% trap="02.6" role="more"
def paths(node):
    """Paths from a node down to its leaves."""
    return sum(paths(parent) for parent, _ in node.parents) or 1

def ladder(rungs):
    """v + v, repeated: each rung adds a node and doubles the paths."""
    v = Value(1.0)
    for _ in range(rungs):
        v = v + v
    return v

found = {rungs: paths(ladder(rungs)) for rungs in (1, 5, 10)}
print(*(f"{rungs:2} rungs: {count:5,} paths"
        for rungs, count in found.items()), sep="\n")

# %% trap="02.6" role="more"
claim("number of paths through a ladder of 10 rungs",
      found[10], expected=1024)
claim("number of visits in a ladder of 10 rungs if each node is visited "
      "once", len(after_parents(ladder(10), [], set())), expected=11)

# %% trap="02.6" role="exercise" points=5 difficulty=4 minutes=25
def gradients(out, inputs: list) -> list:
    """Compute d out / d node for each node in inputs.

    Args:
        out: a node. A node has one attribute, parents, which is a list of
            pairs (parent, slope). The slope is d node / d parent, as a
            float. The same parent can occur twice in the list.
        inputs: a list of nodes.

    Returns:
        A list of floats, with 0.0 where out does not depend on the input.

    The graph can be a chain of thousands of nodes, so do not recurse. The
    graph can have millions of paths, so let each node pass its gradient on
    only once.

    Example: out.parents = [(a, 2.0), (a, 3.0)] gives [5.0] for [a].
    """
    # BEGIN SOLUTION
    uses, todo = {out: 0}, [out]
    while todo:
        for parent, _ in todo.pop().parents:
            if parent not in uses:
                todo.append(parent)
            uses[parent] = uses.get(parent, 0) + 1
    grad, ready = dict.fromkeys(uses, 0.0) | {out: 1.0}, [out]
    while ready:
        node = ready.pop()
        for parent, slope in node.parents:
            grad[parent] += slope * grad[node]
            uses[parent] -= 1
            if uses[parent] == 0:
                ready.append(parent)
    return [grad.get(node, 0.0) for node in inputs]
    # END SOLUTION

# %% [markdown] trap="02.6" role="hint"
# 1. Walk through the graph twice. In the first walk, only count how many times each node appears among the parents of other nodes.
# 2. In the second walk, a node is ready when the number of gradients that have arrived at it equals its count. `out` is ready from the start, with a gradient of 1.
# 3. Instead of recursion, use a list as a stack. If a parent appears twice in a list of parents, count it twice.

# %% [markdown] trap="02.6" role="keep"
# **Keep:** In a backward pass, a node may pass its gradient on only once, after all of
# its uses have added their gradients. **In your own code:** Test an engine, or a custom
# backward pass, on a value that is used twice, and compare the gradient with finite
# differences in float64 (`torch.autograd.gradcheck`). **Source:** [Baydin et al. 2018,
# "Automatic Differentiation in Machine Learning: a
# Survey"](https://arxiv.org/abs/1502.05767), section 3.2.

# %% [markdown] role="concept"
# ## Further
#
# No trap needs this section. It shows what happens to a retained graph's memory, measures
# autograd's switches in longer examples, follows a gradient through 30 layers with and
# without skip connections, and computes the same gradient in JAX.
#
# ### A retained graph does not grow
#
# Some people say that every backward pass on a retained graph doubles the graph's
# memory. You can test this with `held_bytes` from trap 02.5:

# %% role="concept"
with watched():
    out = net(torch.randn(64, 256)).sum()
held = {"fresh": held_bytes()}
for _ in range(3):
    out.backward(retain_graph=True)
held["retained three times"] = held_bytes()
out.backward()
held["not retained"] = held_bytes()
print(held)

# %% [markdown] role="concept"
# Three backward passes on a retained graph do not change how much memory the graph holds:

# %% role="concept"
claim("number of bytes held after three backward passes that retain the "
      "graph", held["retained three times"], expected=held["fresh"])
claim("number of bytes held after a backward pass that does not retain the "
      "graph", held["not retained"], expected=0)

# %% [markdown] role="concept"
# ### The switches at work
#
# The first example shows what `detach` is for. Rounding has a slope of zero almost
# everywhere, so nothing can learn through it. Write $x + (\mathrm{round}(x) - x)$
# instead, and detach the bracket. Then the value is rounded, but the slope is 1, the same
# as for $x$ itself. This trick is called a *straight-through estimator*.

# %% role="concept"
x = torch.tensor([0.4, 1.7], requires_grad=True)
rounded = x + (x.round() - x).detach()
through, = torch.autograd.grad(rounded.sum(), x)
blocked, = torch.autograd.grad(x.round().sum(), x)

# %% role="concept"
claim("result of rounding 1.7 with the bracket detached", rounded[1],
      expected=2)
claim("sum of the slopes at 0.4 and 1.7 with rounding alone",
      blocked.abs().sum(), expected=0)
claim("sum of the slopes at 0.4 and 1.7 with the bracket detached",
      through.sum(), expected=2)

# %% [markdown] role="concept"
# In deep Q-learning, a network predicts how good each action is. The network's target
# comes from a second, frozen network, and no gradient may pass through the target. The
# target is the reward plus the discounted best value of the next state (at the end of an
# episode, the reward alone). Only **one** action gets this target: the action that was
# taken. When you read code for Q-learning, look for three mistakes: a missing reward, the
# same target for all actions, and a needless `.detach()` of what `no_grad` computed.

# %% role="concept"
online, frozen = nn.Linear(8, 4), nn.Linear(8, 4)   # state to 4 actions
state, after = torch.randn(32, 8), torch.randn(32, 8)
reward = torch.randn(32)
action = torch.randint(4, (32, 1))
with torch.no_grad():
    target = reward + 0.99 * frozen(after).max(dim=1).values

q = online(state)                                   # (32, 4)
taken = F.mse_loss(q.gather(1, action).squeeze(1), target)
spread = F.mse_loss(q, target[:, None].expand_as(q))
for name, loss in (("taken", taken), ("spread", spread)):
    slope, = torch.autograd.grad(loss, q, retain_graph=True)
    print(f"{name}: {int((slope != 0).sum())} of 128 values are corrected")
slope, = torch.autograd.grad(taken, q)

# %% role="concept"
claim("does the target require gradients", target.requires_grad,
      expected=False)
claim("number of action values that the loss corrects, out of 128",
      (slope != 0).sum(), expected=32)

# %% [markdown] role="concept"
# The cell above also shows what `retain_graph` is for: two losses over one graph, each
# with its own gradient. For derivatives of derivatives, `retain_graph` is *not* enough,
# because they need `create_graph`. And if you sum a gradient and differentiate the sum,
# you get the row sums of the Hessian, the matrix of second derivatives. The row sums
# equal the diagonal only if the rest of each row adds up to zero, for instance because
# each term of the loss depends on only one input.

# %% role="concept"
x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
y = x.sum() ** 2
plain_slope, = torch.autograd.grad(y, x, retain_graph=True)

slope, = torch.autograd.grad(y, x, create_graph=True)
second, = torch.autograd.grad(slope.sum(), x)
slopes = torch.func.grad(lambda x: x.sum() ** 2)
hessian = torch.func.jacrev(slopes)(x.detach())             # (3, 3)
print(f"gradient of the summed slope: {second.tolist()}")
print(f"diagonal of the Hessian:      {hessian.diagonal().tolist()}")

# %% role="concept"
claim("with retain_graph, does the slope have a graph of its own",
      plain_slope.requires_grad, expected=False)
claim("largest gap between the gradient of the summed slopes and the "
      "Hessian's row sums", (second - hessian.sum(1)).abs().max(),
      expected=0)

# %% [markdown] role="concept"
# Here the row sums are three times as large as the diagonal:

# %% role="concept"
claim("first row sum of the Hessian", second[0], expected=6)
claim("first entry on the Hessian's diagonal", hessian[0, 0], expected=2)

# %% [markdown] role="concept"
# For long sequences, `retain_graph` does not help. Truncated backpropagation through
# time *cuts* the graph of the hidden state after each chunk, with `detach`. If you retain
# the graph instead, the backward pass of every chunk goes back to the beginning:

# %% role="concept"
def graph_nodes(tensor):
    """Number of nodes that a backward from this tensor visits."""
    seen, todo = set(), [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [parent for parent, _ in node.next_functions]
    return len(seen)

# %% role="concept"
def chunk_sizes(cut, cell=nn.RNNCell(4, 8)):
    """Graph nodes of each of 4 chunks of 10 steps."""
    h, sizes = torch.zeros(1, 8), []
    for _ in range(4):
        for _ in range(10):
            h = cell(torch.randn(1, 4), h)
        h.sum().backward(retain_graph=not cut)
        sizes.append(graph_nodes(h))
        h = h.detach() if cut else h
    return sizes

# %% role="concept"
cut, retained = chunk_sizes(cut=True), chunk_sizes(cut=False)
print(f"graph nodes of each chunk: {cut} detached, {retained} retained")

# %% role="concept"
claim("with detach: number of graph nodes for the fourth chunk (expected: "
      "as for the first)", cut[-1], expected=cut[0])
claim("with retain_graph: number of graph nodes for chunk 4 divided by the "
      "number for chunk 1", retained[-1] / retained[0], above=3)

# %% [markdown] role="concept"
# ### Thirty layers, with and without skips
#
# Stack 30 tanh layers, with and without a skip connection around each layer. Without
# skips, try PyTorch's default weights and also Xavier init. How much of the gradient
# reaches the input?

# %% role="concept"
def share_at_input(skip, init=None, depth=30, width=32):
    """Gradient norm at the input, divided by the norm at the output."""
    x = torch.randn(64, width, requires_grad=True)
    h = x
    for _ in range(depth):
        linear = nn.Linear(width, width)
        if init:
            init(linear.weight)
        branch = torch.tanh(linear(h))
        h = h + branch if skip else branch
    slope, = torch.autograd.grad(h, x, torch.ones_like(h))
    return (slope.norm() / h.numel() ** 0.5).item()

# %% role="concept"
plain, skipped = share_at_input(skip=False), share_at_input(skip=True)
xavier = share_at_input(skip=False, init=nn.init.xavier_normal_)
print(f"reaches the input: {plain:.0e} plain, {xavier:.2f} plain with "
      f"Xavier, {skipped:.0f} with skips")

# %% role="concept"
claim("with default weights: gradient norm at the input divided by norm at "
      "the output", plain, below=1e-5)
claim("with Xavier init: gradient norm at the input divided by norm at the "
      "output", xavier, above=1e-3)
claim("with default weights and skips: gradient norm at the input divided "
      "by norm at the output", skipped, above=1)

# %% [markdown] role="concept"
# With the default weights, 30 plain layers lose the gradient, and with Xavier init,
# they keep part of the gradient. With skip connections, the gradient reaches the input
# even with the default weights. But a skip connection guarantees nothing. If a branch
# computes minus its input, the gradient through the branch cancels the gradient through
# the skip connection:

# %% role="concept"
x = torch.randn(5, requires_grad=True)
slope, = torch.autograd.grad((x + (-1.0 * x)).sum(), x)
print(slope)

# %% role="concept"
claim("largest gradient that arrives at the input if the branch computes "
      "minus x", slope.abs().max(), expected=0)

# %% [markdown] role="concept"
# ### The same gradient in JAX
#
# PyTorch records a graph while your code runs. JAX transforms the *function*. `grad`
# returns a new function that computes the gradient, `vmap` returns a function that works
# on a batch, and `jit` returns a compiled function. JAX has no `.grad`, so nothing adds
# up and nothing needs clearing. You pass the parameters in, and the gradients come out in
# the same structure.

# %% role="concept"
import jax
from jax import numpy as jnp

jax.config.update("jax_platforms", "cpu")

def mlp_loss(params, x, y, tanh):
    """Mean squared error; x (N, 5) or (5,), y (N,) or ()."""
    hidden = tanh(x @ params["w1"] + params["b1"])
    return ((hidden @ params["w2"] - y) ** 2).mean()

# %% role="concept"
params = {"w1": torch.randn(5, 8), "b1": torch.zeros(8),
          "w2": torch.randn(8)}
x, y = torch.randn(20, 5), torch.randn(20)
for value in params.values():
    value.requires_grad_()
mlp_loss(params, x, y, torch.tanh).backward()

as_jax = {name: jnp.asarray(value.detach().numpy())
          for name, value in params.items()}
x_jax, y_jax = jnp.asarray(x.numpy()), jnp.asarray(y.numpy())

# %% role="concept"
def jax_loss(params, x, y):
    traces.append(x.shape)       # a Python side effect
    return mlp_loss(params, x, y, jnp.tanh)

def largest_gap(a, b):
    return max(abs(a[name] - b[name]).max().item() for name in a)

traces = []
slopes = jax.grad(jax_loss)(as_jax, x_jax, y_jax)
in_torch = {name: value.grad.numpy() for name, value in params.items()}

# %% role="concept"
rows = jax.vmap(jax.grad(jax_loss), in_axes=(None, 0, 0))
each = rows(as_jax, x_jax, y_jax)           # a gradient per example
print(f"one gradient per example: {each['w1'].shape}")
mean = {name: value.mean(axis=0) for name, value in each.items()}

# %% role="concept"
claim("largest gap between the gradients from JAX and from PyTorch",
      largest_gap(slopes, in_torch), below=1e-4)
claim("largest gap between the mean of the examples' gradients and the "
      "batch gradient", largest_gap(mean, slopes), below=1e-4)

# %% [markdown] role="concept"
# `jit` runs your Python code when the combination of the inputs' shapes, dtypes and
# structure is new. In that run, placeholders take the place of values, and `jit` compiles
# the operations of the run. A side effect, such as the `append` above, happens during
# that run and not in later calls. Remember this when you print or count something inside
# a compiled function.

# %% role="concept"
compiled = jax.jit(jax.grad(jax_loss))
traces.clear()
for _ in range(3):
    fast = compiled(as_jax, x_jax, y_jax)
once = len(traces)
compiled(as_jax, x_jax[:7], y_jax[:7])
compiled(as_jax, x_jax[:7].astype(jnp.bfloat16), y_jax[:7])
print(f"Python ran for shapes {traces}")

# %% role="concept"
claim("number of times the Python code runs in three equal calls of the "
      "compiled function", once, expected=1)
claim("number of times the Python code has run after a new shape and a new "
      "dtype", len(traces), expected=3)
claim("largest gap between the compiled and the plain gradients",
      largest_gap(fast, slopes), below=1e-4)

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. You train on the full batch, and the loss swings with a period of about twenty steps and never settles. What do you check first?**
#
# - [ ] Whether the learning rate is too high :: At too high a learning rate, the loss would usually grow, or jump up and down at every step. A slow swing usually means that the optimizer remembers earlier gradients.
# - [ ] Whether the data are shuffled :: A full batch holds the same rows in any order.
# - [x] Whether the gradients are cleared before each backward pass :: Plain SGD on a running sum of gradients is SGD with a momentum of 1, a pendulum without friction.

# %% [markdown] role="quiz"
# **2. `losses` holds one loss for each of 32 rows. What does
# `losses.backward(torch.ones(32))` compute the gradient of?**
#
# - [ ] The mean loss :: For the mean, pass a vector whose entries are all 1/32.
# - [x] The sum of the losses :: Each row counts in full, so the gradient is 32 times the gradient of the mean.
# - [ ] Each row, as 32 gradients :: One backward pass computes one vector-Jacobian product. For a gradient per row, use `vmap` of `grad`.

# %% [markdown] role="quiz"
# **3. Which operation keeps no tensor for the backward pass?**
#
# - [ ] `a * b` :: The slopes of a product are `b` and `a`, so the product keeps a tensor for each input that needs a gradient.
# - [x] `a + b` :: The slopes of a sum are 1, whatever the inputs are.
# - [ ] `tanh(a)` :: `tanh` keeps its result, because the slope is one minus the square of the result.

# %% [markdown] role="quiz"
# **4. You need the second derivative of a loss. What do you pass to the first call to `autograd.grad`?**
#
# - [x] `create_graph=True` :: Autograd then records the backward pass, so its result has a graph of its own.
# - [ ] `retain_graph=True` :: `retain_graph` keeps the forward graph. The gradient that you get is a plain tensor without a graph.
# - [ ] Nothing, because gradients always have a graph :: By default, `autograd.grad` returns tensors that do not require gradients.

# %% [markdown] role="quiz"
# **5. You train with Adam, the optimizer of `fit`, and forget to divide the loss of four equal micro-batches by four. What happens to the weights?**
#
# - [ ] They blow up, as with a learning rate four times too large :: The weights can blow up with SGD. Adam divides each gradient by the gradient's own size.
# - [ ] They learn at a quarter of the speed :: The factor cancels, whether it is too large or too small.
# - [x] They end close to where they would have ended with the division :: So the mistake often hides until the code switches to SGD, or adds clipping (stage 3) or Adam's own weight decay (stage 4), which depend on the gradient's size.

# %% [markdown] role="quiz"
# **6. An evaluation calls `model.eval()` and adds up `loss.item()`. What happens to the
# memory that the evaluation uses?**
#
# - [ ] It grows with every batch :: Only the number that `.item()` returns is kept, so each graph is freed.
# - [x] During each batch it needlessly holds a graph :: `no_grad()` would save the memory of that graph as well.
# - [ ] It is as small as possible, because of `eval()` :: `eval()` switches the mode of dropout and of BatchNorm. Autograd still builds the graphs.

# %% [markdown] role="gpu"
# ## On a GPU: what the backward pass costs
#
# A training step is a forward pass, a backward pass and an update. Before you speed up a
# training step, find out what fraction of its time each part takes.
#
# **Before you run anything:** In a stack of equal linear layers, how long does the
# backward pass take, as a multiple of the forward pass? And if you double the batch, what
# happens to the memory of the forward pass, with a graph and without one?
#
# With *meta* tensors, which have a shape but no data, you can count FLOPs (floating-point
# operations) and bytes and estimate kernel launches on any machine. A linear layer needs
# one matrix product in the forward pass and two in the backward pass, one for its weight
# and one for its input. The first layer does not need the product for its input, because
# the data need no gradient.
#
# To find out how long a step takes, you need a GPU or a prediction. From a datasheet, you
# can compute the minimum time that the FLOPs and the bytes need. A small stack mostly
# waits for its kernels to be launched, so its FLOPs say little about its time. AdamW's
# update has no matrix product, but it reads four tensors and writes three.

# %% role="gpu"
from dlsys_helpers.gpu import half_dtype

def stack_on(where, width, rows, layers=6):
    """Equal linear layers with ReLU between, 16 bit, and rows of data."""
    options = {"device": where, "dtype": half_dtype(where)}
    modules = []
    for _ in range(layers):
        modules += [nn.Linear(width, width, **options), nn.ReLU()]
    x = torch.randn(rows, width, **options)
    return nn.Sequential(*modules[:-1]), x

def passes(net, x):
    """Two calls: a forward pass, and a forward plus backward pass."""
    def both():
        out = net(x)
        weights = list(net.parameters())
        return torch.autograd.grad(out, weights, torch.ones_like(out))
    return lambda: net(x), both

# %% role="gpu"
net, x = stack_on("meta", 4096, 8192)
forward, both = passes(net, x)
work = flops(forward)
ratio = (flops(both) - work) / work
print(f"forward {work / 1e12:.2f} TFLOP, {cost(forward).orders} launches; "
      f"backward {ratio:.2f} times the FLOPs")

peak = {}
for rows in (4096, 8192):
    for graph in (True, False):
        with torch.set_grad_enabled(graph):
            peak[rows, graph] = cost(lambda: net(x[:rows])).peak / 1e6
        print(f"{rows} rows, {'a' if graph else 'no'} graph: "
              f"{peak[rows, graph]:.1f} MB at the peak of a forward pass")

# %% role="gpu"
claim("FLOPs of backward divided by FLOPs of forward (2, but 1 for the "
      "first of 6 layers)", ratio, expected=2 - 1 / 6, within=1e-9)
claim("peak memory of a forward pass in MB (a 16-bit result for each of 6 "
      "layers)", peak[8192, True], expected=6 * 8192 * 4096 * 2 / 1e6,
      within=0.1)
claim("peak memory without a graph divided by peak memory with a graph (2 "
      "results, not 6)", peak[8192, False] / peak[8192, True],
      expected=1 / 3, within=0.001)

# %% role="gpu"
# All four: weights, gradients and the two means of AdamW.
many = [2**k for k in range(6, 15)]
weights = 6 * (4096**2 + 4096) * 2
plot_lines(many, {"graph": [5 * rows * 4096 * 2 / 1e6 for rows in many],
                  "weights": [weights / 1e6] * len(many),
                  "all four": [4 * weights / 1e6] * len(many)},
           title="The graph grows with the batch, the rest does not",
           xlabel="rows in the batch", ylabel="MB", logx=True, logy=True,
           alt="Three lines. The graph's line rises with the batch and "
               "crosses the flat line of the weights near 5000 rows. A "
               "second, higher flat line is for all four: weights, "
               "gradients and the two means of AdamW.")

# %% role="gpu"
@gpu_result("02/backward", uses=[stack_on, passes],
            columns=["width", "rows", "forward_us", "forward_low",
                     "forward_high", "both_us", "both_low", "both_high",
                     "peak_mb", "peak_no_graph_mb"])
def shares():
    """Times with quartiles, and MB beyond weights and data."""
    for width, rows in ((256, 64), (1024, 1024), (4096, 8192)):
        forward, both = passes(*stack_on("cuda", width, rows))
        times = seconds_in_turns([forward, both], 10, "cuda", calls=10)
        row = {"width": width, "rows": rows}
        for name, t in zip(("forward", "both"), times):
            row |= {f"{name}_us": t.median * 1e6,
                    f"{name}_low": t.low * 1e6,
                    f"{name}_high": t.high * 1e6}
        row["peak_mb"] = peak_bytes(forward) / 1e6
        with torch.no_grad():
            row["peak_no_graph_mb"] = peak_bytes(forward) / 1e6
        yield row

# %% role="gpu"
@gpu_result("02/step_trace", uses=[stack_on],
            columns=["phase", "operation", "count", "us"])
def trace():
    """Kernel time of torch's operations in 10 steps, phase by phase."""
    net, x = stack_on("cuda", 4096, 8192)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    losses = []

    def backward():
        opt.zero_grad()               # else each gradient costs an addition
        losses.pop().backward()
    phases = {"forward": lambda: losses.append(net(x).square().mean()),
              "backward": backward, "update": opt.step}
    for call in phases.values():      # warm up
        call()
    for phase, call in phases.items():
        for name, (count, us) in operations(call, 10, "cuda").items():
            yield {"phase": phase, "operation": name, "count": count,
                   "us": us}

# %% role="gpu"
sheet = datasheet(shares.device_name)
update = 7 * sum(p.nbytes for p in net.parameters())
answers = gpu_table(
    sheet,
    shares.asks("width 4096: time of backward divided by time of forward",
                ratio, lambda: shares.value("both_us", width=4096)
                / shares.value("forward_us", width=4096) - 1,
                "FLOPs: close to 2 (Epoch AI)", above=1.5, below=2.5),
    shares.asks("time of forward at width 1024 divided by time of forward "
                "at width 256", "256, or 1 if launches dominate",
                lambda: shares.value("forward_us", width=1024)
                / shares.value("forward_us", width=256), below=20),
    shares.asks("peak memory of a forward pass with a graph, in MB",
                peak[8192, True], lambda: shares.value(
                    "peak_mb", width=4096), expected=403, within=40),
    trace.asks("time of the update divided by time of backward",
               sheet.least_us(0, update) / sheet.least_us(ratio * work, 0),
               lambda: trace.total("us", phase="update")
               / trace.total("us", phase="backward"), below=0.5))
answers

# %% [markdown] role="gpu"
# In the trace below the table, look at the matrix products first. On the H100, the matrix
# products take 87 % of the forward pass and 83 % of the backward pass. ReLU, its backward
# pass, and the sums for the biases take the rest.
#
# **On the H100 used for the recorded run**, the large stack behaves as the counts
# predict. This stack needs the predicted amount of memory, and its backward pass takes
# about as long as two forward passes. In the two small stacks, launching the kernels
# takes most of the time. The wider of these two needs 256 times as many FLOPs as the
# narrower, but its forward pass takes only one eighth more time. In both small stacks,
# one backward pass takes longer than four forward passes.
#
# From the bytes that the update moves, we predicted the update's time as a fraction of
# the backward pass's time. The measured fraction is nearly three times as large, and
# the trace shows why. The prediction assumes one pass over the weights, which reads
# four tensors and writes three. `foreach`, PyTorch's default here, makes eight passes
# over all weights and reads or writes twenty tensors. (One more call of `_foreach_add_`
# counts the steps on the CPU.) The update takes a fifth of the step's kernel time.
# Stage 4 measures the fused update, which makes a single pass.
#
# **Keep:** A backward pass for all weights needs about twice the arithmetic of a forward
# pass, and the graph's memory grows with the batch. If you run out of memory, halve the
# batch and accumulate gradients, or keep fewer results and recompute the rest
# (checkpointing, stage 9). If a large model is slow, look at the matrix products first.
# **Source:** PyTorch documentation, [Autograd
# mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html) and
# [torch.profiler](https://docs.pytorch.org/docs/stable/profiler.html); Epoch AI, [What's
# the backward-forward FLOP ratio for neural
# networks?](https://epochai.org/blog/backward-forward-FLOP-ratio)

# %% [markdown] role="summary"
# ## What you take with you
#
# - The backward pass applies the chain rule from the loss to the inputs. Each node
#   multiplies the arriving gradient by its own slope. If a value is used twice, its two
#   gradients are added.
# - A linear layer needs two matrix products, for its weights and its input, and a sum for
#   its bias. ReLU's slope is a mask.
# - A training step has five parts: predict, compare, clear, backward, step. `backward`
#   adds to `.grad`. If you never clear the gradients, plain SGD behaves as if its
#   momentum were 1.
# - `backward(v)` weights the rows by `v`. A vector of ones gives you the gradient of the
#   sum.
# - The graph keeps the tensors that the backward pass will need. The memory of the graph
#   grows with the batch, is freed by `backward()`, and is never allocated under
#   `no_grad()`.
# - `detach().clone()` returns a copy that is safe to edit. `.data` shares memory with its
#   tensor and hides your edits from autograd. `retain_graph` is for two backward passes
#   over one graph, and `create_graph` is for second derivatives.
# - When you cut a batch into parts, weight each part by its share of the rows that the
#   loss averages over. The same weighting applies in training and in evaluation.
# - A node passes its gradient on once, after all of its uses have added their gradients.
#
# **Next:** Stage 3 is about the loss, where the gradient starts, and about what a loss
# teaches.
