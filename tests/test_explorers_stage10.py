"""Stage 10's explorer against a closed form: the rank of an update."""

import numpy as np
import pytest

from dlsys_helpers.explorers.lora_rank import DECAYS, RANKS, SIDE, best, lora_rank, numbers, update


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
