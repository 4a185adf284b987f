# %% [markdown] role="hook"
# # 12. Training stability and MLOps
#
# A run is in its third day. Overnight the loss has become `nan`. The log holds one number
# per step, the job was killed while it saved, and a second run with the same settings
# gives other results.
#
# None of this needs a large model. This stage plants such accidents in a small classifier
# of digits, where each takes a second, and shows what finds them: which module, which
# layer, which file, which seed.

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
# A float has two values that say "this went wrong". An *infinity* appears where a result
# was too large or was divided by zero. `nan`, *not a number*, appears where no result
# exists: `0/0`, `inf - inf`, `0 * inf`, the root of a negative number. In sums and
# products `nan` stays `nan`, so one bad value spoils a whole mean. And `nan` is unequal
# to everything, even to itself, so a test like `loss > 100` never notices it.
#
# Shapes in this stage: `N` rows, `F` features, `C` classes.

# %% role="concept"
loss = torch.tensor([1.0, float("nan"), 2.0]).mean()
print("mean:", loss, "  above 100:", bool(loss > 100))
print("equal to itself:", bool(loss == loss))
print("finite:", bool(loss.isfinite()))

# %% role="concept"
claim("is the mean with one nan in it finite", loss.isfinite(),
      expected=False)
claim("is it above 100", loss > 100, expected=False)

# %% [markdown] role="concept"
# The data are the digits of lesson 1.

# %% role="concept"
x_train, y_train, x_test, y_test = digits()       # (1300, 64), (497, 64)

# %% [markdown] trap="12.1" role="situation" core=true fault="detect_anomaly blames the loss, not the layer of the NaN" symptom="loss is NaN: which layer? detect_anomaly says LogSoftmaxBackward0 returned nan values"
# ## A blank page
#
# Between two layers, a digit classifier standardises its features row by row: minus the
# mean of the row, divided by its standard deviation. One page of the batch is blank. In
# its row all features are zero, so their standard deviation is also zero, and `0/0` is
# `nan`.
#
# You do not know this yet: you see a loss of `nan`. You switch on
# `torch.autograd.detect_anomaly()` and repeat the step below. It stops with an error that
# names an operation.

# %% trap="12.1" role="break"
class Standardize(nn.Module):
    """Each row (N, F) minus its mean, over its standard deviation."""

    def forward(self, h):
        return (h - h.mean(1, keepdim=True)) / h.std(1, keepdim=True)

reader = nn.Sequential(nn.Linear(64, 32, bias=False), nn.ReLU(),
                       Standardize(), nn.Linear(32, 32), nn.ReLU(),
                       nn.Linear(32, 10))
pages, labels = x_train[:64].clone(), y_train[:64]
pages[5] = 0                                 # a blank one

# %% trap="12.1" role="break" tags=["plumbing"]
def blamed(step):
    """What anomaly mode says about a step; "" when it says nothing."""
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
    F.cross_entropy(reader(pages), labels).backward()

# %% trap="12.1" role="guess"
guess("12.1", "Which operation does it name?",
      choices=["the division in `Standardize`",
               "the log-softmax of the loss",
               "the product of the first linear layer"])

# %% trap="12.1" role="look"
loss = F.cross_entropy(reader(pages), labels)
said = blamed(nan_step)
print("loss:", loss.item())
print("anomaly mode:", said)

# %% trap="12.1" role="look"
measured("12.1", 1)

# %% trap="12.1" role="look"
claim("does it name the log-softmax", "LogSoftmax" in said, expected=True)

# %% [markdown] trap="12.1" role="why"
# Anomaly mode looks at *gradients*, in the order in which they are computed: from the
# loss backwards. The gradient of the log-softmax is the first that uses a spoilt value,
# namely the result that the log-softmax saved. The values went bad long before that.

# %% trap="12.1" role="why" tags=["plumbing"]
given = [pages]
for layer in [*reader, nn.LogSoftmax(1)]:
    given.append(layer(given[-1]))
    given[-1].retain_grad()
F.nll_loss(given[-1], labels).backward()
is_nan = torch.tensor([[bool(t.isnan().any()) for t in (out, out.grad)]
                       for out in given[1:]])

# %% trap="12.1" role="why"
draw_grids({"in front of the loss": ~is_nan.T},
           marks={"in front of the loss": is_nan.T}, legend="holds a NaN",
           row_names=["value", "gradient"], columns="what a module gives",
           column_names=["0", "1", "2", "3", "4", "5", "log softmax"],
           title="Forward it begins at 2, backward at the end",
           alt="Seven modules, two rows. Values hold a NaN from module 2 "
               "on. Gradients hold one from module 5 back to module 1; "
               "that of the log-softmax's result is finite.")

# %% [markdown] trap="12.1" role="repair"
# To catch a NaN that arises in the forward pass, watch the forward pass: put a hook on
# every module and look at its output. The culprit is the first module whose inputs are
# finite and whose output is not.

# %% trap="12.1" role="repair"
def watch(model, x):
    """(name, input is finite, output is finite), in order of computing."""
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
report = watch(reader, pages)
for name, into, out in report[:5]:
    print(f"{name}: in {'finite' if into else 'nan'}"
          f" -> out {'finite' if out else 'nan'}")

# %% trap="12.1" role="repair"
guilty = [name for name, into, out in report if into and not out]
claim("number of the first module that makes a NaN from finite numbers",
      int(guilty[0]), expected=2)

# %% [markdown] trap="12.1" role="more" topics="the last entry of the list · a NaN of the way back · a NaN added to the loss"
# The last entry of that list is the whole model, with finite pages in and `nan` out. An
# outer module ends after its parts, so the first entry counts.
#
# Anomaly mode is right where a NaN arises on the way *back*, from finite numbers: there
# it names the operation. And it is silent where a `nan` is merely added to the loss,
# because the gradient of a sum is one for each term.

# %% trap="12.1" role="more"
def rooted():
    root = torch.tensor([1.0, 0.0], requires_grad=True)
    (root ** 0.5 * torch.tensor([1.0, 0.0])).sum().backward()

back = blamed(rooted)
linear, bad = nn.Linear(64, 1), torch.tensor(float("nan"))
silent = blamed(lambda: (linear(x_train).mean() + bad).backward())
print("a NaN of the backward pass:", back)
print("a NaN added to the loss:", repr(silent))
print("gradients finite:", bool(linear.weight.grad.isfinite().all()))

# %% trap="12.1" role="more"
claim("does it name a division", "Div" in said, expected=False)
claim("does it name the root on the way back", "PowBackward" in back,
      expected=True)
claim("does it say anything about a NaN added to the loss",
      bool(silent), expected=False)

# %% [markdown] trap="12.1" role="folklore"
# **Told:** anomaly mode makes training `5` to `10` times slower. **Measured:** it keeps a
# stack trace for each operation and looks at each gradient. The cell counts what that
# adds to a step of eight layers of 64 units, and what the step itself computes, for a
# batch of 16 rows and for one of 1,024. The times are those of the machine that runs it.

# %% trap="12.1" role="folklore" compare=false
def price(rows):
    """Operations that it adds, FLOPs of a step, time over time."""
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
claim("operations that it adds for 16 rows, divided by 1,024 rows'",
      few[0] / many[0], expected=1)
claim("FLOPs of a step with 1,024 rows, divided by those with 16",
      many[1] / few[1], expected=64)

# %% [markdown] trap="12.1" role="folklore"
# What anomaly mode adds is the same for both batches, and the step itself grows with the
# rows. So no single factor holds: the smaller the tensors, the larger the factor. Either
# way, switch anomaly mode on for the step in question and not for a whole run.

# %% trap="12.1" role="exercise" points=4 difficulty=3 minutes=15
def first_nan_module(model: nn.Module, x: torch.Tensor) -> str | None:
    """Name of the module in which a NaN or an infinity first arises.

    That is a module whose call was given finite tensors alone and returned
    one that is not; of several, the one whose call ended first. None when
    there is no such module. Names are those of named_modules(), "" for the
    model itself. Modules write into nothing they are given; they may take
    keyword arguments, be called several times, and take and return tuples,
    lists and dicts of tensors, nested as deep as one likes; what is no
    tensor counts as finite. The model, called once as model(x), is left as
    it was: weights, buffers, modes, gradients and hooks.

    Example: nn.Sequential(Root(), nn.ReLU()), where Root takes the square
    root, and x with a negative number: "0".
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
# 1. A function that calls itself says whether a value is finite: a container is when each of its parts is.
# 2. `register_forward_hook(hook, with_kwargs=True)` hands the hook the module, the arguments, the keyword arguments and the output.
# 3. In train mode a pass moves the statistics of a BatchNorm, and a NaN would stay in them. Watch a copy of the model.

# %% [markdown] trap="12.1" role="keep"
# **Keep:** find a NaN of the forward pass on the way forward, with a hook on each module.
# A hook sees modules only: if the bad operation is a function in `forward`, it names the
# module that called it. Anomaly mode sees gradients. Several operations use the spoilt
# values in their gradients, and it names the one nearest to the loss: with cross-entropy
# the log-softmax, with an L1 or a hinge loss, whose gradients hold only signs, the last
# linear layer. **In your own code:** at the first loss or gradient norm that is not
# finite, save batch and weights, and run the hooks on them. Watch the loss and the norm:
# `F.multi_margin_loss` returns a finite number for logits of NaN. **Source:** PyTorch,
# [torch.autograd.anomaly_mode](https://pytorch.org/docs/stable/_modules/torch/autograd/anomaly_mode),
# "any backward computation that generate "nan" value will raise an error". **Seen in the
# wild:** in [kenziyuliu/MS-G3D#36](https://github.com/kenziyuliu/MS-G3D/issues/36)
# anomaly mode named the log-softmax in half precision, and a BatchNorm in full precision.

# %% [markdown] trap="12.2" role="situation" core=true fault="the loss falls, but the early layers do not learn" symptom="training loss falls and flattens, early layers do not learn: vanishing gradients, per-layer report"
# ## A loss that falls
#
# A net of eight hidden layers with sigmoids predicts the value of a digit, 0 to 9, as a
# number: mean squared error, plain SGD, 200 steps. The loss falls for a few dozen steps,
# then stays at about 8. The first layer has hardly moved, the last one by more than its
# own norm. The ticket says: "Untrained layers still tell images apart, so the last layer
# learns from what they give."
#
# With Adam the first layer moves as well, by a third of its norm or more.

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
    """(loss of each step, relative change of each weight)."""
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
guess("12.2", "What does the net trained with Adam answer to a 0 and to "
      "a 9?",
      choices=["about 0 and about 9", "about 2 and about 7",
               "nearly the same number to both"])

# %% trap="12.2" role="look"
variance = values.var(unbiased=False).item()
last, busy_last = np.mean(log[-20:]), np.mean(busy_log[-20:])
print(f"loss by SGD {last:.2f}, by Adam {busy_last:.2f}, variance of the "
      f"targets {variance:.2f}")
with torch.no_grad():
    answers = {digit: restless(x_train[y_train == digit]).mean().item()
               for digit in (0, 9)}
print({digit: f"{answer:.2f}" for digit, answer in answers.items()})

# %% trap="12.2" role="look"
measured("12.2", 2)

# %% trap="12.2" role="look"
claim("loss divided by the variance, under Adam",
      busy_last / variance, above=0.85)

# %% [markdown] trap="12.2" role="look"
# Whatever the image, the last layer receives the same values, up to rounding. The best it can do is predict the mean of all targets, and Adam's
# net does the same.
# The loss of always predicting the mean is the *variance* of the targets:

# %% trap="12.2" role="look"
claim("loss divided by the variance of the targets", last / variance,
      expected=1, within=0.1)

# %% trap="12.2" role="look"
plot_lines(range(1, 201), {"SGD": log, "Adam": busy_log,
                           "a constant": [variance] * 200},
           xlabel="step", ylabel="loss",
           title="The loss falls to that of a constant",
           alt="Two losses fall within a few dozen steps to the line of "
               "the variance of the targets, and go up and down around "
               "it.")

# %% [markdown] trap="12.2" role="why"
# Each sigmoid passes on at most a quarter of a gradient, and with small weights between
# them each layer passes on far less. Nearly nothing reaches the first layers. On the way
# forward, each sigmoid flattens its input, so the last layer receives nearly the same
# values for every image. From these it can learn the mean and no more. Adam divides each
# gradient by its own size, so all layers move. They still see no image.

# %% trap="12.2" role="why"
claim("relative change of the first layer", moved[0], below=1e-4)

# %% [markdown] trap="12.2" role="repair"
# With ReLU, He's initialisation (trap 01.3) and a lower rate, the gradient reaches the
# first layer, and the loss falls below the variance. So log two things next to the loss:
# the loss of the best constant, and one line per layer.

# %% trap="12.2" role="repair"
awake = deep(nn.ReLU)
for layer in awake[:-1:2]:
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
awake_log, awake_moved = run(awake, lr=0.002)
awake_last = np.mean(awake_log[-20:])
print(f"loss {awake_last:.1f}, variance {variance:.1f}")

# %% trap="12.2" role="repair"
claim("loss divided by the variance, with ReLU", awake_last / variance,
      below=0.6)

# %% trap="12.2" role="repair"
plot_lines(range(1, 10), {"sigmoid, SGD": moved, "sigmoid, Adam": busy,
                          "ReLU + He, SGD": awake_moved},
           logy=True, xlabel="layer, input to output",
           ylabel="relative change",
           title="One number per layer shows what is stuck",
           alt="Relative change of nine layers, log axis. With sigmoids "
               "and SGD it falls by orders of magnitude from the last "
               "layer to the first. With Adam, and with ReLU, all move.")

# %% [markdown] trap="12.2" role="more" topics="the last layer · what a last hidden unit still tells"
# The last layer of the sigmoid net moved by more than its own norm, and its last hidden
# units return nearly one value for all images:

# %% trap="12.2" role="more"
last_hidden = asleep[:-1](x_train).std(0).max().item()
claim("Adam's net: largest gap between the answers to a 0 and to a 9",
      abs(answers[9] - answers[0]), below=2)
claim("last loss divided by the first", last / log[0], below=0.5)
claim("relative change of the last layer", moved[-1], above=1)
claim("largest standard deviation of a last hidden unit, all images",
      last_hidden, below=1e-5)
claim("relative change of the first layer, with ReLU", awake_moved[0],
      above=0.03)

# %% [markdown] trap="12.2" role="folklore"
# **Told:** a layer that moves learns. **Measured:** not under Adam, which makes full
# steps from gradients as small as about its `eps`, 1e-8. The report shows which layers
# are stuck; comparing the loss with the variance shows whether anything is learned.

# %% trap="12.2" role="folklore"
claim("relative change of the first layer under Adam", busy[0], above=0.3)

# %% trap="12.2" role="exercise" points=3 difficulty=2 minutes=10
def layer_report(model: nn.Module, step) -> dict:
    """How far step() moves each parameter, relative to the size before.

    step: a function without arguments that trains model in place; it is
    called once, and nothing else is done to the model. The report has the
    names of named_parameters() in their order, frozen parameters as well.
    Beside each stands |after - before| / |before| as a float, with norms
    over all elements in which no float16 overflows and no float32 vanishes;
    0.0 where nothing moved; math.inf where zeros moved.

    Example: a single weight of 2. that goes to 1.: {"weight": 0.5}.
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
# 1. Before the step, keep a copy of each parameter: `detach()` alone shares its memory and would move along.
# 2. A half-precision norm of 300 is near the end of what its square can hold; go to `double()` first.
# 3. Three cases: nothing moved, zeros moved, all else.

# %% [markdown] trap="12.2" role="keep"
# **Keep:** log two things next to the loss: what the best constant would score, and how
# far each layer has moved. The second shows which layers are stuck. Under Adam it does
# not show which ones are learning. **In your own code:** print the report once after the
# first hundred steps, and compare a regression loss with the variance of its targets.
# **Source:** [Glorot & Bengio 2010](https://proceedings.mlr.press/v9/glorot10a.html),
# sections 3 and 4.

# %% [markdown] role="concept"
# ## The first look at a run
#
# Many runs have failed before their first step: pixels in the wrong range, labels
# of one class, a model in the wrong mode. You find that in a minute if you look before you
# train. Print one line for each thing that a step depends on, and next to it what you expect:

# %% role="concept"
def first_look(net, x, y, opt):
    """What a step depends on: data, loss, gradients, rate, mode, memory."""
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
claim("loss before training minus that of a uniform guess",
      abs(float(sight["loss"]) - math.log(10)), below=0.3)
claim("classes in the first batch, at least eight", sight["classes in it"],
      above=7)

# %% [markdown] role="concept"
# An untrained classifier of ten classes has a loss near `ln 10`. A loss far from that
# means that the logits are too large or that loss and model do not fit together. No layer should have a gradient
# norm of 0, or one a hundred times that of its neighbours. Then overfit one batch, and
# only then train. On a GPU, `nvidia-smi` shows the memory that the process holds, and
# `torch.cuda.max_memory_allocated()` the part that tensors needed at the peak. When memory
# grows and you do not know why, record it with `torch.cuda.memory._record_memory_history()`
# and open the snapshot in PyTorch's
# [memory viewer](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html).
#
# ## What to log, and where
#
# Three weeks later somebody asks which run made this file, and why its loss jumped at step
# 4,000. A log answers both if it has two kinds of lines: one at the start, which says what
# was run, and one per step, which says what happened.
#
# The first line has the settings, hashes of code and data, versions, seed, threads and
# machine. A *hash* is a short number computed from all bytes, and it answers one question:
# is this the same?

# %% role="concept"
import inspect
import json
import platform

def digest(*tensors):
    """The first digits of a hash of types, shapes and values."""
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
# A line per step has the step, the loss, the norm of all gradients, the rate and the time.
# The norm is what you will miss most. It shows a step that explodes before the optimizer takes
# it, and it tells an exploding run from a vanishing one. `clip_grad_norm_` returns it, so it costs nothing:

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
# Does the hash notice a change? Take one pixel, one label, and the shape:

# %% role="concept"
one_pixel, one_label = x_train.clone(), y_train.clone()
one_pixel[700, 20] += 1e-6
one_label[700] = (one_label[700] + 1) % 10
others = [digest(one_pixel, y_train), digest(x_train, one_label),
          digest(x_train.view(650, 128), y_train)]

# %% role="concept"
claim("is the same data recognised",
      digest(*digits()[:2]) == header["data"],
      expected=True)
claim("of a pixel, a label and a shape changed, those that go unnoticed",
      others.count(header["data"]), expected=0)

# %% [markdown] role="concept"
# Compare the hashes when you *load* a checkpoint, and say which one differs. In a repository
# the code's hash is `git rev-parse HEAD`, and `git status --porcelain` says whether the files
# are those of the commit. A run from files that are not committed cannot be repeated.
#
# A *tracker* writes such lines for you and draws them. Each has a call for the first line and
# one for the others (shown, not run):
#
# | tracker | at the start | at each step |
# |---|---|---|
# | TensorBoard | `writer = SummaryWriter("runs/7")` | `writer.add_scalar("loss", loss, step)` |
# | Weights & Biases | `run = wandb.init(project="digits", config=settings)` | `run.log({"loss": loss})` |
# | MLflow | `mlflow.start_run()`, `mlflow.log_params(settings)` | `mlflow.log_metric("loss", loss, step=step)` |
#
# TensorBoard writes to a folder, MLflow to a local store or a server of your own; neither needs
# an account. Weights & Biases sends the lines to its server, or keeps them in a file while it
# is offline. Its counter of steps has a trap, 12.10.

# %% [markdown] trap="12.3" role="situation" fault="worker_init_fn with a constant seed repeats each epoch" symptom="DataLoader workers: the same augmentation every epoch, worker_init_fn with a constant seed, results depend on num_workers"
# ## A seed for each worker
#
# A dataset shifts each image by a random number from numpy, and two worker processes load
# it. You have read that your seed does not reach numpy in a worker, so you give each
# worker one of its own: `worker_init_fn=lambda id: np.random.seed(42 + id)`. The reviewer
# approves: "Now two runs are alike, and the workers draw different numbers."
#
# The code below loads the shifts of two epochs.

# %% trap="12.3" role="break"
from torch.utils.data import DataLoader, Dataset

class Shifted(Dataset):
    """The shift alone, of 8 pictures."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return float(np.random.rand())

def epochs(workers, init=None, data=None):
    """Shifts of two epochs, each (8,), after the same manual_seed."""
    torch.manual_seed(7)
    loader = DataLoader(data or Shifted(), batch_size=2,
                        num_workers=workers, worker_init_fn=init)
    return [torch.cat(list(loader)) for _ in range(2)]

one, two = epochs(2, init=lambda id: np.random.seed(42 + id))

# %% trap="12.3" role="guess" quoted="right"
guess("12.3", "What percentage of the images has the same shift in both "
      "epochs?",
      unit="%")

# %% trap="12.3" role="look"
same = (one == two).float().mean().item()
print(f"shifts that the second epoch repeats: {same:.0%}")

# %% trap="12.3" role="look"
measured("12.3", 100 * same, right=(95, 100))

# %% trap="12.3" role="look"
claim("fraction of images with the same shift", same, expected=1)

# %% [markdown] trap="12.3" role="why"
# Workers are started again for each epoch, unless the loader has
# `persistent_workers=True`, and each start gives them the same seeds. So each epoch
# replays the first: the random shifts have become eight fixed ones.
#
# The problem that the function was meant to solve no longer exists. Torch draws a seed
# for each epoch from its own generator and, where numpy is installed, seeds torch,
# `random` and numpy in each worker with it.

# %% trap="12.3" role="repair"
first, second = epochs(2)                        # no worker_init_fn
repeats = (first == second).float().mean()

# %% trap="12.3" role="repair"
claim("fraction of shifts that repeat in the second epoch", repeats,
      below=0.2)

# %% trap="12.3" role="repair"
by_hand, by_torch = torch.stack([one, two]), torch.stack([first, second])
seen = torch.stack([one < 0, one == two])        # none in the first epoch
draw_grids({"seeded by hand": by_hand, "seeded by torch": by_torch},
           marks={"seeded by hand": seen}, values=True, columns="image",
           row_names=["epoch 1", "epoch 2"], legend="a shift of epoch 1",
           title="Seeded by hand, epoch 2 is epoch 1",
           alt="Eight shifts of two epochs, twice. With the constant seed "
               "both rows are the same, without it they differ.")

# %% [markdown] trap="12.3" role="repair"
# Which worker draws for which image still depends on the number of workers. For a shift
# that is the same with any number, and after a resumption, derive it from the seed, the
# epoch and the image: numpy mixes a tuple of numbers into one seed.

# %% trap="12.3" role="repair"
class Keyed(Shifted):
    """Its shift depends on seed, epoch and picture alone."""
    epoch = 0

    def __getitem__(self, index):
        return np.random.default_rng((7, self.epoch, index)).random()

keyed = [epochs(workers, data=Keyed())[0] for workers in (0, 1, 2)]
spread = max((k - keyed[0]).abs().max().item() for k in keyed)
print("largest gap between 0, 1 and 2 workers:", spread)

# %% trap="12.3" role="repair"
claim("largest gap between 0, 1 and 2 workers", spread, expected=0)

# %% [markdown] trap="12.3" role="more" topics="two runs · one worker or two · without workers · why a tuple"
# With workers, `torch.manual_seed` alone is enough for two equal runs. With a different
# number of workers the shifts differ. Without workers the main process draws, and
# `torch.manual_seed` does not seed its numpy.

# %% trap="12.3" role="more"
again, _ = epochs(2)
alone, _ = epochs(1)
none, also_none = epochs(0)[0], epochs(0)[0]

# %% trap="12.3" role="more"
claim("fraction of equal shifts in two runs with one seed",
      (first == again).float().mean(), expected=1)
claim("fraction of equal shifts with one worker and with two",
      (first == alone).float().mean(), below=0.9)
claim("fraction of equal shifts in two runs without workers",
      (none == also_none).float().mean(), below=0.2)

# %% [markdown] trap="12.3" role="more"
# It is a tuple and not a sum, because epoch plus image would give image 2 of epoch 1 the
# shift of image 1 of epoch 2.

# %% trap="12.3" role="exercise" points=3 difficulty=2 minutes=10
def augment(x, seed: int, epoch: int, rows: list) -> torch.Tensor:
    """Rows of x, each plus noise that depends on seed, epoch and row alone.

    x: (N, F) float32, left as it is. rows: the numbers of the rows that a
    worker was given, in its order; a row may come twice. seed and epoch: 0
    or more. The noise of row i are the first F numbers of
    numpy.random.default_rng((seed, epoch, i)).standard_normal(), times 0.1,
    so it is the same whatever else stands in rows. Global generators are
    not touched. Returns (len(rows), F) float32, new memory.

    Example: rows [4, 2] gives what [4] and [2] give, one below the other.
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
# 1. One generator for each row, made from the three numbers, and thrown away after it.
# 2. Indexing with a tensor of row numbers copies; `x[2:4]` would not.

# %% [markdown] trap="12.3" role="keep"
# **Keep:** if workers are started again for each epoch, a constant seed in
# `worker_init_fn` replays the first epoch. Derive random numbers that must not depend on
# the number of workers from seed, epoch and sample. **In your own code:** with
# `shuffle=False`, compare the random numbers of the first batch in two epochs; they have
# to differ. **Source:** PyTorch documentation, [torch.utils.data, "Randomness in
# multi-process data
# loading"](https://docs.pytorch.org/docs/stable/data.html#data-loading-randomness).

# %% [markdown] role="concept"
# ## Which settings are worth a search?
#
# A training has a dozen settings, and a budget for some twenty runs. A grid over four
# settings with five values each needs 625 runs. But often one or two settings decide nearly everything. So first find out *which*, with random runs that vary all of
# them at once, and then search only those.

# %% role="concept"
def short_run(rate, momentum, smoothing, size, rng):
    """Loss on held-out digits after 60 steps."""
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
# Sort the runs by one setting and cut them into five parts. If the setting matters, the mean
# losses of the parts differ. The variance of these means, as a fraction of the variance of
# all losses, is what the setting *explains*:

# %% role="concept"
def explained(setting):
    parts = scores[setting.argsort()].view(5, 12).mean(1)
    return (parts.var(unbiased=False) / scores.var(unbiased=False)).item()

matters = {name: explained(setting) for name, setting in table.items()}
plot_columns(matters, xlabel="setting", ylabel="variance explained",
             form=".2f", reference=(0.07, "chance"),
             title="The rate explains most, the others little",
             alt="Four columns of explained variance. The rate's is by far "
                 "the highest; momentum, smoothing and size are far below "
                 "it.")

# %% role="concept"
claim("variance that the rate explains", matters["rate"], above=0.35)
claim("the same, minus the most that any other setting explains",
      matters["rate"] - max(v for k, v in matters.items() if k != "rate"),
      above=0.1)

# %% [markdown] role="concept"
# Now fix the others and spend the runs that are left on the rate, near the best one so far.
# Three rules of thumb for the method: a *grid* for one or two settings; *random search* for
# more, because it tries a new value of every setting in every run; a *Bayesian* search, which
# learns from earlier runs, if a run is expensive. The next trap is about a Bayesian one.

# %% [markdown] trap="12.4" role="situation" fault="expected improvement looks for the largest loss" symptom="Bayesian hyperparameter search finds nothing, Gaussian process with expected improvement for a loss"
# ## Eight settings, 25 runs
#
# A training has eight settings to choose, and the budget is 25 runs. Five are random. A
# *Gaussian process* is fitted to their losses: for any other setting it predicts a mean
# and a standard deviation. Of a thousand candidates, the next run is the one with the
# largest *expected improvement*, which you take from a tutorial:
#
# $$z = \frac{\mu - f^*}{\sigma}, \qquad \text{EI} = \sigma\,(z\,\Phi(z) + \varphi(z))$$
#
# It stands for how far you expect to beat the best value so far, $f^*$. Here $\mu$ and
# $\sigma$ are the predicted mean and standard deviation, $\Phi$ and $\varphi$ the
# distribution and the density of a standard normal. You try it on a bowl, smooth and
# noiseless, with a best loss of zero. The tutorial says: "Eight settings are not too many
# for such a search."

# %% trap="12.4" role="break" tags=["plumbing"]
def predict(x, y, new, lengths=(0.2, 0.5, 1, 2, 4)):
    """Mean and deviation at new (M, D) of a Gaussian process through y."""
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
    """Losses of a search in the unit cube; the first five are random."""
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
    """Median loss of the searches, over that of as many of dice."""
    ends = []
    for _ in range(times):
        best = 0.2 + 0.6 * torch.rand(dims, dtype=torch.float64)
        dice = surface(torch.rand(25, dims), best).min()
        losses = hunt(lambda x: surface(x, best), dims, score)
        ends.append((losses.min(), dice))
    found, dice = torch.tensor(ends).median(0).values
    return (found / dice).item()

# %% trap="12.4" role="guess" quoted="right"
guess("12.4", "After 25 runs each, how does the search's best loss compare "
      "with that of random search?",
      choices=["it is higher", "it is about the same",
               "it is about half", "it is a third or less"])

# %% trap="12.4" role="look"
wrong_way = over_dice(bowl, 8, textbook, times=16)
print(f"best loss, divided by that of random search: {wrong_way:.2f}")

# %% trap="12.4" role="look"
measured("12.4", 0)

# %% trap="12.4" role="look"
claim("best loss divided by random search's, eight settings",
      wrong_way, above=1)

# %% [markdown] trap="12.4" role="why"
# Random search wins, and not because there are eight settings. The tutorial looks for the
# *largest* value: there `mean - best` is what a candidate gains. A loss should be small.
# With this sign the search goes where the process expects the worst, and only the five
# random runs are of any use. Nothing warns you: each run ends, and the table has a best
# row.

# %% trap="12.4" role="why" tags=["plumbing"]
middle = torch.full((8,), 0.4)
in_order = hunt(lambda x: bowl(x, middle), 8, textbook)

# %% [markdown] trap="12.4" role="repair"
# One question shows it without a search: of two candidates that are equally uncertain,
# which has the higher score?

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
print(f"best loss, divided by that of random search: {right_way:.2f}")

# %% trap="12.4" role="repair"
claim("best loss divided by random search's, the sign of a loss", right_way,
      below=0.5)

# %% trap="12.4" role="repair" tags=["plumbing"]
with torch.random.fork_rng():
    mended = hunt(lambda x: bowl(x, middle), 8, downward)
runs_in_order = {"tutorial": in_order, "for a loss": mended}

# %% trap="12.4" role="repair"
plot_lines(range(1, 26), runs_in_order, xlabel="run", ylabel="loss",
           title="With the tutorial's sign the search goes up",
           alt="Losses of 25 runs in order. After five random ones the "
               "tutorial's search goes up and the repaired one goes down.")

# %% [markdown] trap="12.4" role="repair"
# The explorer below has two settings, and at first the loss does not depend on one of
# them. Compare how a grid, random search and the process spend the same runs. Does a
# finer grid find more? Then give the second setting some weight.

# %% role="explore" explorer="search_surface"
from dlsys_helpers.explorers.search_surface import search_surface

search_surface

# %% [markdown] trap="12.4" role="more" topics="the chosen runs beside the random ones · ten deviations away"
# The runs that the wrong search chose are worse than its random ones:

# %% trap="12.4" role="more"
dull, chosen = in_order[:5].mean(), in_order[5:].mean()
claim("mean loss of the chosen runs divided by the random ones'",
      chosen / dull, above=1)

# %% [markdown] trap="12.4" role="more"
# A second fault waits in the tail. `torch.special.ndtr` computes `(1 + erf) / 2`, and ten
# standard deviations below the mean nothing of it is left: unlikely to improve and
# hopeless are both 0. The complement `erfc` keeps the digits.

# %% trap="12.4" role="more"
z = torch.tensor([-5.0, -7.5, -10.0], dtype=torch.float64)
by_erf, by_erfc = torch.special.ndtr(z), torch.erfc(-z / 2**0.5) / 2
for row in zip(z.tolist(), by_erf.tolist(), by_erfc.tolist()):
    print("z {:5}   ndtr {:.4g}   erfc {:.4g}".format(*row))

# %% trap="12.4" role="more"
claim("probability ten deviations away, by ndtr", by_erf[2], expected=0)
claim("the same by erfc", by_erfc[2], above=1e-24)

# %% [markdown] trap="12.4" role="folklore"
# **Told:** a Bayesian search is for "less than `20` dimensions" (the tutorial of the
# source below); elsewhere, that from eight on it is no better than random search, or that
# it is always the better choice. **Measured:** 25 runs each, on three surfaces. In the
# second only two of the settings matter. The third has a ripple on the bowl, with several
# dips along each axis.

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
claim("bowl with 2 settings", table["bowl"][0], below=0.1)
claim("bowl with 12 settings", table["bowl"][2], below=0.7)
claim("ripples with 12 settings", table["rippled"][2], above=0.5)

# %% [markdown] trap="12.4" role="folklore"
# Each ratio comes from eight searches and changes by a factor of two or more when it is
# repeated: the bowl with eight settings is the same as in the repair. At twelve settings
# the search still leads, on the bowl and where two settings matter. So "no better from
# eight on" does not hold for these two. On the ripples little of a lead is left at
# twelve, as the process expects a smooth surface, and its work may not pay: "always the
# better choice" is in doubt there. The number of settings is half of the question. The
# other half is how many of them matter, and how smooth the loss is. A real training adds
# noise: the part on search, after the traps, has one.

# %% trap="12.4" role="exercise" points=4 difficulty=3 minutes=15
def expected_improvement(mean, std, best: float) -> torch.Tensor:
    """How far a run is expected to fall below the best loss so far.

    The loss of a candidate is normal, with its mean and its deviation std,
    and the smaller a loss, the better. The improvement is best minus the
    loss, or 0 where that is negative; its mean is returned, one number for
    each candidate. mean and std: float64, of one shape, whatever it is, and
    left as they are. The result is float64 of that shape.

    Where std is 0 the loss is its mean: no NaN, and no constant is added to
    std, as tiny deviations count. Improvements that are unlikely are small,
    not zero: right to a thousandth up to 30 deviations above best.

    Example: mean [1., 2.], std [2., 0.], best 1.: [0.798, 0.].
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
# 1. A `where` after the formula chooses between two results: one for a deviation above 0, one for 0. (No gradient runs through it here; trap 12.5 shows what that would do.)
# 2. The probability of a loss below best is `erfc(-z / sqrt(2)) / 2`, also where it is tiny; so is `torch.special.log_ndtr(z).exp()`.
# 3. Without deviation the improvement is the gain, or 0 where there is none.

# %% [markdown] trap="12.4" role="keep"
# **Keep:** always run random search as a baseline, with the same budget. If your search
# loses to it, look for a fault before you blame the number of settings. **In your own
# code:** ask the score about a low and a high mean; look at where the last runs were.
# **Source:** [Frazier 2018](https://arxiv.org/abs/1807.02811), a tutorial: it writes the
# problem as a maximum. **Seen in the wild:**
# [alonfnt/bayex#56](https://github.com/alonfnt/bayex/pull/56) reports a search that was
# "no better than uniform random search", and four defects, one of them a likelihood with
# the wrong sign; in
# [linkedin/photon-ml#385](https://github.com/linkedin/photon-ml/pull/385) an expected
# improvement written for maxima met a loss.

# %% [markdown] trap="12.5" role="situation" core=true fault="torch.where around sqrt: the gradient is NaN" symptom="loss is finite but the gradients are NaN: torch.where around sqrt, gradient clipping does not help"
# ## The same picture twice
#
# A net maps images to 8 numbers, and a loss looks at distances between pairs of images:
# the root of the summed squares. The slope of a root is infinite at zero, and in one
# batch of 64 pairs, one pair is the same image twice. Your code guards the root with
# `torch.where`. Below are five other guards that people use. With each of the six, this
# batch has the usual loss, 0.2. A review comment says: "Keep `where`, no infinite value
# comes out of it."

# %% trap="12.5" role="break"
def guarded(d2):
    return torch.where(d2 > 0, d2.sqrt(), 0)

net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
left = x_train[torch.randint(1300, (64,))]
right = x_train[torch.randint(1300, (64,))]
right[7] = left[7]                           # the same picture

def gradients(root):
    """Loss of the 64 pairs; leaves the gradients in the net."""
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
guess("12.5", "With your guard, `where`, what percentage of the values in "
      "the net's gradients is NaN?", unit="%")

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

# %% trap="12.5" role="look"
measured("12.5", 100 * spoilt["where"], right=(30, 90))

# %% [markdown] trap="12.5" role="look"
# With four of six guards, one pair spoils many of the gradients' values. The others
# belong to units that are off for it. Clipping is said to protect those. Clip the
# gradients of `where`, take a step of SGD, and count:

# %% trap="12.5" role="look"
loss = gradients(guarded)
raw = [p.grad.clone() for p in net.parameters()]
nn.utils.clip_grad_norm_(net.parameters(), 1.0)
clipped = [p.grad for p in net.parameters()]
stepped = [p.detach() - 0.1 * p.grad for p in net.parameters()]
before, after, share = map(nan_share, (raw, clipped, stepped))
print(f"loss {loss:.2f}, weights NaN after a step: {share:.0%}")

# %% trap="12.5" role="look"
claim("fraction of weights that are NaN after the step", share, expected=1)

# %% trap="12.5" role="look"
plot_columns({"gradients": 100 * before, "gradients, clipped": 100 * after,
              "weights after a step": 100 * share}, form=".0f", xlabel="",
             ylabel="% that are NaN", marks=["gradients, clipped"],
             title="Clipping spreads the NaN",
             alt="Three columns: part of the gradients is NaN, after the "
                 "clipping all are, and after the step all weights.")

# %% [markdown] trap="12.5" role="why"
# `where` chooses in the forward pass. On the way back it sends *zero* into the branch
# that was not taken, and the root multiplies this zero by its slope: `0 * inf` is `nan`.
# A mask or `nan_to_num` after the root comes too late as well. A small number added under
# the root, or a `clamp` before it, keeps the slope finite. Clipping then spreads the
# damage to all: the norm of all gradients is `nan`, and each gradient is divided by it.

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
          marks=["d2"], title="The root multiplies a zero by infinity",
          alt="A graph. The distance d2, zero, goes into a root, and the "
              "root and a constant go into where. where has gradient one, "
              "the root zero, and d2 NaN.")

# %% [markdown] trap="12.5" role="repair"
# So let no branch see a bad number: choose *before* the root, and again after it.

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
claim("fraction of gradients that are NaN", mended, expected=0)

# %% [markdown] trap="12.5" role="repair"
# A NaN of the forward pass, as in trap 12.1, one of the backward pass and one that is
# added to the loss leave three different traces. Choose a fault, drag it to a layer, and
# guess which values and which gradients are NaN, before you look.

# %% role="explore" explorer="nan_hunt"
from dlsys_helpers.explorers.nan_hunt import nan_hunt

nan_hunt

# %% [markdown] trap="12.5" role="more" topics="before the clipping · an infinity in place of the NaN"
# Before the clipping some gradients were whole: those of hidden units that are off for
# the image, as a ReLU that is off passes nothing back. With an infinity in place of the
# NaN, clipping makes all others zero.

# %% trap="12.5" role="more"
claim("loss", loss, above=0.1, below=0.4)
claim("guards of six whose gradients are all finite", whole, expected=2)
claim("largest gap between the losses of two guards",
      max(by_guard.values()) - min(by_guard.values()), below=1e-4)
claim("fraction of gradients that are NaN before the clipping", before,
      above=0.2, below=0.95)
claim("norm of all gradients", norm, above=0)

# %% [markdown] trap="12.5" role="folklore"
# **Told:** a NaN is hardly ever a fault of the model's code. **Measured:** in this family
# it is, and it shows in no loss. Each of the five lines below has a finite value. Some
# functions of torch are repaired from within, such as `norm` at zero; look before you
# trust.

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
claim("lines with a value that is not finite",
      sum(not value for value, _ in family.values()), expected=0)
claim("lines with a gradient that is not finite",
      sum(not gradient for _, gradient in family.values()), expected=4)

# %% trap="12.5" role="exercise" points=3 difficulty=2 minutes=10
def safe_sqrt(x: torch.Tensor) -> torch.Tensor:
    """Square root of x where x is above 0, and 0 where it is 0 or less.

    x: float32 or float64 of any shape, left as it is; its dtype is kept.
    Where x is 0 or less its gradient is 0; elsewhere it is that of the
    root, and no constant is added: the smallest x count exactly, too. A NaN
    in x stays a NaN in the result: it is not this function's to hide.

    Example: [4., 0., -1.]: [2., 0., 0.], with a gradient of [0.25, 0., 0.].
    """
    # BEGIN SOLUTION
    out = x <= 0
    return torch.where(out, 0, torch.where(out, 1, x).sqrt())
    # END SOLUTION

# %% [markdown] trap="12.5" role="hint"
# 1. Two `where`: one in front of the root, so that it never sees a number it cannot take; one after it.
# 2. What does `nan > 0` say, and what does `nan <= 0`? The one that is asked decides where a NaN goes.

# %% [markdown] trap="12.5" role="keep"
# **Keep:** `where` hides a bad value, not its gradient. Keep the bad number out of the
# function. Clipping by the norm spreads a NaN to all gradients; `error_if_nonfinite=True`
# raises an error instead. **In your own code:** look for `sqrt`, `log`, `acos`, `/` and
# `**` inside a `where`, or times a mask, and try them at the edge. **Source:** PyTorch's
# [tutorial on masked tensors](https://github.com/pytorch/tutorials/pull/2050),
# "Distinguishing between 0 and NaN gradient". **Seen in the wild:**
# [Ciela-Institute/caustics#83](https://github.com/Ciela-Institute/caustics/pull/83) fixes
# NaN gradients of two lens models, as `where` "does not protect from nans in the off
# branch"; [pytorch/pytorch#156212](https://github.com/pytorch/pytorch/issues/156212)
# calls the same "terrible to debug".

# %% [markdown] role="concept"
# ## One ordered search for a NaN
#
# The loss is `nan` at step 15,000. You have met two causes, and there are more: a bad value
# in the data, a weight that was spoilt earlier, a number too large for `float16`, the
# logarithm of 0 in the loss, the root of 0 in a gradient. A step passes these places in a
# fixed order. So ask in that order, and the first "no" is the answer.

# %% role="concept"
draw_blocks({"a step": ["batch", "weights", "modules", "loss", "gradients",
                        "new weights"],
             "ask": ["finite, in range?", "finite before the step?",
                     "which gives the first nan?",
                     "finite logits, finite loss?",
                     "finite loss, finite gradients?",
                     "finite gradients, finite weights?"]},
            captions={"a step": "from top to bottom",
                      "ask": "the first no is the cause"},
            title="Six places, in the order of a step",
            alt="Two columns of six blocks. Left the parts of a step: "
                "batch, weights, modules, loss, gradients, new weights. "
                "Right the question to ask at each of them.")

# %% [markdown] role="concept"
# Save the batch and the weights when the loss or the gradient norm is not finite for the
# first time. Then one function asks all of it. `watch` and `blamed` are those of trap 12.1:

# %% role="concept"
def place_of_nan(net, x, y, loss_of=F.cross_entropy):
    """The first place of a step that is not finite; "" if there is none."""
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
# Five faults, one at a time. The third multiplies in `float16`, whose largest number is
# 65,504. The product of 300 and 300 is too large and becomes infinite:

# %% role="concept"
class HalfSquare(nn.Module):
    """Squares its input in float16."""

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
claim("largest number of float16", torch.finfo(torch.float16).max,
      expected=65504)
claim("faults of five that are found at their place",
      sum(found.startswith(place) for found, place in zip(
          places.values(), ("batch", "weight 0.weight", "module 1", "loss",
                            "gradient, 'Sqrt"))), expected=5)
claim("is anything found without a fault", bool(places["no fault"]),
      expected=False)

# %% [markdown] role="concept"
# What to do then depends on the place. Batch: fix the data, and count the batches that you
# drop. Weights: go back to the last checkpoint whose weights are finite, and search in the
# step that spoilt them. Module: compute that part in `float32` or `bfloat16`, or guard its
# argument. Loss: use the function that takes logits. Gradient: keep the bad number out of the
# branch, as in trap 12.5. New weights: lower the rate. (Under `float16` with a `GradScaler`, an
# infinite gradient now and then is normal: the scaler skips that step and lowers its scale.)

# %% [markdown] trap="12.6" role="situation" core=true fault="a stored loss keeps the trained weights alive" symptom="GPU memory grows with each trial of a search, losses.append(loss) after backward, del model does not free memory"
# ## Five losses in a list
#
# A search trains five classifiers, one after the other, each under the same name. To
# choose the best later, it stores each classifier's last training loss as it is, a
# tensor, after `backward()` and the step. At the end it deletes the names of model and
# optimizer.
#
# In trap 02.5, a sum of losses held the activations of each batch, in a loop without
# `backward()`. Your own comment says: "Here `backward()` has freed them, so five numbers
# are left."

# %% trap="12.6" role="break" tags=["plumbing"]
import weakref

# These two cells count the tensors that graphs still hold for backward().
# A graph made under counted() holds each of them in a Kept. When it lets
# a Kept go, that leaves the set below.
kept = weakref.WeakSet()

class Kept:
    """Stands for a tensor that a graph saves for backward()."""

    def __init__(self, tensor):
        self.tensor = tensor.detach()    # its history would keep it alive
        kept.add(self)

def counted():
    return torch.autograd.graph.saved_tensors_hooks(
        Kept, lambda held: held.tensor)

# %% trap="12.6" role="break" tags=["plumbing"]
def held_mb(net):
    """MB that graphs hold, but for the data and the weights of net."""
    own = {t.untyped_storage().data_ptr()
           for t in (x_train, y_train, *net.parameters())}
    found = {held.tensor.untyped_storage().data_ptr(): held.tensor.nbytes
             for held in list(kept)}
    return sum(size for at, size in found.items() if at not in own) / 1e6

# %% trap="12.6" role="break"
parts = list(zip(x_train[:480].split(24), y_train[:480].split(24)))

def wide():
    """A reader with 1.2 MB of weights."""
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(),
                         nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, 10))

# %% trap="12.6" role="break"
def train(net, opt, keep, **how):
    """keep(loss) after each of 20 steps; MB of activations held then."""
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
    """Five trials: what they stored, and MB that are held, by kind."""
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

stored, activations, alive, slopes = search(lambda loss: loss)

# %% trap="12.6" role="guess" quoted="wrong"
guess("12.6", "How many MB do the five stored losses keep in memory?",
      unit="MB")

# %% trap="12.6" role="look"
one = sum(p.nbytes for p in wide().parameters()) / 1e6
print(f"one classifier: {one:.2f} MB of weights")
print(f"{len(stored)} losses: {alive:.2f} MB of weights alive, "
      f"{slopes:.2f} MB of gradients, {activations:.2f} MB of activations")

# %% trap="12.6" role="look"
measured("12.6", alive + slopes + activations, right=(10, 15))

# %% trap="12.6" role="look"
claim("weights alive, in classifiers", alive / one, expected=5)

# %% [markdown] trap="12.6" role="why"
# `backward()` frees what a graph has saved as it goes, even if something still holds the
# loss. But the nodes of the graph stay as long as the loss does. The nodes at its ends
# hold the weights, since gradients go there, and each weight holds its gradient. That the
# name `net` is gone does not matter. The arrows below follow the forward pass. What keeps
# memory alive runs against them: each box holds those that lead to it.

# %% trap="12.6" role="why" tags=["plumbing"]
def behind(loss):
    """(number of nodes, the weights at their ends) of loss's graph."""
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
          title="One number holds a classifier",
          alt="A graph. The loss in the list holds its nodes, and they "
              "hold weights and gradients. The edge to the activations is "
              "cut.")

# %% [markdown] trap="12.6" role="repair"
# A Python number has no graph, so store `loss.item()`.

# %% trap="12.6" role="repair"
forms = {"loss": lambda loss: loss, "loss.detach()": torch.Tensor.detach,
         "loss.item()": torch.Tensor.item}
left = {name: search(form)[2] for name, form in forms.items()}

# %% trap="12.6" role="repair"
claim("weights alive with numbers stored", left["loss.item()"], expected=0)

# %% trap="12.6" role="repair"
plot_columns(left, xlabel="stored as", ylabel="MB of weights alive",
             marks=["loss"], reference=(one, "one classifier"), form=".1f",
             title="As a tensor with a graph it holds five classifiers",
             alt="Three columns. Stored as the loss itself, the weights of "
                 "five classifiers are alive; detached or as a number, "
                 "none.")

# %% [markdown] trap="12.6" role="more" topics="activations · what one loss reaches · detached"
# The activations are gone, and one loss reaches the weights and gradients of its
# classifier. A detached tensor has no graph either.

# %% trap="12.6" role="more"
claim("MB of activations held", activations, expected=0)
claim("MB that one loss reaches, divided by a classifier's weights",
      reached / one, expected=2)
claim("the same with detached tensors", left["loss.detach()"], expected=0)

# %% [markdown] trap="12.6" role="folklore"
# **Told:** `total_loss += loss` after the step fills the memory; such a loop is the first
# example of PyTorch's own FAQ. **Measured:** it keeps no activation, neither of this
# classifier under SGD, nor of a convolution with BatchNorm under Adam, nor of LayerNorm
# with dropout under AdamW. Only nodes are added. Activations do stay after
# `backward(retain_graph=True)`, and where a second loss, only for the log, never gets a
# `backward()`.

# %% trap="12.6" role="folklore"
conv = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3),
                     nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                     nn.Linear(288, 10))
normed = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(),
                       nn.Dropout(0.1), nn.Linear(64, 10))

def running(net, optimizer, **how):
    """(MB of activations, nodes) of a running sum over 20 steps."""
    sums = [0.0]
    def keep(loss):
        sums[0] = sums[0] + loss
    held = train(net, optimizer(net.parameters(), 0.01), keep, **how)
    return held, behind(sums[0])[0]

# %% trap="12.6" role="folklore"
found = {"reader, SGD": running(wide(), torch.optim.SGD),
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
claim("MB held by a running sum, three nets and optimizers",
      max(held for held, _ in found.values()), expected=0)
claim("fewest nodes of such a sum over 20 steps",
      min(nodes for _, nodes in found.values()), above=100)
claim("MB held with retain_graph", stays, above=1.9)

# %% [markdown] trap="12.6" role="folklore"
# A loss for the log keeps only what its own nodes saved. The rest was shared with the
# other loss, whose `backward()` has freed it.

# %% trap="12.6" role="folklore"
claim("MB held by 20 losses for the log", logged, above=0.01, below=0.1)
log.clear()

# %% trap="12.6" role="exercise" points=3 difficulty=2 minutes=10
def make_meter() -> tuple:
    """Two functions, (add, mean), for the mean loss over many batches.

    add(loss, rows): loss is a tensor of shape () of any float dtype, the
    mean over a batch, with a graph or without; rows is the number of its
    rows, 1 or more. mean(): the mean over all rows so far, summed in double
    precision, as a float; math.nan before the first. It may be asked at any
    time, and adding goes on after it.

    add leaves loss as it is: backward() still works. Once the caller has
    dropped loss, nothing that loss alone held stays in memory. What a meter
    holds does not grow with the number of batches. Each call makes a meter
    of its own.

    Example: a loss of 2. over 1 row and one of 5. over 2 rows: 4.0.
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
# 1. Two numbers are enough: a sum and a count of rows. The inner functions change them with `nonlocal`.
# 2. A mean over batches is not the mean over rows when the last batch is smaller: weight each loss with its rows.
# 3. `loss.detach()` lets the graph go and shares the memory of `loss`; which call gives a number of Python's?

# %% [markdown] trap="12.6" role="keep"
# **Keep:** `backward()` frees activations. A loss tensor that you keep still holds its
# nodes and, through them, the trained weights and their gradients. So store what outlives
# a step as a number. **In your own code:** search for `append(loss)` and `+= loss`; after
# a trial, delete the model and print `torch.cuda.memory_allocated()`. **Source:**
# PyTorch, [Frequently Asked
# Questions](https://docs.pytorch.org/docs/stable/notes/faq.html), "Don't accumulate
# history across your training loop". **Seen in the wild:** in
# [ray-project/ray#40940](https://github.com/ray-project/ray/pull/40940) a training
# example's `loss_sum += loss` kept losses from being freed;
# [TRI-ML/packnet-sfm#51](https://github.com/TRI-ML/packnet-sfm/pull/51) is titled "Detach
# loss before appending it to the training output list".

# %% [markdown] trap="12.7" role="situation" fault="overfitting one batch passes with wrong labels" symptom="model overfits one batch but does not learn: labels shifted against the inputs"
# ## The first test of a pipeline
#
# Images and labels come from two files. The file of labels begins with one line too many,
# so each image has the label of its neighbour in the list. Nobody knows that yet. The
# team follows a good old rule: first overfit one batch.
#
# Below, a net with 64 hidden units sees one batch of 50 digits 300 times.

# %% trap="12.7" role="break"
def trained(x, y, reduction="mean", shuffle=True, epochs=5):
    """(loss of 50 rows, share of test digits read) after some epochs."""
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
guess("12.7", "What is the loss of this batch after the 300 steps?",
      choices=["about 2.3",
               "about 1.5", "about 0.7", "below 0.1"])

# %% trap="12.7" role="look"
print(f"loss on one batch: {one_batch:.2f}")

# %% trap="12.7" role="look"
measured("12.7", 3)

# %% trap="12.7" role="look"
claim("loss on one batch with shifted labels", one_batch, below=0.1)

# %% [markdown] trap="12.7" role="look"
# The test has passed, and training on all digits begins.

# %% trap="12.7" role="look"
_, read = trained(x_train, shifted)
print(f"trained on all digits: test accuracy {read:.0%}")

# %% trap="12.7" role="look"
claim("test accuracy with shifted labels", read, below=0.25)

# %% [markdown] trap="12.7" role="why"
# This net has more weights than the batch has numbers, and memorises 50 shifted labels.
# The test shows that the loss can fall. It does not show whether labels belong to their
# images, or how batches are put together. Two more faults leave a low accuracy:

# %% trap="12.7" role="why" tags=["plumbing"]
order = y_train.argsort()
scores = {"as it should be": trained(x_train, y_train)[1],
          "a sum for the mean": trained(x_train, y_train, "sum")[1],
          "sorted by label":
          trained(x_train[order], y_train[order], shuffle=False)[1]}

# %% trap="12.7" role="why"
faults = {**scores, "labels shifted": read}
plot_columns({name: 100 * share for name, share in faults.items()},
             xlabel="", ylabel="test accuracy in %", form=".0f",
             marks=[*faults][1:], reference=(10, "guessing"),
             title="Three faults, each a low accuracy",
             alt="Four columns of test accuracy. As it should be, it is "
                 "above nine tenths; with a sum for the mean, sorted "
                 "labels or shifted labels it is far lower.")

# %% [markdown] trap="12.7" role="repair"
# Each fault has a test of its own that needs no training. For labels: do neighbours in
# the data agree? For the scale of the loss: does a batch that is taken twice have the
# same loss? For the order: how many classes are in a batch?

# %% trap="12.7" role="repair"
def agreement(x, y):
    """Share of rows whose nearest other row has the same label."""
    gaps = torch.cdist(x, x).fill_diagonal_(torch.inf)
    return (y[gaps.argmin(1)] == y).float().mean().item()

def doubled(reduction):
    """Loss of a batch taken twice, over the loss of the batch."""
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
claim("neighbours that agree, with shifted labels",
      agreement(x_train, shifted), below=0.2)

# %% [markdown] trap="12.7" role="more" topics="the four scores · the two other tests"
# At the same rate, the sum of 50 losses makes steps 50 times as long as their mean does:

# %% trap="12.7" role="more"
claim("test accuracy, as it should be",
      scores["as it should be"], above=0.85)
claim("test accuracy with a sum instead of the mean, same rate",
      scores["a sum for the mean"], below=0.4)
claim("test accuracy with the data sorted by label",
      scores["sorted by label"], below=0.6)

# %% [markdown] trap="12.7" role="more"
# One look at each cause tells them apart.

# %% trap="12.7" role="more"
claim("neighbours that agree", agreement(x_train, y_train), above=0.9)
claim("loss of a batch taken twice, with a sum", doubled("sum"),
      expected=2, within=0.001)

# %% trap="12.7" role="exercise" points=4 difficulty=3 minutes=15
def diagnose(model: nn.Module, loss_fn, batches: list) -> str:
    """Name of the one fault that a training run has, or "none".

    "frozen": no parameter of model asks for a gradient. "sum": the loss of
    a batch taken twice is twice that of the batch. "order": each batch
    holds a single class. "labels": of all rows of the epoch, less than half
    have the label of their nearest other row (Euclidean distance, all
    batches together).

    model: maps x to logits (N, C). loss_fn(logits, y): a tensor of shape
    (), above 0 or below. batches: those of an epoch, a list of (x, y), x
    (N, F) float32 with no row twice, y (N,) int64; N is 2 or more and may
    differ. There is at most one fault. Nothing is trained: model stays as
    it is, with its modes, buffers and gradients, and so do the batches.
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
# 1. Four questions, one after the other; the first that says yes gives the name.
# 2. For "sum", ask `loss_fn` about the same logits twice over; a copy of the model in eval mode gives them without moving a buffer.
# 3. For "labels", `torch.cdist` of all rows with all rows, and infinity on its diagonal, as each row is its own nearest.

# %% [markdown] trap="12.7" role="keep"
# **Keep:** a batch that the model memorises shows that the loss can fall, and no more.
# **In your own code:** look at ten pairs as they enter the model, at the classes of one
# batch, and at the loss of a batch taken twice. **Source:** [Zhang et al. 2017,
# "Understanding deep learning requires rethinking
# generalization"](https://arxiv.org/abs/1611.03530): nets learn random labels by heart.

# %% [markdown] trap="12.8" role="situation" core=true fault="a job killed while saving leaves no checkpoint" symptom="checkpoint does not load after the job was killed: PytorchStreamReader failed, or Weights only load failed"
# ## The file with the last state
#
# A job may be taken off its machine at any moment, so it saves its state every few
# minutes: `torch.save(state, "last.pt")`. The file below is small; a real one takes
# minutes to write, and the job can be killed in the middle.
#
# You try it 20 times: there is a good `last.pt`, a child process saves over it, and the
# kernel kills the child after a random number of bytes. Then you load `last.pt`.

# %% trap="12.8" role="break" tags=["plumbing"]
import resource
import signal

folder = tempfile.TemporaryDirectory()
path = os.path.join(folder.name, "last.pt")

# %% trap="12.8" role="break" tags=["plumbing"]
def killed_after(n, save, *args):
    """Run save(*args) in a child that dies when a file exceeds n bytes."""
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
    """The step of a checkpoint, None when it does not load."""
    try:
        return torch.load(file)["step"]
    except Exception:         # OSError, RuntimeError, UnpicklingError
        return None

# %% trap="12.8" role="break"
def loads(save, kills=20):
    """(kills, files that load, those of step 100) after the kills."""
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
guess("12.8", "After how many of the 20 kills does last.pt load?",
      unit="files")

# %% trap="12.8" role="look"
print(f"killed {over[0]} times; {over[1]} files load")

# %% trap="12.8" role="look"
measured("12.8", over[1], right=(0, 0))

# %% trap="12.8" role="look"
claim("files that load afterwards", over[1], expected=0)

# %% [markdown] trap="12.8" role="why"
# Opening a file for writing empties it, and from then on the old state is gone. The
# journal of a file system does not help: it guards against crashes of the machine, and
# undoes nothing that a killed process has done. The new state cannot be read before its
# last byte is written, as a checkpoint is a zip archive, whose table of contents comes
# last.
#
# So write to a *second* file, and give it the name when it is complete. `os.replace`
# swaps a name in one step: a process that opens `last.pt` finds either the old file or
# the new one.

# %% [markdown] trap="12.8" role="repair"
# `os.fsync` waits until the bytes are on the disk: a kill does not need it, a power cut
# does. (For the new name to outlast a power cut, the folder has to be synced as well.)

# %% trap="12.8" role="repair"
def save_beside(new):
    with open(path + ".part", "wb") as file:
        torch.save(new, file)
        file.flush()                         # what Python still holds
        os.fsync(file.fileno())
    os.replace(path + ".part", path)

beside = loads(save_beside)
print(f"killed {beside[0]} times; {beside[1]} files load, "
      f"{beside[2]} of step 100")

# %% trap="12.8" role="repair"
claim("files that load, with the state before", beside[2], expected=20)

# %% trap="12.8" role="repair"
kb = round(os.path.getsize(path) / 1000)
draw_lanes({"last.pt, saved over": [(0, kb, "broken"),
                                    (kb, 1.3 * kb, "new")],
            "last.pt": [(0, kb, "old"), (kb, 1.3 * kb, "new")],
            "last.pt.part": [(0, kb, "broken")]},
           unit="kB written", marks=["broken"], moments={"a kill": kb / 2},
           title="With a second file, a kill leaves a whole one",
           alt="Three lanes over the kilobytes written. Saved over, "
               "last.pt is broken until the last byte. Written beside, it "
               "is the old state until then, and last.pt.part is broken.")

# %% [markdown] trap="12.8" role="repair"
# A complete file may still refuse to load, or resume differently. Store plain numbers,
# the optimizer's state and the generator's; *More* shows what happens without them.

# %% [markdown] trap="12.8" role="more" topics="a number from numpy does not load · a resumed run goes another way"
# By default, `torch.load` opens no arbitrary Python objects, as unpickling could run
# code. A validation loss that came out of numpy is such an object, and you learn this
# from the *loading*, days later.

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
claim("children that were killed while they wrote, saving over", over[0],
      expected=20)
claim("children that were killed, saving beside", beside[0], expected=20)
claim("does numpy's number load", opens(losses.min()) is True,
      expected=False)
claim("does Python's", opens(float(losses.min())), expected=True)

# %% [markdown] trap="12.8" role="more"
# A file that loads may go on differently. The classifier below has dropout and draws its
# batches at random. It is saved after 20 steps and goes on for 20 more. Then the file is
# given to a classifier with other weights, a different optimizer and, like a new process,
# a different state of the generator.

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
    """Largest gap of a weight to the run without a break."""
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
claim("gap with the weights alone", gaps["weights"], above=1e-3)
claim("gap with the optimizer as well", gaps["and optimizer"], above=1e-3)
claim("gap with the generator's state as well", gaps["and generator"],
      expected=0)

# %% [markdown] trap="12.8" role="folklore"
# **Told:** save to two slots in turn, `A` and `B`, and never lose both. **Measured:** one
# of them is complete after a kill. But no name says which, and if you resume from the
# newer file, as usual, you find the broken one.

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
    """Write a checkpoint that a kill at any byte leaves whole.

    path: a file in a folder that exists. parts: names and objects that have
    a state_dict(). facts: names and numbers, Python's int, float and bool
    or numpy's. torch.load(path), which reads weights only, returns a dict:
    "parts" with the state_dicts by name, "facts" with Python's numbers by
    name, "rng" with torch.get_rng_state() as it is at the call.

    A process that is killed while it writes leaves at path what was there:
    the former file or nothing. No byte is written into the former file. The
    new one's bytes are on the disk, by os.fsync, before it has its name.
    After a call that returns no other file is left behind, and what a
    killed call has left does not stop the next. Other files stay, also
    those whose names begin with path; path + ".part" and path + ".tmp" may
    count as leftovers. The state of the generator stays.
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
# 1. Three steps: collect the state, write it into a second file, rename that file.
# 2. numpy's scalars are of type `np.generic`, and `item()` makes Python's number of each.
# 3. `os.fsync(file.fileno())` waits for the disk; the file must still be open for it.

# %% [markdown] trap="12.8" role="keep"
# **Keep:** write to a second file, `fsync`, `os.replace`. Store weights, optimizer,
# schedule, step and generators, and plain numbers only. **In your own code:** kill a save
# once on purpose, load, train on, and compare with a run that nobody killed. **Source:**
# Python documentation,
# [os.replace](https://docs.python.org/3/library/os.html#os.replace): "the renaming will
# be an atomic operation". **Seen in the wild:** in
# [Lightning-AI/pytorch-lightning#688](https://github.com/Lightning-AI/pytorch-lightning/issues/688)
# a SIGKILL during the writing led to "unexpected EOF" at the next load; in
# [optuna/optuna-examples#53](https://github.com/optuna/optuna-examples/pull/53) processes
# ended during `torch.save`.

# %% [markdown] role="concept"
# ## Surviving preemption
#
# A *spot* machine costs a fraction of the usual price and can be taken away at any time.
# The provider sends the process a signal, `SIGTERM`, and ends it some seconds or minutes
# later. A training survives that if it does four things: it saves often enough, it saves
# when the signal comes, it stores everything that the next step depends on, and it puts the
# file where the next machine finds it.
#
# **How often?** Each save takes time, and a kill throws away half an interval on average. With a
# save of 1 minute and a kill every 10 hours, add the two losses up:

# %% role="concept"
save_time, between_kills = 1 / 60, 10.0                  # hours
every = [m / 60 for m in range(5, 181, 5)]               # 5 to 180 minutes
lost = [save_time / t + t / 2 / between_kills for t in every]
by_formula = math.sqrt(2 * save_time * between_kills)
cheapest = every[lost.index(min(lost))]
print(f"cheapest of the list: every {60 * cheapest:.0f} minutes, by the "
      f"formula: {60 * by_formula:.0f}")

# %% role="concept"
plot_lines([60 * t for t in every], {"time lost": [100 * v for v in lost]},
           xlabel="minutes between two saves", ylabel="% of the time",
           title="Too often costs saves, too seldom costs steps",
           alt="The time lost over the minutes between two saves. It "
               "falls steeply from 20 % at 5 minutes to a flat lowest "
               "point of 6 % near 35 minutes, and rises slowly after it.")

# %% role="concept"
claim("minutes between two saves, the cheapest of the list", 60 * cheapest,
      expected=35)
claim("the same by the formula", 60 * by_formula, expected=34.6, within=0.1)

# %% [markdown] role="concept"
# The lowest point is at the square root of twice the save time times the time between kills
# ([Young 1974](https://doi.org/10.1145/361147.361115)).
#
# **When the signal comes**, Python runs a *handler*. Saving inside it would catch the model in
# the middle of a step. So the handler only sets a flag, and the loop looks at the flag between
# two steps. What the next step depends on: weights, optimizer, schedule, step, the generators,
# and the place in the data. The order of an epoch comes from the seed and the epoch, so the
# step alone says which rows are next:

# %% role="concept"
def rows_of(step, batch=50):
    """The rows of a step: an order per epoch, drawn from its number."""
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
stop = []                                 # what the handler writes to
survivor = os.path.join(folder.name, "survivor.pt")

def train_on(parts, step=0, last=60, kill_at=None):
    """Steps until the last one, or until a signal: then save."""
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
    """Everything that the next step depends on, beside and then renamed."""
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
# One run goes through. The same run gets a `SIGTERM` after step 37, and a new model, optimizer
# and schedule go on from its file:

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
claim("largest gap of a weight to the run without a break", gap_after,
      expected=0)

# %% [markdown] role="concept"
# **Where the next machine finds it.** The disk of a spot machine goes away with the machine.
# Write the file locally, copy it to cloud storage under a new name such as `step-000037.pt`,
# and write a small `latest` file with that name last. Object stores have no rename that
# replaces a file in one step, so the small file takes its role. Delete an old checkpoint only
# after a newer one has been read back. Store the id of the tracker's run in the checkpoint,
# so that the log goes on in the same curve (shown, not run):
#
# ```python
# run = wandb.init(project="digits", id=stored["run_id"], resume="allow")
# ```

# %% [markdown] trap="12.9" role="situation" fault="the hash seed is set after Python has started" symptom="PYTHONHASHSEED in os.environ has no effect, set order and class numbers differ between two runs, wrong labels after loading a model"
# ## A seed for everything
#
# A script begins with `seed_everything(42)`, as many projects do. It seeds `random`,
# numpy and torch. As hashes of texts are random in Python, it also sets
# `os.environ["PYTHONHASHSEED"] = "42"`. Then the script numbers its ten classes: `{name:
# number for number, name in enumerate(set(names))}`.
#
# You start the script four times.

# %% trap="12.9" role="break"
import subprocess
import sys

digit_names = ["zero", "one", "two", "three", "four",
               "five", "six", "seven", "eight", "nine"]
numbering = f"print(*set({digit_names}))"
# Numpy and torch are left out: they have no say in hashes.
script = ('import os, random; random.seed(42); '
          'os.environ["PYTHONHASHSEED"] = "42"; ' + numbering)

def start(code, **variables):
    """The names that a new Python prints, in the order of numbers."""
    plain = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
    return subprocess.run(
        [sys.executable, "-S", "-c", code], env=plain | variables,
        capture_output=True, text=True, check=True).stdout.split()

starts = [start(script) for _ in range(4)]

# %% trap="12.9" role="guess"
guess("12.9", "How many different numberings do the four starts give?",
      choices=["four",
               "one, the same as with the variable set in the shell",
               "one, but not the one with the variable set in the shell"])

# %% trap="12.9" role="look" compare=false
for names in starts:
    print(*names)

# %% trap="12.9" role="look"
measured("12.9", 0)

# %% trap="12.9" role="look"
claim("different numberings in four starts",
      len({tuple(names) for names in starts}), expected=4)

# %% [markdown] trap="12.9" role="look"
# The model of such a script knows numbers, not names. Below, a model is trained with the
# numbers of the first start and evaluated with the numbers of all four.

# %% trap="12.9" role="look" compare=false
def numbers_of(names):
    """From a digit to the number that a start gave its name."""
    return torch.tensor([names.index(name) for name in digit_names])

taught = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
fit(taught, x_train, numbers_of(starts[0])[y_train], steps=300, lr=0.01)
read = [accuracy(taught, x_test, numbers_of(names)[y_test])
        for names in starts]
print("accuracy:", " ".join(f"{share:.2f}" for share in read))

# %% trap="12.9" role="look"
claim("accuracy with the numbers of three other starts, mean",
      sum(read[1:]) / 3, below=0.6)

# %% [markdown] trap="12.9" role="why"
# When Python starts, before the first line of any script, it reads the variable and fixes
# the secret seed of its hashes. Python never looks at the variable again. Setting it
# inside the script affects only the *next* Python process.

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
            alt="Two columns. In the script the variable is set after the "
                "secret was drawn, in the shell before Python starts.")

# %% [markdown] trap="12.9" role="repair"
# So set the variable before the start, in the shell or the job's file, or let the script
# start itself again. The third way needs no seed: put the names in an order of your own.

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
    "started once more": lambda: start(again + numbering),
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
claim("different numberings over all starts with the variable in time",
      len(shell | once_more | children), expected=1)

# %% [markdown] trap="12.9" role="repair"
# A sorted list still changes when a class is added: all classes after it move up by one.
# What lasts is a list that is stored with the weights. That is the exercise.

# %% [markdown] trap="12.9" role="more" topics="a child of the script · its own numbers"
# A process that the script starts, such as a worker of the kind `spawn`, reads the
# variable and has other hashes than its parent. And with the numbers of its own start the
# model classifies as it should.

# %% trap="12.9" role="more"
claim("does the child have the numbering of its script's start",
      children <= {tuple(names) for names in starts}, expected=False)
claim("accuracy with the numbers of its own start", read[0], above=0.9)

# %% [markdown] trap="12.9" role="folklore"
# **Told**, by many a `seed_everything`: a run that is to be repeated needs this variable.
# **Measured:** of the eight things below, two starts without it differ in hashes of texts
# and bytes, and in what is made of them; they agree in the rest. And a fixed hash gives a
# set no order to rely on: two equal sets may be walked through in different orders,
# because it matters what was put in first.

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
claim("things of eight that differ in two starts", len(differ), expected=3)
claim("are two equal sets of numbers walked through in one order",
      list({0, 8}) == list({8, 0}), expected=False)

# %% trap="12.9" role="exercise" points=3 difficulty=2 minutes=10
def class_numbers(names: list, stored: dict) -> dict:
    """The number of each class, from 0, the same in every process.

    names: one text a row of the data, each as often as its class comes, in
    any order. stored: the numbers from a checkpoint, 0 to len(stored) - 1;
    {} without one. A class in stored keeps its number, though no row may
    have it. The others take the next numbers, in the order of sorted().
    The result's keys stand in the order of their numbers. In what order
    names and stored come changes nothing, and they are left as they are.

    Example: ["b", "a", "b"] and {"c": 0}: {"c": 0, "a": 1, "b": 2}.
    """
    # BEGIN SOLUTION
    known = sorted(stored, key=stored.get)
    new = sorted(set(names) - set(known))
    return {name: number for number, name in enumerate(known + new)}
    # END SOLUTION

# %% [markdown] trap="12.9" role="hint"
# 1. Make one list: first the stored names, then the new ones. `enumerate` numbers it.
# 2. `sorted(stored, key=stored.get)` puts names in the order of their numbers.
# 3. A set may decide who is new, as long as what leaves it is sorted.

# %% [markdown] trap="12.9" role="keep"
# **Keep:** Python reads the hash seed before the first line of your script. Let no number
# of a model depend on the order of a set: sort, and store the list with the weights. **In
# your own code:** search for `enumerate(set(`, `list(set(` and `hash(`; start twice and
# compare the class list. **Source:** Python documentation,
# [PYTHONHASHSEED](https://docs.python.org/3/using/cmdline.html#envvar-PYTHONHASHSEED):
# "If this variable is not set or set to `random`, a random value is used to seed the
# hashes of str and bytes objects." **Seen in the wild:** in
# [tkipf/pygcn#41](https://github.com/tkipf/pygcn/issues/41) seeds were set and results
# differed, until `set(labels)` was sorted; in
# [RomRoc/objdet_fizyr_colab#5](https://github.com/RomRoc/objdet_fizyr_colab/pull/5) the
# class numbers changed at each resumption.

# %% [markdown] role="concept"
# ## Reproducible: one complete list
#
# Two runs give the same weights only if everything that a step depends on is the same. This
# is the whole list. The last column says when each line has to be in place, because half of
# them do nothing if they come too late.
#
# | what | how | when |
# |---|---|---|
# | hashes of texts | `PYTHONHASHSEED=0` | in the shell, before Python starts (12.9) |
# | cuBLAS, on a GPU | `CUBLAS_WORKSPACE_CONFIG=:4096:8` | in the shell, before CUDA starts |
# | Python, numpy, torch | `random.seed(s)`, `np.random.seed(s)`, `torch.manual_seed(s)` | first lines |
# | operations | `torch.use_deterministic_algorithms(True)` | before the model runs |
# | choice of convolution | `torch.backends.cudnn.benchmark = False` | before the model runs |
# | order of the batches | `DataLoader(..., generator=torch.Generator().manual_seed(s))` | at the loader |
# | augmentation | keyed by seed, epoch and sample | in the dataset (12.3) |
# | class numbers | sorted, and stored with the weights | at the data (12.9) |
# | threads, workers, ranks, batch size | written down, and the same again | at the start |
# | versions, GPU model, driver | written down: a different one may add in a different order | at the start |
# | data and code | hashes in the first line of the log | at the start |
# | a resumption | generators and place in the data in the checkpoint | at each save (12.8) |
#
# `torch.manual_seed` seeds all devices. `use_deterministic_algorithms` makes torch choose
# operations that give one result every time, and raise an error where it has none; it costs
# time, which the GPU section measures. `cudnn.deterministic` covers convolutions only and is
# included in it. As a function:

# %% role="concept"
def reproducible(seed):
    """What can still be set after Python has started."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    return torch.Generator().manual_seed(seed)     # for the DataLoader

# %% [markdown] role="concept"
# ### The same settings, a different result: bisect by part
#
# A colleague runs your script and gets a different loss. Do not compare the ends: compare the
# parts, in the order in which they are made, by their hashes. The first hash that differs
# names the part. Here one thing is changed in each of three runs:

# %% role="concept"
def trail(start=0, order=0, noise=0):
    """Hashes of the parts of a run, in the order in which they are made."""
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
    print(f"{name:15} first part that differs: {part}")

# %% role="concept"
claim("parts named right, of four",
      sum(part == wanted for part, wanted in zip(first_apart.values(), (
          "none", "first weights", "first batch", "first loss"))),
      expected=4)

# %% [markdown] role="concept"
# The hash of a float changes with its last bit. On two kinds of hardware compare rounded
# values instead: the first part whose values differ by more than a rounding error.

# %% [markdown] trap="12.10" role="situation" fault="wandb drops rows whose step= goes back" symptom="wandb validation metrics missing: Tried to log to step that is less than the current step, data will be ignored"
# ## A curve by batches and one by epochs
#
# A run is tracked with Weights & Biases: offline, into a file that `wandb sync` uploads
# later. The classifier trains for five epochs of twenty batches. Each batch logs its loss
# with `run.log({"loss": ...}, step=batch)`, and each epoch ends with
# `run.log({"val_loss": ...}, step=epoch)`. So each curve is meant to have an axis of its
# own.
#
# The run ends without an error, and a folded cell reads the records of the file. (`wandb`
# belongs to the extra `track`: if it is missing, `pip install -e '.[track]'`.)

# %% trap="12.10" role="break" tags=["plumbing"]
import contextlib
import io
import json
import struct

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
    """The records of an offline file: pieces in blocks of 32 KiB."""
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
def tracked(log):
    """(rows, axes, warnings) of an offline run that log(run) wrote."""
    said, rows, axes = io.StringIO(), [], {}
    with contextlib.redirect_stderr(said):
        with wandb.init(project="digits", mode="offline", settings=quiet,
                        dir=log_folder.name) as run:
            log(run)
            file = run.settings.sync_file
        wandb.teardown()                     # now the file is whole
    for record in records(file):
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
    """The events of a run, in order: (axis, step, values)."""
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
claim("validation losses in the file", count(rows, "val_loss"), expected=0)

# %% [markdown] trap="12.10" role="why"
# A run has *one* counter of rows. `step` sets it, and it only goes up: after batch 19,
# step 0 is in the past. The row is dropped with a line on stderr, and the run goes on.

# %% trap="12.10" role="why"
ax = new_axes("Each validation asks for a step long past",
              "call of run.log", "step=")
for name, mark in (("batch", "."), ("epoch", "X")):
    calls = [(n, step) for n, (axis, step, _) in enumerate(events)
             if axis == name]
    ax.plot(*zip(*calls), mark, markersize=4 if mark == "." else 9,
            label="loss: kept" if mark == "." else "val_loss: dropped")
ax.legend()
show(ax.figure, alt="The steps of 105 calls. Those of the training loss "
     "rise in a line from 0 to 99; five of the validation lie far below, "
     "at 0 to 4.")

# %% [markdown] trap="12.10" role="repair"
# To give a curve its own axis, put the axis into the row as a value; `define_metric` says
# which curve is drawn over it. Leave the counter alone.

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
claim("validation losses with an axis of their own",
      count(mended, "val_loss"), expected=5)

# %% [markdown] trap="12.10" role="repair"
# One thing is left. A job is killed in the middle of epoch 4 and goes on from the
# checkpoint after epoch 2, in the same log. Epoch 3 comes a second time. No row is
# refused now, so both are drawn, and the curve runs back and forth.

# %% trap="12.10" role="repair"
resumed_events = events[:94] + events[63:]      # 21 events an epoch
twice, _, _ = tracked(lambda run: own_axis(run, resumed_events))
epochs_seen = [row["epoch"] for row in twice if "epoch" in row]
print("epochs:", epochs_seen)

# %% trap="12.10" role="repair"
claim("rows of epoch 3", epochs_seen.count(3), expected=2)

# %% [markdown] trap="12.10" role="repair"
# What was logged after the checkpoint belongs to a run that does not exist any more. If
# you collect the rows in a list of your own first, you can drop the void ones: those of
# this axis at the step that comes again, and later ones.

# %% [markdown] trap="12.10" role="more" topics="what was kept, and said · the axis defined, step= still there · the batches of the resumed run"
# The training losses were kept, and each dropped validation loss was reported on stderr.
# With an axis of their own there is no warning:

# %% trap="12.10" role="more"
claim("training losses in the file", count(rows, "loss"), expected=100)
claim("lines of warning", told, expected=5)
claim("lines of warning now", warned, expected=0)

# %% [markdown] trap="12.10" role="more"
# Half of the repair is not enough: with the axis defined and `step=` still in the call,
# the rows are dropped as before.

# %% trap="12.10" role="more"
def half_repaired(run):
    defined(run)
    for axis, step, values in events:
        run.log({axis: step, **values}, step=step)

half, _, _ = tracked(half_repaired)
batches = [row["batch"] for row in twice if "batch" in row]

# %% trap="12.10" role="more"
claim("validation losses with the axis defined, and step= still there",
      count(half, "val_loss"), expected=0)
claim("batches that are in the log twice, after the resumption",
      len(batches) - len(set(batches)), expected=30)

# %% [markdown] trap="12.10" role="folklore"
# **Told:** log the validation with the number of the last batch, then nothing is lost.
# **Measured:** nothing is. But now the axis counts batches, and you cannot lay two runs
# with different batch sizes over each other by epochs, because the row does not hold the
# epoch.

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
claim("validation losses at the steps of batches",
      count(merged, "val_loss"), expected=5)
claim("step of the first", places[0], expected=19)
claim("is the epoch in their rows", "epoch" in merged[19], expected=False)

# %% trap="12.10" role="exercise" points=4 difficulty=3 minutes=15
def rows_to_log(events: list) -> tuple:
    """Rows and axes for a log, from the events of a run.

    events: a list of (axis, step, values) in the order of time: a name, an
    int from 0 on, a dict of metric names and numbers, perhaps empty. There
    may be any number of axes; no metric has the name of one. The events are
    left as they are.

    Returns a tuple (rows, axes). axes: a dict, the axis of each metric that
    came. rows: a list of dicts in the order of time, {axis: step} and the
    values. An event at the same step as the one before it on its axis goes
    into that one's row; of a name that is there it replaces the value. An
    event at an earlier step is a run that was resumed: the rows of its axis
    at that step or later are dropped, and those of other axes stay.

    Raises ValueError for a metric that comes on two axes.

    Example: [("epoch", 0, {"val": 3.0}), ("batch", 0, {"loss": 2.0})] gives
    [{"epoch": 0, "val": 3.0}, {"batch": 0, "loss": 2.0}] and
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
# 1. Keep the last step of each axis in a dict: equal to it, later, or earlier are the three cases.
# 2. For the last two the same line will do: keep rows without this axis and those with a smaller step, then add the new row.
# 3. `{axis: step, **values}` is a new dict; `row.update(values)` on the event's own dict would change the event.

# %% [markdown] trap="12.10" role="keep"
# **Keep:** a W&B run has one counter, and it only goes up. A second curve brings its axis
# along as a value. **In your own code:** after the first epoch, read one validation value
# back, from the file or the page. **Source:** W&B documentation, [Customize log
# axes](https://docs.wandb.ai/models/track/log/customize-logging-axes). **Seen in the
# wild:** in [kohya-ss/sd-scripts#1864](https://github.com/kohya-ss/sd-scripts/pull/1864)
# an epoch's loss was logged with `step=epoch`, "a warning but nothing gets logged"; in
# [open-mmlab/mmdetection#7000](https://github.com/open-mmlab/mmdetection/issues/7000)
# everything was logged except the validation; in
# [wandb/wandb#6554](https://github.com/wandb/wandb/issues/6554) the axis was defined, and
# `step=` was still in the call.

# %% [markdown] role="concept"
# ## Versions of data and checkpoints
#
# A log says which loss a run had. It does not keep the file that had it, nor the data that
# it was trained with. A tracker's *artifact* does: a named set of files with a version. Its
# version follows from the bytes, so the same data never becomes a second version:

# %% role="concept" tags=["plumbing"]
artifacts = tempfile.TemporaryDirectory()
os.environ["WANDB_ERROR_REPORTING"] = "false"
for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
    os.environ.setdefault("WANDB_" + name, artifacts.name)

import wandb

# %% role="concept"
def version(x):
    """The digest by which W&B tells versions of these data apart."""
    place = os.path.join(artifacts.name, "digits.npy")
    np.save(place, x.numpy())
    artifact = wandb.Artifact("digits", type="dataset")
    artifact.add_file(place, policy="immutable", skip_cache=True)
    return artifact.digest

versions = [version(x) for x in (x_train, x_train, one_pixel)]
print(*versions, sep="\n")

# %% role="concept"
claim("versions of: the data, the same data, data with a changed pixel",
      len(set(versions)), expected=2)

# %% [markdown] role="concept"
# A run says which version it used and which one it made, and the server draws the chain from
# data to model. It needs an account, so this is shown and not run:
#
# ```python
# data = run.use_artifact("digits:v3")            # not :latest: name the version
# folder = data.download()
# made = wandb.Artifact("reader", type="model")
# made.add_file("last.pt")
# run.log_artifact(made, aliases=["best"])
# ```

# %% [markdown] trap="12.11" role="situation" fault="label smoothing over masked classes: the loss is inf" symptom="label smoothing with masked logits gives an infinite loss; cross entropy inf with -inf logits"
# ## A little smoothing against the NaN
#
# A classifier is told of each digit whether it is even. So the classes of the other kind
# get a logit of minus infinity, and the softmax gives them a probability of zero. The
# label is always among the five classes that are left. The cross-entropy of an untrained
# classifier is about 1.6, the logarithm of five.
#
# A blog post says: "A probability of exactly zero makes the loss NaN, and label smoothing
# prevents it." So you pass `label_smoothing=0.1`.

# %% trap="12.11" role="break"
classes = torch.arange(10)

def masked(net, x, y):
    """Logits (N, 10), minus infinity at classes of the other kind."""
    return net(x).masked_fill(classes % 2 != y[:, None] % 2, -torch.inf)

def small():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

logits = masked(small(), x_train, y_train)
plain = F.cross_entropy(logits, y_train).item()
smooth = F.cross_entropy(logits, y_train, label_smoothing=0.1).item()

# %% trap="12.11" role="guess" quoted="wrong"
guess("12.11", "What is the loss of the untrained classifier with "
      "smoothing?",
      choices=["still about 1.6", "about 2.3, the logarithm of ten",
               "NaN", "infinite"])

# %% trap="12.11" role="look"
nearly = logits.masked_fill(logits.isinf(), -1e9)
huge = F.cross_entropy(nearly, y_train, label_smoothing=0.1).item()
print(f"without smoothing {plain:.2f}, with smoothing {smooth}")
print(f"with -1e9 in place of minus infinity {huge:.1e}")

# %% trap="12.11" role="look"
measured("12.11", 3)

# %% trap="12.11" role="look"
claim("is the loss with smoothing infinite", math.isinf(smooth),
      expected=True)

# %% [markdown] trap="12.11" role="why"
# Without smoothing, a logit of minus infinity is harmless as long as it is not the
# label's: its probability of zero is never used. Smoothing uses it. A part of the target,
# a tenth over ten classes, goes to *each* class, and `-0.01 * log(0)` is infinite.

# %% trap="12.11" role="why"
target, kind = F.one_hot(torch.tensor(4), 10), classes % 2 == 0
shares = torch.stack([0.9 * target + 0.1 / 10,
                      0.9 * target + 0.1 * kind / 5])
draw_grids({"target of a 4, told that it is even": shares}, values=True,
           marks={"target of a 4, told that it is even":
                  (shares > 0) & ~kind}, legend="asks for log(0)",
           row_names=["over all", "over allowed"], columns="class",
           title="Smoothing needs the logarithm of every class",
           alt="Two rows of ten classes. Spread over all, each odd class "
               "has a share of 0.01 and is marked. Spread over the "
               "allowed, odd classes have none and even ones 0.02.")

# %% [markdown] trap="12.11" role="repair"
# What follows depends on who looks at the loss. Its *gradient* is finite, and
# `masked_fill` passes none of it to the net at a masked class, so the net learns. A guard
# that skips steps with a bad loss, as many loops have, skips all of them, because each
# row has masked classes. Spread the smoothing over the classes that are allowed.

# %% trap="12.11" role="repair"
def learn(loss, guard, steps=200):
    """(steps taken, share of test digits read) with a loss."""
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
    """The share spread over the classes that are not masked."""
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
claim("steps that the guard lets pass", runs["smoothed, guard"][0],
      expected=0)

# %% [markdown] trap="12.11" role="repair"
# Smoothed over the allowed classes, the loss is finite and passes the guard.

# %% trap="12.11" role="repair"
claim("accuracy with the guard, smoothed over allowed classes",
      runs["over allowed, guard"][1], above=0.85)

# %% [markdown] trap="12.11" role="more" topics="-1e9 in place of minus infinity · without a guard"
# Without smoothing the loss is that of five classes. The finite `-1e9` gives millions
# instead of an infinity. And if nobody looks at the loss, the net learns:

# %% trap="12.11" role="more"
claim("loss without smoothing", plain, expected=1.6, within=0.1)
claim("loss with -1e9 and smoothing", huge, above=1e7)
claim("accuracy when nobody looks at the loss", runs["smoothed"][1],
      above=0.85)

# %% [markdown] trap="12.11" role="folklore"
# **Told:** any logit of minus infinity makes the loss NaN. **Measured:** three cases,
# with class numbers as labels and no class weights. At a wrong class it does nothing. At
# the label's class the loss is infinite. Where all classes are masked, it is NaN.

# %% trap="12.11" role="folklore"
rows = torch.tensor([[2.0, 1.0, -torch.inf]])
wrong = F.cross_entropy(rows, torch.tensor([0])).item()
label = F.cross_entropy(rows, torch.tensor([2])).item()
none = F.cross_entropy(rows - torch.inf, torch.tensor([0])).item()
print(f"wrong class {wrong:.2f}, label's class {label}, all {none}")

# %% trap="12.11" role="folklore"
claim("loss with minus infinity at a wrong class", wrong, below=1)
claim("is the loss infinite at the label's class", math.isinf(label),
      expected=True)
claim("is it NaN with all classes masked", math.isnan(none), expected=True)

# %% trap="12.11" role="exercise" points=3 difficulty=3 minutes=15
def masked_ce(logits, target, allowed, smoothing: float) -> torch.Tensor:
    """Mean cross-entropy of rows that choose among their allowed classes.

    logits: (N, C) float32, where allowed between -1e15 and 1e15. target:
    (N,) int64, an allowed class each. allowed: (N, C) bool. What stands in
    logits at a class that is not allowed changes nothing, be it an infinity
    or a NaN, and its gradient is 0. Of each row's target distribution,
    1 - smoothing stands at the target, and smoothing is spread evenly over
    all allowed classes of the row, the target among them. Returns a tensor
    of shape () that has gradients; the arguments are left as they are.

    Example: a row with a single allowed class: 0.
    """
    # BEGIN SOLUTION
    log_p = torch.where(allowed, logits, -torch.inf).log_softmax(1)
    log_p = torch.where(allowed, log_p, 0)
    right = log_p.gather(1, target[:, None])[:, 0]
    spread = log_p.sum(1) / allowed.sum(1)
    return -((1 - smoothing) * right + smoothing * spread).mean()
    # END SOLUTION

# %% [markdown] trap="12.11" role="hint"
# 1. First the softmax among allowed classes: put minus infinity at the others with `where`, which also throws away a NaN.
# 2. After the log-softmax put zeros at those places, before you sum.
# 3. Rows may have different numbers of allowed classes: divide each by its own.

# %% [markdown] trap="12.11" role="keep"
# **Keep:** label smoothing needs the logarithm of every class, so spread it over the
# allowed classes only. **In your own code:** count the steps that a guard skips, and log
# the number. **Source:** PyTorch documentation,
# [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html),
# `label_smoothing`: a mixture with a uniform distribution over all classes.

# %% [markdown] role="concept"
# ## Further
#
# ### A spike in the loss
#
# A run that is not `nan` may still jump. In the plot below, the batch of step 100 comes
# from a damaged file: its pixels are between 0 and 16 where all others are between 0 and
# 1, and its labels are one row off. A log with the norm of all gradients next to the loss
# shows the step twice, and you can look at the norm *before* the optimizer moves.

# %% role="concept"
def batch_of(step):
    """64 rows; those of step 100 are damaged."""
    rows = torch.randint(1300, (64,))
    x, y = x_train[rows], y_train[rows]
    return (16 * x, y.roll(1)) if step == 100 else (x, y)

# %% role="concept"
def spiked(optimizer, remedy, **settings):
    """(loss, norm) of 200 steps."""
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
    """A step, clipped or skipped if its gradient is far from usual."""
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
          f"ten steps after: {after:.2f}, {jump[way]:4.1f} times before")
norms = spikes["SGD", "as it is"][:, 1]
over_usual = (norms[100] / norms[50:100].median()).item()

# %% role="concept"
claim("norm of the damaged step over the median of 50 before", over_usual,
      above=20)
claim("loss of ten steps after it over ten before, SGD with momentum",
      jump["SGD", "as it is"], above=3)
claim("the same, largest of four runs that clip or skip",
      max(v for (_, remedy), v in jump.items() if remedy != "as it is"),
      below=1.8)

# %% role="concept"
plot_lines(range(1, 201), {
    name: spikes["SGD", remedy][:, 0].tolist() for name, remedy in
    (("plain", "as it is"), ("clip", "clip"), ("skip", "skip"))},
    xlabel="step", logy=True, ylabel="loss",
    title="One damaged batch costs many steps",
    alt="Three losses over 200 steps of SGD. All jump at step 100; without "
        "a remedy the loss stays high for many steps after it, with "
        "clipping or skipping it is back at once.")

# %% [markdown] role="concept"
# Clipping and skipping both save the net, under SGD with momentum and under Adam. A rule
# that skips needs a counter in the log: trap 12.11 shows one that skips every step.
#
# ### Logits that grow, and QK-norm
#
# A loss may jump without any damaged batch. In attention a logit is the product of a
# query and a key, so it grows with both weight matrices, and [at high rates it
# does](https://arxiv.org/abs/2309.14322). In the end the softmax gives nearly all the
# weight to one key, and little gradient comes back through it.
#
# *QK-norm* brings [each query and each key](https://arxiv.org/abs/2010.04245) to one norm
# before their product. No logit then exceeds the square root of the head's width, times
# the gains that the norm learns. [ViT-22B](https://arxiv.org/abs/2302.05442) has it,
# after runs of 8 billion weights had diverged without it, and so has
# [Qwen3](https://arxiv.org/abs/2505.09388).

# %% role="concept"
def attention_logits(size, normed, width=16):
    """Logits (32, 32) of a head whose two matrices are `size` as large."""
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
claim("largest logit with weights 8 times as large, over before",
      largest["plain"][-1] / largest["plain"][0], expected=64, within=0.01)
claim("the same with QK-norm", largest["QK-norm"][-1]
      / largest["QK-norm"][0], expected=1, within=0.001)
claim("largest logit with QK-norm, over the root of the width",
      max(largest["QK-norm"]) / 16**0.5, below=1.0001)

# %% role="concept"
plot_lines(sizes, {name: [z.softmax(1).amax(1).mean().item()
                          for z in found] for name, found in heads.items()},
           xlabel="size of the weights", ylabel="share of one key",
           title="Larger weights, one key: not with QK-norm",
           alt="Mean share of the key that is looked at most, of 32. It "
               "rises towards one as the weights grow eightfold; with "
               "QK-norm it stays where it was.")

# %% [markdown] role="concept"
# ### A tool that looks while a script runs
#
# Some faults of this stage show in the values that pass through torch: smoothing over
# masked classes (12.11), a sum of losses that keeps its graphs (12.6), batches sorted by
# class (12.7), a loss that is `nan` (12.1). `dlsys watch train.py` runs a script as it is
# and prints a line for each fault that it sees. The script below ends without an error.

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
claim("lines that name trap 12.11", told.count("trap 12.11"), expected=1)
claim("exit status, as without the tool", ended.returncode, expected=0)

# %% [markdown] role="concept"
# ### What two runs share
#
# With the same code and the same seed, what may still differ? Each line below trains one
# classifier for 200 steps, and compares it with the first.

# %% role="concept"
def learned(mix=lambda rows: rows, seed=7):
    """(weights, predictions) after 200 steps; mix(rows) orders a batch."""
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
runs = {"the same once more": learned(),
        "rows of each batch turned round": learned(turned)}
torch.use_deterministic_algorithms(True)
runs["turned round, deterministic"] = learned(turned)
fresh_memory = torch.empty(3)
torch.use_deterministic_algorithms(False)
runs["another seed"] = learned(seed=8)
gaps, flips = {}, {}
for name, (weights, read) in runs.items():
    gaps[name] = (weights - first[0]).abs().max().item()
    flips[name] = (read != first[1]).sum().item()
    print(f"{name:32} weights {gaps[name]:.0e} apart, "
          f"{flips[name]:2} digits read differently")

# %% role="concept"
again, order, flagged, seeds = gaps.values()
claim("gap of the same run", again, expected=0)
claim("gap with the rows of a batch in another order, or the flag as well",
      max(order, flagged), above=1e-9, below=1e-4)
claim("gap of the seed over that of the order", seeds / order, above=1000)

# %% [markdown] role="concept"
# The order of a sum changes its last digits. `use_deterministic_algorithms(True)` asks
# for one result each time the *same* numbers come in the *same* order; where torch has no
# such operation, it raises an error. So it does not help here. It also fills fresh memory
# with `nan`, so that code which reads memory before writing it is found.
#
# | what changes | what follows, measured in this stage |
# |---|---|
# | the seed | other weights, other digits right |
# | the order of rows, or of the sum | last digits of the weights, at this rate |
# | the number of workers | which worker draws which random number (12.3) |
# | a resumption without the generator's state | other batches, other dropout masks (12.8) |
# | the process | the order of a set of texts (12.9) |
#
# The GPU section below shows a GPU that adds in an order of its own.

# %% role="concept"
claim("is fresh memory NaN under the flag", fresh_memory.isnan().all(),
      expected=True)

# %% [markdown] role="concept"
# ### Search on a real training
#
# The bowls of trap 12.4 have no noise. Here a digit classifier has four settings: rate,
# momentum, smoothing, size of its first weights. A search may spend 1,600 steps of
# training: 20 runs of 80 steps, or more if bad ones are ended early. Three methods spend
# them: random search; TPE, Optuna's default, which begins with ten random runs and then
# learns from earlier runs (it is not a Gaussian process); and Hyperband with random
# settings, which ends runs that are behind others after 20 or 40 steps. Each is repeated
# with eight seeds; a number below is one search's best loss on held-out digits, in order
# of size. (`optuna` also belongs to the extra `track`.)

# %% role="concept" tags=["plumbing"]
import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)
states = optuna.trial.TrialState
SIZES = ((64, 32), (1, 32), (32, 10), (1, 10))

# %% role="concept" tags=["plumbing"]
class Readers:
    """n readers side by side, each with settings of its own."""

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
def losses_of(readers, x, y, smoothing=0):
    """Cross-entropy of each reader, (n,)."""
    a, b, c, d = readers.weights
    log_p = ((x @ a + b).relu() @ c + d).log_softmax(-1)
    right = log_p.gather(2, y[..., None].expand(len(log_p), -1, 1))
    spread = log_p.mean(-1, keepdim=True)
    return -((1 - smoothing) * right + smoothing * spread).mean((1, 2))

# %% role="concept" tags=["plumbing"]
def go_on(readers, steps=20):
    """Train them; their losses on digits held out to validate."""
    rate, momentum, smoothing = readers.settings
    for _ in range(steps):
        rows = torch.randint(1300, (32,))
        loss = losses_of(readers, x_train[rows], y_train[rows], smoothing)
        gradients = torch.autograd.grad(loss.sum(), readers.weights)
        with torch.no_grad():
            for w, v, g in zip(readers.weights, readers.speeds, gradients):
                w.sub_(rate * v.mul_(momentum).add_(g))
    with torch.no_grad():
        loss = losses_of(readers, x_test, y_test)
    return loss.nan_to_num(1e3).clamp(max=1e3).tolist()

# %% role="concept"
def settings_of(trial):
    return {"rate": trial.suggest_float("rate", 1e-4, 10, log=True),
            "momentum": trial.suggest_float("momentum", 0, 0.99),
            "smoothing": trial.suggest_float("smoothing", 0, 0.5),
            "size": trial.suggest_float("size", 0.1, 10, log=True)}

# %% role="concept"
def searches(sampler, pruner=None, n=8, parts=80):
    """n studies side by side, of parts * 20 steps each."""
    studies = [optuna.create_study(
        sampler=sampler(seed=torch.randint(2**31, ()).item()),
        pruner=pruner or optuna.pruners.NopPruner()) for _ in range(n)]
    readers, trials = Readers(n), [None] * n
    for _ in range(parts):
        advance(studies, readers, trials)
    return studies

# %% role="concept" tags=["plumbing"]
def advance(studies, readers, trials):
    """20 more steps for each study; trials that end make room."""
    for k, study in enumerate(studies):
        if trials[k] is None:
            trials[k] = study.ask()
            readers.renew(k, **settings_of(trials[k]))
    for k, loss in enumerate(go_on(readers)):
        readers.steps[k] += 20
        trials[k].report(loss, readers.steps[k])
        if readers.steps[k] == 80:
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
claim("worst over best of eight searches by one way, the widest", widest,
      above=1.5)
claim("worst middle over best middle of the ways, over that",
      max(middles) / min(middles) / widest, below=0.95)
claim("runs of Hyperband over those of dice", runs[2] / runs[0], above=1.05)

# %% [markdown] role="concept"
# *Hyperband* rests on one idea: give many settings a short run, keep the better part, give
# those a longer run, and so on, until a few run to the end. A setting that starts slowly
# would be dropped too early, so it repeats this with several lengths of the first run.
#
# Read the rows across before you read them down. Searches by one method end further apart
# than the medians of the three methods, so a comparison with one seed each is decided by
# the seed as much as by the method. A fair comparison needs equal steps, not equal
# numbers of runs, and shows all the seeds next to the mean.
#
# The rate is drawn on a log scale, `log=True`. Without it, nine of ten random rates
# between 0.0001 and 10 are above 1.

# %% role="concept"
even = torch.empty(10_000).uniform_(1e-4, 10)
print(f"rates above 1: evenly {(even > 1).float().mean():.0%},"
      f" by the logarithm {1 / 5:.0%}")

# %% role="concept"
claim("share of rates above 1, drawn evenly", (even > 1).float().mean(),
      above=0.85)

# %% [markdown] role="concept"
# ### A search that is killed
#
# With `storage="sqlite:///..."` each run is written to a file, and a search that is
# killed can go on. Here a child is killed in its seventh run. Then a study with the same
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
claim("is the killed run said to be running still",
      study.trials[6].state.name == "RUNNING", expected=True)
claim("of four runs after the kill, settings that were tried before",
      repeated, expected=4)

# %% [markdown] role="concept"
# Two things are left to do. The killed run stays `RUNNING`; `study.tell` with its number
# ends it. And the sampler's state is not in the file: with the same seed the random
# numbers start again, and the four runs are the first four again. A seed that counts the
# runs so far draws new ones.

# %% role="concept"
study.tell(6, state=states.FAIL)
study = reopened(seed=len(study.trials))
study.optimize(objective, n_trials=4)
fresh_rates = [trial.params["rate"] for trial in study.trials[-4:]]
print("rates:", " ".join(f"{r:.2f}" for r in fresh_rates))

# %% role="concept"
claim("is the killed run closed", study.trials[6].state.name == "FAIL",
      expected=True)
claim("settings tried before, with a seed that counts",
      sum(rate in rates for rate in fresh_rates), expected=0)

# %% [markdown] role="concept"
# ### The same search as a W&B sweep
#
# A sweep needs a server, so nothing in this paragraph is run here. This is the
# configuration of such a search ([its
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
# The metric's name is the one that is logged: a curve that is lost as in trap 12.10
# leaves the search without a goal. `wandb sync --dry-run` lists offline runs that are not
# uploaded yet; `wandb sync <folder>` uploads one, and needs an account.

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then open a choice: each says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. The loss is NaN, and anomaly mode names the backward of the loss function. The NaN**
#
# - [x] may arise in any layer in front of it :: Gradients are computed from the loss backwards, so the first bad one does not say where the values went bad.
# - [ ] arises in the loss function :: It may, but a NaN from any earlier layer looks the same: the loss's backward is the first to return one.
# - [ ] arises in the first layer :: The first layer's gradient is the last to be computed.

# %% [markdown] role="quiz"
# **2. One gradient of a million is NaN. After `clip_grad_norm_` with a limit of 1**
#
# - [ ] it is 1 :: No gradient is compared with the limit by itself; all are multiplied by one factor.
# - [ ] it is still the only one :: The factor is made from the norm of all gradients, and that norm is NaN.
# - [x] all are NaN :: The norm is NaN, and each gradient is multiplied by a factor made from it.

# %% [markdown] role="quiz"
# **3. The training loss of a regression stays at the variance of the targets. The model**
#
# - [x] does no better than a constant :: Always predicting the mean of the targets reaches this loss.
# - [ ] has learned half of what there is :: Half would be a loss of half the variance.
# - [ ] has overfitted :: An overfitted model has a training loss below the variance.

# %% [markdown] role="quiz"
# **4. Two workers, `worker_init_fn=lambda id: np.random.seed(id)`, ten epochs. The random numbers**
#
# - [ ] differ from epoch to epoch, as the workers go on drawing :: They would with `persistent_workers=True`; otherwise each epoch starts new ones.
# - [ ] are the same in both workers :: The workers have different numbers, and so different seeds.
# - [x] are those of the first epoch, ten times :: New workers, the same seeds, the same numbers.

# %% [markdown] role="quiz"
# **5. A job saves with `torch.save(state, "last.pt.new")`, then `os.replace` to `last.pt`. It is killed while it saves. Then `last.pt`**
#
# - [ ] is half written :: Nothing is written into `last.pt`: the new bytes go to another file.
# - [ ] is gone :: `os.replace` takes the old file's place in one step, and it was not reached.
# - [x] holds the former state :: The half-written file has another name.

# %% [markdown] role="quiz"
# **6. A loop skips steps whose loss is not finite. Logits of some classes are masked with minus infinity, labels are smoothed over all classes. The loop**
#
# - [x] skips each step :: The smoothed target of a masked class is multiplied by the logarithm of zero.
# - [ ] skips steps whose label is masked, no other :: That is so without smoothing.
# - [ ] skips nothing: `-inf` at a wrong class is harmless :: Without smoothing it is.

# %% [markdown] role="quiz"
# **7. Each step appends `loss` to a list, after `loss.backward()`. The list**
#
# - [ ] holds the activations of each step :: backward() has freed them, even if the loss is still held.
# - [x] holds nodes, and through them the trained weights :: As long as the list exists, so do they, whatever their names.
# - [ ] holds only numbers :: A tensor with a graph is more than its number.

# %% [markdown] role="quiz"
# **8. `os.environ["PYTHONHASHSEED"] = "0"` is a script's first line, and class numbers come from `enumerate(set(names))`. Two starts**
#
# - [ ] agree in their numbers :: The secret seed of the hashes was drawn before the first line.
# - [x] differ, nearly always :: The order of a set of texts depends on that secret seed.
# - [ ] differ, unless `random` and numpy are seeded as well :: Neither has an influence on hashes.

# %% [markdown] role="gpu"
# ## On a GPU: order, memory, waiting
#
# On one CPU thread `index_add_` adds numbers one after the other. On a GPU thousands of
# threads add to the same place at once. With *atomic* additions, the order is the order in
# which the threads happen to arrive. `index_add_` uses them there.
#
# **Before you run anything:** a million rows go into 16 places by `index_add_`, 20 times.
# How many different results? Then, with eight layers of 4096 units and 20 validation
# batches of 512 rows: how many GB does `total += loss` hold? And what do two habits cost a
# small net: anomaly mode, and `loss.item()` at each step, for which the CPU waits?

# %% role="gpu"
values = torch.randn(4096)
place = torch.zeros(4096, dtype=torch.long)
mixed = [values[torch.randperm(4096)] for _ in range(20)]
sums = {torch.zeros(1).index_add_(0, place, v).item() for v in mixed}
whole = {torch.zeros(1, dtype=torch.long).index_add_(
    0, place, (v * 2**16).long()).item() for v in mixed}

def stack(width, where="cpu"):
    """Eight layers of so many units."""
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
step(little, few)                           # gradients are there
orders = {way.__name__: cost(lambda: way(little, few)).orders
          for way in (step, watched)}
print(f"{len(sums)} sums of 20 orders in float32, {len(whole)} of integers")
print(f"20 graphs of 512 rows: {20 * batch_bytes / 1e9:.2f} GB;",
      "orders of a step:", orders)

# %% role="gpu"
claim("different float32 sums of 20 orders", len(sums), above=1)
claim("different sums of the same in integers", len(whole), expected=1)
claim("orders of a step in anomaly mode over a plain one",
      orders["watched"] / orders["step"], above=2)

# %% role="gpu"
@gpu_result("12/order",
            columns=["way", "results", "ms", "ms_low", "ms_high"])
def order_of_sums():
    """A million rows of 8 into 16 places, as usual and deterministic."""
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
    """Ten steps of a small net, whose losses are read in three ways."""
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
    order_of_sums.asks("the same, deterministic", 1.0,
                       lambda: results("deterministic"), expected=1),
    validation.asks("GB that the sum holds", sum_gb,
                    lambda: held_gb("total += loss"),
                    above=0.95 * sum_gb),
    validation.asks("GB held under no_grad", 0.0,
                    lambda: held_gb("no_grad"), below=0.05),
    steps.asks("anomaly mode over a plain step",
               orders["watched"] / orders["step"],
               lambda: over_kept("anomaly mode"), above=1.5),
    steps.asks("item() at each step, over losses kept", "1 or more",
               lambda: over_kept("item() each step"), above=0.95))
answers_here

# %% [markdown] role="gpu"
# **On the H100 of the record** all 20 sums differ, and none does with deterministic
# algorithms, which take 40 times as long for these million rows in 16 places. After 20
# batches `total += loss` holds 1.38 GB; with `item()` nothing stays, and the peak is 0.14
# GB, under `no_grad` 0.02. Anomaly mode has 2.8 times the orders and takes 4.3 times as
# long.
#
# `item()` at each step costs nothing that the clock shows: ten steps of this small net take
# 13 ms with it and without. A step is 70 orders for 0.2 GFLOP, so the device has done its
# part when the CPU asks. Where the device lags behind its orders, each `item()` waits for all of them. Trap 09.10 counts such waits.
#
# **Keep:** float32 sums depend on their order, integers do not; a GPU's atomics choose an
# order each time. Measure under `no_grad`, read numbers every so many steps, and keep
# anomaly mode for the step in question. **Source:** PyTorch,
# [use_deterministic_algorithms](https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html),
# whose list of operations that change has `index_add_` on CUDA.

# %% [markdown] role="summary"
# ## What you take with you
#
# - Search for a NaN in the order of a step: batch, weights, modules, loss, gradients.
#   Hooks find a NaN of the forward pass on the way forward.
# - Log the loss of the best constant next to the loss, and one number per layer. The
#   first line of a log says what was run.
# - A constant worker seed replays the first epoch. Derive randomness from seed, epoch and
#   sample.
# - First find the settings that matter, then search those. If a search loses to random
#   search, look for a fault.
# - `where` hides a bad value, not its gradient. Clipping by the norm spreads a NaN.
# - A batch that the model memorises shows that the loss can fall, and no more.
# - A stored loss holds the weights that were trained. Store numbers.
# - Python reads the hash seed before the first line. Sort, and store the list of classes.
# - Write to a second file, sync, rename. Save the generator's state as well, save when
#   the signal comes, and keep the file where the next machine finds it.
# - Two runs that differ: compare their parts by hash, in order. The first that differs
#   names the cause.
# - A W&B run has one counter, and it only goes up. A second curve brings its own axis.
# - Label smoothing needs the logarithm of every class: spread it over the allowed ones.

