"""Arithmetic that overflows uint8."""

from collections.abc import Callable

import torch

from dlsys_watch.rule import Rule

SIGNS: dict[str, Callable] = {"+": torch.add, "-": torch.sub, "*": torch.mul}


class Uint8Wraps(Rule):
    id, trap = "uint8-wraps", "06.6"
    reads = "sums, differences and products in uint8, compared with the same operations in int64"

    def on_arithmetic(self, sign, left, right, answer):
        if not torch.is_tensor(answer) or answer.dtype is not torch.uint8 or right is None:
            return
        if left.dim() < 2 or answer is left or not self.seldom(self.here()):
            return
        wide = right.long() if torch.is_tensor(right) else right
        exact = SIGNS[sign](left.long(), wide)
        wrapped = ((exact < 0) | (exact > 255)).double().mean().item()
        if wrapped and left.max() > 1:
            self.say(f"{wrapped:.1%} of the results of `{sign}` in uint8 leave 0..255 and wrap "
                     "around: compute in float, clamp, then cast")
