"""Stage 4's explorers against closed forms: schedules, paths of optimizers, the range test."""

import math

import numpy as np
import pytest
import torch

from dlsys_helpers.explorers.lr_range_test import LOW, STOP, sweep, train
from dlsys_helpers.explorers.optimizer_paths import GOAL, START, STEPS, Lion, path
from dlsys_helpers.explorers.schedules import PEAK, TOTAL, rates


@pytest.fixture(autouse=True)
def nothing_cached():
    """Keep what a test computes with its own threads from other tests."""
    yield
    sweep.cache_clear()
    train.cache_clear()


# ---- schedules --------------------------------------------------------------------------------
def right(schedule, warmup=0, floor=0):
    used, refused = rates(schedule, "batches", "batch", warmup, floor)
    assert refused is None
    return np.array(used) / PEAK


CLOSED = {
    "constant": lambda t: 1.0,
    "StepLR": lambda t: 0.1 ** (t // 66),
    "MultiStepLR": lambda t: 0.1 ** ((t >= 100) + (t >= 150)),
    "ExponentialLR": lambda t: 0.1 ** (t / 200),
    "LinearLR": lambda t: 1 - 0.9 * t / 200,
    "CosineAnnealingLR": lambda t: 0.1 + 0.9 * math.cos(math.pi * t / 400) ** 2,
    "warm-up, stable, decay": lambda t: 1 - 0.9 * max(0, t - 160) / 40,
    "cosine cut by max()": lambda t: max(0.1, math.cos(math.pi * t / 400) ** 2),
}


@pytest.mark.parametrize("schedule", CLOSED)
def test_a_schedule_without_warmup_has_its_closed_form(schedule):
    expected = [CLOSED[schedule](t) for t in range(TOTAL)]
    np.testing.assert_allclose(right(schedule, floor=0.1), expected, rtol=1e-9, atol=1e-9)


# ---- optimizer paths --------------------------------------------------------------------------
def test_gradient_descent_on_the_valley_has_its_closed_form():
    places, heights = path("SGD", "valley", 0.03, 1)
    t = np.arange(STEPS + 1)
    x = GOAL[0] + (START[0] - GOAL[0]) * (1 - 0.03) ** t
    y = GOAL[1] + (START[1] - GOAL[1]) * (1 - 0.03 * 25) ** t
    np.testing.assert_allclose(places, np.stack([x, y], 1), rtol=1e-9)
    np.testing.assert_allclose(heights, 0.5 * ((x - 1) ** 2 + 25 * (y - 0.5) ** 2), rtol=1e-9)


def test_lion_steps_as_the_formula_says():
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    opt, m, place = Lion([w], 0.5), 0.0, 0.0
    for g in (1.0, -0.05, -2.0, 0.01):
        w.grad = torch.tensor([g], dtype=torch.float64)
        opt.step()
        place -= 0.5 * np.sign(0.9 * m + 0.1 * g)
        m = 0.99 * m + 0.01 * g
        assert w.item() == pytest.approx(place)


# ---- range test -------------------------------------------------------------------------------
def test_a_sweep_multiplies_the_rate_and_stops_when_the_loss_runs_away():
    found, losses = sweep("SGD + momentum", 64, 100)
    assert found[0] == LOW
    np.testing.assert_allclose(np.diff(np.log(found)), math.log(1e6) / 99, rtol=1e-9)
    assert losses[-1] > STOP * min(losses[:-1])
    assert all(b <= STOP * min(losses[:k]) for k, b in enumerate(losses[1:-1], 1))
