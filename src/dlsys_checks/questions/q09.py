"""Stage 9: how numbers round, what a mean is a mean of, and which bytes stay where."""

import math
from itertools import combinations

import torch
from torch.nn import functional as F

from dlsys_checks.questions import ask, choice, number, question_for, whole

# ---- 09.1 A scaler out of habit

ask("09.1", {"scale": [2 ** k for k in range(10, 17)], "norm": [k / 100 for k in range(2, 91)]},
    lambda scale, norm: number(
        f"The loss scale is {scale:,}, and a gradient has a norm of {norm}. Without unscale_, what "
        "norm does clip_grad_norm_ compute?", scale * norm,
        "The gradient is still multiplied by the scale.", norm, norm / scale))
ask("09.1", {"scale": [2 ** k for k in range(8, 17)]}, lambda scale: number(
    f"The loss scale is {scale:,}, and the scaled gradient is clipped to a norm of 1. What norm "
    "reaches SGD after scaler.step has divided it?", 1 / scale,
    "What the clip leaves is divided by the scale.", 1, scale))
ask("09.1", {"power": range(12, 19), "over": range(2, 7)}, lambda power, over: whole(
    f"A GradScaler starts at {2**power:,}, and the first {over} steps overflow. What is its scale "
    "after them?",
    2 ** (power - over), "Each overflow halves the scale and skips the step.", 2**power,
    2**power // over))
ask("09.1", {"loss": (1e-4, 1e-5, 1e-6), "wrong": list(combinations(
    ("bfloat16", "float32", "all formats of 16 bits", "none, it is a habit"), 3))},
    lambda loss, wrong: choice(
        f"A loss is about {loss:g}, so gradients are small. In which format does it need a "
        "GradScaler?", "float16", "Small gradients become zero in float16. In bfloat16 they do "
                                  "not, because its exponent has as many bits as float32's.",
        *wrong))

# ---- 09.2 Ten pieces instead of one batch

ask("09.2", {"few": range(1, 5), "many": range(8, 31)}, lambda few, many: number(
    f"The mean losses of two pieces are halved and added up. In the first piece {few} labels "
    f"count, in the second piece {many}. How many times as much as a label of the second piece "
    "does a label of the first piece count?",
    (1 / few) / (1 / many), "Each piece contributes a half, divided among its labels.",
    1, few / many))
ask("09.2", {"n": range(3, 9), "full": range(3, 13), "left": lambda n, **_: range(1, n)},
    lambda n, full, left: whole(
        f"An epoch has {n * full + left} micro-batches, with one step for every {n}, and a last "
        "step for the rest. How many steps are there?",
        full + 1, "The last step takes fewer micro-batches.",
        full, n * full + left))
ask("09.2", {"n": range(3, 10), "left": lambda n: range(1, n)}, lambda n, left: number(
    f"Every {n} equal micro-batches make a step, with each loss divided by {n}. The last step has "
    f"only {left}. With plain SGD, how large is the last step, as a multiple of a correct step?",
    left / n, f"The mean over {left} micro-batches needs a division by {left}.", 1, n / left))


@question_for("09.2")
def weighted_divisor(rng):
    weight = torch.tensor([rng.randint(1, 9) / 2 for _ in range(3)])
    y = torch.tensor([0, 1, 2, rng.randint(0, 2), -100])
    logits = torch.zeros(5, 3)
    total = F.cross_entropy(logits, y, weight, reduction="sum")
    mean = F.cross_entropy(logits, y, weight)
    return number(
        f"The class weights are {[v.item() for v in weight]}, the labels {y.tolist()}, and -100 is "
        "ignored. By what does F.cross_entropy divide its weighted sum?", (total / mean).item(),
        "The divisor is the sum of the weights of the labels that count.",
        *(v for v in (4, 5) if v != (total / mean).item()))


# ---- 09.7 A checkpoint by rank 0

ask("09.7", {"world": (3, 4, 6, 8),
             "n": lambda world: [n for n in range(2 * world, 10 * world) if n % world],
             "rank": lambda world, **_: range(world)},
    lambda world, n, rank: whole(
        f"fully_shard cuts a weight of {n} rows for {world} ranks. How many rows does rank {rank} "
        "(counted from 0) hold?", held := min(each := -(-n // world), max(0, n - rank * each)),
        f"Each rank takes {-(-n // world)}, which is {n} / {world} rounded up, as long as there "
        "are rows left.",
        *({n // world, each} - {held})))
ask("09.7", {"width": range(16, 97, 8), "world": (2, 4, 8)}, lambda width, world: whole(
    f"An nn.Linear({width}, {width}) without bias is sharded by fully_shard on {world} ranks. Only "
    "rank 0 calls torch.save(model.state_dict(), path). How many values of the weight are in the "
    "file?",
    width * width // world, "A rank's state_dict has only the rank's own shard.",
    width * width, width // world))
ask("09.7", {"world": (2, 4, 8)}, lambda world: choice(
    f"{world} ranks load a file that only rank 0 wrote, from its sharded state_dict. All shards "
    "have the same size. What does rank 1 hold after loading?", "rank 0's rows",
    "Names and shapes match, so every rank copies the only part in the file.",
    "its own rows, as they were saved", "random rows, as before", "nothing: it raises an error"))
ask("09.7", {"call": (
    "dcp.save(state, checkpoint_id=folder)", "dcp.load(state, checkpoint_id=folder)",
    "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))")},
    lambda call: choice(
        f"A model is sharded over all ranks. Which ranks call `{call}`?", "all",
        "Every rank has a part that no other rank has.", "rank 0 alone", "the last rank",
        "any one rank"))


# ---- 09.8 A thousand small steps

def _bf16(value):
    return torch.tensor(float(value)).bfloat16().item()


ask("09.8", {"power": range(9)}, lambda power: number(
    f"How far is the next larger bfloat16 number from {2**power}?", (gap := 2**power / 128),
    "With 7 fraction bits there are 128 steps from each power of two to the next.",
    gap / 2, gap * 128))
ask("09.8", {"step": [2 ** k for k in range(5)]}, lambda step: whole(
    f"A counter in bfloat16 starts at 0 and grows by {step} each time. At what value does the "
    "counter stop?",
    256 * step, "The counter stops where half the gap to the next number is as large as the step.",
    128 * step,
    65504))
ask("09.8", {"weight": (1.0, 2.0, 4.0), "step": (1e-4, 1e-3, 0.02, 0.05)},
    lambda weight, step: choice(
        f"A bfloat16 weight of {weight:g} gets a step of {step:g}, without a master. What "
        "does the weight do?",
        "it moves" if _bf16(weight + step) > weight else "it stays",
        "An upward step below half the gap is rounded away, and the gap is a 128th of the largest "
        "power of two that is not above the weight.", "it moves", "it stays", "it becomes NaN"))
ask("09.8", {"count": (500, 1000, 2000), "step": (0.001, 0.002)}, lambda count, step: number(
    f"A weight of 1 in bfloat16 has a float32 master, which gets {count} steps of {step}. What is "
    "the value of the weight?", _bf16(1 + count * step),
    "The master adds up the steps, and the weight is rounded from the master.", 1))

# ---- 09.9 Seven billion numbers

BYTES = {"float32": 16, "autocast": 16, "all in bfloat16": 8, "bfloat16 with float32 masters": 16}

ask("09.9", {"billions": (1, 3, 7, 13), "layout": list(BYTES)}, lambda billions, layout: number(
    f"A model has {billions} billion weights and trains with AdamW in this layout: {layout}. How "
    "many GB (1e9 bytes) do weights, gradients, masters and moments take?",
    billions * (size := BYTES[layout]),
    f"This layout takes {size} bytes per weight.", billions * 12, billions * (24 - size)))
ask("09.9", {"billions": (1, 7, 13), "gpus": (2, 4, 8, 16)}, lambda billions, gpus: number(
    f"A model has {billions} billion weights in bfloat16 with float32 masters and AdamW. Masters "
    f"and moments are split over {gpus} GPUs, but weights and gradients are not. How many GB does "
    "each GPU hold?", billions * (4 + 12 / gpus),
    "Four bytes per weight are whole, and twelve are split.", billions * 16 / gpus, billions * 16))
ask("09.9", {"billions": (3, 7, 70), "gpus": (4, 8, 32)}, lambda billions, gpus: number(
    f"A model has {billions} billion weights in bfloat16 with float32 masters and AdamW, all split "
    f"over {gpus} GPUs. How many GB does each GPU hold, without activations?", billions * 16 / gpus,
    "There are sixteen bytes per weight, divided by the number of GPUs.",
    billions * 12 / gpus, billions * 2 / gpus))
ask("09.9", {"rows": range(2048, 9217, 1024), "wrong": list(combinations(
    ("the gradients", "the moments", "the weights", "the masters"), 3))},
    lambda rows, wrong: choice(
        f"Layers of Linear(256, 256) and GELU run under torch.autocast in bfloat16 on {rows:,} "
        "rows. What takes about half as much memory as in float32?",
        "what autograd keeps for the backward pass",
        "Weights, gradients and moments stay in float32.", *wrong))

# ---- 09.10 Who waits for whom

WAIT = ("loss.item()", "if loss > 3:", "x[mask] with a boolean mask", "print(loss)",
        "loss.tolist()", "float(loss)", "mask.nonzero()")
FLOWS = ("total += loss.detach()", "x[:10]", "torch.where(mask, x, 0)", "loss.backward()",
         "torch.maximum(a, b)", "x * mask")

ask("09.10", {"step": range(2, 901), "waits": WAIT, "flow": list(combinations(FLOWS, 3))},
    lambda step, waits, flow: choice(
        f"In step {step} all tensors are on the GPU. Which of these makes Python wait for the GPU?",
        waits,
        "Python needs a value or a number of rows from the GPU.", *flow))
ask("09.10", {"step": range(2, 901), "flows": FLOWS, "wait": list(combinations(WAIT, 3))},
    lambda step, flows, wait: choice(
        f"In step {step} all tensors are on the GPU. Which of these does not make Python wait?",
        flows, "It makes only tensors whose shapes are known in advance.", *wait))
ask("09.10", {"steps": (100, 200, 400), "each": range(2, 6), "often": (20, 50)},
    lambda steps, each, often: whole(
        f"A step asks for {each} values, one by one. Now only every {often}th of {steps} steps "
        "asks. How often does Python wait?", each * (steps // often),
        "The other steps ask for nothing.", each * steps, steps // often))
ask("09.10", {"code, name": [("if loss > 3:", "aten::is_nonzero"), ("loss.item()", "aten::item"),
                             ("x[mask], a boolean mask", "aten::index, aten::nonzero inside")],
              "wrong": list(combinations(
                  ("aten::mm", "aten::empty", "cudaLaunchKernel", "aten::add_"), 3))},
    lambda code, name, wrong: choice(
        f"How does `{code}` appear in a trace?", name,
        "The operation that Python called is the outermost event, and the wait is inside it.",
        *wrong))

# ---- 09.14 A model that takes its scaling along

PLACES = (("self.mean = torch.zeros(64)", "neither moved nor saved"),
          ("self.register_buffer('mean', torch.zeros(64))", "moved and saved"),
          ("self.mean = nn.Parameter(torch.zeros(64))", "moved and saved"),
          ("self.register_buffer('mean', torch.zeros(64), persistent=False)", "moved, not saved"))

ask("09.14", {"line, right": PLACES}, lambda line, right: choice(
    f"`{line}`. What do model.to(...) and state_dict() do with the tensor?", right,
    "Parameters and buffers are moved, and state_dict has all except non-persistent buffers.",
    "neither moved nor saved", "moved and saved", "moved, not saved", "saved, not moved"))
ask("09.14", {"linears": range(1, 5), "buffers": range(1, 5), "plain": range(1, 6)},
    lambda linears, buffers, plain: whole(
        f"A model has {linears} Linear layers with biases, {buffers} buffers, and {plain} tensors "
        "in plain attributes. How many tensors does its state_dict have?",
        (count := 2 * linears + buffers), "There are two for each Linear and one for each buffer.",
        count + plain, count - buffers))
ask("09.14", {"kind": ("buffer", "parameter"), "dtype": ("bfloat16", "float16", "float64")},
    lambda kind, dtype: choice(
        f"A list also holds a {kind} of the model. What does the list hold after "
        f"model.to(torch.{dtype})?",
        "the old tensor" if kind == "buffer" else "the moved tensor",
        "A buffer is replaced by a new tensor, and a parameter is changed in place.",
        "the old tensor",
        "the moved tensor", "a copy in both places", "an empty tensor"))
ask("09.14", {"start": range(5), "learnt": range(5, 13)}, lambda start, learnt: whole(
    f"`__init__` sets self.scale = torch.tensor({start}.), a plain attribute, and training sets it "
    f"to {learnt}. What is self.scale in a new object after load_state_dict?", start,
    "The file does not contain the tensor, and load_state_dict does not report it as "
    "missing.", learnt))


def _numbers(width, classes):
    """How many numbers a small reader has: 64 inputs, a layer of this width, a head."""
    return 65 * width + (width + 1) * classes


# ---- 09.3 A flag against an error

ask("09.3", {"steps": range(10, 91)}, lambda steps: whole(
    "A small model trains under DDP with find_unused_parameters=True, without static_graph, and "
    "with all gradients in one bucket. No parameter is unused. How many all_reduce calls are made "
    f"in {steps} steps?", 2 * steps,
    "Every step makes one call for the gradients and one to say which parameters were used.",
    steps, 1))
ask("09.3", {"layers": range(3, 41)}, lambda layers: whole(
    f"{layers} linear layers with biases train under DDP with find_unused_parameters=True. How "
    "large, in bytes, is the call in which the ranks say which parameters they used?", 8 * layers,
    "The call has one value of 4 bytes for each parameter tensor.", 2 * layers, 4 * layers))
ask("09.3", {"heads": range(3, 10), "used": range(1, 3)}, lambda heads, used: whole(
    f"A net has a body and {heads} linear heads with biases, and all batches use the same {used} "
    "of the heads. How many parameter tensors does a dry run report as unused?", 2 * (heads - used),
    "Unused are the weight and the bias of each head that no batch uses.", heads - used, 2 * heads))
ask("09.3", {"steps": range(5, 51)}, lambda steps: choice(
    "On all ranks a DDP model uses all heads except one, with find_unused_parameters=False. You "
    f"run {steps} steps. What happens?", "an error in the second forward pass",
    "The first backward pass waits for a gradient that never arrives, and the next forward pass "
    "notices.",
    "all steps run, and the head does not change", "an error in the first backward pass"))

# ---- 09.4 A model in pieces

ask("09.4", {"layers": range(3, 81)}, lambda layers: whole(
    f"{layers} layers are each sharded by themselves and released after forward. How many "
    "all_gather calls does a training step make?", 2 * layers,
    "Each layer needs one all_gather for forward and one for backward.", layers, layers + 1))
ask("09.4", {"layers": range(3, 81)}, lambda layers: whole(
    f"{layers} layers are each sharded by themselves, and what forward gathers stays until "
    "backward. How many collectives does a training step make in total?", 2 * layers,
    "Each layer needs one all_gather and one reduce_scatter.", layers, 3 * layers))
ask("09.4", {"width": (256, 512, 1024), "layers": range(4, 25)}, lambda width, layers: number(
    f"{layers} float32 layers of {width} x {width} without biases are each sharded by themselves "
    "and released after forward. How many MB (1e6 bytes) do all calls of a step move in total?",
    3 * layers * (size := 4 * width**2) / 1e6, "Each layer needs two gathers and one "
                                               "reduce_scatter.",
    layers * size / 1e6, 2 * layers * size / 1e6))
ask("09.4", {"width": (256, 512, 1024), "layers": range(4, 25)}, lambda width, layers: number(
    f"{layers} float32 layers of {width} x {width} without biases are sharded as one piece on two "
    "ranks. How many MB (1e6 bytes) of whole layers does a rank hold in forward?",
    layers * (size := 4 * width**2) / 1e6, "As one piece, the whole model is gathered at once.",
    layers * size / 2e6, size / 1e6))

# ---- 09.5 A sampler for each rank

ask("09.5", {"n": range(50, 1000), "world": (3, 4, 6, 8)}, lambda n, world: whole(
    f"A DistributedSampler deals {n} examples to {world} ranks, with drop_last=False. How many "
    "examples does each rank get?", (share := -(-n // world)),
    "All ranks get equally many, so the number is rounded up, and some may come twice.",
    n // world if n % world else share + 1, n))
ask("09.5", {"world": (6, 8, 16),
             "n": lambda world: [
                 n for n in range(20 * world, 91 * world) if 0 < n % world < world // 2]},
    lambda world, n: whole(
        f"{world} ranks evaluate {n} examples with a DistributedSampler. How many examples are "
        "evaluated twice?",
        -n % world, "The sampler fills up to the next multiple of the number of ranks.",
        0, n % world))
ask("09.5", {"epochs": range(5, 61)}, lambda epochs: whole(
    f"Two ranks train {epochs} epochs over 500 examples and never call set_epoch. In how many "
    "different orders does a rank read its examples?",
    1, "The sampler seeds its generator with seed + epoch, and the epoch stays 0.", epochs, 2))
ask("09.5", {"world": (6, 8, 16),
             "n": lambda world: [
                 n for n in range(20 * world, 91 * world) if 0 < n % world < world // 2]},
    lambda world, n: whole(
        f"{world} ranks train on {n} examples with drop_last=True. How many examples does no rank "
        "use in an epoch?",
        n % world, "The remainder of the division is dropped.", 0, world - n % world))

# ---- 09.6 Four small batches, one update

ask("09.6", {"updates": range(5, 41), "small": range(3, 9)}, lambda updates, small: whole(
    f"Under DDP with one bucket, you make {updates} updates of {small} small batches each. All but "
    "the last batch of each update run forward and backward inside no_sync. How many exchanges are "
    "there?", updates,
    "There is one exchange per update.", updates * small, updates * (small - 1)))
ask("09.6", {"updates": range(5, 41), "small": range(3, 9)}, lambda updates, small: whole(
    f"Under DDP with one bucket, you make {updates} updates of {small} small batches each. For all "
    "but the last batch, only backward is inside no_sync. How many exchanges are there?",
    updates * small,
    "A forward pass outside no_sync prepares the exchange.", updates, updates * (small - 1)))
ask("09.6", {"width": (32, 64, 128), "classes": range(5, 21), "small": range(3, 9)},
    lambda width, classes, small: whole(
        f"A 64-{width}-{classes} classifier with biases trains in float32 with {small} small "
        "batches per update. How many bytes of gradient exchange does a correct no_sync save per "
        "update?",
        (size := 4 * _numbers(width, classes)) * (small - 1), "All exchanges except one are saved.",
        size * small, size))
ask("09.6", {"every": range(3, 9), "full": range(3, 21),
             "rest": lambda every, **_: range(1, every)},
    lambda every, full, rest: whole(
        f"An epoch has {every * full + rest} small batches, with {every} per update and a last "
        "update for the rest. How many exchanges does a correct loop make?", full + 1,
        "There is one exchange per update, including the last one.", full, every * full + rest))

# ---- 09.11 A name for what is inside the wrapper

ask("09.11", {"steps": range(50, 201), "wrapped": range(1, 10)}, lambda steps, wrapped: whole(
    f"Of {steps} training steps under DDP with one bucket, the first {wrapped} go through the "
    "wrapper and the others through ddp.module. How many times are gradients reduced?", wrapped,
    "A forward pass that bypasses the wrapper prepares no exchange.", steps, 0))
ask("09.11", {"width": (16, 32, 64), "classes": range(5, 31)}, lambda width, classes: whole(
    f"A 64-{width}-{classes} classifier with biases trains in float32 under DDP with one bucket. "
    "How large, in bytes, is the all_reduce of a step?",
    4 * _numbers(width, classes), "Each gradient is sent once, with 4 bytes per value.",
    _numbers(width, classes), 8 * _numbers(width, classes)))
ask("09.11", {"first": range(1, 7), "second": range(10, 31), "a": range(1, 5), "b": range(5, 10)},
    lambda first, second, a, b: number(
        f"Rank 0 has {first} examples with a loss of {a} each, and rank 1 has {second} with a loss "
        f"of {b} each. What is the mean loss over all examples?",
        (first * a + second * b) / (first + second),
        "Sum the losses and the counts over the ranks, then divide.", (a + b) / 2, float(a)))
ask("09.11", {"steps": range(100, 901)}, lambda steps: choice(
    f"Two ranks train {steps} steps with every forward pass through ddp.module. What shows the "
    "fault first?",
    "a digest of the parameters, compared between the ranks",
    "Both losses fall and nothing waits. Only the models differ.", "the loss of rank 0",
    "a hang in backward"))

# ---- 09.12 A clip on shards

ask("09.12", {"a, b": [(3, 4), (5, 12), (8, 15), (7, 24), (20, 21)]}, lambda a, b: number(
    f"Two ranks hold shards of a gradient with norms {a} and {b}. What is the norm of the whole "
    "gradient?",
    math.hypot(a, b), "The norm is the root of the sum of squares.", a + b, (a + b) / 2))
ask("09.12", {"world": (4, 16, 64), "limit": (0.5, 1.0, 2.0)}, lambda world, limit: number(
    f"{world} ranks each clip their own shard to a norm of {limit}, and every shard's norm was "
    "above that. What is the norm of the whole gradient afterwards?", limit * math.sqrt(world),
    "Squares add up, so the norm is the limit times the root of the number of ranks.",
    limit, limit * world))
ask("09.12", {"a, b": [(3, 4), (6, 8), (5, 12)]}, lambda a, b: number(
    f"Two ranks hold shards with norms {a} and {b}, and the whole gradient is clipped to a norm of "
    "1. By what factor is each shard multiplied?",
    1 / math.hypot(a, b), "The factor is the same for all ranks: the limit divided by the whole "
                          "norm.",
    1 / a, 1 / (a + b)))
ask("09.12", {"world": (4, 9, 16, 25)}, lambda world: number(
    f"A gradient is spread evenly over {world} ranks. What fraction of the whole norm is the norm "
    "of one rank's shard?",
    1 / math.sqrt(world), "A rank has 1/ranks of the sum of squares. Take the root of that.",
    1 / world, 1.0))

# ---- 09.13 An optimizer, then fully_shard

ask("09.13", {"layers": range(2, 13)}, lambda layers: whole(
    f"AdamW is made for {layers} linear layers with biases, then fully_shard(model). How many of "
    "the model's parameters does the optimizer then hold?", 0,
    "fully_shard puts new parameters into the model.",
    2 * layers,
    layers))
ask("09.13", {"loss": (2.31, 1.87, 4.2), "steps": range(50, 501)}, lambda loss, steps: number(
    "The optimizer of a net without BatchNorm was made before fully_shard. The test loss is "
    f"{loss}. What is the test loss after {steps} steps?", loss,
    "The optimizer changes no parameter that the model computes with.", 0.0, loss / 2))
ask("09.13", {"rows": range(16, 73, 8), "columns": range(3, 41), "world": (2, 4, 8)},
    lambda rows, columns, world: whole(
        f"A weight of {rows} x {columns} is sharded by fully_shard on {world} ranks. How many of "
        "its values does a rank hold between the steps?", rows * columns // world,
        "fully_shard cuts along the rows.", rows * columns, rows // world))
ask("09.13", {"rate": (0.01, 0.003, 0.001)}, lambda rate: choice(
    f"One fully_shard call cuts the whole model. Which order trains it with AdamW at {rate}?",
    "model, fully_shard, optimizer, forward",
    "The optimizer has to hold the sharded parameters that fully_shard made.",
    "model, optimizer, fully_shard, forward", "model, fully_shard, forward, optimizer"))


# ---- The ideas: what data parallelism adds up, and why float16 needs a scale

ask("09.2", {"rows": (2, 4, 8, 16), "passes": (2, 4, 5, 8), "ranks": (3, 6, 12, 24)},
    lambda rows, passes, ranks: whole(
        f"Each of {ranks} GPUs runs {passes} batches of {rows} rows before the optimizer steps. "
        "How many rows is one step computed from?", rows * passes * ranks,
        "The effective batch is rows times passes times ranks.", rows * ranks, rows * passes,
        rows))
ask("09.1", {"e": range(26, 41)}, lambda e: whole(
    f"The smallest positive float16 is 2^-24. A gradient is 2^-{e}. With a loss scale of 2^k, what "
    "is the smallest whole k for which the scaled gradient does not become 0?", e - 24,
    "The scale multiplies every gradient, so 2^k times 2^-e has to reach 2^-24.", e, 24, e + 24))
