"""Measuring: time with its spread, FLOPs, bytes that autograd keeps, operations and their cost."""

from __future__ import annotations

import os
import statistics
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.profiler import profile, supported_activities
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

# Silence Kineto, torch.profiler's native library: it logs its start and stop to stderr, which a
# notebook would store. It reads this variable before the first profile.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

Call = Callable[[], Any]


class Timing(NamedTuple):
    """Seconds for one call: the median and the quartiles around it."""

    median: float
    low: float
    high: float


def seconds(fn: Call, repeats: int = 10, device: torch.device | str = "cpu", *, calls: int = 1,
            warmup: int = 3) -> Timing:
    """Seconds that one call of `fn` takes: median, first and third quartile.

    repeats: timed samples; calls: calls back to back in each sample, so that a launch-bound call
    shows its launch rate. On a GPU, CUDA events time the work itself; on a CPU, perf_counter.
    Raises ValueError for fewer than 2 repeats, 1 call or 0 warm-ups.
    """
    return seconds_in_turns([fn], repeats, device, calls=calls, warmup=warmup)[0]


def seconds_in_turns(fns: Sequence[Call], repeats: int = 10, device: torch.device | str = "cpu",
                     *, calls: int = 1, warmup: int = 3) -> list[Timing]:
    """As `seconds`, for calls that are compared: a sample of each in turn.

    A device that slows down meanwhile then slows down all of them, and their ratio stays.
    """
    if repeats < 2 or calls < 1 or warmup < 0:
        raise ValueError(f"seconds: got repeats {repeats}, calls {calls}, warmup {warmup}; "
                         "expected at least 2, 1 and 0.")
    for fn in fns:
        for _ in range(warmup):
            fn()
    sample = _cuda_samples if torch.device(device).type == "cuda" else _cpu_samples
    totals = sample(list(fns) * repeats, calls)
    return [_timing([t / calls for t in totals[n::len(fns)]]) for n in range(len(fns))]


def _timing(samples: list[float]) -> Timing:
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(median, low, high)


def _cpu_samples(fns: Sequence[Call], calls: int) -> list[float]:
    samples = []
    for fn in fns:
        start = time.perf_counter()
        for _ in range(calls):
            fn()
        samples.append(time.perf_counter() - start)
    return samples


def _cuda_samples(fns: Sequence[Call], calls: int) -> list[float]:
    pairs = []
    torch.cuda.synchronize()
    for fn in fns:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            fn()
        stop.record()
        pairs.append((start, stop))
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) / 1e3 for start, stop in pairs]  # milliseconds


def flops(fn: Call) -> int:
    """FLOPs of the matrix products, convolutions and attention that `fn` runs.

    A multiply and an add count as two. Elementwise work has no rule in torch's counter and counts
    as 0. Runs `fn` once; meta tensors are counted without computing anything.
    Source: torch.utils.flop_counter.FlopCounterMode.
    """
    with FlopCounterMode(display=False) as counter:
        fn()
    return counter.get_total_flops()


def saved_bytes(fn: Call, params: Iterable[torch.Tensor] = ()) -> int:
    """Bytes that autograd keeps for the backward pass of `fn`, each storage counted once.

    params: tensors that exist anyway (weights); their storages do not count. Runs `fn` once.
    Raises ValueError for meta tensors, which have no storage to tell apart.
    """
    owned = {p.untyped_storage().data_ptr() for p in params}
    kept: dict[int, torch.UntypedStorage] = {}  # holding them keeps an address from being reused

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            raise ValueError("saved_bytes: got meta tensors, expected real ones.")
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fn()
    return sum(storage.nbytes() for storage in kept.values())


class Cost(NamedTuple):
    """What a call asks for, counted without a device.

    orders: operations that compute something, without views.
    written: bytes of all that they write, into new tensors or old ones.
    peak: most bytes of results that exist at a time, in the blocks of 512 of CUDA's allocator.
    """

    orders: int
    written: int
    peak: int


def cost(fn: Call) -> Cost:
    """Orders, bytes written and peak bytes of one call; on meta tensors nothing is computed.

    What existed before the call does not count.
    """
    with _Counter() as seen:
        out = fn()  # keeps the result alive until the count is over
    del out
    return Cost(seen.orders, seen.written, seen.most)


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.orders = self.written = self.now = self.most = 0
        self.alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._hold(tensor, 0)  # it existed before
        out = func(*args, **(kwargs or {}))
        if not _is_view(func):
            self.orders += 1
            results = {id(t): t.nbytes for t in _tensors((_changed(func, args, kwargs or {}), out))}
            self.written += sum(results.values())
        for tensor in _tensors(out):
            self._hold(tensor, 1)
        return out

    def _hold(self, tensor: torch.Tensor, new: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.alive:
            size = -(-storage.nbytes() // 512) * 512 * new
            self.alive.add(key)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self.alive.discard(key)
        self.now -= size


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _changed(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operation mutates in place, such as the lists of `_foreach_add_`."""
    given = zip(func._schema.arguments, args, strict=False)
    named = ((a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs)
    return [value for a, value in (*given, *named) if a.alias_info and a.alias_info.is_write]


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info and not r.alias_info.is_write for r in returns)


def peak_bytes(fn: Call) -> int:
    """The most bytes of the CUDA device that one call takes on top of those already allocated."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fn()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def operations(fn: Call, calls: int = 1,
               device: torch.device | str = "cpu") -> dict[str, tuple[int, float]]:
    """Torch's operations in `calls` calls: how often each ran, and the us of its kernels.

    On a CUDA device only those that launched a kernel. Raises RuntimeError if the profiler is
    not allowed to see kernels. Always profiles all that torch can see: after a first profile
    without CUDA, torch 2.14 finds no kernel in any later one (pytorch issue 197005).
    """
    on_cuda = torch.device(device).type == "cuda"
    with profile(activities=supported_activities()) as seen:
        for _ in range(calls):
            fn()
        if on_cuda:
            torch.cuda.synchronize()
    found = {event.key: (event.count, float(event.self_device_time_total))
             for event in seen.key_averages() if event.key.startswith("aten::")}
    if not on_cuda:
        return found
    if not any(us for _, us in found.values()):
        raise RuntimeError("the profiler saw no kernel. CUPTI, on which it rests, may be refused "
                           "here, as in WSL and some containers; KINETO_LOG_LEVEL=0 shows why.")
    return {name: both for name, both in found.items() if both[1]}
