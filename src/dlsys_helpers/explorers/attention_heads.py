"""Three heads of a small network that is trained here: which keys each of them weighs."""

from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.explorers import Bars, Choice, Grip, Heatmap, Slider, explorer

LETTERS, T, WIDTH, HEADS = "abcd", 8, 24, 3
ROW = "bdacdbca"  # the row that is shown: like every row, it has each letter twice
# The seed of the starting weights and of the rows. Run A was chosen: of the seeds 0 to 19 only 0,
# 2, 10 and 15 end with a job for each head, which gets more than 70 % of its weight. The others
# end as run B does, or with a question that is not yet answered.
RUNS = {"A": 2, "B": 5}
STEPS, BATCH, FRESH = (0, 50, 100, 200, 300), 32, 200
TOKENS = [f"{place} {letter}" for place, letter in enumerate(ROW)]
JOBS = ("the token before", "the equal token", "the first token")
APART = 2  # from this position on, the three are three different keys, or nearly always


def rows(n):
    """Random rows (n, T) of letters as numbers, each letter twice."""
    return torch.rand(n, T).argsort(1) % len(LETTERS)


def keys(ids):
    """For each of JOBS the key (N, T) that does it. The first token counts as the one before it."""
    place = torch.arange(T).expand_as(ids)
    equal = (ids[:, :, None] == ids[:, None]) & ~torch.eye(T, dtype=torch.bool)
    return (place - 1).clamp(min=0), equal.int().argmax(2), torch.zeros_like(ids)


def answers(ids):
    """What the network must answer at each token: the letter before it, where its letter is again,
    and the letter that is first. Three tensors (N, T).
    """
    before, equal, first = keys(ids)
    return ids.gather(1, before), equal, ids.gather(1, first)


class Net(nn.Module):
    """One layer of attention over letters and their positions, and a linear layer per question."""

    def __init__(self):
        super().__init__()
        self.letter, self.place = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(T, WIDTH)
        self.heads = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.sizes = (len(LETTERS), T, len(LETTERS))
        self.answer = nn.Linear(WIDTH, sum(self.sizes))

    def forward(self, ids):
        """Logits (N, T, classes) of each question, and the attention weights (N, HEADS, T, T)."""
        x = self.letter(ids) + self.place.weight
        seen, weights = self.heads(x, x, x, average_attn_weights=False)
        return self.answer(x + seen).split(self.sizes, -1), weights


def measure(net):
    """The weights for ROW (HEADS, T, T), each head's mean weight on each job (HEADS, JOBS) and the
    share of right answers to each question (JOBS,), both over FRESH rows.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        ids = rows(FRESH)
        said, given = net(ids)
        shown = net(torch.tensor([[LETTERS.index(letter) for letter in ROW]]))[1][0]
    right = [(logits.argmax(-1) == answer).double().mean().item()
             for logits, answer in zip(said, answers(ids), strict=True)]
    jobs = [given.gather(3, key[:, None, :, None].expand(-1, HEADS, -1, 1))[:, :, APART:]
            .mean((0, 2, 3)) for key in keys(ids)]
    return shown, torch.stack(jobs, 1), right


@lru_cache(maxsize=len(RUNS))
def train(run):
    """What `measure` finds after each of STEPS, by step."""
    found = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RUNS[run])
        net = Net()
        opt = torch.optim.Adam(net.parameters(), lr=0.01)
        for step in range(STEPS[-1] + 1):
            if step in STEPS:
                found[step] = measure(net)
            ids = rows(BATCH)
            loss = sum(F.cross_entropy(logits.flatten(0, 1), answer.flatten())
                       for logits, answer in zip(net(ids)[0], answers(ids), strict=True))
            opt.zero_grad()
            loss.backward()
            opt.step()
    return found


def percent(weights):
    """Weights in percent, to a tenth."""
    return (1000 * weights.double()).round().clamp(0, 1000) / 10


def told(run, steps, head, query, given, right):
    """Where the query's weight goes, and how well the network answers."""
    at = TOKENS.index(query)
    most = int(given[at].argmax())
    ids = torch.tensor([[LETTERS.index(letter) for letter in ROW]])
    roles = [job for job, key in zip(JOBS, keys(ids), strict=True) if key[0, at] == most]
    role = f", {' and '.join(roles)}" if roles else ", the query itself" if most == at else ""
    shares = ", ".join(f"{100 * share:.0f} %" for share in right)
    return (f"Run {run} after {steps} training steps: for the query {query}, head {head} gives "
            f"{100 * given[at, most]:.0f} % of its weight to the key {TOKENS[most]}{role}. Right "
            f"answers of the network in {FRESH} new rows, by question: {shares}.")


@explorer(
    title="Three heads, trained to answer three questions",
    controls=[
        Choice("run", "Training run", RUNS, "A"),
        Choice("head", "Head", range(1, HEADS + 1), 1),
        Slider("steps", "Training steps", STEPS, STEPS[-1]),
        Choice("query", "Query token", TOKENS, TOKENS[4]),
    ],
    views=[
        Heatmap("weights", title="The head's weights for this row", xlabel="position of the key",
                ylabel="position of the query", vmin=0, vmax=1, label="weight",
                grips=[Grip("query", y=TOKENS.index)]),
        Bars("given", TOKENS, title="The query's weights, by key", limit=100, unit=" %"),
        Bars("jobs", JOBS, title=f"The head's mean weight on these, over {FRESH} new rows",
             limit=100, unit=" %"),
    ],
)
def attention_heads(run, head, steps, query):
    """One head's weights for a row, the query's weights, and what the head mostly looks at."""
    shown, jobs, right = train(run)[steps]
    given, at = shown[head - 1], TOKENS.index(query)
    return {"weights": given, "given": percent(given[at]), "jobs": percent(jobs[head - 1])}, told(
        run, steps, head, query, given, right)
