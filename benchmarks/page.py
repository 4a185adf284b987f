"""The page "How fast, on which machine", made from the records; it measures nothing.

benchmarks/bench.json is written by `make bench`, suite.json by the tests. The pages of warm kernels
and of many learners on a hub, and those in grading/, have their own commands and are included.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
RECORD, SUITE = HERE / "bench.json", HERE / "suite.json"
KERNELS = [HERE / f"{name}.md" for name in ("WARM", "HUB")]  # those that exist are shown
GRADING = [HERE / "grading" / f"{name}.md" for name in ("RESULTS", "SOAK")]
TARGET = HERE / "RESULTS.md"
WORKERS = 3  # in the recorded run of the suite, as `make test` starts them
SHOWN = 20  # its longest parts


class Part(NamedTuple):
    """A part of bench.json on the page: heading, what was done, column heads."""

    title: str
    text: str
    head: list[str]


PARTS = {
    "setup": Part(
        "A fresh clone",
        "The set-up with which each target begins, one target after the other in one folder: `make "
        "lab` installs what the lessons need, and `make test` adds the rest. The packages come "
        "from a nearby index; your download time depends on your connection.",
        ["set-up of", "seconds", "GB on disk then"]),
    "start": Part(
        "From `make lab` to the first cell",
        "Each step ran once, one after the other.",
        ["step", "seconds"]),
    "learners": Part(
        "Learners on one machine",
        "All learners run stage 1's lesson from the first cell to the last at the same moment, "
        "each in a separate kernel, on all cores. Memory is measured in a kernel at the end, and "
        "shared memory is divided among the kernels; the last column is the number of kernels that "
        "this machine holds with nothing else in memory. Learners who read in between wait less. "
        "If the load is high, other work also slows down a single learner, so the ratio is too "
        "small.",
        ["learners", "slowest kernel ready, s", "slowest done, s", "times alone",
         "MiB a kernel", "kernels that fit"]),
    "lessons": Part(
        "A lesson through nbclient, against the same cells as a script",
        "We ran each lesson once each way, in turn; the ratio is what counts (aim: at most 1.15). "
        "The ratio of CPU times, which include the client's, depends little on the machine's other "
        "work; the ratio of elapsed times is meaningful only on an idle machine. A kernel also "
        "draws each figure for its output; a script does not. Lessons without a row were not "
        "measured.",
        ["lesson", "kernel start, s", "cells in nbclient, s", "cells in a script, s", "ratio",
         "ratio of CPU times"]),
    "checks": Part(
        "From running a check cell to its verdict",
        "The median of five runs for the worked answer, and the slowest of the wrong answers.",
        ["exercise", "right answer, ms", "slowest wrong answer, ms"]),
    "explorers": Part(
        "An explorer, from key press to redraw",
        "One key press at a time, warm.",
        ["where", "median, ms", "95th percentile, ms", "aim, ms"]),
    "steps": Part(
        "A step of a slider on stage 8's page",
        "CPU time of the page's own thread, by Chromium's count, in a built book. One frame takes "
        "16 ms.",
        ["read", "script, ms", "style, ms", "layout, ms", "script and style, ms", "aim, ms"]),
    "weights": Part(
        "What a page weighs to open",
        "The bytes of the page in the built book and of everything that the page loads at once, "
        "each file compressed with gzip. What loads only when the reader comes near (figures and "
        "the frames of large explorers) is left out.",
        ["pages", "how many", "lightest, kB", "middle, kB", "heaviest, kB", "aim, kB"]),
    "writing": Part(
        "The model that writes in the page",
        "In Chromium, after 250 letters, so that the model's window is full; the best of five "
        "texts. CPU seconds are counted in the page's own thread and depend little on the "
        "machine's other work.",
        ["written", "letters a second", "letters a CPU second", "aim, a second"]),
    "building": Part(
        "Building",
        "Whole commands.",
        ["command", "seconds"]),
    "model": Part(
        "Your model: a training step",
        "A step takes 8 rows of 256 letters, on one thread, with the worked answers, with the "
        "stand-ins, and as a plain loop in torch (aim: at most 1.3 times the plain loop). CPU "
        "times were measured in turns. The memory is that of the process with all three models "
        "(aim: below 1.5 GB).",
        ["parts", "CPU s a step", "times torch alone", "GiB resident"]),
}


def table(head: list[str], rows: list[list]) -> str:
    """A Markdown table; numbers with three digits."""
    def line(cells: list) -> str:
        return "| " + " | ".join(f"{c:.3g}" if isinstance(c, float) and c < 1000 else
                                 f"{c:,.0f}" if isinstance(c, float) else str(c)
                                 for c in cells) + " |"
    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])


def stored(path: Path) -> dict | None:
    """A record; None if there is none. Raises SystemExit for a file that is no record."""
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise SystemExit(f"{path.name}: got no JSON ({error}), expected a record. Restore it, or "
                         "delete it and measure again.") from None
    if not isinstance(record, dict):
        raise SystemExit(f"{path.name}: got {type(record).__name__}, expected an object. Measure "
                         "it again.")
    return record


def page() -> str:
    """The whole page, as Markdown."""
    record = stored(RECORD) or {}
    names = list(dict.fromkeys(found["run"]["machine"] for found in record.values()))
    shown = {name: part(name, record.get(name), names) for name in PARTS}
    parts = ["# How fast, on which machine",
             "Compare the ratios, which were measured side by side in one run: single times "
             "depend on the machine and on its other work. The *load* is the number of "
             "processes that wanted a core before the measurement began.",
             *machines(names), shown.pop("setup"), shown.pop("start"),
             *map(taken_in, KERNELS), *shown.values(),
             suite(stored(SUITE)), *map(taken_in, GRADING)]
    return "\n\n".join(filter(None, parts)) + "\n"


def machines(names: list[str]) -> list[str]:
    """The machines of the parts, numbered if there are several."""
    return [f"**Machine{f' {n}' if len(names) > 1 else ''}:** {name}."
            for n, name in enumerate(names, 1)]


def part(name: str, found: dict | None, names: list[str]) -> str:
    """One part of bench.json; one that was never measured says so."""
    title, text, head = PARTS[name]
    if not found:
        return f"## {title}\n\nNot measured yet: `python -m benchmarks {name}`."
    run = found["run"]
    where = f" on machine {names.index(run['machine']) + 1}" if len(names) > 1 else ""
    return (f"## {title}\n\n{text} Measured {run['date']}{where}, load {run['load']}.\n\n"
            f"{table(head, found['rows'])}")


def suite(record: dict | None) -> str:
    """The parts of the last recorded run of the tests."""
    if record is None:
        return ""
    found = sorted(record["parts"].items(), key=lambda pair: -pair[1]["worker"])
    rows = [[name, *sums([row])] for name, row in found[:SHOWN]]
    rest = [row for _, row in found[SHOWN:]]
    rows += [[f"{len(rest)} others", *sums(rest)]] if rest else []
    whole = sums(row for _, row in found)
    return ("## The tests, part by part\n\nWorker seconds are the time of all workers "
            f"together; {WORKERS} workers take {whole[0] / WORKERS / 60:.0f} minutes if none "
            f"waits for another. Recorded {record['run']}.\n\n"
            f"{table(['part', 'worker s', 'CPU s', 'tests'], [*rows, ['all', *whole]])}")


def sums(rows) -> list[int]:
    """Worker seconds, CPU seconds and tests of some rows together."""
    rows = list(rows)
    return [round(sum(row[key] for row in rows)) for key in ("worker", "cpu", "tests")]


def taken_in(path: Path) -> str:
    """A separate page with its headings one level down; nothing if it does not exist."""
    if not path.exists():
        return ""
    return path.read_text("utf-8").strip().replace("\n#", "\n##").replace("# ", "## ", 1)
