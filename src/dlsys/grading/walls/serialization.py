"""Plain data as bytes and back: JSON for the structure, raw bytes for tensors, never pickle.

`unpack` reads bytes that a stranger may have written: it returns plain data or raises WireError,
and never allocates memory for a size that the bytes only claim.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import Any

import torch

from dlsys_helpers.acting import Foreign

HEAD = struct.Struct("<II")  # bytes of JSON, bytes of tensors
LARGEST_JSON = 4 * 2**20
LARGEST_TENSORS = 32 * 2**20
DEEPEST = 20
MOST_NODES = 200_000   # parts of all messages in a sequence
TENSOR_NODES = 50      # a tensor takes the memory of this many numbers, even if it is empty
MOST_MESSAGES = 256
LARGEST_EMPTY = 4096   # each dimension of an empty tensor; laws may multiply them
LONGEST_INT = 1024  # bits; longer ones cannot even be printed
DTYPES = {str(d).removeprefix("torch."): d for d in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128)}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class WireError(ValueError):
    """These bytes are not a message."""


class TooLarge(ValueError):
    """A value does not fit into a message."""


# ---- out

@dataclass
class Budget:
    """What is left of the limits for several messages: bytes of tensors (room), and nodes."""

    room: int = LARGEST_TENSORS
    nodes: int = MOST_NODES

    def spend(self, nodes: int, room: int = 0) -> None:
        """Subtract from what is left. Raises TooLarge when a limit is exceeded."""
        self.nodes -= nodes
        self.room -= room
        if self.nodes < 0 or self.room < 0:
            raise TooLarge("parts" if self.nodes < 0 else "tensors")


def pack(value: Any, budget: Budget | None = None, largest: int = LARGEST_TENSORS) -> bytes:
    """`value` as one message. Raises TooLarge beyond the budget, or `largest` bytes of tensors."""
    packer = _Packer(budget or Budget(), largest)
    tree = packer.node(value, 0)
    head = json.dumps(tree, separators=(",", ":")).encode()
    if len(head) > LARGEST_JSON:
        raise TooLarge("structure")
    body = b"".join(packer.blobs)
    return HEAD.pack(len(head), len(body)) + head + body


class _Packer:
    def __init__(self, budget: Budget, largest: int) -> None:
        self.blobs: list[bytes] = []
        self.budget, self.left = budget, largest

    def node(self, value: Any, depth: int) -> Any:
        self.budget.spend(1)
        if depth > DEEPEST:
            raise TooLarge("structure")
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return value if value.bit_length() <= LONGEST_INT else ["x", "very long int"]
        if kind is float:
            return ["f", value.hex()]
        if kind is list and value and all(type(v) is float for v in value):
            return self.floats(value)
        if kind is list or kind is tuple:
            return ["l" if kind is list else "u", [self.node(v, depth + 1) for v in value]]
        if kind is dict:
            return ["d", [[str(k), self.node(v, depth + 1)] for k, v in value.items()]]
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        return ["x", value.type_name if kind is Foreign else kind.__name__]

    def floats(self, value: list[float]) -> list:
        """A list of floats as raw doubles, because most of the data sent is such lists."""
        self.budget.spend(len(value), 8 * len(value))
        self.blobs.append(struct.pack(f"<{len(value)}d", *value))
        return ["F", len(value)]

    def tensor(self, value: torch.Tensor) -> list:
        odd = value.layout is not torch.strided or value.dtype not in _NAMES or value.is_meta
        if odd or (not value.numel() and max(value.shape) > LARGEST_EMPTY):
            return ["x", f"{str(value.dtype).removeprefix('torch.')} {value.layout} tensor"]
        n_bytes = value.numel() * value.element_size()
        self.left -= n_bytes
        if self.left < 0:
            raise TooLarge("tensors")
        self.budget.spend(TENSOR_NODES, n_bytes)
        if value.numel():
            # A contiguous copy: a tensor with one element may have any stride.
            flat = torch.empty(value.numel(), dtype=value.dtype).copy_(value.detach().reshape(-1))
            self.blobs.append(flat.view(torch.uint8).numpy().tobytes())
        return ["t", _NAMES[value.dtype], list(value.shape)]


# ---- in

def unpack(data: bytes) -> Any:
    """The only message in `data`. Raises WireError."""
    values = unpack_all(data)
    if len(values) != 1:
        raise WireError("expected one message")
    return values[0]


def unpack_all(data: bytes, nodes: int = MOST_NODES) -> list[Any]:
    """All messages in `data`, one after the other, of at most `nodes` parts in all.

    Raises WireError.
    """
    values: list[Any] = []
    rest, budget = memoryview(data), Budget(nodes=nodes)
    try:
        while rest:
            if len(values) == MOST_MESSAGES:
                raise WireError("messages")
            n_head, n_body = HEAD.unpack_from(rest)
            end = HEAD.size + n_head + n_body
            if n_head > LARGEST_JSON or n_body > LARGEST_TENSORS or end > len(rest):
                raise WireError("sizes")
            tree = json.loads(bytes(rest[HEAD.size:HEAD.size + n_head]),
                              parse_float=_refuse, parse_constant=_refuse)
            reader = _Reader(rest[HEAD.size + n_head:end], budget)
            values.append(reader.value(tree, 0))
            if reader.blob:
                raise WireError("bytes left over")
            rest = rest[end:]
    except (struct.error, ValueError, TypeError, KeyError, RecursionError, OverflowError,
            RuntimeError) as error:
        # One error for every way in which foreign bytes can be wrong.
        raise WireError(type(error).__name__) from None
    return values


def _refuse(text: str) -> None:
    raise WireError(f"bare number {text[:20]}")


class _Reader:
    def __init__(self, blob: memoryview, budget: Budget) -> None:
        self.blob, self.budget = blob, budget

    def value(self, node: Any, depth: int) -> Any:
        self.budget.spend(1)
        if depth > DEEPEST:
            raise WireError("too much structure")
        if node is None or type(node) in (bool, str):
            return node
        if type(node) is int:
            if node.bit_length() > LONGEST_INT:
                raise WireError("int")
            return node
        if type(node) is not list:
            raise WireError("unknown kind")
        kind, *rest = node
        match kind, rest:
            case "f", [str(text)]:
                return float.fromhex(text)
            case "F", [int(n)] if n > 0:
                return self.floats(n)
            case "l", [list(items)]:
                return [self.value(item, depth + 1) for item in items]
            case "u", [list(items)]:
                return tuple(self.value(item, depth + 1) for item in items)
            case "d", [list(items)]:
                return {self.key(k): self.value(v, depth + 1) for k, v in items}
            case "t", [str(dtype), list(shape)]:
                return self.tensor(DTYPES[dtype], shape)
            case "x", [str(name)]:
                return Foreign(name[:60])
        raise WireError("unknown kind")

    @staticmethod
    def key(key: Any) -> str:
        if type(key) is not str:
            raise WireError("key")
        return key

    def floats(self, n: int) -> list[float]:
        """A list of floats from the bytes that follow."""
        self.budget.spend(n)
        if 8 * n > len(self.blob):
            raise WireError("float bytes")
        raw, self.blob = self.blob[:8 * n], self.blob[8 * n:]
        return list(struct.unpack(f"<{n}d", raw))

    def tensor(self, dtype: torch.dtype, shape: list) -> torch.Tensor:
        """A tensor from the bytes that follow; its size is checked before it is allocated."""
        self.budget.spend(TENSOR_NODES)
        if len(shape) > 16 or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
            raise WireError("shape")
        if 0 in shape and max(shape) > LARGEST_EMPTY:
            raise WireError("empty, but long")
        n_bytes = math.prod(shape) * dtype.itemsize
        if n_bytes > len(self.blob):
            raise WireError("tensor bytes")
        raw, self.blob = bytearray(self.blob[:n_bytes]), self.blob[n_bytes:]
        if not raw:
            return torch.empty(shape, dtype=dtype)
        # Shaped in place: a view takes several times as long to copy, see `acting.copied`.
        if dtype is torch.bool:  # any byte but 0 and 1 in a bool tensor is undefined behaviour
            return torch.frombuffer(raw, dtype=torch.uint8).ne(0).resize_(shape)
        return torch.frombuffer(raw, dtype=dtype).resize_(shape)
