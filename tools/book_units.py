"""The book's page *What you can learn here*: every unit of the course, and where it is taught."""

from __future__ import annotations

from dlsys import units
from dlsys.units import Unit
from dlsys_helpers.stages import STAGES
from tools import book_pages, book_traps


def page(numbers: list[int]) -> str:
    """The page, one table per stage; numbers: the stages whose lessons are built."""
    known = [unit for unit in units.units() if unit.stage in numbers]
    parts = ["# What you can learn here",
             f"The course teaches {len(known)} units: concepts, formulas, calls of PyTorch and "
             f"traps. {sum(unit.open for unit in known)} of them are in open text; the other "
             "units are marked *folded* and appear when you open *More* below their trap. To "
             "look up a unit, ask the [symptom finder](symptoms.md), or type in a terminal: "
             "`dlsys find \"weight decay\"`."]
    for entry in STAGES:
        if rows := [(book_pages.plain(unit.text), link(unit))
                    for unit in known if unit.stage == entry.number]:
            parts += [f"## {entry.number}. {entry.title}",
                      f":::{{div}} rows\n{book_pages.table(('Unit', 'Where'), rows)}\n:::"]
    return "\n\n".join(parts) + "\n"


def link(unit: Unit) -> str:
    """Markdown that links to the section of a unit."""
    folded = "" if unit.open else ", *folded*"
    if unit.page:
        return f"[{unit.page}]({unit.page}.md){folded}"
    if unit.trap:
        return f"{book_pages.link('trap', unit.trap, f'Trap {unit.trap}')}{folded}"
    return book_pages.part_of(*unit.heading) + folded


def address(unit: Unit) -> str:
    """The address in the book of a unit's section."""
    if unit.page:
        return f"{unit.page}.html"
    return f"{book_traps.name(unit.trap)}.html" if unit.trap else book_pages.address_of(
        *unit.heading)


def told() -> dict:
    """The data by which the finder's page finds units: rules, places, and each unit's place.

    A place has its words, its address, the name of its trap or section, and whether it is a trap,
    because a trap's name counts less.
    """
    found = {unit.place: [unit.place, address(unit), units.around(unit), bool(unit.trap)]
             for unit in units.units()}
    at = {place: number for number, place in enumerate(found)}
    return {"same": units.same(), "limits": units.LIMITS, "named": units.NAMED,
            "perhaps": units.PERHAPS, "places": [*found.values()],
            "units": [[unit.text, at[unit.place], unit.open] for unit in units.units()]}
