"""Run whole lessons under the watch, and record the cells in which it speaks.

    .venv/bin/python -m benchmarks.watch_lessons [NN ...]    those whose record is stale

A lesson's cells run one after the other in one process, as they would in a notebook.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
import traceback
import types
from pathlib import Path

from tools import fingerprints, install_cell
from tools.watch_record import LESSONS

ROOT = Path(__file__).resolve().parents[1]
WATCH = ROOT / "src" / "dlsys_watch"
READS = re.compile(r'^    reads = ".*"$', re.M)   # how the list of rules describes one
OUTSIDE = {"__main__.py", "baseline.py", "command.py", "formats.py", "lightning.py",
           "pytest_plugin.py", "transformers.py"}

# Cells that run broken code again although they are not `break` cells: (cell, rule) -> why.
ON_PURPOSE: dict[tuple[str, str], str] = {
    ("01-2-more-4", "sigmoid-twice"): "a sigmoid before each of the two losses, side by side",
    ("01-4-more-8", "loss-not-a-number"): "a run at learning rate 100, until it is NaN",
    ("03-1-look-4", "softmax-twice"): "the curve of a second softmax, beside that of one",
    ("04-concept-31", "rate-collapsed"): "the rates of a family of schedules, drawn to their ends",
    ("05-5-look-1", "bn-never-fed"): "the broken average is scored",
    ("06-6-look-4", "uint8-wraps"): "a picture of what wraps around",
    ("06-10-more-9", "same-rows-from-workers"): "a validation loader that counts each row twice",
    ("07-9-repair-1", "reshape-for-permute"): "reshape beside permute, on twelve numbers",
    ("07-9-more-1", "reshape-for-permute"): "claims about those twelve numbers",
    ("08-concept-21", "no-causal-mask"): "the block that 08.1's broken run calls without a mask",
    ("08-12-more-1", "untied"): "a model loaded with assign=True, to compare its parameters",
    ("10-concept-12", "nothing-loaded"): "the helper through which 10.5's broken load runs",
    ("12-6-folklore-1", "sum-keeps-graphs"): "a running sum of losses, to count what it holds",
    ("12-11-repair-2", "smoothing-over-inf"): "smoothing over masked classes, with a guard",
    ("15-4-more-1", "weight-by-itself"): "a softmax over the one chosen, to compare its gradient",
    ("15-6-more-1", "checkpoint-redraws"): "the flag set to False, to compare the gradients",
    ("15-8-look-1", "no-causal-mask"): "a loss whose bytes are counted; nothing is trained on it",
}


def lessons() -> dict[str, Path]:
    """Number of a stage -> its lesson, built."""
    return {path.name[:2]: path for path in sorted((ROOT / "notebooks").glob("[01]?_*.ipynb"))
            if path.name[:2] != "00"}


def cells(path: Path) -> list[tuple[str, str]]:
    """(name, source) of a lesson's code cells; a name is trap, role and number: 05-1-look-2.

    The cell that installs the course is left out; no lesson depends on it.
    """
    counts, found = {}, []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code" or install_cell.is_install(cell):
            continue
        marks = cell["metadata"].get("dlsys", {})
        stem = f"{marks.get('trap', path.name[:2]).replace('.', '-')}-{marks.get('role', 'cell')}"
        counts[stem] = counts.get(stem, 0) + 1
        found.append((f"{stem}-{counts[stem]}", "".join(cell["source"])))
    return found


def watch_digest() -> str:
    """A hash of the watch's code, with the messages, as records contain them, without `reads`.

    Modules that only ask for findings, or pass them on, are left out.
    """
    watch = [path for path in sorted(WATCH.rglob("*.py")) if path.name not in OUTSIDE]
    return fingerprints.fingerprint("\0".join(
        fingerprints.essence(READS.sub("", path.read_text("utf-8"))) for path in watch))


def rests_on(number: str) -> dict[str, str]:
    """What a lesson's findings depend on: its cells and helpers, the packages, the watch."""
    named = dict(cells(lessons()[number]))
    return {"dlsys_watch": watch_digest(),
            **fingerprints.rests_on({f"cell {name}": source for name, source in named.items()})}


def stale(number: str) -> str:
    """Why the findings of a lesson no longer count, with the command; "" while they do."""
    return LESSONS.stale(number, rests_on(number))


def run(number: str) -> dict:
    """Findings of one lesson, and the cells and rules that failed; in this process."""
    import matplotlib

    import dlsys_watch
    from dlsys_watch import places

    matplotlib.use("Agg")
    places.LIBRARIES += (str(ROOT / "src") + os.sep,)   # a helper acts for the cell that calls it
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    watching, failed = dlsys_watch.watching(), {}
    with watching as findings, tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, source in cells(lessons()[number]):
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(source, name, "exec"), main.__dict__)
            except Exception:
                failed[name] = traceback.format_exc(limit=-1)[-300:]
        os.chdir(ROOT)
    rows = [{"rule": f.rule, "trap": f.trap, "cell": f.file, "line": f.line, "message": f.message}
            for f in findings]
    return {"findings": rows, "cells_failed": failed, "rules_failed": watching.failed}


def main() -> None:
    asked = sys.argv[1:]
    if asked[:1] == ["--one"]:
        print(json.dumps(run(asked[1])))
        return
    for number in asked or filter(stale, lessons()):
        now = rests_on(number)    # editing a rule during the run makes the record stale
        answer = subprocess.run([sys.executable, "-m", "benchmarks.watch_lessons", "--one", number],
                                cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
                                env={**os.environ, "DLSYS_PROGRESS": "off"})
        found = json.loads(answer.stdout.splitlines()[-1])
        LESSONS.write(number, now, found, wanted=lessons())
        print(number, len(found["findings"]), "findings", flush=True)


if __name__ == "__main__":
    main()
