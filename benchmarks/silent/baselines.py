"""Baselines, and cheats that must not score: each decides a case as an adapter does."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import io
import itertools
import math
import multiprocessing
import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import dlsys_watch
from benchmarks.silent import build, score
from dlsys import find
from dlsys_diffs import repository
from dlsys_same.pairs import SameError
from dlsys_same.testing import same as dlsys_same
from dlsys_watch.places import main_file


def guess(case: dict, _buy: Callable) -> dict:
    """A confidence, a cause and a changed line, drawn at random."""
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


# ---- range and finder: what is out of range, and what `dlsys find` says about it

def in_range(case: dict, buy: Callable) -> dict:
    """Compares numbers with healthy ones, and asks the finder what the first odd ones may mean.

    It buys the cheapest probes until one is out of range or the budget is spent.
    """
    odd = odd_curves(case) if case["form"] == "curves" else odd_numbers(case, buy)
    words = " ".join(name for name, _ in odd[:3])
    found = find.rank(score.index(), words).causes if odd else []
    return {"confidence": max((much for _, much in odd), default=0.2),
            "cause": found[0] if found else ""}


def odd_numbers(case: dict, buy: Callable) -> list[tuple[str, float]]:
    paid = 0
    for probe, price in sorted(case["probes"].items(), key=lambda one: one[1]):
        if paid + price > score.BUDGET:
            break
        look = buy(probe)
        paid = look["paid"]
        ends = case["healthy"][probe]
        odd = [(f"{name} {'high' if float(value) > ends[name][1] else 'low'}", 0.9)
               for name, value in look["numbers"].items()
               if not ends[name][0] <= float(value) <= ends[name][1]]
        if odd:
            return odd
    return []


def odd_curves(case: dict) -> list[tuple[str, float]]:
    """Curves whose last third differs more from two earlier runs than those runs differ."""
    found = []
    for name, values in case["curves"].items():
        here, one, other = (ending(curve) for curve in
                            (values, *(run[name] for run in case["earlier"])))
        much = abs(here - (one + other) / 2) / (abs(one - other) + 0.01 * abs(one))
        if not much <= 2:
            sign = "higher" if here > one else "lower"
            found.append((f"{name} {sign}", 1 - 1 / (1 + much) if math.isfinite(much) else 1.0))
    return sorted(found, key=lambda one: -one[1])


def distance(case: dict, _buy: Callable) -> dict:
    """How far the curves are from the two earlier runs, in logarithms. Three times as far as those
    are from each other is odd.
    """
    one, other = case["earlier"]
    far = [(apart_by(values, one[name]) + apart_by(values, other[name])) / 2
           / (apart_by(one[name], other[name]) + 1e-3) for name, values in case["curves"].items()]
    return {"confidence": max(1.0 if math.isnan(much) else much / (much + 3) for much in far)}


def apart_by(one: list, other: list) -> float:
    """The mean difference of the logarithms of two curves; NaN if a point is not finite."""
    return statistics.fmean(abs(math.log(abs(float(a)) + 1e-9) - math.log(abs(float(b)) + 1e-9))
                            for a, b in zip(one, other, strict=False))


def ending(curve: list) -> float:
    """The mean of the last third of a curve; NaN for an empty one."""
    last = [float(value) for value in curve[-(len(curve) // 3 or 1):]]
    return statistics.fmean(last) if last else math.nan


def finder(case: dict, _buy: Callable) -> dict:
    """`dlsys find` on a change's own description."""
    answer = find.rank(score.index(), f"{case['title']} {case['text']}")
    sure = dict(zip(("very likely", "likely", "possible", ""), (0.9, 0.7, 0.4, 0.2), strict=True))
    return {"confidence": sure[answer.sure], "cause": (answer.causes or [""])[0],
            "place": (added(case["diff"]) or [""])[0]}


def every_probe(case: dict, buy: Callable) -> dict:
    """Buys every probe and counts the numbers out of range, whatever it costs."""
    odd = sum(not low <= float(value) <= high for probe, ends in case["healthy"].items()
              for name, value in buy(probe)["numbers"].items() for low, high in [ends[name]])
    return {"confidence": 1 - 0.8 / (1 + odd)}


# ---- the tools of the course that run a program

def watch(case: dict, _buy: Callable) -> dict:
    """`dlsys watch --hints` on the program: a sound rule is nearly sure, a hint is not."""
    found = apart(watched, case["files"]["main.py"])
    best = max(found, key=lambda one: one["sound"], default=None)
    if best is None:
        return {"confidence": 0.2}
    return {"confidence": 0.95 if best["sound"] else 0.6, "cause": best["trap"],
            "place": f"main.py:{best['line']}"}


def watched(source: str) -> list[dict]:
    """The findings of a program that runs here."""
    path = Path(tempfile.mkdtemp()) / "main.py"
    main_file.append(str(path))
    with (contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()),
          dlsys_watch.watching(hints=True) as found):
        exec(compile(source, str(path), "exec"), {"__name__": "__main__"})
    return [{"trap": one.trap, "line": one.line, "sound": one.sound} for one in found]


def same(case: dict, _buy: Callable) -> dict:
    """`dlsys same` on the repository before and after a change: does a short run agree?"""
    agrees = apart(agree, case["files"])
    return {"confidence": 0.3 if agrees else 0.7, "place": (added(case["diff"]) or [""])[0]}


def agree(files: dict[str, str]) -> bool:
    """Whether both versions compute the same in the first updates of a run."""
    def trained(version):
        def program():
            with repository.loaded(version) as repo:
                torch.manual_seed(0)
                repo.loop.fit(repo.config.preset("standard"))
        return program

    try:
        dlsys_same(trained(repository.files()), trained(files))
    except (AssertionError, SameError):
        return False
    return True


def apart(work: Callable, given: Any) -> Any:
    """Return work(given), run in a separate process: forked from one that has imported torch but
    never trained, because a fork of a process that has trained may hang.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        return pool.submit(work, given).result()


# ---- cheats

def always(_case: dict, _buy: Callable) -> dict:
    """Every case is faulty, and the cause is always the same."""
    return {"confidence": 0.9, "cause": "12.8"}


def everything(case: dict, _buy: Callable) -> dict:
    """Every cause at once, and every line."""
    return {"confidence": 0.9, "cause": ", ".join(score.causes()), "place": ", ".join(lines(case))}


def file_reader(case: dict, _buy: Callable) -> dict:
    """Use what the file of cases gives away: words of an answer, else the order of the cases."""
    every = build.stored(build.CASES)["cases"]
    entry = str(every[case["id"]])
    if "'faulty': " in entry or "'causes': " in entry:
        return {"confidence": float("'faulty': True" in entry)}
    return {"confidence": [*every].index(case["id"]) / len(every)}


def letters(case: dict, _buy: Callable) -> dict:
    """The longer, the more likely faulty."""
    return {"confidence": min(1.0, len(case.get("text", "") or case["files"]["main.py"]) / 20_000)}


def comparer(case: dict, _buy: Callable) -> dict:
    """A line that all other programs in the file have and this one lacks, or one that only this
    program has; in a public file these are seldom decoys.
    """
    others = [set(one["files"]["main.py"].splitlines())
              for name, one in build.stored(build.CASES)["cases"].items()
              if one["form"] == "source" and name != case["id"]]
    own = case["files"]["main.py"].splitlines()
    lacks = set.intersection(*others) - set(own)
    odd = [number for number, line in enumerate(own, 1) if not any(line in one for one in others)]
    return {"confidence": 0.9 if lacks else 0.4 + 0.1 * bool(odd),
            "place": f"main.py:{odd[0]}" if odd else ""}


def note_taker(case: dict, buy: Callable) -> dict:
    """Whether another case has the same seeds: how many numbers it has in common with one of them
    to the last digit. An adapter that keeps notes can find this out.
    """
    noted, fixed = notes()
    own = digits({probe: buy(probe)["numbers"] for probe in case["probes"]})
    common = max(len(own & other - fixed) for name, other in noted.items() if name != case["id"])
    return {"confidence": common / len(own)}


@functools.cache
def notes() -> tuple[dict[str, set], set]:
    """The numbers of each case, and all numbers whose name has one value for nearly any seed."""
    noted = {name: digits(one["probes"]) for name, one in
             build.stored(build.ANSWERS)["answers"].items() if "probes" in one}
    every = collections.Counter(itertools.chain.from_iterable(noted.values()))
    same = {name for (name, _), count in every.items() if count >= 0.7 * len(noted)}
    return noted, {number for number in every if number[0] in same}


def digits(probes: dict[str, dict]) -> set[tuple]:
    """The numbers with at least three significant digits, each with its name."""
    return {((probe, name), value) for probe, numbers in probes.items()
            for name, value in numbers.items() if len(str(value).strip("-0.").replace(".", "")) > 2}


BASELINES = {"random": guess, "range": in_range, "buys everything": every_probe,
             "distance": distance, "finder": finder, "watch": watch, "same": same}
CHEATS = {"always faulty": always, "names everything": everything, "reads the case file":
          file_reader, "keeps notes": note_taker, "compares the cases": comparer,
          "counts letters": letters}
FORMS = {"range": ("curves", "probes"), "buys everything": ("probes",),
         "distance": ("curves",), "finder": ("diff",),
         "watch": ("source",), "same": ("diff",), "keeps notes": ("probes",),
         "compares the cases": ("source",),
         "counts letters": ("source", "diff")}  # all forms, if not listed here
