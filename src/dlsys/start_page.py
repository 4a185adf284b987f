"""What the learner has solved, stage by stage, and the map and menu of the start page."""

import html
import re
from typing import NamedTuple

from dlsys import worksheets
from dlsys_helpers import catalog, paths, progress
from dlsys_helpers.stages import STAGES, Stage

SOLVED, TRIED, UNTOUCHED = "solved", "tried", "untouched"


class TrapState(NamedTuple):
    id: str
    title: str
    state: str
    points: int
    possible: int
    misconception: str | None


class StageState(NamedTuple):
    stage: Stage
    traps: tuple[TrapState, ...]

    @property
    def points(self) -> int:
        return sum(trap.points for trap in self.traps)

    @property
    def possible(self) -> int:
        return sum(trap.possible for trap in self.traps)

    @property
    def solved(self) -> int:
        return sum(trap.state == SOLVED for trap in self.traps)


def summary(personal: bool = True) -> list[StageState]:
    """The twelve stages with the state and points of each trap; no traps: not written yet.

    A trap is solved when it passed once, tried when an answer was judged, else untouched.
    ``personal=False`` reads no progress. Raises CatalogError when there is no catalog.
    """
    last = {}
    for entry in progress.entries() if personal else ():
        if entry["status"] != "todo" and last.get(entry["id"], {}).get("status") != "pass":
            last[entry["id"]] = entry
    return [
        StageState(stage, tuple(_trap_state(t, last) for t in catalog.traps(stage.number)))
        for stage in STAGES
    ]


def _trap_state(trap: dict, last: dict) -> TrapState:
    entry = last.get(trap["id"])
    state = UNTOUCHED if entry is None else SOLVED if entry["status"] == "pass" else TRIED
    points = trap["points"] if state == SOLVED else 0
    mistake = entry.get("misconception") if state == TRIED else None
    return TrapState(trap["id"], trap["title"], state, points, trap["points"], mistake)


# ---- the map

# Text keeps the page's own colour, which is readable in every theme; the accents are mid-tones
# with at least 3:1 against white and against the dark themes' background, and never stand alone.
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
.dlsys-map p { margin:0; font-size:.88em; line-height:1.4; }
.dlsys-map .foot { margin-top:auto; padding-top:.35rem; display:flex; gap:.9rem;
  flex-wrap:wrap; }
.dlsys-map a { color:inherit; text-decoration:underline; text-underline-offset:2px; }
.dlsys-map a:focus-visible { outline:2px solid currentColor; outline-offset:2px; }
"""
MARKS = {SOLVED: "●", TRIED: "◐", UNTOUCHED: "○"}


def map_html(
    lesson: str = "{stem}.ipynb",
    worksheet: str = "../my-work/{stem}.ipynb",
    personal: bool = True,
) -> str:
    """The twelve stages as a map: HTML that reads in light and dark, and without its style.

    ``lesson`` and ``worksheet`` are link targets with ``{stem}`` for the stage. With
    ``personal=False`` the map shows no progress, and every written stage links its worksheet;
    otherwise only a worksheet that was started is linked.
    """
    cards = (_card(row, lesson, worksheet, personal) for row in summary(personal))
    return f'<style>{_STYLE}</style>\n<ol class="dlsys-map">\n{"".join(cards)}</ol>'


def _card(row: StageState, lesson: str, worksheet: str, personal: bool) -> str:
    number, stem = row.stage.number, row.stage.stem
    head = f"<div><small>Stage {number}{_count(row, personal)}</small></div>"
    title = _text(row.stage.title)
    body = f"<p>{_text(row.stage.promise)}</p>"
    foot = ""
    if row.traps:
        title = f'<a href="{_link(lesson, stem)}">{title}</a>'
        body += f"<ul>{''.join(_trap_line(t, personal) for t in row.traps)}</ul>"
        foot = f'<p class="foot">{_foot(row.stage, lesson, worksheet, personal)}</p>'
    state = _state(row, personal)
    return f'<li class="{state}">{head}<strong>{title}</strong>{body}{foot}</li>\n'


def _state(row: StageState, personal: bool) -> str:
    if not row.traps:
        return "coming"
    if personal and row.solved == len(row.traps):
        return SOLVED
    begun = any(trap.state != UNTOUCHED for trap in row.traps)
    return TRIED if personal and begun else UNTOUCHED


def _count(row: StageState, personal: bool) -> str:
    if not row.traps:
        return " · coming"
    if not personal:
        return f" · {len(row.traps)} traps"
    return f" · {row.solved} of {len(row.traps)} solved · {row.points} of {row.possible} points"


def _trap_line(trap: TrapState, personal: bool) -> str:
    if not personal:
        return f"<li>{trap.id} {_text(trap.title)}</li>"
    mark = f'<span role="img" aria-label="{trap.state}" title="{trap.state}">'
    return f"<li>{mark}{MARKS[trap.state]}</span> {trap.id} {_text(trap.title)}</li>"


def _foot(stage: Stage, lesson: str, worksheet: str, personal: bool) -> str:
    links = [f'<a href="{_link(lesson, stage.stem)}">Read the lesson</a>']
    started = (paths.MY_WORK / f"{stage.stem}.ipynb").exists()
    if started or not personal:
        word = "Continue your worksheet" if personal else "Worksheet"
        links.append(f'<a href="{_link(worksheet, stage.stem)}">{word}</a>')
    else:
        links.append(f"<span>To practise: <code>dlsys start {stage.number}</code></span>")
    return " ".join(links)


def _link(pattern: str, stem: str) -> str:
    return html.escape(pattern.replace("{stem}", stem))


def _text(words: str) -> str:
    """Escaped text; `code` keeps its face."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(words))


def progress_map(**options):
    """`map_html` as an object that a notebook shows. The options are those of `map_html`."""
    from IPython.display import HTML

    return HTML(map_html(**options))


def start_menu():
    """A menu of the written worksheets and a button that copies one to ``my-work/``.

    It shows a link that opens the copy. Nothing that exists is overwritten.
    """
    import ipywidgets as widgets
    from IPython.display import HTML, display

    ready = [(f"{s.number}. {s.title}", s.number) for s in worksheets.written()]
    wide = {"width": "max-content"}
    menu = widgets.Dropdown(options=ready, description="Stage", layout=wide)
    button = widgets.Button(description="Start the worksheet", disabled=not ready, layout=wide)
    answer = widgets.Output()

    def begin(_):
        answer.clear_output()
        with answer:
            display(HTML(_started_html(menu.value)))

    button.on_click(begin)
    return widgets.VBox([widgets.HBox([menu, button]), answer])


def _started_html(number: int) -> str:
    """What the start button answers: a link to the copy, or what went wrong."""
    try:
        started = worksheets.start(number)
    except worksheets.WorksheetError as error:
        return f"<p>{_text(str(error))}</p>"
    name = html.escape(started.path.name)
    word = "Copied." if started.created else "You started it before; nothing was overwritten."
    return f'<p>{word} Open <a href="../my-work/{name}">my-work/{name}</a></p>'
