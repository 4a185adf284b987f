"""Stage 7's explorers against closed forms: receptive fields, output sizes, forgetting."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from dlsys_helpers.explorers.conv_sizes import (
    LEFT,
    NO_OUTPUT,
    READ,
    UNREAD,
    conv_sizes,
    formula,
    listed,
    windows,
)
from dlsys_helpers.explorers.forgetting import (
    BODY_RATES,
    EVERY,
    HEAD_RATES,
    OPTIMIZERS,
    PER_CLASS,
    STEPS,
    accuracy,
    adapt,
    forgetting,
    linear,
    pretrained,
    tasks,
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
    for cached in (footprint, adapt, pretrained, tasks):
        cached.cache_clear()


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


def test_torch_refuses_where_no_window_fits():
    none = [s for s in SETTINGS if len(windows(**s)) == 0]
    assert none
    for s in none:
        conv = nn.Conv1d(1, 1, s["kernel"], s["stride"], s["padding"], s["dilation"])
        with pytest.raises(RuntimeError, match="can't be greater than actual input size"):
            conv(torch.zeros(1, 1, s["columns"]))
        arrays, sentence = conv_sizes(**s)
        assert "torch refuses" in sentence
        assert set(arrays["reads"].flat) == {NO_OUTPUT}


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
    lost = np.nonzero(arrays["times"] == 0)[0]
    assert (arrays["reads"][:size, lost] == UNREAD).all()
    assert (arrays["reads"][size:] == NO_OUTPUT).all()
    assert unread == (f"No window reads {listed(lost)}." if len(lost) else "Every column is read.")


def test_the_picture_marks_what_is_read_and_how_often():
    arrays, _ = conv_sizes(columns=7, stride=1)
    assert arrays["times"].tolist() == [1, 2, 3, 3, 3, 2, 1]
    assert set(arrays["reads"].flat) == {NO_OUTPUT, LEFT, READ}
    np.testing.assert_array_equal((arrays["reads"] == READ).sum(0), arrays["times"])


def test_a_stride_that_is_never_passed_on_is_seen(monkeypatch):
    whole = torch.nn.functional.conv1d
    monkeypatch.setattr(torch.nn.functional, "conv1d",
                        lambda *a, stride, **k: whole(*a, **k))
    with pytest.raises(AssertionError):
        test_size_and_windows_are_torch_s_and_counted_by_hand()


# ---- forgetting -------------------------------------------------------------------------------
def test_tasks_split_the_digits_by_class_and_the_new_ones_are_few():
    sizes = {name: len(y) for name, (_, y) in tasks().items()}
    assert sizes["new"] == 5 * PER_CLASS
    assert sizes["old test"] + sizes["new test"] == 497
    assert sizes["old"] > 600
    for _, y in tasks().values():
        assert sorted(y.unique().tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("head_rate", HEAD_RATES)
def test_a_body_that_stands_still_forgets_nothing(optimizer, head_rate):
    old, new = adapt(optimizer, 0, head_rate)
    assert set(old) == {accuracy(*pretrained(), "old test")}
    assert old[0] > 97
    assert new[-1] > new[0]


def test_one_step_of_gradient_descent_is_the_step_of_the_formula():
    """SGD's first step with momentum is plain; head and body each at their own rate."""
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
    """Weights of body and new head after one step of `adapt`."""
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


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_old_digits_are_the_price_of_the_body_s_rate(optimizer):
    old, new = ([adapt(optimizer, rate, 0.01)[k][-1] for rate in BODY_RATES] for k in (0, 1))
    assert old[1] > old[0] - 2  # 0.0001
    assert old[-1] < old[1] - 20  # 0.1
    assert max(new[2:]) > new[0] + 3  # a body that moves learns more


def test_frames_show_the_curves_of_the_run_and_its_neighbours():
    arrays, sentence = forgetting(body_rate=0.01, steps=30)
    old, new = adapt("Adam", 0.01, 0.01)
    assert arrays["step"].tolist() == list(range(0, 31, EVERY))
    np.testing.assert_array_equal(arrays["old"], old[:7])
    at = BODY_RATES[1:].index(0.01)
    assert (arrays["old_at"][at], arrays["new_at"][at]) == (old[6], new[6])
    assert f"come to {new[6]:.1f} %, 0 to 4 go from {old[0]:.1f} % to {old[6]:.1f} %" in sentence
    assert len(old) == max(STEPS) / EVERY + 1


def test_adapting_leaves_the_old_network_alone_and_repeats_itself():
    before = [p.clone() for part in pretrained() for p in part.parameters()]
    first = forgetting.live_frame({"body_rate": 0.1})
    adapt.cache_clear()
    torch.randn(3)
    assert forgetting.live_frame({"body_rate": 0.1}) == first
    after = [p for part in pretrained() for p in part.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_two_rates_that_are_swapped_are_seen(monkeypatch):
    real = OPTIMIZERS["Adam"]

    def swapped(groups):
        (body, head), rates = groups, [g["lr"] for g in groups][::-1]
        return real([{**body, "lr": rates[0]}, {**head, "lr": rates[1]}])
    monkeypatch.setitem(OPTIMIZERS, "Adam", swapped)
    adapt.cache_clear()
    with pytest.raises(AssertionError):
        test_a_body_that_stands_still_forgets_nothing("Adam", 0.1)
    adapt.cache_clear()
