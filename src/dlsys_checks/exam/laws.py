"""The exam's exercises: what is asked of an answer, as laws about plain data.

A name and a price stand in the record of what happened; evidence and fix are in an answer, which is
a function without arguments. The fixed script runs where the answer runs, in the grader's sandbox.
Names come first: in a case that is not named nothing else counts, and nothing is told about it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import torch

from dlsys_checks.exam import complaints, faults, mending, numbers, probes, sheet
from dlsys_checks.exam.draws import Drawn
from dlsys_checks.exam.ledger import TRIES, Happened
from dlsys_helpers.data import digits
from dlsys_helpers.expect import Broken, expect_parts, expect_type, show
from dlsys_helpers.judging import Exercise
from dlsys_helpers.verdicts import Verdict

ASKED = ("evidence", "mend")
UNNAMED = ("the case", "no right name yet", "the name first",
           "Nothing else of a case counts, and nothing is told about it, until it is named.")
OVER = "This exam is over: its answers were shown. What you had solved by then counts."


@cache
def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    """1,000 digits as bytes (N, 8, 8), one of them a blank page, and their labels."""
    data = digits()
    images = (data.x_train[:1000].reshape(-1, 8, 8) * 16).round().mul(15).to(torch.uint8)
    images[17] = 0
    return images, data.y_train[:1000]


@lru_cache(512)
def measured(source: str, seed: int, probe: str) -> dict[str, Any]:
    """What a probe shows of a script."""
    with torch.random.fork_rng():
        return probes.look(source, *pictures(), seed, (probe,))[probe]


@dataclass
class Row(Exercise):
    """A row of a sheet: it has no named mistakes, because a name would give a case away."""

    drawn: Drawn | None = None
    happened: Happened | None = None

    def verdict(self, fn: Any, seeds: Sequence[int], seconds: float | None = None) -> Verdict:
        """The verdict on `fn` over all seeds, as `checking.run_check` has it for exercises."""
        if not callable(fn):
            return Verdict("wrong", self.id, f"second argument: got {show(fn)}, expected your "
                           f"function {self.function}, without quotes or brackets.")
        if waits := self._waits():
            return waits
        for seed in seeds:
            cases = self.arrange(seed)
            verdict = self.first_failure(cases, self.outcomes(fn, cases, seconds))
            if verdict.status != "pass":
                return replace(verdict, seed=seed)
        return Verdict("pass", self.id)

    def judge(self, cases, outcomes) -> Verdict:
        """The verdict of the grader; the same for every unnamed case, whatever is planted.

        What was handed in gets no further name.
        """
        if not self._waits():
            return self.first_failure(cases, outcomes)
        tried, status = self._tried(), "wrong" if self.happened.names else "todo"
        return Verdict(status, self.id, f"Case {self.function[-1]}: {tried} Nothing else of a case "
                       "counts without the right name.")

    def _tried(self) -> str:
        """What the names were understood as that were wrong so far."""
        if not self.happened.names:
            return "you named nothing."
        heard = [name if name not in faults.FAULTS else faults.FAULTS[name].name
                 for name in self.happened.names]
        return f"you named {' and '.join(heard)}, and that is not it."

    def _waits(self) -> Verdict | None:
        """What is said while the case has no name and may still get one; None if it has."""
        open_ = self.drawn.name not in self.happened.names
        if open_ and not self.happened.tried_out(self.drawn.name):
            case, said = self.function[-1], "has no name yet. Name it first"
            if self.happened.names:
                said = f"is not named rightly: {self._tried()} You have a second try"
            return Verdict("todo", self.id,
                           f'Case {case} {said}: exam.case({case}).name("...")')
        return None


def row(id: str, drawn: Drawn, happened: Happened) -> Row:
    """The exercise of a row, "80.3". Raises CatalogError for an id that is none."""
    trap, (_, kind) = sheet.trap(id), sheet.place(id)
    exercise = Row(id, trap.function, drawn=drawn, happened=happened)
    fixed = kind == sheet.FIX and drawn.fault is not None
    exercise.cases(lambda g: [("the fixed script", _script(drawn, happened, g)) if fixed
                              else ("the answer", {"reads": kind >= sheet.EVIDENCE})])
    exercise.act(act_mend if fixed else act_answer)
    law = (law_name, law_first_try, law_evidence, law_mend, law_twice, law_once)[kind]
    exercise.law(lambda out, **_: law(out, drawn, happened))
    return exercise


def read_parts(happened: Happened) -> list[str]:
    """The parts that were read, in the order of the script."""
    return [part for part in faults.PARTS if f"read {part}" in happened.paid]


def _script(drawn: Drawn, happened: Happened, generator: torch.Generator) -> dict[str, Any]:
    images, labels = pictures()
    return {"parts": faults.parts(drawn.source), "read": read_parts(happened),
            "tools": inspect.getsource(probes) + inspect.getsource(mending), "images": images,
            "labels": labels, "seed": int(torch.randint(2**31, (), generator=generator))}


# ---- act: where the learner's code runs

def act_answer(fn, reads):
    return fn() if reads else {}


def act_mend(fn, parts, read, tools, images, labels, seed):
    answer, space = fn(), {}
    if type(answer) is dict and not answer.get("mend", True):
        raise NotImplementedError("mend is not written yet")
    exec(compile(tools, "<probes>", "exec"), space)
    source, _ = space["mended"](answer, parts, read)
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

def law_name(_: Any, drawn: Drawn, happened: Happened) -> None:
    """The case is named, within two tries."""
    if drawn.name not in happened.names:
        raise Broken("names that were tried", len(happened.names), "the right one",
                     f"{TRIES} names count for a case.")


def law_first_try(_: Any, drawn: Drawn, happened: Happened) -> None:
    """It was named at the first try."""
    law_name(_, drawn, happened)
    if happened.names[0] != drawn.name:
        raise Broken("the first name", "a wrong one", "the right one")


def law_evidence(answer: Any, drawn: Drawn, happened: Happened) -> None:
    """A number of a look that was paid, which this fault alone explains.

    Of a healthy script it is a number that could have shown a fault behind such a complaint.
    """
    _named(drawn, happened)
    look, name, value = _evidence(answer)
    if look not in happened.paid:
        raise Broken("evidence", f"a number of {look}", "a look that you paid for")
    probe, line = numbers.LOOKS[look].probe, numbers.printed(name)
    if drawn.fault is None:
        if look not in complaints.looks_for(drawn.group):
            raise Broken("evidence", f"{line} of {look}",
                         "a number that could have shown a fault behind this complaint")
        if not numbers.is_healthy(probe, name, value):
            raise Broken("number", f"{line}: {value:.4g}", "what this look prints")
        return
    if numbers.is_healthy(probe, name, value):
        raise Broken("number", f"{line}: {value:.4g}", "a number outside the healthy range")
    shown = [(low, high) for p, n, low, high in drawn.fault.shows if (p, n) == (probe, name)]
    if not shown:
        raise Broken("evidence", f"{line} of {look}", "a number that tells which fault it is",
                     "Other faults move this number as well.")
    if not any(low <= value <= high for low, high in shown):
        raise Broken("number", f"{line}: {value:.4g}", "what this look prints",
                     "The number is the right one. Copy its value.")


def law_mend(out: Any, drawn: Drawn, happened: Happened) -> None:
    """The fixed script shows what the healthy one shows; what is healthy is left alone."""
    expect_type("answer", out, dict)
    if drawn.fault is None:
        law_evidence(out, drawn, happened)
        if _listed(out):
            raise Broken("mend", f"{len(out['mend'])} changes", "none: nothing is wrong")
        return
    _named(drawn, happened)
    answer = out.get("answer")
    _fix(answer, drawn, happened)
    if "raised" in out:
        expect_type("error", out["raised"], str)
        raise Broken("fixed script", out["raised"], "a script that runs")
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
        raise Broken(f"fixed script, {numbers.printed(name)}", value, f"{low:g} to {high:g}")


def law_twice(answer: Any, drawn: Drawn, happened: Happened) -> None:
    """The price is within twice the budget, and a number or a fix shows a search."""
    _named(drawn, happened)
    try:
        _number(answer, drawn, happened)
    except Broken:
        if drawn.fault is None:
            raise
        if not _mends_the_part(answer, drawn, happened):
            raise Broken("what shows your search", "no number that counts, and no such fix",
                         "evidence, or a fix in the right part") from None
    _spent(happened, 2 * numbers.BUDGET)


def law_once(answer: Any, drawn: Drawn, happened: Happened) -> None:
    """The price is within the budget, and a number shows a search."""
    _number(answer, drawn, happened)
    _spent(happened, numbers.BUDGET)


def _spent(happened: Happened, most: int) -> None:
    spent = numbers.price(happened.charged)
    if spent > most:
        raise Broken("price", spent, f"{most} or less")


def _number(answer: Any, drawn: Drawn, happened: Happened) -> None:
    """Raise Broken unless the answer gives a number that a search has found.

    That is the evidence, or another number outside its range that a look printed. What the loss
    curve shows is none, because a complaint may have said it.
    """
    try:
        law_evidence(answer, drawn, happened)
    except Broken:
        _named(drawn, happened)
        look, name, value = _evidence(answer)
        probe, line = numbers.LOOKS[look].probe, numbers.printed(name)
        if (drawn.fault is None or look not in happened.paid
                or numbers.is_healthy(probe, name, value)
                or (probe, name) in {shown[:2] for shown in drawn.fault.shows}):
            raise
        if name in numbers.LOOKS["loss_curve"].names:
            raise Broken("number", f"{line} of {look}", "one that the loss curve does not show",
                         "A complaint can tell these, without a search.") from None
        if not _is_printed(value, measured(drawn.source, drawn.seed, probe)[name]):
            raise Broken("number", f"{line}: {value:.4g}", "what this look prints") from None


def _is_printed(value: float, shown: float) -> bool:
    """Whether a value is the one that was shown, perhaps on another processor."""
    both = math.isnan(value) and math.isnan(shown)
    return both or math.isclose(value, shown, rel_tol=0.1, abs_tol=0.01)


def _mends_the_part(answer: Any, drawn: Drawn, happened: Happened) -> bool:
    """Whether the answer's fix is one, and changes the part of the fault; it is not run."""
    before = faults.parts(drawn.source)
    source, _ = mending.mended(answer, before, read_parts(happened))
    part = drawn.fault.part
    return source is not None and faults.parts(source)[part] != before[part]


def _named(drawn: Drawn, happened: Happened) -> None:
    if drawn.name not in happened.names:
        raise Broken(*UNNAMED)


def _fix(answer: Any, drawn: Drawn, happened: Happened) -> None:
    """Raise Broken unless the fix is one: pairs of texts, small, in parts that were read."""
    _listed(answer)
    _, refused = mending.mended(answer, faults.parts(drawn.source), read_parts(happened))
    if refused:
        raise Broken(*refused)


def _listed(answer: Any) -> list:
    expect_type("answer", answer, dict)
    expect_parts(answer, *ASKED, what="answer")
    expect_type("mend", answer["mend"], list)
    if len(answer["mend"]) > 40:
        raise Broken("number of changes", len(answer["mend"]), "40 at most")
    return answer["mend"]


def _evidence(answer: Any) -> tuple[str, str, float]:
    how = 'Write (look, number, value), such as ("loss_curve", "last loss", 2.3).'
    expect_type("answer", answer, dict)
    expect_parts(answer, *ASKED, what="answer")
    item = answer["evidence"]
    expect_type("evidence", item, (tuple, list), how)
    if len(item) != 3 or [type(part) for part in item[:2]] != [str, str] or (
            type(item[2]) not in (int, float)):
        raise Broken("evidence", item, "two texts and a number", how)
    look, name, value = item
    meant = numbers.number(look, name) if look in numbers.LOOKS else ""
    if not meant:
        raise Broken("evidence", f"{name} of {look}", "a number that this look prints", how)
    return look, meant, float(value)
