"""Exercise 12.12, `class_f1`."""

from __future__ import annotations

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_like, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("12.12", "class_f1", seen=("logits", "labels", "classes"), kept=("scores",),
              says="F1 of")

ex.promise_table("""
together | Compute the F1 score of every class over all batches together. | F1 of
f1       | The F1 of a class is 2 TP / (2 TP + FP + FN), counted over all rows. | F1 of
absent   | F1 is nan for a class that is neither the label nor the prediction of any row. | classes
           without a score
once     | Args: batches: an iterator, which can be read only once. | classes
           with a score
sizes    | The iterator yields pairs of logits (n, classes) float32 and labels (n,) int64. n can
           differ from pair to pair and can be 0. | case an empty batch; a batch of one row; an
           empty batch first
classes  | classes: at least 2. | case two classes; many classes
returns  | Returns: The scores, of shape (classes,), float64. | type of the; shape of the; dtype
           of the
largest  | The prediction for a row is the class with the largest logit. | case all logits below 0;
           huge logits
ignored  | A row with the label -100 is ignored altogether. | case ignored rows; a batch of ignored
           rows
zero     | Every call counts from zero. | two calls with the same batches
left     | The batches are left unchanged. | numbers changed
example  | Example: for labels [0, 0] and [1], and three predictions of class 0, the scores are
           [0.8, 0.]. | case the example
""")


@ex.cases
def cases(g):
    def one(name, sizes, classes, *, right=0.6, shift=0.0, scale=1.0, ignored=0, unused=(),
            unlabelled=()):
        n = sum(sizes)
        # Rare classes, so that many batches lack one; each of them occurs in all rows together.
        common = torch.rand(n, generator=g) < 0.5
        labels = torch.randint(classes, (n,), generator=g).masked_fill(common, 0)
        for k in range(min(n, classes)):
            labels[n - 1 - k] = k
        for k in unused:
            labels[labels == k] = 0
        told = torch.rand(n, generator=g) < right
        for k in unlabelled:
            labels[labels == k] = 0
            labels[0] = k - 1        # predicted as k below, at the latest here
            told[0] = False
        logits = scale * torch.randn(n, classes, generator=g)
        best = torch.where(told, labels, (labels + 1) % classes)
        best = torch.where(sum((best == k for k in unused), torch.zeros(n).bool()),
                           torch.zeros(n, dtype=torch.long), best)
        logits[torch.arange(n), best] = logits.amax(1) + scale * (0.5 + torch.rand(n, generator=g))
        if ignored:
            labels[torch.randperm(n, generator=g)[:ignored]] = -100
        return name, {"logits": list((logits + shift).split(sizes)),
                      "labels": list(labels.split(sizes)), "classes": classes}

    ignored_batch = one("a batch of ignored rows", [4, 3, 5], 3)
    ignored_batch[1]["labels"][1][:] = -100
    return [one("eight batches", [8] * 7 + [3], 5), one("one batch", [20], 4),
            one("two classes", [6, 6, 5], 2), one("many classes", [30, 30, 20], 17),
            one("nothing right", [6, 6], 3, right=0.0),
            one("everything right", [6, 6, 6], 4, right=2.0),
            one("an empty batch", [5, 0, 6], 3), one("an empty batch first", [0, 5, 4], 3),
            one("a batch of one row", [7, 1, 6, 1], 3),
            one("ignored rows", [8, 8, 6, 7], 4, ignored=2), ignored_batch,
            one("all logits below 0", [8, 6], 4, shift=-40.0),
            one("huge logits", [8, 6], 4, scale=1e30),
            one("a class without labels", [8, 7], 5, unlabelled=(3,)),
            one("absent classes", [8, 8, 4], 6, unused=(2, 5)),
            ("the example", {"logits": [torch.tensor([[2.0, 1.0], [3.0, 1.0]]),
                                        torch.tensor([[2.0, 0.0]])],
                             "labels": [torch.tensor([0, 0]), torch.tensor([1])], "classes": 2})]


@ex.act
def act(fn, logits, labels, classes):
    pairs = [(z.clone(), y.clone()) for z, y in zip(logits, labels, strict=True)]
    # Other batches come between two calls with the same ones; all rows are class 1 there.
    others = [(torch.eye(classes), torch.ones(classes, dtype=torch.long))]
    first = fn(iter(pairs), classes)
    fn(iter(others), classes)
    again = fn(iter([(z.clone(), y.clone()) for z, y in zip(logits, labels, strict=True)]), classes)
    changed = sum(int((a != b).sum()) for pair, old in zip(pairs, zip(logits, labels, strict=True))
                  for a, b in zip(pair, old, strict=True))
    return {"scores": first, "again": again, "changed": changed}


@ex.law
def law(out, logits, labels, classes):
    expect_parts(out, "scores", "again", "changed")
    expect_equal("numbers changed in the batches", out["changed"], 0, "Work on copies.")
    true = [y for part in labels for y in part.tolist()]
    said = [max(range(classes), key=row.__getitem__) for part in logits for row in part.tolist()]
    rows = [(a, b) for a, b in zip(said, true, strict=True) if b != -100]
    expected = torch.full((classes,), torch.nan, dtype=torch.float64)
    for k in range(classes):
        hits = sum(a == b == k for a, b in rows)
        errors = sum((a == k) != (b == k) for a, b in rows)
        if hits + errors:
            expected[k] = 2 * hits / (2 * hits + errors)
    scores, again = out["scores"], out["again"]
    expect_like("scores", scores, expected)
    expect_like("scores", again, expected)
    expect_close("scores of two calls with the same batches", again.nan_to_num(-1.0),
                 scores.nan_to_num(-1.0), rtol=1e-6,
                 look="Other batches came in between, and their counts are still there.")
    none = expected.isnan()
    if bool(scores.isnan().all()):
        raise Broken("classes with a score", 0, int((~none).sum()),
                     "An iterator that has been read to its end is empty.")
    if not bool(scores.isnan()[none].all()):
        raise Broken("classes without a score", scores[none], expected[none],
                     "No row has them as its label or its prediction.")
    for k in range(classes):
        if not none[k]:
            expect_close(f"F1 of class {k}", float(scores[k]), float(expected[k]), rtol=1e-9,
                         look=f"Over all {len(rows)} rows that count.")


# ---- wrong, by name

@not_an_answer
def made(batches, classes):
    said, true, right = [], [], []
    for logits, labels in batches:
        counts = labels != -100
        guesses, labels = logits[counts].argmax(1), labels[counts]
        said.append(torch.bincount(guesses, minlength=classes).double())
        true.append(torch.bincount(labels, minlength=classes).double())
        right.append(torch.bincount(labels[guesses == labels], minlength=classes).double())
    said, true, right = torch.stack(said), torch.stack(true), torch.stack(right)
    s, t, r = said.sum(0), true.sum(0), right.sum(0)
    return 2 * r / (s + t)


wrong = ex.edits(made)
SCORE, SUMS = "return 2 * r / (s + t)", "said.sum(0), true.sum(0), right.sum(0)"
EACH = "2 * right / (said + true)"
NONE = "torch.where(s + t > 0, {}, torch.nan)"
# https://github.com/keras-team/keras/issues/5794
wrong("averaging the F1 of the batches, with 0 for 0/0", "together", SCORE,
      "return " + NONE.format(f"({EACH}).nan_to_num(0).mean(0)"))
wrong("averaging the F1 of the batches, with 1 for 0/0", "together", SCORE,
      "return " + NONE.format(f"({EACH}).nan_to_num(1).mean(0)"))
wrong("averaging the F1 of a class over only those batches in which it is not nan",
      "together", SCORE,
      f"return ({EACH}).nanmean(0)")
wrong("weighting the F1 of each batch by its number of rows", "together", SCORE,
      "n = true.sum(1, keepdim=True); return "
      + NONE.format(f"(({EACH}).nan_to_num(0) * n).sum(0) / n.sum()"))
wrong("counting only the last batch", ("together", "sizes"), SUMS, "said[-1], true[-1], right[-1]")
wrong("leaving out the last batch", ("together", "sizes", "once"), SUMS,
      "said[:-1].sum(0), true[:-1].sum(0), right[:-1].sum(0)")
wrong("leaving out the first batch", ("together", "sizes", "once"), SUMS,
      "said[1:].sum(0), true[1:].sum(0), right[1:].sum(0)")
wrong("returning the accuracy for each class", "together", SCORE,
      "return torch.where(s + t > 0, right.sum() / true.sum(), torch.nan)")
# https://github.com/JetBrains-Research/code2seq/pull/112
wrong("never resetting the counts between calls", "zero", SUMS,
      "said.sum(0), true.sum(0), right.sum(0); old = made.__dict__.setdefault(classes, "
      "torch.zeros(3, classes)); old += torch.stack([s, t, r]); s, t, r = old.double()",
      says="two calls with the same batches")
wrong("returning the precision instead of F1",
      "f1", SCORE, "return " + NONE.format("(r / s).nan_to_num(0)"))
wrong("returning the recall instead of F1",
      "f1", SCORE, "return " + NONE.format("(r / t).nan_to_num(0)"))
wrong("returning TP / (TP + FP + FN)", "f1", SCORE, "return r / (s + t - r)")
wrong("leaving out the 2 before TP in the numerator", "f1", SCORE, "return r / (s + t)")
wrong("leaving out the 2 before TP in the denominator", "f1", SCORE, "return 2 * r / (s + t - r)")
wrong("returning the arithmetic mean of precision and recall", "f1", SCORE,
      "return " + NONE.format("((r / s).nan_to_num(0) + (r / t).nan_to_num(0)) / 2"))
wrong("returning 0 for an absent class", "absent", SCORE, "return (2 * r / (s + t)).nan_to_num(0)",
      says="classes without a score")
wrong("returning 1 for an absent class", "absent", SCORE, "return (2 * r / (s + t)).nan_to_num(1)",
      says="classes without a score")
wrong("returning nan where TP is 0", ("f1", "together", "once"), SCORE,
      "return torch.where(r > 0, 2 * r / (s + t), torch.nan)")
wrong("returning nan for a class that is predicted but is no row's label",
      ("f1", "together"), SCORE,
      "return torch.where(t > 0, 2 * r / (s + t), torch.nan)")
wrong("stopping at an empty batch", "sizes", "        counts = labels != -100",
      "        if len(labels) == 0: break\n        counts = labels != -100", says="")
wrong("skipping batches of one row", ("sizes", "example"), "        counts = labels != -100",
      "        if len(labels) == 1: continue\n        counts = labels != -100")
wrong("counting the predictions of ignored rows", "ignored",
      "torch.bincount(guesses, minlength=classes)",
      "torch.bincount(logits.argmax(1), minlength=classes)")
wrong("counting an ignored row as class 0", "ignored", "counts = labels != -100",
      "labels = labels.clamp(min=0); counts = labels >= 0")
wrong("leaving out every batch that contains an ignored row", "ignored", "counts = labels != -100",
      "counts = (labels != -100) & (labels != -100).all()")
wrong("predicting the class with the smallest logit", ("largest", "together", "absent"),
      "logits[counts].argmax(1)", "logits[counts].argmin(1)")
wrong("predicting the class whose logit is farthest from 0", ("largest", "together", "absent"),
      "logits[counts].argmax(1)", "logits[counts].abs().argmax(1)")
wrong("predicting class 0 unless a logit is above 0", ("largest", "together", "absent"),
      "logits[counts].argmax(1)", "logits[counts].clamp(min=0).argmax(1)")
wrong("exponentiating the logits, which overflows if they are large",
      "largest", "logits[counts].argmax(1)",
      "logits[counts].exp().argmax(1)")
wrong("returning the mean over all classes", "returns", SCORE, "return (2 * r / (s + t)).nanmean()",
      says="shape of the")
wrong("returning float32", "returns", SCORE, "return (2 * r / (s + t)).float()",
      says="dtype of the")
wrong("returning a list instead of a tensor", "returns", SCORE, "return (2 * r / (s + t)).tolist()",
      says="type of the")
wrong("returning one score for each batch", "returns", SCORE, f"return {EACH}",
      says="shape of the")
wrong("overwriting the labels of ignored rows", "left", "counts = labels != -100",
      "counts = labels != -100; labels[~counts] = 0", says="numbers changed")
wrong("sorting the logits in place", "left", "counts = labels != -100",
      "counts = labels != -100; logits.copy_(logits.clone().softmax(1))", says="numbers changed")


@ex.wrong("reading the batches twice", breaks="once", says="classes with a score")
def twice(batches, classes):
    rows = sum(len(labels) for _, labels in batches)
    said, true, right = torch.zeros(3, classes, dtype=torch.float64)
    for logits, labels in batches:
        counts = labels != -100
        guesses, labels = logits[counts].argmax(1), labels[counts]
        said += guesses.bincount(minlength=classes)
        true += labels.bincount(minlength=classes)
        right += labels[guesses == labels].bincount(minlength=classes)
    return 2 * right / rows / ((said + true) / rows)
