"""The training script of the exam, without a fault: a reader of digits, from bytes to int8,
and beside it what serves a language model, learns from preferences and cuts a model over ranks.

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


# part: prefer
def scored(policy, prompts, answers):
    """Log-probabilities (N,) of answers to prompts, by a policy: a table of logits (P, A)."""
    return policy.log_softmax(1)[prompts, answers]


def learn_pairs(policy, prompts, better, worse, steps=150):
    """DPO in place: of each pair the first answer was preferred. Returns the loss of each step."""
    begun, losses = policy.detach().clone(), []
    optimizer = torch.optim.Adam([policy], lr=0.05)
    for _ in range(steps):
        now, then = (scored(table, prompts, better) - scored(table, prompts, worse)
                     for table in (policy, begun))
        cost = -F.logsigmoid(0.5 * (now - then)).mean()
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()
        losses.append(cost.item())
    return losses


def against_others(rewards, prompts):
    """Each reward beside those of its prompt, in spreads: (G * P,), G rounds of all P prompts."""
    groups = rewards.view(-1, prompts)
    gap = groups - groups.mean(0)
    return (gap / (groups.std(0) + 1e-4)).flatten()


def price(now, then):
    """What answers pay that are as likely as `now` and were as likely as `then`, both logs (N,).

    The mean over answers that the policy draws has the gradient of its KL to where it began.
    """
    return (now - then) ** 2 / 2


def climb(policy, begun, prompts, answers, gains, steps=8):
    """PPO in place: some steps on one draw (N,). Returns the ratios (N,) of each step."""
    optimizer = torch.optim.SGD([policy], lr=4.0)
    drawn, ratios = scored(policy, prompts, answers).detach(), []
    for _ in range(steps):
        now = scored(policy, prompts, answers)
        ratio = (now - drawn).exp()
        kept = torch.minimum(ratio * gains, ratio.clamp(0.8, 1.2) * gains)
        cost = ratio.detach() * price(now, scored(begun, prompts, answers))
        optimizer.zero_grad()
        (0.1 * cost - kept).mean().backward()
        optimizer.step()
        ratios.append(ratio.detach())
    return ratios


# part: cut
def backward_in_halves(bodies, halves, heads, x, labels):
    """Gradients of a net whose middle layer is cut over ranks; body and head are copies."""
    hidden = [body(x) for body in bodies]
    entered = [h.detach().requires_grad_() for h in hidden]
    parts = [half(h) for half, h in zip(halves, entered)]
    for part, head in zip(parts, heads):
        whole = torch.stack(parts).sum(0).detach().requires_grad_()  # all-reduce
        F.cross_entropy(head(whole), labels).backward()
        part.backward(whole.grad)
    for h in hidden:
        h.backward(torch.stack([one.grad for one in entered]).sum(0))  # all-reduce


def attend_in_parts(x, places, ranks=2):
    """Causal attention over x (T, D) at places (T, D); each rank has its part of the rows."""
    size = len(x) // ranks
    parts = [part + places[rank * size:][:size] for rank, part in enumerate(x.split(size))]
    every = torch.cat(parts)  # all-gather: keys and values of all ranks
    return torch.cat([F.scaled_dot_product_attention(
        part, every, every, torch.ones(size, len(x)).tril(rank * size).bool())
        for rank, part in enumerate(parts)])


class Experts(nn.Module):
    """Each row (N, 16) visits the expert that the router finds likeliest, times that chance."""

    def __init__(self, experts=4):
        super().__init__()
        self.router = nn.Linear(16, experts, bias=False)
        self.experts = nn.ModuleList([nn.Linear(16, 16) for _ in range(experts)])

    def forward(self, x):
        weights, chosen = self.router(x).softmax(1).topk(1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            mine = chosen[:, 0] == k
            out[mine] = weights[mine] * expert(x[mine])
        return out


def held(weights, kept, copies=1, cut=1, zero=False):
    """Bytes that each of copies * cut GPUs holds in training: 16 a weight, and what is kept.

    kept: bytes that a GPU's micro-batch of an uncut model keeps for backward. ZeRO-1 shares the
    optimizer's 12 bytes a weight among the copies.
    """
    state = 4 + 12 / (copies if zero else 1)
    return (weights * state + kept) / cut
