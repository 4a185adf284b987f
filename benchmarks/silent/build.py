"""Choose and write the public half: `.venv/bin/python -m benchmarks.silent.build`.

An adapter gets only cases.json; the scorer also knows answers.json. A number says nothing about its
case, because a hash assigns the numbers.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.silent import candidates, reader
from benchmarks.silent.admit import RULES, refused
from benchmarks.silent.candidates import Candidate
from benchmarks.silent.score import Held
from dlsys_diffs.scoring import auroc

FOLDER = Path(__file__).parent
CASES, ANSWERS = FOLDER / "cases.json", FOLDER / "answers.json"
VERSION = hashlib.sha256(reader.KEY.encode()).hexdigest()[:8]
EVEN = 0.05  # how far the order of the cases may be from chance
FORMS = ("curves", "probes", "source", "diff")


def chosen(every: Iterable[Candidate], key: str = reader.KEY) -> tuple[list[Candidate], dict]:
    """The admitted candidates in the order that a key draws, and the refusals by form."""
    tried: dict[str, collections.Counter] = {}
    admitted = []
    for one in every:
        rule = refused(one.measured)
        counts = tried.setdefault(one.form, collections.Counter(dict.fromkeys(RULES, 0)))
        counts[rule or "admitted"] += 1
        if not rule:
            admitted.append(one)
    admitted.sort(key=lambda one: (one.form, dealt(key, one.key)))
    for form, counts in tried.items():
        faulty = sum(one.held["faulty"] for one in admitted if one.form == form)
        healthy = [one for one in admitted if one.form == form and not one.held["faulty"]]
        for one in healthy[(faulty + 1) // 2:]:  # keep a third healthy
            admitted.remove(one)
            counts["admitted"] -= 1
            counts["not needed"] += 1
    order = [one for form in tried for one in
             shuffled([one for one in admitted if one.form == form], key)]
    return order, {form: dict(counts) for form, counts in tried.items()}


def shuffled(cases: list[Candidate], key: str) -> list[Candidate]:
    """The cases in the first order drawn by a key whose positions say nothing."""
    for draw in itertools.count():
        hashes = {dealt(f"{key} {draw}", one.key): one for one in cases}
        cases = [hashes[name] for name in sorted(hashes)]
        places = {kind: [place for place, one in enumerate(cases) if one.held["faulty"] is kind]
                  for kind in (True, False)}
        if abs((auroc(places[True], places[False]) or 0.5) - 0.5) < EVEN:
            return cases


def dealt(key: str, name: str) -> str:
    return hashlib.sha256(f"{key} {name}".encode()).hexdigest()


def files(admitted: list[Candidate], tried: dict) -> tuple[dict, dict]:
    """The contents of both files."""
    cases, held = {}, {}
    numbers: collections.Counter = collections.Counter()
    for one in admitted:
        numbers[one.form] += 1
        name = f"{one.form}-{numbers[one.form]:02}"
        cases[name] = {"form": one.form, **one.shown}
        held[name] = {**one.held, "from": one.key, "source": one.measured.source}
    return ({"version": VERSION, "shared": candidates.shared(), "cases": cases},
            {"version": VERSION, "tried": tried, "answers": held})


@functools.cache
def stored(path: Path) -> dict:
    return json.loads(path.read_text("utf-8"))


def digest() -> str:
    """A hash of both files, which a table names."""
    both = b"".join(path.read_bytes() for path in (CASES, ANSWERS))
    return hashlib.sha256(both).hexdigest()[:12]


def shown(case: str, cases: dict) -> dict[str, Any]:
    """A case as an adapter gets it: a diff with all files of the repository after the change."""
    own = cases["cases"][case]
    found = {"id": case, **cases["shared"][own["form"]], **own}
    if found["form"] == "diff":
        found["files"] = found["files"] | found.pop("changed")
    return found


def loaded() -> tuple[dict[str, dict], dict[str, Held], dict[str, dict]]:
    """By name: the cases as shown, their right answers, and everything else held back."""
    cases, answers = stored(CASES), stored(ANSWERS)
    held = {name: Held(cases["cases"][name]["form"], row["faulty"], tuple(row["causes"]),
                       tuple((file, line) for file, line in row["places"]), row["near"])
            for name, row in answers["answers"].items()}
    return {name: shown(name, cases) for name in cases["cases"]}, held, answers["answers"]


def complaints(every: Iterable[Candidate], tried: dict) -> list[str]:
    """What the author of a half has to know: each refused candidate with the rule that it breaks,
    and each form that has no faulty or no healthy case.
    """
    by_rule: dict[str, list[str]] = {}
    for one in every:
        if rule := refused(one.measured):
            by_rule.setdefault(rule, []).append(one.key)
    told = [f"{rule} ({RULES[rule]}): {', '.join(keys)}" for rule, keys in by_rule.items()]
    if "seeds" in by_rule:
        told.append("Programs without runs: benchmarks.silent.runs runs them.")
    return told + [f"{form}: no case is admitted. A form needs a fault that is admitted, and "
                   "healthy candidates are kept up to half as many." for form in FORMS
                   if not tried.get(form, {}).get("admitted")]


def main() -> None:
    every = [*candidates.every()]
    for path, content in zip((CASES, ANSWERS), files(*chosen(every)), strict=True):
        path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    for form, counts in content["tried"].items():
        print(form, {name: count for name, count in counts.items() if count})
    print(*complaints(every, content["tried"]), sep="\n")


if __name__ == "__main__":
    main()
