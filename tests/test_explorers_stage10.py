"""Stage 10's explorers against closed forms: the rank of an update, and NF4's levels."""

import statistics

import numpy as np
import pytest
import torch

from dlsys_helpers.explorers.lora_rank import (
    DECAYS,
    RANKS,
    SIDE,
    best,
    lora_rank,
    numbers,
    update,
)
from dlsys_helpers.explorers.nf4_grid import (
    BLOCKS,
    COUNT,
    EDGE,
    GRIDS,
    WEIGHTS,
    even,
    nearest,
    nf4,
    nf4_grid,
    weights,
)

# ---- the rank of an update --------------------------------------------------------------------


@pytest.mark.parametrize("kind", DECAYS)
def test_an_update_has_norm_one_and_the_singular_values_it_says(kind):
    s = np.linalg.svd(update(kind).numpy(), compute_uv=False)
    assert np.sqrt((s ** 2).sum()) == pytest.approx(1)
    if DECAYS[kind] is not None:
        np.testing.assert_allclose(s[:5] / s[0], np.exp(-DECAYS[kind] * np.arange(5)), rtol=1e-9)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("kind", DECAYS)
def test_what_a_rank_leaves_out_is_the_size_of_the_other_directions(kind, rank):
    found, text = lora_rank(kind=kind, rank=rank)
    s = np.linalg.svd(update(kind).numpy(), compute_uv=False)
    assert found["shares"][0] == pytest.approx(100 * np.sqrt((s[rank:] ** 2).sum()), abs=1e-9)
    assert found["shares"][1] == pytest.approx(100 * 2 * rank / SIDE)
    assert np.linalg.matrix_rank(best(update(kind), rank).numpy(), tol=1e-12) <= rank
    assert f"{numbers(rank)} numbers" in text


def test_half_of_the_side_is_where_a_rank_saves_nothing():
    assert "as many" in lora_rank(kind="random", rank=SIDE // 2)[1]
    assert "fewer" in lora_rank(kind="random", rank=8)[1]
    assert "more" in lora_rank(kind="random", rank=24)[1]


# ---- sixteen levels ---------------------------------------------------------------------------

def test_the_levels_are_quantiles_scaled_to_one():
    normal = statistics.NormalDist()
    steps = [EDGE + (0.5 - EDGE) * k / 8 for k in range(8)]
    above = [normal.inv_cdf(p) for p in steps]
    top = above[0]
    np.testing.assert_allclose(nf4()[8:].flip(0).numpy(), np.array(above) / top, atol=1e-9)
    assert (nf4()[0], nf4()[7], len(nf4())) == (-1, 0, 16)


def test_the_levels_are_those_of_the_library():
    # As bitsandbytes 0.50.2 prints them.
    printed = [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609,
               0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0]
    np.testing.assert_allclose(nf4().numpy(), printed, atol=6e-5)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_each_weight_gets_its_nearest_level(kind, block):
    w = weights(kind, 0.02)
    for grid in (nf4(), even()):
        index, rounded = nearest(grid, w, block)
        scale = w.view(-1, block).abs().amax(1).repeat_interleave(block)
        gaps = torch.stack([(w - level * scale).abs() for level in grid])
        assert torch.allclose((rounded - w).abs(), gaps.min(0).values)
        assert torch.allclose(grid[index] * scale, rounded)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_shares_add_up_and_errors_do_not_hang_on_the_grid_that_is_shown(kind, grid, block):
    found, _ = nf4_grid(kind=kind, grid=grid, block=block)
    assert sum(found["used"]) == pytest.approx(100)
    other, _ = nf4_grid(kind=kind, grid="even" if grid == "NF4" else "NF4", block=block)
    assert list(found["errors"]) == list(other["errors"])


def test_nf4_fits_normal_weights_and_even_levels_uniform_ones():
    near, far = nf4_grid(kind="normal", grid="NF4", block=64)[0]["errors"]
    assert near < far
    near, far = nf4_grid(kind="uniform", grid="NF4", block=64)[0]["errors"]
    assert far < near
    assert COUNT % max(BLOCKS) == 0
