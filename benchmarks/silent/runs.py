"""Run what admission needs and no other record holds: a program, a fault, a seed at a time.

    .venv/bin/python -m benchmarks.silent.runs [--seconds 60]

Each run is kept as soon as it ends, so a stopped recording goes on where it was. Runs of the
gallery that `make gallery` has recorded are taken from there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from dlsys_model import instruments
from tools import gallery as gallery_record
from tools.records import Record

RECORD = Record("silent.json", done="run", lines=True,
                renew=".venv/bin/python -m benchmarks.silent.runs")
REFERENCE, SEEDS = range(5), range(5)  # seeds of the healthy reference; of a fault
CONTROLS = range(5, 17)  # seeds of healthy runs that are cases themselves
# One fault of the gallery for each mechanism that its curves show, the plainest first.
CHOSEN = ("zero_grad", "softmax", "sgd_rate", "graph", "frozen", "mask", "not_shifted", "seldom",
          "new_head", "one_rank", "slow_mean", "tiny", "data", "same_rows", "scale", "rate_100",
          "batch_first", "scores", "early_clip", "no_end", "dead", "reshape", "huge", "sigmoid",
          "post_norm", "no_schedule")


def gallery_runs() -> Iterator[tuple[str, int]]:
    """Fault and seed of the gallery's runs, each fault's together."""
    yield from (("healthy", seed) for seed in [*REFERENCE, *CONTROLS[:5]])
    yield from ((key, seed) for key in CHOSEN for seed in SEEDS)
    yield from (("healthy", seed) for seed in CONTROLS[5:])


def gallery_run(key: str, seed: int) -> dict:
    """A run of the gallery's program, from whichever record has it; {} where none does."""
    name = f"{key} {seed}"
    for found in (gallery_record.RECORD.entry(name), RECORD.entry(f"gallery {name}")):
        if found.get("rests_on") == gallery_record.rests_on(key):
            return found
    return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run after this long")
    until = time.monotonic() + parser.parse_args().seconds
    every = list(gallery_runs())
    todo = [run for run in every if not gallery_run(*run)]
    for place, (key, seed) in enumerate(todo):
        if time.monotonic() > until:
            break
        print(f"{len(every) - len(todo) + place} of {len(every)}  {key}, seed {seed}",
              file=sys.stderr, flush=True)
        kept = {name: value for name, value in instruments.run(key, seed).items()
                if name in ("ended", "delivered", "adapted", "curves")}
        RECORD.write(f"gallery {key} {seed}", gallery_record.rests_on(key), kept)


if __name__ == "__main__":
    main()
