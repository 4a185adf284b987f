"""What each leak adds to the score you believe, all on the same data.

    scores(patients=100, columns=100)["target in a column"]   # what the test says, what is true
"""

import math

import torch

REPEATS, FRESH = 30, 300        # tables drawn; new patients that judge a model
INFORMATIVE, KEPT, RIDGE = 8, 20, 1.0
TURN = 0.7 * math.pi             # how far the rule has turned at time 1
FIRST, SECOND, LATER = (0, 0.75), (0.75, 1), (1, 1.25)  # when visits happen
GRID = [(ridge, kept) for ridge in (0.01, 0.1, 1, 10, 100) for kept in (5, 10, 20, 40)]


def visits(g, times, x, noise, signal):
    """Rows and labels (-1 or 1) of patients x (R, n, columns) seen at `times` (R, n).

    The rule that sets the labels turns with time; a patient's own luck, `noise`, stays the same.
    """
    seen = x + 0.3 * torch.randn(x.shape, generator=g, dtype=x.dtype)
    half = INFORMATIVE // 2
    now = (TURN * times).cos() * x[..., :half].sum(2) + (TURN * times).sin() * x[
        ..., half:INFORMATIVE].sum(2)
    return seen, (signal * now / half**0.5 + noise).sign()


def draw(g, n, columns, signal, periods):
    """n patients with one visit per period (start, end): [(rows (R, n, columns), labels)]."""
    x = torch.randn(REPEATS, n, columns, generator=g, dtype=torch.float64)
    noise = torch.randn(REPEATS, n, generator=g, dtype=torch.float64)
    return [visits(g, start + (end - start) * torch.rand(noise.shape, generator=g, dtype=x.dtype),
                   x, noise, signal) for start, end in periods]


def fit(x, y, ridge, kept, scale_on, choose_on):
    """A function from rows to scores (R, n): scaled, the `kept` best columns, ridge regression.

    scale_on and choose_on: the (rows, labels) that the scaler and the choice look at.
    """
    mean, std = scale_on[0].mean(1, keepdim=True), scale_on[0].std(1, keepdim=True)
    z, towards = (choose_on[0] - mean) / std, choose_on[1]
    linked = torch.einsum("rnc,rn->rc", z, towards).abs()
    best = linked.topk(min(kept, x.shape[2])).indices[:, None]
    mean, std = mean.gather(2, best), std.gather(2, best)

    def features(rows):
        return (rows.gather(2, best.expand(-1, rows.shape[1], -1)) - mean) / std
    a = features(x)
    gram = a.mT @ a + ridge * torch.eye(a.shape[2], dtype=a.dtype)
    w = torch.linalg.solve(gram, a.mT @ y[..., None])
    return lambda rows: (features(rows) @ w)[..., 0]


def right(predict, x, y):
    """Percent of rows on the right side of 0, by repetition (R,)."""
    return 100 * (predict(x) * y > 0).double().mean(1)


class Study:
    """One draw of all tables: patients to train with, patients to test with, each seen twice.

    Each method trains once and returns two percentages: what the test says, and what the same
    model does on FRESH new patients of the quarter after its training.
    """

    def __init__(self, patients, columns, signal):
        self.g = torch.Generator().manual_seed(0)
        twice = (patients, columns, signal, (FIRST, SECOND))
        self.train, self.train_again = draw(self.g, *twice)
        self.test_before, self.test = draw(self.g, *twice)
        self.fresh, self.later = draw(self.g, FRESH, columns, signal, (SECOND, LATER))
        self.all = tuple(torch.cat(pair, 1) for pair in zip(self.train, self.test, strict=True))

    def honest(self, train=None, test=None, fresh=None, scale_on=None, choose_on=None):
        """Train on first visits, test on second visits of others, unless a leak says otherwise."""
        train = train or self.train
        predict = fit(*train, RIDGE, KEPT, scale_on or train, choose_on or train)
        return [right(predict, *rows).mean().item()
                for rows in (test or self.test, fresh or self.fresh)]

    def tuned(self):
        """The setting of GRID that is best on test, for each repetition."""
        models = [fit(*self.train, *setting, self.train, self.train) for setting in GRID]
        on_test, on_fresh = (torch.stack([right(m, *rows) for m in models])
                             for rows in (self.test, self.fresh))
        best, which = on_test.max(0)
        return [best.mean().item(), on_fresh.gather(0, which[None]).mean().item()]

    def shuffled(self):
        """Draw each patient's visit at random, so some training rows are later than test rows."""
        first = torch.rand(self.train[1].shape, generator=self.g) < 0.5

        def either(one, other):
            return (torch.where(first[..., None], one[0], other[0]),
                    torch.where(first, one[1], other[1]))
        return self.honest(either(self.train, self.train_again),
                           either(self.test_before, self.test), self.later)

    def with_target(self):
        """A column that is written after the fact, from the label; for new patients it is empty."""
        def beside(rows, known):
            after = rows[1] + 0.5 * torch.randn(rows[1].shape, generator=self.g)
            return torch.cat([rows[0], known * after[..., None]], 2), rows[1]
        return self.honest(beside(self.train, 1), beside(self.test, 1), beside(self.fresh, 0))


LEAKS = {"scaler sees the test": lambda s: s.honest(scale_on=s.all),
         "columns chosen on all rows": lambda s: s.honest(choose_on=s.all),
         "patients on both sides": lambda s: s.honest(train=s.test_before),
         "settings tuned on test": Study.tuned, "target in a column": Study.with_target,
         "time shuffled": Study.shuffled}


def scores(patients, columns, signal=3.0):
    """Percent right on the test and on new patients, by leak; "no leak" is the last.

    patients: number to train with, and as many to test with. columns: 8 of them are useful.
    signal: how strongly those 8 decide, 0 for coin flips.
    """
    study = Study(patients, columns, signal)
    return {leak: run(study) for leak, run in {**LEAKS, "no leak": Study.honest}.items()}
