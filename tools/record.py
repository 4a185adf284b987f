"""Record the GPU measurements of all lessons: `make record`, on a machine with a CUDA device.

    python3 -m tools.record       needs torch, numpy, matplotlib and scikit-learn; no Jupyter, no
                                  network, no installed package

Each lesson runs in a separate process, so that one failure leaves the others alone. After all its
cells, this writes each measurement that ran to its end and confirms all claims on it, and names the
others with the reason. If the checkout has no git history, name its commit:
DLSYS_COMMIT=1a2b3c4d5e6f make record
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from dlsys_helpers import gpu, gpu_records
from tools import gpu_evidence
from tools.run_cells import run_cells

ROOT = Path(__file__).resolve().parents[1]


def main(stems: list[str]) -> int:
    """Record one lesson in this process, or each in a separate one; returns the exit status."""
    if gpu.unusable():
        return stop(gpu.unusable())
    commit = os.environ.get("DLSYS_COMMIT") or commit_here()
    if commit is None:
        return stop("the checkout's commit is unknown. Set DLSYS_COMMIT to its hash.")
    gpu_evidence.check_provenance(origin(commit))  # before we measure anything
    if stems:
        return write_all(stems[0], commit)
    declared = dict.fromkeys(entry["notebook"] for entry in gpu_evidence.evidence())
    failed = [stem for stem in declared if run(stem, commit) != 0]
    left = report()
    if failed or left:
        return stop(f"failed: {', '.join(failed + left)}. The reason stands above.")
    return 0


def run(stem: str, commit: str) -> int:
    """Record one lesson in a separate process; returns its exit status."""
    print(f"== {stem}", flush=True)
    env = {**os.environ, "DLSYS_COMMIT": commit, "MPLBACKEND": "Agg"}
    return subprocess.run([sys.executable, "-m", "tools.record", stem], cwd=ROOT, env=env,
                          check=False).returncode


def write_all(stem: str, commit: str) -> int:
    """Run the setup and GPU cells of one lesson, write the records; returns the exit status."""
    names = run_cells(gpu_evidence.NOTEBOOKS / f"{stem}.ipynb", roles=("setup", "gpu"))
    tables = [v for v in names.values() if isinstance(v, gpu_records.GpuTable)]
    results = [v for v in names.values() if isinstance(v, gpu_records.GpuResult)]
    wrong = {v.key: wrongs(v, tables) for v in results}
    for result in results:
        if wrong[result.key]:
            print(f"{result.key} is not written. {'; '.join(wrong[result.key])}", file=sys.stderr)
        else:
            write_record({"key": result.key, "source": result.source,
                          "columns": list(result.columns), "provenance": origin(commit),
                          "rows": result.rows})
    return int(any(wrong.values()))


def wrongs(result: gpu_records.GpuResult, tables: list[gpu_records.GpuTable]) -> list[str]:
    """Why a measurement is not recorded: an error stopped it, or it contradicts claims."""
    found = [text for table in tables for text in table.failures(result.key)]
    return [result.trouble, *found] if result.trouble else found


def write_record(record: dict[str, Any]) -> None:
    """Validate a record and write it, whole or not at all."""
    gpu_evidence.validate_record(record)
    path = gpu_records.record_path(record["key"])
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", "utf-8")
    part.replace(path)


def origin(commit: str) -> dict[str, Any]:
    """The provenance of a record: the machine, and the commit of the lessons."""
    return {**gpu_records.provenance(), "commit": commit.removesuffix("-dirty"),
            "dirty": commit.endswith("-dirty")}


def commit_here() -> str | None:
    """The checkout's commit, with "-dirty" after it if anything except records has changed."""
    commit = gpu_records.output("git", "rev-parse", "--short=12", "HEAD", cwd=ROOT)
    changes = gpu_records.output("git", "status", "--porcelain", "--", ".",
                                 f":(exclude){gpu_records.RECORDED}", cwd=ROOT)
    return f"{commit}-dirty" if commit and changes else commit


def report() -> list[str]:
    """Print the state of every measurement; returns the keys without a fresh record."""
    entries = gpu_evidence.evidence()
    for entry in entries:
        print(f"{entry['state']:9} {entry['key']}")
    return [entry["key"] for entry in entries if entry["state"] != "recorded"]


def stop(reason: str) -> int:
    print(f"record: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
