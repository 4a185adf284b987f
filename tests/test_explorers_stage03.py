"""Stage 3's explorers against closed forms and a backward pass written out in numpy."""

import math

import numpy as np
import pytest
import torch

from dlsys_helpers.explorers.gradient_depth import CLASSES, ROWS, WIDTH, measure, weights
from dlsys_helpers.explorers.loss_curves import LOSSES, loss_curves


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
