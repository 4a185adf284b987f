"""Run a GPU section on a CPU at toy sizes: every line runs, and no number counts."""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import ExitStack, nullcontext
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from dlsys_helpers import gpu, gpu_records, measure

LARGEST = 64  # of every dimension, and of randint's upper end; a power of 2, as kernels ask
SIZED = {torch.empty, torch.randn, torch.zeros, torch.ones, torch.full, torch.randint}
ORIGIN = {"device": "rehearsal", "sms": 1, "memory_gib": 1.0, "driver": "0", "cuda": "0",
          "torch": "0", "triton": "0", "date": "2000-01-01"}


class Toy(TorchFunctionMode):
    """Sends "cuda" to the CPU and caps every requested size."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.is_cuda.__get__:
            return True
        if func is torch.Tensor.pin_memory:  # needs a driver
            return args[0]
        args, kwargs = [*map(_home, args)], {k: _home(v) for k, v in (kwargs or {}).items()}
        if func in SIZED:
            args = tree_map(lambda a: min(a, LARGEST) if type(a) is int else a, args)
        return func(*args, **kwargs)


def _home(value: Any) -> Any:
    cuda = isinstance(value, (str, torch.device)) and str(value).startswith("cuda")
    return torch.device("cpu") if cuda else value


def _once(fns: list, calls: int) -> list[float]:
    """Run each function once, whatever `calls` is, and make up the times."""
    for fn in dict.fromkeys(fns):
        fn()
    return [1e-5 * calls] * len(fns)


def _operations(fn: Any, calls: int = 1, device: Any = "cpu",
                _real: Any = measure.operations) -> dict[str, tuple[int, float]]:
    return {name: (count, 1.0) for name, (count, _) in _real(fn, calls).items()}


def _live(*args: Any, _real: Any = gpu_records._live) -> gpu_records.GpuResult:
    ticks = itertools.count(1)
    memory = dict.fromkeys(("synchronize", "memory_allocated", "max_memory_allocated",
                            "reset_peak_memory_stats"), lambda *_: next(ticks) * 2**20)
    with ExitStack() as on, Toy():
        on.enter_context(mock.patch.multiple(torch.cuda, **memory,
                                             mem_get_info=lambda: (2**40, 2**40)))
        on.enter_context(mock.patch.multiple(torch.cuda, Stream=mock.Mock, stream=nullcontext,
                                             current_stream=mock.Mock))
        on.enter_context(mock.patch.object(torch, "compile", lambda f, **_: f))
        # Toy also turns torch.device("cuda") into a CPU, so `measure` takes the CPU's clock.
        on.enter_context(mock.patch.multiple(measure, _cuda_samples=_once, _cpu_samples=_once))
        return _real(*args)


def stage() -> ExitStack:
    """While entered, `gpu_result` rehearses its measurement on the CPU."""
    on = ExitStack()
    on.enter_context(mock.patch.multiple(gpu, device=lambda *_: torch.device("cuda"),
                                         no_compiler=lambda: ""))
    on.enter_context(mock.patch.multiple(gpu_records, _live=_live, provenance=lambda: ORIGIN))
    on.enter_context(mock.patch.object(measure, "operations", _operations))
    # There is no driver, so triton must interpret its kernels; for that we import it again.
    on.enter_context(mock.patch.dict(os.environ, TRITON_INTERPRET="1"))
    on.callback(_triton, _triton({}))
    return on


def _triton(modules: dict[str, Any]) -> dict[str, Any]:
    """Replace triton's modules, except its machine code, by these; return the old ones."""
    old = {name: sys.modules.pop(name) for name in [*sys.modules]
           if name.partition(".")[0] == "triton" and "._C" not in name}
    sys.modules.update(modules)
    return old
