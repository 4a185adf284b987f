"""Online softmax: a row of scores tile by tile, with a rescaling switched off."""

import math

import torch

from dlsys_helpers.explorers import Choice, Lines, Slider, explorer

KEYS, TILE = 18, 4           # the last tile holds two keys
TILES = math.ceil(KEYS / TILE)
HIGHEST = 20                 # sums are drawn up to here
FORMS = {"right": (True, True, True), "l not rescaled": (True, False, True),
         "o not rescaled": (True, True, False), "neither rescaled": (True, False, False),
         "no maximum": (False, True, True)}  # maximum, l rescaled, o rescaled
_g = torch.Generator().manual_seed(2)
_NOISE = torch.randn(KEYS, generator=_g, dtype=torch.float64)
VALUES = torch.rand(KEYS, generator=_g, dtype=torch.float64)
SCORES = {"as they come": _NOISE, "rising": _NOISE.sort().values,
          "falling": _NOISE.sort(descending=True).values, "times 400": 400 * _NOISE}


def steps(scores, form):
    """m, l and o (TILES, 3) after each tile; float32, as a kernel has them."""
    maximum, fix_l, fix_o = FORMS[form]
    top, total, out, seen = -math.inf if maximum else 0.0, 0.0, 0.0, []
    for part, values in zip(scores.float().split(TILE), VALUES.float().split(TILE), strict=True):
        new = max(top, part.max().item()) if maximum else 0.0
        fix, p = math.exp(top - new), (part - new).exp()
        total = total * (fix if fix_l else 1) + p.sum().item()
        out = out * (fix if fix_o else 1) + (p * values).sum().item()
        top = new
        seen.append([top, total, out])
    return torch.tensor(seen, dtype=torch.float64)


def right(scores):
    """What l and o / l should be after each tile (TILES, 2), from all keys so far at once."""
    found = []
    for end in range(TILE, KEYS + TILE, TILE):
        s = scores[:end]
        found.append([(s - s.max()).exp().sum(), s.softmax(0) @ VALUES[:end]])
    return torch.tensor(found, dtype=torch.float64)


def said(number):
    return f"{number:.3g}" if math.isfinite(number) else "no number"


@explorer(
    title="Online softmax: one row, tile by tile",
    controls=[
        Choice("scores", "Scores", SCORES, "rising"),
        Choice("form", "Form", FORMS, "o not rescaled"),
        Slider("tiles", "Tiles seen", range(1, TILES + 1), 2),
    ],
    views=[
        Lines("key", {"score": "score", "top": "m, the running maximum"}, step=True,
              title="Scores of the keys, and the maximum so far", xlabel="key", ylabel="score",
              mark="now"),
        Lines("tile", {"total": "l, this form", "total_right": "l, as it should be"},
              title="Sum of the weights", xlabel="tiles seen", ylabel="l", ylim=(0, HIGHEST),
              mark="at"),
        Lines("tile", {"out": "o / l, this form", "out_right": "softmax of all keys so far"},
              title="Output", xlabel="tiles seen", ylabel="o / l", ylim=(0, 2), mark="at"),
    ],
)
def online_softmax(scores, form, tiles):
    """m, l and o after each tile of one row, by a form and by a softmax over all keys so far."""
    row = SCORES[scores]
    found, wanted = steps(row, form), right(row)
    top, total, out = found[tiles - 1].tolist()
    share = found[:, 2] / found[:, 1]
    off = abs(share[tiles - 1].item() - wanted[tiles - 1, 1].item())
    verdict = ("The output is no number." if not math.isfinite(off) else
               f"The output is {share[tiles - 1]:.3f}, it should be {wanted[tiles - 1, 1]:.3f}.")
    sentence = (f"Scores {scores}, {form}, {tiles} of {TILES} tiles: m {said(top)}, "
                f"l {said(total)}, o {said(out)}. {verdict}").replace("-", "\N{MINUS SIGN}")

    def drawn(numbers, top):
        return numbers.nan_to_num(top, posinf=top).clamp(max=top)
    return {"key": range(KEYS), "score": row, "top": found[:, 0].repeat_interleave(TILE)[:KEYS],
            "now": [min(TILE * tiles, KEYS) - 1], "tile": range(1, TILES + 1), "at": [tiles],
            "total": drawn(found[:, 1], HIGHEST), "total_right": wanted[:, 0],
            "out": drawn(share, 2), "out_right": wanted[:, 1]}, sentence
