"""Claims, data, training loop and figures, each tested against an independent value."""

import math
import re

import matplotlib as mpl
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import dlsys_helpers
from dlsys_helpers import accuracy, begin, claim, claims, digits, fit, plots, xor_quadrants


@pytest.mark.parametrize(("value", "bounds"), [
    (1.0, {"expected": 1.0}), (1.05, {"expected": 1.0, "within": 0.1}), (0, {"below": 1}),
    (2, {"above": 1, "below": 3}), (torch.tensor([4.0]), {"expected": 4}), (True, {"expected": 1}),
])
def test_claim_holds(value, bounds, capsys):
    claim("the sky is up", value, **bounds)
    assert capsys.readouterr().out.startswith("holds: the sky is up: ")


@pytest.mark.parametrize(("value", "bounds", "reading"), [
    (0.2414, {"below": 0.65}, "0.241, below 0.65"),
    (2.34e11, {"above": 1e10}, "2.34e+11, above 1e+10"),
    (1208.7, {"above": 1, "below": 3000}, "1209, above 1 and below 3000"),
    (1.461152, {"expected": 1.4612, "within": 1e-4}, "1.4612, expected 1.4612 ± 0.0001"),
    (-2e-7, {"expected": 0, "within": 1e-5}, "0, expected 0 ± 1e-05"),
    (81.0, {"expected": 81}, "81"),
    (torch.tensor(True), {"expected": True}, "yes"),
    (False, {"expected": False}, "no"),
])
def test_a_claim_shows_what_was_measured_beside_its_bound(value, bounds, reading, capsys):
    claim("the sky", value, **bounds)
    assert capsys.readouterr().out == f"holds: the sky: {reading}\n"


@pytest.mark.parametrize(("value", "bounds"), [
    (1.0, {"expected": 1.1}), (1.2, {"expected": 1.0, "within": 0.1}), (1, {"below": 1}),
    (1, {"above": 1}), (3, {"above": 1, "below": 3}), (math.nan, {"below": 1}),
    (math.nan, {"above": 1}), (math.nan, {"expected": math.nan}), (math.inf, {"expected": 0}),
])
def test_claim_fails(value, bounds):
    with pytest.raises(claims.ClaimFailed, match=r"the sky: got .*, expected "):
        claim("the sky", value, **bounds)
    assert claims.LOG[-1].holds is False


def test_a_failed_question_is_answered_yes_or_no():
    with pytest.raises(claims.ClaimFailed, match="the sky: got no, expected yes"):
        claim("the sky", torch.tensor(False), expected=True)


@pytest.mark.parametrize("bounds", [{}, {"expected": 1, "below": 2}, {"within": 1}])
def test_claim_needs_exactly_one_kind_of_bound(bounds):
    with pytest.raises(ValueError, match="expected either"):
        claim("nothing", 1, **bounds)


def test_failed_claim_shows_one_line_in_a_notebook():
    with pytest.raises(claims.ClaimFailed) as failed:
        claim("the sky", 1, below=0)
    assert failed.value._render_traceback_() == ["the sky: got 1, expected below 0."]


def test_digits_are_sklearns_all_of_them_once():
    split = digits()
    assert split.x_train.shape == (1300, 64)
    assert split.x_test.shape == (497, 64)
    assert split.y_test.dtype == torch.int64
    rows = np.concatenate([split.x_train, split.x_test]) * 16
    assert sorted(map(tuple, rows)) == sorted(map(tuple, load_digits().data))


def test_digits_do_not_depend_on_the_global_seed():
    torch.manual_seed(5)
    first = digits().y_test
    torch.manual_seed(6)
    assert torch.equal(first, digits().y_test)


def test_xor_labels_by_the_signs():
    x, y = xor_quadrants(50, seed=1)
    assert y.tolist() == [int((a < 0) != (b < 0)) for a, b in x.tolist()]
    with pytest.raises(ValueError, match="at least 1"):
        xor_quadrants(0, seed=1)


def test_fit_is_plain_sgd_by_hand():
    """One step on one row: w - lr * dloss/dw, with loss (w x - y)^2."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    losses = fit(model, torch.tensor([[2.0]]), torch.tensor([[1.0]]), steps=1, lr=0.1, batch=1,
                 loss=nn.functional.mse_loss, optimizer=torch.optim.SGD)
    assert losses == [25.0]                       # (3 * 2 - 1)^2
    assert model.weight.item() == pytest.approx(3 - 0.1 * 2 * 5 * 2)


def test_accuracy_uses_eval_mode_and_gives_modes_back():
    model = nn.Sequential(nn.Dropout(1.0), nn.Identity())
    model[1].eval()
    x = torch.eye(3)
    # in train mode the dropout leaves zeros, and only row 0 would be right
    assert accuracy(model, x, torch.tensor([0, 1, 2])) == 1.0
    assert accuracy(model, x, torch.tensor([0, 1, 0])) == pytest.approx(2 / 3)
    assert [m.training for m in model.modules()] == [True, True, False]


def test_begin_seeds_everything_and_refuses_nonsense():
    begin(3, 1, "cpu")
    first = (torch.rand(1).item(), np.random.rand())
    begin(3, 1, "cpu")
    assert first == (torch.rand(1).item(), np.random.rand())
    assert torch.get_num_threads() == 1
    for bad in ((-1, 1, "cpu"), (0, 0, "cpu"), (0, 1, "tpu")):
        with pytest.raises(ValueError, match="expected"):
            begin(*bad)


def luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour, WCAG 2.2."""
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", [*plots.COLOURS, plots.INK])
def test_plot_colours_are_readable_on_light_and_dark_pages(colour):
    """At least 3:1 on white and on the dark theme's #121212, as WCAG asks of graphics."""
    mine = luminance(colour)
    for ground in ("#ffffff", "#121212"):
        high, low = sorted((mine, luminance(ground)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 3


def test_series_differ_in_more_than_colour():
    assert len({str(d) for d in plots.DASHES}) == len(plots.DASHES) == len(plots.COLOURS)


def test_a_log_axis_says_so_and_an_empty_alt_is_refused():
    ax = plots.new_axes("finding", "rate", "loss", logx=True)
    assert re.search(r"\(log\)$", ax.get_xlabel())
    assert ax.get_title(loc="left") == "finding"
    with pytest.raises(ValueError, match="alt"):
        plots.show(ax.figure, " ")
    mpl.pyplot.close(ax.figure)


def test_public_names_are_sorted_documented_and_reachable():
    assert dlsys_helpers.__all__ == sorted(dlsys_helpers.__all__)
    for name in dlsys_helpers.__all__:
        assert getattr(dlsys_helpers, name).__doc__, name
    with pytest.raises(AttributeError, match="expected one of"):
        dlsys_helpers.chekc  # noqa: B018
