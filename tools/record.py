"""Record the GPU measurements of all lessons: `make record`, on a machine with a CUDA device.

Each lesson runs in a process of its own, so that one failure leaves the others alone. Needs torch,
numpy, matplotlib and scikit-learn; neither Jupyter nor an installed package. Where the checkout
carries no git history, say which commit it is: DLSYS_COMMIT=1a2b3c4d5e6f make record
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # a GPU machine need not have the package installed

from dlsys_helpers import gpu  # noqa: E402


def main() -> int:
    """Record everything; returns the exit status."""
    try:
        gpu.device("cuda")
    except RuntimeError:
        return stop("no CUDA device is visible to torch. Run this on a machine with one.")
    commit = os.environ.get("DLSYS_COMMIT") or gpu.commit_here()
    if commit is None:
        return stop("the checkout's commit is unknown. Set DLSYS_COMMIT to its hash.")
    stems = list(dict.fromkeys(entry["notebook"] for entry in gpu.evidence()))
    failed = [stem for stem in stems if record(stem, commit) != 0]
    left = report()
    if failed or left:
        return stop(f"failed: {', '.join(failed + left)}. The reason stands above.")
    return 0


def report() -> list[str]:
    """Print the state of every measurement; returns the keys without a fresh record."""
    entries = gpu.evidence()
    for entry in entries:
        print(f"{entry['state']:9} {entry['key']}")
    return [entry["key"] for entry in entries if entry["state"] != "recorded"]


def stop(reason: str) -> int:
    print(f"record: {reason}", file=sys.stderr)
    return 1


def record(stem: str, commit: str) -> int:
    """Run the setup and GPU cells of one lesson; returns the exit status."""
    print(f"== {stem}", flush=True)
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "DLSYS_RECORD": "1", "DLSYS_COMMIT": commit, "PYTHONPATH": path}
    return subprocess.run([sys.executable, str(ROOT / "tools" / "run_cells.py"),
                           str(ROOT / "notebooks" / f"{stem}.ipynb"), "--roles", "setup", "gpu"],
                          env=env, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
