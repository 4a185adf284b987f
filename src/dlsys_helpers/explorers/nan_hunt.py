"""A NaN in a chain of layers: which values and which gradients it reaches, and who names what."""

import warnings

import torch
from torch import nn

from dlsys_helpers.explorers import Choice, Lines, Slider, explorer

LAYERS, WIDTH, ROWS = 8, 6, 16
FORWARD, BACKWARD, LOSS = "0/0", "where around a root", "a NaN added to the loss"
FAULTS = (FORWARD, BACKWARD, LOSS)
BAD = (1, 4, 16)


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
    """The values behind each layer, after a backward pass from the loss."""
    h, behind = torch.linspace(-1, 1, ROWS * WIDTH).view(ROWS, WIDTH), []
    for layer in net:
        h = layer(h)
        behind.append(h.detach())
    loss = h.logsumexp(1).mean()
    (loss + torch.nan if fault == LOSS else loss).backward()
    return behind


def named(net, fault):
    """The operation that anomaly mode names, or "nothing"."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it announces itself
        try:
            with torch.autograd.detect_anomaly():
                run(net, fault)
        except RuntimeError as error:
            return str(error).split("'")[1]
    return "nothing"


def share(tensor):
    """Percent of the numbers that are NaN."""
    return 100 * tensor.isnan().double().mean().item()


@explorer(
    title="How far a NaN reaches",
    controls=[
        Choice("fault", "Fault", FAULTS, FORWARD),
        Slider("place", "In layer", range(1, LAYERS + 1), 4),
        Slider("bad", f"Rows of {ROWS} that meet it", BAD, 1),
    ],
    views=[
        Lines("layer", {"values": "values behind the layer",
                        "gradients": "gradients of its weight"},
              title="What is NaN, layer by layer", xlabel="layer", ylabel="share that is NaN, %",
              ylim=(-5, 105)),
    ],
)
def nan_hunt(fault, place, bad):
    """Shares of NaN in a chain of layers with a fault in one of them, and what two tools say."""
    net = chain(fault, place, bad)
    values = [share(v) for v in run(net, fault)]
    gradients = [share(layer.weight.grad) for layer in net]
    first = next((f"layer {k}" for k, v in enumerate(values, 1) if v), "no layer")
    return {"layer": list(range(1, LAYERS + 1)), "values": values, "gradients": gradients}, (
        f"Hooks on the way forward name {first}; anomaly mode names {named(net, fault)}.")
