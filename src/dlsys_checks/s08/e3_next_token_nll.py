"""Exercise 08.3, `next_token_nll`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("08.3", "next_token_nll", seen=("ids", "mask_id", "table", "scale", "order"),
              says="nats")

ex.promise_table("""
result    | Return a masked model's loss for each next token, in nats, as (N, T - 1). | nats
ids       | ids: (N, T) int64 with T >= 2. | case two tokens; one row; a long row
memory    | Any memory order is possible. | case ids transposed
left      | ids is unchanged. | values of ids changed
in text   | mask_id: the token that marks a gap; it can also occur in the text. | case masks in the
            text
model     | Args: model: maps tokens (N, t), 1 <= t <= T, to logits (N, t, vocab), float32; every
            position sees all others. | calls with rows that are too long; nats; raised
entry     | Entry [n, t - 1] is -ln p of ids[n, t]. | nats
before    | For this entry, the model sees the tokens before position t. | nats
mask      | The model also sees a mask_id at position t. | nats
behind    | The model sees nothing after position t. | nats
place     | Use the model's logits at position t. | nats
large     | The logits can be large, and p must not underflow to 0. | case large logits; very large
            logits
no graph  | No graph is built. | graphs; with gradients on
grad mode | Afterwards the grad mode is what it was. | grad mode after the call
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, rows, length, *, scale=1.0, vocab=None, order="rows"):
        vocab = vocab or whole(5, 9)
        # A mask anywhere in the vocabulary; but for one case it does not occur in the text.
        mask_id = whole(0, vocab)
        ids = torch.randint(vocab - 1, (rows, length), generator=g)
        ids += (ids >= mask_id).long()
        if name == "masks in the text":
            ids[:, ::3] = mask_id
        return name, {"ids": ids, "mask_id": mask_id, "scale": scale, "order": order,
                      "table": torch.randn(4, vocab, vocab, generator=g)}
    return [one("a few rows", whole(2, 5), whole(4, 8)),
            one("many rows", whole(20, 30), whole(4, 7)),
            one("two tokens", whole(2, 5), 2), one("one row", 1, whole(4, 8)),
            one("a long row", 2, whole(18, 24)),
            one("a large vocabulary", whole(2, 4), whole(3, 6), vocab=40),
            one("masks in the text", whole(2, 5), whole(5, 9)),
            one("ids transposed", whole(3, 6), whole(4, 8), order="columns"),
            one("large logits", whole(3, 6), whole(4, 7), scale=60.0),
            one("very large logits", whole(3, 6), whole(4, 7), scale=2000.0)]


@ex.act
def act(fn, ids, mask_id, table, scale, order):
    longest, tracked = [], []

    def model(rows):
        """Logits from the token itself, its left neighbour, its right one, and all of the row."""
        kind = f"{rows.dtype}, shape {tuple(rows.shape)}" if isinstance(
            rows, torch.Tensor) else type(rows).__name__
        if kind[:11] != "torch.int64" or rows.dim() != 2 or 0 in rows.shape:
            raise ValueError(f"model: got {kind}, expected tokens (N, t), int64, N and t from 1")
        if not 0 <= int(rows.min()) <= int(rows.max()) < table.shape[1]:
            raise ValueError(f"model: got tokens {int(rows.min())} to {int(rows.max())}, "
                             f"expected 0 to {table.shape[1] - 1}")
        longest.append(rows.shape[1])
        tracked.append(torch.is_grad_enabled())
        left = torch.cat([rows[:, :1], rows[:, :-1]], 1)
        right = torch.cat([rows[:, 1:], rows[:, -1:]], 1)
        place = torch.arange(rows.shape[1])[None, :, None]
        return weight * (table[0][rows] + table[1][left] + table[2][right]
                         + table[3][rows].mean(1, keepdim=True)
                         + 0.3 * torch.sin(place + torch.arange(len(table[0]))))

    weight = torch.tensor(scale, requires_grad=True)
    mine = ids.T.contiguous().T if order == "columns" else ids.clone()
    out = fn(model, mine, mask_id)
    after = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    off = fn(model, mine, mask_id)
    stays_off = not torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return {"nats": out.detach().clone() if isinstance(out, torch.Tensor) else out, "off": off,
            "graphs": int(isinstance(out, torch.Tensor) and out.requires_grad),
            "tracked": sum(tracked), "after": [int(after), int(not stays_off)],
            "longer": sum(n > ids.shape[1] for n in longest),
            "changed": int((mine != ids).sum())}


def nats_of(ids, mask_id, table, scale):
    """Token by token, from the model's formula; float64."""
    table, vocab = table.double(), table.shape[1]
    found = torch.zeros(ids.shape[0], ids.shape[1] - 1, dtype=torch.float64)
    for n, row in enumerate(ids.tolist()):
        for t in range(1, len(row)):
            seen = [*row[:t], mask_id]
            logits = (table[0][mask_id] + table[1][seen[-2]] + table[2][mask_id]
                      + sum(table[3][token] for token in seen) / len(seen)
                      + 0.3 * torch.sin(t + torch.arange(vocab, dtype=torch.float64)))
            found[n, t - 1] = torch.logsumexp(scale * logits, 0) - scale * logits[row[t]]
    return found


@ex.law
def law(out, ids, mask_id, table, scale, order):
    expect_parts(out, "nats", "off", "graphs", "tracked", "after", "longer", "changed")
    right = nats_of(ids, mask_id, table, scale).float()
    expect_close("nats", out["nats"], right, atol=2e-5 * max(1.0, scale))
    expect_equal("graphs attached to the nats", out["graphs"], 0, "Work under no_grad.")
    expect_equal("calls of the model with gradients on", out["tracked"], 0, "Work under no_grad.")
    expect_equal("grad mode after the call (first call: on, second: off)", out["after"], [1, 0],
                 "Use with torch.no_grad().")
    expect_equal("calls with rows that are too long", out["longer"], 0)
    expect_equal("values of ids changed", out["changed"], 0)
    expect_close("nats under no_grad", out["off"], right, atol=2e-5 * max(1.0, scale))


# ---- wrong, by name

@not_an_answer
@torch.no_grad()
def priced(model, ids, mask_id):
    mask, found = torch.full((len(ids), 1), mask_id), []
    for t in range(1, ids.shape[1]):
        row = torch.cat([ids[:, :t], mask], 1)
        found.append(F.cross_entropy(model(row)[:, t], ids[:, t], reduction="none"))
    out = torch.stack(found, 1)
    return out


wrong = ex.edits(priced)
MASK = "torch.cat([ids[:, :t], mask], 1)"
CROSS_ENTROPY = 'F.cross_entropy(model(row)[:, t], ids[:, t], reduction="none")'
wrong("masking one position in the whole row, so that the tokens after it stay visible", "behind",
      "[:, :t], mask", "[:, :t], mask, ids[:, t + 1:]")
wrong("filling the rest of the row with masks", "behind",
      "[:, :t], mask", "[:, :t], mask.expand(-1, ids.shape[1] - t)")
wrong("leaving the token at position t visible instead of masking it",
      "mask", MASK, "ids[:, :t + 1]")
wrong("using the last visible token's logits for the next token, without a mask", ("mask", "place"),
      MASK, "ids[:, :t]", "t], ids[", "t - 1], ids[")


@ex.wrong("making one call on the whole row and shifting the logits by one",
          breaks=("mask", "place", "behind", "before"))
@torch.no_grad()
def whole_row(model, ids, mask_id):
    return F.cross_entropy(model(ids)[:, :-1].mT, ids[:, 1:], reduction="none")


wrong("using the logits at position t - 1", "place", "t], ids[", "t - 1], ids[")
wrong("scoring the token at position t - 1", "entry", "ids[:, t]", "ids[:, t - 1]")
wrong("showing the model only the last token before t",
      "before", "[:, :t]", "[:, t - 1:t]", "t], ids[", "1], ids[")
wrong("masking all earlier tokens except the first", "before", "[:, :t], mask",
      "[:, :1], mask.expand(-1, t)")
wrong("using a different token as the mask", "mask", "1), mask_id", "1), (mask_id + 1) % 5")
wrong("taking the softmax first and its logarithm afterwards, which can be infinite", "large",
      CROSS_ENTROPY, "-model(row)[:, t].softmax(-1).gather(1, ids[:, t][:, None])[:, 0].log()")
wrong("clamping p at 1e-9", "large",
      CROSS_ENTROPY,
      "-model(row)[:, t].softmax(-1).gather(1, ids[:, t][:, None])[:, 0].clamp(min=1e-9).log()")
wrong("adding 1e-12 to p", "large",
      CROSS_ENTROPY,
      "-(model(row)[:, t].softmax(-1) + 1e-12).gather(1, ids[:, t][:, None])[:, 0].log()")
wrong("writing the mask into a view of ids and reading the target from it",
      ("left", "entry", "before"), "mask, found", "found",
      "torch.full((len(ids), 1), mask_id), []", "[]",
      "row = torch.cat([ids[:, :t], mask], 1)", "row = ids[:, :t + 1]; row[:, t] = mask_id")
wrong("returning the mean instead of a loss per token", "result", "return out", "return out.mean()")
wrong("returning bits instead of nats", "result", "return out", "return out / 0.6931471805599453")
wrong("returning ln p instead of -ln p", "entry", "return out", "return -out")
wrong("swapping rows and positions", "entry", "return out", "return out.T.contiguous()")
wrong("scoring the first token as well", "result",
      "return out", "return torch.cat([torch.zeros(len(ids), 1), out], 1)",
      says="shape of the nats")
wrong("calling the model on rows one position too long", "model",
      "mask, found =", "model(F.pad(ids, (0, 1), value=mask_id)); mask, found =",
      says="too long")
wrong("scoring at most 16 positions", "ids", "return out", "out[:, 16:] = 0; return out")


@ex.wrong("building a graph", breaks="no graph")
def with_graph(model, ids, mask_id):
    rows = [F.pad(ids[:, :t], (0, 1), value=mask_id) for t in range(1, ids.shape[1])]
    logits = torch.stack([model(row)[:, -1] for row in rows], 2)
    return F.cross_entropy(logits, ids[:, 1:], reduction="none")


ex.wrong("building a graph and detaching the result",
         lambda model, ids, mask_id: with_graph(model, ids, mask_id).detach(), breaks="no graph")


@ex.wrong("turning gradients off and leaving them off", breaks="grad mode")
def off_for_good(model, ids, mask_id):
    torch.set_grad_enabled(False)
    return priced(model, ids, mask_id)


@ex.wrong("turning gradients on at the end, whatever the grad mode was before", breaks="grad mode")
def on_at_the_end(model, ids, mask_id):
    out = priced(model, ids, mask_id)
    torch.set_grad_enabled(True)
    return out


wrong("searching the row for mask_id, which can also be in the text", "in text",
      MASK, "asked(ids, mask, t)", "mask, found =",
      "def asked(ids, mask, t): row = torch.cat([ids[:, :t], mask], 1); return row[:, "
      ":int((row[0] == mask_id).nonzero()[0]) + 1]\n    mask, found =", "t], ids[", "-1], ids[")
wrong("giving a loss of 0 when the target is mask_id",
      "in text", '"none"', '"none", ignore_index=mask_id')
wrong("calling view() on ids, whatever its memory order", "memory",
      "mask, found =", "ids = ids.view(-1).view(ids.shape); mask, found =",
      says="raised RuntimeError")
wrong("writing masks into the given ids", "left", "return out", "ids[:, -1] = mask_id; return out")
