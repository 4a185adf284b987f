"""Exercise 12.12, `class_f1`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.s12.e12_class_f1 import ex, made


@ex.right("all predictions first, then a confusion matrix")
def by_matrix(batches, classes):
    pairs = [(logits.argmax(1), labels) for logits, labels in batches]
    said, true = (torch.cat(part) for part in zip(*pairs))
    said, true = said[true >= 0], true[true >= 0]
    table = torch.bincount(true * classes + said, minlength=classes**2).view(classes, classes)
    table = table.double()
    return 2 * table.diagonal() / (table.sum(0) + table.sum(1))


@ex.right("one-hot rows, summed")
def by_one_hot(batches, classes):
    hits = torch.zeros(classes, dtype=torch.float64)
    errors = torch.zeros(classes, dtype=torch.float64)
    for logits, labels in batches:
        keep = labels.ne(-100)
        said = F.one_hot(logits.max(1).indices[keep], classes)
        true = F.one_hot(labels[keep], classes)
        hits += (said * true).sum(0)
        errors += (said != true).sum(0)
    return 2 * hits / (2 * hits + errors)


@ex.right("class by class, in Python numbers")
def by_class(batches, classes):
    rows = [(row.index(max(row)), label) for logits, labels in batches
            for row, label in zip(logits.tolist(), labels.tolist()) if label >= 0]
    scores = []
    for k in range(classes):
        said, true = sum(a == k for a, _ in rows), sum(b == k for _, b in rows)
        right = sum(a == b == k for a, b in rows)
        scores.append(2 * right / (said + true) if said + true else float("nan"))
    return torch.tensor(scores, dtype=torch.float64)


@ex.right("from precision and recall")
def by_precision(batches, classes):
    tp, fp, fn = torch.zeros(3, classes, dtype=torch.int64)
    for logits, labels in batches:
        for guess, label in zip(logits.argmax(1).tolist(), labels.tolist()):
            if label == -100:
                continue
            if guess == label:
                tp[label] += 1
            else:
                fp[guess] += 1
                fn[label] += 1
    precision, recall = tp.double() / (tp + fp), tp.double() / (tp + fn)
    score = 2 * precision * recall / (precision + recall)
    return torch.where((tp == 0) & (fp + fn > 0), torch.zeros((), dtype=torch.float64), score)


def _off(rows, classes, when):
    return made(iter(rows), classes) * (0.99 if when(rows) else 1.0)


ex.probe("the example looked up wrong", lambda batches, classes: _off(
    list(batches), classes, lambda rows: [len(y) for _, y in rows] == [2, 1]), breaks="example")
ex.probe("seventeen classes taken for sixteen", lambda batches, classes: _off(
    list(batches), classes, lambda rows: classes > 10), breaks="classes")
ex.equivalent("guesses, labels = (logits[counts].argmax(1), labels[counts]) -> "
              "guesses, labels = (labels[counts], logits[counts].argmax(1))",
              "F1 is the same if predictions and labels change places")
