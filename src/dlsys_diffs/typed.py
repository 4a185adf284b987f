"""Find out which recorded repair a reviewer typed, however it is spelled.

Typed lines are put into the changed files where a recorded repair puts its own, and both results
are compared by `spelling.canonical`. Nothing that was typed ever runs.
"""

import difflib
import itertools
import re
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from dlsys_diffs.case_files import Case
from dlsys_diffs.repository import Files
from dlsys_diffs.spelling import canonical

BACK = 3  # the number of the repair that types the old lines back
MOST_HUNKS = 3  # in a repair that is typed in pieces
MOST = 600  # characters


class Hunk(NamedTuple):
    """Lines low to high of a file, and the lines that a repair puts there."""

    file: str
    low: int
    high: int
    new: list[str]


def repairs_of(text: str, case: Case) -> set[int]:
    """The places of the repairs that a text may be; BACK for the old lines.

    There are several if the answer depends on where the text goes. Old lines that are also one of
    the repairs count as that repair, and old lines that could go elsewhere count as old lines.
    """
    if len(text) > MOST:
        return set()
    repaired = [case.repaired(place) for place in range(len(case.repairs))]
    targets = [*enumerate(repaired), *((0, files) for files in case.other_repairs)]
    if not any(_same(case.reverted, files) for files in repaired):
        targets.append((BACK, case.reverted))
    found = {place for place, target in targets
             if squeezed(text) == squeezed("\n".join(added(case.after, target)))
             or any(_same(files, target) for files in _applied(text, case.after, target))}
    return {BACK} if BACK in found else found


def squeezed(code: str) -> str:
    return re.sub(r"\s", "", code).replace("'", '"')


def added(before: Files, after: Files) -> list[str]:
    """The lines that the second version adds."""
    return [line for hunk in hunks(before, after) for line in hunk.new]


def _same(files: Files, target: Files) -> bool:
    return all((form := canonical(text)) is not None and form == canonical(target[file])
               for file, text in files.items())


def hunks(before: Files, after: Files) -> list[Hunk]:
    found = []
    for file, text in after.items():
        old, new = before[file].splitlines(), text.splitlines()
        found += [Hunk(file, low, high, new[start:end]) for tag, low, high, start, end in
                  difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
                  if tag != "equal"]
    return found


def _applied(text: str, before: Files, target: Files) -> Iterator[dict[str, str]]:
    """The changed files with a text at the places where a repair puts its own lines."""
    every = hunks(before, target)
    filled = [hunk for hunk in every if hunk.new]
    cut = [(hunk, []) for hunk in every if not hunk.new]  # a deletion has nothing to type
    if len(filled) == 1:
        lines = textwrap.dedent(text).strip("\n").splitlines()
        for hunk in _around(filled[0], len(before[filled[0].file].splitlines())):
            yield _put([*cut, (hunk, lines)], before)
    pieces = [piece for piece in re.split(r"[;\n]", text) if piece.strip()]
    if len(pieces) == len(filled) <= MOST_HUNKS:
        for order in itertools.permutations(pieces):
            for places in itertools.product(*map(_beside, filled)):
                yield _put([*cut, *((hunk, [piece]) for hunk, piece in
                                    zip(places, order, strict=True))], before)


def _around(hunk: Hunk, count: int) -> Iterator[Hunk]:
    """The hunk, with one more line around it, or before or after its lines, which then stay."""
    yield from _beside(hunk)
    for less, more in ((1, 0), (0, 1), (1, 1)):
        if hunk.low - less >= 0 and hunk.high + more <= count:
            yield hunk._replace(low=hunk.low - less, high=hunk.high + more)


def _beside(hunk: Hunk) -> list[Hunk]:
    return [hunk, hunk._replace(low=hunk.high), hunk._replace(high=hunk.low)]


def _put(parts: list[tuple[Hunk, list[str]]], before: Files) -> dict[str, str]:
    files = {hunk.file: before[hunk.file].splitlines() for hunk, _ in parts}
    for hunk, lines in sorted(parts, key=lambda part: -part[0].low):
        indent = re.match(r"\s*", hunk.new[0])[0] if hunk.new else ""
        files[hunk.file][hunk.low:hunk.high] = [indent + line if n else indent + line.strip()
                                                for n, line in enumerate(lines)]
    return {file: "\n".join(lines) + "\n" for file, lines in files.items()}
