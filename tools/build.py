"""lessons/*.py -> notebooks/, exercises/, solutions/, the package's catalog and README's table.

    python -m tools.build            everything
    python -m tools.build 01         one lesson
    python -m tools.build 05 --draft an unfinished lesson, into drafts/; says what it lacks
    python -m tools.build --check    write nothing, exit 1 when a generated file is out of date

A notebook runs where its code, or anything else that its outputs rest on, has changed since they
were stored; else they are kept. `--again` runs it in any case.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from dlsys_helpers import catalog, lesson_names, paths
from dlsys_helpers.catalog import Trap
from dlsys_helpers.paths import NOTEBOOKS, ROOT
from tools import core_path, lessons, new, proof, readme, stored_outputs, sweep, words
from tools.canonical import canonical
from tools.execution import CellFailed, run
from tools.lessons import Source
from tools.views import all_views, as_text

FOLDERS = {"lesson": "notebooks", "exercise": "exercises", "solution": "solutions"}
DRAFTS = "drafts"  # ignored by git and by every command, test and page


def build(source: Source, again: bool = False) -> list[str]:
    """Write the notebooks of a lesson, run where no stored outputs fit; a draft's under drafts/.

    again: run them even then. Raises CellFailed; for a draft, returns the failures of all its
    notebooks and writes them all the same, so that you can look at them.
    """
    failed = []
    for view, book in all_views(source).items():
        name = f"{DRAFTS}/" * source.draft + f"{FOLDERS[view]}/{source.path.stem}.ipynb"
        path, began = ROOT / name, time.perf_counter()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            how = "written" if view == "exercise" else with_outputs(book, name, again)
        except CellFailed as failure:
            if not source.draft:
                raise
            failed.append(str(failure))
            how = "failed"
            book.metadata["dlsys"].pop("rests_on")
        # The start page's map shows one learner's progress in one state of the course.
        if source.path.stem.startswith("00"):
            book = stored_outputs.without_outputs(book)
        canonical(book)
        if "rests_on" in book.metadata["dlsys"]:
            stored_outputs.sign(book)
        path.write_text(as_text(book), encoding="utf-8")
        print(f"{name}: {how} ({time.perf_counter() - began:.1f} s)", flush=True)
        if source.draft and view == "solution":
            print(*verdicts(book), sep="\n")
    return failed


def with_outputs(book: NotebookNode, name: str, again: bool) -> str:
    """Give a notebook the outputs stored under this name, or run it; says which, and why."""
    old = nbformat.read(ROOT / name, as_version=4) if (ROOT / name).exists() else None
    why = ["asked to"] if again else why_run(book, old)
    if why:
        run(book, name)
        if old:
            stored_outputs.keep_pictures(canonical(book), old)
        return f"run: {', '.join(why)}"
    stored_outputs.keep_outputs(book, old)
    return "outputs kept, no code changed"


def why_run(book: NotebookNode, old: NotebookNode | None) -> list[str]:
    """Why a notebook has to run, given the stored one; [] if its outputs can be kept."""
    if old is None:
        return ["new"]
    if "rests_on" not in old.metadata["dlsys"]:
        return ["no outputs stored"]
    return stored_outputs.changes(book, old)


def build_draft(path: Path, again: bool) -> int:
    """Write a lesson under drafts/, say what it lacks and what comes next; returns its status."""
    source = lessons.read(path, draft=True)
    failed = build(source, again)
    missing = [*failed, *source.notes]
    lacks = f"{len(missing)} thing{'s' * (len(missing) != 1)}:" if missing else "nothing."
    print(f"{path.name} lacks {lacks}", *missing, sep="\n  ")
    if source.traps:
        print(new.next_steps(source.traps[-1]))
    return bool(failed)


def verdicts(book: NotebookNode) -> list[str]:
    """What the checks of a draft's worked answers printed."""
    return [output.text.strip() for cell in book.cells if cell.metadata["dlsys"]["role"] == "check"
            for output in cell.outputs if output.output_type == "stream"]


def catalog_files(sources: list[Source]) -> dict[Path, str]:
    """What the lessons declare, for the package at run time: each stage's file and its JSON."""
    return {catalog.path(source.stage): as_json([
        source.task(trap) for trap in source.traps])
        for source in sources if source.stage}


def as_json(traps: list[Trap]) -> str:
    return json.dumps([asdict(trap) for trap in traps], indent=1, ensure_ascii=False) + "\n"


def stale(sources: list[Source]) -> list[str]:
    """Generated files that a build would change; among outputs, only explorers' pictures count."""
    found = []
    for source in sources:
        for view, book in all_views(source).items():
            path = ROOT / FOLDERS[view] / f"{source.path.stem}.ipynb"
            found += out_of_date(path, book)
    wanted = catalog_files(sources)
    stored = {path: path.read_text("utf-8") for path in catalog.FOLDER.glob("*.json")}
    return found + [str(path.relative_to(ROOT)) for path in sorted({*wanted, *stored})
                    if wanted.get(path) != stored.get(path)]


def paths_of(only: list[str]) -> list[Path]:
    """The lesson files, all or those with these numbers. Raises SystemExit if there are none."""
    found = lesson_names.with_model(paths.lessons())
    wanted = {one if one == lesson_names.YOUR_MODEL else one.zfill(2)[:2] for one in only}
    chosen = [p for p in found if not only or lesson_names.key(p) in wanted]
    if not chosen:
        raise SystemExit(f"lessons: got {', '.join(only) or 'none'}, expected one of "
                         f"{', '.join(map(lesson_names.key, found))}.")
    return chosen


def out_of_date(path: Path, book: NotebookNode) -> list[str]:
    """What is out of date in a notebook's file: all of it, its outputs, or explorers."""
    name = str(path.relative_to(ROOT))
    if not path.exists():
        return [name]
    old = nbformat.read(path, as_version=4)
    new, stored = map(stored_outputs.without_outputs, (canonical(book), old))
    if as_text(new) != as_text(stored):
        return [name]
    if "rests_on" in old.metadata["dlsys"] and (
            "outputs" not in old.metadata["dlsys"] or stored_outputs.edited(old)):
        return [f"{name}: outputs"]
    return [f"{name}: {picture}" for picture in stored_outputs.stale_pictures(old)]


def sources_of(only: list[str]) -> list[Source]:
    """The lessons, all or those whose number is named. Raises RuleBroken, SystemExit for none."""
    found = [lessons.read(path) for path in paths_of(only)]
    for source in found:
        for what in words.lost(source.cells, source.stage) if source.stage else ():
            source.refuse(None, what, "Name the word there, or change its row.",
                          "src/dlsys/glossary.csv")
    return found


def write_lessons(chosen: list[Source], again: bool = False) -> None:
    """Write all that is generated from these lessons. Raises CellFailed."""
    from tools import book_finder  # a draft needs neither the book nor the watch's records

    catalog.FOLDER.mkdir(exist_ok=True)
    for path, text in catalog_files(chosen).items():
        path.write_text(text, encoding="utf-8")
    for source in chosen:
        build(source, again)
    readme.update(Path(ROOT / "README.md"))
    book_finder.update()


def stale_records(source: Source) -> Iterator[str]:
    """One line for each record in tests/records/ that is stale after a build."""
    path = NOTEBOOKS / f"{source.path.stem}.ipynb"
    if line := sweep.stale(path):
        yield line
    if path in core_path.lessons() and (line := core_path.stale(path)):
        yield line
    if line := proof.stale(source.path.stem, source.traps):
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lesson", nargs="*", help="numbers of lessons to build; all when absent")
    parser.add_argument("--again", action="store_true", help="run also what could keep its outputs")
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    parser.add_argument("--draft", action="store_true", help="the named lessons, finished or not")
    args = parser.parse_args()
    if args.draft and not args.lesson:
        parser.error("--draft: name a lesson, as in: make build LESSON=05 DRAFT=1")
    if args.draft:
        sys.exit(max([build_draft(path, args.again) for path in paths_of(args.lesson)]))
    if args.check:
        found = stale(sources_of([]))
        sys.exit(f"out of date: {', '.join(found)}. Run: make build" if found else 0)
    chosen = sources_of(args.lesson)
    write_lessons(chosen, args.again)
    for source in chosen:
        if not source.path.stem.startswith("00") and (left := [*stale_records(source)]):
            print(*(line.partition(" Run: ")[0] for line in left),
                  f"Next: make finish LESSON={lesson_names.key(source.path)}", sep="\n")


if __name__ == "__main__":
    main()
