"""Stage 8's explorers against closed forms: masks and weights, softmax against d, online softmax,
addresses of a warp, the roofline."""

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
from dlsys_helpers.explorers.online_softmax import (
    FORMS,
    KEYS,
    SCORES,
    TILE,
    TILES,
    VALUES,
    online_softmax,
    right,
    steps,
)
from dlsys_helpers.explorers.roofline import BLOCK, DEVICES, HEAD, KERNELS, WIDTH, roofline
from dlsys_helpers.explorers.softmax_scale import DIVISORS, SIZES, softmax_scale
from dlsys_helpers.explorers.warp_addresses import BLOCKS, ROW, warp_addresses, words
from dlsys_helpers.gpu import PEAKS


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


# ---- online softmax ---------------------------------------------------------------------------
@pytest.mark.parametrize("scores", SCORES)
def test_the_right_form_is_the_softmax_of_all_keys_so_far(scores):
    m, total, out = steps(SCORES[scores], "right").T
    for n in range(TILES):
        seen = SCORES[scores][:TILE * (n + 1)]
        assert m[n].item() == pytest.approx(seen.max().item(), rel=1e-6)
        log_sum = torch.logsumexp(seen, 0).item()
        assert m[n].item() + math.log(total[n]) == pytest.approx(log_sum, rel=1e-5)
        weights = (seen - log_sum).exp()
        mean = (weights * VALUES[:len(seen)]).sum().item()
        assert (out[n] / total[n]).item() == pytest.approx(mean, rel=1e-5)


def test_a_falling_row_hides_both_forgotten_rescalings():
    for form in FORMS:
        found, wanted = steps(SCORES["falling"], form), right(SCORES["falling"])
        torch.testing.assert_close(found[:, 2] / found[:, 1], wanted[:, 1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("form", "sign"), [("l not rescaled", -1), ("o not rescaled", 1)])
def test_a_rising_row_shows_them_and_from_the_second_tile_on(form, sign):
    found, wanted = steps(SCORES["rising"], form), right(SCORES["rising"])
    off = sign * (found[:, 2] / found[:, 1] - wanted[:, 1])
    assert off[0].abs() < 1e-6
    assert (off[1:] > 0.02).all()


def test_without_a_maximum_large_scores_leave_no_number_and_the_frame_stays_finite():
    arrays, sentence = online_softmax(scores="times 400", form="no maximum", tiles=TILES)
    assert "The output is no number" in sentence
    assert arrays["out"].max() == 2
    ordinary, said = online_softmax(scores="as they come", form="no maximum", tiles=TILES)
    np.testing.assert_allclose(ordinary["out"], ordinary["out_right"], rtol=1e-5)
    assert "no number" not in said


def test_the_marks_stand_at_the_last_key_of_the_last_tile_seen():
    for tiles in range(1, TILES + 1):
        arrays, sentence = online_softmax(tiles=tiles)
        assert arrays["at"] == tiles
        assert arrays["now"] == min(TILE * tiles, KEYS) - 1
        assert f"{tiles} of {TILES} tiles" in sentence
        assert f"it should be {arrays['out_right'][tiles - 1]:.3f}" in sentence


def test_a_rescaling_that_is_never_switched_off_is_seen(monkeypatch):
    monkeypatch.setitem(FORMS, "o not rescaled", FORMS["right"])
    with pytest.raises(AssertionError):
        test_a_rising_row_shows_them_and_from_the_second_tile_on("o not rescaled", 1)


# ---- warp addresses ---------------------------------------------------------------------------
@pytest.mark.parametrize(("stride", "base", "moved"), [(1, 0, 4), (1, 1, 5), (2, 0, 8),
                                                       (4, 0, 16), (8, 0, 32), (1, 4, 5)])
def test_sectors_are_those_that_the_maker_documents(stride, base, moved):
    arrays, sentence = warp_addresses(stride=stride, base=base)
    assert arrays["counts"][0] == moved == len(np.unique(arrays["sector"]))
    assert f": {moved} sectors, of which {400 / moved:.0f} % are used" in sentence


@pytest.mark.parametrize(("padding", "turns"), [(0, 32), (1, 1), (4, 4), (8, 8)])
def test_turns_down_a_column_are_the_common_divisor_of_row_and_banks(padding, turns):
    arrays, sentence = warp_addresses(block="32 down", padding=padding)
    assert arrays["counts"][2] == turns == math.gcd(ROW + padding, 32)
    assert f"take {turns} turn" in sentence


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_turns_across_are_the_common_divisor_of_stride_and_banks(stride):
    assert warp_addresses(stride=stride, base=1)[0]["counts"][2] == math.gcd(stride, 32)


@pytest.mark.parametrize("block", BLOCKS)
def test_every_thread_reads_a_word_of_its_own(block):
    arrays, _ = warp_addresses(block=block, padding=1)
    shown = arrays["bank"]
    assert np.where(shown > 0, 2.0 ** (shown - 1), 0).sum() == pytest.approx(32)
    down = 32 // BLOCKS[block]
    assert arrays["counts"][0] >= down  # rows are far apart


def test_a_padding_that_is_ignored_is_seen(monkeypatch):
    monkeypatch.setitem(words.__globals__, "words",
                        lambda block, stride, padding, base: words(block, stride, 0, base))
    with pytest.raises(AssertionError):
        test_turns_down_a_column_are_the_common_divisor_of_row_and_banks(1, 1)


# ---- roofline ---------------------------------------------------------------------------------
def test_a_large_square_product_does_a_third_of_its_side_for_each_byte():
    flops, moved = KERNELS["matrix product"](WIDTH)
    assert flops / moved == pytest.approx(WIDTH / 3)  # 2 n^3 over three matrices of 2 n^2 bytes


def test_written_out_attention_is_bound_by_its_scores_and_flash_is_not():
    written, flash = (roofline(kernel=f"attention, {how}", tokens=65536)[0]["at"][0]
                      for how in ("written out", "flash"))
    assert written == pytest.approx(HEAD / 2, rel=0.01)   # 4 n^2 D over 8 n^2 bytes
    assert flash == pytest.approx(BLOCK, rel=0.01)        # 4 n^2 D over 4 n^2 D / BLOCK
    assert decode_intensity() == pytest.approx(1, rel=0.01)


def decode_intensity():
    return roofline(kernel="decoding one token", tokens=65536)[0]["at"][0]


@pytest.mark.parametrize("device", DEVICES)
def test_the_roofs_meet_at_the_ridges_of_the_datasheet(device):
    peak = PEAKS[DEVICES[device]]
    arrays, sentence = roofline(device=device)
    rising = arrays["intensity"] < peak.ridge
    np.testing.assert_allclose(arrays["tensor"][rising],
                               arrays["intensity"][rising] * peak.memory_gbs / 1e3)
    np.testing.assert_allclose(arrays["tensor"][~rising], peak.half_tflops)
    assert arrays["plain"].max() == peak.fp32_tflops
    assert f"ridge at {peak.ridge:.0f}" in sentence


def test_the_sentence_names_what_sets_the_pace():
    assert "Its FLOPs set the pace" in roofline(kernel="matrix product", tokens=8192)[1]
    assert "Its bytes set the pace" in roofline(kernel="matrix product", tokens=16)[1]


def test_a_byte_that_is_forgotten_is_seen(monkeypatch):
    monkeypatch.setitem(KERNELS, "matrix product", lambda n: (2 * n * WIDTH**2, 2 * n * WIDTH))
    with pytest.raises(AssertionError):
        test_a_large_square_product_does_a_third_of_its_side_for_each_byte()
