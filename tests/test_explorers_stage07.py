"""Stage 7's explorers against closed forms: receptive fields, output sizes, a sliding kernel,
forgetting.
"""

import numpy as np
import pytest
import torch
from scipy.signal import correlate2d

from dlsys_helpers.explorers.conv_sizes import conv_sizes, formula, windows
from dlsys_helpers.explorers.forgetting import OPTIMIZERS, adapt, linear, pretrained, tasks
from dlsys_helpers.explorers.receptive_field import SIDE, WEIGHTS, footprint
from dlsys_helpers.explorers.sliding_kernel import (
    KERNELS,
    NOT_YET,
    PLACES,
    REACH,
    SHIFTS,
    TINT,
    map_of,
    picture,
    sliding_kernel,
)

EQUAL, *_ = WEIGHTS


@pytest.fixture(autouse=True, scope="module")
def nothing_cached():
    """Keep what we compute here, with the tests' own threads, from other test files."""
    yield
    for cached in (footprint, adapt, pretrained, tasks):
        cached.cache_clear()


# ---- receptive field --------------------------------------------------------------------------
def powers(kernel, dilation, depth):
    """The number of paths from each column to the middle: a row of ones, convolved with itself."""
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


# ---- output sizes -----------------------------------------------------------------------------
SETTINGS = list(conv_sizes.grid().values())


def test_size_and_windows_are_torch_s_and_counted_by_hand():
    for s in SETTINGS:
        columns, kernel, stride, padding, dilation = s.values()
        starts = range(-padding, columns + padding - dilation * (kernel - 1), stride)
        by_hand = [[float(c in range(start, start + dilation * kernel, dilation))
                    for c in range(columns)] for start in starts]
        reads = windows(**s)
        assert reads.tolist() == by_hand
        assert len(reads) == formula(**s)[0]


# ---- a sliding kernel -------------------------------------------------------------------------
def value_of(sentence):
    """Evaluate the written sum; return it with the output that follows it."""
    terms, out = sentence.partition(", and so")[0].replace("\N{MINUS SIGN}", "-").split(" = ")
    products = [term.split(" \N{MULTIPLICATION SIGN} ") for term in terms.split(" + ")]
    return sum(float(pixel) * float(weight.strip("()")) for pixel, weight in products), float(out)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_sum_of_the_products_is_what_the_convolution_gives_at_each_place(kernel, shift):
    """SciPy slides the same kernel; the explorer fills the map in reading order."""
    whole = correlate2d(picture(shift), KERNELS[kernel], mode="valid")
    assert whole.shape == (PLACES, PLACES)
    assert np.abs(whole).max() <= REACH
    for row in range(PLACES):
        for column in range(PLACES):
            arrays, sentence = sliding_kernel(kernel=kernel, shift=shift, row=row, column=column)
            window = picture(shift)[row:row + 3, column:column + 3]
            np.testing.assert_array_equal(arrays["seen"], window.flatten())
            np.testing.assert_allclose(arrays["product"].sum(), whole[row, column], atol=1e-12)
            tinted = arrays["pixels"] - picture(shift).numpy() == TINT
            assert np.argwhere(tinted).tolist() == [
                [row + down, column + right] for down in range(3) for right in range(3)]
            assert value_of(sentence) == pytest.approx((whole[row, column],) * 2, abs=6e-4)
            filled = (arrays["so_far"] != NOT_YET).ravel()
            assert filled.tolist() == [n <= row * PLACES + column for n in range(PLACES**2)]
            np.testing.assert_allclose(arrays["so_far"].ravel()[filled], whole.ravel()[filled],
                                       atol=1e-12)
            assert ("The map is complete" in sentence) == (row == column == PLACES - 1)


def test_a_shift_of_the_picture_shifts_the_map_and_loses_no_ink():
    for kernel in KERNELS:
        still = map_of(kernel, "as it is").numpy()
        for shift, (down, right) in SHIFTS.items():
            moved = map_of(kernel, shift).numpy()
            assert picture(shift).sum() == picture("as it is").sum()
            np.testing.assert_array_equal(moved[down:, right:],
                                          still[:PLACES - down, :PLACES - right])
            text = sliding_kernel(kernel=kernel, shift=shift)[1]
            assert (", by 0 at most." in text) == (shift != "as it is")


def test_a_map_that_does_not_follow_the_shift_is_told_of(monkeypatch):
    monkeypatch.setattr("dlsys_helpers.explorers.sliding_kernel.map_of",
                        lambda kernel, shift: map_of(kernel, "as it is"))
    assert ", by 0 at most." not in sliding_kernel(shift="one pixel right")[1]


# ---- forgetting -------------------------------------------------------------------------------
def test_one_step_of_gradient_descent_is_the_step_of_the_formula():
    """SGD's first step with momentum is plain SGD; head and body have their own rates."""
    body, head, x, y = *pretrained(), *tasks()["new"]
    new_head = linear(48, 5, 3)
    weights = [*body.parameters(), *new_head.parameters()]
    loss = torch.nn.functional.cross_entropy(new_head(body(x)), y)
    grads = torch.autograd.grad(loss, weights)
    rates = [0.1] * len(list(body.parameters())) + [0.001] * 2
    moved = [w - lr * g for w, lr, g in zip(weights, rates, grads, strict=True)]
    seen = stepped("SGD + momentum", 0.1, 0.001)
    for expected, got in zip(moved, seen, strict=True):
        torch.testing.assert_close(got, expected)
    assert head.weight.shape == (5, 48)


def stepped(optimizer, body_rate, head_rate):
    """The weights of body and new head after one step of `adapt`."""
    caught = []
    real = OPTIMIZERS[optimizer]

    def catching(groups):
        opt = real(groups)
        opt.register_step_post_hook(lambda o, *_: caught.append(
            [p.detach().clone() for group in o.param_groups for p in group["params"]]))
        return opt
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OPTIMIZERS, optimizer, catching)
        adapt.__wrapped__(optimizer, body_rate, head_rate)
    return caught[0]
