"""The exam's exercises: what is asked of an answer, as laws about plain data.

An answer is a function without arguments. The mended script runs where the answer runs, in the
grader's sandbox; names, evidence and price are only compared. Names come first: in a case whose
names are wrong nothing else counts, and nothing is told about it.
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from dlsys_checks.exam import faults, ledger, mending, numbers, probes, sheet
from dlsys_checks.exam.faults import FAULTS, Fault
from dlsys_helpers.acting import Case, Outcome
from dlsys_helpers.catalog import CatalogError
from dlsys_helpers.data import digits
from dlsys_helpers.expect import Broken, expect_parts, expect_type, show
from dlsys_helpers.judging import Exercise
from dlsys_helpers.verdicts import Verdict

ASKED = ("faults", "evidence", "mend", "paid")
NAMES = {id: fault.name for id, fault in FAULTS.items()}


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


@dataclass
class Row(Exercise):
    """A row of a sheet. What a refusal costs is its mistake, which the message does not repeat."""

    asked: str = ""  # the part of the answer that it judges

    def verdict(self, fn: Any, seeds: Sequence[int], seconds: float | None = None) -> Verdict:
        """The verdict on `fn` over all seeds, as `checking.run_check` has it for exercises."""
        if not callable(fn):
            return Verdict("wrong", self.id, f"second argument: got {show(fn)}, expected your "
                           f"function {self.function}, without quotes or brackets.")
        for seed in seeds:
            cases = self.arrange(seed)
            verdict = self.judge(cases, self.outcomes(fn, cases, seconds))
            if verdict.status != "pass":
                return replace(verdict, seed=seed)
        return Verdict("pass", self.id)

    def judge(self, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Verdict:
        """The verdict; wrong names and evidence are known as such, in whatever row they stand."""
        verdict = self.first_failure(cases, outcomes)
        if verdict.status == "todo":
            return replace(verdict, message=f'"{self.asked}" of {self.function} is empty. Fill it '
                           "in, run its cell, then check again.")
        if not verdict.law:
            return verdict
        _, law, got = verdict.seen
        return replace(verdict, misconception=ledger.mistake(law, got, NAMES))


@cache
def find(id: str) -> Row:
    """The exercise of a row, "27.3". Raises ValueError for an id that is none."""
    try:
        trap, (case, row) = sheet.trap(id), sheet.place(id)
    except CatalogError as error:
        raise ValueError(str(error)) from None
    planted = sheet.case(int(id[:2]), case)
    exercise = Row(id, trap.function, asked=ASKED[row])
    law = (law_faults, law_evidence, law_mend, law_price)[row]
    exercise.cases(lambda g: [("the mended script", _script(planted, g)) if row == 2
                              else ("the answer", {"asked": ASKED[row]})])
    exercise.act(act_mend if row == 2 else act_answer)
    exercise.law(lambda out, **_: law(out, planted))
    return exercise


def run_check(id: str, fn: Any, seeds: Sequence[int], seconds: float | None = None) -> Verdict:
    """The verdict on a row; its price is compared with the learner's ledger, too.

    Raises ValueError for an id that is none.
    """
    row, number = copy.copy(find(id)), int(id[:2])
    if row.asked == "paid":
        case, _ = sheet.place(id)
        row.law(lambda out, **_: law_price(out, sheet.case(number, case),
                                           ledger.paid(number, case)))
    return row.verdict(fn, seeds, seconds)


def _script(planted: tuple[Fault, ...], generator: torch.Generator) -> dict[str, Any]:
    images, labels = pictures()
    return {"parts": faults.parts(sheet.source(planted)), "faults": len(planted),
            "tools": inspect.getsource(probes) + inspect.getsource(mending), "images": images,
            "labels": labels, "seed": int(torch.randint(2**31, (), generator=generator))}


# ---- act: where the learner's code runs

def act_answer(fn, asked):
    answer = fn()
    if type(answer) is dict and not answer.get(asked, True) and (
            asked != "paid" or not any(answer.values())):
        raise NotImplementedError(f"{asked} is not written yet")
    return answer


def act_mend(fn, parts, faults, tools, images, labels, seed):
    answer, space = fn(), {}
    if type(answer) is dict and not answer.get("mend", True):
        raise NotImplementedError("mend is not written yet")
    exec(compile(tools, "<probes>", "exec"), space)
    source, _ = space["mended"](answer, parts, faults)
    if source is None:
        return {"answer": answer}
    before = space["library"]()
    try:
        found = space["look"](source, images, labels, seed)
    except Exception as error:  # of the learner's script, whatever it is
        return {"answer": answer, "raised": f"{type(error).__name__}: {error}"[:200]}
    name = space["replaced"](before)
    return {"answer": answer, "found": found, **({"replaced": name} if name else {})}


# ---- laws

def law_faults(answer: Any, planted: tuple[Fault, ...]) -> None:
    """The faults are named, all of them and no others."""
    named = _listed(answer, "faults")
    for name in named:
        expect_type("entry of faults", name, str, 'Write the id in quotes, such as "12.1".')
        if name not in FAULTS:
            raise Broken("entry of faults", name, "an id of the list at the top")
    right = {fault.id for fault in planted}
    if len(named) != len(right):
        raise Broken("number of faults", len(named), len(right), "Names come first.")
    if set(named) != right:
        half = "One of them is right. " if set(named) & right else ""
        raise Broken("faults", ", ".join(sorted(named)), "what is planted here",
                     f"{half}Wrong names cost {numbers.PRICES['wrong name']}, once.")


def law_evidence(answer: Any, planted: tuple[Fault, ...]) -> None:
    """For each fault one number that a paid probe shows, and that this fault alone explains."""
    law_faults(answer, planted)
    shown = _paid_for(answer)
    if len(shown) != len(planted):
        raise Broken("number of entries of evidence", len(shown), len(planted),
                     "One number for each fault.")
    for probe, name, value in shown:
        if numbers.is_healthy(probe, name, value):
            raise Broken("number", f"{name}: {value:.4g}", "a number outside the healthy range")
        if not any((probe, name) == show[:2] for fault in planted for show in fault.shows):
            raise Broken("evidence", f"{name} of {probe}", "a number that tells which fault it is",
                         "Other faults move it, too. Such evidence costs "
                         f"{numbers.PRICES['wrong evidence']}, once.")
        if not any(_tells(fault, probe, name, value) for fault in planted):
            raise Broken("number", f"{name}: {value:.4g}", "what this probe prints",
                         "The row is right. Copy its number.")
    if not all(any(_tells(fault, *one) for one in shown) for fault in planted):
        raise Broken("entries of evidence", "one fault alone", "a number for each fault")


def law_mend(out: Any, planted: tuple[Fault, ...]) -> None:
    """The mended script shows what the healthy one shows."""
    expect_type("answer", out, dict)
    answer = out.get("answer")
    law_faults(answer, planted)
    _mended(answer, planted)
    if "raised" in out:
        expect_type("error", out["raised"], str)
        raise Broken("mended script", out["raised"], "a script that runs")
    if "replaced" in out:
        expect_type("name in the library", out["replaced"], str)
        raise Broken("mend", f"{out['replaced']} is set", *mending.ALONE)
    expect_parts(out, "answer", "found")
    expect_parts(out["found"], *numbers.HEALTHY, what="probes")
    for probe, names in numbers.HEALTHY.items():
        expect_type(probe, out["found"][probe], dict)
        for name in names:
            expect_type(name, out["found"][probe].get(name), float)
    for probe, name, value in numbers.ailing(out["found"]):
        low, high = numbers.HEALTHY[probe][name]
        raise Broken(f"mended script, {name} of {probe}", value, f"{low:g} to {high:g}")


def law_price(answer: Any, planted: tuple[Fault, ...], known: Sequence[str] = ()) -> None:
    """What was paid is within the budget; it counts where names, evidence and a mend are there.

    known: what the ledger holds, where there is one.
    """
    paid, budget = _paid(answer), numbers.BUDGETS[len(planted)]
    law_faults(answer, planted)
    if missing := Counter(known) - Counter(paid):
        raise Broken("paid", f"{missing.total()} fewer than you paid", "all that receipt() prints",
                     "Run receipt() again and copy its line.")
    law_evidence(answer, planted)
    if not _listed(answer, "mend"):
        raise Broken("mend", "none", "some: the price counts for a whole answer")
    _mended(answer, planted)
    spent = numbers.price(paid)
    if spent > budget:
        raise Broken("price", spent, f"{budget} or less")


def _mended(answer: Any, planted: tuple[Fault, ...]) -> None:
    """Raise Broken unless the mend is one: pairs of texts, small, in parts that were read."""
    _listed(answer, "mend")
    _paid(answer)
    parts = faults.parts(sheet.source(planted))
    _, refused = mending.mended(answer, parts, len(planted))
    if refused:
        raise Broken(*refused)


def _listed(answer: Any, name: str) -> list:
    expect_type("answer", answer, dict)
    expect_parts(answer, *ASKED, what="answer")
    expect_type(name, answer[name], list)
    if len(answer[name]) > 40:
        raise Broken(f"number of {name}", len(answer[name]), "40 at most")
    return answer[name]


def _paid(answer: Any) -> list[str]:
    paid = _listed(answer, "paid")
    if not paid:
        raise Broken("paid", "nothing", "the line that receipt() prints")
    for word in paid:
        expect_type("entry of paid", word, str)
        if word not in numbers.PRICES:
            raise Broken("paid", word, "words as receipt() prints them")
    return paid


def _paid_for(answer: Any) -> list[tuple[str, str, float]]:
    """The evidence, all of it from probes that stand in paid."""
    shown, paid = [_evidence(item) for item in _listed(answer, "evidence")], _paid(answer)
    for probe, *_ in shown:
        if probe not in paid:
            raise Broken("probe", f"a number of {probe}", "a probe that stands in paid",
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
        raise Broken("entry of evidence", f"{name} of {probe}", "a number that this probe prints",
                     look)
    return probe, name, float(value)


def _tells(fault: Fault, probe: str, name: str, value: float) -> bool:
    return any((probe, name) == (p, n) and low <= value <= high
               for p, n, low, high in fault.shows)
