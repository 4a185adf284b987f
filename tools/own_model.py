"""Train the model that writes in the book's pages: ``python -m tools.own_model``.

Its parts are the worked answers. A stopped run continues from its last checkpoint in drafts/; at
the end book/model/ has the packed weights and a record of the training. Takes about twelve minutes
on one thread.
"""

from __future__ import annotations

import copy
import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.nn import functional as F

from dlsys_helpers import catalog
from dlsys_helpers.errors import UserError
from dlsys_helpers.paths import ROOT, SOLUTIONS
from dlsys_model import text
from dlsys_model.network import Network, Shape
from dlsys_model.pack import in_bits, pack, unpack
from dlsys_model.part_table import CATALOGUE, Part
from dlsys_model.parts import Parts, load
from dlsys_model.text import Text
from dlsys_model.training import Plan, Training

# From about step 3,000 on it gets better on its training text, but validation hardly improves.
# The mean of the weights at the last entries of the log is better than any of them.
PLAN = Plan(steps=4400, rows=8, peak=3e-3, floor=1e-4, warm=100, every=250)
FIRST, UNTIL = 3000, 3750  # steps of the first and the last weights in the mean
FOLDER = ROOT / "book" / "model"
PACKED, RECORD = FOLDER / "own_model.bin", FOLDER / "own_model.json"
CHECKPOINT = ROOT / "drafts" / "own_model.pt"


def worked_parts() -> Parts:
    """The worked answers as parts, as if a learner had written them."""
    return load(SOLUTIONS, [trap.id for trap in catalog.traps()])


def called_parts(found: Parts, prose: Text) -> list[str]:
    """The ids of the parts that this command calls, found by a run of two steps."""
    seen = set()

    def noted(part: Part) -> Callable:
        fn = getattr(found, part.function)

        def call(*args, **kwargs):
            seen.add(part.id)
            return fn(*args, **kwargs)
        return call

    spied = copy.copy(found)
    for part in CATALOGUE:
        setattr(spied, part.function, noted(part))
    text.prose(spied.class_numbers)
    run = Training(Network(Shape(len(prose.letters), 32, 1, 2, 8), spied), prose,
                   PLAN._replace(steps=2, warm=1))
    with TemporaryDirectory() as folder:
        list(run.run(save=Path(folder) / "run.pt"))
    run.log()
    pack(run.model.state_dict(), run.model.shape._asdict(), prose.letters, spied.quantise)
    return sorted(seen)


def train(run: Training, checkpoint: Path = CHECKPOINT, first: int = FIRST, until: int = UNTIL
          ) -> float:
    """Train up to step `until`, from a checkpoint if there is one; print a line per log entry.

    Returns the CPU seconds, including those of earlier runs. The model then has the mean of the
    weights at the log entries from step `first` on.
    """
    checkpoint.parent.mkdir(exist_ok=True)
    clock, seconds = checkpoint.with_suffix(".seconds"), 0.0
    if checkpoint.exists():
        run.resume(checkpoint)
        seconds = float(clock.read_text())
    begin = time.process_time() - seconds
    for entry in run.run(until, checkpoint):
        seconds = time.process_time() - begin
        clock.write_text(f"{seconds:.1f}")
        if run.step >= first:
            torch.save(run.model.state_dict(), checkpoint.with_suffix(f".{run.step:05d}"))
        print(f"step {entry['step']} of {run.plan.steps}: loss {entry['loss']:.3f}, validation "
              f"{entry['valid']:.3f}, {seconds:.0f} s", flush=True)
    states = [torch.load(path) for path in sorted(checkpoint.parent.glob(
        f"{checkpoint.stem}.[0-9]*"))]
    run.model.load_state_dict({name: torch.stack([state[name] for state in states]).mean(0)
                               for name in states[0]})
    return seconds


@torch.no_grad()
def validation(model: Network, found: Text) -> float:
    """Nats per letter over the whole validation text, in rows of the trained length."""
    model.eval()
    x, y = text.rows(found.valid, model.shape.length)
    losses = [F.cross_entropy(model(row).flatten(0, 1), right.flatten(), reduction="sum").item()
              for row, right in zip(x.split(16), y.split(16), strict=True)]
    return sum(losses) / y.numel()


def losses(model: Network, packed: bytes, found: Text) -> dict[str, float]:
    """The validation loss of the weights in 32 bits, and of the page's weights in 8, 4 and 3."""
    stored = unpack(packed)[1]
    states = {32: model.state_dict(), 8: stored, 4: in_bits(stored, 4), 3: in_bits(stored, 3)}
    twin = Network(model.shape, model.parts)
    measured = {}
    for bits, state in states.items():
        twin.load_state_dict(state)
        measured[str(bits)] = round(validation(twin, found), 4)
    return measured


def record(run: Training, packed: bytes, seconds: float, found: dict[str, float]) -> dict[str, Any]:
    """The record of the training, for the page and for training again."""
    curve = [[row["step"], round(row["loss"], 4), round(row["valid"], 4)] for row in run.log()]
    return {"plan": {**run.plan._asdict(), "dtype": str(run.plan.dtype), "dropout": run.model.p,
                     "mean_of_weights_from": FIRST, "until": UNTIL},
            "shape": run.model.shape._asdict(), "parts": called_parts(run.parts, run.text),
            "text": fingerprint(run.text),
            "weights": sum(w.numel() for w in run.model.parameters()),
            "bytes": len(packed), "cpu_seconds": round(seconds), "validation": found,
            "torch": torch.__version__.partition("+")[0], "python": platform.python_version(),
            "machine": platform.machine(), "curve": curve}


def fingerprint(found: Text) -> str:
    """Fingerprint of the numbers and letters that a model was trained on."""
    parts_of = (found.train.numpy().tobytes(), found.valid.numpy().tobytes(),
                found.letters.encode())
    return hashlib.sha256(b"".join(parts_of)).hexdigest()[:16]


def main() -> None:
    """Train the model, pack it, and write the record."""
    torch.set_num_threads(1)
    found = worked_parts()
    prose = text.prose(found.class_numbers)
    torch.manual_seed(PLAN.seed)
    run = Training(Network(Shape(len(prose.letters)), found), prose, PLAN)
    finish(run, train(run))


def finish(run: Training, seconds: float) -> None:
    """Write the packed weights and their record, and delete the checkpoint."""
    state, shape, letters = run.model.state_dict(), run.model.shape._asdict(), run.text.letters
    quantise = run.parts.quantise
    measured = losses(run.model, pack(state, shape, letters, quantise), run.text)
    packed = pack(state, shape, letters, quantise, validation=measured)
    FOLDER.mkdir(exist_ok=True)
    PACKED.write_bytes(packed)
    RECORD.write_text(json.dumps(record(run, packed, seconds, measured), indent=1) + "\n", "utf-8")
    print(f"{PACKED.relative_to(ROOT)}: {len(packed):,} bytes, validation {measured}")
    for path in CHECKPOINT.parent.glob(f"{CHECKPOINT.stem}.*"):
        path.unlink()


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
