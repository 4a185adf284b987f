"""The repair bench of a trap's page: the reader picks code, and the exercise's check answers.

Every candidate is in the page with its verdict, so the page needs no kernel and no network.
repair_candidates.py chooses the candidates. The message for a mistake comes from the record of
`tools.proof`, which says when it is stale; the build of the book computes a stale message again.
The right candidate shows what its lesson measured after the repair.

Without a script a candidate's verdict is folded below it; site/repair.js turns each candidate into
a button and shuffles them at each visit.
"""

from __future__ import annotations

import ast
import functools
import html
import inspect
import random

from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from dlsys_checks import registry
from dlsys_helpers.cards import inline
from dlsys_helpers.catalog import Trap
from dlsys_helpers.verdicts import STATUSES
from tools import book_pages, proof, repair_candidates
from tools.repair_candidates import Bench

ABOVE, BELOW = 8, 14  # the most lines shown above and below the place
FIRST_LINES = 4  # of the lines above, how many come from the function's head
HELPER_LINES = 8  # the longest function shown that only the check's file defines
MOST_NUMBERS = 4  # lines shown of what the lesson printed after its repair
FILES = ('<link rel="stylesheet" href="{up}site/repair.css">\n'
         '<script defer src="{up}site/repair.js"></script>')


def section(trap: Trap, numbers: str) -> list[str]:
    """The part of a trap's page in which the reader repairs it, as Markdown.

    numbers: what the lesson measured after its repair, "" for nothing.
    """
    found = repair_candidates.bench(trap.id)
    if not found:
        mistakes = len(registry.find(trap.id).wrong_answers)
        there = book_pages.WRONG.format(int(trap.id[:2]))
        write = book_pages.link("exercise", trap.id, f"Write {trap.function} yourself")
        return ["## Repair it", "On other pages you choose the repair from four or five short "
                "candidates. This trap's repair is longer, so there is nothing to choose "
                f"from. {write}: the check knows {mistakes} mistakes by name and [says what each "
                f"one does](../{there}.md)."]
    return ["## Repair it",
            book_pages.raw(f"{FILES.format(up='../')}\n{drawn(trap, found, numbers)}")]


def drawn(trap: Trap, found: Bench, numbers: str) -> str:
    """A bench as HTML."""
    told = proof.feedback_by_mistake(trap.id)
    shared = set.intersection(*(set(code.splitlines()) for code in found.codes))
    rows = "".join(candidate(marked(code, shared), verdict(told.get(name, ""), numbers), not name)
                   for code, name in shuffled(trap.id, found))
    return (f'<div class="repair" data-repair="{trap.id}">\n{asked(trap, found)}{place(found)}'
            f"{helpers(trap.id, found)}<ol>{rows}</ol>\n</div>")


def shuffled(id: str, found: Bench) -> list[tuple[str, str]]:
    """The code and mistake name of each candidate, in an order that depends only on the id.

    The right one has the name "".
    """
    rows = [(found.right, ""), *((m.code, m.name) for m in found.mistakes)]
    return random.Random(id).sample(rows, len(rows))


def asked(trap: Trap, found: Bench) -> str:
    """The task in the words of the exercise, and what to do."""
    first, _, rest = docstring(trap.id).partition("\n\n")
    where = ("Which of these lines belongs in the gap" if found.before
             else "Which one keeps this promise")
    more = (f"<details><summary>All that <code>{trap.function}</code> promises</summary>"
            f"<pre>{html.escape(rest.strip())}</pre></details>") if rest.strip() else ""
    return (f"<p><code>{trap.function}</code> promises: {inline(' '.join(first.split()))} "
            f"{where}? Press one, and the exercise's check tells you what it finds.</p>{more}\n")


def docstring(id: str) -> str:
    """The exercise's promises: the docstring of its worked answer."""
    function = registry.find(id).function
    return next(ast.get_docstring(node) or "" for node in ast.walk(
        ast.parse(repair_candidates.worked_answers(id[:2])[id][1]))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == function)


def place(found: Bench) -> str:
    """The code with a gap at the place; "" if the place is all of the code."""
    if not found.before:
        return ""
    above, below = found.before.split("\n"), found.after.split("\n")
    if len(above) > ABOVE:
        above = [*above[:FIRST_LINES], "    ...", *above[FIRST_LINES - ABOVE:]]
    if len(below) > BELOW:
        below = [*below[:BELOW], "    ..."]
    before, after = map(coloured, ("\n".join(above), "\n".join(below)))
    gap = f'{found.indent}<span class="repair-gap">which code?</span>'
    return f'<pre class="repair-place highlight"><code>{before}{gap}{after}</code></pre>\n'


def marked(code: str, shared: set[str]) -> str:
    """A candidate as HTML; if the candidates share lines, its other lines are marked."""
    lines = zip(code.split("\n"), coloured(code).split("\n"), strict=True)
    return "\n".join(f'<span class="own-line">{drawn}</span>' if shared and line not in shared
                     else drawn for line, drawn in lines)


def candidate(code: str, told: str, right: bool) -> str:
    return (f'<li{" data-right" if right else ""}><pre class="highlight"><code>{code}'
            f"</code></pre><details><summary>What the check says</summary>{told}</details></li>\n")


def verdict(message: str, numbers: str) -> str:
    """What a candidate gets: its check's message, or for the right one that it passes."""
    status = STATUSES["wrong" if message else "pass"]
    head = f"<strong>{status.mark} {status.word.capitalize()}.</strong>"
    if message:
        return f"<p>{head} {html.escape(message)}</p>"
    after = f"<p>Measured in the lesson after its repair:</p>\n{numbers}" if numbers else ""
    return f"<p>{head} The check accepts it.</p>{after}"


def helpers(id: str, found: Bench) -> str:
    """The short functions and values that the code uses and only the check's file defines."""
    module = repair_candidates.check_module(registry.find(id))
    codes = "\n".join([found.before, *found.codes, found.after])
    used = [name for name in dict.fromkeys(repair_candidates.WORD.findall(codes))
            if name in repair_candidates.defined(module)]
    texts = [text for name in used if (text := explained(name, getattr(module, name)))]
    code = coloured("\n\n".join(texts))
    return ("<details><summary>What else the check's file defines</summary>"
            f'<pre class="highlight"><code>{code}</code></pre></details>\n') if texts else ""


def explained(name: str, value: object) -> str:
    """The source of a short function, or a short value; "" for anything longer."""
    if inspect.isfunction(value):
        lines = repair_candidates.lines_of(value)
        return "\n".join(lines) if len(lines) <= HELPER_LINES else ""
    text = f"{name} = {value!r}"
    return text if isinstance(value, str | int | float | tuple) and len(text) < 80 else ""


LEXER, FORMATTER = PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True)


@functools.cache
def coloured(code: str) -> str:
    """Code as HTML in the page's colours, without the newline that Pygments adds."""
    drawn = highlight(code, LEXER, FORMATTER)
    return drawn if code.endswith("\n") else drawn.removesuffix("\n")


# ---- what the lesson measured

def numbers(lesson: NotebookNode, trap: str) -> str:
    """The printed output of a trap's repair cells, or else their claims, as HTML; "" for none."""
    cells = [c for c in lesson.cells if c.cell_type == "code"
             and c.metadata.get("dlsys", {}).get("trap") == trap
             and c.metadata.dlsys.role == "repair"]
    outputs = [o for c in cells for o in c.outputs]
    printed = "".join(o.text for o in outputs if o.output_type == "stream").strip().splitlines()
    claims = [text.removeprefix("holds: ") for o in outputs
              if (text := o.get("data", {}).get("text/plain", "")).startswith("holds: ")]
    lines = (printed or claims)[:MOST_NUMBERS]
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>" if lines else ""


def of_lesson(lesson: NotebookNode, trap: Trap) -> list[str]:
    """The part of a trap's page in which the reader repairs it."""
    return section(trap, numbers(lesson, trap.id))
