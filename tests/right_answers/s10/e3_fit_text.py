"""Exercise 10.3, `fit_text`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s10.e3_fit_text import IGNORE, ex


@ex.right("lists, cut from the left")
def by_lists(prompt, answer, n_positions, virtual):
    p, q = prompt.tolist(), answer.tolist()
    if virtual + len(q) > n_positions:
        raise ValueError("the answer does not fit")
    while virtual + len(p) + len(q) > n_positions:
        p.pop(0)
    return (torch.tensor(p + q, dtype=torch.int64),
            torch.tensor([IGNORE] * len(p) + q, dtype=torch.int64))


@ex.right("all joined, then the last places")
def joined(prompt, answer, n_positions, virtual):
    room = n_positions - virtual
    if answer.numel() > room:
        raise ValueError("room")
    ids = torch.cat((prompt, answer))
    labels = torch.cat((torch.full(prompt.shape, IGNORE), answer))
    start = max(len(ids) - room, 0)
    return ids[start:].clone(), labels[start:].clone()


@ex.right("narrow, and a mask")
def by_mask(prompt, answer, n_positions, virtual):
    keep = min(len(prompt), n_positions - virtual - len(answer))
    if keep < 0:
        raise ValueError("no room")
    ids = torch.cat([prompt.narrow(0, len(prompt) - keep, keep), answer])
    return ids, ids.masked_fill(torch.arange(len(ids)) < keep, IGNORE)


@ex.right("written into empty tensors")
def into_empty(prompt, answer, n_positions, virtual):
    if n_positions < virtual + len(answer):
        raise ValueError(f"{len(answer)} tokens")
    total = min(len(prompt) + len(answer), n_positions - virtual)
    front = total - len(answer)
    ids, labels = (torch.full((total,), IGNORE, dtype=torch.int64) for _ in range(2))
    ids[:front] = prompt[len(prompt) - front:]
    ids[front:] = labels[front:] = answer
    return ids, labels


ex.equivalent("kept = prompt[max(0, len(prompt) - left):] -> "
              "kept = prompt[max(len(prompt) - left, 0):]", "the larger of two, in either order")
ex.equivalent("raise ValueError(f'answer: {-left} tokens too long') -> "
              "raise ValueError(f'answer: {left} tokens too long')", "the text of the error only")
