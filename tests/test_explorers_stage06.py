"""Stage 6's explorers against torchvision, closed forms and loops written out by hand."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torchvision.transforms import v2

from dlsys_helpers.data import digits
from dlsys_helpers.explorers.early_stopping import (
    EPOCHS,
    ROWS,
    WATCHED,
    early_stopping,
    splits,
    stop,
    train,
)
from dlsys_helpers.explorers.leak_ledger import (
    GRID,
    INFORMATIVE,
    LEAKS,
    REPEATS,
    Study,
    fit,
    leak_ledger,
    scores,
)
from dlsys_helpers.explorers.mix import PAIRS, SIDE, box, mix, mixture, pictures

PHOTOGRAPHS, DIGITS = PAIRS


@pytest.fixture(autouse=True, scope="module")
def nothing_cached():
    """What is computed here, with the tests' own threads, must not reach another file."""
    yield
    train.cache_clear()
    scores.cache_clear()


# ---- Mixup and CutMix -------------------------------------------------------------------------
class Always:
    """A distribution that always draws the same number."""

    def __init__(self, lam):
        self.lam = lam

    def sample(self, _shape):
        return self.lam


def torchvision_s(transform, pair, lam, middle, monkeypatch):
    """What torchvision makes of the pair for a given draw: the first picture and its label."""
    drawn = iter(middle)
    monkeypatch.setattr(torch, "randint", lambda *_a, **_k: torch.tensor([next(drawn)]))
    transform._dist = Always(lam)
    mixed, labels = transform(pictures(pair)[:, None], torch.tensor([0, 1]))
    return mixed[0, 0], labels[0, 0].item()


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("lam", [0, 0.2, 0.5, 0.8, 1])
@pytest.mark.parametrize(("across", "down"), [(0.5, 0.5), (0, 0.5), (0.25, 1), (1, 1)])
def test_cutmix_is_torchvision_s(monkeypatch, pair, lam, across, down):
    height, width = pictures(pair)[0].shape
    middle = [int(across * (width - 1)), int(down * (height - 1))]
    expected, share = torchvision_s(v2.CutMix(num_classes=2), pair, lam, middle, monkeypatch)
    arrays, sentence = mix(method="CutMix", pair=pair, lam=lam, across=across, down=down)
    np.testing.assert_array_equal(arrays["mixed"], expected)
    np.testing.assert_allclose(arrays["label"], [share, 1 - share, lam], rtol=1e-6, atol=1e-6)
    assert f"keeps {share:.3f} of the pixels" in sentence


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("lam", [0, 0.4, 1])
def test_mixup_is_torchvision_s(monkeypatch, pair, lam):
    expected, share = torchvision_s(v2.MixUp(num_classes=2), pair, lam, [], monkeypatch)
    arrays, _ = mix(pair=pair, lam=lam)
    np.testing.assert_allclose(arrays["mixed"], expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(arrays["label"], [share, 1 - share, lam], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lam", [0, 0.2, 0.4, 0.5, 0.6, 0.8, 1])
def test_the_label_counts_the_pixels_that_are_left(lam):
    first, second = pictures(PHOTOGRAPHS)
    for across in (0, 0.25, 0.5):
        mixed, share = mixture("CutMix", PHOTOGRAPHS, lam, across, 0.5)
        differs = first != second
        kept = (mixed == first)[differs].double().mean().item()
        assert share == pytest.approx(kept, abs=0.005)  # where both are equal nobody can tell


def test_a_box_in_the_middle_has_the_area_asked_for_and_a_corner_a_quarter():
    inside, corner = (mixture("CutMix", PHOTOGRAPHS, 0.75, at, at)[1] for at in (0.5, 0))
    assert inside == pytest.approx(0.75)
    assert corner == pytest.approx(1 - 0.25 / 4)
    assert box((8, 6), 0, 0, 1) == [3, 8, 0, 3]


def test_mixup_does_not_hear_the_place_of_the_box():
    frames = [mix(across=a, down=d) for a in (0, 1) for d in (0, 1)]
    assert all(np.array_equal(frames[0][0]["mixed"], f[0]["mixed"]) for f in frames)
    assert all(f[1] == frames[0][1] and "no box to move" in f[1] for f in frames)


def test_pictures_are_bright_and_photographs_name_their_authors():
    for pair, side in ((PHOTOGRAPHS, SIDE), (DIGITS, 8)):
        assert pictures(pair).shape == (2, side, side)
        assert 0 <= pictures(pair).min() < 0.2
        assert 0.7 < pictures(pair).max() <= 1
        assert ("CC BY 2.0" in mix(pair=pair)[1]) is (pair == PHOTOGRAPHS)


def test_a_label_that_follows_the_box_as_asked_is_seen(monkeypatch):
    whole = {**mix.compute.__globals__}["mixture"]
    monkeypatch.setitem(mix.compute.__globals__, "mixture",
                        lambda m, p, lam, a, d: (whole(m, p, lam, a, d)[0], lam))
    with pytest.raises(AssertionError), monkeypatch.context() as patch:
        test_cutmix_is_torchvision_s(patch, PHOTOGRAPHS, 0.5, 0, 0.5)


# ---- early stopping ---------------------------------------------------------------------------
VALLEY = [5, 4, 3, 4, 5, 2, 6, 7, 8, 9]


@pytest.mark.parametrize(("patience", "min_delta", "expected"), [
    (1, 0, (4, 3)), (2, 0, (5, 3)), (3, 0, (9, 6)), (9, 0, (10, 6)),  # patience bridges the hump
    (3, 1.5, (6, 3)), (2, 2.5, (3, 1)),  # 4 is not 1.5 below 5, 3 is; nothing is 2.5 below 5
])
def test_it_stops_where_one_counts_it_out(patience, min_delta, expected):
    assert stop(VALLEY, patience, min_delta, True)[:2] == expected
    assert stop([-v for v in VALLEY], patience, min_delta, False)[:2] == expected


def test_what_only_equals_the_best_is_no_improvement():
    assert stop([3, 3, 3, 3], 2, 0, True) == (3, 1, [3, 3, 3])


@pytest.mark.parametrize("watched", WATCHED)
def test_more_patience_never_stops_earlier_nor_keeps_a_worse_watched_value(watched):
    frames = [early_stopping(watched=watched, patience=p)[0] for p in (1, 2, 3, 5, 10, 20, 40)]
    stopped, kept = (np.array([f["epochs"][k] for f in frames], int) for k in (0, 1))
    assert (np.diff(stopped) >= 0).all()
    curve = frames[0]["curve"]
    values = curve[kept - 1] * (1 if "loss" in watched else -1)
    assert (np.diff(values) <= 0).all()
    best = np.argmin if "loss" in watched else np.argmax
    assert [best(curve[:s]) + 1 for s in stopped] == kept.tolist()


def test_best_so_far_is_the_running_minimum_until_the_stop_and_flat_after_it():
    arrays, _ = early_stopping(patience=10)
    stopped = int(arrays["epochs"][0])
    assert 10 < stopped < EPOCHS
    np.testing.assert_array_equal(arrays["so_far"][:stopped],
                                  np.minimum.accumulate(arrays["curve"][:stopped]))
    assert set(arrays["so_far"][stopped:]) == {arrays["curve"][:stopped].min()}


def test_an_accuracy_is_watched_upwards_and_min_delta_counts_in_points():
    coarse = early_stopping(watched="validation accuracy", patience=40, min_delta=0.05)[0]
    gains = np.diff(np.unique(coarse["so_far"]))
    assert len(gains) > 2
    assert gains.min() > 5


def test_without_restoring_you_keep_the_last_epoch_that_ran():
    with_, without = (early_stopping(restore=r, patience=10) for r in ("the best weights",
                                                                     "nothing"))
    assert without[0]["epochs"][0] == without[0]["epochs"][1] == with_[0]["epochs"][0]
    assert with_[0]["epochs"][1] == with_[0]["epochs"][0] - 10
    for arrays, sentence in (with_, without):
        kept = int(arrays["epochs"][1])
        assert set(arrays["keeps"]) == {arrays["test"][kept - 1]}
        assert f"You keep epoch {kept}: {arrays['test'][kept - 1]:.1f} %" in sentence


def test_the_curves_overfit_as_noisy_labels_make_them():
    curves = {w: early_stopping(watched=w)[0]["curve"] for w in WATCHED}
    assert curves["training loss"][-1] < 0.2 < 2 < curves["training loss"][0]
    assert 5 < curves["validation loss"].argmin() < EPOCHS / 2
    assert curves["validation loss"][-1] > 1.3 * curves["validation loss"].min()
    test = early_stopping()[0]["test"]
    assert test.max() > test[-1] + 8  # what stopping can save


def test_watching_the_training_loss_saves_nothing():
    arrays, sentence = early_stopping(watched="training loss", patience=10)
    assert arrays["epochs"][0] == EPOCHS
    assert f"runs all {EPOCHS} epochs" in sentence


def test_the_three_splits_share_no_digit_and_only_training_labels_are_wrong():
    x = torch.cat([rows for rows, _ in splits().values()])
    assert len(x) == 2 * ROWS + 497
    assert len(torch.unique(x, dim=0)) == len(x)
    clean = digits()
    assert (splits()["train"][1] != clean.y_train[:ROWS]).double().mean() == pytest.approx(
        0.3 * 0.9, abs=0.06)
    assert torch.equal(splits()["val"][1], clean.y_train[ROWS:2 * ROWS])


def test_a_training_repeats_itself_and_a_watch_on_the_wrong_split_is_seen(monkeypatch):
    first = early_stopping.live_frame({"patience": 3})
    train.cache_clear()
    torch.randn(3)
    assert early_stopping.live_frame({"patience": 3}) == first
    monkeypatch.setitem(WATCHED, "training loss", ("val", 0))
    with pytest.raises(AssertionError):
        test_watching_the_training_loss_saves_nothing()


# ---- the leak ledger --------------------------------------------------------------------------
COINS = "none, coin flips"


@pytest.fixture(scope="module")
def study():
    return Study(60, 50, 1.0)


@pytest.mark.parametrize(("ridge", "kept"), [GRID[0], GRID[-1], (1, 7)])
def test_the_model_is_scikit_learn_s_ridge_on_the_columns_most_linked(study, ridge, kept):
    (x, y), rows = study.train, study.test[0]
    got = fit(x, y, ridge, kept, study.train, study.train)(rows)
    for r in (0, REPEATS - 1):
        mean, std = x[r].numpy().mean(0), x[r].numpy().std(0, ddof=1)
        z, new = (x[r].numpy() - mean) / std, (rows[r].numpy() - mean) / std
        best = np.argsort(-np.abs(z.T @ y[r].numpy()))[:kept]
        model = Ridge(alpha=ridge, fit_intercept=False).fit(z[:, best], y[r].numpy())
        np.testing.assert_allclose(got[r], model.predict(new[:, best]), rtol=1e-6, atol=1e-9)


def likeness(a, b):
    """Correlation of two tables' rows, one patient at a time, averaged."""
    return torch.nn.functional.cosine_similarity(a[0], b[0], dim=2).mean().item()


def test_a_patient_resembles_himself_and_nobody_else(study):
    # The second visit adds 0.3 of noise to both: 1 / (1 + 0.09).
    assert likeness(study.train, study.train_again) == pytest.approx(1 / 1.09, abs=0.01)
    assert likeness(study.test_before, study.test) == pytest.approx(1 / 1.09, abs=0.01)
    for other in (study.test, study.test_before):
        assert likeness(study.train, other) == pytest.approx(0, abs=0.02)


def link(rows, columns):
    """How strongly these columns' sum goes with the label."""
    x, y = rows
    return (x[..., columns].sum(2) * y).mean().item()


def test_the_rule_turns_from_the_first_useful_columns_to_the_others(study):
    early, late, none = slice(0, 4), slice(4, INFORMATIVE), slice(INFORMATIVE, None)
    assert link(study.train, early) > 0.3
    assert link(study.later, early) < -0.3
    assert link(study.later, late) < link(study.test, late)
    assert link(study.test, late) > 0.3
    assert abs(link(study.train, none)) < 0.5  # 42 columns: a deviation of 6.5 / sqrt(1800)


def gained(leak, **chosen):
    """Points believed too much."""
    believed, gets, *_ = leak_ledger(leak=leak, **chosen)[0]["shown"]
    return believed - gets


# What a leak adds where labels are coin flips: nothing is to be had, so all of it is invented.
INVENTED = {"scaler sees the test": (-3, 3), "columns chosen on all rows": (8, 25),
            "patients on both sides": (15, 40), "settings tuned on test": (2, 10),
            "target in a column": (35, 50), "time shuffled": (-3, 3)}


@pytest.mark.parametrize("leak", LEAKS)
def test_of_coin_flips_no_model_knows_more_than_half_whatever_its_test_says(leak):
    arrays, sentence = leak_ledger(leak=leak, signal=COINS)
    believed, gets, honest, honest_gets = arrays["shown"]
    for truth in (gets, honest, honest_gets):
        assert truth == pytest.approx(50, abs=3)
    low, high = INVENTED[leak]
    assert low < believed - gets < high
    assert f"the test says {believed:.1f} %, new patients say {gets:.1f} %." in sentence


def test_shuffled_time_flatters_as_soon_as_there_is_a_rule_that_turns():
    assert gained("time shuffled", signal="strong", patients=300, columns=20) > 5
    assert abs(gained("scaler sees the test", signal="strong", patients=300, columns=20)) < 3


def test_more_patients_shrink_what_a_choice_on_all_rows_adds():
    small, large = (gained("columns chosen on all rows", signal=COINS, patients=n)
                    for n in (40, 300))
    assert large < small - 5


def test_choosing_all_columns_is_no_choice():
    assert gained("columns chosen on all rows", columns=20) == pytest.approx(
        gained("scaler sees the test", columns=20), abs=2)
    found = scores(100, 20, "strong")
    assert found["columns chosen on all rows"] == found[""]


def test_the_ledger_holds_every_leak_and_last_the_honest_way():
    arrays, _ = leak_ledger()
    expected = [max(0, gained(leak)) for leak in LEAKS]
    np.testing.assert_allclose(arrays["ledger"][:-1], expected)
    assert arrays["ledger"][-1] == pytest.approx(max(0, arrays["shown"][2] - arrays["shown"][3]))


def test_a_leak_that_leaks_nothing_is_seen(monkeypatch):
    monkeypatch.setitem(LEAKS, "patients on both sides", lambda s: s.honest())
    scores.cache_clear()
    with pytest.raises(AssertionError):
        test_of_coin_flips_no_model_knows_more_than_half_whatever_its_test_says(
            "patients on both sides")
    scores.cache_clear()
