"""The slides of a lesson, six for each trap, and one page with all of them.

nbconvert turns cells into slides of reveal.js. slides_template/vendor/ holds reveal.js, reveal.css
and plugin/notes.js, the speaker view, of release 6.0.2, from dist/ of the npm package; nbconvert
would load them from a network.

An idea of the lesson is a slide with its first sentences and its drawing. A trap is a column: the
wrong code, the question, what was measured, the cause in a picture, the repair, what to keep with
the exercise. The down key stays in the trap, the right key leaves it for the next one. The speaker
view has a trap's notes on all its slides.

A core deck has only the core path: each trap with the ideas before it, and at most CORE slides.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbconvert import SlidesExporter
from nbconvert.filters import Highlight2HTML
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbformat import v4 as nb4

from dlsys import deck_figures, reading_time
from dlsys.formulas import mathml
from dlsys.room.questions import number_behind, questions_that_come, to_break_live
from dlsys.room.results import LETTERS
from dlsys_helpers import catalog, paths
from dlsys_helpers.cards import inline
from dlsys_helpers.catalog import Trap
from dlsys_helpers.stages import stage

TEMPLATE = Path(__file__).with_name("slides_template")
# Sizes in pixels at the normal font size; deck.js shows the slide in a frame of 720 and gives code
# at least 24 pixels.
TEXT, CODE, GAP, HEADING, COLUMNS = 36, 32, 26, 64, 88
CLOCK = 75  # around an exercise's clock
BESIDE = 0.8  # text next to a figure may shrink to this share of its size
FULL = 690
BODY = FULL - HEADING
CORE = 30  # slides of a core deck
CODE_LINES, PRINTED = 19, 12  # lines of code, lines of what it printed
STEPS = ("Your guess", "Measured", "Why: {fault}", "Repair", "Keep")
_HEADING = re.compile(r"\A## Trap ([\d.]+)(?: \(core\))?: (.*)\n+")
_SECTION = re.compile(r"^#{1,3} (.+)$", re.MULTILINE)
_ISSUE = re.compile(r"^#(?=\d)", re.MULTILINE)
_TAG = re.compile(r"</?(?:ol|li|div|p|span)\b[^>]*>")
_SCRIPT = re.compile(r"<(!--|/?script)")  # would end the script that contains it as text
_LABEL = re.compile(r"\*\*(Keep|In\s+your\s+own\s+code|Source|Seen\s+in\s+the\s+wild):\*\*")
_REPORT = re.compile(r"(print|claim)\(")
_SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z`*])")


class Slide(NamedTuple):
    """A slide's heading and the cells below it; `first` begins a new column."""

    heading: str
    cells: list[NotebookNode]
    first: bool = False
    notes: str = ""  # for the speaker view: Markdown


class Idea(NamedTuple):
    """A section of a lesson that explains: its heading, its first sentences, its drawings."""

    heading: str
    text: str
    drawings: list[NotebookNode]


def slides(book: NotebookNode, core: bool = False) -> Iterator[Slide]:
    """The slides of a lesson in order: opening, ideas, explorers and traps, summary.

    core: only its core path, see `core_slides`.
    """
    if core:
        yield from core_slides(book)
        return
    yield from texts(book, "hook")
    for part in parts(book.cells):
        if isinstance(part, Idea):
            yield from idea_slides(part)
        elif isinstance(part, list):
            yield from trap_slides(part)
        else:
            yield from explorer_slides(part)
    yield from texts(book, "summary")


def parts(cells: list[NotebookNode]) -> Iterator[Idea | list[NotebookNode] | NotebookNode]:
    """The parts that become slides, in lesson order: ideas with a drawing, traps, explorers."""
    told: set[str] = set()
    cells = list(at_headings(cells))
    for n, cell in enumerate(cells):
        trap = _trap(cell)
        if trap and trap not in told:
            told.add(trap)
            yield [c for c in cells if _trap(c) == trap]
        elif not trap and "explorer" in cell.metadata.get("dlsys", {}):
            yield cell
        elif (_role(cell) == "concept" and _SECTION.match(cell.source)
              and (found := idea(cell, cells[n + 1:])).drawings):
            yield found


def at_headings(cells: Iterable[NotebookNode]) -> Iterator[NotebookNode]:
    """The cells, with a concept's text split so that each heading begins a cell."""
    for cell in cells:
        if cell.cell_type == "markdown" and _role(cell) == "concept":
            for text in filter(str.strip, re.split(r"^(?=#{1,3} )", cell.source, flags=re.M)):
                yield nb4.new_markdown_cell(text.strip(), metadata=cell.metadata)
        else:
            yield cell


def idea(cell: NotebookNode, after: Iterable[NotebookNode]) -> Idea:
    """The section that begins with this cell."""
    below = [c for c in takewhile(lambda c: not _trap(c) and not (
        c.cell_type == "markdown" and _SECTION.match(c.source)), after) if _role(c) == "concept"]
    told = [_SECTION.sub("", cell.source, count=1),
            *(c.source for c in below if c.cell_type == "markdown")]
    drawn = figures(part for c in below for part in _outputs(c))
    return Idea(_SECTION.match(cell.source)[1], "\n\n".join(told), drawn)


def idea_slides(found: Idea) -> Iterator[Slide]:
    told = _text(beginning(found.text, 2))
    for cells in placed([told, *found.drawings]):
        # A figure that takes all of a slide has its own title.
        heading = f"## {found.heading}" if total_height(cells) <= BODY else ""
        yield Slide(heading, cells, first=True)


def core_slides(book: NotebookNode) -> Iterator[Slide]:
    """The core path: its opening, each trap after the ideas that lead to it, and the rules to keep.

    If they do not fit on CORE slides, long traps lose a slide until there is room for one idea
    before each trap that has ideas. Then the ideas that are farthest from their trap are left out.
    """
    traps, ideas, waiting = [], [], []
    for part in parts(reading_time.core(book.cells)):
        if isinstance(part, Idea):
            waiting.append(next(idea_slides(part)))
        elif isinstance(part, list):
            traps.append(list(trap_slides(part, short=True)))
            ideas.append(waiting)
            waiting = []
    for shorter in (with_rule_below_repair, with_cause_below_result):
        for n in sorted(range(len(traps)), key=lambda n: -len(traps[n])):
            if 2 + sum(map(bool, ideas)) + sum(map(len, traps)) > CORE:
                traps[n] = shorter(traps[n])
    while 2 + sum(map(len, ideas)) + sum(map(len, traps)) > CORE and any(ideas):
        max(reversed(ideas), key=len).pop(0)
    yield next(texts(book, "hook"))
    for before, trap in zip(ideas, traps, strict=True):
        yield from (*before, *trap)
    yield takeaway_slide(book)


def with_rule_below_repair(trap: list[Slide]) -> list[Slide]:
    """A trap's slides with repair, rule and exercise on one slide, if they fit."""
    *others, repair, keep = trap
    rule, _, turn = keep.cells[:3]
    code = [c for c in repair.cells if c.cell_type == "code" and not c.outputs]
    for cells in ([*repair.cells, rule, turn], [*code, rule, turn]):
        if total_height(cells) <= BODY:
            return [*others, Slide(f"{repair.heading}, and keep", cells, notes=repair.notes)]
    return trap


def with_cause_below_result(trap: list[Slide]) -> list[Slide]:
    """A trap's slides with result and cause on one, without the result's figure, if they fit."""
    at = next(n for n, slide in enumerate(trap) if slide.heading.endswith(STEPS[1]))
    result, cause = trap[at:at + 2]
    cells = [c for c in result.cells if c not in figures(result.cells)] + cause.cells
    if total_height(cells) > BODY:
        return trap
    return [*trap[:at], Slide(cause.heading, cells, notes=cause.notes), *trap[at + 2:]]


def takeaway_slide(book: NotebookNode) -> Slide:
    """The last slide of a core deck: the rules of its traps."""
    ids = [t.id for t in catalog.traps(book.metadata.dlsys.stage) if t.core]
    rules = (keep_parts([c for c in book.cells if (_trap(c), _role(c)) == (id, "keep")])[0]
             for id in ids)
    listed = "\n".join(f"- {beginning(rule, 2)}" for rule in rules)
    return Slide("## What you take with you", [_text(listed)], first=True)


def explorer_slides(cell: NotebookNode) -> Iterator[Slide]:
    """An explorer's picture under the explorer's name. Its text becomes the alt text.

    The section around an explorer is about something else.
    """
    said = cell.outputs[0].data["text/plain"]
    drawn = figures(_outputs(cell))[0]
    drawn.outputs[0].metadata["image/png"]["alt"] = said
    shown = drawn if deck_figures.is_readable(drawn) else _text(said.partition(": ")[2])
    for cells in placed([shown]):
        yield Slide(f"## Explore: {said.partition(':')[0]}", cells, first=True,
                    notes="**Live:** the controls are in the lesson. Ask for a guess, then "
                          "move one.")


def placed(cells: Iterable[NotebookNode]) -> list[list[NotebookNode]]:
    """These cells on as many slides as they need below a heading; a tall figure is split."""
    torn = [part for cell in cells for part in deck_figures.torn(cell, BODY)]
    return list(pages(torn, total_height, BODY))


def texts(book: NotebookNode, role: str) -> Iterator[Slide]:
    """The text of a part on as many slides as it needs, without how to run its cells."""
    found = "\n\n".join(c.source for c in book.cells
                        if _role(c) == role and c.cell_type == "markdown")
    blocks = [_text(b) for b in re.split(r"\n{2,}", found.partition("**Before the first cell")[0])]
    for k, cells in enumerate(pages(blocks, total_height, FULL)):
        yield Slide("", cells, first=not k)


def cells_for_step(step: str, cells: Iterable[NotebookNode]) -> list[NotebookNode]:
    """The cells that show a step of a trap outside the lesson, such as tags=["for-repair"].

    Empty if the lesson tags none: the caller then takes the first cell that fits.
    """
    return [c for c in cells if f"for-{step}" in c.metadata.get("tags", [])]


def functions_used(code: str, cells: Iterable[NotebookNode]) -> list[NotebookNode]:
    """The functions that the code uses and the cells define, one cell each."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    return [nb4.new_code_cell(ast.get_source_segment(c.source, node))
            for c in cells if c.cell_type == "code" for node in ast.parse(c.source).body
            if isinstance(node, ast.FunctionDef) and node.name in used]


def pages(parts: Iterable, size, most: int) -> Iterator[list]:
    """Group parts in order, as many on a page as fit."""
    page: list = []
    for part in parts:
        if page and size([*page, part]) > most:
            yield page
            page = []
        page.append(part)
    if page:
        yield page


def trap_slides(cells: list[NotebookNode], short: bool = False) -> Iterator[Slide]:
    """The slides of one trap: its code, on two slides if it is long, then STEPS.

    The situation is above the code; where it does not fit, only its first sentence. short: the
    question is below the code if there is room, and no step has a second slide.
    """
    by_role = {role: [c for c in cells if _role(c) == role] for role in map(_role, cells)}
    first, *rest = (c.source for c in by_role["situation"])
    number, title = _HEADING.match(first).groups()
    situation = "\n\n".join([_HEADING.sub("", first), *rest])
    broken = [_code(c) for c in by_role["break"] if c.cell_type == "code" and not _folded(c)]
    asked = _question(by_role["guess"][0], number)
    told = [_text(situation)]
    code, *further = code_pages(broken)
    before = (told if total_height([*told, *broken]) <= BODY else
              lead_that_fits([_text(beginning(situation, 1))], [code]))
    say = notes(number)
    asks = guess_cells(told, broken, asked)
    opening = [[*before, code], *([more] for more in further)]
    together = short and total_height([*opening[-1], asked]) <= BODY
    if together:
        opening[-1].append(asked)
    for n, body in enumerate(opening):
        yield Slide(f"##{'#' if n else ''} {number} {title}", body, first=not n, notes=say)
    bodies = ([] if together else [asks], placed(result_cells(by_role, number)),
              placed(cause(by_role)), repair_slides(by_role, broken),
              [keep_cells(by_role, number)])
    for step, found in zip(STEPS, bodies, strict=True):
        heading = f"### {number} {step.format(fault=catalog.trap(number).fault)}"
        yield from (Slide(heading, body, notes=say) for body in (found[:1] if short else found))


def guess_cells(told: list[NotebookNode], broken: list[NotebookNode],
            asked: NotebookNode) -> list[NotebookNode]:
    """The situation and the question, which a class reads while it thinks; code if it is short."""
    whole = [*told, *broken, asked]
    return whole if total_height(whole) <= FULL * 2 // 3 else [*told, asked]


def result_cells(by_role: dict, number: str) -> list[NotebookNode]:
    """The answer to the guess, and the first figure of the step Look; else what that step printed.

    A choice is named with the letter that the class voted for, and with the measured number.
    """
    question = (_stored(by_role["guess"][0]) or [""])[0].removeprefix("Your guess: ")
    choices = _choices(by_role["guess"][0])
    letters = {f"“{choice}”": f"{letter}, “{choice}”"
               for letter, choice in zip(LETTERS, choices, strict=False)}
    own = [c for role in ("look", "why", "repair") for c in by_role.get(role, [])]
    shown = [c for c in own if c.cell_type == "code" and "measured" in c.metadata.get("tags", [])]
    answer = [part for c in shown for part in _outputs(c)]
    for part in answer:
        for choice, lettered in letters.items():
            part.source = part.source.replace(choice, lettered)
        if choices:
            behind = number_behind(own, number, question)
            part.source = part.source.replace("\n\n", f" {behind}\n\n", 1)
    looked = cells_for_step("look", by_role["look"]) or by_role["look"]
    seen = [part for c in looked if c.cell_type == "code" and c not in shown
            for part in _outputs(c)]
    return [*answer, *(figures(seen)[:1] or seen[:1])]


def cause(by_role: dict) -> list[NotebookNode]:
    """The first sentences of why, and its first figure."""
    text = next((c.source for c in by_role["why"] if c.cell_type == "markdown"), "")
    drawn = why_figures(by_role)
    return [_text(beginning(text, 2 if drawn else 5)), *drawn[:1]]


def why_figures(by_role: dict) -> list[NotebookNode]:
    return figures(part for c in by_role["why"] if c.cell_type == "code" for part in _outputs(c))


def repair_slides(by_role: dict, broken: list[NotebookNode]) -> list[list[NotebookNode]]:
    """What the repair says, the lines that it adds, and what they print or draw.

    Functions that the lesson defined to explain the cause come before the lines that use them.
    A figure that does not fit below them gets a separate slide. A repair that is a decision
    and has no code is shown as text only.
    """
    said = by_role["repair"][0]
    text = said.source if said.cell_type == "markdown" else ""
    cells = cells_for_step("repair", (c for found in by_role.values() for c in found))
    cells = cells or [c for c in by_role["repair"] if c.cell_type == "code" and not _folded(c)]
    cells = cells or [c for c in by_role["repair"] if c.cell_type == "code"][:1]
    new = [_code(c, changed_lines(c.source, [b.source for b in broken])) for c in cells[:1]]
    new = [*(f for c in cells[:1] for f in functions_used(c.source, by_role["why"])), *new]
    seen = [part for c in by_role["repair"] if c.cell_type == "code" for part in _outputs(c)]
    code = code_pages(new)[:1] if any(c.source for c in new) else []
    drawn = figures(seen)[:1]
    if not code:
        return placed([_text(beginning(text, 3)), *drawn])
    room = BODY - total_height(code)
    shown = drawn or [part for part in seen if total_height([part]) <= room][:1]
    lead = [_text(beginning(text, 1))] if text else []
    if drawn and total_height(drawn) > room:
        return [[*lead_that_fits(lead, code), *code], *placed(drawn)]
    return [[*lead_that_fits(lead, [*code, *shown]), *code, *shown]]


def lead_that_fits(lead: list[NotebookNode], cells: list[NotebookNode]) -> list[NotebookNode]:
    """The text that introduces these cells, or nothing if both do not fit on one slide."""
    return lead if total_height([*lead, *cells]) <= BODY else []


def keep_cells(by_role: dict, number: str) -> list[NotebookNode]:
    """The rule, how a learner finds the fault in their code, and the exercise with its clock.

    If there is room, the picture of the cause is below them, because this slide stays up
    longest, while the class solves the exercise.
    """
    rule, test = keep_parts(by_role["keep"])
    trap = catalog.trap(number)
    task = inline(f"`{trap.function}`: {beginning(asked_of(trap), 1)}")
    turn = (f'<div class="turn"><span>Your turn, {task}</span> '
            f'<span class="clock" data-minutes="{trap.minutes}">{trap.minutes}:00</span></div>')
    cells = [_text(f"**{rule}**" if "**" not in rule and "`" not in rule else rule),
             _text(f"In your own code: {beginning(test, 2)}"), _text(turn)]
    drawn = why_figures(by_role)[:1]
    return [*cells, *drawn] if total_height([*cells, *drawn]) <= BODY else cells


def keep_parts(cells: Iterable[NotebookNode]) -> tuple[str, str]:
    """The rule of a trap, and how to find its fault in your own code."""
    _, *found = _LABEL.split("\n\n".join(c.source for c in cells))
    named = {" ".join(k.split()): v.strip() for k, v in zip(found[::2], found[1::2], strict=True)}
    return catalog.sentence_case(named["Keep"]), named.get("In your own code", "")


def asked_of(trap: Trap) -> str:
    """What an exercise asks for: the docstring of its function in the worksheet."""
    tops = (node for source in _worksheet(int(trap.id[:2])) for node in ast.parse(source).body)
    asked = next(node for node in tops if getattr(node, "name", "") == trap.function)
    return ast.get_docstring(asked)


@cache
def _worksheet(number: int) -> list[str]:
    book = nbformat.read(paths.EXERCISES / f"{stage(number).stem}.ipynb", as_version=4)
    return [c.source for c in book.cells if c.cell_type == "code" and "def " in c.source]


def changed_lines(code: str, before: Iterable[str]) -> str:
    """The lines of a repair that are not in the wrong code and do more than report.

    Lines that open the block of such a line also stay, and so do empty lines if one slide has
    room for them.
    """
    known = {line.strip() for text in before for line in text.splitlines()}
    reports = {n for node in ast.parse(code).body if _REPORT.match(ast.unparse(node))
               for n in range(node.lineno, node.end_lineno + 1)}
    lines = [line for n, line in enumerate(code.splitlines(), 1) if n not in reports]
    new = {n for n, line in enumerate(lines) if line.strip() and line.strip() not in known}
    new |= {opening for n in new for opening in openings(lines, n)}
    found = "\n".join(line for n, line in enumerate(lines)
                      if not new or n in new or not line.strip()).strip("\n")
    return re.sub(r"\n{2,}", "\n\n" if len(found.splitlines()) <= CODE_LINES else "\n", found)


def openings(lines: list[str], n: int) -> Iterator[int]:
    """The lines that open the blocks around line n, the innermost first."""
    inner = _indent(lines[n])
    for above in range(n - 1, -1, -1):
        if lines[above].strip() and _indent(lines[above]) < inner:
            inner = _indent(lines[above])
            yield above


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def beginning(text: str, sentences: int) -> str:
    """The first sentences of the first paragraph that is not part of a list or a table."""
    paragraph = next((p for p in re.split(r"\n{2,}", text.strip()) if p[:1] not in "-|#1"), text)
    return " ".join(_SENTENCE.split(" ".join(paragraph.split()))[:sentences])


def code_pages(cells: Iterable[NotebookNode]) -> list[NotebookNode]:
    """Code cells one below the other, split at empty lines if they do not fit on one slide.

    Each piece is coloured as part of the whole, because it may begin inside a docstring.
    """
    blocks = re.split(r"\n{2,}", "\n\n".join(c.source for c in cells))
    whole, made, line = "\n\n".join(blocks), [], 0
    for page in pages(blocks, lambda found: len("\n\n".join(found).splitlines()), CODE_LINES):
        made.append(nb4.new_code_cell("\n\n".join(page)))
        made[-1].metadata.dlsys = {"whole": whole, "line": line}
        line += len(made[-1].source.splitlines()) + 1
    return made


def highlighted(source: str, language: str | None = None,
                metadata: NotebookNode | None = None) -> str:
    """Code in colours, for nbconvert; a piece of a longer text has the colours it has there."""
    whole = (metadata or {}).get("dlsys", {}).get("whole", source)
    line = (metadata or {}).get("dlsys", {}).get("line", 0)
    made = Highlight2HTML(pygments_lexer="ipython3")(whole, language)
    head, body = made.partition("<pre>")[::2]
    body, tail = body.removeprefix("<span></span>").rsplit("</pre>", 1)
    lines = body.splitlines()[line:line + len(source.splitlines())]
    return f"{head}<pre><span></span>{chr(10).join(lines)}\n</pre>{tail}"


def figures(parts: Iterable[NotebookNode]) -> list[NotebookNode]:
    return [part for part in parts
            if part.cell_type == "code" and part.outputs and "data" in part.outputs[0]]


def notes(number: str) -> str:
    """What a presenter changes live in a trap, and is asked about it; "" if nothing is known."""
    stage = int(number.partition(".")[0])
    live = to_break_live(stage).get(number)
    asked = [f"**{one['ask']}** {one['answer']}" for one in questions_that_come(stage)
             if one["trap"] == number]
    return "\n\n".join([*([f"**Live:** {live}"] if live else []), *asked])


def _outputs(cell: NotebookNode) -> Iterator[NotebookNode]:
    """A code cell's outputs, one cell each: printed text, figures, the answer to the guess."""
    tags = cell.metadata.get("tags", [])
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if "measured" in tags:
            hands = f'<div class="hands" data-guess="{_trap(cell)}"></div>'  # drawn by deck.js
            yield _text(f"**{data.get('text/plain', '').strip()}**\n\n{hands}")
        elif "image/png" in data:
            yield deck_figures.figure(output, cell.source)
        elif output.output_type == "stream" and output.name == "stdout":
            yield _output(_printed(output.text))
        elif not _folded(cell) and "text/plain" in data:
            yield _output(_printed(data["text/plain"]))


def _printed(text: str) -> NotebookNode:
    lines = text.rstrip().splitlines()
    more = ["..."] if len(lines) > PRINTED else []
    return nb4.new_output("stream", name="stdout", text="\n".join([*lines[:PRINTED], *more]))


def _question(cell: NotebookNode, number: str) -> NotebookNode:
    """The question of a guess with its choices, as its cell stored them; or a text."""
    if cell.cell_type == "markdown":
        return _text(cell.source)
    asked = f"**{_stored(cell)[0].removeprefix('Your guess: ')}**"
    choices = _choices(cell)
    if not choices:
        return _text(f'{asked}<span data-guess="{number}"></span>')
    listed = "\n".join(f"<li>{inline(choice)}</li>" for choice in choices)
    return _text(f'{asked}\n\n<ol class="choices" data-guess="{number}">{listed}</ol>')


def _stored(cell: NotebookNode) -> list[str]:
    """The lines that a guess has stored: the question, then a line for each choice."""
    return "\n".join(out.data.get("text/plain", "") for out in cell.get("outputs", [])
                     if "data" in out).splitlines()


def _choices(cell: NotebookNode) -> list[str]:
    """The choices of a guess; none if it asks for a number."""
    found = [line.removeprefix("  - ") for line in _stored(cell)[1:]]
    return [] if found and found[0].startswith("a number") else found


def total_height(cells: Iterable[NotebookNode]) -> float:
    """The height of these cells; text next to a figure shrinks, unless there is code as well."""
    cells = list(cells)
    drawn = figures(cells)
    has_code = any(c.cell_type == "code" and c not in drawn for c in cells)
    shrunk = 1 if has_code or not drawn else BESIDE
    return sum(map(height, drawn)) + shrunk * shrunk * sum(
        height(c) for c in cells if c not in drawn)


def height(cell: NotebookNode) -> int:
    """Estimate a cell's height in pixels at the normal font size; of a figure, its least height."""
    if cell.cell_type == "markdown":
        blocks = re.split(r"\n{2,}|\n(?=\s*(?:[-|\d]|<li))", cell.source)
        blocks = filter(None, (_TAG.sub("", block) for block in blocks))
        words = sum(-(-len(block) // COLUMNS) * TEXT + GAP // 2 for block in blocks)
        return words + CLOCK * ('class="turn"' in cell.source)
    if not cell.outputs:
        return len(cell.source.splitlines()) * CODE + GAP
    text = cell.outputs[0].get("text")
    return len(text.splitlines()) * CODE + GAP if text else deck_figures.least(cell)


def _role(cell: NotebookNode) -> str:
    return cell.metadata.get("dlsys", {}).get("role", "")


def _trap(cell: NotebookNode) -> str:
    return cell.metadata.get("dlsys", {}).get("trap", "")


def _folded(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("jupyter", {}).get("source_hidden"))


def _text(source: str) -> NotebookNode:
    return nb4.new_markdown_cell(source.strip())


def _code(cell: NotebookNode, source: str | None = None) -> NotebookNode:
    return nb4.new_code_cell(cell.source if source is None else source)


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
    """Renders formulas without MathJax, which a page would load from a network."""

    def inline_math(self, body: str) -> str:
        return mathml(body, "inline")

    def block_math(self, body: str) -> str:
        return mathml(body, "block")


def markdown(source: str) -> str:
    """Markdown as HTML. A line may begin with an issue number, which is not a heading."""
    renderer = Renderer(escape=False, exclude_anchor_links=True)
    return MarkdownWithMath(renderer=renderer).render(_ISSUE.sub(r"\\#", source))


def html(slides: list[Slide], title: str) -> str:
    """All slides as one self-contained page."""
    exporter = SlidesExporter(
        template_name=TEMPLATE.name, extra_template_basedirs=[str(TEMPLATE.parent)],
        filters={"highlight_code": highlighted},
        exclude_input_prompt=True, exclude_output_prompt=True)
    exporter.register_filter("markdown2html", markdown)
    files = (*((TEMPLATE / "vendor").glob("*.[jc]s*")), *TEMPLATE.glob("deck.*"))
    parts = {file.name.replace(".", "_"): _SCRIPT.sub(r"\\x3c\1", file.read_text("utf-8"))
             for file in files}
    page, _ = exporter.from_notebook_node(notebook(slides, title), {"deck": parts})
    return page
