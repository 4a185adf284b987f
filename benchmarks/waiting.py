"""A lesson through nbclient against the same cells as a plain script, and what starting costs."""

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
from nbclient import NotebookClient

from dlsys_helpers.paths import EXERCISES, NOTEBOOKS, ROOT, SOLUTIONS

QUIET = {**os.environ, "DLSYS_PROGRESS": "off", "MPLBACKEND": "Agg"}
PLAIN = """
import json, sys, time
from tools.run_cells import run_cell
cells = [c for c in json.load(open(sys.argv[1]))["cells"] if c["cell_type"] == "code"]
names, began = {"__name__": "__main__"}, time.perf_counter()
for n, cell in enumerate(cells):
    run_cell("".join(cell["source"]), f"<cell {n}>", names)
print("seconds", time.perf_counter() - began)
"""


def client(path: Path) -> NotebookClient:
    return NotebookClient(nbformat.read(path, as_version=4), timeout=600,
                          extra_arguments=["--IPKernelApp.log_level=ERROR"],
                          resources={"metadata": {"path": str(NOTEBOOKS)}})


def through_nbclient(path: Path) -> tuple[float, float]:
    """Seconds for kernel start, and for all cells after it."""
    began, run = time.perf_counter(), client(path)
    with run.setup_kernel(env=QUIET):
        started = time.perf_counter()
        for index, cell in enumerate(run.nb.cells):
            run.execute_cell(cell, index)
        return started - began, time.perf_counter() - started


def plain_script(path: Path) -> float:
    """Seconds for the same cells in one Python process, interpreter start not counted."""
    done = subprocess.run([sys.executable, "-c", PLAIN, str(path)], cwd=ROOT, env=QUIET,
                          capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def lesson_ratio(path: Path, rounds: int = 3) -> dict[str, float]:
    """Median seconds of both ways, taken in turn, their ratio, and the kernel's start."""
    starts, nb, plain = [], [], []
    for _ in range(rounds):
        start, cells = through_nbclient(path)
        starts.append(start)
        nb.append(cells)
        plain.append(plain_script(path))
    return {"kernel start s": statistics.median(starts), "nbclient s": statistics.median(nb),
            "script s": statistics.median(plain),
            "ratio": statistics.median(a / b for a, b in zip(nb, plain, strict=True))}


def lessons(rounds: int = 1) -> list[list]:
    """Each lesson through nbclient against the same cells as a script."""
    rows = []
    for path in LESSONS:
        rows.append([path.stem, *lesson_ratio(path, rounds).values()])
        print(*rows[-1], flush=True)
    return rows


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def check_latency(rounds: int = 5) -> dict[str, dict[str, float]]:
    """Milliseconds of one check as a learner runs it: a right answer, and the slowest wrong one."""
    from dlsys_helpers import checking
    found = {}
    for path in sorted(SOLUTIONS.glob("[0-9]*.ipynb")):
        cells = [c for c in json.loads(path.read_text("utf-8"))["cells"]
                 if c["cell_type"] == "code" and c["metadata"]["dlsys"]["role"] != "check"]
        names: dict = {}
        exec("\n".join("".join(c["source"]) for c in cells), names)
        for id, exercise in checking.load_all().items():
            if id[:2] != path.stem[:2]:
                continue
            good = [seconds_of(lambda e=exercise, n=names: checking.run_check(e.id, n[e.function]))
                    for _ in range(rounds)]
            wrong = [seconds_of(lambda e=exercise, w=w: checking.run_check(e.id, w.fn))
                     for w in exercise.wrong_answers]
            found[id] = {"right ms": 1e3 * statistics.median(good), "wrong ms": 1e3 * max(wrong)}
    return found


def checks() -> list[list]:
    """Each check, as check_latency says, in rows."""
    return [[id, *found.values()] for id, found in check_latency().items()]


def building() -> list[list]:
    """What a contributor waits for."""
    return [["make build, nothing changed", command_seconds("-m", "tools.build", "--quick")],
            ["make book", command_seconds("-m", "tools.book")]]


def command_seconds(*command: str) -> float:
    """Seconds of one command as a whole process. Raises CalledProcessError when it fails."""
    return seconds_of(lambda: subprocess.run([sys.executable, *command], cwd=ROOT, env=QUIET,
                                             capture_output=True, check=True))


LESSONS = sorted(p for p in NOTEBOOKS.glob("[0-9]*.ipynb") if (EXERCISES / p.name).exists())
