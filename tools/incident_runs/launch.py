"""Photos of one meter are on both sides of the split, so the test measures memory."""

import io
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

METERS, PHOTOS = 150, 6  # in the training data; photos of each meter
NOISE = 0.22
TEST = 0.2
UPDATES, EVERY = 300, 20  # of training; updates between two points of its curve


class Data:
    """Photos of meters: one digit each, seen several times with noise."""

    def __init__(self, seed: int) -> None:
        digits = load_digits()
        draw = np.random.default_rng(seed)
        order = draw.permutation(len(digits.data))
        images = torch.tensor(digits.data[order] / 16, dtype=torch.float32)
        labels = torch.tensor(digits.target[order])
        self.noise = torch.Generator().manual_seed(seed)
        self.meter = torch.arange(METERS).repeat_interleave(PHOTOS)
        self.x = self.photo(images[self.meter])
        self.y = labels[self.meter]
        self.single_x = self.photo(images[:METERS * PHOTOS])  # as many, a different meter each
        self.single_y = labels[:METERS * PHOTOS]
        self.launch_x, self.launch_y = self.photo(images[900:1700]), labels[900:1700]

    def photo(self, images: Tensor) -> Tensor:
        return images + NOISE * torch.randn(images.shape, generator=self.noise)


def trained(x: Tensor, y: Tensor, seed: int, width: int = 64, updates: int = UPDATES,
            watch: Callable[[nn.Module], None] = lambda _: None) -> nn.Module:
    """A trained network. watch: called with it after every EVERY updates."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for update in range(1, updates + 1):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if update % EVERY == 0:
            watch(model)
    return model


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor, rows: int = 256) -> float:
    right = sum((model(one).argmax(1) == other).sum().item()
                for one, other in zip(x.split(rows), y.split(rows), strict=True))
    return 100 * right / len(y)


def loaded(model: nn.Module) -> nn.Module:
    """The model as the server loads it from a file."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def mixed(model: nn.Module, data: "Data", like: Tensor) -> float:
    """Accuracy at launch if its digits were as frequent as in these labels."""
    return sum((like == n).float().mean().item()
               * accuracy(model, data.launch_x[data.launch_y == n],
                          data.launch_y[data.launch_y == n]) for n in range(10))


def by_photo(count: int, seed: int) -> Tensor:
    """A mask of the test photos: a fifth of them, drawn at random."""
    draw = torch.Generator().manual_seed(seed)
    mask = torch.zeros(count, dtype=torch.bool)
    mask[torch.randperm(count, generator=draw)[:int(TEST * count)]] = True
    return mask


def measure(seed: int) -> dict:
    data = Data(seed)
    test = by_photo(len(data.x), seed)
    learning: list[float] = []
    model = trained(data.x[~test], data.y[~test], seed, watch=lambda model: learning.append(
        accuracy(model, data.x[test], data.y[test])))
    offline = accuracy(model, data.x[test], data.y[test])
    launch = accuracy(model, data.launch_x, data.launch_y)
    served = loaded(model)
    known = torch.isin(data.meter[test], data.meter[~test].unique())
    week = [accuracy(model, x, y) for x, y in zip(data.launch_x.chunk(5), data.launch_y.chunk(5),
                                                  strict=True)]
    wide = trained(data.x[~test], data.y[~test], seed, width=256, updates=2 * UPDATES)
    held = data.meter >= METERS * (1 - TEST)  # whole meters
    split = trained(data.x[~held], data.y[~held], seed)
    split_offline = accuracy(split, data.x[held], data.y[held])
    split_launch = accuracy(split, data.launch_x, data.launch_y)
    single = by_photo(len(data.single_x), seed)
    plain = trained(data.single_x[~single], data.single_y[~single], seed)
    return {
        "numbers": {
            "healthy": accuracy(plain, data.single_x[single], data.single_y[single])
                       - accuracy(plain, data.launch_x, data.launch_y),
            "fault": offline - launch, "repaired": split_offline - split_launch,
            "offline": offline, "launch": launch, "tests": float(test.sum()),
            "wrong": 100 - launch, "calls": 8 * (100 - launch),
            "call_hours": 8 * 8 * (100 - launch) / 60,
            "served": accuracy(served, data.x[test], data.y[test]),
            "one_by_one": accuracy(model, data.launch_x, data.launch_y, rows=1),
            "training": accuracy(model, data.x[~test], data.y[~test]),
            "known": float(known.sum()), "new": float((~known).sum()),
            "wide_offline": accuracy(wide, data.x[test], data.y[test]),
            "wide_launch": accuracy(wide, data.launch_x, data.launch_y),
            "split_offline": split_offline, "split_launch": split_launch,
            "light_test": data.x[test].mean().item(), "light_launch": data.launch_x.mean().item(),
            "spread_test": data.x[test].std().item(),
            "spread_launch": data.launch_x.std().item(),
            "mixed": mixed(model, data, data.y[test]), "first_day": week[0]},
        "curves": {"learning": {"x": [float(EVERY * n) for n in range(1, 1 + len(learning))],
                                "right in the test, %": learning},
                   "week": {"x": [1.0, 2.0, 3.0, 4.0, 5.0], "right at launch, %": week}}}
