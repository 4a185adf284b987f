"""Run the watch on programs its rules were not written for: what it finds, misnames and misses.

    .venv/bin/python -m benchmarks.watch_corpus [NAME ...]    those whose record is stale

The programs are in `tests/watch/corpus`. A faulty one names its source and the traps that count
as right; `# fault` marks its lines. The author of the rules rebuilt a few of them: their first
line says "(with its rule)", and the page counts them separately. Each runs in its own process,
once alone and once under the watch with its hints, and has to compute the same.
`benchmarks.watch_tools` records what other tools say of the same programs.
"""

from __future__ import annotations

import collections
import contextlib
import io
import multiprocessing
import re
import sys
from pathlib import Path

from benchmarks import watch_lessons
from tools import fingerprints
from tools.records import Record

ROOT = watch_lessons.ROOT
RECORD = Record("watch_corpus.json", done="run under the watch",
                renew=".venv/bin/python -m benchmarks.watch_corpus")
sys.path.insert(0, str(ROOT / "tests" / "watch"))
CORPUS = ROOT / "tests" / "watch" / "corpus"
FAULTY, HEALTHY = (sorted((CORPUS / kind).glob("*.py")) for kind in ("faulty", "healthy"))
HEAD = re.compile(r"# Source: (?P<source>.+)\n# Trap: (?P<traps>[\d., ]+)\n")
FOUND, HINT, OTHERWISE, MISSED = "found", "found as a hint", "named otherwise", "missed"


def head(path: Path) -> tuple[str, list[str]]:
    """A faulty program's source, and the traps that are right for it."""
    found = HEAD.match(path.read_text("utf-8"))
    return found["source"], found["traps"].split(", ")


def is_own(name: str) -> bool:
    """Whether a program was rebuilt together with a rule, by its name in the record."""
    return "(with its rule)" in (CORPUS / f"{name}.py").read_text("utf-8").partition("\n")[0]


def marked(path: Path) -> set[int]:
    lines = path.read_text("utf-8").split("\n")
    return {number for number, line in enumerate(lines, 1) if line.endswith("# fault")}


def apart(work, *given):
    """Return work(*given), run in a fork of this process, so with its imports."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=lambda: there.send(work(*given)))
    process.start()
    there.close()
    try:
        return here.recv()
    finally:
        process.join()


def tried(path: Path) -> dict:
    """Findings of one program, including hints, and whether it computed the same as alone."""
    import faults
    import healthy

    source, told = path.read_text("utf-8"), []
    code = compile(source, str(path), "exec")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        alone = healthy.traces(lambda names: exec(code, names))
        beside = healthy.traces(
            lambda names: told.extend(faults.watch(source, path, hints=True, names=names)))
    found, failed = told
    kept = ("values", "torch", "python", "numpy")   # some libraries cache tensors
    row = {"findings": [{"rule": f.rule, "trap": f.trap, "line": f.line, "sound": f.sound}
                        for f in found],
           "same": all(alone[name] == beside[name] for name in kept)}
    return row | ({"rules_failed": failed} if failed else {})


def verdict(findings: list[dict], traps: list[str]) -> str:
    """Distinguish right sound findings, right hints, sound findings with a wrong name, misses."""
    right = [f for f in findings if f["trap"] in traps]
    if any(f["sound"] for f in right):
        return FOUND
    if right:
        return HINT
    return OTHERWISE if any(f["sound"] for f in findings) else MISSED


def judged(path: Path) -> dict:
    """The row of one program in the record."""
    row = apart(tried, path)
    if path.parent.name == "healthy":
        return row
    source, traps = head(path)
    lines = {f["line"] for f in row["findings"] if f["trap"] in traps}
    return {"source": source, "traps": traps, "verdict": verdict(row["findings"], traps),
            "line": bool(lines & marked(path))} | row


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def rests_on(path: Path) -> dict[str, str]:
    """What a program's row depends on; every character counts, because findings name lines."""
    return {"program": fingerprints.fingerprint(path.read_text("utf-8")),
            "dlsys_watch": watch_lessons.watch_digest(), **fingerprints.pinned()}


def stale(path: Path) -> str:
    """Why the row of a program no longer counts, with the command; "" while it does."""
    return RECORD.stale(name(path), rests_on(path))


def counts(rows: dict[str, dict]) -> collections.Counter:
    """Count programs by verdict, and healthy ones by whether a sound rule or a hint spoke."""
    found = collections.Counter(row["verdict"] for row in rows.values() if "verdict" in row)
    for row in (row for row in rows.values() if "verdict" not in row):
        found["healthy"] += 1
        found["false alarm"] += any(f["sound"] for f in row["findings"])
        found["false hint"] += any(not f["sound"] for f in row["findings"])
    return found


def main() -> None:
    import torch

    torch.set_num_threads(1)
    asked, every = set(sys.argv[1:]), FAULTY + HEALTHY
    for path in every:
        if path.stem in asked or (not asked and stale(path)):
            now, row = rests_on(path), judged(path)
            RECORD.write(name(path), now, row, wanted=[*map(name, every)])
            print(name(path), row.get("verdict", "healthy"), [f["rule"] for f in row["findings"]],
                  "" if row["same"] else "computes something else", flush=True)
    print(dict(counts(RECORD.entries())))


if __name__ == "__main__":
    main()
