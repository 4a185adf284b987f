"""What the watch costs: steps of three sizes, with and without it, side by side.

    .venv/bin/python -m benchmarks.watch_overhead

Blocks of steps alternate, so that a busy machine slows both alike. It measures the CPU time of
the process after a warm-up of 300 steps; for start-up, of a script that only imports torch.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import dlsys_watch
from dlsys_watch.session import Session  # noqa: F401  imported here, not in the first block

RECORD = Path(__file__).with_suffix(".json")
WARM, BLOCKS, STEPS = 300, 7, 48


def wide(width: int, rows: int):
    """A function that makes one training step of an MLP."""
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width),
                          nn.ReLU(), nn.Linear(width, 10))
    return stepping(model, torch.randn(rows, 64), torch.randint(10, (rows,)))


def transformer():
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    model = nn.Sequential(nn.Linear(16, 64), body, nn.Flatten(), nn.Linear(64 * 16, 10))
    return stepping(model, torch.randn(16, 16, 16), torch.randint(10, (16,)))


def stepping(model, x, y):
    opt = torch.optim.AdamW(model.parameters(), 1e-3)

    def step():
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    return step


SIZES = {"MLP, 128 wide": lambda: wide(128, 32), "MLP, 512 wide": lambda: wide(512, 128),
         "transformer, 4 layers": transformer}


def milliseconds(step, steps: int, clock) -> float:
    """Time of a step by a clock of seconds, in ms."""
    start = clock()
    for _ in range(steps):
        step()
    return 1e3 * (clock() - start) / steps


def compare(make, clock=time.process_time) -> dict:
    """Medians over blocks in ms per step: without, with, and of the differences."""
    torch.manual_seed(0)
    step, alone, beside = make(), [], []
    watching = dlsys_watch.watching()
    watching.__enter__()
    watch, attachment = watching.session.watch, watching.session.attachment
    milliseconds(step, WARM, clock)
    for _ in range(BLOCKS):
        beside.append(milliseconds(step, STEPS, clock))
        attachment.off()
        alone.append(milliseconds(step, STEPS, clock))
        attachment = type(attachment)(watch)
        milliseconds(step, 5, clock)
    attachment.off()
    extra = statistics.median(b - a for a, b in zip(alone, beside, strict=True))
    return {"alone_ms": round(statistics.median(alone), 3), "extra_ms": round(extra, 3),
            "percent": round(100 * extra / statistics.median(alone), 1)}


def start_up() -> float:
    """Seconds of CPU that the watch adds to a script which imports torch; the median of five."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "train.py")
        file.write_text("import torch, time\nprint(time.process_time())\n")
        runs = [[float(subprocess.run([sys.executable, *before, str(file)], capture_output=True,
                                      text=True, check=True).stdout) for _ in range(5)]
                for before in ([], ["-m", "dlsys_watch"])]
    return round(statistics.median(runs[1]) - statistics.median(runs[0]), 3)


def main() -> None:
    torch.set_num_threads(1)
    found = {name: compare(make) for name, make in SIZES.items()}
    record = {"torch": torch.__version__, "sizes": found, "start_up_s": start_up()}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
