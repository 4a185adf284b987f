"""Quiet cards: HTML for a notebook, plain text for a terminal. Every text is escaped."""

from __future__ import annotations

import html
import sys
from typing import Any

from dlsys_helpers import catalog
from dlsys_helpers.catalog import Trap
from dlsys_helpers.verdicts import STATUSES, Verdict


def in_notebook() -> bool:
    return "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None


def emit(html_text: str, text: str, facts: dict[str, Any] | None = None, **options: Any) -> None:
    """Show HTML where a notebook listens, else print the text.

    facts: metadata of the output, for who reads the notebook later. options: of IPython's display.
    """
    if in_notebook():
        from IPython.display import display
        display({"text/html": html_text, "text/plain": text}, metadata=facts, raw=True, **options)
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


def show_verdict(verdict: Verdict, trap: Trap) -> None:
    """Show the verdict on an exercise; `trap` is its entry in the catalog."""
    passed = f"{trap.points} of {trap.points} points."
    text = passed if verdict.status == "pass" else verdict.message
    body = "" if verdict.status in ("pass", "todo") else hint_html(trap.hints)
    see = verdict.see({entry.id: entry.title for entry in catalog.traps()}.get(verdict.trap))
    shown = "".join(f'<p style="margin:.3em 0">{html.escape(part)}</p>'
                    for part in (text, see) if part)
    first_hint = f"\n  Hint: {trap.hints[0]}" if body and trap.hints else ""
    emit(card(STATUSES[verdict.status].tone, verdict.head(), shown + body),
         f"{verdict.head()}. {text} {see}".rstrip() + first_hint, verdict.facts())


def show_claim(text: str) -> None:
    """One quiet line: a claim of the lesson holds."""
    passed = STATUSES["pass"]
    tick = f'<span style="color:{passed.tone}" aria-hidden="true">{passed.mark}</span>'
    emit(f'<div class="dlsys-claim" style="font-size:.86em;opacity:.85">{tick} '
         f"{html.escape(text)}</div>", f"holds: {text}")
