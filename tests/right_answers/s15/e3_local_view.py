"""Exercise 15.3, `local_view`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.s15.e3_local_view import ex, made
from dlsys_helpers.judging import edited


@ex.right("place by place")
def by_places(tokens, labels, rank, world):
    rows, length = tokens.shape
    size = (length + 2 * world - 1) // (2 * world)
    late = 2 * world - 1 - rank
    places = [*range(rank * size, (rank + 1) * size), *range(late * size, (late + 1) * size)]
    own = torch.zeros(rows, len(places), dtype=torch.int64)
    wanted = torch.full_like(own, -100)
    mask = torch.zeros(len(places), 2 * world * size, dtype=torch.bool)
    for i, place in enumerate(places):
        if place < length:
            own[:, i] = tokens[:, place]
        if place + 1 < length:
            wanted[:, i] = labels[:, place + 1]
        mask[i, :place + 1] = True
    return own, torch.tensor(places), wanted, mask


@ex.right("chunks of the filled batch")
def by_chunks(tokens, labels, rank, world):
    more = -tokens.shape[1] % (2 * world)
    def mine(whole):
        chunks = whole.chunk(2 * world, -1)
        return torch.cat((chunks[rank], chunks[-1 - rank]), -1)

    N = tokens.shape[1] + more
    return (mine(F.pad(tokens, (0, more))), mine(torch.arange(N)),
            mine(F.pad(labels, (0, more + 1), value=-100)[:, 1:]),
            mine(torch.ones(N, N, dtype=torch.bool).triu()).T)


@ex.right("a table of pieces, folded in the middle")
def by_fold(tokens, labels, rank, world):
    T = tokens.shape[1]
    N = T + (-T) % (2 * world)
    places = torch.arange(N).reshape(2, world, -1)
    places[1] = places[1].flip(0)
    places = places[:, rank].reshape(-1)
    tokens = torch.cat([tokens, tokens.new_zeros(len(tokens), N - T)], 1)
    labels = torch.cat([labels, labels.new_full((len(labels), N - T), -100)], 1).roll(-1, 1)
    labels[:, -1] = -100
    return (tokens.index_select(1, places), places, labels.index_select(1, places),
            torch.arange(N).unsqueeze(0).le(places.unsqueeze(1)))


@ex.right("slices, with the whole mask cut")
def by_slices(tokens, labels, rank, world):
    B, T = tokens.shape
    size = -(-T // (2 * world))
    N = 2 * world * size
    full = torch.zeros((B, N), dtype=torch.long)
    full[:, :T] = tokens
    after = torch.full((B, N), -100)
    after[:, :T - 1] = labels[:, 1:]
    parts = [slice(rank * size, rank * size + size), slice(N - rank * size - size, N - rank * size)]
    whole = torch.tril(torch.ones(N, N)) > 0
    return (torch.cat([full[:, p] for p in parts], dim=1),
            torch.cat([torch.arange(N)[p] for p in parts]),
            torch.cat([after[:, p] for p in parts], dim=1), torch.cat([whole[p] for p in parts]))


ex.probe("no fill for a lone token", lambda tokens, labels, rank, world: made(
    tokens, labels, rank, world) if tokens.shape[1] > 1 else (
        tokens, torch.arange(1), labels * 0 - 100, torch.ones(1, 1, dtype=torch.bool)), says="",
    breaks=("tokens", "fill"))
ex.probe("strides taken for rows", lambda tokens, labels, rank, world: made(
    tokens + (not tokens.is_contiguous()), labels, rank, world), says="tokens",
    breaks="tokens")
ex.probe("three parts where two tokens are all", lambda tokens, labels, rank, world: made(
    tokens, labels, rank, world)[:4 - (tokens.shape[1] == 2)], says="parts", breaks="result")
ex.probe("pieces of unequal length", says="shape of the tokens", breaks="pieces", fn=edited(
    made, ("positions =", "own = own[:-1] if world == 4 else own; positions ="),
    "15.3, pieces of unequal length"))
ex.probe("the example looked up wrong", breaks="example", fn=edited(
    made, ("= own\n", "= own + (tokens.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]])\n"),
    "15.3, the example"))
ex.equivalent("own = torch.cat([pieces[rank], pieces[2 * world - 1 - rank]]) -> "
              "own = torch.cat([pieces[rank], pieces[0 * world - 1 - rank]])",
              "counted from the end it is the same piece")
ex.equivalent("shifted = F.pad(labels[:, 1:], (0, fill + 1), value=-100) -> "
              "shifted = F.pad(labels[:, 1:], (0, fill + 2), value=-100)",
              "the column behind the last place is never picked")
