"""The watch on a CUDA device: its findings in the corpus, and the wall-clock cost of a step.

    PYTHONPATH=src python3 -m benchmarks.watch_cuda

Every tensor that a program makes is on the device. A program that mixes in a CPU generator fails
there even without the watch; the record names such programs with their error. The findings are
compared with watch_corpus.json, and the record is watch_cuda.json. Needs no installed package.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch import nn

from benchmarks import watch_corpus, watch_overhead
from dlsys_helpers import gpu_records

RECORD = Path(__file__).with_suffix(".json")
PROCESSES = 8


def deep():
    """A step of a transformer that is large enough to keep a GPU busy."""
    layer = nn.TransformerEncoderLayer(768, 8, 3072, batch_first=True)
    body = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    model = nn.Sequential(nn.Linear(16, 768), body, nn.Flatten(), nn.Linear(768 * 16, 10))
    return watch_overhead.stepping(model, torch.randn(64, 16, 16), torch.randint(10, (64,)))


SIZES = {**watch_overhead.SIZES, "transformer, 12 layers, 768 wide": deep}


def clock() -> float:
    """Wall-clock seconds, read once the device has finished its work."""
    torch.cuda.synchronize()
    return time.perf_counter()


def tried(device: str, path: Path) -> dict:
    """The row of one program on the device; `alone` says why it fails there without the watch."""
    import faults

    multiprocessing.set_start_method("fork", force=True)  # as if the program were started directly
    torch.set_default_device(device)
    code = compile(path.read_text("utf-8"), str(path), "exec")
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(code, faults.given())
    except Exception as error:
        return {"alone": f"{type(error).__name__}: {error}".partition("\n")[0]}
    return watch_corpus.tried(path)


def programs(device: str) -> dict[str, dict]:
    """The row of each program of the corpus."""
    paths = watch_corpus.FAULTY + watch_corpus.HEALTHY
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=spawn) as pool:
        rows = pool.map(functools.partial(tried, device), paths)
        return dict(zip(map(watch_corpus.name, paths), rows, strict=True))


def told_otherwise(rows: dict[str, dict]) -> list[str]:
    """Programs whose findings here differ from watch_corpus.json."""
    known = watch_corpus.RECORD.entries()
    return [name for name, row in rows.items()
            if "findings" in row and row["findings"] != known[name]["findings"]]


def main() -> None:
    rows = programs("cuda")
    torch.set_default_device("cuda")
    record = {"provenance": gpu_records.provenance(),
              "sizes": {name: watch_overhead.compare(make, clock) for name, make in SIZES.items()},
              "programs": len(rows),
              "alone": {name: row["alone"] for name, row in rows.items() if "alone" in row},
              "told otherwise": told_otherwise(rows),
              "computed otherwise": [name for name, row in rows.items() if not row.get("same", 1)],
              "rules failed": {name: row["rules_failed"] for name, row in rows.items()
                               if "rules_failed" in row}}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
