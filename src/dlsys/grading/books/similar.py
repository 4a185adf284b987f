"""Find answers that are like each other or like a published one, exercise by exercise.

The list is only for the instructor to look at; it decides nothing.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

from dlsys import assignments
from dlsys.grading import shapes
from dlsys.grading.books.people import Result, names, owner
from dlsys_helpers import catalog, paths

# In 1,507 pairs of right answers to one exercise, written independently, no two have the same form,
# and the closest share 45 % of their marks. Below LEAST parts there are few ways to write code.
LEAST_EXACT, LEAST, NEAR = 20, 40, 0.6
WORDS = {"exact": "word for word", "form": "the same except for names", "near": "nearly the same"}


@dataclass(frozen=True)
class Alike:
    """Answers to one exercise. published: the published answer that they are like, or "".

    kind: a key of WORDS, the weakest among them. who: names of learners. size: parts of the code.
    """

    exercise: str
    kind: str
    who: tuple[str, ...]
    size: int
    published: str = ""


def alike_answers(results: Sequence[Result]) -> list[Alike]:
    """Groups of learners with similar answers and matches with published answers, by exercise."""
    shown = names(results)
    by_exercise: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for result in results:
        for entry in (*result["exercises"], *result.get("beyond", [])):
            if shape := entry.get("shape"):
                by_exercise.setdefault(entry["id"], []).append((
                    shown[owner(result)], {**shape, "marks": frozenset(shape["marks"])}))
    return [one for id, answers in sorted(by_exercise.items(), key=lambda item: _order(item[0]))
            for one in _of_exercise(id, answers)]


def _of_exercise(id: str, answers: list[tuple[str, dict[str, Any]]]) -> list[Alike]:
    """Matches with published answers, then those among learners that no published answer explains.

    Two answers that are only near a published one are listed as well if they have the same form,
    because they may share a mistake.
    """
    likes = [_best_like(id, shape) for _, shape in answers]
    pairs = list(zip(answers, likes, strict=True))
    apart = [answer for answer, like in pairs if like is None]
    near = [answer for answer, like in pairs if like and like[0] == "near"]
    return [*_with_published(id, answers), *_in_class(id, apart),
            *_in_class(id, near, joining=False)]


def _best_like(id: str, shape: dict[str, Any]) -> tuple[str, str] | None:
    """The kind and name of the published answer that an answer is most like."""
    likes = [(kind, name) for name, other in published(id) if (kind := kind_of(shape, other))]
    return min(likes, key=lambda pair: [*WORDS].index(pair[0]), default=None)


def _order(id: str) -> list[int]:
    return [int(part) for part in id.split(".")]


def kind_of(a: dict[str, Any], b: dict[str, Any]) -> str:
    """How two answers are alike, a key of WORDS, or ""."""
    size = min(a["size"], b["size"])
    if a["exact"] == b["exact"] and size >= LEAST_EXACT:
        return "exact"
    if size < LEAST:
        return ""
    if a["form"] == b["form"]:
        return "form"
    fewer, more = sorted((len(a["marks"]), len(b["marks"])))
    return "near" if fewer >= NEAR * more and shapes.likeness(a, b) >= NEAR else ""


def _in_class(id: str, answers: Iterable[tuple[str, dict[str, Any]]],
              joining: bool = True) -> list[Alike]:
    """Groups of at least two learners whose answers are alike.

    joining: also put answers that are nearly the same into one group.
    """
    by_form: dict[str, tuple[dict[str, Any], set[str], set[str]]] = {}
    for who, shape in answers:
        group = by_form.setdefault(shape["form"], (shape, set(), set()))
        group[1].add(who)
        group[2].add(shape["exact"])
    done: list[Alike] = []
    whole = {form: (shape, people) for form, (shape, people, _) in by_form.items()}
    for forms in _joined(whole) if joining else [[form] for form in whole]:
        people: set[str] = set().union(*(by_form[form][1] for form in forms))
        exact = {one for form in forms for one in by_form[form][2]}
        shape = by_form[forms[0]][0]
        kind = "near" if len(forms) > 1 else "form" if len(exact) > 1 else "exact"
        if len(people) > 1 and shape["size"] >= (LEAST_EXACT if kind == "exact" else LEAST):
            done.append(Alike(id, kind, tuple(sorted(people)), shape["size"]))
    return done


def _joined(forms: dict[str, tuple[dict[str, Any], set[str]]]) -> list[list[str]]:
    """The forms in groups; two that are nearly the same share a group.

    Two forms from only one person are not joined, because one person may hand in forty.
    """
    groups = {form: [form] for form in forms}
    for (a, (one, mine)), (b, (other, theirs)) in combinations(forms.items(), 2):
        alone = mine == theirs and len(mine) == 1
        if not alone and groups[a] is not groups[b] and kind_of(one, other):
            groups[a].extend(groups[b])
            for form in groups[b]:
                groups[form] = groups[a]
    return list({id(group): group for group in groups.values()}.values())


def _with_published(id: str, answers: Iterable[tuple[str, dict[str, Any]]]) -> list[Alike]:
    """For each published answer and each kind of likeness, the learners whose answer is like it."""
    met: dict[tuple[str, str], set[str]] = {}
    sizes = {}
    for who, shape in answers:
        if best := _best_like(id, shape):
            met.setdefault(best, set()).add(who)
            sizes[best] = shape["size"]
    return [Alike(id, kind, tuple(sorted(who)), sizes[kind, name], name)
            for (kind, name), who in met.items()]


# ---- what is published

@cache
def published(id: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Names and shapes of the published answers to an exercise; none if only a wheel is here."""
    number = assignments.number_of(id)
    if assignments.is_exam(number) or assignments.is_model(number):
        return ()
    worked = [("the worked answer", shape) for source in _worked(number).get(id, ())
              if (shape := shapes.shape(source, catalog.trap(id).function))]
    return (*worked, *_kept_with_the_tests(id))


@cache
def _worked(stage: int) -> dict[str, list[str]]:
    path = paths.SOLUTIONS / f"{assignments.stage(stage).stem}.ipynb"
    if not path.is_file():
        return {}
    answers: dict[str, list[str]] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        facts = cell["metadata"].get("dlsys", {})
        if cell["cell_type"] == "code" and facts.get("role") == "exercise":
            answers.setdefault(facts["trap"], []).append("".join(cell["source"]))
    return answers


def _kept_with_the_tests(id: str) -> list[tuple[str, dict[str, Any]]]:
    """Right answers by other routes, each a function under a decorator that names its route."""
    folder = paths.ROOT / "tests" / "right_answers" / f"s{id[:2]}"
    kept = []
    for path in folder.glob(f"e{int(id[3:])}_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.decorator_list:
                node.decorator_list = []
                if shape := shapes.shape(ast.unparse(node), node.name):
                    kept.append((f"the right answer {node.name}", shape))
    return kept


def table(results: Sequence[Result]) -> list[list]:
    """A row for each group."""
    return [["exercise", "alike", "published answer", "learners", "parts", "who"],
            *([one.exercise, WORDS[one.kind], one.published, len(one.who), one.size,
               "; ".join(one.who)] for one in alike_answers(results))]
