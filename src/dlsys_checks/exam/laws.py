"""The exam's exercises: what is asked of an answer, as laws about plain data.

An answer is a function without arguments. The mended script runs where the answer runs, in the
grader's sandbox; names, evidence and price are only compared.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache, partial
from itertools import combinations
from typing import Any

import torch

from dlsys_checks.exam import numbers, probes, sheet
from dlsys_checks.exam.faults import FAULTS, Fault
from dlsys_helpers import checking
from dlsys_helpers.catalog import CatalogError
from dlsys_helpers.checking import Exercise, WrongAnswer
from dlsys_helpers.data import digits
from dlsys_helpers.expect import Broken, expect_parts, expect_type
from dlsys_helpers.verdicts import Verdict

ASKED = ("faults", "evidence", "mend", "paid")
WRONG_NAME = "wrong name"


@cache
def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    """1,000 digits as bytes (N, 8, 8), one of them a blank page, and their labels."""
    data = digits()
    images = (data.x_train[:1000].reshape(-1, 8, 8) * 16).round().mul(15).to(torch.uint8)
    images[17] = 0
    return images, data.y_train[:1000]


def look(number: int, case: int, probe: str) -> dict[str, Any]:
    """What a probe shows on a case of a sheet."""
    source = sheet.source(sheet.case(number, case))
    with torch.random.fork_rng():
        return probes.look(source, *pictures(), sheet.seed(number, case), (probe,))[probe]


@cache
def find(id: str) -> Exercise:
    """The exercise of a row, "27.3". Raises ValueError for an id that is none."""
    try:
        trap, (case, row) = sheet.trap(id), sheet.place(id)
    except CatalogError as error:
        raise ValueError(str(error)) from None
    planted = sheet.case(int(id[:2]), case)
    exercise = Exercise(id, trap.function)
    if row == 2:
        exercise.cases(lambda g: [("the mended script", _script(planted, g))])
        exercise.act(act_mend)
        exercise.law(lambda out, **_: law_mend(out))
        return exercise
    if row == 0:
        exercise.wrong_answers += wrong_names(planted)
    law = (law_faults, law_evidence, None, law_price)[row]
    exercise.cases(lambda _: [("the answer", {"asked": ASKED[row]})])
    exercise.act(act_answer)
    exercise.law(lambda out, **_: law(out, planted))
    return exercise


def run_check(id: str, fn: Any, seeds: Sequence[int], seconds: float | None = None) -> Verdict:
    """As `checking.run_check`, for a row of a sheet: the registry holds it only meanwhile."""
    checking.REGISTRY[id] = find(id)
    try:
        return checking.run_check(id, fn, seeds, seconds)
    finally:
        del checking.REGISTRY[id]


def wrong_names(planted: tuple[Fault, ...]) -> list[WrongAnswer]:
    """All other names as mistakes with a name, so that a second refusal of one is known as such."""
    right = {fault.id for fault in planted}
    others = [ids for ids in combinations(sorted(FAULTS), len(planted)) if set(ids) != right]
    return [WrongAnswer(" and ".join(f"{id} {FAULTS[id].name}" for id in ids),
                        partial(_answer_with, ids), "faults", "") for ids in others]


def _answer_with(ids: tuple[str, ...]) -> dict[str, list]:
    return {**{name: [] for name in ASKED}, "faults": list(ids)}


def _script(planted: tuple[Fault, ...], generator: torch.Generator) -> dict[str, Any]:
    images, labels = pictures()
    return {"source": sheet.source(planted), "tools": inspect.getsource(probes), "images": images,
            "labels": labels, "seed": int(torch.randint(2**31, (), generator=generator))}


# ---- act: where the learner's code runs

def act_answer(fn, asked):
    answer = fn()
    if type(answer) is dict and not answer.get(asked, True):
        raise NotImplementedError(f"{asked} is not written yet")
    return answer


def act_mend(fn, source, tools, images, labels, seed):
    answer = fn()
    if type(answer) is not dict or "mend" not in answer:
        return {"answer": answer}
    if not answer["mend"]:
        raise NotImplementedError("mend is not written yet")
    pairs = answer["mend"]
    if type(pairs) is not list or any(type(pair) not in (tuple, list) or len(pair) != 2
                                      or {*map(type, pair)} != {str} for pair in pairs):
        return {"answer": answer}
    for old, new in pairs:
        if source.count(old) != 1:
            return {"text": old, "stands": source.count(old)}
        source = source.replace(old, new)
    space = {}
    exec(compile(tools, "<probes>", "exec"), space)
    return {"found": space["look"](source, images, labels, seed)}


# ---- laws

def law_faults(answer: Any, planted: tuple[Fault, ...]) -> None:
    """The faults are named, all of them and no others."""
    named = _listed(answer, "faults")
    for name in named:
        expect_type("entry of faults", name, str, 'Write the id in quotes, such as "12.1".')
        if name not in FAULTS:
            raise Broken("faults", name, "an id of the list at the top")
    right = {fault.id for fault in planted}
    if len(named) != len(right):
        raise Broken("number of faults", len(named), len(right))
    if set(named) != right:
        half = "One of them is right. " if set(named) & right else ""
        raise Broken("faults", ", ".join(sorted(named)), "what is planted here",
                     f"{half}A wrong name costs {numbers.PRICES[WRONG_NAME]}.")


def law_evidence(answer: Any, planted: tuple[Fault, ...]) -> None:
    """For each fault a number that a paid probe shows, and that this fault alone explains."""
    shown = _paid_for(answer)
    for probe, name, value in shown:
        if numbers.is_healthy(probe, name, value):
            raise Broken("evidence", f"{name}: {value:.4g}", "a number outside the healthy range")
    for fault in planted:
        if not any(_tells(fault, *one) for one in shown):
            raise Broken("evidence", "; ".join(f"{name}: {value:.4g}" for _, name, value in shown),
                         "for each fault a number that tells which one it is",
                         "Other faults move what you show, too.")


def law_mend(out: Any) -> None:
    """The mended script shows what the healthy one shows."""
    expect_type("answer", out, dict)
    if "answer" in out:
        raise Broken("mend", _listed(out["answer"], "mend"), "a list of pairs of texts",
                     "What stands in the script, and what should stand there.")
    if "stands" in out:
        expect_type("count of a text", out["stands"], int)
        raise Broken("mend", f"a text that stands {out['stands']} times in the script",
                     "one that stands there once", "Copy it from what read printed, with more of "
                     "the lines around it.")
    expect_parts(out, "found")
    expect_parts(out["found"], *numbers.HEALTHY, what="probes")
    for probe, names in numbers.HEALTHY.items():
        expect_type(probe, out["found"][probe], dict)
        for name in names:
            expect_type(name, out["found"][probe].get(name), float)
    for probe, name, value in numbers.ailing(out["found"]):
        low, high = numbers.HEALTHY[probe][name]
        raise Broken(f"mended script, {name} of {probe}", value, f"{low:g} to {high:g}")


def law_price(answer: Any, planted: tuple[Fault, ...]) -> None:
    """What was paid is within the budget; it counts where names are right and a mend is there."""
    paid, budget = _paid(answer), numbers.BUDGETS[len(planted)]
    law_faults(answer, planted)
    _paid_for(answer)
    for name in ("evidence", "mend"):
        if not _listed(answer, name):
            raise Broken(name, "none", "some: the price counts for a whole answer")
    for fault in planted:
        if f"read {fault.part}" not in paid:
            raise Broken("paid", "no line for a part that the mend changes", "read of that part")
    spent = numbers.price(paid)
    if spent > budget:
        raise Broken("price", spent, f"{budget} or less")


def _listed(answer: Any, name: str) -> list:
    expect_type("answer", answer, dict)
    expect_parts(answer, *ASKED, what="answer")
    expect_type(name, answer[name], list)
    if len(answer[name]) > 40:
        raise Broken(f"number of {name}", len(answer[name]), "40 at most")
    return answer[name]


def _paid(answer: Any) -> list[str]:
    paid = _listed(answer, "paid")
    for word in paid:
        expect_type("entry of paid", word, str)
        if word not in numbers.PRICES:
            raise Broken("paid", word, "names as receipt() prints them")
    return paid


def _paid_for(answer: Any) -> list[tuple[str, str, float]]:
    """The evidence, all of it from probes that stand in paid."""
    shown, paid = [_evidence(item) for item in _listed(answer, "evidence")], _paid(answer)
    for probe, *_ in shown:
        if probe not in paid:
            raise Broken("evidence", f"a number of {probe}", "a probe that stands in paid",
                         "Copy the line that receipt() prints.")
    return shown


def _evidence(item: Any) -> tuple[str, str, float]:
    look = 'Write (probe, number, value), such as ("loss_curve", "last loss", 2.3).'
    expect_type("entry of evidence", item, (tuple, list), look)
    if len(item) != 3 or [type(part) for part in item[:2]] != [str, str] or (
            type(item[2]) not in (int, float)):
        raise Broken("entry of evidence", item, "two texts and a number", look)
    probe, name, value = item
    if name not in numbers.HEALTHY.get(probe, {}):
        raise Broken("evidence", f"{name} of {probe}", "a number that this probe prints", look)
    return probe, name, float(value)


def _tells(fault: Fault, probe: str, name: str, value: float) -> bool:
    return any((probe, name) == (p, n) and low <= value <= high
               for p, n, low, high in fault.shows)
