"""The loss scale of float16 over the steps: halved by an overflow, doubled after a while."""

import torch

from dlsys_helpers.explorers import Lines, Slider, explorer

STEPS = 120
LARGEST = torch.finfo(torch.float16).max
SPREAD = 40  # the gradients of a step reach over so many powers of two
SIZES = 2.0 ** -torch.linspace(0, SPREAD, 161)  # over the largest


def run(start, interval, largest):
    """Scale before each step, and whether the step was skipped, by torch's own GradScaler.

    start, largest: powers of two, of the first scale and of the largest gradient.
    """
    weight = torch.nn.Parameter(torch.zeros(1))
    opt = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**start, growth_interval=interval)
    scales, skipped = [], []
    for _ in range(STEPS):
        scales.append(scaler.get_scale())
        weight.grad = scaler.scale(torch.tensor([2.0**largest])).half().float()
        scaler.step(opt)
        scaler.update()
        skipped.append(scaler.get_scale() < scales[-1])
    return scales, skipped


def lost(scale, largest):
    """Share of the gradients that float16 rounds to zero under this scale."""
    return float(((SIZES * 2.0**largest * scale).half() == 0).double().mean())


@explorer(
    title="The loss scale over the steps",
    controls=[
        Slider("start", "First scale, power of two", [0, 4, 8, 12, 16, 20, 24], 16),
        Slider("largest", "Largest gradient, power of two", [-12, -8, -4, 0, 4, 8], 4),
        Slider("interval", "Steps without overflow before it doubles", [5, 10, 20, 40, 1000], 20),
    ],
    views=[
        Lines("step", {"scale": "scale", "most": "the largest scale that fits"},
              title="Scale in float16", xlabel="step", ylabel="scale (log)", ylog=True,
              step=True),
        Lines("step", {"zero": "rounded to zero"}, title="Gradients that become zero",
              xlabel="step", ylabel="share of the gradients", ylim=(0, 1), step=True),
    ],
)
def loss_scale(start, largest, interval):
    """How the scale moves, how many steps an overflow costs, and which gradients are lost."""
    scales, skipped = run(start, interval, largest)
    zero = {scale: lost(scale, largest) for scale in set(scales)}
    first = next((k for k, gone in enumerate(skipped) if not gone), STEPS)
    fits = LARGEST / 2.0**largest
    return {"step": range(STEPS), "scale": scales, "most": [fits] * STEPS,
            "zero": [zero[scale] for scale in scales]}, (
        f"{sum(skipped)} of {STEPS} steps are skipped, {first} of them at the start. The last "
        f"scale is {scales[-1]:,.0f}; without a scale {lost(1.0, largest):.0%} of these "
        f"gradients become zero, with it {zero[scales[-1]]:.0%}.")
