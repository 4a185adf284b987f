"""*Your model* in the grader: a part has to pass its check, and to work in a small model.

my_parts.py arrives as text. It is cut at the lines that `dlsys parts` wrote, and never parsed here.
The course's own package is sent into the sandbox after it, because no worksheet in a sandbox may
import the package's stand-ins.
"""

from __future__ import annotations

import base64
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
from dlsys_model.part_table import Part

IN_MODEL = "in the model"  # the last case of each seed
SEEDS = 2**21  # that a small model is drawn from: its training multiplies it by a thousand
LONGEST_SAID = 200  # characters of what the small model says about a part
_TEXTS = ("prose.txt.xz", "signatures.txt.xz", "full_run.json")
_CLAIM = re.compile(r"\bclaim\(\s*\"([^\"]+)\"")


@dataclass(kw_only=True)
class ModelRow(Exercise):
    """A row of *Your model*: the cases of its exercise, `own`, then a small model with the part."""

    part: Part
    own: Exercise

    def arrange(self, seed: int) -> list[Case]:
        """The cases of the exercise, and one for the model."""
        return [*self.own.arrange(seed),
                Case(IN_MODEL, {"in_model": self.part.id, "seed": seed % SEEDS})]

    def judge(self, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Verdict:
        """The exercise's verdict; of an answer that passes, what the model says about it."""
        verdict = self.own.judge(cases[:-1], outcomes[:-1])
        if verdict.status == "pass" and (said := self.fault_in_model(cases[-1], outcomes[-1])):
            verdict = Verdict("wrong", self.id, f"passes its check, but in the model {said}.",
                              case=IN_MODEL)
        return replace(verdict, id=self.id)

    def fault_in_model(self, case: Case, outcome: Outcome) -> str:
        """What is wrong with the part in a small model; "" where it works there."""
        name = self.part.function
        if outcome.kind != "value":
            return f"{name} stops with {outcome.error_type}: {clean(outcome.error, 100)}"
        if type(outcome.value) is str:
            return f"{name} {clean(outcome.value, LONGEST_SAID)}"
        said = rehearsal.differs(rehearsal.wanted(self.part.id, case.inputs["seed"]),
                                 outcome.value)
        return said and f"{name} {said}"


@act_source.register
def _either_act(row: ModelRow) -> str:
    """The act of the exercise and the model's, by what a case holds."""
    own = act_source(row.own) or _CALL
    name = own.removeprefix("def ").partition("(")[0]
    return _ACT.replace("OWN", name) + own


_CALL = "def call(fn, **inputs):\n    return fn(*inputs.values())\n"
_ACT = '''def act_of_a_part(fn, **inputs):
    if "in_model" not in inputs:
        return OWN(fn, **inputs)
    from dlsys_model.rehearsal import held
    # A plain function: models are copied with their parts, and what a watcher keeps is not.
    return held(inputs["in_model"], lambda *args, **named: fn(*args, **named), inputs["seed"])


'''


@cache
def find(id: str) -> ModelRow:
    """The check of a row. Raises ValueError for an id that is none."""
    try:
        part = model_rows.part(id)
    except catalog.CatalogError as error:
        raise ValueError(str(error)) from None
    return ModelRow(id, part.function, part=part, own=with_cached_runs(registry.find(part.id)))


# ---- what travels into the sandbox

@cache
def package(texts: bool = False) -> str:
    """A cell that writes the course's package into the sandbox, for the cells that follow.

    texts: include the text files that the notebook reads.
    """
    folder, found = Path(dlsys_model.__file__).parent, io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in [*sorted(folder.glob("*.py")), *(folder / name for name in _TEXTS if texts)]:
            archive.write(path, f"{folder.name}/{path.name}")
    data = base64.b64encode(found.getvalue()).decode()
    return f'import base64, io, zipfile\nzipfile.ZipFile(io.BytesIO(base64.b64decode("{data}"' \
           ')), "r").extractall(".")\n'


def notebook_cells(mine: Iterable[str]) -> list[str]:
    """The cells of the course's notebook, with these functions as parts."""
    own = {one.id: one.function for one in map(model_rows.part, mine)}
    book = json.loads((paths.NOTEBOOKS / f"{YOUR_MODEL}.ipynb").read_text("utf-8"))
    code = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"
            and cell["metadata"]["dlsys"].get("role") != "install"]  # all is here
    return [package(texts=True), _LOAD.format(own=own), *code]


# No browser shows the output, so forms and pictures are text. And the stand-in for google.colab has
# to go: it is no package that could hold protobuf.
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
