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
from typing import Any

from benchmarks import machine
from benchmarks.grading import samples

TARGET = Path(__file__).with_name("SOAK.md")
HOSTILE = ("import os; os._exit(0)", "import ctypes; ctypes.string_at(0)", "x = bytearray(9 << 30)",
           "import os\nfor _ in range(100):\n    if os.fork() == 0: os._exit(0)",
           "import sys; sys.exit(0)", "print('x' * 10**7)")


def hand_in(folder: Path, n: int) -> None:
    """n submissions; every 20th has a hostile cell, every 50th is not a notebook."""
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
    run = machine.describe()
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
        facts = measurements(out, n, time.perf_counter() - started)
    TARGET.write_text(report(facts, run), encoding="utf-8")
    print(TARGET.read_text(encoding="utf-8"))


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


def measurements(out: Path, n: int, elapsed: float) -> dict[str, Any]:
    """The counts from the record and the journal of a run over n submissions."""
    results = json.loads((out / "grades.json").read_text())["results"]
    names = Counter(json.loads(line)["name"]
                    for line in (out / "journal.jsonl").read_text().splitlines()[1:])
    graded = [r for r in results if r["status"] == "graded"]
    return {"n": n, "results": len(results), "graded": len(graded), "elapsed": elapsed,
            "twice": sum(count > 1 for count in names.values()),
            "cpu": sum(r["cpu_seconds"] for r in graded) / len(graded),
            "sandbox": max(r["peak_mib"] for r in graded),
            "judge": max(r["judge_peak_mib"] for r in graded),
            "statuses": Counter(r["status"] for r in results),
            "points": Counter(r["points"] for r in graded)}


def report(facts: dict[str, Any], run: dict[str, str]) -> str:
    """The page: the results of the submissions, and whether any was lost or doubled."""
    statuses = ", ".join(f"{n} {name}" for name, n in sorted(facts["statuses"].items()))
    points = ", ".join(f"{n} with {p:g}" for p, n in sorted(facts["points"].items()))
    lost = facts["n"] - facts["results"]
    return "\n".join([
        "# A class of a thousand, killed twice\n",
        f"{facts['n']} submissions of stage 1's worksheet, every 20th with a hostile cell, "
        "every 50th not a notebook. `dlsys grade` and all its workers were killed after a "
        "third and after "
        "two thirds of the results, and went on with `--resume`. "
        f"{run['date']}, load {run['load']}, on {run['machine']}.\n",
        f"- Lost: {lost}. Graded twice: {facts['twice']}.",
        f"- {facts['results']} results: {statuses}. Points: {points}.",
        f"- {facts['elapsed']:.0f} s, three starts included: "
        f"{60 * facts['n'] / facts['elapsed']:.0f} submissions a minute.",
        f"- {facts['cpu']:.3f} CPU s for each graded submission; at most {facts['sandbox']} MiB in "
        f"a sandbox and {facts['judge']} MiB in a judge."]) + "\n"


if __name__ == "__main__":
    main()
