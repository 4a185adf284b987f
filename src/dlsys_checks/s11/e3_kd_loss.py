"""Exercise 11.3, `kd_loss`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.kit import floats
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("11.3", "kd_loss", seen=("student", "teacher", "labels", "T", "alpha", "order"))

ex.promise_table("""
loss        | Mix the loss on the labels with a loss against the teacher. The result is (1 - alpha)
              times the cross-entropy of the labels, plus alpha * T**2 times the divergence of the
              student from the teacher. | loss; gradient of the student
any size    | Args: student, teacher: logits (N, K) float32, with values of any size. labels: (N,)
              int64. | case two classes; one row; many rows; many classes; large logits; very large
              logits; transposed in memory; a temperature below 1; a temperature near 0
divergence  | The divergence of a row is the sum over classes of p * (log p - log q). Here p are the
              teacher's probabilities and q the student's. | loss; gradient of the student
temperature | Both probabilities are at temperature T > 0, and the cross-entropy is at temperature
              1. | loss; gradient of the student
means       | Both terms are means over the rows. | loss
scalar      | The result is a scalar, and finite even if p or q is 0 in float32. | shape of the
              loss; dtype of the loss; loss
flow        | Only the student gets gradients. The arguments do not change. | gradient of the
              student; gradients of the teacher; values changed
example     | Example: logits [[0., 0.]] for both, label 0 and alpha 0.5 give 0.3466. | case the
              example
""")


@ex.cases
def cases(g):
    between = floats(g)

    def one(name, n, k, size=2.0, T=None, alpha=None, order="rows"):
        student, teacher = (size * torch.randn(n, k, generator=g) for _ in range(2))
        return name, {"student": student, "teacher": teacher, "order": order,
                      "labels": torch.randint(k, (n,), generator=g),
                      "T": T or between(2.0, 6.0),
                      "alpha": between(0.3, 0.8) if alpha is None else alpha}

    return [one("a few rows", 5, 4), one("many rows", 40, 6), one("one row", 1, 5),
            one("two classes", 6, 2), one("many classes", 4, 30),
            one("temperature 1", 5, 4, T=1.0), one("a temperature below 1", 5, 4, T=0.5),
            one("a temperature near 0", 5, 4, T=0.03, alpha=0.9),
            one("a high temperature", 6, 5, T=50.0), one("only the labels", 5, 4, alpha=0.0),
            one("only the teacher", 5, 4, alpha=1.0), one("large logits", 5, 4, size=200.0),
            one("very large logits", 4, 6, size=2e4),
            one("transposed in memory", 6, 4, order="columns"),
            ("the example", {"student": torch.zeros(1, 2), "teacher": torch.zeros(1, 2),
                             "labels": torch.tensor([0]), "T": 2.0, "alpha": 0.5,
                             "order": "rows"})]


@ex.act
def act(fn, student, teacher, labels, T, alpha, order):
    def laid(x):
        return x.T.contiguous().T if order == "columns" else x.clone()

    mine, theirs, given = laid(student).requires_grad_(), laid(teacher), labels.clone()
    theirs = (theirs.requires_grad_() * 1).requires_grad_()
    theirs.retain_grad()
    loss = fn(mine, theirs, given, T, alpha)
    asks = isinstance(loss, torch.Tensor) and loss.requires_grad
    if asks and loss.numel() == 1:
        loss.sum().backward()
    moved = sum(int((a.detach() != b).sum()) if a.shape == b.shape else 1
                for a, b in ((mine, student), (theirs, teacher), (given, labels)))
    moved += int(not theirs.requires_grad) + int(not mine.requires_grad)
    return {"loss": loss.detach().clone() if isinstance(loss, torch.Tensor) else loss,
            "grad": torch.zeros_like(student) if mine.grad is None else mine.grad.clone(),
            "teacher": 0 if theirs.grad is None else int((theirs.grad != 0).sum()),
            "moved": moved}


@ex.law
def law(out, student, teacher, labels, T, alpha, order):
    expect_parts(out, "loss", "grad", "teacher", "moved")
    n, k = student.shape
    s, t = student.double(), teacher.double()
    log_p, log_q = (v / T - (v / T).logsumexp(1, keepdim=True) for v in (t, s))
    p, q, at_one = log_p.exp(), log_q.exp(), (s - s.logsumexp(1, keepdim=True)).exp()
    rows = s.logsumexp(1) - s[torch.arange(n), labels]
    soft = (p * (log_p - log_q)).sum(1)
    look = (f"{1 - alpha:.3g} * {rows.mean():.4g} for the labels + {alpha:.3g} * {T:.3g}**2 * "
            f"{soft.mean():.4g} for the divergence, with alpha {alpha:.3g}, T {T:.3g}, N {n}, K "
            f"{k}.")
    wanted = ((1 - alpha) * rows + alpha * T ** 2 * soft).mean()
    # The softmax of a logit of size m is exact to about m * 1e-7.
    reach = float(max(s.abs().max(), t.abs().max())) + 1.0
    slack = 2e-6 * reach * (1 + T) / min(1.0, T)
    expect_close("loss", out["loss"], wanted.float(), rtol=2e-5, atol=slack, look=look)
    grad = ((1 - alpha) * (at_one - torch.nn.functional.one_hot(labels, k))
            + alpha * T * (q - p)) / n
    # An exponential of v / T is off by the rounding of v / T.
    near = 1e-6 * (1 + T) * (1 + 0.5 * min(reach, 1000.0) / T)
    expect_close("gradient of the student", out["grad"], grad.float(), rtol=1e-4, atol=near)
    expect_equal("gradients of the teacher", out["teacher"], 0, "Detach it.")
    expect_equal("values changed in the arguments", out["moved"], 0, "Work on copies.")


@not_an_answer
def formula(student, teacher, labels, T, alpha):
    def logs(z):
        return z - z.logsumexp(1, keepdim=True)
    log_p, log_q = logs(teacher.detach() / T), logs(student / T)
    soft = (log_p.exp() * (log_p - log_q)).sum(1)
    hard = -logs(student).gather(1, labels[:, None])[:, 0]
    return ((1 - alpha) * hard + alpha * T * T * soft).mean()


# ---- wrong, by name

@not_an_answer
def made(student, teacher, labels, T, alpha, *, t_teacher=None, t_student=None):
    teacher = teacher.detach()
    log_p = F.log_softmax(teacher / (t_teacher or T), 1)
    log_q = F.log_softmax(student / (t_student or T), 1)
    pair = log_q, log_p
    soft = F.kl_div(*pair, reduction="batchmean", log_target=True)
    out = (1 - alpha) * F.cross_entropy(student, labels) + alpha * T**2 * soft
    return out


wrong = ex.edits(made)
wrong("leaving out the factor T**2", "loss", "T**2", "T**0")
wrong("multiplying by T instead of T**2", "loss", "T**2", "T")
wrong("swapping the weights alpha and 1 - alpha",
      "loss", "teacher =", "alpha = 1 - alpha; teacher =")
wrong("giving the cross-entropy a weight of 1 instead of 1 - alpha", "loss",
      "return out", "return out + alpha * F.cross_entropy(student, labels)")
wrong("dividing the divergence by the number of classes as well", ("means", "any size"),
      "teacher =", "k = student.shape[1]; teacher =", "return out",
      "right, hard = out, F.cross_entropy(student, labels); return (1 - alpha) * hard + (right - "
      "(1 - alpha) * hard) / k")
wrong("summing the divergence over the rows instead of averaging it",
      "means", '"batchmean"', '"sum"')
wrong("swapping student and teacher in the divergence",
      "divergence", "log_q, log_p", "log_p, log_q")


@not_an_answer
def by_kl_div(student, teacher, labels, T, alpha, *, q=F.log_softmax, p=F.softmax, dim=1):
    soft = F.kl_div(q(student / T, dim), p(teacher.detach() / T, dim), reduction="batchmean")
    return (1 - alpha) * F.cross_entropy(student, labels) + alpha * T**2 * soft


# https://github.com/microsoft/ProDA/issues/20
ex.wrong("giving kl_div the student's probabilities, not their logarithms", by_kl_div,
         breaks="divergence", q=F.softmax)
ex.wrong("giving kl_div the teacher's logarithms without log_target=True", by_kl_div,
         breaks=("divergence", "any size"), p=F.log_softmax)
ex.wrong("taking the softmax over the rows, not over the classes",
         by_kl_div, breaks="divergence", dim=0)
wrong("using squared differences of the logits instead of the divergence", "divergence",
      "teacher =",
      "soft = F.mse_loss(student / T, teacher.detach() / T); return (1 - alpha) * "
      "F.cross_entropy(student, labels) + alpha * T**2 * soft; teacher =")
wrong("using the cross-entropy with the teacher, which includes the teacher's entropy",
      "divergence",
      "teacher =",
      "soft = F.cross_entropy(student / T, F.softmax(teacher.detach() / T, 1)); return (1 - "
      "alpha) * F.cross_entropy(student, labels) + alpha * T**2 * soft; teacher =")
ex.wrong("applying the temperature to the teacher only", made, breaks="temperature", t_student=1.0)
ex.wrong("applying the temperature to the student only", made, breaks="temperature", t_teacher=1.0)
wrong("applying the temperature to the cross-entropy as well", "temperature",
      "student, labels", "student / T, labels")


@ex.wrong("multiplying the logits by the temperature instead of dividing", breaks="temperature")
def multiplied(student, teacher, labels, T, alpha):
    return made(student, teacher, labels, T, alpha, t_teacher=1 / T, t_student=1 / T)


wrong("taking the logarithm of a probability that is 0", ("scalar", "any size"),
      "teacher =",
      "p, q = F.softmax(teacher.detach() / T, 1), F.softmax(student / T, 1); hard = "
      "F.cross_entropy(student, labels); return (1 - alpha) * hard + alpha * T**2 * (p * "
      "(p.log() - q.log())).sum(1).mean(); teacher =")


@ex.wrong("adding a small number to probabilities before the logarithm",
          says="loss", breaks="any size")
def with_epsilon(student, teacher, labels, T, alpha):
    log_q = (F.softmax(student / T, 1) + 1e-8).log()
    log_p = F.log_softmax(teacher.detach() / T, 1)
    soft = (log_p.exp() * (log_p - log_q)).sum(1).mean()
    return (1 - alpha) * F.cross_entropy(student, labels) + alpha * T**2 * soft


wrong("returning a loss for each row",
      "scalar", "return out", "return out * torch.ones(len(labels) + 1)")
wrong("not detaching the teacher", "flow", "teacher.detach()", "teacher")
wrong("detaching the student", "flow",
      "teacher =", "student = student.detach(); teacher =",
      "return out", "return out.requires_grad_()")
wrong("dividing the teacher's logits in place", "flow",
      "return out", "teacher.data.div_(T).add_(1); return out")
wrong("detaching the caller's teacher in place", "flow",
      "teacher =",
      "teacher.detach_(); return formula(student, teacher, labels, T, alpha); teacher =")


@ex.wrong("clamping the temperature to at least 0.1", breaks=("any size", "temperature", "loss"))
def at_least(student, teacher, labels, T, alpha):
    return formula(student, teacher, labels, max(T, 0.1), alpha)
