"""Baselines, and cheats that must not score: each decides a case as an adapter does."""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.silent import build, score
from dlsys import find


def guess(case: dict, _buy: Callable) -> dict:
    """A number, a cause and a changed line, drawn."""
    draw = random.Random(case["id"])
    return {"confidence": draw.random(), "cause": draw.choice([*score.causes()]),
            "place": draw.choice(lines(case) or [""])}


def lines(case: dict) -> list[str]:
    """The places that a case offers: the lines that a diff adds, or every line of a program."""
    if "diff" in case:
        return added(case["diff"])
    return [f"{file}:{number}" for file, text in case.get("files", {}).items()
            for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def added(diff: str) -> list[str]:
    found, file = [], ""
    for line in diff.splitlines():
        if line.startswith("--- "):
            file = line.split()[1]
        elif line[:4].strip().isdigit() and line[5:6] == "+":
            found.append(f"{file}:{int(line[:4])}")
    return found


def finder(case: dict, _buy: Callable) -> dict:
    """`dlsys find` on what a change says of itself."""
    words = f"{case['title']} {case['text']}"
    answer = find.rank(score._index(), words)
    sure = dict(zip(("very likely", "likely", "possible", ""), (0.9, 0.7, 0.4, 0.2), strict=True))
    return {"confidence": sure[answer.sure], "cause": (answer.causes or [""])[0],
            "place": (added(case["diff"]) or [""])[0]}


# ---- cheats

def always(_case: dict, _buy: Callable) -> dict:
    """Every case is faulty, and the cause is always the same."""
    return {"confidence": 0.9, "cause": "12.8"}


def everything(case: dict, _buy: Callable) -> dict:
    """Every cause at once, and every line."""
    return {"confidence": 0.9, "cause": ", ".join(score.causes()), "place": ", ".join(lines(case))}


def file_reader(case: dict, _buy: Callable) -> dict:
    """What the file of cases gives away: words of an answer, else the order of the cases."""
    every = build.stored(build.CASES)["cases"]
    entry = str(every[case["id"]])
    if "'faulty': " in entry or "'causes': " in entry:
        return {"confidence": float("'faulty': True" in entry)}
    return {"confidence": [*every].index(case["id"]) / len(every)}


BASELINES = {"random": guess, "finder": finder}
FORMS = {"finder": ("diff",)}  # all, where nothing is said
CHEATS = {"always faulty": always, "names everything": everything, "reads the case file":
          file_reader}
