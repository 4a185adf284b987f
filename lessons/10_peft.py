# %% [markdown] role="hook" traps=7
# # 10. LoRA, QLoRA and parameter-efficient tuning
#
# Your team serves one language model to many customers, and every customer wants the
# model to write in a particular style. Training and storing a full copy for every
# customer costs too much. So you freeze the model and train far fewer extra
# parameters for each customer: an *adapter*.
#
# With a library, adding an adapter takes three lines of code. Much can go wrong around
# those lines without an error: in module names, adapter files, labels, lengths and number
# formats. This stage first develops the idea, an update that is the product of two thin
# matrices. Then it shows seven things that can go wrong.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import copy
import math
import tempfile

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from dlsys_helpers import (
    begin, check, claim, datasheet, draw_blocks, draw_boxes, draw_grids,
    draw_histogram, draw_lanes, flops, gpu_result, gpu_table, guess,
    measured, new_axes, operations, peak_bytes, plot_bars, plot_columns,
    plot_lines, seconds, show,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## The low-rank update
#
# Fine-tuning turns a weight matrix $W$ into $W + \Delta W$. The update $\Delta W$ has
# as many entries as $W$, so every fine-tuned copy is as large as the model. Can you
# store an update in less space?
#
# Yes, if the update is a product of two thin matrices. Multiply a tall matrix $B$ with
# `r` columns by a wide matrix $A$ with `r` rows. The product is as large as $W$, but you
# only have to store $B$ and $A$. The *rank* of the product, the number of its linearly
# independent rows, is at most `r`.

# %% role="concept"
d, r = 4096, 16
B, A = torch.randn(d, r), torch.randn(r, d)           # tall, flat
update = B @ A                                        # (d, d)
stored = B.numel() + A.numel()
print(f"the update has {update.numel():,} entries, "
      f"but only {stored:,} values are stored")

# %% role="concept"
ax = new_axes("To scale: at rank 16, B and A are two thin lines", "", "")
ax.set(aspect="equal", xlim=(-100, 15600), ylim=(-1500, 4200))
ax.axis("off")

def block(x, y, wide, tall, colour):
    ax.fill([x, x + wide, x + wide, x], [y, y, y + tall, y + tall], colour)

block(0, 0, d, d, "C0")
ax.text(0, -250, f"a full update\n{d * d:,} values", va="top")
for x, rank in ((5300, 256), (10600, r)):
    block(x, 0, rank, d, "C1")
    block(x + rank + 60, d - rank, d, rank, "C2")
    ax.text(x, -250, f"B and A of rank {rank}\n{2 * d * rank:,} values",
            va="top")
show(ax.figure, alt="A large filled square is the full update. Next to it "
     "are B and A of rank 256, a narrow column and a flat row as long as "
     "the square's sides. At rank 16, both are as thin as a line.")

# %% [markdown] role="concept"
# You never have to form the large product. If you multiply $x$ by $A$ first, only `r`
# values per row are left to multiply by $B$. The result is the same, but takes far less
# arithmetic:

# %% role="concept"
x = torch.randn(2, d)
formed = x @ (B @ A).T                  # a d x d matrix in between
thin = x @ A.T @ B.T                    # (2, r), then (2, d)
work = {"formed": flops(lambda: x @ (B @ A).T),
        "thin": flops(lambda: x @ A.T @ B.T)}
print({name: f"{n:,} FLOPs" for name, n in work.items()})

# %% role="concept"
claim("largest gap between the two results, relative to the largest value",
      (formed - thin).abs().max() / formed.abs().max(), below=1e-4)
claim("FLOPs if the large product is formed, divided by FLOPs if x is "
      "multiplied by A first", work["formed"] / work["thin"], expected=1152)

# %% [markdown] role="concept"
# *LoRA* (low-rank adaptation) keeps $W$ *frozen*, which means that training does not
# change it, and adds the low-rank product's output to $W$'s output:
#
# $$y = W x + \frac{\alpha}{r} \, B A \, x$$
#
# In this stage, $W$ has the shape `(d_out, d_in)`, $A$ has `(r, d_in)` and $B$ has
# `(d_out, r)`. The number $\alpha$ sets how strong the adapter is. Dividing $\alpha$ by
# `r` is meant to make the same $\alpha$ suit every rank. $A$ starts with random values,
# like a new `nn.Linear`, and $B$ starts at zero. So a new adapter adds exactly zero, and
# training starts from the model you have.

# %% role="concept"
class LoRA(nn.Module):
    """A frozen nn.Linear with two thin matrices next to it."""

    def __init__(self, base, r=4, alpha=16):
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), alpha / r
        self.A = nn.Parameter(torch.empty(r, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, x):                                # x (..., d_in)
        return self.base(x) + self.scale * (x @ self.A.T @ self.B.T)

linear, x = nn.Linear(4096, 4096), torch.randn(2, 4096)
wrapped = LoRA(linear, r=16)
moved = (wrapped(x) - linear(x)).abs().max()
added = (wrapped.A.numel() + wrapped.B.numel()) / linear.weight.numel()
print(f"change by a new adapter: {moved:.0f}, values added: {added:.2%}")

# %% role="concept"
claim("largest change that a new adapter causes in an output",
      moved, expected=0)
claim("number of parameters in A and B, as a fraction of the number in W",
      added, expected=1 / 128)

# %% [markdown] role="concept"
# **Guess first.** The gradient of $A$ has $B$ as a factor, and the gradient of $B$ has
# the output of $A$ as a factor. $B$ starts at zero. Which of the two matrices gets a
# nonzero gradient in the first step? And what would happen if both matrices started at
# zero?

# %% role="concept"
fresh_layer, h = LoRA(nn.Linear(32, 32)), torch.randn(8, 32)
fresh_layer(h).square().mean().backward()
at_start = {name: getattr(fresh_layer, name).grad.norm() for name in "AB"}
with torch.no_grad():
    fresh_layer.A.zero_()
fresh_layer.zero_grad()
fresh_layer(h).square().mean().backward()
stuck = fresh_layer.A.grad.norm() + fresh_layer.B.grad.norm()
print({name: f"{norm:.2f}" for name, norm in at_start.items()},
      f"both at zero: {stuck:.2f}")

# %% role="concept"
claim("gradient norm of A at the first step", at_start["A"], expected=0)
claim("gradient norm of B at the first step", at_start["B"], above=0.01)
claim("sum of the gradient norms of A and B, if both start at zero",
      stuck, expected=0)

# %% [markdown] role="concept"
# In the first step, only $B$ gets a gradient, because every gradient that reaches $A$ is
# multiplied by $B$, which is zero. After that step, $B$ is no longer zero, and both
# matrices learn. If both matrices start at zero, neither ever gets a nonzero gradient,
# and the adapter stays at zero.

# %% [markdown] role="concept"
# ## A small model to adapt
#
# The `peft` library adds pairs of LoRA matrices to models from the `transformers`
# library. You can try `peft` without downloading a model. The model here is a Llama with
# two layers. Its texts come from a *language* that is just a table: 16 x 16 probabilities
# say how likely each of 16 tokens is to follow another. The base model first learns one
# language, and adapters then teach it a second one.
#
# The rest of this stage uses three functions from the folded cells. `text` draws texts in
# a language, `learn` trains every parameter that requires a gradient, and `heard` returns
# the result of a call together with its warnings.

# %% role="concept" tags=["plumbing"]
import contextlib
import hashlib
import io
import pathlib
import warnings

with contextlib.redirect_stderr(io.StringIO()):   # notes of the imports
    import transformers
    from peft import (
        LoraConfig, PeftConfig, PeftModel, PrefixTuningConfig,
        PromptTuningConfig, get_peft_model,
    )
    from transformers import (
        AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM,
    )
from dlsys_helpers.errors import UserError
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
warnings.filterwarnings("ignore", "`is_gradient_checkpointing`")  # old name
warnings.filterwarnings("ignore", ".*checkpoint.*", FutureWarning)

# %% role="concept" tags=["plumbing"]
def language(tokens=16):
    """For each token, the probabilities of the next token."""
    return torch.softmax(2.5 * torch.randn(tokens, tokens), -1)

def text(table, rows=32, length=16):
    """Draw the token ids (rows, length) of texts in a language."""
    ids = torch.randint(len(table), (rows, 1))
    while ids.shape[1] < length:
        following = torch.multinomial(table[ids[:, -1]], 1)
        ids = torch.cat([ids, following], 1)
    return ids

def small_llama(width=32, **settings):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=16, hidden_size=width, intermediate_size=2 * width,
        num_hidden_layers=2, num_attention_heads=4, **settings))

# %% role="concept" tags=["plumbing"]
def trainable(model):
    """How many parameters an optimizer would train."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)

def learn(model, table, steps=100, lr=1e-2):
    """Train all trainable parameters on new texts; return the model."""
    live = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(live, lr)
    model.train()
    for _ in range(steps):
        ids = text(table)
        opt.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        opt.step()
    return model.eval()

@torch.no_grad()
def loss_on(model, ids):
    """Mean loss of the next token, in nats."""
    return model(input_ids=ids, labels=ids).loss.item()

# %% role="concept" tags=["plumbing"]
LLAMA_NAMES = ["q_proj", "k_proj", "v_proj", "o_proj",
               "gate_proj", "up_proj", "down_proj"]

def heard(call, *args):
    """Return a call's result, or None, and its warnings or its error."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        try:
            result = call(*args)
        except (AttributeError, ValueError) as error:
            return None, [str(error)]
    return result, [str(w.message) for w in told
                    if issubclass(w.category, UserWarning)]

# %% role="concept"
old, new = language(), language()
old_ids, new_ids = text(old, 256), text(new, 256)        # (N, T)
base = learn(small_llama(), old)
level = {"old": loss_on(base, old_ids), "new": loss_on(base, new_ids)}
print(f"loss on the old language {level['old']:.2f}, "
      f"on the new language {level['new']:.2f}")

# %% role="concept"
claim("loss of the base on the old language", level["old"], below=2)
claim("loss of the base on the new language", level["new"], above=3)

# %% [markdown] trap="10.1" role="situation" core=true fault="wrong target_modules names are skipped without an error" symptom="peft target_modules of another model, LoRA trains fewer parameters than expected, no error for a missing module name"
# ## A list of names from another model
#
# Your base model is a Llama. Each of its two layers has seven matrices: `q_proj`,
# `k_proj`, `v_proj` and `o_proj` in attention, `gate_proj`, `up_proj` and `down_proj` in
# the MLP. You want LoRA in all 14 matrices. You copy the list of names from a script for
# OPT, another family of models. Three of the six OPT names also occur in your model; the
# other three do not. You train an adapter with this list and, for comparison, a full
# adapter in all 14 matrices.

# %% trap="10.1" role="break"
OPT_NAMES = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]

def adapter(model, names, r=4, **settings):
    """A copy of model with new LoRA in all modules that match names."""
    return get_peft_model(copy.deepcopy(model), LoraConfig(
        r=r, lora_alpha=16, target_modules=names, task_type="CAUSAL_LM",
        **settings))

partly, told = heard(adapter, base, OPT_NAMES)    # told: its messages

# %% trap="10.1" role="guess"
guess("10.1",
      "How large is the first adapter's drop in loss, as a percentage of "
      "the full adapter's drop?",
      choices=["about 100 %",
               "about 85 %",
               "about 43 %",
               "about 10 %"])

# %% trap="10.1" role="look"
hit = [path for path, module in partly.named_modules()
       if hasattr(module, "lora_A")]
linears = [path for path, module in base.named_modules()
           if isinstance(module, nn.Linear) and path != "lm_head"]
print(f"{len(hit)} of {len(linears)} matrices adapted, "
      f"{trainable(partly)} parameters, {len(told)} warnings")

# %% trap="10.1" role="look"
grid = torch.tensor([[any(f"layers.{layer}." in path and name in path
                          for path in hit) for layer in (0, 1)]
                     for name in LLAMA_NAMES])
draw_grids({"LoRA": grid}, marks={"LoRA": ~grid},
           row_names=LLAMA_NAMES, column_names=["layer 0", "layer 1"],
           legend="no LoRA",
           title="Eight of fourteen matrices were skipped",
           alt="A grid of seven matrix names and two layers. The queries, "
               "keys and values have LoRA. In both layers, the other four "
               "names are marked as having no LoRA.")

# %% trap="10.1" role="look"
claim("number of the 14 matrices that get LoRA with OPT's names",
      len(hit), expected=6)

# %% [markdown] trap="10.1" role="why"
# You meant the list as a request, but peft uses it as a filter. The library walks through
# the modules of the *model* and adapts every module whose path equals a name or ends in a
# dot followed by the name. It never checks that every name was used, so a name that
# matches nothing is silently skipped. Let peft collect the names instead: `"all-linear"`
# selects every linear module except the output head of a language model.

# %% trap="10.1" role="repair" tags=["varies-by-cpu"]
whole = adapter(base, "all-linear")
losses = {}
for name, model in (("names of OPT", partly), ("all-linear", whole)):
    losses[name] = loss_on(learn(model, new), new_ids)
    print(f"{name}: {trainable(model)} parameters, loss on the new "
          f"language {losses[name]:.2f}")

# %% trap="10.1" role="repair"
measured("10.1", 1)

# %% trap="10.1" role="repair"
claim("loss with OPT's names minus loss with all-linear",
      losses["names of OPT"] - losses["all-linear"], above=0.2)

# %% [markdown] trap="10.1" role="repair"
# Here, six matrices already achieve most of what fourteen achieve, so the falling loss
# gives no warning:

# %% trap="10.1" role="repair"
at_first = loss_on(base, new_ids)
claim("drop in the loss with OPT's names, divided by the drop with "
      "all-linear", (at_first - losses["names of OPT"])
      / (at_first - losses["all-linear"]), above=0.64, below=0.99)

# %% [markdown] trap="10.1" role="repair"
# In the exercise, you write the check that peft lacks. Your check lists the modules that
# each name matches, and raises an error if a name matches nothing.

# %% [markdown] trap="10.1" role="more" topics="the counts · no name fits at all"
# These claims give the counts behind the grid and the two losses:

# %% trap="10.1" role="more"
claim("number of matrices in the two layers", len(linears), expected=14)
claim("number of warnings from peft", len(told), expected=0)
claim("number of trainable parameters with all-linear",
      trainable(whole), expected=4352)
claim("number of trainable parameters with OPT's names",
      trainable(partly), expected=1536)

# %% [markdown] trap="10.1" role="more"
# If *no* name matches, this version of peft raises an error. As soon as one name matches,
# peft accepts any number of names that match nothing:

# %% trap="10.1" role="more" compare=false
nothing, refused = heard(adapter, base, ["c_attn", "c_proj"])
print(refused[0][:76])
one_right = trainable(adapter(base, ["c_attn", "k_proj", "kproj", "k"]))

# %% trap="10.1" role="more"
claim("does peft reject a list of two names from GPT-2",
      nothing is None, expected=True)
claim("number of trainable parameters if one of four names matches",
      one_right, expected=2 * (4 * 32 + 32 * 4))

# %% trap="10.1" role="exercise" points=3 difficulty=2 minutes=10
def hits(model: nn.Module, names: list[str]) -> dict[str, list[str]]:
    """Find the paths of the nn.Linear modules that each name matches.

    As in peft, a name matches a path that equals the name or ends with a
    dot and the name. Modules of other kinds do not count, at any depth.
    Subclasses of nn.Linear count.

    Args:
        names: different strings, none empty, possibly with dots. The list
            may be empty.

    Returns:
        A dict in the order of names, with a list of paths for each name, in
        the order of model.named_modules(). A shared module occurs once in
        this order, under its first path. Raises ValueError if a name
        matches nothing. The error's text contains all such names and no
        other names. model and names do not change. Nothing is kept between
        calls. Example: in nn.Sequential(nn.Linear(2, 2), nn.ReLU()) the
        name "0" matches ["0"], and "1" matches nothing.
    """
    # BEGIN SOLUTION
    found = {name: [] for name in names}
    for path, module in model.named_modules():
        for name in names:
            if isinstance(module, nn.Linear) and (
                    path == name or path.endswith("." + name)):
                found[name].append(path)
    missing = [name for name, paths in found.items() if not paths]
    if missing:
        raise ValueError(f"names that hit no linear module: {missing}")
    return found
    # END SOLUTION

# %% [markdown] trap="10.1" role="hint"
# 1. `model.named_modules()` yields pairs of a path and a module. A path is a string such as `layers.0.self_attn.q_proj`.
# 2. `path.endswith(name)` matches too much: the name `proj` would match `q_proj`. Which character must come before the name, unless the name is the whole path?
# 3. First make the whole dict, with an empty list for each name. At the end, collect the names whose lists are still empty, and raise one error that contains all of them.

# %% [markdown] trap="10.1" role="keep"
# **Keep:** In peft, `target_modules` is a filter. As long as one name matches, peft
# silently skips all names that match nothing. **In your own code:** After each
# `get_peft_model`, count the adapted modules and the trainable parameters, and compare
# them with what you asked for. **Source:** The entry on `target_modules` in [peft's
# LoraConfig](https://huggingface.co/docs/peft/package_reference/lora). **Seen in the
# wild:** [huggingface/peft 1959](https://github.com/huggingface/peft/issues/1959): peft
# accepts a list with an invented name, because peft raises an error only if no name
# matches; [bghira/SimpleTuner 766](https://github.com/bghira/SimpleTuner/issues/766):
# five names in a trainer's lists match nothing, so the intended layers are never
# trained.

# %% [markdown] role="concept"
# ## How low is the rank of an update?
#
# LoRA bets that a low rank is enough. Is it? Train *all* weights of the base on the new
# language, and look at how the weights change. The *singular values* of a matrix say how
# much of the matrix lies in its strongest direction, how much in the second strongest,
# and so on. A matrix of rank `k` can capture at most the part of the change in the first
# `k` directions.

# %% role="concept"
full = learn(copy.deepcopy(base), new)
changes = [(trained - before).detach() for (name, trained), before
           in zip(full.named_parameters(), base.parameters())
           if "proj" in name]

def held_by_rank(matrices):
    """Mean fraction of the squared norm in the first k directions."""
    power = [torch.linalg.svdvals(m).square() for m in matrices]
    return torch.stack([p.cumsum(0) / p.sum() for p in power]).mean(0)

held = held_by_rank(changes)                      # k = 1 to 32
chance = held_by_rank([torch.randn_like(m) for m in changes])
print(f"rank 4 holds {held[3]:.0%} of the change, "
      f"{chance[3]:.0%} of random matrices")

# %% role="concept"
plot_lines(range(1, 33), {"the update": held.tolist(),
                          "random matrices": chance.tolist()},
           xlabel="rank", ylabel="fraction that the rank can hold",
           title="Most of the update is in a few directions",
           alt="Two rising lines over the rank. The update's line is at "
               "0.9 by rank 9, the random matrices' line only by rank 19. "
               "Both reach one at the full rank, 32.")

# %% role="concept"
claim("mean fraction of an update that lies in its first four directions",
      held[3], above=0.45, below=0.85)
claim("mean fraction in the first four directions: updates minus random "
      "matrices", held[3] - chance[3], above=0.1)

# %% [markdown] role="concept"
# Most of the update is in a few directions, but four of them do not contain all of it.
# This does not contradict LoRA, because LoRA does not have to copy this update. LoRA only
# has to find *some* low-rank update that lowers the loss.
#
# The explorer below shows four kinds of update. Guess how much of each update a rank of 4
# leaves out, and at which rank LoRA needs as many parameters as the matrix itself.

# %% role="explore" explorer="lora_rank"
from dlsys_helpers.explorers.lora_rank import lora_rank

lora_rank

# %% [markdown] role="concept"
# ## Rank, alpha, rate and modules
#
# A LoRA configuration asks for four decisions. Start with one configuration, change one
# setting at a time, and compare the loss on the new language after 60 steps. **Guess
# first:** Which change hurts most: a rank of 1, an $\alpha$ of 1, a tenth of the learning
# rate, or LoRA only in queries and values?

# %% role="concept"
def tuned(lr=1e-2, **changed):
    """Train LoRA for 60 steps; return the loss on the new language."""
    settings = {"r": 4, "lora_alpha": 16, "target_modules": "all-linear"}
    model = get_peft_model(copy.deepcopy(base), LoraConfig(
        task_type="CAUSAL_LM", **settings | changed))
    return loss_on(learn(model, new, 60, lr), new_ids)

tried = {"first setting": tuned(), "rank 1": tuned(r=1),
         "rank 16": tuned(r=16), "alpha 1": tuned(lora_alpha=1),
         "rate 0.001": tuned(lr=1e-3)}
for name, modules in (("queries, values", ["q_proj", "v_proj"]),
                      ("attention", LLAMA_NAMES[:4]),
                      ("MLP", LLAMA_NAMES[4:])):
    tried[name + " only"] = tuned(target_modules=modules)

# %% role="concept"
plot_bars(tried, xlabel="loss on the new language after 60 steps; first "
          "setting:\nrank 4, alpha 16, rate 0.01, all modules",
          title="Learning rate and modules matter most, the rank less",
          alt="Eight bars of loss. A tenth of the learning rate and LoRA "
              "only in queries and values have the longest bars, 2.5 and "
              "2.3. Rank 1, alpha 1 and LoRA only in attention follow "
              "at 1.9. Rank 16 and LoRA only in the MLP are close to the "
              "first setting, at 1.6.")

# %% role="concept"
slow_full = loss_on(learn(copy.deepcopy(base), new, 60, 1e-3), new_ids)
claim("loss with a tenth of the learning rate minus loss with the first "
      "setting", tried["rate 0.001"] - tried["first setting"], above=0.3)
claim("loss with LoRA only in queries and values, minus loss with the "
      "first setting",
      tried["queries, values only"] - tried["first setting"], above=0.3)
claim("loss with rank 1 minus loss with rank 16",
      tried["rank 1"] - tried["rank 16"], below=0.6)
claim("loss with LoRA only in the MLP, minus loss with LoRA only in "
      "attention", tried["MLP only"] - tried["attention only"], below=-0.1)
claim("loss with LoRA minus loss with all weights trained, both at a "
      "learning rate of 0.001", tried["rate 0.001"] - slow_full, above=0.2)

# %% [markdown] role="concept"
# On this task, the learning rate and the modules matter most, and even a rank of 1 does
# well. At a learning rate of 0.001, LoRA is far behind full fine-tuning at the same rate.
# The same holds for large models ([Schulman et al.
# 2025](https://thinkingmachines.ai/blog/lora/)): LoRA needs about ten times the learning
# rate of full fine-tuning, and it should adapt the MLP as well as attention. So start
# like this:
#
# - **Modules:** Adapt all linear modules. If you have to save memory, adapt only the MLP.
# - **Learning rate:** Start with ten times the rate of full fine-tuning. Then try a third
#   of that rate and three times that rate.
# - **Rank:** Start with 16. If a higher rank lowers the *training* loss, 16 is too low. A
#   rank that is too high costs memory.
# - **Alpha:** Set alpha once, to 16 or twice the rank, and do not tune it. Alpha
#   multiplies the update, so it acts much like the learning rate.
# - **Dropout:** Use none. If you have few training examples, use 0.05 to 0.1.
#
# The *Which adapter, when* page on the course's website lists starting points for
# common situations.

# %% [markdown] role="concept"
# ## Adapter layers, and what they cost in service
#
# LoRA was not the first kind of adapter. [Houlsby et al.
# 2019](https://arxiv.org/abs/1902.00751) put small *adapter layers* into a frozen
# transformer. After a sublayer, one matrix projects each vector down to a few values, an
# activation is applied, and a second matrix projects the result back up. The result is
# added to the sublayer's output. The narrow middle is called a *bottleneck*.

# %% role="concept"
class AdapterLayer(nn.Module):
    """A bottleneck after a frozen linear module."""

    def __init__(self, before, r=8):
        super().__init__()
        self.before = before
        self.down = nn.Linear(before.out_features, r, bias=False)
        self.up = nn.Linear(r, before.out_features, bias=False)
        nn.init.zeros_(self.up.weight)            # begins as an identity

    def forward(self, x):
        h = self.before(x)
        return h + self.up(F.relu(self.down(h)))

bottled = copy.deepcopy(base).requires_grad_(False)

# %% role="concept"
for block in bottled.model.layers:
    block.self_attn.o_proj = AdapterLayer(block.self_attn.o_proj)
    block.mlp.down_proj = AdapterLayer(block.mlp.down_proj)
learn(bottled, new, steps=60)

@torch.no_grad()
def matrix_products(model):
    return operations(lambda: model(input_ids=new_ids[:1]))["aten::mm"][0]

with torch.no_grad():
    last, v = bottled.model.layers[-1].mlp.down_proj, torch.randn(1, 64)
    odd = (last(v) + last(-v)).norm() / last(v).norm()
print(f"loss {loss_on(bottled, new_ids):.2f}, {trainable(bottled)} "
      f"parameters, {matrix_products(bottled):.0f} products instead of "
      f"{matrix_products(base):.0f}")

# %% role="concept"
draw_blocks({"adapter layer": ["x", "W", "down", "ReLU", "up", "+", "y"],
             "LoRA": ["x", ("W", "A"), ("", "B"), "+", "y"]},
            bypass={"adapter layer": [(1, 5)]},
            title="An adapter layer is in the way, LoRA runs alongside",
            alt="Two block diagrams. With an adapter layer, x goes through "
                "W, then through down, ReLU and up, and the output of W is "
                "added. With LoRA, x goes through W and, in parallel, "
                "through A and B, and the two results are added.")

# %% role="concept"
claim("loss on the new language with adapter layers",
      loss_on(bottled, new_ids), below=2.6)
claim("number of matrix products that adapter layers add to a call",
      matrix_products(bottled) - matrix_products(base), expected=8)
claim("relative norm of f(v) + f(-v) for an adapter layer f; a single "
      "matrix would give 0", odd, above=0.001)

# %% [markdown] role="concept"
# Adapter layers also learn the new language. But when you serve the model, the two small
# products are computed *after* the product with $W$, so every token waits for them. The
# two small matrices cannot be merged into $W$, because no single matrix can replace two
# matrices with a ReLU in between. LoRA has no activation between its matrices. So $B$ and
# $A$ form a single matrix, $BA$, which you can add to $W$ once.
#
# [Hu et al. 2021](https://arxiv.org/abs/2106.09685) measured the delay of adapter layers
# in GPT-2 medium with one user and 128 tokens. One forward pass takes 19.8 ms without
# adapter layers, and 23.9 ms and 25.8 ms with two kinds of adapter layers. With a large
# batch, the difference nearly disappears, because then the arithmetic takes longer than
# launching small operations.

# %% [markdown] trap="10.2" role="situation" fault="an unmerged LoRA adapter triples the matrix products" symptom="LoRA inference slower than base model, unmerged adapter, merge_and_unload gives other results"
# ## The adapter goes into service
#
# You serve the trained adapter alongside the base. A review comment says: "The adapter
# has about a fifth as many parameters as the base, so it adds about a fifth to the
# arithmetic. Once merged, the adapter needs no extra arithmetic." $BA$ has the shape of
# $W$, so you can add it to $W$ once, before you serve the model.
#
# You count the matrix products of one call, because a GPU that serves one user at a time
# often spends more time launching small operations than computing them. Weights are often
# served in `bfloat16`, so you also try a merge in `bfloat16`, with an update a thousandth
# the size of $W$.

# %% trap="10.2" role="break"
@torch.no_grad()
def products(model):
    """Count the matrix products and the FLOPs of a call on one text."""
    run = lambda: model(input_ids=new_ids[:1])               # noqa: E731
    return operations(run)["aten::mm"][0], flops(run)

count = {"base": products(base), "adapted": products(whole)}

# %% trap="10.2" role="break"
W = 0.02 * torch.randn(512, 512)
update = 0.001 * 0.02 * torch.randn(512, 512)
short = W.bfloat16()
rounded = (short.float() + update).bfloat16()    # rounded only once

# %% trap="10.2" role="guess" quoted="right"
guess("10.2",
      "What percentage of the weights does the `bfloat16` merge leave "
      "exactly unchanged?", unit="%")

# %% trap="10.2" role="look"
for name, (calls, work) in count.items():
    print(f"{name}: {calls:.0f} products, {work:,} FLOPs")
more = [b / a for a, b in zip(*count.values())]
still = (rounded == short).float().mean()
lost = ((rounded.float() - short.float() - update).norm()
        / update.norm())
print(f"merged: {still:.0%} of the weights do not change, "
      f"error divided by the update {lost:.2f}")

# %% trap="10.2" role="look"
measured("10.2", 100 * still, right=(60, 95))

# %% trap="10.2" role="look"
claim("fraction of weights that the bfloat16 merge leaves unchanged",
      still, above=0.7)

# %% [markdown] trap="10.2" role="look"
# Most of the update is gone, although the sum was computed in `float32` and rounded only
# once. Unmerged and computed in `float32`, the update survives, but the model runs nearly
# three times as many products:

# %% trap="10.2" role="look"
claim("number of matrix products in the unmerged model, divided by the "
      "number in the base", more[0], above=2.5)

# %% [markdown] trap="10.2" role="why"
# The review comment is right about the arithmetic. But each adapted matrix needs three
# matrix products instead of one, plus a scaling and an addition. The adapter adds few
# FLOPs but many operations, and how much time these operations take depends on the
# machine and the batch. The merge fails because of precision. `bfloat16` keeps only 8
# significant bits of a number. For most weights, this update is smaller than half the gap
# to the next `bfloat16` number, so it is rounded away.

# %% trap="10.2" role="why"
draw_blocks({"unmerged: 3 products": ["x", ("W", "A"), ("", "B"), "+",
                                      "y"],
             "merged: 1 product": ["x", "W + s B A", "y"]},
            captions={"merged: 1 product": "s is alpha / r"},
            title="Three products instead of one, until you merge",
            alt="Two block diagrams. Unmerged, x goes through W and, in "
                "parallel, through A and B, and the two results are added. "
                "Merged, x goes through a single matrix.")

# %% [markdown] trap="10.2" role="why"
# Merge in a format that is precise enough, here `float32`:

# %% trap="10.2" role="repair"
merged = copy.deepcopy(whole).merge_and_unload()
with torch.no_grad():
    gap = (merged(input_ids=new_ids).logits
           - whole(input_ids=new_ids).logits).abs().max()
count["merged"] = products(merged)
print(f"merged: {count['merged'][0]:.0f} products, {count['merged'][1]:,} "
      f"FLOPs, largest gap of a logit {gap:.1e}")

# %% trap="10.2" role="repair"
claim("number of matrix products in the merged model minus the number in "
      "the base", count["merged"][0] - count["base"][0], expected=0)

# %% [markdown] trap="10.2" role="repair"
# If you merge by hand, two mistakes are easy to make. You can forget the factor $\alpha /
# r$, or you can leave the adapter switched on (`unload` removes an adapter without
# merging it):

# %% trap="10.2" role="repair"
def by_hand(model, scale=None):
    """A copy with B A added to W; the adapter stays on."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        if hasattr(layer, "lora_A"):
            A, B = layer.lora_A.default.weight, layer.lora_B.default.weight
            factor = layer.scaling["default"] if scale is None else scale
            layer.base_layer.weight.data += factor * (B @ A).data
    return model

off = by_hand(whole, scale=1.0).unload()         # alpha / r forgotten
found = {"merged": merged, "without alpha / r": off,
         "merged and still on": by_hand(whole)}
found = {name: loss_on(model, new_ids) for name, model in found.items()}

# %% trap="10.2" role="repair"
plot_bars(found, xlabel="loss on the new language",
          title="Two mistakes in merging by hand raise the loss",
          alt="Three bars of loss. The correctly merged model has the "
              "lowest loss. With the adapter still on, or without alpha / "
              "r, the loss is higher.")

# %% trap="10.2" role="repair"
claim("loss after a merge without alpha / r, minus loss after the correct "
      "merge", found["without alpha / r"] - found["merged"], above=0.3)

# %% [markdown] trap="10.2" role="more" topics="the counts · rounding in bfloat16"
# The next claims give the counts, and the loss if the update is added twice:

# %% trap="10.2" role="more"
claim("number of matrix products in the base",
      count["base"][0], expected=15)
claim("FLOPs of the unmerged model, divided by FLOPs of the base",
      more[1], below=1.3)
claim("largest gap between the logits of the merged and the unmerged model",
      gap, below=1e-3)
claim("loss with the update added twice, minus loss after the correct "
      "merge", found["merged and still on"] - found["merged"], above=0.05)

# %% trap="10.2" role="more"
claim("norm of the bfloat16 merge's error, divided by the norm of the "
      "update", lost, above=0.5)

# %% [markdown] trap="10.2" role="more"
# The sum was computed in `float32` and rounded once, but most of this update is still
# gone. The order of the operations makes hardly any difference, because the gaps between
# `bfloat16` numbers are too large. Serve such a small update in `float32`. To leave it
# unmerged is not enough: peft adds the outputs of $W$ and of the adapter and rounds the
# sum to the dtype of the base, and in `bfloat16` this also loses most of it. When you do
# merge, round only once, as the exercise asks. Rounding once costs little and matters
# where $W$ and the update nearly cancel out.

# %% [markdown] trap="10.2" role="folklore"
# **Told:** An unmerged adapter costs 5 to 15 % of the time, because of its hooks.
# **Measured:** Peft uses no hooks here. It wraps each matrix in a layer that runs three
# products instead of one. How much time these products cost depends on the machine and
# the batch, so measure the time on the machine that serves the model.

# %% trap="10.2" role="folklore"
hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks)
            for module in whole.modules())

# %% trap="10.2" role="folklore"
claim("number of hooks in the adapted model", hooks, expected=0)

# %% trap="10.2" role="exercise" points=3 difficulty=2 minutes=10
def merge(W: torch.Tensor, A: torch.Tensor, B: torch.Tensor,
          alpha: float) -> torch.Tensor:
    """Merge a LoRA adapter into its weight: W + alpha / r * B @ A.

    Args:
        W: (d_out, d_in), float32 or bfloat16.
        A, B: (r, d_in) and (d_out, r), float32, with r >= 1.

    Returns:
        The merged weight. The sum is computed in float32 and rounded once,
        to the dtype of W. Each call returns new memory.

    No graph is built, even if W, A and B require gradients. W, A, B and the
    grad mode do not change.

    Example: W = [[1.]], A = [[2.], [0.]], B = [[3., 5.]] and alpha = 4
    return [[13.]].
    """
    # BEGIN SOLUTION
    with torch.no_grad():
        update = alpha / len(A) * (B @ A)
        return (W.float() + update).to(W.dtype)
    # END SOLUTION

# %% [markdown] trap="10.2" role="hint"
# 1. Which of `A @ B` and `B @ A` has the shape of `W`, and which dimension of `A` is `r`?
# 2. `W.float()` converts any dtype to float32. Compute the sum in float32, and convert it to the dtype of `W` at the very end.
# 3. `A` and `B` can be parameters, so compute under `torch.no_grad()`. The sum is a new tensor, so you need no other copy.

# %% [markdown] trap="10.2" role="keep"
# **Keep:** An unmerged LoRA adapter costs few FLOPs but many small operations, so merge
# an adapter that you serve alone. Merge only once, with the factor $\alpha / r$,
# and in a dtype that is precise enough for the update. **In your own code:** Compare the
# logits before and after merging, in the dtype in which you serve. **Source:** [Hu et al.
# 2021](https://arxiv.org/abs/2106.09685), section 4.1, on merging. **Seen in the wild:**
# [OpenBMB/MiniCPM-V 502](https://github.com/OpenBMB/MiniCPM-V/issues/502): the base with
# its adapter answers well, but the merged model, saved in `bfloat16`, does not;
# [meta-pytorch/torchtune 1101](https://github.com/meta-pytorch/torchtune/issues/1101):
# merged weights differ, which a maintainer calls expected in low precision.

# %% [markdown] role="concept"
# ## Other adapters, one interface
#
# Peft offers many kinds of adapters through one call: you change only the configuration
# that you pass to `get_peft_model`. *DoRA* splits each row of $W$ into its norm and its
# direction; it trains the norms directly and the directions with LoRA. *IA3* trains only
# factors that multiply the keys, the values and the hidden layer of the MLP. IA3 stores
# only a few vectors for each layer, so thousands of such adapters fit on a disk, and you
# can multiply the vectors into the weights before you serve the model. *Prefix tuning*
# trains keys and values that come before every text, and *prompt tuning* trains the
# embeddings of a few made-up tokens. Because made-up tokens are only inputs, each row of
# a batch can have different ones. But they take up positions, and prompt tuning needs a
# large model: it caught up with full fine-tuning only at the largest of five sizes, with
# 11 billion parameters ([Lester et al. 2021](https://arxiv.org/abs/2104.08691)).
#
# All five kinds of adapter get the same 60 steps at the same learning rate on this small
# base. Methods with few parameters may need a higher learning rate and more steps, so
# treat the result as one measurement, not as a ranking.

# %% role="concept" tags=["plumbing"]
from peft import IA3Config

task = {"task_type": "CAUSAL_LM"}
kinds = {
    "LoRA": LoraConfig(r=4, lora_alpha=16, target_modules=LLAMA_NAMES,
                       **task),
    "DoRA": LoraConfig(r=4, lora_alpha=16, target_modules=LLAMA_NAMES,
                       use_dora=True, **task),
    "IA3": IA3Config(**task),
    "prefix": PrefixTuningConfig(num_virtual_tokens=8, **task),
    "prompt": PromptTuningConfig(num_virtual_tokens=8, **task)}

# %% role="concept"
after = {}
for name, config in kinds.items():
    model = get_peft_model(copy.deepcopy(base), config)
    learn(model, new, steps=60)
    after[name] = loss_on(model, new_ids)
    print(f"{name}: {trainable(model)} parameters, loss on the new "
          f"language {after[name]:.2f}")

# %% role="concept"
claim("larger of the two losses with LoRA and with DoRA",
      max(after["LoRA"], after["DoRA"]), below=2.2)
claim("lowest loss with IA3, prefix and prompt, minus loss with LoRA",
      min(after[kind] for kind in ("IA3", "prefix", "prompt"))
      - after["LoRA"], above=0.5)

# %% [markdown] trap="10.3" role="situation" fault="the virtual tokens of a prefix use up positions" symptom="prefix tuning IndexError index out of range in self, num_virtual_tokens and context length"
# ## Keys and values that nobody typed
#
# *Prefix tuning* leaves all matrices unchanged. Instead, it learns keys and values that
# come before every text, in every layer. A layer's keys are then the prefix's keys
# followed by the text's keys, and the same holds for the values. Your base model is now a
# small GPT-2 whose table of position embeddings has 64 rows. You give it a prefix of
# length 20. No token ids are added, and the prefix does not pass through the embedding.

# %% trap="10.3" role="break" tags=["plumbing"]
from transformers import GPT2Config, GPT2LMHeadModel

def small_gpt2():
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=16, n_embd=32, n_layer=2, n_head=4, n_positions=64,
        bos_token_id=0, eos_token_id=0))

# %% trap="10.3" role="break"
def longest(model, most=100):
    """Return the longest text's length, and what stops a longer one."""
    for length in range(1, most + 1):
        try:
            with torch.no_grad():
                model(input_ids=torch.randint(16, (1, length)))
        except IndexError as error:
            return length - 1, str(error)
    return most, "nothing"

def with_prefix(model, config=PrefixTuningConfig, tokens=20):
    return get_peft_model(model, config(num_virtual_tokens=tokens,
                                        task_type="CAUSAL_LM")).eval()

room = {"no prefix": longest(small_gpt2().eval()),
        "prefix of 20": longest(with_prefix(small_gpt2()))}

# %% trap="10.3" role="guess"
guess("10.3",
      "How long is the longest text that the model with this prefix "
      "accepts?", unit="tokens")

# %% trap="10.3" role="look"
for name, (length, stopped_by) in room.items():
    print(f"{name}: {length} tokens, then: {stopped_by}")

# %% trap="10.3" role="look"
measured("10.3", room["prefix of 20"][0], right=(44, 44))

# %% trap="10.3" role="look"
claim("number of tokens in the longest text that fits with a prefix of 20",
      room["prefix of 20"][0], expected=44)

# %% [markdown] trap="10.3" role="why"
# The prefix is in the cache of keys and values, like twenty tokens that the model has
# already read. So the text starts at position 20, and the table of positions ends at 64.
# A tokenizer that truncates texts to 64 tokens does not know about the prefix.
#
# Which end of the text should you cut? A training text consists of a prompt and an
# answer, and only the answer has labels. A prompt of 50 tokens and an answer of 8 do not
# fit into 44 positions.

# %% trap="10.3" role="why"
prefix = (0, 20, "prefix")
draw_lanes({"as it came": [prefix, (20, 70, "prompt"), (70, 78, "answer")],
            "cut at the end": [prefix, (20, 64, "prompt")],
            "cut at the start": [prefix, (20, 56, "prompt"),
                                 (56, 64, "answer")]},
           unit="positions", moments={"the table ends": 64},
           title="A cut at the end removes the answer",
           alt="Three lanes over positions. Uncut, prefix, prompt and "
               "answer extend beyond position 64. After a cut at the end, "
               "no answer is left. After a cut at the start of the prompt, "
               "the whole answer is left.")

# %% trap="10.3" role="repair"
prompt, answer = torch.randint(16, (50,)), torch.randint(16, (8,))
ids = torch.cat([prompt, answer])[None]
labels = torch.cat([torch.full_like(prompt, -100), answer])[None]
model = with_prefix(small_gpt2())
cuts = {"at the end": slice(None, 44), "at the start": slice(-44, None)}
for name, cut in cuts.items():
    with torch.no_grad():
        loss = model(input_ids=ids[:, cut], labels=labels[:, cut]).loss
    cuts[name] = (labels[:, cut] != -100).sum().item(), loss.item()
    print(f"cut {name}: {cuts[name][0]} labels, loss {cuts[name][1]:.2f}")

# %% trap="10.3" role="repair"
claim("number of labels left after a cut at the end", cuts["at the end"][0],
      expected=0)

# %% [markdown] trap="10.3" role="repair"
# If no text in a batch has a label left, the mean loss is NaN. If only some texts in a
# batch have lost their labels, the loss is still a number, and nothing warns you. The
# tokenizers in `transformers` cut at the end unless you set `truncation_side`. If you cut
# the start of the prompt, the answer stays complete as long as it fits. If the prefix and
# the answer alone are too long, reject the text.

# %% [markdown] trap="10.3" role="more" topics="the cuts in numbers · prompt tuning · a Llama has no table"
# The next claims give the longest text and the effect of each cut:

# %% trap="10.3" role="more"
claim("number of tokens in the longest text that fits without a prefix",
      room["no prefix"][0], expected=64)
claim("is the loss a number after a cut at the end",
      cuts["at the end"][1] > 0, expected=False)
claim("number of labels left after a cut at the start",
      cuts["at the start"][0],
      expected=8)

# %% [markdown] trap="10.3" role="more"
# *Prompt tuning*, which learns embeddings, uses up just as many positions. A Llama with
# 64 positions accepts longer texts without an error:

# %% trap="10.3" role="more"
soft = longest(with_prefix(small_gpt2(), PromptTuningConfig))[0]
llama_room = longest(with_prefix(small_llama(max_position_embeddings=64)))
print(f"prompt tuning: {soft}; a Llama with max_position_embeddings of 64: "
      f"{llama_room[0]}, stopped by {llama_room[1]}")

# %% trap="10.3" role="more"
claim("number of tokens in the longest text that fits with prompt tuning",
      soft, expected=44)
claim("number of tokens after the prefix, out of 100, that a Llama with 64 "
      "positions accepts", llama_room[0], expected=100)

# %% [markdown] trap="10.3" role="more"
# A Llama rotates its queries and keys by an angle that can be computed for any position,
# so in `transformers`, it has no table that could end. Without an error, the text goes on
# at positions that never occurred in training. So add the prefix length to the text
# length yourself, both for GPT-2 and for a Llama.

# %% [markdown] trap="10.3" role="folklore"
# **Told:** A text that no longer fits after a prefix does harm without an error.
# **Measured:** GPT-2 does give an error: on a CPU, one token too many raises an
# `IndexError`. The Llama here raises no error. We did not measure how good its answers
# are at positions beyond 64.

# %% trap="10.3" role="exercise" points=4 difficulty=2 minutes=15
def fit_text(prompt: torch.Tensor, answer: torch.Tensor, n_positions: int,
             virtual: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Build the ids and labels of a training text after a learned prefix.

    The prefix of `virtual` tokens and the text share n_positions positions.
    If prefix and text need more positions, the prompt loses its first
    tokens, as few as needed. Raises ValueError if prefix and answer alone
    need more positions.

    Args:
        prompt, answer: (P,) and (Q,), int64. The text is the prompt
            followed by the answer. Ids can repeat, even across prompt and
            answer. Prompt and answer can be empty and do not change.

    Returns:
        A tuple of two int64 tensors as long as the text that is left: ids
        and labels. The labels are -100 for the prompt and the ids for the
        answer. Neither contains the prefix. Each call returns new memory.

    Example: prompt [1, 2, 3], answer [9], 5 positions and a prefix of 2
    return [2, 3, 9] and [-100, -100, 9].
    """
    # BEGIN SOLUTION
    left = n_positions - virtual - len(answer)
    if left < 0:
        raise ValueError(f"answer: {-left} tokens too long")
    kept = prompt[max(0, len(prompt) - left):]
    ids = torch.cat([kept, answer])
    labels = torch.cat([torch.full_like(kept, -100), answer])
    return ids, labels
    # END SOLUTION

# %% [markdown] trap="10.3" role="hint"
# 1. How many positions do the prefix and the answer leave for the prompt?
# 2. `prompt[-left:]` keeps the last `left` tokens, but if `left` is 0, it keeps all of them. Count from the front instead: how many tokens have to go?
# 3. Use `torch.cat` twice: once with what is left of the prompt, and once with -100 in its place.

# %% [markdown] trap="10.3" role="keep"
# **Keep:** In peft, a learned prefix uses up positions, so a text can only be as long as
# the context length minus the prefix length. Cut the start of the prompt, never the
# answer. **In your own code:** Set the tokenizer's maximum length to the context length
# minus the prefix length, and count the labels in each batch. **Source:** [Li & Liang
# 2021](https://arxiv.org/abs/2101.00190), section 4, treats the prefix as positions
# before the text. **Seen in the wild:** [XiangLi1999/PrefixTuning
# 40](https://github.com/XiangLi1999/PrefixTuning/issues/40): in the authors' code,
# positions run from 10 to 1034, although the limit is 1024.

# %% [markdown] trap="10.4" role="situation" fault="a LoRA classifier's head is neither trained nor saved" symptom="LoRA classifier gives random predictions after loading, score head not saved, task_type missing"
# ## A classifier for four languages
#
# You turn the base into a classifier that says which of four languages a text is written
# in. `LlamaForSequenceClassification` uses the base's layers and returns four logits for
# each text. You adapt the classifier with LoRA, as the code below shows.
#
# The classifier trains well, and you save it. Then you build the classifier again, load
# the adapter with `PeftModel.from_pretrained`, and test the result.

# %% trap="10.4" role="break" tags=["plumbing"]
from transformers import LlamaForSequenceClassification

languages = [old, new, language(), language()]
quiz_ids = torch.cat([text(table, 128) for table in languages])
quiz_labels = torch.arange(4).repeat_interleave(128)

def classifier():
    """The base's layers and a new head for four languages."""
    model = LlamaForSequenceClassification(LlamaConfig(
        vocab_size=16, hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=4, num_labels=4,
        pad_token_id=0))
    model.model.load_state_dict(base.model.state_dict())
    return model

# %% trap="10.4" role="break" tags=["plumbing"]
@torch.no_grad()
def share_right(model):
    picked = model.eval()(input_ids=quiz_ids).logits.argmax(1)
    return (picked == quiz_labels).float().mean().item()

# %% trap="10.4" role="break"
def trained_classifier(steps=100, **settings):
    """Adapt a classifier to four languages and save it."""
    model = get_peft_model(classifier(), LoraConfig(
        r=4, lora_alpha=16, target_modules=LLAMA_NAMES, **settings))
    live = [p for p in model.parameters() if p.requires_grad]
    opt, labels = torch.optim.AdamW(live, 5e-3), torch.arange(4)
    for _ in range(steps):
        ids = torch.cat([text(table, 8) for table in languages])
        logits = model(input_ids=ids).logits
        opt.zero_grad()
        F.cross_entropy(logits, labels.repeat_interleave(8)).backward()
        opt.step()
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    return model, folder

# %% trap="10.4" role="break"
def reloaded(folder):
    """Build a new classifier, load the adapter; return the accuracy."""
    return share_right(PeftModel.from_pretrained(classifier(), folder))

(model, its_folder), told = heard(trained_classifier)
before = share_right(model)
once, told_then = heard(reloaded, its_folder)

# %% trap="10.4" role="guess"
guess("10.4",
      "How does the loaded classifier's accuracy compare with its accuracy "
      "before saving?",
      choices=["the same",
               "lower, by less than 5 points",
               "lower, by 5 points or more"])

# %% trap="10.4" role="look" compare=false
loaded = [once, *(reloaded(its_folder) for _ in range(5))]
print(f"accuracy before saving {before:.2f}, after each loading:",
      *[f"{share:.2f}" for share in loaded])

# %% trap="10.4" role="look"
measured("10.4", 2)

# %% trap="10.4" role="look"
plot_columns({"saved": before, **dict(enumerate(loaded, 1))},
             xlabel="before saving, then after each of six loadings",
             ylabel="accuracy", form=".2f", marks=range(1, 7),
             reference=(0.25, "guessing"),
             title="Each loading gives a different classifier",
             alt="Seven columns of accuracy. The first, before saving, is "
                 "high. The other six, one for each loading, are lower and "
                 "differ from each other.")

# %% trap="10.4" role="look"
claim("mean accuracy after loading minus accuracy before saving",
      sum(loaded) / 6 - before, below=-0.05)

# %% [markdown] trap="10.4" role="why"
# The classifier adds a new head, `score`, to the base. Without a `task_type`, peft does
# not know that `score` is a head. So peft froze the random `score` together with the
# base, LoRA learned to work with exactly that head, and only the LoRA matrices were
# saved. The loaded classifier starts with a different random head, so its predictions
# can be worse than random guesses. `SEQ_CLS` tells peft that `score` is a head, which
# is then trained and saved. If your head has a different name, use `modules_to_save`.

# %% trap="10.4" role="repair" compare=false
def holds(model, folder):
    """Say whether LoRA, head and base are trained, and whether saved."""
    file = load_file(f"{folder}/adapter_model.safetensors")
    trains = [path for path, p in model.named_parameters()
              if p.requires_grad]
    return torch.tensor([[any(word in path for path in paths)
                          for paths in (trains, file)]
                         for word in ("lora_", "score", "embed_tokens")])

kept = {"no task": holds(model, its_folder)}
model, its_folder = trained_classifier(task_type="SEQ_CLS")
kept["SEQ_CLS"] = holds(model, its_folder)
before, again = share_right(model), [reloaded(its_folder) for _ in "ab"]
print(f"accuracy before saving {before:.2f}, after two loadings "
      + ", ".join(f"{share:.2f}" for share in again))

# %% trap="10.4" role="repair"
draw_grids(kept, marks={"no task": ~kept["no task"] & torch.tensor(
               [[False], [True], [False]])},
           row_names=["LoRA", "head", "base"],
           column_names=["trains", "in the file"], legend="is missing",
           title="A head without a name is neither trained nor saved",
           alt="Two grids with rows for LoRA, head and base, and columns "
               "for trained and saved. Without a task, only LoRA is "
               "trained and saved. With SEQ_CLS, LoRA and the head are "
               "trained and saved. The base is neither trained nor saved.")

# %% trap="10.4" role="repair"
claim("largest change in the accuracy caused by loading, with the task "
      "SEQ_CLS", max(abs(share - before) for share in again), expected=0)

# %% [markdown] trap="10.4" role="repair"
# In the exercise, you write a report that shows, before a file is saved, which layers
# have LoRA, which other parameters are trained, which are frozen by mistake, and which
# layers have learned nothing yet.

# %% [markdown] trap="10.4" role="more" topics="no warning · two wrong tasks · a second adapter freezes the first"
# No warning during training or loading named the head. Without a task, the accuracy is
# different each time you load the file, because only the file saved with a task contains
# the head. Both classifiers trained for 100 steps from different random weights, so the
# accuracy before saving says nothing about the task's effect. Only the accuracy after
# loading shows that effect.

# %% trap="10.4" role="more"
claim("without a task: highest accuracy after loading minus lowest "
      "accuracy after loading", max(loaded) - min(loaded), above=0.05)
claim("number of warnings that name the head, during training and loading",
      sum("score" in line for line in told + told_then), expected=0)
claim("number of the head's tensors in the file that was saved without a "
      "task", kept["no task"][1, 1].sum(), expected=0)
claim("is the head trained and saved with the task SEQ_CLS",
      kept["SEQ_CLS"][1].all().item(), expected=True)

# %% [markdown] trap="10.4" role="more"
# Here, two wrong tasks did less harm than no task. On this classifier, `CAUSAL_LM` raises
# an error. On a GPT-2, `SEQ_2_SEQ_LM`, a task for encoder-decoder models, changes only
# the wrapper's class and the stored task (`fan_in_fan_out` says that GPT-2 stores its
# matrices transposed):

# %% trap="10.4" role="more"
tasks, ids = {}, torch.randint(16, (8, 16))
gpt2 = small_gpt2().eval()
for task in ("CAUSAL_LM", "SEQ_2_SEQ_LM"):
    torch.manual_seed(SEED)
    other = get_peft_model(copy.deepcopy(gpt2), LoraConfig(
        r=4, task_type=task, fan_in_fan_out=True))
    tasks[task] = trainable(other), loss_on(learn(other, new, 20), ids)
print(tasks)
nothing, refused = heard(get_peft_model, classifier(),
                         LoraConfig(task_type="CAUSAL_LM"))

# %% trap="10.4" role="more"
claim("number of trainable parameters with CAUSAL_LM minus the number with "
      "SEQ_2_SEQ_LM",
      tasks["CAUSAL_LM"][0] - tasks["SEQ_2_SEQ_LM"][0], expected=0)
claim("loss after 20 steps with CAUSAL_LM minus loss after 20 steps with "
      "SEQ_2_SEQ_LM",
      tasks["CAUSAL_LM"][1] - tasks["SEQ_2_SEQ_LM"][1], expected=0)
claim("does peft reject CAUSAL_LM for a classifier",
      nothing is None, expected=True)

# %% [markdown] trap="10.4" role="more"
# Parameters that were trainable can also be frozen later. A second call to
# `get_peft_model` changes the base itself, not a copy. If the second adapter is a prefix,
# the call freezes everything that it finds, including the first adapter. (A second LoRA
# with the same name would reset the first adapter, with a warning.) So give each adapter
# its own copy of the base, as `adapter` does in trap 10.1.

# %% trap="10.4" role="more"
shared = copy.deepcopy(gpt2)
config = LoraConfig(r=4, task_type="CAUSAL_LM", fan_in_fan_out=True)
first = get_peft_model(shared, config)
trains = [trainable(first)]
second, warned = heard(with_prefix, shared)
trains.append(trainable(first))
print("first adapter trains:", trains)

# %% trap="10.4" role="more"
claim("number of trainable parameters in the first adapter before a second "
      "adapter is added", trains[0], above=0)
claim("number of trainable parameters in the first adapter after a second "
      "adapter is added", trains[1], expected=0)

# %% [markdown] trap="10.4" role="folklore"
# **Told:** `SEQ_2_SEQ_LM` on a decoder silently adapts the wrong modules, and
# `print_trainable_parameters` shows the damage. **Measured:** With LoRA on this GPT-2,
# the same parameters are trained and the two losses agree to the last digit, so there is
# nothing to show. What does harm is a new head that you do not name.

# %% trap="10.4" role="exercise" points=4 difficulty=3 minutes=20
def passport(model: nn.Module) -> dict:
    """Report which layers have LoRA and which parameters are trained.

    A LoRA layer is a module that has its own parameters A and B, of any
    shapes. It may also have other parameters.

    Returns a dict:
        "layers": the paths of the LoRA layers, in the order of
        model.named_modules(). "trainable": the number of values in model
        that require a gradient, as an int. "other": the paths of parameters
        that require a gradient and are not A or B of a LoRA layer.
        "frozen": the paths of all A and B that belong to a LoRA layer and
        require no gradient. "other" and "frozen" are in the order of
        model.named_parameters(), and a shared parameter counts once.
        "idle": the paths of LoRA layers whose B is all zeros, in the order
        of "layers".
    model does not change, and nothing is kept between calls. Example:
    nn.Sequential(LoRA(nn.Linear(2, 2), r=1)) returns layers ["0"],
    trainable 4, other [], frozen [] and idle ["0"].
    """
    # BEGIN SOLUTION
    lora, inside = {}, set()
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if "A" in own and "B" in own:
            lora[path] = module
            inside.update((id(own["A"]), id(own["B"])))
    live = {path: p for path, p in model.named_parameters()
            if p.requires_grad}
    return {"layers": list(lora),
            "trainable": sum(p.numel() for p in live.values()),
            "other": [k for k, p in live.items() if id(p) not in inside],
            "frozen": [k for k, p in model.named_parameters()
                       if id(p) in inside and k not in live],
            "idle": [k for k, layer in lora.items() if not layer.B.any()]}
    # END SOLUTION

# %% [markdown] trap="10.4" role="hint"
# 1. `module.named_parameters(recurse=False)` yields only the module's own parameters, with their names.
# 2. First collect the LoRA layers and the identity, `id(p)`, of each A and B. Then one loop over `model.named_parameters()` can sort the rest.
# 3. A sum can be zero even if not all values are zero. `any()` is True if at least one value is not zero.

# %% [markdown] trap="10.4" role="keep"
# **Keep:** Peft neither trains nor saves a new head unless you name it, with `task_type`
# or `modules_to_save`. **In your own code:** After wrapping the model, list the trainable
# parameters. After saving, list the keys in the file. Then load the file and compare the
# accuracy. **Source:** The entry on `modules_to_save` in [peft's
# LoraConfig](https://huggingface.co/docs/peft/package_reference/lora). **Seen in the
# wild:** [huggingface/peft 310](https://github.com/huggingface/peft/issues/310): in an
# early version of peft, the saved adapter did not contain the classifier's head.

# %% [markdown] role="concept"
# ## Four bits for the base: NF4
#
# With LoRA, the frozen base fills most of the GPU's memory. The base is not trained,
# so you can store it at low precision. *QLoRA* stores the base in four bits per weight, a
# quarter of what `bfloat16` needs. Four bits can encode 16 levels. Each block of 64
# weights is divided by its largest absolute value, the *scale* of the block, and each
# weight is rounded to the nearest level.
#
# Where should the levels be? Weights look like draws from a normal distribution, so most
# weights are small. *NF4* therefore puts its levels at *quantiles* of N(0, 1): on each
# side of zero, an equal fraction of the draws falls between one quantile and the next.
# Eight levels are above zero, seven are below, and one is at zero. All 16 levels are
# scaled so that the largest level is one. The quantile for the probability 1 would be
# infinite, so the outermost level uses a slightly smaller probability, `edge`.

# %% role="concept"
import bitsandbytes as bnb

normal, edge = torch.distributions.Normal(0.0, 1.0), 0.9677083
above = normal.icdf(torch.linspace(edge, 0.5, 9)[:-1])
below = -normal.icdf(torch.linspace(edge, 0.5, 8)[:-1])
nf4 = torch.cat([above, below, torch.zeros(1)]).sort().values
nf4 = nf4 / nf4.max()
library = bnb.functional.get_4bit_type("nf4", device="cpu")
print(*[f"{level:.2f}" for level in nf4.tolist()])

def rounded_to(grid, weights, block=64):
    """Round the weights to the levels, each block by its own scale."""
    blocks = weights.view(-1, block)
    scale = blocks.abs().amax(1, keepdim=True)
    nearest = ((blocks / scale)[..., None] - grid).abs().argmin(-1)
    return (grid[nearest] * scale).view_as(weights)

# %% role="concept"
def error(grid, weights):
    return ((rounded_to(grid, weights) - weights).norm()
            / weights.norm()).item()

evenly = torch.linspace(-1, 1, 16)
bell, flat = torch.randn(512, 512), torch.rand(512, 512) * 2 - 1
errors = {(grid, kind): error(levels, weights)
          for grid, levels in (("NF4", nf4), ("even", evenly))
          for kind, weights in (("normal", bell), ("uniform", flat))}
for (grid, kind), value in errors.items():
    print(f"{grid} levels, {kind} weights: error {value:.3f}")

# %% role="concept"
claim("largest gap between our NF4 levels and bitsandbytes' levels",
      (nf4 - library).abs().max(), below=1e-5)
claim("normal weights: error with NF4 divided by error with evenly spaced "
      "levels",
      errors["NF4", "normal"] / errors["even", "normal"], below=0.95)
claim("uniform weights: error with NF4 divided by error with evenly "
      "spaced levels",
      errors["NF4", "uniform"] / errors["even", "uniform"], above=1.05)

# %% role="concept"
draw_histogram(bell[:64] / bell[:64].abs().max(),
               grids={"NF4": nf4.tolist(), "even": evenly.tolist()},
               unit="weight / largest",
               title="NF4 puts its levels where the weights are",
               alt="A bell-shaped histogram of weights. Below it are the "
                   "sixteen levels of NF4, which are dense around zero, "
                   "and sixteen evenly spaced levels.")

# %% [markdown] role="concept"
# NF4 is better for normally distributed weights, and evenly spaced levels are better for
# uniformly distributed weights. **Guess first.** Now one weight in 256 is an *outlier*,
# eight times as large as a typical weight. What happens to the other weights in the
# outlier's block? And do these weights suffer less in large blocks or in small blocks?

# %% role="concept"
some, blocks = bell[:64], [16, 32, 64, 128, 256]
spiky = some.clone()
spiky.view(-1, 256)[:, 0] = 8
others = spiky == some

def error_of_others(grid, weights, block):
    gap = (rounded_to(grid, weights, block) - weights)[others]
    return (gap.norm() / weights[others].norm()).item()

by_block = {f"{name}{what}": [error_of_others(grid, weights, block)
                              for block in blocks]
            for name, grid in (("NF4", nf4), ("even", evenly))
            for what, weights in (("", some), (", outliers", spiky))}

# %% role="concept"
claim("NF4, blocks of 256: error with outliers divided by error without "
      "outliers",
      by_block["NF4, outliers"][-1] / by_block["NF4"][-1], above=1.7)
claim("NF4, blocks of 16: error with outliers divided by error without "
      "outliers",
      by_block["NF4, outliers"][0] / by_block["NF4"][0], below=1.4)

# %% role="concept"
plot_lines(blocks, by_block, xlabel="weights per block",
           ylabel="error of the other weights",
           title="An outlier makes its whole block less precise",
           alt="Four lines of the error over the block size. Without "
               "outliers, the lines of both grids rise gently. If one "
               "weight in 256 is eight times as large, the error of the "
               "other weights in large blocks at least doubles, and evenly "
               "spaced levels suffer most.")

# %% [markdown] role="concept"
# The outlier sets the scale of its block, so the block's other weights have to share the
# few levels around zero. In a small block, fewer neighbours are affected. But small
# blocks cost memory, because each block stores a scale in `float32`. *Double
# quantization* also quantizes the scales, to 8 bits, in blocks of 256:

# %% role="concept"
def bits_per_weight(double):
    """Bits stored per weight of an NF4 matrix, including the scales."""
    kept = bnb.nn.Params4bit(
        torch.randn(1024, 1024), requires_grad=False, quant_type="nf4",
        compress_statistics=double).to("cpu")
    scales = kept.quant_state.absmax.nbytes
    if double:
        scales += kept.quant_state.state2.absmax.nbytes
    return 8 * (kept.nbytes + scales) / 1024**2

bits = {"plain": bits_per_weight(False), "double": bits_per_weight(True)}
print({name: f"{n:.3f} bits per weight" for name, n in bits.items()})

# %% role="concept"
claim("bits per weight with float32 scales", bits["plain"], expected=4.5)
claim("bits per weight with double quantization", bits["double"],
      expected=4.127, within=0.001)

# %% [markdown] role="concept"
# ## QLoRA in practice
#
# In practice, you only specify a storage format such as NF4, in a `BitsAndBytesConfig`,
# and `from_pretrained` quantizes the weights. `prepare_model_for_kbit_training` freezes
# all parameters, converts the remaining 16-bit parts (norm layers, embedding, head) to
# `float32`, and turns on activation checkpointing unless you switch it off, as the code
# here does. Then you add LoRA, as before. The next cells train a base of width 64, save
# it, and load it in four bits:

# %% role="concept"
from peft import prepare_model_for_kbit_training
from transformers import BitsAndBytesConfig

wide = learn(small_llama(width=64), old, steps=60)       # blocks of 64
home = tempfile.mkdtemp()
wide.save_pretrained(home)
nf4_settings = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.float32)           # on a GPU: bfloat16

def in_four_bits():
    return AutoModelForCausalLM.from_pretrained(
        home, quantization_config=nf4_settings)

# %% role="concept"
four_bit = in_four_bits()
weight = four_bit.model.layers[0].mlp.up_proj.weight
print(f"bytes for 8,192 weights: {weight.nbytes}")
found = {"old language, base": loss_on(wide, old_ids),
         "old language, NF4": loss_on(four_bit, old_ids)}

# Train a second copy: on some CPUs, a call in eval mode repacks the
# weights for inference only, and no gradient can pass through them.
ready = prepare_model_for_kbit_training(
    in_four_bits(), use_gradient_checkpointing=False)
for name, model in (("LoRA", wide), ("QLoRA", ready)):
    model = adapter(model, "all-linear")
    found[name] = loss_on(learn(model, new, steps=60), new_ids)
print({k: f"{v:.2f}" for k, v in found.items()})

# %% role="concept"
claim("number of bytes that a 128 x 64 matrix takes up in NF4, without its "
      "scales", weight.nbytes, expected=4096)
claim("loss on the old language: base in NF4 minus unquantized base",
      found["old language, NF4"] - found["old language, base"],
      above=-0.1, below=0.3)
claim("loss on the new language with QLoRA minus loss on the new language "
      "with LoRA", found["QLoRA"] - found["LoRA"], above=-0.4, below=0.4)

# %% [markdown] role="concept"
# Here, four bits hardly change the loss, before or after training. Four bits are only a
# format for *storing* weights. For each product, the weights are unpacked to the dtype in
# `bnb_4bit_compute_dtype`. The embedding, the norm layers and the head are not quantized.
# Do not merge the adapter into the four-bit weights, because the sum would again be
# rounded to 16 levels. Merge the adapter into weights unpacked to `float32`, or leave it
# unmerged.

# %% [markdown] role="concept"
# ## What a 7B needs: all weights, LoRA, QLoRA
#
# On the *meta* device, a model has shapes but no values, so you can count the parameters
# of a Llama-2-7B without downloading it. If you have your own model on this machine,
# enter its folder below, and the last line of the output also gives its number of
# parameters. No other cell needs your model.

# %% role="concept"
MODEL_7B = ""          # a folder with config.json; empty for none

def count(config):
    """Count parameters: model, LoRA (r 16) in attention, LoRA in all."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    sides = {path: m.in_features + m.out_features
             for path, m in model.named_modules()
             if isinstance(m, nn.Linear) and "lm_head" not in path}
    return (sum(p.numel() for p in model.parameters()),
            16 * sum(n for path, n in sides.items() if "attn" in path),
            16 * sum(sides.values()))

numbers, in_attention, in_all = count(LlamaConfig())  # defaults of the 7B
print(f"base {numbers:,}, LoRA in attention {in_attention:,}, in all "
      f"{in_all:,}")

# %% role="concept" tags=["plumbing"]
def config_in(folder):
    """Load a configuration, only from files on this machine."""
    path = pathlib.Path(folder).expanduser()
    if not (path / "config.json").is_file():
        raise UserError(f"MODEL_7B: got {folder!r}, expected a folder with "
                        "config.json. Write its path, or leave it empty.")
    return AutoConfig.from_pretrained(path, local_files_only=True)

if MODEL_7B:
    print("your model:", *(f"{n:,}" for n in count(config_in(MODEL_7B))))

# %% role="concept"
claim("number of parameters in the 7B base",
      numbers, expected=6_738_415_616)
claim("number of parameters that LoRA of rank 16 adds in attention",
      in_attention, expected=16_777_216)
claim("parameters of rank-16 LoRA in all linear modules, divided by "
      "parameters of the base",
      in_all / numbers, expected=0.006, within=1e-4)

# %% role="concept"
GB, trained = 1e9, 16 * in_all / 1e9           # 16 bytes per parameter
outside = 2 * 32_000 * 4096                    # embedding and head
needs = {
    "all weights": {"weights": 4 * numbers / GB,
                    "gradients": 4 * numbers / GB,
                    "moments": 8 * numbers / GB},
    "LoRA": {"base": 2 * numbers / GB, "adapter": trained},
    "QLoRA": {"base": (numbers - outside) * bits["double"] / 8 / GB,
              "outside": 4 * outside / GB, "adapter": trained}}
total = {name: sum(parts.values()) for name, parts in needs.items()}

# %% role="concept"
draw_boxes(needs, limit=24, limit_name="a card of",
           title="LoRA fits on a card of 24 GB, QLoRA leaves room",
           alt="Three columns, to scale, with a line at 24 GB. Training "
               "all weights takes over 100 GB, for weights, gradients and "
               "moments. LoRA is below the line, and nearly all of it is "
               "the frozen base. QLoRA reaches about a fifth of the line.")

# %% role="concept"
claim("GB for training all weights with AdamW", total["all weights"],
      expected=107.8, within=0.1)
claim("GB for LoRA on a bfloat16 base", total["LoRA"], expected=14.1,
      within=0.1)
claim("GB for QLoRA", total["QLoRA"], expected=5.0, within=0.1)

# %% [markdown] role="concept"
# Training with AdamW takes 16 bytes for every trainable parameter: weight, gradient and
# two moments in `float32` (stage 9). The frozen base needs only its weights, two bytes
# each in `bfloat16`. In all three cases, the activations need additional memory, which
# neither LoRA nor four bits reduce much.

# %% [markdown] trap="10.5" role="situation" core=true fault="the saved adapter is never loaded, a fresh one answers" symptom="loaded LoRA adapter changes nothing, outputs equal the base model, get_peft_model before loading"
# ## From the file into service
#
# The trained adapter `whole` from trap 10.1 is saved in a folder, with its parameters and
# its configuration. The adapter lowers the loss on the new language from above 3 to below
# 2.2. Three versions of a program serve the adapter. All three build the base, read the
# configuration and pass both to `get_peft_model`, as the training script did. The first
# version does nothing else. The second version also passes the tensors in the file to
# `load_state_dict`, which complains about missing keys until you add `strict=False`. The
# third version calls peft's own `load_adapter`, which understands the names in the file
# and loads the adapter under the name `trained`.
#
# A reviewer writes: "The third version loads the adapter, so it is right."

# %% trap="10.5" role="break"
folder = tempfile.mkdtemp()
whole.save_pretrained(folder)
file = load_file(f"{folder}/adapter_model.safetensors")  # tensors by name

def fresh():
    config = PeftConfig.from_pretrained(folder)
    return get_peft_model(copy.deepcopy(base), config).eval()

first_version, second_version, third_version = fresh(), fresh(), fresh()
told = second_version.load_state_dict(file, strict=False)
_ = third_version.load_adapter(folder, "trained")

# %% trap="10.5" role="guess" quoted="wrong"
guess("10.5",
      "Which of the three versions answer like the trained adapter?",
      choices=["the second and the third",
               "only the third",
               "only the second",
               "none of them"])

# %% trap="10.5" role="look"
served = {"base alone": base, "first version": first_version,
          "second version": second_version,
          "third version": third_version, "as trained": whole}
losses = {name: loss_on(model, new_ids) for name, model in served.items()}

# %% trap="10.5" role="look"
plot_bars(losses, xlabel="loss on the new language",
          title="All three versions answer like the base",
          alt="Five bars of loss. The base and the three versions have the "
              "same high loss. The trained adapter's loss is far lower.")

# %% trap="10.5" role="look"
measured("10.5", 3)

# %% trap="10.5" role="look"
claim("loss of the second version minus loss of the base",
      losses["second version"] - losses["base alone"], expected=0)

# %% [markdown] trap="10.5" role="why"
# `get_peft_model` creates a *new* adapter, and a new adapter does nothing, because $B$ is
# zero. Inside the model, each adapter tensor's name contains the name of the adapter,
# `default`. The names in the file lack this part, so no name in the file matches a name
# in the model. You added `strict=False` because the file has no base weights, but
# `strict=False` also hides that not a single adapter tensor was loaded. The third version
# does load the trained adapter, but the new adapter, `default`, stays active.

# %% trap="10.5" role="why"
inside = next(key for key in second_version.state_dict() if "lora_A" in key)
print("file: ", next(iter(file))[-36:])
print("model:", inside[-44:])

# %% trap="10.5" role="why"
claim("number of tensors in the file whose names match no name in the "
      "model", len(told.unexpected_keys), expected=len(file))

# %% trap="10.5" role="why"
def kilobytes(state, word):
    return sum(t.nbytes for key, t in state.items() if word in key) / 1e3

parts = base.state_dict()
sizes = {"the base": {"layers": kilobytes(parts, "layers."),
                      "embedding": kilobytes(parts, "embed"),
                      "head": kilobytes(parts, "lm_head")},
         "the adapter's file": {"A": kilobytes(file, "lora_A"),
                                "B": kilobytes(file, "lora_B")}}

# %% trap="10.5" role="why"
draw_boxes(sizes, unit="kB", title="The file holds A and B, and no base",
           alt="Two stacks of boxes, to scale. The base consists of "
               "layers, an embedding and a head. The adapter's file is far "
               "smaller and consists of A and B.")

# %% [markdown] trap="10.5" role="repair"
# `PeftModel.from_pretrained` creates the modules, finds each tensor under its name in the
# file, and activates the adapter:

# %% trap="10.5" role="repair"
model = PeftModel.from_pretrained(copy.deepcopy(base), folder)
losses["from_pretrained"] = loss_on(model, new_ids)
print({name: f"{loss:.2f}" for name, loss in losses.items()})

# %% trap="10.5" role="repair"
claim("loss after loading with from_pretrained minus loss after training",
      losses["from_pretrained"] - losses["as trained"], expected=0,
      within=1e-4)

# %% [markdown] trap="10.5" role="more" topics="the exact logits · several adapters · wrapped twice"
# All three versions return exactly the base's logits:

# %% trap="10.5" role="more"
@torch.no_grad()
def same_as_base(model):
    return torch.equal(model(input_ids=new_ids).logits,
                       base(input_ids=new_ids).logits)

alike = sum(map(same_as_base, (first_version, second_version,
                               third_version)))
lora_missing = sum("lora_" in key for key in told.missing_keys)

# %% trap="10.5" role="more"
claim("number of versions that return exactly the base's logits", alike,
      expected=3)
claim("loss of the trained adapter", losses["as trained"], below=2.2)
claim("number of LoRA tensors in the model that were not loaded",
      lora_missing,
      expected=len(file))

# %% [markdown] trap="10.5" role="more"
# One base can hold several adapters, and `set_adapter` activates one of them:

# %% trap="10.5" role="more"
small_folder = tempfile.mkdtemp()
partly.save_pretrained(small_folder)
model.load_adapter(small_folder, "small")
model.set_adapter("small")
losses["small"] = loss_on(model, new_ids)
with model.disable_adapter():
    alone = same_as_base(model)
third_version.set_adapter("trained")
losses["third version"] = loss_on(third_version, new_ids)

# %% trap="10.5" role="more"
claim("smaller adapter: loss when it is active minus loss after its "
      "training",
      losses["small"] - loss_on(partly, new_ids), expected=0, within=1e-4)
claim("with the adapters off, do the logits equal the base's logits",
      alone, expected=True)
claim("third version: loss with the trained adapter active minus loss "
      "after training",
      losses["third version"] - losses["as trained"],
      expected=0, within=1e-4)

# %% [markdown] trap="10.5" role="more"
# Calling `get_peft_model` and passing the result to `from_pretrained` also fails. In that
# case, however, this version of peft warns you that the model already has an adapter, and
# that no names match. The three versions above give no warning at all.

# %% trap="10.5" role="more"
wrapped_twice, told = heard(PeftModel.from_pretrained, fresh(), folder)
print(*[message[:64] for message in told], sep="\n")

# %% trap="10.5" role="more"
claim("do the logits equal the base's logits if the model is wrapped twice",
      same_as_base(wrapped_twice.eval()), expected=True)
claim("number of warnings from peft if the model is wrapped twice",
      len(told), above=0)

# %% trap="10.5" role="exercise" points=4 difficulty=3 minutes=20
def load_adapter(model: nn.Module, file: dict[str, torch.Tensor]) -> None:
    """Load an adapter from a file into a model, completely or not at all.

    The model's adapter consists of all parameters in named_parameters()
    whose paths end with the three parts lora_A.default.weight or
    lora_B.default.weight, such as
    "base_model.model.q_proj.lora_A.default.weight". There is at least one
    of each. In a file, paths lack the part "default", as in
    "base_model.model.q_proj.lora_A.weight".

    Args:
        file: a dict from such paths to tensors of a floating-point dtype.

    Raises ValueError if a path of the adapter is missing in file. Any other
    path in file also raises ValueError. A shape that differs raises
    ValueError. A file in which every lora_B is all zeros also raises
    ValueError. In each of these cases, model does not change.

    Each parameter gets the values of its tensor, in the parameter's dtype.
    It stays the same object and keeps its requires_grad. It shares no
    memory with file. The rest of model, file and the grad mode do not
    change.
    """
    # BEGIN SOLUTION
    ends = ("lora_A.default.weight", "lora_B.default.weight")
    mine = {path.removesuffix("default.weight") + "weight": p
            for path, p in model.named_parameters()
            if ".".join(path.split(".")[-3:]) in ends}
    if mine.keys() != file.keys():
        raise ValueError("paths of the adapter and of file differ")
    for path, p in mine.items():
        if p.shape != file[path].shape:
            raise ValueError(f"{path}: its shape differs")
    if not any(tensor.any() for path, tensor in file.items()
               if path.endswith("lora_B.weight")):
        raise ValueError("every B is zero: this adapter does nothing")
    with torch.no_grad():
        for path, p in mine.items():
            p.copy_(file[path])
    # END SOLUTION

# %% [markdown] trap="10.5" role="hint"
# 1. `model.named_parameters()` yields paths such as
#    `base_model.model.q_proj.lora_A.default.weight`. The last three parts of a path are
#    `path.split(".")[-3:]`. Build a dict of the adapter's parameters, in which the keys
#    are the paths that a file uses.
# 2. Finish all checks before you write the first value. You can compare the `keys()` of two dicts like sets.
# 3. `copy_` under `no_grad` writes values into a parameter without replacing the object
#    or changing its dtype. But `copy_` also broadcasts, so compare the shapes yourself.

# %% [markdown] trap="10.5" role="keep"
# **Keep:** If a LoRA adapter was never loaded, you get no error, and by default the model
# answers exactly like its base. (A prefix that was never loaded is random.) Load adapters
# with `PeftModel.from_pretrained`. **In your own code:** After loading, count the keys
# that matched nothing, check that some $B$ is not zero, and compare an answer with the
# base's answer. **Source:** [peft's
# quicktour](https://huggingface.co/docs/peft/quicktour) loads with `from_pretrained`.
# **Seen in the wild:** [huggingface/peft
# 2115](https://github.com/huggingface/peft/issues/2115): a user called `get_peft_model`
# before loading and got outputs identical to the base; the maintainers then added a
# warning in [pull request 2118](https://github.com/huggingface/peft/pull/2118).

# %% [markdown] role="concept"
# ## Ten customers on one base: merge or switch
#
# Ten customers have ten adapters for one base. You can *merge* each adapter into its own
# copy of the base. A merged copy answers one customer fastest, but ten copies of the base
# have to fit in memory. Or you can keep one base and *switch* between the adapters:
# `set_adapter` activates one customer's adapter while the other customers wait. Or you
# can *mix* adapters: every row of a batch names its adapter. Then all rows share the
# product with $W$, and only the products with the thin matrices differ:

# %% role="concept"
server = PeftModel.from_pretrained(copy.deepcopy(base), folder, "ann")
_ = server.load_adapter(small_folder, "bob")
rows = new_ids[:3]
with torch.no_grad():
    mixed = server.eval()(input_ids=rows, adapter_names=[
        "ann", "bob", "__base__"]).logits
    alone = [model(input_ids=row[None]).logits[0] for model, row
             in zip((whole, partly, base), rows)]
apart = max((a - b).abs().max() for a, b in zip(mixed, alone))

copies = {"ten merged copies": {"bases": 20 * numbers / GB},
          "one base, ten adapters": {"base": 2 * numbers / GB,
                                     "adapters": 20 * in_all / GB}}

# %% role="concept"
draw_boxes(copies, title="Ten adapters share a base, merged copies do not",
           alt="Two columns, to scale. Ten merged copies of a 7B model "
               "take over 100 GB. One base with ten adapters takes about a "
               "tenth as much, and the adapters are a thin slice of it.")

# %% role="concept"
claim("largest gap between the logits in a mixed batch and the logits of "
      "each row alone", apart, below=1e-4)
claim("GB for ten merged copies of a 7B model",
      20 * numbers / GB, expected=134.8, within=0.1)
claim("GB for ten adapters of rank 16",
      20 * in_all / GB, expected=0.8, within=0.01)

# %% [markdown] role="concept"
# Merge the adapter of a customer with a lot of traffic. For many customers, keep one base
# with the adapters next to it. Servers use specialized kernels to mix adapters in one
# batch ([Chen et al. 2023, "Punica"](https://arxiv.org/abs/2310.18547)).

# %% [markdown] trap="10.6" role="situation" core=true fault="padding with EOS: the labels lose every EOS" symptom="fine-tuned model never stops generating, no EOS, pad_token = eos_token"
# ## Padding with what was at hand
#
# You teach a small Llama to answer. The prompt is a number from three to nine. The answer
# repeats a word that many times and ends with EOS, the token for the end of a text. There
# is no special token for padding, so you pad the shorter texts of a batch with EOS, on
# the right. In the labels, you replace every padding id with -100, so that the loss skips
# these positions.
#
# The training loss falls well below 1. To test the model, you give it seven prompts,
# one for each number. The model writes until it produces EOS or has written 13 tokens.

# %% trap="10.6" role="break" tags=["plumbing"]
EOS, OWN_PAD, BOS, WORD, LONGEST = 0, 1, 2, 12, 13

def answers(rows, pad):
    """ids (rows, 13) of "BOS n, n words, EOS", padded; lengths (rows,)."""
    n = torch.randint(3, 10, (rows,))
    at, end = torch.arange(LONGEST), 2 + n[:, None]
    ids = torch.full((rows, LONGEST), WORD)
    ids[:, 0], ids[:, 1] = BOS, n
    ids[at == end], ids[at > end] = EOS, pad
    return ids, end[:, 0] + 1

# %% trap="10.6" role="break" tags=["plumbing"]
@torch.no_grad()
def answer_lengths(model):
    """Count the words, up to 13, that the model writes for 3 to 9."""
    n = torch.arange(3, 10)
    ids, found = torch.stack([torch.full_like(n, BOS), n], 1), n * 0 + 13
    for words in range(LONGEST):
        token = model(input_ids=ids).logits[:, -1].argmax(1)
        found[(token == EOS) & (found == 13)] = words
        ids = torch.cat([ids, token[:, None]], 1)
    return found

# %% trap="10.6" role="break"
def by_pad_id(ids, lengths, pad):
    """Labels (N, T): the ids, but -100 for padding, so no loss there."""
    return ids.masked_fill(ids == pad, -100)

# %% trap="10.6" role="break"
def speaker(labels_of, pad, steps=140):
    """Train a model on padded answers; return its last loss and labels."""
    torch.manual_seed(SEED)                  # the same start for all
    model = small_llama()
    opt = torch.optim.AdamW(model.parameters(), 5e-3)
    for _ in range(steps):
        ids, lengths = answers(32, pad)
        labels = labels_of(ids, lengths, pad)
        loss = model(input_ids=ids, labels=labels).loss
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model.eval(), loss.item(), labels

# %% trap="10.6" role="break"
talker, loss, labels = speaker(by_pad_id, pad=EOS)
lengths = answer_lengths(talker)

# %% trap="10.6" role="guess"
guess("10.6",
      "You repair the fault in this code and train again. How does the new "
      "run's final training loss compare with the first run's?",
      choices=["about the same",
               "less than half as large",
               "more than twice as large"])

# %% trap="10.6" role="look"
print(f"training loss {loss:.2f}, "
      f"labels that are EOS: {(labels == EOS).sum()}")
print("answers to 3 .. 9 words:", lengths.tolist())

# %% trap="10.6" role="look"
claim("number of answers that stop, out of seven, with labels masked by id",
      (lengths < LONGEST).sum(), expected=0)

# %% [markdown] trap="10.6" role="why"
# One line of code removes the padding from the labels, and this line recognizes padding
# by the token id. The EOS that ends a text has the same id. So the line also removes
# every EOS from the labels, and the loss never asks the model to predict the end of a
# text. If you mask by the *length* of each text instead, the EOS at the end of a text
# keeps its label, whatever id you use for padding.

# %% trap="10.6" role="why"
def by_length(ids, lengths, pad):
    after = torch.arange(ids.shape[1]) >= lengths[:, None]
    return ids.masked_fill(after, -100)

stop_at = [5, 7, 9, 11]                  # where four texts have their EOS
rows = torch.full((4, LONGEST), WORD)
for row, end in zip(rows, stop_at):
    row[end:] = EOS                      # the EOS, then padding
ends = torch.arange(LONGEST) == torch.tensor(stop_at)[:, None]
learned = {name: rule(rows, torch.tensor(stop_at) + 1, EOS) != -100
           for name, rule in (("by id", by_pad_id),
                              ("by length", by_length))}

# %% trap="10.6" role="why"
draw_grids(learned, marks={"by id": ends}, rows="text", columns="token",
           captions={"by length": "one EOS per text is learned"},
           legend="the EOS that ends the text",
           title="By id, the EOS that ends a text has no label",
           alt="Two grids of four texts and thirteen tokens, in which "
               "filled cells have a label. Masked by id, the first EOS of "
               "each text has no label and is marked with a cross. Masked "
               "by length, the first EOS is filled, and only the padding "
               "is empty.")

# %% trap="10.6" role="repair"
written, losses = {"by id": lengths.tolist()}, {"by id": loss}
for name, labels_of, pad in (("own padding", by_pad_id, OWN_PAD),
                             ("by length", by_length, EOS)):
    talker, losses[name], _ = speaker(labels_of, pad)
    written[name] = answer_lengths(talker).tolist()
stops = {name: sum(n < LONGEST for n in found)
         for name, found in written.items()}
print({name: f"{loss:.2f}" for name, loss in losses.items()})

# %% trap="10.6" role="repair"
measured("10.6", 0)

# %% trap="10.6" role="repair"
plot_lines(range(3, 10), {name: written[name]
                          for name in ("by id", "by length")},
           xlabel="words asked for", ylabel="words before the end",
           title="Masked by length, the model learns to stop",
           alt="Two lines: words written against words asked for. Masked "
               "by id, the line stays at the limit of thirteen. Masked by "
               "length, the line rises with the number of words asked for.")

# %% trap="10.6" role="repair"
claim("number of answers that stop, out of seven, with labels masked by "
      "length",
      stops["by length"], above=4)

# %% [markdown] trap="10.6" role="repair"
# The training losses are about equal, so they do not reveal the fault. Let the model
# answer a few prompts before you trust a training curve.

# %% trap="10.6" role="repair"
claim("training loss: labels masked by length divided by labels masked by "
      "id", losses["by length"] / losses["by id"], above=0.6, below=1.5)

# %% [markdown] trap="10.6" role="more" topics="a separate padding token · what few steps teach"
# If the vocabulary has no unused token, a separate padding token needs one more row in
# the embedding, and another in the head if the head is not tied to the embedding. Here,
# masking by length and a separate padding token produce the same model, because the
# initial weights, the texts and the labels are the same, and nothing after the end has a
# label. With so few steps, the model learns to stop, but not perfectly. With some seeds,
# the model still misses the end of the longest answer, or writes one word too many.

# %% trap="10.6" role="more"
claim("training loss at the end, with labels masked by id",
      losses["by id"], below=0.6)
claim("number of EOS labels in the last batch, with labels masked by id",
      (labels == EOS).sum(), expected=0)
claim("number of answers that stop, out of seven, with a separate padding "
      "token",
      stops["own padding"], above=4)

# %% trap="10.6" role="exercise" points=3 difficulty=2 minutes=10
def lm_labels(ids: torch.Tensor, prompts: torch.Tensor,
              lengths: torch.Tensor) -> torch.Tensor:
    """Make labels for a causal language model that shifts them itself.

    A text is a prompt and its answer. Only the answer is learned, with its
    ids as the labels. All other labels are -100, whatever the ids are.

    Args:
        ids: (N, T) int64, possibly without rows. Texts are padded on the
            left.
        prompts: (N,) int64, the number of tokens in each prompt, from 0 to
            the length of its text.
        lengths: (N,) int64, the number of tokens in each text, from 0 to T,
            its EOS included.

    Padding can have the id of EOS or of any other token, and a text can
    contain EOS in the middle. The result is int64. Each call returns new
    memory. The arguments do not change.
    Example: ids [[0, 5, 6, 0]], prompts [1] and lengths [3] return
    [[-100, -100, 6, 0]].
    """
    # BEGIN SOLUTION
    start = ids.shape[1] - lengths + prompts
    before = torch.arange(ids.shape[1]) < start[:, None]
    return ids.masked_fill(before, -100)
    # END SOLUTION

# %% [markdown] trap="10.6" role="hint"
# 1. Do not ask which id is at a position. Ask whether the position belongs to an answer. A text that is padded on the left ends at the last position.
# 2. Two things come before an answer: the padding of its row, and its prompt. How many
#    positions do the two take up together?
# 3. Work on a copy of `ids`. A text can be empty, be only a prompt, or fill its row.
#    None of these cases needs special treatment.

# %% [markdown] trap="10.6" role="keep"
# **Keep:** Mask padding by the length of each text, not by its id. If you pad with EOS
# and mask by id, no label teaches the model to stop. **In your own code:** Count the EOS
# labels in a batch. There should be one for each text that ends. **Source:**
# `DataCollatorForLanguageModeling` in
# [transformers](https://github.com/huggingface/transformers/blob/main/src/transformers/data/data_collator.py):
# it sets every label that equals the padding token to -100. **Seen in the wild:**
# [huggingface/transformers
# 23530](https://github.com/huggingface/transformers/issues/23530): all EOS labels are
# overwritten, not only the padding's; [huggingface/trl
# 976](https://github.com/huggingface/trl/issues/976): a Mistral model trained in this
# way rarely writes the token that ends a text; [mlabonne/llm-course
# 33](https://github.com/mlabonne/llm-course/issues/33): a model from a well-known
# notebook stops only at the maximum length.

# %% [markdown] trap="10.7" role="situation" fault="the chat template and the tokenizer both add a BOS token" symptom="double BOS, prompt begins with two begin_of_text tokens, chat template and add_special_tokens, fine-tuned model is worse on the server than in the test"
# ## The server writes a log
#
# You teach a small Llama to count. A message is a list of orders, such as `tea milk tea`,
# and the answer is one token, the number of teas. The tokenizer has a *chat template*, a
# pattern that turns messages into the text that the model gets. In training, one call
# applies the template and encodes the text.
#
# The server makes two calls instead, because it also writes the text into a log. It uses
# the same tokenizer and the same template.

# %% trap="10.7" role="break" tags=["plumbing"]
from tokenizers import Tokenizer, models, pre_tokenizers, processors

ORDERS = ["tea", "milk", "cake", "salt"]
WORDS = [*map(str, range(10)), "<s>", *ORDERS]   # by token id
START = WORDS.index("<s>")
core = Tokenizer(models.WordLevel({word: i for i, word in
                                   enumerate(WORDS)}))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
core.post_processor = processors.TemplateProcessing(
    single="<s> $A", special_tokens=[("<s>", START)])
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=core, bos_token="<s>",
    chat_template="{{ bos_token }} {% for message in messages %}"
                  "{{ message.content }}{% endfor %}")

# %% trap="10.7" role="break" tags=["plumbing"]
def orders(rows):
    """Chats of one length, and how many teas each asks for, up to 9."""
    size, odds = torch.randint(4, 13, ()).item(), torch.rand(rows, 1)
    picks = torch.randint(1, 4, (rows, size))
    picks[torch.rand(rows, size) < odds] = 0              # tea
    picks[:, 9:] = picks[:, 9:].clamp(min=1)
    return ([[{"role": "user",
               "content": " ".join(ORDERS[pick] for pick in row)}]
             for row in picks.tolist()], (picks == 0).sum(1))

# %% trap="10.7" role="break"
def in_training(chats):
    """Ids (rows, T): the template and the tokenizer in one call."""
    return torch.tensor(tokenizer.apply_chat_template(chats)["input_ids"])

def on_the_server(chats):
    """Ids (rows, T): first the text, then the ids."""
    texts = tokenizer.apply_chat_template(chats, tokenize=False)
    return torch.tensor(tokenizer(texts)["input_ids"])

# %% trap="10.7" role="break"
def taught(model, encode, steps, lr=1e-2):
    """Train the model to answer with the number of teas."""
    opt = torch.optim.AdamW(model.parameters(), lr)
    for step in range(steps):
        for group in opt.param_groups:
            group["lr"] = lr * min(1, 2 - 2 * step / steps)
        chats, teas = orders(32)
        logits = model(input_ids=encode(chats)).logits[:, -1]
        opt.zero_grad()
        F.cross_entropy(logits, teas).backward()
        opt.step()
    return model.eval()

# %% trap="10.7" role="break"
tests = [orders(64) for _ in range(12)]
teas = torch.cat([count for _, count in tests])

@torch.no_grad()
def replies(model, encode):
    """The model's answers to all tests."""
    return torch.cat([model(input_ids=encode(chats)).logits[:, -1].argmax(1)
                      for chats, _ in tests])

waiter = taught(small_llama(bos_token_id=START), in_training, steps=400)
tested, served = (replies(waiter, encode)
                  for encode in (in_training, on_the_server))

# %% trap="10.7" role="guess"
guess("10.7",
      "Take the messages that ask for six teas. On the server, what is the "
      "mean of the model's answers to them?",
      choices=["below 5.8", "between 5.8 and 6.2", "above 6.2"])

# %% trap="10.7" role="look"
for encode in (in_training, on_the_server):
    print(f"{encode.__name__:14}", encode(tests[0][0][:1])[0].tolist())
right = {"in the test": (tested == teas).float().mean().item(),
         "on the server": (served == teas).float().mean().item()}
print({where: f"{share:.2f} right" for where, share in right.items()})

# %% trap="10.7" role="look"
claim("accuracy on the server", right["on the server"], below=0.75)

# %% [markdown] trap="10.7" role="look"
# The ids on the server begin with the same token twice. And the wrong answers are not
# random. On the server, the model counts too few teas on average:

# %% trap="10.7" role="look"
def mean_reply(said):
    """The mean answer to messages with 1 to 9 teas."""
    return torch.stack([said[teas == k].float().mean()
                        for k in range(1, 10)])

plot_lines(range(1, 10), {"in the test": mean_reply(tested),
                          "on the server": mean_reply(served)},
           xlabel="teas in the message", ylabel="mean answer",
           title="With one more token in front, the model counts too few",
           alt="Two lines: the mean answer against the number of teas. "
               "In the test the line follows the diagonal. On the server "
               "the line is below the diagonal.")

# %% trap="10.7" role="look"
measured("10.7", 0)

# %% trap="10.7" role="look"
claim("mean answer on the server to messages with six teas",
      served[teas == 6].float().mean().item(), below=5.8)

# %% [markdown] trap="10.7" role="why"
# `<s>` is the *BOS* token, which begins every text. The template writes it into the text,
# and `tokenizer(texts)` puts a second one in front, as it would for any text.
#
# Why does that matter? The weights of attention sum to 1, so attention cannot add up the
# teas. It can only compare the weight on the teas with the weight on something that
# occurs exactly once, such as BOS. A second BOS takes weight from the teas, as if there
# were fewer teas. The plot shows this for equal scores:

# %% trap="10.7" role="why"
k = torch.arange(1, 10)
plot_lines(k, {"one BOS": k / (k + 1), "two BOS": k / (k + 2)},
           xlabel="teas in the message",
           ylabel="part of the weight that is on teas",
           title="With equal scores, four teas and two BOS look like two "
                 "and one",
           alt="Two rising curves from one to nine teas. The curve for one "
               "BOS goes from 0.5 to 0.9. The curve for two BOS is lower: "
               "at four teas it has the value that the other curve has at "
               "two.")

# %% [markdown] trap="10.7" role="why"
# If this is the reason, the logits must be right again as soon as one of the two BOS
# tokens is hidden from attention. All other positions stay shifted by one, but a Llama's
# attention uses only differences between positions:

# %% trap="10.7" role="why"
doubled = on_the_server(tests[0][0])
visible = torch.ones_like(doubled)
visible[:, 0] = 0                                # hide the first BOS
with torch.no_grad():
    hidden = waiter(input_ids=doubled, attention_mask=visible).logits
    single = waiter(input_ids=doubled[:, 1:]).logits
gap = (hidden[:, -1] - single[:, -1]).abs().max().item()

# %% trap="10.7" role="why"
claim("largest gap between logits with one BOS and logits with two, of "
      "which one is hidden", gap, below=1e-3)

# %% [markdown] trap="10.7" role="repair"
# A text that a template has produced is complete. Encode it without special tokens:

# %% trap="10.7" role="repair" tags=["for-repair"]
def repaired(chats):
    """Ids (rows, T): first the text, then the ids."""
    texts = tokenizer.apply_chat_template(chats, tokenize=False)
    return torch.tensor(tokenizer(texts, add_special_tokens=False)
                        ["input_ids"])

back = (replies(waiter, repaired) == teas).float().mean().item()
print(f"repaired: {back:.2f} right")

# %% trap="10.7" role="repair"
claim("number of answers that differ between the test and the repaired "
      "server", (replies(waiter, repaired) != tested).sum(), expected=0)

# %% [markdown] trap="10.7" role="more" topics="trained with two"
# Is the second BOS itself harmful? Train the same model for 200 more steps on texts with
# two BOS tokens, as some fine-tuning programs do by mistake. Now the model is usually
# right with two BOS tokens, and counts too many teas with one. The difference between
# training and serving is what costs accuracy:

# %% trap="10.7" role="more"
used_to_two = taught(copy.deepcopy(waiter), on_the_server, steps=200)
with_two = replies(used_to_two, on_the_server)
with_one = replies(used_to_two, in_training)
after = {"two": (with_two == teas).float().mean().item(),
         "one": (with_one == teas).float().mean().item()}
print({bos: f"{share:.2f} right" for bos, share in after.items()})

# %% trap="10.7" role="more"
claim("trained with one BOS: accuracy with one BOS",
      right["in the test"], above=0.7)
claim("trained with one BOS: accuracy with one BOS minus accuracy with "
      "two BOS", right["in the test"] - right["on the server"], above=0.15)
claim("trained with two BOS: accuracy with two BOS",
      after["two"], above=0.7)
claim("trained with two BOS: accuracy with one BOS", after["one"],
      below=0.8)
claim("trained with two BOS: mean of answer minus true number with one BOS",
      (with_one - teas).float().mean().item(), above=0.2)

# %% [markdown] trap="10.7" role="folklore"
# **Told:** Duplicated special tokens hurt the model's performance ([transformers, chat
# templates](https://github.com/huggingface/transformers/blob/main/docs/source/en/chat_templating.md)).
# **Measured:** A second BOS costs this model many of its right answers if the training
# texts had only one. If the training texts also had two, the second BOS costs nothing,
# and a single BOS costs right answers.

# %% trap="10.7" role="exercise" points=3 difficulty=2 minutes=12
def encode_texts(tokenizer, texts: list[str]):
    """Encode texts so that each begins with BOS.

    A chat template has already written BOS into some of the texts. If the
    ids of a text do not begin with BOS, put BOS in front of them. Add and
    remove nothing else. If `tokenizer.bos_token_id` is None, add no BOS.

    `tokenizer.encode(text, add_special_tokens=False)` returns the ids of a
    text as a list. Without this argument, it may also add BOS in front, EOS
    at the end, or both.

    Args:
        texts: at least one text, none of them empty.

    Returns:
        ids (N, T) and mask (N, T), both int64. T is the length of the
        longest row. Shorter rows are padded on the left with
        `tokenizer.pad_token_id`. The padding id may be the id of any token.
        The mask is 1 for the tokens of a text, BOS included, and 0 for
        padding.

    Example: BOS is 1 and padding 0, and two texts have the ids [1, 5] and
    [6, 7, 8]. Then ids is [[0, 0, 1, 5], [1, 6, 7, 8]], and mask is
    [[0, 0, 1, 1], [1, 1, 1, 1]].
    """
    # BEGIN SOLUTION
    rows, bos = [], tokenizer.bos_token_id
    for text in texts:
        row = tokenizer.encode(text, add_special_tokens=False)
        rows.append(row if bos in (None, row[0]) else [bos, *row])
    size = max(map(len, rows))
    pad = tokenizer.pad_token_id
    ids = [[pad] * (size - len(row)) + row for row in rows]
    mask = [[0] * (size - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids), torch.tensor(mask)
    # END SOLUTION

# %% [markdown] trap="10.7" role="hint"
# 1. Get the ids without special tokens first. Then look at the first id.
# 2. BOS may have the id 0, so compare `bos_token_id` with None.
# 3. Put BOS in front before you pad. Make the mask from the lengths of the rows, because an
#    id does not say whether it is padding.

# %% [markdown] trap="10.7" role="keep"
# **Keep:** A text from a chat template already has its special tokens. Encode it with
# `add_special_tokens=False`, or let `apply_chat_template` return the ids. **In your own
# code:** Print the first five ids of one prompt, once in training and once on the server.
# They must be the same. **Source:** transformers, [Chat
# templates](https://github.com/huggingface/transformers/blob/main/docs/source/en/chat_templating.md).
# **Seen in the wild:** [princeton-pli/retaining-by-doing
# 5](https://github.com/princeton-pli/retaining-by-doing/issues/5) reports that vLLM puts a
# second BOS in front, and that without it a Llama's accuracy on a benchmark rises by almost
# 6 %. [sgl-project/sglang 888](https://github.com/sgl-project/sglang/pull/888) is a merged
# fix.

# %% [markdown] role="concept"
# ## Further
#
# You do not need this section for the traps. It compares our LoRA with peft's LoRA, lists
# what to store with each adapter, and measures what a model forgets when you train an
# adapter.
#
# ### The same result as peft
#
# This lesson's `LoRA` class computes the same output as peft's LoRA layer:

# %% role="concept"
layer = whole.base_model.model.model.layers[0].mlp.up_proj
mine = LoRA(copy.deepcopy(layer.base_layer), r=4, alpha=16)
mine.A.data = layer.lora_A.default.weight.data
mine.B.data = layer.lora_B.default.weight.data
h = torch.randn(8, 32)
gap = (mine(h) - layer(h)).abs().max()

# %% role="concept"
claim("largest gap between the outputs of our LoRA and of peft's LoRA",
      gap, below=1e-4)

# %% [markdown] role="concept"
# ### A passport for an adapter
#
# To detect most traps of this stage, write down a few values when you save an adapter,
# and compare them when you load the adapter. One more value is needed, because an adapter
# fits any base with the same names and shapes, but it was trained for one. A hash of the
# base's weights distinguishes bases with different weights. Settings such as `rope_theta`
# change no weight. These settings are in the base's configuration, so also store the
# configuration.

# %% role="concept" tags=["plumbing"]
def fingerprint(model):
    """A hash of the paths and values in a model's state_dict."""
    digest = hashlib.sha256()
    for path, tensor in model.state_dict().items():
        digest.update(path.encode())
        numbers = tensor.cpu().contiguous().reshape(-1)
        digest.update(numbers.view(torch.uint8).numpy())
    return digest.hexdigest()[:16]

@torch.no_grad()
def merge_error(model, ids):
    """Largest change that merging makes, relative to the largest logit."""
    beside = model(input_ids=ids).logits
    merged = copy.deepcopy(model).merge_and_unload()(input_ids=ids).logits
    return ((merged - beside).abs().max() / beside.abs().max()).item()

# %% role="concept"
def adapter_passport(model, base, ids):
    """List what to store with the file of a peft LoRA adapter."""
    layers = [m for m in model.modules() if hasattr(m, "lora_A")]
    config = model.peft_config[model.active_adapter]
    B = [m.lora_B[model.active_adapter].weight for m in layers]
    return {"target names": len(config.target_modules),
            "matrices hit": len(layers),
            "numbers of A and B": sum(p.numel() for path, p in
                                      model.named_parameters()
                                      if "lora_" in path),
            "B not zero": sum(b.any().item() for b in B),
            "merge error": merge_error(model, ids),
            "hash of the base": fingerprint(base)}

# %% role="concept"
other = learn(small_llama(), old, steps=40)      # another base, same shapes
passports, losses = {}, {}
for name, its_base in (("its own base", base), ("another base", other)):
    model = PeftModel.from_pretrained(copy.deepcopy(its_base), folder)
    passports[name] = adapter_passport(model, its_base, new_ids[:8])
    losses[name] = loss_on(model, new_ids)
mine, strange = passports.values()
for row in ("matrices hit", "B not zero", "hash of the base"):
    print(f"{row}: {'same' if mine[row] == strange[row] else 'different'}")

# %% role="concept"
claim("number of the 14 matrices that have LoRA and a nonzero B",
      min(mine["matrices hit"], mine["B not zero"]), expected=14)
claim("largest change in a logit caused by merging, relative to the "
      "largest logit", mine["merge error"], below=1e-4)
claim("loss on the new language: adapter on another base minus adapter on "
      "its own base",
      losses["another base"] - losses["its own base"], above=0.3)

# %% [markdown] role="concept"
# The other base accepts the adapter without an error or a warning, and every count
# agrees. Only the hash differs, and the loss shows why that matters. Peft stores the
# *name* of the base in the adapter's configuration. But the name stays the same when the
# weights change.

# %% [markdown] role="concept"
# ### What is forgotten, and what comes back
#
# Neither the fully fine-tuned model nor the model with LoRA was trained on the old
# language again. How much of the old language does each model still know? And what
# happens when you switch the adapter off?

# %% role="concept"
forgets = {"all weights": loss_on(full, old_ids),
           "LoRA": loss_on(whole, old_ids)}
with whole.disable_adapter():
    back = loss_on(whole, old_ids)
print({name: f"{loss:.1f}" for name, loss in forgets.items()},
      f"adapter off: {back:.2f}")

# %% role="concept"
claim("loss on the old language: smaller of the rises with full "
      "fine-tuning and with LoRA",
      min(forgets.values()) - level["old"], above=1)
claim("loss on the old language: model with the adapter off minus base",
      back - level["old"], expected=0)

# %% [markdown] role="concept"
# Both models forget the old language, because they are no longer trained on it. But if
# you switch the adapter off, you have the base again.

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. You copy `target_modules` with eight names from another model's script, and training starts. You then**
#
# - [ ] trust the list, because wrong names raise an error :: peft raises an error only if
#   no name matches. A single match prevents the error.
# - [x] count the adapted modules and the trainable parameters :: The list is a filter. Only the count shows that a matrix was skipped.
# - [ ] raise the rank, to be safe :: A higher rank enlarges the existing adapters. It
#   adds no adapter to a matrix that no name matches.

# %% [markdown] role="quiz"
# **2. A program adds `B @ A` to `W` and leaves the adapter switched on. The model now answers**
#
# - [ ] as before, because the sum is the same :: The update is in `W` and also in the
#   active adapter, so it counts twice.
# - [x] with twice the update :: Merge once and switch the adapter off, or let `merge_and_unload` do both.
# - [ ] like the base, because the two updates cancel out :: Nothing subtracts the update.
#   The adapter adds it a second time.

# %% [markdown] role="quiz"
# **3. A merged model in `bfloat16` is worse than the base with an unmerged adapter. The first suspect is**
#
# - [x] rounding, because small updates to a large weight are lost :: With 8 significant
#   bits, an update far smaller than a hundredth of the weight often changes nothing.
# - [ ] the order of `B` and `A` in the product :: The product in the other order nearly
#   always has a different shape, and it would also be wrong in `float32`.
# - [ ] the rank, which merging reduces :: Merging only adds the update to `W`; it cuts nothing off.

# %% [markdown] role="quiz"
# **4. With a loaded LoRA adapter, the logits are exactly the base's. Most likely,**
#
# - [ ] training changed nothing :: A trained `B` is hardly ever exactly zero in all layers.
# - [x] a new adapter is active, or none :: With `B` at zero, an adapter adds exactly zero. Check which keys matched nothing, and which adapter is active.
# - [ ] the adapter was trained for a different base :: Then the adapter would change the
#   logits, most likely for the worse.

# %% [markdown] role="quiz"
# **5. A classifier with LoRA is accurate after training and no better than guessing after
# loading. What do you look for in the file?**
#
# - [ ] the base's weights :: They do not belong in the file, because the base is loaded
#   separately.
# - [x] the head :: If neither the task nor `modules_to_save` names the head, it stays random, and each loading draws a new one.
# - [ ] the optimizer's state :: To answer, the model does not need this state.

# %% [markdown] role="quiz"
# **6. Padding has the id of EOS, and the model should learn where a text ends. You mask the labels of the padding**
#
# - [ ] by comparing ids with the padding id :: This also removes every EOS from the
#   labels, and the model never learns to stop.
# - [x] by the length of each text :: Then the EOS that ends the text keeps its label, and everything after it is masked.
# - [ ] not at all, because EOS after EOS does no harm :: The model does learn to stop.
#   But the mean loss then includes positions that belong to no answer, and a batch with
#   much padding looks better than it is.

# %% [markdown] role="quiz"
# **7. A model with 2048 learned positions gets a prefix of 48 tokens. Your longest training text has 2048 tokens. You**
#
# - [ ] change nothing, because the prefix has no ids :: The prefix still takes up
#   positions, so the text would run past the end of the table.
# - [ ] cut all texts at their end to 2000 tokens :: The end of a text is the answer, which has the labels.
# - [x] cut the prompts at their start until 2000 tokens are left :: Then prefix and text
#   fit, and each answer stays complete.

# %% [markdown] role="gpu"
# ## On a GPU: what a step holds and what it takes
#
# If you train all weights with AdamW, you keep four values per weight in memory: the
# weight, its gradient and two running means. With LoRA, you keep one value per frozen
# weight, and four values for each of the few weights in $A$ and $B$. With QLoRA, you keep
# half a byte per frozen weight, and a scale for each block of 64 weights.
#
# **Before you run anything:** Take a stack of eight matrices of 4096 x 4096 in float32,
# and ignore the activations. How many bytes does a step keep in memory if you train all
# weights, and how many with LoRA of rank 16 or with QLoRA? And does LoRA save as much
# time as memory? A step with LoRA still computes the forward and the backward pass
# through the frozen matrices, and QLoRA has to unpack these matrices each time.

# %% role="gpu"
import bitsandbytes as bnb

class Beside(nn.Module):
    """A frozen linear module with A and B next to it, like LoRA above."""

    def __init__(self, base, r):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) / 64)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T

# %% role="gpu"
def four_bit(linear, where):
    """Copy a linear module with its weight in NF4."""
    four = bnb.nn.Linear4bit(linear.in_features, linear.out_features,
                             bias=False, compute_dtype=torch.float32)
    four.weight = bnb.nn.Params4bit(
        linear.weight.data, requires_grad=False, quant_type="nf4",
        compress_statistics=False)
    return four.to(where)

def stack(kind, where, width=4096, layers=8, r=16):
    """A sequence of square matrices: full, with LoRA or with QLoRA."""
    modules = []
    for _ in range(layers):
        linear = nn.Linear(width, width, bias=False, device=where)
        if kind == "QLoRA":
            linear = four_bit(linear, where)
        modules.append(linear if kind == "full" else Beside(linear, r))
    return nn.Sequential(*modules).to(where)

# %% role="gpu"
def held_bytes(net):
    """Weights, scales, gradients and AdamW's moments, in bytes."""
    total = 0
    for p in net.parameters():
        scales = getattr(p, "quant_state", None)
        total += p.nbytes * (4 if p.requires_grad else 1)
        total += scales.absmax.nbytes if scales is not None else 0
    return total

def step_flops(kind, width=256, rows=512):
    """FLOPs of a step, as a multiple of a full forward pass."""
    net, x = stack(kind, "cpu", width, 4, 4), torch.randn(rows, width)
    step = flops(lambda: net(x).square().mean().backward())
    return step / (2 * rows * width * width * 4)

# %% role="gpu"
kinds = ("full", "LoRA", "QLoRA")
# Two matrices of 1024 and rank 4: a 64th of all that is held.
held = {kind: 64 * held_bytes(stack(kind, "cpu", 1024, 2, 4))
        for kind in kinds}
work = {kind: step_flops(kind) for kind in ("full", "LoRA")}
for kind in kinds:
    print(f"{kind}: {held[kind] / 1e9:.2f} GB held")
print(f"FLOPs of a step, in forward passes: {work['full']:.2f} full, "
      f"{work['LoRA']:.2f} with LoRA")

# %% role="gpu"
claim("bytes held for training LoRA, divided by bytes held for training "
      "all weights",
      held["LoRA"] / held["full"], expected=0.258, within=0.002)
claim("bytes held for training QLoRA, divided by bytes held for training "
      "all weights",
      held["QLoRA"] / held["full"], expected=0.043, within=0.002)
claim("FLOPs in a step that trains LoRA, divided by FLOPs in a step that "
      "trains all weights",
      work["LoRA"] / work["full"], above=0.6, below=0.8)

# %% role="gpu"
@gpu_result("10/steps", uses=[four_bit, stack, held_bytes],
            columns=["kind", "ms", "ms_low", "ms_high", "rows_s", "held_mb",
                     "peak_mb"])
def steps():
    """Take steps with 2,048 rows through eight 4096 x 4096 matrices."""
    for kind in ("full", "LoRA", "QLoRA"):
        net = stack(kind, "cuda")
        x = torch.randn(2048, 4096, device="cuda")
        opt = torch.optim.AdamW([p for p in net.parameters()
                                 if p.requires_grad], 1e-4)
        def step():
            opt.zero_grad()
            net(x).square().mean().backward()
            opt.step()
        t = seconds(step, repeats=10, device="cuda", calls=3)
        yield {"kind": kind, "ms": t.median * 1e3, "ms_low": t.low * 1e3,
               "ms_high": t.high * 1e3, "rows_s": 2048 / t.median,
               "held_mb": held_bytes(net) / 1e6,
               "peak_mb": peak_bytes(step) / 1e6}

# %% role="gpu"
def over(column, kind="LoRA", other="full"):
    return (steps.value(column, kind=kind)
            / steps.value(column, kind=other))

answers_here = gpu_table(
    datasheet(steps.device_name),
    steps.asks("LoRA over full: rows a second",
               work["full"] / work["LoRA"], lambda: over("rows_s"),
               above=0.9),
    steps.asks("QLoRA over LoRA: rows a second", "1 or less",
               lambda: over("rows_s", "QLoRA", "LoRA"), below=1.1),
    steps.asks("LoRA over full: bytes held",
               held["LoRA"] / held["full"], lambda: over("held_mb"),
               below=0.3),
    steps.asks("QLoRA over LoRA: bytes held", held["QLoRA"] / held["LoRA"],
               lambda: over("held_mb", "QLoRA", "LoRA"),
               published="0.16 for one matrix, torchtune", below=0.2))
answers_here

# %% [markdown] role="gpu"
# The authors of torchtune measured a whole Llama-2-7B. There, a training run reserves
# 15.57 GB with LoRA and 9.29 GB with QLoRA. Four bits save less there than here, for two
# reasons: the frozen base of the torchtune LoRA run has 16 bits per weight, and the
# authors' table counts reserved memory, of which QLoRA already holds 9.13 GB before the
# first step.
#
# **On the H100 used for the recorded run**, the FLOP count is right to within 6 %: LoRA
# processes 1.57 times as many rows per second as full training, and the count predicts
# 1.49 times as many. For both stacks, the small one and the full-size one, the bytes that
# a step keeps in memory are counted, not measured. The additional memory at the peak was
# measured. It is the same for LoRA and QLoRA: 400 MB, four times what QLoRA keeps.
# Four-bit weights do not make activations smaller. If all weights are trained, the step
# needs 537 MB more at its peak, as much as the weights themselves, because `foreach`
# makes copies.
#
# QLoRA takes only 3 % longer than LoRA, because unpacking costs little compared with
# products of 2,048 rows in `float32`. In 16 bits, these products take about a fifteenth
# of the time (stage 9), so unpacking would matter more.
#
# **Keep:** LoRA saves most of the memory for weights, gradients and optimizer, but only
# about a third of the arithmetic. LoRA computes no gradients of frozen weights, but the
# backward pass still goes through all that come after the first adapter. If every matrix
# has an A, LoRA saves few activations, because autograd keeps the input of each A to
# compute its gradient. If only queries and values have adapters, the other matrices do
# not make autograd keep their inputs. QLoRA saves more memory, but no arithmetic.
# **Source:** Torchtune's tutorial [Finetuning Llama2 with
# QLoRA](https://github.com/pytorch/torchtune/blob/main/docs/source/tutorials/qlora_finetune.rst),
# for one matrix of 512 x 512 and for the 7B model.

# %% [markdown] role="summary"
# ## What you take with you
#
# - LoRA trains a low-rank update, $BA$, next to a frozen $W$. $B$ starts at zero, so
#   training starts from the model you have.
# - Put LoRA into all linear modules, and use about ten times the learning rate of full
#   fine-tuning. The rank matters less.
# - In peft, a list of target names is a filter. Count the modules that the list
#   matched.
# - An unmerged adapter costs extra small operations at each call. Merge the adapter once,
#   with the factor $\alpha / r$, in `float32`, and compare the logits.
# - In peft, a learned prefix uses up positions. Cut the start of the prompt, never the
#   answer.
# - Tell peft about a new head, with `task_type` or `modules_to_save`. Otherwise peft
#   neither trains nor saves the head.
# - If a LoRA adapter was never loaded, the model by default answers exactly like its
#   base.
# - To mask the labels of padding, use the length of each text. If padding is EOS, masking
#   by id removes the label that teaches the model to stop.
# - Text from a chat template already has its special tokens. Encode it without adding
#   more.
# - In QLoRA, four bits are only a format for storing the base. Products are computed with
#   16 bits or more.
#
# **Next:** Stage 11 makes the base itself smaller.
