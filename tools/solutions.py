"""The worked answers of the exercises, and what is kept with the tests: other right answers.

    python -m tools.solutions 01.4        the mutants of a worked answer that its check lets pass

With DRAFT=01 in the environment those of stage 1 come from its draft build.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlsys_checks import registry
from dlsys_helpers.judging import Exercise
from dlsys_helpers.paths import ROOT, SOLUTIONS
from tools import mutants

DRAFTED = ROOT / "drafts" / "solutions"
RIGHT_ANSWERS = ROOT / "tests" / "right_answers"
DRAFT = os.environ.get("DRAFT", "")  # `make test DRAFT=05`: take this stage from its draft


def answers(stage: str) -> dict[str, tuple[str, str]]:
    """The set-up code and worked answer of each exercise in a stage, such as "01", by id.

    Raises SystemExit if the stage is not built.
    """
    path = next((DRAFTED if stage == DRAFT else SOLUTIONS).glob(f"{stage}_*.ipynb"), None)
    if path is None:
        raise SystemExit(f"stage {stage}: no worked answers. Run: make build LESSON={stage}"
                         f"{' DRAFT=1' if stage == DRAFT else ''}")
    cells = [c for c in json.loads(path.read_text("utf-8"))["cells"] if c["cell_type"] == "code"]
    facts = [(c["metadata"]["dlsys"], "".join(c["source"])) for c in cells]
    setup = "\n".join(source for meta, source in facts if meta["role"] == "setup")
    return {meta["trap"]: (setup, source) for meta, source in facts if meta["role"] == "exercise"}


def stages() -> list[str]:
    """The stages with worked answers, from "01" on."""
    return [path.stem[:2] for path in sorted(SOLUTIONS.glob("[0-9][0-9]_*.ipynb"))]


def worked(id: str) -> Callable:
    """The worked answer of an exercise, in a separate namespace."""
    setup, source = answers(id[:2])[id]
    space: dict[str, Any] = {"__name__": "worksheet"}
    exec(compile(f"{setup}\n{source}", f"<{id}>", "exec"), space)
    return space[registry.find(id).function]


def with_kept_answers(id: str) -> Exercise:
    """The exercise with its right answers, probes and equivalent mutants from the tests.

    The file is tests/right_answers/s05/e3_dropout.py for the check s05/e3_dropout.py. Raises
    ValueError for an unknown exercise, SystemExit if one of the two files cannot be imported.
    """
    folder = f"src/dlsys_checks/s{id[:2]}/"
    try:
        found = registry.find(id)
        path = kept_answers_file(found)
        folder = f"tests/right_answers/{path.parent.name}/"
        if path.is_file() and path not in _read:
            spec = importlib.util.spec_from_file_location(f"right_answers.{path.stem}", path)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            _read.add(path)
    except Exception as error:
        if not (line := line_of(error, folder)):
            raise
        raise SystemExit(f"{folder} cannot be imported: {line}{type(error).__name__}: {error}. "
                         "Fix the file.") from error
    return found


_read: set[Path] = set()


def line_of(error: Exception, folder: str) -> str:
    """The last line in this folder that raised an error, as `e3_dropout.py, line 7: `; or ""."""
    lines = [(frame.filename, frame.lineno)
             for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):  # not in the traceback, since no line ran
        lines.append((error.filename or "", error.lineno))
    ours = [f"{Path(name).name}, line {number}: " for name, number in lines if folder in name]
    return ours[-1] if ours else ""


def kept_answers_file(exercise: Exercise) -> Path:
    """The file for an exercise's other right answers, which need not exist."""
    stage, module = exercise.law_fn.__module__.split(".")[-2:]
    return RIGHT_ANSWERS / stage / f"{module}.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("id", nargs="+", help="exercises, such as 01.4")
    parser.add_argument("-v", action="store_true", help="show the mutants that are killed, too")
    args, holes = parser.parse_args(), 0
    for id in args.id:
        known = answers(id[:2])
        if id not in known:
            parser.error(f"got {id}, expected one of {', '.join(known)}.")
        for name, what in mutants.fates(id, *known[id]):
            why = with_kept_answers(id).equivalents.get(name, "")
            holes += what != "killed" and not why
            if what != "killed" or args.v:
                print(f"{id} {what}: {name}{f'   [{why}]' if why else ''}", flush=True)
    sys.exit(1 if holes else 0)


if __name__ == "__main__":
    main()
