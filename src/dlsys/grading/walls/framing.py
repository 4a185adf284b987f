"""Length-prefixed frames over a socket or pipe: an index, a length, that many bytes.

The init and the supervisor talk only through this module, and never look inside a payload.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

HEAD = struct.Struct("<HI")
LARGEST = 64 * 2**20  # bytes of one payload
MOST_REPORTS = 100     # reports of stopped cells in one attempt
EARLY = 2              # answers to one exercise from where its check was called, when careful

# Indices of an attempt's frames: 0, 1, ... are its exercises, in the order of the job.
CELLS = 0xFFFF
END = 0xFFFE
JOB = 0xFFFD
ACTS = 0xFFFC

# One-byte requests from one process around a sandbox to the next.
OPEN = b"o"           # judge to supervisor: a sandbox, with its line and its life line
LOAD_COMPILER = b"c"  # judge to supervisor, and on to the zygote
PROC = b"p"           # init to supervisor: the sandbox's own /proc
FORK = b"f"           # init to supervisor, and on to the zygote: a runner
REAP = b"r"           # supervisor to zygote: wait for all runners, and say what they used
DONE = b"."           # the zygote's answer to FORK and LOAD_COMPILER


class FrameError(Exception):
    """The other side broke the framing, died or was late: kind "broken", "died" or "timeout"."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def frame(index: int, payload: bytes = b"") -> bytes:
    """The bytes of one frame."""
    return HEAD.pack(index, len(payload)) + payload


def read(receive: Callable[[int], bytes]) -> tuple[int, bytes]:
    """The next frame's index and payload. Raises FrameError: "died" or "broken"."""
    index, length = HEAD.unpack(_exactly(receive, HEAD.size))
    if length > LARGEST:
        raise FrameError("broken")
    return index, _exactly(receive, length)


def _exactly(receive: Callable[[int], bytes], n: int) -> bytes:
    data = bytearray()
    while len(data) < n:
        piece = receive(min(n - len(data), 1 << 20))
        if not piece:
            raise FrameError("died")
        data += piece
    return bytes(data)


def read_until(sock: socket.socket, deadline: float) -> tuple[int, bytes]:
    """Like `read`, until `deadline` (time.monotonic). Raises FrameError, also "timeout"."""
    def receive(n: int) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise FrameError("timeout")
        sock.settimeout(left)
        try:
            return sock.recv(n)
        except TimeoutError:
            raise FrameError("timeout") from None
        except OSError:
            raise FrameError("died") from None
    return read(receive)
