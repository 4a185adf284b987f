# %% [markdown] role="hook"
# # Your model
#
# Fifty-seven of your answers fit together. In this notebook they are a language model:
# its attention, its norms, its optimizer, its checkpoint, its adapters, its compression.
# You train it, stop it, run it on two processes, talk to it, and make it smaller.
#
# What you have not solved comes from torch, or from another library that is named. So
# the notebook runs today, and each exercise that you solve changes hands.
#
# It begins with few steps, so that all cells run in about a minute. Set `STEPS` to 1000
# below for a model whose words can be read; that takes about three minutes of one core.

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
# A part is *yours* where the last check of its exercise passed. Each box below is one;
# it leads to its exercise once you have started that stage. Point at it to read what it
# does here and what stands in. `dlsys parts` shows the same table in a terminal, and
# writes your own code to `my-work/my_parts.py`.

# %% role="concept"
parts = load()
map_of(parts)

# %% [markdown] role="concept"
# A check tries a function alone. In a model a function meets others: another dtype under
# autocast, a backward pass that finds a tensor changed in place. So first a rehearsal:
# each of your parts alone in a tiny model, against its stand-in. One that breaks is
# named, with its shapes. To go on without it, write
# `parts = load().without("08.10")` above, with its number.

# %% role="concept"
rehearse(parts)
print("rehearsed:", len(parts.mine), "parts of yours")

# %% [markdown] role="concept"
# ## The text
#
# The model reads what you have read: the prose of the lessons, frozen, 317,272
# characters. Every tenth block of 2,000 is kept for validation. For a text of your own
# write `text = from_file("mine.txt", parts.class_numbers)` below; it takes 10,000
# characters in UTF-8. Give it a prompt in its own letters, too.

# %% role="concept"
text = prose(parts.class_numbers)
shape = Shape(letters=len(text.letters))
torch.manual_seed(SEED)
model = Network(shape, parts)
print(len(text.train), "letters to train on,", len(text.valid), "to test,",
      len(text.letters), "kinds")
print(text.decode(text.train[:300]))

# %% [markdown] role="concept"
# The model is a small GPT: four layers of width 96, rows of 256 letters, one token a
# letter. It has learned nothing yet.

# %% role="concept"
guess("model.1", "What is its loss now?", unit="nats a letter")

# %% role="concept"
run = Training(model, text, Plan(steps=STEPS, seed=SEED))
before, _ = parts.evaluate(run.flat, run.validation())
known = math.log(len(text.letters))

# %% role="concept"
measured("model.1", before, right=(known - 0.5, known + 0.5))

# %% [markdown] role="concept"
# It gives each letter nearly the same probability, so it pays the logarithm of their
# number.

# %% role="concept"
claim("loss before the first step minus ln of the kinds",
      before - known, below=0.1, above=-0.1)

# %% [markdown] role="concept"
# ## What it costs
#
# `state_bytes` of exercise 09.9 predicts what weights, gradients and Adam's two moments
# take; `stored_bytes` of 11.5 counts what is there after a step.

# %% role="concept"
guess("model.2", "How much do weights, gradients and Adam's moments take?",
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
claim("bytes there, over those predicted", sum(taken.values()) / predicted,
      above=0.99, below=1.01)

# %% [markdown] role="concept"
# That is the smaller half. For its backward pass autograd keeps what each operation
# needs of a batch.

# %% role="concept"
guess("model.3", "How much does autograd keep for a step of 8 rows?",
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
           alt="Two stacks: weights, gradients and moments, and beside "
               "them the much taller one of what a step keeps.")

# %% role="concept"
guess("model.4", "How long does a step of 8 rows take here?", unit="ms")

# %% role="concept"
measured("model.4", 1000 * took, right=(600 * took, 1750 * took))

# %% [markdown] role="concept"
# ## Look it over
#
# Your meters, before the long run. Nothing may be hidden from the optimizer, unused, or
# seen by a neighbour; the last line says how often a step waits for a number.

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
claim("weights hidden from the optimizer", found["hidden weights"],
      expected=0)
claim("names that the audit finds", len(found["audit"]["missing"]),
      expected=0)
claim("how far other rows move a row's logits",
      found["moved by neighbours"], below=1e-3)
claim("waits in a step", found["waits in a step"], above=0)

# %% [markdown] role="concept"
# Attention may be computed whole or in tiles; `tiled_attention` of exercise 08.4 holds
# one tile of scores at a time and comes to the same.

# %% role="concept"
draw = torch.Generator().manual_seed(SEED)
q, k, v = torch.randn(3, 1, 1, 50, 24, generator=draw)
whole = parts.decode_step(q, k, v, {}, rotate)[0, 0]
place = torch.arange(50)
q, k = rotate(q, place), rotate(k, place)
tiled = parts.tiled_attention(q[0, 0], k[0, 0], v[0, 0], 50, 16)

# %% role="concept"
claim("tiles against the whole", (whole - tiled).abs().max(), below=1e-5)

# %% [markdown] role="concept"
# ## Yours and torch's, side by side
#
# Twenty steps from the same seed, once with your parts and once with the stand-ins
# alone, without dropout. Sums run in another order, so the losses agree to a thousandth,
# not to the bit.

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
           xlabel="step", ylabel="loss, nats a letter",
           alt="Two falling curves that lie on each other.")

# %% role="concept"
claim("largest difference of the first 20 losses", apart_by, below=1e-3)

# %% [markdown] role="concept"
# Two of your answers are other ways to the same gradient: `ce_from_logits` computes that
# of the loss by hand, `accum_step` takes the rows in pieces. Two others are other steps:
# Lion's rule, and autocast in bfloat16.

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
claim("loss 3 by hand, against autograd",
      ends["by hand"] - curves["yours"][3], below=1e-3, above=-1e-3)
claim("loss 3 in bfloat16, against float32",
      ends["bfloat16"] - curves["yours"][3], below=0.05, above=-0.05)

# %% [markdown] role="concept"
# ## Train it
#
# Rows come in the order of `epoch_indices`, the rate follows `warmup_cosine`, the step is
# your `clipped_step` around your `adam_step`. The pale curves are those of a full run.

# %% role="concept"
guess("model.10", "To what does the validation loss fall, with the steps "
      "that you have set?", unit="nats a letter")

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
claim("validation loss, under that before the first step",
      best - before, below=-0.5)

# %% [markdown] role="concept"
# What would the curve have shown if one of these parts were wrong? Less than you think.
# *What would you see?* is a gallery of one such training with a fault at a time: in a cell
# of your own, `from dlsys_model.walk import walk`, and then `walk`.

# %% [markdown] role="concept"
# ## Stop it in the middle
#
# A second process trains a smaller model, writes a checkpoint at step 4, goes on, and
# dies of SIGKILL at step 6. This session reads the checkpoint and goes on. A third run
# is never stopped. Dropout is on, so the generator's state has to come back as well.

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
claim("step of the checkpoint", at, expected=4)
claim("is each weight the same, to the bit", torch.equal(
    apart.weights(resumed.model), apart.weights(unbroken.model)),
      expected=True)
claim("entries of the resumed run's log", len(resumed.log()), expected=3)

# %% [markdown] role="concept"
# ## Two processes
#
# Two ranks take half of the rows each. `average_grads` of exercise 09.11 sums their
# gradients, so that both make the step that one process would make.

# %% role="concept"
guess("model.5", "How many bytes does each rank hand over in a step, for "
      "each weight of the model?", unit="bytes a weight")

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
claim("largest difference of a weight, two ranks and one",
      gap.abs().max(), below=1e-4)
claim("are both ranks the same, to the bit",
      torch.equal(pair[0]["weights"], pair[1]["weights"]), expected=True)

# %% [markdown] role="concept"
# With `ddp_accum` two ranks take two batches each before they exchange. A state of two
# ranks, cut in shards, comes back whole with `reshard`.

# %% role="concept"
both, one = apart.accumulated(ranks, told, 2)
ranks.close()
state = [dict(alone.model.state_dict())]
shards = parts.reshard(state, 2)
back = parts.reshard(shards, 1)[0]

# %% role="concept"
claim("largest difference after two updates with DDP",
      (both[0] - one).abs().max(), below=1e-5)
claim("does the state come back from its shards",
      all(torch.equal(back[name], state[0][name]) for name in back),
      expected=True)

# %% role="concept"
draw_ranks({"own rows": [["rows 1, 2"], ["rows 3, 4"]],
            "summed": [["gradient"], ["gradient"]]},
           arrows={"own rows": [(0, 1, 0), (1, 0, 0)]},
           title="Each rank has half of the rows and the whole gradient",
           alt="Two ranks with different rows; after the exchange both "
               "hold the same gradient.")

# %% [markdown] role="concept"
# ## Speak to it
#
# Change the prompt and the temperature. After 40 steps it knows which letters are
# common; after 1,000 it writes words. Below stands what the full run wrote.
#
# `from dlsys_model.page import show` and then `show(model, text.letters)` in a cell of
# your own lets it write below that cell, with its cache, its mask and its bits as
# switches, and without a kernel once the notebook is stored.

# %% role="concept"
prompt = "The gradient of the loss "
draw = torch.Generator().manual_seed(SEED)
letters = list(write(model, text.encode(prompt), 120, 0.8, generator=draw))
sample = prompt + text.decode(torch.tensor(letters))
print(sample)
print("\nA full run:", full_run()["sample"][:300])

# %% [markdown] role="concept"
# With a cache each new letter computes one place; without it, all of them again.

# %% role="concept"
guess("model.6", "How many times as many FLOPs do 64 letters take without "
      "the cache?", unit="times")

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
claim("largest difference of a logit, with and without the cache",
      (torch.cat(stepwise, 1) - whole).abs().max(), below=1e-3)

# %% [markdown] role="concept"
# Beyond 256 letters the cache keeps a window: RoPE needs distances only, so the model
# writes on.

# %% role="concept"
caches = model.caches()
model.eval()
with torch.no_grad():
    for tokens in text.valid[:300].split(50):
        model(tokens[None], caches)
held, gone = caches[0]["k"].shape[2], caches[0].dropped
print(held, "places kept,", gone, "dropped")

# %% role="concept"
claim("places that the cache keeps", held, expected=256)

# %% [markdown] role="concept"
# ## A second text
#
# The exercises' signatures and what their docstrings promise: `def merge(...)`, and on
# the next line what it gives. Four LoRA matrices a layer learn it; the model is frozen.
# Only the promise is learned, the signature is given.

# %% role="concept"
guess("model.7", "What share of all numbers does the adapter train?",
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
guess("model.11", "By how much does the loss of promises it has not seen "
      "fall?", unit="nats a letter")

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
          xlabel="loss of promises it has not seen, nats a letter",
          alt="Four bars: before, then three equal, shorter ones.")

# %% role="concept"
claim("loss of the second text after tuning, minus before",
      losses["tuned"] - losses["before"], below=0)
claim("what the merge changes", abs(losses["merged"] - losses["tuned"]),
      below=1e-3)
claim("what the file changes", abs(losses["read back"] - losses["tuned"]),
      below=1e-6)

# %% [markdown] role="concept"
# ## Smaller
#
# The same model in 8 and 4 bits, without half of its blocks' weights, with narrower
# MLPs, as a student of half the width, and as an ONNX program. First the bytes: one
# guess for each row of the table. In float32 it takes 1,855 kB.

# %% role="concept"
guess("model.12", "How much does the model take in 8 bits, with a scale "
      "and a zero for 32 weights?", unit="kB")

# %% role="concept"
guess("model.8", "How much does it take in 4 bits?", unit="kB")

# %% role="concept"
guess("model.13", "How much without half of its blocks' weights, and with "
      "a bit a place to say which are left?", unit="kB")

# %% role="concept"
guess("model.14", "How much with a quarter of each MLP's hidden units "
      "gone?", unit="kB")

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
guess("model.9", "How much loss do 8 bits cost, in thousandths of a nat?",
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
    print(f"{name:12} {size / 1000:7,.0f} kB   {loss:.3f} nats a letter")

# %% role="concept"
measured("model.16", len(file) / 1000, right=(1800, 2400))

# %% role="concept"
measured("model.9", 0)

# %% role="concept"
plot_bars({name: size / 1e6 for name, (size, _) in sizes.items()},
          xlabel="MB", title="Little more than a quarter at 8 bits",
          alt="Bars of megabytes: 1.85 in float32, 0.52 in 8 bits, 0.29 in "
              "4, 1.03 half pruned, 1.56 narrower, 0.48 as a student, 2.07 "
              "as ONNX.")

# %% role="concept"
full = sizes["float32"][1]
claim("loss in 8 bits, minus float32", sizes["8 bits"][1] - full,
      below=0.005)
claim("batches on which ONNX differs", len(off), expected=0)

# %% [markdown] role="concept"
# Half of the weights are zero in this corner of a matrix, those that were nearest to it.

# %% role="concept"
left = small_ones["half pruned"].model.blocks[0].up.weight[:12, :24] != 0
draw_grids({"kept": left.float()},
           title="Pruning leaves a pattern of its own",
           alt="A grid of 12 by 24 cells, about half of them empty, "
               "without order.")

# %% [markdown] role="summary"
# ## Your report
#
# One page with your parts, the curve, what it writes, the sizes, and what you guessed.
# It prints; `dlsys progress` counts it.

# %% role="summary"
print(report.write(parts, run.log(), sample, sizes))
