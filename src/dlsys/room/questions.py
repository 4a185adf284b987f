"""What a room asks: the guesses of a lesson, what was measured, and its exercises."""

from __future__ import annotations

import ast
import html
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from dlsys import work_folder
from dlsys_helpers import catalog, paths, promise_tables
from dlsys_helpers.catalog import Trap
from dlsys_helpers.errors import UserError
from dlsys_helpers.guesses import Measurement, Question
from dlsys_helpers.stages import Stage

CHECKS = Path(paths.__file__).parents[1] / "dlsys_checks"
NUMBER = r"(?:-?[0-9]{1,4}(?:\.[0-9]{1,4})?|one|two|three|four|five|six|seven|eight|nine|ten)"
_LABEL = re.compile(r"\s+(\*\*[^*]+:\*\*)")  # begins a paragraph, as on a slide
_HEADINGS = re.compile(r"^##+ .*$", re.M)
_CLAIM = re.compile(r"holds: (.*): ([^,]+?)(?:, [^:]*)?", re.S)  # without its bound
_STORED = re.compile(r'data-measured="([^"]*)"')


class RoomError(UserError):
    """A room cannot be opened, joined or left. The message says why, and what to do."""


class Item(NamedTuple):
    """A trap in a room: its question, the answer, and what its exercise knows.

    mistakes: a pattern for the name of each wrong answer, and what to ask about it. Markdown:
    situation, what one has to know to guess; code, which looks right and is wrong; keep, what to
    take home. found: the measured number, if the answer is a choice.
    """

    trap: Trap
    asked: Question
    measured: Measurement
    mistakes: dict[str, str]
    situation: str
    code: str
    keep: str
    found: str = ""

    def ask(self, mistake: str) -> str | None:
        """What to ask about a named mistake; None for a name that the exercise does not know."""
        return next((ask for pattern, ask in self.mistakes.items()
                     if re.fullmatch(pattern, mistake)), None)


def of_stage(stage: Stage) -> list[Item]:
    """The questions of a stage, in lesson order. Raises RoomError."""
    return items(_read(paths.NOTEBOOKS / f"{stage.stem}.ipynb"), None)


def of_release(folder: Path) -> tuple[list[int], list[Item]]:
    """The stages of a release folder and their questions. Raises RoomError."""
    lessons = {n: folder / f"{n:02d}_lesson.ipynb" for n in _stages(folder)}
    found = {n: path for n, path in lessons.items() if path.is_file()}
    if not found:
        raise RoomError(f"--release: {folder} has no lesson, expected a folder that dlsys "
                        "release made, with 08_lesson.ipynb and RELEASE.json.")
    shipped = {n: paths.NOTEBOOKS / f"{_stage(n).stem}.ipynb" for n in found}
    return list(found), [item for n, path in found.items()
                         for item in items(_read(path), _read(shipped[n]))]


def _stages(folder: Path) -> list[int]:
    try:
        stages = json.loads((folder / "RELEASE.json").read_text("utf-8"))["stages"]
        return [_stage(n).number for n in stages]
    except OSError as error:
        why = error.strerror
    except (ValueError, KeyError, TypeError, UserError):
        why = "it is damaged"
    raise RoomError(f"--release: {folder}/RELEASE.json cannot be read ({why}), expected the folder "
                    "that dlsys release made.")


def _stage(number: int) -> Stage:
    return work_folder.stage_of(number)


def _read(path: Path) -> dict:
    try:
        book = json.loads(path.read_bytes())
        [cell["cell_type"] for cell in book["cells"]]
        return book
    except OSError as error:
        why = error.strerror
    except (ValueError, KeyError, TypeError):
        why = "it is damaged or not a notebook"
    raise RoomError(f"{path.parent.name}/{path.name}: cannot be read ({why}).")


def items(lesson: dict, shipped: dict | None) -> list[Item]:
    """The questions of a lesson's guesses.

    shipped: the course's own copy of a lesson that was released without outputs. What was measured
    there counts if both ask the same question and accept the same answers.
    """
    asked, right, stored = _questions(lesson), _right(lesson), _measured(lesson)
    numbers = shipped or lesson
    if shipped:
        same = _questions(shipped)
        stored |= {id: m for id, m in _measured(shipped).items()
                   if same.get(id) == asked.get(id) and m.right == right.get(id)}
    return [Item(trap := catalog.trap(id), question,
                 stored.get(id) or Measurement(id, _in_words(question, right[id]), right[id]),
                 mistakes(trap), _situation(lesson, id), _code(lesson, id), _keep(lesson, id),
                 number_behind(numbers["cells"], id, question.text)
                 if question.choices and id in stored else "")
            for id, question in asked.items() if id in right]


def _in_words(asked: Question, right: str | tuple[float, float]) -> str:
    """The answer if no run is stored: what counts as right."""
    return asked.named(right) if asked.choices else f"{right[0]:g} to {right[1]:g} {asked.unit}"


def _questions(lesson: dict) -> dict[str, Question]:
    found = {}
    for call in _calls(lesson, "guess"):
        options = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        id, text = (ast.literal_eval(part) for part in call.args)
        found[id] = Question(id, text, tuple(options.get("choices", ())), options.get("unit", ""))
    return found


def _right(lesson: dict) -> dict[str, str | tuple[float, float]]:
    asked, found = _questions(lesson), {}
    for call in _calls(lesson, "measured"):
        id = ast.literal_eval(call.args[0])
        band = [word.value for word in call.keywords if word.arg == "right"]
        found[id] = (tuple(map(float, ast.literal_eval(band[0]))) if band
                     else asked[id].choices[ast.literal_eval(call.args[1])])
    return found


def _measured(lesson: dict) -> dict[str, Measurement]:
    """What a run stored, by id: guesses.py writes it as data into its output."""
    found = {}
    for cell in lesson["cells"]:
        for output in cell.get("outputs", []):
            page = "".join(output.get("data", {}).get("text/html", ""))
            for facts in _STORED.findall(page):
                one = json.loads(html.unescape(facts))
                right = one["right"]
                found[one["id"]] = Measurement(one["id"], one["shown"], right if isinstance(
                    right, str) else tuple(map(float, right)))
    return found


def number_behind(cells: Iterable[dict], id: str, question: str) -> str:
    """The number behind a trap's answer, with what it is, as a sentence; "" if none is stored.

    A choice such as "more than 4" says little without it. It is the first claim below what was
    measured and above the repair, else what the lesson printed last above it. A difference does not
    answer "how many", and a value that is no fraction does not answer "what percentage".
    """
    own = [cell for cell in cells if cell["metadata"].get("dlsys", {}).get("trap") == id]
    at = next((n for n, cell in enumerate(own)
               if "measured" in cell["metadata"].get("tags", [])), len(own))
    below = takewhile(lambda cell: cell["metadata"]["dlsys"].get("role") not in ("repair", "keep"),
                      own[at:])
    said = ("".join(out.get("data", {}).get("text/plain", "")) for out in _outputs(below))
    claim = next(filter(None, map(_CLAIM.fullmatch, said)), None)
    beside = claim and ((question.startswith("How many of") and " minus " in claim[1])
                        or (question.startswith("What percentage")
                        and "fraction" not in claim[1].lower()))
    if claim and not beside:
        return catalog.sentence_case(f"{claim[1]}: {claim[2]}.")
    printed = ["".join(out["text"]) for out in _outputs(own[:at]) if "text" in out]
    return " ".join(printed[-1].strip().replace("\n", "; ").split()) if printed else ""


def _outputs(cells: Iterable[dict]) -> Iterator[dict]:
    for cell in cells:
        yield from cell.get("outputs", [])


def _calls(lesson: dict, name: str) -> Iterator[ast.Call]:
    """The calls of a helper in the cells that are made for it, which carry its name as a tag."""
    for cell in lesson["cells"]:
        if name in cell["metadata"].get("tags", []):
            for node in ast.walk(ast.parse("".join(cell["source"]))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name:
                    yield node


def _situation(lesson: dict, id: str) -> str:
    return _HEADINGS.sub("", "\n\n".join(_sources(lesson, id, "situation", "markdown"))).strip()


def _code(lesson: dict, id: str) -> str:
    return "\n\n".join(f"```python\n{source}\n```"
                       for source in _sources(lesson, id, "break", "code"))


def _keep(lesson: dict, id: str) -> str:
    return _LABEL.sub(r"\n\n\1", "\n\n".join(_sources(lesson, id, "keep", "markdown")))


def _sources(lesson: dict, id: str, role: str, kind: str) -> Iterator[str]:
    """The cells of one step of a trap, except those that a lesson folds."""
    for cell in lesson["cells"]:
        what = cell["metadata"].get("dlsys", {})
        if (cell["cell_type"] == kind and (what.get("trap"), what.get("role")) == (id, role)
                and not cell["metadata"].get("jupyter", {}).get("source_hidden")):
            yield "".join(cell["source"])


# ---- exercises

def mistakes(trap: Trap) -> dict[str, str]:
    """Patterns of an exercise's named wrong answers, each with a question for learners who make it.

    They are read without running the checks, which import torch. A room shows no other names: what
    a participant sends would be shown on the wall.
    """
    promises, wrong = {}, {}
    for path in (CHECKS / f"s{trap.id[:2]}").glob(f"e{trap.id[3:]}_*.py"):
        for node in _calls_at_the_top(ast.parse(path.read_text("utf-8"))):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called == "promise":
                promises[_pattern(node.args[0])] = _pattern(node.args[1])
            elif called == "promise_table":
                promises |= {re.escape(row.key): re.escape(row.text)
                             for row in promise_tables.read(node.args[0].value)}
            elif called.startswith("wrong"):  # ex.wrong, or what ex.edits returned
                broken = [w.value for w in node.keywords if w.arg == "breaks"] or node.args[1:2]
                wrong[_pattern(node.args[0])] = [_pattern(key) for keys in broken
                                                 for key in _each(keys)]
    return {name: _ask(trap, [promises[key] for key in broken if key in promises])
            for name, broken in wrong.items()}


def _calls_at_the_top(module: ast.Module) -> Iterator[ast.Call]:
    """The calls that are statements or decorators of a module."""
    for node in module.body:
        found = [node.value] if isinstance(node, ast.Expr) else getattr(node, "decorator_list", [])
        yield from (one for one in found if isinstance(one, ast.Call))


def _each(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _pattern(node: ast.expr) -> str:
    """A string in the code as a pattern; a number drawn for a class matches any number."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else NUMBER
                   for part in parts)


def _ask(trap: Trap, broken: list[str]) -> str:
    """The piece of the docstring that a mistake breaks, as a question; else the presenter's."""
    if broken:
        text = re.sub(r"\\(.)", r"\1", broken[0].replace(NUMBER, "..."))
        return f"Which of your lines keeps this promise? “{text}”"
    asks = [one["ask"] for one in questions_that_come(int(trap.id[:2])) if one["trap"] == trap.id]
    return (*asks, *trap.hints, "")[0]


def questions_that_come(stage: int) -> list[dict]:
    """What a presenter is asked and asks: trap, ask, answer; none if the book is not here."""
    return _presenting(stage).get("questions", [])


def to_break_live(stage: int) -> dict[str, str]:
    """What to change live, by trap; nothing if the book is not here."""
    return _presenting(stage).get("live", {})


def _presenting(stage: int) -> dict:
    return _written().get(stage, {})


@cache
def _written() -> dict[int, dict]:
    file = paths.ROOT / "book" / "present.yml"
    if not file.exists():  # a wheel has no book
        return {}
    import yaml
    return yaml.safe_load(file.read_text("utf-8"))
