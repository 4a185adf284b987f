"""Stage 7's explorers against closed forms: receptive fields, output sizes, forgetting."""

import numpy as np
import pytest
import torch

from dlsys_helpers.explorers.conv_sizes import conv_sizes, formula, windows
from dlsys_helpers.explorers.forgetting import OPTIMIZERS, adapt, linear, pretrained, tasks
from dlsys_helpers.explorers.receptive_field import SIDE, WEIGHTS, footprint

EQUAL, *_ = WEIGHTS


@pytest.fixture(autouse=True, scope="module")
def nothing_cached():
    """What is computed here, with the tests' own threads, must not reach another file."""
    yield
    for cached in (footprint, adapt, pretrained, tasks):
        cached.cache_clear()


# ---- receptive field --------------------------------------------------------------------------
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


# ---- forgetting -------------------------------------------------------------------------------
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
