"""Stage 14: references, groups, penalties on the KL, and ratios."""

import math

from dlsys_checks.questions import asks, choice, number, whole

# ---- 14.1 a reference that runs along

@asks("14.1")
def first_loss(rng):
    beta, rows = rng.choice([0.05, 0.1, 0.3, 0.5]), rng.choice([8, 32, 64])
    return number(
        f"DPO, beta {beta}, {rows} pairs, dropout off. What is the loss at the first step, before "
        "any update?", math.log(2), "Policy and reference agree, each margin is 0, and -log "
        "sigmoid(0) is log 2, whatever beta.", beta * math.log(2), 0.0, rows * math.log(2),
        within=0.01)


@asks("14.1")
def pull_at_zero(rng):
    beta, steps = rng.choice([0.1, 0.2, 0.4]), rng.choice([100, 500, 1000])
    return number(
        f"DPO with beta {beta}, and the reference is the policy itself. After {steps} steps, how "
        "large is the slope of a pair's loss in its margin, without its sign?", beta / 2,
        "The margin is 0 at each step, and beta sigmoid(0) is half of beta.", 0.0, beta,
        beta / 2 / steps, within=0.02)


@asks("14.1")
def same_object(rng):
    made = rng.choice(["ref = policy", "ref = policy.eval()", "ref = copy.copy(policy)"])
    return choice(
        rng, f"`{made}`, then DPO with the reference under `no_grad`. What does the log show, and "
        "what does the policy do?", "the loss stays at log 2, the policy drifts",
        ["the loss stays at log 2, the policy stays", "the loss falls, the policy drifts",
         "the loss falls, the policy ends at the best one"],
        "The weights are shared, so the margin is 0 for ever; its gradient is not.")


@asks("14.1")
def mean_for_sum(rng):
    beta, tokens = rng.choice([0.1, 0.2, 0.5]), rng.choice([20, 50, 100])
    return number(
        f"All answers have {tokens} tokens. DPO takes the mean of their log-probabilities in place "
        f"of the sum, with beta {beta}. To which beta of ordinary DPO does that correspond?",
        beta / tokens, "Each margin is divided by the length, which is the same as a smaller "
        "beta.", beta, beta * tokens, within=0.01)


@asks("14.1")
def best_odds(rng):
    beta, gap = rng.choice([0.5, 2.0]), rng.choice([0.5, 1.0, 2.0])
    start = rng.choice([0.25, 0.5, 2.0])
    return number(
        f"Under the reference answer A is {start} times as likely as B. Its reward is {gap} "
        f"higher. Beta is {beta}. How many times as likely is A under the best policy?",
        start * math.exp(gap / beta), "Each answer's probability is multiplied by exp(reward / "
        "beta).", start * math.exp(gap), start + gap / beta, math.exp(gap / beta), within=0.02)


# ---- 14.2 groups

@asks("14.2")
def an_advantage(rng):
    right, size = rng.choice([1, 2, 4]), rng.choice([8, 16])
    mean = right / size
    spread = math.sqrt((right * (1 - mean) ** 2 + (size - right) * mean ** 2) / (size - 1))
    return number(
        f"{size} answers to one prompt, {right} of them right: reward 1, the others 0. What is the "
        "advantage of a right one, divided by the standard deviation with n - 1?",
        (1 - mean) / spread, "Reward less the mean of the group, over its standard deviation.",
        1 - mean, 1.0, within=0.02)


@asks("14.2")
def neighbours(rng):
    prompts, rounds = rng.choice([(4, 8), (16, 8), (32, 4)])
    return whole(
        f"{prompts} prompts, {rounds} rounds of one answer to each, in one list, round by round. "
        f"`view(-1, {rounds})` is taken for groups. How many different prompts are in the first "
        "group?", min(prompts, rounds), "Neighbours in a round are different prompts.", 1,
        prompts * rounds)


@asks("14.2")
def which_reshape(rng):
    prompts, rounds = rng.choice([(6, 4), (12, 8), (5, 16)])
    return choice(
        rng, f"Rewards of {prompts} prompts, {rounds} answers each, lie round by round: all first "
        "answers, then all second ones. Which table has a prompt's answers in one row?",
        f"r.view({rounds}, {prompts}).T",
        [f"r.view({prompts}, {rounds})", f"r.view({rounds}, {prompts})",
         f"r.view({prompts}, {rounds}).T"],
        "View as it is laid out, rounds by prompts, then turn it.")


@asks("14.2")
def no_signal(rng):
    size, chance = rng.choice([4, 8]), rng.choice([0.1, 0.2, 0.5])
    none = chance ** size + (1 - chance) ** size
    return number(
        f"Groups of {size} answers, each right with probability {chance}, reward 1 or 0. What "
        "share of the groups teaches nothing?", none, "All right or all wrong: then each "
        "advantage is 0.", (1 - chance) ** size if chance == 0.5 else chance ** size,
        1 - none if abs(1 - 2 * none) > 0.05 else 0.0, within=0.03)


@asks("14.2")
def who_wins(rng):
    easy, hard = rng.randint(6, 9), rng.randint(0, 3)
    return choice(
        rng, f"A wrong answer to an easy prompt gets {easy} points, a right one to a hard prompt "
        f"{hard + 1}, where a wrong one gets {hard}. Both fall into one group. Which of the two is "
        "pushed up?", "the wrong answer to the easy prompt",
        ["the right answer to the hard prompt", "both: each is the best of its prompt", "neither"],
        "Within a group the reward alone counts, and the prompt decides the reward.")


# ---- 14.3 the KL in the loss

# ---- 14.4 the ratio
