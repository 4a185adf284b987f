"""How often somebody may try: at most so many times in so many seconds, for each key."""

from __future__ import annotations

import time
from collections import defaultdict, deque

KEYS = 10_000  # remembered at most: a hostile client has many


class Limit:
    def __init__(self, times: int, seconds: float) -> None:
        self.times, self.seconds = times, seconds
        self.seen: dict[str, deque[float]] = defaultdict(deque)

    def spent(self, key: str) -> bool:
        """Whether this key has used up its times."""
        recent = self.seen.get(key, deque())
        while recent and recent[0] < time.monotonic() - self.seconds:
            recent.popleft()
        return len(recent) >= self.times

    def count(self, key: str) -> None:
        """Count one try of this key."""
        if len(self.seen) > KEYS:
            self.seen = defaultdict(deque, {k: v for k, v in self.seen.items()
                                            if v and v[-1] > time.monotonic() - self.seconds})
        self.seen[key].append(time.monotonic())
