"""README's generated blocks between markers: the promise in numbers, the way in, the table."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import nbformat
import yaml

from dlsys_helpers import catalog, paths
from dlsys_helpers.catalog import Trap
from dlsys_helpers.paths import NOTEBOOKS, ROOT
from dlsys_helpers.stages import STAGES, Stage
from tools import book_doors

STEP = 250  # claims; the promise is rounded down
HEAD = "| | Lesson | In one line | Traps |\n|--:|:--|:--|:--|\n"


def lesson_table(stages: Iterable[Stage], written: Mapping[int, Sequence[Trap]]) -> str:
    """The Markdown table of all stages, including those not written yet.

    ``written``: the traps of each written stage, by its number.
    """
    return HEAD + "".join(_row(stage, written.get(stage.number)) for stage in stages)


def _row(stage: Stage, traps: Sequence[Trap] | None) -> str:
    """One line of the table; the title of a written lesson links to its notebook."""
    if traps is None:
        return f"| {stage.number} | {stage.title} | {stage.promise} | not written yet |\n"
    minutes = sum(trap.minutes for trap in traps)
    return (f"| {stage.number} | [{stage.title}](notebooks/{stage.stem}.ipynb) "
            f"| {stage.promise} | {len(traps)}, with {minutes} min of exercises |\n")


def promise(traps: Sequence[Trap], stages: int, claims: int) -> str:
    """The content of the course in numbers; claims rounded down, so that few changes show."""
    return (f"**{len(traps)} traps in {stages} stages, {len(traps)} exercises that check "
            f"themselves, over {claims // STEP * STEP:,} claims that are measured again on your "
            "machine.** All of it runs on a laptop's CPU. Nothing is downloaded while you learn; "
            "there is no account and no key.\n")


def way_in(repository: str, site: str, on_index: bool = False) -> str:
    """One line to paste; with a public home, also links to the pages and to hosts above it.

    on_index: whether the package index has the course, so that no clone is needed.
    """
    if on_index:
        line = 'uvx --from "dlsys-helpers[lab]" dlsys lab      # with uv; without a clone'
    elif repository:
        name = repository.rstrip("/").rpartition("/")[2]
        line = f"git clone {repository} && cd {name} && make lab"
    else:
        line = "make lab      # in this folder; the first time takes two to ten minutes"
    return f"{links(repository, site)}```sh\n{line}\n```\n"


def links(repository: str, site: str) -> str:
    """The pages, and the first lesson on each host; "" without a public home."""
    if not repository:
        return ""
    home = book_doors.Home(repository, "main", "")
    hosts = [f"[{name}]({url})" for name, url in
             book_doors.ways(home, paths.lesson_copy(1).name).items() if url.startswith("https:")]
    read = f"[Read it on the web]({site})" if site else ""
    run = f"open lesson 1 on {', '.join(hosts)}" if hosts else ""
    return ", ".join(filter(None, (read, run))) + ", or work on it here:\n\n"


def filled(text: str, name: str, block: str) -> str:
    """README's text with this block between its markers. Raises ValueError without markers."""
    between = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
    text, count = between.subn(lambda _: block, text)
    if count != 1:
        raise ValueError(f"README.md: got {count} places for {name}, expected 1 between "
                         f"the lines <!-- {name} --> and <!-- /{name} -->.")
    return text


def current_table() -> str:
    """The table for today's catalog, and how long it takes."""
    from tools import book_home  # slow to import
    table = lesson_table(STAGES, {s.number: catalog.traps(s.number) for s in catalog.written()})
    lessons = {stage.number: nbformat.read(NOTEBOOKS / f"{stage.stem}.ipynb", as_version=4)
               for stage in catalog.written()}
    return f"{table}\n{book_home.hours(lessons)}.\n"


def current_promise() -> str:
    """The promise with today's numbers; counts the claims whose lines are stored in the lessons."""
    claims = sum(path.read_text("utf-8").count('"holds: ') for path in NOTEBOOKS.glob("*.ipynb"))
    return promise(catalog.traps(), len(catalog.written()), claims)


def current_way_in() -> str:
    config = yaml.safe_load((ROOT / "book/_config.yml").read_text("utf-8"))
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["dlsys"]
    if not (repository := config["repository"]["url"]):
        return way_in("", "", settings["on_index"])
    from tools import book  # slow to import, and needed only for its address
    return way_in(repository, book.address(config), settings["on_index"])


def current(text: str) -> str:
    """README's text as it should be now."""
    for name, block in (("promise", current_promise()), ("way in", current_way_in()),
                        ("lessons", current_table())):
        text = filled(text, name, block)
    return text


def update(path: Path) -> None:
    """Rewrite the text between the markers of this README."""
    path.write_text(current(path.read_text(encoding="utf-8")), encoding="utf-8")
