"""The numbers in the ledger of leaks: the model, and what each leak adds."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from dlsys_helpers.leaks import GRID, REPEATS, Study, fit, scores


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


def test_what_a_scaler_learns_of_the_test_adds_nothing_and_a_written_label_most():
    added = {leak: told - true for leak, (told, true) in scores(40, 50).items()}
    assert abs(added["scaler sees the test"] - added["no leak"]) < 3
    assert max(added, key=added.get) == "target in a column"
