"""Submissions of stage 1's worksheet: right, partly wrong, not written, with a broken cell."""

from __future__ import annotations

import json
import random
from pathlib import Path

from dlsys_helpers import paths

STEM = "01_activations"
WRONG = {
    "01.2": "def to_probs(logits, kind):\n    return logits.softmax(-1)",
    "01.4": "def dead_units(h):\n    return int((h == 0).sum())",
    "01.5": "def soft_threshold(x, cut):\n    return x * (x.abs() > cut)",
}
BROKEN = "def grad_ratio(model, x, y):\n    return (model(x)"


def _cells(view: Path) -> dict[str, str]:
    """The exercise cells of a view by id, from the generated notebooks."""
    notebook = json.loads((view / f"{STEM}.ipynb").read_text(encoding="utf-8"))
    return {cell["metadata"]["dlsys"]["trap"]: "".join(cell["source"])
            for cell in notebook["cells"] if cell["cell_type"] == "code"
            and cell["metadata"].get("dlsys", {}).get("role") == "exercise"}


def answers(k: int) -> dict[str, str]:
    """Learner k's answers by exercise; the same k always gives the same answers."""
    right, stubs = _cells(paths.SOLUTIONS), _cells(paths.EXERCISES)
    choice = random.Random(k)
    kind = ("right", "right", "one wrong", "two wrong", "unfinished", "broken")[k % 6]
    mine = dict(right)
    if kind.endswith("wrong"):
        for id in choice.sample(sorted(WRONG), 1 if kind == "one wrong" else 2):
            mine[id] = WRONG[id]
    if kind == "unfinished":
        mine |= {id: stubs[id] for id in choice.sample(sorted(stubs), 2)}
    if kind == "broken":
        mine["01.3"] = BROKEN
    return mine


def setup() -> list[str]:
    """The cells before the first exercise."""
    notebook = json.loads((paths.EXERCISES / f"{STEM}.ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"]
            if cell["cell_type"] == "code" and cell["metadata"]["dlsys"]["role"] == "setup"]


def worksheet(k: int) -> bytes:
    """Learner k's worksheet: the generated one with the stubs replaced."""
    notebook = json.loads((paths.EXERCISES / f"{STEM}.ipynb").read_text(encoding="utf-8"))
    mine = answers(k)
    for cell in notebook["cells"]:
        facts = cell["metadata"].get("dlsys", {})
        if cell["cell_type"] == "code" and facts.get("role") == "exercise":
            cell["source"] = mine[facts["trap"]]
    return json.dumps(notebook).encode()


def write(folder: Path, n: int) -> None:
    """n worksheets, as folder/learner0007.ipynb."""
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(n):
        (folder / f"learner{k:04d}.ipynb").write_bytes(worksheet(k))
