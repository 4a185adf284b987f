"""The CUDA device: whether it can be used here, why not, and the datasheet peaks of known ones."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import warnings
from typing import NamedTuple

import torch

OLDER = ("A torch built for an older CUDA may run there: https://pytorch.org/get-started/locally "
         "offers some.")

_chosen = "auto"  # what the lesson's DEVICE parameter asked for


def device(choice: str | None = None) -> torch.device:
    """The device to compute on; a choice ("auto", "cpu" or "cuda") applies to later calls too.

    "auto" takes a CUDA device that this torch can use; "cpu" forces the recorded view.
    Raises ValueError for another word, RuntimeError for "cuda" where no device can be used.
    """
    global _chosen
    wanted = _chosen if choice is None else choice
    if wanted not in ("auto", "cpu", "cuda"):
        raise ValueError(f'DEVICE: got {wanted!r}, expected "auto", "cpu" or "cuda".')
    reason = unusable()
    if wanted == "cuda" and reason:
        raise RuntimeError(f'DEVICE: got "cuda", but {reason} Set DEVICE = "auto" to see the '
                           "recorded results, or run `dlsys doctor`.")
    _chosen = wanted
    return torch.device("cpu" if reason or wanted == "cpu" else "cuda")


NONE = "torch sees no CUDA device."


@functools.cache
def unusable() -> str:
    """Why no CUDA device can be used, as a sentence; "" if one can.

    Torch warns once per process about a driver that is too old; the warning is caught here.
    """
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return _too_old(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    why = str(said[-1].message).split(". ")[0].split(" (Trig")[0].rstrip(".") if said else ""
    return f"torch can use no CUDA device: {why[:150]}. {OLDER}" if why else NONE


def _too_old(name: str, capability: tuple[int, int]) -> str:
    """Why this torch has no code for a device of that capability; "" if it does."""
    built = torch.cuda.get_arch_list()
    if not built or any(_runs(arch, capability) for arch in built):
        return ""
    major, minor = capability
    return (f"this torch holds no code for {name} (sm_{major}{minor}), only {', '.join(built)}. "
            f"{OLDER}")


def _runs(arch: str, capability: tuple[int, int]) -> bool:
    """Machine code (sm) runs from its own minor version up, PTX (compute) from there on."""
    kind, major, minor = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", arch).groups()
    built = int(major), int(minor)
    return built <= capability and (kind == "compute" or built[0] == capability[0])


def no_compiler() -> str:
    """Why `torch.compile` cannot build a GPU kernel here, as a sentence; "" if it can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; it exists for Linux only."
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "there is no C compiler; triton looks for CC, gcc and clang."
    return ""


def half_dtype(where: torch.device | str) -> torch.dtype:
    """bfloat16, or float16 on a CUDA device that cannot compute bfloat16 natively."""
    on_cuda = torch.device(where).type == "cuda"
    if on_cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16


class Peak(NamedTuple):
    """Datasheet rates of one device: dense, at boost clock. A roof, not a promise."""

    name: str           # as torch reports it
    half_tflops: float  # bf16 and fp16 on tensor cores, TFLOP/s (Turing and Volta: fp16 only)
    fp32_tflops: float  # outside tensor cores, TFLOP/s
    memory_gbs: float   # device memory, GB/s
    source: str

    @property
    def ridge(self) -> float:
        """FLOP/byte where the tensor-core roof meets the memory roof."""
        return self.half_tflops * 1e3 / self.memory_gbs

    @property
    def fp32_ridge(self) -> float:
        """FLOP/byte where the fp32 roof meets the memory roof."""
        return self.fp32_tflops * 1e3 / self.memory_gbs

    def ceiling(self, intensity: float, tensor_cores: bool = True) -> float:
        """TFLOP/s that a step of this many FLOP/byte reaches at most."""
        top = self.half_tflops if tensor_cores else self.fp32_tflops
        return min(top, intensity * self.memory_gbs / 1e3)

    def least_us(self, flops: float, moved: float, tensor_cores: bool = True) -> float:
        """Microseconds that a step takes at least: its FLOPs or its bytes, whichever is slower."""
        rate = self.half_tflops if tensor_cores else self.fp32_tflops
        return max(flops / rate / 1e6, moved / self.memory_gbs / 1e3)


# NVIDIA prints bf16 with 2:4 sparsity for Hopper and Ada; dense is half of that.
PEAKS = {p.name: p for p in (
    Peak("NVIDIA H200", 989.5, 67, 4800, "NVIDIA H200 datasheet, SXM column"),
    Peak("NVIDIA H100 80GB HBM3", 989.5, 67, 3350, "NVIDIA H100 datasheet, SXM column"),
    Peak("NVIDIA H100 PCIe", 756.5, 51, 2000, "NVIDIA H100 datasheet (2022), PCIe column"),
    Peak("NVIDIA H100 NVL", 835.5, 60, 3900, "NVIDIA H100 datasheet, NVL column"),
    Peak("NVIDIA A100-SXM4-80GB", 312, 19.5, 2039, "NVIDIA A100 datasheet, 80GB SXM column"),
    Peak("NVIDIA A100 80GB PCIe", 312, 19.5, 1935, "NVIDIA A100 datasheet, 80GB PCIe column"),
    Peak("NVIDIA A100-SXM4-40GB", 312, 19.5, 1555, "NVIDIA A100 datasheet (2020), SXM column"),
    Peak("NVIDIA A100-PCIE-40GB", 312, 19.5, 1555, "NVIDIA A100 datasheet (2020), PCIe column"),
    Peak("NVIDIA L40S", 362, 91.6, 864, "NVIDIA L40S datasheet"),
    Peak("NVIDIA L4", 121, 30.3, 300, "NVIDIA L4 datasheet"),
    Peak("NVIDIA A10", 125, 31.2, 600, "NVIDIA A10 datasheet"),
    Peak("Tesla T4", 65, 8.1, 320, "NVIDIA T4 datasheet; memory: 256 bit at 10 Gbit/s"),
    Peak("Tesla V100-SXM2-16GB", 125, 15.7, 900, "NVIDIA V100 datasheet, SXM2 column"),
    Peak("Tesla V100-SXM2-32GB", 125, 15.7, 900, "NVIDIA V100 datasheet, SXM2 column"),
)}


def datasheet(device_name: str | None) -> Peak:
    """The peaks to predict from: the device's, or the H200's if there is none or it is unknown."""
    return PEAKS.get(device_name, PEAKS["NVIDIA H200"])
