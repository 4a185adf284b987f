"""The end of an exam: of each case what was planted, the number that shows it, the trap to read."""

from __future__ import annotations

from difflib import unified_diff

from dlsys_checks.exam import complaints, faults, laws, numbers, sheet
from dlsys_checks.exam.draws import Drawn
from dlsys_checks.exam.ledger import Happened
from dlsys_helpers import catalog


def text(number: int, cases: list[Drawn], happened: list[Happened]) -> str:
    """The debrief of a sheet."""
    lines = [f"{sheet.stage(number).title}: what was planted"]
    for place, (drawn, one) in enumerate(zip(cases, happened, strict=True), 1):
        named = "named" if drawn.name in one.names else "not named"
        price = numbers.price(one.charged)
        lines += [f"\nCase {place}: {named}, paid {price}, budget {numbers.BUDGET}",
                  f"  {complaints_line(drawn)}"]
        lines += _about(drawn) if drawn.fault else _healthy(drawn)
    names = missed(cases, happened)
    lines += ["", f"Not named: {', '.join(names)}" if names else "You have named every fault."]
    return "\n".join(lines)


def complaints_line(drawn: Drawn) -> str:
    """The complaint, with what the script shows filled in."""
    if "{" not in drawn.complaint:
        return drawn.complaint
    found = laws.measured(drawn.source, drawn.seed, "loss_curve")
    return drawn.complaint.format(first=f"{found['first loss']:.3g}",
                                  loss=f"{found['last loss']:.3g}",
                                  accuracy=f"{found['accuracy']:.0%}".replace("%", " %"))


def missed(cases: list[Drawn], happened: list[Happened]) -> list[str]:
    """The faults that were not named; they come back in review."""
    return [drawn.name for drawn, one in zip(cases, happened, strict=True)
            if drawn.fault and drawn.name not in one.names]


def _about(drawn: Drawn) -> list[str]:
    """The fault, what its first number is here and in the plain script, its lines, its trap."""
    fault = drawn.fault
    probe, name, *_ = fault.shows[0]
    value, (low, high) = laws.measured(drawn.source, drawn.seed, probe)[name], (
        numbers.HEALTHY[probe][name])
    healthy = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    look = next(key for key, one in numbers.LOOKS.items()
                if one.probe == probe and name in one.names)
    now, then = (faults.part_of(text, fault.part).splitlines()
                 for text in (fault.planted(faults.healthy()), faults.healthy()))
    changed = [line for line in unified_diff(now, then, n=1, lineterm="")
               if not line.startswith(("---", "+++", "@@"))]
    return [f"  {fault.id} {fault.name}, in the part {fault.part}",
            f"  {look} shows it: {numbers.printed(name)} {value:.4g}, healthy {healthy}",
            "  the lines that are wrong (-), and what they should be (+):",
            *(f"    {line}" for line in changed),
            f"  read trap {fault.id}, {catalog.trap(fault.id).name}"]


def _healthy(drawn: Drawn) -> list[str]:
    looks = complaints.looks_for(drawn.group)
    return ["  Nothing is wrong: the plain script would cause the same complaint.",
            f"  What could have shown a fault, and does not: {', '.join(looks)}"]



