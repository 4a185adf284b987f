# %% [markdown] role="hook"
# # 15. Parallelism, and planning a run
#
# Plain data parallelism on eight GPUs needs a model that fits on one GPU, and yours no
# longer does. So you cut deeper: a layer into halves, a batch into small parts that flow
# through stages, a sequence into pieces, and a layer into experts of which each token
# visits only a few. You also keep fewer activations in memory and recompute the rest for
# the backward pass.
#
# On paper, each cut is exact. In the code of each cut, one line can be wrong without
# raising an error. This stage breaks those lines one by one and counts the bytes sent.
# Then it plans a run on eight GPUs: what fits, which rank waits, and which cut is best.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import copy
import math
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from dlsys_helpers import (
    begin, check, claim, cost, datasheet, digits, draw_blocks, draw_boxes,
    draw_grids, draw_histogram, draw_lanes, draw_line, draw_ranks,
    draw_tree, flops, gpu_result, gpu_table, guess, measured, plot_bars,
    plot_columns, plot_lines, saved_bytes, seconds,
)
from dlsys_helpers.ranks import Ranks

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## Two sheets, five cuts
#
# A training step works on two tables of values, drawn here as two sheets. One sheet is
# the data: the rows of a batch, each a sequence of tokens. The other sheet is the
# weights: the layers, each with its columns or its experts. *Data parallelism*, the cut
# of stage 9, gives each GPU some of the rows and all the weights. Four more cuts divide
# the sheets in other directions:

# %% role="concept"
across, down = torch.zeros(4, 4), torch.zeros(4, 4)
across[1], down[:, 1] = 1, 1              # a row, a column of a sheet
draw_grids({"data parallel": across, "context parallel": down,
            "pipeline": across, "tensor parallel": down,
            "expert parallel": down},
           captions={"data parallel": "rows × tokens",
                     "context parallel": "rows × tokens",
                     "pipeline": "layers × columns",
                     "tensor parallel": "layers × columns",
                     "expert parallel": "layers × experts"},
           title="What one of four GPUs holds after each cut",
           alt="Five sheets of four by four cells, with one GPU's part "
               "filled. Data parallel: one row of the batch. Context "
               "parallel: one column of tokens. Pipeline: one row of "
               "layers. Tensor parallel: one column of each layer. Expert "
               "parallel: one expert of each layer.")

# %% [markdown] role="concept"
# What a cut separates has to be brought together again, and each cut has its own call for
# this:
#
# - **data parallelism**: in each step, the gradients of all copies of the weights are
#   summed by `all_reduce`;
# - **tensor parallelism**: the partial outputs of a layer are summed by an `all_reduce`
#   in each layer;
# - **pipeline parallelism**: activations are sent on to the next stage, and their
#   gradients are sent back;
# - **context parallelism**: in each layer with attention, the keys and values of all
#   pieces are gathered (or go round in a ring), and their gradients are sent back
#   (`reduce_scatter`); the weights are copies, as with data parallelism;
# - **expert parallelism**: tokens are sent to the GPU that holds their expert, and their
#   outputs are sent back (`all_to_all`).
#
# ## Ranks and their tape
#
# Two processes stand in for two GPUs, as in stage 9. `ranks.run(fn, *given, uses=...)`
# sends the source of `fn` and of the functions in `uses` to both processes. It returns a
# list with the return values of `fn` on rank 0 and rank 1. On each rank, the names
# `torch`, `nn`, `F`, `dist` and `copy` are available. Before each collective call, a
# rank's *tape* records the name of the collective and the size of the tensor in bytes. So
# you can plan a cut on paper first, and then compare the predicted bytes with the bytes
# on the tape.

# %% role="concept"
ranks = Ranks(2)

def sum_of_ranks(x):
    """The sum of x * (1 + rank) over the ranks, as a new tensor."""
    x = x * (1 + dist.get_rank())
    dist.all_reduce(x)
    return x

sums = ranks.run(sum_of_ranks, torch.ones(2, 8))
print("rank 0 has", sums[0][0, 0].item(), " tape:", ranks.tapes[0])

# %% role="concept" tags=["plumbing"]
def sent(name="all_reduce", rank=0):
    """Bytes of each call with this name on a rank's last tape."""
    return [line[1] for line in ranks.tapes[rank] if line[0] == name]

def flat(tensors):
    """All values of the tensors in one vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])

def gap(a, b):
    """Distance of a from b, as a fraction of b's norm."""
    return ((a - b).norm() / b.norm()).item()

# 1300 images of digits (N, 64) with their labels, and 497 new ones.
digit_x, digit_y, digit_new, digit_new_y = digits()

# %% role="concept"
claim("number of bytes on the tape for 16 float32 values", sum(sent()),
      expected=2 * 8 * 4)

# %% [markdown] role="concept"
# If only the values matter, one process plays the part of all ranks. A list has one entry
# per rank, `sum` of the list stands for an `all_reduce`, `torch.cat` stands for an
# `all_gather`, and autograd works through all of these operations. The arithmetic is the
# same, up to rounding in a sum.
#
# ## One matrix, cut two ways
#
# If a layer does not fit on one GPU, the layer itself has to be cut. The weights of a
# layer are a matrix with one row per unit and one column per input, so there are two ways
# to halve the layer. Take two inputs, 1 and 2, and two units with the weights (3, 4) and
# (5, 6). Without a cut, the units return 3 + 8 = 11 and 5 + 12 = 17.
#
# | cut | rank 0 | rank 1 | then |
# |---|---|---|---|
# | by units | has (3, 4) and both inputs: 11 | has (5, 6) and both inputs: 17 | side by side: 11, 17 |
# | by inputs | has (3, 5) and input 1: 3, 5 | has (4, 6) and input 2: 8, 12 | added up: 11, 17 |
#
# Either way, the ranks have to communicate at the end: they put the halves together, or
# they sum the parts. But the MLP of a transformer has two matrices, one after the other.
# Cut the first matrix *by units*. Each rank then holds half of the hidden values, and
# that half is exactly what a second matrix cut *by inputs* needs. So a single sum at the
# end is enough for both matrices.
#
# The activation between the two matrices determines which cut comes first. After a cut by
# units, each rank has complete sums, to which a ReLU may be applied. After a cut by
# inputs, each rank has only parts of a sum, for example 3 and -5. The ReLU of their sum
# is 0, but the sum of their ReLUs is 3.

# %% [markdown] trap="15.1" role="situation" core=true fault="tensor parallelism without the sum in the backward pass" symptom="tensor parallel: same loss as on one GPU, but weights of norms and embeddings drift apart between ranks"
# ## A layer on two ranks
#
# A network for digits has a `body`, a wide layer and a `head`. The wide layer adds
# `relu(h A.T) B.T` to its input `h`, and you cut this layer in two. Each rank gets half
# of the units: their rows of `A` and their columns of `B`. ReLU works on each unit
# separately, so one sum at the end completes the output. Each rank has a copy of `body`
# and `head`, from the same seed.
#
# Autograd does not know `dist.all_reduce`, so you write its backward pass by hand. Each
# part counts once in the sum, so the backward pass gives each part the sum's gradient.
# The output is right. "So the gradient of `body` also agrees, up to rounding," says a
# code comment.

# %% trap="15.1" role="break"
def over_ranks(x):
    """Return the sum over the ranks as a new tensor."""
    x = x.detach().clone()
    dist.all_reduce(x)
    return x

def summed(part):
    """Return the sum over the ranks; backward gives part its gradient."""
    return over_ranks(part) + (part - part.detach())

def split_layer(h, a, b):
    """The wide layer's output (N, 32), with this rank's half of A and B."""
    return summed(F.relu(h @ a.T) @ b.T)

# %% trap="15.1" role="break"
def pieces(seed, rank=0, world=1):
    """body, this rank's part of A (128, 32) and of B (32, 128), head."""
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32))
    a = torch.randn(128, 32) / 32 ** 0.5
    b = torch.randn(32, 128) / 128 ** 0.5
    head = nn.Linear(32, 10)
    mine = torch.arange(128).chunk(world)[rank]
    return body, nn.Parameter(a[mine]), nn.Parameter(b[:, mine]), head

# %% trap="15.1" role="break"
def train_rank(seed, x, y, steps=60):
    """Return this rank's losses, body's first gradient, final weights."""
    body, a, b, head = pieces(seed, dist.get_rank(), dist.get_world_size())
    params = [*body.parameters(), *head.parameters(), a, b]
    opt, losses = torch.optim.AdamW(params, lr=3e-3), []
    for step in range(steps):
        h = body(x)
        loss = F.cross_entropy(head(h + split_layer(h, a, b)), y)
        opt.zero_grad()
        loss.backward()
        if step == 0:
            first = flat(p.grad for p in body.parameters())
        opt.step()
        losses.append(loss.item())
    return losses, first, [p.detach() for p in params]

# %% trap="15.1" role="break"
x, y = digit_x[:512], digit_y[:512]
runs = ranks.run(train_rank, SEED, x, y,
                 uses=(over_ranks, summed, split_layer, pieces, flat))
losses, grads, held = zip(*runs, strict=True)

# %% trap="15.1" role="guess" quoted="wrong"
guess("15.1",
      "In the first step, how large is the error in body's gradient on "
      "rank 0, as a percentage of the true gradient's norm?", unit="%")

# %% trap="15.1" role="look" tags=["for-look"]
def uncut(params, x):
    """Logits of the net on one rank: body 4, head 2, A and B."""
    w, bias, scale, shift, head, head_bias, a, b = params
    h = F.layer_norm(x @ w.T + bias, (32,), scale, shift)
    return (h + F.relu(h @ a.T) @ b.T) @ head.T + head_bias

body, a, b, head = pieces(SEED)
params = [*body.parameters(), *head.parameters(), a, b]
first_loss = F.cross_entropy(uncut(params, x), y)
true = flat(torch.autograd.grad(first_loss, params[:4]))
print("first loss:", f"{losses[0][0]:.4f} and {losses[1][0]:.4f},",
      f"uncut {first_loss.item():.4f}")
print("gradient of body, off by:", *(f"{gap(g, true):.0%}" for g in grads))

# %% trap="15.1" role="look"
measured("15.1", 100 * gap(grads[0], true), right=(25, 70))

# %% trap="15.1" role="look"
claim("error in body's gradient on rank 0 in the first step",
      gap(grads[0], true), above=0.25)

# %% [markdown] trap="15.1" role="look"
# The loss falls on both ranks. After the run, you save rank 0's copies and join the two
# halves of the layer:

# %% trap="15.1" role="look" tags=["plumbing"]
def joined(held, x, y):
    """Loss of rank 0's copies, with the halves of both ranks joined."""
    a, b = (torch.cat([params[at] for params in held], dim)
            for at, dim in ((6, 0), (7, 1)))
    return F.cross_entropy(uncut([*held[0][:6], a, b], x), y).item()

apart = gap(flat(held[0][:6]), flat(held[1][:6]))
one_net = joined(held, x, y)

# %% trap="15.1" role="look"
plot_bars({"rank 0, in training": losses[0][-1],
           "rank 1, in training": losses[1][-1], "joined": one_net},
          title="The saved net is not the net that was trained",
          xlabel="loss on the same 512 digits, in nats",
          alt="Three bars. The last losses of both ranks are small and "
              "almost equal. The joined network's loss on the same digits "
              "is several times as high.")

# %% trap="15.1" role="look"
claim("loss of the joined net, divided by rank 0's last loss",
      one_net / losses[0][-1], above=1.4)

# %% [markdown] trap="15.1" role="why"
# In the forward pass, `h` goes into both halves. So in the backward pass, `h` gets a
# gradient from each half, and the two must be summed. Each rank uses only its own half's
# gradient. The copies of `body` drift apart, and each half learns to work with its own
# copy.

# %% trap="15.1" role="why"
halves = "dy", ("B0", "B1"), ("A0", "A1")
draw_blocks({"forward": ["h", ("A0", "A1"), ("B0", "B1"), "+", "y"],
             "backward": [*halves, ("part of dh", "part of dh")],
             "backward, whole": [*halves, "+", "dh"]},
            marks={"backward": {"part of dh"}},
            title="Where forward copies h, backward has to sum",
            alt="Three columns of blocks. Forward: h goes into both "
                "halves, and a sum makes y from their parts. Backward: dy "
                "goes into both halves, and each rank keeps the part of dh "
                "that its half returns. In the last column, a sum makes dh "
                "from these parts.")

# %% [markdown] trap="15.1" role="repair"
# At the layer's entrance, put a second function, which returns `h` unchanged and, in the
# backward pass, sums the gradient of `h` over the ranks. Entrance and exit mirror each
# other: the entrance copies forward and sums backward, and the exit does the reverse.

# %% trap="15.1" role="repair"
def entered(h):
    """Return h unchanged; backward sums its gradient over the ranks."""
    h = h.view_as(h)
    h.register_hook(over_ranks)
    return h

def split_layer(h, a, b):
    """The wide layer's output (N, 32), with this rank's half of A and B."""
    return summed(F.relu(entered(h) @ a.T) @ b.T)

# %% trap="15.1" role="repair"
parts = (over_ranks, summed, entered, split_layer, pieces, flat)
runs = ranks.run(train_rank, SEED, x, y, uses=parts)
losses, grads, whole = zip(*runs, strict=True)
print("gradient of body, off by:", *(f"{gap(g, true):.0e}" for g in grads))
print(f"loss at the end {losses[0][-1]:.4f}, joined "
      f"{joined(whole, x, y):.4f}")

# %% trap="15.1" role="repair"
claim("error in body's gradient on rank 0, with the second sum",
      gap(grads[0], true), below=1e-4)

# %% [markdown] trap="15.1" role="repair"
# The cut costs two all-reduces per step, each over 512 rows of 32 values of 4 bytes.

# %% trap="15.1" role="repair"
predicted = 60 * 2 * (512 * 32 * 4)               # steps, sums, bytes
print(f"predicted bytes {predicted:,}, on the tape {sum(sent()):,}")

# %% trap="15.1" role="repair"
claim("number of bytes on the tape after 60 steps", sum(sent()),
      expected=60 * 2 * 512 * 32 * 4)

# %% [markdown] trap="15.1" role="more" topics="both runs compared · a sum that autograd knows · what torch does · a bias"
# The next claims compare the runs without and with the second sum:

# %% trap="15.1" role="more"
claim("distance between the ranks' copies of body and head, without the "
      "second sum", apart, above=0.1)
claim("distance between the ranks' copies of body and head, with the "
      "second sum", gap(flat(whole[0][:6]), flat(whole[1][:6])), expected=0)
claim("difference between the two ranks' last losses, with the second sum",
      abs(losses[0][-1] - losses[1][-1]), expected=0)

# %% [markdown] trap="15.1" role="more"
# `torch.distributed.nn.functional` has a differentiable `all_reduce` (newer versions of
# torch warn and name a successor). Its backward pass is also a sum. A sum in the backward
# pass is right if the ranks' losses are parts of one loss. In this lesson, the ranks'
# losses are copies of one loss, so each half gets twice its true gradient.

# %% trap="15.1" role="more"
def with_known_sum(seed, x, y):
    """Gradient of this rank's A, with a sum that autograd knows."""
    from torch.distributed.nn.functional import all_reduce
    body, a, b, head = pieces(seed, dist.get_rank(), dist.get_world_size())
    h = body(x)
    out = h + all_reduce(F.relu(entered(h) @ a.T) @ b.T)
    F.cross_entropy(head(out), y).backward()
    return a.grad

twice = ranks.run(with_known_sum, SEED, x, y, uses=parts)[0]
of_a = torch.autograd.grad(F.cross_entropy(uncut(params, x), y), a)[0][:64]

# %% trap="15.1" role="more"
claim("norm of rank 0's gradient of A with a sum known to autograd, "
      "divided by the true norm", (twice.norm() / of_a.norm()).item(),
      expected=2, within=0.01)

# %% [markdown] trap="15.1" role="more"
# `parallelize_module` puts both sums where they belong. `ColwiseParallel` cuts `A` and
# adds the entrance. `RowwiseParallel` cuts `B` and adds the exit:

# %% trap="15.1" role="more"
def by_torch(seed, x, y):
    """Gradients of body's weight and rank 0's bias, with DTensor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import parallel
    body, wide = torch_net(seed)
    cut = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    parallel.parallelize_module(wide, init_device_mesh("cpu", (2,)), cut)
    h = body(x)
    F.cross_entropy(h + wide(h), y).backward()
    return body.weight.grad, wide[2].bias.grad.to_local()

# %% trap="15.1" role="more"
def torch_net(seed):
    """A layer with biases, cut in the same way."""
    torch.manual_seed(seed)
    return nn.Linear(64, 32), nn.Sequential(
        nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))

body, wide = torch_net(SEED)
h = body(x)
F.cross_entropy(h + wide(h), y).backward()
by_dtensor, bias_grad = ranks.run(by_torch, SEED, x, y,
                                  uses=(torch_net,))[0]

# %% trap="15.1" role="more"
claim("error in body's gradient, with parallelize_module",
      gap(by_dtensor, body.weight.grad), below=1e-4)

# %% [markdown] trap="15.1" role="more"
# The second bias belongs to neither half. Add this bias once, after the sum, because
# inside the parts, two ranks would count it twice. Its gradient, a sum over the rows of
# `dy`, is already complete on each rank, and so is the gradient of a half's own weights.
# Neither gradient needs a collective call.

# %% trap="15.1" role="more"
claim("error in the second bias's gradient on rank 0",
      gap(bias_grad, wide[2].bias.grad), below=1e-4)

# %% trap="15.1" role="exercise" points=4 difficulty=3 minutes=12
def split_mlp(h: torch.Tensor, a: torch.Tensor, b: torch.Tensor,
              c: torch.Tensor, dy: torch.Tensor, all_sum) -> tuple:
    """Compute y = relu(h A.T) B.T + c on one of several ranks, and its
    gradients.

    The layer is cut by units: a (f, D) holds this rank's rows of A, and b
    (E, f) its columns of B. f is at least 1 and can differ between ranks. h
    (N, D), the bias c (E,) and dy (N, E), the gradient of the loss with
    respect to y, are complete and the same on all ranks. all_sum(tensor)
    returns the sum over the ranks as a new tensor. All ranks have to call
    it the same number of times, at most 60, in the same order and with the
    same shapes and dtypes.

    Returns (y, dh, da, db, dc), in the common dtype of the inputs: y, and
    the gradients of h, a, b and c as in the uncut layer. The derivative of
    ReLU at 0 is 0. Inputs and their requires_grad are not changed.

    Example: h is 2, c 0 and dy 1; a is 3 and b 5 on one rank, and a is 4
    and b 7 on the other. Then y is 86 and dh 43 on both ranks, and da is 10
    on the first.
    """
    # BEGIN SOLUTION
    units = torch.relu(h @ a.T)
    y = all_sum(units @ b.T) + c
    back = (dy @ b) * (units > 0)
    dh = all_sum(back @ a)
    return y, dh, back.T @ h, dy.T @ units, dy.sum(0)
    # END SOLUTION

# %% [markdown] trap="15.1" role="hint"
# 1. What is only a part on each rank, and what is already complete? Parts of y and dh
#    have to be summed. da and db belong only to this rank. dc is computed from dy,
#    which is complete.
# 2. Add the bias once, after the sum.
# 3. Write the backward pass by hand: `back = (dy @ b) * (units > 0)`. Then dh comes from
#    `back @ a`, da is `back.T @ h`, and db is `dy.T @ units`.

# %% [markdown] trap="15.1" role="keep"
# **Keep:** Two matrices, the first cut by units, the second by inputs, need two sums: one
# of the outputs in the forward pass, and one of the input's gradients in the backward
# pass. **In your own code:** Every few hundred steps, compare digests of all copies (norm
# layers, embeddings, biases) across the ranks. Compare the first gradient with the
# gradient on one GPU. **Source:** [Megatron-LM,
# `mappings.py`](https://github.com/NVIDIA/Megatron-LM/blob/00caa53af30912914981c86f39db123961678bbd/megatron/core/tensor_parallel/mappings.py),
# "forward: copy, backward allreduce". **Seen in the wild:** In [Megatron-LM
# 1446](https://github.com/NVIDIA/Megatron-LM/issues/1446), the gradients of the last norm
# differed between ranks. In [AReno 496](https://github.com/inclusionAI/AReno/pull/496),
# the gradients were summed twice and were twice as large as they should be. In
# [torchtitan 4332](https://github.com/pytorch/torchtitan/pull/4332), the gradient of a
# bias was divided by the number of ranks.

# %% [markdown] trap="15.2" role="situation" fault="a schedule divides gradients that were there before" symptom="pipeline parallel with gradient accumulation: small gradient norm, loss curve differs, grad norms are off"
# ## Four passes down a pipeline
#
# The next network is cut between its layers: rank 0 has the first stage, and rank 1 has
# the second stage and the loss. To keep both ranks busy, you cut a batch into
# *micro-batches*: while rank 1 works on the first micro-batch, rank 0 begins the second.
# Torch's schedules run forward and backward over all micro-batches, send activations and
# gradients, and by default divide the gradient by the number of micro-batches.
#
# You have memory for 16 digits, cut into four micro-batches, but you want 64 digits per
# step. So you make four passes, let `backward` accumulate in `.grad`, and divide the loss
# by 4.

# %% trap="15.2" role="break"
def stages(seed):
    """The two stages of a digit classifier, 64-32-10."""
    torch.manual_seed(seed)
    return (nn.Sequential(nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 10))

def loss_of(logits, labels):
    """The mean over a micro-batch, divided by four passes."""
    return F.cross_entropy(logits, labels) / 4

# %% trap="15.2" role="break"
def four_passes(seed, x, y):
    """This rank's gradient after four passes of four micro-batches."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    rank = dist.get_rank()
    mine = stages(seed)[rank]
    stage = PipelineStage(mine, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=loss_of)
    for xs, ys in zip(x.chunk(4), y.chunk(4), strict=True):
        if rank == 0:
            schedule.step(xs)
        else:
            schedule.step(target=ys, losses=[])
    return flat(p.grad for p in mine.parameters())

# %% trap="15.2" role="break"
rows = torch.randperm(len(digit_x))[:64]
x64, y64 = digit_x[rows], digit_y[rows]           # (64, 64), (64,)
piped = ranks.run(four_passes, SEED, x64, y64, uses=(stages, loss_of, flat))

# %% trap="15.2" role="guess"
guess("15.2",
      "How much does the last pass count in the final gradient, as a "
      "multiple of how much the first pass counts?", unit="times")

# %% trap="15.2" role="look"
def own_gradients(x, y, passes=4):
    """The gradient of each pass's mean loss, (passes, weights)."""
    net = nn.Sequential(*stages(SEED))
    return torch.stack([flat(torch.autograd.grad(
        F.cross_entropy(net(xs), ys), [*net.parameters()]))
        for xs, ys in zip(x.chunk(passes), y.chunk(passes), strict=True)])

def shares(found):
    """Weight of each pass's own gradient in the final gradient."""
    return torch.linalg.lstsq(own_gradients(x64, y64).T,
                              found[:, None]).solution.flatten()

share = shares(torch.cat(piped))
print("weights of the passes:", *(f"{s:.4f}" for s in share))

# %% trap="15.2" role="look"
measured("15.2", round((share[3] / share[0]).item()), right=(64, 64))

# %% trap="15.2" role="look"
claim("factor of the last pass's gradient, divided by the factor of the "
      "first pass's gradient", (share[3] / share[0]).item(), expected=64,
      within=1)

# %% [markdown] trap="15.2" role="why"
# At the end of each pass, the schedule divides `p.grad` by 4, the number of
# micro-batches. But `p.grad` also contains earlier passes' gradients. So the first pass's
# gradient is divided four times, and the last pass's gradient once. You wanted a sum, but
# you get a moving average, in which every pass shrinks everything before it to a quarter.

# %% trap="15.2" role="why"
plot_columns({f"pass {n + 1}": abs(s.item()) for n, s in enumerate(share)},
             title="Of four passes, the last counts most",
             xlabel="pass", ylabel="weight in the gradient", form=".3f",
             reference=(0.25, "meant: a quarter each"),
             marks=["pass 1", "pass 2", "pass 3"],
             alt="Four columns. The last pass has its quarter, the third a "
                 "sixteenth, the second a sixty-fourth, and the first "
                 "almost nothing.")

# %% [markdown] trap="15.2" role="why"
# The gradient is smaller, and it comes mostly from the last pass, although you computed
# four passes. AdamW hardly reacts to a constant factor, but it does worse when most
# passes hardly count. At this learning rate, SGD does worse with short steps, even if all
# passes count equally (`as small`).

# %% trap="15.2" role="why" tags=["plumbing"]
def trained(weights, make):
    """Loss on new digits after 60 steps, with these weights (4,)."""
    torch.manual_seed(SEED)
    net = nn.Sequential(*stages(SEED))
    opt = make(net.parameters())
    for _ in range(60):
        opt.zero_grad()
        for weight in weights:
            i = torch.randint(len(digit_x), (16,))
            loss = F.cross_entropy(net(digit_x[i]), digit_y[i])
            (weight * loss).backward()
        opt.step()
    with torch.no_grad():
        return F.cross_entropy(net(digit_new), digit_new_y).item()

# %% trap="15.2" role="why" tags=["plumbing"]
def adamw(params):
    return torch.optim.AdamW(params, lr=3e-3)

def sgd(params):
    return torch.optim.SGD(params, lr=0.3)

kept = [1 / 256, 1 / 64, 1 / 16, 1 / 4]
ends = {f"{name}, {how}": trained(weights, make)
        for name, make in (("AdamW", adamw), ("SGD", sgd))
        for how, weights in (("a quarter each", [1 / 4] * 4),
                             ("as small", [sum(kept) / 4] * 4),
                             ("divided each pass", kept))}

# %% trap="15.2" role="why"
plot_bars(ends, title="Lost passes hurt AdamW, and short steps hurt SGD",
          xlabel="loss on new digits after 60 steps, in nats",
          alt="Six bars. With AdamW, the loss is about a quarter higher "
              "when each pass divides; equally small weights cost nothing. "
              "With SGD, the loss is more than twice as high when each "
              "pass divides, and also with equally small weights.")

# %% trap="15.2" role="why"
claim("AdamW: loss if each pass divides, divided by loss if each pass "
      "counts a quarter",
      ends["AdamW, divided each pass"] / ends["AdamW, a quarter each"],
      above=1.05)

# %% [markdown] trap="15.2" role="repair"
# Divide where the whole step is known: sum the loss, divide the sum by the number of
# labels in the step, and tell the schedule not to scale the gradients.

# %% trap="15.2" role="repair"
def loss_of(logits, labels):
    """This micro-batch's part of the mean over a step's 64 labels."""
    return F.cross_entropy(logits, labels, reduction="sum") / 64

# %% trap="15.2" role="repair"
def four_passes(seed, x, y):
    """This rank's gradient if the passes only add up, undivided."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    rank = dist.get_rank()
    mine = stages(seed)[rank]
    stage = PipelineStage(mine, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=loss_of, scale_grads=False)
    for xs, ys in zip(x.chunk(4), y.chunk(4), strict=True):
        if rank == 0:
            schedule.step(xs)
        else:
            schedule.step(target=ys, losses=[])
    return flat(p.grad for p in mine.parameters())

# %% trap="15.2" role="repair"
piped = ranks.run(four_passes, SEED, x64, y64, uses=(stages, loss_of, flat))
share = shares(torch.cat(piped))
print("weights of the passes:", *(f"{s:.4f}" for s in share))

# %% trap="15.2" role="repair"
claim("smallest factor of any pass's gradient in the sum, if no pass "
      "divides", share.min().item(), expected=0.25, within=0.001)

# %% [markdown] trap="15.2" role="repair"
# Rank 0 sends 32 values per digit, rank 1 sends their gradients back, and no weight's
# gradient is sent. (The shapes are sent once. Tied embeddings or a clipped norm would add
# calls.)

# %% trap="15.2" role="repair"
predicted = 64 * 32 * 4                           # digits, numbers, bytes
for rank in (0, 1):
    micro = [size for size in sent("send", rank) if size == predicted / 16]
    print(f"rank {rank}: predicted bytes {predicted}, on the tape",
          f"{sum(micro)} in {len(micro)} calls")

# %% trap="15.2" role="repair"
claim("number of bytes that both ranks together send for activations and "
      "their gradients",
      sum(s for rank in (0, 1) for s in sent("send", rank) if s == 512),
      expected=2 * 64 * 32 * 4)

# %% [markdown] trap="15.2" role="more" topics="the other numbers"
# The next claims compare the losses of the six runs and then the two gradients: the
# *mixed* one, which is divided after each pass, and the mean over the four passes.

# %% trap="15.2" role="more"
own = own_gradients(x64, y64)
mixed, meant = torch.tensor(kept) @ own, own.mean(0)

# %% trap="15.2" role="more"
claim("SGD: loss if each pass divides, divided by loss if each pass "
      "counts a quarter",
      ends["SGD, divided each pass"] / ends["SGD, a quarter each"],
      above=1.3)
claim("SGD: loss if each pass divides, divided by loss if all passes "
      "count equally little",
      ends["SGD, divided each pass"] / ends["SGD, as small"], expected=1,
      within=0.1)
claim("AdamW: loss if all passes count equally little, divided by loss if "
      "each counts a quarter",
      ends["AdamW, as small"] / ends["AdamW, a quarter each"], expected=1,
      within=0.02)
claim("norm of the mixed gradient, divided by the norm of the mean "
      "gradient", (mixed.norm() / meant.norm()).item(), below=0.85)
claim("cosine between the mixed gradient and the mean gradient",
      F.cosine_similarity(mixed, meant, 0).item(), below=0.99)

# %% trap="15.2" role="exercise" points=3 difficulty=2 minutes=12
def pass_losses(labels: list, divides: bool) -> list:
    """Compute the divisor for each micro-batch's summed loss in a step.

    labels[p][m]: the number of labels that count in micro-batch m of pass
    p, at least 1. Each pass has one or more micro-batches, and passes can
    have different numbers of micro-batches. The gradients of all passes add
    up in .grad, and at the end .grad has to be the gradient of the mean
    loss over all labels of the step. divides: if True, at the end of each
    pass the schedule divides everything in .grad by the number of
    micro-batches in this pass. If divides is False, no gradient is divided.

    Returns one float per micro-batch, nested like labels. labels is not
    changed.

    Example: [[3, 1], [4]] gives [[4.0, 4.0], [8.0]] if the schedule
    divides, else [[8.0, 8.0], [8.0]].
    """
    # BEGIN SOLUTION
    total, found = float(sum(map(sum, labels))), []
    for counts in reversed(labels):
        if divides:
            total /= len(counts)
        found.append([total] * len(counts))
    return found[::-1]
    # END SOLUTION

# %% [markdown] trap="15.2" role="hint"
# 1. If the schedule does not divide the gradients, divide each summed loss by the number
#    of labels in the whole step.
# 2. Suppose the schedule divides `.grad` after each pass. In the end, the gradient of
#    pass `p` has been divided by the number of micro-batches in `p`, and by the number
#    in every later pass. Divide your own divisor for `p` by all these numbers.
# 3. Go through the passes from the last to the first, and keep the running product.

# %% [markdown] trap="15.2" role="keep"
# **Keep:** Code that divides `.grad` divides everything in it, including the gradients
# of earlier passes. Divide the loss instead. **In your own code:** Run one step on the
# same rows, once as one pass and once as four passes, and compare the gradients.
# **Source:** Torch's
# [schedules.py](https://github.com/pytorch/pytorch/blob/00722e648b740f91d0e71494baa17891749fd291/torch/distributed/pipelining/schedules.py),
# where `scale_grads` is true by default, for a loss that is a mean. **Seen in the
# wild:** [torchtitan 1733](https://github.com/pytorch/torchtitan/issues/1733) describes
# "an exponential moving average, rather than a sum". In [DeepSpeed
# 8152](https://github.com/deepspeedai/DeepSpeed/issues/8152), each stage divided
# gradients that the next stage had already divided. In [torchtitan
# 2972](https://github.com/pytorch/torchtitan/issues/2972), no gradient was divided.

# %% [markdown] trap="15.3" role="situation" core=true fault="each rank counts its part of the sequence from zero" symptom="training loss near zero with context parallelism, and the saved model is bad on one GPU"
# ## A sequence for two
#
# Your sequences are too long for one GPU, so you cut each sequence in half: rank 0 holds
# the first half, and rank 1 the second. For most layers, which work token by token, the
# cut changes nothing. Attention looks at other tokens, so the ranks gather the keys and
# values of both halves, and a mask hides later tokens from each query.
#
# The task has a known answer: 16 random letters out of 20, and then the same 16 again. So
# in the second half, the next letter after any position was seen 15 positions earlier.
# You train a small transformer with learned position embeddings on two ranks, to a loss
# of 0.0 nats. Then you run the model on one GPU, on new, uncut sequences.

# %% trap="15.3" role="break" tags=["plumbing"]
class CopyNet(nn.Module):
    """A block over 20 letters: enter() before attention, leave() after."""
    def __init__(self, d=32):
        super().__init__()
        self.letter, self.place = nn.Embedding(20, d), nn.Embedding(32, d)
        self.norm, self.qkv = nn.RMSNorm(d), nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.RMSNorm(d), nn.Linear(d, 2 * d),
                                 nn.GELU(), nn.Linear(2 * d, d))
        self.head = nn.Sequential(nn.RMSNorm(d), nn.Linear(d, 20))

    def enter(self, part, at):
        """h of letters (B, n) at these positions; its query, key, value."""
        h = self.letter(part) + self.place(at)
        qkv = self.qkv(self.norm(h)).unflatten(-1, (3, 2, -1))
        return h, *qkv.permute(2, 0, 3, 1, 4)     # each (B, heads, n, d)

    def leave(self, h, seen):
        h = h + self.out(seen.transpose(1, 2).flatten(2))
        return self.head(h + self.mlp(h))

# %% trap="15.3" role="break" tags=["plumbing"]
def copy_rows(n):
    """n rows of 16 letters and the same 16 again, (n, 32) int64."""
    return torch.randint(20, (n, 16)).repeat(1, 2)

def copy_loss(net, tokens, cut, *attend):
    """Cross-entropy of the letters of the second half."""
    logits = torch.cat(logits_of(net, *cut(tokens), *attend), 1)
    return F.cross_entropy(logits[:, 15:-1].flatten(0, 1),
                           tokens[:, 16:].flatten())

def trained(cut, steps=120):
    """A net trained on batches cut this way, and its last loss."""
    net = CopyNet()
    adam = torch.optim.AdamW(net.parameters(), lr=2e-2)
    for _ in range(steps):
        adam.zero_grad()
        loss = copy_loss(net, copy_rows(32), cut)
        loss.backward()
        adam.step()
    return net.requires_grad_(False), loss.item()

# %% trap="15.3" role="break"
def seen_from(rank, q, k):
    """True where a query of this rank may look: at itself and before."""
    n, whole = q.shape[2], k.shape[2]
    return torch.ones(n, whole, dtype=torch.bool).tril(rank * n)

def attend_all(rank, q, keys, values):
    """Attention of a rank's queries to all keys up to their own."""
    k, v = torch.cat(keys, 2), torch.cat(values, 2)    # all_gather
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=seen_from(rank, q, k))

def logits_of(net, parts, positions, attend=attend_all):
    """Logits of each rank's tokens; a part and its positions per rank."""
    hs, qs, keys, values = zip(*map(net.enter, parts, positions))
    return [net.leave(h, attend(rank, q, keys, values))
            for rank, (h, q) in enumerate(zip(hs, qs))]

# %% trap="15.3" role="break"
def halves(tokens):
    """The tokens of two ranks, and their positions."""
    parts = tokens.chunk(2, 1)
    return parts, [torch.arange(part.shape[1]) for part in parts]

def unsplit(tokens):
    """The whole sequence on one GPU."""
    return [tokens], [torch.arange(tokens.shape[1])]

split_net, split_loss = trained(halves)

# %% trap="15.3" role="guess"
guess("15.3",
      "What is the model's loss on the uncut sequences, in nats?",
      choices=["0.0",
               "1.5",
               "3.0",
               "10"])

# %% trap="15.3" role="look"
fresh = copy_rows(256)
unsplit_loss = copy_loss(split_net, fresh, unsplit).item()
print(f"two ranks, last step: {split_loss:.2f} nats")
print(f"two ranks, new rows:  "
      f"{copy_loss(split_net, fresh, halves):.2f} nats")
print(f"one GPU, new rows:    {unsplit_loss:.2f} nats")

# %% trap="15.3" role="look"
measured("15.3", 3)

# %% trap="15.3" role="look"
claim("loss of the net trained on two ranks, on uncut sequences",
      unsplit_loss, above=6)

# %% [markdown] trap="15.3" role="why"
# `arange(part.shape[1])` counts from 0 on every rank. So a letter and its copy get the
# same position, and the network learns to look at the key whose position is one above the
# query's. On one GPU, the second half has positions never used in training, so their
# embeddings are still random.

# %% trap="15.3" role="why"
claim("number of embedding values at positions 16 to 31 that got a "
      "gradient", split_net.place.weight.grad[16:].count_nonzero().item(),
      expected=0)

# %% [markdown] trap="15.3" role="why"
# So the network attends to arbitrary positions and makes confident mistakes, with a
# higher loss than a uniform guess.

# %% trap="15.3" role="why" tags=["plumbing"]
def looks(net, cut):
    """Where positions 16 to 31 look, mean of heads and rows, (16, 32)."""
    seen = []

    def noting(rank, q, keys, values):
        k = torch.cat(keys, 2)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~seen_from(rank, q, k), -torch.inf)
        seen.append(scores.softmax(-1).mean((0, 1)))
        return attend_all(rank, q, keys, values)

    logits_of(net, *cut(fresh), noting)
    return torch.cat(seen)[16:].clamp(0, 1)

# %% trap="15.3" role="why"
draw_grids({"two ranks, as trained": looks(split_net, halves),
            "one GPU, as used later": looks(split_net, unsplit)},
           rows="positions 16 to 31", columns="positions 0 to 31",
           title="The learned rule holds only if ranks count from 0",
           alt="Two grids that show where the second half looks, over 32 "
               "positions. On two ranks, there is a sharp diagonal through "
               "the first half, at the letter to copy. On one GPU, the "
               "attention is smeared over many positions.")

# %% [markdown] trap="15.3" role="repair"
# Count positions in the whole sequence, so that each rank starts where its part begins:

# %% trap="15.3" role="repair"
def placed(tokens):
    """The tokens of two ranks, with their positions in the whole."""
    return tokens.chunk(2, 1), torch.arange(tokens.shape[1]).chunk(2)

placed_net, placed_loss = trained(placed)
apart = (torch.cat(logits_of(placed_net, *placed(fresh)), 1)
         - logits_of(placed_net, *unsplit(fresh))[0]).abs().max().item()
print(f"one GPU, new rows: {copy_loss(placed_net, fresh, unsplit):.2f} "
      f"nats; logits differ by {apart:.0e}")

# %% trap="15.3" role="repair"
claim("with the right positions: largest difference between logits on two "
      "ranks and on one GPU", apart, below=1e-3)

# %% [markdown] trap="15.3" role="repair"
# A cut into halves has a second flaw: with a kernel that skips hidden pairs, rank 1
# computes up to three times as many scores as rank 0, and rank 0 waits. So many
# frameworks give each rank *two* pieces, an early and a late one. Then positions, labels
# and mask all have to follow where each token came from:

# %% trap="15.3" role="repair"
corner = torch.ones(8, 8, dtype=torch.bool).tril()
zigzag = {0: [0, 1, 6, 7], 1: [2, 3, 4, 5]}
pairs = {"halves, rank 0": corner[:4], "halves, rank 1": corner[4:],
         **{f"pieces, rank {r}": corner[own] for r, own in zigzag.items()}}

# %% trap="15.3" role="repair"
draw_grids(pairs, rows="queries", columns="all keys",
           captions={name: f"{grid.sum()} pairs"
                     for name, grid in pairs.items()},
           title="An early and a late piece give equal work",
           alt="Four masks of four queries by eight keys. With halves, "
               "rank 0 computes 10 pairs and rank 1 computes 26. With "
               "positions 0, 1, 6, 7 on rank 0 and 2 to 5 on rank 1, each "
               "rank computes 18.")

# %% [markdown] trap="15.3" role="more" topics="a good model on ranks that count from 0 · is_causal · the lost label · rotary positions · bytes on the tape"
# Now take a model that was trained with the right positions, and make other mistakes
# when you run it. `is_causal=True` aligns its triangle with the upper left corner of
# the mask
# ([documentation](https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.bias.causal_upper_left.html)),
# so rank 1's queries are treated as the first queries of the sequence:

# %% trap="15.3" role="more"
def attend_causal(rank, q, keys, values):
    return F.scaled_dot_product_attention(
        q, torch.cat(keys, 2), torch.cat(values, 2), is_causal=True)

def attend_own(rank, q, keys, values):
    return F.scaled_dot_product_attention(
        q, keys[rank], values[rank], is_causal=True)

misread = {
    "from zero": copy_loss(placed_net, fresh, halves).item(),
    "is_causal": copy_loss(placed_net, fresh, placed, attend_causal).item(),
    "own keys": copy_loss(placed_net, fresh, placed, attend_own).item()}

# %% trap="15.3" role="more"
claim("loss of a good net if each rank counts positions from 0",
      misread["from zero"], above=5)
claim("loss of a good net with is_causal on gathered keys",
      misread["is_causal"], above=5)
claim("loss of a good net if each rank sees only its own keys",
      misread["own keys"], above=5)

# %% [markdown] trap="15.3" role="more"
# A position's label is the next token, which may be on a different rank. A loss that
# shifts the labels on each rank silently loses one label per cut. With two pieces per
# rank, the damage is worse: at the seam, a position gets a token from far away as its
# label, except on the last rank. Shift the labels before you cut the sequence.

# %% trap="15.3" role="more"
kept = sum(len(part[1:]) for part in torch.arange(32).chunk(2))
wrong_seam = [(a, b) for a, b in zip(zigzag[0], zigzag[0][1:])
              if b != a + 1]

# %% trap="15.3" role="more"
claim("number of labels, out of 31, that remain if each half shifts its "
      "own labels", kept, expected=30)
claim("number of rank 0's positions, out of 4, whose label is not the "
      "next token", len(wrong_seam), expected=1)

# %% [markdown] trap="15.3" role="more"
# Rotary positions are relative, but this helps only between two positions in the same
# half. In the next cell, a query at position 20 and a key at position 4 are 16 apart. On
# ranks that count from 0, both are at position 4, so they get the score of two tokens at
# the same position:

# %% trap="15.3" role="more"
def rotated(x, place, base=100.0):
    """Rotate x (D,) by the angles of its position."""
    angles = place * base ** (-torch.arange(len(x) // 2) / (len(x) // 2))
    a, b = x.chunk(2)
    return torch.cat([a * angles.cos() - b * angles.sin(),
                      a * angles.sin() + b * angles.cos()])

one_q, one_k = torch.randn(2, 16)
scores = {pair: (rotated(one_q, pair[0]) @ rotated(one_k, pair[1])).item()
          for pair in ((4, 4), (11, 7), (27, 23))}

# %% trap="15.3" role="more"
claim("same half: difference between the scores for positions 27 and 23 "
      "and for 11 and 7", abs(scores[27, 23] - scores[11, 7]), below=1e-3)
claim("across the cut: difference between the score counted from 0 and "
      "the unrotated score", abs(scores[4, 4] - (one_q @ one_k).item()),
      below=1e-3)

# %% [markdown] trap="15.3" role="more"
# The cut has a price: every layer gathers the keys and values of all ranks, here for 256
# rows of 32 positions, with width 32 and four bytes per value. With a `reduce_scatter`,
# the backward pass returns the gradients of keys and values, which take the same number
# of bytes. The weights are copies, so their gradients are summed over the ranks, and the
# loss is divided by the number of labels on all ranks.

# %% trap="15.3" role="more"
def gather_keys(mine):
    """Keys and values of all ranks; mine are those of one rank."""
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.cat(parts, 1).shape[1]

ranks.run(gather_keys, torch.zeros(256, 16, 2 * 32))
on_tape = sum(sent("all_gather"))

# %% trap="15.3" role="more"
claim("number of bytes on the tape for gathered keys and values", on_tape,
      expected=256 * 32 * 2 * 32 * 4)

# %% trap="15.3" role="exercise" points=4 difficulty=2 minutes=13
def local_view(tokens: torch.Tensor, labels: torch.Tensor, rank: int,
               world: int) -> tuple:
    """Compute (tokens, positions, labels, mask) for one rank's positions.

    tokens: (B, T) int64, T at least 1. labels: (B, T) int64, not shifted
    yet, with -100 where there is nothing to learn. tokens and labels are
    padded at the end to N, the next multiple of 2 * world: tokens with 0,
    labels with -100. N is T if T is such a multiple. The N positions are
    cut into 2 * world equal pieces. A rank, 0 to world - 1, holds n = N //
    world positions: piece rank, followed by piece 2 * world - 1 - rank.

    The result's tokens: (B, n) int64, the tokens at these positions.
    positions: (n,) int64, counted from 0 in the whole sequence. labels: (B,
    n) int64, for each position the label of the next position, whichever
    rank holds it, and -100 for the last position. mask: (n, N) bool, True
    at [i, j] if the rank's i-th position may look at position j: at itself
    and every earlier position, padded or not. Inputs are not changed.

    Example: tokens and labels [[1, 2, 3, 4, 5, 6, 7, 8]], rank 0, world 2:
    tokens [[1, 2, 7, 8]], positions [0, 1, 6, 7], labels [[2, 3, 8, -100]].
    """
    # BEGIN SOLUTION
    fill = -tokens.shape[1] % (2 * world)
    shifted = F.pad(labels[:, 1:], (0, fill + 1), value=-100)
    tokens = F.pad(tokens, (0, fill))
    places = torch.arange(tokens.shape[1])
    pieces = places.chunk(2 * world)
    own = torch.cat([pieces[rank], pieces[2 * world - 1 - rank]])
    return tokens[:, own], own, shifted[:, own], places <= own[:, None]
    # END SOLUTION

# %% [markdown] trap="15.3" role="hint"
# 1. Think of the whole sequence first: pad it, and give each position its label, the next
#    token. Only then cut the sequence.
# 2. Make one tensor `own` with the rank's positions, such as `[0, 1, 6, 7]`. This tensor
#    also picks tokens and labels: `tokens[:, own]`.
# 3. A position may look at all positions up to its own. Compare `own[:, None]` with
#    `torch.arange(N)`.

# %% [markdown] trap="15.3" role="keep"
# **Keep:** Compute positions, labels and mask on the whole sequence before you cut it,
# and cut them together with the tokens. **In your own code:** Run one batch both on one
# GPU and split over ranks, and compare the logits position by position. A validation set
# split in the same way cannot reveal the fault. **Source:** [Liu et al. 2023, "Ring
# Attention with Blockwise Transformers for Near-Infinite
# Context"](https://arxiv.org/abs/2310.01889). **Seen in the wild:** In
# [NVIDIA/Megatron-LM 5243](https://github.com/NVIDIA/Megatron-LM/pull/5243), rank 0 of
# two packed sequences got positions 0, 3, 0, 3 instead of 0, 3, 4, 7. In
# [NVIDIA-BioNeMo/bionemo-recipes
# 1449](https://github.com/NVIDIA-BioNeMo/bionemo-recipes/pull/1449), labels were shifted
# after the cut. In [huggingface/transformers
# 36607](https://github.com/huggingface/transformers/pull/36607), every cut lost one
# label.

# %% [markdown] role="concept"
# ## Tokens that travel
#
# The last cut divides a layer of *experts*, several small networks side by side. A
# *router* picks a few of these experts for each token, and only the picked experts are
# computed. So a layer can have ten times the weights without costing more work per token.
# The extra weights do cost memory, so each GPU holds only some of the experts. A token
# lives on one GPU, but its expert may be on another GPU. Weights are large and a token is
# a single row of values, so the token travels: one `all_to_all` takes the token to its
# expert (*dispatch*), and a second one brings the result back (*combine*). In the
# backward pass, the gradients make the same two trips.

# %% role="concept"
def swap(rows, leave):
    """leave[r] of the sorted rows go to rank r; returns what arrives."""
    arrive = torch.empty_like(leave)
    dist.all_to_all_single(arrive, leave)          # how many will come
    there = rows.new_empty(int(arrive.sum()), rows.shape[1])
    dist.all_to_all_single(there, rows, arrive.tolist(), leave.tolist())
    return there, arrive

def visit(tokens, owner, weight):
    """tokens (n, d) of this rank, each through its owner's expert."""
    me = dist.get_rank()
    order = owner[me].argsort(stable=True)
    there, arrive = swap(tokens[me][order], owner[me].bincount(minlength=2))
    back, _ = swap(there @ weight[me].T, arrive)
    return back[order.argsort()], len(there)

# %% role="concept"
homes = torch.randn(2, 6, 8)                       # six tokens on each rank
owner = torch.tensor([[0, 1, 1, 0, 1, 1], [1, 1, 1, 0, 1, 1]])
two_experts = torch.randn(2, 8, 8)
visited = ranks.run(visit, homes, owner, two_experts, uses=(swap,))
at_home = torch.einsum("rnd,rned->rne", homes, two_experts[owner])
rows_sent = sent("alltoall_base_", rank=1)[1::2]   # without the counts
print("tokens at the experts:", [n for _, n in visited])
print("tape of rank 1, rows there and back:", rows_sent, "bytes")

# %% role="concept"
claim("largest gap between the experts' output on two ranks and in one "
      "process",
      max((visited[r][0] - at_home[r]).abs().max() for r in (0, 1)),
      below=1e-4)
claim("number of bytes on rank 1's tape for nine rows of eight values, "
      "sent there and back", sum(rows_sent), expected=2 * 9 * 8 * 4)

# %% [markdown] role="concept"
# The tape records either what a rank passes in or what it receives, whichever is larger.
# The tape also counts rows that do not leave their rank. On paper, with `n` tokens per
# GPU, `k` experts per token, width `d` and `b` bytes per value, each trip moves `n · k ·
# d · b` bytes. Each layer makes four such trips per step. If the load is even, `1 -
# 1/GPUs` of the bytes leave the GPU. No rank continues until the busiest expert is done:
# in the run above, one rank computes three rows while the other has nine.

# %% [markdown] trap="15.4" role="situation" core=true fault="the one chosen expert's weight is divided by itself" symptom="a mixture of experts with one expert a token is hardly better than one dense layer; the router's gradient is about 1e-8"
# ## Four experts, one per token
#
# For each token, a router gives every expert of a layer a score. A softmax turns the
# scores into weights. The `k` experts with the largest weights are computed, and their
# outputs are added, each multiplied by its weight. Your code was written for two experts
# per token. It divides the two weights by their sum, so that they add up to one. You set
# `k` to one, so that only one expert per token has to be computed.
#
# Your tokens are rows of 16 values. There are four kinds of token, distinguished by a
# mark in four of the values. Each kind needs a different linear map. One layer cannot
# represent four maps, but four experts can. You compare the four experts with a mixture
# of *one* expert, which is an ordinary layer.

# %% trap="15.4" role="break"
class Routed(nn.Module):
    """x (N, 16) through k experts: output, probabilities, choice."""

    def __init__(self, experts, k, weigh):
        super().__init__()
        self.k, self.weigh = k, weigh
        self.router = nn.Linear(16, experts, bias=False)
        self.experts = nn.Parameter(torch.randn(experts, 16, 16) / 4)

    def forward(self, x):
        chances = self.router(x).softmax(-1)              # (N, experts)
        top, chosen = chances.topk(self.k)                # (N, k)
        every = torch.einsum("nd,eod->neo", x, self.experts)
        rows = torch.arange(len(x))[:, None]
        out = self.weigh(top)[..., None] * every[rows, chosen]
        return out.sum(1), chances, chosen

# %% trap="15.4" role="break"
def divided(top):
    """Weights (N, k) that add up to one."""
    return top / top.sum(-1, keepdim=True)

# %% trap="15.4" role="break"
four_maps = torch.randn(4, 16, 16) / 4

def four_kinds(n):
    """Tokens (n, 16), their targets (n, 16), their kinds (n,)."""
    kind = torch.randint(4, (n,))
    x = torch.randn(n, 16)
    x[:, :4] = 0.3 * x[:, :4] + 1.2 * F.one_hot(kind, 4)
    return x, torch.einsum("nij,nj->ni", four_maps[kind], x), kind

# %% trap="15.4" role="break"
def taught(net):
    """The net after 300 steps of AdamW on new tokens."""
    adam = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(300):
        x, wanted, _ = four_kinds(256)
        adam.zero_grad()
        F.mse_loss(net(x)[0], wanted).backward()
        adam.step()
    return net

# %% trap="15.4" role="break"
x, wanted, kind = four_kinds(4000)

@torch.no_grad()
def lost(net):
    return F.mse_loss(net(x)[0], wanted).item()

single = lost(taught(Routed(1, 1, divided)))
start = Routed(4, 1, divided)
net = taught(copy.deepcopy(start))

# %% trap="15.4" role="guess"
guess("15.4",
      "How large is the loss with four experts, as a percentage of the "
      "loss with one expert?",
      choices=["about 90 %",
               "about 50 %",
               "about 25 %",
               "about 5 %"])

# %% trap="15.4" role="look" tags=["varies-by-cpu"]
percent = 100 * lost(net) / single
print(f"one layer {single:.3f}, four experts {lost(net):.3f}: "
      f"{percent:.0f} %")

# %% trap="15.4" role="look"
measured("15.4", 0)

# %% trap="15.4" role="look"
claim("four experts with divided weights: loss as a fraction of one "
      "layer's loss", percent / 100, above=0.7, below=1.1)

# %% [markdown] trap="15.4" role="why"
# Two paths lead from the router to the loss. The first path is *which* expert is chosen,
# but this is an index, and an index has no gradient. The second path is *how much* the
# expert counts, its weight. With one expert per token, the weight divided by the sum is
# one, whatever the router says. So the router stays near its random start, and each
# expert gets tokens of every kind.

# %% trap="15.4" role="why" tags=["plumbing"]
def router_pull(k, weigh):
    """Norm of the task's gradient at the router of a fresh mixture."""
    fresh = copy.deepcopy(start)
    fresh.k, fresh.weigh = k, weigh
    F.mse_loss(fresh(x)[0], wanted).backward()
    return fresh.router.weight.grad.norm().item()

def plain(top):
    """The weights of the softmax, unchanged."""
    return top

pull, alive = router_pull(1, divided), router_pull(1, plain)

# %% trap="15.4" role="why"
draw_tree({"router": f"gradient {pull:.0e}", "which": "an index",
           "how much": "p / p = 1", "experts": "learn", "loss": ""},
          [("router", "which"), ("router", "how much"),
           ("which", "loss"), ("how much", "loss"), ("experts", "loss")],
          cuts=[("router", "which"), ("router", "how much")],
          marks=["how much"],
          title="Both wires of the router are cut",
          alt="A graph from the router and the experts down to the loss. "
              "From the router one wire goes through 'which', an index, "
              "and the other through 'how much', which is p over p, one. "
              "Both wires are crossed out. The experts' wire is intact.")

# %% trap="15.4" role="why"
claim("router's gradient with divided weights, relative to the one with "
      "undivided weights", pull / alive, below=1e-4)

# %% [markdown] trap="15.4" role="repair"
# With one expert per token, use the softmax weight as it is. Testing whether the router
# has a gradient does not reveal the fault. The broken router has a gradient that is
# neither `None` nor exactly zero, but it is only rounding error.

# %% trap="15.4" role="repair" tags=["varies-by-cpu"]
switch = copy.deepcopy(start)
switch.weigh = plain
taught(switch)
print(f"one layer {single:.3f}, divided {lost(net):.3f}, "
      f"not divided {lost(switch):.3f}")

# %% trap="15.4" role="repair" tags=["plumbing"]
@torch.no_grad()
def who_serves(net):
    """Fraction of each kind's tokens that go to each expert, (4, 4)."""
    first = net(x)[2][:, 0]
    table = torch.zeros(4, 4).index_put_(
        (kind, first), torch.ones(len(x)), accumulate=True)
    return table / table.sum(1, keepdim=True)

def sorted_share(net):
    """Fraction of tokens whose expert serves mostly their kind."""
    return who_serves(net).amax(0).sum().item() / 4

# %% trap="15.4" role="repair"
draw_grids({"divided": who_serves(net), "not divided": who_serves(switch)},
           rows="kinds", columns="experts", values=True,
           title="A router that learns gives each kind an expert",
           alt="Two tables of four kinds by four experts. On the left, the "
               "fractions are spread over all cells. On the right, most "
               "tokens of a kind go to one expert.")

# %% trap="15.4" role="repair"
claim("four experts with undivided weights: loss as a fraction of one "
      "layer's loss", lost(switch) / single, below=0.55)

# %% [markdown] trap="15.4" role="more" topics="two experts per token · a small number in the sum · softmax over the chosen · which routers moved"
# With two experts per token, the divided weights still say which expert counts more, so
# the router learns. A small number added to the sum, to avoid a division by zero, lets a
# trickle of gradient through. A softmax over only the chosen scores is the same division,
# and for a single score, it returns one:

# %% trap="15.4" role="more" tags=["plumbing"]
stayed = gap(net.router.weight, start.router.weight)
moved = gap(switch.router.weight, start.router.weight)
pair = taught(Routed(4, 2, divided))

def leaky(top):
    """Weights that add up to a little less than one."""
    return top / (top.sum(-1, keepdim=True) + 1e-6)

trickle = router_pull(1, leaky)
dripped = copy.deepcopy(start)
dripped.weigh = leaky
with torch.random.fork_rng():
    taught(dripped)
chosen_alone = router_pull(1, lambda top: top.log().softmax(-1))

# %% trap="15.4" role="more"
claim("two experts per token with divided weights: loss as a fraction of "
      "one layer's loss", lost(pair) / single, below=0.55)
claim("router's gradient with 1e-6 added to the sum, relative to the one "
      "with undivided weights", trickle / alive, below=1e-3)
claim("router's gradient with softmax over the chosen, relative to the "
      "one with undivided weights", chosen_alone / alive, below=1e-4)
claim("with divided weights: change in the router over 300 steps, as a "
      "fraction of its norm", stayed, below=0.15)
claim("fraction of tokens whose expert mostly serves their kind, with "
      "divided weights", sorted_share(net), below=0.7)
claim("fraction of tokens whose expert mostly serves their kind, with "
      "undivided weights", sorted_share(switch), above=0.7)

# %% [markdown] trap="15.4" role="more"
# AdamW divides each gradient by its own size, so even such a trickle leads to full steps,
# while it is well above AdamW's `eps`. SGD does not rescale its gradients, and a trickle
# of 1e-8 is lost in rounding.

# %% trap="15.4" role="more"
claim("AdamW with 1e-6 added to the sum: loss as a fraction of one "
      "layer's loss", lost(dripped) / single, below=0.2)

# %% [markdown] trap="15.4" role="more"
# Without a small number in the sum, the router still moves a little, because AdamW scales
# up even rounding errors and applies weight decay. This toy model computes every expert
# and discards most results. Fast code gathers each expert's tokens before it computes
# their outputs. Many models' configurations say whether the weights are divided
# (`norm_topk_prob`). A model trained with the division has to run with it.

# %% [markdown] trap="15.4" role="folklore"
# **Told:** A router needs two experts per token, because a single expert has nothing to
# be compared with. **Measured:** One expert is enough if its weight is the router's
# probability for that expert. The softmax compares this expert with all others. (That a
# router needs two experts was an early conjecture. The paper below reports the conjecture
# and does without the second expert.)

# %% trap="15.4" role="folklore"
claim("with undivided weights: change in the router over 300 steps, as a "
      "fraction of its norm", moved, above=0.5)

# %% trap="15.4" role="exercise" points=3 difficulty=2 minutes=10
def route(logits: torch.Tensor, k: int, renorm: bool) -> tuple:
    """Compute (weights, experts) from a router's logits. Pick the k
    likeliest experts for each token.

    logits: (..., E) float32 or bfloat16, one per expert. The logits of a
    token all differ, and so do the token's probabilities in float32. k: 1
    to E. experts: (..., k) int64, the likeliest first. weights: (..., k)
    float32, computed in float32: the probability of each of these experts
    under the softmax over all E experts. With renorm, the weights are
    divided by their sum, so that they add up to 1. For k = 1, they are
    never divided, because a weight of 1 would give the router no gradient.
    The gradient of each weight flows to logits, including through the sum
    that divides it. Inputs are not changed.

    Example: logits [2., 1., 0.] and k 2 give weights [0.6652, 0.2447] and
    experts [0, 1]; with renorm, weights [0.7311, 0.2689].
    """
    # BEGIN SOLUTION
    weights, experts = logits.float().softmax(-1).topk(k, dim=-1)
    if renorm and k > 1:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, experts
    # END SOLUTION

# %% [markdown] trap="15.4" role="hint"
# 1. Convert to float32 first, then take the softmax over all experts. One expert's
#    probability depends on all the scores.
# 2. `topk` of the probabilities returns weights and experts in this order, and the
#    weights have a gradient.
# 3. Divide by the sum over the last axis, and keep that axis with length one. A single
#    weight divided by itself is 1, so do not divide for k = 1.

# %% [markdown] trap="15.4" role="keep"
# **Keep:** A router learns the task only through the weight of the chosen expert. If that
# weight is a constant, the task gives the router no gradient. **In your own code:**
# Before the first step, compute the gradient of the *task* loss alone. Print its norm at
# the router next to its norm at the experts, for each `k` that a configuration may set.
# **Source:** [Fedus et al. 2021, "Switch
# Transformers"](https://arxiv.org/abs/2101.03961), section 2.1: the gate value in the
# output makes the router differentiable. **Seen in the wild:** In [jingyaogong/minimind
# 858](https://github.com/jingyaogong/minimind/issues/858), four experts with 198 million
# weights were worse than a dense model with 64 million. In [davidmrau/mixture-of-experts
# 27](https://github.com/davidmrau/mixture-of-experts/issues/27), the softmax ran over the
# one chosen expert; the proposed fix divides by the sum of the weights.

# %% [markdown] trap="15.5" role="situation" fault="a balance loss made of counts has no gradient" symptom="the load balancing loss is printed and rises, experts stay idle, whatever its weight"
# ## Eight experts, all at work
#
# The hidden states of a real model share a common direction, so a new router prefers the
# same experts for most tokens. The chosen experts learn, so they are chosen even
# more often. "If every GPU holds one expert," your notes say, "all GPUs wait for the
# busiest one." A *balance loss* should prevent this: square each expert's fraction of
# the load, sum over the experts, and multiply by the number of experts. An even load
# gives a balance loss of 1, the smallest possible value.
#
# Each token visits two of the eight experts, so an even load is 25 % of the tokens per
# expert. You add the balance loss to the task's loss, with a weight of 5, and print its
# value.

# %% trap="15.5" role="break"
def squared(chances, chosen):
    """1 if all experts are used equally, and more if they are not."""
    experts = chances.shape[1]
    share = F.one_hot(chosen, experts).float().mean((0, 1))
    return experts * (share * share).sum()

shared, mixed = torch.randn(16), torch.randn(16, 16) / 4

def alike(n):
    """Tokens (n, 16) with a common direction, and their targets."""
    x = shared + torch.randn(n, 16)
    return x, torch.tanh(x @ mixed.T)

# %% trap="15.5" role="break"
def balanced(rule, weight):
    """A mixture after 200 steps, and the values of the rule."""
    torch.manual_seed(SEED + 1)
    crowd, printed = Routed(8, 2, divided), []
    adam = torch.optim.AdamW(crowd.parameters(), lr=1e-2)
    for _ in range(200):
        x, wanted = alike(256)
        out, chances, chosen = crowd(x)
        even = rule(chances, chosen)
        adam.zero_grad()
        (F.mse_loss(out, wanted) + weight * even).backward()
        adam.step()
        printed.append(even.item())
    return crowd, printed

# %% trap="15.5" role="break"
tokens = alike(4000)[0]

@torch.no_grad()
def loads(crowd):
    """Fraction of the tokens that visit each expert; they add up to k."""
    chosen = crowd(tokens)[2]
    return F.one_hot(chosen, 8).float().sum(1).mean(0)

crowd, printed = balanced(squared, 5)

# %% trap="15.5" role="guess" quoted="right"
guess("15.5",
      "You repeat the training without the balance loss. How much "
      "do the router's final parameters differ between the two runs?",
      choices=["not by a single bit",
               "a little, enough to make the load somewhat more even",
               "a lot, enough to make the load nearly even",
               "so much that, with the balance loss, the task is no longer "
               "learned"])

# %% trap="15.5" role="look"
percent = 100 * loads(crowd).max().item()
print(f"balance: {printed[0]:.2f} at first, {printed[-1]:.2f} at last")

# %% trap="15.5" role="look"
plot_columns({f"{e}": load for e, load in enumerate(loads(crowd).tolist())},
             xlabel="expert", ylabel="fraction of the tokens that visit it",
             form=".2f", reference=(0.25, "even"),
             title="Most experts are idle",
             alt="Eight columns, one per expert, and a dashed line at "
                 "0.25. A few columns are far above the line, one of them "
                 "at nearly 1; most are empty.")

# %% trap="15.5" role="look"
claim("fraction of tokens at the busiest expert, with squared counts and a "
      "weight of 5", percent / 100, above=0.5)

# %% [markdown] trap="15.5" role="why"
# A count is made from indices, and an index has no gradient. So the balance loss gives no
# parameter a gradient, and its weight does not matter. `backward` does not complain,
# because the task's part of the sum has a gradient. Without the balance loss, the trained
# mixture is the same, to the last bit.

# %% trap="15.5" role="why"
without, _ = balanced(squared, 0)
print("the loss has a gradient:",
      squared(*crowd(tokens)[1:]).requires_grad)

# %% trap="15.5" role="why"
measured("15.5", 0)

# %% trap="15.5" role="why"
claim("with squared counts: largest difference between routers with and "
      "without a balance loss",
      (crowd.router.weight - without.router.weight).abs().max(), expected=0)

# %% [markdown] trap="15.5" role="repair"
# One factor of the loss has to be something that the router can change: the *mean
# probability* of each expert. The count says how hard to push, and the probability is
# what gets pushed. The product of the two is the balance loss.

# %% trap="15.5" role="repair"
def counts_and_chances(chances, chosen):
    """The balance loss, with a gradient through the probabilities."""
    experts = chances.shape[1]
    share = F.one_hot(chosen, experts).float().mean((0, 1))
    return experts * (share * chances.mean(0)).sum()

mended, falling = balanced(counts_and_chances, 0.5)
print(f"balance: {falling[0]:.2f} at first, {falling[-1]:.2f} at last")

# %% trap="15.5" role="repair" tags=["plumbing"]
def along_experts(chances, chosen):
    """The mean over the wrong axis: a number per token, not per expert."""
    share = F.one_hot(chosen, 8).float().mean((0, 1))
    return 8 * (share * chances.mean(1).mean()).sum()

constant, ones = balanced(along_experts, 0.5)
busiest = {name: loads(found).max().item() for name, found in {
    "no loss": without, "counts squared": crowd,
    "mean over experts": constant, "counts × chances": mended}.items()}

# %% trap="15.5" role="repair"
plot_columns(busiest, xlabel="balance loss", form=".2f",
             ylabel="fraction of the tokens at the busiest expert",
             reference=(0.25, "even"), marks=["counts squared"],
             title="Only one of three losses evens out the load",
             alt="Four columns: without a loss, with counts squared, with "
                 "a mean over the wrong axis, and with counts times "
                 "chances. The first three columns are equal and high; the "
                 "last is near the dashed line at 0.25.")

# %% trap="15.5" role="repair"
claim("fraction of tokens at the busiest expert, with counts times "
      "probabilities", busiest["counts × chances"], below=0.48)

# %% [markdown] trap="15.5" role="more" topics="other ways to balance · 1.00 for ever · below one · who waits · pads"
# Two other methods also balance the load. One is a loss of squared mean probabilities
# (but a router's probabilities may be even while its counts are uneven). The other needs
# no loss: each expert's score gets a bias, which is raised for experts chosen too rarely.
# On several ranks, this bias needs the counts of all ranks.
#
# A balance loss that takes a mean over the wrong axis is harder to detect. Its value is
# 1.00, the value of an even load, from the first step to the last. Even the right formula
# is no reliable measure: its value can fall below 1 when counts and probabilities
# disagree. Print the counts themselves.

# %% trap="15.5" role="more" tags=["plumbing"]
p = torch.tensor([[0.51, 0.49]] * 3 + [[0.01, 0.99]])
under = counts_and_chances(p, p.argmax(1, keepdim=True)).item()
idle = (loads(crowd) < 0.01).sum().item()
idle_mended = (loads(mended) < 0.01).sum().item()

def chances_alone(chances, chosen):
    return chances.shape[1] * chances.mean(0).square().sum()

by_chances = loads(balanced(chances_alone, 0.5)[0]).max().item()

# %% trap="15.5" role="more"
claim("largest distance of the printed balance loss from 1, with a mean "
      "over experts", max(abs(one - 1) for one in ones), below=1e-3)
claim("fraction of tokens at the busiest expert, with a mean over experts",
      busiest["mean over experts"], above=0.5)
claim("balance loss when counts and probabilities disagree", under,
      below=0.9)
claim("fraction of tokens at the busiest expert, with squared mean "
      "probabilities", by_chances, below=0.48)
claim("number of idle experts, out of eight, with squared counts", idle,
      above=1.5)
claim("number of idle experts, out of eight, with counts times "
      "probabilities", idle_mended, below=1.5)

# %% [markdown] trap="15.5" role="more"
# With one expert per GPU, the layer is done when the busiest expert is done. To a router,
# a *pad* is a token like any other, so pads count as load. An expert may have a fixed
# number of slots (a *capacity*), given out first come, first served. Then pads on the
# left take the slots, and the layer returns zeros for a real token without a slot.

# %% trap="15.5" role="more" tags=["plumbing"]
def refused(pads, masked, n=512, experts=4, spare=1.25):
    """Fraction of the real tokens without a slot; pads come first."""
    real = torch.arange(n) >= pads
    ids = torch.randint(experts, (n,))
    ids[~real] = 0                             # all pads are the same
    hot = F.one_hot(ids, experts) * (real[:, None] if masked else 1)
    places = int(spare * hot.sum() / experts)
    turn = (hot.cumsum(0) * hot).sum(1)
    return ((turn > places) & real).sum().item() / real.sum().item()

slower = loads(crowd).max().item() / 0.25

# %% trap="15.5" role="more"
claim("time of the layer with squared counts, divided by its time with an "
      "even load", slower, above=2)
claim("fraction of real tokens without a slot, with 300 pads among 512 "
      "tokens", refused(300, False), above=0.12)
claim("fraction of real tokens without a slot, with the 300 pads masked "
      "before slots are given", refused(300, True), below=0.1)

# %% [markdown] trap="15.5" role="folklore"
# **Told:** A balance loss of 1 shows that the router works. **Measured:** If the weight
# of a token's single expert is always one, only the balance loss trains the router. The
# loads are even and the balance loss is 1.00, but every kind of token goes to every
# expert.

# %% trap="15.5" role="folklore" tags=["plumbing"]
even_only = copy.deepcopy(start)               # four experts, divided
adam = torch.optim.AdamW(even_only.parameters(), lr=1e-2)
for _ in range(300):
    rows, wanted_rows, _ = four_kinds(256)
    out, chances, chosen = even_only(rows)
    adam.zero_grad()
    (F.mse_loss(out, wanted_rows)
     + 0.01 * counts_and_chances(chances, chosen)).backward()
    adam.step()
with torch.no_grad():
    at_rest = counts_and_chances(*even_only(x)[1:]).item()

# %% trap="15.5" role="folklore"
claim("balance loss of a router that only the balance loss trains", at_rest,
      expected=1, within=0.03)
claim("fraction of tokens whose expert mostly serves their kind, with the "
      "balance loss alone", sorted_share(even_only), below=0.7)

# %% trap="15.5" role="exercise" points=3 difficulty=2 minutes=12
def balance(p: torch.Tensor, chosen: torch.Tensor,
            real: torch.Tensor) -> torch.Tensor:
    """Measure how unevenly a router uses its experts, as a loss that the
    router can lower: E times the sum over experts of fraction times mean
    probability.

    p: (T, E) float32, the probabilities for each token; each row sums to 1.
    chosen: (T, k) int64, the k different experts of each token, chosen by
    any rule. real: (T,) bool, False for padding, which does not count, and
    True for at least one token. An expert's fraction, which can be 0, is
    its share of all choices that the real tokens make. The mean probability
    is taken over the real tokens, for all E experts.

    Returns a float32 tensor of shape (). The result is 1 if fractions and
    mean probabilities are even, for every E and k. The gradient flows to p
    through the mean probabilities; the fractions are constants. Inputs are
    not changed.

    Example: p [[0.8, 0.2], [0.6, 0.4]], chosen [[0], [1]], real [True,
    False] give 1.6, and its gradient is [[2., 0.], [0., 0.]].
    """
    # BEGIN SOLUTION
    p, chosen = p[real], chosen[real]
    experts = p.shape[1]
    counts = torch.bincount(chosen.flatten(), minlength=experts)
    share = counts / chosen.numel()
    return experts * (share * p.mean(0)).sum()
    # END SOLUTION

# %% [markdown] trap="15.5" role="hint"
# 1. `p[real]` and `chosen[real]` are the rows of the real tokens. Count how many times
#    each of the E experts occurs in these rows of `chosen`. `torch.bincount` needs
#    `minlength`, or the last experts can be missing.
# 2. Divide by the number of choices, k for each real token, so that the fractions add up
#    to 1 for every k.
# 3. The mean probability is a mean over the real tokens, with one number per expert.
#    Multiply fraction and mean expert by expert, sum over the experts, and multiply by
#    E.

# %% [markdown] trap="15.5" role="keep"
# **Keep:** A balance loss made of counts needs a second factor: counts show how uneven
# the load is, but only the mean router probabilities have a gradient. **In your own
# code:** Call `backward` on the balance loss *alone*. If it has no gradient, you get an
# error, or a gradient of nearly zero at the router. Then log the experts' loads, not the
# balance loss. **Source:** [Fedus et al. 2021, "Switch
# Transformers"](https://arxiv.org/abs/2101.03961), equations 4 to 6: the vector of
# probabilities has a gradient, but the vector of counts has none. **Seen in the wild:**
# In [NVIDIA-NeMo/Automodel 1408](https://github.com/NVIDIA-NeMo/Automodel/issues/1408),
# the gradient never reached the router. In [huggingface/transformers
# 28093](https://github.com/huggingface/transformers/issues/28093), the loss was a
# constant.

# %% [markdown] trap="15.6" role="situation" fault="a checkpointed block draws other numbers when it runs again" symptom="training is worse with activation checkpointing, though the first loss is the same; BatchNorm sees each batch twice"
# ## Less kept, more computed
#
# The backward pass needs the values computed in each layer, and with many tokens, these
# values take most of the memory. *Activation checkpointing* keeps only each block's input
# and runs the block a second time when the backward pass reaches it. You wrap six blocks
# in activation checkpointing.
#
# Each block drops half of its activations. Ranks with different rows should not drop the
# same activations (tensor-parallel ranks should, in layers that every rank holds whole),
# so each block draws its masks from its own generator. You compare the first step with
# and without checkpoints. The two losses agree to the last digit. You also compute the
# cosine of the two gradients.
#
# "Torch restores the random state before the second run," says the description of the
# pull request. "So the gradient is the same as well."

# %% trap="15.6" role="break"
class OwnDrop(nn.Module):
    """Dropout of half the activations, from a generator of its own."""

    def __init__(self, seed):
        super().__init__()
        self.dice = torch.Generator().manual_seed(seed)

    def forward(self, h):
        keep = torch.rand(h.shape, generator=self.dice) < 0.5
        return 2 * h * keep

# %% trap="15.6" role="break" tags=["plumbing"]
class DropBlock(nn.Module):
    """h (B, 32) plus the output of an MLP with dropout."""

    def __init__(self, seed, d=32):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), OwnDrop(seed),
            nn.Linear(2 * d, d), OwnDrop(seed + 1))

    def forward(self, h):
        return h + self.layers(h)

# %% trap="15.6" role="break" tags=["plumbing"]
class DropNet(nn.Module):
    """Six blocks; run(block, h) calls each of them."""

    def __init__(self, rank):
        super().__init__()
        self.inlet, self.head = nn.Linear(16, 32), nn.Linear(32, 10)
        self.blocks = nn.ModuleList(
            DropBlock(100 * rank + 2 * i) for i in range(6))

    def forward(self, x, run):
        h = self.inlet(x)
        for block in self.blocks:
            h = run(block, h)
        return self.head(h)

# %% trap="15.6" role="break" tags=["plumbing"]
drop_x = torch.randn(1024, 16)
teacher = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 10))
drop_y = teacher(2 * drop_x).argmax(1)
untrained = DropNet(rank=1)

def drop_steps(run, steps=80):
    """The loss of each step, and the gradient of the first."""
    net, losses = copy.deepcopy(untrained), []
    adam = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for step in range(steps):
        own = torch.arange(128) + 128 * (step % 8)
        loss = F.cross_entropy(net(drop_x[own], run), drop_y[own])
        adam.zero_grad()
        loss.backward()
        if step == 0:
            first = flat(p.grad for p in net.parameters())
        adam.step()
        losses.append(loss.item())
    return losses, first

# %% trap="15.6" role="break"
def plainly(block, h):
    return block(h)

def again(block, h):
    return checkpoint(block, h, use_reentrant=False)

losses_all, gradient_all = drop_steps(plainly)    # all is kept
losses_few, gradient_few = drop_steps(again)      # inputs are kept

# %% trap="15.6" role="guess" quoted="wrong"
guess("15.6",
      "What is the cosine between the two gradients of the first step?",
      choices=["about 0",
               "about 0.6",
               "about 0.95",
               "exactly 1"])

# %% trap="15.6" role="look"
cosine = F.cosine_similarity(gradient_few, gradient_all, 0).item()
print(f"first loss: {losses_few[0]:.6f} and {losses_all[0]:.6f}")
print(f"cosine of the gradients: {cosine:.2f}")

# %% trap="15.6" role="look"
measured("15.6", 1)

# %% trap="15.6" role="look"
claim("cosine between the gradients with and without checkpoints", cosine,
      above=0.35, below=0.85)

# %% [markdown] trap="15.6" role="why"
# The second run calls your block again, but your generator is not torch's. `checkpoint`
# restores the state of torch's own generators, on the CPU and on one kind of device.
# `self.dice` is not one of these generators, so it keeps advancing, and the second run
# draws different masks. So you compute the loss with one network and its gradient with a
# different one. Here, torch compares the number, shapes, dtypes and devices of the kept
# tensors, never their values.

# %% trap="15.6" role="why"
one = OwnDrop(7)
masks = [(one(torch.ones(8, 24)) > 0).float() for _ in range(2)]

# %% trap="15.6" role="why"
draw_grids({"first run: the loss": masks[0],
            "second run: the gradient": masks[1]},
           marks={"second run: the gradient": masks[0] != masks[1]},
           rows="rows", columns="elements of h",
           legend="kept in one run and dropped in the other",
           title="Half of the elements are dropped in one run only",
           alt="Two masks of eight rows and 24 columns, one for the first "
               "run and one for the second. About half of the second "
               "mask's cells are crossed, because they differ from the "
               "first mask.")

# %% [markdown] trap="15.6" role="repair"
# Everything that a block reads besides its input has to be the same in the second run.
# `context_fn` gives torch two contexts, one for each run. The second context sets the
# generators back to their old states and afterwards restores the states that it found:

# %% trap="15.6" role="repair"
@contextmanager
def as_they_stood(dice, start):
    """Set the generators to the states of start; undo that afterwards."""
    now = [die.get_state() for die in dice]
    for die, state in zip(dice, start):
        die.set_state(state)
    try:
        yield
    finally:                 # torch ends the second run by an exception
        for die, state in zip(dice, now):
            die.set_state(state)

# %% trap="15.6" role="repair"
def replayed(block, h):
    dice = [m.dice for m in block.modules() if hasattr(m, "dice")]
    start = [die.get_state() for die in dice]
    return checkpoint(block, h, use_reentrant=False, context_fn=lambda: (
        nullcontext(), as_they_stood(dice, start)))

losses_back, gradient_back = drop_steps(replayed)
back = F.cosine_similarity(gradient_back, gradient_all, 0).item()
print(f"cosine of the gradients: {back:.4f}")

# %% trap="15.6" role="repair"
claim("with the generators restored: cosine between the gradients with "
      "and without checkpoints", back, above=0.999)

# %% trap="15.6" role="repair" tags=["plumbing"]
def smooth(losses):
    """Means over 8 steps, which are one epoch."""
    return torch.tensor(losses).view(-1, 8).mean(1).tolist()

runs_of = {"all kept": losses_all, "checkpoints": losses_few,
           "generators restored": losses_back}
costs = smooth(losses_few)[-1] - smooth(losses_all)[-1]

# %% trap="15.6" role="repair"
plot_lines(range(1, 11), {name: smooth(run) for name, run in
                          runs_of.items() if name != "all kept"},
           title="The same masks twice, and training goes faster",
           xlabel="epoch", ylabel="training loss (nats)",
           alt="Two lines of training loss over ten epochs. At first, the "
               "two lines are equal. Then the line with the generators "
               "restored falls faster, and the line with plain checkpoints "
               "stays above it.")

# %% [markdown] trap="15.6" role="more" topics="what it costs · a flag · BatchNorm counts twice · halving the momentum"
# A noisy gradient still reduces the loss, so this fault raises the final loss but causes
# no crash. Torch also has a flag that makes ordinary dropout behave this way:
# `preserve_rng_state=False`. This setting saves a little time and is meant for blocks
# that draw no random numbers.

# %% trap="15.6" role="more"
def ordinary(run):
    """Gradient of one block with nn.Dropout, called through run."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.5),
                          nn.Linear(64, 10))
    F.cross_entropy(run(block, drop_x), drop_y).backward()
    return flat(p.grad for p in block.parameters())

flag = {keep: F.cosine_similarity(ordinary(
    lambda block, h: checkpoint(block, h, use_reentrant=False,
                                preserve_rng_state=keep)),
    ordinary(plainly), 0).item() for keep in (True, False)}

# %% trap="15.6" role="more"
claim("last epoch's loss with checkpoints minus the same loss without "
      "checkpoints", costs, above=0)
claim("cosine between the gradients with nn.Dropout and "
      "preserve_rng_state=True", flag[True], above=0.999)
claim("cosine between the gradients with nn.Dropout and "
      "preserve_rng_state=False", flag[False], below=0.99)

# %% [markdown] trap="15.6" role="more"
# The second run also repeats everything else, until it has the last tensor that
# `backward` needs. A BatchNorm that moves its running mean a tenth of the way does so
# twice, and the running mean of values around 5 becomes 0.95 instead of 0.5. Outputs and
# gradients are right, because training does not read the running mean. But evaluation
# uses the running mean, so evaluation changes. Other states that the block updates can be
# wrong as well: counts of calls and of tokens per expert, or the scale of an 8-bit
# format. You will often read that you should halve the momentum. If you do, the running
# mean becomes 5 times 1 - 0.95², but the layer still counts two batches.

# %% trap="15.6" role="more"
def normed(run, momentum=0.1):
    """Batches counted and running mean after one step."""
    block = nn.BatchNorm1d(16, momentum=momentum)
    h = (drop_x - drop_x.mean(0) + 5).requires_grad_()
    run(block, h).square().sum().backward()
    return (block.num_batches_tracked.item(),
            block.running_mean.mean().item())

seen_once, seen_twice = normed(plainly), normed(again)
seen_halved = normed(again, momentum=0.05)

# %% trap="15.6" role="more"
claim("running mean after one step, without a checkpoint", seen_once[1],
      expected=0.5, within=1e-4)
claim("running mean after one step, with a checkpoint", seen_twice[1],
      expected=0.95, within=1e-4)
claim("number of batches counted after one step, with a checkpoint",
      seen_twice[0], expected=2)
claim("running mean after one step, with a checkpoint and half the "
      "momentum", seen_halved[1], expected=5 * (1 - 0.95 ** 2), within=1e-4)

# %% [markdown] trap="15.6" role="more"
# `torch.func.functional_call` runs a module with other tensors in place of the module's
# own. If you copy the buffers before the first run, the second run changes only the
# copies and leaves no trace in the buffers:

# %% trap="15.6" role="more"
def on_copies(block, h):
    """A checkpoint whose second run uses copies of the buffers."""
    before = {name: b.clone() for name, b in block.named_buffers()}
    runs = []

    def run(h):
        runs.append(1)
        if len(runs) == 1:
            return block(h)
        return functional_call(block, dict(before), h)
    return checkpoint(run, h, use_reentrant=False)

# %% trap="15.6" role="more"
claim("number of batches counted after one step, with the second run on "
      "copies", normed(on_copies)[0], expected=1)

# %% trap="15.6" role="exercise" points=4 difficulty=3 minutes=18
def checkpointed(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Compute block(x) without keeping the block's inner values for the
    backward pass. In the backward pass, the block runs a second time, once
    for each call.

    After the call and again after backward, everything is as if block(x)
    had run once: the output, the gradients of x and of the block's
    parameters, the block's buffers and the state of every generator. block:
    a module that takes one tensor, made of any modules, in train or eval
    mode. x: float32, with or without requires_grad. The block may draw from
    torch's generator and from generators that are attributes of its
    modules. The block may read its buffers, which are tensors from the
    start, and change them, in place or by assigning a new tensor of any
    shape. Each call has one backward pass, and before it there may be
    further calls of the block and other draws.

    Example: after a call and its backward pass, an nn.BatchNorm1d has
    counted 1 batch.
    """
    # BEGIN SOLUTION
    dice = [value for module in block.modules()
            for value in vars(module).values()
            if isinstance(value, torch.Generator)]
    start = [die.get_state() for die in dice]
    buffers = {name: b.clone() for name, b in block.named_buffers()}
    runs = []

    def run(x):
        runs.append(1)
        if len(runs) == 1:
            return block(x)
        now = [die.get_state() for die in dice]
        for die, state in zip(dice, start):
            die.set_state(state)
        copies = {name: b.clone() for name, b in buffers.items()}
        try:
            return functional_call(block, copies, x)
        finally:
            for die, state in zip(dice, now):
                die.set_state(state)
    return checkpoint(run, x, use_reentrant=False)
    # END SOLUTION

# %% [markdown] trap="15.6" role="hint"
# 1. Give `checkpoint` a function of your own instead of the block. On the first run,
#    the function calls `block(x)`. On the second run, the function first restores the
#    state that the block had read on the first run, and then calls the block. Torch's
#    own generator is restored for you.
# 2. Before the first run, go through `block.modules()` and store `get_state()` of each
#    `torch.Generator` among `vars(module).values()`. Also store a clone of each buffer
#    in `block.named_buffers()`.
# 3. In the second run, set the generators back, and run `functional_call(block,
#    copies_of_the_buffers, x)`. In a `finally`, return the generators to where they
#    were before the second run, because other calls may have drawn in the meantime.

# %% [markdown] trap="15.6" role="keep"
# **Keep:** A checkpointed block, which runs twice, has to read the same values twice
# but change its state only once. **In your own code:** Take one step with checkpoints
# and one without, from the same state. Compare gradients and buffers, because the loss
# cannot show a difference. **Source:** [Chen et al. 2016, "Training Deep Nets with
# Sublinear Memory Cost"](https://arxiv.org/abs/1604.06174), and
# [torch.utils.checkpoint](https://docs.pytorch.org/docs/stable/checkpoint.html) on
# which states `checkpoint` restores. **Seen in the wild:** In [allenai/OLMo-core
# 828](https://github.com/allenai/OLMo-core/pull/828), the flag led to a loss of 2.495
# at step 150 with checkpoints, and of 2.195 without. In [NVIDIA-NeMo/Automodel
# 3247](https://github.com/NVIDIA-NeMo/Automodel/pull/3247), the experts' load was
# counted twice. [pytorch/pytorch
# 96136](https://github.com/pytorch/pytorch/issues/96136) reports the double update for
# BatchNorm and has been open since 2023.

# %% [markdown] trap="15.7" role="situation" fault="waiting for the slower rank is read as communication" symptom="the profiler shows much of each step in all_reduce on every rank, and a faster network changes nothing"
# ## What would a faster network gain?
#
# Two ranks train with data parallelism, on batches of uneven length. Over the four steps
# of a trace, both ranks get the same number of tokens. Each rank profiles itself, and
# `all_reduce` takes a third of the time in both tables.
#
# `torch.profiler` recorded the trace from two processes on one machine, which communicate
# through gloo. Each bar of the trace has a rank, a lane, a name, a start and an end, in
# ms. In each step, a rank runs `forward` and `backward`, calls `all_reduce` with all its
# gradients, receives the average, and runs its `update`.

# %% trap="15.7" role="break"
from dlsys_helpers.timelines import recorded_timeline

bars = recorded_timeline()
kinds = ("forward", "backward", "all_reduce", "update")
first = min(bar.start for bar in bars)
whole = max(bar.end for bar in bars) - first

def table(rank):
    """Fraction of the time by kind of bar, as in a profiler's table."""
    times = dict.fromkeys(kinds, 0)
    for bar in bars:
        kind = bar.name.split()[0]              # all_reduce 0, 1, 2, 3
        if bar.rank == rank and kind in times:
            times[kind] += bar.end - bar.start
    return {kind: time / whole for kind, time in times.items()}

# %% trap="15.7" role="guess"
guess("15.7",
      "By what percentage would the four recorded steps be shorter if "
      "sending data between the ranks took no time at all?",
      choices=["0 %",
               "about 7 %",
               "about 20 %",
               "about 33 %"])

# %% [markdown] trap="15.7" role="look"
# Replay the steps: each rank computes for as long as in the recording, both ranks
# continue as soon as the later rank has called `all_reduce`, and the network takes no
# time.

# %% trap="15.7" role="look"
def work(rank):
    """ms from the end of one all_reduce to the call of the next."""
    calls = [b for b in bars if b.rank == rank and b.lane == "network"]
    ends = [first, *(call.end for call in calls)]
    return [call.start - end for call, end in zip(calls, ends)]

tail = first + whole - max(b.end for b in bars if b.lane == "network")
without = sum(map(max, work(0), work(1))) + tail
for rank in (0, 1):
    print(f"rank {rank}: ", *(f"{kind} {share:.0%} "
                              for kind, share in table(rank).items()))
print(f"{whole:.0f} ms, without a network {without:.0f} ms")

# %% trap="15.7" role="look"
measured("15.7", 1)

# %% trap="15.7" role="look"
claim("fraction of the time that would be saved if the network took no "
      "time", 1 - without / whole, above=0.04, below=0.12)

# %% [markdown] trap="15.7" role="why"
# An `all_reduce` cannot end before every rank has called it. Until then, the rank that
# calls first mostly waits, and the profiler shows this wait as communication. In this
# trace, each rank has the long batch in half of the steps. So both ranks wait, their
# tables agree, and neither looks slow over all steps.

# %% trap="15.7" role="why"
draw_lanes({f"rank {rank}, {lane}": [
                (b.start, b.end, b.name) for b in bars if b.rank == rank
                and b.lane == lane and b.name.split()[0] in kinds[:3]]
            for rank in (0, 1) for lane in ("compute", "network")},
           title="A long all_reduce here is a long backward there",
           alt="Four lanes of time: compute and network of two ranks. In "
           "each of four steps, one rank computes for longer. The other's "
           "all_reduce begins early and is long, and both end together.")

# %% [markdown] trap="15.7" role="repair"
# Put the traces of all ranks on one clock, and measure the communication from the *last*
# rank's call on. Before you pay for a cure, simulate it. Suppose that a batch's time is
# proportional to its length. With equal batches, each rank then computes for the mean of
# the two times in each step, and neither waits.

# %% trap="15.7" role="repair"
def transfers():
    """ms of each all_reduce, from the last rank's call to the end."""
    for k in range(4):
        call = [bar for bar in bars if bar.name == f"all_reduce {k}"]
        yield (max(bar.end for bar in call)
               - max(bar.start for bar in call))

sent_for = sum(transfers())
even = sum(map(sum, zip(work(0), work(1)))) / 2 + sent_for + tail
print(f"in all_reduce {table(0)['all_reduce'] * whole:.0f} and "
      f"{table(1)['all_reduce'] * whole:.0f} ms, sending {sent_for:.0f} ms")

# %% trap="15.7" role="repair"
plot_bars({"as recorded": whole, "a network that takes no time": without,
           "batches of equal length": even}, xlabel="ms for four steps",
          title="The ranks wait for each other, not for the network",
          alt="Three bars: the four steps as recorded; on a network that "
              "takes no time, hardly shorter; with batches of equal "
              "length, much shorter.")

# %% trap="15.7" role="repair"
claim("time saved by equal batches, divided by time saved by a network "
      "that takes no time", (whole - even) / (whole - without), above=2)

# %% [markdown] trap="15.7" role="more" topics="bars inside bars · clocks that disagree · launched, and not overlapped · tiny kernels"
# **Bars inside bars.** The recording also contains the matrix products, whose bars are
# inside `forward` and `backward`. A sum over all bars of a lane counts the products
# twice. A lane's busy time is the length of the *union* of its bars:

# %% trap="15.7" role="more"
def covered(spans):
    """Length of the time covered by at least one (start, end) span."""
    length, reach = 0.0, -math.inf
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return length

spans = [(b.start, b.end) for b in bars
         if (b.rank, b.lane) == (0, "compute")]
in_all = sum(end - start for start, end in spans)

# %% trap="15.7" role="more"
claim("fraction of time in all_reduce, on the rank with the smaller "
      "fraction", min(table(rank)["all_reduce"] for rank in (0, 1)),
      above=0.25)
claim("total length of rank 0's compute bars, divided by the length of "
      "their union", in_all / covered(spans), above=1.5)
claim("time of the replayed steps with transfers, as a fraction of the "
      "recorded time", (without + sent_for) / whole, expected=1,
      within=0.03)

# %% [markdown] trap="15.7" role="more"
# **Clocks.** Both processes here read the same clock, but two machines read different
# clocks. Set rank 1's clock 20 ms ahead, and a different call seems to be the last. All
# ranks leave an `all_reduce` at almost the same time (this need not hold for a
# `broadcast` or `reduce`). So the ends of the calls show how far apart the clocks are.

# %% trap="15.7" role="more"
def ends(rank, ahead=0.0):
    return [b.end + ahead for b in bars
            if b.rank == rank and b.lane == "network"]

apart = sorted(b - a for a, b in zip(ends(0), ends(1, ahead=20)))
offset = (apart[1] + apart[2]) / 2               # the middle one

# %% trap="15.7" role="more"
claim("offset of two clocks that are 20 ms apart, estimated from the "
      "collectives' ends, in ms", offset, expected=20, within=2)

# %% [markdown] trap="15.7" role="more"
# **Launched, but not overlapped.** A collective called with `async_op=True` can run
# during the backward pass, but not if the next line waits for the collective. The lanes
# below are *simulated*, with a few made-up times:

# %% trap="15.7" role="more"
def buckets(wait_at_once, layers=4, back=3.0, send=2.0):
    """Backward and the sending of its buckets, in ms, as two lanes."""
    now, free, compute, network = 0.0, 0.0, [], []
    for k in range(layers):
        compute.append((now, now + back, f"backward {k}"))
        now += back
        start = max(now, free)
        free = start + send
        network.append((start, free, f"send {k}"))
        if wait_at_once:
            now = free
    return compute, network

at_once, in_the_end = buckets(True), buckets(False)

# %% trap="15.7" role="more"
draw_lanes({"compute, waits at once": at_once[0], "its network": at_once[1],
            "compute, waits at the end": in_the_end[0],
            "its network ": in_the_end[1]},
           title="Simulated: one line decides which sends are hidden",
           alt="Four lanes. Above, backward and send take turns. Below, "
           "each send runs during the next layer's backward, and only the "
           "last send comes after it.")

# %% trap="15.7" role="more"
def sticks_out(lanes):
    """ms in which the network is busy and nothing computes."""
    compute, network = ([span[:2] for span in lane] for lane in lanes)
    return covered(compute + network) - covered(compute)

# %% trap="15.7" role="more"
claim("sending time that nothing hides, in ms, if the step waits for each "
      "sum immediately", sticks_out(at_once), expected=8)
claim("sending time that nothing hides, in ms, if the step waits at the "
      "end", sticks_out(in_the_end), expected=2)

# %% [markdown] trap="15.7" role="more"
# **Tiny kernels.** Python needs a few microseconds to launch a kernel. If a kernel takes
# less time than that, the GPU waits for the next launch, and a table of kernels does not
# show the wait. The next lanes are also *simulated*, with 5 µs for a launch and 2 µs for
# a kernel.

# %% trap="15.7" role="more"
def queue(kernel, launch=5.0, n=8):
    """Launches and the kernels that they start, in us, as two lanes."""
    python = [(launch * k, launch * (k + 1), f"launch {k}")
              for k in range(n)]
    gpu, free = [], 0.0
    for _, end, name in python:
        start = max(end, free)
        free = start + kernel
        gpu.append((start, free, name.replace("launch", "kernel")))
    return python, gpu

python, gpu = queue(2.0)
end_of = {kernel: queue(kernel)[1][-1][1] for kernel in (2.0, 1.0)}
idle_gpu = 1 - covered([span[:2] for span in gpu]) / end_of[2.0]

# %% trap="15.7" role="more"
draw_lanes({"Python": python, "GPU": gpu}, unit="µs",
           title="Simulated: the GPU waits for launches",
           alt="Two lanes. Python launches without a pause. On the GPU, "
           "short kernels have long gaps between them.")

# %% trap="15.7" role="more"
claim("fraction of the time for which the GPU is idle, with tiny kernels",
      idle_gpu, above=0.5)
claim("fraction of the time that kernels twice as fast would save",
      1 - end_of[1.0] / end_of[2.0], below=0.05)

# %% trap="15.7" role="exercise" points=4 difficulty=3 minutes=20
def exposed(events: list) -> list:
    """List (computing, transferring, waiting, idle) in ms for each rank,
    starting with rank 0.

    events: bars (rank, lane, name, start, end) with start < end, ints or
    floats, in any order, in ms on one clock; each rank has at least one.
    Bars can overlap or be nested. lane is "compute", where the name means
    nothing, or "network". Network bars with one name form a collective,
    with at most one bar per rank, from call to end. The collective
    transfers once all its bars have begun, and no bar ends before that. A
    rank without a bar has no part in the collective. events is not changed.

    From the first start to the last end of all bars, each moment of a rank
    counts as the first kind that fits its bars. computing: a compute bar is
    open. transferring: a network bar is open and transfers. waiting: a
    network bar is open but does not transfer yet. idle: no bar is open.

    Example: [(0, "compute", "a", 0, 4), (0, "network", "r", 3, 9), (1,
    "network", "r", 6, 9)] gives [(4., 3., 2., 0.), (0., 3., 0., 6.)].
    """
    # BEGIN SOLUTION
    begun = {}
    for _, lane, name, start, _ in events:
        if lane == "network":
            begun[name] = max(start, begun.get(name, start))
    edges = sorted({time for event in events for time in event[3:]})
    times = []
    for rank in range(1 + max(event[0] for event in events)):
        four = [0.0, 0.0, 0.0, 0.0]
        for a, b in zip(edges, edges[1:]):
            kind = 3
            for owner, lane, name, start, end in events:
                if owner == rank and start <= a and b <= end:
                    what = 0 if lane == "compute" else 1 + (a < begun[name])
                    kind = min(kind, what)
            four[kind] += b - a
        times.append(tuple(four))
    return times
    # END SOLUTION

# %% [markdown] trap="15.7" role="hint"
# 1. For each collective, find the rank that starts last. Data moves only from that
#    moment on.
# 2. Cut the timeline at every start and every end. Nothing changes between two
#    neighbouring cuts, so each piece belongs to one kind of time.
# 3. Alternatively, measure three unions: the compute bars; the compute bars and the
#    transfers; the compute bars and all network bars. The first union is the time spent
#    computing. The differences between the unions are the times spent transferring and
#    waiting, and the remaining time is idle.

# %% [markdown] trap="15.7" role="keep"
# **Keep:** In a trace, a collective's bar begins with a call, not with data on the wire.
# A rank's own trace cannot show how long the rank waited for others. In an `all_reduce`,
# the shortest bar among all ranks is closest to the transfer time. **In your own code:**
# Profile the same steps on every rank, align the ends of the `all_reduce`s, and see which
# rank calls last. Check whether this is always the same rank. **Source:** In
# [`NVIDIA/nccl#460`](https://github.com/NVIDIA/nccl/issues/460), a maintainer explains
# that the rank with the shortest `all_reduce` came last. **Seen in the wild:** Since
# [`deepspeedai/DeepSpeed#3579`](https://github.com/deepspeedai/DeepSpeed/pull/3579), the
# log of communication times shows how much of each time was spent waiting. In
# [`Tencent-Hunyuan/UniRL#45`](https://github.com/Tencent-Hunyuan/UniRL/pull/45), batches
# were distributed by their token count, and the training phase took 46 % less time. In
# [`pytorch/pytorch#117550`](https://github.com/pytorch/pytorch/issues/117550), one rank
# was late at each long all-gather.

# %% [markdown] trap="15.8" role="situation" core=true fault="a memory plan divides what every GPU holds whole" symptom="a run that fits on paper is out of memory in its first step"
# ## Plan a run on eight GPUs
#
# You train Llama 7B on eight GPUs with 80 GB each, on sequences of 4,096 tokens. AdamW in
# your mixed precision needs 16 bytes per weight: two for the weight, two for its gradient
# and twelve for the optimizer's state. Each GPU holds a copy of the model and processes
# four sequences at a time, its *micro-batch*. For the backward pass, a layer keeps about
# `16 * width + 8 * hidden` bytes per token.
#
# The copies use *ZeRO-1* (stage 9).

# %% trap="15.8" role="break"
class Shape(NamedTuple):
    """A Llama: attention and SwiGLU without biases, two norms per layer."""

    layers: int
    width: int
    hidden: int
    heads: int
    vocab: int
    tokens: int                    # per sequence

seven = Shape(32, 4096, 11008, 32, 32000, 4096)

# %% trap="15.8" role="break"
def products(m):
    """Weights used in products: in all layers, and in the head."""
    layer = 4 * m.width ** 2 + 3 * m.width * m.hidden
    return m.layers * layer, m.vocab * m.width

def weights(m):
    """All weights: products, the embedding, and the norms' gains."""
    return sum(products(m)) + m.width * (m.vocab + 2 * m.layers + 1)

def kept(m):
    """Bytes kept in a layer for one sequence's backward pass."""
    return m.tokens * (16 * m.width + 8 * m.hidden + 4 * m.heads + 8)

def on_paper(m, copies, micro):
    """The plan: bytes on each GPU, by part."""
    return {"state": 16 * weights(m) / copies,
            "activations": micro * m.layers * kept(m) / copies}

hoped = sum(on_paper(seven, copies=8, micro=4).values()) / 1e9

# %% trap="15.8" role="guess"
guess("15.8",
      "Your plan adds up to 24 GB per GPU. How many GB does each GPU "
      "really need in the first step?", unit="GB")

# %% [markdown] trap="15.8" role="look"
# Count what autograd keeps for four sequences in a small Llama:

# %% trap="15.8" role="look" tags=["plumbing"]
class FusedNorm(torch.autograd.Function):
    """RMSNorm that keeps its input and one number per token: fused."""

    @staticmethod
    def forward(ctx, x, gain):
        scale = x.float().square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        ctx.save_for_backward(x, gain, scale)
        return (x * scale * gain).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, gain, scale = ctx.saved_tensors
        unit, inner = x * scale, grad * gain
        inner = inner - unit * (inner * unit).mean(-1, keepdim=True)
        return ((inner * scale).to(x.dtype),
                (grad * unit).flatten(0, -2).sum(0).to(gain.dtype))

# %% trap="15.8" role="look" tags=["plumbing"]
class LlamaLayer(nn.Module):
    def __init__(self, m):
        super().__init__()
        h, f, self.heads = m.width, m.hidden, m.heads
        self.gains = nn.ParameterList([torch.ones(h), torch.ones(h)])
        self.qkv, self.out, self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False) for a, b in (
                (h, 3 * h), (h, h), (h, f), (h, f), (f, h)))

    def forward(self, x):
        q, k, v = self.qkv(FusedNorm.apply(x, self.gains[0])).unflatten(
            -1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y = FusedNorm.apply(x, self.gains[1])
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

# %% trap="15.8" role="look" tags=["plumbing"]
class Llama(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.embed = nn.Embedding(m.vocab, m.width)
        self.layers = nn.ModuleList(LlamaLayer(m) for _ in range(m.layers))
        self.gain = nn.Parameter(torch.ones(m.width))
        self.head = nn.Linear(m.width, m.vocab, bias=False)

    def forward(self, ids, again=False):
        x = self.embed(ids)
        for layer in self.layers:
            x = (checkpoint(layer, x, use_reentrant=False) if again
                 else layer(x))
        return self.head(FusedNorm.apply(x, self.gain))

# %% trap="15.8" role="look"
small = Shape(3, 128, 344, 4, 512, 64)
small_ids = torch.randint(0, small.vocab, (2, small.tokens))
low = Llama(small).bfloat16()

def kept_bytes(micro, loss=False, again=False):
    """What autograd keeps on one GPU, without the weights."""
    ids = small_ids[:1].repeat(micro, 1)
    def run():
        logits = low(ids, again)
        return F.cross_entropy(logits.float().flatten(0, 1),
                               ids.flatten()) if loss else logits
    return saved_bytes(run, low.parameters())

more_of_it = kept_bytes(4) / on_paper(small, 8, 4)["activations"]
print(f"counted: {more_of_it:.1f} times the activations of the plan (the "
      "head also keeps some)")

# %% trap="15.8" role="look" tags=["plumbing"]
master = flat(low.parameters()).float()
shard = master.chunk(8)[0].clone().requires_grad_()
shard.grad = torch.zeros_like(shard)
adam = torch.optim.AdamW([shard])
adam.step()
moments = [v for k, v in adam.state[shard].items() if k != "step"]
of_shard = sum(t.nbytes for t in (shard, *moments))
state_bytes = (2 * 2 * weights(small) + of_shard) / weights(small)

# %% trap="15.8" role="look" tags=["plumbing"]
def in_gb(parts):
    return {name: size / 1e9 for name, size in parts.items()}

# %% trap="15.8" role="look" tags=["for-repair"]
def needs(m, micro, copies=1, zero=0, again=False):
    """Bytes on each GPU, by part; zero 0, 1, 3; again: checkpoints."""
    if zero not in (0, 1, 3):
        raise ValueError(f"zero: got {zero}, this sum knows 0, 1 and 3")
    n, each = weights(m), micro * kept(m)
    inputs = micro * m.layers * 2 * m.width * m.tokens
    return {"weights": 2 * n / (copies if zero == 3 else 1),
            "gradients": 2 * n / (copies if zero == 3 else 1),
            "optimizer": 12 * n / (copies if zero else 1),
            "activations": inputs + each if again else m.layers * each,
            "logits": 10 * micro * m.tokens * m.vocab}

really = sum(needs(seven, micro=4, copies=8, zero=1).values()) / 1e9

# %% trap="15.8" role="look"
measured("15.8", really, right=(90, 180))

# %% trap="15.8" role="look"
claim("GB that each GPU needs, divided by the GB in the plan",
      really / hoped, above=5)

# %% [markdown] trap="15.8" role="why"
# ZeRO-1 divides only the *optimizer's* 12 bytes per weight: master weights and two
# moments. Each GPU still holds all weights and gradients, at 2 bytes per value. The
# copies share the *batch*, but a micro-batch belongs to one GPU. The plan also forgot the
# logits, each with 2 bytes in bfloat16, another 4 in float32, and 4 for its gradient.

# %% trap="15.8" role="why"
draw_boxes({"each GPU": in_gb(needs(seven, 4, copies=8, zero=1)),
            "the plan": in_gb(on_paper(seven, 8, 4))},
           limit=80, limit_name="a card",
           title="Each GPU needs five times what the plan says",
           alt="Two stacks of memory. The stack of each GPU has weights, "
               "gradients, optimizer, a box of activations as large as a "
               "card, and logits, and ends far above the card's line at 80 "
               "GB. The plan's stack has two small boxes, far below the "
               "line.")

# %% [markdown] trap="15.8" role="repair"
# Plan part by part, and note what divides each part. Then look for a plan that fits, with
# smaller micro-batches, checkpoints, or ZeRO-3, which divides all 16 bytes and gathers
# each layer when needed.

# %% trap="15.8" role="repair"
ways = {"micro 1": dict(micro=1, zero=1),
        "micro 4, checkpoints": dict(micro=4, zero=1, again=True),
        "micro 2, ZeRO-3": dict(micro=2, zero=3)}
draw_boxes({name: in_gb(needs(seven, copies=8, **way))
            for name, way in ways.items()}, limit=80, limit_name="a card",
           title="Three plans that fit",
           alt="Three stacks below the card's line of 80 GB, each of "
               "weights, gradients, optimizer, activations and logits.")

# %% trap="15.8" role="repair" tags=["plumbing"]
def operations(m, square=0.5):
    """Operations of a sequence, both passes; square 0.5 is causal."""
    attention = 12 * square * m.layers * m.width * m.tokens
    return m.tokens * (6 * sum(products(m)) + attention)

def repeated(m, square=0.5):
    """Operations per sequence that checkpoints in each layer repeat."""
    last = m.layers * m.width * m.hidden
    attention = 4 * square * m.layers * m.width * m.tokens
    return m.tokens * (2 * (products(m)[0] - last) + attention)

def half_ring(n, size, alpha, beta):
    """Seconds for a reduce_scatter or an all_gather of size bytes."""
    return (n - 1) * (alpha + size / n / beta)

# %% trap="15.8" role="repair" tags=["plumbing"]
def step_seconds(m, micro, copies=8, zero=0, again=False, batch=64,
                 speed=0.55 * 989e12, alpha=5e-6, beta=400e9):
    """Seconds per step: products at 0.55 of an H100, half rings."""
    if batch % (copies * micro):
        raise ValueError(f"micro: got {micro}; {copies} copies of it have "
                         f"to divide the batch of {batch}")
    work = operations(m) + (repeated(m) if again else 0)
    passes = 3 * batch // (copies * micro) if zero == 3 else 2
    return (batch * work / (copies * speed)
            + passes * half_ring(copies, 2 * weights(m), alpha, beta))

# %% trap="15.8" role="repair"
times = {name: step_seconds(seven, **way) for name, way in ways.items()}
plot_bars(times, title="Checkpoints and ZeRO-3 save memory and cost time",
          xlabel="seconds per step", alt="Three bars: micro-batches of "
          "one sequence are fastest, checkpoints and ZeRO-3 take longer.")

# %% trap="15.8" role="repair"
claim("seconds per step with checkpoints, divided by seconds with "
      "micro-batches of one",
      times["micro 4, checkpoints"] / times["micro 1"], expected=1.25,
      within=0.01)

# %% [markdown] trap="15.8" role="repair"
# The step time is the time for products, at 0.55 of the peak, plus the time for sending.
# Differences below 5 % mean nothing. Guess first. On eight cards of `24` GB, with all
# activations kept, which of the six splits in the explorer below makes the 7B model fit?
# (*MFU* is useful work divided by the peak.)

# %% role="explore" explorer="plan_a_run"
from dlsys_helpers.explorers.plan_a_run import plan_a_run

plan_a_run

# %% [markdown] trap="15.8" role="more" topics="each formula compared with a count · tensor and pipeline · a run that was published · where the estimates are wrong"
# The next claims compare each formula with a count on the small model, and the 7B model's
# weights with a count on the meta device:

# %% trap="15.8" role="more" tags=["plumbing"]
with torch.device("meta"):
    counted_weights = sum(p.numel() for p in Llama(seven).parameters())
deeper = Llama(small._replace(layers=4)).bfloat16()
one_layer = saved_bytes(lambda: deeper(small_ids), deeper.parameters()) - (
    kept_bytes(2))
one_input = saved_bytes(lambda: deeper(small_ids, True),
                        deeper.parameters()) - kept_bytes(2, again=True)
wide = Shape(4, 64, 100, 2, 1024, 128)
wide_net = Llama(wide).bfloat16()
for weight in wide_net.parameters():
    weight.grad = torch.zeros_like(weight)
wide_ids = torch.randint(0, wide.vocab, (3, wide.tokens))
wide_peak = cost(lambda: F.cross_entropy(
    wide_net(wide_ids).float().flatten(0, 1),
    wide_ids.flatten()).backward()).peak
planned = needs(wide, 3)

# %% trap="15.8" role="more"
claim("number of weights in the 7B model: count divided by the formula's "
      "value", counted_weights / weights(seven), expected=1)
claim("bytes kept in a layer: count divided by the formula's value",
      one_layer / (2 * kept(small)), expected=1)
claim("bytes of a checkpoint per token: count divided by 2 * width",
      one_input / (2 * 2 * small.width * small.tokens), expected=1)
claim("bytes of state per weight, with ZeRO-1 on eight copies", state_bytes,
      expected=2 + 2 + 12 / 8, within=1e-3)
claim("bytes that the loss adds: count divided by 4 bytes per logit",
      (kept_bytes(1, loss=True) - kept_bytes(1)) / (
          4 * small.vocab * small.tokens), expected=1, within=1e-3)
claim("peak bytes of a whole pass: count divided by planned activations "
      "and logits",
      wide_peak / (planned["activations"] + planned["logits"]), below=1.25)

# %% [markdown] trap="15.8" role="more"
# The last value is above 1, because the backward pass also needs room for the
# activations' gradients. Leave a tenth of a card free for these gradients, for buffers
# and for fragmentation. This estimate leaves out the float32 copies that norm layers keep
# if they are not fused: up to 12 bytes per channel and token in each layer.
#
# **A pipeline** cuts weights and layers. In the schedule 1F1B (see below), the first of
# `p` stages holds the activations of `min(m, p)` out of `m` micro-batches, so activations
# hardly shrink. **Tensor parallelism** cuts weights, logits and most activations, but not
# the activations of norm layers: `8 * width` bytes per token stay complete on each rank.
# For each layer and micro-batch, tensor parallelism adds four all-reduces, each as large
# as the layer's input, or five with checkpoints, because the second run repeats one of
# the forward pass's two all-reduces. (A second run that goes to the end of the layer
# repeats both.) The next cell shows the tape of a layer with two blocks, each cut over
# two ranks as in trap 15.1:

# %% trap="15.8" role="more"
def cut_blocks(again):
    """A layer of two blocks on this rank, forward and backward."""
    from torch.utils.checkpoint import checkpoint
    a, b, c, d = (nn.Parameter(torch.randn(32, 32)) for _ in range(4))

    def layer(x):
        h = entered(F.layer_norm(x, (32,)))
        x = x + summed(F.relu(h @ a) @ b)
        h = entered(F.layer_norm(x, (32,)))
        return x + summed(F.relu(h @ c) @ d)

    x = torch.randn(8, 32, requires_grad=True)
    y = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
    y.sum().backward()

# %% trap="15.8" role="more"
ranks.run(cut_blocks, False, uses=(over_ranks, summed, entered))
plain_calls = sent()
ranks.run(cut_blocks, True, uses=(over_ranks, summed, entered))
print("without checkpoints", plain_calls, "with", sent())

# %% trap="15.8" role="more"
claim("number of bytes on the tape for the calls of a cut layer",
      sum(plain_calls), expected=4 * 8 * 32 * 4)
claim("number of collective calls in a cut layer with checkpoints",
      len(sent()), expected=5)

# %% [markdown] trap="15.8" role="more"
# **A published run.**
# [TinyLlama](https://github.com/jzhang38/TinyLlama/blob/026587c0fbc5cf756eba92e0220566550df66ca7/README.md)
# is a Llama of 22 layers, trained on 16 A100 GPUs with FSDP, 8 sequences per GPU at a
# time and no checkpoints. Its README reports the tokens per second on each GPU and the
# resulting "model flops utilization" (MFU). Put these figures into the formulas above:

# %% trap="15.8" role="more"
tiny = Shape(22, 2048, 5632, 32, 32000, 2048)
published = {"tokens a second": 24_000, "MFU": 0.56, "card, GB": 40}
peak_a100 = 312e12                                   # the datasheet's
fewer = 2 * 22 * 2048 * (2048 - 2048 * 4 // 32)      # keys, values: 4
tiny_weights = weights(tiny) - fewer

def utilisation(square):
    """Model FLOPs of the published speed, divided by the peak."""
    each = operations(tiny, square) / tiny.tokens - 6 * fewer
    return published["tokens a second"] * each / peak_a100

print(f"{tiny_weights:,} weights; MFU {utilisation(0.5):.2f} with causal "
      f"halves, {utilisation(1):.2f} with whole squares")

# %% trap="15.8" role="more"
token_bytes = kept(tiny) / tiny.tokens - 4 * (2048 - 2048 * 4 // 32)
tiny_gb = in_gb({"state": 16 * tiny_weights / 16,
                 "activations": 8 * 2048 * 22 * token_bytes,
                 "logits": 10 * 8 * 2048 * tiny.vocab})
print({name: round(size, 1) for name, size in tiny_gb.items()})

# %% trap="15.8" role="more"
claim("MFU of the published run, with whole squares of attention counted",
      utilisation(1), expected=published["MFU"], within=0.01)
claim("estimated GB of the published run, divided by the GB of its card",
      sum(tiny_gb.values()) / published["card, GB"], below=0.9)

# %% [markdown] trap="15.8" role="more"
# The README's MFU counts whole squares of attention. If you count only the half that a
# causal kernel computes, the MFU is lower. So state the convention when you compare two
# runs.
#
# **Where the estimates are wrong.** The time estimate ignores that communication overlaps
# with matrix products, which is how FSDP hides most of its gathers. The memory estimate
# does not include gradients in float32 (2 more bytes per weight), the layers currently
# gathered by ZeRO-3, sequence parallelism (which also cuts the norm layers), experts, or
# the 1 to 2 GB taken by CUDA and NCCL. Links are usually faster inside a machine than
# between machines, so keep tensor parallelism inside a machine. If an MFU includes the
# repeated work of checkpoints, it goes up when you repeat more.

# %% trap="15.8" role="exercise" points=4 difficulty=4 minutes=25
def plan(model: dict, machine: dict, splits: list) -> tuple:
    """Compute (rows, best). rows has one dict of 5 costs for each split.

    model: weights, layers, batch; per sequence whole, cut, input and logits
    in bytes, work and again in operations. machine: memory, speed, peak,
    alpha, beta. splits: dicts of dp, tp, pp, zero (0, 1 or 3), checkpoint
    (bool), micro. n = dp * tp * pp, m = batch / dp / micro, own = weights /
    tp / pp, deep = layers / pp, layer = micro * (whole + cut / tp).

    state: 16 * own. dp divides 12 of the 16 with zero 1, all 16 with zero
    3. activations: min(m, pp) * deep * layer. With checkpoint: min(m, pp) *
    deep * micro * input + layer. logits: micro * logits / tp. seconds:
    (batch * (work + checkpoint * again) / n / speed + sums) * (1 + (pp - 1)
    / m) + sends. sums = m * deep * (8 + 2 * checkpoint) * half(tp, micro *
    input). sends = (3 * m with zero 3, else 2) * half(dp, 2 * own). half(r,
    b) = (r - 1) * (alpha + b / r / beta). mfu: batch * work / seconds / n /
    peak. best: the index of the fastest row that fits in memory, or None;
    no ties. All divisions come out even. Inputs are not changed.
    Example: 10 weights, dp 2, tp 1, pp 1, zero 1: state 100.
    """
    # BEGIN SOLUTION
    def half(n, size):
        return (n - 1) * (machine["alpha"] + size / n / machine["beta"])

    rows, best = [], None
    for split in splits:
        dp, tp, pp = split["dp"], split["tp"], split["pp"]
        zero, micro = split["zero"], split["micro"]
        m = model["batch"] / dp / micro
        mine = model["weights"] / tp / pp
        layers = model["layers"] / pp
        state = mine * ((4 / dp if zero == 3 else 4)
                        + (12 / dp if zero else 12))
        layer = micro * (model["whole"] + model["cut"] / tp)
        inputs = micro * model["input"]
        activations = min(m, pp) * layers * layer
        work, calls = model["work"], 4
        if split["checkpoint"]:
            activations = min(m, pp) * layers * inputs + layer
            work, calls = work + model["again"], 5
        logits = micro * model["logits"] / tp
        gpus = dp * tp * pp
        busy = model["batch"] * work / (gpus * machine["speed"])
        busy += m * layers * calls * 2 * half(tp, inputs)
        halves = 3 * m if zero == 3 else 2
        seconds = busy * (1 + (pp - 1) / m) + halves * half(dp, 2 * mine)
        useful = model["batch"] * model["work"]
        rows.append({"state": state, "activations": activations,
                     "logits": logits, "seconds": seconds,
                     "mfu": useful / (seconds * gpus * machine["peak"])})
        if state + activations + logits <= machine["memory"] and (
                best is None or seconds < rows[best]["seconds"]):
            best = len(rows) - 1
    return rows, best
    # END SOLUTION

# %% [markdown] trap="15.8" role="hint"
# 1. Compute the five numbers for one split, each on a line of its own. A layer keeps
#    `whole` and `cut`, and tensor parallelism divides only `cut`. A checkpoint keeps
#    only `input` and repeats `again`. `dp` divides no part of the activations, because
#    a micro-batch already belongs to one GPU.
# 2. Write `half(r, b)` as a small function: half a ring of `b` bytes on `r` ranks. A
#    single rank sends nothing, because `r - 1` is 0.
# 3. `sums` is the time of tensor parallelism's all-reduces. The pipeline's waits
#    lengthen both `sums` and the time for the products. `sends` is the time of the
#    copies' calls, which come once per step or, with ZeRO-3, in each micro-batch. A GPU
#    reaches `speed`, but its datasheet promises `peak`, which only `mfu` uses. `mfu`
#    counts only `work`, whatever is repeated.

# %% [markdown] trap="15.8" role="keep"
# **Keep:** Plan memory part by part, and write next to each part what divides it. With
# ZeRO, copies divide the state, but never a micro-batch. Of the plans that fit, choose
# the one that recomputes least if links are fast, and the one that sends least if links
# are slow. **In your own code:** Run one step with a micro-batch of one and compare
# `torch.cuda.max_memory_allocated()` with your plan. Then profile the largest parts: the
# products, then the calls that nothing hides. **Source:** [Anthony et al. 2023,
# "Transformer Math 101"](https://blog.eleuther.ai/transformer-math/). **Seen in the
# wild:** In [NVIDIA/Megatron-LM 6782](https://github.com/NVIDIA/Megatron-LM/pull/6782),
# an estimate divided activations by the number of expert ranks, although each rank holds
# its own micro-batch. In [deepspeedai/DeepSpeed
# 2302](https://github.com/deepspeedai/DeepSpeed/issues/2302), ZeRO was on, but the
# activations still filled the card.

# %% [markdown] role="concept"
# ## Further
#
# The plan of the last trap relies on three formulas: for operations, for bytes on a wire
# and for waits. This section checks each formula by counting. The code is folded.
#
# ### Operations
#
# Each weight in a product takes one multiplication and one addition per token, and twice
# as many in the backward pass, which makes 6 operations in all. The embedding is looked
# up, not multiplied. Attention adds two products, queries with keys and probabilities
# with values. If the heads together are as wide as the model, the two products take `12 *
# layers * width * tokens` operations per token, and a causal kernel leaves out half of
# these operations.
#
# Checkpoints repeat the products of the layers. How many of them a checkpoint repeats
# depends on the implementation. With torch's `use_reentrant=False`, this layer's last
# product is left out, because nothing reads its result again. Megatron's full
# checkpoints and torch's reentrant checkpoints repeat all products of the layers, so a
# step takes about four thirds of the work.

# %% role="concept" tags=["plumbing"]
small_net = Llama(small)

def counted(again):
    """FLOPs of forward and backward; fused attention would count none."""
    with sdpa_kernel(SDPBackend.MATH):
        return flops(
            lambda: small_net(small_ids, again).sum().backward())

once, twice = counted(False), counted(True)
print(f"counted {once:,}, with checkpoints {twice / once:.3f} times")
without, with_them = 12.109, 16.128   # seconds of a step, a 7B, 8 A100

# %% role="concept"
claim("number of operations: count divided by the formula's value with "
      "whole squares", once / (2 * operations(small, square=1)), expected=1,
      within=1e-6)
claim("number of operations that checkpoints add: count divided by the "
      "formula's value", (twice - once) / (2 * repeated(small, square=1)),
      expected=1, within=1e-6)
claim("a published step: time with checkpoints, divided by time without "
      "checkpoints", with_them / without, expected=1.33, within=0.01)

# %% [markdown] role="concept"
# The last claim is about [a 7B model on eight A100
# GPUs](https://github.com/deepspeedai/DeepSpeed/issues/5305), two copies of the model,
# each split over four tensor ranks. With checkpoints, a step of this run takes four
# thirds of the time, as with a complete second forward pass. The plan's formula gives a
# factor of 1.25 for the 7B model.
#
# ### Bytes on a wire
#
# The next cell simulates an all-reduce among `n` ranks as a ring. Each rank cuts its
# buffer into `n` pieces and passes one piece on in each step. After `n - 1` steps, each
# rank has one complete piece (`reduce_scatter`). After `n - 1` more steps, all ranks have
# all pieces (`all_gather`). For an all-reduce, this stage's tape records the bytes that
# go *into* the call; in a ring, each rank sends `2 * (n - 1) / n` times as many bytes.
#
# Each step also has a latency of `alpha` seconds. With links of `beta` bytes per second,
# half an all-reduce takes `(n - 1) * (alpha + size / n / beta)`. This is the *alpha-beta
# model*.

# %% role="concept" tags=["plumbing"]
def ring(buffers):
    """Sums on all ranks, values sent by each rank, and steps."""
    n = len(buffers)
    held = [list(buffer.chunk(n)) for buffer in buffers]
    numbers, steps = 0, 0
    for gather in (False, True):
        for step in range(n - 1):
            at = [(rank - step + gather) % n for rank in range(n)]
            moved = [held[rank][at[rank]] for rank in range(n)]
            for rank, piece in enumerate(moved):
                there, place = held[(rank + 1) % n], at[rank]
                there[place] = piece if gather else there[place] + piece
            numbers, steps = numbers + moved[0].numel(), steps + 1
    return [torch.cat(pieces) for pieces in held], numbers, steps

# %% role="concept" tags=["plumbing"]
eight = list(torch.randn(8, 160))
ring_sums, numbers_sent, ring_steps = ring(eight)
for size in (16e3, 1e6, 14e9):
    t = 2 * half_ring(8, size, 5e-6, 400e9)
    print(f"{size / 1e6:9,.3f} MB, 8 ranks: {1e3 * t:6.3f} ms, of which "
          f"latency {14 * 5e-6 / t:.0%}")

# %% role="concept"
claim("largest distance of a ring's sum from the true sum",
      max((s - sum(eight)).abs().max() for s in ring_sums), below=1e-4)
claim("number of values sent by one of eight ranks, divided by the number "
      "in its buffer", numbers_sent / 160, expected=1.75)
claim("number of steps in an all-reduce on eight ranks", ring_steps,
      expected=14)

# %% [markdown] role="concept"
# ### Waits in a pipeline
#
# A pipeline of `p` stages processes a batch in `m` micro-batches. In the schedule *1F1B*,
# a stage begins with `p - 1 - stage` forward passes (F). Then it alternates between one
# forward pass and one backward pass (B). So the first stage holds at most `p`
# micro-batches. In the simulation below, a task starts as soon as its stage is free and
# all tasks that it needs are done:

# %% role="concept" tags=["plumbing"]
def orders(p, m):
    """What each of p stages does with m micro-batches, in order."""
    for stage in range(p):
        ahead = min(m, p - 1 - stage)
        pairs = [(kind, i) for j in range(m)
                 for kind, i in (("F", ahead + j), ("B", j)) if i < m]
        yield [("F", i) for i in range(ahead)] + pairs

def needed(kind, i, stage, p):
    """Tasks that have to be done before this one."""
    before = (kind, i, stage - 1 if kind == "F" else stage + 1)
    tasks = [before] if 0 <= before[2] < p else []
    return tasks + [("F", i, stage)] * (kind == "B")

# %% role="concept" tags=["plumbing"]
def played(p, m):
    """Spans (start, end, label) of each stage; a backward pass takes 2."""
    waiting, done = list(orders(p, m)), {}
    lanes = [[] for _ in range(p)]
    while any(waiting):
        for stage, tasks in enumerate(waiting):
            while tasks and all(
                    t in done for t in needed(*tasks[0], stage, p)):
                kind, i = tasks.pop(0)
                ends = [done[t] for t in needed(kind, i, stage, p)]
                start = max([0, *ends, *(s[1] for s in lanes[stage])])
                done[kind, i, stage] = start + (1 if kind == "F" else 2)
                lanes[stage].append(
                    (start, done[kind, i, stage], f"{kind}{i}"))
    return lanes

# %% role="concept"
pipeline = played(4, 4)
draw_lanes({f"stage {n}": lane for n, lane in enumerate(pipeline)},
           unit="forward passes",
           title="With four micro-batches, each stage waits 9 of 21 units",
           alt="Four lanes of a pipeline. Each later stage begins one "
               "forward pass later and ends earlier. Between its tasks, a "
               "stage waits for its neighbours.")

# %% role="concept" tags=["plumbing"]
def over_ideal(p, m):
    """The time by which the schedule exceeds 3 m, as a fraction."""
    return max(s[1] for lane in played(p, m) for s in lane) / (3 * m) - 1

played_over = max(abs(over_ideal(p, m) - (p - 1) / m)
                  for p, m in ((2, 4), (4, 4), (4, 16), (8, 8)))

# %% role="concept"
claim("largest gap between the extra time of four simulated schedules and "
      "(p - 1) / m", played_over, below=1e-9)

# %% [markdown] role="concept"
# So a step takes `1 + (p - 1) / m` times as long as without waits, if the stages are
# equal, sending is free, and no stage is cut into pieces that interleave. `(p - 1) / (m +
# p - 1)` is a different number, the fraction of the time for which a stage is idle. Here
# a stage is idle for 43 % of the time, but the step takes 75 % longer.

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. A layer is cut over four ranks, and its output is right. After a step, the norm
# layer in front of it has different weights on each rank. What is missing?**
#
# - [ ] a sum of the cut weights' gradients :: Each rank has its own part of these
#   weights, so there is nothing to sum.
# - [x] the sum of the input's gradients, at the entrance :: Each rank has only its own
#   part's gradient, and this partial gradient trains the norm layer.
# - [ ] a sum of the output's gradients, at the exit :: The output is complete on each
#   rank, and so is its gradient. A sum would count the gradient four times.

# %% [markdown] role="quiz"
# **2. You add up the gradients of two passes of eight micro-batches each, and the
# schedule divides `.grad` at the end of each pass. How much does the first pass count
# in the sum?**
#
# - [x] an eighth as much as the second pass :: The first pass is divided a second time,
#   by the eight micro-batches of the second pass.
# - [ ] half as much as the second pass :: The schedule divides by the number of
#   micro-batches, not by the number of passes.
# - [ ] as much as the second pass :: The schedule divides everything in `.grad`, so it
#   divides the first pass's gradient twice.

# %% [markdown] role="quiz"
# **3. A run with sequences in halves has a training loss near zero, and its loss on a
# validation set split the same way is also near zero. What do you know about the model?**
#
# - [ ] It is good, because the validation rows are new :: The validation rows were cut in
#   the same way, so they share the mistake.
# - [ ] It is overfitted, which only new rows can show :: The validation rows are new, and
#   their loss is also low.
# - [x] Nothing, until one batch has been run without the cut :: Compare the logits with
#   one GPU's logits, position by position.

# %% [markdown] role="quiz"
# **4. A layer uses one expert per token, and the weight of that expert is 1 for every
# token. What does the router learn?**
#
# - [x] nothing from the task :: "Which" is an index and "how much" is a constant, so no
#   gradient reaches the router.
# - [ ] a little, through the choice :: A choice is an index and has no gradient.
# - [ ] all that it needs, through the experts' gradients :: The experts learn from their
#   tokens; no gradient flows from the experts to the scores.

# %% [markdown] role="quiz"
# **5. The printed balance loss stays above 1 and does not fall. What do you do first?**
#
# - [ ] multiply its weight by ten :: If the balance loss has no gradient, ten times
#   nothing is still nothing.
# - [x] call `backward` on the balance loss alone :: An error, or nearly zero at the
#   router, shows that the balance loss has no gradient.
# - [ ] put fewer tokens on each expert :: A cap only hides how unevenly the router
#   chooses; it does not change the router's choice.

# %% [markdown] role="quiz"
# **6. With and without activation checkpointing, the first loss is the same to the last
# digit. What follows?**
#
# - [ ] the gradients are also equal :: The gradient is computed through a second run,
#   which may draw different random numbers.
# - [ ] the buffers are also equal :: The second run changes the buffers a second time.
# - [x] the first runs are equal, but you know nothing about the second run :: Compare
#   gradients and buffers, with checkpoints and without.

# %% [markdown] role="quiz"
# **7. Both ranks' traces show a third of the time in all_reduce, and in total, both ranks
# computed for the same time. What do you conclude?**
#
# - [ ] the network takes a third of the time :: A bar begins with the call and may be a
#   wait for the other rank.
# - [x] nothing yet, until you measure from the last call on, with both traces on one
#   clock :: A different rank may be late in each step, so that both ranks wait and
#   neither looks slow.
# - [ ] no rank is slow, so no rank waits :: The totals are equal, but in each step, one
#   of the ranks may still be late.

# %% [markdown] role="quiz"
# **8. You train eight copies of a model with ZeRO-1 and micro-batches of two sequences.
# You double the number of copies to sixteen. What happens to each GPU's activations?**
#
# - [ ] They halve, because twice as many GPUs share the batch :: The GPUs share the
#   batch, but each still processes two sequences at a time.
# - [x] They stay the same :: A micro-batch belongs to one GPU. Only the optimizer's part
#   becomes smaller.
# - [ ] They double, because more gradients are summed :: A sum over more ranks leaves the
#   gradients as large as they were, and it does not affect the activations.

# %% [markdown] role="gpu"
# ## On a GPU: how thin may a layer be cut?
#
# If you split a layer over `n` GPUs, each GPU computes one `n`-th of the products. But
# the outputs to be summed are as large as before, one value per token and channel. So
# the more GPUs share a layer, the larger the part of a step spent on sending. Also, a
# thin product might not keep a GPU busy.
#
# **Before you run anything:** Split the MLP of Llama-2-7B over eight GPUs and run 4,096
# tokens. How long does the sum of the outputs take, as a multiple of the time for one
# GPU's products? And what fraction of the whole MLP's time does an eighth of the MLP
# take?

# %% role="gpu"
from dlsys_helpers.gpu import half_dtype

def cut_mlp(where, dtype, ranks, width=4096, inner=11008):
    """One rank's part of gate, up and down, as in Llama-2-7B."""
    part = inner // ranks
    shapes = ((part, width), (part, width), (width, part))
    return [torch.randn(a, b, device=where, dtype=dtype) * 0.01
            for a, b in shapes]

def run_mlp(x, weights):
    """This rank's part of the output for the tokens x (N, width)."""
    gate, up, down = weights
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

# %% role="gpu"
sheet = datasheet(None)
tokens_in = torch.empty(4096, 4096, device="meta", dtype=torch.bfloat16)

def part_flops(ranks):
    mine = cut_mlp("meta", torch.bfloat16, ranks)
    return flops(lambda: run_mlp(tokens_in, mine))

def product_ms(ranks):
    """ms of the products, at 0.55 of the datasheet's peak."""
    return part_flops(ranks) / (0.55 * sheet.half_tflops) / 1e9

def sum_ms(ranks):
    """A ring's all_reduce of the output, 5 us and 400 GB/s per step."""
    each = 5e-6 + tokens_in.nbytes / ranks / 400e9
    return 2e3 * (ranks - 1) * each

for n in (1, 2, 4, 8):
    print(f"{n} GPUs: products {product_ms(n):.2f} ms, "
          f"sum {sum_ms(n):.2f} ms")

# %% role="gpu"
claim("FLOPs for an eighth of the MLP, divided by FLOPs for the whole MLP",
      part_flops(8) / part_flops(1), expected=1 / 8)
claim("time on paper for the sum of outputs, divided by the time for an "
      "eighth of the products", sum_ms(8) / product_ms(8), expected=0.85,
      within=0.02)

# %% role="gpu"
@gpu_result("15/cut", uses=[cut_mlp, run_mlp],
            columns=["ranks", "us", "us_low", "us_high"])
def cut_times():
    """One rank's part of an MLP over 4,096 tokens."""
    half = half_dtype("cuda")
    x = torch.randn(4096, 4096, device="cuda", dtype=half)
    for ranks in (1, 2, 4, 8):
        weights = cut_mlp("cuda", half, ranks)
        t = seconds(lambda w=weights: run_mlp(x, w), repeats=10,
                    device="cuda", calls=5)
        yield {"ranks": ranks, "us": t.median * 1e6,
               "us_low": t.low * 1e6, "us_high": t.high * 1e6}

# %% role="gpu"
def of_whole(ranks):
    """Time of a part, divided by the time of the whole MLP."""
    return (cut_times.value("us", ranks=ranks)
            / cut_times.value("us", ranks=1))

answers_here = gpu_table(
    datasheet(cut_times.device_name),
    cut_times.asks("time of half the MLP, divided by the whole time", 0.5,
                   lambda: of_whole(2), below=0.8),
    cut_times.asks("time of 1/8 of the MLP, divided by the whole time",
                   0.125,
                   lambda: of_whole(8), below=0.4))
answers_here

# %% [markdown] role="gpu"
# **Keep:** Splitting a layer shrinks its products, but not its messages. So split layers
# only over fast links, and no further than memory requires. The 400 GB/s assumed here is
# close to a published measurement: [366 GB/s for large
# sums](https://waynehacking8.github.io/blog/nccl-nvlink-bandwidth/) among four H100 GPUs,
# calculated as for a ring, although their switch can also compute sums. The NVLink of an
# H100 SXM has a bandwidth of 450 GB/s in one direction.

# %% [markdown] role="summary"
# ## What you take with you
#
# - Two matrices split across ranks, the first by units and the second by inputs, need
#   two sums: one of the outputs in the forward pass, and one of the input's gradients
#   in the backward pass.
# - Divide the loss where the whole step is known. Do not divide after each pass: the
#   gradient already contains earlier passes' gradients.
# - Compute positions, labels and mask on the whole sequence before you cut it.
# - A router learns the task only through expert weights that it can change, and a
#   balance loss works only through the router's probabilities.
# - A checkpointed block, which runs twice, has to read the same values twice but change
#   its state only once.
# - In a trace, a collective's bar begins with a call, not with data on the wire.
#   Measure the transfer from the last rank's call on.
# - Next to each part of a memory plan, write what divides it. With ZeRO, the copies
#   divide the state among themselves, but never a micro-batch.
# - Predict the bytes, then compare them with the tape. If you cannot predict the bytes,
#   you do not understand the cut yet.
#
# **Next:** Take the run that you would like to start. Write its plan part by part, run
# one of its steps on two ranks, and compare bytes, gradients and the copies' digests with
# the values on one rank.
