"""Exercise 15.3, `local_view`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("15.3", "local_view", seen=("tokens", "labels", "rank", "world", "order"),
              kept=("own",), says="positions")

ex.promise_table("""
result     | Compute a rank's (tokens, positions, labels, mask) of split sequences. | type of the
             result; parts of the result
tokens     | tokens: (B, T) int64, T at least 1. | case one token; one row; one place left over; a
             part of a larger batch; rows that lie across
labels     | labels: (B, T) int64, not shifted yet, with -100 where none is to be learned. | case a
             prompt is not learnt; few labels
fill       | Both are filled at the end to N, the next multiple of 2 * world: tokens with 0, labels
             with -100. | case places left over; one place left over; fewer tokens than pieces; one
             token; many tokens, many left over
even       | N is T if T is a multiple. | case two ranks, the first; two ranks, the second; four
             ranks, the third; three ranks, the last; one rank; one row; a prompt is not learnt; few
             labels; a part of a larger batch; rows that lie across; the example; one rank, two
             tokens | shape of the
pieces     | The N positions are cut into 2 * world pieces of equal length. | tokens; positions
own        | A rank, 0 to world - 1, holds n = N // world positions: piece rank, followed by piece 2
             * world - 1 - rank. | tokens; positions
out tokens | The result's tokens: (B, n) int64, the tokens at these positions. | tokens
positions  | positions: (n,) int64, counted from 0 in the whole sequence. | positions
shifted    | labels: (B, n) int64, for each position the label of the next one, on any rank, and
             -100 for the last of all. | labels
mask       | mask: (n, N) bool, whether a position may look at position j of the whole: at itself
             and at all before it, including filled ones. | mask
left       | Inputs are not changed. | numbers changed
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
            one("a prompt is not learnt", 3, 16, number(0, 2), 2, "answer"),
            one("few labels", 4, 24, number(0, 3), 3, "few"),
            one("places left over", 2, 13, 0, 2), one("one place left over", 2, 19, 1, 5),
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
    expect_equal("numbers changed in tokens and labels", out["moved"], 0, "Work on copies.")
    expect_type("result", out["rest"], tuple)
    if out["own"] is None or len(out["rest"]) != 3:
        raise Broken("parts of the result", len(out["rest"]), 4)
    rows, length = tokens.shape
    long = -(-length // (2 * world)) * 2 * world
    size = long // (2 * world)
    own = [place for place in range(long) if place // size in (rank, 2 * world - 1 - rank)]

    def at(table, place, filled):
        return table[:, place].tolist() if place < length else [filled] * rows

    held = f"This rank holds the places {own[:size]} and {own[size:]} of {long}."
    positions, shifted, mask = out["rest"]
    expect_equal("tokens", out["own"], torch.tensor([at(tokens, p, 0) for p in own]).T, held)
    expect_equal("positions", positions, torch.tensor(own), held)
    expect_equal("labels", shifted, torch.tensor([at(labels, p + 1, -100) for p in own]).T,
                 "The label of the next place, before anything is cut.")
    expect_equal("mask", mask, torch.tensor([[j <= p for j in range(long)] for p in own]),
                 f"A row for each of {len(own)} places, a column for each of all {long}.")


# ---- wrong, by name

@not_an_answer
def made(tokens, labels, rank, world, *, long=lambda T, world: -(-T // (2 * world)) * 2 * world,
         fill=lambda t, more, value: torch.nn.functional.pad(t, (0, more), value=value),
         values=(0, -100), own=lambda pieces, rank, world: torch.cat(
             [pieces[rank], pieces[2 * world - 1 - rank]]),
         places=lambda own, rank, size: own, source=lambda tokens, labels: labels,
         shift=lambda labels, own, size: torch.cat(
             [labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1)[:, own],
         mask=lambda own, N, rank, world: own[:, None] >= torch.arange(N), form=tuple):
    """The right answer with its pieces as options."""
    T = tokens.shape[1]
    N = long(T, world)
    labels = fill(source(tokens, labels), N - T, values[1])
    tokens = fill(tokens, N - T, values[0])
    size = N // (2 * world)
    mine = own(torch.arange(N).view(2 * world, size), rank, world)
    return form((tokens[:, mine], places(mine, rank, size), shift(labels, mine, size),
                 mask(mine, N, rank, world)))


ex.wrong("counting from 0 on every rank", made, breaks="positions",
         places=lambda own, rank, size: torch.arange(len(own)))
ex.wrong("using the positions of a rank with one long piece", made, breaks="positions",
         places=lambda own, rank, size: rank * len(own) + torch.arange(len(own)))
ex.wrong("counting from 0 in every piece", made, breaks="positions",
         places=lambda own, rank, size: torch.arange(size).repeat(2))
ex.wrong("counting positions from 1",
         made, breaks="positions", places=lambda own, rank, size: own + 1)
ex.wrong("returning positions for each row", lambda tokens, labels, rank, world: made(
    tokens, labels, rank, world, places=lambda own, rank, size: own.expand(len(tokens), -1)),
    breaks="positions")
ex.wrong("returning positions in int32", made, says="dtype of the positions", breaks="positions",
         places=lambda own, rank, size: own.int())
ex.wrong("returning positions as a list", made, says="type of the positions", breaks="positions",
         places=lambda own, rank, size: own.tolist())

ex.wrong("giving each rank one long piece", made, says="tokens", breaks=("own", "pieces"),
         own=lambda pieces, rank, world: pieces[2 * rank:2 * rank + 2].flatten())
ex.wrong("taking every world-th position, one by one",
         made, says="tokens", breaks=("own", "pieces"),
         own=lambda pieces, rank, world: pieces.flatten()[rank::world])
ex.wrong("putting the late piece before the early one", made, says="tokens", breaks="own",
         own=lambda pieces, rank, world: torch.cat(
             [pieces[2 * world - 1 - rank], pieces[rank]]))
ex.wrong("taking the pieces rank and rank + world", made, says="tokens", breaks="own",
         own=lambda pieces, rank, world: torch.cat([pieces[rank], pieces[rank + world]]))
ex.wrong("counting ranks from 1", made, says="", breaks="own",
         own=lambda pieces, rank, world: torch.cat(
             [pieces[(rank - 1) % world], pieces[2 * world - 1 - (rank - 1) % world]]))

ex.wrong("returning tokens as floats", lambda tokens, labels, rank, world: made(
    tokens.float(), labels, rank, world), says="dtype of the tokens", breaks="out tokens")

# https://github.com/NVIDIA-BioNeMo/bionemo-recipes/pull/1449
ex.wrong("shifting labels on the rank", made, says="labels", breaks="shifted",
         shift=lambda labels, own, size: torch.cat(
             [labels[:, own[1:]], torch.full_like(labels[:, :1], -100)], 1))
# https://github.com/huggingface/transformers/pull/36607
ex.wrong("shifting labels in each piece, the last of each lost", made, says="labels",
         breaks="shifted", shift=lambda labels, own, size: torch.cat(
             [labels[:, own[1:size]], torch.full_like(labels[:, :1], -100),
              labels[:, own[size + 1:]], torch.full_like(labels[:, :1], -100)], 1))
ex.wrong("not shifting the labels", made, says="labels", breaks="shifted",
         shift=lambda labels, own, size: labels[:, own])
ex.wrong("shifting labels the other way", made, says="labels", breaks="shifted",
         shift=lambda labels, own, size: torch.cat(
             [torch.full_like(labels[:, :1], -100), labels[:, :-1]], 1)[:, own])
ex.wrong("letting the last position learn the first label", made, says="labels", breaks="shifted",
         shift=lambda labels, own, size: labels.roll(-1, 1)[:, own])
ex.wrong("making labels from the tokens", made, says="labels", breaks="labels",
         source=lambda tokens, labels: tokens)
ex.wrong("setting labels that are not learned to 0", made, says="labels", breaks="labels",
         source=lambda tokens, labels: labels.clamp(min=0))
ex.wrong("returning labels as floats", made, says="dtype of the labels", breaks="shifted",
         shift=lambda labels, own, size: torch.cat(
             [labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1)[:, own].float())

ex.wrong("putting the mask's triangle into its upper left corner", made, says="mask", breaks="mask",
         mask=lambda own, N, rank, world: torch.ones(len(own), N, dtype=torch.bool).tril())
ex.wrong("putting the mask's triangle into its lower right corner",
         made, says="mask", breaks="mask",
         mask=lambda own, N, rank, world: torch.ones(len(own), N, dtype=torch.bool).tril(
             N - len(own)))
ex.wrong("using the mask of a rank with one long piece", made, says="mask", breaks="mask",
         mask=lambda own, N, rank, world: torch.ones(len(own), N, dtype=torch.bool).tril(
             rank * len(own)))
ex.wrong("making a mask of the rank's own keys", made, says="shape of the mask", breaks="mask",
         mask=lambda own, N, rank, world: own[:, None] >= own)
ex.wrong("ordering the mask's columns as the ranks hold them", made, says="mask",
         breaks="mask", mask=lambda own, N, rank, world: own[:, None] >= torch.cat([
             torch.arange(N).view(2 * world, -1)[[r, 2 * world - 1 - r]].flatten()
             for r in range(world)]))
ex.wrong("forbidding a position to look at itself", made, says="mask", breaks="mask",
         mask=lambda own, N, rank, world: own[:, None] > torch.arange(N))
ex.wrong("setting True where it may not look", made, says="mask", breaks="mask",
         mask=lambda own, N, rank, world: own[:, None] < torch.arange(N))
ex.wrong("setting the whole mask to ones", made, says="mask", breaks="mask",
         mask=lambda own, N, rank, world: torch.ones(len(own), N, dtype=torch.bool))
ex.wrong("returning a mask of 0 and minus infinity", made, says="dtype of the mask", breaks="mask",
         mask=lambda own, N, rank, world: torch.zeros(len(own), N).masked_fill(
             own[:, None] < torch.arange(N), -torch.inf))
ex.wrong("adding axes for rows and heads to the mask",
         made, says="shape of the mask", breaks="mask",
         mask=lambda own, N, rank, world: (own[:, None] >= torch.arange(N))[None, None])
ex.wrong("hiding filled positions", lambda tokens, labels, rank, world: made(
    tokens, labels, rank, world, mask=lambda own, N, rank, world: (
        own[:, None] >= torch.arange(N)) & (torch.arange(N) < tokens.shape[1])), says="mask",
    breaks=("mask", "fill"))

ex.wrong("filling at the front", made, says="", breaks=("fill", "tokens"),
         fill=lambda t, more, value: torch.nn.functional.pad(t, (more, 0), value=value))
ex.wrong("filling labels with 0", made, says="labels", breaks="fill", values=(0, 0))
ex.wrong("filling tokens with -100", made, says="tokens", breaks="fill", values=(-100, -100))
ex.wrong("repeating the last token", lambda tokens, labels, rank, world: made(
    tokens, labels, rank, world, fill=lambda t, more, value: torch.cat(
        [t, t[:, -1:].expand(-1, more) if value == 0 else torch.full(
            (len(t), more), value)], 1)), says="tokens", breaks=("fill", "tokens"))
ex.wrong("cutting off what is left over", made, says="", breaks=("fill", "tokens"),
         long=lambda T, world: T // (2 * world) * 2 * world,
         fill=lambda t, more, value: t[:, :t.shape[1] + more])
ex.wrong("filling though nothing is left over", made, says="shape of the", breaks="even",
         long=lambda T, world: (T // (2 * world) + 1) * 2 * world)
ex.wrong("returning a list of the four",
         made, says="type of the result", breaks="result", form=list)
ex.wrong("returning labels before the positions", made, says="positions", breaks="positions",
         form=lambda parts: (parts[0], parts[2], parts[1], parts[3]))
ex.wrong("leaving out the positions", made, says="parts of the result", breaks="result",
         form=lambda parts: (parts[0], parts[2], parts[3]))


@ex.wrong("shifting the labels in place", breaks="left")
def in_place(tokens, labels, rank, world):
    found = made(tokens, labels, rank, world)
    labels[:, :-1] = labels[:, 1:].clone()
    labels[:, -1] = -7
    return found
