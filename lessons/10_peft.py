# %% [markdown] role="hook" traps=6
# # 10. LoRA, QLoRA and parameter-efficient tuning
#
# Your team serves one language model to many customers, and each of them wants it to
# write in a manner of its own. A trained copy for each would be too much to train and
# to keep. So you freeze the model and train a few thousand numbers beside it, an
# *adapter*, once for each customer.
#
# A library does that in three lines. What surrounds them can go wrong in silence: the names
# of modules, the files of an adapter, labels, lengths, types of numbers. This stage breaks
# six of these, and looks into the numbers behind them.

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
    measured, operations, peak_bytes, plot_bars, plot_columns, plot_lines,
    seconds,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## Two thin matrices beside a frozen one
#
# *LoRA* (low-rank adaptation) leaves a weight $W$ as it is and trains two thin matrices
# beside it, $A$ and $B$:
#
# $$y = W x + \frac{\alpha}{r} \, B A \, x$$
#
# Shapes in this stage: $W$ is `(d_out, d_in)`, $A$ is `(r, d_in)` and $B$ is
# `(d_out, r)`. The *rank* `r` is small, so $A$ and $B$ hold few numbers. Beside a square
# $W$ of width 4096, with `r` of 16, they hold less than one number for each hundred of $W$.
# The number $\alpha$ says how strongly the adapter counts. It is divided by `r`; the idea was
# that one $\alpha$ suits every rank. $A$ begins at random, as in a fresh `nn.Linear`, $B$ at
# zero.

# %% role="concept"
class LoRA(nn.Module):
    """A frozen nn.Linear, and a product of two thin matrices beside it."""

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
print(f"change by a fresh adapter: {moved:.0f}, numbers added: {added:.2%}")

# %% role="concept"
claim("largest change by a fresh adapter", moved, expected=0)
claim("numbers of A and B over those of W", added, expected=1 / 128)

# %% role="concept"
side = f"{wrapped.A.numel():,}"
draw_blocks({"LoRA": ["x", (f"W, frozen\n{linear.weight.numel():,}",
                            f"A\n{side}"), ("", f"B\n{side}"), "+", "y"]},
            title="A and B hold one number for 128 of W",
            alt="A block diagram. x goes through the large frozen W and, "
                "beside it, through the small A and B; both are added.")

# %% [markdown] role="concept"
# The `peft` library puts such pairs into models of the `transformers` library. Both
# are large, and no weights have to be fetched: a model here is a small Llama with two
# layers. A *language* is a table of 16 x 16 probabilities that says which of 16
# tokens follows which. The base learns a first language, then adapters teach it a
# second. From the folded cells
# you need three names: `text` writes in a language, `learn` trains whatever asks for a
# gradient, `heard` returns what a call gives, with its warnings.

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
# One of the two libraries calls the other by an old name.
warnings.filterwarnings("ignore", "`is_gradient_checkpointing`")
warnings.filterwarnings("ignore", ".*checkpoint.*", FutureWarning)

# %% role="concept" tags=["plumbing"]
def language(tokens=16):
    """Probabilities (tokens, tokens) of the next token after each."""
    return torch.softmax(2.5 * torch.randn(tokens, tokens), -1)

def text(table, rows=32, length=16):
    """Token ids (rows, length) of texts in a language."""
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
    """How many numbers an optimizer would move."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)

def learn(model, table, steps=100, lr=1e-2):
    """Train what asks for a gradient on fresh texts; returns model."""
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
    """What a call returns, or None, and each warning or error it gives."""
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
      f"on the new one {level['new']:.2f}")

# %% role="concept"
claim("base, loss on its own language", level["old"], below=2)
claim("base, loss on the new language", level["new"], above=3)

# %% [markdown] trap="10.1" role="situation" core=true fault="wrong target_modules names are skipped without an error" symptom="peft target_modules of another model, LoRA trains fewer parameters than expected, no error for a missing module name"
# ## A list of names from another model
#
# Your base is a Llama. Each of its two layers has seven matrices: `q_proj`, `k_proj`,
# `v_proj` and `o_proj` in attention, `gate_proj`, `up_proj` and `down_proj` in the MLP. You
# want LoRA in all 14. Your list of names comes from a script for OPT, another family of
# models: three of its names occur in yours, and three do not.

# %% trap="10.1" role="break"
OPT_NAMES = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]

def adapter(model, names, r=4, **settings):
    """A copy of model with fresh LoRA in the modules that names hit."""
    return get_peft_model(copy.deepcopy(model), LoraConfig(
        r=r, lora_alpha=16, target_modules=names, task_type="CAUSAL_LM",
        **settings))

partly, told = heard(adapter, base, OPT_NAMES)    # told: its messages

# %% trap="10.1" role="guess"
guess("10.1", "LoRA in all 14 matrices, trained on the new language, "
      "lowers the loss. What share of that drop does LoRA by this list "
      "reach, trained alike?", unit="%")

# %% trap="10.1" role="look"
hit = [path for path, module in partly.named_modules()
       if hasattr(module, "lora_A")]
linears = [path for path, module in base.named_modules()
           if isinstance(module, nn.Linear) and path != "lm_head"]
print(f"{len(hit)} of {len(linears)} matrices adapted, "
      f"{trainable(partly)} numbers, {len(told)} warnings")

# %% trap="10.1" role="look"
grid = torch.tensor([[any(f"layers.{layer}." in path and name in path
                          for path in hit) for layer in (0, 1)]
                     for name in LLAMA_NAMES])
draw_grids({"LoRA": grid}, marks={"LoRA": ~grid},
           row_names=LLAMA_NAMES, column_names=["layer 0", "layer 1"],
           legend="no LoRA",
           title="Eight of fourteen matrices were passed over",
           alt="A grid of seven names and two layers. The queries, keys "
               "and values have LoRA; the other four names are crossed.")

# %% trap="10.1" role="look"
claim("matrices of the two layers that got LoRA", len(hit), expected=6)

# %% [markdown] trap="10.1" role="why"
# The names were meant as a list of wishes. peft takes it as a filter: it walks through the
# *model* and adapts each module whose path equals a name or ends in a dot and the name. It
# does not look for the names that hit nothing, so it says nothing of them. Let peft list the
# names itself: `"all-linear"` takes every linear module but the output head of a language
# model.

# %% trap="10.1" role="repair" tags=["varies-by-cpu"]
whole = adapter(base, "all-linear")
losses = {}
for name, model in (("names of OPT", partly), ("all-linear", whole)):
    losses[name] = loss_on(learn(model, new), new_ids)
    print(f"{name}: {trainable(model)} numbers, loss on the new language "
          f"{losses[name]:.2f}")

# %% trap="10.1" role="repair"
measured("10.1", 100 * (loss_on(base, new_ids) - losses["names of OPT"])
         / (loss_on(base, new_ids) - losses["all-linear"]), right=(64, 99))

# %% trap="10.1" role="repair"
claim("loss with OPT's names less that with all", losses["names of OPT"]
      - losses["all-linear"], above=0.2)

# %% [markdown] trap="10.1" role="repair"
# Here six matrices do most of what fourteen do, so a falling loss is no warning. Below
# you write the report that peft does not give: each name with what it hits, and an error
# if one hits nothing.

# %% [markdown] trap="10.1" role="more" topics="the counts · no name fits at all"
# The counts behind the grid and the two losses:

# %% trap="10.1" role="more"
claim("matrices there are", len(linears), expected=14)
claim("warnings", len(told), expected=0)
claim("all-linear: numbers that train", trainable(whole), expected=4352)
claim("names of OPT: the same", trainable(partly), expected=1536)

# %% [markdown] trap="10.1" role="more"
# When *no* name fits, this version of peft raises. With one that fits, all others may hit
# nothing:

# %% trap="10.1" role="more" compare=false
nothing, refused = heard(adapter, base, ["c_attn", "c_proj"])
print(refused[0][:76])
one_right = trainable(adapter(base, ["c_attn", "k_proj", "kproj", "k"]))

# %% trap="10.1" role="more"
claim("two names of GPT-2 are refused", nothing is None, expected=True)
claim("one right name among four: numbers that train", one_right,
      expected=2 * (4 * 32 + 32 * 4))

# %% trap="10.1" role="exercise" points=3 difficulty=2 minutes=10
def hits(model: nn.Module, names: list[str]) -> dict[str, list[str]]:
    """For each of names, the paths of the nn.Linear modules it hits.

    A name hits a path that equals it or ends in a dot and the name, as
    peft matches a list. model: an nn.Module of any depth, with modules of
    other kinds among them, which are not hit; subclasses of nn.Linear are.
    names: different texts, none of them empty, perhaps with dots; there may
    be no names.

    The result is a dict in the order of names, each with a list of paths
    in the order of model.named_modules(), which gives a shared module once,
    under its first path. Raises ValueError if a name hits nothing. Its text
    then holds the names that hit nothing, and no others of names. model and
    names stay as they are. Nothing is kept from one call to the next.

    Example: in nn.Sequential(nn.Linear(2, 2), nn.ReLU()) the name "0" hits
    ["0"], and "1" hits nothing.
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
# 1. `model.named_modules()` gives pairs of a path and a module. A path is a text such as `layers.0.self_attn.q_proj`.
# 2. `path.endswith(name)` is too generous: the name `proj` would hit `q_proj`. What must stand in front of the name, unless the path is the name?
# 3. Make the whole dict first, each name with an empty list. Then gather the names whose lists stayed empty, and raise once, with all of them.

# %% [markdown] trap="10.1" role="keep"
# **Keep:** a list of target names is a filter: what hits nothing is passed over, as long
# as one name hits. **In your own code:** count the adapted modules and the trainable
# numbers after each `get_peft_model`, and compare them with what you asked for.
# **Source:** the text on `target_modules` in
# [peft's LoraConfig](https://huggingface.co/docs/peft/package_reference/lora).
# **Seen in the wild:**
# [huggingface/peft 1959](https://github.com/huggingface/peft/issues/1959): a list with
# an invented name is accepted, because an error comes only if nothing matches;
# [bghira/SimpleTuner 766](https://github.com/bghira/SimpleTuner/issues/766): five names
# of a trainer's lists hit nothing, and the layers that were meant are not trained.

# %% [markdown] trap="10.2" role="situation" fault="an unmerged LoRA adapter triples the matrix products" symptom="LoRA inference slower than base model, unmerged adapter, merge_and_unload gives other results"
# ## The adapter goes into service
#
# The adapter is trained and answers beside the base. "It has about a fifth of the base's
# numbers, so it takes about a fifth more arithmetic," says a colleague. "Merge it, and it
# takes none." $BA$ has the shape of $W$, so both can be added up once, before service.
#
# You count the matrix products of one call: a GPU that answers one user at a time often
# waits longer for the start of each small job than for its arithmetic. And as
# weights are often served in `bfloat16`, you merge an update of a thousandth of $W$ there.

# %% trap="10.2" role="break"
@torch.no_grad()
def products(model):
    """Matrix products of one call on one text, and FLOPs of them all."""
    run = lambda: model(input_ids=new_ids[:1])               # noqa: E731
    return operations(run)["aten::mm"][0], flops(run)

count = {"base": products(base), "adapted": products(whole)}

# %% trap="10.2" role="break"
W = 0.02 * torch.randn(512, 512)
update = 0.001 * 0.02 * torch.randn(512, 512)
short = W.bfloat16()
rounded = (short.float() + update).bfloat16()    # added in full, then cut

# %% trap="10.2" role="guess" quoted="right"
guess("10.2", "What share of the weights is the same before and after this "
      "merge?", unit="%")

# %% trap="10.2" role="look"
for name, (calls, work) in count.items():
    print(f"{name}: {calls:.0f} products, {work:,} FLOPs")
more = [b / a for a, b in zip(*count.values())]
still = (rounded == short).float().mean()
lost = ((rounded.float() - short.float() - update).norm()
        / update.norm())
print(f"merged: weights that do not move {still:.0%}, "
      f"error over the update {lost:.2f}")

# %% trap="10.2" role="look"
measured("10.2", 100 * still, right=(60, 95))

# %% trap="10.2" role="look"
claim("bfloat16: share of the weights that do not move", still, above=0.7)

# %% [markdown] trap="10.2" role="look"
# Most of the update is gone, though it was added in float32 and rounded once. Unmerged it
# lasts. But then the model runs nearly three times the products:

# %% trap="10.2" role="look"
claim("matrix products, adapted over base", more[0], above=2.5)

# %% [markdown] trap="10.2" role="why"
# The colleague is right about the arithmetic. But each adapted matrix runs three products
# instead of one, and a multiplication and a sum beside them: the numbers are few, the
# jobs are not. How much time that takes depends on machine and batch. And `bfloat16` has 8
# bits for the digits: the update lies below half a step of most weights.

# %% trap="10.2" role="why"
draw_blocks({"beside it: 3 products": ["x", ("W", "A"), ("", "B"), "+",
                                       "y"],
             "merged: 1 product": ["x", "W + s B A", "y"]},
            captions={"merged: 1 product": "s is alpha / r"},
            title="Three products for one, until they are merged",
            alt="Two block diagrams. Beside the matrix, x goes through W "
                "and through A and B, then both are added; merged, x goes "
                "through one matrix.")

# %% [markdown] trap="10.2" role="why"
# So merge where the steps are fine enough, as in float32 here:

# %% trap="10.2" role="repair"
merged = copy.deepcopy(whole).merge_and_unload()
with torch.no_grad():
    gap = (merged(input_ids=new_ids).logits
           - whole(input_ids=new_ids).logits).abs().max()
count["merged"] = products(merged)
print(f"merged: {count['merged'][0]:.0f} products, {count['merged'][1]:,} "
      f"FLOPs, largest gap of a logit {gap:.1e}")

# %% trap="10.2" role="repair"
claim("matrix products, merged less base",
      count["merged"][0] - count["base"][0], expected=0)

# %% [markdown] trap="10.2" role="repair"
# Whoever merges by hand can forget the factor $\alpha / r$, or leave the adapter switched
# on (`unload` takes an adapter off and merges nothing):

# %% trap="10.2" role="repair"
def by_hand(model, scale=None):
    """A copy with B A added to W; the adapter stays switched on."""
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
          title="Two ways to merge by hand and lose",
          alt="Three bars of loss: lowest for the merged model, higher "
              "with the adapter still on and without the factor.")

# %% trap="10.2" role="repair"
claim("loss without alpha / r less that of the merged model",
      found["without alpha / r"] - found["merged"], above=0.3)

# %% [markdown] trap="10.2" role="more" topics="the counts · rounding in bfloat16"
# The counts, and what a second helping of the update costs:

# %% trap="10.2" role="more"
claim("matrix products of the base", count["base"][0], expected=15)
claim("FLOPs, adapted over base", more[1], below=1.3)
claim("largest gap of a logit, merged and not", gap, below=1e-3)
claim("loss with the adapter counted twice less that of the merged model",
      found["merged and still on"] - found["merged"], above=0.05)

# %% trap="10.2" role="more"
claim("bfloat16: error of the merged update over the update", lost,
      above=0.5)

# %% [markdown] trap="10.2" role="more"
# The sum was taken in float32 and rounded once, and most of this update is gone all the
# same: the order of adding does not bring back what the steps of `bfloat16` swallow.
# Serve so small an update in float32. Kept apart from $W$ it lasts as finely as the
# outputs' dtype holds it: peft adds the two outputs and rounds the sum to the dtype of
# the base. When you merge, round once: that costs nothing and counts where $W$ and the
# update nearly cancel. The exercise asks for it.

# %% [markdown] trap="10.2" role="folklore"
# **Told:** an adapter that is not merged costs `5 to 15 %` of time because of hooks.
# **Measured:** peft uses no hooks here. It puts a layer of its own around each matrix,
# which runs three products for one; what that costs depends on machine and batch, so
# measure it where you serve.

# %% trap="10.2" role="folklore"
hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks)
            for module in whole.modules())

# %% trap="10.2" role="folklore"
claim("hooks in the adapted model", hooks, expected=0)

# %% trap="10.2" role="exercise" points=3 difficulty=2 minutes=10
def merge(W: torch.Tensor, A: torch.Tensor, B: torch.Tensor,
          alpha: float) -> torch.Tensor:
    """The one weight that does the work of W and its LoRA adapter.

    That is W plus alpha / r times the product of B and A. W: (d_out, d_in),
    float32 or bfloat16; A: (r, d_in) and B: (d_out, r), both float32, r at
    least 1. The sum is taken in float32 and rounded once, to the dtype of
    W. The result has memory of its own at each call, and no graph is built,
    though all three may ask for gradients. W, A and B stay as they are, and
    so does the grad mode.

    Example: W = [[1.]], A = [[2.], [0.]], B = [[3., 5.]] and alpha = 4 give
    [[13.]].
    """
    # BEGIN SOLUTION
    with torch.no_grad():
        update = alpha / len(A) * (B @ A)
        return (W.float() + update).to(W.dtype)
    # END SOLUTION

# %% [markdown] trap="10.2" role="hint"
# 1. Which of `A @ B` and `B @ A` has the shape of `W`, and where does `r` stand in the shapes?
# 2. `W.float()` makes float32 of any dtype. Add there, and change the dtype of the sum at the very end.
# 3. `A` and `B` may be parameters: calculate under `torch.no_grad()`. The sum is a new tensor, so nothing else has to be copied.

# %% [markdown] trap="10.2" role="keep"
# **Keep:** an adapter beside its matrix costs few FLOPs and many small jobs; merged it
# costs none, if $\alpha / r$ is in, it is added once, and the dtype has steps fine enough
# for the update. **In your own code:** compare the logits before and after you merge, in the dtype in which
# you serve. **Source:** [Hu et al. 2021](https://arxiv.org/abs/2106.09685), section 4.1,
# on merging. **Seen in the wild:**
# [OpenBMB/MiniCPM-V 502](https://github.com/OpenBMB/MiniCPM-V/issues/502): base and
# adapter answer well, the merged model saved in `bfloat16` does not;
# [meta-pytorch/torchtune 1101](https://github.com/meta-pytorch/torchtune/issues/1101):
# merged weights differ, and a maintainer calls it expected in low precision.

# %% [markdown] trap="10.3" role="situation" fault="the virtual tokens of a prefix use up positions" symptom="prefix tuning IndexError index out of range in self, num_virtual_tokens and context length"
# ## Keys and values that nobody typed
#
# Another adapter leaves all matrices alone. *Prefix tuning* learns keys and values that
# stand in front of each text in every layer. Your base is now a small GPT-2 whose table of
# positions has 64 rows. You give it a prefix of 20. No id is added, and nothing
# passes the embedding.

# %% trap="10.3" role="break" tags=["plumbing"]
from transformers import GPT2Config, GPT2LMHeadModel

def small_gpt2():
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=16, n_embd=32, n_layer=2, n_head=4, n_positions=64,
        bos_token_id=0, eos_token_id=0))

# %% trap="10.3" role="break"
def longest(model, most=100):
    """The longest text (1, T) that goes through, and what stops it."""
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
guess("10.3", "How long may a text be, with the prefix?", unit="tokens")

# %% trap="10.3" role="look"
for name, (length, stopped_by) in room.items():
    print(f"{name}: {length} tokens, then: {stopped_by}")

# %% trap="10.3" role="look"
measured("10.3", room["prefix of 20"][0], right=(44, 44))

# %% trap="10.3" role="look"
claim("longest text with a prefix of 20", room["prefix of 20"][0],
      expected=44)

# %% [markdown] trap="10.3" role="why"
# The prefix stands in the cache of keys and values, as twenty tokens already read would.
# So the text begins at position 20, and the table ends at 64. A tokenizer that cuts texts
# at 64 knows nothing of that.
#
# What is cut is the next question. A training text is a prompt and an answer, and only the
# answer has labels. A prompt of 50 tokens and an answer of 8 do not fit in 44.

# %% trap="10.3" role="why"
prefix = (0, 20, "prefix")
draw_lanes({"as it came": [prefix, (20, 70, "prompt"), (70, 78, "answer")],
            "cut at the end": [prefix, (20, 64, "prompt")],
            "cut at the start": [prefix, (20, 56, "prompt"),
                                 (56, 64, "answer")]},
           unit="positions", moments={"the table ends": 64},
           title="A cut at the end takes the answer",
           alt="Three lanes over positions. Prefix, prompt and answer run "
               "beyond 64. Cut at the end, no answer is left; cut at the "
               "start of the prompt, all of it is.")

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
claim("cut at the end: labels left", cuts["at the end"][0], expected=0)

# %% [markdown] trap="10.3" role="repair"
# If no text of a batch has a label left, the mean is NaN. If only some have none, you see
# nothing. Tokenizers of `transformers` cut at the end unless their
# `truncation_side` says otherwise. A cut at the start spares the answer as long as it
# fits. Where prefix and answer alone are too long, refuse the text.

# %% [markdown] trap="10.3" role="more" topics="the cuts in numbers · prompt tuning · a Llama has no table"
# The same cuts in numbers:

# %% trap="10.3" role="more"
claim("longest text without a prefix", room["no prefix"][0], expected=64)
claim("cut at the end: the loss is a number", cuts["at the end"][1] > 0,
      expected=False)
claim("cut at the start: labels left", cuts["at the start"][0], expected=8)

# %% [markdown] trap="10.3" role="more"
# *Prompt tuning*, which learns embeddings instead, takes the same room. In a Llama nothing
# stops you:

# %% trap="10.3" role="more"
soft = longest(with_prefix(small_gpt2(), PromptTuningConfig))[0]
llama_room = longest(with_prefix(small_llama(max_position_embeddings=64)))
print(f"prompt tuning: {soft}; a Llama with max_position_embeddings of 64: "
      f"{llama_room[0]}, stopped by {llama_room[1]}")

# %% trap="10.3" role="more"
claim("prompt tuning: longest text", soft, expected=44)
claim("a Llama of 64 positions with the prefix takes 100 tokens",
      llama_room[0], expected=100)

# %% [markdown] trap="10.3" role="more"
# A Llama turns its queries and keys by an angle that can be calculated for every
# position, so there is no table that ends. Text then lies on positions that training
# never saw, without an error. So count the prefix yourself, for both.

# %% [markdown] trap="10.3" role="folklore"
# **Told:** a text too long for its prefix does quiet harm. **Measured:** in a GPT-2 it is
# not quiet: on a CPU the first token too many raises `IndexError`. This Llama stays
# silent; what its answers are worth out there is not measured.

# %% trap="10.3" role="exercise" points=4 difficulty=2 minutes=15
def fit_text(prompt: torch.Tensor, answer: torch.Tensor, n_positions: int,
             virtual: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels of one training text that follows a learned prefix.

    prompt and answer: (P,) and (Q,), int64; the text is the prompt, then
    the answer. An id may come twice, and in both. The prefix of `virtual`
    tokens and the text share n_positions positions. Where they need more,
    the prompt loses its first tokens, as few as will do. Raises ValueError
    if prefix and answer alone need more.

    Returns a tuple of two tensors, int64, of the length of the text that is
    left: its ids, and labels, which are -100 for the prompt and the ids for
    the answer. Nothing stands in them for the prefix. Each has memory of
    its own at each call. prompt and answer may be empty and stay as they
    are.

    Example: prompt [1, 2, 3], answer [9], 5 positions and a prefix of 2
    give [2, 3, 9] and [-100, -100, 9].
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
# 1. How many positions are left for the prompt, once prefix and answer have theirs?
# 2. `prompt[-left:]` keeps the last `left` tokens, but for `left` of 0 it keeps all of them. Count from the front instead: how many go?
# 3. Glue with `torch.cat`, once with the prompt that is left, once with -100 in its place.

# %% [markdown] trap="10.3" role="keep"
# **Keep:** in peft, learned tokens shift the positions of a text, so it has the context
# length less the prefix; cut the prompt at its start, never the answer. **In your own code:** set the
# tokenizer's longest length to what is left, and count the labels of each batch.
# **Source:** [Li & Liang 2021](https://arxiv.org/abs/2101.00190), section 4, on the
# prefix as positions before the text. **Seen in the wild:**
# [XiangLi1999/PrefixTuning 40](https://github.com/XiangLi1999/PrefixTuning/issues/40):
# with the method's own code, positions run from 10 to 1034 where 1024 are the limit.

# %% [markdown] trap="10.4" role="situation" fault="a LoRA classifier's head is neither trained nor saved" symptom="LoRA classifier gives random predictions after loading, score head not saved, task_type missing"
# ## A classifier for four languages
#
# The base becomes a classifier: it says in which of four languages a text is written.
# `LlamaForSequenceClassification` takes the layers of the base and puts a head `score` on
# top. You adapt it with LoRA. The configuration holds the rank and the names of all seven
# matrices of a layer, as the code below shows.
#
# It trains well, and you save it. Then you build the classifier again, load the adapter
# with `PeftModel.from_pretrained`, and ask.

# %% trap="10.4" role="break" tags=["plumbing"]
from transformers import LlamaForSequenceClassification

languages = [old, new, language(), language()]
quiz_ids = torch.cat([text(table, 128) for table in languages])
quiz_labels = torch.arange(4).repeat_interleave(128)

def classifier():
    """The layers of the base, and a fresh head for four languages."""
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
    """A classifier adapted to four languages, and its folder."""
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
    """The share right of a classifier built anew, its adapter loaded."""
    return share_right(PeftModel.from_pretrained(classifier(), folder))

(model, its_folder), told = heard(trained_classifier)
before = share_right(model)
once, told_then = heard(reloaded, its_folder)

# %% trap="10.4" role="guess"
guess("10.4", "How many texts does the loaded classifier get right?",
      choices=["as many as before it was saved",
               "none: loading raises an error",
               "clearly fewer"])

# %% trap="10.4" role="look" compare=false
loaded = [once, *(reloaded(its_folder) for _ in range(5))]
print(f"right before it was saved {before:.2f}, after each loading:",
      *[f"{share:.2f}" for share in loaded])

# %% trap="10.4" role="look"
measured("10.4", 2)

# %% trap="10.4" role="look"
plot_columns({"saved": before, **dict(enumerate(loaded, 1))},
             xlabel="before it was saved, then loaded six times",
             ylabel="share right", form=".2f", marks=range(1, 7),
             reference=(0.25, "guessing"),
             title="Each loading gives another classifier",
             alt="Seven columns. The first, before saving, is high; those "
                 "of six loadings are lower and differ from each other.")

# %% trap="10.4" role="look"
claim("share right after loading, mean, less that before it was saved",
      sum(loaded) / 6 - before, below=-0.05)

# %% [markdown] trap="10.4" role="why"
# Without a `task_type` peft knows of no head. It froze the random `score` with the base,
# LoRA learned to work with just that head, and only LoRA was saved. The next classifier
# draws another head, which mixes the languages up and can do worse than guessing.
# `SEQ_CLS` says that there is a head: `score` then trains, and goes into the file. For a
# head of another name there is `modules_to_save`.

# %% trap="10.4" role="repair" compare=false
def holds(model, folder):
    """Of LoRA, head and base: does it train, is it in the file?"""
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
print(f"right before {before:.2f}, after two loadings "
      + ", ".join(f"{share:.2f}" for share in again))

# %% trap="10.4" role="repair"
draw_grids(kept, marks={"no task": ~kept["no task"] & torch.tensor(
               [[False], [True], [False]])},
           row_names=["LoRA", "head", "base"],
           column_names=["trains", "in the file"], legend="is missing",
           title="What nobody names is neither trained nor saved",
           alt="Two grids of LoRA, head and base. Without a task the head "
               "neither trains nor is in the file; with SEQ_CLS it does "
               "and is. The base never is.")

# %% trap="10.4" role="repair"
claim("with the task: largest change of the share by loading",
      max(abs(share - before) for share in again), expected=0)

# %% [markdown] trap="10.4" role="repair"
# Below you write the list that shows this before a file is saved: which layers are LoRA,
# what else trains, what is frozen by mistake, and which layers have learned nothing yet.

# %% [markdown] trap="10.4" role="more" topics="no warning · two wrong tasks · a second adapter freezes the first"
# Nobody was told: no warning, neither while it trained nor while it was loaded. The
# shares differ from loading to loading, and the head is in the second file alone. Both
# classifiers had 100 steps from different starts, so what they read before they were
# saved says nothing about the task. What is left of it after loading does.

# %% trap="10.4" role="more"
claim("largest share after a loading less the smallest",
      max(loaded) - min(loaded), above=0.05)
claim("warnings while it trains and loads", len(told + told_then),
      expected=0)
claim("tensors of the head in the file", kept["no task"][1, 1].sum(),
      expected=0)
claim("with the task: does the head train, and is it in the file?",
      kept["SEQ_CLS"][1].all().item(), expected=True)

# %% [markdown] trap="10.4" role="more"
# With LoRA, two wrong tasks did less harm here than none. `CAUSAL_LM` on a classifier raises. A
# task for encoder and decoder on a GPT-2 changes nothing but the class that is wrapped
# around it (`fan_in_fan_out` says that a GPT-2 keeps its matrices transposed):

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
claim("numbers that train, one task less the other",
      tasks["CAUSAL_LM"][0] - tasks["SEQ_2_SEQ_LM"][0], expected=0)
claim("loss after 20 steps, one task less the other",
      tasks["CAUSAL_LM"][1] - tasks["SEQ_2_SEQ_LM"][1], expected=0)
claim("CAUSAL_LM on a classifier is refused", nothing is None,
      expected=True)

# %% [markdown] trap="10.4" role="more"
# What trains can also be lost later. A second `get_peft_model` works on the base itself,
# not on a copy. When the second one is a prefix, it freezes what it finds, the first
# adapter included (a second LoRA of the same name would start the first one anew, with a
# warning). So give each adapter a copy of the base, as `adapter` does in trap 10.1.

# %% trap="10.4" role="more"
shared = copy.deepcopy(gpt2)
config = LoraConfig(r=4, task_type="CAUSAL_LM", fan_in_fan_out=True)
first = get_peft_model(shared, config)
trains = [trainable(first)]
second, warned = heard(with_prefix, shared)
trains.append(trainable(first))
print("first adapter trains:", trains)

# %% trap="10.4" role="more"
claim("numbers of the first adapter that train before", trains[0], above=0)
claim("and after a second one was made", trains[1], expected=0)

# %% [markdown] trap="10.4" role="folklore"
# **Told:** `SEQ_2_SEQ_LM` on a decoder quietly adapts the wrong modules, and
# `print_trainable_parameters` shows it. **Measured:** with LoRA on this GPT-2 the same
# numbers train and the loss is the same to the last digit, so there is nothing to show.
# What does harm is a head that nobody named.

# %% trap="10.4" role="exercise" points=4 difficulty=3 minutes=20
def passport(model: nn.Module) -> dict:
    """What the LoRA layers in model are and train, as a dict of five parts.

    A LoRA layer is a module with parameters of its own named A and B, both,
    of any shapes; it may hold more. "layers": the paths of the LoRA layers,
    in the order of model.named_modules(); "trainable": how many numbers of
    model ask for a gradient, an int; "other": the paths of the parameters
    that ask for a gradient and are no A or B of a LoRA layer; "frozen": the
    paths of each A and B of a LoRA layer that does not; both in the order
    of model.named_parameters(). A shared parameter counts once. "idle": the
    paths of the LoRA layers whose B is zero throughout, in the order of
    layers. model stays as it is, and nothing is kept from one call to the
    next.

    Example: nn.Sequential(LoRA(nn.Linear(2, 2), r=1)) gives layers ["0"],
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
# 1. `module.named_parameters(recurse=False)` gives what a module holds itself, by name.
# 2. Gather the LoRA layers first. Then one walk over `model.named_parameters()` sorts the rest, if you know each A and B by identity: `id(p)`.
# 3. A sum can be zero without all numbers being zero; `any()` is True if one is not.

# %% [markdown] trap="10.4" role="keep"
# **Keep:** what is trained and is not LoRA has to be named, or it is neither trained nor
# saved. **In your own code:** after wrapping, list what trains; after saving, list the
# keys of the file; load once more and compare. **Source:** the text on `modules_to_save`
# in [peft's LoraConfig](https://huggingface.co/docs/peft/package_reference/lora).
# **Seen in the wild:**
# [huggingface/peft 310](https://github.com/huggingface/peft/issues/310): in an early
# version of peft, the head of a classifier is not in the saved adapter.

# %% [markdown] trap="10.5" role="situation" core=true fault="the saved adapter is never loaded, a fresh one answers" symptom="loaded LoRA adapter changes nothing, outputs equal the base model, get_peft_model before loading"
# ## From the file into service
#
# The trained adapter of trap 10.1, `whole`, is saved in a folder: its numbers and its
# configuration. With it, the loss on the new language fell from over three to less than 2.2.
# Three versions of a program serve it. All of them build the base, read the configuration,
# and call `get_peft_model` with both, as the training did. The first stops there. The second
# hands the numbers of the file to `load_state_dict`, which complains about missing keys
# until you add `strict=False`. The third calls peft's own `load_adapter`, which knows the
# file's names and loads under the name `trained`. "The third loads the adapter," says a
# colleague, "so the third is right."

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
guess("10.5", "Which of the three answers as the trained adapter does?",
      choices=["the second and the third", "the third alone",
               "the second alone", "none of them"])

# %% trap="10.5" role="look"
served = {"base alone": base, "first version": first_version,
          "second version": second_version,
          "third version": third_version, "as trained": whole}
losses = {name: loss_on(model, new_ids) for name, model in served.items()}

# %% trap="10.5" role="look"
plot_bars(losses, xlabel="loss on the new language",
          title="All three versions answer as the base does",
          alt="Five bars. The base and the three versions have the same "
              "high loss; the adapter as it was trained is far lower.")

# %% trap="10.5" role="look"
measured("10.5", 3)

# %% trap="10.5" role="look"
claim("loss of the second version less that of the base",
      losses["second version"] - losses["base alone"], expected=0)

# %% [markdown] trap="10.5" role="why"
# `get_peft_model` makes a *fresh* adapter, and a fresh adapter does nothing: $B$ is zero.
# Inside the model each of its names holds the name of the adapter, `default`. The tensors
# of the file are named without it, so that none finds its place. `strict=False` was meant
# for the missing base, and hides that no tensor of the adapter arrived, too. The third
# version does load the adapter, and leaves the fresh one, `default`, in charge.

# %% trap="10.5" role="why"
inside = next(key for key in second_version.state_dict() if "lora_A" in key)
print("file: ", next(iter(file))[-36:])
print("model:", inside[-44:])

# %% trap="10.5" role="why"
claim("tensors of the file that found no place", len(told.unexpected_keys),
      expected=len(file))

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
           alt="Two stacks of boxes to scale. The base holds its layers, "
               "an embedding and a head; the file of the adapter, far "
               "smaller, holds A and B.")

# %% [markdown] trap="10.5" role="repair"
# `PeftModel.from_pretrained` makes the modules, reads the numbers under the names they
# have, and switches the adapter on:

# %% trap="10.5" role="repair"
model = PeftModel.from_pretrained(copy.deepcopy(base), folder)
losses["from_pretrained"] = loss_on(model, new_ids)
print({name: f"{loss:.2f}" for name, loss in losses.items()})

# %% trap="10.5" role="repair"
claim("loaded by from_pretrained: loss less that after training",
      losses["from_pretrained"] - losses["as trained"], expected=0,
      within=1e-4)

# %% [markdown] trap="10.5" role="more" topics="bit by bit · several adapters · wrapped twice"
# All three versions give the logits of the base to the last bit:

# %% trap="10.5" role="more"
@torch.no_grad()
def same_as_base(model):
    return torch.equal(model(input_ids=new_ids).logits,
                       base(input_ids=new_ids).logits)

alike = sum(map(same_as_base, (first_version, second_version,
                               third_version)))
lora_missing = sum("lora_" in key for key in told.missing_keys)

# %% trap="10.5" role="more"
claim("ways of three that give the logits of the base, bit by bit", alike,
      expected=3)
claim("loss of the trained adapter", losses["as trained"], below=2.2)
claim("LoRA tensors of the model that got nothing", lora_missing,
      expected=len(file))

# %% [markdown] trap="10.5" role="more"
# One base carries several adapters, which take turns:

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
claim("switched to the smaller adapter: the same",
      losses["small"] - loss_on(partly, new_ids), expected=0, within=1e-4)
claim("adapters switched off: the logits of the base, bit by bit", alone,
      expected=True)
claim("third version, its adapter switched on: loss less that after "
      "training", losses["third version"] - losses["as trained"],
      expected=0, within=1e-4)

# %% [markdown] trap="10.5" role="more"
# The other order, `get_peft_model` and then `from_pretrained` around it, fails as well,
# but this version of peft warns: it finds an adapter in place, and no names that fit.
# The three versions above raise nothing.

# %% trap="10.5" role="more"
wrapped_twice, told = heard(PeftModel.from_pretrained, fresh(), folder)
print(*[message[:64] for message in told], sep="\n")

# %% trap="10.5" role="more"
claim("wrapped twice: the logits of the base, bit by bit",
      same_as_base(wrapped_twice.eval()), expected=True)
claim("warnings", len(told), above=0)

# %% trap="10.5" role="exercise" points=4 difficulty=3 minutes=20
def load_adapter(model: nn.Module, file: dict[str, torch.Tensor]) -> None:
    """Put an adapter of a file into model, whole or not at all.

    The adapter of model are its parameters whose path in
    model.named_parameters() has A or B as its last part, as "layers.0.A"
    has; there is at least one of each. file: tensors by such paths, of a
    floating-point dtype. Raises ValueError if a path of the adapter is
    missing in file, if file holds any other, if a shape differs, or if
    every B in file is zero throughout; model is then as it was before.

    Otherwise each parameter of the adapter gets the numbers of its tensor,
    in its own dtype. It stays the same object and keeps its requires_grad,
    and shares no memory with file. All else in model stays, and so do file
    and the grad mode.

    Example: for LoRA(nn.Linear(2, 2), r=1) a file has the paths "A" and
    "B", of shapes (1, 2) and (2, 1).
    """
    # BEGIN SOLUTION
    mine = {path: p for path, p in model.named_parameters()
            if path.split(".")[-1] in ("A", "B")}
    if mine.keys() != file.keys():
        raise ValueError("paths of the adapter and of file differ")
    for path, p in mine.items():
        if p.shape != file[path].shape:
            raise ValueError(f"{path}: its shape differs")
    if not any(tensor.any() for path, tensor in file.items()
               if path.split(".")[-1] == "B"):
        raise ValueError("every B is zero: this adapter does nothing")
    with torch.no_grad():
        for path, p in mine.items():
            p.copy_(file[path])
    # END SOLUTION

# %% [markdown] trap="10.5" role="hint"
# 1. `model.named_parameters()` gives paths such as `layers.0.A`; `path.split(".")[-1]` is the last part.
# 2. Look at everything first, and write only when nothing can go wrong any more. A dict's `keys()` can be compared as sets.
# 3. `copy_` under `no_grad` writes numbers into a parameter and changes neither the object nor its dtype. But it broadcasts: compare shapes yourself.

# %% [markdown] trap="10.5" role="keep"
# **Keep:** a LoRA adapter that was not loaded is no error, it is the base; a prefix that
# was not loaded is a random one. **In your own code:** after loading, count the keys
# that found no place, look for a $B$ that is not zero, and compare an answer with that of the base. **Source:**
# [peft's quicktour](https://huggingface.co/docs/peft/quicktour) loads with
# `from_pretrained`. **Seen in the wild:**
# [huggingface/peft 2115](https://github.com/huggingface/peft/issues/2115):
# `get_peft_model` before loading, outputs identical to the base; the maintainer's
# answer, a warning, is [pull request
# 2118](https://github.com/huggingface/peft/pull/2118).

# %% [markdown] trap="10.6" role="situation" core=true fault="padding with EOS: the labels lose every EOS" symptom="fine-tuned model never stops generating, no EOS, pad_token = eos_token"
# ## Padding with what was at hand
#
# You teach a small Llama to answer. The prompt is a number from three to nine. The answer
# repeats a word that many times and ends in EOS, the token that ends a text. No token is
# set aside for padding, so you pad the shorter texts of a batch with EOS, on the right.
#
# The training loss falls well below one. To test the model, you give it seven prompts, one
# for each number. It writes until it gives EOS, or has written 13 tokens.

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
    """How many words, up to 13, the model writes to the prompts 3 to 9."""
    n = torch.arange(3, 10)
    ids, found = torch.stack([torch.full_like(n, BOS), n], 1), n * 0 + 13
    for words in range(LONGEST):
        token = model(input_ids=ids).logits[:, -1].argmax(1)
        found[(token == EOS) & (found == 13)] = words
        ids = torch.cat([ids, token[:, None]], 1)
    return found

# %% trap="10.6" role="break"
def by_pad_id(ids, lengths, pad):
    """Labels (N, T): ids, and -100, which the loss skips, for padding."""
    return ids.masked_fill(ids == pad, -100)

# %% trap="10.6" role="break"
def speaker(labels_of, pad, steps=140):
    """A model trained on padded answers, its last loss and labels."""
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
guess("10.6", "How many of the seven answers stop by themselves?",
      choices=["all seven", "none", "about half"])

# %% trap="10.6" role="look"
print(f"training loss {loss:.2f}, "
      f"labels that are EOS: {(labels == EOS).sum()}")
print("answers to 3 .. 9 words:", lengths.tolist())

# %% trap="10.6" role="look"
measured("10.6", 1)

# %% trap="10.6" role="look"
claim("answers of seven that stop", (lengths < LONGEST).sum(), expected=0)

# %% [markdown] trap="10.6" role="why"
# The line that takes the padding out of the labels looks at the id, and the EOS that ends
# a text has the same id. So each EOS is taken out, too: no text in training shows its end,
# and the loss does not miss it. A mask by the *length* of each text keeps it, whatever id
# is used for padding.

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
           captions={"by length": "one EOS a text is learned"},
           legend="the EOS that ends the text",
           title="By id, the EOS that ends a text has no label",
           alt="Two grids of four texts and thirteen tokens; filled cells "
               "have a label. By id the cell of the EOS is empty in each "
               "text; by length it is filled and only padding is empty.")

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
plot_lines(range(3, 10), {name: written[name]
                          for name in ("by id", "by length")},
           xlabel="words asked for", ylabel="words before the end",
           title="Masked by length, the model learns to stop",
           alt="Words written over words asked for. Masked by id the line "
               "stays at thirteen, the most there may be; masked by length "
               "it rises with what was asked for.")

# %% trap="10.6" role="repair"
claim("labels by length: answers of seven that stop", stops["by length"],
      above=4)

# %% [markdown] trap="10.6" role="repair"
# The losses are of one size and do not betray the fault. So let the model answer before you
# believe a training curve.

# %% [markdown] trap="10.6" role="more" topics="a padding token of its own · what few steps teach"
# A padding token of its own takes a row of the embedding, and one of the head where the two
# are not tied. Both repairs give the same model: start, texts and labels are the same, and
# what stands behind the end has no label. So few steps teach it to stop. From some starts
# it still misses the end of the longest answer, or counts a word too many.

# %% trap="10.6" role="more"
claim("training loss at the end", losses["by id"], below=0.6)
claim("labels of the last batch that are EOS", (labels == EOS).sum(),
      expected=0)
claim("padding of its own: answers of seven that stop",
      stops["own padding"], above=4)

# %% trap="10.6" role="exercise" points=3 difficulty=2 minutes=10
def lm_labels(ids: torch.Tensor, prompts: torch.Tensor,
              lengths: torch.Tensor) -> torch.Tensor:
    """Labels for a causal language model that shifts them itself.

    Each text is a prompt and its answer, and the answer alone is learned:
    its labels are its ids, and at all other places stands -100, whatever
    ids stand there. ids: (N, T) int64, and there may be no rows; texts
    padded on the left. lengths: (N,) int64, the tokens of each text, its
    EOS among them, from 0 to T. prompts: (N,) int64, how many of them are
    the prompt's, from none to all. The id of the padding may be that of EOS
    or of any other token, and EOS may stand inside a text. The result is
    int64 and has memory of its own at each call; the arguments stay as they
    are.

    Example: ids [[0, 5, 6, 0]], prompts [1] and lengths [3] give
    [[-100, -100, 6, 0]].
    """
    # BEGIN SOLUTION
    start = ids.shape[1] - lengths + prompts
    before = torch.arange(ids.shape[1]) < start[:, None]
    return ids.masked_fill(before, -100)
    # END SOLUTION

# %% [markdown] trap="10.6" role="hint"
# 1. Do not ask what id stands at a place, ask whether the place belongs to an answer. A text that is padded on the left ends at the last place.
# 2. Two things stand in front of an answer: the padding of its row, and its prompt. How many places are that?
# 3. Work on a copy of `ids`. A text may be empty, be nothing but a prompt or fill its row, and none of these needs a case of its own.

# %% [markdown] trap="10.6" role="keep"
# **Keep:** what is padding is said by the length of a text, not by an id that also means
# something. **In your own code:** count the labels that are EOS in a batch; there should
# be one for each text that ends. **Source:** `DataCollatorForLanguageModeling` in
# [transformers](https://github.com/huggingface/transformers/blob/main/src/transformers/data/data_collator.py):
# it sets all labels that equal the padding token to -100. **Seen in the wild:**
# [huggingface/transformers 23530](https://github.com/huggingface/transformers/issues/23530):
# all EOS labels are overwritten, not only those of padding;
# [huggingface/trl 976](https://github.com/huggingface/trl/issues/976): a Mistral so
# trained rarely writes the token that ends a text;
# [mlabonne/llm-course 33](https://github.com/mlabonne/llm-course/issues/33): so does a
# model from a well-known notebook, which stops at the longest length only.

# %% [markdown] role="concept"
# ## Further
#
# ### The same numbers as peft
#
# The `LoRA` of the first cell and that of the library calculate the same. And one of the
# two matrices has to begin at random: with both at zero, no gradient reaches either.

# %% role="concept"
layer = whole.base_model.model.model.layers[0].mlp.up_proj
mine = LoRA(copy.deepcopy(layer.base_layer), r=4, alpha=16)
mine.A.data = layer.lora_A.default.weight.data
mine.B.data = layer.lora_B.default.weight.data
h = torch.randn(8, 32)
gap = (mine(h) - layer(h)).abs().max()

fresh_layer = LoRA(nn.Linear(32, 32))
fresh_layer(h).square().mean().backward()
at_start = {name: getattr(fresh_layer, name).grad.norm() for name in "AB"}
with torch.no_grad():
    fresh_layer.A.zero_()
fresh_layer.zero_grad()
fresh_layer(h).square().mean().backward()
stuck = fresh_layer.A.grad.norm() + fresh_layer.B.grad.norm()

# %% role="concept"
claim("LoRA by hand and peft's, largest gap", gap, below=1e-4)
claim("gradient norm of A at the first step", at_start["A"], expected=0)
claim("gradient norm of B at the first step", at_start["B"], above=0.01)

# %% [markdown] role="concept"
# In the first step only $B$ gets a gradient, and from the second on both. With $A$ at zero
# as well:

# %% role="concept"
claim("A and B zero: gradient norm of both together", stuck, expected=0)

# %% [markdown] role="concept"
# ### A passport for an adapter
#
# Most traps of this stage show in a number that you can write down when you save an
# adapter, and compare when you load it. One is still missing: an adapter fits each base
# of the same shapes, and was trained for one. A hash of the base's numbers tells apart bases
# with other weights. Settings such as `rope_theta` change no weight: they stand in the base's
# configuration, which you keep beside it.

# %% role="concept" tags=["plumbing"]
def fingerprint(model):
    """A hash of the numbers in a model's state_dict, and of their paths."""
    digest = hashlib.sha256()
    for path, tensor in model.state_dict().items():
        digest.update(path.encode())
        numbers = tensor.cpu().contiguous().reshape(-1)
        digest.update(numbers.view(torch.uint8).numpy())
    return digest.hexdigest()[:16]

@torch.no_grad()
def merge_error(model, ids):
    """Largest change of a logit by merging, over the largest logit."""
    beside = model(input_ids=ids).logits
    merged = copy.deepcopy(model).merge_and_unload()(input_ids=ids).logits
    return ((merged - beside).abs().max() / beside.abs().max()).item()

# %% role="concept"
def adapter_passport(model, base, ids):
    """What to keep beside the file of a LoRA adapter of peft."""
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
    print(f"{row}: {'same' if mine[row] == strange[row] else 'another'}")

# %% role="concept"
claim("matrices that were hit and whose B is not zero, of 14",
      min(mine["matrices hit"], mine["B not zero"]), expected=14)
claim("merge error on its own base, over the largest logit",
      mine["merge error"], below=1e-4)
claim("loss on the new language, on another base less on its own",
      losses["another base"] - losses["its own base"], above=0.3)

# %% [markdown] role="concept"
# The other base takes the adapter without an error or a warning, and all that counts
# modules agrees. The hash does not, and the loss says why it matters. peft notes the
# *name* of the base in the configuration of the adapter; a name does not change when the
# weights behind it do.

# %% [markdown] role="concept"
# ### Five kinds of adapters
#
# *DoRA* splits each row of $W$ into its length and its direction: the lengths are trained
# as they are, the directions by LoRA. *IA3* trains factors for keys, values and the inside of
# the MLP. Prefix and prompt tuning train made-up keys and values, or tokens, that stand
# before each text (trap 10.3). All five get the same 60 steps at the same rate on this small
# base; methods with few numbers may want a higher rate and more steps, so read the table as
# what this setting gives, and not as a ranking.

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
    print(f"{name}: {trainable(model)} numbers, loss on the new language "
          f"{after[name]:.2f}")

# %% role="concept"
claim("LoRA and DoRA: the higher loss", max(after["LoRA"], after["DoRA"]),
      below=2.2)
claim("IA3, prefix and prompt: the lowest loss less that of LoRA",
      min(after[kind] for kind in ("IA3", "prefix", "prompt"))
      - after["LoRA"], above=0.5)

# %% [markdown] role="concept"
# ### How low is the rank of an update, and what is forgotten
#
# LoRA is often explained by saying that updates have a low rank anyway. You train all
# weights of the base on the new language and look at the singular values of what
# changed. How much of the squared size do the first four of 32 hold?

# %% role="concept"
full = learn(copy.deepcopy(base), new)
held, chance = [], []
for (name, after_p), before_p in zip(full.named_parameters(),
                                     base.parameters()):
    if "proj" in name:
        for kept, change in ((held, (after_p - before_p).detach()),
                             (chance, torch.randn_like(before_p))):
            power = torch.linalg.svdvals(change).square()
            kept.append((power[:4].sum() / power.sum()).item())
held, chance = sum(held) / len(held), sum(chance) / len(chance)
forgets = {"all weights": loss_on(full, old_ids),
           "LoRA": loss_on(whole, old_ids)}
print(f"held by four: {held:.0%}, of random matrices {chance:.0%}; old "
      f"language: ", {k: f"{v:.1f}" for k, v in forgets.items()})

# %% role="concept"
claim("share of the update in its first four directions, mean", held,
      above=0.45, below=0.85)
claim("that share less that of random matrices", held - chance, above=0.1)
claim("lower loss on the old language, after the new one, less before",
      min(forgets.values()) - level["old"], above=1)

# %% [markdown] role="concept"
# So the update leans on few directions, and is not of rank four. LoRA need not copy that
# update; it has to lower the loss. Both forget the old language here, where nothing of
# it was trained on. But the adapter can be switched off, and the base is there again.

# %% role="concept"
with whole.disable_adapter():
    back = loss_on(whole, old_ids)

# %% role="concept"
claim("adapter off: loss on the old language less that of the base",
      back - level["old"], expected=0)

# %% [markdown] role="concept"
# Below, updates of four kinds. Guess what rank 4 leaves out of each, and at which rank
# LoRA needs as many numbers as the matrix itself.

# %% role="explore" explorer="lora_rank"
from dlsys_helpers.explorers.lora_rank import lora_rank

lora_rank

# %% [markdown] role="concept"
# ### Counting for a Llama-2-7B
#
# On the meta device a model has shapes and no numbers, so that seven billion of them
# cost nothing. If you have a model of your own on this machine, write its folder below:
# the last line then counts for its shapes. Nothing else needs one.

# %% role="concept"
MODEL_7B = ""          # a folder with config.json; empty for none

def count(config):
    """Numbers of a model, and of LoRA of rank 16: in attention, in all."""
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
    """The configuration in a folder, from files on this machine alone."""
    path = pathlib.Path(folder).expanduser()
    if not (path / "config.json").is_file():
        raise UserError(f"MODEL_7B: got {folder!r}, expected a folder with "
                        "config.json. Write its path, or leave it empty.")
    return AutoConfig.from_pretrained(path, local_files_only=True)

if MODEL_7B:
    print("your model:", *(f"{n:,}" for n in count(config_in(MODEL_7B))))

# %% role="concept"
claim("numbers of the base", numbers, expected=6_738_415_616)
claim("r 16 in all matrices of attention", in_attention,
      expected=16_777_216)
claim("r 16 in all matrices, over the base", in_all / numbers,
      expected=0.006, within=1e-4)

# %% [markdown] role="concept"
# ### Four bits for the base: NF4
#
# *QLoRA* keeps the frozen base in four bits a weight, a quarter of bfloat16. Four bits name
# 16 levels. Each block of 64 weights is divided by its largest, and each weight moves to the
# nearest level. NF4 expects weights like draws from a normal distribution, most of them
# small. So its levels are *quantiles* of N(0, 1): places between which equal shares of the
# draws fall. Eight lie above zero, seven below, one at zero, and all are scaled so that the
# largest is one. The quantile of the share 1 is infinite, so the outermost level is taken a
# little before it, at `edge`.

# %% role="concept"
import bitsandbytes as bnb

normal, edge = torch.distributions.Normal(0.0, 1.0), 0.9677083
above = normal.icdf(torch.linspace(edge, 0.5, 9)[:-1])
below = -normal.icdf(torch.linspace(edge, 0.5, 8)[:-1])
nf4 = torch.cat([above, below, torch.zeros(1)]).sort().values
nf4 = nf4 / nf4.max()
library = bnb.functional.get_4bit_type("nf4", device="cpu")
print([f"{level:.2f}" for level in nf4.tolist()])

def rounded_to(grid, weights, block=64):
    """Weights, each block scaled to one and moved to the nearest level."""
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
claim("levels by hand and those of bitsandbytes, largest gap",
      (nf4 - library).abs().max(), below=1e-5)
claim("normal weights: error with NF4 over that with even levels",
      errors["NF4", "normal"] / errors["even", "normal"], below=0.95)
claim("uniform weights: the same", errors["NF4", "uniform"]
      / errors["even", "uniform"], above=1.05)

# %% role="concept"
draw_histogram(bell[:64] / bell[:64].abs().max(),
               grids={"NF4": nf4.tolist(), "even": evenly.tolist()},
               unit="weight / largest",
               title="NF4 puts its levels where weights are",
               alt="A bell-shaped histogram of weights. Below it sixteen "
                   "levels of NF4, dense around zero, and sixteen at even "
                   "distances.")

# %% [markdown] role="concept"
# One weight in 256 is now eight times as large as most: an outlier. Guess what it does
# to the others in its block, and whether large or small blocks take it better.

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
claim("NF4, blocks of 256: error beside an outlier over the one without",
      by_block["NF4, outliers"][-1] / by_block["NF4"][-1], above=1.7)
claim("the same in blocks of 16", by_block["NF4, outliers"][0]
      / by_block["NF4"][0], below=1.4)

# %% role="concept"
plot_lines(blocks, by_block, xlabel="weights in a block",
           ylabel="error of the others",
           title="An outlier coarsens its whole block",
           alt="Four lines over the size of a block. Without outliers both "
               "grids rise gently. With one weight in 256 eight times as "
               "large the error of all others doubles and more in large "
               "blocks, and even levels suffer most.")

# %% [markdown] role="concept"
# The outlier sets the scale of its block, so the others share the few levels around zero.
# In a small block it spoils fewer of them. The price is memory: each block stores a scale.
#
# Of the two kinds of weights above, each grid is better for its own in blocks of 64. Now all
# together: you train a new base of width 64, put its layers in NF4 (embedding and head stay
# as they are), and train LoRA beside it. Do four bits cost loss?

# %% role="concept" tags=["plumbing"]
def in_four_bits(model):
    """A copy with the linear modules of its layers in NF4."""
    model = copy.deepcopy(model)
    for path, module in list(model.model.named_modules()):
        if isinstance(module, nn.Linear):
            four = bnb.nn.Linear4bit(
                module.in_features, module.out_features, bias=False,
                compute_dtype=torch.float32, quant_type="nf4")
            four.weight = bnb.nn.Params4bit(
                module.weight.data, requires_grad=False, quant_type="nf4")
            holder, _, name = path.rpartition(".")
            setattr(model.model.get_submodule(holder), name, four.to("cpu"))
    return model

# %% role="concept"
wide = learn(small_llama(width=64), old, steps=60)       # blocks of 64
four_bit = in_four_bits(wide)
weight = four_bit.model.layers[0].mlp.up_proj.weight
found = {"old language, base": loss_on(wide, old_ids),
         "old language, NF4": loss_on(four_bit, old_ids)}
for name, model in (("LoRA", wide), ("QLoRA", four_bit)):
    model = adapter(model, LLAMA_NAMES)
    found[name] = loss_on(learn(model, new, steps=60), new_ids)
print(f"bytes for 8,192 weights: {weight.nbytes}")
print({k: f"{v:.2f}" for k, v in found.items()})

# %% role="concept"
claim("bytes of a matrix of 128 x 64, without its scales", weight.nbytes,
      expected=4096)
claim("loss on the old language, NF4 less base",
      found["old language, NF4"] - found["old language, base"],
      above=-0.1, below=0.3)
claim("loss on the new language, QLoRA less LoRA",
      found["QLoRA"] - found["LoRA"], above=-0.4, below=0.4)

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then open a choice: each says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. You copy `target_modules` with eight names from another model's script, and training starts. You then**
#
# - [ ] trust it, since wrong names raise an error :: The error comes only if no name hits. One that hits is enough to pass.
# - [x] count the adapted modules and the trainable numbers :: The list is a filter. What was passed over shows in the count and nowhere else.
# - [ ] raise the rank, to be safe :: A higher rank makes the adapters larger that were made. It makes none for a matrix that no name hits.

# %% [markdown] role="quiz"
# **2. A program adds `B @ A` to `W` and leaves the adapter switched on. The model now answers**
#
# - [ ] as before, since the sum is the same :: The update is in `W` and beside it, so it counts twice.
# - [x] with twice the update :: Merge once and switch off, or let `merge_and_unload` do both.
# - [ ] as the base, since both cancel out :: Nothing takes the update away; it is added a second time.

# %% [markdown] role="quiz"
# **3. A merged model in `bfloat16` is worse than base and adapter side by side. The first suspect is**
#
# - [x] the rounding of small updates, which are lost beside a large weight :: With 8 bits for the digits, an update far below a hundredth of the weight often moves nothing.
# - [ ] the order of `B` and `A` in the product :: The other order has another shape, unless by accident, and would be wrong in float32 as well.
# - [ ] the rank, which merging reduces :: The sum has whatever rank `W` and the update give it; nothing is cut off.

# %% [markdown] role="quiz"
# **4. A loaded LoRA adapter gives exactly the logits of the base. That means**
#
# - [ ] training changed nothing :: It may have. A trained `B` is hardly zero to the last bit in all layers.
# - [x] what answers is a fresh adapter, or none :: With `B` zero an adapter adds exactly zero. Look at the keys that found no place, and at which adapter is switched on.
# - [ ] the adapter was trained for another base :: On another base it would do something, and most likely harm.

# %% [markdown] role="quiz"
# **5. A classifier with LoRA is good after training and random after loading. What do you look for in the file?**
#
# - [ ] the weights of the base :: They are not meant to be there; the base is loaded by itself.
# - [x] the head :: A head that is not named in the task or in `modules_to_save` stays random and is drawn anew.
# - [ ] the state of the optimizer :: Answers do not need it.

# %% [markdown] role="quiz"
# **6. Padding has the id of EOS. You want the model to learn where a text ends. The labels of padding are masked**
#
# - [ ] by comparing ids with the id of the padding :: That takes out each EOS as well, and the model never learns to stop.
# - [x] by the length of each text :: Then the EOS that ends the text keeps its label, and all behind it loses it.
# - [ ] not at all, as EOS after EOS does no harm :: It does teach the model to stop. But steps and a mean loss are spent on places that no answer has, and a batch with much padding looks better than it is.

# %% [markdown] role="quiz"
# **7. A model with 2048 learned positions gets a prefix of 48 tokens. Your longest training text has 2048 tokens. You**
#
# - [ ] change nothing, since the prefix has no ids :: It takes positions all the same, and the text would run over the end of the table.
# - [ ] cut all texts at their end to 2000 :: The end is the answer, which holds the labels.
# - [x] cut the prompts at their start, until 2000 tokens are left :: Prefix and text then fit, and each answer is whole.

# %% [markdown] role="gpu"
# ## On a GPU: what a step holds and what it takes
#
# Training all weights with AdamW holds four numbers for each: the weight, its gradient
# and two running means. LoRA holds one for each frozen weight, and four for its own few.
# QLoRA holds half a byte for each frozen weight, and a scale for each block of 64.
#
# **Before you run anything:** a stack of eight matrices of 4096 x 4096 in float32. Its
# activations left out, how many bytes does a step hold: with all weights trained, with LoRA
# of rank 16, with QLoRA? And is time saved to the same degree? A step with LoRA still goes
# forward and back through the frozen matrices, and QLoRA has to unpack them each time.

# %% role="gpu"
import bitsandbytes as bnb

class Beside(nn.Module):
    """A frozen linear module with A and B beside it, as LoRA above."""

    def __init__(self, base, r):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) / 64)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T

# %% role="gpu"
def four_bit(linear, where):
    """A linear module with its weight in NF4."""
    four = bnb.nn.Linear4bit(linear.in_features, linear.out_features,
                             bias=False, compute_dtype=torch.float32)
    four.weight = bnb.nn.Params4bit(
        linear.weight.data, requires_grad=False, quant_type="nf4",
        compress_statistics=False)
    return four.to(where)

def stack(kind, where, width=4096, layers=8, r=16):
    """Square matrices in a row: full, with LoRA or with QLoRA."""
    modules = []
    for _ in range(layers):
        linear = nn.Linear(width, width, bias=False, device=where)
        if kind == "QLoRA":
            linear = four_bit(linear, where)
        modules.append(linear if kind == "full" else Beside(linear, r))
    return nn.Sequential(*modules).to(where)

# %% role="gpu"
def held_bytes(net):
    """Weights, scales, and what AdamW and a gradient hold beside them."""
    total = 0
    for p in net.parameters():
        scales = getattr(p, "quant_state", None)
        total += p.nbytes * (4 if p.requires_grad else 1)
        total += scales.absmax.nbytes if scales is not None else 0
    return total

def step_flops(kind, width=256, rows=512):
    """FLOPs of a step, over those of its forward pass with all weights."""
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
print(f"work of a step in forward passes: {work['full']:.2f} full, "
      f"{work['LoRA']:.2f} with LoRA")

# %% role="gpu"
claim("bytes held, LoRA over full", held["LoRA"] / held["full"],
      expected=0.258, within=0.002)
claim("bytes held, QLoRA over full", held["QLoRA"] / held["full"],
      expected=0.043, within=0.002)
claim("FLOPs of a step, LoRA over full", work["LoRA"] / work["full"],
      above=0.6, below=0.8)

# %% role="gpu"
@gpu_result("10/steps", uses=[four_bit, stack, held_bytes],
            columns=["kind", "ms", "ms_low", "ms_high", "rows_s", "held_mb",
                     "peak_mb"])
def steps():
    """Steps of 2,048 rows through eight matrices of 4096 x 4096."""
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
# Others measured a whole Llama-2-7B: with LoRA a training run reserves 15.57 GB, with
# QLoRA 9.29 GB. There the frozen base is in 16 bits, so four bits save less of it than
# here, and what is not adapted stays as it is, activations among it.
#
# **On the H100 of the record** the count of FLOPs holds to 6 %: with LoRA 1.57 times as
# many rows go through in a second, counted were 1.49. What a step holds is a count on both
# sides, of a small stack and of the real one; only the peak on top was measured, and
# there LoRA and QLoRA are equal: 400 MB each, four times what QLoRA
# holds. Four bits do nothing for activations. All weights need 537 MB on top, as much as
# the weights themselves: the copies that `foreach` makes.
#
# QLoRA takes 3 % longer than LoRA: unpacking costs little beside products of 2,048 rows in
# float32. In 16 bits such products take about a fifteenth of the time (stage 9), and
# unpacking weighs more.
#
# **Keep:** LoRA saves most of what a step holds for weights, gradients and optimizer, and
# about a third of its work: the gradients of the frozen weights are not formed, but the
# way back still leads through them. Of the activations it saves little where each matrix
# has an A, which keeps the input for its own gradient; with LoRA on the queries and values
# alone it saves the inputs of the other matrices. QLoRA saves memory once more, and no
# work. **Source:** torchtune's tutorial
# [Finetuning Llama2 with
# QLoRA](https://github.com/pytorch/torchtune/blob/main/docs/source/tutorials/qlora_finetune.rst),
# for one matrix of 512 x 512 and for the 7B.

# %% [markdown] role="summary"
# ## What you take with you
#
# - A list of target names is a filter. Count what it hit.
# - An adapter beside its matrix costs small jobs at each call. Merge with the factor
#   $\alpha / r$, once, in float32, and compare the logits.
# - In peft, learned tokens shift the positions of a text. Cut the prompt at its start, never the answer.
# - A head that nobody names is neither trained nor saved.
# - A LoRA adapter that was not loaded is the base, to the last bit.
# - Labels go by the length of a text. An id that means two things cannot say where it
#   ends.
#
# **Next:** stage 11 makes the base itself smaller.
