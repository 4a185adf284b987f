# %% [markdown] role="hook"
# # 8. Transformers, attention and GPU kernels
#
# Your team has written its own transformer, a hundred lines with three kinds of masks
# and a cache. The model trains, answers batches of questions of different lengths, and
# continues a prompt token by token. Every shape is right and nothing raises an error.
#
# Attention accepts almost any tensors whose shapes fit. A mask, the order of the axes
# and a few flags decide which token may look at which, but nothing checks that these
# settings say what you mean. This stage first builds attention, heads and positions.
# Then it takes up the settings one by one, measures the effect of each, and goes down
# to the kernels that do the work.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import copy
import math
import os

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.gpu import device

if device(DEVICE).type == "cpu":       # before anything imports triton
    os.environ["TRITON_INTERPRET"] = "1"

from dlsys_helpers import (
    accuracy, begin, check, claim, cost, datasheet, digits, draw_blocks,
    draw_boxes, draw_grids, draw_ranks, fit, flops, gpu_result, gpu_table,
    guess, measured, peak_bytes, plot_bars, plot_columns, plot_lines,
    seconds,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## Attention is an average that chooses its weights
#
# In "the cat ran, and then it hid", what is *it*? A token's meaning depends on other
# tokens, near or far, and which tokens these are depends on the text. A convolution
# always looks at the same neighbours. *Attention* lets each token choose where to look.
#
# Each token has three vectors: a *query* (what the token looks for), a *key* (what
# other tokens find it by) and a *value* (what it passes on). The example below has four
# tokens with hand-made vectors. The first component of a key or a value stands for
# "noun", the second for "verb". "it" looks for nouns, "cat" looks for verbs, and "the"
# looks for nothing.

# %% role="concept"
words = ["the", "cat", "ran", "it"]
keys = torch.tensor([[0., 0.], [4., 0.], [0., 4.], [1., 0.]])
queries = torch.tensor([[0., 0.], [0., 3.], [1., 0.], [3., 0.]])
values = torch.tensor([[0., 0.], [1., 0.], [0., 1.], [0., 0.]])

scores = queries @ keys.T / math.sqrt(2)         # 1. compare with all keys
weights = scores.softmax(-1)                     # 2. each row sums to 1
result = weights @ values                        # 3. mean of the values
for word, (noun, verb) in zip(words, result.tolist()):
    print(f"{word:4}noun {noun:.2f}, verb {verb:.2f}")

# %% role="concept"
draw_grids(
    {"1. scores": scores / scores.max(), "2. softmax": weights,
     "3. result": result}, row_names=words,
    captions={"1. scores": "columns: keys of the, cat, ran, it",
              "2. softmax": "weights: each row sums to 1",
              "3. result": "columns: noun, verb"},
    title="Attention in three pictures: compare, weigh, average",
    alt="Three grids with a row for each of four tokens. Scores and "
        "weights have a column for each token. In the row of 'it', the "
        "column of 'cat' is dark; in the row of 'the', all weights are "
        "equal. The result has two columns.")

# %% role="concept"
claim("weight that 'it' gives to 'cat'", weights[3, 1], above=0.9)
claim("largest weight that 'the', which looks for nothing, gives to a "
      "token",
      weights[0].max(), expected=0.25, within=1e-6)

# %% [markdown] role="concept"
# The three numbered lines of code above compute the whole formula. `D` is the dimension
# of a query or key vector, here 2, and a sequence of `T` tokens has `T` times `T`
# scores:
#
# $$\mathrm{attention}(Q, K, V) = \mathrm{softmax}\!\left(\frac{QK^\top}{\sqrt{D}}\right) V$$
#
# In a network, three linear layers compute the queries, keys and values from the tokens,
# and training adjusts the weights of these layers. PyTorch provides the formula as
# `F.scaled_dot_product_attention` (SDPA):

# %% role="concept"
def attention(q, k, v):
    """Attention (..., T, D) by its formula; no mask."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])   # (..., T, T)
    return scores.softmax(-1) @ v

q, k, v = torch.randn(3, 2, 4, 5, 8)             # each (B, H, T, D)
gap = (attention(q, k, v) - F.scaled_dot_product_attention(q, k, v)).abs()

# %% role="concept"
claim("largest difference between attention by the formula and attention "
      "by torch",
      gap.max(),
      below=1e-5)

# %% [markdown] role="concept"
# ## Why the scores are divided by the root of D
#
# A score is a sum of `D` products. If the components of queries and keys are random
# with mean 0 and variance 1, the score has variance `D`. So wider heads produce larger
# scores, and the softmax puts more and more of the weight on a single key. Dividing the
# scores by the square root of `D` brings their variance back to 1. This argument holds
# while all components are independent. If training makes queries and keys similar, even
# the divided scores grow with `D`.

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
claim("mean entropy over 100 keys with D = 256 and raw scores, where ln "
      "100 = 4.61 is the maximum",
      entropies[256][0], below=1)
claim("mean entropy over 100 keys with D = 256 and scores divided by the "
      "root of D",
      entropies[256][1], above=3.9)
claim("with divided scores: mean entropy with D = 256 minus mean entropy "
      "with D = 16",
      entropies[256][1] - entropies[16][1], expected=0, within=0.15)

# %% [markdown] role="concept"
# The entropy is high if many keys share the weight, and zero if one key has all the
# weight. A softmax that has chosen one key passes almost no gradient, because the slope
# of a weight p is p (1 - p). Drag `d` along the curve below, and at each setting, guess
# how many keys still have a noticeable weight.

# %% role="explore" explorer="softmax_scale"
from dlsys_helpers.explorers.softmax_scale import softmax_scale

softmax_scale

# %% [markdown] role="concept"
# ## Several heads look for several things
#
# One set of weights gives each token one average. But a token may need two things at
# once, such as the token before it and the first token of the row. If each of these two
# tokens gets half of the weight, the result is the mean of two values, from which the
# two can no longer be told apart. *Heads* are attention operations that run side by
# side. Each head has its own queries, keys and values, and the results of the heads are
# kept apart:

# %% role="concept"
look_back = torch.eye(5).roll(1, 0)              # row t looks at t - 1
look_back[0] = torch.eye(5)[0]
look_first = torch.zeros(5, 5)
look_first[:, 0] = 1                             # every row, at the first
one_head = (look_back + look_first) / 2

last = {}                                        # of two rows of tokens
for ids in ([1, 0, 0, 2, 0], [2, 0, 0, 1, 0]):
    v = F.one_hot(torch.tensor(ids), 3).float()
    mean, two = one_head @ v, torch.cat([look_back @ v, look_first @ v], 1)
    last[ids[0]] = mean[-1], two[-1]
    print(ids, "one head:", mean[-1].tolist(), "two:", two[-1].tolist())

# %% role="concept"
draw_grids(
    {"head 1": look_back, "head 2": look_first, "one head": one_head},
    rows="token", columns="looks at",
    captions={"head 1": "the token before", "head 2": "the first token",
              "one head": "both, mixed for good"},
    title="Two heads keep apart what one head averages",
    alt="Three grids of five tokens. In the first, each row has the cell "
        "left of the diagonal filled, in the second, the first cell. In "
        "the third, both cells are filled, each half as dark.")

# %% role="concept"
claim("one head: change in the last token's result when tokens 1 and 2 are "
      "exchanged",
      (last[1][0] - last[2][0]).abs().max(), expected=0)
claim("two heads: change in the last token's result when tokens 1 and 2 "
      "are exchanged",
      (last[1][1] - last[2][1]).abs().max(),
      expected=1)

# %% [markdown] role="explore"
# The patterns of the two heads above are set by hand. Does training find such heads by
# itself? The network in the explorer below has one layer of attention with three heads.
# At each letter of a row of eight, the network answers three questions: which letter
# comes before this one, at which position does this letter occur again, and which letter
# is the first of the row? Follow one query through the three heads of run A. Which head
# answers which question?
#
# Then choose run B, which starts from other random weights. Run B also learns to answer
# the questions, but its heads share the work. There is no guarantee that training gives
# each head one job, and most runs do not end like run A.

# %% role="explore" explorer="attention_heads"
from dlsys_helpers.explorers.attention_heads import attention_heads

attention_heads

# %% [markdown] role="concept"
# In many transformers, the `d` values of a token are split into `H` heads of `D` values.
# In this stage, `B` sequences of `T` tokens have the shape `(B, T, d)`, which the split
# turns into `(B, H, T, D)`. After attention, the heads are concatenated again, and a last
# linear layer, `out` below and $W_O$ in papers, mixes them.

# %% role="concept"
def split(x, heads):
    """(B, T, d) -> (B, H, T, D)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)

def merge(x):
    """(B, H, T, D) -> (B, T, d)"""
    return x.transpose(1, 2).flatten(2)

x = torch.randn(2, 5, 32)                        # (B, T, d)
in_heads = split(x, 4)
print(tuple(x.shape), "->", tuple(in_heads.shape))

# %% role="concept"
claim("largest change in a value after it is split into heads and merged "
      "again",
      (merge(in_heads) - x).abs().max(), expected=0)

# %% [markdown] role="concept"
# SDPA cannot check the order of the axes. If you leave out both transposes, SDPA reads
# `(B, T, H, D)` as `T` heads of `H` tokens. Then each token attends only to its own
# heads and to no other token, but the result still has the right shape.
#
# **Split in this way, heads divide the width of a token; they do not add to it.** Eight
# heads have as many parameters as one head and need as many multiplications, because each
# head is an eighth as wide. Only the number of attention weights grows, because every
# head has its own table of `T` times `T` weights. The number of attention weights also
# grows with the square of the text length, so twice as many tokens need four times as
# many weights.

# %% role="concept"
layers = {heads: nn.MultiheadAttention(64, heads) for heads in (1, 8)}
count = {heads: sum(p.numel() for p in layer.parameters())
         for heads, layer in layers.items()}
_, one_pattern = layers[1](*[torch.randn(5, 1, 64)] * 3)
_, patterns = layers[8](*[torch.randn(5, 1, 64)] * 3,
                        average_attn_weights=False)

# %% role="concept"
claim("number of parameters with 8 heads minus number of parameters with "
      "one head",
      count[8] - count[1], expected=0)
claim("number of attention weights with 8 heads divided by the number with "
      "one head",
      patterns.numel() / one_pattern.numel(), expected=8)
claim("GB of scores in one layer with 32 heads, 4,096 tokens and 16 bits "
      "per score",
      32 * 4096**2 * 2 / 1e9, expected=1.07, within=0.01)

# %% [markdown] role="concept"
# ## Attention does not know the order
#
# "The dog bit the man" and "the man bit the dog" contain the same tokens. Attention works
# on a *set* of keys and values. Without a mask, if you reorder the keys and the values in
# the same way, every result stays the same.

# %% role="concept"
q, k, v = torch.randn(3, 1, 2, 5, 8)
order = torch.randperm(5)
in_order, any_order = attention(q, k, v), attention(
    q, k[:, :, order], v[:, :, order])

# %% role="concept"
claim("largest change in a result when keys and values are reordered in "
      "the same way",
      (in_order - any_order).abs().max(), below=1e-5)

# %% [markdown] role="concept"
# So each token has to carry its *position*, unless a causal mask gives the order away.
# There are three common ways to encode a position:
#
# | positions | added or turned | beyond the trained length |
# |---|---|---|
# | learned, `nn.Embedding` | a learned vector is added to the token | the table has no such row: an error |
# | sinusoidal | a fixed vector is added to the token | defined for each position |
# | RoPE (trap 08.10) | queries and keys are turned | defined for each position |
#
# Sinusoidal positions add a vector of sines and cosines of the position, at speeds from
# fast to slow, like the hands of a clock. The vectors of any two positions k apart differ
# by the same rotation.

# %% role="concept"
def sinusoids(positions, d=32):
    """(positions, d): sines, then cosines, of angles with d / 2 speeds."""
    speed = 10000.0 ** (-torch.arange(0, d, 2) / d)
    angle = torch.arange(positions)[:, None] * speed
    return torch.cat([angle.sin(), angle.cos()], 1)

table = sinusoids(600)
five = 5 * 10000.0 ** (-torch.arange(0, 32, 2) / 32)     # angles of a shift
sine, cosine = table[500:550].chunk(2, 1)
turned = torch.cat([sine * five.cos() + cosine * five.sin(),
                    cosine * five.cos() - sine * five.sin()], 1)
gap = (turned - table[505:555]).abs().max()

# %% role="concept"
draw_grids(
    {"16 positions, 32 values": (sinusoids(16) + 1) / 2},
    rows="position", columns="fast sines ... slow, fast cosines ... slow",
    title="Fast values change with every position, slow values hardly",
    alt="A grid of 16 positions and 32 values. The leftmost columns change "
        "from row to row, the columns further right more slowly; the right "
        "half has the same pattern.")

# %% role="concept"
try:
    nn.Embedding(8, 32)(torch.arange(9))       # a table of 8 positions
    learned_ends = False
except IndexError:
    learned_ends = True

# %% role="concept"
claim("learned positions: a text longer than the table raises an error",
      learned_ends, expected=True)
claim("largest difference between sinusoids rotated by 5 positions and "
      "those 5 positions later", gap, below=1e-3)

# %% [markdown] role="concept"
# A position may be *defined*, but the model may still be unable to use it. Whether a
# model can use positions beyond the trained length has to be measured, as the section
# *Further* does for sinusoids and RoPE.
#
# ## A transformer is a stack of blocks

# %% [markdown] role="concept"
# Each *block* adds two things to the stream of token vectors: what attention fetches
# from other tokens, and what two linear layers compute from each token by itself. These
# two layers are the *feed-forward network* (FFN), which here widens each token's vector
# from $d$ to $4d$ values, applies GELU, and returns to $d$. Attention moves information
# between tokens, and the FFN works on each token separately. The FFN holds $8d^2$ of the
# block's roughly $12d^2$ weights. The norm layers are inside the branches (stage 5). A
# block passes on its keyword arguments, `**mask`, to attention, where they determine
# which token may look at which.

# %% role="concept"
class Block(nn.Module):
    """Attention and two linear layers, each after a norm, both added."""

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
draw_blocks(
    {"a block": [
        "h (B, T, d)", "LayerNorm", "attention: fetches from others", "+",
        "h (B, T, d)", "LayerNorm", "two linear layers: each token alone",
        "+", "h (B, T, d)"]},
    bypass={"a block": [(0, 3), (4, 7)]},
    title="Both branches are added to the stream",
    alt="A column of blocks: h, a norm and attention, then a sum; the new "
        "h, a norm and two linear layers, then a sum. One path leads from "
        "each h around its branch to the next sum.")

# %% role="concept"
class LM(nn.Module):
    """Tokens (B, T) -> logits (B, T, vocab) of the token to predict."""

    def __init__(self, vocab, positions, d=32, heads=4, layers=1):
        super().__init__()
        self.token = nn.Embedding(vocab, d)
        self.place = nn.Embedding(positions, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, ids, **mask):
        h = self.token(ids) + self.place.weight[:ids.shape[1]]
        for block in self.blocks:
            h = block(h, **mask)
        return self.head(self.norm(h))

# %% [markdown] role="concept"
# Many language models share one table between the first and the last layer. The first
# layer looks up a vector for each token, the last layer compares a vector with every
# token of the vocabulary, and both layers have `vocab` times `d` weights. Sharing this
# table is called *weight tying*:

# %% role="concept"
tied = LM(1000, positions=8)
free = sum(p.numel() for p in tied.parameters())
tied.head.weight = tied.token.weight             # one tensor, two names
shared = sum(p.numel() for p in tied.parameters())
print(f"{free:,} parameters, tied {shared:,}")

# %% role="concept"
claim("number of parameters saved by weight tying, which is vocabulary "
      "times width", free - shared,
      expected=1000 * 32)

# %% [markdown] role="concept"
# To learn language, such a model predicts the next token at every position of a row. The
# loss is the mean of $-\ln p$ over all positions, in nats, where p is the predicted
# probability of the true token. A model that spreads its probability evenly over `V`
# tokens has a loss of $\ln V$. An untrained model with a head tied as above often has
# several times that loss, because `nn.Embedding` draws the shared table from N(0, 1),
# which is too large for a head. Draw smaller values for the table, as GPT-2 does:
# `nn.init.normal_(model.token.weight, std=0.02)`.
#
# In training, each position sees the *true* tokens before it (*teacher forcing*). When
# the model generates text, its input contains tokens that it has sampled itself, so a
# bad token becomes part of the input. In training, the input never contained such
# mistakes. This mismatch is called *exposure bias*.

# %% role="concept" tags=["plumbing"]
def nll(logits, ids):
    """Mean of -ln p of the tokens ids, in nats; logits (..., vocab)."""
    return F.cross_entropy(logits.flatten(0, -2), ids.flatten())

def train(model, draw, steps, lr=1e-2):
    """Adam on the loss of draw(model), with new data at each step."""
    opt, losses = torch.optim.Adam(model.parameters(), lr=lr), []
    for _ in range(steps):
        loss = draw(model)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses

# %% [markdown] trap="08.1" role="situation" core=true fault="the causal mask is missing" symptom="language model: training loss far too low, near zero, generates garbage, causal mask missing"
# ## Dice, and a model that predicts them
#
# You test your model on text for which you know the best possible loss: each token is
# the roll of a fair 16-sided die. A uniform prediction has a loss of $\ln 16 \approx
# 2.77$ nats per token. You train on rows of 8 tokens, and after 200 steps, the loss is
# about `0.36`.
#
# Then you use the model. You give it the first tokens of a new row and score its
# prediction for the token that follows. You repeat this for 1 to 8 given tokens, and
# take the mean of the eight losses.

# %% trap="08.1" role="break"
VOCAB, T = 16, 8

def dice_loss(**mask):
    """Return a function: a model's next-token loss on fresh dice."""
    def draw(model):
        ids = torch.randint(VOCAB, (32, T + 1))
        return nll(model(ids[:, :-1], **mask), ids[:, 1:])
    return draw

open_lm = LM(VOCAB, T)
_ = train(open_lm, dice_loss(), steps=200)       # its losses, not shown

# %% trap="08.1" role="guess"
guess("08.1", "How large is the mean of the eight losses, in nats?",
      choices=["more than `4`",
               "about `2.77`",
               "about `0.36`"])

# %% trap="08.1" role="look" tags=["plumbing"]
@torch.no_grad()
def loss_by_position(model, **mask):
    """Loss by position with the whole row in view, and on prefixes."""
    ids = torch.randint(VOCAB, (256, T + 1))
    whole = model(ids[:, :-1], **mask)
    by_position = [nll(whole[:, t], ids[:, t + 1]).item() for t in range(T)]
    prefix = [nll(model(ids[:, :t + 1], **mask)[:, -1], ids[:, t + 1])
              .item() for t in range(T)]
    return torch.tensor(by_position), torch.tensor(prefix)

# %% trap="08.1" role="look"
by_position, prefix = loss_by_position(open_lm)
print(f"as in training {by_position.mean():.2f}, "
      f"prefixes {prefix.mean():.1f}")

# %% trap="08.1" role="look"
measured("08.1", 0)

# %% trap="08.1" role="look"
claim("without a mask: loss for the token after a prefix, in nats",
      prefix.mean(),
      above=3.5)

# %% trap="08.1" role="look"
plot_columns(
    {t + 1: round(by_position[t].item(), 2) for t in range(T)},
    marks=range(1, T), xlabel="position in the row",
    ylabel="loss in training, nats",
    reference=(math.log(VOCAB), "ln 16, an even guess"),
    title="Only the last position has a loss",
    alt="Eight columns, one for each position. The first seven are near "
        "zero, and the last column reaches the line of ln 16.")

# %% [markdown] trap="08.1" role="why"
# In training, the model can see the answer. Position `t` has to predict the token at
# position `t + 1`. That token is in the same row, and attention may look everywhere.
# Only the last position has nothing to copy, so only that position has a loss.
#
# At inference, the row ends at position `t`. The predicting position is then always the
# last position, and the token that the model has learned to copy is missing. The model
# does worse than a uniform guess.

# %% trap="08.1" role="why"
causal = torch.ones(T, T).tril()
document = torch.tensor([0] * 3 + [1] * 5)       # of each token
packed = causal * (document[:, None] == document)
answer = torch.eye(T).roll(1, 1).triu()          # row t marks t + 1
draw_grids(
    {"no mask": torch.ones(T, T), "causal": causal,
     "packed: 3 + 5": packed},
    marks={"no mask": answer}, rows="asks", columns="looks at",
    captions={"no mask": "row t looks at its answer, t + 1",
              "causal": "itself and earlier tokens",
              "packed: 3 + 5": "only its own document"},
    legend="the token that the row has to predict",
    title="The mask decides who may look where",
    alt="Three grids of eight by eight. Without a mask, all cells are "
        "full, and the cell right of the diagonal is marked. The causal "
        "mask is a triangle. The packed mask is two triangles, of three "
        "and of five rows.")

# %% [markdown] trap="08.1" role="repair"
# The *causal* mask lets a position look only at itself and at earlier positions. One
# argument of `scaled_dot_product_attention` (SDPA) turns it on: `is_causal=True`.

# %% trap="08.1" role="repair"
causal_lm = LM(VOCAB, T)
train(causal_lm, dice_loss(is_causal=True), steps=200)
by_position_c, prefix_c = loss_by_position(causal_lm, is_causal=True)
print(f"causal: as in training {by_position_c.mean():.2f}, "
      f"prefixes {prefix_c.mean():.2f}")

# %% trap="08.1" role="repair"
claim("with the causal mask: loss for the token after a prefix, in nats",
      prefix_c.mean(),
      expected=math.log(16), within=0.1)

# %% [markdown] trap="08.1" role="repair"
# To find a leak, you do not need dice. Change the last token of a row, and check that
# the logits at earlier positions stay the same.

# %% trap="08.1" role="repair"
@torch.no_grad()
def earlier_move(model, **mask):
    """Largest change in earlier logits when the last token changes."""
    ids = torch.randint(VOCAB, (4, T))
    other = ids.clone()
    other[:, -1] = (ids[:, -1] + 1) % VOCAB
    change = model(other, **mask) - model(ids, **mask)
    return change[:, :-1].abs().max().item()

fresh = LM(VOCAB, T)
leaks = earlier_move(fresh), earlier_move(fresh, is_causal=True)
print(f"earlier logits move by {leaks[0]:.2f} without a mask, "
      f"by {leaks[1]:.0e} with it")

# %% trap="08.1" role="repair"
claim("fresh model, causal mask: largest change in an earlier logit when "
      "the last token changes", leaks[1],
      below=1e-5)

# %% [markdown] trap="08.1" role="repair"
# A mask can also leak in only a part of the row, so test each position in turn. In the
# exercise, you write such a probe for any model. It misses a token that looks back into
# another document.

# %% [markdown] trap="08.1" role="more" topics="the loss in training · masks by hand, and True means opposite things · rows without a key · packed documents, varlen_attn, FlashAttention-4 · whole rows as input, logits shifted"
# **The loss in training.** The entire training loss comes from the last of eight
# positions. In the probe, change real tokens rather than pads. An untrained model
# already shows the leak, unless its branches or its head start at zero. In that case,
# the leak becomes visible only after a few training steps.

# %% trap="08.1" role="more"
claim("without a mask, input as in training: mean loss in nats, where ln "
      "16 is 2.77", by_position.mean(),
      below=0.6)
claim("without a mask, input as in training: largest loss at positions 1 "
      "to 7 of 8",
      by_position[:-1].max(), below=0.1)
claim("with the causal mask, input as in training: mean loss in nats",
      by_position_c.mean(),
      expected=math.log(16), within=0.1)
claim("fresh model, no mask: largest change in an earlier logit when the "
      "last token changes",
      leaks[0],
      above=0.01)

# %% [markdown] trap="08.1" role="more"
# **Masks by hand.** If `is_causal` is not enough, build the mask yourself. In a
# boolean mask, `True` means *may look* in SDPA and *may not* look in
# `nn.MultiheadAttention` (MHA); trap 08.2 draws both masks. SDPA and MHA both add a float
# mask to the scores: 0 leaves a score unchanged, and minus infinity forbids the key.

# %% trap="08.1" role="more"
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

# %% trap="08.1" role="more"
claim("largest difference between the results of four ways to write one "
      "mask",
      max((a - seen[0]).abs().max() for a in seen), below=1e-5)

# %% [markdown] trap="08.1" role="more"
# **Rows without a key.** If you pass SDPA a causal mask written for MHA, each position
# looks only at *later* positions, so the last position has nothing to look at. For such
# a row, SDPA returns zeros on a CPU. MHA returns NaN if it also returns its weights, as
# it does by default. With `need_weights=False`, MHA calls SDPA. The exception is
# self-attention with `batch_first=True` and a boolean mask, in eval mode and without
# gradients, where MHA's fast path, if it is taken, also returns NaN. And if you build a
# float mask by multiplying by minus infinity, the mask is NaN where it should be 0,
# because zero times infinity is NaN.

# %% trap="08.1" role="more"
with torch.no_grad():
    flipped = F.scaled_dot_product_attention(q, k, v, attn_mask=~keep)
    lost = mha(x, x, x, attn_mask=torch.ones(T, T) == 1)[0]
product = (1 - keep.float()) * -math.inf

# %% trap="08.1" role="more"
claim("SDPA with a mask meant for MHA: largest absolute output at the last "
      "position",
      flipped[:, :, -1].abs().max(), expected=0)
claim("fraction of MHA's outputs that are NaN when all keys are forbidden",
      lost.isnan().float().mean(), expected=1)
claim("fraction of the allowed pairs for which a mask built by "
      "multiplication is NaN",
      product.isnan().sum() / keep.sum(), expected=1)

# %% [markdown] trap="08.1" role="more"
# **Packed documents.** Packing several short documents into one row wastes no positions
# on pads, but no document may look at another document. With a mask, the scores between
# documents are computed and then thrown away.
# [`varlen_attn`](https://docs.pytorch.org/docs/stable/nn.attention.varlen.html) of
# `torch.nn.attention.varlen` takes the documents end to end, as `(tokens, H, D)`,
# together with their boundaries, such as `[0, 3, 8]`, and never computes scores between
# documents; `window_size=(-1, 0)` makes it causal. The kernel exists only for CUDA, but
# on any machine you can compute what it has to return:

# %% trap="08.1" role="more"
borders = [0, 3, 8]
in_row = F.scaled_dot_product_attention(q, k, v, attn_mask=packed.bool())
alone = torch.cat([F.scaled_dot_product_attention(
    *(t[:, :, start:stop] for t in (q, k, v)), is_causal=True)
    for start, stop in zip(borders, borders[1:])], 2)

# %% trap="08.1" role="more"
claim("largest difference between results under a packed mask and results "
      "document by document", (in_row - alone).abs().max(), below=1e-5)
claim("pairs that the packed mask allows, as a fraction of the pairs that "
      "a causal mask allows",
      packed.sum() / causal.sum(), expected=21 / 36, within=1e-6)

# %% [markdown] trap="08.1" role="more"
# You can also swap the flash attention kernel:
# [`activate_flash_attention_impl`](https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.activate_flash_attention_impl.html)
# of `torch.nn.attention` accepts `"FA3"` or `"FA4"` if the package for that version is
# installed. FlashAttention-4 was written for NVIDIA's Blackwell GPUs, whose tensor
# cores are so fast that the exponentials become a bottleneck. So the kernel computes
# some of the exponentials in software and rescales (trap 08.4) only when it has to
# ([Zadouri et al.](https://arxiv.org/abs/2603.05451), abstract). Whichever kernel runs,
# compare packed documents with the same documents one at a time.
#
# **Whole rows as input.** In the trap, the last token was cut off before the row went
# into the model. Many libraries pass in the whole row and shift the logits afterwards.
# If whole rows go in without a mask, every position that predicts a token can see the
# answer:

# %% trap="08.1" role="more"
def shifted_loss(model):
    """Next-token loss on fresh dice, with the whole row in view."""
    ids = torch.randint(VOCAB, (32, T))
    return nll(model(ids)[:, :-1], ids[:, 1:])

shifted = train(LM(VOCAB, T), shifted_loss, steps=200)

# %% trap="08.1" role="more"
claim("last training loss without a mask when whole rows go in and the "
      "logits are shifted",
      shifted[-1], below=0.1)

# %% [markdown] trap="08.1" role="folklore"
# **Told:** Without the mask, the training loss goes to zero, and at inference the model
# writes random tokens. **Measured, on dice:** The loss goes to zero if the model gets
# whole rows. If the last token is cut off, the last position has nothing to copy, and its
# loss of ln 16 remains, averaged over the row. At inference, a model trained only on rows
# of one length predicts worse than a uniform guess: its loss is above ln 16.

# %% trap="08.1" role="exercise" points=3 difficulty=2 minutes=10
def leak(model: nn.Module, x: torch.Tensor, others: torch.Tensor) -> list:
    """Measure how far each position leaks into the outputs before it.

    For every position t, replace x[:, t] by others[:, t] and nothing else,
    and run the model again. Consider all rows. Entry t is the largest
    absolute change in any output before position t. Entry 0 is 0.0.

    Args:
        model: maps (N, T, ...) to (N, T, ...).
        x, others: both (N, T, ...) with T >= 1. Both are float32 or int64.

    Returns:
        A list of T floats.

    The model runs in eval mode. No graph is built. Afterwards the grad mode
    is what it was. Every module's training flag is also what it was. x and
    others are unchanged.
    Example: a model that shifts all positions one to the left, with x [[1.,
    2., 3.]] and others [[5., 5., 9.]], gives [0.0, 3.0, 6.0].
    """
    # BEGIN SOLUTION
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    found = [0.0]
    with torch.no_grad():
        before = model(x)
        for t in range(1, x.shape[1]):
            changed = x.clone()
            changed[:, t] = others[:, t]
            change = (model(changed) - before)[:, :t]
            found.append(change.abs().max().item())
    for module, mode in modes:
        module.training = mode
    return found
    # END SOLUTION

# %% [markdown] trap="08.1" role="hint"
# 1. You need two passes per position: the rows as they are, and a copy in which that position is replaced. The outputs before that position must not change.
# 2. `[:, :t]` selects the outputs of all rows before position `t`. The output at `t` itself may change, because position `t` may look at its own token.
# 3. Save each module's `training` flag before you call `model.eval()`, and restore it
#    afterwards.

# %% [markdown] trap="08.1" role="keep"
# **Keep:** A model that predicts the next token must not get that token as input. A
# loss on new text below the best possible loss means a leak. Change a token and check
# whether earlier logits move. **In your own code:** Before you train, run your `leak`
# on a fresh model with two batches of tokens. **Source:** [torch's documentation of
# scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html)
# and [of
# nn.MultiheadAttention](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html):
# True means opposite things in the two APIs. **Seen in the wild:**
# [huggingface/transformers
# 48745](https://github.com/huggingface/transformers/issues/48745): four models lost
# their causal mask in a release; the reporter saw the loss on random tokens fall to
# almost zero. [alex-matton/causal-transformer-decoder
# 1](https://github.com/alex-matton/causal-transformer-decoder/issues/1): a user trained
# a decoder without a mask, which is valid only for inference. [unslothai/unsloth
# 1207](https://github.com/unslothai/unsloth/issues/1207): packed samples could look at
# each other, because no mask separated them.

# %% [markdown] role="concept"
# ## A mask is minus infinity
#
# A language model is trained on all positions of a row in one pass, so the input row
# contains the answers. A model that can look ahead only has to copy the next token.
# `is_causal=True` hides the later tokens. But how do you hide something from an average?
#
# Think of people in a queue: everyone can see those in front, and nobody can look back. In
# attention, each row of weights sums to 1 over all positions. The obvious idea is to set the
# forbidden weights to zero:

# %% role="concept"
raw = torch.randn(4, 4)                          # scores of four tokens
allowed = torch.ones(4, 4).tril() == 1           # itself and before
zeroed = raw.softmax(-1) * allowed
print("sums of the rows:", [round(s, 2) for s in zeroed.sum(-1).tolist()])

# %% [markdown] role="concept"
# Now the rows sum to less than 1, so the results are too small. Divide each row by its new
# sum:

# %% role="concept"
again = zeroed / zeroed.sum(-1, keepdim=True)
print("sums of the rows:", [round(s, 2) for s in again.sum(-1).tolist()])

# %% [markdown] role="concept"
# That works. But look at what a softmax does: it divides `exp(score)` by the sum of all
# `exp(score)`. Leaving a position out is the same as giving it an `exp(score)` of 0,
# which means a score of minus infinity. So one line can set the forbidden weights to
# zero and renormalize each row:

# %% role="concept"
hidden = raw.masked_fill(~allowed, -math.inf).softmax(-1)

# %% role="concept"
claim("largest difference between renormalized weights and weights from "
      "scores of minus infinity",
      (again - hidden).abs().max(), below=1e-6)
claim("largest row sum before the division by the sums, with the last row "
      "left out",
      zeroed.sum(-1)[:3].max(), below=1)

# %% role="concept"
draw_grids(
    {"softmax of all": raw.softmax(-1), "zeroed": zeroed,
     "zeroed, divided": again, "minus infinity": hidden},
    rows="asks", columns="looks at",
    captions={"zeroed": "rows sum to less than 1",
              "zeroed, divided": "rows sum to 1",
              "minus infinity": "the same, in one line"},
    title="Minus infinity before the softmax is zero after it",
    alt="Four grids of four by four. The first is full; the second has "
        "only the lower triangle; the third and the fourth have the same "
        "triangle, but darker, and look alike.")

# %% [markdown] role="concept"
# With minus infinity, you also never divide by a sum of allowed weights that has
# underflowed to 0. In a row without any allowed key, however, this softmax returns NaN,
# as trap 08.2 shows.
#
# Most masks are built in this way, from a rule about a pair of positions. In a causal
# mask, the key must not come after the query. In a *sliding window*, the key must also be
# at most a fixed number of positions before the query, which makes long texts cheaper. If
# a function has a flag for the rule, use the flag. With `is_causal=True`, a kernel knows
# the triangle and can skip the hidden scores, nearly half of the work. It treats a
# triangle passed as a boolean tensor like any other mask, and skips no work.

# %% role="concept"
query, key = torch.arange(6)[:, None], torch.arange(6)
triangle = key <= query
window_of_3 = triangle & (query - key < 3)
q, k, v = torch.randn(3, 1, 2, 6, 8)
by_flag = F.scaled_dot_product_attention(q, k, v, is_causal=True)
by_mask = F.scaled_dot_product_attention(q, k, v, attn_mask=triangle)
print(window_of_3.int())

# %% role="concept"
claim("largest difference between results with is_causal=True and with a "
      "causal boolean mask",
      (by_flag - by_mask).abs().max(), below=1e-5)

# %% [markdown] role="concept"
# SDPA chooses the kernel. For a test, `sdpa_kernel` forces one kernel: `MATH` is the
# plain formula, and `FLASH_ATTENTION` is the kernel of trap 08.4. On NVIDIA GPUs, torch's
# own flash kernel requires 16-bit tensors and compute capability 8.0 or more, and accepts
# no custom mask. FlashAttention-2 also works on blocks of queries in parallel, and
# divides by the sums only once, at the end, unlike the first version. FlashAttention-3,
# for Hopper cards, overlaps copies, matrix products and softmax, and can use FP8. If no
# allowed kernel fits, SDPA raises an error.

# %% role="concept"
from torch.nn.attention import SDPBackend, sdpa_kernel

with sdpa_kernel(SDPBackend.MATH):
    by_formula = F.scaled_dot_product_attention(q, k, v, is_causal=True)

# %% role="concept"
claim("largest difference between the results of SDPA's chosen kernel and "
      "of the plain formula",
      (by_flag - by_formula).abs().max(), below=1e-5)

# %% [markdown] trap="08.2" role="situation" core=true fault="padding is attended to" symptom="padded batch gives other results than single sequences, attention to padding, key_padding_mask or attn_mask inverted"
# ## Three tokens of nothing
#
# You put two questions into one batch, one with eight tokens and one with five tokens,
# and extend the shorter row with three *pads*. The tokenizer returns a mask with 1 for
# a token and 0 for a pad, but you forget to pass the mask to an untrained
# `nn.MultiheadAttention` (MHA).
#
# Then you change the pads and nothing else, first in the shorter row and then in 64 more rows
# of five tokens and three pads. A reviewer has warned you: "To attention, a pad is a key like
# any other, so the five tokens also average over pads."

# %% trap="08.2" role="break"
real = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])    # (B, T)
mha = nn.MultiheadAttention(32, 4, batch_first=True).eval()
x = torch.randn(2, 8, 32)                        # (B, T, d)
repadded = x.clone()
repadded[1, 5:] = torch.randn(3, 32)             # other pads, same tokens
with torch.no_grad():
    before, weights = mha(x, x, x)               # weights: mean over heads
    after, _ = mha(repadded, repadded, repadded)

# %% trap="08.2" role="break"
g = torch.Generator().manual_seed(SEED)
many = torch.randn(64, 8, 32, generator=g)       # 64 rows, 5 tokens each
refilled = many.clone()
refilled[:, 5:] = torch.randn(64, 3, 32, generator=g)
with torch.no_grad():
    old, new = (mha(t, t, t)[0][:, :5] for t in (many, refilled))
shift = ((new - old).square().mean() / old.square().mean()).sqrt()

# %% trap="08.2" role="guess" quoted="right"
guess("08.2",
      "In the 64 rows, by what percentage (root mean square) do the "
      "outputs at the five tokens change?", unit="%")

# %% trap="08.2" role="look"
on_pads = weights[1, :5, 5:].sum(-1).mean()
moved = (before - after)[1, :5].abs().max()
print(f"other pads, same tokens: their results move by {shift:.0%}")
print(f"attention of the tokens to pads: {on_pads:.0%}")

# %% trap="08.2" role="look"
measured("08.2", 100 * shift, right=(60, 130))

# %% trap="08.2" role="look"
claim("relative change in the tokens' outputs when the pads change",
      shift, above=0.6)

# %% trap="08.2" role="look"
plot_columns(
    {f"pad {t + 1}" if t > 4 else t + 1: 100 * share
     for t, share in enumerate(weights[1, :5].mean(0))},
    marks=("pad 6", "pad 7", "pad 8"), xlabel="key",
    ylabel="% of the five tokens' attention",
    title="A pad gets about as much attention as a token",
    alt="Eight columns of similar height: five for tokens and three for "
        "pads. The pads are marked.")

# %% [markdown] trap="08.2" role="why"
# A softmax gives every key some weight, and a pad has a score like any other key. So an
# output is nearly a mean of eight values, three of which you replaced. Suppose that each
# value has a variance of 1. The sum of all eight values then has variance 8. The change
# in the sum is three new values minus three old values, so its variance is 6. The output
# therefore changes by $\sqrt{6 / 8}$ of its size, nearly nine tenths.
#
# MHA and SDPA both take a mask over the *keys*, but `True` means opposite things in the
# two functions. In MHA's `key_padding_mask`, `True` marks a key to ignore, where the
# tokenizer's mask has 0. In SDPA's `attn_mask`, `True` marks a key to look at, and the
# mask is broadcast to `(B, H, T, T)`.

# %% trap="08.2" role="why"
tokens_of = (real[1] == 1).expand(8, 8)          # row looks at column
pads_of = ~tokens_of
draw_grids(
    {"for SDPA": tokens_of, "for MHA": pads_of, "MHA's in SDPA": pads_of},
    marks={"MHA's in SDPA": pads_of}, rows="query", columns="key",
    captions={"for SDPA": "True: may look", "for MHA": "True: is ignored",
              "MHA's in SDPA": "inverted: looks only at pads"},
    legend="a pad that is looked at",
    title="One intention, two masks: True means opposite things",
    alt="Three grids of eight by eight. For SDPA, the tokens' five columns "
        "are filled, for MHA, the pads' three columns. The third grid "
        "equals the second, and its filled cells are marked.")

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
claim("largest difference between the results of SDPA and MHA, each with "
      "its own kind of mask",
      (masked - by_sdpa).abs().max(), below=1e-5)

# %% [markdown] trap="08.2" role="repair"
# SDPA accepts three wrong masks without an error. To see the attention weights under each
# of them, pass an identity matrix as values:

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

# %% trap="08.2" role="repair"
plot_bars(
    {"no mask": 100 * on_pads,
     "keys masked": 100 * weights[1, :5, 5:].sum(-1).mean(),
     "MHA's mask, inverted": 100 * shares["inverted"],
     "1 and 0 as floats": 100 * shares["floats"],
     "queries masked": 100 * shares["queries"]},
    xlabel="% of the tokens' attention on pads",
    title="Only with the keys masked do pads get no attention",
    alt="Five bars. Only with the keys masked is the percentage zero. With "
        "the inverted mask, it is 100 %, with floats, it is half as large "
        "as without a mask, and with masked queries, it is as large as "
        "without a mask.")

# %% trap="08.2" role="repair"
claim("inverted mask: fraction of the tokens' attention that goes to pads",
      shares["inverted"], expected=1, within=1e-4)

# %% [markdown] trap="08.2" role="more" topics="other pads · floats, and the wrong axis · integers · rows of only pads"
# **With the right mask,** pads get no weight, and different pads change nothing.

# %% trap="08.2" role="more"
claim("without a mask: fraction of the tokens' attention that goes to pads",
      on_pads,
      above=0.25, below=0.5)
claim("without a mask: largest change in the tokens' outputs when the pads "
      "change", moved, above=0.1)
claim("with the right mask: largest fraction of attention that goes to "
      "pads",
      weights[1, :, 5:].sum(-1).max(), expected=0)
claim("with the right mask: largest change in the tokens' outputs when the "
      "pads change",
      (masked - again)[1, :5].abs().max(), below=1e-6)

# %% [markdown] trap="08.2" role="more"
# **Wrong masks.** With the inverted mask, the row without pads has nothing to attend
# to, so its result is zero. A float mask is *added* to the scores, so a mask of 1 and 0
# favours the tokens only a little. A mask over the queries silences the pads' own
# outputs, but the tokens still look at pads.

# %% trap="08.2" role="more"
claim("inverted mask: largest weight in the row without pads",
      inverted[0].abs().max(), expected=0)
claim("float mask and query mask: smaller of the two fractions of "
      "attention that goes to pads",
      min(shares["floats"], shares["queries"]), above=0.1)

# %% [markdown] trap="08.2" role="more"
# SDPA at least rejects the tokenizer's mask of **integers**. **A row of only pads**
# becomes NaN if MHA returns its weights, also in training. (Trap 08.1 covers MHA
# without returned weights.) One NaN in a batch reaches the loss. Even if the loss
# leaves out pads, the NaN still reaches the gradients. To avoid the NaN, let each pad
# look at itself, so that every row has at least one key.

# %% trap="08.2" role="more"
try:
    weights_of(real[:, None, None, :])
    refused = False
except RuntimeError:
    refused = True
mha.train()
nothing = mha(x, x, x, key_padding_mask=torch.ones(2, 8) == 1)[0]

# %% trap="08.2" role="more"
claim("SDPA rejects a mask of integers", refused, expected=True)
claim("fraction of MHA's outputs that are NaN in training on rows of only "
      "pads",
      nothing.isnan().float().mean(), expected=1)

# %% [markdown] trap="08.2" role="folklore"
# **Told:** Pass `scaled_dot_product_attention` the key padding mask of
# `nn.MultiheadAttention`, expanded to four axes. **Measured:** That mask is the opposite
# of the right one. The tokens then attend only to pads, the output for a row without pads
# is zero, and no error is raised.

# %% trap="08.2" role="exercise" points=3 difficulty=2 minutes=10
def decoder_mask(real: torch.Tensor) -> torch.Tensor:
    """Build the SDPA mask for a causal model whose rows are padded.

    A token may look at itself and at the tokens before it, but not at pads.
    A pad may look only at itself, so no row is empty.

    Args:
        real: (B, T), 1 for a token and 0 for a pad, as int64, bool or
            float32. B and T are at least 1. Any memory order is possible.
            Pads can be on the right, on the left or in between.

    Returns:
        A bool mask (B, 1, T, T), True where the row's position may look at
        the column's position.

    The argument is unchanged. A later call does not change this mask.
    Example: for [[1, 1, 0]] the mask is [[[[True, False, False], [True,
    True, False], [False, False, True]]]].
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
# 1. Ask three questions about each pair: Is the column at or before the row? Is the column a token? Is the row a token?
# 2. `tokens[:, :, None]` says whether the row is a token, and `tokens[:, None, :]` whether the column is a token; `&` combines the two.
# 3. Every position may look at itself, token or pad: `| torch.eye(T, dtype=torch.bool)`. Add the axis for the heads at the end.

# %% [markdown] trap="08.2" role="keep"
# **Keep:** Attention does not know what a pad is. Mask the *keys* that are pads, and
# check what `True` means in the function you call. **In your own code:** Run the same
# sequence alone and in a padded batch, and compare the outputs. **Source:** [torch's
# documentation of
# nn.MultiheadAttention](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html),
# `key_padding_mask`. **Seen in the wild:** [OpenNMT/OpenNMT-py
# 2532](https://github.com/OpenNMT/OpenNMT-py/pull/2532): batches of sequences with
# different lengths gave worse answers, because the padding mask was applied only in the
# first decoding step.

# %% [markdown] trap="08.3" role="situation" fault="a masked model is asked for the next token" symptom="BERT or another masked language model generates badly, perplexity of a masked model, next token from an MLM"
# ## Filling gaps, and writing on
#
# Two models with the same layers learn the same language, in which a token follows a
# rule in four out of five cases and is random otherwise. You train the first model like
# GPT: with a causal mask, each position predicts the next token. You train the second
# model like BERT: it gets the whole row, in which some tokens are replaced by a
# `[MASK]`, and predicts the replaced tokens.
#
# In the middle of a row, the second model's loss for a masked token is about half of the
# first model's loss for the next token. Now the second model has to continue a text. You
# give it the text so far, followed by a `[MASK]`.

# %% trap="08.3" role="break"
WORDS, MASK, ROW = 8, 8, 8                       # [MASK] is token 8
rule = torch.randperm(WORDS, generator=torch.Generator().manual_seed(0))

def sentences(n):
    """Rows (n, ROW): four of five tokens obey the rule, one is random."""
    columns = [torch.randint(WORDS, (n,))]
    while len(columns) < ROW:
        thrown = torch.randint(WORDS, (n,))
        keeps = torch.rand(n) < 0.8
        columns.append(torch.where(keeps, rule[columns[-1]], thrown))
    return torch.stack(columns, 1)

# %% trap="08.3" role="break"
def gaps_loss(model):
    """BERT's loss: predict tokens that are hidden, 15 % on average."""
    ids = sentences(64)
    hidden = torch.rand(ids.shape) < 0.15
    logits = model(ids.masked_fill(hidden, MASK))
    return nll(logits[hidden], ids[hidden])

def next_loss(model):
    """GPT's loss: each position predicts the next token, under a mask."""
    ids = sentences(64)
    return nll(model(ids[:, :-1], is_causal=True), ids[:, 1:])

# %% trap="08.3" role="break"
bert, gpt = LM(WORDS + 1, ROW), LM(WORDS + 1, ROW)
_ = train(bert, gaps_loss, steps=300)            # losses, not shown
_ = train(gpt, next_loss, steps=300)

# %% trap="08.3" role="guess"
guess("08.3",
      "How large is the second model's loss for the token after the text?",
      choices=["about its own loss in the middle of a row",
               "more than its loss in the middle of a row, but less than "
               "the first model's loss",
               "more than the first model's loss"])

# %% trap="08.3" role="look" tags=["plumbing"]
@torch.no_grad()
def behind(model, ids):
    """Mean loss of tokens 1, 2, ...: the text before each, and a [MASK]."""
    costs = []
    for t in range(1, ids.shape[1]):
        mask = torch.full((len(ids), 1), MASK)
        costs.append(nll(model(torch.cat([ids[:, :t], mask], 1))[:, t],
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
p_rule = 0.8 + 0.2 / WORDS
entropy = -(p_rule * math.log(p_rule)
            + (WORDS - 1) * 0.2 / WORDS * math.log(0.2 / WORDS))

# %% trap="08.3" role="look"
plot_columns(
    {"masked model, in a gap": in_gap, "causal model, next token": causal,
     "masked model, after the text": written},
    marks=["masked model, after the text"], xlabel="what is predicted",
    ylabel="nats per token",
    reference=(entropy, "entropy of the next token"),
    title="Low in a gap, high after the text",
    alt="Three columns. A horizontal line is the entropy of the next "
        "token. In a gap, the masked model's loss is about half the "
        "entropy. The causal model's loss is at the line, and the masked "
        "model's loss after the text is above the line.")

# %% trap="08.3" role="look"
measured("08.3", 2)

# %% trap="08.3" role="look"
claim("loss of the masked model after the text minus loss of the causal "
      "model for the next token",
      written - causal, above=0.01)

# %% [markdown] trap="08.3" role="why"
# A gap has a neighbour on each side, and the right neighbour is informative, because
# the model can reason backwards from it. At the end of a text, there is no right
# neighbour, so no model can have a loss below the entropy of the next token, which is
# fixed by the rule of this language. And the masked model was trained on whole rows of
# eight tokens, never on a shorter row.

# %% [markdown] trap="08.3" role="repair"
# The two models answer different questions. To compare them, ask both the same
# question: what is the next token, given the tokens before it? The causal model was
# trained on that question and nearly reaches the lowest possible loss.

# %% trap="08.3" role="repair"
print(f"entropy {entropy:.2f} nats, causal model {causal:.2f}")

# %% trap="08.3" role="repair"
claim("loss of the causal model minus the entropy of the next token, in "
      "nats",
      causal - entropy, above=-0.05, below=0.1)

# %% [markdown] trap="08.3" role="more" topics="the loss in a gap · logits read one position off"
# **In a gap**, a model that sees both sides can have a loss below the entropy of the
# next token.

# %% trap="08.3" role="more"
claim("masked model's loss in a gap minus the causal model's loss for the "
      "next token", in_gap - causal, below=-0.2)
claim("entropy of the next token minus the masked model's loss in a gap, "
      "in nats",
      entropy - in_gap, above=0.2)

# %% [markdown] trap="08.3" role="more"
# **One position off.** A worse mistake also runs without an error: you pass the masked
# model the whole row and read the logits at position t as the prediction for t + 1. But
# those logits name the token at position t itself, which the model infers from its
# neighbours, so they mostly match the input.

# %% trap="08.3" role="more"
with torch.no_grad():
    logits = bert(test)
shifted = nll(logits[:, :-1], test[:, 1:]).item()
copied = (logits.argmax(-1) == test).float().mean().item()
print(f"logits read as the next token: {shifted:.1f} nats; "
      f"they name the token in view in {copied:.0%}")

# %% trap="08.3" role="more"
claim("loss when the logits are read one position off, where a uniform "
      "guess has a loss of 2.08",
      shifted, above=2.2)
claim("fraction of positions at which the model predicts the token in its "
      "input",
      copied,
      above=0.5)

# %% trap="08.3" role="exercise" points=3 difficulty=3 minutes=15
def next_token_nll(model, ids: torch.Tensor, mask_id: int) -> torch.Tensor:
    """Return a masked model's loss for each next token, in nats, as
    (N, T - 1).

    Entry [n, t - 1] is -ln p of ids[n, t]. For this entry, the model sees
    the tokens before position t. The model also sees a mask_id at position
    t. The model sees nothing after position t. Use the model's logits at
    position t. The logits can be large, and p must not underflow to 0.

    Args:
        model: maps tokens (N, t), 1 <= t <= T, to logits (N, t, vocab),
            float32; every position sees all others.
        ids: (N, T) int64 with T >= 2. Any memory order is possible.
        mask_id: the token that marks a gap; it can also occur in the text.

    No graph is built. Afterwards the grad mode is what it was. ids is
    unchanged.
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
# 1. The model looks at every position, so the row must not contain anything that the model must not see. Make one call for each t, with `ids[:, :t]` and one mask.
# 2. The logits at position t belong to the token at position t. Nothing is shifted.
# 3. `F.cross_entropy(logits, ids[:, t], reduction="none")` returns one value per row; stack the results along axis 1.

# %% [markdown] trap="08.3" role="keep"
# **Keep:** Compare losses only between models that answer the same question. A masked
# model fills gaps and sees both sides of each gap; to predict the next token, use a
# model that was trained for it. **In your own code:** Before you compare two losses,
# write down what each model had as input. **Source:** [Devlin et al. 2018,
# "BERT"](https://arxiv.org/abs/1810.04805), section 3.1. **Seen in the wild:**
# [huggingface/transformers
# 13818](https://github.com/huggingface/transformers/issues/13818): a user asked BERT
# and RoBERTa for next tokens, got a very large perplexity and saw simple sentences
# ranked wrong. [huggingface/transformers
# 3927](https://github.com/huggingface/transformers/issues/3927): a user compared a
# masked perplexity with the perplexity of GPT-2.

# %% [markdown] role="concept"
# ## BERT, GPT and T5 in one table
#
# Trap 08.3 compared two ways to train the same layers. There is a third way, which
# combines both kinds of model:
#
# | | mask | trained to predict | good for |
# |---|---|---|---|
# | encoder (BERT) | pads only | hidden tokens | classification, search |
# | decoder (GPT) | causal | the next token | writing |
# | encoder and decoder (T5) | text: pads; answer: causal | the next token of the answer | translating, summarizing |
#
# In **BERT**, each token looks at both sides. To classify a text, you put a special
# token, `[CLS]`, in front of the text, pass that token's final vector to a linear head,
# and fine-tune the head and the layers on labelled texts. In **GPT**, each token looks
# only at itself and earlier tokens, so GPT can continue any text, and every task can be
# written as a text to continue. **T5** reads the text with an encoder and writes the
# answer with a decoder. T5 is trained by *span corruption*: a few neighbouring tokens
# of a text are replaced by one marker, and T5 has to write the missing tokens. For the
# text "the cat sat on the warm mat", T5 reads "the cat `<1>` the `<2>` mat" and writes
# "`<1>` sat on `<2>` warm `<3>`". The answer is short, so a training step costs less than
# if T5 wrote the whole text again.
#
# The two halves of T5 meet in *cross-attention*: the queries come from the answer, and
# the keys and values from the text. The rest of a block is similar in all three models.
# BERT's norm layers come after the sums, and GPT-2's norm layers are at the start of
# each branch (stage 5).

# %% role="concept"
cross = nn.MultiheadAttention(32, 4, batch_first=True)
answer, text = torch.randn(2, 3, 32), torch.randn(2, 7, 32)
read, looked = cross(answer, text, text)
print("result", tuple(read.shape), "weights", tuple(looked.shape))

# %% role="concept"
claim("cross-attention: number of keys that each answer token looks at",
      looked.shape[-1], expected=7)

# %% [markdown] trap="08.4" role="situation" core=true fault="attention writes all its scores to memory" symptom="attention runs out of memory for long sequences, n x n matrix, what does flash attention leave out"
# ## No score travels
#
# A GPU computes on data in small memories on its chip. Other data has to come from a
# large memory. On an A100:
#
# | | size | bytes per second |
# |---|---|---|
# | on the chip | `108` times `192` KB | `19` TB |
# | memory (HBM) | `40` GB | `1.5` TB |
#
# `written_out` writes the scores to memory, reads them for the softmax, writes the
# weights, and reads them for the last product. `tiled` keeps a block of 128 queries on
# the chip and fetches keys and values in tiles. Scores and weights never leave the chip
# (*flash attention*). A pull request says: "No score travels. At 4,096 tokens of 64
# values, traffic falls by a factor of dozens."

# %% trap="08.4" role="break"
def written_out(q, k, v):
    """Attention (..., M, E) by its formula, with all scores at once."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])       # (..., M, N)
    return scores.softmax(-1) @ v

def add_tile(top, total, out, q, keys, values):
    """Adds a tile of keys to the running sums of a block of queries.

    top (..., M, 1): the largest score so far; total (..., M, 1): the sum of
    exp(score - top); out (..., M, E): the values weighted by these.
    """
    scores = q @ keys.mT / math.sqrt(q.shape[-1])
    new = torch.maximum(top, scores.amax(-1, keepdim=True))
    fix, weights = (top - new).exp(), (scores - new).exp()
    total = total * fix + weights.sum(-1, keepdim=True)  # old ones shrink
    return new, total, out * fix + weights @ values

# %% trap="08.4" role="break"
def tiled(q, k, v, block=128, tile=128, fetch=lambda part: part):
    """Like written_out, for 128 queries and tiles of 128 keys at a time.

    fetch(part) stands for moving a part from memory to the chip.
    """
    done = []
    for rows in q.split(block, -2):
        rows = fetch(rows)                           # they stay
        top = rows.new_full((*rows.shape[:-1], 1), -math.inf)
        total, out = torch.zeros_like(top), torch.zeros_like(rows)
        for keys, values in zip(k.split(tile, -2), v.split(tile, -2)):
            top, total, out = add_tile(top, total, out, rows,
                                       fetch(keys), fetch(values))
        done.append(out / total)                     # back to memory
    return torch.cat(done, -2)

# %% trap="08.4" role="guess" quoted="wrong"
guess("08.4",
      "At 4,096 tokens, what is the traffic of `written_out` divided by "
      "the traffic of `tiled`?", unit="times")

# %% trap="08.4" role="look"
def tokens(n, heads=4, d=64, device="cpu"):
    """Random q, k and v (1, heads, n, d)."""
    return torch.randn(3, 1, heads, n, d, device=device).unbind()

def traffic(n):
    """Bytes that tiled moves for one head in 16 bits, in and out."""
    fetched = []

    def count(part):
        fetched.append(part.nbytes)
        return part

    # On "meta" tensors have no values. Larger tiles move as many bytes.
    q, k, v = (t.half() for t in tokens(n, heads=1, device="meta"))
    out = tiled(q, k, v, block=128, tile=2048, fetch=count)
    return sum(fetched) + out.nbytes

# %% trap="08.4" role="look"
def of_formula(n, d=64, size=2):
    """Bytes that written_out moves for one head."""
    once = 4 * n * d * size                  # q, k, v and out
    scores_and_weights = 2 * n * n * size    # each written, each read
    return once + 2 * scores_and_weights

moved = {n: (of_formula(n), traffic(n)) for n in (4096, 8192)}
for n, (out, tiles) in moved.items():
    print(f"{n:,} tokens: written out {out / 1e6:.0f} MB, tiled "
          f"{tiles / 1e6:.0f} MB")

# %% trap="08.4" role="look"
measured("08.4", moved[4096][0] / moved[4096][1], right=(3, 5))

# %% [markdown] trap="08.4" role="look"
# `tiled` saves a factor of nearly four, not dozens. Twice as many tokens still
# quadruple its traffic:

# %% trap="08.4" role="look"
claim("tiled attention: bytes moved for 8,192 tokens, divided by bytes "
      "moved for 4,096 tokens",
      moved[8192][1]
      / moved[4096][1], above=3.8)

# %% trap="08.4" role="look"
plot_bars(
    {f"{n:,} tokens, {name}": moved[n][k] / 1e6
     for k, name in enumerate(("written out", "tiled"))
     for n in (4096, 8192)},
    xlabel="MB moved",
    title="In tiles, traffic is a quarter but also grows fourfold",
    alt="Four bars. Written out, attention over 8,192 tokens moves four "
        "times the bytes of attention over 4,096 tokens. In tiles, both "
        "bars are a quarter as long, and their ratio is the same.")

# %% [markdown] trap="08.4" role="why"
# Without a mask, each query block reads all keys and values. With twice the tokens,
# twice as many blocks each read twice as much, so traffic grows fourfold. Tiling saves
# a constant factor, because each tile serves 128 queries.

# %% trap="08.4" role="why"
at_rest = ["Q1", "Q2", "K V 1", "K V 2", "K V 3", "out"]
chip = {"a block of queries comes": ["Q1", "", "", "", "", ""],
        "tile 1: top, total, out": ["Q1", "", "K V 1", "", "", "out"],
        "tile 2: rescale, add": ["Q1", "", "", "K V 2", "", "out"],
        "next block: all again": ["", "Q2", "K V 1", "", "", "out"]}
came = {step: [(0, 1, k)] for step, k in zip(chip, (0, 2, 3, 2))}
came["next block: all again"].append((0, 1, 1))
draw_ranks(
    {step: [at_rest, held] for step, held in chip.items()}, arrows=came,
    ranks=["memory", "chip"],
    title="Queries stay; keys and values pass by, once for each block",
    alt="Four steps with two rows, memory and chip. A block of queries "
        "moves to the chip and stays; tiles of keys and values follow one "
        "by one; for the next block of queries, the tiles come again.")

# %% [markdown] trap="08.4" role="repair"
# A softmax divides by a sum over *all* keys. Why are single tiles enough? Keep the
# largest score so far, `top`, and the running sum of $e^{s - \mathrm{top}}$. When a
# tile raises `top`, all old terms are too large by the same factor, so multiplying the
# sum and the output by $e^{\mathrm{old} - \mathrm{new}}$ corrects both (the *online
# softmax*).

# %% trap="08.4" role="repair"
draw_blocks(
    {"for each tile of keys": [
        ("queries, held", "keys, values: next tile"), "scores",
        "new top; fix = exp(old − new)",
        ("total × fix + sum of weights", "out × fix + weights · values"),
        "after the last tile: out / total"]},
    bypass={"for each tile of keys": [(3, 0)]},
    title="One factor corrects the sum and the output",
    alt="A loop of blocks. Queries and the next tile lead to scores, and "
        "these to a new top and the factor fix. Total and output are "
        "multiplied by fix, and the new terms are added. An arrow leads "
        "back to the next tile.")

# %% trap="08.4" role="repair"
q, k, v = tokens(1024)
off = (tiled(q, k, v) - written_out(q, k, v)).abs().max()

# %% trap="08.4" role="repair"
claim("largest difference between attention in tiles of 128 keys and "
      "attention by the formula", off, below=1e-4)

# %% [markdown] trap="08.4" role="repair"
# Memory in use now grows only linearly, as with torch's attention:

# %% trap="08.4" role="repair"
torch_s = F.scaled_dot_product_attention
sizes = [256, 512, 1024, 2048]
kept = {"written out": [], "torch's": []}                # bytes at a time
for n in sizes:
    qkv = tokens(n)
    kept["written out"].append(cost(lambda: written_out(*qkv)).peak)
    kept["torch's"].append(cost(lambda: torch_s(*qkv)).peak)

# %% trap="08.4" role="repair"
plot_bars(
    {f"{sizes[k]:,} tokens, {name}": values[k] / 2**20
     for name, values in kept.items() for k in (-2, -1)},
    xlabel="MiB in use at one time",
    title="Memory grows fourfold; with torch, twofold",
    alt="Four bars. Written out, 2,048 tokens need four times the memory "
        "of 1,024 tokens. torch's attention needs far less memory, for "
        "2,048 tokens twice as much as for 1,024.")

# %% trap="08.4" role="repair"
claim("torch's attention: bytes in use with 2,048 tokens divided by bytes "
      "with 1,024 tokens",
      kept["torch's"][-1] / kept["torch's"][-2], expected=2, within=0.1)

# %% [markdown] trap="08.4" role="repair"
# Drag in the next tile, and the older terms shrink by `fix`. Then switch off a
# correction. Rows whose largest score is in the first tile hide the mistake.

# %% role="explore" explorer="online_softmax"
from dlsys_helpers.explorers.online_softmax import online_softmax

online_softmax

# %% [markdown] trap="08.4" role="more" topics="only the running sum · products and rounding · what a real kernel adds"
# The next cell computes **only the running sum**, for one row of scores:

# %% trap="08.4" role="more"
def online(scores, tile):
    """Largest score, and sum of exp(score - largest), a tile at a time."""
    top, total = -math.inf, 0.0
    for part in scores.split(tile):
        new = max(top, part.max().item())
        fix = math.exp(top - new)                # 1 if nothing larger came
        total = total * fix + (part - new).exp().sum().item()
        top = new
    return top, total

# %% trap="08.4" role="more"
scores = 40 * torch.randn(1000)
top, total = online(scores, tile=64)
in_tiles = top + math.log(total)
at_once = scores.double().logsumexp(0).item()
bare = scores.exp().sum().item()                 # no maximum taken away
print(f"in tiles {in_tiles:.4f}, at once {at_once:.4f}, "
      f"without a maximum {bare}")

# %% trap="08.4" role="more"
claim("log of the sum of exponentials: value computed in tiles minus value "
      "computed at once",
      in_tiles - at_once, expected=0, within=1e-3)
claim("the sum of exponentials overflows if no maximum is subtracted",
      math.isinf(bare),
      expected=True)

# %% [markdown] trap="08.4" role="more"
# **Nothing is left out.** Without a mask, the matrix products of tiled attention need as
# many multiplications as the formula's; the rescaling adds a few more, and a few
# exponentials. In float32, its rounding errors are about as large. In `float16`, a flash
# kernel rounds less than the formula, because scores, maxima and sums stay in float32 on
# the chip. Only the exponentials, for the product with the values, and the result are
# rounded to `float16`.

# %% trap="08.4" role="more"
gap = (written_out(*qkv) - torch_s(*qkv)).abs().max()
size = {n: cost(lambda: tiled(*tokens(n, device="meta"))).peak
        for n in (1024, 2048)}

# %% trap="08.4" role="more"
claim("largest difference between attention by the formula and torch's "
      "attention", gap,
      below=1e-4)
claim("attention by formula: bytes in use with 2,048 tokens divided by "
      "bytes with 1,024 tokens",
      kept["written out"][-1] / kept["written out"][-2], expected=4,
      within=0.2)
claim("attention in tiles: bytes in use with 2,048 tokens divided by bytes "
      "with 1,024 tokens",
      size[2048] / size[1024], expected=2, within=0.1)
claim("matrix products: FLOPs of attention in tiles divided by FLOPs of "
      "the formula",
      flops(lambda: tiled(q, k, v)) / flops(lambda: written_out(q, k, v)),
      expected=1)
claim("4,096 tokens in 16 bits: bytes moved by the formula divided by "
      "bytes moved in tiles",
      moved[4096][0] / moved[4096][1], above=3, below=5)

# %% [markdown] trap="08.4" role="more"
# **A real kernel** does more than our count assumes. The L2 cache, which is on the chip
# but larger and slower than the memories in the table, answers many of the reads; our
# count leaves this cache out. The backward pass recomputes the scores, so it needs five
# matrix products instead of four. Under a causal mask, the kernel skips nearly half of
# the tiles of a long text. Test your own kernel with scores in the thousands, ragged
# tiles and rows without any key. The GPU section at the end measures the time.

# %% [markdown] trap="08.4" role="folklore"
# **Told:** Flash attention makes the traffic linear in the number of tokens.
# **Counted** for blocks of 128 queries and heads of 64 values, without the L2 cache:
# the memory *in use* is linear, but the bytes *moved* are not. The paper by Dao et al.
# proves this: flash attention moves on the order of $N^2 d^2 / M$ values if the chip
# has room for $M$ values, whereas the formula moves on the order of $N d + N^2$ values.
# At 1,024 tokens, including the backward pass, the authors measured `4.4` GB of traffic
# on an A100, compared with `40.3` GB for the formula, nine times as much.

# %% trap="08.4" role="exercise" points=5 difficulty=4 minutes=30
def tiled_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                    length: int, tile: int) -> torch.Tensor:
    """Attend causally from M queries to a cache.

    Take `tile` keys at a time. The queries are the last M of the `length`
    filled positions, so query i sees the keys 0 to i + length - M. A query
    that sees no key gets zeros. Scores are divided by sqrt(D). Scores can
    reach tens of thousands, of either sign.

    Args:
        q, k, v: (M, D), (N, D), (N, E), float32; M, D and E >= 1. Any
            memory order is possible. q, k and v are unchanged.
        length: 0 <= length <= N; later slots (NaN or inf) change nothing.

    Hold one tile of scores at a time: make no tensor whose size depends on
    N or length. For M >= tile, make no tensor with more than M * max(D, E,
    tile) values. Do not call torch's own attention. Each call reads the
    cache again. A call leaves earlier results unchanged.
    Example: q [[0.]], k [[1.], [2.], [nan]], v [[1.], [3.], [nan]], length
    2 and tile 1 give [[2.]].
    """
    # BEGIN SOLUTION
    M, D = q.shape
    top = torch.full((M, 1), -math.inf)
    total, out = torch.zeros(M, 1), torch.zeros(M, v.shape[1])
    last = torch.arange(M)[:, None] + length - M     # the last key it sees
    for start in range(0, length, tile):
        stop = min(start + tile, length)
        scores = q @ k[start:stop].T / math.sqrt(D)
        hidden = torch.arange(start, stop) > last
        scores = scores.masked_fill(hidden, -math.inf)
        new = torch.maximum(top, scores.amax(1, keepdim=True))
        base = new.masked_fill(new == -math.inf, 0)  # sees nothing yet
        fix, weights = (top - base).exp(), (scores - base).exp()
        total = total * fix + weights.sum(1, keepdim=True)
        out = out * fix + weights @ v[start:stop]
        top = new
    return out / total.masked_fill(total == 0, 1)
    # END SOLUTION

# %% [markdown] trap="08.4" role="hint"
# 1. Go through the keys tile by tile, and keep three things per query: the largest score so far, the sum of the weights and the weighted sum of the values. When a tile has a larger score, multiply both sums by exp(old largest - new largest). Let the loop end at `length`, and slice k and v yourself, so that the last tile can be short and you read no empty slot. (A weight of zero times NaN is NaN.)
# 2. Query `i` sees key `j` if `j <= i + length - M`. Set all other scores of the tile to minus infinity.
# 3. A query that has seen no key so far has a largest score of minus infinity, and subtracting minus infinity from itself gives NaN. For such a query, subtract 0 instead; its sum stays 0, so divide by 1.

# %% [markdown] trap="08.4" role="keep"
# **Keep:** With a running maximum, a running sum and one correction factor, you can
# compute a softmax tile by tile. Memory grows linearly with sequence length, but
# arithmetic and traffic grow quadratically. **In your own code:** Look for a tensor of
# shape `(..., N, N)`. Call `scaled_dot_product_attention` instead, and measure the
# memory, because on a CPU, dropout or a mask with gradients makes SDPA write out the
# matrix. **Source:** [Milakov & Gimelshein 2018](https://arxiv.org/abs/1805.02867),
# algorithm 3, for the online softmax; [Dao et al.
# 2022](https://arxiv.org/abs/2205.14135), section 2.1 for the A100's memories, section
# 3.2, theorem 2 and figure 2 (left) for the traffic, algorithm 1 for loops that hold
# the keys instead; [Dao 2023](https://arxiv.org/abs/2307.08691), sections 3.1 and 3.2,
# for the loop order used here, the tiles skipped under a causal mask and the five
# products; [Shah et al. 2024](https://arxiv.org/abs/2407.08608), table 3, for the
# rounding error in 16 bits, measured against float64: 1.9e-4, compared with 3.2e-4 for
# the formula. **Seen in the wild:** [tracel-ai/cubecl
# 1070](https://github.com/tracel-ai/cubecl/pull/1070): rows without a key were NaN in
# the reference but finite in the kernel, and the test did not notice the difference.
# [pytorch/pytorch 101967](https://github.com/pytorch/pytorch/issues/101967): a NaN at a
# masked position reached the result.

# %% [markdown] trap="08.5" role="situation" symptom="GPU kernel reads an eighth of the data and is as slow as reading all, uncoalesced memory access, array of structs" fault="uncoalesced reads of one field of every record"
# ## One field of every record
#
# A table of particles holds records of eight 32-bit floats: position, velocity, mass,
# charge. Your kernel needs only the masses, an eighth of the table. Thread `i` reads
# the mass of record `i`. "An eighth of the bytes," says the commit message, "so an
# eighth of the time."

# %% trap="08.5" role="break"
SECTOR, WARP, FLOAT = 32, 32, 4                  # bytes, threads, bytes

def moved(address, threads=WARP):
    """Bytes that one load of a warp moves; thread i reads address(i)."""
    return SECTOR * len({address(i) // SECTOR for i in range(threads)})

fields, mass = 8, 6
table_bytes = WARP * fields * FLOAT              # the records of a warp
by_record = moved(lambda i: FLOAT * (fields * i + mass))

# %% trap="08.5" role="guess" quoted="wrong"
guess("08.5",
      "Suppose all masses were side by side, starting at byte 4. How many "
      "bytes does memory send if the 32 threads of a warp load 32 masses?",
      unit="bytes")

# %% trap="08.5" role="look"
share = by_record / table_bytes
shifted = moved(lambda i: FLOAT * (i + 1))
print(f"of {table_bytes} bytes {by_record} travel, "
      f"{WARP * FLOAT} bytes are used")
print(f"side by side, from byte 4: {shifted} bytes travel")

# %% trap="08.5" role="look"
measured("08.5", shifted, right=(160, 160))

# %% trap="08.5" role="look"
claim("bytes moved to read the masses, divided by the bytes of the whole "
      "table", share, expected=1)

# %% [markdown] trap="08.5" role="why"
# Memory is not read one value at a time. The 32 threads of a *warp* issue their loads
# together, and memory answers in whole *sectors* of 32 bytes. A record of eight floats
# fills one sector, so each thread touches a sector of its own. If the masses are side
# by side, 32 of them fill four sectors, or touch five if the first mass is not at the
# start of a sector.

# %% trap="08.5" role="why"
records, masses = torch.full((8, 8), 0.25), torch.zeros(8, 8)
records[:, mass] = 1                             # thread i: record i
masses[0] = 1
draw_grids(
    {"by record": records, "masses side by side": masses},
    captions={"by record": "dark: read; pale: moved for nothing",
              "masses side by side": "one sector, all of it read"},
    rows="sector", columns="float",
    title="Eight threads move eight sectors, or only one",
    alt="Two grids of eight sectors with eight floats. By record, all "
        "sectors are moved, and one float of each sector is read. Side by "
        "side, only the first sector is moved, and all its floats are "
        "read.")

# %% [markdown] trap="08.5" role="repair"
# Change the layout: put all masses side by side, so that one sector brings eight masses.
# Loads of neighbouring threads that fall into few sectors are called *coalesced*.

# %% trap="08.5" role="repair"
by_field = moved(lambda i: FLOAT * i)
strides = {s: moved(lambda i: FLOAT * s * i) // SECTOR
           for s in (1, 2, 4, 8, 16, 32)}
backwards = moved(lambda i: FLOAT * (31 - i)) // SECTOR
print(f"side by side {by_field} bytes travel; sectors from the last to "
      f"the first: {backwards}")

# %% trap="08.5" role="repair"
claim("masses side by side: bytes moved divided by bytes used",
      by_field / (WARP * FLOAT), expected=1)

# %% trap="08.5" role="repair"
plot_columns(
    strides, xlabel="floats from thread to thread", ylabel="sectors per "
                                                           "warp",
    title="From a stride of eight on, each thread has its own sector",
    alt="Six columns: 4, 8 and 16 sectors at strides 1, 2 and 4, then 32 "
        "sectors at strides 8, 16 and 32.")

# %% [markdown] trap="08.5" role="repair"
# A matrix that is stored row by row has the same problem, even without records: if a
# warp reads down a column, neighbouring threads are a row apart. What matters is the
# index that varies from thread to thread.
#
# Before you move a control below, predict how many sectors the warp will touch.

# %% role="explore" explorer="warp_addresses"
from dlsys_helpers.explorers.warp_addresses import warp_addresses

warp_addresses

# %% [markdown] trap="08.5" role="more" topics="order, starts and strides · down a column · caches"
# The **order** of the threads within a warp costs nothing. At stride 1, starting one
# value later costs one more sector. For values of 4 bytes, the number of sectors stops
# growing at stride 8, because from there on, each thread has its own sector.

# %% trap="08.5" role="more"
claim("number of sectors at stride 8 divided by number of sectors at "
      "stride 1",
      strides[8] / strides[1], expected=8)
claim("number of sectors at stride 32 divided by number of sectors at "
      "stride 8",
      strides[32] / strides[8], expected=1)
claim("masses side by side, starting at byte 4: bytes moved", shifted,
      expected=160)

# %% [markdown] trap="08.5" role="more"
# **Down a column** of a matrix that is stored row by row, neighbouring threads are a row
# apart:

# %% trap="08.5" role="more"
matrix = torch.empty(64, 256)
row_step, column_step = (FLOAT * s for s in matrix.stride())
along = moved(lambda i: column_step * i) // SECTOR
down = moved(lambda i: row_step * i) // SECTOR
print(f"along a row {along} sectors, down a column {down}")

# %% trap="08.5" role="more"
claim("number of sectors down a column divided by number of sectors along "
      "a row",
      down / along, expected=8)

# %% [markdown] trap="08.5" role="more"
# **Caches.** We count the bytes of one load, not its time. A cache may still hold a
# sector when the next load needs the rest of the sector, so that no bytes are wasted. A
# kernel that reads *all* fields one after the other can rely on the cache. A copy that
# starts one value later also profits from the cache: by the sector count, it should
# reach four fifths of the full rate, but NVIDIA measured about nine tenths on a V100,
# because the next warp used the rest of the fifth sector. On the other hand, memory may
# send up to four sectors to the L2 cache when only one was requested, so strides above
# 8 can still cost extra time.

# %% trap="08.5" role="exercise" points=3 difficulty=2 minutes=15
def sectors(addresses: list, size: int) -> list:
    """List how many sectors each warp of a block touches.

    A warp is 32 consecutive threads; the last one may have fewer. A sector
    is 32 bytes and begins at a multiple of 32. A thread reads `size` bytes,
    1 to 16; if they are in two sectors, it touches both.

    Args:
        addresses: for each thread, the byte where its read begins, 0 or
            more. Addresses come in any order, and several can be equal. A
            thread that reads nothing has None. The list is unchanged.

    Example: sectors([0, 4, 64, None], 4) is [2].
    """
    # BEGIN SOLUTION
    counts = []
    for start in range(0, len(addresses), 32):
        touched = set()
        for first in addresses[start:start + 32]:
            if first is not None:
                last = first + size - 1
                touched.update((first // 32, last // 32))
        counts.append(len(touched))
    return counts
    # END SOLUTION

# %% [markdown] trap="08.5" role="hint"
# 1. Go through the list in slices of 32, and begin a new set for each slice.
# 2. Byte `b` is in sector `b // 32`. A read of at most 16 bytes touches at most two sectors, the sector of its first byte and the sector of its last byte.
# 3. The last byte is `first + size - 1`. Skip `None`; `0` is an address.

# %% [markdown] trap="08.5" role="keep"
# **Keep:** A warp moves whole sectors of 32 bytes, so let neighbouring threads read
# neighbouring values. **In your own code:** Look at the factor by which the thread's
# index is multiplied. In Nsight Compute, read `Sectors/Req` in the table of the L1 cache:
# the ideal is 4 for 32-bit values side by side and 8 for 64-bit values. **Source:** [CUDA
# C++ Best Practices
# Guide](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#coalesced-access-to-global-memory),
# section 10.2.1, "Coalesced Access to Global Memory": sectors of 32 bytes from compute
# capability 6.0 on, the order within a warp, and the V100's copies (10.2.1.3); [CUDA
# Programming
# Guide](https://docs.nvidia.com/cuda/cuda-programming-guide/02-basics/writing-cuda-kernels.html),
# section 2.3.4.1; [Nsight Compute, Profiling
# Guide](https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html), "Memory
# Tables"; [CUDA Driver
# API](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html),
# `CU_LIMIT_MAX_L2_FETCH_GRANULARITY`, for up to 128 bytes a fetch.

# %% [markdown] trap="08.6" role="situation" fault="shared memory bank conflicts in a padded tile" symptom="shared memory transpose slow, column access in a 32 by 32 tile, why pad to 33 columns"
# ## Columns that nobody uses
#
# To transpose a matrix without strided access, you fetch a tile of 32 x 32 floats into
# *shared memory*, a small memory on the chip for the threads of a block. You fill the
# tile row by row and read it column by column. Shared memory has no sectors; it is
# divided into 32 *banks*. Word `w` of 4 bytes is in bank `w % 32`, and a bank returns
# one word per *turn*. Your profiler reports conflicts, and a forum answer tells you to
# make the tile wider and leave the last columns empty. You make the tile 40 columns
# wide.

# %% trap="08.6" role="break"
def turns(words):
    """Turns that 32 banks need to return these words to a warp."""
    banks = [{w for w in words if w % 32 == bank} for bank in range(32)]
    return max(map(len, banks))

def row(width):
    return [i for i in range(32)]                # thread i reads column i

def column(width):
    return [width * i for i in range(32)]        # thread i reads row i

found = {width: (turns(row(width)), turns(column(width)))
         for width in (32, 33, 34, 36, 40)}

# %% trap="08.6" role="guess"
guess("08.6",
      "How many turns does a warp of 32 threads need to read one column of "
      "the tile that is 40 columns wide?",
      choices=["`32`",
               "`16`",
               "`8`",
               "`1`"])

# %% trap="08.6" role="look"
print(f"40 columns wide: a row {found[40][0]} turn, "
      f"a column {found[40][1]}")

# %% trap="08.6" role="look"
measured("08.6", 2)

# %% trap="08.6" role="look"
claim("number of turns to read one column of a tile that is 40 columns "
      "wide",
      found[40][1], expected=8)

# %% trap="08.6" role="look"
plot_columns(
    {w: turns(column(w)) for w in (*range(32, 42), 48)},
    xlabel="columns of the tile", ylabel="turns for one column",
    title="Only odd widths read a column in one turn",
    alt="A chart with one column for each width from 32 to 41 and for 48. "
        "Odd widths take 1 turn, a width of 32 takes 32 turns, 40 takes 8 "
        "and 48 takes 16.")

# %% [markdown] trap="08.6" role="why"
# With rows of 32 words, a whole column is in one bank. With 33 words, each row begins
# one bank later, so a column uses every bank once. With 40 words, each row begins eight
# banks later, so every fourth row is back at the first bank.

# %% trap="08.6" role="why"
draw_grids(
    {f"{width} wide": [[w % 32 == bank for bank in range(32)]
                       for w in column(width)[:8]]
     for width in (32, 33, 40)},
    rows="row", columns="bank",
    title="At a width of 33, a column's words are in different banks",
    alt="Three grids of eight rows and 32 banks. At a width of 32, all "
        "words are in bank 0. At 33, the words form a diagonal, each word "
        "in its own bank. At 40, four banks have two words each.")

# %% [markdown] trap="08.6" role="repair"
# What matters is the step from thread to thread. With a step of `s` words, the number of
# turns is the greatest common divisor of `s` and 32. One extra column, 33 instead of 32,
# is enough.

# %% trap="08.6" role="repair"
agree = all(turns([step * i for i in range(32)]) == math.gcd(step, 32)
            for step in range(1, 200))
same_word = turns([7] * 32)
two_words = turns([7, 39] * 16)
print(f"all threads read one word: {same_word}, two words of a bank: "
      f"{two_words}")

# %% trap="08.6" role="repair"
claim("the number of turns is gcd(step, 32) for steps of 1 to 199", agree,
      expected=True)

# %% [markdown] trap="08.6" role="more" topics="other widths · one word for all · wider reads, and what turns cost"
# The next cell counts the turns for **other widths** and for **one word for all**
# threads. If all threads read the same word, the bank returns it once, to all threads.
# Only reads of *different* words in the same bank wait for each other.

# %% trap="08.6" role="more"
claim("number of turns to read one column of a tile that is 32 columns "
      "wide",
      found[32][1], expected=32)
claim("number of turns to read one column of a tile that is 33 columns "
      "wide",
      found[33][1], expected=1)
claim("number of turns if all threads read the same word",
      same_word, expected=1)
claim("number of turns if the threads read two different words of one bank",
      two_words, expected=2)

# %% [markdown] trap="08.6" role="more"
# **Wider reads.** This model is for reads of 4 bytes per thread. A bank returns no more
# than 4 bytes per turn, so 8 bytes of its own for each of 32 threads take at least two
# turns, and 16 bytes at least four turns. NVIDIA's guides do not say which threads share
# a turn. And the number of turns is not the running time of a kernel. In one of NVIDIA's
# matrix products, each column of a tile fell into a single bank; one more column raised
# the effective bandwidth on a V100 from `140.2` to `199.4` GB/s.

# %% trap="08.6" role="exercise" points=2 difficulty=2 minutes=10
def conflict_degree(addresses: list) -> int:
    """Count the turns that shared memory needs for one read by a warp.

    A word is 4 bytes and begins at a multiple of 4, and word w is in bank w
    % 32. In a turn, each bank returns one word, to all threads that read
    any of the word's bytes. If no thread reads, there is no turn.

    Args:
        addresses: for each of at most 32 threads, the byte that it reads, 0
            or more. A thread that reads nothing has None. The list is
            unchanged.

    Example: conflict_degree([0, 128, 2, None]) is 2.
    """
    # BEGIN SOLUTION
    banks = {}
    for address in addresses:
        if address is not None:
            word = address // 4
            banks.setdefault(word % 32, set()).add(word)
    return max(map(len, banks.values()), default=0)
    # END SOLUTION

# %% [markdown] trap="08.6" role="hint"
# 1. In the example, bytes 0 and 2 belong to word 0, and byte 128 to word 32. Which bank holds both words?
# 2. Keep a set of words for each bank; a set counts a word once.
# 3. The answer is the size of the largest set, or 0 if there is no set.

# %% [markdown] trap="08.6" role="keep"
# **Keep:** A bank of shared memory returns different words one after the other. If each
# row of the tile is one word longer than 32, the words of a column are in different
# banks. **In your own code:** Write down the step between neighbouring threads in
# words; 32 threads evenly spaced by an odd step have no conflicts. If a warp reads
# parts of two columns, count the turns instead. **Source:** [CUDA C++ Best Practices
# Guide](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#shared-memory-and-memory-banks),
# section 10.2.3.1, "Shared Memory and Memory Banks", and 10.2.3.3, table 3, for the
# product; [CUDA Programming
# Guide](https://docs.nvidia.com/cuda/cuda-programming-guide/02-basics/writing-cuda-kernels.html),
# section 2.3.4.2, for one word that all threads read, and 2.3.4.2.2 for this transpose.

# %% [markdown] trap="08.7" role="situation" symptom="rare branch in a CUDA kernel is slow, warp divergence, if with few threads" fault="warp divergence: a rare branch holds up most warps"
# ## A branch for one thread in twenty
#
# Most values take a short path of 10 instructions. One in twenty, at random, is an
# outlier and takes a long path of 100 instructions. "Rare enough," says a review. "On
# average, it adds 5 of the 100 instructions."
#
# The 32 threads of a warp issue their instructions together. If the threads of a warp
# disagree, the warp executes both paths, and the threads that are not on the current path
# wait.

# %% trap="08.7" role="break"
SHORT, LONG, WARPS = 10, 100, 4000
outlier = torch.rand(WARPS, 32) < 0.05           # (warps, threads)

def issued(takes_long):
    """Instructions that warps issue; takes_long: (warps, 32) of bool."""
    long = takes_long.any(1).sum() * LONG
    short = (~takes_long).any(1).sum() * SHORT
    return (long + short).item()

wanted = (outlier.sum() * LONG + (~outlier).sum() * SHORT).item() / 32

# %% trap="08.7" role="guess" quoted="wrong"
guess("08.7",
      "In what percentage of the warps does at least one thread take the "
      "long path?", unit="%")

# %% trap="08.7" role="look"
share = outlier.any(1).float().mean().item()
print(f"warps with an outlier: {share:.0%}, expected "
      f"{1 - 0.95 ** 32:.0%}")
print("instructions issued, divided by instructions needed: "
      f"{issued(outlier) / wanted:.1f}")

# %% trap="08.7" role="look"
measured("08.7", 100 * share, right=(75, 87))

# %% trap="08.7" role="look"
claim("fraction of warps that execute the long path", share,
      expected=1 - 0.95 ** 32, within=0.03)

# %% [markdown] trap="08.7" role="why"
# A warp skips the long path only if all 32 threads take the short path, which rarely
# happens with 32 random values. So put values that take the same path side by side:
# sort them, or write the outliers into a list and pass the list to a second kernel.

# %% trap="08.7" role="repair"
together = outlier.flatten().sort().values.view(WARPS, 32)
halves = torch.arange(64 * 32).view(-1, 32) < 32 * 32
stripes = torch.arange(64 * 32).view(-1, 32) % 2 == 0
print(f"sorted: {issued(together) / wanted:.2f}")
print(f"first half against second: {issued(halves)}, "
      f"even against odd: {issued(stripes)} instructions")

# %% trap="08.7" role="repair"
shown = {"as they come": outlier[::350], "sorted": together[::350]}
waits = {name: w.any(1, keepdim=True) & ~w for name, w in shown.items()}
draw_grids(
    {name: 0.35 * waits[name] + w for name, w in shown.items()},
    marks=shown, rows="warp", columns="thread",
    legend="takes the long path",
    captions={"as they come": "pale: waits for the long path"},
    title="One outlier holds up a warp; sorted outliers share warps",
    alt="Two grids of warps by 32 threads. As they come, most rows hold an "
        "outlier, and the rest of the row waits. Sorted, the outliers fill "
        "whole rows, and no other row waits.")

# %% trap="08.7" role="repair"
claim("sorted values: number of instructions issued divided by number of "
      "instructions needed",
      issued(together) / wanted, below=1.05)

# %% [markdown] trap="08.7" role="repair"
# Sorting also costs time and scatters the addresses (trap 08.5). Measure whether
# sorting pays off.

# %% [markdown] trap="08.7" role="more" topics="where the boundary falls · predicates · warps that stay split"
# **Where the boundary is.** A branch whose boundary is between two warps costs nothing
# extra, as in `if i < n / 2` when half of n is a multiple of 32. If the boundary is
# inside a warp, that warp executes both sides. A branch that alternates between
# threads, such as `if i % 2`, splits every warp.

# %% trap="08.7" role="more"
claim("unsorted values: number of instructions issued divided by number of "
      "instructions needed",
      issued(outlier) / wanted, above=5.5, below=6.8)
claim("instructions for a branch on even or odd, divided by instructions "
      "for a branch on halves",
      issued(stripes) / issued(halves), expected=2)

# %% [markdown] trap="08.7" role="more"
# Our count leaves out two things. **Predicates:** If a path has only a few
# instructions, the compiler may do without a branch. Every warp then issues both paths,
# even if its threads agree, and a *predicate* determines which threads keep the result.
# In that case, sorting saves nothing, but there was little to save. **Warps that stay
# split:** Threads that took different paths need not rejoin at the end of the paths.
# Since Volta, a warp may stay split, and the code that follows is issued once for each
# part; `__syncwarp()` makes the parts rejoin.

# %% trap="08.7" role="exercise" points=2 difficulty=2 minutes=10
def warp_passes(paths: list, lengths: dict) -> int:
    """Count the instructions that the warps of a block issue at a branch.

    A warp is 32 consecutive threads; the last one may have fewer. For each
    path that at least one of its threads takes, a warp issues the path's
    instructions once, while the other threads wait.

    Args:
        paths: for each thread, in order, the name of its path. A thread
            that has already left has None.
        lengths: the number of instructions on each path, by name, 0 or
            more. Two paths can have the same length.

    paths and lengths are unchanged.
    Example: warp_passes(["a", "b", "a", None], {"a": 5, "b": 2}) is 7.
    """
    # BEGIN SOLUTION
    issued = 0
    for start in range(0, len(paths), 32):
        taken = set(paths[start:start + 32]) - {None}
        issued += sum(lengths[path] for path in taken)
    return issued
    # END SOLUTION

# %% [markdown] trap="08.7" role="hint"
# 1. Go through `paths` in slices of 32. Within a slice, it only matters which names occur, not how often.
# 2. `set(paths[start:start + 32])` contains each name once; remove `None` from this
#    set.
# 3. Add up `lengths[name]` for the names of each set, over all slices; the last slice may be short.

# %% [markdown] trap="08.7" role="keep"
# **Keep:** A warp issues every path that at least one of its 32 threads takes, so a
# path taken by one thread in twenty is not rare. Group values that take the same path.
# **In your own code:** Ask whether a condition is the same for the whole warp; in
# Nsight Compute, under "Warp State Statistics", read `Avg. Active Threads Per Warp`
# and, next to it, `Avg. Not Predicated Off Threads Per Warp`. **Source:** [CUDA C++
# Best Practices
# Guide](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#branching-and-divergence),
# section 13.1, "Branching and Divergence", and 13.2, "Branch Predication"; [CUDA
# Programming
# Guide](https://docs.nvidia.com/cuda/cuda-programming-guide/03-advanced/advanced-kernel-programming.html),
# section 3.2.2.1, "SIMT Execution Model".

# %% [markdown] trap="08.8" role="situation" fault="small operations are not fused: launches and traffic" symptom="GPU idle with many small operations, kernel launch overhead, fuse elementwise operations"
# ## A chain of small steps
#
# You write the activation GELU as nine torch operations, such as multiply, add and tanh.
# Each operation is a separate *kernel*. The host launches the kernel, which reads its
# input from memory and writes its output back. Assume that the host can launch one kernel
# every four microseconds, and that the device, an H200, moves 4.8 TB per second. A single
# *fused* kernel could do all nine operations in one pass. You compare the chain with the
# fused kernel on 2^28 values of 16 bits, where the launches hardly matter.

# %% trap="08.8" role="break"
def gelu(x):
    """GELU by its tanh formula, one torch operation at a time."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + torch.tanh(inner))

LAUNCH, RATE = 4e-6, 4.8e12                      # seconds, bytes/s

def predicted(numbers, launches, tensors):
    """Microseconds: launches or traffic, whichever takes longer."""
    return 1e6 * max(launches * LAUNCH, tensors * numbers * 2 / RATE)

# %% trap="08.8" role="guess"
guess("08.8",
      "How fast is the fused kernel, as a multiple of the speed of the "
      "chain of nine kernels?", unit="times")

# %% trap="08.8" role="look"
x = torch.empty(4096, device="meta", dtype=torch.float16)
chain = cost(lambda: gelu(x))
fused = cost(lambda: F.gelu(x, approximate="tanh"))
# nine kernels write a tensor each; four of them read two, five one
travel = 9 + 4 * 2 + 5
times = {name: [predicted(2**n, *args) for n in range(12, 29, 2)]
         for name, args in (("chain", (chain.orders, travel)),
                            ("fused", (fused.orders, 2)))}
gain = {2**n: a / b for n, a, b in zip(range(12, 29, 2), *times.values())}
print(f"{chain.orders} launches, {travel} tensors that travel, fused "
      f"{fused.orders} and 2: {gain[2**28]:.0f} times at 2^28 numbers")

# %% trap="08.8" role="look"
measured("08.8", gain[2**28], right=(8, 16))

# %% trap="08.8" role="look"
claim("predicted speed-up of the fused kernel for 2^28 values",
      gain[2**28], expected=11,
      within=0.01)

# %% trap="08.8" role="look"
plot_lines(
    [2**n for n in range(12, 29, 2)], times, xlabel="values of 16 bits",
    ylabel="microseconds, predicted", logx=True, logy=True,
    title="Launches decide, then traffic, and the fused kernel saves both",
    alt="Two lines on log axes, chain above fused. Both are flat for few "
        "values and rise in proportion for many. The lines are about a "
        "factor of ten apart at both ends.")

# %% [markdown] trap="08.8" role="why"
# On small tensors, a chain takes as long as all of its launches together, whatever the
# operations compute. On large tensors, memory traffic determines the time, because each
# step writes its result to memory and the next step reads the result back. The fused
# kernel reads once, computes on the chip and writes once.

# %% [markdown] trap="08.8" role="repair"
# `F.gelu` is such a fused kernel. What does a kernel look like from the inside? A kernel
# is a *program* that the GPU runs in many instances. Each instance knows its own number
# and handles one block of positions. If the last block is not full, a kernel that does
# not mask this block reads and writes memory that is not its own. In the cell below, two
# functions stand in for the device's load and store:

# %% trap="08.8" role="repair"
memory = {"x": torch.randn(10), "y": torch.full((10,), math.nan)}

def load(name, places):
    return memory[name][places]

def store(name, places, values):
    memory[name][places] = values

def double(load, store, n, block, program):
    """Program number `program` of a kernel that writes y = 2 x."""
    places = program * block + torch.arange(block)
    places = places[places < n]                  # the mask of the tail
    store("y", places, 2 * load("x", places))

for program in range(math.ceil(10 / 4)):
    double(load, store, 10, 4, program)

# %% trap="08.8" role="repair"
claim("largest difference between y and 2 x for ten values in blocks of "
      "four",
      (memory["y"] - 2 * memory["x"]).abs().max(), expected=0)

# %% [markdown] trap="08.8" role="more" topics="where launch and traffic are equal · counts of the chain"
# **Launch and traffic are equal** in time at several million values, for one operation
# that reads and writes each value. Most activation tensors of a small model have far
# fewer values. So before you fuse operations, predict the time for launches and the
# time for traffic.

# %% trap="08.8" role="more"
even = LAUNCH * RATE / 4                         # 2 bytes in, 2 out
claim("millions of values at which launch and traffic take equally long",
      even / 1e6, expected=4.8)
claim("number of launches in the chain divided by number of launches of "
      "the fused kernel",
      chain.orders / fused.orders, above=7)
claim("predicted speed-up of the fused kernel for 4,096 values", gain[4096],
      expected=chain.orders)
claim("number of launches in the chain", chain.orders, expected=9)

# %% trap="08.8" role="exercise" points=3 difficulty=2 minutes=15
def silu_gate(load, store, n: int, block: int, program: int) -> None:
    """Run one program of a kernel that writes y = a * sigmoid(a) * b.

    load("a", places) and load("b", places) return the values at these
    positions. store("y", places, values) writes one value to each position.
    places is an int64 tensor (m,) of positions from 0 to n - 1. The memory
    beyond belongs to somebody else.

    Program p handles `block` positions beginning at p * block, or as many
    as are left. There are as many programs as n needs. They run in any
    order. Programs of other kernels can run in between, and programs share
    nothing. Load each value once, and store nothing but y. In absolute
    value, a can reach 1000 and b a million, and y must stay finite.

    Example: with n 5 and block 4, program 1 loads and stores only position
    4.
    """
    # BEGIN SOLUTION
    places = program * block + torch.arange(block)
    places = places[places < n]
    a, b = load("a", places), load("b", places)
    store("y", places, a * torch.sigmoid(a) * b)
    # END SOLUTION

# %% [markdown] trap="08.8" role="hint"
# 1. Which positions belong to this program? First write down the positions for the
#    example.
# 2. Load a and b into variables, compute with these variables, and store once. `torch.sigmoid` is safe for large values.
# 3. The first position is `program * block`; the last position is below `n` and below the first position of the next program.

# %% [markdown] trap="08.8" role="keep"
# **Keep:** In a chain of elementwise operations, launches determine the time on small
# tensors, and memory traffic on large tensors. A fused kernel saves both. If you write a
# kernel, mask the last block.
# **In your own code:** Count the operations between two matrix products. `torch.compile`
# fuses chains, and CUDA graphs launch many kernels at once. **Source:** [NVIDIA, "Getting
# Started with CUDA Graphs"](https://developer.nvidia.com/blog/cuda-graphs/) measures a
# chain of 20 kernels of 2.9 us each on a V100: 9.6 us per kernel if the host waits for
# each kernel, 3.8 us if the host launches ahead, and 3.4 us as a graph. So our four
# microseconds are the rounded time between two launches.

# %% [markdown] role="concept"
# ## The roof over a kernel
#
# Trap 08.8 counted launches and bytes. A third limit is arithmetic. In a second, a GPU
# can move only so many bytes and do only so many operations. A kernel's number of
# operations per byte, its *arithmetic intensity*, determines which of the two limits
# the kernel reaches. A plot of both limits is a *roofline*. On the roofline's slope, a
# kernel waits for memory (*memory-bound*). On the flat roof, a kernel computes as fast
# as the device can (*compute-bound*). A kernel so small that its launch takes longer
# than both its traffic and its arithmetic is *launch-bound*.
#
# Choose a kernel and a sequence length below. Which form of attention moves off the
# sloped part? And where on the roofline is the decoding of a single token, at any
# sequence length?

# %% role="explore" explorer="roofline"
from dlsys_helpers.explorers.roofline import roofline

roofline

# %% [markdown] role="concept"
# ## Reading a profile
#
# `torch.profiler` returns a row for each operation. To find out what to fix, ask four
# questions in this order:
#
# 1. Does the **host** hold up the step, because it fetches values one by one with
#    `.item()`, loads data, or spends the time in Python itself? On a GPU, each
#    `.item()` waits until everything launched so far on its stream is done.
# 2. Are there many calls that move only a few bytes each? Then the limit is the **launch**.
# 3. Are there few FLOPs for each byte moved? Then the limit is **memory**.
# 4. Are there many FLOPs for each byte? Then the limit is **compute**. If a GPU still stays
#    far below both roofs, look at the addresses (08.5, 08.6) and branches (08.7).
#
# The cell below traces three steps on this CPU. Each step sends the same 512 rows through
# the same two layers, and each step has a different fault. Read each trace's rows, and
# name the fault before you open the cell that defines the steps.

# %% role="concept" tags=["plumbing"]
os.environ["KINETO_LOG_LEVEL"] = "9"             # no notes on a missing GPU
from torch.profiler import profile, supported_activities

net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
inputs = torch.randn(512, 256)
small, wide = torch.ones(64), torch.ones(2**21)

def chain(x, times):
    for _ in range(times):
        x = x * 0.5 + 1.0

STEPS = {"A": lambda: (net(inputs), chain(wide, 12)),
         "B": lambda: [row.norm().item() for row in net(inputs)],
         "C": lambda: (net(inputs), chain(small, 800))}

# %% role="concept" tags=["plumbing"]
COUNTED = {"addmm", "gelu", "mul", "add", "linalg_vector_norm",
           "_local_scalar_dense"}                # what .item() calls

def traced(step):
    """Operation, calls, us, FLOPs and bytes moved of a step's rows."""
    with torch.no_grad(), profile(
            activities=supported_activities(), record_shapes=True,
            with_flops=True) as trace:
        step()
    rows = []
    for row in trace.key_averages(group_by_input_shape=True):
        name = row.key.removeprefix("aten::")
        sizes = [math.prod(shape) for shape in row.input_shapes]
        if name in COUNTED:                      # inputs, and one result
            moved = 4 * row.count * (sum(sizes) + max(sizes))
            rows.append((name, row.count, row.self_cpu_time_total,
                         row.flops, moved))
    return sorted(rows, key=lambda row: -row[2])

# %% role="concept" tags=["plumbing"]
TRACES = {name: traced(step) for name, step in STEPS.items()}
for name, rows in TRACES.items():
    print(f"trace {name}")
    for what, calls, us, work, moved in rows:
        print(f"  {what:20} {calls:5} calls {us:8.0f} us "
              f"{work / 1e6:6.1f} MFLOP {moved / 1e6:7.2f} MB")

# %% [markdown] role="concept"
# Which step waits for the host, and which waits for launches? And how would you repair
# the step that waits for neither? The times depend on your machine. The numbers of
# calls, FLOPs and bytes depend only on the step and would be the same on a GPU. So the
# four questions, written as code, use only calls, FLOPs and bytes:

# %% role="concept"
def what_holds(rows):
    """The four questions: host, launch, memory or compute."""
    calls, _, work, moved = (sum(row[k] for row in rows)
                             for k in range(1, 5))
    fetched = sum(row[1] for row in rows if row[0] == "_local_scalar_dense")
    if fetched > 100:
        return "host"
    if moved / calls < 1e5:                      # bytes per call
        return "launch"
    return "memory" if work / moved < 10 else "compute"

found = {name: what_holds(rows) for name, rows in TRACES.items()}
found["the two layers alone"] = what_holds(traced(lambda: net(inputs)))
mended = traced(lambda: net(inputs).norm(dim=1).tolist())
print(found)

# %% role="concept"
claim("trace A is limited by memory, trace B by the host and trace C by "
      "launches",
      [found[name] for name in "ABC"] == ["memory", "host", "launch"],
      expected=True)
claim("the two layers alone are limited by compute",
      found["the two layers alone"] == "compute", expected=True)
claim("number of calls in trace B that fetch a single value, after the "
      "repair",
      sum(row[1] for row in mended if row[0] == "_local_scalar_dense"),
      expected=0)

# %% [markdown] role="concept"
# In trace A, each of two dozen small operations reads a long tensor from memory and
# writes it back. Fuse these operations, as in trap 08.8. In trace B, the host fetches
# each row's norm separately. Compute all norms first, and then fetch them in one call.
# Once this fault is repaired, trace B shows a second fault, hundreds of small norms, so
# ask the questions again after each repair. In trace C, two matrix products are followed
# by sixteen hundred operations on 64 values each. Compile these operations, or fuse them
# by hand. The limits in the code are rules of thumb: ten FLOPs per byte is roughly a
# CPU's ridge. A GPU's ridge is higher, so a step that is limited by compute on a CPU may
# be limited by memory or launches on a GPU. A trace from a GPU also contains the device's
# own times. If these times add up to far less than the wall-clock time, the device
# waited, as it would in traces B and C.
#
# A trace shows which operation is slow. Two tools that need a GPU show why:
#
# - `nsys profile -o step python train.py`, then `nsys stats step.nsys-rep`: these
#   commands list how often each kernel, copy and call ran and how long it took. Open the
#   same file in Nsight Systems to see the timeline, and look for gaps between kernels.
# - `ncu --set full -k regex:flash -c 1 python train.py`: this command examines the first
#   kernel whose name matches. "GPU Speed Of Light Throughput" shows what fraction of both
#   roofs the kernel reaches. "Memory Workload Analysis" shows the sectors per request of
#   08.5 and the bank conflicts of 08.6. "Warp State Statistics" shows what warps wait for
#   and the active threads of 08.7. "Occupancy" shows what fraction of its maximum number
#   of warps a multiprocessor can hold.
#
# The output of both tools is explained in the [user guide of Nsight
# Systems](https://docs.nvidia.com/nsight-systems/UserGuide/index.html) and in the
# [profiling guide of Nsight
# Compute](https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html).

# %% [markdown] role="concept"
# You can also view a trace as a timeline. Name the parts of a step, and write the trace
# to a file that [Perfetto](https://ui.perfetto.dev) or Chrome's `chrome://tracing` can
# open:

# %% role="concept"
import json
import tempfile

from torch.profiler import record_function

with profile(activities=supported_activities()) as trace:
    with record_function("two layers"):
        net(inputs)
    with record_function("a chain"):
        chain(small, 10)

with tempfile.TemporaryDirectory() as folder:
    trace.export_chrome_trace(f"{folder}/step.json")
    with open(f"{folder}/step.json") as file:
        events = json.load(file)["traceEvents"]

# %% role="concept"
claim("number of the step's named parts that the trace file contains",
      len({e.get("name") for e in events} & {"two layers", "a chain"}),
      expected=2)

# %% [markdown] trap="08.9" role="situation" symptom="scaled_dot_product_attention gives other results at each call in eval mode, dropout_p, self.training" fault="attention dropout stays on in eval mode"
# ## A tenth of the weights
#
# You replace your hand-written attention with `F.scaled_dot_product_attention` and pass
# on the old dropout rate, `dropout_p=0.1`. In training, dropout sets each attention
# weight to zero with this probability p and divides the remaining weights by 1 - p. A
# review comment says: "This is a function; it cannot know that you called `eval()`." Now
# you serve the model: you call `eval()` and `no_grad()` and send the same input twice.

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

# %% trap="08.9" role="guess" quoted="right"
guess("08.9",
      "By what percentage (root mean square) do the two outputs differ?",
      unit="%")

# %% trap="08.9" role="look"
def size(t):
    return t.square().mean().sqrt()

difference = size(first - second) / size(first)
print(f"two calls in eval mode differ by {difference:.0%} of their size")

# %% trap="08.9" role="look"
measured("08.9", 100 * difference, right=(35, 60))

# %% trap="08.9" role="look"
claim("difference between two calls in eval mode, as a fraction of the "
      "output's size",
      difference, above=0.35, below=0.6)

# %% [markdown] trap="08.9" role="why"
# SDPA is a function, so it has no mode and always follows `dropout_p` (stage 5). The
# review comment is right. And a dropout rate of a tenth is not small. If the values
# scatter around zero, each dropped or enlarged weight changes the sum in proportion,
# and the outputs of two calls differ by about $\sqrt{2p}$ of their size. If attention
# is spread over many keys whose values have much in common, the difference is smaller.

# %% trap="08.9" role="why"
scored = [torch.linspace(-1, 1, 96).sin().view(1, 1, 12, 8)] * 2
with torch.random.fork_rng():                    # later draws stay
    calls = {f"call {n} in eval mode": F.scaled_dot_product_attention(
        *scored, torch.eye(12)[None, None], dropout_p=0.1)[0, 0]
        for n in (1, 2)}
draw_grids(
    {name: w / w.max() for name, w in calls.items()},
    marks={name: w == 0 for name, w in calls.items()}, rows="query",
    columns="key", legend="weight dropped",
    title="Each call drops different weights",
    alt="Two grids of twelve by twelve attention weights. In each grid, "
        "about a tenth of the cells is marked as dropped, but not the same "
        "cells.")

# %% [markdown] trap="08.9" role="repair"
# The mode of the *module* has to decide whether weights are dropped. Do not use the
# grad mode instead, because a model that runs in eval mode with gradients, for example
# for a saliency map, would then drop weights.

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
claim("MHA and dropout by the module's mode: largest difference between "
      "two eval-mode calls",
      max(gaps["ByMode"], gaps["MHA"]), expected=0)

# %% [markdown] trap="08.9" role="more" topics="the root of 2p, and the grad mode · axes without a transpose"
# The next cell compares **the root of 2p** with the measured difference and tries a rate
# that follows the grad mode:

# %% trap="08.9" role="more"
claim("square root of 2p minus the measured relative difference",
      math.sqrt(2 * 0.1) - difference, expected=0, within=0.08)
claim("dropout by the grad mode: largest difference between two eval-mode "
      "calls with gradients",
      gaps["ByGrad"], above=0.01)

# %% [markdown] trap="08.9" role="more"
# **Axes without a transpose.** SDPA also accepts the axes in the wrong order. If you
# forget both transposes, SDPA reads `(B, T, H, D)` as T heads of H tokens. Each token
# then attends only to its own heads and to no other token, but the result still has the
# right shape.

# %% trap="08.9" role="more"
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

# %% trap="08.9" role="more"
claim("without the transpose: largest change in other tokens' results when "
      "the last one changes",
      apart.abs().max(), below=1e-6)
claim("with the transpose: largest change in other tokens' results when "
      "the last one changes",
      together.abs().max(), above=1e-3)

# %% [markdown] trap="08.9" role="folklore"
# **Told:** Dropout in SDPA only works in training mode. **Measured:** SDPA also drops
# weights in eval mode and under `no_grad`. `nn.MultiheadAttention` is a module and checks
# its mode.

# %% trap="08.9" role="exercise" points=4 difficulty=3 minutes=20
def self_attention(x: torch.Tensor, weight: torch.Tensor, heads: int,
                   p: float, training: bool) -> torch.Tensor:
    """Compute multi-head self-attention (B, T, d) with dropout.

    Every token looks at all tokens of its row. If training is True, each
    attention weight is set to zero with probability p, 0 <= p < 1. Each
    weight is dropped independently of the others. In training, every call
    makes a new draw. The remaining weights are divided by 1 - p. If
    training is False, nothing is dropped and nothing is drawn. Neither case
    depends on whether gradients are on or off.

    Args:
        x, weight: (B, T, d) and (3d, d), float32. Any memory order is
            possible. F.linear(x, weight) contains q, k and v in this order.
            q, k and v each have their heads side by side, with d / heads
            values per head.

    x and weight are unchanged. Gradients reach x and weight. Gradients flow
    in training and outside it. Each call computes its result again. A call
    leaves earlier results unchanged.
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
# 2. `dropout_p` is p in training and zero otherwise. Let the argument `training`
#    decide, not the grad mode.
# 3. On the way back, move the heads after the tokens again, then flatten the last two axes.

# %% [markdown] trap="08.9" role="keep"
# **Keep:** SDPA is a function, so it has no train or eval mode. Pass `dropout_p=self.p if
# self.training else 0.0`. **In your own code:** Call the model twice in eval mode and
# compare the outputs. **Source:** [torch's documentation of
# scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html)
# warns about this. **Seen in the wild:** [huggingface/pytorch-image-models
# 1978](https://github.com/huggingface/pytorch-image-models/pull/1978): the maintainers
# removed dropout in eval mode from several models, after the same fix in nanoGPT, and
# called it "a recurring bug". [wenet-e2e/wenet
# 2699](https://github.com/wenet-e2e/wenet/issues/2699): dropout stayed on during
# evaluation. [pytorch/pytorch 124464](https://github.com/pytorch/pytorch/issues/124464)
# led to the warning in torch's documentation.

# %% [markdown] role="concept"
# ## Positions that turn
#
# `LM` above adds a learned vector for each position. Llama and many other models rotate
# queries and keys by an angle that grows with the position. This is a *rotary embedding*
# (RoPE). `rotate` turns pairs of values like the hands of a clock, each pair at its own
# speed: $(a, b)$ becomes $(a \cos \varphi - b \sin \varphi,\; a \sin \varphi + b \cos
# \varphi)$. Component i of a head is paired with component i + D/2.
#
# If you turn a query by $\alpha$ and a key by $\beta$, the angle between them changes by
# $\alpha - \beta$. So the score depends on two positions only through their distance. In
# texts that are longer than the training texts, new angles occur. *NTK-aware scaling*
# raises the base of the speeds, 10000. The fast pairs keep their speed, and the slow
# pairs turn even more slowly: the slowest pair stays within the angles of training, and
# the pairs before it go beyond these angles, the further the faster they turn. For texts
# `s` times as long, the base is multiplied by $s^{D/(D-2)}$. With `D` = 128 and `s` = 4,
# it becomes about 40,900, and the slowest pair turns at exactly a quarter of its speed.

# %% role="concept"
def rotate(x, place):
    """RoPE: x (B, H, n, D), turned for the positions (n,)."""
    half = x.shape[-1] // 2
    speed = 10000.0 ** (-torch.arange(half) / half)
    angle = place[:, None] * speed               # (n, D/2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(),
                      a * angle.sin() + b * angle.cos()], -1)

# %% [markdown] trap="08.10" role="situation" fault="is_causal=True hides the KV cache from a new token" symptom="KV cache: generation with cache differs from without, is_causal=True with one query, positions restart"
# ## The newest token asks
#
# A causal model generates text token by token. The keys and values of old tokens do not
# change, so you keep them in a *KV cache* and compute attention only for the newest
# token: one query against five keys, the last of which is the newest token's own. You
# leave the attention layer as it was in training, with `is_causal=True`.

# %% trap="08.10" role="break"
q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))    # (B, H, T, D)
whole = F.scaled_dot_product_attention(q, k, v, is_causal=True)
newest = F.scaled_dot_product_attention(q[:, :, -1:], k, v,
                                        is_causal=True)

# %% trap="08.10" role="guess"
guess("08.10", "Which keys does the newest token look at?",
      choices=["only the first one",
               "all five",
               "only its own"])

# %% trap="08.10" role="look"
gap = (newest - whole[:, :, -1:]).abs().max()
to_first = (newest - v[:, :, :1]).abs().max()
print(f"newest token, with the cache and without: gap {gap:.2f}")
print(f"its result and the first token's value: gap {to_first:.0e}")

# %% trap="08.10" role="look"
measured("08.10", 0)

# %% trap="08.10" role="look"
claim("largest difference between the newest token's result and the first "
      "token's value", to_first,
      below=1e-6)

# %% [markdown] trap="08.10" role="why"
# `is_causal=True` draws the triangle from the *upper left* corner, so query 0 looks
# only at key 0. A triangle from the upper left is right if there are as many queries as
# keys. With a cache, query 0 belongs to the newest token and key 0 to the oldest, so
# the triangle belongs in the *lower right* corner.

# %% trap="08.10" role="why"
computed, cached = 1.0, 0.3
steps = {"the prompt": (3, 3), "the fourth token": (4, 1),
         "the fifth": (5, 1)}
draw_grids(
    {name: [[computed * (t - n <= k < t) + cached * (row > 0 and k < t - n)
             for k in range(5)] for row in range(3)]
     for name, (t, n) in steps.items()},
    row_names=["query", "key", "value"], columns="token",
    captions={"the prompt": "all three are new",
              "the fourth token": "pale: from the cache",
              "the fifth": "the cache has grown"},
    title="Only one column is computed, the other columns are kept",
    alt="Three grids of query, key and value over five tokens. For the "
        "prompt, three columns are computed. Then each step computes one "
        "column, while keys and values of earlier tokens come from the "
        "cache.")

# %% trap="08.10" role="why"
left = torch.ones(2, 5).tril()
right = torch.ones(2, 5).tril(diagonal=5 - 2)
draw_grids(
    {"is_causal=True": left, "what is meant": right},
    marks={"is_causal=True": torch.eye(2, 5)}, rows="new query",
    columns="key", legend="the key that it treats as its own",
    captions={"is_causal=True": "from the upper left",
              "what is meant": "from the lower right"},
    title="Two new tokens on a cache of three",
    alt="Two grids of two queries and five keys. With is_causal, the "
        "triangle starts at the first key, and the rest is hidden. In the "
        "second grid, the first query may look at all keys except the "
        "last, and the second query at all keys.")

# %% [markdown] trap="08.10" role="repair"
# A single query needs no causal mask, because the cache holds no later token. (If a cache
# of fixed size has empty slots, mask those.) Several queries, as when a prompt arrives in
# pieces, need the triangle shifted by the number of cached tokens.

# %% trap="08.10" role="repair"
from torch.nn.attention.bias import causal_lower_right

one = F.scaled_dot_product_attention(q[:, :, -1:], k, v)
shifted = torch.ones(3, 5, dtype=torch.bool).tril(diagonal=5 - 3)
print(shifted.int())
three = [F.scaled_dot_product_attention(q[:, :, -3:], k, v, attn_mask=mask)
         for mask in (shifted, causal_lower_right(3, 5))]

# %% trap="08.10" role="repair"
claim("three queries, mask from the lower right: largest difference from a "
      "run over the whole row",
      max((y - whole[:, :, -3:]).abs().max() for y in three), below=1e-5)

# %% [markdown] trap="08.10" role="repair"
# The *positions* also have to continue. Suppose that the model rotates queries and keys
# with RoPE. With the cache, the newest token has position 4. A function that counts
# from 0 at each call puts this token at position 0, so the distances to all cached keys
# are wrong by four.

# %% trap="08.10" role="repair" compare=false
place = torch.arange(5)
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
claim("newest token at position 0: largest difference from a run over the "
      "whole row",
      gaps[0],
      above=1e-3)

# %% [markdown] trap="08.10" role="repair"
# The explorer below has eight tokens. Before you click, say which keys the newest token may
# look at: with the causal mask from either corner, with the mask that MHA expects, and with
# pads on the left.

# %% role="explore" explorer="attention_mask"
from dlsys_helpers.explorers.attention_mask import attention_mask

attention_mask

# %% [markdown] trap="08.10" role="more" topics="the right ways, measured · order, and RoPE"
# **The right ways** return the same result as a run over the whole row. Pads on the left
# and empty cache slots still have to be hidden, even from a single query.

# %% trap="08.10" role="more"
claim("one query with is_causal=True: largest difference from a run over "
      "the whole row", gap, above=0.1)
claim("one query without a mask: largest difference from a run over the "
      "whole row",
      (one - whole[:, :, -1:]).abs().max(), below=1e-5)
claim("newest token at position 4: largest difference from a run over the "
      "whole row",
      gaps[4],
      below=1e-5)

# %% [markdown] trap="08.10" role="more"
# **Order, and RoPE.** Without a mask and without positions, attention cannot tell the
# order of its keys: shuffled keys and values give the same result. With RoPE, a score
# depends only on the distance between the two positions, up to the rounding of the
# angles. Compute the angles in float32.

# %% trap="08.10" role="more"
order = torch.randperm(5)
shuffled = F.scaled_dot_product_attention(q, k[:, :, order],
                                          v[:, :, order])
plain = F.scaled_dot_product_attention(q, k, v)
near, far = (rotate(q, place + start) @ rotate(k, place + start).mT
             for start in (0, 100))

# %% trap="08.10" role="more"
claim("without positions: largest change in a result when keys and values "
      "are shuffled",
      (shuffled - plain).abs().max(), below=1e-5)
claim("RoPE: largest change in a score when all positions move by 100",
      (near - far).abs().max(), below=1e-3)

# %% trap="08.10" role="exercise" points=4 difficulty=3 minutes=20
def decode_step(q, k, v, cache: dict, rotate) -> torch.Tensor:
    """Compute causal attention of the n newest tokens, with cache and RoPE.

    Queries and keys are rotated, values are not. A token looks at itself
    and at all tokens before it. The result (B, H, n, D) is what one run
    over the whole row returns for these tokens.

    Args:
        q, k, v: (B, H, n, D) of the new tokens, n >= 1, float32. Any memory
            order is possible. No step changes q, k or v, not even a later
            step.
        cache: a dict, empty at the first step. After each step its "k" and
            "v" hold the keys and values of all tokens so far, (B, H, t, D),
            with the keys rotated.
        rotate(x, place): returns x (B, H, n, D) rotated for the positions
            `place` (n,), int64, counted from 0 at the very first token.

    Two caches do not affect each other. Keep nothing outside the cache, so
    that decoding can continue from a deep copy of it.
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
# 1. How many tokens came before? Their number is the length of the third axis of `cache["k"]`, or 0 for an empty cache. The new positions begin at this number.
# 2. Rotate the new keys, append them to the cache along axis 2, store both, then attend.
# 3. Query i may see keys 0 to past + i: `torch.ones(n, past + n, dtype=torch.bool).tril(past)`.

# %% [markdown] trap="08.10" role="keep"
# **Keep:** With a cache that keeps every token, the new queries are the *last* rows of
# the whole triangle, so the mask and the positions have to begin where the cache ends.
# **In your own code:** Run a prompt in one call and in pieces, and compare the logits.
# **Source:** [torch's documentation of
# scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html);
# [Su et al. 2021, "RoFormer"](https://arxiv.org/abs/2104.09864), section 3.2.2, for
# RoPE; its equation 15 pairs neighbouring values. **Seen in the wild:**
# [pytorch/pytorch 144858](https://github.com/pytorch/pytorch/issues/144858): a single
# query looked only at the earliest key, so each step returned the same vector.
# [pytorch/pytorch 110144](https://github.com/pytorch/pytorch/issues/110144): the same
# happened with two new tokens and a cache of four.

# %% [markdown] role="concept"
# ## What a cache weighs, and grouped queries
#
# The cache of trap 08.10 keeps a key and a value for each token, layer and head:
#
# $$\mathrm{bytes} = 2 \cdot \mathrm{layers} \cdot H_{kv} \cdot D \cdot T \cdot \mathrm{bytes\ per\ value}$$
#
# In *grouped-query attention* (GQA), several query heads share one head of keys and
# values ([Ainslie et al. 2023](https://arxiv.org/abs/2305.13245), section 2.2); the
# number of groups is $H_{kv}$. The sizes below are for 32 layers of 32 heads with 128
# values each, in 16 bits, as in Llama 2 with 7 billion weights, which has no shared
# heads.

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
claim("MB of cache for one token with 32 heads", kv_cache_bytes(1) / 1e6,
      expected=0.524, within=0.001)
claim("GB of cache for 4,096 tokens with 32 heads",
      kv_cache_bytes(4096) / 1e9,
      expected=2.147, within=0.001)
claim("grouped-query attention: largest difference from attention with K "
      "and V repeated 4 times",
      (grouped - repeated).abs().max(), below=1e-5)

# %% role="concept"
draw_boxes(
    {name: {"keys": gb / 2, "values": gb / 2} for name, gb in (
        ("4,096 tokens, 32 heads", kv_cache_bytes(4096) / 1e9),
        ("16,384 tokens, 32 heads", kv_cache_bytes(16384) / 1e9),
        ("16,384 tokens, 8 groups",
         kv_cache_bytes(16384, kv_heads=8) / 1e9))},
    title="The cache grows with the tokens and shrinks with the groups",
    alt="Three stacks of keys and values. Four times the tokens take four "
        "times the bytes; with 8 groups instead of 32 heads, these tokens "
        "take a quarter of the bytes.")

# %% [markdown] trap="08.11" role="situation" fault="batch_first is missing: attention mixes the batch" symptom="transformer predictions depend on the batch, accuracy changes with batch size, batch_first"
# ## Eight rows of a digit
#
# You treat a digit as eight tokens, one for each row of eight pixels, and run two of
# torch's encoder layers on them. The model trains in seconds and, with batches of 32,
# gets about nine out of ten test digits right. Nothing in the model normalizes over the
# batch, dropout is off, and you call `eval()`.
#
# Then a user sends one digit at a time.

# %% trap="08.11" role="break"
class RowClassifier(nn.Module):
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
classifier = RowClassifier()
fit(classifier, x_train, y_train, steps=200, lr=5e-3, batch=32)
_ = classifier.eval()                                # no output to show

# %% trap="08.11" role="guess"
guess("08.11",
      "How does the accuracy change when the test digits come one at a "
      "time?",
      choices=["it stays the same",
               "it falls by at least 5 percentage points",
               "it rises by at least 5 percentage points"])

# %% trap="08.11" role="look" tags=["plumbing"]
@torch.no_grad()
def accuracy_in(model, batch, order=None):
    """Accuracy on the test digits, sent in batches in this order."""
    order = torch.arange(497) if order is None else order
    right = [(model(x_test[rows]).argmax(1) == y_test[rows]).sum()
             for rows in order.split(batch)]
    return (sum(right) / 497).item()

# %% trap="08.11" role="look"
shares = {batch: accuracy_in(classifier, batch) for batch in (1, 32, 497)}
by_class = accuracy_in(classifier, 32, order=y_test.argsort())

# %% trap="08.11" role="look"
plot_columns(
    {"one by one": 100 * shares[1], "batches of 32": 100 * shares[32],
     "all 497": 100 * shares[497], "32, sorted by class": 100 * by_class},
    marks=["one by one", "32, sorted by class"],
    xlabel="how the test digits are sent", ylabel="accuracy, %",
    title="The answer depends on the other digits of the batch",
    alt="Four columns. The accuracy is best with batches of 32 mixed "
        "digits and with all 497 at once. It is clearly lower one by one, "
        "and with batches sorted by class.")

# %% trap="08.11" role="look"
measured("08.11", 1)

# %% trap="08.11" role="look"
claim("accuracy with one digit at a time minus accuracy with batches of 32",
      shares[1] - shares[32], below=-0.05)

# %% [markdown] trap="08.11" role="why"
# By default, torch's encoder layers expect `(T, N, d)`, with the tokens first. They
# accept `(N, T, d)` without an error, because without a mask, no shape tells the two
# layouts apart. So attention runs along the wrong axis. Row 3 of a digit never looks at
# row 4 of the same digit, but looks at row 3 of all digits in the batch.

# %% trap="08.11" role="why"
along_batch, along_row = torch.zeros(2, 6, 8)
along_batch[:, 3], along_row[1] = 1, 1
asks = torch.zeros(6, 8)
asks[1, 3] = 1
draw_grids(
    {"as it was": along_batch, "batch_first=True": along_row},
    marks={"as it was": asks, "batch_first=True": asks}, rows="digit",
    columns="its rows", legend="the token that looks",
    title="Which tokens one token looks at",
    alt="Two grids of six digits and eight rows. As it was, a token looks "
        "down a column, at the same row of all digits. With batch_first, "
        "it looks along the rows of its own digit.")

# %% trap="08.11" role="repair"
mended = RowClassifier(batch_first=True)
fit(mended, x_train, y_train, steps=200, lr=5e-3, batch=32)
mended.eval()
again = [accuracy_in(mended, batch) for batch in (1, 32, 497)]
print("batch_first:", *(f"{share:.2f}" for share in again))

# %% trap="08.11" role="repair"
claim("with batch_first: lowest of the accuracies at three batch sizes",
      min(again), above=0.88)

# %% [markdown] trap="08.11" role="repair"
# You can find this fault without labels and without training: change the other rows and
# check whether the output for row 0 moves. The two tests you would think of first
# cannot detect this fault. If you permute the batch, the outputs are permuted along
# with it. If you fill the batch with copies of one row, attention averages identical
# values, which changes nothing.

# %% trap="08.11" role="repair"
def first_row(batch, model=classifier):
    with torch.no_grad():
        return model(batch)[0]

batch = x_test[:32]
company = torch.cat([batch[:1], x_test[32:63]])
with torch.no_grad():
    permuted = classifier(batch.flip(0)).flip(0) - classifier(batch)
moved = {"other company": first_row(company) - first_row(batch),
         "permuted": permuted,
         "repeated": first_row(batch[:1].repeat(32, 1))
         - first_row(batch[:1])}
print({test: f"{gap.abs().max():.0e}" for test, gap in moved.items()})

# %% trap="08.11" role="repair"
claim("without batch_first: largest change in a logit when the batch is "
      "permuted or repeated",
      max(moved[test].abs().max() for test in ("permuted", "repeated")),
      below=1e-4)

# %% [markdown] trap="08.11" role="more" topics="mixed and sorted batches · the test on both models"
# The next cell makes **the other measurements:** mixed and sorted batches, three batch
# sizes with `batch_first`, and, on both models, the test that detects the fault.

# %% trap="08.11" role="more"
claim("accuracy with batches of 32", shares[32], above=0.85)
claim("accuracy with batches sorted by class minus accuracy with mixed "
      "batches",
      by_class - shares[32], below=-0.04)
claim("with batch_first: highest accuracy at three batch sizes minus "
      "lowest accuracy", max(again) - min(again),
      below=0.005)
claim("without batch_first: largest change in row 0's logits when the "
      "other rows are replaced",
      moved["other company"].abs().max(), above=0.05)
claim("with batch_first: largest change in row 0's logits when the other "
      "rows are replaced",
      (first_row(company, mended) - first_row(batch, mended)).abs().max(),
      below=1e-5)

# %% trap="08.11" role="exercise" points=3 difficulty=2 minutes=15
def batch_dependence(model: nn.Module, x: torch.Tensor,
                     others: torch.Tensor) -> float:
    """Measure how far the output for x[0] moves when the other rows change.

    The result is the largest absolute change in any value of output 0. The
    model runs in eval mode. No graph is built.

    Args:
        model: maps (N, ...) to (N, ...), one output per row.
        x: (N, ...), N >= 2. x is float32 or int64. Any memory order works.
        others: (N - 1, ...), the rows that replace x[1:].

    The model may write into its input, but x and others must not change.
    Afterwards the grad mode is what it was. The model, whose buffers do not
    change in eval mode, keeps every module's training flag. All parameters
    and buffers are unchanged. Their dtype, gradients and requires_grad also
    stay the same.
    Example: for a model that subtracts the mean of the batch, x [[1.],
    [3.]] and others [[7.]], the output for row 0 moves from -1 to -3, so
    the result is 2.
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
# 1. Call the model twice, once with `x` and once with `torch.cat([x[:1], others])`. Only output 0 counts.
# 2. In train mode, dropout looks like a dependence on other rows, and BatchNorm updates its buffers, so call `model.eval()` first.
# 3. A model's parts can be in different modes. Save `(module, module.training)` for all of `model.modules()` and restore them one by one.

# %% [markdown] trap="08.11" role="keep"
# **Keep:** Attention mixes along the axis that it treats as the sequence. If that axis is
# the batch, the model looks healthy until its batches change. Pass `batch_first=True` if
# your tensors have the batch first. **In your own code:** Replace the other rows of a
# batch and compare the output for row 0. **Source:** [torch's documentation of
# nn.TransformerEncoderLayer](https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoderLayer.html):
# `batch_first` is False by default. **Seen in the wild:** [IBM/TabFormer
# 14](https://github.com/IBM/TabFormer/pull/14): the batch was in the first dimension,
# "which causes an incorrect computation"; the fix was merged. [Exorust/TorchLeet
# 5](https://github.com/Exorust/TorchLeet/issues/5): an exercise without `batch_first`
# trains to a high loss.

# %% [markdown] trap="08.12" role="situation" fault="tied weights come untied on the meta device" symptom="All keys matched successfully, and the loaded language model is bad; lm_head and embedding differ; tied weights not tied after to_empty or load_state_dict assign=True; too many parameters"
# ## One table, two names
#
# Your language model shares one table between its first and its last layer. Your trainer
# builds the model on the *meta device*, as is usual for large models. There, a tensor has
# a shape but no memory. Then `to_empty` allocates the memory, and `draw` fills it.
#
# Your texts are written in a language of 16 tokens. After each token, one token follows with
# a probability of 1/2, another with 1/4, a third with 1/8, and so on. After 300 steps, the
# model has a loss of about `1.4` on new text, nearly the lowest possible loss. The server
# builds the same model without the meta device and loads the trained state. `load_state_dict`
# answers `<All keys matched successfully>`.

# %% trap="08.12" role="break"
class TiedLM(LM):
    """A language model with one table for its first and last layer."""

    def __init__(self, vocab, positions):
        super().__init__(vocab, positions)
        self.head.weight = self.token.weight
        self.draw()

    def draw(self):
        for layer in self.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        nn.init.normal_(self.token.weight, std=0.02)

# %% trap="08.12" role="break"
chances = 0.5 ** torch.arange(1.0, 17)           # 1/2, 1/4, 1/8, ...
follows = torch.stack([chances[torch.randperm(16)] for _ in range(16)])

def spoken(rows):
    """Token ids (rows, 17) of texts in the language."""
    ids = torch.randint(16, (rows, 1))
    while ids.shape[1] < 17:
        drawn = torch.multinomial(follows[ids[:, -1]], 1)
        ids = torch.cat([ids, drawn], 1)
    return ids

def loss_on(model, ids):
    return nll(model(ids[:, :-1], is_causal=True), ids[:, 1:])

# %% trap="08.12" role="break"
with torch.device("meta"):
    trainee = TiedLM(16, 16)
trainee.to_empty(device="cpu")
trainee.draw()
_ = train(trainee, lambda model: loss_on(model, spoken(32)), steps=300)
server = TiedLM(16, 16)
answer = server.load_state_dict(trainee.state_dict())

# %% trap="08.12" role="guess"
guess("08.12",
      "What is the server's loss on new text?",
      choices=["about `1.4`, as in the trainer",
               "between `1.6` and `2.2`",
               "more than `2.2`"])

# %% trap="08.12" role="look"
new = spoken(256)
with torch.no_grad():
    loss_in = {"trainer": loss_on(trainee, new).item(),
               "server": loss_on(server, new).item()}
size = {name: sum(p.numel() for p in model.parameters())
        for name, model in (("trainer", trainee), ("server", server))}
print(answer)
print("loss:", {name: round(loss, 2) for name, loss in loss_in.items()},
      "uniform guess:", round(math.log(16), 2))
print("parameters:", size)

# %% trap="08.12" role="look"
measured("08.12", 2)

# %% trap="08.12" role="look"
claim("loss of the server's model on new text, in nats",
      loss_in["server"], above=2.2)

# %% [markdown] trap="08.12" role="look"
# The trainer's model has more parameters than the server's model. The difference is
# exactly one table:

# %% trap="08.12" role="look"
claim("number of parameters in the trainer's model minus the number in the "
      "server's model",
      size["trainer"] - size["server"], expected=16 * 32)

# %% [markdown] trap="08.12" role="why"
# An ordinary parameter cannot leave the meta device. So `to_empty` replaces each one by a
# new one, in one module after the other, and the embedding and the head now have a table
# *each*: they have come untied. The trainer's model trains both tables and works well.
# The server's model has only one table. `load_state_dict` copies `token.weight` into it,
# and then `head.weight` into the same memory, which overwrites the embedding. Every key
# matches, but the server looks up its tokens in the head's table.

# %% trap="08.12" role="why"
def shown(table):
    """The first entries of a table, scaled to between 0 and 1."""
    part = table.detach()[:8, :12]
    return 0.5 + part / part.abs().max() / 2

draw_grids({"trainer: token.weight": shown(trainee.token.weight),
            "trainer: head.weight": shown(trainee.head.weight),
            "server: its only table": shown(server.token.weight)},
           rows="token", columns="component",
           title="The server's only table is the trainer's head",
           alt="Three grids of 8 tokens by 12 components. The trainer's "
               "embedding and head differ. The server's table is equal to "
               "the trainer's head.")

# %% trap="08.12" role="why"
claim("largest difference between the server's only table and the "
      "trainer's head",
      (server.token.weight - trainee.head.weight).abs().max(), expected=0)

# %% [markdown] trap="08.12" role="repair"
# Tie the two layers again as soon as the memory is allocated, before `draw` fills it and
# before the optimizer gets the parameters:

# %% trap="08.12" role="repair" tags=["for-repair", "varies-by-cpu"]
with torch.device("meta"):
    tied_again = TiedLM(16, 16)
tied_again.to_empty(device="cpu")
tied_again.head.weight = tied_again.token.weight
tied_again.draw()
train(tied_again, lambda model: loss_on(model, spoken(32)), steps=300)
server.load_state_dict(tied_again.state_dict())
with torch.no_grad():
    again = [loss_on(model, new).item() for model in (tied_again, server)]
print("loss in the trainer and in the server:",
      *(f"{loss:.2f}" for loss in again))

# %% trap="08.12" role="repair"
claim("tied again: loss of the server's model minus loss of the trainer's "
      "model",
      again[1] - again[0], expected=0, within=1e-5)

# %% [markdown] trap="08.12" role="repair"
# With one table, the loss is often somewhat higher than with two, but the server now has
# the same loss as the trainer.

# %% [markdown] trap="08.12" role="more" topics="load_state_dict(assign=True) · deepcopy · two tables"
# `load_state_dict(state, assign=True)` replaces the parameters by the tensors of the
# state, which avoids a copy. But if `state` comes from `state_dict()`, this also unties
# the layers. In the state of a tied model, both names share their memory, and so do the
# two new parameters, but an optimizer sees two parameters and changes this memory twice
# in each step. A `deepcopy` keeps the tie. Two tables are also a valid design if both
# programs have two; in that case, the trainer's loss before the repair is the right loss:

# %% trap="08.12" role="more"
with torch.device("meta"):
    assigned = TiedLM(16, 16)
assigned.load_state_dict(tied_again.state_dict(), assign=True)
first, last = assigned.token.weight, assigned.head.weight
copied = copy.deepcopy(tied_again)

# %% trap="08.12" role="more"
claim("loss of the trainer's model before the repair", loss_in["trainer"],
      below=1.55)
claim("after assign=True, both names refer to one parameter", first is last,
      expected=False)
claim("after assign=True, both names share their memory",
      first.data_ptr() == last.data_ptr(), expected=True)
claim("after deepcopy, both names refer to one parameter",
      copied.head.weight is copied.token.weight, expected=True)

# %% trap="08.12" role="exercise" points=3 difficulty=3 minutes=15
def load_tied(model: nn.Module, state: dict) -> None:
    """Load a state with assign=True. Keep every tie. Names that share a
    parameter before the call share one afterwards. state may have only some
    of a parameter's names. If state has several names of a parameter, their
    values have to be equal.

    Args:
        model: any module. A parameter can have several names.
        state: tensors by name. It has at least one name of every parameter,
            and all buffers. state is left unchanged.

    Raises:
        ValueError: names of one parameter have different values in state.
            The model is then left as it was.

    Every parameter uses the memory of a tensor in state. Every parameter
    keeps its requires_grad. The model may be on the meta device.
    """
    # BEGIN SOLUTION
    names = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(p, []).append(name)
    full = dict(state)
    for group in names.values():
        values = [state[name] for name in group if name in state]
        if not all(torch.equal(value, values[0]) for value in values):
            raise ValueError(f"{group} have different values.")
        full |= dict.fromkeys(group, values[0])
    model.load_state_dict(full, assign=True)
    for first, *others in names.values():
        for name in others:
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last,
                    model.get_parameter(first))
    # END SOLUTION

# %% [markdown] trap="08.12" role="hint"
# 1. `model.named_parameters(remove_duplicate=False)` yields every name. Collect the names
#    of each parameter before you load; a parameter can be a key of a dict.
# 2. Pass `load_state_dict` a value for every name, and compare the values before you
#    call it.
# 3. For a name such as `a.b.weight`, set the attribute `weight` of
#    `model.get_submodule("a.b")`.

# %% [markdown] trap="08.12" role="keep"
# **Keep:** Tied weights are one parameter in two modules. A call that gives each module new
# parameters, such as `to_empty` from the meta device or `load_state_dict(assign=True)`,
# unties them. Tie them again right after such a call, before you make the optimizer. **In
# your own code:** Assert `model.head.weight is model.token.weight` afterwards, and compare
# the number of parameters with the expected number. **Source:** [torch's documentation of
# load_state_dict](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict),
# on `assign`. **Seen in the wild:** [Modalities/modalities
# 357](https://github.com/Modalities/modalities/issues/357): on the meta device, the tied
# weights differ after the initialization. [facebookresearch/lingua
# 75](https://github.com/facebookresearch/lingua/pull/75): FSDP "was silently giving different
# weight for the embedding and output linear", and loading without FSDP tied them again.
# [pytorch/pytorch 188346](https://github.com/pytorch/pytorch/issues/188346): `assign=True`
# unties the weights.

# %% [markdown] role="concept"
# ## Further: positions beyond the trained length
#
# The traps do not need this section. It begins with a small measurement: on rows of 16
# random tokens from a vocabulary of 8, one causal attention layer learns to name the
# token two positions back. Then you give the trained layer longer rows.

# %% role="concept"
class Back(nn.Module):
    """One causal attention layer; positions by sinusoids or RoPE."""

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
    """Loss of naming the token two positions back, on fresh rows."""
    ids = torch.randint(8, (rows, length))
    return nll(model(ids)[:, 2:], ids[:, :-2])

@torch.no_grad()
def named(model, length):
    """Accuracy at the last 8 positions of longer rows."""
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
claim("accuracy of the worse model on rows of 16 tokens, the length used "
      "in training",
      min(reached[kind][16] for kind in reached), above=0.95)
claim("accuracy of the better model at the end of rows of 256 tokens, "
      "where guessing gives 0.125",
      max(reached[kind][256] for kind in reached), below=0.5)

# %% [markdown] role="concept"
# Both models are accurate at the trained length, but little better than guessing at 16
# times that length. This result is for one small layer and one task. For longer texts,
# you can squeeze the positions of RoPE into the old range: position $m$ counts as $m L /
# L'$, where $L$ is the trained length and $L'$ the new length, and the model is trained a
# little longer. LLaMA went from 2,048 tokens to 32,768 within 1,000 steps in this way
# ([Chen et al. 2023](https://arxiv.org/abs/2306.15595), section 2.3 and equation 4).

# %% [markdown] role="concept"
# ### A GPT in seconds
#
# Python's own help pages are a text that you already have on your machine. The class
# `LM` from above, with two blocks, reads them letter by letter under a causal mask.
# Before training, the model writes random letters; afterwards it writes strings that
# look roughly like words.

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
    """n letters after the prompt, each drawn from the prediction."""
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
claim("loss at the start minus the logarithm of the number of different "
      "letters",
      start - math.log(len(letters)), expected=0, within=0.5)
claim("loss after 300 steps, in nats per letter", end, below=2.7)

# %% [markdown] role="concept"
# ### The same in a library
#
# Hugging Face's `transformers` builds a Llama from a configuration, without any download.
# Its attention works like this stage's: RoPE with the same pairs, grouped queries and a
# cache. One of the library's attention layers, rebuilt by hand from the functions above,
# returns the same values. And the library's decoding from a cache agrees with a run over
# the whole row.

# %% role="concept" tags=["plumbing"]
import contextlib
import io

with contextlib.redirect_stderr(io.StringIO()):   # notes of the imports
    from transformers import LlamaConfig, LlamaForCausalLM

# %% role="concept"
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
claim("largest difference between the results of a library layer and of "
      "the same layer by hand",
      (own - noted["out"]).abs().max(), below=1e-5)
claim("seven tokens, then three with the cache: largest difference from a "
      "run over the whole row",
      (rest.logits - logits[:, 7:]).abs().max(), below=1e-4)

# %% [markdown] role="concept"
# ## Further down: kernels without a GPU
#
# Here the same attention becomes a kernel that runs without a GPU. Then you see what a
# compiler makes of the kernel for three GPUs, and how many blocks a sliding window
# saves.
#
# ### The kernel in Triton, interpreted
#
# In Triton, you write a program for a *block* of values. `tl.load` with a mask fetches
# values, `tl.dot` multiplies matrices, and a GPU runs one copy of the program for each
# block of queries. If there is no GPU, the set-up cell sets `TRITON_INTERPRET=1` before
# triton is imported, and the same source runs on a CPU. The package `triton` is only for
# Linux. On other systems, the cells below print one line about this and show values
# recorded on Linux. First comes the step of the online softmax:

# %% role="concept" tags=["used-on-gpu"]
from dlsys_helpers.kernels import absent, recorded

try:
    import triton
    import triton.language as tl
except ImportError:                    # macOS, Windows: kernels to read
    triton = tl = absent

@triton.jit
def fold(top, total, out, scores, values):
    """One tile of keys, folded into a block's running sums."""
    new = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new == float("-inf"), 0.0, new)
    fix, p = tl.exp(top - base), tl.exp(scores - base[:, None])
    out = out * fix[:, None] + tl.dot(p.to(values.dtype), values,
                                      input_precision="ieee")
    return new, total * fix + tl.sum(p, 1), out

# %% [markdown] role="concept"
# Then comes the loop over the tiles. Rows and columns beyond the end are masked at each
# load and at the store, and query `i` looks at the keys up to `i + N - M`.

# %% role="concept" tags=["plumbing", "used-on-gpu"]
@triton.jit
def flash(Q, K, V, Out, M, N, scale, D: tl.constexpr, TILE: tl.constexpr):
    """Causal attention of TILE queries, TILE keys at a time."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    d = tl.arange(0, D)[None, :]
    q = tl.load(Q + row * D + d, mask=row < M, other=0.0)
    top = tl.full((TILE,), float("-inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    out = tl.zeros((TILE, D), tl.float32)
    for start in range(0, N, TILE):
        col = start + tl.arange(0, TILE)[:, None]
        k = tl.load(K + col * D + d, mask=col < N, other=0.0)
        v = tl.load(V + col * D + d, mask=col < N, other=0.0)
        seen = (tl.trans(col) < N) & (tl.trans(col) <= row + N - M)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(seen, s, float("-inf"))
        top, total, out = fold(top, total, out, s, v)
    out = out / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(Out + row * D + d, out.to(Out.dtype.element_ty), mask=row < M)

# %% role="concept" tags=["used-on-gpu"]
def by_kernel(q, k, v, tile=32):
    """Causal attention (M, D) by the kernel, a program a block."""
    (M, D), out = q.shape, torch.full_like(q, math.nan)
    flash[(math.ceil(M / tile),)](q, k, v, out, M, len(k), D ** -0.5,
                                  D=D, TILE=tile)
    return out

def exact(q, k, v):
    """The same in float64, all at once; rows without a key are zero."""
    M, N = len(q), len(k)
    scores = q.double() @ k.double().T / q.shape[1] ** 0.5
    row = torch.arange(N, device=q.device)
    hidden = row > torch.arange(M, device=q.device)[:, None] + N - M
    weights = scores.masked_fill(hidden, -math.inf).softmax(1)
    return weights.nan_to_num(0) @ v.double()

# %% role="concept" tags=["plumbing"]
laws = {"a ragged last tile": (50, 50, 1), "more keys": (20, 70, 1),
        "rows without a key": (40, 20, 1), "scores times 40": (50, 50, 40),
        "one token": (1, 1, 1)}
gaps = {}
for name, (M, N, times) in laws.items() if triton is not absent else ():
    q, k, v = (torch.randn(rows, 32, device=device()) for rows in (M, N, N))
    gap = (by_kernel(q * times, k, v) - exact(q * times, k, v)).abs().max()
    gaps[name] = gap.item()
gaps = gaps or recorded("gaps")
for name, gap in gaps.items():
    print(f"{name}: largest gap {gap:.0e}")

# %% role="concept"
claim("largest difference between the kernel's results and float64 results "
      "in five cases",
      max(gaps.values()), below=1e-3)

# %% [markdown] role="concept"
# A kernel that passes these tests computes correctly in float32, at least in these cases.
# But the interpreter runs one program after the other. A pass proves neither that the
# kernel is precise on a GPU nor that simultaneous programs do not interfere with each
# other. On a machine with a GPU, the same cells run the same kernel on the GPU, under the
# same tests; `"ieee"` requests all 32 bits in its products.

# %% [markdown] role="concept"
# ### Two faults that the interpreter hides, and how to see them
#
# A store without a mask writes beyond the end, but often there is no error, because the
# memory there usually belongs to the same process. So pass the kernel a piece of a larger
# tensor and check the *guards*, the values after that piece.

# %% role="concept"
@triton.jit
def twice(x, y, n, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = (i < n) | (not MASKED)
    tl.store(y + i, 2 * tl.load(x + i, mask=keep), mask=keep)

def overwritten(masked):
    """How many of the 28 guards after 100 values the kernel changes."""
    x = torch.ones(128, device=device())
    y = torch.full_like(x, 7.0)
    twice[(2,)](x, y, 100, MASKED=masked, BLOCK=64)
    return (y[100:] != 7).sum().item()

broken = recorded("guards") if triton is absent else {
    masked: overwritten(masked) for masked in (False, True)}
print(f"guards overwritten: {broken[False]} without a mask, "
      f"{broken[True]} with a mask")

# %% role="concept"
claim("number of guards overwritten without a mask",
      broken[False], expected=28)
claim("number of guards overwritten with a mask", broken[True], expected=0)

# %% [markdown] role="concept"
# Guards detect a write, but only as far as they reach. A read beyond the end leaves no
# trace in the guards. The second fault, a race, needs programs that run at the same time.
# Write a program as a generator that pauses between its load and its store, and let
# random numbers decide which program continues. Here, eight programs count values into
# four bins that they share:

# %% role="concept"
import random

def tally(numbers, bins):
    """Count numbers into bins: load, add, store."""
    for number in numbers:
        before = bins[number]
        yield                                    # others may run here
        bins[number] = before + 1

def run(programs, interleaved):
    """Run programs to their end: one by one, or a step at a time."""
    left, rng = list(programs), random.Random(SEED)
    while left:
        one = rng.choice(left) if interleaved else left[0]
        if next(one, "end") == "end":
            left.remove(one)

# %% role="concept"
numbers, counted = torch.randint(0, 4, (8, 50)).tolist(), {}
for name, interleaved in (("in turn", False), ("interleaved", True)):
    bins = [0] * 4
    run([tally(part, bins) for part in numbers], interleaved)
    counted[name] = sum(bins)
own = [[0] * 4 for _ in numbers]                 # bins for each program
run([tally(part, mine) for part, mine in zip(numbers, own)], True)
counted["interleaved, own bins"] = sum(map(sum, own))
print("of 400 numbers were counted:", counted)

# %% role="concept"
claim("number of values counted when the programs run one after the other",
      counted["in turn"],
      expected=400)
claim("number of values counted when the programs are interleaved",
      counted["interleaved"], below=350)
claim("number of values counted when the programs are interleaved and each "
      "has its own bins",
      counted["interleaved, own bins"], expected=400)

# %% [markdown] role="concept"
# If the programs run one after the other, as in the interpreter, the fault is
# invisible. With many bins and few collisions, the fault can also stay hidden when
# programs run simultaneously. Give each program its own bins and add up the bins at the
# end, or use `tl.atomic_add`, which no other program can interrupt.

# %% [markdown] role="concept"
# ### Compiled, not guessed
#
# You can compile for a GPU without having one. `compiled` passes the same source to
# Triton's compiler, for 16-bit tensors and tiles of 64, and reads the machine code:
# registers per thread, shared memory per block, instructions that *spill* registers to
# memory, and instructions on tensor cores. Occupancy, the fraction of its maximum number
# of warps that a multiprocessor can hold at a time, then follows from the resources of a
# multiprocessor ([CUDA Programming
# Guide](https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html),
# section 5.1.3, tables 30 and 31).

# %% role="concept"
from dlsys_helpers.kernels import compiled, occupancy

names = dict.fromkeys(("Q", "K", "V", "Out"), "*fp16")
types = {**names, "M": "i32", "N": "i32", "scale": "fp32"}
table = recorded("flash") if triton is absent else compiled(
    fold, flash, constants={"D": 64, "TILE": 64}, signature=types)
for code in table:
    print(f"sm_{code.capability}: {code.registers} registers, "
          f"{code.shared} bytes shared, {code.spills} spills, "
          f"{code.tensor_cores} on tensor cores, {code.fp32} FFMA, "
          f"occupancy {occupancy(code, warps=4):.1%}")
turing, ampere, hopper = table

# %% role="concept"
claim("number of tensor-core instructions for sm_75", turing.tensor_cores,
      expected=0)
claim("smaller of the numbers of tensor-core instructions for sm_80 and "
      "sm_90",
      min(ampere.tensor_cores, hopper.tensor_cores), above=1)
claim("number of spills for sm_75 minus the larger of the numbers for "
      "sm_80 and sm_90",
      turing.spills - max(ampere.spills, hopper.spills), above=100)

# %% [markdown] role="concept"
# The same source becomes three different programs. For `sm_75`, a T4, this compiler
# uses no tensor cores, although the device has some, because Triton supports NVIDIA's
# devices only from `sm_80` on. The `sm_75` program multiplies with thousands of FFMA
# instructions, and its accumulators do not fit into the registers. So do not expect
# this kernel to be fast on a T4. For `sm_90`, a handful of tensor-core instructions do
# what takes dozens on `sm_80`, because each instruction covers a larger product. An
# occupancy of an eighth or a quarter need not be a fault. Such kernels get their speed
# from large tiles, not from many warps, and beyond some point more warps do not help
# ([CUDA C++ Best Practices
# Guide](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#occupancy),
# section 11.1).

# %% [markdown] role="concept"
# ### A sliding window
#
# With a window of `W` keys, a query looks only at the last `W` keys. As a mask, the
# window saves nothing, because all scores are computed and then hidden. Flex attention
# takes the mask as a function and, if it is compiled, skips the blocks that contain no
# allowed pair:

# %% role="concept"
import warnings

from torch.nn.attention.flex_attention import (
    create_block_mask, flex_attention,
)

def window(batch, head, query, key):
    return (query >= key) & (query - key < 256)

n, block = 2048, 128
blocks = create_block_mask(window, None, None, n, n, device="cpu",
                           BLOCK_SIZE=block)
kept = 1 - blocks.sparsity() / 100
# a row of blocks keeps its own, one whole before it and one in part
by_hand = sum(min(i + 1, 3) for i in range(n // block)) / (n // block)**2
print(f"blocks that are computed: {kept:.1%}, by hand {by_hand:.1%}")

# %% role="concept"
claim("fraction of blocks that flex attention computes minus the fraction "
      "counted by hand",
      kept - by_hand, expected=0, within=1e-4)

# %% [markdown] role="concept"
# Flex attention also runs uncompiled, here on a shorter row. Without a compiler, it
# computes all scores, as its warning says. So uncompiled, you can test whether the mask
# function says what you mean, but not how much the window saves.

# %% role="concept"
q, k, v = torch.randn(3, 1, 2, 512, 32)
blocks = create_block_mask(window, None, None, 512, 512, device="cpu")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")              # it is not compiled
    flexed = flex_attention(q, k, v, block_mask=blocks)
place = torch.arange(512)
keep = window(0, 0, place[:, None], place)       # the same, as a mask
masked = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)

# %% role="concept"
claim("largest difference between flex attention and SDPA with the "
      "window's mask",
      (flexed - masked).abs().max(), below=1e-5)

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. A language model trains to a loss far below the loss of any published model on the
# same text. What do you do first?**
#
# - [ ] save the model and write a report :: Treat a loss that seems impossible as a leak
#   until you have ruled out a leak.
# - [x] change tokens of a row and check whether earlier logits move :: Earlier logits
#   must not change. The test takes a few lines of code and no training.
# - [ ] add dropout, because the model has overfitted :: Overfitting shows on new text. A
#   leak also makes the loss low there.

# %% [markdown] role="quiz"
# **2. You move from nn.MultiheadAttention to scaled_dot_product_attention and keep the boolean masks. What happens?**
#
# - [ ] an error, because the shapes do not fit :: The shapes can fit, and nothing checks what
#   True means.
# - [ ] nothing, because both accept boolean masks :: Both accept them, but True has opposite meanings.
# - [x] tokens look at exactly the forbidden keys, and rows without a forbidden key give
#   zeros :: True means "ignore" in nn.MultiheadAttention and "may look" in
#   scaled_dot_product_attention.

# %% [markdown] role="quiz"
# **3. A batch is padded. In the mask, you forbid the rows of the pads (the queries) and leave
# the columns alone. The tokens**
#
# - [x] still look at pads :: Columns are keys. A mask over the queries only silences what
#   attention returns for the pads.
# - [ ] are right, because a pad is masked either way :: Rows say which token looks, columns
#   say which token is looked at.
# - [ ] are NaN :: A row without keys returns zeros or NaN, but here only the pads' rows
#   have no keys.

# %% [markdown] role="quiz"
# **4. With a cache, generation produces a different text than without a cache. You
# pass in the whole prompt, then one token at a time, always with is_causal=True. Which
# step is the first to go wrong?**
#
# - [ ] the prompt :: There are as many queries as keys, and both corners agree.
# - [x] the first single token, because the one query looks only at the first key :: The
#   triangle starts in the upper left corner.
# - [ ] none, because one query needs no causal mask :: One query needs no mask, but here
#   it gets one.

# %% [markdown] role="quiz"
# **5. You test whether a model mixes the rows of a batch by permuting them. The outputs are permuted in the same way. So**
#
# - [ ] the rows are independent :: A model that subtracts the batch's mean passes this test.
# - [x] this shows nothing; replace the other rows, and look at row 0 :: A permutation
#   keeps the same rows together. Other rows show the mixing.
# - [ ] the model is in train mode :: A model in eval mode passes this test, too.

# %% [markdown] role="quiz"
# **6. A masked model has a loss of 0.5 nats in a gap, and a causal model 0.8 nats for the
# next token of the same text. Which model do you use to generate text?**
#
# - [ ] the masked model, because its loss is lower :: The masked model's question was
#   easier, because the input contained what comes after the gap.
# - [x] the causal model :: The causal model was trained and measured on the question that
#   you ask when you generate text.
# - [ ] either, as long as you set a temperature :: A temperature does not change what a
#   model was trained to predict.

# %% [markdown] role="quiz"
# **7. A flash kernel returns the same values as attention written out. It is faster because**
#
# - [ ] it skips keys whose weight is small :: The kernel multiplies every query with
#   every key that is not masked.
# - [ ] its traffic is linear in the number of tokens :: Without a cache, each block of
#   queries still reads all keys and values, so the traffic is quadratic, with a small
#   factor.
# - [x] scores and weights never travel to memory :: Scores and weights exist on the chip
#   for one tile, and then they are gone.

# %% [markdown] role="quiz"
# **8. Your online softmax is right on rows with falling scores, and wrong on rows with rising
# scores. You forgot**
#
# - [x] to rescale the sum when a larger score comes :: On a falling row, the first tile holds
#   the largest score, so the factor is always one.
# - [ ] to subtract the maximum :: Then falling rows of large scores would also overflow.
# - [ ] the last division :: Then every row would be wrong.

# %% [markdown] role="quiz"
# **9. Thread `i` reads the float at position `4 i`. A warp moves**
#
# - [ ] 4 sectors, because it reads 128 bytes :: The warp uses 128 bytes, but its floats
#   are 16 bytes apart.
# - [x] 16 sectors :: Two threads share each sector of 32 bytes.
# - [ ] 32 sectors, one for each thread :: That would need a step of at least eight floats.

# %% [markdown] role="quiz"
# **10. All 32 threads of a warp read the same word of shared memory. How many turns does
# the read take?**
#
# - [x] one turn :: The bank returns the word to all threads that read it.
# - [ ] 32 turns, because they read from the same bank :: Only different words in one bank
#   wait for each other.
# - [ ] two turns, one for each half of the warp :: Two turns are the minimum if each
#   thread reads 8 bytes of its own, not for a word that all threads share.

# %% [markdown] role="quiz"
# **11. One thread in a hundred, at random, takes a slow branch. What fraction of the
# warps executes the slow branch?**
#
# - [ ] one in a hundred :: That is the fraction of threads.
# - [x] more than one in four :: A warp skips the branch only if all 32 threads skip it,
#   and 0.99 to the power of 32 is 0.72.
# - [ ] nearly all :: That would need about ten threads in a hundred.

# %% [markdown] role="quiz"
# **12. A profile shows 5,000 kernel calls of 2 us each in a step of 30 ms. What do you
# try first?**
#
# - [ ] speeding up the slowest of these kernels :: None of them is slow. The device waits
#   between them.
# - [x] fusing the kernels, or launching them as a graph :: The launches take longer than the
#   work.
# - [ ] a larger learning rate :: The learning rate does not change the time of a step.

# %% [markdown] role="gpu"
# ## On a GPU: what the counts promise
#
# On a GPU, you can check three counts of this stage against a clock: attention written
# out compared with flash, strided reads, and a chain of small steps. There, this
# stage's kernel, so far only interpreted, runs as machine code, and its result is again
# compared with float64.
#
# **Before you run anything:** Take 8,192 tokens and 16 heads of 128 values. How many GiB
# do the scores take in 16 bits? What is the ratio of the bytes moved at stride 8 to the
# bytes moved at stride 1? And if you run ten operations on 4,096 values, what fraction of
# the time is spent on the launches?
#
# The published figures come from other devices and other shapes. On an A100, FlashAttention-2
# was 3 to 10 times as fast as attention written out in PyTorch, with lengths from 512 to
# 16,384 and heads of 64 and 128 values.

# %% role="gpu"
from torch.nn.attention import SDPBackend, sdpa_kernel

from dlsys_helpers.gpu import half_dtype

def make_qkv(where, n):
    """q, k and v (1, 16, n, 128) in 16 bits, random."""
    return [torch.randn(1, 16, n, 128, device=where,
                        dtype=half_dtype(where)) for _ in range(3)]

def attend(qkv, how, causal=False):
    with sdpa_kernel(how):
        return F.scaled_dot_product_attention(*qkv, is_causal=causal)

def scores_bytes(n):
    return 16 * n * n * 2

# %% role="gpu"
def strided_copy(x, stride, n):
    """n numbers, `stride` apart, side by side."""
    return x[:n * stride:stride].clone()

def small_chain(x):
    """Ten operations, each a launch."""
    for _ in range(5):
        x = x * 0.5 + 1.0
    return x

def stride_bytes(stride):
    """Bytes moved for each 4-byte number: its share of a sector, 4 out."""
    return min(4 * stride, 32) + 4

qkv = make_qkv("meta", 8192)
written = cost(lambda: (qkv[0] @ qkv[1].mT).softmax(-1) @ qkv[2])
short = torch.empty(4096, device="meta")
chain = cost(lambda: small_chain(short))
print(f"scores {scores_bytes(8192) / 2**30:.1f} GiB, written out "
      f"{written.peak / 2**30:.1f} GiB at a time, {chain.orders} launches")

# %% role="gpu"
claim("GiB of scores with 16 heads and 8,192 tokens, in 16 bits",
      scores_bytes(8192) / 2**30, expected=2)
claim("bytes moved at stride 8 divided by bytes moved at stride 1",
      stride_bytes(8) / stride_bytes(1), expected=4.5)
claim("number of launches in the chain of ten operations",
      chain.orders, expected=10)

# %% role="gpu"
@gpu_result("08/attention", uses=[make_qkv, attend],
            columns=["form", "n", "ms", "ms_low", "ms_high", "peak_mb"])
def attention():
    """Attention of 16 heads of 128 numbers, math and flash, two lengths."""
    for n in (4096, 8192):
        qkv = make_qkv("cuda", n)
        for form, how in (("math", SDPBackend.MATH),
                          ("flash", SDPBackend.FLASH_ATTENTION)):
            t = seconds(lambda: attend(qkv, how), repeats=10, device="cuda")
            yield {"form": form, "n": n, "ms": t.median * 1e3,
                   "ms_low": t.low * 1e3, "ms_high": t.high * 1e3,
                   "peak_mb": peak_bytes(lambda: attend(qkv, how)) / 1e6}

# %% role="gpu"
@gpu_result("08/kernel", uses=[fold, flash, by_kernel, exact, attend],
            columns=["form", "ms", "ms_low", "ms_high", "gap"])
def one_head():
    """Causal, 8,192 tokens of 128 fp16 numbers: ours and flash."""
    q, k, v = (torch.randn(8192, 128, device="cuda",
                           dtype=torch.float16) for _ in range(3))
    whole, truth = [x[None, None] for x in (q, k, v)], exact(q, k, v)
    calls = {"ours": lambda: by_kernel(q, k, v, tile=64),
             "flash": lambda: attend(whole, SDPBackend.FLASH_ATTENTION,
                                     causal=True)[0, 0]}
    for form, call in calls.items():
        t = seconds(call, repeats=10, device="cuda")
        yield {"form": form, "ms": t.median * 1e3, "ms_low": t.low * 1e3,
               "ms_high": t.high * 1e3,
               "gap": (call() - truth).abs().max().item()}

# %% role="gpu"
@gpu_result("08/addresses", uses=[strided_copy, small_chain],
            columns=["what", "us", "us_low", "us_high"])
def addresses():
    """Copies of 2^24 floats by stride, and ten operations on 4,096."""
    x = torch.randn(8 * 2**24, device="cuda")
    calls = {f"stride {s}": lambda s=s: strided_copy(x, s, 2**24)
             for s in (1, 2, 8)}
    small = torch.randn(4096, device="cuda")
    calls |= {"ten small": lambda: small_chain(small),
              "one small": lambda: small * 0.5}
    for what, call in calls.items():
        t = seconds(call, repeats=10, device="cuda", calls=20)
        yield {"what": what, "us": t.median * 1e6, "us_low": t.low * 1e6,
               "us_high": t.high * 1e6}

# %% role="gpu"
def doubled(form):
    """Extra memory at 8,192 tokens, as a multiple of 4,096 tokens."""
    return (attention.value("peak_mb", form=form, n=8192)
            / attention.value("peak_mb", form=form, n=4096))

def ms(form):
    return attention.value("ms", form=form, n=8192)

def times(what, than):
    return (addresses.value("us", what=what)
            / addresses.value("us", what=than))

sheet = datasheet(attention.device_name)         # FLOPs of both products:
least = sheet.least_us(4 * 16 * 8192**2 * 128, 0) / 1e3        # in ms
ours = (one_head.asks("ms of our kernel, predicted from FLOPs at full rate",
                      least / 16, lambda: one_head.value("ms", form="ours"),
                      above=0.9 * least / 16),
        one_head.asks("error of our kernel; predicted: half a step at 4",
                      2**-9, lambda: one_head.value("gap", form="ours"),
                      below=1e-2))

# %% role="gpu"
answers = gpu_table(
    sheet,
    attention.asks("extra memory of math: 8,192 tokens divided by 4,096",
                   4, lambda: doubled("math"), above=3.5),
    attention.asks("extra memory of flash: 8,192 tokens divided by 4,096",
                   2, lambda: doubled("flash"), below=2.5),
    attention.asks("time: math divided by flash", "above 1: traffic",
                   lambda: ms("math") / ms("flash"), above=1.5),
    attention.asks("ms of flash, predicted from FLOPs at full rate",
                   least, lambda: ms("flash"),
                   "FlashAttention-2 reaches 35 % of an H100 "
                   "(arXiv 2407.08608, abstract)", above=0.9 * least),
    *ours,
    addresses.asks("time at stride 8 divided by time at stride 1",
                   stride_bytes(8) / stride_bytes(1),
                   lambda: times("stride 8", "stride 1"), above=2),
    addresses.asks("time of ten small operations divided by time of one",
                   10, lambda: times("ten small", "one small"), above=4))
answers

# %% [markdown] role="gpu"
# **On the H100 used for the recorded run**, flash attention reaches 36 % of the card's
# peak rate, close to the published 35 %. Torch's `math` form takes 16 times as long and
# needs 9.9 GB of extra memory, whereas flash needs 34 MB. Memory traffic does not
# explain all of this difference. Even with 16-bit inputs, the `math` form by default
# computes in float32. So each tensor of scores takes 4 GiB, not 2 GiB as you counted, and
# the products do not run at the 16-bit rate.
#
# For one head, this stage's kernel, a page of Triton, takes only 7 % longer than
# torch's kernel, although it also computes the masked half of the scores. But a single
# head does not keep the whole card busy: torch needs 118 µs for one head. In the run
# with sixteen heads, torch needs only 96 µs per head, although that run has no mask and
# therefore computes twice as many products. Bytes and launches cost about as much as
# you counted: stride 8 takes 4.2 times as long as stride 1, and ten small operations
# take 9.8 times as long as one. One small operation takes 7.6 µs; trap 08.8 assumes 4
# µs.
#
# **Keep:** Count bytes, sectors and launches before you measure. If a run takes longer
# than these counts explain, use the profiler. Compare recorded times with the datasheet
# of the same device. **Source:** [Dao 2023](https://arxiv.org/abs/2307.08691), section
# 4.1, for an A100: up to 73 % of the datasheet's rate, and the factors of 3 to 10; [Shah
# et al. 2024](https://arxiv.org/abs/2407.08608), abstract and section 4.1, for an H100,
# in 16 bits and with 16,384 tokens in a batch, 16 heads of 128 values among its cases:
# FlashAttention-2 reaches 35 %, their own kernel up to 75 %.

# %% [markdown] role="summary"
# ## What you take with you
#
# - Attention compares a query with all keys, takes a softmax and averages the values.
#   Position embeddings encode the order; a score of minus infinity hides a key.
# - A loss on new text below the best possible loss means a leak. Change a token, and check
#   the logits before it.
# - In a mask, True lets a query look at a key in SDPA, and hides the key in MHA.
# - Attention treats pads as tokens. Mask the keys, not the queries.
# - With a cache, the mask and the positions of the new tokens begin where the cache ends.
# - Attention mixes along its sequence axis. Change the other rows of a batch, and compare
#   row 0 of the output.
# - Tied weights are one parameter in two modules. `to_empty` from the meta device and
#   `assign=True` untie them, so tie them again before you make the optimizer.
# - SDPA has no train mode, so pass it a dropout rate of 0 when you evaluate.
# - A masked and a causal model answer different questions, so do not compare their losses.
# - A running maximum, two running sums and a correction factor suffice for attention.
# - Without a mask, the matrix products of flash attention's forward pass are as large as
#   the formula's. But it needs less memory and, for narrow heads, moves fewer bytes.
# - A warp moves whole sectors, so neighbouring threads should read neighbouring values.
# - Reads of different words in one bank of shared memory wait for each other. An odd step
#   between neighbouring threads avoids these waits.
# - A warp issues every path that at least one of its threads takes, so group values that
#   take the same path.
# - Elementwise operations take as long as their launches on small tensors, and as long as
#   their memory traffic on large ones. Fuse them, and mask the last block.
# - Even without a GPU, you can compile a kernel and read its registers, spills and
#   tensor-core instructions.
#
# **Next:** Stage 9 trains on more than one device, and in fewer bits.
