"""How often somebody may try: at most so many times in so many seconds, for each key."""

from __future__ import annotations

import time
from collections import OrderedDict, deque

KEYS = 10_000  # remembered at most: a hostile client has many


class Limit:
    def __init__(self, times: int, seconds: float) -> None:
        self.times, self.seconds = times, seconds
        self.seen: OrderedDict[str, deque[float]] = OrderedDict()  # the key counted last is last

    def spent(self, key: str) -> bool:
        """Whether this key has used up its times."""
        recent = self.seen.get(key, deque())
        while recent and recent[0] < time.monotonic() - self.seconds:
            recent.popleft()
        return len(recent) >= self.times

    def count(self, key: str) -> None:
        """Count one try of this key. Forgets expired keys and, beyond KEYS, the oldest."""
        self.seen.setdefault(key, deque(maxlen=self.times)).append(time.monotonic())
        self.seen.move_to_end(key)
        while len(self.seen) > KEYS or self._is_over(next(iter(self.seen))):
            self.seen.popitem(last=False)

    def _is_over(self, key: str) -> bool:
        tries = self.seen[key]
        return not tries or tries[-1] < time.monotonic() - self.seconds
