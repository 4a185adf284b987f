# %% [markdown] role="hook"
# # 14. Learning from preferences
#
# The model writes well, and people like some of its answers better than others. So you
# ask them, and train on what they say: on pairs of answers (DPO), or on rewards for
# answers that the model draws itself (PPO, GRPO).
#
# Each of these losses is three lines long. Each holds the policy near the model that it
# started from, or is meant to. Get one line wrong and the loss looks as it should, no
# error comes, and the policy goes somewhere else. In this stage you know where it should
# go, to the last digit, and watch where it goes.

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
    begin, check, claim, draw_blocks, draw_boxes, draw_grids,
    draw_histogram, draw_lanes, draw_line, draw_ranks, draw_tree, guess,
    measured, plot_bars, plot_columns, plot_lines,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## A judge, and pairs of answers
#
# There are `K` prompts, and `A` possible answers to each. A *policy* is a table of
# log-probabilities, (K, A): so likely it gives each answer. It begins at `start`, the model
# before this training, which is called the *reference* later.
#
# The judge feels a *reward* for each answer, a number that nobody sees. Of two answers it
# prefers one, by chance: with probability sigmoid(difference of the rewards). This is
# the *Bradley-Terry* model.

# %% role="concept"
K, A = 8, 16                              # prompts, answers to each
reward = torch.randn(K, A)
start = torch.randn(K, A).log_softmax(-1)

def draw(logp, n):
    """n answers (K, n) to each prompt, from a policy logp (K, A)."""
    return torch.multinomial(logp.exp(), n, replacement=True)

def ask(n):
    """n pairs a prompt: the preferred answers and the others, (K, n)."""
    one, two = draw(start, n), draw(start, n)
    gap = reward.gather(1, one) - reward.gather(1, two)
    first = torch.rand(K, n) < gap.sigmoid()
    return torch.where(first, one, two), torch.where(first, two, one)

# %% [markdown] role="concept"
# ## Where the policy should go
#
# It should earn reward and stay near the start, or it learns to please this judge and
# forgets all else. So it is to maximise
#
# $$\mathbb{E}[\text{reward}] - \beta\, \mathrm{KL}(\text{policy}, \text{start})$$
#
# with the KL in nats: how surprised the start is by what the policy writes. $\beta$ is
# what one nat costs. The best policy is known in closed form: each answer's old
# probability times $\exp(\text{reward} / \beta)$, divided by what makes them sum to 1.

# %% role="concept"
BETA = 1.0

def kl(p, q):
    """KL(p, q) in nats, mean over prompts, of policies (K, A)."""
    return (p.exp() * (p - q)).sum(-1).mean()

def earned(logp):
    """Expected reward of a policy (K, A), mean over prompts."""
    return (logp.exp() * reward).sum(-1).mean()

def best_policy(start, reward, beta):
    """The policy (K, A) that no other exceeds, for this beta."""
    return (start + reward / beta).log_softmax(-1)

best = best_policy(start, reward, BETA)

# %% [markdown] role="concept"
# Any other policy falls short of it by exactly $\beta$ times its KL to the best. Take one
# at random:

# %% role="concept"
def worth(logp):
    """What is to be maximised."""
    return earned(logp) - BETA * kl(logp, start)

other = torch.randn(K, A).log_softmax(-1)
lost = worth(best) - worth(other)

# %% role="concept"
claim("what another policy loses, over beta times its KL to the best",
      (lost / (BETA * kl(other, best))).item(), expected=1, within=0.001)

# %% [markdown] role="concept"
# For the first prompt: start, and best policy for three prices of a nat. At a high price
# it hardly moves, at a low one it gives the judge's favourite and little else.

# %% role="concept"
order = reward[0].argsort(descending=True)
steps = {f"beta {beta:g}": best_policy(start, reward, beta)[0, order].exp()
         for beta in (5.0, 1.0, 0.2)}
draw_grids({"start": start[0, order].exp()[None],
            **{name: p[None] for name, p in steps.items()}},
           columns="answers, from the highest reward to the lowest",
           title="The cheaper a nat, the fewer answers are left",
           alt="Four rows of sixteen cells, one a policy; a dark cell is a "
               "likely answer. The start is uneven. As beta falls, the "
               "colour gathers at the left, where the rewards are high.")

# %% role="concept"
claim("KL of the best policy to the start, beta 0.2 over beta 1",
      (kl(best_policy(start, reward, 0.2), start)
       / kl(best, start)).item(), above=2)

# %% [markdown] role="concept"
# Below, `learn` trains such a table on a loss, from the start on. It notes the loss and the
# KL to the start at each step.

# %% role="concept"
def learn(loss_of, steps=400, lr=0.1):
    """The policy (K, A) that a loss makes, its losses and its KLs."""
    logits = start.clone().requires_grad_()
    adam = torch.optim.Adam([logits], lr=lr)
    losses, moved = [], []
    for _ in range(steps):
        logp = logits.log_softmax(-1)
        loss = loss_of(logp)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
        moved.append(kl(logp.detach(), start).item())
    return logits.detach().log_softmax(-1), losses, moved

# %% [markdown] role="concept"
# ## An answer is more than one token
#
# In the table an answer is one choice. A language model makes it of *tokens*, and its
# log-probability is the *sum* of theirs, each given all that stand before it. What counts
# is the answer: not the prompt, which was given, nor the pads behind it. Logits at one place
# speak of the next token, so they are shifted by one.

# %% role="concept"
def token_logp(logits, ids):
    """logits (B, T, V), ids (B, T) -> (B, T - 1), of all but the first."""
    return logits[:, :-1].log_softmax(-1).gather(
        -1, ids[:, 1:, None])[..., 0]

def answer_logp(logits, ids, answer):
    """Log-probability (B,) of the tokens where answer (B, T) is true."""
    each = token_logp(logits, ids)
    return each.where(answer[:, 1:], 0.0).sum(-1)

# %% role="concept"
prompts, ends = torch.tensor([3, 5, 4]), torch.tensor([9, 7, 10])
places = torch.arange(10)
is_answer = (places >= prompts[:, None]) & (places < ends[:, None])
is_read = places < ends[:, None]
draw_grids({"read by the model": is_read, "summed": is_answer},
           rows="answers of a batch", columns="places",
           title="All is read, only the answer is summed",
           alt="Two grids, three rows of ten places. On the left all places "
               "but the pads at the end of a row are filled. On the right "
               "only those of the answer, behind the prompt.")

# %% role="concept"
logits = torch.randn(3, 10, 20)
ids = torch.randint(20, (3, 10))
of_answer, of_all = (answer_logp(logits, ids, mask).sum()
                     for mask in (is_answer, is_read))

# %% role="concept"
claim("nats summed with the prompts, over those of the answers",
      (of_all / of_answer).item(), above=1.2)

# %% [markdown] trap="14.1" role="situation" core=true fault="the reference is the policy itself" symptom="the DPO loss stays at 0.693, and the model drifts away all the same"
# ## Trap 14.1

# %% [markdown] trap="14.2" role="situation" core=true fault="rewards are grouped across prompts" symptom="right answers are punished, because their rewards are compared with those of other prompts"
# ## Trap 14.2

# %% [markdown] trap="14.3" role="situation" core=true fault="the gradient of the KL penalty is zero on average" symptom="the KL penalty changes nothing, whatever its weight"
# ## Trap 14.3

# %% [markdown] trap="14.4" role="situation" fault="the old log-probabilities are computed anew in each inner step" symptom="the PPO ratio is always 1, and nothing is ever clipped"
# ## Trap 14.4

# %% [markdown] role="quiz"
# ## Check yourself

# %% [markdown] role="summary"
# ## What you take with you
