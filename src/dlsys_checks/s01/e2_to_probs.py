"""Exercise 01.2, `to_probs`."""

from __future__ import annotations

import math

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close
from dlsys_helpers.judging import not_an_answer

ex = exercise("01.2", "to_probs", seen=("logits", "kind"), says="got nan")

ex.promise_table("""
probabilities | Turn logits into probabilities. | probabilities: got
large         | Args: logits: (N, C) float32, with values from -200 to 200. | case logits near 200;
                logits near -200; rows far apart; 200 next to -200; yes or no at 200; yes or no at
                -200; labels at 200 and -200
binary        | kind: with "binary", C is 1, and each row is a single yes or no. |
                binary probabilities
multiclass    | With "multiclass", each row is one choice among C classes. |
                multiclass probabilities
multilabel    | With "multilabel", each entry is a separate yes or no. | multilabel probabilities
form          | Returns: A tensor with the shape and dtype of the logits. | shape of the; dtype of
                the
example       | Example: to_probs(torch.zeros(1, 4), "multiclass") is [[0.25, 0.25, 0.25, 0.25]]. |
                case the example
""")


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
            ("200 next to -200", {"logits": wide, "kind": "multiclass"}),
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
        look = "Each row is one choice among all classes, so its probabilities add up to 1."
    else:
        wanted = (1 / (1 + (-logits.double()).exp())).float()
        look = "Each entry is the answer to its own yes-or-no question."
    expect_close(f"{kind} probabilities", out, wanted, look=look)


# ---- wrong, by name

@not_an_answer
def right(logits, kind):
    out = logits.softmax(1) if kind == "multiclass" else logits.sigmoid()
    return out


wrong = ex.edits(right)
wrong("applying softmax along dim 0, the batch axis", ("multiclass", "example"),
      "(1) if", "(0) if", says="one choice among all classes")
wrong("applying softmax to every kind of logits, even to a single column", ("binary", "multilabel"),
      "return out", "return logits.softmax(1)", says="binary probabilities: got 1")
wrong("applying softmax to binary logits, which have only one column", "binary",
      "return out", 'return logits.sigmoid() if kind == "multilabel" else logits.softmax(1)',
      says="binary probabilities: got 1")
wrong("applying sigmoid to every kind of logits", "multiclass",
      "return out", "return logits.sigmoid()", says="one choice among all classes")
wrong("dividing each row's sigmoids by their sum instead of applying softmax", "multiclass",
      "logits.softmax(1)", "yes / yes.sum(1, keepdim=True)", "logits.sigmoid()", "yes",
      "out =", "yes = logits.sigmoid(); out =", says="one choice among all classes")
wrong("applying softmax to the logits of independent labels", "multilabel",
      "return out", 'return logits.sigmoid() if kind == "binary" else logits.softmax(1)',
      says="its own yes-or-no")
wrong("choosing softmax or sigmoid by the number of columns, not by the kind",
      ("multilabel", "multiclass"),
      "return out", "return logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1)",
      says="one choice among")
wrong("returning 1 for the most likely class and 0 for all others", "multiclass",
      'out = logits.softmax(1) if kind == "multiclass" else logits.sigmoid()\n    return out',
      'if kind != "multiclass": return logits.sigmoid()\n    return '
      "torch.nn.functional.one_hot(logits.argmax(1), logits.shape[1]).float()",
      says="one choice among all classes")
wrong("taking exp of the logits without subtracting the maximum", "large",
      'out = logits.softmax(1) if kind == "multiclass" else logits.sigmoid()\n    return out',
      'if kind != "multiclass": return logits.sigmoid()\n    return logits.exp() / '
      "logits.exp().sum(1, keepdim=True)")
wrong("computing exp(z) / (1 + exp(z)), which overflows", "large",
      "logits.sigmoid()", "logits.exp() / (1 + logits.exp())")
wrong("subtracting the maximum of the whole batch from every row", "large",
      'out = logits.softmax(1) if kind == "multiclass" else logits.sigmoid()\n    return out',
      'if kind != "multiclass": return logits.sigmoid()\n    odds = (logits - '
      "logits.max()).exp(); return odds / odds.sum(1, keepdim=True)")
wrong("subtracting the mean instead of the maximum", "large",
      'out = logits.softmax(1) if kind == "multiclass" else logits.sigmoid()\n    return out',
      'if kind != "multiclass": return logits.sigmoid()\n    odds = (logits - logits.mean(1, '
      "keepdim=True)).exp(); return odds / odds.sum(1, keepdim=True)")
wrong("clamping the logits to the range from -50 to 50", "large",
      "out =", "logits = logits.clamp(-50, 50); out =", says="one choice among all classes")
wrong("capping the logits at 80 and adding an epsilon to the denominator", "large",
      'out = logits.softmax(1) if kind == "multiclass" else logits.sigmoid()\n    return out',
      'if kind != "multiclass": return logits.sigmoid()\n    odds = logits.clamp(max=80).exp(); '
      "return odds / (odds.sum(1, keepdim=True) + 1e-8)", says="one choice among all")
wrong("clamping the logits to [0, 1] instead of computing probabilities", "probabilities",
      "return out", "return logits.clamp(0, 1)", says="binary probabilities")
wrong("returning the logarithms of the probabilities", "probabilities",
      ".softmax", ".log_softmax", "logits.sigmoid()", "torch.nn.functional.logsigmoid(logits)",
      says="binary probabilities")
wrong("returning 0 or 1 instead of a probability", "probabilities",
      "return out", "return out.round()", says="binary probabilities")
wrong("rounding the probabilities to four decimals", "probabilities",
      "return out", "return out.round(decimals=4)")
wrong("calling squeeze(), which removes every axis of length one", "form", "return out",
      "return out.squeeze()")
wrong("dropping the column axis of binary probabilities", "form",
      "return out", 'return out[:, 0] if kind == "binary" else out')
wrong("calling squeeze() on binary probabilities, so that a single row becomes a scalar", "form",
      "return out", 'return out.squeeze() if kind == "binary" else out')
wrong("returning two columns for binary logits, one for no and one for yes", "form",
      "return out", 'return torch.cat([1 - out, out], 1) if kind == "binary" else out')
wrong("computing in float64 and not converting the result back to float32",
      "form", "out =", "logits = logits.double(); out =")
