"""What the learner has solved, stages and exam sheets, and the map and menus of the start page."""

import html
import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from dlsys import assignments, reading_time, review, windows, work_folder
from dlsys_checks.questions import AnswerError
from dlsys_helpers import cards, catalog, paths, progress
from dlsys_helpers.catalog import Trap
from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import STAGES, Stage

SOLVED, TRIED, UNTOUCHED = "solved", "tried", "untouched"


class TrapState(NamedTuple):
    """What became of a trap.

    guess: the last one as it was kept, {} for none; its `right` is None until it was measured.
    review: whether the last answer was right, None where nothing was asked.
    """

    trap: Trap
    state: str
    misconception: str | None
    guess: dict
    review: bool | None

    @property
    def points(self) -> int:
        return self.trap.points if self.state == SOLVED else 0

    @property
    def shown(self) -> str:
        """What to call it, by whether it was guessed or solved."""
        return shown_name(self.trap, bool(self.guess) or self.state == SOLVED)


def shown_name(trap: Trap, known: bool) -> str:
    """The fault of a trap, which answers its guess, where that is known; else its situation."""
    return trap.name if known else trap.title


class StageState(NamedTuple):
    stage: Stage
    traps: tuple[TrapState, ...]

    @property
    def points(self) -> int:
        return sum(row.points for row in self.traps)

    @property
    def possible(self) -> int:
        return sum(row.trap.points for row in self.traps)

    @property
    def solved(self) -> int:
        return sum(row.state == SOLVED for row in self.traps)


class CaseState(NamedTuple):
    """A case of an exam sheet: its rows together."""

    title: str
    rows: tuple[TrapState, ...]

    @property
    def state(self) -> str:
        states = {row.state for row in self.rows}
        return states.pop() if len(states) == 1 else TRIED

    @property
    def points(self) -> int:
        return sum(row.points for row in self.rows)

    @property
    def possible(self) -> int:
        return sum(row.trap.points for row in self.rows)

    @property
    def misconception(self) -> str | None:
        return next((row.misconception for row in self.rows if row.misconception), None)


def summary() -> list[StageState]:
    """All stages with the state and points of each trap; no traps: not written yet.

    A trap is solved when it passed once, tried when an answer was judged, else untouched.
    Raises CatalogError when there is no catalog.
    """
    known = _known()
    return [_stage_state(stage, catalog.traps(stage.number), known) for stage in STAGES]


def exams() -> list[StageState]:
    """The exam sheets that were begun: the file is there, or an answer was judged."""
    known = _known()
    judged = {assignments.number_of(id) for id in known.judged}
    return [_stage_state(assignments.stage(number), assignments.traps(number), known)
            for number in assignments.EXAMS
            if number in judged or _learners_file(assignments.stage(number)).exists()]


def cases(exam: StageState) -> list[CaseState]:
    """The rows of a sheet by case."""
    return [CaseState(title, tuple(rows)) for title, rows in groupby(
        exam.traps, key=lambda row: row.trap.title.partition(":")[0])]


class Known(NamedTuple):
    """What the learner's files say, by id: judged answers, guesses, answers in review."""

    judged: dict[str, dict]
    guesses: dict[str, dict]
    reviews: dict[str, bool]


def _known() -> Known:
    return Known(_judged(), progress.guesses(), review.answers())


def _judged() -> dict[str, dict]:
    """The judged answer that counts, by id: one that passed, else the last."""
    last = {}
    for entry in progress.entries():
        if entry["status"] != "todo" and last.get(entry["id"], {}).get("status") != "pass":
            last[entry["id"]] = entry
    return last


def _stage_state(stage: Stage, traps: list[Trap], known: Known) -> StageState:
    return StageState(stage, tuple(_trap_state(trap, known) for trap in traps))


def _learners_file(stage: Stage) -> Path:
    """The learner's worksheet of a stage, or their exam sheet."""
    return paths.MY_WORK / f"{stage.stem}.ipynb"


def _trap_state(trap: Trap, known: Known) -> TrapState:
    entry = known.judged.get(trap.id)
    state = UNTOUCHED if entry is None else SOLVED if entry["status"] == "pass" else TRIED
    return TrapState(trap, state, entry.get("misconception") if state == TRIED else None,
                     known.guesses.get(trap.id, {}), known.reviews.get(trap.id))


# ---- the map

# Text keeps the page's own colour, which is readable in every theme; the accents are mid-tones
# with at least 3:1 against white and against dark backgrounds, and always come with a word.
# JupyterLab indents every list; hence !important.
_STYLE = """
.dlsys-map, .dlsys-map ul { list-style:none !important; padding:0 !important;
  margin:0 !important; }
.dlsys-map { display:grid; gap:.75rem;
  grid-template-columns:repeat(auto-fill,minmax(15.5rem,1fr)); }
.dlsys-map > li { margin:0; padding:.8rem .9rem; border-radius:10px; display:flex;
  flex-direction:column; gap:.35rem;
  border:1px solid color-mix(in srgb,currentColor 22%,transparent);
  border-top:3px solid var(--c); }
.dlsys-map > li.solved { --c:#0a8f60; } .dlsys-map > li.tried { --c:#b8650a; }
.dlsys-map > li.untouched { --c:#5b76e8; }
.dlsys-map > li.coming { border-top-width:1px; border-style:dashed;
  --c:color-mix(in srgb,currentColor 22%,transparent); }
.dlsys-map small { font-size:.8em; }
.dlsys-map strong { font-size:1.02em; line-height:1.25; }
.dlsys-map ul { font-size:.86em; }
.dlsys-map ul li { margin:.15rem 0; padding-left:1.35em; text-indent:-1.35em; }
.dlsys-map ul span { display:inline-block; width:1.35em; text-indent:0; }
.dlsys-map ul small { opacity:.85; }
.dlsys-map details { font-size:.86em; } .dlsys-map details ul { font-size:1em; }
.dlsys-map summary { cursor:pointer; }
.dlsys-map p { margin:0; font-size:.88em; line-height:1.4; }
.dlsys-map .foot { margin-top:auto; padding-top:.35rem; display:flex; gap:.9rem;
  flex-wrap:wrap; }
.dlsys-map a { color:inherit; text-decoration:underline; text-underline-offset:2px; }
.dlsys-map a:focus-visible { outline:2px solid currentColor; outline-offset:2px; }
"""
MARKS = {SOLVED: "●", TRIED: "◐", UNTOUCHED: "○"}


def map_html() -> str:
    """Stages and exam sheets as a map: HTML that reads in light and dark, and without its style."""
    shown = [*map(_card, summary()), *(list(map(_exam_card, exams())) or [_NO_EXAM])]
    return f'<style>{_STYLE}</style>\n<ol class="dlsys-map">\n{"".join(shown)}</ol>'


def _card(row: StageState) -> str:
    number, title = row.stage.number, _text(row.stage.title)
    head = f"<div><small>Stage {number} · {_count(row)}</small></div>"
    body, foot = f"<p>{_text(row.stage.promise)}</p>", ""
    if row.traps:
        body += f"<p>{_length(row.stage)}</p>{_trap_lists(row.traps)}"
        foot = f'<p class="foot">{_foot(row.stage)}</p>'
    return f'<li class="{_state(row)}">{head}<strong>{title}</strong>{body}{foot}</li>\n'


_NO_EXAM = ('<li class="untouched"><div><small>Exam</small></div>'
            "<strong>Find planted faults</strong>"
            "<p>Five training scripts, and probes that cost.</p>"
            '<p class="foot"><span>To begin: <code>dlsys exam a</code></span></p></li>\n')


def _exam_card(row: StageState) -> str:
    """A sheet that was begun, with a line for each case."""
    lines = "".join(f"<li>{_mark(case.state)} {case.title} · {case.points} of {case.possible} "
                    "points</li>" for case in cases(row))
    path, foot = _learners_file(row.stage), ""
    if path.exists():
        foot = f'<p class="foot">{cards.link(path, "Continue your sheet")}</p>'
    return (f'<li class="{_state(row)}"><div><small>Exam · {row.points} of {row.possible} points'
            f"</small></div><strong>{_text(row.stage.title)}</strong>"
            f"<p>{_text(row.stage.promise)}</p><ul>{lines}</ul>{foot}</li>\n")


def _state(row: StageState) -> str:
    if not row.traps:
        return "coming"
    if row.solved == len(row.traps):
        return SOLVED
    return TRIED if any(trap.state != UNTOUCHED for trap in row.traps) else UNTOUCHED


def _count(row: StageState) -> str:
    if not row.traps:
        return "coming"
    return f"{row.solved} of {len(row.traps)} solved · {row.points} of {row.possible} points"


def _length(stage: Stage) -> str:
    """How long the stage takes, its core path first."""
    core, whole = reading_time.times(stage)
    return f"About {whole}." if core == whole else f"Core path: about {core}. All: {whole}."


def _trap_lists(traps: tuple[TrapState, ...]) -> str:
    """The core path, and folded what is off it; without either, all as one list."""
    core = [row for row in traps if row.trap.core]
    rest = [row for row in traps if not row.trap.core]
    if not (core and rest):
        return _trap_list(traps)
    solved = sum(row.state == SOLVED for row in rest)
    return (f"{_trap_list(core)}<details><summary>{len(rest)} off the core path, {solved} solved"
            f"</summary>{_trap_list(rest)}</details>")


def _trap_list(rows: Iterable[TrapState]) -> str:
    return f"<ul>{''.join(map(_trap_line, rows))}</ul>"


def _trap_line(row: TrapState) -> str:
    """A trap with its state, and what was guessed and answered in review."""
    told = [f"guess {words}" for words in [guess_words(row.guess)] if words]
    if row.review is not None:
        told.append(f"review {'right' if row.review else 'wrong'}")
    more = f"<br><small>{' · '.join(told)}</small>" if told else ""
    return f"<li>{_mark(row.state)} {row.trap.id} {_text(row.shown)}{more}</li>"


def guess_words(guess: dict) -> str:
    """Whether a guess was right, and how sure the learner was; "" for none."""
    if not guess:
        return ""
    right = {True: "right", False: "wrong", None: "not measured yet"}[guess["right"]]
    return f"{right}, {'sure' if guess['sure'] else 'not sure'}"


def _mark(state: str) -> str:
    return f'<span role="img" aria-label="{state}" title="{state}">{MARKS[state]}</span>'


def _foot(stage: Stage) -> str:
    mine = ((paths.lesson_copy(stage.number), "Read the lesson"),
            (_learners_file(stage), "Continue your worksheet"))
    links = [cards.link(path, words) for path, words in mine if path.exists()]
    if len(links) < len(mine):
        links.append(f"<span>To begin: <code>dlsys start {stage.number}</code></span>")
    return " ".join(links)


def _text(words: str) -> str:
    """Escaped text; `code` keeps its face."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(words))


def progress_map():
    """`map_html` as an object that a notebook shows."""
    from IPython.display import HTML

    return HTML(map_html())


def start_menu():
    """A menu of the written stages and a button that copies lesson and worksheet to ``my-work/``.

    A tick leaves out what is off the core path.

    It shows links that open the copies. Nothing that exists is overwritten.
    """
    import ipywidgets as widgets
    from IPython.display import HTML, display

    ready = [(f"{s.number}. {s.title}", s.number) for s in catalog.written()]
    wide = {"width": "max-content"}
    menu = widgets.Dropdown(options=ready, description="Stage", layout=wide)
    button = widgets.Button(description="Start the stage", disabled=not ready, layout=wide)
    core = widgets.Checkbox(description="the core path alone", indent=False, layout=wide)
    answer = widgets.Output()

    def begin(_):
        answer.clear_output()
        with answer:
            display(HTML(started_html(menu.value, core.value)))

    button.on_click(begin)
    return _with_fallback(widgets.VBox([_row(menu, core, button), answer]))


def model_menu():
    """A button that copies *Your model* to ``my-work/``, and a link to the copy."""
    import ipywidgets as widgets
    from IPython.display import HTML, display

    button = widgets.Button(description="Start your model", layout={"width": "max-content"})
    answer = widgets.Output()

    def begin(_):
        answer.clear_output()
        with answer:
            display(HTML(model_html()))

    button.on_click(begin)
    return _with_fallback(widgets.VBox([button, answer]))


def model_html() -> str:
    """What the button answers: a link to the copy, or what went wrong."""
    try:
        path, created = work_folder.start_model()
    except UserError as error:
        return f"<p>{_text(str(error))}</p>"
    word = "Copied." if created else "You started it before; nothing was overwritten."
    return f"<p>{word} Open {cards.link(path, f'{path.parent.name}/{path.name}')}</p>"


def _row(*parts):
    """Parts side by side; in a narrow panel the last ones move below the first."""
    import ipywidgets as widgets

    return widgets.HBox(parts, layout={"flex_flow": "row wrap"})


def _with_fallback(box):
    """The menu with a fallback text, for a notebook that is opened again without its kernel."""
    from dlsys_helpers.explorers._live import show_live

    words = "Run this cell to get the menu back."
    box._ipython_display_ = lambda: show_live(
        box, {"text/html": f"<p>{words}</p>", "text/plain": words})
    return box


def started_html(number: int, core: bool = False) -> str:
    """What the start button answers: links to the copies, or what went wrong."""
    try:
        started = work_folder.start(number, core=core)
    except UserError as error:
        return f"<p>{_text(str(error))}</p>"
    word = "Copied." if started.created else "You started it before; nothing was overwritten."
    links = (cards.link(path, f"{path.parent.name}/{path.name}")
             for path in (started.lesson, started.path))
    notes = "".join(f"<p>Note: {_text(line)}</p>" for line in windows.left_out(number))
    return f"<p>{word} Open {', then '.join(links)}</p>{notes}"


# ---- the questions

def review_menu():
    """A menu of what is due and of the stages to practise, and the questions one by one."""
    import ipywidgets as widgets

    wide = {"width": "max-content"}
    ready = [(f"Practise stage {one.number}: {one.title}", one.number)
             for one in review.practised_stages()]
    menu = widgets.Dropdown(options=[("What is due", 0), *ready], description="Questions",
                            layout=wide)
    button, desk = widgets.Button(description="Ask me", layout=wide), widgets.VBox()
    button.on_click(lambda _: _begin_review(desk, menu.value))
    return _with_fallback(widgets.VBox([_row(menu, button), desk]))


def _begin_review(desk, number: int) -> None:
    """Show the first question of a review in the widget `desk`, or why there is none."""
    start = review.now()
    _show_first(desk, review.practice(number, start) if number else review.due(start),
         review.nothing_due(start))


def _show_first(desk, items: list, otherwise: str) -> None:
    """Show the first item's question with input and button in `desk`; `otherwise` for no items."""
    import ipywidgets as widgets

    if not items:
        desk.children = (_paragraph(otherwise),)
        return
    item, *rest = items
    question = review.draw(item)
    field, says = _field(question), widgets.VBox()
    button = widgets.Button(description="Answer", layout={"width": "max-content"})

    def answer(_):
        try:
            value = question.read(str(field.value or ""))
        except AnswerError as error:
            says.children = (_paragraph(str(error)),)
            return
        field.disabled = button.disabled = True
        right = question.right(value)
        review.record(item, right, review.now())
        after = [_paragraph(line) for line in review.verdict(item, question, right)]
        says.children = (*after, _next(desk, rest))

    button.on_click(answer)
    head = _paragraph(f"Stage {int(item.trap.id[:2])} · {len(items)} to go")
    desk.children = (head, _paragraph(question.text), field, _paragraph(question.form), button,
                     says)


def _field(question):
    import ipywidgets as widgets

    if not question.options:
        return widgets.Text(description="Answer", placeholder="a number")
    options = [(text, number) for number, text in enumerate(question.options, 1)]
    return widgets.RadioButtons(options=options, value=None, layout={"width": "max-content"})


def _next(desk, rest: list):
    """The button that shows the next question; a closing sentence after the last one."""
    import ipywidgets as widgets

    if not rest:
        return _paragraph("That was the last one.")
    button = widgets.Button(description="Next question", layout={"width": "max-content"})
    button.on_click(lambda _: _show_first(desk, rest, ""))
    return button


def _paragraph(words: str):
    import ipywidgets as widgets

    return widgets.HTML(f"<p>{_text(words)}</p>")
