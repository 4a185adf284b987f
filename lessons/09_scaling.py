# %% [markdown] role="hook" draft=true
# # 9. Mixed precision, distributed training and profiling
#
# One machine is not enough any more, so the training script starts on two. It runs,
# the loss falls, and nobody sees what the second machine adds.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers import (
    begin, check, claim, digits, guess, measured,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## Two processes and their tape
#
# Data-parallel training starts the same program once for each GPU. A copy is a *rank*,
# counted from 0; all copies together are the *world*. Ranks share no memory. They talk
# through *collectives*, calls that every rank has to make, in the same order and with
# tensors of the same size. `all_reduce`, for one, puts the sum over all ranks in the
# place of each rank's tensor.
#
# Here two processes on your machine stand in for two GPUs. `ranks.run` sends a
# function's source to both and returns a list: what the function returned on rank 0,
# then on rank 1. Each rank keeps a *tape*: before a collective is made it notes the
# name, the bytes and, once you ask with `watch(model)`, a digest of the parameters,
# eight characters that change with any bit of them.

# %% role="concept"
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from dlsys_helpers.ranks import RankFailed, Ranks, digest, watch

ranks = Ranks(2)

def sum_of_ranks():
    """Three numbers of each rank, summed over the ranks in place."""
    x = torch.full((3,), 1.0 + dist.get_rank())
    dist.all_reduce(x)
    return x.tolist()

sums = ranks.run(sum_of_ranks)
print("returned:", sums)
print("tapes:   ", ranks.tapes)

# %% role="concept"
claim("ranks that hold the sum", sums.count([3.0, 3.0, 3.0]), expected=2)
claim("do both tapes hold the same lines", ranks.tapes[0] == ranks.tapes[1],
      expected=True)

# %% role="concept" tags=["plumbing"]
def mlp(seed):
    """A reader of digits: 64 pixels, 32 hidden units, 10 classes."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

def descend(net, optimizer, x, y):
    """One step on these digits; returns the loss before it."""
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()

def flat(tensors):
    """All numbers of the tensors in one row."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])

# %% role="concept" tags=["plumbing"]
def reads(weights):
    """The classes that a reader with these weights names, (497,)."""
    net = mlp(0)
    nn.utils.vector_to_parameters(weights, net.parameters())
    return net(x_test).argmax(1)

def calls(name, rank=0):
    """How often a collective stands on the last tape of a rank."""
    return sum(line[0] == name for line in ranks.tapes[rank])

def gap(a, b):
    """Distance of a from b, as a share of the length of b."""
    return ((a - b).norm() / b.norm()).item()

x_train, y_train, x_test, y_test = digits()       # (1300, 64), (497, 64)

# %% [markdown] trap="09.3" role="predict" symptom="Expected to have finished reduction in the prior iteration, find_unused_parameters=True is slow"
# ## A flag against an error
#
# A net has one body and two heads. An early version of its training used one head a
# batch, and DDP stopped with a long error that named `find_unused_parameters=True`. The
# flag went in, the error was gone, and it has been in every script since. Today each
# batch uses both heads.

# %% trap="09.3" role="predict"
guess("09.3", "How many all_reduce calls does one training step make with "
      "the flag?", unit="calls")

# %% trap="09.3" role="break"
def two_heads(seed):
    class TwoHeads(nn.Module):
        """One body; forward adds up the heads that it is told to use."""

        def __init__(self):
            super().__init__()
            self.body = nn.Linear(64, 32)
            self.a, self.b = nn.Linear(32, 10), nn.Linear(32, 10)

        def forward(self, x, heads):
            h = self.body(x).relu()
            return sum(getattr(self, name)(h) for name in heads)
    torch.manual_seed(seed)
    return TwoHeads()

# %% trap="09.3" role="break"
def three_steps(search, heads, x, y, seed):
    """What stopped it in three steps; "" if nothing did."""
    rank, net = dist.get_rank(), two_heads(seed)
    ddp = DDP(net, find_unused_parameters=search)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = x[rank:64:2], y[rank:64:2]
    for step in range(3):
        try:
            loss = F.cross_entropy(ddp(x, heads), y)
        except RuntimeError as error:
            return f"step {step + 1}: {error}"[:62]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return ""

# %% trap="09.3" role="break"
def reduced(search, heads):
    """Errors of the ranks, and bytes of each all_reduce of three steps."""
    said = ranks.run(three_steps, search, heads, x_train, y_train, SEED,
                     uses=(two_heads,))
    return said, [line[1] for line in ranks.tapes[0]
                  if line[0] == "all_reduce"]

_, flagged = reduced(search=True, heads="ab")

# %% trap="09.3" role="look"
print("bytes of the all_reduce calls in three steps:", flagged)
parameters = list(two_heads(SEED).parameters())
print("bytes of the gradients:", sum(p.nbytes for p in parameters),
      "  parameter tensors:", len(parameters))

# %% trap="09.3" role="look"
claim("all_reduce calls a step, with the flag", len(flagged) / 3,
      expected=2)
claim("bytes of the second one, for each parameter tensor",
      flagged[1] / len(parameters), expected=4)

# %% trap="09.3" role="look"
measured("09.3", len(flagged) / 3, right=(2, 2))

# %% [markdown] trap="09.3" role="repair"
# With the flag, DDP walks through the graph of each forward pass for the parameters
# that it will not meet, and after each backward the ranks tell each other which ones
# they used: a number for each tensor, a call of its own. The call is small, but it has to
# wait for all ranks, and the walk costs time on each rank. All of that is paid in every
# step, also where nothing is ever unused. Without the flag:

# %% trap="09.3" role="repair"
_, plain = reduced(search=False, heads="ab")
stopped, none_sent = reduced(search=False, heads="a")
_, searched = reduced(search=True, heads="a")
print("both heads, no flag:  ", plain)
print("head a alone, no flag:", none_sent, stopped[0])
print("head a alone, flag:   ", searched)

# %% trap="09.3" role="repair"
claim("all_reduce calls a step, both heads, without the flag",
      len(plain) / 3, expected=1)
claim("ranks that stop in step 2, one head, without the flag",
      sum(said.startswith("step 2: Expected to have") for said in stopped),
      expected=2)

# %% [markdown] trap="09.3" role="repair"
# So the flag is for nets in which a step may leave a parameter without a gradient, and
# a dry run can tell, in one process, before anything is wrapped.

# %% [markdown] trap="09.3" role="folklore"
# **Told:** with an unused parameter DDP hangs. **Measured:** with this net it raises, on
# both ranks, in the second forward pass. The first step is worse than an error: nothing
# was exchanged in it, as DDP still waited for the missing gradients, and each rank made
# its own update.

# %% trap="09.3" role="folklore"
claim("all_reduce calls before the error", len(none_sent), expected=0)

# %% trap="09.3" role="exercise" points=4 difficulty=3 minutes=20
def unused_names(model: nn.Module, batches: list, loss_of) -> list[str]:
    """Sorted names of the parameters that some batch leaves unused.

    A batch leaves a parameter unused when loss_of(model, batch) has no
    gradient with respect to it; one of zeros is a gradient. batches: any
    number of them; without any the list is empty. A loss may depend on no
    parameter at all. Frozen parameters are never listed, and one with two
    names goes by the name that named_parameters() gives. model runs in the
    modes that it has, and is left as it was: values, buffers, gradients,
    modes; torch's global generator, too.

    Example: heads a and b; one batch uses a alone: b's two names.
    """
    # BEGIN SOLUTION
    live = {n: p for n, p in model.named_parameters() if p.requires_grad}
    buffers = [b.clone() for b in model.buffers()]
    unused = set()
    with torch.random.fork_rng(devices=[]):
        for batch in batches:
            loss, grads = loss_of(model, batch), [None] * len(live)
            if loss.requires_grad:
                grads = torch.autograd.grad(loss, list(live.values()),
                                            allow_unused=True)
            unused |= {n for n, g in zip(live, grads) if g is None}
    with torch.no_grad():
        for buffer, old in zip(model.buffers(), buffers):
            buffer.copy_(old)
    return sorted(unused)
    # END SOLUTION

# %% [markdown] trap="09.3" role="hint"
# 1. `torch.autograd.grad(loss, tensors, allow_unused=True)` gives None for a tensor that the loss does not depend on, and leaves `.grad` alone.
# 2. A loss with `requires_grad` False depends on nothing.
# 3. In train mode a forward pass moves the buffers of a BatchNorm, and dropout draws from the global generator: keep copies, or `torch.random.fork_rng(devices=[])`.

# %% [markdown] trap="09.3" role="keep"
# **Keep:** `find_unused_parameters=True` only where a step can leave a parameter
# without a gradient; it is paid in every step. **In your own code:** after one
# backward without the wrapper, list the trainable parameters whose `.grad` is None, over
# all kinds of batches. **Source:**
# [DistributedDataParallel](https://docs.pytorch.org/docs/stable/notes/ddp.html),
# "Internal Design", on unused parameters.

# %% [markdown] trap="09.4" role="predict" symptom="FSDP slower than DDP, too many all_gather calls, fully_shard of a model that fits"
# ## A model in pieces
#
# Six linear layers, each sharded by itself with `fully_shard(layer)`, then the net. You
# know what data parallelism sends: an `all_reduce` of the gradients, once a step. A
# sharded net has to fetch its weights as well, as each rank holds a part only: an
# `all_gather` puts a whole layer together.

# %% trap="09.4" role="predict"
guess("09.4", "How many all_gather calls does one training step make?",
      unit="calls")

# %% trap="09.4" role="break"
def one_step(plan, layers=6):
    """One forward and one backward pass of six layers."""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(16, 16) for _ in range(layers)])
    if plan == "DDP":
        net = DDP(net)
    elif plan != "as one":
        for layer in net:
            fully_shard(layer, reshard_after_forward=plan == "each")
    if plan != "DDP":
        fully_shard(net)
    dist.barrier()                                  # the step begins here
    net(torch.ones(4, 16)).sum().backward()

# %% trap="09.4" role="break"
def step_calls(plan):
    """The calls of the step: how many of each kind, and MB of each."""
    ranks.run(one_step, plan)
    names = [line[0] for line in ranks.tapes[0]]
    step = ranks.tapes[0][names.index("barrier") + 1:]
    return {kind: [size for name, size, _ in step if name == kind]
            for kind in ("all_gather", "reduce_scatter", "all_reduce")}

# %% trap="09.4" role="look"
each = step_calls("each")
for kind, sizes in each.items():
    print(f"{kind:15} {len(sizes):3} calls   {sum(sizes):6} bytes")

# %% trap="09.4" role="look"
claim("all_gather calls of six layers", len(each["all_gather"]),
      expected=12)
claim("reduce_scatter calls", len(each["reduce_scatter"]), expected=6)

# %% trap="09.4" role="look"
measured("09.4", len(each["all_gather"]), right=(12, 12))

# %% [markdown] trap="09.4" role="repair"
# A layer is gathered for its forward pass, given back, and gathered again for its
# backward pass; a `reduce_scatter` then leaves each rank the averaged gradients of its
# own part. That is what saves memory: a rank holds its share and a layer or two. It is
# bought with bytes and with calls, and each call waits for the slowest rank.
#
# A model that fits need not pay all of it. Layers may stay whole until backward, the
# net may be one piece, or nothing is sharded at all:

# %% trap="09.4" role="repair"
plans = ("each", "kept", "as one", "DDP")
table = {plan: step_calls(plan) for plan in plans}
for plan, kinds in table.items():
    total = sum(map(len, kinds.values()))
    print(f"{plan:8} {total:3} calls   {sum(map(sum, kinds.values())):6} B")

# %% trap="09.4" role="repair"
claim("all_gather calls, layers kept until backward",
      len(table["kept"]["all_gather"]), expected=6)
claim("calls of the net as one piece",
      sum(map(len, table["as one"].values())), expected=2)
claim("bytes of each layer sharded, over those of DDP's all_reduce",
      sum(map(sum, each.values())) / sum(table["DDP"]["all_reduce"]),
      expected=3)

# %% [markdown] trap="09.4" role="repair"
# The bytes are those of the whole tensors. An `all_reduce` costs a network about as
# much as a `reduce_scatter` and an `all_gather` of the same tensor together. So DDP and
# layers that are kept cost about the same bytes, and giving them back adds half.

# %% [markdown] trap="09.4" role="folklore"
# **Told:** wrapping the whole model once is enough to shard it. **Measured:** as one
# piece the six layers are gathered in a single call, so that in forward each rank holds
# the whole model: the calls are few, and the memory that was to be saved is gone while
# it counts.

# %% trap="09.4" role="folklore"
whole = sum(p.nbytes for p in nn.Linear(16, 16).parameters()) * 6
claim("bytes gathered at once, over those of the model",
      table["as one"]["all_gather"][0] / whole, expected=1)

# %% trap="09.4" role="exercise" points=3 difficulty=2 minutes=15
def comm_plan(sizes: list, world: int, each: bool, reshard: bool) -> dict:
    """What one training step of a sharded model sends and holds:

    "all_gather" and "reduce_scatter": how many calls of each; "bytes": of
    all these calls together, a call counting the whole tensor; "whole": the
    most bytes of gathered layers held at once in forward, which runs one
    layer at a time.

    sizes: float32 numbers of each layer, left as it is; a layer without
    numbers makes no call, and one number counts 4 bytes. Before a call a
    layer, or the model where it is sharded as one, is filled up to the next
    multiple of world numbers. each: every layer is sharded by itself;
    otherwise the model is one piece, gathered once for forward. reshard:
    what forward gathered is given back when it has been used and gathered
    again for backward; otherwise it stays until backward is done. With a
    world of one there are no calls, and all layers are whole.

    Example: sizes [6, 2], world 2, each, reshard: 4 and 2 calls, 96 bytes,
    24 whole.
    """
    # BEGIN SOLUTION
    if world == 1:
        return {"all_gather": 0, "reduce_scatter": 0, "bytes": 0,
                "whole": 4 * sum(sizes)}
    pieces = sizes if each else [sum(sizes)]
    sent = [4 * world * -(-n // world) for n in pieces if n]
    gathers = 2 if reshard else 1
    return {"all_gather": gathers * len(sent), "reduce_scatter": len(sent),
            "bytes": (gathers + 1) * sum(sent),
            "whole": max(sent, default=0) if reshard else sum(sent)}
    # END SOLUTION

# %% [markdown] trap="09.4" role="hint"
# 1. Make the list of pieces first, those with numbers, each filled up; a model as one is a list of one piece.
# 2. A piece is gathered for forward, and with `reshard` for backward again; its gradients go through one `reduce_scatter`.
# 3. What forward holds at once is the largest piece if pieces are given back, and their sum if they stay.

# %% [markdown] trap="09.4" role="keep"
# **Keep:** shard what does not fit, layer by layer; a model that fits, with its
# gradients and optimizer states, is cheaper under DDP. **In your own code:** count the
# collectives of a step in a profiler's trace before you compare speeds. **Source:**
# [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html),
# `reshard_after_forward`.

# %% [markdown] trap="09.5" role="predict" symptom="DistributedSampler gives the same order every epoch, duplicated samples in distributed evaluation"
# ## A sampler for each rank
#
# Each rank gets a `DistributedSampler` over the 1,300 training digits, with shuffling
# on. The sampler deals the digits out, so that no two ranks see the same one, and hands
# its rank's share to a `DataLoader`. Your loop is the one you always write:
# `for epoch in range(10): for batch in loader: ...`.

# %% trap="09.5" role="predict"
guess("09.5", "How many different orders does rank 0 see in 10 epochs?",
      unit="orders")

# %% trap="09.5" role="break"
from torch.utils.data import DistributedSampler

def sampler_of(rank, world, n, **settings):
    """What a rank of so many would make; needs no second process."""
    return DistributedSampler(range(n), num_replicas=world, rank=rank,
                              seed=SEED, **settings)

mine = sampler_of(rank=0, world=2, n=1300)
orders = [tuple(mine) for epoch in range(10)]

# %% trap="09.5" role="look"
for epoch in range(3):
    print(f"epoch {epoch}, first five digits:", *orders[epoch][:5])
print("different orders in 10 epochs:", len(set(orders)))

# %% trap="09.5" role="look"
claim("different orders in 10 epochs", len(set(orders)), expected=1)
claim("is the order just 0, 2, 4, ...",
      list(orders[0]) == sorted(orders[0]), expected=False)

# %% trap="09.5" role="look"
measured("09.5", len(set(orders)), right=(1, 1))

# %% [markdown] trap="09.5" role="repair"
# The digits are shuffled, once. All ranks have to deal from the same order, so the
# sampler may not use a generator of its rank's own: it seeds a fresh one with
# `seed + epoch`. It cannot know the epoch. `set_epoch` tells it, before the loader is
# asked for batches:

# %% trap="09.5" role="repair"
told = []
for epoch in range(10):
    mine.set_epoch(epoch)
    told.append(tuple(mine))
print("different orders in 10 epochs:", len(set(told)))

# %% trap="09.5" role="repair"
claim("different orders in 10 epochs, each announced", len(set(told)),
      expected=10)

# %% [markdown] trap="09.5" role="repair"
# The second surprise waits in the evaluation. All ranks get equally many digits, as
# otherwise one of them would wait in a collective for a batch that another does not
# have. So where the division leaves a rest, the sampler repeats digits from the
# beginning, and an accuracy over all ranks counts these twice. Four ranks read the 497
# test digits:

# %% trap="09.5" role="repair"
dealt = [list(sampler_of(rank, 4, 497, shuffle=False))
         for rank in range(4)]
read = [digit for part in dealt for digit in part]
twice = sorted(digit for digit in set(read) if read.count(digit) > 1)
print("digits on each rank:", *map(len, dealt), "  together:", len(read))
print("read twice:", *twice)

# %% trap="09.5" role="repair"
claim("digits that four ranks read, of 497", len(read), expected=500)
claim("of them, read twice", len(twice), expected=3)

# %% [markdown] trap="09.5" role="repair"
# `drop_last=True` gives equal shares the other way: 496 digits, one never read. Where
# the number has to be exact, deal the digits out yourself, and sum hits and counts
# over the ranks, not their accuracies.

# %% trap="09.5" role="repair"
dropped = {digit for rank in range(4) for digit in
           sampler_of(rank, 4, 497, shuffle=False, drop_last=True)}
claim("different digits read with drop_last", len(dropped), expected=496)

# %% trap="09.5" role="exercise" points=3 difficulty=2 minutes=15
def epoch_indices(n: int, world: int, rank: int, epoch: int, seed: int,
                  exact: bool) -> list[int]:
    """The examples that a rank gets in an epoch, in their order.

    All ranks deal from one order of the n >= 1 examples: torch.randperm(n)
    of a torch.Generator that is seeded with seed + epoch. Rank r takes the
    places r, r + world, r + 2 world, and so on. exact: nothing is repeated
    and nothing dropped, so that shares may differ by one, and may be empty.
    Otherwise the order is first made longer, by itself, from its beginning
    and as often as needed, until it is the next multiple of world. torch's
    global generator is not used.

    Example: n 10, world 4, rank 3, epoch 0, seed 0: [5, 8, 1]; exact:
    [5, 8].
    """
    # BEGIN SOLUTION
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist()
    if not exact:
        length = -(-n // world) * world
        order = (order * world)[:length]
    return order[rank::world]
    # END SOLUTION

# %% [markdown] trap="09.5" role="hint"
# 1. One generator, seeded with `seed + epoch`, the same on every rank: the rank decides only where the slice begins.
# 2. The next multiple of `world` is `ceil(n / world) * world`.
# 3. With fewer examples than ranks the order has to be repeated more than once.

# %% [markdown] trap="09.5" role="keep"
# **Keep:** call `sampler.set_epoch(epoch)` before each epoch, and expect repeated
# examples in an evaluation whose size the ranks do not divide. **In your own code:**
# print the first indices of two epochs, and the length of all shares together.
# **Source:** [DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler):
# without `set_epoch` "the same ordering will be always used". **Seen in the wild:**
# [DALLE-pytorch #230](https://github.com/lucidrains/DALLE-pytorch/pull/230);
# [ParallelWaveGAN #177](https://github.com/kan-bayashi/ParallelWaveGAN/issues/177);
# [pytorch #31771](https://github.com/pytorch/pytorch/issues/31771), "can't shuffle the
# dataset".

# %% [markdown] trap="09.6" role="predict" symptom="DDP gradient accumulation sends gradients at every micro-batch, no_sync has no effect"
# ## Four small batches, one update
#
# A batch does not fit, so you add up the gradients of four small ones and then update.
# Under DDP the ranks would exchange their gradients four times, where one exchange of
# the sum would do. `ddp.no_sync()` switches the exchange off. The exchange happens in
# `backward`, so you put `with ddp.no_sync():` around the first three calls of
# `backward` and leave the fourth alone.

# %% trap="09.6" role="predict"
guess("09.6", "How often do the ranks exchange gradients in these four "
      "batches?", unit="times")

# %% trap="09.6" role="break"
def accumulate(forward_inside, x, y, seed):
    """The gradient of a rank after four batches of 8 digits."""
    ddp, rank = DDP(mlp(seed)), dist.get_rank()
    x, y = x[rank:64:2].split(8), y[rank:64:2].split(8)
    for k in range(4):
        quiet = ddp.no_sync() if k < 3 else contextlib.nullcontext()
        if forward_inside:
            with quiet:
                (F.cross_entropy(ddp(x[k]), y[k]) / 4).backward()
        else:
            loss = F.cross_entropy(ddp(x[k]), y[k]) / 4
            with quiet:
                loss.backward()
    return flat(p.grad for p in ddp.parameters())

# %% trap="09.6" role="break"
def tape_of_four(forward_inside):
    """Gradients of both ranks, and the bytes of each all_reduce."""
    found = ranks.run(accumulate, forward_inside, x_train, y_train, SEED,
                      uses=(mlp, flat))
    return found, [line[1] for line in ranks.tapes[0]
                   if line[0] == "all_reduce"]

outside, sent = tape_of_four(forward_inside=False)

# %% trap="09.6" role="look"
whole_net = mlp(SEED)                              # all 64 digits at once
F.cross_entropy(whole_net(x_train[:64]), y_train[:64]).backward()
true = flat(p.grad for p in whole_net.parameters())
print("bytes of each all_reduce:", sent)
print("gradient, off the one of a single process: "
      f"{gap(outside[0], true):.0e}")

# %% trap="09.6" role="look"
claim("exchanges with no_sync around backward", len(sent), expected=4)
claim("gradient after it, off the one of a single process",
      gap(outside[0], true), below=1e-4)

# %% trap="09.6" role="look"
measured("09.6", len(sent), right=(4, 4))

# %% [markdown] trap="09.6" role="repair"
# The gradient is right, which is why no test of the numbers finds this. Only the bytes
# are wrong. DDP decides in `forward` whether this pass will be exchanged; when
# `backward` runs, the decision is made. So the forward pass belongs inside `no_sync`,
# and where `backward` stands makes no difference.

# %% trap="09.6" role="repair"
inside, sent = tape_of_four(forward_inside=True)
print("bytes of each all_reduce:", sent)
print("gradient, off the one of a single process: "
      f"{gap(inside[0], true):.0e}")

# %% trap="09.6" role="repair"
claim("exchanges with forward inside no_sync", len(sent), expected=1)
claim("gradient then, off the one of a single process",
      gap(inside[0], true), below=1e-4)
claim("bytes of the exchange over those of the parameters",
      sent[0] / (4 * true.numel()), expected=1)

# %% [markdown] trap="09.6" role="repair"
# One case is left. An epoch of six batches, four to an update, ends with two that were
# added up in silence. If you step on them all the same, each rank steps on gradients
# of its own:

# %% trap="09.6" role="repair"
def with_rest(last_is_loud, x, y, seed):
    """Digest of a rank's parameters after an update on two batches."""
    ddp, rank = DDP(mlp(seed)), dist.get_rank()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    x, y = x[rank:32:2].split(8), y[rank:32:2].split(8)
    with ddp.no_sync():
        (F.cross_entropy(ddp(x[0]), y[0]) / 2).backward()
    with contextlib.nullcontext() if last_is_loud else ddp.no_sync():
        (F.cross_entropy(ddp(x[1]), y[1]) / 2).backward()
    optimizer.step()
    return digest(ddp)

# %% trap="09.6" role="repair"
ends = {}
for loud in (False, True):
    ends[loud] = ranks.run(with_rest, loud, x_train, y_train, SEED,
                           uses=(mlp,))
    print("last batch exchanged:", loud, "  digests:", *ends[loud])

# %% trap="09.6" role="repair"
claim("different models after a silent last batch", len(set(ends[False])),
      expected=2)
claim("different models where the last batch is exchanged",
      len(set(ends[True])), expected=1)

# %% trap="09.6" role="exercise" points=4 difficulty=3 minutes=15
def ddp_accum(ddp, optimizer, loss_fn, batches: list, every: int) -> int:
    """One update for each `every` batches, in turn; returns how many.

    batches: (x, y) pairs with equally many rows; what is left over at the
    end makes a last update of its own. An update follows the mean of its
    batches' losses, loss_fn(ddp(x), y); what .grad held before counts no
    more. Batch by batch: one forward through ddp, then its backward. Ranks
    exchange gradients once an update, in its last backward. Afterwards ddp
    exchanges again.

    Example: 5 batches, every 2: 3 updates, exchanges in batches 2, 4 and 5.
    """
    # BEGIN SOLUTION
    updates = 0
    for first in range(0, len(batches), every):
        group = batches[first:first + every]
        optimizer.zero_grad()
        for x, y in group[:-1]:
            with ddp.no_sync():
                (loss_fn(ddp(x), y) / len(group)).backward()
        x, y = group[-1]
        (loss_fn(ddp(x), y) / len(group)).backward()
        optimizer.step()
        updates += 1
    return updates
    # END SOLUTION

# %% [markdown] trap="09.6" role="hint"
# 1. Cut the list into groups of `every` batches first; the last group may be shorter, and divides by its own length.
# 2. All batches of a group but the last run, forward and backward, inside `with ddp.no_sync():`.
# 3. Clear the gradients before each group, step after it, and count the steps.

# %% [markdown] trap="09.6" role="keep"
# **Keep:** `no_sync` has to hold the forward pass, and the last batch before each
# `optimizer.step()`, the short group at the end included, stays outside. **In your own
# code:** count the all-reduces of one update in a profiler's trace. **Source:**
# [DistributedDataParallel.no_sync](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html):
# "The forward pass should be included inside the context manager". **Seen in the wild:**
# [ClassyVision #706](https://github.com/facebookresearch/ClassyVision/pull/706),
# `no_sync` in the backward pass only;
# [LoongForge #163](https://github.com/baidu-baige/LoongForge/pull/163), around
# `backward` alone it did nothing;
# [accelerate #1726](https://github.com/huggingface/accelerate/pull/1726) takes it
# apart.

# %% [markdown] trap="09.11" role="predict" core=true symptom="DDP: ranks hold different weights, gradients are not synchronized, no error"
# ## A name for what is inside the wrapper
#
# `DDP(model)` copies rank 0's weights to all ranks and promises to average the
# gradients during `backward`. You want to call methods that the wrapper does not
# have, so you write `net = ddp.module` at the top of the script and use `net` from
# then on. It is the very model that the wrapper holds. `loss.backward()` fills the
# same `.grad`, and the optimizer was given `ddp.parameters()`.
#
# Both ranks train a reader of digits for 100 steps, each on digits of its own.

# %% trap="09.11" role="predict"
guess("09.11", "What shows first that something is amiss?",
      choices=["an error in the first backward",
               "the ranks wait for each other and hang",
               "losses that do not fall",
               "nothing of these: it looks like a healthy run"])

# %% trap="09.11" role="break"
def train(wrapped, x, y, seed, steps=100):
    """Weights and last loss of a rank that trains on every other digit.

    wrapped: how many of the steps, the first ones, go through the wrapper.
    """
    rank, ddp = dist.get_rank(), DDP(mlp(seed))
    watch(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    x, y = x[rank::2], y[rank::2]
    torch.manual_seed(10 * seed + rank)
    for step in range(steps):
        net = ddp if step < wrapped else ddp.module
        rows = torch.randint(len(x), (32,))
        loss = descend(net, optimizer, x[rows], y[rows])
    return flat(ddp.parameters()), loss

# %% trap="09.11" role="break"
def both(wrapped):
    """Weights of the two ranks, and their last losses."""
    found = ranks.run(train, wrapped, x_train, y_train, SEED,
                      uses=(mlp, flat, descend))
    return list(zip(*found, strict=True))

past, past_losses = both(wrapped=0)

# %% trap="09.11" role="look"
apart = (reads(past[0]) != reads(past[1])).sum().item()
right = [(reads(w) == y_test).float().mean().item() for w in past]
print("last losses:", *(f"{loss:.2f}" for loss in past_losses))
print("digits read:", *(f"{share:.2f}" for share in right))
print(f"gap between the ranks' weights: {gap(*past):.2f}")
print(f"test digits that the ranks read differently: {apart}")
print("all_reduce on the tape:", calls("all_reduce"))

# %% trap="09.11" role="look"
claim("the larger of the two last losses", max(past_losses), below=1)
claim("share of test digits that the worse rank reads", min(right),
      above=0.85)
claim("gap between the weights of the two ranks", gap(*past), above=0.2)

# %% [markdown] trap="09.11" role="look"
# Two losses fall, two readers work, and they are two different readers. The tape says
# why.

# %% trap="09.11" role="look"
claim("all_reduce calls in 100 steps", calls("all_reduce"), expected=0)
claim("test digits on which the ranks disagree", apart, above=10)

# %% trap="09.11" role="look"
measured("09.11", 3)

# %% [markdown] trap="09.11" role="repair"
# The averaging does hang in `backward`, but the wrapper's `forward` arms it: each call
# of `ddp(x)` tells the reducer to expect gradients. A forward pass that goes to
# `ddp.module` leaves it asleep, and the backward pass then belongs to the rank alone.
# Each rank trains a model of its own on its half of the data. Usually rank 0's is
# saved, so the other half of the data, and of the machines, was for nothing.
#
# So the pass that leads to the loss goes through the wrapper. Where the loss needs
# another method, let the model's `forward` call it.

# %% trap="09.11" role="repair"
whole, losses = both(wrapped=100)
apart = (reads(whole[0]) != reads(whole[1])).sum().item()
print(f"gap {gap(*whole):.2f}, test digits read differently: {apart}")
print("all_reduce on the tape:", calls("all_reduce"),
      "of", ranks.tapes[0][-1][1], "bytes each")
print("last lines:", ranks.tapes[0][-1], ranks.tapes[1][-1])

# %% trap="09.11" role="repair"
claim("gap between the ranks, through the wrapper", gap(*whole), expected=0)
claim("all_reduce calls in the same 100 steps", calls("all_reduce"),
      expected=100)
claim("lines, digests included, in which the two tapes differ",
      sum(a != b for a, b in zip(*ranks.tapes, strict=True)), expected=0)

# %% [markdown] trap="09.11" role="repair"
# The explorer has the tapes of one update, for this repair and for other strategies.
# Before you move a control, say how many calls each rank will make and where the
# curves will part.

# %% role="explore" explorer="tape"
from dlsys_helpers.explorers.tape import tape

tape

# %% [markdown] trap="09.11" role="folklore"
# **Told:** DDP's hooks are put on the parameters when the wrapper is made, so one pass
# through it, to warm it up, is enough. **Measured:** with the first of the 100 steps
# through the wrapper and the others past it the tape holds one `all_reduce`, and the
# ranks end as far apart as before. Each step has to arm its own backward.

# %% trap="09.11" role="folklore"
warm, _ = both(wrapped=1)
print(f"first step wrapped: gap {gap(*warm):.2f}, all_reduce calls:",
      calls("all_reduce"))

# %% trap="09.11" role="folklore"
claim("gap after one step through the wrapper and 99 past it", gap(*warm),
      above=0.2)
claim("all_reduce calls then", calls("all_reduce"), expected=1)

# %% trap="09.11" role="exercise" points=4 difficulty=3 minutes=20
def average_grads(losses_of, params: list, batch, all_sum) -> float:
    """Mean loss over the examples of all ranks; gradients go into .grad.

    losses_of(batch): losses (n,) of this rank's n examples; n >= 0 differs
    from rank to rank, and at least one rank has some. params: the
    parameters; one that no loss depends on gets zeros, and what .grad held
    before counts no more. Values of the parameters stay.
    all_sum(tensor): the sum over ranks, a new tensor; all ranks have to
    call it equally often, in the same order, with the same shapes and
    dtypes.

    Example: losses (1., 3.) on one rank and (8.,) on another: 4.0 on both.
    """
    # BEGIN SOLUTION
    losses = losses_of(batch)
    total, rows = losses.sum(), all_sum(torch.tensor(len(losses)))
    grads = torch.autograd.grad(total, params, allow_unused=True)
    for p, g in zip(params, grads):
        mine = torch.zeros_like(p) if g is None else g
        p.grad = all_sum(mine) / rows
    return (all_sum(total.detach()) / rows).item()
    # END SOLUTION

# %% [markdown] trap="09.11" role="hint"
# 1. Sum, do not average, what a rank has: the sum of its losses and the number of its examples. Both sums over ranks, divided, are the mean.
# 2. A rank without examples, or without a gradient for some parameter, must not stay away: it asks for the same sums, with zeros.
# 3. `torch.autograd.grad(total, params, allow_unused=True)` gives None where `params` has one that the loss does not use, and does not touch `.grad`.

# %% [markdown] trap="09.11" role="keep"
# **Keep:** call the DDP wrapper for each forward pass whose loss you differentiate;
# `ddp.module` is for saving and for reading weights. **In your own code:** compare a
# digest of the parameters between ranks every few hundred steps, and search for
# `.module` in what leads to a loss. **Source:** [DistributedDataParallel, "Internal
# Design"](https://docs.pytorch.org/docs/stable/notes/ddp.html): forward prepares the
# reducer. **Seen in the wild:**
# [minimind #853](https://github.com/jingyaogong/minimind/issues/853), three trainers
# that unwrapped the policy before its loss;
# [sd-scripts #604](https://github.com/kohya-ss/sd-scripts/pull/604): "everything may
# look okay";
# [openvla-oft #160](https://github.com/moojink/openvla-oft/issues/160), a method of
# `.module` in the loss.

# %% [markdown] trap="09.12" role="predict" symptom="FSDP gradient clipping by local norm, gradient norm differs between ranks"
# ## A clip on shards
#
# `fully_shard(model)` cuts each parameter into pieces, the *shards*, and gives every
# rank one. The gradient of a shard is a shard as well: `p.grad.to_local()` is a plain
# tensor with this rank's part of the numbers.
#
# You clip the gradient to a norm of 0.1. You wrote the clip yourself years ago: the
# norm of all gradients, then every gradient times `0.1 / norm` where the norm is
# larger. You run it on what `to_local()` gives, on two ranks, in a step where the norm
# of the whole gradient is well above 0.1.

# %% trap="09.12" role="predict"
guess("09.12", "What is the norm of the whole gradient after the clip?",
      choices=["0.1, as asked", "less than 0.1", "more than 0.1",
               "the clip raises an error"])

# %% trap="09.12" role="break"
def deep(seed):
    """Three linear layers: 64 pixels -> 32 -> 32 -> 10 classes."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32),
                         nn.ReLU(), nn.Linear(32, 10))

# %% trap="09.12" role="break"
def own_norm(grads):
    """The norm of the numbers that this rank holds."""
    return sum(g.square().sum() for g in grads).sqrt()

def norm_of_all(grads):
    """The norm of the numbers that all ranks hold together."""
    squares = sum(g.square().sum() for g in grads)
    dist.all_reduce(squares)
    return squares.sqrt()

def sharded(seed):
    """The net, each linear layer sharded by itself."""
    net = deep(seed)
    for layer in (net[0], net[2], net[4]):
        fully_shard(layer)
    return fully_shard(net)

# %% trap="09.12" role="break"
def clip_by_hand(measure, net, limit):
    """Clip this rank's shards; returns the norm that it went by."""
    shards = [p.grad.to_local() for p in net.parameters()]
    norm = {"own": own_norm, "all": norm_of_all}[measure](shards)
    for g in shards:
        g.mul_((limit / (norm + 1e-6)).clamp(max=1))
    return norm.item()

# %% trap="09.12" role="break"
def clipped_run(measure, x, y, seed, steps=30, limit=0.1):
    """First believed norm, first clipped gradient, last weights."""
    net, first = sharded(seed), None
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    torch.manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))[dist.get_rank()::2]
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        norm = clip_by_hand(measure, net, limit)
        whole = flat(p.grad.full_tensor() for p in net.parameters())
        first = first or [norm, whole]
        optimizer.step()
    return *first, flat(p.full_tensor() for p in net.parameters())

# %% trap="09.12" role="break" tags=["plumbing"]
def one_process(x, y, seed, steps=30, limit=0.1):
    """The same run without shards, with torch's own clip."""
    net, first = deep(seed), None
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    torch.manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), limit)
        whole = flat(p.grad for p in net.parameters())
        first = first or [norm.item(), whole]
        optimizer.step()
    return *first, flat(net.parameters())

def on_ranks(measure):
    return ranks.run(clipped_run, measure, x_train, y_train, SEED,
                     uses=(deep, sharded, own_norm, norm_of_all,
                           clip_by_hand, flat))

# %% trap="09.12" role="look"
norm, clipped, trained = one_process(x_train, y_train, SEED)
own = on_ranks("own")
print(f"norm of the whole gradient: {norm:.3f}, the ranks believe "
      f"{own[0][0]:.3f} and {own[1][0]:.3f}")
print(f"after the clip at 0.1: {own[0][1].norm():.4f}")
print(f"weights after 30 steps: {gap(own[0][2], trained):.1%} off")

# %% trap="09.12" role="look"
claim("the larger of the norms that the ranks believe, over the norm",
      max(own[0][0], own[1][0]) / norm, below=0.95)
claim("norm of the whole gradient after a clip at 0.1",
      own[0][1].norm().item(), above=0.11, below=0.1415)
claim("weights after 30 steps, off those of a single process",
      gap(own[0][2], trained), above=0.02)

# %% trap="09.12" role="look"
measured("09.12", 2)

# %% [markdown] trap="09.12" role="repair"
# Each rank sees a part of the numbers, so the norm that it computes is too small, and
# it clips too little, each rank by a factor of its own. If all of `R` ranks clip, each
# ends with a norm of 0.1, and together they have $0.1 \sqrt{R}$: here up to `0.1414`.
# Nothing diverges. In these 30 steps the loss even falls faster, as the steps are
# longer; with 64 ranks they could be up to eight times too long.
#
# Norms do not add up, their squares do. One `all_reduce` of a single number is enough:

# %% trap="09.12" role="repair"
shared = on_ranks("all")
print(f"the ranks believe {shared[0][0]:.3f} and {shared[1][0]:.3f}")
print(f"after the clip at 0.1: {shared[0][1].norm():.4f}")
print(f"weights after 30 steps: {gap(shared[0][2], trained):.1%} off")

# %% trap="09.12" role="repair"
claim("norm of the whole gradient, squares summed over the ranks",
      shared[0][1].norm().item(), expected=0.1, within=1e-4)
claim("its gradient, off the one of a single process",
      gap(shared[0][1], clipped), below=1e-4)
claim("weights then, off those of a single process",
      gap(shared[0][2], trained), below=5e-3)

# %% [markdown] trap="09.12" role="folklore"
# **Told:** `torch.nn.utils.clip_grad_norm_` is wrong on sharded models. **Measured:**
# on the gradients of `fully_shard` it clips as a single process does: they are
# `DTensor`s, which know that they are parts. The advice comes from the older FSDP
# class, which has a method of its own for this. What it *returns* is a DTensor, too:
# take `.full_tensor()` before you log it.

# %% trap="09.12" role="folklore"
def torch_clip(x, y, seed):
    """The first gradient after torch's own clip, and what it returned."""
    net, rows = sharded(seed), torch.arange(dist.get_rank(), 64, 2)
    F.cross_entropy(net(x[rows]), y[rows]).backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    whole = flat(p.grad.full_tensor() for p in net.parameters())
    return norm.full_tensor().item(), whole.norm().item()

told, after = ranks.run(torch_clip, x_train, y_train, SEED,
                        uses=(deep, sharded, flat))[0]
print(f"returned {told:.3f}, after the clip {after:.4f}")

# %% trap="09.12" role="folklore"
claim("norm after torch's own clip on DTensors", after, expected=0.1,
      within=1e-4)

# %% trap="09.12" role="exercise" points=3 difficulty=2 minutes=15
def clip_shards(shards: list, max_norm: float, all_sum) -> float:
    """Clip this rank's shards in place; returns the norm of the whole.

    shards: this rank's parts of the gradients, float32, any shapes; some
    may have no elements, and a rank may hold none. all_sum(tensor): the sum
    over ranks, a new tensor; all ranks have to call it equally often, in
    the same order, with the same shapes and dtypes. The whole gradient, all
    shards of all ranks, gets the norm max_norm where its norm is larger, up
    to a relative 1e-4; otherwise no shard changes. The norm returned is the
    one before the clip.

    Example: a shard [3.] here, [4.] elsewhere, max_norm 1: returns 5.0, the
    shard becomes [0.6].
    """
    # BEGIN SOLUTION
    squares = torch.zeros(())
    for shard in shards:
        squares += shard.square().sum()
    norm = all_sum(squares).sqrt().item()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
    # END SOLUTION

# %% [markdown] trap="09.12" role="hint"
# 1. Which quantity of two parts adds up to that of the whole: the norm, or its square?
# 2. A rank that holds nothing has to ask for the sum as well, with a zero.
# 3. Take the root after the sum over ranks, and scale all shards by the same `max_norm / norm`, in place, only where the norm is larger.

# %% [markdown] trap="09.12" role="keep"
# **Keep:** a norm over shards is the root of the squares summed over all ranks that
# hold a part. **In your own code:** print the gradient norm on two ranks of a sharded
# run: it has to be the same number. **Source:**
# [torch.nn.utils.clip_grad_norm_](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html).
# **Seen in the wild:** [AReaL #312](https://github.com/areal-project/AReaL/issues/312),
# a norm over local shards, so that clipping changed with the number of GPUs;
# [pytorch #72548](https://github.com/pytorch/pytorch/issues/72548), why FSDP1 got a
# method of its own; [miles_diffusion
# #35](https://github.com/radixark/miles_diffusion/pull/35), the right clip, and a
# logged norm that was the shard's.

# %% [markdown] trap="09.13" role="predict" symptom="FSDP2 loss does not change at all, optimizer created before fully_shard"
# ## An optimizer, then fully_shard
#
# A script for one GPU makes the model, then the optimizer, then trains. You add one
# line so that the model is cut into shards: `fully_shard(net)`. It changes the model in
# place and returns it. You put the line where the comment says "distributed", right
# before the loop, behind the line with the optimizer.
#
# The model has a test loss of about `2.3`, and AdamW makes 60 steps.

# %% trap="09.13" role="predict"
guess("09.13", "What is the test loss after 60 steps?",
      choices=["about 0.3, as with one GPU",
               "higher than that: half of each parameter learns",
               "the same as before the first step, to the last digit",
               "there is none: the first step raises an error"])

# %% trap="09.13" role="break"
def prepare(order, net, x):
    """Shard the net and make its optimizer, in this order."""
    make = torch.optim.AdamW
    if order == "optimizer, shard":
        optimizer = make(net.parameters(), lr=1e-2)
    fully_shard(net)
    if order == "shard, forward, optimizer":
        net(x)                                      # a look at the outputs
    if order != "optimizer, shard":
        optimizer = make(net.parameters(), lr=1e-2)
    return optimizer

# %% trap="09.13" role="break"
def sixty_steps(order, x, y, x_test, y_test, seed):
    """Test losses before and after; how many tensors the optimizer has."""
    net = mlp(seed)
    optimizer = prepare(order, net, x[:4])
    before = F.cross_entropy(net(x_test), y_test).item()
    for k in range(60):
        rows = torch.arange(20 * k, 20 * (k + 1))[dist.get_rank()::2]
        descend(net, optimizer, x[rows], y[rows])
    held = {id(p) for p in optimizer.param_groups[0]["params"]}
    kept = sum(id(p) in held for p in net.parameters())
    return before, F.cross_entropy(net(x_test), y_test).item(), kept

# %% trap="09.13" role="break"
def ordered(order):
    return ranks.run(sixty_steps, order, x_train, y_train, x_test, y_test,
                     SEED, uses=(mlp, descend, prepare))[0]

late = ordered("optimizer, shard")

# %% trap="09.13" role="look"
print(f"test loss {late[0]:.4f} -> {late[1]:.4f}")
print("tensors of the model that the optimizer holds:", late[2], "of 4")

# %% trap="09.13" role="look"
claim("change of the test loss in 60 steps", late[1] - late[0], expected=0)
claim("tensors of the model that the optimizer holds", late[2], expected=0)

# %% trap="09.13" role="look"
measured("09.13", 2)

# %% [markdown] trap="09.13" role="repair"
# `fully_shard` puts new parameters into the model, `DTensor`s that hold this rank's
# shard. The optimizer still holds the old ones. Their `.grad` stays None, and a
# parameter without a gradient is skipped without a word. The old tensors also keep
# their memory, so nothing was saved either.
#
# The order that works: model, shard, optimizer. Between the last two there is a second
# way to lose the parameters, again without an error: a forward pass. For its time the
# model holds whole parameters, and those of the root stay whole until a backward pass
# ends.

# %% trap="09.13" role="repair"
early = ordered("shard, optimizer")
between = ordered("shard, forward, optimizer")
for name, run in {"shard, optimizer": early,
                  "shard, forward, optimizer": between}.items():
    print(f"{name:27} test loss {run[0]:.4f} -> {run[1]:.4f}, "
          f"{run[2]} of 4 tensors")

# %% trap="09.13" role="repair"
claim("test loss, optimizer right after the shard", early[1], below=1)
claim("tensors it holds then", early[2], expected=4)
claim("change of the test loss, with a forward pass in between",
      between[1] - between[0], expected=0)

# %% trap="09.13" role="exercise" points=3 difficulty=2 minutes=15
def rebuild(optimizer, names: list, model: nn.Module):
    """An optimizer like this one, for the parameters that model has now.

    names: for each group, in their order, the names of its tensors, as
    model.named_parameters() gives them. The new optimizer has the same
    class, with nothing in its state. It has the same groups: each with all
    settings that the group has now, and with the parameters that go by its
    names now, in that order, trainable or not. The old optimizer and the
    model are left as they are.

    Example: SGD with lr 0.1, names [["bias"]]: SGD, lr 0.1, model's bias.
    """
    # BEGIN SOLUTION
    present = dict(model.named_parameters())
    groups = []
    for old, chosen in zip(optimizer.param_groups, names):
        tensors = [present[name] for name in chosen]
        groups.append({**old, "params": tensors})
    return type(optimizer)(groups)
    # END SOLUTION

# %% [markdown] trap="09.13" role="hint"
# 1. `type(optimizer)` takes a list of dicts, one for each group: "params" and settings.
# 2. The settings of a group are all its keys but "params". `optimizer.defaults` is what they were at the start, which a schedule may have changed.
# 3. Build new dicts, so that the old optimizer keeps its own.

# %% [markdown] trap="09.13" role="keep"
# **Keep:** whatever puts new parameters into a model (`fully_shard` does) comes before
# the optimizer, with no forward pass in between. **In your own code:** right before
# the loop, count the optimizer's tensors that are the model's own, by identity.
# **Source:** [torch.distributed.fsdp.fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
# **Seen in the wild:**
# [pytorch #149205](https://github.com/pytorch/pytorch/issues/149205), a model that was
# used before its optimizer was made;
# [lightning-GPT #17](https://github.com/Lightning-Universe/lightning-GPT/pull/17);
# [accelerate #3394](https://github.com/huggingface/accelerate/pull/3394), which
# replaces the parameters in the optimizer.

# %% [markdown] role="concept"
# ## Further: saving shards, launching ranks, the same step in JAX
#
# A sharded model is saved by all ranks together, each its own part, into one folder:
# `torch.distributed.checkpoint`, *DCP* for short. Whoever loads asks for the parts that
# it needs, so another number of ranks can read what two have written. An older
# spelling, `save_state_dict(state, checkpoint_id=...)`, is still found in many guides;
# it raises a TypeError today.

# %% role="concept"
def save(folder, net, optimizer):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    model, state = get_state_dict(net, optimizer)
    dcp.save({"model": model, "optimizer": state}, checkpoint_id=folder)

def load(folder, net, optimizer):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as states
    parts = dict(zip(("model", "optimizer"),
                     states.get_state_dict(net, optimizer), strict=True))
    dcp.load(parts, checkpoint_id=folder, no_dist=not dist.is_initialized())
    states.set_state_dict(net, optimizer, model_state_dict=parts["model"],
                          optim_state_dict=parts["optimizer"])

# %% role="concept"
def five_steps(folder, resume, x, y, seed):
    """The whole weights after three steps, and after five.

    resume: the first three steps are not made but loaded.
    """
    net = mlp(seed + resume)              # if loaded: from another start
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    seen = []
    for k in range(3 * resume, 5):
        if k == 3:
            (load if resume else save)(folder, net, optimizer)
            seen.append(flat(p.full_tensor() for p in net.parameters()))
        descend(net, optimizer, x[k::50], y[k::50])
    return *seen, flat(p.full_tensor() for p in net.parameters())

# %% role="concept" tags=["plumbing"]
import tempfile
import warnings
from pathlib import Path

# A world of one is what this notebook means.
warnings.filterwarnings("ignore", "torch.distributed is disabled")

# %% role="concept"

work = tempfile.TemporaryDirectory()
folder = str(Path(work.name) / "step3")

def five(resume):
    return ranks.run(five_steps, folder, resume, x_train, y_train, SEED,
                     uses=(mlp, flat, descend, save, load))[0]

saved, straight = five(resume=False)
loaded, resumed = five(resume=True)
alone = mlp(SEED + 1)                              # a world of one
load(folder, alone, torch.optim.AdamW(alone.parameters(), lr=1e-2))
print("files:", sorted(path.name for path in Path(folder).iterdir()))

# %% role="concept"
claim("numbers in which two ranks loaded something else than was saved",
      (loaded != saved).sum(), expected=0)
claim("numbers in which the resumed run differs after two more steps",
      (resumed != straight).sum(), expected=0)
claim("numbers in which a single process loaded something else",
      (flat(alone.parameters()) != saved).sum(), expected=0)

# %% [markdown] role="concept"
# Outside a notebook `torchrun` starts the ranks. It sets `RANK`, `WORLD_SIZE` and the
# address where they meet, and ends all of them when one fails. On one machine
# `--standalone` finds a free port by itself. On two machines with eight GPUs each, the
# same script is started on both with the same line:
#
# ```sh
# torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d \
#     --rdzv-id=run7 --rdzv-endpoint=first-machine:29500 train.py
# ```

# %% role="concept" tags=["plumbing"]
import os
import subprocess
import sys

def launched(*command, seconds=120, **settings):
    """What a Python command prints; it is ended after so many seconds."""
    with subprocess.Popen([sys.executable, *command], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=os.environ | settings) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise RuntimeError((err.strip() or "no words").splitlines()[-1])
    return out.splitlines()

# %% role="concept"
script = Path(work.name) / "train.py"
script.write_text('''
import torch, torch.distributed as dist
dist.init_process_group("gloo")                # all the rest from torchrun
x = torch.ones(3) * (1 + dist.get_rank())
dist.all_reduce(x)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {x.tolist()}",
      flush=True)
dist.destroy_process_group()
''')
# %% role="concept"
said = launched("-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node=2", str(script), OMP_NUM_THREADS="1")
print(*sorted(said), sep="\n")

# %% role="concept"
claim("ranks of torchrun that hold the sum of both",
      sum("[3.0, 3.0, 3.0]" in line for line in said), expected=2)

# %% [markdown] role="concept"
# JAX has one program for all devices and no wrapper to go past. Arrays say how they
# are spread: here the batch over eight devices, the weights whole on each. The
# compiler reads that and puts the all-reduce in itself. Eight devices on a CPU are a
# flag, which has to be set before JAX starts, so this runs in a process of its own.

# %% role="concept"
script = Path(work.name) / "step.py"
script.write_text('''
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((8,), ("data",))
x = jax.random.normal(jax.random.key(0), (64, 16))
y, w = x.sum(1), jnp.zeros(16)
loss = lambda w, x, y: jnp.mean((x @ w - y) ** 2)
step = jax.jit(lambda w, x, y: w - 0.1 * jax.grad(loss)(w, x, y))
rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
spread = jax.device_put((w, x, y), (whole, rows, rows))
text = step.lower(*spread).compile().as_text()
gap = float(jnp.abs(step(*spread) - step(w, x, y)).max())
print(len(jax.devices()), text.count(" all-reduce("), gap)
''')
# %% role="concept"
devices, reduces, off = map(float, launched(
    str(script), JAX_PLATFORMS="cpu",
    XLA_FLAGS="--xla_force_host_platform_device_count=8")[-1].split())
print(f"{devices:.0f} devices, all-reduce in the program: {reduces:.0f}")

# %% role="concept"
claim("devices", devices, expected=8)
claim("all-reduce operations that the compiler put in", reduces, above=0)
claim("largest gap between eight devices and one", off, below=1e-5)

# %% [markdown] role="concept"
# Last, what a hang looks like on tape. A script reduces its loss before it prints it,
# and somebody moved both into `if rank == 0:`. Rank 0 waits in the `all_reduce`, rank 1
# goes on to the `barrier` at the end of the epoch. Neither raises. A limit on the run,
# and the last line of each tape, name the two calls that do not belong together.

# %% role="concept"
def prints_its_loss():
    loss = torch.ones(1)
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
    dist.barrier()

ranks.seconds = 3
try:
    ranks.run(prints_its_loss)
except RankFailed as failure:
    last_words = str(failure)
print(last_words)

# %% role="concept"
claim("does the message name both calls",
      "all_reduce" in last_words and "barrier" in last_words, expected=True)
claim("processes left behind", len(ranks.processes), expected=0)

# %% role="concept" tags=["plumbing"]
work.cleanup()

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then open a choice: each says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. Two ranks train with DDP. The tape of a step has no `all_reduce`, the losses fall. You look first for**
#
# - [ ] a `no_sync` that was left on :: Possible, but then the numbers of small batches would tell; a forward pass beside the wrapper is far more common.
# - [x] a forward pass that goes to `ddp.module` :: The wrapper's forward arms the exchange; past it the backward pass is the rank's own.
# - [ ] a network that is down :: A call that cannot be made is on the tape all the same, and its rank waits or raises.

# %% [markdown] role="quiz"
# **2. Rank 0 evaluates alone, and the evaluation ends in an `all_reduce`. What happens?**
#
# - [ ] rank 0 gets the sum over itself :: A collective has to be made by all ranks of its group.
# - [ ] an error on rank 1, which was not asked :: Rank 1 does not know of the call; it goes on to its own next one.
# - [x] rank 0 waits, and rank 1 waits in its next collective :: Two tapes that disagree, until a limit ends them.

# %% [markdown] role="quiz"
# **3. Four ranks each clip the shard that they hold to a norm of 1, and each had more than that. The norm of the whole gradient is then**
#
# - [ ] 1 :: That would take the norm of the whole: squares summed over the ranks.
# - [x] 2 :: Four squares of 1 make 4, and its root is 2.
# - [ ] 4 :: Squares add up, norms do not.

# %% [markdown] role="quiz"
# **4. A model and its AdamW fit on each GPU with room to spare. You want speed on four GPUs. You take**
#
# - [x] DDP :: One `all_reduce` of the gradients a step; sharding would add gathers for memory that you do not need.
# - [ ] every layer in shards, as large models do :: It sends about half as much again, in many more calls.
# - [ ] the model as one shard :: It holds the whole model in forward and saves only what lies between the steps.
