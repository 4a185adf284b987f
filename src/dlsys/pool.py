"""Other names and other numbers for the same exercises, so that a course can be given twice.

Names are drawn for all exercises: a check judges the function that it is called with, whatever its
name. Numbers are drawn for those whose text holds one that might as well be another; `variants`
makes the check that asks for it.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace

from dlsys.pool_constants import CONSTANTS, Piece
from dlsys.pool_names import OTHERS
from dlsys_helpers import catalog
from dlsys_helpers.catalog import Trap

Values = Mapping[str, int | float]  # exercise id to the value of its constant
_OWN = ("exercise", "check", "hint")  # the roles of the cells that speak of an exercise
_SETUP = "stage-setup-2"  # the cell of a worksheet that imports


# ---- drawing

def draw(stage: int, key: str) -> dict[str, str]:
    """Exercise id to the name that this key draws for its function, never the usual one."""
    return {trap.id: OTHERS[trap.id][_number(key, trap.id) % len(OTHERS[trap.id])]
            for trap in catalog.traps(stage)}


def draw_constants(stage: int, key: str) -> dict[str, int | float]:
    """Exercise id to the value that this key draws for its constant, never the usual one."""
    others = {trap.id: CONSTANTS[trap.id].values[1:] for trap in catalog.traps(stage)
              if trap.id in CONSTANTS}
    return {id: values[_number(key, f"{id} constant") % len(values)]
            for id, values in others.items()}


def _number(key: str, what: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{key} {what}".encode()).digest()[:8])


# ---- what a notebook says was drawn for it

def named(traps: list[Trap], names: object, constants: object = None) -> list[Trap]:
    """The exercises under the names that a worksheet's metadata give, their hints with its numbers.

    Strange ones are ignored.
    """
    known, values = names if isinstance(names, dict) else {}, drawable(constants)
    traps = [replace(trap, function=name)
             if (name := known.get(trap.id)) in OTHERS.get(trap.id, ()) else trap for trap in traps]
    return [replace(trap, hints=tuple(with_value(hint, trap.id, values[trap.id])
                                      for hint in trap.hints)) if trap.id in values else trap
            for trap in traps]


def drawable(constants: object) -> dict[str, int | float]:
    """Of what a worksheet's metadata say, the values that a release draws; others are ignored."""
    given = constants if isinstance(constants, dict) else {}
    return {id: value for id, one in CONSTANTS.items() for value in one.values[1:]
            if type(given.get(id)) is type(value) and given[id] == value}


# ---- writing it into a notebook

def rename(book: dict, names: Mapping[str, str]) -> None:
    """Give the functions of a worksheet, or where a lesson names them, these names, in place.

    Only in cells of the exercise itself: its definition, calls of it, its name in backquotes.
    """
    usual = {trap.id: trap.function for trap in catalog.traps(book["metadata"]["dlsys"]["stage"])}
    for cell in book["cells"]:
        facts = cell["metadata"].get("dlsys", {})
        old, new = (known.get(facts.get("trap")) for known in (usual, names))
        if facts.get("role") in _OWN and old and new and old != new:
            cell["source"] = renamed("".join(cell["source"]), old, new)
    book["metadata"]["dlsys"]["names"] = {id: name for id, name in names.items() if id in usual}


def renamed(text: str, old: str, new: str) -> str:
    """The text of a cell with another name for its function; a `def` of several lines stays even.

    The word alone is left: it may be an argument, or a word of the language.
    """
    word = re.escape(old)
    text = re.sub(rf"^def {word}\(.*?:$", lambda match: _even(match[0], len(new) - len(old)), text,
                  flags=re.M | re.S)
    text = re.sub(rf"\b{word}(?=\()|(?<=`){word}(?=`)|(?<=<code>){word}(?=</code>)", new, text)
    return re.sub(rf'(check\("[\d.]+", ){word}\)', rf"\g<1>{new})", text)


def _even(head: str, by: int) -> str:
    """A function's head whose further lines move by so many columns."""
    first, *rest = head.split("\n")
    blanks = [len(line) - len(line.lstrip()) for line in rest]
    return "\n".join([first, *(" " * max(4, blank + by) + line.lstrip()
                               for blank, line in zip(blanks, rest, strict=True))])


def insert(book: dict, constants: Values) -> None:
    """Write these numbers into a notebook's cells of the exercises, in place.

    Where answers are checked, the set-up says which; the metadata say it to the grader.
    """
    for cell in book["cells"]:
        facts = cell["metadata"].get("dlsys", {})
        if facts.get("role") in _OWN and facts.get("trap") in constants:
            id = facts["trap"]
            cell["source"] = with_value("".join(cell["source"]), id, constants[id])
    facts = book["metadata"]["dlsys"]
    facts["constants"] = dict(constants)
    if constants and facts["view"] != "lesson":
        setup = next(cell for cell in book["cells"] if cell["id"] == _SETUP)
        setup["source"] = "".join(setup["source"]) + (
            f"\n\nfrom dlsys import variants\n\nvariants.use({json.dumps(constants)})")


def with_value(text: str, id: str, value: int | float) -> str:
    """A text about an exercise with another value of its constant."""
    one = CONSTANTS[id]
    for piece in (*one.text, *one.code, *one.hints):
        text = text.replace(written(piece, one.values[0]), written(piece, value))
    return text


def written(piece: Piece, value: int | float) -> str:
    """What a piece of an exercise says for this value."""
    return piece[value] if isinstance(piece, dict) else piece.replace("{}", str(value))
