"""*Your model* in the grader: a part has to pass its check, and to work in a small model.

my_parts.py arrives as text. It is cut at the lines that `dlsys parts` wrote, and never parsed here.
No sandbox that answers a check ever holds the package with the stand-ins. The trial in a small
model needs them, so it comes after all checks, each part in a process that lacks its own stand-in.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import dlsys_model
from dlsys import model_rows
from dlsys.grading.acts import act_source
from dlsys.grading.text import clean
from dlsys.remembering import with_cached_runs
from dlsys_checks import registry
from dlsys_helpers import catalog, paths
from dlsys_helpers.acting import Case, Outcome
from dlsys_helpers.judging import Exercise
from dlsys_helpers.lesson_names import YOUR_MODEL
from dlsys_helpers.verdicts import Verdict
from dlsys_model import rehearsal
from dlsys_model.part_table import CATALOGUE, Part

IN_MODEL = "in the model"  # the case of a trial
SEEDS = 2**21  # of small models, whose training multiplies the seed by a thousand
LONGEST_SAID = 200  # characters of what the small model says about a part
_TEXTS = ("prose.txt.xz", "signatures.txt.xz", "full_run.json")
_CLAIM = re.compile(r"\bclaim\(\s*\"([^\"]+)\"")


@dataclass(kw_only=True)
class ModelRow(Exercise):
    """A row of *Your model*: its exercise, `own`, then a trial of the part in a small model."""

    part: Part
    own: Exercise

    def arrange(self, seed: int) -> list[Case]:
        """The cases of the exercise."""
        return self.own.arrange(seed)

    def judge(self, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Verdict:
        """The exercise's verdict."""
        return replace(self.own.judge(cases, outcomes), id=self.id)

    def trial(self, seed: int) -> Case:
        """The case of a small model with this part. Its own seed says nothing about the check's."""
        drawn = int.from_bytes(hashlib.sha256(f"trial {seed}".encode()).digest()[:8], "big")
        return Case(IN_MODEL, {"part": self.part.id, "function": self.part.function,
                               "seed": drawn % SEEDS, "files": trial_files(self.part.function)})

    def fault_in_model(self, case: Case, outcome: Outcome) -> str:
        """What is wrong with the part in a small model; "" if it works there."""
        name = self.part.function
        if outcome.kind != "value":
            return f"{name} stops with {outcome.error_type}: {clean(outcome.error, 100)}"
        if type(outcome.value) is str:
            return f"{name} {clean(outcome.value, LONGEST_SAID)}"
        said = rehearsal.differs(rehearsal.wanted(self.part.id, case.inputs["seed"]),
                                 outcome.value)
        return said and f"{name} {said}"


@act_source.register
def _act_of_its_exercise(row: ModelRow) -> str:
    return act_source(row.own)


# Stand-ins that call the part's own stand-in get the learner's function instead.
TRIAL = '''def trial_of_a_part(fn, part, function, seed, files):
    import os
    os.makedirs("dlsys_model", exist_ok=True)
    for name, source in files.items():
        with open(f"dlsys_model/{name}", "w", encoding="utf-8") as file:
            file.write(source)
    from dlsys_model import rehearsal, standins
    # A plain function: models are copied with their parts, and what a watcher keeps is not.
    plain = lambda *args, **named: fn(*args, **named)
    setattr(standins, function, plain)
    return rehearsal.held(part, plain, seed)
'''


@cache
def find(id: str) -> ModelRow:
    """The check of a row. Raises ValueError for an unknown id."""
    try:
        part = model_rows.part(id)
    except catalog.CatalogError as error:
        raise ValueError(str(error)) from None
    return ModelRow(id, part.function, part=part, own=with_cached_runs(registry.find(part.id)))


# ---- what travels into the sandbox

FOLDER = Path(dlsys_model.__file__).parent
_IMPORT = re.compile(r"^\s*from dlsys_model(?:\.(\w+) import| import (.+))", re.M)


@cache
def trial_files(function: str) -> dict[str, str]:
    """The modules for a trial of this part, by file name, without what could stand in for it.

    Modules that the trial does not need are left out, because some of them do what a part does.
    """
    found, todo = {}, ["__init__", "rehearsal"]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found[name] = source = (FOLDER / f"{name}.py").read_text("utf-8")
        for module, imported in _IMPORT.findall(source):
            todo += [module] if module else re.findall(r"\w+(?=,|$)", imported)
    others = {part.function for part in CATALOGUE} - {function}
    # Stand-ins that call the part on trial call the learner's function, which TRIAL puts there.
    found["standins"] = only(found["standins"], others, function)
    found["pack"] = only(found["pack"], {"GROUP", "halved"})  # without the grid, which is 11.1
    return {f"{name}.py": source for name, source in found.items()}


def only(source: str, wanted: Iterable[str], without: str = "") -> str:
    """A module cut down to its imports, these names and what they need, except for one name."""
    body = ast.parse(source).body
    owned = {name: node for node in body for name in _bound(node) if name != without}
    kept, todo = set(), [name for name in wanted if name in owned]
    while todo:
        node = owned[todo.pop()]
        if node not in kept:
            kept.add(node)
            todo += [one.id for one in ast.walk(node)
                     if isinstance(one, ast.Name) and one.id in owned]
    return "\n".join(ast.unparse(node) for node in body
                     if node in kept or isinstance(node, ast.Import | ast.ImportFrom))


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


@cache
def package() -> str:
    """A cell that writes the course's whole package into the sandbox, for the course's notebook."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in [*sorted(FOLDER.glob("*.py")), *(FOLDER / name for name in _TEXTS)]:
            archive.write(path, f"{FOLDER.name}/{path.name}")
    data = base64.b64encode(found.getvalue()).decode()
    return f'import base64, io, zipfile\nzipfile.ZipFile(io.BytesIO(base64.b64decode("{data}"' \
           ')), "r").extractall(".")\n'


def notebook_cells(mine: Iterable[str]) -> list[str]:
    """The cells of the course's notebook, with these functions as parts."""
    own = {one.id: one.function for one in map(model_rows.part, mine)}
    book = json.loads((paths.NOTEBOOKS / f"{YOUR_MODEL}.ipynb").read_text("utf-8"))
    code = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"
            and cell["metadata"]["dlsys"].get("role") != "install"]  # everything is installed
    return [package(), _LOAD.format(own=own), *code]


# No browser shows the output, so forms and pictures are text. The stand-in for google.colab must
# go, because it is not a package that could contain protobuf.
_LOAD = '''import sys
from dlsys_helpers import cards
for name in ("google", "google.colab"):
    sys.modules.pop(name, None)
cards.shell, cards.watched = (lambda: None), (lambda: False)
import dlsys_model.parts as _parts
_mine = {{id: globals()[name] for id, name in {own!r}.items()}}
_parts.load = lambda *_: _parts.Parts(_mine)


def claims_made():
    from dlsys_helpers import claims
    return [[one.text, one.holds] for one in claims.LOG]
'''


def claims(cells: Iterable[str]) -> list[str]:
    """The texts of all claims that the cells make, in their order."""
    return [text for source in cells for text in _CLAIM.findall(source)]


def claims_that_held(known: list[str], sent: Any) -> tuple[list[str], list[str]]:
    """The known claims that held, and the known claims that did not.

    sent: what the sandbox sent, which may be anything.
    """
    found: dict[str, bool] = {}
    for pair in sent if type(sent) is list else []:
        match pair:
            case [str(text), bool(holds)] if text in known:
                found[text] = found.get(text, True) and holds
    return ([text for text in known if found.get(text) is True],
            [text for text in known if found.get(text) is False])
