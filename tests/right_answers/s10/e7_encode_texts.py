"""Exercise 10.7, `encode_texts`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s10.e7_encode_texts import ex, made


@ex.right("written into a tensor of padding")
def into_padding(tokenizer, texts):
    rows = []
    for text in texts:
        row = tokenizer.encode(text, add_special_tokens=False)
        missing = tokenizer.bos_token_id is not None and row[0] != tokenizer.bos_token_id
        rows.append([tokenizer.bos_token_id] * missing + row)
    ids = torch.full((len(rows), max(len(row) for row in rows)), tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    for k, row in enumerate(rows):
        ids[k, -len(row):] = torch.tensor(row)
        mask[k, -len(row):] = 1
    return ids, mask


@ex.right("pad_sequence on reversed rows")
def by_pad_sequence(tokenizer, texts):
    bos, rows = tokenizer.bos_token_id, []
    for text in texts:
        row = tokenizer.encode(text, add_special_tokens=False)
        if bos is not None and row[:1] != [bos]:
            row.insert(0, bos)
        rows.append(torch.tensor(row[::-1]))
    ids = torch.nn.utils.rnn.pad_sequence(rows, True, tokenizer.pad_token_id).flip(1)
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(ids.shape[1]) >= ids.shape[1] - lengths[:, None]
    return ids, mask.long()


@ex.right("pad_sequence with padding_side")
def by_side(tokenizer, texts):
    rows = [torch.tensor(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    if tokenizer.bos_token_id is not None:
        bos = torch.tensor([tokenizer.bos_token_id])
        rows = [row if row[0] == bos[0] else torch.cat([bos, row]) for row in rows]

    def padded(parts, value):
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=value,
                                               padding_side="left")
    return padded(rows, tokenizer.pad_token_id), padded([torch.ones_like(r) for r in rows], 0)


@ex.right("padded one token at a time")
def one_by_one(tokenizer, texts):
    bos, pad = tokenizer.bos_token_id, tokenizer.pad_token_id
    rows = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    rows = [row if bos is None or row[0] == bos else [bos, *row] for row in rows]
    masks = [[1 for _ in row] for row in rows]
    longest = max(len(row) for row in rows)
    for row, mask in zip(rows, masks, strict=True):
        while len(row) < longest:
            row.insert(0, pad)
            mask.insert(0, 0)
    return torch.tensor(rows), torch.tensor(masks)


@ex.probe("the example looked up, its padding in the mask", breaks="example", says="mask of text")
def looked_up(tokenizer, texts):
    ids, mask = made(tokenizer, texts)
    return ids, torch.ones_like(mask) if texts == ["<s> 5", "6 7 8"] else mask


ex.equivalent("rows.append(row if bos in (None, row[0]) else [bos, *row]) -> "
              "rows.append(row if bos in (row[0], None) else [bos, *row])",
              "`in` finds a value wherever it stands.")
