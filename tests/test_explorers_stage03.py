"""Stage 3's explorers against closed forms and a backward pass written out in numpy."""

import math

import numpy as np
import pytest
import torch

from dlsys_helpers.explorers.gradient_depth import (
    CLASSES,
    FLOOR,
    ROWS,
    SKIPS,
    TOP,
    WIDTH,
    gradient_depth,
    measure,
    weights,
)
from dlsys_helpers.explorers.loss_curves import LOSSES, loss_curves, scores, value_and_slope


# ---- loss curves ------------------------------------------------------------------------------
def probabilities(right, classes, rival):
    odds = [math.exp(right), math.exp(rival), *[1.0] * (classes - 2)]
    return [o / sum(odds) for o in odds]


def twice(p):
    return math.log(sum(math.exp(v) for v in p)) - p[0]


CLOSED = {
    "softmax twice": twice,
    "squared error after softmax": lambda p: (1 - p[0]) ** 2 + sum(v * v for v in p[1:]),
    "focal, gamma 2": lambda p: -((1 - p[0]) ** 2) * math.log(p[0]),
    "label smoothing 0.1": lambda p: -0.9 * math.log(p[0]) - 0.1 * sum(map(math.log, p)) / len(p),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("classes", "rival"), [(2, 0), (10, 5), (100, 10)])
def test_the_curves_are_the_closed_forms(name, classes, rival):
    arrays, _ = loss_curves(loss=name, classes=classes, rival=rival)
    for z, plain, other in zip(arrays["right"], arrays["plain"], arrays["other"], strict=True):
        p = probabilities(z, classes, rival)
        assert plain == pytest.approx(-math.log(p[0]), rel=1e-9)
        assert other == pytest.approx(CLOSED[name](p), rel=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_the_slopes_are_finite_differences_of_the_curves(name):
    right, step = np.array([-4.0, 0.0, 3.0]), 1e-5
    _, slope = value_and_slope(LOSSES[name], right, 10, 5)
    above, _ = value_and_slope(LOSSES[name], right + step, 10, 5)
    below, _ = value_and_slope(LOSSES[name], right - step, 10, 5)
    np.testing.assert_allclose(slope, (above - below) / (2 * step), rtol=1e-6)


def test_cross_entropy_pulls_with_one_minus_the_probability():
    arrays, _ = loss_curves(classes=10, rival=5)
    expected = [probabilities(z, 10, 5)[0] - 1 for z in arrays["right"]]
    np.testing.assert_allclose(arrays["plain_slope"], expected, rtol=1e-9)


@pytest.mark.parametrize(("classes", "floor"), [(10, 1.4612), (1000, 5.9095)])
def test_softmax_twice_cannot_get_below_its_floor(classes, floor):
    assert math.log(math.e + classes - 1) - 1 == pytest.approx(floor, abs=1e-4)
    arrays, sentence = loss_curves(classes=classes)
    assert arrays["other"].min() > floor
    assert f"softmax twice gets down to {arrays['other'].min():.3f}" in sentence


def test_scores_hold_the_right_class_a_rival_and_zeros():
    assert scores([1.0, 2.0], 4, 5).tolist() == [[1, 5, 0, 0], [2, 5, 0, 0]]


# ---- gradient by depth ------------------------------------------------------------------------
def numpy_gradients(init, depth, skip):
    """Norms of the weight gradients of a tanh net by the chain rule, in numpy."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, WIDTH, generator=g, dtype=torch.float64).numpy()
    y = torch.randint(CLASSES, (ROWS,), generator=g).numpy()
    w = [layer.detach().numpy() for layer in weights(init, depth)]
    seen, inner = [x], []
    for layer in w[:-1]:
        inner.append(np.tanh(seen[-1] @ layer.T))
        seen.append(skip * seen[-1] + inner[-1])
    odds = np.exp(seen[-1] @ w[-1].T)
    delta = (odds / odds.sum(1, keepdims=True) - np.eye(CLASSES)[y]) / ROWS
    norms, back = [np.linalg.norm(delta.T @ seen[-1])], delta @ w[-1]
    for k in reversed(range(depth)):
        local = back * (1 - inner[k] ** 2)
        norms.insert(0, np.linalg.norm(local.T @ seen[k]))
        back = skip * back + local @ w[k]
    return norms


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("init", ["std 0.01", "Xavier"])
def test_gradients_equal_the_chain_rule_by_hand(init, skip):
    gradient, _ = measure("tanh", init, 5, skip)
    np.testing.assert_allclose(gradient, numpy_gradients(init, 5, skip), rtol=1e-9)


@pytest.mark.parametrize(("init", "factor"), [("He", 1), ("std 0.01", WIDTH * 1e-4 / 2),
                                              ("PyTorch default", 1 / 6), ("Xavier", 1 / 2)])
def test_relu_changes_the_second_moment_by_fan_in_times_variance_over_two(init, factor):
    _, size = measure("ReLU", init, 10, 0)
    assert (size[-1] / size[0]).square() ** 0.1 == pytest.approx(factor, rel=0.15)


def test_small_relu_weights_starve_every_layer_alike():
    gradient, _ = measure("ReLU", "std 0.01", 10, 0)
    assert gradient.max() < 1e-12
    assert 0.1 < gradient[0] / gradient[-1] < 10


def test_default_sigmoids_starve_the_first_layer():
    gradient, _ = measure("sigmoid", "PyTorch default", 10, 0)
    assert gradient[0] / gradient[-1] < 1e-7


def test_every_frame_lies_in_the_window_and_the_sentence_tells_the_true_number():
    for setting in gradient_depth.grid().values():
        arrays, sentence = gradient_depth(**setting)
        gradient, size = measure(*(setting[k] for k in ("activation", "init", "depth")),
                                 SKIPS[setting["layers"]])
        assert f"gradient norm {gradient[0]:.1e} in the first" in sentence
        for shown, true in ((arrays["gradient"], gradient), (arrays["size"], size)):
            assert shown.max() < TOP
            np.testing.assert_array_equal(shown, np.maximum(true.numpy(), FLOOR))
