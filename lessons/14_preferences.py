# %% [markdown] role="hook"
# # 14. Learning from preferences
#
# Your model writes well, and people like some of its answers better than others. So you
# ask people which answers they prefer and train the model on their choices. You can train
# on pairs of answers (DPO), or on rewards for answers that the model samples itself (PPO,
# GRPO).
#
# Each of these losses takes three lines of code and is meant to keep the *policy*, the
# model in training, near an earlier version. Get one line wrong, and often the loss looks
# as it should, nothing raises an error, and the policy ends up somewhere else. In this
# stage, you know exactly where the policy should end up, and you watch where it goes.

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
    begin, check, claim, cost, datasheet, draw_grids, gpu_result,
    gpu_table, guess, measured, new_axes, peak_bytes, plot_bars,
    plot_columns, plot_lines, seconds, show,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## A judge, and pairs of answers
#
# There are `K` prompts, and `A` possible answers to each. A *policy* is a table of shape
# (K, A) that holds the log-probability of each answer. The policy begins as `start`, the
# model before this training, which is later called the *reference*.
#
# The judge has a *reward* in mind for each answer, a number that nobody else sees. Of two
# answers, the judge prefers the first with probability sigmoid(reward of the first -
# reward of the second). This rule is called the *Bradley-Terry* model.

# %% role="concept"
K, A = 8, 16                              # prompts, answers to each
reward = torch.randn(K, A)
start = torch.randn(K, A).log_softmax(-1)

def draw(logp, n):
    """n answers (K, n) to each prompt, from a policy logp (K, A)."""
    return torch.multinomial(logp.exp(), n, replacement=True)

def ask(n):
    """n pairs per prompt: the preferred answers and the others, (K, n)."""
    one, two = draw(start, n), draw(start, n)
    gap = reward.gather(1, one) - reward.gather(1, two)
    first = torch.rand(K, n) < gap.sigmoid()
    return torch.where(first, one, two), torch.where(first, two, one)

# %% [markdown] role="concept"
# ## Where the policy should go
#
# The policy should earn reward, but it should also stay near the start, or it learns to
# please this judge and forgets everything else. So training should maximize
#
# $$\mathbb{E}[\text{reward}] - \beta\, \mathrm{KL}(\text{policy}, \text{start})$$
#
# The KL, in nats, is a mean over answers sampled from the policy: the answer's
# log-probability under the policy minus its log-probability under the start. $\beta$ is
# the price of one nat. The best policy is known in closed form: multiply each answer's
# probability under the start by $\exp(\text{reward} / \beta)$, then normalize so that the
# probabilities sum to 1.

# %% role="concept"
BETA = 1.0

def kl(p, q):
    """KL(p, q) in nats, mean over prompts, of policies (K, A)."""
    return (p.exp() * (p - q)).sum(-1).mean()

def earned(logp):
    """Expected reward of a policy (K, A), mean over prompts."""
    return (logp.exp() * reward).sum(-1).mean()

def best_policy(start, reward, beta):
    """The policy (K, A) with the highest objective, for this beta."""
    return (start + reward / beta).log_softmax(-1)

best = best_policy(start, reward, BETA)

# %% [markdown] role="concept"
# Any other policy's objective is lower by exactly $\beta$ times its KL to the best
# policy. Try a random policy:

# %% role="concept"
def worth(logp):
    """The objective, which training should maximize."""
    return earned(logp) - BETA * kl(logp, start)

other = torch.randn(K, A).log_softmax(-1)
lost = worth(best) - worth(other)

# %% role="concept"
claim("objective lost by a random policy, divided by beta times its KL to "
      "the best policy", (lost / (BETA * kl(other, best))).item(),
      expected=1, within=0.001)

# %% [markdown] role="concept"
# For the first prompt, the figure shows the start and the best policy at three prices of
# a nat. At a high price, the policy hardly moves. At a low price, it gives the judge's
# favourite answers and little else.

# %% role="concept"
order = reward[0].argsort(descending=True)
shown = torch.stack([start, *(best_policy(start, reward, beta)
                              for beta in (5.0, 1.0, 0.2))])[:, 0, order]
draw_grids({"probability of each answer": shown.exp().clamp(max=0.5) * 2},
           row_names=["start", "a nat costs 5", "a nat costs 1",
                      "a nat costs 0.2"],
           columns="answers, the highest reward first",
           title="The cheaper a nat, the fewer answers are left",
           alt="Four rows of sixteen cells, one row per policy. A dark "
               "cell is a likely answer. The start is uneven. As beta "
               "falls, the dark cells gather at the left, where the "
               "rewards are high.")

# %% role="concept"
claim("KL of the best policy to the start at a beta of 0.2, divided by the "
      "same KL at a beta of 1",
      (kl(best_policy(start, reward, 0.2), start)
       / kl(best, start)).item(), above=2)

# %% [markdown] role="concept"
# ## Training a table
#
# The function `learn` below trains a policy table on a loss, beginning at the start or at
# the `logits` that you pass. It records the loss and the KL to the start at each step.

# %% role="concept"
def learn(loss_of, steps=400, lr=0.1, logits=None):
    """The trained policy (K, A), its losses and its KLs."""
    if logits is None:
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
# ## From a preference to a loss
#
# You have pairs of answers, and you know which answer of each pair was preferred. You
# want to raise a reward that nobody has written down. How do you get from the pairs to a
# number that training can lower?
#
# The answer is maximum likelihood, as in stage 3. If you knew the rewards, Bradley-Terry
# would give you the probability of each of the judge's choices. The loss is the negative
# logarithm of each choice's probability, averaged over the choices. The next cell scores
# the same 4,096 choices under two tables of rewards: one in which all rewards are equal,
# and the judge's own.

# %% role="concept"
with torch.random.fork_rng():            # later draws stay the same
    liked, passed = ask(512)             # (K, 512) each

def pair_loss(scores):
    """Mean of minus the log-probability of the choices; scores (K, A)."""
    margin = scores.gather(1, liked) - scores.gather(1, passed)
    return -F.logsigmoid(margin).mean()

even, true_reward = pair_loss(torch.zeros(K, A)), pair_loss(reward)
print(f"loss with equal rewards {even:.3f}, with the judge's "
      f"{true_reward:.3f}")

# %% role="concept"
claim("loss with the judge's rewards, divided by the loss with equal "
      "rewards", (true_reward / even).item(), below=0.9)

# %% [markdown] role="concept"
# You could first learn the rewards from the pairs, and then train a policy on them. There
# is a shorter way. The best policy is the start times $\exp(\text{reward} / \beta)$,
# divided by a normalizing sum. Solve this equation for the reward, and you get $\beta$
# times the *log ratio*, log best - log start, plus a constant that is the same for all
# answers to a prompt.

# %% role="concept"
log_ratio = best - start                                 # (K, A)
rest = reward - BETA * log_ratio
print("reward minus beta times log ratio, the first prompt:",
      sorted({round(r, 4) for r in rest[0].tolist()}))

# %% role="concept"
claim("within one prompt: largest spread of reward minus beta times log "
      "ratio", (rest.amax(1) - rest.amin(1)).max(), below=1e-4)

# %% role="concept"
ax = new_axes("The log ratio is the reward, up to a constant per prompt",
              "reward of an answer", "beta times log ratio, best policy")
for k, mark in enumerate("os^"):
    ax.plot(reward[k], BETA * log_ratio[k], mark, mfc="none",
            label=f"prompt {k + 1}")
ax.legend(loc="upper left")
show(ax.figure, alt="For each of three prompts, the sixteen answers are on "
     "a line of slope 1. The three lines are parallel.")

# %% [markdown] role="concept"
# A pair belongs to one prompt, so the constant cancels in the difference of the two
# rewards. In this difference, replace each reward by $\beta$ times the policy's own log
# ratio. The loss then depends only on the policy, the start and the pairs, and the policy
# that minimizes it has learned the rewards implicitly:

# %% role="concept"
by_ratio = pair_loss(BETA * (best - start))
at_start = pair_loss(BETA * (start - start))
print(f"policy at the start {at_start:.3f}, the best one {by_ratio:.3f}")

# %% role="concept"
claim("gap between the loss from log ratios and the loss from rewards",
      (by_ratio - true_reward).abs(), below=1e-4)

# %% [markdown] role="concept"
# ## An answer is more than one token
#
# In the table, an answer is a single choice. A language model builds an answer from
# *tokens*. The answer's log-probability is the *sum* of its tokens' log-probabilities,
# each given all the tokens before it. Only the answer counts, not the prompt before it or
# the padding after it. (In the difference between two answers' log-probabilities, a
# shared prompt cancels; in a mean over tokens, it need not.) The logits at one position
# predict the next token, so you have to shift the logits by one position.

# %% role="concept"
def token_logp(logits, ids):
    """Log-probabilities (B, T - 1) of ids (B, T), without the first."""
    return logits[:, :-1].log_softmax(-1).gather(
        -1, ids[:, 1:, None])[..., 0]

def answer_logp(logits, ids, answer):
    """Log-probability (B,) of the tokens where answer (B, T) is true."""
    each = token_logp(logits, ids)
    return each.where(answer[:, 1:], 0.0).sum(-1)

# %% role="concept"
prompts, ends = torch.tensor([3, 5, 4]), torch.tensor([9, 7, 10])
positions = torch.arange(10)
is_answer = (positions >= prompts[:, None]) & (positions < ends[:, None])
is_read = positions < ends[:, None]
draw_grids({"read by the model": is_read, "summed": is_answer},
           rows="answers of a batch", columns="positions",
           title="The model reads every token, but only the answer is "
                 "summed",
           alt="Two grids with three rows of ten positions. On the left, "
               "every position is filled except the padding at the end of "
               "a row. On the right, only the positions of the answer, "
               "after the prompt, are filled.")

# %% role="concept"
logits = torch.randn(3, 10, 20)
ids = torch.randint(20, (3, 10))
of_answer, of_all = (answer_logp(logits, ids, mask).sum()
                     for mask in (is_answer, is_read))

# %% role="concept"
claim("log-probability of prompts and answers, divided by log-probability "
      "of the answers alone", (of_all / of_answer).item(), above=1.2)

# %% [markdown] trap="14.1" role="situation" core=true fault="the reference is the policy itself" symptom="the DPO loss stays at 0.693, and the model drifts away all the same"
# ## A loss that stands still
#
# *Direct preference optimization* (DPO) needs no reward. It computes the log ratio of
# policy to reference for both answers of a pair. Training raises the *margin*, the
# preferred answer's log ratio minus the other answer's. The loss is minus the log-sigmoid
# of $\beta$ times the margin. The reference is the model before training, without
# gradients.
#
# You train for 400 steps. The best policy for this task has a KL of about half a nat to
# the start. Your loss is 0.693 at the first step and at the last. A note in the log says:
# "0.693 is log 2, so the margin is zero. So the policy has not moved at all."

# %% trap="14.1" role="break"
def dpo(logp, reference):
    """Loss on 64 new pairs per prompt; reference: logits (K, A)."""
    chosen, other = ask(64)
    with torch.no_grad():
        old = reference.log_softmax(-1)
    ratio = logp - old
    margin = ratio.gather(1, chosen) - ratio.gather(1, other)
    return -F.logsigmoid(BETA * margin).mean()

policy = start.clone().requires_grad_()
reference = policy
learner, losses, moved = learn(lambda logp: dpo(logp, reference),
                               logits=policy)

# %% trap="14.1" role="guess" quoted="wrong"
guess("14.1",
      "What is the trained policy's KL to the start after the 400 steps?",
      unit="nats")

# %% trap="14.1" role="look"
best_moved = kl(best, start).item()
print(f"loss: {losses[0]:.4f} at first, {losses[-1]:.4f} at last")
print(f"KL to the start: {moved[-1]:.2f} nats, best {best_moved:.2f}")

# %% trap="14.1" role="look"
measured("14.1", moved[-1], right=(1.2, 3.0))

# %% trap="14.1" role="look"
claim("lowest loss of the 400 steps", min(losses), expected=0.693,
      within=0.001)

# %% [markdown] trap="14.1" role="look"
# No digit of the loss has changed, yet the policy has moved far past the best policy:

# %% trap="14.1" role="look"
claim("trained policy's KL to the start, divided by the best policy's KL "
      "to the start", moved[-1] / best_moved, above=2.5)

# %% [markdown] trap="14.1" role="why"
# `reference = policy` copies a name, not a table. So policy and reference always agree,
# the margin is 0, and the loss is log 2. But the *gradient* of the loss is not 0, because
# only the reference's log-probabilities are detached. A pair pulls with a strength of
# $\beta\,\sigma(-\beta\,\text{margin})$, which is half of $\beta$ at a margin of 0.
#
# Against a fixed reference, the margin grows, and the pair's pull fades. A pair with the
# opposite verdict pulls back harder and harder, until the two pulls balance. (Without
# such pairs, nothing stops the policy.) With a moving reference, the margin is 0 again
# after every step, so no pull ever fades.

# %% trap="14.1" role="why"
margins = torch.linspace(-6, 6, 61)
plot_lines(margins.tolist(),
           {"fixed reference":
                (BETA * (-BETA * margins).sigmoid()).tolist(),
            "moving reference": [BETA / 2] * 61},
           title="A margin that never grows never lets go",
           xlabel="margin of a pair, nats",
           ylabel="pull of the pair",
           alt="The pull of a pair, plotted against its margin. With a "
               "fixed reference, the curve falls from one to zero. With a "
               "moving reference, the pull is a flat line at one half.")

# %% [markdown] trap="14.1" role="repair"
# Copy the policy before the first step. For a module, use `copy.deepcopy(policy)` and put
# the copy in evaluation mode:

# %% trap="14.1" role="repair"
policy = start.clone().requires_grad_()
reference = policy.detach().clone()
held, held_losses, held_moved = learn(
    lambda logp: dpo(logp, reference), logits=policy)
print(f"loss: {held_losses[0]:.3f} at first, {held_losses[-1]:.3f} at last")
print(f"KL to the start: {held_moved[-1]:.2f}, best {best_moved:.2f}; "
      f"KL to the best: {kl(held, best):.3f}")

# %% trap="14.1" role="repair"
claim("trained policy's KL to the best policy, with a copy as the "
      "reference", kl(held, best).item(), below=0.08)

# %% [markdown] trap="14.1" role="repair"
# From the pairs alone, training has nearly found the best policy.

# %% trap="14.1" role="repair"
plot_lines(list(range(1, 401)),
           {"moving reference": moved, "copy": held_moved,
            "best": [best_moved] * 400},
           title="The copy stops where it should",
           xlabel="step", ylabel="KL to the start, nats",
           alt="KL to the start over 400 steps. With a copy, it rises to "
               "the level of the best policy and stays near it. With a "
               "moving reference, it rises to several times that level.")

# %% [markdown] trap="14.1" role="more" topics="the mean over tokens · reversed pairs · other ways to 0.693 · what a falling loss hides"
# Taking *the mean over tokens*, not the sum, divides each log ratio by the answer's
# length. For answers of equal length n, the mean has the same effect as replacing beta by
# beta / n, so a nat costs only 1/n as much. The closed form shows this for n = 12:

# %% trap="14.1" role="more"
loose = best_policy(start, reward, BETA / 12)
claim("best policy's KL to the start with the mean over 12 tokens, "
      "divided by its KL with the sum",
      (kl(loose, start) / kl(best, start)).item(), above=2)

# %% [markdown] trap="14.1" role="more"
# (SimPO and length-normalized DPO use the mean on purpose and choose beta to match.)
# Training on *reversed pairs* runs just as smoothly as training on correct pairs. The
# loss falls, and the reward falls with it:

# %% trap="14.1" role="more"
def swapped(logp):
    """DPO with the preferred and the other answer exchanged."""
    chosen, other = ask(64)
    ratio = logp - start
    margin = ratio.gather(1, other) - ratio.gather(1, chosen)
    return -F.logsigmoid(BETA * margin).mean()

turned, turned_losses, _ = learn(swapped, steps=200)

# %% trap="14.1" role="more"
claim("last training loss with the pairs reversed", turned_losses[-1],
      below=0.67)
claim("fall in the mean reward with the pairs reversed",
      (earned(start) - earned(turned)).item(), above=0.2)

# %% [markdown] trap="14.1" role="more"
# The loss can also stay at log 2 for other reasons: the optimizer does not hold the
# model's weights, the answer mask is empty (then both logged log-probabilities are 0.0),
# or chosen and rejected are the same text. At the *first* step, a loss of 0.693 is right
# if dropout is off.
#
# A falling loss does not mean that the chosen answers become likelier. The margin is a
# difference between two log ratios, so it also grows if both log-probabilities fall and
# the rejected answer's falls faster.

# %% trap="14.1" role="exercise" points=4 difficulty=3 minutes=15
def dpo_loss(policy: nn.Module, beta: float):
    """Return the DPO loss for a policy whose training begins now.

    policy(ids): logits (B, T, V) for ids (B, T) int64; the logits at a
    position predict the next token. Returns a function loss(chosen,
    rejected), which is called at each step. chosen and rejected are pairs
    (ids, answer); answer is (B, T) bool, true at the answer's tokens and
    never at the first position. In each row, both answer the same prompt. T
    can differ between chosen and rejected, and B between calls.

    The loss is the mean over rows of -log(sigmoid(beta * margin)). The loss
    is a float32 scalar. margin: the rise in the chosen answer's
    log-probability since dpo_loss was called, minus the rejected answer's
    rise. The policy runs in its current mode, and the reference in
    evaluation mode. The loss is finite for margins of hundreds of nats.
    Gradients flow to the current policy. Neither call sets a seed or
    changes the policy's weights, gradients, requires_grad flags or modes.

    Example: the first step of a policy in evaluation mode gives 0.6931.
    """
    # BEGIN SOLUTION
    reference = copy.deepcopy(policy).eval()

    def logp(model, ids, answer):
        each = model(ids)[:, :-1].log_softmax(-1)
        each = each.gather(-1, ids[:, 1:, None])[..., 0]
        return each.where(answer[:, 1:], 0.0).sum(-1)

    def loss(chosen, rejected):
        with torch.no_grad():
            old = logp(reference, *chosen) - logp(reference, *rejected)
        new = logp(policy, *chosen) - logp(policy, *rejected)
        return -F.logsigmoid(beta * (new - old)).mean()

    return loss
    # END SOLUTION

# %% [markdown] trap="14.1" role="hint"
# 1. There are two models: the policy, which changes from call to call, and a copy of the
#    policy, made when `dpo_loss` was called. `copy.deepcopy(policy)` makes the copy.
# 2. The log-probability of an answer is the sum over its tokens. In the lesson,
#    `answer_logp` computes it from the logits, the ids and the mask.
# 3. Make the copy outside the inner function. Inside the inner function, run the copy
#    under `torch.no_grad()`, and use `F.logsigmoid`, which stays finite.

# %% [markdown] trap="14.1" role="keep"
# **Keep:** A loss's reference must not be the policy itself, so store a copy. A
# flat loss does not mean that the weights stay where they are. **In your own code:**
# Before training, store the reference's log-probabilities for one batch. Ten steps later,
# the reference must return the same values. Alongside the loss, record the KL
# divergence from the start. **Source:** [Rafailov et al. 2023, "Direct Preference
# Optimization"](https://arxiv.org/abs/2305.18290). **Seen in the wild:** In
# [YiyangZhou/POVID 11](https://github.com/YiyangZhou/POVID/issues/11), the reference was
# the policy itself. Since
# [huggingface/trl 2057](https://github.com/huggingface/trl/pull/2057), TRL's DPO and KTO
# trainers refuse to use a single object as both policy and reference.

# %% [markdown] role="concept"
# ## A judge who errs
#
# So far, you have assumed that the judge is right. In the explorer below, one of twelve
# answers is a trick that the start policy hardly ever uses. The trick is bad, but the
# judge may love it. Guess first: how far can you lower the price $\beta$ of a nat
# before the *true* reward falls?

# %% role="explore" explorer="kl_price"
from dlsys_helpers.explorers.kl_price import kl_price

kl_price

# %% [markdown] role="explore"
# If the judge is right, a lower price of a nat earns more reward. If the judge errs,
# the reward that the judge assigns still rises with each cut in the price. The true
# reward is 0.42 at a beta of 1, 0.51 at 0.7, 0.49 at 0.5 and -0.24 at 0.3. At a price
# of 0.3, the judge's reward for the trick outweighs the price of the trick's nats. The
# KL penalty can protect a policy from its judge's errors, but a plot of the judge's
# reward does not show when that fails.

# %% [markdown] trap="14.2" role="situation" core=true fault="rewards are grouped across prompts" symptom="right answers are pushed down, because their rewards are compared with those of other prompts"
# ## Eight answers to each prompt
#
# *Group relative policy optimization* (GRPO) samples a *group* of answers to each prompt.
# An answer's *advantage* is its reward minus the group's mean, divided by the group's
# standard deviation. The loss pushes each answer's log-probability in proportion to its
# advantage.
#
# Here, 64 prompts have 8 possible answers each. Some prompts are easier than others,
# because each prompt adds a bonus of its own, between 0 and 8 points, to all of its
# answers. The right answer earns one point on top of that bonus. You sample the answers
# in eight rounds, one answer per prompt in each round. At the start, every right answer
# has a probability of 12.5 %. You train for 60 steps.

# %% trap="14.2" role="break"
N, G = 64, 8                              # prompts, answers to each
right = torch.randint(8, (N,))            # the right answer of eight
points = 8 * torch.rand(N)                # for any answer to a prompt

def rounds(logp):
    """G rounds of one answer to each prompt: both (G * N,) int64."""
    drawn = torch.multinomial(logp.exp(), G, replacement=True)  # (N, G)
    return torch.arange(N).repeat(G), drawn.T.flatten()

def by_view(rewards):
    """Advantages (G * N,): each reward compared with its group."""
    groups = rewards.view(-1, G)
    gap = groups - groups.mean(1, keepdim=True)
    return (gap / (groups.std(1, keepdim=True) + 1e-4)).flatten()

# %% trap="14.2" role="break"
def grpo(advantage, steps=60, lr=0.5):
    """Mean probability of the right answer, at the start and per step."""
    logits, found = torch.zeros(N, 8, requires_grad=True), [1 / 8]
    for _ in range(steps):
        logp = logits.log_softmax(-1)
        asked, answers = rounds(logp.detach())
        rewards = points[asked] + (answers == right[asked])
        loss = -(advantage(rewards) * logp[asked, answers]).sum() / G
        slope, = torch.autograd.grad(loss, logits)
        with torch.no_grad():
            logits -= lr * slope
        chance = logits.softmax(-1)[torch.arange(N), right].mean()
        found.append(chance.item())
    return found

viewed = grpo(by_view)

# %% trap="14.2" role="guess"
guess("14.2",
      "What is the mean probability of the right answers after 60 steps?",
      choices=["98 %",
               "50 %",
               "12.5 %",
               "below 12.5 %"])

# %% trap="14.2" role="look"
print(f"probability of the right answer: {100 * viewed[0]:.1f} % at first, "
      f"{100 * viewed[-1]:.0f} % after 60 steps")

# %% trap="14.2" role="look"
measured("14.2", 1)

# %% trap="14.2" role="look"
claim("probability of the right answer, with grouping by view", viewed[-1],
      above=0.35, below=0.75)

# %% [markdown] trap="14.2" role="look"
# In the first step, some right answers are even pushed *down*:

# %% trap="14.2" role="look"
asked, answers = rounds(torch.full((N, 8), -math.log(8)))
is_right = answers == right[asked]
rewards = points[asked] + is_right
down = (by_view(rewards)[is_right] < 0).float().mean().item()

# %% trap="14.2" role="look"
claim("fraction of right answers that are pushed down, with grouping by "
      "view", down, above=0.1)

# %% [markdown] trap="14.2" role="why"
# The rewards are listed round by round. `view(-1, 8)` cuts the list into pieces of eight
# neighbours, and each piece holds one answer to each of eight *different* prompts. In
# most pieces, the answer to the easiest prompt has the largest advantage, right or wrong.

# %% trap="14.2" role="why"
cut = torch.arange(4).repeat_interleave(4).view(4, 4) / 3.0
draw_grids({"view(-1, 4)": cut, "one prompt, one group": cut.T},
           rows="rounds", column_names=["A", "B", "C", "D"],
           captions={"view(-1, 4)": "prompts A to D",
                     "one prompt, one group": "prompts A to D"},
           title="A row is a round, a column is a group",
           alt="Two grids of four rounds by four prompts, shaded by group. "
               "On the left, each row is one group; on the right, each "
               "column is one.")

# %% [markdown] trap="14.2" role="why"
# On average, grouping by view does not push in the wrong direction. Other prompts'
# rewards have nothing to do with *this* answer, so they add noise, not a direction. But
# such a group's standard deviation is many times too large, so the average push is too
# small. The mean reward rises slowly, and a plot of it does not look broken.

# %% [markdown] trap="14.2" role="repair"
# View the list in the shape in which it was written, rounds by prompts, and take the mean
# over rounds:

# %% trap="14.2" role="repair"
def by_prompt(rewards):
    """Advantages (G * N,); the G answers to one prompt are a group."""
    groups = rewards.view(G, N)
    return ((groups - groups.mean(0)) / (groups.std(0) + 1e-4)).flatten()

grouped = grpo(by_prompt)
down_now = (by_prompt(rewards)[is_right] < 0).sum().item()
print(f"probability of the right answer: {100 * grouped[-1]:.0f} %, "
      f"right answers pushed down: {down_now}")

# %% trap="14.2" role="repair"
claim("probability of the right answer, with one group per prompt",
      grouped[-1], above=0.95)

# %% [markdown] trap="14.2" role="repair"
# In a group for one prompt, a right answer's reward is never below the mean:

# %% trap="14.2" role="repair"
claim("number of right answers that are pushed down, with one group per "
      "prompt", down_now, expected=0)

# %% [markdown] trap="14.2" role="repair"
# A right answer's push is divided by the standard deviation of its own group:

# %% trap="14.2" role="repair"
spread = (rewards.view(-1, G).std(1).mean()
          / rewards.view(G, N).std(0).mean()).item()

# %% trap="14.2" role="repair"
claim("standard deviation in groups by view, divided by standard "
      "deviation in groups by prompt", spread, above=4)

# %% trap="14.2" role="repair"
batch = grpo(lambda r: (r - r.mean()) / (r.std() + 1e-4))
plot_lines(list(range(61)), {"one group per prompt": grouped,
                             "the whole batch": batch,
                             "groups by view": viewed},
           title="Other prompts drown the signal",
           xlabel="step", ylabel="probability of the right answer",
           alt="Probability of the right answer over 60 steps. With one "
               "group per prompt, the probability ends near one. With the "
               "whole batch as a group, it ends lower, and with groups by "
               "view lower still.")

# %% [markdown] trap="14.2" role="more" topics="the whole batch as a group · groups without a difference · unequal groups · without the division"
# *The whole batch as a group* compares each reward with a steadier mean, but still with
# the rewards of other prompts. If all prompts earn about the same rewards, using the
# whole batch as one group does little harm. Some methods even divide by the batch's
# standard deviation on purpose, after subtracting the mean of the group. Here the
# prompts differ:

# %% trap="14.2" role="more"
claim("probability of the right answer, with the whole batch as one group",
      batch[-1], below=0.9)

# %% [markdown] trap="14.2" role="more"
# *A group without a difference*, with all answers right or all wrong, teaches nothing,
# because all its advantages are 0. (In float32, the mean of equal rewards such as 0.1 may
# be off by a rounding error, which the division then blows up.) Without the small number
# added to the standard deviation, the advantages in a group of all ones or all zeros are
# nan:

# %% trap="14.2" role="more"
equal = torch.ones(4)
plain = (equal - equal.mean()) / equal.std()
claim("number of nan advantages, out of four, with equal rewards and no "
      "small number added", plain.isnan().sum().item(), expected=4)

# %% [markdown] trap="14.2" role="more"
# *Unequal groups* arise when answers are filtered, time out, or are cut off at the end
# of a batch. In that case, no `view` is right, however the list is sorted. Identify
# each group by its prompt's id.
#
# *The division* by the standard deviation is itself disputed. It gives more weight to
# prompts whose answers are nearly all right or nearly all wrong. Dr. GRPO leaves the
# division out ([Liu and others](https://arxiv.org/abs/2503.20783)).

# %% trap="14.2" role="exercise" points=3 difficulty=2 minutes=12
def group_advantage(rewards: torch.Tensor,
                    prompt_ids: torch.Tensor) -> torch.Tensor:
    """Compare each answer with the answers to the same prompt.

    rewards: (N,) float32. prompt_ids: (N,) int64, any values. A group is
    all answers with the same id, at any positions. Groups can differ in
    size. The advantage of an answer is its reward minus the mean of its
    group, divided by the standard deviation of its group (with n - 1) plus
    1e-4. The advantage is 0 for an answer that is alone in its group. Up to
    rounding, the advantage is also 0 for all answers in a group with equal
    rewards.

    Returns (N,) float32, in the order of rewards. Inputs are not changed.

    Example: rewards [1., 5., 3., 6.], prompt_ids [7, 2, 7, 2] give
    [-0.7071, -0.7070, 0.7071, 0.7070].
    """
    # BEGIN SOLUTION
    found = torch.zeros_like(rewards)
    for prompt in prompt_ids.unique():
        mine = prompt_ids == prompt
        group = rewards[mine]
        if len(group) > 1:
            found[mine] = (group - group.mean()) / (group.std() + 1e-4)
    return found
    # END SOLUTION

# %% [markdown] trap="14.2" role="hint"
# 1. Do not rely on the order of the answers. `prompt_ids == one` finds a group wherever
#    its answers are.
# 2. For each id in `prompt_ids.unique()`, take the rewards with this id, compute their
#    advantages, and write the advantages to the same positions.
# 3. The standard deviation of a single number is nan. For a group of one answer, leave
#    the advantage at 0.

# %% [markdown] trap="14.2" role="keep"
# **Keep:** Compare rewards only among answers to the same prompt. To make sure of this,
# store the prompt's id with every answer. **In your own code:** Replace each reward by
# its prompt's number. Then the standard deviation within every group must be 0.
# **Source:** [Shao et al. 2024, "DeepSeekMath"](https://arxiv.org/abs/2402.03300), which
# introduces GRPO. **Seen in the wild:** In [StarsfieldAI/R1-V
# 67](https://github.com/StarsfieldAI/R1-V/issues/67), the code had exactly this list and
# this view. In [XU-YIJIE/grpo-flat 2](https://github.com/XU-YIJIE/grpo-flat/issues/2),
# the whole batch was one group.

# %% [markdown] trap="14.3" role="situation" core=true fault="the gradient of the KL penalty is zero on average" symptom="the KL penalty changes nothing, whatever its weight"
# ## A price on every nat
#
# Now the policy samples its own answers. At each step, you raise the probability of
# answers that earned more than their prompt's mean (*REINFORCE*). To keep the policy near
# the start, you charge a price for its KL to the start. The KL is the mean of the
# *log-ratio*, log policy minus log start, over answers that the policy samples. So you
# add `BETA` times the mean log-ratio of the current sample to the loss. "The mean
# log-ratio estimates the KL without bias," says an older project's docstring, "so it
# keeps the policy near the start."

# %% trap="14.3" role="break"
def drawn(logp, n=256):
    """Draw n answers per prompt. Return three (K, n): log-probability now,
    log-probability at the start, and reward."""
    answers = draw(logp.detach(), n)
    return (table.gather(1, answers) for table in (logp, start, reward))

def reinforce(penalty):
    """A loss for `learn`: reward minus the penalty(now, then)."""
    def loss_of(logp):
        now, then, got = drawn(logp)
        better = got - got.mean(1, keepdim=True)
        return (penalty(now, then) - better * now).mean()
    return loss_of

# %% trap="14.3" role="break"
def log_ratio(now, then):
    """The log-ratio; its mean over sampled answers is the KL."""
    return BETA * (now - then)

free, _, free_way = learn(reinforce(lambda now, then: 0 * now))
held, _, held_way = learn(reinforce(log_ratio))

# %% trap="14.3" role="guess" quoted="wrong"
guess("14.3",
      "After 50 steps, how large is the KL of a run with the penalty, as a "
      "percentage of the KL of a run without it?",
      unit="%")

# %% trap="14.3" role="look"
share = 100 * held_way[49] / free_way[49]
print(f"KL to the start: {free_way[49]:.3f} nats without the penalty, "
      f"{held_way[49]:.3f} with it; best would be {kl(best, start):.3f}")

# %% trap="14.3" role="look"
measured("14.3", round(share), right=(85, 115))

# %% [markdown] trap="14.3" role="look"
# Is the sign of the penalty wrong? If it is, the reversed sign should hold the policy
# near the start:

# %% trap="14.3" role="look"
turned, _, turned_way = learn(reinforce(
    lambda now, then: -log_ratio(now, then)))
plot_lines(range(400), {
    "no penalty": free_way, "penalty": held_way, "sign reversed":
    turned_way, "the best policy": [kl(best, start).item()] * 400},
    title="The penalty changes nothing, with either sign",
    xlabel="step", ylabel="KL to the start, nats",
    alt="Three KL curves rise together and end at one level: no penalty, "
        "the penalty, and the penalty with its sign reversed. The third "
        "curve is a little lower on the way. A flat line far below is the "
        "KL of the best policy.")

# %% trap="14.3" role="look"
claim("KL after 50 steps with the penalty, divided by the KL without the "
      "penalty", held_way[49] / free_way[49], expected=1, within=0.15)

# %% [markdown] trap="14.3" role="why"
# The value of the mean log-ratio is right, but its gradient is not. In `now - then`, the
# start is a constant and has no gradient. The gradient of `now`, averaged over samples
# from the policy itself, is zero. The probabilities sum to 1, so making one answer
# likelier makes the others less likely.
#
# The true KL changes because different answers get sampled. `multinomial` has no
# gradient, so autograd does not see this change. The figure averages over *all* answers,
# for a policy that has moved towards the judge:

# %% trap="14.3" role="why" tags=["plumbing"]
def pull(penalty, policy):
    """Mean gradient (K, A) of a penalty at the logits, over all samples."""
    logits = policy.clone().requires_grad_()
    mean = (policy.exp() * penalty(logits.log_softmax(-1), start)).sum()
    return torch.autograd.grad(mean, logits)[0]

def true_pull(distance, policy):
    """Gradient (K, A) of distance(policy) at the logits, per prompt."""
    logits = policy.clone().requires_grad_()
    return torch.autograd.grad(K * BETA * distance(
        logits.log_softmax(-1)), logits)[0]

halfway = best_policy(start, reward, 0.5)
wanted = true_pull(lambda p: kl(p, start), halfway)
order = halfway[0].argsort(descending=True)

# %% trap="14.3" role="why"
plot_lines(range(1, A + 1), {
    "KL": wanted[0, order],
    "mean log-ratio": pull(log_ratio, halfway)[0, order]},
    title="The KL has a gradient, the mean log-ratio has none",
    xlabel="answers, the likeliest first",
    ylabel="mean gradient at the logit",
    alt="Two lines over sixteen answers. The gradient of the KL is large "
        "at the likeliest answers, above zero for some and below zero for "
        "others. The gradient of the mean log-ratio is zero at every "
        "answer.")

# %% trap="14.3" role="why"
claim("largest absolute entry of the log-ratio's mean gradient",
      pull(log_ratio, halfway).abs().max(), below=1e-5)

# %% [markdown] trap="14.3" role="repair"
# The gradient of half the *squared* log-ratio is the log-ratio times the gradient of
# `now`. Each answer is pushed down in proportion to its log-ratio. Averaged over samples,
# half the square has exactly the gradient of the KL:

# %% trap="14.3" role="repair" tags=["varies-by-cpu"]
def half_square(now, then):
    """Its mean gradient is the KL's gradient."""
    return BETA * (now - then) ** 2 / 2

mended, _, mended_way = learn(reinforce(half_square))
print(f"KL to the start: {mended_way[-1]:.3f}, to the best policy: "
      f"{kl(mended, best):.4f}; largest gap between the two gradients: "
      f"{(pull(half_square, halfway) - wanted).abs().max():.1e}")

# %% trap="14.3" role="repair"
claim("trained policy's KL to the best policy, with half the squared "
      "log-ratio in the loss", kl(mended, best), below=0.01)

# %% [markdown] trap="14.3" role="repair"
# If an answer has several tokens, `now` and `then` are sums over its tokens, so sum first
# and square afterwards.

# %% [markdown] trap="14.3" role="more" topics="in the reward · k3, the better estimate · tokens squared one by one"
# You get the same mean gradient if you subtract the log-ratio from the *reward*, as a
# number without a gradient. PPO for language models traditionally does it this way.
#
# GRPO's paper adds an estimate to the loss, *k3*: exp(-d) - 1 + d for a log-ratio d. As
# an estimate of the KL's value, k3 is also unbiased. The estimate is never negative, and
# near the start, it has less noise than the log-ratio. As a loss, k3 has the gradient of
# the *other* KL, from the start to the policy. So k3 does pull on the policy (the thread
# cited below calls k3 fine), but training ends elsewhere:

# %% trap="14.3" role="more" tags=["plumbing"]
def priced(logp):
    """The log-ratio is subtracted from the reward."""
    now, then, got = drawn(logp)
    got = got - BETA * (now - then).detach()
    return -((got - got.mean(1, keepdim=True)) * now).mean()

def k3(now, then):
    """GRPO's estimate of the KL."""
    return BETA * (torch.exp(then - now) - 1 + now - then)

paid = learn(priced)[0]
third = learn(reinforce(k3))[0]
elsewhere = true_pull(lambda p: kl(start, p), halfway)

# %% trap="14.3" role="more"
claim("trained policy's KL to the best policy, with the log-ratio "
      "subtracted from the reward", kl(paid, best).clamp(min=0), below=0.01)
claim("largest gap between the mean gradient of k3 and the gradient of "
      "KL(start, policy)", (pull(k3, halfway) - elsewhere).abs().max(),
      below=1e-4)
claim("trained policy's KL to the best policy, with k3 in the loss",
      kl(third, best), above=0.02)
claim("largest gap between the mean gradient of half the square and the "
      "gradient of the KL",
      (pull(half_square, halfway) - wanted).abs().max(), below=1e-5)

# %% [markdown] trap="14.3" role="more"
# If you square the log-ratios token by token, you lose part of the gradient. A token
# decides what can follow, so it also influences the later log-ratios (see the source
# below). If the samples come from an older policy, multiply each term by the detached
# ratio from the next trap.

# %% trap="14.3" role="exercise" points=3 difficulty=3 minutes=12
def kl_term(logp: torch.Tensor, logp_ref: torch.Tensor) -> torch.Tensor:
    """Compute a scalar loss term that pulls the policy towards the
    reference. Averaged over all answers that the policy can sample, the
    term's gradient is the gradient of KL(policy, reference) in nats. The KL
    compares whole answers, not single tokens.

    logp, logp_ref: (N, T), the log-probability of each token of N answers,
    given the tokens before it, under the policy that sampled the answers
    and under the reference. logp and logp_ref are 0 after the end of a
    shorter answer. Both are float32 or both are float64, and the term has
    the same dtype. logp and logp_ref are not changed.

    Example: two answers of one token, each with probability 0.5; the
    reference gives them 0.25 and 0.75. The mean gradient of their logits is
    [0.2747, -0.2747].
    """
    # BEGIN SOLUTION
    gap = (logp - logp_ref).sum(-1)
    return (gap ** 2 / 2).mean()
    # END SOLUTION

# %% [markdown] trap="14.3" role="hint"
# 1. An answer is sampled as a whole, so each answer has a single log-ratio: the sum over
#    its tokens.
# 2. The push on each answer has to be proportional to the answer's own log-ratio. Which
#    function of the log-ratio has the log-ratio as its derivative?
# 3. Take the mean over answers, so that a larger batch does not pull harder.

# %% [markdown] trap="14.3" role="keep"
# **Keep:** A KL estimate with the right value need not have the right gradient, because
# what gets sampled also depends on the weights. To penalize a KL, use half the squared
# log-ratio. **In your own code:** Reverse the sign of the penalty. If the curve of the KL
# stays the same, the penalty does nothing. **Source:** [Tang and Munos
# 2025](https://arxiv.org/abs/2506.09477); for the values of such estimates, [Schulman
# 2020, "Approximating KL Divergence"](http://joschu.net/blog/kl-approx.html). **Seen in
# the wild:** In [allenai/open-instruct
# 535](https://github.com/allenai/open-instruct/pull/535), the estimate in the loss is
# said to "completely ignore" the reference.

# %% [markdown] trap="14.4" role="situation" fault="the old log-probabilities are those of now" symptom="the PPO ratio is always 1, and nothing is ever clipped"
# ## Sixteen steps on one draw
#
# Sampling is slow, so PPO samples once and takes several *inner steps* on the same
# answers. Meanwhile, the policy in training moves away from the policy that sampled these
# answers. The *ratio* measures how far the policy has moved: the answer's probability
# now, divided by its probability when it was sampled. PPO clips the ratio at 1 - eps and
# 1 + eps, with an eps of 0.2. Your old notes say: "An answer whose ratio has reached the
# clip is not pushed any further."
#
# The code below runs one round of sixteen inner steps. The judge is in a hurry, so each
# reward comes with noise. Of the eight answers to a prompt, the *winner* earned the most
# reward, by merit or by luck. Before the first step, the winner's probability is about a
# tenth on average.

# %% trap="14.4" role="break"
def sample(policy, n=8):
    """n answers per prompt, and each answer's reward minus their mean."""
    answers = draw(policy, n)
    felt = reward.gather(1, answers) + torch.randn(K, n)
    felt = felt - felt.mean(1, keepdim=True)
    return answers, felt / (felt.std(1, keepdim=True) + 1e-4)

def clipped(now, old, adv, eps=0.2):
    """PPO's objective, for answers (K, n)."""
    ratio = (now - old).exp()
    return torch.minimum(ratio * adv,
                         ratio.clamp(1 - eps, 1 + eps) * adv)

# %% trap="14.4" role="break"
def climb(logits, goal, rate):
    """Logits after one step up, and the policy (K, A) that they define."""
    (grad,) = torch.autograd.grad(K * goal.mean(), logits)
    logits = (logits + rate * grad).detach()
    return logits.requires_grad_(), logits.detach().log_softmax(-1)

def inner_steps(policy, answers, adv, steps=16, rate=2.0):
    """All policies from the first to the last."""
    logits, way = policy.clone().requires_grad_(), [policy]
    for _ in range(steps):
        now = logits.log_softmax(-1).gather(1, answers)
        old = now.detach()
        logits, policy = climb(logits, clipped(now, old, adv), rate)
        way.append(policy)
    return way

# %% trap="14.4" role="break"
answers, adv = sample(start)
way = inner_steps(start, answers, adv)
winner = answers.gather(1, adv.argmax(1, keepdim=True))

# %% trap="14.4" role="guess" quoted="right"
guess("14.4",
      "What is the mean probability of the winners after the sixteen "
      "inner steps?",
      choices=["more than 30 %",
               "about 20 %",
               "about 12 %",
               "about 10 %"])

# %% trap="14.4" role="look"
at_first, at_last = (p.gather(1, winner).exp().mean().item()
                     for p in (way[0], way[-1]))
print(f"probability of the winner: {at_first:.2f}, then {at_last:.2f}; "
      f"the round moved the policy by {kl(start, way[-1]):.2f} nats")

# %% trap="14.4" role="look"
measured("14.4", 0)

# %% trap="14.4" role="look"
claim("mean probability of the winners after the round", at_last, above=0.3)

# %% [markdown] trap="14.4" role="why"
# `old` is the log-probability under the *current* policy. So the ratio compares each
# policy with itself, is always 1, and never reaches the clip. What is left is a plain
# policy gradient, applied sixteen times to the same eight answers, as if they had been
# sampled again each time.

# %% trap="14.4" role="why"
now = torch.eye(6)                        # step t works on policy t
old = torch.zeros(6, 6)
old[:, 0] = 0.4                           # the one that sampled
draw_grids({"stored at sampling": torch.maximum(now, old),
            "recomputed": now},
           captions={"stored at sampling": "pale: used as old"},
           marks={"recomputed": now.bool()},
           legend="trained, and used as old at the same time",
           rows="inner steps", columns="policies, sampler first",
           title="Each policy is compared with itself",
           alt="Two grids of six inner steps by six policies. In both, the "
               "policy of each step is filled, on the diagonal. On the "
               "left, the first policy is pale in every step, because it "
               "is used as old. On the right, the diagonal itself is "
               "crossed: the policy in training is also used as old.")

# %% [markdown] trap="14.4" role="repair"
# Store the log-probabilities once, when the answers are sampled and before the first
# step:

# %% trap="14.4" role="repair"
def inner_steps_kept(policy, answers, adv, steps=16, rate=2.0):
    """All policies from the first to the last."""
    logits, way = policy.clone().requires_grad_(), [policy]
    old = policy.gather(1, answers)       # of the policy that sampled
    for _ in range(steps):
        now = logits.log_softmax(-1).gather(1, answers)
        logits, policy = climb(logits, clipped(now, old, adv), rate)
        way.append(policy)
    return way

kept_way = inner_steps_kept(start, answers, adv)

# %% trap="14.4" role="repair"
plot_lines(range(1, 17), {
    "recomputed": [kl(start, p) for p in way[1:]],
    "stored": [kl(start, p) for p in kept_way[1:]]},
    title="The first step is the same, the later steps are not",
    xlabel="inner steps", ylabel="KL to the policy that sampled, nats",
    logy=True,
    alt="Two curves over sixteen inner steps on a logarithmic axis. They "
        "start at the same point. With stored log-probabilities, the "
        "curve is soon flat. With recomputed log-probabilities, it keeps "
        "rising.")

# %% trap="14.4" role="repair"
claim("KL after a round with recomputed values, divided by KL after a "
      "round with stored values",
      kl(start, way[-1]) / kl(start, kept_way[-1]), above=15)

# %% [markdown] trap="14.4" role="repair"
# In the first step, the policy *is* the one that sampled the answers, so both runs
# agree, and a ratio of 1 is right. A trainer that takes a single inner step per sample,
# as trl's GRPO trainer does by default, rightly reports a ratio of 1 and no clipping:

# %% trap="14.4" role="repair"
claim("first inner step: largest gap between the policies with recomputed "
      "and stored values", (way[1] - kept_way[1]).abs().max(), below=1e-5)

# %% [markdown] trap="14.4" role="more" topics="rounds of one step · does it cost reward? · a forgotten temperature · one ratio per answer"
# Does the fault cost reward? With one inner step per round, the fault changes nothing. At
# a learning rate of 0.1, the policy trained with the fault even earns more, because every
# step keeps pushing where the clip would stop it. At the learning rate of this trap,
# eight noisy rewards decide everything: after ten rounds, the policy trained with the
# fault has almost settled on one answer per prompt, and it stays there. The policy
# trained with the stored log-probabilities still learns, and with most seeds, it ends
# with a higher reward:

# %% trap="14.4" role="more" tags=["plumbing"]
def trained(inner, times=10, **how):
    """The policy after some rounds; both ways use the same seed."""
    torch.manual_seed(SEED + 1)
    policy = start
    for _ in range(times):
        policy = inner(policy, *sample(policy), **how)[-1]
    return policy

def entropy(policy):
    """Entropy in nats, mean over prompts."""
    return -(policy.exp() * policy).sum(-1).mean()

(single, single_kept, small, small_kept, large, large_kept, late,
 late_kept) = (
    trained(inner, **how)
    for how in ({"steps": 1}, {"rate": 0.1}, {}, {"times": 100})
    for inner in (inner_steps, inner_steps_kept))
print(f"reward after 10 rounds: recomputed {earned(large):.2f}, "
      f"stored {earned(large_kept):.2f}; after 100: recomputed "
      f"{earned(late):.2f}, stored {earned(late_kept):.2f}")

# %% trap="14.4" role="more"
claim("ten rounds of one step: largest gap between the policies with "
      "recomputed and stored values",
      (single.exp() - single_kept.exp()).abs().max(), below=1e-4)
claim("ten rounds at a small rate: reward with recomputed values minus "
      "reward with stored values", earned(small) - earned(small_kept),
      above=0)
claim("entropy of the policy after ten rounds with recomputed values",
      entropy(large), below=0.45)
claim("entropy of the policy after ten rounds with stored values",
      entropy(large_kept), above=0.45)

# %% [markdown] trap="14.4" role="more"
# The old log-probability belongs to the distribution that the answer was sampled from,
# including the temperature (trap 13.8). If you sample at temperature 0.6 and score at 1,
# most ratios here are outside the clip range before the first step, but their mean looks
# right. Compute both log-probabilities at 0.6.

# %% trap="14.4" role="more"
hot = (start / 0.6).log_softmax(-1)
picked = draw(hot, 512)
ratio = (start - hot).gather(1, picked).exp()

# %% trap="14.4" role="more"
claim("mean ratio of answers sampled at a temperature of 0.6 and scored "
      "at 1", ratio.mean(), expected=1, within=0.1)
claim("fraction of ratios outside the clip range, for answers sampled at "
      "0.6 and scored at 1", ((ratio - 1).abs() > 0.2).float().mean(),
      above=0.5)

# %% [markdown] trap="14.4" role="more"
# In a language model, every token has its own ratio. The product of these ratios over an
# answer may leave the clip range because the answer is long. (GSPO uses one ratio per
# answer on purpose. This ratio, the geometric mean of the token ratios, stays near 1, so
# GSPO's clip range is far narrower.)

# %% trap="14.4" role="exercise" points=3 difficulty=2 minutes=12
def inner_loss(logp: torch.Tensor, logp_sampled: torch.Tensor,
               adv: torch.Tensor, eps: float) -> torch.Tensor:
    """Compute PPO's loss for one inner step, a scalar: minus the mean, over
    all tokens, of the smaller of ratio * advantage and clipped
    ratio * advantage.

    A token's ratio is its probability now, divided by its probability when
    it was sampled. The clipped ratio stays between 1 - eps and 1 + eps.
    logp, logp_sampled: (N, T), each token's log-probability now and at
    sampling. adv: (N,), the advantage of each answer. In the first inner
    step after sampling, every ratio is 1, and the gradient is minus the
    gradient of the mean of adv * logp.

    Gradients flow only to logp, even if logp_sampled or adv has a graph.
    All inputs are float32 or all are float64, and the loss has the same
    dtype. Inputs are not changed.

    Example: logp [[-1., -0.5]], logp_sampled [[-1., -1.]], adv [2.], eps
    0.2 give -2.2, and the gradient of logp is [[-1., 0.]].
    """
    # BEGIN SOLUTION
    ratio = (logp - logp_sampled.detach()).exp()
    gain = adv.detach()[:, None]
    return -torch.minimum(ratio * gain,
                          ratio.clamp(1 - eps, 1 + eps) * gain).mean()
    # END SOLUTION

# %% [markdown] trap="14.4" role="hint"
# 1. The ratio is `exp(logp - logp_sampled)`. Here, `logp_sampled` is a constant that was
#    recorded at sampling time, so use it without its graph.
# 2. The clip alone is not enough. A bad answer that has become likelier has to be
#    pushed back, however far its ratio has moved. The minimum in the loss makes sure of
#    this.
# 3. `adv[:, None]` gives each token its answer's advantage.

# %% [markdown] trap="14.4" role="keep"
# **Keep:** In PPO, "old" is the policy that sampled the answers, not the latest policy.
# A ratio of exactly 1 is right in the first step after sampling, and a fault once the
# policy has moved. **In your own code:** For each inner step, print the largest
# distance of a ratio from 1. The distance should be near 0 in the first step and larger
# later. **Source:** [Schulman et al. 2017, "Proximal Policy Optimization
# Algorithms"](https://arxiv.org/abs/1707.06347). **Seen in the wild:** In
# [tensorforce/tensorforce 312](https://github.com/tensorforce/tensorforce/issues/312),
# the ratio was exactly 1 even in the later steps. [huggingface/trl
# 3757](https://github.com/huggingface/trl/issues/3757) reports a ratio of exactly 1 for
# a single inner step, where this is right.

# %% [markdown] trap="14.5" role="situation" fault="returns run on across the end of an episode" symptom="the agent ends its episodes early; return does not rise, or an action that ends the episode gets credit for the next episode"
# ## Ten turns with a caller
#
# Your model answers callers. A call has up to ten turns, and in each turn, the model
# either answers or hangs up. The first answer helps most, with a reward of 1; the second
# earns 1/2, the third 1/3, and so on. Hanging up earns nothing and ends the call, and the
# next call begins immediately. Every answer earns something, so a call earns most if the
# model never hangs up.
#
# You train the policy on the *return* of each turn: the turn's reward plus the rewards
# after it, with a further factor of 0.95 for each later turn. The ten probabilities of
# answering, one per turn, begin at 73 %, so an average call has 2.6 answers.

# %% trap="14.5" role="break"
TURNS, CALLS, STEPS = 10, 32, 60          # turns; lines; turns on a line
helps = 1 / (1 + torch.arange(TURNS))     # reward of an answer, by turn

def played(stay):
    """STEPS turns on each line, call after call, as (CALLS, STEPS)."""
    turn, log = torch.zeros(CALLS, dtype=torch.long), []
    for _ in range(STEPS):
        answered = torch.rand(CALLS) < stay[turn]
        ended = ~answered | (turn == TURNS - 1)
        log.append((turn, answered, helps[turn] * answered, ended))
        turn = torch.where(ended, 0, turn + 1)
    return [torch.stack(column, 1) for column in zip(*log)]

# %% trap="14.5" role="break"
def returns(rewards, ended, gamma=0.95):
    """The discounted return of every turn, from the last to the first."""
    out, later = torch.empty_like(rewards), torch.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        later = rewards[:, t] + gamma * later
        out[:, t] = later
    return out

# %% trap="14.5" role="break"
def by_turn(values, turn):
    """The mean of the values at each turn, (TURNS,)."""
    turn = turn.flatten()
    total = torch.zeros(TURNS).index_add(0, turn, values.flatten())
    return total / turn.bincount(minlength=TURNS).clamp(min=1)

# %% trap="14.5" role="break"
def taught(returns, rounds=60, rate=5.0):
    """The probability of answering at each turn, after training."""
    logits = torch.ones(TURNS, requires_grad=True)
    for _ in range(rounds):
        turn, answered, rewards, ended = played(logits.detach().sigmoid())
        gain = returns(rewards, ended)
        gain = gain - by_turn(gain, turn)[turn]
        logp = F.logsigmoid(torch.where(answered, 1, -1) * logits[turn])
        (grad,) = torch.autograd.grad((logp * gain).mean(), logits)
        logits = (logits + rate * grad).detach().requires_grad_()
    return logits.detach().sigmoid()

stay = taught(returns)

# %% trap="14.5" role="guess"
guess("14.5",
      "After training, how many answers does the model give in an average "
      "call?",
      choices=["about 8",
               "about 2.6, as before",
               "fewer than 2",
               "exactly 10"])

# %% trap="14.5" role="look"
def answers_of(stay):
    """Mean number of answers in a call, and the mean reward of a call."""
    reached = stay.cumprod(0)
    return reached.sum().item(), (reached * helps).sum().item()

length, of_a_call = answers_of(stay)
print(f"answers in a call: {length:.1f}; reward of a call: "
      f"{of_a_call:.2f} of {helps.sum():.2f}")

# %% trap="14.5" role="look"
measured("14.5", 2)

# %% trap="14.5" role="look"
claim("mean number of answers in a call after training", length, below=2)

# %% [markdown] trap="14.5" role="why"
# A line has many calls, one after the other, and `later` runs through all of them. So
# when the model hangs up, the return of that turn contains the rewards of the *next*
# call, whose first answers earn most. The policy learns that hanging up is a shortcut to
# the next first answer, and most calls end after one or two turns.

# %% trap="14.5" role="why"
turn, answered, rewards, ended = played(torch.full((TURNS,), 0.73))
crossing = returns(rewards, ended)
hung_up = [crossing[~answered & (turn == t)].mean() for t in range(4)]
plot_columns({f"turn {t + 1}": value for t, value in enumerate(hung_up)},
             xlabel="turn at which the model hangs up",
             ylabel="mean return (own reward: 0)",
             title="Hanging up earns nothing, but its return is above 4",
             alt="Four columns, the mean return of hanging up at turns 1 "
                 "to 4. All are between 4 and 8, although the reward is 0.")

# %% [markdown] trap="14.5" role="repair"
# The return of a turn must not contain what happens after the end of its call. `ended`
# marks the last turn of each call, where the sum starts again:

# %% trap="14.5" role="repair"
def returns_within(rewards, ended, gamma=0.95):
    """The discounted return of every turn within its own call."""
    out, later = torch.empty_like(rewards), torch.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        later = rewards[:, t] + gamma * later * ~ended[:, t]
        out[:, t] = later
    return out

stay_within = taught(returns_within)
length, of_a_call = answers_of(stay_within)
print(f"answers in a call: {length:.1f}; reward of a call: "
      f"{of_a_call:.2f} of {helps.sum():.2f}")

# %% trap="14.5" role="repair"
plot_lines(range(1, TURNS + 1), {
    "before training": torch.full((TURNS,), 0.73),
    "returns across calls": stay, "within a call": stay_within},
    title="Returns across calls teach hanging up at turns 2 to 4",
    xlabel="turn", ylabel="probability of answering",
    alt="Three curves over ten turns. Before training, the probability is "
        "0.73 everywhere. With returns within a call, it is above 0.75 "
        "everywhere. With returns across calls, it falls to about 0.2 at "
        "turns 2 to 4.")

# %% trap="14.5" role="repair"
claim("mean number of answers per call, after training with returns that "
      "stop at a call's end", length, above=6)

# %% [markdown] trap="14.5" role="more" topics="the end of the buffer · a time limit · GAE"
# The buffer's last column is a different case: the collection stops there, usually in
# mid-call, and more rewards would have followed. If nothing replaces the missing
# rewards, the returns of the last columns are too small. Here is the mean return of a
# first turn, in the first forty columns and in the last one:

# %% trap="14.5" role="more"
within = returns_within(rewards, ended)
early = within[:, :40][turn[:, :40] == 0]
last = within[:, -1][turn[:, -1] == 0]
print(f"mean return of a first turn: {early.mean():.2f}; in the last "
      f"column: {last.mean():.2f}")

# %% trap="14.5" role="more"
claim("mean return of first turns in the last column minus their mean in "
      "the first forty columns", last.mean() - early.mean(), below=0)
claim("largest return of hanging up, with returns that stop at a call's "
      "end", within[~answered].abs().max(), expected=0)
claim("mean number of answers in a call before training",
      answers_of(torch.ones(TURNS).sigmoid())[0], expected=2.6, within=0.02)

# %% [markdown] trap="14.5" role="more"
# If the call has not ended, the sum begins with an estimate of what follows the last
# column, the *value* of the next state. You also need such a value after a step at which
# a time limit cut an episode off, because the task went on and only the recording
# stopped. Gymnasium reports the two cases separately, as `terminated` and `truncated`.
# GAE needs the mask twice: once for the value of the next state, and once for the sum
# that runs backwards.

# %% trap="14.5" role="exercise" points=3 difficulty=2 minutes=12
def discounted_returns(rewards: torch.Tensor, ended: torch.Tensor,
                       after: torch.Tensor, gamma: float) -> torch.Tensor:
    """Compute the discounted return of every step, (N, T).

    A step's return is its reward plus gamma times the return of the next
    step. The next step counts only if it belongs to the same episode.
    rewards: (N, T), N rows of T steps. ended: (N, T) bool, True at the last
    step of an episode. The row then continues with the next episode.

    after: (N,), the value of all that follows the last column. It counts
    like the return of one more step, but only in rows whose last step did
    not end an episode. gamma: from 0 to 1.

    rewards and after are both float32 or both float64, and the result has
    the same dtype. The result has no graph, even if after has one. Inputs
    are not changed.

    Example: rewards [[1., 1., 1., 1.]], ended [[False, True, False,
    False]], after [8.], gamma 0.5 give [[1.5, 1., 3.5, 5.]].
    """
    # BEGIN SOLUTION
    out, later = torch.empty_like(rewards), after.detach()
    for t in reversed(range(rewards.shape[1])):
        later = rewards[:, t] + gamma * later * ~ended[:, t]
        out[:, t] = later
    return out
    # END SOLUTION

# %% [markdown] trap="14.5" role="hint"
# 1. Go through the columns from the last to the first. What do you carry from step t + 1
#    to step t, and when do you carry nothing?
# 2. `after` is what you carry into the last column. A mask made from `ended[:, t]`
#    decides whether step t adds the carried value.
# 3. The reward of an episode's last step still counts. Only what comes after that step
#    does not.

# %% [markdown] trap="14.5" role="keep"
# **Keep:** When a buffer holds several episodes, stop the sum of a return at the end of
# its episode. If only the recording stopped, add the value of the next state. **In your
# own code:** Print the return of a step that ended an episode. This return should equal
# the step's reward. **Source:** [Pardo et al. 2018, "Time Limits in Reinforcement
# Learning"](https://arxiv.org/abs/1712.00378). **Seen in the wild:** In [EdanToledo/Stoix
# 142](https://github.com/EdanToledo/Stoix/issues/142), GAE sums differences that cross
# the end of an episode.

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. DPO has run for a thousand steps, and its loss was 0.6931 at every step. The
# weights**
#
# - [ ] have not changed, because a constant loss has no gradient :: A constant loss can
#   have a gradient. If the reference moves along with the policy, each pair pulls with
#   half of beta.
# - [x] may be anywhere :: If the reference moves along with the policy, every step
#   pushes, and nothing holds the policy back.
# - [ ] are the best policy's weights :: The best policy's margins are not zero, and its
#   loss is below log 2.

# %% [markdown] role="quiz"
# **2. Rewards are listed round by round: the first answers to all prompts, then the
# second answers, and so on. There are as many prompts as rounds. `rewards.view(-1,
# rounds)` returns groups of**
#
# - [ ] answers to one prompt, because there are as many prompts as rounds :: The shape
#   fits, but each row of the result is one round.
# - [ ] different sizes :: All groups have the same size, so the shape does not show the
#   fault.
# - [x] one answer to each prompt :: Neighbours in the list belong to different prompts.

# %% [markdown] role="quiz"
# **3. The mean of log policy minus log reference over sampled answers is added to the
# loss, and the KL does not change. You should**
#
# - [ ] use a larger beta :: The mean gradient of this term is zero, and ten times zero is
#   still zero.
# - [x] use half the square of each answer's log-ratio :: Averaged over
#   samples, half the square has the gradient of the KL.
# - [ ] reverse the term's sign :: Zero has no sign.

# %% [markdown] role="quiz"
# **4. A trainer takes four inner steps on each sample. Its log shows a ratio of exactly 1
# in all four. That is**
#
# - [ ] right, because the policy moves slowly :: Then the ratios are close to 1 from the
#   second step on, but not all exactly 1.
# - [ ] right, because the clip holds it there :: The clip ends outward pushes at 0.8 and
#   1.2; it does not limit the ratio itself.
# - [x] a fault from the second step on :: The old log-probabilities are computed again in
#   every step, so nothing is ever clipped.

# %% [markdown] role="quiz"
# **5. Under the reference, two answers are equally likely, and the reward of one answer
# is higher by 1. With beta halved, the best policy's odds between the two answers are**
#
# - [ ] twice as high :: The odds are exp(1 / beta) to one, so beta is in the exponent.
# - [x] the square of what they were :: exp(2 / beta) is exp(1 / beta) times itself.
# - [ ] the same, because only the distance to the reference changes :: The distance
#   changes because the odds do.

# %% [markdown] role="quiz"
# **6. The judge's reward rises from step to step, and so does the KL. The answers**
#
# - [x] may be getting worse all the time :: Most judges err somewhere, and the policy can
#   spend many nats on an answer that its judge overrates.
# - [ ] get better, because that is what training maximizes :: Training maximizes the
#   judge's opinion, minus the price of the nats.
# - [ ] stay the same :: A rising KL means that the policy now samples different answers.

# %% [markdown] role="quiz"
# **7. All four answers to a prompt are right and have reward 1. Their advantages are**
#
# - [ ] 1 each, because all should become likelier :: An advantage compares a reward with
#   the group's mean, which is 1 here.
# - [x] 0 each, so this group teaches nothing :: No answer is better than the others.
# - [ ] nan :: The advantages would be nan if nothing were added to the standard deviation
#   of 0.

# %% [markdown] role="gpu"
# ## On a GPU: the reference and the logits
#
# DPO trains one model and only evaluates a second one, the reference. With AdamW and
# 32-bit masters, each weight of the trained model takes 16 bytes: two for the weight, two
# for its gradient, and twelve for the master and two moments. A weight of the
# reference takes two bytes. Each model also computes *logits*, one value per vocabulary
# entry and token.
#
# **Before you run anything:** Take a policy of 8 billion weights, 8 answers of 1,024
# tokens, a vocabulary of 128,256, and logits in 16 bits. Which takes more memory, the
# reference or the tensors that a 32-bit `log_softmax` allocates for one call's logits?
# And what fraction of that allocation is left if you process one row at a time?

# %% role="gpu"
from dlsys_helpers.gpu import half_dtype

def whole(logits, ids):
    """Log-probabilities (B, T) of ids (B, T), all rows at once."""
    logp = logits.float().log_softmax(-1)
    return logp.gather(-1, ids[..., None])[..., 0]

def by_row(logits, ids):
    """The same, one row at a time."""
    return torch.stack([whole(z, i) for z, i in zip(logits, ids)])

def batch_of(where, dtype, rows=8, size=1024, vocabulary=128_256):
    """Logits (rows, size, vocabulary) and ids, as a reference has them."""
    logits = torch.randn(rows, size, vocabulary, device=where, dtype=dtype)
    return logits, torch.randint(vocabulary, (rows, size), device=where)

# %% role="gpu"
given = batch_of("meta", torch.bfloat16)
peaks = {form.__name__: cost(lambda: form(*given)).peak / 1e9
         for form in (whole, by_row)}
plot_bars({"policy in training": 8 * 16, "reference": 8 * 2,
           "logits": given[0].nbytes / 1e9,
           "log_softmax, whole": peaks["whole"],
           "log_softmax, by row": peaks["by_row"],
           "result, 33 kB": 8 * 1024 * 4 / 1e9},
          xlabel="GB", title="All this for a result of 33 kB",
          alt="Bars in GB: a policy in training 128, its reference 16, "
              "logits 2.1, log_softmax of all rows 8.4 and of one row 1.1. "
              "The log-probabilities themselves take almost nothing.")

# %% role="gpu"
few = batch_of("cpu", torch.float32, rows=3, size=5, vocabulary=40)
claim("GB that log_softmax takes for all rows at once, divided by GB for "
      "one row at a time", peaks["whole"] / peaks["by_row"], above=6)
claim("GB that the reference takes, divided by GB that log_softmax takes "
      "for all rows at once", 16 / peaks["whole"], above=1.5)
claim("largest gap between log-probabilities computed for all rows at "
      "once and row by row",
      (whole(*few) - by_row(*few)).abs().max().item(), below=1e-5)

# %% role="gpu"
@gpu_result("14/logp", uses=[whole, by_row, batch_of],
            columns=["form", "ms", "ms_low", "ms_high", "peak_gb"])
def forms():
    """Log-probabilities of 8 answers of 1,024 tokens, without gradients."""
    logits, ids = batch_of("cuda", half_dtype("cuda"))
    for form in (whole, by_row):
        t = seconds(lambda: form(logits, ids), repeats=10, device="cuda")
        yield {"form": form.__name__, "ms": t.median * 1e3,
               "ms_low": t.low * 1e3, "ms_high": t.high * 1e3,
               "peak_gb": peak_bytes(lambda: form(logits, ids)) / 1e9}

# %% role="gpu"
def over(column):
    """A measurement by row, divided by the same for all rows at once."""
    return (forms.value(column, form="by_row")
            / forms.value(column, form="whole"))

answers_here = gpu_table(
    datasheet(forms.device_name),
    forms.asks("all rows at once: GB at the peak, without the logits",
               round(peaks["whole"], 1),
               lambda: forms.value("peak_gb", form="whole"), above=4),
    forms.asks("peak memory by row, divided by peak for all rows at once",
               round(peaks["by_row"] / peaks["whole"], 2),
               lambda: over("peak_gb"), below=0.5),
    forms.asks("time by row, divided by time for all rows at once", 1,
               lambda: over("ms"), below=1.5))
answers_here

# %% [markdown] role="gpu"
# **Keep:** Up to rounding, a fixed reference scores an answer the same every
# time. So query the reference once, before training, and store one number per answer, the
# sum of its tokens' log-probabilities. You then keep 8 bytes per pair instead of a model
# of 16 GB. If training began with a new, default LoRA adapter, you need no second model,
# because the policy with it switched off is the reference. If you do have to call the
# reference during training, process one row at a time. (For the policy, this saves a
# smaller part, because the backward pass keeps all rows.)

# %% [markdown] role="summary"
# ## What you take with you
#
# - The best policy is the start times $\exp(\text{reward} / \beta)$, normalized. Before
#   you train, work out where the policy should end up.
# - A KL penalty can protect from a judge's errors, so plot the KL as well as the reward.
# - A preference loss's reference must not be the policy itself, so store a copy.
# - In GRPO, a group consists of the answers to one prompt. Store the prompt's id with
#   every answer.
# - An estimate of the KL with the right value need not have the right gradient.
# - In PPO, "old" is the policy that sampled the answers. A ratio of exactly 1 is right
#   only in the first step after sampling.
#
# **Next:** In one of your own runs, plot the KL to the first checkpoint alongside the
# loss.
