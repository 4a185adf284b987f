"""Your neighbours decide: one digit's logits while the other digits of the batch change."""

from copy import deepcopy
from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.data import digits
from dlsys_helpers.explorers import Choice, Columns, Heatmap, Slider, explorer

HIDDEN, GROUPS, STEPS, BATCH = 32, 4, 200, 64
ROW = 4  # the test digit that is asked about, a 4
NORMS = {"batch": lambda: nn.BatchNorm1d(HIDDEN), "layer": lambda: nn.LayerNorm(HIDDEN),
         "group": lambda: nn.GroupNorm(GROUPS, HIDDEN), "none": nn.Identity}
MATES = {"mixed digits": range(10), "only fours": [4], "only zeros": [0]}
MODES = {"train": True, "eval": False}
SHOWN = 8  # the picture has room for the digit and seven mates
LIMIT = 20  # logits are drawn from -LIMIT to LIMIT

_digits = lru_cache(maxsize=1)(digits)


def _fresh(norm):
    """64 pixels -> HIDDEN -> norm -> ReLU -> 10 classes; the same weights for every norm."""
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.utils.skip_init(nn.Linear, 64, HIDDEN), NORMS[norm](), nn.ReLU(),
                          nn.utils.skip_init(nn.Linear, HIDDEN, 10)).double()
    for layer in (model[0], model[3]):
        nn.init.kaiming_normal_(layer.weight, generator=g)
        nn.init.zeros_(layer.bias)
    return model


@lru_cache(maxsize=len(NORMS))
def train(norm):
    """The network after STEPS batches of BATCH training digits; float64."""
    x, y, *_ = _digits()
    model, g = _fresh(norm), torch.Generator().manual_seed(1)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        rows = torch.randint(len(x), (BATCH,), generator=g)
        loss = F.cross_entropy(model(x[rows].double()), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model


def batch_of(mates, n_mates, draw):
    """A batch (1 + n_mates, 64): test digit ROW, then others of the wanted classes."""
    x, y = _digits()[2:]
    rows = torch.isin(y, torch.tensor(list(MATES[mates]))).nonzero().flatten()
    rows = rows[rows != ROW]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(draw))
    return torch.cat([x[ROW:ROW + 1], x[rows[order[:n_mates]]]]).double()


def logits(norm, training, batch):
    """The logits (10,) of a batch's first row, by a copy: a forward pass moves running values."""
    model = deepcopy(train(norm)).train(training)
    with torch.no_grad():
        return model(batch)[0]


def side_by_side(batch):
    """The first SHOWN digits of a batch in two rows, (16, 32); empty places stay black."""
    page = torch.zeros(SHOWN, 8, 8, dtype=batch.dtype)
    page[:len(batch)] = batch[:SHOWN].view(-1, 8, 8)
    return page.view(2, SHOWN // 2, 8, 8).transpose(1, 2).reshape(16, 4 * SHOWN)


def said(row):
    """The class a row of logits names and its probability, in words."""
    p = row.softmax(0)
    return f"a {int(p.argmax())} with {100 * p.max():.0f} %"


@explorer(
    title="Your neighbours decide: one digit, other batch mates",
    controls=[
        Choice("norm", "Norm of the hidden layer", NORMS, "batch"),
        Choice("mode", "Mode", MODES, "train"),
        Choice("mates", "Batch mates", MATES, "only zeros"),
        Slider("n_mates", "Number of mates", [1, 3, 7, 31], 7),
        Slider("draw", "Draw them anew", [1, 2, 3, 4], 1),
    ],
    views=[
        Heatmap("batch", title="The batch, your digit first",
                xlabel="pixel column", ylabel="pixel row", vmin=0, vmax=1, label="brightness"),
        Columns("digit", {"beside": "beside them", "alone": "alone, in eval"},
                title="The logits of your digit", xlabel="class", ylabel="logit",
                ylim=(-LIMIT, LIMIT)),
    ],
)
def batch_mates(norm, mode, mates, n_mates, draw):
    """The logits of test digit ROW with its batch mates, and alone in eval mode."""
    batch = batch_of(mates, n_mates, draw)
    beside, alone = logits(norm, MODES[mode], batch), logits(norm, False, batch[:1])
    moved = (beside - alone).abs().max()
    beside_whom = f"{n_mates} mate{'s' * (n_mates > 1)}"
    sentence = (f"Norm {norm}, {mode} mode, {beside_whom} ({mates}): the network reads "
                f"{said(beside)}. Alone in eval mode it reads {said(alone)}. A logit moves by "
                f"{moved:.2f} at most.")
    return {"batch": side_by_side(batch), "digit": range(10), "beside": beside,
            "alone": alone}, sentence
