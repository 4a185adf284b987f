"""A one-minute page for each trap, made from the cells of its lesson, as Markdown."""

from __future__ import annotations

import ast
import base64
import hashlib
import html
import io
import re
from pathlib import Path

from nbformat import NotebookNode
from PIL import Image

from dlsys import deck
from dlsys_helpers import catalog
from dlsys_helpers.catalog import Trap, sentence_case
from dlsys_helpers.errors import UserError
from dlsys_watch.rules import all_rules
from tools import book_gallery, book_pages, book_repair, watch_record

LABEL = re.compile(r"\*\*(Keep|In\s+your\s+own\s+code|Source|Seen\s+in\s+the\s+wild):\*\*")
CLAIM = "holds: "  # how the text output of a claim that held begins


def name(trap: str) -> str:
    """The page of a trap in the book, without its ending: ``traps/01-1``. It never changes."""
    return f"traps/{trap.replace('.', '-')}"


def pages(lessons: book_pages.Lessons) -> dict[str, str]:
    """The page of every trap in the lessons, by name, in lesson order."""
    return {name(trap.id): page(trap, lessons[number])
            for number in lessons for trap in catalog.traps(number)}


def cells(lesson: NotebookNode, trap: str, role: str, kind: str = "code") -> list[NotebookNode]:
    """The cells of one step of a trap, in order."""
    found = ((cell, cell["metadata"].get("dlsys", {})) for cell in lesson["cells"]
             if cell["cell_type"] == kind)  # keys, because attribute access takes ten times as long
    return [cell for cell, facts in found if facts.get("trap") == trap and facts["role"] == role]


def of_trap(cell: NotebookNode, trap: str) -> bool:
    return cell.metadata.get("dlsys", {}).get("trap") == trap


def page(trap: Trap, lesson: NotebookNode) -> str:
    keep = keep_parts(lesson, trap.id)
    shown, asked = (cells(lesson, trap.id, role) for role in ("break", "look"))
    parts = [f"# {trap.id} {book_pages.plain(trap.name)}",
             f"**You see:** {book_pages.plain(trap.symptom)}.",
             "## The code that does it", *map(book_pages.fenced, book_pages.unfolded(shown)),
             *helpers(lesson, trap.id, shown),
             *guess_first(lesson, trap.id, [*filter(None, map(readings, asked))]),
             "## Why", *cause(lesson, trap.id), *book_repair.of_lesson(lesson, trap),
             "## The repair", *the_repair(lesson, trap.id),
             "## A test for your own code", sentence_case(keep["In your own code"]),
             "## Keep", sentence_case(keep["Keep"])]
    parts += ["## Would `dlsys watch` tell?", watch_answer(trap.id), *neighbours(trap.id),
              *book_gallery.lines(trap.id)]
    if "Seen in the wild" in keep:
        parts += ["## Seen in the wild", keep["Seen in the wild"]]
    return "\n\n".join([*parts, "## Go on", further_links(trap)]) + "\n"


def helpers(lesson: NotebookNode, trap: str, shown: list[NotebookNode]) -> list[str]:
    """A sentence on the names in the code that the lesson defines in folded cells; [] for none."""
    defined = {name for c in lesson.cells if c.cell_type == "code" and book_pages.folded(c)
               for name in book_pages.defined_names(c.source)}
    used = dict.fromkeys(node.id for c in book_pages.unfolded(shown)
                         for node in ast.walk(ast.parse(book_pages.without_reports(c.source)))
                         if isinstance(node, ast.Name) and node.id in defined)
    names = book_pages.in_a_sentence([f"`{name}`" for name in used])
    place = book_pages.link("trap", trap, "the lesson")
    return [f"{names}: defined in {place}, in folded code."] if used else []


def guess_first(lesson: NotebookNode, trap: str, measured: list[str]) -> list[str]:
    """The measurement, which stays hidden until the reader answers the lesson's question.

    The rest of the page is visible: readers who come from the finder already have the fault.
    """
    question, answer = (outputs_of(lesson, trap, tag) for tag in ("guess", "measured"))
    if not (question and answer):
        return ["## What was measured", *measured]
    head = book_pages.GUESS_FIRST.format(up="../", which=" data-trap")
    return ["## Guess, then see what was measured", book_pages.raw(head),
            "::::::{div} pair\n:::::{div} step-guess", *question, ":::::\n::::::",
            "::::::{div} waits", *answer, *measured, "::::::"]


def outputs_of(lesson: NotebookNode, trap: str, tag: str) -> list[str]:
    """The stored HTML of a trap's cells with this tag, a question or its answer."""
    return [book_pages.raw("".join(o.data["text/html"])) for c in lesson.cells
            if of_trap(c, trap) and tag in c.metadata.get("tags", [])
            for o in c.get("outputs", []) if "text/html" in o.get("data", {})]


def the_repair(lesson: NotebookNode, trap: str) -> list[str]:
    """The code of the repair; its text if the code only reports."""
    codes = [c for c in repair_code(lesson, trap) if book_pages.without_reports(c.source)]
    return [*map(book_pages.fenced, codes)] or [
        c.source for c in cells(lesson, trap, "repair", "markdown")]


def repair_code(lesson: NotebookNode, trap: str) -> list[NotebookNode]:
    """The functions that the repair uses and the step Why defines, then the code of the repair."""
    mended = cells(lesson, trap, "repair")
    tagged = deck.cells_for_step("repair", (c for c in lesson.cells if of_trap(c, trap)))
    found = (tagged or book_pages.unfolded(mended) or mended)[:1]
    return [*(f for c in found for f in deck.functions_used(
        book_pages.without_reports(c.source), cells(lesson, trap, "why"))), *found]


def cause(lesson: NotebookNode, trap: str) -> list[str]:
    """The lesson's text on the cause, with one picture, if possible one that marks the fault."""
    told = cells(lesson, trap, "why", "markdown")
    drawn = [(c, o) for c in cells(lesson, trap, "why") for o in c.outputs if is_figure(o)]
    drawn.sort(key=lambda pair: "marks=" not in pair[0].source)
    return [*(c.source for c in told), *(picture(o) for _, o in drawn[:1])]


def is_figure(output: NotebookNode) -> bool:
    return "image/png" in output.get("data", {}) and "text/html" not in output.data


def picture(output: NotebookNode) -> str:
    """A stored figure with its alt text, loaded once it scrolls into view; see `write_pictures`."""
    alt = html.escape(output.metadata.get("image/png", {}).get("alt", ""))
    with Image.open(io.BytesIO(png(output))) as drawn:
        width, height = drawn.size
    file = f"../figures/{file_name(output)}"
    return book_pages.raw(f'<a class="image-reference" href="{file}"><img class="figure" '
                          f'alt="{alt}" loading="lazy" width="{width}" height="{height}" '
                          f'src="{file}"></a>')


def png(output: NotebookNode) -> bytes:
    return base64.b64decode("".join(output.data["image/png"]))


def file_name(output: NotebookNode) -> str:
    return f"{hashlib.sha256(png(output)).hexdigest()[:16]}.png"


def write_pictures(lessons: book_pages.Lessons, folder: Path) -> None:
    """Write all figures of all traps into `folder`; the pages show some of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for lesson in lessons.values():
        for cell in (c for c in lesson.cells if c.metadata.get("dlsys", {}).get("trap")):
            for output in filter(is_figure, cell.get("outputs", [])):
                (folder / file_name(output)).write_bytes(png(output))


def keep_parts(lesson: NotebookNode, trap: str) -> dict[str, str]:
    """The parts of a trap's keep cell by label: Keep, In your own code, Source, and so on.

    Raises UserError when the cell lacks one of the first two.
    """
    text = "\n\n".join(c.source for c in cells(lesson, trap, "keep", "markdown"))
    _, *found = LABEL.split(text)
    labels = (" ".join(label.split()) for label in found[::2])
    parts = {label: body.strip() for label, body in zip(labels, found[1::2], strict=True)}
    missing = {"Keep", "In your own code"} - parts.keys()
    if missing:
        raise UserError(f"trap {trap}: its keep cell has {', '.join(parts) or 'no label'}, "
                         f"expected also {', '.join(sorted(missing))}. Write **{min(missing)}:**")
    return parts


def readings(cell: NotebookNode) -> str:
    """The printed output and the figures of a cell, and its claims that held."""
    claims = [text.removeprefix(CLAIM) for o in cell.outputs
              if (text := o.get("data", {}).get("text/plain", "")).startswith(CLAIM)]
    drawn = "".join(f"{picture(o)}\n\n" for o in cell.outputs if is_figure(o))
    return printed(cell) + drawn + "\n".join(f"- {book_pages.plain(c)}" for c in claims)


def printed(cell: NotebookNode) -> str:
    """The printed output of a cell, as a block; "" for none."""
    text = "".join(o.text for o in cell.outputs if o.output_type == "stream").strip()
    return f"```text\n{text}\n```\n\n" if text else ""


def watch_answer(trap: str) -> str:
    """Whether `dlsys watch` detects the trap, with the first finding in its lesson, as Markdown."""
    page = "[`dlsys watch`](../watch.md)"
    if rows := watch_record.findings().get(trap):
        lines = "\n".join(f"line {row['line']}  {row['message']}  [{row['rule']}]"
                          for row in rows[:1])
        return f"Yes. For the code above, {page} prints:\n\n```text\n{lines}\n```"
    rules = [rule.id for rule in all_rules() if rule.trap == trap]
    if rules:
        names = ", ".join(f"`{name}`" for name in rules)
        return (f"In a training script, {page} reports this fault by the rule {names}. The few "
                "lines above are too short a run for this rule.")
    return f"No. Nothing in a run proves that this fault is present, so {page} is silent."


def neighbours(trap: str) -> list[str]:
    """A sentence or two for each related fault that no trap teaches, from book/neighbours.yml."""
    return [f"**A related fault:** {row['says']} {watch_record.detection(row)}"
            for row in watch_record.neighbours() if row["beside"] == trap]


def further_links(trap: Trap) -> str:
    """Links into the lesson, the worksheet and the list of wrong answers."""
    return ("The heading of this trap in the lesson is "
            f"{book_pages.link('trap', trap.id, trap.title)}: guess first, then run it. You can "
            f"also {book_pages.link('exercise', trap.id, f'write {trap.function} yourself')} "
            f"(about {trap.minutes} minutes) or look up the [other symptoms](../symptoms.md).")
