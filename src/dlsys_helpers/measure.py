"""Measuring: time with its spread, FLOPs, and the bytes that autograd keeps."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

# torch.profiler's native library reports its own start and stop on stderr, with the time of day,
# which a notebook would store. It reads this before the first profile.
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
    if repeats < 2 or calls < 1 or warmup < 0:
        raise ValueError(f"seconds: got repeats {repeats}, calls {calls}, warmup {warmup}; "
                         "expected at least 2, 1 and 0.")
    for _ in range(warmup):
        fn()
    sample = _cuda_samples if torch.device(device).type == "cuda" else _cpu_samples
    each = [total / calls for total in sample(fn, repeats, calls)]
    low, median, high = statistics.quantiles(each, n=4, method="inclusive")
    return Timing(median, low, high)


def _cpu_samples(fn: Call, repeats: int, calls: int) -> list[float]:
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            fn()
        samples.append(time.perf_counter() - start)
    return samples


def _cuda_samples(fn: Call, repeats: int, calls: int) -> list[float]:
    pairs = []
    torch.cuda.synchronize()
    for _ in range(repeats):
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
