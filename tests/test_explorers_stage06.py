"""Stage 6's explorers against torchvision, closed forms and loops written out by hand."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from dlsys_helpers.explorers.early_stopping import stop, train
from dlsys_helpers.explorers.mix import PAIRS, mix, pictures


@pytest.fixture(autouse=True, scope="module")
def nothing_cached():
    """Keep what we compute here, with the tests' own threads, from other test files."""
    yield
    train.cache_clear()


# ---- Mixup and CutMix -------------------------------------------------------------------------
class Always:
    """A distribution that always returns the same number."""

    def __init__(self, lam):
        self.lam = lam

    def sample(self, _shape):
        return self.lam


def torchvision_s(transform, pair, lam, middle, monkeypatch):
    """torchvision's first picture and label from the pair, for a given draw."""
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


# ---- early stopping ---------------------------------------------------------------------------
VALLEY = [5, 4, 3, 4, 5, 2, 6, 7, 8, 9]


@pytest.mark.parametrize(("patience", "min_delta", "expected"), [
    (1, 0, (4, 3)), (2, 0, (5, 3)), (3, 0, (9, 6)), (9, 0, (10, 6)),  # patience bridges the hump
    (3, 1.5, (6, 3)), (2, 2.5, (3, 1)),  # 4 is not 1.5 below 5, 3 is; nothing is 2.5 below 5
])
def test_it_stops_where_one_counts_it_out(patience, min_delta, expected):
    assert stop(VALLEY, patience, min_delta, True)[:2] == expected
    assert stop([-v for v in VALLEY], patience, min_delta, False)[:2] == expected
