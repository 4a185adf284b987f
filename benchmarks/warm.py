"""Ordinary and warm kernels side by side: seconds until ready, and memory, for 1, 4 and 10 of them.

python -m benchmarks.warm [--kernels 1 4 10]

A kernel is ready once it has imported what every lesson imports. Writes benchmarks/WARM.md.
"""

import argparse
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

from jupyter_client import KernelManager

from benchmarks import machine
from benchmarks.machine import processor, pss
from benchmarks.page import table
from dlsys_helpers.paths import ROOT
from dlsys_warm import server_address

TARGET = ROOT / "benchmarks" / "WARM.md"
IMPORTS = "import torch, torchvision, matplotlib.pyplot, ipywidgets"
WAYS = {"ordinary": "local-provisioner", "warm": "dlsys-warm"}
PATIENCE = 600


class Kernel:
    """A kernel with its imports done; ``seconds`` is how long they took."""

    def __init__(self, way: str) -> None:
        began = time.monotonic()
        self.manager = KernelManager(kernel_name="python3")
        self.manager.kernel_spec.metadata["kernel_provisioner"] = {"provisioner_name": WAYS[way]}
        self.manager.start_kernel(extra_arguments=["--IPKernelApp.log_level=ERROR"])
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)
        done = self.client.execute(IMPORTS, reply=True, timeout=PATIENCE)
        if done["content"]["status"] != "ok":
            raise RuntimeError(f"{way}: {done['content']['evalue']}")
        self.seconds = time.monotonic() - began
        self.pid = self.manager.provisioner.pid

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def of_status(pid: int, name: str) -> int:
    return int(re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.M)[1])


def measured(way: str, number: int) -> tuple[float, float, float]:
    """Seconds until the slowest kernel is ready, GB of all, and MB of one without the server."""
    with ExitStack() as kernels, ThreadPoolExecutor(number) as pool:
        began = time.monotonic()
        started = list(pool.map(lambda _: kernels.enter_context(closing(Kernel(way))),
                                range(number)))
        seconds = time.monotonic() - began
        pids = {kernel.pid for kernel in started}
        parents = {of_status(pid, "PPid") for pid in pids} - {os.getpid()}  # the warm server
        return seconds, pss(pids | parents) / 1e9, pss(pids) / 1e6 / number


def stop_servers() -> None:
    """End the warm servers of this environment, so that the first kernel bears the start-up."""
    path = server_address.folder() / f"{server_address.name_of((), os.environ)}.socket"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(path).encode() in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGTERM)
        except OSError:
            continue


def page(rows: list[list[float]], first: float, run: dict[str, str]) -> str:
    """The result; a row has kernels, seconds and ratio, GB and ratio, MB of each."""
    return "\n".join([
        "# Ordinary and warm kernels\n",
        f"Measured {run['date']} on {os.cpu_count()} cores of {processor()}, load {run['load']} "
        "before it began. The kernels of a row start at the same moment. A kernel is ready "
        "when it has imported torch, torchvision, pyplot and ipywidgets. Memory counts a "
        "shared page once and includes the warm process. The first warm kernel also started "
        f"the warm process: {first:.1f} s.\n",
        table(["kernels", "ordinary, s", "warm, s", "ratio", "ordinary, GB", "warm, GB", "ratio",
               "each ordinary one, MB", "each warm one, MB"], rows), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, nargs="+", default=[1, 4, 10])
    numbers, run = parser.parse_args().kernels, machine.describe()
    stop_servers()
    with closing(Kernel("warm")) as kernel:  # starts the server
        first = kernel.seconds
    rows = []
    for number in numbers:
        cold, warm = measured("ordinary", number), measured("warm", number)
        rows.append([number, *(value for pair in zip(cold[:2], warm[:2], strict=True)
                               for value in (*pair, pair[1] / pair[0])), cold[2], warm[2]])
        print(rows[-1], flush=True)
    stop_servers()
    TARGET.write_text(page(rows, first, run), "utf-8")
    print(f"written: {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
