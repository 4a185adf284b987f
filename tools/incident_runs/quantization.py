"""Activation ranges are calibrated on one language, and clip the activations of another.

The second language is the same prose in another script, whose letters were added to the vocabulary
later: their embeddings are as large as a new nn.Embedding makes them.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.incident_runs import small

UPDATES, ROWS, SHARE = 900, 128, 0.15  # SHARE: of the second language
SMALL_INIT = 0.02  # standard deviation of the first embeddings; new ones have 1
BITS = 8
LAYERS = ("embeddings", "first hidden", "second hidden")
WEEK = 7
TRAFFIC = 0.06  # share of the second language among users


class Model(nn.Module):
    """Predict the next letter from eight. ranges: of the activations, once they are quantized."""

    def __init__(self, letters: int, width: int = 64, dim: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(2 * letters, dim)
        with torch.no_grad():
            self.embed.weight[:letters] *= SMALL_INIT
        self.first = nn.Linear(small.CONTEXT * dim, width)
        self.second = nn.Linear(width, width)
        self.head = nn.Linear(width, 2 * letters)
        self.ranges: dict[int, float | None] | None = None
        self.seen: dict[int, Tensor] = {}

    def forward(self, rows: Tensor) -> Tensor:
        x = self.kept(self.embed(rows).flatten(1), 0)
        x = self.kept(torch.relu(self.first(x)), 1)
        x = self.kept(torch.relu(self.second(x)), 2)
        return self.head(x)

    def kept(self, x: Tensor, layer: int) -> Tensor:
        """The activations as the server quantizes them. Without a range, each row has its own."""
        self.seen[layer] = x.detach()
        if self.ranges is None or layer not in self.ranges:
            return x
        fixed = self.ranges[layer]
        scale = (x.abs().amax(1, keepdim=True) if fixed is None else torch.tensor(fixed)) / LEVELS
        return (x / scale).round().clamp(-LEVELS, LEVELS) * scale


LEVELS = 2 ** (BITS - 1) - 1


def weights_rounded(model: Model, by_row: bool = False) -> dict[str, Tensor]:
    """The model's weights in eight bits, with one scale for each tensor or for each row."""
    found = {}
    for name, value in model.state_dict().items():
        most = value.abs().amax(-1, keepdim=True) if by_row else value.abs().max()
        scale = most.clamp(min=1e-9) / LEVELS
        found[name] = (value / scale).round() * scale
    return found


class Case:
    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        text = small.prose()
        self.letters = len(text.letters)
        half = len(text.train) // 2
        self.train = [small.rows_of(text.train[:half]),
                      self.second(small.rows_of(text.train[half:]))]
        valid = [part[::10] for part in small.rows_of(text.valid)]
        self.valid = [valid, self.second(valid)]
        self.model = Model(self.letters)
        self.fit(seed)

    def second(self, rows: tuple[Tensor, Tensor]) -> list[Tensor]:
        """The same text in the other script."""
        return [part + self.letters for part in rows]

    def fit(self, seed: int) -> None:
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.002)
        draw = torch.Generator().manual_seed(seed)
        counts = (round(ROWS * (1 - SHARE)), round(ROWS * SHARE))
        for _ in range(UPDATES):
            which = [torch.randint(len(rows), (count,), generator=draw)
                     for (rows, _), count in zip(self.train, counts, strict=True)]
            rows, targets = (torch.cat([language[part][index] for language, index in
                                        zip(self.train, which, strict=True)]) for part in (0, 1))
            optimizer.zero_grad()
            F.cross_entropy(self.model(rows), targets).backward()
            optimizer.step()

    @torch.no_grad()
    def losses(self, ranges=None, weights=None) -> list[float]:
        """The loss in each language, with these ranges and weights."""
        plain = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(weights or plain)
        self.model.ranges = ranges
        found = [F.cross_entropy(self.model(rows), targets).item() for rows, targets in self.valid]
        self.model.load_state_dict(plain)
        self.model.ranges = None
        return found

    def days(self, ranges, weights) -> list[float]:
        """The loss of all users' requests, a week before and a week after quantization."""
        whole = self.valid
        parts = [list(zip(*(part.chunk(2 * WEEK) for part in language), strict=True))
                 for language in whole]
        found = []
        for day, self.valid in enumerate(zip(*parts, strict=True)):
            losses = self.losses() if day < WEEK else self.losses(ranges, weights)
            found.append(together(losses))
        self.valid = whole
        return found

    @torch.no_grad()
    def calibrated(self, *languages: int, count: int = 512) -> dict[int, float]:
        """The largest activation of each layer on rows of these languages."""
        most = dict.fromkeys(range(len(LAYERS)), 0.0)
        for language in languages:
            self.model(self.train[language][0][:count])
            for layer, seen in self.model.seen.items():
                most[layer] = max(most[layer], seen.abs().max().item())
        return most

    @torch.no_grad()
    def clipped(self, language: int, ranges: dict[int, float]) -> list[float]:
        """The percentage of activations outside the range, by layer."""
        self.model(self.valid[language][0])
        return [100 * (self.model.seen[layer].abs() > most).float().mean().item()
                for layer, most in ranges.items()]


def together(losses: list[float]) -> float:
    return (1 - TRAFFIC) * losses[0] + TRAFFIC * losses[1]


def measure(seed: int) -> dict:
    case = Case(seed)
    plain = case.losses()
    rounded, by_row = weights_rounded(case.model), weights_rounded(case.model, by_row=True)
    ranges, both = case.calibrated(0), case.calibrated(0, 1)
    more = case.calibrated(0, count=8192)
    shipped = case.losses(ranges, rounded)
    mended = case.losses(both, rounded)
    only_weights, only_activations = case.losses(weights=rounded), case.losses(ranges)
    rows = case.losses(ranges, by_row)
    dynamic = case.losses(dict.fromkeys(ranges), rounded)
    larger = case.losses(more, rounded)
    layers = [case.losses({layer: most}) for layer, most in ranges.items()]
    first, second = case.clipped(0, ranges), case.clipped(1, ranges)
    case.model(case.valid[1][0])
    numbers = {
        "healthy": dynamic[1] - plain[1], "fault": shipped[1] - plain[1],
        "repaired": mended[1] - plain[1], "all_plain": together(plain),
        "all_shipped": together(shipped)}
    for name, pair in (("plain", plain), ("shipped", shipped), ("mended", mended),
                       ("weights", only_weights), ("activations", only_activations),
                       ("rows", rows), ("dynamic", dynamic), ("larger", larger)):
        numbers |= {f"{name}_a": pair[0], f"{name}_b": pair[1]}
    for n in range(len(LAYERS)):
        numbers |= {f"layer{n}_b": layers[n][1],
                    f"clipped{n}_a": first[n], f"clipped{n}_b": second[n],
                    f"range{n}": ranges[n], f"needs{n}": case.model.seen[n].abs().max().item()}
    x = [float(day) for day in range(1, 2 * WEEK + 1)]
    return {"numbers": numbers, "curves": {
        "days": {"x": x, "loss of all requests": case.days(ranges, rounded)}}}
