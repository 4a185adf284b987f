"""The learning-rate range test on digits: a sweep over rates, and a training run at one of them."""

from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.data import digits
from dlsys_helpers.explorers import Choice, Grip, Lines, Slider, explorer

LOW, HIGH = 1e-5, 10.0
STEPS = 200                      # of the training at one rate, as in trap 04.5
RATES = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1)
TOP, LEAST = 10.0, 1e-2          # the pictures go from LEAST to TOP
STOP = 4                         # times the lowest loss so far: the sweep ends
OPTIMIZERS = {"SGD": lambda p, lr: torch.optim.SGD(p, lr=lr),
              "SGD + momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
              "AdamW": lambda p, lr: torch.optim.AdamW(p, lr=lr)}


_digits = lru_cache(maxsize=1)(digits)


def _parts(optimizer, batch):
    """A fresh model, its optimizer, and a function for the loss of the next batch."""
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.utils.skip_init(nn.Linear, 64, 32), nn.ReLU(),
                          nn.utils.skip_init(nn.Linear, 32, 10))
    for layer in (model[0], model[2]):
        nn.init.kaiming_normal_(layer.weight, generator=g)
        nn.init.zeros_(layer.bias)
    x, y, *_ = _digits()

    def loss():
        rows = torch.randint(len(x), (batch,), generator=g)
        return F.cross_entropy(model(x[rows]), y[rows])
    return model, OPTIMIZERS[optimizer](model.parameters(), LOW), loss


def _train(opt, loss, rates):
    """One step at each rate; the loss before each. Stops where the sweep or float32 ends."""
    losses = []
    for rate in rates:
        for group in opt.param_groups:
            group["lr"] = rate
        value = loss()
        losses.append(value.item())
        if not losses[-1] < 1e4:
            break
        opt.zero_grad()
        value.backward()
        opt.step()
    return losses


@lru_cache(maxsize=64)
def sweep(optimizer, batch, steps):
    """Rates and losses of one range test, up to the first loss STOP times the lowest so far."""
    rates = [LOW * (HIGH / LOW) ** (k / (steps - 1)) for k in range(steps)]
    _, opt, loss = _parts(optimizer, batch)
    losses = _train(opt, loss, rates)
    end = next((k for k in range(1, len(losses)) if not losses[k] <= STOP * min(losses[:k])),
               len(losses) - 1)
    return rates[:end + 1], losses[:end + 1]


@lru_cache(maxsize=256)
def train(optimizer, batch, rate):
    """Losses of STEPS steps at one rate and the accuracy on the test digits after them."""
    model, opt, loss = _parts(optimizer, batch)
    losses = _train(opt, loss, [rate] * STEPS)
    x, y = _digits()[2:]
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float().mean().item()
    return losses, right


def _shown(losses):
    """Losses within the picture; NaN and infinity are drawn at its upper edge."""
    return torch.tensor(losses).nan_to_num(TOP, TOP).clamp(LEAST, TOP)


@explorer(
    title="Learning-rate range test: sweep first, then train",
    controls=[
        Choice("optimizer", "Optimizer", OPTIMIZERS, "SGD + momentum"),
        Slider("batch", "Rows in a batch", [8, 16, 64, 256], 64, static=[8, 64]),
        Slider("steps", "Steps of the sweep", [10, 20, 50, 100, 200], 100, static=[20, 100]),
        Slider("rate", "Then train at", RATES, 0.1),
    ],
    views=[
        Lines("rates", {"swept": "loss"}, title="The sweep: the rate grows with every step",
              xlabel="learning rate (log)", ylabel="loss of the batch (log)", xlim=(LOW, HIGH),
              ylim=(LEAST, TOP), xlog=True, ylog=True, mark="chosen",
              grips=[Grip("rate", x=float)]),
        Lines("step", {"loss": "loss"}, title=f"{STEPS} steps at the rate you choose",
              xlabel="step", ylabel="loss of the batch (log)", xlim=(0, STEPS),
              ylim=(LEAST, TOP), ylog=True),
    ],
)
def lr_range_test(optimizer, batch, steps, rate):
    """One range test, and what training at the chosen rate gives."""
    rates, swept = sweep(optimizer, batch, steps)
    losses, right = train(optimizer, batch, rate)
    best = rates[swept.index(min(swept))]
    sentence = (f"Sweep of {steps} steps with {optimizer}: lowest loss at rate {best:.2g}, a tenth "
                f"of it is {best / 10:.2g}. Trained at {rate:g}: {right:.0%} of the test digits "
                f"right after {STEPS} steps.").replace("%", " %")
    return {"rates": rates, "swept": _shown(swept), "chosen": [rate], "step": range(len(losses)),
            "loss": _shown(losses)}, sentence
