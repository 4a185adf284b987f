"""Exercise 06.2, `mixup_loss`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("06.2", "mixup_loss", seen=("weights", "calls"),
              kept=("blends",))

ex.promise_table("""
mean     | Return the mean Mixup loss of a batch. | loss
backward | The loss is a tensor to call backward on. | gradient of the weights
blend    | x: (N, ...) float32. Row i is blended with row order[i]. | blends
repeats  | order: (N,) int64, row numbers; a row can appear twice. | case a row used twice
share    | lam: lam[i] is the weight of row i, in the blend and in the loss. | case a weight for
           each row; images; three axes; one row; two batches of different size; weights of 0 and 1;
           large logits; as many rows as classes; two classes; a row used twice
labels   | y: labels (N,) int64. | loss
once     | Args: model: returns logits (N, K). Call it once, on the blends. | number of blends
left     | The inputs and the model's mode and gradients do not change. | after the call; in another
           mode
example  | Example: if every lam is 1, the result is the cross-entropy of model(x) and y. | case the
           example
""")


@ex.cases
def cases(g):
    number = integers(g)

    def batch(rows, shape, classes, lam=None, order=None):
        lam = torch.rand(rows, generator=g) if lam is None else lam
        order = torch.randperm(rows, generator=g) if order is None else torch.tensor(order)
        return {"x": torch.randn(rows, *shape, generator=g), "order": order, "lam": lam,
                "y": torch.randint(classes, (rows,), generator=g)}

    def one(name, shape, *rows, classes=None, scale=0.5, lam=None, order=None):
        classes, width = classes or number(3, 7), torch.tensor(shape).prod().item()
        return name, {"weights": scale * torch.randn(classes, width, generator=g),
                      "calls": [batch(n, shape, classes, lam, order) for n in rows]}

    n = number(8, 14)
    ends = (torch.arange(9) % 2).float()
    return [one("a weight for each row", (6,), n), one("images", (1, 4, 3), n),
            one("three axes", (5, 2), 7), one("one row", (4,), 1),
            one("two batches of different size", (3, 3), 9, 5),
            one("as many rows as classes", (5,), 5, classes=5),
            one("two classes", (4,), n, classes=2),
            one("a row used twice", (5,), 6, order=[2, 0, 2, 5, 0, 1]),
            one("the same weight for all rows", (6,), 12, lam=torch.full((12,), 0.3)),
            one("weights of 0 and 1", (5,), 9, lam=ends),
            one("large logits", (8,), n, scale=60.0),
            one("the example", (2, 3), 6, lam=torch.ones(6))]


@ex.act
def act(fn, weights, calls):
    class Model(nn.Module):
        """A linear layer; blends of another shape are for the law to tell."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(weights.clone())
            self.shape, self.given = (), True

        def forward(self, x):
            found["blends"].append(x.detach().clone())
            found["modes"] += self.training != self.given
            x = x if x.shape == self.shape else torch.zeros(self.shape)
            return x.flatten(1) @ self.weight.T

    found = {"blends": [], "losses": [], "grads": [], "changed": [], "modes": 0}
    model = Model()
    for k, call in enumerate(calls):
        model.given = k % 2 == 1
        model.train(model.given)
        model.weight.grad, model.shape = torch.ones_like(weights), call["x"].shape
        given = {name: call[name].clone() for name in ("x", "y", "order", "lam")}
        loss = fn(model, *given.values())
        changed = [name for name, t in given.items() if not torch.equal(t, call[name])]
        held = model.weight.grad
        if held is None or not held.any():
            changed.append("the model's gradients, cleared")
        elif not torch.equal(held, torch.ones_like(weights)):
            changed.append("the model's gradients")
        if model.training != model.given:
            changed.append("the model's mode")
        found["changed"].append(changed)
        found["losses"].append(loss.detach())
        # What was changed may have spoilt the way back.
        found["grads"].append(torch.zeros_like(weights) if changed else
                              torch.autograd.grad(loss, model.weight)[0])
    return found


def by_hand(weights, x, y, order, lam):
    """Blends, mean loss and its gradient in float64, row by row."""
    w, share = weights.double(), lam.double()
    blends, loss, grad = [], 0.0, torch.zeros_like(w)
    for i, k in enumerate(order.tolist()):
        row = x[k].double() + share[i] * (x[i].double() - x[k].double())
        z = w @ row.flatten()
        p = (z - z.logsumexp(0)).exp()
        loss += float(z.logsumexp(0) - share[i] * z[y[i]] - (1 - share[i]) * z[y[k]])
        target = torch.zeros_like(p)
        target[y[i]] += share[i]
        target[y[k]] += 1 - share[i]
        grad += torch.outer(p - target, row.flatten())
        blends.append(row)
    return torch.stack(blends).float(), loss / len(x), (grad / len(x)).float()


@ex.law
def law(out, weights, calls):
    expect_parts(out, "blends", "losses", "grads", "changed", "modes")
    expect_length("changes", out["changed"], len(calls))
    for changed in out["changed"]:
        expect_equal("changed after the call", changed, [], "Leave the inputs and the model as "
                                                            "they are.")
    expect_equal("blends that the model saw in another mode", out["modes"], 0,
                 "Call the model in the mode it is in.")
    expect_length("blends", out["blends"], len(calls))
    expect_length("losses", out["losses"], len(calls))
    for call, blend, loss, grad in zip(calls, out["blends"], out["losses"], out["grads"],
                                       strict=True):
        wanted, mean, slope = by_hand(weights, **call)
        expect_close("blends that the model saw", blend, wanted, atol=1e-5,
                     look="Blend row i with row order[i], and give row i the weight lam[i].")
        expect_like("loss", loss, torch.tensor(0.0))
        expect_equal("type of the loss", str(loss.dtype), "torch.float32")
        expect_close("loss", loss.item(), mean, atol=1e-5,
                     look="Weight the loss of row i's label by lam[i], and the loss of row "
                          "order[i]'s label by 1 - lam[i].")
        expect_close("gradient of the weights", grad, slope, rtol=1e-3, atol=1e-5)


def spread(lam, x):
    return lam.reshape([-1] + [1] * (x.dim() - 1))


# ---- wrong, by name

def blended(x, order, lam):
    return torch.lerp(x[order], x, spread(lam, x))


def two_terms(logits, y, others, lam):
    rows = [F.cross_entropy(logits, labels, reduction="none") for labels in (y, others)]
    return (lam * rows[0] + (1 - lam) * rows[1]).mean()


@not_an_answer
def mixed(model, x, y, order, lam):
    logits = model(blended(x, order, lam))
    return two_terms(logits, y, y[order], lam)


wrong = ex.edits(mixed)
BLENDED = "model(blended(x, order, lam))"
wrong("replacing each soft label with its argmax", ("mean", "labels"),
      "two_terms", "F.cross_entropy", "y, y[order], lam", "torch.where(lam >= 0.5, y, y[order])",
      says="loss: got")
ex.wrong("using only the label of row i",
         lambda model, x, y, order, lam: F.cross_entropy(model(blended(x, order, lam)), y),
         says="loss: got", breaks=("mean", "labels"))


@ex.wrong("blending each label with the next row's label, but each image with image order[i]",
          says="loss: got", breaks="labels")
def other_order(model, x, y, order, lam):
    return two_terms(model(blended(x, order, lam)), y, y.roll(1), lam)


@ex.wrong("summing over the rows instead of averaging", says="loss: got", breaks="mean")
def summed(model, x, y, order, lam):
    return two_terms(model(blended(x, order, lam)), y, y[order], lam) * len(x)


wrong("weighting every row's loss by the mean of lam, or multiplying (N, 1) by (N,)", "mean",
      "two_terms(logits, y, y[order], lam)",
      "lam.mean() * F.cross_entropy(logits, y) + (1 - lam.mean()) * F.cross_entropy(logits, "
      "y[order])", says="loss: got")
wrong("adding both losses without their weights", "labels",
      "two_terms(logits, y, y[order], lam)",
      "F.cross_entropy(logits, y) + F.cross_entropy(logits, y[order])", says="loss: got")
ex.wrong("applying softmax before the cross-entropy",
         lambda model, x, y, order, lam: two_terms(
             model(blended(x, order, lam)).softmax(1), y, y[order], lam),
         says="loss: got", trap="03.1", breaks="mean")
wrong("always giving row i the larger weight, as MixMatch does", "blend",
      "logits =", "lam =", BLENDED, "torch.maximum(lam, 1 - lam)", "logits, y", BLENDED + ", y",
      says="blends that the model saw")


@ex.wrong("using soft labels that add up to 2", says="loss: got", breaks="labels")
def doubled(model, x, y, order, lam):
    return 2 * two_terms(model(blended(x, order, lam)), y, y[order], lam)


ex.wrong("swapping the weights of the labels",
         lambda model, x, y, order, lam: two_terms(model(blended(x, order, lam)), y, y[order], 1 -
             lam), says="loss: got", breaks=("mean", "labels", "share"))
wrong("using the first row's weight for all rows", "share",
      "logits =", "lam =", BLENDED, "lam[:1].expand(len(x))", "logits, y", BLENDED + ", y",
      says="got")
wrong("using the inverse of order instead of order", "blend",
      "logits =", "back =", BLENDED, "order.argsort()",
      "logits, y, y[order]", "model(blended(x, back, lam)), y, y[back]",
      says="blends that the model saw")
ex.wrong("blending the labels but not the images",
         lambda model, x, y, order, lam: two_terms(model(x), y, y[order], lam),
         says="blends that the model saw", breaks="blend")
wrong("blending the outputs instead of the images", "once",
      BLENDED, "lam[:, None] * model(x) + (1 - lam[:, None]) * model(x[order])")


@ex.wrong("calling the model separately for each term", breaks="once")
def twice(model, x, y, order, lam):
    mixed = blended(x, order, lam)
    own, others = (F.cross_entropy(model(mixed), labels, reduction="none")
                   for labels in (y, y[order]))
    return (lam * own + (1 - lam) * others).mean()


wrong("changing x in place", "left",
      "logits =",
      "x.copy_(blended(x, order, lam)); return two_terms(model(x), y, y[order], lam); logits =")
wrong("adding axes to lam in place", "left",
      "logits =",
      "share = lam.clone(); lam.unsqueeze_(-1); return two_terms(model(blended(x, order, "
      "share)), y, y[order], share); logits =")
wrong("calling backward before returning the loss", "left",
      "logits =",
      "loss = two_terms(model(blended(x, order, lam)), y, y[order], lam); "
      "loss.backward(retain_graph=True); return loss; logits =")
wrong("setting the model to train mode", "left",
      "logits =", f"model.train(); return two_terms({BLENDED}, y, y[order], lam); logits =")
wrong("using the ranks of order's entries instead of the entries", "repeats",
      "logits =", "order =", BLENDED, "order.argsort().argsort()", "logits, y", BLENDED + ", y",
      says="blends that the model saw")
wrong("detaching the logits in one of the two terms", "backward",
      "return two_terms(logits, y, y[order], lam)",
      'own = F.cross_entropy(logits, y, reduction="none"); others = '
      'F.cross_entropy(logits.detach(), y[order], reduction="none"); return (lam * own + (1 - '
      "lam) * others).mean() + 0 * logits.sum()")
wrong("treating a weight of 1 as a weight of 0", ("example", "share"),
      "logits =", "lam =", BLENDED, "torch.where(lam == 1, 0.0, lam)", "logits, y", BLENDED + ", y",
      says="got")
wrong("smoothing the labels if every lam is 1", "example",
      "return two_terms",
      "if (lam == 1).all(): return F.cross_entropy(logits, y, label_smoothing=0.1)\n    return "
      "two_terms", says="loss: got")
