"""The program of the gallery, without a fault: a small language model, from text to 4 bits.

It is read as text, and each fault of faults.py is a small change of it. What happens is told to
`watch`: by `watch.step` after each update, and by `watch.validation`.
"""

# part: text
import copy
import io
import math
import re
import textwrap

import torch
from torch import nn
from torch.nn import functional as F

PAD, END, LENGTH = 0, 1, 48  # two numbers that are no letters; places of a row


def numbers_of(text):
    """A number for each letter, from 2 on; capitals are among them."""
    letters = sorted(set(text + text.upper()))
    return {letter: number for number, letter in enumerate(letters, 2)}


def rows_of(text, numbers):
    """The sentences as rows (N, LENGTH + 1) of int64: END, letters, END, then PAD.

    What is longer than a row goes on in the next one; only the last has the END behind it.
    """
    rows = []
    for sentence in re.split(r"(?<=[.!?:])\s+", " ".join(text.split())):
        pieces = textwrap.wrap(sentence, LENGTH - 1)
        for piece in pieces:
            row = [END, *(numbers[letter] for letter in piece), *[END] * (piece is pieces[-1])]
            rows.append(F.pad(torch.tensor(row), (0, LENGTH + 1 - len(row)), value=PAD))
    return torch.stack(rows)


def split(rows):
    """Rows to learn from, to choose by, to be tested on: of ten blocks of 20 eight, one and one."""
    block = torch.arange(len(rows)) // 20 % 10
    return rows[block > 1], rows[block == 0][:64], rows[block == 1][:64]


def inputs_and_labels(rows):
    """Rows (N, T + 1) as inputs (N, T) and labels (N, T), the next number; -100 does not count."""
    inputs, labels = rows[:, :-1], rows[:, 1:]
    return inputs, labels.masked_fill(labels == PAD, -100)


def noisy(inputs, letters, generator):
    """The inputs with one letter in fifty replaced by any other, END and PAD left alone."""
    other = torch.randint(2, letters, inputs.shape, generator=generator)
    hit = torch.rand(inputs.shape, generator=generator) < 0.02
    return torch.where(hit & (inputs > END), other, inputs)


# part: model
WIDTH, HEADS, LAYERS = 48, 4, 3


def turned(x, start):
    """Queries or keys (B, H, T, D), each pair of numbers turned by its place: RoPE."""
    half = x.shape[-1] // 2
    place = torch.arange(start, start + x.shape[-2])
    angle = place[:, None] * 10000.0 ** (-torch.arange(half) / half)
    even, odd, cos, sin = x[..., ::2], x[..., 1::2], angle.cos().to(x), angle.sin().to(x)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class Block(nn.Module):
    """Attention, then two layers; each reads what its norm gives and adds to the stream."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def attend(self, x, cache):
        """x (B, T, WIDTH); cache: None, or a dict that keeps keys and values for the next call."""
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = cache["k"].shape[2] if cache else 0
        q, k = turned(q, seen), turned(k, seen)
        if cache:
            k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        if cache is not None:
            cache.update(k=k, v=v)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        return self.out(mixed.transpose(1, 2).reshape(b, t, WIDTH))

    def forward(self, x, cache=None):
        x = x + self.drop(self.attend(self.norm1(x), cache))
        hidden = self.down(F.gelu(self.up(self.norm2(x))))
        return x + self.drop(hidden)


class Network(nn.Module):
    """Inputs (B, T) of int64 to logits (B, T, letters); `prior` holds what letters are frequent."""

    def __init__(self, letters):
        super().__init__()
        self.emb = nn.Embedding(letters, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, letters, bias=False)
        self.register_buffer("prior", torch.zeros(letters))
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.06)

    def forward(self, inputs, caches=None):
        x = self.emb(inputs)
        for block, cache in zip(self.blocks, caches or [None] * LAYERS):
            x = block(x, cache)
        return self.head(self.norm(x)) + self.prior


def frequencies(rows, letters):
    """The logarithm of each letter's share of the labels, (letters,)."""
    labels = rows[:, 1:]
    counts = torch.bincount(labels[labels != PAD], minlength=letters)
    return ((counts + 0.1) / (counts + 0.1).sum()).log()


# part: optimizer
RATE, WARM = 3e-3, 30


def make_optimizer(model, steps):
    """AdamW that decays matrices; its rate rises for WARM steps, then falls to a tenth."""
    groups = [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), fused=True)

    def factor(step):
        done = max(0, step - WARM) / (steps - WARM)
        return min(1, (step + 1) / WARM) * (0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2)

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


# part: training
SIZE, RANKS, EVERY, PATIENCE = 8, 2, 50, 3


def loss_of(model, inputs, labels):
    """The mean loss of the labels that count, in nats."""
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def batches(rows, seed):
    """Batches without end: all rows in a new order in each epoch."""
    epoch = 0
    while True:
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed + epoch))
        for start in range(0, len(rows) - SIZE + 1, SIZE):
            yield rows[order[start:start + SIZE]]
        epoch += 1


def learn(model, batch, generator):
    """Add up the gradients of the ranks, each with its own rows of the batch; returns the loss."""
    total, counted = 0.0, (inputs_and_labels(batch)[1] >= 0).sum()
    for rank in range(RANKS):
        inputs, labels = inputs_and_labels(batch[rank::RANKS])
        inputs = noisy(inputs, len(model.prior), generator)
        loss = loss_of(model, inputs, labels) * (labels >= 0).sum() / counted
        loss.backward()
        total += loss.item()
    return total


def validate(model, rows):
    """The mean loss on rows that are not learned from."""
    model.eval()
    total = 0.0
    with torch.no_grad():
        for part in rows.split(64):
            inputs, labels = inputs_and_labels(part)
            total += loss_of(model, inputs, labels) * len(part) / len(rows)
    model.train()
    return total.item()


def saved(model, average, optimizer, schedule):
    """All that a stopped training needs to go on, as bytes."""
    parts = {"model": model, "average": average, "optimizer": optimizer, "schedule": schedule}
    file = io.BytesIO()
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    return file.getvalue()


def resumed(checkpoint, letters, steps):
    """Model, average, optimizer and schedule as they were when `checkpoint` was written."""
    held = torch.load(io.BytesIO(checkpoint))
    model, average = Network(letters), Network(letters)
    optimizer, schedule = make_optimizer(model, steps)
    model.load_state_dict(held["model"])
    average.load_state_dict(held["average"])
    optimizer.load_state_dict(held["optimizer"])
    schedule.load_state_dict(held["schedule"])
    return model, average, optimizer, schedule


def train(learned, chosen, letters, steps, seed, watch):
    """Train a new network, stopped and resumed half way; returns the average that chose best."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Network(letters)
    model.prior.copy_(frequencies(learned, letters))
    average = copy.deepcopy(model)
    optimizer, schedule = make_optimizer(model, steps)
    stream, best, kept, waited = batches(learned, 1000 * seed), math.inf, {}, 0
    for step in range(1, steps + 1):
        loss = learn(model, next(stream), generator)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        watch.step(model, optimizer, loss, norm.item())
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, p in zip(average.parameters(), model.parameters()):
                mean.lerp_(p, 0.05)
            for held, buffer in zip(average.buffers(), model.buffers()):
                held.copy_(buffer)
        if step % EVERY == 0:
            score = validate(average, chosen)
            watch.validation(score)
            waited = 0 if score < best else waited + 1
            if score < best:
                best, kept = score, {n: t.clone() for n, t in average.state_dict().items()}
            if waited == PATIENCE:
                break
        if step == steps // 2:
            checkpoint = saved(model, average, optimizer, schedule)
            model, average, optimizer, schedule = resumed(checkpoint, letters, steps)
    average.load_state_dict(kept)
    return average.eval()


# part: use
class Adapted(nn.Module):
    """A linear layer that stands still, and an update of rank 4 beside it that learns."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(4, layer.in_features) / 8)
        self.b = nn.Parameter(torch.zeros(layer.out_features, 4))

    def forward(self, x):
        return self.layer(x) + 2 * x @ self.a.T @ self.b.T


def adapted(model, rows, seed, steps=30):
    """A copy of the model that has learned from rows of another kind through its adapters."""
    model = copy.deepcopy(model).train().requires_grad_(False)
    for name, layer in list(model.named_modules()):
        if name.endswith(("qkv", "out", "up", "down")):
            setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2],
                    Adapted(layer))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    stream = batches(rows, seed)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, *inputs_and_labels(next(stream))).backward()
        optimizer.step()
    return merged(model)


@torch.no_grad()
def merged(model):
    """The model with each update added to its layer, as plain layers again."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Adapted):
            layer.layer.weight += 2 * layer.b @ layer.a
            setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2],
                    layer.layer)
    return model.eval()


@torch.no_grad()
def smaller(model, bits=4, group=16):
    """A copy with rounded matrices: a grid for each `group` numbers of a row."""
    small = copy.deepcopy(model)
    for p in small.parameters():
        if p.ndim > 1:
            grouped = p.reshape(-1, group)
            scale = grouped.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
            p.copy_(((grouped / scale).round() * scale).reshape(p.shape))
    return small


@torch.no_grad()
def logits_by_letter(model, inputs):
    """Logits (B, T, letters), one place after the other, from the cache: as in use."""
    caches = [{} for _ in range(LAYERS)]
    return torch.cat([model(inputs[:, t:t + 1], caches) for t in range(inputs.shape[1])], 1)


def write(model, prompt, numbers, seed, most=120):
    """What the model writes behind a prompt, up to the END or `most` letters."""
    letters = {number: letter for letter, number in numbers.items()}
    generator = torch.Generator().manual_seed(seed)
    written = [END, *(numbers[letter] for letter in prompt)]
    caches = [{} for _ in range(LAYERS)]
    ahead = torch.tensor([written])
    with torch.no_grad():
        for _ in range(most):
            for place in ahead.split(1, 1):
                logits = model(place, caches)
            odds = (logits[0, -1] / 0.7).softmax(-1)
            written.append(int(odds.multinomial(1, generator=generator)))
            if written[-1] == END:
                break
            ahead = torch.tensor([written[-1:]])
    return "".join(letters.get(number, "_") for number in written[1:])


def main(text, steps, seed, watch):
    """Train on a text; returns its test rows, its letters, and what is delivered: two models."""
    numbers = numbers_of(text)
    learned, chosen, tested = split(rows_of(text, numbers))
    loud = split(rows_of(text.upper(), numbers))
    model = train(learned, chosen, len(numbers) + 2, steps, seed, watch)
    return smaller(model), adapted(model, loud[0], seed), tested, loud[2], numbers
