"""Losses against the logit of the right class, and the pull each of them gives."""

import torch
from torch.nn import functional as F

from dlsys_helpers.explorers import Choice, Grip, Lines, Slider, explorer

REACH, POINTS = 10, 161  # the right class's logit runs from -REACH to REACH


def cross_entropy(z):
    """-log of the right class's probability; z (M, K) logits, class 0 is right. Returns (M,)."""
    return -z.log_softmax(1)[:, 0]


def softmax_twice(z):
    """Cross-entropy of probabilities that are treated as logits, as in trap 03.1."""
    return cross_entropy(z.softmax(1))


def squared_after_softmax(z):
    """Squared distance between the probabilities and the one-hot label."""
    right = F.one_hot(z.new_zeros(len(z), dtype=torch.long), z.shape[1])
    return (z.softmax(1) - right).square().sum(1)


def focal(z, gamma=2):
    """(1 - p)^gamma times the cross-entropy. Source: Lin et al. 2017, equation 4."""
    loss = cross_entropy(z)
    return (1 - (-loss).exp()) ** gamma * loss


def smoothed(z, amount=0.1):
    """Cross-entropy against a label that keeps 1 - amount and shares the rest among all classes."""
    return -(1 - amount) * z.log_softmax(1)[:, 0] - amount * z.log_softmax(1).mean(1)


LOSSES = {"softmax twice": softmax_twice, "squared error after softmax": squared_after_softmax,
          "focal, gamma 2": focal, "label smoothing 0.1": smoothed}


def scores(right, classes, rival):
    """Logits (M, classes) in float64: `right` (M,) for class 0, `rival` for class 1, 0 elsewhere.
    """
    right = torch.as_tensor(right, dtype=torch.float64).reshape(-1)
    z = right.new_zeros(len(right), classes)
    z[:, 0], z[:, 1] = right, rival
    return z


def value_and_slope(loss, right, classes, rival):
    """The loss and its derivative with respect to the right class's logit, each (M,)."""
    z = scores(right, classes, rival).requires_grad_()
    value = loss(z)
    return value.detach(), torch.autograd.grad(value.sum(), z)[0][:, 0]


def signed(number):
    """The number with three significant digits and a real minus sign."""
    return f"{number:.3g}".replace("-", "\N{MINUS SIGN}")


@explorer(
    title="A loss and its pull, against the logit of the right class",
    controls=[
        Choice("loss", "Compare cross-entropy with", LOSSES, "softmax twice"),
        Slider("classes", "Classes", [2, 10, 100, 1000], 10),
        Slider("rival", "Logit of one wrong class", [0, 5, 10], 0),
        Slider("logit", "Read off at the logit", [-10, -5, 0, 5, 10], 10),
    ],
    views=[
        Lines("right", {"plain": "cross-entropy", "other": "chosen"}, title="The loss",
              xlabel="logit of the right class", ylabel="loss", xlim=(-REACH, REACH), mark="at",
              grips=[Grip("logit", x=float)]),
        Lines("right", {"plain_slope": "cross-entropy", "other_slope": "chosen"},
              title="Its derivative", xlabel="logit of the right class",
              ylabel="below 0: raises the logit", xlim=(-REACH, REACH), mark="at",
              grips=[Grip("logit", x=float)]),
    ],
)
def loss_curves(loss, classes, rival, logit):
    """Both losses and their derivatives; all logits but the right one and a rival are 0."""
    right = torch.linspace(-REACH, REACH, POINTS, dtype=torch.float64)
    plain, plain_slope = value_and_slope(cross_entropy, right, classes, rival)
    other, other_slope = value_and_slope(LOSSES[loss], right, classes, rival)
    at = int((right - logit).abs().argmin())
    sentence = (f"At logit {signed(logit)} cross-entropy is {plain[at]:.3f} with slope "
                f"{signed(plain_slope[at])}; {loss} is {other[at]:.3f} with slope "
                f"{signed(other_slope[at])}. In this window {loss} gets down to {other.min():.3f}, "
                f"cross-entropy to {plain.min():.3f}.")
    return {"right": right, "plain": plain, "other": other, "plain_slope": plain_slope,
            "other_slope": other_slope, "at": [logit]}, sentence
