"""The start page: the written template with a live guess, the finder's box and the stages."""

from __future__ import annotations

import html
import re
from urllib.parse import quote_plus

from nbformat import NotebookNode

from dlsys import plan
from dlsys_helpers import catalog, paths
from dlsys_helpers.catalog import Trap
from dlsys_helpers.errors import UserError
from dlsys_helpers.paths import ROOT
from dlsys_helpers.stages import STAGES, Stage
from tools import book_doors, book_minutes, book_repair, book_traps, repair_candidates
from tools.book_pages import (
    GUESS_FIRST,
    Lessons,
    count,
    exercise_minutes,
    fenced,
    link,
    raw,
    without_heading,
)
from tools.stage_drawings import drawing

SHOWN_TRAP = "01.1"  # visitors guess about this trap and repair it
PHRASES = ("loss is NaN at step 500", "padded batch gives other answers",
           "memory grows every epoch", "loss jumps after resume")
# It works without a script: the form opens the finder's page.
FINDER = """<form class="ask-finder" action="symptoms.html" role="search">
<label for="home-finder">What do you see in your own run?</label>
<input id="home-finder" name="q" type="search" autocomplete="off"
placeholder="loss stays at 2.303"><button>Find the cause</button></form>
<p class="phrases">{phrases}</p>"""


def start_page(template: str, lessons: Lessons, home: book_doors.Home | None = None) -> str:
    """The written start page with its marks replaced by what is generated."""
    parts = {"guess": card(lessons[int(SHOWN_TRAP[:2])]), "ways": ways(lessons),
             "finder": finder(),
             "map": stage_map(lessons), "needs": requirements(),
             "code": code_links(home)}
    for name, text in parts.items():
        template = template.replace(f"{{{{ {name} }}}}", text)
    return template


def how_long(template: str, lessons: Lessons) -> str:
    """The page on how to use the course, with its hours."""
    told = template.replace("{{ hours }}", hours(lessons))
    told = told.replace("{{ plan }}", plan.markdown(
        lambda trap, words: link("trap", trap, words)))
    return told.replace("{{ rate }}", book_minutes.formula())


# ---- the guess

def card(lesson: NotebookNode) -> str:
    """The last statements of a trap's broken code and its question; the measurement and the
    repair bench appear after the guess.
    """
    question, answer = (book_traps.outputs_of(lesson, SHOWN_TRAP, tag)
                        for tag in ("guess", "measured"))
    if not (question and answer):
        raise UserError(f"trap {SHOWN_TRAP}: got no question or no answer in its stored outputs, "
                        "and the start page asks it. Run: make build LESSON=01")
    trap = catalog.trap(SHOWN_TRAP)
    looked = book_traps.cells(lesson, SHOWN_TRAP, "look")
    printed = [*filter(None, map(book_traps.printed, looked))]
    way = f"[Why it happens, and how to test your own code for it]({book_traps.name(trap.id)}.md)"
    parts = [raw(GUESS_FIRST.format(up="", which="")),
             raw(book_repair.FILES.format(up="")), "::::::{div} ask-card", ":::::{div} pair",
             "::::{div} step-break", *situation(lesson), broken_code(lesson), "::::",
             "::::{div} step-guess", *question, "::::", ":::::",
             ":::::{div} waits", *answer, *printed[:1], "**Now repair it.**",
             raw(bench(trap, lesson)), f"{way}.", ":::::", "::::::"]
    return "\n\n".join(parts)


def bench(trap: Trap, lesson: NotebookNode) -> str:
    """The repair bench of the trap. Raises UserError if it has none: the page promises one."""
    found = repair_candidates.bench(trap.id)
    if not found:
        raise UserError(f"trap {trap.id}: no place of its exercise holds three mistakes, and the "
                        "start page shows its repair bench. Choose another SHOWN_TRAP.")
    return book_repair.drawn(trap, found, book_repair.numbers(lesson, trap.id))


def situation(lesson: NotebookNode) -> list[str]:
    """What a visitor has to know about the code: the lesson's situation."""
    return [without_heading(c.source)
            for c in book_traps.cells(lesson, SHOWN_TRAP, "situation", "markdown")]


def broken_code(lesson: NotebookNode) -> str:
    """The trap's broken code, from its last empty line on."""
    [cell] = [c for c in lesson.cells if c.cell_type == "code"
              and c.metadata.get("dlsys", {}).get("trap") == SHOWN_TRAP
              and c.metadata.dlsys.role == "break"]
    return fenced(NotebookNode(cell, source=cell.source.rpartition("\n\n")[2]))


# ---- where to go

def ways(lessons: Lessons) -> str:
    """Four reasons to come, each with the page to start from."""
    traps = sum(len(catalog.traps(number)) for number in lessons)
    found = (("notebooks/01_activations", "Learn",
              f"{count(len(lessons), 'stage')}, {traps} traps. Guess each, see it measured, then "
              "write the repair."),
             ("symptoms", "Look up a symptom",
              "Your loss is NaN, flat, or too good? Start from what you see in your own run."),
             ("watch", "Watch my own run",
              "<code>dlsys watch train.py</code> runs your script with the traps' instruments."),
             ("instructors", "Teach",
              "Slides, a room where a class guesses together, worksheets and a grader."))
    return '<ul class="ways">' + "".join(
        f'<li><a href="{page}.html"><strong>{title}</strong> <span>{text}</span></a></li>'
        for page, title, text in found) + "</ul>"


# ---- the finder

def finder() -> str:
    """A search box for the symptom finder, and phrases to try."""
    tried = " ".join(f'<a href="symptoms.html?q={quote_plus(phrase)}">{phrase}</a>'
                     for phrase in PHRASES)
    return raw(FINDER.format(phrases=tried))


# ---- the stages

def stage_map(lessons: Lessons) -> str:
    """The stages as cards; those without a lesson say so and have no link."""
    cards = [written_card(s, lessons[s.number]) if s.number in lessons else waiting_card(s)
             for s in STAGES]
    return f'<ol class="stage-map">{"".join(cards)}</ol>'


def written_card(entry: Stage, lesson: NotebookNode) -> str:
    traps = len(catalog.traps(entry.number))
    return (f'<li class="stage-card"><a href="notebooks/{entry.stem}.html">{card_text(entry)}'
            f'<span class="stage-state">{count(traps, "trap")}, '
            f"{book_minutes.between(lesson.cells)} + "
            f"{exercise_minutes(entry.number)} minutes</span></a></li>")


def waiting_card(entry: Stage) -> str:
    return (f'<li class="stage-card waiting"><div>{card_text(entry)}'
            '<span class="stage-state">Not written yet</span></div></li>')


def card_text(entry: Stage) -> str:
    return (f'{drawing(entry.number)}<span class="stage-number">{entry.number}</span>'
            f'<strong>{html.escape(entry.title)}</strong>'
            f'<span class="stage-promise">{html.escape(entry.promise)}</span>')


# ---- hours, machine, code

def hours(lessons: Lessons) -> str:
    """A sentence with the reading and exercise time of all lessons."""
    read, slow, solve = (round(sum(minutes) / 60) for minutes in (
        map(book_minutes.of_lesson, lessons.values()),
        map(book_minutes.of_newcomer, lessons.values()), map(exercise_minutes, lessons)))
    written = "" if len(lessons) == len(STAGES) else " written so far"
    take = "takes" if len(lessons) == 1 else "take"
    more = f", or {slow} if everything in them is new to you," if slow > read else ""
    return (f"The {count(len(lessons), 'stage')}{written} {take} about {count(read, 'hour')} "
            f"to read{more} and {solve} more to solve the exercises")


def requirements() -> str:
    """The paragraph of README.md that says what the course needs. Raises UserError without one."""
    text = (ROOT / "README.md").read_text("utf-8")
    found = re.search(r"^You need .*$", text, re.MULTILINE)
    if not found:
        raise UserError("README.md: no paragraph begins with 'You need', which the start page of "
                        "the book repeats. Write it.")
    return found[0]


def code_links(home: book_doors.Home | None) -> str:
    """Links to the code and to a machine that runs it; empty without a public repository."""
    if not home or not home.repository:
        return ""
    places = book_doors.ways(home, paths.lesson_copy(1).name)
    run = f'<a href="{places["Colab"]}">Run stage 1 on Colab</a>\n' if places else ""
    return f'{run}<a href="{home.repository}">The code</a>'
