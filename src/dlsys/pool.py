"""Other names for the same exercises, so that a course can be given twice.

The name is drawn; the exercise, its cases and its laws stay. A check judges the function that it is
called with, whatever its name. Constants are not drawn: a docstring is the list of what a check
holds an answer to, word for word, and its laws compute with the numbers in it.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace

from dlsys.pool_names import OTHERS
from dlsys_helpers import catalog
from dlsys_helpers.catalog import Trap


def draw(stage: int, key: str) -> dict[str, str]:
    """Exercise id to the name that this key draws for its function, never the usual one."""
    return {trap.id: OTHERS[trap.id][_number(key, trap.id) % len(OTHERS[trap.id])]
            for trap in catalog.traps(stage)}


def _number(key: str, id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{key} {id}".encode()).digest()[:8])


def rename(book: dict, names: Mapping[str, str]) -> None:
    """Give the functions of a worksheet, or where a lesson names them, these names, in place.

    Only in cells of the exercise itself: its definition, calls of it, its name in backquotes.
    """
    usual = {trap.id: trap.function for trap in catalog.traps(book["metadata"]["dlsys"]["stage"])}
    for cell in book["cells"]:
        facts = cell["metadata"].get("dlsys", {})
        old, new = (known.get(facts.get("trap")) for known in (usual, names))
        if facts.get("role") in ("exercise", "check", "hint") and old and new and old != new:
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


def named(traps: list[Trap], names: object) -> list[Trap]:
    """The exercises under the names that a worksheet's metadata give; strange ones are ignored."""
    known = names if isinstance(names, dict) else {}
    return [replace(trap, function=name)
            if (name := known.get(trap.id)) in OTHERS.get(trap.id, ()) else trap for trap in traps]
