"""The slides of a lesson: which cells share one, and all of them as a page.

nbconvert turns cells into slides of reveal.js. slides_template/ holds reveal.js, reveal.css and
plugin/notes.js, the speaker view, of release 6.0.2, from dist/ of the npm package; nbconvert would
load them from a network. What stands together follows from the steps of a trap: situation, wrong
code and question; what was measured; the fault and its cause; the repair; what to keep. What a
lesson folds under More stays in the lesson. A trap is a column: down goes on in it, right leaves it
for the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

from nbconvert import SlidesExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbformat import v4 as nb4

from dlsys.formulas import mathml
from dlsys.room.questions import questions_that_come, to_break_live
from dlsys_helpers import catalog
from dlsys_helpers.cards import inline

TEMPLATE = Path(__file__).with_name("slides_template")
# Heights at the usual size of letters, in pixels; deck.js shows the slide in a frame of 720.
TEXT, CODE, GAP, HEADING, FIGURE, COLUMNS = 35, 27, 24, 60, 540, 92
FULL = 800  # a slide takes no more than that: deck.js shrinks it by a tenth
FULL_FIRST = 880  # question and code are best seen together, in smaller letters
HEADINGS = {"look": "Measured", "why": "Why: {fault}", "repair": "Repair",
            "folklore": "Told and measured", "exercise": "Your turn", "keep": "Keep"}
_HEADING = re.compile(r"\A## Trap ([\d.]+)(?: \(core\))?: (.*)\n+")
_ISSUE = re.compile(r"^#(?=\d)", re.MULTILINE)
_TAG = re.compile(r"</?(?:ol|li|div|p|span)\b[^>]*>")
_SCRIPT = re.compile(r"<(!--|/?script)")  # would end the script in which it is a text
_LABEL = re.compile(
    r"\s+(\*\*(?:Measured|In\s+your\s+own\s+code|Source|Seen\s+in\s+the\s+wild):\*\*)")


class Slide(NamedTuple):
    """Its heading, and the cells below it; `first` begins a new column."""

    heading: str
    cells: list[NotebookNode]
    first: bool = False
    notes: str = ""  # for the speaker view: Markdown


def slides(book: NotebookNode) -> Iterator[Slide]:
    """The slides of a lesson: its opening, its traps, its summary."""
    for role in ("hook", "summary"):
        texts = [c for c in book.cells if _role(c) == role and c.cell_type == "markdown"]
        if role == "summary":
            for trap in dict.fromkeys(filter(None, map(_trap, book.cells))):
                yield from trap_slides([c for c in book.cells if _trap(c) == trap])
        if texts:
            yield Slide("", [_text("\n\n".join(c.source for c in texts))], first=True)


def trap_slides(cells: list[NotebookNode]) -> Iterator[Slide]:
    """The slides of one trap: its question with the wrong code, then one step after the other."""
    by_role = {role: [c for c in cells if _role(c) == role] for role in map(_role, cells)}
    first, *rest = by_role["situation"]
    number, title = _HEADING.match(first.source).groups()
    told = [_text(_HEADING.sub("", first.source)), *rest]
    broken = [_code(c) if c.cell_type == "code" else c for c in by_role["break"] if not _folded(c)]
    asked = [_question(c, number) for c in by_role["guess"]]
    yield from _opening(f"## {number} {title}", told, [*broken, *asked], notes(number))
    for role, heading in HEADINGS.items():
        named = heading.format(fault=catalog.trap(number).fault)
        for k, cells_of_one in enumerate(pack(map(_parts, by_role.get(role, [])), FULL - HEADING)):
            clock = [_clock(number)] if role == "exercise" and k == 0 else []
            yield Slide(f"### {number} {named}", [*clock, *cells_of_one])


def notes(number: str) -> str:
    """What a presenter changes live in a trap, and is asked about it; "" where nothing is known."""
    stage = int(number.partition(".")[0])
    live = to_break_live(stage).get(number)
    asked = [f"**{one['ask']}** {one['answer']}" for one in questions_that_come(stage)
             if one["trap"] == number]
    return "\n\n".join([*([f"**Live:** {live}"] if live else []), *asked])


def _clock(number: str) -> NotebookNode:
    """A countdown of the exercise's minutes; deck.js runs it."""
    minutes = catalog.trap(number).minutes
    return _text(f'<p class="clock" data-minutes="{minutes}">{minutes}:00</p>')


def _opening(heading: str, told: list, asked: list, notes: str) -> Iterator[Slide]:
    """Situation, wrong code and question on one slide; where they are long, the situation before.

    asked: the code, then the question about it, which is last.
    """
    if high([*told, *asked]) <= FULL_FIRST - HEADING:
        yield Slide(heading, [*told, *asked], first=True, notes=notes)
        return
    yield Slide(heading, told, first=True, notes=notes)
    for part in pack([[c] for c in asked], FULL_FIRST - HEADING):
        yield Slide(heading.replace("## ", "### ", 1), part)


def _parts(cell: NotebookNode) -> list[NotebookNode]:
    """What is shown of a cell: its text, the code of a repair, every output that is no claim."""
    if cell.cell_type == "markdown":
        return [_text(_LABEL.sub(r"\n\n\1", cell.source))]
    code = [_code(cell)] if _role(cell) == "repair" and not _folded(cell) else []
    return [*code, *_outputs(cell)]


def _outputs(cell: NotebookNode) -> Iterator[NotebookNode]:
    """A code cell's outputs, a cell for each: what it printed, figures, the answer to the guess."""
    tags = cell.metadata.get("tags", [])
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if "measured" in tags:
            hands = f'<div class="hands" data-guess="{_trap(cell)}"></div>'  # drawn by deck.js
            yield _text(f"**{data.get('text/plain', '').strip()}**\n\n{hands}")
        elif "image/png" in data:
            data = {"image/png": data["image/png"]}
            yield _output(nb4.new_output("display_data", data, metadata=output.metadata))
        elif output.output_type == "stream" and output.name == "stdout":
            yield _output(output)
        elif not _folded(cell) and "text/plain" in data:
            yield _output(nb4.new_output("stream", name="stdout", text=data["text/plain"]))


def _question(cell: NotebookNode, number: str) -> NotebookNode:
    """The question of a guess with its choices, as its cell stored them; or a text."""
    if cell.cell_type == "markdown":
        return _text(cell.source)
    stored = "\n".join(out.data.get("text/plain", "") for out in cell.outputs if "data" in out)
    asked, *choices = stored.splitlines()
    asked = f"**{asked.removeprefix('Your guess: ')}**"
    if choices and choices[0].startswith("  - a number"):
        return _text(f'{asked}<span data-guess="{number}"></span>')
    listed = "\n".join(f"<li>{inline(choice.removeprefix('  - '))}</li>" for choice in choices)
    return _text(f'{asked}\n\n<ol class="choices" data-guess="{number}">{listed}</ol>')


def pack(parts: Iterable[list[NotebookNode]], most: int) -> Iterator[list[NotebookNode]]:
    """The parts in order, on as few slides as their heights allow.

    A part, code with its output, is torn only where it alone is too high.
    """
    slide: list[NotebookNode] = []
    for whole in parts:
        for part in [whole] if high(whole) <= most else [[cell] for cell in whole]:
            if slide and high([*slide, *part]) > most:
                yield slide
                slide = []
            slide += part
    if slide:
        yield slide


def high(cells: Iterable[NotebookNode]) -> int:
    return sum(map(height, cells))


def height(cell: NotebookNode) -> int:
    """How high a cell stands at the usual size of letters, in pixels; an estimate."""
    if cell.cell_type == "markdown":
        blocks = re.split(r"\n{2,}|\n(?=\s*(?:[-|\d]|<li))", cell.source)
        blocks = filter(None, (_TAG.sub("", block) for block in blocks))
        return sum(-(-len(block) // COLUMNS) * TEXT + GAP // 2 for block in blocks)
    if not cell.outputs:
        return len(cell.source.splitlines()) * CODE + GAP
    text = cell.outputs[0].get("text")
    return len(text.splitlines()) * CODE + GAP if text else FIGURE


def _role(cell: NotebookNode) -> str:
    return cell.metadata.get("dlsys", {}).get("role", "")


def _trap(cell: NotebookNode) -> str:
    return cell.metadata.get("dlsys", {}).get("trap", "")


def _folded(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("jupyter", {}).get("source_hidden"))


def _text(source: str) -> NotebookNode:
    return nb4.new_markdown_cell(source.strip())


def _code(cell: NotebookNode) -> NotebookNode:
    return nb4.new_code_cell(cell.source)


def _output(output: NotebookNode) -> NotebookNode:
    return nb4.new_code_cell("", outputs=[output])


def notebook(slides: list[Slide], title: str) -> NotebookNode:
    """The slides as a notebook whose cells say where a slide begins, as nbconvert reads it."""
    cells = []
    for slide in slides:
        found = [*([_text(slide.heading)] if slide.heading else []), *map(deepcopy, slide.cells)]
        found[0].metadata.slideshow = {"slide_type": "slide" if slide.first else "subslide"}
        if slide.notes:
            found.append(_text(slide.notes))
            found[-1].metadata.slideshow = {"slide_type": "notes"}
        cells += found
    for number, cell in enumerate(cells):
        cell.id = f"s{number}"
    return nb4.new_notebook(cells=cells, metadata={"title": title})


class Renderer(IPythonRenderer):
    """Formulas without MathJax, which would come from a network."""

    def inline_math(self, body: str) -> str:
        return mathml(body, "inline")

    def block_math(self, body: str) -> str:
        return mathml(body, "block")


def markdown(source: str) -> str:
    """Markdown as HTML. A line may begin with the number of an issue, which is no heading."""
    renderer = Renderer(escape=False, exclude_anchor_links=True)
    return MarkdownWithMath(renderer=renderer).render(_ISSUE.sub(r"\\#", source))


def html(slides: list[Slide], title: str) -> str:
    """All slides as one page that holds everything it shows."""
    exporter = SlidesExporter(
        template_name=TEMPLATE.name, extra_template_basedirs=[str(TEMPLATE.parent)],
        exclude_input_prompt=True, exclude_output_prompt=True)
    exporter.register_filter("markdown2html", markdown)
    parts = {name.replace(".", "_"): _SCRIPT.sub(r"\\x3c\1", (TEMPLATE / name).read_text("utf-8"))
             for name in ("reveal.js", "reveal.css", "notes.js", "deck.js", "deck.css")}
    page, _ = exporter.from_notebook_node(notebook(slides, title), {"deck": parts})
    return page
