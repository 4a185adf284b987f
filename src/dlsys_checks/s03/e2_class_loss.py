"""Exercise 03.2, `class_loss`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.registry import exercise
from dlsys_checks.s03.common import between
from dlsys_helpers.expect import Broken, expect_close, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("03.2", "class_loss", seen=("scores", "labels"), says="rows that have a label")

NO_LABEL = -1

COLUMNS = ("labels as a column", "a column of one row", "a column cut from a table",
           "a column with as many rows as classes")
GAPS = ("rows without a label", "a column with gaps", "a column cut from a table",
        "one row with a label", "large scores in rows without a label", "the example")
ex.promise_table("""
mean        | Compute mean cross-entropy over the rows that have a label. | loss:; gradient with
              respect to the scores:
logits      | Args: scores: logits, (N, C) float32. | case scores far apart; scores near 200; one
              row; two classes; a class without rows
flat labels | labels: int64 of shape (N,). | case labels of shape (N,); as many rows as classes;
              scores far apart; scores near 200; one row; two classes; a class without rows; rows
              without a label; one row with a label; large scores in rows without a label
""")
ex.promise("a column", "The labels can also be a column (N, 1) that was cut from a table.",
           cases=(*COLUMNS, "a column with gaps", "the example"))
ex.promise("gaps", f"A label of {NO_LABEL} means that the row has no label and does not count.",
           cases=GAPS)
ex.promise("form", "Returns: A tensor without dimensions.",
           says=("type of the loss", "shape of the loss"))
ex.promise("connected", "The result is connected to the graph.",
           says=("connected to the scores", "gradient with respect to the scores:"))
ex.promise("example", f"Example: for scores zeros(2, 4) and labels [[1], [{NO_LABEL}]], the "
           "loss is 1.386.", cases=("the example",))


@ex.cases
def cases(g):
    def table(rows, classes, scale=2.0, missing=0):
        """Scores and labels, without `missing` of them; the last class occurs."""
        labels = torch.randint(classes, (rows,), generator=g)
        order = torch.randperm(rows, generator=g)
        labels[order[0]] = classes - 1
        labels[order[rows - missing:]] = NO_LABEL
        return {"scores": torch.randn(rows, classes, generator=g) * scale, "labels": labels}

    def column(case):
        return {**case, "labels": case["labels"][:, None]}

    def sizes():
        rows, classes = between(g, 4, 9), between(g, 3, 7)
        return rows + (rows == classes), classes

    far, absent, loud = table(*sizes()), table(*sizes()), table(*sizes(), missing=2)
    high = table(*sizes())
    high["scores"] += 190.0
    far["scores"][torch.arange(len(far["labels"])), far["labels"]] -= 150.0
    absent["labels"] %= absent["scores"].shape[1] - 1
    loud["scores"][loud["labels"] < 0] *= 1e4
    cut = table(*sizes(), missing=1)
    wide = torch.randint(9, (len(cut["labels"]), 3), generator=g)
    wide[:, 1] = cut["labels"]
    square, many = between(g, 4, 6), between(g, 30, 60)
    return [("labels of shape (N,)", table(*sizes())),
            ("labels as a column", column(table(*sizes()))),
            ("as many rows as classes", table(square, square)),
            ("a column with as many rows as classes", column(table(square + 1, square + 1))),
            ("a column cut from a table", {**cut, "labels": wide[:, 1:2]}),
            ("scores far apart", far), ("scores near 200", high),
            ("one row", table(1, 6)), ("two classes", table(many, 2)),
            ("a class without rows", absent), ("a column of one row", column(table(1, 5))),
            ("rows without a label", table(many, 12, missing=between(g, 3, 20))),
            ("a column with gaps", column(table(between(g, 7, 11), 3, missing=4))),
            ("one row with a label", table(square, 8, missing=square - 1)),
            ("large scores in rows without a label", loud),
            ("the example", {"scores": torch.zeros(2, 4),
                             "labels": torch.tensor([[1], [NO_LABEL]])})]


@ex.act
def act(fn, scores, labels):
    loss = fn(scores.requires_grad_(), labels)
    if type(loss) is not torch.Tensor or not loss.requires_grad or loss.numel() != 1:
        return {"loss": loss, "grad": None}
    return {"loss": loss, "grad": torch.autograd.grad(loss.sum(), scores, allow_unused=True)[0]}


@ex.law
def law(out, scores, labels):
    expect_parts(out, "loss", "grad")
    y, z = labels.flatten().tolist(), scores.double()
    keep = [k for k, label in enumerate(y) if label != NO_LABEL]
    logs = z - z.logsumexp(1, keepdim=True)
    wanted = -sum(logs[k, y[k]] for k in keep) / len(keep)
    grad = torch.zeros_like(z)
    for k in keep:
        grad[k] = logs[k].exp() / len(keep)
        grad[k, y[k]] -= 1 / len(keep)
    # What rounding a score costs: no formula in float32 can do better.
    rounding = 4 * torch.finfo(torch.float32).eps * float(z[keep].abs().max())
    expect_close("loss", out["loss"], wanted.float(), atol=rounding,
                 look="Average the cross-entropy over the rows that have a label.")
    if out["grad"] is None:
        raise Broken("gradient with respect to the scores", "none", "a tensor",
                     "The loss has to stay connected to the scores.")
    expect_close("gradient with respect to the scores", out["grad"], grad.float(),
                 atol=(rounding + 1e-6) / len(keep),
                 look="The gradient is zero in rows without a label. In all other rows, it is "
                      "(softmax - one-hot), divided by the number of labelled rows.")


def labelled(scores, labels):
    y = labels.reshape(-1)
    return scores[y >= 0], y[y >= 0]


# ---- wrong, by name

@not_an_answer
def class_loss(scores, labels):
    flat = labels.reshape(-1)
    return F.cross_entropy(scores, flat, ignore_index=NO_LABEL)


wrong = ex.edits(class_loss)
CROSS_ENTROPY = "F.cross_entropy(scores, flat, ignore_index=NO_LABEL)"
IGNORE_INDEX = "flat, ignore_index=NO_LABEL"
wrong("taking the squared error of the expected class number", "mean",
      "flat =",
      "z, y = labelled(scores, labels); expected = z.softmax(1) @ torch.arange(z.shape[1], "
      "dtype=z.dtype); return (expected - y).square().mean(); flat =")
wrong("broadcasting a column of labels against every row", "a column",
      "flat =",
      "keep = labels >= 0; picked = scores.log_softmax(1)[torch.arange(len(scores)), "
      "labels.clamp(min=0)]; return -(picked * keep).sum() / (keep.expand_as(picked)).sum(); "
      "flat =", says="loss:")
wrong("assuming that labels are always a column", "flat labels",
      "flat,", "labels[:, 0],", says="raised IndexError")
wrong("squeezing a column of labels, so that a single label becomes a scalar", "a column",
      "flat =", "y =", "labels.reshape(-1)", "labels.squeeze() if labels.dim() == 2 else labels",
      "flat,", "y,", says="raised ValueError")
wrong("squeezing labels of any shape, so that a single label becomes a scalar",
      ("flat labels", "a column"),
      "flat,", "labels.squeeze(),", says="raised ValueError")
wrong("passing a column of labels to cross_entropy unchanged",
      "a column", "flat,", "labels,", says="raised RuntimeError")
wrong("calling squeeze(1), which fails for labels of shape (N,)", "flat labels",
      "flat,", "labels.squeeze(1),", says="raised IndexError")
wrong("passing raw scores to nll_loss, without log_softmax", "mean",
      CROSS_ENTROPY, "F.nll_loss(*labelled(scores, labels))")
wrong("passing probabilities to nll_loss, without a logarithm", "mean",
      ".cross_entropy", ".nll_loss", "scores, flat", "scores.softmax(1), labels.reshape(-1)")
wrong("taking the squared error after a softmax", "mean",
      "flat =",
      "z, y = labelled(scores, labels); return (z.softmax(1) - F.one_hot(y, "
      "z.shape[1])).square().sum(1).mean(); flat =")
wrong("taking the squared error of raw scores and one-hot labels", "mean",
      "flat =",
      "z, y = labelled(scores, labels); return F.mse_loss(z, F.one_hot(y, z.shape[1]).float()); "
      "flat =")
wrong("taking the sum over rows instead of the mean", "mean",
      IGNORE_INDEX, 'labels.reshape(-1), ignore_index=NO_LABEL, reduction="sum"')
wrong("treating class 0 as a missing label", "mean",
      "flat =", "y =", CROSS_ENTROPY,
      '(F.cross_entropy(scores, y, ignore_index=NO_LABEL, reduction="none") * (y > 0)).sum() / '
      "(y > 0).sum()")
wrong("dividing the sum by the number of all rows, with or without a label", "gaps",
      "flat =", "y =",
      CROSS_ENTROPY, 'F.cross_entropy(scores, y, ignore_index=NO_LABEL, reduction="sum") / len(y)')
wrong(f"treating {NO_LABEL} as class 0", "gaps",
      IGNORE_INDEX, "labels.reshape(-1).clamp(min=0)", says="rows that have a label")
wrong(f"treating {NO_LABEL} as the last class", "gaps",
      "flat =", "y =", IGNORE_INDEX, "y.masked_fill(y == NO_LABEL, scores.shape[1] - 1)",
      says="rows that have a label")
wrong(f"handling {NO_LABEL} only in labels of shape (N,)", "gaps",
      "flat =",
      "if labels.dim() == 2: return F.cross_entropy(scores, labels[:, 0])\n    return "
      "F.cross_entropy(scores, labels, ignore_index=NO_LABEL); flat =", says="raised IndexError")
wrong("setting the scores of rows without a label to zero and counting these rows", "gaps",
      "flat =", "y =",
      "scores, flat, ignore_index=NO_LABEL", "scores * (y >= 0)[:, None], y.clamp(min=0)")
wrong("applying softmax before the cross-entropy", "mean",
      "flat =", "z, y =", "labels.reshape(-1)", "labelled(scores, labels)",
      "scores, flat, ignore_index=NO_LABEL", "z.softmax(1), y", trap="03.1")
wrong("computing the softmax first and then its logarithm", "logits",
      "flat =", "z, y = labelled(scores, labels); return F.nll_loss(z.softmax(1).log(), y); flat =",
      says="loss: got inf", trap="03.1")
wrong("taking exp of raw scores without subtracting a maximum", "logits",
      "flat =",
      "z, y = labelled(scores, labels); return (z.exp().sum(1).log() - z[torch.arange(len(y)), "
      "y]).mean(); flat =", says="loss: got inf", trap="03.1")
wrong("disconnecting the loss from the graph, as item() or detach() does", "connected",
      "flat =",
      "z, y = labelled(scores, labels); return torch.tensor(F.cross_entropy(z, y).item()); flat =")
wrong("detaching the softmax's denominator from the graph", "connected",
      "flat =",
      "z, y = labelled(scores, labels); return (z.detach().logsumexp(1) - "
      "z[torch.arange(len(y)), y]).mean(); flat =")
wrong("returning a loss with one dimension", "form",
      "flat =", "z, y = labelled(scores, labels); return F.cross_entropy(z, y)[None]; flat =")
wrong("returning 0 if all scores are zero", "example",
      "flat =", "z, y = labelled(scores, labels); return F.cross_entropy(z, y) * z.any(); flat =",
      says="loss:")
