"""Learning-rate schedules of torch, batch by batch, called in the right or in the wrong unit."""

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from dlsys_helpers.explorers import Choice, Lines, Slider, explorer

EPOCHS, BATCHES = 10, 20
TOTAL = EPOCHS * BATCHES
PEAK = 0.1
LEAST = 1e-3  # an exponential never reaches 0: with floor 0 it ends at this share of the peak
LENGTH = {"batches": TOTAL, "epochs": EPOCHS}
EVERY = {"batch": 1, "epoch": BATCHES}
FLOORLESS = {"constant", "StepLR", "MultiStepLR"}  # these have no floor to end at


def _stable_then_down(n, floor):
    """Factor 1 for four fifths of n calls, then a straight line to the floor."""
    start = n * 4 // 5
    return lambda call: 1 - (1 - floor) * min(1, max(0, call - start) / max(1, n - start))


# name -> schedule that expects n calls and ends at floor (a share of the peak) if it has one.
AFTER_WARMUP = {
    "constant": lambda opt, n, floor: ConstantLR(opt, 1.0, n),  # noqa: ARG005
    "StepLR": lambda opt, n, floor: StepLR(opt, max(1, n // 3), 0.1),  # noqa: ARG005
    "MultiStepLR": lambda opt, n, floor: MultiStepLR(opt, [n // 2, n * 3 // 4], 0.1),  # noqa: ARG005
    "ExponentialLR": lambda opt, n, floor: ExponentialLR(opt, max(floor, LEAST) ** (1 / n)),
    "LinearLR": lambda opt, n, floor: LinearLR(opt, 1.0, floor, n),
    "CosineAnnealingLR": lambda opt, n, floor: CosineAnnealingLR(opt, n, PEAK * floor),
    "CosineAnnealingWarmRestarts": lambda opt, n, floor: CosineAnnealingWarmRestarts(
        opt, max(1, n // 7), 2, PEAK * floor),  # cycles of 1 + 2 + 4 sevenths
    "warm-up, stable, decay": lambda opt, n, floor: LambdaLR(opt, _stable_then_down(n, floor)),
}
# These have their own warm-up, or need the loss.
OTHERS = ("OneCycleLR", "cosine cut by max()", "ReduceLROnPlateau")


def validation_loss(batch):
    """A made-up loss for ReduceLROnPlateau: it falls for half of the run, then stays."""
    return math.exp(-6 * min(batch / TOTAL, 0.5))


def _cut_cosine(n, warm, floor):
    """Factor of the widespread recipe that takes max() of a cosine and a floor."""
    def factor(call):
        if call < warm:
            return call / warm
        return max(floor, 0.5 * (1 + math.cos(math.pi * (call - warm) / max(1, n - warm))))
    return factor


def _with_warmup(opt, schedule, n, warm, floor):
    """Calls 0 to warm - 1 climb in a line, the last one at the peak; then the schedule."""
    if warm < 2:
        return AFTER_WARMUP[schedule](opt, n, floor)
    climb = LinearLR(opt, 1 / warm, 1.0, warm - 1)
    return SequentialLR(opt, [climb, AFTER_WARMUP[schedule](opt, n - warm, floor)], [warm])


def build(schedule, opt, n, warm, floor):
    """The function that makes one call of the schedule, given the batch number.

    n: calls that the schedule expects; warm: how many of them climb; floor: share of the peak.
    """
    if schedule == "OneCycleLR":
        made = OneCycleLR(opt, PEAK, n, pct_start=max(warm / n, 1.5 / n),
                          final_div_factor=1 / (25 * max(floor, 1e-6)))
    elif schedule == "cosine cut by max()":
        made = LambdaLR(opt, _cut_cosine(n, warm, floor))
    elif schedule == "ReduceLROnPlateau":
        return _plateau(opt, warm, floor)
    else:
        made = _with_warmup(opt, schedule, n, warm, floor)
    return lambda batch: made.step()  # noqa: ARG005


def _plateau(opt, warm, floor):
    """It cannot be part of a SequentialLR: warm up first, then switch by hand."""
    climb = LinearLR(opt, 1 / warm, 1.0, warm - 1) if warm > 1 else None
    plateau = ReduceLROnPlateau(opt, factor=0.1, patience=2, min_lr=PEAK * floor)
    calls = iter(range(1, TOTAL + 1))

    def step(batch):
        if climb and next(calls) < warm:
            climb.step()
        else:
            plateau.step(validation_loss(batch))
    return step


def rates(schedule, numbers, called, warmup, floor):
    """Rate used by each of the TOTAL batches, and the batch at which torch refused, or None."""
    weight = nn.Parameter(torch.zeros(1))
    opt = torch.optim.SGD([weight], lr=PEAK, momentum=0.9)
    n = LENGTH[numbers]
    step = build(schedule, opt, n, round(n * warmup / 100), floor)
    used, refused = [], None
    for batch in range(1, TOTAL + 1):
        used.append(opt.param_groups[0]["lr"])
        opt.step()
        if batch % EVERY[called] == 0 and refused is None:
            try:
                step(batch)
            except ValueError:  # OneCycleLR counts its calls and refuses more than it expects
                refused = batch
    return used, refused


def _verdict(numbers, called, refused):
    if numbers.startswith(called):
        return "The units agree."
    if refused:
        return f"OneCycleLR raises ValueError after batch {refused}: more calls than it expects."
    calls, expected = TOTAL // EVERY[called], LENGTH[numbers]
    return f"The units differ: the schedule expects {expected} calls and gets {calls}."


def _floor(schedule, used, floor):
    """A remark for settings where moving the floor changes nothing."""
    if schedule in FLOORLESS:
        return f" {schedule} has no floor: that control does nothing here."
    if schedule == "ReduceLROnPlateau" and floor and min(used[TOTAL // 2:]) > 1.001 * PEAK * floor:
        return " It has not come down to the floor yet; the loss it sees is made up."
    return ""


@explorer(
    title=f"Learning-rate schedules over {EPOCHS} epochs of {BATCHES} batches",
    controls=[
        Choice("schedule", "Schedule", [*AFTER_WARMUP, *OTHERS], "CosineAnnealingLR"),
        Choice("numbers", "Its numbers count", LENGTH, "batches"),
        Choice("called", "step() is called after every", EVERY, "batch"),
        Slider("warmup", "Warm-up (% of its length)", [0, 5, 10, 20, 40], 10, static=[0, 10, 40]),
        Slider("floor", "Floor (share of the peak)", [0, 0.01, 0.1, 0.3], 0.1, static=[0, 0.1]),
    ],
    views=[
        Lines("batch", {"rate": "rate"}, title="The rate that each batch is trained with",
              xlabel="batch", ylabel="learning rate", xlim=(0, TOTAL), ylim=(0, PEAK * 1.05),
              step=True),
    ],
)
def schedules(schedule, numbers, called, warmup, floor):
    """The learning rate of every batch, as torch's own scheduler sets it."""
    used, refused = rates(schedule, numbers, called, warmup, floor)
    top = max(range(TOTAL), key=used.__getitem__)
    sentence = (f"{schedule}: starts at {used[0]:.3g}, is highest at batch {top + 1} with "
                f"{used[top]:.3g}, ends at {used[-1]:.3g}, mean {sum(used) / TOTAL:.3g}. "
                f"{_verdict(numbers, called, refused)}{_floor(schedule, used, floor)}")
    return {"batch": range(1, TOTAL + 1), "rate": used}, sentence
