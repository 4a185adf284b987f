"""The training script of the exam, without a fault: a reader of digits, from bytes to int8,
and beside it what serves a language model.

It is read as text, and each fault of faults.py is a small change of it. A line `# part: ...` begins
a part; a learner pays for each part that is looked at.
"""

# part: data
import copy

import torch
from torch import nn
from torch.nn import functional as F


def split(images, labels):
    """Pictures (N, 8, 8) uint8 with their labels: to learn from, to choose by, to be tested on."""
    return [(images[a:b], labels[a:b]) for a, b in [(0, 500), (500, 700), (700, 1000)]]


def brighten(images):
    """Each picture brighter by 0 to 40 of 255, drawn anew at each call; uint8 as before."""
    more = torch.randint(0, 41, (len(images), 1, 1))
    return (images.int() + more).clamp(max=255).to(torch.uint8)


def scaled(images):
    """Bytes as numbers around zero, with a spread of about one."""
    return (images.float() - 80) / 90


# part: model
class Reader(nn.Module):
    """The eight rows of a picture look at each other; two layers read them."""

    def __init__(self, classes):
        super().__init__()
        self.rows = nn.Linear(8, 16)
        self.mix = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(128)
        self.layers = nn.ModuleList([nn.Linear(128, 64), nn.Linear(64, 64)])
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(64, classes)
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        x = self.rows(x.to(self.rows.weight.dtype))
        x = x + self.mix(x, x, x, need_weights=False)[0]
        x = self.norm(x.flatten(1))
        for layer in self.layers:
            x = F.relu(layer(x))
        x = self.drop(x)
        return self.head(x)


# part: optimizer
def make_optimizer(model, steps):
    """AdamW with one cycle of its rate; biases and the gain of the norm are not decayed."""
    rate = 0.004
    parts = ("rows", "mix", "norm", "layers", "head")
    chosen = {n: p for n, p in model.named_parameters() if n.startswith(parts)}
    exempt = {n for n, p in chosen.items() if p.ndim < 2}
    groups = [
        {"params": [p for n, p in chosen.items() if n not in exempt], "weight_decay": 0.05},
        {"params": [p for n, p in chosen.items() if n in exempt], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)


# part: train
def train(model, learn, choose, epochs=6, size=50):
    """Train in place, with a new head for these labels; keep the state that reads best.

    Returns the loss of each step, and the kept state.
    """
    images, labels = learn
    model.head = nn.Linear(64, int(labels.max()) + 1)
    optimizer, schedule = make_optimizer(model, epochs * len(images) // size)
    losses, best, kept = [], -1.0, {}
    for _ in range(epochs):
        model.train()
        for batch in torch.randperm(len(images)).split(size):
            optimizer.zero_grad()
            total = 0.0
            for half in batch.split(size // 2):
                logits = model(scaled(brighten(images[half])))
                loss = F.cross_entropy(logits, labels[half]) * len(half) / len(batch)
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(total)
        score = evaluate(model, *choose)
        if score > best:
            best, kept = score, {n: t.clone() for n, t in model.state_dict().items()}
    model.load_state_dict(kept)
    return losses, kept


# part: evaluate
@torch.no_grad()
def evaluate(model, images, labels):
    """Share of pictures read right, in batches of 100."""
    model.eval()
    right = 0
    for rows in torch.arange(len(images)).split(100):
        logits = model(scaled(images[rows]))
        right += (logits.argmax(1) == labels[rows]).sum().item()
    return right / len(images)


def smaller(model, bits=8):
    """A copy with rounded weights: a grid of its own for each row of a matrix."""
    small = copy.deepcopy(model)
    for p in small.parameters():
        if p.ndim > 1:
            step = p.detach().abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
            p.data = (p.detach() / step).round() * step
    return small


# part: ranks
def side_by_side(model, images, labels, ranks=2, size=50):
    """Train a copy of the model on each rank, as DDP does: own rows, one mean gradient for all.

    Returns the copies, and the rows that each rank read.
    """
    copies = [copy.deepcopy(model).train() for _ in range(ranks)]
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in copies]
    read = [[] for _ in copies]
    for batch in torch.randperm(len(images)).split(size):
        for rank, one in enumerate(copies):
            rows = batch[rank::ranks]
            read[rank] += rows.tolist()
            one.zero_grad()
            F.cross_entropy(one(scaled(images[rows])), labels[rows]).backward()
        average(copies)
        for one, sgd in zip(copies, optimizers):
            nn.utils.clip_grad_norm_(one.parameters(), 0.25)
            sgd.step()
    return copies, read


def average(copies):
    """Give each copy the mean of all gradients: the all-reduce, with the ranks in one process."""
    for same in zip(*(one.parameters() for one in copies)):
        if same[0].grad is not None:
            mean = torch.stack([p.grad for p in same]).mean(0)
            for p in same:
                p.grad = mean.clone()


# part: serve
class Writer(nn.Module):
    """A language model of digits, two layers of causal attention; its weights stay as drawn."""

    def __init__(self):
        super().__init__()
        self.digits = nn.Embedding(10, 16)
        self.layers = nn.ModuleList([nn.Linear(16, 48), nn.Linear(16, 48)])
        self.head = nn.Linear(16, 10)

    def forward(self, ids, cache):
        """Logits (T, 10) behind ids (T,), after what cache (2, P, 32) holds; that with them."""
        x, grown = self.digits(ids), []
        for layer, before in zip(self.layers, cache):
            query, new = layer(x).split([16, 32], 1)
            grown.append(torch.cat([before, new]))
            key, value = grown[-1].split(16, 1)
            seen = torch.ones(len(ids), len(key)).tril(len(before)).bool()
            x = x + F.scaled_dot_product_attention(query, key, value, seen)
        return self.head(x), torch.stack(grown)


class Memory:
    """Keys and values in blocks of four digits; requests that begin alike share their blocks."""

    def __init__(self, model, blocks=12):
        self.model, self.held = model, torch.zeros(blocks, 2, 4, 32)
        self.free, self.readers, self.known = list(range(blocks)), [0] * blocks, {}

    def cache(self, table):
        """What the blocks of a table hold, as one cache."""
        return self.held[table].transpose(0, 1).flatten(1, 2)

    @torch.no_grad()
    def enter(self, ids):
        """Read a prompt, a list of digits, in full blocks. Returns its table."""
        table = []
        for end in range(4, len(ids) + 1, 4):
            key = tuple(ids[:end])
            if key not in self.known:
                _, grown = self.model(torch.tensor(ids[end - 4:end]), self.cache(table))
                self.known[key] = self.free.pop(0)
                self.held[self.known[key]] = grown[:, -4:]
            table.append(self.known[key])
            self.readers[table[-1]] += 1
        return table

    def leave(self, table):
        """A request is done; a block without readers is free, and no longer known."""
        for block in table:
            self.readers[block] -= 1
            if self.readers[block] == 0:
                self.free.append(block)
                self.known = {key: b for key, b in self.known.items() if b != block}


@torch.no_grad()
def speculate(model, last, draft, q, cache):
    """Check in one call digits (D,) that a cheaper model has drawn from q (D, 10), behind `last`.

    Returns those that stand with one more digit, drawn as the model does, and the cache.
    """
    logits, grown = model(torch.cat([last, draft]), cache)
    p, good = logits.softmax(1), 0
    while good < len(draft) and torch.rand(()) * q[good, draft[good]] < p[good, draft[good]]:
        good += 1
    rest = (p[good] - q[good]).clamp(min=0) if good < len(draft) else p[good]
    grown = grown[:, :cache.shape[1] + 1 + good]
    return torch.cat([draft[:good], torch.multinomial(rest, 1)]), grown
