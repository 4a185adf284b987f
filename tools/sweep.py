"""Run every claim of the lessons over seeds, threads and instruction sets.

    python -m tools.sweep               lessons whose record is stale; all with --all
    python -m tools.sweep 01            one lesson; writes tests/records/sweep/01.json
    python -m tools.sweep 01 --seeds 50 only the seeds that the record lacks
    python -m tools.sweep 01 --draft    the draft, once, with another seed; writes nothing
    python -m tools.sweep --nights 5    a fifth of the lessons, the next ones every day

Five seeds run with one thread and with two, further seeds with one, all with this CPU's default
instructions. Every smaller set runs seed 0 with one thread. Threads and sets only change the order
of sums, so they move a value far less than a seed does: a few runs reveal a bound that is too
close.

We identify a claim by its cell and its position among the cell's claims, never by its words. Cells
run in order, so a claim depends on the cells up to its own: its measurements count until one of
these changes, and a new trap at the end affects no other claim. We sweep changes over five seeds.
The nightly run continues to fifty, with a fifth of the lessons each night: fifty seeds of all
lessons take two cores about eight hours.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from dlsys_helpers.lesson_names import YOUR_MODEL, key, with_model
from dlsys_helpers.paths import NOTEBOOKS, ROOT
from tools import fingerprints, install_cell, proof, solutions
from tools.records import Record

RECORD = Record("sweep/{key}.json", done="swept", renew="make finish LESSON={key}")
SEEDS, THREADS = 5, (1, 2)
NATIVE = "native"
SETS = {  # smallest first, with their names in ATen, oneDNN and MKL
    "default": ("default", "SSE41", "SSE4_2"),
    "avx2": ("avx2", "AVX2", "AVX2"),
    "avx512": ("avx512", "AVX512_CORE", "AVX512"),
}
VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
DRAFTS = ROOT / "drafts" / "notebooks"
PLAN = ("seeds 0 to 4 x threads and further seeds x one thread, on the native set; "
        "seed 0 x one thread on each other set")


class Run(NamedTuple):
    """One run of a lesson."""

    seed: int
    threads: int
    instructions: str  # NATIVE or a name from SETS

    def __str__(self) -> str:
        return f"seed {self.seed}, threads {self.threads}, {self.instructions}"


DRAFT_RUN = Run(3, 1, NATIVE)


def code_cells(path: Path) -> list[dict[str, Any]]:
    """The code cells of a notebook that can change a claim.

    Leaves out the cell that installs the course, explorers, the questions of guesses, and
    `measured` with the index of a choice.
    """
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"
            and cell["metadata"].get("dlsys", {}).get("role") not in (
                install_cell.ROLE, "explore", "guess")
            and not names_a_choice(cell)]


def names_a_choice(cell: dict[str, Any]) -> bool:
    """Whether a cell calls `measured` with an index; with `right=` it checks a number."""
    return ("measured" in cell["metadata"].get("tags", [])
            and "right=" not in "".join(cell["source"]))


def rests_on(path: Path) -> dict[str, str]:
    """Fingerprints of what determines this lesson's claims; the cells come first, in order."""
    return fingerprints.rests_on({f"{CELL}{cell['id']}": "".join(cell["source"])
                                  for cell in code_cells(path)})


def run_here(path: Path, seed: int, threads: int) -> dict[str, Any]:
    """The claims of one run in this process, failed ones included, and ATen's instructions."""
    import torch

    from dlsys_helpers import claims
    from tools.run_cells import run_cell
    strict = claims.claim

    def noted(*args: Any, **bounds: Any) -> None:
        """Never raise for a failed claim: the log has it, and the rest of its cell still runs."""
        with contextlib.suppress(claims.ClaimFailed):
            strict(*args, **bounds)
    claims.claim = noted
    names: dict[str, Any] = {"__name__": "__main__"}
    found: dict[str, dict[str, Any]] = {}
    for n, cell in enumerate(code_cells(path)):
        source = "".join(cell["source"])
        if "parameters" in cell["metadata"].get("tags", []):
            source = f'SEED, THREADS, DEVICE = {seed}, {threads}, "cpu"'
        run_cell(source, f"<{path.stem} cell {n}>", names)
        found |= {f"{cell['id']} {place}": claim._asdict()
                  for place, claim in enumerate(claims.LOG, 1)}
        claims.LOG.clear()
    return {"instructions": torch.backends.cpu.get_cpu_capability().lower(), "claims": found}


def environment(instructions: str) -> dict[str, str]:
    """The environment variables with which a run uses these instructions."""
    env = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    # Waiting threads sleep instead of spinning: on shared cores spinning takes ten times as long.
    env |= {"MPLBACKEND": "Agg", "DLSYS_PROGRESS": "off", "OMP_WAIT_POLICY": "PASSIVE",
            "GOMP_SPINCOUNT": "0"}
    return env | dict(zip(VARIABLES, SETS.get(instructions, ()), strict=False))


def run(path: Path, one: Run) -> dict[str, dict[str, Any]]:
    """The claims of one run, in a separate process. Raises SystemExit if a cell fails."""
    command = [sys.executable, "-m", "tools.sweep", "--one", str(path), str(one.seed),
               str(one.threads)]
    done = subprocess.run(command, cwd=ROOT, env=environment(one.instructions),
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{path.stem}, {one}: a cell failed.\n{done.stderr[-1500:]}")
    seen = json.loads(done.stdout.splitlines()[-1])
    if one.instructions not in (NATIVE, seen["instructions"]):
        raise SystemExit(f"{path.stem}, {one}: ATen took {seen['instructions']}; see {VARIABLES}.")
    return seen["claims"]


def native_instructions() -> str:
    """The instructions that ATen uses on this CPU by default."""
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.backends.cpu.get_cpu_capability())"],
        env=environment(NATIVE), capture_output=True, text=True, check=True)
    return done.stdout.strip().lower()


def smaller_sets(name: str) -> list[str]:
    """The sets below the native one; on other CPU families only ATen's default code."""
    names = list(SETS)
    return names[:names.index(name)] if name in names else names[:1]


def runs(seeds: int, sets: Sequence[str]) -> Iterator[Run]:
    """Yield the runs that PLAN describes."""
    for seed in range(seeds):
        threads = THREADS if seed < SEEDS else THREADS[:1]
        yield from (Run(seed, n, NATIVE) for n in threads)
    yield from (Run(0, 1, name) for name in sets)


def sweep(path: Path, seeds: int, known: dict[str, Any]) -> dict[str, Any]:
    """The record of one lesson: for each claim its bound and the range of values seen.

    known: an earlier record, or empty to start again. Unchanged claims keep their ranges, and
    further seeds widen them, even on another CPU.
    """
    # Take these now, because somebody may edit while this runs.
    own, parts = native_instructions(), rests_on(path)
    claims = kept_claims(known, parts)
    begun = known["seeds"] if known.get("rests_on") == parts and claims else 0
    plan = [one for one in runs(seeds, smaller_sets(own)) if one.seed >= begun]
    failed = list(known.get("failed", [])) if begun else []
    older = {name: entry["seeds"] for name, entry in claims.items()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each thread waits for a run's process
        found_in = pool.map(functools.partial(try_run, path), plan)
        for place, (one, (found, lines)) in enumerate(zip(plan, found_in, strict=True), 1):
            for name, claim in found.items():
                if one.seed >= older.get(name, 0):
                    widen(claims, name, claim)
            failed += lines
            print(f"{path.stem}: {place} of {len(plan)}, {one}", flush=True)
    for name, entry in claims.items():
        entry["seeds"] = max(seeds, older.get(name, 0))
        if older and name not in older and known["sets"] != smaller_sets(own):
            entry["sets"] = smaller_sets(own)  # the older claims ran on another CPU
    return {"rests_on": parts, "plan": PLAN, "seeds": min(
                (entry["seeds"] for entry in claims.values()), default=seeds),
            "threads": list(THREADS), "native": joined_instructions(known, own),
            "sets": known["sets"] if claims and older else smaller_sets(own),
            "date": datetime.now(UTC).date().isoformat(), "failed": failed, "claims": claims}


CELL = "cell "


def kept_claims(known: dict[str, Any], parts: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The recorded claims that no change affects.

    These are the claims of the first cells, up to the first changed one, if no module or package
    changed that both the record and the lesson use. If a claim failed, keeps all if nothing
    changed since, so that the sweep can continue with further seeds, and none otherwise.
    """
    before = known.get("rests_on", {})
    if list(before.items()) == list(parts.items()):
        return {name: dict(entry) for name, entry in known["claims"].items()}
    shared = (before.keys() & parts.keys())
    if known.get("failed") or any(before[name] != parts[name] for name in shared
                                  if not name.startswith(CELL)):
        return {}
    cells = [[item for item in found.items() if item[0].startswith(CELL)]
             for found in (before, parts)]
    same = {name.removeprefix(CELL) for (name, _), _ in takewhile(
        lambda pair: pair[0] == pair[1], zip(*cells, strict=False))}
    return {name: dict(entry) for name, entry in known.get("claims", {}).items()
            if name.rpartition(" ")[0] in same}


def widen(claims: dict[str, dict[str, Any]], name: str, claim: dict[str, Any]) -> None:
    """Widen a claim's range by the value of one run."""
    value = claim["value"]
    seen = claims.setdefault(name, {"bound": claim["bound"], "least": value, "most": value,
                                    "runs": 0})
    seen["least"], seen["most"] = min(seen["least"], value), max(seen["most"], value)
    seen["runs"] += 1


def try_run(path: Path, one: Run) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The claims of one run, and a line for each that does not hold or for the cell that failed."""
    try:
        claims = run(path, one)
    except SystemExit as stopped:  # the other runs continue
        return {}, [str(stopped)]
    return claims, refuted(claims, one)


def joined_instructions(known: dict[str, Any], own: str) -> str:
    """The native sets of a record, "avx512, avx2" if another CPU ran some of its seeds."""
    before = known["native"].split(", ") if known else []
    return ", ".join(dict.fromkeys([*before, own]))


def refuted(claims: dict[str, dict[str, Any]], one: Run) -> list[str]:
    """A line for each claim of a run that does not hold."""
    return [f"{claim['text']}: {claim['value']:.6g} at {one}; expected {claim['bound']}"
            for claim in claims.values() if not claim["holds"]]


def try_draft(path: Path) -> None:
    """Run the claims of a draft with a seed that its build does not use; writes no record."""
    if not path.exists():
        raise SystemExit(f"{path.relative_to(ROOT)}: not there. "
                         f"Run: make build LESSON={key(path)} DRAFT=1")
    claims = run(path, DRAFT_RUN)
    if failed := refuted(claims, DRAFT_RUN):
        raise SystemExit("claims that do not hold:\n" + "\n".join(failed))
    print(f"{path.stem}: all {len(claims)} claims of the draft hold at {DRAFT_RUN}")


def next_step(path: Path) -> str:
    """The next step after a lesson's sweep: its proofs if they are stale, else the tests."""
    ids = () if path.stem == YOUR_MODEL else solutions.answers(key(path))
    return proof.stale(path.stem, ids) or "Next: make test"


def stored(path: Path) -> dict[str, Any]:
    """The record of a lesson; empty if there is none."""
    return RECORD.entry(key(path))


def stale(path: Path, seeds: int = SEEDS) -> str:
    """Why a lesson's record is stale, with the command that renews it; "" for a fresh one."""
    if why := RECORD.stale(key(path), rests_on(path)):
        return why
    if (swept := stored(path)["seeds"]) < seeds:
        return (f"{key(path)}: swept over {swept} seeds, expected {seeds}. "
                f"Run: make sweep LESSON={key(path)} SWEEP_ARGS='--seeds {seeds}'")
    return ""


def keep(path: Path, entry: dict[str, Any]) -> None:
    facts = {name: value for name, value in entry.items() if name != "rests_on"}
    RECORD.write(key(path), entry["rests_on"], facts)


def refuse_other_versions() -> None:
    """Refuse versions other than the pinned ones, because records name these."""
    for name, version in fingerprints.pinned().items():
        if (here := importlib.metadata.version(name)) != version:
            raise SystemExit(f"{name}: got {here}, expected {version} as pinned. Run: make setup")


def lessons(wanted: Sequence[str]) -> list[Path]:
    """The notebooks of the lessons with these numbers; all if none is named."""
    found = with_model([path for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
                        if not path.stem.startswith("00")])
    known = [key(path) for path in found]
    keys = {one if one == YOUR_MODEL else one.zfill(2) for one in wanted} or {*known}
    if unknown := keys - {*known}:
        raise SystemExit(f"lesson: got {', '.join(sorted(unknown))}, expected one of "
                         f"{', '.join(known)}.")
    return [path for path in found if key(path) in keys]


def drawn_for(paths: list[Path], day: date, nights: int) -> list[Path]:
    """The lessons to sweep on a day; in `nights` days each has its turn once."""
    return paths[day.toordinal() % nights::nights]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lesson", nargs="*", help="numbers of lessons; all when absent")
    parser.add_argument("--all", action="store_true", help="lessons with a fresh record, too")
    parser.add_argument("--draft", action="store_true",
                        help=f"the drafts of the named lessons, at {DRAFT_RUN}")
    parser.add_argument("--seeds", type=int, default=0, metavar="N",
                        help=f"seeds 0 to N - 1; {SEEDS} when absent")
    parser.add_argument("--nights", type=int, default=1, metavar="N",
                        help="today's share of the lessons, so that N days sweep them all")
    parser.add_argument("--one", nargs=3, metavar=("NOTEBOOK", "SEED", "THREADS"),
                        help="one run in this process; prints its claims as JSON")
    args = parser.parse_args()
    if args.one:
        path, seed, threads = args.one
        print(json.dumps(run_here(Path(path), int(seed), int(threads))))
        return
    if args.draft:
        if not args.lesson:
            parser.error("--draft: name a lesson, as in: make sweep LESSON=05 DRAFT=1")
        for path in lessons(args.lesson):
            try_draft(DRAFTS / path.name)
        return
    if args.nights < 1:
        parser.error(f"--nights: got {args.nights}, expected 1 or more")
    refuse_other_versions()
    chosen = drawn_for(lessons(args.lesson), date.today(), args.nights)
    for path in chosen:
        renew(path, args.seeds or SEEDS, args.all)
    failures = [line for path in chosen for line in stored(path)["failed"]]
    if failures:
        sys.exit("claims that do not hold:\n" + "\n".join(failures))
    print(*dict.fromkeys(next_step(path) for path in chosen), sep="\n")


def grow(path: Path, seeds: int, step: int, anew: bool = False) -> Iterator[dict[str, Any]]:
    """Bring the record of a lesson up to this many seeds, `step` at a time.

    Yields the record each time it is written, so that a stopped sweep can continue. anew: measure
    fresh claims again, too, as always after a failed claim.
    """
    anew = anew or bool(stored(path).get("failed"))
    known = {} if anew else stored(path)
    begun = 0 if anew or stale(path, 0) else known["seeds"]
    for upto in [*range(begun + step, seeds, step), seeds]:
        known = sweep(path, upto, known)
        keep(path, known)
        yield known


def renew(path: Path, seeds: int, anew: bool = False) -> None:
    """Bring the record of a lesson up to this many seeds, and say so."""
    if not anew and not stale(path, seeds):
        print(f"{path.stem}: fresh, skipped; --all sweeps it again")
        return
    *_, known = grow(path, seeds, SEEDS, anew)
    print(f"{path.stem}: {len(known['claims'])} claims over {known['seeds']} seeds, recorded in "
          f"{RECORD.path(key(path)).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
