"""Triton kernels compiled for devices that are not here: registers, spills, instructions.

ptxas and cuobjdump come with triton's wheel, which exists for Linux. Where TRITON_INTERPRET is
set, this process cannot compile, so a separate process does.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HEAD = "import triton\nimport triton.language as tl\n\n"
TENSOR_CORES = ("HMMA", "HGMMA")  # SASS of a product on tensor cores: up to sm_89, and sm_90
SPILLS = ("LDL", "STL")           # reads and writes of local memory, where registers spill


class Compiled(NamedTuple):
    """A kernel's machine code for one device, read but not run."""

    capability: int     # 75, 80 or 90
    registers: int      # for each thread
    shared: int         # bytes for each block
    spills: int         # instructions that read or write spilled registers
    tensor_cores: int   # instructions on tensor cores
    fp32: int           # FFMA, multiply-adds outside of them


class Multiprocessor(NamedTuple):
    """What the blocks on one multiprocessor share."""

    warps: int
    registers: int
    shared: int  # bytes
    blocks: int


# CUDA C++ Programming Guide, technical specifications by compute capability.
LIMITS = {75: Multiprocessor(32, 65536, 64 * 1024, 16),
          80: Multiprocessor(64, 65536, 164 * 1024, 32),
          90: Multiprocessor(64, 65536, 228 * 1024, 32)}

# A stub for triton and tl where triton is not installed, and the results of lesson 8's cells there.
absent = type("absent", (), {"jit": staticmethod(lambda fn: fn), "constexpr": int})
RECORDED = {"gaps": {"all five laws": 3e-6}, "guards": {False: 28, True: 0}, "flash": [
    Compiled(75, 255, 32768, 901, 0, 4104), Compiled(80, 180, 24576, 0, 64, 2),
    Compiled(90, 128, 40960, 0, 8, 2)]}


def recorded(name: str) -> Any:
    """Return the recorded value and print where it was recorded."""
    print("triton is not installed; it exists for Linux. Recorded there with 3.8.0, 2026-11-22:")
    return RECORDED[name]


def occupancy(code: Compiled, warps: int) -> float:
    """Share of a multiprocessor's warps that blocks of `warps` warps can fill.

    A warp gets registers 256 at a time, separately in each quarter of a multiprocessor, and shared
    memory 128 bytes at a time, 256 on sm_75. On sm_80 and later a block takes one KiB more than it
    asks for. Source: cuda_occupancy.h of the CUDA Toolkit.
    """
    limit = LIMITS[code.capability]
    each = math.ceil(code.registers * 32 / 256) * 256
    step = 128 if code.capability >= 80 else 256
    shared = math.ceil(code.shared / step) * step + 1024 * (code.capability >= 80)
    blocks = [limit.warps // warps, limit.registers // 4 // each * 4 // warps, limit.blocks]
    blocks += [limit.shared // shared] if shared else []
    return min(blocks) * warps / limit.warps


def compiled(*functions: Any, signature: Mapping[str, str], constants: Mapping[str, Any],
             capabilities: Sequence[int] = (75, 80, 90), warps: int = 4) -> list[Compiled]:
    """The last of these @triton.jit functions, compiled; those before it are what it calls.

    signature: type of each argument, "*fp16" or "i32"; constants: the tl.constexpr ones.
    Raises RuntimeError with what the compiler said.
    """
    source = HEAD + "\n\n".join(inspect.getsource(f.fn) for f in functions)
    order = {"source": source, "name": functions[-1].__name__, "signature": dict(signature),
             "constants": dict(constants), "capabilities": list(capabilities), "warps": warps}
    away = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-m", __name__], input=json.dumps(order), text=True,
                          capture_output=True, env=away)
    if done.returncode:
        raise RuntimeError(f"the kernel does not compile: {done.stderr.strip()[-300:]}")
    return [Compiled(*row) for row in json.loads(done.stdout)]


def _compile_all(order: dict) -> list[Compiled]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.py"
        path.write_text(order["source"], "utf-8")
        space: dict[str, Any] = {"__name__": "kernel"}
        exec(compile(order["source"], str(path), "exec"), space)
        return [_compile(space[order["name"]], order, capability, folder)
                for capability in order["capabilities"]]


def _compile(kernel: Any, order: dict, capability: int, folder: str) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    types = order["signature"] | dict.fromkeys(order["constants"], "constexpr")
    types = {name: types[name] for name in kernel.arg_names}
    aligned = {(n,): [["tt.divisibility", 16]] for n, kind in enumerate(types.values())
               if kind.startswith("*")}
    made = triton.compile(ASTSource(kernel, types, constexprs=order["constants"], attrs=aligned),
                          target=GPUTarget("cuda", capability, 32),
                          options={"num_warps": order["warps"], "num_stages": 2})
    cubin = Path(folder) / f"{capability}.cubin"
    cubin.write_bytes(made.asm["cubin"])
    found = Counter(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_]*)",
                               _read(triton, "-sass", cubin)))
    registers = re.search(r"REG:(\d+)", _read(triton, "-res-usage", cubin))[1]
    return Compiled(capability, int(registers), made.metadata.shared,
                    sum(found[name] for name in SPILLS),
                    sum(found[name] for name in TENSOR_CORES), found["FFMA"])


def _read(triton: Any, what: str, cubin: Path) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return subprocess.run([tool, what, cubin], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    print(json.dumps(_compile_all(json.load(sys.stdin))))
