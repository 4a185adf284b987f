"""Stage 11's explorers against closed forms: grids, what they cost, and what they flip."""

import numpy as np
import pytest
import torch

from dlsys_helpers.explorers.quantization import (
    BITS,
    CLIPS,
    GROUPS,
    OUTLIERS,
    PIXEL,
    SCHEMES,
    consequences,
    curves,
    grid,
    layer,
    quantization,
    reader,
)
from dlsys_helpers.train import accuracy

# ---- grids ------------------------------------------------------------------------------------


def test_the_reader_reads_and_an_outlier_changes_nothing_that_it_computes():
    (first, head), (plain, x) = reader(), layer(1)
    assert torch.equal(plain, first.weight)
    for outlier in OUTLIERS:
        w, seen = layer(outlier)
        assert torch.allclose(seen @ w.T, x @ plain.T)
        assert torch.allclose(w[:, PIXEL], outlier * plain[:, PIXEL])
    model = torch.nn.Sequential(first, torch.nn.ReLU(), head)
    from dlsys_helpers.data import digits
    assert accuracy(model, x, digits().y_test) > 0.93


@pytest.mark.parametrize("group", GROUPS.values())
@pytest.mark.parametrize("bits", BITS)
def test_an_affine_grid_is_the_one_of_torch(bits, group):
    w = layer(1)[0].float()
    parts, top = w.reshape(-1, group), 2 ** bits - 1
    low, high = parts.amin(1).clamp(max=0), parts.amax(1).clamp(min=0)
    scale = (high - low) / top
    # The same zero and scale as the explorer's, in double precision, so that no tie parts them.
    ours = grid(w.double(), bits, "affine", group, 1.0)[0].float()
    theirs = torch.fake_quantize_per_channel_affine(
        parts, scale, (-low / scale).round().int(), 0, 0, top).view_as(w)
    step = scale.max().item()
    assert ((ours - theirs).abs() > 1e-3 * step).float().mean() < 0.01
    assert (ours - theirs).abs().max() < 1.01 * step


@pytest.mark.parametrize("clip", [0.3, 1.0])
@pytest.mark.parametrize("bits", BITS)
def test_a_symmetric_grid_has_its_levels_on_both_sides_of_zero(bits, clip):
    w = layer(4)[0]
    rounded, endless = grid(w, bits, "symmetric", w.numel(), clip)
    top = 2 ** (bits - 1) - 1
    step = clip * w.abs().max() / top
    codes = rounded / step
    assert torch.allclose(codes, codes.round(), atol=1e-9)
    assert codes.abs().max() <= top + 1e-9
    assert (rounded - w).abs()[rounded == endless].max() <= step / 2 + 1e-12


def test_without_a_clip_nothing_is_clipped_and_rounding_is_all():
    rounding, clipping, weights, _, _ = consequences(4, "symmetric", "row", 1.0, 1)
    assert (clipping, rounding) == (0, pytest.approx(weights))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_two_parts_of_the_error_add_up_as_squares(scheme):
    rounding, clipping, weights, _, _ = consequences(3, scheme, "matrix", 0.4, 4)
    assert rounding > 0
    assert clipping > 0
    assert weights ** 2 == pytest.approx(rounding ** 2 + clipping ** 2)


# ---- what is drawn ----------------------------------------------------------------------------

def test_the_bars_stand_on_the_curves_at_the_clip():
    found, text = quantization(bits=3, scheme="affine", shared="row", clip=0.7, outlier=4)
    here = list(found["clips"]).index(0.7)
    assert list(found["now"][:2]) == [found["weights"][here], found["output"][here]]
    assert list(found["at"]) == [0.7]
    assert f"{found['now'][2]:.1f} % of the digits flip" in text


def test_a_narrow_grid_rounds_less_and_clips_more():
    rounding, clipping, *_ = curves(4, "symmetric", "matrix", 1)
    wide, narrow = CLIPS.index(1.0), CLIPS.index(0.3)
    assert rounding[narrow] < rounding[wide]
    assert clipping[narrow] > clipping[wide] == 0


def test_the_clip_that_is_best_for_the_weights_is_not_the_best_for_the_output():
    _, _, weights, output, flips = curves(4, "symmetric", "matrix", 16)
    for_weights, for_output = (int(np.argmin(e)) for e in (weights, output))
    assert CLIPS[for_output] < 0.5 * CLIPS[for_weights]
    assert output[for_weights] > 2 * output[for_output]
    assert flips[for_weights] > flips[for_output]
    text = quantization(bits=4, scheme="symmetric", shared="matrix", clip=1.0, outlier=16)[1]
    assert text.endswith("another clip.")


def test_a_grid_of_its_own_for_each_group_is_nearer_than_one_for_all():
    whole, groups = (curves(4, "symmetric", shared, 16)[2][-1] for shared in ("matrix",
                                                                              "group of 16"))
    assert groups < whole
