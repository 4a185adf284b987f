"""Stage 12's explorers: where a NaN goes, told without running it; searches, by other formulas."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from dlsys_helpers.explorers.nan_hunt import BAD, FORWARD, LAYERS, ROWS, nan_hunt
from dlsys_helpers.explorers.search_surface import CELLS, LENGTHS, STARTS, WEIGHTS, guided, loss

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


# ---- searches on a surface ----------------------------------------------------------------------
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
