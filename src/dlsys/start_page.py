"""What the learner has solved, what comes next, and the map and menus of the start page."""

import html
import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from dlsys import (
    assignments,
    exam,
    placement,
    reading_time,
    review,
    trap_names,
    windows,
    work_folder,
)
from dlsys_checks.questions import AnswerError
from dlsys_helpers import cards, catalog, paths, progress, without_widgets
from dlsys_helpers.catalog import Trap
from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import STAGES, Stage

AT_DESK = "at your instructor's desk"  # instead of points, which only the desk has
SOLVED, TRIED, UNTOUCHED = "solved", "tried", "untouched"


class TrapState(NamedTuple):
    """The state of one trap.

    guess: the last one as it was kept, {} for none; its `right` is None until it was measured.
    review: whether the last answer was right, None if nothing was asked.
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
        return trap_names.shown_name(self.trap, bool(self.guess) or self.state == SOLVED)


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
    Raises CatalogError if there is no catalog.
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


def is_at_desk(row: StageState) -> bool:
    """Whether a sheet is at a class's desk, where only its instructor knows the points."""
    return exam.is_at_desk(row.stage.number)


def cases(row: StageState) -> list[CaseState]:
    """The rows of a sheet by case."""
    return [CaseState(title, tuple(rows)) for title, rows in groupby(
        row.traps, key=lambda row: row.trap.title.partition(":")[0])]


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


# ---- what comes next

def is_begun(row: StageState) -> bool:
    """Whether there is a worksheet of this stage, or any trace of its traps."""
    return _learners_file(row.stage).exists() or any(map(touched, row.traps))


def touched(row: TrapState) -> bool:
    """Whether an answer, a guess or a review of this trap was kept."""
    return row.state != UNTOUCHED or bool(row.guess) or row.review is not None


def next_up(rows: list[StageState]) -> tuple[Stage, Trap | None] | None:
    """The stage and exercise to go on with; None if all is solved.

    After a placement, the first open exercise of its plan. Else, of the stages with an open
    exercise, the one that was worked on last, and its first open exercise, core path first. If
    none was begun, the first of them, and None.
    """
    if placed := placement.next_trap():
        [stage] = [row.stage for row in rows if row.stage.number == int(placed.id[:2])]
        return stage, placed
    open_in = [row for row in rows if row.traps and row.solved < len(row.traps)]
    begun = [row for row in open_in if is_begun(row)]
    if not begun:
        return (open_in[0].stage, None) if open_in else None
    stage = max(begun, key=_worked_on)
    todo = [row for row in stage.traps if row.state != SOLVED]
    return stage.stage, next((row for row in todo if row.trap.core), todo[0]).trap


def _worked_on(row: StageState) -> tuple[float, int]:
    """When a stage was last worked on, by the time of its worksheet, and how far it is."""
    sheet = _learners_file(row.stage)
    return (sheet.stat().st_mtime if sheet.exists() else 0.0, -row.stage.number)


_BUTTON = ("display:inline-block;padding:.6rem 1.3rem;border-radius:8px;background:#2f5bd0;"
           "color:#fff;font-weight:650;text-decoration:none")


def next_step_html() -> str:
    """The next thing to do as a link to the learner's own copy, which is made if it is missing.

    A plain link, so that it works in every editor that opens notebooks; the files are named for
    those that do not follow it.
    """
    try:
        rows = summary()
        found = next_up(rows)
        if not found:
            return "<p>You have solved every exercise. Next: <code>dlsys exam b</code></p>"
        stage, trap = found
        started = work_folder.start(stage.number)
    except UserError as error:
        return f"<p>{_text(str(error))}</p>"
    [row] = [row for row in rows if row.stage == stage]
    lesson, sheet, plan = started.lesson, started.path, placement.next_trap()
    if not any(map(touched, row.traps)):
        first = lesson
        words = f"Start lesson {stage.number}" + (f" with trap {plan.id}" if plan else "")
    else:
        guessed = next(one for one in row.traps if one.trap == trap).guess
        first, words = (sheet if guessed else lesson), f"Continue with {trap.id}"
    button = cards.link(first, words).replace("<a ", f'<a style="{_BUTTON}" ', 1)
    what = ("the lesson", "its worksheet") if first == lesson else ("the worksheet", "its lesson")
    other = sheet if first == lesson else lesson
    due = len(review.due(review.now()))
    asks = f"<p>{due} question{'s' * (due != 1)} due, at the end of this page.</p>" if due else ""
    if plan:
        asks += ("<p>Your placement says what to take and what to skip: "
                 "<code>dlsys placement</code></p>")
    return (f'<p style="margin:.8em 0">{button}</p><p>{_text(stage.title)}. Opens {what[0]}, '
            f"<code>{first.parent.name}/{first.name}</code>; {what[1]} is "
            f"{cards.link(other, f'{other.parent.name}/{other.name}')}.</p>{asks}")


def next_step():
    """`next_step_html` as an object that a notebook shows.

    When nobody sees it, as in a build, it makes no copies.
    """
    from IPython.display import HTML

    return HTML(next_step_html() if cards.watched() else
                "<p>To begin: <code>dlsys start 1</code></p>")


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
    return _map([*map(_card, summary()), *_exam_cards()])


def _map(shown: Iterable[str]) -> str:
    return f'<style>{_STYLE}</style>\n<ol class="dlsys-map">\n{"".join(shown)}</ol>'


def _exam_cards() -> list[str]:
    return list(map(_exam_card, exams())) or [_NO_EXAM]


def _card(row: StageState, typed: bool = True) -> str:
    """A stage's card. typed: name the command that begins it, if there is no button."""
    number, title = row.stage.number, _text(row.stage.title)
    head = f"<div><small>Stage {number} · {_count(row)}</small></div>"
    body, foot = f"<p>{_text(row.stage.promise)}</p>", ""
    if row.traps:
        body += f"<p>{_length(row.stage)}</p>{_trap_lists(row.traps)}"
        foot = f'<p class="foot">{_foot(row.stage, typed)}</p>'
    return f'<li class="{_state(row)}">{head}<strong>{title}</strong>{body}{foot}</li>\n'


_NO_EXAM = ('<li class="untouched"><div><small>Exam</small></div>'
            "<strong>Find planted faults</strong>"
            "<p>Five complaints about a training script; every look has a price.</p>"
            '<p class="foot"><span>To begin: <code>dlsys exam a</code></span></p></li>\n')


def _exam_card(row: StageState) -> str:
    """The card of a sheet that was begun, with a line for each case."""
    lines = "".join(f"<li>{_mark(case.state)} {case.title} · {case.points} of {case.possible} "
                    "points</li>" for case in cases(row))
    path, foot = _learners_file(row.stage), ""
    if path.exists():
        foot = f'<p class="foot">{cards.link(path, "Continue your sheet")}</p>'
    points = f"{row.points} of {row.possible} points"
    if is_at_desk(row):
        points, lines = AT_DESK, ""
    return (f'<li class="{_state(row)}"><div><small>Exam · {points}</small></div>'
            f"<strong>{_text(row.stage.title)}</strong>"
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
    """The core path, and the rest folded; if either is empty, all as one list."""
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


def _foot(stage: Stage, typed: bool) -> str:
    mine = ((paths.lesson_copy(stage.number), "Read the lesson"),
            (_learners_file(stage), "Continue your worksheet"))
    links = [cards.link(path, words) for path, words in mine if path.exists()]
    if typed and len(links) < len(mine):
        links.append(f"<span>To begin: <code>dlsys start {stage.number}</code></span>")
    return " ".join(links)


def _text(words: str) -> str:
    """Escaped text in which `code` stays code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(words))


def progress_map():
    """The map; a button below each stage that was not begun copies its lesson and worksheet."""
    import ipywidgets as widgets

    boxes = [_card_box(row) for row in summary()] + [
        _output(_map([card])) for card in _exam_cards()]
    columns = "repeat(auto-fill, minmax(15.5rem, 1fr))"
    grid = widgets.GridBox(boxes, layout={"grid_template_columns": columns, "grid_gap": ".75rem"})
    text = map_html()
    return _with_fallback(grid, text, "The stages. In a terminal: dlsys progress")


def _card_box(row: StageState):
    """A card with its button, which the links replace once it is pressed."""
    import ipywidgets as widgets

    number, card = row.stage.number, _output(_map([_card(row, typed=False)]))
    mine = (paths.lesson_copy(number), _learners_file(row.stage))
    if not row.traps or all(path.exists() for path in mine):
        return card
    button = widgets.Button(description=f"Start lesson {number}", layout={"width": "auto"})
    box = widgets.VBox([card, button])

    def begin(_):
        box.children = (card, _output(started_html(number)))

    button.on_click(begin)
    return box


def _output(text: str):
    """HTML as an output: only there does JupyterLab open a link to a notebook in a tab."""
    import ipywidgets as widgets
    from IPython.display import HTML

    shown = widgets.Output()
    shown.append_display_data(HTML(text))
    return shown


def start_menu():
    """A menu of the written stages and a button that copies lesson and worksheet to ``my-work/``.

    A tick leaves out what is off the core path.

    It shows links that open the copies. Nothing that exists is overwritten.
    """
    from IPython.display import HTML, display

    if without_widgets.missing():
        return _command("dlsys start 1")
    import ipywidgets as widgets

    ready = [(f"{s.number}. {s.title}", s.number) for s in catalog.written()]
    wide = {"width": "max-content"}
    menu = widgets.Dropdown(options=ready, description="Stage", layout=wide)
    button = widgets.Button(description="Start the stage", disabled=not ready, layout=wide)
    core = widgets.Checkbox(description="only the core path", indent=False, layout=wide)
    answer = widgets.Output()

    def begin(_):
        answer.clear_output()
        with answer:
            display(HTML(started_html(menu.value, core.value)))

    button.on_click(begin)
    return _with_fallback(widgets.VBox([_row(menu, core, button), answer]))


def model_menu():
    """A button that copies *Your model* to ``my-work/``, and a link to the copy."""
    from IPython.display import HTML, display

    if without_widgets.missing():
        return HTML(model_html())
    import ipywidgets as widgets

    button = widgets.Button(description="Start your model", layout={"width": "max-content"})
    answer = widgets.Output()

    def begin(_):
        answer.clear_output()
        with answer:
            display(HTML(model_html()))

    button.on_click(begin)
    return _with_fallback(widgets.VBox([button, answer]))


def model_html() -> str:
    """What the button shows: a link to the copy, or what went wrong."""
    try:
        path, created = work_folder.start_model()
    except UserError as error:
        return f"<p>{_text(str(error))}</p>"
    word = "Copied." if created else "You started it before; nothing was overwritten."
    return f"<p>{word} Open {cards.link(path, f'{path.parent.name}/{path.name}')}</p>"


def _command(words: str):
    """What to run in a terminal instead of a menu if a widget library is missing."""
    from IPython.display import HTML

    return HTML(f"<p>{without_widgets.sentence(without_widgets.missing())} In a terminal, "
                f"<code>{words}</code> does the same.</p>")


def _row(*parts):
    """Parts side by side; in a narrow panel the last ones move below the first."""
    import ipywidgets as widgets

    return widgets.HBox(parts, layout={"flex_flow": "row wrap"})


def _with_fallback(box, shown: str = "<p>Run this cell to get the menu back.</p>",
                   words: str = "Run this cell to get the menu back."):
    """The widget with a fallback, for a notebook that is opened again without its kernel."""
    from dlsys_helpers.explorers._live import show_live

    box._ipython_display_ = lambda: show_live(box, {"text/html": shown, "text/plain": words})
    return box


def started_html(number: int, core: bool = False) -> str:
    """What the start button shows: links to the copies, or what went wrong."""
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
    if without_widgets.missing():
        return _command("dlsys review")
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
