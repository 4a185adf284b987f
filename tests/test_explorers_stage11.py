"""Stage 11's explorers against closed forms: grids, patterns of zeros, temperatures."""

import math

import numpy as np
import pytest
import torch

from dlsys_helpers.data import digits
from dlsys_helpers.explorers.quantization import BITS, GROUPS, grid, layer, reader
from dlsys_helpers.explorers.sparsity import kept, stored
from dlsys_helpers.explorers.temperature import (
    ROWS,
    STUDENTS,
    TEMPERATURES,
    beginner,
    rows,
    teacher,
    temperature,
)


# ---- grids ------------------------------------------------------------------------------------
@pytest.mark.parametrize("group", GROUPS.values())
@pytest.mark.parametrize("bits", BITS)
def test_an_affine_grid_is_the_one_of_torch(bits, group):
    w = layer(1)[0].float()
    parts, top = w.reshape(-1, group), 2 ** bits - 1
    low, high = parts.amin(1).clamp(max=0), parts.amax(1).clamp(min=0)
    scale = (high - low) / top
    # Use the explorer's zero and scale in double precision, so that no tie rounds differently.
    ours = grid(w.double(), bits, "affine", group, 1.0)[0].float()
    theirs = torch.fake_quantize_per_channel_affine(
        parts, scale, (-low / scale).round().int(), 0, 0, top).view_as(w)
    step = scale.max().item()
    assert ((ours - theirs).abs() > 1e-3 * step).float().mean() < 0.01
    assert (ours - theirs).abs().max() < 1.01 * step


# ---- zeros in three patterns ------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_bytes_are_those_of_the_formats_documentation():
    w = reader()[0].weight
    fours = kept(w, "in each four", 0.5, "their size")
    # https://docs.pytorch.org/docs/stable/sparse.html: 9/16 for 16 bits, 10/16 for 8.
    for size, ratio in ((2, 9 / 16), (1, 10 / 16)):
        assert stored(fours, "in each four", size)[1] == ratio * w.numel() * size
    anywhere = kept(w, "anywhere", 0.5, "their size")
    assert stored(anywhere, "anywhere", 2)[1] == stored(fours, "in each four", 2)[1]
    csr = (w.float() * anywhere).to_sparse_csr()
    parts = csr.values().nbytes, csr.col_indices().int().nbytes, csr.crow_indices().int().nbytes
    assert stored(anywhere, "anywhere", 4)[2] == sum(parts)
    units = kept(w, "in whole units", 0.25, "their size")
    assert stored(units, "in whole units", 4)[1] == 24 * 64 * 4 + 24 * 4


# ---- a teacher at a temperature ---------------------------------------------------------------

def soft(z, T):
    """Probabilities of a list of logits at a temperature, in plain Python."""
    top = max(z)
    e = [math.exp((v - top) / T) for v in z]
    return [v / sum(e) for v in e]


@pytest.mark.parametrize("student", STUDENTS)
@pytest.mark.parametrize("row", ROWS)
def test_the_pull_is_the_difference_of_two_softened_answers(row, student):
    k, y = rows()[row], int(digits().y_test[rows()[row]])
    target = teacher()[k].tolist()
    z = [0.0] * 10 if student == "knows nothing" else beginner()[k].tolist()
    by_label = [(j == y) - v for j, v in enumerate(soft(z, 1))]
    for here, T in enumerate(TEMPERATURES):
        p, q = soft(target, T), soft(z, T)
        gap = [T * (a - b) for a, b in zip(p, q, strict=True)]
        found, _ = temperature(row=row, student=student, factor="T squared", T=T)
        plain, _ = temperature(row=row, student=student, factor="nothing", T=T)
        np.testing.assert_allclose(found["says"], [100 * v for v in p], atol=0.0501)
        np.testing.assert_allclose(found["by_teacher"], gap, atol=1e-9)
        np.testing.assert_allclose(plain["by_teacher"] * T ** 2, gap, atol=1e-9)
        np.testing.assert_allclose(found["by_label"], by_label, atol=1e-9)
        assert found["squared"][here] == pytest.approx(np.linalg.norm(gap))
        assert found["plain"][here] == pytest.approx(np.linalg.norm(gap) / T ** 2)
        assert (list(found["T_now"]), list(found["T_all"])) == ([T], list(TEMPERATURES))
