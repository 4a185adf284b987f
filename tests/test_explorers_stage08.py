"""Stage 8's explorers against closed forms: masks and weights, softmax against d."""

import math

import numpy as np
import pytest
import torch

from dlsys_helpers.explorers.attention_mask import (
    CORNERS,
    MASKS,
    NOT_ASKED,
    TOKENS,
    attention_mask,
    queries_and_keys,
)
from dlsys_helpers.explorers.softmax_scale import DIVISORS, SIZES, softmax_scale


# ---- attention mask ---------------------------------------------------------------------------
def may_look(mask, row, key, asked, pads, corner):
    """Whether the row-th asked token may look at a key, pair by pair, as the names say."""
    last = row + (TOKENS - asked if corner == "lower right" else 0)
    before, token = key <= last, key >= pads
    return {"none": True, "causal": before, "causal, MHA's": not before, "padding": token,
            "padding, MHA's": not token, "causal and padding": before and token}[mask]


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("mask", MASKS)
def test_the_mask_is_what_its_name_says_for_each_pair(mask, corner):
    for asked in (1, 4, 8):
        arrays, _ = attention_mask(mask=mask, corner=corner, asked=asked, pads=2)
        expected = [[may_look(mask, row, key, asked, 2, corner) for key in range(TOKENS)]
                    for row in range(asked)]
        np.testing.assert_array_equal(arrays["allowed"][TOKENS - asked:], expected)
        assert (arrays["allowed"][:TOKENS - asked] == NOT_ASKED).all()


@pytest.mark.parametrize("mask", MASKS)
def test_the_weights_are_a_softmax_over_the_keys_allowed(mask):
    arrays, _ = attention_mask(mask=mask, asked=8, pads=2)
    q, k = (t.numpy() for t in queries_and_keys())
    powers = np.exp(q @ k.T / math.sqrt(q.shape[1])) * arrays["allowed"]
    sums = powers.sum(1, keepdims=True)
    expected = np.divide(powers, sums, out=np.zeros_like(powers), where=sums > 0)
    np.testing.assert_allclose(arrays["weights"], expected, atol=1e-6)


def test_a_row_without_a_key_is_said_and_gives_zeros():
    arrays, sentence = attention_mask(mask="causal and padding", asked=8, pads=2)
    assert (arrays["weights"].sum(1) == 0).sum() == 2
    assert "2 of the rows may look at nothing" in sentence
    assert "Each row's weights sum to 1" in attention_mask(mask="causal", pads=2)[1]


def test_the_newest_token_sees_one_key_from_the_upper_left_and_all_from_the_lower_right():
    for corner, keys in zip(CORNERS, (TOKENS, 1), strict=True):
        sentence = attention_mask(mask="causal", corner=corner, asked=1, pads=0)[1]
        assert f"the newest token may look at {keys} keys" in sentence
        assert "0 % goes to the future and 0 % to pads" in sentence


def test_the_mask_of_the_other_api_sends_all_weight_where_none_belongs():
    assert "100 % goes to the future" in attention_mask(mask="causal, MHA's", pads=0)[1]
    assert "100 % to pads" in attention_mask(mask="padding, MHA's", pads=2)[1]
    future = np.triu(attention_mask(mask="none", pads=0)[0]["weights"], 1).sum() / TOKENS
    assert f"{100 * future:.0f} % goes to the future" in attention_mask(mask="none", pads=0)[1]


def test_a_triangle_in_the_other_corner_is_seen(monkeypatch):
    monkeypatch.setitem(MASKS, "causal", lambda asked, pads, corner: torch.ones(
        asked, TOKENS, dtype=torch.bool).tril())
    with pytest.raises(AssertionError):
        test_the_mask_is_what_its_name_says_for_each_pair("causal", "lower right")


# ---- softmax against d ------------------------------------------------------------------------
def said(sentence, before, after):
    """The number between two pieces of a sentence."""
    return float(sentence.split(before)[1].split(after)[0])


@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("divisor", DIVISORS)
def test_scores_of_unit_normals_have_variance_d(divisor, d):
    sentence = softmax_scale(divisor=divisor, d=d, keys=128)[1]
    expected = math.sqrt(d) / {"nothing": 1, "root of d": math.sqrt(d), "d": d}[divisor]
    assert said(sentence, "deviation is ", ". Over") == pytest.approx(expected, rel=0.06, abs=0.006)


def test_divided_by_the_root_the_entropy_hardly_depends_on_d():
    curves = softmax_scale(keys=128)[0]
    assert np.ptp(curves["root"][2:]) < 0.1
    assert curves["nothing"][0] - curves["nothing"][-1] > 3
    assert curves["by_d"][-1] == pytest.approx(math.log(128), abs=0.01)


def test_for_many_keys_the_entropy_is_that_of_a_normal_exponent():
    """Weights exp(s) / sum, s normal of variance 1: the entropy tends to ln n - 1 / 2."""
    root = softmax_scale(keys=128)[0]["root"]
    assert root[-1] == pytest.approx(math.log(128) - 0.5, abs=0.05)


def test_weights_fall_by_rank_and_the_sentence_says_the_first():
    for divisor in DIVISORS:
        arrays, sentence = softmax_scale(divisor=divisor, d=256, keys=32)
        assert (np.diff(arrays["mean_weight"]) <= 0).all()
        assert said(sentence, "weight is ", " on average") == pytest.approx(
            arrays["mean_weight"][0], abs=0.006)
        assert arrays["even"][0] == pytest.approx(1 / 32)
        assert arrays["here"] == [8]


def test_unscaled_softmax_of_a_large_d_is_almost_a_choice_and_passes_no_gradient():
    one, root = (softmax_scale(divisor=by, d=1024)[1] for by in ("nothing", "root of d"))
    assert said(one, "weight is ", " on average") > 0.9
    slopes = [float(text.split("(1 - p), is ")[1].rstrip(".")) for text in (one, root)]
    assert slopes[0] < 0.2 * slopes[1]


def test_a_root_that_is_left_out_is_seen(monkeypatch):
    monkeypatch.setitem(DIVISORS, "root of d", lambda d: 1.0)
    with pytest.raises(AssertionError):
        test_divided_by_the_root_the_entropy_hardly_depends_on_d()
