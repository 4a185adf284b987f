# %% [markdown] role="hook"
# # 12. Training stability and MLOps
#
# A run is in its third day. Overnight the loss has become `nan`. The log holds one number
# per step, the job was killed while saving a checkpoint, and a second run with the same
# settings gives different results.
#
# You do not need a large model to run into any of these problems. This stage builds them
# into a small digit classifier, where each fault takes a second to reproduce, and shows
# how to trace the cause to a module, a layer, a file or a seed.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import copy
import hashlib
import math
import os
import random
import tempfile
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers import (
    accuracy, begin, check, claim, cost, datasheet, digits, draw_blocks,
    draw_grids, draw_lanes, draw_tree, fit, flops, gpu_result, gpu_table,
    guess, measured, new_axes, peak_bytes, plot_columns, plot_lines,
    saved_bytes, seconds, seconds_in_turns, show,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## What is not a number stays
#
# Most floating-point formats have two special values that signal that something is wrong.
# An *infinity* appears when a result is too large or when a nonzero number is divided by
# zero. A `nan`, *not a number*, appears when an operation has no defined result: `0/0`,
# `inf - inf`, `0 * inf`, the square root of a negative number. A sum or product that
# contains a `nan` is `nan`, so one bad value ruins a whole mean. And `nan` is not less
# than, equal to or greater than any number, not even itself, so a test like `loss > 100`
# never detects it.
#
# Shapes in this stage: `N` rows, `F` features, `C` classes.

# %% role="concept"
loss = torch.tensor([1.0, float("nan"), 2.0]).mean()
print("mean:", loss, "  above 100:", bool(loss > 100))
print("equal to itself:", bool(loss == loss))
print("finite:", bool(loss.isfinite()))

# %% role="concept"
claim("is a mean finite if it includes one nan", loss.isfinite(),
      expected=False)
claim("is a mean above 100 if it includes one nan", loss > 100,
      expected=False)

# %% [markdown] role="concept"
# The data are the handwritten digits from stage 1.

# %% role="concept"
x_train, y_train, x_test, y_test = digits()       # (1300, 64), (497, 64)

# %% [markdown] trap="12.1" role="situation" core=true fault="detect_anomaly blames the loss, not the layer of the NaN" symptom="loss is NaN: which layer? detect_anomaly says LogSoftmaxBackward0 returned nan values"
# ## A blank page
#
# Between two layers, a digit classifier standardizes its features row by row: it
# subtracts the row's mean and divides by the row's standard deviation. One page in the
# batch is blank. All features in that page's row are zero, so their standard deviation is
# also zero, and `0/0` is `nan`.
#
# You do not know yet that a page is blank. All you see is a loss of `nan`. You switch on
# `torch.autograd.detect_anomaly()` and repeat the training step. The step now stops with
# an error that names an operation.

# %% trap="12.1" role="break"
class Standardize(nn.Module):
    """Subtract each row's mean and divide by its standard deviation."""

    def forward(self, h):
        return (h - h.mean(1, keepdim=True)) / h.std(1, keepdim=True)

classifier = nn.Sequential(nn.Linear(64, 32, bias=False), nn.ReLU(),
                       Standardize(), nn.Linear(32, 32), nn.ReLU(),
                       nn.Linear(32, 10))
pages, labels = x_train[:64].clone(), y_train[:64]
pages[5] = 0                                 # a blank page

# %% trap="12.1" role="break" tags=["plumbing"]
def blamed(step):
    """The error that anomaly mode raises in a step; "" if there is none."""
    with warnings.catch_warnings():          # it announces itself
        warnings.simplefilter("ignore")
        try:
            with torch.autograd.detect_anomaly():
                step()
        except RuntimeError as error:
            return str(error)
    return ""

# %% trap="12.1" role="break"
def nan_step():
    F.cross_entropy(classifier(pages), labels).backward()

# %% trap="12.1" role="guess"
guess("12.1", "Which operation does anomaly mode name?",
      choices=["the division by the standard deviation",
               "the log-softmax of the loss",
               "the product of the first linear layer"])

# %% trap="12.1" role="look"
loss = F.cross_entropy(classifier(pages), labels)
said = blamed(nan_step)
print("loss:", loss.item())
print("anomaly mode:", said)

# %% trap="12.1" role="look"
measured("12.1", 1)

# %% trap="12.1" role="look"
claim("does anomaly mode name the log-softmax",
      "LogSoftmax" in said, expected=True)

# %% [markdown] trap="12.1" role="why"
# Anomaly mode checks *gradients*, in the order in which autograd computes them: from the
# loss backwards. The gradient of the log-softmax is the first to use a bad value, because
# the log-softmax has saved its own output, which is `nan`. In the forward pass, the
# values became NaN several modules earlier.

# %% trap="12.1" role="why" tags=["plumbing"]
given = [pages]
for layer in [*classifier, nn.LogSoftmax(1)]:
    given.append(layer(given[-1]))
    given[-1].retain_grad()
F.nll_loss(given[-1], labels).backward()
is_nan = torch.tensor([[bool(t.isnan().any()) for t in (out, out.grad)]
                       for out in given[1:]])

# %% trap="12.1" role="why"
draw_grids({"before the loss": ~is_nan.T},
           marks={"before the loss": is_nan.T}, legend="holds a NaN",
           row_names=["value", "gradient"], columns="output of module",
           column_names=["0", "1", "2", "3", "4", "5", "log softmax"],
           title="Values are NaN from module 2 on, gradients from the end",
           alt="A grid of seven modules and two rows, with the cells that "
               "hold a NaN marked. The values are NaN from module 2 on. "
               "The gradients are NaN from module 5 back to module 1; the "
               "gradient of the log-softmax's output is finite.")

# %% [markdown] trap="12.1" role="repair"
# To catch a NaN that arises in the forward pass, watch the forward pass. Register a hook
# on every module, and check each module's inputs and outputs. The culprit is the first
# module with finite inputs and an output that is not finite.

# %% trap="12.1" role="repair"
def watch(model, x):
    """(name, input is finite, output is finite) of each call, in order."""
    seen, handles = [], []
    for name, module in model.named_modules():
        def look(_, args, out, name=name):
            fine = args[0].isfinite().all(), out.isfinite().all()
            seen.append((name, *map(bool, fine)))
        handles.append(module.register_forward_hook(look))
    model(x)
    for handle in handles:
        handle.remove()
    return seen

# %% trap="12.1" role="repair"
report = watch(classifier, pages)
for name, into, out in report[:5]:
    print(f"{name}: in {'finite' if into else 'nan'}"
          f" -> out {'finite' if out else 'nan'}")

# %% trap="12.1" role="repair"
guilty = [name for name, into, out in report if into and not out]
claim("index of the first module that turns finite numbers into a NaN",
      int(guilty[0]), expected=2)

# %% [markdown] trap="12.1" role="more" topics="the last entry of the list · a NaN in the backward pass · a NaN added to the loss"
# The last entry of the report is the whole model: finite pages go in, and `nan` comes
# out. An outer module finishes after the modules inside it, so only the first entry with
# finite inputs and a bad output counts.
#
# Anomaly mode is the right tool when a NaN first arises in the *backward* pass, because
# then it names the operation whose gradient is the first NaN. (It does not report an
# infinite gradient.) Anomaly mode says nothing when a constant `nan` is merely added to
# the loss, because the gradient of a sum with respect to each term is one.
#
# Which operation anomaly mode names for a NaN from the forward pass depends on the loss.
# With cross-entropy, it names the log-softmax. With an L1 or a hinge loss, whose
# gradients contain only signs, it names the last linear layer. Watch the gradient norm as
# well as the loss, because `F.multi_margin_loss` returns a finite number even for logits
# that are NaN.

# %% trap="12.1" role="more"
def rooted():
    root = torch.tensor([1.0, 0.0], requires_grad=True)
    (root ** 0.5 * torch.tensor([1.0, 0.0])).sum().backward()

back = blamed(rooted)
linear, bad = nn.Linear(64, 1), torch.tensor(float("nan"))
silent = blamed(lambda: (linear(x_train).mean() + bad).backward())
print("a NaN in the backward pass:", back)
print("a NaN added to the loss:", repr(silent))
print("gradients finite:", bool(linear.weight.grad.isfinite().all()))

# %% trap="12.1" role="more"
claim("does anomaly mode name a division", "Div" in said, expected=False)
claim("does anomaly mode name the root whose gradient is NaN",
      "PowBackward" in back, expected=True)
claim("does anomaly mode report a NaN added to the loss",
      bool(silent), expected=False)

# %% [markdown] trap="12.1" role="folklore"
# **Told:** With anomaly mode, training takes 5 to 10 times as long. **Measured:** Anomaly
# mode keeps a stack trace for each operation and checks each gradient. For a net with
# eight layers of 64 units and batches of 16 and 1,024 rows, the next cell counts the
# operations that anomaly mode adds to a training step, and the FLOPs of the step itself.
# The times depend on the machine that runs the cell.

# %% trap="12.1" role="folklore" compare=false
def price(rows):
    """Operations that anomaly mode adds, FLOPs of a step, slowdown."""
    layers = [part for _ in range(8)
              for part in (nn.Linear(64, 64), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(64, 10))
    x = torch.rand(rows, 64)

    def plain():
        net(x).logsumexp(1).mean().backward()
    plain()
    added = cost(lambda: blamed(plain)).orders - cost(plain).orders
    once, twice = seconds_in_turns([plain, lambda: blamed(plain)], 10)
    return added, flops(plain), twice.median / once.median

few, many = price(16), price(1024)
print(f"times as long: {few[2]:.1f} for 16 rows, {many[2]:.1f} for 1,024")

# %% trap="12.1" role="folklore"
claim("operations added by anomaly mode for 16 rows, divided by operations "
      "added for 1,024 rows", few[0] / many[0], expected=1)
claim("FLOPs of a step with 1,024 rows, divided by FLOPs of a step with "
      "16 rows", many[1] / few[1], expected=64)

# %% [markdown] trap="12.1" role="folklore"
# Anomaly mode adds the same number of operations for both batch sizes, but the work of
# the step itself grows with the number of rows. So no single slowdown factor is right:
# the smaller the tensors, the larger the slowdown. Either way, switch on anomaly mode
# only for the step in question, not for a whole run.

# %% trap="12.1" role="exercise" points=4 difficulty=3 minutes=15
def first_nan_module(model: nn.Module, x: torch.Tensor) -> str | None:
    """Find the module in which a NaN or an infinity first arises.

    Such a value arises in a call that receives only finite tensors and
    returns one that is not finite. Of several such calls, the one that ends
    first counts. Anything that is not a tensor counts as finite.

    Args:
        model: its modules do not write into their arguments. The modules
            can take keyword arguments, can be called several times, and can
            take and return tuples, lists and dicts of tensors, nested to
            any depth.

    Returns:
        The module's name in named_modules(), or "" for the model itself.
        The result is None if there is no such module.

    The model, called once as model(x), keeps its weights, buffers, modes,
    gradients and hooks. Example: for nn.Sequential(Root(), nn.ReLU()),
    where Root takes the square root, and an x with a negative number, the
    result is "0".
    """
    # BEGIN SOLUTION
    def finite(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            return all(finite(item) for item in value)
        return not torch.is_tensor(value) or bool(value.isfinite().all())

    found, twin = [], copy.deepcopy(model)
    for name, module in twin.named_modules():
        def look(module, args, kwargs, out, name=name):
            if finite(args) and finite(kwargs) and not finite(out):
                found.append(name)
        module.register_forward_hook(look, with_kwargs=True)
    with torch.no_grad():
        twin(x)
    return found[0] if found else None
    # END SOLUTION

# %% [markdown] trap="12.1" role="hint"
# 1. Write a recursive function that says whether a value is finite. A container is finite
#    when all its parts are finite.
# 2. `register_forward_hook(hook, with_kwargs=True)` passes the module, the arguments, the keyword arguments and the output to the hook.
# 3. In train mode, a forward pass updates the running statistics of a BatchNorm, and a NaN would stay in them. Run a copy of the model.

# %% [markdown] trap="12.1" role="keep"
# **Keep:** To find a NaN that arises in the forward pass, put a forward hook on every
# module. If the bad operation is a function inside `forward`, the hook names the module
# that calls this function. Anomaly mode does not help, because it checks only gradients:
# of the operations whose gradients become NaN, it names the operation nearest to the
# loss. **In your own code:** At the first loss or gradient norm that is not finite, save
# the batch and the weights, and repeat the forward pass with the hooks. **Source:**
# PyTorch,
# [torch.autograd.anomaly_mode](https://pytorch.org/docs/stable/_modules/torch/autograd/anomaly_mode),
# "any backward computation that generate "nan" value will raise an error". **Seen in the
# wild:** In [kenziyuliu/MS-G3D#36](https://github.com/kenziyuliu/MS-G3D/issues/36),
# anomaly mode named the log-softmax in half precision and a BatchNorm in full precision.

# %% [markdown] trap="12.2" role="situation" core=true fault="the loss falls, but the early layers do not learn" symptom="training loss falls and flattens, early layers do not learn: vanishing gradients, per-layer report"
# ## A loss that falls
#
# A network with eight hidden sigmoid layers is trained to predict the value of a digit, 0
# to 9, with mean squared error and plain SGD. The loss falls for a few dozen steps, then
# stays at about 8. The first layer's weights have hardly moved; the last layer's weights
# have moved by more than their own norm. A ticket says: "Even untrained layers produce
# different outputs for different images, so the last layer can learn from these outputs."
#
# With Adam, the weights of the first layer also move, by at least a third of their norm.

# %% trap="12.2" role="break"
values = y_train.float()[:, None]                # (1300, 1)

def deep(activation):
    """Eight hidden layers of 32 units, one output."""
    sizes = [64] + [32] * 8
    layers = [part for i, o in zip(sizes, sizes[1:])
              for part in (nn.Linear(i, o), activation())]
    return nn.Sequential(*layers, nn.Linear(32, 1))

# %% trap="12.2" role="break"
def run(net, lr, optimizer=torch.optim.SGD):
    """Return the loss of each step and each weight's relative change."""
    before = [p.detach().clone() for p in net.parameters()]
    losses = fit(net, x_train, values, steps=200, lr=lr,
                 loss=F.mse_loss, optimizer=optimizer)
    moved = [float((p.detach() - q).norm() / q.norm())
             for p, q in zip(net.parameters(), before)]
    return losses, moved[::2]

asleep = deep(nn.Sigmoid)
log, moved = run(asleep, lr=0.02)
restless = deep(nn.Sigmoid)
busy_log, busy = run(restless, 0.01, torch.optim.Adam)

# %% trap="12.2" role="guess" quoted="wrong"
guess("12.2",
      "What does the net trained with Adam predict for a 0 and for a 9?",
      choices=["about 0 and about 9",
               "about 2 and about 7",
               "nearly the same number for both"])

# %% trap="12.2" role="look"
variance = values.var(unbiased=False).item()
last, busy_last = np.mean(log[-20:]), np.mean(busy_log[-20:])
print(f"loss, SGD {last:.2f}, Adam {busy_last:.2f}, variance of the "
      f"targets {variance:.2f}")
with torch.no_grad():
    answers = {digit: restless(x_train[y_train == digit]).mean().item()
               for digit in (0, 9)}
print({digit: f"{answer:.2f}" for digit, answer in answers.items()})

# %% trap="12.2" role="look"
measured("12.2", 2)

# %% trap="12.2" role="look"
claim("loss with Adam, divided by the variance of the targets",
      busy_last / variance, above=0.85)

# %% [markdown] trap="12.2" role="look"
# Whatever the image, the last layer receives the same values, up to rounding. So both
# nets can predict only the mean of all targets. The loss of predicting the mean is the
# *variance* of the targets:

# %% trap="12.2" role="look"
claim("loss with SGD, divided by the variance of the targets",
      last / variance,
      expected=1, within=0.1)

# %% trap="12.2" role="look"
plot_lines(range(1, 201), {"SGD": log, "Adam": busy_log,
                           "a constant": [variance] * 200},
           xlabel="step", ylabel="loss",
           title="The loss falls to the loss of a constant prediction",
           alt="Loss over 200 steps, with SGD and with Adam. Within a few "
               "dozen steps both curves fall to a horizontal line, the "
               "variance of the targets, and then fluctuate around it.")

# %% [markdown] trap="12.2" role="why"
# A sigmoid passes on at most a quarter of a gradient, and with small weights, each layer
# passes on far less. So almost no gradient reaches the first layers. In the forward pass,
# each sigmoid shrinks the differences between its inputs, so the last layer receives
# nearly the same values for every image. Adam divides each gradient by the gradient's own
# size, so all layers move, but the last layer still receives nothing that depends on the
# image.

# %% trap="12.2" role="why"
claim("relative change in the first layer's weights, with SGD",
      moved[0], below=1e-4)

# %% [markdown] trap="12.2" role="repair"
# With ReLU, He initialization (trap 01.3) and a lower learning rate, the gradient reaches
# the first layer, and the loss falls below the variance. Alongside the loss, log the best
# constant prediction's loss and how far each layer has moved.

# %% trap="12.2" role="repair"
awake = deep(nn.ReLU)
for layer in awake[:-1:2]:
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
awake_log, awake_moved = run(awake, lr=0.002)
awake_last = np.mean(awake_log[-20:])
print(f"loss {awake_last:.1f}, variance {variance:.1f}")

# %% trap="12.2" role="repair"
claim("loss with ReLU, divided by the variance of the targets",
      awake_last / variance, below=0.6)

# %% trap="12.2" role="repair"
plot_lines(range(1, 10), {"sigmoid, SGD": moved, "sigmoid, Adam": busy,
                          "ReLU + He, SGD": awake_moved},
           logy=True, xlabel="layer, input to output",
           ylabel="relative change",
           title="One number per layer shows what is stuck",
           alt="Relative change of nine layers, on a log axis. With "
               "sigmoids and SGD, the change falls by orders of magnitude "
               "from the last layer to the first. With Adam, and with "
               "ReLU, all layers move.")

# %% [markdown] trap="12.2" role="more" topics="the last layer · what the last hidden units still show"
# The last layer of the sigmoid net moved by more than its own norm. This layer's input,
# the output of the last hidden units, is almost the same for all images:

# %% trap="12.2" role="more"
last_hidden = asleep[:-1](x_train).std(0).max().item()
claim("net trained with Adam: gap between the predictions for a 0 and for "
      "a 9", abs(answers[9] - answers[0]), below=2)
claim("final loss with SGD, divided by the first loss", last / log[0],
      below=0.5)
claim("relative change in the last layer's weights, with SGD",
      moved[-1], above=1)
claim("largest standard deviation of a last hidden unit's output, over the "
      "images", last_hidden, below=1e-5)
claim("relative change in the first layer's weights, with ReLU",
      awake_moved[0], above=0.03)

# %% [markdown] trap="12.2" role="folklore"
# **Told:** A layer that moves is learning. **Measured:** This is false under Adam, which
# takes half of a full step even when the gradients are as small as its `eps`, 1e-8. The
# relative changes show which layers are stuck. To see whether the network learns
# anything, compare the loss with the variance of the targets.

# %% trap="12.2" role="folklore"
claim("relative change in the first layer's weights, with Adam",
      busy[0], above=0.3)

# %% trap="12.2" role="exercise" points=3 difficulty=2 minutes=10
def layer_report(model: nn.Module, step) -> dict:
    """Measure how far step() moves each parameter, relative to its norm.

    Args:
        step: a function without arguments that trains model in place. Call
            it once. Do nothing else to the model.

    Returns:
        A dict with the names of named_parameters(), in their order, frozen
        parameters included. Each value is |after - before| / |before|, a
        float. The norms are taken over all elements, in a precision in
        which no float16 overflows and no float32 vanishes. The value is 0.0
        if the parameter did not move. The value is math.inf if the
        parameter was all zeros and moved.

    Example: a single weight that goes from 2. to 1. gives {"weight": 0.5}.
    """
    # BEGIN SOLUTION
    before = {name: p.detach().double().clone()
              for name, p in model.named_parameters()}
    step()
    report = {}
    for name, p in model.named_parameters():
        moved = (p.detach().double() - before[name]).norm().item()
        size = before[name].norm().item()
        report[name] = 0.0 if not moved else (
            moved / size if size else math.inf)
    return report
    # END SOLUTION

# %% [markdown] trap="12.2" role="hint"
# 1. Before the step, copy each parameter. `detach()` alone shares the parameter's memory, so its result would change with the parameter.
# 2. The square of 300 is already larger than the largest `float16`, 65,504. Convert to `double()` before you compute a norm.
# 3. Distinguish three cases for each parameter: it did not move, it was all zeros and moved, or neither.

# %% [markdown] trap="12.2" role="keep"
# **Keep:** Alongside the loss, log the best constant prediction's loss and how far each
# layer has moved. A trainable layer that has not moved is stuck; under Adam, a layer that
# has moved need not be learning. **In your own code:** Print the layer report once, after
# the first hundred steps. Compare a regression loss with the targets' variance.
# **Source:** [Glorot & Bengio 2010](https://proceedings.mlr.press/v9/glorot10a.html),
# sections 3 and 4.

# %% [markdown] role="concept"
# ## The first look at a run
#
# Many runs are lost before their first step, because the pixels have the wrong range, all
# labels are of one class, or the model is in the wrong mode. You find such faults in a
# minute if you look before you train. Print one line for each thing that a step depends
# on, and compare each line with what you expect:

# %% role="concept"
def first_look(net, x, y, opt):
    """List what a step depends on, from the data to the memory."""
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    norms = [f"{p.grad.norm():.2f}" for p in net.parameters()
             if p.dim() > 1]
    rates = [group["lr"] for group in opt.param_groups]
    stored = sum(t.nbytes for p in net.parameters() for t in (p, p.grad))
    net.zero_grad()
    return {"batch": f"{tuple(x.shape)} {x.dtype}, {x.min():.1f} to "
                     f"{x.max():.1f}",
            "classes in it": len(y.unique()), "loss": f"{loss:.2f}",
            "norms by layer": norms, "rates": rates,
            "train mode": net.training,
            "MB of weights and gradients": stored / 1e6}

# %% role="concept"
looked_at = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
opt = torch.optim.SGD(looked_at.parameters(), lr=0.1)
sight = first_look(looked_at, x_train[:64], y_train[:64], opt)
for name, value in sight.items():
    print(f"{name:28} {value}")
print(f"{'a uniform guess':28} {math.log(10):.2f}")

# %% role="concept"
claim("gap between the untrained classifier's loss and the loss of a "
      "uniform guess", abs(float(sight["loss"]) - math.log(10)), below=0.3)
claim("number of different classes in the first batch",
      sight["classes in it"], above=7)

# %% [markdown] role="concept"
# An untrained classifier with ten classes has a loss near `ln 10`. A loss far from `ln
# 10` often means that the logits are too large or that the loss function does not match
# the model's output. No layer should have a gradient norm of 0 (except where a later
# factor starts at zero, as in LoRA), or a norm a hundred times as large as its
# neighbours' norms. Next, overfit one batch, and only then train on all the
# data. On a GPU, `nvidia-smi` shows how much memory the process holds, and
# `torch.cuda.max_memory_allocated()` shows how much of it the tensors needed at their
# peak. When memory use grows and you do not know why, record the allocation history with
# `torch.cuda.memory._record_memory_history()` and open the snapshot in PyTorch's [memory
# viewer](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html).
#
# ## What to log, and where
#
# Three weeks later, a colleague asks which run produced a certain model file, and why the
# loss of that run jumped at step 4,000. A log answers both questions if it has two kinds
# of lines: a line at the start that says what was run, and a line per step that says what
# happened.
#
# The first line holds the settings, hashes of the code and the data, the versions, the
# seed, the number of threads and the machine. A *hash* is a short number computed from
# all bytes of the input. A hash answers one question: is this the same input?

# %% role="concept"
import inspect
import json
import platform

def digest(*tensors):
    """The first digits of a hash over types, shapes and values."""
    seen = hashlib.sha256()
    for tensor in tensors:
        seen.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        seen.update(tensor.contiguous().numpy().tobytes())
    return seen.hexdigest()[:12]

# %% role="concept"
def provenance(code, data, **settings):
    text = inspect.getsource(code).encode()
    return {"settings": settings, "seed": SEED, "data": digest(*data),
            "code": hashlib.sha256(text).hexdigest()[:12],
            "torch": torch.__version__, "python": platform.python_version(),
            "threads": torch.get_num_threads(),
            "machine": platform.processor() or platform.machine()}

# %% [markdown] role="concept"
# Each line for a step holds the step, the loss, the norm of all gradients and the time;
# add the learning rate if a schedule changes it. The gradient norm is the most useful of
# these values. Before the optimizer takes a step, the norm shows whether the gradients
# explode. (If they vanish only in the early layers, you need a norm per layer, as in trap
# 12.2.) No range of norms is healthy for all models, so compare each
# norm with the median over the run's last steps. `clip_grad_norm_` returns the norm, so
# if you clip, you have it already (on a GPU, reading it makes the CPU wait):

# %% role="concept" compare=false
import time

logs = tempfile.TemporaryDirectory()
log_path = os.path.join(logs.name, "run.jsonl")
with open(log_path, "w") as file:
    origin = provenance(first_look, (x_train, y_train), lr=0.1, batch=64)
    print(json.dumps(origin), file=file)
    for step in range(5):
        rows = torch.arange(64 * step, 64 * step + 64)
        opt.zero_grad()
        loss = F.cross_entropy(looked_at(x_train[rows]), y_train[rows])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(looked_at.parameters(), 1.0)
        opt.step()
        print(json.dumps({"step": step, "loss": loss.item(), "norm":
                          norm.item(), "time": time.time()}), file=file)

# %% role="concept" compare=false
with open(log_path) as file:
    header, *per_step = map(json.loads, file)
print(json.dumps(header, indent=1))
print({name: round(value, 2) for name, value in per_step[-1].items()})

# %% [markdown] role="concept"
# Does the hash notice a change? Change one pixel, then one label, then the shape:

# %% role="concept"
one_pixel, one_label = x_train.clone(), y_train.clone()
one_pixel[700, 20] += 1e-6
one_label[700] = (one_label[700] + 1) % 10
others = [digest(one_pixel, y_train), digest(x_train, one_label),
          digest(x_train.view(650, 128), y_train)]

# %% role="concept"
claim("does the same data have the same hash",
      digest(*digits()[:2]) == header["data"], expected=True)
claim("number of changes that leave the hash the same: one pixel, one "
      "label or the shape", others.count(header["data"]), expected=0)

# %% [markdown] role="concept"
# Compare the hashes when you *load* a checkpoint, and report which hash differs. In a
# repository, `git rev-parse HEAD` prints the commit's hash, and `git status --porcelain`
# shows whether any file that git does not ignore differs from that commit. A run of
# uncommitted code cannot be repeated, unless you also saved the difference.
#
# A *tracker* writes the log lines for you and plots their values. Each tracker has calls
# for the start of a run and one call for each later line (shown, not run):
#
# | tracker | at the start | at each step |
# |---|---|---|
# | TensorBoard | `writer = SummaryWriter("runs/7")` | `writer.add_scalar("loss", loss, step)` |
# | Weights & Biases | `run = wandb.init(project="digits", config=settings)` | `run.log({"loss": loss})` |
# | MLflow | `mlflow.start_run()`, `mlflow.log_params(settings)` | `mlflow.log_metric("loss", loss, step=step)` |
#
# `SummaryWriter` comes from `torch.utils.tensorboard`. `tensorboard --logdir runs` shows
# TensorBoard's plots, and `mlflow ui` shows MLflow's plots. TensorBoard writes to a
# folder, and MLflow to a local store or to your own server; neither needs an account.
# Weights & Biases sends the lines to its server, or keeps the lines in a file while it is
# offline. Trap 12.10 is about the step counter of Weights & Biases.

# %% [markdown] trap="12.3" role="situation" fault="worker_init_fn with a constant seed repeats each epoch" symptom="DataLoader workers: the same augmentation every epoch, worker_init_fn with a constant seed, results depend on num_workers"
# ## A seed for each worker
#
# A dataset shifts each image by a random number from numpy, and two worker processes load
# the images. You have read that your seed does not reach numpy in a worker, so you seed
# each worker yourself: `worker_init_fn=lambda id: np.random.seed(42 + id)`. A reviewer
# approves: "Now two runs draw the same numbers, and the two workers draw different
# numbers."

# %% trap="12.3" role="break"
from torch.utils.data import DataLoader, Dataset

class Shifted(Dataset):
    """The shifts of 8 images, without the images."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return float(np.random.rand())

def epochs(workers, init=None, data=None):
    """Return the shifts of two epochs, each (8,), after one manual_seed."""
    torch.manual_seed(7)
    loader = DataLoader(data or Shifted(), batch_size=2,
                        num_workers=workers, worker_init_fn=init)
    return [torch.cat(list(loader)) for _ in range(2)]

one, two = epochs(2, init=lambda id: np.random.seed(42 + id))

# %% trap="12.3" role="guess" quoted="right"
guess("12.3",
      "Training runs for two epochs and draws 16 shifts in all. How many "
      "of them are distinct?",
      unit="shifts")

# %% trap="12.3" role="look"
same = (one == two).float().mean().item()
print(f"images with the same shift in both epochs: {same:.0%}")

# %% trap="12.3" role="look"
measured("12.3", len({*one.tolist(), *two.tolist()}), right=(8, 8))

# %% trap="12.3" role="look"
claim("fraction of images with the same shift in both epochs", same,
      expected=1)

# %% [markdown] trap="12.3" role="why"
# The loader starts new workers for each epoch, unless it has `persistent_workers=True`,
# and your function gives them the same seeds every time. So each epoch replays the first
# epoch. The random shifts have become eight fixed shifts.
#
# Torch has since fixed the problem that your function was meant to solve. For each epoch,
# it draws a seed from its own generator and uses it to seed torch, `random` and, if it is
# installed, numpy in each worker.

# %% trap="12.3" role="repair"
first, second = epochs(2)                        # no worker_init_fn
repeats = (first == second).float().mean()

# %% trap="12.3" role="repair"
claim("fraction of images with the same shift in both epochs, with "
      "torch's seeds", repeats, below=0.2)

# %% trap="12.3" role="repair"
by_hand, by_torch = torch.stack([one, two]), torch.stack([first, second])
seen = torch.stack([one < 0, one == two])        # none in the first epoch
draw_grids({"seeded by hand": by_hand, "seeded by torch": by_torch},
           marks={"seeded by hand": seen}, values=True, columns="image",
           row_names=["epoch 1", "epoch 2"], legend="a shift of epoch 1",
           title="Seeded by hand, epoch 2 is epoch 1",
           alt="Two grids, each with the shifts of eight images in two "
               "epochs. With the constant seed, both rows are the same. "
               "Without this seed, the rows differ.")

# %% [markdown] trap="12.3" role="repair"
# Which worker draws which image's shift still depends on the number of workers. If each
# image's shift has to be the same with any number of workers, and after a restart, derive
# the shift from the seed, the epoch and the image index. Numpy accepts a tuple of numbers
# as a seed and mixes them.

# %% trap="12.3" role="repair"
class Keyed(Shifted):
    """Each shift depends only on the seed, the epoch and the image."""
    epoch = 0

    def __getitem__(self, index):
        return np.random.default_rng((7, self.epoch, index)).random()

keyed = [epochs(workers, data=Keyed())[0] for workers in (0, 1, 2)]
spread = max((k - keyed[0]).abs().max().item() for k in keyed)
print("largest gap between 0, 1 and 2 workers:", spread)

# %% trap="12.3" role="repair"
claim("largest gap between the shifts with 0, 1 and 2 workers", spread,
      expected=0)

# %% [markdown] trap="12.3" role="more" topics="two runs · one worker or two · without workers · why a tuple"
# With worker processes, `torch.manual_seed` alone makes two runs draw the same shifts. If
# the two runs have different numbers of workers, their shifts differ. Without workers,
# the main process draws the shifts, and `torch.manual_seed` does not seed numpy there.

# %% trap="12.3" role="more"
again, _ = epochs(2)
alone, _ = epochs(1)
none, also_none = epochs(0)[0], epochs(0)[0]

# %% trap="12.3" role="more"
claim("fraction of shifts that are equal in two runs with the same seed",
      (first == again).float().mean(), expected=1)
claim("fraction of shifts that are the same with one worker and with two",
      (first == alone).float().mean(), below=0.9)
claim("fraction of shifts that are equal in two runs without workers",
      (none == also_none).float().mean(), below=0.2)

# %% [markdown] trap="12.3" role="more"
# The seed is a tuple and not a sum, because with the sum of epoch and index, image 2 of
# epoch 1 would get the same shift as image 1 of epoch 2.

# %% trap="12.3" role="exercise" points=3 difficulty=2 minutes=10
def augment(x, seed: int, epoch: int, rows: list) -> torch.Tensor:
    """Add to rows of x noise that depends only on seed, epoch and row.

    The noise of row i is the first F numbers that
    numpy.random.default_rng((seed, epoch, i)).standard_normal() draws,
    times 0.1. The noise does not depend on which other rows are in rows.

    Args:
        x: (N, F) float32, left as it is.
        seed, epoch: 0 or more.
        rows: the indices of a worker's rows, in the order in which the
            worker reads them. A row can occur twice.

    Returns:
        (len(rows), F) float32, in new memory.

    No global generator is used. Example: rows [4, 2] return what [4] and
    [2] return, concatenated.
    """
    # BEGIN SOLUTION
    out = x[torch.tensor(rows, dtype=torch.long)]
    for place, row in enumerate(rows):
        rng = np.random.default_rng((seed, epoch, row))
        noise = rng.standard_normal(x.shape[1])
        out[place] += 0.1 * torch.from_numpy(noise)
    return out
    # END SOLUTION

# %% [markdown] trap="12.3" role="hint"
# 1. For each row, make a new generator from the seed, the epoch and the row's index.
# 2. Indexing with a tensor of row numbers makes a copy, but a slice such as `x[2:4]` does
#    not.

# %% [markdown] trap="12.3" role="keep"
# **Keep:** Without `persistent_workers=True`, a `DataLoader` starts new workers for each
# epoch, so a constant seed in `worker_init_fn` replays the first epoch's numbers. Let
# torch do the seeding. If random numbers must not depend on the number of workers, derive
# them from the seed, the epoch and the sample. **In your own code:** With `shuffle=False`, compare the random numbers of the
# first batch in two epochs. They have to differ. **Source:** PyTorch documentation,
# [torch.utils.data, "Randomness in multi-process data
# loading"](https://docs.pytorch.org/docs/stable/data.html#data-loading-randomness).

# %% [markdown] role="concept"
# ## Which settings are worth a search?
#
# Training has a dozen settings, and your budget is about twenty runs. A grid over four
# settings with five values each needs 625 runs. But often one or two settings decide
# almost everything. So find out *which* settings matter, using random runs that vary all
# settings at once. Then restrict the search to these settings.

# %% role="concept"
def short_run(rate, momentum, smoothing, size, rng):
    """Train for 60 steps and return the loss on held-out digits."""
    w = [size * torch.randn(i, o, generator=rng) / i**0.5
         for i, o in ((64, 32), (32, 10))]
    speed = [torch.zeros_like(m) for m in w]
    for _ in range(60):
        rows = torch.randint(1300, (64,), generator=rng)
        w = [m.detach().requires_grad_() for m in w]
        z = (x_train[rows] @ w[0]).relu() @ w[1]
        loss = F.cross_entropy(z, y_train[rows], label_smoothing=smoothing)
        speed = [momentum * v + g for v, g in
                 zip(speed, torch.autograd.grad(loss, w))]
        w = [m - rate * v for m, v in zip(w, speed)]
    z = (x_test @ w[0]).relu() @ w[1]
    return F.cross_entropy(z, y_test).nan_to_num(10).clamp(max=10).item()

# %% role="concept"
rng = torch.Generator().manual_seed(SEED)
drawn = torch.rand(60, 4, generator=rng)
table = {"rate": 10 ** (5 * drawn[:, 0] - 4),         # 0.0001 to 10
         "momentum": 0.9 * drawn[:, 1], "smoothing": 0.3 * drawn[:, 2],
         "size": 10 ** (drawn[:, 3] - 0.5)}           # 0.3 to 3
scores = torch.tensor([short_run(*map(float, row), rng)
                       for row in zip(*table.values())]).log()

# %% [markdown] role="concept"
# Sort the runs by the value of one setting and cut the list into five parts. If the
# setting matters, the means of the parts differ (here, the means of the logarithm of the
# loss). The variance of these means, divided by the variance over all runs, is the
# fraction of the variance that the setting *explains*:

# %% role="concept"
def explained(setting):
    parts = scores[setting.argsort()].view(5, 12).mean(1)
    return (parts.var(unbiased=False) / scores.var(unbiased=False)).item()

matters = {name: explained(setting) for name, setting in table.items()}
plot_columns(matters, xlabel="setting", ylabel="variance explained",
             form=".2f", reference=(0.07, "chance"),
             title="The learning rate explains most, other settings little",
             alt="Four columns of explained variance. The learning rate's "
                 "column is by far the highest; the columns of momentum, "
                 "smoothing and size are far below it.")

# %% role="concept"
claim("fraction of the variance that the learning rate explains",
      matters["rate"], above=0.35)
claim("fraction of the variance explained: by the learning rate minus by "
      "the next setting",
      matters["rate"] - max(v for k, v in matters.items() if k != "rate"),
      above=0.1)

# %% [markdown] role="concept"
# Now fix the other settings and spend the remaining runs on the learning rate, near the
# best value so far. Three rules of thumb help you choose a method. For one or two
# settings, use a *grid*. For more settings, use *random search*, because it tries a new
# value of every setting in every run. If a run is expensive, use a *Bayesian* search,
# which learns from earlier runs. The next trap is about a Bayesian search.

# %% [markdown] trap="12.4" role="situation" fault="expected improvement looks for the largest loss" symptom="Bayesian hyperparameter search finds nothing, Gaussian process with expected improvement for a loss"
# ## Eight settings, 25 runs
#
# You have eight settings to tune and a budget of 25 runs. The first five runs are random.
# A *Gaussian process* fitted to their losses predicts the mean and the standard deviation
# of the loss for other settings. Of a thousand candidates, you run the one with the
# largest *expected improvement*. A tutorial has the formula:
#
# $$z = \frac{\mu - f^*}{\sigma}, \qquad \text{EI} = \sigma\,(z\,\Phi(z) + \varphi(z))$$
#
# EI says by how much you can expect to beat $f^*$, the best value so far. Here $\mu$ and
# $\sigma$ are the predicted mean and standard deviation, and $\Phi$ and $\varphi$ are the
# standard normal distribution function and density. You try the search on a smooth,
# noiseless bowl whose lowest value is zero. The tutorial says: "Eight settings are not
# too many for such a search."

# %% trap="12.4" role="break" tags=["plumbing"]
def predict(x, y, new, lengths=(0.2, 0.5, 1, 2, 4)):
    """Fit a Gaussian process to x, y; return mean and std at new (M, D)."""
    z, far = (y - y.mean()) / y.std(), torch.cdist(x, x) ** 2
    fits = []
    for length in lengths:
        kernel = (-far / (2 * length**2)).exp() + 1e-6 * torch.eye(len(x))
        root = torch.linalg.cholesky(kernel)
        weights = torch.cholesky_solve(z[:, None], root)[:, 0]
        size = z @ weights / len(z)              # the variance that fits
        fit = -len(z) / 2 * size.log() - root.diagonal().log().sum()
        fits.append((fit.item(), length, root, weights, size))
    _, length, root, weights, size = max(fits, key=lambda f: f[0])
    k = (-torch.cdist(new, x) ** 2 / (2 * length**2)).exp()
    known = torch.linalg.solve_triangular(root, k.T, upper=False)
    left = size * (1 - (known ** 2).sum(0)).clamp(min=1e-12)
    return y.mean() + y.std() * (k @ weights), y.std() * left.sqrt()

# %% trap="12.4" role="break"
def textbook(mean, std, best):
    z = (mean - best) / std
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return std * (z * torch.special.ndtr(z) + density)

def hunt(loss, dims, score, budget=25):
    """Search the unit cube; return all losses. The first 5 are random."""
    x = torch.rand(5, dims, dtype=torch.float64)
    y = loss(x)
    while len(x) < budget:
        close = x[y.argmin()] + 0.1 * torch.randn(512, dims)
        new = torch.cat([torch.rand_like(close), close.clamp(0, 1)])
        new = new[score(*predict(x, y, new), y.min()).argmax()][None]
        x, y = torch.cat([x, new]), torch.cat([y, loss(new)])
    return y

# %% trap="12.4" role="break"
def bowl(x, best):
    return ((x - best) ** 2).sum(1)

def over_dice(surface, dims, score, times=8):
    """Median best loss, as a multiple of random search's median."""
    ends = []
    for _ in range(times):
        best = 0.2 + 0.6 * torch.rand(dims, dtype=torch.float64)
        dice = surface(torch.rand(25, dims), best).min()
        losses = hunt(lambda x: surface(x, best), dims, score)
        ends.append((losses.min(), dice))
    found, dice = torch.tensor(ends).median(0).values
    return (found / dice).item()

# %% trap="12.4" role="guess" quoted="right"
guess("12.4",
      "How does the search's best loss after 25 runs compare with the best "
      "loss of 25 random runs?",
      choices=["higher",
               "about the same",
               "about half as high",
               "a third as high or less"])

# %% trap="12.4" role="look"
wrong_way = over_dice(bowl, 8, textbook, times=16)
print(f"best loss / random search's best loss: {wrong_way:.2f}")

# %% trap="12.4" role="look"
measured("12.4", 0)

# %% trap="12.4" role="look"
claim("best loss divided by random search's best loss, with the tutorial's "
      "sign",
      wrong_way, above=1)

# %% [markdown] trap="12.4" role="why"
# Random search wins, but not because there are eight settings. The tutorial looks for the
# *largest* value, so it counts `mean - best` as the gain, but you want the smallest loss.
# With this sign, the search goes where the Gaussian process expects the worst losses, and
# only the five random runs help. Nothing warns you, because even a bad search returns a
# best run.

# %% trap="12.4" role="why" tags=["plumbing"]
middle = torch.full((8,), 0.4)
in_order = hunt(lambda x: bowl(x, middle), 8, textbook)

# %% [markdown] trap="12.4" role="repair"
# One question reveals the wrong sign without a search: which of two equally uncertain
# candidates scores higher?

# %% trap="12.4" role="repair"
def downward(mean, std, best):
    z = (best - mean) / std
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return std * (z * torch.special.ndtr(z) + density)

low_and_high, alike = torch.tensor([1.0, 2.0]), torch.ones(2)
for score in (textbook, downward):
    low, high = score(low_and_high, alike, 1.5).tolist()
    print(f"{score.__name__:9} for 1: {low:.2f}   for 2: {high:.2f}")
right_way = over_dice(bowl, 8, downward, times=16)
print(f"best loss / random search's best loss: {right_way:.2f}")

# %% trap="12.4" role="repair"
claim("best loss divided by random search's best loss, with the sign for a "
      "loss",
      right_way,
      below=0.5)

# %% trap="12.4" role="repair" tags=["plumbing"]
with torch.random.fork_rng():
    mended = hunt(lambda x: bowl(x, middle), 8, downward)
runs_in_order = {"tutorial": in_order, "for a loss": mended}

# %% trap="12.4" role="repair"
plot_lines(range(1, 26), runs_in_order, xlabel="run", ylabel="loss",
           title="With the tutorial's sign, the search goes up",
           alt="Losses of 25 runs, in order, for two searches. After five "
               "random runs, the losses of the tutorial's search go up, "
               "and the losses of the repaired search go down.")

# %% [markdown] trap="12.4" role="repair"
# The explorer below has two settings, but at first only one of them matters. Compare how
# a grid, random search and the Gaussian process spend the same budget. Does a finer grid
# find a better value? Then let the second setting matter.

# %% role="explore" explorer="search_surface"
from dlsys_helpers.explorers.search_surface import search_surface

search_surface

# %% [markdown] trap="12.4" role="more" topics="the chosen runs and the random ones · ten standard deviations away"
# The runs chosen by the faulty search are worse than its random runs:

# %% trap="12.4" role="more"
dull, chosen = in_order[:5].mean(), in_order[5:].mean()
claim("mean loss of the chosen runs, divided by mean loss of the random "
      "runs",
      chosen / dull, above=1)

# %% [markdown] trap="12.4" role="more"
# The code has a second fault, in the tail of the normal distribution.
# `torch.special.ndtr` computes `(1 + erf) / 2`, which rounds to 0 ten standard deviations
# below the mean. The score of such a candidate is then far too large, and a little nearer
# to the mean, it can be negative. The complementary error function, `erfc`, keeps the
# small value.

# %% trap="12.4" role="more"
z = torch.tensor([-5.0, -7.5, -10.0], dtype=torch.float64)
by_erf, by_erfc = torch.special.ndtr(z), torch.erfc(-z / 2**0.5) / 2
for row in zip(z.tolist(), by_erf.tolist(), by_erfc.tolist()):
    print("z {:5}   ndtr {:.4g}   erfc {:.4g}".format(*row))

# %% trap="12.4" role="more"
claim("probability of a value ten standard deviations below the mean, "
      "computed by ndtr", by_erf[2], expected=0)
claim("probability of a value ten standard deviations below the mean, "
      "computed by erfc", by_erfc[2], above=1e-24)

# %% [markdown] trap="12.4" role="folklore"
# **Told:** A Bayesian search is for "less than `20` dimensions" (in the tutorial named
# below). Elsewhere you read that with eight or more settings, a Bayesian search is no
# better than random search, or that it is always the better choice. **Measured:** The
# next cell compares Bayesian search with random search, 25 runs each, on three surfaces:
# the bowl, a bowl in which only two settings matter, and a bowl with ripples, which has
# several dips along each axis.

# %% trap="12.4" role="folklore"
def two_matter(x, best):
    return bowl(x[:, :2], best[:2])

def rippled(x, best):
    waves = 1 - torch.cos(8 * math.pi * (x - best))
    return bowl(x, best) + 0.1 * waves.sum(1)

table = {surface.__name__: [over_dice(surface, dims, downward)
                            for dims in (2, 8, 12)]
         for surface in (bowl, two_matter, rippled)}
print(" " * 11, "2 settings     8    12")
for name, row in table.items():
    print(f"{name:11}", " ".join(f"{ratio:9.3f}" for ratio in row))

# %% trap="12.4" role="folklore"
claim("bowl with 2 settings: best loss divided by random search's best "
      "loss",
      table["bowl"][0], below=0.1)
claim("bowl with 12 settings: best loss divided by random search's best "
      "loss", table["bowl"][2], below=0.7)
claim("ripples with 12 settings: best loss divided by random search's best "
      "loss", table["rippled"][2], above=0.5)

# %% [markdown] trap="12.4" role="folklore"
# Each ratio comes from eight searches and can change by a factor of two or more when you
# repeat them. The bowl with eight settings was measured twice, here and in the repair.
# With twelve settings, the Bayesian search is still ahead of random search on the bowl
# and on the surface where two settings matter. So the claim "no better from eight
# settings on" is wrong for these two surfaces. On the rippled bowl with twelve settings,
# little of the lead is left, because the Gaussian process expects a smooth surface. On
# that surface, the Bayesian search may not be worth its cost, so "always the better
# choice" is also in doubt. The number of settings is only half of the question. The other
# half is how many of the settings matter, and how smooth the loss is. Real training adds
# noise; the section on search after the traps has an example.

# %% trap="12.4" role="exercise" points=4 difficulty=3 minutes=15
def expected_improvement(mean, std, best: float) -> torch.Tensor:
    """Compute how far each loss is expected to fall below the best loss.

    A candidate's loss is normally distributed, and a smaller loss is
    better. The improvement is best minus the loss, or 0 if that is
    negative; the result is the expected improvement.

    Args:
        mean, std: the means and standard deviations, float64, of the same
            shape, which can be any. They are left as they are.

    Returns:
        One value for each candidate. The result is a float64 tensor of the
        shape of mean.

    Where std is 0, the loss equals its mean, and the result is not NaN. No
    constant is added to std, because tiny standard deviations count. An
    unlikely improvement is small but not zero, and it is correct to a
    thousandth even for a mean 30 standard deviations above best.
    Example: mean [1., 2.], std [2., 0.] and best 1. give [0.798, 0.].
    """
    # BEGIN SOLUTION
    gain = best - mean
    z = gain / std                               # not read where std is 0
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    below = torch.erfc(-z / math.sqrt(2)) / 2
    spread = gain * below + std * density
    return torch.where(std > 0, spread, gain.clamp(min=0))
    # END SOLUTION

# %% [markdown] trap="12.4" role="hint"
# 1. Compute the formula, then let `where` choose between two results: one for a
#    standard deviation above 0, and one for 0. (No gradient passes through `where`
#    here. Trap 12.5 shows what would happen if one did.)
# 2. The probability of a loss below `best` is `erfc(-z / sqrt(2)) / 2`, which is accurate
#    even for tiny probabilities. So is `torch.special.log_ndtr(z).exp()`.
# 3. When the standard deviation is 0, the improvement is `best - mean`, or 0 if that difference is negative.

# %% [markdown] trap="12.4" role="keep"
# **Keep:** Always run random search as a baseline, with the same budget. If your search
# loses to random search, look for a bug before you blame the number of settings or a
# rough loss surface. **In your own code:** Compute the score for a low and a high
# predicted mean, and look at the settings of the last few runs. **Source:** [Frazier
# 2018](https://arxiv.org/abs/1807.02811), a tutorial that maximizes. **Seen in the
# wild:** [alonfnt/bayex#56](https://github.com/alonfnt/bayex/pull/56) reports a search
# that was "no better than uniform random search" and lists four defects, among them a
# likelihood with the wrong sign. In
# [linkedin/photon-ml#385](https://github.com/linkedin/photon-ml/pull/385), a formula for
# expected improvement, written for maximization, was applied to a loss.

# %% [markdown] trap="12.5" role="situation" core=true fault="torch.where around sqrt: the gradient is NaN" symptom="loss is finite but the gradients are NaN: torch.where around sqrt, gradient clipping does not help"
# ## The same picture twice
#
# A net maps each image to 8 numbers, and the loss is the mean Euclidean distance between
# paired outputs. Each distance is a square root, whose slope is infinite at zero. In one
# batch of 64 pairs, one pair is the same image twice. Your code guards the root with
# `torch.where`; the code below shows five other guards. With each of the six guards, this
# batch has the usual loss of 0.2. A review comment says: "Keep `where`: it lets no
# infinite value through."

# %% trap="12.5" role="break"
def guarded(d2):
    return torch.where(d2 > 0, d2.sqrt(), 0)

net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
left = x_train[torch.randint(1300, (64,))]
right = x_train[torch.randint(1300, (64,))]
right[7] = left[7]                           # the same image

def gradients(root):
    """Return the loss of the 64 pairs; leave the gradients in the net."""
    d2 = ((net(left) - net(right)) ** 2).sum(1)          # (64,)
    loss = root(d2).mean()
    net.zero_grad()
    loss.backward()
    return loss.item()

# %% trap="12.5" role="break"
guards = {
    "where": guarded,
    "nan_to_num": lambda d2: d2.sqrt().nan_to_num(),
    "times the mask": lambda d2: d2.sqrt() * (d2 > 0),
    "masked_fill": lambda d2: d2.sqrt().masked_fill(d2 == 0, 0),
    "clamp at 1e-12": lambda d2: d2.clamp(min=1e-12).sqrt(),
    "plus 1e-12": lambda d2: (d2 + 1e-12).sqrt()}
by_guard = {name: gradients(guard) for name, guard in guards.items()}

# %% trap="12.5" role="guess" quoted="wrong"
guess("12.5",
      "You use `where`, clip the gradients and take one step. What "
      "percentage of the weights are NaN afterwards?",
      choices=["0 %",
               "about 2 %",
               "about 50 %",
               "100 %"])

# %% trap="12.5" role="look"
def nan_share(tensors):
    return torch.cat([t.flatten() for t in tensors]).isnan().float().mean()

spoilt = {}
for name, guard in guards.items():
    gradients(guard)
    spoilt[name] = nan_share(p.grad for p in net.parameters()).item()
    print(f"{name:15} loss {by_guard[name]:.2f}, gradients NaN "
          f"{spoilt[name]:.0%}")
whole = sum(share == 0 for share in spoilt.values())

# %% [markdown] trap="12.5" role="look"
# With four of the six guards, one pair turns many gradients into NaN. The finite
# gradients belong to units that are inactive for that pair. Clip the gradients from
# `where`, take one SGD step, and count the NaN values:

# %% trap="12.5" role="look"
loss = gradients(guarded)
raw = [p.grad.clone() for p in net.parameters()]
nn.utils.clip_grad_norm_(net.parameters(), 1.0)
clipped = [p.grad for p in net.parameters()]
stepped = [p.detach() - 0.1 * p.grad for p in net.parameters()]
before, after, share = map(nan_share, (raw, clipped, stepped))
print(f"loss {loss:.2f}, weights NaN after a step: {share:.0%}")

# %% trap="12.5" role="look"
measured("12.5", 3)

# %% trap="12.5" role="look"
claim("fraction of weights that are NaN after the step", share, expected=1)

# %% trap="12.5" role="look"
plot_columns({"gradients": 100 * before, "gradients, clipped": 100 * after,
              "weights after a step": 100 * share}, form=".0f", xlabel="",
             ylabel="% that are NaN", marks=["gradients, clipped"],
             title="Clipping spreads the NaN",
             alt="Three columns of the percentage that is NaN. Before "
                 "clipping, a part of the gradients is NaN; after "
                 "clipping, all gradients are; and after the step, all "
                 "weights are.")

# %% [markdown] trap="12.5" role="why"
# In the backward pass, `where` sends a gradient of *zero* into the unchosen branch, and
# the root multiplies this zero by its infinite slope: `0 * inf` is `nan`. A mask or
# `nan_to_num` after the root comes too late, too. A small number added under the root, or
# a `clamp` before it, keeps the slope finite. Clipping then divides every gradient by the
# global norm, which is `nan`.

# %% trap="12.5" role="why" tags=["plumbing"]
d2 = torch.zeros((), requires_grad=True)
root = d2.sqrt()
chosen = torch.where(d2 > 0, root, 0)
for inner in (root, chosen):
    inner.retain_grad()
chosen.backward()
graph = {name: f"{t.item():.0f}, gradient {t.grad.item():.0f}" for name, t
         in {"d2": d2, "sqrt": root, "where": chosen}.items()}

# %% trap="12.5" role="why"
draw_tree({**graph, "constant 0": "taken"},
          [("d2", "sqrt"), ("sqrt", "where"), ("constant 0", "where")],
          marks=["d2"],
          title="A gradient of 0 reaches the root, and nan leaves it",
          alt="A graph of four boxes. The distance d2, which is zero, "
              "leads to a root. The root and a constant lead to where. The "
              "gradient of where is one, the root's gradient is zero, and "
              "d2's gradient is NaN.")

# %% [markdown] trap="12.5" role="repair"
# Keep the bad number out of both branches: apply `where` *before* the root, and again
# after the root.

# %% trap="12.5" role="repair"
def safe(d2):
    apart = d2 > 0
    inside = torch.where(apart, d2, 1)       # no zero reaches the root
    return torch.where(apart, inside.sqrt(), 0)

safe_loss = gradients(safe)
mended = nan_share(p.grad for p in net.parameters())
norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0,
                                error_if_nonfinite=True)
print(f"loss {safe_loss:.2f}, gradients NaN: {mended:.0%}")

# %% trap="12.5" role="repair"
claim("fraction of gradients that are NaN, with the safe root", mended,
      expected=0)

# %% [markdown] trap="12.5" role="repair"
# A NaN from the forward pass, as in trap 12.1, leaves a different trace from one that
# arises in the backward pass or is added to the loss. In the explorer, choose a fault,
# drag it to a layer, and guess which values and gradients are NaN before you look.

# %% role="explore" explorer="nan_hunt"
from dlsys_helpers.explorers.nan_hunt import nan_hunt

nan_hunt

# %% [markdown] trap="12.5" role="more" topics="before the clipping · an infinity in place of the NaN"
# Before clipping, the gradients of some hidden units were still finite, because these
# units are inactive for the repeated image, and an inactive ReLU passes nothing back. If
# the bad value is an infinity instead of a NaN, clipping turns all other gradients into
# zeros.

# %% trap="12.5" role="more"
claim("loss with where as the guard", loss, above=0.1, below=0.4)
claim("number of guards, out of six, whose gradients are all finite",
      whole, expected=2)
claim("largest gap between the losses of any two guards",
      max(by_guard.values()) - min(by_guard.values()), below=1e-4)
claim("fraction of gradients that are NaN before clipping", before,
      above=0.2, below=0.95)
claim("norm of all gradients, with the safe root", norm, above=0)

# %% [markdown] trap="12.5" role="folklore"
# **Told:** A NaN is hardly ever the fault of the model's code. **Measured:** In four of
# the five examples below, the code is at fault, but its return value does not show this.
# All five functions return a finite value, but four of them have a gradient that is not
# finite. For some functions, such as `norm` at zero, torch itself handles the point where
# the gradient is undefined; check this before you rely on it.

# %% trap="12.5" role="folklore"
def slope(f, *x):
    x = torch.tensor(x, requires_grad=True)
    value = f(x).sum()
    value.backward()
    return bool(value.isfinite()), bool(x.grad.isfinite().all())

family = {
    "where around sqrt": slope(guarded, 1.0, 0.0),
    "where around x log x": slope(
        lambda x: torch.where(x > 0, x * x.log(), 0), 1.0, 0.0),
    "where around x ** 0.5": slope(
        lambda x: torch.where(x > 0, x ** 0.5, 0), 1.0, 0.0),
    "acos at 1": slope(torch.acos, 1.0),
    "norm of zeros": slope(torch.linalg.vector_norm, 0.0, 0.0)}
for name, (value, gradient) in family.items():
    print(f"{name:22} value finite: {value}   gradient: {gradient}")

# %% trap="12.5" role="folklore"
claim("number of functions, out of five, with a value that is not finite",
      sum(not value for value, _ in family.values()), expected=0)
claim("number of functions, out of five, with a gradient that is not "
      "finite",
      sum(not gradient for _, gradient in family.values()), expected=4)

# %% trap="12.5" role="exercise" points=3 difficulty=2 minutes=10
def safe_sqrt(x: torch.Tensor) -> torch.Tensor:
    """Compute the square root of x where x > 0. Where x <= 0, return 0.

    Args:
        x: float32 or float64 of any shape. x is left as it is.

    Returns:
        A tensor of the same dtype.

    Where x <= 0, the gradient is 0. Elsewhere, the square root has its
    usual gradient. No constant is added, so the result is exact even for
    the smallest x. A NaN in x stays a NaN in the result.

    Example: [4., 0., -1.] gives [2., 0., 0.], with a gradient of [0.25, 0.,
    0.].
    """
    # BEGIN SOLUTION
    out = x <= 0
    return torch.where(out, 0, torch.where(out, 1, x).sqrt())
    # END SOLUTION

# %% [markdown] trap="12.5" role="hint"
# 1. Use `where` twice: once before the root, so that the root gets only positive numbers,
#    and once after the root.
# 2. What is `nan > 0`, and what is `nan <= 0`? Your choice between these conditions
#    decides where a NaN ends up.

# %% [markdown] trap="12.5" role="keep"
# **Keep:** `torch.where` hides a bad value, but not its gradient. Replace the bad number
# before it reaches the function. Clipping by norm spreads a NaN to every gradient unless
# you pass `error_if_nonfinite=True`. **In your own code:** Look for `sqrt`, `log`,
# `acos`, `/` and `**` inside a `where` or multiplied by a mask, and check their gradients
# at the edge of their domain. **Source:** PyTorch's [tutorial on masked
# tensors](https://github.com/pytorch/tutorials/pull/2050), "Distinguishing between 0 and
# NaN gradient". **Seen in the wild:**
# [Ciela-Institute/caustics#83](https://github.com/Ciela-Institute/caustics/pull/83) fixes
# NaN gradients in two lens models, because `where` "does not protect from nans in the off
# branch"; [pytorch/pytorch#156212](https://github.com/pytorch/pytorch/issues/156212)
# calls the same problem "terrible to debug".

# %% [markdown] role="concept"
# ## One ordered search for a NaN
#
# The loss is `nan` at step 15,000. You have met two causes, a standard deviation of 0 and
# the slope of a root at 0. Other causes are a bad value in the data, a weight that became
# NaN earlier, a number too large for `float16`, and the logarithm of 0 in the loss. A
# training step passes six places in a fixed order, so check these places in the same
# order. The first check that fails names the place where the NaN arises.

# %% role="concept"
draw_blocks({"a step": ["batch", "weights", "modules", "loss", "gradients",
                        "new weights"],
             "ask": ["finite, in range?", "finite before the step?",
                     "all outputs finite?",
                     "finite loss?",
                     "finite gradients?",
                     "finite after the step?"]},
            captions={"a step": "from top to bottom",
                      "ask": "the first no is the cause"},
            title="Six places, in the order of a step",
            alt="Two columns of six blocks. The left column shows the "
                "parts of a step: batch, weights, modules, loss, "
                "gradients, new weights. The right column shows the "
                "question to ask about each part.")

# %% [markdown] role="concept"
# Save the batch and the weights the first time the loss or the gradient norm is not
# finite. Then one function, which uses `watch` and `blamed` from trap 12.1, can run the
# checks (it does not look at the targets or at buffers):

# %% role="concept"
def place_of_nan(net, x, y, loss_of=F.cross_entropy):
    """Name the first place in a step that is not finite, or return ""."""
    if not x.isfinite().all():
        return "batch"
    for name, p in net.named_parameters():
        if not p.isfinite().all():
            return f"weight {name}"
    for name, into, out in watch(net, x):
        if into and not out:
            return f"module {name}"
    if not loss_of(net(x), y).isfinite():
        return "loss"
    said = blamed(lambda: loss_of(net(x), y).backward())
    return f"gradient, {said.split()[1]}" if said else ""

# %% [markdown] role="concept"
# Try the function on five faults, one at a time. The third fault squares 300 in
# `float16`, whose largest finite value is 65,504. The square is too large and becomes
# infinite:

# %% role="concept"
class HalfSquare(nn.Module):
    """Square the input in float16."""

    def forward(self, h):
        return (h.half() ** 2).float()

def layers(*middle):
    return nn.Sequential(nn.Linear(64, 32), *middle, nn.Linear(32, 10))

def log_of_softmax(z, y):               # the softmax of -200 is 0
    return -(200 * z).softmax(1).log().gather(1, y[:, None]).mean()

def distance_to_itself(z, y):           # a root whose argument is 0
    return guarded(((z - z.detach()) ** 2).sum(1)).mean()

# %% role="concept"
x, y = x_train[:64].clone(), y_train[:64]
holed, spoilt_net, loud = x.clone(), layers(), layers(HalfSquare())
holed[3, 7] = torch.nan
with torch.no_grad():
    spoilt_net[0].weight[5, 5] = torch.nan
    loud[0].bias += 300
places = {"a bad pixel": place_of_nan(layers(), holed, y),
          "a weight spoilt earlier": place_of_nan(spoilt_net, x, y),
          "300 squared in float16": place_of_nan(loud, x, y),
          "the log of 0": place_of_nan(layers(), x, y, log_of_softmax),
          "the root of 0": place_of_nan(layers(), x, y, distance_to_itself),
          "no fault": place_of_nan(layers(), x, y)}
for fault, place in places.items():
    print(f"{fault:24} {place}")

# %% role="concept"
claim("largest finite number in float16", torch.finfo(torch.float16).max,
      expected=65504)
claim("number of faults, out of five, that are found at the right place",
      sum(found.startswith(place) for found, place in zip(
          places.values(), ("batch", "weight 0.weight", "module 1", "loss",
                            "gradient, 'Sqrt"))), expected=5)
claim("is anything found when there is no fault", bool(places["no fault"]),
      expected=False)

# %% [markdown] role="concept"
# What you do next depends on the place. If the batch is at fault, fix the data, and count
# the batches that you drop. If the weights are at fault, go back to the last checkpoint
# with finite weights, and find the step that broke the weights. If a module is at fault,
# compute that module in `float32` or `bfloat16`, or guard its argument. If the loss is at
# fault, use the version of the loss function that takes logits. If a gradient is at
# fault, keep the bad number out of the branch, as in trap 12.5. If only the new weights
# are not finite, check the optimizer's `eps` or lower the learning rate. (Under `float16` with a `GradScaler`, an
# infinite gradient now and then is normal. The scaler skips that step and lowers its
# scale.)
#
# A NaN can come from six places, and most other faults can come from more than six. A
# separate page, *Search for an unknown cause*, shows how to search for a cause that is on
# no list. `dlsys incident` gives you six such searches to practise on, in which every
# look has a price.

# %% [markdown] trap="12.6" role="situation" core=true fault="a stored loss keeps the trained weights alive" symptom="GPU memory grows with each trial of a search, losses.append(loss) after backward, del model does not free memory"
# ## Five losses in a list
#
# A search trains five classifiers, one after the other, using the same variable name for
# each. Each classifier has two hidden layers of 512 units. To choose the best classifier
# later, the search appends each classifier's last training loss to a list, still as a
# tensor, after `backward()` and the optimizer step. At the end, the search deletes the
# model and the optimizer.
#
# In trap 02.5, a loop without `backward()` summed its losses, and the sum kept every
# batch's activations alive. Your own comment says: "Here `backward()` has freed the
# activations, so only five numbers are left."

# %% trap="12.6" role="break" tags=["plumbing"]
import weakref

# These two cells count the tensors that graphs still hold for backward().
# A graph made under counted() holds each of them in a Kept, which leaves
# the set below when the graph drops it.
kept = weakref.WeakSet()

class Kept:
    """A stand-in for a tensor that a graph saves for backward()."""

    def __init__(self, tensor):
        self.tensor = tensor.detach()    # its history would keep it alive
        kept.add(self)

def counted():
    return torch.autograd.graph.saved_tensors_hooks(
        Kept, lambda held: held.tensor)

# %% trap="12.6" role="break" tags=["plumbing"]
def held_mb(net):
    """MB that graphs hold, not counting the data and net's weights."""
    own = {t.untyped_storage().data_ptr()
           for t in (x_train, y_train, *net.parameters())}
    found = {held.tensor.untyped_storage().data_ptr(): held.tensor.nbytes
             for held in list(kept)}
    return sum(size for at, size in found.items() if at not in own) / 1e6

# %% trap="12.6" role="break"
parts = list(zip(x_train[:480].split(24), y_train[:480].split(24)))

def wide():
    """A classifier with 1.2 MB of weights."""
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(),
                         nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, 10))

# %% trap="12.6" role="break"
def train(net, opt, keep, **how):
    """Train for 20 steps, keep() each loss; return MB of activations."""
    with counted():
        for x, y in parts:
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward(**how)
            opt.step()
            keep(loss)
    del loss
    return held_mb(net)

# %% trap="12.6" role="break"
def search(form):
    """Run five trials; return what they stored, and MB of three kinds."""
    stored, weights = [], []
    for _ in range(5):
        net, losses = wide(), []
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        train(net, opt, losses.append)
        stored.append(form(losses[-1]))
        weights += [weakref.ref(p) for p in net.parameters()]
    activations = held_mb(net)
    del net, opt, losses
    left = [p() for p in weights if p() is not None]
    return (stored, activations, sum(p.nbytes for p in left) / 1e6,
            sum(p.grad.nbytes for p in left) / 1e6)

stored, *held = search(lambda loss: loss)

# %% trap="12.6" role="guess" quoted="wrong"
guess("12.6", "How many MB do the five stored losses keep in memory?",
      unit="MB")

# %% trap="12.6" role="look"
activations, alive, slopes = held
one = sum(p.nbytes for p in wide().parameters()) / 1e6
print(f"one classifier: {one:.2f} MB of weights")
print(f"{len(stored)} losses: {alive:.2f} MB of weights alive, "
      f"{slopes:.2f} MB of gradients, {activations:.2f} MB of activations")

# %% trap="12.6" role="look"
measured("12.6", alive + slopes + activations, right=(10, 15))

# %% trap="12.6" role="look"
claim("MB of weights still in memory, divided by MB of one classifier's "
      "weights", alive / one, expected=5)

# %% [markdown] trap="12.6" role="why"
# As it runs, `backward()` frees the tensors saved in the graph, even if something still
# holds the loss. But the graph's nodes live as long as the loss. The nodes at the far end
# hold the weights, because the gradients go there, and each weight holds its gradient.
# Deleting the name `net` does not free the weights. The arrows below follow the forward
# pass. References point the other way: each box keeps alive the boxes that lead to it.

# %% trap="12.6" role="why" tags=["plumbing"]
def behind(loss):
    """Count the nodes of the loss's graph; list the weights at its ends."""
    nodes, todo = set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            todo += [before for before, _ in node.next_functions]
    return len(nodes), [node.variable for node in nodes
                        if hasattr(node, "variable")]

nodes, ends = behind(stored[0])
reached = sum(p.nbytes + p.grad.nbytes for p in ends) / 1e6

# %% trap="12.6" role="why"
draw_tree({"weights, gradients": f"{reached:.1f} MB alive",
           "activations": f"{activations:.0f} MB", f"{nodes} nodes": "",
           "loss": "in the list"},
          [("weights, gradients", f"{nodes} nodes"),
           ("activations", f"{nodes} nodes"), (f"{nodes} nodes", "loss")],
          cuts=[("activations", f"{nodes} nodes")],
          cut_name="freed by backward()", marks=["weights, gradients"],
          title="One loss keeps a whole classifier in memory",
          alt="A graph of four boxes. The weights with their gradients and "
              "the activations lead to the nodes, and the nodes lead to "
              "the loss in the list. The edge from the activations is cut.")

# %% [markdown] trap="12.6" role="repair"
# A Python number has no graph, so store `loss.item()`.

# %% trap="12.6" role="repair"
forms = {"loss": lambda loss: loss, "loss.detach()": torch.Tensor.detach,
         "loss.item()": torch.Tensor.item}
left = {name: search(form)[2] for name, form in forms.items()}

# %% trap="12.6" role="repair"
claim("MB of weights in memory if the losses are stored as numbers",
      left["loss.item()"], expected=0)

# %% trap="12.6" role="repair"
plot_columns(left, xlabel="stored as", ylabel="MB of weights alive",
             marks=["loss"], reference=(one, "one classifier"), form=".1f",
             title="Losses with a graph keep five classifiers in memory",
             alt="Three columns of megabytes of weights in memory. If the "
                 "losses themselves are stored, the column has the size of "
                 "five classifiers. If the losses are detached or stored "
                 "as numbers, it is zero.")

# %% [markdown] trap="12.6" role="more" topics="activations · what one loss reaches · detached losses"
# The activations are gone, but each loss still reaches its classifier's weights and
# gradients. A detached tensor has no graph, so it reaches neither.

# %% trap="12.6" role="more"
claim("MB of activations that the stored losses keep in memory",
      activations, expected=0)
claim("MB that one stored loss keeps in memory, divided by MB of one "
      "classifier's weights", reached / one, expected=2)
claim("MB of weights in memory if the losses are stored detached",
      left["loss.detach()"], expected=0)

# %% [markdown] trap="12.6" role="folklore"
# **Told:** If you write `total_loss += loss` after the step, the memory fills up; such a
# loop is the first example in PyTorch's own FAQ. **Measured:** The sum keeps no
# activations alive, whether the net is this classifier under SGD, a convolution with
# BatchNorm under Adam, or LayerNorm with dropout under AdamW. Each step adds only nodes
# to the sum's graph. Activations do stay after `backward(retain_graph=True)`, in an
# `autograd.Function` that keeps them on `ctx` without `save_for_backward`, or if you
# compute a second loss for the log and never call `backward()` on it.

# %% trap="12.6" role="folklore"
conv = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3),
                     nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                     nn.Linear(288, 10))
normed = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(),
                       nn.Dropout(0.1), nn.Linear(64, 10))

def running(net, optimizer, **how):
    """Return the MB of activations and the nodes of a sum over 20 steps."""
    sums = [0.0]
    def keep(loss):
        sums[0] = sums[0] + loss
    held = train(net, optimizer(net.parameters(), 0.01), keep, **how)
    return held, behind(sums[0])[0]

# %% trap="12.6" role="folklore"
found = {"classifier, SGD": running(wide(), torch.optim.SGD),
         "convolution, Adam": running(conv, torch.optim.Adam),
         "LayerNorm, AdamW": running(normed, torch.optim.AdamW)}
stays = running(wide(), torch.optim.SGD, retain_graph=True)[0]
net, log = wide(), []
with counted():
    for x, y in parts:
        logits = net(x)
        F.cross_entropy(logits, y).backward()
        log.append(F.cross_entropy(logits, y, label_smoothing=0.1))
logged = held_mb(net)
for name, (held, nodes) in found.items():
    print(f"{name:18} {held:.2f} MB held, {nodes} nodes")
print(f"retain_graph {stays:.2f} MB; a loss for the log {logged:.3f} MB")

# %% trap="12.6" role="folklore"
claim("MB of activations that a running sum keeps in memory, largest of "
      "three nets", max(held for held, _ in found.values()), expected=0)
claim("number of nodes in the graph of a running sum over 20 steps, "
      "smallest of three nets",
      min(nodes for _, nodes in found.values()), above=100)
claim("MB of activations that a running sum keeps in memory with "
      "retain_graph", stays, above=1.9)

# %% [markdown] trap="12.6" role="folklore"
# A loss computed only for the log keeps just the tensors that its own nodes have saved.
# The rest of the graph was shared with the training loss, whose `backward()` has freed
# the tensors there.

# %% trap="12.6" role="folklore"
claim("MB that 20 losses computed only for the log keep in memory", logged,
      above=0.01, below=0.1)
log.clear()

# %% trap="12.6" role="exercise" points=3 difficulty=2 minutes=10
def make_meter() -> tuple:
    """Make two functions that compute the mean loss over many batches.

    Returns:
        (add, mean). add(loss, rows): loss is the mean loss of a batch, a
        tensor of shape () of any float dtype, with or without a graph. rows
        is the batch's number of rows, 1 or more. mean() returns the mean
        over all rows so far as a float, summed in double precision. Before
        the first batch, mean() returns math.nan. mean() can be called at
        any time, and more batches may be added after that.

    add leaves loss as it is, and backward() still works. After the caller
    has dropped loss, nothing that only loss referred to stays in memory. A
    meter's memory does not grow with the number of batches. Each call of
    make_meter returns a new meter.

    Example: a loss of 2. over 1 row and a loss of 5. over 2 rows give 4.0.
    """
    # BEGIN SOLUTION
    total, count = 0.0, 0

    def add(loss, rows):
        nonlocal total, count
        total += loss.item() * rows
        count += rows

    def mean():
        return total / count if count else math.nan

    return add, mean
    # END SOLUTION

# %% [markdown] trap="12.6" role="hint"
# 1. Two numbers are enough: a sum and a count of rows. The inner functions can change them with `nonlocal`.
# 2. When the last batch is smaller, the mean over batches is not the mean over rows.
#    Weight each loss by its batch's number of rows.
# 3. `loss.detach()` has no graph, but it still shares the memory of `loss`. Which call returns a Python number?

# %% [markdown] trap="12.6" role="keep"
# **Keep:** `backward()` frees the activations, but a stored loss tensor still holds its
# graph and, through it, the trained weights and their gradients. If a value has to
# outlive the step, store it as a number, with `loss.item()`. **In your own code:** Search
# for `append(loss)` and `+= loss`. After a trial, delete the model and print
# `torch.cuda.memory_allocated()`. **Source:** PyTorch, [Frequently Asked
# Questions](https://docs.pytorch.org/docs/stable/notes/faq.html), "Don't accumulate
# history across your training loop". **Seen in the wild:** In
# [ray-project/ray#40940](https://github.com/ray-project/ray/pull/40940), a training
# example's `loss_sum += loss` kept losses from being freed;
# [TRI-ML/packnet-sfm#51](https://github.com/TRI-ML/packnet-sfm/pull/51) is titled "Detach
# loss before appending it to the training output list".

# %% [markdown] trap="12.7" role="situation" fault="overfitting one batch passes with wrong labels" symptom="model overfits one batch but does not learn: labels shifted against the inputs"
# ## The first test of a pipeline
#
# Images and labels come from two files. The label file has one extra line at the start,
# so each image gets the label of its neighbour in the list.
#
# To test the pipeline, the team trains a net with 64 hidden units for 300 steps on one
# batch of 50 digits.

# %% trap="12.7" role="break"
def trained(x, y, reduction="mean", shuffle=True, epochs=5):
    """Train; return the loss of the first 50 rows and the test accuracy."""
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(epochs):
        rows = torch.randperm(len(x)) if shuffle else torch.arange(len(x))
        for part in rows.split(50):
            opt.zero_grad()
            F.cross_entropy(net(x[part]), y[part],
                            reduction=reduction).backward()
            opt.step()
    with torch.no_grad():
        last = F.cross_entropy(net(x[:50]), y[:50]).item()
    return last, accuracy(net, x_test, y_test)

# %% trap="12.7" role="break"
shifted = y_train.roll(1)                        # one line off
one_batch, _ = trained(x_train[:50], shifted[:50], epochs=300)

# %% trap="12.7" role="guess"
guess("12.7", "What is the loss of the batch of 50 digits after the 300 "
              "steps?",
      choices=["about 2.3",
               "about 1.5",
               "about 0.7",
               "below 0.1"])

# %% trap="12.7" role="look"
print(f"loss on one batch: {one_batch:.2f}")

# %% trap="12.7" role="look"
measured("12.7", 3)

# %% trap="12.7" role="look"
claim("loss on one batch with shifted labels", one_batch, below=0.1)

# %% [markdown] trap="12.7" role="look"
# The one-batch test has passed, so the team trains on all digits.

# %% trap="12.7" role="look"
_, read = trained(x_train, shifted)
print(f"trained on all digits: test accuracy {read:.0%}")

# %% trap="12.7" role="look"
claim("test accuracy with shifted labels", read, below=0.25)

# %% [markdown] trap="12.7" role="why"
# The net has more weights than the batch has pixels, so it can memorize 50 labels, right
# or wrong. The test shows that the loss can fall. It does not show whether the labels
# belong to their images or whether the batches are put together correctly. Two other
# faults also lead to a low accuracy:

# %% trap="12.7" role="why" tags=["plumbing"]
order = y_train.argsort()
scores = {"as it should be": trained(x_train, y_train)[1],
          "sum instead of mean": trained(x_train, y_train, "sum")[1],
          "sorted by label":
          trained(x_train[order], y_train[order], shuffle=False)[1]}

# %% trap="12.7" role="why"
faults = {**scores, "labels shifted": read}
plot_columns({name: 100 * share for name, share in faults.items()},
             xlabel="", ylabel="test accuracy in %", form=".0f",
             marks=[*faults][1:], reference=(10, "guessing"),
             title="Each of the three faults costs accuracy",
             alt="Four columns of test accuracy. Without a fault, the "
                 "accuracy is above 90 %. With a sum instead of the mean, "
                 "with sorted data and with shifted labels, it is far "
                 "lower.")

# %% [markdown] trap="12.7" role="repair"
# Each of the three faults has its own test, which needs no training. For the labels: do
# images that are close to each other have the same label? For the scale of the loss: does
# the loss stay the same when every row of a batch appears twice? For the order: how many
# classes are in one batch?

# %% trap="12.7" role="repair"
def agreement(x, y):
    """Fraction of rows whose nearest other row has the same label."""
    gaps = torch.cdist(x, x).fill_diagonal_(torch.inf)
    return (y[gaps.argmin(1)] == y).float().mean().item()

def doubled(reduction):
    """Loss of a batch with each row twice, divided by the batch's loss."""
    z, y = torch.randn(50, 10), y_train[:50]
    one = F.cross_entropy(z, y, reduction=reduction)
    twice = F.cross_entropy(z.repeat(2, 1), y.repeat(2),
                            reduction=reduction)
    return (twice / one).item()

# %% trap="12.7" role="repair"
print(f"neighbours agree: {agreement(x_train, y_train):.0%},"
      f" shifted {agreement(x_train, shifted):.0%}")
print(f"doubled: mean {doubled('mean'):.1f}, sum {doubled('sum'):.1f}")
print("classes in a batch:", len(y_train[:50].unique()),
      " sorted:", len(y_train[order][:50].unique()))

# %% trap="12.7" role="repair"
claim("fraction of images whose nearest neighbour has the same label, "
      "with shifted labels", agreement(x_train, shifted), below=0.2)

# %% [markdown] trap="12.7" role="more" topics="the four scores · the two other tests"
# At the same learning rate, SGD on a sum of 50 losses takes steps 50 times as large as
# SGD on the mean:

# %% trap="12.7" role="more"
claim("test accuracy without a fault",
      scores["as it should be"], above=0.85)
claim("test accuracy with a sum instead of the mean, at the same learning "
      "rate", scores["sum instead of mean"], below=0.4)
claim("test accuracy with the data sorted by label",
      scores["sorted by label"], below=0.6)

# %% [markdown] trap="12.7" role="more"
# With the correct labels, nearly all images have a nearest neighbour with the same label.
# And a loss summed over the batch doubles when each row appears twice:

# %% trap="12.7" role="more"
claim("fraction of images whose nearest neighbour has the same label, "
      "with correct labels", agreement(x_train, y_train), above=0.9)
claim("summed loss of a batch with each row twice, divided by its summed "
      "loss with each row once", doubled("sum"), expected=2, within=0.001)

# %% trap="12.7" role="exercise" points=4 difficulty=3 minutes=15
def diagnose(model: nn.Module, loss_fn, batches: list) -> str:
    """Name the one fault that a training run has, or return "none".

    "frozen": no parameter of model requires a gradient. "sum": the loss of
    a batch with each row twice is twice the loss of the batch. "order":
    each batch contains a single class. "labels": fewer than half of all
    rows have the label of their nearest other row (Euclidean distance, over
    all batches together).

    Args:
        model: maps x to logits (N, C).
        loss_fn: loss_fn(logits, y) is a tensor of shape (), above 0 or
            below 0.
        batches: one epoch, a list of (x, y). x is (N, F) float32, with no
            two rows equal, and y is (N,) int64. N is 2 or more and can
            differ between batches.

    A run has at most one fault. Nothing is trained. The model's weights,
    modes, buffers and gradients do not change, nor do the batches.
    """
    # BEGIN SOLUTION
    if not any(p.requires_grad for p in model.parameters()):
        return "frozen"
    x, y = batches[0]
    z = copy.deepcopy(model).eval()(x)
    twice = loss_fn(torch.cat([z, z]), torch.cat([y, y]))
    if twice.abs() > 1.5 * loss_fn(z, y).abs():
        return "sum"
    if all(len(y.unique()) == 1 for _, y in batches):
        return "order"
    x = torch.cat([x for x, _ in batches])
    y = torch.cat([y for _, y in batches])
    gaps = torch.cdist(x, x).fill_diagonal_(torch.inf)
    fitting = y[gaps.argmin(1)] == y
    return "labels" if fitting.float().mean() < 0.5 else "none"
    # END SOLUTION

# %% [markdown] trap="12.7" role="hint"
# 1. Ask four questions, one after the other. The first "yes" names the fault.
# 2. For "sum", concatenate the logits with themselves and pass them to `loss_fn`. A copy of the
#    model in eval mode computes the logits without changing a buffer.
# 3. For "labels", compute `torch.cdist` of all rows with all rows, and set the diagonal
#    to infinity, because each row is nearest to itself.

# %% [markdown] trap="12.7" role="keep"
# **Keep:** Overfitting one batch shows only that the loss can fall. Overfitting one batch
# also works with wrong labels. **In your own code:** Look at ten pairs of input and label
# as they enter the model, count the classes in one batch, and compare a batch's loss with
# its loss when each row appears twice. **Source:** [Zhang et al. 2017, "Understanding
# deep learning requires rethinking generalization"](https://arxiv.org/abs/1611.03530):
# networks can memorize random labels.

# %% [markdown] trap="12.8" role="situation" core=true fault="a job killed while saving leaves no checkpoint" symptom="checkpoint does not load after the job was killed: PytorchStreamReader failed, or Weights only load failed"
# ## The file with the last state
#
# A job may be taken off its machine at any moment, so it saves its state every few
# minutes: `torch.save(state, "last.pt")`. The file below is small. A large checkpoint can
# take minutes to write, and the job can be killed halfway through.
#
# You kill a save 20 times. Each trial starts with a good `last.pt`; a child process saves
# over it, and the kernel kills the child after a random number of bytes. Then you try to
# load `last.pt`.

# %% trap="12.8" role="break" tags=["plumbing"]
import resource
import signal

folder = tempfile.TemporaryDirectory()
path = os.path.join(folder.name, "last.pt")

# %% trap="12.8" role="break" tags=["plumbing"]
def killed_after(n, save, *args):
    """Run save(*args) in a child, killed when a file exceeds n bytes."""
    with warnings.catch_warnings():          # this process has threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (n, hard))
            save(*args)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

# %% trap="12.8" role="break"
state = {"model": nn.Linear(300, 300).state_dict(), "step": 100}
later = {"model": nn.Linear(300, 300).state_dict(), "step": 200}

def step_in(file):
    """The step in a checkpoint, or None if it does not load."""
    try:
        return torch.load(file)["step"]
    except Exception:         # OSError, RuntimeError, UnpicklingError
        return None

# %% trap="12.8" role="break"
def loads(save, kills=20):
    """Count the kills, the files that load, and those from step 100."""
    torch.save(state, path)
    size, died, steps = os.path.getsize(path), 0, []
    for _ in range(kills):
        torch.save(state, path)
        died += killed_after(random.randrange(1, size), save, later) < 0
        steps.append(step_in(path))
    return died, kills - steps.count(None), steps.count(100)

# %% trap="12.8" role="break"
over = loads(lambda new: torch.save(new, path))

# %% trap="12.8" role="guess"
guess("12.8", "In how many of the 20 trials does the file still load?",
      unit="trials")

# %% trap="12.8" role="look"
print(f"killed {over[0]} times; {over[1]} files load")

# %% trap="12.8" role="look"
measured("12.8", over[1], right=(0, 0))

# %% trap="12.8" role="look"
claim("number of files, out of 20, that load after the kill",
      over[1], expected=0)

# %% [markdown] trap="12.8" role="why"
# Opening a file for writing empties it, and from then on, the old state is gone. A file
# system's journal does not help. The journal protects against crashes of the machine, but
# does not undo what a killed process has done. The new state cannot be read before its
# last byte is written, because a checkpoint of `torch.save` is a zip archive, whose table
# of contents comes last.
#
# Instead, write to a *second* file, and rename it when it is complete. `os.replace` swaps
# the name in a single step: a process that opens `last.pt` finds either the old file or
# the new one.

# %% [markdown] trap="12.8" role="repair"
# `os.fsync` waits until the bytes are on the disk. You need this call to survive a power
# cut, but not to survive a kill. (For the new name to survive a power cut, also sync the
# folder.)

# %% trap="12.8" role="repair"
def save_beside(new):
    with open(path + ".part", "wb") as file:
        torch.save(new, file)
        file.flush()                         # what Python still buffers
        os.fsync(file.fileno())
    os.replace(path + ".part", path)

beside = loads(save_beside)
print(f"killed {beside[0]} times; {beside[1]} files load, "
      f"{beside[2]} from step 100")

# %% trap="12.8" role="repair"
claim("number of files, out of 20, that load and hold the old state",
      beside[2], expected=20)

# %% trap="12.8" role="repair"
kb = round(os.path.getsize(path) / 1000)
draw_lanes({"last.pt, saved over": [(0, kb, "broken"),
                                    (kb, 1.3 * kb, "new")],
            "last.pt": [(0, kb, "old"), (kb, 1.3 * kb, "new")],
            "last.pt.part": [(0, kb, "broken")]},
           unit="kB written", marks=["broken"], moments={"a kill": kb / 2},
           title="With a second file, a kill leaves last.pt whole",
           alt="Three lanes over the kilobytes written. If last.pt is "
               "saved over, it is broken until the last byte is written. "
               "If a second file is used, last.pt holds the old state "
               "until then, and only last.pt.part is broken.")

# %% [markdown] trap="12.8" role="repair"
# Even if the file is complete, it may fail to load, or the resumed run may take a
# different course. Store plain Python numbers, the optimizer's state and the random
# generator's state. *More* shows what happens if you do not.

# %% [markdown] trap="12.8" role="more" topics="a numpy number does not load · a resumed run takes a different course"
# By default, `torch.load` refuses arbitrary Python objects, because unpickling them could
# run code. A validation loss computed by numpy is such an object, and you only find out
# when you *load* the file, days later.

# %% trap="12.8" role="more"
def opens(value):
    torch.save({"val_loss": value}, path)
    try:
        return torch.load(path)["val_loss"] == value
    except Exception as error:
        return type(error).__name__

losses = np.array([0.5, 0.25])
print("losses.min():       ", opens(losses.min()))
print("float(losses.min()):", opens(float(losses.min())))

# %% trap="12.8" role="more"
claim("number of kills while saving over the old file",
      over[0], expected=20)
claim("number of kills while saving to a second file",
      beside[0], expected=20)
claim("does a numpy number load", opens(losses.min()) is True,
      expected=False)
claim("does a Python number load", opens(float(losses.min())),
      expected=True)

# %% [markdown] trap="12.8" role="more"
# A run that resumes from a good file may still take a different course. The classifier
# below has dropout and draws its batches at random. It is saved after 20 steps and then
# trained for 20 more steps. Then the file is loaded as in a new process: into a
# classifier with different initial weights, with a new optimizer, and with the random
# generator in a different state.

# %% trap="12.8" role="more"
def fresh():
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2),
                        nn.Linear(32, 10))
    return net, torch.optim.Adam(net.parameters(), lr=1e-3)

def go(net, opt, steps=20):
    for _ in range(steps):
        rows = torch.randint(1300, (32,))
        opt.zero_grad()
        F.cross_entropy(net(x_train[rows]), y_train[rows]).backward()
        opt.step()

net, opt = fresh()
go(net, opt)
save_beside({"net": net.state_dict(), "opt": opt.state_dict(),
             "rng": torch.get_rng_state()})
go(net, opt)                                  # the run without a break

# %% trap="12.8" role="more"
def resumed(*parts):
    """Largest gap between a weight and the unbroken run's weight."""
    stored = torch.load(path)
    other, other_opt = fresh()
    other.load_state_dict(stored["net"])
    if "opt" in parts:
        other_opt.load_state_dict(stored["opt"])
    if "rng" in parts:
        torch.set_rng_state(stored["rng"])
    go(other, other_opt)
    return max((p - q).abs().max().item() for p, q in
               zip(net.parameters(), other.parameters()))

# %% trap="12.8" role="more"
gaps = {"weights": resumed(), "and optimizer": resumed("opt"),
        "and generator": resumed("opt", "rng")}
for name, gap in gaps.items():
    print(f"{name:14} {gap:.1e}")

# %% trap="12.8" role="more"
claim("largest gap to a weight of the unbroken run, with only the weights "
      "restored", gaps["weights"], above=1e-3)
claim("largest gap to a weight of the unbroken run, with weights and "
      "optimizer restored", gaps["and optimizer"], above=1e-3)
claim("largest gap to a weight of the unbroken run, with the generator's "
      "state restored as well", gaps["and generator"], expected=0)

# %% [markdown] trap="12.8" role="more"
# To try this on a training script, compare an uninterrupted run with one that resumes.
# The command `dlsys same` runs both and names the first tensor that differs. Here, the
# script saves its state after three steps, and when it resumes, it does not load the
# optimizer's state:
#
# ```sh
# dlsys same --after 3 train.py "train.py --load at3.pt --first 3 --forget"
# ```
#
# ```text
# First difference: step 1, update of a weight, 0.weight, by 0.69 of the norm.
# The gradients agree, so the optimizer differs: its settings, its rate, or a state that was not restored.
# ```

# %% [markdown] trap="12.8" role="folklore"
# **Told:** Save alternately to two slots, `A` and `B`, and you never lose both.
# **Measured:** One of the two slots is indeed complete after a kill. But the names do not
# say which slot is complete, and if you resume from the newer file, as people usually do,
# you pick the broken slot.

# %% trap="12.8" role="folklore"
slots = [path + ".A", path + ".B"]
torch.save(state, slots[0])
killed_after(100_000, torch.save, later, slots[1])
newest = max(slots, key=os.path.getmtime)
found = step_in(newest)
print("newest slot:", newest[-1], "  step:", found)

# %% trap="12.8" role="folklore"
claim("does the newer slot load", found is not None, expected=False)

# %% trap="12.8" role="exercise" points=5 difficulty=3 minutes=15
def save_checkpoint(path: str, parts: dict, facts: dict) -> None:
    """Save a checkpoint so that the file at path stays whole, even if the
    process is killed at any byte.

    Args:
        path: a file in an existing folder.
        parts: a dict of objects with a state_dict().
        facts: a dict whose values are int, float, bool or numpy scalars.

    torch.load(path), with its default weights_only, then returns a dict:
    its "parts" are the state_dicts by name, and its "facts" Python numbers
    by name. The dict also holds "rng", the result of torch.get_rng_state()
    at the call. The state of the generator does not change.

    If the process is killed while it writes, path is as before: the old
    file, or no file. No byte is written into the old file. os.fsync puts
    the new bytes on the disk before the new file gets its name. A call that
    returns leaves no extra file. The leftovers of a killed call do not stop
    the next call. All other files stay, even if their names begin with
    path; path + ".part" and path + ".tmp" may be treated as leftovers.
    """
    # BEGIN SOLUTION
    state = {"parts": {name: part.state_dict()
                       for name, part in parts.items()},
             "facts": {name: fact.item() if isinstance(fact, np.generic)
                       else fact for name, fact in facts.items()},
             "rng": torch.get_rng_state()}
    with open(path + ".part", "wb") as file:
        torch.save(state, file)
        os.fsync(file.fileno())
    os.replace(path + ".part", path)
    # END SOLUTION

# %% [markdown] trap="12.8" role="hint"
# 1. Take three steps: collect the state, write the state to a second file, and rename
#    that file.
# 2. Numpy scalars are instances of `np.generic`, and `item()` turns each into a Python number.
# 3. `os.fsync(file.fileno())` waits for the disk. The file must still be open when you call it.

# %% [markdown] trap="12.8" role="keep"
# **Keep:** Never save over your only checkpoint. Write to a second file, call `os.fsync`,
# and rename the file with `os.replace`. Store the weights, the step number, and the
# states of the optimizer, the schedule and the random generators. Store single values as
# plain Python numbers. **In your own code:** Kill a save once on purpose, load the file,
# continue training, and compare with an uninterrupted run. **Source:** Python
# documentation, [os.replace](https://docs.python.org/3/library/os.html#os.replace): "the
# renaming will be an atomic operation". **Seen in the wild:** In
# [Lightning-AI/pytorch-lightning#688](https://github.com/Lightning-AI/pytorch-lightning/issues/688),
# a SIGKILL while the file was being written led to "unexpected EOF" at the next load; in
# [optuna/optuna-examples#53](https://github.com/optuna/optuna-examples/pull/53),
# processes were terminated during `torch.save`.

# %% [markdown] role="concept"
# ## Surviving preemption
#
# A *spot* machine costs a fraction of the usual price and can be taken away at any time.
# Kubernetes or Slurm then usually sends a signal, `SIGTERM`, and kills the process some
# seconds or minutes later. (Amazon EC2 itself announces this in the machine's metadata
# and as an EventBridge event, so on EC2, something has to look for the notice and send
# the signal.) A training job survives preemption if it does four things: it saves often enough, it saves
# when the signal arrives, it stores everything that the next step depends on, and it puts
# the file where the next machine can find it.
#
# **How often?** Each save takes time, and on average, each kill throws away the work of
# half an interval. Suppose a save takes 1 minute and a kill comes every 10 hours. Add up
# both kinds of lost time:

# %% role="concept"
save_time, between_kills = 1 / 60, 10.0                  # hours
every = [m / 60 for m in range(5, 181, 5)]               # 5 to 180 minutes
lost = [save_time / t + t / 2 / between_kills for t in every]
by_formula = math.sqrt(2 * save_time * between_kills)
cheapest = every[lost.index(min(lost))]
print(f"cheapest in the list: every {60 * cheapest:.0f} minutes, by the "
      f"formula: {60 * by_formula:.0f}")

# %% role="concept"
plot_lines([60 * t for t in every], {"time lost": [100 * v for v in lost]},
           xlabel="minutes between two saves", ylabel="% of the time",
           title="Saving too often costs time, too seldom costs steps",
           alt="Percentage of time lost, plotted against the minutes "
               "between two saves. It falls steeply from 20 % at 5 minutes "
               "to a flat minimum of 6 % near 35 minutes, and then rises "
               "slowly.")

# %% role="concept"
claim("best interval between two saves among the intervals tried, in "
      "minutes", 60 * cheapest, expected=35)
claim("best interval between two saves according to the formula, in "
      "minutes", 60 * by_formula, expected=34.6, within=0.1)

# %% [markdown] role="concept"
# The lost time is smallest when the interval is `sqrt(2 * save time * time between
# kills)` ([Young 1974](https://doi.org/10.1145/361147.361115)).
#
# **When the signal arrives**, Python runs a *handler*. If the handler saved the model, it
# might do so in the middle of a step. So the handler only sets a flag, and the loop
# checks the flag between two steps. The next step depends on the weights, the optimizer,
# the schedule, the step number, the random generators and the position in the data. Here
# the seed and the epoch number determine the order of the rows, so the step number alone
# tells you which rows come next:

# %% role="concept"
def rows_of(step, batch=50):
    """The rows of a step, from an order seeded by the epoch number."""
    epoch, place = divmod(step, 1300 // batch)
    rng = torch.Generator().manual_seed(1000 * SEED + epoch)
    return torch.randperm(1300, generator=rng)[place * batch:][:batch]

def new_parts():
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2),
                        nn.Linear(32, 10))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    return {"net": net, "opt": opt, "schedule":
            torch.optim.lr_scheduler.CosineAnnealingLR(opt, 60)}

# %% role="concept"
stop = []                                 # the flag that the handler sets
survivor = os.path.join(folder.name, "survivor.pt")

def train_on(parts, step=0, last=60, kill_at=None):
    """Train until the last step or a signal, then save."""
    while step < last and not stop:
        x, y = (t[rows_of(step)] for t in (x_train, y_train))
        parts["opt"].zero_grad()
        F.cross_entropy(parts["net"](x), y).backward()
        parts["opt"].step()
        parts["schedule"].step()
        step += 1
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGTERM)     # as a provider does
    save_to(survivor, parts, step)
    return step

# %% role="concept"
def save_to(path, parts, step):
    """Save what the next step depends on to a second file; rename it."""
    torch.save({"step": step, "rng": torch.get_rng_state(), **{
        name: part.state_dict() for name, part in parts.items()}},
        path + ".part")
    os.replace(path + ".part", path)

def load_from(path):
    stored, parts = torch.load(path), new_parts()
    for name, part in parts.items():
        part.load_state_dict(stored[name])
    torch.set_rng_state(stored["rng"])     # last: new_parts() draws
    return parts, stored["step"]

# %% [markdown] role="concept"
# One run is not interrupted. The same run, started a second time, gets a `SIGTERM` after
# step 37. A new model, optimizer and schedule then continue from the file that the second
# run saved:

# %% role="concept"
before = signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
with torch.random.fork_rng():
    torch.manual_seed(SEED)
    unbroken = new_parts()
    train_on(unbroken)
    torch.manual_seed(SEED)
    stopped_at = train_on(new_parts(), kill_at=37)
    stop.clear()
    torch.manual_seed(SEED + 1)              # a new process draws others
    resumed_parts, step = load_from(survivor)
    train_on(resumed_parts, step)
signal.signal(signal.SIGTERM, before)
gap_after = max((p - q).abs().max().item() for p, q in zip(
    *(parts["net"].parameters() for parts in (unbroken, resumed_parts))))
print(f"stopped after step {stopped_at}, gap at the end {gap_after}")

# %% role="concept"
claim("step at which the signal stopped the run", stopped_at, expected=37)
claim("largest gap between a weight of the resumed run and the same "
      "weight of the unbroken run", gap_after, expected=0)

# %% [markdown] role="concept"
# **Where does the next machine find the file?** A spot machine's local disk usually
# disappears with the machine. Write the file locally, copy it to cloud storage under a
# new name such as `step-000037.pt`, and then write that name to a small file called
# `latest`. In many object stores, a rename cannot replace an existing file in a single
# step, so `latest` does the rename's job. Delete an old checkpoint only after you have
# read a newer one back. Store the tracker's run id in the checkpoint, so that the
# resumed run continues the same curve (shown, not run):
#
# ```python
# run = wandb.init(project="digits", id=stored["run_id"], resume="allow")
# ```

# %% [markdown] trap="12.9" role="situation" fault="the hash seed is set after Python has started" symptom="PYTHONHASHSEED in os.environ has no effect, set order and class numbers differ between two runs, wrong labels after loading a model"
# ## A seed for everything
#
# Like many scripts, yours begins with `seed_everything(42)`. The function seeds `random`,
# numpy and torch. Python's hashes of strings are also random, so the function sets
# `os.environ["PYTHONHASHSEED"] = "42"` as well. Then the script numbers its ten classes:
# `{name: number for number, name in enumerate(set(names))}`.
#
# You start the script four times.

# %% trap="12.9" role="break"
import subprocess
import sys

digit_names = ["zero", "one", "two", "three", "four",
               "five", "six", "seven", "eight", "nine"]
numbering = f"print(*set({digit_names}))"
# Numpy and torch are left out: they do not affect hashes.
script = ('import os, random; random.seed(42); '
          'os.environ["PYTHONHASHSEED"] = "42"; ' + numbering)

def start(code, **variables):
    """Start a new Python and return the names that it prints, in order."""
    plain = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
    return subprocess.run(
        [sys.executable, "-S", "-c", code], env=plain | variables,
        capture_output=True, text=True, check=True).stdout.split()

starts = [start(script) for _ in range(4)]

# %% trap="12.9" role="guess"
guess("12.9",
      "Do the four starts number the classes in the same way?",
      choices=["no, all four numberings differ",
               "yes, in the same way as with `PYTHONHASHSEED=42` set in "
               "the shell",
               "yes, but not in the same way as with `PYTHONHASHSEED=42` "
               "set in the shell"])

# %% trap="12.9" role="look" compare=false
for names in starts:
    print(*names)

# %% trap="12.9" role="look"
measured("12.9", 0)

# %% trap="12.9" role="look"
claim("number of different numberings in four starts",
      len({tuple(names) for names in starts}), expected=4)

# %% [markdown] trap="12.9" role="look"
# The script's model knows only the numbers, not the names. The next cell trains a model
# with the class numbers from the first start and evaluates it with the class numbers from
# each of the four starts.

# %% trap="12.9" role="look" compare=false
def numbers_of(names):
    """For each digit, the number that this start gave its name."""
    return torch.tensor([names.index(name) for name in digit_names])

taught = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
fit(taught, x_train, numbers_of(starts[0])[y_train], steps=300, lr=0.01)
read = [accuracy(taught, x_test, numbers_of(names)[y_test])
        for names in starts]
print("accuracy:", " ".join(f"{share:.2f}" for share in read))

# %% trap="12.9" role="look"
claim("mean accuracy with the class numbers from the three other starts",
      sum(read[1:]) / 3, below=0.6)

# %% [markdown] trap="12.9" role="why"
# When Python starts, before it runs the first line of any script, it reads
# `PYTHONHASHSEED` and fixes the secret seed of its hashes. Python never looks at this
# variable again. Setting the variable inside the script affects only *new* Python
# processes that the script starts.

# %% trap="12.9" role="why"
numbers = len({tuple(names) for names in starts})
in_shell = len({tuple(start(numbering, PYTHONHASHSEED="42"))
                for _ in range(2)})
draw_blocks({"set in the script": ["Python starts", "secret is drawn",
                                   "variable is set", "set(names)"],
             "set in the shell": ["variable is set", "Python starts",
                                  "secret is read", "set(names)"]},
            marks={"set in the script": ["variable is set"]},
            captions={
                "set in the script": f"{numbers} numberings in 4 starts",
                "set in the shell": f"{in_shell} numbering in 2 starts"},
            title="The secret is drawn before the first line",
            alt="Two columns of four blocks. Set in the script, the "
                "variable comes after the secret is drawn. Set in the "
                "shell, the variable comes before Python starts.")

# %% [markdown] trap="12.9" role="repair"
# Set the variable before Python starts, in the shell or in the job file, or let the
# script restart itself. A third way needs no seed at all: sort the names.

# %% trap="12.9" role="repair"
again = ('import os, sys\n'
         'if os.environ.get("PYTHONHASHSEED") != "42":\n'
         '    os.environ["PYTHONHASHSEED"] = "42"\n'
         '    os.execv(sys.executable, [sys.executable,'
         ' *sys.orig_argv[1:]])\n')
child = ('import os, subprocess, sys\n'
         'os.environ["PYTHONHASHSEED"] = "42"\n'
         f'subprocess.run([sys.executable, "-S", "-c", {numbering!r}])')
ways = {
    "in the shell": lambda: start(numbering, PYTHONHASHSEED="42"),
    "restarted by itself": lambda: start(again + numbering),
    "a child of the script": lambda: start(child),
    "sorted": lambda: start(numbering.replace("set", "sorted"))}
found = {name: {tuple(way()) for _ in range(2)}
         for name, way in ways.items()}

# %% trap="12.9" role="repair"
for name, orders in found.items():
    print(f"{name:22} {len(orders)} numbering in two starts")
print("sorted:", *found["sorted"].pop())
shell, once_more, children, _ = found.values()

# %% trap="12.9" role="repair"
claim("number of different numberings in all starts that had the variable "
      "set in time", len(shell | once_more | children), expected=1)

# %% [markdown] trap="12.9" role="repair"
# A sorted list still changes when you add a class, because all classes after the new
# class move up by one. Only a list stored with the weights is stable. The exercise is
# about such a list.

# %% [markdown] trap="12.9" role="more" topics="a child of the script · the numbers of the training start"
# A process started by the script, such as a worker with the start method `spawn`, reads
# the variable at its start, so its hashes differ from its parent's hashes. The model
# classifies correctly if it gets the class numbers of the process in which it was
# trained.

# %% trap="12.9" role="more"
claim("does a child process share a numbering with its script",
      children <= {tuple(names) for names in starts}, expected=False)
claim("accuracy with the class numbers from the start in which the model "
      "was trained", read[0], above=0.9)

# %% [markdown] trap="12.9" role="folklore"
# **Told** by many versions of `seed_everything`: a reproducible run needs this variable.
# **Measured:** Without the variable, only three of the eight things below differ between
# two starts: the hashes of strings, of bytes, and of a tuple that contains a string. The
# other five things agree. And even with a fixed hash seed, you cannot rely on the order
# of a set: two equal sets may iterate in different orders, because the order also depends
# on what was inserted first.

# %% trap="12.9" role="folklore"
things = {"a text": "hash('cat')", "bytes": "hash(b'cat')",
          "a tuple with a text": "hash((1, 'cat'))",
          "a whole number": "hash(7)", "a float": "hash(0.5)",
          "a tuple of numbers": "hash((1, 2))",
          "a set of numbers": "list({30, 4, 17, 2})",
          "a dict with texts": "list({'cat': 1, 'ant': 2, 'bee': 3})"}
everything = f"print({', '.join(things.values())}, sep='|')"
both = [" ".join(start(everything)).split("|") for _ in range(2)]
differ = [name for name, one, two in zip(things, *both) if one != two]
print("differ in two starts:", ", ".join(differ))
print("equal:", {0, 8} == {8, 0}, "  as lists:", list({0, 8}), list({8, 0}))

# %% trap="12.9" role="folklore"
claim("number of expressions, out of eight, whose results differ between "
      "two starts", len(differ), expected=3)
claim("do two equal sets of numbers iterate in the same order",
      list({0, 8}) == list({8, 0}), expected=False)

# %% trap="12.9" role="exercise" points=3 difficulty=2 minutes=10
def class_numbers(names: list, stored: dict) -> dict:
    """Number the classes from 0, in the same way in every process.

    Args:
        names: the class of each row of the data, a list of str in any
            order.
        stored: the numbers from a checkpoint, 0 to len(stored) - 1, or {}
            if there is no checkpoint.

    Returns:
        A dict from class to number, with its keys in the order of their
        numbers. A class in stored keeps its number, even if no row has this
        class. Other classes get the next numbers, in the order of sorted().

    The order of names and of stored makes no difference. names and stored
    are left as they are.

    Example: ["b", "a", "b"] and {"c": 0} give {"c": 0, "a": 1, "b": 2}.
    """
    # BEGIN SOLUTION
    known = sorted(stored, key=stored.get)
    new = sorted(set(names) - set(known))
    return {name: number for number, name in enumerate(known + new)}
    # END SOLUTION

# %% [markdown] trap="12.9" role="hint"
# 1. Make one list: first the names in `stored`, then the new names. `enumerate` numbers all names in the list.
# 2. `sorted(stored, key=stored.get)` returns the names in number order.
# 3. You may use a set to find the new names, as long as you sort them afterwards.

# %% [markdown] trap="12.9" role="keep"
# **Keep:** Python reads `PYTHONHASHSEED` before the first line of your script, so setting
# it in the script is too late. Do not let class numbers depend on the order of a set:
# sort the names, and store the list with the weights. **In your own code:** Search for
# `enumerate(set(`, `list(set(` and `hash(`. Start the script five times, with the
# variable unset, and compare the lists of classes. **Source:** Python documentation,
# [PYTHONHASHSEED](https://docs.python.org/3/using/cmdline.html#envvar-PYTHONHASHSEED):
# "If this variable is not set or set to `random`, a random value is used to seed the
# hashes of str and bytes objects." **Seen in the wild:** In
# [tkipf/pygcn#41](https://github.com/tkipf/pygcn/issues/41), all seeds were set and
# results still differed, until `set(labels)` was sorted; in
# [RomRoc/objdet_fizyr_colab#5](https://github.com/RomRoc/objdet_fizyr_colab/pull/5), the
# class numbers changed each time training was resumed.

# %% [markdown] role="concept"
# ## Reproducible: one complete list
#
# To be sure that two runs end with the same weights, keep everything that a step depends
# on the same. Here is the list. The last column says when each setting has to be in
# place, because some of the settings have no effect if you set them too late.
#
# | what | how | when |
# |---|---|---|
# | hashes of texts | `PYTHONHASHSEED=0` | in the shell, before Python starts (12.9) |
# | cuBLAS, on a GPU | `CUBLAS_WORKSPACE_CONFIG=:4096:8` | in the shell, before CUDA starts |
# | Python, numpy, torch | `random.seed(s)`, `np.random.seed(s)`, `torch.manual_seed(s)` | first lines |
# | operations | `torch.use_deterministic_algorithms(True)` | before the model runs |
# | choice of convolution algorithm | `torch.backends.cudnn.benchmark = False` | before the model runs |
# | order of the batches | `DataLoader(..., generator=torch.Generator().manual_seed(s))` | at the loader |
# | augmentation | derived from seed, epoch and sample | in the dataset (12.3) |
# | class numbers | sorted, and stored with the weights | at the data (12.9) |
# | threads, workers, ranks, batch size | write them down, and use the same again | at the start |
# | versions, GPU model, driver | write them down: a different one may compute sums in a different order | at the start |
# | data and code | hashes in the first line of the log | at the start |
# | resuming | the generators' states and the position in the data, in the checkpoint | at each save (12.8) |
#
# `torch.manual_seed` seeds all devices. `use_deterministic_algorithms` makes torch choose
# operations that return the same result every time, and raise an error if there is no
# such operation. Deterministic operations cost time, as the GPU section shows.
# `cudnn.deterministic` covers only operations of cuDNN, mainly convolutions, and
# `use_deterministic_algorithms` covers convolutions too. cuBLAS, NVIDIA's library for
# matrix products, needs scratch memory. If several streams share this memory, the same
# product may be computed in a different order. `:4096:8` reserves eight buffers of 4,096
# KiB each. Recent versions of torch reserve this memory themselves. In older versions,
# `use_deterministic_algorithms` raises an error at the first matrix product on a GPU if
# `CUBLAS_WORKSPACE_CONFIG` is not set. Here are these settings as a function:

# %% role="concept"
def reproducible(seed):
    """Set what torch, numpy and Python offer after they have started."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    return torch.Generator().manual_seed(seed)     # for the DataLoader

# %% [markdown] role="concept"
# ### The same settings, a different result: bisect by part
#
# A colleague runs your script and gets a different loss. Do not compare the final
# results. Compare the hashes of the parts, in the order in which the parts are made. The
# first hash that differs names the part to look at. Here, each of three runs changes one
# thing:

# %% role="concept"
def trail(start=0, order=0, noise=0):
    """Hash the parts of a run, in the order in which they are made."""
    torch.manual_seed(start)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2),
                        nn.Linear(32, 10))
    rng = torch.Generator().manual_seed(order)
    rows = torch.randint(1300, (64,), generator=rng)
    parts = {"data": digest(x_train, y_train), "first weights":
             digest(*(p.detach() for p in net.parameters())),
             "first batch": digest(rows)}
    torch.manual_seed(noise)
    loss = F.cross_entropy(net(x_train[rows]), y_train[rows])
    loss.backward()
    return parts | {"first loss": digest(loss.detach()), "first gradient":
                    digest(*(p.grad for p in net.parameters()))}

# %% role="concept"
with torch.random.fork_rng():
    mine = trail()
    theirs = {"nothing": trail(), "another start": trail(start=1),
              "another order": trail(order=1),
              "other dropout": trail(noise=1)}
first_apart = {
    name: next((part for part in mine if mine[part] != run[part]), "none")
    for name, run in theirs.items()}
for name, part in first_apart.items():
    print(f"{name:17} first part that differs: {part}")

# %% role="concept"
claim("number of runs, out of four, in which the right part is named",
      sum(part == wanted for part, wanted in zip(first_apart.values(), (
          "none", "first weights", "first batch", "first loss"))),
      expected=4)

# %% [markdown] role="concept"
# The hash of a float changes when its last bit changes. So between two kinds of hardware,
# compare values, not hashes, and look for the first part whose values differ by more than
# a rounding error.

# %% [markdown] trap="12.10" role="situation" fault="wandb drops rows whose step= goes back" symptom="wandb validation metrics missing: Tried to log to step that is less than the current step, data will be ignored"
# ## A curve by batches and one by epochs
#
# You track a run with Weights & Biases offline, in a file that `wandb sync` uploads
# later. The classifier trains for five epochs of twenty batches. After each batch, you
# log the loss with `run.log({"loss": ...}, step=batch)`, where `batch` counts all batches
# of the run. At the end of each epoch, you call `run.log({"val_loss": ...}, step=epoch)`.
# Each curve should have its own axis.
#
# The run ends without an error. A folded cell reads the records from the file. (`wandb`
# belongs to the extra `track`; if it is missing, run `pip install -e '.[track]'`.)

# %% trap="12.10" role="break" tags=["plumbing"]
import contextlib
import io
import json
import struct
import time

log_folder = tempfile.TemporaryDirectory()
os.environ["WANDB_ERROR_REPORTING"] = "false"
for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
    os.environ["WANDB_" + name] = log_folder.name

import wandb
from wandb.proto.wandb_internal_pb2 import Record

quiet = wandb.Settings(silent=True, console="off", x_disable_meta=True,
                       x_disable_stats=True)

# %% trap="12.10" role="break" tags=["plumbing"]
def records(file):
    """Read the records of an offline file: pieces in blocks of 32 KiB."""
    with open(file, "rb") as opened:
        data = opened.read()
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at:at + 7])
        whole += data[at + 7:at + 7 + size]
        at += 7 + size
        if kind in (1, 4):                   # the only or the last piece
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""

# %% trap="12.10" role="break" tags=["plumbing"]
def complete(file):
    """The records of an offline file, once its last record is written."""
    for _ in range(600):
        found = list(records(file))
        if any(record.HasField("exit") for record in found):
            break
        time.sleep(0.1)
    return found

# %% trap="12.10" role="break" tags=["plumbing"]
def tracked(log):
    """Return the rows, axes and warnings of an offline run by log(run)."""
    said, rows, axes = io.StringIO(), [], {}
    with contextlib.redirect_stderr(said):
        with wandb.init(project="digits", mode="offline", settings=quiet,
                        dir=log_folder.name) as run:
            log(run)
            file = run.settings.sync_file
        wandb.teardown()                     # completes the file
    for record in complete(file):
        if record.HasField("history"):
            rows.append({(i.key or ".".join(i.nested_key)):
                         json.loads(i.value_json)
                         for i in record.history.item})
        if record.HasField("metric") and record.metric.step_metric:
            metric = record.metric.name or record.metric.glob_name
            axes[metric] = record.metric.step_metric
    return rows, axes, said.getvalue().count("will be ignored")

# %% trap="12.10" role="break"
def training(epochs=5):
    """Train and yield the events of the run, each (axis, step, values)."""
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    opt, batch = torch.optim.SGD(net.parameters(), lr=0.3), 0
    for epoch in range(epochs):
        for rows in torch.randperm(1300).split(65):
            loss = F.cross_entropy(net(x_train[rows]), y_train[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
            yield "batch", batch, {"loss": loss.item()}
            batch += 1
        with torch.no_grad():
            val = F.cross_entropy(net(x_test), y_test).item()
        yield "epoch", epoch, {"val_loss": val}

# %% trap="12.10" role="break"
events = list(training())

def by_step(run):
    for _, step, values in events:
        run.log(values, step=step)

rows, axes, told = tracked(by_step)

# %% trap="12.10" role="guess"
guess("12.10", "How many of the five validation losses are in the file?",
      unit="losses")

# %% trap="12.10" role="look"
def count(rows, name):
    return sum(name in row for row in rows)

print("rows with a training loss:  ", count(rows, "loss"))
print("rows with a validation loss:", count(rows, "val_loss"))
print("lines on stderr, 'will be ignored':", told)

# %% trap="12.10" role="look"
measured("12.10", count(rows, "val_loss"), right=(0, 0))

# %% trap="12.10" role="look"
claim("number of validation losses in the file",
      count(rows, "val_loss"), expected=0)

# %% [markdown] trap="12.10" role="why"
# A W&B run has *one* step counter. `step=` sets this counter, which can only go up. After
# batch 19, step 0 is in the past. W&B drops the row, and the run continues. The version
# of wandb used here prints a line on stderr for each dropped row. The older version on
# Colab prints nothing.

# %% trap="12.10" role="why"
ax = new_axes("Each validation loss asks for a step long past",
              "call of run.log", "step=")
for name, mark in (("batch", "."), ("epoch", "X")):
    calls = [(n, step) for n, (axis, step, _) in enumerate(events)
             if axis == name]
    ax.plot(*zip(*calls), mark, markersize=4 if mark == "." else 9,
            label="loss: kept" if mark == "." else "val_loss: dropped")
ax.legend()
show(ax.figure, alt="The values of step= in 105 calls. For the training "
                    "loss, step= rises in a line from 0 to 99. For the "
                    "five validation losses, it is far below that line, at "
                    "0 to 4.")

# %% [markdown] trap="12.10" role="repair"
# To give a curve its own axis, log the axis as a value in each row, and let
# `define_metric` assign the curve to that axis. Leave the step counter alone.

# %% trap="12.10" role="repair"
def defined(run):
    run.define_metric("val_*", step_metric="epoch")
    run.define_metric("loss", step_metric="batch")

def own_axis(run, events=events):
    defined(run)
    for axis, step, values in events:
        run.log({axis: step, **values})

mended, axes, warned = tracked(own_axis)
print("axes:", axes)
print("validation losses:", count(mended, "val_loss"))

# %% trap="12.10" role="repair"
claim("number of validation losses in the file, with an axis of their own",
      count(mended, "val_loss"), expected=5)

# %% [markdown] trap="12.10" role="repair"
# One problem remains. A job is killed in the middle of epoch 4 and resumes from the
# checkpoint after epoch 2, in the same log. The resumed job logs epoch 3 again. Now no
# row is dropped, so the curve contains epoch 3 twice and runs back and forth.

# %% trap="12.10" role="repair"
resumed_events = events[:94] + events[63:]      # 21 events per epoch
twice, _, _ = tracked(lambda run: own_axis(run, resumed_events))
epochs_seen = [row["epoch"] for row in twice if "epoch" in row]
print("epochs:", epochs_seen)

# %% trap="12.10" role="repair"
claim("number of rows for epoch 3 in the log of the resumed run",
      epochs_seen.count(3), expected=2)

# %% [markdown] trap="12.10" role="repair"
# The rows logged after the checkpoint belong to a run that no longer exists. If you
# collect the rows in a list, you can drop the old rows: on each axis, drop the rows at
# the repeated step and all later rows.

# %% [markdown] trap="12.10" role="more" topics="what was kept and reported · the axis defined, step= still there · the batches of the resumed run"
# The training losses were kept. For each dropped validation loss, there is at most one
# line on stderr, and some versions of wandb print none. If the validation losses have
# their own axis, no version has a reason to warn:

# %% trap="12.10" role="more"
claim("number of training losses in the file",
      count(rows, "loss"), expected=100)
claim("number of warnings on stderr about the five dropped validation "
      "losses", told, below=6)
claim("number of warnings on stderr when the validation losses have their "
      "own axis", warned, expected=0)

# %% [markdown] trap="12.10" role="more"
# Half of the repair is not enough. If the axis is defined but `step=` is still in the
# call, the rows are dropped as before.

# %% trap="12.10" role="more"
def half_repaired(run):
    defined(run)
    for axis, step, values in events:
        run.log({axis: step, **values}, step=step)

half, _, _ = tracked(half_repaired)
batches = [row["batch"] for row in twice if "batch" in row]

# %% trap="12.10" role="more"
claim("number of validation losses in the file if an axis is defined but "
      "the call keeps step=", count(half, "val_loss"), expected=0)
claim("number of batches that the log of the resumed run contains twice",
      len(batches) - len(set(batches)), expected=30)

# %% [markdown] trap="12.10" role="folklore"
# **Told:** Log the validation loss with the last batch number, and nothing is lost.
# **Measured:** Indeed, no validation loss is lost. But the validation loss's axis now
# counts batches. You cannot compare runs with different batch sizes epoch by epoch,
# because the rows do not contain the epoch.

# %% trap="12.10" role="folklore"
def by_last_batch(run):
    last = 0
    for axis, step, values in events:
        last = step if axis == "batch" else last
        run.log(values, step=last)

merged, _, _ = tracked(by_last_batch)
places = [row["_step"] for row in merged if "val_loss" in row]
print("validation losses at the steps", places)
print("names in such a row:", sorted(merged[19]))

# %% trap="12.10" role="folklore"
claim("number of validation losses in the file if logged with the last "
      "batch number", count(merged, "val_loss"), expected=5)
claim("step of the first validation loss if logged with the last batch "
      "number", places[0], expected=19)
claim("does the row of the first validation loss contain the epoch",
      "epoch" in merged[19], expected=False)

# %% trap="12.10" role="exercise" points=4 difficulty=3 minutes=15
def rows_to_log(events: list) -> tuple:
    """Turn the events of a run into rows and axes for a log.

    Args:
        events: a list of (axis, step, values) in the order of time, with an
            int step >= 0 and a dict of metrics, perhaps empty. There may be
            any number of axes; no metric has the same name as an axis. The
            events are left as they are.

    Returns a tuple (rows, axes). axes: a dict from metric to axis. rows: a
    list of dicts in time order, each {axis: step} plus the values. If the
    previous event on an axis has the same step, both share a row. Later
    values replace earlier values of the same name. An earlier step means a
    resumed run: drop the rows of this axis at that step or later. Keep the
    rows of other axes. Raises ValueError for a metric on two axes.

    Example: [("epoch", 0, {"val": 3.0}), ("batch", 0, {"loss": 2.0})]
    returns [{"epoch": 0, "val": 3.0}, {"batch": 0, "loss": 2.0}] and
    {"val": "epoch", "loss": "batch"}.
    """
    # BEGIN SOLUTION
    rows, axes, last = [], {}, {}
    for axis, step, values in events:
        for name in values:
            if axes.setdefault(name, axis) != axis:
                raise ValueError(f"{name}: got axis {axis}, expected "
                                 f"{axes[name]}. Rename one of the two.")
        if last.get(axis) == step:
            [row for row in rows if axis in row][-1].update(values)
        else:
            rows = [row for row in rows if row.get(axis, -1) < step]
            rows.append({axis: step, **values})
        last[axis] = step
    return rows, axes
    # END SOLUTION

# %% [markdown] trap="12.10" role="hint"
# 1. Keep each axis's last step in a dict. There are three cases: the new step is equal to
#    the last step, later, or earlier.
# 2. The last two cases can share one line: keep the rows of other axes and this axis's
#    rows with a smaller step, then add the new row.
# 3. `{axis: step, **values}` is a new dict. Calling `update` on the event's own dict would change the event.

# %% [markdown] trap="12.10" role="keep"
# **Keep:** A W&B run has one step counter, which only goes up. A row with a lower `step=`
# is dropped. To give a second curve its own axis, log the axis as a value and name this
# axis with `define_metric`. **In your own code:** After the first epoch, check that one
# validation value has arrived in the file or on the page. **Source:** W&B documentation,
# [Customize log axes](https://docs.wandb.ai/models/track/log/customize-logging-axes).
# **Seen in the wild:** In
# [kohya-ss/sd-scripts#1864](https://github.com/kohya-ss/sd-scripts/pull/1864), an epoch's
# loss was logged with `step=epoch`, and there was "a warning but nothing gets logged"; in
# [open-mmlab/mmdetection#7000](https://github.com/open-mmlab/mmdetection/issues/7000),
# everything was logged except the validation results; in
# [wandb/wandb#6554](https://github.com/wandb/wandb/issues/6554), the axis was defined,
# but `step=` was still in the call.

# %% [markdown] role="concept"
# ## Versions of data and checkpoints
#
# A log says which loss a run reached. A log keeps neither the model file that reached
# this loss nor the model's training data. A tracker's *artifact* keeps both: it is a
# named set of files with a version. W&B compares the names and bytes of the files, so
# saving the same file again does not create a second version:

# %% role="concept" tags=["plumbing"]
artifacts = tempfile.TemporaryDirectory()
os.environ["WANDB_ERROR_REPORTING"] = "false"
for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
    os.environ.setdefault("WANDB_" + name, artifacts.name)

import wandb

# %% role="concept"
def version(x):
    """The digest by which W&B distinguishes versions of the data."""
    place = os.path.join(artifacts.name, "digits.npy")
    np.save(place, x.numpy())
    artifact = wandb.Artifact("digits", type="dataset")
    artifact.add_file(place, policy="immutable", skip_cache=True)
    return artifact.digest

versions = [version(x) for x in (x_train, x_train, one_pixel)]
print(*versions, sep="\n")

# %% role="concept"
claim("number of versions after saving the data, the same data and data "
      "with a changed pixel", len(set(versions)), expected=2)

# %% [markdown] role="concept"
# A run declares which artifact it used and which artifact it produced, and the server
# draws the chain from data to model. The server needs an account, so this code is shown
# and not run:
#
# ```python
# data = run.use_artifact("digits:v3")            # not :latest: name the version
# folder = data.download()
# made = wandb.Artifact("classifier", type="model")
# made.add_file("last.pt")
# run.log_artifact(made, aliases=["best"])
# ```

# %% [markdown] trap="12.11" role="situation" fault="label smoothing over masked classes: the loss is inf" symptom="label smoothing with masked logits gives an infinite loss; cross entropy inf with -inf logits"
# ## A little smoothing against the NaN
#
# A classifier is told whether each digit is even or odd. So you set the logits of the
# impossible classes to minus infinity, and the softmax gives these classes a probability
# of zero. The label is always one of the five remaining classes. The cross-entropy of an
# untrained classifier is about 1.6, the logarithm of five.
#
# A blog post says: "A probability of exactly zero makes the loss NaN, and label smoothing
# prevents it." So you pass `label_smoothing=0.1`.

# %% trap="12.11" role="break"
classes = torch.arange(10)

def masked(net, x, y):
    """Logits (N, 10), with minus infinity at the impossible classes."""
    return net(x).masked_fill(classes % 2 != y[:, None] % 2, -torch.inf)

def small():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

logits = masked(small(), x_train, y_train)
plain = F.cross_entropy(logits, y_train).item()
smooth = F.cross_entropy(logits, y_train, label_smoothing=0.1).item()

# %% trap="12.11" role="guess" quoted="wrong"
guess("12.11",
      "What is the loss of the untrained classifier with label smoothing?",
      choices=["about 1.6",
               "about 2.3",
               "NaN",
               "infinite"])

# %% trap="12.11" role="look"
nearly = logits.masked_fill(logits.isinf(), -1e9)
huge = F.cross_entropy(nearly, y_train, label_smoothing=0.1).item()
print(f"without smoothing {plain:.2f}, with smoothing {smooth}")
print(f"with smoothing, and -1e9 for minus infinity, {huge:.1e}")

# %% trap="12.11" role="look"
measured("12.11", 3)

# %% trap="12.11" role="look"
claim("is the loss with smoothing infinite", math.isinf(smooth),
      expected=True)

# %% [markdown] trap="12.11" role="why"
# Without smoothing, a logit of minus infinity is harmless as long as it is not at the
# label's class, because the loss never uses that class's probability of zero. With label
# smoothing, the loss does use this probability. Smoothing spreads a tenth of the target
# over the ten classes, so *every* class gets a hundredth, and `-0.01 * log(0)` is
# infinite.

# %% trap="12.11" role="why"
target, kind = F.one_hot(torch.tensor(4), 10), classes % 2 == 0
shares = torch.stack([0.9 * target + 0.1 / 10,
                      0.9 * target + 0.1 * kind / 5])
draw_grids({"target of a 4, told that it is even": shares}, values=True,
           marks={"target of a 4, told that it is even":
                  (shares > 0) & ~kind}, legend="asks for log(0)",
           row_names=["over all", "over allowed"], columns="class",
           title="Smoothing needs the logarithm of every class",
           alt="The target of a 4, in two rows of ten classes. If "
               "smoothing is spread over all classes, each odd class has "
               "0.01 and is marked. If it is spread over the allowed "
               "classes, odd classes have 0 and the other even classes "
               "0.02.")

# %% [markdown] trap="12.11" role="repair"
# What happens next depends on whether anything checks the loss. The *gradient* of this
# loss is finite, and `masked_fill` passes none of it on to the net at a masked class, so
# the net learns. But many loops have a guard that skips a step whose loss is not finite.
# Here the guard skips every step, because every row has masked classes. So spread the
# smoothing only over the allowed classes.

# %% trap="12.11" role="repair"
def learn(loss, guard, steps=200):
    """Train with this loss; return the steps taken and the accuracy."""
    net = small()
    opt, taken = torch.optim.SGD(net.parameters(), lr=0.2), 0
    for _ in range(steps):
        rows = torch.randint(1300, (64,))
        value = loss(masked(net, x_train[rows], y_train[rows]), rows)
        if guard and not value.isfinite():
            continue
        opt.zero_grad()
        value.backward()
        opt.step()
        taken += 1
    read = masked(net, x_test, y_test).argmax(1) == y_test
    return taken, read.float().mean().item()

# %% trap="12.11" role="repair"
def smoothed(z, rows):
    return F.cross_entropy(z, y_train[rows], label_smoothing=0.1)

def over_allowed(z, rows, share=0.1):
    """Spread the smoothing over the classes that are not masked."""
    log_p = z.log_softmax(1)
    right = log_p.gather(1, y_train[rows, None])[:, 0]
    spread = torch.where(z.isinf(), 0, log_p).sum(1) / 5
    return -((1 - share) * right + share * spread).mean()

runs = {"smoothed": learn(smoothed, guard=False),
        "smoothed, guard": learn(smoothed, guard=True),
        "over allowed, guard": learn(over_allowed, guard=True)}
for name, (taken, read) in runs.items():
    print(f"{name:20} {taken:3} steps taken, accuracy {read:.2f}")

# %% trap="12.11" role="repair"
claim("number of steps that the guard lets through, with smoothing over "
      "all classes", runs["smoothed, guard"][0], expected=0)

# %% [markdown] trap="12.11" role="repair"
# With smoothing over the allowed classes only, the loss is finite and passes the guard.

# %% trap="12.11" role="repair"
claim("accuracy with the guard and smoothing over the allowed classes",
      runs["over allowed, guard"][1], above=0.85)

# %% [markdown] trap="12.11" role="more" topics="-1e9 instead of minus infinity · without a guard"
# Without smoothing, the untrained classifier has the loss of a uniform guess among five
# classes. With the finite value `-1e9`, the loss is in the tens of millions instead of
# infinite. And if nothing checks the loss, the net learns:

# %% trap="12.11" role="more"
claim("loss of the untrained classifier without smoothing", plain,
      expected=1.6, within=0.1)
claim("loss with smoothing and -1e9 instead of minus infinity", huge,
      above=1e7)
claim("accuracy without a guard, with smoothing over all classes",
      runs["smoothed"][1], above=0.85)

# %% [markdown] trap="12.11" role="folklore"
# **Told:** Any logit of minus infinity makes the loss NaN. **Measured:** With class
# numbers as labels and without class weights, there are three cases. Minus infinity at a
# wrong class does no harm. Minus infinity at the label's class makes the loss infinite.
# If all classes are masked, the loss is NaN.

# %% trap="12.11" role="folklore"
rows = torch.tensor([[2.0, 1.0, -torch.inf]])
wrong = F.cross_entropy(rows, torch.tensor([0])).item()
label = F.cross_entropy(rows, torch.tensor([2])).item()
none = F.cross_entropy(rows - torch.inf, torch.tensor([0])).item()
print(f"wrong class {wrong:.2f}, label's class {label}, all {none}")

# %% trap="12.11" role="folklore"
claim("loss with minus infinity at a wrong class", wrong, below=1)
claim("is the loss infinite if the label's class has minus infinity",
      math.isinf(label), expected=True)
claim("is the loss NaN with all classes masked", math.isnan(none),
      expected=True)

# %% trap="12.11" role="exercise" points=3 difficulty=3 minutes=15
def masked_ce(logits, target, allowed, smoothing: float) -> torch.Tensor:
    """Compute the mean cross-entropy over the allowed classes of each row.

    Args:
        logits: (N, C) float32, between -1e15 and 1e15 where allowed.
        target: (N,) int64, an allowed class for each row.
        allowed: (N, C) bool.

    Returns:
        A tensor of shape () that has gradients.

    A logit of a class that is not allowed makes no difference, even if it
    is infinite or NaN. Its gradient is 0. The target distribution of a row
    has 1 - smoothing at the target, and smoothing is spread evenly over all
    allowed classes of the row, the target included. The arguments are left
    as they are.

    Example: a row with a single allowed class gives 0.
    """
    # BEGIN SOLUTION
    log_p = torch.where(allowed, logits, -torch.inf).log_softmax(1)
    log_p = torch.where(allowed, log_p, 0)
    right = log_p.gather(1, target[:, None])[:, 0]
    spread = log_p.sum(1) / allowed.sum(1)
    return -((1 - smoothing) * right + smoothing * spread).mean()
    # END SOLUTION

# %% [markdown] trap="12.11" role="hint"
# 1. Take the softmax over the allowed classes. Use `where` to set the other classes to
#    minus infinity; this also removes any NaN there.
# 2. After the log-softmax, set the values of the classes that are not allowed to zero
#    before you sum.
# 3. Rows can have different numbers of allowed classes, so divide each row's sum by the number of allowed classes in that row.

# %% [markdown] trap="12.11" role="keep"
# **Keep:** Label smoothing uses the log-probability of every class, so a class masked
# with minus infinity makes the loss infinite. Spread the smoothing over the allowed
# classes only. **In your own code:** Count the steps that a guard skips, and log the number. **Source:** PyTorch
# documentation,
# [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html),
# whose `label_smoothing` mixes the target with a uniform distribution over all classes.

# %% [markdown] trap="12.12" role="situation" fault="F1 is averaged over batches, or its counts are never reset" symptom="F1, precision or recall depends on the batch size of the evaluation, differs from scikit-learn over all predictions; metric accumulates over epochs, reset missing"
# ## Nine, or not
#
# A detector looks for nines in the test digits. About one digit in ten is a nine. Every
# night, a job computes the detector's *F1 score*. Count the nines that the detector
# reports (true positives, TP), its false alarms (false positives, FP), and the nines that
# it misses (false negatives, FN). F1 is $2\,TP / (2\,TP + FP + FN)$: 1 if the detector
# finds every nine and reports nothing else, and 0 if it finds none. The job computes the
# F1 of each batch of 8 digits and takes the mean. For `0 / 0`, it uses 0, as scikit-learn
# does.
#
# The score is disappointing, whatever you change. To see what a detector without mistakes
# would get, you give the job the labels themselves as the detector's answers.

# %% trap="12.12" role="break"
def f1(alarm, nine):
    """F1 of the alarms (n,) for the nines (n,), both bool."""
    hits, errors = (alarm & nine).sum(), (alarm != nine).sum()
    return (2 * hits / (2 * hits + errors)).nan_to_num(0).item()

def nightly(alarm, nine, size=8):
    """The mean of F1 over batches of this size."""
    scores = [f1(*batch) for batch in zip(alarm.split(size),
                                          nine.split(size))]
    return sum(scores) / len(scores)

nines = y_test == 9
flawless = nightly(alarm=nines, nine=nines)

# %% trap="12.12" role="guess"
guess("12.12", "What F1, in percent, does the job report for the perfect "
               "answers?", unit="%")

# %% trap="12.12" role="look"
batches = nines.split(8)
without = sum(not batch.any() for batch in batches)
print(f"reported: {flawless:.2f}")
print(f"batches without a nine: {without} of {len(batches)}")

# %% trap="12.12" role="look"
measured("12.12", 100 * flawless, right=(45, 75))

# %% trap="12.12" role="look"
claim("F1 that the job reports for the perfect answers", flawless,
      expected=0.6, within=0.02)

# %% [markdown] trap="12.12" role="look"
# The plot shows the same perfect answers at other batch sizes:

# %% trap="12.12" role="look" tags=["for-look"]
by_size = {size: nightly(nines, nines, size) for size in (4, 8, 16, 64)}
plot_columns(by_size, xlabel="digits in a batch", form=".2f",
             ylabel="mean F1 of the batches",
             reference=(1.0, "no mistake in any of them"),
             title="The score follows the batch size, not the detector",
             alt="Four columns, for batches of 4, 8, 16 and 64 digits. The "
                 "mean F1 rises from about a third to 1, although the "
                 "answers are the labels each time.")

# %% [markdown] trap="12.12" role="why"
# A batch of 8 contains no nine with a probability of `0.9 ** 8 = 0.43`. Then there is
# nothing to find. TP, FP and FN are 0, and the batch adds a 0 to the mean. Any other
# number for `0 / 0` is just as arbitrary. Accuracy is a mean over rows, so you can
# compute it from the accuracies of the batches and their sizes. F1 is a ratio of two
# counts, and both counts need all the rows.

# %% [markdown] trap="12.12" role="repair"
# Add up the counts over all batches, and divide once:

# %% trap="12.12" role="repair" tags=["for-repair"]
class Counted:
    """F1 over all batches since the last reset."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.hits = self.errors = 0

    def update(self, alarm, nine):
        self.hits += (alarm & nine).sum().item()
        self.errors += (alarm != nine).sum().item()

    def compute(self):
        return 2 * self.hits / (2 * self.hits + self.errors)

# %% trap="12.12" role="repair"
def counted(metric, alarm, nine, size=8):
    """F1 after the batches of one night."""
    for batch in zip(alarm.split(size), nine.split(size)):
        metric.update(*batch)
    return metric.compute()

by_counts = [counted(Counted(), nines, nines, size) for size in by_size]
print("by counts:", by_counts)

# %% trap="12.12" role="repair"
claim("perfect answers: lowest F1 from counts, over four batch sizes",
      min(by_counts), expected=1)

# %% [markdown] trap="12.12" role="repair"
# But a metric object keeps its counts. Suppose the job creates it once and uses it for
# six nights. On the last night, the job loads the wrong file, with an untrained detector.
# In the first line below, nobody calls `reset`. In the second, every night counts from
# zero:

# %% trap="12.12" role="repair"
trained = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
fit(trained, x_train, (y_train == 9).long(), steps=300, lr=5e-3)
untrained = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
old, log, own = Counted(), [], []
for net in [trained] * 5 + [untrained]:
    alarm = net(x_test).argmax(1) == 1
    log.append(counted(old, alarm, nines))           # never reset
    own.append(counted(Counted(), alarm, nines))     # from zero
print("never reset:", [round(score, 2) for score in log])
print("from zero:  ", [round(score, 2) for score in own])

# %% trap="12.12" role="repair"
claim("F1 on the last night: counts never reset minus counts from zero",
      log[-1] - own[-1], above=0.2)

# %% [markdown] trap="12.12" role="more" topics="other numbers for 0/0 · sorted data · scikit-learn"
# What if the job uses a 1 for `0 / 0`, or leaves out each batch where `0 / 0` occurs?
# With a 1, a detector that never reports anything looks useful. If the job leaves such
# batches out, a false alarm costs a lot in a batch without a nine, and little in a batch
# with one. The second detector below finds every nine, but it also reports every four as
# a nine.

# %% trap="12.12" role="more"
def filled(alarm, nine, empty, size=8):
    """Mean F1 of the batches, with this number for 0/0, or None."""
    scores = [f1(a, b) if (a | b).any() else empty
              for a, b in zip(alarm.split(size), nine.split(size))]
    scores = [score for score in scores if score is not None]
    return sum(scores) / len(scores)

silent, nine_or_four = nines & False, nines | (y_test == 4)
said = {"silent, with a 1": filled(silent, nines, empty=1.0),
        "nine or four, left out": filled(nine_or_four, nines, empty=None),
        "nine or four, by counts": counted(Counted(), nine_or_four, nines)}
print({name: round(score, 2) for name, score in said.items()})

# %% trap="12.12" role="more"
claim("F1 of a detector that never reports a nine, if 0/0 counts as 1",
      said["silent, with a 1"], expected=0.4, within=0.02)
claim("'nine or four' detector: F1 without empty batches minus F1 from "
      "counts",
      said["nine or four, left out"] - said["nine or four, by counts"],
      expected=-0.1, within=0.02)

# %% [markdown] trap="12.12" role="more"
# If the test set is sorted by class, nearly all batches have no nine. And scikit-learn,
# which gets all the predictions at once, agrees with the counts:

# %% trap="12.12" role="more"
from sklearn.metrics import f1_score

ordered = nines.sort().values
nothing = torch.zeros(8, dtype=torch.bool)

# %% trap="12.12" role="more"
claim("F1 that the job reports for the perfect answers on sorted data",
      nightly(ordered, ordered), below=0.15)
claim("'nine or four' detector: F1 from scikit-learn minus F1 from counts",
      f1_score(nines, nine_or_four)
      - said["nine or four, by counts"], expected=0, within=1e-9)
claim("scikit-learn's F1 for 0/0",
      f1_score(nothing, nothing, zero_division=0), expected=0)

# %% trap="12.12" role="exercise" points=3 difficulty=2 minutes=12
def class_f1(batches, classes: int) -> torch.Tensor:
    """Compute the F1 score of every class over all batches together.

    The F1 of a class is 2 TP / (2 TP + FP + FN), counted over all rows. F1
    is nan for a class that is neither the label nor the prediction of any
    row.

    Args:
        batches: an iterator, which can be read only once. The iterator
            yields pairs of logits (n, classes) float32 and labels (n,)
            int64. n can differ from pair to pair and can be 0.
        classes: at least 2.

    Returns:
        The scores, of shape (classes,), float64.

    The prediction for a row is the class with the largest logit. A row with
    the label -100 is ignored altogether. Every call counts from zero. The
    batches are left unchanged.

    Example: for labels [0, 0] and [1], and three predictions of class 0,
    the scores are [0.8, 0.].
    """
    # BEGIN SOLUTION
    said, true, right = torch.zeros(3, classes, dtype=torch.float64)
    for logits, labels in batches:
        counts = labels != -100
        guesses, labels = logits[counts].argmax(1), labels[counts]
        said += guesses.bincount(minlength=classes)
        true += labels.bincount(minlength=classes)
        right += labels[guesses == labels].bincount(minlength=classes)
    return 2 * right / (said + true)
    # END SOLUTION

# %% [markdown] trap="12.12" role="hint"
# 1. For a class, 2 TP + FP + FN is the number of predictions of this class plus the
#    number of its labels. So three counts for each class are enough.
# 2. `x.bincount(minlength=classes)` counts how many times each class occurs in `x`.
# 3. Remove the ignored rows first, from the logits and from the labels. Divide after the
#    last batch, in float64, where `0 / 0` is nan.

# %% [markdown] trap="12.12" role="keep"
# **Keep:** F1, precision and recall belong to a whole data set. Add up counts over the
# batches, divide once, and start every evaluation from zero. **In your own code:** Send
# the labels through your evaluation as predictions. The score must be perfect at every
# batch size. Then evaluate twice in a row, and the two scores must agree. **Source:**
# [scikit-learn,
# f1_score](https://scikit-learn.org/stable/modules/generated/sklearn.metrics.f1_score.html),
# on `zero_division`. **Seen in the wild:** Keras 2.0 removed F1, precision and recall,
# because computing them batch by batch is "more misleading than helpful"
# ([keras-team/keras 5794](https://github.com/keras-team/keras/issues/5794)). A merged fix
# in [JetBrains-Research/code2seq
# 112](https://github.com/JetBrains-Research/code2seq/pull/112) resets metrics that had
# kept counting over all epochs.

# %% [markdown] role="concept"
# ## Further
#
# ### A spike in the loss
#
# A loss that is not `nan` may still jump. In the plot below, the batch of step 100 comes
# from a damaged file: its pixels are between 0 and 16 instead of between 0 and 1, and its
# labels are shifted by one row. At this step, both the loss and the norm of all gradients
# jump, and you can check the norm *before* the optimizer takes the step.

# %% role="concept"
def batch_of(step):
    """Draw 64 rows; the rows of step 100 are damaged."""
    rows = torch.randint(1300, (64,))
    x, y = x_train[rows], y_train[rows]
    return (16 * x, y.roll(1)) if step == 100 else (x, y)

# %% role="concept"
def spiked(optimizer, remedy, **settings):
    """Train for 200 steps; return the loss and the norm of each step."""
    torch.manual_seed(SEED)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    opt, log = optimizer(net.parameters(), **settings), []
    for step in range(200):
        x, y = batch_of(step)
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        take(net, opt, remedy, loss, log)
    return torch.tensor(log)

# %% role="concept"
def take(net, opt, remedy, loss, log):
    """Take a step; clip its gradient, or skip it if the norm is unusual."""
    limit = 1.0 if remedy == "clip" else math.inf
    norm = nn.utils.clip_grad_norm_(net.parameters(), limit).item()
    usual = np.median([n for _, n in log[-50:]] or [norm])
    if not (remedy == "skip" and len(log) > 20 and norm > 10 * usual):
        opt.step()
    log.append((loss.item(), norm))

sgd = {"optimizer": torch.optim.SGD, "lr": 0.1, "momentum": 0.9}
adam = {"optimizer": torch.optim.Adam, "lr": 0.01}
spikes = {(name, remedy): spiked(remedy=remedy, **settings)
          for name, settings in (("SGD", sgd), ("Adam", adam))
          for remedy in ("as it is", "clip", "skip")}

# %% role="concept" compare=false
jump = {}
for way, log in spikes.items():
    at, after = log[100, 0].item(), log[101:111, 0].mean().item()
    jump[way] = after / log[90:100, 0].mean().item()
    print(f"{way[0]:4} {way[1]:8} loss at step 100: {at:4.0f}, "
          f"after it: {after:.2f}, {jump[way]:4.1f} times the loss before")
norms = spikes["SGD", "as it is"][:, 1]
over_usual = (norms[100] / norms[50:100].median()).item()

# %% role="concept"
claim("gradient norm at the damaged step, divided by the median norm in "
      "the 50 steps before it", over_usual, above=20)
claim("SGD: mean loss in the ten steps after the damage, divided by the "
      "mean loss before it", jump["SGD", "as it is"], above=3)
claim("clipping or skipping: loss after the damage divided by loss before "
      "it, largest of 4 runs",
      max(v for (_, remedy), v in jump.items() if remedy != "as it is"),
      below=1.8)

# %% role="concept"
plot_lines(range(1, 201), {
    name: spikes["SGD", remedy][:, 0].tolist() for name, remedy in
    (("plain", "as it is"), ("clip", "clip"), ("skip", "skip"))},
    xlabel="step", logy=True, ylabel="loss",
    title="One damaged batch costs many steps",
    alt="Three losses over 200 steps of SGD. All three jump at step 100. "
        "Without a remedy, the loss stays high for many steps. With "
        "clipping or skipping, it falls back at once.")

# %% [markdown] role="concept"
# Clipping the gradient saves the net, and so does skipping the step, both under SGD with
# momentum and under Adam. If you skip steps, log how many: in trap 12.11, a guard skips
# every step.
#
# ### Logits that grow, and QK-norm
#
# A loss may also jump without a damaged batch. In attention, a logit is the dot product
# of a query and a key, so it grows with both of their weight matrices. [At high learning
# rates, it does grow](https://arxiv.org/abs/2309.14322). In the end, the softmax gives
# almost all the weight to one key, and little gradient flows back through the softmax.
#
# *QK-norm* usually scales [each query and each
# key](https://arxiv.org/abs/2010.04245) to the same norm before they are multiplied. With
# an RMSNorm and the usual division, no logit can then exceed the square root of the
# head's width times the largest learned gains of the normalization. [ViT-22B](https://arxiv.org/abs/2302.05442) uses QK-norm, after runs with
# 8 billion parameters had diverged without it. So does
# [Qwen3](https://arxiv.org/abs/2505.09388).

# %% role="concept"
def attention_logits(size, normed, width=16):
    """Logits (32, 32) of a head whose two matrices are scaled by size."""
    rng = torch.Generator().manual_seed(SEED)
    x = torch.randn(32, 64, generator=rng)
    to_q, to_k = size * torch.randn(2, 64, width, generator=rng) / 8
    q, k = x @ to_q, x @ to_k
    if normed:
        q, k = F.rms_norm(q, (width,)), F.rms_norm(k, (width,))
    return q @ k.T / width**0.5

sizes = [1, 2, 4, 8]
heads = {name: [attention_logits(size, name == "QK-norm")
                for size in sizes] for name in ("plain", "QK-norm")}

# %% role="concept"
largest = {name: [z.abs().max().item() for z in found]
           for name, found in heads.items()}
claim("without QK-norm: factor by which the largest logit grows when the "
      "weights grow eightfold",
      largest["plain"][-1] / largest["plain"][0], expected=64, within=0.01)
claim("with QK-norm: factor by which the largest logit grows when the "
      "weights grow eightfold", largest["QK-norm"][-1]
      / largest["QK-norm"][0], expected=1, within=0.001)
claim("with QK-norm: largest logit divided by the square root of the width",
      max(largest["QK-norm"]) / 16**0.5, below=1.0001)

# %% role="concept"
plot_lines(sizes, {name: [z.softmax(1).amax(1).mean().item()
                          for z in found] for name, found in heads.items()},
           xlabel="size of the weights", ylabel="largest weight of a key",
           title="Larger weights leave one key, except with QK-norm",
           alt="Mean attention weight of the strongest of 32 keys. This "
               "weight rises towards one as the weight matrices grow "
               "eightfold. With QK-norm, it does not change.")

# %% [markdown] role="concept"
# ### A tool that looks while a script runs
#
# Some faults of this stage are visible in the values that pass through torch: smoothing
# over masked classes (12.11), a sum of losses that keeps its graphs (12.6), batches
# sorted by class (12.7), a loss that is `nan` (12.1). `dlsys watch train.py` runs a
# script unchanged and prints a line for each fault that it finds. The script below ends
# without an error.

# %% role="concept"
faulty = tempfile.TemporaryDirectory()
script = """import torch
from torch.nn import functional as F

x, y = torch.rand(40, 8), torch.arange(40) % 4
net = torch.nn.Linear(8, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(20):
    z = net(x).masked_fill(torch.arange(4) != y[:, None], -torch.inf)
    loss = F.cross_entropy(z, y, label_smoothing=0.1)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""

# %% role="concept"
import subprocess
import sys

with open(os.path.join(faulty.name, "train.py"), "w") as file:
    file.write(script)
ended = subprocess.run([sys.executable, "-m", "dlsys_watch", "train.py"],
                       cwd=faulty.name, capture_output=True, text=True)
told = ended.stdout + ended.stderr
print("exit status:", ended.returncode)
print(told)

# %% role="concept"
claim("number of lines in the output that name trap 12.11",
      told.count("trap 12.11"), expected=1)
claim("exit status of the script under the tool", ended.returncode,
      expected=0)

# %% [markdown] role="concept"
# ### What two runs share
#
# With the same code and the same seed, what may still differ? The cell below trains one
# classifier for 200 steps, then one more classifier for each line of the output, and
# compares each of these with the first.

# %% role="concept"
def learned(mix=lambda rows: rows, seed=7):
    """Train for 200 steps, return weights, labels; mix() orders a batch."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(200):
        rows = mix(torch.randint(1300, (64,)))
        opt.zero_grad()
        F.cross_entropy(net(x_train[rows]), y_train[rows]).backward()
        opt.step()
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    return weights, net(x_test).argmax(1)

def turned(rows):
    return rows.flip(0)

# %% role="concept" compare=false
first = learned()
runs = {"the same run again": learned(),
        "rows of each batch reversed": learned(turned)}
torch.use_deterministic_algorithms(True)
runs["rows reversed, deterministic"] = learned(turned)
fresh_memory = torch.empty(3)
torch.use_deterministic_algorithms(False)
runs["another seed"] = learned(seed=8)
gaps, flips = {}, {}
for name, (weights, read) in runs.items():
    gaps[name] = (weights - first[0]).abs().max().item()
    flips[name] = (read != first[1]).sum().item()
    print(f"{name:32} weights {gaps[name]:.0e} apart, "
          f"{flips[name]:2} digits classified differently")

# %% role="concept"
again, order, flagged, seeds = gaps.values()
claim("largest gap between the weights when the run is repeated", again,
      expected=0)
claim("largest gap between the weights with reversed batches, with or "
      "without the flag", max(order, flagged), above=1e-9, below=1e-4)
claim("gap caused by a different seed, divided by the gap caused by a "
      "different order", seeds / order, above=1000)

# %% [markdown] role="concept"
# The order of the additions changes the last digits of a sum.
# `use_deterministic_algorithms(True)` asks for the same result whenever the *same*
# numbers are processed in the *same* order; if torch has no deterministic operation, the
# flag raises an error. Here the order is different, so the flag does not help. The flag
# also fills new float tensors from `torch.empty` with `nan`, to reveal code that reads
# memory before writing to it.
#
# | what changes | what follows, measured in this stage |
# |---|---|
# | the seed | different weights, and different digits are classified correctly |
# | the order of the rows, or of the sum | the last digits of the weights change, at this learning rate |
# | the number of workers | a different worker draws the random number of an image (12.3) |
# | resuming without the generator's state | different batches, different dropout masks (12.8) |
# | the process | a set of strings has a different order (12.9) |
#
# The GPU section below shows that a GPU may add in a different order each time.

# %% role="concept"
claim("is new memory filled with NaN under the deterministic flag",
      fresh_memory.isnan().all(), expected=True)

# %% [markdown] role="concept"
# ### Search on a real training run
#
# The bowls of trap 12.4 have no noise. Here a digit classifier has four settings:
# learning rate, momentum, label smoothing and the size of the initial weights. Each
# search has a budget of 1,600 training steps: 20 runs of 80 steps, or more runs if bad
# runs are stopped early. We compare three methods. The first is random search (`dice`).
# The second is TPE, Optuna's default, which begins with ten random runs and then learns
# from earlier runs (it is not a Gaussian process). The third is Hyperband with random
# settings, which after 20 or 40 steps stops runs that are behind the others. Each method
# is repeated with eight seeds. Each number below is the best held-out loss of one search,
# and each row is sorted. (`optuna` also belongs to the extra `track`.)

# %% role="concept" tags=["plumbing"]
import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)
states = optuna.trial.TrialState
SIZES = ((64, 32), (1, 32), (32, 10), (1, 10))

# %% role="concept" tags=["plumbing"]
class Classifiers:
    """n classifiers side by side, each with its own settings."""

    def __init__(self, n):
        self.weights = [torch.zeros(n, *s, requires_grad=True)
                        for s in SIZES]
        self.speeds = [torch.zeros(n, *s) for s in SIZES]
        self.settings, self.steps = torch.zeros(3, n, 1, 1), [0] * n

    @torch.no_grad()
    def renew(self, k, rate, momentum, smoothing, size):
        for w, v in zip(self.weights, self.speeds):
            fan = w.shape[1]
            w[k] = size * torch.randn_like(w[k]) / fan**0.5 * (fan > 1)
            v[k] = 0
        self.settings[:, k, 0, 0] = torch.tensor(
            [rate, momentum, smoothing])
        self.steps[k] = 0

# %% role="concept" tags=["plumbing"]
def losses_of(classifiers, x, y, smoothing=0):
    """The cross-entropy of each classifier, (n,)."""
    a, b, c, d = classifiers.weights
    log_p = ((x @ a + b).relu() @ c + d).log_softmax(-1)
    right = log_p.gather(2, y[..., None].expand(len(log_p), -1, 1))
    spread = log_p.mean(-1, keepdim=True)
    return -((1 - smoothing) * right + smoothing * spread).mean((1, 2))

# %% role="concept" tags=["plumbing"]
def go_on(classifiers, steps=20):
    """Train the classifiers; return their losses on held-out digits."""
    rate, momentum, smoothing = classifiers.settings
    for _ in range(steps):
        rows = torch.randint(1300, (32,))
        loss = losses_of(classifiers, x_train[rows], y_train[rows],
                         smoothing)
        gradients = torch.autograd.grad(loss.sum(), classifiers.weights)
        with torch.no_grad():
            for w, v, g in zip(classifiers.weights, classifiers.speeds,
                               gradients):
                w.sub_(rate * v.mul_(momentum).add_(g))
    with torch.no_grad():
        loss = losses_of(classifiers, x_test, y_test)
    return loss.nan_to_num(1e3).clamp(max=1e3).tolist()

# %% role="concept"
def settings_of(trial):
    return {"rate": trial.suggest_float("rate", 1e-4, 10, log=True),
            "momentum": trial.suggest_float("momentum", 0, 0.99),
            "smoothing": trial.suggest_float("smoothing", 0, 0.5),
            "size": trial.suggest_float("size", 0.1, 10, log=True)}

# %% role="concept"
def searches(sampler, pruner=None, n=8, parts=80):
    """Run n studies side by side, each of parts * 20 steps."""
    studies = [optuna.create_study(
        sampler=sampler(seed=torch.randint(2**31, ()).item()),
        pruner=pruner or optuna.pruners.NopPruner()) for _ in range(n)]
    classifiers, trials = Classifiers(n), [None] * n
    for _ in range(parts):
        advance(studies, classifiers, trials)
    return studies

# %% role="concept" tags=["plumbing"]
def advance(studies, classifiers, trials):
    """Train 20 more steps for each study, and end trials that are done."""
    for k, study in enumerate(studies):
        if trials[k] is None:
            trials[k] = study.ask()
            classifiers.renew(k, **settings_of(trials[k]))
    for k, loss in enumerate(go_on(classifiers)):
        classifiers.steps[k] += 20
        trials[k].report(loss, classifiers.steps[k])
        if classifiers.steps[k] == 80:
            studies[k].tell(trials[k], loss)
        elif trials[k].should_prune():
            studies[k].tell(trials[k], state=states.PRUNED)
        else:
            continue
        trials[k] = None

# %% role="concept" compare=false
samplers, pruners = optuna.samplers, optuna.pruners
band = pruners.HyperbandPruner(20, 80, reduction_factor=2)
ways = {"dice": searches(samplers.RandomSampler),
        "TPE": searches(samplers.TPESampler),
        "Hyperband": searches(samplers.RandomSampler, band)}
ends = {way: sorted(study.best_value for study in studies)
        for way, studies in ways.items()}
for way, losses in ends.items():
    print(f"{way:9}", " ".join(f"{loss:.2f}" for loss in losses),
          f"  runs: {len(ways[way][0].trials)}")

# %% role="concept"
middles = [np.median(losses) for losses in ends.values()]
widest = max(losses[-1] / losses[0] for losses in ends.values())
runs = [sum(len(s.trials) for s in ways[way]) for way in ways]
claim("within one method: worst loss of eight searches divided by best, "
      "largest of three ratios", widest, above=1.5)
claim("between methods: worst median divided by best, relative to the "
      "ratio within one method",
      max(middles) / min(middles) / widest, below=0.95)
claim("number of runs with Hyperband, divided by number of runs with "
      "random search", runs[2] / runs[0], above=1.05)

# %% [markdown] role="concept"
# *Hyperband* is based on one idea: give many settings a short run, keep the better ones,
# give them a longer run, and so on, until a few run to the end. This procedure alone
# would drop a setting that starts slowly, so Hyperband repeats the procedure with
# different lengths of the first run.
#
# Compare the numbers within a row before you compare the rows. One method's best and
# worst search are further apart than the medians of the three methods, so if each method
# gets one seed, a comparison depends on the seed as much as on the method. A fair
# comparison uses the same number of steps, not the same number of runs, and shows the
# results of all seeds next to their mean.
#
# The learning rate is drawn on a log scale, with `log=True`. On a linear scale, nine out
# of ten random rates between 0.0001 and 10 are above 1.

# %% role="concept"
even = torch.empty(10_000).uniform_(1e-4, 10)
print(f"rates above 1: linear scale {(even > 1).float().mean():.0%},"
      f" log scale {1 / 5:.0%}")

# %% role="concept"
claim("fraction of rates above 1, drawn on a linear scale",
      (even > 1).float().mean(), above=0.85)

# %% [markdown] role="concept"
# ### A search that is killed
#
# With `storage="sqlite:///..."`, each run is written to a file, so a killed search can
# continue. Here a child process is killed in its seventh run. Then a study with the same
# name and the same seed does the remaining runs.

# %% role="concept"
store = tempfile.TemporaryDirectory()

def reopened(seed):
    return optuna.create_study(
        study_name="digits", storage=f"sqlite:///{store.name}/search.db",
        load_if_exists=True, sampler=samplers.RandomSampler(seed=seed))

def objective(trial, mine=os.getpid()):
    if trial.number == 6 and os.getpid() != mine:
        os.kill(os.getpid(), signal.SIGKILL)
    return (trial.suggest_float("rate", 0, 1) - 0.3) ** 2

# %% role="concept"
signal_of = killed_after(10**9, lambda: reopened(0).optimize(objective, 10))
study = reopened(0)
study.optimize(objective, n_trials=4)
rates = [trial.params.get("rate") for trial in study.trials]
print("ended by signal", -signal_of)
print("states:", [trial.state.name for trial in study.trials])
print("rates:", " ".join("-" if r is None else f"{r:.2f}" for r in rates))

# %% role="concept"
repeated = sum(rate in rates[:6] for rate in rates[7:])
claim("is the killed run still listed as running",
      study.trials[6].state.name == "RUNNING", expected=True)
claim("number of runs, out of four after the kill, that repeat earlier "
      "settings", repeated, expected=4)

# %% [markdown] role="concept"
# Two problems remain. The killed run stays `RUNNING`. To close it, pass its number to
# `study.tell` (or give the storage a `heartbeat_interval` from the start). And the database file does not contain the
# sampler's state. With the same seed, the random numbers start from the beginning, so
# the four new runs repeat the first four runs. If you use the number of runs so far as
# the seed, the sampler draws new settings.

# %% role="concept"
study.tell(6, state=states.FAIL)
study = reopened(seed=len(study.trials))
study.optimize(objective, n_trials=4)
fresh_rates = [trial.params["rate"] for trial in study.trials[-4:]]
print("rates:", " ".join(f"{r:.2f}" for r in fresh_rates))

# %% role="concept"
claim("is the killed run closed", study.trials[6].state.name == "FAIL",
      expected=True)
claim("number of runs that repeat earlier settings if the seed is the "
      "number of runs so far",
      sum(rate in rates for rate in fresh_rates), expected=0)

# %% [markdown] role="concept"
# ### The same search as a W&B sweep
#
# A sweep needs a server, so nothing in this section is run here. A sweep is configured
# like this ([documentation of its
# keys](https://docs.wandb.ai/models/sweeps/sweep-config-keys)):
#
# ```yaml
# program: train.py
# method: bayes            # or random, or grid
# run_cap: 20
# metric: {name: val_loss, goal: minimize}
# early_terminate: {type: hyperband, min_iter: 1, eta: 2}
# parameters:
#   rate: {distribution: log_uniform_values, min: 0.0001, max: 10}
#   momentum: {min: 0.0, max: 0.99}
# ```
#
# The metric's name must be the name under which you log it. If the curve is lost, as in
# trap 12.10, the search has nothing to minimize. `wandb sync --dry-run` lists the offline
# runs that have not been uploaded yet. `wandb sync <folder>` uploads one of these runs
# and needs an account.

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. The loss is NaN, and anomaly mode names the backward operation of the loss function. The NaN**
#
# - [x] may arise in any layer before the loss :: Gradients are computed from the loss backwards, so the first bad gradient does not say where the values went bad.
# - [ ] arises in the loss function :: The NaN may arise there, but a NaN from any earlier
#   layer looks the same, because the loss's backward operation is the first to return a
#   NaN.
# - [ ] arises in the first layer :: The first layer's gradient is the last to be computed.

# %% [markdown] role="quiz"
# **2. Of a million gradient values, one is NaN. After `clip_grad_norm_` with a limit of 1**
#
# - [ ] the NaN has become 1 :: Clipping does not compare a single gradient with the
#   limit; it multiplies all gradients by one factor.
# - [ ] the NaN is still the only one :: The factor is computed from the norm of all
#   gradients, and that norm is NaN.
# - [x] all are NaN :: The norm is NaN, and each gradient is multiplied by a factor
#   computed from this norm.

# %% [markdown] role="quiz"
# **3. The training loss of a regression stays at the variance of the targets. The model**
#
# - [x] does no better than a constant :: Always predicting the mean of the targets reaches this loss.
# - [ ] has learned half of what can be learned :: Then the loss would be half the variance.
# - [ ] has overfitted :: An overfitted model has a training loss below the variance.

# %% [markdown] role="quiz"
# **4. A loader runs for ten epochs with two workers and `worker_init_fn=lambda id: np.random.seed(id)`. The random numbers**
#
# - [ ] differ from epoch to epoch, because the workers keep drawing :: The numbers would
#   differ with `persistent_workers=True`. Otherwise each epoch starts new workers.
# - [ ] are the same in both workers :: The workers have different ids, so they have
#   different seeds.
# - [x] are the first epoch's numbers, ten times :: Each epoch starts new workers with the
#   same seeds, so they draw the same numbers.

# %% [markdown] role="quiz"
# **5. A job saves with `torch.save(state, "last.pt.new")`, then renames the file to `last.pt` with `os.replace`. The job is killed during the save. Then `last.pt`**
#
# - [ ] is half written :: Nothing is written into `last.pt`; the new bytes go to a
#   different file.
# - [ ] is gone :: Only `os.replace` removes the old file, in a single step, and the job was killed before that.
# - [x] holds the old state :: The half-written file has a different name.

# %% [markdown] role="quiz"
# **6. A loop skips steps whose loss is not finite. In every row, the logits of some classes are minus infinity, and the labels are smoothed over all classes. The loop**
#
# - [x] skips every step :: The smoothed target of a masked class is multiplied by the logarithm of zero.
# - [ ] skips only steps in which a label is masked :: Without smoothing, this would be
#   true.
# - [ ] skips nothing, because `-inf` at a wrong class is harmless :: Minus infinity at a wrong class is harmless only without smoothing.

# %% [markdown] role="quiz"
# **7. Each step appends `loss` to a list, after `loss.backward()`. The list**
#
# - [ ] holds the activations of each step :: `backward()` has freed the activations, even if the loss is still held.
# - [x] holds nodes, and through them the trained weights :: The weights exist as long as
#   the list, even if the model's name is deleted.
# - [ ] holds only numbers :: A loss tensor also holds its graph.

# %% [markdown] role="quiz"
# **8. `os.environ["PYTHONHASHSEED"] = "0"` is a script's first line, and class numbers come from `enumerate(set(names))`. Two starts**
#
# - [ ] have the same numbers :: The secret seed of the hashes was drawn before the first line.
# - [x] nearly always have different numbers :: The order of a set of strings depends on a secret seed, which Python drew before the first line.
# - [ ] have different numbers, unless `random` and numpy are seeded as well :: Neither of these seeds affects the hashes.

# %% [markdown] role="gpu"
# ## On a GPU: order, memory, waiting
#
# On one CPU thread, `index_add_` adds values one after the other. On a GPU, thousands of
# threads add to the same element at once. `index_add_` on a GPU uses *atomic* additions,
# which happen in the order in which the threads arrive.
#
# **Before you run anything:** `index_add_` adds a million rows into 16 rows, 20 times.
# How many different results are there? Next, 20 validation batches of 512 rows pass
# through a net with eight layers of 4096 units. How many GB does `total += loss` hold?
# And for a small net, how much time do two habits cost: anomaly mode, and a call to
# `loss.item()` at each step, which makes the CPU wait?

# %% role="gpu"
values = torch.randn(4096)
place = torch.zeros(4096, dtype=torch.long)
mixed = [values[torch.randperm(4096)] for _ in range(20)]
sums = {torch.zeros(1).index_add_(0, place, v).item() for v in mixed}
whole = {torch.zeros(1, dtype=torch.long).index_add_(
    0, place, (v * 2**16).long()).item() for v in mixed}

def stack(width, where="cpu"):
    """Eight layers of the given width."""
    return nn.Sequential(*[part for _ in range(8) for part in (
        nn.Linear(width, width), nn.ReLU())]).to(where)

# %% role="gpu"
def step(net, x):
    loss = net(x).square().mean()
    loss.backward()
    return loss

def watched(net, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            return step(net, x)

little, few = stack(64), torch.randn(8, 64)
batch_bytes = (4096 * 512) / (64 * 8) * saved_bytes(
    lambda: little(few).square().mean(), [few, *little.parameters()])
step(little, few)                           # allocates the gradients
orders = {way.__name__: cost(lambda: way(little, few)).orders
          for way in (step, watched)}
print(f"sums in 20 orders: {len(sums)} float32, {len(whole)} integer")
print(f"20 graphs of 512 rows: {20 * batch_bytes / 1e9:.2f} GB;",
      "operations of a step:", orders)

# %% role="gpu"
claim("number of different float32 sums in 20 orders", len(sums), above=1)
claim("number of different integer sums in 20 orders",
      len(whole), expected=1)
claim("number of operations in an anomaly-mode step, divided by the number "
      "in a plain step", orders["watched"] / orders["step"], above=2)

# %% role="gpu"
@gpu_result("12/order",
            columns=["way", "results", "ms", "ms_low", "ms_high"])
def order_of_sums():
    """Add a million rows of 8 into 16, as usual and deterministically."""
    to = torch.randint(16, (2**20,), device="cuda")
    rows = torch.randn(2**20, 8, device="cuda")

    def add():
        return torch.zeros(16, 8, device="cuda").index_add_(0, to, rows)
    for way in ("usual", "deterministic"):
        torch.use_deterministic_algorithms(way == "deterministic")
        try:
            found = {str(add().tolist()) for _ in range(20)}
            t = seconds(add, repeats=10, device="cuda")
        finally:
            torch.use_deterministic_algorithms(False)
        yield {"way": way, "results": len(found), "ms": t.median * 1e3,
               "ms_low": t.low * 1e3, "ms_high": t.high * 1e3}

# %% role="gpu"
@gpu_result("12/validation", uses=[stack],
            columns=["way", "held_gb", "peak_gb"])
def validation():
    """20 batches of 512 rows through eight layers of 4096 units."""
    net, x = stack(4096, "cuda"), torch.randn(512, 4096, device="cuda")
    for way in ("total += loss", "item()", "no_grad"):
        kept_sum = []

        def run():
            with torch.set_grad_enabled(way != "no_grad"):
                total = 0.0
                for _ in range(20):
                    loss = net(x).square().mean()
                    total += loss if way == "total += loss" else loss.item()
                kept_sum.append(total)
        before = torch.cuda.memory_allocated()
        peak = peak_bytes(run)
        held = torch.cuda.memory_allocated() - before
        yield {"way": way, "held_gb": held / 1e9, "peak_gb": peak / 1e9}

# %% role="gpu"
@gpu_result("12/steps", uses=[stack, step, watched],
            columns=["way", "ms", "ms_low", "ms_high"])
def steps():
    """Train a small net for ten steps, reading the losses in three ways."""
    net, x = stack(256, "cuda"), torch.randn(64, 256, device="cuda")
    ways = {"losses kept": lambda: [step(net, x).detach()
                                    for _ in range(10)],
            "item() each step": lambda: [step(net, x).item()
                                         for _ in range(10)],
            "anomaly mode": lambda: [watched(net, x) for _ in range(10)]}
    timings = seconds_in_turns(list(ways.values()), 10, "cuda")
    for way, t in zip(ways, timings):
        yield {"way": way, "ms": t.median * 1e3, "ms_low": t.low * 1e3,
               "ms_high": t.high * 1e3}

# %% role="gpu"
sum_gb = 20 * batch_bytes / 1e9

def results(way):
    return order_of_sums.value("results", way=way)

def held_gb(way):
    return validation.value("held_gb", way=way)

def over_kept(way):
    return steps.value("ms", way=way) / steps.value("ms", way="losses kept")

# %% role="gpu"
answers_here = gpu_table(
    datasheet(order_of_sums.device_name),
    order_of_sums.asks("different results of 20 calls", "more than 1",
                       lambda: results("usual"), above=1),
    order_of_sums.asks("different results, deterministic", 1.0,
                       lambda: results("deterministic"), expected=1),
    validation.asks("GB that the sum holds", sum_gb,
                    lambda: held_gb("total += loss"),
                    above=0.95 * sum_gb),
    validation.asks("GB held under no_grad", 0.0,
                    lambda: held_gb("no_grad"), below=0.05),
    steps.asks("a step in anomaly mode, divided by a plain step",
               orders["watched"] / orders["step"],
               lambda: over_kept("anomaly mode"), above=1.5),
    steps.asks("time with item() at each step, divided by without",
               "1 or more",
               lambda: over_kept("item() each step"), above=0.95))
answers_here

# %% [markdown] role="gpu"
# **On the H100 used for the recorded run**, all 20 sums differ. With deterministic
# algorithms, all sums are equal, but adding the million rows takes 40 times as long.
# After 20 batches, `total += loss` holds 1.38 GB. With `item()`, nothing remains in
# memory, and the peak is 0.14 GB; under `no_grad`, the peak is 0.02 GB. Anomaly mode
# launches 2.8 times as many operations and takes 4.3 times as long.
#
# Calling `item()` at each step makes no measurable difference here: ten steps of this
# small net take 13 ms with and without it. A step consists of 70 operations with only 0.2
# GFLOP, so the GPU has already finished when the CPU asks for the loss. If the GPU lags
# behind the CPU, each `item()` waits for all operations in the queue. Trap 09.10 counts
# such waits.
#
# **Keep:** The result of a float32 sum depends on the order of its additions, and atomic
# additions on a GPU may use a different order each time. Integer sums do not depend on
# the order. Evaluate under `no_grad`, call `item()` only now and then, and use anomaly
# mode only for the step in question. **Source:** PyTorch,
# [use_deterministic_algorithms](https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html),
# which lists `index_add_` on CUDA among the changed operations.

# %% [markdown] role="summary"
# ## What you take with you
#
# - Search for a NaN in the order of a step: batch, weights, modules, loss, gradients, new
#   weights. Forward hooks find the module where a NaN arises; anomaly mode only checks
#   gradients.
# - Alongside the loss, log the best constant prediction's loss and how far each layer has
#   moved. The first line of a log says what was run.
# - In workers that start anew for each epoch, a constant seed in `worker_init_fn` replays
#   the first epoch. Derive random numbers from the seed, the epoch and the sample.
# - Find the settings that matter, then search only these settings. If your search loses
#   to random search, look for a bug in the search.
# - `torch.where` hides a bad value, but not its gradient. Clipping by norm spreads a NaN
#   to all gradients.
# - Overfitting one batch shows only that the loss can fall.
# - A stored loss tensor keeps the trained weights in memory. Store `loss.item()`.
# - Python reads the hash seed before the first line of a script. Sort the class names,
#   and store the list with the weights.
# - Save a checkpoint to a second file, sync it, and rename it. Also store the state of
#   the random generator, save when the termination signal arrives, and keep the file
#   where the next machine can find it.
# - If two runs differ, compare the hashes of their parts in order. The first hash that
#   differs names the part to look at.
# - A W&B run has one step counter, which only goes up. Log the x-axis of a second curve,
#   such as the epoch, as a value of its own.
# - Label smoothing uses the log-probability of every class. Spread the smoothing over the
#   allowed classes only.
# - F1 belongs to a whole data set. Add up counts over the batches, divide once, and start
#   every evaluation from zero.

