"""Explorers of stage 8's second half, against closed forms."""

import math

import numpy as np
import pytest
import torch

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
from dlsys_helpers.explorers.warp_addresses import BLOCKS, ROW, warp_addresses, words
from dlsys_helpers.gpu import PEAKS


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
    assert arrays["bank"].sum() == 32
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
