"""Stage 11's explorers against closed forms: grids, patterns of zeros, temperatures."""

import math

import numpy as np
import pytest
import torch

from dlsys_helpers.data import digits
from dlsys_helpers.explorers.quantization import (
    BITS,
    CLIPS,
    GROUPS,
    OUTLIERS,
    PIXEL,
    SCHEMES,
    consequences,
    curves,
    grid,
    layer,
    quantization,
    reader,
)
from dlsys_helpers.explorers.sparsity import (
    PATTERNS,
    RULES,
    SHARES,
    kept,
    pruned,
    sparsity,
    stored,
    zeroed,
)
from dlsys_helpers.explorers.temperature import (
    ROWS,
    STUDENTS,
    TEMPERATURES,
    beginner,
    rows,
    teacher,
    temperature,
)
from dlsys_helpers.train import accuracy

# ---- grids ------------------------------------------------------------------------------------


def test_the_reader_reads_and_an_outlier_changes_nothing_that_it_computes():
    (first, head), (plain, x) = reader(), layer(1)
    assert torch.equal(plain, first.weight)
    for outlier in OUTLIERS:
        w, seen = layer(outlier)
        assert torch.allclose(seen @ w.T, x @ plain.T)
        assert torch.allclose(w[:, PIXEL], outlier * plain[:, PIXEL])
    model = torch.nn.Sequential(first, torch.nn.ReLU(), head)
    assert accuracy(model, x, digits().y_test) > 0.93


@pytest.mark.parametrize("group", GROUPS.values())
@pytest.mark.parametrize("bits", BITS)
def test_an_affine_grid_is_the_one_of_torch(bits, group):
    w = layer(1)[0].float()
    parts, top = w.reshape(-1, group), 2 ** bits - 1
    low, high = parts.amin(1).clamp(max=0), parts.amax(1).clamp(min=0)
    scale = (high - low) / top
    # The same zero and scale as the explorer's, in double precision, so that no tie parts them.
    ours = grid(w.double(), bits, "affine", group, 1.0)[0].float()
    theirs = torch.fake_quantize_per_channel_affine(
        parts, scale, (-low / scale).round().int(), 0, 0, top).view_as(w)
    step = scale.max().item()
    assert ((ours - theirs).abs() > 1e-3 * step).float().mean() < 0.01
    assert (ours - theirs).abs().max() < 1.01 * step


@pytest.mark.parametrize("clip", [0.3, 1.0])
@pytest.mark.parametrize("bits", BITS)
def test_a_symmetric_grid_has_its_levels_on_both_sides_of_zero(bits, clip):
    w = layer(4)[0]
    rounded, endless = grid(w, bits, "symmetric", w.numel(), clip)
    top = 2 ** (bits - 1) - 1
    step = clip * w.abs().max() / top
    codes = rounded / step
    assert torch.allclose(codes, codes.round(), atol=1e-9)
    assert codes.abs().max() <= top + 1e-9
    assert (rounded - w).abs()[rounded == endless].max() <= step / 2 + 1e-12


def test_without_a_clip_nothing_is_clipped_and_rounding_is_all():
    rounding, clipping, weights, _, _ = consequences(4, "symmetric", "row", 1.0, 1)
    assert (clipping, rounding) == (0, pytest.approx(weights))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_two_parts_of_the_error_add_up_as_squares(scheme):
    rounding, clipping, weights, _, _ = consequences(3, scheme, "matrix", 0.4, 4)
    assert rounding > 0
    assert clipping > 0
    assert weights ** 2 == pytest.approx(rounding ** 2 + clipping ** 2)


# ---- what is drawn ----------------------------------------------------------------------------

def test_the_bars_stand_on_the_curves_at_the_clip():
    found, text = quantization(bits=3, scheme="affine", shared="row", clip=0.7, outlier=4)
    here = list(found["clips"]).index(0.7)
    assert list(found["now"][:2]) == [found["weights"][here], found["output"][here]]
    assert list(found["at"]) == [0.7]
    assert f"{found['now'][2]:.1f} % of the digits flip" in text


def test_a_narrow_grid_rounds_less_and_clips_more():
    rounding, clipping, *_ = curves(4, "symmetric", "matrix", 1)
    wide, narrow = CLIPS.index(1.0), CLIPS.index(0.3)
    assert rounding[narrow] < rounding[wide]
    assert clipping[narrow] > clipping[wide] == 0


def test_the_clip_that_is_best_for_the_weights_is_not_the_best_for_the_output():
    _, _, weights, output, flips = curves(4, "symmetric", "matrix", 16)
    for_weights, for_output = (int(np.argmin(e)) for e in (weights, output))
    assert CLIPS[for_output] < 0.5 * CLIPS[for_weights]
    assert output[for_weights] > 2 * output[for_output]
    assert flips[for_weights] > flips[for_output]
    text = quantization(bits=4, scheme="symmetric", shared="matrix", clip=1.0, outlier=16)[1]
    assert text.endswith("another clip.")


def test_a_grid_of_its_own_for_each_group_is_nearer_than_one_for_all():
    whole, groups = (curves(4, "symmetric", shared, 16)[2][-1] for shared in ("matrix",
                                                                              "group of 16"))
    assert groups < whole


# ---- zeros in three patterns ------------------------------------------------------------------

@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_pattern_keeps_as_many_weights_as_it_says(pattern, share, rule):
    w = reader()[0].weight
    mask = kept(w, pattern, share, rule)
    assert mask.shape == w.shape
    assert mask.sum() == w.numel() * (1 - share)
    if pattern == "in each four":
        counts = [int(row[k:k + 4].sum()) for row in mask for k in range(0, 64, 4)]
        assert set(counts) == {round(4 * (1 - share))}
    if pattern == "in whole units":
        assert {int(row.sum()) for row in mask} == {0, 64}


@pytest.mark.parametrize("share", SHARES)
def test_by_size_the_largest_stay(share):
    w = reader()[0].weight
    anywhere = kept(w, "anywhere", share, "their size")
    assert w[anywhere].abs().min() > w[~anywhere].abs().max()
    fours = kept(w, "in each four", share, "their size")
    for row, mask in zip(w.abs().tolist(), fours.tolist(), strict=True):
        for k in range(0, 64, 4):
            stay = [v for v, m in zip(row[k:k + 4], mask[k:k + 4], strict=True) if m]
            assert sorted(stay) == sorted(row[k:k + 4])[4 - len(stay):]
    units = kept(w, "in whole units", share, "their size").any(1)
    norms = w.square().sum(1)
    assert norms[units].min() > norms[~units].max()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pruning_costs_what_the_masked_layers_read_and_keeps_its_zeros(pattern):
    mask, at_once, after = pruned(pattern, 0.5, "their size")
    first, head = reader()
    x, y, w = digits().x_test.double(), digits().y_test, first.weight * mask
    bias = torch.where(w.abs().sum(1) > 0, first.bias, 0.0)
    hidden = torch.relu(x @ w.T + bias)
    right = ((hidden @ head.weight.T + head.bias).argmax(1) == y).sum()
    assert at_once == pytest.approx(100 * (1 - int(right) / len(y)))
    assert after < at_once
    # The reader itself is left as it was trained.
    assert (first.weight == 0).sum() == 0


def test_zeroed_layers_lose_the_biases_of_empty_units_alone():
    layer = torch.nn.Linear(4, 3)
    bias = layer.bias.detach().clone()
    mask = torch.tensor([[True, False, False, False], [False] * 4, [True] * 4])
    zeroed(layer, mask)
    assert torch.equal(layer.weight != 0, mask)
    assert layer.bias.tolist() == [bias[0].item(), 0, bias[2].item()]


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


def test_half_of_the_weights_with_column_numbers_are_no_smaller():
    found, text = sparsity(pattern="anywhere", share=0.5, rule="their size", size=4)
    assert found["bytes"][2] > 100
    assert found["stays"].shape == (32, 64)
    assert (found["stays"] > 0).sum() == 1024
    assert f"{found['bytes'][2]:.0f} %." in text
    assert f"{found['misread'][2]:.1f} % after retraining" in text


def test_units_cost_most_at_once_and_the_rule_matters():
    at_once = {p: pruned(p, 0.5, "their size")[1] for p in PATTERNS}
    assert max(at_once, key=at_once.get) == "in whole units"
    for pattern in PATTERNS:
        assert at_once[pattern] < pruned(pattern, 0.5, "chance")[1]


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


def test_the_three_digits_are_what_they_are_called():
    y, found = digits().y_test, teacher().argmax(1)
    assert {row: bool(found[k] == y[k]) for row, k in rows().items()} == {
        "clear": True, "doubtful": True, "read wrong by the teacher": False}
    first = {row: teacher()[k].softmax(0).max() for row, k in rows().items()}
    assert first["clear"] > 0.999
    assert first["doubtful"] < 0.6


def test_at_a_high_temperature_the_pull_is_a_tenth_of_the_gap_between_the_logits():
    for row in ROWS:
        target = teacher()[rows()[row]]
        found, text = temperature(row=row, student="knows nothing", factor="T squared", T=100)
        gap = (target - target.mean()).numpy() / 10
        np.testing.assert_allclose(found["by_teacher"], gap, atol=0.15 * np.abs(gap).max())
        assert float(text.rsplit(" ", 1)[1].rstrip(".")) > 0.998


def test_a_wrong_teacher_pushes_from_the_right_digit_when_cold_and_pulls_when_warm():
    k = rows()["read wrong by the teacher"]
    y = int(digits().y_test[k])
    pulls = {T: temperature(row="read wrong by the teacher", student="knows nothing", T=T,
                            factor="T squared")[0]["by_teacher"][y] for T in (1, 8)}
    assert pulls[1] < 0 < pulls[8]


def test_beside_a_clear_digit_a_cold_teacher_says_what_the_label_says():
    found, _ = temperature(row="clear", student="knows nothing", factor="T squared", T=1)
    np.testing.assert_allclose(found["by_teacher"], found["by_label"], atol=1e-3)
    warm, _ = temperature(row="clear", student="knows nothing", factor="T squared", T=8)
    assert np.abs(warm["by_teacher"] / 8 - warm["by_label"]).max() > 0.3
