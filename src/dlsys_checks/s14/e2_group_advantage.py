"""Exercise 14.2, `group_advantage`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_checks.rounding import settled
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("14.2", "group_advantage", seen=("rewards", "prompt_ids"), says="advantages",
              within=1e-3)

ex.promise_table("""
among     | Compare each answer with the answers to the same prompt. | advantages
rewards   | rewards: (N,) float32. | advantages
ids       | prompt_ids: (N,) int64, any values. | case ids below 0; large ids; ids above 2**53; ids
            with gaps
group     | A group is all answers with the same id, at any positions. | advantages
unequal   | Groups can differ in size. | case unequal groups; unequal groups, mixed; a large group
            and small ones; one id comes back; alone among others; ids below 0; a group of equal
            rewards; one reward among many
advantage | The advantage of an answer is its reward minus the mean of its group, divided by the
            standard deviation of its group (with n - 1) plus 1e-4. | advantages
alone     | The advantage is 0 for an answer that is alone in its group. | case alone among others;
            each answer alone in its group; one answer
equal     | Up to rounding, the advantage is also 0 for all answers in a group with equal rewards. |
            case equal rewards; a group of equal rewards
form      | Returns (N,) float32, in the order of rewards. | shape of the; dtype of the; type of
            the; advantages
left      | Inputs are not changed. | values changed
example   | Example: rewards [1., 5., 3., 6.], prompt_ids [7, 2, 7, 2] give [-0.7071, -0.7070,
            0.7071, 0.7070]. | case the example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, ids, *, level=3.0, size=1.0, rewards=None, shift=0.0):
        ids = torch.as_tensor(ids)
        if rewards is None:
            names, of = ids.unique(return_inverse=True)
            rewards = shift + level * torch.randn(len(names), generator=g)[of]
            rewards = rewards + size * torch.randn(len(ids), generator=g)
        return name, {"rewards": rewards, "prompt_ids": ids}

    def mixed(ids):
        return ids[torch.randperm(len(ids), generator=g)]

    k, n = whole(3, 6), whole(3, 6)
    if k == n:
        n += 1
    prompts = torch.randperm(20, generator=g)[:k]
    sizes = torch.tensor([whole(2, 4), whole(5, 8), whole(2, 4), whole(8, 10)])
    apart = torch.tensor([5, 3, 9, 2]).repeat_interleave(sizes)
    half = torch.cat([torch.full((4,), 0.5), torch.randn(5, generator=g)])
    half_ids = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0, 0])
    order = torch.randperm(9, generator=g)
    # Sums and means of fours are exact here in float32, so that every route has the same gaps.
    last_ids = mixed(torch.tensor([0, 1, 2]).repeat(4))
    last = torch.tensor([64.0, 96.0, -80.0])[last_ids]
    for name in range(3):
        last[(last_ids == name).nonzero()[:whole(1, 4), 0]] += 2.0**-11
    rare_ids = mixed(torch.tensor([5] * 130 + [4] * 6))
    rare = (torch.rand(136, generator=g) < 0.5).float()
    rare[rare_ids == 5] = 0.0
    rare[(rare_ids == 5).nonzero()[whole(0, 130), 0]] = 1.0
    return [one("round by round", prompts.repeat(n)),
            one("prompt by prompt", prompts.repeat_interleave(n)),
            one("mixed", mixed(prompts.repeat(n))),
            one("mixed, many prompts", mixed(torch.arange(30).repeat(3))),
            one("one id comes back", [4, 4, 1, 1, 1, 4, 4, 6, 6, 4]),
            one("groups of two", mixed(prompts.repeat(2))),
            one("one group", torch.full((n,), 3)),
            one("unequal groups", apart), one("unequal groups, mixed", mixed(apart)),
            one("a large group and small ones", mixed(torch.tensor([0] * 40 + [1, 1, 2, 2]))),
            one("alone among others", [3, 8, 3, 5, 3, 8]), one("each answer alone in its group",
                [2, 0, 1]),
            one("one answer", [0]),
            one("ids below 0", mixed(torch.tensor([-1, -1, -1, -2, -2, -2, 0, 0, 1, 1]))),
            one("large ids", mixed(torch.tensor(
                [2**40 + 5, 2**40 + 6, 2**32 + 5, 2**20 + 7, 7]).repeat(3))),
            one("ids above 2**53", mixed(torch.tensor([2**53, 2**53 + 1, 2**62]).repeat(3))),
            one("ids with gaps", mixed(torch.tensor([100, 3, 57]).repeat(n))),
            one("rewards below 0", mixed(prompts.repeat(n)), shift=-20.0),
            one("large rewards", mixed(prompts.repeat(n)), shift=500.0, size=20.0),
            one("small rewards", mixed(prompts.repeat(n)), level=0.01, size=0.001),
            one("tiny differences", prompts.repeat(n), level=0.001, size=2e-5),
            one("large rewards, close together", mixed(prompts.repeat(n)), shift=1000.0,
                level=0.3, size=0.5),
            one("rewards that differ in their last digits", last_ids, rewards=last),
            one("one reward among many", rare_ids, rewards=rare),
            one("equal rewards", prompts.repeat(n), rewards=torch.ones(k * n)),
            one("a group of equal rewards", half_ids[order], rewards=half[order]),
            one("rewards of 0 and 1", mixed(prompts.repeat(8)), rewards=(torch.rand(
                8 * k, generator=g) < 0.4).float()),
            one("the example", [7, 2, 7, 2], rewards=torch.tensor([1.0, 5.0, 3.0, 6.0]))]


@ex.act
def act(fn, rewards, prompt_ids):
    mine, ids = rewards.clone(), prompt_ids.clone()
    found = fn(mine, ids)
    moved = int((mine != rewards).sum() + (ids != prompt_ids).sum())
    return {"found": found, "moved": moved}


@ex.law
def law(out, rewards, prompt_ids):
    expect_parts(out, "found", "moved")
    expect_equal("values changed in the arguments", out["moved"], 0, "Work on copies.")
    members = {}
    for at, name in enumerate(prompt_ids.tolist()):
        members.setdefault(name, []).append(at)
    wanted, room = torch.zeros(2, len(rewards), dtype=torch.float64)
    for places in members.values():
        group = [float(rewards[at]) for at in places]
        mean = sum(group) / len(group)
        if len(group) > 1:
            spread = (sum((r - mean) ** 2 for r in group) / (len(group) - 1)) ** 0.5
            # Where float32 has to round the sum, the mean is right to a share of what is averaged.
            if float(torch.tensor(sum(group)).float()) != sum(group):
                room[places] = 1.2e-7 * max(map(abs, group)) / (spread + 1e-4)
            for at, r in zip(places, group):
                wanted[at] = (r - mean) / (spread + 1e-4)
    sizes = sorted({len(places) for places in members.values()})
    found = settled("advantages", out["found"], wanted.float(), room)
    expect_close("advantages", found, wanted.float(), rtol=2e-3, atol=2e-3,
                 look=f"There are {len(members)} groups, of sizes {', '.join(map(str, sizes))}.")


# ---- wrong, by name

@not_an_answer
def cut(rewards, size):
    """Advantages in chunks of this size, one behind the other."""
    return torch.cat([(part - part.mean()) / (part.std(correction=len(part) > 1) + 1e-4)
                      for part in rewards.split(size)])


# https://github.com/StarsfieldAI/R1-V/issues/67
ex.wrong("cutting the rewards into consecutive groups of the first group's size",
         lambda rewards, prompt_ids: cut(
    rewards, int((prompt_ids == prompt_ids[0]).sum())), breaks="group")
ex.wrong("treating each round, one answer to each prompt, as a group",
         lambda rewards, prompt_ids: cut(
    rewards, len(prompt_ids.unique())), breaks=("group", "among"))
ex.wrong("cutting the rewards into as many equal pieces as there are prompts",
         lambda rewards, prompt_ids: (
    cut(rewards, max(1, len(rewards) // len(prompt_ids.unique())))), breaks="group")
# https://github.com/XU-YIJIE/grpo-flat/issues/2
ex.wrong("using the whole batch as one group",
         lambda rewards, prompt_ids: cut(rewards, len(rewards)),
         breaks="among")


@not_an_answer
def made(rewards, prompt_ids, *, centre=lambda group: group.mean(), spread=lambda group:
        group.std(), plus=0.0001, least=2):
    found, names = torch.zeros_like(rewards), prompt_ids
    for name in names.unique():
        mine = names == name
        group = rewards[mine]
        if len(group) >= least:
            found[mine] = (group - centre(group)) / (spread(group) + plus)
    return found


wrong = ex.edits(made)
PROMPT_IDS = "(rewards), prompt_ids"
ex.wrong("assuming that the answers come round by round, whatever the ids are",
         lambda rewards, prompt_ids, ids=None: made(
    rewards, torch.arange(len(rewards)) % len(prompt_ids.unique())), breaks=("group", "unequal"))
wrong("starting a new group wherever the id changes", ("group", "among"),
      PROMPT_IDS,
      "(rewards), torch.cat([torch.zeros(1, dtype=torch.long), (prompt_ids[1:] != "
      "prompt_ids[:-1]).cumsum(0)])")
wrong("sorting by prompt and returning the advantages in that order", ("group", "form"),
      "found, names =",
      "order = prompt_ids.argsort(stable=True); rewards = rewards[order]; found, names =",
      PROMPT_IDS, PROMPT_IDS + "[order]")


@ex.wrong("assuming the same size for all groups", breaks="unequal", says="")
def one_size(rewards, prompt_ids):
    order, groups = prompt_ids.argsort(stable=True), len(prompt_ids.unique())
    size = len(rewards) // groups
    found = torch.zeros_like(rewards)
    found[order[:size * groups]] = made(rewards[order[:size * groups]],
                                        torch.arange(groups).repeat_interleave(size))
    return found


wrong("using the group's mean but the whole batch's standard deviation", "advantage",
      "found, names =", "whole = rewards.std(correction=int(len(rewards) > 1)); found, names =",
      "spread(group)", "whole")
ex.wrong("not dividing by the standard deviation", made, breaks=("advantage", "example"),
         spread=lambda group: torch.ones(()), plus=0.0)
ex.wrong("dividing by n instead of n - 1 in the standard deviation", made,
         breaks=("advantage", "example"), spread=lambda group: group.std(correction=0))
ex.wrong("dividing by the variance", made, breaks="advantage", spread=lambda group: group.var())
ex.wrong("adding nothing to the standard deviation", made, breaks=("equal", "advantage"), plus=0.0)
wrong("using ranks instead of rewards", "rewards",
      "found, names =", "rewards = rewards.argsort().argsort().float(); found, names =")
ex.wrong("adding 1e-8 instead of 1e-4", made, breaks="advantage", plus=1e-8)
ex.wrong("adding 1e-2 instead of 1e-4", made, breaks=("advantage", "example"), plus=1e-2)
ex.wrong("adding 1e-4 to the variance instead of the standard deviation",
         made, breaks="advantage", plus=0.0,
         spread=lambda group: (group.var() + 1e-4).sqrt())
ex.wrong("returning NaN for an answer alone in its group", made, breaks="alone", least=1,
         spread=lambda group: ((group - group.mean()).square().sum() / (len(group) - 1)).sqrt())
ex.wrong("returning the reward itself for an answer alone in its group", made, breaks="alone",
         least=1,
         centre=lambda group: group.mean() * (len(group) > 1),
         spread=lambda group: group.std() if len(group) > 1 else torch.ones(()))
ex.wrong("leaving the advantages at 0 in groups of two answers",
         made, breaks=("advantage", "example"), least=3)
ex.wrong("not subtracting the mean", made, breaks=("advantage", "example"),
         centre=lambda group: torch.zeros(()))
ex.wrong("subtracting the median instead of the mean", made, breaks=("advantage", "example"),
         centre=lambda group: group.median())
ex.wrong("subtracting the group's best reward instead of the mean",
         made, breaks=("advantage", "example"),
         centre=lambda group: group.amax())
ex.wrong("subtracting the mean of the other answers", made, breaks=("advantage", "example"),
         centre=lambda group: (group.sum() - group) / (len(group) - 1))
wrong("flipping the sign of the advantages",
      ("advantage", "example"), "return found", "out = -found; return out")
wrong("clipping the advantages to the range from -1 to 1", "advantage",
      "return found", "out = found.clamp(-1, 1); return out")
wrong("clipping the advantages to the range from -5 to 5", "advantage",
      "return found", "out = found.clamp(-5, 5); return out")
ex.wrong("computing the variance as the mean of squares minus the squared mean", made,
         breaks="advantage", spread=lambda group: ((
             group.square().mean() - group.mean().square()).clamp(min=0)
             * len(group) / (len(group) - 1)).sqrt())
ex.wrong("returning 0 for rewards that torch.allclose considers equal", made, breaks="advantage",
         centre=lambda group: group if torch.allclose(group, group[:1]) else group.mean())
ex.wrong("returning one number per group", lambda rewards, prompt_ids: torch.stack(
    [rewards[prompt_ids == name].mean() for name in prompt_ids.unique()]), breaks="form",
    says="shape of the")
wrong("returning a matrix with one row", "form",
      "return found", "return found[None]", says="shape of the")
wrong("returning float64",
      "form", "return found", "out = found.double(); return out", says="dtype of the")
wrong("returning a list",
      "form", "return found", "out = found.tolist(); return out", says="type of the")
ex.wrong("assuming that the ids are 0, 1, 2 and so on", lambda rewards, prompt_ids: sum(
    torch.where(prompt_ids == name, made(rewards, prompt_ids), 0.0)
    for name in range(len(prompt_ids.unique()))) + torch.zeros_like(rewards), says="advantages",
    breaks=("ids", "among"))
wrong("treating ids below 0 as padding", "ids", "return found", "return found * (prompt_ids >= 0)")
wrong("converting the ids to int32", "ids", PROMPT_IDS, PROMPT_IDS + ".to(torch.int32)")
wrong("converting the ids to float32, which rounds large ids",
      "ids", PROMPT_IDS, PROMPT_IDS + ".float()")
wrong("converting the ids to float64, which rounds very large ids",
      "ids", PROMPT_IDS, PROMPT_IDS + ".double()")
wrong("writing the advantages into rewards",
      "left", "return found", "rewards.copy_(found); return rewards")
wrong("sorting rewards in place", "left",
      "return found", "rewards.copy_(rewards.sort(descending=True).values + 1.0); return found")
