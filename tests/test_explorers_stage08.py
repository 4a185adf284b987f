"""Stage 8's explorers against closed forms: heads, masks and weights, softmax against d, online
softmax, addresses of a warp, the roofline."""

import math

import numpy as np
import pytest
import torch

from dlsys_helpers.explorers.attention_heads import (
    HEADS,
    JOBS,
    ROW,
    RUNS,
    STEPS,
    TOKENS,
    Net,
    answers,
    attention_heads,
    rows,
    train,
)
from dlsys_helpers.explorers.attention_mask import CORNERS, MASKS, NOT_ASKED, attention_mask
from dlsys_helpers.explorers.attention_mask import TOKENS as MASKED
from dlsys_helpers.explorers.online_softmax import (
    KEYS,
    SCORES,
    TILE,
    TILES,
    VALUES,
    online_softmax,
    steps,
)
from dlsys_helpers.explorers.roofline import BLOCK, HEAD, roofline
from dlsys_helpers.explorers.softmax_scale import DIVISORS, SIZES, softmax_scale
from dlsys_helpers.explorers.warp_addresses import warp_addresses


# ---- heads ------------------------------------------------------------------------------------
@pytest.fixture
def no_run_kept():
    """Keep what we train here, with the tests' own threads, from other test files."""
    yield
    train.cache_clear()


def test_the_three_questions_are_answered_by_reading_the_row():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        several = rows(20)
    before, equal, first = (answer.tolist() for answer in answers(several))
    for n, row in enumerate(several.tolist()):
        assert sorted(row) == [0, 0, 1, 1, 2, 2, 3, 3]
        for t, letter in enumerate(row):
            assert before[n][t] == row[max(t - 1, 0)]
            assert [t, equal[n][t]] == sorted(
                (at for at in range(8) if row[at] == letter), key=lambda at: at != t)
            assert first[n][t] == row[0]


def test_the_weights_are_softmax_of_each_heads_own_queries_and_keys():
    """MultiheadAttention's weights, from its projection matrices and the formula."""
    net, ids = Net(), rows(2)
    x = (net.letter(ids) + net.place.weight).detach()
    q, k, _ = (x @ net.heads.in_proj_weight.T + net.heads.in_proj_bias).detach().chunk(3, -1)
    weights = net(ids)[1].detach()
    for head in range(HEADS):
        own = slice(head * q.shape[-1] // HEADS, (head + 1) * q.shape[-1] // HEADS)
        scores = np.exp((q[..., own] @ k[..., own].mT / math.sqrt(q.shape[-1] / HEADS)).numpy())
        np.testing.assert_allclose(weights[:, head], scores / scores.sum(-1, keepdims=True),
                                   rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("no_run_kept")
def test_in_run_a_each_head_has_one_job_and_in_run_b_they_share_them():
    jobs = {run: np.stack([attention_heads(run=run, head=head)[0]["jobs"]
                           for head in range(1, HEADS + 1)]) for run in RUNS}
    assert sorted(jobs["A"].argmax(1)) == [*range(len(JOBS))]
    assert jobs["A"].max(1).min() > 90
    assert jobs["B"].max(1).min() < 50
    for run in RUNS:
        right = train(run)[STEPS[-1]][2]
        assert min(right) > 0.97
        assert max(train(run)[0][2]) < 0.5


def test_few_starts_give_each_head_one_job(monkeypatch):
    """The lesson says so; its run A is one of them."""
    ends = []
    for seed in range(6):
        monkeypatch.setitem(RUNS, "tried", seed)
        jobs = train.__wrapped__("tried")[STEPS[-1]][1]
        ends.append(len({*jobs.argmax(1).tolist()}) == HEADS and jobs.max(1).values.min() > 0.7)
    assert ends[RUNS["A"]]
    assert not ends[RUNS["B"]]
    assert sum(ends) < len(ends) / 2


@pytest.mark.usefixtures("no_run_kept")
def test_a_query_is_one_row_of_its_heads_weights():
    for at, query in enumerate(TOKENS):
        arrays, sentence = attention_heads(query=query, head=2, steps=100)
        np.testing.assert_allclose(arrays["weights"].sum(1), 1, atol=1e-6)
        np.testing.assert_allclose(arrays["given"], 100 * arrays["weights"][at], atol=0.0501)
        most = int(arrays["given"].argmax())
        assert f"to the key {most} {ROW[most]}" in sentence


# ---- attention mask ---------------------------------------------------------------------------
def may_look(mask, row, key, asked, pads, corner):
    """Whether query token `row` may look at a key, pair by pair, as the mask's name says."""
    last = row + (MASKED - asked if corner == "lower right" else 0)
    before, token = key <= last, key >= pads
    return {"none": True, "causal": before, "causal, MHA's": not before, "padding": token,
            "padding, MHA's": not token, "causal and padding": before and token}[mask]


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("mask", MASKS)
def test_the_mask_is_what_its_name_says_for_each_pair(mask, corner):
    for asked in (1, 4, 8):
        arrays, _ = attention_mask(mask=mask, corner=corner, asked=asked, pads=2)
        expected = [[may_look(mask, row, key, asked, 2, corner) for key in range(MASKED)]
                    for row in range(asked)]
        np.testing.assert_array_equal(arrays["allowed"][MASKED - asked:], expected)
        assert (arrays["allowed"][:MASKED - asked] == NOT_ASKED).all()


# ---- softmax against d ------------------------------------------------------------------------
def number_between(sentence, before, after):
    """The number between two pieces of a sentence."""
    return float(sentence.split(before)[1].split(after)[0])


@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("divisor", DIVISORS)
def test_scores_of_unit_normals_have_variance_d(divisor, d):
    sentence = softmax_scale(divisor=divisor, d=d, keys=128)[1]
    expected = math.sqrt(d) / {"nothing": 1, "root of d": math.sqrt(d), "d": d}[divisor]
    deviation = number_between(sentence, "deviation is ", ". Over")
    assert deviation == pytest.approx(expected, rel=0.06, abs=0.006)


# ---- online softmax ---------------------------------------------------------------------------
@pytest.mark.parametrize("scores", SCORES)
def test_the_right_form_is_the_softmax_of_all_keys_so_far(scores):
    m, in_total, in_out = steps(SCORES[scores], "right")
    total, out = in_total.sum(1), in_out @ VALUES.float()
    for n in range(TILES):
        seen = SCORES[scores][:TILE * (n + 1)]
        assert m[n].item() == pytest.approx(seen.max().item(), rel=1e-6)
        log_sum = torch.logsumexp(seen, 0).item()
        assert m[n].item() + math.log(total[n]) == pytest.approx(log_sum, rel=1e-5)
        weights = (seen - log_sum).exp()
        mean = (weights * VALUES[:len(seen)]).sum().item()
        assert (out[n] / total[n]).item() == pytest.approx(mean, rel=1e-5)


def test_only_what_the_form_leaves_out_keeps_its_weight_when_the_top_moves():
    tops, in_total, in_out = steps(SCORES["rising"], "out not rescaled")
    old = slice(0, TILE)
    factor = (tops[0] - tops[1]).exp()
    assert factor < 0.9
    assert in_total[1, old] == pytest.approx(factor * in_total[0, old])
    assert torch.equal(in_out[1, old], in_out[0, old])


@pytest.mark.parametrize("tiles", [1, 3, TILES])
def test_no_key_is_drawn_before_its_tile_comes(tiles):
    found, text = online_softmax(tiles=tiles)
    seen = min(TILE * tiles, KEYS)
    for name in ("score", "in_total", "in_out"):
        assert (found[name] != 0).tolist() == [True] * seen + [False] * (KEYS - seen), name
    assert (found["before"] != 0).sum() == (0 if tiles == 1 else TILE * (tiles - 1))
    assert found["tile"].tolist() == [TILE * (tiles - 1) - 0.5, seen - 0.5]
    assert (found["out"] != 0).sum() == tiles
    assert text.startswith(f"Tile {tiles} of {TILES}")


# ---- warp addresses ---------------------------------------------------------------------------
@pytest.mark.parametrize(("stride", "base", "moved"), [(1, 0, 4), (1, 1, 5), (2, 0, 8),
                                                       (4, 0, 16), (8, 0, 32), (1, 4, 5)])
def test_sectors_are_those_that_the_maker_documents(stride, base, moved):
    arrays, sentence = warp_addresses(stride=stride, base=base)
    assert arrays["counts"][0] == moved == len(np.unique(arrays["sector"]))
    assert f": {moved} sectors, of which {400 / moved:.0f} % are used" in sentence


# ---- roofline ---------------------------------------------------------------------------------
def test_written_out_attention_is_bound_by_its_scores_and_flash_is_not():
    written, flash = (roofline(kernel=f"attention, {how}", tokens=65536)[0]["at"][0]
                      for how in ("written out", "flash"))
    assert written == pytest.approx(HEAD / 2, rel=0.01)   # 4 n^2 D over 8 n^2 bytes
    assert flash == pytest.approx(BLOCK, rel=0.01)        # 4 n^2 D over 4 n^2 D / BLOCK
    assert decode_intensity() == pytest.approx(1, rel=0.01)


def decode_intensity():
    return roofline(kernel="decoding one token", tokens=65536)[0]["at"][0]
