"""Stage 14: references, groups, penalties on the KL, and ratios."""

import math

import torch

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
        f"`{made}`, then DPO with the reference under `no_grad`. What does the log show, and what "
        "does the policy do?", "the loss stays at log 2, the policy drifts",
        "The weights are shared, so the margin is 0 for ever; its gradient is not.",
        "the loss stays at log 2, the policy stays", "the loss falls, the policy drifts",
        "the loss falls, the policy ends at the best one")


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
        f"Rewards of {prompts} prompts, {rounds} answers each, lie round by round: all first "
        "answers, then all second ones. Which table has a prompt's answers in one row?",
        f"r.view({rounds}, {prompts}).T",
        "View as it is laid out, rounds by prompts, then turn it.", f"r.view({prompts}, {rounds})",
        f"r.view({rounds}, {prompts})", f"r.view({prompts}, {rounds}).T")


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
        f"A wrong answer to an easy prompt gets {easy} points, a right one to a hard prompt "
        f"{hard + 1}, where a wrong one gets {hard}. Both fall into one group. Which of the two is "
        "pushed up?", "the wrong answer to the easy prompt",
        "Within a group the reward alone counts, and the prompt decides the reward.",
        "the right answer to the hard prompt", "both: each is the best of its prompt", "neither")


# ---- 14.3 the KL in the loss

@asks("14.3")
def what_is_left(rng):
    beta = rng.choice([0.01, 0.05, 0.1, 0.5])
    return choice(
        f"A loss has {beta:g} * (logp - logp_ref).mean() over answers that the policy has just "
        "drawn. What does its gradient hold, averaged over many draws?",
        "nothing: neither the reference nor a pull",
        "logp_ref is a constant and drops out; the gradient of logp is 0 on average.",
        "a pull to the reference", "a pull away from the reference",
        "a pull to the reference, with more noise than a square would have")


@asks("14.3")
def gradient_of_the_kl(rng):
    p, q = rng.choice([0.2, 0.3, 0.4]), rng.choice([0.6, 0.7, 0.8])
    logits = torch.tensor([p, 1 - p], dtype=torch.float64).log().requires_grad_()
    reference = torch.tensor([q, 1 - q], dtype=torch.float64)
    policy = logits.softmax(0)
    (policy * (policy / reference).log()).sum().backward()
    gap = math.log(p / q)
    return number(
        f"Two answers; the policy gives them {p} and {1 - p:.1f}, the reference {q} and "
        f"{1 - q:.1f}. What is the gradient of KL(policy, reference), in nats, at the first "
        "logit?", logits.grad[0].item(), "Probability times (its log-ratio minus the KL).", 0.0,
        gap, p * gap, within=0.01)


@asks("14.3")
def sum_then_square(rng):
    gaps = [rng.choice([-0.4, -0.2, 0.3, 0.5]) for _ in range(3)]
    while abs(sum(gaps)) < 0.15 or len(set(gaps)) < 2:
        gaps = [rng.choice([-0.4, -0.2, 0.3, 0.5]) for _ in range(3)]
    right = 0.5 * math.fsum(gaps) ** 2
    each = 0.5 * math.fsum(g * g for g in gaps)
    return number(
        f"An answer of three tokens has the log-ratios {', '.join(f'{g:g}' for g in gaps)}. What "
        "is its term, half a square, whose mean gradient is that of the KL of whole answers?",
        right, "First the sum over the tokens, then the square.", each, each / 3,
        math.fsum(gaps), within=0.02)


@asks("14.3")
def the_sign_turned(rng):
    beta = rng.choice([0.04, 0.1, 0.5, 1.0])
    return choice(
        f"The mean log-ratio of fresh draws stands in the loss, times {beta:g}. By mistake with a "
        "minus. What does the KL to the reference do, compared with the plus?",
        "the same, up to noise", "Neither sign has a gradient on average.", "it grows faster",
        "it shrinks", "it grows faster, until the reward holds it")


@asks("14.3")
def where_k3_pulls(rng):
    d, beta = rng.choice(["d", "x", "r"]), rng.choice([0.04, 0.1, 1.0])
    return choice(
        f"{d} is log policy - log reference of an answer that the policy drew. Into the loss goes "
        f"{beta:g} * (exp(-{d}) - 1 + {d}). On average its gradient points along that of",
        "KL(reference, policy)",
        "Its value estimates KL(policy, reference), its gradient belongs to the other direction.",
        "KL(policy, reference)", "nothing: it is 0", "half of KL(policy, reference)")


# ---- 14.4 the ratio

@asks("14.4")
def ratio_in_a_later_step(rng):
    then, now = -rng.choice([1.5, 2.0, 2.5]), -rng.choice([0.6, 0.9, 1.2])
    return number(
        f"A token had log-probability {then} when it was drawn. Three inner steps later it has "
        f"{now}. What is its ratio?", math.exp(now) / math.exp(then),
        "exp(now - then), with then from the sampling.", 1.0, now / then,
        math.exp(then) / math.exp(now))


@asks("14.4")
def what_the_minimum_takes(rng):
    ratio = rng.choice([1.5, 1.8, 0.4, 0.6])
    adv = rng.choice([-2.0, -1.0, 1.0, 2.0])
    eps = rng.choice([0.1, 0.2, 0.3])
    lowest, highest = 1 - eps, 1 + eps
    held = lowest if ratio < lowest else highest
    right = sorted([ratio * adv, held * adv])[0]
    return number(
        f"Ratio {ratio}, advantage {adv:g}, eps {eps}. What does PPO's objective, which is to be "
        "maximised, take for this token?", right, "The smaller of ratio * advantage and clipped "
        "ratio * advantage.", sorted([ratio * adv, held * adv])[1], adv)


@asks("14.4")
def one_inner_step(rng):
    rounds = rng.choice([100, 500, 2000])
    return choice(
        f"A trainer takes one inner step on each draw. Over {rounds} draws its log shows ratio "
        "1.000 and no token clipped. What is wrong?",
        "nothing: in the first step after a draw that is right",
        "The policy that is trained is still the one that drew.",
        "the old log-probabilities are computed anew", "the learning rate is too small",
        "eps is too large")


@asks("14.4")
def steps_with_a_ratio(rng):
    inner, draws = rng.choice([4, 8, 16]), rng.choice([3, 5, 10])
    steps = [step for _ in range(draws) for step in range(inner)]
    return whole(
        f"{draws} draws, {inner} inner steps on each, log-probabilities kept from the sampling. "
        "In how many of all the steps does every ratio have to be 1?", steps.count(0),
        "In the first after each draw.", 1, draws * inner, 0)


@asks("14.4")
def ratio_of_an_answer(rng):
    each, tokens = rng.choice([1.01, 1.02, 0.99]), rng.choice([50, 100, 200])
    return number(
        f"Each token of an answer has ratio {each}. What is their product over {tokens} tokens?",
        math.prod([each] * tokens), "It leaves the clip by the length alone: so the ratio is one "
        "of a token.", each, 1 + tokens * (each - 1), within=0.03)
