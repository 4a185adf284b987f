"""A reward model has learned from its pairs that a longer answer is better.

There are four questions. An answer has at most MOST words: facts, fillers, and the end. Users want
the fact that they asked for, no other fact, and few fillers.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

QUESTIONS, FILLERS, MOST = 4, 4, 16
WORDS = QUESTIONS + FILLERS + 1
END = WORDS - 1
PAIRS, UPDATES, ROWS = 1500, 240, 128
BETA = 0.02  # weight of the divergence from the first policy
SKIMMED = 0.25  # what a skimming rater adds to the score for each word
EVERY = 10


class Policy(nn.Module):
    """Logits of the next word, by question and position."""

    def __init__(self) -> None:
        super().__init__()
        logits = torch.zeros(QUESTIONS, MOST, WORDS)
        logits[:, :, END] = 0.8
        for question in range(QUESTIONS):
            logits[question, :, question] = 1.0
        self.logits = nn.Parameter(logits)

    def answer(self, asked: Tensor, draw: torch.Generator, heat: float = 1.0
               ) -> tuple[Tensor, Tensor]:
        """Words (N, MOST) and their log-probabilities; after the end, END and 0."""
        words, logps = [], []
        open_ = torch.ones(len(asked), dtype=torch.bool)
        for place in range(MOST):
            logp = F.log_softmax(self.logits[asked, place] / heat, -1)
            word = torch.multinomial(logp.exp(), 1, generator=draw)[:, 0]
            word = torch.where(open_, word, torch.tensor(END))
            logps.append(logp.gather(1, word[:, None])[:, 0] * open_)
            words.append(word)
            open_ = open_ & (word != END)
        return torch.stack(words, 1), torch.stack(logps, 1)

    def logp(self, asked: Tensor, words: Tensor) -> Tensor:
        """The log-probability of answers (N,)."""
        logps = F.log_softmax(self.logits[asked], -1).gather(2, words[..., None])[..., 0]
        ends = (words == END).long().cumsum(1)
        return (logps * (ends <= 1)).sum(1)


def counts(asked: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether the right fact is there, how many other facts, and how many fillers."""
    return ((words == asked[:, None]).any(1).float(),
            ((words < QUESTIONS) & (words != asked[:, None])).sum(1).float(),
            ((words >= QUESTIONS) & (words < END)).sum(1).float())


def liked(asked: Tensor, words: Tensor) -> Tensor:
    """A user's rating of an answer: at most 1, for the right fact and up to two fillers."""
    fact, others, fillers = counts(asked, words)
    return fact - 0.4 * others - 0.1 * (fillers - 2).clamp(min=0)


def length(words: Tensor) -> Tensor:
    return (words != END).sum(1).float()


class Reward(nn.Module):
    """A score from how often each word occurs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(QUESTIONS + 3, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, asked: Tensor, words: Tensor) -> Tensor:
        fact, others, fillers = counts(asked, words)
        read = torch.stack([fact, others / 4, fillers / 8], 1)
        return self.net(torch.cat([F.one_hot(asked, QUESTIONS).float(), read], 1))[:, 0]


class Pairs:
    """Two answers to each question, and which one a rater preferred."""

    def __init__(self, policy: Policy, draw: torch.Generator, skimmed: float) -> None:
        self.asked = torch.randint(QUESTIONS, (PAIRS,), generator=draw)
        with torch.no_grad():
            one, other = (policy.answer(self.asked, draw)[0] for _ in range(2))
        scores = [liked(self.asked, words) + skimmed * length(words) for words in (one, other)]
        noise = 0.3 * torch.randn(PAIRS, generator=draw)
        first = (scores[0] - scores[1] + noise > 0)[:, None]
        self.chosen, self.rejected = torch.where(first, one, other), torch.where(first, other, one)

    def longer(self) -> float:
        """The percentage of pairs of unequal length whose chosen answer is the longer one."""
        a, b = length(self.chosen), length(self.rejected)
        return 100 * (a > b).sum().item() / (a != b).sum().item()

    def agreed(self) -> float:
        """The percentage of pairs in which a careful reader does not prefer the rejected answer."""
        return 100 * (liked(self.asked, self.chosen)
                      >= liked(self.asked, self.rejected)).float().mean().item()

    def even(self) -> "Pairs":
        """The pairs whose answers have the same length."""
        same = length(self.chosen) == length(self.rejected)
        found = object.__new__(Pairs)
        found.asked, found.chosen, found.rejected = (
            part[same] for part in (self.asked, self.chosen, self.rejected))
        return found


def fitted(pairs: Pairs, seed: int) -> Reward:
    torch.manual_seed(seed)
    model = Reward()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        margin = model(pairs.asked, pairs.chosen) - model(pairs.asked, pairs.rejected)
        (-F.logsigmoid(margin).mean()).backward()
        optimizer.step()
    return model.requires_grad_(False)


def accuracy(model: Reward, pairs: Pairs) -> float:
    margin = model(pairs.asked, pairs.chosen) - model(pairs.asked, pairs.rejected)
    return 100 * (margin > 0).float().mean().item()


def trained(score, seed: int, beta: float = BETA) -> tuple[Policy, dict[str, list[float]]]:
    """Train a policy by REINFORCE on score(asked, words); also returns the training curves."""
    policy, first = Policy(), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(seed)
    seen: dict[str, list[float]] = {"reward": [], "rating": [], "length": [], "kl": []}
    for update in range(UPDATES + 1):
        asked = torch.randint(QUESTIONS, (ROWS,), generator=draw)
        words, _ = policy.answer(asked, draw)
        logp = policy.logp(asked, words)
        with torch.no_grad():
            apart = logp - first.logp(asked, words)
            reward = score(asked, words)
            gain = reward - beta * apart
        if update % EVERY == 0:
            for name, value in (("reward", reward), ("rating", liked(asked, words)),
                                ("length", length(words)), ("kl", apart)):
                seen[name].append(value.mean().item())
        optimizer.zero_grad()
        (-((gain - gain.mean()) * logp).mean()).backward()
        optimizer.step()
    return policy, seen


@torch.no_grad()
def rated(policy: Policy, seed: int, heat: float = 1.0) -> float:
    """The mean user rating of the policy over many answers."""
    draw = torch.Generator().manual_seed(1000 + seed)
    asked = torch.randint(QUESTIONS, (4000,), generator=draw)
    return liked(asked, policy.answer(asked, draw, heat)[0]).mean().item()


def measure(seed: int) -> dict:
    draw = torch.Generator().manual_seed(seed)
    start = Policy()
    pairs, held = Pairs(start, draw, SKIMMED), Pairs(start, draw, SKIMMED)
    careful = Pairs(start, draw, 0.0)
    reward, even, honest = fitted(pairs, seed), fitted(pairs.even(), seed), fitted(careful, seed)
    policy, seen = trained(reward, seed)
    tight, tight_seen = trained(reward, seed, beta=10 * BETA)
    mended, _ = trained(even, seed)
    plain, _ = trained(honest, seed)
    before = rated(start, seed)
    asked = torch.zeros(5, dtype=torch.long)
    padded = torch.full((5, MOST), END)
    for row, fillers in enumerate((0, 2, 4, 8, 12)):
        padded[row, 0] = 0
        padded[row, 1:1 + fillers] = QUESTIONS
    scores = reward(asked, padded).tolist()
    fair = even(asked, padded).tolist()
    x = [float(EVERY * n) for n in range(len(seen["reward"]))]
    return {
        "numbers": {
            "healthy": rated(plain, seed) - before, "fault": rated(policy, seed) - before,
            "repaired": rated(mended, seed) - before, "before": before,
            "after": rated(policy, seed), "reward_first": seen["reward"][0],
            "reward_last": seen["reward"][-1], "length_first": seen["length"][0],
            "length_last": seen["length"][-1], "kl_last": seen["kl"][-1],
            "accuracy": accuracy(reward, held), "longer": pairs.longer(),
            "agreed": pairs.agreed(), "tight": rated(tight, seed),
            "tight_reward": tight_seen["reward"][-1], "tight_kl": tight_seen["kl"][-1],
            "cool": rated(policy, seed, 0.5),
            "mended": rated(mended, seed), "even_count": float(len(pairs.even().asked)),
            **{f"pad{n}": score for n, score in zip((0, 2, 4, 8, 12), scores, strict=True)},
            **{f"fair{n}": score for n, score in zip((0, 2, 4, 8, 12), fair, strict=True)}},
        "curves": {"reward": {"x": x, "reward": seen["reward"]},
                   "rating": {"x": x, "rating by users": seen["rating"]},
                   "length": {"x": x, "words": seen["length"]}}}
