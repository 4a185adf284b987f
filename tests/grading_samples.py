"""Submissions for the grader's tests: right answers, and notebooks with any cells."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dlsys.grading import cohort
from dlsys.grading.books.journal import BEGUN
from dlsys.grading.books.run_folder import JOURNAL
from dlsys.grading.settings import Limits, Settings
from dlsys.grading.walls.sandbox import SandboxRefused
from dlsys_helpers import catalog, paths

POINTS = {trap.id: trap.points for trap in catalog.traps(1)}
FULL = sum(POINTS.values())
FUNCTIONS = {trap.id: trap.function for trap in catalog.traps(1)}
SETUP = """import torch
from torch import nn
from torch.nn import functional as F
from dlsys_helpers import begin, check
begin(0, 1, "cpu")"""


@cache
def right_answers() -> dict[str, str]:
    """Exercise id to the source of the worked answer, from the generated solutions."""
    notebook = json.loads((paths.SOLUTIONS / "01_activations.ipynb").read_text(encoding="utf-8"))
    answers = {}
    for cell in notebook["cells"]:
        facts = cell["metadata"].get("dlsys", {})
        if cell["cell_type"] == "code" and facts.get("role") == "exercise":
            answers[facts["trap"]] = "".join(cell["source"])
    return answers


def without_sandbox(reason: object) -> NoReturn:
    """Skip a test that needs a sandbox and say so; fail it if DLSYS_MUST_RUN_WALLS is 1."""
    text = f"no sandbox on this machine: {reason}"
    if os.environ.get("DLSYS_MUST_RUN_WALLS") == "1":
        pytest.fail(f"{text} DLSYS_MUST_RUN_WALLS is 1, so these tests have to run.")
    pytest.skip(text)


@contextmanager
def open_grader(how: Settings) -> Iterator[cohort.Grader]:
    """A grader; without a sandbox, the test that asks for it is skipped and says so."""
    try:
        made = cohort.Grader(how)
    except SandboxRefused as error:
        without_sandbox(error)
    with closing(made):
        yield made


def code(source: str, **more: Any) -> dict[str, Any]:
    """A code cell."""
    return {"cell_type": "code", "id": more.pop("id", f"c{abs(hash(str(source))) % 10**8}"),
            "metadata": {}, "outputs": more.pop("outputs", []), "execution_count": None,
            "source": source, **more}


def worksheet(*first: str, last: tuple[str, ...] = (), **answers: str) -> bytes:
    """A solved worksheet of stage 1 with cells before and after, some answers replaced.

    answers: `e1="def predict..."` replaces the cell of exercise 01.1, "" leaves it out.
    """
    sources = {id: answers.get(f"e{id[-1]}", source) for id, source in right_answers().items()}
    cells = [SETUP, *first, *(s for s in sources.values() if s), *last]
    return notebook([code(source) for source in cells])


def notebook(cells: list[Any], **more: Any) -> bytes:
    """A notebook of stage 1 with these cells."""
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": cells, "metadata": {
        "dlsys": {"stage": 1, "view": "exercise"},
        "kernelspec": {"name": "python3", "language": "python"}}, **more}).encode()


def settings(seconds: float = 3.0, gib: float = 0.5, total: float = 30.0, **more: Any) -> Settings:
    """Settings with a fixed key and small limits."""
    limits = Limits(seconds=seconds, total=total, memory=int(gib * 2**30), processes=24)
    return Settings("00" * 16, limits, **more)


def journal_results(folder: Path) -> list[dict[str, Any]]:
    """The results in a run's journal; its other lines describe the run and what was begun."""
    lines = (folder / JOURNAL).read_text(encoding="utf-8").splitlines()[1:]
    return [line for line in map(json.loads, lines) if BEGUN not in line]


def statuses(result: dict[str, Any]) -> dict[str, str]:
    """Exercise id to its status."""
    return {entry["id"]: entry["status"] for entry in result["exercises"]}


def lost(result: dict[str, Any]) -> set[str]:
    """The exercises that did not pass."""
    return {id for id, status in statuses(result).items() if status != "pass"}


def entry(result: dict[str, Any], id: str) -> dict[str, Any]:
    """One exercise of a result."""
    return next(e for e in result["exercises"] if e["id"] == id)
