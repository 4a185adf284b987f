"""Stage 13's explorers: simulated servers by invariants, speculation by drawing samples."""

import itertools

import pytest
import torch

from dlsys_helpers.explorers.scheduler import (
    LONG,
    OUT,
    READ,
    REQUESTS,
    RULES,
    STEP,
    TOKEN,
    WAITS,
    WRITES,
    batches,
    continuous,
    run,
    workload,
)
from dlsys_helpers.explorers.speculation import MIXES, TARGET, draft, spoken
from dlsys_helpers.explorers.speculation import RULES as SPEAKS

WIDE = 40_000


def served(rule, pause=0.4, room=WIDE):
    jobs = workload(pause)
    piece = RULES[rule]
    end = batches(jobs) if piece == "static" else continuous(jobs, piece, room)
    return jobs, end


@pytest.mark.parametrize("room", [WIDE, 7000])
@pytest.mark.parametrize("rule", RULES)
def test_each_request_gets_its_tokens_in_order_and_none_before_it_came(rule, room):
    jobs, end = served(rule, room=room)
    assert len(jobs) == REQUESTS
    for job in jobs:
        assert len(job.times) == job.written == job.wanted
        assert job.at < job.times[0]
        assert all(a < b for a, b in itertools.pairwise(job.times))
        assert job.times[-1] <= end


@pytest.mark.parametrize("rule", RULES)
def test_a_server_is_busy_with_one_step_at_a_time_and_no_step_costs_less_than_its_tokens(rule):
    jobs, _ = served(rule)
    steps = {}
    for job in jobs:
        for start, end, _state in job.spans:
            steps.setdefault((start, end), []).append(job)
    ordered = sorted(steps)
    for (_, end), (start, _) in itertools.pairwise(ordered):
        assert end <= start + 1e-9
    for (start, end), who in steps.items():
        assert end - start >= STEP + TOKEN * len(who) - 1e-9


def test_a_request_alone_waits_for_its_own_prompt_and_then_a_step_a_token():
    job, = (one for one in workload(0.7)[:1])
    continuous([job], None, WIDE)
    assert job.times[0] - job.at == pytest.approx(STEP + TOKEN * job.prompt)
    waits = {round(b - a, 9) for a, b in itertools.pairwise(job.times)}
    assert waits == {round(STEP + TOKEN, 9)}


def test_who_has_its_first_token_writes_one_at_each_later_step_and_reads_no_more():
    jobs, _ = served("continuous, prefill first")
    for job in jobs:
        reads = [end for _, end, state in job.spans if state == READ]
        writes = [end for _, end, state in job.spans if state == WRITES]
        assert max(reads) == job.times[0]
        assert writes == job.times[1:]


def test_prompts_that_are_read_whole_have_the_step_to_themselves():
    jobs, _ = served("continuous, prefill first")
    reads, writes = ({span[:2] for job in jobs for span in job.spans if span[2] == state}
                     for state in (READ, WRITES))
    assert reads
    assert writes
    assert not reads & writes


def test_a_long_prompt_stops_all_who_write_unless_it_is_read_in_pieces():
    whole, pieces = (run(rule, 0.4, WIDE)[1] for rule in
                     ("continuous, prefill first", "pieces of 512"))
    assert whole["worst"] >= TOKEN * LONG
    assert pieces["worst"] < 0.12
    assert pieces["p99"] > whole["p99"]      # the p99 rises although the stall goes away
    assert pieces["first"] > whole["first"]


def test_too_little_memory_throws_requests_out_and_they_wait_again():
    lanes, facts = run("continuous, prefill first", 0.3, 7000)
    assert facts["thrown"] > 0
    assert (lanes == OUT).any()
    assert (lanes == WAITS).any()
    assert run("continuous, prefill first", 0.3, WIDE)[1]["thrown"] == 0


# ---- speculation

def drawn(rule, p, q, n, g):
    """The (tokens, kept) of n drafts, drawn by the rule as the text states it."""
    rows = torch.arange(n)
    x = torch.multinomial(q, n, replacement=True, generator=g)
    u = torch.rand(n, generator=g, dtype=torch.float64)
    mine = torch.multinomial(p, n, replacement=True, generator=g)
    again = torch.multinomial(p, n, replacement=True, generator=g)
    if rule.startswith("likeliest"):
        x = torch.full((n,), int(q.argmax()))
    if rule.endswith("certain"):
        q = torch.nn.functional.one_hot(q.argmax(), len(q)).double()
    rest = (p - q).clamp(min=0)
    other = torch.multinomial(rest, n, replacement=True, generator=g)
    if "equals a draw" in rule:
        kept = x == mine
        return torch.where(kept, x, mine if rule.endswith("that draw") else again), kept
    kept = p[x] >= q[x] if "at least" in rule else u < p[x] / q[x]
    assert rows.shape == kept.shape
    return torch.where(kept, x, mine if "from the target" in rule else other), kept


@pytest.mark.parametrize("rule", SPEAKS)
def test_what_a_rule_writes_is_what_its_words_draw(rule):
    g = torch.Generator().manual_seed(0)
    tokens, kept = drawn(rule, TARGET, draft(0.4), 200_000, g)
    written, share, _ = spoken(rule, 0.4, 1)
    comes = torch.bincount(tokens, minlength=len(TARGET)) / len(tokens)
    after = (comes + share * TARGET) / (1 + share)      # a kept draft adds a token of the target
    assert float(kept.double().mean()) == pytest.approx(share, abs=0.006)
    assert torch.allclose(after.double(), written, atol=0.006)


def test_three_rules_are_the_target_and_four_are_not():
    exact = {rule for rule in SPEAKS if max(
        float((spoken(rule, mix, 4)[0] - TARGET).abs().sum()) for mix in MIXES) < 1e-9}
    assert exact == {"right", "likeliest draft, q taken as certain",
                     "keep what equals a draw of the target, else that draw"}


def test_a_wrong_rule_may_keep_more_than_the_right_one():
    shares = {rule: spoken(rule, 0.4, 4)[1] for rule in SPEAKS}
    assert shares["likeliest draft, q taken as it was"] > shares["right"]
    assert shares["a refusal draws from the target"] == pytest.approx(shares["right"])


@pytest.mark.parametrize("k", [1, 4, 8])
def test_tokens_a_call_are_the_kept_ones_and_one_more(k):
    _, share, tokens = spoken("right", 0.4, k)
    by_count = sum(share**n * (1 - share) * (n + 1) for n in range(k)) + share**k * (k + 1)
    assert tokens == pytest.approx(by_count)
