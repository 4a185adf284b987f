"""Stage 5's explorers against closed forms: batch mates, norm axes, activations by depth."""

import numpy as np
import pytest
import torch
from torch import nn

from dlsys_helpers.data import digits
from dlsys_helpers.explorers.batch_mates import (
    HIDDEN,
    LIMIT,
    MATES,
    MODES,
    NORMS,
    ROW,
    batch_mates,
    batch_of,
    logits,
    train,
)
from dlsys_helpers.explorers.init_depth import (
    ACTIVATIONS,
    DEPTH,
    FLOOR,
    INITS,
    TOP,
    init_depth,
    preactivations,
    predicted,
    variances,
)
from dlsys_helpers.explorers.norm_axes import (
    CHOSEN,
    GAP,
    OTHER,
    SHARED,
    SIZES,
    block,
    heard,
    norm_axes,
    norms,
)


@pytest.fixture(autouse=True, scope="module")
def nothing_cached():
    """What is computed here, with the tests' own threads, must not reach another file."""
    yield
    train.cache_clear()


# ---- batch mates ------------------------------------------------------------------------------
def by_hand(norm, training, batch):
    """The first row's logits, with the norm's formula written out in numpy."""
    model = train(norm)
    (w1, b1), (w2, b2) = ((layer.weight.detach().numpy(), layer.bias.detach().numpy())
                          for layer in (model[0], model[3]))
    h = batch.numpy() @ w1.T + b1
    if norm == "batch" and not training:
        mean, var = model[1].running_mean.numpy(), model[1].running_var.numpy()
    elif norm == "batch":
        mean, var = h.mean(0), h.var(0)
    elif norm != "none":
        groups = h.reshape(len(h), 1 if norm == "layer" else 4, -1)
        mean, var = (np.broadcast_to(a, groups.shape).reshape(h.shape) for a in
                     (groups.mean(2, keepdims=True), groups.var(2, keepdims=True)))
    if norm != "none":
        scale, shift = (p.detach().numpy() for p in model[1].parameters())
        h = (h - mean) / np.sqrt(var + 1e-5) * scale + shift
    return (np.maximum(h, 0) @ w2.T + b2)[0]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_logits_beside_mates_follow_the_formula_of_the_norm(norm, training):
    batch = batch_of("mixed digits", 7, 1)
    np.testing.assert_allclose(logits(norm, training, batch), by_hand(norm, training, batch),
                               rtol=1e-9, atol=1e-9)


def moved(norm, mode, **chosen):
    arrays, sentence = batch_mates(norm=norm, mode=mode, **chosen)
    farthest = np.abs(arrays["beside"] - arrays["alone"]).max()
    assert f"moves by {farthest:.2f} at most" in sentence
    return farthest


@pytest.mark.parametrize("mates", MATES)
def test_only_batch_norm_in_train_mode_hears_its_neighbours(mates):
    for norm in NORMS:
        for mode in ("train", "eval"):
            how_far = moved(norm, mode, mates=mates, n_mates=3)
            assert bool(how_far > 0.5) is ((norm, mode) == ("batch", "train"))


def test_with_one_mate_batch_norm_leaves_only_which_of_the_two_is_larger():
    """Each of two numbers at distance d lies d / 2 from their mean, and so does the deviation."""
    batch = batch_of("only zeros", 1, 2)
    model = train("batch")
    h = model[0](batch)
    half = (h[0] - h[1]) / 2
    signs = half / (half**2 + 1e-5).sqrt()
    expected = model[3](model[2](signs * model[1].weight + model[1].bias))
    assert (signs.abs() > 0.99).double().mean() > 0.9
    np.testing.assert_allclose(logits("batch", True, batch), expected.detach(), rtol=1e-9)


def test_a_four_among_fours_is_no_longer_read_as_one():
    arrays, sentence = batch_mates(mates="only fours", n_mates=31)
    assert arrays["alone"].argmax() == 4
    assert arrays["beside"].argmax() != 4
    assert f"reads a {arrays['beside'].argmax()} with" in sentence


def test_the_batch_holds_the_digit_once_and_mates_of_the_wanted_class():
    x, y = digits()[2:]
    batch = batch_of("only zeros", 31, 3)
    assert len(batch) == 32
    torch.testing.assert_close(batch[0], x[ROW].double())
    rows = [int((x.double() == mate).all(1).nonzero()) for mate in batch]
    assert len(set(rows)) == 32
    assert rows[0] == ROW
    assert set(y[rows[1:]].tolist()) == {0}


def test_the_picture_shows_the_digit_first_and_its_mates_in_order():
    shown = batch_mates(n_mates=7)[0]["batch"]
    batch = batch_of("mixed digits", 7, 1)
    for k, digit in enumerate(batch):
        row, column = 8 * (k // 4), 8 * (k % 4)
        np.testing.assert_array_equal(shown[row:row + 8, column:column + 8], digit.view(8, 8))
    assert batch_mates(n_mates=3)[0]["batch"][8:].max() == 0


def test_looking_changes_nothing_in_the_network():
    before = [b.clone() for b in train("batch").buffers()]
    first = batch_mates.live_frame({"draw": 2})
    batch_mates(n_mates=31)
    assert all(torch.equal(a, b) for a, b in zip(before, train("batch").buffers(), strict=True))
    assert batch_mates.live_frame({"draw": 2}) == first


def test_no_logit_leaves_the_picture():
    for norm in NORMS:
        for n_mates in (1, 3):
            arrays, _ = batch_mates(norm=norm, mates="only fours", n_mates=n_mates)
            assert max(np.abs(arrays["beside"]).max(), np.abs(arrays["alone"]).max()) < LIMIT


def test_a_mode_that_is_never_set_is_seen(monkeypatch):
    monkeypatch.setitem(MODES, "train", False)
    with pytest.raises(AssertionError):
        test_only_batch_norm_in_train_mode_hears_its_neighbours("mixed digits")


def test_a_norm_that_is_left_out_is_seen(monkeypatch):
    monkeypatch.setitem(NORMS, "group", lambda: nn.LayerNorm(HIDDEN))
    train.cache_clear()
    with pytest.raises(AssertionError):
        test_logits_beside_mates_follow_the_formula_of_the_norm("group", True)
    train.cache_clear()


# ---- norm axes --------------------------------------------------------------------------------
IMAGES, SEQUENCES = SIZES
# Which of (N, C, places) one average runs over; group norm has a rule of its own.
AXES = {("images", "batch"): "NP", ("images", "layer"): "CP", ("images", "RMS"): "CP",
        ("images", "instance"): "P", ("sequences", "batch"): "NP", ("sequences", "layer"): "C",
        ("sequences", "RMS"): "C", ("sequences", "instance"): "P"}


def expected_mask(shape, norm, at):
    """True for the numbers that are averaged with the one at `at`, by the definition."""
    place = np.indices(block(SIZES[shape]).shape)
    same = {"N": place[0] == at[0], "C": place[1] == at[1],
            "P": (place[2:] == np.reshape(at[2:], (-1, *[1] * (len(at))))).all(0)}
    if norm == "group":
        return same["N"] & (place[1] // 2 == at[1] // 2)
    over = AXES[shape.split()[0], norm]
    return np.logical_and.reduce([same[axis] for axis in "NCP" if axis not in over])


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("norm", norms((1,)))
def test_the_gradient_reaches_the_axes_of_the_definition(shape, norm):
    at = (2, 1, *[1] * len(SIZES[shape]))
    mask = heard(norm, SIZES[shape], True, at)
    np.testing.assert_array_equal(mask, expected_mask(shape, norm, at))
    counts = norm_axes(shape=shape, norm=norm, sample=2)[0]["counts"]
    assert counts.tolist() == [mask.sum(), mask.numel() / mask.sum()]


@pytest.mark.parametrize("shape", SIZES)
def test_in_eval_mode_batch_norm_averages_nothing_and_the_others_do_the_same(shape):
    for norm in norms((1,)):
        train_frame, eval_frame = (norm_axes(shape=shape, norm=norm, mode=m) for m in MODES)
        same = all(np.array_equal(train_frame[0][k], eval_frame[0][k]) for k in train_frame[0])
        assert same is (norm != "batch")
    arrays, sentence = norm_axes(shape=shape, mode="eval")
    assert arrays["counts"].tolist() == [0, 0]
    assert (arrays["mask"] > OTHER).sum() == 1
    assert "averages nothing" in sentence


def numbers_of(shape, norm):
    """The numbers averaged with (1, 1, 1, ...) and that number normed, both as numpy has them."""
    at = (1, 1, *[1] * len(SIZES[shape]))
    x = block(SIZES[shape]).numpy()
    mine = x[expected_mask(shape, norm, at)]
    if norm == "RMS":
        return mine, x[at] / np.sqrt((mine**2).mean() + 1e-5)
    return mine, (x[at] - mine.mean()) / np.sqrt(mine.var() + 1e-5)


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("norm", norms((1,)))
def test_moments_and_normed_number_follow_from_the_numbers_averaged(shape, norm):
    arrays, sentence = norm_axes(shape=shape, norm=norm)
    mine, normed = numbers_of(shape, norm)
    assert arrays["values"][arrays["mask"] == CHOSEN].item() == pytest.approx(normed, rel=1e-9)
    assert (f"{len(mine)} numbers, itself included: mean {mine.mean():.2f}, second moment "
            f"{(mine**2).mean():.2f}, ").replace("-", "\N{MINUS SIGN}") in sentence
    assert (f"{mine.var():.2f}." in sentence) is (norm != "RMS")


@pytest.mark.parametrize("shape", SIZES)
def test_the_page_holds_every_number_once_with_gaps_between(shape):
    arrays, _ = norm_axes(shape=shape, norm="layer", sample=2, channel=3)
    numbers = block(SIZES[shape]).numel()
    assert (arrays["mask"] != GAP).sum() == numbers
    assert np.unique(arrays["values"][arrays["mask"] != GAP]).size == numbers
    rows, columns = np.nonzero(arrays["mask"] == CHOSEN)
    height, width = arrays["mask"].shape
    assert rows > 2 * height / 3  # the last sample, the last channel
    assert columns >= 3 * width // 4
    assert (arrays["mask"] == SHARED).sum() == arrays["counts"][0] - 1


def test_a_layer_norm_over_the_wrong_axes_is_seen(monkeypatch):
    monkeypatch.setitem(norms.__globals__, "norms",
                        lambda size: {"layer": nn.GroupNorm(4, 4)})
    with pytest.raises(AssertionError):
        test_the_gradient_reaches_the_axes_of_the_definition(IMAGES, "layer")


# ---- activations by depth ---------------------------------------------------------------------
@pytest.mark.parametrize("init", INITS)
def test_a_drawn_weight_has_the_variance_that_is_said(init):
    w = INITS[init](torch.empty(256, 256, dtype=torch.float64), torch.Generator().manual_seed(5))
    assert w.square().mean().item() == pytest.approx(variances(init, 256)[0], rel=0.02)
    assert abs(w.mean().item()) < 0.02 * w.std().item()


def test_pytorch_s_default_is_the_linear_layer_s_own():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.Linear(256, 256)
    of_weight, of_bias = variances("PyTorch default", 256)
    assert layer.weight.var().item() == pytest.approx(of_weight, rel=0.02)
    assert layer.bias.var().item() == pytest.approx(of_bias, rel=0.2)  # 256 draws only


# Per layer: sqrt(width * Var(w)), times sqrt(1/2) behind a ReLU, which drops one half.
FACTORS = {("Xavier", "linear"): 1, ("Xavier", "ReLU"): 0.5**0.5, ("He", "linear"): 2**0.5,
           ("He", "ReLU"): 1, ("std 0.01", "linear"): 0.16, ("std 1", "linear"): 16,
           ("std 1", "ReLU"): 128**0.5}


@pytest.mark.parametrize(("init", "activation"), FACTORS)
def test_the_factor_per_layer_is_the_closed_form(init, activation):
    factor = FACTORS[init, activation]
    x, seen = preactivations(init, activation, 256)
    last = ACTIVATIONS[activation](seen[-1])
    measured = (last.square().mean() / x.square().mean()) ** (0.5 / DEPTH)
    assert measured.item() == pytest.approx(factor, rel=0.02)
    moments = predicted(init, activation, 256)
    np.testing.assert_allclose((moments[1:] / moments[:-1]).sqrt(), factor, rtol=1e-6)
    sentence = init_depth(init=init, activation=activation, width=256)[1]
    assert f"a factor of {measured:.3g} per layer. Closed form: {factor:.3g} per layer" in sentence


def test_orthogonal_layers_keep_every_length():
    x, seen = preactivations("orthogonal", "linear", 64)
    np.testing.assert_allclose(seen[-1].norm(dim=1), x.norm(dim=1), rtol=1e-12)


def test_pytorch_s_biases_hold_a_linear_network_up():
    # m = m / 3 + 1 / (3 n) stands still at m = 1 / (2 n).
    assert predicted("PyTorch default", "linear", 64)[-1].item() == pytest.approx(1 / 128, rel=1e-6)
    assert init_depth(init="PyTorch default", activation="linear")[0]["size"][-1] == pytest.approx(
        128**-0.5, rel=0.25)


@pytest.mark.parametrize("activation", ["tanh", "GELU"])
def test_the_prediction_for_a_curve_is_the_mean_over_a_large_sample(activation):
    z = 2**0.5 * torch.randn(10**6, generator=torch.Generator().manual_seed(2))  # He: q = 2
    expected = ACTIVATIONS[activation](z).square().mean().item()
    assert predicted("He", activation, 64)[1].item() == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_wide_network_is_where_the_prediction_says(activation):
    arrays, _ = init_depth(init="Xavier", activation=activation, width=256)
    np.testing.assert_allclose(arrays["size"], arrays["predicted"], rtol=0.15)


def test_rows_grow_alike_behind_relu_and_not_in_a_linear_network():
    relu, linear = (init_depth(init="He", activation=a, width=256)[0] for a in ("ReLU", "linear"))
    assert relu["rows"][-1] < 0.4 * relu["size"][-1]
    assert linear["rows"][-1] == pytest.approx(linear["size"][-1], rel=0.05)


def last_shares(init, key):
    return {a: init_depth(init=init, activation=a)[0][key][-1] for a in ACTIVATIONS}


def test_only_relu_units_die_unless_the_numbers_are_so_large_that_gelu_is_one():
    dead = last_shares("He", "dead")
    assert dead.pop("ReLU") > 10
    assert set(dead.values()) == {0}
    assert last_shares("std 1", "dead")["GELU"] > 5


def test_a_large_tanh_network_saturates():
    small = last_shares("std 1", "small")
    assert small["linear"] == 0
    # |tanh z| > sqrt(0.95) beyond |z| = 2.18, and z has a deviation of about 8.
    assert small["tanh"] == pytest.approx(100 * 0.785, abs=4)


def test_what_leaves_the_window_stands_on_its_edge_and_is_said():
    low, high = (init_depth(init=i, activation="linear", width=64) for i in ("std 0.01", "std 1"))
    assert low[0]["size"].min() == FLOOR
    assert "root mean square is 1.5e-22" in low[1]
    assert high[0]["size"].max() == TOP


def test_a_he_init_that_forgets_its_two_is_seen(monkeypatch):
    monkeypatch.setitem(INITS, "He", INITS["Xavier"])
    with pytest.raises(AssertionError):
        test_the_factor_per_layer_is_the_closed_form("He", "ReLU")
