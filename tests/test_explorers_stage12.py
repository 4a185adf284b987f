"""Stage 12's explorers: where a NaN goes, predicted by hand; searches, by different formulas."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from dlsys_helpers.explorers.nan_hunt import (
    BACKWARD,
    BAD,
    FORWARD,
    LAYERS,
    LOSS,
    ROWS,
    nan_hunt,
)
from dlsys_helpers.explorers.search_surface import CELLS, LENGTHS, STARTS, WEIGHTS, guided, loss

PLACES = range(1, LAYERS + 1)


def first_rows(bad):
    """The rows that meet the fault, as ones in an array (ROWS, 1)."""
    return (np.arange(ROWS) < bad).astype(float)[:, None]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", PLACES)
def test_a_nan_of_the_forward_pass_stays_in_its_rows_and_spoils_each_gradient(place, bad):
    found, text = nan_hunt(fault=FORWARD, place=place, bad=bad)
    behind = np.array([layer >= place for layer in PLACES])
    np.testing.assert_array_equal(found["values"], first_rows(bad) * behind)
    np.testing.assert_array_equal(found["gradients"], first_rows(bad) * np.ones(LAYERS))
    assert found["weights"].tolist() == [100] * LAYERS
    assert "The loss is NaN; of 8 weights 8 have" in text
    assert f"name layer {place};" in text
    assert "LogsumexpBackward" in text  # the last operation of the loss whose gradient is one


@pytest.mark.parametrize("place", PLACES)
def test_a_nan_of_the_backward_pass_reaches_what_lies_before_it(place):
    found, text = nan_hunt(fault=BACKWARD, place=place, bad=3)
    before = np.array([layer < place for layer in PLACES])
    assert not found["values"].any()
    np.testing.assert_array_equal(found["gradients"], first_rows(3) * before)
    assert found["weights"].tolist() == [100 * (layer <= place) for layer in PLACES]
    assert "name no layer;" in text


def test_a_nan_added_to_the_loss_reaches_no_gradient():
    found, text = nan_hunt(fault=LOSS)
    assert not any(found[name].any() for name in ("values", "gradients", "weights"))
    assert "The loss is NaN; of 8 weights 0 have" in text


# ---- searches on a surface ----------------------------------------------------------------------
def kernel(p, q, scale):
    return np.exp(-0.5 * (((p / scale)[:, None] - (q / scale)[None]) ** 2).sum(-1))


def posterior(x, y, new):
    """Mean and standard deviation at new, by numpy's inverse and the likeliest length scales."""
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
