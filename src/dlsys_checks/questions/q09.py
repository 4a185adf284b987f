"""Stage 9: how numbers round, what a mean is a mean of, and which bytes stay where."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DistributedSampler

from dlsys_checks.questions import asks, choice, number, whole

# ---- 09.1 A scaler out of habit

KEPT = "its exponent has as many bits as that of float32."


@asks("09.1")
def what_the_clip_sees(rng):
    scale, norm = 2 ** rng.randint(10, 16), rng.randint(2, 90) / 100
    return number(
        f"The loss scale is {scale:,}. A gradient has the norm {norm}. Without unscale_, which "
        "norm does clip_grad_norm_ see?", scale * norm,
        "The gradient is still multiplied by the scale.",
        norm, norm / scale)


@asks("09.1")
def step_after_the_clip(rng):
    scale = 2 ** rng.randint(8, 16)
    return number(
        f"The loss scale is {scale:,}, and the scaled gradient is clipped to a norm of 1. Which "
        "norm reaches SGD after scaler.step has divided?", 1 / scale,
        "What the clip leaves is divided by the scale.", 1, scale)


@asks("09.1")
def scale_after_overflows(rng):
    power, over = rng.randint(12, 18), rng.randint(2, 6)
    scale = 2**power
    for _ in range(over):
        scale //= 2
    return whole(
        f"A GradScaler begins at {2**power:,}, and the first {over} steps overflow. What is its "
        "scale then?", scale, "Each overflow halves the scale and skips the step.", 2**power,
        2**power // over)


@asks("09.1")
def which_format_needs_it(rng):
    wrong = ["bfloat16", "float32", "all formats of 16 bits", "none, it is a habit"]
    loss = rng.choice([1e-4, 1e-5, 1e-6])
    return choice(
        f"A loss is about {loss:g}, so gradients are small. In which format does it need a "
        "GradScaler?", "float16",
        "Small gradients become zero in float16. In bfloat16 they " "do not: " + KEPT,
        *rng.sample(wrong, 3))


# ---- 09.2 Ten pieces instead of one batch

@asks("09.2")
def weight_of_a_label(rng):
    few, many = rng.randint(1, 4), rng.randint(8, 30)
    share = (1 / few) / (1 / many)
    return number(
        f"Two pieces, the mean of each halved and added up. In one {few} labels count, in the "
        f"other {many}. How many times as much does a label of the first count as one of the "
        "second?", share, "Each piece has a half, shared among its labels.", 1, few / many)


@asks("09.2")
def steps_of_an_epoch(rng):
    n, whole_steps = rng.randint(3, 8), rng.randint(3, 12)
    left = rng.randint(1, n - 1)
    pieces = n * whole_steps + left
    return whole(
        f"{pieces} micro-batches, a step for each {n}, and what is left makes a step of its own. "
        "How many steps has the epoch?", len(range(0, pieces, n)),
        "The last step takes fewer pieces.", whole_steps, pieces)


@asks("09.2")
def leftover_too_short(rng):
    n = rng.randint(3, 9)
    left = rng.randint(1, n - 1)
    return number(
        f"A step is made for each {n} equal micro-batches, each loss divided by {n}. At the end "
        f"{left} are left and make a step. What is its length over that of a right one, with plain "
        "SGD?",
        left / n, f"The mean over {left} pieces wants a division by {left}.", 1, n / left)


@asks("09.2")
def weighted_divisor(rng):
    weight = torch.tensor([rng.randint(1, 9) / 2 for _ in range(3)])
    y = torch.tensor([0, 1, 2, rng.randint(0, 2), -100])
    logits = torch.zeros(5, 3)
    total = F.cross_entropy(logits, y, weight, reduction="sum")
    mean = F.cross_entropy(logits, y, weight)
    return number(
        f"Class weights {[v.item() for v in weight]}, labels {y.tolist()}, and -100 is ignored. By "
        "what does F.cross_entropy divide its weighted sum?", (total / mean).item(),
        "By the sum of the weights of the labels that count.",
        *(v for v in (4, 5) if v != (total / mean).item()))


# ---- 09.7 A checkpoint by rank 0

@asks("09.7")
def rows_of_a_rank(rng):
    world = rng.choice([3, 4, 6, 8])
    n = world * rng.randint(2, 9) + rng.randint(1, world - 1)
    parts = torch.empty(n).chunk(world)
    rank = rng.randint(0, world - 1)
    held = len(parts[rank]) if rank < len(parts) else 0
    return whole(
        f"fully_shard cuts a weight of {n} rows for {world} ranks. How many rows does rank {rank} "
        "hold, counted from 0?", held, f"Each takes {-(-n // world)}, the number rounded up, as "
        "far as the rows go.", *({n // world, -(-n // world)} - {held}))


@asks("09.7")
def numbers_in_a_file(rng):
    width, world = 8 * rng.randint(2, 12), rng.choice([2, 4, 8])
    return whole(
        f"nn.Linear({width}, {width}) without bias under fully_shard on {world} ranks. Rank 0 "
        "alone calls torch.save(model.state_dict(), path). How many numbers of the weight are in "
        "the file?", width * width // world, "state_dict has this rank's shard.", width * width,
        width // world)


@asks("09.7")
def what_is_loaded(rng):
    world = rng.choice([2, 4, 8])
    return choice(
        f"{world} ranks load a file that rank 0 alone wrote from its sharded state_dict, all "
        "shards of one size. What does rank 1 have then?", "rank 0's rows",
        "Names and shapes are right, so the only part in the file is copied.",
        "its own rows, as they were saved", "random rows, as before", "nothing: it raises an error")


@asks("09.7")
def who_calls_it(rng):
    call = rng.choice(["dcp.save(state, checkpoint_id=folder)", "dcp.load(state, "
                       "checkpoint_id=folder)", "get_model_state_dict(model, "
                       "options=StateDictOptions(full_state_dict=True))"])
    return choice(
        f"A model is sharded over all ranks. Which ranks call `{call}`?", "all",
        "Each rank has a part that the others do not have.", "rank 0 alone", "the last one",
        "any one of them")


# ---- 09.8 A thousand small steps

def _bf16(value):
    return torch.tensor(float(value)).bfloat16().item()


@asks("09.8")
def next_after(rng):
    power = rng.randint(0, 8)
    gap = torch.finfo(torch.bfloat16).eps * 2**power
    return number(
        f"How far is the next larger bfloat16 number from {2**power}?", gap,
        "A fraction of 7 bits cuts each power of two into 128 steps.", gap / 2, gap * 128)


@asks("09.8")
def where_a_counter_stops(rng):
    step = 2 ** rng.randint(0, 4)
    value = torch.zeros((), dtype=torch.bfloat16)
    while (value + step).item() != value.item():
        value += step
    return whole(
        f"A counter in bfloat16 starts at 0 and grows by {step} each time. Where does it stop?",
        int(value.item()), "Where half the gap to the next number is as large as the step.",
        128 * step, 65504)


@asks("09.8")
def does_it_move(rng):
    weight, step = rng.choice([1.0, 2.0, 4.0]), rng.choice([1e-4, 1e-3, 0.02, 0.05])
    moved = _bf16(weight + step) != weight
    other = "it stays" if moved else "it moves"
    return choice(
        f"A bfloat16 weight of {weight:g} gets a step of {step:g}, without a master. What does it "
        "do?", "it moves" if moved else "it stays", "A step upwards below half the gap is rounded "
        "away; the gap is a 128th of the largest power of two that is not above the weight.", other,
        "it becomes NaN")


@asks("09.8")
def after_a_master(rng):
    count, step = rng.choice([500, 1000, 2000]), rng.choice([0.001, 0.002])
    return number(
        f"A weight of 1 in bfloat16 has a float32 master, which gets {count} steps of {step}. What "
        "does the weight read?", _bf16(1 + count * step), "The master adds up; the weight is "
        "rounded from it.", 1)


# ---- 09.9 Seven billion numbers

BYTES = {"float32": 16, "autocast": 16, "all in bfloat16": 8, "bfloat16 with float32 masters": 16}


@asks("09.9")
def gigabytes_of_a_layout(rng):
    billions, layout = rng.choice([1, 3, 7, 13]), rng.choice(list(BYTES))
    size = BYTES[layout]
    return number(
        f"{billions} billion weights, AdamW, layout: {layout}. How many GB (1e9 bytes) do weights, "
        "gradients, masters and moments take?", billions * size,
        f"{size} bytes for each weight.", billions * 12, billions * (24 - size))


@asks("09.9")
def state_split(rng):
    billions, gpus = rng.choice([1, 7, 13]), rng.choice([2, 4, 8, 16])
    return number(
        f"{billions} billion weights in bfloat16 with float32 masters. Masters and moments are "
        f"split over {gpus} GPUs, weights and gradients are not. GB on each?",
        billions * (4 + 12 / gpus), "Four bytes whole, twelve split.", billions * 16 / gpus,
        billions * 16)


@asks("09.9")
def all_split(rng):
    billions, gpus = rng.choice([3, 7, 70]), rng.choice([4, 8, 32])
    return number(
        f"{billions} billion weights in bfloat16 with float32 masters, everything split over "
        f"{gpus} GPUs. GB on each, without activations?", billions * 16 / gpus,
        "Sixteen bytes a weight, divided by the GPUs.", billions * 12 / gpus, billions * 2 / gpus)


@asks("09.9")
def what_mixed_halves(rng):
    wrong = rng.sample(["the gradients", "the moments", "the weights", "the masters"], 3)
    rows = 1024 * rng.randint(2, 9)
    return choice(
        f"Layers of Linear(256, 256) and GELU under torch.autocast in bfloat16, {rows:,} rows: "
        "which of these is about half as large as in float32?",
        "what autograd keeps for the backward pass",
        "Weights, gradients and moments stay in float32.", *wrong)


# ---- 09.10 Who waits for whom

WAIT = ("loss.item()", "if loss > 3:", "x[mask] with a boolean mask", "print(loss)",
        "loss.tolist()", "float(loss)", "mask.nonzero()")
FLOWS = ("total += loss.detach()", "x[:10]", "torch.where(mask, x, 0)", "loss.backward()",
         "torch.maximum(a, b)", "x * mask")


@asks("09.10")
def which_one_waits(rng):
    step = rng.randint(2, 900)
    return choice(
        f"Step {step}, all tensors are on the GPU. Which of these makes Python wait for it?",
        rng.choice(WAIT), "Python has to know a number, or how many rows there are.",
        *rng.sample(FLOWS, 3))


@asks("09.10")
def which_one_flows(rng):
    step = rng.randint(2, 900)
    return choice(
        f"Step {step}, all tensors are on the GPU. Which of these does not make Python wait?",
        rng.choice(FLOWS), "Its result is a tensor whose shape is known before.",
        *rng.sample(WAIT, 3))


@asks("09.10")
def waits_of_a_run(rng):
    steps, each, often = rng.choice([100, 200, 400]), rng.randint(2, 5), rng.choice([20, 50])
    return whole(
        f"A step asks for {each} numbers, one by one. Of {steps} steps now only each {often}th "
        "does. How often does Python wait?", each * (steps // often), "The other steps ask for "
        "nothing.", each * steps, steps // often)


@asks("09.10")
def names_in_a_trace(rng):
    code, name = rng.choice([("if loss > 3:", "aten::is_nonzero"), ("loss.item()", "aten::item"),
                             ("x[mask], a boolean mask", "aten::index, aten::nonzero inside")])
    wrong = ["aten::mm", "aten::empty", "cudaLaunchKernel", "aten::add_"]
    return choice(
        f"As what does `{code}` appear in a trace?", name,
        "The operation that Python called is the outermost event; the wait lies inside.",
        *rng.sample(wrong, 3))


# ---- 09.14 A model that takes its scaling along

PLACES = {"self.mean = torch.zeros(64)": "nothing",
          "self.register_buffer('mean', torch.zeros(64))": "both",
          "self.mean = nn.Parameter(torch.zeros(64))": "both",
          "self.register_buffer('mean', torch.zeros(64), persistent=False)": "moved only"}
SAID = {"nothing": "neither moved nor saved", "both": "moved and saved",
        "moved only": "moved, not saved"}


@asks("09.14")
def moved_and_saved(rng):
    line = rng.choice(list(PLACES))
    right = SAID[PLACES[line]]
    return choice(
        f"`{line}`. What do model.to(...) and state_dict() do with the tensor?", right,
        "Parameters and buffers are moved; state_dict has those that are persistent.",
        *[v for v in (*SAID.values(), "saved, not moved") if v != right])


@asks("09.14")
def tensors_in_the_file(rng):
    linears, buffers, plain = rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 5)
    model = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(linears)])
    for k in range(buffers):
        model.register_buffer(f"table{k}", torch.ones(2))
    for k in range(plain):
        setattr(model, f"plain{k}", torch.ones(2))
    count = len(model.state_dict())
    return whole(
        f"A model has {linears} Linear layers with biases, {buffers} buffers, and {plain} tensors "
        "in plain attributes. How many tensors has its state_dict?", count,
        "Two for each Linear, one for each buffer.", count + plain, count - buffers)


@asks("09.14")
def alias_in_a_list(rng):
    kind, dtype = rng.choice(["buffer", "parameter"]), rng.choice(["bfloat16", "float16",
                                                                   "float64"])
    right = "the old tensor" if kind == "buffer" else "the moved tensor"
    wrong = ["the old tensor", "the moved tensor", "a copy in both places", "an empty tensor"]
    return choice(
        f"A list holds a {kind} of the model as well. After model.to(torch.{dtype}) the list has",
        right, "A buffer is replaced by a new tensor; a parameter is changed in place.",
        *[v for v in wrong if v != right])


@asks("09.14")
def values_after_loading(rng):
    start, learnt = rng.randint(0, 4), rng.randint(5, 12)
    return whole(
        f"`__init__` sets self.scale = torch.tensor({start}.), a plain attribute. Training sets it "
        f"to {learnt}. After load_state_dict in a new object it is?", start,
        "The file does not have it, and nothing misses it.", learnt)


def _numbers(width, classes):
    """How many numbers a small reader has."""
    net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes))
    return sum(p.numel() for p in net.parameters())


# ---- 09.3 A flag against an error

@asks("09.3")
def calls_with_the_flag(rng):
    steps = rng.randint(10, 90)
    return whole(
        f"A small model under DDP, all gradients in one bucket, find_unused_parameters=True, "
        f"no static_graph, {steps} steps in which nothing is unused. How many all_reduce calls "
        "are on the tape?", 2 * steps,
        "One for the gradients and one for which parameters were used, in every step.", steps, 1)


@asks("09.3")
def bytes_of_the_map(rng):
    layers = rng.randint(3, 40)
    net = nn.Sequential(*[nn.Linear(2, 2) for _ in range(layers)])
    tensors = len(list(net.parameters()))
    return whole(
        f"{layers} linear layers with biases under DDP, find_unused_parameters=True. How many "
        "bytes "
        "has the call in which the ranks say what they used?", 4 * tensors,
        "A number of 4 bytes for each parameter tensor.", tensors, 4 * layers)


@asks("09.3")
def names_unused(rng):
    heads, used = rng.randint(3, 9), rng.randint(1, 2)
    return whole(
        f"A body and {heads} linear heads with biases; all batches use the same {used} of the "
        "heads. How many parameter tensors does a dry run report as unused?", 2 * (heads - used),
        "Weight and bias of each head that no batch uses.", heads - used, 2 * heads)


@asks("09.3")
def where_it_stops(rng):
    steps = rng.randint(5, 50)
    return choice(
        f"On all ranks a DDP model uses all heads but one, the flag is off, {steps} steps are "
        "asked for. What happens?", "an error in the second forward pass",
        "The first backward waits for a gradient that never comes; the next forward finds out.",
        "all steps run, the head stays as it is", "an error in the first backward pass")


# ---- 09.4 A model in pieces

@asks("09.4")
def gathers_of_layers(rng):
    layers = rng.randint(3, 80)
    return whole(
        f"{layers} layers, each sharded by itself and given back after forward. How many "
        "all_gather calls does a training step make?", 2 * layers,
        "One for forward and one for backward, for each layer.", layers, layers + 1)


@asks("09.4")
def calls_in_all(rng):
    layers = rng.randint(3, 80)
    return whole(
        f"{layers} layers, each sharded by itself; what forward gathered stays until backward. How "
        "many collectives does a training step make, of both kinds together?", 2 * layers,
        "One all_gather and one reduce_scatter for each layer.", layers, 3 * layers)


@asks("09.4")
def gathered_bytes(rng):
    width, layers = rng.choice([256, 512, 1024]), rng.randint(4, 24)
    size = torch.empty(width, width, device="meta").nbytes
    return number(
        f"{layers} float32 layers of {width} x {width} without biases, each sharded by itself and "
        "given back after forward. How many MB (1e6 bytes) do the calls of a step have together?",
        3 * layers * size / 1e6, "Two gathers and one reduce_scatter of each layer.",
        layers * size / 1e6, 2 * layers * size / 1e6)


@asks("09.4")
def held_in_forward(rng):
    width, layers = rng.choice([256, 512, 1024]), rng.randint(4, 24)
    size = torch.empty(width, width, device="meta").nbytes
    return number(
        f"{layers} float32 layers of {width} x {width} without biases, sharded as one piece on two "
        "ranks. How many MB (1e6 bytes) of whole layers does a rank hold in forward?",
        layers * size / 1e6, "One piece is gathered at once: the whole model.",
        layers * size / 2e6, size / 1e6)


# ---- 09.5 A sampler for each rank

@asks("09.5")
def share_of_a_rank(rng):
    n, world = rng.randint(50, 999), rng.choice([3, 4, 6, 8])
    share = len(DistributedSampler(range(n), num_replicas=world, rank=0))
    return whole(
        f"A DistributedSampler deals {n} examples to {world} ranks, drop_last=False. How many does "
        "each rank get?", share, "Rounded up: the ranks get equally many, some examples twice.",
        n // world if n % world else share + 1, n)


@asks("09.5")
def read_twice(rng):
    world = rng.choice([6, 8, 16])
    n = world * rng.randint(20, 90) + rng.randint(1, world // 2 - 1)
    rows = world * len(DistributedSampler(range(n), num_replicas=world, rank=0))
    return whole(
        f"{world} ranks evaluate {n} examples with a DistributedSampler. How many examples are "
        "read "
        "twice?", rows - n, "Up to the next multiple of the number of ranks.", 0, n % world)


@asks("09.5")
def orders_seen(rng):
    epochs = rng.randint(5, 60)
    sampler = DistributedSampler(range(500), num_replicas=2, rank=0)
    orders = len({tuple(sampler) for _ in range(epochs)})
    return whole(
        f"{epochs} epochs over 500 examples on two ranks, set_epoch is never called. How many "
        "orders does a rank see?", orders, "The sampler seeds its generator with seed + epoch.",
        epochs, 2)


@asks("09.5")
def left_out(rng):
    world = rng.choice([6, 8, 16])
    n = world * rng.randint(20, 90) + rng.randint(1, world // 2 - 1)
    rows = world * len(DistributedSampler(range(n), num_replicas=world, rank=0, drop_last=True))
    return whole(
        f"{world} ranks, {n} examples, drop_last=True. How many examples does no rank read in an "
        "epoch?", n - rows, "The rest of the division is dropped.", 0, world - n % world)


# ---- 09.6 Four small batches, one update

@asks("09.6")
def exchanges_inside(rng):
    updates, small = rng.randint(5, 40), rng.randint(3, 8)
    return whole(
        f"{updates} updates of {small} small batches each under DDP with one bucket; all but the "
        "last of each run forward and backward inside no_sync. How many exchanges?", updates,
        "One an update.", updates * small, updates * (small - 1))


@asks("09.6")
def exchanges_outside(rng):
    updates, small = rng.randint(5, 40), rng.randint(3, 8)
    return whole(
        f"{updates} updates of {small} small batches each under DDP with one bucket; no_sync holds "
        "backward alone, for all but the last batch. How many exchanges?", updates * small,
        "A forward pass outside no_sync prepares the exchange.", updates, updates * (small - 1))


@asks("09.6")
def bytes_saved(rng):
    width, classes, small = rng.choice([32, 64, 128]), rng.randint(5, 20), rng.randint(3, 8)
    size = 4 * _numbers(width, classes)
    return whole(
        f"A reader 64-{width}-{classes} with biases, float32, {small} small batches an update. How "
        "many bytes of gradients does a right no_sync keep from being reduced, an update?",
        size * (small - 1), "All exchanges but one.", size * small, size)


@asks("09.6")
def updates_with_a_rest(rng):
    every, full = rng.randint(3, 8), rng.randint(3, 20)
    batches = every * full + rng.randint(1, every - 1)
    return whole(
        f"{batches} small batches, {every} to an update, the rest makes one of its own. How many "
        "exchanges does a right loop make?", math.ceil(batches / every),
        "One an update, the last one included.", batches // every, batches)


# ---- 09.11 A name for what is inside the wrapper

@asks("09.11")
def calls_past_the_wrapper(rng):
    steps, wrapped = rng.randint(50, 200), rng.randint(1, 9)
    return whole(
        f"{steps} training steps under DDP with one bucket: the first {wrapped} through the "
        "wrapper, "
        "the others through ddp.module. How many times are gradients reduced?", wrapped,
        "A forward pass past the wrapper prepares no exchange.", steps, 0)


@asks("09.11")
def bytes_of_a_step(rng):
    width, classes = rng.choice([16, 32, 64]), rng.randint(5, 30)
    return whole(
        f"A reader 64-{width}-{classes} with biases in float32, one bucket. How many bytes has the "
        "all_reduce of a step?", 4 * _numbers(width, classes),
        "Each gradient once, 4 bytes a number.", _numbers(width, classes),
        8 * _numbers(width, classes))


@asks("09.11")
def mean_over_ranks(rng):
    first, second = rng.randint(1, 6), rng.randint(10, 30)
    a, b = rng.randint(1, 4), rng.randint(5, 9)
    losses = torch.cat([torch.full((first,), float(a)), torch.full((second,), float(b))])
    return number(
        f"Rank 0 has {first} examples with a loss of {a} each, rank 1 {second} with {b}. What is "
        "the mean loss over all examples?", losses.mean().item(),
        "Sum the losses and the counts over the ranks, then divide.", (a + b) / 2, float(a))


@asks("09.11")
def first_sign(rng):
    steps = rng.randint(100, 900)
    return choice(
        f"Two ranks train {steps} steps with every forward pass through ddp.module. What tells "
        "first?", "a digest of the parameters, compared between the ranks",
        "Both losses fall, nothing waits; only the models differ.", "the loss of rank 0",
        "a hang in backward")


# ---- 09.12 A clip on shards

@asks("09.12")
def norm_of_two(rng):
    a, b = rng.choice([(3, 4), (5, 12), (8, 15), (7, 24), (20, 21)])
    return number(
        f"Two ranks hold shards of a gradient with norms {a} and {b}. What is the norm of the "
        "whole?",
        torch.linalg.vector_norm(torch.tensor([float(a), float(b)])).item(),
        "The root of the sum of squares.", float(a + b), (a + b) / 2)


@asks("09.12")
def too_long(rng):
    world, limit = rng.choice([4, 16, 64]), rng.choice([0.5, 1.0, 2.0])
    return number(
        f"{world} ranks each clip their own shard to a norm of {limit}, and all of them exceed it. "
        "What is the norm of the whole afterwards?", limit * math.sqrt(world),
        "Squares add up: the limit times the root of the number of ranks.", limit, limit * world)


@asks("09.12")
def factor_of_a_clip(rng):
    a, b = rng.choice([(3, 4), (6, 8), (5, 12)])
    return number(
        f"Shards with norms {a} and {b} on two ranks, clip at 1. By what factor is each shard "
        "multiplied?", 1 / math.hypot(a, b), "The same for all ranks: limit over the whole norm.",
        1 / a, 1 / (a + b))


@asks("09.12")
def own_share_of_the_norm(rng):
    world = rng.choice([4, 9, 16, 25])
    return number(
        f"A gradient is spread evenly over {world} ranks. What share of the whole norm does one "
        "rank see in its shard?", 1 / math.sqrt(world),
        "A share 1/ranks of the squares, and then the root.", 1 / world, 1.0)


# ---- 09.13 An optimizer, then fully_shard

@asks("09.13")
def tensors_held(rng):
    layers = rng.randint(2, 12)
    net = nn.Sequential(*[nn.Linear(2, 2) for _ in range(layers)])
    return whole(
        f"AdamW is made for {layers} linear layers with biases, then fully_shard(model). How many "
        "parameters of the model does it hold?", 0,
        "fully_shard puts new parameters in.", len(list(net.parameters())), layers)


@asks("09.13")
def loss_after(rng):
    loss, steps = rng.choice([2.31, 1.87, 4.2]), rng.randint(50, 500)
    return number(
        f"The optimizer of a net without BatchNorm was made before fully_shard. The test loss is "
        f"{loss}. What is it after {steps} steps?", loss,
        "No parameter that the model computes with is moved.", 0.0, loss / 2)


@asks("09.13")
def local_numbers(rng):
    rows, columns, world = 8 * rng.randint(2, 9), rng.randint(3, 40), rng.choice([2, 4, 8])
    return whole(
        f"A weight of {rows} x {columns} under fully_shard on {world} ranks. How many numbers "
        "does a "
        "rank hold of it between the steps?", rows * columns // world,
        "fully_shard cuts along the rows.", rows * columns, rows // world)


@asks("09.13")
def right_order(rng):
    rate = rng.choice([0.01, 0.003, 0.001])
    return choice(
        f"Which order trains the model with AdamW at {rate} under FSDP2?",
        "model, fully_shard, optimizer, forward",
        "The optimizer has to hold the parameters that fully_shard made, sharded.",
        "model, optimizer, fully_shard, forward", "model, fully_shard, forward, optimizer")
