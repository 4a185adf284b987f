"""Exercise 06.9, `augmented_pairs`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.s06.e9_augmented_pairs import ex, made


@ex.right("by indices, the whole batch at once")
def by_indices(images, masks, shift, ignore):
    n, _, h, w = images.shape
    down, right = (torch.randint(-shift, shift + 1, (n,)) for _ in range(2))
    rows = torch.arange(h) - down[:, None]
    columns = torch.arange(w) - right[:, None]
    inside = ((rows >= 0) & (rows < h))[:, :, None] & ((columns >= 0) & (columns < w))[:, None]
    columns = torch.where(torch.rand(n, 1) < 0.5, w - 1 - columns, columns)
    at = (torch.arange(n)[:, None, None], rows.clamp(0, h - 1)[:, :, None],
          columns.clamp(0, w - 1)[:, None])
    new = images.permute(0, 2, 3, 1)[at].permute(0, 3, 1, 2)
    return (torch.where(inside[:, None], new, torch.zeros(())),
            torch.where(inside, masks[at], torch.tensor(ignore)))


@ex.right("one pair after the other, with slices")
def one_by_one(images, masks, shift, ignore):
    new, new_masks = torch.zeros_like(images), torch.full_like(masks, ignore)
    h, w = masks.shape[1:]
    for k, (image, mask) in enumerate(zip(images, masks)):
        if torch.randint(2, ()) == 1:
            image, mask = image.flip(2), mask.flip(1)
        down, right = torch.randint(-shift, shift + 1, (2,)).tolist()
        to = slice(max(0, down), min(h, h + down)), slice(max(0, right), min(w, w + right))
        of = slice(max(0, -down), min(h, h - down)), slice(max(0, -right), min(w, w - right))
        new[k, :, to[0], to[1]] = image[:, of[0], of[1]]
        new_masks[k, to[0], to[1]] = mask[of[0], of[1]]
    return new, new_masks


@ex.right("the mask as one more channel")
def stacked(images, masks, shift, ignore):
    both = torch.cat([images.double(), masks[:, None].double() - ignore], 1)
    wide, (h, w) = F.pad(both, [shift] * 4), masks.shape[1:]
    out = []
    for pair in wide:
        if torch.rand(()) < 0.5:
            pair = pair.flip(-1)
        down, right = (int(torch.rand(()) * (2 * shift + 1)) for _ in range(2))
        out.append(pair[:, down:down + h, right:right + w])
    out = torch.stack(out)
    return out[:, :-1].float(), (out[:, -1] + ignore).long()


@ex.right("the same state of the generator for both")
def replayed(images, masks, shift, ignore):
    def augment(x, fill):
        new = torch.full_like(x, fill)
        h, w = x.shape[-2:]
        for k in range(len(x)):
            turn, down, right = torch.rand(3).mul(torch.tensor([2, 2 * shift + 1, 2 * shift + 1])
                                                  ).long().tolist()
            wide = F.pad(x[k], [shift] * 4, value=fill)
            wide = wide.flip(-1) if turn else wide
            new[k] = wide[..., down:down + h, right:right + w]
        return new
    state = torch.get_rng_state()
    new_masks = augment(masks, ignore)
    torch.set_rng_state(state)
    return augment(images, 0), new_masks


ex.probe("the mask of a single pair off by one", lambda images, masks, shift, ignore: made(
    images, masks + (len(images) == 1), shift, ignore), breaks="shapes", says="mask of image")
ex.probe("the largest shift taken for one less", lambda images, masks, shift, ignore: made(
    images, masks + (shift == 3), shift, ignore), breaks="shift", says="mask of image")
ex.equivalent("turn = torch.rand(n) < 0.5 -> turn = torch.rand(n) <= 0.5",
              "a draw of exactly one half is one in 16 million")


@ex.probe("a seed of chance set before the draws", breaks="drawn", says="calls that set a seed")
def seeded_by_chance(images, masks, shift, ignore):
    torch.seed()
    return made(images, masks, shift, ignore)
