"""A presenter's page for each stage: timed plans, what to break live, the questions.

The plans come from the catalog and the lessons; what to change live and which questions learners
ask comes from book/present.yml, which is written by hand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

import yaml
from nbformat import NotebookNode

from dlsys import deck
from dlsys_helpers import catalog
from dlsys_helpers.catalog import Trap
from dlsys_helpers.errors import UserError
from dlsys_helpers.paths import ROOT
from dlsys_helpers.stages import Stage, stage
from tools import book_minutes, book_pages, book_traps

DATA = ROOT / "book" / "present.yml"
GUESS, RUN, COMPARE = 2, 2, 3  # a show of hands, a live run, comparing answers after an exercise


class Frame(NamedTuple):
    """A session: minutes, pause, the most core traps, and the most of these with their exercise.

    long: whether other traps, the quiz and the GPU section may follow. edge: the minutes of the
    opening and of the closing; the questions take at least as many, and all that is left.
    """

    minutes: int
    pause: int
    traps: int
    solved: int
    long: bool = False
    edge: int = 5


class Block(NamedTuple):
    """One row of a plan: its minutes, its text, and its trap if it has one."""

    minutes: int
    text: str
    trap: str = ""


FRAMES = (Frame(20, 0, 1, 0, edge=2), Frame(45, 0, 2, 1), Frame(90, 5, 4, 2),
          Frame(180, 15, 5, 5, long=True))


def pages(lessons: book_pages.Lessons) -> dict[str, str]:
    """The overview and the page of each stage, by name: ``present``, ``present/01``."""
    written = data()
    stages = [stage(number) for number in lessons]
    return {"present": overview(stages, lessons)} | {
        name(s): page(s, lessons[s.number], written[s.number]) for s in stages}


def name(entry: Stage) -> str:
    """The page of a stage in the book, without its ending."""
    return f"present/{entry.number:02d}"


def data() -> dict[int, dict]:
    """The handwritten part, by stage. Raises UserError for an unknown id or word."""
    written = yaml.safe_load(DATA.read_text("utf-8"))
    for number, entry in written.items():
        own = {trap.id: trap for trap in catalog.traps(number)}
        core = [id for id, trap in own.items() if trap.core]
        asked = [question["trap"] for question in entry["questions"]]
        unknown = [id for id in (*entry["live"], *asked) if id not in own]
        if unknown or list(entry["live"]) != core:
            raise UserError(
                f"book/present.yml, stage {number}: live names {', '.join(entry['live'])}, "
                f"questions {', '.join(asked)}; expected live for {', '.join(core)}, the core "
                f"path, and questions about {', '.join(own)}. Write them.")
    return written


# ---- plans

def plan(lesson: NotebookNode, frame: Frame, slides: dict[str, int]) -> list[Block]:
    """The blocks of a session, in order; their minutes add up to those of the session.

    slides: the number of each trap's first slide, see `first_slides`.
    """
    traps = catalog.traps(lesson.metadata.dlsys.stage)
    both = {t: [shown_block(lesson, t, slides[t.id]), solved_block(t)] for t in traps}
    core = [blocks for t, blocks in both.items() if t.core]
    rest = [blocks for t, blocks in both.items() if not t.core]
    left = frame.minutes - 3 * frame.edge - frame.pause
    pairs, left = fitting(core, left, frame.solved)
    alone = [[shown] for shown, _ in core if shown.trap not in {b.trap for b in pairs}]
    told, left = fitting(alone, left, frame.traps - len(pairs) // 2)
    late, left = fitting([[solved] for _, solved in core if solved.trap in {b.trap for b in told}],
                         left, frame.traps)
    others, left = fitting(rest, left, frame.long * len(rest))
    more, left = fitting([[block] for block in extras(lesson)], left, frame.long * 2)
    places = [t.id for t in traps]
    blocks = sorted([*pairs, *told, *late, *others], key=lambda block: places.index(block.trap))
    return [Block(frame.edge, "The situation of the stage"),
            *with_pause([*blocks, *more], frame.pause),
            Block(frame.edge, "What you take with you"),
            Block(frame.edge + left, "Questions, and what ran over")]


def fitting(groups: Iterable[list[Block]], left: int, most: int) -> tuple[list[Block], int]:
    """Pack at most `most` whole groups greedily; returns their blocks and the minutes left."""
    taken: list[Block] = []
    for group in groups:
        cost = sum(block.minutes for block in group)
        if most > 0 and cost <= left:
            taken, left, most = [*taken, *group], left - cost, most - 1
    return taken, left


def first_slides(lesson: NotebookNode) -> dict[str, int]:
    """The number of each trap's first slide, as `dlsys slides` counts them."""
    found = ((re.match(r"## (\d\d\.\d+) ", slide.heading), number)
             for number, slide in enumerate(deck.slides(lesson), 1))
    return {heading[1]: number for heading, number in found if heading}


def shown_block(lesson: NotebookNode, trap: Trap, slide: int) -> Block:
    """The block in which learners guess and the presenter runs a trap's code and explains it."""
    told = [*book_traps.cells(lesson, trap.id, "situation", "markdown"),
            *book_pages.unfolded(book_traps.cells(lesson, trap.id, "break")),
            *book_traps.cells(lesson, trap.id, "why", "markdown"),
            *book_pages.unfolded(book_traps.cells(lesson, trap.id, "repair"))[:1],
            *book_traps.cells(lesson, trap.id, "keep", "markdown")]
    page = f"[{trap.id} {book_pages.plain(trap.name)}](../{book_traps.name(trap.id)}.md)"
    return Block(math.ceil(GUESS + RUN + book_minutes.minutes(told)),
                 f"Trap {page}, from slide {slide}: code, guess, look, why, repair", trap.id)


def solved_block(trap: Trap) -> Block:
    link = book_pages.link("exercise", trap.id, trap.function)
    return Block(trap.minutes + COMPARE,
                 f"Exercise {trap.id}: {link}, {COMPARE} minutes to compare answers", trap.id)


def extras(lesson: NotebookNode) -> list[Block]:
    """The quiz and the GPU section, for which a long session has time after the traps."""
    gpu = [c for c in lesson.cells if c.metadata.get("dlsys", {}).get("role") == "gpu"]
    asked = sum("<details" in c.source for c in lesson.cells
                if c.metadata.get("dlsys", {}).get("role") == "quiz")
    return [Block(2 * asked, f"The quiz: {book_pages.count(asked, 'question')}, hands up"),
            Block(math.ceil(book_minutes.minutes(gpu)),
                  "The GPU section: count first, then compare")]


def with_pause(blocks: list[Block], minutes: int) -> list[Block]:
    """The blocks with a pause nearest to the middle, never between a trap and its exercise."""
    if not minutes:
        return blocks
    ends = [sum(b.minutes for b in blocks[:k]) for k in range(len(blocks) + 1)]
    whole = [k for k in range(1, len(blocks)) if blocks[k].trap != blocks[k - 1].trap
             or not blocks[k].trap]
    middle = min(whole, key=lambda k: abs(ends[k] - ends[-1] / 2))
    return [*blocks[:middle], Block(minutes, "Pause"), *blocks[middle:]]


def clock(blocks: list[Block]) -> str:
    """A plan as a table with the start, the minutes and the text of each block."""
    begins = [sum(b.minutes for b in blocks[:k]) for k in range(len(blocks))]
    return book_pages.table(("Begins", "Minutes", "What"),
                            [(f"{start // 60}:{start % 60:02d}", str(block.minutes), block.text)
                             for start, block in zip(begins, blocks, strict=True)])


# ---- pages

def page(entry: Stage, lesson: NotebookNode, written: dict) -> str:
    """The presenter's page of one stage."""
    parts = [f"# Present stage {entry.number}: {entry.title}",
             f"`dlsys slides {entry.number}` makes the slides; {{kbd}}`G`, a number and Enter lead "
             "to the slide that a plan names. Next to the slides, keep your own copy of the "
             f"lesson open, made by `dlsys start {entry.number}`. This copy has no outputs yet, "
             "so break the code there. "
             f"[The lesson](../notebooks/{entry.stem}.ipynb) has the outputs of a run."]
    slides = first_slides(lesson)
    for frame in FRAMES:
        blocks = plan(lesson, frame, slides)
        parts += [f"## {frame.minutes} minutes", clock(blocks), left_out(entry.number, blocks)]
    parts += ["## What to break live",
              "Run the setup cells before the class. Before you run a trap, ask for the guess, by "
              "a show of hands, and write the count on the board."]
    parts += [f"**{trap_link(id)}** {text}" for id, text in written["live"].items()]
    parts += ["## Questions that learners ask"]
    parts += [f"**{q['ask']}** {q['answer']} ({trap_link(q['trap'])})"
              for q in written["questions"]]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def left_out(number: int, blocks: list[Block]) -> str:
    """The traps that a plan skips, and the exercises that it leaves for home."""
    shown = {b.trap for b in blocks}
    solved = {b.trap for b in blocks if b.text.startswith("Exercise")}
    skipped = [t.id for t in catalog.traps(number) if t.id not in shown]
    home = [t for t in catalog.traps(number) if t.id in shown - solved]
    parts = [f"Skipped, to read at home: {trap_links(skipped)}." if skipped else "",
             f"Exercises for home: {', '.join(f'{t.id} ({t.minutes} minutes)' for t in home)}."
             if home else ""]
    return " ".join(filter(None, parts)) or "No trap is left out."


def trap_links(ids: list[str]) -> str:
    return ", ".join(map(trap_link, ids))


def trap_link(id: str) -> str:
    return f"[{id}](../{book_traps.name(id)}.md)"


def overview(stages: list[Stage], lessons: book_pages.Lessons) -> str:
    rows = [(str(s.number), f"[{s.title}]({name(s)}.md)",
             book_pages.count(len(catalog.traps(s.number)), "trap"),
             str(book_minutes.of_lesson(lessons[s.number])),
             str(book_pages.exercise_minutes(s.number))) for s in stages]
    lengths = ", ".join(str(f.minutes) for f in FRAMES[:-1])
    return "\n\n".join([
        "# Present a stage",
        f"Each stage has a page with plans for {lengths} and {FRAMES[-1].minutes} minutes, what to "
        "break live, and the questions that learners ask. The minutes in a plan are computed from "
        f"the lesson: {GUESS} for a guess, {RUN} for a live run, the words and the lines of code "
        f"that you present, and for an exercise its own minutes and {COMPARE} to compare answers. "
        f"{book_minutes.formula()}",
        "The slides are one file, which any browser opens without a network:",
        "```bash\ndlsys slides 1                      # writes my-work/01_slides.html\n"
        "dlsys slides 1 --core               # only the core path, in at most 30 slides\n"
        "dlsys slides 1 --out first.html     # or where you say\n```",
        "Each idea of the lesson gets a slide with the first sentences and the drawing of its "
        "section. Each trap gets a column of six slides, or more if its code is long: the "
        "wrong code, the question, the measured number, the cause in a picture, the lines that "
        "repair the code, and the rule to keep, with the exercise's task and clock. In a core "
        "deck each trap follows the ideas that come before it in the lesson, the question is "
        "below the code if there is room, and the last slide lists the traps' rules. The "
        "slide numbers in the plans refer to the whole deck. The smallest letters of a figure "
        "are 18 pixels high in a window of 720 lines. "
        "No slide names a trap's fault before the class has answered the question. Slides show "
        "an explorer's drawing without its controls, which are in the lesson. {kbd}`Space` "
        "goes to the next slide, "
        "{kbd}`→` skips to the next trap, {kbd}`G` and a number go to a slide, {kbd}`S` opens "
        "the speaker view with a trap's questions on each of its slides, {kbd}`D` switches between "
        "light and dark, {kbd}`?` lists all keys. To print to PDF, add `?view=print` to the "
        "address.",
        book_pages.table(("Stage", "Page", "Traps", "Minutes to read", "Minutes of exercises"),
                         rows)]) + "\n"
