"""Run every claim of the lessons over five seeds, with one and with two threads.

    python -m tools.sweep            all lessons; writes tests/records/sweep.json
    python -m tools.sweep 01         one lesson; the others keep their record
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlsys_helpers.paths import NOTEBOOKS, ROOT

RECORD = ROOT / "tests" / "records" / "sweep.json"
SEEDS, THREADS = range(5), (1, 2)
VERSIONS = ("torch", "torchvision", "numpy", "scikit-learn", "jax")


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def source_hash(path: Path) -> str:
    """Fingerprint of a lesson's code: prose may change without a new sweep."""
    code = "\0".join("".join(cell["source"]) for cell in code_cells(path))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def run_here(path: Path, seed: int, threads: int) -> list[dict[str, Any]]:
    """The claims of one run in this process, failed ones included."""
    from dlsys_helpers import claims
    from tools.run_cells import run_cell
    names: dict[str, Any] = {"__name__": "__main__"}
    for n, cell in enumerate(code_cells(path)):
        source = "".join(cell["source"])
        if "parameters" in cell["metadata"].get("tags", []):
            source = f'SEED, THREADS, DEVICE = {seed}, {threads}, "cpu"'
        try:
            run_cell(source, f"<{path.stem} cell {n}>", names)
        except claims.ClaimFailed as failed:
            print(failed, file=sys.stderr)
    return [claim._asdict() for claim in claims.LOG]


def run(path: Path, seed: int, threads: int) -> list[dict[str, Any]]:
    """The claims of one run in a process of its own. Raises SystemExit when a cell fails."""
    command = [sys.executable, "-m", "tools.sweep", "--one", str(path), str(seed), str(threads)]
    # A thread that waits must sleep: on shared cores, spinning makes a run ten times as long.
    env = {**os.environ, "MPLBACKEND": "Agg", "DLSYS_PROGRESS": "off",
           "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{path.stem}, seed {seed}, {threads} threads: a cell failed.\n"
                         f"{done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def sweep(path: Path) -> dict[str, Any]:
    """The record of one lesson: for each claim its bound and the range of values seen."""
    seen: dict[str, dict[str, Any]] = {}
    failed = []
    for seed in SEEDS:
        for threads in THREADS:
            for claim in run(path, seed, threads):
                entry = seen.setdefault(claim["text"], {"bound": claim["bound"], "values": []})
                entry["values"].append(claim["value"])
                if not claim["holds"]:
                    failed.append(f"{claim['text']}: {claim['value']:.6g} at seed {seed}, "
                                  f"{threads} threads; expected {claim['bound']}")
            print(f"{path.stem}: seed {seed}, {threads} threads", flush=True)
    claims = {text: {"bound": e["bound"], "least": min(e["values"]), "most": max(e["values"]),
                     "runs": len(e["values"])} for text, e in seen.items()}
    return {"source": source_hash(path), "seeds": list(SEEDS), "threads": list(THREADS),
            "date": datetime.now(UTC).date().isoformat(),
            "versions": {name: importlib.metadata.version(name) for name in VERSIONS},
            "failed": failed, "claims": claims}


def stored() -> dict[str, Any]:
    """The record of all lessons swept so far."""
    return json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}


def keep(stem: str, entry: dict[str, Any]) -> None:
    """Add one lesson's record, read anew: another sweep may have written meanwhile."""
    RECORD.parent.mkdir(exist_ok=True)
    text = json.dumps({**stored(), stem: entry}, indent=1, sort_keys=True) + "\n"
    RECORD.write_text(text, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lesson", nargs="*", help="numbers of lessons; all when absent")
    parser.add_argument("--one", nargs=3, metavar=("NOTEBOOK", "SEED", "THREADS"),
                        help="one run in this process; prints its claims as JSON")
    args = parser.parse_args()
    if args.one:
        path, seed, threads = args.one
        print(json.dumps(run_here(Path(path), int(seed), int(threads))))
        return
    wanted = {number.zfill(2) for number in args.lesson}
    for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")):
        if not path.stem.startswith("00") and (not wanted or path.stem[:2] in wanted):
            keep(path.stem, sweep(path))
    failures = [line for entry in stored().values() for line in entry["failed"]]
    sys.exit("claims that do not hold:\n" + "\n".join(failures) if failures else 0)


if __name__ == "__main__":
    main()
