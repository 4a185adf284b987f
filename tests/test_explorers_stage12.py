"""Stage 12's explorers: where a NaN goes, told without running it; searches, by other formulas."""

import math
import re

import numpy as np
import pytest
import torch
from scipy.stats import norm

from dlsys_helpers.explorers.nan_hunt import (
    BACKWARD,
    BAD,
    FAULTS,
    FORWARD,
    LAYERS,
    LOSS,
    ROWS,
    chain,
    nan_hunt,
)
from dlsys_helpers.explorers.search_surface import (
    BEST,
    BUDGETS,
    CELLS,
    DICE,
    GRID,
    LENGTHS,
    LOWEST,
    METHODS,
    PROCESS,
    SEEDS,
    STARTS,
    WEIGHTS,
    WIDTH,
    guided,
    loss,
    runs,
    search_surface,
)

PLACES = range(1, LAYERS + 1)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", PLACES)
def test_a_nan_of_the_forward_pass_stays_in_its_rows_and_spoils_each_gradient(place, bad):
    found, text = nan_hunt(fault=FORWARD, place=place, bad=bad)
    reached = [100 * bad / ROWS if layer >= place else 0 for layer in PLACES]
    assert found["values"].tolist() == pytest.approx(reached)
    assert found["gradients"].tolist() == [100] * LAYERS
    assert f"name layer {place};" in text
    assert "LogsumexpBackward" in text  # the last operation of the loss whose gradient is one


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", PLACES)
def test_a_nan_of_the_backward_pass_is_seen_by_no_value_and_goes_to_the_front(place, bad):
    found, text = nan_hunt(fault=BACKWARD, place=place, bad=bad)
    assert found["values"].tolist() == [0] * LAYERS
    assert found["gradients"].tolist() == [100 if layer <= place else 0 for layer in PLACES]
    assert "name no layer" in text
    assert "SqrtBackward" in text


@pytest.mark.parametrize("place", PLACES)
def test_a_nan_added_to_the_loss_reaches_nothing(place):
    found, text = nan_hunt(fault=LOSS, place=place, bad=1)
    assert found["values"].tolist() == found["gradients"].tolist() == [0] * LAYERS
    assert text == "Hooks on the way forward name no layer; anomaly mode names nothing."


@pytest.mark.parametrize("fault", FAULTS)
def test_the_generator_stays_and_the_weights_are_the_same_each_time(fault):
    before = torch.get_rng_state()
    one, two = chain(fault, 3, 1), chain(fault, 3, 1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))


# ---- searches on a surface ----------------------------------------------------------------------

def height(x, y, weight):
    """The loss at one place, number by number."""
    first, second = (1 - math.exp(-((v - best) / WIDTH) ** 2)
                     for v, best in zip((x, y), BEST, strict=True))
    return (first + weight * second) / (1 + weight)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_loss_is_zero_at_the_best_place_and_asks_for_the_second_setting_by_its_weight(weight):
    places = np.random.default_rng(0).random((50, 2))
    ours = loss(*torch.tensor(places).T, weight)
    assert ours.tolist() == pytest.approx([height(x, y, weight) for x, y in places])
    assert loss(*torch.tensor(BEST, dtype=torch.float64), weight).item() == 0
    assert 0 <= ours.min() <= ours.max() <= 1
    apart = loss(torch.tensor(0.5), torch.tensor([0.0, 0.5, 1.0]), weight)
    assert (len(apart.unique()) == 1) == (weight == 0)


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_grid_repeats_its_values_and_dice_do_not(budget):
    side = math.isqrt(budget)
    grid = {(float(x), float(y)) for x, y in runs(GRID, 0, budget, 0)}
    middles = [(i + 0.5) / side for i in range(side)]
    assert grid == {(x, y) for x in middles for y in middles}
    for seed in SEEDS:
        dice = runs(DICE, 0, budget, seed)
        assert dice.shape == (budget, 2)
        assert len(dice[:, 0].unique()) == len(dice[:, 1].unique()) == budget


@pytest.mark.parametrize("method", [DICE, PROCESS])
def test_a_larger_budget_begins_with_the_runs_of_a_smaller_one(method):
    for seed in SEEDS:
        longest = runs(method, 0.3, BUDGETS[-1], seed)
        for budget in BUDGETS:
            assert torch.equal(runs(method, 0.3, budget, seed), longest[:budget])
    assert torch.equal(guided(0, 1)[:STARTS], runs(DICE, 1, STARTS, 0))


def kernel(p, q, scale):
    return np.exp(-0.5 * (((p / scale)[:, None] - (q / scale)[None]) ** 2).sum(-1))


def posterior(x, y, new):
    """Mean and deviation at new, in numpy with an inverse, by the most likely of all lengths."""
    z, n, best = (y - y.mean()) / y.std(ddof=1), len(y), None
    for a in LENGTHS:
        for b in LENGTHS:
            scale = np.array([a, b])
            gram = kernel(x, x, scale) + 1e-6 * np.eye(n)
            inverse = np.linalg.inv(gram)
            size = z @ inverse @ z / n
            likely = -0.5 * (n * np.log(size) + np.linalg.slogdet(gram)[1])
            if best is None or likely > best[0]:
                k = kernel(new, x, scale)
                spread = size * (1 - np.einsum("ij,jk,ik->i", k, inverse, k))
                best = likely, k @ inverse @ z, np.sqrt(spread.clip(1e-12))
    return (*best[1:], z)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_each_guided_run_has_the_largest_expected_improvement(weight):
    x = guided(1, weight).numpy()
    y = loss(*torch.tensor(x).T, weight).numpy()
    middles = (np.arange(CELLS) + 0.5) / CELLS
    new = np.stack(np.meshgrid(middles, middles), -1).reshape(-1, 2)
    for k in (STARTS, 9, 15):
        mean, std, z = posterior(x[:k], y[:k], new)
        gain = z.min() - mean
        score = gain * norm.cdf(gain / std) + std * norm.pdf(gain / std)
        chosen = np.abs(new - x[k]).sum(1).argmin()
        assert new[chosen] == pytest.approx(x[k])
        assert score[chosen] == pytest.approx(score.max(), rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_curves_and_sentence_say_what_the_runs_found(method, budget):
    found, text = search_surface(method=method, budget=budget, weight=0.3, seed=2)
    assert f"The map shows the {method}'s runs." in text
    places = list(zip(found["x"], found["y"], strict=True))
    heights = [height(x, y, 0.3) for x, y in places]
    lowest = [max(LOWEST, min(heights[:k + 1])) for k in range(budget)]
    assert found[method].tolist() == pytest.approx(lowest)
    assert found["best"].tolist() == [float(h == min(heights)) for h in heights]
    said = re.search(re.escape(method) + r" (\S+) \((\d+)\)", text)
    assert float(said[1]) == pytest.approx(min(heights), rel=0.05)
    assert int(said[2]) == len({x for x, _ in places})
    assert found["z"].shape == (CELLS, CELLS)


def test_a_finer_grid_may_find_less_and_searching_moves_no_generator():
    before = torch.get_rng_state()
    guided.cache_clear()
    ends = {n: search_surface(budget=n, weight=0)[0][GRID][-1] for n in BUDGETS}
    assert ends[16] < ends[25]
    assert torch.equal(torch.get_rng_state(), before)
