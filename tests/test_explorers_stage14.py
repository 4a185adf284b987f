"""Stage 14's explorer: the closed form against a search, and the effect of a judge who errs."""

import math

import pytest
import torch

from dlsys_helpers.explorers.kl_price import (
    ANSWERS,
    BETAS,
    JUDGES,
    TRICK,
    best,
    distance,
    earns,
    judged,
    kl_price,
    table,
)

HONEST, WRONG = JUDGES


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("judge", JUDGES)
def test_the_policy_is_the_start_times_the_exponential_made_to_sum_to_one(judge, beta):
    start, told = table()[0], judged(judge)
    weights = [math.exp(float(s) + float(r) / beta) for s, r in zip(start, told, strict=True)]
    wanted = [w / sum(weights) for w in weights]
    assert best(told, beta).exp().tolist() == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("beta", [0.2, 1, 5])
@pytest.mark.parametrize("judge", JUDGES)
def test_no_other_policy_is_worth_more_and_each_falls_short_by_beta_times_its_kl(judge, beta):
    start, told = table()[0], judged(judge)
    top, g = best(told, beta), torch.Generator().manual_seed(1)

    def worth(logp):
        return float((logp.exp() * told).sum() - beta * (logp.exp() * (logp - start)).sum())

    assert worth(top) == pytest.approx(beta * float((start + told / beta).logsumexp(0)), rel=1e-9)
    for size in (0.01, 0.3, 3.0):
        other = (top + size * torch.randn(ANSWERS, generator=g, dtype=torch.float64)).log_softmax(0)
        short = beta * float((other.exp() * (other - top)).sum())
        assert worth(top) - worth(other) == pytest.approx(short, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("judge", JUDGES)
def test_a_cheaper_nat_earns_more_by_the_judge_and_goes_further(judge):
    told = judged(judge)
    policies = [best(told, beta) for beta in BETAS]
    assert [earns(p, told) for p in policies] == sorted(
        (earns(p, told) for p in policies), reverse=True)
    assert [distance(p) for p in policies] == sorted(map(distance, policies), reverse=True)
    assert distance(table()[0]) == 0


def test_the_true_reward_has_a_peak_where_the_judge_errs_and_none_where_it_is_right():
    reward = table()[1]
    true = {judge: [earns(best(judged(judge), beta), reward) for beta in BETAS] for judge in JUDGES}
    assert true[HONEST].index(max(true[HONEST])) == 0
    peak = true[WRONG].index(max(true[WRONG]))
    assert 0 < peak < len(BETAS) - 1
    assert true[WRONG][0] < earns(table()[0], reward) < true[WRONG][peak]


def test_the_judges_differ_at_the_trick_alone_which_the_start_hardly_knows():
    apart = (judged(WRONG) - judged(HONEST)).nonzero().flatten().tolist()
    start, reward = table()
    assert apart == [TRICK]
    assert reward[TRICK] < 0 < reward.max()
    assert start.argmin() == TRICK
    assert start[TRICK].exp() < 0.01


@pytest.mark.parametrize("judge", JUDGES)
def test_a_frame_shows_the_policies_and_says_what_they_earn(judge):
    frame, sentence = kl_price.compute(judge=judge, beta=0.2)
    told = judged(judge)
    policy = best(told, 0.2)
    assert torch.equal(frame["after"], policy.exp())
    assert float(frame["before"].sum()) == pytest.approx(1)
    at = BETAS.index(0.2)
    assert frame["told"][at] == pytest.approx(earns(policy, told))
    assert frame["true"][at] == pytest.approx(earns(policy, table()[1]))
    assert frame["kl"][at] == pytest.approx(distance(policy))
    for value in (frame["told"][at], frame["true"][at], frame["kl"][at]):
        assert f"{value:.2f}" in sentence
