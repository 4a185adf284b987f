"""Stage 7's explorers against closed forms: receptive fields, output sizes, forgetting."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from dlsys_helpers.explorers.conv_sizes import (
    NOTHING,
    READ,
    UNREAD,
    conv_sizes,
    formula,
    listed,
    windows,
)
from dlsys_helpers.explorers.receptive_field import (
    SIDE,
    WEIGHTS,
    central,
    extent,
    footprint,
    receptive_field,
)
from dlsys_helpers.explorers.receptive_field import formula as field

EQUAL, RANDOM = WEIGHTS


@pytest.fixture(autouse=True, scope="module")
def nothing_cached():
    """What is computed here, with the tests' own threads, must not reach another file."""
    yield
    footprint.cache_clear()


# ---- receptive field --------------------------------------------------------------------------
def test_the_formula_gives_the_fields_that_are_known():
    assert field(3, 1, 1, 5) == [1, 3, 5, 7, 9, 11]
    assert field(3, 2, 1, 4) == [1, 3, 7, 15, 31]  # 2 ** (depth + 1) - 1
    assert field(3, 1, 2, 3) == [1, 5, 9, 13]
    assert field(1, 2, 3, 4) == [1] * 5


SHAPES = [*itertools.product((3, 5), (1, 2), (1, 2), (1, 3)), (1, 2, 1, 4), (7, 1, 3, 2)]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("kernel", "stride", "dilation", "depth"), SHAPES)
def test_the_gradient_reaches_as_far_as_the_formula_says(kernel, stride, dilation, depth, weights):
    reach = extent(footprint(kernel, stride, dilation, depth, weights))
    assert reach == min(field(kernel, stride, dilation, depth)[-1], SIDE)


def powers(kernel, dilation, depth):
    """How many ways lead from each column to the middle: a row of ones, convolved with itself."""
    one, row = np.zeros(dilation * (kernel - 1) + 1), np.ones(1)
    one[::dilation] = 1
    for _ in range(depth):
        row = np.convolve(row, one)
    return row


@pytest.mark.parametrize(("kernel", "dilation", "depth"), [(3, 1, 1), (3, 1, 5), (5, 2, 3)])
def test_with_equal_weights_the_footprint_counts_the_ways(kernel, dilation, depth):
    row = powers(kernel, dilation, depth)
    row = np.pad(row, (SIDE - len(row)) // 2)
    expected = np.outer(row, row) / row.max() ** 2
    np.testing.assert_allclose(footprint(kernel, 1, dilation, depth, EQUAL), expected, rtol=1e-9)


def test_half_of_the_gradient_lies_close_to_the_middle():
    grad = footprint(3, 1, 1, 5, EQUAL)
    # Two sums of five throws from -1, 0, 1; their deviation is sqrt(10 / 3) = 1.8.
    row = powers(3, 1, 5) / 3**5
    assert row[4:7].sum() ** 2 < 0.5 <= row[3:8].sum() ** 2
    assert central(grad) == 5
    assert "Half of it lies in the central 5 \N{MULTIPLICATION SIGN} 5 pixels" in receptive_field(
        depth=5, weights=EQUAL)[1]


def test_a_footprint_is_centred_and_its_largest_value_is_one():
    for stride, depth in ((1, 3), (2, 3), (2, 5)):
        grad = footprint(3, stride, 1, depth, EQUAL)
        torch.testing.assert_close(grad, grad.flip(0, 1))
        assert grad.max() == 1


def test_a_field_larger_than_the_image_is_said_and_so_are_holes():
    arrays, sentence = receptive_field(kernel=5, stride=2, depth=5)
    assert arrays["formula"][-1] == 125
    assert arrays["measured"][-1] == SIDE
    assert f"the formula gives 125 pixels, the gradient reaches {SIDE}, cut off" in sentence
    assert "never reads" not in receptive_field(dilation=1)[1]
    for depth in (1, 3):
        assert "never reads" in receptive_field(dilation=2, depth=depth)[1]


def test_the_curves_hold_the_field_after_each_layer():
    arrays, _ = receptive_field(depth=5)
    assert arrays["formula"].tolist() == arrays["measured"].tolist() == [1, 3, 5, 7, 9, 11]
    np.testing.assert_array_equal(arrays["grad"], footprint(3, 1, 1, 5, RANDOM))


def test_a_dilation_that_is_never_passed_on_is_seen(monkeypatch):
    whole = nn.Conv2d
    monkeypatch.setattr(nn, "Conv2d", lambda *a, dilation, padding, **k: whole(
        *a, padding=padding // dilation, **k))
    footprint.cache_clear()
    with pytest.raises(AssertionError):
        test_the_gradient_reaches_as_far_as_the_formula_says(3, 1, 2, 3, EQUAL)
    footprint.cache_clear()


# ---- output sizes -----------------------------------------------------------------------------
EVERY = list(conv_sizes.grid().values())


def test_size_and_windows_are_torch_s_and_counted_by_hand():
    for s in EVERY:
        columns, kernel, stride, padding, dilation = s.values()
        starts = range(-padding, columns + padding - dilation * (kernel - 1), stride)
        by_hand = [[float(c in range(start, start + dilation * kernel, dilation))
                    for c in range(columns)] for start in starts]
        reads = windows(**s)
        assert reads.tolist() == by_hand
        assert len(reads) == formula(**s)[0]


def test_torch_refuses_where_no_window_fits():
    none = [s for s in EVERY if len(windows(**s)) == 0]
    assert none
    for s in none:
        conv = nn.Conv1d(1, 1, s["kernel"], s["stride"], s["padding"], s["dilation"])
        with pytest.raises(RuntimeError, match="can't be greater than actual input size"):
            conv(torch.zeros(1, 1, s["columns"]))
        arrays, sentence = conv_sizes(**s)
        assert "torch refuses" in sentence
        assert set(arrays["reads"].flat) == {UNREAD}


@pytest.mark.parametrize(("setting", "size", "unread"), [
    ((8, 3, 2, 0, 1), 3, "No window reads column 7."),      # what the floor cuts off
    ((7, 3, 2, 0, 1), 3, "Every column is read."),
    ((8, 3, 2, 1, 1), 4, "Every column is read."),
    ((8, 1, 3, 0, 1), 3, "No window reads columns 1, 2, 4, 5 and 7."),  # stride over kernel
    ((8, 2, 2, 0, 2), 3, "No window reads columns 1, 3, 5 and 7."),     # dilation and stride
])
def test_the_sentence_names_the_size_and_the_columns_nobody_reads(setting, size, unread):
    arrays, sentence = conv_sizes(**dict(zip(conv_sizes.defaults, setting, strict=True)))
    assert f"= {size}; torch gives {size}. {unread}" in sentence
    assert len(arrays["reads"]) == size
    lost = np.nonzero(arrays["times"] == 0)[0]
    assert (arrays["reads"][:, lost] == UNREAD).all()
    assert unread == (f"No window reads {listed(lost)}." if len(lost) else "Every column is read.")


def test_the_picture_marks_what_is_read_and_how_often():
    arrays, _ = conv_sizes(columns=7, stride=1)
    assert arrays["times"].tolist() == [1, 2, 3, 3, 3, 2, 1]
    assert set(arrays["reads"].flat) == {NOTHING, READ}
    np.testing.assert_array_equal((arrays["reads"] == READ).sum(0), arrays["times"])


def test_a_stride_that_is_never_passed_on_is_seen(monkeypatch):
    whole = torch.nn.functional.conv1d
    monkeypatch.setattr(torch.nn.functional, "conv1d",
                        lambda *a, stride, **k: whole(*a, **k))
    with pytest.raises(AssertionError):
        test_size_and_windows_are_torch_s_and_counted_by_hand()
