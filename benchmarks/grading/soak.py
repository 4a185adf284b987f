"""Grade a thousand submissions, some of them hostile, kill the grader twice, and count.

    python -m benchmarks.grading.soak [N]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.grading import samples

HOSTILE = ("import os; os._exit(0)", "import ctypes; ctypes.string_at(0)", "x = bytearray(9 << 30)",
           "import os\nfor _ in range(100):\n    if os.fork() == 0: os._exit(0)",
           "import sys; sys.exit(0)", "print('x' * 10**7)")


def hand_in(folder: Path, n: int) -> None:
    """n submissions; every 20th has a hostile cell, every 50th is no notebook at all."""
    samples.write(folder, n)
    for k in range(0, n, 20):
        path = folder / f"learner{k:04d}.ipynb"
        notebook = json.loads(path.read_text())
        source = HOSTILE[k // 20 % len(HOSTILE)]
        notebook["cells"].append({"cell_type": "code", "metadata": {}, "outputs": [],
                                  "execution_count": None, "source": source})
        path.write_text(json.dumps(notebook))
    for k in range(7, n, 50):
        (folder / f"learner{k:04d}.ipynb").write_bytes(b'{"cells": [')


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name, "in"), Path(name, "out")
        hand_in(folder, n)
        command = [sys.executable, "-m", "dlsys.cli", "grade", str(folder), "--out",
                   str(out)]
        started = time.perf_counter()
        for kill_at in (n // 3, 2 * n // 3):
            _until(command, out, kill_at)
            command += [] if "--resume" in command else ["--resume"]
        print(subprocess.run(command, capture_output=True, text=True).stdout[-1200:])
        elapsed = time.perf_counter() - started
        _report(out, n, elapsed)


def _until(command: list[str], out: Path, n: int) -> None:
    """Run the grader and kill it, workers and all, once n results are in its journal."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    while process.poll() is None and _lines(out) < n:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _lines(out: Path) -> int:
    path = out / "journal.jsonl"
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


def _report(out: Path, n: int, elapsed: float) -> None:
    results = json.loads((out / "grades.json").read_text())["results"]
    names = Counter(json.loads(line)["name"]
                    for line in (out / "journal.jsonl").read_text().splitlines()[1:])
    graded = [r for r in results if r["status"] == "graded"]
    print(f"{len(results)} of {n} results, {len(graded)} graded, "
          f"{sum(count > 1 for count in names.values())} graded twice, in {elapsed:.0f} s "
          f"({60 * n / elapsed:.0f}/min, three starts included)")
    print(f"CPU s each: {sum(r['cpu_seconds'] for r in graded) / len(graded):.3f}; peak of a "
          f"sandbox {max(r['peak_mib'] for r in graded)} MiB, of a judge "
          f"{max(r['judge_peak_mib'] for r in graded)} MiB")
    print(Counter(r["status"] for r in results), Counter(r["points"] for r in graded))


if __name__ == "__main__":
    main()
