"""Stage 4's explorers against closed forms: schedules, paths of optimizers, the range test."""

import math

import numpy as np
import pytest
import torch

from dlsys_helpers.explorers.lr_range_test import LOW, STOP, lr_range_test, sweep, train
from dlsys_helpers.explorers.optimizer_paths import (
    DECAY,
    EDGES,
    GOAL,
    LOSS_RANGE,
    OPTIMIZERS,
    START,
    STARTS,
    STEPS,
    SURFACES,
    Lion,
    optimizer_paths,
    path,
)
from dlsys_helpers.explorers.schedules import (
    AFTER_WARMUP,
    EPOCHS,
    OTHERS,
    PEAK,
    TOTAL,
    rates,
    schedules,
    validation_loss,
)


@pytest.fixture(autouse=True)
def nothing_cached():
    """What a test computes with its own threads must not reach another one."""
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


@pytest.mark.parametrize("schedule", [*AFTER_WARMUP, "ReduceLROnPlateau"])
def test_a_warmup_of_twenty_batches_climbs_in_a_line_to_the_peak(schedule):
    climb = right(schedule, warmup=10)[:20]
    np.testing.assert_allclose(climb, np.arange(1, 21) / 20, rtol=1e-9)


@pytest.mark.parametrize("schedule", [*AFTER_WARMUP, *OTHERS])
def test_no_rate_is_negative_or_above_the_peak(schedule):
    for numbers, called in (("batches", "batch"), ("epochs", "batch"), ("batches", "epoch")):
        used, _ = rates(schedule, numbers, called, 10, 0.1)
        assert min(used) >= 0
        assert max(used) <= PEAK * (1 + 1e-9)


def test_warm_restarts_come_back_to_the_peak_after_one_and_three_sevenths():
    used = right("CosineAnnealingWarmRestarts")
    assert [t for t in range(TOTAL) if used[t] == 1] == [0, 28, 28 + 56, 28 + 56 + 112]


def test_one_cycle_starts_at_a_25th_and_ends_at_the_floor():
    used = right("OneCycleLR", warmup=40, floor=0.1)
    assert used[0] == pytest.approx(1 / 25)
    assert used.argmax() == 0.4 * TOTAL - 1
    assert used[-1] == pytest.approx(0.1, rel=1e-3)


def test_the_widespread_warmup_wastes_the_first_batch():
    assert right("cosine cut by max()", warmup=10)[0] == 0


def test_plateau_waits_for_three_calls_without_improvement_in_either_unit():
    flat_from = TOTAL // 2
    assert validation_loss(flat_from) == validation_loss(TOTAL)
    per_batch = right("ReduceLROnPlateau", floor=0.1)
    assert (per_batch[:flat_from + 3] == 1).all()
    assert per_batch[flat_from + 3] == pytest.approx(0.1)
    per_epoch, _ = rates("ReduceLROnPlateau", "epochs", "epoch", 0, 0.1)
    drop = next(t for t in range(TOTAL) if per_epoch[t] < PEAK)
    assert drop == flat_from + 3 * TOTAL // EPOCHS


def test_mixed_units_are_said_and_shown():
    assert schedules()[1].endswith("The units agree.")
    arrays, sentence = schedules(called="epoch", warmup=0)
    assert sentence.endswith("The units differ: the schedule expects 200 calls and gets 10.")
    assert arrays["rate"].min() > 0.99 * PEAK
    waves = schedules(numbers="epochs", warmup=0, floor=0)[0]["rate"]
    assert (waves < 1e-9).sum() == TOTAL / (2 * EPOCHS)


@pytest.mark.parametrize("name", schedules.controls[0].values)
def test_a_floor_that_does_nothing_says_so(name):
    low, high = (schedules(schedule=name, floor=floor) for floor in (0, 0.1))
    still = np.array_equal(low[0]["rate"], high[0]["rate"])
    assert still is ("does nothing here" in high[1] or "has not come down" in high[1])


def test_one_cycle_refuses_the_call_after_the_last_it_expects():
    assert rates("OneCycleLR", "epochs", "batch", 10, 0.1)[1] == EPOCHS + 1
    assert f"ValueError after batch {EPOCHS + 1}" in schedules(schedule="OneCycleLR",
                                                              numbers="epochs")[1]


# ---- optimizer paths --------------------------------------------------------------------------
def test_gradient_descent_on_the_valley_has_its_closed_form():
    places, heights = path("SGD", "valley", 0.03, 1)
    t = np.arange(STEPS + 1)
    x = GOAL[0] + (START[0] - GOAL[0]) * (1 - 0.03) ** t
    y = GOAL[1] + (START[1] - GOAL[1]) * (1 - 0.03 * 25) ** t
    np.testing.assert_allclose(places, np.stack([x, y], 1), rtol=1e-9)
    np.testing.assert_allclose(heights, 0.5 * ((x - 1) ** 2 + 25 * (y - 0.5) ** 2), rtol=1e-9)


@pytest.mark.parametrize("surface", SURFACES)
def test_the_goal_is_the_minimum_of_every_surface(surface):
    w = torch.tensor(GOAL, dtype=torch.float64, requires_grad=True)
    value = SURFACES[surface](*w)
    assert value.item() == 0
    assert torch.autograd.grad(value, w)[0].abs().max() < 1e-12


def test_only_sgd_notices_the_scale_of_the_loss():
    for name in OPTIMIZERS:
        small, large = (path(name, "turned valley", 0.03, s)[0] for s in (0.1, 1.0))
        same = torch.allclose(small, large, atol=1e-3)
        assert same is not name.startswith("SGD")


def test_lion_and_adam_start_with_a_step_of_one_rate_in_each_weight():
    for name in ("Adam", "Lion"):
        places, _ = path(name, "bend", 0.1, 1)
        np.testing.assert_allclose((places[1] - places[0]).abs(), 0.1, rtol=1e-6)


def test_lion_steps_as_the_formula_says():
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    opt, m, place = Lion([w], 0.5), 0.0, 0.0
    for g in (1.0, -0.05, -2.0, 0.01):
        w.grad = torch.tensor([g], dtype=torch.float64)
        opt.step()
        place -= 0.5 * np.sign(0.9 * m + 0.1 * g)
        m = 0.99 * m + 0.01 * g
        assert w.item() == pytest.approx(place)


def test_adamw_is_pulled_towards_zero():
    adam, adamw = (path(n, "valley", 0.1, 0.1)[0][-1] for n in ("Adam", "AdamW"))
    assert DECAY > 0
    assert adamw.norm() < adam.norm()


def test_a_path_that_overflows_is_said_and_stays_finite():
    arrays, sentence = optimizer_paths(rate=0.3, scale=100)
    assert "Out of the picture: SGD, SGD + momentum." in sentence
    assert arrays["x SGD"][0] == START[0]
    assert np.isfinite(arrays["x SGD"]).all()


@pytest.mark.parametrize("start", STARTS)
def test_all_five_race_from_the_start_that_is_chosen(start):
    arrays, sentence = optimizer_paths(start=start, rate=0.1)
    assert len({arrays[name][0] for name in OPTIMIZERS}) == 1
    for name in OPTIMIZERS:
        assert (arrays[f"x {name}"][0], arrays[f"y {name}"][0]) == STARTS[start]
    lowest = min(OPTIMIZERS, key=lambda name: arrays[name][-1])
    assert f"After {STEPS} steps at rate 0.1 {lowest} is lowest" in sentence


def test_the_momentum_moves_one_way_and_no_momentum_says_so():
    by_momentum = {m: optimizer_paths(momentum=m)[0] for m in (0, 0.5, 0.9, 0.99)}
    for name in OPTIMIZERS:
        different = {arrays[f"x {name}"].tobytes() for arrays in by_momentum.values()}
        assert len(different) == (4 if name == "SGD + momentum" else 1)
    arrays, sentence = optimizer_paths(momentum=0)
    np.testing.assert_array_equal(arrays["x SGD"], arrays["x SGD + momentum"])
    assert "Without momentum the two SGDs walk the same way." in sentence
    assert "Without momentum" not in optimizer_paths()[1]


@pytest.mark.parametrize("step", [0, 5, STEPS])
def test_the_frame_follows_the_ways_and_names_those_that_it_cannot_hold(step):
    seen = set()
    for momentum, rate in ((0.9, 0.03), (0.99, 0.03), (0.99, 0.1), (0.9, 0.3)):
        arrays, sentence = optimizer_paths(momentum=momentum, rate=rate, step=step)
        edge = arrays["frame"][1]
        reach = {name: max(np.abs(arrays[f"{axis} {name}"][:step + 1]).max() for axis in "xy")
                 for name in OPTIMIZERS}
        outside = [name for name in OPTIMIZERS if reach[name] > EDGES[-1]]
        held = max(far for far in reach.values() if far <= EDGES[-1])
        assert edge == min(e for e in EDGES if e >= held)
        assert (f"Out of the picture: {', '.join(outside)}." in sentence) == bool(outside)
        seen.add(edge)
    assert len(seen) > 1 or step == 0


def test_one_that_overflows_stays_at_the_edge_in_the_race():
    arrays, _ = optimizer_paths(rate=0.3, scale=100)
    assert arrays["SGD"][-1] == LOSS_RANGE[1]
    assert len(arrays["SGD"]) == STEPS + 1


# ---- range test -------------------------------------------------------------------------------
def test_a_sweep_multiplies_the_rate_and_stops_when_the_loss_runs_away():
    found, losses = sweep("SGD + momentum", 64, 100)
    assert found[0] == LOW
    np.testing.assert_allclose(np.diff(np.log(found)), math.log(1e6) / 99, rtol=1e-9)
    assert losses[-1] > STOP * min(losses[:-1])
    assert all(b <= STOP * min(losses[:k]) for k, b in enumerate(losses[1:-1], 1))


def test_a_training_repeats_itself_bit_for_bit():
    first = lr_range_test.live_frame({"rate": 0.3})
    sweep.cache_clear()
    train.cache_clear()
    torch.randn(3)
    assert lr_range_test.live_frame({"rate": 0.3}) == first


def test_the_first_loss_is_that_of_an_untrained_reader():
    for name in ("SGD", "AdamW"):
        assert sweep(name, 64, 20)[1][0] == train(name, 64, 0.1)[0][0]
        assert 2 < sweep(name, 64, 20)[1][0] < 3


def test_a_tenth_of_the_edge_trains_and_far_beyond_it_does_not():
    found, losses = sweep("SGD + momentum", 64, 100)
    edge = found[losses.index(min(losses))]
    assert 0.1 < edge < 1
    tenth, at_edge = (train("SGD + momentum", 64, rate)[1] for rate in (0.03, 0.3))
    assert tenth > 0.92
    assert at_edge - tenth < 0.03  # what trap 04.5 claims
    assert train("SGD + momentum", 64, 0.0001)[1] < 0.3
    assert f"a tenth of it is {edge / 10:.2g}" in lr_range_test()[1]
