"""Compare a lesson in nbclient with the same cells as a plain script, and measure start-up."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient

from dlsys_helpers.paths import EXERCISES, NOTEBOOKS, ROOT, SOLUTIONS

QUIET = {**os.environ, "DLSYS_PROGRESS": "off", "MPLBACKEND": "Agg"}
PLAIN = """
import json, os, sys, time
from tools.run_cells import run_cell
cells = [c for c in json.load(open(sys.argv[1]))["cells"] if c["cell_type"] == "code"]
names, began, cpu = {"__name__": "__main__"}, time.perf_counter(), sum(os.times()[:4])
for n, cell in enumerate(cells):
    run_cell("".join(cell["source"]), f"<cell {n}>", names)
print("seconds", time.perf_counter() - began, sum(os.times()[:4]) - cpu)
"""


def client(path: Path) -> NotebookClient:
    return NotebookClient(nbformat.read(path, as_version=4), timeout=600,
                          extra_arguments=["--IPKernelApp.log_level=ERROR"],
                          resources={"metadata": {"path": str(NOTEBOOKS)}})


def through_nbclient(path: Path) -> tuple[float, float, float]:
    """Seconds for kernel start, for all cells after it, and the cells' CPU seconds.

    The CPU time covers the kernel and the client, which handles every output.
    """
    began, run = time.perf_counter(), client(path)
    cpu = -time.process_time()
    with run.setup_kernel(env=QUIET):
        cpu -= kernel_cpu(run)
        started = time.perf_counter()
        for index, cell in enumerate(run.nb.cells):
            run.execute_cell(cell, index)
        done = time.perf_counter()
        return started - began, done - started, cpu + kernel_cpu(run) + time.process_time()


def kernel_cpu(run: NotebookClient) -> float:
    """CPU seconds of the kernel and of the children that it has waited for."""
    return sum(psutil.Process(run.km.provisioner.pid).cpu_times()[:4])


def plain_script(path: Path) -> tuple[float, float]:
    """Seconds and CPU seconds for the same cells in one process, without its start."""
    done = subprocess.run([sys.executable, "-c", PLAIN, str(path)], cwd=ROOT, env=QUIET,
                          capture_output=True, text=True, check=True)
    seconds, cpu = map(float, done.stdout.split()[-2:])
    return seconds, cpu


def lesson_ratio(path: Path) -> list[float]:
    """Kernel start, cells through nbclient, as a script, their ratio, and the ratio by CPU time."""
    start, seconds, cpu = through_nbclient(path)
    plain, plain_cpu = plain_script(path)
    return [start, seconds, plain, seconds / plain, cpu / plain_cpu]


def lessons() -> list[list]:
    """Each lesson through nbclient against the same cells as a script, in turn."""
    rows = []
    for path in LESSONS:
        rows.append([path.stem, *lesson_ratio(path)])
        print(rows[-1], flush=True)
    return rows


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def check_latency(rounds: int = 5) -> dict[str, dict[str, float]]:
    """Milliseconds of one check as a learner runs it: a right answer, and the slowest wrong one."""
    from dlsys_checks import checking, registry
    found = {}
    for path in sorted(SOLUTIONS.glob("[0-9]*.ipynb")):
        cells = [c for c in json.loads(path.read_text("utf-8"))["cells"]
                 if c["cell_type"] == "code" and c["metadata"]["dlsys"]["role"] != "check"]
        names: dict = {}
        exec("\n".join("".join(c["source"]) for c in cells), names)
        for id, exercise in registry.load_all().items():
            if id[:2] != path.stem[:2]:
                continue
            good = [seconds_of(lambda e=exercise, n=names: checking.run_check(e.id, n[e.function]))
                    for _ in range(rounds)]
            wrong = [seconds_of(lambda e=exercise, w=w: checking.run_check(e.id, w.fn))
                     for w in exercise.wrong_answers]
            found[id] = {"right ms": 1e3 * statistics.median(good), "wrong ms": 1e3 * max(wrong)}
    return found


def checks() -> list[list]:
    """The results of check_latency as rows."""
    return [[id, *found.values()] for id, found in check_latency().items()]


def building() -> list[list]:
    """What a contributor waits for."""
    return [["make build, nothing changed", command_seconds("-m", "tools.build")],
            ["make book", command_seconds("-m", "tools.book")]]


def command_seconds(*command: str) -> float:
    """Seconds of one command as a whole process. Raises CalledProcessError when it fails."""
    return seconds_of(lambda: subprocess.run([sys.executable, *command], cwd=ROOT, env=QUIET,
                                             capture_output=True, check=True))


LESSONS = sorted(p for p in NOTEBOOKS.glob("[0-9]*.ipynb") if (EXERCISES / p.name).exists())
