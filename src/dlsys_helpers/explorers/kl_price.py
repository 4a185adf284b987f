"""What a nat costs: the best policy for each beta, with a judge who is right and one who errs."""

import math
from functools import lru_cache

import torch

from dlsys_helpers.explorers import Choice, Columns, Grip, Lines, Slider, explorer

ANSWERS = 12
BETAS = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 2, 5, 10]
JUDGES = {"right about all": 0.0, "wrong about one": 3.5}  # what is added at answer TRICK
TRICK = 9  # the answer's rank by true reward


@lru_cache(maxsize=1)
def table():
    """log-probabilities of the start and true rewards, (ANSWERS,) float64, best answer first."""
    g = torch.Generator().manual_seed(3)
    start = torch.randn(ANSWERS, generator=g, dtype=torch.float64)
    start[TRICK] = -4.0  # a trick that the start hardly knows
    start = start.log_softmax(0)
    reward = torch.randn(ANSWERS, generator=g, dtype=torch.float64).sort(descending=True).values
    return start, reward


def judged(judge):
    """The judge's reward for each answer, (ANSWERS,) float64."""
    told = table()[1].clone()
    told[TRICK] += JUDGES[judge]
    return told


def best(told, beta):
    """log-probabilities of the policy that maximizes E[told] - beta KL to the start."""
    return (table()[0] + told / beta).log_softmax(0)


def earns(logp, reward):
    """Expected reward of a policy."""
    return float((logp.exp() * reward).sum())


def distance(logp):
    """KL of a policy to the start, in nats."""
    return float((logp.exp() * (logp - table()[0])).sum())


@explorer(
    title="What a nat costs",
    controls=[
        Choice("judge", "The judge is", JUDGES, "right about all"),
        Slider("beta", "Beta, the price of a nat", BETAS, 1),
    ],
    views=[
        Columns("place", {"before": "start", "after": "best policy"},
                title="Probability of each answer", xlabel="answer, truly best first",
                ylabel="probability", ylim=(0, 1)),
        Lines("log_beta", {"told": "reward, says the judge", "true": "true reward",
                           "kl": "KL to the start, nats"},
              title="Reward and distance, for each price", xlabel="log2 of beta",
              ylabel="reward; nats", xlim=(-4.5, 3.5), mark="here",
              grips=[Grip("beta", x=math.log2)]),
    ],
)
def kl_price(judge, beta):
    """Reward as told, true reward and KL of the closed form, over prices of a nat."""
    told, (start, reward) = judged(judge), table()
    policies = [best(told, price) for price in BETAS]
    now = best(told, beta)
    sentence = (f"At {beta:g} a nat the best policy earns {earns(now, told):.2f} by the judge and "
                f"{earns(now, reward):.2f} in truth; the start {earns(start, reward):.2f}. It is "
                f"{distance(now):.2f} nats from the start, and gives its likeliest answer with "
                f"probability {float(now.exp().max()):.2f}.")
    return {"place": range(1, ANSWERS + 1), "before": start.exp(), "after": now.exp(),
            "log_beta": [math.log2(price) for price in BETAS],
            "told": [earns(p, told) for p in policies],
            "true": [earns(p, reward) for p in policies],
            "kl": [distance(p) for p in policies], "here": [math.log2(beta)]}, sentence
