"""A sampler keeps a list of the rows it has used, and searches all of it for each new row."""

import gc
import random
import statistics
import time
from itertools import pairwise

import torch

from tools.incident_runs import small

DAYS, UPDATES, ROWS = 15, 40, 24
PARTS = ("data", "forward", "backward", "update")
WARM = 10  # warm-up updates, whose times do not count


class Loader:
    """Draws rows that it has not used yet. used: a list with the fault, a set without it.

    With an empty tuple the loader remembers nothing, so it draws with replacement.
    """

    def __init__(self, rows, targets, seed: int, used) -> None:
        self.rows, self.targets = rows, targets
        self.size = ROWS
        self.draw = random.Random(seed)
        self.used = used
        self.searching = 0.0

    def batch(self):
        which = []
        while len(which) < self.size:
            row = self.draw.randrange(len(self.rows))
            began = time.process_time()
            seen = row in self.used
            self.searching += time.process_time() - began
            if not seen:
                which.append(row)
                self.remember(row)
        return self.rows[which], self.targets[which]

    def remember(self, row: int) -> None:
        if isinstance(self.used, list):
            self.used.append(row)
        elif isinstance(self.used, set):
            self.used.add(row)


class Run:
    def __init__(self, seed: int, used) -> None:
        torch.manual_seed(seed)
        text = small.prose()
        self.loader = Loader(*small.rows_of(text.train), seed, used)
        self.model = small.Small(len(text.letters), width=64)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.003)

    def train(self, updates: int, batch=None) -> dict[str, float]:
        """The median CPU milliseconds of an update, by its parts.

        batch: one to use for all updates.
        """
        spent: dict[str, list[float]] = {part: [] for part in PARTS}
        for _ in range(updates):
            marks = [time.process_time()]
            rows, targets = batch or self.loader.batch()
            marks.append(time.process_time())
            loss = small.loss_of(self.model, rows, targets)
            marks.append(time.process_time())
            self.optimizer.zero_grad()
            loss.backward()
            marks.append(time.process_time())
            self.optimizer.step()
            marks.append(time.process_time())
            for part, (start, end) in zip(PARTS, pairwise(marks), strict=True):
                spent[part].append((end - start) * 1000)
        return {part: statistics.median(times) for part, times in spent.items()}


def speed(spent: dict[str, float]) -> float:
    """The throughput in characters per second."""
    return 1000 * ROWS * small.CONTEXT / sum(spent.values())


def multiplied() -> float:
    """CPU milliseconds for one product of two 256 x 256 matrices."""
    a = torch.randn(256, 256)
    began = time.process_time()
    for _ in range(50):
        a @ a
    return (time.process_time() - began) * 1000 / 50


def read(run: Run) -> float:
    """CPU microseconds to fetch one row by its index."""
    began = time.process_time()
    for row in range(2000):
        run.loader.rows[row]
    return (time.process_time() - began) * 1e6 / 2000


def measure(seed: int) -> dict:
    run = Run(seed, [])
    run.train(WARM)
    products, reads = [multiplied()], [read(run)]
    days = [run.train(UPDATES) for _ in range(DAYS)]
    products.append(multiplied())
    reads.append(read(run))
    speeds = [speed(day) for day in days]
    run.loader.searching = 0.0
    last = run.train(WARM)
    searched = 100 * run.loader.searching * 1000 / WARM / sum(last.values())
    gc.disable()
    uncollected = run.train(WARM)
    gc.enable()
    fixed = run.train(WARM, batch=run.loader.batch())
    again = Run(seed, list(run.loader.used))  # the checkpoint restores the loader's state
    again.train(2)
    restarted = again.train(WARM)
    fresh = Run(seed + 1, [])
    fresh.train(WARM)
    begun = fresh.train(WARM)
    repaired = Run(seed, set())
    repaired.train(WARM)
    others = [speed(repaired.train(UPDATES)) for _ in range(DAYS)]
    unburdened = Run(seed, ())
    unburdened.train(WARM)
    healthy = [speed(unburdened.train(UPDATES)) for _ in range(DAYS)]
    again.loader.size = 2 * ROWS
    double = again.train(WARM)
    names = dict(zip(("d1", "d8", "d15"), (days[0], days[7], days[-1]), strict=True))
    return {
        "numbers": {
            "healthy": healthy[-1] / healthy[0], "fault": speeds[-1] / speeds[0],
            "repaired": others[-1] / others[0], "first": speeds[0], "last": speeds[-1],
            "lost": 100 - 100 * speeds[-1] / speeds[0],
            "day_hours": 24 * speeds[-1] / speeds[0],
            **{f"{part}_{day}": spent[part] for day, spent in names.items() for part in spent},
            "product_first": products[0], "product_last": products[1], "read_first": reads[0],
            "read_last": reads[1], "searched": searched, "uncollected": speed(uncollected),
            "fixed": speed(fixed), "restarted": speed(restarted), "begun": speed(begun),
            "used": float(len(run.loader.used)), "set_last": others[-1],
            "double": 2 * speed(double)},
        "curves": {"speed": {"x": [float(day) for day in range(1, DAYS + 1)],
                             "characters a second": speeds}}}
