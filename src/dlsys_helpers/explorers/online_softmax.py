"""Online softmax: a row of scores tile by tile, with a rescaling switched off."""

import math

import torch

from dlsys_helpers.explorers import Choice, Columns, Grip, Slider, explorer

KEYS, TILE = 18, 4           # the last tile holds two keys
TILES = math.ceil(KEYS / TILE)
HIGHEST = 40                 # weights are drawn up to here
FORMS = {"right": (True, True, True), "total not rescaled": (True, False, True),
         "out not rescaled": (True, True, False), "neither rescaled": (True, False, False),
         "no maximum": (False, True, True)}  # maximum, total rescaled, out rescaled
_g = torch.Generator().manual_seed(2)
_NOISE = torch.randn(KEYS, generator=_g, dtype=torch.float64)
_NOISE = _NOISE - _NOISE.min() + 0.2  # above zero: a larger score is a longer column
VALUES = torch.rand(KEYS, generator=_g, dtype=torch.float64)
SCORES = {"as they come": _NOISE, "rising": _NOISE.sort().values,
          "falling": _NOISE.sort(descending=True).values, "times 400": 400 * _NOISE}


def last_key(tiles):
    """Where the last key of `tiles` tiles ends, on an axis where key k is centred on k."""
    return min(TILE * tiles, KEYS) - 0.5


def steps(scores, form):
    """After each tile: top (TILES,), and each key's weight in total and in out (TILES, KEYS).

    float32, as a kernel has them. A key that has not come yet weighs 0.
    """
    maximum, *rescaled = FORMS[form]
    top, held = -math.inf if maximum else 0.0, torch.zeros(2, KEYS)
    tops, weights = [], []
    for start in range(0, KEYS, TILE):
        part = scores[start:start + TILE].float()
        new = max(top, part.max().item()) if maximum else 0.0
        fix = math.exp(top - new)
        held = held * torch.tensor([[fix if one else 1.0] for one in rescaled])
        held[:, start:start + TILE] = (part - new).exp()
        top = new
        tops.append(top)
        weights.append(held)
    return torch.tensor(tops), *torch.stack(weights, 1)


def right(scores):
    """The softmax of all keys so far, times their values: (TILES,)."""
    ends = range(TILE, KEYS + TILE, TILE)
    return torch.stack([scores[:end].softmax(0) @ VALUES[:end] for end in ends])


def said(number):
    """The number with three significant digits and a real minus sign."""
    text = f"{number:.3g}" if math.isfinite(number) else "no number"
    return text.replace("-", "\N{MINUS SIGN}")


def told_top(before, now, tiles):
    """What the tile that enters does to the running maximum."""
    if tiles == 1:
        return f"Tile 1 of {TILES}: top is {said(now)}"
    if before == now:
        return f"Tile {tiles} of {TILES} leaves top at {said(now)}, nothing is to be rescaled"
    return (f"Tile {tiles} of {TILES} moves top from {said(before)} to {said(now)}: the factor for "
            f"what is older is {said(math.exp(before - now))}")


def drawn(numbers, limit):
    """Finite numbers, none above the limit."""
    return numbers.nan_to_num(limit, posinf=limit).clamp(max=limit)


@explorer(
    title="Online softmax: one row, tile by tile",
    controls=[
        Choice("scores", "Scores", SCORES, "rising"),
        Choice("form", "Form", FORMS, "out not rescaled"),
        Slider("tiles", "Tiles seen", range(1, TILES + 1), 2),
    ],
    views=[
        Columns("key", {"score": "score"}, levels={"top_before": "top before", "top": "top now"},
                title="The tile that enters", xlabel="key", ylabel="score", band="tile",
                mark="edge", grips=[Grip("tiles", x=last_key)]),
        Columns("nth", {"out": "out / total, this form", "wanted": "softmax of all keys so far"},
                title="The output after each tile", xlabel="tiles seen", ylabel="output",
                ylim=(0, 2), grips=[Grip("tiles", x=int)]),
        Columns("key", {"before": "before this tile", "in_total": "now, in total",
                        "in_out": "now, in out"},
                title="Each key's weight, exp(score − top)", xlabel="key", ylabel="weight",
                band="tile"),
    ],
)
def online_softmax(scores, form, tiles):
    """One row after some tiles: scores, weights before and after, and the output; future is 0."""
    row = SCORES[scores]
    tops, in_total, in_out = steps(row, form)
    now, old = tiles - 1, max(tiles - 2, 0)
    total, out = in_total.sum(1), in_out @ VALUES.float()
    share, wanted = out / total, right(row)
    verdict = (f"The output is {said(share[now].item())}, it should be {wanted[now]:.3g}."
               if share[now].isfinite() else "The output is no number.")
    came = torch.arange(TILES) < tiles
    return {"key": range(KEYS), "score": torch.where(torch.arange(KEYS) < last_key(tiles), row, 0),
            "tile": [last_key(now), last_key(tiles)], "edge": [last_key(tiles)],
            "top_before": tops[old:old + 1], "top": tops[now:tiles],
            "before": drawn(in_total[old], HIGHEST) * (tiles > 1),
            "in_total": drawn(in_total[now], HIGHEST), "in_out": drawn(in_out[now], HIGHEST),
            "nth": range(1, TILES + 1), "out": drawn(share, 2) * came, "wanted": wanted * came}, (
        f"{told_top(tops[old].item(), tops[now].item(), tiles)}. total is "
        f"{said(total[now].item())}, out {said(out[now].item())}. {verdict}")
