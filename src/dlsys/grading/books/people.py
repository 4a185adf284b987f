"""Whose a result is, and whom a name that the instructor writes means."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dlsys.grading.text import clean, some

Result = dict[str, Any]


def owner(result: Result) -> tuple[str, ...]:
    """The learner as a key: source, id, name and raw name, since two people may share a name.

    The name is that of the download, so that a gradebook's name changes nobody's page.
    """
    learner = result["learner"]
    return (learner["source"], learner["id"], learner.get("download_name", learner["name"]),
            learner["raw"])


def named(result: Result, names: Mapping[tuple[str, str], str]) -> Result:
    """The result under the name in the gradebook; that of the download stays beside it."""
    learner = result["learner"]
    name = names.get((learner["source"], learner["id"]))
    if not name or name == learner["name"]:
        return result
    return {**result, "learner": {**learner, "name": name, "download_name": learner["name"]}}


def noted(result: Result) -> list[str]:
    """What the instructor is told about a result: the learner's notes, and remarks beside them."""
    return [*result["notes"], *result.get("remarks", [])]


def answers_to(result: Result, name: str) -> bool:
    """Whether a result is that of `name`: a learner's name or number, or a submission's path."""
    learner = result["learner"]
    return bool(name) and name in (
        result["name"], learner["name"], learner["id"], learner.get("download_name"))


def doubt(results: Iterable[Result], name: str) -> str:
    """What to say where a name is that of several people among these results, else "".

    Moodle numbers people anew for each stage, so there one in each stage is one person. In
    sections, `ada` is nobody's name, and may be short for those of `a/ada` and `b/ada`.
    """
    results = list(results)
    answering = [r for r in results if answers_to(r, name)]
    found = {_person(r): r for r in answering}
    twins = [r for r in results
             if name and re.fullmatch(rf"{re.escape(name)} \(\d+\)", r["name"])]
    if twins:
        return (f"{1 + len(twins)} submissions are called {clean(name, 80)!r}; give the learner's "
                "name")
    if not found:
        return _in_sections(results, name)
    if len(found) < 2 or _one_in_each_stage(answering):
        return ""
    numbers = [r["learner"]["id"] for r in found.values()]
    if all(numbers) and len(set(numbers)) == len(found):
        what = f"the number: {some(numbers)}"
    else:
        what = f"one of {some([r['name'] for r in found.values()])}"
    return f"{len(found)} people answer to {clean(name, 80)!r}; give {what}"


def _person(result: Result) -> tuple[str, ...]:
    """The learner as a key over downloads: of Canvas by number, since a name may be changed."""
    source, id, *_ = owner(result)
    return (source, id) if source == "canvas" and id else owner(result)


def _in_sections(results: Iterable[Result], name: str) -> str:
    paths = sorted({shown for r in results if name
                    and (shown := r["learner"]["name"]).endswith(f"/{name}")})
    return (f"{len(paths)} people answer to {clean(name, 80)!r}; give one of {some(paths)}"
            if len(paths) > 1 else "")


def _one_in_each_stage(answering: Iterable[Result]) -> bool:
    """Whether these are Moodle's, and no two people's of one stage that is known."""
    pairs = {(owner(r), r["stage"]) for r in answering}
    times = Counter(stage for _, stage in pairs if stage is not None)
    return (all(source == "moodle" for (source, *_), _ in pairs)
            and max(times.values(), default=0) < 2)


def names_apart(results: Sequence[Result]) -> list[str]:
    """A name for each of these learners: with the number, or the path, where two have one name."""
    numbers: dict[str, list[str]] = {}
    for learner in (r["learner"] for r in results):
        numbers.setdefault(learner["name"], []).append(learner["id"])
    return [_apart(r, numbers[r["learner"]["name"]]) for r in results]


def names(results: Iterable[Result]) -> dict[tuple[str, ...], str]:
    """The name of each learner of a run, by `owner`; no two are the same."""
    learners = {owner(r): r for r in results}
    return dict(zip(learners, names_apart(list(learners.values())), strict=True))


def _apart(result: Result, numbers: list[str]) -> str:
    name, id = result["learner"]["name"], result["learner"]["id"]
    if len(numbers) == 1:
        return name
    return f"{name} ({id if id and numbers.count(id) == 1 else result['name']})"
