"""The model: a transformer that writes letter by letter, put together from parts.

Shapes: B rows, T positions, d width, H heads, D = d / H numbers per head, V letters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlsys_model.parts import Parts

BASE = 10_000.0  # of the angles of RoPE


class Shape(NamedTuple):
    """Sizes of a model; length: positions of a row in training, and tokens that a cache keeps."""

    letters: int
    width: int = 96
    layers: int = 4
    heads: int = 4
    length: int = 256


class Cache(dict):
    """Keys and values of one layer, (B, H, t, D), and how many older ones were dropped."""

    dropped = 0

    def keep(self, length: int) -> None:
        """Drop all but the newest `length`: RoPE needs distances only, so positions stay right.

        Later layers computed their entries from the dropped ones; those stay as they are.
        """
        beyond = self["k"].shape[2] - max(0, length) if self else 0
        if beyond > 0:
            self.dropped += beyond
            self["k"], self["v"] = self["k"][:, :, beyond:], self["v"][:, :, beyond:]


def rotate(x: Tensor, place: Tensor) -> Tensor:
    """RoPE: pairs of neighbours in x (..., n, D) rotated by the angles of their positions (n,)."""
    D = x.shape[-1]
    angle = place[:, None] * BASE ** (-torch.arange(0, D, 2, device=x.device) / D)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x[..., ::2], x[..., 1::2]
    return torch.stack([left * cos - right * sin, left * sin + right * cos], -1).flatten(-2)


class Block(nn.Module):
    """One layer: attention and an MLP, each a branch of the stream (B, T, d)."""

    def __init__(self, shape: Shape, parts: Parts, p: float) -> None:
        super().__init__()
        d = shape.width
        self.heads, self.length, self.parts, self.p = shape.heads, shape.length, parts, p
        self.norm1 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.norm2 = nn.LayerNorm(d)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)

    def attend(self, x: Tensor, cache: Cache | None = None, mask: Tensor | None = None) -> Tensor:
        """Causal attention of x (B, T, d); mask (B, 1, T, T) where rows are padded."""
        B, T, d = x.shape
        q, k, v = (z.view(B, T, self.heads, -1).transpose(1, 2)
                   for z in self.qkv(x).chunk(3, -1))
        if mask is not None:
            place = torch.arange(T, device=x.device)
            y = F.scaled_dot_product_attention(rotate(q, place), rotate(k, place), v, mask)
        else:
            cache = Cache() if cache is None else cache
            cache.keep(self.length - T)  # no letter looks farther back than a training row
            before = cache.dropped
            y = self.parts.decode_step(q, k, v, cache,
                                       lambda x, place: rotate(x, place + before))
        return self.out(y.transpose(1, 2).reshape(B, T, d))

    def mlp(self, x: Tensor) -> Tensor:
        """The MLP: four times as wide inside, with dropout after it."""
        return F.dropout(self.down(F.gelu(self.up(x))), self.p, self.training)


class Network(nn.Module):
    """Logits (B, T, V) for the letter after each of ids (B, T).

    With the default shape and 92 letters 463,680 weights. p: dropout of each MLP.
    """

    def __init__(self, shape: Shape, parts: Parts, p: float = 0.1) -> None:
        super().__init__()
        self.shape, self.parts, self.p = shape, parts, p
        self.emb = nn.Embedding(shape.letters, shape.width)
        self.blocks = nn.ModuleList(Block(shape, parts, p) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.letters, bias=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, 0, 0.02)

    def forward(self, ids: Tensor, caches: list[Cache] | None = None, real: Tensor | None = None
                ) -> Tensor:
        """Logits of ids (B, T) int64.

        caches: one `Cache` a layer, empty at first; ids are then the newest tokens. real: (B, T),
        1 for a token and 0 for padding, where rows are padded; not together with caches.
        """
        mask = None if real is None else self.parts.decoder_mask(real)
        kept = caches or [None] * len(self.blocks)
        x = self.emb(ids)
        for block, cache in zip(self.blocks, kept, strict=True):
            x = x + block.attend(block.norm1(x), cache=cache, mask=mask)
            x = x + block.mlp(block.norm2(x))
        return self.head(self.norm(x))

    def branches(self) -> list[Callable[[Tensor], Tensor]]:
        """Every branch with its sum, as a function of the stream (B, T, d), in order."""
        return [add for block in self.blocks for add in (
            lambda x, block=block: x + block.attend(block.norm1(x)),
            lambda x, block=block: x + block.mlp(block.norm2(x)))]

    def caches(self) -> list[Cache]:
        """An empty cache for each layer."""
        return [Cache() for _ in self.blocks]

    def with_parts(self, parts: Parts) -> Network:
        """A copy with the same weights, put together from other parts."""
        twin = Network(self.shape, parts, self.p)
        twin.load_state_dict(self.state_dict())
        return twin


@torch.no_grad()
def write(model: Network, prompt: Tensor, count: int, temperature: float = 0.8, cache: bool = True,
          generator: torch.Generator | None = None):
    """Yield `count` numbers of letters that follow the prompt (n,), n >= 1.

    temperature 0 takes the likeliest letter. Without cache each letter recomputes the last
    `length` positions. The model writes in eval mode and gets its mode back.
    """
    ids, caches = prompt[None], model.caches() if cache else None
    was = model.training
    model.eval()
    try:
        new = ids
        for _ in range(count):
            logits = model(new if cache else ids[:, -model.shape.length:], caches)[:, -1]
            new = _draw(model.parts, logits, temperature, generator)
            ids = torch.cat([ids, new], 1)
            yield new.item()
    finally:
        model.train(was)


def _draw(parts: Parts, logits: Tensor, temperature: float, generator) -> Tensor:
    """One number (1, 1) from logits (1, V)."""
    if temperature == 0:
        return logits.argmax(1, keepdim=True)
    return torch.multinomial(parts.to_probs(logits / temperature, "multiclass"), 1,
                             generator=generator)
