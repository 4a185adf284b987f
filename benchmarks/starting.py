"""From a set-up to the first cell, what a kernel costs, and several learners at once."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks import machine
from benchmarks.waiting import LESSONS, QUIET, client, seconds_of
from dlsys_helpers.paths import ROOT

sys.path.insert(0, str(ROOT / "tests"))  # the code that starts JupyterLab is in tests/

LESSON = LESSONS[0]
CROWDS = (1, 2, 4)


class Learner(NamedTuple):
    """One learner's waiting times in seconds, and the kernel's memory at its end."""

    ready: float
    first_cell: float
    cells: float
    mib: float


def fresh_setup() -> list[list]:
    """Set up a fresh clone for `make lab`, then for `make test`: seconds and total GB.

    Needs the network, 11 GB and some minutes.
    """
    with tempfile.TemporaryDirectory() as name:
        clone = Path(name, "clone")
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        return [[step, seconds_of(lambda: set_up(clone, *part)), gigabytes(clone / ".venv")]  # noqa: B023
                for step, part in (("make lab, in a fresh clone", ["lab"]),
                                   ("make test after it", []), ("make lab once more", ["lab"]))]


def set_up(clone: Path, *part: str) -> None:
    """Run the first part of a make target, with this Python."""
    subprocess.run(["sh", "tools/setup.sh", *part], cwd=clone, check=True, capture_output=True,
                   env={**os.environ, "PYTHON": sys.executable})


def gigabytes(folder: Path) -> float:
    """The disk space of a folder in GB, as du counts it."""
    done = subprocess.run(["du", "-sk", folder], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0]) * 1024 / 1e9


def first_cell() -> list[list]:
    """The steps from `make lab` until the first cell has run."""
    alone = learner(threading.Barrier(1))
    return [["the set-up, with nothing to do", seconds_of(lambda: subprocess.run(
                ["sh", "tools/setup.sh"], cwd=ROOT, check=True, capture_output=True))],
            ["JupyterLab, until it answers", lab_seconds()],
            ["a kernel, until it is ready", alone.ready],
            ["the first cells of stage 1, which import torch", alone.first_cell]]


def lab_seconds() -> float:
    """Seconds until JupyterLab answers."""
    from browser import running_lab

    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        with running_lab(Path(name), Path(name, "home")):
            return time.perf_counter() - began


def learner(all_done: threading.Barrier) -> Learner:
    """Run stage 1's lesson in a kernel that stays until all learners are done."""
    began, run = time.perf_counter(), client(LESSON)
    with run.setup_kernel(env=QUIET):
        ready = time.perf_counter()
        first = None
        for index, cell in enumerate(run.nb.cells):
            run.execute_cell(cell, index)
            if cell.cell_type == "code" and "import torch" in cell.source:
                first = first or time.perf_counter()
        done = time.perf_counter()
        all_done.wait()
        mib = machine.pss_mib(run.km.provisioner.pid)
        all_done.wait()
    return Learner(ready - began, first - ready, done - ready, mib)


def learners(crowds: tuple[int, ...] = CROWDS) -> list[list]:
    """Learners who run stage 1's lesson at the same moment, each in a separate kernel."""
    rows, alone = [], None
    for n in crowds:
        all_done = threading.Barrier(n)
        with ThreadPoolExecutor(n) as pool:
            found = list(pool.map(lambda _: learner(all_done), range(n)))  # noqa: B023
        slowest = max(each.ready + each.cells for each in found)
        alone = alone or slowest
        mib = statistics.mean(each.mib for each in found)
        fit = int(machine.memory_gib() * 1024 // mib)
        rows.append([n, max(each.ready for each in found), slowest, slowest / alone, round(mib),
                     fit])
    return rows
