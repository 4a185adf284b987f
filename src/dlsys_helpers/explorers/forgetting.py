"""Forgetting: a network trained on 0 to 4 learns 5 to 9; its body and head have separate rates."""

from copy import deepcopy
from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.data import digits
from dlsys_helpers.explorers import Choice, Grip, Lines, Slider, explorer

WIDTH, OLD = 48, 5  # the first OLD digits come first
PRETRAINING, PER_CLASS = 200, 10
BODY_RATES = (0, 0.0001, 0.001, 0.003, 0.01, 0.1)
HEAD_RATES = (0.001, 0.01, 0.1)
STEPS, EVERY = (10, 30, 60, 100), 5  # steps between two measurements
OPTIMIZERS = {
    "Adam": lambda groups: torch.optim.Adam(groups, fused=True),
    "SGD + momentum": lambda groups: torch.optim.SGD(groups, momentum=0.9, fused=True)}


@lru_cache(maxsize=1)
def tasks():
    """(x, y) by name: old and new digits to train with and to test with, classes from 0.

    The new ones have PER_CLASS training digits of each class.
    """
    x, y, *test = digits()
    few = torch.cat([(y == k).nonzero().flatten()[:PER_CLASS] for k in range(OLD, 10)])
    found = {"old": (x[y < OLD], y[y < OLD]), "new": (x[few], y[few] - OLD)}
    x, y = test
    return {**found, "old test": (x[y < OLD], y[y < OLD]), "new test": (x[y >= OLD],
                                                                       y[y >= OLD] - OLD)}


def linear(fan_in, fan_out, seed):
    """A layer with He weights and zero bias, its own seed."""
    layer = nn.utils.skip_init(nn.Linear, fan_in, fan_out)
    g = torch.Generator().manual_seed(seed)
    nn.init.kaiming_normal_(layer.weight, generator=g)
    nn.init.zeros_(layer.bias)
    return layer


def learn(body, head, opt, task, steps):
    """Full-batch steps of cross-entropy; yields the number of steps taken, from 0."""
    x, y = tasks()[task]
    for step in range(steps + 1):
        yield step
        loss = F.cross_entropy(head(body(x)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()


@lru_cache(maxsize=1)
def pretrained():
    """Body and head trained on the old digits."""
    body = nn.Sequential(linear(64, WIDTH, 0), nn.ReLU(), linear(WIDTH, WIDTH, 1), nn.ReLU())
    head = linear(WIDTH, OLD, 2)
    opt = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.01)
    for _ in learn(body, head, opt, "old", PRETRAINING):
        pass
    return body, head


def accuracy(body, head, task):
    """Percent of a task's digits classified right, by the task's own head."""
    x, y = tasks()[task]
    with torch.no_grad():
        return 100 * (head(body(x)).argmax(1) == y).float().mean().item()


@lru_cache(maxsize=128)
def adapt(optimizer, body_rate, head_rate):
    """Old and new accuracy on test every EVERY steps: (old, new), lists from step 0 on.

    A new head learns the new digits, the body with it; the old head is kept as it was.
    """
    body, old_head = deepcopy(pretrained())
    new_head = linear(WIDTH, 10 - OLD, 3)
    opt = OPTIMIZERS[optimizer]([{"params": body.parameters(), "lr": body_rate},
                                 {"params": new_head.parameters(), "lr": head_rate}])
    old, new = [], []
    for step in learn(body, new_head, opt, "new", max(STEPS)):
        if step % EVERY == 0:
            old.append(accuracy(body, old_head, "old test"))
            new.append(accuracy(body, new_head, "new test"))
    return old, new


def on_axis(rate):
    """The position of a rate on the log axis; 0 is shown at the left end."""
    return rate or BODY_RATES[1]


@explorer(
    title="Forgetting: the rate of the body, the rate of the head",
    controls=[
        Slider("body_rate", "Rate of the body", BODY_RATES, 0.01),
        Slider("head_rate", "Rate of the new head", HEAD_RATES, 0.01),
        Slider("steps", "Steps on the new digits", STEPS, 100),
        Choice("optimizer", "Optimizer", OPTIMIZERS, "Adam"),
    ],
    views=[
        Lines("step", {"old": "0 to 4", "new": "5 to 9"}, title="Step by step",
              xlabel="step", ylabel="right on test (%)", ylim=(0, 100)),
        Lines("rate", {"old_at": "0 to 4", "new_at": "5 to 9"}, title="At every rate of the body",
              xlabel="rate of the body (log; without 0)", ylabel="right on test (%)",
              xlim=(BODY_RATES[1], BODY_RATES[-1]), ylim=(0, 100), xlog=True, mark="here",
              grips=[Grip("body_rate", x=on_axis)]),
    ],
)
def forgetting(body_rate, head_rate, steps, optimizer):
    """Accuracy on old and new digits while the new ones are learnt from a few examples."""
    upto = steps // EVERY
    old, new = (curve[:upto + 1] for curve in adapt(optimizer, body_rate, head_rate))
    at = [adapt(optimizer, rate, head_rate) for rate in BODY_RATES[1:]]
    body = f"Body at {body_rate:g}" if body_rate else "The body stands still"
    sentence = (f"{body}, head at {head_rate:g}, {optimizer}, {steps} steps on {PER_CLASS} "
                f"examples of each new digit: 5 to 9 come to {new[-1]:.1f} %, 0 to 4 go from "
                f"{old[0]:.1f} % to {old[-1]:.1f} %.")
    return {"step": range(0, steps + 1, EVERY), "old": old, "new": new, "rate": BODY_RATES[1:],
                "here": [on_axis(body_rate)], "old_at": [a[upto] for a, _ in at],
            "new_at": [b[upto] for _, b in at]}, sentence
