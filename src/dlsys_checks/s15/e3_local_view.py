"""Exercise 15.3, `local_view`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("15.3", "local_view", seen=("tokens", "labels", "rank", "world", "order"),
              kept=("own",), says="positions")

ex.promise_table("""
result     | Compute (tokens, positions, labels, mask) for one rank's positions. | type of the
             result; parts of the result
tokens     | tokens: (B, T) int64, T at least 1. | case one token; one row; one position left over;
             a part of a larger batch; rows that lie across
labels     | labels: (B, T) int64, not shifted yet, with -100 where there is nothing to learn. |
             case a prompt that is not learned; few labels
fill       | tokens and labels are padded at the end to N, the next multiple of 2 * world: tokens
             with 0, labels with -100. | case positions left over; one position left over; fewer
             tokens than pieces; one token; many tokens, many left over
even       | N is T if T is such a multiple. | case two ranks, the first; two ranks, the second;
             four ranks, the third; three ranks, the last; one rank; one row; a prompt that is not
             learned; few labels; a part of a larger batch; rows that lie across; the example; one
             rank, two tokens | shape of the
pieces     | The N positions are cut into 2 * world equal pieces. | tokens; positions
own        | A rank, 0 to world - 1, holds n = N // world positions: piece rank, followed by piece 2
             * world - 1 - rank. | tokens; positions
out tokens | The result's tokens: (B, n) int64, the tokens at these positions. | tokens
positions  | positions: (n,) int64, counted from 0 in the whole sequence. | positions
shifted    | labels: (B, n) int64, for each position the label of the next position, whichever rank
             holds it, and -100 for the last position. | labels
mask       | mask: (n, N) bool, True at [i, j] if the rank's i-th position may look at position j:
             at itself and every earlier position, padded or not. | mask
left       | Inputs are not changed. | values changed
example    | Example: tokens and labels [[1, 2, 3, 4, 5, 6, 7, 8]], rank 0, world 2: tokens [[1, 2,
             7, 8]], positions [0, 1, 6, 7], labels [[2, 3, 8, -100]]. | case the example
""")


@ex.cases
def cases(g):
    number = integers(g)

    def one(name, rows, length, rank, world, learnt="all", order="plain"):
        tokens = torch.randint(0, 50, (rows, length), generator=g)
        labels = tokens.clone()
        if learnt == "answer":
            labels[:, :length // 2 + 1] = -100
        elif learnt == "few":
            labels[torch.rand(rows, length, generator=g) < 0.6] = -100
        return name, {"tokens": tokens, "labels": labels, "rank": rank, "world": world,
                      "order": order}

    eight = torch.arange(1, 9)[None]
    world = number(3, 6)
    return [one("two ranks, the first", 3, 12, 0, 2), one("two ranks, the second", 2, 16, 1, 2),
            one("four ranks, the third", 2, 24, 2, 4), one("three ranks, the last", 2, 18, 2, 3),
            one("one rank", 2, 10, 0, 1), one("one rank, two tokens", 2, 2, 0, 1),
            one("one row", 1, 12, 1, 3),
            one("a prompt that is not learned", 3, 16, number(0, 2), 2, "answer"),
            one("few labels", 4, 24, number(0, 3), 3, "few"),
            one("positions left over", 2, 13, 0, 2), one("one position left over", 2, 19, 1, 5),
            one("many tokens, many left over", 2, 6 * world + 1, 0, world),
            one("fewer tokens than pieces", 2, 5, 1, 4), one("one token", 2, 1, 0, 3),
            one("a part of a larger batch", 2, 12, number(0, 2), 2, order="part"),
            one("rows that lie across", 3, 8, number(0, 2), 2, order="across"),
            ("the example", {"tokens": eight, "labels": eight.clone(), "rank": 0, "world": 2,
                             "order": "plain"})]


@ex.act
def act(fn, tokens, labels, rank, world, order):
    def laid(given):
        if order == "part":
            return torch.cat([given, given + 1], 1)[:, :given.shape[1]]
        return given.T.contiguous().T if order == "across" else given.clone()

    mine, wanted = laid(tokens), laid(labels)
    found = fn(mine, wanted, rank, world)
    moved = int((mine != tokens).sum() + (wanted != labels).sum())
    if type(found) is tuple and len(found) == 4 and found[0] is not None:
        return {"own": found[0], "rest": found[1:], "moved": moved}
    return {"own": None, "rest": found, "moved": moved}


@ex.law
def law(out, tokens, labels, rank, world, order):
    expect_parts(out, "own", "rest", "moved")
    expect_equal("values changed in tokens and labels", out["moved"], 0, "Work on copies.")
    expect_type("result", out["rest"], tuple)
    if out["own"] is None or len(out["rest"]) != 3:
        raise Broken("parts of the result", len(out["rest"]), 4)
    rows, length = tokens.shape
    long = -(-length // (2 * world)) * 2 * world
    size = long // (2 * world)
    own = [place for place in range(long) if place // size in (rank, 2 * world - 1 - rank)]

    def at(table, place, filled):
        return table[:, place].tolist() if place < length else [filled] * rows

    held = f"This rank holds the positions {own[:size]} and {own[size:]} of {long}."
    positions, shifted, mask = out["rest"]
    expect_equal("tokens", out["own"], torch.tensor([at(tokens, p, 0) for p in own]).T, held)
    expect_equal("positions", positions, torch.tensor(own), held)
    expect_equal("labels", shifted, torch.tensor([at(labels, p + 1, -100) for p in own]).T,
                 "Take the label of the next position in the uncut sequence.")
    expect_equal("mask", mask, torch.tensor([[j <= p for j in range(long)] for p in own]),
                 f"The mask has a row for each of {len(own)} positions and a column for each of "
                 f"all {long}.")


# ---- wrong, by name

@not_an_answer
def made(tokens, labels, rank, world):
    T = tokens.shape[1]
    N = -(-T // (2 * world)) * 2 * world
    tokens = F.pad(tokens, (0, N - T), value=0)
    labels = F.pad(labels, (0, N - T), value=-100)
    pieces = torch.arange(N).view(2 * world, N // (2 * world))
    own = torch.cat([pieces[rank], pieces[2 * world - 1 - rank]])
    positions = own
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    mask = own[:, None] >= torch.arange(N)
    return tokens[:, own], positions, shifted[:, own], mask


wrong = ex.edits(made)
START, POSITIONS, LABELS = "T =", "positions = own", "shifted[:, own]"
OWN = "torch.cat([pieces[rank], pieces[2 * world - 1 - rank]])"
MASK, ONES = "own[:, None] >= torch.arange(N)", "torch.ones(len(own), N, dtype=torch.bool)"
SHIFTED, WHOLE = "F.pad(labels[:, 1:], (0, 1), value=-100)", "-(-T // (2 * world))"
END = "tokens[:, own], positions, shifted[:, own], mask"
wrong("counting positions from 0 on every rank",
      "positions", POSITIONS, "positions = torch.arange(len(own))")
wrong("numbering positions as if the rank held one long piece", "positions",
      POSITIONS, "positions = rank * len(own) + torch.arange(len(own))")
wrong("counting positions from 0 in every piece", "positions",
      POSITIONS, "positions = torch.arange(len(own) // 2).repeat(2)")
wrong("counting positions from 1", "positions", POSITIONS, "positions = own + 1")
wrong("returning positions for each sequence of the batch", "positions",
      POSITIONS, "positions = own.expand(len(tokens), -1)")
wrong("returning positions in int32", "positions", POSITIONS, "positions = own.int()",
      says="dtype of the positions")
wrong("returning positions as a list", "positions", POSITIONS, "positions = own.tolist()",
      says="type of the positions")

wrong("giving each rank one long piece", ("own", "pieces"),
      OWN, "pieces[2 * rank:2 * rank + 2].flatten()", says="tokens")
wrong("giving a rank every world-th position", ("own", "pieces"),
      OWN, "pieces.flatten()[rank::world]", says="tokens")
wrong("putting the rank's late piece before its early one", "own",
      OWN, "torch.cat([pieces[2 * world - 1 - rank], pieces[rank]])", says="tokens")
wrong("giving rank r the pieces r and r + world", "own",
      "2 * world - 1 - rank", "rank + world", says="tokens")
wrong("counting ranks from 1", "own", "own =", "rank = (rank - 1) % world; own =", says="")

wrong("returning tokens as floats", "out tokens", "tokens[:, own]", "tokens[:, own].float()",
      says="dtype of the tokens")

# https://github.com/NVIDIA-BioNeMo/bionemo-recipes/pull/1449
wrong("shifting the labels within the rank's own positions only", "shifted",
      LABELS, "F.pad(labels[:, own[1:]], (0, 1), value=-100)", says="labels")
# https://github.com/huggingface/transformers/pull/36607
wrong("shifting the labels within each piece only, which loses each piece's last label",
      "shifted", LABELS,
      "F.pad(labels[:, own].unflatten(1, (2, -1))[..., 1:], (0, 1), value=-100).flatten(1)",
      says="labels")
wrong("not shifting the labels", "shifted", LABELS, "labels[:, own]", says="labels")
wrong("shifting the labels in the wrong direction", "shifted",
      SHIFTED, "F.pad(labels[:, :-1], (1, 0), value=-100)", says="labels")
wrong("giving the last position the first label", "shifted",
      SHIFTED, "labels.roll(-1, 1)", says="labels")
wrong("using the tokens as labels", "labels", START, "labels = tokens; T =", says="labels")
wrong("replacing labels of -100 by 0", "labels",
      START, "labels = labels.clamp(min=0); T =", says="labels")
wrong("returning labels as floats", "shifted", LABELS, f"{LABELS}.float()",
      says="dtype of the labels")

wrong("aligning the mask's triangle with the upper left corner",
      "mask", MASK, f"{ONES}.tril()",
      says="mask")
wrong("aligning the mask's triangle with the lower right corner", "mask",
      MASK, f"{ONES}.tril(N - len(own))", says="mask")
wrong("using the mask of a rank with one long piece", "mask",
      MASK, f"{ONES}.tril(rank * len(own))", says="mask")
wrong("making a mask that has columns only for the rank's own positions",
      "mask", MASK, "own[:, None] >= own",
      says="shape of the mask")
wrong("ordering the mask's columns rank by rank", "mask", MASK, "own[:, None] >= "
      "torch.cat([pieces[[r, 2 * world - 1 - r]].flatten() for r in range(world)])", says="mask")
wrong("forbidding a position to look at itself", "mask", ">=", ">", says="mask")
wrong("setting the mask to True where a position may not look", "mask", ">=", "<", says="mask")
wrong("setting the whole mask to True", "mask", MASK, ONES, says="mask")
wrong("returning a mask of 0 and minus infinity", "mask",
      MASK, f"torch.zeros(len(own), N).masked_fill(~({MASK}), -torch.inf)",
      says="dtype of the mask")
wrong("adding axes for rows and heads to the mask", "mask", MASK, f"({MASK})[None, None]",
      says="shape of the mask")
wrong("masking the padded positions as well",
      ("mask", "fill"), MASK, f"({MASK}) & (torch.arange(N) < T)",
      says="mask")

wrong("padding at the front", ("fill", "tokens"),
      "tokens, (0, N - T)", "tokens, (N - T, 0)", "labels, (0, N - T)", "labels, (N - T, 0)",
      says="")
wrong("padding labels with 0", "fill", "(0, N - T), value=-100", "(0, N - T), value=0",
      says="labels")
wrong("padding tokens with -100", "fill", "value=0", "value=-100", says="tokens")
wrong("padding with the last token", ("fill", "tokens"), "F.pad(tokens, (0, N - T), value=0)",
      "torch.cat([tokens, tokens[:, -1:].expand(-1, N - T)], 1)", says="tokens")
wrong("dropping the tokens that are left over",
      ("fill", "tokens"), WHOLE, "T // (2 * world)", says="")
wrong("padding even if T is already a multiple of 2 * world",
      "even", WHOLE, "(T // (2 * world) + 1)",
      says="shape of the")
wrong("returning a list instead of a tuple", "result", END, f"[{END}]", says="type of the result")
wrong("returning labels before the positions", "positions",
      "positions, shifted[:, own]", "shifted[:, own], positions", says="positions")
wrong("leaving the positions out of the result", "result", "positions, shifted", "shifted",
      says="parts of the result")
wrong("shifting the labels in place", "left", START, "given, labels = labels, labels.clone(); "
      "given[:, :-1] = labels[:, 1:]; given[:, -1] = -7; T =")
