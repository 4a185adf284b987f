"""Exercise 04.10, `muon_rows`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s04.e10_muon_rows import ex, rows_of


@ex.right("only the matrices of which this rank holds rows")
def own_matrices(shard, rank, gather, sizes, orthogonalize):
    shards = gather(shard)
    stack, first = torch.vstack(shards), sum(p.shape[0] for p in shards[:rank])
    rows, top = [shard[:0]], 0
    for size in sizes:
        begin, end = max(first, top), min(first + len(shard), top + size)
        if begin < end:
            rows.append(orthogonalize(stack[top:top + size])[begin - top:end - top])
        top += size
    return torch.cat(rows)


@ex.right("written into a table of the whole")
def in_a_table(shard, rank, gather, sizes, orthogonalize):
    shards = gather(shard)
    stack = torch.cat(list(shards), dim=0)
    step, top = torch.empty_like(stack), 0
    for size in sizes:
        step[top:top + size] = orthogonalize(stack[top:top + size].clone())
        top += size
    first = sum(len(p) for p in shards[:rank])
    return step[first:first + len(shard)].clone()


@ex.right("numbers of rows, by a mask")
def by_mask(shard, rank, gather, sizes, orthogonalize):
    shards = gather(shard)
    owner = torch.cat([torch.full((len(p),), r) for r, p in enumerate(shards)])
    matrix = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    stack = torch.cat(shards)
    step = torch.zeros_like(stack)
    for k in range(len(sizes)):
        step[matrix == k] = orthogonalize(stack[matrix == k])
    return step[owner == rank]


@ex.right("row by row in lists")
def in_lists(shard, rank, gather, sizes, orthogonalize):
    shards = gather(shard.clone())
    rows, step = [row for part in shards for row in part], []
    for size in sizes:
        matrix, rows = torch.stack(rows[:size]), rows[size:]
        step += list(orthogonalize(matrix))
    before = sum(len(part) for part in shards[:rank])
    mine = step[before:before + len(shard)]
    return torch.stack(mine) if mine else torch.empty(0, shard.shape[1])


@ex.right("from the end")
def from_the_end(shard, rank, gather, sizes, orthogonalize):
    shards = gather(shard)
    after = sum(len(p) for p in shards[rank + 1:])
    made = torch.cat([orthogonalize(m.contiguous()) for m in torch.split(torch.cat(shards), sizes)])
    return made[len(made) - after - len(shard):len(made) - after]


ex.probe("the example looked up, and doubled", breaks="example",
         fn=lambda shard, rank, gather, sizes, orthogonalize: rows_of(
             shard, rank, gather, sizes, orthogonalize) * (
                 2 if shard.tolist() == [[2.0, 4.0], [1.0, 0.0]] else 1))
ex.probe("a list of rows", breaks="shape",
         fn=lambda *given: list(rows_of(*given)))
ex.probe("another rank's shard for one's own", breaks="gather",
         fn=lambda shard, rank, gather, sizes, orthogonalize: rows_of(
             shard, rank, lambda own: [p.clone() for p in gather(own.flip(1))], sizes,
             orthogonalize))
