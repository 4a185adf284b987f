"""Early stopping on real curves: where it stops, what it brings back, what that costs on test."""

import math
from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.data import digits
from dlsys_helpers.explorers import Bars, Choice, Lines, Slider, explorer

EPOCHS, ROWS, BATCH, HIDDEN = 120, 200, 25, 64
WRONG = 0.3  # share of the training labels that are redrawn at random
WATCHED = {"validation loss": ("val", 0), "validation accuracy": ("val", 1),
           "training loss": ("train", 0), "training accuracy": ("train", 1)}
RESTORES = {"the best weights": True, "nothing": False}


@lru_cache(maxsize=1)
def splits():
    """Digits (x, y): ROWS to train with, some labels wrong; 200 to validate; 497 to test."""
    x, y, *test = digits()
    g = torch.Generator().manual_seed(0)
    noisy = y[:ROWS].clone()
    wrong = torch.rand(ROWS, generator=g) < WRONG
    noisy[wrong] = torch.randint(10, (int(wrong.sum()),), generator=g)
    return {"train": (x[:ROWS], noisy), "val": (x[ROWS:2 * ROWS], y[ROWS:2 * ROWS]),
            "test": tuple(test)}


def build():
    """64 -> HIDDEN -> 10 with He weights and zero biases, the same each time."""
    g = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.utils.skip_init(nn.Linear, 64, HIDDEN), nn.ReLU(),
                          nn.utils.skip_init(nn.Linear, HIDDEN, 10))
    for layer in (model[0], model[2]):
        nn.init.kaiming_normal_(layer.weight, generator=g)
        nn.init.zeros_(layer.bias)
    return model


def measured(model):
    """Loss and accuracy in percent of each split, by its name."""
    with torch.no_grad():
        logits = {name: (model(x), y) for name, (x, y) in splits().items()}
    return {name: (F.cross_entropy(z, y).item(), 100 * (z.argmax(1) == y).float().mean().item())
            for name, (z, y) in logits.items()}


@lru_cache(maxsize=1)
def train():
    """What `measured` returns after each of EPOCHS epochs; Adam, rate 0.003."""
    model, g = build(), torch.Generator().manual_seed(2)
    opt = torch.optim.Adam(model.parameters(), lr=0.003)
    x, y = splits()["train"]
    seen = []
    for _ in range(EPOCHS):
        for rows in torch.randperm(ROWS, generator=g).split(BATCH):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
        seen.append(measured(model))
    return seen


def stop(curve, patience, min_delta, lower):
    """Epochs, from 1: where training stops and which was best; and the best value so far by epoch.

    Better means by more than min_delta. `patience` epochs in a row without it end the training.
    """
    best, at, so_far = math.inf, 0, []
    sign = 1 if lower else -1
    for epoch, value in enumerate(curve, 1):
        if sign * value < best - min_delta:
            best, at = sign * value, epoch
        so_far.append(sign * best)
        if epoch - at >= patience:
            break
    return epoch, at, so_far


def told(watched, stopped, best, kept, tests):
    """What happens, in words; tests: accuracy on test by epoch."""
    end = (f"stops after epoch {stopped}" if stopped < EPOCHS else
           f"runs all {EPOCHS} epochs")
    highest = max(tests)
    return (f"Watching {watched}, training {end}; its best epoch is {best}. You keep epoch {kept}: "
            f"{tests[kept - 1]:.1f} % of the test digits right. The best epoch on test, which you "
            f"may not ask, is {tests.index(highest) + 1} with {highest:.1f} %; the last, {EPOCHS}, "
            f"has {tests[-1]:.1f} %.")


@explorer(
    title="Early stopping: what is watched, how long it waits, what it brings back",
    controls=[
        Choice("watched", "Watch", WATCHED, "validation loss"),
        Slider("patience", "Patience (epochs)", [1, 2, 3, 5, 10, 20, 40], 5),
        Slider("min_delta", "min_delta (nats; of accuracy 0.01 is a point)",
               [0, 0.001, 0.01, 0.05], 0),
        Choice("restore", "Then restore", RESTORES, "the best weights"),
    ],
    views=[
        Lines("epoch", {"curve": "watched", "so_far": "best so far"}, title="What is watched",
              xlabel="epoch", ylabel="loss (nats) or accuracy (%)", xlim=(1, EPOCHS)),
        Lines("epoch", {"test": "each epoch", "keeps": "what you keep"},
              title="Accuracy on test, which nobody watches", xlabel="epoch",
              ylabel="right (%)", xlim=(1, EPOCHS)),
        Bars("epochs", ["stopped after epoch", "kept weights of epoch", "best epoch on test"],
             title="Epochs", limit=EPOCHS),
    ],
)
def early_stopping(watched, patience, min_delta, restore):
    """Where the rule stops on one training of a network on digits with some wrong labels."""
    split, which = WATCHED[watched]
    curve = [epoch[split][which] for epoch in train()]
    tests = [epoch["test"][1] for epoch in train()]
    stopped, best, so_far = stop(curve, patience, min_delta * (100 if which else 1), not which)
    kept = best if RESTORES[restore] else stopped
    so_far += so_far[-1:] * (EPOCHS - stopped)  # the line continues after training has ended
    arrays = {"epoch": range(1, EPOCHS + 1), "curve": curve, "so_far": so_far, "test": tests,
              "keeps": [tests[kept - 1]] * EPOCHS,
              "epochs": [stopped, kept, tests.index(max(tests)) + 1]}
    return arrays, told(watched, stopped, best, kept, tests)
