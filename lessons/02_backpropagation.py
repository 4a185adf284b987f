# %% [markdown] role="hook" traps=6
# # 2. Backpropagation and autograd
#
# A training loop, an evaluation, a batch cut in four, a plot of a layer's outputs:
# code that you write in a minute. Each can go wrong in the backward pass, mostly
# without an error message.
#
# The backward pass keeps books: what is added up, what is kept, what is shared, and
# in which order it is read. This stage computes a gradient by hand and with
# autograd, breaks the books in six ways that look right, and ends with an engine of
# your own.

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
    begin, check, claim, cost, datasheet, digits, draw_boxes, draw_tree,
    fit, flops, gpu_result, gpu_table, guess, measured, operations,
    peak_bytes, plot_bars, plot_columns, plot_lines, saved_bytes,
    seconds_in_turns,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## A gradient by hand
#
# Take one weight, one input, one bias and a squared error: $z = wx + b$,
# $e = z - y$, $L = e^2$. The *forward pass* computes the values from left to
# right. The *backward pass* starts with $dL/dL = 1$ at the right. Every node
# multiplies what arrives by its own slope and hands it to the left. That is the
# chain rule, applied node by node.

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
claim("loss", loss, expected=12.25)
claim("dL/dw by autograd, against by hand", leaves[0].grad, expected=d_w)
claim("dL/db by autograd, against by hand", leaves[1].grad, expected=d_b)

# %% role="concept"
draw_tree({"w": f"{w}, grad {d_w:g}", "x": f"{x}",
           "b": f"{b}, grad {d_b:g}", "w x + b": f"{z}",
           "e": f"{z - y}", "L": f"{loss.item():g}"},
          [("w", "w x + b"), ("x", "w x + b"), ("b", "w x + b"),
           ("w x + b", "e"), ("e", "L")],
          title="Values go down, gradients come back up",
          alt="A graph: w, x and b lead to w x + b, that to e, that to L. "
              "The two that ask for a gradient carry it.")

# %% [markdown] role="concept"
# Two things to notice. `x` asked for no gradient, so autograd computes none; you
# got `d_x` by hand because you wrote that line. And the slopes need numbers
# from the forward pass: `d_w` needs `x`, `d_e` needs `e`. Those are what a graph
# has to keep.
#
# While the forward pass runs, autograd links one node per operation, each to the
# nodes it came from. `backward` walks the links.

# %% role="concept"
def walk(node, depth=0):
    """Print the graph behind a result, from the loss to the leaves."""
    print("   " * depth + node.name())
    for parent, _ in node.next_functions:
        if parent is not None:
            walk(parent, depth + 1)

walk(loss.grad_fn)

# %% [markdown] role="concept"
# `AccumulateGrad` stands where a leaf takes what arrives into its `.grad`.
#
# ## What is saved for the backward pass
#
# Each operation keeps what its slope needs. A product whose two factors ask for a
# gradient keeps both, `tanh` its own result, a sum nothing at all. `saved_bytes` asks autograd itself. Your
# vectors have 1,000 numbers of 4 bytes.

# %% role="concept"
def kept_by(operation, count=1):
    """Bytes kept for backward by an operation on vectors of 1,000."""
    inputs = [torch.randn(1000, requires_grad=True) for _ in range(count)]
    return saved_bytes(lambda: operation(*inputs))

kept = {"a + b": kept_by(torch.add, 2), "2 * a": kept_by(lambda a: 2 * a),
        "sum": kept_by(torch.sum), "tanh": kept_by(torch.tanh),
        "relu": kept_by(torch.relu), "gelu": kept_by(F.gelu),
        "a * b": kept_by(torch.mul, 2)}
print(*(f"{name:6} {bytes:5,}" for name, bytes in kept.items()), sep="\n")

# %% role="concept"
claim("bytes kept by a sum of two", kept["a + b"], expected=0)
claim("by tanh", kept["tanh"], expected=4000)
claim("by a product of two", kept["a * b"], expected=8000)

# %% [markdown] trap="02.1" role="situation" core=true fault="zero_grad is missing: gradients add up" symptom="loss goes up and down and never settles, zero_grad missing"
# ## A training loop from memory
#
# You write the training loop from memory and leave out one line. "Without it each step
# is only too long, as at a higher rate," says a colleague who looks over your shoulder.
# The data are noiseless and linear, so the loss can reach zero. You try it in two ways:
# each step sees all rows, or each step draws 8 rows of its own.

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
    """Losses on all rows of a linear fit that starts at zero, by SGD."""
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
cleared, piled = descend(400, clear=True), descend(400, clear=False)
pushed = descend(400, clear=False, batch=8)

# %% trap="02.1" role="guess" quoted="wrong"
guess("02.1",
      "With `clear=False`: what does the loss do over 400 steps?",
      choices=["all rows: it swings; batches of 8: it swings",
               "all rows: it grows; batches of 8: it grows",
               "all rows: it falls; batches of 8: it swings",
               "all rows: it swings; batches of 8: it grows"])

# %% trap="02.1" role="look"
measured("02.1", 3)

# %% trap="02.1" role="look"
plot_lines(range(60), {"zero_grad": cleared[:60], "without": piled[:60]},
           title="Without zero_grad the loss swings like a pendulum",
           xlabel="step", ylabel="mean squared error",
           alt="One curve falls to zero; the other falls, rises again and "
               "repeats, without getting smaller.")

# %% trap="02.1" role="look"
claim("highest loss over the first, not cleared",
      max(pushed) / pushed[0], above=20)

# %% [markdown] trap="02.1" role="look"
# On all rows it neither settles nor diverges. In batches of 8 it exceeds 20 times its
# first value. Four equal batches without a step between them show why: each backward
# adds its gradient to the ones before.

# %% trap="02.1" role="look"
probe = nn.Linear(3, 1)
norms = []
for _ in range(4):                        # equal batches, no step
    F.mse_loss(probe(rows).squeeze(1), truth).backward()
    norms.append(probe.weight.grad.norm().item())
print("norms:", [f"{norm / norms[0]:.0f}x" for norm in norms])

# %% trap="02.1" role="look"
claim("norm of the fourth gradient over that of the first",
      norms[3] / norms[0], expected=4, within=1e-4)

# %% [markdown] trap="02.1" role="why"
# `backward` *adds* to `.grad`. Without clearing, the step is the sum of all gradients so
# far. Without weight decay that is a method with a name: SGD with momentum 1. It swings
# like a pendulum without friction, and random batches push the pendulum higher and
# higher. Clear anywhere between a step and the next backward.

# %% trap="02.1" role="repair"
pendulum = descend(40, clear=True, momentum=1.0)
gap = max(abs(a - b) for a, b in zip(pendulum, piled))
print(f"largest gap to momentum 1 in 40 steps: {gap:.0e}")
print(f"cleared, step 400: {cleared[-1]:.0e}")

# %% trap="02.1" role="repair"
claim("loss after 400 steps, cleared", cleared[-1], below=1e-3)

# %% [markdown] trap="02.1" role="more" topics="momentum 1 · None is no zero · batches with zero_grad"
# Not cleared is momentum 1, to rounding:

# %% trap="02.1" role="more"
import inspect

arguments = inspect.signature(torch.optim.Optimizer.zero_grad).parameters
print(arguments["set_to_none"])

# %% trap="02.1" role="more"
claim("largest gap to momentum 1 in 40 steps", gap, below=1e-3)
claim("highest loss of the last hundred over the first, not cleared",
      max(piled[-100:]) / piled[0], above=0.2)
claim("highest loss of all over the first", max(piled) / piled[0], below=2)
claim("is set_to_none on by default",
      arguments["set_to_none"].default, expected=True)

# %% [markdown] trap="02.1" role="more"
# None is more than a saving. To an optimizer with a memory, a gradient of zeros is
# a gradient: it moves on.

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
claim("the weight after it, None: Adam leaves it alone", none,
      expected=0.9, within=1e-3)
claim("zeros: it moves on by its own momentum", zeros, expected=0.833,
      within=1e-3)

# %% [markdown] trap="02.1" role="more"
# In the same batches of 8 rows, with the line in its place, the loss falls to zero:

# %% trap="02.1" role="more"
calm = descend(400, clear=True, batch=8)

# %% trap="02.1" role="more"
claim("loss after 400 steps in batches of 8, cleared", calm[-1],
      below=1e-3)

# %% [markdown] trap="02.1" role="folklore"
# **Told:** without `zero_grad` the loss falls faster, then diverges. **Measured:** in
# random batches of 8 it does grow, to over 20 times its first value in 400 steps. On
# the noiseless full batch at a rate of 0.05 it swings and stays below 2 times that
# value. **Told:** pass `set_to_none=True` to save memory. **Measured:** it is the
# default. What differs is another thing: an idle weight stays at 0.9 with None and
# moves to 0.833 with zeros.

# %% trap="02.1" role="exercise" points=3 difficulty=2 minutes=10
def train_step(model: nn.Module, opt: torch.optim.Optimizer,
               x: torch.Tensor, y: torch.Tensor) -> float:
    """The loss before the update, as a float; makes one optimizer step.

    x: (N, F) float32, y: (N, 1) float32. The loss is the mean squared
    error over all rows. Whatever the gradients held before must not count.
    Some parameters may be frozen, some unused.

    Example: for a model that outputs 0 and y = [[2.], [0.]] it returns 2.0.
    """
    # BEGIN SOLUTION
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()
    # END SOLUTION

# %% [markdown] trap="02.1" role="hint"
# 1. Four things happen in one step, and their order matters: clear, loss, backward, step.
# 2. Clearing between `backward` and `step` throws away what you just computed. Clearing only at the end trusts the caller.
# 3. `opt.zero_grad()` clears every parameter the optimizer knows, biases included. `loss.item()` gives a number without a graph.

# %% [markdown] trap="02.1" role="keep"
# **Keep:** `.grad` is a sum until you clear it; a forgotten `zero_grad` is a momentum
# of `1`. **In your own code:** if a loss swings with a steady period, print the gradient
# norm of two equal batches; and log norms *before* you clear, or you log zeros.
# **Source:** PyTorch documentation,
# [Optimizer.zero_grad](https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html).

# %% [markdown] trap="02.2" role="situation" fault="backward on a vector of ones: a sum, not the mean" symptom="RuntimeError: grad can be implicitly created only for scalar outputs"
# ## Backward on a vector
#
# You want to weight each example, so you ask for one loss per row with
# `reduction="none"`. `backward` refuses: it wants a scalar. The first answer that you
# find passes a vector of ones. The error goes away.

# %% trap="02.2" role="break"
x_train, y_train, x_test, y_test = digits()      # (1300, 64), (497, 64)
reader = nn.Linear(64, 10)
losses = F.cross_entropy(reader(x_train[:64]), y_train[:64],
                         reduction="none")       # (64,)
losses.backward(torch.ones_like(losses))         # no error any more
with_ones = reader.weight.grad.clone()

# %% trap="02.2" role="guess"
guess("02.2",
      "How long is `with_ones`, beside the gradient of the mean of these "
      "losses?",
      choices=["as long", "64 times as long",
               "8 times as long, the root of 64"])

# %% trap="02.2" role="look"
try:
    F.cross_entropy(reader(x_train[:64]), y_train[:64],
                    reduction="none").backward()
except RuntimeError as error:
    print("without ones:", error)
mean = F.cross_entropy(reader(x_train[:64]), y_train[:64])
of_mean, = torch.autograd.grad(mean, reader.weight)
ratio = (with_ones.norm() / of_mean.norm()).item()
print(f"gradient with ones / gradient of the mean: {ratio:.1f}")

# %% trap="02.2" role="look"
measured("02.2", 1)

# %% trap="02.2" role="look"
claim("norm with ones over norm of the mean", ratio, expected=64,
      within=0.01)

# %% [markdown] trap="02.2" role="look"
# Is that only another scale? Train with it, at the rate that suits the mean.

# %% trap="02.2" role="look"
def worst_loss(vector):
    """Largest mean loss in 20 steps after the first; SGD at 0.5."""
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
plot_bars({"the mean": calm, "ones": wild},
          xlabel="worst mean loss in 20 steps", log=True,
          title="With ones, a rate of 0.5 is one of 32",
          alt="Two bars on a log scale: the worst loss on the way stays "
              "near two with the mean and exceeds twenty with ones.")

# %% trap="02.2" role="look"
claim("worst loss with ones at the same rate", wild, above=20)

# %% [markdown] trap="02.2" role="why"
# `backward(v)` multiplies the gradient of each row's loss by that row's entry of $v$, and
# adds them up. Ones let every row count in full. That is the *sum*, and a learning rate
# of 0.5 becomes one of 32. The mean is a vector of 1/64. A weighted mean divides the
# weights by **their own** sum, so doubling all weights changes nothing.

# %% trap="02.2" role="repair"
counts = torch.where(y_train[:64] == 8, 5.0, 1.0)  # an eight counts 5 times

def losses_by_row():
    """Cross-entropy of the first 64 digits, one per row: (64,)."""
    return F.cross_entropy(reader(x_train[:64]), y_train[:64],
                           reduction="none")

def gradient(loss, vector=None):
    return torch.autograd.grad(loss, reader.weight, vector)[0]

as_vector = gradient(losses_by_row(), counts / counts.sum())
as_scalar = gradient((counts * losses_by_row()).sum() / counts.sum())

# %% trap="02.2" role="repair"
claim("largest gap between the vector and the weighted mean",
      (as_vector - as_scalar).abs().max(), below=1e-6)

# %% [markdown] trap="02.2" role="more" topics="the rate of 0.5 as one of 32 · torch's class weights"
# The two numbers behind the bars:

# %% trap="02.2" role="more"
claim("worst loss with the mean", calm, below=2.6)
claim("the rate of 0.5, as if for the mean", 0.5 * ratio, expected=32,
      within=0.01)

# %% [markdown] trap="02.2" role="more"
# Torch's own class weights give the same gradient:

# %% trap="02.2" role="more"
classes = torch.ones(10)
classes[8] = 5.0
built_in = F.cross_entropy(reader(x_train[:64]), y_train[:64], classes)
claim("largest gap to torch with class weights",
      (as_scalar - gradient(built_in)).abs().max(), below=1e-6)

# %% [markdown] trap="02.2" role="folklore"
# **Told:** reduce with `(weights * losses).sum()`, or pass ones; it is equivalent.
# **Measured:** both are sums. The gradient is 64 times that of the mean here, and
# changes with every batch size, so the learning rate means something else.

# %% trap="02.2" role="exercise" points=2 difficulty=2 minutes=10
def weighted_loss(losses: torch.Tensor,
                  weights: torch.Tensor) -> torch.Tensor:
    """The weighted mean of per-row losses, a scalar that keeps its graph.

    losses: (N,) float32, with a graph. weights: (N,) float32, at least 0,
    some of them 0, not all. If every weight is doubled, nothing changes,
    be they tiny or huge. The result is float32.

    Example: losses [1., 3.] with weights [1., 3.] give 2.5.
    """
    # BEGIN SOLUTION
    return (weights * losses).sum() / weights.sum()
    # END SOLUTION

# %% [markdown] trap="02.2" role="hint"
# 1. Which vector of shares says how much each row counts? Its entries add up to one.
# 2. The mean of a product is not the product of the means.
# 3. Stay in tensors from `losses` to the result: `.item()`, `float()` and `detach()` cut the graph.

# %% [markdown] trap="02.2" role="keep"
# **Keep:** `backward(v)` weighs the rows by `v`; ones mean the sum. **In your own
# code:** after a change of the reduction, compare the gradient norm with the one
# before. **Source:** PyTorch documentation,
# [torch.autograd.backward](https://docs.pytorch.org/docs/stable/generated/torch.autograd.backward.html)
# and [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html).

# %% [markdown] trap="02.3" role="situation" core=true fault="an edit of .data changes what backward reads" symptom="gradients are zero or wrong after editing tensor.data, no error"
# ## Small outputs set to zero for a plot
#
# For a plot you want the small outputs of a layer set to zero. "`y.data` is a copy
# without a graph, you can edit it freely," says a colleague. You do. The plot is fine, the
# loss was computed before the edit, and `backward` raises nothing.

# %% trap="02.3" role="break"
x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
y = torch.sigmoid(x)
loss = y.sum()

shown = y.data                   # has no graph
shown[shown < 0.99] = 0          # for the plot

loss.backward()

# %% trap="02.3" role="guess" quoted="wrong"
guess("02.3", "Which gradients do the three inputs get: with `y.data`, as "
      "above, and with `y.detach()` in its place?",
      choices=["`data`: zeros; `detach()`: an error in `backward`",
               "`data`: the true slopes; `detach()`: zeros",
               "`data`: zeros; `detach()`: zeros",
               "`data`: the true slopes; `detach()`: the true slopes"])

# %% trap="02.3" role="look"
s = 1 / (1 + torch.exp(-torch.tensor([1.0, 2.0, 3.0])))
edited = y.detach().clone()
truth = s * (1 - s)              # the derivative of the sigmoid
print(f"got    {x.grad.tolist()}")
print(f"truth  {[round(t, 3) for t in truth.tolist()]}")

# %% trap="02.3" role="look"
claim("largest gradient", x.grad.abs().max(), expected=0)

# %% trap="02.3" role="look"
plot_columns({f"{side}, x = {v:g}": g for v, t, got in zip(
    (1, 2, 3), truth.tolist(), x.grad.tolist())
    for side, g in (("true", t), ("got", got))},
    xlabel="", ylabel="gradient", form=".3f",
    marks=[f"got, x = {v}" for v in (1, 2, 3)],
    title="Three slopes are lost without an error",
    alt="Columns in pairs for x of 1, 2 and 3: the true slope and the "
        "gradient that was got, which is zero each time.")

# %% [markdown] trap="02.3" role="why"
# `.data` shares its memory with `y`. Sigmoid had kept its *result* for the backward
# pass, and you overwrote it. Autograd counts a tensor's edits to notice such things, and
# `.data` bypasses the count. `detach()` shares the memory too, but also the count: an
# edit through torch makes `backward` raise, as *More* shows. For a copy that you may edit, add
# `clone()`.

# %% trap="02.3" role="why"
measured("02.3", 0)

# %% trap="02.3" role="why"
draw_tree({"x": "1, 2, 3", "y": "kept for backward", "shown": "y.data",
           "loss": "sum"},
          [("x", "y"), ("y", "loss"), ("y", "shown")],
          cuts=[("y", "shown")], marks=["y"], cut_name="no graph",
          title="The graph is cut, the memory is not",
          alt="x leads to y, y to the loss and to shown. The edge to shown "
              "is cut, but y itself is marked: it is what the edit hit.")

# %% trap="02.3" role="repair"
x.grad = None
y = torch.sigmoid(x)
shown = y.detach().clone()
shown[shown < 0.99] = 0
y.sum().backward()
print(f"gradient {[round(g, 3) for g in x.grad.tolist()]}")

# %% trap="02.3" role="repair"
claim("largest error of the gradient after detach and clone",
      (x.grad - truth).abs().max(), below=1e-6)

# %% [markdown] trap="02.3" role="more" topics="where the same edit does no harm · what detach notices"
# An operation that keeps nothing is not harmed: `2 * x` has the right gradient after the
# same edit.

# %% trap="02.3" role="more"
x.grad = None
doubled = 2 * x
doubled.data.zero_()
doubled.sum().backward()
print(x.grad)

# %% trap="02.3" role="more"
claim("gradient after the same edit of 2x", x.grad[0], expected=2)
claim("the true one at 1", truth[0], expected=0.197, within=1e-3)
claim("largest number in y itself after the edit for the plot",
      edited.abs().max(), expected=0)

# %% [markdown] trap="02.3" role="more"
# An edit of the detached tensor through torch is counted, one through numpy is not:

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
claim("is an edit of the detached tensor noticed", noticed, expected=True)
claim("largest gradient after an edit through numpy: no error",
      x.grad.abs().max(), expected=0)

# %% trap="02.3" role="exercise" points=2 difficulty=2 minutes=8
def stop_grad(t: torch.Tensor) -> torch.Tensor:
    """A copy of t that carries no gradient and may be edited freely.

    t: float32 or float16 of any shape, with or without a graph. Neither an
    edit of the result nor this call may change t, its graph or the
    gradients that flow through it. Shape and dtype stay.

    Example: with c = stop_grad(y), c.zero_() leaves y as it is.
    """
    # BEGIN SOLUTION
    return t.detach().clone()
    # END SOLUTION

# %% [markdown] trap="02.3" role="hint"
# 1. You need two things: out of the graph, and memory of your own. No single call gives both.
# 2. Methods that end in an underscore change the tensor they are called on, and it is not yours.
# 3. One of the two is `clone()`. Which one leaves the graph?

# %% [markdown] trap="02.3" role="keep"
# **Keep:** `.data` shares memory and hides the edit; `detach()` shares memory and
# reports edits made through torch; `detach().clone()` is yours. **In your own code:**
# replace `.data`; to set a weight by hand, use `no_grad()`. **Source:** PyTorch notes,
# [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html),
# in-place correctness checks.

# %% [markdown] trap="02.4" role="situation" core=true fault="accumulated gradients weigh unequal parts alike" symptom="gradient accumulation: loss explodes or differs from the large batch"
# ## Four small batches for one big one
#
# Six rows of your batch of 32 are padding: their label is `-100`, which `cross_entropy`
# leaves out. The batch does not fit, so you call `backward` on 4 micro-batches of 8 and
# step once. "Divide each loss by 4, or your learning rate is in effect 4 times too
# large," says a colleague. You do.

# %% trap="02.4" role="break"
inputs = torch.randn(32, 16)
head, labels = nn.Linear(16, 5), torch.randint(5, (32,))
labels[:6] = -100                # padding

def gradient_of(x, y):
    """The gradient of the mean loss by the weights of head."""
    loss = F.cross_entropy(head(x), y)
    return torch.autograd.grad(loss, head.weight)[0]

def error(parts):
    """How far the sum is from the whole batch's gradient, relative."""
    return ((sum(parts) - whole).norm() / whole.norm()).item()

# %% trap="02.4" role="break"
whole, cut = gradient_of(inputs, labels), labels.split(8)
by_four = error(gradient_of(x, y) / 4
                for x, y in zip(inputs.split(8), cut))

# %% trap="02.4" role="guess" quoted="right"
guess("02.4",
      "How far is the accumulated gradient from `whole`, the gradient of "
      "the whole batch, in percent of the norm of `whole`?", unit="%")

# %% trap="02.4" role="look"
print(f"off by {by_four:.0%}; labelled rows by part: "
      f"{[int((y >= 0).sum()) for y in cut]}")

# %% trap="02.4" role="look"
measured("02.4", 100 * by_four, right=(38, 112))

# %% trap="02.4" role="look"
claim("relative error with padding, by share of the rows", by_four,
      above=0.1)

# %% [markdown] trap="02.4" role="why"
# Each part's loss is the mean over its *labelled* rows. In the first part two rows are
# left, and a quarter of the gradient is theirs: each counts as much as four others.
# Dividing by the *number* of parts is right only when all of them average over the same
# number of rows. Weigh each loss by its **share of what the loss divides by**.

# %% trap="02.4" role="why"
draw_boxes({"labelled rows": {f"part {k}": n for k, n in enumerate(
                [int((y >= 0).sum()) for y in cut], 1)},
            "divided by 4": {f"part {k}": 6.5 for k in range(1, 5)}},
           unit="rows' worth of gradient",
           title="Divided by 4, two rows weigh like six and a half",
           alt="Two stacks. By labelled rows the parts are 2, 8, 8 and 8. "
               "Divided by the number of parts each weighs 6.5.")

# %% trap="02.4" role="repair"
labelled = int((labels >= 0).sum())
by_labels = error(gradient_of(x, y) * int((y >= 0).sum()) / labelled
                  for x, y in zip(inputs.split(8), cut))
print(f"off by {by_four:.0%} divided by 4, {by_labels:.0%} by share")

# %% trap="02.4" role="repair"
claim("by share of the labelled rows", by_labels, below=1e-5)

# %% [markdown] trap="02.4" role="more" topics="a smaller last part · BatchNorm · Adam hides a factor"
# Without padding the share of the rows is enough. With 28 rows the last part has 4, and
# divided by 4 each of its rows counts twice:

# %% trap="02.4" role="more"
wanted = inputs @ torch.randn(16, 1)

def undivided(n):
    return 1.0

def accumulate(model, rows, scale, size=8):
    """Gradients of micro-batches pile up in model; scale(n) each loss."""
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
claim("relative error divided by 4, equal parts",
      off(model, 32, lambda n: 1 / 4), below=1e-5)
claim("divided by 4, a smaller last part",
      off(model, 28, lambda n: 1 / 4), above=0.05)
claim("by share of the rows", off(model, 28, lambda n: n / 28), below=1e-5)
claim("relative error with BatchNorm, by share of the rows", with_norm,
      above=0.15)

# %% [markdown] trap="02.4" role="more"
# BatchNorm in train mode sees 8 rows instead of 32: a scale does not mend that. And
# what if you forget to divide? Each gradient is four times too long. SGD leaves for
# infinity. Adam divides each gradient by its own running size, so the factor cancels:

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
claim("norm of the undivided gradient over that of the whole", ratio,
      expected=4, within=1e-3)
claim("largest gap between Adam's weights, without weight decay",
      (adam_big - adam_small).abs().max(), below=1e-4)
claim("final loss of SGD, whole batch", sgd_big, below=2)
claim("final loss of SGD, four undivided parts", sgd_small, above=1000)

# %% [markdown] trap="02.4" role="folklore"
# **Told:** divide by the number of micro-batches and you have the big batch.
# **Measured:** yes for equal parts without padding and BatchNorm. With a last part half
# as large as the others the gradient is off by more than 5 %, with padding for most of
# one part by more than 10 %, with BatchNorm in parts of 8 rows by more than 15 %.
# **Told:** without dividing, training becomes unstable. **Measured:** with SGD at 0.15,
# yes; with Adam without weight decay the weights agree.

# %% trap="02.4" role="exercise" points=4 difficulty=3 minutes=15
def accum_step(model: nn.Module, opt: torch.optim.Optimizer,
               batches: list) -> float:
    """One optimizer step on the mean cross-entropy over all rows.

    batches: pairs x (n, F) float32, y (n,) int64; n differs from pair to
    pair. Only one graph may live at a time: call backward for each pair.
    Gradients from before must not count. Returns the mean loss over all
    rows before the step, as a float.

    Example: parts of 3 rows and 1 row count 3/4 and 1/4.
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
# 1. Each row counts the same. How much does the mean over a part of n rows count then?
# 2. You need the number of all rows before the first `backward`; afterwards the gradients are already added.
# 3. Clear once before the loop, step once after it; the scaled losses add up to the mean.

# %% [markdown] trap="02.4" role="keep"
# **Keep:** weigh each part by its share of what the loss divides by: the rows, or the
# labelled ones. A wrong constant factor is loud with SGD and silent with Adam without
# weight decay. **In your own code:** compare the accumulated gradient with that of
# one whole batch, once. **Source:** PyTorch notes, [Automatic Mixed Precision
# examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html), which divide
# by the number of parts; [Kingma & Ba 2015](https://arxiv.org/abs/1412.6980), section
# 2.1. **Seen in the wild:** [huggingface/transformers
# 24725](https://github.com/huggingface/transformers/issues/24725): samples of 11 and
# 101 tokens counted alike.

# %% [markdown] trap="02.5" role="situation" core=true fault="the summed loss keeps every batch's graph in memory" symptom="out of memory during evaluation, memory grows with every batch"
# ## An evaluation that runs out of memory
#
# Training fits in memory. Evaluation, with the same batch size, fails after a while. It
# does no more than add up the losses of 4 batches of 124 digits. "You forgot `no_grad`,
# `eval()` is about layers," says a colleague.

# %% [markdown] trap="02.5" role="break"
# `held_bytes()` adds up the memory of all tensors that autograd still holds for a
# backward pass. Tensors that share their memory count once. It sees tensors that a graph
# saved inside of `watched()`.

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

# %% trap="02.5" role="guess" quoted="right"
guess("02.5", "By how many kB does `held` grow from one batch to the next?",
      unit="kB")

# %% trap="02.5" role="look"
print(f"kB held after each batch: {[round(h / 1000) for h in held]}")
each = held[1] - held[0]
had_graph = total.requires_grad
del total
print(f"without the sum: {held_bytes()}")

# %% trap="02.5" role="look"
measured("02.5", each / 1000, right=(550, 750))

# %% trap="02.5" role="look"
plot_columns({f"batch {n}": kept / 1000 for n, kept in enumerate(held, 1)},
             xlabel="", ylabel="kB held by graphs", form=".0f",
             title="Each batch adds a graph, and none goes",
             alt="Four columns that grow by the same step with each batch.")

# %% trap="02.5" role="look"
claim("growth from batch 1 to 4, over that from 1 to 2",
      (held[3] - held[0]) / each, expected=3)

# %% [markdown] trap="02.5" role="look"
# Each batch adds a graph, and none goes. What holds them is the sum of the losses:
# delete it, and all of them go.

# %% trap="02.5" role="look"
claim("bytes held with the sum gone", held_bytes(), expected=0)

# %% [markdown] trap="02.5" role="why"
# `total` is a tensor with a graph, so it keeps every batch's graph alive. `eval()`
# switches the mode of layers; it has nothing to do with graphs. `.item()` lets each
# graph go, after it was built for nothing. `no_grad()` builds none.

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
claim("bytes kept by no_grad", spent["no_grad"], expected=0)

# %% [markdown] trap="02.5" role="more" topics="item() and inference_mode · the mean of batch means"
# `inference_mode()` builds no graph either, and no graph can save its tensors later: you
# may add one to a parameter, and a layer that has to save it raises. A clone made outside
# is an ordinary tensor.

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
claim("bytes a batch, mostly the results of 20 ReLUs", each,
      expected=20 * 124 * 64 * 4, within=10_000)
claim("does the sum have a graph", had_graph, expected=True)
claim("bytes of the one graph that item() lets go",
      spent["eval() and item()"], expected=each, within=10_000)
claim("bytes kept by inference_mode", spent["inference_mode"], expected=0)

# %% trap="02.5" role="more"
claim("gradient of a sum with 8 such rows", shift.grad[0], expected=8)

# %% [markdown] trap="02.5" role="more"
# One more mistake hides in many evaluation loops: the mean of batch means. Cut the
# 497 test digits into batches of 62, and the last batch is a single digit that
# counts as much as 62 others.

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
claim("error of the mean of means", gap, above=0.003)
claim("error of the mean weighted by rows", abs(by_rows - mean),
      below=1e-5)

# %% trap="02.5" role="exercise" points=3 difficulty=3 minutes=12
def evaluate(model: nn.Module, batches: list) -> tuple:
    """(mean cross-entropy, accuracy) over all rows, as two floats.

    batches: pairs x (n, F) float32, y (n,) int64; the last may be smaller.
    Measured in eval mode; afterwards grad mode and the mode of each module
    are as before. No graph is built at any time, and nothing of a batch is
    kept but sums.

    Example: 3 of 4 rows right, in batches of 3 and 1, is accuracy 0.75.
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
# 1. Two switches, each with its own job: one for the layers, one for the graph.
# 2. Add up sums over rows and divide once, at the end, by the number of rows.
# 3. As in 01.1: store the `training` of every module before you change it, and put each back.

# %% [markdown] trap="02.5" role="keep"
# **Keep:** a tensor with a graph keeps its batch alive; `eval()` is about layers,
# `no_grad()` about graphs, and the mean is taken over rows. **In your own code:**
# look for `+= loss` without `.item()`. **Source:** PyTorch notes,
# [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html),
# locally disabling gradient computation.

# %% [markdown] trap="02.6" role="situation" fault="a node reports before all its uses have" symptom="hand-written autograd gives wrong gradients when a value is used twice"
# ## An engine of your own
#
# You write a reverse-mode engine: numbers that remember what they came from. Its backward
# is a queue. Take a node, hand its gradient to its parents, put them in the queue. It is
# right for a chain of products and for `tanh`. You ship it.

# %% trap="02.6" role="break"
class Value:
    """A number that knows its parents and its slope to each of them."""
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
    """Gradient of out by node: each reports as soon as it is reached."""
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
    """L = a + tanh(a + b) with a = w * x, and a itself."""
    a = w * x
    return a + (a + b).tanh(), a

w, x, b = Value(0.5), Value(1.5), Value(-0.25)
out, a = model_of(w, x, b)
grads = hasty(out)

# %% trap="02.6" role="guess"
guess("02.6",
      "Which of the gradients of `a`, `b` and `w` are wrong at the end?",
      choices=["only that of `w`", "only that of `a`", "all three",
               "those of `a` and `b`"])

# %% trap="02.6" role="look"
def slope_of(place, step=1e-6):
    """dL by one of (w, x, b), by central differences."""
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
claim("error of dL/dw", abs(grads[w] - true_w), above=0.5)

# %% [markdown] trap="02.6" role="why"
# `a` was reached over its first use and reported at once. Its second share came in
# later, when `w` had already been served. A node may report only when **all** its uses
# have reported: children before parents, a *topological order*. One way is to list every
# node after its parents, and to walk that list backwards.

# %% trap="02.6" role="why"
draw_tree({"w": f"{grads[w]:.2f}, true {true_w:.2f}", "x": "", "b": "",
           "a": "used twice", "a + b": "", "tanh": "", "L": ""},
          [("w", "a"), ("x", "a"), ("a", "a + b"), ("b", "a + b"),
           ("a + b", "tanh"), ("a", "L"), ("tanh", "L")],
          marks=["w"],
          title="One use of a is one step from L, the other three",
          alt="A graph: w and x lead to a; a leads to L directly, and "
              "through a + b and tanh. The gradient of w is wrong.")

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
    """Gradient of out by node: each reports when its uses have."""
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
claim("dL/dw, against finite differences", grads[w], expected=true_w,
      within=1e-6)

# %% [markdown] trap="02.6" role="repair"
# Step through the same graph, backwards. Then switch the order, and compare the slope
# of `w` with the true one.

# %% role="explore" explorer="scalar_graph"
from dlsys_helpers.explorers.scalar_graph import scalar_graph

scalar_graph

# %% [markdown] trap="02.6" role="more" topics="long chains · paths that double"
# The hasty engine was right for `b` and even for `a`; the patient one agrees with torch:

# %% trap="02.6" role="more"
gap = max(abs(grads[n] - leaf.grad.item())
          for n, leaf in zip((w, x, b), leaves))
hurried = hasty(out)
claim("dL/db by the engine", hurried[b], expected=true_b, within=1e-6)
claim("x times the engine's dL/da: what dL/dw should be",
      hurried[a] * x.data, expected=true_w, within=1e-6)
claim("largest gap of all three to torch", gap, below=1e-12)

# %% [markdown] trap="02.6" role="more"
# It gives up on a long chain:

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
claim("does it survive a chain of 5000 nodes", deep_enough, expected=False)

# %% [markdown] trap="02.6" role="more"
# A function that calls itself once per node gives up on a long chain. Torch's
# engine does not recurse. It first **counts** how often each node is used, and a
# node is ready when as many shares have arrived. Yours will do the same. Walking
# every *path* instead is right as well, and too slow: in the ladder below each value
# that is used twice doubles the number of paths.

# %% trap="02.6" role="more"
def paths(node):
    """Paths from a node down to its leaves."""
    return sum(paths(parent) for parent, _ in node.parents) or 1

def ladder(rungs):
    """v + v, rung after rung: one node more, twice the paths."""
    v = Value(1.0)
    for _ in range(rungs):
        v = v + v
    return v

found = {rungs: paths(ladder(rungs)) for rungs in (1, 5, 10)}
print(*(f"{rungs:2} rungs: {count:5,} paths"
        for rungs, count in found.items()), sep="\n")

# %% trap="02.6" role="more"
claim("paths through 10 rungs", found[10], expected=1024)
claim("nodes that report when each reports once",
      len(after_parents(ladder(10), [], set())), expected=11)

# %% trap="02.6" role="exercise" points=5 difficulty=4 minutes=25
def gradients(out, inputs: list) -> list:
    """[d out / d node for each node in inputs], as floats.

    A node has one attribute, node.parents: a list of pairs (node, slope),
    the slope being d(this node) / d(parent), a float. A parent may stand
    there twice. An input that out does not depend on gets 0.0.
    The graph may be a chain of thousands of nodes: do not recurse. It may
    have millions of paths: each node reports once.

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
# 1. Two walks: the first only counts how often each node stands among the parents of others.
# 2. In the second walk a node is ready when all the shares you counted have arrived; `out` is ready from the start, with gradient 1.
# 3. Use a list as a stack instead of recursion, and let a pair that stands twice count twice.

# %% [markdown] trap="02.6" role="keep"
# **Keep:** a node reports once, when all its uses have reported. **In your own
# code:** test an engine, or a custom backward, on a value that is used twice, and
# against finite differences in float64 (`torch.autograd.gradcheck`). **Source:**
# [Baydin et al. 2018, "Automatic Differentiation in Machine Learning: a
# Survey"](https://arxiv.org/abs/1502.05767), section 3.2.

# %% [markdown] role="concept"
# ## Further
#
# No trap needs what follows: how a node does without its Jacobian, what a graph weighs,
# five switches side by side, two paths that add up, and the same gradient in JAX.

# %% [markdown] role="concept"
# ### A node need not build its Jacobian
#
# For a layer that maps $n$ numbers to $m$, the slopes form a matrix, the Jacobian
# $J$ of shape $(m, n)$. Backward does not build it. A node receives one number
# per *output*, a vector $v$, and returns $vJ$, one number per *input*: a
# *vector-Jacobian product*. For a linear layer that is a single product with the
# weight.

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
claim("largest gap between backward and v @ J", gap, below=1e-5)
claim("bytes of the Jacobian of one layer",
      4 * numbers ** 2, above=1e9)

# %% [markdown] role="concept"
# A loss is one number, so $v$ starts with one entry, and **one** backward pass gives
# the slopes of all parameters, be they a billion. The other direction, forward mode,
# needs one pass per *input* number. That is why networks are trained backwards.
#
# ### How much a graph weighs
#
# The weights exist anyway, so in fp32 and without norms the graph adds what it keeps
# per row. Two things are often told otherwise: that its bytes grow with the product
# of parameters and activations, and that each backward on a retained graph doubles
# them. Count, with `held_bytes` from trap 02.5.

# %% role="concept"
net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(),
                    nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
kept = {rows: saved_bytes(lambda: net(torch.randn(rows, 256)),
                          net.parameters()) for rows in (64, 128, 256)}
print({rows: f"{bytes:,}" for rows, bytes in kept.items()})

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
# The bytes grow with the rows.

# %% role="concept"
claim("bytes for 64 rows: the input and two ReLU results", kept[64],
      expected=3 * 64 * 256 * 4)
claim("bytes for twice the rows, in fp32 without norms", kept[128],
      expected=2 * kept[64])

# %% [markdown] role="concept"
# And three backwards on a retained graph leave them as they were.

# %% role="concept"
claim("bytes held after three retained backwards",
      held["retained three times"], expected=held["fresh"])
claim("bytes held after one that does not retain", held["not retained"],
      expected=0)

# %% [markdown] role="concept"
# ### Five switches, and what each is for
#
# | switch | what it does | what it is for |
# |---|---|---|
# | `t.detach()` | cuts one tensor off; same memory | one part of a computation must not learn |
# | `no_grad()` | records no graph in the block | evaluation; updating weights by hand |
# | `inference_mode()` | the same, and no later graph can save its tensors | serving |
# | `retain_graph=True` | keeps saved tensors after a backward | two backwards over **one** graph |
# | `create_graph=True` | records the backward pass as well | derivatives of derivatives |
#
# First `detach`. Rounding has slope zero almost everywhere, so nothing learns through
# it. Write $x + (\mathrm{round}(x) - x)$ and detach the bracket: the value is
# rounded, and the slope is that of $x$.

# %% role="concept"
x = torch.tensor([0.4, 1.7], requires_grad=True)
rounded = x + (x.round() - x).detach()
through, = torch.autograd.grad(rounded.sum(), x)
blocked, = torch.autograd.grad(x.round().sum(), x)

# %% role="concept"
claim("1.7 rounded", rounded[1], expected=2)
claim("slope that round alone passes", blocked.abs().sum(), expected=0)
claim("slope of both numbers, with the bracket detached", through.sum(),
      expected=2)

# %% [markdown] role="concept"
# In Q-learning with a second, frozen network the *target* does not learn. It is the reward plus the discounted
# best value of the next state, and it belongs to **one** action: the one taken.
# Three mistakes to look for in a sketch: no reward, a target spread over all actions,
# and a `.detach()` inside `no_grad`, which has nothing to do there.

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
claim("values of 128 that the loss corrects", (slope != 0).sum(),
      expected=32)

# %% [markdown] role="concept"
# That cell also shows what `retain_graph` is for: two losses over one graph, each
# with its own gradient. It is *not* for derivatives of derivatives. Those need
# `create_graph`. And the gradient of a summed gradient is the row sums of the
# Hessian. They are its diagonal where the rest of each row adds up to zero, as it does
# when each output depends on its own input alone.

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
claim("does the slope have a graph with retain_graph",
      plain_slope.requires_grad, expected=False)
claim("largest gap between it and the row sums",
      (second - hessian.sum(1)).abs().max(), expected=0)

# %% [markdown] role="concept"
# Here the two differ by a factor of three:

# %% role="concept"
claim("the first row sum", second[0], expected=6)
claim("the first of the diagonal", hessian[0, 0], expected=2)

# %% [markdown] role="concept"
# For long sequences `retain_graph` is no remedy. Truncated backpropagation through time
# *cuts* the hidden state after each chunk, with `detach`. If you retain instead,
# every chunk walks back to the beginning.

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
    """Graph nodes behind each of 4 chunks of 10 steps."""
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
print(f"nodes behind each chunk: {cut} detached, {retained} retained")

# %% role="concept"
claim("nodes behind the fourth chunk, detached", cut[-1], expected=cut[0])
claim("nodes behind the fourth over the first, retained",
      retained[-1] / retained[0], above=3)

# %% [markdown] role="concept"
# ### Two paths add up
#
# A residual block computes $h = x + F(x)$. `x` is used twice, so its gradient is a
# sum of two: what comes back through $F$, and what comes back unchanged. Stack 30
# tanh layers, with and without the second path, with torch's default weights and
# with Xavier's, and ask how much of the gradient reaches the input.

# %% role="concept"
def share_at_input(skip, init=None, depth=30, width=32):
    """Gradient norm at the input over that at the output."""
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
claim("share that reaches the input, default weights", plain, below=1e-5)
claim("the same with Xavier", xavier, above=1e-3)
claim("the same with default weights and skips", skipped, above=1)

# %% [markdown] role="concept"
# So 30 plain layers lose the gradient with the default weights and keep part of it
# with Xavier's. Skips keep it with the default weights, but a skip guarantees
# nothing: a branch that points the other way cancels it.

# %% role="concept"
x = torch.randn(5, requires_grad=True)
slope, = torch.autograd.grad((x + (-1.0 * x)).sum(), x)
print(slope)

# %% role="concept"
claim("what arrives where the branch is minus x", slope.abs().max(),
      expected=0)

# %% [markdown] role="concept"
# ### The same gradient in JAX
#
# Torch records a graph while your code runs. JAX transforms the *function*:
# `grad` returns a new function that computes the gradient, `vmap` one that works
# on a batch, `jit` one that is compiled. There is no `.grad`, so nothing piles up
# and nothing needs clearing. The parameters go in, the gradients come out in the
# same structure.

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
claim("largest gap between JAX and torch",
      largest_gap(slopes, in_torch), below=1e-4)
claim("gap between their mean and the gradient of the batch",
      largest_gap(mean, slopes), below=1e-4)

# %% [markdown] role="concept"
# `jit` runs your Python once per shape, dtype and structure of the inputs, with
# stand-ins for the numbers, and compiles what it saw. A side effect, such as the
# `append` above, happens at that moment and not at the later calls. Remember it when
# you print or count in there.

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
claim("traces in three equal calls", once, expected=1)
claim("with a new shape and a new dtype", len(traces), expected=3)
claim("gap between compiled and not", largest_gap(fast, slopes),
      below=1e-4)

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then open a choice: each says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. Full batch: your loss swings up and down over some twenty steps and never settles. First look at**
#
# - [ ] whether the learning rate is too high :: That may grow, or jump to and fro at each step. A swing over many steps needs a memory.
# - [ ] whether the data are shuffled :: A full batch holds the same rows in each order.
# - [x] whether gradients are cleared before each backward :: Plain SGD on a running sum of gradients is SGD with momentum 1, a pendulum without friction.

# %% [markdown] role="quiz"
# **2. `losses` has 32 rows. `losses.backward(torch.ones(32))` gives the gradient of**
#
# - [ ] the mean loss :: The mean is the vector of 1/32.
# - [x] the sum of the losses :: Each row counts in full, so the gradient is 32 times that of the mean.
# - [ ] each row, as 32 gradients :: One backward gives one vector-Jacobian product. For a gradient per row, use `vmap` of `grad`.

# %% [markdown] role="quiz"
# **3. Which operation keeps no tensor for the backward pass?**
#
# - [ ] `a * b` :: Its slopes are `b` and `a`, so it keeps both.
# - [x] `a + b` :: Its slopes are 1 for all numbers.
# - [ ] `tanh(a)` :: It keeps its result: the slope is one minus its square.

# %% [markdown] role="quiz"
# **4. You need the second derivative of a loss. You call the first `autograd.grad` with**
#
# - [x] `create_graph=True` :: The backward pass is recorded, so its result has a graph of its own.
# - [ ] `retain_graph=True` :: That keeps the forward graph. The gradient you get is a plain number without a graph.
# - [ ] nothing; gradients always have a graph :: By default `autograd.grad` returns tensors that do not require gradients.

# %% [markdown] role="quiz"
# **5. With Adam without weight decay, you forget to divide the loss of four equal micro-batches by four. The weights**
#
# - [ ] blow up, as with a rate four times too large :: That is SGD. Adam divides by the gradient's own size.
# - [ ] learn four times more slowly :: The factor cancels, in either direction.
# - [x] end where they would have ended, up to rounding :: So the mistake stays unnoticed until Adam gets a weight decay, or a clip or SGD arrives.

# %% [markdown] role="quiz"
# **6. An evaluation calls `model.eval()` and adds up `loss.item()`. Its memory**
#
# - [ ] grows with every batch :: `item()` lets go of each graph.
# - [x] rises to one graph during each batch, needlessly :: `no_grad()` would save that one too.
# - [ ] is the least possible, because of `eval()` :: `eval()` switches dropout and norms. Graphs are built as before.

# %% [markdown] role="gpu"
# ## On a GPU: what the backward pass costs
#
# A training step is a forward pass, a backward pass and an update. Before you
# speed one up, know their shares.
#
# **Before you run anything:** how many times as long as the forward pass does the
# backward pass take, for a stack of equal linear layers? Twice the batch: what
# happens to memory with a graph, and without one?
#
# FLOPs, bytes and orders can be counted on any machine, on *meta* tensors, which
# have a shape and no data. A linear layer is one matrix product forward, and two
# backward: one for its weight, one for its input. The first layer can do without
# the second, because nobody asked for the gradient of the data.
#
# Time needs a GPU, or a prediction: the datasheet says how long FLOPs and bytes
# take at least. A small stack waits for launches, so its FLOPs say little. The
# update has no matrix product: it reads four tensors and writes three.

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
    """Two calls: a forward pass, and one with the backward after it."""
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
print(f"forward {work / 1e12:.2f} TFLOP in {cost(forward).orders} orders, "
      f"backward {ratio:.2f} times the FLOPs")

peak = {}
for rows in (4096, 8192):
    for graph in (True, False):
        with torch.set_grad_enabled(graph):
            peak[rows, graph] = cost(lambda: net(x[:rows])).peak / 1e6
        print(f"{rows} rows, {'a' if graph else 'no'} graph: "
              f"{peak[rows, graph]:.1f} MB at the peak of a forward pass")

# %% role="gpu"
claim("FLOPs of backward over forward: 2, but 1 for the first of 6 layers",
      ratio, expected=2 - 1 / 6, within=1e-9)
claim("MB at the peak: a 16-bit result for each of 6 layers",
      peak[8192, True], expected=6 * 8192 * 4096 * 2 / 1e6, within=0.1)
claim("peak without a graph over the one with it: two results of six",
      peak[8192, False] / peak[8192, True], expected=1 / 3, within=0.001)

# %% role="gpu"
# All four: weights, gradients and the two means of AdamW.
many = [2**k for k in range(6, 15)]
weights = 6 * (4096**2 + 4096) * 2
plot_lines(many, {"graph": [5 * rows * 4096 * 2 / 1e6 for rows in many],
                  "weights": [weights / 1e6] * len(many),
                  "all four": [4 * weights / 1e6] * len(many)},
           title="The graph grows with the batch, all else stays",
           xlabel="rows in the batch", ylabel="MB", logx=True, logy=True,
           alt="The graph's line rises with the batch and crosses the "
               "weights near 5000 rows. All four, which are the weights, "
               "their gradients and the two means of AdamW, lie higher.")

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
    shares.asks("backward over forward, width 4096: time", ratio,
                lambda: shares.value("both_us", width=4096)
                / shares.value("forward_us", width=4096) - 1,
                "FLOPs: close to 2 (Epoch AI)", above=1.5, below=2.5),
    shares.asks("forward, width 1024 over 256: time",
                "256 or, by launches, 1",
                lambda: shares.value("forward_us", width=1024)
                / shares.value("forward_us", width=256), below=20),
    shares.asks("peak of a forward pass with a graph: MB", peak[8192, True],
                lambda: shares.value("peak_mb", width=4096),
                expected=403, within=40),
    trace.asks("update over backward: time",
               sheet.least_us(0, update) / sheet.least_us(ratio * work, 0),
               lambda: trace.total("us", phase="update")
               / trace.total("us", phase="backward"), below=0.5))
answers

# %% [markdown] role="gpu"
# In a record, read the trace below the table from the products: on the H100 they
# carry 87 % of the forward pass and 83 % of the backward. Between them stand ReLU,
# its backward and the sums for the biases.
#
# **On the H100 of the record** memory and the two forwards come out as counted, in
# the large stack. In the small ones orders decide: 256 times the FLOPs take an
# eighth more time, and backward takes over four forwards, not two.
#
# The update takes nearly three times its predicted share, and the trace says why.
# The prediction counts one pass, which reads four tensors and writes three.
# `foreach` makes eight passes, each over all weights, and reads or writes twenty.
# (An order of `_foreach_add_` more counts the steps, on the CPU.) The update has a
# fifth of the step's kernel time. Stage 4 measures the fused update, which makes
# one pass.
#
# **Keep:** backward is about two forwards of arithmetic, and the graph's memory is
# proportional to the batch. If memory is short, halve the batch and accumulate,
# or keep fewer results and compute them again (checkpointing, stage 9). If time is
# short, look at the products first. **Source:** PyTorch documentation, [Autograd
# mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html) and
# [torch.profiler](https://docs.pytorch.org/docs/stable/profiler.html); Epoch AI,
# [What's the backward-forward FLOP ratio for neural
# networks?](https://epochai.org/blog/backward-forward-FLOP-ratio)

# %% [markdown] role="summary"
# ## What you take with you
#
# - Backward is the chain rule, right to left: each node multiplies what arrives by
#   its slope.
# - `.grad` is a sum. Clear it, or plain SGD has momentum 1.
# - `backward(v)` weighs the rows. Ones mean the sum.
# - The graph keeps what the slopes need: bytes that follow the batch, freed by
#   the backward pass, or never built under `no_grad()`.
# - `detach().clone()` is a copy; `.data` shares memory and hides edits;
#   `retain_graph` is for two backwards, `create_graph` for second derivatives.
# - Parts count by their share of what the loss divides by, in training and in
#   evaluation.
# - A node hands on its gradient once, after all its uses have handed theirs to it.
#
# **Next:** stage 3 asks where the gradient starts: the loss, and what it teaches.
