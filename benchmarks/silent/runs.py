"""Run the exam's script, healthy and with each fault: numbers of its probes, and curves.

    .venv/bin/python -m benchmarks.silent.runs

Each runs with five seeds, two CPU seconds. Decoys compute the same, so the script is measured
without them. Each script is recorded as soon as it has run, so a stopped recording can resume.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import sys
import time
import zlib
from collections.abc import Iterator
from functools import cache

from benchmarks.silent import reader
from dlsys_checks.exam import faults, laws, numbers, probes
from tools import diffs, exam
from tools.records import Record

RECORD = Record("silent.json", done="run", lines=True,
                renew=".venv/bin/python -m benchmarks.silent.runs")
FIRST = 600 if reader.KEY == reader.PUBLIC else 1000 + zlib.crc32(reader.KEY.encode())
BLOCKS = {f"healthy, block {n}": range(FIRST + 5 * n, FIRST + 5 * n + 5) for n in range(6)}
PLAIN, REPAIRED, *_, EARLIER = BLOCKS  # reference, repaired, and shown next to a case
PARTS, CURVE = ("beginning", "middle", "end"), "curve"
POINT = 5  # steps averaged for one point of a curve


@cache
def measured_texts() -> dict[str, tuple[str, range]]:
    """The scripts to run: the healthy one with each block of seeds, each other one with seeds of
    its own. With common seeds, numbers that a fault leaves alone would be equal in all faulty
    cases, which gives the label away.
    """
    every = {name: (faults.healthy(), seeds) for name, seeds in BLOCKS.items()}
    return every | {name: (one.plain, own_seeds(name)) for name, one in reader.programs().items()
                    if one.plain != faults.healthy()}


def own_seeds(name: str) -> range:
    first = FIRST + 100 + 5 * (zlib.crc32(f"{reader.KEY} {name}".encode()) % 1_000_000)
    return range(first, first + 5)


def shown_by(name: str) -> tuple[str, int]:
    """The runs that a program shows, and which of their seeds. A program that is plain except for
    its decoys shows the healthy script's, without the reference and the earlier runs.
    """
    if name in measured_texts():
        return name, seed_of(name)
    _, *between, _ = BLOCKS
    seed, block = divmod(int(name.split()[1]), len(between))
    return between[block], seed


def rests_on(name: str) -> dict[str, str]:
    text, seeds = measured_texts()[name]
    return exam.rests_on(text) | {"seeds": str(seeds[0])}


@cache
def run_of(name: str) -> dict:
    """The recorded runs of a script; {} if none are up to date."""
    found = RECORD.entry(name)
    return found if found.get("rests_on") == rests_on(name) else {}


def seed_of(name: str) -> int:
    """Which of a program's seeds a case shows."""
    return zlib.crc32(name.encode()) % len(BLOCKS[PLAIN])


def looked(text: str, seeds: range) -> dict:
    """Every number of every probe with each seed, as "probe: number", thirds of curves among them,
    and the curves; or why a run stopped.
    """
    found: dict[str, list] = {}
    curves: list[dict] = []
    for seed in seeds:
        with kept_runs() as kept:
            try:
                shown = probes.look(text, *laws.pictures(), seed, tuple(numbers.HEALTHY))
            except Exception as error:  # the program's own error
                return {"stopped": f"{type(error).__name__}: {error}".splitlines()[0]}
        if not math.isfinite(shown["loss_curve"]["last loss"]):
            return {"stopped": "the loss is no number"}
        for probe, rows in shown.items():
            for name in numbers.HEALTHY[probe]:
                found.setdefault(f"{probe}: {name}", []).append(short(rows[name]))
        curves.append(curves_of(kept[0]))
        for name, values in curves[-1].items():
            for part, mean in zip(PARTS, thirds(values), strict=True):
                found.setdefault(f"{CURVE}: {name}, {part}", []).append(short(mean))
    return {"numbers": found, "curves": curves}


def thirds(values: list) -> list[float]:
    """The means of the three thirds of a curve; NaN if a reading is not finite or there is
    none.
    """
    read = [float("nan") if value is None else float(value) for value in values]
    edges = [len(read) * part // 3 for part in range(4)]
    parts = [read[low:max(high, low + 1)] for low, high in itertools.pairwise(edges)]
    return [sum(part) / len(part) if part else float("nan") for part in parts]


@contextlib.contextmanager
def kept_runs() -> Iterator[list]:
    """The runs that the probes watch inside the block."""
    kept, plain = [], probes.watched_run

    def watched(*given):
        kept.append(plain(*given))
        return kept[-1]

    probes.watched_run = watched
    try:
        yield kept
    finally:
        probes.watched_run = plain


def curves_of(run) -> dict[str, list]:
    """What a dashboard shows of a run, as means of a few steps."""
    every = {"training loss": run.losses, "learning rate": run.rates,
             "gradient norm before clipping": run.clipped,
             "gradient norm at the update": [step["norm"] for step in run.steps],
             "norm of the update": [step["update"] for step in run.steps]}
    return {name: [short(sum(values[n:n + POINT]) / len(values[n:n + POINT]))
                   for n in range(0, len(values), POINT)] for name, values in every.items()}


def short(value: float) -> float | str:
    return diffs.plain(float(f"{value:.4g}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1e9,
                        help="begin no script after so many seconds of CPU")
    until = time.process_time() + parser.parse_args().seconds
    left = [name for name in measured_texts() if not run_of(name)]
    for place, name in enumerate(left):
        if time.process_time() > until:
            break
        print(f"{len(left) - place} left  {name}", file=sys.stderr, flush=True)
        RECORD.write(name, rests_on(name), looked(*measured_texts()[name]), measured_texts())


if __name__ == "__main__":
    main()
