"""A GradScaler that is made again and again, and forgets the scale that it has found."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.run import params

SCALERS, STEPS = 3, 2


class ScalerMadeAgain(Rule):
    id, trap = "scaler-made-again", "09.1"
    reads = "the scalers that take the steps of the same weights, one after the other"

    def __init__(self, watch):
        super().__init__(watch)
        self.numbers = weakref.WeakKeyDictionary()   # scaler -> its number, in order of use
        self.count = 0
        self.used = {}    # id of the first weight -> [[number of a scaler, its steps]]

    def on_scaled_step(self, scaler, optimizer, *_):
        first = next(iter(params(optimizer)), None)
        if first is None or not scaler.is_enabled():
            return
        row = self.used.setdefault(id(first), [])
        if scaler not in self.numbers:
            self.numbers[scaler] = self.count = self.count + 1
        number = self.numbers[scaler]
        if row and number < row[-1][0]:
            row.clear()    # an older one is back: they take turns
        if not row or number > row[-1][0]:
            row.append([number, 0])
        row[-1][1] += 1
        if len(row) == SCALERS and min(steps for _, steps in row) >= STEPS:
            self.say(f"{SCALERS} scalers have made the steps of the same weights, one after the "
                     "other: each begins with its first scale and skips steps until it has found "
                     "one that fits. Make one for the whole run")
            row.clear()
