"""Quiet cards: HTML for a notebook, plain text for a terminal. Every text is escaped."""

from __future__ import annotations

import html
import sys
from typing import TYPE_CHECKING, Any

from dlsys_helpers import catalog

if TYPE_CHECKING:
    from dlsys_helpers.checking import Verdict

# Mid tones with a contrast of at least 3:1 on white and on black; the words carry the meaning.
TONES = {"pass": "#07875a", "todo": "#667085", "wrong": "#c4620a", "error": "#d92d20"}
HEADS = {"pass": "passed", "todo": "not written yet", "wrong": "not right yet",
         "error": "stopped with an error"}


def emit(html_text: str, text: str) -> None:
    """Show HTML where a notebook listens, else print the text."""
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        from IPython.display import display
        display({"text/html": html_text, "text/plain": text}, raw=True)
    else:
        print(text)


def card(tone: str, head: str, body: str) -> str:
    """An HTML card in one tone; `head` is text, `body` is HTML."""
    return (f'<div role="status" class="dlsys-card" style="border-left:4px solid {tone};'
            f'background:color-mix(in srgb,{tone} 9%,transparent);padding:.6em 1em;'
            f'border-radius:0 8px 8px 0;max-width:46rem;color:inherit">'
            f"<strong>{html.escape(head)}</strong>{body}</div>")


def hint_html(hints: list[str]) -> str:
    """Hints as folded steps; each gives more than the one before."""
    steps = (f'<details style="margin-top:.3em"><summary style="cursor:pointer">Hint {n}</summary>'
             f'<div style="margin:.2em 0 0 1em">{html.escape(hint)}</div></details>'
             for n, hint in enumerate(hints, 1))
    return "".join(steps)


def name_of(trap: str) -> str:
    """A trap's id, with its title where its stage is written."""
    titles = {entry["id"]: entry["title"] for entry in catalog.traps()}
    return f"{trap}: {titles[trap]}" if trap in titles else trap


def show_verdict(verdict: Verdict, trap: dict[str, Any]) -> None:
    """Show the verdict on an exercise; `trap` is its entry in the catalog."""
    head = f"Exercise {verdict.id}: {HEADS[verdict.status]}"
    if verdict.status == "pass":
        text, body = f"{trap['points']} of {trap['points']} points.", ""
    elif verdict.status == "todo":
        text, body = f"Write the body of {trap['function']}, then run this cell again.", ""
    else:
        text, body = verdict.message, hint_html(trap["hints"])
    see = f"See trap {name_of(verdict.trap)}." if verdict.trap else ""
    shown = "".join(f'<p style="margin:.3em 0">{html.escape(part)}</p>'
                    for part in (text, see) if part)
    first_hint = f"\n  Hint: {trap['hints'][0]}" if body and trap["hints"] else ""
    emit(card(TONES[verdict.status], head, shown + body),
         f"{head}. {text} {see}".rstrip() + first_hint)


def show_claim(text: str) -> None:
    """One quiet line: a claim of the lesson holds."""
    tick = f'<span style="color:{TONES["pass"]}" aria-hidden="true">✓</span>'
    emit(f'<div class="dlsys-claim" style="font-size:.86em;opacity:.85">{tick} '
         f"{html.escape(text)}</div>", f"holds: {text}")
