"""A NaN in a chain of layers: which values and gradients it reaches, and which tool names what."""

import math
import warnings

import torch
from torch import nn

from dlsys_helpers.explorers import Choice, Columns, Grip, Heatmap, Slider, explorer

LAYERS, WIDTH, ROWS = 8, 6, 8
FORWARD, BACKWARD, LOSS = "0/0", "where around a root", "a NaN added to the loss"
FAULTS = (FORWARD, BACKWARD, LOSS)
BAD = (1, 3, 8)
FINE, BROKEN = "#d5dae3", "#c2410c"  # colours of a number and of a NaN


class Layer(nn.Linear):
    """A linear layer with tanh; where a fault is planted, it spoils the first `bad` rows."""

    fault, bad = None, 0

    def forward(self, x):
        h = super().forward(x).tanh()
        fine = (torch.arange(ROWS) >= self.bad).to(h.dtype)[:, None]
        if self.fault == FORWARD:
            return h * fine / fine
        if self.fault == BACKWARD:
            size = fine * h ** 2
            return h + torch.where(size > 0, size.sqrt(), 0)
        return h


def chain(fault, place, bad):
    """LAYERS layers with fixed weights; the layer at `place`, from 1, has the fault."""
    torch_state = torch.get_rng_state()
    torch.default_generator.manual_seed(0)
    net = nn.Sequential(*[Layer(WIDTH, WIDTH) for _ in range(LAYERS)])
    torch.set_rng_state(torch_state)
    net[place - 1].fault, net[place - 1].bad = fault, bad
    return net


def run(net, fault):
    """Values after each layer, the gradients that arrive there, and the loss: lists of LAYERS."""
    h, behind = torch.linspace(-1, 1, ROWS * WIDTH).view(ROWS, WIDTH), []
    for layer in net:
        h = layer(h)
        h.retain_grad()
        behind.append(h)
    loss = h.logsumexp(1).mean()
    if fault == LOSS:
        loss = loss + torch.nan
    loss.backward()
    return [h.detach() for h in behind], [h.grad for h in behind], loss.item()


def named(net, fault):
    """The operation that anomaly mode names, or "nothing"."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # detect_anomaly warns when it starts
        try:
            with torch.autograd.detect_anomaly():
                run(net, fault)
        except RuntimeError as error:
            return str(error).split("'")[1]
    return "nothing"


def spoilt(tensors):
    """1 where a row of a layer holds a NaN, else 0: (ROWS, LAYERS)."""
    return torch.stack([t.isnan().any(1).double() for t in tensors], 1)


def by_layer(name, title):
    """The view of one such table."""
    return Heatmap(name, title=title, xlabel="layer", ylabel="row of the batch", vmin=0, vmax=1,
                   label="0 a number, 1 NaN", ramp=(FINE, BROKEN), xlim=(0.5, LAYERS + 0.5),
                   ylim=(0.5, ROWS + 0.5), grips=[Grip("place", x=int)])


@explorer(
    title="How far a NaN reaches",
    controls=[
        Choice("fault", "Fault", FAULTS, FORWARD),
        Slider("place", "In layer", range(1, LAYERS + 1), 4),
        Slider("bad", f"Rows of {ROWS} that meet it", BAD, 1),
    ],
    views=[
        by_layer("values", "Forward: values behind a layer"),
        by_layer("gradients", "Backward: gradients there"),
        Columns("layer", {"weights": "NaN"}, title="Gradient of each layer's weight",
                xlabel="layer", ylabel="share that is NaN, %", ylim=(0, 105)),
    ],
)
def nan_hunt(fault, place, bad):
    """Where a chain of layers with one fault has NaN, and what two tools report."""
    net = chain(fault, place, bad)
    values, passed, loss = run(net, fault)
    weights = [100 * layer.weight.grad.isnan().double().mean().item() for layer in net]
    first = next((f"layer {k}" for k, v in enumerate(values, 1) if v.isnan().any()), "no layer")
    spared = sum(share == 0 for share in weights)
    return {"values": spoilt(values), "gradients": spoilt(passed),
            "layer": range(1, LAYERS + 1), "weights": weights}, (
        f"The loss is {'NaN' if math.isnan(loss) else f'{loss:.2f}'}; of {LAYERS} weights "
        f"{LAYERS - spared} have NaN in their gradient. Hooks on the way forward name {first}; "
        f"anomaly mode names {named(net, fault)}.")
