"""The open connections of each address: if there is no room, the greediest address loses one.

A fixed share for each address would either lock out a lecture hall with a single router, or let a
few hostile addresses fill the room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tornado.iostream import IOStream

Opened = OrderedDict[IOStream, None]


class Connections:
    """The open connections of some kind; `most` says how many there may be now."""

    def __init__(self, most: Callable[[], int]) -> None:
        self.most, self.total = most, 0
        self.opened: dict[str, Opened] = {}  # by address; the one that was used last is last

    def add(self, address: str, stream: IOStream) -> None:
        self.opened.setdefault(address, OrderedDict())[stream] = None
        self.total += 1

    def used(self, address: str, stream: IOStream) -> None:
        """Mark this connection as the last one used."""
        if stream in self.opened.get(address, ()):
            self.opened[address].move_to_end(stream)

    def remove(self, address: str, stream: IOStream) -> bool:
        """Forget a connection; returns False for one that was not known."""
        known = self.opened.get(address, {})
        if stream not in known:
            return False
        del known[stream]
        self.total -= 1
        if not known:
            del self.opened[address]
        return True

    @property
    def is_full(self) -> bool:
        return self.total >= self.most()

    def greediest(self) -> str:
        """The address with the most connections."""
        return max(self.opened, key=lambda address: len(self.opened[address]))

    def make_room(self) -> None:
        """While it is full, close the greediest address's least recently used connection."""
        while self.opened and self.is_full:
            address = self.greediest()
            stream = next(iter(self.opened[address]))
            self.remove(address, stream)
            stream.close()
