"""Exercise 03.1, `ce_from_logits`."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from dlsys_checks.registry import exercise
from dlsys_checks.s03.common import between, pair
from dlsys_helpers.acting import library_calls
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("03.1", "ce_from_logits", seen=("logits", "y"))

ex.promise_table("""
mean       | Compute mean cross-entropy and its gradient by hand. | loss:; gradient:
by hand    | Use neither PyTorch's loss functions nor autograd. | library functions used
shapes     | Args: logits: (N, C) float32. y: (N,) int64. | case many rows; one row; one class;
             two classes; a class without rows; logits stored by columns
form       | Returns: The loss, which is a tensor without dimensions, and its gradient with
             respect to the logits, of shape (N, C). | type of the; shape of the; returned value
size       | The logits are between -200 and 200. | case logits near 200; logits near -200; a
             right class 200 below the others; 200 and -200 in one row
rows apart | One row can be near 200 while a different row is near -200. | case one row near 200,
             one near -200
example    | Example: for logits zeros(1, 4) and y [0], the loss is 1.386 and the gradient is
             [[-.75, .25, .25, .25]]. | case the example
""")


@ex.cases
def cases(g):
    def table(rows, classes, scale=2.0):
        """Logits and labels; the last class occurs, so that labels tell how many there are."""
        y = torch.randint(classes, (rows,), generator=g)
        y[between(g, 0, rows - 1)] = classes - 1
        return {"logits": torch.randn(rows, classes, generator=g) * scale, "y": y}

    def near(value, rows, classes):
        case = table(rows, classes)
        case["logits"] = value - value / 200 * case["logits"].abs()
        case["logits"][:, between(g, 0, classes - 1)] = value
        return case

    def sizes():
        return between(g, 3, 8), between(g, 3, 7)

    absent = table(*sizes())
    absent["y"] %= absent["logits"].shape[1] - 1
    columns = table(*sizes())
    columns["logits"] = columns["logits"].T.contiguous().T
    lost, split = table(*sizes()), table(*sizes())
    for case, high in ((lost, None), (split, 200.0)):
        rows, right = torch.arange(len(case["y"])), case["y"]
        case["logits"][rows, (right + 1) % case["logits"].shape[1]] = high or 1.0
        case["logits"][rows, right] = -200.0
    apart, sure = table(between(g, 2, 6), between(g, 3, 7)), table(*sizes())
    apart["logits"] += torch.where(torch.arange(len(apart["y"])) % 2 == 1, -190.0, 190.0)[:, None]
    sure["logits"][torch.arange(len(sure["y"])), sure["y"]] += 9.0
    return [("some rows", table(*sizes())), ("many rows", table(between(g, 40, 70), 11)),
            ("one row", table(1, between(g, 20, 40))), ("one class", table(between(g, 2, 5), 1)),
            ("two classes", table(between(g, 3, 9), 2)), ("a class without rows", absent),
            ("logits stored by columns", columns), ("small logits", table(*sizes(), scale=1e-3)),
            ("confident and right", sure), ("logits near 200", near(200.0, *sizes())),
            ("logits near -200", near(-190.0, *sizes())),
            ("a right class 200 below the others", lost), ("200 and -200 in one row", split),
            ("one row near 200, one near -200", apart),
            ("the example", {"logits": torch.zeros(1, 4), "y": torch.tensor([0])})]


@ex.act
def act(fn, logits, y):
    with library_calls("cross_entropy", "cross_entropy_loss", "nll_loss", "nll_loss_nd", "kl_div",
                       "backward", "grad", "_make_dual") as used:
        answer = fn(logits, y)
    return {"answer": answer, "used": sorted(used)}


@ex.law
def law(out, logits, y):
    expect_parts(out, "answer", "used")
    loss, grad = pair(out["answer"], "loss, grad")
    losses, rows = [], []
    for row, label in zip(logits.double().tolist(), y.tolist(), strict=True):
        odds = [math.exp(v - max(row)) for v in row]
        losses.append(math.log(sum(odds)) + max(row) - row[label])
        rows.append([(o / sum(odds) - (k == label)) / len(y) for k, o in enumerate(odds)])
    # What rounding a logit costs: no formula in float32 can do better.
    rounding = 4 * torch.finfo(torch.float32).eps * float(logits.abs().max())
    expect_close("loss", loss, torch.tensor(sum(losses) / len(losses)), atol=rounding,
                 look="The loss is the mean over rows of logsumexp(z) - z_y.")
    expect_close("gradient", grad, torch.tensor(rows), atol=rounding / len(y),
                 look="The gradient of the mean is (softmax - one-hot) / N.")
    expect_equal("library functions used", out["used"], [], "Write both formulas by hand.")


def probabilities(logits):
    odds = (logits - logits.max(1, keepdim=True).values).exp()
    return odds / odds.sum(1, keepdim=True)


def slope(logits, y):
    return (probabilities(logits) - F.one_hot(y, logits.shape[1])) / len(y)


def chosen(table, y):
    """The entry of each row in the column of its label."""
    return table[torch.arange(len(y)), y]


def mean_loss(logits, y):
    return -chosen(logits.log_softmax(1), y).mean()


# ---- wrong, by name

@not_an_answer
def loss_and_slope(logits, y):
    return mean_loss(logits, y), slope(logits, y)


wrong = ex.edits(loss_and_slope)
MEAN_LOSS = "mean_loss(logits, y)"
LOGITS = ", slope(logits, y)"
MEAN_LOSS_2 = "return mean_loss"
END = "return mean_loss(logits, y), slope(logits, y)"
wrong("computing the softmax first and then its logarithm", "size",
      MEAN_LOSS, "-chosen(logits.softmax(1), y).log().mean()", says="loss: got inf")
wrong("adding a small constant inside the logarithm", "size",
      MEAN_LOSS, "-(chosen(logits.softmax(1), y) + 1e-9).log().mean()", says="loss: got 20.")
wrong("clamping the probabilities to at least 1e-12 before the logarithm", "size",
      MEAN_LOSS, "-chosen(logits.softmax(1), y).clamp(min=1e-12).log().mean()", says="loss: got")
wrong("taking exp of raw logits without subtracting a maximum", ("size", "rows apart"),
      MEAN_LOSS, "(logits.exp().sum(1).log() - chosen(logits, y)).mean()", says="loss: got inf")
wrong("dividing exp of raw logits by its sum, without subtracting a maximum",
      ("size", "rows apart"),
      END,
      "odds = logits.exp(); p = odds / odds.sum(1, keepdim=True); return -chosen(p, "
      "y).log().mean(), (p - F.one_hot(y, logits.shape[1])) / len(y)", says="loss: got nan")
wrong("subtracting the maximum of the whole batch from every row", "rows apart",
      "return mean_loss(logits, y)",
      "top = logits.max(); lse = (logits - top).exp().sum(1).log() + top; return (lse - "
      "chosen(logits, y)).mean()", says="loss: got -inf")
wrong("applying softmax before the loss, which applies softmax again", "mean",
      MEAN_LOSS_2, f"p = logits.softmax(1); {MEAN_LOSS_2}",
      "(logits, y), slope(logits", "(p, y), slope(p")
wrong("taking the mean over rows and classes", "mean",
      END, f"classes = logits.shape[1]; return {MEAN_LOSS} / classes, slope(logits, y) / classes")
wrong("taking the sum over rows instead of the mean", "mean",
      "mean_loss(logits, y), slope(logits, y)", MEAN_LOSS + " * len(y), slope(logits, y) * len(y)")
wrong("returning the mean loss with the gradient of the sum", "mean", LOGITS, LOGITS + " * len(y)")
wrong("dividing the gradient by the number of its entries",
      "mean", LOGITS, LOGITS + " / logits.shape[1]")
wrong("indexing the loss by [:, y], which takes all labels' columns in every row", "mean",
      MEAN_LOSS, "-logits.log_softmax(1)[:, y].mean()")
wrong("indexing the gradient by [:, y], which takes all labels' columns in every row", "mean",
      MEAN_LOSS_2, f"grad = probabilities(logits); grad[:, y] -= 1; {MEAN_LOSS_2}",
      LOGITS, ", grad / len(y)")
wrong("returning the probabilities as the gradient, without subtracting the one-hot labels", "mean",
      LOGITS, ", probabilities(logits) / len(y)")
wrong("flipping the sign of the gradient", "mean", LOGITS, ", -slope(logits, y)")
wrong("calling cross_entropy and autograd instead of writing both formulas", "by hand",
      END,
      "leaf = logits.clone().requires_grad_(); loss = F.cross_entropy(leaf, y); return "
      "loss.detach(), torch.autograd.grad(loss, leaf)[0]", says="by hand")
wrong("assuming that rows are contiguous in memory", "shapes",
      "return mean_loss(logits, y)",
      "at = torch.arange(len(y)) * logits.shape[1] + y; return (logits.logsumexp(1) - "
      "logits.view(-1)[at]).mean()", says="raised RuntimeError")
wrong("inferring the number of classes from the labels", ("shapes", "example"),
      LOGITS, ", (probabilities(logits) - F.one_hot(y)) / len(y)", says="raised RuntimeError")
wrong("calling squeeze(), which removes every axis of length one", ("shapes", "example"),
      MEAN_LOSS_2, f"z = logits.squeeze(); {MEAN_LOSS_2}",
      "(logits, y), slope(logits", "(z, y), slope(z", says="raised")
wrong("returning a loss with one dimension", "form",
      MEAN_LOSS, MEAN_LOSS + "[None]", says="shape of the loss")
wrong("returning the loss as a Python number", "form",
      MEAN_LOSS, MEAN_LOSS + ".item()", says="type of the loss")
wrong("returning a gradient of zero if all logits are equal", "example",
      MEAN_LOSS_2, f"some = logits.amax() > logits.amin(); {MEAN_LOSS_2}",
      LOGITS, LOGITS + " * some", says="gradient:")
