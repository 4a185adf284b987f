# %% [markdown] role="hook"
# # Your model
#
# Fifty-seven of your exercise solutions fit together. In this notebook they make up a
# language model and everything that belongs to it: attention, norms, optimizer,
# checkpoint, adapters and compression. You train it, stop it, run it on two processes,
# talk to it, and make it smaller.
#
# For every exercise that you have not solved, the notebook uses torch or another library
# instead, and says which. So the notebook runs today, and each exercise that you solve
# replaces one of these stand-ins with your own part.
#
# At first, the notebook takes only a few training steps, so all its cells run in about a
# minute. Set `STEPS` to 1000 below to get a model that writes readable words. A run of
# that length takes about three minutes on one core.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "cpu"

# %% role="setup"
STEPS = 40   # of the training; 1000 for a model that is worth reading

# %% role="setup"
import math
import tempfile
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.profiler import profile

from dlsys_helpers import (
    begin, claim, draw_boxes, draw_grids, draw_ranks, flops, guess,
    measured, plot_bars, plot_lines, saved_bytes, seconds,
)
from dlsys_helpers.ranks import Ranks
from dlsys_model import adapters, apart, compression, report
from dlsys_model.network import Network, Shape, rotate, write
from dlsys_model.parts import Parts, load
from dlsys_model.rehearsal import rehearse
from dlsys_model.show import follow, full_run, map_of
from dlsys_model.text import from_file, prose, signatures
from dlsys_model.training import Plan, Training

begin(SEED, THREADS, DEVICE)
folder = Path(tempfile.mkdtemp())   # for checkpoints and the adapter

# %% [markdown] role="concept"
# ## The parts
#
# A part is *yours* if the last check of its exercise passed. Each box below is a part,
# and it links to its exercise once you have started that stage. Point at a box to read
# what the part does here and what replaces a missing part. `dlsys parts` shows the same
# table in a terminal and writes your own code to `my-work/my_parts.py`.

# %% role="concept"
parts = load()
map_of(parts)

# %% [markdown] role="concept"
# A check tests a function on its own. In a model, the function also has to work with
# other code, for example with autocast, which changes dtypes, or with a backward pass
# that fails if a tensor was changed in place. So a rehearsal comes first. The rehearsal
# tries each of your parts alone in a tiny model and compares it with its stand-in. If a
# part breaks, the rehearsal names the part and the shapes. To continue without that
# part, write `parts = load().without("08.10")` above, with your part's number instead
# of 08.10.

# %% role="concept"
rehearse(parts)
print("rehearsed:", len(parts.mine), "parts of yours")

# %% [markdown] role="concept"
# ## The text
#
# The model reads what you have read: the prose of the lessons, a frozen copy of 317,272
# characters. Every tenth block of 2,000 characters is held out for validation. To use a
# text of your own, write `text = from_file("mine.txt", parts.class_numbers)` below. Your
# text needs at least 10,000 characters, encoded in UTF-8. Also give the model a prompt
# that uses only letters from that text.

# %% role="concept"
text = prose(parts.class_numbers)
shape = Shape(letters=len(text.letters))
torch.manual_seed(SEED)
model = Network(shape, parts)
print(len(text.train), "letters to train on,", len(text.valid), "to test,",
      len(text.letters), "different letters")
print(text.decode(text.train[:300]))

# %% [markdown] role="concept"
# The model is a small GPT: four layers of width 96, rows of 256 letters, one token per
# letter. The model has not learned anything yet.

# %% role="concept"
guess("model.1", "What is the loss of the untrained model?",
                 unit="nats per letter")

# %% role="concept"
run = Training(model, text, Plan(steps=STEPS, seed=SEED))
before, _ = parts.evaluate(run.flat, run.validation())
known = math.log(len(text.letters))

# %% role="concept"
measured("model.1", before, right=(known - 0.5, known + 0.5))

# %% [markdown] role="concept"
# The model gives every letter nearly the same probability, so its loss is the logarithm
# of the number of different letters.

# %% role="concept"
claim("loss before the first step minus the logarithm of the number of "
      "letters", before - known, below=0.1, above=-0.1)

# %% [markdown] role="concept"
# ## What it costs
#
# `state_bytes` from exercise 09.9 predicts the memory of the weights, the gradients and
# Adam's two moments. `stored_bytes` from exercise 11.5 counts the bytes that these
# tensors really take after a step.

# %% role="concept"
guess("model.2", "How much memory do weights, gradients and Adam's moments "
      "take?",
      unit="MB")

# %% role="concept"
weights = list(model.parameters())
predicted = parts.state_bytes([(w.numel(), True) for w in weights],
                              "float32", 1, "none")
run.one_step()
moments = [value for state in run.optimizer.state.values()
           for value in state.values() if torch.is_tensor(value)]
there = {"weights": weights, "gradients": [w.grad for w in weights],
         "moments": moments}
taken = {name: parts.stored_bytes({name: held})
         for name, held in there.items()}

# %% role="concept"
measured("model.2", sum(taken.values()) / 1e6, right=(5, 12))

# %% role="concept"
claim("number of bytes counted, divided by the number predicted",
      sum(taken.values()) / predicted, above=0.99, below=1.01)

# %% [markdown] role="concept"
# The weights, the gradients and the moments take the smaller part of the memory. For the
# backward pass, autograd keeps what each operation needs to know about the batch.

# %% role="concept"
guess("model.3", "How much memory does autograd keep for a step of 8 rows?",
      unit="MB")

# %% role="concept"
x, y = run.batch()
kept = saved_bytes(lambda: run._loss(x, y), weights)
took = seconds(run.one_step, repeats=3).median

# %% role="concept"
measured("model.3", kept / 1e6, right=(40, 120))

# %% role="concept"
draw_boxes({"there all the time": {k: v / 1e6 for k, v in taken.items()},
            "in a step": {"kept for backward": kept / 1e6}}, unit="MB",
           title="A batch takes more than weights, gradients, moments",
           alt="Two stacks: one of weights, gradients and moments, and a "
               "much taller one of what a step keeps for backward.")

# %% role="concept"
guess("model.4", "How long does a step of 8 rows take here?", unit="ms")

# %% role="concept"
measured("model.4", 1000 * took, right=(600 * took, 1750 * took))

# %% [markdown] role="concept"
# ## Look it over
#
# Before the long run, check the model with the tools that you wrote. No weight may be
# unused or hidden from the optimizer, and no row's output may depend on the other rows.
# The list below also shows how many times a step waits for a value from the device.

# %% role="concept" tags=["plumbing"]
rows = text.valid[:shape.length * 4].view(4, -1)
block, seen = model.blocks[0], []
hook = block.down.register_forward_pre_hook(
    lambda _, given: seen.append(given[0].flatten(0, 1)))
logits = parts.predict(model, rows)
hook.remove()
with profile() as watched:
    run.one_step()
events = [(e.name, e.time_range.start, e.time_range.end)
          for e in watched.events()]
found = {
    "hidden weights": parts.hidden_values(model),
    "audit": parts.audit(model, run.optimizer),
    "unused": parts.unused_names(model, [run.batch()],
                                 lambda _, batch: run._loss(*batch)),
    "moved by neighbours": parts.batch_dependence(model, rows, rows[:3]),
}

# %% role="concept" tags=["plumbing"]
found |= {
    "module with a NaN": parts.first_nan_module(model, rows),
    "dead units": parts.dead_units(seen[0]),
    "gain of GELU": round(parts.gain_for(F.gelu), 2),
    "largest move of a weight": parts.step_size(run.optimizer),
    "least moved layer": min(
        parts.layer_report(model, run.one_step).items(),
        key=lambda item: item[1])[0],
    "waits in a step": len(parts.find_waits(events)),
    "noisy modules": parts.noisy_modules(model.eval(), rows),
    "stream that tells rows apart": round(
        parts.told_apart(model.branches(), model.emb(rows))[-1], 2),
}
model.train()
for name, value in found.items():
    print(f"{name}: {value}")

# %% role="concept"
claim("number of weights hidden from the optimizer",
      found["hidden weights"], expected=0)
claim("number of trainable weights that the audit finds missing from the "
      "optimizer", len(found["audit"]["missing"]), expected=0)
claim("largest change in a row's logits when other rows change",
      found["moved by neighbours"], below=1e-3)
claim("number of times a step waits for a value from the device",
      found["waits in a step"], above=0)

# %% [markdown] role="concept"
# You can compute attention whole or in tiles. `tiled_attention` from exercise 08.4 holds
# one tile of scores at a time and returns the same result.

# %% role="concept"
draw = torch.Generator().manual_seed(SEED)
q, k, v = torch.randn(3, 1, 1, 50, 24, generator=draw)
whole = parts.decode_step(q, k, v, {}, rotate)[0, 0]
place = torch.arange(50)
q, k = rotate(q, place), rotate(k, place)
tiled = parts.tiled_attention(q[0, 0], k[0, 0], v[0, 0], 50, 16)

# %% role="concept"
claim("largest difference between tiled and whole attention",
      (whole - tiled).abs().max(), below=1e-5)

# %% [markdown] role="concept"
# ## Yours and torch's, side by side
#
# The next cell takes twenty steps without dropout from the same seed, once with your
# parts and once with only the stand-ins. Your parts may add up numbers in a different
# order from the stand-ins, so the losses agree to a thousandth, not to the last bit.

# %% role="concept"
curves = {}
for name, used in (("yours", parts), ("torch's", Parts())):
    torch.manual_seed(SEED)
    short = Training(Network(shape, used, p=0.0), text,
                     Plan(steps=60, rows=2))
    curves[name] = [short.one_step() for _ in range(20)]
apart_by = max(abs(a - b) for a, b in zip(*curves.values()))

# %% role="concept"
plot_lines(range(20), curves, title="Your parts learn as torch's do",
           xlabel="step", ylabel="loss, nats per letter",
           alt="Two falling curves that coincide.")

# %% role="concept"
claim("largest difference in the first 20 losses between your parts and "
      "the stand-ins", apart_by, below=1e-3)

# %% [markdown] role="concept"
# Two of your solutions compute the same gradient in a different way: `ce_from_logits`
# computes the gradient of the loss by hand, and `accum_step` processes the rows in
# pieces. Two others change the step: one applies Lion's rule, and the other uses autocast
# in bfloat16.

# %% role="concept"
ways = {"by hand": {"by_hand": True}, "in two pieces": {"parts_of": 2},
        "Lion": {"rule": "lion"}, "bfloat16": {"dtype": torch.bfloat16}}
ends = {}
for name, change in ways.items():
    torch.manual_seed(SEED)
    short = Training(Network(shape, parts, p=0.0), text,
                     Plan(steps=60, rows=2)._replace(**change))
    ends[name] = [short.one_step() for _ in range(4)][-1]

# %% role="concept"
claim("fourth loss with the gradient by hand minus fourth loss with "
      "autograd", ends["by hand"] - curves["yours"][3], below=1e-3,
      above=-1e-3)
claim("fourth loss in bfloat16 minus fourth loss in float32",
      ends["bfloat16"] - curves["yours"][3], below=0.05, above=-0.05)

# %% [markdown] role="concept"
# ## Train it
#
# `epoch_indices` sets the order of the rows, `warmup_cosine` sets the learning rate, and
# each step is your `clipped_step` around your `adam_step`. The pale curves show a full
# run.

# %% role="concept"
guess("model.10", "How low does the validation loss fall within the number "
                  "of steps that you have set?", unit="nats per letter")

# %% role="concept"
torch.manual_seed(SEED)
model = Network(shape, parts)
run = Training(model, text, Plan(steps=STEPS, seed=SEED, average=0.98,
                                 every=max(5, STEPS // 40)))
follow(run, save=folder / "model.pt")

# %% role="concept"
best = min(row["valid"] for row in run.log())

# %% role="concept"
measured("model.10", best, right=(0.85 * best, 1.15 * best))

# %% role="concept"
claim("lowest validation loss minus the validation loss before the first "
      "step", best - before, below=-0.5)

# %% [markdown] role="concept"
# What would the loss curve have shown if one of these parts were wrong? Less than you
# think. The gallery *What would you see?* shows such training runs with one fault at a
# time. To open the gallery, write `from dlsys_model.walk import walk` and then `walk`
# in a cell of your own.

# %% [markdown] role="concept"
# ## Stop it in the middle
#
# A second process trains a smaller model, writes a checkpoint at step 4 and continues
# until SIGKILL ends it at step 6. This session loads the checkpoint and continues. A
# third run is never stopped. Dropout is on, so the state of the random generator also has
# to be restored.

# %% role="concept"
small = {"width": 48, "layers": 2, "heads": 4, "length": 64}
plan = {"steps": 12, "every": 4, "warm": 2, "rows": 4, "seed": SEED}
job = apart.job(parts, plan, small, 0.1)
status = apart.killed(job, folder / "killed.pt", 4)
resumed = apart.begun(job)
resumed.resume(folder / "killed.pt")
at = resumed.step
after_the_kill = list(resumed.run())
unbroken = apart.begun(job)
in_one_go = list(unbroken.run())

# %% role="concept"
claim("step at which the checkpoint was written", at, expected=4)
claim("is every weight the same as in the unbroken run, to the bit",
      torch.equal(apart.weights(resumed.model),
                  apart.weights(unbroken.model)), expected=True)
claim("number of entries in the resumed run's log", len(resumed.log()),
      expected=3)

# %% [markdown] role="concept"
# ## Two processes
#
# Each of two ranks processes half of the rows. `average_grads` from exercise 09.11
# averages their gradients, so that both ranks take the step that a single process would
# take.

# %% role="concept"
guess("model.5", "In one step, how many bytes does each rank contribute to "
                 "the exchange, per weight of the model?",
                 unit="bytes per weight")

# %% role="concept"
ranks = Ranks(2)
told = {**job, "p": 0.0}
pair = apart.of_two(ranks, told, steps=3)
sent = sum(size for _, size, _ in ranks.tapes[0]) / 3
alone = apart.begun(told)
for _ in range(3):
    alone.one_step()
count = apart.weights(alone.model).numel()

# %% role="concept"
measured("model.5", sent / count, right=(3, 8))

# %% role="concept"
gap = pair[0]["weights"] - apart.weights(alone.model)
claim("largest difference in a weight between two ranks and one process",
      gap.abs().max(), below=1e-4)
claim("are the weights of both ranks the same, to the bit",
      torch.equal(pair[0]["weights"], pair[1]["weights"]), expected=True)

# %% [markdown] role="concept"
# With `ddp_accum`, each of two ranks processes two batches before they exchange
# gradients. `reshard` cuts a state into shards for two ranks and puts the shards together
# again.

# %% role="concept"
both, one = apart.accumulated(ranks, told, 2)
ranks.close()
state = [dict(alone.model.state_dict())]
shards = parts.reshard(state, 2)
back = parts.reshard(shards, 1)[0]

# %% role="concept"
claim("after two updates: largest difference in a weight between DDP and "
      "one process", (both[0] - one).abs().max(), below=1e-5)
claim("is the state the same after it is cut into shards and put together "
      "again",
      all(torch.equal(back[name], state[0][name]) for name in back),
      expected=True)

# %% role="concept"
draw_ranks({"own rows": [["rows 1, 2"], ["rows 3, 4"]],
            "summed": [["gradient"], ["gradient"]]},
           arrows={"own rows": [(0, 1, 0), (1, 0, 0)]},
           title="Each rank has half of the rows and the whole gradient",
           alt="Two ranks with different rows. After the exchange both "
               "hold the same gradient.")

# %% [markdown] role="concept"
# ## Speak to it
#
# Try other prompts and temperatures. After 40 steps the model knows which letters are
# common; after 1,000 it writes words. Below the model's answer you see what the full run
# wrote.
#
# Write `from dlsys_model.page import show` and then `show(model, text.letters)` in a
# cell of your own, and the model writes below that cell. There you can change the
# model's cache, mask and number of bits. Once the notebook is saved, all of this works
# without a kernel.

# %% role="concept"
prompt = "The gradient of the loss "
draw = torch.Generator().manual_seed(SEED)
letters = list(write(model, text.encode(prompt), 120, 0.8, generator=draw))
sample = prompt + text.decode(torch.tensor(letters))
print(sample)
print("\nA full run:", full_run()["sample"][:300])

# %% [markdown] role="concept"
# With a cache, each new letter costs the computation of one position. Without the cache,
# all positions are computed again for each letter.

# %% role="concept"
guess("model.6", "How many FLOPs does it take to write 64 letters without "
                 "the cache, as a multiple of the FLOPs with the cache?",
                  unit="times")

# %% role="concept"
start = text.encode(prompt)
work = {cached: flops(lambda: list(write(model, start, 64, 0, cached)))
        for cached in (True, False)}
row, caches = text.valid[None, :64], model.caches()
whole = parts.predict(model, row)
with torch.no_grad():
    stepwise = [model.eval()(piece, caches) for piece in row.split(8, 1)]

# %% role="concept"
measured("model.6", work[False] / work[True], right=(25, 75))

# %% role="concept"
claim("largest difference between the logits with and without the cache",
      (torch.cat(stepwise, 1) - whole).abs().max(), below=1e-3)

# %% [markdown] role="concept"
# After 256 letters, the cache drops its oldest entries and keeps a window. RoPE needs
# only the distances between positions, so the model can continue to write.

# %% role="concept"
caches = model.caches()
model.eval()
with torch.no_grad():
    for tokens in text.valid[:300].split(50):
        model(tokens[None], caches)
held, gone = caches[0]["k"].shape[2], caches[0].dropped
print(held, "positions kept,", gone, "dropped")

# %% role="concept"
claim("number of positions that the cache keeps", held, expected=256)

# %% [markdown] role="concept"
# ## A second text
#
# The second text consists of the signatures of the exercises and what their docstrings
# promise: `def merge(...)`, for example, followed on the next line by what it returns.
# Four LoRA matrices in each layer learn this text, while the model itself stays frozen.
# The matrices learn to write only the promise; the signature is given.

# %% role="concept"
guess("model.7", "What percentage of all parameters is in the adapter?",
      unit="%")

# %% role="concept"
lessons, tests = adapters.second_text(parts, text, signatures(), seed=SEED)
torch.manual_seed(SEED)
lora = adapters.adapted(model)
learns = parts.passport(lora)["trainable"]
share = learns / (learns + sum(w.numel() for w in model.parameters()))
losses = {"before": adapters.loss_of(lora, tests).item()}

# %% role="concept"
measured("model.7", 100 * share, right=(6, 15))

# %% role="concept"
guess("model.11", "By how much does the loss fall on promises that the "
      "adapter has not seen?", unit="nats per letter")

# %% role="concept"
adapters.tune(lora, lessons, epochs=2)
losses["tuned"] = adapters.loss_of(lora, tests).item()
losses["merged"] = adapters.loss_of(adapters.merged(lora), tests).item()
losses["read back"] = adapters.loss_of(
    adapters.through_file(lora, folder / "adapter.pt"), tests).item()
fallen = losses["before"] - losses["tuned"]

# %% role="concept"
measured("model.11", fallen, right=(0.6 * fallen, 1.7 * fallen))

# %% role="concept"
plot_bars(losses, title="The adapter learns, and merges without loss",
          xlabel="loss on promises it has not seen, nats per letter",
          alt="Four bars: the tallest is before tuning, and the other "
              "three are equal.")

# %% role="concept"
claim("loss on the second text after tuning minus the loss before tuning",
      losses["tuned"] - losses["before"], below=0)
claim("absolute change in the loss when the adapter is merged",
      abs(losses["merged"] - losses["tuned"]), below=1e-3)
claim("absolute change in the loss when the adapter is saved and loaded",
      abs(losses["read back"] - losses["tuned"]), below=1e-6)

# %% [markdown] role="concept"
# ## Smaller
#
# You make six versions of the same model: in 8 bits, in 4 bits, without half of the
# weights in its blocks, with narrower MLPs, as a student of half the width, and as an
# ONNX program. First guess the size of each version in kB. In float32 the model takes
# 1,855 kB.

# %% role="concept"
guess("model.12", "How much does the model take in 8 bits, with a scale "
      "and a zero point for every 32 weights?", unit="kB")

# %% role="concept"
guess("model.8", "How much does the model take in 4 bits?", unit="kB")

# %% role="concept"
guess("model.13", "You prune half of the blocks' weights and store one bit "
                  "per weight to say which are left. How much does the "
                  "model take?", unit="kB")

# %% role="concept"
guess("model.14", "How much does the model take without a quarter of each "
                  "MLP's hidden units?", unit="kB")

# %% role="concept"
guess("model.15", "How much does a student of half the width take?",
      unit="kB")

# %% role="concept"
guess("model.16", "How much does the ONNX program take, in float32?",
      unit="kB")

# %% role="concept"
small_ones = {
    "float32": compression.whole(model),
    "8 bits": compression.in_bits(model, 8),
    "4 bits": compression.in_bits(model, 4),
    "half pruned": compression.pruned(model, text,
                                      steps=max(5, STEPS // 20)),
    "narrower": compression.narrower(model, text.train[:2048].view(8, 256)),
    "student": compression.student(model, text, steps=max(10, STEPS // 4)),
}

# %% role="concept"
kilobytes = {name: one.bytes / 1000 for name, one in small_ones.items()}

# %% role="concept"
measured("model.12", kilobytes["8 bits"], right=(470, 650))

# %% role="concept"
measured("model.8", kilobytes["4 bits"], right=(230, 400))

# %% role="concept"
measured("model.13", kilobytes["half pruned"], right=(970, 1200))

# %% role="concept"
measured("model.14", kilobytes["narrower"], right=(1450, 1700))

# %% role="concept"
measured("model.15", kilobytes["student"], right=(420, 600))

# %% role="concept"
guess("model.9", "By how many thousandths of a nat do 8 bits raise the "
                 "loss?",
      choices=["less than 5", "5 to 50", "more than 50"])

# %% role="concept"
sizes = {name: (one.bytes, compression.loss(one.model, text, parts, 256))
         for name, one in small_ones.items()}
file, program = compression.as_onnx(model, text.valid[:60].view(2, 30),
                                    text.valid[:60].view(3, 20))
batches = [text.valid[:n * 40].view(n, -1).float() for n in (1, 3)]
off = parts.disagreements(compression.Letters(model), program, batches,
                          1e-3)
sizes["ONNX"] = (len(file), sizes["float32"][1])
for name, (size, loss) in sizes.items():
    print(f"{name:12} {size / 1000:7,.0f} kB   {loss:.3f} nats per letter")

# %% role="concept"
measured("model.16", len(file) / 1000, right=(1800, 2400))

# %% role="concept"
measured("model.9", 0)

# %% role="concept"
plot_bars({name: size / 1e6 for name, (size, _) in sizes.items()},
          xlabel="MB", title="Little more than a quarter at 8 bits",
          alt="Bars of megabytes: 1.85 in float32, 0.52 in 8 bits, 0.29 in "
              "4 bits, 1.03 half pruned, 1.56 narrower, 0.48 as a student, "
              "2.07 as ONNX.")

# %% role="concept"
full = sizes["float32"][1]
claim("loss in 8 bits minus loss in float32", sizes["8 bits"][1] - full,
      below=0.005)
claim("number of batches, out of two, on which the ONNX program differs",
      len(off), expected=0)

# %% [markdown] role="concept"
# The figure shows one corner of a matrix. Pruning has set about half of the weights to
# zero, namely the weights that were closest to zero.

# %% role="concept"
left = small_ones["half pruned"].model.blocks[0].up.weight[:12, :24] != 0
draw_grids({"kept": left.float()},
           title="Pruning leaves no regular pattern",
           alt="A grid of 12 by 24 cells. About half of them are empty, in "
               "no particular order.")

# %% [markdown] role="summary"
# ## Your report
#
# The report is one page with your parts, the curve, a sample of what the model writes,
# the sizes, and your guesses. The cell below prints the report, and `dlsys progress`
# then lists it.

# %% role="summary"
print(report.write(parts, run.log(), sample, sizes))
