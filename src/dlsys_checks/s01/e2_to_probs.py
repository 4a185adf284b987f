"""Exercise 01.2, `to_probs`."""

from __future__ import annotations

import math

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close
from dlsys_helpers.judging import not_an_answer

ex = exercise("01.2", "to_probs", seen=("logits", "kind"), says="got nan")

ex.promise("probabilities", "Probabilities for logits (N, C) float32,",
           says=("probabilities: got",))
ex.promise("form", "same shape and dtype.", says=("shape of the", "dtype of the"))
ex.promise("binary", 'kind: "binary" (one column, yes or no),', says=("binary probabilities",))
ex.promise("multiclass", '"multiclass" (each row is one choice among C classes)',
           says=("multiclass probabilities",))
ex.promise("multilabel", 'or "multilabel" (each entry is a yes or no of its own).',
           says=("multilabel probabilities",))
ex.promise("large", "Logits may be as large as 200 either way.",
           cases=("logits near 200", "logits near -200", "rows far apart", "200 beside -200",
                  "yes or no at 200", "yes or no at -200", "labels at 200 and -200"))
ex.promise("example", 'Example: to_probs(torch.zeros(1, 4), "multiclass") is four times 0.25.',
           cases=("the example",))


@ex.cases
def cases(g):
    def logits(*shape, scale=2.0):
        return torch.randn(*shape, generator=g) * scale

    number = integers(g)

    def near(top, *shape):
        return top * (1 - 0.02 * torch.rand(*shape, generator=g))  # never beyond 200

    far = logits(3, number(2, 6)) + torch.tensor([[-190.0], [0.0], [190.0]])
    wide = logits(4, number(3, 7))
    wide[:, 0], wide[:, 1] = 200.0, -200.0
    wide[1, 2], wide[3, :] = 199.0, wide[3, :].flip(0)
    ends = logits(number(3, 6), 3)
    ends[0], ends[-1] = 200.0, -200.0
    return [("one column, binary", {"logits": logits(number(6, 11), 1), "kind": "binary"}),
            ("one row, binary", {"logits": logits(1, 1), "kind": "binary"}),
            ("several classes", {"logits": logits(number(6, 10), number(3, 6)),
                                 "kind": "multiclass"}),
            ("more classes than rows", {"logits": logits(3, number(8, 13)), "kind": "multiclass"}),
            ("one row of classes", {"logits": logits(1, number(4, 8)), "kind": "multiclass"}),
            ("one class only", {"logits": logits(number(3, 6), 1), "kind": "multiclass"}),
            ("classes, a transposed view", {"logits": logits(number(3, 6), 7).T,
                                            "kind": "multiclass"}),
            ("independent labels", {"logits": logits(number(5, 9), number(2, 6)),
                                    "kind": "multilabel"}),
            ("one label", {"logits": logits(number(2, 5), 1), "kind": "multilabel"}),
            ("logits near 200", {"logits": near(200.0, 4, number(2, 5)), "kind": "multiclass"}),
            ("logits near -200", {"logits": near(-200.0, 3, number(2, 5)), "kind": "multiclass"}),
            ("rows far apart", {"logits": far, "kind": "multiclass"}),
            ("200 beside -200", {"logits": wide, "kind": "multiclass"}),
            ("yes or no at 200", {"logits": near(200.0, number(3, 7), 1), "kind": "binary"}),
            ("yes or no at -200", {"logits": near(-200.0, number(3, 7), 1), "kind": "binary"}),
            ("labels at 200 and -200", {"logits": ends, "kind": "multilabel"}),
            ("the example", {"logits": torch.zeros(1, 4), "kind": "multiclass"})]


def choice(row):
    """Shares of one row of logits, in Python's float64."""
    odds = [math.exp(value - max(row)) for value in row]
    return [odd / sum(odds) for odd in odds]


@ex.law
def law(out, logits, kind):
    if kind == "multiclass":
        wanted = torch.tensor([choice(row) for row in logits.tolist()])
        look = "Each row is one choice among all classes: its sum is 1."
    else:
        wanted = (1 / (1 + (-logits.double()).exp())).float()
        look = "Each entry answers its own yes-or-no question."
    expect_close(f"{kind} probabilities", out, wanted, look=look)


# ---- wrong, by name

@not_an_answer
def right(logits, kind):
    return logits.softmax(1) if kind == "multiclass" else logits.sigmoid()


ex.wrong("softmax over dim 0, the batch",
         lambda logits, kind: logits.softmax(0) if kind == "multiclass" else logits.sigmoid(),
         says="one choice among all classes", breaks=("multiclass", "example"))
ex.wrong("softmax for everything, one column included", lambda logits, kind: logits.softmax(1),
         says="binary probabilities: got 1", breaks=("binary", "multilabel"))
ex.wrong("softmax for one column",
         lambda logits, kind: logits.sigmoid() if kind == "multilabel" else logits.softmax(1),
         says="binary probabilities: got 1", breaks="binary")
ex.wrong("sigmoid for everything", lambda logits, kind: logits.sigmoid(),
         says="one choice among all classes", breaks="multiclass")


@ex.wrong("sigmoids divided by their sum", says="one choice among all classes", breaks="multiclass")
def shared_sigmoids(logits, kind):
    yes = logits.sigmoid()
    return yes / yes.sum(1, keepdim=True) if kind == "multiclass" else yes


ex.wrong("softmax for independent labels",
         lambda logits, kind: logits.sigmoid() if kind == "binary" else logits.softmax(1),
         says="its own yes-or-no", breaks="multilabel")
ex.wrong("the number of columns asked instead of the kind",
         lambda logits, kind: logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1),
         says="one choice among", breaks=("multilabel", "multiclass"))


@ex.wrong("the most likely class alone", says="one choice among all classes", breaks="multiclass")
def hard_choice(logits, kind):
    if kind != "multiclass":
        return logits.sigmoid()
    return torch.nn.functional.one_hot(logits.argmax(1), logits.shape[1]).float()


@ex.wrong("exp without subtracting the maximum", breaks="large")
def overflowing(logits, kind):
    if kind != "multiclass":
        return logits.sigmoid()
    return logits.exp() / logits.exp().sum(1, keepdim=True)


@ex.wrong("exp(z) / (1 + exp(z)), which overflows", breaks="large")
def overflowing_odds(logits, kind):
    return logits.softmax(1) if kind == "multiclass" else logits.exp() / (1 + logits.exp())


@ex.wrong("one maximum for the whole batch", breaks="large")
def one_maximum(logits, kind):
    if kind != "multiclass":
        return logits.sigmoid()
    odds = (logits - logits.max()).exp()
    return odds / odds.sum(1, keepdim=True)


@ex.wrong("the mean subtracted instead of the maximum", breaks="large")
def minus_mean(logits, kind):
    if kind != "multiclass":
        return logits.sigmoid()
    odds = (logits - logits.mean(1, keepdim=True)).exp()
    return odds / odds.sum(1, keepdim=True)


ex.wrong("logits clamped to 50 before", lambda logits, kind: right(logits.clamp(-50, 50), kind),
         says="one choice among all classes", breaks="large")


@ex.wrong("an epsilon in the denominator instead of the maximum", says="one choice among all",
          breaks="large")
def epsilon_below(logits, kind):
    if kind != "multiclass":
        return logits.sigmoid()
    odds = logits.clamp(max=80).exp()
    return odds / (odds.sum(1, keepdim=True) + 1e-8)


ex.wrong("raw logits clamped to [0, 1]", lambda logits, kind: logits.clamp(0, 1),
         says="binary probabilities", breaks="probabilities")


@ex.wrong("logarithms of the probabilities", says="binary probabilities", breaks="probabilities")
def logarithms(logits, kind):
    return logits.log_softmax(1) if kind == "multiclass" else (
        torch.nn.functional.logsigmoid(logits))


ex.wrong("yes or no instead of how likely", lambda logits, kind: right(logits, kind).round(),
         says="binary probabilities", breaks="probabilities")
ex.wrong("answers rounded to four digits",
         lambda logits, kind: right(logits, kind).round(decimals=4), breaks="probabilities")
ex.wrong("axes of length one squeezed away", lambda logits, kind: right(logits, kind).squeeze(),
         breaks="form")


ex.wrong("the only column dropped",
         lambda logits, kind: right(logits, kind)[:, 0] if kind == "binary" else right(
             logits, kind), breaks="form")
ex.wrong("yes or no squeezed, so that one row is a number",
         lambda logits, kind: right(logits, kind).squeeze() if kind == "binary" else right(
             logits, kind), breaks="form")


@ex.wrong("a column for no beside the one for yes", breaks="form")
def two_columns(logits, kind):
    yes = right(logits, kind)
    return torch.cat([1 - yes, yes], 1) if kind == "binary" else yes


ex.wrong("float64 and not back", lambda logits, kind: right(logits.double(), kind), breaks="form")
