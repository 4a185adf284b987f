"""The worked answers of the exercises, read from the notebooks that the builder made.

    python -m tools.worked 01.4        the mutants of a worked answer that its check lets pass
"""

from __future__ import annotations

import argparse
import json
import sys

from dlsys_helpers import checking
from dlsys_helpers.paths import ROOT, SOLUTIONS
from tools import mutants

DRAFTED = ROOT / "drafts" / "solutions"


def answers(stage: str) -> dict[str, tuple[str, str]]:
    """Set-up code and worked answer of each exercise of a stage, "01", by id.

    Of a draft, those that its last build left in drafts/. Raises SystemExit where there are none.
    """
    found = [*SOLUTIONS.glob(f"{stage}_*.ipynb"), *DRAFTED.glob(f"{stage}_*.ipynb")]
    if not found:
        raise SystemExit(f"stage {stage}: no worked answers. Run: make build LESSON={stage}, with "
                         "DRAFT=1 for a draft")
    path = found[0]
    cells = [c for c in json.loads(path.read_text("utf-8"))["cells"] if c["cell_type"] == "code"]
    facts = [(c["metadata"]["dlsys"], "".join(c["source"])) for c in cells]
    setup = "\n".join(source for meta, source in facts if meta["role"] == "setup")
    return {meta["trap"]: (setup, source) for meta, source in facts if meta["role"] == "exercise"}


def stages() -> list[str]:
    """The stages that have worked answers, "01" and on."""
    return [path.stem[:2] for path in sorted(SOLUTIONS.glob("[0-9][0-9]_*.ipynb"))]


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
            why = checking.find(id).equivalents.get(name, "")
            holes += what != "killed" and not why
            if what != "killed" or args.v:
                print(f"{id} {what}: {name}{f'   [{why}]' if why else ''}", flush=True)
    sys.exit(1 if holes else 0)


if __name__ == "__main__":
    main()
