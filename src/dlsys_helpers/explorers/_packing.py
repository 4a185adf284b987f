"""Frames as bytes: [uint32 length of the header][JSON header][array bytes].

Equal arrays are stored once. Bytes are grouped by their place in the number, so that gzip sees
long runs of equal exponents. `unpack` in explorer.js reads the same format.
"""

import json
from collections.abc import Mapping

import numpy as np

Frame = tuple[Mapping[str, np.ndarray], str]


def pack(frames: Mapping[str, Frame]) -> bytes:
    """The frames as one block of bytes; float arrays become float32, uint8 stays uint8."""
    store = _Store()
    table = {key: [{name: store.add(a) for name, a in arrays.items()}, sentence]
             for key, (arrays, sentence) in frames.items()}
    header = json.dumps({"arrays": store.arrays, "frames": table}, separators=(",", ":")).encode()
    return len(header).to_bytes(4, "little") + header + b"".join(store.blobs)


class _Store:
    """Array bytes, each kept once; `arrays` describes them as [offset, shape, bytes per item]."""

    def __init__(self):
        self.arrays, self.blobs, self._seen, self._end = [], [], {}, 0

    def add(self, array: np.ndarray) -> int:
        """The number of this array in the store."""
        array = np.ascontiguousarray(array if array.dtype == np.uint8 else array.astype("<f4"))
        raw = array.reshape(-1).view(np.uint8).reshape(array.size, array.itemsize).T.tobytes()
        identity = (raw, array.shape, array.itemsize)
        if identity not in self._seen:
            self._seen[identity] = len(self.arrays)
            self.arrays.append([self._end, list(array.shape), array.itemsize])
            self.blobs.append(raw)
            self._end += len(raw)
        return self._seen[identity]
