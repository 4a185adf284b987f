"""Bring a lesson's notebooks and records up to date, step by step; call again to continue.

    python -m tools.finish 05

Builds the lesson, runs its core path alone, proves the checks that have no fresh proof, sweeps the
claims over five seeds, and measures the symptom finder, whose rows name every trap. Skips a step
whose record is fresh, and saves the sweep's record after each seed. The nightly run does fifty
seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from dlsys_helpers.lesson_names import key
from dlsys_helpers.paths import NOTEBOOKS, ROOT
from tools import build, core_path, finder_record, lessons, proof, rows, sweep, trap_rows
from tools.rows import Row


class Step(NamedTuple):
    """One record of a lesson: its name, whether it is still to do, and the function that renews it.

    renew returns rows that say what prevents it; none if it wrote the record.
    """

    name: str
    is_left: Callable[[], bool]
    renew: Callable[[Console], list[Row]]


def steps(source: lessons.Source) -> Iterator[Step]:
    """The records of a built lesson. The finder comes last: its score may take several tries."""
    notebook = notebook_of(source)
    if source.path.stem.startswith("00"):  # the start page has no claims
        return
    if source.stage:  # *Your model* has neither traps nor exercises
        yield Step("core path", lambda: lacks_core(notebook),
                   lambda console: ran_alone(console, source))
        yield Step("proofs", lambda: bool(unproven(source)),
                   lambda console: proved(console, source))
    yield Step("sweep over five seeds", lambda: lacks_sweep(notebook),
               lambda console: swept(console, source))
    yield Step("the finder's score",
               lambda: bool(finder_record.stale() or finder_record.fallen()), scored)


def notebook_of(source: lessons.Source) -> Path:
    return NOTEBOOKS / f"{source.path.stem}.ipynb"


def command(module: str, *words: str) -> list[str]:
    """Run a command of tools/ to its end; returns its output, empty if it succeeded."""
    done = subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = [line for line in done.stdout.splitlines() if line.strip()]
    return (said or [f"ended with {done.returncode}"]) if done.returncode else []


# ---- the notebooks

def built(console: Console, source: lessons.Source) -> list[Row]:
    """Build the lesson; a cell that fails is the only row."""
    with rows.step(console, "build") as say:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                build.write_lessons([source])
        except build.CellFailed as failed:
            say("a cell failed")
            return [Row(trap_rows.place_of_cell(source, str(failed)), str(failed))]
        say("notebooks, worksheet, answers, catalog, README's table")
    return []


# ---- the core path

def lacks_core(notebook: Path) -> bool:
    return notebook in core_path.lessons() and bool(core_path.stale(notebook))


def ran_alone(console: Console, source: lessons.Source) -> list[Row]:
    with rows.step(console, "core") as say:
        said = command("tools.core_path", f"{source.stage:02d}")
        say("path does not run alone" if said else "path runs alone")
    return [Row(source.name, f"The core path does not run alone: {said[-1]}. Define what it needs "
                "on the path or in the set-up.")] if said else []


# ---- the proofs

def unproven(source: lessons.Source) -> list[str]:
    """The exercises of a lesson whose record is missing or stale."""
    for kept in (proof.fresh, proof.has_fresh_feedback):  # of the answers before the build
        kept.cache_clear()
    return [id for id in source.traps if not proof.has_fresh_feedback(id)]


def proved(console: Console, source: lessons.Source) -> list[Row]:
    """Prove each exercise that is left, and record each at once."""
    found: list[Row] = []
    wanted = unproven(source)
    for place, id in enumerate(wanted, 1):
        with rows.step(console, "proof") as say:
            said = command("tools.proof", id)
            say(f"{id}, {place} of {len(wanted)}: {'not proven' if said else 'proven'}")
        found += trap_rows.proof_rows(id, trap_rows.files_of(id), said)
    return found


# ---- the symptom finder, whose rows name every trap

def scored(console: Console) -> list[Row]:
    with rows.step(console, "finder") as say:
        said = command("tools.finder_record")
        say("not measured" if said else "measured on what people wrote")
    if said:
        return [Row("book/symptoms.yml", f"The finder cannot be measured: {said[-1]}")]
    return [Row(finder_record.FLOORS_AT, fallen) for fallen in finder_record.fallen()]


# ---- the claims

def lacks_sweep(notebook: Path) -> bool:
    """Whether a lesson's current claims are not swept yet, or one did not hold."""
    return bool(sweep.stale(notebook, sweep.SEEDS) or sweep.stored(notebook)["failed"])


def swept(console: Console, source: lessons.Source) -> list[Row]:
    """Sweep seed by seed, with a record after each, so that stopping loses only one seed."""
    notebook = notebook_of(source)
    sweep.refuse_other_versions()
    growing = sweep.grow(notebook, sweep.SEEDS, 1)
    known: dict[str, Any] = {"seeds": 0, "failed": []}
    while known["seeds"] < sweep.SEEDS and not known["failed"]:
        with rows.step(console, "sweep") as say:
            with contextlib.redirect_stdout(io.StringIO()):
                known = next(growing)
            say(f"seed {known['seeds']} of {sweep.SEEDS}, {len(known['claims'])} claims, "
                f"{len(known['failed'])} do not hold")
    return trap_rows.claim_rows(source, known["failed"])


# ---- all of it

def finish(source: lessons.Source) -> list[Row]:
    """Run the steps that are left until one finds something; returns its rows."""
    console = rows.screen()
    if found := built(console, source):
        return found
    if left := [step for step in steps(source) if step.is_left()]:
        console.print(f"left     {', '.join(step.name for step in left)}")
    return next(filter(None, (step.renew(console) for step in left)), [])


def changed() -> str:
    """The new and changed files in `git status`; empty outside of a clone."""
    done = subprocess.run(["git", "status", "--short"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="make finish", usage="make finish LESSON=05")
    parser.add_argument("lesson")
    [path] = build.paths_of([parser.parse_args().lesson])
    try:
        source = lessons.read(path)
        found = finish(source)
    except KeyboardInterrupt:
        print(f"\nStopped. What was recorded stays. Next: make finish LESSON={key(path)}")
        sys.exit(130)
    except lessons.RuleBroken as broken:
        found = [Row(broken.place, str(broken).partition(": ")[2])]
    if found:
        rows.show(rows.screen(), found)
        sys.exit(1)
    print(f"{source.path.stem} is built and recorded. Commit what git status lists:", changed(),
          "Next: make test", sep="\n")


if __name__ == "__main__":
    main()
