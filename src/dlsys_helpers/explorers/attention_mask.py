"""Who may look at whom: a mask over eight tokens, and the attention weights under it."""

import torch
from torch.nn import functional as F

from dlsys_helpers.explorers import Choice, Heatmap, Slider, explorer

TOKENS, WIDTH = 8, 16
NOT_ASKED = 0.5  # rows of tokens in the cache: no query, so neither allowed nor forbidden
CORNERS = ("lower right", "upper left")
ALLOWED, FORBIDDEN = 1.0, 0.0


def queries_and_keys():
    """Query and key of each token, (TOKENS, WIDTH), float64; always the same."""
    g = torch.Generator().manual_seed(2)
    return torch.randn(2, TOKENS, WIDTH, generator=g, dtype=torch.float64)


def causal(asked, corner):
    """True where the newest `asked` tokens may look, by the corner of the triangle."""
    shift = TOKENS - asked if corner == "lower right" else 0
    return torch.ones(asked, TOKENS, dtype=torch.bool).tril(shift)


def tokens(asked, pads):
    """True for keys that are not padding; padding is on the left."""
    return (torch.arange(TOKENS) >= pads).expand(asked, TOKENS)


# name -> mask for SDPA (asked, TOKENS), True where a query may look.
MASKS = {
    "none": lambda asked, pads, corner: torch.ones(asked, TOKENS, dtype=torch.bool),  # noqa: ARG005
    "causal": lambda asked, pads, corner: causal(asked, corner),  # noqa: ARG005
    "causal, MHA's": lambda asked, pads, corner: ~causal(asked, corner),  # noqa: ARG005
    "padding": lambda asked, pads, corner: tokens(asked, pads),  # noqa: ARG005
    "padding, MHA's": lambda asked, pads, corner: ~tokens(asked, pads),  # noqa: ARG005
    "causal and padding": lambda asked, pads, corner: causal(asked, corner) & tokens(asked, pads),
}


def weights(mask):
    """Attention weights (asked, TOKENS) of the newest tokens under a mask, by torch itself."""
    q, k = queries_and_keys()
    values = torch.eye(TOKENS, dtype=torch.float64)
    return F.scaled_dot_product_attention(q[None, -len(mask):], k[None], values[None],
                                          attn_mask=mask)[0]


def whole(rows, other):
    """The asked rows at the bottom of a square (TOKENS, TOKENS); the others hold `other`."""
    return torch.cat([torch.full((TOKENS - len(rows), TOKENS), other), rows.float()])


def share(given, where):
    """Share of all weight where `where` is True; 0 if there is no weight."""
    return float(given[where].sum() / given.sum()) if given.sum() else 0.0


@explorer(
    title="Who looks at whom: a mask and the weights under it",
    controls=[
        Choice("mask", "Mask handed to SDPA", MASKS, "none"),
        Choice("corner", "Corner of the triangle", CORNERS, "lower right"),
        Slider("asked", "Newest tokens asked, the rest in the cache", [1, 2, 4, 8], 8),
        Slider("pads", "Pads on the left", [0, 1, 2, 3, 4], 2, static=[0, 2, 4]),
    ],
    views=[
        Heatmap("allowed", title="The mask", xlabel="key, by token", ylabel="query, by token",
                vmin=0, vmax=1, label="0 may not look, 1 may"),
        Heatmap("weights", title="The weights", xlabel="key, by token", ylabel="query, by token",
                vmin=0, vmax=1, label="weight"),
    ],
)
def attention_mask(mask, corner, asked, pads):
    """The mask and the weights of the newest tokens; what goes to the future and to pads."""
    allowed = MASKS[mask](asked, pads, corner)
    given = weights(allowed)
    future = ~causal(asked, "lower right")
    pad = ~tokens(asked, pads)
    empty = int((~allowed.any(1)).sum())
    sentence = (f"Mask {mask}, {asked} of {TOKENS} tokens asked, {pads} pads: the newest token may "
                f"look at {int(allowed[-1].sum())} keys. Of all weight "
                f"{100 * share(given, future):.0f} % goes to the future and "
                f"{100 * share(given, pad):.0f} % to pads. ")
    sentence += (f"{empty} of the rows may look at nothing: SDPA gives zeros there." if empty
                 else "Each row's weights sum to 1.")
    return {"allowed": whole(allowed, NOT_ASKED), "weights": whole(given, 0.0)}, sentence
