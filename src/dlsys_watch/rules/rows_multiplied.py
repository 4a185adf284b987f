"""A model that returns several rows for one image."""

import weakref

import torch

from dlsys_watch.rule import Rule

ENOUGH = 4   # calls that gave one row for each picture


class RowsMultiplied(Rule):
    id, trap = "rows-multiplied", "07.11"
    reads = "a model's output rows, for images of the training size and for larger images"
    rests = ("root", "root_done")

    def __init__(self, watch):
        super().__init__(watch)
        self.pictures = self.fold = None
        self.known = weakref.WeakKeyDictionary()   # model -> [calls, shape of a picture, columns]

    def on_root(self, module, args, kwargs, grad):
        picture = len(args) == 1 and torch.is_tensor(args[0]) and args[0].dim() == 4
        self.pictures, self.fold = tuple(args[0].shape) if picture else None, None

    def on_view(self, before, after):
        if self.pictures and before.dim() == 4 and after.dim() == 2 and len(after) > len(before):
            self.fold = self.here()

    def on_root_done(self, module, output, grad):
        if self.pictures is None or not torch.is_tensor(output) or output.dim() != 2:
            return
        count, (rows, columns) = self.pictures[0], output.shape
        seen = self.known.setdefault(module, [0, self.pictures[1:], columns])
        if seen[1:] == [self.pictures[1:], columns]:
            seen[0] += rows == count
        elif seen[0] >= ENOUGH and columns == seen[2] and rows > count and rows % count == 0:
            self.say(f"{rows} rows of output for {count} pictures: larger ones than before, "
                     f"{self.pictures[2:]} for {tuple(seen[1][1:])}, are folded into the batch. "
                     "flatten(1) keeps them apart", self.fold)
