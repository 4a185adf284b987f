"""Stage 14: references, groups, penalties on the KL, and ratios."""

import math
from itertools import product

from dlsys_checks.questions import ask, choice, number, whole

# ---- 14.1 a reference that runs along

ask("14.1", {"beta": (0.05, 0.1, 0.3, 0.5), "rows": (8, 32, 64)}, lambda beta, rows: number(
    f"You run DPO with beta {beta} on {rows} pairs, with dropout off. What is the loss at the "
    "first step, before any update?", math.log(2),
    "Policy and reference agree, so each margin is 0, and -log sigmoid(0) is log 2 for any beta.",
    beta * math.log(2), 0.0, rows * math.log(2), within=0.01))
ask("14.1", {"beta": (0.1, 0.2, 0.4), "steps": (100, 500, 1000)}, lambda beta, steps: number(
    f"You run DPO with beta {beta}, and the reference is the policy itself. After {steps} steps, "
    "what is the absolute value of the derivative of a pair's loss with respect to its margin?",
    beta / 2, "The margin is 0 at each step, and beta sigmoid(0) is half of beta.", 0.0, beta,
    beta / 2 / steps, within=0.02))
ask("14.1", {"made": ("ref = policy", "ref = policy.eval()", "ref = copy.copy(policy)")},
    lambda made: choice(
        f"You write `{made}` and run DPO without dropout, reference under `no_grad`. What does the "
        "log show, and what does the policy do?", "the loss stays at log 2, and the policy drifts",
        "The weights are shared, so the margin is always 0, but its gradient is not.",
        "the loss stays at log 2, and the policy does not move",
        "the loss falls, and the policy drifts",
        "the loss falls, and the policy ends at the best one"))
ask("14.1", {"beta": (0.1, 0.2, 0.5), "tokens": (20, 50, 100)}, lambda beta, tokens: number(
    f"All answers have {tokens} tokens. DPO with beta {beta} uses the mean of their "
    "log-probabilities instead of the sum. To which beta of ordinary DPO does that correspond?",
    beta / tokens, "Each margin is divided by the length, which has the effect of a smaller beta.",
    beta, beta * tokens, within=0.01))
ask("14.1", {"beta": (0.5, 2.0), "gap": (0.5, 1.0, 2.0), "start": (0.25, 0.5, 2.0)},
    lambda beta, gap, start: number(
        f"Under the reference, answer A is {start} times as likely as B. The reward of A is {gap} "
        f"higher. Beta is {beta}. How many times as likely as B is A under the best policy?",
        start * math.exp(gap / beta),
        "Each answer's probability is multiplied by exp(reward / beta).", start * math.exp(gap),
        start + gap / beta, math.exp(gap / beta), within=0.02))

# ---- 14.2 groups

ask("14.2", {"right": (1, 2, 4), "size": (8, 16)}, lambda right, size: number(
    f"Of {size} answers to one prompt, {right} are right and have reward 1; the other answers have "
    "reward 0. What is a right answer's advantage, with the standard deviation that divides by "
    "n - 1?",
    (1 - (mean := right / size)) / math.sqrt(size * mean * (1 - mean) / (size - 1)),
    "It is the reward minus the group's mean, divided by the group's standard deviation.",
    1 - mean, 1.0, within=0.02))
ask("14.2", {"prompts, rounds": [(4, 8), (16, 8), (32, 4)]}, lambda prompts, rounds: whole(
    f"{prompts} prompts got {rounds} rounds of one answer each, listed round by round. The groups "
    f"are made by `view(-1, {rounds})`. How many different prompts are in the first group?",
    min(prompts, rounds), "Neighbours in a round belong to different prompts.", 1,
    prompts * rounds))
ask("14.2", {"prompts, rounds": [(6, 4), (12, 8), (5, 16)]}, lambda prompts, rounds: choice(
    f"The rewards of {prompts} prompts, {rounds} answers each, are listed round by round: all "
    "first answers, then all second answers. Which expression has a prompt's answers in one row?",
    f"r.view({rounds}, {prompts}).T",
    "View the list as it is laid out, rounds by prompts, then transpose it.",
    f"r.view({prompts}, {rounds})", f"r.view({rounds}, {prompts})",
    f"r.view({prompts}, {rounds}).T"))
ask("14.2", {"size": (4, 8), "chance": (0.1, 0.2, 0.5)}, lambda size, chance: number(
    f"Groups have {size} answers, each right (reward 1) with probability {chance}, else wrong "
    "(reward 0). What fraction of the groups teaches nothing?",
    (none := chance ** size + (1 - chance) ** size),
    "Groups that are all right or all wrong teach nothing, because every advantage is 0.",
    (1 - chance) ** size if chance == 0.5 else chance ** size,
    1 - none if abs(1 - 2 * none) > 0.05 else 0.0, within=0.03))
ask("14.2", {"easy": range(6, 10), "hard": range(4)}, lambda easy, hard: choice(
    f"A wrong answer to an easy prompt gets {easy} points. A right answer to a hard prompt gets "
    f"{hard + 1}, and a wrong one gets {hard}. These first two answers form one group. Which "
    "of them is pushed up?", "the wrong answer to the easy prompt",
    "Within a group, only the reward counts, and here the prompt decides the reward.",
    "the right answer to the hard prompt", "both, because each is the best of its prompt",
        "neither"))

# ---- 14.3 the KL in the loss

ask("14.3", {"beta": (0.01, 0.05, 0.1, 0.5)}, lambda beta: choice(
    f"A loss contains {beta:g} * (logp - logp_ref).mean() over answers just sampled from the "
    "policy. What does the gradient of this term do, averaged over many samples?",
    "nothing, because it is zero",
    "logp_ref is a constant and drops out, and the gradient of logp is 0 on average.",
    "it pulls towards the reference", "it pushes away from the reference",
    "it pulls towards the reference, with more noise than a square"))
ask("14.3", {"p": (0.2, 0.3, 0.4), "q": (0.6, 0.7, 0.8)}, lambda p, q: number(
    f"The policy gives two answers the probabilities {p} and {1 - p:.1f}, and the reference gives "
    f"{q} and {1 - q:.1f}. What is the gradient of KL(policy, reference), in nats, at the first "
    "logit?",
    p * (1 - p) * ((gap := math.log(p / q)) - math.log((1 - p) / (1 - q))),
    "It is the answer's probability times (its log-ratio minus the KL).", 0.0, gap, p * gap,
    within=0.01))
ask("14.3", {"a, b, c": [g for g in product((-0.4, -0.2, 0.3, 0.5),
                         repeat=3) if abs(sum(g)) > 0.15 and len(set(g)) > 1]},
    lambda a, b, c: number(
        f"An answer of three tokens has the log-ratios {a:g}, {b:g}, {c:g}. To the loss, you add "
        "half of a square whose mean gradient is that of the KL of whole answers. How large is "
        "this half for the answer?",
        (total := a + b + c) ** 2 / 2, "First sum over the tokens, then square.",
        each := (a * a + b * b + c * c) / 2, each / 3, total, within=0.02))
ask("14.3", {"beta": (0.04, 0.1, 0.5, 1.0)}, lambda beta: choice(
    f"By mistake, the loss contains the mean log-ratio of new samples times {beta:g} with a minus "
    "sign. What does the KL to the reference do, compared with the run with a plus sign?",
    "the same, up to noise", "With either sign, the term's gradient is 0 on average.",
    "it grows faster", "it shrinks", "it grows faster, until the reward stops it"))
ask("14.3", {"d": ("d", "x", "r"), "beta": (0.04, 0.1, 1.0)}, lambda d, beta: choice(
    f"{d} is log policy - log reference of an answer sampled from the policy. You add "
    f"{beta:g} * (exp(-{d}) - 1 + {d}) to the loss. On average, its gradient is the gradient of",
    "KL(reference, policy)",
    "Its value estimates KL(policy, reference), but its gradient is that of the other direction.",
    "KL(policy, reference)", "a constant: it is 0", "half of KL(policy, reference)"))

# ---- 14.4 the ratio

ask("14.4", {"then": (-1.5, -2.0, -2.5), "now": (-0.6, -0.9, -1.2)}, lambda then, now: number(
    f"A token had log-probability {then} when it was sampled. Three inner steps later, it has "
    f"log-probability {now}. What is its ratio?", math.exp(now) / math.exp(then),
    "It is exp(now - then), where then is the value at sampling time.", 1.0, now / then,
    math.exp(then) / math.exp(now)))
ask("14.4", {"ratio": (1.5, 1.8, 0.4, 0.6), "adv": (-2.0, -1.0, 1.0, 2.0), "eps": (0.1, 0.2, 0.3)},
    lambda ratio, adv, eps: number(
        f"A token has ratio {ratio} and advantage {adv:g}; eps is {eps}. What does this token "
        "contribute to the objective that PPO maximizes?",
        min((held := min(max(ratio, 1 - eps), 1 + eps)) * adv, ratio * adv),
        "It is the smaller of ratio * advantage and clipped ratio * advantage.",
        max(held * adv, ratio * adv), adv))
ask("14.4", {"rounds": (100, 500, 2000)}, lambda rounds: choice(
    f"A trainer takes one inner step on each sample. Over {rounds} samples, its log shows ratio "
    "1.000 and no token clipped. What is wrong?",
    "nothing, because this is right in the first step after sampling",
    "The policy in training is still the one that sampled.",
    "the old log-probabilities are computed again in each step", "the learning rate is too small",
    "eps is too large"))
ask("14.4", {"inner": (4, 8, 16), "draws": (3, 5, 10)}, lambda inner, draws: whole(
    f"PPO takes {draws} samples and {inner} inner steps on each, and keeps the log-probabilities "
    "from the sampling. In how many of all these steps must every ratio be 1?", draws,
    "All ratios are 1 in the first step after each sample.", 1, draws * inner, 0))
ask("14.4", {"each": (1.01, 1.02, 0.99), "tokens": (50, 100, 200)}, lambda each, tokens: number(
    f"Each token of an answer has ratio {each}. What is the product of the ratios over {tokens} "
    "tokens?",
    each**tokens,
    "The product leaves the clip range because the answer is long, so PPO takes one ratio per "
    "token.",
    each,
    1 + tokens * (each - 1), within=0.03))


# ---- The idea before the traps: from a preference to a loss

ask("14.1", {"one, two": [(2, 1), (3, 1), (3, 2), (1, 2), (1, 3), (4, 1), (1, 4), (5, 2)]},
    lambda one, two: number(
        f"Two answers have the rewards {one} and {two}. With what probability does a "
        "Bradley-Terry judge prefer the first?", 1 / (1 + math.exp(two - one)),
        "It is the sigmoid of the difference of the rewards.", one / (one + two), 0.5))
ask("14.1", {"chosen": (0.4, 0.8, 1.2), "other": (-0.6, -0.2, 0.2), "beta": (0.1, 0.2, 0.5)},
    lambda chosen, other, beta: number(
        f"The log ratio of policy and reference is {chosen} for the preferred answer and {other} "
        f"for the other answer. With beta {beta}, to which reward difference do they correspond?",
        beta * (chosen - other),
        "The reward is beta times the log ratio, up to a constant that cancels in a pair.",
        chosen - other, (chosen - other) / beta))


# ---- 14.5 returns of several episodes

ask("14.5", {"last": (2, 3, 4), "next_one": (10, 20, 50), "gamma": (0.5, 0.8, 0.9)},
    lambda last, next_one, gamma: number(
        f"The last step of an episode earns {last}. The next step in the buffer begins another "
        f"episode and earns {next_one}; gamma is {gamma}. What is the return of the first of these "
        "two steps?", last,
        "An episode's last step is followed by nothing, so its return is its reward.",
        last + gamma * next_one, gamma * next_one, 0))
ask("14.5", {"first": (4, 6, 8), "second": (1, 2), "gamma": (0.5, 0.6)},
    lambda first, second, gamma: number(
        f"An episode of two steps earns {first}, then {second}; gamma is {gamma}. What is the "
        "return of the first step?", first + gamma * second,
        "The reward of the step plus gamma times the return of the next step.",
        first + second, gamma * (first + second), second + gamma * first))
ask("14.5", {"reward": (1, 2, 3), "value": (10, 20, 40), "gamma": (0.5, 0.8, 0.9)},
    lambda reward, value, gamma: number(
        f"A time limit stops an episode that would have gone on. Its last recorded step earns "
        f"{reward}, and the value of the next state is {value}; gamma is {gamma}. What is the "
        "return of this step?", reward + gamma * value,
        "Only the recording stopped, so the value stands for the rewards that would have followed.",
        reward, reward + value, gamma * value))
ask("14.5", {"reward": (5, 10, 20), "per_step": (1, 2)}, lambda reward, per_step: choice(
    f"Each step of a game earns {per_step}, except the first, which earns {reward}. Returns are "
    "summed across the ends of games. What does a policy-gradient agent learn?",
    "to end a game soon after its first step",
    "Ending a game is followed by the next first step, whose reward counts as a consequence.",
    "to play as long as possible", "nothing, because the mean of the returns is zero",
    "to play the first step worse"))
