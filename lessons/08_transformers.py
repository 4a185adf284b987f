# %% [markdown] role="hook" draft=true
# # 8. Transformers, attention and GPU kernels
#
# Your team has written its own transformer: a hundred lines, three kinds of masks, a
# cache. It trains, it answers batches of questions of different lengths, it writes on
# from a prompt, token by token. Every shape is right and nothing raises an error.
#
# Attention takes almost any tensors whose shapes fit. Who may look at whom is said by
# a mask, by the order of the axes and by flags, and nothing checks what they say. This
# stage takes such decisions one by one, measures what each of them does, and then goes
# down to the kernels that do the work.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers import (
    accuracy, begin, check, claim, digits, fit, guess, measured,
    plot_lines,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## Attention is an average that chooses its weights
#
# Each token has three vectors: a *query* q (what it looks for), a *key* k (what it can
# be found by) and a *value* v (what it hands over). A query is compared with all keys,
# a softmax turns the scores into weights that sum to one, and the result is the mean of
# the values with these weights:
#
# $$\mathrm{attention}(Q, K, V) = \mathrm{softmax}\!\left(\frac{QK^\top}{\sqrt{D}}\right) V$$
#
# Shapes in this stage: `B` sequences of `T` tokens, `d` numbers for each token, split
# into `H` heads of `D` numbers: `(B, H, T, D)`. Each head has weights of its own.

# %% role="concept"
def attention(q, k, v):
    """Attention (B, H, T, D) by its formula; no mask."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])   # (B, H, T, T)
    return scores.softmax(-1) @ v

def split(x, heads):
    """(B, T, d) -> (B, H, T, D)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)

def merge(x):
    """(B, H, T, D) -> (B, T, d)"""
    return x.transpose(1, 2).flatten(2)

q, k, v = (split(torch.randn(2, 5, 32), 4) for _ in range(3))
gap = (attention(q, k, v) - F.scaled_dot_product_attention(q, k, v)).abs()

# %% role="concept"
claim("attention by its formula and by torch: largest gap", gap.max(),
      below=1e-5)

# %% [markdown] role="concept"
# A transformer is a stack of *blocks*. Each adds two things to the stream: what
# attention fetches from other tokens, and what two linear layers make of each token by
# itself. The norms stand inside the branches (stage 5). Whatever says who may look at
# whom is handed through as `mask`.

# %% role="concept"
class Block(nn.Module):
    """Attention and two linear layers, each behind a norm, both added."""

    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(),
                                 nn.Linear(4 * d, d))

    def forward(self, h, **mask):                # h (B, T, d)
        parts = self.qkv(self.norm1(h)).chunk(3, -1)
        q, k, v = (split(part, self.heads) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v, **mask)
        h = h + self.out(merge(seen))
        return h + self.mlp(self.norm2(h))

# %% role="concept"
class LM(nn.Module):
    """Tokens (B, T) -> logits (B, T, vocab) of the token asked for."""

    def __init__(self, vocab, places, d=32, heads=4, layers=1):
        super().__init__()
        self.token = nn.Embedding(vocab, d)
        self.place = nn.Embedding(places, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, ids, **mask):
        h = self.token(ids) + self.place.weight[:ids.shape[1]]
        for block in self.blocks:
            h = block(h, **mask)
        return self.head(self.norm(h))

# %% [markdown] role="concept"
# To learn language, such a model predicts for each place the token at the next one.
# The loss is the mean of $-\ln p$ over all of them, in nats; whoever guesses among `V`
# equally likely tokens pays $\ln V$.

# %% role="concept" tags=["plumbing"]
def nll(logits, ids):
    """Mean of -ln p of the tokens ids, in nats; logits (..., vocab)."""
    return F.cross_entropy(logits.flatten(0, -2), ids.flatten())

def train(model, draw, steps, lr=1e-2):
    """Adam on the loss that draw(model) returns, a new one each step."""
    opt, losses = torch.optim.Adam(model.parameters(), lr=lr), []
    for _ in range(steps):
        loss = draw(model)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses

# %% [markdown] trap="08.1" role="predict" core=true symptom="language model: training loss far too low, near zero, generates garbage, causal mask missing"
# ## Dice, and a model that predicts them
#
# You try your model on a text of which you know the best possible loss: tokens thrown
# with a fair die of 16 faces. Nobody can pay less than ln 16, `2.77` nats, for the next
# one. You train on rows of 8 tokens, each place asked for its next one, and after 200
# steps the loss reads `0.36`.
#
# Then you use the model as it will be used. It gets the first tokens of a new row and
# nothing else, and is scored on the one that follows; so for each length from 1 to 8.

# %% trap="08.1" role="predict"
guess("08.1", "What does it pay for the next token of a prefix, in nats?",
      choices=["about `0.36`, as in training",
               "about `2.77`: it has overfitted and only guesses",
               "more than `4`"])

# %% trap="08.1" role="break"
VOCAB, T = 16, 8

def dice_loss(**mask):
    """The loss of next tokens on fresh dice, as a function of a model."""
    def draw(model):
        ids = torch.randint(VOCAB, (32, T + 1))
        return nll(model(ids[:, :-1], **mask), ids[:, 1:])
    return draw

open_lm = LM(VOCAB, T)
train(open_lm, dice_loss(), steps=200)

# %% trap="08.1" role="look" tags=["plumbing"]
@torch.no_grad()
def paid(model, **mask):
    """Nats paid by place with the row in view, and for prefixes, (T,)."""
    ids = torch.randint(VOCAB, (256, T + 1))
    whole = model(ids[:, :-1], **mask)
    by_place = [nll(whole[:, t], ids[:, t + 1]).item() for t in range(T)]
    prefix = [nll(model(ids[:, :t + 1], **mask)[:, -1], ids[:, t + 1])
              .item() for t in range(T)]
    return torch.tensor(by_place), torch.tensor(prefix)

# %% trap="08.1" role="look"
by_place, prefix = paid(open_lm)
print(f"as in training {by_place.mean():.2f}, prefixes {prefix.mean():.1f}")
print("as in training, by place:", *(f"{nats:.2f}" for nats in by_place))

# %% trap="08.1" role="look"
claim("nats paid as in training; ln 16 is 2.77", by_place.mean(),
      below=0.6)
claim("nats paid for the next token of a prefix", prefix.mean(), above=3.5)
claim("nats paid as in training at all places but the last",
      by_place[:-1].max(), below=0.1)

# %% trap="08.1" role="look"
measured("08.1", 2)

# %% [markdown] trap="08.1" role="repair"
# The model reads the answer. The token that place t is asked for stands in the same
# row, at place t + 1, and attention is free to fetch it. At the last place there is
# none to fetch, and there the model pays the price of guessing, an eighth of all: the
# whole loss comes from there. On a prefix every last place is such a place, and the
# model expects an answer that is missing. It pays more than a guesser, who at least
# knows that it guesses.
#
# The *causal* mask lets a place look at itself and at what came before.

# %% trap="08.1" role="repair"
causal_lm = LM(VOCAB, T)
train(causal_lm, dice_loss(is_causal=True), steps=200)
by_place_c, prefix_c = paid(causal_lm, is_causal=True)
print(f"causal: as in training {by_place_c.mean():.2f}, "
      f"prefixes {prefix_c.mean():.2f}")

# %% trap="08.1" role="repair"
claim("causal: nats paid as in training", by_place_c.mean(),
      expected=math.log(16), within=0.1)
claim("causal: nats paid for the next token of a prefix", prefix_c.mean(),
      expected=math.log(16), within=0.1)

# %% [markdown] trap="08.1" role="repair"
# You need no training to find such a leak, and no dice. Change the last token of a row:
# with a right mask the logits of all places before it stay. That works for any model
# that claims to be causal, once dropout is off.

# %% trap="08.1" role="repair"
def leak(model, **mask):
    """Largest change of earlier logits when the last token changes."""
    ids = torch.randint(VOCAB, (4, T))
    other = ids.clone()
    other[:, -1] = (other[:, -1] + 1) % VOCAB
    with torch.no_grad():
        change = model(ids, **mask) - model(other, **mask)
    return change[:, :-1].abs().max()

fresh = LM(VOCAB, T)
leaks = leak(fresh), leak(fresh, is_causal=True)

# %% trap="08.1" role="repair"
claim("a fresh model without a mask: earlier logits move by", leaks[0],
      above=0.01)
claim("a fresh model, causal: earlier logits move by", leaks[1],
      below=1e-5)

# %% [markdown] trap="08.1" role="repair"
# Where `is_causal` is not enough you write the mask down, and there are three ways.
# For `scaled_dot_product_attention` (SDPA) a boolean `True` means *may look*; for
# `nn.MultiheadAttention` (MHA) `True` means *may not*. A float mask is added to the
# scores in both: 0 leaves them, minus infinity forbids.

# %% trap="08.1" role="repair"
keep = torch.ones(T, T, dtype=torch.bool).tril()  # row looks at column
bias = torch.zeros(T, T).masked_fill(~keep, -math.inf)

mha = nn.MultiheadAttention(32, 4, batch_first=True).eval()
x = torch.randn(2, T, 32)
with torch.no_grad():
    seen = [mha(x, x, x, attn_mask=mask, need_weights=False)[0]
            for mask in (~keep, bias)]
    q, k, v = (split(part, 4) for part in F.linear(
        x, mha.in_proj_weight, mha.in_proj_bias).chunk(3, -1))
    for mask in (keep, bias):
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        seen.append(mha.out_proj(merge(h)))

# %% trap="08.1" role="repair"
claim("four ways to write one mask: largest gap",
      max((a - seen[0]).abs().max() for a in seen), below=1e-5)

# %% [markdown] trap="08.1" role="repair"
# Nothing stops you from handing one API the mask of the other. Then each place looks
# only at what comes *after* it, or at nothing at all. For a row without any key SDPA
# gives zeros and MHA gives NaN, here on a CPU. A float mask made by multiplication is
# NaN where it should be 0, since zero times infinity is NaN.

# %% trap="08.1" role="repair"
with torch.no_grad():
    flipped = F.scaled_dot_product_attention(q, k, v, attn_mask=~keep)
    lost = mha(x, x, x, attn_mask=torch.ones(T, T) == 1,
               need_weights=False)[0]
product = (1 - keep.float()) * -math.inf

# %% trap="08.1" role="repair"
claim("SDPA, polarity of MHA: largest number at the last place",
      flipped[:, :, -1].abs().max(), expected=0)
claim("MHA, all keys forbidden: share of NaN",
      lost.isnan().float().mean(), expected=1)
claim("NaN in the product for each pair that may look",
      product.isnan().sum() / keep.sum(), expected=1)

# %% [markdown] trap="08.1" role="folklore"
# **Told:** without the mask the training loss goes to zero, and in use the model
# writes random tokens. **Measured, on dice:** the last place of each row has nothing
# to copy, so the loss stays at its share of ln 16. And the predictions in use are worse
# than random: they cost more than ln 16.

# %% trap="08.1" role="exercise" points=3 difficulty=2 minutes=10
def packed_masks(lengths: list[int]) -> tuple:
    """Three forms of one mask for packed documents: keep, ignore, bias.

    lengths: how many tokens each document has, 0 included; they stand one
    behind the other in one row of T tokens, T their sum. A token may look
    at itself and at the earlier tokens of its own document, and at nothing
    of another. All three are of shape (T, T), the row looks at the column.
    keep is bool, True where it may look, as SDPA wants it. ignore is bool,
    True where it may not, as MHA wants it. bias is float32, to be added to
    scores: 0 where it may look, else minus infinity. lengths stays as it
    is.

    Example: for [1, 2] keep is [[True, False, False], [False, True, False],
    [False, True, True]].
    """
    # BEGIN SOLUTION
    document = torch.repeat_interleave(torch.arange(len(lengths)),
                                       torch.tensor(lengths).long())
    same = document[:, None] == document
    keep = same.tril()
    bias = torch.zeros(keep.shape).masked_fill(~keep, -math.inf)
    return keep, ~keep, bias
    # END SOLUTION

# %% [markdown] trap="08.1" role="hint"
# 1. Give each token the number of its document: `torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))`. Two tokens are in one document when their numbers agree.
# 2. Compare that vector with itself, once as a column and once as a row; `tril` keeps what is not in the future.
# 3. Make the bias with `masked_fill`, not by multiplying: `0 * inf` is NaN.

# %% [markdown] trap="08.1" role="keep"
# **Keep:** a model that is asked for the next token must not see it. A loss below what
# is possible is a leak, not a success. **In your own code:** change the last token of a
# row and compare the logits before it. **Source:** [torch's documentation of
# scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html)
# and [of nn.MultiheadAttention](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html):
# True means opposite things. **Seen in the wild:**
# [huggingface/transformers 48745](https://github.com/huggingface/transformers/issues/48745):
# four models lost their causal mask in a release; the reporter saw the loss on random
# tokens fall to almost zero.
# [alex-matton/causal-transformer-decoder 1](https://github.com/alex-matton/causal-transformer-decoder/issues/1):
# a decoder without any mask, fit for inference only, trained.

# %% [markdown] trap="08.2" role="predict" core=true symptom="padded batch gives other results than single sequences, attention to padding, key_padding_mask or attn_mask inverted"
# ## Three tokens of nothing
#
# Two questions go into one batch: one of eight tokens, one of five. The shorter row is
# filled up with three *pads*, and the tokenizer hands you a mask, 1 for a token and 0
# for a pad. A fresh `nn.MultiheadAttention` gets the batch; the mask stays in the
# drawer. "Pads carry no meaning," says a colleague, "so attention passes them over."

# %% trap="08.2" role="predict"
guess("08.2", "What share of their attention do the five tokens give to "
      "the three pads?", unit="%")

# %% trap="08.2" role="break"
real = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])    # (B, T)
mha = nn.MultiheadAttention(32, 4, batch_first=True).eval()
x = torch.randn(2, 8, 32)                        # (B, T, d)
repadded = x.clone()
repadded[1, 5:] = torch.randn(3, 32)             # other pads, same tokens
with torch.no_grad():
    before, weights = mha(x, x, x)               # weights: mean over heads
    after, _ = mha(repadded, repadded, repadded)

# %% trap="08.2" role="look"
on_pads = weights[1, :5, 5:].sum(-1).mean()
moved = (before - after)[1, :5].abs().max()
print(f"attention of tokens to pads {on_pads:.0%}")
print(f"with other pads the tokens' results move by {moved:.2f}, "
      f"their standard deviation is {before[1, :5].std():.2f}")

# %% trap="08.2" role="look"
claim("share of the tokens' attention that goes to pads", on_pads,
      above=0.25, below=0.5)
claim("other pads: results of the tokens move by", moved, above=0.1)

# %% trap="08.2" role="look"
measured("08.2", 100 * on_pads, right=(25, 50))

# %% [markdown] trap="08.2" role="repair"
# A softmax gives something to each score, and a pad's score is like any other. In this
# fresh layer the pads take about their share of the places. So the answer to a
# question depends on how long its neighbours in the batch are.
#
# MHA has an argument for it, `key_padding_mask`, with its own polarity: `True` marks
# what to ignore, the opposite of the tokenizer's 1. SDPA wants a mask that broadcasts
# to `(B, H, T, T)`, `True` for keep.

# %% trap="08.2" role="repair"
def heads_of(x):
    """q, k and v (B, H, T, D) of mha."""
    parts = F.linear(x, mha.in_proj_weight, mha.in_proj_bias).chunk(3, -1)
    return (split(part, 4) for part in parts)

keep = (real == 1)[:, None, None, :]             # (B, 1, 1, T): the keys
with torch.no_grad():
    masked, weights = mha(x, x, x, key_padding_mask=real == 0)
    again, _ = mha(repadded, repadded, repadded, key_padding_mask=real == 0)
    by_sdpa = F.scaled_dot_product_attention(*heads_of(x), attn_mask=keep)
    by_sdpa = mha.out_proj(merge(by_sdpa))

# %% trap="08.2" role="repair"
claim("share of the attention that goes to pads, masked",
      weights[1, :, 5:].sum(-1).max(), expected=0)
claim("other pads, masked: results of the tokens move by",
      (masked - again)[1, :5].abs().max(), below=1e-6)
claim("both APIs, each with its own mask: largest gap",
      (masked - by_sdpa).abs().max(), below=1e-5)

# %% [markdown] trap="08.2" role="repair"
# Three masks that SDPA takes without a word. To see the weights, hand it an identity
# matrix as values: the result is then the weights themselves.

# %% trap="08.2" role="repair"
def weights_of(mask):
    """Attention weights (B, H, T, T) of SDPA on x under a mask."""
    with torch.no_grad():
        q, k, _ = heads_of(x)
        values = torch.eye(8).expand(2, 4, 8, 8)
        return F.scaled_dot_product_attention(q, k, values, attn_mask=mask)

inverted = weights_of((real == 0)[:, None, None, :])   # as for MHA
floats = weights_of(real.float()[:, None, None, :])    # added to scores
queries = weights_of((real == 1)[:, None, :, None])    # the wrong axis
shares = {name: w[1, :, :5, 5:].sum(-1).mean().item() for name, w in (
    ("inverted", inverted), ("floats", floats), ("queries", queries))}
print({name: f"{share:.0%}" for name, share in shares.items()})

# %% trap="08.2" role="repair"
claim("inverted: share of the attention that goes to pads",
      shares["inverted"], expected=1, within=1e-4)
claim("inverted: largest weight in the row without any pad",
      inverted[0].abs().max(), expected=0)
claim("floats, or queries masked: smaller of the two shares on pads",
      min(shares["floats"], shares["queries"]), above=0.1)

# %% [markdown] trap="08.2" role="repair"
# Inverted, the short question attends to nothing but pads, and the full row to nothing
# at all: its result is zero. A float mask is *added*, so 1 and 0 merely favour the
# tokens a little. Masked queries silence the pads' own rows, while the tokens go on
# looking at pads. Integers, as they come from the tokenizer, are at least refused.
#
# One more row deserves a thought: one without any token. MHA gives NaN for it, and a
# single NaN in a batch reaches the loss.

# %% trap="08.2" role="repair"
try:
    weights_of(real[:, None, None, :])
    refused = False
except RuntimeError:
    refused = True
with torch.no_grad():
    nothing = mha(x, x, x, key_padding_mask=torch.ones(2, 8) == 1,
                  need_weights=False)[0]

# %% trap="08.2" role="repair"
claim("SDPA refuses a mask of integers", refused, expected=True)
claim("MHA on rows of pads alone: share of NaN",
      nothing.isnan().float().mean(), expected=1)

# %% [markdown] trap="08.2" role="folklore"
# **Told:** hand `scaled_dot_product_attention` the key padding mask of
# `nn.MultiheadAttention`, expanded to four axes. **Measured:** that is its opposite.
# The tokens then attend to pads alone, a row without pads gives zeros, and no error is
# raised.

# %% trap="08.2" role="exercise" points=3 difficulty=2 minutes=10
def decoder_mask(real: torch.Tensor) -> torch.Tensor:
    """Mask for SDPA in a causal model whose rows are padded.

    real: (B, T), 1 for a token and 0 for a pad, as int64, bool or float32.
    Pads stand on the right, on the left or in between. The mask is bool, of
    shape (B, 1, T, T), True where the row's place may look at the column's.
    A token looks at itself and at the tokens before it, not at pads. A pad
    looks at itself and at nothing else, so no row is empty. real stays as
    it is.

    Example: for [[1, 1, 0]] the mask is [[[[True, False, False],
    [True, True, False], [False, False, True]]]].
    """
    # BEGIN SOLUTION
    tokens = real.bool()
    size = real.shape[1]
    before = torch.ones(size, size, dtype=torch.bool).tril()
    pairs = tokens[:, :, None] & tokens[:, None, :]
    itself = torch.eye(size, dtype=torch.bool)
    return (pairs & before | itself)[:, None]
    # END SOLUTION

# %% [markdown] trap="08.2" role="hint"
# 1. Three questions for a pair: is the column not after the row, is the column a token, is the row a token?
# 2. `tokens[:, :, None]` asks it of the row, `tokens[:, None, :]` of the column; `&` joins them.
# 3. Every place may look at itself, token or pad: `| torch.eye(T, dtype=torch.bool)`. An axis for the heads comes last.

# %% [markdown] trap="08.2" role="keep"
# **Keep:** attention does not know what a pad is. Say it with a mask over the *keys*,
# in the polarity of the function that gets it. **In your own code:** run a sequence
# alone and in a padded batch, and compare. **Source:** [torch's documentation of
# nn.MultiheadAttention](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html),
# `key_padding_mask`. **Seen in the wild:**
# [OpenNMT/OpenNMT-py 2532](https://github.com/OpenNMT/OpenNMT-py/pull/2532): batches of
# mixed length gave worse answers; the mask for pads was applied in the first decoding
# step only.

# %% [markdown] trap="08.3" role="predict" symptom="BERT or another masked language model generates badly, perplexity of a masked model, next token from an MLM"
# ## Filling gaps, and writing on
#
# Two models with the same layers learn the same language. Tokens follow a rule in four
# of five cases, else they are thrown. One model is trained like GPT: a causal mask,
# each place asked for its next token. The other is trained like BERT: everything in
# view, some tokens replaced by a `[MASK]`, each masked place asked for its own token.
#
# Asked for a masked token in the middle of a row, the second one pays little more than
# half of what the first pays for a next token. "It knows the language better," says a
# colleague. You let it write on: the text so far, a `[MASK]` behind it.

# %% trap="08.3" role="predict"
guess("08.3", "What does it pay for the token behind the text?",
      choices=["as little as in the middle",
               "more than the causal model",
               "between the two"])

# %% trap="08.3" role="break"
WORDS, MASK, ROW = 8, 8, 8                       # [MASK] is token 8
rule = torch.randperm(WORDS, generator=torch.Generator().manual_seed(0))

def sentences(n):
    """Rows (n, ROW): four of five tokens follow the rule, or luck."""
    columns = [torch.randint(WORDS, (n,))]
    while len(columns) < ROW:
        thrown = torch.randint(WORDS, (n,))
        keeps = torch.rand(n) < 0.8
        columns.append(torch.where(keeps, rule[columns[-1]], thrown))
    return torch.stack(columns, 1)

# %% trap="08.3" role="break"
def gaps_loss(model):
    """BERT's: tokens hidden with probability 0.15, each asked for."""
    ids = sentences(64)
    hidden = torch.rand(ids.shape) < 0.15
    logits = model(ids.masked_fill(hidden, MASK))
    return nll(logits[hidden], ids[hidden])

def next_loss(model):
    """GPT's: each place is asked for the next token, under a mask."""
    ids = sentences(64)
    return nll(model(ids[:, :-1], is_causal=True), ids[:, 1:])

# %% trap="08.3" role="break"
bert, gpt = LM(WORDS + 1, ROW), LM(WORDS + 1, ROW)
train(bert, gaps_loss, steps=300)
train(gpt, next_loss, steps=300)

# %% trap="08.3" role="look" tags=["plumbing"]
@torch.no_grad()
def behind(model, ids, visible=lambda ids, t: ids[:, :t]):
    """Mean nats for tokens 1.., each from the ones before and a [MASK]."""
    costs = []
    for t in range(1, ids.shape[1]):
        text = visible(ids, t)
        mask = torch.full((len(ids), 1), MASK)
        costs.append(nll(model(torch.cat([text, mask], 1))[:, t],
                         ids[:, t]))
    return torch.stack(costs).mean().item()

# %% trap="08.3" role="look"
test = sentences(2000)
middle = test.clone()
middle[:, 4] = MASK
with torch.no_grad():
    in_gap = nll(bert(middle)[:, 4], test[:, 4]).item()
    causal = nll(gpt(test[:, :-1], is_causal=True), test[:, 1:]).item()
written = behind(bert, test)
print(f"masked, in a gap {in_gap:.2f}   causal, next {causal:.2f}   "
      f"masked, behind the text {written:.2f}")

# %% trap="08.3" role="look"
claim("nats for a masked token with both neighbours in view, less those "
      "of the causal model for a next one", in_gap - causal, below=-0.2)
claim("nats of the masked model behind the text, less those of the "
      "causal model", written - causal, above=0.01)

# %% trap="08.3" role="look"
measured("08.3", 1)

# %% [markdown] trap="08.3" role="repair"
# A gap has two neighbours, and the one behind it says a lot: whoever sees what came
# next can count back. The end of a text has no such neighbour. There the question is
# harder for everybody; the law of this language sets the price, its entropy. And the
# masked model was trained on whole rows: it never met a shorter one, and of the places
# that it was asked for, one in eight was the last.
#
# The two numbers answer different questions. To compare the models, ask both the same
# one: the next token, from what stands before it.

# %% trap="08.3" role="repair"
p_rule = 0.8 + 0.2 / WORDS
entropy = -(p_rule * math.log(p_rule)
            + (WORDS - 1) * 0.2 / WORDS * math.log(0.2 / WORDS))
print(f"entropy of the next token {entropy:.2f} nats")

# %% trap="08.3" role="repair"
claim("causal model above the entropy by, in nats", causal - entropy,
      above=-0.05, below=0.1)
claim("masked model in the gap below that entropy by, in nats",
      entropy - in_gap, above=0.2)

# %% [markdown] trap="08.3" role="repair"
# A worse mistake runs without error, too: the masked model gets the whole row without
# any mask, and its logits at place t are read as the prediction of t + 1. But it was
# asked for place t itself, and mostly names what stands there.

# %% trap="08.3" role="repair"
with torch.no_grad():
    logits = bert(test)
shifted = nll(logits[:, :-1], test[:, 1:]).item()
copied = (logits.argmax(-1) == test).float().mean().item()
print(f"logits read as the next token: {shifted:.1f} nats; "
      f"they name the token in view in {copied:.0%}")

# %% trap="08.3" role="repair"
claim("nats of logits read one place off; guessing pays ln 8, 2.08",
      shifted, above=2.2)
claim("share of places at which it names the token in view", copied,
      above=0.5)

# %% trap="08.3" role="exercise" points=3 difficulty=3 minutes=15
def next_token_nll(model, ids: torch.Tensor, mask_id: int) -> torch.Tensor:
    """Nats (N, T - 1) that a masked model pays for each next token.

    ids: (N, T) int64, T >= 2, left as they are. model maps tokens (N, t),
    1 <= t <= T, to logits (N, t, vocab), with everything in view. Entry
    [n, t - 1] is -ln p of ids[n, t]: the model sees the tokens before place
    t, a mask_id at place t and nothing behind it, and is asked at place t.
    The logits may be large: no p becomes 0 on the way. No graph is built.
    """
    # BEGIN SOLUTION
    rows, length = ids.shape
    found = []
    mask = torch.full((rows, 1), mask_id)
    with torch.no_grad():
        for t in range(1, length):
            logits = model(torch.cat([ids[:, :t], mask], 1))[:, t]
            found.append(F.cross_entropy(logits, ids[:, t],
                                         reduction="none"))
    return torch.stack(found, 1)
    # END SOLUTION

# %% [markdown] trap="08.3" role="hint"
# 1. The model looks everywhere, so what it must not see may not be in the row: one call for each t, with `ids[:, :t]` and one mask.
# 2. Its logits at place t belong to the token at place t. Nothing is shifted.
# 3. `F.cross_entropy(logits, ids[:, t], reduction="none")` gives a number a row; stack them along axis 1.

# %% [markdown] trap="08.3" role="keep"
# **Keep:** a loss belongs to its question. A masked model fills gaps with both sides in
# view; for the next token take a model that was asked for it. **In your own code:**
# before you compare two losses, write down what each one saw. **Source:** [Devlin et
# al. 2018, "BERT"](https://arxiv.org/abs/1810.04805), section 3.1. **Seen in the wild:**
# [huggingface/transformers 13818](https://github.com/huggingface/transformers/issues/13818):
# BERT and RoBERTa asked for next tokens: a very large perplexity, and simple sentences
# ranked wrong. [huggingface/transformers 3927](https://github.com/huggingface/transformers/issues/3927):
# a masked perplexity set beside the one of GPT-2.

# %% [markdown] trap="08.4" role="predict" symptom="to come"
# ## Trap 08.4, to come

# %% [markdown] trap="08.5" role="predict" symptom="to come"
# ## Trap 08.5, to come

# %% [markdown] trap="08.6" role="predict" symptom="to come"
# ## Trap 08.6, to come

# %% [markdown] trap="08.7" role="predict" symptom="to come"
# ## Trap 08.7, to come

# %% [markdown] trap="08.8" role="predict" symptom="to come"
# ## Trap 08.8, to come

# %% [markdown] trap="08.9" role="predict" symptom="scaled_dot_product_attention gives other results at each call in eval mode, dropout_p, self.training"
# ## A tenth of the weights
#
# You replace a hand-written attention by `F.scaled_dot_product_attention` and hand it
# the dropout of the old one, `dropout_p=0.1`. In training it drops each attention
# weight with that probability p and divides the others by 1 - p. Now you serve: `eval()`,
# `no_grad()`, the same input twice.

# %% trap="08.9" role="predict"
guess("08.9", "How far do the two results differ, root mean square, as a "
      "share of the result's own size?", unit="%")

# %% trap="08.9" role="break"
class Attention(nn.Module):
    """Self-attention of 4 heads; p is the dropout of its weights."""

    def __init__(self, d=64, p=0.1):
        super().__init__()
        self.qkv, self.p = nn.Linear(d, 3 * d, bias=False), p

    def rate(self):
        return self.p                            # whatever the mode

    def forward(self, x):                        # x (B, T, d)
        q, k, v = (split(part, 4) for part in self.qkv(x).chunk(3, -1))
        return merge(F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.rate()))

layer = Attention().eval()
x = torch.randn(8, 32, 64)
with torch.no_grad():
    first, second = layer(x), layer(x)

# %% trap="08.9" role="look"
def size(t):
    return t.square().mean().sqrt()

difference = size(first - second) / size(first)
print(f"two calls in eval mode differ by {difference:.0%} of their size")

# %% trap="08.9" role="look"
claim("difference of two calls in eval mode, over the result's size",
      difference, above=0.35, below=0.6)

# %% trap="08.9" role="look"
measured("08.9", 100 * difference, right=(35, 60))

# %% [markdown] trap="08.9" role="repair"
# SDPA is a function. It knows no mode and does what `dropout_p` says (stage 5). And a
# tenth is not little: where the values scatter around zero, as here, each weight that
# is dropped or enlarged changes the sum by its own share, and two calls differ by
# $\sqrt{2p}$ of their size, however long the row is.
#
# The mode of the *module* has to decide. The grad mode is no stand-in for it: in eval
# mode with gradients, as for a saliency map, it drops.

# %% trap="08.9" role="repair"
class ByMode(Attention):
    def rate(self):
        return self.p if self.training else 0.0

class ByGrad(Attention):
    def rate(self):
        return self.p if torch.is_grad_enabled() else 0.0

gaps = {}
for kind in (ByMode, ByGrad):
    module = kind().eval()
    gaps[kind.__name__] = (module(x) - module(x)).abs().max().item()
mha = nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True).eval()
gaps["MHA"] = (mha(x, x, x)[0] - mha(x, x, x)[0]).abs().max().item()

# %% trap="08.9" role="repair"
claim("the rule of the root of 2p, less what was measured",
      math.sqrt(2 * 0.1) - difference, expected=0, within=0.04)
claim("by the module's mode, and MHA: gap of two calls in eval mode",
      max(gaps["ByMode"], gaps["MHA"]), expected=0)
claim("by grad mode: gap of two calls in eval mode with gradients",
      gaps["ByGrad"], above=0.01)

# %% [markdown] trap="08.9" role="repair"
# The same function takes the axes as they come, too. Forget the transpose, and
# `(B, T, H, D)` is read as T heads of H tokens: each token attends among its own heads,
# and no token meets another. The shape of the result is the right one.

# %% trap="08.9" role="repair"
def without_transpose(x):
    """Attention on q, k and v (B, T, H, D)."""
    q, k, v = (part.unflatten(-1, (4, 16))
               for part in layer.qkv(x).chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v).flatten(2)

changed = x.clone()
changed[:, -1] += 1                              # the last token
with torch.no_grad():
    apart = (without_transpose(changed) - without_transpose(x))[:, :-1]
    layer.p = 0.0
    together = (layer(changed) - layer(x))[:, :-1]

# %% trap="08.9" role="repair"
claim("no transpose: other tokens move when the last one changes, by",
      apart.abs().max(), below=1e-6)
claim("right axes: other tokens move when the last one changes, by",
      together.abs().max(), above=1e-3)

# %% [markdown] trap="08.9" role="folklore"
# **Told:** dropout in SDPA only works in training mode. **Measured:** in eval mode and
# under `no_grad` it drops as well. `nn.MultiheadAttention` is a module and looks at its
# mode.

# %% trap="08.9" role="exercise" points=4 difficulty=3 minutes=20
def self_attention(x: torch.Tensor, weight: torch.Tensor, heads: int,
                   p: float, training: bool) -> torch.Tensor:
    """Self-attention (B, T, d) of several heads, with dropout.

    x: (B, T, d), weight: (3d, d), float32; F.linear(x, weight) holds q, k
    and v in this order, each the heads side by side, d / heads numbers a
    head. Every token looks at all tokens of its row. With training True
    each attention weight is zeroed with probability p, 0 <= p < 1, one by
    one, anew at every call, and the others are divided by 1 - p. With
    training False nothing is dropped and nothing drawn, whether gradients
    are on or off. x and weight stay as they are; gradients reach both.
    """
    # BEGIN SOLUTION
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2)
               for part in F.linear(x, weight).chunk(3, -1))
    seen = F.scaled_dot_product_attention(q, k, v,
                                          dropout_p=p if training else 0.0)
    return seen.transpose(1, 2).flatten(2)
    # END SOLUTION

# %% [markdown] trap="08.9" role="hint"
# 1. `chunk(3, -1)` gives q, k and v, each (B, T, d). Split d into (heads, d / heads) and bring the heads before the tokens.
# 2. `dropout_p` is p in training and zero otherwise. Ask the argument, not the grad mode.
# 3. Back: the heads behind the tokens again, then flatten the last two axes.

# %% [markdown] trap="08.9" role="keep"
# **Keep:** a function has no mode. Each `dropout_p=` needs `if self.training`. **In your
# own code:** call the model twice in eval mode and compare. **Source:** [torch's
# documentation of
# scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html)
# warns of it. **Seen in the wild:**
# [huggingface/pytorch-image-models 1978](https://github.com/huggingface/pytorch-image-models/pull/1978):
# mended in several models, after the same in nanoGPT; "a recurring bug".
# [wenet-e2e/wenet 2699](https://github.com/wenet-e2e/wenet/issues/2699): dropout on in
# evaluation. [pytorch/pytorch 124464](https://github.com/pytorch/pytorch/issues/124464)
# led to the warning.

# %% [markdown] trap="08.10" role="predict" core=true symptom="KV cache: generation with cache differs from without, is_causal=True with one query, positions restart"
# ## The newest token asks
#
# A causal model writes token by token. Keys and values of old tokens do not change, so
# you keep them in a *cache* and compute only the newest token: one query, against five
# keys, its own the last. The attention layer stays as it was in training, with
# `is_causal=True`.

# %% trap="08.10" role="predict"
guess("08.10", "Which keys does the newest token look at?",
      choices=["all five: all of them are in its past",
               "the first one only", "its own only"])

# %% trap="08.10" role="break"
q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))    # (B, H, T, D)
whole = F.scaled_dot_product_attention(q, k, v, is_causal=True)
newest = F.scaled_dot_product_attention(q[:, :, -1:], k, v,
                                        is_causal=True)

# %% trap="08.10" role="look"
gap = (newest - whole[:, :, -1:]).abs().max()
to_first = (newest - v[:, :, :1]).abs().max()
print(f"newest token, with the cache and without: gap {gap:.2f}")
print(f"its result and the first token's value: gap {to_first:.0e}")

# %% trap="08.10" role="look"
claim("newest token with cache and without: gap", gap, above=0.1)
claim("its result less the value of the first token", to_first,
      below=1e-6)

# %% trap="08.10" role="look"
measured("08.10", 1)

# %% [markdown] trap="08.10" role="repair"
# `is_causal=True` draws the triangle from the *upper left* corner: query 0 sees key 0.
# Where queries and keys are equally many, that is right. With a cache, query 0 is the
# newest token and key 0 the oldest, and the triangle belongs into the *lower right*
# corner. One query needs no mask at all. Several, as when a prompt arrives in pieces,
# need the triangle moved by the number of cached tokens.

# %% trap="08.10" role="repair"
from torch.nn.attention.bias import causal_lower_right

one = F.scaled_dot_product_attention(q[:, :, -1:], k, v)
shifted = torch.ones(3, 5, dtype=torch.bool).tril(diagonal=5 - 3)
print(shifted.int())
three = [F.scaled_dot_product_attention(q[:, :, -3:], k, v, attn_mask=mask)
         for mask in (shifted, causal_lower_right(3, 5))]

# %% trap="08.10" role="repair"
claim("one query without a mask: gap to the whole row's run",
      (one - whole[:, :, -1:]).abs().max(), below=1e-5)
claim("three queries, lower right, two ways: gap to the whole row's run",
      max((y - whole[:, :, -3:]).abs().max() for y in three), below=1e-5)

# %% [markdown] trap="08.10" role="repair"
# The cache has a second seam: *places*. Without a mask and without places attention
# cannot tell the order of its keys: shuffled keys and values give the same result.
# Llama and many others turn queries and keys by an angle that grows with the place, a
# *rotary embedding* (RoPE): pairs of numbers are turned like the hands of a clock, each
# pair at its own speed. Turned by a and by b, a query and a key meet at an angle of
# a - b: the score depends on the distance alone.

# %% trap="08.10" role="repair"
def rotate(x, place):
    """RoPE: x (B, H, n, D), turned for the places (n,)."""
    half = x.shape[-1] // 2
    speed = 10000.0 ** (-torch.arange(half) / half)
    angle = place[:, None] * speed               # (n, D/2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(),
                      a * angle.sin() + b * angle.cos()], -1)

order = torch.randperm(5)
shuffled = F.scaled_dot_product_attention(q, k[:, :, order],
                                          v[:, :, order])
plain = F.scaled_dot_product_attention(q, k, v)
place = torch.arange(5)
near, far = (rotate(q, place + start) @ rotate(k, place + start).mT
             for start in (0, 100))

# %% trap="08.10" role="repair"
claim("no places, keys and values shuffled: gap",
      (shuffled - plain).abs().max(), below=1e-5)
claim("RoPE, all places later by 100: largest change of a score",
      (near - far).abs().max(), below=1e-3)

# %% [markdown] trap="08.10" role="repair"
# With the cache the newest token has place 4. A function that counts from 0 at each
# call gives it place 0, and the distances to all old keys are wrong by four.

# %% trap="08.10" role="repair"
rotated = rotate(k, place)                       # as the cache holds them
full = F.scaled_dot_product_attention(rotate(q, place), rotated, v,
                                      is_causal=True)[:, :, -1:]
gaps = {}
for start in (4, 0):
    turned = rotate(q[:, :, -1:], torch.tensor([start]))
    last = rotate(k[:, :, -1:], torch.tensor([start]))
    keys = torch.cat([rotated[:, :, :4], last], 2)
    y = F.scaled_dot_product_attention(turned, keys, v)
    gaps[start] = (y - full).abs().max().item()
print({f"place {start}": f"{gap:.1e}" for start, gap in gaps.items()})

# %% trap="08.10" role="repair"
claim("newest token at place 4: gap to the whole row's run", gaps[4],
      below=1e-5)
claim("newest token at place 0: gap to the whole row's run", gaps[0],
      above=1e-3)

# %% [markdown] trap="08.10" role="repair"
# Below, eight tokens. Before you move a control, say which keys the newest token may
# look at: with the causal mask and one token asked, from either corner; with the mask
# that MHA would want; with pads on the left.

# %% role="explore" explorer="attention_mask"
from dlsys_helpers.explorers.attention_mask import attention_mask

attention_mask

# %% trap="08.10" role="exercise" points=4 difficulty=3 minutes=20
def decode_step(q, k, v, cache: dict, rotate) -> torch.Tensor:
    """Causal attention of the n newest tokens, with a cache and RoPE.

    q, k, v: (B, H, n, D) of the new tokens, n >= 1, float32, in memory in
    any order, left as they are. cache: a dict, empty at the first step.
    After each step its "k" and "v" hold the keys and values of all tokens
    so far, (B, H, t, D), the keys turned. rotate(x, place) returns x (B,
    H, n, D) turned for the places (n,), int64, counted from 0 at the first
    token of all. Queries and keys are turned, values are not. A token
    looks at itself and at all before it. The result (B, H, n, D) is what
    the whole row gives for these tokens in one run. Two caches know
    nothing of each other.
    """
    # BEGIN SOLUTION
    past = cache["k"].shape[2] if cache else 0
    n = q.shape[2]
    place = torch.arange(past, past + n)
    k = rotate(k, place)
    if cache:
        k = torch.cat([cache["k"], k], 2)
        v = torch.cat([cache["v"], v], 2)
    cache["k"], cache["v"] = k, v
    keep = torch.ones(n, past + n, dtype=torch.bool).tril(past)
    return F.scaled_dot_product_attention(rotate(q, place), k, v,
                                          attn_mask=keep)
    # END SOLUTION

# %% [markdown] trap="08.10" role="hint"
# 1. How many tokens came before? The third axis of `cache["k"]` says it; an empty cache has none. The new places begin there.
# 2. Turn the new keys, join them to the cache along axis 2, store, then attend.
# 3. Query i may see keys 0 to past + i: `torch.ones(n, past + n, dtype=torch.bool).tril(past)`.

# %% [markdown] trap="08.10" role="keep"
# **Keep:** with a cache the new queries are the *last* rows of the whole triangle. The
# mask and the places begin where the cache ends. **In your own code:** run a prompt at
# once and in pieces, and compare the logits. **Source:** [torch's documentation of
# scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html);
# [Su et al. 2021, "RoFormer"](https://arxiv.org/abs/2104.09864) for RoPE. **Seen in the
# wild:** [pytorch/pytorch 144858](https://github.com/pytorch/pytorch/issues/144858): a
# single query saw the earliest key only, and each step gave the same vector.
# [pytorch/pytorch 110144](https://github.com/pytorch/pytorch/issues/110144): the same
# with two new tokens on a cache of four.

# %% [markdown] trap="08.11" role="predict" symptom="transformer predictions depend on the batch, accuracy changes with batch size, batch_first"
# ## Eight rows of a digit
#
# You read a digit as eight tokens, its rows of eight pixels, and put two of torch's
# encoder layers on them. It trains in seconds and reads about nine of ten test digits,
# in batches of 32. Nothing in it normalises over the batch, dropout is off, and you
# call `eval()`.
#
# Then somebody sends one digit at a time.

# %% trap="08.11" role="predict"
guess("08.11", "What share of the test digits does it read one by one?",
      choices=["the same: no part of it looks at the batch",
               "less, by 10 points or more",
               "a little more: no neighbours disturb"])

# %% trap="08.11" role="break"
class RowReader(nn.Module):
    """The 8 rows of a digit as 8 tokens, through two encoder layers."""

    def __init__(self, **order):
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.place = nn.Parameter(0.1 * torch.randn(8, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, **order)
        self.encoder = nn.TransformerEncoder(layer, 2,
                                             enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x):                        # x (N, 64)
        h = self.embed(x.view(-1, 8, 8)) + self.place
        return self.head(self.encoder(h).mean(1))

# %% trap="08.11" role="break"
x_train, y_train, x_test, y_test = digits()      # (1300, 64), (497, 64)
reader = RowReader()
fit(reader, x_train, y_train, steps=200, lr=5e-3, batch=32)
reader.eval()

# %% trap="08.11" role="look" tags=["plumbing"]
@torch.no_grad()
def share_read(model, batch, order=None):
    """Share of the test digits read in batches, in this order."""
    order = torch.arange(497) if order is None else order
    right = [(model(x_test[rows]).argmax(1) == y_test[rows]).sum()
             for rows in order.split(batch)]
    return (sum(right) / 497).item()

# %% trap="08.11" role="look"
shares = {batch: share_read(reader, batch) for batch in (1, 32, 497)}
by_class = share_read(reader, 32, order=y_test.argsort())
print({f"batches of {n}": f"{share:.2f}" for n, share in shares.items()})
print(f"batches of 32, sorted by class: {by_class:.2f}")

# %% trap="08.11" role="look"
claim("share read in batches of 32", shares[32], above=0.85)
claim("share read one by one, less that in batches of 32",
      shares[1] - shares[32], below=-0.1)
claim("share read sorted by class, less that in mixed batches",
      by_class - shares[32], below=-0.04)

# %% trap="08.11" role="look"
measured("08.11", 1)

# %% [markdown] trap="08.11" role="repair"
# Torch's encoder layers expect `(T, N, d)`, tokens first, and take `(N, T, d)` as it
# comes: no shape tells them apart. So attention runs along the wrong axis. Row 3 of a
# digit never meets row 4 of the same digit; it looks at row 3 of all other digits in
# the batch. The model learned to read a digit by its company.
#
# `batch_first=True` says what comes first.

# %% trap="08.11" role="repair"
mended = RowReader(batch_first=True)
fit(mended, x_train, y_train, steps=200, lr=5e-3, batch=32)
mended.eval()
again = [share_read(mended, batch) for batch in (1, 32, 497)]
print("batch_first:", *(f"{share:.2f}" for share in again))

# %% trap="08.11" role="repair"
claim("batch_first: smallest share read, at any of three batch sizes",
      min(again), above=0.88)
claim("batch_first: largest less smallest share", max(again) - min(again),
      below=0.005)

# %% [markdown] trap="08.11" role="repair"
# A test finds it without labels and without training: change the other rows and look
# whether row 0 moves. Two tests that come to mind first are blind here. Permute the
# batch: the results are permuted with it. Repeat one row: a mean over equal values is
# that value.

# %% trap="08.11" role="repair"
def first_row(batch, model=reader):
    with torch.no_grad():
        return model(batch)[0]

batch = x_test[:32]
company = torch.cat([batch[:1], x_test[32:63]])
with torch.no_grad():
    permuted = reader(batch.flip(0)).flip(0) - reader(batch)
moved = {"other company": first_row(company) - first_row(batch),
         "permuted": permuted,
         "repeated": first_row(batch[:1].repeat(32, 1))
         - first_row(batch[:1])}
print({test: f"{gap.abs().max():.0e}" for test, gap in moved.items()})

# %% trap="08.11" role="repair"
claim("other company: a logit of row 0 moves by",
      moved["other company"].abs().max(), above=0.05)
claim("blind tests, permuted and repeated: a logit moves by",
      max(moved[test].abs().max() for test in ("permuted", "repeated")),
      below=1e-4)
claim("batch_first, other company: a logit of row 0 moves by",
      (first_row(company, mended) - first_row(batch, mended)).abs().max(),
      below=1e-5)

# %% trap="08.11" role="exercise" points=3 difficulty=2 minutes=15
def batch_dependence(model: nn.Module, x: torch.Tensor,
                     others: torch.Tensor) -> float:
    """How far the output for x[0] moves when it gets other neighbours.

    model maps (N, ...) to (N, ...), one output a row. x: (N, ...), N >= 2;
    others: (N - 1, ...), the rows that take the place of x[1:]. The result
    is the largest absolute change of a number of output 0, measured in eval
    mode and without building a graph. The model comes back as it was: every
    module in its former mode, weights and buffers untouched. It may write
    into what it is given, but x and others stay as they were.

    Example: a model that subtracts the mean of the batch, x [[1.], [3.]],
    others [[7.]]: the output for row 0 moves from -1 to -3, the result is
    2.
    """
    # BEGIN SOLUTION
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        before = model(x.clone())[0]
        after = model(torch.cat([x[:1], others]))[0]
    for module, mode in modes:
        module.training = mode
    return (after - before).abs().max().item()
    # END SOLUTION

# %% [markdown] trap="08.11" role="hint"
# 1. Two calls: once with `x`, once with `torch.cat([x[:1], others])`. Only output 0 counts.
# 2. In train mode dropout looks like a dependence, and BatchNorm moves its buffers: `model.eval()` first.
# 3. A model's parts may be in different modes. Keep `(module, module.training)` for all of `model.modules()` and put them back one by one.

# %% [markdown] trap="08.11" role="keep"
# **Keep:** attention mixes along the axis that it takes for the sequence. If that is
# the batch, a model looks healthy as long as the company stays the same. **In your own
# code:** replace the other rows of a batch and compare row 0. **Source:** [torch's
# documentation of
# nn.TransformerEncoderLayer](https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoderLayer.html):
# `batch_first` is False by default. **Seen in the wild:**
# [IBM/TabFormer 14](https://github.com/IBM/TabFormer/pull/14): the batch stood in the
# first dimension, "which causes an incorrect computation"; merged.
# [Exorust/TorchLeet 5](https://github.com/Exorust/TorchLeet/issues/5): an exercise
# without `batch_first` trains to a high loss.

# %% [markdown] role="concept"
# ## Further: what the root of D is for
#
# A score is a sum of `D` products. Where the numbers of queries and keys are N(0, 1),
# its variance is `D`: the larger a head, the larger its scores, and the closer the
# softmax comes to choosing a single key. Dividing by the root of `D` takes that away.

# %% role="concept"
def mean_entropy(scores):
    """Mean entropy of the softmax weights of each row, in nats."""
    return torch.special.entr(scores.softmax(-1)).sum(-1).mean().item()

entropies = {}
for size in (16, 256):
    scores = torch.randn(200, size) @ torch.randn(100, size).T
    entropies[size] = mean_entropy(scores), mean_entropy(
        scores / math.sqrt(size))
print({f"D {size}": f"raw {raw:.2f}, divided {divided:.2f}"
       for size, (raw, divided) in entropies.items()})

# %% role="concept"
claim("D 256, raw scores: entropy over 100 keys, of at most ln 100, 4.61",
      entropies[256][0], below=1)
claim("the same scores over the root of D: entropy", entropies[256][1],
      above=3.9)
claim("divided: entropy at D 256 less that at D 16",
      entropies[256][1] - entropies[16][1], expected=0, within=0.15)

# %% [markdown] role="concept"
# A softmax that has chosen passes almost no gradient: the slope of a weight is
# p (1 - p). Move `d` below and guess each time how many keys still count.

# %% role="explore" explorer="softmax_scale"
from dlsys_helpers.explorers.softmax_scale import softmax_scale

softmax_scale

# %% [markdown] role="concept"
# ### Heads divide, they do not add
#
# More heads of fewer numbers each: weights and multiplications of the projections stay
# the same, and so do those of scores and sums. What grows is the number of weights that
# attention computes, one square per head.

# %% role="concept"
layers = {heads: nn.MultiheadAttention(64, heads) for heads in (1, 8)}
count = {heads: sum(p.numel() for p in layer.parameters())
         for heads, layer in layers.items()}
_, one_pattern = layers[1](*[torch.randn(5, 1, 64)] * 3)
_, patterns = layers[8](*[torch.randn(5, 1, 64)] * 3,
                        average_attn_weights=False)

# %% role="concept"
claim("parameters with 8 heads less those with one",
      count[8] - count[1], expected=0)
claim("attention weights with 8 heads over those with one",
      patterns.numel() / one_pattern.numel(), expected=8)

# %% [markdown] role="concept"
# ### Three ways to say where a token stands
#
# | places | added or turned | beyond the trained length |
# |---|---|---|
# | learned, `nn.Embedding` | added to the token | no such row: an error |
# | sinusoidal | added to the token | defined for each place |
# | RoPE (trap 08.10) | queries and keys turned | defined for each place |
#
# Sinusoids have one property of RoPE: a shift by k places is the same turn everywhere.
# And *defined* is not *good*: whether a model can use a place that it has never met
# has to be measured.

# %% role="concept"
def sinusoids(places, d=32):
    """(places, d): sines, then cosines, of angles with d / 2 speeds."""
    speed = 10000.0 ** (-torch.arange(0, d, 2) / d)
    angle = torch.arange(places)[:, None] * speed
    return torch.cat([angle.sin(), angle.cos()], 1)

table = sinusoids(600)
five = 5 * 10000.0 ** (-torch.arange(0, 32, 2) / 32)     # angles of a shift
sine, cosine = table[500:550].chunk(2, 1)
turned = torch.cat([sine * five.cos() + cosine * five.sin(),
                    cosine * five.cos() - sine * five.sin()], 1)
gap = (turned - table[505:555]).abs().max()

# %% role="concept"
try:
    LM(VOCAB, places=8)(torch.zeros(1, 9, dtype=torch.int64))
    learned_ends = False
except RuntimeError:
    learned_ends = True

# %% role="concept"
claim("learned places: a row longer than the table raises an error",
      learned_ends, expected=True)
claim("sinusoids at places from 500 on, turned by the angles of five "
      "places: gap to those five later", gap, below=1e-3)

# %% [markdown] role="concept"
# A small measurement: one causal attention layer learns to name the token two places
# back, on rows of 16 tokens thrown with a die of 8 faces. Then it reads longer rows.

# %% role="concept"
class Back(nn.Module):
    """One causal attention layer; places by sinusoids or by RoPE."""

    def __init__(self, rope, d=32):
        super().__init__()
        self.rope, self.token = rope, nn.Embedding(8, d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 8)

    def forward(self, ids):                      # ids (B, T)
        h, place = self.token(ids), torch.arange(ids.shape[1])
        h = h if self.rope else h + sinusoids(len(place))
        q, k, v = (split(part, 2) for part in self.qkv(h).chunk(3, -1))
        if self.rope:
            q, k = rotate(q, place), rotate(k, place)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(self.norm(self.out(merge(seen))))

# %% role="concept" tags=["plumbing"]
def two_back(model, rows=32, length=16):
    """The loss of naming the token two places back, on fresh rows."""
    ids = torch.randint(8, (rows, length))
    return nll(model(ids)[:, 2:], ids[:, :-2])

@torch.no_grad()
def named(model, length):
    """Share of right answers at the last 8 places of longer rows."""
    ids = torch.randint(8, (64, length))
    right = model(ids)[:, 2:].argmax(-1) == ids[:, :-2]
    return right[:, -8:].float().mean().item()

reached = {}
for kind, rope in (("sinusoids", False), ("RoPE", True)):
    model = Back(rope)
    train(model, two_back, steps=200)
    reached[kind] = {length: named(model, length)
                     for length in (16, 32, 64, 256)}
    print(kind, {n: f"{share:.2f}" for n, share in reached[kind].items()})

# %% role="concept"
claim("rows of 16, as trained: smaller share named",
      min(reached[kind][16] for kind in reached), above=0.95)
claim("rows of 256: larger share named at the end, of luck's 0.125",
      max(reached[kind][256] for kind in reached), below=0.5)

# %% [markdown] role="concept"
# Both are right on the length they learned and little better than luck at 16 times as
# much. That is one small layer and one task. To read longer texts with RoPE, large models
# squeeze the new places into the old range and are trained a little further
# ([Chen et al. 2023](https://arxiv.org/abs/2306.15595)).

# %% [markdown] role="concept"
# ### BERT, GPT, and both in one
#
# | | mask | asked for | good for |
# |---|---|---|---|
# | encoder (BERT) | pads only | hidden tokens | reading: labels, search |
# | decoder (GPT) | causal | the next token | writing |
# | encoder and decoder (T5) | pads; causal; none between | the next token of the answer | translating, summing up |
#
# The two parts of the third kind meet in *cross-attention*: queries from the answer,
# keys and values from the text. Blocks are the same in all three. BERT's norms stand
# after the sums, GPT-2's before (stage 5).

# %% role="concept"
cross = nn.MultiheadAttention(32, 4, batch_first=True)
answer, text = torch.randn(2, 3, 32), torch.randn(2, 7, 32)
read, looked = cross(answer, text, text)
print("result", tuple(read.shape), "weights", tuple(looked.shape))

# %% role="concept"
claim("cross-attention: keys that each token of the answer looks at",
      looked.shape[-1], expected=7)

# %% [markdown] role="concept"
# ### A GPT in seconds
#
# Python's own help pages are a text that you have already. The class `LM` from above,
# two blocks, reads them letter by letter under a causal mask. Before training it writes
# letters thrown with a die, behind it something with the shape of words.

# %% role="concept"
from pydoc_data.topics import topics

text = "".join(topics[name] for name in sorted(topics))[:200_000]
letters = sorted(set(text))
number = {letter: k for k, letter in enumerate(letters)}
ids = torch.tensor([number[letter] for letter in text])
SPAN = 32                                        # letters in view

def letters_loss(model):
    """The loss of next letters on 16 pieces of the text."""
    start = torch.randint(len(ids) - SPAN, (16, 1))
    rows = ids[start + torch.arange(SPAN + 1)]
    return nll(model(rows[:, :-1], is_causal=True), rows[:, 1:])

# %% role="concept"
@torch.no_grad()
def write(model, prompt, n=80):
    """n letters behind the prompt, each drawn from what model predicts."""
    row = torch.tensor([[number[letter] for letter in prompt]])
    for _ in range(n):
        logits = model(row[:, -SPAN:], is_causal=True)[0, -1]
        drawn = torch.multinomial(logits.softmax(-1), 1)
        row = torch.cat([row, drawn[None]], 1)
    return "".join(letters[k] for k in row[0])

writer = LM(len(letters), SPAN, layers=2)
fresh = write(writer, "The ")
losses = train(writer, letters_loss, steps=300, lr=5e-3)
start, end = losses[0], sum(losses[-20:]) / 20
print(repr(fresh), repr(write(writer, "The ")), sep="\n")

# %% role="concept"
claim("loss at the start less ln of the number of letters",
      start - math.log(len(letters)), expected=0, within=0.5)
claim("loss after 300 steps, in nats a letter", end, below=2.7)

# %% [markdown] role="concept"
# ### What a cache weighs, and grouped queries
#
# The cache of trap 08.10 keeps a key and a value for each token, layer and head:
#
# $$\mathrm{bytes} = 2 \cdot \mathrm{layers} \cdot H_{kv} \cdot D \cdot T \cdot \mathrm{bytes\ per\ number}$$
#
# With *grouped queries* (GQA) several heads of queries share one head of keys and
# values. Here for 32 layers of 32 heads with 128 numbers, in 16 bits, as in Llama 2 of
# 7 billion weights.

# %% role="concept"
def kv_cache_bytes(tokens, layers=32, kv_heads=32, head_dim=128, size=2):
    """Bytes of keys and values of one sequence."""
    return 2 * layers * kv_heads * head_dim * tokens * size

print(f"a token {kv_cache_bytes(1) / 1e6:.3f} MB, 4,096 tokens "
      f"{kv_cache_bytes(4096) / 1e9:.2f} GB, with 8 groups "
      f"{kv_cache_bytes(4096, kv_heads=8) / 1e9:.2f} GB")
q = torch.randn(1, 8, 5, 16)                     # 8 heads of queries
k, v = torch.randn(2, 1, 2, 5, 16)               # 2 of keys and values
grouped = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
repeated = attention(q, *(t.repeat_interleave(4, dim=1) for t in (k, v)))

# %% role="concept"
claim("MB of cache for one token, 32 heads", kv_cache_bytes(1) / 1e6,
      expected=0.524, within=0.001)
claim("GB for 4,096 tokens, 32 heads", kv_cache_bytes(4096) / 1e9,
      expected=2.147, within=0.001)
claim("grouped queries and keys repeated four times: largest gap",
      (grouped - repeated).abs().max(), below=1e-5)

# %% [markdown] role="concept"
# ### The same in a library
#
# Hugging Face's `transformers` builds a Llama from a configuration, without any
# download. Its layers are those of this stage: RoPE with the same pairs, grouped
# queries, a cache. One of its attention layers, written with what stands above, gives
# the same numbers; and its own decoding from a cache agrees with the whole run.

# %% role="concept"
from transformers import LlamaConfig, LlamaForCausalLM

llama = LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=64)).eval()

def by_hand(layer, h):
    """Causal attention with RoPE and groups, with the layer's weights."""
    place = torch.arange(h.shape[1])
    q = rotate(split(layer.q_proj(h), 4), place)
    k = rotate(split(layer.k_proj(h), 2), place)
    seen = F.scaled_dot_product_attention(
        q, k, split(layer.v_proj(h), 2), is_causal=True, enable_gqa=True)
    return layer.o_proj(merge(seen))

# %% role="concept"
noted = {}
layer = llama.model.layers[0].self_attn
hook = layer.register_forward_hook(
    lambda _, args, kwargs, out: noted.update(
        h=kwargs["hidden_states"], out=out[0]), with_kwargs=True)
ids = torch.randint(64, (1, 10))
with torch.no_grad():
    logits = llama(ids).logits
    hook.remove()
    own = by_hand(layer, noted["h"])
    first = llama(ids[:, :7], use_cache=True)
    rest = llama(ids[:, 7:], past_key_values=first.past_key_values)

# %% role="concept"
claim("one layer of the library and the same by hand: largest gap",
      (own - noted["out"]).abs().max(), below=1e-5)
claim("seven tokens, then three from the cache: gap to the whole run",
      (rest.logits - logits[:, 7:]).abs().max(), below=1e-4)

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then open a choice: each says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. A language model trains to a loss that is far lower than that of all published models on the same text. You first**
#
# - [ ] save it and write a report :: A loss below what is possible is a leak until the opposite is shown.
# - [x] change the last token of a row and look whether earlier logits move :: They must not. It takes one line and no training.
# - [ ] add dropout, for it has overfitted :: Overfitting shows on new text; a leak makes the loss low there, too.

# %% [markdown] role="quiz"
# **2. You move from nn.MultiheadAttention to scaled_dot_product_attention and keep the boolean masks. What happens?**
#
# - [ ] an error: the shapes do not fit :: They can fit, and nothing checks what True means.
# - [ ] nothing, both take boolean masks :: Both do, with opposite meanings.
# - [x] tokens look at exactly what was forbidden, and rows with nothing forbidden give zeros :: True means "ignore" in one and "may look" in the other.

# %% [markdown] role="quiz"
# **3. A row is padded. You mask the rows of the pads, the queries, and leave the columns. The tokens**
#
# - [x] still look at pads :: Columns are keys. A mask over the queries silences what pads compute, and nobody reads that.
# - [ ] are right, a pad is masked either way :: Rows and columns say who looks and who is looked at.
# - [ ] give NaN :: A row without keys gives zeros or NaN, and that is the pads' row.

# %% [markdown] role="quiz"
# **4. Generation with a cache writes other text than without. The prompt goes in at once, then token by token with is_causal=True. The first wrong step is**
#
# - [ ] the prompt :: There queries and keys are equally many, and both corners agree.
# - [x] the first single token: its one query sees the first key only :: The triangle starts in the upper left corner.
# - [ ] none, for one query needs no mask :: It needs none, but this one gets one.

# %% [markdown] role="quiz"
# **5. You test whether a model mixes the rows of a batch by permuting them. The outputs are permuted in the same way. So**
#
# - [ ] the rows are independent :: A model that subtracts the batch's mean passes this test.
# - [x] nothing is shown: replace the other rows, and look at row 0 :: Only a change of the company tells.
# - [ ] it is in train mode :: The mode is not what this test sees.

# %% [markdown] role="quiz"
# **6. A masked model pays 0.5 nats for a gap, a causal one 0.8 for the next token of the same text. For writing you take**
#
# - [ ] the masked one, its loss is lower :: Its question was easier: it saw what comes behind the gap.
# - [x] the causal one :: It was trained and measured on the question that writing asks.
# - [ ] either, after a temperature is set :: A temperature does not change what a model was asked in training.

# %% [markdown] role="summary"
# ## What you take with you
#
# - A loss below what is possible is a leak: change the last token, look at the logits
#   before it.
# - A mask means what its function says. SDPA's True may look, MHA's may not.
# - Pads are tokens to attention. Mask the keys, not the queries.
# - With a cache the new queries are the last rows: the mask and the places begin where
#   the cache ends.
# - Attention mixes along the axis that it takes for the sequence. Change the company,
#   look at row 0.
# - A function has no mode: `dropout_p` is p in training and zero elsewhere.
# - A masked model and a causal one were asked different questions; so their losses do
#   not compare.
