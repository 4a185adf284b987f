"""Which learner a result belongs to, and whom the instructor means by a name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dlsys.grading.text import clean, first_few

Result = dict[str, Any]


def owner(result: Result) -> tuple[str, ...]:
    """The learner as a key: source, id, name and raw name, since two people may share a name.

    The name comes from the download, so a different name in a gradebook does not move the
    learner's page.
    """
    learner = result["learner"]
    return (learner["source"], learner["id"], learner.get("download_name", learner["name"]),
            learner["raw"])


def names_of_one(results: Iterable[Result],
                 names: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """The gradebook's names, except for numbers that several people of a run share.

    Under one name, two people would look like one person who handed in twice.
    """
    people: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for person in map(owner, results):
        people.setdefault(person[:2], set()).add(person)
    return {number: name for number, name in names.items() if len(people.get(number, ())) < 2}


def with_gradebook_name(result: Result, names: Mapping[tuple[str, str], str]) -> Result:
    """The result under the name in the gradebook; the name of the download is kept as well."""
    learner = result["learner"]
    name = names.get((learner["source"], learner["id"]))
    if not name or name == learner["name"]:
        return result
    return {**result, "learner": {**learner, "name": name, "download_name": learner["name"]}}


def all_notes(result: Result) -> list[str]:
    """The notes that the learner reads, then the remarks for the instructor alone."""
    return [*result["notes"], *result.get("remarks", [])]


def is_called(result: Result, name: str) -> bool:
    """Whether `name` means this result: the learner's name or number, or the submission's path."""
    learner = result["learner"]
    return bool(name) and name in (
        result["name"], learner["name"], learner["id"], learner.get("download_name"))


def ambiguity(results: Iterable[Result], name: str) -> str:
    """An error message where `name` means several people among these results, else "".

    Moodle assigns new numbers for each stage, so there, one result in each stage means one
    person. In a class with sections nobody is called `ada`: it may mean `a/ada` or `b/ada`.
    """
    results = list(results)
    answering = [r for r in results if is_called(r, name)]
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
        what = f"the number: {first_few(numbers)}"
    else:
        what = f"one of {first_few([r['name'] for r in found.values()])}"
    return f"{len(found)} people are called {clean(name, 80)!r}; give {what}"


def _person(result: Result) -> tuple[str, ...]:
    """A key for the learner across downloads: for Canvas the number, because a name may change."""
    source, id, *_ = owner(result)
    return (source, id) if source == "canvas" and id else owner(result)


def _in_sections(results: Iterable[Result], name: str) -> str:
    paths = sorted({shown for r in results if name
                    and (shown := r["learner"]["name"]).endswith(f"/{name}")})
    return (f"{len(paths)} people are called {clean(name, 80)!r}; give one of {first_few(paths)}"
            if len(paths) > 1 else "")


def _one_in_each_stage(answering: Iterable[Result]) -> bool:
    """Whether all are from Moodle, and no known stage has results of two people."""
    pairs = {(owner(r), r["stage"]) for r in answering}
    times = Counter(stage for _, stage in pairs if stage is not None)
    return (all(source == "moodle" for (source, *_), _ in pairs)
            and max(times.values(), default=0) < 2)


def distinct_names(results: Sequence[Result]) -> list[str]:
    """A name for each of these learners; if two share a name, with the number or the path."""
    numbers: dict[str, list[str]] = {}
    for learner in (r["learner"] for r in results):
        numbers.setdefault(learner["name"], []).append(learner["id"])
    return [_distinct_name(r, numbers[r["learner"]["name"]]) for r in results]


def names(results: Iterable[Result]) -> dict[tuple[str, ...], str]:
    """The name of each learner of a run, by `owner`; no two are the same."""
    learners = {owner(r): r for r in results}
    return dict(zip(learners, distinct_names(list(learners.values())), strict=True))


def _distinct_name(result: Result, numbers: list[str]) -> str:
    name, id = result["learner"]["name"], result["learner"]["id"]
    if len(numbers) == 1:
        return name
    return f"{name} ({id if id and numbers.count(id) == 1 else result['name']})"
