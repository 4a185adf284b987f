"""What to do with two hours, and with two weeks, counted from the minutes of the lessons."""

import html
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from dlsys import reading_time
from dlsys.reading_time import Pace
from dlsys_helpers import catalog, paths
from dlsys_helpers.stages import Stage

HOURS, DAYS = 2, 10  # the two plans: an afternoon, and the working days of two weeks
Link = Callable[[str, str], str]  # a link to a trap, from its number and its words


class Piece(NamedTuple):
    """A trap of a core path with its exercise, or the ideas before it."""

    stage: int
    trap: str  # "" for ideas
    name: str
    minutes: int


def pieces(stage: Stage, pace: Pace = reading_time.PRACTISED) -> Iterator[Piece]:
    """The core path of a stage up to its last trap, in the order of its lesson."""
    path = paths.NOTEBOOKS / f"{stage.stem}.ipynb"
    cells = reading_time.core(json.loads(path.read_text("utf-8"))["cells"]) if path.exists() else []
    traps = {trap.id: trap for trap in catalog.traps(stage.number)}
    of = [*itertools.accumulate(cells, lambda last, cell: reading_time.facts(cell).get(
        "trap", last if reading_time.facts(cell).get("role") == "explore" else ""), initial="")][1:]
    for name, group in itertools.groupby(zip(of, cells, strict=True), lambda pair: pair[0]):
        inside = [cell for _, cell in group]
        read = math.ceil(reading_time.minutes(inside, pace))
        if name:
            yield Piece(stage.number, name, f"{name} {traps[name].title}",
                        read + traps[name].minutes)
        elif read:
            yield Piece(stage.number, "", ideas(inside), read)


def ideas(cells: Iterable[dict]) -> str:
    """The ideas that these cells teach, by the first of their headings and the last."""
    heads = [head for cell in cells if cell["cell_type"] == "markdown"
             for head in re.findall("^## (.+)$", "".join(cell["source"]), re.M)]
    return " to ".join(f"*{head}*" for head in dict.fromkeys([*heads[:1], *heads[-1:]]))


def fitting(found: Iterable[Piece], minutes: int) -> list[Piece]:
    """The first pieces, as many as fit into these minutes; the last of them is a trap."""
    found = [*found]
    ends = itertools.accumulate(piece.minutes for piece in found)
    taken = [piece for piece, end in zip(found, ends, strict=True) if end <= minutes]
    while taken and not taken[-1].trap:
        taken.pop()
    return taken


def newcomer() -> list[Piece]:
    """Two hours for somebody who is new to networks: the beginning of stage 1."""
    return fitting(pieces(catalog.written()[0], reading_time.NEW), 60 * HOURS)


def practitioner() -> list[Piece]:
    """Two hours for somebody who trains networks: the first core trap of each stage."""
    firsts = (next((piece for piece in pieces(stage) if piece.trap), None)
              for stage in catalog.written())
    return fitting(filter(None, firsts), 60 * HOURS)


def two_weeks() -> list[list[Stage]]:
    """The core paths of all stages in order, split so that the longest day is shortest."""
    stages = catalog.written()
    cuts = itertools.combinations(range(1, len(stages)), min(DAYS, len(stages)) - 1)
    plans = ([stages[start:end] for start, end in itertools.pairwise([0, *cut, len(stages)])]
             for cut in cuts)
    return min(plans, key=lambda days: max(map(whole, days)))


def whole(day: list[Stage]) -> int:
    """Minutes for the core paths of these stages, exercises included."""
    cores = (reading_time.times(stage)[0] for stage in day)
    return sum(core.read + core.solve for core in cores)


def sentences(link: Link) -> dict[str, list[str]]:
    """The plans by their headings, a line for each step."""
    plans = {"You have two hours, and networks are new to you": newcomer(),
             "You have two hours, and you train networks": practitioner()}
    told = {name: [f"Stage {one.stage}, {words(one, link)}: {one.minutes} minutes" for one in found]
            for name, found in plans.items()}
    days = two_weeks()
    spent = round(sum(map(whole, days)) / 60)
    told[f"You have two weeks: the core path of every stage, {spent} hours in {len(days)} days"] = [
        f"{'; '.join(f'stage {stage.number}, {stage.title}' for stage in day)}: "
        f"{whole(day) / 60:.1f} hours" for day in days]
    return told


def words(piece: Piece, link: Link) -> str:
    """What to do, for a line of a plan."""
    if not piece.trap:
        return piece.name
    return f"trap {link(piece.trap, piece.name)} and its exercise"


def markdown(link: Link) -> str:
    """The plans as numbered lists, for a page of the book."""
    return "\n\n".join("\n".join([f"**{name}**", "", *(f"1. {line}" for line in lines)])
                       for name, lines in sentences(link).items())


def plan():
    """The plans as an object that a notebook shows, each folded."""
    from IPython.display import HTML

    def item(line: str) -> str:
        return "<li>" + re.sub(r"[*](.+?)[*]", r"<em>\1</em>", html.escape(line)) + "</li>"

    return HTML("".join(
        f"<details><summary>{html.escape(name)}</summary><ol>{''.join(map(item, lines))}</ol>"
        "</details>" for name, lines in sentences(lambda _trap, words: words).items()))
