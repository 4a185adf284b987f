"""The end of an exam: of each case what was planted, the number that shows it, the trap to read."""

from __future__ import annotations

from dlsys_checks.exam import laws, ledger, numbers, sheet
from dlsys_checks.exam.faults import Fault
from dlsys_helpers import catalog, progress


def text(number: int) -> str:
    """The debrief of a sheet; what was not found is noted, and comes back in review.

    Raises CatalogError for a number that no sheet has.
    """
    sheet.known(number)
    solved, lines = progress.solved(), []
    missed: list[list[str]] = []  # of each case
    for place in range(1, sheet.CASES + 1):
        planted = sheet.case(number, place)
        rows = [row for row in sheet.traps(number) if row.function == f"case_{place}"]
        first, possible = rows[0].id, sum(row.points for row in rows)
        lost = [] if first in solved else [fault.id for fault in planted]
        missed.append(lost)
        points = sum(row.points for row in rows if row.id in solved)
        lines.append(f"\nCase {place}: {'not named' if lost else 'named'}, {points} of {possible} "
                     "points")
        for fault in planted:
            lines += _about(number, place, fault)
        lines.append(f"  the lines to change: dlsys answer {first}")
    for place, lost in enumerate(missed, 1):  # once all is known: an interrupted one ends nothing
        ledger.end(number, place, lost)
    names = [id for lost in missed for id in lost]
    kept = "" if ledger.STORE.path() else " They are not kept: DLSYS_PROGRESS is off."
    last = (f"Not named: {', '.join(names)}. In two days they come back: dlsys review{kept}"
            if names else "You have named them all.")
    return "\n".join([f"{sheet.stage(number).title}: what was planted", *lines, "", last])


def _about(number: int, place: int, fault: Fault) -> list[str]:
    """The fault, what its first number is here and in the plain script, and its trap."""
    probe, name, *_ = fault.shows[0]
    value, (low, high) = laws.look(number, place, probe)[name], numbers.HEALTHY[probe][name]
    healthy = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return [f"  {fault.id} {fault.name}, in the part {fault.part}",
            f"    {probe} shows it: {name} {value:.4g}, healthy {healthy}",
            f"    read trap {fault.id}, {catalog.trap(fault.id).name}"]
