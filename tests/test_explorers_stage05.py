"""Stage 5's explorers against closed forms: batch mates, norm axes, activations by depth."""

import numpy as np
import pytest

from dlsys_helpers.explorers.batch_mates import NORMS, batch_of, logits, train
from dlsys_helpers.explorers.init_depth import (
    ACTIVATIONS,
    DEPTH,
    init_depth,
    preactivations,
    predicted,
)
from dlsys_helpers.explorers.norm_axes import CHOSEN, SIZES, block, norm_axes, norms


@pytest.fixture(autouse=True, scope="module")
def nothing_cached():
    """Keep what we compute here, with the tests' own threads, from other test files."""
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


# ---- norm axes --------------------------------------------------------------------------------
# Which of (N, C, positions) one average runs over; group norm has its own rule.
AXES = {("images", "batch"): "NP", ("images", "layer"): "CP", ("images", "RMS"): "CP",
        ("images", "instance"): "P", ("sequences", "batch"): "NP", ("sequences", "layer"): "C",
        ("sequences", "RMS"): "C", ("sequences", "instance"): "P"}


def expected_mask(shape, norm, at):
    """True for the values that share an average with the one at `at`, by definition."""
    place = np.indices(block(SIZES[shape]).shape)
    same = {"N": place[0] == at[0], "C": place[1] == at[1],
            "P": (place[2:] == np.reshape(at[2:], (-1, *[1] * (len(at))))).all(0)}
    if norm == "group":
        return same["N"] & (place[1] // 2 == at[1] // 2)
    over = AXES[shape.split()[0], norm]
    return np.logical_and.reduce([same[axis] for axis in "NCP" if axis not in over])


def numbers_of(shape, norm):
    """The values averaged with (1, 1, 1, ...), and that value normalized, both by numpy."""
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


# ---- activations by depth ---------------------------------------------------------------------
# Per layer: sqrt(width * Var(w)), times sqrt(1/2) after a ReLU, which halves the mean square.
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
