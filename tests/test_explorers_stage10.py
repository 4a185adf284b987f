"""Stage 10's explorers against closed forms: the rank of an update, and NF4's levels."""

import numpy as np
import pytest

from dlsys_helpers.explorers.lora_rank import DECAYS, RANKS, SIDE, best, lora_rank, numbers, update
from dlsys_helpers.explorers.nf4_grid import nf4


# ---- the rank of an update --------------------------------------------------------------------
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("kind", DECAYS)
def test_what_a_rank_leaves_out_is_the_size_of_the_other_directions(kind, rank):
    found, text = lora_rank(kind=kind, rank=rank)
    s = np.linalg.svd(update(kind).numpy(), compute_uv=False)
    assert found["shares"][0] == pytest.approx(100 * np.sqrt((s[rank:] ** 2).sum()), abs=1e-9)
    assert found["shares"][1] == pytest.approx(100 * 2 * rank / SIDE)
    assert np.linalg.matrix_rank(best(update(kind), rank).numpy(), tol=1e-12) <= rank
    assert f"{numbers(rank)} numbers" in text


# ---- sixteen levels ---------------------------------------------------------------------------
def test_the_levels_are_those_of_the_library():
    # As bitsandbytes 0.50.2 prints them.
    printed = [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609,
               0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0]
    np.testing.assert_allclose(nf4().numpy(), printed, atol=6e-5)
